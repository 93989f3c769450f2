"""Passes over dense rows for the search of one component of a mixture.

Source: Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18, 2018), sections 3.1
and 3.3. The columns of a row are its features, for regressions a response, and side information: one column for
each target. `RowTargetsPass` extends the moments of `distmom.moments.rows.gaussian.RowMomentsPass` by the second
moments weighted by each target. `ResponsePairsPass` adds up the second moment of the features weighted by the
squared response, whole or in a basis, which `ResponseSketchPass` finds. `ResponseMomentsPass` adds up moments of
projected features weighted by powers of the response, up to the third, and by targets.

Every moment is about an origin, so sums of two halves of the rows add up to those of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import WHOLE_SHARD, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import dense_rows, mass_of, piece_bytes, pieces, project
from distmom.moments.kernels import BLOCK_ROWS, TENSOR_BLOCK, add_third_moment, fill_symmetric
from distmom.moments.rows.gaussian import RowMomentsPass, RowSketchPass
from distmom.moments.sketching import ProjectedPass


@dataclass(frozen=True)
class RowTargetsPass(RowMomentsPass):
    """Add up the moments of rows minus an origin in a basis, and their moments weighted by side information.

    Attributes
    ----------
    n_targets : int, default 0
        Number of columns after the features that are side information.

    Notes
    -----
    Sums in addition to those of `RowMomentsPass`, with t the side information: ``t`` (q,), ``ty`` (q, r), ``tyy``
    (q, r, r) and ``ts`` (q,).
    """

    n_targets: int = 0

    @property
    def finish_bytes(self) -> int:
        return super().finish_bytes + 8 * 4 * self.n_targets * self.rank**2

    def working_bytes(self, n_rows: int) -> int:
        products = min(n_rows, BLOCK_ROWS) * self.rank + self.rank**2 if self.n_targets else 0
        return super().working_bytes(n_rows) + 8 * products

    def specs(self) -> dict[str, SumSpec]:
        r, q = self.rank, self.n_targets
        weighted = {"t": (q,), "ty": (q, r), "tyy": (q, r, r), "ts": (q,)}
        return super().specs() | {name: SumSpec(shape) for name, shape in weighted.items()}

    def add_projected(
        self, sums: Sums, block: RowBlock, many: slice, Y: np.ndarray, s: np.ndarray, own: np.ndarray | None
    ) -> None:
        super().add_projected(sums, block, many, Y, s, own)
        for j, target in enumerate(_columns(block, many, self.n_features, self.n_targets)):
            t = target if own is None else target * own
            weighted = Y * t[:, None]
            sums["t"][j] += t.sum()
            sums["ty"][j] += weighted.sum(axis=0)
            sums["tyy"][j] += Y.T @ weighted
            sums["ts"][j] += t @ s


def _columns(block: RowBlock, many: slice, first: int, n: int) -> Iterator[np.ndarray]:
    """Yield columns of some rows, one at a time."""
    X = block.rows[block.context :]
    for column in range(first, first + n):
        yield np.ascontiguousarray(X[many, column])


@dataclass(frozen=True)
class ResponseSketchPass(RowSketchPass):
    """Multiply the second moment of the features, weighted by the squared response, by a test matrix or a basis.

    Attributes
    ----------
    origin : ndarray of shape (n_features + 1, 1)
        Subtracted from the features and, last, from the response.

    Notes
    -----
    Other fields and sums as in `RowSketchPass`.
    """

    def centred(self, block: RowBlock) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield features minus the origin, some at a time, and the weights of their products."""
        d = self.n_features
        X, weights = dense_rows(block, d + 1)
        for piece, centred in pieces(X, np.asarray(self.origin)[:, 0]):
            square = centred[:, d] ** 2
            yield centred[:, :d], square if weights is None else square * weights[piece]


