"""Tall sums: one row per feature or target, too large to send between processes.

A task adds its documents to a tall accumulator and writes it to a file. The total is computed slab by slab: the
rows of all partial files are read and added in the order of the groups, so that no process holds the whole sum;
the result of a slab (its part of a Gram matrix, its rows of a basis) is small or is written to a file again.
Groups depend on the corpus alone. Columns are added independently of each other, so they can be cut into slabs
to suit memory and workers without changing a bit of the sum.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.clock import spend, taken
from distmom.compiled import compiled
from distmom.engine.stored.arrays import (
    SLAB_ROWS,
    Columns,
    StoredArray,
    StoredColumns,
    release_maps,
    slab_checksum,
    slab_digest,
)
from distmom.engine.stored.held import HeldOutput, HeldSum
from distmom.engine.stored.scratch import ScratchArray, claimed, cleared, write_scratch

#: rows that are processed at a time, unless stated otherwise, when a function is mapped over slabs of rows
PIECE_ROWS = 1 << 12
#: rows to which more documents than this contribute are summed in float64: in float32 a sum of n terms has a
#: relative error of about sqrt(n) 6e-8
FREQUENT = 1024


@dataclass(frozen=True)
class TallSum:
    """An accumulator of a tall sum: float64, or float32 within a block and for rows that are not frequent.

    Attributes
    ----------
    single : ndarray of shape (n_rows, width), float32 or float64
        The sum to which blocks are added.
    double : ndarray of shape (n_frequent, width), float64
        Sums of the frequent rows over all earlier blocks, see `settle`.
    frequent : ndarray of shape (n_frequent,), int64
        Numbers of the frequent rows, ascending.
    """

    single: np.ndarray
    double: np.ndarray
    frequent: np.ndarray

    @classmethod
    def zero(cls, n_rows: int, width: int, frequent: np.ndarray | None = None) -> TallSum:
        """Return zeros: float64, or float32 with float64 for the frequent rows if these are given."""
        if frequent is None:
            return cls(cleared((n_rows, width), "float64"), np.zeros((0, width)), np.zeros(0, np.int64))
        double = cleared((len(frequent), width), "float64")
        return cls(cleared((n_rows, width), "float32"), double, frequent)

    def settle(self) -> None:
        """Move the sums of the frequent rows to float64; called after every block."""
        _move_rows(self.frequent, self.single, self.double)

    def dense(self) -> np.ndarray:
        """Return the sum as one float64 matrix."""
        total = self.single.astype(np.float64)
        total[self.frequent] += self.double
        return total


@compiled
def _move_rows(rows: Any, source: Any, target: Any) -> None:
    for i in range(len(rows)):
        v = rows[i]
        for c in range(source.shape[1]):
            target[i, c] += source[v, c]
            source[v, c] = 0.0


def frequent_rows(frequency: np.ndarray) -> np.ndarray:
    """Return the rows that are summed in float64 where others are summed in float32, int64, ascending."""
    return np.flatnonzero(np.asarray(frequency) > FREQUENT).astype(np.int64)


@dataclass(frozen=True)
class TallPart:
    """An accumulator in files, as reported by the task that wrote them, or in the memory of this process.

    Attributes
    ----------
    single, double : ScratchArray or HeldSum
        See `TallSum`.
    """

    single: ScratchArray | HeldSum
    double: ScratchArray | HeldSum

    def files(self) -> list[ScratchArray]:
        """Return the files; none for an accumulator in memory."""
        return [part for part in (self.single, self.double) if isinstance(part, ScratchArray)]


def write_partial(directory: str, value: TallSum) -> TallPart:
    """Write an accumulator to two files of a directory; it is zero afterwards."""
    # One checksum per piece of rows that `Partials` reads at a time.
    piece_bytes = PIECE_ROWS * max(1, value.single.shape[1]) * value.single.itemsize
    single = write_scratch(directory, value.single, piece_bytes)
    return TallPart(single, write_scratch(directory, value.double))


@dataclass(frozen=True)
class Partials:
    """The partial sums of one tall sum, in files or in memory, read as their total.

    Attributes
    ----------
    parts : tuple of tuple of TallPart
        For every group, the parts of its slabs of columns.
    n_rows, width : int
    columns : tuple of slice
        The slabs of columns.
    frequent : StoredArray or None
        Numbers of the rows that are summed separately in float64; None if there are none.
    """

    parts: tuple[tuple[TallPart, ...], ...]
    n_rows: int
    width: int
    columns: tuple[slice, ...]
    frequent: StoredArray | None

    def read_rows(self, rows: slice) -> np.ndarray:
        """Return some rows of the total, float64; a StoreError if a partial sum has changed."""
        out = np.zeros((rows.stop - rows.start, self.width))
        frequent = np.zeros(0, np.int64) if self.frequent is None else self.frequent.load()
        low, high = (int(x) for x in np.searchsorted(frequent, (rows.start, rows.stop)))
        wide = np.zeros((high - low, self.width))
        for slabs in self.parts:
            for part, columns in zip(slabs, self.columns, strict=True):
                out[:, columns] += part.single.read(rows.start, rows.stop)
                if high > low:
                    wide[:, columns] += part.double.read(low, high)
        out[frequent[low:high] - rows.start] += wide
        return out


#: inputs of `distmom.engine.maps.Maps.map_rows`
Tall = Partials | StoredArray | StoredColumns | np.ndarray
#: called with slabs of the inputs; returns slabs of the outputs and small sums, by name
RowFunction = Callable[..., tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]]


@dataclass(frozen=True)
class RowOutput:
    """A file that tasks fill with rows of fixed width.

    An abandoned attempt that writes late writes the same bytes, as its inputs are checked on every read.

    Attributes
    ----------
    path : str
    dtype : str
    width : int
    """

    path: str
    dtype: str
    width: int

    @classmethod
    def create(cls, path: Path, n_rows: int, width: int, dtype: str, spare: Path) -> RowOutput:
        """Create the file, with the header of an ``.npy`` file and room for all rows."""
        n_bytes = n_rows * width * np.dtype(dtype).itemsize
        mode = "r+b" if claimed(path, n_bytes, spare) else "xb"
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (n_rows, width)}
        try:
            with open(path, mode) as stream:
                np.lib.format.write_array_header_1_0(stream, header)
                stream.truncate(stream.tell() + n_bytes)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return cls(str(path), dtype, width)

    def room(self, rows: slice) -> np.ndarray:
        """Return the array in which some rows are made."""
        return np.empty((rows.stop - rows.start, self.width), self.dtype)

    def write(self, start: int, rows: np.ndarray) -> str:
        """Write rows from ``start`` on and return their checksum."""
        content = np.ascontiguousarray(rows, self.dtype)
        with open(self.path, "r+b") as stream:
            np.lib.format.read_magic(stream)
            np.lib.format.read_array_header_1_0(stream)
            stream.seek(start * self.width * content.itemsize, os.SEEK_CUR)
            stream.write(content.data)
        return slab_checksum(content)

    def finish(self, n_rows: int, checksums: Sequence[str]) -> StoredArray:
        """Rename the complete file to its digest and return its handle."""
        digest = slab_digest((n_rows, self.width), np.dtype(self.dtype), checksums)
        path = Path(self.path).with_name(f"{digest[:32]}.npy")
        os.replace(self.path, path)
        return StoredArray(str(path), digest)

    def discard(self) -> None:
        """Remove the file if it exists."""
        Path(self.path).unlink(missing_ok=True)


def map_task(
    function: RowFunction,
    inputs: Sequence[Tall],
    outputs: Mapping[str, RowOutput | HeldOutput],
    n_rows: int,
    arguments: tuple[Any, ...],
    piece_rows: int,
    n_together: int,
    index: int,
) -> tuple[list[tuple[dict[str, str], dict[str, np.ndarray]]], dict[str, float]]:
    """Process the slabs of rows of task ``index``, ``n_together`` slabs per task.

    Returns
    -------
    slabs : list of (dict, dict)
        For every slab, the checksums of the rows written, and the sums.
    spent : dict of str to float
        Seconds by kind of work.
    """
    with one_blas_thread():
        taken()
        first, step = index * n_together * SLAB_ROWS, SLAB_ROWS
        last = min(first + n_together * step, n_rows)
        slabs = [
            _map_slab(function, inputs, outputs, slice(start, min(start + step, last)), arguments, piece_rows)
            for start in range(first, last, step)
        ]
        return slabs, taken()


def _map_slab(
    function: RowFunction,
    inputs: Sequence[Tall],
    outputs: Mapping[str, RowOutput | HeldOutput],
    rows: slice,
    arguments: tuple[Any, ...],
    piece_rows: int,
) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    written = {name: output.room(rows) for name, output in outputs.items()}
    sums: dict[str, np.ndarray] = {}
    # Temporary arrays of a function may be several times as large as its result.
    for start in range(rows.start, rows.stop, piece_rows):
        piece = slice(start, min(start + piece_rows, rows.stop))
        with spend("merge"):
            slabs = [read_rows(item, piece) for item in inputs]
        with spend("kernels"):
            values, added = function(piece, *slabs, *arguments)
        for name, value in values.items():
            written[name][piece.start - rows.start : piece.stop - rows.start] = value
        sums = {name: sums[name] + value if sums else value for name, value in added.items()}
    with spend("write"):
        checksums = {name: outputs[name].write(rows.start, value) for name, value in written.items()}
    release_maps()
    return checksums, sums


def read_rows(item: Tall, rows: slice) -> np.ndarray:
    """Return some rows of a matrix in memory or in files."""
    if isinstance(item, Partials):
        return item.read_rows(rows)
    if isinstance(item, StoredArray | StoredColumns):
        opened = item.load()
        if isinstance(opened, Columns):
            return np.concatenate([np.asarray(part[rows]) for part in opened.parts], axis=1)
        item = opened
    return np.asarray(item[rows])
