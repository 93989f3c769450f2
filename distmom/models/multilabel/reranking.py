"""Ranking the best labels of a blend again, by boosted trees over the scores of all heads.

A weighted sum, or a regression by classes of labels, gives every head the same weight for all pairs of a document
and a label. How far a score can be relied on depends on the other heads, on the other labels of the document, and
on the document itself. Where labels are too many to stack all pairs, the blend therefore finds the `DEPTH` best
labels, and trees give these their final probabilities. The other labels follow in the order of the blend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distmom.blas import map_on_cores
from distmom.engine import Csr
from distmom.models.multilabel.boosting import Trees, fit_trees
from distmom.models.multilabel.companions import companion_features
from distmom.models.multilabel.kernels import top_candidates
from distmom.spectral.layout import Matrix, group, record, value

#: number of labels that are ranked again
DEPTH = 20
#: most trees, and the step of the numbers of trees that are compared
MAX_TREES, STEP = 200, 25
#: numbers of a pair beside the two of every head
N_COMMON = 9
#: scores whose largest is below this number are not divided by it
LEAST_SCORE = 1e-9


@dataclass(frozen=True)
class Reranker:
    """Trees that rank the best labels of a blend again.

    Attributes
    ----------
    inputs : list of str
        Names of the variants of heads whose scores the trees use.
    depth : int
        Number of labels that are ranked again.
    companions : Csr
        From `companion_shares`.
    trees : Trees
        Over the features of `pair_features`.
    """

    inputs: list[str] = value()
    depth: int = value()
    companions: Csr = record({"": Matrix(("m", "m"))})
    trees: Trees = group(Trees)

    def log_odds(
        self,
        labels: np.ndarray,
        scores: np.ndarray,
        blended: np.ndarray,
        frequency: np.ndarray,
        documents: np.ndarray,
    ) -> np.ndarray:
        """Return the log-odds of the best labels, (n, m) float32; the parameters are those of `pair_features`."""
        x = pair_features(labels, scores, blended, frequency, documents, self.companions)
        return self.trees.log_odds(x.reshape(-1, x.shape[2])).reshape(blended.shape)

    def summary(self) -> dict[str, int | list[str]]:
        """Return what is reported of the reranker, as JSON values."""
        return {"depth": self.depth, "inputs": self.inputs, "n_trees": len(self.trees.roots)}

    def checked(self) -> Reranker:
        """Return the reranker; a ValueError if its parts do not suit one another."""
        named = isinstance(self.inputs, list) and all(isinstance(name, str) for name in self.inputs)
        if not (named and self.inputs and isinstance(self.depth, int) and self.depth > 0):
            raise ValueError(
                f"expected names of heads and a positive depth, got {self.inputs} and {self.depth}"
            )
        self.trees.checked(2 * len(self.inputs) + N_COMMON)
        return self


def pair_features(
    labels: np.ndarray,
    scores: np.ndarray,
    blended: np.ndarray,
    frequency: np.ndarray,
    documents: np.ndarray,
    companions: Csr,
) -> np.ndarray:
    """Return the numbers by which pairs of a document and one of its best labels are judged.

    Parameters
    ----------
    labels : ndarray of shape (n, m), int32
    scores : ndarray of shape (n_heads, n, m), float32
        Scores of every head.
    blended : ndarray of shape (n, m), float32
        Log-odds by the blend, descending in every row.
    frequency : ndarray of shape (n, m)
        Log-odds of the frequency of the labels.
    documents : ndarray of shape (n, 2)
        Covariates of the documents (see `Covariates`).
    companions : Csr
        From `companion_shares`.

    Returns
    -------
    ndarray of shape (n, m, 2 n_heads + N_COMMON), float32
        Every score, and its ratio to the largest score of the document; the log-odds by the blend, their distances
        to the first and to the next label, and the rank; the frequency; both covariates; and both numbers of
        `companion_features`.
    """
    n_heads, n, m = scores.shape
    x = np.zeros((n, m, 2 * n_heads + N_COMMON), np.float32)
    for h, own in enumerate(scores):
        x[:, :, 2 * h] = own
        x[:, :, 2 * h + 1] = own / np.maximum(own.max(axis=1, keepdims=True, initial=0.0), LEAST_SCORE)
    at = 2 * n_heads
    x[:, :, at] = blended
    x[:, :, at + 1] = blended - blended[:, :1]
    x[:, :-1, at + 2] = np.diff(blended, axis=1)
    x[:, :, at + 3] = np.arange(m)
    x[:, :, at + 4] = frequency
    x[:, :, at + 5 : at + 7] = np.asarray(documents, np.float32)[:, None]
    x[:, :, at + 7 :] = companion_features(labels, blended, companions)
    return x


def best_candidates(log_odds: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns of the best candidates of every document, and which of them are labels, (n, m) each.

    Parameters
    ----------
    log_odds : ndarray of shape (n, c), float32
        By the blend.
    labels : ndarray of shape (n, c), int32
        The candidates; -1 stands for none.
    """
    best = top_candidates(log_odds, labels, min(DEPTH, log_odds.shape[1]))
    return np.maximum(best, 0), best >= 0


