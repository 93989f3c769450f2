"""Cross-fitted metrics of blends: each half of the documents is measured with a blend chosen on the other half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distmom.models.multilabel.blend.choice import Choice, ChosenStack, ChosenSum
from distmom.models.multilabel.blend.class_stack import ClassStack
from distmom.models.multilabel.blend.objective import MEAN, Objective, standard_error
from distmom.models.multilabel.blend.probabilities import Reliability, best_threshold
from distmom.models.multilabel.blend.scored import Scored
from distmom.models.multilabel.blend.stack import Pairs, Stack, fit_stack, probability
from distmom.models.multilabel.variants import SIGNED, STATE_HEADS, family_of


@dataclass(frozen=True)
class Crossed:
    """Predictions for each half of the documents, by blends chosen on the other half.

    Attributes
    ----------
    totals : ndarray of shape (n, c), float32
        Values by which candidates are ranked.
    log_odds : ndarray of shape (n, c), float32
    """

    totals: np.ndarray
    log_odds: np.ndarray


@dataclass(frozen=True)
class Alone:
    """Every head by itself.

    Attributes
    ----------
    rankings : dict of str to ndarray
        Values by which it ranks candidates, (n, c): its scores, except for PSP@k.
    report : dict of str to dict
        Its metrics.
    values : dict of str to float
        Its objective.
    """

    rankings: dict[str, np.ndarray]
    report: dict[str, dict[str, float]]
    values: dict[str, float]

    @classmethod
    def of(cls, scored: Scored, objective: Objective) -> Alone:
        """Return the ranking, the metrics and the value of the objective of every head alone."""
        rankings = _rankings(scored, objective)
        report = {name: objective.named(own) for name, own in rankings.items()}
        values = {name: _value(objective, rankings[name], metrics) for name, metrics in report.items()}
        return cls(rankings, report, values)


def _rankings(scored: Scored, objective: Objective) -> dict[str, np.ndarray]:
    scores = dict(zip(scored.names, scored.scores.swapaxes(0, 1), strict=True))
    if not objective.weighs_propensity:
        return scores
    rankings = {}
    for name, own in scores.items():
        signed = family_of(name) in SIGNED
        pairs = Pairs((name,), (signed,), own[None], objective.truth, objective.labels >= 0)
        rankings[name] = crossed_alone(pairs, objective).totals
    return rankings


def _value(objective: Objective, totals: np.ndarray, metrics: dict[str, float]) -> float:
    """Return the value of the objective, given its metrics: their mean, or one metric."""
    return float(np.mean([*metrics.values()])) if objective.metric == MEAN else objective.value(totals)


def best_variants(scored: Scored, values: dict[str, float]) -> list[str]:
    """Return the best head of every family by values of the heads; of equally good ones, the first."""
    of_families: dict[str, list[str]] = {}
    for name, family in zip(scored.names, scored.families, strict=True):
        of_families.setdefault(family, []).append(name)
    return [max(variants, key=lambda name: values[name]) for variants in of_families.values()]


def stacked_variants(scored: Scored, report: dict[str, dict[str, float]]) -> list[str]:
    """Return the best head of every family whose scores are stacked by classes or used by a reranker.

    The heads of the latent states have no scores for labels that updates add, and gain little.
    """
    values = {name: report[name]["nDCG@5"] for name in scored.names}
    return [name for name in best_variants(scored, values) if name not in STATE_HEADS]


def halves(n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the two ways to fit to one half of the documents and measure on the other."""
    even, odd = np.arange(0, n, 2), np.arange(1, n, 2)
    return [(even, odd), (odd, even)] if n > 1 else [(even, even)]


def halves_of(pairs: Pairs) -> list[Pairs]:
    """Return the pairs of the documents that `crossed` requires stacks of."""
    return [pairs.of(half) for half, _ in halves(len(pairs.truth))]


def crossed(parts: Sequence[Pairs], objective: Objective, stacks: Sequence[Stack | ClassStack]) -> Crossed:
    """Return the predictions of stacks for each half, given the pairs of both and the stack fitted to each."""
    log_odds = np.zeros(objective.truth.shape, np.float32)
    totals = np.zeros_like(log_odds) if objective.weighs_propensity else log_odds
    # The other half of the last one is the first; a single document is its own.
    others = [parts[-1], *parts[:-1]]
    for (half, other), own, new, stack in zip(halves(len(log_odds)), parts, others, stacks, strict=True):
        log_odds[other] = stack.log_odds(new.scores, new.covariates)
        if objective.weighs_propensity:
            exponent = objective.of(half).best_exponent(stack.log_odds(own.scores, own.covariates))
            totals[other] = objective.of(other).ranking(log_odds[other], exponent)
    return Crossed(totals, log_odds)


def crossed_alone(pairs: Pairs, objective: Objective) -> Crossed:
    """Return the predictions for each half by stacks fitted to the other half."""
    parts = halves_of(pairs)
    return crossed(parts, objective, [fit_stack(own).stack for own in parts])


def choice_of(
    blend: ChosenSum | ChosenStack,
    value: float,
    report: dict[str, dict[str, float]],
    objective: Objective,
    found: Crossed,
) -> Choice:
    """Return a choice, given the value of its objective, the metrics of heads, and cross-fitted predictions."""
    exponent = objective.best_exponent(found.log_odds) if objective.weighs_propensity else None
    return Choice(
        blend, value, {**report, "auto": objective.named(found.totals)}, len(objective.n_true),
        standard_error(objective.first_hits(found.totals)), *calibrated(objective, found.log_odds),
        objective.metric, objective.error(found.totals), exponent,
    )  # fmt: skip


def calibrated(objective: Objective, log_odds: np.ndarray) -> tuple[float, Reliability]:
    """Return the best threshold of probability, and the sums of candidates in bins of probability."""
    known = objective.labels >= 0
    p, truth = probability(log_odds)[known], objective.truth[known]
    return best_threshold(p, truth, int(objective.n_true.sum())), Reliability.of(p, truth)
