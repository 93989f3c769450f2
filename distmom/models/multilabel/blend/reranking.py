"""Ranking the best labels of a blend again, by boosted trees over the scores of all heads.

A blend is a sum of functions of one score each. How far a score can be relied on also depends on the other heads,
on the other labels of the document, and on the document itself. So the blend finds the best labels, and trees
estimate the log-odds of these, which are averaged with those by the blend. The other labels follow in the order of
the blend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distmom.blas import map_on_cores
from distmom.engine import Csr
from distmom.models.multilabel.blend.boosting import Binned, Boosting, Trees
from distmom.models.multilabel.blend.companions import companion_features
from distmom.models.multilabel.blend.stack import informative, negative_log_likelihood
from distmom.models.multilabel.kernels import top_candidates
from distmom.spectral.saved.fields import group, record, value
from distmom.spectral.saved.layout import Matrix

#: number of labels that are ranked again; and where all labels are candidates, as a stack of all pairs ranks the
#: others well enough
DEPTH, FEW_DEPTH = 20, 10
#: largest number of trees, and the step of the numbers of trees that are compared
MAX_TREES, STEP = 200, 25
#: number of such steps without an improvement after which no more trees are fitted
PATIENCE = 2
#: shares of the log-odds by the blend that are compared
SHARES = (0.0, 0.25, 0.5, 0.75)
#: features of a pair in addition to the two from every head
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
    share : float, default 0.0
        Weight of the blend's log-odds in a weighted mean; the trees have the rest.
    """

    inputs: list[str] = value()
    depth: int = value()
    companions: Csr = record({"": Matrix(("m", "m"))})
    trees: Trees = group(Trees)
    # Models of earlier versions have trees alone.
    share: float = value(default=0.0)

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
        return self.averaged(x, blended)

    def averaged(self, x: np.ndarray, blended: np.ndarray) -> np.ndarray:
        """Return the mean of the log-odds by the trees, given the features of pairs, and of those by the blend."""
        found = self.trees.log_odds(x.reshape(-1, x.shape[2])).reshape(blended.shape)
        return _averaged(found, blended, self.share)

    def summary(self) -> dict[str, float | list[str]]:
        """Return the numbers by which reports describe the reranker, as JSON values."""
        return {
            "depth": self.depth, "inputs": self.inputs, "n_trees": len(self.trees.roots), "share": self.share
        }  # fmt: skip

    def checked(self) -> Reranker:
        """Return the reranker; a ValueError if its parts do not suit one another."""
        named = isinstance(self.inputs, list) and all(isinstance(name, str) for name in self.inputs)
        if not (named and self.inputs and isinstance(self.depth, int) and self.depth > 0):
            raise ValueError(
                f"expected names of heads and a positive depth, got {self.inputs} and {self.depth}"
            )
        if not (isinstance(self.share, float) and 0.0 <= self.share < 1.0):
            raise ValueError(f"expected a share of at least 0 and below 1, got {self.share!r}")
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
    """Return the features of pairs of a document and one of its best labels.

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


def best_candidates(log_odds: np.ndarray, labels: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns of the best candidates of every document, and which of them are labels, (n, m) each.

    There are at most ``depth`` of a document.

    Parameters
    ----------
    log_odds : ndarray of shape (n, c), float32
        By the blend.
    labels : ndarray of shape (n, c), int32
        The candidates; -1 stands for none.
    """
    best = top_candidates(log_odds, labels, min(depth, log_odds.shape[1]))
    return np.maximum(best, 0), best >= 0


def fit_reranker(
    inputs: Sequence[str],
    x: np.ndarray,
    truth: np.ndarray,
    known: np.ndarray,
    blended: np.ndarray,
    companions: Csr,
    halves: Sequence[tuple[np.ndarray, np.ndarray]],
) -> tuple[Reranker, np.ndarray]:
    """Fit the trees, with the number of them and the share of the blend that make other documents most probable.

    Parameters
    ----------
    inputs : sequence of str
    x : ndarray of shape (n, m, n_features), float32
        From `pair_features`.
    truth : ndarray of shape (n, m)
        Which labels are true.
    known : ndarray of shape (n, m), bool
        Which pairs have a label.
    blended : ndarray of shape (n, m), float32
        Log-odds by a blend that was chosen without the document.
    companions : Csr
        From `companion_shares`, those of the features.
    halves : sequence of (ndarray, ndarray)
        Documents to fit to, and documents to measure on.

    Returns
    -------
    Reranker
        Fitted to all documents.
    ndarray of shape (n, m), float32
        Log-odds of every document by the trees that were fitted to other ones, averaged with those by the blend.
    """

    pairs = features, events, odds = x[known], truth[known], blended[known]
    numbers = np.full(known.shape, -1)
    numbers[known] = np.arange(len(events))
    # Most pairs are easy, and would have most of the bins.
    binned = Binned.of(features, informative(odds, events)[0])

    def boosting_of(own: np.ndarray) -> Boosting:
        used, weights = informative(odds[own], events[own])
        return Boosting(binned.take(own[used]), events[own[used]], weights)

    def measured(half: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        own, other = (numbers[each][known[each]] for each in half)
        return _stages(boosting_of(own), *(each[other] for each in pairs))

    found, losses = zip(*map_on_cores(measured, halves), strict=True)
    n_stages = min(map(len, losses))
    stage, share = divmod(int(np.argmin(sum(own[:n_stages] for own in losses))), len(SHARES))
    crossed = np.zeros(truth.shape, np.float32)
    for (_, other), own in zip(halves, found, strict=True):
        values = np.zeros((len(other), truth.shape[1]), np.float32)
        values[known[other]] = _averaged(own[stage], blended[other][known[other]], SHARES[share])
        crossed[other] = values
    trees = boosting_of(np.arange(len(events))).grow(STEP * (stage + 1))
    return Reranker(list(inputs), truth.shape[1], companions, trees, SHARES[share]), crossed


def _stages(
    boosting: Boosting, x: np.ndarray, truth: np.ndarray, blended: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Fit trees for as long as they make other events more probable.

    Return the log-odds of these events by the first `STEP`, ``2 STEP`` ... trees, (n_stages, n) float32, and their
    losses for every share of the blend, (n_stages, n_shares).
    """
    stages, losses = list[np.ndarray](), list[list[float]]()
    totals, n_added = np.empty(0), 0
    for _ in range(MAX_TREES // STEP):
        trees = boosting.grow(STEP)
        if not n_added:
            totals = np.full(len(x), trees.start[0])
        trees.add_to(totals, x, n_added)
        n_added = len(trees.roots)
        stages.append(totals.astype(np.float32))
        averages = (_averaged(stages[-1], blended, share) for share in SHARES)
        losses.append([negative_log_likelihood(each, truth) for each in averages])
        least = np.min(losses, axis=1)
        if len(least) - 1 - int(np.argmin(least)) >= PATIENCE:
            break
    return np.array(stages), np.array(losses)


def _averaged(found: np.ndarray, blended: np.ndarray, share: float) -> np.ndarray:
    return np.asarray(np.float32(1.0 - share) * found + np.float32(share) * blended, np.float32)


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
