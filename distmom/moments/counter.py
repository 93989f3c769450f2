"""Random numbers that are a function of their coordinates, not of the order in which they are drawn.

The numbers of some documents can be computed without those of others, with the same bits in every process. The
generator hashes (seed, stream, row, column) with `distmom.hashing`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distmom.compiled import compiled
from distmom.errors import UsageError
from distmom.hashing import GOLDEN, scramble

_SHIFT_11 = np.uint64(11)
_TWO_POW_MINUS_53 = 2.0**-53


@compiled
def _uniform(row_key: Any, column: Any) -> Any:
    """Return a number strictly between 0 and 1, a multiple of 2**-54."""
    bits = scramble(row_key + (np.uint64(column) + np.uint64(1)) * GOLDEN)
    return (np.float64(bits >> _SHIFT_11) + 0.5) * _TWO_POW_MINUS_53


@compiled
def _fill(out: Any, rows: Any, key: Any) -> None:
    """Fill a (n, m) matrix with the uniform numbers of its rows."""
    for i in range(rows.shape[0]):
        row_key = scramble(key ^ scramble(np.uint64(rows[i]) + GOLDEN))
        for j in range(out.shape[1]):
            out[i, j] = _uniform(row_key, j)


def uniforms(rows: ArrayLike, n_columns: int, *, seed: int = 0, stream: int = 0) -> NDArray[np.float64]:
    """Return uniform random numbers that depend on their row and column number alone.

    Parameters
    ----------
    rows : array_like of shape (n,), integer
        Row numbers, for example of documents, not negative.
    n_columns : int
        Random numbers per row.
    seed : int, default 0
        Seed of the numbers, not negative.
    stream : int, default 0
        Distinguishes sequences of one seed, not negative.

    Returns
    -------
    ndarray of shape (n, n_columns), float64
        Strictly between 0 and 1.

    Raises
    ------
    UsageError
        If a number is negative or ``rows`` is not a vector of integers.
    """
    index = np.asarray(rows)
    if index.ndim != 1 or (index.size and not np.issubdtype(index.dtype, np.integer)):
        raise UsageError(
            f"row numbers: expected a one-dimensional integer array, got {index.dtype} of shape {index.shape}"
        )
    if index.size and int(index.min()) < 0:
        raise UsageError(f"row numbers: expected at least 0, got {int(index.min())}")
    if n_columns < 0 or seed < 0 or stream < 0:
        raise UsageError(
            f"n_columns, seed, stream: expected at least 0, got {n_columns}, {seed} and {stream}"
        )
    key = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]
    out = np.empty((index.size, n_columns))
    _fill(out, index.astype(np.int64), key)
    return out
