"""Choice of a blend of heads on held-out documents of the training corpus.

Every head scores the held-out documents; its scores are kept for the labels that any head ranks high, or for all
labels if there are few. With few labels the heads are stacked: a logistic regression of all their scores (see
`distmom.models.multilabel.blend.stack`). With many, weights of a sum are found by coordinate ascent on a fixed
grid; the scores of each head are first divided by their mean best score, so that one grid serves heads of any
scale, and a logistic regression of the sum makes it a probability. Where few of many labels hold most pairs, heads
are also stacked by classes of labels (see `distmom.models.multilabel.blend.class_stack`), and the better blend is
chosen. Trees then rank the best labels again (see `distmom.models.multilabel.blend.reranking`), if that is better
still. The expected metrics are those of halves of the held-out documents under a blend that was chosen on the
other half; so are the probabilities on which a threshold is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from distmom.engine import Csr
from distmom.models.multilabel.blend.choice import (
    TOTAL,
    Choice,
    covariates_of,
    folds_of_rows,
    reranked_features,
)
from distmom.models.multilabel.blend.class_stack import ClassStack, class_cuts, fit_classes
from distmom.models.multilabel.blend.covariates import Frequency, frequency_log_odds
from distmom.models.multilabel.blend.objective import MEAN, Objective, standard_error
from distmom.models.multilabel.blend.probabilities import Reliability, best_threshold
from distmom.models.multilabel.blend.reranking import (
    DEPTH,
    FEW_DEPTH,
    best_candidates,
    fit_reranker,
    with_best,
)
from distmom.models.multilabel.blend.stack import (
    Pairs,
    Stack,
    fit_stack,
    negative_log_likelihood,
    probability,
    select_inputs,
)
from distmom.models.multilabel.blend.varying import vary
from distmom.models.multilabel.blend.weighted_sum import (
    ascend,
    choose_weights,
    weighted_total,
)
from distmom.models.multilabel.variants import (
    BEST_COSINE,
    FREQUENT,
    GATE,
    INDEXED,
    SIGNED,
    STATE_HEADS,
    family_of,
)

#: least gain of a stack by classes over a weighted sum, which predicts in less time
STACK_GAIN = 2e-3
#: least gain of a reranker over the blend, and of held-out documents, without which none is fitted
RERANK_GAIN, RERANK_DOCUMENTS = 5e-4, 500
#: name of the blend before its best labels are ranked again, in the reported metrics
BLEND = "blend"


def choose_blend(
    names: list[str],
    rows: dict[str, np.ndarray],
    groups: dict[str, str],
    metric: str = MEAN,
    inverse: np.ndarray | None = None,
    frequency: Frequency | None = None,
    least: int = 0,
    companions: Sequence[Csr] | None = None,
) -> Choice:
    """Choose a blend of heads: a stack where all labels are candidates, else a weighted sum or a stack by classes.

    The best head alone is taken where it is better than the blend on documents that neither was fitted to; for one
    metric, which varies more than a mean of several, where it is better by more than a standard error.

    Parameters
    ----------
    names : list of str
        Names of the heads in the order of ``rows["scores"]``.
    rows : dict of str to ndarray
        From `read_scores`, of all folds.
    groups : dict of str to str
        Name of the variants that each head belongs to.
    metric : str, default "mean"
        What the blend is chosen for, one of `OBJECTIVES`.
    inverse : ndarray of shape (L,), optional
        Inverse propensities of the labels; required by PSP@k.
    frequency : Frequency, optional
        Numbers of documents of the labels, and of all documents, among those that the heads of each fold are
        fitted to. Without it, the coefficients of a stack do not vary.
    least : int, default 0
        Number of documents from which a label has a classifier of its own; 0 if no label has one, and then a stack
        by classes is not tried.
    companions : sequence of Csr, optional
        From `companion_shares`, of the documents that the heads of each fold were fitted to; documents are of the
        folds ``rows["fold"]``, or of a single one. Without it, or without frequencies, no labels are ranked again.
    """
    objective = Objective(rows["labels"], rows["truth"], rows["n_true"], metric, inverse, rows.get("ideal"))
    if objective.has_auc:
        choice, log_odds = _choose_stack(names, rows, groups, objective, frequency)
    else:
        choice, log_odds = _choose_of_many(names, rows, groups, objective, frequency, least)
    few = len(rows["truth"]) < RERANK_DOCUMENTS
    if few or frequency is None or companions is None or objective.weighs_propensity:
        return choice
    return _choose_reranked(names, rows, groups, objective, frequency, companions, choice, log_odds)


def _choose_of_many(
    names: list[str],
    rows: dict[str, np.ndarray],
    groups: dict[str, str],
    objective: Objective,
    frequency: Frequency | None,
    least: int,
) -> tuple[Choice, np.ndarray]:
    """Choose a weighted sum or, where a few labels have classifiers, a stack by classes if that is better.

    Also return the log-odds of each half of the documents under a blend that was chosen on the other half.
    """
    choice, totals, log_odds = _choose_sum(names, rows, groups, objective)
    if frequency is not None and least:
        boundary = float(np.mean(frequency_log_odds(np.array(least), frequency[1])))
        classes = _choose_classes(names, rows, groups, objective, frequency, boundary, choice)
        if objective.value(classes[1]) > objective.value(totals) + STACK_GAIN:
            choice, _, log_odds = classes
    return choice, log_odds


def _halves(n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the two ways to fit to one half of the documents and measure on the other."""
    even, odd = np.arange(0, n, 2), np.arange(1, n, 2)
    return [(even, odd), (odd, even)] if n > 1 else [(even, even)]


