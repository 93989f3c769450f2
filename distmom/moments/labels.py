"""Label moments: how often each label meets each latent state.

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
from distmom.engine.sums import Sums, SumSpec
from distmom.moments.kernels import gather, scatter
from distmom.moments.weighting import MomentKind, word_values
from distmom.moments.words import block_weights, row_weights


@dataclass(frozen=True)
class LabelMomentsPass(Pass):
    """Accumulate the cross moment and the posterior moment of labels and states.

    Attributes
    ----------
    n_labels, n_states : int
    kind : MomentKind
    directions : ndarray of shape (n_words, n_states)
        ``W U``.
    log_topics : ndarray of shape (n_words, n_states)
        Logarithms of the word probabilities of each state.
    log_weights : ndarray of shape (n_states,)
        Logarithms of the probabilities of the states.

    Notes
    -----
    Sums: ``cross`` and ``posterior`` (n_labels, n_states), ``mass`` () of the cross moment, ``states``
    (n_states,) the posterior mass over all documents, ``log_likelihood`` ().
    """

    n_labels: int = 0
    n_states: int = 0
    kind: MomentKind = field(default_factory=MomentKind)
    directions: Any = None
    log_topics: Any = None
    log_weights: Any = None

    @property
    def name(self) -> str:
        return "labels"

    def working_bytes(self, n_rows: int) -> int:
        return 8 * 5 * n_rows * self.n_states

    def specs(self) -> dict[str, SumSpec]:
        return {
            "cross": SumSpec((self.n_labels, self.n_states)),
            "posterior": SumSpec((self.n_labels, self.n_states)),
            "mass": SumSpec(()),
            "states": SumSpec((self.n_states,)),
            "log_likelihood": SumSpec(()),
        }

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words, labels = block.words, block.labels
        weights = block_weights(block, self.kind)
        values = word_values(words, self.kind)
        ones = np.ones(labels.nnz)
        squares = gather(words.indptr, words.indices, values, self.directions).astype(np.float64) ** 2
        if self.kind.distinct:
            present, local = np.unique(words.indices, return_inverse=True)
            own = np.asarray(self.directions[present], np.float64) ** 2
            squares -= gather(words.indptr, local, values, own)
        squares *= weights.rho_label[:, None]
        scatter(labels.indptr, labels.indices, ones, squares, sums["cross"], 0)
        sums["mass"] += weights.mass_label
        posterior, evidence = posteriors(block, self.log_topics, self.log_weights)
        posterior *= row_weights(block)[:, None]
        scatter(labels.indptr, labels.indices, ones, posterior, sums["posterior"], 0)
        sums["states"] += posterior.sum(axis=0)
        sums["log_likelihood"] += evidence @ row_weights(block)
        return None


def posteriors(
    block: Block, log_topics: np.ndarray, log_weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``P(h | x)`` of every document and its log evidence (multi-label paper, equation 14).

    Parameters
    ----------
    block : Block
    log_topics : ndarray of shape (n_words, k)
    log_weights : ndarray of shape (k,)

    Returns
    -------
    posterior : ndarray of shape (n, k), float64
        Rows sum to one.
    evidence : ndarray of shape (n,), float64
    """
    words = block.words
    scores = gather(words.indptr, words.indices, np.ones(words.nnz), log_topics).astype(np.float64)
    scores += log_weights
    top = scores.max(axis=1, keepdims=True)
    np.exp(scores - top, out=scores)
    total = scores.sum(axis=1, keepdims=True)
    return scores / total, (top + np.log(total)).ravel()
