"""A part: the documents of one chunk with their own numbering, before the final vocabulary is known.

On disk it is a directory of ``.npy`` files, and ``part.json`` with their sizes and digests, written last.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus.block import csr_from_parts
from distmom.corpus.files.commit import TEMPORARY, put_if_absent
from distmom.corpus.files.npy import parse_npy
from distmom.corpus.files.records import RecordFormat, are_files, describe_files, read_file
from distmom.errors import StoreError

PART = RecordFormat("distmom-part", 1, "remove it")
_ARRAYS = ("word_ptr", "word_ids", "values", "label_ptr", "label_ids", "label_lines")
_NAMES = ("words", "labels")
#: arrays with one entry per document that only some parts have
_OF_DOCUMENTS = ("rows", "ids")
_HEAD = ("n_documents", "last_row", "n_word_columns", "integral", "warnings", "unlabelled")


@dataclass(frozen=True)
class Unlabelled:
    """A document of a source with named fields, none of which contains the labels.

    Attributes
    ----------
    path : str
        Its file.
    line : int
    fields : list of str
        All fields.
    candidates : list of str
        Fields whose content may be labels.
    """

    path: str
    line: int
    fields: list[str]
    candidates: list[str]


@dataclass(frozen=True)
class Summary:
    """Data of one part on which the choice of columns depends.

    Attributes
    ----------
    n_documents : int
    last_row : int
        Row of the last document in the source, from 1; 0 if rows are not counted or there is no document.
    n_word_columns : int
        One more than the largest word number.
    integral : bool
        Whether every value is a whole number.
    warnings : Counter
        Number of repairs, by kind.
    unlabelled : Unlabelled or None
        As in a `Part`.
    words, labels : list of str or None
        As in a `Part`.
    document_frequency : ndarray of shape (n_words,)
        Number of documents that contain each named word; empty if words are column numbers.
    label_lines : ndarray of shape (n_labels,)
        As in a `Part`.
    label_columns : ndarray of int
        Column numbers of labels that occur; empty if labels are named.
    """

    n_documents: int
    last_row: int
    n_word_columns: int
    integral: bool
    warnings: Counter[str]
    unlabelled: Unlabelled | None
    words: list[str] | None
    document_frequency: np.ndarray
    labels: list[str] | None
    label_lines: np.ndarray
    label_columns: np.ndarray


class Numbering(dict[str, int]):
    """A mapping that numbers names in the order of their first lookup."""

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self)
        return number


@dataclass
class Part:
    """Documents of one chunk.

    Attributes
    ----------
    word_ptr, word_ids, values : ndarray
        CSR matrix of the words; ``values`` are float64 (all whole numbers for counts).
    label_ptr, label_ids : ndarray
        CSR structure of the labels.
    words, labels : list of str or None
        Names of the numbered words and labels; None if numbers are columns of the source.
    label_lines : ndarray of shape (n_labels,)
        Line of the first occurrence of each named label; empty if labels are column numbers.
    warnings : Counter
        Number of repairs, by kind.
    rows : ndarray of shape (n_documents,), int64, or None
        Row of each document in the source, from 1, in sources that may have rows without a document.
    ids : list of str or None
        Id of each document, in sources with ids.
    unlabelled : Unlabelled or None
        The first document, if no document has the field of the labels.
    """

    word_ptr: np.ndarray
    word_ids: np.ndarray
    values: np.ndarray
    label_ptr: np.ndarray
    label_ids: np.ndarray
    words: list[str] | None = None
    labels: list[str] | None = None
    label_lines: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    warnings: Counter[str] = field(default_factory=Counter)
    rows: np.ndarray | None = None
    ids: list[str] | None = None
    unlabelled: Unlabelled | None = None

    @property
    def n_documents(self) -> int:
        return len(self.word_ptr) - 1

    def summary(self) -> Summary:
        """Return the data on which the choice of columns depends."""
        nothing = np.zeros(0, np.int64)
        return Summary(
            n_documents=self.n_documents,
            last_row=0 if self.rows is None or not len(self.rows) else int(self.rows[-1]),
            n_word_columns=int(self.word_ids.max()) + 1 if len(self.word_ids) else 0,
            integral=bool(np.all(self.values == np.trunc(self.values))),
            warnings=self.warnings,
            unlabelled=self.unlabelled,
            words=self.words,
            document_frequency=(
                nothing if self.words is None else np.bincount(self.word_ids, minlength=len(self.words))
            ),
            labels=self.labels,
            label_lines=self.label_lines,
            label_columns=np.unique(self.label_ids) if self.labels is None else nothing,
        )

    def save(self, path: Path) -> None:
        """Write the part and its summary atomically, unless another attempt has done so."""
        summary = self.summary()
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        if summary.integral and len(self.values):
            # Most values are small counts.
            arrays["values"] = self.values.astype(np.min_scalar_type(int(self.values.max())))
        for name in (*_NAMES, "ids"):
            if (names := getattr(self, name)) is not None:
                # Names contain no line breaks.
                arrays[name] = np.frombuffer("\n".join(names).encode("utf-8", "surrogatepass"), np.uint8)
        if self.rows is not None:
            arrays["rows"] = self.rows
        for name in ("document_frequency", "label_columns"):
            arrays[name] = getattr(summary, name)
        temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
        temporary.mkdir()
        try:
            for name, array in arrays.items():
                np.save(temporary / f"{name}.npy", array, allow_pickle=False)
            head = {name: getattr(summary, name) for name in _HEAD}
            head["unlabelled"] = None if self.unlabelled is None else vars(self.unlabelled)
            # Damage by a power failure is detected by digest, and the part is then encoded again.
            record = {**head, "files": describe_files(temporary)}
            PART.write(temporary / "part.json", record, survives_power_failure=False)
            put_if_absent(temporary, path, Part.is_whole)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    @staticmethod
    def is_whole(path: Path) -> bool:
        """Return whether a directory contains an undamaged part."""
        try:
            Part.load(path)
            Part.load_summary(path)
        except StoreError:
            return False
        return True

    @classmethod
    def load(cls, path: Path) -> Part:
        """Read a part; StoreError if it is damaged."""
        head, arrays = _read(path, _ARRAYS, (*_NAMES, *_OF_DOCUMENTS))
        words, labels = _names(arrays)
        fields = {name: arrays[name] for name in _ARRAYS}
        fields["values"] = fields["values"].astype(np.float64, copy=False)
        ids = _lines(arrays["ids"]) if "ids" in arrays else None
        return cls(
            **fields, words=words, labels=labels, warnings=head["warnings"], rows=arrays.get("rows"), ids=ids,
            unlabelled=head["unlabelled"],
        )  # fmt: skip

    @staticmethod
    def load_names(path: Path) -> tuple[list[str] | None, list[str] | None]:
        """Read only the names of words and labels."""
        return _names(_read(path, (), _NAMES)[1])

    @staticmethod
    def load_summary(path: Path) -> Summary:
        """Read only the summary; StoreError if it is damaged."""
        head, arrays = _read(path, ("document_frequency", "label_lines", "label_columns"), _NAMES)
        words, labels = _names(arrays)
        return Summary(
            **head,
            words=words,
            document_frequency=arrays["document_frequency"],
            labels=labels,
            label_lines=arrays["label_lines"],
            label_columns=arrays["label_columns"],
        )


def _read(
    path: Path, names: Sequence[str], optional: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the head of a part and selected arrays; StoreError if one is damaged."""
    record = PART.read(path / "part.json")
    if not are_files(record.get("files")) or any(name not in record for name in _HEAD):
        raise StoreError(f"{path}/part.json: an entry is missing or of the wrong type")
    arrays = {}
    for name in (*names, *(name for name in optional if f"{name}.npy" in record["files"])):
        file = f"{name}.npy"
        content = read_file(path, file, record["files"].get(file, {"size": 0, "sha256": ""}))
        arrays[name] = parse_npy(content, f"{path}/{file}")
    head = {name: record[name] for name in _HEAD}
    head["warnings"] = Counter(head["warnings"])
    if head["unlabelled"] is not None:
        head["unlabelled"] = Unlabelled(**head["unlabelled"])
    return head, arrays


