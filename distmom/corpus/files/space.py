"""Free space of disks, and errors of full ones, which the system reports without path and numbers."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distmom.errors import OutOfSpaceError


@contextmanager
def space_explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise an OutOfSpaceError in place of the system's error when a disk becomes full; a context manager.

    Parameters
    ----------
    path : path-like
        Where files are written, unless the error names a file.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, OutOfSpaceError) or not _is_full(error):
            raise
        place = str(error.filename or path)
        raise OutOfSpaceError(f"{place}: no space left on device{_numbers(place)}") from error


def _is_full(error: OSError) -> bool:
    # NumPy reports an array that was written in part without the error of the system.
    in_part = error.errno is None and "requested and" in str(error)
    return in_part or error.errno in (errno.ENOSPC, errno.EDQUOT)


def find_usage(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Return the free bytes and all bytes of the file system of a path that need not exist; None if unknown."""
    found = Path(path).absolute()
    for folder in (found, *found.parents):
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            continue
        return usage.free, usage.total
    return None


def held_bytes(path: str | os.PathLike[str]) -> int:
    """Return the size of all files below a directory, in which others may be writing; 0 if it does not exist."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            # Another process may have removed it meanwhile.
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def _numbers(place: str) -> str:
    """Return the free bytes of the file system of a path as the end of a clause."""
    usage = find_usage(place)
    return "" if usage is None else f": {usage[0]:,} of {usage[1]:,} bytes are free"
