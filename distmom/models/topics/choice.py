"""The choice on held-out documents: initial topics, further passes, a background topic, and Dirichlet parameters.

Each of several initialisations is refined by one pass, and the one whose topics complete held-out documents best
is chosen. On clean text a few passes of refinement suffice, and more of them overfit. Where words are bursty, as
in raw posts with headers and signatures, topics improve for many passes. The chosen topics are therefore refined
further on a part of the documents, as long as they complete held-out documents better. If the topics share most of
their top words, a fit in which the distribution of all words replaces one of them is tried as well: it absorbs the
words that all documents share.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
from distmom.models.topics.settings import TopicSettings
from distmom.models.topics.steps import Topics
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.recovery import Slabs

logger = logging.getLogger(__name__)

#: largest number of held-out documents, and their largest share of the corpus
HELD_OUT_DOCUMENTS, HELD_OUT_SHARE = 5_000, 0.1
#: largest number of documents on which topics are refined before a choice
TRIAL_DOCUMENTS = 50_000
#: numbers of passes that are tried; after the first, each must gain at least the second value in log-likelihood
#: per position of held-out documents
N_PASSES, LEAST_GAIN = (4, 8, 16, 24), 0.001
#: largest number of positions in the documents of these passes, and their least share of all positions: every pass
#: reads all shards, and topics overfit a small part of a large corpus
PART_POSITIONS, LEAST_PART = 4_000_000, 0.05
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
    further : Topics or None
        Topics that further passes over a part of the documents have refined, if they replace the initial topics;
        else None.
    n_passes : int
        Number of these passes.
    background : bool
        Whether a background topic has replaced one of the topics of ``further``.
    perplexities : dict of str to float
        Held-out perplexity by number of passes on a part of the documents, and with a background topic.
    """

    init: Initial
    topics: Topics
    completion: Completion
    selection: dict[str, Any] | None = None
    further: Topics | None = None
    n_passes: int = 0
    background: bool = False
    perplexities: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """A way to refine topics on some documents, and to evaluate them on others.

    Attributes
    ----------
    method : {"em", "vb", "cvb", "mixture"}
    eta : float
    n_folds : int
    documents, held : Selection
        Documents on which topics are refined, and those that they complete.
    """

    method: str
    eta: float
    n_folds: int
    documents: Selection
    held: Selection

    def refine(self, run: Run, chosen: Chosen, n_passes: int) -> Chosen:
        """Refine the topics further, and complete the held-out documents again."""
        topics = refine_topics(run, chosen.topics, self.method, n_passes, self.documents, self.eta)
        # After a few more passes the best sum of the Dirichlet parameters is close to the one before.
        sums = near_sums(run, chosen.completion)
        completion = complete(run, topics.matrix, topics.shares, self.held, alpha_sums=sums)
        return replace(chosen, topics=topics, completion=completion)


def held_out(corpus: Corpus | MemoryCorpus, seed: int) -> Selection:
    """Return the documents that are held out of a corpus."""
    share = min(HELD_OUT_SHARE, HELD_OUT_DOCUMENTS / max(1, corpus.n_documents))
    return Selection(share, heldout=True, seed=seed)


def choose(run: Run, model: TopicSettings, inits: Sequence[Initial], held: Selection, dtype: str) -> Chosen:
    """Choose the initial topics that, refined without the held-out documents, complete these best.

    Where there are several, each is refined by one pass, and the best by another pass before the parameters
    with which documents are read are estimated, as topics are still too even after one pass. The second pass is
    left out where refinement estimates these parameters. The chosen topics are refined further if the model
    `tries_further` passes.

    Parameters
    ----------
    run : Run
    model : TopicSettings
    inits : sequence of Initial
    held : Selection
        The held-out documents.
    dtype : str
        Type of the topics.
    """
    corpus = run.corpus
    n = corpus.n_documents
    documents = replace(held, heldout=False)
    if n > TRIAL_DOCUMENTS:
        documents = Selection(TRIAL_DOCUMENTS / n, heldout=True, seed=held.seed, offset=held.fraction)
    trial = Trial(model.refine_method(corpus), model.eta, model.n_folds(corpus), documents, held)
    several, n_alpha = len(model.trials()) > 1, model.n_alpha_passes(corpus)
    n_first = min(1, model.n_refine_passes(corpus)) if several else n_alpha
    tried: list[Chosen] = []
    for init in inits:
        initial = initial_topics(init.topics, init.proportions, trial.n_folds, dtype)
        topics = refine_topics(run, initial, trial.method, n_first, documents, trial.eta)
        tried.append(Chosen(init, topics, complete(run, topics.matrix, topics.shares, held)))
    best = run.apply(_best, tried, several, out=tried[0])
    if n_alpha > n_first:
        best = run.when(
            lambda: best.completion.n_tokens > 0, trial.refine, best, n_alpha - n_first, otherwise=best
        )
    if model.tries_further(corpus):
        share = min(TRIAL_DOCUMENTS / n, part_of_positions(corpus), 1.0 - held.fraction)
        some = Selection(share, heldout=True, seed=held.seed, offset=held.fraction)
        best = refine_further(run, best, n_alpha, replace(trial, documents=some), not model.background)
    return best


