"""Rows in memory as a corpus: observations, or sequences of dense or symbolic steps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from scipy import sparse
from scipy.sparse import csr_array

from distmom.corpus.block import RowBlock, plain_values, refuse_masked
from distmom.corpus.layers import (
    Cut,
    Layer,
    RowShard,
    cut_units,
    refuse_corpus,
    row_bytes_of,
    rows_per_shard,
    select_layers,
)
from distmom.corpus.names import check_names
from distmom.errors import InputError, UsageError

#: largest number of symbols of a layer: their names and frequencies are held in memory
MAX_SYMBOLS = 1 << 27
#: number of entries of a dense matrix that are checked at a time
_PIECE = 1 << 22


class RowCorpus:
    """Rows in memory with the interface of a corpus on disk.

    Parameters
    ----------
    X : array_like or sparse matrix of shape (n_rows, n_features), or array_like of shape (n_rows,)
        A matrix of finite numbers of either sign, or a vector of symbols, which are whole numbers from 0.
    lengths : array_like of shape (n_units,), optional
        Number of rows of each unit (sequence, group), in order; they add up to ``n_rows``. By default every row
        is a unit.
    n_symbols : int, optional
        Number of symbols; by default the number of ``names``, or one more than the largest symbol.
    names : sequence of str, optional
        Names of the columns or symbols; by default their numbers.
    shard_rows : int, optional
        Largest number of rows of a shard, at least 8; by default as many as take about 32 MiB, at most 1,048,576.
        Longer units are cut.

    Attributes
    ----------
    n_documents, n_rows, n_words : int
        Number of units, of rows, and of columns or symbols.
    largest : int
        Number of rows of the largest unit.
    layers : tuple of Layer
        One layer, ``rows``.
    shards : tuple of RowShard
    vocabulary : list of str
        Names of the columns or symbols.
    digest : str
        Checksum of all values.

    Raises
    ------
    InputError
        If a value is not finite or not a symbol, or the lengths do not match the rows.
    UsageError
        If ``shard_rows`` is below 8, or ``n_symbols`` is below 1 or above `MAX_SYMBOLS`.
    """

    n_labels = 0
    n_documents: int
    n_rows: int
    n_words: int
    largest: int
    layers: tuple[Layer, ...]
    shards: tuple[RowShard, ...]
    vocabulary: list[str]
    digest: str

    def __init__(
        self,
        X: Any,
        lengths: Any = None,
        *,
        n_symbols: int | None = None,
        names: Sequence[str] | None = None,
        shard_rows: int | None = None,
    ) -> None:
        # Symbols that do not occur have names, too.
        n_known = len(names) if n_symbols is None and names is not None else n_symbols
        rows, kind, width = checked_rows_of_layer(X, "X", n_known)
        self._rows = rows
        self.n_rows, self.n_words = int(rows.shape[0]), width
        self._starts = starts_of(lengths, self.n_rows)
        self.n_documents = len(self._starts) - 1
        self.largest = int(np.diff(self._starts).max(initial=0))
        self.layers = (Layer("rows", kind, "rows", width, str(rows.dtype)),)
        self.vocabulary = check_names("names", names, width)
        self.label_names: list[str] = []
        self.settings: dict[str, Any] = {"format": "arrays"}
        self.warnings: dict[str, int] = {}
        self.digest = self._checksum()
        per_row = row_bytes_of(self.layers) or max(1, 12 * rows.nnz // max(1, self.n_rows))
        cuts = cut_units(self._starts, rows_per_shard(per_row, shard_rows))
        self._cuts = tuple(cuts)
        self.shards = tuple(self._shard(index, cut, per_row) for index, cut in enumerate(self._cuts))

    @property
    def document_frequency(self) -> np.ndarray:
        """Number of rows with a value of each column, or each symbol, of shape (n_words,)."""
        if self.layers[0].kind == "symbols":
            return np.bincount(self._rows, minlength=self.n_words)
        if sparse.issparse(self._rows):
            return np.bincount(self._rows.indices, minlength=self.n_words)
        return np.full(self.n_words, self.n_rows)

    @property
    def label_frequency(self) -> np.ndarray:
        """An empty array: rows have no labels."""
        return np.zeros(0, np.int64)

    def select(self, *names: str) -> Self:
        """Return the corpus restricted to some layers, here the only one; a UsageError for other names."""
        select_layers(self.layers, names)
        return self

    def read_shard(self, index: int) -> RowBlock:
        """Return the rows of one shard."""
        cut, shard = self._cuts[index], self.shards[index]
        rows = self._rows[cut.start - cut.context(self._starts) : cut.stop]
        if self.layers[0].kind != "symbols":
            rows = (
                csr_array(rows, dtype=np.float64) if sparse.issparse(rows) else np.asarray(rows, np.float64)
            )
        return RowBlock(
            rows, cut.starts(self._starts), cut.first, None, shard.continued, shard.continues
        )  # fmt: skip

    def read_sizes(self, index: int) -> np.ndarray:
        """Return the number of rows of each unit, or part of a unit, of one shard."""
        return np.diff(self._cuts[index].starts(self._starts))

    def read_ids(self, index: int) -> list[str] | None:
        """Return None: units in memory have no ids."""
        return None

    def verify(self) -> list[str]:
        """Return an empty list: the rows were checked when the corpus was created."""
        return []

    def _shard(self, index: int, cut: Cut, row_bytes: int) -> RowShard:
        n_rows = cut.stop - cut.start
        n_entries = n_rows * (self.n_words if self.layers[0].kind == "dense" else 1)
        if sparse.issparse(self._rows):
            n_entries = int(self._rows.indptr[cut.stop] - self._rows.indptr[cut.start])
        # Values in memory, twice if some units are left out.
        return RowShard(
            f"s{index:05d}", cut.first, cut.last - cut.first, f"{self.digest}:{cut.start}:{cut.stop}",
            cut.start, n_rows, n_entries, 3 * n_rows * row_bytes,
            bool(cut.start > self._starts[cut.first]), bool(cut.stop < self._starts[cut.last]),
        )  # fmt: skip

    def _checksum(self) -> str:
        digest = hashlib.sha256(f"{self.layers[0]}".encode())
        rows = self._rows
        for array in (rows.data, rows.indices, rows.indptr) if sparse.issparse(rows) else (rows,):
            digest.update(f"{array.shape}{array.dtype.str}".encode())
            digest.update(np.ascontiguousarray(array).data)
        digest.update(self._starts.data)
        return digest.hexdigest()


def starts_of(lengths: Any, n_rows: int, name: str = "lengths") -> np.ndarray:
    """Return the starts of units from their lengths, (n_units + 1,) int64; every row is a unit by default.

    Raises
    ------
    InputError
        If a length is not a whole number of at least 1, or the lengths do not add up to the number of rows.
    """
    if lengths is None:
        return np.arange(n_rows + 1, dtype=np.int64)
    sizes = as_array(lengths, name)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu":
        raise InputError.at(
            name, None, "shape and type", "a vector of whole numbers", f"{sizes.dtype} {sizes.shape}"
        )
    if len(sizes) and int(sizes.min()) < 1:
        unit = int(np.argmin(sizes))
        raise InputError.at(name, None, f"length of unit {unit}", "at least 1", str(sizes[unit]))
    if len(sizes) and int(sizes.max()) > n_rows:
        # Sums of such lengths may overflow.
        unit = int(np.argmax(sizes))
        raise InputError.at(name, None, f"length of unit {unit}", f"at most {n_rows} rows", str(sizes[unit]))
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
    if starts[-1] != n_rows:
        raise InputError.at(
            name, None, "sum of the lengths", f"{n_rows}, the number of rows", str(starts[-1])
        )
    return starts


def as_array(values: Any, name: str) -> np.ndarray:
    """Return values as an array; an InputError if they are lists of different lengths, or some are masked."""
    refuse_corpus(values, name)
    refuse_masked(values, name)
    try:
        return np.asarray(plain_values(values))
    except ValueError as error:
        raise InputError.at(
            name, None, "shape", "rows of equal length", "lists of different lengths"
        ) from error


def as_numbers(matrix: Any, name: str, first_row: int = 0) -> Any:
    """Return a matrix of Python objects in float64, and others as they are.

    NumPy makes Python objects of tables whose columns have several types.

    Raises
    ------
    InputError
        If one of the objects is not a number; the message has row and column.
    """
    if matrix.dtype != object or matrix.ndim != 2:
        return matrix
    try:
        return matrix.astype(np.float64)
    except (TypeError, ValueError) as error:
        (row, column), value = next(each for each in np.ndenumerate(matrix) if not _is_number(each[1]))
        what = f"value in row {first_row + row}, column {column}"
        raise InputError.at(name, None, what, "a number", f"{value!r:.60}") from error


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def checked_rows_of_layer(
    X: Any, name: str, n_symbols: int | None = None, first_row: int = 0
) -> tuple[Any, str, int]:
    """Return rows as they are stored, with the kind and the width of their layer.

    Parameters
    ----------
    X : array_like or sparse matrix
        A matrix of numbers, or a vector of symbols.
    name : str
        Name of the array in error messages.
    n_symbols : int, optional
        Number of symbols; by default one more than the largest.
    first_row : int, default 0
        Number of the first row, for error messages.

    Returns
    -------
    rows : ndarray or csr_array
        Dense rows, and the values of sparse ones, are float32 if X is float32, else float64; symbols are int32.
    kind : {"csr", "dense", "symbols"}
    width : int

    Raises
    ------
    InputError
        If X is not a matrix of finite numbers or a vector of symbols; the message has row and column.
    UsageError
        If ``n_symbols`` is below 1 or above `MAX_SYMBOLS`.
    """
    array = X if sparse.issparse(X) else as_numbers(as_array(X, name), name, first_row)
    if array.ndim == 1 and array.dtype.kind in "iub" and not sparse.issparse(array):
        symbols = _checked_symbols(array, name, n_symbols, first_row)
        return symbols, "symbols", n_symbols or int(symbols.max(initial=-1)) + 1
    if array.ndim != 2 or array.shape[1] < 1:
        expected = "a matrix of rows and columns, or a vector of whole numbers"
        raise InputError.at(name, None, "shape", expected, f"{array.shape} of type {array.dtype}")
    if array.dtype.kind not in "iubf":
        raise InputError.at(name, None, "type of the values", "real numbers", str(array.dtype))
    # Byte orders differ between files, so types are not compared.
    dtype = np.float32 if array.dtype.kind == "f" and array.dtype.itemsize <= 4 else np.float64
    if sparse.issparse(array):
        # Duplicates are added up in place.
        canonical = X.format == "csr" and X.has_canonical_format
        matrix = csr_array(X, dtype=dtype, copy=not canonical)
        if len(matrix.indices) and not 0 <= matrix.indices.min() <= matrix.indices.max() < matrix.shape[1]:
            got = f"{matrix.indices.min()} to {matrix.indices.max()}"
            raise InputError.at(name, None, "columns of values", f"0 to {matrix.shape[1] - 1}", got)
        matrix.sum_duplicates()
        bad = np.flatnonzero(~np.isfinite(matrix.data))
        if len(bad):
            row = int(np.searchsorted(matrix.indptr, bad[0], side="right")) - 1
            _refuse(name, first_row + row, int(matrix.indices[bad[0]]), matrix.data[bad[0]])
        return matrix, "csr", int(matrix.shape[1])
    dense = np.ascontiguousarray(array, dtype)
    step = max(1, _PIECE // dense.shape[1])
    for start in range(0, len(dense), step):
        bad = np.flatnonzero(~np.isfinite(dense[start : start + step]))
        if len(bad):
            row, column = divmod(int(bad[0]), dense.shape[1])
            _refuse(name, first_row + start + row, column, dense[start + row, column])
    return dense, "dense", int(dense.shape[1])


def _checked_symbols(array: np.ndarray, name: str, n_symbols: int | None, first_row: int) -> np.ndarray:
    if n_symbols is not None and not 1 <= n_symbols <= MAX_SYMBOLS:
        raise UsageError(f"n_symbols: expected 1 to {MAX_SYMBOLS}, got {n_symbols}")
    below = MAX_SYMBOLS if n_symbols is None else n_symbols
    bad = np.flatnonzero((array < 0) | (array >= below))
    if len(bad):
        what = f"symbol of row {first_row + int(bad[0])}"
        raise InputError.at(name, None, what, f"0 to {below - 1}", str(array[bad[0]]))
    return array.astype(np.int32)


def _refuse(name: str, row: int, column: int, value: Any) -> None:
    raise InputError.at(name, None, f"value in row {row}, column {column}", "a finite number", str(value))
