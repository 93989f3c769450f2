"""Documents in memory: blocks, and the matrices they consist of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csr_array

from distmom.errors import InputError, UsageError

#: largest allowed value of a word in a document
MAX_VALUE = 2**31 - 1


@dataclass(frozen=True)
class Block:
    """Consecutive or selected documents in memory.

    Attributes
    ----------
    words : csr_array of shape (n_documents, n_words), int32 or float32
        Counts (int32) or weights (float32); columns strictly increasing within a row, no stored zeros.
    labels : csr_array of shape (n_documents, n_labels), uint8
        Ones; columns strictly increasing within a row.
    first : int
        Position of the first row in the corpus.
    weights : ndarray of shape (n_documents,), float64, or None
        Weight of each document; None (the default) means 1 for all.
    whole : csr_array or None
        All words of the documents if ``words`` holds only a selection of them (see `of_words`), else None.
    """

    words: csr_array
    labels: csr_array
    first: int
    weights: np.ndarray | None = None
    whole: csr_array | None = None

    @property
    def n_documents(self) -> int:
        """Number of rows."""
        return int(self.words.shape[0])

    def take(self, rows: slice | np.ndarray) -> Block:
        """Return selected rows, in the given order.

        Parameters
        ----------
        rows : slice, bool ndarray of shape (n_documents,) or int ndarray
        """
        taken = np.arange(self.n_documents)[rows]
        first = self.first + (int(taken[0]) if len(taken) else 0)
        weights = None if self.weights is None else self.weights[rows]
        whole = None if self.whole is None else self.whole[rows]
        return Block(self.words[rows], self.labels[rows], first, weights, whole)

    def of_words(self, numbers: np.ndarray) -> Block:
        """Return the same documents with a selection of their words, renumbered.

        Parameters
        ----------
        numbers : ndarray of shape (n_words,), int32
            New number of every word, -1 for omitted words; increasing over the others.
        """
        some = renumbered(self.words, numbers, int(numbers.max(initial=-1)) + 1)
        return Block(some, self.labels, self.first, self.weights, self.words)


@dataclass(frozen=True)
class RowBlock:
    """Rows in memory; each unit has one or more: the views of a document, or the steps of a sequence.

    Attributes
    ----------
    rows : ndarray or csr_array of shape (n_rows, n_features), float64, or ndarray of shape (n_rows,), int32
        Finite values of either sign, or symbols: the first layer of the corpus.
    starts : ndarray of shape (n_documents + 1,), int64
        Unit i has the rows ``starts[i] : starts[i + 1]``, at least one. Rows before ``starts[0]`` are context:
        the end of the part of the first unit that is in an earlier shard.
    first : int
        Position of the first unit in the corpus.
    weights : ndarray of shape (n_documents,), float64, or None
        Weight of each unit; None (the default) means 1 for all.
    continued : bool, default False
        Whether the first unit began in an earlier shard.
    continues : bool, default False
        Whether the last unit continues in the next shard.
    others : dict of str to ndarray or csr_array
        Further layers along rows, by name; none by default.
    of_units : dict of str to ndarray or csr_array
        Layers along units, by name; none by default.
    """

    rows: Any
    starts: np.ndarray
    first: int
    weights: np.ndarray | None = None
    continued: bool = False
    continues: bool = False
    others: dict[str, Any] = field(default_factory=dict)
    of_units: dict[str, Any] = field(default_factory=dict)

    @property
    def n_documents(self) -> int:
        """Number of units."""
        return len(self.starts) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Number of rows of each unit, without context, of shape (n_documents,), int64."""
        return np.asarray(np.diff(self.starts))

    @property
    def context(self) -> int:
        """Number of rows of context."""
        return int(self.starts[0])

    def with_context(self, n_rows: int) -> RowBlock:
        """Return the block with at most ``n_rows`` rows of context."""
        surplus = self.context - n_rows
        if surplus <= 0:
            return self
        others = {name: layer[surplus:] for name, layer in self.others.items()}
        return replace(self, rows=self.rows[surplus:], starts=self.starts - surplus, others=others)

    def take(self, documents: slice | np.ndarray) -> RowBlock:
        """Return selected units, in the given order; context is kept with the first unit where that comes first.

        Parameters
        ----------
        documents : slice, bool ndarray of shape (n_documents,) or int ndarray
        """
        taken = np.arange(self.n_documents)[documents]
        context = self.context if len(taken) and taken[0] == 0 else 0
        sizes = self.sizes[taken]
        starts = context + np.concatenate([[0], np.cumsum(sizes)])
        first = self.first + (int(taken[0]) if len(taken) else 0)
        weights = None if self.weights is None else self.weights[taken]
        rows: slice | np.ndarray
        if len(taken) and bool(np.all(np.diff(taken) == 1)):
            # Contiguous rows need no copy.
            rows = slice(int(self.starts[taken[0]]) - context, int(self.starts[taken[-1] + 1]))
        else:
            own = np.repeat(self.starts[taken] - starts[:-1], sizes) + np.arange(context, starts[-1])
            rows = np.concatenate([np.arange(context), own])
        return RowBlock(
            self.rows[rows],
            starts,
            first,
            weights,
            self.continued and bool(len(taken)) and taken[0] == 0,
            self.continues and bool(len(taken)) and taken[-1] == self.n_documents - 1,
            {name: layer[rows] for name, layer in self.others.items()},
            {name: layer[taken] for name, layer in self.of_units.items()},
        )

    def of_words(self, numbers: np.ndarray) -> RowBlock:
        """Return the same units with a selection of their features.

        Parameters
        ----------
        numbers : ndarray of shape (n_features,), int32
            New number of every feature, increasing; -1 for omitted features.
        """
        return replace(self, rows=self.rows[:, np.flatnonzero(numbers >= 0)])


