"""Sums of sparse matrices that are stored or in runs: each is a term, with factors of its rows and columns.

The rows of all terms are read and added slab by slab, in the order of the terms. Slabs have about the same number
of entries, even if few rows have most of them. The sums of slabs are written to files, and joined into one stored
matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.blas import map_on_cores, one_blas_thread
from distmom.clock import spend, taken
from distmom.corpus.block import csr_from_parts
from distmom.engine.directory.run_directory import RunDirectory
from distmom.engine.stored.arrays import StoredArray, release_maps
from distmom.engine.stored.held import HeldSum
from distmom.engine.stored.scratch import ScratchArray
from distmom.engine.stored.writer import ArrayWriter
from distmom.engine.sums.algebra import combine
from distmom.engine.sums.csr import Csr, MixedRows, drop_small, largest_of_rows, nearly_full
from distmom.engine.sums.limits import ColumnLimit, drop_small_of_columns
from distmom.engine.sums.sparse import Runs, SparsePart

#: number of entries of a slab of rows, over all terms
SLAB_ENTRIES = 1 << 22
#: number of entries of the sample from which the quantile of magnitudes is estimated
SAMPLE_ENTRIES = 1_000_000


@dataclass(frozen=True)
class Term:
    """A term of a sum of sparse matrices.

    Attributes
    ----------
    matrix : Runs or Csr
    factor : float, default 1.0
    rows : array of shape (n_rows,), optional
        Multiplies the rows; an array or a stored array; 1 by default.
    columns : array of shape (n_columns,), optional
        Multiplies the columns; 1 by default.
    """

    matrix: Runs | Csr
    factor: float = 1.0
    rows: Any = None
    columns: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        m = self.matrix
        return (m.n_rows if isinstance(m, Runs) else len(_opened(m.indptr)) - 1), m.n_columns


@dataclass(frozen=True)
class Pruning:
    """A rule for leaving out negligible entries of a sum.

    Attributes
    ----------
    share, quantile : float
        Entries of magnitude below this share of this quantile of magnitudes are dropped; ``quantile`` is 0.99
        by default.
    row_entries : int or None, default None
        Before that, only this many entries of largest magnitude are kept in every row; None keeps all.
    column_entries : int or None, default None
        At the end, only this many entries of largest magnitude are kept in every column; None keeps all.
    n_unlimited_rows : int, default 0
        Number of rows at the end to which no limit applies.
    total_entries : int or None, default None
        Without the two other limits, the longest rows keep so many entries of largest magnitude that the sum has
        at most this many; None keeps all. Rows are as long as those of all terms together.
    """

    share: float
    quantile: float = 0.99
    row_entries: int | None = None
    column_entries: int | None = None
    n_unlimited_rows: int = 0
    total_entries: int | None = None

    def for_rows(self, lengths: np.ndarray) -> Pruning:
        """Return the rule for rows with these numbers of entries: ``total_entries`` becomes a limit of rows."""
        if self.total_entries is None or self.row_entries is not None or self.column_entries is not None:
            return self
        if lengths.sum() <= self.total_entries:
            return self
        return replace(self, row_entries=_level(lengths, self.total_entries))


@dataclass(frozen=True)
class _Piece:
    """A slab of rows of a result, in files."""

    files: SparsePart
    lengths: np.ndarray
    sample: np.ndarray


def _level(lengths: np.ndarray, total: int) -> int:
    """Return the largest limit, at least one, with which rows of these lengths have at most ``total`` entries."""
    low, high = 1, int(lengths.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(lengths, middle).sum() <= total else (low, middle - 1)
    return low


def row_slabs(terms: Sequence[Term]) -> tuple[list[slice], np.ndarray]:
    """Cut the rows of a sum into slabs of about `SLAB_ENTRIES` entries; also return the entries of every row."""
    n_rows = terms[0].shape[0]
    ends = np.zeros(n_rows + 1, np.int64)
    for term in terms:
        for indptr in _row_ends(term.matrix):
            ends += indptr
    cuts = np.searchsorted(ends, np.arange(SLAB_ENTRIES, int(ends[-1]), SLAB_ENTRIES), side="left")
    edges = np.unique(np.concatenate([[0], cuts, [n_rows]]))
    return [slice(int(a), int(b)) for a, b in pairwise(edges)], np.diff(ends)


def _row_ends(matrix: Runs | Csr) -> Iterator[np.ndarray]:
    return matrix.row_ends() if isinstance(matrix, Runs) else iter([np.asarray(_opened(matrix.indptr))])


def add_slab(
    terms: Sequence[Term],
    slabs: Sequence[slice],
    directory: str,
    pruning: Pruning | None,
    stride: int,
    index: int,
) -> tuple[_Piece, dict[str, float]]:
    """Add one slab of rows of all terms and write it to files; also return the seconds spent."""
    with one_blas_thread():
        taken()
        with spend("merge"):
            total = _added(terms, slabs[index])
            if pruning is not None and pruning.row_entries is not None:
                n_limited = terms[0].shape[0] - pruning.n_unlimited_rows - slabs[index].start
                total = largest_of_rows(total, pruning.row_entries, max(0, n_limited))
        with spend("write"):
            files = SparsePart.write(directory, total)
        release_maps()
        piece = _Piece(files, np.diff(total.indptr), np.abs(total.data[::stride]))
        return piece, taken()


def square_slab(
    terms: Sequence[Term], slabs: Sequence[slice], index: int
) -> tuple[np.ndarray, dict[str, float]]:
    """Return the sums of squares of the columns of one slab of rows, and the seconds spent."""
    with one_blas_thread():
        taken()
        with spend("merge"):
            total = _added(terms, slabs[index])
        with spend("kernels"):
            values = total.data.astype(np.float64)
            squares = np.bincount(total.indices, values**2, minlength=terms[0].shape[1])
        release_maps()
        return squares, taken()


def _added(terms: Sequence[Term], rows: slice) -> csr_array:
    parts: list[csr_array] = []
    factors: list[np.ndarray | float] = []
    for term in terms:
        of_rows = 1.0 if term.rows is None else np.asarray(_opened(term.rows)[rows])
        for part in _read_rows(term.matrix, rows):
            if term.columns is not None:
                part.data = part.data * np.asarray(_opened(term.columns))[part.indices]
            parts.append(part)
            factors.append(term.factor * of_rows)
    if not parts:
        # There is no run if no document had an entry.
        return csr_array((rows.stop - rows.start, terms[0].shape[1]), dtype=np.float32)
    return combine(parts, factors)


def _read_rows(matrix: Runs | Csr, rows: slice) -> list[csr_array]:
    if isinstance(matrix, Runs):
        return matrix.read_rows(rows)
    own = matrix.opened()
    indptr = np.array(own.indptr[rows.start : rows.stop + 1])
    entries = slice(int(indptr[0]), int(indptr[-1]))
    shape = (rows.stop - rows.start, own.n_columns)
    return [
        csr_from_parts(np.array(own.data[entries]), np.array(own.indices[entries]), indptr - indptr[0], shape)
    ]


def _opened(array: Any) -> Any:
    return array.load() if isinstance(array, StoredArray) else array


def join_pieces(
    directory: RunDirectory, pieces: Sequence[_Piece], n_columns: int, pruning: Pruning | None, mixed: bool
) -> MixedRows:
    """Join the slabs of a result into one stored matrix without negligible entries; their files are recycled.

    With ``mixed``, nearly full rows become dense.
    """
    level = 0.0
    if pruning is not None:
        sample = np.concatenate([piece.sample for piece in pieces])
        level = pruning.share * float(np.quantile(sample, pruning.quantile)) if len(sample) else 0.0
    lengths: list[np.ndarray] = []
    full_rows = []
    before = np.concatenate([piece.lengths for piece in pieces])
    n_limited = len(before) - (0 if pruning is None else pruning.n_unlimited_rows)
    column_levels = None
    if pruning is not None and pruning.column_entries is not None:
        column_levels = _column_levels(pieces, n_columns, pruning.column_entries, n_limited)
    n_full = int(nearly_full(before, n_columns).sum()) if mixed else 0
    with (
        directory.writer("int32", int(before.sum())) as indices,
        directory.writer("float32", int(before.sum())) as data,
        directory.writer("float32", n_full * n_columns, n_columns) as dense,
    ):
        for piece in pieces:
            indptr = np.concatenate([[0], np.cumsum(piece.lengths)]).astype(np.int64)
            entries = partial(_read_first, n=int(indptr[-1]))
            values, columns = map_on_cores(entries, (piece.files.data, piece.files.indices))
            slab = csr_from_parts(values, columns, indptr, (len(piece.lengths), n_columns))
            if level > 0.0:
                slab = drop_small(slab, np.full(len(piece.lengths), level, np.float32))
            if column_levels is not None:
                n_left = n_limited - sum(map(len, lengths))
                slab = drop_small_of_columns(slab, column_levels, n_left)
            full = nearly_full(np.diff(slab.indptr), n_columns) & mixed
            if full.any():
                dense.append(slab[np.flatnonzero(full)].toarray())
                slab = drop_small(slab, np.where(full, np.inf, 0.0))
            full_rows.append(full)
            map_on_cores(_append, ((indices, slab.indices), (data, slab.data)))
            lengths.append(np.diff(slab.indptr))
            directory.partials.recycle(piece.files.files())
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    full = np.concatenate(full_rows)
    dense_row = np.where(full, np.cumsum(full) - 1, -1).astype(np.int32)
    sparse = Csr(directory.put(indptr), indices.stored, data.stored, n_columns)
    return MixedRows(sparse, directory.put(dense_row), dense.stored)


def _read_first(file: ScratchArray | HeldSum, n: int) -> np.ndarray:
    return file.read(0, n)


def _append(part: tuple[ArrayWriter, np.ndarray]) -> None:
    writer, values = part
    writer.append(values)


def _column_levels(
    pieces: Sequence[_Piece], n_columns: int, column_entries: int, n_limited: int
) -> np.ndarray:
    """Return the least magnitude that is kept of every column; rows from ``n_limited`` on are not limited."""
    limit, first, ends = ColumnLimit(n_columns, column_entries), 0, []
    for piece in pieces:
        ends.append(int(piece.lengths[: max(0, n_limited - first)].sum()))
        first += len(piece.lengths)
        limit.count(piece.files.indices.read(0, ends[-1]))
    for piece, end in zip(pieces, ends, strict=True):
        limit.collect(piece.files.indices.read(0, end), piece.files.data.read(0, end))
    return limit.levels()


def stored_terms(directory: RunDirectory, terms: Sequence[Term]) -> list[Term]:
    """Store the arrays of terms, so that tasks carry handles only."""

    def put(array: Any) -> Any:
        return directory.put(array) if isinstance(array, np.ndarray) else array

    return [
        replace(
            term,
            rows=put(term.rows),
            columns=put(term.columns),
            matrix=term.matrix
            if isinstance(term.matrix, Runs)
            else replace(
                term.matrix,
                indptr=put(term.matrix.indptr),
                indices=put(term.matrix.indices),
                data=put(term.matrix.data),
            ),
        )
        for term in terms
    ]
