"""The record of a job, ``job.json``, and the directory in which jobs are found."""

from __future__ import annotations

import getpass
import math
import operator
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distmom.corpus.files.records import RecordFormat, from_record
from distmom.corpus.files.storage import is_url, place_of
from distmom.engine.directory.epochs import now, put_once
from distmom.engine.environment import environment
from distmom.errors import StoreError, UsageError

#: format of job.json
JOB = RecordFormat("distmom-job", 2, "submit the job again", older=(1,))
#: commands that can be submitted
COMMANDS = ("fit", "update", "moments", "ingest", "predict", "transform", "evaluate")
#: those that keep their passes in the directory of the job
WITH_RUN = ("fit", "update", "moments")
#: where a driver runs: on the host of the scheduler, on that of a worker, where SLURM starts it, or on this one,
#: where a process waits for it
DRIVERS = ("scheduler", "worker", "slurm", "here")
#: environment variable with the place of jobs, a directory or a URL
PLACE = "DISTMOM_JOBS"
#: directory of jobs where none is given
DIRECTORY = "distmom-jobs"


@dataclass(frozen=True)
class JobRecord:
    """A submitted command, with its settings.

    Attributes
    ----------
    id : str
    arguments : list of str
        The command and its arguments, without those that specify where it runs.
    scheduler : str
        Address of the scheduler.
    folder : str
        Directory in which the command runs.
    run : str
        Directory of the job where the command runs.
    url : str
        URL below which the driver publishes the records; empty if it does not.
    share : float
    priority : int
        See `distmom.engine.executors.connections.sharing`.
    restarts : int
        How often the command is restarted after a failure of the cluster.
    driver : str
        Where the driver runs, one of `DRIVERS`.
    tls : dict of str to str
        Paths of certificates and key; see `distmom.engine.executors.connections.certified`.
    user, host, created : str
        Who submitted the job, on which host, and when.
    versions : dict of str to str
        Versions of the software that submitted the job.
    """

    id: str
    arguments: list[str]
    scheduler: str
    folder: str
    run: str
    url: str = ""
    share: float = 1.0
    priority: int = 0
    restarts: int = 0
    driver: str = "scheduler"
    tls: dict[str, str] = field(default_factory=dict)
    user: str = ""
    host: str = ""
    created: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def dump(self) -> bytes:
        """Return the content of ``job.json``."""
        return JOB.dump(asdict(self))

    def command_line(self, run: Path, scheduler: str | None = None) -> list[str]:
        """Return the arguments of ``distmom`` with which a driver carries the job out."""
        place = ["--run", str(run)] if self.arguments[0] in WITH_RUN else []
        return [*self.arguments, *place, "--scheduler", scheduler or self.scheduler]


def new_record(
    arguments: Sequence[str | os.PathLike[str]],
    scheduler: str,
    share: float = 1.0,
    priority: int = 0,
    restarts: int = 0,
    driver: str = "scheduler",
    tls: Mapping[str, str | None] | None = None,
    directory: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    url: str | None = None,
) -> JobRecord:
    """Return the record of a new job; a UsageError if it cannot be one.

    See `distmom.jobs.submit` for the parameters; ``tls`` has the names of
    `distmom.engine.executors.connections.certified`.
    """
    if isinstance(arguments, str):
        raise UsageError(f"arguments: expected a list of words, got the text {arguments[:60]!r}")
    for word in arguments:
        if not isinstance(word, str | os.PathLike):
            raise UsageError(f"arguments: expected texts, got {word!r:.60} ({type(word).__name__})")
    words = [os.fsdecode(word) for word in arguments]
    if not isinstance(scheduler, str):
        raise UsageError(f"scheduler: expected the address of a Dask scheduler, got {scheduler!r:.60}")
    if not words or words[0] not in COMMANDS:
        got = repr(words[0]) if words else "none"
        raise UsageError(f"command: expected one of {', '.join(COMMANDS)}, got {got}")
    if driver not in DRIVERS:
        raise UsageError(f"driver: expected one of {', '.join(DRIVERS)}, got {driver!r}")
    share, priority, restarts = _share(share), _whole("priority", priority), _whole("restarts", restarts)
    if restarts < 0:
        raise UsageError(f"restarts: expected at least 0, got {restarts}")
    for argument in words:
        option = argument.partition("=")[0]
        if option in ("--run", "--scheduler", "--workers"):
            raise UsageError(f"{option}: expected none, as the job fixes it")
        if is_url(argument) and ("@" in urlsplit(argument).netloc or urlsplit(argument).query):
            raise UsageError("a URL must not contain keys or a query: they would be stored with the job")
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = ""
    name = f"{words[0]}-{stamp}-{secrets.token_hex(3)}"
    jobs, where = jobs_place(), Path(folder or ".").absolute()
    if url is None and isinstance(jobs, str):
        url = f"{jobs}/{name}"
    if url is not None and not ((url := place_of(url)).startswith("s3://") and urlsplit(url).path):
        raise UsageError(f"{url}: cannot hold a job: expected s3://BUCKET/PREFIX")
    if isinstance(jobs, str) or url is not None:
        run = where / (directory or f"{DIRECTORY}/{name}")
    else:
        run = jobs / name if directory is None else Path(directory).absolute()
    # A host that manages a job by its URL has other files.
    paths = {} if url is not None else dict(tls or {})
    return JobRecord(
        name, words, scheduler, str(where), str(run), url or "", share,
        priority, restarts, driver,
        {key: str(Path(path).absolute()) for key, path in paths.items() if path is not None},
        user, socket.gethostname(), now(), environment().versions(),
    )  # fmt: skip


