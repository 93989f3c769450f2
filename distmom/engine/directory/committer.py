"""Commits in the background: functions that one thread runs one after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Committer:
    """Runs functions one after the other in a daemon thread."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def add(self, work: Callable[[], None]) -> threading.Event:
        """Run a function after all before it; return an event that is set when it has ended or was left out."""
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
            except BaseException as error:  # noqa: BLE001 (raised by flush, in the thread that waits)
                self._error = error
            finally:
                ended.set()

    def flush(self) -> None:
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
