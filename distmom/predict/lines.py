"""Labels or topics of documents as lines of text, each with the id of its document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from distmom.errors import UsageError

#: forms of the output of predictions and shares; arrays are always written
OUTPUT_FORMATS = ("tsv", "jsonl", "zarr")
#: number of documents without ids that are numbered at a time
_MANY = 1 << 16
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def check_output_format(output_format: str) -> None:
    """Raise a UsageError if a form of output is unknown."""
    if output_format not in OUTPUT_FORMATS:
        raise UsageError(f"output_format: expected one of {', '.join(OUTPUT_FORMATS)}, got {output_format!r}")


def document_ids(corpus: Any) -> Iterator[str]:
    """Yield the id of every document of a corpus, or its number from 1 if documents have no ids."""
    for index, shard in enumerate(corpus.shards):
        ids = corpus.read_ids(index)
        if ids is not None:
            yield from ids
            continue
        for start in range(0, shard.n_documents, _MANY):
            first = shard.first + start + 1
            yield from map(str, range(first, shard.first + 1 + min(start + _MANY, shard.n_documents)))


def escaped(text: str) -> str:
    r"""Return a text for a field of tab-separated lines: backslash, tab and line breaks as \\, \t, \n and \r."""
    return text.translate(_ESCAPES)


class AnswerLines:
    """Writer of the ids of documents, and of their labels or topics as lines of text.

    Parameters
    ----------
    ids : iterable of str
        Ids of all documents, in order.
    id_file : TextIO
        Receives the ids, one per line.
    stream : TextIO or None
        Receives the lines; None for none.
    output_format : {"tsv", "jsonl"}
        One line per document and answer, after a header, or one JSON object per document.
    names : sequence of str
        Name of every label or topic.
    fields : (str, str)
        Names of an answer and of its value, singular: ``("label", "score")``. Keys of JSON are the plurals.
    """

    def __init__(
        self,
        ids: Iterable[str],
        id_file: TextIO,
        stream: TextIO | None,
        output_format: str,
        names: Sequence[str],
        fields: tuple[str, str],
    ) -> None:
        self._ids, self._id_file, self._stream = iter(ids), id_file, stream
        self._fields, self._as_json = fields, output_format == "jsonl"
        to_text = _as_json if self._as_json else escaped
        # Every name is converted to text once, not once per answer.
        self._names = [to_text(name) for name in names] if stream is not None else []
        if stream is not None and not self._as_json:
            stream.write("\t".join(("id", *fields)) + "\n")

    def write(self, answers: np.ndarray, values: np.ndarray, counts: np.ndarray) -> None:
        """Write the answers of the next documents.

        Parameters
        ----------
        answers : ndarray of shape (n, k), int
            Numbers of labels or topics, the best first.
        values : ndarray of shape (n, k)
        counts : ndarray of shape (n,), int
            Number of answers of each document that are written.
        """
        ids = list(islice(self._ids, len(answers)))
        self._id_file.writelines(f"{text}\n" for text in ids)
        if self._stream is None:
            return
        names = self._names
        rows = zip(ids, answers.tolist(), values.tolist(), counts.tolist(), strict=True)
        if self._as_json:
            answer, value = map(_plural, self._fields)
            for text, row, row_values, n in rows:
                found = ", ".join(names[i] for i in row[:n])
                numbers = ", ".join(f"{x:.6g}" for x in row_values[:n])
                self._stream.write(
                    f'{{"id": {_as_json(text)}, "{answer}": [{found}], "{value}": [{numbers}]}}\n'
                )
            return
        for text, row, row_values, n in rows:
            start = escaped(text)
            self._stream.writelines(
                f"{start}\t{names[i]}\t{x:.6g}\n" for i, x in zip(row[:n], row_values[:n], strict=True)
            )


@contextmanager
def answer_lines(
    out: Path, stem: str, output_format: str, corpus: Any, names: Sequence[str], fields: tuple[str, str]
) -> Iterator[AnswerLines]:
    """Open ``ids.txt`` and, unless the form is "zarr", a file of lines in a directory; see `AnswerLines`."""
    with (out / "ids.txt").open("w", encoding="utf-8") as id_file:
        ids = document_ids(corpus)
        if output_format == "zarr":
            yield AnswerLines(ids, id_file, None, output_format, names, fields)
            return
        with (out / f"{stem}.{output_format}").open("w", encoding="utf-8") as stream:
            yield AnswerLines(ids, id_file, stream, output_format, names, fields)


def _plural(name: str) -> str:
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


def _as_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
