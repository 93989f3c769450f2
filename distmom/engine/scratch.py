"""Memory and files of partial sums, which pass the same pages of memory on to each other.

Pages that were in use a moment ago are several times faster to write to than new ones: files are written over
earlier ones, and a sum gives its pages up while it is written.
"""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

#: name of the directory of files that may be written over
SPARE = "spare"
#: bytes of a sum that are written before their pages are given up; a multiple of any page
_POURED_BYTES = 8 << 20


def spare_of(path: str | os.PathLike[str]) -> Path:
    """Return the directory of spare files beside that of a partial sum, ``partial/<pass>/<file>``."""
    return Path(path).parent.parent / SPARE


@contextmanager
def scratch_file(path: str | os.PathLike[str], n_bytes: int, spare: Path) -> Iterator[Any]:
    """Open a file that is there under its name once it is whole, written over a spare one where there is one.

    Parameters
    ----------
    path : path-like
    n_bytes : int
        How much will be written, about.
    spare : Path
        Directory of the files that may be written over.
    """
    target = Path(path)
    # A twin of this task may write the same bytes at the same time.
    own = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = "r+b" if claimed(own, n_bytes, spare) else "xb"
    try:
        with open(own, mode) as stream:
            yield stream
            stream.truncate()
        os.replace(own, target)
    except BaseException:
        own.unlink(missing_ok=True)
        raise


def claimed(own: Path, n_bytes: int, spare: Path) -> bool:
    """Take the spare file of the best size, unless all are much too large, and give it a name of one's own."""
    sizes = []
    with suppress(OSError), os.scandir(spare) as entries:
        for entry in entries:
            with suppress(OSError):
                sizes.append((abs(entry.stat().st_size - n_bytes), entry.path))
    for distance, path in sorted(sizes):
        if distance > n_bytes:
            return False
        # Another task may have been faster.
        with suppress(OSError):
            os.rename(path, own)
            return True
    return False


def cleared(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return zeros, those of a large array in pages of their own that `pour` can give up one by one."""
    n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if n_bytes <= _POURED_BYTES:
        return np.zeros(shape, dtype)
    pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.ndarray(shape, dtype, buffer=pages)


def pour(array: np.ndarray, stream: BinaryIO) -> None:
    """Write an array; one made by `cleared` is zeros afterwards, and its pages hold the file."""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    pages = getattr(array.base, "madvise", None)
    for start in range(0, len(content), _POURED_BYTES):
        part = content[start : start + _POURED_BYTES]
        stream.write(part.data)
        if pages is not None:
            pages(mmap.MADV_DONTNEED, start, len(part))
