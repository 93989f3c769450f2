"""Models and outputs in an object store: uploaded whole, and downloaded to be read.

Layout below the URL::

    contents.json     kind, and size and sha256 of every file; written last, with a checksum
    UPLOAD/...        the files of the directory; every upload has a name of its own

``contents.json`` is created, or replaced, by one conditional request. So readers find one upload or another, never
a part of one; of several writers one succeeds.

The files of all other uploads that were there before that request are removed after it: those of the upload that
it replaces, and of uploads that were killed. An upload that is still running fails: its request requires the
version of ``contents.json`` that it found before it wrote its first file, and that version has been replaced.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from distmom.corpus.files.records import MAX_RECORD_BYTES, RecordFormat, are_files, describe_files
from distmom.corpus.files.space import space_explained
from distmom.corpus.files.storage import (
    FIRST,
    PATIENT,
    AccessError,
    ConflictError,
    MissingError,
    ObjectStorage,
    is_url,
    place_of,
)
from distmom.errors import ELSEWHERE, StoreError, UsageError

#: file that makes the objects below a URL a model or an output
CONTENTS = "contents.json"
#: prefix of the names of uploads, which distinguishes them from other folders
_PREFIX = "upload-"
_DIGITS = "[0-9a-f]{32}"
_FORMAT = RecordFormat("distmom-directory", 1, "write it again")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contents:
    """The contents of a URL.

    Attributes
    ----------
    kind : str
        ``"model"``, or a kind of output.
    upload : str
        Name of the upload, below which its files are.
    files : dict
        ``size`` and ``sha256`` of every file, by path relative to the directory.
    """

    kind: str
    upload: str
    files: dict[str, dict[str, Any]]

    @property
    def n_bytes(self) -> int:
        """Size of all files in bytes."""
        return sum(entry["size"] for entry in self.files.values())

    @property
    def keys(self) -> list[str]:
        """Names of the objects of all files, relative to the URL."""
        return [f"{self.upload}/{key}" for key in self.files]


def find_contents(place: Any) -> Contents | None:
    """Return the contents of a URL, or None if it holds neither a model nor an output.

    Raises
    ------
    UsageError
        If access is refused, or there is no such bucket.
    StoreError
        If the record is damaged, or the store does not respond.
    """
    storage = ObjectStorage(place_of(place), FIRST)
    found = _read(storage)
    return None if found is None else _parsed(storage, found[0])


def read_contents(place: Any, kind: str) -> Contents:
    """Return the contents of a URL; errors as in `find_contents`, and a UsageError for another kind."""
    contents, url = find_contents(place), place_of(place)
    if contents is None:
        raise UsageError(
            f"{url}: holds no {kind}: there is no {CONTENTS} below it; if writing was interrupted, write it again"
        )
    if contents.kind != kind:
        raise UsageError(f"{url}: expected {kind}, got {contents.kind}")
    return contents


def check_vacant(place: Any, kind: str, overwrite: bool) -> None:
    """Check that a directory can be uploaded to a URL; a UsageError otherwise.

    Parameters
    ----------
    place : str
        The URL.
    kind : str
        Kind of the directory.
    overwrite : bool
        Whether a directory of the same kind may be replaced.
    """
    _find_replaced(place_of(place), kind, overwrite)


def upload_directory(directory: Path, place: Any, kind: str, *, overwrite: bool = False) -> None:
    """Upload the files of a directory so that the URL holds either the whole new model or output, or none of it.

    Parameters
    ----------
    directory : Path
    place : str
        The URL.
    kind : str
        ``"model"``, or a kind of output.
    overwrite : bool, default False
        Replace a directory of the same kind. If several processes do so at once, one succeeds.

    Raises
    ------
    UsageError
        If the URL may not be written to, or another process has written to it meanwhile.
    StoreError
        If an object cannot be written.
    """
    url = place_of(place)
    old, tag = _find_replaced(url, kind, overwrite)
    storage = ObjectStorage(url, PATIENT)
    new = Contents(kind, f"{_PREFIX}{uuid.uuid4().hex}", describe_files(directory))
    stale = set[str]() if old is None else set(old.keys)
    try:
        storage.each(lambda key: storage.write_file(f"{new.upload}/{key}", directory / key), new.files)
        # Keys that may not list a store may still write to it.
        with suppress(StoreError):
            stale.update(storage.keys_in(_PREFIX + _DIGITS))
    except BaseException:
        _remove(ObjectStorage(url, FIRST), new.keys)
        raise
    content = _FORMAT.dump(vars(new))
    try:
        storage.write_if(CONTENTS, content, tag)
    except ConflictError as error:
        # A request that was repeated because its response was lost finds the object that it created itself.
        if storage.read_bytes(CONTENTS, MAX_RECORD_BYTES) != content:
            _remove(storage, new.keys)
            raise UsageError(
                f"{url}: another process has written there meanwhile; choose another location or overwrite it"
            ) from error
    _remove(storage, stale.difference(new.keys))


@contextmanager
def local_directory(place: Any, kind: str, only: Collection[str] | None = None) -> Iterator[Path]:
    """Provide the files of a model or an output as a local directory; a context manager.

    Parameters
    ----------
    place : path-like
        A local directory, which is used as it is, or a URL, whose files are downloaded to a temporary directory.
        Arrays that are memory-mapped stay valid after its removal.
    kind : str
        Kind of a directory at a URL.
    only : collection of str, optional
        Names of the files that are downloaded if they exist; all by default.

    Yields
    ------
    Path

    Raises
    ------
    UsageError
        If the URL holds nothing of that kind.
    StoreError
        If an object is missing or differs from its digest.
    """
    if not is_url(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="distmom-", ignore_cleanup_errors=True) as temporary:
        root = Path(temporary) / "files"
        with space_explained(root):
            _download(place, kind, only, root)
        try:
            yield root
        except (StoreError, UsageError) as error:
            if type(error) not in (StoreError, UsageError):
                raise
            raise type(error)(str(error).replace(str(root), place_of(place))) from error


def _download(place: Any, kind: str, only: Collection[str] | None, root: Path) -> None:
    storage, contents = ObjectStorage(place_of(place), PATIENT), read_contents(place, kind)
    while True:
        names = [name for name in contents.files if only is None or name in only]
        root.mkdir()
        try:
            storage.each(partial(_fetch, storage, contents, root), names)
            return
        except StoreError:
            newer = read_contents(place, kind)
            if newer == contents:
                raise
            # It was replaced while it was read.
            contents = newer
            shutil.rmtree(root)


def _fetch(storage: ObjectStorage, contents: Contents, root: Path, name: str) -> None:
    """Download one file; StoreError if it is missing or differs."""
    entry, target, digest = contents.files[name], root / name, hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as stream:
        for part in storage.read_parts(f"{contents.upload}/{name}", entry["size"]):
            digest.update(part)
            stream.write(part)
    if (got := digest.hexdigest()) != entry["sha256"]:
        place = f"{storage.root}/{contents.upload}/{name}"
        raise StoreError(f"{place}: sha256: expected {entry['sha256'][:12]}, got {got[:12]}")


def _read(storage: ObjectStorage) -> tuple[bytes, str | None] | None:
    """Read ``contents.json`` and the tag of its version; None if there is none."""
    try:
        return storage.read_tagged(CONTENTS, MAX_RECORD_BYTES)
    except MissingError:
        return None
    except AccessError as error:
        raise UsageError(f"{storage.root}: cannot be used: {error.reason}") from error


def _parsed(storage: ObjectStorage, content: bytes) -> Contents:
    place = f"{storage.root}/{CONTENTS}"
    record = _FORMAT.parse(place, content)[0]
    kind, upload, files = (record.get(name) for name in ("kind", "upload", "files"))
    if (
        not isinstance(kind, str)
        or re.fullmatch(f"({_PREFIX})?{_DIGITS}", str(upload)) is None
        or not are_files(files)
    ):
        raise StoreError(f"{place}: expected kind, name and files of an upload, got other entries")
    return Contents(kind, str(upload), dict(files or {}))


def _find_replaced(url: str, kind: str, overwrite: bool) -> tuple[Contents | None, str | None]:
    """Return the contents that a new upload would replace, None if unknown, and the tag of their record."""
    if not url.startswith("s3://"):
        raise UsageError(f"{url}: cannot be a destination: expected a local path or s3://BUCKET/PREFIX")
    storage = ObjectStorage(url, FIRST)
    found = _read(storage)
    with suppress(MissingError):
        storage.read_bytes("manifest.json", MAX_RECORD_BYTES)
        raise UsageError(f"{url}: exists and is a corpus")
    if found is None:
        return None, None
    if not overwrite:
        raise UsageError(f"{url}: already exists; {ELSEWHERE}")
    try:
        old = _parsed(storage, found[0])
    except StoreError as error:
        _log.warning("%s; files of what is replaced may remain below %s", error, url)
        return None, found[1]
    if old.kind != kind:
        raise UsageError(f"{url}: holds {old.kind} and cannot be replaced by {kind}")
    return old, found[1]


def _remove(storage: ObjectStorage, keys: Iterable[str]) -> None:
    """Remove objects that no ``contents.json`` names; errors leave some of them."""
    with suppress(StoreError):
        storage.each(storage.delete, keys)
