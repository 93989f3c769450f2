"""Tasks stop between two blocks when their run is cancelled or taken over, as nobody waits for them any more."""

from __future__ import annotations

import os
import time
from pathlib import Path

from distmom.engine.epochs import file_of, is_cancelled
from distmom.errors import CancelledError

#: seconds between two looks at the records of a run
LOOK_S = 1.0


class Requests:
    """Looks from time to time whether a task is still wanted.

    Parameters
    ----------
    files : path-like
        Directory of the partial sums of its pass, ``partial/<epoch>/<pass>`` in the run directory. There is
        nothing to look at where it belongs to no epoch.
    """

    def __init__(self, files: str | os.PathLike[str]) -> None:
        place = Path(files)
        epoch = place.parent.name
        self._run = place.parents[2] if epoch.isdigit() and len(epoch) < 12 else None
        self._next = None if self._run is None else file_of(self._run, int(epoch) + 1)
        self._looked = time.monotonic()

    def check(self) -> None:
        """Raise a CancelledError if the run was cancelled, or another process has taken it over."""
        if self._run is None or self._next is None or time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        if is_cancelled(self._run) or self._next.exists():
            raise CancelledError(f"{self._run}: a task was abandoned, as its run was cancelled or taken over")
