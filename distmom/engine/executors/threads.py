"""Threads of this process as an executor, for corpora that take little memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from distmom.blas import one_blas_thread
from distmom.compiled import watched
from distmom.engine.executors.attempts import attempted
from distmom.engine.executors.executor import InProcess, Notices

_R = TypeVar("_R")

#: seconds after which a thread that waits for a task checks whether a kernel is being compiled
COMPILING_S = 0.1


class _Flying(threading.local):
    """The tasks of one calling thread that have not ended: several threads may each run an engine on one pool."""

    def __init__(self) -> None:
        self.futures: set[Future[Any]] = set()


class InThreads(InProcess):
    """Runs tasks on threads of this process, each with a partial sum and the work arrays of a block in memory.

    Parameters
    ----------
    pool : ThreadPoolExecutor
        Not closed here.
    n_threads : int
        Number of threads of the pool.
    """

    def __init__(self, pool: ThreadPoolExecutor, n_threads: int) -> None:
        self.n_threads = n_threads
        self.description: str = f"on {n_threads} threads of this process"
        self._pool = pool
        self._flying = _Flying()
        self._notices = Notices()

    def map(self, function: Callable[[Any], _R], items: Iterable[Any]) -> Iterator[_R]:
        # Closing the generator waits for nothing: the garbage collector may close it, in any thread.
        waiting, ahead, flying = iter(items), deque[Future[_R]](), self._flying.futures
        while True:
            for item in islice(waiting, 2 * self.n_threads - len(ahead)):
                future = self._pool.submit(attempted, function, item)
                flying.add(future)
                future.add_done_callback(flying.discard)
                ahead.append(future)
            if not ahead:
                return
            while not wait([ahead[0]], COMPILING_S).done:
                self._notices.deliver()
            self._notices.deliver()
            yield ahead.popleft().result()

    def settle(self) -> None:
        flying = tuple(self._flying.futures)
        for future in flying:
            future.cancel()
        wait(flying)

    @contextmanager
    def compiling(self, report: Callable[[], None]) -> Iterator[None]:
        with self._notices.go_to(report), watched(self._notices.announce):
            yield


@contextmanager
def on_threads(n_threads: int) -> Iterator[InThreads]:
    """Open threads of this process that run tasks; a context manager.

    BLAS has one thread within the block. The limit is not changed while tasks run: the search for the libraries
    to limit holds a lock of the loader and waits for the interpreter, while an import does the opposite.

    Parameters
    ----------
    n_threads : int
    """
    with one_blas_thread(), ThreadPoolExecutor(n_threads, thread_name_prefix="distmom") as pool:
        executor = InThreads(pool, n_threads)
        try:
            yield executor
        finally:
            executor.settle()
