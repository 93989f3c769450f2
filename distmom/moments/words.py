"""Word moments of orders one to three, never formed in the size of the vocabulary.

With counts ``x`` (or 0/1 presence) of a document and the weights of `distmom.moments.weighting`:

    M1 = sum rho1 x                                   M2 = sum rho2 (x x' - diag x)
    M3 = sum rho3 (x (x) x (x) x - sym3(sum_v x_v e_v (x) e_v (x) x) + 2 sum_v x_v e_v (x) e_v (x) e_v)

each over its mass; the terms after the first are left out with ``moments="paper"`` (multi-label paper,
equations 16 and 18; tensor paper, equations 8 and 9). `WordSketchPass` returns ``M2 R`` for a test matrix or
basis R (d x r), `WordMomentsPass` the three moments in a basis Q (d x r): ``Q'M1``, ``Q'M2 Q``, ``M3(Q,Q,Q)``.
Where r^3 numbers are too many, `WordSlicesPass` returns contractions ``M3(QW, QW, QW h)`` in place of the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distmom.corpus import Block
from distmom.engine.passes import Pass, Rows
from distmom.engine.state import release, release_maps
from distmom.engine.sums import Sums, SumSpec
from distmom.engine.tall import Tall, TallSum, read_rows
from distmom.moments.kernels import (
    BLOCK_ROWS,
    TENSOR_BLOCK,
    add_slices,
    add_third_moment,
    column_sums,
    fill_pairs,
    fill_symmetric,
    gather_columns,
    row_sums,
    scatter,
)
from distmom.moments.sketching import SketchPass, add_product, n_stored_slabs, omega_key
from distmom.moments.weighting import DocumentWeights, MomentKind, document_weights, word_values

#: rows of the vocabulary that are worked on at a time when repeated positions are taken out
_FINISH_ROWS = 8192


@dataclass(frozen=True)
class WordSketchPass(SketchPass):
    """Multiply the second word moment by a test matrix or a basis.

    Attributes
    ----------
    kind : MomentKind

    Notes
    -----
    Sums and noise as in `SketchPass`; a unit that has a random sign is a document.
    """

    kind: MomentKind = field(default_factory=MomentKind)

    # Nothing is held for every row of a block.
    block_rows = 1 << 15

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        weights = block_weights(block, self.kind)
        columns = self.columns or slice(0, self.n_columns)
        basis = self.part_of(self.basis, columns.start - self.first_column, columns.stop - self.first_column)
        self._add(sums["sketch"], block, weights.rho2, basis, columns.start)
        if "noise" in sums and block.weights is None:
            probes = self.part_of(self.probes, 0, self.n_probes)
            signs = self.signs(block.first, block.n_documents)
            self._add(sums["noise"], block, weights.rho2 * signs, probes, self.n_columns)
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
class WordMomentsPass(Pass):
    """Project the word moments of orders one to three onto a basis.

    Attributes
    ----------
    kind : MomentKind
    basis : matrix of shape (n_words, r)
        An array, or slabs of columns. Its type is the type in which blocks are multiplied.
    single : bool
        That type is float32.
    third : bool
        Of order three as well.
    mean : bool
        Also of order one for every word.
    half : bool
        Also of order two with one side in the basis alone, ``M2 Q``.

    Notes
    -----
    Sums: ``m1`` (r,), ``m2`` (r, r), ``mass`` (3,), ``lengths`` (6,): documents, documents with at least three
    words, and the sums of n, n^2, n^3, n^2 m; with the third moment ``m3`` (r, r, r) by blocks; with the mean
    ``mean`` (n_words,), of mass ``mass[0]``; with half ``half`` (n_words, r), of mass ``mass[1]``. With distinct
    positions also what `word_moments` needs to take the repeated positions out: ``pair_mass`` (n_words,), and for
    the third moment ``pair_rows`` (n_words, r) and ``triple_mass`` (n_words,).
    """

    kind: MomentKind = field(default_factory=MomentKind)
    basis: Any = None
    rank: int = 0
    single: bool = False
    third: bool = True
    mean: bool = False
    half: bool = False

    # A sum of r^3 numbers is read and written once a block.
    block_rows = 8192

    @property
    def name(self) -> str:
        return "moments"

    @property
    def n_stored_slabs(self) -> int:
        return n_stored_slabs(self.basis)

    @property
    def mapped_bytes(self) -> int:
        return (4 if self.single else 8) * self.n_words * self.rank

    def working_bytes(self, n_rows: int) -> int:
        size = 4 if self.single else 8
        # Rows projected, the same in float64, then either again with weights, or with weights for order three.
        second = 8 * n_rows * self.rank + 8 * self.rank**2
        third = size * n_rows * self.rank + _product_bytes(n_rows, self.rank, size) if self.third else 0
        return (size + 8) * n_rows * self.rank + max(second, third)

    @property
    def finish_bytes(self) -> int:
        # The total is mapped and copied; the correction is a tensor too.
        n_tensors = (3 if self.kind.distinct else 2) if self.third else 0
        rows = min(_FINISH_ROWS, self.n_words) * self.kind.distinct
        return 8 * (n_tensors * self.rank**3 + 4 * rows * self.rank)

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
            specs["mean"] = SumSpec((self.n_words,), by_feature=True)
        if self.half:
            specs["half"] = SumSpec((self.n_words, r), by_feature=True)
        if self.kind.distinct:
            specs["pair_mass"] = SumSpec((self.n_words,), by_feature=True)
        if self.kind.distinct and self.third:
            specs |= _repeated_specs(self.n_words, r)
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
        if self.mean:
            column_sums(words.indptr, words.indices, values, weights.rho1, sums["mean"], self.slab.start)
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
class WordSlicesPass(Pass):
    """Contract the whitened third word moment with some directions.

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
        Blocks are multiplied in float32.

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

    # As many products are formed of a row as in the moments.
    block_rows = 8192

    @property
    def name(self) -> str:
        return "slices"

    @property
    def n_stored_slabs(self) -> int:
        return n_stored_slabs(self.basis)

    @property
    def mapped_bytes(self) -> int:
        return (4 if self.single else 8) * self.n_words * self.rank

    def working_bytes(self, n_rows: int) -> int:
        size = 4 if self.single else 8
        # Projected, whitened and weighted rows and the factors of the slices.
        rows = n_rows * (self.rank + 2 * self.n_states + self.n_slices)
        wide = 2 * 8 * n_rows * self.n_states * self.kind.distinct
        return size * rows + wide + _product_bytes(n_rows, self.n_states, size)

    @property
    def finish_bytes(self) -> int:
        # The total is mapped, copied and put into another order; the correction is as large.
        n_copies = 4 if self.kind.distinct else 3
        rows = min(_FINISH_ROWS, self.n_words) * self.kind.distinct
        slices = n_copies * self.n_states**2 * self.n_slices
        return 8 * (slices + rows * (self.rank + 5 * self.n_states))

    def specs(self) -> dict[str, SumSpec]:
        k = self.n_states
        specs = {"slices": SumSpec((k, self.n_slices, k)), "mass": SumSpec(())}
        return specs | _repeated_specs(self.n_words, k) if self.kind.distinct else specs

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


