"""Copying a corpus between the file system and object stores; every byte is checked, the manifest comes last."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from distmom.corpus.files.records import MAX_RECORD_BYTES
from distmom.corpus.files.storage import (
    AccessError,
    LocalStorage,
    MissingError,
    Storage,
    is_url,
    open_storage,
    place_of,
)
from distmom.corpus.files.uploads import find_contents
from distmom.corpus.open import corpus_of, open_corpus
from distmom.corpus.sources.pipeline import Progress
from distmom.corpus.stored.base import COPY_OF
from distmom.corpus.stored.layered import LayeredCorpus
from distmom.corpus.stored.manifest import parse_manifest
from distmom.corpus.stored.staging import StagedCorpus
from distmom.corpus.stored.words import Corpus
from distmom.errors import ELSEWHERE, StoreError, UsageError

_log = logging.getLogger(__name__)


def copy_corpus(
    source: Any, target: Any, *, overwrite: bool = False, progress: Progress | None = None
) -> Corpus | LayeredCorpus:
    """Copy a corpus byte for byte.

    Every file is checked against its digest before it is written. The manifest is written last, and only then
    is the copy a corpus. An interrupted copy resumes when it is run again: shards that are complete at the
    target are not written a second time.

    Parameters
    ----------
    source, target : path-like
        Local path or URL; see `open_corpus`.
    overwrite : bool, default=False
        Replace an existing corpus at the target. On the file system it is replaced once the copy is complete;
        in an object store there is no corpus at the target while the copy is in progress.
    progress : callable, optional
        Called with the stage, the number of documents done, and the total.

    Returns
    -------
    Corpus or LayeredCorpus
        The copy.

    Raises
    ------
    UsageError
        If there is no corpus at the source, or the target exists and may not be replaced.
    StoreError
        If the source is damaged, or the source or target cannot be read or written.
    """
    corpus = open_corpus(source)
    manifest = corpus.manifest_bytes()
    place = place_of(target)
    if _same(place) == _same(corpus.path):
        raise UsageError(f"{place}: source and destination are the same place")

    def write_to(storage: Storage) -> set[str]:
        return _write_files(corpus, storage, progress or _silent)

    if is_url(place):
        _to_store(place, manifest, overwrite, write_to)
    else:
        with StagedCorpus(place, overwrite=overwrite, fingerprint=f"{COPY_OF}{corpus.digest}") as writer:
            if not writer.is_finished:
                write_to(LocalStorage(writer.directory))
                writer.commit(manifest)
    return open_corpus(place)


def _same(place: str) -> str:
    """Return what is equal for all names of one place, such as a URL with a space or with ``%20``."""
    return unquote(place) if is_url(place) else os.path.realpath(place)


def _to_store(place: str, manifest: bytes, overwrite: bool, write_to: Callable[[Storage], set[str]]) -> None:
    """Write a corpus below a URL. Nothing can be renamed there, so an old manifest is deleted first."""
    # The first request has short timeouts, so that a wrong address is reported within seconds.
    found = _manifest_at(open_storage(place, first=True))
    if place.startswith("s3://") and (other := find_contents(place)) is not None:
        raise UsageError(f"{place}: holds {other.kind} and cannot be replaced by a corpus")
    storage = open_storage(place)
    old: set[str] = set()
    if found is not None:
        if not overwrite:
            raise UsageError(f"{place}: already exists; {ELSEWHERE}")
        old = _keys_of(place, found)
        storage.delete("manifest.json")
    written = write_to(storage)
    storage.write_bytes("manifest.json", manifest)
    for key in sorted(old - written):
        storage.delete(key)


def _manifest_at(storage: Storage) -> bytes | None:
    try:
        return storage.read_bytes("manifest.json", MAX_RECORD_BYTES)
    except MissingError:
        return None
    except AccessError as error:
        raise UsageError(f"{storage.root}: cannot be a destination: {error.reason}") from error


def _keys_of(place: str, manifest: bytes) -> set[str]:
    """Return the files named in the records of a corpus, as far as the records can be read."""
    keys: set[str] = set()
    try:
        content, digest = parse_manifest(f"{place}/manifest.json", manifest)
        for entries in corpus_of(place, digest, content).inventory():
            keys.update(entries)
    except StoreError as error:
        _log.warning("%s; files of the replaced corpus may remain below %s", error, place)
    return keys


def _write_files(corpus: Corpus | LayeredCorpus, storage: Storage, progress: Progress) -> set[str]:
    """Write everything but the manifest, and return the names of all files."""
    keys: set[str] = set()
    done = 0
    for number, entries in enumerate(corpus.inventory()):
        if not _is_there(storage, entries):
            storage.write_all(corpus.read_files(entries))
        keys.update(entries)
        if number:
            # Item 0 holds the files that do not belong to a shard.
            done += corpus.shards[number - 1].n_documents
        progress("copy", done, corpus.n_documents)
    return keys


def _is_there(storage: Storage, entries: dict[str, dict[str, Any]]) -> bool:
    first = next(iter(entries))
    try:
        # If nothing is there, one request suffices to find out.
        storage.read_all({first: entries[first]})
        storage.read_all(entries)
    except StoreError:
        return False
    return True


def _silent(stage: str, done: int, total: int | None) -> None:
    pass
