"""A blend that was chosen on held-out documents, and its scores of the candidates of other documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from distmom.models.multilabel.blend.class_stack import ClassStack
from distmom.models.multilabel.blend.objective import MEAN
from distmom.models.multilabel.blend.probabilities import Reliability
from distmom.models.multilabel.blend.reranking import Reranker, best_candidates, with_best
from distmom.models.multilabel.blend.scored import Scored
from distmom.models.multilabel.blend.stack import Stack
from distmom.models.multilabel.blend.weighted_sum import SumWeights

#: name of the sum of all heads as the input of a logistic regression
TOTAL = "total"


@dataclass(frozen=True)
class ChosenSum:
    """A weighted sum of heads.

    Attributes
    ----------
    weights : SumWeights
    calibration : Stack
        Log-odds of a label, given its sum; with the one input `TOTAL`.
    inputs : tuple of str
        Names of the variants of heads whose scores are used one by one: none, as heads are added.
    """

    weights: SumWeights
    calibration: Stack

    inputs: ClassVar[tuple[str, ...]] = ()

    @property
    def named(self) -> dict[str, float]:
        """The factors of the chosen heads, and the power of the gate."""
        return self.weights.named

    @property
    def regression(self) -> Stack:
        """The regression by which log-odds are computed."""
        return self.calibration

    def totals(self, scored: Scored) -> np.ndarray:
        """Return the values that rank candidates (n, c): the sums."""
        return self.weights.totals(scored)

    def log_odds(self, totals: np.ndarray) -> np.ndarray:
        """Return the log-odds of candidates, given their sums."""
        return self.calibration.log_odds(totals[None])


@dataclass(frozen=True)
class ChosenStack:
    """A stack of heads.

    Attributes
    ----------
    stack : Stack or ClassStack
        Log-odds of a label, given the scores of the chosen heads.
    losses : dict of str to float
        Increase of the negative log-likelihood per document without each head.
    """

    stack: Stack | ClassStack
    losses: dict[str, float]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the variants of heads whose scores are used one by one."""
        return tuple(each.name for each in self.stack.inputs)

    @property
    def named(self) -> dict[str, float]:
        """The increase of the loss without each chosen head."""
        return self.losses

    @property
    def regression(self) -> Stack | ClassStack:
        """The regression by which log-odds are computed."""
        return self.stack

    def totals(self, scored: Scored) -> np.ndarray:
        """Return the values that rank candidates (n, c): their log-odds."""
        pairs = scored.pairs(self.inputs)
        return self.stack.log_odds(pairs.scores, pairs.covariates)

    def log_odds(self, totals: np.ndarray) -> np.ndarray:
        """Return the log-odds of candidates, which rank them."""
        return totals


@dataclass(frozen=True)
class Choice:
    """The blend chosen on held-out documents, and the metrics of each head on them.

    Attributes
    ----------
    blend : ChosenSum or ChosenStack
    objective : float
        Value of the objective for the blend.
    scores : dict of str to dict
        P@1, P@3, P@5, nDCG@5 (and AUC where all labels are candidates) of every head alone and of the blend.
    n_documents : int
        Number of held-out documents.
    precision_error : float
        Standard error of P@1 of the blend.
    threshold : float
        Probability from which labels are predicted, with the best micro F1.
    reliability : Reliability
        Sums of the candidates in bins of probability.
    metric : str, default "mean"
        Metric for which the blend was chosen.
    error : float, default 0.0
        Standard error of the objective, unless that is a mean of metrics.
    exponent : float or None, default None
        Power of the inverse propensity that multiplies the probability of a label, where the metric weights by it.
    reranker : Reranker or None, default None
        Ranks the best labels again.
    repeated : float, default 0.0
        Share of the held-out documents whose words are those of another document (see `Scored.repeated`).
    """

    blend: ChosenSum | ChosenStack
    objective: float
    scores: dict[str, dict[str, float]]
    n_documents: int
    precision_error: float
    threshold: float
    reliability: Reliability
    metric: str = MEAN
    error: float = 0.0
    exponent: float | None = None
    reranker: Reranker | None = None
    repeated: float = 0.0

    @property
    def weights(self) -> dict[str, float]:
        """Stored number of each chosen head: a factor in a sum, the power of a gate, or a loss in a stack."""
        return self.blend.named

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the variants of heads whose scores are used one by one; empty for a weighted sum alone."""
        if self.reranker is None:
            return self.blend.inputs
        return tuple(dict.fromkeys([*self.blend.named, *self.reranker.inputs]))

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


def apply_choice(choice: Choice, scored: Scored) -> np.ndarray:
    """Return the values that rank candidates (n, c) of other documents, given their scores by the same heads.

    Parameters
    ----------
    choice : Choice
        For probabilities; the power of the inverse propensity is not applied.
    scored : Scored
        With frequencies of labels where coefficients vary, or labels are ranked again.
    """
    totals, own = choice.blend.totals(scored), choice.reranker
    if own is None:
        return totals
    log_odds = choice.blend.log_odds(totals)
    best, known = best_candidates(log_odds, scored.labels, own.depth)
    x = scored.pair_features(own.inputs, own.companions, best, log_odds)
    found = own.averaged(x, np.take_along_axis(log_odds, best, axis=1))
    return with_best(log_odds, best, known, found)
