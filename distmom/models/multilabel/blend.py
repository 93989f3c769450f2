"""Choice of a blend of heads on held-out documents of the training corpus.

Every head scores the held-out documents; its scores are kept for the labels that any head ranks high, or for all
labels if there are few. With few labels the heads are stacked: a logistic regression of all their scores (see
`distmom.models.multilabel.stack`). With many, weights of a sum are found by coordinate ascent on a fixed grid; the
scores of each head are first divided by their mean best score, so that one grid serves heads of any scale, and a
logistic regression of the sum makes it a probability. The expected metrics are those of halves of the held-out
documents under a blend that was chosen on the other half; so are the probabilities on which a threshold is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.models.multilabel.covariates import Covariates, frequency_log_odds
from distmom.models.multilabel.objective import MEAN, Objective
from distmom.models.multilabel.probabilities import Reliability, best_threshold
from distmom.models.multilabel.stack import Pairs, Stack, fit_stack, probability, select_inputs
from distmom.models.multilabel.varying import vary
from distmom.models.multilabel.weighted_sum import FREQUENT, GATE, ascend, choose_weights, weighted_total

#: groups whose variants share their arrays, so that a stack may have all of them
STACKED_TOGETHER = ("neighbors",)
#: name of the sum of all heads as the input of a logistic regression
TOTAL = "total"


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
    stack : Stack
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
    """

    weights: dict[str, float]
    objective: float
    scores: dict[str, dict[str, float]]
    n_documents: int
    stack: Stack
    precision_error: float
    threshold: float
    reliability: Reliability
    metric: str = MEAN
    error: float = 0.0
    exponent: float | None = None

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
            "precision_error": self.precision_error,
            "threshold": self.threshold,
            "reliability": self.reliability.to_json(),
            **({"expected": expected} if stated else {}),
            **({} if self.exponent is None else {"exponent": self.exponent}),
        }


def choose_blend(
    names: list[str],
    rows: dict[str, np.ndarray],
    groups: dict[str, str],
    metric: str = MEAN,
    inverse: np.ndarray | None = None,
    frequency: tuple[np.ndarray, int] | None = None,
) -> Choice:
    """Choose a blend of heads: a stack where all labels are candidates, else a weighted sum.

    The best head alone is taken where it is better than the blend on documents that neither was fitted to; for one
    metric, which varies more than a mean of several, where it is better by more than a standard error.

    Parameters
    ----------
    names : list of str
        Names of the heads in the order of ``rows["scores"]``.
    rows : dict of str to ndarray
        From `read_scores`.
    groups : dict of str to str
        Name of the variants that each head belongs to.
    metric : str, default "mean"
        What the blend is chosen for, one of `OBJECTIVES`.
    inverse : ndarray of shape (L,), optional
        Inverse propensities of the labels; required by PSP@k.
    frequency : (ndarray of shape (L,), int), optional
        Numbers of documents of the labels, and of all documents, including those held out. Without it, the
        coefficients of a stack do not vary.
    """
    objective = Objective(rows["labels"], rows["truth"], rows["n_true"], metric, inverse, rows.get("ideal"))
    if objective.has_auc:
        return _choose_stack(names, rows, groups, objective, frequency)
    return _choose_sum(names, rows, groups, objective)


def _covariates(rows: dict[str, np.ndarray], frequency: tuple[np.ndarray, int] | None) -> Covariates | None:
    """Return the covariates of held-out documents, and of the labels in the documents that heads are fitted to."""
    if frequency is None:
        return None
    counts, n_documents = frequency
    fitted = np.asarray(counts) - rows["truth"].sum(axis=0, dtype=np.int64)
    return Covariates(rows["covariates"], frequency_log_odds(fitted, n_documents - len(rows["truth"])))


def apply_choice(
    choice: Choice,
    names: list[str],
    rows: dict[str, np.ndarray],
    frequency: tuple[np.ndarray, int] | None = None,
) -> np.ndarray:
    """Return what a choice ranks candidates (n, c) of other documents by, given their scores by the same heads.

    Parameters
    ----------
    choice : Choice
        For probabilities; the power of the inverse propensity is not applied.
    names, rows, frequency
        As for `choose_blend`; the frequency is required where coefficients vary.
    """
    if not choice.is_stacked:
        return weighted_total(names, rows["scores"], choice.weights)
    inputs = [names.index(each.name) for each in choice.stack.inputs]
    scores = np.ascontiguousarray(rows["scores"][:, inputs].swapaxes(0, 1))
    return choice.stack.log_odds(scores, _covariates(rows, frequency))


