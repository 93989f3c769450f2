"""Documents in memory: a block of them, and the matrices it is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csr_array

from distmom.errors import InputError

#: largest value of a word in a document
MAX_VALUE = 2**31 - 1


@dataclass(frozen=True)
class Block:
    """Consecutive or selected documents in memory.

    Attributes
    ----------
    words : csr_array of shape (n_documents, n_words), int32 or float32
        Counts (int32) or weights (float32); columns increasing within a row, none twice, no stored zero.
    labels : csr_array of shape (n_documents, n_labels), uint8
        Ones; columns increasing within a row, none twice.
    first : int
        Position in the corpus of the first row.
    weights : ndarray of shape (n_documents,), float64, or None
        How often each document counts; None means once.
    whole : csr_array or None
        All words of the documents, where ``words`` are only some of them (see `of_words`).
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
        """Return some of the rows, in order.

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
        """Return the same documents with some of their words, under other numbers.

        Parameters
        ----------
        numbers : ndarray of shape (n_words,), int32
            New number of every word, -1 for those that are left out; rising over those that are not.
        """
        some = renumbered(self.words, numbers, int(numbers.max(initial=-1)) + 1)
        return Block(some, self.labels, self.first, self.weights, self.words)


@dataclass(frozen=True)
class RowBlock:
    """Real-valued rows in memory, one or several of them a document: its views, or the steps of a sequence.

    Attributes
    ----------
    rows : ndarray or csr_array of shape (n_rows, n_features), float64
        Finite values of either sign.
    starts : ndarray of shape (n_documents + 1,), int64
        Document i has the rows ``starts[i] : starts[i + 1]``, at least one.
    first : int
        Position in the corpus of the first document.
    weights : ndarray of shape (n_documents,), float64, or None
        How often each document counts; None means once.
    """

    rows: Any
    starts: np.ndarray
    first: int
    weights: np.ndarray | None = None

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        return len(self.starts) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Rows of every document, (n_documents,) int64."""
        return np.asarray(np.diff(self.starts))

    def take(self, documents: slice | np.ndarray) -> RowBlock:
        """Return some of the documents, in order.

        Parameters
        ----------
        documents : slice, bool ndarray of shape (n_documents,) or int ndarray
        """
        taken = np.arange(self.n_documents)[documents]
        sizes = self.sizes[taken]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        first = self.first + (int(taken[0]) if len(taken) else 0)
        weights = None if self.weights is None else self.weights[taken]
        rows: slice | np.ndarray = np.repeat(self.starts[taken] - starts[:-1], sizes) + np.arange(starts[-1])
        if len(taken) and bool(np.all(np.diff(taken) == 1)):
            # Neighbours need no copy.
            rows = slice(int(self.starts[taken[0]]), int(self.starts[taken[-1] + 1]))
        return RowBlock(self.rows[rows], starts, first, weights)

    def of_words(self, numbers: np.ndarray) -> RowBlock:
        """Return the same documents with some of their features.

        Parameters
        ----------
        numbers : ndarray of shape (n_features,), int32
            New number of every feature, rising, -1 for those that are left out.
        """
        return replace(self, rows=self.rows[:, np.flatnonzero(numbers >= 0)])


def word_matrix(X: Any, name: str = "X") -> csr_array:
    """Return the words of documents in the form that a `Block` has.

    Parameters
    ----------
    X : array_like or sparse of shape (n_documents, n_words)
        Finite values from 0 to 2**31 - 1.
    name : str
        What errors call the matrix.

    Raises
    ------
    InputError
        If a value is not finite, negative or too large, with the row and column of the first one.
    """
    matrix = _canonical(X, name)
    integral = matrix.dtype.kind in "iub" or bool(np.all(matrix.data == np.trunc(matrix.data)))
    matrix = matrix.astype(np.int32 if integral else np.float32)
    # A weight may be too small for its type.
    matrix.eliminate_zeros()
    return matrix


def label_matrix(Y: Any, n_documents: int, name: str = "Y") -> csr_array:
    """Return the labels of documents in the form that a `Block` has.

    Parameters
    ----------
    Y : array_like or sparse of shape (n_documents, n_labels), or None
        Anything other than zero is a label; None means that there are no labels.
    n_documents : int
        Number of rows expected.
    name : str
        What errors call the matrix.
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
    """Return a CSR matrix over given arrays, with 32-bit subscripts where they suffice.

    SciPy alone would widen the column numbers to the type of the row pointers, twice the memory to move.
    """
    if len(data) < 2**31 and max(shape) < 2**31:
        indices = indices.astype(np.int32, copy=False)
        indptr = indptr.astype(np.int32, copy=False)
    return csr_array((data, indices, indptr), shape=shape)


def renumbered(matrix: csr_array, numbers: np.ndarray, n_columns: int) -> csr_array:
    """Return a matrix with other column numbers, columns of number -1 left out; entries keep their order.

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


def _canonical(X: Any, name: str) -> csr_array:
    matrix = csr_array(X if sparse.issparse(X) else np.atleast_2d(np.asarray(X)), copy=True)
    if matrix.dtype.kind not in "iubf":
        raise InputError.at(name, None, "type of the values", "numbers", str(matrix.dtype))
    if matrix.dtype.kind == "b":
        matrix = matrix.astype(np.uint8)
    _check_values(matrix, name)
    if matrix.dtype.kind != "f":
        # Sums of duplicates must not wrap round.
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