def _choose_stack(
    names: list[str],
    rows: dict[str, np.ndarray],
    groups: dict[str, str],
    objective: Objective,
    frequency: Frequency | None,
) -> tuple[Choice, np.ndarray]:
    """Stack the heads that score all labels; of the variants that would be stored twice, the best is used.

    The coefficients vary with documents and labels if that makes documents that they were not fitted to more
    probable. Also return the log-odds of each half of the documents under a stack that was fitted to the other.
    """
    scores = rows["scores"].swapaxes(0, 1)
    rankings, report, alone = _alone(names, scores, objective)
    # One variant, also of equally good ones: the others would share its place among the heads of the model. Those
    # with an index share their arrays, so that a stack may have all of them.
    best_of = _best_variants(names, groups, alone)
    used = [name for name in names if groups[name] in INDEXED or name in best_of]
    chosen = [names.index(name) for name in used]
    pairs = Pairs(
        tuple(used),
        tuple(groups[name] in SIGNED for name in used),
        np.ascontiguousarray(scores[chosen]),
        rows["truth"],
        rows["labels"] >= 0,
        covariates_of(rows, frequency),
    )
    kept, fit = select_inputs(pairs)
    inputs = pairs.only(kept)
    halves = _halves_of(inputs)
    # From the stack of all documents, the fits take fewer steps.
    stacks = [fit_stack(own, fit.stack).stack for own in halves]
    totals, log_odds = _crossed(halves, objective, stacks)
    if frequency is not None:
        varied = [vary(own, stack) for own, stack in zip(halves, stacks, strict=True)]
        varying = _crossed(halves, objective, varied)
        before, after = (negative_log_likelihood(each, inputs.truth) for each in (log_odds, varying[1]))
        if after < before:
            totals, log_odds = varying
            fit = replace(fit, stack=vary(inputs, fit.stack))
    best = max(used, key=lambda name: alone[name])
    if objective.clearly_prefers(rankings[best], totals):
        own = pairs.only([used.index(best)])
        fit, totals = fit_stack(own), rankings[best]
        _, log_odds = _crossed_alone(own, objective)
    n = len(objective.n_true)
    weights = {each.name: float(loss / n) for each, loss in zip(fit.stack.inputs, fit.losses, strict=True)}
    return _choice(weights, objective.value(totals), report, fit.stack, objective, totals, log_odds), log_odds


