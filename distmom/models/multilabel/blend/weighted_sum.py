"""Choice of the weights of a sum of heads by coordinate ascent, and of the power of a gate that multiplies it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from distmom.blas import map_on_cores
from distmom.models.multilabel.blend.objective import Objective
from distmom.models.multilabel.blend.scored import Scored
from distmom.models.multilabel.variants import FREQUENT, GATE

#: weights tried for each head, relative to its mean best score
GRID = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)
#: least gain in the objective for which a head is kept
MIN_GAIN = 2e-4
#: share of the objective of the best head that a head must reach alone to be tried in a sum
MIN_SHARE = 0.1
#: powers tried for the factors of a gate
POWERS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class SumWeights:
    """The factors by which a sum multiplies the scores of heads.

    Attributes
    ----------
    factors : dict of str to float
        Factors of the heads that are added.
    power : float or None, default None
        Power of the factors of a gate, which multiply positive sums; None without a gate.
    """

    factors: dict[str, float]
    power: float | None = None

    @property
    def named(self) -> dict[str, float]:
        """The factors of heads and, after these, the power of the gate."""
        return self.factors if self.power is None else {**self.factors, GATE: self.power}

    def totals(self, scored: Scored) -> np.ndarray:
        """Return the weighted sums (n, c) of the scores of heads, positive ones times the factors of the gate."""
        total = np.zeros((scored.scores.shape[0], scored.scores.shape[2]), np.float32)
        for name, factor in self.factors.items():
            total += np.float32(factor) * scored.scores_of(name)
        if self.power is None:
            return total
        gate = np.maximum(scored.scores_of(GATE), 0.0) ** np.float32(self.power)
        return np.where(total > 0.0, total * gate, total)


def choose_weights(scored: Scored, objective: Objective) -> tuple[SumWeights, float]:
    """Return the weights of a sum, and the value of the objective on the same documents."""
    found = []
    for left_out in ((GATE,), (GATE, FREQUENT)) if FREQUENT in scored.names else ((GATE,),):
        added = [name for name in scored.names if name not in left_out]
        if not added:
            continue
        weights, best = ascend(scored.only(added), objective)
        if GATE in scored.names:
            gated = [replace(weights, power=power) for power in POWERS]
            values = map_on_cores(lambda each: objective.value(each.totals(scored)), gated)
            i = int(np.argmax(values))
            if values[i] > best + MIN_GAIN:
                weights, best = gated[i], values[i]
        found.append((weights, best))
    return max(found, key=lambda each: each[1])


def ascend(scored: Scored, objective: Objective) -> tuple[SumWeights, float]:
    """Find the weights of a sum by coordinate ascent; also return the value of the objective.

    The ascent begins with the best single head; of the variants of a head (same family) at most one is used. Heads
    whose objective alone is below `MIN_SHARE` of the best, or that contribute less than `MIN_GAIN` to the final
    blend, are left out.

    Parameters
    ----------
    scored : Scored
        Without a gate.
    objective : Objective
        Objective on the same documents.
    """
    value, names, families = objective.value, scored.names, scored.families
    n = len(objective.n_true)
    scale = np.maximum(scored.best.astype(np.float64).mean(axis=0), 1e-30) if n else np.ones(len(names))
    scores = np.ascontiguousarray((scored.scores / scale[:, None]).swapaxes(0, 1), dtype=np.float32)

    def without(totals: np.ndarray, weights: np.ndarray, heads: Sequence[int]) -> np.ndarray:
        for h in heads:
            if weights[h]:
                totals = totals - np.float32(weights[h]) * scores[h]
        return totals

    alone = map_on_cores(value, scores)
    first = int(np.argmax(alone))
    tried = [h for h in np.argsort(-np.asarray(alone), kind="stable") if alone[h] >= MIN_SHARE * alone[first]]
    weights = np.zeros(len(names))
    weights[first] = 1.0
    totals, best = scores[first].copy(), alone[first]
    improved = True
    while improved:
        improved = False
        for h in tried:
            group = [j for j, family in enumerate(families) if family == families[h]]
            others = without(totals, weights, group)
            # Without any head, labels would be ranked by their numbers.
            grid = GRID if np.delete(weights, group).any() else GRID[1:]
            for weight, got in zip(grid, _values(objective, others, scores[h], grid), strict=True):
                if got > best + MIN_GAIN:
                    weights[group] = 0.0
                    weights[h] = weight
                    totals, best, improved = others + np.float32(weight) * scores[h], got, True
    # A head chosen in the first steps may contribute little once others have been chosen.
    while np.count_nonzero(weights) > 1:
        rest = {h: value(without(totals, weights, [h])) for h in np.flatnonzero(weights).tolist()}
        h = max(rest, key=lambda h: rest[h])
        if rest[h] < best - MIN_GAIN:
            break
        totals, best = without(totals, weights, [h]), rest[h]
        weights[h] = 0.0
    chosen = {name: float(w / s) for name, w, s in zip(names, weights, scale, strict=True) if w > 0}
    return SumWeights(chosen), best


def _values(
    objective: Objective, others: np.ndarray, scores: np.ndarray, grid: Sequence[float]
) -> list[float]:
    """Return the values of the objective for sums with every weight of a grid for one head."""
    return map_on_cores(lambda weight: objective.value(others + np.float32(weight) * scores), grid)
