"""The stored state of a fitted multi-label model, and the scorer that is made from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.engine import Engine
from distmom.errors import NumericalError
from distmom.models.multilabel.assembly import FittedHeads
from distmom.models.multilabel.blend.choice import TOTAL
from distmom.models.multilabel.blend.class_stack import ClassStack, stack_from_json
from distmom.models.multilabel.blend.covariates import frequency_log_odds
from distmom.models.multilabel.blend.reranking import Reranker
from distmom.models.multilabel.blend.stack import Stack
from distmom.models.multilabel.heads.blends import GatedSum, Reranked, Stacked, SumLogOdds, WeightedSum
from distmom.models.multilabel.heads.collection import Heads
from distmom.models.multilabel.heads.heads import (
    FrequentHead,
    GateHead,
    Head,
    RidgeHead,
    SparseHead,
    StateHead,
)
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead, SketchNeighbors
from distmom.models.multilabel.heads.scorer import (
    CalibratedSums,
    LogOdds,
    Scorer,
    WeighedSums,
    scale_of,
    scorer_with,
    sum_of,
)
from distmom.models.multilabel.latent.corpus_topics import CorpusTopics
from distmom.models.multilabel.latent.states import States
from distmom.models.multilabel.updates.sums import KeptSums
from distmom.models.multilabel.variants import GATE, INDEX
from distmom.spectral.saved.fields import array, group, value, variants


@dataclass(frozen=True)
class LatentStates:
    """The latent states of a multi-label model, in the shapes stored on disk.

    Attributes
    ----------
    components : ndarray of shape (d, k)
        Word probabilities.
    weights : ndarray of shape (k,)
        Probabilities of the states.
    label_components : ndarray of shape (m, k)
        Label probabilities, from the posteriors of the training documents.
    label_moments : ndarray of shape (m, k) or None
        Label probabilities, from the cross moment.
    spectrum : ndarray
        Ritz values of the second word moment.
    """

    components: np.ndarray = array("d", "k", least=0.0, transposed=True)
    weights: np.ndarray = array("k", least=0.0)
    label_components: np.ndarray = array("m", "k", least=0.0, transposed=True)
    spectrum: np.ndarray = array("r of the moments")
    label_moments: np.ndarray | None = array("m", "k", least=0.0, optional=True, transposed=True)


@dataclass(frozen=True, kw_only=True)
class MultiLabelState:
    """The state of a fitted multi-label model.

    Attributes
    ----------
    idf : ndarray of shape (d,) or (0,)
        Empty where the values of words are used as they are.
    label_frequency : ndarray of shape (m,), int64
    document_frequency : ndarray of shape (d,), int64
    basis : ndarray of shape (d, r) or None
        Basis of the sketch; None where no head needs it.
    states : LatentStates or None
        None where they could not be fitted.
    heads : tuple of (str, Head)
    head_weights : list of float
        Factors of the heads in a sum; all one in models of this version.
    diagnostics : dict
    selection : dict or None
        The choice of ``head="auto"``.
    stack : dict or None
        How the scores of the heads are combined, or their weighted sum made a probability; None where no blend was
        chosen.
    reranker : Reranker or None
        Reranker of the best labels; None without one.
    topics : CorpusTopics or None
        None where none were requested, or the corpus does not support them.
    sums : KeptSums or None
        The sums that the heads were made from; None unless they are kept.
    """

    idf: np.ndarray = array("d of idf*")
    label_frequency: np.ndarray = array("m", types=("<i8",), least=0.0)
    document_frequency: np.ndarray = array("d", types=("<i8",), least=0.0)
    basis: np.ndarray | None = array("d", "r", optional=True)
    states: LatentStates | None = group(LatentStates)
    heads: tuple[tuple[str, Head], ...] = variants(
        StateHead, RidgeHead, SparseHead, GateHead, FrequentHead, NeighborsHead, SketchNeighbors
    )
    head_weights: list[float] = value()
    diagnostics: dict[str, Any] = value()
    selection: dict[str, Any] | None = value()
    stack: dict[str, Any] | None = value(default=None)
    reranker: Reranker | None = group(Reranker, may_lack=True)
    topics: CorpusTopics | None = group(CorpusTopics, may_lack=True)
    sums: KeptSums | None = group(KeptSums, may_lack=True)


def state_of(
    engine: Engine, fitted: FittedHeads, topics: CorpusTopics | NumericalError | str | None
) -> MultiLabelState:
    """Return the state of fitted heads and of topics, or of the reason why there are no topics."""
    corpus = engine.corpus
    frequency = np.asarray(corpus.document_frequency)
    choice, latent, diagnostics = fitted.choice, None, {}
    if isinstance(fitted.states, States):
        states = fitted.states
        latent = LatentStates(
            states.components.T, states.weights, states.label_posteriors.T, states.spectrum,
            None if states.label_states is None else states.label_states.T,
        )  # fmt: skip
        diagnostics = states.diagnostics
    else:
        diagnostics = {"states_error": str(fitted.states or "effort='low' fits none")}
    if not all(isinstance(head, StateHead) for head in fitted.heads.values()):
        diagnostics = {**diagnostics, "features": "tfidf" if len(fitted.idf) else "given"}
    if isinstance(topics, str | NumericalError):
        diagnostics = {**diagnostics, "topics_error": str(topics)}
    return MultiLabelState(
        idf=fitted.idf,
        label_frequency=np.asarray(corpus.label_frequency),
        document_frequency=frequency,
        basis=fitted.basis,
        states=latent,
        heads=tuple(fitted.heads.items()),
        head_weights=[1.0] * len(fitted.heads),
        diagnostics=diagnostics,
        selection=None if choice is None else choice.to_json(),
        stack=None if choice is None else choice.blend.regression.to_json(),
        reranker=None if choice is None else choice.reranker,
        topics=topics if isinstance(topics, CorpusTopics) else None,
        sums=fitted.sums,
    )


def scorer_of(
    state: MultiLabelState,
    heads: tuple[tuple[str, Head], ...],
    n_documents: int,
    label_factor: np.ndarray | None,
) -> Scorer:
    """Return the scorer of a model.

    Parameters
    ----------
    state : MultiLabelState
    heads : tuple of (str, Head)
        Those of the state, with the arrays that are derived from latent states.
    n_documents : int
        Number of documents of the model.
    label_factor : ndarray of shape (m,) or None
        Multiplies the scores of labels (see `Scorer`).

    Raises
    ------
    ValueError
        If parts of the state do not suit one another.
    """
    if len(state.idf) not in (0, len(state.document_frequency)):
        raise ValueError(
            f"expected idf of {len(state.document_frequency)} words or none, got {len(state.idf)}"
        )
    if state.basis is None and any(isinstance(head, RidgeHead | SketchNeighbors) for _, head in heads):
        raise ValueError("expected a basis of the sketch, got none")
    collection = Heads(n_labels=len(state.label_frequency), idf=state.idf, heads=heads, basis=state.basis)
    total = sum_of(collection, _checked_weights(state, heads))
    log_odds = frequency_log_odds(state.label_frequency, n_documents)
    stack = None if state.stack is None else stack_from_json(state.stack)
    reranker = None if state.reranker is None else state.reranker.checked()
    for name in () if reranker is None else reranker.inputs:
        collection.variant(name)
    first: SumLogOdds | Stacked
    if isinstance(stack, Stack) and stack.inputs[0].name == TOTAL:
        if reranker is None:
            # Only a model for PSP@k has an exponent; it was chosen for probabilities.
            scale = WeighedSums if "exponent" in (state.selection or {}) else CalibratedSums
            return scorer_with(collection, total, scale(stack), label_factor)
        first = SumLogOdds(_sum_of_variants(state, collection), stack)
    elif stack is not None:
        _check_inputs(stack, collection)
        if isinstance(stack, ClassStack):
            owners = [head.labels for _, head in heads if isinstance(head, FrequentHead)]
            log_odds = stack.limited(log_odds, np.concatenate([np.zeros(0, np.int32), *owners]))
        first = Stacked(stack, log_odds)
    elif reranker is None:
        return scorer_with(collection, total, scale_of(collection), label_factor)
    else:
        raise ValueError("expected a stack, or the weights of a calibrated sum, for a reranker")
    blend = first if reranker is None else Reranked(first, reranker, log_odds)
    return scorer_with(collection, blend, LogOdds(), label_factor)


def _checked_weights(state: MultiLabelState, heads: tuple[tuple[str, Head], ...]) -> tuple[float, ...]:
    """Return the factors of heads in a sum, which are one unless an earlier version saved the model."""
    weights = tuple(map(float, state.head_weights))
    if not heads or len(weights) != len(heads) or not all(map(math.isfinite, weights)):
        raise ValueError(f"expected a finite weight for each of {len(heads)} heads, got {weights}")
    return weights


def _check_inputs(stack: Stack | ClassStack, heads: Heads) -> None:
    """Check that the inputs of a stack are scores of heads; else a ValueError or a KeyError."""
    for each in stack.inputs:
        heads.variant(each.name)
    effects = stack.effects if isinstance(stack, Stack) else ()
    if any(effect.name == "cosine" for effect in effects) and INDEX not in dict(heads.heads):
        raise ValueError("expected an index of documents for coefficients that vary with the cosine")


def _sum_of_variants(state: MultiLabelState, heads: Heads) -> WeightedSum | GatedSum:
    """Return the sum of the variants of heads whose best labels are ranked again."""
    weights = (state.selection or {}).get("weights")
    if not isinstance(weights, dict):
        raise ValueError("expected a stack, or the weights of a calibrated sum, for a reranker")
    # In the order of a stored record, so that a model that was loaded adds scores in the same order.
    terms = {name: float(weight) for name, weight in sorted(weights.items())}
    if not all(map(math.isfinite, terms.values())):
        raise ValueError(f"expected finite weights of the sum, got {terms}")
    for name in terms:
        heads.variant(name)
    power = terms.pop(GATE, None)
    ungated = WeightedSum(tuple(terms.items()))
    return ungated if power is None else GatedSum(ungated, GATE, power)
