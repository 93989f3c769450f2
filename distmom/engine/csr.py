"""Sparse matrices as plain records, so that each of their arrays may be stored and memory-mapped on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.compiled import compiled
from distmom.corpus.block import csr_from_parts


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
        return csr_from_parts(self.data, self.indices, self.indptr, (len(self.indptr) - 1, self.n_columns))


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
        rest = csr_from_parts(matrix.data[entries], matrix.indices[entries], indptr, matrix.shape)
        return cls(Csr.of(rest, dtype), dense_row, dense)


def add_csr(
    left: csr_array, right: csr_array, left_factor: float = 1.0, right_factor: float = 1.0
) -> csr_array:
    """Return ``left_factor left + right_factor right``; rows are sorted and without duplicates.

    Several times faster than SciPy's addition, which takes most of a pass with a large sparse sum otherwise.
    Entries that cancel are kept as zeros.

    Parameters
    ----------
    left, right : csr_array of shape (n, m)
    left_factor, right_factor : float
        Taken in the type of the result.

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
    _fill_union(
        a.indptr, a.indices, a.data, b.indptr, b.indices, b.data,
        dtype.type(left_factor), dtype.type(right_factor), indptr, indices, data,
    )  # fmt: skip
    total = csr_from_parts(data, indices, indptr, left.shape)
    total.has_canonical_format = True
    return total


def _canonical(matrix: csr_array) -> csr_array:
    if matrix.has_canonical_format:
        return matrix
    matrix = matrix.copy()
    matrix.sum_duplicates()
    return matrix


def drop_small(matrix: csr_array, levels: np.ndarray) -> csr_array:
    """Return a matrix without the entries whose magnitude is below the level of their row."""
    indptr = np.zeros_like(matrix.indptr)
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
    a_factor: float,
    b_factor: float,
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
                data[at] = a_factor * a_data[p]
                p += 1
            elif right < left:
                indices[at] = right
                data[at] = b_factor * b_data[q]
                q += 1
            else:
                indices[at] = left
                data[at] = a_factor * a_data[p] + b_factor * b_data[q]
                p += 1
                q += 1
            at += 1
        while p < p_end:
            indices[at] = a_indices[p]
            data[at] = a_factor * a_data[p]
            p += 1
            at += 1
        while q < q_end:
            indices[at] = b_indices[q]
            data[at] = b_factor * b_data[q]
            q += 1
            at += 1
