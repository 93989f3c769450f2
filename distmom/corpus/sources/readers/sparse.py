"""Lines of ``number:value`` pairs: XMC, XMC in a pair of files, multi-label svmlight and LDA-C."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from distmom.corpus.block import MAX_VALUE
from distmom.corpus.sources.readers.part import Part, Rows, gather, offsets
from distmom.corpus.sources.readers.scan import COUNTED, LABELLED, LABELLED_NOT_BLANK, PAIRS, Lines, scan
from distmom.corpus.sources.readers.source import Chunk, LineReader, Tally, line_chunks
from distmom.corpus.sources.readers.spec import Source, Spec
from distmom.errors import InputError, UsageError

_NUMBER = re.compile(rb"\d{1,10}")
# No text matches in two ways, so that a mismatch is found in time proportional to the length.
_PAIR = re.compile(rb"\d{1,10}:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?")
_COLONS = bytes.maketrans(b":", b" ")


def open_xmc(spec: Spec) -> Source:
    """Open XMC text: a header ``documents words labels``, then ``label,label word:value ...``, all from 0.

    With ``spec.label_path``, open a pair of files: a header ``documents columns``, then ``column:value ...``.
    """
    if spec.label_path is not None:
        return _open_pair(spec, spec.label_path)
    tally = Tally(spec.path, spec.strict)
    reader = LineReader(spec.path, tally)
    n_documents, n_words, n_labels = _header(reader, ("documents", "words", "labels"))
    spec = replace(spec, n_words=n_words, n_labels=n_labels)
    return Source(
        spec, lambda size: _counted(reader, n_documents, size), encode_xmc, tally, lambda: reader.bytes_done
    )


def _open_pair(spec: Spec, label_path: str) -> Source:
    tally = Tally(spec.path, spec.strict)
    label_tally = Tally(label_path, spec.strict)
    label_tally.counts = tally.counts
    words, labels = LineReader(spec.path, tally), LineReader(label_path, label_tally)
    n_documents, n_words = _header(words, ("documents", "words"))
    n_labelled, n_labels = _header(labels, ("documents", "labels"))
    if n_documents != n_labelled:
        raise InputError.at(
            label_path, 1, "number of documents", f"{n_documents} as in {spec.path}", str(n_labelled)
        )
    spec = replace(spec, n_words=n_words, n_labels=n_labels)

    def chunks(size: int) -> Iterator[Chunk]:
        # If one file ends early, _counted raises before zip notices unequal lengths.
        for of_words, of_labels in zip(
            _counted(words, n_documents, size), _counted(labels, n_documents, size), strict=True
        ):
            yield replace(of_words, other=of_labels.text)

    return Source(spec, chunks, encode_pair, tally, lambda: words.bytes_done)


def open_svmlight(spec: Spec) -> Source:
    """Open multi-label svmlight: ``label,label word:value ...`` with words numbered from 0 or 1 as declared."""
    if spec.zero_based is None:
        raise UsageError(
            f"{spec.path}: svmlight files number words from 0 or from 1; specify which (zero_based=True or False)"
        )
    tally = Tally(spec.path, spec.strict)
    reader = LineReader(spec.path, tally)

    return Source(
        spec, lambda size: line_chunks(reader, size), encode_svmlight, tally, lambda: reader.bytes_done
    )


def open_ldac(spec: Spec) -> Source:
    """Open LDA-C: ``pairs word:count ...`` with words numbered from 0."""
    tally = Tally(spec.path, spec.strict)
    reader = LineReader(spec.path, tally)
    return Source(spec, lambda size: line_chunks(reader, size), encode_ldac, tally, lambda: reader.bytes_done)


def encode_xmc(chunk: Chunk, spec: Spec) -> Part:
    """Encode XMC lines."""
    tally = Tally(spec.path, spec.strict)
    found = scan(chunk.text, chunk.first_line, LABELLED, spec.n_words)
    heads, tails = _split(tally, found.numbers, found.lines)
    words = _features(tally, found.numbers, tails, spec.n_words, 0)
    lines = found.completed(found.numbers, words, *_numbers(heads))
    return _part(lines.words, _labels(tally, lines, spec.n_labels), tally)


def encode_pair(chunk: Chunk, spec: Spec) -> Part:
    """Encode the lines of a pair of files."""
    tally = Tally(spec.path, spec.strict)
    found = scan(chunk.text, chunk.first_line, PAIRS, spec.n_words)
    tails = _tails(tally, found.numbers, found.lines)
    words = _features(tally, found.numbers, tails, spec.n_words, 0)
    lines = found.completed(found.numbers, words, *_no_labels(len(tails)))
    label_tally = Tally(str(spec.label_path), spec.strict)
    label_tally.counts = tally.counts
    # Values of labels are ignored, except for zeros.
    of_labels = scan(chunk.other, chunk.first_line, PAIRS, None)
    tails = _tails(label_tally, of_labels.numbers, of_labels.lines)
    flat = _flat(tails)
    lengths, ids, values = _without_zeros(
        label_tally, of_labels.numbers, _n_pairs(tails), flat[::2].astype(np.int64), flat[1::2]
    )
    nothing = np.zeros(0, np.int64)
    entries = Rows(offsets(lengths), ids, values, nothing, nothing)
    labels = of_labels.completed(of_labels.numbers, entries, *_no_labels(len(tails))).words
    labels_of_lines = replace(lines, label_lengths=np.diff(labels.ptr), labels=labels.ids)
    return _part(lines.words, _labels(label_tally, labels_of_lines, spec.n_labels), tally)


def encode_svmlight(chunk: Chunk, spec: Spec) -> Part:
    """Encode svmlight lines; label numbers are used as names, and comments are ignored."""
    tally = Tally(spec.path, spec.strict)
    base = 0 if spec.zero_based else 1
    found = scan(chunk.text, chunk.first_line, LABELLED_NOT_BLANK, spec.n_words, base)
    numbers, contents = [], []
    for number, line in zip(found.numbers, found.lines, strict=True):
        content = line.partition(b"#")[0].rstrip() if b"#" in line else line
        if content.strip() or content == b" ":
            numbers.append(number)
            contents.append(content)
        elif not line.strip():
            tally.repair("blank_lines", number, "one")
    heads, tails = _split(tally, numbers, contents)
    words = _features(tally, numbers, tails, spec.n_words, base)
    lines = found.completed(numbers, words, *_numbers(heads))
    distinct, first, positions = np.unique(lines.labels, return_index=True, return_inverse=True)
    part = _part(lines.words, _labels(tally, replace(lines, labels=positions), None), tally)
    part.labels = [str(label) for label in distinct]
    part.label_lines = np.repeat(lines.numbers, lines.label_lengths)[first]
    part.rows = np.asarray(lines.numbers, np.int64) - chunk.first_line + chunk.first_document + 1
    return part


def encode_ldac(chunk: Chunk, spec: Spec) -> Part:
    """Encode LDA-C lines."""
    tally = Tally(spec.path, spec.strict)
    found = scan(chunk.text, chunk.first_line, COUNTED, spec.n_words)
    heads, tails = _split(tally, found.numbers, found.lines)
    for number, head, tail in zip(found.numbers, heads, tails, strict=True):
        pairs = tail.count(b":")
        if head != b"%d" % pairs:
            raise InputError.at(
                spec.path, number, "number of pairs", f"{pairs}, as on the line", head.decode() or "none"
            )
    words = _features(tally, found.numbers, tails, spec.n_words, 0)
    lines = found.completed(found.numbers, words, *_no_labels(len(tails)))
    return _part(lines.words, _labels(tally, lines, None), tally)


def _no_labels(n_lines: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(n_lines, np.int64), np.zeros(0, np.int64)


def _part(words: Rows, labels: Rows, tally: Tally) -> Part:
    return Part(words.ptr, words.ids, words.values, labels.ptr, labels.ids, warnings=tally.counts)


def _header(reader: LineReader, names: tuple[str, ...]) -> list[int]:
    lines = reader.take(1)
    fields = lines[0].split() if lines else []
    if len(fields) != len(names) or not all(re.fullmatch(rb"\d{1,10}", field) for field in fields):
        got = repr(lines[0][:60].decode(errors="replace")) if lines else "an empty file"
        raise InputError.at(reader.path, 1, "header", f"the numbers of {', '.join(names)}", got)
    if b" ".join(fields) != lines[0]:
        reader.tally.repair("extra_spaces", 1, repr(lines[0][:60]))
    numbers = [int(field) for field in fields]
    if max(numbers[1:]) > MAX_VALUE:
        raise InputError.at(reader.path, 1, "header", f"at most {MAX_VALUE} columns", str(max(numbers[1:])))
    return numbers


def _counted(reader: LineReader, n_documents: int, size: int) -> Iterator[Chunk]:
    """Yield chunks of the number of lines given in the header; only blank lines may follow them."""
    first = 0
    while first < n_documents:
        start = reader.next_line
        wanted = min(size, n_documents - first)
        text, n_lines = reader.take_text(wanted)
        if n_lines < wanted:
            raise InputError.at(
                reader.path, 1, "header", f"{first + n_lines} documents, as in the file", str(n_documents)
            )
        yield Chunk(start, text, first)
        first += size
    while lines := reader.take(1):
        if lines[0].strip():
            raise InputError.at(
                reader.path,
                reader.next_line - 1,
                "line",
                f"the end after {n_documents} documents",
                "another one",
            )
        reader.tally.repair("blank_lines", reader.next_line - 1, "one at the end")


def _split(tally: Tally, numbers: Sequence[int], lines: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Split lines into labels and features, both in regular form."""
    heads, tails = [], []
    for i, line in enumerate(lines):
        # A repaired line has been checked piece by piece.
        head, tail = _regular(line) or _regular(_mended(tally, numbers[i], line)) or (b"", b"")
        heads.append(head)
        tails.append(tail)
    return heads, tails


