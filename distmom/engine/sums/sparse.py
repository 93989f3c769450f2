"""Sparse tall sums: one row per feature, and more entries than fit in memory.

A task collects the products of its blocks until there are `RUN_ENTRIES` entries, adds them up and writes the
sum to files, called a run. `distmom.engine.terms` adds up the runs of all tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus.block import csr_from_parts
from distmom.engine.stored.held import HeldSum
from distmom.engine.stored.scratch import ScratchArray, write_scratch
from distmom.engine.sums.algebra import combine

#: number of entries of products that are collected before they are added up
RUN_ENTRIES = 1 << 24
_PARTS = (("indptr", "int64"), ("indices", "int32"), ("data", "float32"))


@dataclass(frozen=True)
class SparsePart:
    """A sparse matrix in files, as reported by the task that wrote them, or in memory.

    Attributes
    ----------
    indptr, indices, data : ScratchArray or HeldSum
    """

    indptr: ScratchArray | HeldSum
    indices: ScratchArray | HeldSum
    data: ScratchArray | HeldSum

    @classmethod
    def write(cls, directory: str, value: csr_array) -> SparsePart:
        """Write a matrix to three files of a directory."""
        return cls(*(write_scratch(directory, array) for array in _arrays_of(value)))

    @classmethod
    def held(cls, value: csr_array) -> SparsePart:
        """Keep a matrix in memory."""
        return cls(*map(HeldSum, _arrays_of(value)))

    def files(self) -> tuple[ScratchArray, ...]:
        """Return the files in the order of `_PARTS`; none of a matrix in memory."""
        parts = self.indptr, self.indices, self.data
        return tuple(part for part in parts if isinstance(part, ScratchArray))


def _arrays_of(value: csr_array) -> list[np.ndarray]:
    return [getattr(value, name).astype(dtype, copy=False) for name, dtype in _PARTS]


class SparseSum:
    """An accumulator of a sparse sum, which writes runs to files.

    Parameters
    ----------
    directory : str or None
        Directory of the files; None keeps the sum in memory.
    """

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._parts: list[csr_array] = []
        self._runs: list[SparsePart] = []

    def add(self, value: csr_array) -> None:
        """Add a matrix (n_words, n_columns)."""
        self._parts.append(value)
        if self._directory is not None and sum(part.nnz for part in self._parts) > RUN_ENTRIES:
            self._write()

    def total(self) -> csr_array:
        """Return the sum of the parts in memory."""
        return combine(self._parts)

    def finish(self, hold: bool = False) -> tuple[SparsePart, ...]:
        """Write the parts that are still in memory, or hold them as one run, and report all runs."""
        if hold and self._parts:
            return *self._runs, SparsePart.held(combine(self._parts))
        self._write()
        return tuple(self._runs)

    def _write(self) -> None:
        if self._parts:
            assert self._directory is not None
            self._runs.append(SparsePart.write(self._directory, combine(self._parts)))
            self._parts = []


@dataclass(frozen=True)
class Runs:
    """The runs of one sparse sum.

    Attributes
    ----------
    parts : tuple of SparsePart
        The runs, in the order in which they are added.
    n_rows, n_columns : int
    """

    parts: tuple[SparsePart, ...]
    n_rows: int
    n_columns: int

    def row_ends(self) -> Iterator[np.ndarray]:
        """Yield ``indptr`` of every run."""
        return (part.indptr.read(0, self.n_rows + 1) for part in self.parts)

    def read_rows(self, rows: slice) -> list[csr_array]:
        """Return some rows of every run; a StoreError if a file has changed."""
        slabs = []
        for part in self.parts:
            indptr = part.indptr.read(rows.start, rows.stop + 1)
            start, stop = int(indptr[0]), int(indptr[-1])
            indices, data = part.indices.read(start, stop), part.data.read(start, stop)
            shape = (rows.stop - rows.start, self.n_columns)
            slabs.append(csr_from_parts(data, indices, indptr - start, shape))
        return slabs
