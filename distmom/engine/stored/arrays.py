"""Stored arrays and rows: named by digest, checked once per process, memory-mapped.

A stored array is an ``.npy`` file that all workers see. Rows that a pass stores for a later pass are Zarr
arrays, one per shard.
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

from distmom.corpus.files.commit import TEMPORARY, put_if_absent
from distmom.corpus.files.decoding import decode_array
from distmom.corpus.files.encoding import write_array
from distmom.corpus.files.npy import map_npy, mapped_file
from distmom.errors import StoreError

#: rows of a tall array that are read, processed and digested together
SLAB_ROWS = 1 << 15
#: bytes of a slab from which its CRC-32C is used in place of its sha256, which takes several times as long
CHECKSUM_BYTES = 1 << 17


@dataclass(frozen=True)
class StoredArray:
    """An array on disk, opened as a read-only memory map.

    Attributes
    ----------
    path : str
        An ``.npy`` file that all workers can read.
    digest : str
        As returned by `state_digest`.
    """

    path: str
    digest: str

    def load(self) -> np.ndarray:
        """Memory-map the array; a StoreError if it is missing or has changed, checked once per process."""
        return _mapped(self.path, self.digest)


#: maps of stored arrays that this process has opened and checked, the latest last
_maps: OrderedDict[tuple[str, str], np.ndarray] = OrderedDict()
_MAX_MAPS = 64


def _mapped(path: str, digest: str) -> np.ndarray:
    array = _maps.get((path, digest))
    if array is None:
        array = map_file(path)
        if (got := state_digest(array)) != digest:
            raise StoreError(
                f"{path}: stored array has changed: expected digest {digest[:12]}, got {got[:12]}"
            )
        _maps[path, digest] = array
        if len(_maps) > _MAX_MAPS:
            _maps.popitem(last=False)
    return array


def forget_maps(directory: Path) -> None:
    """Forget the maps of stored arrays below a directory that is removed; arrays that are in use stay valid.

    A map keeps the space of a removed file on the disk, and a file descriptor.
    """
    for path, digest in list(_maps):
        if directory in Path(path).parents:
            _maps.pop((path, digest), None)


def release_maps() -> None:
    """Release the pages of all memory-mapped arrays; the system keeps them in its cache.

    Mapped pages count as memory of the process, and a worker that has mapped the arrays of several passes would be
    paused or killed for memory that it no longer needs. Maps stay valid: pages are mapped again when they are
    read.
    """
    for array in list(_maps.values()):
        release(array)


def release(array: np.ndarray) -> None:
    """Release the pages of a memory-mapped array or of a view of one (see `release_maps`); ignore other arrays."""
    mapped = mapped_file(array)
    if mapped is not None:
        mapped.madvise(mmap.MADV_DONTNEED)


def map_file(path: str) -> np.ndarray:
    """Memory-map an ``.npy`` file without checking its elements; a StoreError if the file is not valid."""
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
        """Numbers of rows, and of columns of all slabs."""
        return len(self.parts[0]), sum(part.shape[1] for part in self.parts)

    def each(self) -> Iterator[np.ndarray]:
        """Yield the slabs; where there are several, the pages of each are released after its use.

        Mapped pages count as memory of the process, and a memory limit that required slabs has no room for all.
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
        """Memory-map the slabs; a StoreError if one is missing or has changed."""
        return Columns(tuple(part.load() for part in self.parts))


