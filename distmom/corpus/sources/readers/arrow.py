"""Rows from tables of numbers in Parquet and Arrow IPC (Feather) files, read piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distmom.corpus.files.npy import UNREADABLE
from distmom.corpus.layers import Layer, rows_per_shard
from distmom.corpus.rows import checked_rows_of_layer
from distmom.corpus.sources.readers.arrays import Slice, slices_of
from distmom.corpus.sources.readers.rows import RowSource, RowSpec
from distmom.corpus.sources.readers.source import COMPRESSED
from distmom.corpus.sources.readers.tables import position_of, used_columns
from distmom.corpus.stored.write_layers import LayerShard
from distmom.errors import InputError, UsageError


@dataclass(frozen=True)
class _Pieces:
    """The pieces of a file that are read at once: row groups of Parquet, record batches of Arrow.

    Attributes
    ----------
    path : str
    header : tuple of str
        Names of all columns.
    edges : ndarray of shape (n_pieces + 1,)
        Piece i has the rows ``edges[i] : edges[i + 1]``.
    load : callable
        ``load(path, first, last, columns)`` returns columns of consecutive pieces as a table.
    """

    path: str
    header: tuple[str, ...]
    edges: np.ndarray
    load: Callable[[str, int, int, list[str]], Any]

    def rows(self, start: int, stop: int, columns: list[str]) -> Any:
        """Return a range of rows as a table."""
        first = int(np.searchsorted(self.edges, start, side="right")) - 1
        last = int(np.searchsorted(self.edges, stop, side="left"))
        return self.load(self.path, first, last, columns).slice(start - int(self.edges[first]), stop - start)


def open_parquet(spec: RowSpec, run_map: Any) -> RowSource:
    """Open a Parquet file; row groups are read where they are needed."""
    pa = import_pyarrow()
    try:
        with pa.parquet.ParquetFile(spec.path) as file:
            counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            header = tuple(file.schema_arrow.names)
    except (*UNREADABLE, pa.ArrowException) as error:
        raise unreadable(spec.path, "Parquet", error) from error
    return _open(spec, _Pieces(spec.path, header, np.cumsum([0, *counts]), _load_parquet))


def open_arrow(spec: RowSpec, run_map: Any) -> RowSource:
    """Open an Arrow IPC (Feather) file; record batches are read where they are needed."""
    pa = import_pyarrow()
    try:
        with pa.memory_map(spec.path) as stream:
            # The first column of a batch suffices to count its rows.
            file = pa.ipc.open_file(stream, options=pa.ipc.IpcReadOptions(included_fields=[0]))
            counts = [file.get_batch(i).num_rows for i in range(file.num_record_batches)]
            header = tuple(pa.ipc.open_file(stream).schema.names)
    except (*UNREADABLE, pa.ArrowException) as error:
        raise unreadable(spec.path, "an Arrow IPC file", error) from error
    return _open(spec, _Pieces(spec.path, header, np.cumsum([0, *counts]), _load_arrow))


def _open(spec: RowSpec, pieces: _Pieces) -> RowSource:
    names = used_columns(spec, pieces.header)
    n_rows = int(pieces.edges[-1])
    for column in (spec.group_column, spec.id_column):
        if column is not None:
            position_of(spec.path, pieces.header, column)
    starts = None if spec.group_column is None or not n_rows else _group_starts(pieces, spec.group_column)
    shard_rows = rows_per_shard(8 * len(names), spec.shard_rows)

    def tasks() -> Iterator[Callable[[], LayerShard]]:
        return (partial(_shard, spec, pieces, names, cut) for cut in slices_of(n_rows, starts, shard_rows))

    return RowSource(tasks, {spec.layer: names, **spec.names}, n_rows)


def _group_starts(pieces: _Pieces, column: str) -> np.ndarray:
    """Return the starts of the runs of equal values of a column, one piece at a time."""
    starts: list[np.ndarray] = []
    last: Any = None
    for index, first in enumerate(pieces.edges[:-1]):
        values = pieces.load(pieces.path, index, index + 1, [column]).column(0)
        _refuse_missing(pieces.path, column, values, int(first), "a group")
        labels = values.to_numpy(zero_copy_only=False)
        if not len(labels):
            continue
        is_new = np.ones(len(labels), bool)
        is_new[1:] = labels[1:] != labels[:-1]
        is_new[0] = not starts or labels[0] != last
        last = labels[-1]
        starts.append(first + np.flatnonzero(is_new))
    return np.concatenate([*starts, pieces.edges[-1:]]).astype(np.int64)


def _refuse_missing(path: str, name: str, column: Any, first: int, expected: str) -> None:
    """Raise InputError for a missing value, NaN included, and for lists and the like."""
    pa = import_pyarrow()
    if pa.types.is_nested(column.type):
        raise InputError.at(path, None, f"column {name!r}", "single values", str(column.type))
    if column.null_count or pa.types.is_floating(column.type):
        is_missing = column.is_null(nan_is_null=pa.types.is_floating(column.type))
        bad = np.flatnonzero(is_missing.to_numpy(zero_copy_only=False))
        if len(bad):
            what = f"row {first + int(bad[0])}, column {name!r}"
            raise InputError.at(path, None, what, expected, "a missing value")


def _shard(spec: RowSpec, pieces: _Pieces, names: list[str], cut: Slice) -> LayerShard:
    first = cut.start - cut.context
    # The column of ids may also be a column of values.
    wanted = list(dict.fromkeys([*names, *([] if spec.id_column is None else [spec.id_column])]))
    table = pieces.rows(first, cut.stop, wanted)
    columns = []
    for name in names:
        column = table.column(name)
        _refuse_missing(spec.path, name, column, first, "a finite number")
        values = column.to_numpy(zero_copy_only=False)
        if values.dtype.kind not in "iubf":
            got = f"{column.type} (--text-field names a column with the texts of documents)"
            raise InputError.at(spec.path, None, f"column {name!r}", "numbers", got)
        columns.append(values)
    # float32 if all columns are float32; the check reports the row of a value that is not finite.
    rows, kind, width = checked_rows_of_layer(np.stack(columns, axis=1), spec.path, None, first)
    ids: tuple[str, ...] = ()
    if spec.id_column is not None:
        column = table.column(spec.id_column)
        _refuse_missing(spec.path, spec.id_column, column, first, "an id")
        texts = [str(value) for value in column.to_pylist()]
        ids = tuple(texts) if cut.starts is None else tuple(texts[start] for start in cut.starts[:-1])
    layer = Layer(spec.layer, kind, "rows", width, str(rows.dtype))
    return LayerShard((layer,), {spec.layer: rows}, cut.starts, cut.continued, cut.continues, ids)


def import_pyarrow() -> Any:
    """Return the module pyarrow; a UsageError if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError("Parquet and Arrow files need pyarrow: pip install 'distmom[arrow]'") from error
    return pyarrow


