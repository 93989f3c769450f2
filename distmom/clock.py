"""Time spent by each thread, by kind of work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class _Account(threading.local):
    """Seconds spent by this thread, by kind, and seconds already counted inside each open block."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.within: list[float] = []


_account = _Account()


@contextmanager
def spend(kind: str) -> Iterator[None]:
    """Count the time of a block as one kind of work, excluding nested blocks; a context manager."""
    _account.within.append(0.0)
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - started
        own = seconds - _account.within.pop()
        _account.spent[kind] = _account.spent.get(kind, 0.0) + own
        if _account.within:
            _account.within[-1] += seconds


def taken() -> dict[str, float]:
    """Return the seconds spent by this thread since the last call, by kind."""
    spent, _account.spent = _account.spent, {}
    return spent


def add_spent(total: dict[str, float], more: Mapping[str, float]) -> None:
    """Add seconds by kind to ``total``, in place."""
    for kind, seconds in more.items():
        total[kind] = total.get(kind, 0.0) + seconds
