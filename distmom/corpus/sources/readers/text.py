"""Texts with named labels: tab-separated lines, tables and JSON lines; and texts without labels, one per line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from distmom.corpus.names import composed, is_id, is_plain
from distmom.corpus.sources.readers.part import Numbering, Part, Unlabelled, gather
from distmom.corpus.sources.readers.source import (
    MAX_LINE_BYTES,
    Chunk,
    LineReader,
    Tally,
    decoded,
    join_lines,
    line_chunks,
)
from distmom.corpus.sources.readers.spec import Source, Spec
from distmom.errors import InputError, UsageError


def open_tsv(spec: Spec) -> Source:
    """Open lines of ``label,label<TAB>text``."""
    return _open_lines(spec, encode_tsv)


def open_jsonl(spec: Spec) -> Source:
    """Open lines that are JSON objects with a text and labels."""
    return _open_lines(spec, encode_jsonl)


def open_lines(spec: Spec) -> Source:
    """Open texts without labels, one per line."""
    return _open_lines(spec, encode_lines)


def _open_lines(spec: Spec, encode: Any) -> Source:
    tally = Tally(spec.path, spec.strict)
    reader = LineReader(spec.path, tally)
    return Source(spec, lambda size: line_chunks(reader, size), encode, tally, lambda: reader.bytes_done)


def open_csv(spec: Spec) -> Source:
    """Open a table with a header row; quoted fields may span several lines."""
    tally = Tally(spec.path, spec.strict)
    reader = LineReader(spec.path, tally)
    header = _take_records(reader, 1)
    names = next(_records(tally, 1, header), (1, 0, []))[2]
    _check_header(spec, names)
    labels = next((names.index(name) for name in label_fields(spec) if name in names), -1)
    ids = -1 if spec.id_field is None else names.index(spec.id_field)
    spec = replace(spec, columns=(names.index(spec.text_field), labels, ids, len(names)), header=tuple(names))

    def chunks(size: int) -> Iterator[Chunk]:
        first = 0
        while True:
            start = reader.next_line
            lines = _take_records(reader, size)
            if not lines:
                return
            yield Chunk(start, join_lines(lines), first)
            first += size

    return Source(spec, chunks, encode_csv, tally, lambda: reader.bytes_done)


def _check_header(spec: Spec, names: list[str]) -> None:
    """Check that a table has the fields that are to be read; the labels may be missing unless they are named."""
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise InputError.at(spec.path, 1, "header", "unique names", f"{repeated[0]!r} twice")
    wanted = {"--text-field": spec.text_field, "--id-column": spec.id_field}
    if spec.labels_field != Spec.labels_field:
        wanted["--labels-field"] = spec.labels_field
    for option, name in wanted.items():
        if name is not None and name not in names:
            expected = f"a field {name!r} ({option})"
            if len(names) == 1 and any(other in names[0] for other in ";\t"):
                expected = f"fields separated by commas, one of them {name!r} ({option})"
            elif name == Spec.text_field:
                expected += ", or --format table for rows of numbers"
            raise InputError.at(spec.path, 1, "header", expected, repr(names)[:200])


def _take_records(reader: LineReader, size: int) -> list[bytes]:
    """Take the lines of ``size`` records; a record ends on a line after which the count of quotes is even."""
    taken: list[bytes] = []
    missing, is_open, length = size, False, 0
    while missing:
        batch = reader.take(missing)
        if not batch:
            break
        for line in batch:
            is_open ^= line.count(b'"') % 2 == 1
            length = length + len(line) if is_open else 0
            missing -= not is_open
            if length > MAX_LINE_BYTES:
                raise InputError.at(
                    reader.path,
                    reader.next_line - 1,
                    "quoted field",
                    f"a closing quote within {MAX_LINE_BYTES >> 20} MiB",
                    "none",
                )
        taken += batch
    return taken


def _records(tally: Tally, first_line: int, lines: list[bytes]) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the first line number, the position (blank lines are counted) and the fields of each record."""
    texts = decoded(tally, first_line, lines)
    parser = csv.reader((f"{text}\n" for text in texts), strict=True)
    # The limit applies to the whole process.
    before = csv.field_size_limit(MAX_LINE_BYTES)
    start = 0
    try:
        for position, fields in enumerate(parser):
            end = parser.line_num
            if sum(text.count('"') for text in texts[start:end]) % 2:
                raise InputError.at(
                    tally.path,
                    first_line + start,
                    "quotes",
                    "quotes doubled inside quoted fields",
                    "an unpaired quote",
                )
            if not fields:
                tally.repair("blank_lines", first_line + start, "one")
            else:
                yield first_line + start, position, fields
            start = end
    except csv.Error as error:
        raise InputError.at(
            tally.path, first_line + start, "record", "fields separated by commas", str(error)
        ) from error
    finally:
        csv.field_size_limit(before)