def _regular(line: bytes) -> tuple[bytes, bytes] | None:
    """Return the labels and the features of a line that is read without changes, or None.

    One pattern for whole lines would need possessive quantifiers, which accept other lines up to Python 3.11.4, or
    memory for every pair.
    """
    head, space, rest = line.partition(b" ")
    if (head and not _are_labels(head)) or (space and not all(map(_PAIR.fullmatch, rest.split(b" ")))):
        return None
    return head, space + rest


def _are_labels(head: bytes) -> bool:
    return all(map(_NUMBER.fullmatch, head.split(b",")))


def _tails(tally: Tally, numbers: Sequence[int], lines: list[bytes]) -> list[bytes]:
    """Return the features of lines without labels, in regular form."""
    heads, tails = _split(tally, numbers, [b" " + line if line else line for line in lines])
    for i, head in enumerate(heads):
        if head:
            raise InputError.at(tally.path, numbers[i], "pair", "column:value", repr(head.decode()))
    return tails


def _mended(tally: Tally, number: int, line: bytes) -> bytes:
    """Convert a line to regular form; InputError if that is impossible."""
    fields = line.split()
    labels: list[bytes] = []
    if line[:1] not in (b" ", b"\t"):
        while (
            fields
            and b":" not in fields[0]
            and (not labels or labels[-1][-1:] == b"," or fields[0][:1] == b",")
        ):
            labels.append(fields.pop(0))
    head = b"".join(labels)
    if labels and not _are_labels(head):
        raise InputError.at(
            tally.path, number, "labels", "whole numbers separated by commas", _shown(b" ".join(labels))
        )
    for column, field in enumerate(fields, 1):
        if not _PAIR.fullmatch(field):
            raise InputError.at(tally.path, number, f"feature {column}", *_diagnosis(field))
    if len(labels) > 1:
        tally.repair("label_spaces", number, _shown(b" ".join(labels)))
    elif not labels and fields and line[:1] not in (b" ", b"\t"):
        tally.repair("no_label_field", number, "none")
    else:
        tally.repair("extra_spaces", number, _shown(line))
    return b" ".join([head, *fields])


