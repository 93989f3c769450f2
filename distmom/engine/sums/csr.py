"""Sparse matrices as plain records, their sums, and products ``A'B`` of blocks of rows.

Sums and products are computed row by row in a dense accumulator of float64, with one bit per column that has an
entry and one bit per 64 columns, so that columns are found in ascending order without sorting.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def combine(
    parts: Sequence[csr_array],
    factors: Sequence[float | np.ndarray] | None = None,
    dtype: np.typing.DTypeLike = np.float32,
) -> csr_array:
    """Return the sum of sparse matrices, each times a factor; rows are sorted and without duplicates.

    Parameters
    ----------
    parts : sequence of csr_array of shape (n, m)
        At least one; rows may be unsorted and contain duplicates.
    factors : sequence of float or ndarray of shape (n,), optional
        Factor of each part, or of its rows; 1 by default.
    dtype : dtype, default float32
        Type of the result. Sums are computed in float64; entries that cancel are kept as zeros.

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    shape = parts[0].shape
    if any(part.shape != shape for part in parts):
        raise ValueError(f"parts: expected equal shapes, got {sorted({part.shape for part in parts})}")
    n, n_columns = shape
    scales = np.ones((len(parts), n))
    for scale, factor in zip(scales, factors or (), strict=factors is not None):
        scale[:] = factor
    offsets = np.cumsum([0, *(part.nnz for part in parts)])
    starts = np.stack([part.indptr.astype(np.int64) + at for part, at in zip(parts, offsets, strict=False)])
    indices = np.concatenate([part.indices for part in parts]).astype(np.int32, copy=False)
    values = np.concatenate([part.data for part in parts])
    columns, data = np.empty(len(indices), np.int32), np.empty(len(indices), dtype)
    indptr = np.zeros(n + 1, np.int64)
    end = _add_rows(starts, indices, values, scales, n_columns, indptr, columns, data)
    return _canonical(data[:end], columns[:end], indptr, shape)


def transposed_product(a: csr_array, b: csr_array, dtype: np.typing.DTypeLike = np.float32) -> csr_array:
    """Return ``A'B`` of sparse matrices with the same rows; rows are sorted and without duplicates.

    Parameters
    ----------
    a : csr_array of shape (n, d)
    b : csr_array of shape (n, m)
    dtype : dtype, default float32
        Type of the result; sums are computed in float64.
    """
    d, m = a.shape[1], b.shape[1]
    n_products = int(np.diff(a.indptr).astype(np.int64) @ np.diff(b.indptr))
    columns, data = np.empty(n_products, np.int32), np.empty(n_products, dtype)
    indptr = np.zeros(d + 1, np.int64)
    end = _multiply_rows(
        a.indptr, a.indices, a.data, b.indptr, b.indices, b.data, m, indptr, columns, data
    )  # fmt: skip
    return _canonical(data[:end].copy(), columns[:end].copy(), indptr, (d, m))


def _canonical(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> csr_array:
    matrix = csr_from_parts(data, indices, indptr, shape)
    matrix.has_canonical_format = True
    return matrix


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


#: position of the only set bit of a word, indexed by the top six bits of its product with a de Bruijn sequence
_SEQUENCE = np.uint64(0x03F79D71B4CB0A89)
_POSITIONS = np.zeros(64, np.int64)
_POSITIONS[[int(_SEQUENCE) * (1 << bit) % (1 << 64) >> 58 for bit in range(64)]] = np.arange(64)
_ONE, _TOP_SIX = np.uint64(1), np.uint64(58)


@compiled
def _emit(
    sums: np.ndarray,
    bits: np.ndarray,
    summary: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    at: int,
) -> int:
    """Append the accumulated columns to the result from ``at``, in ascending order, and return the new end."""
    for s in range(summary.shape[0]):
        words = summary[s]
        while words != 0:
            lowest = words & (~words + _ONE)
            words ^= lowest
            w = s * 64 + _POSITIONS[(lowest * _SEQUENCE) >> _TOP_SIX]
            rest = bits[w]
            bits[w] = 0
            while rest != 0:
                lowest = rest & (~rest + _ONE)
                rest ^= lowest
                c = w * 64 + _POSITIONS[(lowest * _SEQUENCE) >> _TOP_SIX]
                columns[at] = c
                values[at] = sums[c]
                sums[c] = 0.0
                at += 1
        summary[s] = 0
    return at


@compiled
def _add_rows(
    starts: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    scales: np.ndarray,
    n_columns: int,
    indptr: np.ndarray,
    columns: np.ndarray,
    data: np.ndarray,
) -> int:
    """Add the rows of several matrices whose entries are concatenated."""
    sums = np.zeros(n_columns)
    bits = np.zeros(n_columns // 64 + 1, np.uint64)
    summary = np.zeros(n_columns // 4096 + 1, np.uint64)
    at = 0
    for i in range(indptr.shape[0] - 1):
        met = False
        for part in range(starts.shape[0]):
            scale = scales[part, i]
            for p in range(starts[part, i], starts[part, i + 1]):
                c = indices[p]
                sums[c] += scale * values[p]
                bits[c >> 6] |= _ONE << np.uint64(c & 63)
                summary[c >> 12] |= _ONE << np.uint64((c >> 6) & 63)
                met = True
        if met:
            at = _emit(sums, bits, summary, columns, data, at)
        indptr[i + 1] = at
    return at


@compiled
def _multiply_rows(
    a_indptr: np.ndarray,
    a_indices: np.ndarray,
    a_data: np.ndarray,
    b_indptr: np.ndarray,
    b_indices: np.ndarray,
    b_data: np.ndarray,
    n_columns: int,
    indptr: np.ndarray,
    columns: np.ndarray,
    data: np.ndarray,
) -> int:
    """Compute the rows of ``A'B``, after sorting the entries of A by column."""
    d = indptr.shape[0] - 1
    ends = np.zeros(d + 1, np.int64)
    for p in range(a_indices.shape[0]):
        ends[a_indices[p] + 1] += 1
    for v in range(d):
        ends[v + 1] += ends[v]
    rows = np.empty(a_indices.shape[0], np.int32)
    weights = np.empty(a_indices.shape[0], a_data.dtype)
    for i in range(a_indptr.shape[0] - 1):
        for p in range(a_indptr[i], a_indptr[i + 1]):
            at = ends[a_indices[p]]
            rows[at] = i
            weights[at] = a_data[p]
            ends[a_indices[p]] = at + 1
    sums = np.zeros(n_columns)
    bits = np.zeros(n_columns // 64 + 1, np.uint64)
    summary = np.zeros(n_columns // 4096 + 1, np.uint64)
    end, first = 0, 0
    for v in range(d):
        # Filling has advanced every start to the end of its column.
        for e in range(first, ends[v]):
            i = rows[e]
            weight = np.float64(weights[e])
            for p in range(b_indptr[i], b_indptr[i + 1]):
                c = b_indices[p]
                sums[c] += weight * b_data[p]
                bits[c >> 6] |= _ONE << np.uint64(c & 63)
                summary[c >> 12] |= _ONE << np.uint64((c >> 6) & 63)
        if ends[v] > first:
            end = _emit(sums, bits, summary, columns, data, end)
        first = ends[v]
        indptr[v + 1] = end
    return end
