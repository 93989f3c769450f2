"""A check between two blocks that stops a task whose run has been cancelled or taken over."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import distributed
import distributed.worker

from distmom.engine.directory.epochs import file_of, is_cancelled
from distmom.engine.directory.partials import epoch_of
from distmom.errors import CancelledError

#: seconds between two reads of the records of a run
LOOK_S = 1.0


class Requests:
    """Checks whether a task is still wanted.

    The worker knows when the client has cancelled a task, or is gone. The records of a run are also read, at most
    once in `LOOK_S`, as its driver may be unable to cancel anything.

    Parameters
    ----------
    files : path-like
        Directory of the partial sums of its pass, ``partial/<epoch>/<pass>`` in the run directory. There are no
        records where it belongs to no epoch.
    """

    def __init__(self, files: str | os.PathLike[str]) -> None:
        place = Path(files)
        epoch = epoch_of(place.parent)
        self._run = None if epoch is None else place.parents[2]
        self._next = None if epoch is None else file_of(place.parents[2], epoch + 1)
        self._looked = time.monotonic()
        self._task = _own_task()

    def check(self) -> None:
        """Raise a CancelledError if the task or its run was cancelled, or the run was taken over."""
        if self._task is not None and self._task.state == "cancelled":
            raise CancelledError(f"{self._task.key}: the task was abandoned, as its client has cancelled it")
        if self._run is None or self._next is None or time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        if is_cancelled(self._run) or self._next.exists():
            raise CancelledError(f"{self._run}: a task was abandoned, as its run was cancelled or taken over")


def _own_task() -> Any:
    """Return the task that this thread carries out for a Dask worker; None in any other thread."""
    try:
        worker, key = distributed.get_worker(), distributed.worker.thread_state.key
    except (ValueError, AttributeError):
        # Threads that an asynchronous task starts know their worker, but not their task.
        return None
    return worker.state.tasks.get(key)
