"""Arrays on disk that passes read: named by digest, checked once a process, mapped into memory, given back.

A state is an ``.npy`` file that all workers see. Rows that a pass stored for a later one are Zarr arrays, one a
shard.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import shutil
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from distmom.corpus.arrays import create_array, decode_array
from distmom.corpus.commit import put_if_absent
from distmom.corpus.npy import map_npy
from distmom.errors import StoreError

#: rows of a tall array that are read, worked on and digested together
SLAB_ROWS = 1 << 15
#: bytes of a slab from which on its CRC-32C stands for it, which is found several times as fast as its sha256
CHECKSUM_BYTES = 1 << 17


@dataclass(frozen=True)
class StoredArray:
    """An array on disk, opened as a read-only memory map.

    Attributes
    ----------
    path : str
        An ``.npy`` file that all workers can read.
    digest : str
        As told by `state_digest`.
    """

    path: str
    digest: str

    def load(self) -> np.ndarray:
        """Map the array into memory; StoreError if it is gone or has changed, checked once a process."""
        return _mapped(self.path, self.digest)


#: maps of states that this process has opened and checked, the latest last
_maps: OrderedDict[tuple[str, str], np.ndarray] = OrderedDict()
_MAX_MAPS = 64


def _mapped(path: str, digest: str) -> np.ndarray:
    array = _maps.get((path, digest))
    if array is None:
        array = map_file(path)
        if (got := state_digest(array)) != digest:
            raise StoreError(f"{path}: state differs: expected digest {digest[:12]}, got {got[:12]}")
        _maps[path, digest] = array
        if len(_maps) > _MAX_MAPS:
            _maps.popitem(last=False)
    return array


def release_maps() -> None:
    """Give the pages of all mapped states back to the system, which keeps them in its cache.

    They count as memory of the process, and one that has mapped the states of several passes would be paused
    or ended for what it no longer needs. Maps stay valid: a page that is read again is there again.
    """
    for array in list(_maps.values()):
        release(array)


def release(array: np.ndarray) -> None:
    """Give the pages of one mapped array, or view of one, back (see `release_maps`); others are left alone."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        mapped = getattr(owner, "_mmap", None)
        if mapped is not None:
            mapped.madvise(mmap.MADV_DONTNEED)
            return
        owner = owner.base


def map_file(path: str) -> np.ndarray:
    """Map an ``.npy`` file into memory, its elements unchecked; StoreError if it is none."""
    return map_npy(path)


