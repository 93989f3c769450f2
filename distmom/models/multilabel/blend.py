"""Choice of a blend of heads on held-out documents of the training corpus.

Every head scores the held-out documents; its scores are kept for the labels that any head ranks high, or for all
labels if there are few. With few labels the heads are stacked: a logistic regression of all their scores (see
`distmom.models.multilabel.stack`). With many, weights of a sum are found by coordinate ascent on a fixed grid; the
scores of each head are first divided by their mean best score, so that one grid serves heads of any scale, and a
logistic regression of the sum makes it a probability. Where few of many labels hold most pairs, heads are also
stacked by classes of labels (see `distmom.models.multilabel.class_stack`), and the better blend is chosen. Trees
then rank the best labels again (see `distmom.models.multilabel.reranking`), if that is better still. The
expected metrics are those of halves of the held-out documents under a blend that was chosen on the other half; so
are the probabilities on which a threshold is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.engine import Csr
from distmom.models.multilabel.class_stack import ClassStack, class_cuts, fit_classes
from distmom.models.multilabel.covariates import Covariates, frequency_log_odds
from distmom.models.multilabel.objective import MEAN, Objective
from distmom.models.multilabel.probabilities import Reliability, best_threshold
from distmom.models.multilabel.reranking import (
    Reranker,
    best_candidates,
    fit_reranker,
    pair_features,
    with_best,
)
from distmom.models.multilabel.stack import Pairs, Stack, fit_stack, probability, select_inputs
from distmom.models.multilabel.varying import vary
from distmom.models.multilabel.weighted_sum import FREQUENT, GATE, ascend, choose_weights, weighted_total

#: groups whose variants share their arrays, so that a stack may have all of them
STACKED_TOGETHER = ("neighbors",)
#: name of the sum of all heads as the input of a logistic regression
TOTAL = "total"
#: heads that a stack by classes and a reranker leave out: they know nothing about labels that updates add, and
#: gain little
NOT_STACKED = ("posterior", "moment")
#: least gain of that stack over a weighted sum, which predicts in less time
STACK_GAIN = 2e-3
#: least gain of a reranker over the blend
RERANK_GAIN = 1e-3
#: name of the blend before its best labels are ranked again, in the reported metrics
BLEND = "blend"


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
            **({} if self.reranker is None else {"reranked": self.reranker.summary()}),
        }


def choose_blend(
    names: list[str],
    rows: dict[str, np.ndarray],
    groups: dict[str, str],
    metric: str = MEAN,
    inverse: np.ndarray | None = None,
    frequency: tuple[np.ndarray, int] | None = None,
    least: int = 0,
    companions: Csr | None = None,
) -> Choice:
    """Choose a blend of heads: a stack where all labels are candidates, else a weighted sum or a stack by classes.

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
    least : int, default 0
        Number of documents from which a label has a classifier of its own; 0 if no label has one, and then a stack
        by classes is not tried.
    companions : Csr, optional
        From `companion_shares`, of the documents that the heads were fitted to. Without it, or without
        frequencies, no labels are ranked again.
    """
    objective = Objective(rows["labels"], rows["truth"], rows["n_true"], metric, inverse, rows.get("ideal"))
    if objective.has_auc:
        return _choose_stack(names, rows, groups, objective, frequency)
    choice, totals, log_odds = _choose_sum(names, rows, groups, objective)
    if frequency is None:
        return choice
    if least:
        boundary = float(frequency_log_odds(np.array(least), frequency[1] - len(rows["truth"])))
        classes = _choose_classes(names, rows, groups, objective, frequency, boundary, choice)
        if objective.value(classes[1]) > objective.value(totals) + STACK_GAIN:
            choice, totals, log_odds = classes
    if objective.weighs_propensity or companions is None:
        return choice
    return _choose_reranked(names, rows, groups, objective, frequency, companions, choice, log_odds)


def _covariates(rows: dict[str, np.ndarray], frequency: tuple[np.ndarray, int] | None) -> Covariates | None:
    """Return the covariates of held-out documents, and of the labels in the documents that heads are fitted to.

    The covariates of labels are those of the candidates of every document, unless all have the same candidates.
    """
    if frequency is None:
        return None
    counts, n_documents = frequency
    labels = rows["labels"]
    log_odds = frequency_log_odds(fitted_frequency(rows, counts), n_documents - len(labels))
    same = labels.shape[1] == len(counts) and bool((labels >= 0).all())
    return Covariates(rows["covariates"], log_odds if same else log_odds[np.maximum(labels, 0)])


def fitted_frequency(rows: dict[str, np.ndarray], counts: np.ndarray) -> np.ndarray:
    """Return the numbers of documents of labels (L,) without the held-out ones that have them as candidates."""
    found = rows["labels"][rows["truth"] > 0]
    return np.asarray(counts) - np.bincount(found, minlength=len(counts))


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
    if choice.is_stacked:
        inputs = [names.index(each.name) for each in choice.stack.inputs]
        scores = np.ascontiguousarray(rows["scores"][:, inputs].swapaxes(0, 1))
        totals = choice.stack.log_odds(scores, _covariates(rows, frequency))
    else:
        totals = weighted_total(names, rows["scores"], choice.weights)
    if choice.reranker is None:
        return totals
    log_odds = totals if choice.is_stacked else choice.stack.log_odds(totals[None])
    best, known = best_candidates(log_odds, rows["labels"])
    own = choice.reranker
    x = _reranked_features(names, own.inputs, rows, frequency, own.companions, best, log_odds)
    found = choice.reranker.trees.log_odds(x.reshape(-1, x.shape[2])).reshape(best.shape)
    return with_best(log_odds, best, known, found)


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
    alone = {name: _value(objective, rankings[name], metrics) for name, metrics in report.items()}
    # One variant, also of equally good ones: the others would share its place among the heads of the model.
    best_of = _best_variants(names, groups, alone)
    used = [name for name in names if groups[name] in STACKED_TOGETHER or name in best_of]
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
    # From the stack of all documents, the fits take fewer steps.
    stacks = [fit_stack(own, fit.stack).stack for own in _halves_of(inputs)]
    totals, log_odds = _crossed(inputs, objective, stacks)
    if frequency is not None:
        varied = [vary(own, stack) for own, stack in zip(_halves_of(inputs), stacks, strict=True)]
        varying = _crossed(inputs, objective, varied)
        if _loss(varying[1], inputs.truth) < _loss(log_odds, inputs.truth):
            totals, log_odds = varying
            fit = replace(fit, stack=vary(inputs, fit.stack))
    best = max(used, key=lambda name: alone[name])
    if objective.clearly_prefers(rankings[best], totals):
        own = pairs.only([used.index(best)])
        fit, totals = fit_stack(own), rankings[best]
        _, log_odds = _crossed(own, objective, _fitted_stacks(own))
    report["auto"] = objective.named(totals)
    n = len(objective.n_true)
    weights = {each.name: float(loss / n) for each, loss in zip(fit.stack.inputs, fit.losses, strict=True)}
    return _choice(weights, objective.value(totals), report, fit.stack, objective, totals, log_odds)


def _choice(
    weights: dict[str, float],
    value: float,
    report: dict[str, dict[str, float]],
    stack: Stack | ClassStack,
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
    rankings = {}
    for name, own in zip(names, scores, strict=True):
        signed = name.startswith("svm")
        pairs = Pairs((name,), (signed,), own[None], objective.truth, objective.labels >= 0)
        rankings[name] = _crossed(pairs, objective, _fitted_stacks(pairs))[0]
    return rankings


def _value(objective: Objective, totals: np.ndarray, metrics: dict[str, float]) -> float:
    """Return the value of the objective, given its metrics: their mean, or one metric."""
    return float(np.mean([*metrics.values()])) if objective.metric == MEAN else objective.value(totals)


def _best_variants(names: list[str], groups: dict[str, str], alone: dict[str, float]) -> list[str]:
    """Return the best head of every group; of equally good ones, the first."""
    of_groups = {groups[name]: [own for own in names if groups[own] == groups[name]] for name in names}
    return [max(variants, key=lambda name: alone[name]) for variants in of_groups.values()]


def _halves_of(pairs: Pairs) -> list[Pairs]:
    """Return the pairs of the documents that `_crossed` requires stacks of."""
    return [pairs.of(half) for half, _ in _halves(len(pairs.truth))]


def _fitted_stacks(pairs: Pairs) -> list[Stack]:
    return [fit_stack(own).stack for own in _halves_of(pairs)]


def _loss(log_odds: np.ndarray, truth: np.ndarray) -> float:
    """Return the negative log-likelihood of pairs."""
    z = log_odds.astype(np.float64)
    return float((np.logaddexp(0.0, z) - truth * z).sum())


def _crossed(
    pairs: Pairs, objective: Objective, stacks: Sequence[Stack | ClassStack]
) -> tuple[np.ndarray, np.ndarray]:
    """Return what ranks each half of the documents under the stack fitted to the other half, and its log-odds."""
    log_odds = np.zeros(objective.truth.shape, np.float32)
    totals = np.zeros_like(log_odds) if objective.weighs_propensity else log_odds
    for (half, other), stack in zip(_halves(len(log_odds)), stacks, strict=True):
        own, new = pairs.of(half), pairs.of(other)
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
) -> tuple[Choice, np.ndarray, np.ndarray]:
    """Choose the weights of a sum, and the regression that makes it a probability.

    Also return what ranks each half of the documents under a sum that was chosen on the other half, and its
    log-odds.
    """
    rankings = _rankings(names, rows["scores"].swapaxes(0, 1), objective)
    report = {name: objective.named(own) for name, own in rankings.items()}
    alone = {name: _value(objective, rankings[name], metrics) for name, metrics in report.items()}
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
    return _choice(weights, value, report, stack, objective, totals, log_odds), totals, log_odds


def _choose_classes(
    names: list[str],
    rows: dict[str, np.ndarray],
    groups: dict[str, str],
    objective: Objective,
    frequency: tuple[np.ndarray, int],
    boundary: float,
    summed: Choice,
) -> tuple[Choice, np.ndarray, np.ndarray]:
    """Stack the heads by classes of labels; of variants, the one that is best alone is used.

    Also return what ranks each half of the documents under a stack that was fitted to the other half, and its
    log-odds.
    """
    used = _stacked_variants(names, groups, summed)
    scores = np.ascontiguousarray(rows["scores"].swapaxes(0, 1)[[names.index(name) for name in used]])
    pairs = Pairs(
        tuple(used),
        (False,) * len(used),
        scores,
        rows["truth"],
        rows["labels"] >= 0,
        _covariates(rows, frequency),
    )
    cuts = class_cuts(pairs, boundary)
    halves = [fit_classes(own, cuts, boundary)[0] for own in _halves_of(pairs)]
    totals, log_odds = _crossed(pairs, objective, halves)
    stack, losses = fit_classes(pairs, cuts, boundary)
    n = len(objective.n_true)
    weights = {name: float(loss / n) for name, loss in zip(pairs.names, losses, strict=True)}
    report = {**summed.scores, "auto": objective.named(totals)}
    value = objective.value(totals)
    return _choice(weights, value, report, stack, objective, totals, log_odds), totals, log_odds


def _stacked_variants(names: list[str], groups: dict[str, str], choice: Choice) -> list[str]:
    """Return the best head of every group whose scores are stacked or used by a reranker."""
    alone = {name: choice.scores[name]["nDCG@5"] for name in names}
    return [name for name in _best_variants(names, groups, alone) if name not in NOT_STACKED]


def _choose_reranked(
    names: list[str],
    rows: dict[str, np.ndarray],
    groups: dict[str, str],
    objective: Objective,
    frequency: tuple[np.ndarray, int],
    companions: Csr,
    choice: Choice,
    log_odds: np.ndarray,
) -> Choice:
    """Rank the best labels of a blend again, if that is better on documents that the trees were not fitted to.

    The trees are fitted to the log-odds (n, c) of each half of the documents under a blend that was chosen on the
    other half.
    """
    inputs = _stacked_variants(names, groups, choice)
    best, known = best_candidates(log_odds, rows["labels"])
    x = _reranked_features(names, inputs, rows, frequency, companions, best, log_odds)
    truth = np.take_along_axis(rows["truth"], best, axis=1)
    reranker, found = fit_reranker(inputs, x, truth, known, companions, _halves(len(truth)))
    totals = with_best(log_odds, best, known, found)
    value = objective.value(totals)
    if value <= objective.value(log_odds) + RERANK_GAIN:
        return choice
    threshold, reliability = _calibrated(objective, totals)
    scores = {**choice.scores, BLEND: choice.scores["auto"], "auto": objective.named(totals)}
    return replace(
        choice, objective=value, scores=scores, reranker=reranker, precision_error=_error(objective, totals),
        threshold=threshold, reliability=reliability, error=objective.error(totals),
    )  # fmt: skip


def _reranked_features(
    names: list[str],
    inputs: list[str],
    rows: dict[str, np.ndarray],
    frequency: tuple[np.ndarray, int] | None,
    companions: Csr,
    best: np.ndarray,
    log_odds: np.ndarray,
) -> np.ndarray:
    """Return the features of the best candidates for a reranker."""
    covariates = _covariates(rows, frequency)
    assert covariates is not None
    heads = [names.index(name) for name in inputs]
    scores = np.stack([np.take_along_axis(rows["scores"][:, h], best, axis=1) for h in heads])
    blended, of_labels = (np.take_along_axis(own, best, axis=1) for own in (log_odds, covariates.labels))
    labels = np.maximum(np.take_along_axis(rows["labels"], best, axis=1), 0)
    return pair_features(labels, scores, blended, of_labels, covariates.documents, companions)


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
