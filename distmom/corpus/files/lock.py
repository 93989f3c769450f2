"""Lock files that let one process at a time write to a location, even if several hosts share it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import TracebackType

from distmom.errors import TakenOverError, UsageError

_log = logging.getLogger(__name__)

#: seconds between two beats of a process that holds something
BEAT_S = 10.0
#: seconds without a beat after which a process that cannot be observed from here counts as ended
LEASE_S = 60.0
#: seconds between two reads of a beat
_LOOK_S = 0.5


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, as its file states.

    Attributes
    ----------
    host : str
    pid : int
    born : int or None
        When the process started (see `birth`).
    since : str
        Time of the lock, for messages.
    boot : str
        Boot and namespace of processes of the host (see `this_boot`); empty in files of earlier versions.
    id : str
        Unique among all locks; empty in files of earlier versions, which have no beats.
    """

    host: str
    pid: int
    born: int | None
    since: str
    boot: str = ""
    id: str = ""

    @classmethod
    def this(cls) -> Holder:
        """Return this process as the holder of a new lock."""
        pid, since = os.getpid(), datetime.now(UTC).isoformat(timespec="seconds")
        return cls(socket.gethostname(), pid, birth(pid), since, this_boot(), uuid.uuid4().hex)

    @classmethod
    def parse(cls, content: bytes) -> Holder | None:
        """Return the holder that a file states; None if it cannot be read, and `_NAMELESS` if it was cut."""
        if _CUT.fullmatch(content):
            return _NAMELESS
        try:
            entry = json.loads(content)
            born, text = entry["born"], {name: str(entry.get(name, "")) for name in ("boot", "id")}
            pid = int(entry["pid"])
            return cls(
                str(entry["host"]), pid, None if born is None else int(born), str(entry["since"]), **text
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    @property
    def is_here(self) -> bool:
        """Whether this process can see whether the holder is running."""
        return self.host == socket.gethostname() and self.boot in ("", this_boot())

    def __str__(self) -> str:
        if self == _NAMELESS:
            return "a process that has not written its name"
        return f"process {self.pid} on host {self.host}"


#: an empty lock file, or the beginning of one
_CUT = re.compile(rb'|\{"host": "[^}]*')
#: the holder of an incomplete lock file: its process is still writing it, or ended before it was complete
_NAMELESS = Holder("", 0, None, "an unknown time", id="nameless")


class Lock:
    """A lock file that allows one process at a time to write to a location; a context manager.

    The holder touches the file every `BEAT_S`. A lock left by a process of this host that has ended is taken over
    at once. One of another host, or of another namespace of processes, is taken over if its file has not been
    touched for `LEASE_S` by the clock of the process that waits; no clocks are compared. So is a file that is
    empty or cut: its holder may have ended before it wrote its name. All log a warning.

    Parameters
    ----------
    path : path-like
        The lock file; its directory must exist.
    """

    # Not filelock.SoftFileLock, which works with such a file too: as measured with release 4.2.11, its error does
    # not name a holder on this host and never says since when, it takes over without a warning, and after two
    # seconds it takes over a file that it cannot read, although its owner may still run. Locks of the system
    # (flock) name nobody, and some network file systems do not have them.
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        self._own: Holder | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Acquire the lock; UsageError with host, process and time of the current holder if there is one."""
        own = Holder.this()
        while True:
            try:
                descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                self._remove_stale()
                continue
            try:
                os.write(descriptor, json.dumps(asdict(own)).encode())
                os.fsync(descriptor)
            except BaseException:
                # On a full disk the file would name no owner, and nobody could take it over.
                self.path.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
            break
        self._own = own
        self._ended.clear()
        self._thread = threading.Thread(target=self._beat, name="distmom-lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Release the lock, unless it was taken over."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self.is_held():
            self.path.unlink(missing_ok=True)
        self._own = None

    def is_held(self) -> bool:
        """Return whether this object holds the lock: it was acquired, and nobody has taken it over since."""
        found = self._look()
        return self._own is not None and found is not None and found[0] == self._own

    def check(self) -> None:
        """Check that the lock is held.

        Raises
        ------
        TakenOverError
            If another process has taken it over, or its file was removed.
        """
        if self.is_held():
            return
        found = self._look()
        by = "the file was removed" if found is None else f"it was taken over by {found[0] or 'another one'}"
        raise TakenOverError(f"{self.path}: this process was taken to have ended: {by}")

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            # Writers report a file system that fails for a while.
            with suppress(OSError):
                if not self.is_held():
                    return
                os.utime(self.path)

    def _look(self) -> tuple[Holder | None, int] | None:
        """Return the holder and the time of the last beat in nanoseconds; None without a file.

        The file is opened for every look, as network file systems may keep the times of files for a minute.
        """
        try:
            with open(self.path, "rb") as stream:
                return Holder.parse(stream.read(4096)), os.fstat(stream.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None

    def _remove_stale(self) -> None:
        """Remove the file of a holder that has ended; an error if it is running.

        Returns with the file in place if there is another holder by then.
        """
        found = self._look()
        if found is None:
            return
        holder = found[0]
        if holder is None:
            raise UsageError(
                f"{self.path}: is a lock file with an unreadable owner; remove it if nothing writes here"
            )
        if holder.is_here:
            is_running, sign = is_alive(holder.pid, holder.born), "which is no longer running"
        elif not holder.id:
            is_running, sign = True, ""
        else:
            now = self._observed(holder, found)
            if now is None or now[0] != holder:
                return
            is_running, sign = now != found, f"which has shown no sign of life for {LEASE_S:.0f} s"
        if is_running:
            raise UsageError(
                f"{self.path}: is held by {holder} since {holder.since}; wait for it to finish, "
                "or remove the file if that process no longer exists"
            )
        self._remove(found, f"{holder}, {sign}")

    def _observed(self, holder: Holder, found: tuple[Holder | None, int]) -> tuple[Holder | None, int] | None:
        """Wait until the file changes, for at most `LEASE_S`, and return its content then."""
        _log.warning(
            "%s: waiting for at most %.0f s, as it is not known whether %s is still running",
            self.path, LEASE_S, holder,
        )  # fmt: skip
        ends, now = time.monotonic() + LEASE_S, self._look()
        while now == found and time.monotonic() < ends:
            time.sleep(min(_LOOK_S, LEASE_S / 10))
            now = self._look()
        return now

    def _remove(self, stale: tuple[Holder | None, int], described: str) -> None:
        """Remove the file, unless it has changed since it was found stale."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            # Of several processes that find the same stale file, only the one that holds this flock and still
            # finds that file under its name may remove it. The time distinguishes a file without a name from the
            # new one of a process that has been faster, and has not written its name yet.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if self._look() == stale:
                _log.warning("%s: taking over the lock of %s", self.path, described)
                self.path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


@cache
def this_boot() -> str:
    """Return a text that distinguishes boots of a host and process namespaces; empty where none is reported."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def birth(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None where the system does not report it."""
    fields = _status(pid)
    return None if fields is None else int(fields[19])


def _status(pid: int) -> list[bytes] | None:
    """Return the fields that the system reports on a process, from its state on; None if it reports none."""
    try:
        # The second field is the process name in parentheses, which may itself contain spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


def is_alive(pid: int, born: int | None) -> bool:
    """Whether a process that started at ``born`` (see `birth`) still runs on this host."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        # No process has a number that the system cannot represent, such as one in a crafted file.
        return False
    except PermissionError:
        pass
    fields = _status(pid)
    if fields is None:
        return True
    # The process may have ended without its parent having taken note, and its id may have been reused since.
    return fields[0] not in (b"Z", b"X") and born in (None, int(fields[19]))