def word_matrix(X: Any, name: str = "X") -> csr_array:
    """Convert a matrix of words to the form used in `Block`.

    Parameters
    ----------
    X : array_like or sparse of shape (n_documents, n_words)
        Finite values from 0 to 2**31 - 1.
    name : str, default="X"
        Name of the matrix in error messages.

    Returns
    -------
    csr_array of shape (n_documents, n_words)
        int32 if all values are whole numbers, else float32.

    Raises
    ------
    InputError
        If a value is negative, not finite or too large; the message gives its row and column.
    """
    matrix = _canonical(X, name)
    integral = matrix.dtype.kind in "iub" or bool(np.all(matrix.data == np.trunc(matrix.data)))
    matrix = matrix.astype(np.int32 if integral else np.float32)
    # A small weight may underflow to zero in float32.
    matrix.eliminate_zeros()
    return matrix


def label_matrix(Y: Any, n_documents: int, name: str = "Y") -> csr_array:
    """Convert a matrix of labels to the form used in `Block`.

    Parameters
    ----------
    Y : array_like or sparse of shape (n_documents, n_labels), or None
        Every nonzero entry is a label; None means that there are no labels.
    n_documents : int
        Expected number of rows.
    name : str, default="Y"
        Name of the matrix in error messages.

    Returns
    -------
    csr_array of shape (n_documents, n_labels), uint8

    Raises
    ------
    InputError
        If the number of rows is wrong, or a value is negative, not finite or too large.
    """
    if Y is None:
        return csr_array((n_documents, 0), dtype=np.uint8)
    matrix = _canonical(Y, name)
    if matrix.shape[0] != n_documents:
        raise InputError.at(name, None, "number of rows", f"{n_documents} as in X", str(matrix.shape[0]))
    matrix = matrix.astype(np.uint8)
    matrix.data[:] = 1
    return matrix


