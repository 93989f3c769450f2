"""Choice of a weighted sum of heads, and of the regression that makes it a probability."""

from __future__ import annotations

import numpy as np

from distmom.models.multilabel.blend.choice import TOTAL, Choice, ChosenSum
from distmom.models.multilabel.blend.crossed import Alone, Crossed, choice_of, halves
from distmom.models.multilabel.blend.objective import MEAN, Objective
from distmom.models.multilabel.blend.scored import Scored
from distmom.models.multilabel.blend.stack import Pairs, Stack, fit_stack
from distmom.models.multilabel.blend.weighted_sum import ascend, choose_weights
from distmom.models.multilabel.variants import FREQUENT, GATE


def choose_sum(scored: Scored, objective: Objective) -> tuple[Choice, Crossed]:
    """Choose the weights of a sum, or the best head alone, and the regression that makes it a probability."""
    alone = Alone.of(scored, objective)
    found = _crossed_sum(scored, objective)
    weights, value = choose_weights(scored, objective.of_probability)
    # Alone, the classifiers of frequent labels would not rank the others.
    ranking = (name for name in scored.names if name not in (GATE, FREQUENT))
    single = max(ranking, key=lambda name: alone.values[name])
    if objective.clearly_prefers(alone.rankings[single], found.totals):
        own = scored.only([single])
        found = Crossed(alone.rankings[single], _crossed_sum(own, objective).log_odds)
        weights, value = ascend(own, objective.of_probability)
    if objective.metric != MEAN:
        value = objective.value(found.totals)
    blend = ChosenSum(weights, _calibration(objective, weights.totals(scored)))
    return choice_of(blend, value, alone.report, objective, found), found


def _crossed_sum(scored: Scored, objective: Objective) -> Crossed:
    """Return the predictions for each half by sums chosen on the other half."""
    totals = np.zeros(objective.truth.shape, np.float32)
    log_odds = np.zeros_like(totals)
    for half, other in halves(len(totals)):
        part, known = scored.of(half), objective.of(half)
        weights, _ = choose_weights(part, known.of_probability)
        totals[other] = weights.totals(scored.of(other))
        own = weights.totals(part)
        calibration = _calibration(known, own)
        log_odds[other] = calibration.log_odds(totals[None, other])
        if objective.weighs_propensity:
            exponent = known.best_exponent(calibration.log_odds(own[None]))
            totals[other] = objective.of(other).ranking(log_odds[other], exponent)
    return Crossed(totals, log_odds)


def _calibration(objective: Objective, totals: np.ndarray) -> Stack:
    """Return the regression that makes weighted sums (n, c) of scores log-odds."""
    pairs = Pairs((TOTAL,), (False,), totals[None], objective.truth, objective.labels >= 0)
    return fit_stack(pairs).stack
