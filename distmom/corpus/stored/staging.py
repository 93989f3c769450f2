"""A corpus that is being written: everything goes below ``<path>.partial`` and moves to ``path`` in the last step.

Shards may be written in any order, by any process with access to the directory, and again after a crash. Each
fingerprint has a directory of its own, so that tasks which an earlier writer has left on a cluster never write
into the corpus of another source.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from distmom.corpus.files.commit import (
    TEMPORARY,
    commit_directory,
    destination,
    remove_replaced,
    remove_tree,
    replace_directory,
    restore_replaced,
    sha256_file,
    sync_tree,
    write_atomic,
)
from distmom.corpus.files.lock import Lock
from distmom.corpus.files.space import space_explained
from distmom.corpus.files.storage import is_url
from distmom.errors import ELSEWHERE, InputError, UsageError


class StagedCorpus:
    """Base class of writers of corpora; a context manager that holds the lock on the location.

    If the block raises InputError or UsageError, everything written is removed, unless it is complete and only its
    place has been taken meanwhile. If it ends without `commit` for any other reason, such as an interruption,
    finished shards are kept, and a later writer with the same fingerprint resumes from them.

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
    work : Path
        Directory below ``partial`` for this fingerprint; without a fingerprint, for this writer alone.
    directory : str
        Directory of the corpus itself below ``work``.
    is_finished : bool
        Whether an earlier writer with the same fingerprint was ended after it had committed the corpus, and before
        it had removed ``partial``. There is nothing left to write then. To write the corpus again, `begin` must be
        called before other processes write its shards.

    Raises
    ------
    UsageError
        If ``path`` is a URL, exists and may not be replaced, is inside a corpus, model, run or output, or is being
        written to by another process.
    """

    def __init__(self, path: Any, *, overwrite: bool = False, fingerprint: str = "") -> None:
        if is_url(path):
            raise UsageError(
                f"{path}: a corpus is written to a local path; 'distmom copy' copies it to a store"
            )
        self.path: Path = destination(path)
        self.partial: Path = Path(f"{self.path}.partial")
        own = hashlib.sha256(fingerprint.encode()).hexdigest() if fingerprint else uuid.uuid4().hex
        self.work: Path = self.partial / own[:16]
        self.directory: str = str(self.work / "corpus")
        self.is_finished: bool = False
        self._note = self.partial / "fingerprint"
        #: whether a later writer can use what was written even if this one is refused
        self._is_kept = False
        self._overwrite = overwrite
        self._fingerprint = fingerprint
        self._lock = Lock(f"{self.path}.lock")

    def __enter__(self) -> Self:
        with space_explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            try:
                restore_replaced(self.path)
                # A writer that ended in its last step has left an empty directory.
                with suppress(OSError):
                    self.partial.rmdir()
                self.is_finished = self._was_committed()
                if self.is_finished:
                    remove_replaced(self.path)
                    self._remove_partial()
                else:
                    self._check_target()
                    self._prepare_partial()
            except BaseException:
                self._lock.release()
                raise
        return self

    def begin(self) -> None:
        """Prepare to write shards. A corpus that an earlier writer has committed is written again.

        Raises
        ------
        UsageError
            If the corpus has been committed and may not be replaced.
        """
        if self.is_finished:
            self._check_target()
            self._prepare_partial()
            self.is_finished = False

    def check_begun(self) -> None:
        """Raise a UsageError if an earlier writer has committed the corpus, and no shard was written since."""
        if self.is_finished:
            raise UsageError(
                f"{self.path}: an earlier writer has committed the corpus; open it, or call begin() before shards "
                "are written again"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            is_refused = isinstance(error, (InputError, UsageError)) and not self._is_kept
            if is_refused and self._lock.is_held():
                with suppress(OSError):
                    self._remove_partial()
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
            If another process writes to the location by then, as this one seemed to have ended.
        UsageError
            If something that may not be replaced is there by then; shards are kept for a later writer.
        """
        root = Path(self.directory)
        self._lock.check()
        shutil.rmtree(root / "wip", ignore_errors=True)
        if not is_synced:
            sync_tree(root)
        self._lock.check()
        write_atomic(root / "manifest.json", manifest)
        self._write_note(hashlib.sha256(manifest).hexdigest())
        self._is_kept = self._fingerprint != ""
        # A command that writes something other than a corpus takes no lock here.
        self._check_target()
        if self.path.exists():
            replace_directory(root, self.path, is_synced=True)
        else:
            commit_directory(root, self.path, is_synced=True)
        # The next writer with this fingerprint removes the files that a failing disk keeps.
        with suppress(OSError):
            self._remove_partial()

    def _write_note(self, committed: str = "") -> None:
        """Note the fingerprint, and the digest of the manifest with which the corpus is being committed."""
        write_atomic(self._note, f"{self._fingerprint}\n{committed}".encode())

    def _read_note(self) -> tuple[str, str]:
        fingerprint, _, committed = self._note.read_bytes().decode(errors="replace").partition("\n")
        return fingerprint, committed

    def _was_committed(self) -> bool:
        try:
            found = self._fingerprint, sha256_file(self.path / "manifest.json")
            return self._fingerprint != "" and self._read_note() == found
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _remove_partial(self) -> None:
        """Remove the unfinished corpus; the note is removed last, as it alone marks the directory as distmom's."""
        for path in self.partial.iterdir():
            if path.is_dir():
                remove_tree(path)
            elif path != self._note:
                path.unlink()
        self._note.unlink(missing_ok=True)
        self.partial.rmdir()

    def _check_target(self) -> None:
        if not os.path.lexists(self.path):
            return
        if not self._overwrite:
            raise UsageError(f"{self.path}: already exists; {ELSEWHERE}")
        if not (self.path / "manifest.json").is_file():
            raise UsageError(f"{self.path}: is not a corpus, and therefore is not overwritten")

    def _prepare_partial(self) -> None:
        if self.partial.exists():
            # A writer that ended while it wrote the note has left a temporary file.
            others = [path for path in self.partial.iterdir() if not path.name.startswith(TEMPORARY)]
            if others and not self._note.is_file():
                raise UsageError(f"{self.partial}: is in the way and was not written by distmom; remove it")
            if not others or not self._fingerprint or self._read_note()[0] != self._fingerprint:
                self._remove_partial()
        if not self.partial.exists():
            self.partial.mkdir()
            self._write_note()
        root = Path(self.directory)
        shutil.rmtree(root / "wip", ignore_errors=True)
        for folder in (root / "shards", root / "wip"):
            folder.mkdir(parents=True, exist_ok=True)
