"""Orthonormal basis of the columns of a tall matrix stored as slabs of rows.

Sources: Yamamoto, Nakatsukasa, Yanagisawa, Fukaya, "Roundoff error analysis of the CholeskyQR2 algorithm"
(ETNA 44, 2015); Demmel, Grigori, Hoemmen, Langou, "Communication-optimal parallel and sequential QR and LU
factorizations" (SIAM J. Sci. Comput. 34, 2012) for the fallback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr, solve_triangular

from distmom.blas import map_on_cores, pieces
from distmom.errors import NumericalError, UsageError

Array = NDArray[np.float64]
_EPS = float(np.finfo(np.float64).eps)

# After the first Cholesky step the deviation from orthonormality is about eps / eigenvalue, and the second step
# squares it. This minimum eigenvalue of the equilibrated Gram matrix leaves a wide margin.
_SAFE_EIGENVALUE = 1e-9
#: rows that are multiplied at a time
_PIECE_ROWS = 1 << 12


@dataclass(frozen=True)
class Basis:
    """An orthonormal basis in slabs of rows.

    Attributes
    ----------
    slabs : list of ndarray of shape (rows, rank)
        The basis, divided like the input.
    rank : int
        Number of basis vectors.
    n_dropped : int
        Number of columns that are zero or numerically dependent on others.
    method : str
        "cholesky" or "householder".
    """

    slabs: list[NDArray[Any]]
    rank: int
    n_dropped: int
    method: str


def orthonormalise(slabs: Sequence[NDArray[Any]], *, rtol: float | None = None) -> Basis:
    """Compute an orthonormal basis of the columns of a tall matrix, one slab of rows at a time.

    Columns are first scaled to norm 1. A well-conditioned matrix needs two Cholesky factorisations of Gram
    matrices (the slabs are read three times, and only the result is written). Otherwise, Householder factors
    of the slabs are used, which need memory for a second copy, and columns that depend on others are dropped.

    Parameters
    ----------
    slabs : sequence of ndarray of shape (rows_i, r)
        Row slabs of a (d, r) matrix; memory maps are read slab by slab. Arithmetic is in float64.
    rtol : float, optional
        A column counts as dependent if its part outside the span of the others is at most ``rtol`` times the
        largest such part; ``8 r eps`` by default.

    Returns
    -------
    Basis
        Orthonormal up to rounding in float64, even for a matrix with condition number 1e12.

    Raises
    ------
    UsageError
        If the slabs do not have equal widths.
    NumericalError
        If an entry is not finite, or the matrix is zero.
    """
    shapes = [np.shape(slab) for slab in slabs]
    if not shapes or any(len(shape) != 2 or shape[1] != shapes[0][1] for shape in shapes):
        raise UsageError(f"slabs of one matrix must be matrices of equal width, got shapes {shapes}")
    r = shapes[0][1]
    gram = np.zeros((r, r))
    largest = np.zeros(r)
    for slab in slabs:
        for own, entry in map_on_cores(partial(_gram_of, slab), pieces(len(slab), _PIECE_ROWS)):
            with np.errstate(over="ignore", invalid="ignore"):
                gram += own
            largest = np.maximum(largest, entry)
    if not np.isfinite(gram).all():
        raise NumericalError(
            "the matrix to orthonormalise has entries that are not finite or overflow in squares: scale the data"
        )
    # The largest entry distinguishes a zero column from one whose squared norm underflows.
    norms = np.sqrt(np.diag(gram))
    scale = np.where(norms > 0.0, norms, largest)
    live = np.flatnonzero(scale > 0.0)
    if live.size == 0:
        raise NumericalError(
            f"the matrix to orthonormalise, of width {r}, is zero, as where all rows are equal"
        )
    scale = scale[live]
    safe = bool((norms[live] > np.sqrt(np.finfo(np.float64).tiny)).all())
    equilibrated = gram[np.ix_(live, live)] / np.outer(scale, scale) if safe else None
    if equilibrated is not None and float(np.linalg.eigvalsh(equilibrated)[0]) > _SAFE_EIGENVALUE:
        result = _cholesky(slabs, live, scale, equilibrated)
        return Basis(result, live.size, r - live.size, "cholesky")
    tolerance = 8 * r * _EPS if rtol is None else rtol
    result, rank = _householder(slabs, live, scale, tolerance)
    return Basis(result, rank, r - rank, "householder")


def _gram_of(slab: NDArray[Any], rows: slice) -> tuple[Array, Array]:
    """Return the Gram matrix of some rows, and the largest entries of the columns."""
    block = np.asarray(slab[rows], dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return block.T @ block, np.abs(block).max(axis=0)


def _columns(slab: NDArray[Any], live: NDArray[np.intp], scale: Array) -> Array:
    """Return the nonzero columns of a slab, equilibrated."""
    columns: Array = np.asarray(slab, dtype=np.float64)[:, live] / scale
    return columns


def _cholesky(
    slabs: Sequence[NDArray[Any]],
    live: NDArray[np.intp],
    scale: Array,
    gram: Array,
) -> list[NDArray[Any]]:
    """Apply CholeskyQR twice; the result of the first step is recomputed rather than stored."""
    identity = np.eye(live.size)
    first = solve_triangular(np.linalg.cholesky(gram).T, identity)

    def own_gram(slab: NDArray[Any], rows: slice) -> Array:
        block = _columns(slab[rows], live, scale) @ first
        return np.asarray(block.T @ block)

    second_gram = np.zeros_like(gram)
    for slab in slabs:
        for own in map_on_cores(partial(own_gram, slab), pieces(len(slab), _PIECE_ROWS)):
            second_gram += own
    second = solve_triangular(np.linalg.cholesky(second_gram).T, identity)

    def own_rows(slab: NDArray[Any], out: Array, rows: slice) -> None:
        # The product of both factors would be applied with the rounding errors of an ill-conditioned matrix.
        np.matmul(_columns(slab[rows], live, scale) @ first, second, out=out[rows])

    found = [np.empty((len(slab), live.size)) for slab in slabs]
    for slab, out in zip(slabs, found, strict=True):
        map_on_cores(partial(own_rows, slab, out), pieces(len(slab), _PIECE_ROWS))
    return found


def _householder(
    slabs: Sequence[NDArray[Any]],
    live: NDArray[np.intp],
    scale: Array,
    rtol: float,
) -> tuple[list[NDArray[Any]], int]:
    """Factor each slab, then the stacked triangular factors with column pivoting, which reveals the rank."""
    factors = [np.linalg.qr(_columns(slab, live, scale)) for slab in slabs]
    Q, R, _ = qr(np.concatenate([factor.R for factor in factors]), mode="economic", pivoting=True)
    diagonal = np.abs(np.diag(R))
    rank = int(np.count_nonzero(diagonal > rtol * diagonal[0]))
    result: list[NDArray[Any]] = []
    start = 0
    for factor in factors:
        stop = start + factor.R.shape[0]
        result.append(factor.Q @ Q[start:stop, :rank])
        start = stop
    return result, rank
