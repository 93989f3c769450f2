"""Dense rows in passes: their weights, pieces of them that stay in the cache, and products with a basis.

Passes over rows that may be sparse use what needs no pieces: rows and weights of a block, and columns of views.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse

from distmom.corpus import RowBlock
from distmom.engine.stored.arrays import Columns
from distmom.engine.sums.additive import Sums
from distmom.errors import NumericalError
from distmom.moments.kernels import BLOCK_ROWS

#: number of values of a piece of rows
PIECE_VALUES = 1 << 17
#: smallest number of rows of a piece, for products that use BLAS well
LEAST_ROWS = 256


def dense_rows(block: RowBlock, n_columns: int | None = None) -> tuple[Any, np.ndarray | None]:
    """Return the rows of a block without context, and the weight of each; None where all weights are 1.

    Only the first ``n_columns`` columns are returned; all by default.
    """
    weights = None if block.weights is None else np.repeat(np.asarray(block.weights, np.float64), block.sizes)
    rows = block.rows[block.context :]
    return rows if n_columns is None else rows[:, :n_columns], weights


def weights_of(weights: np.ndarray | None, piece: slice) -> np.ndarray:
    """Return the weights of a piece, float64: ones for None."""
    return np.ones(piece.stop - piece.start) if weights is None else weights[piece]


def mass_of(X: Any, weights: np.ndarray | None) -> float:
    """Return the total weight of rows, dense or sparse."""
    return float(X.shape[0] if weights is None else weights.sum())


def total_weight(block: RowBlock) -> float:
    """Return the total weight of the rows of a block."""
    return mass_of(*dense_rows(block))


def mass_of_rows(sums: Sums) -> float:
    """Return the total weight of rows, by which their sums are divided; NumericalError if it is zero."""
    mass = float(sums["mass"])
    if not mass > 0.0:
        raise NumericalError("expected rows of positive weight, got none")
    return mass


def view_slices(widths: tuple[int, ...]) -> list[slice]:
    """Return the columns of every view of a row, from the numbers of these columns."""
    edges = np.cumsum((0, *widths))
    return [slice(int(a), int(b)) for a, b in pairwise(edges)]


def piece_rows(n_features: int) -> int:
    """Return the number of rows of a piece."""
    return min(BLOCK_ROWS, max(LEAST_ROWS, PIECE_VALUES // max(1, n_features)))


def piece_bytes(n_rows: int, n_features: int) -> int:
    """Return the bytes of a piece of centred rows, for a block of ``n_rows`` rows."""
    return 8 * min(n_rows, piece_rows(n_features)) * n_features


def aligned(X: Any) -> Any:
    """Return rows, dense or sparse, at an address that BLAS can use.

    Rows that another process sent may be at any address. NumPy copies such matrices in another order for every
    product, so that the last bits differ.
    """
    return X if sparse.issparse(X) or X.flags.aligned else X.copy()


def pieces(
    X: np.ndarray, origin: np.ndarray | None, step: int | None = None
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield rows minus the origin, some at a time; a piece is valid until the next one is taken.

    Parameters
    ----------
    X : ndarray of shape (n, d)
    origin : ndarray of shape (d,), optional
        Zero for None.
    step : int, optional
        Number of rows of a piece; that of `piece_rows` by default.
    """
    step = step or piece_rows(X.shape[1])
    room = np.empty((min(step, len(X)), X.shape[1]))
    for start in range(0, len(X), step):
        rows = slice(start, min(start + step, len(X)))
        if origin is None:
            yield rows, aligned(X[rows])
        else:
            yield rows, np.subtract(X[rows], origin, out=room[: rows.stop - rows.start])


def squared_norms(X: np.ndarray) -> np.ndarray:
    """Return the squared norm of every row."""
    return np.asarray(np.einsum("ij,ij->i", X, X))


def project(
    X: Any, origin: np.ndarray | None, basis: Any, step: int | None = None, norms: np.ndarray | None = None
) -> np.ndarray:
    """Return ``Q'(x - origin)`` of every row.

    Parameters
    ----------
    X : ndarray or sparse matrix of shape (n, d)
    origin : ndarray of shape (d,), optional
        Zero for None.
    basis : matrix of shape (d, r)
        Q; an array, or slabs of columns.
    step : int, optional
        Number of rows of a piece of dense rows; that of `piece_rows` by default.
    norms : ndarray of shape (n,), optional
        Set to ``||x - origin||^2`` of dense rows.

    Returns
    -------
    ndarray of shape (n, r), float64
    """
    slabs = basis.each() if isinstance(basis, Columns) else iter((basis,))
    Y, start = np.empty((X.shape[0], basis.shape[1])), 0
    for slab in slabs:
        Q, columns = np.asarray(slab, np.float64), slice(start, start + slab.shape[1])
        if sparse.issparse(X):
            Y[:, columns] = X @ Q
            if origin is not None:
                Y[:, columns] -= origin @ Q
        else:
            for piece, centred in pieces(X, origin, step):
                Y[piece, columns] = centred @ Q
                if norms is not None and start == 0:
                    norms[piece] = squared_norms(centred)
        start = columns.stop
    return Y
