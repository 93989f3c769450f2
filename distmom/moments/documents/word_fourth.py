"""Word moments of orders one to four in whitened coordinates, by random parts of the documents.

Over quadruples of distinct positions of a document with counts x, the fourth moment is (ECA paper, Quadruples)

    M4 = sum rho4 [x^(x)4 - sym6(D2 (x) x (x) x) + sym3(D2 (x) D2) + 2 sym4(D3 (x) x) - 6 D4],
    D_j = sum_v x_v e_v^(x)j

with the weights of `distmom.moments.weighting`. It is never formed: `WordFourthPass` adds up its contractions
with pairs of directions, in addition to the whole moments of orders one to three in the same coordinates, which
correct it for a distribution of the factors (`distmom.moments.documents.dirichlet.fourth_moment`). Repeated
positions are subtracted block by block, so that no sum has a row per word. Differences between parts give the
sampling errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distmom.corpus import Block
from distmom.engine.passes import Rows
from distmom.engine.stored.arrays import Columns
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.errors import InputError, UsageError
from distmom.moments.kernels import (
    add_third_moment,
    fill_pairs,
    fill_symmetric,
    gather,
    product_bytes,
    scatter,
)
from distmom.moments.sketching import ProjectedPass
from distmom.moments.small import SmallMoments
from distmom.moments.views.fourth import crossed_products
from distmom.moments.views.groups import N_PARTS, mean_of_parts, part_numbers
from distmom.moments.weighting import (
    DocumentWeights,
    MomentKind,
    block_weights,
    document_lengths,
    row_weights,
    word_values,
)

#: number of positions of the tuples of the fourth moment
POSITIONS = 4


@dataclass(frozen=True)
class WordFourthPass(ProjectedPass):
    """Add up whitened word moments: orders one to three, and the fourth contracted with pairs of directions.

    Attributes
    ----------
    kind : MomentKind
        Moments of distinct positions, with ``orders=4``.
    basis : matrix of shape (n_words, r)
        Q: an array, or slabs of columns.
    rank : int
        r.
    whitener : ndarray of shape (r, k)
        W, which whitens the second moment in the basis.
    left, right : ndarray of shape (k, m)
        The pairs a, b as columns.
    n_states, n_pairs : int
        k and m.
    seed : int
        Seed of the assignment of documents to parts.
    single : bool
        Whether the basis is float32; products are always float64.

    Raises
    ------
    UsageError
        If the kind is of other positions or orders.

    Notes
    -----
    Sums over p parts: ``m1`` (p, k), ``m2`` (p, k, k), ``m3`` (p, k, k, k), ``fourth`` (p, m, k, k), ``mass``
    (p, 4), and ``documents`` (2,): documents, and those of at least four positions. Documents with weights are all
    in the first part. A document costs a time proportional to its words times k, plus k^2, for every pair.
    """

    kind: MomentKind = field(default_factory=lambda: MomentKind("distinct", binary=False, orders=POSITIONS))
    basis: Any = None
    rank: int = 0
    whitener: Any = None
    left: Any = None
    right: Any = None
    n_states: int = 0
    n_pairs: int = 0
    seed: int = 0
    single: bool = False

    # Sums of k^3 and m k^2 numbers are read and written once per part of a block.
    block_rows = 8192

    def __post_init__(self) -> None:
        if not self.kind.distinct or self.kind.orders != POSITIONS:
            raise UsageError(
                f"the fourth word moment needs distinct positions and {POSITIONS} orders, got "
                f"moments={self.kind.moments!r} and orders={self.kind.orders}"
            )

    @property
    def name(self) -> str:
        return "fourth"

    def working_bytes(self, n_rows: int) -> int:
        k = self.n_states
        # Rows of the basis, whitened ones, and their products with a pair; then sums over documents of each word.
        of_words = self.n_features * (self.rank + 6 * k + 16)
        triples = product_bytes(max(n_rows, self.n_features), k, 8)
        return 8 * (of_words + n_rows * (8 * k + 20) + 4 * k**3) + triples

    @property
    def finish_bytes(self) -> int:
        k = self.n_states
        return 8 * (2 * N_PARTS + 4) * k**2 * (k + self.n_pairs)

    def specs(self) -> dict[str, SumSpec]:
        k = self.n_states
        return {
            "m1": SumSpec((N_PARTS, k)),
            "m2": SumSpec((N_PARTS, k, k)),
            "m3": SumSpec((N_PARTS, k, k, k)),
            "fourth": SumSpec((N_PARTS, self.n_pairs, k, k)),
            "mass": SumSpec((N_PARTS, POSITIONS)),
            "documents": SumSpec((2,)),
        }

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        own, lengths = row_weights(block), document_lengths(block, self.kind)[0]
        sums["documents"] += (own.sum(), own[lengths >= POSITIONS].sum())
        for index, part in self._parts(block):
            weights = block_weights(part, self.kind)
            sums["mass"][index] += (weights.mass1, weights.mass2, weights.mass3, weights.mass4)
            documents = _Documents.of(part, self.kind, self.basis, self.whitener)
            documents.add_lower(sums["m1"][index], sums["m2"][index], sums["m3"][index], weights)
            for pair in range(self.n_pairs):
                found = documents.fourth(self.left[:, pair], self.right[:, pair], weights.rho4)
                sums["fourth"][index, pair] += found
        return None

    def _parts(self, block: Block) -> Iterator[tuple[int, Block]]:
        """Yield the number of every part that is not empty, with its documents."""
        if block.weights is not None:
            yield 0, block
            return
        numbers = part_numbers(block, self.seed)
        for part in range(N_PARTS):
            if (numbers == part).any():
                yield part, block.take(numbers == part)


@dataclass(frozen=True)
class _Documents:
    """Sparse rows over the words that occur in them, and these words in whitened coordinates.

    Attributes
    ----------
    indptr, indices, values : ndarray
        CSR rows, (n, u).
    words : ndarray of shape (u, k), float64
    sums : ndarray of shape (n, k), float64
        Sums of the words of every document.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    words: np.ndarray
    sums: np.ndarray

    @classmethod
    def of(cls, block: Block, kind: MomentKind, basis: Any, whitener: np.ndarray) -> _Documents:
        there = np.zeros(block.words.shape[1], bool)
        there[block.words.indices] = True
        numbers = np.cumsum(there) - 1
        parts = basis.each() if isinstance(basis, Columns) else iter((basis,))
        rows = np.concatenate([np.asarray(part[there], np.float64) for part in parts], axis=1)
        indptr, indices, values = (
            block.words.indptr,
            numbers[block.words.indices],
            word_values(block.words, kind),
        )
        words = rows @ whitener
        return cls(indptr, indices, values, words, gather(indptr, indices, values, words))

    def summed(self, of_words: np.ndarray) -> np.ndarray:
        """Return the sums over the positions of every document."""
        return np.asarray(gather(self.indptr, self.indices, self.values, of_words))

    def added(self, of_documents: np.ndarray) -> np.ndarray:
        """Return the sums over the positions of every word."""
        out = np.zeros((len(self.words), of_documents.shape[1]))
        scatter(self.indptr, self.indices, self.values, of_documents, out, 0)
        return out

    def add_lower(self, m1: np.ndarray, m2: np.ndarray, m3: np.ndarray, weights: DocumentWeights) -> None:
        """Add the moments of orders one to three."""
        w, y = self.words, self.sums
        k = w.shape[1]
        by_word = self.added(np.column_stack([y * weights.rho3[:, None], weights.rho3, weights.rho2]))
        m1 += weights.rho1 @ y
        m2 += y.T @ (y * weights.rho2[:, None]) - w.T @ (w * by_word[:, k + 1 :])
        third, pairs = np.zeros_like(m3), np.zeros_like(m3)
        add_third_moment(third, y, y, weights.rho3)
        # sym3(w w z) is the contribution of repeated positions, as in `word_moments`.
        add_third_moment(pairs, w, by_word[:, :k] - (2.0 / 3.0) * w * by_word[:, k : k + 1])
        fill_symmetric(third)
        fill_pairs(pairs)
        for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0)):
            third -= pairs.transpose(order)
        m3 += third

    def fourth(self, left: np.ndarray, right: np.ndarray, rho4: np.ndarray) -> np.ndarray:
        """Return the weighted sum of the fourth moments, contracted with a pair of directions, (k, k)."""
        w = self.words
        k = w.shape[1]
        a, b = (w @ left)[:, None], (w @ right)[:, None]
        found = self.summed(np.concatenate([a * w, b * w, a * b * w, a, b, a * b], axis=1))
        a_y, b_y, ab_y = (found[:, i * k : (i + 1) * k] for i in range(3))
        A, B, ab = found[:, 3 * k :].T
        out = crossed_products(self.sums, a_y, b_y, ab_y, (A, B, ab), rho4)
        # Positions of one word have one vector, so that products of two are added up word by word.
        same, with_a, with_b, own = self.added(
            np.column_stack([rho4 * (ab - A * B), rho4 * A, rho4 * B, rho4])
        ).T
        a, b = a[:, 0], b[:, 0]
        repeated = same + 2.0 * (a * with_b + b * with_a) - 6.0 * a * b * own
        return np.asarray(out + w.T @ (w * repeated[:, None]))


