"""Models on disk: a directory of Zarr arrays and one JSON file, written whole or not at all.

Layout::

    model.json        parameters, diagnostics, digests of all other files; written last
    arrays.zarr/      arrays of the model, zstd and crc32c on every chunk
    arrays/           large ones as .npy files, which are mapped into memory, not read
    vocabulary.txt    one word a line
    labels.txt        one label name a line

Opening a model executes nothing: there is no pickle, and every array is checked against its digest.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from distmom.corpus.commit import destination, put_directory, restore_replaced, sha256_file, write_atomic
from distmom.engine import Csr, MixedRows
from distmom.engine.state import array_digest, release, state_digest
from distmom.errors import StoreError, UsageError

FORMAT_VERSION = 2
_CHUNK_BYTES = 4 << 20
#: arrays beyond this size are files of their own
LARGE_BYTES = 64 << 20
_LINES_AT_A_TIME = 1 << 16
_MAX_JSON_BYTES = 64 << 20
#: records that a head may hold
_RECORDS: dict[str, type[Any]] = {"Csr": Csr, "MixedRows": MixedRows}


def save_model(
    path: str | os.PathLike[str],
    record: dict[str, Any],
    arrays: dict[str, np.ndarray],
    vocabulary: list[str],
    label_names: list[str],
    *,
    overwrite: bool = False,
    large_bytes: int | None = None,
) -> None:
    """Write a model directory.

    Parameters
    ----------
    path : path-like
    record : dict
        JSON values: everything that is not an array.
    arrays : dict of str to ndarray
        Names may hold ``/``.
    vocabulary, label_names : list of str
    overwrite : bool
        Replace an existing model.
    large_bytes : int, optional
        Beyond this size an array is a file of its own; `LARGE_BYTES` when absent.

    Raises
    ------
    UsageError
        If the path exists and is not a model, or is one and ``overwrite`` is not given.
    """
    target = destination(path)
    restore_replaced(target)
    check_target(target, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".tmp-{target.name}-{uuid.uuid4().hex[:8]}"
    temporary.mkdir()
    try:
        group = zarr.create_group(store=temporary / "arrays.zarr")
        entries: dict[str, dict[str, Any]] = {}
        for name, value in arrays.items():
            if value.nbytes > (LARGE_BYTES if large_bytes is None else large_bytes):
                entries[name] = _save_large(temporary, name, value)
                continue
            array = np.ascontiguousarray(value)
            row_bytes = max(1, array[:1].nbytes)
            stored = group.create_array(
                name,
                shape=array.shape,
                dtype=array.dtype,
                chunks=(max(1, min(len(array), _CHUNK_BYTES // row_bytes)), *array.shape[1:]),
                compressors=[ZstdCodec(level=3), Crc32cCodec()],
                config={"write_empty_chunks": True},
            )
            stored[...] = array
            entries[name] = {"shape": array.shape, "dtype": array.dtype.str, "digest": array_digest(array)}
        for file_name, lines in (("vocabulary.txt", vocabulary), ("labels.txt", label_names)):
            write_atomic(temporary / file_name, partial(_write_lines, lines=lines))
        whole = {
            "format": "distmom-model",
            "format_version": FORMAT_VERSION,
            "arrays": entries,
            "files": {name: sha256_file(temporary / name) for name in ("vocabulary.txt", "labels.txt")},
            **record,
        }
        write_atomic(temporary / "model.json", json.dumps(whole, indent=1).encode())
        put_directory(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_lines(stream: BinaryIO, lines: list[str]) -> None:
    for start in range(0, len(lines), _LINES_AT_A_TIME):
        stream.write(("\n".join(lines[start : start + _LINES_AT_A_TIME]) + "\n").encode())


def _save_large(directory: Path, name: str, value: np.ndarray) -> dict[str, Any]:
    """Store one large array as a file, without a copy where a run has written that very file."""
    digest = state_digest(value)
    path = directory / _large_file(name)
    path.parent.mkdir(exist_ok=True)
    source = Path(getattr(value, "filename", None) or "")
    # A state is named by its digest.
    if source.stem != digest[:32] or not _linked(source, path):
        with open(path, "xb") as stream:
            np.save(stream, value, allow_pickle=False)
        release(value)
    return {"shape": value.shape, "dtype": value.dtype.str, "digest": digest, "file": _large_file(name)}


def _large_file(name: str) -> str:
    return f"arrays/{name.replace('/', '-')}.npy"


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one without links.
        return False
    return True


def check_target(target: Path, overwrite: bool) -> None:
    """Refuse to write a model over something else; UsageError."""
    if not target.exists():
        return
    if not (target / "model.json").exists():
        raise UsageError(f"{target}: exists and is not a model")
    if not overwrite:
        raise UsageError(f"{target}: the model exists; choose another path, or overwrite")


def load_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what a model says of itself.

    Raises
    ------
    UsageError
        If there is no model.
    StoreError
        If it is damaged or of another version.
    """
    file = Path(path) / "model.json"
    if not file.is_file():
        raise UsageError(f"{path}: not a model (no model.json)")
    if file.stat().st_size > _MAX_JSON_BYTES:
        raise StoreError(f"{file}: expected at most {_MAX_JSON_BYTES} bytes, got {file.stat().st_size}")
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        version = int(record["format_version"])
        known = record["format"] == "distmom-model" and isinstance(record["arrays"], dict)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{file}: not a readable model description: {error}") from error
    if not known:
        raise StoreError(f"{file}: expected format distmom-model, got {record['format']!r}")
    if version > FORMAT_VERSION:
        raise StoreError(
            f"{file}: written by a newer distmom: expected format {FORMAT_VERSION}, got {version}"
        )
    if version < FORMAT_VERSION:
        raise StoreError(
            f"{file}: written by an older distmom: expected format {FORMAT_VERSION}, got {version}; fit again"
        )
    return dict(record)