def encode_csv(chunk: Chunk, spec: Spec) -> Part:
    """Encode records of a table."""
    tally = Tally(spec.path, spec.strict)
    at_text, at_labels, at_id, n_fields = spec.columns
    texts, labels, lines, rows, ids = [], [], [], [], []
    first = None
    for line, position, fields in _records(tally, chunk.first_line, chunk.lines):
        if len(fields) != n_fields:
            raise InputError.at(
                spec.path, line, "number of fields", f"{n_fields} as in the header", str(len(fields))
            )
        first = first or (line, dict(zip(spec.header, map(_typed, fields), strict=True)))
        texts.append(fields[at_text])
        labels.append(_split_labels(fields[at_labels], spec) if at_labels >= 0 else [])
        lines.append(line)
        rows.append(chunk.first_document + position + 1)
        if at_id >= 0:
            ids.append(_checked_id(spec, line, fields[at_id]))
    part = encode_texts(spec, tally, texts, labels, lines)
    if first is not None and at_labels < 0:
        part.unlabelled = _unlabelled(spec, *first)
    return _with_ids(part, rows, ids if at_id >= 0 else None)


def _typed(field: str) -> str | float:
    """Return a field of a table as the number that it is, or as text."""
    try:
        return float(field)
    except ValueError:
        return field


def encode_tsv(chunk: Chunk, spec: Spec) -> Part:
    """Encode lines of ``label,label<TAB>text``."""
    tally = Tally(spec.path, spec.strict)
    texts, labels, lines = [], [], []
    for number, head, text in tsv_lines(tally, chunk):
        texts.append(text)
        labels.append(_split_labels(head, spec))
        lines.append(number)
    return _with_ids(encode_texts(spec, tally, texts, labels, lines), _rows_of(chunk, lines))


def encode_lines(chunk: Chunk, spec: Spec) -> Part:
    """Encode texts without labels, one per line."""
    tally = Tally(spec.path, spec.strict)
    texts, lines = [], []
    for number, line in enumerate(decoded(tally, chunk.first_line, chunk.lines), chunk.first_line):
        if line and not line.isspace():
            texts.append(line)
            lines.append(number)
        else:
            tally.repair("blank_lines", number, "one")
    return _with_ids(encode_texts(spec, tally, texts, [[] for _ in texts], lines), _rows_of(chunk, lines))


def tsv_lines(tally: Tally, chunk: Chunk) -> Iterator[tuple[int, str, str]]:
    """Yield number, labels and text of each line; InputError for a line without a tab."""
    for number, line in enumerate(decoded(tally, chunk.first_line, chunk.lines), chunk.first_line):
        head, tab, text = line.partition("\t")
        if tab:
            yield number, head, text
        elif not line.strip():
            tally.repair("blank_lines", number, "one")
        else:
            raise InputError.at(
                tally.path, number, "line", "labels, a tab and a text",
                f"no tab in {line[:60]!r}; use the format lines for texts without labels",
            )  # fmt: skip


def _split_labels(text: str, spec: Spec) -> list[str]:
    if not text or text.isspace():
        return []
    return text.split(spec.label_separator) if spec.label_separator else [text]