@dataclass(frozen=True)
class ResponsePairsPass(ProjectedPass):
    """Add up the second moment of the features, weighted by the squared response, whole or in a basis.

    Attributes
    ----------
    origin : ndarray of shape (n_features + 1, 1)
        Subtracted from the features and, last, from the response.
    basis : matrix of shape (n_features, rank), float64, optional
        P; an array, or slabs of columns. All features by default.
    rank : int
        Number of columns of P; 0 (default) without it.

    Notes
    -----
    Sums of the features x and the response y minus the origin, with ``z = P'x``, or x: ``xx`` (r, r) of
    ``y^2 z z'``, ``squares`` () of ``y^2``, ``cubes`` (r,) of ``y^3 z``, and ``mass`` (); with a basis also ``zz``
    (r, r).
    """

    origin: Any = None
    basis: Any = None
    rank: int = 0

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        return "pairs"

    @property
    def width(self) -> int:
        """Number of features, or of coordinates."""
        return self.rank or self.n_features

    @property
    def mapped_bytes(self) -> int:
        # The product of a piece of rows, or the basis.
        return 8 * self.n_features * self.width

    @property
    def finish_bytes(self) -> int:
        return 6 * 8 * self.width**2

    def working_bytes(self, n_rows: int) -> int:
        if not self.rank:
            return 2 * piece_bytes(n_rows, self.n_features + 3)
        n = min(n_rows, BLOCK_ROWS)
        return piece_bytes(n_rows, self.n_features) + 8 * (n * (3 * self.rank + 4) + 2 * self.rank**2)

    def specs(self) -> dict[str, SumSpec]:
        r = self.width
        shapes: dict[str, tuple[int, ...]] = {"xx": (r, r), "squares": (), "cubes": (r,), "mass": ()}
        if self.rank:
            shapes["zz"] = (r, r)
        return {name: SumSpec(shape) for name, shape in shapes.items()}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        d, origin = self.n_features, np.asarray(self.origin)[:, 0]
        X, weights = dense_rows(block, d + 1)
        sums["mass"] += mass_of(X, weights)
        if self.rank:
            for _, Z, y, own in projected_responses(block, d, origin, self.basis):
                self._add(sums, Z, y, own)
                sums["zz"] += Z.T @ (Z if own is None else Z * own[:, None])
        else:
            for piece, centred in pieces(X, origin):
                self._add(sums, centred[:, :d], centred[:, d], None if weights is None else weights[piece])
        return None

    def _add(self, sums: Sums, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> None:
        square = y * y if weights is None else y * y * weights
        sums["squares"] += square.sum()
        sums["cubes"] += (square * y) @ x
        sums["xx"] += x.T @ (x * square[:, None])


def projected_responses(
    block: RowBlock, d: int, origin: np.ndarray, basis: Any
) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray | None]]:
    """Yield rows in pieces: positions, projected features and responses minus the origin, and weights."""
    X, weights = dense_rows(block, d)
    for start in range(0, len(X), BLOCK_ROWS):
        many = slice(start, min(start + BLOCK_ROWS, len(X)))
        (response,) = _columns(block, many, d, 1)
        Z = project(X[many], origin[:d], basis)
        yield many, Z, response - origin[d], None if weights is None else weights[many]


@dataclass(frozen=True)
class ResponseMomentsPass(ProjectedPass):
    """Add up moments of projected features, weighted by powers of the response and by side information.

    Attributes
    ----------
    basis : matrix of shape (n_features, r), float64
        P; an array, or slabs of columns.
    origin : ndarray of shape (n_features + 1, 1)
        Subtracted from the features and, last, from the response.
    slopes : ndarray of shape (r, 1)
        Slopes of the cubed response on ``P'x``. Third moments are those of ``y^3`` minus this part, which the
        Hermite polynomials of order three do not see, but which adds to their sampling errors.
    rank : int
        r.
    n_targets : int, default 0
        Number of columns after the response that are side information.

    Notes
    -----
    Sums of ``z = P'x`` and the response y, both minus the origin, and of ``g = y^3 - slopes'z``: ``yz`` (r,),
    ``yyz`` (r,) of ``y^2 z``, ``yyyz`` (r,) of ``y^3 z``, ``gz`` (r,), ``gzzz`` (r, r, r), and ``mass`` (); with
    t the side information, ``tyy`` (q,) and ``tyyzz`` (q, r, r). ``sampled`` () counts the rows without weights:
    those of a sample rather than of an enumerated population.
    """

    basis: Any = None
    origin: Any = None
    slopes: Any = None
    rank: int = 0
    n_targets: int = 0

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        return "moments"

    @property
    def finish_bytes(self) -> int:
        return 8 * 4 * (self.rank**3 + self.n_targets * self.rank**2)

    def working_bytes(self, n_rows: int) -> int:
        r, n = self.rank, min(n_rows, BLOCK_ROWS)
        products = n * (2 * r + TENSOR_BLOCK**2) + TENSOR_BLOCK**2 * r + r**2
        return piece_bytes(n_rows, self.n_features) + 8 * (4 * n * r + products)

    def specs(self) -> dict[str, SumSpec]:
        r, q = self.rank, self.n_targets
        shapes: dict[str, tuple[int, ...]] = {"mass": (), "sampled": (), "tyy": (q,), "tyyzz": (q, r, r)}
        shapes |= {"yz": (r,), "yyz": (r,), "yyyz": (r,), "gz": (r,), "gzzz": (r, r, r)}
        return {name: SumSpec(shape) for name, shape in shapes.items()}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        d = self.n_features
        X, weights = dense_rows(block, d)
        origin, slopes = np.asarray(self.origin)[:, 0], np.asarray(self.slopes)[:, 0]
        sums["mass"] += mass_of(X, weights)
        sums["sampled"] += len(X) if weights is None else 0
        for many, Z, y, weight in projected_responses(block, d, origin, self.basis):
            own = 1.0 if weight is None else weight
            first = y * own
            second = first * y
            third = second * y
            rest = third - (Z @ slopes) * own
            sums["yz"] += first @ Z
            sums["yyz"] += second @ Z
            sums["yyyz"] += third @ Z
            sums["gz"] += rest @ Z
            add_third_moment(sums["gzzz"], Z, Z, rest)
            for j, target in enumerate(_columns(block, many, d + 1, self.n_targets)):
                t = target * second
                sums["tyy"][j] += t.sum()
                sums["tyyzz"][j] += Z.T @ (Z * t[:, None])
        return None


def whole_third(third: np.ndarray) -> np.ndarray:
    """Return a third moment that a pass has added up, with all its entries."""
    return np.asarray(fill_symmetric(np.array(third)))
