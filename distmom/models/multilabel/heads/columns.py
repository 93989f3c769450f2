"""Columns of sparse matrices: those of some labels, and those of more labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from distmom.engine import Csr, MixedRows

#: number of entries of a matrix that are processed at a time
PIECE_ENTRIES = 1 << 22


def columns_of(matrix: Csr, columns: np.ndarray) -> Csr:
    """Return some columns of a sparse matrix, numbered by their place among ``columns``.

    Entries keep their order within rows.
    """
    own = matrix.opened()
    places = np.full(own.n_columns, -1, np.int32)
    places[columns] = np.arange(len(columns), dtype=np.int32)
    n_entries = len(own.indices)
    ends = np.zeros(len(own.indptr), np.int64)
    indices: list[Any] = [np.zeros(0, np.int32)]
    data: list[Any] = [np.zeros(0, own.data.dtype)]
    n_kept = 0
    for start in range(0, n_entries, PIECE_ENTRIES):
        piece = slice(start, min(start + PIECE_ENTRIES, n_entries))
        found = places[own.indices[piece]]
        kept = found >= 0
        before = np.concatenate([[0], np.cumsum(kept)])
        first, last = np.searchsorted(own.indptr, [piece.start, piece.stop], side="right")
        ends[first:last] = n_kept + before[own.indptr[first:last] - piece.start]
        indices.append(found[kept])
        data.append(np.asarray(own.data[piece])[kept])
        n_kept += int(before[-1])
    return Csr(ends, np.concatenate(indices), np.concatenate(data), len(columns))


def mixed_columns(matrix: MixedRows, columns: np.ndarray) -> MixedRows:
    """Return some columns of a matrix with dense rows, numbered by their place among ``columns``."""
    dense = np.ascontiguousarray(np.asarray(matrix.dense)[:, columns])
    return MixedRows(columns_of(matrix.sparse, columns), matrix.dense_row, dense)


def with_zero_columns(matrix: MixedRows, n_columns: int) -> MixedRows:
    """Return a matrix with dense rows, followed by columns of zeros up to a number of columns."""
    dense = np.asarray(matrix.dense)
    wider = np.zeros((len(dense), n_columns), dense.dtype)
    wider[:, : dense.shape[1]] = dense
    return replace(matrix, sparse=replace(matrix.sparse, n_columns=n_columns), dense=wider)
