"""The hash function for random draws that depend on positions alone, not on the order of work.

It is the output function of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014), whose n-th output from seed s is ``scramble(s + n * GOLDEN)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmom.compiled import compiled

#: the increment of splitmix64: the odd number next to 2**64 over the golden ratio
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _scramble(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


#: scrambles one uint64 in a compiled kernel; stored runs rely on its bits, which must never change
scramble = compiled(_scramble)


def scramble_array(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the elements of an array, scrambled as by `scramble`.

    Parameters
    ----------
    x : ndarray of any shape, uint64

    Returns
    -------
    ndarray of the same shape, uint64
    """
    scrambled: NDArray[np.uint64] = _scramble(x)
    return scrambled
