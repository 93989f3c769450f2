"""A matrix as the sum of a diagonal and a matrix of low rank, from its blocks off the diagonal.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), section 5 and lemma 5.1. The covariance of variables with independent noise is of
this form. With the rows in three parts, every block of the low-rank matrix on the diagonal is determined by the
blocks off the diagonal, which the noise does not reach, if each part has full rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import qr

from distmom.errors import NumericalError, UsageError
from distmom.linalg.checks import generator

#: smallest singular value of a block, relative to the largest, that is not zero
_RANK_TOLERANCE = 1e-10


@dataclass(frozen=True)
class DiagonalLowRank:
    """The parts of a matrix ``C = diag(d) + L``.

    Attributes
    ----------
    diagonal : ndarray of shape (n,)
        d.
    low_rank : ndarray of shape (n, n)
        L, with the entries of C off the diagonal.
    off_diagonal_share : float
        Share of the magnitudes of the estimated ``C - L`` that is off the diagonal: 0 for an exact matrix and a
        valid partition. Of several partitions that with the least share is best.
    """

    diagonal: np.ndarray
    low_rank: np.ndarray
    off_diagonal_share: float


def split_diagonal(matrix: np.ndarray, rank: int, parts: Sequence[np.ndarray]) -> DiagonalLowRank:
    """Split a matrix into a diagonal and a matrix of low rank, given three parts of its rows (lemma 5.1).

    The block of a part I is ``C_IJ V (U' C_KJ V)^-1 U' C_KI`` for bases V of the rows J and U of the rows K.

    Parameters
    ----------
    matrix : ndarray of shape (n, n)
        C, not necessarily symmetric.
    rank : int
        Rank of L.
    parts : sequence of three ndarrays of int
        Numbers of the rows of each part; every row is in one part.

    Raises
    ------
    UsageError
        If the parts are not a partition of the rows into three sets of at least ``rank``.
    NumericalError
        If a block between two parts has a smaller rank.
    """
    n = len(matrix)
    if len(parts) != 3 or not np.array_equal(np.sort(np.concatenate(parts)), np.arange(n)):
        raise UsageError("parts: expected a partition of the rows into three sets")
    if min(len(part) for part in parts) < rank:
        raise UsageError(f"parts: expected at least {rank} rows in each, the rank")
    # Both neighbours of a part determine its range.
    left, right = [], []
    for i, part in enumerate(parts):
        others = [parts[j] for j in range(3) if j != i]
        left.append(_range(np.hstack([matrix[np.ix_(part, other)] for other in others]), rank))
        right.append(_range(np.hstack([matrix[np.ix_(other, part)].T for other in others]), rank))
    diagonal, off, total = np.zeros(n), 0.0, 0.0
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        here, before, after = parts[i], parts[j], parts[k]
        V, U = right[j], left[k]
        middle = U.T @ matrix[np.ix_(after, before)] @ V
        singular = np.linalg.svd(middle, compute_uv=False)
        if not singular[-1] > _RANK_TOLERANCE * singular[0]:
            raise NumericalError(f"the block between parts {k} and {j} has a rank below {rank}")
        block = matrix[np.ix_(here, before)] @ V @ np.linalg.solve(middle, U.T @ matrix[np.ix_(after, here)])
        rest = matrix[np.ix_(here, here)] - block
        diagonal[here] = np.diag(rest)
        total += float(np.abs(rest).sum())
        off += float(np.abs(rest).sum() - np.abs(np.diag(rest)).sum())
    low_rank = matrix - np.diag(diagonal)
    return DiagonalLowRank(diagonal, low_rank, off / total if total > 0.0 else 0.0)


def find_split(
    matrix: np.ndarray, rank: int, *, n_partitions: int = 100, n_refine: int = 30, seed: int = 0
) -> DiagonalLowRank:
    """Split a symmetric matrix by the best of several partitions, then refine the diagonal.

    Random partitions (section 5) are almost never valid where few rows depend on each latent variable, as for the
    leaves of a tree. Partitions with independent rows in every part, found by pivoted QR decompositions of an
    approximate range, are therefore tried as well. The diagonal is then refined by iterated principal factors:
    ``d = diag(C - [C - diag d]_k)`` with the k largest eigenpairs.

    Parameters
    ----------
    matrix : ndarray of shape (n, n)
        C, symmetric, with a diagonal part that is not negative.
    rank : int
        Rank of L, which has no negative eigenvalue.
    n_partitions : int, default 100
        Number of partitions of either kind.
    n_refine : int, default 30
        Steps of refinement.
    seed : int, default 0

    Raises
    ------
    UsageError
        If there are fewer than three rows per dimension.
    NumericalError
        If no partition has parts of full rank.
    """
    n = len(matrix)
    if n < 3 * rank:
        raise UsageError(f"rank: expected at most {n // 3}, a third of the {n} rows, got {rank}")
    rng = generator(seed, "seed")
    vectors = _leading(matrix - np.diag(_refined(matrix, np.diag(matrix) / 2.0, rank, 100)), rank)[1]
    best: DiagonalLowRank | None = None
    for trial in range(2 * n_partitions):
        parts = np.array_split(rng.permutation(n), 3) if trial % 2 else independent_parts(vectors, rng)
        try:
            found = split_diagonal(matrix, rank, parts)
        except NumericalError:
            continue
        if best is None or found.off_diagonal_share < best.off_diagonal_share:
            best = found
    if best is None:
        raise NumericalError(f"no partition of the rows has three parts of rank {rank}")
    diagonal = _refined(matrix, best.diagonal, rank, n_refine)
    return DiagonalLowRank(diagonal, matrix - np.diag(diagonal), best.off_diagonal_share)


def independent_parts(vectors: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return three parts of rows, each with k well-conditioned rows of a basis (n, k); others at random."""
    n, k = vectors.shape
    norms = np.linalg.norm(vectors, axis=1)
    # Random factors make the pivots of every call different.
    factors = rng.uniform(0.5, 1.0, n) / np.maximum(norms, np.finfo(float).tiny)
    rows = vectors * factors[:, None]
    left, parts = np.arange(n), []
    for _ in range(3):
        pivots = qr(rows[left].T, mode="r", pivoting=True)[1][:k]
        parts.append(left[pivots])
        left = np.delete(left, pivots)
    others = rng.permutation(left)
    return [np.concatenate([part, others[i::3]]) for i, part in enumerate(parts)]


def _range(block: np.ndarray, rank: int) -> np.ndarray:
    return np.asarray(np.linalg.svd(block, full_matrices=False)[0][:, :rank])


def _leading(matrix: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    return values[-rank:], vectors[:, -rank:]


def _refined(matrix: np.ndarray, diagonal: np.ndarray, rank: int, n_steps: int) -> np.ndarray:
    own = np.diag(matrix)
    for _ in range(n_steps):
        values, vectors = _leading(matrix - np.diag(diagonal), rank)
        diagonal = np.clip(own - (vectors**2) @ values, 0.0, own)
    return diagonal
