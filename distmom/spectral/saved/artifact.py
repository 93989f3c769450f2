"""Stored models: a directory of Zarr arrays and one JSON file, written whole or not at all.

Layout::

    model.json        parameters, diagnostics, digests of all other files; written last, with a checksum
    arrays.zarr/      arrays of the model, zstd and crc32c on every chunk
    arrays/           large ones as .npy files, which are mapped into memory, not read
    vocabulary.txt    one word per line
    labels.txt        one label name per line

In an object store a model is such a directory that was uploaded (see `distmom.corpus.files.uploads`).
Opening a model executes nothing: there is no pickle. Every file is compared with its digest, and every array with
the layout of its class, so that neither damage nor a crafted file reaches a compiled loop.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from distmom.corpus.files.aside import make_aside, recover, remove_temporary
from distmom.corpus.files.commit import destination, put_directory, sha256_file, write_atomic
from distmom.corpus.files.decoding import decode_array
from distmom.corpus.files.encoding import write_group
from distmom.corpus.files.npy import mapped_file
from distmom.corpus.files.records import (
    RecordFormat,
    are_files,
    check_file,
    describe_files,
    locate,
    read_file,
)
from distmom.corpus.files.storage import is_url
from distmom.corpus.files.uploads import check_vacant, find_contents, local_directory, upload_directory
from distmom.engine.stored.arrays import map_file, release, state_digest
from distmom.errors import ELSEWHERE, StoreError, UsageError
from distmom.spectral.saved.layout import Layout, check_entries, check_values

#: kind of the directory of a model in an object store
KIND = "model"
#: file of the record
RECORD = "model.json"
#: format of model.json
MODEL = RecordFormat("distmom-model", 4, "fit again, or add moments up again", older=(3,))
#: arrays beyond this size are stored as separate files
LARGE_BYTES = 64 << 20
#: an array in `arrays.zarr` that declares more is refused
_MAX_PACKED_BYTES = LARGE_BYTES
_LINES_AT_A_TIME = 1 << 16
#: prefix of the names of the files of the packed arrays
_ARRAYS = "arrays.zarr/"


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
    """Write a model.

    Parameters
    ----------
    path : path-like
        The directory to create, or the URL below which its files are uploaded.
    record : dict
        JSON values: everything that is not an array.
    arrays : dict of str to ndarray
        Names may contain ``/``.
    vocabulary, label_names : list of str
    overwrite : bool, default False
        Replace an existing model.
    large_bytes : int, optional
        Arrays beyond this size in bytes are stored as separate files; `LARGE_BYTES` by default.

    Raises
    ------
    UsageError
        If the path exists and is not a model, or is a model and ``overwrite`` is False.
    """
    with staged(path, overwrite=overwrite) as (temporary, put):
        temporary.mkdir()
        entries: dict[str, dict[str, Any]] = {}
        packed: dict[str, np.ndarray] = {}
        for name, value in arrays.items():
            if value.nbytes > (LARGE_BYTES if large_bytes is None else large_bytes):
                entries[name] = _save_large(temporary, name, value)
                continue
            packed[name] = value
            entries[name] = {"shape": value.shape, "dtype": value.dtype.str}
        write_group(temporary / "arrays.zarr", packed)
        for file_name, lines in (("vocabulary.txt", vocabulary), ("labels.txt", label_names)):
            write_atomic(temporary / file_name, partial(_write_lines, lines=lines))
        files: dict[str, dict[str, Any]] = {}
        for part in ("arrays.zarr", "vocabulary.txt", "labels.txt"):
            files |= describe_files(temporary, part)
        MODEL.write(temporary / RECORD, {"arrays": entries, "files": files, **record})
        put()


@contextmanager
def staged(
    path: str | os.PathLike[str], *, overwrite: bool = False
) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Provide a path to write a model to, and a function that puts it in its place; a context manager.

    Parameters
    ----------
    path : path-like
        The directory to create, or the URL below which its files are uploaded.
    overwrite : bool, default False
        Replace an existing model.

    Yields
    ------
    temporary : Path
        Does not exist yet. It is beside ``path``, or in ``TMPDIR`` for a URL, and is removed at the end.
    put : callable
        Raises a UsageError if another process has written to ``path`` meanwhile.

    Raises
    ------
    UsageError
        If the path exists and is not a model, or is a model and ``overwrite`` is False.
    """
    put: Callable[..., None]
    target = None if is_url(path) else destination(path)
    if target is None:
        check_target(path, overwrite)
        folder = Path(tempfile.mkdtemp(prefix="distmom-"))
        put = partial(upload_directory, place=path, kind=KIND)
    else:
        recover(target)
        check_target(target, overwrite)
        folder = make_aside(target)
        put = partial(put_directory, final=target)
    try:
        yield folder / "model", partial(put, folder / "model", overwrite=overwrite)
    finally:
        remove_temporary(folder, target)


