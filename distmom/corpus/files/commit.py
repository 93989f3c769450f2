"""Atomic writing of files and directories."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from distmom.errors import StoreError, UsageError

#: prefix of the names of files and directories that are renamed once they are complete
TEMPORARY = ".tmp-"
#: suffix of the name of a directory that is being replaced
_REPLACED = ".replaced"
#: records of the directories that distmom writes
_RECORDS = tuple(
    f"{name}.json"
    for name in ("manifest", "model", "run", "job", "truth", "components", "factors", "predictions", "shares")
)
#: the entry of a record with its format; other software has files of these names too
_OWN_FORMAT = re.compile(rb'^ "format": "distmom-([a-z]+)"', re.MULTILINE)
#: errors of a directory that is renamed to a name that is taken
_EXISTS = (errno.EEXIST, errno.ENOTEMPTY)
#: errors of a directory that is removed while another process writes to it
_BUSY = (errno.ENOTEMPTY, errno.EBUSY)
#: number of files that are flushed to disk at the same time
_SYNC_THREADS = 8
#: seconds for which tasks that were cancelled may still write to a directory that is being removed
_SETTLE_S = 3.0


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
    temporary = target.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
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
    paths: list[str] = []
    for folder, _, names in os.walk(path, onerror=_raised):
        paths += [os.path.join(folder, name) for name in names]
        paths.append(folder)
    # File systems flush what several threads ask for at a time together.
    with ThreadPoolExecutor(min(len(paths), _SYNC_THREADS)) as pool:
        for _ in pool.map(sync_path, paths):
            pass


def _raised(error: OSError) -> None:
    """Raise an error of `os.walk`, which would leave out the directory that it cannot list."""
    raise error


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

    The old directory is first renamed to ``<final>.replaced-<time>``; `restore_replaced` undoes that if the
    process dies before the second rename. ``is_synced`` is as in `commit_directory`.

    Raises
    ------
    UsageError
        If another process replaces it at the same time.
    """
    target = Path(final)
    if not is_synced:
        sync_tree(temporary)
    while True:
        old = target.with_name(f"{target.name}{_REPLACED}-{time.time_ns():016x}{secrets.token_hex(2)}")
        moved = _identity(target)
        try:
            os.rename(target, old)
        except FileNotFoundError as error:
            raise _replaced_by_another(target) from error
        try:
            os.rename(temporary, target)
            break
        except OSError as error:
            if error.errno in _EXISTS and _identity(target) == moved:
                # Between the two renames, another process restored the old directory, as if this one had ended.
                continue
            with suppress(OSError):
                os.rename(old, target)
            remove_replaced(target)
            if error.errno in _EXISTS:
                raise _replaced_by_another(target) from error
            raise
    sync_path(target.parent)
    remove_replaced(target)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return an identity of a directory that a rename does not change; None if there is no directory."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _replaced_by_another(target: Path) -> UsageError:
    return UsageError(
        f"{target}: another process replaces it at the same time; choose another path, or repeat the command"
    )


def _replaced(target: Path) -> list[Path]:
    """Return the names under which replacements of a directory have left the old one, the earliest first."""
    name = re.compile(re.escape(target.name + _REPLACED) + "(-[0-9a-f]{20})?")
    return sorted(path for path in target.parent.iterdir() if name.fullmatch(path.name))


def remove_replaced(target: Path) -> None:
    """Remove what replacements of a directory have left, if the directory is there."""
    # Listed first: a directory that another process renames after the check below may be the only copy.
    left = _replaced(target)
    if not os.path.lexists(target):
        return
    for path in left:
        if path.is_symlink():
            path.unlink(missing_ok=True)
        else:
            # A network file system keeps files that this process has mapped until the process ends; the next
            # replacement removes them.
            shutil.rmtree(path, ignore_errors=True)


