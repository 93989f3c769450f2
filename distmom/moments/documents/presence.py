"""Passes over the presence of words, centred and scaled: products of correlations, and moments in a basis.

With x the presence of the words of a document, m its mean and D a diagonal of scales, rows are ``z = D(x - m)``.
`PresenceSketchPass` multiplies the second moment of x - m by a test matrix or a basis. `PresenceMomentsPass` adds
up moments of ``y = Q'z``, of orders one to three. Absent words take no time, as their values are constants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.corpus import Block
from distmom.engine.passes import Rows
from distmom.engine.stored.arrays import Columns
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.kernels import (
    BLOCK_ROWS,
    TENSOR_BLOCK,
    add_third_moment,
    gather,
    gather_columns,
    row_sums,
    scatter,
)
from distmom.moments.sketching import ProjectedPass, SketchPass, drawn_bytes
from distmom.moments.weighting import row_weights

#: number of words at a time from whose products the mean is subtracted
_PIECE_WORDS = 1 << 12


@dataclass(frozen=True)
class PresenceSketchPass(SketchPass):
    """Multiply the second moment of the presence of words by a test matrix or a basis.

    Attributes
    ----------
    scale : ndarray of shape (n_words, 1)
        D, which only ``squares`` takes into account.
    origin : ndarray of shape (n_words, 1), optional
        Subtracted from every row; zero by default.

    Notes
    -----
    Sums in addition to those of `SketchPass`: ``squares`` (), the sum of the squared norms of the scaled rows, and
    without an origin ``mean`` (n_words, 1), tall, the sum of the rows.
    """

    scale: Any = None
    origin: Any = None

    @property
    def mapped_bytes(self) -> int:
        return drawn_bytes(self)

    def working_bytes(self, n_rows: int) -> int:
        return 8 * (2 * n_rows + _PIECE_WORDS) * self.n_columns

    def specs(self) -> dict[str, SumSpec]:
        specs = super().specs() | {"squares": SumSpec(())}
        if self.origin is None:
            specs["mean"] = SumSpec((self.n_features, 1), tall="features")
        return specs

    def about(self, origin: Any) -> PresenceSketchPass:
        return replace(self, origin=origin)

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words, weights, matrix = block.words, row_weights(block), self.matrix()
        ones = np.ones(words.nnz)
        products = gather(words.indptr, words.indices, ones, matrix)
        mean = None if self.origin is None else np.asarray(self.origin, np.float64)
        if mean is not None:
            products -= _product(block, mean[:, 0], matrix)
        products *= weights[:, None]
        scatter(words.indptr, words.indices, ones, products, sums["sketch"].single, 0)
        if mean is None:
            # Of several slabs of columns, only the first has the mean.
            if "mean" in sums:
                scatter(words.indptr, words.indices, ones, weights[:, None], sums["mean"].single, 0)
                sums["mean"].settle()
        else:
            total, sketch = _product(block, np.ones(len(products)), products), sums["sketch"].single
            for start in range(0, len(sketch), _PIECE_WORDS):
                piece = slice(start, start + _PIECE_WORDS)
                sketch[piece] -= mean[piece] * total
        sums["sketch"].settle()
        sums["squares"] += weights @ _squared_norms(block, np.asarray(self.scale), mean)
        sums["mass"] += weights.sum()
        return None


@dataclass(frozen=True)
class PresenceMomentsPass(ProjectedPass):
    """Add up the moments of centred and scaled rows in a basis, of orders one to three.

    Attributes
    ----------
    basis : matrix of shape (n_words, r), float64
        D Q; an array, or slabs of columns.
    scale, origin : ndarray of shape (n_words, 1)
        D, and the mean of the rows.
    rank : int
        r.

    Notes
    -----
    Sums of y and ``s = ||z||^2``, named as those of `distmom.moments.rows.gaussian.RowMomentsPass`: ``y`` (r,),
    ``yy`` (r, r), ``yyy`` (r, r, r), ``ys`` (r,), ``s`` (), ``mass`` (), ``sampled`` (), the number of documents
    without weights, and ``kept`` (0, r + 1).
    """

    basis: Any = None
    scale: Any = None
    origin: Any = None
    rank: int = 0

    @property
    def name(self) -> str:
        return "moments"

    @property
    def finish_bytes(self) -> int:
        return 8 * 4 * self.rank**3

    def working_bytes(self, n_rows: int) -> int:
        r, n = self.rank, min(n_rows, BLOCK_ROWS)
        products = n * (2 * r + TENSOR_BLOCK**2) + TENSOR_BLOCK**2 * r
        return 8 * (3 * n_rows * r + products)

    def specs(self) -> dict[str, SumSpec]:
        r = self.rank
        shapes: dict[str, tuple[int, ...]] = {
            "y": (r,), "yy": (r, r), "yyy": (r, r, r), "ys": (r,), "s": (), "mass": (), "sampled": (),
            "kept": (0, r + 1),
        }  # fmt: skip
        return {name: SumSpec(shape) for name, shape in shapes.items()}

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words, weights = block.words, row_weights(block)
        mean = np.asarray(self.origin, np.float64)
        Y = gather_columns(words.indptr, words.indices, np.ones(words.nnz), self.basis)
        Y -= _product(block, mean[:, 0], self.basis)
        s = _squared_norms(block, np.asarray(self.scale), mean)
        weighted = Y * weights[:, None]
        sums["mass"] += weights.sum()
        sums["sampled"] += len(Y) if block.weights is None else 0
        sums["s"] += weights @ s
        sums["y"] += weighted.sum(axis=0)
        sums["yy"] += Y.T @ weighted
        sums["ys"] += s @ weighted
        add_third_moment(sums["yyy"], Y, Y, None if block.weights is None else weights)
        return None


def _product(block: Block, row: np.ndarray, matrix: np.ndarray | Columns) -> np.ndarray:
    """Return the product of a row with a matrix, whose bits, unlike those of BLAS, do not depend on its slabs."""
    words = block.words
    indptr = np.array([0, len(row)], words.indptr.dtype)
    indices = np.arange(len(row), dtype=words.indices.dtype)
    return np.asarray(gather_columns(indptr, indices, row, matrix)[0])


def _squared_norms(block: Block, scale: np.ndarray, mean: np.ndarray | None) -> np.ndarray:
    """Return ``||D(x - m)||^2`` of the documents of a block, (n,); m is zero without a mean."""
    words = block.words
    present = scale[words.indices, 0] ** 2
    if mean is None:
        return row_sums(words.indptr, present)
    present *= 1.0 - 2.0 * mean[words.indices, 0]
    absent = np.einsum("i,i,i,i->", scale[:, 0], scale[:, 0], mean[:, 0], mean[:, 0])
    return np.asarray(row_sums(words.indptr, present) + absent)
