"""Compiled loops over sparse rows, and the third moment in blocks.

All kernels run on one thread without the GIL and add in a fixed order, so the same block gives the same bits.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from distmom.compiled import compiled
from distmom.engine.stored.arrays import Columns


@compiled
def gather(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Multiply sparse rows by a dense matrix.

    Parameters
    ----------
    indptr, indices, data : ndarray
        CSR rows, (n, d).
    matrix : ndarray of shape (d, r)

    Returns
    -------
    ndarray of shape (n, r)
        Of the type of ``matrix``.
    """
    n, r, kind = indptr.shape[0] - 1, matrix.shape[1], matrix.dtype.type
    out = np.zeros((n, r), matrix.dtype)
    for i in range(n):
        start, stop, target = indptr[i], indptr[i + 1], out[i]
        last = stop - (stop - start) % 4
        # Four rows at a time, so that the processor waits for several at once; they are added in their order.
        for p in range(start, last, 4):
            x0, x1, x2, x3 = kind(data[p]), kind(data[p + 1]), kind(data[p + 2]), kind(data[p + 3])
            # Unsigned: a signed subscript may be negative, which would be checked on every access.
            row0, row1 = matrix[np.uint64(indices[p])], matrix[np.uint64(indices[p + 1])]
            row2, row3 = matrix[np.uint64(indices[p + 2])], matrix[np.uint64(indices[p + 3])]
            for c in range(r):
                target[c] = (((target[c] + x0 * row0[c]) + x1 * row1[c]) + x2 * row2[c]) + x3 * row3[c]
        for p in range(last, stop):
            x, row = kind(data[p]), matrix[np.uint64(indices[p])]
            for c in range(r):
                target[c] += x * row[c]
    return out


def gather_columns(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, matrix: np.ndarray | Columns
) -> np.ndarray:
    """Multiply sparse rows by a dense matrix, which may be in slabs of columns (see `gather`)."""
    if isinstance(matrix, Columns):
        parts = [gather(indptr, indices, data, part) for part in matrix.each()]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    return np.asarray(gather(indptr, indices, data, matrix))


def row_sums(indptr: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the sums of the values of sparse rows, (n,) float64."""
    return np.asarray(np.diff(np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])[indptr]))


@compiled
def scatter(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    rows: np.ndarray,
    out: np.ndarray,
    first: int,
) -> None:
    """Add ``X' rows`` to a slab: ``out[v - first] += sum_i x_iv rows_i`` for the words of the slab.

    Parameters
    ----------
    indptr, indices, data : ndarray
        CSR rows, (n, d).
    rows : ndarray of shape (n, r)
    out : ndarray of shape (slab, r)
        Changed in place.
    first : int
        First word of the slab.
    """
    r = rows.shape[1]
    last = first + out.shape[0]
    for i in range(indptr.shape[0] - 1):
        for p in range(indptr[i], indptr[i + 1]):
            v = indices[p]
            if first <= v < last:
                x = data[p]
                for c in range(r):
                    out[v - first, c] += x * rows[i, c]


@compiled
def column_sums(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, weight: np.ndarray, out: np.ndarray, first: int
) -> None:
    """Add ``X' weight`` to a slab of shape (slab,) in place."""
    last = first + out.shape[0]
    for i in range(indptr.shape[0] - 1):
        for p in range(indptr[i], indptr[i + 1]):
            v = indices[p]
            if first <= v < last:
                out[v - first] += weight[i] * data[p]


#: columns per block of the third moment
TENSOR_BLOCK = 10
#: rows that are processed at a time
BLOCK_ROWS = 4096


def add_third_moment(
    tensor: np.ndarray, left: np.ndarray, right: np.ndarray, weight: np.ndarray | None = None
) -> None:
    """Add ``sum_i weight_i left_i (x) left_i (x) right_i`` to a tensor in place, for pairs of columns a <= b.

    With ``right is left`` the sum is fully symmetric, and only blocks of columns c from that of b on are computed:
    about a sixth of all products. Finish with `fill_symmetric`, otherwise with `fill_pairs`.

    Parameters
    ----------
    tensor : ndarray of shape (r, r, r), float64
    left, right : ndarray of shape (n, r)
        Blocks are multiplied in this type and added in float64.
    weight : ndarray of shape (n,), optional
    """
    n, r = left.shape
    symmetric = right is left
    weighted, pairs = _weighted(right, weight), _room_for_pairs(left)
    for start in range(0, n, BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, n))
        # Pairs are formed from contiguous columns, so that the loop is vectorised.
        part, third = np.ascontiguousarray(left[rows].T), np.ascontiguousarray(weighted[rows])
        for a in _blocks(0, r):
            c = a.start if symmetric else 0
            tensor[a, a, c:][np.triu_indices(len(part[a]))] += _squares(part[a], third[:, c:], pairs)
            for b in _blocks(a.stop, r):
                c = b.start if symmetric else 0
                tensor[a, b, c:] += _products(part[a], part[b], third[:, c:], pairs)


