"""Compilation of numerical kernels under one set of rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def compiled(function: _Kernel) -> _Kernel:
    """Compile a kernel that runs on one thread without holding the interpreter lock.

    Floating-point operations keep their IEEE order (no fast-math, no threads inside), so a kernel always
    returns the same bits. Division by zero gives inf or nan as in NumPy.

    Parameters
    ----------
    function : callable
        A function in numba's nopython subset that calls only kernels of its own module and
        `distmom.hashing.scramble`, whose code never changes: the cache on disk holds a copy of all that a kernel
        calls, but is invalidated by a change of the kernel's own file alone.

    Returns
    -------
    callable
        The compiled kernel, with the type of ``function``.
    """
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return cast(_Kernel, njit(cache=True, **options)(function))
    except RuntimeError:
        # numba cannot cache if neither the installation nor the home directory is writable.
        return cast(_Kernel, njit(cache=False, **options)(function))
