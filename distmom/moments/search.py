"""Passes over dense rows for the search of one component of a mixture.

Source: Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18, 2018), sections 3.1
and 3.3. The columns of a row are its features, for regressions a response, and side information: one column for
each target. `RowTargetsPass` extends the moments of `distmom.moments.gaussian.RowMomentsPass` by the second
moments weighted by each target. `ResponsePairsPass` adds up the second moment of the features weighted by the
squared response, and `ResponseMomentsPass` adds up moments of projected features weighted by powers of the
response, up to the third, and by targets.

Every moment is about an origin, so sums of two halves of the rows add up to those of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import Pass, Rows
from distmom.engine.sums import Sums, SumSpec
from distmom.moments.gaussian import RowMomentsPass, dense_rows, mass_of, piece_bytes, pieces, project
from distmom.moments.groups import WHOLE_SHARD
from distmom.moments.kernels import BLOCK_ROWS, TENSOR_BLOCK, add_third_moment, fill_symmetric
from distmom.moments.sketching import n_stored_slabs


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
class ResponsePairsPass(Pass):
    """Add up the second moment of the features, weighted by the squared response.

    Attributes
    ----------
    origin : ndarray of shape (n_features + 1, 1)
        Subtracted from the features and, last, from the response.

    Notes
    -----
    Sums of the features x and the response y minus the origin: ``xx`` (n_features, n_features) of ``y^2 x x'``,
    ``squares`` () of ``y^2``, ``cubes`` (n_features,) of ``y^3 x``, ``mass`` ().
    """

    origin: Any = None

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        return "pairs"

    @property
    def mapped_bytes(self) -> int:
        # The product of a piece of rows.
        return 8 * self.n_features**2

    @property
    def finish_bytes(self) -> int:
        return 6 * 8 * self.n_features**2

    def working_bytes(self, n_rows: int) -> int:
        return 2 * piece_bytes(n_rows, self.n_features + 3)

    def specs(self) -> dict[str, SumSpec]:
        d = self.n_features
        return {"xx": SumSpec((d, d)), "squares": SumSpec(()), "cubes": SumSpec((d,)), "mass": SumSpec(())}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        d = self.n_features
        X, weights = dense_rows(block, d + 1)
        sums["mass"] += mass_of(X, weights)
        for piece, centred in pieces(X, np.asarray(self.origin)[:, 0]):
            x, y = centred[:, :d], centred[:, d]
            square = y * y if weights is None else y * y * weights[piece]
            sums["squares"] += square.sum()
            sums["cubes"] += (square * y) @ x
            sums["xx"] += x.T @ (x * square[:, None])
        return None


@dataclass(frozen=True)
class ResponseMomentsPass(Pass):
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
    def n_stored_slabs(self) -> int:
        return n_stored_slabs(self.basis)

    @property
    def mapped_bytes(self) -> int:
        return 8 * self.n_features * self.rank

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
        for start in range(0, len(X), BLOCK_ROWS):
            many = slice(start, min(start + BLOCK_ROWS, len(X)))
            Z, _ = project(X[many], origin[:d], self.basis)
            (response,) = _columns(block, many, d, 1)
            y = response - origin[d]
            own = 1.0 if weights is None else weights[many]
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
