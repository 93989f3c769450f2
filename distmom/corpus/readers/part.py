"""A part: the documents of one chunk with a numbering of their own, before the vocabulary of all is known."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus.block import csr_from_parts
from distmom.corpus.commit import write_atomic
from distmom.errors import StoreError

_ARRAYS = ("word_ptr", "word_ids", "values", "label_ptr", "label_ids", "label_lines")


class Numbering(dict[str, int]):
    """Numbers names in the order in which they are first asked for."""

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self)
        return number


@dataclass
class Part:
    """Documents of one chunk.

    Attributes
    ----------
    word_ptr, word_ids, values : ndarray
        CSR matrix of the words; ``values`` are float64 (all integral for counts).
    label_ptr, label_ids : ndarray
        CSR structure of the labels.
    words, labels : list of str or None
        Names of the numbers; None if the numbers are columns of the source.
    label_lines : ndarray of shape (n_labels,)
        Line on which each named label occurs first; empty if labels are columns.
    warnings : Counter
        Repairs.
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

    @property
    def n_documents(self) -> int:
        return len(self.word_ptr) - 1

    def save(self, path: Path) -> None:
        """Write the part so that it is there whole or not at all."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        for name in ("words", "labels"):
            if (names := getattr(self, name)) is not None:
                # Names hold no line breaks.
                arrays[name] = np.frombuffer("\n".join(names).encode("utf-8", "surrogatepass"), np.uint8)
        arrays["warnings"] = np.frombuffer(json.dumps(self.warnings).encode(), np.uint8)
        write_atomic(path, lambda stream: np.savez(stream, **arrays))

    @classmethod
    def load(cls, path: Path) -> Part:
        """Read a part; StoreError if it is damaged."""
        arrays = _read(path, (*_ARRAYS, "warnings"))
        words, labels = cls.load_names(path)
        warnings = Counter(json.loads(arrays.pop("warnings").tobytes()))
        return cls(**arrays, words=words, labels=labels, warnings=warnings)

    @staticmethod
    def load_names(path: Path) -> tuple[list[str] | None, list[str] | None]:
        """Read only the names of words and labels."""
        arrays = _read(path, ("words", "labels"), optional=True)
        texts = [arrays[name].tobytes() if name in arrays else None for name in ("words", "labels")]
        words, labels = (
            text if text is None else text.decode("utf-8", "surrogatepass").split("\n") if text else []
            for text in texts
        )
        return words, labels


def _read(path: Path, names: Sequence[str], *, optional: bool = False) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as stored:
            # A member carries a CRC, which is checked as it is read.
            return {name: stored[name] for name in names if not optional or name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise StoreError(f"{path}: cannot be read: {error}") from error


@dataclass(frozen=True)
class Rows:
    """Rows with increasing columns, and where they had to be mended.

    Attributes
    ----------
    ptr, ids, values : ndarray
        CSR arrays (int64, int32, float64).
    unsorted, repeated : ndarray
        Rows whose columns were out of order, and rows in which one occurred twice, once for each time.
    """

    ptr: np.ndarray
    ids: np.ndarray
    values: np.ndarray
    unsorted: np.ndarray
    repeated: np.ndarray


def gather(lengths: Sequence[int] | np.ndarray, ids: np.ndarray, values: np.ndarray | None = None) -> Rows:
    """Put the entries of rows in order and add those of equal columns.

    Parameters
    ----------
    lengths : sequence of int
        Number of entries of each row.
    ids : ndarray of int
        Columns of the entries, row after row.
    values : ndarray, optional
        Values; ones unless given.
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
        ptr = np.concatenate([[0], np.cumsum(lengths)])
        return Rows(ptr, ids.astype(np.int32), values, nothing, nothing)
    unsorted = np.unique(rows[1:][steps < 0])
    order = np.argsort(key, kind="stable")
    key = key[order]
    new = np.concatenate([[True], key[1:] != key[:-1]])
    starts = np.flatnonzero(new)
    kept = key[starts]
    counts = np.bincount(kept // width, minlength=n)
    return Rows(
        ptr=np.concatenate([[0], np.cumsum(counts)]),
        ids=(kept % width).astype(np.int32),
        values=np.add.reduceat(values[order], starts),
        unsorted=unsorted,
        repeated=key[~new] // width,
    )


def renumber(
    ptr: np.ndarray, ids: np.ndarray, values: np.ndarray, new: np.ndarray | None, width: int
) -> csr_array:
    """Return a CSR matrix with columns renumbered.

    Parameters
    ----------
    ptr, ids, values : ndarray
        CSR arrays.
    new : ndarray of int, or None
        New number of each old column, -1 for those that are dropped; None keeps all.
    width : int
        Number of columns.
    """
    if new is not None:
        ids = new[ids] if len(ids) else ids
        kept = ids >= 0
        before = np.concatenate([[0], np.cumsum(kept)])
        rows = gather(np.diff(before[ptr]), ids[kept], values[kept])
        ptr, ids, values = rows.ptr, rows.ids, rows.values
    return csr_from_parts(values, ids, ptr, (len(ptr) - 1, width))


def lookup(names: Sequence[str], numbers: Mapping[str, int]) -> np.ndarray:
    """Return the number of each name, -1 where it has none."""
    return np.fromiter((numbers.get(name, -1) for name in names), np.int64, len(names))