def _choice(
    weights: dict[str, float],
    value: float,
    report: dict[str, dict[str, float]],
    stack: Stack | ClassStack,
    objective: Objective,
    totals: np.ndarray,
    log_odds: np.ndarray,
) -> Choice:
    """Return a choice, given the metrics of heads, and what ranks candidates and their log-odds, (n, c) each."""
    exponent = objective.best_exponent(log_odds) if objective.weighs_propensity else None
    scores = {**report, "auto": objective.named(totals)}
    return Choice(
        weights, value, scores, len(objective.n_true), stack, standard_error(objective.first_hits(totals)),
        *_calibrated(objective, log_odds), objective.metric, objective.error(totals), exponent,
    )  # fmt: skip


def _alone(
    names: list[str], scores: np.ndarray, objective: Objective
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, float]], dict[str, float]]:
    """Return what every head ranks the candidates by if it is alone, its metrics, and its objective."""
    rankings = _rankings(names, scores, objective)
    report = {name: objective.named(own) for name, own in rankings.items()}
    values = {name: _value(objective, rankings[name], metrics) for name, metrics in report.items()}
    return rankings, report, values


def _rankings(names: list[str], scores: np.ndarray, objective: Objective) -> dict[str, np.ndarray]:
    """Return what every head ranks the candidates by if it is alone, (n, c) each: its scores, except for PSP@k."""
    if not objective.weighs_propensity:
        return dict(zip(names, scores, strict=True))
    rankings = {}
    for name, own in zip(names, scores, strict=True):
        pairs = Pairs(
            (name,), (family_of(name) in SIGNED,), own[None], objective.truth, objective.labels >= 0
        )
        rankings[name] = _crossed_alone(pairs, objective)[0]
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


def _crossed(
    halves: Sequence[Pairs], objective: Objective, stacks: Sequence[Stack | ClassStack]
) -> tuple[np.ndarray, np.ndarray]:
    """Return what ranks each half of the documents under the stack fitted to the other half, and its log-odds."""
    log_odds = np.zeros(objective.truth.shape, np.float32)
    totals = np.zeros_like(log_odds) if objective.weighs_propensity else log_odds
    # The other half of the last one is the first; a single document is its own.
    others = [halves[-1], *halves[:-1]]
    for (half, other), own, new, stack in zip(_halves(len(log_odds)), halves, others, stacks, strict=True):
        log_odds[other] = stack.log_odds(new.scores, new.covariates)
        if objective.weighs_propensity:
            exponent = objective.of(half).best_exponent(stack.log_odds(own.scores, own.covariates))
            totals[other] = objective.of(other).ranking(log_odds[other], exponent)
    return totals, log_odds


def _crossed_alone(pairs: Pairs, objective: Objective) -> tuple[np.ndarray, np.ndarray]:
    """Return what `_crossed` does for stacks that are fitted to the pairs of each half."""
    halves = _halves_of(pairs)
    return _crossed(halves, objective, [fit_stack(own).stack for own in halves])


def _calibrated(objective: Objective, log_odds: np.ndarray) -> tuple[float, Reliability]:
    """Return the best threshold of probability, and the sums of candidates in bins of probability."""
    known = objective.labels >= 0
    p, truth = probability(log_odds)[known], objective.truth[known]
    return best_threshold(p, truth, int(objective.n_true.sum())), Reliability.of(p, truth)


def _choose_sum(
    names: list[str], rows: dict[str, np.ndarray], groups: dict[str, str], objective: Objective
) -> tuple[Choice, np.ndarray, np.ndarray]:
    """Choose the weights of a sum, and the regression that makes it a probability.

    Also return what ranks each half of the documents under a sum that was chosen on the other half, and its
    log-odds.
    """
    rankings, report, alone = _alone(names, rows["scores"].swapaxes(0, 1), objective)
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
    stack = _of_total(objective, weighted_total(names, rows["scores"], weights))
    return _choice(weights, value, report, stack, objective, totals, log_odds), totals, log_odds


