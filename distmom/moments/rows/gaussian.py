"""Passes over dense rows: second moments, whole or times a matrix, and moments of orders one to three in a basis.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
theorems 3.2 and 3.3, for mixtures of spherical Gaussians. `RowSketchPass` multiplies the plain second moment by a
test matrix or a basis; `RowCovariancePass` adds up the whole second moment, which takes fewer passes where there
are few columns. `RowMomentsPass` adds up the moments of rows minus their mean, in a basis Q: with
``y = Q'(x - m)``, the sums of ``y``, ``y y'``, ``y (x) y (x) y``, ``y ||x - m||^2`` and ``||x - m||^2``. None of
these sums has more than r^3 entries.

Rows are processed in pieces that stay in the cache: each is centred once and then multiplied by BLAS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import WHOLE_SHARD, Pass, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import (
    dense_rows,
    mass_of,
    piece_bytes,
    pieces,
    project,
    squared_norms,
    total_weight,
)
from distmom.moments.kernels import BLOCK_ROWS, TENSOR_BLOCK, add_third_moment, fill_symmetric
from distmom.moments.sketching import DenseSketchPass, ProjectedPass
from distmom.moments.weighting import positive


@dataclass(frozen=True)
class RowSketchPass(DenseSketchPass):
    """Multiply the plain second moment of rows by a test matrix or a basis.

    Attributes
    ----------
    origin : ndarray of shape (n_features, 1), optional
        Subtracted from every row; zero by default.
    scale : ndarray of shape (n_features, 1), optional
        Factors of the columns in ``squares``; the sketch itself is not scaled. None (default) for one.

    Notes
    -----
    Sums in addition to those of `SketchPass`: ``squares`` (), the sum of the squared norms of the rows minus the
    origin, scaled, and without an origin ``mean`` (n_features, 1), tall, the sum of the rows.
    """

    origin: Any = None
    scale: Any = None

    block_rows = WHOLE_SHARD

    def working_bytes(self, n_rows: int) -> int:
        n_pieces = 1 if self.scale is None else 2
        piece = n_pieces * piece_bytes(n_rows, self.n_features)
        return piece + 8 * (2 * min(n_rows, BLOCK_ROWS) * self.n_columns)

    def specs(self) -> dict[str, SumSpec]:
        specs = super().specs() | {"squares": SumSpec(())}
        if self.origin is None:
            specs["mean"] = SumSpec((self.n_features, 1), tall="features")
        return specs

    def about(self, origin: Any) -> RowSketchPass:
        return replace(self, origin=origin)

    def centred(self, block: RowBlock) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield rows minus the origin, some at a time, and the weights of their products."""
        X, weights = dense_rows(block, self.n_features)
        origin = None if self.origin is None else self.origin[:, 0]
        for piece, centred in pieces(X, origin):
            yield centred, None if weights is None else weights[piece]

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        matrix = self.matrix()
        sums["mass"] += total_weight(block)
        scale = None if self.scale is None else np.asarray(self.scale)[:, 0]
        for centred, own in self.centred(block):
            products = centred @ matrix
            squares = squared_norms(centred if scale is None else centred * scale)
            if own is not None:
                products *= own[:, None]
                squares = squares * own
            sums["sketch"].single[...] += centred.T @ products
            sums["squares"] += squares.sum()
            if "mean" in sums:
                sums["mean"].single[:, 0] += centred.sum(axis=0) if own is None else own @ centred
        for name in ("sketch", "mean"):
            if name in sums:
                sums[name].settle()
        return None


@dataclass(frozen=True)
class RowCovariancePass(Pass):
    """Add up the whole second moment of rows.

    Notes
    -----
    Sums: ``second`` (n_features, n_features), ``mean`` (n_features,), ``mass`` ().
    """

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        return "covariance"

    @property
    def mapped_bytes(self) -> int:
        # The product of a piece of rows.
        return 8 * self.n_features**2

    @property
    def finish_bytes(self) -> int:
        return 4 * 8 * self.n_features**2

    def working_bytes(self, n_rows: int) -> int:
        return piece_bytes(n_rows, self.n_features)

    def specs(self) -> dict[str, SumSpec]:
        d = self.n_features
        return {"second": SumSpec((d, d)), "mean": SumSpec((d,)), "mass": SumSpec(())}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        X, weights = dense_rows(block, self.n_features)
        sums["mass"] += mass_of(X, weights)
        for piece, part in pieces(X, None):
            weighted = part if weights is None else part * weights[piece, None]
            # BLAS computes half of a product of a matrix with its own transpose.
            sums["second"] += part.T @ weighted
            sums["mean"] += weighted.sum(axis=0)
        return None


