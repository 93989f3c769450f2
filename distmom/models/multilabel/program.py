"""Fit the heads of a multi-label model, and for ``auto`` choose their blend on held-out documents."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Csr, Engine, Selection, StoredArray, StoredColumns, Term
from distmom.engine.passes import transform_fields
from distmom.errors import UsageError
from distmom.models.multilabel.blend import Choice, choose_blend, score_held_out
from distmom.models.multilabel.heads import (
    Head,
    NeighborsHead,
    RidgeHead,
    Scorer,
    SketchNeighbors,
    StateHead,
    rank_labels,
)
from distmom.models.multilabel.regression import (
    SKETCH_NEIGHBORS_ROWS,
    Features,
    LinearFit,
    RidgeFit,
    centroid_terms,
    extend_features,
    extend_linear,
    fit_features,
    fit_linear,
    fit_neighbors,
    fit_ridge,
    sketch_basis,
    sketch_neighbors,
    sparse_head,
)
from distmom.models.multilabel.states import States, StateSettings, extend_states, fit_states
from distmom.spectral.tall import WHOLE_BYTES

logger = logging.getLogger(__name__)

HEADS = ("auto", "moment", "posterior", "ridge", "linear", "neighbors")
#: what the heads of these names are fitted with when nothing is chosen
DEFAULT_VARIANTS = {"ridge": "ridge-0.03", "neighbors": "neighbors-75-3"}
#: held-out documents at most, and the largest share of the corpus
HELD_OUT_DOCUMENTS, HELD_OUT_SHARE = 10_000, 0.2
#: share of the corpus from which held-out documents are added to the latent states in the end
STATES_SHARE = 0.01
RIDGE_PENALTIES = (0.01, 0.03, 0.1)
#: labels for each column of the sketch up to which `auto` tries ridge; r columns cannot tell many more apart
LABELS_PER_COLUMN = 50
NEIGHBOR_VARIANTS = ((40, 3.0), (75, 3.0), (75, 4.0))


@dataclass
class Fitted:
    """What the heads of one model are made from.

    Attributes
    ----------
    features : Features or None
    states : States or None
        None also where they could not be fitted and no head needs them.
    states_error : str or None
        Why not.
    ridge : tuple or None
        Basis of the sketch (d, r), and the sums in it.
    linear : LinearFit or None
    index : NeighborsHead or None
    """

    features: Features | None
    states: States | None = None
    states_error: str | None = None
    ridge: tuple[np.ndarray, RidgeFit] | None = None
    linear: LinearFit | None = None
    index: NeighborsHead | None = None


def held_out(corpus: Corpus | MemoryCorpus, seed: int) -> Selection:
    """Return which documents `auto` keeps to choose on."""
    share = min(HELD_OUT_SHARE, HELD_OUT_DOCUMENTS / max(1, corpus.n_documents))
    return Selection(share, heldout=True, seed=seed)


def extends_states(corpus: Corpus | MemoryCorpus, seed: int) -> bool:
    """Return whether `auto` adds the held-out documents to the latent states too."""
    return held_out(corpus, seed).fraction >= STATES_SHARE


def tries_ridge(corpus: Corpus | MemoryCorpus, n_components: int) -> bool:
    """Return whether `auto` fits the ridge head: not where there are far more labels than columns."""
    return corpus.n_labels <= LABELS_PER_COLUMN * n_components


def n_dense_heads(corpus: Corpus | MemoryCorpus, n_components: int) -> int:
    """Return how many heads `auto` tries that score every label: all but those of the latent states."""
    n_ridge = len(RIDGE_PENALTIES) + 1 if tries_ridge(corpus, n_components) else 0
    return n_ridge + len(("centroid", "linear", "best-cosine")) + len(NEIGHBOR_VARIANTS)


@dataclass(frozen=True)
class HeadFitter:
    """Fit heads to the corpus of an engine.

    Attributes
    ----------
    engine : Engine
    head : str
        One of `HEADS`.
    n_components : int
        Rank of the sketch.
    n_residual_passes : int
    states : StateSettings
    seed : int
    """

    engine: Engine
    head: str
    n_components: int
    n_residual_passes: int
    states: StateSettings
    seed: int

    def fit(self) -> tuple[Fitted, dict[str, float], Choice | None]:
        """Fit what the head needs; return it with the weights of its parts and how they were chosen.

        Raises
        ------
        UsageError
            If no held-out document has a label.
        """
        if self.head == "auto":
            choice, known = self._select()
            return self._extend(known, choice.weights), choice.weights, choice
        weights = {DEFAULT_VARIANTS.get(self.head, self.head): 1.0}
        return self._fit_parts(None, weights), weights, None

    def heads(self, fitted: Fitted, weights: dict[str, float]) -> dict[str, Head]:
        """Return the heads that have a weight, with the weights folded in."""
        heads: dict[str, Head] = {}
        sparse: list[tuple[Sequence[Term], float]] = []
        if "centroid" in weights and fitted.features is not None:
            sparse.append((centroid_terms(self.engine, fitted.features), weights["centroid"]))
        if "linear" in weights and fitted.linear is not None:
            sparse.append((fitted.linear.terms, weights["linear"]))
        if sparse:
            heads["sparse"] = sparse_head(self.engine, *sparse)
        if fitted.ridge is not None:
            _, ridge = fitted.ridge
            for name in weights:
                if name.startswith("ridge"):
                    head, w = ridge.head(float(name.split("-", 1)[1])), np.float32(weights[name])
                    heads["ridge"] = RidgeHead(head.coefficients * w, head.intercept * w)
            if "sketch-neighbors" in weights and fitted.index is not None:
                near = self._sketch_neighbors(ridge, fitted.index, None)
                heads["sketch-neighbors"] = replace(near, factor=weights["sketch-neighbors"])
        votes = {name: w for name, w in weights.items() if name.startswith(("neighbors", "best"))}
        if votes and fitted.index is not None:
            heads["neighbors"] = _votes(fitted.index, votes)
        if fitted.states is not None:
            for name, state_head in self._state_heads(fitted.states).items():
                if name in weights:
                    heads[name] = replace(state_head, factor=weights[name])
        opened: dict[str, Head] = transform_fields(heads, _opened)
        return opened

    def _fit_parts(self, selection: Selection | None, weights: dict[str, float] | None) -> Fitted:
        """Fit what the named heads need (all heads when None) to the selected documents."""

        def wanted(*prefixes: str) -> bool:
            return weights is None or any(name.startswith(prefixes) for name in weights)

        engine, features = self.engine, None
        if wanted("ridge", "linear", "centroid", "neighbors", "best", "sketch"):
            features = fit_features(engine, selection)
        fitted = Fitted(features, *self._fit_states(selection))
        if features is not None:
            if wanted("ridge", "sketch") and (
                weights is not None or tries_ridge(engine.corpus, self.n_components)
            ):
                fitted.ridge = self._ridge(features)
            if wanted("linear"):
                fitted.linear = fit_linear(engine, features, self.n_residual_passes)
            if wanted("neighbors", "best", "sketch"):
                fitted.index = fit_neighbors(engine, features)
        return fitted

    def _fit_states(self, selection: Selection | None) -> tuple[States | None, str | None]:
        """Fit the latent states; with heads that do not rest on them, a failure is only reported."""
        try:
            return fit_states(self.engine, self.states, selection), None
        except ArithmeticError:
            raise
        except ValueError as error:
            if self.head in ("moment", "posterior"):
                raise
            logger.warning("the latent states could not be fitted: %s", error)
            return None, str(error)

    def _select(self) -> tuple[Choice, Fitted]:
        """Fit all heads on part of the corpus and choose a blend on the rest."""
        corpus = self.engine.corpus
        chosen = held_out(corpus, self.seed)
        rest = replace(chosen, heldout=False)
        fitted = self._fit_parts(rest, None)
        assert fitted.features is not None
        assert fitted.linear is not None
        assert fitted.index is not None
        heads: dict[str, Head] = {}
        groups: dict[str, str] = {}

        def offer(name: str, group: str, head: Head) -> None:
            heads[name], groups[name] = head, group

        basis = None
        if fitted.ridge is not None:
            basis, ridge = fitted.ridge
            for penalty in RIDGE_PENALTIES:
                offer(f"ridge-{penalty:g}", "ridge", ridge.head(penalty))
            if ridge.rows is not None:
                offer("sketch-neighbors", "sketch", self._sketch_neighbors(ridge, fitted.index, rest))
        offer(
            "centroid",
            "centroid",
            sparse_head(self.engine, (centroid_terms(self.engine, fitted.features), 1.0)),
        )
        offer("linear", "linear", sparse_head(self.engine, (fitted.linear.terms, 1.0)))
        for n, power in sorted(NEIGHBOR_VARIANTS, reverse=True):
            offer(f"neighbors-{n}-{power:g}", "neighbors", replace(fitted.index, n_neighbors=n, power=power))
        offer("best-cosine", "best", replace(fitted.index, n_neighbors=75, power=3.0, factor=0.0, best=1.0))
        if fitted.states is not None:
            for name, head in self._state_heads(fitted.states).items():
                offer(name, name, head)
        scorer = Scorer(
            corpus.n_labels, fitted.features.idf, tuple(heads.items()), (1.0,) * len(heads), basis=basis
        )
        rows = score_held_out(self.engine, scorer, chosen)
        if not rows["n_true"].any():
            raise UsageError("no held-out document has a label: the corpus is too small for head='auto'")
        choice = choose_blend(list(heads), rows, groups)
        logger.info("chosen on %d held-out documents: %s", choice.n_documents, choice.weights)
        return choice, fitted

    def _extend(self, known: Fitted, weights: dict[str, float]) -> Fitted:
        """Add the held-out documents to what was fitted without them, by addition of their sums.

        Only the ridge head is fitted anew where it was chosen: the label half of its basis follows from the
        labels of all documents. The latent states of large corpora stay as they are: new states would need
        another pass over all documents for their labels.
        """
        assert known.features is not None
        engine, chosen = self.engine, held_out(self.engine.corpus, self.seed)
        features, added = extend_features(engine, known.features, chosen)
        fitted = Fitted(features, states_error=known.states_error)
        if "linear" in weights and known.linear is not None:
            fitted.linear = extend_linear(engine, known.linear, features, added)
        if known.index is not None:
            alive = np.ones(engine.corpus.n_documents, np.uint8)
            fitted.index = replace(known.index, alive=engine.put(alive))
        if any(name.startswith(("ridge", "sketch")) for name in weights):
            fitted.ridge = self._ridge(features)
        fitted.states = known.states
        if known.states is not None and extends_states(engine.corpus, self.seed):
            fitted.states = extend_states(engine, self.states, known.states, chosen)
        return fitted

    def _ridge(self, features: Features) -> tuple[np.ndarray, RidgeFit]:
        """Fit the sketch and its ridge sums; small corpora keep the rows of the sketch for neighbours."""
        engine = self.engine
        basis = sketch_basis(engine, features, self.n_components, 1, 10, self.seed)
        store = self.head == "auto" and engine.corpus.n_documents <= SKETCH_NEIGHBORS_ROWS
        return np.asarray(basis.load()), fit_ridge(engine, features, basis, store=store)

    @staticmethod
    def _sketch_neighbors(
        ridge: RidgeFit, index: NeighborsHead, selection: Selection | None
    ) -> SketchNeighbors:
        labels = index.labels
        if selection is not None:
            whole = index.labels.to_scipy()
            rows = np.flatnonzero(selection.mask(0, whole.shape[0]))
            labels = Csr.of(csr_array(whole[rows]), np.uint8)
        return sketch_neighbors(ridge, labels)

    def _state_heads(self, states: States) -> dict[str, StateHead]:
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
    """Return a stored array: a large one as a memory map, whose file may be unlinked but not shortened."""
    if isinstance(leaf, StoredColumns):
        return leaf.load()
    if not isinstance(leaf, StoredArray):
        return leaf
    array = leaf.load()
    return array if array.nbytes > WHOLE_BYTES else np.array(array)


def _votes(index: NeighborsHead, weights: dict[str, float]) -> NeighborsHead:
    """Return one head for weighted votes and best cosines of one index."""
    votes = next((name for name in weights if name.startswith("neighbors")), None)
    best = weights.get("best-cosine", 0.0)
    if votes is None:
        return replace(index, n_neighbors=75, power=3.0, factor=0.0, best=best)
    _, n, power = votes.split("-")
    return replace(index, n_neighbors=int(n), power=float(power), factor=weights[votes], best=best)
