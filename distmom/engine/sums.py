"""Additive sums: what a pass accumulates, and the only way two parts of it are merged."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from distmom.engine.scratch import scratch_file, spare_of
from distmom.errors import StoreError

#: an ndarray, a FileSum, or the accumulator of a tall sum
Sum: TypeAlias = Any

#: dense sums above this size wait for their merge in files: how many a worker would hold depends on chance
FILE_BYTES = 4 << 20
#: numbers of a sum in a file that are added at a time
_CHUNK = 1 << 19


@dataclass(frozen=True)
class SumSpec:
    """The shape and kind of one sum of a pass.

    Attributes
    ----------
    shape : tuple of int
        Shape of the whole sum. With ``by_feature`` its first axis is the vocabulary.
    dtype : str
        Element type of the accumulator.
    by_feature : bool
        The sum has one row a word and may be held in slabs of the vocabulary.
    sparse : bool
        The tall sum is a sparse matrix (see `distmom.engine.sparse`).
    n_bytes : int or None
        Projected size of a sparse sum, whose shape does not tell it.
    tall : {"words", "labels", "entries"} or None
        The sum has one row a word (label, some entries of a sparse matrix) and stays in files (see
        `distmom.engine.tall`).
    separable : bool
        Columns of a tall sum may be added in scans of their own.
    """

    shape: tuple[int, ...]
    dtype: str = "float64"
    by_feature: bool = False
    sparse: bool = False
    n_bytes: int | None = None
    tall: str | None = None
    separable: bool = False

    @property
    def projected_bytes(self) -> int:
        """Bytes that the whole sum takes."""
        if self.n_bytes is not None:
            return self.n_bytes
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def zero(self, features: slice) -> Sum:
        """Return the neutral element, restricted to a slab of the vocabulary."""
        shape = self.shape
        if self.by_feature:
            shape = (features.stop - features.start, *shape[1:])
        return np.zeros(shape, self.dtype)


@dataclass(frozen=True)
class FileSum:
    """A dense sum in a file, which is merged without ever being in memory.

    Attributes
    ----------
    path : str
        Its numbers and nothing else; in a directory that all workers see.
    shape : tuple of int
    dtype : str
    """

    path: str
    shape: tuple[int, ...]
    dtype: str

    def load(self) -> np.ndarray:
        """Map the sum into memory, read-only."""
        return np.memmap(self.path, self.dtype, mode="r", shape=self.shape)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return some of the numbers in the order in which they lie."""
        try:
            values = np.fromfile(
                self.path, self.dtype, stop - start, offset=start * np.dtype(self.dtype).itemsize
            )
        except OSError as error:
            raise StoreError(f"{self.path}: a partial sum cannot be read: {error}") from error
        if len(values) != stop - start:
            raise StoreError(f"{self.path}: expected {stop - start} numbers at {start}, got {len(values)}")
        return values


class Sums(dict[str, Sum]):
    """Named arrays that merge by ``+``: the value of a pass over some of the shards."""

    def __add__(self, other: Mapping[str, Sum]) -> Sums:
        return merge((self, other))


def large_to_files(sums: Mapping[str, Sum], directory: str) -> Sums:
    """Return sums of which the large dense ones are in files of a directory."""
    moved = Sums(sums)
    for name, value in sums.items():
        if isinstance(value, np.ndarray) and value.nbytes > FILE_BYTES:
            path = _new_file(directory)
            with scratch_file(path, value.nbytes, spare_of(path)) as stream:
                stream.write(np.ascontiguousarray(value).data)
            moved[name] = FileSum(path, value.shape, value.dtype.str)
    return moved


def _new_file(directory: str) -> str:
    """Return a path that a twin of this task will not write to."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    return os.path.join(directory, uuid.uuid4().hex)


def _add_files(parts: Sequence[FileSum]) -> FileSum:
    """Add sums in files, piece by piece, into another file."""
    path, size = _new_file(os.path.dirname(parts[0].path)), int(np.prod(parts[0].shape, dtype=np.int64))
    n_bytes = size * np.dtype(parts[0].dtype).itemsize
    with scratch_file(path, n_bytes, spare_of(path)) as stream:
        for start in range(0, size, _CHUNK):
            stop = min(start + _CHUNK, size)
            total = parts[0].read(start, stop)
            for part in parts[1:]:
                total += part.read(start, stop)
            stream.write(total.data)
    return FileSum(path, parts[0].shape, parts[0].dtype)


def merge(parts: Iterable[Mapping[str, Sum]]) -> Sums:
    """Add sums in the order given, leaving the parts as they were.

    Parameters
    ----------
    parts : iterable of Sums
        At least one; all with the same names and shapes.

    Raises
    ------
    ValueError
        If there is no part, or the names differ.
    """
    iterator = iter(parts)
    try:
        first = next(iterator)
    except StopIteration:
        raise ValueError("merge() needs at least one part") from None
    total = Sums(
        {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in first.items()}
    )
    in_files = {name: [value] for name, value in first.items() if isinstance(value, FileSum)}
    for part in iterator:
        _same_names(total, part)
        for name, value in part.items():
            if name in in_files:
                in_files[name].append(value)
            else:
                total[name] += value
    total.update({name: _add_files(values) for name, values in in_files.items()})
    return total


def _same_names(left: Mapping[str, Sum], right: Mapping[str, Sum]) -> None:
    if left.keys() != right.keys():
        raise ValueError(f"sums differ in their names: {sorted(left)} and {sorted(right)}")