def csr_from_parts(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> csr_array:
    """Build a CSR matrix from its arrays, with 32-bit indices where they suffice.

    SciPy would otherwise widen the column indices to the type of the row pointers, doubling memory traffic.
    """
    if len(data) < 2**31 and max(shape) < 2**31:
        indices = indices.astype(np.int32, copy=False)
        indptr = indptr.astype(np.int32, copy=False)
    return csr_array((data, indices, indptr), shape=shape)


def renumbered(matrix: csr_array, numbers: np.ndarray, n_columns: int) -> csr_array:
    """Renumber the columns of a matrix, dropping those numbered -1; entries keep their order.

    Parameters
    ----------
    matrix : csr_array of shape (n, d)
    numbers : ndarray of shape (d,), int32
    n_columns : int
    """
    columns = numbers[matrix.indices]
    kept = columns >= 0
    indptr = np.concatenate([[0], np.cumsum(kept)])[matrix.indptr]
    return csr_from_parts(matrix.data[kept], columns[kept], indptr, (matrix.shape[0], n_columns))


def refuse_lazy(values: Any, name: str) -> None:
    """Raise a UsageError for a lazy table of Polars, which has no rows yet."""
    if hasattr(values, "collect_schema") and not hasattr(values, "__array__"):
        raise UsageError(
            f"{name}: expected a table in memory, got a {type(values).__name__}: use its collect()"
        )


def refuse_masked(values: Any, name: str) -> None:
    """Raise an InputError if some values of an array are masked, and a UsageError for a lazy table."""
    refuse_lazy(values, name)
    # A table may have a column of the name by which NumPy finds masks.
    if not hasattr(values, "columns") and np.ma.is_masked(values):
        raise InputError.at(
            name, None, "values", "no masked ones", f"{int(np.ma.getmaskarray(values).sum())}"
        )


def plain_values(values: Any) -> Any:
    """Return a table of pandas with nullable columns of numbers as an array; anything else as it is.

    NumPy makes Python objects of such columns (``Int64``, ``boolean`` or those of Arrow). A missing value is NaN.
    """
    given = list(getattr(values, "dtypes", ())) if hasattr(values, "columns") else []
    types = [getattr(each, "numpy_dtype", each) for each in given]
    if types == given or any(getattr(each, "kind", "O") not in "biuf" for each in types):
        return values
    if np.asarray(values.isna()).any():
        return values.to_numpy(dtype=np.float64, na_value=np.nan)
    return values.to_numpy(dtype=np.result_type(*types))


def sparse_type(array: np.ndarray) -> np.ndarray:
    """Return an array in a type of sparse matrices: SciPy has neither half precision nor foreign byte orders."""
    half = array.dtype.kind == "f" and array.dtype.itemsize == 2
    return array.astype(np.float32 if half else array.dtype.newbyteorder("="), copy=False)


def _canonical(X: Any, name: str) -> csr_array:
    refuse_masked(X, name)
    X = plain_values(X)
    matrix = csr_array(X if sparse.issparse(X) else sparse_type(np.atleast_2d(np.asarray(X))), copy=True)
    if matrix.dtype.kind not in "iubf":
        raise InputError.at(name, None, "type of the values", "numbers", str(matrix.dtype))
    if matrix.dtype.kind == "b":
        matrix = matrix.astype(np.uint8)
    _check_values(matrix, name)
    if matrix.dtype.kind != "f":
        # Sums of duplicates must not overflow.
        matrix = matrix.astype(np.int64)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    _check_values(matrix, name)
    return matrix


def _check_values(matrix: csr_array, name: str) -> None:
    bad = ~((matrix.data >= 0) & (matrix.data <= MAX_VALUE))
    if bad.any():
        at = int(np.argmax(bad))
        row = int(np.searchsorted(matrix.indptr, at, side="right")) - 1
        raise InputError.at(
            name,
            None,
            f"value in row {row}, column {int(matrix.indices[at])}",
            f"a finite number from 0 to {MAX_VALUE}",
            str(matrix.data[at]),
        )
