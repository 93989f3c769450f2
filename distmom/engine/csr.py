"""Sparse matrices as plain records, so that each of their arrays may be stored and memory-mapped on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array


@dataclass(frozen=True)
class Csr:
    """The arrays of a CSR matrix.

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
        """Take the arrays of a scipy matrix."""
        return cls(
            matrix.indptr.astype(np.int64),
            matrix.indices.astype(np.int32),
            matrix.data.astype(dtype),
            matrix.shape[1],
        )

    def to_scipy(self) -> csr_array:
        """Return the scipy matrix over the same arrays."""
        return csr_array((self.data, self.indices, self.indptr), shape=(len(self.indptr) - 1, self.n_columns))


#: share of its columns from which a row is kept dense
DENSE_SHARE = 0.25


@dataclass(frozen=True)
class MixedRows:
    """A matrix whose nearly full rows are dense and whose other rows are sparse.

    Attributes
    ----------
    sparse : Csr
        All rows; the dense ones are empty here.
    dense_row : ndarray of shape (n,), int32
        Where a row stands in ``dense``; -1 for sparse rows.
    dense : ndarray of shape (n_dense, n_columns)
    """

    sparse: Csr
    dense_row: Any
    dense: Any

    @classmethod
    def of(cls, matrix: csr_array, dtype: np.typing.DTypeLike = np.float32) -> MixedRows:
        """Split the rows of a scipy matrix."""
        n_columns = matrix.shape[1]
        full = np.diff(matrix.indptr) > max(DENSE_SHARE * n_columns, 1)
        dense_row = np.where(full, np.cumsum(full) - 1, -1).astype(np.int32)
        dense = np.ascontiguousarray(matrix[full].toarray().astype(dtype))
        if not full.any():
            return cls(Csr.of(matrix, dtype), dense_row, np.zeros((0, n_columns), dtype))
        entries = np.repeat(~full, np.diff(matrix.indptr))
        indptr = np.concatenate([[0], np.cumsum(np.where(full, 0, np.diff(matrix.indptr)))])
        rest = csr_array((matrix.data[entries], matrix.indices[entries], indptr), shape=matrix.shape)
        return cls(Csr.of(rest, dtype), dense_row, dense)
