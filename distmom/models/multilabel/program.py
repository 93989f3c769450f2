"""The program of the multi-label model: fits its heads and, for ``auto``, chooses a blend of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Csr, Engine, Selection, StoredArray
from distmom.errors import NumericalError
from distmom.models.multilabel.assembly import (
    FittedHeads,
    HeadSettings,
    Offer,
    Parts,
    assemble,
    offer,
)
from distmom.models.multilabel.blend.choice import Choice
from distmom.models.multilabel.blend.objective import corpus_propensity, weighs_propensity
from distmom.models.multilabel.classifiers.gate import fit_gate, tries_gate
from distmom.models.multilabel.classifiers.margin import (
    FREQUENT_COST,
    MarginFit,
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
from distmom.models.multilabel.recipe import recipe_of
from distmom.models.multilabel.trials import choice_seconds, gate_seconds, margin_seconds, scoring_seconds
from distmom.models.multilabel.updates.kept_sums import kept_sums
from distmom.models.multilabel.variants import STATE_HEADS, VARIANTS, Variant, alone, costs_of, needs
from distmom.spectral.program.run import Run, unknown

#: least share of held-out documents in the corpus for which, after the choice, they are added to the states, and
#: the gate is fitted to them too
REFIT_SHARE = 0.05
#: largest number of labels per column of the sketch for which `auto` tries ridge: columns cannot separate many
#: more
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


def tried_variants(
    corpus: Corpus | MemoryCorpus, n_components: int, effort: Effort = NORMAL
) -> tuple[Variant, ...]:
    """Return the variants of heads that ``auto`` tries: those whose parts it fits."""
    ridge = tries_ridge(corpus, n_components)
    fitted = {
        "features": True,
        "linear": True,
        "index": True,
        "ridge": ridge,
        "rows": ridge and searches_sketch(corpus, effort),
        "margins": tries_margin(corpus),
        "gate": tries_gate(corpus),
        "frequent": bool(frequent_labels(corpus)),
        "states": effort.has_states,
        "moments": effort.has_states,
    }
    return tuple(
        each
        for each in VARIANTS
        if all(fitted[part] for part in each.parts) and (each.cost is None or each.cost in effort.costs)
    )


def fit_heads(run: Run, settings: HeadSettings) -> FittedHeads:
    """Fit the heads of a multi-label model; with ``auto``, choose their blend on held-out documents.

    Raises
    ------
    UsageError
        If no held-out document has a label, or no head could be fitted.
    """
    if settings.head != "auto":
        weights = weights_of(settings.head)
        parts = fit_parts(run, settings, None, [alone(settings.head)])
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
    rest = replace(chosen, heldout=False)
    corpus = choosing.corpus
    parts = fit_parts(choosing, settings, rest, None)
    offered = choosing.rows(offer, settings, parts, rest, out=Offer(unknown(), unknown()))
    pass_, n_documents = scoring_pass(corpus, settings, chosen), corpus.n_documents
    scoring = partial(
        scoring_seconds, pass_=pass_, tried=tried_variants(corpus, settings.n_components, settings.effort),
        n_documents=n_documents, rank=settings.n_components, n_states=settings.states.n_states,
        n_frequent=len(frequent_labels(corpus)),
    )  # fmt: skip
    if weighs_propensity(settings.objective):
        pass_ = replace(pass_, inverse=choosing.put(corpus_propensity(corpus)))
    return parts, Fold(offered, choosing.scan(replace(pass_, heads=offered.stored), trial=scoring))


def scoring_pass(corpus: Corpus | MemoryCorpus, settings: HeadSettings, chosen: Selection) -> CandidatesPass:
    """Return the pass that scores the held-out documents, without its heads."""
    tried = tried_variants(corpus, settings.n_components, settings.effort)
    n_dense = sum("states" not in each.parts for each in tried)
    return candidates_pass(corpus, chosen, n_dense, len(tried), N_RANDOM if frequent_labels(corpus) else 0)


def weights_of(head: str) -> dict[str, float]:
    """Return the weights of a model whose head is not chosen."""
    return {alone(head).name: 1.0}


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
    run: Run, settings: HeadSettings, selection: Selection | None, wanted: Collection[Variant] | None
) -> Parts:
    """Fit the parts that the wanted variants need (all that ``auto`` tries if None) to the selected documents."""
    tried = tried_variants(run.corpus, settings.n_components, settings.effort) if wanted is None else wanted
    features = ridge = linear = index = margins = gate = frequent = None
    if any("states" not in each.parts for each in tried):
        features = fit_features(run, settings.features, selection)
    required = settings.head in STATE_HEADS
    states = None
    if required or settings.effort.has_states:
        states = run.attempt(fit_states, settings.states, selection, required=required)
    if features is not None:
        if needs(tried, "ridge"):
            ridge = _fit_sketch(run, settings, features)
        if needs(tried, "linear"):
            linear = fit_linear(run, features, settings.n_residual_passes, settings.limits)
        if needs(tried, "index") or (settings.keep_sums and needs(tried, "margins")):
            index = fit_neighbors(run, features)
        if needs(tried, "margins"):
            costs = costs_of(tried)
            margins = _fit_margins(run, settings, features, selection, costs, costs)
        if linear is not None and needs(tried, "gate"):
            gate = _fit_gate(run, settings, features, linear, selection)
        if needs(tried, "frequent"):
            frequent = _fit_frequent(run, settings, features, selection)
    return Parts(features, states, ridge, linear, index, margins, gate, frequent)


def extend_parts(run: Run, settings: HeadSettings, known: Parts, chosen: Selection, choice: Choice) -> Parts:
    """Add the held-out documents to the parts fitted without them, by adding their sums.

    Only the margin classifiers, if chosen, are fitted again, as they are not sums. A gate and the classifiers of
    frequent labels are fitted again where the held-out documents are more than a small share of all. The latent
    states of large corpora are not extended: this would take another pass over all documents for their labels.
    """
    assert known.features is not None

    def chose(part: str) -> bool:
        return recipe_of(None, choice).needs(part)

    features, added = extend_features(run, known.features, chosen)
    linear = ridge = None
    if known.linear is not None:
        linear = run.when(
            lambda: chose("linear"), extend_linear, known.linear, features, added, otherwise=None
        )
    if known.ridge is not None:
        ridge = run.when(lambda: chose("ridge"), extend_ridge, known.ridge, added, otherwise=None)
    states = known.states
    if extends_states(run.corpus, settings.seed, settings.effort):
        fitted = not isinstance(states, NumericalError)
        states = run.when(lambda: fitted, extend_states, settings.states, states, chosen, otherwise=states)
    index = run.rows(_with_all_documents, known.index, out=unknown())
    margins = known.margins
    # Updates fit these classifiers to all documents, so the first fit of a model with sums does so too.
    if margins is not None and (settings.effort.refits_margins or settings.keep_sums):
        margins = run.when(
            lambda: chose("margins"), _refit_margins, settings, features, choice, otherwise=None
        )
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
    costs = run.apply(_chosen_costs, choice, out=unknown())
    # A plan does not know which costs will be chosen.
    return _fit_margins(run, settings, features, None, costs, settings.effort.costs)


def _fit_margins(
    run: Run,
    settings: HeadSettings,
    features: Features,
    selection: Selection | None,
    costs: tuple[float, ...],
    timed_costs: tuple[float, ...],
) -> MarginFit:
    n_documents, n_labels = run.corpus.n_documents, run.corpus.n_labels
    trial = partial(margin_seconds, n_documents=n_documents, n_labels=n_labels, costs=timed_costs,
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


def _chosen_costs(choice: Choice) -> tuple[float, ...]:
    return costs_of(recipe_of(None, choice).variants)


def _with_all_documents(engine: Engine, index: NeighborsHead) -> NeighborsHead:
    return replace(index, alive=engine.put(np.ones(engine.corpus.n_documents, np.uint8)))


def _fit_sketch(
    run: Run, settings: HeadSettings, features: Features
) -> tuple[tuple[StoredArray, int], RidgeFit]:
    """Find the basis of the sketch and add up its ridge sums; small corpora keep its rows for neighbours."""
    basis = sketch_basis(run, features, settings.n_components, settings.seed)
    store = settings.head == "auto" and searches_sketch(run.corpus, settings.effort)
    return basis, fit_ridge(run, features, basis, store=store)
