"""Power steps of the third word moment, which is never formed: one pass over the documents for all vectors.

With ``eta = Q W v`` for every vector v in the whitened basis, and counts x of a document (tensor paper, section
6.1.2), `WordPowerPass` adds up

    M3(I, eta, eta) = sum rho3 [x (s^2 - t) - 2 s (x * eta) + 2 x * eta^2],   s = x'eta,   t = x'eta^2

where ``*`` is taken word by word, and the terms other than ``x s^2`` are left out with ``moments="paper"``. Its
cost is proportional to the entries of the corpus times the number of vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distmom.compiled import compiled
from distmom.corpus import Block
from distmom.engine.passes import Rows
from distmom.engine.stored.arrays import Columns
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.engine.sums.tall import Tall
from distmom.moments.documents.word_moments import FINISH_ROWS, basis_rows
from distmom.moments.kernels import column_sums, gather_columns, scatter
from distmom.moments.sketching import ProjectedPass
from distmom.moments.weighting import MomentKind, block_weights, positive, word_values


@dataclass(frozen=True)
class WordPowerPass(ProjectedPass):
    """Contract two modes of the third word moment with each of some vectors.

    Attributes
    ----------
    kind : MomentKind
    vectors : matrix of shape (n_words, m)
        The eta as columns: an array, or slabs of columns. Its type is the type in which blocks are multiplied.
    n_vectors : int
        m.
    single : bool
        Whether that type is float32.

    Notes
    -----
    Sums: ``steps`` (n_words, m), ``sum rho3 x (s^2 - t)``, and ``mass`` (). With distinct positions also ``pairs``
    (n_words, m), ``sum rho3 s x``, and ``triple_mass`` (n_words,), ``sum rho3 x``, with which `word_steps` takes
    the other repeated positions out.
    """

    kind: MomentKind = field(default_factory=MomentKind)
    vectors: Any = None
    n_vectors: int = 0
    single: bool = False

    # No sum of r^3 numbers is read and written once per block.
    block_rows = 1 << 13

    @property
    def name(self) -> str:
        return "tensor-power"

    @property
    def projector(self) -> tuple[Any, int]:
        return self.vectors, self.n_vectors

    def working_bytes(self, n_rows: int) -> int:
        # Products of the rows and their weighted squares, in the type of the vectors and in float64.
        return (1 + self.kind.distinct) * (self.value_bytes + 2 * 8) * n_rows * self.n_vectors

    @property
    def finish_bytes(self) -> int:
        return 8 * 6 * min(FINISH_ROWS, self.n_features) * self.n_vectors

    def specs(self) -> dict[str, SumSpec]:
        d, m = self.n_features, self.n_vectors
        specs = {"steps": SumSpec((d, m), by_feature=True), "mass": SumSpec(())}
        if self.kind.distinct:
            specs["pairs"] = SumSpec((d, m), by_feature=True)
            specs["triple_mass"] = SumSpec((d,), by_feature=True)
        return specs

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words, first = block.words, self.slab.start
        weights = block_weights(block, self.kind)
        values = word_values(words, self.kind)
        s = gather_columns(words.indptr, words.indices, values, self.vectors).astype(np.float64)
        weighted = s * weights.rho3[:, None]
        squares = weighted * s
        if self.kind.distinct:
            scatter(words.indptr, words.indices, values, weighted, sums["pairs"], first)
            column_sums(words.indptr, words.indices, values, weights.rho3, sums["triple_mass"], first)
            squares -= _gather_squares(words, values, self.vectors) * weights.rho3[:, None]
        scatter(words.indptr, words.indices, values, squares, sums["steps"], first)
        sums["mass"] += weights.mass3
        return None


def word_steps(
    sums: Sums, kind: MomentKind, whitener: np.ndarray, vectors: np.ndarray, basis: Tall
) -> np.ndarray:
    """Turn the sums of `WordPowerPass` into power steps of the whitened third moment.

    Parameters
    ----------
    sums : Sums
    kind : MomentKind
        As in the pass.
    whitener : ndarray of shape (r, k)
        W.
    vectors : ndarray of shape (k, m)
        The v as columns; the pass had ``Q W v``.
    basis : matrix of shape (n_words, r)
        Q.

    Returns
    -------
    ndarray of shape (k, m), float64
        ``T(I, v_l, v_l)`` along the last axis, for ``T = M3(QW, QW, QW)``.
    """
    total = np.zeros(vectors.shape)
    for part, row in basis_rows(basis, len(sums["steps"])):
        q = row @ whitener
        found = np.array(sums["steps"][part])
        if kind.distinct:
            eta = q @ vectors
            masses = np.asarray(sums["triple_mass"][part])[:, None]
            found += 2.0 * eta * (masses * eta - np.asarray(sums["pairs"][part]))
        total += q.T @ found
    return total / positive(sums["mass"])


def _gather_squares(words: Any, values: np.ndarray, vectors: np.ndarray | Columns) -> np.ndarray:
    """Multiply sparse rows by the squares of a dense matrix, which may be in slabs of columns."""
    each = vectors.each() if isinstance(vectors, Columns) else [vectors]
    return np.concatenate(
        [gather_squares(words.indptr, words.indices, values, part) for part in each], axis=1
    )


@compiled
def gather_squares(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, matrix: np.ndarray
) -> np.ndarray:
    """Multiply sparse rows by the squares of a dense matrix (see `distmom.moments.kernels.gather`).

    Parameters
    ----------
    indptr, indices, data : ndarray
        CSR rows, (n, d).
    matrix : ndarray of shape (d, m)

    Returns
    -------
    ndarray of shape (n, m), float64
    """
    n, m = indptr.shape[0] - 1, matrix.shape[1]
    out = np.zeros((n, m))
    for i in range(n):
        for p in range(indptr[i], indptr[i + 1]):
            v, x = indices[p], np.float64(data[p])
            for c in range(m):
                y = np.float64(matrix[v, c])
                out[i, c] += x * y * y
    return out
