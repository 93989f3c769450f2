"""Rows from tables: CSV files of numbers, Parquet, and Arrow IPC files.

Columns are numbers, except one with the unit of each row and one with the ids of units.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from distmom.corpus.layer_write import LayerShard
from distmom.corpus.layers import CONTEXT_ROWS, Layer, rows_per_shard
from distmom.corpus.readers.arrays import Slice, slices_of
from distmom.corpus.readers.rows import RowSource, RowSpec
from distmom.corpus.readers.source import LineReader, Tally, decoded
from distmom.corpus.rows import checked_rows_of_layer
from distmom.errors import InputError, UsageError

_DELIMITERS = (",", "\t", ";")


@dataclass(frozen=True)
class _Table:
    """How lines of a table are read: its delimiter, all columns, and the numbers of those with values."""

    spec: RowSpec
    delimiter: str
    header: tuple[str, ...]
    used: tuple[int, ...]

    def position(self, column: str | None) -> int | None:
        """Return the number of a column; None for no column."""
        return None if column is None else _position(self.spec.path, self.header, column)


def open_table(spec: RowSpec, run_map: Any) -> RowSource:
    """Open a CSV table; fields are separated by commas, tabs or semicolons, and the first row has the names."""
    tally = Tally(spec.path, spec.strict)
    table = _table_of(spec, decoded(tally, 1, LineReader(spec.path, Tally(spec.path)).take(1)))
    shard_rows = rows_per_shard(8 * len(table.used), spec.shard_rows)

    def tasks() -> Iterator[Callable[[], LayerShard]]:
        reader = LineReader(spec.path, tally)
        reader.take(1)
        for first, lines, cut in _cut_lines(reader, table, shard_rows, tally):
            yield partial(_parse_lines, table, first, lines, cut)

    names = {spec.layer: [table.header[i] for i in table.used]}
    return RowSource(tasks, {**names, **spec.names}, None, tally.counts)


def _table_of(spec: RowSpec, lines: list[str]) -> _Table:
    if not lines:
        raise InputError.at(spec.path, 1, "header", "names of columns", "an empty file")
    delimiter = max(_DELIMITERS, key=lines[0].count)
    header = tuple(name.strip() for name in next(csv.reader([lines[0]], delimiter=delimiter)))
    if all(_is_number(name) for name in header):
        raise InputError.at(spec.path, 1, "header", "names of columns", "numbers")
    return _Table(spec, delimiter, header, _used(spec, header))


def _used(spec: RowSpec, header: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of the columns with values."""
    if len(set(header)) < len(header):
        twice = next(name for name in header if list(header).count(name) > 1)
        raise InputError.at(spec.path, 1, "name of a column", "a unique name", repr(twice))
    if spec.columns:
        return tuple(_position(spec.path, header, name) for name in spec.columns)
    others = {_position(spec.path, header, name) for name in (spec.group_column, spec.id_column) if name}
    found = tuple(i for i in range(len(header)) if i not in others)
    if not found:
        raise InputError.at(spec.path, None, "columns of numbers", "at least one", "none")
    return found


def _position(path: str, header: Sequence[str], column: str) -> int:
    if column not in header:
        raise UsageError(f"{path}: column: expected one of {', '.join(header)}, got {column!r}")
    return list(header).index(column)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _cut_lines(
    reader: LineReader, table: _Table, shard_rows: int, tally: Tally
) -> Iterator[tuple[int, list[str], Slice]]:
    """Yield the first line, the lines with context, and the cut of every shard.

    A shard ends where a unit ends, unless a single unit is longer than a shard.
    """
    group = table.position(table.spec.group_column)
    kept: list[tuple[int, str]] = []
    before: list[tuple[int, str]] = []
    row = 0
    while True:
        first = reader.next_line
        lines = decoded(tally, first, reader.take(shard_rows + 1 - len(kept)))
        for number, line in enumerate(lines, first):
            if line.strip():
                kept.append((number, line))
            else:
                tally.repair("blank_lines", number, "a blank line")
        is_last = len(lines) == 0
        if not kept:
            return
        if len(kept) <= shard_rows and not is_last:
            continue
        n = min(len(kept), shard_rows)
        if group is None:
            starts = None
        else:
            labels = _column(table, [line for _, line in kept], group)
            changes = [i for i, (a, b) in enumerate(pairwise(labels), 1) if a != b]
            if n < len(kept) and labels[n] == labels[n - 1] and any(i <= n for i in changes):
                n = max(i for i in changes if i <= n)
            starts = np.array([0, *(i for i in changes if i < n), n], np.int64) + len(before)
        continues = group is not None and n < len(kept) and n not in changes
        cut = Slice(row, row + n, starts, bool(before), continues)
        taken = before + kept[:n]
        yield taken[0][0], [line for _, line in taken], cut
        row += n
        before = []
        if continues:
            own = int(starts[-2]) if starts is not None and len(starts) > 2 else 0
            before = taken[max(own, len(taken) - CONTEXT_ROWS) :]
        kept = kept[n:]


def _column(table: _Table, lines: list[str], position: int) -> list[str]:
    rows = csv.reader(lines, delimiter=table.delimiter)
    return [fields[position].strip() if position < len(fields) else "" for fields in rows]


