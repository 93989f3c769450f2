"""Source files: streams of lines from plain and compressed files, and the count of repairs."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import zstandard

from distmom.corpus.files.storage import is_url
from distmom.errors import InputError, UsageError

#: maximum length of a line in bytes; a longer one suggests a file of another kind
MAX_LINE_BYTES = 16 << 20
COMPRESSED = (".gz", ".xz", ".zst", ".bz2")
_BLOCK_BYTES = 1 << 20
#: below this number, line ends are searched one by one
_FEW_LINES = 64
#: the longer mark first, because it begins with the shorter one
_MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}

#: defects that are repaired and counted, or rejected if strict
REPAIRS = {
    "byte_order_mark": "no byte order mark",
    "carriage_returns": "lines that end with a line feed",
    "no_final_newline": "a line feed at the end of the file",
    "blank_lines": "no blank line",
    "extra_spaces": "single spaces between fields and none at the end",
    "label_spaces": "no space before or after a label",
    "unsorted_features": "features in increasing order",
    "duplicate_features": "each feature once",
    "duplicate_labels": "each label once",
    "zero_values": "no feature with value zero",
    "no_label_field": "a space before the first feature of a document without labels",
}


class Tally:
    """Counts repairs, or rejects the source if strict.

    Parameters
    ----------
    path : str
        The file, for error messages.
    strict : bool, default=False
        Raise InputError instead of repairing.
    """

    def __init__(self, path: str, strict: bool = False) -> None:
        self.path = path
        self.strict = strict
        self.counts: Counter[str] = Counter()

    def repair(self, kind: str, line: int, got: str, count: int = 1) -> None:
        """Count a repair, or raise InputError with the line number if strict."""
        if self.strict:
            raise InputError.at(self.path, line, kind.replace("_", " "), REPAIRS[kind], got)
        self.counts[kind] += count


@dataclass(frozen=True)
class Chunk:
    """Unparsed documents of a source, enough for one shard.

    Attributes
    ----------
    first_line : int
        Line of the file on which the first document starts, from 1.
    text : bytes
        The lines, each ending with a line feed. They are not split, as most are never processed individually.
    first_document : int, default=0
        Position of the first document in the source.
    n_documents : int, default=-1
        Number of documents if it does not follow from the lines, else -1.
    other : object, optional
        The second file of a pair: its lines, or a slice of its matrix.
    """

    first_line: int
    text: bytes
    first_document: int = 0
    n_documents: int = -1
    other: Any = None

    @property
    def lines(self) -> list[bytes]:
        """The lines without line feeds."""
        return split_lines(self.text)


def split_lines(text: bytes) -> list[bytes]:
    """Split text into lines, each of which must end with a line feed."""
    return text.split(b"\n")[:-1]


def join_lines(lines: list[bytes]) -> bytes:
    """Join lines, each followed by a line feed."""
    return b"\n".join([*lines, b""])


@dataclass
class LineReader:
    """The lines of a file, decompressed according to its suffix.

    Attributes
    ----------
    path : str
    tally : Tally
    next_line : int
        Number of the next line, from 1.
    bytes_done : int
        Bytes of the file read so far, before decompression.
    """

    path: str
    tally: Tally
    next_line: int = 1
    bytes_done: int = 0
    _texts: Iterator[bytes] | None = None
    _text: bytes = b""
    _at: int = 0

    def texts(self) -> Iterator[bytes]:
        """Yield blocks of whole lines; InputError if compressed data is damaged or a line is too long."""
        rest = b""
        line = 1
        for block in self._blocks():
            end = block.rfind(b"\n") + 1
            if not end:
                rest += block
                self._check_length(rest, line)
                continue
            text, rest = rest + block[:end], block[end:]
            n_lines = text.count(b"\n")
            self._check_length(rest, line + n_lines)
            yield self._checked(text, line)
            line += n_lines
        if rest:
            text = self._checked(rest + b"\n", line)
            self.tally.repair("no_final_newline", line, repr(rest[-20:]))
            yield text

    def take_text(self, n: int) -> tuple[bytes, int]:
        """Return the next ``n`` lines with line feeds, and their number, smaller only at the end of the file."""
        if self._texts is None:
            self._texts = self.texts()
        taken: list[bytes] = []
        missing = n
        while missing:
            if self._at == len(self._text):
                text = next(self._texts, None)
                if text is None:
                    break
                self._text, self._at = text, 0
            end, found = _after_lines(self._text, self._at, missing)
            taken.append(self._text[self._at : end])
            self._at = end
            missing -= found
        self.next_line += n - missing
        return b"".join(taken), n - missing

    def take(self, n: int) -> list[bytes]:
        """Return the next ``n`` lines without line feeds, fewer only at the end of the file."""
        return split_lines(self.take_text(n)[0])

    def _checked(self, text: bytes, line: int) -> bytes:
        """Return lines without byte order mark and carriage returns; ``line`` is the number of the first."""
        if line == 1:
            for mark, name in _MARKS.items():
                if text.startswith(mark):
                    raise InputError.at(self.path, 1, "encoding", "UTF-8", name)
            if text.startswith(b"\xef\xbb\xbf"):
                text = text[3:]
                self.tally.repair("byte_order_mark", 1, "one")
        if len(text) > MAX_LINE_BYTES:
            lines = split_lines(text)
            endless = next((i for i, each in enumerate(lines) if len(each) > MAX_LINE_BYTES), None)
            if endless is not None:
                # If strict, an earlier carriage return is reported first.
                self._without_returns(join_lines(lines[: endless + 1]), line)
                self._check_length(lines[endless], line + endless)
        return self._without_returns(text, line)

    def _without_returns(self, text: bytes, line: int) -> bytes:
        # Searching one byte is much faster than two, and most files contain neither.
        first = text.find(b"\r\n") if b"\r" in text else -1
        if first < 0:
            return text
        self.tally.repair(
            "carriage_returns",
            line + text.count(b"\n", 0, first),
            "a carriage return before it",
            text.count(b"\r\n"),
        )
        return text.replace(b"\r\n", b"\n")

    def _check_length(self, text: bytes, line: int) -> None:
        if len(text) > MAX_LINE_BYTES:
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


def check_file(path: str, *, may_be_folder: bool = False) -> None:
    """Raise UsageError unless there is such a file, or such a directory if the source may be one."""
    if is_url(path):
        raise UsageError(f"{path}: expected a source on a file system, got a URL: download it first")
    exists = os.path.exists(path)
    if exists and (may_be_folder or os.path.isfile(path)):
        return
    if os.path.isdir(path):
        raise UsageError(f"{path}: is not a file but a directory: expected one file")
    if exists or path == "-":
        raise UsageError(
            f"{path}: is not a file: expected one, as standard input and pipes cannot be read again after an "
            "interruption"
        )
    raise UsageError(f"{path}: there is no such file")


def open_source(path: str) -> BinaryIO:
    """Open a source file; UsageError if it cannot be opened."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise UsageError(f"{path}: cannot be opened: {error.strerror or error}") from error