def put_directory(
    temporary: str | os.PathLike[str], final: str | os.PathLike[str], *, overwrite: bool = False
) -> None:
    """Rename a finished directory to its final name.

    Parameters
    ----------
    temporary : path-like
        The finished directory.
    final : path-like
    overwrite : bool, default False
        Replace an existing directory.

    Raises
    ------
    UsageError
        If ``final`` exists and may not be replaced.
    """
    if overwrite and os.path.lexists(final):
        replace_directory(temporary, final)
        return
    try:
        commit_directory(temporary, final)
    except (StoreError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _EXISTS:
            raise
        raise UsageError(
            f"{final}: another process has written there meanwhile; choose another path or overwrite it"
        ) from error


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
            if error.errno not in _EXISTS:
                raise
        found = _identity(target)
        if is_whole(target):
            return
        if _identity(target) != found:
            # Another process has replaced it meanwhile.
            continue
        damaged = Path(temporary).with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
        # Another process may be faster.
        with suppress(FileNotFoundError):
            os.rename(target, damaged)
        shutil.rmtree(damaged, ignore_errors=True)


def destination(path: str | os.PathLike[str]) -> Path:
    """Return the target of a symbolic link, or the absolute path if the path is not a link.

    Output replaces the target; the link itself is kept.

    Raises
    ------
    UsageError
        If the path is inside a corpus, model, run or output, or below a file.
    """
    target = Path(path).absolute()
    refuse_inside(target)
    return Path(os.path.realpath(target)) if target.is_symlink() else target


def check_writable(target: Path) -> None:
    """Check that a path can be created or replaced; else a UsageError, before the work of which it is the result.

    The directories above the path need not exist yet.
    """
    folder = _lowest_that_exists(target)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{target}: the directory {folder} cannot be written to")


def check_file_target(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file to write or replace; a UsageError if that is not possible."""
    target = destination(path)
    if not target.parent.is_dir():
        raise UsageError(f"{target}: there is no directory {target.parent}")
    if target.is_dir():
        raise UsageError(f"{target}: is a directory; give the path of a file")
    if target.exists() and not target.is_file():
        raise UsageError(
            f"{target}: is a device or a pipe, which cannot be replaced; give the path of a file"
        )
    check_writable(target)
    return target


def refuse_inside(target: Path) -> None:
    """Raise a UsageError if a path is below a file, or in a directory of distmom and would be removed with it."""
    refuse_below_file(target)
    for folder in Path(os.path.realpath(target)).parents:
        if kind := kind_of_directory(folder):
            raise UsageError(f"{target}: is inside {folder} ({kind}); choose a location outside it")


def refuse_below_file(target: Path) -> None:
    """Raise a UsageError if something above a path exists that is not a directory."""
    above = _lowest_that_exists(target)
    if not above.is_dir():
        raise UsageError(
            f"{target}: expected a path below a directory, got one below {above}, which is not one"
        )


def _lowest_that_exists(target: Path) -> Path:
    """Return the nearest path above another one that exists; all above it must be directories."""
    return next(folder for folder in target.absolute().parents if os.path.lexists(folder))


def kind_of_directory(folder: Path) -> str | None:
    """Return what distmom has written to a directory, such as ``"corpus"``; None if it is another directory."""
    for path in (folder / name for name in _RECORDS):
        try:
            # A pipe would be waited for.
            content = path.read_bytes() if path.is_file() else b""
        except OSError:
            continue
        if found := _OWN_FORMAT.search(content):
            return found[1].decode()
    return None


def restore_replaced(final: str | os.PathLike[str]) -> None:
    """Restore a directory that an interrupted `replace_directory` left under another name."""
    target = Path(final)
    if os.path.lexists(target) or not target.parent.exists():
        return
    left = [path for path in _replaced(target) if path.is_dir() and not path.is_symlink()]
    if not left:
        return
    try:
        # Another process may be removing an earlier one.
        os.rename(left[-1], target)
    except OSError as error:
        # The process that replaces it may be alive, and be faster.
        if error.errno not in (errno.ENOENT, *_EXISTS):
            raise
        return
    sync_path(target.parent)


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the sha256 of a file as hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remove_tree(root: Path) -> None:
    """Remove a directory to which a task that was left on a cluster may still be writing.

    Raises
    ------
    OSError
        If that fails for another reason, or new files appear for `_SETTLE_S` seconds.
    """
    ends = time.monotonic() + _SETTLE_S
    while root.exists():
        try:
            shutil.rmtree(root)
        except FileNotFoundError:
            # The task has removed a file of its own.
            continue
        except OSError as error:
            if error.errno not in _BUSY or time.monotonic() > ends:
                raise
            time.sleep(0.1)
