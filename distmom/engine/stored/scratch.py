"""Files and memory of partial sums, which reuse each other's memory pages.

Pages that were used recently are several times faster to write to than new ones: files overwrite earlier files,
and the pages of a sum are released while it is written.

A file belongs to the attempt of a task that writes it. Only files whose names an attempt has reported are read,
and only such files, which are no longer written, are overwritten: an abandoned attempt that continues to write
cannot change a result. Blocks of a file have checksums, which are compared on every read.
"""

from __future__ import annotations

import math
import mmap
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Protocol

import google_crc32c
import numpy as np

from distmom.corpus.files.npy import map_bytes
from distmom.errors import StoreError

#: name of the directory, next to those of passes, of files that may be overwritten
SPARE = "spare"
#: bytes per checksum; ranges are read in whole blocks
BLOCK_BYTES = 1 << 16
#: bytes of a sum that are written before their pages are released; a multiple of any page size
_POURED_BYTES = 8 << 20


@dataclass(frozen=True)
class ScratchArray:
    """An array in a file, as reported by the attempt of a task that wrote it.

    Attributes
    ----------
    path : str
        File of the elements, followed by the CRC-32C of every block, uint32.
    shape : tuple of int
    dtype : str
    block_bytes : int
        Size of a block; a multiple of the size of an element.
    checksum : int
        CRC-32C of all checksums.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    block_bytes: int
    checksum: int

    @property
    def digest(self) -> str:
        """Text by which arrays with different elements differ, wherever they are."""
        return f"{self.shape}{self.dtype}{self.block_bytes}:{self.checksum:08x}"

    @property
    def n_bytes(self) -> int:
        """Size of the elements."""
        return _n_bytes(self.shape, self.dtype)

    def flat(self) -> ScratchArray:
        """Return the same array in one dimension."""
        return replace(self, shape=(math.prod(self.shape),))

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return ``array[start:stop]``; a StoreError if the file has changed."""
        size = _n_bytes(self.shape[1:], self.dtype)
        first = start * size // self.block_bytes
        begin, end = first * self.block_bytes, -(-stop * size // self.block_bytes) * self.block_bytes
        content = _read(self.path, begin, min(end, self.n_bytes))
        self._check(content, first)
        # SciPy copies arrays that are views of arrays with more elements, such as these bytes.
        values = np.frombuffer(content.data[start * size - begin : stop * size - begin], self.dtype)
        return values.reshape(stop - start, *self.shape[1:])

    def load(self) -> np.ndarray:
        """Memory-map the array read-only; a StoreError if the file has changed."""
        try:
            with open(self.path, "rb") as stream:
                mapped = map_bytes(stream, self.n_bytes)
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.path}: a partial sum cannot be read: {error}") from error
        self._check(np.frombuffer(mapped, np.uint8), 0)
        return np.ndarray(self.shape, self.dtype, mapped)

    def check(self) -> None:
        """Read the whole file piece by piece; a StoreError if it is missing or has changed."""
        flat = self.flat()
        step = self.block_bytes * max(1, _POURED_BYTES // self.block_bytes) // np.dtype(self.dtype).itemsize
        for start in range(0, max(1, flat.shape[0]), step):
            flat.read(start, min(start + step, flat.shape[0]))

    def _check(self, content: np.ndarray, first: int) -> None:
        checksums = _checksums(self.path, self.n_bytes, self.block_bytes, self.checksum)
        for number, start in enumerate(range(0, len(content), self.block_bytes), first):
            got = _crc(content[start : start + self.block_bytes])
            if got != checksums[number]:
                raise StoreError(
                    f"{self.path}: a partial sum has changed since it was written: "
                    f"block {number}: expected CRC-32C {checksums[number]:08x}, got {got:08x}"
                )


def _n_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _crc(content: np.ndarray, before: int = 0) -> int:
    return int(google_crc32c.extend(before, content))


@lru_cache(maxsize=4096)
def _checksums(path: str, n_bytes: int, block_bytes: int, checksum: int) -> tuple[int, ...]:
    """Read the checksums of a file, once per process."""
    n_blocks = -(-n_bytes // block_bytes)
    content = _read(path, n_bytes, n_bytes + 4 * n_blocks)
    if (got := _crc(content)) != checksum:
        raise StoreError(
            f"{path}: a partial sum has changed since it was written: "
            f"checksums: expected CRC-32C {checksum:08x}, got {got:08x}"
        )
    return tuple(content.view("<u4").tolist())


def _read(path: str, start: int, stop: int) -> np.ndarray:
    try:
        content = np.fromfile(path, np.uint8, stop - start, offset=start)
    except OSError as error:
        raise StoreError(f"{path}: a partial sum cannot be read: {error}") from error
    if len(content) != stop - start:
        raise StoreError(f"{path}: expected {stop - start} bytes at {start}, got {len(content)}")
    return content


class ScratchWriter:
    """Writes a file block by block; made by `scratch_file`.

    Attributes
    ----------
    written : ScratchArray
        The report; set when the context of `scratch_file` is left without an error.
    """

    written: ScratchArray

    def __init__(
        self, path: Path, stream: IO[bytes], shape: tuple[int, ...], dtype: str, block_bytes: int
    ) -> None:
        self._path, self._stream, self._block_bytes = path, stream, block_bytes
        self._shape, self._dtype = shape, dtype
        self._checksums: list[int] = []
        self._open = self._n_bytes = 0

    def write(self, array: np.ndarray) -> None:
        """Write the elements of a contiguous array."""
        content = array.reshape(-1).view(np.uint8)
        start = 0
        while start < len(content):
            stop = min(len(content), start + self._block_bytes - self._n_bytes % self._block_bytes)
            self._open = _crc(content[start:stop], self._open)
            self._n_bytes += stop - start
            start = stop
            if self._n_bytes % self._block_bytes == 0:
                self._close_block()
        self._stream.write(content.data)

    def _close_block(self) -> None:
        self._checksums.append(self._open)
        self._open = 0

    def finish(self) -> None:
        """Write the checksums after the elements; a ValueError if elements are missing."""
        if self._n_bytes != (expected := _n_bytes(self._shape, self._dtype)):
            raise ValueError(f"{self._path}: expected {expected} bytes to be written, got {self._n_bytes}")
        if self._n_bytes % self._block_bytes:
            self._close_block()
        checksums = np.array(self._checksums, "<u4").view(np.uint8)
        self._stream.write(checksums.data)
        self._stream.truncate()
        checksum = _crc(checksums)
        self.written = ScratchArray(str(self._path), self._shape, self._dtype, self._block_bytes, checksum)


@contextmanager
def scratch_file(
    directory: str | os.PathLike[str], shape: tuple[int, ...], dtype: str, block_bytes: int = BLOCK_BYTES
) -> Iterator[ScratchWriter]:
    """Open a file with a unique name for an array, overwriting a spare file if there is one; a context manager.

    Parameters
    ----------
    directory : path-like
        Created if it does not exist; the directory `SPARE` beside it holds the files that may be overwritten.
    shape : tuple of int
    dtype : str
    block_bytes : int, default BLOCK_BYTES
        Bytes per checksum.
    """
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    path = place / uuid.uuid4().hex
    mode = "r+b" if claimed(path, _n_bytes(shape, dtype), place.parent / SPARE) else "xb"
    try:
        with path.open(mode) as stream:
            writer = ScratchWriter(path, stream, shape, dtype, block_bytes)
            yield writer
            writer.finish()
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_scratch(
    directory: str | os.PathLike[str], array: np.ndarray, block_bytes: int = BLOCK_BYTES
) -> ScratchArray:
    """Write one array to a file and report it; an array made by `cleared` is zero afterwards."""
    with scratch_file(directory, array.shape, array.dtype.str, block_bytes) as writer:
        pour(array, writer)
    return writer.written


def claimed(own: Path, n_bytes: int, spare: Path) -> bool:
    """Rename the spare file closest in size to ``own``, unless all are much larger; return whether one was."""
    sizes = []
    with suppress(OSError), os.scandir(spare) as entries:
        for entry in entries:
            with suppress(OSError):
                sizes.append((abs(entry.stat().st_size - n_bytes), entry.path))
    for distance, path in sorted(sizes):
        if distance > n_bytes:
            return False
        # Another task may have claimed it first.
        with suppress(OSError):
            os.rename(path, own)
            return True
    return False


def cleared(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return zeros; large arrays are in separate pages, which `pour` can release one by one."""
    n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if n_bytes <= _POURED_BYTES:
        return np.zeros(shape, dtype)
    pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.ndarray(shape, dtype, buffer=pages)


class _Writer(Protocol):
    def write(self, array: np.ndarray, /) -> Any: ...


def pour(array: np.ndarray, stream: _Writer) -> None:
    """Write an array; one made by `cleared` is zero afterwards, as its pages are released to the file."""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    pages = getattr(array.base, "madvise", None)
    for start in range(0, len(content), _POURED_BYTES):
        part = content[start : start + _POURED_BYTES]
        stream.write(part)
        if pages is not None:
            pages(mmap.MADV_DONTNEED, start, len(part))