def unreadable(path: str, what: str, error: BaseException) -> InputError:
    """Return the error for a file that cannot be read in its format."""
    if Path(path).suffix.lower() in COMPRESSED:
        return InputError.at(path, None, "content", what, "a compressed file: decompress it first")
    return InputError(f"{path}: cannot be read as {what}: {error}")


def _load_parquet(path: str, first: int, last: int, columns: list[str]) -> Any:
    pa = import_pyarrow()
    try:
        with pa.parquet.ParquetFile(path) as file:
            return file.read_row_groups(list(range(first, last)), columns)
    except (*UNREADABLE, pa.ArrowException) as error:
        raise unreadable(path, "Parquet", error) from error


def _load_arrow(path: str, first: int, last: int, columns: list[str]) -> Any:
    pa = import_pyarrow()
    try:
        with pa.memory_map(path) as stream:
            header = pa.ipc.open_file(stream).schema.names
            options = pa.ipc.IpcReadOptions(included_fields=[header.index(name) for name in columns])
            file = pa.ipc.open_file(stream, options=options)
            batches = [file.get_batch(i) for i in range(first, last)]
            return pa.Table.from_batches(batches, file.schema).select(columns)
    except (*UNREADABLE, pa.ArrowException) as error:
        raise unreadable(path, "an Arrow IPC file", error) from error
