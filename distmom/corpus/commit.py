"""Atomic writing of files and directories, and lock files."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from distmom.errors import StoreError, UsageError

_log = logging.getLogger(__name__)


def write_atomic(
    path: str | os.PathLike[str],
    content: bytes | Callable[[BinaryIO], Any],
    *,
    survives_power_failure: bool = True,
) -> None:
    """Write a file atomically: readers see the old content or the complete new content, even after a crash.

    Parameters
    ----------
    path : path-like
        Its directory must exist.
    content : bytes or callable
        The content, or a function that writes it to a binary stream.
    survives_power_failure : bool, default=True
        Whether this also holds after a power failure. That requires waiting until all data is on disk, which is
        unnecessary for a file that carries a checksum and can be regenerated.
    """
    target = Path(path)
    temporary = target.parent / f".tmp-{uuid.uuid4().hex}"
    try:
        with open(temporary, "xb") as stream:
            if isinstance(content, bytes):
                stream.write(content)
            else:
                content(stream)
            if survives_power_failure:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if survives_power_failure:
        sync_path(target.parent)


def sync_path(path: str | os.PathLike[str]) -> None:
    """Flush the content of a file, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: str | os.PathLike[str]) -> None:
    """Flush a directory, and every file and directory below it, to disk."""
    for folder, _, names in os.walk(path):
        for name in names:
            sync_path(os.path.join(folder, name))
        sync_path(folder)


def commit_directory(
    temporary: str | os.PathLike[str], final: str | os.PathLike[str], *, is_synced: bool = False
) -> None:
    """Rename a finished directory to its final name on the same file system.

    Parameters
    ----------
    temporary : path-like
        The finished directory.
    final : path-like
        A name that does not exist yet.
    is_synced : bool, default=False
        Whether the directory has already been flushed to disk; if not, it is flushed first.

    Raises
    ------
    StoreError
        If ``final`` exists.
    """
    if os.path.lexists(final):
        raise StoreError(f"{final}: already exists and cannot be replaced by {temporary}")
    if not is_synced:
        sync_tree(temporary)
    os.rename(temporary, final)
    sync_path(Path(final).parent)


def replace_directory(
    temporary: str | os.PathLike[str], final: str | os.PathLike[str], *, is_synced: bool = False
) -> None:
    """Replace a directory by a finished one; the old one is removed only afterwards.

    The old directory is first renamed to ``<final>.replaced``; `restore_replaced` undoes that if the process
    dies before the second rename. ``is_synced`` is as in `commit_directory`.
    """
    old = Path(f"{final}.replaced")
    if old.is_symlink():
        old.unlink()
    elif old.exists():
        shutil.rmtree(old)
    if not is_synced:
        sync_tree(temporary)
    os.rename(final, old)
    try:
        os.rename(temporary, final)
    except OSError:
        os.rename(old, final)
        raise
    sync_path(Path(final).parent)
    # A network file system keeps files that this process has mapped until the process ends; the next
    # replacement removes them.
    shutil.rmtree(old, ignore_errors=True)


def put_directory(temporary: str | os.PathLike[str], final: str | os.PathLike[str]) -> None:
    """Rename a finished directory to its final name, replacing an existing one."""
    (replace_directory if os.path.lexists(final) else commit_directory)(temporary, final)


def put_if_absent(
    temporary: str | os.PathLike[str], final: str | os.PathLike[str], is_whole: Callable[[Path], bool]
) -> None:
    """Rename a finished directory to its final name unless an undamaged one is already there.

    Parameters
    ----------
    temporary : path-like
        The finished directory; left in place if it is not needed.
    final : path-like
        A name determined by the content, so that directories of the same name are interchangeable.
    is_whole : callable
        Receives the path of an existing directory and returns whether it is undamaged; a damaged one is
        replaced.
    """
    target = Path(final)
    while True:
        try:
            os.rename(temporary, target)
            return
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        if is_whole(target):
            return
        damaged = target.with_name(f".tmp-{uuid.uuid4().hex}")
        # Another process may have been faster.
        with suppress(FileNotFoundError):
            os.rename(target, damaged)
        shutil.rmtree(damaged, ignore_errors=True)


def destination(path: str | os.PathLike[str]) -> Path:
    """Return the target of a symbolic link, or the absolute path if the path is not a link.

    Output replaces the target; the link itself is kept.
    """
    target = Path(path).absolute()
    return Path(os.path.realpath(target)) if target.is_symlink() else target


def restore_replaced(final: str | os.PathLike[str]) -> None:
    """Restore a directory that an interrupted `replace_directory` left under its temporary name."""
    old = Path(f"{final}.replaced")
    if old.exists() and not os.path.lexists(final):
        os.rename(old, final)
        sync_path(Path(final).parent)


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the sha256 of a file as hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class Lock:
    """A lock file that lets one process at a time write to a location; a context manager.

    A lock left by a dead process of this host is taken over with a logged warning. A lock of another host is
    never taken over, because there is no way to check from here whether its process is still running.

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

    def acquire(self) -> None:
        """Acquire the lock; UsageError with host, process and time of the current holder if there is one."""
        pid = os.getpid()
        content = json.dumps(
            {
                "host": socket.gethostname(),
                "pid": pid,
                "born": birth(pid),
                "since": datetime.now(UTC).isoformat(timespec="seconds"),
            }
        ).encode()
        while True:
            try:
                descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                self._remove_stale()
                continue
            try:
                os.write(descriptor, content)
                os.fsync(descriptor)
            except BaseException:
                # On a full disk the file would name no owner, and nobody could take it over.
                self.release()
                raise
            finally:
                os.close(descriptor)
            return

    def release(self) -> None:
        """Release the lock."""
        self.path.unlink(missing_ok=True)

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

    def _remove_stale(self) -> None:
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            # Of several processes that find the same stale file, only the one that holds this flock and still
            # finds the file under its name may remove it.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                if os.stat(self.path).st_ino != os.fstat(descriptor).st_ino:
                    return
            except FileNotFoundError:
                return
            holder = _parse_lock(os.read(descriptor, 4096))
            if holder is None:
                raise UsageError(
                    f"{self.path}: is a lock file with an unreadable owner; remove it if nothing writes here"
                )
            host, pid, born, since = holder
            if host != socket.gethostname() or is_alive(pid, born):
                raise UsageError(
                    f"{self.path}: is held by process {pid} on host {host} since {since}; wait for it to finish, "
                    "or remove the file if that process no longer exists"
                )
            _log.warning("%s: taking over the lock of process %d, which is no longer running", self.path, pid)
            self.path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def _parse_lock(content: bytes) -> tuple[str, int, int | None, str] | None:
    try:
        entry = json.loads(content)
        born = entry["born"]
        return str(entry["host"]), int(entry["pid"]), None if born is None else int(born), str(entry["since"])
    except (ValueError, KeyError, TypeError):
        return None


def birth(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None where the system does not report it."""
    fields = _status(pid)
    return None if fields is None else int(fields[19])


def _status(pid: int) -> list[bytes] | None:
    """Return what the system reports of a process, from its state on; None where it reports nothing."""
    try:
        # The second field is the process name in parentheses, which may itself contain spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


def is_alive(pid: int, born: int | None) -> bool:
    """Whether a process that started at ``born`` (see `birth`) still runs on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    fields = _status(pid)
    if fields is None:
        return True
    # The process may have ended without its parent having taken note, and its id may have been reused since.
    return fields[0] not in (b"Z", b"X") and born in (None, int(fields[19]))
