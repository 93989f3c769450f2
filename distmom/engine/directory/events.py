"""Events of passes, which observers receive and the log of a run, ``log.jsonl``, records.

The log has one line of JSON per event: ``version``, ``time`` (seconds since 1970), ``event`` (the name of the
class), and the fields of the event. Lines are appended by the process that holds the lock of the run, so the log
of a run that was resumed has the events of all its processes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from distmom.errors import StoreError

#: version of the events; incremented whenever an event or a field changes
EVENTS_VERSION = 2
#: versions that `read_log` accepts
_READ = (1, EVENTS_VERSION)


@dataclass(frozen=True)
class PassStarted:
    """A pass has started.

    Attributes
    ----------
    name : str
        Name of the pass.
    n_documents : int
        Number of documents of the corpus, in which one that is split across shards counts as its parts.
    n_groups, n_slabs : int
        Numbers of groups of shards and of slabs of sums; a task adds up one group in one slab.
    """

    name: str
    n_documents: int
    n_groups: int
    n_slabs: int


@dataclass(frozen=True)
class KernelsMissing:
    """A kernel is not in the cache, so tasks wait until it is compiled; at most once per pass.

    Attributes
    ----------
    name : str
        Name of the pass, or ``decomposition``.
    """

    name: str


@dataclass(frozen=True)
class GroupDone:
    """A task has added a group of shards.

    Attributes
    ----------
    name : str
        Name of the pass.
    n_documents : int
        Number of documents of the group, divided by the number of slabs.
    """

    name: str
    n_documents: int


@dataclass(frozen=True)
class GroupsFound:
    """Groups of a pass that was interrupted were found done; for each there is a `GroupDone` too.

    Attributes
    ----------
    name : str
        Name of the pass.
    n_found, n_tasks : int
        Number of tasks that were found done, and of all tasks.
    """

    name: str
    n_found: int
    n_tasks: int


@dataclass(frozen=True)
class PassDone:
    """A pass has been committed, or was committed already.

    Attributes
    ----------
    name : str
        Name of the pass.
    n_documents : int
        Number of documents of the corpus.
    seconds : float
        Wall time.
    resumed : bool
        Whether the pass was committed already.
    """

    name: str
    n_documents: int
    seconds: float
    resumed: bool


Event = PassStarted | KernelsMissing | GroupDone | GroupsFound | PassDone
Observer = Callable[[Event], None]

#: the events by name
EVENTS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (PassStarted, KernelsMissing, GroupDone, GroupsFound, PassDone)
}


@dataclass(frozen=True)
class Logged:
    """An event in a log.

    Attributes
    ----------
    time : float
        Seconds since 1970.
    event : Event
    """

    time: float
    event: Event

    def to_json(self) -> dict[str, Any]:
        """Return the line of the log as JSON values."""
        return {
            "version": EVENTS_VERSION, "time": self.time, "event": type(self.event).__name__, **asdict(self.event)
        }  # fmt: skip


class EventLog:
    """Appends events to the log of a run; an observer, and a context manager that closes the file.

    Parameters
    ----------
    path : path-like
        Path of the log. An incomplete last line, left by a process that was killed, is removed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = open(path, "ab+")  # noqa: SIM115 (closed on exit)
        # Events of a cluster arrive in a thread of the client.
        self._lock = threading.Lock()
        self._file.seek(0)
        content = self._file.read()
        self._file.truncate(content.rfind(b"\n") + 1)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __call__(self, event: Event) -> None:
        """Append one event."""
        line = {
            "version": EVENTS_VERSION,
            "time": time.time(),
            "event": type(event).__name__,
            **asdict(event),
        }
        with self._lock:
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()


def read_log(path: str | os.PathLike[str]) -> list[Logged]:
    """Read the log of a run; an incomplete last line is left out, and a missing file has no events.

    Raises
    ------
    StoreError
        If a line is not an event of a known version.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [_parsed(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def _parsed(line: bytes, place: str) -> Logged:
    try:
        found = json.loads(line)
        version = found.pop("version")
        at, name = float(found.pop("time")), found.pop("event")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreError(f"{place}: expected an event, got {line[:80]!r}") from error
    if version not in _READ:
        raise StoreError(f"{place}: version: expected {EVENTS_VERSION}, got {version!r}")
    kind = EVENTS.get(name)
    expected = None if kind is None else {f.name: f.type for f in fields(kind)}
    if kind is None or {key: type(value).__name__ for key, value in found.items()} != expected:
        raise StoreError(f"{place}: expected an event, got {line[:80]!r}")
    return Logged(at, kind(**found))
