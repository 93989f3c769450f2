"""Storage of a corpus, a model or an output: a local directory, or a prefix in an object store.

Files are found by the records that name them; a store is listed only to remove what no record names.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from distmom.errors import StoreError, UsageError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_R = TypeVar("_R")
_T = TypeVar("_T")

SCHEMES = ("s3", "http", "https")
#: concurrent requests to a store; most of the time for a small file is latency
N_REQUESTS = 8
#: larger files are read and written in parts of this size in bytes
PART_BYTES = 16 << 20
#: timeout in seconds for one request
TIMEOUT_S = 300.0
#: environment variables from which the client reads the address of a store
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
#: path of the request for a machine's role, which the client sends if the environment holds no keys
_ROLE_PATH = "/latest/api/token"


@dataclass(frozen=True)
class Patience:
    """Timeouts and retries of requests to a store.

    Attributes
    ----------
    connect_s, read_s : float
        Timeouts in seconds for establishing a connection, and for the next byte of a response.
    n_retries : int
        Maximum number of retries of a request, after increasing pauses.
    retry_s : float
        Time in seconds after which a request is no longer retried.
    """

    connect_s: float
    read_s: float
    n_retries: int
    retry_s: float


#: for the first request to a store, so that a wrong address is reported within seconds
FIRST = Patience(connect_s=3, read_s=5, n_retries=3, retry_s=8)
#: for a store that has responded before and may be busy
PATIENT = Patience(connect_s=5, read_s=20, n_retries=10, retry_s=60)


class AccessError(StoreError):
    """A file that cannot be accessed.

    Attributes
    ----------
    reason : str
        A short reason; empty by default.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class MissingError(AccessError):
    """A readable location that does not contain the file."""


class ConflictError(StoreError):
    """Another process has written the object in the meantime."""


