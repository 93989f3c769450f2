"""The number of threads for which the passes of a run are planned.

With more threads than groups of shards, passes are divided into slabs of columns, too, on which their fingerprints
depend. So a run that is resumed keeps the number for which it was planned, whatever workers it has by then. In a
new run the number follows the workers that join, but not those that leave: a plan that was made for more threads
needs less memory for a task.
"""

from __future__ import annotations

import logging
from pathlib import Path

from distmom.corpus.files.records import RecordFormat
from distmom.errors import StoreError

logger = logging.getLogger(__name__)

#: format of plan.json
PLANNED = RecordFormat("distmom-plan", 1, "remove the file")


class PlannedThreads:
    """The number of threads for which the passes of one run are planned.

    Parameters
    ----------
    path : Path or None
        File that keeps the number for drivers that resume the run; None for a run that cannot be resumed.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._n_threads: int | None = None
        self._is_resumed = False

    def given(self, n_present: int) -> int:
        """Return the number of threads for which a pass is planned, given the number of those that are present."""
        if self._n_threads is None:
            self._n_threads = self._read()
            self._is_resumed = self._n_threads > 0
        if not self._is_resumed and n_present > self._n_threads:
            self._n_threads = n_present
            if self._path is not None:
                PLANNED.write(self._path, {"n_threads": n_present})
        return self._n_threads

    def check(self) -> None:
        """Read the file, if there is one; a StoreError if it is damaged."""
        if self._path is not None and self._path.exists():
            _read(self._path)

    def _read(self) -> int:
        """Return the number for which an earlier driver has planned; 0 if there was none."""
        if self._path is None or not self._path.exists():
            return 0
        try:
            return _read(self._path)
        except StoreError as error:
            logger.warning("passes are planned again, and may have to be run again: %s", error)
            return 0


def _read(path: Path) -> int:
    """Return the number in a file; a StoreError if it is damaged."""
    n_threads = PLANNED.read(path).get("n_threads")
    if type(n_threads) is not int or n_threads < 1:
        raise StoreError(f"{path}: n_threads: expected a whole number from 1, got {n_threads!r}")
    return n_threads
