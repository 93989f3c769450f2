"""The interface of executors of tasks, and the executor in this process.

All executors evaluate the same tree of sums in the same order. The executor on a Dask cluster is in
`distmom.engine.executors.cluster`, that on threads of this process in `distmom.engine.executors.threads`.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from distmom.compiled import watched
from distmom.engine.executors.attempts import attempted

logger = logging.getLogger(__name__)

_R = TypeVar("_R")
Merge = Callable[[Iterable[Any]], Any]
OnDone = Callable[[int], None]
Subject = Callable[[int], str]


def no_subject(index: int) -> str:
    """Return an empty name for the data of a call."""
    return ""


class Executor(Protocol):
    """The interface through which the engine runs tasks."""

    description: str

    @property
    def n_threads(self) -> int:
        """Number of tasks that run at a time."""
        ...

    def check_memory(self, name: str, task_bytes: int, shared_bytes: int, usable_share: float) -> None:
        """Log a warning if tasks may need more memory than workers have, and earlier tasks did not need as much.

        Parameters
        ----------
        name : str
            Name of the pass for messages.
        task_bytes : int
            Projected peak memory of a process with one task.
        shared_bytes : int
            The part of this that the tasks of a process share.
        usable_share : float
            Share of the memory of a worker that its tasks may use.
        """
        ...

    def reduce(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        merge: Merge,
        fan_in: int,
        on_done: OnDone,
        name: str,
        subject: Subject = no_subject,
    ) -> Any:
        """Call ``function`` with every argument tuple and merge the results in a fixed tree.

        ``subject(index)`` names, for messages, the data of a call.
        """
        ...

    def map(self, function: Callable[[Any], _R], items: Iterable[Any]) -> Iterator[_R]:
        """Call ``function`` on every item, several at a time, and yield the results in order."""
        ...

    def on_scheduler(self, function: Callable[..., _R], load: Callable[[], Any], *arguments: Any) -> _R:
        """Call ``function(load(), *arguments)`` on the scheduler node; ``load`` runs on a worker."""
        ...

    def settle(self) -> None:
        """Cancel tasks of the calling thread that are left after an error, and wait for those that run."""
        ...

    def compiling(self, report: Callable[[], None]) -> AbstractContextManager[None]:
        """Call ``report``, in the calling thread, whenever a task waits for the compilation of a kernel."""
        ...


def tree_node_children(index: int, fan_in: int, n_below: int) -> range:
    """Return the children of a node of the tree, as indices of the level below."""
    return range(index * fan_in, min((index + 1) * fan_in, n_below))


def tree_levels(n_leaves: int, fan_in: int) -> list[int]:
    """Return the number of nodes of every level of the tree, leaves first."""
    levels = [n_leaves]
    while levels[-1] > 1:
        levels.append(-(-levels[-1] // fan_in))
    return levels


class InProcess:
    """Runs every task in this process, one after the other, with at most one partial sum per level in memory."""

    description = "in this process"
    n_threads = 1

    def check_memory(self, name: str, task_bytes: int, shared_bytes: int, usable_share: float) -> None:
        return

    def reduce(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        merge: Merge,
        fan_in: int,
        on_done: OnDone,
        name: str,
        subject: Subject = no_subject,
    ) -> Any:
        levels = tree_levels(len(arguments), fan_in)
        leaves = self.map(operator.call, [partial(function, *each) for each in arguments])
        return _node(len(levels) - 1, 0, leaves, merge, fan_in, levels, on_done)

    def map(self, function: Callable[[Any], _R], items: Iterable[Any]) -> Iterator[_R]:
        return map(partial(attempted, function), items)

    def on_scheduler(self, function: Callable[..., _R], load: Callable[[], Any], *arguments: Any) -> _R:
        return function(load(), *arguments)

    def settle(self) -> None:
        return

    def compiling(self, report: Callable[[], None]) -> AbstractContextManager[None]:
        return watched(report)


def _node(
    level: int,
    index: int,
    leaves: Iterator[Any],
    merge: Merge,
    fan_in: int,
    levels: list[int],
    on_done: OnDone,
) -> Any:
    """Return the sum of a node of the tree, which asks for its leaves in their order."""
    # A local function that calls itself would keep what a pass has read until the next garbage collection.
    if level == 0:
        result = next(leaves)
        on_done(index)
        return result
    below = [
        partial(_node, level - 1, child, leaves, merge, fan_in, levels, on_done)
        for child in tree_node_children(index, fan_in, levels[level - 1])
    ]
    return below[0]() if len(below) == 1 else merge(each() for each in below)


class Notices:
    """Reports compilations in the thread that runs a pass, wherever they were announced."""

    def __init__(self) -> None:
        self._announced = threading.Event()
        self._report: Callable[[], None] | None = None

    @contextmanager
    def go_to(self, report: Callable[[], None]) -> Iterator[None]:
        """Deliver notices to a function; a context manager."""
        self._report = report
        try:
            yield
        finally:
            self._report = None
            self._announced.clear()

    def announce(self, event: object = None) -> None:
        """Note, in any thread, that a kernel is being compiled."""
        self._announced.set()

    def deliver(self) -> None:
        """Report a compilation that was announced since the last call, in the calling thread."""
        # Another thread that runs a pass with this executor may end it at this moment.
        report = self._report
        if report is not None and self._announced.is_set():
            self._announced.clear()
            report()
