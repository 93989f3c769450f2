"""Zarr groups as bytes: arrays to the files of a group and back, without touching a disk.

Every file is read and checked as bytes before Zarr sees it: Zarr itself takes a missing chunk for zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr
from scipy.sparse import csr_array
from zarr.abc.buffer import Buffer
from zarr.buffer import default_buffer_prototype
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import MemoryStore

from distmom.corpus.block import csr_from_parts
from distmom.errors import StoreError

#: most elements in one chunk
CHUNK_ELEMENTS = 1 << 20
_CSR_PARTS = ("data", "indices", "indptr")


def encode_group(arrays: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    """Encode one-dimensional arrays as the files of a Zarr group, by path within the group."""
    files: dict[str, Buffer] = {}
    group = zarr.create_group(store=MemoryStore(files))
    for name, array in arrays.items():
        _add_array(group, name, array)
    return {key: value.to_bytes() for key, value in files.items()}


def encode_matrices(matrices: Mapping[str, csr_array]) -> dict[str, bytes]:
    """Encode CSR matrices as a Zarr group with one subgroup each, in AnnData's CSR layout (version 0.1.0)."""
    files: dict[str, Buffer] = {}
    root = zarr.create_group(store=MemoryStore(files))
    for name, matrix in matrices.items():
        attributes: dict[str, Any] = {
            "encoding-type": "csr_matrix",
            "encoding-version": "0.1.0",
            "shape": [int(size) for size in matrix.shape],
        }
        group = root.create_group(name, attributes=attributes)
        _add_array(group, "data", matrix.data)
        _add_array(group, "indices", matrix.indices.astype(np.int32))
        _add_array(group, "indptr", matrix.indptr.astype(np.int64))
    return {key: value.to_bytes() for key, value in files.items()}


def _add_array(group: zarr.Group, name: str, array: np.ndarray) -> None:
    stored = group.create_array(
        name,
        shape=array.shape,
        dtype=array.dtype,
        chunks=(max(1, min(array.size, CHUNK_ELEMENTS)),),
        compressors=[ZstdCodec(level=3), Crc32cCodec()],
        fill_value=0,
        config={"write_empty_chunks": True},
    )
    if array.size:
        stored[...] = array


def decode_group(place: str, files: Mapping[str, bytes], names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Decode arrays of a group; StoreError unless each has the type that ``names`` gives for it."""
    group = _open(place, files)
    return {name: _array(place, group, files, name, kinds) for name, kinds in names.items()}


def decode_matrix(
    place: str, files: Mapping[str, bytes], name: str, shape: tuple[int, int], kinds: str
) -> csr_array:
    """Decode one CSR matrix of a group and check its structure.

    Parameters
    ----------
    place : str
        What errors call the group.
    files : mapping of str to bytes
        All files of the group.
    name : str
        Subgroup of the matrix.
    shape : (int, int)
        The shape expected.
    kinds : str
        Types that the values may have, separated by ``|``.

    Raises
    ------
    StoreError
        If the group is not a CSR matrix of that shape and type with increasing columns and finite values that
        are not negative, naming array, file, expected and got.
    """
    root = _open(place, files)
    try:
        group = root[name]
    except (KeyError, ValueError, TypeError) as error:
        raise StoreError(f"{place}/{name}: cannot be read as a Zarr group: {error}") from error
    stored = group.attrs.asdict().get("shape")
    if stored != list(shape):
        raise StoreError(f"{place}/{name}/zarr.json: shape: expected {list(shape)}, got {stored}")
    types = (kinds, "int32", "int64")
    data, indices, indptr = (
        _array(place, root, files, f"{name}/{part}", kind)
        for part, kind in zip(_CSR_PARTS, types, strict=True)
    )
    _check_structure(f"{place}/{name}", data, indices, indptr, shape)
    return csr_from_parts(data, indices, indptr, shape)


def _open(place: str, files: Mapping[str, bytes]) -> zarr.Group:
    make = default_buffer_prototype().buffer.from_bytes
    try:
        store = MemoryStore({key: make(value) for key, value in files.items()}, read_only=True)
        return zarr.open_group(store, mode="r", zarr_format=3, use_consolidated=False)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise StoreError(f"{place}/zarr.json: cannot be read as a Zarr group: {error}") from error


def _array(place: str, group: zarr.Group, files: Mapping[str, bytes], name: str, kinds: str) -> np.ndarray:
    try:
        array = group[name]
        if not isinstance(array, zarr.Array) or array.ndim != 1:
            raise StoreError(f"{place}/{name}: expected an array of one dimension")
        if str(array.dtype) not in kinds.split("|"):
            raise StoreError(f"{place}/{name}/zarr.json: type: expected {kinds}, got {array.dtype}")
        for chunk in range(-(-array.shape[0] // array.chunks[0])):
            if f"{name}/c/{chunk}" not in files:
                raise StoreError(f"{place}/{name}/c/{chunk}: expected a chunk, got no such file")
        return np.asarray(array[...])
    except (KeyError, ValueError, TypeError, RuntimeError, OSError) as error:
        raise StoreError(f"{place}/{name}: cannot be decoded: {error}") from error


def _check_structure(
    place: str, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> None:
    n_rows, n_columns = shape
    if len(indptr) != n_rows + 1:
        raise StoreError(f"{place}/indptr: length: expected {n_rows + 1}, got {len(indptr)}")
    if indptr[0] != 0 or np.any(indptr[1:] < indptr[:-1]):
        raise StoreError(f"{place}/indptr: expected offsets that start at 0 and do not decrease")
    if not len(data) == len(indices) == indptr[-1]:
        raise StoreError(
            f"{place}/indptr: last offset: expected {len(data)} values and {len(indices)} columns, "
            f"got {indptr[-1]}"
        )
    if len(indices) and not (indices.min() >= 0 and indices.max() < n_columns):
        raise StoreError(
            f"{place}/indices: expected columns from 0 to {n_columns - 1}, "
            f"got {indices.min()} to {indices.max()}"
        )
    rising = indices[1:] > indices[:-1]
    starts = indptr[1:-1]
    rising[starts[(starts > 0) & (starts < len(indices))] - 1] = True
    if not rising.all():
        at = int(np.argmin(rising)) + 1
        row = int(np.searchsorted(indptr, at, side="right")) - 1
        raise StoreError(
            f"{place}/indices: row {row}: expected increasing columns, got {indices[at - 1 : at + 1]}"
        )
    if len(data) and not (data.min() >= 0 and np.isfinite(data).all()):
        raise StoreError(f"{place}/data: expected finite values that are not negative")
