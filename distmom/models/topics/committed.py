"""The moments of a topic model: their words, and their sums, which are committed in a run.

The moments leave out words that are in few or in most documents, cap counts, as real text repeats a rare word more
often than its topics explain, and scale every word by ``D^(-1/2)``, D its share of document frequencies, so that
common words do not dominate the second moment.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import PassResult, Selection
from distmom.errors import UsageError
from distmom.spectral.program.run import Run
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.components import Words, fit_basis, moment_passes
from distmom.spectral.steps.core import CoreSettings

logger = logging.getLogger(__name__)

#: ``min_df="auto"``: the least share of documents of a word of the moments. If documents then have fewer
#: positions on average than the second value, rarer words are added up to the third value, a share of all
#: positions, but no words of fewer documents than the last value
MIN_DF, SEEN_POSITIONS, SEEN_SHARE, FEWEST_DOCUMENTS = 0.005, 30, 0.8, 10
#: share of documents that are long enough for the moments below which a warning is logged
LEAST_SHARE = 0.5


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
    selection : Selection or None
        The documents of these sums; None (default) means all.
    """

    settings: CoreSettings
    words: Words
    basis: Basis
    directories: tuple[str, ...]
    selection: Selection | None = None


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
        Smallest number of words.
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
    # The product of a share and n may be rounded past the number of documents that has this share.
    share = frequency / n
    not_too_many = share <= max_df
    least = _least_documents(corpus, not_too_many) / n if isinstance(min_df, str) else min_df
    kept = (frequency >= 1.0) & (share >= least) & not_too_many
    if kept.sum() < n_components:
        raise UsageError(
            f"n_components={n_components} needs as many words, but only {kept.sum()} of {corpus.n_words} are in "
            f"at least {least:g} and at most {max_df:g} of the documents: change min_df or max_df"
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
    pass_ = moment_passes(settings, words, basis, selection)[0]
    found = run.scan(replace(pass_, mean=True, kept=settings.kept))
    run.apply(_warn_of_short_documents, settings, found, out=None)
    return CommittedMoments(settings, words, basis, (found.directory,), selection)


def _warn_of_short_documents(settings: CoreSettings, found: PassResult) -> None:
    n_documents, n_long = (float(x) for x in found.sums["lengths"][:2])
    if settings.kind.needs_positions and settings.kind.orders == 3:
        warn_of_short_documents(n_documents, n_long, 3)


def warn_of_short_documents(n_documents: float, n_long: float, n_positions: int) -> None:
    """Log a warning where most documents have fewer positions than the highest order of the moments."""
    if n_long < LEAST_SHARE * n_documents:
        logger.warning(
            "%.0f %% of the documents have fewer than %d words and do not enter the moments",
            100.0 * (1.0 - n_long / n_documents), n_positions,
        )  # fmt: skip


def extend_moments(run: Run, moments: CommittedMoments, added: Selection) -> CommittedMoments:
    """Add the sums of the documents that were held out, in the same basis; the result is of all documents."""
    pass_ = moment_passes(moments.settings, moments.words, moments.basis, added)[0]
    directory = run.scan(replace(pass_, mean=True, kept=moments.settings.kept)).directory
    return replace(moments, directories=(*moments.directories, directory), selection=None)
