"""Additive sums: the value of a pass, and the merge of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from distmom.engine.stored.scratch import ScratchArray, scratch_file, write_scratch

#: an ndarray, a ScratchArray, or the accumulator of a tall sum
Sum: TypeAlias = Any

#: bytes of a dense sum above which it is written to a file until its merge, as a worker may hold any number of
#: them
FILE_BYTES = 4 << 20
#: elements of sums in files that are added at a time
_CHUNK = 1 << 19


@dataclass(frozen=True)
class SumSpec:
    """The specification of one sum of a pass.

    Attributes
    ----------
    shape : tuple of int
        Shape of the whole sum. With ``by_feature`` its first axis is the axis of features.
    dtype : str, default "float64"
        Element type of the accumulator.
    by_feature : bool, default False
        Whether the sum has one row per feature and may be accumulated in slabs of features.
    sparse : bool, default False
        Whether the tall sum is a sparse matrix (see `distmom.engine.sums.sparse`).
    n_bytes : int or None, default None
        Projected size of a sparse sum, which does not follow from its shape.
    tall : {"features", "targets", "entries", "documents"} or None, default None
        Axis of a tall sum, with one row per feature, per target, per fixed number of entries of a sparse
        matrix, or, for sparse sums alone, per document; the sum is kept in files (see `distmom.engine.sums.tall`).
        None for sums in memory.
    separable : bool, default False
        Whether slabs of columns of a tall sum may be accumulated in separate scans.
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
        """Projected size of the whole sum, in bytes."""
        if self.n_bytes is not None:
            return self.n_bytes
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def zero(self, features: slice) -> Sum:
        """Return zeros, restricted to a slab of features."""
        shape = self.shape
        if self.by_feature:
            shape = (features.stop - features.start, *shape[1:])
        return np.zeros(shape, self.dtype)


class Sums(dict[str, Sum]):
    """Named arrays that are added by ``+``: the value of a pass over some of the shards."""

    def __add__(self, other: Mapping[str, Sum]) -> Sums:
        return merge((self, other))

    def files(self) -> tuple[ScratchArray, ...]:
        """Return the sums that are in files."""
        return tuple(value for value in self.values() if isinstance(value, ScratchArray))


def large_to_files(sums: Mapping[str, Sum], directory: str) -> Sums:
    """Write the large dense sums to files of a directory that all workers see, and return all sums."""
    moved = Sums(sums)
    for name, value in sums.items():
        if isinstance(value, np.ndarray) and value.nbytes > FILE_BYTES:
            moved[name] = write_scratch(directory, value)
    return moved


def _add_files(parts: Sequence[ScratchArray]) -> ScratchArray:
    """Add sums in files piece by piece into another file, so that no whole sum is in memory."""
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
    """Add sums in the given order; the parts are not changed.

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
    # Whatever reads a total refuses one that is not finite.
    with np.errstate(over="ignore", invalid="ignore"):
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
        raise ValueError(f"parts: expected sums named {sorted(left)}, got {sorted(right)}")
