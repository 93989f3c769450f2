"""Additive sums: what a pass accumulates, and the only way two parts of it are merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

#: an ndarray, or the accumulator of a tall sum
Sum: TypeAlias = Any


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
    tall : {"words", "labels"} or None
        The sum has one row a word (label) and stays in files (see `distmom.engine.tall`).
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


class Sums(dict[str, Sum]):
    """Named arrays that merge by ``+``: the value of a pass over some of the shards."""

    def __add__(self, other: Mapping[str, Sum]) -> Sums:
        return merge((self, other))

    def __sub__(self, other: Mapping[str, Sum]) -> Sums:
        _same_names(self, other)
        return Sums({name: value - other[name] for name, value in self.items()})


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
    total = Sums({name: value.copy() for name, value in first.items()})
    for part in iterator:
        _same_names(total, part)
        for name, value in part.items():
            total[name] += value
    return total


def _same_names(left: Mapping[str, Sum], right: Mapping[str, Sum]) -> None:
    if left.keys() != right.keys():
        raise ValueError(f"sums differ in their names: {sorted(left)} and {sorted(right)}")
