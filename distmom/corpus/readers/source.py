"""Source files: streams of lines out of plain and compressed files, and the count of what was repaired."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from distmom.errors import InputError, UsageError

#: a longer line is refused, as it is more likely a file of another kind
MAX_LINE_BYTES = 16 << 20
COMPRESSED = (".gz", ".xz", ".zst", ".bz2")
_BLOCK_BYTES = 1 << 20
_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}

#: what is repaired and counted, or refused if strict
REPAIRS = {
    "byte_order_mark": "no byte order mark",
    "carriage_returns": "lines that end with a line feed",
    "no_final_newline": "a line feed at the end of the file",
    "blank_lines": "no blank line",
    "extra_spaces": "single spaces between fields and none at the end",
    "label_spaces": "no space next to a comma between labels",
    "unsorted_features": "features in increasing order",
    "duplicate_features": "each feature once",
    "duplicate_labels": "each label once",
    "zero_values": "no feature with value zero",
    "no_label_field": "a space before the first feature of a document without labels",
}


class Tally:
    """Counts repairs, or refuses them.

    Parameters
    ----------
    path : str
        The file, for errors.
    strict : bool
        Refuse what would be repaired.
    """

    def __init__(self, path: str, strict: bool = False) -> None:
        self.path = path
        self.strict = strict
        self.counts: Counter[str] = Counter()

    def repair(self, kind: str, line: int, got: str, count: int = 1) -> None:
        """Count a repair; InputError with the line if strict."""
        if self.strict:
            raise InputError.at(self.path, line, kind.replace("_", " "), REPAIRS[kind], got)
        self.counts[kind] += count


@dataclass(frozen=True)
class Chunk:
    """Some documents of a source as they stand there, enough for one shard.

    Attributes
    ----------
    first_line : int
        Line of the file on which the first document starts, from 1.
    lines : list of bytes
        The lines, without line ends.
    first_document : int
        Position of the first document in the source.
    n_documents : int
        Number of documents where the lines do not tell, else -1.
    other : object
        The second file of a pair: its lines, or a slice of its matrix.
    """

    first_line: int
    lines: list[bytes]
    first_document: int = 0
    n_documents: int = -1
    other: Any = None


@dataclass
class LineReader:
    """The lines of a file, decompressed as its name tells.

    Attributes
    ----------
    path : str
    tally : Tally
    next_line : int
        Number of the next line, from 1.
    bytes_done : int
        Bytes of the file read so far (compressed ones, if it is compressed).
    """

    path: str
    tally: Tally
    next_line: int = 1
    bytes_done: int = 0
    _pending: list[bytes] = field(default_factory=list)
    _batches: Iterator[list[bytes]] | None = None

    def batches(self) -> Iterator[list[bytes]]:
        """Yield lists of lines without line ends; InputError at broken compression or an endless line."""
        rest = b""
        line = 1
        for block in self._blocks():
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            if len(rest) > MAX_LINE_BYTES:
                self._refuse_length(line + len(lines))
            if lines:
                line = self._check(lines, line)
                yield lines
        if rest:
            self._check([rest], line)
            self.tally.repair("no_final_newline", line, repr(rest[-20:]))
            yield [rest]

    def take(self, n: int) -> list[bytes]:
        """Return the next ``n`` lines, fewer only at the end of the file."""
        if self._batches is None:
            self._batches = self.batches()
        while len(self._pending) < n:
            batch = next(self._batches, None)
            if batch is None:
                break
            self._pending.extend(batch)
        taken, self._pending = self._pending[:n], self._pending[n:]
        self.next_line += len(taken)
        return taken

    def give_back(self, lines: list[bytes]) -> None:
        """Return lines that were taken, to be taken again."""
        self._pending = lines + self._pending
        self.next_line -= len(lines)

    def _check(self, lines: list[bytes], line: int) -> int:
        """Remove marks and carriage returns from lines in place and return the number of the line after."""
        if line == 1:
            for mark, name in _MARKS.items():
                if lines[0].startswith(mark):
                    raise InputError.at(self.path, 1, "encoding", "UTF-8", name)
            if lines[0].startswith(b"\xef\xbb\xbf"):
                lines[0] = lines[0][3:]
                self.tally.repair("byte_order_mark", 1, "one")
        for i, text in enumerate(lines):
            if text.endswith(b"\r"):
                lines[i] = text[:-1]
                self.tally.repair("carriage_returns", line + i, "a carriage return before it")
            if len(text) > MAX_LINE_BYTES:
                self._refuse_length(line + i)
        return line + len(lines)

    def _refuse_length(self, line: int) -> None:
        raise InputError.at(
            self.path, line, "length of the line", f"at most {MAX_LINE_BYTES >> 20} MiB", "more"
        )

    def _blocks(self) -> Iterator[bytes]:
        with open_source(self.path) as raw:
            try:
                for block in _decompressed(self.path, raw):
                    self.bytes_done = raw.tell()
                    yield block
            except EOFError as error:
                raise InputError.at(
                    self.path, None, "compressed data", "an end-of-stream marker", "a truncated file"
                ) from error
            except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, zstandard.ZstdError, OSError) as error:
                kind = Path(self.path).suffix
                raise InputError.at(
                    self.path, None, "content", f"readable {kind} data", str(error)
                ) from error


def open_source(path: str) -> BinaryIO:
    """Open a source file; UsageError if that cannot be done."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise UsageError(f"{path}: cannot be opened: {error.strerror or error}") from error


