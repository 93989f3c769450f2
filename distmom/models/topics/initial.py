"""Where the refinement of topics starts: topics from a decomposed tensor or from anchor words, on frequent words.

Moments are of words that neither few nor most documents have, with counts capped, as real text repeats a rare
word more often than any topic says, and with every word scaled by ``D^(-1/2)``, D its share of all documents'
words, so that no common word rules the second moment. One set of sums serves every start: the Dirichlet shift
of alpha0 is applied to the small moments, and anchor words need the second alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Engine, Selection, StoredColumns
from distmom.engine.state import SLAB_ROWS, release_maps
from distmom.engine.tall import read_rows
from distmom.errors import NumericalError, UsageError
from distmom.linalg.anchors import select_anchors, simplex_weights
from distmom.moments.dirichlet import proportions, proportions_of_mean, shifts, topic_factor
from distmom.moments.weighting import WEIGHTINGS, MomentKind
from distmom.moments.word_moments import half_rows, word_moments
from distmom.spectral.basis import Basis
from distmom.spectral.components import (
    Core,
    CoreSettings,
    Words,
    added_sums,
    basis_passes,
    find_each,
    fit_basis,
)
from distmom.spectral.estimator import check_bounds, check_choices, check_seed
from distmom.spectral.inputs import check_counts

logger = logging.getLogger(__name__)

#: length of a document with a quarter of the largest weight, for ``weighting="length"``
LENGTH_SCALE = 100.0
#: share of the documents that a word of the moments is in at least with ``min_df="auto"``, unless documents have
#: fewer such words than that in the mean: then as many are taken as make up some share of all positions, down to
#: words of a few documents
MIN_DF, SEEN_POSITIONS, SEEN_SHARE, FEWEST_DOCUMENTS = 0.005, 30, 0.8, 10
#: share of the documents that are long enough for the moments below which a warning says so
LEAST_SHARE = 0.5
#: words for every topic among which anchors are chosen, at least
ANCHOR_CANDIDATES = 10


@dataclass(frozen=True)
class Initial:
    """Topics to start from.

    Attributes
    ----------
    name : str
        "tensor" with its alpha0, "anchors" or "factors".
    topics : StoredColumns
        (d, k), columns sum to one; zero at words that the moments do not see.
    proportions : ndarray of shape (k,)
        Shares of the topics in the corpus, as the moments have them; sum to one.
    alpha0 : float or None
    diagnostics : dict
        JSON values.
    """

    name: str
    topics: StoredColumns
    proportions: np.ndarray
    alpha0: float | None
    diagnostics: dict[str, Any]


@dataclass(frozen=True)
class CommittedMoments:
    """Moments in a basis that are committed in the directory of a run.

    Attributes
    ----------
    settings : CoreSettings
    words : Words
    basis : Basis
    directories : tuple of str
        Of the committed sums, which are to be added.
    """

    settings: CoreSettings
    words: Words
    basis: Basis
    directories: tuple[str, ...]


def topic_settings(model: Any, k: int, third_moment: str) -> CoreSettings:
    """Return how the moments of an estimator with the parameters of topic models are found."""
    return CoreSettings(
        n_states=k,
        kind=MomentKind(
            "distinct",
            model.weighting,
            binary=False,
            length_scale=LENGTH_SCALE,
            max_count=model.max_count,
            orders=2 if third_moment == "none" else 3,
        ),
        n_oversamples=max(20, k // 2) if model.n_oversamples is None else model.n_oversamples,
        n_power_iter=model.n_power_iter,
        third_moment=third_moment,
        seed=model.random_state,
        single_precision=model.precision == "single",
        lower=True,
    )


def check_topics(
    model: Any,
    corpus: Corpus | MemoryCorpus,
    n_least: int = 1,
    *,
    autos: bool = False,
    weightings: Sequence[str] = WEIGHTINGS,
) -> None:
    """Refuse parameters of the moments that are wrong or do not go with a corpus.

    Parameters
    ----------
    model : estimator
    corpus : Corpus or MemoryCorpus
    n_least : int
        Fewest topics.
    autos : bool
        The number of topics may be "auto".
    weightings : sequence of str
        Among which that of the model is.

    Raises
    ------
    UsageError
        If a parameter is wrong, or the corpus is too small for it.
    InputError
        If the corpus holds weights in place of counts.
    """
    check_choices(model, {"weighting": weightings, "precision": ("single", "double")})
    check_seed(model)
    check_bounds(model, {"max_count": 1, "n_power_iter": 0, "n_oversamples": 0})
    if isinstance(model.min_df, str) and model.min_df != "auto":
        raise UsageError(f"min_df: expected a share of the documents, or 'auto', got {model.min_df!r}")
    min_df = 0.0 if model.min_df == "auto" else model.min_df
    check_bounds(model, {"n_components": n_least}, autos=("n_components",) if autos else ())
    if not 0.0 <= min_df <= model.max_df <= 1.0:
        raise UsageError(
            f"min_df, max_df: expected 0 <= min_df <= max_df <= 1, got {model.min_df}, {model.max_df}"
        )
    if corpus.n_documents < 2 or corpus.n_words < 2:
        raise UsageError(
            f"a corpus of n_samples={corpus.n_documents} documents and n_features={corpus.n_words} words has "
            "no topics"
        )
    check_counts(corpus, type(model).__name__)


def word_numbers(
    corpus: Corpus | MemoryCorpus, n_components: int, min_df: float | str, max_df: float
) -> np.ndarray:
    """Number the words that some share of the documents have at least, and another at most.

    With "auto" those that 0.5 % have at least; if they leave fewer than 30 positions of a document in the mean,
    also rarer ones, until they make up four fifths of the positions, but none of fewer than 10 documents.

    Returns
    -------
    ndarray of shape (n_words,), int32
        -1 for the other words.

    Raises
    ------
    UsageError
        If there are fewer than components.
    """
    frequency = np.asarray(corpus.document_frequency, np.float64)
    n = max(1, corpus.n_documents)
    not_too_many = frequency <= max_df * n
    least = _least_documents(corpus, not_too_many) if isinstance(min_df, str) else min_df * n
    kept = (frequency >= max(1.0, least)) & not_too_many
    if kept.sum() < n_components:
        raise UsageError(
            f"n_components={n_components} needs as many words, but only {kept.sum()} of {corpus.n_words} are in "
            f"at least {least / n:g} and at most {max_df:g} of the documents: change min_df or max_df"
        )
    return np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)


def _least_documents(corpus: Corpus | MemoryCorpus, allowed: np.ndarray) -> float:
    """Return in how many documents a word of the moments is at least, with ``min_df="auto"``."""
    n = max(1, corpus.n_documents)
    frequency = np.asarray(corpus.document_frequency, np.float64)[allowed]
    positions = np.asarray(corpus.word_frequency, np.float64)[allowed]
    order = np.argsort(-frequency, kind="stable")
    seen = np.cumsum(positions[order])
    if not len(seen):
        return MIN_DF * n
    enough = min(SEEN_POSITIONS * n, SEEN_SHARE * seen[-1])
    last = frequency[order[int(np.searchsorted(seen, enough))]]
    return float(min(MIN_DF * n, max(FEWEST_DOCUMENTS, last)))


def moment_words(
    engine: Engine, n_components: int, min_df: float | str, max_df: float, scaled: bool
) -> tuple[Words, np.ndarray]:
    """Choose the words of the moments.

    Parameters
    ----------
    engine : Engine
    n_components : int
    min_df : float or "auto"
    max_df : float
        Shares of the documents that a word is in, at least and at most, as in `word_numbers`.
    scaled : bool
        Scale words by ``D^(-1/2)``, D with a floor of the mean.

    Returns
    -------
    words : Words
    numbers : ndarray of shape (n_words,), int32
        As `word_numbers`.
    """
    corpus = engine.corpus
    numbers = word_numbers(corpus, n_components, min_df, max_df)
    kept, n_kept = numbers >= 0, int(numbers.max()) + 1
    frequency = np.asarray(corpus.document_frequency, np.float64)
    scale = None
    if scaled:
        share = frequency[kept] / frequency[kept].sum()
        scale = engine.put(1.0 / np.sqrt(share + 1.0 / n_kept)[:, None])
    every = n_kept == corpus.n_words
    return Words(n_kept, None if every else engine.put(numbers), scale), numbers


def fit_moments(
    engine: Engine,
    settings: CoreSettings,
    words: Words,
    selection: Selection | None,
    of_basis: Selection | None,
) -> CommittedMoments:
    """Run the passes that give the moments of some documents in a basis for these, or for others."""
    basis = fit_basis(engine, settings, words, of_basis)
    pass_, _ = basis_passes(engine, settings, words, basis, selection)
    found = engine.run(replace(pass_, mean=True))
    kind = settings.kind
    n_documents, n_long = (float(x) for x in found.sums["lengths"][:2])
    if kind.needs_positions and kind.orders == 3 and n_long < LEAST_SHARE * n_documents:
        logger.warning(
            "%.0f %% of the documents have fewer than 3 words and no part in the moments",
            100.0 * (1.0 - n_long / n_documents),
        )  # fmt: skip
    return CommittedMoments(settings, words, basis, (found.directory,))


def extend_moments(engine: Engine, moments: CommittedMoments, added: Selection) -> CommittedMoments:
    """Add the sums of documents that were left out, in the same basis."""
    pass_, _ = basis_passes(engine, moments.settings, moments.words, moments.basis, added)
    directory = engine.run(replace(pass_, mean=True)).directory
    return replace(moments, directories=(*moments.directories, directory))


def tensor_inits(
    engine: Engine, moments: CommittedMoments, numbers: np.ndarray, alpha0s: Sequence[float]
) -> list[Initial | NumericalError]:
    """Decompose the third moment at each of some alpha0 (tensor paper, theorem 3.5).

    With infinite alpha0 moments are central, and what is found are independent factors, of which documents have
    amounts in place of shares (ECA paper, algorithm 1): canonical columns, a topic times the standard deviation of
    its amount, with the skewness of the amount as eigenvalue. Where the moments do not carry any topic, the error
    that says so is in the place of the start.
    """
    settings = tuple(replace(moments.settings, alpha0=alpha0) for alpha0 in alpha0s)
    cores = find_each(engine, settings, moments.basis, moments.directories) if settings else []
    return [
        core if isinstance(core, NumericalError) else _tensor_init(engine, moments, numbers, alpha0, core)
        for alpha0, core in zip(alpha0s, cores, strict=True)
    ]


def _tensor_init(
    engine: Engine, moments: CommittedMoments, numbers: np.ndarray, alpha0: float, core: Core
) -> Initial:
    independent = math.isinf(alpha0)
    sizes = np.ones_like(core.eigenvalues) if independent else topic_factor(alpha0) * core.eigenvalues
    unwhiten = core.B @ (core.V * sizes)

    sums = added_sums(moments.directories, without="m3")
    scale = moments.words.scale

    def rows(stored: np.ndarray, part: slice) -> np.ndarray:
        # What is stored is scaled once, and so are the moments.
        plain = stored if scale is None else stored / np.asarray(scale.load()[part]) ** 2
        return np.asarray(plain @ unwhiten)

    a, _, _ = shifts(alpha0)
    whiten = core.W @ (core.V * sizes)

    def free_rows(stored: np.ndarray, part: slice) -> np.ndarray:
        # M2 QW in place of Q Q'M2 QW: documents that the basis was not made of may have topics outside of it, and
        # what sampling does to a topic is not confined to it.
        mean1, m1 = (np.asarray(sums[name]) / float(sums["mass"][0]) for name in ("mean", "m1"))
        return np.asarray((half_rows(sums, part, stored) - a * np.outer(mean1[part], m1)) @ whiten)

    topics, masses, negative = _store_topics(
        engine, moments, numbers, free_rows if "half" in sums else rows, unwhiten.shape[1]
    )
    diagnostics = {
        **core.diagnostics,
        **core.lengths,
        "spectrum": [float(x) for x in core.spectrum],
        "negative_mass": [float(x) for x in negative],
    }
    if independent:
        # The mean amount of a factor times what it brings of words.
        shares = np.maximum(core.mean, 0.0) * masses
        diagnostics["skewness"] = [float(x) for x in core.eigenvalues]
    else:
        of_mean = proportions_of_mean(core.mean, core.eigenvalues, alpha0)
        others = proportions(core.eigenvalues, alpha0)
        diagnostics["sum_proportions"] = float(others.sum())
        diagnostics["proportions_disagreement"] = float(np.abs(others - of_mean).max())
        # Equal where documents follow the model, and much nearer to the truth where they do not.
        shares = np.maximum(of_mean, 0.0)
    total = float(shares.sum())
    shares = shares / total if total > 0 else np.full(len(shares), 1.0 / len(shares))
    name = "factors" if independent else f"tensor-{alpha0:g}"
    return Initial(name, topics, shares, None if independent else alpha0, diagnostics)


def anchor_init(
    engine: Engine, moments: CommittedMoments, numbers: np.ndarray, vocabulary: list[str], min_df: float
) -> Initial:
    """Find anchor words in the second moment and the topics they span (see `distmom.linalg.anchors`).

    Parameters
    ----------
    engine : Engine
    moments : CommittedMoments
    numbers : ndarray of shape (n_words,), int32
    vocabulary : list of str
        All words of the corpus, to name the anchors.
    min_df : float
        Share of the documents that an anchor word is in at least, unless there are fewer than ten such words for
        every topic.
    """
    settings, corpus = moments.settings, engine.corpus
    kept = np.flatnonzero(numbers >= 0)
    frequency = np.asarray(corpus.document_frequency)[kept]
    n_least = min(len(frequency), ANCHOR_CANDIDATES * settings.n_states)
    least = min(min_df * corpus.n_documents, np.sort(frequency)[-n_least])
    candidates = np.flatnonzero(frequency >= least)
    with one_blas_thread():
        sums = added_sums(moments.directories, without="m3")
        found = word_moments(sums, settings.kind, moments.basis.matrix)
        mean = np.maximum(np.asarray(sums["mean"]), 0.0)
        stored = np.asarray(read_rows(moments.basis.matrix, slice(0, len(kept))), np.float64)
        scale = 1.0 if moments.words.scale is None else np.asarray(moments.words.scale.load())
        # Row w of D E2 D is Q_w (Q'D E2 D Q) Q', so that distances can be taken without the last factor.
        rows = (stored / scale) @ found.m2 / np.where(mean > 0.0, mean, 1.0)[:, None] / scale
        anchors = select_anchors(rows, settings.n_states, candidates)
        weights = simplex_weights(rows, rows[anchors])
    joint = weights * mean[:, None]
    shares = joint.sum(axis=0)

    def of_rows(stored: np.ndarray, part: slice) -> np.ndarray:
        return np.asarray(joint[part])

    topics, _, _ = _store_topics(engine, moments, numbers, of_rows, settings.n_states)
    return Initial(
        "anchors",
        topics,
        shares / shares.sum(),
        None,
        {**found.lengths, "sum_rules": found.sum_rules, "anchors": [vocabulary[i] for i in kept[anchors]]},
    )


def _store_topics(
    engine: Engine,
    moments: CommittedMoments,
    numbers: np.ndarray,
    rows_of: Callable[[np.ndarray, slice], np.ndarray],
    k: int,
) -> tuple[StoredColumns, np.ndarray, np.ndarray]:
    """Store topics over all words, negative entries clipped and columns scaled to sum to one.

    Parameters
    ----------
    rows_of : callable
        Called with rows of the stored basis and which they are; returns rows of the topics over plain words.

    Returns
    -------
    topics : StoredColumns
    masses : ndarray of shape (k,)
        What the columns summed to.
    negative : ndarray of shape (k,)
        Share of every topic's absolute mass that was negative.
    """
    n_moment = moments.words.n_words

    def slabs() -> Any:
        for start in range(0, n_moment, SLAB_ROWS):
            part = slice(start, min(start + SLAB_ROWS, n_moment))
            yield part, rows_of(np.asarray(read_rows(moments.basis.matrix, part), np.float64), part)

    positive, negative = np.zeros(k), np.zeros(k)
    for _, values in slabs():
        positive += np.maximum(values, 0.0).sum(axis=0)
        negative -= np.minimum(values, 0.0).sum(axis=0)
    divisor = np.where(positive > 0.0, positive, 1.0)
    with engine.directory.writer(moments.settings.dtype, len(numbers) * k, k) as writer:
        done = 0
        for part, values in slabs():
            upto = int(np.searchsorted(np.maximum.accumulate(numbers), part.stop - 1)) + 1
            if part.stop == n_moment:
                upto = len(numbers)
            whole = np.zeros((upto - done, k), moments.settings.dtype)
            whole[numbers[done:upto] >= 0] = np.maximum(values, 0.0) / divisor
            writer.append(whole)
            done = upto
    release_maps()
    return StoredColumns((writer.stored,)), positive, negative / np.maximum(positive + negative, 1e-300)