def _names(arrays: Mapping[str, np.ndarray]) -> tuple[list[str] | None, list[str] | None]:
    words, labels = (_lines(arrays[name]) if name in arrays else None for name in _NAMES)
    return words, labels


def _lines(array: np.ndarray) -> list[str]:
    return array.tobytes().decode("utf-8", "surrogatepass").split("\n") if len(array) else []


@dataclass(frozen=True)
class Rows:
    """Rows with increasing columns, and the rows that had to be repaired.

    Attributes
    ----------
    ptr, ids, values : ndarray
        CSR arrays (int64, int32, float64).
    unsorted, repeated : ndarray
        Rows whose columns were out of order, and rows with a repeated column, once per repetition.
    """

    ptr: np.ndarray
    ids: np.ndarray
    values: np.ndarray
    unsorted: np.ndarray
    repeated: np.ndarray


def gather(lengths: Sequence[int] | np.ndarray, ids: np.ndarray, values: np.ndarray | None = None) -> Rows:
    """Sort the entries of each row by column and add up entries of equal columns.

    Parameters
    ----------
    lengths : sequence of int
        Number of entries of each row.
    ids : ndarray of int
        Columns of the entries, row after row.
    values : ndarray, optional
        Values; ones by default.
    """
    n = len(lengths)
    lengths = np.asarray(lengths, np.int64)
    ids = np.asarray(ids, np.int64)
    values = np.ones(len(ids)) if values is None else values
    rows = np.repeat(np.arange(n), lengths)
    nothing = np.zeros(0, np.int64)
    width = int(ids.max()) + 1 if len(ids) else 1
    key = rows * width + ids
    steps = np.diff(key)
    if not (steps <= 0).any():
        return Rows(offsets(lengths), ids.astype(np.int32), values, nothing, nothing)
    unsorted = np.unique(rows[1:][steps < 0])
    order = np.argsort(key, kind="stable")
    key = key[order]
    new = np.concatenate([[True], key[1:] != key[:-1]])
    starts = np.flatnonzero(new)
    kept = key[starts]
    counts = np.bincount(kept // width, minlength=n)
    return Rows(
        ptr=offsets(counts),
        ids=(kept % width).astype(np.int32),
        values=np.add.reduceat(values[order], starts),
        unsorted=unsorted,
        repeated=key[~new] // width,
    )


def offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return CSR row pointers: the start of each row among all entries, and the end of the last row."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def interleave(
    order: np.ndarray, first: Sequence[np.ndarray], second: Sequence[np.ndarray]
) -> tuple[np.ndarray, ...]:
    """Merge the rows of two CSR structures in a given order.

    Parameters
    ----------
    order : ndarray of int
        For each row of the result, its position in the rows of the first structure followed by the second.
    first, second : sequence of ndarray
        Row pointers, followed by the arrays of entries, equally many in both.
    """
    lengths = np.concatenate([np.diff(first[0]), np.diff(second[0])])[order]
    starts = np.concatenate([first[0][:-1], first[0][-1] + second[0][:-1]])[order]
    ptr = offsets(lengths)
    entries = np.repeat(starts - ptr[:-1], lengths) + np.arange(ptr[-1])
    return ptr, *(np.concatenate(pair)[entries] for pair in zip(first[1:], second[1:], strict=True))


def renumber(
    ptr: np.ndarray, ids: np.ndarray, values: np.ndarray, new: np.ndarray | None, width: int
) -> csr_array:
    """Return a CSR matrix with columns renumbered.

    Parameters
    ----------
    ptr, ids, values : ndarray
        CSR arrays.
    new : ndarray of int, or None
        New number of each old column, -1 for dropped columns; None keeps all columns.
    width : int
        Number of columns.
    """
    if new is not None:
        ids = new[ids] if len(ids) else ids
        kept = ids >= 0
        rows = gather(np.diff(offsets(kept)[ptr]), ids[kept], values[kept])
        ptr, ids, values = rows.ptr, rows.ids, rows.values
    return csr_from_parts(values, ids, ptr, (len(ptr) - 1, width))


def lookup(names: Sequence[str], numbers: Mapping[str, int]) -> np.ndarray:
    """Return the number of each name, -1 where it has none."""
    return np.fromiter((numbers.get(name, -1) for name in names), np.int64, len(names))
