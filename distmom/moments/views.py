"""Moments of orders one to three over distinct views of a group, in a basis, never in the size of the features.

For a group with views x_1 ... x_V, their sum S and an equal weight for every group (ECA paper, section 4.1, with
averages over all ordered tuples of distinct views in place of one tuple):

    M1 = mean S / V                        M2 = mean (S S' - sum_v x_v x_v') / (V)_2
    M3 = mean (S^3 - sym3(sum_v x_v^2, S) + 2 sum_v x_v^3) / (V)_3

where powers are tensors, sym3 is the sum over the places of its last factor and ``(V)_n = V (V-1) ... (V-n+1)``
(order four is in `distmom.moments.fourth`). Groups with fewer views than ``min_views`` count for no order. An
origin may be taken from every view before all else: central moments do not depend on it, and lose no digits with
it.

Sums are kept for `N_PARTS` random parts of the groups apart, whose differences are as large as the errors of
moments by sampling (see `contrasts`). Groups with weights of their own are an enumerated population, without such
errors, and all of them are in the first part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from distmom.corpus import RowBlock
from distmom.engine.passes import Pass, Rows
from distmom.engine.state import Columns
from distmom.engine.sums import Sums, SumSpec
from distmom.engine.tall import TallSum
from distmom.moments.counter import uniforms
from distmom.moments.kernels import (
    BLOCK_ROWS,
    TENSOR_BLOCK,
    add_third_moment,
    column_sums,
    fill_pairs,
    fill_symmetric,
    scatter,
)
from distmom.moments.sketching import SketchPass, n_stored_slabs, omega, omega_key

#: random parts of the groups that sums are kept of
N_PARTS = 8
#: rows that are centred and multiplied at a time
PIECE_ROWS = 4096
#: more documents than any shard has: a shard is one block, as the views in a number of groups are not bounded
WHOLE_SHARD = 1 << 40


@dataclass(frozen=True)
class ViewMeanPass(Pass):
    """Average the views of every group over the groups.

    Attributes
    ----------
    min_views : int
        Groups of fewer views are left out.

    Notes
    -----
    Sums: ``mean`` (n_words,), ``mass`` (), ``groups`` (2,): groups that count, and groups that are left out.
    """

    min_views: int = 3

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        return "mean"

    def working_bytes(self, n_rows: int) -> int:
        return 8 * n_rows

    def specs(self) -> dict[str, SumSpec]:
        return {
            "mean": SumSpec((self.n_words,), by_feature=True),
            "mass": SumSpec(()),
            "groups": SumSpec((2,)),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        used, weights = _used(block, self.min_views)
        sums["groups"] += (used.n_documents, block.n_documents - used.n_documents)
        sums["mass"] += weights.sum()
        of_rows = np.repeat(weights / used.sizes, used.sizes)
        X = used.rows
        if sparse.issparse(X):
            column_sums(X.indptr, X.indices, X.data, of_rows, sums["mean"], self.slab.start)
        else:
            sums["mean"] += of_rows @ X[:, self.slab]
        return None


@dataclass(frozen=True)
class ViewSketchPass(SketchPass):
    """Multiply the second moment over distinct views by a test matrix or a basis.

    Attributes
    ----------
    min_views : int
        Groups of fewer views are left out.
    origin : ndarray of shape (n_words,), optional
        Taken from every view.

    Notes
    -----
    Sums and noise as in `SketchPass`; a unit that has a random sign is a group.
    """

    min_views: int = 3
    origin: Any = None

    block_rows = WHOLE_SHARD

    @property
    def mapped_bytes(self) -> int:
        # Of every column also the product of a piece of rows, and the test matrix, first in single precision.
        return (20 if self.basis is None else 16) * self.n_words * self.n_columns

    def working_bytes(self, n_rows: int) -> int:
        width = self.n_columns + self.n_probes
        piece = min(n_rows, PIECE_ROWS) * self.n_words
        # Products, their sums by group and both together; a piece of centred rows; the same of the probes.
        return 8 * (3 * n_rows * width + piece) + 20 * self.n_words * (self.n_probes + 1)

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        used, weights = _used(block, self.min_views)
        sums["mass"] += weights.sum()
        if not used.n_documents:
            return None
        pairs = weights / (used.sizes * (used.sizes - 1.0))
        columns = self.columns or slice(0, self.n_columns)
        first = self.first_column if self.basis is not None else 0
        basis = self._matrix(self.basis, columns.start - first, columns.stop - first, 0)
        self._add(sums["sketch"], used, pairs, basis)
        if "noise" in sums and block.weights is None:
            signs = self.signs(block.first, used.n_documents)
            probes = self._matrix(self.probes, 0, self.n_probes, self.n_columns)
            self._add(sums["noise"], used, pairs * signs, probes)
        return None

    def _matrix(self, matrix: Any, start: int, stop: int, offset: int) -> np.ndarray:
        """Return some columns of a basis, or of the test matrix, whose columns begin at an offset there."""
        if matrix is not None:
            return np.asarray(self.part_of(matrix, start, stop), np.float64)
        drawn = omega(np.arange(self.n_words), stop - start, omega_key(self.seed), offset + start)
        return drawn.astype(np.float64)

    def _add(self, out: TallSum, block: RowBlock, weights: np.ndarray, matrix: np.ndarray) -> None:
        products = project(block.rows, self.origin, matrix)
        totals = np.add.reduceat(products, block.starts[:-1], axis=0)
        others = np.repeat(totals, block.sizes, axis=0) - products
        others *= np.repeat(weights, block.sizes)[:, None]
        X = block.rows
        if sparse.issparse(X):
            scatter(X.indptr, X.indices, X.data, others, out.single, 0)
            if self.origin is not None:
                # Column by column: all together are as large as the sum.
                for column, total in enumerate(others.sum(axis=0).tolist()):
                    out.single[:, column] -= total * self.origin
        else:
            for piece, centred in _pieces(X, self.origin):
                out.single[...] += centred.T @ others[piece]
        out.settle()


@dataclass(frozen=True)
class ViewMomentsPass(Pass):
    """Project the moments of orders one to three over distinct views onto a basis.

    Attributes
    ----------
    min_views : int
        Groups of fewer views are left out.
    origin : ndarray of shape (n_words,), optional
        Taken from every view.
    basis : matrix of shape (n_words, r)
        An array, or slabs of columns.
    rank : int
        r.
    seed : int
        Seed of the parts.

    Notes
    -----
    Sums, of p parts: ``mass`` (p,), ``m1`` (p, r), ``m2`` (p, r, r), ``sums3`` and ``pairs3`` (p, r, r, r),
    of ``S^3`` and of what a group's repeated views add to it (see `view_moments`).
    """

    min_views: int = 3
    origin: Any = None
    basis: Any = None
    rank: int = 0
    seed: int = 0

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        return "moments"

    @property
    def n_stored_slabs(self) -> int:
        return n_stored_slabs(self.basis)

    @property
    def mapped_bytes(self) -> int:
        return 8 * self.n_words * self.rank

    def working_bytes(self, n_rows: int) -> int:
        r, n = self.rank, min(n_rows, BLOCK_ROWS)
        products = n * (2 * r + TENSOR_BLOCK**2) + TENSOR_BLOCK**2 * r
        return 8 * (4 * n_rows * r + min(n_rows, PIECE_ROWS) * self.n_words + products)

    @property
    def finish_bytes(self) -> int:
        # The parts are mapped and finished, and so are their sum and its corrections.
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
        for index, part, weights in parts_of_groups(block, self.min_views, self.seed):
            Y, V = project(part.rows, self.origin, self.basis), part.sizes.astype(np.float64)
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


@dataclass(frozen=True)
class ViewMoments:
    """Moments over distinct views in a basis.

    Attributes
    ----------
    m1 : ndarray of shape (r,)
    m2 : ndarray of shape (r, r)
    m3 : ndarray of shape (r, r, r)
    """

    m1: np.ndarray
    m2: np.ndarray
    m3: np.ndarray

    def within(self, W: np.ndarray) -> ViewMoments:
        """Return the moments in the coordinates ``W'y``, for W of shape (r, k)."""
        m3 = np.einsum("abc,ai,bj,ck->ijk", self.m3, W, W, W, optimize=True)
        return ViewMoments(self.m1 @ W, W.T @ self.m2 @ W, m3)


