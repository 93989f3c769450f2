"""Commits in the background: functions that one thread runs one after the other, until one of them fails."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Committer:
    """Runs functions one after the other in a daemon thread; after one that fails, no other is run."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def add(self, work: Callable[[], None]) -> threading.Event:
        """Run a function after all before it; return an event that is set when it has ended or was left out.

        Raises the error of an earlier function, as `check` does.
        """
        self.check()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="distmom-commit", daemon=True)
            self._thread.start()
        ended = threading.Event()
        self._waiting.put((work, ended))
        return ended

    def _run(self) -> None:
        while (next_ := self._waiting.get()) is not None:
            work, ended = next_
            try:
                if self._error is None:
                    work()
            except BaseException as error:  # noqa: BLE001 (raised by check, in the thread that adds or waits)
                self._error = error
            finally:
                ended.set()

    def check(self) -> None:
        """Raise the error of a function that has failed, if there is one."""
        if self._error is not None:
            raise self._error

    def flush(self) -> None:
        """Wait until all functions have ended; errors as in `check`, once."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None
        try:
            self.check()
        finally:
            self._error = None
