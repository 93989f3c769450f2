"""Initial topics, from a decomposed tensor or from anchor words, on words of medium frequency.

The moments leave out words that are in few or in most documents, cap counts, as real text repeats a rare word more
often than its topics explain, and scale every word by ``D^(-1/2)``, D its share of document frequencies, so that
common words do not dominate the second moment. One set of sums serves every initialisation: the Dirichlet
correction for alpha0 is applied to the small moments, and anchor words need only the second moment.
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
from distmom.engine import Engine, PassResult, Selection, StoredColumns
from distmom.engine.state import SLAB_ROWS
from distmom.engine.tall import Tall, read_rows
from distmom.errors import NumericalError, UsageError
from distmom.linalg.anchors import select_anchors, simplex_weights
from distmom.moments.dirichlet import proportions, proportions_of_mean, shifts, topic_factor
from distmom.moments.word_moments import half_rows, word_moments
from distmom.spectral.basis import Basis, unknown_columns
from distmom.spectral.components import (
    Core,
    CoreSettings,
    Words,
    added_sums,
    find_each,
    fit_basis,
    moment_passes,
)
from distmom.spectral.recovery import Masses, Recovery, Slabs, store_columns
from distmom.spectral.run import Run, unknown

logger = logging.getLogger(__name__)

#: length, in words, of a document with a quarter of the largest weight, for ``weighting="length"``
LENGTH_SCALE = 100.0
#: ``min_df="auto"``: the least share of documents of a word of the moments. If documents then have fewer
#: positions on average than the second value, rarer words are added up to the third value, a share of all
#: positions, but no words of fewer documents than the last value
MIN_DF, SEEN_POSITIONS, SEEN_SHARE, FEWEST_DOCUMENTS = 0.005, 30, 0.8, 10
#: share of documents that are long enough for the moments below which a warning is logged
LEAST_SHARE = 0.5
#: least number of candidates per topic for anchor words
ANCHOR_CANDIDATES = 10
#: least share of the documents that contain an anchor word
ANCHOR_DF = 0.01


@dataclass(frozen=True)
class Initial:
    """Initial topics.

    Attributes
    ----------
    name : str
        "tensor-" followed by alpha0, "anchors" or "factors".
    topics : StoredColumns
        (d, k), columns sum to one; zero for words that are not in the moments.
    proportions : ndarray of shape (k,)
        Shares of the topics in the corpus, estimated from the moments; sum to one.
    alpha0 : float or None
    diagnostics : dict
        JSON values.
    """

    name: str
    topics: StoredColumns
    proportions: np.ndarray
    alpha0: float | None
    diagnostics: dict[str, Any]

    @classmethod
    def upto(cls, n_words: int, k: int) -> Initial:
        """Return initial topics of known shapes without content, for a ledger."""
        return cls("", unknown_columns(n_words, k), unknown(k), unknown(), unknown())


@dataclass(frozen=True)
class CommittedMoments:
    """Moments in a basis whose sums are committed in a run directory.

    Attributes
    ----------
    settings : CoreSettings
    words : Words
    basis : Basis
    directories : tuple of str
        Directories of the committed sums, whose total gives the moments.
    """

    settings: CoreSettings
    words: Words
    basis: Basis
    directories: tuple[str, ...]


def word_numbers(
    corpus: Corpus | MemoryCorpus, n_components: int, min_df: float | str, max_df: float
) -> np.ndarray:
    """Number the words whose document frequency is in a range.

    With "auto", words are in at least 0.5 % of the documents. If these leave fewer than 30 positions per
    document on average, rarer words are added until there are 30, or until they make up four fifths of all
    positions, but no words of fewer than 10 documents.

    Parameters
    ----------
    corpus : Corpus or MemoryCorpus
    n_components : int
        Least number of words.
    min_df : float or "auto"
    max_df : float
        Smallest and largest share of the documents that contain a word.

    Returns
    -------
    ndarray of shape (n_words,), int32
        -1 for the other words.

    Raises
    ------
    UsageError
        If there are fewer words than ``n_components``.
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
    """Return the least document frequency of a word of the moments with ``min_df="auto"``."""
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
    run: Run, n_components: int, min_df: float | str, max_df: float, scaled: bool
) -> tuple[Words, np.ndarray]:
    """Choose the words of the moments.

    Parameters
    ----------
    run : Run
    n_components : int
    min_df : float or "auto"
    max_df : float
        Smallest and largest share of the documents that contain a word, as in `word_numbers`.
    scaled : bool
        Scale words by ``D^(-1/2)``, where the mean is added to D as a floor.

    Returns
    -------
    words : Words
    numbers : ndarray of shape (n_words,), int32
        As returned by `word_numbers`.
    """
    corpus = run.corpus
    numbers = word_numbers(corpus, n_components, min_df, max_df)
    kept, n_kept = numbers >= 0, int(numbers.max()) + 1
    frequency = np.asarray(corpus.document_frequency, np.float64)
    scale = None
    if scaled:
        share = frequency[kept] / frequency[kept].sum()
        scale = run.put(1.0 / np.sqrt(share + 1.0 / n_kept)[:, None])
    every = n_kept == corpus.n_words
    return Words(n_kept, None if every else run.put(numbers), scale), numbers


