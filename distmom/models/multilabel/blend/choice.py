"""A blend that was chosen on held-out documents, and what it ranks the candidates of other documents by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.engine import Csr
from distmom.models.multilabel.blend.class_stack import ClassStack
from distmom.models.multilabel.blend.covariates import Covariates, Frequency, frequency_log_odds
from distmom.models.multilabel.blend.objective import MEAN
from distmom.models.multilabel.blend.probabilities import Reliability
from distmom.models.multilabel.blend.reranking import Reranker, best_candidates, pair_features, with_best
from distmom.models.multilabel.blend.stack import Stack
from distmom.models.multilabel.blend.weighted_sum import weighted_total

#: name of the sum of all heads as the input of a logistic regression
TOTAL = "total"
#: cosine from which a document is a copy of another: rows of the same words differ by rounding only
COPY_COSINE = 0.9999


@dataclass(frozen=True)
class Choice:
    """The blend chosen on held-out documents, and the metrics of each head on them.

    Attributes
    ----------
    weights : dict of str to float
        Weight of each chosen head, which multiplies its scores; of a gate, the power of its factors. With a stack
        of several heads, what each is worth: the increase of the negative log-likelihood per document without it.
    objective : float
        Value of the objective for the blend.
    scores : dict of str to dict
        P@1, P@3, P@5, nDCG@5 (and AUC where all labels are candidates) of every head alone and of the blend.
    n_documents : int
        Number of held-out documents.
    stack : Stack or ClassStack
        Log-odds of a label: of the scores of the chosen heads, or, with the one input `TOTAL`, of their weighted
        sum.
    precision_error : float
        Standard error of P@1 of the blend.
    threshold : float
        Probability from which labels are predicted, with the best micro F1.
    reliability : Reliability
        Sums of the candidates in bins of probability.
    metric : str, default "mean"
        What the blend was chosen for.
    error : float, default 0.0
        Standard error of the objective, unless that is a mean of metrics.
    exponent : float or None, default None
        Power of the inverse propensity that multiplies the probability of a label, where the metric weights by it.
    reranker : Reranker or None, default None
        What ranks the best labels again.
    repeated : float, default 0.0
        Share of the held-out documents whose words are those of another document, see `repeated_share`.
    """

    weights: dict[str, float]
    objective: float
    scores: dict[str, dict[str, float]]
    n_documents: int
    stack: Stack | ClassStack
    precision_error: float
    threshold: float
    reliability: Reliability
    metric: str = MEAN
    error: float = 0.0
    exponent: float | None = None
    reranker: Reranker | None = None
    repeated: float = 0.0

    @property
    def is_stacked(self) -> bool:
        """Whether the heads are stacked, not added."""
        return self.stack.inputs[0].name != TOTAL

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; ``expected`` and ``exponent`` only where a metric was stated."""
        stated = self.metric != MEAN
        expected = {"metric": self.metric, "value": self.objective, "error": self.error}
        return {
            "weights": self.weights,
            "objective": self.objective,
            "held_out": self.scores,
            "n_held_out": self.n_documents,
            "repeated": self.repeated,
            "precision_error": self.precision_error,
            "threshold": self.threshold,
            "reliability": self.reliability.to_json(),
            **({"expected": expected} if stated else {}),
            **({} if self.exponent is None else {"exponent": self.exponent}),
            **({} if self.reranker is None else {"reranked": self.reranker.summary()}),
        }


def apply_choice(
    choice: Choice,
    names: list[str],
    rows: dict[str, np.ndarray],
    frequency: Frequency | None = None,
) -> np.ndarray:
    """Return what a choice ranks candidates (n, c) of other documents by, given their scores by the same heads.

    Parameters
    ----------
    choice : Choice
        For probabilities; the power of the inverse propensity is not applied.
    names, rows, frequency
        As for `choose_blend`; the frequency is required where coefficients vary.
    """
    if choice.is_stacked:
        inputs = [names.index(each.name) for each in choice.stack.inputs]
        scores = np.ascontiguousarray(rows["scores"][:, inputs].swapaxes(0, 1))
        totals = choice.stack.log_odds(scores, covariates_of(rows, frequency))
    else:
        totals = weighted_total(names, rows["scores"], choice.weights)
    if choice.reranker is None:
        return totals
    log_odds = totals if choice.is_stacked else choice.stack.log_odds(totals[None])
    assert frequency is not None
    own = choice.reranker
    best, known = best_candidates(log_odds, rows["labels"], own.depth)
    x = reranked_features(names, own.inputs, rows, frequency, own.companions, best, log_odds)
    found = own.averaged(x, np.take_along_axis(log_odds, best, axis=1))
    return with_best(log_odds, best, known, found)


def repeated_share(rows: dict[str, np.ndarray]) -> float:
    """Return the share of held-out documents of which there is a copy among the documents of the fit."""
    return float((rows["covariates"][:, 1] >= COPY_COSINE).mean())


def covariates_of(rows: dict[str, np.ndarray], frequency: Frequency | None) -> Covariates | None:
    """Return the covariates of held-out documents, and of the labels in the documents that heads are fitted to.

    The covariates of labels are those of the candidates of every document, unless all documents are of one fold
    and have the same candidates.
    """
    if frequency is None:
        return None
    labels, log_odds = rows["labels"], np.atleast_2d(frequency_log_odds(*frequency))
    if len(log_odds) == 1 and labels.shape[1] == log_odds.shape[1] and (labels >= 0).all():
        return Covariates(rows["covariates"], log_odds[0])
    return Covariates(rows["covariates"], label_log_odds(rows, labels, frequency))


def label_log_odds(rows: dict[str, np.ndarray], labels: np.ndarray, frequency: Frequency) -> np.ndarray:
    """Return the log-odds of the frequency of labels (n, c), among the documents outside the fold of their own."""
    log_odds = np.atleast_2d(frequency_log_odds(*frequency))
    return np.asarray(log_odds[folds_of_rows(rows)[:, None], np.maximum(labels, 0)])


def folds_of_rows(rows: dict[str, np.ndarray]) -> np.ndarray:
    """Return the number of the fold of every held-out document, zeros where there is only one."""
    return rows["fold"] if "fold" in rows else np.zeros(len(rows["labels"]), int)


def reranked_features(
    names: list[str],
    inputs: list[str],
    rows: dict[str, np.ndarray],
    frequency: Frequency,
    companions: Csr,
    best: np.ndarray,
    log_odds: np.ndarray,
) -> np.ndarray:
    """Return the features for a reranker (see `pair_features`) of the best candidates.

    Parameters
    ----------
    names, rows, frequency
        As for `choose_blend`.
    inputs : list of str
        Names of the heads that the reranker uses.
    companions : Csr
        From `companion_shares`.
    best : ndarray of shape (n, m)
        From `best_candidates`.
    log_odds : ndarray of shape (n, c), float32
        Of all candidates, by the blend.
    """
    scores = [np.take_along_axis(rows["scores"][:, names.index(name)], best, axis=1) for name in inputs]
    labels = np.maximum(np.take_along_axis(rows["labels"], best, axis=1), 0)
    blended, of_labels = np.take_along_axis(log_odds, best, axis=1), label_log_odds(rows, labels, frequency)
    return pair_features(labels, np.stack(scores), blended, of_labels, rows["covariates"], companions)