def view_moments(sums: Sums) -> tuple[ViewMoments, tuple[ViewMoments, ...]]:
    """Turn the sums of `ViewMomentsPass` into the moments of all groups, and of every part that has any.

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
        parts.append(ViewMoments(m1, m2, m3 / mass[index]))
    m1, m2, m3 = (
        mean_of_parts([vars(part)[name] for part in parts], mass[mass > 0.0]) for name in ("m1", "m2", "m3")
    )
    return ViewMoments(m1, m2, m3), tuple(parts)


def mean_of_parts(parts: list[np.ndarray], mass: np.ndarray) -> np.ndarray:
    return np.asarray(sum(own * part for own, part in zip(mass.tolist(), parts, strict=True)) / mass.sum())


def contrasts(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return independent draws of the error that a statistic of all groups has by sampling.

    Parameters
    ----------
    parts : sequence of ndarray
        The statistic of p parts of about equal size.

    Returns
    -------
    ndarray of shape (..., p - 1), float64
        Orthogonal contrasts of the parts over the root of p: as the parts are, each has p times the variance of
        the statistic of all groups, and their mean is not in it.
    """
    p = len(parts)
    # Helmert's: part j against the mean of those before it.
    helmert = np.array([[1.0] * j + [-float(j)] + [0.0] * (p - j - 1) for j in range(1, p)]).reshape(p - 1, p)
    helmert /= np.linalg.norm(helmert, axis=1, keepdims=True) * np.sqrt(p)
    return np.tensordot(np.stack(parts, axis=-1), helmert, axes=([-1], [1]))


