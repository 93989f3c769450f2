"""Texts with named labels in Parquet and Arrow IPC (Feather) files, read batch by batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

from distmom.corpus.files.npy import UNREADABLE
from distmom.corpus.sources.readers.arrow import import_pyarrow, unreadable
from distmom.corpus.sources.readers.part import Part, Unlabelled
from distmom.corpus.sources.readers.source import Chunk, Tally, open_source
from distmom.corpus.sources.readers.spec import Source, Spec
from distmom.corpus.sources.readers.text import encode_entries, entry_text, label_fields
from distmom.errors import InputError

#: bytes of each column of a Parquet file that are read at once
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class _Kind:
    """A kind of file.

    Attributes
    ----------
    name : str
        For messages.
    schema : callable
        Returns the schema of an open file.
    batches : callable
        ``batches(stream, columns, size)`` yields some columns of an open file, batch by batch: of at most ``size``
        rows, or as they are stored.
    """

    name: str
    schema: Callable[[BinaryIO], Any]
    batches: Callable[[BinaryIO, list[str], int], Iterable[Any]]


def _parquet_schema(stream: BinaryIO) -> Any:
    return import_pyarrow().parquet.read_schema(stream)


def _parquet_batches(stream: BinaryIO, columns: list[str], size: int) -> Iterable[Any]:
    # By default, whole columns of a row group are read at once and kept until the end of the file.
    file = import_pyarrow().parquet.ParquetFile(stream, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    # Threads would read ahead, in any order.
    batches: Iterable[Any] = file.iter_batches(size, columns=columns, use_threads=False)
    return batches


def _arrow_schema(stream: BinaryIO) -> Any:
    return _open_arrow(stream).schema


def _arrow_batches(stream: BinaryIO, columns: list[str], size: int) -> Iterable[Any]:
    names = _arrow_schema(stream).names
    stream.seek(0)
    options = import_pyarrow().ipc.IpcReadOptions(included_fields=[names.index(name) for name in columns])
    reader = _open_arrow(stream, options)
    if hasattr(reader, "num_record_batches"):
        return map(reader.get_batch, range(reader.num_record_batches))
    return _to_the_end(reader, stream)


def _to_the_end(reader: Iterable[Any], stream: BinaryIO) -> Iterator[Any]:
    """Yield the batches of an IPC stream; a ValueError if another one follows, which pyarrow would leave out."""
    yield from reader
    if stream.read(1):
        raise ValueError("bytes follow the end of the stream, as if several files had been joined")


def _open_arrow(stream: BinaryIO, options: Any = None) -> Any:
    """Open an IPC file, whose batches can be read in any order, or an IPC stream."""
    pa = import_pyarrow()
    is_file = stream.read(6) == b"ARROW1"
    stream.seek(0)
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(stream, options=options)


#: kinds of files by the name of their format
_KINDS = {
    "parquet": _Kind("Parquet", _parquet_schema, _parquet_batches),
    "arrow": _Kind("an Arrow IPC file", _arrow_schema, _arrow_batches),
}


def open_parquet_texts(spec: Spec) -> Source:
    """Open a Parquet file with one text per row."""
    return _open(spec, _KINDS["parquet"])


def open_arrow_texts(spec: Spec) -> Source:
    """Open an Arrow IPC file or stream with one text per row."""
    return _open(spec, _KINDS["arrow"])


def has_texts(path: str, format: str, text_field: str) -> bool:
    """Return whether a ``parquet`` or ``arrow`` file has a column of texts.

    A column that the caller named is taken for one; that of the default name must have texts.

    Raises
    ------
    InputError
        If the file cannot be read.
    UsageError
        If pyarrow is not installed.
    """
    if text_field != Spec.text_field:
        return True
    found = dict(_columns_of(path, _KINDS[format])).get(text_field)
    return found is not None and _is_text(found)


def _is_text(kind: Any) -> bool:
    """Whether a type is that of texts, which may be stored as numbers of the texts in a dictionary."""
    types = import_pyarrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_list(kind: Any) -> bool:
    """Whether a type is that of lists, of fixed or any length."""
    types = import_pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _columns_of(path: str, kind: _Kind) -> list[tuple[str, Any]]:
    """Return the names and types of all columns of a file."""
    with open_source(path) as stream, _explained(path, kind.name):
        return [(column.name, column.type) for column in kind.schema(stream)]


@contextmanager
def _explained(path: str, what: str) -> Iterator[None]:
    """Raise an InputError that names the file for whatever an unreadable file raises; a context manager."""
    try:
        yield
    except (*UNREADABLE, import_pyarrow().ArrowException) as error:
        raise unreadable(path, what, error) from error


def _open(spec: Spec, kind: _Kind) -> Source:
    types = _columns_of(spec.path, kind)
    header = tuple(name for name, _ in types)
    wanted = {"--text-field": spec.text_field, "--id-column": spec.id_field}
    if spec.labels_field != Spec.labels_field:
        wanted["--labels-field"] = spec.labels_field
    for option, name in wanted.items():
        if name is not None and header.count(name) != 1:
            raise InputError.at(spec.path, None, "columns", f"one {name!r} ({option})", repr(header)[:200])
    for name in label_fields(spec):
        if header.count(name) > 1:
            raise InputError.at(spec.path, None, "columns", f"one {name!r} at most", repr(header)[:200])
    used = (spec.text_field, *label_fields(spec), spec.id_field)
    columns = [name for name in header if name in used]
    candidates = sorted(
        name for name, type in types if name not in used and (_is_text(type) or _is_list(type))
    )
    n_bytes = 0

    def chunks(size: int) -> Iterator[Chunk]:
        nonlocal n_bytes
        first = 0
        with open_source(spec.path) as stream:
            with _explained(spec.path, kind.name):
                tables = _cut(kind.batches(stream, columns, size), size)
                table = next(tables, None)
            while table is not None:
                with _explained(spec.path, kind.name):
                    following, content = next(tables, None), _to_bytes(table)
                # What follows the last batch is not read, and the columns of a row group are read in turn.
                n_bytes = os.path.getsize(spec.path) if following is None else max(n_bytes, stream.tell())
                yield Chunk(first + 1, b"", first, table.num_rows, content)
                first += table.num_rows
                table = following

    return Source(
        replace(spec, header=header),
        chunks,
        partial(encode_table, candidates=candidates),
        Tally(spec.path, spec.strict),
        lambda: n_bytes,
    )


def _cut(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """Yield tables of ``size`` rows, the last of which may have fewer."""
    join = import_pyarrow().Table.from_batches
    waiting, n_rows = list[Any](), 0
    for batch in batches:
        # Offsets beyond the texts would be read from any place in memory.
        batch.validate(full=True)
        waiting.append(batch)
        n_rows += batch.num_rows
        if n_rows >= size:
            table, full = join(waiting), n_rows - n_rows % size
            yield from map(partial(table.slice, length=size), range(0, full, size))
            waiting, n_rows = table.slice(full).to_batches(), n_rows - full
    if n_rows:
        yield join(waiting)


def _to_bytes(table: Any) -> bytes:
    """Return a table as an IPC stream; a pickle of a slice would have the buffers of the whole table."""
    pa = import_pyarrow()
    # Else every slice would come with the whole dictionary. One of views can only be changed in two steps.
    for change in (_with_strings, _without_dictionary):
        table = table.cast(
            pa.schema([(column.name, _changed(column.type, change)) for column in table.schema])
        )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _changed(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return a type after a change to it, or to the type of the values of lists."""
    pa = import_pyarrow()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lists = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return lists(kind.value_field.with_type(_changed(kind.value_type, change)))
    return change(kind)


def _with_strings(kind: Any) -> Any:
    """Return a type of dictionaries of views with strings in their place; other types as they are."""
    pa = import_pyarrow()
    if pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type):
        return pa.dictionary(kind.index_type, pa.string())
    return kind


def _without_dictionary(kind: Any) -> Any:
    """Return the type of the values of a dictionary; other types as they are."""
    return kind.value_type if import_pyarrow().types.is_dictionary(kind) else kind


def encode_table(chunk: Chunk, spec: Spec, candidates: Sequence[str] = ()) -> Part:
    """Encode rows of a table; their numbers, from 1, take the place of line numbers in messages.

    ``candidates`` are the other columns that may contain labels.
    """
    tally = Tally(spec.path, spec.strict)
    with _explained(spec.path, "a table"):
        entries = import_pyarrow().ipc.open_stream(chunk.other).read_all().to_pylist()
    rows = enumerate(entries, chunk.first_line)
    texts = ((row, entry_text(tally, row, entry, spec.text_field), entry) for row, entry in rows)
    part = encode_entries(spec, tally, chunk, texts)
    if part.unlabelled is not None:
        # The other columns have not been read.
        part.unlabelled = Unlabelled(spec.path, chunk.first_line, sorted(spec.header), list(candidates))
    return part
