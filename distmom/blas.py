"""Arithmetic whose results do not depend on the number of cores: one BLAS thread, and pieces on several cores."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import threadpoolctl

_T = TypeVar("_T")
_R = TypeVar("_R")

#: largest number of threads of `map_on_cores`: the work between the passes is small
MAX_CORES = 8


class _Shared:
    """Number of threads inside `one_blas_thread`, and the limits to restore when the last one leaves."""

    lock = threading.Lock()
    n_users = 0
    limits: threadpoolctl._ThreadpoolLimiter | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS and OpenMP to one thread within the block; a context manager.

    The number of threads affects the order of additions and thus the last bits of a product. The limit
    applies to the whole process: if several threads enter, the first sets it and the last to leave restores
    the previous limit.
    """
    with _Shared.lock:
        if not _Shared.n_users:
            _take_control()
            _Shared.limits = _pools(len(sys.modules)).limit(limits=1)
        _Shared.n_users += 1
    try:
        yield
    finally:
        with _Shared.lock:
            _Shared.n_users -= 1
            if not _Shared.n_users and _Shared.limits is not None:
                _take_control()
                _Shared.limits.restore_original_limits()
                _take_control()


@lru_cache(maxsize=1)
def _pools(n_modules: int) -> threadpoolctl.ThreadpoolController:
    """Find the thread pools of all loaded libraries, a slow search that is repeated only after new imports."""
    return threadpoolctl.ThreadpoolController()


def _take_control() -> None:
    """Allow this thread to set limits; threadpoolctl otherwise reserves that for the first thread that did."""
    release = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)


def pieces(n: int, size: int) -> list[slice]:
    """Divide ``range(n)`` into slices of one size, the last of which may be smaller."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def map_on_cores(function: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """Apply a function to pieces of an array on the cores that this process may use, with one BLAS thread each.

    For work outside of the tasks of an executor, while its threads and processes are idle. The results do not
    depend on the number of cores if the division into pieces does not.

    Parameters
    ----------
    function : callable
        Must not call `map_on_cores` itself.
    items : iterable
        The pieces.

    Returns
    -------
    list
        The results, in the order of the pieces.
    """
    items = list(items)
    n_cores = min(MAX_CORES, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    with one_blas_thread():
        if min(n_cores, len(items)) < 2:
            return [function(item) for item in items]
        return list(_cores(os.getpid(), n_cores).map(function, items))


@lru_cache(maxsize=1)
def _cores(process: int, n_cores: int) -> ThreadPoolExecutor:
    """Return the threads of this process; a forked process has none of those of its parent."""
    return ThreadPoolExecutor(n_cores, thread_name_prefix="distmom-core")
