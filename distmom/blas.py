"""Limiting BLAS to one thread, for results that must not depend on the number of cores."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import threadpoolctl


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
