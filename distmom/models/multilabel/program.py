"""The program of the multi-label model: fits its heads and, for ``auto``, chooses a blend of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Csr, Engine, PassResult, Selection, StoredArray, StoredColumns, Term
from distmom.engine.passes import transform_fields
from distmom.errors import NumericalError, UsageError
from distmom.models.multilabel.blend import Choice, candidates_pass, choose_blend, read_scores, stored_scorer
from distmom.models.multilabel.heads import (
    Head,
    NeighborsHead,
    RidgeHead,
    Scorer,
    SketchNeighbors,
    StateHead,
    rank_labels,
)
from distmom.models.multilabel.linear import LinearFit, extend_linear, fit_linear
from distmom.models.multilabel.regression import (
    SKETCH_NEIGHBORS_ROWS,
    Features,
    RidgeFit,
    centroid_terms,
    extend_features,
    fit_features,
    fit_neighbors,
    fit_ridge,
    sketch_basis,
    sketch_neighbors,
    sparse_head,
)
from distmom.models.multilabel.states import States, StateSettings, extend_states, fit_states
from distmom.models.multilabel.trials import choice_seconds, scoring_seconds
from distmom.spectral.recovery import WHOLE_BYTES
from distmom.spectral.run import Run, unknown

logger = logging.getLogger(__name__)

HEADS = ("auto", "moment", "posterior", "ridge", "linear", "neighbors")
#: variants that the names of heads stand for where no blend is chosen
DEFAULT_VARIANTS = {"ridge": "ridge-0.03", "neighbors": "neighbors-75-3"}
#: largest number of held-out documents, and their largest share of the corpus
HELD_OUT_DOCUMENTS, HELD_OUT_SHARE = 10_000, 0.2
#: least share of held-out documents in the corpus for which they are added to the latent states after the choice
STATES_SHARE = 0.01
RIDGE_PENALTIES = (0.01, 0.03, 0.1)
#: most labels per column of the sketch for which `auto` tries ridge: r columns cannot separate many more
LABELS_PER_COLUMN = 50
#: heads of the latent states: posterior and moment
N_STATE_HEADS = 2
NEIGHBOR_VARIANTS = ((40, 3.0), (75, 3.0), (75, 4.0))


@dataclass(frozen=True)
class HeadSettings:
    """Settings of the fit of heads.

    Attributes
    ----------
    head : str
        One of `HEADS`.
    n_components : int
        Rank of the sketch.
    n_residual_passes : int
    states : StateSettings
    seed : int
    """

    head: str
    n_components: int
    n_residual_passes: int
    states: StateSettings
    seed: int


@dataclass(frozen=True)
class Parts:
    """The fitted parts from which heads are made; None for parts that no head needs.

    Attributes
    ----------
    features : Features or None
    states : States or NumericalError
        The error where the states could not be fitted and no head requires them.
    ridge : (tuple of StoredArray and int, RidgeFit) or None
        Basis of the sketch (d, r) with its rank, and the sums in it.
    linear : LinearFit or None
    index : NeighborsHead or None
    """

    features: Features | None
    states: States | NumericalError
    ridge: tuple[tuple[StoredArray, int], RidgeFit] | None = None
    linear: LinearFit | None = None
    index: NeighborsHead | None = None


@dataclass(frozen=True)
class FittedHeads:
    """The heads of a model, multiplied by their weights.

    Attributes
    ----------
    heads : dict of str to Head
    states : States or NumericalError
    basis : ndarray of shape (d, r) or None
        Basis of the sketch, where a head needs it.
    choice : Choice or None
        The choice of ``head="auto"``.
    """

    heads: dict[str, Head]
    states: States | NumericalError
    basis: np.ndarray | None
    choice: Choice | None

    @classmethod
    def unknown(cls) -> FittedHeads:
        """Return heads without content, for a ledger."""
        return cls(unknown(), unknown(), unknown(), unknown())


def held_out(corpus: Corpus | MemoryCorpus, seed: int) -> Selection:
    """Return the documents that ``auto`` holds out to choose a blend."""
    share = min(HELD_OUT_SHARE, HELD_OUT_DOCUMENTS / max(1, corpus.n_documents))
    return Selection(share, heldout=True, seed=seed)


def extends_states(corpus: Corpus | MemoryCorpus, seed: int) -> bool:
    """Return whether ``auto`` adds the held-out documents to the latent states too."""
    return held_out(corpus, seed).fraction >= STATES_SHARE


def tries_ridge(corpus: Corpus | MemoryCorpus, n_components: int) -> bool:
    """Return whether ``auto`` fits the ridge head: not where there are far more labels than columns."""
    return corpus.n_labels <= LABELS_PER_COLUMN * n_components


def n_dense_heads(corpus: Corpus | MemoryCorpus, n_components: int) -> int:
    """Return the number of heads tried by ``auto`` that score every label: all but those of the latent states."""
    n_ridge = len(RIDGE_PENALTIES) + 1 if tries_ridge(corpus, n_components) else 0
    return n_ridge + len(("centroid", "linear", "best-cosine")) + len(NEIGHBOR_VARIANTS)


def fit_heads(run: Run, settings: HeadSettings) -> FittedHeads:
    """Fit the heads of a multi-label model; with ``auto``, choose their blend on held-out documents.

    Raises
    ------
    UsageError
        If no held-out document has a label, or no head could be fitted.
    """
    if settings.head != "auto":
        weights = {DEFAULT_VARIANTS.get(settings.head, settings.head): 1.0}
        parts = fit_parts(run, settings, None, set(weights))
        return run.rows(assemble, settings, parts, weights, None, out=FittedHeads.unknown())
    chosen = held_out(run.corpus, settings.seed)
    rest = replace(chosen, heldout=False)
    choosing = run.part("choose")
    parts = fit_parts(choosing, settings, rest, None)
    offered = run.rows(offer, settings, parts, rest, out=Offer(unknown(), unknown(), unknown()))
    n_dense, n_documents = n_dense_heads(run.corpus, settings.n_components), run.corpus.n_documents
    pass_ = candidates_pass(run.corpus, chosen, n_dense, n_dense + N_STATE_HEADS)
    ridge = tries_ridge(run.corpus, settings.n_components)
    scoring = partial(
        scoring_seconds, pass_=pass_, n_documents=n_documents, rank=settings.n_components if ridge else None,
        n_sketched=n_documents if n_documents <= SKETCH_NEIGHBORS_ROWS else 0, n_states=settings.states.n_states,
    )  # fmt: skip
    scored = choosing.scan(replace(pass_, scorer=offered.stored), trial=scoring)
    choosing_seconds = partial(choice_seconds, pass_=pass_, n_documents=n_documents)
    choice = run.rows(choose, offered, scored, out=unknown(), trial=choosing_seconds)
    parts = extend_parts(run.part("extend"), settings, parts, chosen, choice)
    return run.rows(assemble, settings, parts, None, choice, out=FittedHeads.unknown())


def fit_parts(
    run: Run, settings: HeadSettings, selection: Selection | None, wanted: set[str] | None
) -> Parts:
    """Fit the parts that the wanted heads need (all heads if None) to the selected documents."""

    def needs(*prefixes: str) -> bool:
        return wanted is None or any(name.startswith(prefixes) for name in wanted)

    features = ridge = linear = index = None
    if needs("ridge", "linear", "centroid", "neighbors", "best", "sketch"):
        features = fit_features(run, selection)
    required = settings.head in ("moment", "posterior")
    states = run.attempt(fit_states, settings.states, selection, required=required)
    if features is not None:
        if needs("ridge", "sketch") and (wanted or tries_ridge(run.corpus, settings.n_components)):
            ridge = _fit_sketch(run, settings, features)
        if needs("linear"):
            linear = fit_linear(run, features, settings.n_residual_passes)
        if needs("neighbors", "best", "sketch"):
            index = fit_neighbors(run, features)
    return Parts(features, states, ridge, linear, index)


def extend_parts(run: Run, settings: HeadSettings, known: Parts, chosen: Selection, choice: Choice) -> Parts:
    """Add the held-out documents to the parts fitted without them, by adding their sums.

    Only the ridge head, if chosen, is fitted again: the label half of its basis depends on the labels of all
    documents. The latent states of large corpora are not extended: this would take another pass over all documents
    for their labels.
    """
    assert known.features is not None

    def chose(*prefixes: str) -> bool:
        return any(name.startswith(prefixes) for name in choice.weights)

    features, added = extend_features(run, known.features, chosen)
    linear = ridge = None
    if known.linear is not None:
        linear = run.when(
            lambda: chose("linear"), extend_linear, known.linear, features, added, otherwise=None
        )
    if known.ridge is not None:
        ridge = run.when(lambda: chose("ridge", "sketch"), _fit_sketch, settings, features, otherwise=None)
    states = known.states
    if extends_states(run.corpus, settings.seed):
        fitted = not isinstance(states, NumericalError)
        states = run.when(lambda: fitted, extend_states, settings.states, states, chosen, otherwise=states)
    index = run.rows(_with_all_documents, known.index, out=unknown())
    return Parts(features, states, ridge, linear, index)


def _with_all_documents(engine: Engine, index: NeighborsHead) -> NeighborsHead:
    return replace(index, alive=engine.put(np.ones(engine.corpus.n_documents, np.uint8)))


def _fit_sketch(
    run: Run, settings: HeadSettings, features: Features
) -> tuple[tuple[StoredArray, int], RidgeFit]:
    """Find the basis of the sketch and add up its ridge sums; small corpora keep its rows for neighbours."""
    basis = sketch_basis(run, features, settings.n_components, 1, 10, settings.seed)
    store = settings.head == "auto" and run.corpus.n_documents <= SKETCH_NEIGHBORS_ROWS
    return basis, fit_ridge(run, features, basis, store=store)


@dataclass(frozen=True)
class Offer:
    """The heads that `auto` chooses from.

    Attributes
    ----------
    names : list of str
    groups : dict of str to str
        Group of each head; at most one variant of a group is chosen.
    stored : Scorer
        The scorer of all heads, with its large arrays stored for workers.
    """

    names: list[str]
    groups: dict[str, str]
    stored: Scorer


def offer(engine: Engine, settings: HeadSettings, parts: Parts, rest: Selection) -> Offer:
    """Return the heads that ``auto`` chooses from, made from parts fitted without the held-out documents."""
    assert parts.features is not None
    assert parts.linear is not None
    assert parts.index is not None
    heads: dict[str, Head] = {}
    groups: dict[str, str] = {}

    def add(name: str, group: str, head: Head) -> None:
        heads[name], groups[name] = head, group

    basis = None
    if parts.ridge is not None:
        (stored, _), ridge = parts.ridge
        basis = np.asarray(stored.load())
        for penalty in RIDGE_PENALTIES:
            add(f"ridge-{penalty:g}", "ridge", ridge.head(penalty))
        if ridge.rows is not None:
            add("sketch-neighbors", "sketch", _sketch_neighbors(ridge, parts.index, rest))
    add("centroid", "centroid", sparse_head(engine, (centroid_terms(engine, parts.features), 1.0)))
    add("linear", "linear", sparse_head(engine, (parts.linear.terms, 1.0)))
    for n, power in sorted(NEIGHBOR_VARIANTS, reverse=True):
        add(f"neighbors-{n}-{power:g}", "neighbors", replace(parts.index, n_neighbors=n, power=power))
    add("best-cosine", "best", replace(parts.index, n_neighbors=75, power=3.0, factor=0.0, best=1.0))
    if isinstance(parts.states, States):
        for name, head in _state_heads(parts.states).items():
            add(name, name, head)
    scorer = Scorer(
        engine.corpus.n_labels, parts.features.idf, tuple(heads.items()), (1.0,) * len(heads), basis=basis
    )
    return Offer(list(heads), groups, stored_scorer(engine, scorer))


def choose(engine: Engine, offered: Offer, scored: PassResult) -> Choice:
    """Choose a blend by the scores of held-out documents; a UsageError if no held-out document has a label."""
    rows = read_scores(engine, scored)
    if not rows["n_true"].any():
        raise UsageError("no held-out document has a label: the corpus is too small for head='auto'")
    choice = choose_blend(offered.names, rows, offered.groups)
    logger.info("chosen on %d held-out documents: %s", choice.n_documents, choice.weights)
    return choice


def assemble(
    engine: Engine,
    settings: HeadSettings,
    parts: Parts,
    weights: dict[str, float] | None,
    choice: Choice | None,
) -> FittedHeads:
    """Return the heads that have a weight, multiplied by it.

    Raises
    ------
    UsageError
        If no head could be fitted.
    """
    weights = choice.weights if choice is not None else weights
    assert weights is not None
    heads: dict[str, Head] = {}
    sparse: list[tuple[Sequence[Term], float]] = []
    if "centroid" in weights and parts.features is not None:
        sparse.append((centroid_terms(engine, parts.features), weights["centroid"]))
    if "linear" in weights and parts.linear is not None:
        sparse.append((parts.linear.terms, weights["linear"]))
    if sparse:
        heads["sparse"] = sparse_head(engine, *sparse)
    if parts.ridge is not None:
        _, ridge = parts.ridge
        for name in weights:
            if name.startswith("ridge"):
                head, w = ridge.head(float(name.split("-", 1)[1])), np.float32(weights[name])
                heads["ridge"] = RidgeHead(head.coefficients * w, head.intercept * w)
        if "sketch-neighbors" in weights and parts.index is not None:
            near = _sketch_neighbors(ridge, parts.index, None)
            heads["sketch-neighbors"] = replace(near, factor=weights["sketch-neighbors"])
    votes = {name: w for name, w in weights.items() if name.startswith(("neighbors", "best"))}
    if votes and parts.index is not None:
        heads["neighbors"] = _votes(parts.index, votes)
    if isinstance(parts.states, States):
        for name, state_head in _state_heads(parts.states).items():
            if name in weights:
                heads[name] = replace(state_head, factor=weights[name])
    if not heads:
        raise UsageError("no head could be fitted: the corpus is too small")
    if isinstance(parts.states, NumericalError):
        logger.warning("the latent states could not be fitted: %s", parts.states)
    opened: dict[str, Head] = transform_fields(heads, _opened)
    needs_basis = any(isinstance(head, RidgeHead | SketchNeighbors) for head in opened.values())
    basis = np.asarray(parts.ridge[0][0].load()) if parts.ridge is not None and needs_basis else None
    return FittedHeads(opened, parts.states, basis, choice)


def _sketch_neighbors(ridge: RidgeFit, index: NeighborsHead, selection: Selection | None) -> SketchNeighbors:
    labels = index.labels
    if selection is not None:
        whole = index.labels.to_scipy()
        rows = np.flatnonzero(selection.mask(0, whole.shape[0]))
        labels = Csr.of(csr_array(whole[rows]), np.uint8)
    return sketch_neighbors(ridge, labels)


def _state_heads(states: States) -> dict[str, StateHead]:
    stored = states.log_topics
    log_topics = stored.parts[0] if len(stored.parts) == 1 else stored
    log_weights = np.log(states.weights)
    by_name = {"posterior": states.label_posteriors.T}
    if states.label_states is not None:
        by_name["moment"] = states.label_states.T
    return {
        name: StateHead(log_topics, log_weights, labels, ranked=rank_labels(labels))
        for name, labels in by_name.items()
    }


def _opened(leaf: Any) -> Any:
    """Load a stored array, a large one as a memory map; its file may be unlinked but not truncated."""
    if isinstance(leaf, StoredColumns):
        return leaf.load()
    if not isinstance(leaf, StoredArray):
        return leaf
    array = leaf.load()
    return array if array.nbytes > WHOLE_BYTES else np.array(array)


def _votes(index: NeighborsHead, weights: dict[str, float]) -> NeighborsHead:
    """Return one head for the weighted votes and best cosines of one index."""
    votes = next((name for name in weights if name.startswith("neighbors")), None)
    best = weights.get("best-cosine", 0.0)
    if votes is None:
        return replace(index, n_neighbors=75, power=3.0, factor=0.0, best=best)
    _, n, power = votes.split("-")
    return replace(index, n_neighbors=int(n), power=float(power), factor=weights[votes], best=best)