def _product_bytes(n_rows: int, width: int, size: int) -> int:
    """Bytes of what is formed of a block of rows for products of three."""
    n = min(n_rows, BLOCK_ROWS)
    return size * (n * (2 * width + TENSOR_BLOCK**2) + TENSOR_BLOCK**2 * width)


def _repeated_specs(n_words: int, width: int) -> dict[str, SumSpec]:
    return {
        "pair_rows": SumSpec((n_words, width), by_feature=True),
        "triple_mass": SumSpec((n_words,), by_feature=True),
    }


def _add_repeated(
    sums: Sums, block: Block, values: np.ndarray, rows: np.ndarray, rho3: np.ndarray, first: int
) -> None:
    """Add what takes the triples with a repeated position out: rows and weights by word."""
    words = block.words
    scatter(words.indptr, words.indices, values, rows * rho3[:, None], sums["pair_rows"], first)
    column_sums(words.indptr, words.indices, values, rho3, sums["triple_mass"], first)


@dataclass(frozen=True)
class WordMoments:
    """Word moments in a basis Q of r columns.

    Attributes
    ----------
    m1 : ndarray of shape (r,)
        ``Q'M1``.
    m2 : ndarray of shape (r, r)
        ``Q'M2 Q``.
    m3 : ndarray of shape (r, r, r) or None
        ``M3(Q, Q, Q)``, where it was added up.
    lengths : dict of str to float
        Number of documents and means of the powers of their lengths.
    """

    m1: np.ndarray
    m2: np.ndarray
    m3: np.ndarray | None
    lengths: dict[str, float]


