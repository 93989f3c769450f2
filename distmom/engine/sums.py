"""Additive sums: what a pass accumulates, and the only way two parts of it are merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from distmom.engine.scratch import ScratchArray, scratch_file, write_scratch

#: an ndarray, a ScratchArray, or the accumulator of a tall sum
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
        Shape of the whole sum. With ``by_feature`` its first axis is that of the features.
    dtype : str
        Element type of the accumulator.
    by_feature : bool
        The sum has one row per feature and may be held in slabs of the features.
    sparse : bool
        The tall sum is a sparse matrix (see `distmom.engine.sparse`).
    n_bytes : int or None
        Projected size of a sparse sum, which does not follow from its shape.
    tall : {"features", "targets", "entries"} or None
        Axis of the sum, with one row per feature, per target or per some entries of a sparse matrix. The sum
        stays in files (see
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
        """Return the neutral element, restricted to a slab of the features."""
        shape = self.shape
        if self.by_feature:
            shape = (features.stop - features.start, *shape[1:])
        return np.zeros(shape, self.dtype)


class Sums(dict[str, Sum]):
    """Named arrays that merge by ``+``: the value of a pass over some of the shards."""

    def __add__(self, other: Mapping[str, Sum]) -> Sums:
        return merge((self, other))


def large_to_files(sums: Mapping[str, Sum], directory: str) -> Sums:
    """Return sums of which the large dense ones are in files of a directory that all workers see."""
    moved = Sums(sums)
    for name, value in sums.items():
        if isinstance(value, np.ndarray) and value.nbytes > FILE_BYTES:
            moved[name] = write_scratch(directory, value)
    return moved


def _add_files(parts: Sequence[ScratchArray]) -> ScratchArray:
    """Add sums in files, piece by piece, into another file: none is ever whole in memory."""
    flat = [part.flat() for part in parts]
    size = flat[0].shape[0]
    with scratch_file(Path(parts[0].path).parent, parts[0].shape, parts[0].dtype) as writer:
        for start in range(0, size, _CHUNK):
            stop = min(start + _CHUNK, size)
            total = flat[0].read(start, stop)
            for part in flat[1:]:
                total += part.read(start, stop)
            writer.write(total)
    return writer.written


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
    in_files = {name: [value] for name, value in first.items() if isinstance(value, ScratchArray)}
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
