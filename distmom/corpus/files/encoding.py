"""Create Zarr arrays, and encode arrays as the files of Zarr arrays and groups.

Chunks are encoded without Zarr, whose event loop in another thread takes several times as long for the arrays of a
small shard; metadata are those that Zarr writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import google_crc32c
import numpy as np
import zarr
import zstandard
from scipy.sparse import csr_array, issparse
from zarr.abc.buffer import Buffer
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.storage import MemoryStore, StoreLike

#: maximum number of elements in a chunk of a vector of a corpus or of predictions
CHUNK_ELEMENTS = 1 << 20
#: maximum size in bytes of a chunk of rows
CHUNK_BYTES = 4 << 20
#: names of the arrays of a CSR matrix
CSR_PARTS = ("data", "indices", "indptr")


def create_array(
    store: StoreLike,
    shape: tuple[int, ...],
    dtype: np.dtype[Any] | str,
    *,
    name: str | None = None,
    chunk_rows: int | None = None,
    level: int = 3,
) -> zarr.Array[Any]:
    """Create a Zarr array as all arrays of distmom are stored: whole rows in chunks, zstd, then CRC-32C.

    Chunks that hold only zeros are written too: a chunk that is missing is damage.

    Parameters
    ----------
    store : store, path-like or StorePath
        Where the array goes; ``group.store_path`` with the ``name`` of an array in a group.
    shape : tuple of int
        One dimension at least.
    dtype : dtype or str
    name : str, optional
        Path below the store; may hold ``/``. By default the array is the root of the store.
    chunk_rows : int, optional
        Largest number of rows in a chunk; by default those of `CHUNK_BYTES`.
    level : int
        Compression level of zstd, 3 by default.
    """
    return zarr.create_array(
        store,
        name=name,
        shape=shape,
        dtype=dtype,
        chunks=_chunk_shape(shape, np.dtype(dtype), chunk_rows),
        compressors=[ZstdCodec(level=level), Crc32cCodec()],
        config={"write_empty_chunks": True},
    )


def _chunk_shape(shape: tuple[int, ...], dtype: np.dtype[Any], chunk_rows: int | None) -> tuple[int, ...]:
    if chunk_rows is None:
        chunk_rows = CHUNK_BYTES // max(1, math.prod(shape[1:]) * dtype.itemsize)
    # Zarr from version 3.4 on refuses chunks of size 0, also of an axis of size 0.
    return tuple(max(1, size) for size in (min(shape[0], chunk_rows), *shape[1:]))


def encode_array(
    array: np.ndarray, *, chunk_rows: int | None = None, level: int = 3
) -> Iterator[tuple[str, bytes]]:
    """Encode an array as the files of the array of `create_array`, with their paths relative to it.

    Parameters
    ----------
    array : ndarray
        One dimension at least.
    chunk_rows, level : int, optional
        As for `create_array`.
    """
    array = np.asarray(array, array.dtype.newbyteorder("="))
    sizes = _chunk_shape(array.shape, array.dtype, chunk_rows)
    metadata, record = _array_metadata(array.dtype.str, array.ndim, level)
    grid = {"name": "regular", "configuration": {"chunk_shape": sizes}}
    yield "zarr.json", _dumped({**record, "shape": array.shape, "chunk_grid": grid})
    compressor = zstandard.ZstdCompressor(level=level)
    for number, first in enumerate(range(0, len(array), sizes[0]) if array.size else ()):
        rows = np.ascontiguousarray(array[first : first + sizes[0]])
        if len(rows) < sizes[0]:
            # Chunks at the end are stored in full size.
            rows = np.concatenate([rows, np.zeros((sizes[0] - len(rows), *sizes[1:]), rows.dtype)])
        content = compressor.compress(rows.data.cast("B"))
        key = metadata.encode_chunk_key((number, *[0] * (array.ndim - 1)))
        yield key, content + int(google_crc32c.value(content)).to_bytes(4, "little")


@cache
def _array_metadata(dtype: str, n_axes: int, level: int) -> tuple[ArrayV3Metadata, dict[str, Any]]:
    """Return the metadata of an array of `create_array` of size 1 along every axis, also as Zarr writes them."""
    files: dict[str, Buffer] = {}
    array = create_array(MemoryStore(files), (1,) * n_axes, dtype, level=level)
    metadata = array.metadata
    assert isinstance(metadata, ArrayV3Metadata)
    return metadata, json.loads(files["zarr.json"].to_bytes())


@cache
def _group_metadata() -> dict[str, Any]:
    files: dict[str, Buffer] = {}
    zarr.create_group(store=MemoryStore(files))
    found: dict[str, Any] = json.loads(files["zarr.json"].to_bytes())
    return found


def _dumped(record: Mapping[str, Any]) -> bytes:
    """Return metadata as bytes, as Zarr writes them."""
    return json.dumps(record, indent=2).encode()


def _encode_group(attributes: Mapping[str, Any] | None = None) -> tuple[str, bytes]:
    """Encode a Zarr group without its members as a file, with its path relative to the group."""
    return "zarr.json", _dumped({**_group_metadata(), "attributes": dict(attributes or {})})


def encode_group(arrays: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    """Encode one-dimensional arrays as a Zarr group; return its files by path within the group."""
    files = dict([_encode_group()])
    for name, array in arrays.items():
        files |= _below(name, encode_array(array, chunk_rows=CHUNK_ELEMENTS))
    return files


def encode_matrices(matrices: Mapping[str, csr_array]) -> dict[str, bytes]:
    """Encode CSR matrices as a Zarr group, one subgroup per matrix in AnnData's CSR layout (version 0.1.0)."""
    files = dict([_encode_group()])
    for name, matrix in matrices.items():
        files |= _below(name, _encode_matrix(matrix))
    return files


def encode_layers(arrays: Mapping[str, Any]) -> dict[str, bytes]:
    """Encode arrays of any shape and CSR matrices as a Zarr group."""
    files = dict([_encode_group()])
    for name, array in arrays.items():
        # Bits of measured numbers look random, and higher levels would find little more.
        files |= _below(name, _encode_matrix(array) if issparse(array) else encode_array(array, level=1))
    return files


def _encode_matrix(matrix: csr_array) -> Iterator[tuple[str, bytes]]:
    attributes: dict[str, Any] = {
        "encoding-type": "csr_matrix",
        "encoding-version": "0.1.0",
        "shape": [int(size) for size in matrix.shape],
    }
    yield _encode_group(attributes)
    parts = matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int64)
    for name, array in zip(CSR_PARTS, parts, strict=True):
        yield from _below(name, encode_array(array, chunk_rows=CHUNK_ELEMENTS)).items()


def _below(name: str, files: Iterator[tuple[str, bytes]]) -> dict[str, bytes]:
    """Return files by their paths where they are below a name."""
    return {f"{name}/{key}": content for key, content in files}


def write_array(directory: Path, array: np.ndarray, *, level: int = 3) -> None:
    """Write an array to a directory that does not exist yet, as that of `create_array`."""
    for key, content in encode_array(array, level=level):
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write_group(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays of any shape to a directory that does not exist yet, as a Zarr group.

    Names may contain ``/``: such arrays are in groups of the group.
    """
    folders = {folder for name in arrays for folder in PurePosixPath(name).parents} | {PurePosixPath(".")}
    for folder in folders:
        key, content = _encode_group()
        (directory / folder).mkdir(parents=True, exist_ok=True)
        (directory / folder / key).write_bytes(content)
    for name, array in arrays.items():
        write_array(directory / name, array)
