"""The base of corpora on disk and in object stores: a manifest, checked files, and a digest."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from distmom.corpus.files.records import MAX_RECORD_BYTES
from distmom.corpus.files.storage import AccessError, Storage, open_storage
from distmom.corpus.stored.manifest import CORPUS, parse_manifest
from distmom.errors import StoreError, UsageError

#: prefix of the fingerprint of an unfinished copy
COPY_OF = "copy of "


class StoredCorpus:
    """Base class of corpora on disk or in an object store.

    It pickles as its path and digest. A receiving process reads the manifest on first use, and raises StoreError
    if it finds a different corpus there.

    Attributes
    ----------
    path : str
        Absolute path, or URL, of the corpus.
    digest : str
        Checksum of the manifest, which covers every byte of the corpus.
    settings : dict
        Settings of the ingest: format, tokenizer, ...
    warnings : dict of str to int
        Number of repairs to the source, by kind.
    """

    def __init__(self, path: str, digest: str, manifest: dict[str, Any] | None = None) -> None:
        self.path = path
        self.digest = digest
        if manifest is not None:
            self._manifest = manifest

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), self.path, self.digest)

    @cached_property
    def _storage(self) -> Storage:
        with _where_it_was_sent():
            return open_storage(self.path)

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        with _where_it_was_sent():
            manifest, digest = read_manifest(self._storage)
        if digest != self._own_digest:
            raise StoreError(
                f"{self.path}: digest: expected {self._own_digest[:12]}, got {digest[:12]}: a different corpus "
                "is there"
            )
        return manifest

    @property
    def _own_digest(self) -> str:
        """Checksum of the manifest."""
        return self.digest

    @property
    def totals(self) -> dict[str, int]:
        """Totals over all units."""
        return dict(self._manifest["totals"])

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the ingest."""
        return dict(self._manifest["settings"])

    @property
    def warnings(self) -> dict[str, int]:
        """Number of repairs to the source, by kind."""
        return dict(self._manifest["warnings"])

    def manifest_bytes(self) -> bytes:
        """Return the content of ``manifest.json``."""
        return CORPUS.dump(self._manifest, self._manifest["format_version"])

    def read_files(self, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
        """Read and check files listed by `inventory`; StoreError if one is missing or differs."""
        return self._storage.read_all(entries)

    def shard_files(self, index: int) -> tuple[bytes, dict[str, dict[str, Any]]]:
        """Return ``shard.json`` of a shard and the size and sha256 of its other files; StoreError if damaged."""
        raise TypeError(f"{type(self).__name__} does not define the files of its shards")

    def inventory(self) -> Iterator[dict[str, dict[str, Any]]]:
        """Yield size and sha256 of all files except the manifest: first those outside shards, then shard by shard.

        Raises
        ------
        StoreError
            If the record of a shard is missing or damaged.
        """
        yield dict(self._files)
        for index, shard in enumerate(self._manifest["shards"]):
            prefix = f"shards/{shard['id']}"
            record, entries = self.shard_files(index)
            entries = {"shard.json": {"size": len(record), "sha256": shard["digest"]}, **entries}
            yield {f"{prefix}/{key}": entry for key, entry in entries.items()}

    @property
    def _files(self) -> dict[str, dict[str, Any]]:
        files: dict[str, dict[str, Any]] = self._manifest["files"]
        return files

    def _lines(self, key: str, expected: int) -> list[str]:
        entry = self._files[key]
        content = self._storage.read_checked(key, entry["size"], entry["sha256"])
        return lines_of(f"{self.path}/{key}", content, expected)


def lines_of(place: str, content: bytes, expected: int) -> list[str]:
    """Return the lines of a file; StoreError unless there are ``expected`` lines of UTF-8."""
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise StoreError(f"{place}: is not UTF-8: {error}") from error
    if lines.pop() or len(lines) != expected:
        raise StoreError(f"{place}: expected {expected} lines, got {len(lines)}")
    return lines


@contextmanager
def _where_it_was_sent() -> Iterator[None]:
    """Turn a UsageError into a StoreError with this host: the sender opened the corpus, so the path is right."""
    try:
        yield
    except UsageError as error:
        raise StoreError(f"{error} (on host {socket.gethostname()})") from error


def read_manifest(storage: Storage) -> tuple[dict[str, Any], str]:
    """Read and check the manifest below a location; UsageError if there is none, StoreError if it is damaged."""
    try:
        content = storage.read_bytes("manifest.json", MAX_RECORD_BYTES)
    except AccessError as error:
        partial = Path(f"{storage.root}.partial")
        if partial.is_dir():
            note = partial / "fingerprint"
            what = "copy" if note.is_file() and note.read_bytes().startswith(COPY_OF.encode()) else "ingest"
            raise UsageError(
                f"{storage.root}: is not a corpus yet: its {what} has not finished; run the same {what} again"
            ) from error
        is_file = Path(str(storage.root)).is_file()
        reason = "it is a file, which 'distmom ingest' turns into a corpus" if is_file else error.reason
        raise UsageError(f"{storage.root}: is not a corpus: {reason}") from error
    return parse_manifest(f"{storage.root}/manifest.json", content)


@lru_cache(maxsize=8)
def _reopen(kind: type[StoredCorpus], path: str, digest: str) -> StoredCorpus:
    return kind(path, digest)
