"""Folds: documents that are held out in turn, and the choice of a blend on the scores of all of them.

Heads are fitted to the documents outside a fold and score those of the fold. One fold suffices where it has many
documents. A choice on a few documents is a matter of chance, so small corpora have several folds: up to all of
their documents are held out once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Csr, Engine, PassResult, Selection
from distmom.errors import UsageError
from distmom.models.multilabel.assembly import Offer, opened_array
from distmom.models.multilabel.blend.choice import Choice
from distmom.models.multilabel.blend.choose import choose_blend
from distmom.models.multilabel.blend.companions import companion_shares
from distmom.models.multilabel.blend.objective import MEAN, corpus_propensity, weighs_propensity
from distmom.models.multilabel.blend.scored import Scored, joined
from distmom.models.multilabel.classifiers.margin import frequent_labels
from distmom.models.multilabel.effort import NORMAL, Effort
from distmom.models.multilabel.heads.candidates import read_scores
from distmom.models.multilabel.variants import FREQUENT

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fold:
    """A fold whose documents were scored.

    Attributes
    ----------
    offered : Offer
        The heads, fitted to all other documents.
    scored : PassResult
        Result of `CandidatesPass` over the documents of the fold.
    """

    offered: Offer
    scored: PassResult


def held_out(corpus: Corpus | MemoryCorpus, seed: int, effort: Effort = NORMAL) -> Selection:
    """Return the first fold: the documents that ``auto`` holds out to choose a blend."""
    share = min(effort.held_out_share, effort.held_out_documents / max(1, corpus.n_documents))
    return Selection(share, heldout=True, seed=seed)


def folds_of(corpus: Corpus | MemoryCorpus, seed: int, effort: Effort = NORMAL) -> list[Selection]:
    """Return as few folds as hold `Effort.cross_fitted_documents` documents in total, or else all folds."""
    first = held_out(corpus, seed, effort)
    n_enough = math.ceil(effort.cross_fitted_documents / max(1.0, first.fraction * corpus.n_documents))
    n_most = math.floor(1.0 / first.fraction + 1e-9)
    return [replace(first, offset=i * first.fraction) for i in range(max(1, min(n_enough, n_most)))]


def choose(engine: Engine, folds: Sequence[Fold], objective: str) -> Choice:
    """Choose a blend by the scores of held-out documents; a UsageError if no held-out document has a label."""
    inputs = blend_inputs(engine, folds, objective)
    choice = replace(choose_blend(**inputs), repeated=inputs["scored"].repeated)
    logger.info("chosen on %d held-out documents: %s", choice.n_documents, choice.weights)
    return choice


def blend_inputs(engine: Engine, folds: Sequence[Fold], objective: str = MEAN) -> dict[str, Any]:
    """Return the arguments of `choose_blend`, by name; a UsageError if no held-out document has a label."""
    # States may carry the model in some folds only.
    of_folds = [fold.offered.names for fold in folds]
    names = [name for name in of_folds[0] if all(name in others for others in of_folds)]
    counts, n = np.asarray(engine.corpus.label_frequency), engine.corpus.n_documents
    least = 0
    if FREQUENT in names:
        least = int(counts[list(frequent_labels(engine.corpus))].min())
    parts, fitted, n_fitted = [], [], []
    for number, fold in enumerate(folds):
        own = read_scores(engine, fold.scored, fold.offered.names, number)
        if fold.offered.names != names:
            own = own.only(names)
        fitted.append(counts - held_counts(own, len(counts)))
        n_fitted.append([n - len(own.truth)])
        parts.append(without_classifiers(own, fitted[-1], least) if least else own)
    scored = replace(joined(parts), frequency=(np.array(fitted), np.array(n_fitted, float)))
    if not scored.n_true.any():
        raise UsageError("no held-out document has a label: the corpus is too small for head='auto'")
    weighs = weighs_propensity(objective)
    return {
        "scored": scored,
        "metric": objective,
        "inverse": corpus_propensity(engine.corpus) if weighs else None,
        "least": least,
        # Rankings by weighted probability are not ranked again.
        "companions": None if weighs else [_companions(fold.offered) for fold in folds],
    }


def _companions(offered: Offer) -> Csr:
    index = offered.stored.index
    assert index is not None
    return companion_shares(index.labels.opened(), opened_array(index.alive))


def held_counts(scored: Scored, n_labels: int) -> np.ndarray:
    """Return the numbers of held-out documents of labels (L,) that have them among their candidates."""
    return np.bincount(scored.labels[scored.truth > 0], minlength=n_labels)


def without_classifiers(scored: Scored, fitted: np.ndarray, least: int) -> Scored:
    """Return scores of candidates without classifiers of labels with fewer than ``least`` fitted documents.

    Such a label has a classifier only because of its held-out documents, and the scores would leak that.
    """
    scores, head = scored.scores.copy(), scored.names.index(FREQUENT)
    scores[:, head][fitted[np.maximum(scored.labels, 0)] < least] = 0.0
    return replace(scored, scores=scores)