def _best(tried: list[Chosen], several: bool) -> Chosen:
    """Return the trial that completes the held-out documents best."""
    best = max(tried, key=lambda t: t.completion.log_likelihood)
    if not best.completion.n_tokens:
        logger.warning(
            "no held-out document has enough words to compare initial topics: the first ones are used"
        )
        return replace(tried[0], completion=best.completion)
    if several:
        selection = {
            "init": best.init.name,
            "n_held_out": best.completion.n_documents,
            "perplexity": {each.init.name: each.completion.perplexity for each in tried},
        }
        return replace(best, selection=selection)
    return best


def final_alpha(
    model: TopicSettings, corpus: Corpus | MemoryCorpus, topics: Topics, chosen: Chosen | None
) -> np.ndarray:
    """Return the Dirichlet parameters with which new documents are read, (k,).

    Their sum is that of the choice, unless refinement estimates it or nothing was chosen.
    """
    if chosen is None or model.finds_alpha(corpus):
        return topics.shares if model.refine == "mixture" else topics.alpha
    shares = np.maximum(topics.shares, 1e-6)
    return np.asarray(chosen.completion.alpha.sum() * shares / shares.sum())


def part_of_positions(corpus: Corpus | MemoryCorpus) -> float:
    """Return the largest share of the positions on which `refine_further` refines topics; 0 if it is too small."""
    part = PART_POSITIONS / max(1.0, float(corpus.word_frequency.sum()))
    return part if part >= LEAST_PART else 0.0


def refine_further(
    run: Run, chosen: Chosen, n_done: int, trial: Trial, tries_background: bool = True
) -> Chosen:
    """Refine the chosen topics by further passes over a part of the documents, as long as topics improve.

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
        The same, with ``further`` if these topics complete held-out documents better.
    """
    # Nothing is chosen where no held-out document can be completed.
    has_held = partial(_has_held, chosen)
    first = run.when(has_held, trial.refine, chosen, N_PASSES[0] - n_done, otherwise=chosen)
    last = run.apply(_first, chosen, first, out=chosen)
    for done, n_passes in pairwise(N_PASSES):
        # Only if the step before has improved the topics.
        has_gained = partial(_has_passes, last, done)
        further = run.when(has_gained, trial.refine, last, n_passes - done, otherwise=last)
        last = run.apply(_better, last, further, n_passes, out=last)
    found = run.apply(_with_further, chosen, last, out=chosen)
    if not tries_background:
        return found
    shared = run.rows(_share_top_words, last, out=unknown())
    topics, shares = run.rows(
        _with_background, shared, chosen.init, out=(chosen.init.topics, chosen.init.proportions)
    )
    initial = replace(chosen, topics=initial_topics(topics, shares, trial.n_folds, chosen.topics.dtype))
    tried = run.when(lambda: bool(shared), trial.refine, initial, N_BACKGROUND, otherwise=initial)
    return run.apply(_preferred, shared, found, last, tried, out=found)


def _has_held(chosen: Chosen) -> bool:
    return chosen.completion.n_tokens > 0


def _has_passes(chosen: Chosen, n_passes: int) -> bool:
    return chosen.n_passes == n_passes


def _first(chosen: Chosen, first: Chosen) -> Chosen:
    if first is chosen:
        return chosen
    return replace(first, n_passes=N_PASSES[0], perplexities={str(N_PASSES[0]): first.completion.perplexity})


def _better(last: Chosen, further: Chosen, n_passes: int) -> Chosen:
    if further is last:
        return last
    gain = further.completion.log_likelihood - last.completion.log_likelihood
    perplexities = {**last.perplexities, str(n_passes): further.completion.perplexity}
    best = replace(further, n_passes=n_passes) if gain >= LEAST_GAIN else last
    return replace(best, perplexities=perplexities)


def _with_further(chosen: Chosen, last: Chosen) -> Chosen:
    """Return the choice with the topics of further passes if these are better than all topics so far."""
    # The first number of passes is about that on all documents; the part of the documents may also be too small.
    if last.n_passes <= N_PASSES[0] or last.completion.log_likelihood < chosen.completion.log_likelihood:
        return replace(chosen, perplexities=last.perplexities)
    return replace(last, further=_fresh(last.topics))


def _fresh(topics: Topics) -> Topics:
    """Return topics without the rows and likelihoods of the documents that refined them, for other documents."""
    return replace(topics, rows={}, log_likelihoods=())


def _share_top_words(engine: Engine, last: Chosen) -> bool:
    """Return whether topics of further passes share most of their top words."""
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


def _preferred(shared: bool, chosen: Chosen, last: Chosen, tried: Chosen) -> Chosen:
    """Return the topics with a background topic if these were tried and predict as well, else those so far."""
    if not shared:
        return chosen
    loss = last.completion.log_likelihood - tried.completion.log_likelihood
    perplexities = {**chosen.perplexities, "background": tried.completion.perplexity}
    if loss > BACKGROUND_LOSS:
        return replace(chosen, perplexities=perplexities)
    return replace(
        tried, further=_fresh(tried.topics), n_passes=N_BACKGROUND, background=True,
        perplexities=perplexities,
    )  # fmt: skip
