"""Rows from arrays: ``.npy`` and ``.npz`` files, Zarr arrays, and arrays in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from scipy import sparse

from distmom.corpus.files.npy import UNREADABLE, check_npy_mark, load_sparse, member_of
from distmom.corpus.layers import Layer, cut_units, rows_per_shard
from distmom.corpus.names import check_names
from distmom.corpus.rows import as_array, checked_rows_of_layer, starts_of
from distmom.corpus.sources.readers.rows import RowSource, RowSpec, units_of
from distmom.corpus.stored.write_layers import LayerShard
from distmom.errors import InputError, UsageError


@dataclass(frozen=True)
class Slice:
    """Rows of an array that make one shard.

    Attributes
    ----------
    start, stop : int
        Rows, without context.
    starts : ndarray or None
        As in `LayerShard`.
    continued, continues : bool
    """

    start: int
    stop: int
    starts: np.ndarray | None = None
    continued: bool = False
    continues: bool = False

    @property
    def context(self) -> int:
        """Rows before ``start`` that the shard repeats."""
        return 0 if self.starts is None else int(self.starts[0])


def slices_of(n_rows: int, starts: np.ndarray | None, shard_rows: int) -> Iterator[Slice]:
    """Cut rows into shards; every row is a unit where there are no starts."""
    if starts is None:
        for start in range(0, n_rows, shard_rows):
            yield Slice(start, min(start + shard_rows, n_rows))
        return
    for cut in cut_units(starts, shard_rows):
        yield Slice(
            cut.start, cut.stop, cut.starts(starts), bool(cut.start > starts[cut.first]),
            bool(cut.stop < starts[cut.last]),
        )  # fmt: skip


def shard_of_rows(rows: Any, cut: Slice, spec: RowSpec) -> LayerShard:
    """Return the shard of rows that have been read, including the context; InputError if a value is invalid."""
    first = cut.start - cut.context
    values, kind, width = checked_rows_of_layer(rows, spec.path, spec.n_symbols, first)
    layer = Layer(spec.layer, kind, "rows", width, str(values.dtype))
    return LayerShard((layer,), {spec.layer: values}, cut.starts, cut.continued, cut.continues)


def open_npy(spec: RowSpec, run_map: Any) -> RowSource:
    """Open an ``.npy`` file; it is mapped into memory, never read whole."""
    array = _map_npy(spec.path)
    return _source(array.shape, array.dtype, spec, partial(_load_npy, spec))


def open_zarr(spec: RowSpec, run_map: Any) -> RowSource:
    """Open a Zarr array in a directory."""
    array = _open_zarr_array(spec.path)
    return _source(array.shape, array.dtype, spec, partial(_load_zarr, spec))


def open_npz(spec: RowSpec, run_map: Any) -> RowSource:
    """Open an ``.npz`` file of ``values`` and ``lengths`` of units, of one array, or of a sparse matrix."""
    try:
        loaded = np.load(spec.path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise InputError(f"{spec.path}: expected an .npz file, got an array; use --format npy")
        with loaded as archive:
            names = set(archive.files)
            if {"format", "shape"} <= names:
                values = load_sparse(spec.path)
            elif names == {"values", "lengths"}:
                values, lengths = (member_of(archive, name) for name in ("values", "lengths"))
            elif len(names) == 1:
                values = member_of(archive, archive.files[0])
            else:
                raise InputError.at(
                    spec.path, None, "arrays", "values and lengths, one array, or a sparse matrix",
                    ", ".join(sorted(names)) or "none",
                )  # fmt: skip
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"{spec.path}: not an .npz file of numbers: {error}") from error
    if names == {"values", "lengths"}:
        if spec.lengths is not None:
            raise UsageError(f"{spec.path}: lengths: expected none, as the file has its own")
        # Messages about the lengths then name the file.
        starts_of(lengths, len(values) if values.ndim else 0, spec.path)
        spec = replace(spec, lengths=lengths)
    return open_array(spec, values)


def open_array(spec: RowSpec, values: Any) -> RowSource:
    """Open rows in memory; every task holds its own rows."""
    if sparse.issparse(values) and values.ndim != 2:
        raise InputError.at(spec.path, None, "shape", "a sparse matrix", str(values.shape))
    matrix = values.tocsr() if sparse.issparse(values) else as_array(values, spec.path)
    n_stored = int(matrix.nnz) if not isinstance(matrix, np.ndarray) else None

    def load(cut: Slice) -> Callable[[], LayerShard]:
        return partial(shard_of_rows, matrix[cut.start - cut.context : cut.stop], cut, spec)

    return _source(matrix.shape, matrix.dtype, spec, load, n_stored)


def _source(
    shape: tuple[int, ...],
    dtype: Any,
    spec: RowSpec,
    load: Callable[[Slice], Callable[[], LayerShard]],
    n_stored: int | None = None,
) -> RowSource:
    if len(shape) not in (1, 2):
        raise InputError.at(spec.path, None, "shape", "a matrix, or a vector of symbols", str(shape))
    n_rows = int(shape[0])
    per_row = 8 * int(shape[1]) if len(shape) == 2 else 4
    if n_stored is not None:
        per_row = 12 * n_stored // max(1, n_rows)
    if len(shape) == 2 and spec.layer in spec.names:
        check_names(f"{spec.path}: names", spec.names[spec.layer], int(shape[1]))
    elif len(shape) == 2 and spec.n_symbols is not None:
        raise UsageError(f"{spec.path}: n_symbols: expected a vector of symbols, got a matrix")
    shard_rows = rows_per_shard(per_row, spec.shard_rows)
    starts = units_of(spec, n_rows)
    return RowSource(lambda: (load(cut) for cut in slices_of(n_rows, starts, shard_rows)), spec.names, n_rows)


def _map_npy(path: str) -> Any:
    try:
        check_npy_mark(path)
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except UNREADABLE as error:
        raise InputError(f"{path}: not an .npy file of numbers: {error}") from error
    if not isinstance(found, np.ndarray):
        raise InputError(f"{path}: expected an .npy file, got an archive; use --format rows-npz")
    return found


def _load_npy(spec: RowSpec, cut: Slice) -> Callable[[], LayerShard]:
    return partial(_read_npy, spec, cut)


def _read_npy(spec: RowSpec, cut: Slice) -> LayerShard:
    # A view of the map would keep its pages in memory.
    return shard_of_rows(np.array(_map_npy(spec.path)[cut.start - cut.context : cut.stop]), cut, spec)


def _open_zarr_array(path: str) -> Any:
    try:
        return zarr.open_array(path, mode="r")
    # Zarr raises errors of many classes for directories that are not arrays.
    except Exception as error:
        what = "an array" if Path(path).exists() else "a directory"
        raise UsageError(f"{path}: cannot be opened as a Zarr array: expected {what}: {error}") from error


def _load_zarr(spec: RowSpec, cut: Slice) -> Callable[[], LayerShard]:
    return partial(_read_zarr, spec, cut)


def _read_zarr(spec: RowSpec, cut: Slice) -> LayerShard:
    first = cut.start - cut.context
    try:
        rows = np.asarray(_open_zarr_array(spec.path)[first : cut.stop])
    # Codecs raise errors of many classes for damaged chunks.
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError.at(
            spec.path, None, f"rows {first} to {cut.stop - 1}", "readable chunks", str(error)
        ) from error
    return shard_of_rows(rows, cut, spec)
