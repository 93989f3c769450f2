"""Real-valued rows in groups: the views of documents, images or people, in memory or in a NumPy file."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csr_array

from distmom.clock import spend
from distmom.corpus.block import RowBlock
from distmom.corpus.files.npy import UNREADABLE, load_sparse, member_of
from distmom.corpus.layers import SHARD_BYTES, Layer, RowShard
from distmom.corpus.rows import as_array, as_numbers
from distmom.errors import InputError, StoreError, UsageError


@dataclass(frozen=True)
class ArrayFile:
    """An ``.npy`` or ``.npz`` file, identified by path, size and modification time.

    Attributes
    ----------
    path : str
        Absolute path.
    n_bytes, changed_ns : int
        Size in bytes, and time of the last modification in nanoseconds.
    """

    path: str
    n_bytes: int
    changed_ns: int

    @classmethod
    def find(cls, path: str | os.PathLike[str]) -> ArrayFile:
        """Return the current state of a file; InputError if it does not exist."""
        place = os.path.abspath(os.fspath(path))
        try:
            seen = os.stat(place)
        except OSError as error:
            raise InputError(f"{place}: cannot be read: {error}") from error
        return cls(place, seen.st_size, seen.st_mtime_ns)

    def load(self) -> Any:
        """Map the array of an ``.npy`` file into memory, or read the array of an ``.npz`` file, once per process.

        Returns
        -------
        ndarray or csr_array
            An ``.npz`` file holds a single array, or a sparse matrix as written by `scipy.sparse.save_npz`.

        Raises
        ------
        StoreError
            If the file has changed since it was found.
        InputError
            If it holds no array, or several.
        """
        if (now := ArrayFile.find(self.path)) != self:
            raise StoreError(
                f"{self.path}: expected the file of {self.n_bytes} bytes with which the corpus was opened, "
                f"got one of {now.n_bytes} bytes with another modification time"
            )
        try:
            found = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except UNREADABLE as error:
            raise InputError(f"{self.path}: not an .npy or .npz file of numbers: {error}") from error
        if isinstance(found, np.ndarray):
            return found
        found.close()
        return _read_archive(self)


@lru_cache(maxsize=2)
def _read_archive(file: ArrayFile) -> Any:
    """Return the array or the sparse matrix of an ``.npz`` file; InputError if there is not one."""
    try:
        with np.load(file.path, allow_pickle=False) as archive:
            names = archive.files
            if {"format", "shape"} <= set(names):
                matrix = csr_array(load_sparse(file.path))
                matrix.check_format(full_check=True)
                return matrix
            if len(names) == 1:
                return member_of(archive, names[0])
    except UNREADABLE as error:
        raise InputError(f"{file.path}: not an .npz file of numbers: {error}") from error
    raise InputError.at(
        file.path,
        None,
        "arrays",
        "one, or a sparse matrix of scipy.sparse.save_npz",
        ", ".join(names) or "none",
    )


@dataclass(frozen=True)
class Layout:
    """Assignment of rows to groups.

    Attributes
    ----------
    order : ndarray of shape (n_rows,), int64, or None
        Rows sorted by group, with groups in the order of their first row; None if rows are already sorted.
    starts : ndarray of shape (n_groups + 1,), int64
        Group g has the rows ``order[starts[g] : starts[g + 1]]``.
    names : ndarray of shape (n_groups,)
        The groups, numbers or strings.
    """

    order: np.ndarray | None
    starts: np.ndarray
    names: np.ndarray


class ViewCorpus:
    """Groups of views with the interface of a `Corpus`; each group counts as a document.

    The views of a group are its rows. Groups are ordered by their first row, and the views of each group keep the
    order of the rows.

    Parameters
    ----------
    X : array_like or sparse matrix of shape (n_rows, n_features), or path-like
        Finite numbers of either sign, or an ``.npy`` or ``.npz`` file of them that is accessible to all workers.
        An ``.npy`` file is memory-mapped and never loaded as a whole; an ``.npz`` file is read whole by every
        worker process.
    groups : array_like of shape (n_rows,), or path-like
        Group of every row, as a number or string. An array is sent with every task; for many rows, use an
        ``.npy`` file.
    shard_rows : int, optional
        Approximate number of rows in a shard, which holds whole groups; by default, about 32 MiB of rows.

    Attributes
    ----------
    vocabulary : list of str
        Names of the features, if `ECA.fit` was given a table; empty otherwise.
    settings : dict
        Settings of the features, such as those of a table.
    n_documents, n_rows, n_words : int
        Number of groups, of views and of features.
    largest : int
        Number of views in the largest group.
    shards : tuple of RowShard
    digest : str
        Checksum of all values; for files, of path, size and modification time.

    Raises
    ------
    InputError
        If X is not a matrix of numbers, or there is not one group for every row.
    UsageError
        If ``shard_rows`` is below 1.
    """

    n_labels = 0

    n_documents: int
    n_rows: int
    n_words: int
    largest: int
    digest: str
    shards: tuple[RowShard, ...]

    def __init__(self, X: Any, groups: Any, *, shard_rows: int | None = None) -> None:
        if shard_rows is not None and shard_rows < 1:
            raise UsageError(f"shard_rows: expected at least 1, got {shard_rows}")
        self.vocabulary: list[str] = []
        self.settings: dict[str, Any] = {}
        self._X: Any = ArrayFile.find(X) if _is_path(X) else _checked_rows(X, "X")
        name = self._X.path if isinstance(self._X, ArrayFile) else "X"
        rows = _checked_rows(self._X.load(), name) if isinstance(self._X, ArrayFile) else self._X
        self.n_rows, self.n_words = (int(n) for n in rows.shape)
        self._groups: ArrayFile | Layout
        if _is_path(groups):
            self._groups = ArrayFile.find(groups)
            layout = _layout_of_file(self._groups)
        else:
            self._groups = layout = layout_of(groups, "groups")
        if layout.starts[-1] != self.n_rows:
            of = self._groups.path if isinstance(self._groups, ArrayFile) else "groups"
            raise InputError.at(
                of, None, "number of rows", f"{self.n_rows} as in {name}", str(int(layout.starts[-1]))
            )
        self._in_order = layout.order is None
        self.n_documents = len(layout.starts) - 1
        self.largest = int(np.diff(layout.starts).max(initial=0))
        self.digest = self._digest(layout)
        self.shards = self._cut(layout.starts, rows, shard_rows)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """One layer, ``views``, along rows."""
        rows = self._rows()
        kind = "csr" if sparse.issparse(rows) else "dense"
        return (Layer("views", kind, "rows", self.n_words, str(rows.dtype)),)

    @property
    def document_frequency(self) -> np.ndarray:
        """Number of rows with a value of each feature, of shape (n_features,)."""
        rows = self._rows()
        if sparse.issparse(rows):
            return np.bincount(rows.indices, minlength=self.n_words)
        return np.full(self.n_words, self.n_rows)

    @property
    def label_frequency(self) -> np.ndarray:
        """An empty array: views have no labels."""
        return np.zeros(0, np.int64)

    @property
    def group_names(self) -> np.ndarray:
        """The groups in the order of the corpus, numbers or strings, of shape (n_documents,)."""
        layout = _layout_of_file(self._groups) if isinstance(self._groups, ArrayFile) else self._groups
        return layout.names

    def read_shard(self, index: int) -> RowBlock:
        """Return the groups of one shard.

        Raises
        ------
        InputError
            If a value is not finite; the message gives its row and column.
        StoreError
            If a file has changed since the corpus was opened.
        """
        shard = self.shards[index]
        part = slice(shard.first_row, shard.first_row + shard.n_rows)
        with spend("read"):
            where, starts = self._where(shard, part)
            source = self._rows()
            if sparse.issparse(source):
                rows = csr_array(source[where], dtype=np.float64)
                values = rows.data
            else:
                # A view of the map would keep its pages in memory.
                copy = isinstance(self._X, ArrayFile)
                rows = values = np.array(source[where], np.float64, order="C", copy=copy or None)
        with np.errstate(over="ignore", invalid="ignore"):
            # A sum needs no temporary array. It may also overflow for finite values, so _refuse checks each one.
            total = values.sum()
        if not np.isfinite(total):
            self._refuse(rows, where)
        return RowBlock(rows, starts, shard.first)

    def verify(self) -> list[str]:
        """Read all shards and return the problems found: values that are not finite."""
        found = []
        for index in range(len(self.shards)):
            try:
                self.read_shard(index)
            except InputError as error:
                found.append(str(error))
        return found

    def _rows(self) -> Any:
        return self._X.load() if isinstance(self._X, ArrayFile) else self._X

    def _where(self, shard: RowShard, part: slice) -> tuple[slice | np.ndarray, np.ndarray]:
        """Return the rows of a shard, and the starts of its groups among them."""
        if isinstance(self._groups, ArrayFile) and self._in_order:
            # A worker need not read the groups of other shards.
            labels = np.asarray(self._groups.load()[part])
            return part, _run_starts(labels)
        layout = _layout_of_file(self._groups) if isinstance(self._groups, ArrayFile) else self._groups
        starts = layout.starts[shard.first : shard.first + shard.n_documents + 1] - shard.first_row
        return part if layout.order is None else layout.order[part], starts

    def _refuse(self, rows: Any, where: slice | np.ndarray) -> None:
        at, column = 0, 0
        if sparse.issparse(rows):
            bad = np.flatnonzero(~np.isfinite(rows.data))
            if len(bad):
                at = int(np.searchsorted(rows.indptr, bad[0], side="right")) - 1
                column = int(rows.indices[bad[0]])
        else:
            bad = np.flatnonzero(~np.isfinite(rows))
            if len(bad):
                at, column = divmod(int(bad[0]), rows.shape[1])
        if not len(bad):
            return
        row = where.start + at if isinstance(where, slice) else int(where[at])
        name = self._X.path if isinstance(self._X, ArrayFile) else "X"
        got = str(rows[at, column])
        raise InputError.at(name, None, f"value in row {row}, column {column}", "a finite number", got)

    def _digest(self, layout: Layout) -> str:
        digest = hashlib.sha256()
        for part in (self._X, self._groups):
            if isinstance(part, ArrayFile):
                digest.update(json.dumps(vars(part)).encode())
            elif isinstance(part, Layout):
                for array in (layout.order, layout.starts):
                    digest.update(b"none" if array is None else np.ascontiguousarray(array).data)
            else:
                arrays = (part.data, part.indices, part.indptr) if sparse.issparse(part) else (part,)
                for array in arrays:
                    digest.update(f"{array.shape}{array.dtype.str}".encode())
                    digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def _cut(self, starts: np.ndarray, rows: Any, shard_rows: int | None) -> tuple[RowShard, ...]:
        is_sparse = sparse.issparse(rows)
        # An archive cannot be mapped: every process holds all of it.
        held = 0
        if isinstance(self._X, ArrayFile) and not isinstance(self._X.load(), np.memmap):
            parts = (rows.data, rows.indices, rows.indptr) if is_sparse else (rows,)
            held = sum(part.nbytes for part in parts)
        n_values = len(rows.data) if is_sparse else self.n_rows * self.n_words
        per_row = max(1, -(-n_values // max(1, self.n_rows)))
        if shard_rows is None:
            shard_rows = max(1, SHARD_BYTES // ((12 if is_sparse else 8) * per_row))
        shards: list[RowShard] = []
        first = 0
        while first < self.n_documents:
            last = int(np.searchsorted(starts, starts[first] + shard_rows, side="right")) - 1
            last = max(last, first + 1)
            n_views = int(starts[last] - starts[first])
            # Values as stored and in memory, the latter twice if some groups are left out.
            row_bytes = n_views * per_row * (3 * 12 if is_sparse else 2 * 8 + rows.dtype.itemsize)
            # A process that must sort rows also holds group labels, order and starts.
            row_bytes += held + (0 if self._in_order else 4 * 8 * self.n_rows)
            shards.append(
                RowShard(
                    f"s{len(shards):05d}", first, last - first, f"{self.digest}:{first}:{last}",
                    int(starts[first]), n_views, n_views * per_row, row_bytes,
                )
            )  # fmt: skip
            first = last
        return tuple(shards)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _checked_rows(X: Any, name: str) -> Any:
    """Return a dense matrix unchanged, a sparse one as float64 CSR; InputError if X is not a matrix of numbers."""
    matrix = X if sparse.issparse(X) else as_numbers(as_array(X, name), name)
    if matrix.ndim != 2 or matrix.shape[1] < 1:
        raise InputError.at(name, None, "shape", "a matrix of rows and features", str(matrix.shape))
    if matrix.dtype.kind not in "iubf":
        raise InputError.at(name, None, "type of the values", "real numbers", str(matrix.dtype))
    return csr_array(matrix, dtype=np.float64) if sparse.issparse(matrix) else matrix


def layout_of(groups: Any, name: str) -> Layout:
    """Sort rows by group; InputError if the groups are not a vector of numbers or of strings."""
    labels = as_array(groups, name)
    if labels.ndim != 1:
        raise InputError.at(name, None, "shape", "one group for every row", str(labels.shape))
    missing = _missing(labels)
    if missing.any():
        row = int(np.argmax(missing))
        raise InputError.at(name, None, f"group of row {row}", "a number or a string", str(labels[row]))
    try:
        runs = _run_starts(labels)
        _, first, codes = np.unique(labels[runs[:-1]], return_index=True, return_inverse=True)
    except TypeError as error:
        got = ", ".join(sorted({type(label).__name__ for label in labels.tolist()}))
        raise InputError.at(name, None, "type of the groups", "numbers, or strings", got) from error
    if len(first) == len(runs) - 1:
        return Layout(None, runs, labels[runs[:-1]])
    position = np.empty(len(first), np.int64)
    position[np.argsort(first)] = np.arange(len(first))
    of_rows = np.repeat(position[codes], np.diff(runs))
    order = np.argsort(of_rows, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(of_rows))]).astype(np.int64)
    return Layout(order, starts, labels[order[starts[:-1]]])


def _missing(labels: np.ndarray) -> np.ndarray:
    """Return which labels are no groups: numbers and dates that are not finite; None and NaN among objects."""
    if labels.dtype.kind == "f":
        return np.asarray(~np.isfinite(labels))
    if labels.dtype.kind in "mM":
        return np.asarray(np.isnat(labels))
    if labels.dtype.kind != "O":
        return np.zeros(len(labels), bool)
    return np.array(
        [label is None or (isinstance(label, float) and label != label) for label in labels], bool
    )


@lru_cache(maxsize=2)
def _layout_of_file(file: ArrayFile) -> Layout:
    return layout_of(file.load(), file.path)


def _run_starts(labels: np.ndarray) -> np.ndarray:
    """Return the start of each run of equal labels, followed by the number of labels."""
    if not len(labels):
        return np.zeros(1, np.int64)
    changes = np.flatnonzero(labels[1:] != labels[:-1]) + 1
    return np.concatenate([[0], changes, [len(labels)]]).astype(np.int64)
