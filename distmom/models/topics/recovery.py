"""Topics over all words, recovered from moments slab by slab of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distmom.engine import Engine, StoredColumns
from distmom.engine.stored.arrays import SLAB_ROWS
from distmom.engine.sums.tall import Tall, read_rows
from distmom.models.topics.committed import CommittedMoments
from distmom.moments.documents.dirichlet import shifts
from distmom.moments.documents.word_moments import half_rows
from distmom.spectral.steps.recovery import Masses, Recovery, Slabs, store_columns


def scaled_rows(stored: np.ndarray, *arguments: np.ndarray) -> np.ndarray:
    """Return rows of topics in the range of the basis.

    Parameters
    ----------
    stored : ndarray of shape (n, r)
        Rows of the stored basis.
    *arguments : ndarray
        Rows of the scale of the words (n, 1), where there is one, and the coefficients of the topics (r, k).
    """
    *scale, unwhiten = arguments
    wide = np.asarray(stored, np.float64)
    # Squared: the stored basis includes the scale, and so do the moments.
    return np.asarray((wide / scale[0] ** 2 if scale else wide) @ unwhiten)


def free_rows(
    stored: np.ndarray,
    half: np.ndarray,
    pair_mass: np.ndarray,
    mean: np.ndarray,
    mass: np.ndarray,
    m1: np.ndarray,
    alpha0: float,
    whiten: np.ndarray,
) -> np.ndarray:
    """Return rows of topics that need not be in the range of the basis.

    Parameters
    ----------
    stored : ndarray of shape (n, r)
        Rows of the stored basis.
    half : ndarray of shape (n, r)
    pair_mass, mean : ndarray of shape (n,)
        The same rows of these sums of `WordMomentsPass`.
    mass : ndarray of shape (n_orders,)
    m1 : ndarray of shape (r,)
        Sums of the same pass.
    alpha0 : float
    whiten : ndarray of shape (r, k)
        Coefficients of the topics.
    """
    # M2 QW in place of Q Q'M2 QW: documents that were added after the basis was found may have topics outside of
    # its range, and so may sampling errors of topics.
    a, _, _ = shifts(alpha0)
    second = half_rows(half, pair_mass, mass[1], np.asarray(stored, np.float64))
    return np.asarray((second - a * np.outer(mean / float(mass[0]), m1 / float(mass[0]))) @ whiten)


def store_topics(
    engine: Engine,
    moments: CommittedMoments,
    numbers: np.ndarray,
    inputs: tuple[Tall, ...],
    rows_of: Callable[..., np.ndarray],
    arguments: tuple[Any, ...],
    k: int,
    max_words: int | None = None,
) -> tuple[StoredColumns, Masses]:
    """Store topics over all words, normalised; also return their masses, with all words.

    Parameters
    ----------
    engine : Engine
    moments : CommittedMoments
    numbers : ndarray of shape (n_words,), int32
        Numbers of the words in the moments.
    inputs : tuple of StoredArray or StoredColumns
        Tall matrices over the words of the moments.
    rows_of : callable
        Returns rows of the unscaled topics, as in `Recovery`.
    arguments : tuple
        Small arguments of ``rows_of``.
    k : int
        Number of topics.
    max_words : int, optional
        Number of the largest entries of every topic that are kept (ECA paper, remark 11); all positive ones by
        default.
    """
    words, dtype = moments.words, moments.settings.dtype
    of_moments = Recovery(inputs, words.n_words, k, rows_of, arguments, piece_rows=SLAB_ROWS)
    if max_words is None or max_words >= words.n_words:
        topics, masses = of_moments.distributions(engine, dtype)
    else:
        masses = of_moments.masses(engine)
        topics, _ = of_moments.largest(max_words).distributions(engine, dtype)
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


def with_column(rows: slice, topics: np.ndarray, column: np.ndarray) -> tuple[Slabs, Slabs]:
    """Return rows of topics with a further column."""
    return {"topics": np.hstack([topics, column])}, {}
