"""The records of who carries out a run, and how that ended.

A run is carried out by one process at a time, its driver, and every driver begins an epoch of the run::

    epochs/0000.json        the driver that was started last as a process of its own, where that is known
    epochs/0001.json        who began the epoch; written once
    epochs/0001.saving      digest of the model that the epoch has begun to put in its place
    epochs/0001.end.json    how the epoch ended; written once
    lease.json              beat of the driver and the progress of its pass, rewritten every ten seconds
    cancel                  a request to end the run

No record states that an epoch was lost: readers of the records find that its process is gone or its beat has
stopped. No decision compares clocks of different hosts.
"""

from __future__ import annotations

import errno
import os
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from distmom.corpus.files import lock
from distmom.corpus.files.commit import TEMPORARY, write_atomic
from distmom.corpus.files.lock import birth, is_alive, this_boot
from distmom.corpus.files.records import RecordFormat, from_record
from distmom.errors import StoreError

_REMEDY = "remove the run directory and start the run again"
#: format of the first record of an epoch
EPOCH = RecordFormat("distmom-epoch", 1, _REMEDY)
#: format of the record of how an epoch ended
END = RecordFormat("distmom-end", 1, _REMEDY)
#: format of lease.json
LEASE = RecordFormat("distmom-lease", 1, "remove the file if no process carries out the run")
#: format of cancel
CANCEL = RecordFormat("distmom-cancel", 1, "remove the file")
#: seconds between two beats of a driver
BEAT_S = lock.BEAT_S
#: seconds without a beat after which another process takes the run over
LEASE_S = lock.LEASE_S
#: seconds that a driver has to begin an epoch after it was started, in addition to the length of a lease
START_S = 60.0
#: seconds within which the process that started a driver records that the driver ended before its first epoch
RECORD_S = 3.0
#: seconds between two reads of the records
LOOK_S = 1.0
#: errors of file systems without hard links
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
#: longest text of an error that is kept
_TEXT = 10_000


@dataclass(frozen=True)
class Owner:
    """The process that began an epoch.

    Attributes
    ----------
    id : str
        Unique among all owners.
    host, boot : str
        Name of the host, and its boot (see `this_boot`).
    pid : int
    born : int or None
        When the process started (see `distmom.corpus.files.lock.birth`).
    since : str
        Time at which the epoch began, for messages.
    """

    id: str
    host: str
    boot: str
    pid: int
    born: int | None
    since: str

    def __post_init__(self) -> None:
        # A signal to another number would reach a whole process group.
        if not 0 < self.pid < 1 << 31:
            raise StoreError(f"pid: expected the number of a process, got {self.pid}")

    @classmethod
    def this(cls) -> Owner:
        """Return this process as the owner of a new epoch."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Owner:
        """Return a process of this host as an owner."""
        return cls(uuid.uuid4().hex, socket.gethostname(), this_boot(), pid, birth(pid), now())

    @property
    def is_here(self) -> bool:
        """Whether the process is, or was, one of this host since it was booted."""
        return (self.host, self.boot) == (socket.gethostname(), this_boot())

    @property
    def is_gone(self) -> bool:
        """Whether the process has provably ended."""
        return self.is_here and not is_alive(self.pid, self.born)


@dataclass(frozen=True)
class Beat:
    """The content of lease.json.

    Attributes
    ----------
    epoch, count : int
        The count grows with every beat.
    boot : str
        Boot of the host (see `this_boot`).
    at : float
        Monotonic clock of the host, which is comparable within one boot.
    time : float
        Seconds since 1970, for messages.
    name : str
        Name of the running pass; empty before the first.
    n_done, n_tasks : int
        Tasks of the pass that are done, and all of them.
    """

    epoch: int
    count: int
    boot: str
    at: float
    time: float
    name: str = ""
    n_done: int = 0
    n_tasks: int = 0

    @property
    def age_s(self) -> float | None:
        """Seconds since the beat by the clock of this host; None if it was made on another one."""
        return time.monotonic() - self.at if self.boot and self.boot == this_boot() else None


@dataclass(frozen=True)
class End:
    """How an epoch ended.

    Attributes
    ----------
    state : str
        ``done``, ``failed`` or ``cancelled``.
    exit_code : int
        Exit code of the process; negative for the signal that ended it.
    error, text : str
        Class and message of the error; empty if there was none.
    resume : str
        Command that resumes the run; empty if there is none.
    time : str
    restarted : bool, default False
        The driver has begun another epoch.
    result : dict or None, default None
        Path of the model and sha256 of its record; None if there is none.
    """

    state: str
    exit_code: int
    error: str = ""
    text: str = ""
    resume: str = ""
    time: str = ""
    restarted: bool = False
    result: Mapping[str, str] | None = None

    @property
    def shell_code(self) -> int:
        """Exit code as shells give it: 128 and the number of a signal, if one has ended the process."""
        return self.exit_code if self.exit_code >= 0 else 128 - self.exit_code


@dataclass(frozen=True)
class Records:
    """The content of the records of a run.

    Attributes
    ----------
    epoch : int
        Number of the last epoch that was begun; 0 if there is none.
    owner : Owner or None
        Who began it, or is about to begin the first one; None if its record cannot be read.
    end : End or None
        How it ended; None if it has not.
    beat : Beat or None
        The last one, which may be of another epoch.
    is_cancelled : bool, default False
        The end of the run has been requested. Matters where the last epoch ended with a restart only.
    """

    epoch: int
    owner: Owner | None
    end: End | None
    beat: Beat | None
    is_cancelled: bool = False


def now() -> str:
    """Return the time in UTC as text for messages."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def name_of(epoch: int, suffix: str = ".json") -> str:
    """Return the path of a record of an epoch, relative to the run."""
    return f"epochs/{epoch:04d}{suffix}"