def _write_lines(stream: BinaryIO, lines: list[str]) -> None:
    for start in range(0, len(lines), _LINES_AT_A_TIME):
        stream.write(("\n".join(lines[start : start + _LINES_AT_A_TIME]) + "\n").encode())


def _save_large(directory: Path, name: str, value: np.ndarray) -> dict[str, Any]:
    """Store one large array as a file, as a hard link where the run directory already holds that file."""
    digest = state_digest(value)
    path = directory / _large_file(name)
    path.parent.mkdir(exist_ok=True)
    source = Path(getattr(mapped_file(value), "path", ""))
    # A stored array of a run is named by its digest.
    if source.stem != digest[:32] or not _linked(source, path):
        with open(path, "xb") as stream:
            np.save(stream, value, allow_pickle=False)
        release(value)
    return {"shape": value.shape, "dtype": value.dtype.str, "digest": digest}


def _large_file(name: str) -> str:
    return f"arrays/{name.replace('/', '-')}.npy"


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one without hard links.
        return False
    return True


def check_target(path: str | os.PathLike[str], overwrite: bool) -> None:
    """Raise a UsageError if a path or URL exists and may not be replaced by a model."""
    if is_url(path):
        check_vacant(path, KIND, overwrite)
        return
    target = Path(path).absolute()
    if not target.exists():
        return
    if not (target / RECORD).exists():
        raise UsageError(f"{target}: exists and is not a model")
    if not overwrite:
        raise UsageError(f"{target}: the model exists; {ELSEWHERE}")


def record_digest(path: str | os.PathLike[str]) -> str | None:
    """Return the sha256 of the record of a model, which has the digests of all its files; None without a model."""
    if is_url(path):
        contents = find_contents(path)
        return None if contents is None else contents.files.get(RECORD, {}).get("sha256")
    file = Path(path) / RECORD
    return sha256_file(file) if file.exists() else None


def local_model(path: str | os.PathLike[str]) -> AbstractContextManager[Path]:
    """Provide a model as a local directory, downloaded if the path is a URL; see `local_directory`."""
    return local_directory(path, KIND)


def load_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the record (``model.json``) of a model.

    Returns
    -------
    dict
        JSON values. Records of the previous format version are converted.

    Raises
    ------
    UsageError
        If there is no model.
    StoreError
        If the record is damaged or has another format version.
    """
    file = Path(path) / RECORD
    if not file.is_file():
        reason = "no model.json" if Path(path).exists() else "there is no such directory"
        raise UsageError(f"{path}: not a model ({reason})")
    record = _upgraded(str(file), MODEL.read(file))
    if not are_files(record.get("files")):
        raise StoreError(
            f"{file}: files: expected sizes and digests of files in this directory, got other values"
        )
    if not _are_arrays(record.get("arrays")):
        raise StoreError(f"{file}: arrays: expected names, shapes and types of arrays, got other values")
    return record


#: parameters renamed since version 3, the last one within version 4
_RENAMED = {"start": "init", "polish": "refine", "n_polish": "n_refine", "n_refine_iter": "n_refine"}
#: diagnostics renamed since version 3
_RENAMED_DIAGNOSTICS = {"start": "init", "polish": "refine"}
#: entries of version 3 that are now part of the state
_OF_STATE = ("diagnostics", "selection", "heads", "head_weights")


def _upgraded(place: str, record: dict[str, Any]) -> dict[str, Any]:
    """Convert a record of version 3 to version 4, and rename parameters of either version."""
    with _described(place):
        parameters = {_RENAMED.get(key, key): entry for key, entry in record["parameters"].items()}
        record = {**record, "parameters": parameters}
        if record["format_version"] != 3:
            return record
        state = {name: record.pop(name) for name in _OF_STATE if name in record}
        for name, renamed in (("diagnostics", _RENAMED_DIAGNOSTICS), ("selection", {"start": "init"})):
            if state.get(name) is not None:
                state[name] = {renamed.get(key, key): entry for key, entry in state[name].items()}
        if "heads" in state:
            state["states"] = {} if "states/components" in record["arrays"] else None
            for head in state["heads"]:
                for item in head["fields"].values():
                    if isinstance(item, dict):
                        item.setdefault("record", "MixedRows" if "sparse" in item else "Csr")
        return {"settings": {}, **record, "state": state}


def _are_arrays(entries: Any) -> bool:
    return isinstance(entries, dict) and all(
        re.fullmatch(r"[\w-]+(/[\w-]+)*", name, re.ASCII)
        and isinstance(entry, dict)
        and isinstance(entry.get("dtype"), str)
        and isinstance(entry.get("digest", ""), str)
        and isinstance(entry.get("shape"), list)
        and all(type(size) is int and size >= 0 for size in entry["shape"])
        for name, entry in entries.items()
    )


def load_record_of(path: str | os.PathLike[str], name: str) -> dict[str, Any]:
    """Read the record of a model of a given class; a UsageError if the model is of another class."""
    record = load_record(path)
    if record.get("model") != name:
        raise UsageError(f"{path}: a model of class {record.get('model')}, expected {name}")
    return record


@contextmanager
def whole_description(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors about entries that a record lacks into a StoreError; a context manager."""
    with _described(f"{Path(path) / 'model.json'}"):
        yield


