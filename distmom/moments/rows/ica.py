"""Passes over dense rows for independent component analysis.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models"
(JMLR 2014), theorem 3.4. All passes project rows minus their mean m to ``y = P'(x - m)`` with a matrix P of
few columns. `RowFourthPass` adds up the fourth moment of y, whole or contracted with pairs of directions;
`RowContrastPass` the fourth moment contracted with a whole basis, whose range is that of the components
however the noise is distributed; `RowScorePass` the sums for a step of quasi-maximum likelihood;
`RowSourcesPass` stores sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import WHOLE_SHARD, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import dense_rows, mass_of, piece_bytes, project, squared_norms
from distmom.moments.sketching import ProjectedPass
from distmom.moments.weighting import positive

#: bytes of the products of coordinates that are formed at a time
PRODUCT_BYTES = 4 << 20
#: smallest number of rows for which they are formed, for products that use BLAS well
LEAST_ROWS = 128


def n_pairs(k: int) -> int:
    """Return the number of pairs of k coordinates, in any order and with repetition."""
    return k * (k + 1) // 2


@dataclass(frozen=True)
class ProjectedRowsPass(ProjectedPass):
    """Base class of passes over projected rows.

    Attributes
    ----------
    matrix : matrix of shape (n_features, rank), float64
        P; an array, or slabs of columns.
    origin : ndarray of shape (n_features, 1)
        m, subtracted from every row.
    rank : int
        Number of coordinates.
    """

    matrix: Any = None
    origin: Any = None
    rank: int = 0

    block_rows = WHOLE_SHARD

    @property
    def projector(self) -> tuple[Any, int]:
        return self.matrix, self.rank

    def piece_rows(self, width: int) -> int:
        """Return the number of rows whose products of a given width are formed at a time."""
        return max(LEAST_ROWS, PRODUCT_BYTES // (8 * max(1, width)))

    def pieces(self, block: RowBlock, width: int) -> Any:
        """Yield the projected rows of a block and their weights, some rows at a time."""
        X, weights = dense_rows(block)
        step, origin = self.piece_rows(width), np.asarray(self.origin)[:, 0]
        for start in range(0, len(X), step):
            rows = slice(start, min(start + step, len(X)))
            yield project(X[rows], origin, self.matrix), None if weights is None else weights[rows]

    def working_bytes(self, n_rows: int) -> int:
        width = self.product_width
        n = min(n_rows, self.piece_rows(width))
        return piece_bytes(n_rows, self.n_features) + 8 * n * (2 * width + 2 * self.rank)

    @property
    def product_width(self) -> int:
        """Number of products of coordinates per row."""
        return self.rank


@dataclass(frozen=True)
class RowFourthPass(ProjectedRowsPass):
    """Add up the fourth moment of projected rows, whole or contracted with pairs of directions.

    Attributes
    ----------
    left, right : ndarray of shape (rank, n_directions), optional
        Pairs of directions as columns; the whole moment without them.
    n_directions : int
        Number of pairs of directions; 0 (default) for the whole moment.

    Notes
    -----
    Sums: ``y`` (r,), ``yy`` (r, r), ``fourth`` (r (r + 1) / 2, m) of products of coordinates i <= j with each
    other, or with ``(a'y)(b'y)`` for every pair of directions; ``mass`` (), and ``sampled`` (), which counts
    the rows without weights: those of a sample rather than of an enumerated population.
    """

    left: Any = None
    right: Any = None
    n_directions: int = 0

    @property
    def name(self) -> str:
        return "fourth"

    @property
    def product_width(self) -> int:
        return n_pairs(self.rank)

    @property
    def finish_bytes(self) -> int:
        k = self.rank
        return 8 * 6 * k**2 * (self.n_directions or k**2)

    def specs(self) -> dict[str, SumSpec]:
        r, p = self.rank, n_pairs(self.rank)
        return {
            "y": SumSpec((r,)),
            "yy": SumSpec((r, r)),
            "fourth": SumSpec((p, self.n_directions or p)),
            "mass": SumSpec(()),
            "sampled": SumSpec(()),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        for Y, weights in self.pieces(block, self.product_width):
            own = Y if weights is None else Y * weights[:, None]
            sums["mass"] += mass_of(Y, weights)
            sums["sampled"] += len(Y) if weights is None else 0
            sums["y"] += own.sum(axis=0)
            sums["yy"] += Y.T @ own
            pairs = products_of_pairs(Y)
            others = (Y @ self.left) * (Y @ self.right) if self.n_directions else pairs
            # BLAS computes half of a product of a matrix with its own transpose.
            sums["fourth"] += pairs.T @ (others if weights is None else others * weights[:, None])
        return None


def products_of_pairs(Y: np.ndarray) -> np.ndarray:
    """Return the products of coordinates i <= j of every row, (n, r (r + 1) / 2)."""
    n, r = Y.shape
    found = np.empty((n, n_pairs(r)))
    start = 0
    for i in range(r):
        np.multiply(Y[:, i : i + 1], Y[:, i:], out=found[:, start : start + r - i])
        start += r - i
    return found


@dataclass(frozen=True)
class FourthMoment:
    """Central moments of projected rows.

    Attributes
    ----------
    second : ndarray of shape (r, r)
    fourth : ndarray of shape (r, r, r, r) or (r, r, m)
        The whole moment, or its contractions with m pairs of directions.
    n_sampled : int
        Number of rows that are a sample; 0 for an enumerated population.
    """

    second: np.ndarray
    fourth: np.ndarray
    n_sampled: int


def row_fourth(sums: Sums) -> FourthMoment:
    """Turn the sums of `RowFourthPass` into moments."""
    mass = positive(sums["mass"])
    second = np.asarray(sums["yy"]) / mass
    r = len(second)
    products = np.asarray(sums["fourth"]) / mass
    i, j = np.triu_indices(r)
    place = np.empty((r, r), np.int64)
    place[i, j] = place[j, i] = np.arange(len(i))
    fourth = products[place] if products.shape[1] != len(i) else products[place][:, :, place]
    return FourthMoment((second + second.T) / 2.0, fourth, int(sums["sampled"]))


@dataclass(frozen=True)
class RowContrastPass(ProjectedRowsPass):
    """Add up the fourth moment of projected rows, contracted with an orthonormal basis U.

    Attributes
    ----------
    basis : ndarray of shape (rank, n_columns), optional
        U; all axes without it.
    n_columns : int
        Number of columns of U; 0 (default) without it.

    Notes
    -----
    Sums: ``yy`` (r, r), ``contrast`` (r, r) of ``||U'y||^2 y y'``, and ``mass`` ().
    """

    basis: Any = None
    n_columns: int = 0

    @property
    def name(self) -> str:
        return "contrast"

    @property
    def finish_bytes(self) -> int:
        return 6 * 8 * self.rank**2

    def specs(self) -> dict[str, SumSpec]:
        r = self.rank
        return {"yy": SumSpec((r, r)), "contrast": SumSpec((r, r)), "mass": SumSpec(())}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        for Y, weights in self.pieces(block, self.product_width):
            squares = squared_norms(Y if self.basis is None else Y @ self.basis)
            own = Y if weights is None else Y * weights[:, None]
            sums["mass"] += mass_of(Y, weights)
            sums["yy"] += Y.T @ own
            sums["contrast"] += Y.T @ (own * squares[:, None])
        return None


def row_contrast(sums: Sums, basis: np.ndarray | None) -> np.ndarray:
    """Turn the sums of `RowContrastPass` into the fourth cumulant contracted with U, (r, r)."""
    mass = positive(sums["mass"])
    second, contrast = np.asarray(sums["yy"]) / mass, np.asarray(sums["contrast"]) / mass
    seen = second if basis is None else second @ basis
    inner = np.trace(seen) if basis is None else np.sum(basis * seen)
    found = contrast - inner * second - 2.0 * seen @ seen.T
    return np.asarray((found + found.T) / 2.0)


#: functions of a source of which estimates of its score function are made: tanh(s), s exp(-s^2 / 2), s^2 and s^3
N_FUNCTIONS = 4


def functions_of(S: np.ndarray) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Return `N_FUNCTIONS` functions of sources, and their derivatives."""
    squares = S**2
    tanh, bell = np.tanh(S), np.exp(-0.5 * squares)
    return (tanh, S * bell, squares, S * squares), (
        1.0 - tanh**2,
        (1.0 - squares) * bell,
        2.0 * S,
        3.0 * squares,
    )


