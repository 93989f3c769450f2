"""Recovery: tall matrices made of stored ones and of small coefficients, slab by slab of rows.

Decompositions work on small arrays in a basis Q. Models report matrices with one row per word or feature: Q times
some coefficients, often clipped at zero and normalised to word distributions. A `Recovery` describes such a matrix
without forming it; its masses, its normalised columns or all of its rows are computed on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, Partials, StoredColumns
from distmom.engine.stored.arrays import SLAB_ROWS, release_maps
from distmom.engine.sums.tall import PIECE_ROWS, RowFunction, Tall, read_rows

#: bytes up to which a tall matrix is processed, or kept in memory, whole
WHOLE_BYTES = 64 << 20

Slabs = dict[str, np.ndarray]


def column_edges(width: int, n_slabs: int) -> list[slice]:
    """Cut ``width`` columns into at most ``n_slabs`` slabs of equal width, the last one narrower."""
    step = -(-width // max(1, n_slabs))
    return [slice(a, min(a + step, width)) for a in range(0, width, step)]


def store_columns(
    engine: Engine,
    function: RowFunction,
    inputs: tuple[Tall, ...],
    n_rows: int,
    outputs: Mapping[str, tuple[int, int]],
    dtype: str,
    *arguments: Any,
    piece_rows: int = PIECE_ROWS,
) -> dict[str, StoredColumns]:
    """Store tall matrices that a function computes slab by slab of rows, each in slabs of columns.

    Parameters
    ----------
    engine : Engine
    function : callable
        As for `Maps.map_rows`; returns rows of whole outputs.
    inputs : tuple of Partials, StoredArray, StoredColumns or ndarray
    n_rows : int
    outputs : mapping of str to (int, int)
        Width and number of slabs of columns of every output.
    dtype : str
        Type of the outputs.
    *arguments
        Further small arguments of ``function``.
    piece_rows : int, default `PIECE_ROWS`
        Rows that are computed at a time.
    """
    edges = {name: column_edges(*how) for name, how in outputs.items()}
    files = {
        _slab(name, i): (c.stop - c.start, dtype) for name, cuts in edges.items() for i, c in enumerate(cuts)
    }
    stored, _ = engine.maps.map_rows(
        _cut_columns, inputs, n_rows, files, function, edges, arguments, piece_rows=piece_rows
    )
    return {
        name: StoredColumns(tuple(stored[_slab(name, i)] for i in range(len(cuts))))
        for name, cuts in edges.items()
    }


def _slab(name: str, index: int) -> str:
    return f"{name}-{index}"


def _cut_columns(rows: slice, *arguments: Any) -> tuple[Slabs, Slabs]:
    *slabs, function, edges, rest = arguments
    values, sums = function(rows, *slabs, *rest)
    return {
        _slab(name, i): values[name][:, c] for name, cuts in edges.items() for i, c in enumerate(cuts)
    }, sums


@dataclass(frozen=True)
class Masses:
    """Masses of the columns of a tall matrix.

    Attributes
    ----------
    positive, negative : ndarray of shape (width,)
        Sums of the positive entries, and of the magnitudes of the negative ones.
    """

    positive: np.ndarray
    negative: np.ndarray

    @property
    def negative_share(self) -> np.ndarray:
        """Share of every column's absolute mass that is negative."""
        return np.asarray(self.negative / np.maximum(self.positive + self.negative, 1e-300))