def _diagnosis(field: bytes) -> tuple[str, str]:
    index, colon, value = field.partition(b":")
    if not colon:
        return "column:value", _shown(field)
    if not _NUMBER.fullmatch(index):
        return "a column in decimal digits", _shown(index)
    return "a finite, non-negative value in decimal digits", _shown(value)


def _shown(content: bytes) -> str:
    return repr(content[:60].decode(errors="backslashreplace"))


def _n_pairs(tails: list[bytes]) -> np.ndarray:
    return np.array([tail.count(b":") for tail in tails], np.int64)


def _flat(tails: list[bytes]) -> np.ndarray:
    return np.fromstring(b"".join(tails).translate(_COLONS).decode(), np.float64, sep=" ")


def _numbers(heads: list[bytes]) -> tuple[list[int], np.ndarray]:
    """Return the number of labels in each list, and all labels."""
    lengths = [head.count(b",") + 1 if head else 0 for head in heads]
    text = b",".join([head for head in heads if head]).decode()
    return lengths, np.fromstring(text, np.int64, sep=",")


def _features(
    tally: Tally, numbers: Sequence[int], tails: list[bytes], n_words: int | None, base: int
) -> Rows:
    flat = _flat(tails)
    lengths = _n_pairs(tails)
    ids, values = flat[::2].astype(np.int64), flat[1::2]

    def line_of(entry: int) -> int:
        return numbers[int(np.searchsorted(np.cumsum(lengths), entry, side="right"))]

    limit = MAX_VALUE + base if n_words is None else n_words + base
    if (outside := (ids < base) | (ids >= limit)).any():
        at = int(np.argmax(outside))
        raise InputError.at(
            tally.path, line_of(at), "column of a word", f"{base} to {limit - 1}", str(int(ids[at]))
        )
    if (bad := ~(values <= MAX_VALUE)).any():
        at = int(np.argmax(bad))
        raise InputError.at(
            tally.path, line_of(at), "value", f"a finite number up to {MAX_VALUE}", str(float(values[at]))
        )
    ids -= base
    lengths, ids, values = _without_zeros(tally, numbers, lengths, ids, values)
    rows = gather(lengths, ids, values)
    if len(rows.unsorted):
        tally.repair("unsorted_features", numbers[int(rows.unsorted[0])], "another order", len(rows.unsorted))
    if len(rows.repeated):
        tally.repair(
            "duplicate_features", numbers[int(rows.repeated[0])], "a repeated one", len(rows.repeated)
        )
    return rows


def _without_zeros(
    tally: Tally, numbers: Sequence[int], lengths: np.ndarray, ids: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    zero = values == 0
    if not zero.any():
        return lengths, ids, values
    documents = np.repeat(np.arange(len(lengths)), lengths)
    tally.repair("zero_values", numbers[int(documents[np.argmax(zero)])], "one", int(zero.sum()))
    return np.bincount(documents[~zero], minlength=len(lengths)), ids[~zero], values[~zero]


def _labels(tally: Tally, lines: Lines, n_labels: int | None) -> Rows:
    ids = lines.labels
    if n_labels is not None and len(ids) and ids.max() >= n_labels:
        at = int(np.argmax(ids >= n_labels))
        line = int(lines.numbers[np.searchsorted(np.cumsum(lines.label_lengths), at, side="right")])
        raise InputError.at(tally.path, line, "label", f"0 to {n_labels - 1}", str(int(ids[at])))
    rows = gather(lines.label_lengths, ids)
    if len(rows.repeated):
        line = int(lines.numbers[rows.repeated[0]])
        tally.repair("duplicate_labels", line, "one twice", len(rows.repeated))
    return rows
