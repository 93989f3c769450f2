"""Heads made of fitted parts: those that `auto` chooses from, and those of the model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array

from distmom.engine import Csr, Engine, Selection, StoredArray, StoredColumns, Term
from distmom.engine.passes import transform_fields
from distmom.errors import NumericalError, UsageError
from distmom.models.multilabel.blend.choice import Choice
from distmom.models.multilabel.blend.companions import companion_shares
from distmom.models.multilabel.blend.objective import MEAN
from distmom.models.multilabel.blend.reranking import Reranker
from distmom.models.multilabel.classifiers.margin import MarginFit
from distmom.models.multilabel.effort import NORMAL, Effort
from distmom.models.multilabel.heads.candidates import stored_scorer
from distmom.models.multilabel.heads.features import Features
from distmom.models.multilabel.heads.heads import (
    FrequentHead,
    GateHead,
    Head,
    RidgeHead,
    SparseHead,
    StateHead,
    rank_labels,
)
from distmom.models.multilabel.heads.linear import LinearFit
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead, SketchNeighbors
from distmom.models.multilabel.heads.regression import (
    NO_LIMITS,
    RidgeFit,
    WeightLimits,
    centroid_terms,
    sketch_neighbors,
    sparse_head,
)
from distmom.models.multilabel.heads.scorer import Scorer
from distmom.models.multilabel.latent.states import States, StateSettings
from distmom.moments.features import fit_idf
from distmom.spectral.program.run import unknown
from distmom.spectral.steps.recovery import WHOLE_BYTES

if TYPE_CHECKING:
    from distmom.models.multilabel.updates.kept_sums import KeptSums

logger = logging.getLogger(__name__)

#: variants that the names of heads stand for where no blend is chosen
DEFAULT_VARIANTS = {"ridge": "ridge-0.03", "neighbors": "neighbors-75-3", "svm": "svm-0.3"}
#: heads of the latent states
STATE_HEADS = ("posterior", "moment")
RIDGE_PENALTIES = (0.01, 0.03, 0.1)
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
    features : str
        How features follow from the values of words, one of `distmom.moments.features.FEATURES`.
    seed : int
    objective : str, default "mean"
        Metric that `auto` chooses a blend for.
    limits : WeightLimits, default NO_LIMITS
        Limits on the weights of the sparse heads.
    effort : Effort, default NORMAL
    keep_sums : bool, default False
        Whether the sums that the heads are made from are kept.
    """

    head: str
    n_components: int
    n_residual_passes: int
    states: StateSettings
    features: str
    seed: int
    objective: str = MEAN
    limits: WeightLimits = NO_LIMITS
    effort: Effort = NORMAL
    keep_sums: bool = False


@dataclass(frozen=True)
class Parts:
    """The fitted parts from which heads are made; None for parts that no head needs.

    Attributes
    ----------
    features : Features or None
    states : States, NumericalError or None
        The error where the states could not be fitted and no head requires them; None where they were left out.
    ridge : (tuple of StoredArray and int, RidgeFit) or None
        Basis of the sketch (d, r) with its rank, and the sums in it.
    linear : LinearFit or None
    index : NeighborsHead or None
    margins : MarginFit or None
    gate : MarginFit or None
        Classifiers for many labels.
    frequent : MarginFit or None
        Classifiers of the frequent ones of many labels.
    """

    features: Features | None
    states: States | NumericalError | None
    ridge: tuple[tuple[StoredArray, int], RidgeFit] | None = None
    linear: LinearFit | None = None
    index: NeighborsHead | None = None
    margins: MarginFit | None = None
    gate: MarginFit | None = None
    frequent: MarginFit | None = None


@dataclass(frozen=True)
class FittedHeads:
    """The heads of a model, multiplied by their weights.

    Attributes
    ----------
    idf : ndarray of shape (d,) or (0,)
        Empty where the values of words are used as they are.
    heads : dict of str to Head
    states : States, NumericalError or None
    basis : ndarray of shape (d, r) or None
        Basis of the sketch, where a head needs it.
    choice : Choice or None
        The choice of ``head="auto"``; a reranker has the companions of labels in all documents.
    sums : KeptSums or None
        The sums that the heads were made from, if they are kept.
    """

    idf: np.ndarray
    heads: dict[str, Head]
    states: States | NumericalError | None
    basis: np.ndarray | None
    choice: Choice | None
    sums: KeptSums | None = None

    @classmethod
    def unknown(cls) -> FittedHeads:
        """Return heads without content, for a ledger."""
        return cls(unknown(), unknown(), unknown(), unknown(), unknown())


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
    limits = settings.limits

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
    add(
        "centroid",
        "centroid",
        sparse_head(engine, (centroid_terms(engine, parts.features), 1.0), limits=limits),
    )
    add("linear", "linear", sparse_head(engine, (parts.linear.terms, 1.0), limits=limits))
    if parts.margins is not None:
        for cost, margins in parts.margins.weights.items():
            add(f"svm-{cost}", "svm", SparseHead(margins))
    if parts.gate is not None:
        add("gate", "gate", _gate(parts.gate, 1.0))
    if parts.frequent is not None:
        add("frequent", "frequent", _frequent(parts.frequent, 1.0))
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