def fit_moments(
    run: Run,
    settings: CoreSettings,
    words: Words,
    selection: Selection | None,
    of_basis: Selection | None,
) -> CommittedMoments:
    """Run the passes for the moments of the selected documents, in a basis for the documents ``of_basis``."""
    basis = fit_basis(run, settings, words, of_basis)
    found = run.scan(replace(moment_passes(settings, words, basis, selection)[0], mean=True))
    run.rows(_warn_of_short_documents, settings, found, out=None)
    return CommittedMoments(settings, words, basis, (found.directory,))


def _warn_of_short_documents(engine: Engine, settings: CoreSettings, found: PassResult) -> None:
    kind = settings.kind
    n_documents, n_long = (float(x) for x in found.sums["lengths"][:2])
    if kind.needs_positions and kind.orders == 3 and n_long < LEAST_SHARE * n_documents:
        logger.warning(
            "%.0f %% of the documents have fewer than 3 words and do not enter the moments",
            100.0 * (1.0 - n_long / n_documents),
        )  # fmt: skip


def extend_moments(run: Run, moments: CommittedMoments, added: Selection) -> CommittedMoments:
    """Add the sums of documents that were held out, in the same basis."""
    pass_ = moment_passes(moments.settings, moments.words, moments.basis, added)[0]
    directory = run.scan(replace(pass_, mean=True)).directory
    return replace(moments, directories=(*moments.directories, directory))


def initials(
    run: Run,
    moments: CommittedMoments,
    numbers: np.ndarray,
    trials: Sequence[float | None],
    background: bool,
) -> list[Initial]:
    """Return initial topics from committed moments, one set per trial.

    The third moment is decomposed for each alpha0 (tensor paper, theorem 3.5). With infinite alpha0 the moments
    are central, and the components are independent factors, whose amounts in a document replace shares (ECA
    paper, algorithm 1): each column is a topic times the standard deviation of its amount, and its eigenvalue
    the skewness of the amount.

    Parameters
    ----------
    run : Run
    moments : CommittedMoments
    numbers : ndarray of shape (n_words,), int32
        Numbers of the words in the moments.
    trials : sequence of float or None
        Values of alpha0 for the third moment, infinite for independent factors; None for anchor words.
    background : bool
        Add the unigram distribution as a further topic.

    Returns
    -------
    list of Initial
        Trials that the moments do not support are left out.

    Raises
    ------
    NumericalError
        If no trial succeeds.
    """
    alpha0s = [alpha0 for alpha0 in trials if alpha0 is not None]
    settings = tuple(replace(moments.settings, alpha0=alpha0) for alpha0 in alpha0s)
    cores = find_each(run, settings, moments.basis, moments.directories) if settings else []
    k = moments.settings.n_states + int(background)
    out = [Initial.upto(len(numbers), k)] * len(trials)
    return run.rows(_initials, moments, numbers, trials, cores, background, out=out)


