"""Choice of a reranker of the best labels of a blend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from distmom.engine import Csr
from distmom.models.multilabel.blend.choice import Choice, ChosenStack
from distmom.models.multilabel.blend.crossed import calibrated, halves, stacked_variants
from distmom.models.multilabel.blend.objective import Objective, standard_error
from distmom.models.multilabel.blend.reranking import (
    DEPTH,
    FEW_DEPTH,
    best_candidates,
    fit_reranker,
    with_best,
)
from distmom.models.multilabel.blend.scored import Scored
from distmom.models.multilabel.blend.stack import Stack
from distmom.models.multilabel.variants import BEST_COSINE, INDEXED, family_of

#: least gain of a reranker over the blend
RERANK_GAIN = 5e-4
#: name of the blend before its best labels are ranked again, in the reported metrics
BLEND = "blend"


def choose_reranked(
    scored: Scored, objective: Objective, companions: Sequence[Csr], choice: Choice, log_odds: np.ndarray
) -> Choice:
    """Rank the best labels of a blend again, if that is better on documents that the trees were not fitted to.

    Parameters
    ----------
    scored : Scored
        With frequencies of labels.
    objective : Objective
    companions : sequence of Csr
        From `companion_shares`, of the documents that the heads of each fold were fitted to.
    choice : Choice
        The blend.
    log_odds : ndarray of shape (n, c), float32
        Of each half of the documents under a blend that was chosen on the other half, to which the trees are
        fitted.
    """
    inputs = _inputs(scored, choice)
    best, known = best_candidates(log_odds, scored.labels, FEW_DEPTH if objective.has_auc else DEPTH)
    parts = []
    for number, own in enumerate(companions):
        part = np.flatnonzero(scored.fold == number)
        parts.append(scored.of(part).pair_features(inputs, own, best[part], log_odds[part]))
    blended, truth = (np.take_along_axis(each, best, axis=1) for each in (log_odds, scored.truth))
    reranker, found = fit_reranker(
        inputs, np.concatenate(parts), truth, known, blended, companions[0], halves(len(truth))
    )
    totals = with_best(log_odds, best, known, found)
    value = objective.value(totals)
    if value <= objective.value(log_odds) + RERANK_GAIN:
        return choice
    threshold, reliability = calibrated(objective, totals)
    scores = {**choice.scores, BLEND: choice.scores["auto"], "auto": objective.named(totals)}
    return replace(
        choice, objective=value, scores=scores, reranker=reranker, threshold=threshold, reliability=reliability,
        precision_error=standard_error(objective.first_hits(totals)), error=objective.error(totals),
    )  # fmt: skip


def _inputs(scored: Scored, choice: Choice) -> list[str]:
    """Return the heads whose scores a reranker uses: those of a stack, and one with an index of documents.

    In the index, a reranker counts which labels occur together.
    """
    if not (isinstance(choice.blend, ChosenStack) and isinstance(choice.blend.stack, Stack)):
        return stacked_variants(scored, choice.scores)
    inputs = list(choice.blend.inputs)
    indexed = any(family_of(name) in INDEXED for name in inputs)
    return inputs + ([] if indexed else [name for name in scored.names if name == BEST_COSINE])