def file_of(run: Path, epoch: int, suffix: str = ".json") -> Path:
    """Return the path of a record of an epoch."""
    return run / name_of(epoch, suffix)


def put_once(path: Path, content: bytes, *, durable: bool = True) -> bool:
    """Write a file unless it exists; return whether this call has written it.

    Readers see no file or the whole one, and of several writers one succeeds.
    """
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            # A network file system may have lost its answer, and have made the link.
            return os.stat(temporary).st_nlink > 1
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _create(path, content)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _create(path: Path, content: bytes) -> bool:
    """Write a file unless it exists, where there are no links; readers refuse a part of a record."""
    try:
        with open(path, "xb") as stream:
            stream.write(content)
    except FileExistsError:
        return False
    return True


def latest_epoch(run: Path) -> int:
    """Return the number of the last epoch that was begun; 0 if there is none."""
    try:
        names = os.listdir(run / "epochs")
    except FileNotFoundError:
        return 0
    return max(
        (int(name[:-5]) for name in names if name[:-5].isdecimal() and name.endswith(".json")), default=0
    )


def owner_of(run: Path, epoch: int) -> Owner | None:
    """Return who began an epoch, or was started to begin the first one; None if there is no readable record."""
    try:
        place = file_of(run, epoch)
        return from_record(Owner, EPOCH.read(place), str(place))
    except StoreError:
        return None


def record_start(run: Path, pid: int) -> None:
    """Record that a driver was started as a process of this host, instead of an earlier one."""
    content = EPOCH.dump(asdict(Owner.of(pid)))
    write_atomic(file_of(run, 0), content, survives_power_failure=False)


def end_of(run: Path, epoch: int) -> End | None:
    """Return how an epoch ended; None if it has not, or the record cannot be read."""
    try:
        place = file_of(run, epoch, ".end.json")
        return from_record(End, END.read(place), str(place))
    except StoreError:
        return None


def write_end(run: Path, epoch: int, end: End) -> bool:
    """Record how an epoch ended, unless that is recorded already; return whether this call has done so."""
    return put_once(file_of(run, epoch, ".end.json"), dump_end(end))


def dump_end(end: End) -> bytes:
    """Return the record of how an epoch ended, with the time."""
    return END.dump({**asdict(end), "text": end.text[:_TEXT], "time": end.time or now()})


def beat_of(run: Path) -> Beat | None:
    """Return the last beat; None if there is none."""
    try:
        place = run / "lease.json"
        return from_record(Beat, LEASE.read(place), str(place))
    except StoreError:
        return None


def records_of(run: Path) -> Records:
    """Return the content of the records of a run."""
    epoch = latest_epoch(run)
    end = end_of(run, epoch)
    return Records(epoch, owner_of(run, epoch), end, beat_of(run) if epoch else None, is_cancelled(run))


def dump_request() -> bytes:
    """Return a request of this process to end a run."""
    return CANCEL.dump({"host": socket.gethostname(), "pid": os.getpid(), "time": now()})


def request_cancel(run: Path) -> bool:
    """Request the end of a run; return whether this is the first request."""
    return put_once(run / "cancel", dump_request())


def is_cancelled(run: Path) -> bool:
    """Whether the end of a run has been requested."""
    return (run / "cancel").exists()


def saved_digests(run: Path) -> set[str]:
    """Return the digests of the models that drivers have begun to put in place; none once one has ended well."""
    epochs = range(1, latest_epoch(run) + 1)
    files = [place for epoch in epochs if (place := file_of(run, epoch, ".saving")).exists()]
    ends = [end_of(run, epoch) for epoch in epochs] if files else []
    if any(end is not None and end.state == "done" for end in ends):
        return set()
    return {place.read_text() for place in files}


def forget_request(run: Path) -> None:
    """Remove a request to end a run."""
    with suppress(FileNotFoundError):
        (run / "cancel").unlink()


def check_records(run: Path) -> list[str]:
    """Read all records of the epochs of a run, and return descriptions of the damaged ones."""
    kinds = {
        **dict.fromkeys((run / "epochs").glob("[!.]*.json"), EPOCH),
        **dict.fromkeys((run / "epochs").glob("[!.]*.end.json"), END),
        run / "lease.json": LEASE,
        run / "cancel": CANCEL,
    }
    problems = []
    for path, kind in sorted(kinds.items()):
        try:
            if path.exists():
                kind.read(path)
        except StoreError as error:
            problems.append(str(error))
    return problems