@dataclass(frozen=True)
class StoredRows:
    """Rows stored by a pass, one Zarr array per shard.

    Attributes
    ----------
    directory : str
        Contains one array per shard, named by the index of the shard and the digest of its rows.
    digests : dict of str to str
        sha256 of the rows of each shard and of the metadata of their array.
    axis : {"units", "rows"}
        Whether stored rows belong to units (default) or to rows of the corpus.
    """

    directory: str
    digests: dict[str, str] = field(default_factory=dict)
    axis: str = "units"

    @property
    def digest(self) -> str:
        """Digest of all rows."""
        return hashlib.sha256(json.dumps(self.digests, sort_keys=True).encode()).hexdigest()

    def read(self, shard: int) -> np.ndarray:
        """Read the rows of one shard; a StoreError if they have changed."""
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
            raise StoreError(
                f"{path}: stored rows have changed: expected sha256 {expected[:12]}, got {got[:12]}"
            )
        return rows

    def has(self, shard: int) -> bool:
        """Return whether the rows of one shard are stored and intact."""
        try:
            self.read(shard)
        except StoreError:
            return False
        return True


def _rows_digest(rows: np.ndarray, metadata: bytes) -> str:
    """Return the sha256 of shape, type and bytes of rows, and of the metadata of their array.

    It does not cover their files, as two workers may compress the same rows to different bytes.
    """
    digest = hashlib.sha256(f"{rows.shape}{rows.dtype.str}".encode())
    digest.update(np.ascontiguousarray(rows).data)
    digest.update(metadata)
    return digest.hexdigest()


def state_digest(array: np.ndarray) -> str:
    """Return a digest of shape, type and slabs of rows; slabs can thus be digested where they are made."""
    rows = array.reshape(-1) if array.ndim == 0 else array
    slabs = []
    for start in range(0, len(rows), SLAB_ROWS):
        slabs.append(slab_checksum(np.ascontiguousarray(rows[start : start + SLAB_ROWS])))
        # A mapped array may be larger than the memory of a worker.
        release(array)
    return slab_digest(array.shape, array.dtype, slabs)


class SlabChecksum:
    """The checksum of a slab of rows: the sha256 of a small slab, the CRC-32C of a large one.

    The CRC-32C misses one difference in four billion.
    """

    def __init__(self) -> None:
        self._sha, self._crc, self._n_bytes = hashlib.sha256(), 0, 0

    def update(self, content: np.ndarray) -> None:
        """Add the elements of a contiguous array."""
        self._n_bytes += content.nbytes
        if self._n_bytes < CHECKSUM_BYTES:
            self._sha.update(content.data)
        self._crc = int(google_crc32c.extend(self._crc, content.reshape(-1).view(np.uint8)))

    def hexdigest(self) -> str:
        """Return the checksum of all elements added."""
        return self._sha.hexdigest() if self._n_bytes < CHECKSUM_BYTES else f"{self._crc:08x}"


def slab_checksum(slab: np.ndarray) -> str:
    """Return the `SlabChecksum` of a slab in memory."""
    checksum = SlabChecksum()
    checksum.update(slab)
    return checksum.hexdigest()


def slab_digest(shape: tuple[int, ...], dtype: np.dtype[Any], slabs: Sequence[str]) -> str:
    """Return the digest of an array, given the checksums of its slabs of rows."""
    return hashlib.sha256(f"{shape}{dtype.str}{','.join(slabs)}".encode()).hexdigest()


def write_rows(directory: str, shard: int, rows: np.ndarray) -> str:
    """Store the rows of one shard atomically, and return their digest.

    Parameters
    ----------
    directory : str
        Directory of the arrays of this row output.
    shard : int
        Index of the shard.
    rows : ndarray of shape (n_documents, ...)
    """
    temporary = Path(directory) / f"{TEMPORARY}{uuid.uuid4().hex}"
    try:
        write_array(temporary, rows, level=1)
        digest = _rows_digest(rows, (temporary / "zarr.json").read_bytes())
        stored = StoredRows(directory, {str(shard): digest})
        # An abandoned attempt may write the same rows, earlier or later.
        put_if_absent(temporary, _rows_path(directory, shard, digest), lambda _: stored.has(shard))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return digest


def _rows_path(directory: str, shard: int, digest: str) -> Path:
    return Path(directory) / f"s{shard:05d}-{digest[:16]}"