def _parse_lines(table: _Table, first: int, lines: list[str], cut: Slice) -> LayerShard:
    spec = table.spec
    try:
        values = np.loadtxt(
            lines, delimiter=table.delimiter, usecols=table.used, ndmin=2, comments=None, quotechar='"'
        )
        if any(line.count(table.delimiter) != len(table.header) - 1 and '"' not in line for line in lines):
            raise ValueError
        finite = bool(np.isfinite(values).all())
    except ValueError:
        finite = False
        values = np.zeros((0, len(table.used)))
    if not finite:
        _refuse_line(table, first, lines)
    layer = Layer(spec.layer, "dense", "rows", values.shape[1], "float64")
    ids: tuple[str, ...] = ()
    if (position := table.position(spec.id_column)) is not None:
        texts = _column(table, lines, position)
        ids = tuple(texts) if cut.starts is None else tuple(texts[start] for start in cut.starts[:-1])
    return LayerShard((layer,), {spec.layer: values}, cut.starts, cut.continued, cut.continues, ids)


def _refuse_line(table: _Table, first: int, lines: list[str]) -> None:
    """Raise InputError with line and column of the first value that is not a finite number."""
    path = table.spec.path
    for number, fields in enumerate(csv.reader(lines, delimiter=table.delimiter), first):
        if len(fields) != len(table.header):
            raise InputError.at(path, number, "number of fields", str(len(table.header)), str(len(fields)))
        for i in table.used:
            if not _is_number(fields[i]) or not np.isfinite(float(fields[i])):
                raise InputError.at(
                    path, number, f"column {table.header[i]!r}", "a finite number", repr(fields[i])
                )


def open_parquet(spec: RowSpec, run_map: Any) -> RowSource:
    """Open a Parquet file; row groups are read where they are needed."""
    return _open_arrow_table(spec, _read_parquet)


def open_arrow(spec: RowSpec, run_map: Any) -> RowSource:
    """Open an Arrow IPC (Feather) file, mapped into memory."""
    return _open_arrow_table(spec, _read_arrow)


def _open_arrow_table(spec: RowSpec, read: Callable[..., Any]) -> RowSource:
    header, n_rows = read(spec.path, None, None)
    used = _used(spec, header)
    names = [header[i] for i in used]
    starts = None
    if spec.group_column is not None:
        _position(spec.path, header, spec.group_column)
        labels = read(spec.path, [spec.group_column], None).column(0).to_numpy(zero_copy_only=False)
        changes = np.flatnonzero(labels[1:] != labels[:-1]) + 1
        starts = np.concatenate([[0], changes, [n_rows]]).astype(np.int64)
    shard_rows = rows_per_shard(8 * len(used), spec.shard_rows)
    if spec.id_column is not None:
        _position(spec.path, header, spec.id_column)

    def tasks() -> Iterator[Callable[[], LayerShard]]:
        return (
            partial(_arrow_shard, spec, read, names, cut) for cut in slices_of(n_rows, starts, shard_rows)
        )

    return RowSource(tasks, {spec.layer: names, **spec.names}, n_rows)


def _arrow_shard(spec: RowSpec, read: Callable[..., Any], names: list[str], cut: Slice) -> LayerShard:
    first = cut.start - cut.context
    wanted = names + ([spec.id_column] if spec.id_column is not None else [])
    table = read(spec.path, wanted, (first, cut.stop))
    columns = []
    for name in names:
        column = table.column(name)
        if column.null_count:
            row = first + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise InputError.at(spec.path, None, f"row {row}, column {name!r}", "a number", "a missing value")
        values = column.to_numpy(zero_copy_only=False)
        if values.dtype.kind not in "iubf":
            raise InputError.at(spec.path, None, f"column {name!r}", "numbers", str(column.type))
        columns.append(values)
    # float32 if all columns are; the check has the row of a value that is not finite.
    rows, kind, width = checked_rows_of_layer(np.stack(columns, axis=1), spec.path, None, first)
    ids: tuple[str, ...] = ()
    if spec.id_column is not None:
        texts = [str(value) for value in table.column(spec.id_column).to_pylist()]
        ids = tuple(texts) if cut.starts is None else tuple(texts[start] for start in cut.starts[:-1])
    layer = Layer(spec.layer, kind, "rows", width, str(rows.dtype))
    return LayerShard((layer,), {spec.layer: rows}, cut.starts, cut.continued, cut.continues, ids)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError("Parquet and Arrow files need pyarrow: pip install 'distmom[arrow]'") from error
    return pyarrow


def _read_parquet(path: str, columns: list[str] | None, rows: tuple[int, int] | None) -> Any:
    """Return names and number of rows without ``columns``, else these columns of a range of rows or of all."""
    pa = _pyarrow()
    try:
        with pa.parquet.ParquetFile(path) as file:
            if columns is None:
                return list(file.schema_arrow.names), file.metadata.num_rows
            if rows is None:
                return file.read(columns)
            edges = np.cumsum([0] + [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)])
            first = int(np.searchsorted(edges, rows[0], side="right")) - 1
            last = int(np.searchsorted(edges, rows[1], side="left"))
            table = file.read_row_groups(list(range(first, last)), columns)
            return table.slice(rows[0] - int(edges[first]), rows[1] - rows[0])
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error


def _read_arrow(path: str, columns: list[str] | None, rows: tuple[int, int] | None) -> Any:
    """As `_read_parquet`, of an Arrow IPC file."""
    pa = _pyarrow()
    try:
        with pa.memory_map(path) as stream:
            table = pa.ipc.open_file(stream).read_all()
            if columns is None:
                return list(table.column_names), table.num_rows
            table = table.select(columns)
            return table if rows is None else table.slice(rows[0], rows[1] - rows[0])
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as an Arrow IPC file: {error}") from error