@dataclass(frozen=True)
class Recovery:
    """A tall matrix that is computed slab by slab of rows, and not formed yet.

    Attributes
    ----------
    inputs : tuple of Partials, StoredArray, StoredColumns or ndarray
        Tall matrices from which it is computed.
    n_rows, width : int
    rows_of : callable
        ``rows_of(*slabs, *arguments)`` returns rows of the matrix, float64, given the same rows of the inputs.
    arguments : tuple, default ()
        Small arguments of ``rows_of``.
    piece_rows : int, default `PIECE_ROWS`
        Rows that are computed at a time.
    """

    inputs: tuple[Tall, ...]
    n_rows: int
    width: int
    rows_of: Callable[..., np.ndarray]
    arguments: tuple[Any, ...] = ()
    piece_rows: int = PIECE_ROWS

    def masses(self, engine: Engine) -> Masses:
        """Add up the masses of the columns, on all workers."""
        found = engine.maps.map_rows(
            _masses, self.inputs, self.n_rows, {}, self.rows_of, self.arguments, piece_rows=self.piece_rows
        )[1]
        zero = np.zeros(self.width)
        return Masses(found.get("positive", zero), found.get("negative", zero))

    def largest(self, n: int) -> Recovery:
        """Return the matrix with all but the n largest entries of every column set to zero.

        Negative entries are always zero, and all entries that equal the n-th largest are kept.
        """
        best = np.zeros((n + 1, self.width))
        with one_blas_thread():
            for _, matrix in self._slabs():
                both = np.concatenate([best, matrix])
                best = np.partition(both, len(matrix), axis=0)[len(matrix) :]
        release_maps()
        # Between two entries, as a product of other rows at a time may round the n-th one otherwise.
        least = np.partition(best, 1, axis=0)[:2].mean(axis=0)
        return replace(self, rows_of=_from, arguments=(self.rows_of, least, self.arguments))

    def distributions(self, engine: Engine, dtype: str) -> tuple[StoredColumns, Masses]:
        """Clip negative entries, normalise columns to sum to one, and store them; also return their masses.

        Columns without a positive entry are zero.
        """
        masses = self.masses(engine)
        divisor = np.where(masses.positive > 0.0, masses.positive, 1.0)
        stored = store_columns(
            engine, _distributions, self.inputs, self.n_rows, {"it": (self.width, 1)}, dtype,
            self.rows_of, self.arguments, divisor, piece_rows=self.piece_rows,
        )  # fmt: skip
        return stored["it"], masses

    def whole(self) -> np.ndarray:
        """Return the matrix in memory, float64; the inputs are read slab by slab."""
        matrix = np.empty((self.n_rows, self.width))
        with one_blas_thread():
            for part, rows in self._slabs():
                matrix[part] = rows
        release_maps()
        return matrix

    def _slabs(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slabs of rows of the matrix."""
        for start in range(0, self.n_rows, SLAB_ROWS):
            part = slice(start, min(start + SLAB_ROWS, self.n_rows))
            slabs = [read_rows(item, part) for item in self.inputs]
            yield part, self.rows_of(*slabs, *self.arguments)


def product(basis: StoredColumns, n_rows: int, coefficients: np.ndarray) -> Recovery:
    """Return ``Q C`` for a stored basis Q (d, r) and coefficients C (r, k)."""
    return Recovery((basis,), n_rows, coefficients.shape[1], _product, (coefficients,))


def tall_sum(tall: Partials) -> Recovery:
    """Return a tall sum itself."""
    return Recovery((tall,), tall.n_rows, tall.width, _same)


def _product(q: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    return np.asarray(np.asarray(q, np.float64) @ coefficients)


def _from(*arguments: Any) -> np.ndarray:
    """Return rows whose entries below the least of their column, which is not negative, are zero."""
    *slabs, rows_of, least, rest = arguments
    matrix = rows_of(*slabs, *rest)
    return np.where(matrix >= least, np.maximum(matrix, 0.0), 0.0)


def _same(matrix: np.ndarray) -> np.ndarray:
    return matrix


def _masses(rows: slice, *arguments: Any) -> tuple[Slabs, Slabs]:
    *slabs, rows_of, rest = arguments
    matrix = rows_of(*slabs, *rest)
    return {}, {
        "positive": np.maximum(matrix, 0.0).sum(axis=0),
        "negative": -np.minimum(matrix, 0.0).sum(axis=0),
    }


def _distributions(rows: slice, *arguments: Any) -> tuple[Slabs, Slabs]:
    *slabs, rows_of, rest, divisor = arguments
    return {"it": np.maximum(rows_of(*slabs, *rest), 0.0) / divisor}, {}


def to_columns(stored: StoredColumns) -> np.ndarray:
    """Return a stored matrix as one array."""
    parts = stored.load().parts
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def in_memory(array: np.ndarray) -> np.ndarray:
    """Return a copy of a small memory map, and a large one as it is: its file may be unlinked, not truncated."""
    return array if array.nbytes > WHOLE_BYTES else np.array(array)
