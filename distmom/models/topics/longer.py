"""The start of refinement, chosen on held-out documents: initial topics, or topics that more passes have refined.

On clean text a few passes suffice, and more of them overfit. Where words are bursty, as in raw posts with headers
and signatures, topics improve for many passes. The chosen topics are therefore refined further on a part of the
documents, as long as they complete held-out documents better. If the topics share most of their top words, a fit
in which the distribution of all words replaces one of them is tried as well: it absorbs the words that all
documents share.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Engine, Selection, StoredArray, StoredColumns
from distmom.engine.stored.arrays import SLAB_ROWS
from distmom.engine.sums.tall import read_rows
from distmom.models.topics.initial import Initial, word_shares
from distmom.models.topics.refine import Completion, complete, initial_topics, near_sums, refine_topics
from distmom.models.topics.steps import Topics
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.recovery import Slabs

#: numbers of passes that are tried; after the first, each must gain at least the second value in log-likelihood
#: per position of held-out documents
LONGER, LEAST_GAIN = (4, 8, 16, 24), 0.001
#: largest number of positions in the documents of these passes, and their least share of all positions: every pass
#: reads all shards, and topics overfit a small part of a large corpus
LONGER_POSITIONS, LEAST_PART = 4_000_000, 0.05
#: share of distinct words among the top words of all topics, and number of these words per topic, below which a
#: background topic is tried
SHARED, N_TOP = 0.5, 10
#: largest loss in log-likelihood per held-out position at which topics with a background topic are preferred
BACKGROUND_LOSS = 0.01
#: number of passes with a background topic, which separates slowly from the others
N_BACKGROUND = 16


@dataclass(frozen=True)
class Chosen:
    """Initial topics, the refined topics, and how well these complete held-out documents.

    Attributes
    ----------
    init : Initial
    topics : Topics
    completion : Completion
    selection : dict or None
        Held-out perplexities of all initialisations, if there were several; JSON values.
    start : Topics or None
        Topics from which to refine all documents; None: the initial topics.
    n_passes : int
        Number of passes on a part of the documents that have refined ``start``.
    background : bool
        Whether a background topic has replaced one of the topics of ``start``.
    longer : dict of str to float
        Held-out perplexity by number of passes on a part of the documents, and with a background topic.
    """

    init: Initial
    topics: Topics
    completion: Completion
    selection: dict[str, Any] | None = None
    start: Topics | None = None
    n_passes: int = 0
    background: bool = False
    longer: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """How topics are refined on some documents, and evaluated on others.

    Attributes
    ----------
    how : {"em", "vb", "cvb", "mixture"}
    eta : float
    n_folds : int
    documents, held : Selection
        Documents on which topics are refined, and those that they complete.
    """

    how: str
    eta: float
    n_folds: int
    documents: Selection
    held: Selection

    def further(self, run: Run, chosen: Chosen, n_passes: int) -> Chosen:
        """Refine the topics further, and complete the held-out documents again."""
        topics = refine_topics(run, chosen.topics, self.how, n_passes, self.documents, self.eta)
        # After a few more passes the best sum of the Dirichlet parameters is close to the one before.
        sums = near_sums(run, chosen.completion)
        completion = complete(run, topics.matrix, topics.shares, self.held, alpha_sums=sums)
        return replace(chosen, topics=topics, completion=completion)


def part_of_positions(corpus: Corpus | MemoryCorpus) -> float:
    """Return the largest share of the positions on which `choose_start` refines topics; 0 if it is too small."""
    part = LONGER_POSITIONS / max(1.0, float(corpus.word_frequency.sum()))
    return part if part >= LEAST_PART else 0.0


def choose_start(
    run: Run, chosen: Chosen, n_done: int, trial: Trial, tries_background: bool = True
) -> Chosen:
    """Choose the topics from which refinement of all documents starts.

    Parameters
    ----------
    run : Run
    chosen : Chosen
        Topics refined by ``n_done`` passes.
    n_done : int
        At most 4.
    trial : Trial
    tries_background : bool, default True
        Try a background topic where topics share most of their top words.

    Returns
    -------
    Chosen
        The same, with ``start`` if other topics than the initial ones complete held-out documents better.
    """
    # Nothing is chosen where no held-out document can be completed.
    has_held = partial(_has_held, chosen)
    first = run.when(has_held, trial.further, chosen, LONGER[0] - n_done, otherwise=chosen)
    last = run.rows(_first, chosen, first, out=chosen)
    for done, n_passes in pairwise(LONGER):
        # Only as long as the step before has gained.
        has_gained = partial(_has_passes, last, done)
        further = run.when(has_gained, trial.further, last, n_passes - done, otherwise=last)
        last = run.rows(_better, last, further, n_passes, out=last)
    longer = run.rows(_with_start, chosen, last, out=chosen)
    if not tries_background:
        return longer
    shared = run.rows(_share_top_words, last, out=unknown())
    topics, shares = run.rows(
        _with_background, shared, chosen.init, out=(chosen.init.topics, chosen.init.proportions)
    )
    start = initial_topics(topics, shares, trial.n_folds, chosen.topics.dtype)
    initial = replace(chosen, topics=start)
    tried = run.when(lambda: bool(shared), trial.further, initial, N_BACKGROUND, otherwise=initial)
    return run.rows(_preferred, shared, longer, last, tried, out=longer)


def _has_held(chosen: Chosen) -> bool:
    return chosen.completion.n_tokens > 0


def _has_passes(chosen: Chosen, n_passes: int) -> bool:
    return chosen.n_passes == n_passes


def _first(engine: Engine, chosen: Chosen, first: Chosen) -> Chosen:
    if first is chosen:
        return chosen
    return replace(first, n_passes=LONGER[0], longer={str(LONGER[0]): first.completion.perplexity})


def _better(engine: Engine, last: Chosen, further: Chosen, n_passes: int) -> Chosen:
    if further is last:
        return last
    gain = further.completion.log_likelihood - last.completion.log_likelihood
    longer = {**last.longer, str(n_passes): further.completion.perplexity}
    best = replace(further, n_passes=n_passes) if gain >= LEAST_GAIN else last
    return replace(best, longer=longer)


def _with_start(engine: Engine, chosen: Chosen, last: Chosen) -> Chosen:
    """Return the choice with the topics of more passes as start, if these are better than all before."""
    # The first number of passes is about that on all documents; the part of the documents may also be too small.
    if last.n_passes <= LONGER[0] or last.completion.log_likelihood < chosen.completion.log_likelihood:
        return replace(chosen, longer=last.longer)
    return replace(last, start=_fresh(last.topics))


def _fresh(topics: Topics) -> Topics:
    """Return topics for other documents than those that have refined them."""
    return replace(topics, rows={}, log_likelihoods=())


def _share_top_words(engine: Engine, last: Chosen) -> bool:
    """Return whether topics of more passes share most of their top words."""
    if not last.n_passes:
        return False
    top = top_rows(last.topics.matrix, engine.corpus.n_words, N_TOP)
    return bool(len(np.unique(top)) < SHARED * min(top.size, engine.corpus.n_words))


def top_rows(matrix: StoredColumns, n_rows: int, n_top: int) -> np.ndarray:
    """Return the rows with the largest values of every column, (n_top, k) int, in no particular order."""
    rows = values = None
    for first in range(0, n_rows, SLAB_ROWS):
        slab = np.asarray(read_rows(matrix, slice(first, min(first + SLAB_ROWS, n_rows))))
        numbers = np.broadcast_to(np.arange(first, first + len(slab))[:, None], slab.shape)
        if rows is not None and values is not None:
            slab, numbers = np.vstack([values, slab]), np.vstack([rows, numbers])
        best = np.argsort(-slab, axis=0, kind="stable")[:n_top]
        rows, values = np.take_along_axis(numbers, best, 0), np.take_along_axis(slab, best, 0)
    assert rows is not None
    return rows


def _with_background(engine: Engine, shared: bool, init: Initial) -> tuple[StoredColumns, np.ndarray]:
    """Replace the topic that is most like the distribution of all words by it, with a share of one half.

    Unless the topics share most of their top words, the initial topics are returned as they are.
    """
    if not shared:
        return init.topics, init.proportions
    k, n_words = len(init.proportions), engine.corpus.n_words
    unigram = engine.put(word_shares(engine.corpus)[:, None])
    dtype = str(init.topics.parts[0].load().dtype)
    inputs: list[StoredColumns | StoredArray] = [init.topics, unigram]
    outputs = {"topics": (k, dtype)}
    _, sums = engine.maps.map_rows(_likeness, inputs, n_words, {})
    replaced = int(np.argmax(sums["likeness"]))
    stored, _ = engine.maps.map_rows(_replace, inputs, n_words, outputs, replaced)
    others = np.where(np.arange(k) == replaced, 0.0, init.proportions)
    shares = 0.5 * others / max(others.sum(), 1e-300)
    shares[replaced] = 0.5
    return StoredColumns((stored["topics"],)), shares


def _likeness(rows: slice, topics: np.ndarray, unigram: np.ndarray) -> tuple[Slabs, Slabs]:
    return {}, {"likeness": np.sqrt(topics * unigram).sum(axis=0, dtype=np.float64)}


def _replace(rows: slice, topics: np.ndarray, unigram: np.ndarray, replaced: int) -> tuple[Slabs, Slabs]:
    found = np.array(topics)
    found[:, replaced] = unigram[:, 0]
    return {"topics": found}, {}


def _preferred(engine: Engine, shared: bool, chosen: Chosen, last: Chosen, tried: Chosen) -> Chosen:
    """Return the topics with a background topic, if they were tried and predict as well; else those so far."""
    if not shared:
        return chosen
    loss = last.completion.log_likelihood - tried.completion.log_likelihood
    longer = {**chosen.longer, "background": tried.completion.perplexity}
    if loss > BACKGROUND_LOSS:
        return replace(chosen, longer=longer)
    start = _fresh(tried.topics)
    return replace(tried, start=start, n_passes=N_BACKGROUND, background=True, longer=longer)