@dataclass(frozen=True)
class RowMomentsPass(ProjectedPass):
    """Add up the moments of rows minus an origin, of orders one to three, in a basis.

    Attributes
    ----------
    basis : matrix of shape (n_features, r), float64
        Q; an array, or slabs of columns.
    origin : ndarray of shape (n_features, 1)
        Subtracted from every row: their mean.
    rank : int
        r.
    third : bool
        Whether third moments are added up; True by default.
    kept : ndarray of shape (n_kept,), int64, optional
        Positions of units, ascending, whose first rows are kept; none by default.
    n_kept : int
        Number of these positions; 0 by default.

    Notes
    -----
    Sums of ``y = Q'(x - origin)`` and ``s = ||x - origin||^2``: ``y`` (r,), ``yy`` (r, r), ``s`` (), ``mass`` ();
    with ``third`` also ``yyy`` (r, r, r) and ``ys`` (r,). ``sampled`` () counts the rows without weights: those
    of a sample rather than of an enumerated population. ``kept`` (n_kept, r + 1) holds y and s of the kept rows.
    """

    basis: Any = None
    origin: Any = None
    rank: int = 0
    third: bool = True
    kept: Any = None
    n_kept: int = 0

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        return "moments" if self.third else "pairs"

    @property
    def finish_bytes(self) -> int:
        return 8 * 4 * self.rank ** (3 if self.third else 2)

    def working_bytes(self, n_rows: int) -> int:
        r, n = self.rank, min(n_rows, BLOCK_ROWS)
        products = n * (2 * r + TENSOR_BLOCK**2) + TENSOR_BLOCK**2 * r if self.third else 0
        return piece_bytes(n_rows, self.n_features) + 8 * (3 * n * r + products)

    def specs(self) -> dict[str, SumSpec]:
        r = self.rank
        specs = {name: SumSpec(()) for name in ("mass", "s", "sampled")}
        specs |= {"y": SumSpec((r,)), "yy": SumSpec((r, r)), "kept": SumSpec((self.n_kept, r + 1))}
        if self.third:
            specs |= {"yyy": SumSpec((r, r, r)), "ys": SumSpec((r,))}
        return specs

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        for many, Y, s, own in self.projected(sums, block):
            self.add_projected(sums, block, many, Y, s, own)
        if self.n_kept:
            self._keep(sums["kept"], block, self.basis, np.asarray(self.origin)[:, 0])
        return None

    def projected(
        self, sums: Sums, block: RowBlock
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray | None]]:
        """Count rows, and yield them in pieces: their positions, their y and s, and their weights."""
        X, weights = dense_rows(block, self.n_features)
        sums["mass"] += mass_of(X, weights)
        sums["sampled"] += len(X) if weights is None else 0
        origin = np.asarray(self.origin)[:, 0]
        for start in range(0, len(X), BLOCK_ROWS):
            many = slice(start, min(start + BLOCK_ROWS, len(X)))
            s = np.empty(many.stop - start)
            Y = project(X[many], origin, self.basis, norms=s)
            yield many, Y, s, None if weights is None else weights[many]

    def add_projected(
        self, sums: Sums, block: RowBlock, many: slice, Y: np.ndarray, s: np.ndarray, own: np.ndarray | None
    ) -> None:
        """Add projected rows to the sums."""
        weighted = Y if own is None else Y * own[:, None]
        sums["s"] += s.sum() if own is None else own @ s
        sums["y"] += weighted.sum(axis=0)
        sums["yy"] += Y.T @ weighted
        if self.third:
            sums["ys"] += s @ weighted
            add_third_moment(sums["yyy"], Y, Y, own)

    def _keep(self, out: np.ndarray, block: RowBlock, basis: Any, origin: np.ndarray) -> None:
        """Keep the first rows of the selected units that begin in this block."""
        first = block.first + int(block.continued)
        low, high = np.searchsorted(self.kept, (first, block.first + block.n_documents))
        if high > low:
            starts = block.starts[np.asarray(self.kept[low:high]) - block.first]
            out[low:high, :-1] = project(block.rows[starts], origin, basis, norms=out[low:high, -1])


@dataclass(frozen=True)
class RowMoments:
    """Moments of rows minus their mean, in a basis Q.

    Attributes
    ----------
    second : ndarray of shape (r, r)
        ``Q'Cov(x)Q``.
    trace : float
        Trace of Cov(x).
    third : ndarray of shape (r, r, r) or None
        ``E[y (x) y (x) y]``.
    norms : ndarray of shape (r,) or None
        ``E[y ||x - m||^2]``.
    n_sampled : int
        Number of rows that are a sample; 0 for an enumerated population.
    kept : ndarray of shape (n_kept, r + 1)
        Coordinates and squared norm of some rows.
    """

    second: np.ndarray
    trace: float
    third: np.ndarray | None
    norms: np.ndarray | None
    n_sampled: int
    kept: np.ndarray


def row_moments(sums: Sums) -> RowMoments:
    """Turn the sums of `RowMomentsPass` into moments.

    The second moment is that about the mean of the rows of the pass, which differs from the origin where the pass
    reads a selection of the rows; third moments are of all rows, whose mean is the origin.
    """
    mass = positive(sums["mass"])
    mean = np.asarray(sums["y"]) / mass
    second = np.asarray(sums["yy"]) / mass - np.outer(mean, mean)
    third = norms = None
    if "yyy" in sums:
        third = fill_symmetric(np.array(sums["yyy"])) / mass
        norms = np.asarray(sums["ys"]) / mass
    trace = float(sums["s"]) / mass - float(mean @ mean)
    kept = np.array(sums["kept"])
    return RowMoments((second + second.T) / 2.0, trace, third, norms, int(sums["sampled"]), kept)
