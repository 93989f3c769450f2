"""Limits on the number of entries of a column of a sparse matrix whose rows are read piece by piece."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from distmom.compiled import compiled
from distmom.corpus.block import csr_from_parts


class ColumnLimit:
    """The magnitudes from which entries are kept, a limited number per column, or more if magnitudes are equal.

    The pieces of a matrix are first counted, then collected, then cut. Memory: four bytes per entry that is kept.

    Parameters
    ----------
    n_columns : int
    n_entries : int
        Largest number of entries that are kept in a column.
    """

    def __init__(self, n_columns: int, n_entries: int) -> None:
        self._most = n_entries
        self._counts = np.zeros(n_columns, np.int64)
        self._starts = self._filled = np.zeros(0, np.int64)
        self._heaps = np.zeros(0, np.float32)

    def count(self, columns: np.ndarray) -> None:
        """Count entries by their columns."""
        self._counts += np.bincount(columns, minlength=len(self._counts))

    def collect(self, columns: np.ndarray, values: np.ndarray) -> None:
        """Take the magnitudes of entries, after all entries have been counted."""
        if not len(self._starts):
            sizes = np.minimum(self._counts, self._most)
            self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
            self._filled = np.zeros(len(sizes), np.int64)
            self._heaps = np.zeros(int(self._starts[-1]), np.float32)
        _keep_largest(columns, values, self._starts, self._filled, self._heaps)

    def levels(self) -> np.ndarray:
        """Return the least magnitude that is kept of every column, (n_columns,) float32; 0 keeps all."""
        found = np.zeros(len(self._counts), np.float32)
        full = np.flatnonzero(self._counts > self._most)
        found[full] = self._heaps[self._starts[full]]
        return found


def drop_small_of_columns(matrix: csr_array, levels: np.ndarray, n_rows: int) -> csr_array:
    """Return the matrix without entries of the first rows whose magnitude is below the level of their column."""
    n_entries = int(matrix.indptr[max(0, min(n_rows, matrix.shape[0]))])
    kept = np.ones(len(matrix.data), bool)
    kept[:n_entries] = np.abs(matrix.data[:n_entries]) >= levels[matrix.indices[:n_entries]]
    ends = np.concatenate([[0], np.cumsum(kept)])
    return csr_from_parts(
        matrix.data[kept], matrix.indices[kept], ends[matrix.indptr].astype(np.int64), matrix.shape
    )


@compiled
def _keep_largest(
    columns: np.ndarray, values: np.ndarray, starts: np.ndarray, filled: np.ndarray, heaps: np.ndarray
) -> None:
    """Put magnitudes into the heap of their column, whose root is the smallest, if they are among the largest."""
    for p in range(columns.shape[0]):
        c = columns[p]
        heap = heaps[starts[c] : starts[c + 1]]
        size = np.abs(values[p])
        n = filled[c]
        if n < heap.shape[0]:
            filled[c] = n + 1
            while n > 0 and heap[(n - 1) // 2] > size:
                heap[n] = heap[(n - 1) // 2]
                n = (n - 1) // 2
            heap[n] = size
        elif size > heap[0]:
            n = 0
            while True:
                child = 2 * n + 1
                if child >= heap.shape[0]:
                    break
                if child + 1 < heap.shape[0] and heap[child + 1] < heap[child]:
                    child += 1
                if heap[child] >= size:
                    break
                heap[n] = heap[child]
                n = child
            heap[n] = size
