"""Moments of orders one to three over distinct views of a document, in a basis, never in the space of features.

For documents with views x_1 ... x_V and their sum S, with equal weights of documents (ECA paper, section 4.1, with
averages over all ordered tuples of distinct views in place of a single tuple):

    M1 = mean S / V                        M2 = mean (S S' - sum_v x_v x_v') / (V)_2
    M3 = mean (S^3 - sym3(sum_v x_v^2, S) + 2 sum_v x_v^3) / (V)_3

where powers are tensors, sym3 is the sum over the positions of its last factor and ``(V)_n = V (V-1) ... (V-n+1)``
(order four is in `distmom.moments.views.fourth`). Documents with fewer than ``min_views`` views are left out of
all orders. An origin may be subtracted from every view first: central moments do not depend on it, and lose no
digits with it. Sums are kept by parts of the documents (`distmom.moments.views.groups`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from distmom.corpus import RowBlock
from distmom.engine.passes import WHOLE_SHARD, Pass, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.engine.sums.tall import TallSum
from distmom.moments.dense_rows import pieces, project
from distmom.moments.kernels import (
    BLOCK_ROWS,
    TENSOR_BLOCK,
    add_third_moment,
    column_sums,
    fill_pairs,
    fill_symmetric,
    scatter,
)
from distmom.moments.sketching import DenseSketchPass
from distmom.moments.small import SmallMoments
from distmom.moments.views.groups import N_PARTS, PIECE_ROWS, ProjectedViewsPass, mean_of_parts, used_groups


@dataclass(frozen=True)
class ViewMeanPass(Pass):
    """Average the mean views of documents.

    Attributes
    ----------
    min_views : int
        Groups of fewer views are left out.
    with_squares : bool
        Whether squares are added up, too; False by default.

    Notes
    -----
    Sums: ``mean`` (n_words,), ``mass`` (), ``groups`` (2,): numbers of documents used and left out; on request
    ``squares`` (n_words,), averaged over the views of a document as ``mean`` is.
    """

    min_views: int = 3
    with_squares: bool = False

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        return "mean"

    def working_bytes(self, n_rows: int) -> int:
        return 8 * n_rows

    def specs(self) -> dict[str, SumSpec]:
        of_columns = SumSpec((self.n_features,), by_feature=True)
        return {
            "mean": of_columns,
            "mass": SumSpec(()),
            "groups": SumSpec((2,)),
            **({"squares": of_columns} if self.with_squares else {}),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        used, weights = used_groups(block, self.min_views)
        sums["groups"] += (used.n_documents, block.n_documents - used.n_documents)
        sums["mass"] += weights.sum()
        of_rows = np.repeat(weights / used.sizes, used.sizes)
        X = used.rows
        if sparse.issparse(X):
            column_sums(X.indptr, X.indices, X.data, of_rows, sums["mean"], self.slab.start)
            if self.with_squares:
                column_sums(X.indptr, X.indices, X.data**2, of_rows, sums["squares"], self.slab.start)
        else:
            sums["mean"] += of_rows @ X[:, self.slab]
            if self.with_squares:
                sums["squares"] += np.einsum("i,ij,ij->j", of_rows, X[:, self.slab], X[:, self.slab])
        return None


@dataclass(frozen=True)
class ViewSketchPass(DenseSketchPass):
    """Multiply the second moment over distinct views by a test matrix or a basis.

    Attributes
    ----------
    min_views : int
        Groups of fewer views are left out.
    origin : ndarray of shape (n_words,), optional
        Subtracted from every view; zero by default.

    Notes
    -----
    Sums and noise as in `SketchPass`.
    """

    min_views: int = 3
    origin: Any = None

    block_rows = WHOLE_SHARD

    def working_bytes(self, n_rows: int) -> int:
        width = self.n_columns + self.n_probes
        piece = min(n_rows, PIECE_ROWS) * self.n_features
        # Products, their sums by document, and their differences; a piece of centred rows; the same for probes.
        return 8 * (3 * n_rows * width + piece) + 20 * self.n_features * (self.n_probes + 1)

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        used, weights = used_groups(block, self.min_views)
        sums["mass"] += weights.sum()
        if not used.n_documents:
            return None
        pairs = weights / (used.sizes * (used.sizes - 1.0))
        self._add(sums["sketch"], used, pairs, self.matrix())
        if "noise" in sums and block.weights is None:
            signs = self.signs(block.first, used.n_documents)
            self._add(sums["noise"], used, pairs * signs, self.probe_matrix())
        return None

    def _add(self, out: TallSum, block: RowBlock, weights: np.ndarray, matrix: np.ndarray) -> None:
        products = project(block.rows, self.origin, matrix, PIECE_ROWS)
        totals = np.add.reduceat(products, block.starts[:-1], axis=0)
        others = np.repeat(totals, block.sizes, axis=0) - products
        others *= np.repeat(weights, block.sizes)[:, None]
        X = block.rows
        if sparse.issparse(X):
            scatter(X.indptr, X.indices, X.data, others, out.single, 0)
            if self.origin is not None:
                # Column by column, as all columns together are as large as the sum.
                for column, total in enumerate(others.sum(axis=0).tolist()):
                    out.single[:, column] -= total * self.origin
        else:
            for piece, centred in pieces(X, self.origin, PIECE_ROWS):
                out.single[...] += centred.T @ others[piece]
        out.settle()


@dataclass(frozen=True)
class ViewMomentsPass(ProjectedViewsPass):
    """Project the moments of orders one to three over distinct views onto a basis.

    Notes
    -----
    Fields as in `ProjectedViewsPass`. Sums over p parts: ``mass`` (p,), ``m1`` (p, r), ``m2`` (p, r, r), ``sums3``
    (p, r, r, r) of ``S^3``, and ``pairs3`` (p, r, r, r) of its terms with repeated views (see `view_moments`).
    """

    @property
    def name(self) -> str:
        return "moments"

    def working_bytes(self, n_rows: int) -> int:
        r, n = self.rank, min(n_rows, BLOCK_ROWS)
        products = n * (2 * r + TENSOR_BLOCK**2) + TENSOR_BLOCK**2 * r
        return 8 * (4 * n_rows * r + min(n_rows, PIECE_ROWS) * self.n_features + products)

    @property
    def finish_bytes(self) -> int:
        # Memory-mapped parts, finished parts, their mean, and corrections.
        return 8 * (3 * N_PARTS + 4) * self.rank**3

    def specs(self) -> dict[str, SumSpec]:
        r = self.rank
        return {
            "mass": SumSpec((N_PARTS,)),
            "m1": SumSpec((N_PARTS, r)),
            "m2": SumSpec((N_PARTS, r, r)),
            "sums3": SumSpec((N_PARTS, r, r, r)),
            "pairs3": SumSpec((N_PARTS, r, r, r)),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        for index, part, weights in self.parts(block):
            Y, V = self.project(part), part.sizes.astype(np.float64)
            S = np.add.reduceat(Y, part.starts[:-1], axis=0)
            pairs = weights / (V * (V - 1.0))
            triples = pairs / (V - 2.0)
            sums["mass"][index] += weights.sum()
            sums["m1"][index] += (weights / V) @ S
            sums["m2"][index] += (S * pairs[:, None]).T @ S - (
                Y * np.repeat(pairs, part.sizes)[:, None]
            ).T @ Y
            add_third_moment(sums["sums3"][index], S, S, triples)
            rest = np.repeat(S, part.sizes, axis=0) - (2.0 / 3.0) * Y
            add_third_moment(sums["pairs3"][index], Y, rest, np.repeat(triples, part.sizes))
        return None


def view_moments(sums: Sums) -> tuple[SmallMoments, tuple[SmallMoments, ...]]:
    """Turn the sums of `ViewMomentsPass` into the moments of all documents, and of every part that is not empty.

    As ``S^3 - sym3(sum x^2, S) + 2 sum x^3 = S^3 - sym3(sum x^2 (S - 2/3 x))``, one product serves both
    corrections.
    """
    mass, parts = np.asarray(sums["mass"]), []
    for index in np.flatnonzero(mass > 0.0):
        m3 = fill_symmetric(np.array(sums["sums3"][index]))
        repeated = fill_pairs(np.array(sums["pairs3"][index]))
        for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0)):
            m3 -= repeated.transpose(order)
        m2 = np.asarray(sums["m2"][index])
        m1, m2 = np.asarray(sums["m1"][index]) / mass[index], (m2 + m2.T) / (2.0 * mass[index])
        parts.append(SmallMoments(m1, m2, m3 / mass[index]))
    m1, m2, m3 = (
        mean_of_parts([vars(part)[name] for part in parts], mass[mass > 0.0]) for name in ("m1", "m2", "m3")
    )
    return SmallMoments(m1, m2, m3), tuple(parts)
