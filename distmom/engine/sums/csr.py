"""Sparse matrices as plain records, and matrices without their small entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from distmom.compiled import compiled
from distmom.corpus.block import csr_from_parts


class CsrArrays(NamedTuple):
    """The arrays of a CSR matrix as one argument of a compiled kernel.

    Passing them takes microseconds, so kernels that are called for single rows take them one by one.
    """

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray

    @classmethod
    def of(cls, matrix: Any) -> CsrArrays:
        """Return the arrays of a scipy matrix or of an opened `Csr`, which are not copied."""
        return cls(matrix.indptr, matrix.indices, matrix.data)


@dataclass(frozen=True)
class Csr:
    """The arrays of a CSR matrix, each of which may be stored and memory-mapped separately.

    Attributes
    ----------
    indptr : ndarray of shape (n + 1,), int64
    indices : ndarray of shape (nnz,), int32
    data : ndarray of shape (nnz,)
    n_columns : int
    """

    indptr: Any
    indices: Any
    data: Any
    n_columns: int

    @classmethod
    def of(cls, matrix: csr_array, dtype: np.typing.DTypeLike = np.float32) -> Csr:
        """Copy the arrays of a scipy matrix; values are converted to ``dtype``, float32 by default."""
        return cls(
            matrix.indptr.astype(np.int64),
            matrix.indices.astype(np.int32),
            matrix.data.astype(dtype),
            matrix.shape[1],
        )

    def opened(self) -> Csr:
        """Return the record with its stored arrays memory-mapped."""
        indptr, indices, data = (
            x.load() if hasattr(x, "load") else x for x in (self.indptr, self.indices, self.data)
        )
        return Csr(indptr, indices, data, self.n_columns)

    def to_scipy(self) -> csr_array:
        """Return a scipy matrix that shares the arrays."""
        own = self.opened()
        return csr_from_parts(own.data, own.indices, own.indptr, (len(own.indptr) - 1, own.n_columns))


#: share of non-zero columns above which a row is stored densely
DENSE_SHARE = 0.25


def nearly_full(lengths: np.ndarray, n_columns: int) -> np.ndarray:
    """Return which rows, given their numbers of entries, are stored densely, a bool array."""
    return np.asarray(lengths > max(DENSE_SHARE * n_columns, 1))


@dataclass(frozen=True)
class MixedRows:
    """A matrix whose nearly full rows are dense and whose other rows are sparse.

    Attributes
    ----------
    sparse : Csr
        All rows; the dense ones are empty here.
    dense_row : ndarray of shape (n,), int32
        Index of a row in ``dense``; -1 for sparse rows.
    dense : ndarray of shape (n_dense, n_columns)
    """

    sparse: Csr
    dense_row: Any
    dense: Any


def largest_of_rows(matrix: csr_array, n_entries: int, n_rows: int | None = None) -> csr_array:
    """Keep at most ``n_entries`` entries of largest magnitude in every row, more where magnitudes are equal.

    ``n_rows`` limits this to the first rows; by default all.
    """
    levels = np.zeros(matrix.shape[0])
    for row in np.flatnonzero(np.diff(matrix.indptr)[:n_rows] > n_entries):
        sizes = np.abs(matrix.data[matrix.indptr[row] : matrix.indptr[row + 1]])
        levels[row] = np.partition(sizes, len(sizes) - n_entries)[len(sizes) - n_entries]
    return drop_small(matrix, levels) if levels.any() else matrix


def drop_small(matrix: csr_array, levels: np.ndarray) -> csr_array:
    """Return the matrix without entries whose magnitude is below the level of their row."""
    indptr = np.zeros(matrix.shape[0] + 1, np.int64)
    _count_large(matrix.indptr, matrix.data, levels, indptr)
    np.cumsum(indptr, out=indptr)
    indices, data = np.empty(indptr[-1], matrix.indices.dtype), np.empty(indptr[-1], matrix.dtype)
    _fill_large(matrix.indptr, matrix.indices, matrix.data, levels, indices, data)
    kept = csr_from_parts(data, indices, indptr, matrix.shape)
    kept.has_canonical_format = matrix.has_canonical_format
    return kept


@compiled
def _count_large(indptr: np.ndarray, data: np.ndarray, levels: np.ndarray, out: np.ndarray) -> None:
    for i in range(levels.shape[0]):
        for p in range(indptr[i], indptr[i + 1]):
            out[i + 1] += abs(data[p]) >= levels[i]


@compiled
def _fill_large(
    indptr: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    levels: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
) -> None:
    at = 0
    for i in range(levels.shape[0]):
        for p in range(indptr[i], indptr[i + 1]):
            if abs(values[p]) >= levels[i]:
                indices[at] = columns[p]
                data[at] = values[p]
                at += 1