@dataclass(frozen=True)
class FourthMoments:
    """Whitened moments of orders one to four.

    Attributes
    ----------
    moments : SmallMoments
        Orders one to three of all documents.
    fourth : ndarray of shape (k, k, m)
        Contractions of the fourth moment of all documents.
    parts : tuple of SmallMoments
    fourth_parts : tuple of ndarray of shape (k, k, m)
        The same of every part of the documents.
    """

    moments: SmallMoments
    fourth: np.ndarray
    parts: tuple[SmallMoments, ...]
    fourth_parts: tuple[np.ndarray, ...]


def word_fourth(sums: Sums) -> FourthMoments:
    """Turn the sums of `WordFourthPass` into moments of all documents, and of every part.

    Raises
    ------
    InputError
        If no document has four positions.
    """
    count, usable = (float(x) for x in sums["documents"])
    if not usable > 0.0:
        raise InputError(
            f"expected documents of at least {POSITIONS} words for the fourth moment, got none among {count:g}"
        )
    mass = np.asarray(sums["mass"])
    used = np.flatnonzero(mass.min(axis=1) > 0.0)
    weights = mass[used].T

    def of_parts(name: str, order: int) -> list[np.ndarray]:
        return [np.asarray(sums[name][index]) / mass[index, order - 1] for index in used]

    m1, m2, m3 = (of_parts(f"m{order}", order) for order in (1, 2, 3))
    m2 = [(each + each.T) / 2.0 for each in m2]
    fourth = [np.ascontiguousarray(each.transpose(1, 2, 0)) for each in of_parts("fourth", POSITIONS)]
    of_all = [mean_of_parts(x, own) for x, own in zip((m1, m2, m3), weights[:3], strict=True)]
    whole = SmallMoments(of_all[0], of_all[1], of_all[2])
    parts = tuple(SmallMoments(*each) for each in zip(m1, m2, m3, strict=True))
    return FourthMoments(whole, mean_of_parts(fourth, weights[3]), parts, tuple(fourth))
