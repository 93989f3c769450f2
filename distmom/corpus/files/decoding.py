"""Decode the files of Zarr arrays and groups, all of which are read and checked as bytes.

Zarr reads a missing chunk as zeros, and its event loop in another thread takes several times as long for the
arrays of a small shard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import google_crc32c
import numpy as np
import zstandard
from scipy.sparse import csr_array
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec
from zarr.core.metadata.v3 import ArrayV3Metadata

from distmom.corpus.block import csr_from_parts
from distmom.corpus.files.encoding import CSR_PARTS
from distmom.corpus.files.records import parse_json
from distmom.errors import StoreError

#: maximum size in bytes of a decoded chunk
MAX_CHUNK_BYTES = 64 << 20
#: number of matrix elements checked at a time
_CHECKED_ELEMENTS = 1 << 22


def decode_group(
    place: str, files: Mapping[str, bytes], names: Mapping[str, tuple[str, int]]
) -> dict[str, np.ndarray]:
    """Decode arrays of a group; StoreError unless each has the type and size given for it in ``names``."""
    return {name: _vector(place, files, name, kinds, size) for name, (kinds, size) in names.items()}


def decode_matrix(
    place: str,
    files: Mapping[str, bytes],
    name: str,
    shape: tuple[int, int],
    kinds: str,
    nnz: int | None = None,
    *,
    is_signed: bool = False,
) -> csr_array:
    """Decode one CSR matrix of a group and check its structure.

    Parameters
    ----------
    place : str
        Location of the group, for error messages.
    files : mapping of str to bytes
        All files of the group.
    name : str
        Subgroup of the matrix.
    shape : (int, int)
        Expected shape.
    kinds : str
        Allowed types of the values, separated by ``|``.
    nnz : int, optional
        Expected number of stored elements; not checked by default.
    is_signed : bool, default False
        Whether values may be negative.

    Raises
    ------
    StoreError
        If the group is not a CSR matrix of that shape and type with increasing columns and finite,
        non-negative values. The message states the array, the file, and the expected and actual values.
    """
    of_group = _metadata(f"{place}/{name}", files_below(files, name), "group")
    attributes = of_group.get("attributes")
    stored = attributes.get("shape") if isinstance(attributes, dict) else None
    if stored != list(shape):
        raise StoreError(f"{place}/{name}/zarr.json: shape: expected {list(shape)}, got {stored}")
    types, sizes = (kinds, "int32", "int64"), (nnz, nnz, shape[0] + 1)
    data, indices, indptr = (
        _vector(place, files, f"{name}/{part}", kind, size)
        for part, kind, size in zip(CSR_PARTS, types, sizes, strict=True)
    )
    check_csr(f"{place}/{name}", data, indices, indptr, shape[1])
    if len(data) and not ((is_signed or data.min() >= 0) and np.isfinite(data).all()):
        what = "finite" if is_signed else "finite, non-negative"
        raise StoreError(f"{place}/{name}/data: expected {what} values")
    return csr_from_parts(data, indices, indptr, shape)


def decode_array(
    place: str,
    files: Mapping[str, bytes],
    kinds: str | None = None,
    shape: tuple[int | None, ...] | None = None,
) -> np.ndarray:
    """Decode an array written by distmom, which may be damaged.

    Nothing is allocated until the declared sizes agree with the expected shape and with the chunks.

    Parameters
    ----------
    place : str
        Location of the array, for error messages.
    files : mapping of str to bytes
        Files of the array, by path relative to it.
    kinds : str, optional
        Allowed types, separated by ``|``; any numeric type by default.
    shape : tuple of int or None, optional
        Expected shape, with None for an unknown size; not checked by default.

    Raises
    ------
    StoreError
        If the array is not stored as distmom writes arrays, or a chunk is missing, damaged or of the wrong
        size.
    """
    record = _metadata(place, files, "array")
    try:
        metadata = ArrayV3Metadata.from_dict(record)
        dtype = metadata.data_type.to_native_dtype()
        if shape is not None and (
            len(metadata.shape) != len(shape)
            or any(size not in (None, own) for size, own in zip(shape, metadata.shape, strict=True))
        ):
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise StoreError(f"{place}/zarr.json: shape: expected ({wanted}), got {metadata.shape}")
        if dtype.kind not in "fiub" if kinds is None else str(dtype) not in kinds.split("|"):
            raise StoreError(f"{place}/zarr.json: type: expected {kinds or 'numbers'}, got {dtype}")
        sizes = tuple(record["chunk_grid"]["configuration"]["chunk_shape"])
        chunks = _checked_chunks(place, metadata, sizes, dtype, files)
        array = np.empty(metadata.shape, dtype)
        # Elements of one byte have no order of bytes.
        of_bytes: Any = metadata.codecs[0].to_dict().get("configuration") or {}
        stored = dtype.newbyteorder(of_bytes.get("endian", "native"))
        for start, key in chunks.items():
            window = tuple(map(slice, start, np.add(start, sizes)))
            # Chunks at the end are stored in full size.
            inside = tuple(map(slice, array[window].shape))
            content = _decompressed(f"{place}/{key}", files[key])
            array[window] = np.frombuffer(content, stored).reshape(sizes)[inside]
        return array
    except StoreError:
        raise
    # Zarr and its codecs may raise any class of exception on damaged bytes.
    except Exception as error:
        raise StoreError(f"{place}: cannot be decoded: {error}") from error


def _metadata(place: str, files: Mapping[str, bytes], kind: str) -> dict[str, Any]:
    """Return the metadata of a Zarr array or group; StoreError if there is none."""
    if "zarr.json" not in files:
        raise StoreError(f"{place}/zarr.json: expected the metadata of a Zarr {kind}, got no such file")
    record = parse_json(f"{place}/zarr.json", files["zarr.json"])
    found = record.get("zarr_format"), record.get("node_type")
    if found != (3, kind):
        raise StoreError(f"{place}/zarr.json: expected format 3 and {kind}, got {found[0]} and {found[1]}")
    return record


def _decompressed(place: str, chunk: bytes) -> bytes:
    """Return the content of a chunk; StoreError if its checksum differs."""
    content, checksum = chunk[:-4], chunk[-4:]
    if google_crc32c.value(content) != int.from_bytes(checksum, "little"):
        raise StoreError(f"{place}: the checksum of the chunk differs from its content")
    return zstandard.ZstdDecompressor().decompress(content)


def _checked_chunks(
    place: str,
    metadata: ArrayV3Metadata,
    sizes: tuple[int, ...],
    dtype: np.dtype[Any],
    files: Mapping[str, bytes],
) -> dict[tuple[int, ...], str]:
    """Return the file of every chunk, whose shape is ``sizes``, by the position of its first element.

    Raises
    ------
    StoreError
        If chunks or codecs are not those of `create_array`, or a chunk is missing or has another size.
    """
    codecs = [type(codec) for codec in metadata.codecs]
    if codecs != [BytesCodec, ZstdCodec, Crc32cCodec]:
        names = ", ".join(codec.__name__ for codec in codecs)
        raise StoreError(f"{place}/zarr.json: codecs: expected bytes, zstd and crc32c, got {names}")
    shape = metadata.shape
    n_bytes = math.prod(sizes) * dtype.itemsize
    if n_bytes > MAX_CHUNK_BYTES or any(
        chunk > max(1, size) for chunk, size in zip(sizes, shape, strict=True)
    ):
        raise StoreError(
            f"{place}/zarr.json: chunks: expected at most the shape {shape} and {MAX_CHUNK_BYTES} bytes, "
            f"got {sizes}"
        )
    if 0 in shape:
        return {}
    counts = [-(-size // chunk) for size, chunk in zip(shape, sizes, strict=True)]
    if (n_chunks := math.prod(counts)) > len(files):
        raise StoreError(f"{place}: expected a chunk in each of {n_chunks} files, got {len(files)} files")
    found: dict[tuple[int, ...], str] = {}
    for position in product(*map(range, counts)):
        key = metadata.encode_chunk_key(position)
        if key not in files:
            raise StoreError(f"{place}/{key}: expected a chunk, got no such file")
        if (size := zstandard.frame_content_size(files[key])) != n_bytes:
            raise StoreError(f"{place}/{key}: size: expected a chunk of {n_bytes} bytes, got {size}")
        found[tuple(np.multiply(position, sizes).tolist())] = key
    return found


def files_below(files: Mapping[str, bytes], name: str) -> dict[str, bytes]:
    """Return the files below a name, by path relative to it."""
    start = f"{name}/"
    return {key.removeprefix(start): value for key, value in files.items() if key.startswith(start)}


def _vector(
    place: str, files: Mapping[str, bytes], name: str, kinds: str, size: int | None = None
) -> np.ndarray:
    return decode_array(f"{place}/{name}", files_below(files, name), kinds, (size,))


def check_csr(place: str, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, n_columns: int) -> None:
    """Check that arrays form a CSR matrix with increasing columns in each row, as compiled loops require.

    Parameters
    ----------
    place : str
        Location of the matrix, for error messages.
    data, indices : ndarray of shape (nnz,)
        Memory-mapped arrays are read piece by piece.
    indptr : ndarray of shape (n_rows + 1,)
    n_columns : int

    Raises
    ------
    StoreError
        If the offsets do not start at 0, decrease, or do not end at ``nnz``, or if a column is out of range or
        not larger than the preceding one in its row.
    """
    if indptr[0] != 0 or np.any(indptr[1:] < indptr[:-1]):
        raise StoreError(f"{place}/indptr: expected offsets that start at 0 and do not decrease")
    if not len(data) == len(indices) == indptr[-1]:
        raise StoreError(
            f"{place}/indptr: last offset: expected {len(data)} values and {len(indices)} columns, "
            f"got {indptr[-1]}"
        )
    for first in range(0, len(indices), _CHECKED_ELEMENTS):
        # One element more, so that pairs across the boundary are compared too.
        part = np.asarray(indices[first : first + _CHECKED_ELEMENTS + 1])
        if not (part.min() >= 0 and part.max() < n_columns):
            raise StoreError(
                f"{place}/indices: expected columns from 0 to {n_columns - 1}, got {part.min()} to {part.max()}"
            )
        rising = part[1:] > part[:-1]
        starts = indptr[slice(*np.searchsorted(indptr, [first, first + len(rising)], side="right"))]
        rising[starts - first - 1] = True
        if not rising.all():
            at = int(np.argmin(rising)) + 1
            row = int(np.searchsorted(indptr, first + at, side="right")) - 1
            raise StoreError(
                f"{place}/indices: row {row}: expected increasing columns, got {part[at - 1 : at + 1]}"
            )
