"""Formats of documents, and how the format of a file is detected."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distmom.corpus.files.commit import kind_of_directory
from distmom.corpus.files.storage import is_url
from distmom.corpus.sources.readers.matrices import open_npz, open_uci
from distmom.corpus.sources.readers.source import LineReader, Tally, bare_name, check_file
from distmom.corpus.sources.readers.sparse import open_ldac, open_svmlight, open_xmc
from distmom.corpus.sources.readers.spec import Source, Spec
from distmom.corpus.sources.readers.text import open_csv, open_jsonl, open_lines, open_tsv
from distmom.corpus.sources.readers.text_tables import open_arrow_texts, open_parquet_texts
from distmom.corpus.sources.row_formats import ROW_FORMATS, detect_row_format
from distmom.errors import UsageError


@dataclass(frozen=True)
class Format:
    """A source format.

    Attributes
    ----------
    description : str
    open : callable
        Opens a source.
    suffixes, prefixes : tuple of str, default=()
        Endings and beginnings of file names that identify the format.
    names_words, names_labels : bool, default=False
        Whether the source contains words and labels by name rather than by column number.
    """

    description: str
    open: Callable[[Spec], Source]
    suffixes: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    names_words: bool = False
    names_labels: bool = False


#: formats of documents by name; those of rows and sequences are in `distmom.corpus.sources.row_formats`
FORMATS: dict[str, Format] = {
    "xmc": Format("header 'documents words labels', lines 'l,l w:v w:v'", open_xmc, (".xmc.txt", ".xmc")),
    "svmlight": Format(
        "lines 'l,l w:v w:v'", open_svmlight, (".svm", ".svmlight", ".libsvm"), names_labels=True
    ),
    "jsonl": Format("JSON objects, one per line", open_jsonl, (".jsonl", ".ndjson"), (), True, True),
    "csv": Format("table with a header row", open_csv, (".csv",), (), True, True),
    "tsv": Format("lines 'label,label<TAB>text'", open_tsv, (".tsv",), (), True, True),
    "parquet": Format(
        "Parquet table with a column of texts", open_parquet_texts, (".parquet", ".pq"), (), True, True
    ),
    "arrow": Format(
        "Arrow IPC table with a column of texts", open_arrow_texts, (".arrow", ".feather"), (), True, True
    ),
    "uci": Format("UCI docword triples", open_uci, (), ("docword.",)),
    "ldac": Format("lines 'pairs word:count'", open_ldac, (".ldac", ".lda-c")),
    "npz": Format("SciPy sparse matrices", open_npz, (".npz",)),
    # Files of several formats are named .txt: see `_format_of_text`.
    "lines": Format("texts without labels, one per line", open_lines, (), (), True, True),
}
#: formats whose fields have names
WITH_FIELDS = ("jsonl", "csv", "parquet", "arrow")


def detect_format(path: str) -> str:
    """Return the name of the format of a file, by its name or the first line of a ``.txt`` file.

    Raises
    ------
    UsageError
        If neither indicates a format, or the name indicates one of rows.
    """
    name = bare_name(path)
    for key, known in FORMATS.items():
        if name.endswith(known.suffixes or ("\0",)) or name.startswith(known.prefixes or ("\0",)):
            return key
    if name.endswith(".txt") and (found := _format_of_text(path)):
        return found
    if rows := detect_row_format(path):
        raise UsageError(
            f"{path}: expected documents, got rows or sequences ({rows}); if the file has documents, specify "
            "their format (--format)"
        )
    formats = ", ".join(dict.fromkeys((*FORMATS, *ROW_FORMATS)))
    raise UsageError(f"{path}: the file name does not indicate a format; specify one of {formats} (--format)")


def _format_of_text(path: str) -> str | None:
    """Return the format of a ``.txt`` file: a header of XMC, or text without tabs; None if it may be another."""
    lines, n = LineReader(path, Tally(path)).take_text(1)
    if not n:
        # An empty file is reported as such by the reader of any format.
        return "lines"
    first = lines.decode("utf-8", "replace")
    if re.fullmatch(r"\s*\d+ \d+ \d+\s*", first):
        return "xmc"
    if first.lstrip().startswith("__label__"):
        raise UsageError(
            f"{path}: lines begin with __label__, as for fastText: write label,label<TAB>text to a .tsv file "
            "(--format lines takes the labels for words)"
        )
    # A row of numbered columns has entries such as 7:2.5, after one field of labels at most and up to a comment.
    # In a text, a time such as 3:30 has other words around it. Labels before a text have a tab.
    fields = first.partition("#")[0].split()
    is_row = any(re.match(r"\d+:\S", field) for field in fields) and all(
        re.match(r"(\d+|qid):\S", field) for field in fields[1:]
    )
    is_text = any(c.isalpha() for c in first) and "\t" not in first and not is_row
    return "lines" if is_text else None


def check_documents(path: str) -> None:
    """Raise a UsageError unless there is such a file of documents."""
    refuse_parts(path)
    check_file(path)


def refuse_parts(path: str) -> None:
    """Raise a UsageError that names the files, if a directory of files of documents is given in their place."""
    if is_url(path) or not os.path.isdir(path) or kind_of_directory(Path(path)):
        return
    if pattern := _pattern_of_parts(path):
        raise UsageError(f"{path}: is not a file but a directory: expected its files, such as {pattern}")


def _pattern_of_parts(folder: str) -> str | None:
    """Return a pattern for the files of documents in a directory, of the most frequent kind; None without any."""
    endings = tuple(suffix for known in FORMATS.values() if known.names_words for suffix in known.suffixes)
    found = Counter[str]()
    for entry in os.scandir(folder):
        name = bare_name(entry.name)
        # Frameworks leave hidden files, and records such as _SUCCESS, beside the parts.
        if entry.is_file() and not name.startswith((".", "_")) and name.endswith((*endings, ".txt")):
            found[entry.name[name.rindex(".") :]] += 1
    if not found:
        return None
    return f"{shlex.quote(os.path.join(folder, ''))}*{found.most_common(1)[0][0]}"


def checked_format(path: str, format: str | None) -> str:
    """Check that a file and its format exist, and return the name of the format.

    Parameters
    ----------
    path : str
    format : str or None
        The name given for the format; None means that it is detected.

    Raises
    ------
    UsageError
        If there is no such file or format, or no format can be detected.
    """
    check_documents(path)
    name = detect_format(path) if format is None else format
    if name not in FORMATS:
        raise UsageError(f"format: expected one of {', '.join(FORMATS)}, got {name!r}")
    return name
