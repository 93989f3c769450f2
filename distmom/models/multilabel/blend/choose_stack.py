"""Choice of a stack of heads: of all pairs where labels are few, or by classes of labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distmom.models.multilabel.blend.choice import Choice, ChosenStack
from distmom.models.multilabel.blend.class_stack import ClassStack, class_cuts, fit_classes
from distmom.models.multilabel.blend.crossed import (
    Alone,
    Crossed,
    best_variants,
    choice_of,
    crossed,
    crossed_alone,
    halves_of,
    stacked_variants,
)
from distmom.models.multilabel.blend.objective import Objective
from distmom.models.multilabel.blend.scored import Scored
from distmom.models.multilabel.blend.stack import Stack, fit_stack, negative_log_likelihood, select_inputs
from distmom.models.multilabel.blend.varying import vary
from distmom.models.multilabel.variants import INDEXED


def choose_stack(scored: Scored, objective: Objective) -> tuple[Choice, Crossed]:
    """Stack the heads that score all labels; of the variants that would be stored twice, the best is used.

    The coefficients vary with documents and labels if that makes documents that they were not fitted to more
    probable.
    """
    alone = Alone.of(scored, objective)
    # One variant, also of equally good ones: the others would share its place among the heads of the model. Those
    # with an index share their arrays, so that a stack may have all of them.
    best_of = best_variants(scored, alone.values)
    named = zip(scored.names, scored.families, strict=True)
    used = [name for name, family in named if family in INDEXED or name in best_of]
    pairs = scored.pairs(used)
    kept, fit = select_inputs(pairs)
    inputs = pairs.only(kept)
    parts = halves_of(inputs)
    # From the stack of all documents, the fits take fewer steps.
    stacks = [fit_stack(own, fit.stack).stack for own in parts]
    predictions = crossed(parts, objective, stacks)
    if scored.frequency is not None:
        varied = [vary(own, stack) for own, stack in zip(parts, stacks, strict=True)]
        varying = crossed(parts, objective, varied)
        before, after = (
            negative_log_likelihood(each.log_odds, inputs.truth) for each in (predictions, varying)
        )
        if after < before:
            predictions = varying
            fit = replace(fit, stack=vary(inputs, fit.stack))
    best = max(used, key=lambda name: alone.values[name])
    if objective.clearly_prefers(alone.rankings[best], predictions.totals):
        own = pairs.only([used.index(best)])
        fit = fit_stack(own)
        predictions = Crossed(alone.rankings[best], crossed_alone(own, objective).log_odds)
    blend = _chosen(fit.stack, fit.losses, objective)
    return choice_of(
        blend, objective.value(predictions.totals), alone.report, objective, predictions
    ), predictions


def choose_classes(
    scored: Scored, objective: Objective, boundary: float, report: dict[str, dict[str, float]]
) -> tuple[Choice, Crossed]:
    """Stack the heads by classes of labels; of variants, the one that is best alone is used.

    Parameters
    ----------
    scored : Scored
        With frequencies of labels.
    objective : Objective
    boundary : float
        Log-odds of frequency from which labels have a classifier.
    report : dict of str to dict
        Metrics of every head.
    """
    pairs = scored.pairs(stacked_variants(scored, report))
    cuts, parts = class_cuts(pairs, boundary), halves_of(pairs)
    predictions = crossed(parts, objective, [fit_classes(own, cuts, boundary)[0] for own in parts])
    blend = _chosen(*fit_classes(pairs, cuts, boundary), objective)
    return choice_of(blend, objective.value(predictions.totals), report, objective, predictions), predictions


def _chosen(stack: Stack | ClassStack, losses: np.ndarray, objective: Objective) -> ChosenStack:
    """Return a stack with the loss per document without each input."""
    n = len(objective.n_true)
    names = (each.name for each in stack.inputs)
    return ChosenStack(stack, {name: float(loss / n) for name, loss in zip(names, losses, strict=True)})