@dataclass(frozen=True)
class Columns:
    """A matrix in slabs of columns.

    Attributes
    ----------
    parts : tuple of ndarray of shape (n_rows, width_i)
    """

    parts: tuple[np.ndarray, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and columns of all slabs."""
        return len(self.parts[0]), sum(part.shape[1] for part in self.parts)

    def each(self) -> Iterator[np.ndarray]:
        """Yield the slabs; those that are mapped files are given back to the system, where there are several.

        Mapped pages count as memory of the process, and a limit that called for slabs has no room for all.
        """
        for part in self.parts:
            yield part
            if len(self.parts) > 1:
                release(part)


@dataclass(frozen=True)
class StoredColumns:
    """A matrix on disk in slabs of columns.

    Attributes
    ----------
    parts : tuple of StoredArray
    """

    parts: tuple[StoredArray, ...]

    @property
    def digest(self) -> str:
        """Digest of all slabs."""
        return hashlib.sha256(json.dumps([part.digest for part in self.parts]).encode()).hexdigest()

    def load(self) -> Columns:
        """Map the slabs into memory; StoreError if one is gone or has changed."""
        return Columns(tuple(part.load() for part in self.parts))


@dataclass(frozen=True)
class StoredRows:
    """Rows that a pass stored, one Zarr array a shard.

    Attributes
    ----------
    directory : str
        Holds one array for each shard, named by the shard's index and the digest of its rows.
    digests : dict of str to str
        sha256 of each shard's rows and of the metadata that they are stored with.
    """

    directory: str
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of all rows."""
        return hashlib.sha256(json.dumps(self.digests, sort_keys=True).encode()).hexdigest()

    def read(self, shard: int) -> np.ndarray:
        """Read the rows of one shard; StoreError if they are not what was written."""
        expected = self.digests.get(str(shard))
        if expected is None:
            raise StoreError(f"{self.directory}: no rows are stored for shard {shard}")
        path = _rows_path(self.directory, shard, expected)
        try:
            files = {
                key.relative_to(path).as_posix(): key.read_bytes() for key in path.rglob("*") if key.is_file()
            }
        except OSError as error:
            raise StoreError(f"{path}: stored rows cannot be read: {error}") from error
        rows = np.ascontiguousarray(decode_array(str(path), files))
        if (got := _rows_digest(rows, files["zarr.json"])) != expected:
            raise StoreError(f"{path}: stored rows differ: expected sha256 {expected[:12]}, got {got[:12]}")
        return rows

    def has(self, shard: int) -> bool:
        """Whether the rows of one shard are what was written."""
        try:
            self.read(shard)
        except StoreError:
            return False
        return True


def _rows_digest(rows: np.ndarray, metadata: bytes) -> str:
    """sha256 of shape, type and bytes of rows, and of the metadata that they are stored with.

    It is not of their files: two workers may compress the same rows into other bytes.
    """
    digest = hashlib.sha256(f"{rows.shape}{rows.dtype.str}".encode())
    digest.update(np.ascontiguousarray(rows).data)
    digest.update(metadata)
    return digest.hexdigest()


def state_digest(array: np.ndarray) -> str:
    """Digest of shape, type and slabs of rows of an array, so that slabs can be digested where they are made."""
    rows = array.reshape(-1) if array.ndim == 0 else array
    slabs = []
    for start in range(0, len(rows), SLAB_ROWS):
        slabs.append(slab_checksum(np.ascontiguousarray(rows[start : start + SLAB_ROWS])))
        # A worker may not have the memory to hold all of a mapped array at once.
        release(array)
    return slab_digest(array.shape, array.dtype, slabs)


class SlabChecksum:
    """What tells a slab of rows from another and from a damaged one: of a small slab its sha256.

    Of a large one it is the CRC-32C, which misses one difference in four billion.
    """

    def __init__(self) -> None:
        self._sha, self._crc, self._n_bytes = hashlib.sha256(), 0, 0

    def update(self, content: np.ndarray) -> None:
        """Add elements, contiguous in memory."""
        self._n_bytes += content.nbytes
        if self._n_bytes < CHECKSUM_BYTES:
            self._sha.update(content.data)
        self._crc = int(google_crc32c.extend(self._crc, content.reshape(-1).view(np.uint8)))

    def hexdigest(self) -> str:
        """Return the checksum of all that was added."""
        return self._sha.hexdigest() if self._n_bytes < CHECKSUM_BYTES else f"{self._crc:08x}"


def slab_checksum(slab: np.ndarray) -> str:
    """Return the `SlabChecksum` of a slab that is in memory."""
    checksum = SlabChecksum()
    checksum.update(slab)
    return checksum.hexdigest()


def slab_digest(shape: tuple[int, ...], dtype: np.dtype[Any], slabs: Sequence[str]) -> str:
    """Digest of an array, given the checksums of its slabs of rows."""
    return hashlib.sha256(f"{shape}{dtype.str}{','.join(slabs)}".encode()).hexdigest()


def write_rows(directory: str, shard: int, rows: np.ndarray) -> str:
    """Store the rows of one shard so that they are there whole or not at all, and return their digest.

    Parameters
    ----------
    directory : str
        Where the arrays of this row output live.
    shard : int
        Index of the shard.
    rows : ndarray of shape (n_documents, ...)
    """
    temporary = Path(directory) / f".tmp-{uuid.uuid4().hex}"
    temporary.parent.mkdir(parents=True, exist_ok=True)
    try:
        array = create_array(temporary, rows.shape, rows.dtype, level=1)
        array[...] = rows
        digest = _rows_digest(rows, (temporary / "zarr.json").read_bytes())
        stored = StoredRows(directory, {str(shard): digest})
        # An attempt that was given up may have been faster, or come later.
        put_if_absent(temporary, _rows_path(directory, shard, digest), lambda _: stored.has(shard))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return digest


def _rows_path(directory: str, shard: int, digest: str) -> Path:
    return Path(directory) / f"s{shard:05d}-{digest[:16]}"
