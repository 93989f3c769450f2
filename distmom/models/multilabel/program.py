"""The program of the multi-label model: fits its heads and, for ``auto``, chooses a blend of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Csr, Engine, Selection, StoredArray
from distmom.errors import NumericalError
from distmom.models.multilabel.assembly import (
    DEFAULT_VARIANTS,
    NEIGHBOR_VARIANTS,
    RIDGE_PENALTIES,
    STATE_HEADS,
    FittedHeads,
    HeadSettings,
    Offer,
    Parts,
    assemble,
    offer,
    recipe_of,
)
from distmom.models.multilabel.blend.choice import Choice
from distmom.models.multilabel.blend.objective import corpus_propensity, weighs_propensity
from distmom.models.multilabel.classifiers.gate import fit_gate, tries_gate
from distmom.models.multilabel.classifiers.margin import (
    FREQUENT_COST,
    MarginFit,
    cost_name,
    fit_margins,
    frequent_labels,
    tries_margin,
)
from distmom.models.multilabel.effort import NORMAL, Effort
from distmom.models.multilabel.folds import Fold, choose, folds_of, held_out
from distmom.models.multilabel.heads.candidates import N_RANDOM, CandidatesPass, candidates_pass
from distmom.models.multilabel.heads.features import Features, extend_features, fit_features
from distmom.models.multilabel.heads.linear import LinearFit, extend_linear, fit_linear
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead
from distmom.models.multilabel.heads.regression import (
    SKETCH_NEIGHBORS_ROWS,
    RidgeFit,
    extend_ridge,
    fit_neighbors,
    fit_ridge,
    sketch_basis,
)
from distmom.models.multilabel.latent.states import extend_states, fit_states
from distmom.models.multilabel.trials import choice_seconds, gate_seconds, margin_seconds, scoring_seconds
from distmom.models.multilabel.updates.kept_sums import kept_sums
from distmom.spectral.program.run import Run, unknown

HEADS = ("auto", "moment", "posterior", "ridge", "linear", "neighbors", "svm")
#: least share of held-out documents in the corpus for which, after the choice, they are added to the states, and
#: the gate is fitted to them too
REFIT_SHARE = 0.05
#: most labels per column of the sketch for which `auto` tries ridge: r columns cannot separate many more
LABELS_PER_COLUMN = 50


def extends_states(corpus: Corpus | MemoryCorpus, seed: int, effort: Effort = NORMAL) -> bool:
    """Return whether ``auto`` adds the held-out documents to the latent states too."""
    return effort.has_states and held_out(corpus, seed, effort).fraction >= REFIT_SHARE


def tries_ridge(corpus: Corpus | MemoryCorpus, n_components: int) -> bool:
    """Return whether ``auto`` fits the ridge head: not where there are far more labels than columns."""
    return corpus.n_labels <= LABELS_PER_COLUMN * n_components


def searches_sketch(corpus: Corpus | MemoryCorpus, effort: Effort) -> bool:
    """Return whether ``auto`` tries neighbours in the sketch."""
    return effort.has_sketch_neighbors and corpus.n_documents <= SKETCH_NEIGHBORS_ROWS


def n_dense_heads(corpus: Corpus | MemoryCorpus, n_components: int, effort: Effort = NORMAL) -> int:
    """Return the number of heads tried by ``auto`` that score every label: all but those of the latent states."""
    n_ridge = len(RIDGE_PENALTIES) + effort.has_sketch_neighbors if tries_ridge(corpus, n_components) else 0
    n_margins = (
        len(effort.costs) if tries_margin(corpus) else tries_gate(corpus) + bool(frequent_labels(corpus))
    )
    return n_ridge + n_margins + len(("centroid", "linear", "best-cosine")) + len(NEIGHBOR_VARIANTS)


def fit_heads(run: Run, settings: HeadSettings) -> FittedHeads:
    """Fit the heads of a multi-label model; with ``auto``, choose their blend on held-out documents.

    Raises
    ------
    UsageError
        If no held-out document has a label, or no head could be fitted.
    """
    if settings.head != "auto":
        weights = weights_of(settings.head)
        parts = fit_parts(run, settings, None, set(weights))
        return _assembled(run, settings, parts, weights, None)
    selections = folds_of(run.corpus, settings.seed, settings.effort)
    chosen = selections[0]
    parts, first = score_fold(run.part("choose"), settings, chosen)
    folds = [first]
    for number, other in enumerate(selections[1:], start=2):
        folds.append(score_fold(run.part(f"choose, fold {number}"), settings, other)[1])
    n_scored = max(1, int(len(folds) * chosen.fraction * run.corpus.n_documents))
    pass_ = scoring_pass(run.corpus, settings, chosen)
    choosing_seconds = partial(choice_seconds, pass_=pass_, n_held_out=n_scored)
    choice = run.rows(choose, folds, settings.objective, out=unknown(), trial=choosing_seconds)
    parts = extend_parts(run.part("extend"), settings, parts, chosen, choice)
    return _assembled(run, settings, parts, None, choice)


def score_fold(choosing: Run, settings: HeadSettings, chosen: Selection) -> tuple[Parts, Fold]:
    """Fit all parts to the documents outside a fold, and score those of the fold."""
    effort, rest = settings.effort, replace(chosen, heldout=False)
    corpus = choosing.corpus
    parts = fit_parts(choosing, settings, rest, None)
    offered = choosing.rows(offer, settings, parts, rest, out=Offer(unknown(), unknown(), unknown()))
    pass_, n_documents = scoring_pass(corpus, settings, chosen), corpus.n_documents
    ridge = tries_ridge(corpus, settings.n_components)
    scoring = partial(
        scoring_seconds, pass_=pass_, n_documents=n_documents, rank=settings.n_components if ridge else None,
        n_sketched=n_documents if searches_sketch(corpus, effort) else 0, n_states=settings.states.n_states,
        gate=tries_gate(corpus), n_costs=len(effort.costs), n_frequent=len(frequent_labels(corpus)),
    )  # fmt: skip
    if weighs_propensity(settings.objective):
        pass_ = replace(pass_, inverse=choosing.put(corpus_propensity(corpus)))
    return parts, Fold(offered, choosing.scan(replace(pass_, scorer=offered.stored), trial=scoring))


def scoring_pass(corpus: Corpus | MemoryCorpus, settings: HeadSettings, chosen: Selection) -> CandidatesPass:
    """Return the pass that scores the held-out documents, without its scorer."""
    n_dense = n_dense_heads(corpus, settings.n_components, settings.effort)
    n_heads = n_dense + (len(STATE_HEADS) if settings.effort.has_states else 0)
    return candidates_pass(corpus, chosen, n_dense, n_heads, N_RANDOM if frequent_labels(corpus) else 0)


def weights_of(head: str) -> dict[str, float]:
    """Return the weights of a model whose head is not chosen."""
    return {DEFAULT_VARIANTS.get(head, head): 1.0}


def _assembled(
    run: Run, settings: HeadSettings, parts: Parts, weights: dict[str, float] | None, choice: Choice | None
) -> FittedHeads:
    fitted = run.rows(assemble, settings, parts, weights, choice, out=FittedHeads.unknown())
    return run.rows(_with_sums, fitted, parts, weights, choice, out=fitted) if settings.keep_sums else fitted


def _with_sums(
    engine: Engine,
    fitted: FittedHeads,
    parts: Parts,
    weights: dict[str, float] | None,
    choice: Choice | None,
) -> FittedHeads:
    return kept_sums(engine, fitted, parts, recipe_of(weights, choice))


def fit_parts(
    run: Run, settings: HeadSettings, selection: Selection | None, wanted: set[str] | None
) -> Parts:
    """Fit the parts that the wanted heads need (all heads if None) to the selected documents."""

    def needs(*prefixes: str) -> bool:
        return wanted is None or any(name.startswith(prefixes) for name in wanted)

    features = ridge = linear = index = margins = gate = frequent = None
    if needs("ridge", "linear", "centroid", "neighbors", "best", "sketch", "svm"):
        features = fit_features(run, settings.features, selection)
    required = settings.head in STATE_HEADS
    states = None
    if required or settings.effort.has_states:
        states = run.attempt(fit_states, settings.states, selection, required=required)
    if features is not None:
        if needs("ridge", "sketch") and (wanted or tries_ridge(run.corpus, settings.n_components)):
            ridge = _fit_sketch(run, settings, features)
        if needs("linear"):
            linear = fit_linear(run, features, settings.n_residual_passes, settings.limits)
        if needs("neighbors", "best", "sketch") or (settings.keep_sums and needs("svm")):
            index = fit_neighbors(run, features)
        if needs("svm") and (wanted or tries_margin(run.corpus)):
            costs = settings.effort.costs
            if wanted is not None:
                costs = tuple(c for c in costs if f"svm-{cost_name(c)}" in wanted)
            margins = _fit_margins(run, settings, features, selection, costs)
        if linear is not None and wanted is None and tries_gate(run.corpus):
            gate = _fit_gate(run, settings, features, linear, selection)
        if wanted is None and frequent_labels(run.corpus):
            frequent = _fit_frequent(run, settings, features, selection)
    return Parts(features, states, ridge, linear, index, margins, gate, frequent)


def extend_parts(run: Run, settings: HeadSettings, known: Parts, chosen: Selection, choice: Choice) -> Parts:
    """Add the held-out documents to the parts fitted without them, by adding their sums.

    Only the margin classifiers, if chosen, are fitted again, as they are not sums. A gate and the classifiers of
    frequent labels are fitted again where the held-out documents are more than a small share of all. The latent
    states of large corpora are not extended: this would take another pass over all documents for their labels.
    """
    assert known.features is not None

    def chose(*prefixes: str) -> bool:
        return recipe_of(None, choice).has(*prefixes)

    features, added = extend_features(run, known.features, chosen)
    linear = ridge = None
    if known.linear is not None:
        linear = run.when(
            lambda: chose("linear"), extend_linear, known.linear, features, added, otherwise=None
        )
    if known.ridge is not None:
        ridge = run.when(lambda: chose("ridge", "sketch"), extend_ridge, known.ridge, added, otherwise=None)
    states = known.states
    if extends_states(run.corpus, settings.seed, settings.effort):
        fitted = not isinstance(states, NumericalError)
        states = run.when(lambda: fitted, extend_states, settings.states, states, chosen, otherwise=states)
    index = run.rows(_with_all_documents, known.index, out=unknown())
    margins = known.margins
    if margins is not None and settings.effort.refits_margins:
        margins = run.when(lambda: chose("svm"), _refit_margins, settings, features, choice, otherwise=None)
    gate = known.gate
    refits_gate = settings.effort.refits_margins and chosen.fraction >= REFIT_SHARE
    if gate is not None and known.linear is not None and refits_gate:
        gate = run.when(
            lambda: chose("gate"), _fit_gate, settings, features, known.linear, None, otherwise=None
        )
    frequent = known.frequent
    if frequent is not None and refits_gate:
        frequent = run.when(
            lambda: chose("frequent"), _fit_frequent, settings, features, None, otherwise=None
        )
    return Parts(features, states, ridge, linear, index, margins, gate, frequent)


def _refit_margins(run: Run, settings: HeadSettings, features: Features, choice: Choice) -> MarginFit:
    costs = run.rows(_chosen_costs, choice, settings.effort.costs, out=unknown())
    return _fit_margins(run, settings, features, None, costs)


def _fit_margins(
    run: Run,
    settings: HeadSettings,
    features: Features,
    selection: Selection | None,
    costs: tuple[float, ...],
) -> MarginFit:
    n_documents, n_labels = run.corpus.n_documents, run.corpus.n_labels
    trial = partial(margin_seconds, n_documents=n_documents, n_labels=n_labels, costs=settings.effort.costs,
        tolerance=settings.effort.tolerance,
    )  # fmt: skip
    return fit_margins(
        run, features, selection, costs, settings.seed, trial, settings.limits, settings.effort.tolerance
    )


def _fit_frequent(
    run: Run, settings: HeadSettings, features: Features, selection: Selection | None
) -> MarginFit:
    labels, tolerance = frequent_labels(run.corpus), settings.effort.tolerance
    trial = partial(margin_seconds, n_documents=run.corpus.n_documents, n_labels=len(labels),
        costs=(FREQUENT_COST,), tolerance=tolerance,
    )  # fmt: skip
    return fit_margins(
        run, features, selection, (FREQUENT_COST,), settings.seed, trial, settings.limits, tolerance, labels
    )


def _fit_gate(
    run: Run, settings: HeadSettings, features: Features, linear: LinearFit, selection: Selection | None
) -> MarginFit:
    trial = partial(gate_seconds, corpus=run.corpus)
    (weights,) = (term.matrix for term in linear.terms)
    assert isinstance(weights, Csr)
    return fit_gate(
        run, features.idf, weights, linear.n_entries, selection, settings.seed, trial, settings.limits
    )


def _chosen_costs(engine: Engine, choice: Choice, costs: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(cost for cost in costs if f"svm-{cost_name(cost)}" in choice.weights)


def _with_all_documents(engine: Engine, index: NeighborsHead) -> NeighborsHead:
    return replace(index, alive=engine.put(np.ones(engine.corpus.n_documents, np.uint8)))


def _fit_sketch(
    run: Run, settings: HeadSettings, features: Features
) -> tuple[tuple[StoredArray, int], RidgeFit]:
    """Find the basis of the sketch and add up its ridge sums; small corpora keep its rows for neighbours."""
    basis = sketch_basis(run, features, settings.n_components, settings.seed)
    store = settings.head == "auto" and searches_sketch(run.corpus, settings.effort)
    return basis, fit_ridge(run, features, basis, store=store)
