"""Hierarchies of latent variables, level by level, from the covariance of the lowest level.

Each level depends only on the one above it, ``h_i = A_i h_(i+1) + epsilon_i`` with independent noises, and the
lowest level is observed. The covariance of a level is the sum of a diagonal matrix, the noise, and a matrix of low
rank. The sparsest vectors in its range are the columns of A_i, and determine the covariance of the level above.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), section 5.2: definition 5.4, theorem 5.5 and remark 5.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from distmom.errors import NumericalError, UsageError
from distmom.linalg.checks import check_whole
from distmom.linalg.expansion.latent_networks import sparse_loadings
from distmom.linalg.lowrank import find_split
from distmom.linalg.whiten import whiten


@dataclass(frozen=True)
class Level:
    """A level of a hierarchy, and how it depends on the level above.

    Attributes
    ----------
    loadings : ndarray of shape (n, k)
        A, in the coordinates of this level. The entry of largest magnitude of every column is 1, which determines
        the scales and signs of the variables above.
    noise : ndarray of shape (n,)
        Variances of the noises of this level.
    covariance : ndarray of shape (k, k)
        Covariance of the level above, with its noise.
    leaks : ndarray of shape (k,)
        As in `SparseColumns`.
    off_diagonal_share : float
        As in `DiagonalLowRank`, for variables of variance one.
    """

    loadings: np.ndarray
    noise: np.ndarray
    covariance: np.ndarray
    leaks: np.ndarray
    off_diagonal_share: float


def learn_hierarchy(
    covariance: np.ndarray,
    sizes: Sequence[int],
    *,
    n_partitions: int = 100,
    n_projected: int = 0,
    seed: int = 0,
) -> list[Level]:
    """Return the levels of a hierarchy with a covariance of observed variables (theorem 5.5).

    The order, the scales and the signs of the variables of a level are those of the columns of the loadings below
    it. The highest level may be correlated in any way (remark 5.6). The variables of every level are scaled to
    variance one before the level above is found, so that the units of the observed ones do not matter.

    Parameters
    ----------
    covariance : ndarray of shape (n, n)
        Covariance of the observed variables.
    sizes : sequence of int
        Numbers of variables of the hidden levels from the lowest to the highest, each at most a third of the one
        before.
    n_partitions : int, default 100
        As in `find_split`.
    n_projected : int, default 0
        As in `sparse_loadings`.
    seed : int, default 0

    Returns
    -------
    list of Level
        From the observed level upwards; the covariance of the last is that of the highest level.

    Raises
    ------
    UsageError
        If there is no hidden level, a level has less than three times as many variables as the one above, a number
        is out of range, or the covariance is not a symmetric matrix.
    NumericalError
        If an entry is not finite, the covariance of a level does not carry the level above, or the supports of the
        loadings overlap too much.
    """
    covariance = np.asarray(covariance, dtype=np.float64)
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
        raise UsageError(f"covariance: expected a square matrix, got shape {covariance.shape}")
    if not np.isfinite(covariance).all():
        raise NumericalError("the covariance has entries that are not finite")
    if np.ndim(sizes) != 1 or not len(sizes):
        raise UsageError(
            f"sizes: expected a number of variables for at least one hidden level, got {sizes!r:.60}"
        )
    for size in sizes:
        check_whole("sizes", size, 1)
    check_whole("n_partitions", n_partitions, 1)
    check_whole("n_projected", n_projected, 0)
    for below, above in pairwise([len(covariance), *sizes]):
        if above > below // 3:
            raise UsageError(
                f"sizes: expected at most {below // 3} variables above {below}, a third, got {above}"
            )
    levels: list[Level] = []
    for k in sizes:
        levels.append(_level(covariance, k, n_partitions, n_projected, seed))
        covariance = levels[-1].covariance
    return levels


def _level(covariance: np.ndarray, k: int, n_partitions: int, n_projected: int, seed: int) -> Level:
    variances = np.diag(covariance)
    units = np.sqrt(np.where(variances > 0.0, variances, 1.0))
    split = find_split(covariance / np.outer(units, units), k, n_partitions=n_partitions, seed=seed)
    white = whiten(split.low_rank, k)
    n = len(covariance)
    found = sparse_loadings(
        white, n_constraints=n, n_program_rows=n, n_starts=10 * k, n_projected=n_projected, seed=seed
    )
    loadings = found.loadings * units[:, None]
    scales = loadings[np.abs(loadings).argmax(axis=0), np.arange(k)]
    return Level(
        loadings / scales,
        split.diagonal * units**2,
        found.covariance * np.outer(scales, scales),
        found.columns.leaks,
        split.off_diagonal_share,
    )
