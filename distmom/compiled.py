"""One way to compile numerical kernels, so that all of them follow the same rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def compiled(function: _Kernel) -> _Kernel:
    """Compile a kernel that runs on one thread without holding the interpreter lock.

    Floating point keeps IEEE order (no fast-math, no threads inside), so a kernel returns the same bits
    whoever calls it. Division by zero gives inf or nan as in NumPy.

    Parameters
    ----------
    function : callable
        A function in numba's nopython subset that calls only kernels of its own module and
        `distmom.hashing.scramble`, whose code never changes: the cache on disk holds a copy of all that a kernel
        calls, but is invalidated by a change of the kernel's own file alone.

    Returns
    -------
    callable
        The compiled kernel, typed as the function it replaces.
    """
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return cast(_Kernel, njit(cache=True, **options)(function))
    except RuntimeError:
        # numba refuses to cache when neither the installation nor the home directory can be written to.
        return cast(_Kernel, njit(cache=False, **options)(function))