def label_fields(spec: Spec) -> tuple[str, ...]:
    """Return the possible names of the field of the labels, in the order of preference."""
    names = ("labels", "label") if spec.labels_field == "labels" else (spec.labels_field,)
    return tuple(name for name in names if name not in (spec.text_field, spec.id_field))


def _rows_of(chunk: Chunk, lines: Sequence[int]) -> list[int]:
    """Return the rows of documents from their line numbers, in a source with one row per line."""
    return [chunk.first_document + line - chunk.first_line + 1 for line in lines]


def _with_ids(part: Part, rows: Sequence[int], ids: list[str] | None = None) -> Part:
    part.rows, part.ids = np.array(rows, np.int64), ids
    return part


def _checked_id(spec: Spec, line: int, value: Any) -> str:
    """Return the id of a document as text; InputError if it is missing or cannot be an id."""
    if type(value) in (str, int) and is_id(str(value)):
        return str(value)
    raise InputError.at(
        spec.path, line, f"field {spec.id_field!r}", "an id: text on one line, or a whole number",
        "none" if value is None else repr(value)[:80],
    )  # fmt: skip


def encode_jsonl(chunk: Chunk, spec: Spec) -> Part:
    """Encode JSON objects, one per line."""
    tally = Tally(spec.path, spec.strict)
    return encode_entries(spec, tally, chunk, json_objects(tally, chunk, spec.text_field))


def encode_entries(
    spec: Spec, tally: Tally, chunk: Chunk, entries: Iterable[tuple[int, str, dict[str, Any]]]
) -> Part:
    """Encode texts with named fields: the line, the text and all fields of each."""
    texts, labels, lines, ids = [], [], [], []
    names, labelled, first = label_fields(spec), False, None
    for number, text, entry in entries:
        labelled = labelled or any(name in entry for name in names)
        first = first or (number, entry)
        texts.append(text)
        labels.append(_json_labels(spec, number, entry))
        lines.append(number)
        if spec.id_field is not None:
            ids.append(_checked_id(spec, number, entry.get(spec.id_field)))
    part = encode_texts(spec, tally, texts, labels, lines)
    if first is not None and not labelled:
        part.unlabelled = _unlabelled(spec, *first)
    return _with_ids(part, _rows_of(chunk, lines), None if spec.id_field is None else ids)


def _unlabelled(spec: Spec, line: int, entry: dict[str, Any]) -> Unlabelled:
    """Return a document without the field of the labels; other fields with a text or a list may contain them."""
    others = (name for name in sorted(entry) if name not in (spec.text_field, spec.id_field))
    candidates = [name for name in others if isinstance(entry[name], (str, list))]
    return Unlabelled(spec.path, line, sorted(entry), candidates)


