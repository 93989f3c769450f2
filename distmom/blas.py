"""One BLAS thread while numbers are computed that must not depend on the number of cores."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import threadpoolctl


class _Shared:
    """Threads of this process that are within `one_blas_thread`, and what there was before the first came."""

    lock = threading.Lock()
    n_users = 0
    limits: threadpoolctl._ThreadpoolLimiter | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS and OpenMP run on one thread until the block ends; a context manager.

    The number of threads changes the order of additions, and with it the last bits of a product. It belongs to the
    process: of several threads that ask for one, the first sets the limit and the last restores what was there.
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
    """Look the pools of threads up, once for all libraries that modules have loaded so far: it takes a while."""
    return threadpoolctl.ThreadpoolController()


def _take_control() -> None:
    """Let this thread set limits, which threadpoolctl leaves to the first thread that has done so."""
    release = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)