def _decompressed(path: str, raw: BinaryIO) -> Iterator[bytes]:
    suffix = Path(path).suffix.lower()
    if suffix == ".zst":
        yield from _zstandard_blocks(raw)
        return
    stream: Any = raw
    if suffix == ".gz":
        stream = gzip.GzipFile(fileobj=raw)
    elif suffix == ".xz":
        stream = lzma.LZMAFile(raw)  # noqa: SIM115
    elif suffix == ".bz2":
        stream = bz2.BZ2File(raw)
    while block := stream.read(_BLOCK_BYTES):
        yield block


def _zstandard_blocks(raw: BinaryIO) -> Iterator[bytes]:
    # The library's own stream reader takes a truncated frame for the end of the file.
    decoder = None
    while content := raw.read(_BLOCK_BYTES >> 3):
        while content:
            if decoder is None or decoder.eof:
                decoder = zstandard.ZstdDecompressor().decompressobj()
            block = decoder.decompress(content)
            content = decoder.unused_data if decoder.eof else b""
            if block:
                yield block
    if decoder is not None and not decoder.eof:
        raise EOFError


def bare_name(path: str) -> str:
    """Return the file name in lower case without a compression suffix."""
    name = os.path.basename(path).lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return name


def line_chunks(reader: LineReader, size: int) -> Iterator[Chunk]:
    """Cut lines into chunks of ``size``, one document a line."""
    first = 0
    while True:
        start = reader.next_line
        lines = reader.take(size)
        if not lines:
            return
        yield Chunk(start, lines, first)
        first += len(lines)


def decoded(tally: Tally, first_line: int, lines: list[bytes]) -> list[str]:
    """Decode lines; InputError with the line at NUL bytes and at what is not UTF-8."""
    try:
        text = b"\n".join(lines).decode()
        if "\0" not in text:
            return text.split("\n") if lines else []
    except UnicodeDecodeError:
        pass
    for number, line in enumerate(lines, first_line):
        if b"\0" in line:
            raise InputError.at(tally.path, number, "content", "text", "a NUL byte")
        try:
            line.decode()
        except UnicodeDecodeError as error:
            got = f"bytes {line[error.start : error.end + 3]!r} at byte {error.start} of the line"
            raise InputError.at(tally.path, number, "encoding", "UTF-8", got) from error
    return []


def read_names(path: str, *, with_ids: bool = False) -> list[str]:
    """Read a file with one name a line.

    Parameters
    ----------
    path : str
        May be compressed.
    with_ids : bool
        Lines may be ``id<TAB>name``. A name that several lines share is followed by the id in brackets.

    Raises
    ------
    InputError
        If a line is blank or repeats a name, with its number.
    """
    tally = Tally(path)
    lines: list[str] = []
    for batch in LineReader(path, tally).batches():
        lines += decoded(tally, len(lines) + 1, batch)
    while lines and not lines[-1].strip():
        lines.pop()
    pairs = [line.partition("\t") if with_ids and "\t" in line else ("", "", line) for line in lines]
    names = [" ".join(name.split()) for _, _, name in pairs]
    counts = Counter(names)
    seen: dict[str, int] = {}
    for i, (key, _, _) in enumerate(pairs):
        if not names[i]:
            raise InputError.at(path, i + 1, "name", "text", "a blank line")
        if counts[names[i]] > 1 and key:
            names[i] = f"{names[i]} ({key.strip()})"
        if names[i] in seen:
            raise InputError.at(
                path, i + 1, "name", "a name of its own", f"{names[i]!r} as in line {seen[names[i]]}"
            )
        seen[names[i]] = i + 1
    return names