@contextmanager
def _described(place: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise StoreError(f"{place}: the model description is incomplete: {error!r}") from error


def load_arrays(
    path: str | os.PathLike[str], record: dict[str, Any], layout: Layout, sizes: dict[str, int]
) -> dict[str, np.ndarray]:
    """Read and check every array of a model.

    Parameters
    ----------
    path : path-like
    record : dict
        From `load_record`.
    layout : Layout
        The arrays that a model of this class has.
    sizes : dict of str to int
        Sizes known beforehand; the sizes read from the arrays are added.

    Raises
    ------
    StoreError
        If an array is damaged or does not agree with the layout; the message names the array.
    """
    root, entries = Path(path), record["arrays"]
    check_entries(str(path), entries, layout, sizes)
    files = _by_array(record["files"])
    arrays = {}
    for name, entry in entries.items():
        if "digest" in entry:
            arrays[name] = _load_large(root, name, entry)
        else:
            arrays[name] = _load_packed(root, name, entry, files.pop(name, {}))
    for others in files.values():
        for key, entry in others.items():
            check_file(root, key, entry)
    check_values(str(path), arrays, layout, sizes)
    return arrays


def _by_array(files: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the entries of the files of every array, and of every Zarr group, by its name."""
    found: dict[str, dict[str, Any]] = {}
    for key, entry in files.items():
        if key.startswith(_ARRAYS):
            name = key.removeprefix(_ARRAYS).removesuffix("/zarr.json").partition("/c/")[0]
            found.setdefault(name, {})[key] = entry
    return found


def _load_packed(root: Path, name: str, entry: dict[str, Any], files: dict[str, Any]) -> np.ndarray:
    """Read one array of ``arrays.zarr`` and check it."""
    place, shape, dtype = root / _ARRAYS / name, tuple(entry["shape"]), np.dtype(entry["dtype"])
    if (n_bytes := math.prod(shape) * dtype.itemsize) > _MAX_PACKED_BYTES:
        raise StoreError(f"{place}: expected at most {_MAX_PACKED_BYTES} bytes in memory, got {n_bytes}")
    below = f"{_ARRAYS}{name}/"
    content = {key.removeprefix(below): read_file(root, key, entry) for key, entry in files.items()}
    return np.ascontiguousarray(decode_array(str(place), content, dtype.name, shape))


def _load_large(root: Path, name: str, entry: dict[str, Any]) -> np.ndarray:
    """Map one large array and check it."""
    place = locate(root, _large_file(name))
    value = map_file(str(place))
    if list(value.shape) != entry["shape"] or value.dtype.str != entry["dtype"]:
        raise StoreError(
            f"{place}: expected {entry['dtype']} of shape {entry['shape']}, "
            f"got {value.dtype.str} of shape {list(value.shape)}"
        )
    if (got := state_digest(value)) != entry["digest"]:
        raise StoreError(f"{place}: expected digest {entry['digest'][:12]}, got {got[:12]}")
    return np.asarray(value)


def load_names(path: str | os.PathLike[str], record: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Read the vocabulary and the label names; a StoreError if either file has changed."""
    lists = []
    for name in ("vocabulary.txt", "labels.txt"):
        content = read_file(Path(path), name, record["files"][name])
        try:
            lines = content.decode().split("\n")
        except UnicodeDecodeError as error:
            raise StoreError(f"{Path(path) / name}: not UTF-8: {error}") from error
        if lines.pop():
            raise StoreError(f"{Path(path) / name}: the last line has no line end")
        lists.append(lines)
    return lists[0], lists[1]