def fit_reranker(
    inputs: Sequence[str],
    x: np.ndarray,
    truth: np.ndarray,
    known: np.ndarray,
    companions: Csr,
    halves: Sequence[tuple[np.ndarray, np.ndarray]],
) -> tuple[Reranker, np.ndarray]:
    """Fit the trees, as many as make other documents most probable.

    Parameters
    ----------
    inputs : sequence of str
    x : ndarray of shape (n, m, n_features), float32
        From `pair_features`.
    truth : ndarray of shape (n, m)
        Which labels are true.
    known : ndarray of shape (n, m), bool
        Which pairs have a label.
    companions : Csr
        From `companion_shares`, those of the features.
    halves : sequence of (ndarray, ndarray)
        Documents to fit to, and documents to measure on.

    Returns
    -------
    Reranker
        Fitted to all documents.
    ndarray of shape (n, m), float32
        Log-odds of every document by the trees that were fitted to other ones.
    """
    every = np.arange(len(x))

    def fit(own: np.ndarray) -> Trees:
        return fit_trees(x[own][known[own]], truth[own][known[own]], MAX_TREES)

    whole, *parts = map_on_cores(fit, [every, *(half for half, _ in halves)])
    others = [other for _, other in halves]
    stages = [trees.stages(x[other][known[other]], STEP) for trees, other in zip(parts, others, strict=True)]
    n_stages = max(len(own) for own in stages)
    # Where no split gained anything, further trees would change nothing.
    stages = [own[np.minimum(np.arange(n_stages), len(own) - 1)] for own in stages]
    losses = np.zeros(n_stages)
    for own, other in zip(stages, others, strict=True):
        z = own.astype(np.float64)
        losses += (np.logaddexp(0.0, z) - truth[other][known[other]] * z).sum(axis=1)
    best = int(np.argmin(losses))
    crossed = np.zeros(truth.shape, np.float32)
    for own, other in zip(stages, others, strict=True):
        found = np.zeros((len(other), truth.shape[1]), np.float32)
        found[known[other]] = own[best]
        crossed[other] = found
    return Reranker(list(inputs), truth.shape[1], companions, whole.first(STEP * (best + 1))), crossed


def with_best(log_odds: np.ndarray, best: np.ndarray, known: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return the log-odds of all candidates with those of the best ones replaced, and the others below them.

    Parameters
    ----------
    log_odds : ndarray of shape (n, c), float32
        By the blend.
    best, known : ndarray of shape (n, m)
        From `best_candidates`.
    found : ndarray of shape (n, m), float32
        Log-odds of the best candidates by a reranker.

    Returns
    -------
    ndarray of shape (n, c), float32
    """
    blended = np.take_along_axis(log_odds, best, axis=1)
    lowest, last = (np.where(known, own, np.inf).min(axis=1, keepdims=True) for own in (found, blended))
    out = (log_odds + np.where(lowest < last, lowest - last, 0.0)).astype(np.float32)
    rows = np.broadcast_to(np.arange(len(best))[:, None], best.shape)
    out[rows[known], best[known]] = found[known]
    return out
