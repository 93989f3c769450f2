"""Compiled loops over sparse rows, and the blocked third moment.

All kernels run on one thread without the GIL and add in a fixed order, so the same block gives the same bits.
"""

from __future__ import annotations

import numpy as np

from distmom.compiled import compiled
from distmom.engine.state import Columns


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
        In the type of ``matrix``.
    """
    n, r = indptr.shape[0] - 1, matrix.shape[1]
    out = np.zeros((n, r), matrix.dtype)
    for i in range(n):
        for p in range(indptr[i], indptr[i + 1]):
            v = indices[p]
            x = matrix.dtype.type(data[p])
            for c in range(r):
                out[i, c] += x * matrix[v, c]
    return out


def gather_columns(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, matrix: np.ndarray | Columns
) -> np.ndarray:
    """Multiply sparse rows by a dense matrix that may be held in slabs of columns (see `gather`)."""
    if isinstance(matrix, Columns):
        parts = [gather(indptr, indices, data, part) for part in matrix.each()]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    return np.asarray(gather(indptr, indices, data, matrix))


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


#: columns that the blocked third moment takes at a time
TENSOR_BLOCK = 10


def add_third_moment(
    tensor: np.ndarray, left: np.ndarray, right: np.ndarray, weight: np.ndarray | None = None
) -> None:
    """Add ``sum_i weight_i left_i (x) left_i (x) right_i`` to the block triples a <= b of a tensor in place.

    With ``right is left`` the sum is fully symmetric and only the triples a <= b <= c are computed, about a
    sixth of all products. Finish with `fill_symmetric`.

    Parameters
    ----------
    tensor : ndarray of shape (r, r, r), float64
    left, right : ndarray of shape (n, r)
        Blocks are multiplied in this type and added in float64.
    weight : ndarray of shape (n,), optional
    """
    n, r = left.shape
    symmetric = right is left
    weighted = right if weight is None else right * weight[:, None].astype(right.dtype)
    for start in range(0, n, 4096):
        rows = slice(start, min(start + 4096, n))
        m = rows.stop - rows.start
        # Columns of the pairs are formed from whole columns: the loop runs on vectors.
        part, third = np.ascontiguousarray(left[rows].T), np.ascontiguousarray(weighted[rows])
        for a in range(0, r, TENSOR_BLOCK):
            a_end = min(a + TENSOR_BLOCK, r)
            for b in range(a, r, TENSOR_BLOCK):
                b_end = min(b + TENSOR_BLOCK, r)
                c = b if symmetric else 0
                pairs = (part[a:a_end, None, :] * part[None, b:b_end, :]).reshape(-1, m)
                product = pairs @ third[:, c:]
                tensor[a:a_end, b:b_end, c:] += product.reshape(a_end - a, b_end - b, r - c)


def fill_symmetric(tensor: np.ndarray) -> np.ndarray:
    """Return the fully symmetric tensor whose block triples a <= b <= c are given.

    Parameters
    ----------
    tensor : ndarray of shape (r, r, r)
        As accumulated by `add_third_moment` with ``right is left``.
    """
    r = len(tensor)
    block = np.arange(r) // TENSOR_BLOCK
    out = np.empty_like(tensor)
    for a in range(r):
        # Sort the three block numbers by choosing, for every index triple, the stored permutation.
        i, j = np.meshgrid(np.arange(r), np.arange(r), indexing="ij")
        triple = np.stack([np.full_like(i, a), i, j])
        order = np.argsort(block[triple], axis=0, kind="stable")
        x, y, z = np.take_along_axis(triple, order, axis=0)
        out[a] = tensor[x, y, z]
    return out


def fill_pairs(tensor: np.ndarray) -> np.ndarray:
    """Return the tensor symmetric in its first two indices whose block pairs a <= b are given."""
    r = len(tensor)
    block = np.arange(r) // TENSOR_BLOCK
    lower = block[:, None] > block[None, :]
    out = tensor.copy()
    out[lower] = tensor.transpose(1, 0, 2)[lower]
    return out
