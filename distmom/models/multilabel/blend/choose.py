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

import numpy as np

from distmom.engine import Csr
from distmom.models.multilabel.blend.choice import Choice
from distmom.models.multilabel.blend.choose_reranker import choose_reranked
from distmom.models.multilabel.blend.choose_stack import choose_classes, choose_stack
from distmom.models.multilabel.blend.choose_sum import choose_sum
from distmom.models.multilabel.blend.covariates import frequency_log_odds
from distmom.models.multilabel.blend.crossed import Crossed
from distmom.models.multilabel.blend.objective import MEAN, Objective
from distmom.models.multilabel.blend.scored import Scored

#: least gain of a stack by classes over a weighted sum, which predicts in less time
STACK_GAIN = 2e-3
#: held-out documents without which no reranker is fitted
RERANK_DOCUMENTS = 500


def choose_blend(
    scored: Scored,
    metric: str = MEAN,
    inverse: np.ndarray | None = None,
    least: int = 0,
    companions: Sequence[Csr] | None = None,
) -> Choice:
    """Choose a blend of heads: a stack where all labels are candidates, else a weighted sum or a stack by classes.

    The best head alone is taken where it is better than the blend on documents that neither was fitted to; for one
    metric, which varies more than a mean of several, where it is better by more than a standard error.

    Parameters
    ----------
    scored : Scored
        Scores of the documents of all folds.
    metric : str, default "mean"
        Metric for which the blend is chosen, one of `OBJECTIVES`.
    inverse : ndarray of shape (L,), optional
        Inverse propensities of the labels; required by PSP@k.
    least : int, default 0
        Number of documents from which a label has a classifier of its own; 0 if no label has one, and then a stack
        by classes is not tried.
    companions : sequence of Csr, optional
        From `companion_shares`, of the documents that the heads of each fold were fitted to. Without it, no labels
        are ranked again.
    """
    objective = Objective(
        scored.labels, scored.truth, scored.n_true, metric, inverse, scored.ideal, scored.n_labels
    )
    if objective.has_auc:
        choice, found = choose_stack(scored, objective)
    else:
        choice, found = _choose_of_many(scored, objective, least)
    few = len(scored.truth) < RERANK_DOCUMENTS
    if few or scored.frequency is None or companions is None or objective.weighs_propensity:
        return choice
    return choose_reranked(scored, objective, companions, choice, found.log_odds)


def _choose_of_many(scored: Scored, objective: Objective, least: int) -> tuple[Choice, Crossed]:
    """Choose a weighted sum or, where a few labels have classifiers, a stack by classes if that is better."""
    choice, found = choose_sum(scored, objective)
    if scored.frequency is not None and least:
        boundary = float(np.mean(frequency_log_odds(np.array(least), scored.frequency[1])))
        classes = choose_classes(scored, objective, boundary, choice.scores)
        if objective.value(classes[1].totals) > objective.value(found.totals) + STACK_GAIN:
            return classes
    return choice, found