def _halves(n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the two ways to fit to one half of the documents and measure on the other."""
    even, odd = np.arange(0, n, 2), np.arange(1, n, 2)
    return [(even, odd), (odd, even)] if n > 1 else [(even, even)]


def _choose_stack(
    names: list[str],
    rows: dict[str, np.ndarray],
    groups: dict[str, str],
    objective: Objective,
    frequency: tuple[np.ndarray, int] | None,
) -> Choice:
    """Stack the heads that score all labels; of the variants that would be stored twice, the best is used.

    The coefficients vary with documents and labels if that makes documents that they were not fitted to more
    probable.
    """
    scores = rows["scores"].swapaxes(0, 1)
    rankings = _rankings(names, scores, objective)
    report = {name: objective.named(own) for name, own in rankings.items()}
    alone = {name: objective.value(own) for name, own in rankings.items()}
    # One variant, also of equally good ones: the others would share its place among the heads of the model.
    best_of = {
        group: max((name for name in names if groups[name] == group), key=lambda name: alone[name])
        for group in dict.fromkeys(groups[name] for name in names)
    }
    used = [name for name in names if groups[name] in STACKED_TOGETHER or best_of[groups[name]] == name]
    chosen = [names.index(name) for name in used]
    pairs = Pairs(
        tuple(used),
        tuple(groups[name] == "svm" for name in used),
        np.ascontiguousarray(scores[chosen]),
        rows["truth"],
        rows["labels"] >= 0,
        _covariates(rows, frequency),
    )
    kept, fit = select_inputs(pairs)
    inputs = pairs.only(kept)
    totals, log_odds = _crossed(inputs, objective, fit.stack)
    if frequency is not None:
        varying = _crossed(inputs, objective, fit.stack, varies=True)
        if _loss(varying[1], inputs.truth) < _loss(log_odds, inputs.truth):
            totals, log_odds = varying
            fit = replace(fit, stack=vary(inputs, fit.stack))
    best = max(used, key=lambda name: alone[name])
    if objective.clearly_prefers(rankings[best], totals):
        own = pairs.only([used.index(best)])
        fit, totals = fit_stack(own), rankings[best]
        _, log_odds = _crossed(own, objective, fit.stack)
    report["auto"] = objective.named(totals)
    n = len(objective.n_true)
    weights = {each.name: float(loss / n) for each, loss in zip(fit.stack.inputs, fit.losses, strict=True)}
    return _choice(weights, objective.value(totals), report, fit.stack, objective, totals, log_odds)


def _choice(
    weights: dict[str, float],
    value: float,
    report: dict[str, dict[str, float]],
    stack: Stack,
    objective: Objective,
    totals: np.ndarray,
    log_odds: np.ndarray,
) -> Choice:
    """Return a choice, given what ranks the candidates and their log-odds, (n, c) each."""
    exponent = objective.best_exponent(log_odds) if objective.weighs_propensity else None
    return Choice(
        weights, value, report, len(objective.n_true), stack, _error(objective, totals),
        *_calibrated(objective, log_odds), objective.metric, objective.error(totals), exponent,
    )  # fmt: skip


def _rankings(names: list[str], scores: np.ndarray, objective: Objective) -> dict[str, np.ndarray]:
    """Return what every head ranks the candidates by if it is alone, (n, c) each: its scores, except for PSP@k."""
    if not objective.weighs_propensity:
        return dict(zip(names, scores, strict=True))
    return {
        name: _crossed(
            Pairs((name,), (name.startswith("svm"),), own[None], objective.truth, objective.labels >= 0),
            objective,
        )[0]
        for name, own in zip(names, scores, strict=True)
    }


def _loss(log_odds: np.ndarray, truth: np.ndarray) -> float:
    """Return the negative log-likelihood of pairs."""
    z = log_odds.astype(np.float64)
    return float((np.logaddexp(0.0, z) - truth * z).sum())


def _crossed(
    pairs: Pairs, objective: Objective, start: Stack | None = None, varies: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return what ranks each half of the documents under a stack fitted to the other half, and its log-odds.

    ``start`` is the stack of all documents, from which the fits take fewer steps. With ``varies``, coefficients
    vary with documents and labels.
    """
    log_odds = np.zeros(objective.truth.shape, np.float32)
    totals = np.zeros_like(log_odds) if objective.weighs_propensity else log_odds
    for half, other in _halves(len(log_odds)):
        own, new = pairs.of(half), pairs.of(other)
        stack = fit_stack(own, start).stack
        if varies:
            stack = vary(own, stack)
        log_odds[other] = stack.log_odds(new.scores, new.covariates)
        if objective.weighs_propensity:
            exponent = objective.of(half).best_exponent(stack.log_odds(own.scores, own.covariates))
            totals[other] = objective.of(other).ranking(log_odds[other], exponent)
    return totals, log_odds


def _calibrated(objective: Objective, log_odds: np.ndarray) -> tuple[float, Reliability]:
    """Return the best threshold of probability, and the sums of candidates in bins of probability."""
    known = objective.labels >= 0
    p, truth = probability(log_odds)[known], objective.truth[known]
    return best_threshold(p, truth, int(objective.n_true.sum())), Reliability.of(p, truth)


def _error(objective: Objective, totals: np.ndarray) -> float:
    """Return the standard error of P@1."""
    hits = objective.first_hits(totals)
    return float(hits.std(ddof=1) / np.sqrt(len(hits))) if len(hits) > 1 else 0.0


def _choose_sum(
    names: list[str], rows: dict[str, np.ndarray], groups: dict[str, str], objective: Objective
) -> Choice:
    """Choose the weights of a sum, and the regression that makes it a probability."""
    rankings = _rankings(names, rows["scores"].swapaxes(0, 1), objective)
    report = {name: objective.named(own) for name, own in rankings.items()}
    alone = {name: objective.value(own) for name, own in rankings.items()}
    totals, log_odds = _crossed_sum(names, rows, groups, objective)
    weights, value = choose_weights(names, rows, groups, objective.of_probability)
    # Alone, the classifiers of frequent labels would not rank the others.
    single = max((name for name in names if name not in (GATE, FREQUENT)), key=lambda name: alone[name])
    if objective.clearly_prefers(rankings[single], totals):
        at = names.index(single)
        own = rows | {"scores": rows["scores"][:, [at]], "best": rows["best"][:, [at]]}
        _, log_odds = _crossed_sum([single], own, groups, objective)
        weights, value = ascend([single], own, groups, objective.of_probability)
        totals = rankings[single]
    if objective.metric != MEAN:
        value = objective.value(totals)
    report["auto"] = objective.named(totals)
    stack = _of_total(objective, weighted_total(names, rows["scores"], weights))
    return _choice(weights, value, report, stack, objective, totals, log_odds)


def _crossed_sum(
    names: list[str], rows: dict[str, np.ndarray], groups: dict[str, str], objective: Objective
) -> tuple[np.ndarray, np.ndarray]:
    """Return what ranks each half of the documents under a sum chosen on the other half, and its log-odds."""
    totals = np.zeros(objective.truth.shape, np.float32)
    log_odds = np.zeros_like(totals)
    for half, other in _halves(len(totals)):
        part, known = {key: values[half] for key, values in rows.items()}, objective.of(half)
        weights, _ = choose_weights(names, part, groups, known.of_probability)
        totals[other] = weighted_total(names, rows["scores"][other], weights)
        own = weighted_total(names, part["scores"], weights)
        calibration = _of_total(known, own)
        log_odds[other] = calibration.log_odds(totals[None, other])
        if objective.weighs_propensity:
            exponent = known.best_exponent(calibration.log_odds(own[None]))
            totals[other] = objective.of(other).ranking(log_odds[other], exponent)
    return totals, log_odds


def _of_total(objective: Objective, totals: np.ndarray) -> Stack:
    """Return the regression that makes weighted sums (n, c) of scores log-odds."""
    pairs = Pairs((TOTAL,), (False,), totals[None], objective.truth, objective.labels >= 0)
    return fit_stack(pairs).stack