def _share(value: Any) -> float:
    share = float(value) if isinstance(value, Real) else math.nan
    if not 0.0 < share <= 1.0:
        raise UsageError(f"share: expected more than 0 and at most 1, got {value!r}")
    return share


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{name}: expected a whole number, got {value!r:.60}") from None


def write_record(run: Path, record: JobRecord) -> None:
    """Write the record of a job once; a UsageError if the directory is used already."""
    run.mkdir(parents=True, exist_ok=True)
    if any(run.iterdir()) or not put_once(run / "job.json", record.dump()):
        raise UsageError(f"{run}: exists and is not empty")


def check_directory(run: Path) -> None:
    """Check that a directory is that of a job; a UsageError otherwise."""
    if not (run / "job.json").exists():
        raise UsageError(f"{run}: is not the directory of a job")


def read_record(run: Path) -> JobRecord:
    """Read the record of a job.

    Raises
    ------
    UsageError
        If there is none.
    StoreError
        If it is damaged.
    """
    check_directory(run)
    # Version 1 does not name the directory in which it is, and has no URL.
    entries = {"run": str(run), "url": "", **JOB.read(run / "job.json")}
    return _checked(entries, str(run / "job.json"))


def parse_record(content: bytes, place: str) -> JobRecord:
    """Return the record of a job from the content of ``job.json``; a StoreError if it is damaged."""
    return _checked(JOB.parse(place, content)[0], place)


def _checked(entries: Mapping[str, Any], place: str) -> JobRecord:
    record = from_record(JobRecord, entries, place)
    if not record.arguments or record.arguments[0] not in COMMANDS:
        raise StoreError(f"{place}: arguments: expected one of {', '.join(COMMANDS)} and its arguments")
    return record


def jobs_place(place: str | os.PathLike[str] | None = None) -> Path | str:
    """Return the directory of jobs, or their URL: as given, or ``$DISTMOM_JOBS``, or ``distmom-jobs`` here."""
    found = place or os.environ.get(PLACE) or DIRECTORY
    return place_of(found) if is_url(found) else Path(found).absolute()


def find_job(job: str | os.PathLike[str]) -> Path | str:
    """Return the directory or the URL of a job, given that or its id; a UsageError if there is none."""
    if is_url(job):
        return place_of(job)
    jobs = jobs_place()
    for path in (Path(job).absolute(), *([] if isinstance(jobs, str) else [jobs / job])):
        if (path / "job.json").exists() or (path / "epochs").exists():
            return path
    # An id is no path.
    if isinstance(jobs, str) and (name := os.fspath(job)) == os.path.basename(name):
        return f"{jobs}/{name}"
    raise UsageError(f"{job}: there is no such job, neither as a directory nor in {jobs}")