def _initials(
    engine: Engine,
    moments: CommittedMoments,
    numbers: np.ndarray,
    trials: Sequence[float | None],
    cores: Sequence[Core | NumericalError],
    background: bool,
) -> list[Initial]:
    found: list[Initial] = []
    errors = [core for core in cores if isinstance(core, NumericalError)]
    alpha0s = [alpha0 for alpha0 in trials if alpha0 is not None]
    for alpha0, core in zip(alpha0s, cores, strict=True):
        if not isinstance(core, NumericalError):
            found.append(_tensor_init(engine, moments, numbers, alpha0, core))
    if None in trials:
        try:
            found.append(_anchor_init(engine, moments, numbers, engine.corpus.vocabulary, ANCHOR_DF))
        except NumericalError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    for init in found:
        if len(init.proportions) < moments.settings.n_states:
            logger.warning(
                "%s: the moments carry %d of the %d topics requested", init.name, len(init.proportions),
                moments.settings.n_states,
            )  # fmt: skip
    return [_with_background(engine, moments, init) for init in found] if background else found


def _with_background(engine: Engine, moments: CommittedMoments, init: Initial) -> Initial:
    """Return initial topics with the unigram distribution as a further topic, of share 1/2."""
    k, dtype = len(init.proportions), moments.settings.dtype
    unigram = engine.put(word_shares(engine.corpus)[:, None])
    stored, _ = engine.map_rows(
        _append, [init.topics, unigram], engine.corpus.n_words, {"topics": (k + 1, dtype)}
    )
    topics = StoredColumns((stored["topics"],))
    return replace(init, topics=topics, proportions=np.append(0.5 * init.proportions, 0.5))


def _append(rows: slice, topics: np.ndarray, unigram: np.ndarray) -> tuple[Slabs, Slabs]:
    return {"topics": np.hstack([topics, unigram])}, {}


def word_shares(corpus: Corpus | MemoryCorpus) -> np.ndarray:
    """Return the smoothed share of every word in the corpus, (d,) float32, all positive."""
    frequency = np.asarray(corpus.word_frequency, np.float64) + 0.1
    return np.asarray(frequency / frequency.sum(), np.float32)


def _tensor_init(
    engine: Engine, moments: CommittedMoments, numbers: np.ndarray, alpha0: float, core: Core
) -> Initial:
    independent = math.isinf(alpha0)
    sizes = np.ones_like(core.eigenvalues) if independent else topic_factor(alpha0) * core.eigenvalues
    unwhiten = core.B @ (core.V * sizes)

    sums = added_sums(moments.directories, without="m3")
    basis, scale, k = moments.basis.matrix, moments.words.scale, unwhiten.shape[1]
    inputs: tuple[Tall, ...]
    rows_of: Callable[..., np.ndarray]
    arguments: tuple[Any, ...]
    if "half" in sums:
        inputs = (basis, *(engine.put(np.asarray(sums[name])) for name in ("half", "pair_mass", "mean")))
        factor = core.W @ (core.V * sizes)
        rows_of, arguments = _free_rows, (np.asarray(sums["mass"]), np.asarray(sums["m1"]), alpha0, factor)
    else:
        inputs = (basis,) if scale is None else (basis, scale)
        rows_of, arguments = _scaled_rows, (unwhiten,)
    topics, masses = _store_topics(engine, moments, numbers, inputs, rows_of, arguments, k)
    diagnostics = {
        **core.diagnostics,
        **core.lengths,
        "spectrum": [float(x) for x in core.spectrum],
        "negative_mass": [float(x) for x in masses.negative_share],
    }
    if independent:
        # The mean amount of a factor times the mass of its column.
        shares = np.maximum(core.mean, 0.0) * masses.positive
        diagnostics["skewness"] = [float(x) for x in core.eigenvalues]
    else:
        of_mean = proportions_of_mean(core.mean, core.eigenvalues, alpha0)
        others = proportions(core.eigenvalues, alpha0)
        diagnostics["sum_proportions"] = float(others.sum())
        diagnostics["proportions_disagreement"] = float(np.abs(others - of_mean).max())
        # Both agree where documents follow the model; where they do not, these are much closer to the truth.
        shares = np.maximum(of_mean, 0.0)
    total = float(shares.sum())
    shares = shares / total if total > 0 else np.full(len(shares), 1.0 / len(shares))
    name = "factors" if independent else f"tensor-{alpha0:g}"
    return Initial(name, topics, shares, None if independent else alpha0, diagnostics)


