"""Heads made of fitted parts: those that `auto` chooses from, and those of the model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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
from distmom.models.multilabel.classifiers.margin import MarginFit, cost_name
from distmom.models.multilabel.effort import NORMAL, Effort
from distmom.models.multilabel.heads.candidates import stored_heads
from distmom.models.multilabel.heads.collection import Heads
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
from distmom.models.multilabel.latent.states import States, StateSettings
from distmom.models.multilabel.recipe import Recipe, recipe_of
from distmom.models.multilabel.variants import (
    FREQUENT,
    GATE,
    INDEX,
    VARIANTS,
    Variant,
    Votes,
    named,
)
from distmom.moments.features.tfidf import fit_idf
from distmom.spectral.program.run import unknown
from distmom.spectral.steps.recovery import in_memory

if TYPE_CHECKING:
    from distmom.models.multilabel.updates.sums import KeptSums

logger = logging.getLogger(__name__)

#: name of the sum of heads with sparse weights
SPARSE = "sparse"


@dataclass(frozen=True)
class HeadSettings:
    """Settings of the fit of heads.

    Attributes
    ----------
    head : str
        One of `distmom.models.multilabel.variants.HEADS`.
    n_components : int
        Rank of the sketch.
    n_residual_passes : int
    states : StateSettings
    features : str
        How features follow from the values of words, one of `distmom.moments.features.tfidf.FEATURES`.
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

    def suffice_for(self, variant: Variant) -> bool:
        """Whether all parts that a variant is made of were fitted."""
        states = self.states if isinstance(self.states, States) else None
        known = {
            **vars(self),
            "rows": None if self.ridge is None else self.ridge[1].rows,
            "states": states,
            "moments": None if states is None else states.label_states,
        }
        if self.margins is not None and variant.cost is not None:
            return cost_name(variant.cost) in self.margins.weights
        return all(known[part] is not None for part in variant.parts)


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
        Names of variants.
    stored : Heads
        All heads, with their large arrays stored for workers.
    """

    names: list[str]
    stored: Heads


def offer(engine: Engine, settings: HeadSettings, parts: Parts, rest: Selection) -> Offer:
    """Return the heads that ``auto`` chooses from, made from parts fitted without the held-out documents."""
    assert parts.features is not None
    basis = None if parts.ridge is None else np.asarray(parts.ridge[0][0].load())
    heads: dict[str, Head] = {}
    for variant in VARIANTS:
        if parts.suffice_for(variant):
            heads[variant.name] = _head(engine, parts, variant, 1.0, settings.limits, rest)
    offered = Heads(
        n_labels=engine.corpus.n_labels, idf=parts.features.idf, heads=tuple(heads.items()), basis=basis
    )
    return Offer(list(heads), stored_heads(engine, offered))


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
    index = heads[INDEX]
    assert isinstance(index, NeighborsHead)
    return replace(reranker, companions=companion_shares(index.labels, index.alive))


def heads_of(
    engine: Engine, parts: Parts, recipe: Recipe, limits: WeightLimits = NO_LIMITS
) -> dict[str, Head]:
    """Return the heads of a recipe for which the parts suffice, with their arrays opened.

    The heads of a sum are multiplied by their weights, and those with the same kind of weights are added up. Among
    heads whose scores are inputs, variants with the same arrays share one.
    """
    is_sum = not recipe.inputs
    heads: dict[str, Head] = {}
    sparse: dict[str, list[tuple[Sequence[Term], float]]] = {}
    votes: list[tuple[Votes, float]] = []
    for name in recipe.names:
        variant, weight = named(name), recipe.weights[name] if is_sum else 1.0
        if not parts.suffice_for(variant):
            continue
        terms = _terms(engine, parts, variant)
        if terms is not None:
            sparse.setdefault(SPARSE if is_sum else name, []).append((terms, weight))
        elif variant.votes is not None:
            votes.append((variant.votes, weight))
            heads[variant.head] = _voting(parts, *votes) if is_sum else _voting(parts)
        else:
            heads[variant.head] = _head(engine, parts, variant, weight, limits)
    for name, own in sparse.items():
        heads[name] = sparse_head(engine, *own, limits=limits)
    opened: dict[str, Head] = transform_fields(heads, opened_array)
    return opened


def _head(
    engine: Engine,
    parts: Parts,
    variant: Variant,
    weight: float,
    limits: WeightLimits,
    selection: Selection | None = None,
) -> Head:
    """Return the head of a variant, multiplied by a weight.

    ``selection`` are the documents whose rows of the sketch are known, all by default.
    """
    terms = _terms(engine, parts, variant)
    if terms is not None:
        return sparse_head(engine, (terms, weight), limits=limits)
    if variant.votes is not None:
        return _voting(parts, (variant.votes, weight))
    if "states" in variant.parts:
        return _state_head(parts, variant, weight)
    if "rows" in variant.parts:
        return replace(_sketch_neighbors(parts, selection), factor=weight)
    if "ridge" in variant.parts:
        assert parts.ridge is not None
        head, factor = parts.ridge[1].head(variant.numbers[0]), np.float32(weight)
        return RidgeHead(head.coefficients * factor, head.intercept * factor)
    if variant.kind == GATE:
        assert parts.gate is not None
        return GateHead(parts.gate.only, weight)
    if variant.kind == FREQUENT:
        assert parts.frequent is not None
        return FrequentHead(parts.frequent.only, np.array(parts.frequent.labels, np.int32), weight)
    assert parts.margins is not None
    assert variant.cost is not None
    # In a sum it is alone: costs are chosen for a stack only.
    return SparseHead(parts.margins.weights[cost_name(variant.cost)])


def _terms(engine: Engine, parts: Parts, variant: Variant) -> Sequence[Term] | None:
    """Return matrices that add up to the sparse weights of a variant; None for heads of other kinds."""
    if "features" in variant.parts and parts.features is not None:
        return centroid_terms(engine, parts.features)
    if "linear" in variant.parts and parts.linear is not None:
        return parts.linear.terms
    return None


def _voting(parts: Parts, *weighted: tuple[Votes, float]) -> NeighborsHead:
    """Return one head for the weighted votes and largest cosines of one index; its own votes without any."""
    assert parts.index is not None
    if not weighted:
        return parts.index
    # The largest cosine does not depend on the number of neighbours with votes.
    first = max((votes for votes, _ in weighted), key=lambda votes: votes.factor)
    return replace(
        parts.index, n_neighbors=first.n_neighbors, power=first.power,
        factor=sum(weight * votes.factor for votes, weight in weighted),
        best=sum(weight * votes.best for votes, weight in weighted),
    )  # fmt: skip


def _sketch_neighbors(parts: Parts, selection: Selection | None) -> SketchNeighbors:
    assert parts.ridge is not None
    assert parts.index is not None
    labels = parts.index.labels
    if selection is not None:
        whole = labels.to_scipy()
        rows = np.flatnonzero(selection.mask(0, whole.shape[0]))
        labels = Csr.of(csr_array(whole[rows]), np.uint8)
    return sketch_neighbors(parts.ridge[1], labels)


def _state_head(parts: Parts, variant: Variant, weight: float) -> StateHead:
    states = parts.states
    assert isinstance(states, States)
    stored = states.log_topics
    log_topics = stored.parts[0] if len(stored.parts) == 1 else stored
    moments = states.label_states if "moments" in variant.parts else states.label_posteriors
    assert moments is not None
    return StateHead(log_topics, np.log(states.weights), moments.T, weight, rank_labels(moments.T))


def opened_array(leaf: Any) -> Any:
    """Load a stored array or stored columns, a small array into memory (see `in_memory`)."""
    if isinstance(leaf, StoredColumns):
        return leaf.load()
    return in_memory(leaf.load()) if isinstance(leaf, StoredArray) else leaf
