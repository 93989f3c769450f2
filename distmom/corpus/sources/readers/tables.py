"""Rows from CSV tables of numbers, with a column for the unit of each row and one for the ids of units."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np

from distmom.corpus.layers import CONTEXT_ROWS, Layer, rows_per_shard
from distmom.corpus.names import check_names
from distmom.corpus.sources.readers.arrays import Slice
from distmom.corpus.sources.readers.rows import RowSource, RowSpec
from distmom.corpus.sources.readers.source import LineReader, Tally, decoded
from distmom.corpus.stored.write_layers import LayerShard
from distmom.errors import InputError, UsageError

_DELIMITERS = (",", "\t", ";")
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
#: bytes that a short line takes in memory, which limits the rows of a shard of few columns
_LINE_BYTES = 128


@dataclass(frozen=True)
class _Table:
    """How lines of a table are read: its delimiter, all columns, and the numbers of those with values."""

    spec: RowSpec
    delimiter: str
    header: tuple[str, ...]
    used: tuple[int, ...]

    def position(self, column: str | None) -> int | None:
        """Return the number of a column; None for no column."""
        return None if column is None else position_of(self.spec.path, self.header, column)

    def fields(self, number: int, line: str) -> list[str]:
        """Return the fields of a line; InputError if their number is wrong or a quote is not closed."""
        fields = _split(self.spec.path, number, line, self.delimiter)
        if len(fields) != len(self.header):
            raise InputError.at(
                self.spec.path, number, "number of fields", str(len(self.header)), str(len(fields))
            )
        return fields

    def column(self, numbers: Sequence[int], lines: Sequence[str], position: int, expected: str) -> list[str]:
        """Return a column of texts; InputError if one is empty."""
        texts = [self.fields(*pair)[position].strip() for pair in zip(numbers, lines, strict=True)]
        if "" in texts:
            what = f"column {self.header[position]!r}"
            raise InputError.at(self.spec.path, numbers[texts.index("")], what, expected, "an empty field")
        return texts


def open_table(spec: RowSpec, run_map: Any) -> RowSource:
    """Open a CSV table; fields are separated by commas, tabs or semicolons, and the first row has the names."""
    tally = Tally(spec.path, spec.strict)
    table = _table_of(spec, decoded(tally, 1, LineReader(spec.path, Tally(spec.path)).take(1)))
    for column in (spec.group_column, spec.id_column):
        table.position(column)
    shard_rows = rows_per_shard(max(8 * len(table.used), _LINE_BYTES), spec.shard_rows)

    def tasks() -> Iterator[Callable[[], LayerShard]]:
        reader = LineReader(spec.path, tally)
        reader.take(1)
        for numbers, lines, cut in _cut_lines(reader, table, shard_rows, tally):
            yield partial(_parse_lines, table, numbers, lines, cut)

    names = [table.header[i] for i in table.used]
    return RowSource(tasks, {spec.layer: names, **spec.names}, None, tally.counts)


def _table_of(spec: RowSpec, lines: list[str]) -> _Table:
    if not lines:
        raise InputError.at(spec.path, 1, "header", "names of columns", "an empty file")
    if not lines[0].strip():
        raise InputError.at(spec.path, 1, "header", "names of columns", "a blank line")
    if "\r" in lines[0]:
        raise InputError.at(spec.path, 1, "end of the line", "a line feed", "a carriage return")
    delimiter = max(_DELIMITERS, key=lines[0].count)
    header = tuple(name.strip() for name in _split(spec.path, 1, lines[0], delimiter))
    if all(_NUMBER.fullmatch(name) for name in header):
        raise InputError.at(spec.path, 1, "header", "names of columns", "numbers")
    used = used_columns(spec, header)
    return _Table(spec, delimiter, header, tuple(header.index(name) for name in used))


def _split(path: str, number: int, line: str, delimiter: str) -> list[str]:
    """Return the fields of a line, which must be a complete record."""
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise InputError.at(path, number, "quoted field", "one that ends on the line", str(error)) from error


def used_columns(spec: RowSpec, header: Sequence[str]) -> list[str]:
    """Return the names of the columns with values.

    Raises
    ------
    InputError
        If names of columns are not unique or not valid, or there is no column of values.
    UsageError
        If the specification names a column that the table lacks.
    """
    if len(set(header)) < len(header):
        twice = next(name for name in header if list(header).count(name) > 1)
        raise InputError.at(spec.path, None, "name of a column", "a unique name", repr(twice))
    if spec.columns:
        used = [header[position_of(spec.path, header, name)] for name in spec.columns]
    else:
        used = [name for name in header if name not in (spec.group_column, spec.id_column)]
    if not used:
        raise InputError.at(spec.path, None, "columns of numbers", "at least one", "none")
    # Given names replace those of the header.
    if "" in used and spec.layer not in spec.names:
        raise InputError.at(
            spec.path, None, f"name of column {list(header).index('') + 1}", "text",
            "nothing, as for the index of a pandas table: name it, or read other columns (--columns)",
        )  # fmt: skip
    check_names(f"{spec.path}: names of columns", spec.names.get(spec.layer, used), len(used))
    return used


def position_of(path: str, header: Sequence[str], column: str) -> int:
    """Return the number of a column; UsageError if there is no such column."""
    if column not in header:
        raise UsageError(f"{path}: columns: expected one named {column!r}, got {', '.join(header)}")
    return list(header).index(column)


def _cut_lines(
    reader: LineReader, table: _Table, shard_rows: int, tally: Tally
) -> Iterator[tuple[list[int], list[str], Slice]]:
    """Yield numbers and texts of the lines, with context, and the cut of every shard.

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
            # A line of tabs is a row of empty fields if tabs are the delimiters.
            if line.strip() or table.delimiter in line:
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
            labels = table.column(
                [number for number, _ in kept], [line for _, line in kept], group, "a group"
            )
            changes = [i for i, (a, b) in enumerate(pairwise(labels), 1) if a != b]
            if n < len(kept) and labels[n] == labels[n - 1] and any(i <= n for i in changes):
                n = max(i for i in changes if i <= n)
            starts = np.array([0, *(i for i in changes if i < n), n], np.int64) + len(before)
        continues = group is not None and n < len(kept) and n not in changes
        cut = Slice(row, row + n, starts, bool(before), continues)
        taken = before + kept[:n]
        yield [number for number, _ in taken], [line for _, line in taken], cut
        row += n
        before = []
        if continues:
            own = int(starts[-2]) if starts is not None and len(starts) > 2 else 0
            before = taken[max(own, len(taken) - CONTEXT_ROWS) :]
        kept = kept[n:]


