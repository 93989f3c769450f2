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
        A function in numba's nopython subset. It calls kernels of its own module, and of the modules beside this
        one: a kernel holds a compiled copy of what it calls, but its cache on disk is invalidated by a change of
        its own file alone, so that after a change beside this module the cache files have to be removed.

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