def _choose_classes(
    names: list[str],
    rows: dict[str, np.ndarray],
    groups: dict[str, str],
    objective: Objective,
    frequency: Frequency,
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
        covariates_of(rows, frequency),
    )
    cuts = class_cuts(pairs, boundary)
    halves = _halves_of(pairs)
    totals, log_odds = _crossed(halves, objective, [fit_classes(own, cuts, boundary)[0] for own in halves])
    stack, losses = fit_classes(pairs, cuts, boundary)
    n = len(objective.n_true)
    weights = {name: float(loss / n) for name, loss in zip(pairs.names, losses, strict=True)}
    value = objective.value(totals)
    return _choice(weights, value, summed.scores, stack, objective, totals, log_odds), totals, log_odds


def _stacked_variants(names: list[str], groups: dict[str, str], choice: Choice) -> list[str]:
    """Return the best head of every group whose scores are stacked by classes or used by a reranker.

    The heads of the latent states know nothing about labels that updates add, and gain little.
    """
    alone = {name: choice.scores[name]["nDCG@5"] for name in names}
    return [name for name in _best_variants(names, groups, alone) if name not in STATE_HEADS]


def _reranked_inputs(names: list[str], groups: dict[str, str], choice: Choice) -> list[str]:
    """Return the heads whose scores a reranker uses: those of a stack, and one with an index of documents.

    In the index, a reranker counts which labels occur together.
    """
    if not isinstance(choice.stack, Stack) or not choice.is_stacked:
        return _stacked_variants(names, groups, choice)
    inputs = [each.name for each in choice.stack.inputs]
    indexed = any(groups[name] in INDEXED for name in inputs)
    return inputs + ([] if indexed else [name for name in names if name == BEST_COSINE])


def _choose_reranked(
    names: list[str],
    rows: dict[str, np.ndarray],
    groups: dict[str, str],
    objective: Objective,
    frequency: Frequency,
    companions: Sequence[Csr],
    choice: Choice,
    log_odds: np.ndarray,
) -> Choice:
    """Rank the best labels of a blend again, if that is better on documents that the trees were not fitted to.

    The trees are fitted to the log-odds (n, c) of each half of the documents under a blend that was chosen on the
    other half.
    """
    inputs = _reranked_inputs(names, groups, choice)
    best, known = best_candidates(log_odds, rows["labels"], FEW_DEPTH if objective.has_auc else DEPTH)
    of_folds = folds_of_rows(rows)
    parts = []
    for number, own in enumerate(companions):
        part = np.flatnonzero(of_folds == number)
        of_part = {name: rows[name][part] for name in ("labels", "scores", "covariates")}
        of_part["fold"] = of_folds[part]
        parts.append(reranked_features(names, inputs, of_part, frequency, own, best[part], log_odds[part]))
    x = np.concatenate(parts)
    blended, truth = (np.take_along_axis(each, best, axis=1) for each in (log_odds, rows["truth"]))
    reranker, found = fit_reranker(inputs, x, truth, known, blended, companions[0], _halves(len(truth)))
    totals = with_best(log_odds, best, known, found)
    value = objective.value(totals)
    if value <= objective.value(log_odds) + RERANK_GAIN:
        return choice
    threshold, reliability = _calibrated(objective, totals)
    scores = {**choice.scores, BLEND: choice.scores["auto"], "auto": objective.named(totals)}
    return replace(
        choice, objective=value, scores=scores, reranker=reranker, threshold=threshold, reliability=reliability,
        precision_error=standard_error(objective.first_hits(totals)), error=objective.error(totals),
    )  # fmt: skip


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
