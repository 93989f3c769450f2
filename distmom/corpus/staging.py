"""A corpus that is being written: everything goes below ``<path>.partial`` and moves to ``path`` in the last step.

Shards may be written in any order, by any process with access to the directory, and again after a crash.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from distmom.corpus.commit import (
    commit_directory,
    destination,
    replace_directory,
    restore_replaced,
    sync_tree,
    write_atomic,
)
from distmom.corpus.lock import Lock
from distmom.corpus.space import space_explained
from distmom.corpus.storage import is_url
from distmom.errors import InputError, UsageError


class StagedCorpus:
    """Base class of writers of corpora; a context manager that holds the lock on the location.

    If the block raises InputError or UsageError, everything written is removed. If it ends without `commit` for
    any other reason, such as an interruption, finished shards are kept, and a later writer with the same
    fingerprint resumes from them.

    Parameters
    ----------
    path : path-like
        Local directory of the corpus.
    overwrite : bool, default=False
        Replace an existing corpus, once the new one is complete.
    fingerprint : str, default=""
        Identifies the source and settings. Finished shards of an earlier writer are kept only if its fingerprint
        is the same and not empty.

    Attributes
    ----------
    path : Path
        Where the corpus will be.
    partial : Path
        Directory of everything that is being written.
    directory : str
        Directory of the corpus itself below ``partial``.

    Raises
    ------
    UsageError
        If ``path`` is a URL, exists and may not be replaced, or is being written to by another process.
    """

    def __init__(self, path: Any, *, overwrite: bool = False, fingerprint: str = "") -> None:
        if is_url(path):
            raise UsageError(
                f"{path}: a corpus is written to a local path; 'distmom copy' copies it to a store"
            )
        self.path = destination(path)
        self.partial = Path(f"{self.path}.partial")
        self.directory = str(self.partial / "corpus")
        self._overwrite = overwrite
        self._fingerprint = fingerprint
        self._lock = Lock(f"{self.path}.lock")

    def __enter__(self) -> Self:
        with space_explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            try:
                restore_replaced(self.path)
                self._check_target()
                self._prepare_partial()
            except BaseException:
                self._lock.release()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, (InputError, UsageError)) and self._lock.is_held():
                shutil.rmtree(self.partial, ignore_errors=True)
        finally:
            self._lock.release()
        if isinstance(error, OSError):
            with space_explained(self.path):
                raise error

    def commit(self, manifest: bytes, *, is_synced: bool = False) -> None:
        """Commit a corpus whose other files have all been written below ``directory``.

        Parameters
        ----------
        manifest : bytes
            Content of ``manifest.json``.
        is_synced : bool, default=False
            Whether the other files have already been flushed to disk; if not, they are flushed first.

        Raises
        ------
        TakenOverError
            If another process writes to the location by now, as this one seemed to have ended.
        """
        root = Path(self.directory)
        self._lock.check()
        shutil.rmtree(root / "wip", ignore_errors=True)
        if not is_synced:
            sync_tree(root)
        self._lock.check()
        write_atomic(root / "manifest.json", manifest)
        if self.path.exists():
            replace_directory(root, self.path, is_synced=True)
        else:
            commit_directory(root, self.path, is_synced=True)
        shutil.rmtree(self.partial, ignore_errors=True)

    def _check_target(self) -> None:
        if not os.path.lexists(self.path):
            return
        if not self._overwrite:
            raise UsageError(f"{self.path}: already exists; choose another location or overwrite it")
        if not (self.path / "manifest.json").is_file():
            raise UsageError(f"{self.path}: is not a corpus, and therefore is not overwritten")

    def _prepare_partial(self) -> None:
        note = self.partial / "fingerprint"
        if self.partial.exists():
            if not note.is_file() and any(self.partial.iterdir()):
                raise UsageError(f"{self.partial}: is in the way and was not written by distmom; remove it")
            expected = self._fingerprint.encode()
            if not note.is_file() or not expected or note.read_bytes() != expected:
                shutil.rmtree(self.partial)
        if not self.partial.exists():
            self.partial.mkdir()
            write_atomic(note, self._fingerprint.encode())
        root = Path(self.directory)
        shutil.rmtree(root / "wip", ignore_errors=True)
        for folder in (root / "shards", root / "wip"):
            folder.mkdir(parents=True, exist_ok=True)
