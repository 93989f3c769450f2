"""Random numbers that are a function of their coordinates, not of the order they were drawn in.

A worker that needs the rows of a random matrix for the words of its shard computes those rows and no others,
and gets the bits that every other worker gets. The generator hashes (seed, stream, row, column) with the
finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from distmom.compiled import compiled
from distmom.errors import UsageError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_30 = np.uint64(30)
_SHIFT_27 = np.uint64(27)
_SHIFT_31 = np.uint64(31)
_SHIFT_11 = np.uint64(11)
_TWO_POW_MINUS_53 = 2.0**-53
_LN2 = math.log(2.0)


@compiled
def _mix(x: Any) -> Any:
    """Scramble 64 bits (the output function of splitmix64)."""
    x = (x ^ (x >> _SHIFT_30)) * _MIX_1
    x = (x ^ (x >> _SHIFT_27)) * _MIX_2
    return x ^ (x >> _SHIFT_31)


@compiled
def _uniform(row_key: Any, column: Any) -> Any:
    """Return a number strictly between 0 and 1, a multiple of 2**-54."""
    bits = _mix(row_key + (np.uint64(column) + np.uint64(1)) * _GOLDEN)
    return (np.float64(bits >> _SHIFT_11) + 0.5) * _TWO_POW_MINUS_53


@compiled
def _minus_log(x: Any) -> Any:
    """Return -log(x) for 0 < x <= 1/2 from additions, products and divisions only.

    The system's log may differ in the last bit between machines of one cluster; IEEE arithmetic may not.
    """
    exponent = 0
    while x < 0.70710678118654752:
        x *= 2.0
        exponent += 1
    s = (x - 1.0) / (x + 1.0)
    z = s * s
    tail = z * (1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z * (1 / 11 + z * (1 / 13 + z / 15))))))
    return exponent * _LN2 - 2.0 * s * (1.0 + tail)


@compiled
def _normal_quantile(p: Any) -> Any:
    """Invert the standard normal distribution function to about seven digits.

    Algorithm AS 241, routine PPND7 (Wichura, Applied Statistics 37, 1988).
    """
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        above = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179
        below = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0
        return q * above / below
    r = math.sqrt(_minus_log(p if q < 0.0 else 1.0 - p))
    if r <= 5.0:
        r -= 1.6
        above = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777
        below = (0.12021132975 * r + 0.73700164250) * r + 1.0
    else:
        r -= 5.0
        above = ((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150
        below = (0.012258202635 * r + 0.24197894225) * r + 1.0
    value = above / below
    return -value if q < 0.0 else value


@compiled
def _fill(out: Any, rows: Any, key: Any, normal: Any) -> None:
    """Fill a (n, m) matrix with the uniform or normal numbers of its rows."""
    for i in range(rows.shape[0]):
        row_key = _mix(key ^ _mix(np.uint64(rows[i]) + _GOLDEN))
        for j in range(out.shape[1]):
            u = _uniform(row_key, j)
            out[i, j] = _normal_quantile(u) if normal else u


def _draw(
    rows: ArrayLike, n_columns: int, seed: int, stream: int, dtype: DTypeLike, *, normal: bool
) -> NDArray[Any]:
    """Validate the coordinates and fill the matrix."""
    index = np.asarray(rows)
    if index.ndim != 1 or (index.size and not np.issubdtype(index.dtype, np.integer)):
        raise UsageError(
            f"row numbers must be a one-dimensional integer array, got {index.dtype} of shape {index.shape}"
        )
    if index.size and int(index.min()) < 0:
        raise UsageError(f"row numbers must not be negative, got {int(index.min())}")
    if n_columns < 0 or seed < 0 or stream < 0:
        raise UsageError(
            f"n_columns, seed and stream must not be negative, got {n_columns}, {seed} and {stream}"
        )
    key = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]
    out = np.empty((index.size, n_columns), dtype=dtype)
    _fill(out, index.astype(np.int64), key, normal)
    return out


def normal_omega(
    words: ArrayLike, n_columns: int, *, seed: int = 0, stream: int = 0, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Return the rows of a Gaussian test matrix for some words.

    Each entry depends on (seed, stream, word, column) alone: any subset of words, in any order and on any
    machine, gets the rows of one fixed matrix, and a wider matrix begins with the columns of a narrower one.
    Gaussian rather than random signs, which would be cheaper: with few columns two words often receive rows
    equal up to sign, and the test matrix of a small vocabulary is then singular.

    Parameters
    ----------
    words : array_like of shape (n,), integer
        Word numbers, not negative.
    n_columns : int
        Width r of the test matrix.
    seed : int
        Seed of the matrix.
    stream : int
        Distinguishes matrices under one seed.
    dtype : dtype
        float64 or float32; the second is the first, rounded.

    Returns
    -------
    ndarray of shape (n, n_columns)
        Independent standard normal numbers, to about seven digits.

    Raises
    ------
    UsageError
        If a number is negative or ``words`` is not a vector of integers.

    References
    ----------
    Halko, Martinsson, Tropp, "Finding structure with randomness", SIAM Review 53 (2011), algorithm 4.1.
    """
    return _draw(words, n_columns, seed, stream, dtype, normal=True)


def uniforms(rows: ArrayLike, n_columns: int, *, seed: int = 0, stream: int = 0) -> NDArray[np.float64]:
    """Return uniform random numbers that depend on their row and column number alone.

    Parameters
    ----------
    rows : array_like of shape (n,), integer
        Row numbers (documents, say), not negative.
    n_columns : int
        Numbers a row.
    seed, stream : int
        As in `normal_omega`.

    Returns
    -------
    ndarray of shape (n, n_columns), float64
        Strictly between 0 and 1.

    Raises
    ------
    UsageError
        If a number is negative or ``rows`` is not a vector of integers.
    """
    return _draw(rows, n_columns, seed, stream, np.float64, normal=False)