def _parse_lines(table: _Table, numbers: list[int], lines: list[str], cut: Slice) -> LayerShard:
    spec = table.spec
    n_delimiters = len(table.header) - 1
    for number, line in zip(numbers, lines, strict=True):
        if line.count(table.delimiter) != n_delimiters or '"' in line:
            table.fields(number, line)
    try:
        values = np.loadtxt(
            lines, delimiter=table.delimiter, usecols=table.used, ndmin=2, comments=None, quotechar='"'
        )
    except ValueError:
        _refuse_lines(table, numbers, lines)
    if len(values) != len(lines) or not np.isfinite(values).all():
        _refuse_lines(table, numbers, lines)
    layer = Layer(spec.layer, "dense", "rows", values.shape[1], "float64")
    ids: tuple[str, ...] = ()
    if (position := table.position(spec.id_column)) is not None:
        own = range(len(lines)) if cut.starts is None else cut.starts[:-1].tolist()
        ids = tuple(table.column([numbers[i] for i in own], [lines[i] for i in own], position, "an id"))
    return LayerShard((layer,), {spec.layer: values}, cut.starts, cut.continued, cut.continues, ids)


def _refuse_lines(table: _Table, numbers: list[int], lines: list[str]) -> NoReturn:
    """Raise InputError with line and column of the first value that is not a finite number."""
    path = table.spec.path
    for number, line in zip(numbers, lines, strict=True):
        fields = table.fields(number, line)
        for i in table.used:
            if not _NUMBER.fullmatch(fields[i]) or not np.isfinite(float(fields[i])):
                raise InputError.at(
                    path, number, f"column {table.header[i]!r}", "a finite number", repr(fields[i])
                )
    raise InputError.at(path, numbers[0], "rows from this line", "finite numbers", "others")