def load_record_of(path: str | os.PathLike[str], name: str) -> dict[str, Any]:
    """Read what a model of a class says of itself; UsageError if it is of another, else as `load_record`."""
    record = load_record(path)
    if record.get("model") != name:
        raise UsageError(f"{path}: a model of class {record.get('model')}, expected {name}")
    return record


@contextmanager
def whole_description(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what a record lacks into a StoreError that names it; a context manager."""
    try:
        yield
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise StoreError(f"{Path(path) / 'model.json'}: not a whole model description: {error!r}") from error


def load_arrays(path: str | os.PathLike[str], record: dict[str, Any]) -> dict[str, np.ndarray]:
    """Read and check every array of a model; StoreError names the one that is damaged."""
    place = Path(path) / "arrays.zarr"
    arrays = {}
    for name, entry in record["arrays"].items():
        if "file" in entry:
            arrays[name] = _load_large(Path(path), name, entry)
            continue
        try:
            node = zarr.open_array(place / name, mode="r")
            if list(node.shape) != list(entry["shape"]) or node.dtype.str != entry["dtype"]:
                raise StoreError(
                    f"{place / name}: expected {entry['dtype']} of shape {entry['shape']}, "
                    f"got {node.dtype.str} of shape {list(node.shape)}"
                )
            value = np.ascontiguousarray(node[...])
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{place / name}: cannot be read: {error}") from error
        if (got := array_digest(value)) != entry["digest"]:
            raise StoreError(f"{place / name}: expected sha256 {entry['digest'][:12]}, got {got[:12]}")
        arrays[name] = value
    return arrays


def _load_large(directory: Path, name: str, entry: dict[str, Any]) -> np.ndarray:
    """Map one large array and check it."""
    place = directory / _large_file(name)
    try:
        value = np.load(place, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise StoreError(f"{place}: cannot be read: {error}") from error
    if list(value.shape) != list(entry["shape"]) or value.dtype.str != entry["dtype"]:
        raise StoreError(
            f"{place}: expected {entry['dtype']} of shape {entry['shape']}, "
            f"got {value.dtype.str} of shape {list(value.shape)}"
        )
    if (got := state_digest(value)) != entry["digest"]:
        raise StoreError(f"{place}: expected digest {entry['digest'][:12]}, got {got[:12]}")
    return np.asarray(value)


def load_names(path: str | os.PathLike[str], record: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Read vocabulary and label names; StoreError if either has changed."""
    lists = []
    for name in ("vocabulary.txt", "labels.txt"):
        file = Path(path) / name
        got = sha256_file(file) if file.is_file() else "no file"
        if got != record["files"][name]:
            raise StoreError(f"{file}: expected sha256 {record['files'][name][:12]}, got {got[:12]}")
        lists.append(file.read_text(encoding="utf-8").split("\n")[:-1])
    return lists[0], lists[1]


def pack(value: Any, prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Move the arrays of a dataclass into ``arrays`` and return its other fields."""
    rest: dict[str, Any] = {}
    for f in fields(value):
        item = getattr(value, f.name)
        if is_dataclass(item) and not isinstance(item, type):
            rest[f.name] = {"record": type(item).__name__, **pack(item, f"{prefix}/{f.name}", arrays)}
        elif isinstance(item, np.ndarray):
            arrays[f"{prefix}/{f.name}"] = item
        else:
            rest[f.name] = item
    return rest


def unpack(kind: type[Any], rest: dict[str, Any], prefix: str, arrays: dict[str, np.ndarray]) -> Any:
    """Rebuild a dataclass from `pack`."""
    values: dict[str, Any] = {}
    for f in fields(kind):
        name = f"{prefix}/{f.name}"
        if name in arrays:
            values[f.name] = arrays[name]
        elif isinstance(rest[f.name], dict):
            values[f.name] = unpack(_RECORDS[rest[f.name]["record"]], rest[f.name], name, arrays)
        else:
            values[f.name] = rest[f.name]
    return kind(**values)