def _decompressed(path: str, raw: BinaryIO) -> Iterator[bytes]:
    suffix = Path(path).suffix.lower()
    if suffix == ".zst":
        yield from _zstandard_blocks(raw)
        return
    if suffix in (".xz", ".bz2"):
        yield from _blocks_of_streams(raw, lzma.LZMADecompressor if suffix == ".xz" else bz2.BZ2Decompressor)
        return
    stream: Any = gzip.GzipFile(fileobj=raw) if suffix == ".gz" else raw
    while block := stream.read(_BLOCK_BYTES):
        yield block


def _blocks_of_streams(raw: BinaryIO, decompressor: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the contents of one or more streams, which zeros may separate as padding."""
    # The files of the standard library end, without an error, before a stream with a damaged header.
    decoder = None
    while content := raw.read(_BLOCK_BYTES >> 3):
        while content or not (decoder is None or decoder.eof or decoder.needs_input):
            if decoder is not None and decoder.eof:
                content = content.lstrip(b"\0")
                if not content:
                    break
            if decoder is None or decoder.eof:
                decoder = decompressor()
            block = decoder.decompress(content, _BLOCK_BYTES)
            content = decoder.unused_data if decoder.eof else b""
            if block:
                yield block
    if decoder is None or not decoder.eof:
        raise EOFError


def _zstandard_blocks(raw: BinaryIO) -> Iterator[bytes]:
    # The library's stream reader does not report a truncated frame.
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
    """Yield chunks of ``size`` lines, one document per line."""
    first = 0
    while True:
        start = reader.next_line
        text, n_lines = reader.take_text(size)
        if not n_lines:
            return
        yield Chunk(start, text, first)
        first += n_lines


def _after_lines(text: bytes, at: int, n: int) -> tuple[int, int]:
    """Return the end of ``n`` lines that start at ``at``, and their number; fewer at the end of the text."""
    if n < _FEW_LINES:
        for found in range(n):
            end = text.find(b"\n", at) + 1
            if not end:
                return at, found
            at = end
        return at, n
    ends = np.flatnonzero(np.frombuffer(text, np.uint8, offset=at) == ord("\n"))
    if len(ends) <= n:
        return len(text), len(ends)
    return at + int(ends[n - 1]) + 1, n


def decoded(tally: Tally, first_line: int, lines: list[bytes]) -> list[str]:
    """Decode lines; InputError with the line number for NUL bytes and invalid UTF-8."""
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