def add_slices(
    slices: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    factors: np.ndarray,
    weight: np.ndarray | None = None,
) -> None:
    """Add ``sum_i weight_i factors_il left_i (x) right_i`` to every slice l in place.

    With ``factors = left G`` and ``right is left`` these are the contractions of the third moment with the
    columns of G; they are symmetric, and only the blocks a <= b are computed. Finish with `fill_pairs`.

    Parameters
    ----------
    slices : ndarray of shape (r, m, r), float64
    left, right : ndarray of shape (n, r)
        Blocks are multiplied in this type and added in float64.
    factors : ndarray of shape (n, m)
        Of the same type.
    weight : ndarray of shape (n,), optional
    """
    n, r = left.shape
    weighted, pairs = _weighted(right, weight), _room_for_pairs(left)
    for start in range(0, n, BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, n))
        part, third = np.ascontiguousarray(left[rows].T), np.ascontiguousarray(weighted[rows])
        across = np.ascontiguousarray(factors[rows].T)
        for a in _blocks(0, r):
            b = a.start if right is left else 0
            for m in _blocks(0, factors.shape[1]):
                slices[a, m, b:] += _products(part[a], across[m], third[:, b:], pairs)


def product_bytes(n_rows: int, width: int, size: int) -> int:
    """Return the bytes of the temporary arrays for products of three over a block of rows."""
    n = min(n_rows, BLOCK_ROWS)
    return size * (n * (2 * width + TENSOR_BLOCK**2) + TENSOR_BLOCK**2 * width)


def _weighted(rows: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    return rows if weight is None else rows * weight[:, None].astype(rows.dtype)


def _blocks(start: int, stop: int) -> list[slice]:
    return [slice(a, min(a + TENSOR_BLOCK, stop)) for a in range(start, stop, TENSOR_BLOCK)]


def _room_for_pairs(rows: np.ndarray) -> np.ndarray:
    """Return memory for `_products`; if it were allocated for every block, it would be cleared every time."""
    return np.empty(TENSOR_BLOCK**2 * min(len(rows), BLOCK_ROWS), rows.dtype)


def _products(left: np.ndarray, middle: np.ndarray, right: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return ``sum_i left_ai middle_bi right_ic`` of shape (a, b, c); ``pairs`` is overwritten."""
    shape = (len(left), len(middle), left.shape[1])
    formed = pairs[: np.prod(shape, dtype=int)].reshape(shape)
    np.multiply(left[:, None, :], middle[None, :, :], out=formed)
    return np.asarray(formed.reshape(-1, shape[2]) @ right).reshape(*shape[:2], -1)


def _squares(left: np.ndarray, right: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the rows a <= b of `_products` with ``middle is left``, of shape (a * (a + 1) / 2, c)."""
    size, n = left.shape
    formed = pairs[: size * (size + 1) // 2 * n].reshape(-1, n)
    first = 0
    for a in range(size):
        last = first + size - a
        np.multiply(left[a], left[a:], out=formed[first:last])
        first = last
    return np.asarray(formed @ right)


def fill_symmetric(tensor: np.ndarray) -> np.ndarray:
    """Complete a fully symmetric tensor in place from the sums of `add_third_moment`, and return it.

    Parameters
    ----------
    tensor : ndarray of shape (r, r, r)
        As accumulated by `add_third_moment` with ``right is left``.
    """
    blocks = _blocks(0, len(tensor))
    for a in blocks:
        fill_pairs(tensor[a, a])
    for triple in product(range(len(blocks)), repeat=3):
        order = sorted(range(3), key=triple.__getitem__)
        if order != [0, 1, 2]:
            # The stored permutation is that with ascending blocks, which are not written.
            stored = tensor[tuple(blocks[triple[axis]] for axis in order)]
            tensor[tuple(blocks[own] for own in triple)] = stored.transpose(np.argsort(order))
    return tensor


def fill_pairs(tensor: np.ndarray) -> np.ndarray:
    """Complete a tensor, symmetric in its first two indices, in place from its pairs a <= b; return it.

    Parameters
    ----------
    tensor : ndarray of shape (r, r, m)
    """
    for a in range(len(tensor)):
        tensor[a, :a] = tensor[:a, a]
    return tensor
