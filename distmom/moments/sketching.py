"""Products of weighted second moments of sparse rows with a random matrix or a basis, one fused loop.

For rows x_i with weights w_i the loop adds ``sum_i w_i x_i (x_i' B)``, or ``sum_i w_i (x_i x_i' - diag x_i) B``
with distinct positions, a row at a time: the row of products ``x_i' B`` never leaves the cache. B is a basis
or the test matrix Omega, whose entries are a function of seed, word and column and are made where they are
needed: no Omega is stored or sent.

Entries of Omega are uniform on (-sqrt 3, sqrt 3), of mean 0 and variance 1: sub-Gaussian, which is what a range
finder asks for, at a tenth of the cost of Gaussian ones. Random signs would be as cheap, but two words of a
small vocabulary often get rows that are equal up to sign, and Omega is then singular.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.compiled import compiled

_SCALE = np.float32(3.0**0.5 / 2.0**31)


@compiled
def _hash(x: Any) -> Any:
    """Scramble 64 bits (the output function of splitmix64, as in `distmom.moments.counter`)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def _fill_row(key: Any, word: Any, first: Any, row: Any) -> None:
    """Fill ``row`` with the entries of a word from column ``first`` on.

    The two halves of the word's 64 bits enter one before and one between the rounds of a 32-bit finaliser
    (murmur3), so that rows are equal only where all 64 bits are; 32-bit steps run on vectors.
    """
    bits = _hash(key ^ _hash(np.uint64(word)))
    a, b = np.uint32(bits), np.uint32(bits >> np.uint64(32))
    for c in range(row.shape[0]):
        h = np.uint32(np.uint32(np.uint32(c) + np.uint32(first)) * np.uint32(0x9E3779B9) + a)
        h = np.uint32(np.uint32(h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
        h = np.uint32(np.uint32((h ^ (h >> np.uint32(13))) + b) * np.uint32(0xC2B2AE35))
        h = h ^ (h >> np.uint32(16))
        row[c] = (np.float32(np.int32(h)) + np.float32(0.5)) * _SCALE


def omega_key(seed: int, stream: int = 0) -> np.uint64:
    """Return the key of the test matrix of a seed; ``stream`` tells matrices under one seed apart."""
    return np.uint64(np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0])


def omega(words: np.ndarray, n_columns: int, key: np.uint64) -> np.ndarray:
    """Return rows of the test matrix.

    Parameters
    ----------
    words : ndarray of shape (n,), integer
    n_columns : int
        A wider matrix begins with the columns of a narrower one.
    key : uint64
        As returned by `omega_key`.

    Returns
    -------
    ndarray of shape (n, n_columns), float32
    """
    out = np.empty((len(words), n_columns), np.float32)
    _fill(np.asarray(words, np.int64), key, out)
    return out


@compiled
def _fill(words: Any, key: Any, out: Any) -> None:
    for i in range(len(words)):
        _fill_row(key, words[i], 0, out[i])


@compiled
def add_product(
    indptr: Any,
    indices: Any,
    data: Any,
    weights: Any,
    basis: Any,
    key: Any,
    first: Any,
    distinct: Any,
    out: Any,
) -> None:
    """Add the weighted second moment of sparse rows, times some columns of B, to ``out``.

    Parameters
    ----------
    indptr, indices, data : ndarray
        CSR rows, (n, d); ``data`` may be empty, and every value is then 1.
    weights : ndarray of shape (n,)
        Weight of each row.
    basis : ndarray of shape (d, r)
        Columns of B; without rows, those of the test matrix from column ``first`` on.
    key : uint64
        Of the test matrix.
    first : int
    distinct : bool
        Leave out the pairs of a position with itself.
    out : ndarray of shape (d, r)
        Changed in place; products are formed in its type.
    """
    r = out.shape[1]
    drawn = basis.shape[0] == 0
    one = out.dtype.type(1.0)
    row = np.empty(r, np.float32)
    products = np.empty(r, out.dtype)
    for i in range(indptr.shape[0] - 1):
        products[:] = 0.0
        start, stop = indptr[i], indptr[i + 1]
        if drawn:
            for p in range(start, stop):
                x = out.dtype.type(data[p]) if len(data) else one
                _fill_row(key, indices[p], first, row)
                for c in range(r):
                    products[c] += x * row[c]
        else:
            for p in range(start, stop):
                x = out.dtype.type(data[p]) if len(data) else one
                # Unsigned: a signed subscript may count from the end, which is looked at every time.
                source = basis[np.uint64(indices[p])]
                for c in range(r):
                    products[c] += x * source[c]
        w = out.dtype.type(weights[i])
        for c in range(r):
            products[c] *= w
        for p in range(start, stop):
            x = out.dtype.type(data[p]) if len(data) else one
            target = out[np.uint64(indices[p])]
            for c in range(r):
                target[c] += x * products[c]
        if distinct:
            for p in range(start, stop):
                x = w * (out.dtype.type(data[p]) if len(data) else one)
                target = out[np.uint64(indices[p])]
                if drawn:
                    _fill_row(key, indices[p], first, row)
                    for c in range(r):
                        target[c] -= x * row[c]
                else:
                    source = basis[np.uint64(indices[p])]
                    for c in range(r):
                        target[c] -= x * source[c]


@compiled
def scatter_rows(indptr: Any, indices: Any, rows: Any, out: Any) -> None:
    """Add ``Y' rows`` to ``out``, Y the 0/1 rows of a CSR matrix (n, L).

    Parameters
    ----------
    indptr, indices : ndarray
    rows : ndarray of shape (n, r)
    out : ndarray of shape (L, r)
        Changed in place.
    """
    for i in range(indptr.shape[0] - 1):
        for p in range(indptr[i], indptr[i + 1]):
            target = out[np.uint64(indices[p])]
            for c in range(rows.shape[1]):
                target[c] += out.dtype.type(rows[i, c])