def assemble(
    engine: Engine,
    settings: HeadSettings,
    parts: Parts,
    weights: dict[str, float] | None,
    choice: Choice | None,
) -> FittedHeads:
    """Return the heads of the model: those of a stack, or those that have a weight, multiplied by it.

    Raises
    ------
    UsageError
        If no head could be fitted.
    """
    opened = heads_of(engine, parts, recipe_of(weights, choice), settings.limits)
    if not opened:
        raise UsageError("no head could be fitted: the corpus is too small")
    if isinstance(parts.states, NumericalError):
        logger.warning("the latent states could not be fitted: %s", parts.states)
    needs_basis = any(isinstance(head, RidgeHead | SketchNeighbors) for head in opened.values())
    basis = np.asarray(parts.ridge[0][0].load()) if parts.ridge is not None and needs_basis else None
    if choice is not None and choice.reranker is not None:
        choice = replace(choice, reranker=with_companions(choice.reranker, opened))
    idf = fit_idf(engine.corpus, "tfidf") if parts.features is None else np.array(parts.features.idf.load())
    return FittedHeads(idf, opened, parts.states, basis, choice)


def with_companions(reranker: Reranker, heads: Mapping[str, Head]) -> Reranker:
    """Return a reranker with the companions of labels in all documents of a model."""
    index = heads["neighbors"]
    assert isinstance(index, NeighborsHead)
    return replace(reranker, companions=companion_shares(index.labels, index.alive))


@dataclass(frozen=True)
class Recipe:
    """Which heads a model has.

    Attributes
    ----------
    inputs : tuple of str
        Names of the variants of heads whose scores are used one by one: by a stack, or by a reranker and the sum
        that it ranks again. Empty for a weighted sum alone.
    weights : dict of str to float
        Weights of the heads of a sum; empty where there are inputs.
    """

    inputs: tuple[str, ...]
    weights: dict[str, float]

    @classmethod
    def of_inputs(cls, names: Iterable[str], reranker: Reranker | None) -> Recipe:
        """Return the recipe of heads whose scores are combined, and of those that a reranker uses too."""
        further = () if reranker is None else reranker.inputs
        return cls(tuple(dict.fromkeys([*names, *further])), {})

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variants of heads."""
        return self.inputs or tuple(self.weights)

    def has(self, *prefixes: str) -> bool:
        """Whether a name begins with one of the prefixes."""
        return any(name.startswith(prefixes) for name in self.names)


def recipe_of(weights: dict[str, float] | None, choice: Choice | None) -> Recipe:
    """Return the heads of a choice, or those of given weights."""
    if choice is not None and choice.is_stacked:
        return Recipe.of_inputs((each.name for each in choice.stack.inputs), choice.reranker)
    if choice is not None and choice.reranker is not None:
        return Recipe.of_inputs(choice.weights, choice.reranker)
    return Recipe((), dict(choice.weights if choice is not None else weights or {}))


def heads_of(
    engine: Engine, parts: Parts, recipe: Recipe, limits: WeightLimits = NO_LIMITS
) -> dict[str, Head]:
    """Return the heads of a recipe that the parts suffice for, with their arrays opened.

    The heads of a sum are multiplied by their weights, and those with the same kind of weights are added up. Among
    heads whose scores are inputs, variants with the same arrays share one.
    """
    is_sum = not recipe.inputs
    weights = recipe.weights if is_sum else dict.fromkeys(recipe.inputs, 1.0)
    heads: dict[str, Head] = {}
    sparse: dict[str, list[tuple[Sequence[Term], float]]] = {}
    votes: dict[str, float] = {}
    states = {}
    if isinstance(parts.states, States) and recipe.has(*STATE_HEADS):
        states = _state_heads(parts.states)
    for name, weight in weights.items():
        family, _, variant = name.partition("-")
        if name == "centroid" and parts.features is not None:
            of_labels = centroid_terms(engine, parts.features)
            sparse.setdefault("sparse" if is_sum else name, []).append((of_labels, weight))
        elif name == "linear" and parts.linear is not None:
            sparse.setdefault("sparse" if is_sum else name, []).append((parts.linear.terms, weight))
        elif family == "svm" and parts.margins is not None:
            # In a sum it is alone: costs are chosen for a stack only.
            heads[family] = SparseHead(parts.margins.weights[variant])
        elif family == "ridge" and parts.ridge is not None:
            head, factor = parts.ridge[1].head(float(variant)), np.float32(weight)
            heads[family] = RidgeHead(head.coefficients * factor, head.intercept * factor)
        elif name == "sketch-neighbors" and parts.ridge is not None and parts.index is not None:
            heads[name] = replace(_sketch_neighbors(parts.ridge[1], parts.index, None), factor=weight)
        elif family in ("neighbors", "best") and parts.index is not None:
            votes[name] = weight
            heads["neighbors"] = _votes(parts.index, votes) if is_sum else parts.index
        elif name == "gate" and parts.gate is not None:
            heads[name] = _gate(parts.gate, weight)
        elif name == "frequent" and parts.frequent is not None:
            heads[name] = _frequent(parts.frequent, weight)
        elif name in states:
            heads[name] = replace(states[name], factor=weight)
    for name, own in sparse.items():
        heads[name] = sparse_head(engine, *own, limits=limits)
    opened: dict[str, Head] = transform_fields(heads, opened_array)
    return opened


def _gate(fit: MarginFit, power: float) -> GateHead:
    return GateHead(next(iter(fit.weights.values())), power)


def _frequent(fit: MarginFit, factor: float) -> FrequentHead:
    (weights,) = fit.weights.values()
    return FrequentHead(weights, np.array(fit.labels, np.int32), factor)


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
    posterior, moment = STATE_HEADS
    by_name = {posterior: states.label_posteriors.T}
    if states.label_states is not None:
        by_name[moment] = states.label_states.T
    return {
        name: StateHead(log_topics, log_weights, labels, ranked=rank_labels(labels))
        for name, labels in by_name.items()
    }


def opened_array(leaf: Any) -> Any:
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
