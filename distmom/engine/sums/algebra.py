"""Sums of sparse matrices, and products ``A'B`` of their blocks of rows.

Both are computed row by row in float64. The few terms of a short row are inserted one by one into a sorted list.
Those of a long row are added to a dense accumulator, with one bit per column that has an entry and one bit per 64
columns, so that columns are found in ascending order without sorting. Either way, the terms of an entry are added
in the same order, so that the bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from distmom.compiled import compiled
from distmom.corpus.block import csr_from_parts

#: maximum number of terms of a row that are inserted into a sorted list
SHORT_ROW = 32
#: number of rows of all matrices that are added at once, so that their ends stay in the cache
CHUNK_ROWS = 1 << 15


class _RowSum(NamedTuple):
    """The sum of one row: entries of a short row in ascending order, and the accumulator of a long one."""

    columns: np.ndarray
    values: np.ndarray
    dense: np.ndarray
    bits: np.ndarray
    summary: np.ndarray

    @classmethod
    def zero(cls, n_columns: int) -> _RowSum:
        return cls(
            np.empty(SHORT_ROW, np.int32),
            np.empty(SHORT_ROW),
            np.zeros(n_columns),
            np.zeros(n_columns // 64 + 1, np.uint64),
            np.zeros(n_columns // 4096 + 1, np.uint64),
        )


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
    factors = [1.0] * len(parts) if factors is None else factors
    n_entries = sum(part.nnz for part in parts)
    columns, values = np.empty(n_entries, np.int32), np.empty(n_entries, dtype)
    indptr, end, row = np.zeros(n + 1, np.int64), 0, _RowSum.zero(n_columns)
    for first in range(0, n, CHUNK_ROWS):
        rows = slice(first, min(first + CHUNK_ROWS, n))
        starts = np.empty((len(parts), rows.stop - rows.start + 1), np.int64)
        entries, n_before = [], 0
        for part, own in zip(parts, starts, strict=True):
            entries.append(slice(part.indptr[rows.start], part.indptr[rows.stop]))
            np.add(part.indptr[rows.start : rows.stop + 1], n_before - entries[-1].start, out=own)
            n_before = own[-1]
        own_factors = [factor[rows] if isinstance(factor, np.ndarray) else factor for factor in factors]
        scales = np.array(np.broadcast_arrays(*own_factors), np.float64).reshape(len(parts), -1)
        end = _add_rows(
            starts,
            starts.sum(axis=0),
            np.concatenate(
                [part.indices[own] for part, own in zip(parts, entries, strict=True)], dtype=np.int32
            ),
            np.concatenate([part.data[own] for part, own in zip(parts, entries, strict=True)]),
            scales,
            row,
            columns,
            values,
            end,
            indptr[rows.start + 1 : rows.stop + 1],
        )
    return _canonical(values, columns, indptr, shape)


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
    columns, values = np.empty(n_products, np.int32), np.empty(n_products, dtype)
    indptr = np.zeros(d + 1, np.int64)
    _multiply_rows(
        a.indptr, a.indices, a.data, b.indptr, b.indices, b.data, _RowSum.zero(m), indptr, columns, values
    )  # fmt: skip
    return _canonical(values, columns, indptr, (d, m))


def _canonical(
    values: np.ndarray, columns: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> csr_array:
    """Return the matrix with the first entries of two arrays, whose unused ends are given back."""
    for array in (values, columns):
        array.resize(int(indptr[-1]), refcheck=False)
    matrix = csr_from_parts(values, columns, indptr, shape)
    matrix.has_canonical_format = True
    return matrix


#: position of the only set bit of a word, indexed by the top six bits of its product with a de Bruijn sequence
_SEQUENCE = np.uint64(0x03F79D71B4CB0A89)
_POSITIONS = np.zeros(64, np.int64)
_POSITIONS[[int(_SEQUENCE) * (1 << bit) % (1 << 64) >> 58 for bit in range(64)]] = np.arange(64)
_ONE, _TOP_SIX = np.uint64(1), np.uint64(58)


@compiled
def _insert(columns: np.ndarray, values: np.ndarray, n: int, column: int, value: float) -> int:
    """Add a value to a sorted row of ``n`` entries, and return their new number."""
    place = n
    while place > 0 and columns[place - 1] > column:
        place -= 1
    if place > 0 and columns[place - 1] == column:
        values[place - 1] += value
        return n
    for later in range(n, place, -1):
        columns[later] = columns[later - 1]
        values[later] = values[later - 1]
    columns[place] = column
    # As the accumulator does, which turns a negative zero into a positive one.
    values[place] = 0.0 + value
    return n + 1


@compiled
def _emit_sorted(row: _RowSum, n: int, columns: np.ndarray, values: np.ndarray, at: int) -> int:
    """Append the entries of a short row to the result from ``at``, and return the new end."""
    for entry in range(n):
        columns[at + entry] = row.columns[entry]
        values[at + entry] = row.values[entry]
    return at + n


@compiled
def _accumulate(dense: np.ndarray, bits: np.ndarray, summary: np.ndarray, column: int, value: float) -> None:
    """Add a value to the accumulator."""
    dense[column] += value
    bits[column >> 6] |= _ONE << np.uint64(column & 63)
    summary[column >> 12] |= _ONE << np.uint64((column >> 6) & 63)


@compiled
def _emit_accumulated(row: _RowSum, columns: np.ndarray, values: np.ndarray, at: int) -> int:
    """Append the accumulated columns to the result from ``at``, in ascending order, and return the new end."""
    for s in range(row.summary.shape[0]):
        words = row.summary[s]
        while words != 0:
            lowest = words & (~words + _ONE)
            words ^= lowest
            w = s * 64 + _POSITIONS[(lowest * _SEQUENCE) >> _TOP_SIX]
            rest = row.bits[w]
            row.bits[w] = 0
            while rest != 0:
                lowest = rest & (~rest + _ONE)
                rest ^= lowest
                c = w * 64 + _POSITIONS[(lowest * _SEQUENCE) >> _TOP_SIX]
                columns[at] = c
                values[at] = row.dense[c]
                row.dense[c] = 0.0
                at += 1
        row.summary[s] = 0
    return at


@compiled
def _add_rows(
    starts: np.ndarray,
    totals: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    scales: np.ndarray,
    row: _RowSum,
    columns: np.ndarray,
    values: np.ndarray,
    at: int,
    ends: np.ndarray,
) -> int:
    """Add the rows of several matrices whose entries are concatenated, and return the new end of the result.

    ``starts`` (n_matrices, n + 1) are the ends of rows in the concatenated entries, ``totals`` its sums over the
    matrices, and ``scales`` (n_matrices, n) or (n_matrices, 1) the factors.
    """
    short_columns, short_values, dense, bits, summary = row
    for i in range(ends.shape[0]):
        n_terms = totals[i + 1] - totals[i]
        if n_terms > SHORT_ROW:
            for part in range(starts.shape[0]):
                scale = scales[part, i if scales.shape[1] > 1 else 0]
                for p in range(starts[part, i], starts[part, i + 1]):
                    _accumulate(dense, bits, summary, indices[p], scale * data[p])
            at = _emit_accumulated(row, columns, values, at)
        elif n_terms > 0:
            n = 0
            for part in range(starts.shape[0]):
                scale = scales[part, i if scales.shape[1] > 1 else 0]
                for p in range(starts[part, i], starts[part, i + 1]):
                    n = _insert(short_columns, short_values, n, indices[p], scale * data[p])
            at = _emit_sorted(row, n, columns, values, at)
        ends[i] = at
    return at


@compiled
def _multiply_rows(
    a_indptr: np.ndarray,
    a_indices: np.ndarray,
    a_data: np.ndarray,
    b_indptr: np.ndarray,
    b_indices: np.ndarray,
    b_data: np.ndarray,
    row: _RowSum,
    indptr: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
) -> None:
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
    short_columns, short_values, dense, bits, summary = row
    end, first = 0, 0
    for v in range(d):
        # Filling has advanced every start to the end of its column.
        last, n_terms = ends[v], 0
        for e in range(first, last):
            n_terms += b_indptr[rows[e] + 1] - b_indptr[rows[e]]
        if n_terms > SHORT_ROW:
            for e in range(first, last):
                weight = np.float64(weights[e])
                for p in range(b_indptr[rows[e]], b_indptr[rows[e] + 1]):
                    _accumulate(dense, bits, summary, b_indices[p], weight * b_data[p])
            end = _emit_accumulated(row, columns, values, end)
        elif n_terms > 0:
            n = 0
            for e in range(first, last):
                weight = np.float64(weights[e])
                for p in range(b_indptr[rows[e]], b_indptr[rows[e] + 1]):
                    n = _insert(short_columns, short_values, n, b_indices[p], weight * b_data[p])
            end = _emit_sorted(row, n, columns, values, end)
        first = last
        indptr[v + 1] = end