def json_objects(tally: Tally, chunk: Chunk, text_field: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield line number, text and object of each line; InputError for a line that is not an object with a text."""
    for number, line in enumerate(decoded(tally, chunk.first_line, chunk.lines), chunk.first_line):
        if not line or line.isspace():
            tally.repair("blank_lines", number, "one")
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            got = f"text that is not valid JSON ({error})"
            raise InputError.at(tally.path, number, "line", "a JSON object", got) from error
        if not isinstance(entry, dict):
            remedy = (
                ": write one object per line, without an array around them" if isinstance(entry, list) else ""
            )
            raise InputError.at(tally.path, number, "line", "a JSON object", type(entry).__name__ + remedy)
        yield number, entry_text(tally, number, entry, text_field), entry


def entry_text(tally: Tally, line: int, entry: dict[str, Any], text_field: str) -> str:
    """Return the text of a document with named fields; an InputError if it has none."""
    text = entry.get(text_field)
    if isinstance(text, str):
        return text
    other = "null" if text is None else type(text).__name__
    got = other if text_field in entry else f"fields {sorted(entry)}"
    raise InputError.at(tally.path, line, f"field {text_field!r}", "text", got[:200])


def _json_labels(spec: Spec, line: int, entry: dict[str, Any]) -> list[str]:
    name = next((each for each in label_fields(spec) if entry.get(each) is not None), None)
    if name is None:
        return []
    value = entry[name]
    listed = value if isinstance(value, list) else [value]
    if all(type(each) in (str, int) for each in listed):
        return [str(each) for each in listed]
    raise InputError.at(
        spec.path, line, f"field {name!r}", "a name or whole number, or a list of them", repr(value)[:80]
    )


def encode_texts(
    spec: Spec, tally: Tally, texts: Sequence[str], labels: list[list[str]], lines: Sequence[int]
) -> Part:
    """Encode texts extracted from their source.

    Parameters
    ----------
    spec : Spec
    tally : Tally
        Repairs to record in the part.
    texts : sequence of str
    labels : list of list of str
        Label names of each text.
    lines : sequence of int
        Line of each text in the source.
    """
    return encode_words(spec.tokenizer.words(texts), tally, labels, lines)


def encode_words(documents: Any, tally: Tally, labels: list[list[str]], lines: Sequence[int]) -> Part:
    """Encode documents that are sequences of words."""
    numbering = Numbering()
    number = numbering.__getitem__
    lengths: list[int] = []
    ids: list[int] = []
    for words in documents:
        lengths.append(len(words))
        ids.extend(map(number, words))
    for word in numbering:
        if not is_plain(word):
            at = int(np.searchsorted(np.cumsum(lengths), ids.index(numbering[word]), side="right"))
            raise InputError.at(tally.path, lines[at], "word", "no control characters", repr(word)[:80])
    rows = gather(lengths, np.array(ids, np.int64))
    return name_labels(
        Part(rows.ptr, rows.ids, rows.values, np.zeros(1, np.int64), np.zeros(0, np.int32), list(numbering)),
        tally,
        labels,
        lines,
    )


def name_labels(part: Part, tally: Tally, labels: list[list[str]], lines: Sequence[int]) -> Part:
    """Add labels given by name to a part; names are converted to Unicode normal form C, as words are."""
    numbering = Numbering()
    flat = [numbering[name] for names in labels for name in names]
    if any(name != composed(name) for name in numbering):
        labels = [list(map(composed, names)) for names in labels]
        numbering = Numbering()
        flat = [numbering[name] for names in labels for name in names]
    if any(name[:1].isspace() or name[-1:].isspace() for name in numbering):
        for i, names in enumerate(labels):
            stripped = [name.strip() for name in names]
            if stripped != names:
                tally.repair("label_spaces", lines[i], repr(",".join(names))[:60])
                labels[i] = stripped
        numbering = Numbering()
        flat = [numbering[name] for names in labels for name in names]
    lengths = [len(names) for names in labels]
    ids = np.array(flat, np.int64)
    rows = gather(lengths, ids)
    documents = np.repeat(np.arange(len(labels)), lengths)
    _, first = np.unique(ids, return_index=True)
    part.label_lines = np.asarray(lines, np.int64)[documents[first]]
    for name, line in zip(numbering, part.label_lines, strict=True):
        if not name or not is_plain(name):
            raise InputError.at(
                tally.path,
                int(line),
                "label",
                "a name without control characters" if name else "a name that is not empty",
                repr(name)[:80],
            )
    for row in rows.repeated:
        tally.repair("duplicate_labels", lines[int(row)], "one twice")
    part.label_ptr, part.label_ids, part.labels = rows.ptr, rows.ids, list(numbering)
    part.warnings += tally.counts
    return part


def check_fields(spec: Spec) -> None:
    """Raise UsageError if two things would be read from the same field, or labels cannot be separated."""
    if spec.text_field == spec.labels_field:
        raise UsageError(
            f"text_field and labels_field: expected two fields, got {spec.text_field!r} for both"
        )
    if spec.id_field in (spec.text_field, spec.labels_field):
        raise UsageError(f"id_column: expected a field without text or labels, got {spec.id_field!r}")
    if any(character in spec.label_separator for character in "\t\r\n"):
        raise UsageError(f"label_separator: expected no tab and no line break, got {spec.label_separator!r}")