def _scaled_rows(stored: np.ndarray, *arguments: np.ndarray) -> np.ndarray:
    *scale, unwhiten = arguments
    wide = np.asarray(stored, np.float64)
    # Squared: the stored basis includes the scale, and so do the moments.
    return np.asarray((wide / scale[0] ** 2 if scale else wide) @ unwhiten)


def _free_rows(
    stored: np.ndarray,
    half: np.ndarray,
    pair_mass: np.ndarray,
    mean: np.ndarray,
    mass: np.ndarray,
    m1: np.ndarray,
    alpha0: float,
    whiten: np.ndarray,
) -> np.ndarray:
    # M2 QW in place of Q Q'M2 QW: documents that were added after the basis was found may have topics outside of
    # its range, and so may sampling errors of topics.
    a, _, _ = shifts(alpha0)
    second = half_rows(half, pair_mass, mass[1], np.asarray(stored, np.float64))
    return np.asarray((second - a * np.outer(mean / float(mass[0]), m1 / float(mass[0]))) @ whiten)


def _anchor_init(
    engine: Engine, moments: CommittedMoments, numbers: np.ndarray, vocabulary: list[str], min_df: float
) -> Initial:
    """Find anchor words in the second moment, and the topics that they span (see `distmom.linalg.anchors`).

    Parameters
    ----------
    engine : Engine
    moments : CommittedMoments
    numbers : ndarray of shape (n_words,), int32
    vocabulary : list of str
        All words of the corpus, to name the anchors.
    min_df : float
        Least share of the documents that contain an anchor word, unless there are fewer than ten such words per
        topic.
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
        # Row w of D E2 D is Q_w (Q'D E2 D Q) Q'; the last factor does not change distances.
        rows = (stored / scale) @ found.m2 / np.where(mean > 0.0, mean, 1.0)[:, None] / scale
        anchors = select_anchors(rows, settings.n_states, candidates)
        weights = simplex_weights(rows, rows[anchors])
    joint = weights * mean[:, None]
    shares = joint.sum(axis=0)

    topics, _ = _store_topics(
        engine, moments, numbers, (engine.put(joint),), np.asarray, (), settings.n_states
    )
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
    inputs: tuple[Tall, ...],
    rows_of: Callable[..., np.ndarray],
    arguments: tuple[Any, ...],
    k: int,
) -> tuple[StoredColumns, Masses]:
    """Store topics over all words, normalised; also return their masses.

    Parameters
    ----------
    inputs : tuple of StoredArray or StoredColumns
        Tall matrices over the words of the moments.
    rows_of : callable
        Returns rows of the unscaled topics, as in `Recovery`.
    arguments : tuple
        Small arguments of ``rows_of``.
    k : int
        Number of topics.
    """
    words, dtype = moments.words, moments.settings.dtype
    of_moments = Recovery(inputs, words.n_words, k, rows_of, arguments, piece_rows=SLAB_ROWS)
    topics, masses = of_moments.distributions(engine, dtype)
    if words.numbers is not None:
        stored = store_columns(
            engine, _spread, (words.numbers,), len(numbers), {"topics": (k, 1)}, dtype, topics
        )
        topics = stored["topics"]
    return topics, masses


def _spread(rows: slice, numbers: np.ndarray, topics: StoredColumns) -> tuple[Slabs, Slabs]:
    """Return rows over all words; those of words that are not in the moments are zero."""
    kept = numbers >= 0
    of_moments = numbers[kept]
    # The numbers ascend without gaps.
    first = int(of_moments[0]) if len(of_moments) else 0
    found = read_rows(topics, slice(first, first + len(of_moments)))
    whole = np.zeros((len(numbers), found.shape[1]), found.dtype)
    whole[kept] = found
    return {"topics": whole}, {}
