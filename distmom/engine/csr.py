"""Sparse matrices as plain records, so that each of their arrays may be stored and memory-mapped on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.compiled import compiled


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


def add_csr(left: csr_array, right: csr_array) -> csr_array:
    """Add two sparse matrices whose rows are sorted and without duplicates.

    Several times faster than SciPy's addition, which takes most of a pass with a large sparse sum otherwise.
    Entries that cancel are kept as zeros.

    Parameters
    ----------
    left, right : csr_array of shape (n, m)

    Returns
    -------
    csr_array of shape (n, m)
        Sorted, in the wider of the two types.
    """
    if left.shape != right.shape:
        raise ValueError(f"sums of shapes {left.shape} and {right.shape} do not add")
    dtype = np.result_type(left.dtype, right.dtype)
    a, b = _canonical(left), _canonical(right)
    indptr = np.zeros(left.shape[0] + 1, np.int64)
    _count_union(a.indptr, a.indices, b.indptr, b.indices, indptr)
    np.cumsum(indptr, out=indptr)
    indices = np.empty(indptr[-1], np.int32)
    data = np.empty(indptr[-1], dtype)
    _fill_union(a.indptr, a.indices, a.data, b.indptr, b.indices, b.data, indptr, indices, data)
    total = csr_array((data, indices, indptr), shape=left.shape)
    total.has_canonical_format = True
    return total


def _canonical(matrix: csr_array) -> csr_array:
    if matrix.has_canonical_format:
        return matrix
    matrix = matrix.copy()
    matrix.sum_duplicates()
    return matrix


@compiled
def _count_union(
    a_indptr: np.ndarray, a_indices: np.ndarray, b_indptr: np.ndarray, b_indices: np.ndarray, out: np.ndarray
) -> None:
    """Count the columns of every row that either matrix holds."""
    for i in range(out.shape[0] - 1):
        p, q = a_indptr[i], b_indptr[i]
        p_end, q_end = a_indptr[i + 1], b_indptr[i + 1]
        count = (p_end - p) + (q_end - q)
        while p < p_end and q < q_end:
            left, right = a_indices[p], b_indices[q]
            if left == right:
                count -= 1
            p += left <= right
            q += right <= left
        out[i + 1] = count


@compiled
def _fill_union(
    a_indptr: np.ndarray,
    a_indices: np.ndarray,
    a_data: np.ndarray,
    b_indptr: np.ndarray,
    b_indices: np.ndarray,
    b_data: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
) -> None:
    """Merge the sorted rows of two matrices, adding where both hold a column."""
    for i in range(indptr.shape[0] - 1):
        p, q = a_indptr[i], b_indptr[i]
        p_end, q_end = a_indptr[i + 1], b_indptr[i + 1]
        at = indptr[i]
        while p < p_end and q < q_end:
            left, right = a_indices[p], b_indices[q]
            if left < right:
                indices[at] = left
                data[at] = a_data[p]
                p += 1
            elif right < left:
                indices[at] = right
                data[at] = b_data[q]
                q += 1
            else:
                indices[at] = left
                data[at] = a_data[p] + b_data[q]
                p += 1
                q += 1
            at += 1
        while p < p_end:
            indices[at] = a_indices[p]
            data[at] = a_data[p]
            p += 1
            at += 1
        while q < q_end:
            indices[at] = b_indices[q]
            data[at] = b_data[q]
            q += 1
            at += 1
