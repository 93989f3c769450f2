"""Label moments: how often each label occurs with each latent state.

With ``D`` (d x k) the un-rotated directions ``W U`` and z = X D, the cross moment of the multi-label paper
(equation 21) is ``Q_lk = sum_i rho_i y_il (z_ik^2 - sum_v x_iv D_vk^2)`` over its mass, the second term only
with distinct positions. The posterior moment is ``Q_lk = sum_i y_il P(h = k | x_i)`` with
``P(h | x) ~ pi_h prod_{v in x} O_vh`` over the distinct words (equation 14).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distmom.corpus import Block
from distmom.engine.passes import Pass, Rows
from distmom.engine.stored.arrays import Columns
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.engine.sums.tall import TallSum
from distmom.moments.kernels import gather, gather_columns
from distmom.moments.sketching import scatter_rows
from distmom.moments.weighting import MomentKind, block_weights, moment_spread, row_weights, word_values


@dataclass(frozen=True)
class LabelMomentsPass(Pass):
    """Add up the cross moment and the posterior moment of labels and states.

    Attributes
    ----------
    n_labels, n_states : int
    kind : MomentKind
    directions : matrix of shape (n_words, n_states), optional
        ``W U``; the cross moment is left out if it is None, the default.
    log_topics : matrix of shape (n_words, n_states)
        Logarithms of the word probabilities of each state; an array, or slabs of columns.
    single : bool
        Accumulate large sums in float32 except for frequent labels.
    log_weights : ndarray of shape (n_states,)
        Logarithms of the probabilities of the states.

    Notes
    -----
    Sums: ``posterior`` (n_labels, n_states) tall, ``states`` (n_states,) the posterior mass over all documents,
    ``log_likelihood`` (), ``spread`` (3, 2) (see `moment_spread`); with directions ``cross`` (n_labels, n_states)
    tall, and its ``mass`` ().
    """

    n_labels: int = 0
    n_states: int = 0
    kind: MomentKind = field(default_factory=MomentKind)
    directions: Any = None
    log_topics: Any = None
    log_weights: Any = None
    single: bool = False

    @property
    def name(self) -> str:
        return "labels"

    @property
    def mapped_bytes(self) -> int:
        n_matrices = 1 if self.directions is None else 2
        return n_matrices * (4 if self.single else 8) * self.n_features * self.n_states

    def working_bytes(self, n_rows: int) -> int:
        return 8 * 5 * n_rows * self.n_states

    def specs(self) -> dict[str, SumSpec]:
        tall = SumSpec(
            (self.n_labels, self.n_states), "float32" if self.single else "float64", tall="targets"
        )
        specs = {
            "posterior": tall,
            "states": SumSpec((self.n_states,)),
            "log_likelihood": SumSpec(()),
            "spread": SumSpec((3, 2)),
        }
        if self.directions is not None:
            specs |= {"cross": tall, "mass": SumSpec(())}
        return specs

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        if self.directions is not None:
            self._add_cross(sums, block)
        posterior, evidence = posteriors(block, self.log_topics, self.log_weights)
        posterior *= row_weights(block)[:, None]
        _scatter(block, posterior, sums["posterior"])
        sums["states"] += posterior.sum(axis=0)
        sums["log_likelihood"] += evidence @ row_weights(block)
        sums["spread"] += moment_spread(block, self.kind)
        return None

    def _add_cross(self, sums: Sums, block: Block) -> None:
        words = block.words
        weights = block_weights(block, self.kind)
        values = word_values(words, self.kind)
        squares = gather_columns(words.indptr, words.indices, values, self.directions).astype(np.float64) ** 2
        if self.kind.distinct:
            present, local = np.unique(words.indices, return_inverse=True)
            directions = self.directions
            parts = directions.parts if isinstance(directions, Columns) else (directions,)
            own = np.concatenate([np.asarray(part[present], np.float64) for part in parts], axis=1) ** 2
            squares -= gather(words.indptr, local, values, own)
        squares *= weights.rho_label[:, None]
        _scatter(block, squares, sums["cross"])
        sums["mass"] += weights.mass_label


def _scatter(block: Block, rows: np.ndarray, out: TallSum) -> None:
    labels = block.labels
    scatter_rows(labels.indptr, labels.indices, rows, out.single)
    out.settle()


def posteriors(
    block: Block, log_topics: np.ndarray, log_weights: np.ndarray, *, counts: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``P(h | x)`` and the log evidence of every document (multi-label paper, equation 14).

    Parameters
    ----------
    block : Block
    log_topics : ndarray or Columns of shape (n_words, k)
    log_weights : ndarray of shape (k,)
    counts : bool, default False
        Use counts of words instead of their presence.

    Returns
    -------
    posterior : ndarray of shape (n, k), float64
        Rows sum to one.
    evidence : ndarray of shape (n,), float64
    """
    words = block.words
    values = words.data.astype(np.float32) if counts else np.ones(words.nnz, np.float32)
    scores = gather_columns(words.indptr, words.indices, values, log_topics).astype(np.float64)
    scores += log_weights
    top = scores.max(axis=1, keepdims=True)
    np.exp(scores - top, out=scores)
    total = scores.sum(axis=1, keepdims=True)
    return scores / total, (top + np.log(total)).ravel()