class Storage(ABC):
    """Files below one location, by relative path.

    Attributes
    ----------
    root : str
        The location, as shown in error messages.
    """

    root: str

    @abstractmethod
    def read_bytes(self, key: str, limit: int | None = None) -> bytes:
        """Read a file once; StoreError if it cannot be read or has more than ``limit`` bytes."""

    @abstractmethod
    def write_bytes(self, key: str, content: bytes) -> None:
        """Write a file, replacing an existing one."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove a file if it exists."""

    def read_checked(self, key: str, size: int, sha256: str) -> bytes:
        """Read a file of known size and digest; StoreError if it is missing or differs."""
        content = self.read_bytes(key, limit=max(size, 1))
        if len(content) != size:
            raise StoreError(f"{self.root}/{key}: size: expected {size} bytes, got {len(content)}")
        check_digest(f"{self.root}/{key}", content, sha256)
        return content

    def read_all(self, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
        """Read files of known ``size`` and ``sha256``; StoreError for the first one that is missing or differs."""

        def read(item: tuple[str, Mapping[str, Any]]) -> tuple[str, bytes]:
            key, entry = item
            return key, self.read_checked(key, entry["size"], entry["sha256"])

        return dict(self.each(read, entries.items()))

    def write_all(self, files: Mapping[str, bytes]) -> None:
        """Write files in any order."""
        self.each(lambda item: self.write_bytes(*item), files.items())

    def each(self, function: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        """Return the results of a function for all items, in order; several run at a time in an object store."""
        return [function(item) for item in items]


class LocalStorage(Storage):
    """The files below one directory.

    Parameters
    ----------
    root : str
        A local directory.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._path = Path(root)

    def read_bytes(self, key: str, limit: int | None = None) -> bytes:
        place = self._path / key
        try:
            with open(place, "rb", opener=_at_once) as stream:
                found = os.fstat(stream.fileno())
                # A device may have no end.
                if not stat.S_ISREG(found.st_mode):
                    raise StoreError(f"{place}: expected a file, got something else")
                if limit is not None and found.st_size > limit:
                    raise StoreError(f"{place}: size: expected at most {limit} bytes, got {found.st_size}")
                # The limit may come from a damaged record, so the buffer is sized by the file instead.
                content = stream.read()
        except OSError as error:
            said = f"{place}: cannot be read: {error.strerror or error}"
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                there = self._path.exists()
                reason = f"there is no {key} in it" if there else "there is no such directory"
                raise MissingError(said, reason) from error
            raise StoreError(said) from error
        return content

    def write_bytes(self, key: str, content: bytes) -> None:
        """Write a file; it is durable once its directory is committed."""
        place = self._path / key
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)

    def delete(self, key: str) -> None:
        (self._path / key).unlink(missing_ok=True)


def _at_once(path: str, flags: int) -> int:
    """Open a file as `open` does, without waiting for the writer of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


class ObjectStorage(Storage):
    """The objects below a URL, accessed with the keys, region and endpoint in the process environment.

    Parameters
    ----------
    url : str
        As returned by `place_of`.
    patience : Patience
        Timeouts and retries.

    Raises
    ------
    UsageError
        If the client for object stores is not installed, or rejects the URL or the environment.
    """

    def __init__(self, url: str, patience: Patience) -> None:
        try:
            import obstore.store
        except ImportError as error:
            raise UsageError(
                f"{url}: reading from an object store needs the package obstore: pip install 'distmom[s3]'"
            ) from error
        self.root = url
        self._errors = (obstore.exceptions.BaseError, OSError, ValueError)
        client: ClientConfig = {
            "connect_timeout": timedelta(seconds=patience.connect_s),
            "read_timeout": timedelta(seconds=patience.read_s),
            "timeout": timedelta(seconds=TIMEOUT_S),
        }
        if _is_plain(url):
            client["allow_http"] = True
        retry: RetryConfig = {
            "max_retries": patience.n_retries,
            "retry_timeout": timedelta(seconds=patience.retry_s),
        }
        try:
            self._store = obstore.store.from_url(url, client_options=client, retry_config=retry)
        except self._errors as error:
            raise UsageError(f"{url}: cannot be used: {_said(error)}") from error

    def read_bytes(self, key: str, limit: int | None = None) -> bytes:
        return self.read_tagged(key, limit)[0]

    def read_tagged(self, key: str, limit: int | None = None) -> tuple[bytes, str | None]:
        """Read an object as `read_bytes` does, and the tag of its version if the store gives one."""
        try:
            found = self._store.get(key)
            if limit is not None and found.meta["size"] > limit:
                raise StoreError(
                    f"{self.root}/{key}: size: expected at most {limit} bytes, got {found.meta['size']}"
                )
            return bytes(found.bytes()), found.meta["e_tag"]
        except self._errors as error:
            raise self._failure(key, "read", error) from error

    def read_parts(self, key: str, size: int) -> Iterator[bytes]:
        """Yield an object of known size in parts of at most `PART_BYTES`, each read by one request."""
        for start in range(0, max(size, 1), PART_BYTES):
            span = (start, min(start + PART_BYTES, size))
            try:
                found = self._store.get(key, options={"range": span} if size > PART_BYTES else None)
                if (got := found.meta["size"]) != size:
                    raise StoreError(f"{self.root}/{key}: size: expected {size} bytes, got {got}")
                part = bytes(found.bytes())
            except self._errors as error:
                raise self._failure(key, "read", error) from error
            yield part

    def write_bytes(self, key: str, content: bytes) -> None:
        self._put(key, content)

    def write_file(self, key: str, path: Path) -> None:
        """Write an object with the content of a file, a large one in parts."""
        self._put(key, path, chunk_size=PART_BYTES)

    def write_if(self, key: str, content: bytes, tag: str | None) -> str | None:
        """Write an object if its version still has the tag, or if there is none yet; ConflictError otherwise.

        Returns the tag of the new version, if the store gives one.
        """
        return self._put(key, content, mode="create" if tag is None else {"e_tag": tag})

    def _put(self, key: str, content: bytes | Path, **options: Any) -> str | None:
        try:
            return self._store.put(key, content, **options)["e_tag"]
        except self._errors as error:
            if type(error).__name__ in ("AlreadyExistsError", "PreconditionError"):
                raise ConflictError(f"{self.root}/{key}: was written by another process") from error
            raise self._failure(key, "written", error) from error

    def delete(self, key: str) -> None:
        try:
            self._store.delete(key)
        except FileNotFoundError:
            return
        except self._errors as error:
            raise self._failure(key, "removed", error) from error

    def folders(self) -> list[str]:
        """Return the names of all folders directly below the URL."""
        try:
            found = self._store.list_with_delimiter()["common_prefixes"]
        except self._errors as error:
            raise self._failure("", "listed", error) from error
        return [folder.rstrip("/").rpartition("/")[2] for folder in found]

    def keys_in(self, folders: str) -> list[str]:
        """Return the names of all objects in folders directly below the URL whose names match a pattern."""
        try:
            found = self._store.list_with_delimiter()["common_prefixes"]
            matching = [folder for folder in found if re.fullmatch(folders, folder)]
            return [meta["path"] for folder in matching for part in self._store.list(folder) for meta in part]
        except self._errors as error:
            raise self._failure("", "listed", error) from error

    def each(self, function: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        with ThreadPoolExecutor(N_REQUESTS) as threads:
            return list(threads.map(function, items))

    def _failure(self, key: str, what: str, error: Exception) -> StoreError:
        """Return the error to raise, with a one-line message and, if it can be identified, the reason."""
        text = str(error)
        said = f"{self.root}/{key}: cannot be {what}: {_said(error)}"
        kind = type(error).__name__
        if "<Code>NoSuchBucket</Code>" in text:
            return AccessError(said, "there is no such bucket")
        if isinstance(error, FileNotFoundError):
            return MissingError(said, f"there is no {key} below it")
        if _ROLE_PATH in text:
            reason = "the environment holds no keys (AWS_ACCESS_KEY_ID, ...), and this machine has no role"
            return AccessError(f"{said}: {reason}", reason)
        if kind in ("PermissionDeniedError", "UnauthenticatedError"):
            return AccessError(said, f"access is refused: {_said(error)}")
        return StoreError(said)


def _said(error: Exception) -> str:
    """Return the first line of an error, with the error code of the store's response if there is one."""
    text = str(error)
    line = re.sub(r"\s+", " ", text.partition("\n")[0].partition("<?xml")[0]).strip()
    code = re.search(r"<Code>(\w+)</Code>", text)
    return line + (f" {code[1]}" if code is not None and code[1] not in line else "")


def _is_plain(url: str) -> bool:
    """Whether the URL or endpoint requests unencrypted HTTP; UsageError if the endpoint is not a URL."""
    for name in _ENDPOINTS if url.startswith("s3://") else ():
        endpoint = os.environ.get(name)
        if endpoint is not None and re.fullmatch(r"https?://[!-~]+", endpoint) is None:
            raise UsageError(f"{name}: expected a URL such as https://HOST:PORT, got {endpoint!r}")
        if endpoint is not None and endpoint.startswith("http://"):
            return True
    return url.startswith("http://")


def is_url(place: Any) -> bool:
    """Whether a location is a URL rather than a local path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", os.fspath(place)) is not None


def place_of(place: Any) -> str:
    """Return a location in canonical form: an absolute path, or a URL without a trailing slash.

    Raises
    ------
    UsageError
        If it is a URL whose scheme is not in `SCHEMES`, without a host or bucket, with a user, query or fragment,
        with control characters, or with empty parts or ``..`` in its path, or a bucket with a port.
    """
    if not is_url(place):
        return str(Path(place).absolute())
    url = os.fspath(place)
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise UsageError(f"{url}: expected a local path or one of {known}, got {parts.scheme}://")
    if re.fullmatch(r"[\w.:\[\]-]+", parts.netloc, re.ASCII) is None or parts.query or parts.fragment:
        # The URL is not shown: it may contain a secret, which would then appear in logs and run records.
        kind = "SCHEME://BUCKET/PREFIX without user, query or fragment"
        raise UsageError(f"{parts.scheme}://...: expected {kind}; keys belong in the environment")
    # Tabs and line breaks would be left out, and the files written elsewhere.
    if re.search(r"[\x00-\x1f\x7f]", unquote(url)):
        raise UsageError(f"{url!r}: expected a URL without control characters")
    path = parts.path.rstrip("/")
    # Other names of one place would defeat the comparison of source and destination.
    if {"", ".", ".."} & set(unquote(path).split("/")[1:]):
        raise UsageError(f"{url}: expected a path without empty parts, '.' and '..'")
    if parts.scheme == "s3" and ":" in parts.netloc:
        raise UsageError(
            f"{url}: expected s3://BUCKET/PREFIX; the address of a store belongs in AWS_ENDPOINT_URL"
        )
    return f"{parts.scheme}://{parts.netloc}{path}"


def open_storage(place: str, *, first: bool = False) -> Storage:
    """Return the storage for a location in canonical form; ``first`` shortens timeouts for the first request."""
    return ObjectStorage(place, FIRST if first else PATIENT) if is_url(place) else LocalStorage(place)


def check_digest(place: str, content: bytes, expected: str) -> None:
    """Raise StoreError unless ``content`` has the expected sha256."""
    got = hashlib.sha256(content).hexdigest()
    if got != expected:
        raise StoreError(f"{place}: sha256: expected {expected[:12]}, got {got[:12]}")
