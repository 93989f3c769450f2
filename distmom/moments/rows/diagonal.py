"""Passes over dense rows whose columns are independent given the component of a row.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 3.3.1. Columns are centred and scaled to values z of about variance one, so that origins and units do not
matter. `ColumnMomentsPass` adds up all moments of z up to order three, where there are few columns: they contain
those of every partition of the columns into views. With more columns, the passes of
`distmom.moments.rows.multiview` add up moments of the views of one partition, and `ViewSquaresPass` adds up
``E[z_i^2 s_h]`` for every column i, with a score s_h of the other views whose mean is one in component h and zero
in all others. `ColumnSketchPass` and `ColumnProjectionPass` find a basis for all columns together, and add up
moments in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import WHOLE_SHARD, Pass, Rows
from distmom.engine.stored.arrays import Columns
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import (
    aligned,
    dense_rows,
    mass_of,
    piece_bytes,
    piece_rows,
    pieces,
    squared_norms,
    weights_of,
)
from distmom.moments.kernels import BLOCK_ROWS, TENSOR_BLOCK, add_third_moment, fill_symmetric
from distmom.moments.rows.gaussian import RowMomentsPass, RowSketchPass
from distmom.moments.rows.multiview import MultiViewMomentsPass
from distmom.moments.three_views import N_GROUPS
from distmom.moments.weighting import positive


def standardised(X: np.ndarray, units: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield rows with centred and scaled columns, some at a time; a piece is valid until the next one is taken.

    Parameters
    ----------
    X : ndarray of shape (n, d)
    units : ndarray of shape (d, 2)
        Mean of every column, and the factor that scales it.
    """
    mean, factors = np.ascontiguousarray(np.asarray(units).T)
    for rows, piece in pieces(X, mean):
        # Values of new rows may be out of the range of the fitted ones.
        with np.errstate(over="ignore"):
            piece *= factors
        yield rows, piece