def word_moments(sums: Sums, kind: MomentKind, basis: Tall | None = None) -> WordMoments:
    """Turn the sums of `WordMomentsPass` into moments.

    Parameters
    ----------
    sums : Sums
    kind : MomentKind
        As in the pass.
    basis : matrix of shape (n_words, r), optional
        The pass's basis; needed to take out repeated positions.
    """
    m2 = np.array(sums["m2"])
    m3 = fill_symmetric(np.array(sums["m3"])) if "m3" in sums else None
    if kind.distinct:
        pairs = None if m3 is None else np.zeros_like(m3)
        for part, q in _basis_rows(basis, len(sums["pair_mass"])):
            m2 -= q.T @ (q * np.asarray(sums["pair_mass"][part])[:, None])
            if pairs is not None:
                # sym3(q q z) of z = pair_rows, less (2/3) of itself at z = triple_mass q: one product for both.
                add_third_moment(pairs, q, _repeated_rows(sums, part, q))
        if m3 is not None and pairs is not None:
            fill_pairs(pairs)
            for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0)):
                m3 -= pairs.transpose(order)
    mass1, mass2, mass3 = (_positive(x) for x in sums["mass"])
    if m3 is not None:
        m3 /= mass3
    count, usable, n1, n2, n3, n2m = (float(x) for x in sums["lengths"])
    scale = max(count, 1.0)
    lengths = {
        "n_documents": count,
        "n_with_triples": usable,
        "mean_length": n1 / scale,
        "mean_length2": n2 / scale,
        "mean_length3": n3 / scale,
        "mean_length2_labels": n2m / scale,
    }
    return WordMoments(np.asarray(sums["m1"]) / mass1, (m2 + m2.T) / (2 * mass2), m3, lengths)


def half_rows(sums: Sums, part: slice, basis_rows: np.ndarray) -> np.ndarray:
    """Return rows of ``M2 Q`` from the sums of a pass over distinct positions with one side in the basis.

    Parameters
    ----------
    sums : Sums
    part : slice
        Words.
    basis_rows : ndarray of shape (n, r)
        Their rows of the pass's basis.
    """
    half, pairs = np.asarray(sums["half"][part]), np.asarray(sums["pair_mass"][part])
    return np.asarray((half - pairs[:, None] * basis_rows) / _positive(sums["mass"][1]))


def word_slices(
    sums: Sums, kind: MomentKind, whitener: np.ndarray, directions: np.ndarray, basis: Tall | None = None
) -> np.ndarray:
    """Turn the sums of `WordSlicesPass` into slices of the whitened third moment.

    Parameters
    ----------
    sums : Sums
    kind : MomentKind
    whitener : ndarray of shape (r, k)
    directions : ndarray of shape (k, m)
        All as in the pass.
    basis : matrix of shape (n_words, r), optional
        Needed to take out repeated positions.

    Returns
    -------
    ndarray of shape (k, k, m), float64
        ``T(I, I, h_l)`` along the last axis, for ``T = M3(QW, QW, QW)``.
    """
    total = np.array(sums["slices"])
    if not kind.distinct:
        found = np.ascontiguousarray(fill_pairs(total.transpose(0, 2, 1)))
    else:
        # sym3(q q z) as in `word_moments`, contracted: (z'h) q q' + (q'h) (q z' + z q').
        cross = np.zeros_like(total)
        for part, row in _basis_rows(basis, len(sums["triple_mass"])):
            q = row @ whitener
            z = _repeated_rows(sums, part, q)
            add_slices(total, q, q, -(z @ directions))
            add_slices(cross, q, z, q @ directions)
        found = np.ascontiguousarray(fill_pairs(total.transpose(0, 2, 1)))
        found -= cross.transpose(0, 2, 1)
        found -= cross.transpose(2, 0, 1)
    found /= _positive(sums["mass"])
    return found


def _basis_rows(basis: Tall | None, n_rows: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield slabs of rows of a basis, float64, and give back what was mapped for them."""
    if basis is None:
        raise ValueError("moments of distinct positions need the basis")
    for start in range(0, n_rows, _FINISH_ROWS):
        part = slice(start, min(start + _FINISH_ROWS, n_rows))
        yield part, np.asarray(read_rows(basis, part), np.float64)
        release_maps()


def _repeated_rows(sums: Sums, part: slice, q: np.ndarray) -> np.ndarray:
    """Return the z of some words with which sym3(q q z) is what repeated positions add."""
    pairs, masses = sums["pair_rows"], sums["triple_mass"]
    rows = np.asarray(pairs[part]) - (2.0 / 3.0) * np.asarray(masses[part])[:, None] * q
    release(pairs)
    return np.asarray(rows)


def _positive(mass: Any) -> float:
    return max(float(mass), np.finfo(float).tiny)


def document_lengths(block: Block, kind: MomentKind) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of words and of labels of every document of a block, float64.

    All its words: the pairs of some words are a part of the pairs of all, and only so moments of their own.
    """
    words = block.words if block.whole is None else block.whole
    if kind.binary:
        n = np.diff(words.indptr).astype(np.float64)
    else:
        n = row_sums(words.indptr, word_values(words, kind))
    return n, np.diff(block.labels.indptr).astype(np.float64)


def row_weights(block: Block) -> np.ndarray:
    """Return how often every document of a block counts, float64."""
    return np.ones(block.n_documents) if block.weights is None else block.weights


def block_weights(block: Block, kind: MomentKind) -> DocumentWeights:
    """Return the weights of the documents of a block."""
    n, m = document_lengths(block, kind)
    return document_weights(n, m, kind, block.weights)