def _used(block: RowBlock, min_views: int) -> tuple[RowBlock, np.ndarray]:
    """Return the groups of a block that have enough views, and how often each counts."""
    enough = block.sizes >= min_views
    used = block if bool(enough.all()) else block.take(enough)
    return used, np.ones(used.n_documents) if used.weights is None else used.weights


def parts_of_groups(block: RowBlock, min_views: int, seed: int) -> Iterator[tuple[int, RowBlock, np.ndarray]]:
    """Yield the groups of each random part that have enough views, with how often each counts."""
    if block.weights is not None:
        used, weights = _used(block, min_views)
        if used.n_documents:
            yield 0, used, weights
        return
    positions = np.arange(block.first, block.first + block.n_documents)
    index = (N_PARTS * uniforms(positions, 1, seed=seed)[:, 0]).astype(np.int64)
    index[block.sizes < min_views] = -1
    for part in range(N_PARTS):
        if (index == part).any():
            used = block.take(index == part)
            yield part, used, np.ones(used.n_documents)


def _pieces(X: np.ndarray, origin: np.ndarray | None) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield centred rows, some at a time."""
    for start in range(0, len(X), PIECE_ROWS):
        piece = slice(start, min(start + PIECE_ROWS, len(X)))
        yield piece, X[piece] if origin is None else X[piece] - origin


def project(X: Any, origin: np.ndarray | None, matrix: Any) -> np.ndarray:
    """Return ``(x - origin)' B`` of every row, float64."""
    parts = matrix.each() if isinstance(matrix, Columns) else iter((matrix,))
    found = []
    for part in parts:
        B = np.asarray(part, np.float64)
        if sparse.issparse(X):
            product = np.asarray(X @ B)
            found.append(product if origin is None else product - origin @ B)
        else:
            pieces = [centred @ B for _, centred in _pieces(X, origin)]
            found.append(np.concatenate(pieces) if pieces else np.zeros((0, B.shape[1])))
    return found[0] if len(found) == 1 else np.concatenate(found, axis=1)
