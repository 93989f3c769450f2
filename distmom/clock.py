"""Where the seconds of a thread go, by kind of work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class _Account(threading.local):
    """What this thread has spent, and the seconds that were counted within the blocks that are open."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.within: list[float] = []


_account = _Account()


@contextmanager
def spend(kind: str) -> Iterator[None]:
    """Count the seconds of a block as one kind of work, but for those that blocks within it count."""
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
    """Return what this thread has spent since the last call, in seconds by kind."""
    spent, _account.spent = _account.spent, {}
    return spent


def add_spent(total: dict[str, float], more: Mapping[str, float]) -> None:
    """Add seconds by kind to others, in place."""
    for kind, seconds in more.items():
        total[kind] = total.get(kind, 0.0) + seconds
