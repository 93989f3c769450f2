"""Documents as matrices: UCI bag-of-words triples, and SciPy sparse matrices in npz files."""

from __future__ import annotations

import re
import zipfile
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus.block import MAX_VALUE, label_matrix, word_matrix
from distmom.corpus.files.npy import UNREADABLE, load_sparse
from distmom.corpus.sources.readers.part import Part, gather
from distmom.corpus.sources.readers.source import Chunk, LineReader, Tally, join_lines
from distmom.corpus.sources.readers.spec import Source, Spec
from distmom.errors import InputError, UsageError

_TRIPLE = re.compile(rb"[1-9]\d{0,9} [1-9]\d{0,9} \d{1,10}")
#: largest number of documents in a header of UCI triples: the first value, or the second one per triple if that is
#: more
MAX_DOCUMENTS, DOCUMENTS_PER_TRIPLE = 1_000_000, 100
_NPZ_ARRAYS = ("_is_array", "format", "shape", "data", "indices", "indptr", "row", "col")
#: an archive is rejected before reading if its expanded size exceeds both limits
MAX_EXPANSION = 100
MAX_EXPANDED_BYTES = 256 << 20


def open_uci(spec: Spec) -> Source:
    """Open UCI triples: three header lines, then ``document word count``, from 1 and in document order."""
    tally = Tally(spec.path, spec.strict)
    reader = LineReader(spec.path, tally)
    header = []
    for number, name in enumerate(("documents", "words", "triples"), 1):
        lines = reader.take(1)
        if not lines or not re.fullmatch(rb"\s*\d{1,12}\s*", lines[0]):
            got = repr(lines[0][:60].decode(errors="replace")) if lines else "the end of the file"
            raise InputError.at(spec.path, number, "header", f"the number of {name}", got)
        header.append(int(lines[0]))
    n_documents, n_words, n_triples = header
    if n_words > MAX_VALUE:
        raise InputError.at(spec.path, 2, "header", f"at most {MAX_VALUE} words", str(n_words))
    most = max(MAX_DOCUMENTS, DOCUMENTS_PER_TRIPLE * n_triples)
    if n_documents > most:
        raise InputError.at(
            spec.path, 1, "header", f"at most {most} documents for {n_triples} triples", str(n_documents)
        )

    def chunks(size: int) -> Iterator[Chunk]:
        total, first = 0, 0
        pending: list[bytes] = []
        while first < n_documents:
            last = min(first + size, n_documents)
            start = reader.next_line - len(pending)
            taken, pending = _until(spec.path, reader, start, pending, last, last == n_documents)
            total += sum(1 for line in taken if line.strip())
            yield Chunk(start, join_lines(taken), first, last - first)
            first = last
            if not pending and total != n_triples:
                # Further documents would be empty, and there may be billions.
                break
        if total != n_triples:
            raise InputError.at(spec.path, 3, "header", f"{total} triples, as in the file", str(n_triples))

    return Source(
        replace(spec, n_words=n_words, n_labels=0), chunks, encode_uci, tally, lambda: reader.bytes_done
    )


def _until(
    path: str, reader: LineReader, start: int, pending: list[bytes], last: int, to_end: bool
) -> tuple[list[bytes], list[bytes]]:
    """Return the lines of the documents up to number ``last``, and the lines read beyond them."""

    def document(line: bytes) -> int:
        # Encoding rejects lines that are not triples.
        number = line[:20].split(maxsplit=1)[:1]
        return int(number[0]) if number and number[0].isdigit() else 0

    lines = pending
    while to_end or not lines or document(lines[-1]) <= last:
        more = reader.take(1 << 16)
        if not more:
            return lines, []
        lines = lines + more
    cut = bisect_right(lines, last, key=document)
    return lines[:cut], lines[cut:]