@dataclass(frozen=True)
class ColumnMomentsPass(Pass):
    """Add up all moments of centred and scaled columns, of orders one to three.

    Attributes
    ----------
    units : ndarray of shape (n_features, 2)
        Mean of every column, and the factor that scales it.

    Notes
    -----
    Sums of ``z = (x - mean) * factor``: ``first`` (n_features,), ``second`` (n_features, n_features), ``third``
    (n_features, n_features, n_features) and ``mass`` (). ``sampled`` () counts the rows without weights: those of
    a sample rather than of an enumerated population.
    """

    units: Any = None

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        return "moments"

    @property
    def mapped_bytes(self) -> int:
        return 16 * self.n_features

    @property
    def finish_bytes(self) -> int:
        return 8 * 4 * self.n_features**3

    def working_bytes(self, n_rows: int) -> int:
        d, n = self.n_features, min(n_rows, piece_rows(self.n_features))
        return piece_bytes(n_rows, d) + 8 * (n * (3 * d + TENSOR_BLOCK**2) + TENSOR_BLOCK**2 * d)

    def specs(self) -> dict[str, SumSpec]:
        d = self.n_features
        return {
            "first": SumSpec((d,)),
            "second": SumSpec((d, d)),
            "third": SumSpec((d, d, d)),
            "mass": SumSpec(()),
            "sampled": SumSpec(()),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        X, weights = dense_rows(block)
        sums["mass"] += mass_of(X, weights)
        sums["sampled"] += len(X) if weights is None else 0
        for piece, z in standardised(X, self.units):
            own = None if weights is None else weights[piece]
            weighted = z if own is None else z * own[:, None]
            sums["first"] += weighted.sum(axis=0)
            sums["second"] += z.T @ weighted
            add_third_moment(sums["third"], z, z, own)
        return None


@dataclass(frozen=True)
class ColumnMoments:
    """Moments of columns of variance one.

    Attributes
    ----------
    second : ndarray of shape (d, d)
        Correlations of the columns.
    third : ndarray of shape (d, d, d)
    shifts, spreads : ndarray of shape (d,)
        Means and standard deviations of the values that the pass has added up; a constant column has spread zero,
        and is zero in the moments.
    n_sampled : int
        Number of rows that are a sample; 0 for an enumerated population.
    """

    second: np.ndarray
    third: np.ndarray
    shifts: np.ndarray
    spreads: np.ndarray
    n_sampled: int


#: variance of z up to which a column is constant: factors make the variance at least the square of what rounding
#: of values far from zero leaves, times 1e4
_CONSTANT = 1e-18


def spreads_of(first: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return the standard deviations of z from its mean and mean square, zero where they are rounding."""
    variances = squares - first**2
    return np.sqrt(np.where(variances > _CONSTANT, variances, 0.0))


def column_moments(sums: Sums) -> ColumnMoments:
    """Turn the sums of `ColumnMomentsPass` into central moments of columns of variance one."""
    mass = positive(sums["mass"])
    m = np.asarray(sums["first"]) / mass
    second = np.asarray(sums["second"]) / mass
    third = fill_symmetric(np.array(sums["third"])) / mass
    spreads = spreads_of(m, np.diag(second))
    # Means of z are rounding, of columns that are far from zero.
    pairs = np.multiply.outer(second - np.outer(m, m), m)
    third -= (
        pairs + pairs.transpose(0, 2, 1) + pairs.transpose(2, 0, 1) + np.multiply.outer(np.outer(m, m), m)
    )
    second = second - np.outer(m, m)
    inverse = np.where(spreads > 0.0, 1.0 / np.where(spreads > 0.0, spreads, 1.0), 0.0)
    second *= np.outer(inverse, inverse)
    third *= inverse[:, None, None] * np.outer(inverse, inverse)
    return ColumnMoments((second + second.T) / 2.0, third, m, spreads, int(sums["sampled"]))


@dataclass(frozen=True)
class ColumnSketchPass(RowSketchPass):
    """Multiply the second moment of centred and scaled columns by a test matrix or a basis.

    Attributes
    ----------
    units : ndarray of shape (n_features, 2)
        Mean of every column, and the factor that scales it.

    Notes
    -----
    Other fields and sums as those of `RowSketchPass`, of rows z.
    """

    units: Any = None

    def centred(self, block: RowBlock) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        X, weights = dense_rows(block)
        for piece, z in standardised(X, self.units):
            if self.origin is not None:
                z -= np.asarray(self.origin)[:, 0]
            yield z, None if weights is None else weights[piece]


@dataclass(frozen=True)
class ColumnProjectionPass(RowMomentsPass):
    """Add up the moments of centred and scaled columns in a basis, of orders one to three.

    Attributes
    ----------
    units : ndarray of shape (n_features, 2)
        Mean of every column, and the factor that scales it.

    Notes
    -----
    Other fields and sums as those of `RowMomentsPass`, of rows z; no rows are kept.
    """

    units: Any = None

    def projected(
        self, sums: Sums, block: RowBlock
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray | None]]:
        X, weights = dense_rows(block)
        sums["mass"] += mass_of(X, weights)
        sums["sampled"] += len(X) if weights is None else 0
        origin = np.asarray(self.origin)[:, 0]
        for start in range(0, len(X), BLOCK_ROWS):
            many = slice(start, min(start + BLOCK_ROWS, len(X)))
            Y, s, first = np.empty((many.stop - start, self.rank)), np.empty(many.stop - start), 0
            # A memory limit that required slabs has room for one of them at a time.
            for slab in self.basis.each() if isinstance(self.basis, Columns) else (self.basis,):
                cut = slice(first, first + slab.shape[1])
                for piece, z in standardised(X[many], self.units):
                    z -= origin
                    Y[piece, cut] = z @ slab
                    if first == 0:
                        s[piece] = squared_norms(z)
                    # Before the pieces for the next slab take their place.
                    del z
                first = cut.stop
            yield many, Y, s, None if weights is None else weights[many]


@dataclass(frozen=True)
class ViewSquaresPass(MultiViewMomentsPass):
    """Add up the products of the squares of columns with scores of the other two views.

    Attributes
    ----------
    coefficients : ndarray of shape (3, 3, r, k)
        ``coefficients[t, s]`` is the contribution of the coordinates of view s to the scores of view t, zero for
        ``s = t``.
    constants : ndarray of shape (k,)
        Added to all scores.
    n_components : int

    Notes
    -----
    Other fields as in `MultiViewMomentsPass`. Sums: ``squares`` (n_features, k) of ``z_i^2 s_h`` and ``first``
    (n_features, 1) of z, both tall; ``mass`` ().
    """

    coefficients: Any = None
    constants: Any = None
    n_components: int = 0

    @property
    def name(self) -> str:
        return "squares"

    @property
    def mapped_bytes(self) -> int:
        # The products of a piece of rows, without the sum.
        return 8 * self.n_features * (self.rank + self.n_components)

    @property
    def finish_bytes(self) -> int:
        return 0

    def working_bytes(self, n_rows: int) -> int:
        n = min(n_rows, BLOCK_ROWS)
        own = n * (N_GROUPS * self.rank + (N_GROUPS + 1) * self.n_components)
        return 8 * (own + (self.n_copies + 1) * min(n, self.piece_rows) * self.n_features)

    def specs(self) -> dict[str, SumSpec]:
        return {
            "squares": SumSpec((self.n_features, self.n_components), tall="features"),
            "first": SumSpec((self.n_features, 1), tall="features"),
            "mass": SumSpec(()),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        X, weights = dense_rows(block)
        sums["mass"] += mass_of(X, weights)
        coefficients, constants = np.asarray(self.coefficients), np.asarray(self.constants)
        for start in range(0, X.shape[0], BLOCK_ROWS):
            rows_of = slice(start, min(start + BLOCK_ROWS, X.shape[0]))
            part = aligned(X[rows_of])
            projected = self.projected(part)
            own = weights_of(weights, rows_of)
            scores = [
                sum((projected[s] @ coefficients[t, s] for s in range(N_GROUPS) if s != t), constants)
                * own[:, None]
                for t in range(N_GROUPS)
            ]
            for piece, views in self.pieces(part, self.piece_rows):
                for z, cut, score in zip(views, self.cuts, scores, strict=True):
                    sums["first"].single[cut, 0] += own[piece] @ z
                    sums["squares"].single[cut] += np.square(z).T @ score[piece]
        for name in ("squares", "first"):
            sums[name].settle()
        return None
