"""Passes over rows whose columns are three views, independent given the component of a row.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 3.3 and theorem 3.6. `MultiViewColumnsPass` adds up every column and its squares. With x_t the columns of
view t less their means, `MultiViewSketchPass` adds up ``sum_{s != t} c_st x_t (x_s' B_s)`` for every view, and
`MultiViewMomentsPass` the moments of ``z_t = B_t' x_t``: pairs of two views and triples of all three. Products of
a view with itself are not needed, and no sum has more entries than r per column, or r^3.

Rows are dense or sparse: means are subtracted from products and not from rows. Rows are processed in pieces that
stay in the cache.

Views may be lifted, where they have fewer columns than there are components: the columns of a view, centred and
scaled, are followed by all their products of up to a degree. Any function of a view is independent of the other
views given the component, so that nothing else changes. Products are formed for a piece of rows at a time.
Columns of a view need not be side by side: passes with an order permute the columns of a piece first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
from scipy import sparse

from distmom.corpus import RowBlock
from distmom.engine.passes import WHOLE_SHARD, Pass, Rows
from distmom.engine.stored.arrays import Columns
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import (
    aligned,
    dense_rows,
    mass_of,
    piece_rows,
    total_weight,
    view_slices,
    weights_of,
)
from distmom.moments.kernels import BLOCK_ROWS, TENSOR_BLOCK
from distmom.moments.sketching import DenseSketchPass, ProjectedPass
from distmom.moments.three_views import N_GROUPS, PAIRS

#: c_st of the second of the two views that a sketch multiplies a view with, in the order of the views; that of the
#: first is 1. With equal factors, products with two views of the same means may cancel each other: orthogonal
#: matrices M and N whose determinants differ in sign have a singular sum M + N, but no singular M + N / 2.
_SHARE = 0.5
#: number of values of a piece of rows with products of columns
_PIECE_VALUES = 1 << 20
#: smallest number of rows of such a piece
_LEAST_ROWS = 32


def lifted_widths(widths: tuple[int, ...], degree: int) -> tuple[int, ...]:
    """Return the numbers of columns of views with the products of their columns of up to a degree."""
    return tuple(comb(width + degree, degree) - 1 for width in widths)


def own_columns(widths: tuple[int, ...], degree: int) -> np.ndarray:
    """Return the positions of the columns themselves among the columns of lifted views, (sum of the widths,)."""
    lifted = view_slices(lifted_widths(widths, degree))
    return np.concatenate(
        [np.arange(cut.start, cut.start + width) for cut, width in zip(lifted, widths, strict=True)]
    )


def with_products(z: np.ndarray, degree: int) -> np.ndarray:
    """Return the columns of a matrix followed by all their products of degrees two to ``degree``.

    Products of a degree are in the order of `itertools.combinations_with_replacement`.
    """
    n, d = z.shape
    out = np.empty((n, *lifted_widths((d,), degree)))
    out[:, :d] = z
    # Products of a degree without the columns before j are those from starts[j] on.
    starts, stop = list(range(d)), d
    for _ in range(degree - 1):
        end, later = stop, []
        for j in range(d):
            later.append(stop)
            tail = out[:, starts[j] : end]
            np.multiply(z[:, j, None], tail, out=out[:, stop : stop + tail.shape[1]])
            stop += tail.shape[1]
        starts = later
    return out


@dataclass(frozen=True)
class ViewsPass(Pass):
    """Base class of passes over rows whose columns are views, lifted or as they are.

    Attributes
    ----------
    n_features : int
        Number of columns of all views, with their products.
    widths : tuple of int
        Numbers of columns of the views in the rows.
    degree : int
        Largest degree of products of the columns of a view; 1 (default) for the columns alone.
    units : ndarray of shape (sum of the widths, 2), optional
        Mean of every column of the views, and the factor that scales it: rows are centred and scaled first, as
        products require. None by default.
    order : ndarray of shape (n_columns,), int64, optional
        Columns of the rows in the order of the views; by default, views are side by side.
    """

    widths: tuple[int, ...] = ()
    degree: int = 1
    units: Any = None
    order: Any = None

    block_rows = WHOLE_SHARD

    @property
    def piece_rows(self) -> int:
        """Number of rows of a piece."""
        if self.degree == 1:
            return piece_rows(self.n_features)
        return max(_LEAST_ROWS, min(BLOCK_ROWS, _PIECE_VALUES // self.n_features))

    @property
    def n_copies(self) -> int:
        """Number of copies of a piece, in other units or another order, that are in memory together."""
        return 2 if self.order is None else 3

    @property
    def cuts(self) -> list[slice]:
        """Columns of the views, with their products."""
        return view_slices(lifted_widths(self.widths, self.degree))

    def pieces(self, X: Any, step: int) -> Iterator[tuple[slice, list[Any]]]:
        """Yield rows in pieces: their positions, and their views with the products of columns."""
        for start in range(0, X.shape[0], step):
            rows = slice(start, min(start + step, X.shape[0]))
            part = aligned(X if rows == slice(0, X.shape[0]) else X[rows])
            if self.order is not None:
                part = part[:, np.asarray(self.order)]
            views = [part[:, cut] for cut in view_slices(self.widths)]
            yield rows, views if self.units is None else self._lifted(views)

    def _lifted(self, views: list[Any]) -> list[Any]:
        units, found = np.asarray(self.units), []
        for x, cut in zip(views, view_slices(self.widths), strict=True):
            dense = x.toarray() if sparse.issparse(x) else x
            z = dense - units[cut, 0]
            z *= units[cut, 1]
            found.append(z if self.degree == 1 else with_products(z, self.degree))
        return found


@dataclass(frozen=True)
class MultiViewColumnsPass(ViewsPass):
    """Add up the values of every column, or of every column and product of columns, and their squares.

    Notes
    -----
    Fields as in `ViewsPass`. Sums: ``columns`` (n_features, 2), tall, and ``mass`` ().
    """

    @property
    def name(self) -> str:
        return "columns" if self.degree == 1 else "products"

    def working_bytes(self, n_rows: int) -> int:
        # A piece, the one before, and squares or rows in another order.
        return 8 * (self.n_copies + 1) * min(n_rows, self.piece_rows) * self.n_features

    def specs(self) -> dict[str, SumSpec]:
        return {"columns": SumSpec((self.n_features, 2), tall="features"), "mass": SumSpec(())}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        X, weights = dense_rows(block)
        sums["mass"] += mass_of(X, weights)
        for piece, views in self.pieces(X, self.piece_rows):
            own = weights_of(weights, piece)
            for x, cut in zip(views, self.cuts, strict=True):
                sums["columns"].single[cut, 0] += x.T @ own
                sums["columns"].single[cut, 1] += _squares(x).T @ own
        sums["columns"].settle()
        return None


@dataclass(frozen=True)
class MultiViewSketchPass(DenseSketchPass, ViewsPass):
    """Multiply the centred cross moments of three views by a test matrix or a basis.

    Attributes
    ----------
    averages : ndarray of shape (n_features, 2)
        Mean of every column, and the factor that scales it: the rows of the test matrix are multiplied by it.

    Notes
    -----
    Other fields as in `ViewsPass`.
    """

    averages: Any = None

    def working_bytes(self, n_rows: int) -> int:
        n = min(n_rows, self.piece_rows)
        return 8 * n * (self.n_copies * self.n_features + (2 * N_GROUPS + 1) * self.n_columns)

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        sums["mass"] += total_weight(block)
        averages, matrix = np.asarray(self.averages), self.matrix()
        if self.basis is None:
            matrix *= averages[:, 1:]
        cuts, (X, weights) = self.cuts, dense_rows(block)
        means = [averages[cut, 0] @ matrix[cut] for cut in cuts]
        for piece, views in self.pieces(X, self.piece_rows):
            own, products = None if weights is None else weights[piece], []
            for x, mean, cut in zip(views, means, cuts, strict=True):
                product = np.asarray(x @ matrix[cut]) - mean
                products.append(product if own is None else product * own[:, None])
            for t, (x, cut) in enumerate(zip(views, cuts, strict=True)):
                a, b = (product for s, product in enumerate(products) if s != t)
                total = a + _SHARE * b
                sums["sketch"].single[cut] += x.T @ total - np.outer(averages[cut, 0], total.sum(axis=0))
        sums["sketch"].settle()
        return None


@dataclass(frozen=True)
class MultiViewMomentsPass(ProjectedPass, ViewsPass):
    """Add up the moments of three centred views in bases of their ranges.

    Attributes
    ----------
    averages : ndarray of shape (n_features, 2)
        The first column is subtracted from every row.
    basis : matrix of shape (n_features, r), float64
        The rows of view t are B_t; an array, or slabs of columns.
    rank : int
        r.
    with_own : bool
        Whether moments of each view with itself are added up, too; False by default.
    third : bool
        Whether third moments are added up; True by default.

    Notes
    -----
    Other fields as in `ViewsPass`. Sums, as in `distmom.moments.documents.product.GroupMomentsPass`:
    ``means`` (3, r), ``pairs`` (3, r, r) in the order of `PAIRS`, with third moments ``triples`` (r, r, r), and
    ``mass`` (); and with moments of each view with itself ``own`` (3, r, r).
    """

    averages: Any = None
    basis: Any = None
    rank: int = 0
    with_own: bool = False
    third: bool = True

    @property
    def name(self) -> str:
        return "moments" if self.third else "pairs"

    def working_bytes(self, n_rows: int) -> int:
        n, r = min(n_rows, BLOCK_ROWS), self.rank
        products = n * TENSOR_BLOCK**2 + TENSOR_BLOCK**2 * r if self.third else r**2
        return self.projected_bytes(n) + 8 * (2 * n * r + products)

    def projected_bytes(self, n_rows: int) -> int:
        """Return the bytes of the views of some rows, where they are sparse, and of what they are projected to."""
        # Those of the rows before are kept until these are complete; a product of a view is formed in addition.
        own = n_rows * (sum(self.widths) + 2 * (N_GROUPS + 1) * self.rank)
        if self.units is not None:
            own += self.n_copies * min(n_rows, self.piece_rows) * self.n_features
        return 8 * own

    @property
    def finish_bytes(self) -> int:
        return 8 * 3 * (self.rank**3 if self.third else len(PAIRS) * self.rank**2)

    def specs(self) -> dict[str, SumSpec]:
        r = self.rank
        return {
            "means": SumSpec((N_GROUPS, r)),
            "pairs": SumSpec((len(PAIRS), r, r)),
            "mass": SumSpec(()),
            **({"triples": SumSpec((r, r, r))} if self.third else {}),
            **({"own": SumSpec((N_GROUPS, r, r))} if self.with_own else {}),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        X, weights = dense_rows(block)
        sums["mass"] += mass_of(X, weights)
        for start in range(0, X.shape[0], BLOCK_ROWS):
            rows_of = slice(start, min(start + BLOCK_ROWS, X.shape[0]))
            first, second, third = self.projected(aligned(X[rows_of]))
            own = weights_of(weights, rows_of)
            for t, view in enumerate((first, second, third)):
                sums["means"][t] += own @ view
                if self.with_own:
                    sums["own"][t] += view.T @ (view * own[:, None])
            weighted = third * own[:, None]
            sums["pairs"][0] += first.T @ (second * own[:, None])
            sums["pairs"][1] += first.T @ weighted
            sums["pairs"][2] += second.T @ weighted
            if self.third:
                add_triples(sums["triples"], first, second, weighted)
        return None

    def projected(self, X: Any) -> list[np.ndarray]:
        """Return ``B_t' x_t`` of rows for every view; B may be in slabs of columns."""
        origin, cuts = np.asarray(self.averages)[:, 0], self.cuts
        step = BLOCK_ROWS if self.units is None else self.piece_rows
        found, start = [np.empty((X.shape[0], self.rank)) for _ in cuts], 0
        for slab in self.basis.each() if isinstance(self.basis, Columns) else (self.basis,):
            columns = slice(start, start + slab.shape[1])
            parts = [np.asarray(slab[cut]) for cut in cuts]
            means = [origin[cut] @ part for cut, part in zip(cuts, parts, strict=True)]
            for rows, views in self.pieces(X, step):
                for z, x, part, mean in zip(found, views, parts, means, strict=True):
                    z[rows, columns] = x @ part - mean
            start = columns.stop
        return found


def squared_distances(X: Any, center: np.ndarray, precisions: np.ndarray) -> np.ndarray:
    """Return ``sum_j p_j (x_j - c_j)^2`` of dense or sparse rows, (n,) float64, for precisions p."""
    X = X.astype(np.float64)
    scaled = precisions * center
    return np.asarray(_squares(X) @ precisions - 2.0 * (X @ scaled) + center @ scaled)


def add_triples(triples: np.ndarray, first: np.ndarray, second: np.ndarray, third: np.ndarray) -> None:
    """Add the products of three matrices of rows (n, r) in place."""
    r = len(triples)
    blocks = [slice(a, min(a + TENSOR_BLOCK, r)) for a in range(0, r, TENSOR_BLOCK)]
    for a in blocks:
        for b in blocks:
            products = first[:, a, None] * second[:, None, b]
            cross = products.reshape(len(first), -1).T @ third
            triples[a, b] += cross.reshape(*products.shape[1:], r)


def _squares(x: Any) -> Any:
    # Where squares overflow, the fit is refused when their sum is known.
    with np.errstate(over="ignore"):
        return x.power(2) if sparse.issparse(x) else np.square(x)