def encode_uci(chunk: Chunk, spec: Spec) -> Part:
    """Encode the triples of consecutive documents."""
    tally = Tally(spec.path, spec.strict)
    triples = []
    lines = chunk.lines
    for number, line in enumerate(lines, chunk.first_line):
        if not _TRIPLE.fullmatch(line):
            fields = line.split()
            if not fields:
                tally.repair("blank_lines", number, "one")
                continue
            line = b" ".join(fields)
            if not _TRIPLE.fullmatch(line):
                raise InputError.at(
                    spec.path,
                    number,
                    "triple",
                    "document, word and count, the first two from 1",
                    repr(line[:60].decode(errors="backslashreplace")),
                )
            tally.repair("extra_spaces", number, "other spacing")
        triples.append(line)
    flat = np.fromstring(b" ".join(triples).decode(), np.int64, sep=" ").reshape(-1, 3)
    documents, words, counts = flat[:, 0] - 1, flat[:, 1] - 1, flat[:, 2]
    last = chunk.first_document + chunk.n_documents

    def refuse(bad: np.ndarray, what: str, expected: str, column: int) -> None:
        if bad.any():
            at = int(np.argmax(bad))
            filled = [i for i, line in enumerate(lines) if line.strip()]
            raise InputError.at(
                spec.path, chunk.first_line + filled[at], what, expected, str(int(flat[at, column]))
            )

    fallen = np.concatenate([[False], documents[1:] < documents[:-1]])
    refuse(fallen, "document", "documents in order", 0)
    outside = (documents < chunk.first_document) | (documents >= last)
    refuse(outside, "document", f"documents in order, {chunk.first_document + 1} to {last}", 0)
    refuse(words >= (spec.n_words or 0), "word", f"1 to {spec.n_words}", 1)
    refuse(counts > MAX_VALUE, "count", f"at most {MAX_VALUE}", 2)
    zero = counts == 0
    if zero.any():
        tally.repair("zero_values", chunk.first_line + int(np.argmax(zero)), "one", int(zero.sum()))
        documents, words, counts = documents[~zero], words[~zero], counts[~zero]
    lengths = np.bincount(documents - chunk.first_document, minlength=chunk.n_documents)
    rows = gather(lengths, words, counts.astype(np.float64))
    if len(rows.repeated):
        tally.repair("duplicate_features", chunk.first_line, "repeated ones", len(rows.repeated))
    # Words of a document may be in any order in this format.
    empty = gather(np.zeros(chunk.n_documents, np.int64), np.zeros(0, np.int64))
    return Part(rows.ptr, rows.ids, rows.values, empty.ptr, empty.ids, warnings=tally.counts)


def open_npz(spec: Spec) -> Source:
    """Open SciPy sparse matrices: words in one file, labels optionally in another (``spec.label_path``)."""
    X = _read_npz(spec.path)
    Y = None if spec.label_path is None else _read_npz(spec.label_path)
    if Y is not None and Y.shape[0] != X.shape[0]:
        raise InputError.at(
            spec.label_path, None, "number of rows", f"{X.shape[0]} as in {spec.path}", str(Y.shape[0])
        )
    tally = Tally(spec.path, spec.strict)
    done = [0]

    def chunks(size: int) -> Iterator[Chunk]:
        for first in range(0, X.shape[0], size):
            rows = slice(first, first + size)
            labels = None if Y is None else Y[rows]
            done[0] = first
            yield Chunk(first, b"", first, min(size, X.shape[0] - first), (X[rows], labels))

    spec = replace(spec, n_words=X.shape[1], n_labels=0 if Y is None else Y.shape[1])
    return Source(spec, chunks, encode_npz, tally, lambda: done[0])


def encode_npz(chunk: Chunk, spec: Spec) -> Part:
    """Encode rows of matrices."""
    tally = Tally(spec.path, spec.strict)
    X, Y = chunk.other
    words = word_matrix(X, f"{spec.path}: rows from {chunk.first_document}")
    labels = label_matrix(Y, X.shape[0], f"{spec.label_path}: rows from {chunk.first_document}")
    if words.nnz < X.nnz:
        n_zero = int(np.sum(X.data == 0))
        for kind, count in (("zero_values", n_zero), ("duplicate_features", X.nnz - words.nnz - n_zero)):
            if count > 0:
                tally.repair(kind, chunk.first_document, "some", count)
    return Part(
        words.indptr.astype(np.int64),
        words.indices.astype(np.int32),
        words.data.astype(np.float64),
        labels.indptr.astype(np.int64),
        labels.indices.astype(np.int32),
        warnings=tally.counts,
    )


def _read_npz(path: str) -> csr_array:
    """Read a matrix written by ``scipy.sparse.save_npz``, without unpickling anything."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        foreign = [m.filename for m in members if m.filename.removesuffix(".npy") not in _NPZ_ARRAYS]
        if foreign:
            raise InputError.at(
                path, None, "member", "a SciPy sparse matrix, or --format rows-npz for arrays of rows",
                repr(foreign[0][:80]),
            )  # fmt: skip
        packed, full = sum(m.compress_size for m in members), sum(m.file_size for m in members)
        if full > max(MAX_EXPANDED_BYTES, MAX_EXPANSION * packed):
            raise InputError.at(
                path,
                None,
                "size",
                f"at most {MAX_EXPANSION} times the compressed size",
                f"{full} bytes in {packed}",
            )
        matrix = csr_array(load_sparse(path))
        matrix.check_format(full_check=True)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: cannot be opened: {error.strerror}") from error
    except UNREADABLE as error:
        if isinstance(error, InputError):
            raise
        raise InputError.at(path, None, "content", "a SciPy sparse matrix", str(error)) from error
    return matrix
