"""Passes for word moments of orders one to three, which are never formed in the size of the vocabulary.

With counts ``x`` (or 0/1 presence) of a document and the weights of `distmom.moments.weighting`:

    M1 = sum rho1 x                                   M2 = sum rho2 (x x' - diag x)
    M3 = sum rho3 (x (x) x (x) x - sym3(sum_v x_v e_v (x) e_v (x) x) + 2 sum_v x_v e_v (x) e_v (x) e_v)

each divided by its mass; the terms after the first are left out with ``moments="paper"`` (multi-label paper,
equations 16 and 18; tensor paper, equations 8 and 9). `WordSketchPass` adds up ``M2 R`` for a test matrix or basis
R (d, r), `WordMomentsPass` the three moments in a basis Q (d, r): ``Q'M1``, ``Q'M2 Q``, ``M3(Q, Q, Q)``. Where r^3
numbers do not fit, `WordSlicesPass` adds up contractions ``M3(QW, QW, QW h)`` in place of the last.
`distmom.moments.documents.word_moments` computes moments from the sums of the last two passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distmom.corpus import Block
from distmom.engine.passes import Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.engine.sums.tall import TallSum
from distmom.moments.documents.word_moments import FINISH_ROWS, rule_orders
from distmom.moments.kernels import (
    add_slices,
    add_third_moment,
    column_sums,
    gather_columns,
    product_bytes,
    scatter,
)
from distmom.moments.sketching import ProjectedPass, SketchPass, add_product, omega_key
from distmom.moments.weighting import MomentKind, block_weights, document_lengths, row_weights, word_values


@dataclass(frozen=True)
class WordSketchPass(SketchPass):
    """Multiply the second word moment by a test matrix or a basis.

    Attributes
    ----------
    kind : MomentKind

    Notes
    -----
    Sums and noise as in `SketchPass`.
    """

    kind: MomentKind = field(default_factory=MomentKind)

    # No array has a row per document of a block.
    block_rows = 1 << 15

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        weights = block_weights(block, self.kind)
        self._add(sums["sketch"], block, weights.rho2, self.basis_part(), self.own_columns.start)
        if "noise" in sums and block.weights is None:
            signs = self.signs(block.first, block.n_documents)
            self._add(sums["noise"], block, weights.rho2 * signs, self.probes_part(), self.n_columns)
        sums["mass"] += weights.mass2
        return None

    def _add(self, out: TallSum, block: Block, weights: np.ndarray, basis: np.ndarray, first: int) -> None:
        words = block.words
        dtype = words.data.dtype
        values = np.zeros(0, dtype) if self.kind.binary else word_values(words, self.kind, dtype)
        key = omega_key(self.seed)
        add_product(
            words.indptr, words.indices, values, weights, basis, key, first, self.kind.distinct, out.single
        )
        out.settle()


@dataclass(frozen=True)
class WordMomentsPass(ProjectedPass):
    """Project the word moments of orders one to three onto a basis.

    Attributes
    ----------
    kind : MomentKind
    basis : matrix of shape (n_words, r)
        An array, or slabs of columns. Its type is the type in which blocks are multiplied.
    rank : int
        r.
    single : bool, default False
        Whether that type is float32.
    third : bool, default True
        Add up the third moment too.
    mean : bool, default False
        Add up the first moment of every word too.
    half : bool, default False
        Add up ``M2 Q``, the second moment with one side in the basis, too.
    kept : tuple of int, default ()
        Positions of documents in the corpus, ascending, whose rows in the basis are kept.

    Notes
    -----
    Sums: ``m1`` (r,), ``m2`` (r, r), ``mass`` (3,), ``lengths`` (6,): documents, documents with at least three
    words, and the sums of n, n^2, n^3, n^2 m; with the third moment ``m3`` (r, r, r) by blocks; with the mean
    ``mean`` (n_words,), of mass ``mass[0]``; with half ``half`` (n_words, r), of mass ``mass[1]``; with kept
    documents ``rows`` (n_kept, r), zero for documents of fewer than three words. With distinct
    positions also what `word_moments` needs to take the repeated positions out: ``pair_mass`` (n_words,), and for
    the third moment ``pair_rows`` (n_words, r) and ``triple_mass`` (n_words,). For `sum_rules`, where documents
    need as many positions as the highest order, also ``rule2`` and ``rule3`` (r,): ``sum rho2 (n - 1) z`` and
    ``sum rho3 (n - 2) z (z'1)`` for rows ``z`` in the basis, the sums over pairs and triples whose last
    position is any word.
    """

    kind: MomentKind = field(default_factory=MomentKind)
    basis: Any = None
    rank: int = 0
    single: bool = False
    third: bool = True
    mean: bool = False
    half: bool = False
    kept: tuple[int, ...] = ()

    # A sum of r^3 numbers is read and written once per block.
    block_rows = 8192

    @property
    def name(self) -> str:
        return "moments"

    def working_bytes(self, n_rows: int) -> int:
        size = self.value_bytes
        # Projected rows, the same in float64, then weighted rows for order two or for order three.
        second = 8 * n_rows * self.rank + 8 * self.rank**2
        third = size * n_rows * self.rank + product_bytes(n_rows, self.rank, size) if self.third else 0
        return (size + 8) * n_rows * self.rank + max(second, third)

    @property
    def finish_bytes(self) -> int:
        # The memory-mapped total, its copy, and the correction, which is a tensor too.
        n_tensors = (3 if self.kind.distinct else 2) if self.third else 0
        rows = min(FINISH_ROWS, self.n_features) * self.kind.distinct
        return 8 * (n_tensors * self.rank**3 + (4 * rows + len(self.kept)) * self.rank)

    def specs(self) -> dict[str, SumSpec]:
        r = self.rank
        specs = {
            "m1": SumSpec((r,)),
            "m2": SumSpec((r, r)),
            "mass": SumSpec((3,)),
            "lengths": SumSpec((6,)),
        }
        if self.third:
            specs["m3"] = SumSpec((r, r, r))
        if self.mean:
            specs["mean"] = SumSpec((self.n_features,), by_feature=True)
        if self.half:
            specs["half"] = SumSpec((self.n_features, r), by_feature=True)
        if self.kept:
            specs["rows"] = SumSpec((len(self.kept), r))
        if self.kind.distinct:
            specs["pair_mass"] = SumSpec((self.n_features,), by_feature=True)
        if self.kind.distinct and self.third:
            specs |= _repeated_specs(self.n_features, r)
        if self.kind.needs_positions:
            specs |= {f"rule{order}": SumSpec((r,)) for order in rule_orders(self.kind)}
        return specs

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words = block.words
        weights = block_weights(block, self.kind)
        values = word_values(words, self.kind)
        projected = gather_columns(words.indptr, words.indices, values, self.basis)
        wide = projected.astype(np.float64)
        sums["m1"] += weights.rho1 @ wide
        sums["m2"] += wide.T @ (wide * weights.rho2[:, None])
        sums["mass"] += (weights.mass1, weights.mass2, weights.mass3)
        n, m = document_lengths(block, self.kind)
        own = row_weights(block)
        sums["lengths"] += (
            own.sum(), own[n >= 3].sum(), own @ n, own @ n**2, own @ n**3, own @ (n**2 * m)
        )  # fmt: skip
        if self.kind.needs_positions:
            sums["rule2"] += (weights.rho2 * (n - 1.0)) @ wide
            if self.kind.orders > 2:
                sums["rule3"] += (weights.rho3 * (n - 2.0) * wide.sum(axis=1)) @ wide
        if self.mean:
            column_sums(words.indptr, words.indices, values, weights.rho1, sums["mean"], self.slab.start)
        if self.kept:
            # Every document is in one block only, so that a sum over blocks and shards is the row itself.
            _, slots, own_rows = np.intersect1d(self.kept, self.positions(block), return_indices=True)
            long = n[own_rows] >= 3
            sums["rows"][slots[long]] += wide[own_rows[long]]
        if self.half:
            weighted = wide * weights.rho2[:, None]
            scatter(words.indptr, words.indices, values, weighted, sums["half"], self.slab.start)
        if self.kind.distinct:
            column_sums(words.indptr, words.indices, values, weights.rho2, sums["pair_mass"], self.slab.start)
        if self.third:
            add_third_moment(sums["m3"], projected, projected, weights.rho3)
        if self.kind.distinct and self.third:
            _add_repeated(sums, block, values, wide, weights.rho3, self.slab.start)
        return None


@dataclass(frozen=True)
class WordSlicesPass(ProjectedPass):
    """Contract the whitened third word moment with given directions.

    Attributes
    ----------
    kind : MomentKind
    basis : matrix of shape (n_words, r)
        Q, as in `WordMomentsPass`.
    rank : int
        r.
    whitener : ndarray of shape (r, k)
        W, which whitens the second moment in the basis.
    directions : ndarray of shape (k, m)
        The h_l as columns.
    n_states, n_slices : int
        k and m.
    single : bool
        Whether blocks are multiplied in float32.

    Notes
    -----
    Sums: ``slices`` (k, m, k) by blocks, slice l being ``P' diag(rho3 * (P h_l)) P`` for the whitened rows
    ``P = X Q W``, and ``mass`` (). With distinct positions also ``pair_rows`` (n_words, k) and ``triple_mass``
    (n_words,), with which `word_slices` takes the repeated positions out.
    """

    kind: MomentKind = field(default_factory=MomentKind)
    basis: Any = None
    rank: int = 0
    whitener: Any = None
    directions: Any = None
    n_states: int = 0
    n_slices: int = 0
    single: bool = False

    # As in `WordMomentsPass`.
    block_rows = 8192

    @property
    def name(self) -> str:
        return "slices"

    def working_bytes(self, n_rows: int) -> int:
        size = self.value_bytes
        # Projected, whitened and weighted rows, and the factors of the slices.
        rows = n_rows * (self.rank + 2 * self.n_states + self.n_slices)
        wide = 2 * 8 * n_rows * self.n_states * self.kind.distinct
        return size * rows + wide + product_bytes(n_rows, self.n_states, size)

    @property
    def finish_bytes(self) -> int:
        # The memory-mapped total, its copy, the reordered copy, and the correction of the same size.
        n_copies = 4 if self.kind.distinct else 3
        rows = min(FINISH_ROWS, self.n_features) * self.kind.distinct
        slices = n_copies * self.n_states**2 * self.n_slices
        return 8 * (slices + rows * (self.rank + 5 * self.n_states))

    def specs(self) -> dict[str, SumSpec]:
        k = self.n_states
        specs = {"slices": SumSpec((k, self.n_slices, k)), "mass": SumSpec(())}
        return specs | _repeated_specs(self.n_features, k) if self.kind.distinct else specs

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words = block.words
        weights = block_weights(block, self.kind)
        values = word_values(words, self.kind)
        projected = gather_columns(words.indptr, words.indices, values, self.basis)
        white = projected @ self.whitener.astype(projected.dtype)
        factors = white @ self.directions.astype(projected.dtype)
        add_slices(sums["slices"], white, white, factors, weights.rho3)
        sums["mass"] += weights.mass3
        if self.kind.distinct:
            _add_repeated(sums, block, values, white.astype(np.float64), weights.rho3, self.slab.start)
        return None


def _repeated_specs(n_words: int, width: int) -> dict[str, SumSpec]:
    return {
        "pair_rows": SumSpec((n_words, width), by_feature=True),
        "triple_mass": SumSpec((n_words,), by_feature=True),
    }


def _add_repeated(
    sums: Sums, block: Block, values: np.ndarray, rows: np.ndarray, rho3: np.ndarray, first: int
) -> None:
    """Add the rows and weights by word from which triples with a repeated position are subtracted later."""
    words = block.words
    scatter(words.indptr, words.indices, values, rows * rho3[:, None], sums["pair_rows"], first)
    column_sums(words.indptr, words.indices, values, rho3, sums["triple_mass"], first)