@dataclass(frozen=True)
class RowScorePass(ProjectedRowsPass):
    """Add up the sums for one step of quasi-maximum likelihood.

    Attributes
    ----------
    rotation : ndarray of shape (rank, rank)
        The sources of a row are ``s = C y``, with C this matrix.

    Notes
    -----
    Sums, with g one of `functions_of`: ``slopes`` (N_FUNCTIONS, k, k) of ``g(s_i) s_j``, ``curvatures``
    (N_FUNCTIONS, k) of ``g'(s_i)``, ``means`` (N_FUNCTIONS, k) of ``g(s_i)``, ``products`` (N_FUNCTIONS,
    N_FUNCTIONS, k) of ``g(s_i) f(s_i)``, and ``mass`` ().
    """

    rotation: Any = None

    @property
    def name(self) -> str:
        return "refine"

    @property
    def product_width(self) -> int:
        return 3 * N_FUNCTIONS * self.rank

    def specs(self) -> dict[str, SumSpec]:
        k = self.rank
        return {
            "slopes": SumSpec((N_FUNCTIONS, k, k)),
            "curvatures": SumSpec((N_FUNCTIONS, k)),
            "means": SumSpec((N_FUNCTIONS, k)),
            "products": SumSpec((N_FUNCTIONS, N_FUNCTIONS, k)),
            "mass": SumSpec(()),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        rotation = np.asarray(self.rotation)
        for Y, weights in self.pieces(block, self.product_width):
            # Values of a source are contiguous, so that loops over them are vectorised.
            S = rotation @ Y.T
            values, slopes = functions_of(S)
            weighted = S if weights is None else S * weights
            sums["mass"] += mass_of(Y, weights)
            for i, (value, slope) in enumerate(zip(values, slopes, strict=True)):
                own = value if weights is None else value * weights
                sums["slopes"][i] += value @ weighted.T
                sums["means"][i] += own.sum(axis=1)
                sums["curvatures"][i] += slope.sum(axis=1) if weights is None else slope @ weights
                for j in range(i + 1):
                    sums["products"][i, j] += np.einsum("kn,kn->k", own, values[j])
        return None


@dataclass(frozen=True)
class RowSourcesPass(ProjectedRowsPass):
    """Store the sources ``P'(x - m)`` of every row.

    Notes
    -----
    Rows: ``sources`` (n, rank), float64. Sums: ``mass`` ().
    """

    row_axis = "rows"

    @property
    def name(self) -> str:
        return "transform"

    @property
    def row_bytes(self) -> int:
        return 8 * self.rank

    def working_bytes(self, n_rows: int) -> int:
        return piece_bytes(n_rows, self.n_features) + 2 * 8 * n_rows * self.rank

    def specs(self) -> dict[str, SumSpec]:
        return {"mass": SumSpec(())}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        X, weights = dense_rows(block)
        sums["mass"] += mass_of(X, weights)
        return {"sources": project(X, np.asarray(self.origin)[:, 0], self.matrix)}
