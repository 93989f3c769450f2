"""Where the records of a job are: a directory, or a prefix in an object store."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TypeVar

from distmom.corpus.files.records import MAX_RECORD_BYTES, RecordFormat, from_record
from distmom.corpus.files.storage import (
    PATIENT,
    ConflictError,
    MissingError,
    ObjectStorage,
    is_url,
    place_of,
)
from distmom.engine.directory import epochs
from distmom.engine.directory.epochs import END, EPOCH, LEASE, Beat, End, Owner, Records
from distmom.errors import StoreError, UsageError
from distmom.jobs.record import JobRecord, check_directory, parse_record, read_record

_T = TypeVar("_T")

#: size in bytes of the objects that hold the output of a job
OUTPUT_BYTES = 64 << 10
#: seconds between two reads of an object store
OBJECTS_S = 2.0
#: bytes of a file that are read at once
_READ_BYTES = 1 << 20


class JobPlace(ABC):
    """The records of one job.

    Attributes
    ----------
    name : str
        The path or URL.
    look_s : float
        Seconds between two reads while waiting.
    """

    name: str
    look_s: float

    @abstractmethod
    def record(self) -> JobRecord:
        """Read the record of the job; a UsageError if there is none, a StoreError if it is damaged."""

    @abstractmethod
    def records(self) -> Records:
        """Read the records of the epochs; a UsageError if the directory or the objects of the job were removed."""

    @abstractmethod
    def output(self, start: int) -> bytes:
        """Return the next part of the output of the job from an offset in bytes; empty if there is no more yet."""

    @abstractmethod
    def request_cancel(self) -> None:
        """Request the end of the job."""

    @abstractmethod
    def forget_request(self) -> None:
        """Remove a request to end the job."""

    @abstractmethod
    def write_end(self, epoch: int, end: End) -> None:
        """Record how an epoch ended, unless that is recorded already."""


class DirectoryPlace(JobPlace):
    """The records of a job in its directory.

    Parameters
    ----------
    directory : Path
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.name = directory, str(directory)
        self.look_s = epochs.LOOK_S / 4

    def record(self) -> JobRecord:
        return read_record(self.directory)

    def records(self) -> Records:
        # Without its directory, a job would be queued for ever.
        check_directory(self.directory)
        return epochs.records_of(self.directory)

    def output(self, start: int) -> bytes:
        try:
            with open(self.directory / "out.txt", "rb") as stream:
                stream.seek(start)
                return stream.read(_READ_BYTES)
        except FileNotFoundError:
            return b""

    def request_cancel(self) -> None:
        epochs.request_cancel(self.directory)

    def forget_request(self) -> None:
        epochs.forget_request(self.directory)

    def write_end(self, epoch: int, end: End) -> None:
        (self.directory / "epochs").mkdir(exist_ok=True)
        epochs.write_end(self.directory, epoch, end)


class ObjectPlace(JobPlace):
    """The records of a job below a URL, where its driver publishes them.

    Objects have the names of the files of the directory, but ``out/000000``, ``out/000001``, ... hold what the job
    has printed, `OUTPUT_BYTES` each. The records of the job and its epochs are created once, and the beat and the
    output are replaced, by conditional requests.

    Parameters
    ----------
    url : str
        As returned by `place_of`.
    """

    def __init__(self, url: str) -> None:
        self.name, self.look_s = url, OBJECTS_S
        self.storage = ObjectStorage(url, PATIENT)
        self._epoch = 0
        self._owner: bytes | None = None

    def record(self) -> JobRecord:
        content = self._read("job.json")
        if content is None:
            raise UsageError(f"{self.name}: there is no such job")
        record = parse_record(content, f"{self.name}/job.json")
        if record.url != self.name:
            raise StoreError(f"{self.name}/job.json: url: expected {self.name}, got {record.url}")
        return record

    def create(self, content: bytes) -> None:
        """Write the record of the job; a UsageError if there is another one."""
        if not self.put_once("job.json", content):
            raise UsageError(f"{self.name}: exists and is another job")

    def remove(self) -> None:
        """Remove the records of a job that was not started."""
        self.storage.delete("job.json")
        self.storage.delete(epochs.name_of(0))

    def records(self) -> Records:
        # Records of epochs are numbered without gaps, and stay.
        while (owner := self._read(epochs.name_of(self._epoch + 1))) is not None:
            self._epoch, self._owner = self._epoch + 1, owner
        # Before the first epoch, the process that was started to begin it, which may be replaced by another one.
        owner = self._owner if self._epoch else self._read(epochs.name_of(0))
        end = _parsed(End, END, self._read(epochs.name_of(self._epoch, ".end.json")))
        beat = _parsed(Beat, LEASE, self._read("lease.json")) if self._epoch else None
        if not self._epoch and end is None and self._read("job.json") is None:
            # Without its objects, a job would be queued for ever.
            raise UsageError(f"{self.name}: there is no such job")
        asked = end is not None and end.restarted and self.is_cancelled()
        return Records(self._epoch, _parsed(Owner, EPOCH, owner), end, beat, asked)

    def output(self, start: int) -> bytes:
        number, skipped = divmod(start, OUTPUT_BYTES)
        return (self._read(output_name(number)) or b"")[skipped:]

    def request_cancel(self) -> None:
        self.put_once("cancel", epochs.dump_request())

    def forget_request(self) -> None:
        self.storage.delete("cancel")

    def is_cancelled(self) -> bool:
        """Whether the end of the job has been requested."""
        return self._read("cancel") is not None

    def write_end(self, epoch: int, end: End) -> None:
        self.put_once(epochs.name_of(epoch, ".end.json"), epochs.dump_end(end))

    def put_once(self, name: str, content: bytes) -> bool:
        """Write an object unless it exists; return whether it has that content now."""
        try:
            self.storage.write_if(name, content, None)
        except ConflictError:
            # A request that was repeated because its response was lost finds the object that it created itself.
            return self._read(name) == content
        return True

    def _read(self, name: str) -> bytes | None:
        try:
            return self.storage.read_bytes(name, MAX_RECORD_BYTES)
        except MissingError:
            return None


def output_name(number: int) -> str:
    """Return the name of an object with a part of the output of a job."""
    return f"out/{number:06d}"


def _parsed(kind: type[_T], form: RecordFormat, content: bytes | None) -> _T | None:
    """Return a record; None if there is none, or it cannot be read."""
    try:
        return None if content is None else from_record(kind, form.parse(form.name, content)[0], form.name)
    except StoreError:
        return None


def open_place(place: str | os.PathLike[str]) -> JobPlace:
    """Return the place of a job: where its records are published, or else its directory.

    Parameters
    ----------
    place : path-like
        A URL, or the directory of a job.

    Raises
    ------
    UsageError, StoreError
        If the directory is not that of a job, or its record is damaged.
    """
    if is_url(place):
        return ObjectPlace(place_of(place))
    directory = Path(place).absolute()
    url = read_record(directory).url
    return ObjectPlace(url) if url else DirectoryPlace(directory)
