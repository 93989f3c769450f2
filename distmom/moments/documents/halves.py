"""Compiled halves of documents: every position goes to the first half with probability 1/2."""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.compiled import compiled
from distmom.hashing import GOLDEN, scramble

#: count of a word in a document above which halves are drawn from a normal distribution, not position by position
MANY_POSITIONS = 1 << 16


@compiled
def half_counts(indptr: Any, indices: Any, data: Any, key: Any, first: Any) -> None:
    """Assign every position of every document to the first half with probability 1/2.

    The bits are a hash of the document's words and counts and of the word, so that the halves of a document do not
    depend on its position. For counts above `MANY_POSITIONS` the first half is drawn from the normal
    distribution of the same mean and variance.

    Parameters
    ----------
    indptr, indices, data : ndarray
        CSR rows of counts, (n, d).
    key : uint64
    first : ndarray of shape (nnz,), float64
        Counts of the first half; set in place.
    """
    for i in range(indptr.shape[0] - 1):
        document = np.uint64(key)
        for p in range(indptr[i], indptr[i + 1]):
            word = scramble(np.uint64(indices[p]) + GOLDEN)
            document = scramble((document ^ word + np.uint64(data[p])) + GOLDEN)
        for p in range(indptr[i], indptr[i + 1]):
            bits = scramble((document ^ np.uint64(indices[p])) + GOLDEN)
            left: Any = np.int64(data[p])
            n: Any = np.int64(0)
            if left > MANY_POSITIONS:
                document = scramble(document + np.uint64(left) + GOLDEN)
                more = scramble((document ^ np.uint64(indices[p])) + GOLDEN)
                # Uniform in (0, 1]: the logarithm of zero is not finite.
                radius = np.sqrt(-2.0 * np.log(((bits >> np.uint64(11)) + np.uint64(1)) * 2.0**-53))
                normal = radius * np.cos(2.0 * np.pi * ((more >> np.uint64(11)) * 2.0**-53))
                first[p] = min(max(np.rint(0.5 * (left + np.sqrt(np.float64(left)) * normal)), 0.0), left)
                continue
            # All words of bits but the first are used in full.
            n_bits: Any = (left - 1) % 64 + 1
            while left > 0:
                n += _count_bits(bits << np.uint64(64 - n_bits))
                left -= n_bits
                n_bits = 64
                if left > 0:
                    document = scramble(document + np.uint64(left) + GOLDEN)
                    bits = scramble((document ^ np.uint64(indices[p])) + GOLDEN)
            first[p] = n


@compiled
def _count_bits(x: Any) -> Any:
    """Return the number of set bits of 64, by sums of fields of increasing length."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))
