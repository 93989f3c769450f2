"""Multi-label learning from moments: latent states, and heads that rank all labels for new documents.

Source: Dasgupta, "Multi-Label Learning with Provable Guarantee" (arXiv:1609.03426) for the states and the
heads ``moment`` and ``posterior``; the other heads come from sums of the same kind over the same shards.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, check_is_fitted, check_non_negative

from distmom.corpus import Block, Corpus, MemoryCorpus
from distmom.engine import Csr, Engine, MixedRows, Observer, Selection, open_engine, open_executor
from distmom.errors import InputError, StoreError, UsageError
from distmom.linalg import METHODS
from distmom.models.artifact import check_target, load_arrays, load_names, load_record, save_model
from distmom.models.heads import (
    Head,
    NeighborsHead,
    RidgeHead,
    Scorer,
    SketchNeighbors,
    SparseHead,
    StateHead,
)
from distmom.models.kernels import top_labels
from distmom.models.scorers import (
    SKETCH_NEIGHBORS_ROWS,
    Features,
    LinearFit,
    RidgeFit,
    centroid_weights,
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
from distmom.models.selection import Choice, choose_blend, score_held_out
from distmom.models.states import States, StateSettings, check_size, extend_states, fit_states, smoothed
from distmom.moments.features import inverse_document_frequency
from distmom.moments.labels import posteriors
from distmom.moments.weighting import MOMENTS, WEIGHTINGS, MomentKind

logger = logging.getLogger(__name__)

HEADS = ("auto", "moment", "posterior", "ridge", "linear", "neighbors")
#: states that `auto` decomposes at most: they serve the reading, not the ranking
AUTO_STATES = 100
#: corpora up to this size are looked at for held-out documents before anything runs
FEW_DOCUMENTS = 1000
#: held-out documents at most, and the largest share of the corpus
HELD_OUT_DOCUMENTS, HELD_OUT_SHARE = 10_000, 0.2
RIDGE_PENALTIES = (0.01, 0.03, 0.1)
#: labels for each column of the sketch up to which `auto` tries ridge; r columns cannot tell many more apart
LABELS_PER_COLUMN = 50
NEIGHBOR_VARIANTS = ((40, 3.0), (75, 3.0), (75, 4.0))
_RECORDS: dict[str, type[Any]] = {"Csr": Csr, "MixedRows": MixedRows}
_KINDS: dict[str, type[Head]] = {
    kind.__name__: kind for kind in (StateHead, RidgeHead, SparseHead, NeighborsHead, SketchNeighbors)
}


@dataclass
class _Fitted:
    """What the heads of one model are made from."""

    features: Features | None
    states: States | None = None
    ridge: tuple[np.ndarray, RidgeFit] | None = None
    linear: LinearFit | None = None
    index: NeighborsHead | None = None


class MultiLabelMoM(BaseEstimator):  # type: ignore[misc]
    """Rank labels for documents by moments of words and labels.

    Parameters
    ----------
    n_components : int
        Number of latent states of the heads ``moment`` and ``posterior``; rank of the sketch of ``ridge`` and
        ``auto``, which take at most 100 states.
    head : {"auto", "moment", "posterior", "ridge", "linear", "neighbors"}
        How labels are scored. ``auto`` chooses a blend on held-out documents of the training corpus.
    moments : {"paper", "distinct"}
        Pairs and triples of word positions with or without a position paired with itself.
    weighting : {"pooled", "document", "length"}
        How much each document counts (see `distmom.moments.weighting`).
    length_scale : float
        The length c of ``weighting="length"``, at which a document has a quarter of the largest weight.
    decomposition : {"joint", "power", "power-stop", "flatten", "jennrich"}
        Method for the whitened third moment.
    n_oversamples : int or None
        Columns of a sketch beyond its rank; None: 10, and ``n_components`` with distinct positions, whose
        sampled second moment is indefinite.
    n_power_iter : int or None
        Power passes of the word sketch; None: 2, and 6 with distinct positions.
    n_residual_passes : int
        Residual passes of ``linear`` and of the linear part of ``auto``.
    smoothing : float
        Share of the unigram distribution mixed into the states when documents are scored.
    propensity : float
        Power of the inverse propensity of labels that multiplies the final score; 0 leaves it.
    precision : {"single", "double"}
        Type in which blocks are multiplied; sums are double in any case.
    decompose_on : {"scheduler", "client"}
        Where the tensor is decomposed when there is a cluster.
    force : bool
        Fit more states than the corpus can carry by the rule ``N >= n_components^2``.
    random_state : int
        Seed.

    Attributes
    ----------
    components_ : ndarray of shape (n_states, n_words)
        Word probabilities of the states.
    label_components_ : ndarray of shape (n_states, n_labels)
        Label probabilities of the states, by their posteriors.
    weights_ : ndarray of shape (n_states,)
        Probabilities of the states.
    spectrum_ : ndarray
        Ritz values of the second word moment.
    scorer_ : Scorer
        What scores documents.
    diagnostics_ : dict
        Residual, ``sum_pi``, clipped mass, bounds of Theorem 1 and the rest that was measured in the fit.
    selection_ : dict or None
        With ``head="auto"``, what was chosen and what each head scored on held-out documents.
    vocabulary_, label_names_ : list of str
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> topic = rng.integers(0, 2, 400)
    >>> X = (rng.random((400, 20)) < np.where(np.arange(20) % 2 == topic[:, None], 0.5, 0.05)).astype(int)
    >>> Y = np.stack([topic == 0, topic == 1], axis=1).astype(int)
    >>> model = MultiLabelMoM(2, head="posterior").fit(X, Y)
    >>> bool((model.predict_top(X, 1)[0].ravel() == topic).mean() > 0.95)
    True
    """

    def __init__(
        self,
        n_components: int = 100,
        *,
        head: str = "auto",
        moments: str = "paper",
        weighting: str = "pooled",
        length_scale: float = 100.0,
        decomposition: str = "joint",
        n_oversamples: int | None = None,
        n_power_iter: int | None = None,
        n_residual_passes: int = 2,
        smoothing: float = 0.1,
        propensity: float = 0.0,
        precision: str = "single",
        decompose_on: str = "scheduler",
        force: bool = False,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.head = head
        self.moments = moments
        self.weighting = weighting
        self.length_scale = length_scale
        self.decomposition = decomposition
        self.n_oversamples = n_oversamples
        self.n_power_iter = n_power_iter
        self.n_residual_passes = n_residual_passes
        self.smoothing = smoothing
        self.propensity = propensity
        self.precision = precision
        self.decompose_on = decompose_on
        self.force = force
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.positive_only = True
        tags.target_tags.required = tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        return tags

    def fit(self, X: Any, y: Any = None) -> MultiLabelMoM:
        """Fit arrays in memory.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_documents, n_words)
            Counts or weights, not negative.
        y : array or sparse matrix of shape (n_documents, n_labels)
            1 where a label is set.

        Returns
        -------
        self
        """
        if y is None:
            raise UsageError("requires y to be passed, but the target y is None: MultiLabelMoM needs labels")
        X = _checked(X, 2)
        if not issparse(y):
            y = np.asarray(y)
            if y.dtype.kind not in "biuf":
                raise InputError(f"Unknown label type: y: expected numbers, got {y.dtype}")
            if y.ndim != 2:
                raise UsageError(
                    f"y: expected a matrix of shape (n_documents, n_labels), got shape {y.shape}"
                )
        return self.fit_corpus(MemoryCorpus(X, y))

    def fit_corpus(
        self,
        corpus: Corpus | MemoryCorpus,
        *,
        client: Any = None,
        run: str | os.PathLike[str] | None = None,
        memory_limit: int | None = None,
        observer: Observer | None = None,
    ) -> MultiLabelMoM:
        """Fit a corpus out of core.

        Parameters
        ----------
        corpus : Corpus or MemoryCorpus
        client : distributed.Client or Executor, optional
            Where passes run; this process when absent. It is left open.
        run : path-like, optional
            Directory of states and committed passes; a fit on the same directory goes on after the last
            committed pass. A temporary one when absent.
        memory_limit : int, optional
            Bytes that one worker may use.
        observer : callable, optional
            Receives the engine's events.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If parameters and corpus do not go together.
        NumericalError
            If the moments do not carry the number of states asked for.
        """
        started = time.monotonic()
        self.check(corpus)
        with (
            open_executor(client) as executor,
            open_engine(corpus, run, executor, memory_limit, observer) as engine,
        ):
            self._fit(engine)
            self.timings_ = [vars(t) for t in engine.timings]
            self.fit_seconds_ = time.monotonic() - started
        return self

    def check(self, corpus: Corpus | MemoryCorpus) -> None:
        """Refuse parameters that are wrong or do not go with a corpus; UsageError."""
        choices = {
            "head": HEADS,
            "moments": MOMENTS,
            "weighting": WEIGHTINGS,
            "decomposition": METHODS,
            "precision": ("single", "double"),
            "decompose_on": ("scheduler", "client"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if not 0 <= self.smoothing < 1:
            raise UsageError(f"smoothing: expected 0 <= smoothing < 1, got {self.smoothing}")
        if self.n_components < 1:
            raise UsageError(f"n_components: expected at least 1, got {self.n_components}")
        if self.n_residual_passes < 0:
            raise UsageError(f"n_residual_passes: expected at least 0, got {self.n_residual_passes}")
        if corpus.n_labels == 0 or not np.asarray(corpus.label_frequency).any():
            raise UsageError("the corpus has no labels: a multi-label model cannot be fitted to it")
        if self.n_components > corpus.n_words:
            raise UsageError(
                f"n_components={self.n_components} is more than the {corpus.n_words} words of the vocabulary"
            )
        if self.head in ("moment", "posterior"):
            check_size(corpus.n_documents, self.n_components, self.force)
        if self.head == "auto" and corpus.n_documents <= FEW_DOCUMENTS:
            n_held_out = int(self._held_out(corpus).mask(0, corpus.n_documents).sum())
            if n_held_out in (0, corpus.n_documents):
                raise UsageError(
                    f"{corpus.n_documents} documents are too few for head='auto', which chooses on held-out ones; "
                    "name a head"
                )

    def _fit(self, engine: Engine) -> None:
        corpus = engine.corpus
        self.vocabulary_ = list(corpus.vocabulary)
        self.label_names_ = list(corpus.label_names)
        self.n_features_in_ = corpus.n_words
        self.settings_ = dict(corpus.settings)
        self.n_documents_ = corpus.n_documents
        self.label_frequency_ = np.asarray(corpus.label_frequency)
        self.idf_ = inverse_document_frequency(np.asarray(corpus.document_frequency), corpus.n_documents)
        self.document_frequency_ = np.asarray(corpus.document_frequency)
        self.selection_: dict[str, Any] | None = None
        self.diagnostics_: dict[str, Any] = {}
        self.basis_: np.ndarray | None = None
        if self.head == "auto":
            choice, known = self._select(engine)
            self.selection_ = choice.to_json()
            weights = choice.weights
            fitted = self._extend(engine, known, weights)
        else:
            weights = {self._default_variant(): 1.0}
            fitted = self._fit_parts(engine, None, weights)
        heads = self._final_heads(engine, fitted, weights)
        if fitted.states is not None:
            self._keep_states(fitted.states)
            heads.update(self._state_heads(fitted.states, weights))
        if not heads:
            raise UsageError("no head could be fitted: the corpus is too small")
        names = tuple(heads)
        self.scorer_ = Scorer(
            n_labels=corpus.n_labels,
            idf=self.idf_,
            heads=tuple(heads.items()),
            weights=tuple(1.0 for _ in names),
            basis=self.basis_
            if any(isinstance(h, RidgeHead | SketchNeighbors) for h in heads.values())
            else None,
            label_factor=self._label_factor(),
        )

    def _default_variant(self) -> str:
        variants = {"ridge": "ridge-0.03", "neighbors": "neighbors-75-3"}
        return variants.get(self.head, self.head)

    def _label_factor(self) -> np.ndarray | None:
        if self.propensity == 0.0:
            return None
        n, a, b = max(self.n_documents_, 3), 0.55, 1.5
        c = (math.log(n) - 1.0) * (b + 1.0) ** a
        inverse = 1.0 + c * (self.label_frequency_ + b) ** -a
        return np.asarray(inverse**self.propensity, np.float32)

    # States

    def n_states_for(self, n_documents: int) -> int:
        """Return how many latent states are fitted to so many documents."""
        if self.head in ("moment", "posterior"):
            return self.n_components
        return max(1, min(self.n_components, AUTO_STATES, math.isqrt(n_documents)))

    def state_settings(self, k: int) -> StateSettings:
        """Return how k latent states are fitted."""
        kind = MomentKind(self.moments, self.weighting, binary=True, length_scale=self.length_scale)
        needed = self.head in ("moment", "posterior")
        return StateSettings(
            n_states=k,
            kind=kind,
            n_oversamples=(k if kind.distinct else 10) if self.n_oversamples is None else self.n_oversamples,
            n_power_iter=(6 if kind.distinct else 2) if self.n_power_iter is None else self.n_power_iter,
            decomposition=self.decomposition,
            smoothing=self.smoothing,
            seed=self.random_state,
            single_precision=self.precision == "single",
            lower=not needed or self.force,
            decompose_on=self.decompose_on,
        )

    def _fit_states(self, engine: Engine, selection: Selection | None) -> States | None:
        """Fit the latent states; with heads that do not rest on them, a failure is only reported."""
        needed = self.head in ("moment", "posterior")
        settings = self.state_settings(self.n_states_for(engine.corpus.n_documents))
        try:
            return fit_states(engine, settings, selection)
        except ArithmeticError:
            raise
        except ValueError as error:
            if needed:
                raise
            logger.warning("the latent states could not be fitted: %s", error)
            self.diagnostics_["states_error"] = str(error)
            return None

    def _keep_states(self, states: States) -> None:
        self.components_ = states.components
        self.weights_ = states.weights
        self.label_components_ = states.label_posteriors
        self.label_moments_ = states.label_states
        self.spectrum_ = states.spectrum
        self.diagnostics_.update(states.diagnostics)

    def _state_heads(self, states: States, weights: dict[str, float] | None) -> dict[str, Head]:
        """Return the heads on states that the model scores with, scaled by their weights."""
        wanted = {self.head: 1.0} if self.head in ("moment", "posterior") else (weights or {})
        built = self._all_state_heads(states)
        return {
            name: replace(built[name], label_states=np.float32(w) * built[name].label_states)
            for name, w in wanted.items()
            if name in built
        }

    def _all_state_heads(self, states: States) -> dict[str, StateHead]:
        smooth = smoothed(states.components.T, self.document_frequency_.astype(np.float64), self.smoothing)
        log_topics = np.log(smooth).astype(np.float32)
        log_weights = np.log(states.weights)
        return {
            "moment": StateHead(log_topics, log_weights, states.label_states.T.astype(np.float32)),
            "posterior": StateHead(log_topics, log_weights, states.label_posteriors.T.astype(np.float32)),
        }

    # Heads on features

    def _fit_parts(
        self, engine: Engine, selection: Selection | None, weights: dict[str, float] | None
    ) -> _Fitted:
        """Fit what the named heads need (all heads when None) to the selected documents."""

        def wanted(*prefixes: str) -> bool:
            return weights is None or any(name.startswith(prefixes) for name in weights)

        features = None
        if wanted("ridge", "linear", "centroid", "neighbors", "best", "sketch"):
            features = fit_features(engine, selection)
        fitted = _Fitted(features, states=self._fit_states(engine, selection))
        if features is not None:
            if wanted("ridge", "sketch") and (weights is not None or self.tries_ridge(engine.corpus)):
                fitted.ridge = self._ridge(engine, features)
            if wanted("linear"):
                fitted.linear = fit_linear(engine, features, self.n_residual_passes)
            if wanted("neighbors", "best", "sketch"):
                fitted.index = fit_neighbors(engine, features)
        return fitted

    def _select(self, engine: Engine) -> tuple[Choice, _Fitted]:
        """Fit all heads on part of the corpus and choose a blend on the rest."""
        corpus = engine.corpus
        rest = replace(self._held_out(corpus), heldout=False)
        fitted = self._fit_parts(engine, rest, None)
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
        offer("centroid", "centroid", sparse_head((centroid_weights(fitted.features), 1.0)))
        offer("linear", "linear", sparse_head((fitted.linear.weights, 1.0)))
        for n, power in sorted(NEIGHBOR_VARIANTS, reverse=True):
            offer(f"neighbors-{n}-{power:g}", "neighbors", replace(fitted.index, n_neighbors=n, power=power))
        offer("best-cosine", "best", replace(fitted.index, n_neighbors=75, power=3.0, factor=0.0, best=1.0))
        if fitted.states is not None:
            for name, head in self._all_state_heads(fitted.states).items():
                offer(name, name, head)
        scorer = Scorer(
            corpus.n_labels, fitted.features.idf, tuple(heads.items()), (1.0,) * len(heads), basis=basis
        )
        rows = score_held_out(engine, scorer, self._held_out(corpus))
        if not rows["n_true"].any():
            raise UsageError("no held-out document has a label: the corpus is too small for head='auto'")
        choice = choose_blend(list(heads), rows, groups)
        logger.info("chosen on %d held-out documents: %s", choice.n_documents, choice.weights)
        return choice, fitted

    def _held_out(self, corpus: Corpus | MemoryCorpus) -> Selection:
        share = min(HELD_OUT_SHARE, HELD_OUT_DOCUMENTS / max(1, corpus.n_documents))
        return Selection(share, heldout=True, seed=self.random_state)

    def _extend(self, engine: Engine, known: _Fitted, weights: dict[str, float]) -> _Fitted:
        """Add the held-out documents to what was fitted without them, by addition of their sums.

        Only the ridge head is fitted anew where it was chosen: the label half of its basis follows from the
        labels of all documents.
        """
        assert known.features is not None
        held_out = self._held_out(engine.corpus)
        features, added = extend_features(engine, known.features, held_out)
        fitted = _Fitted(features)
        if "linear" in weights and known.linear is not None:
            fitted.linear = extend_linear(engine, known.linear, features, added)
        if known.index is not None:
            fitted.index = replace(known.index, alive=np.ones_like(known.index.alive))
        if any(name.startswith(("ridge", "sketch")) for name in weights):
            fitted.ridge = self._ridge(engine, features)
        if known.states is not None:
            settings = self.state_settings(self.n_states_for(engine.corpus.n_documents))
            fitted.states = extend_states(engine, settings, known.states, held_out)
        return fitted

    def tries_ridge(self, corpus: Corpus | MemoryCorpus) -> bool:
        """Return whether `auto` fits the ridge head: not where there are far more labels than columns."""
        return corpus.n_labels <= LABELS_PER_COLUMN * self.n_components

    def _ridge(self, engine: Engine, features: Features) -> tuple[np.ndarray, RidgeFit]:
        """Fit the sketch and its ridge sums; small corpora keep the rows of the sketch for neighbours."""
        basis = sketch_basis(engine, features, self.n_components, 1, 10, self.random_state)
        store = self.head == "auto" and engine.corpus.n_documents <= SKETCH_NEIGHBORS_ROWS
        return np.asarray(basis.load()), fit_ridge(engine, features, basis, store=store)

    @staticmethod
    def _sketch_neighbors(
        ridge: RidgeFit, index: NeighborsHead, selection: Selection | None
    ) -> SketchNeighbors:
        labels = index.labels
        if selection is not None:
            rows = np.flatnonzero(selection.mask(0, len(index.alive)))
            labels = Csr.of(csr_array(index.labels.to_scipy()[rows]), np.uint8)
        return sketch_neighbors(ridge, labels)

    def _final_heads(self, engine: Engine, fitted: _Fitted, weights: dict[str, float]) -> dict[str, Head]:
        """Return the heads on features that have a weight, with the weights folded in."""
        heads: dict[str, Head] = {}
        sparse: list[tuple[csr_array, float]] = []
        if "centroid" in weights and fitted.features is not None:
            sparse.append((centroid_weights(fitted.features), weights["centroid"]))
        if "linear" in weights and fitted.linear is not None:
            sparse.append((fitted.linear.weights, weights["linear"]))
        if sparse:
            heads["sparse"] = sparse_head(*sparse)
        if fitted.ridge is not None:
            self.basis_, ridge = fitted.ridge
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
        return heads

    # Using a fitted model

    def predict_top(self, X: Any, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best labels of documents in memory.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_documents, n_words)
        k : int

        Returns
        -------
        labels : ndarray of shape (n_documents, k), int32
        scores : ndarray of shape (n_documents, k), float32
        """
        check_is_fitted(self, "scorer_")
        k = min(k, self.scorer_.n_labels)
        parts = [
            top_labels(self.scorer_.scores(self.scorer_.query(part)), k)
            for _, part in self.scorer_.blocks(self._block(X))
        ]
        if not parts:
            return np.zeros((0, k), np.int32), np.zeros((0, k), np.float32)
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the scores of all labels, (n_documents, n_labels) float32; for small inputs."""
        check_is_fitted(self, "scorer_")
        block = self._block(X)
        parts = [self.scorer_.scores(self.scorer_.query(part)) for _, part in self.scorer_.blocks(block)]
        return np.concatenate(parts) if parts else np.zeros((0, self.scorer_.n_labels), np.float32)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the latent states, (n_documents, n_states); rows sum to one.

        Multi-label paper, equation 14.
        """
        check_is_fitted(self, "components_")
        smooth = smoothed(self.components_.T, self.document_frequency_.astype(np.float64), self.smoothing)
        return posteriors(self._block(X), np.log(smooth), np.log(self.weights_))[0]

    def topics(self, n_top: int = 10) -> list[dict[str, Any]]:
        """Return the most probable words and labels of every state, states by falling weight.

        Returns
        -------
        list of dict
            Keys ``state``, ``weight``, ``words`` and ``labels``, the last two lists of (name, probability).
        """
        check_is_fitted(self, "components_")

        def top(row: np.ndarray, names: Sequence[str]) -> list[tuple[str, float]]:
            order = np.lexsort((np.arange(len(row)), -row))[:n_top]
            return [(names[i], float(row[i])) for i in order if row[i] > 0]

        return [
            {
                "state": int(h),
                "weight": float(self.weights_[h]),
                "words": top(self.components_[h], self.vocabulary_),
                "labels": top(self.label_components_[h], self.label_names_),
            }
            for h in np.argsort(-self.weights_, kind="stable")
        ]

    def _block(self, X: Any) -> Block:
        X = _checked(X, 0)
        corpus = MemoryCorpus(X, shard_documents=max(1, X.shape[0]))
        if corpus.n_words != self.n_features_in_:
            raise UsageError(
                f"X has {corpus.n_words} features, but MultiLabelMoM is expecting {self.n_features_in_} features "
                "as input"
            )
        if corpus.n_documents == 0:
            return Block(csr_array((0, corpus.n_words), dtype=np.int32), csr_array((0, 0), dtype=np.uint8), 0)
        return corpus.read_shard(0)

    # On disk

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model as a directory of arrays and JSON.

        Raises
        ------
        UsageError
            If the path exists, and is not a model or ``overwrite`` is not given.
        """
        check_is_fitted(self, "scorer_")
        check_target(Path(path).absolute(), overwrite)
        arrays: dict[str, np.ndarray] = {
            "idf": self.idf_,
            "label_frequency": self.label_frequency_,
            "document_frequency": self.document_frequency_,
        }
        for name in ("components_", "weights_", "label_components_", "label_moments_", "spectrum_"):
            if hasattr(self, name):
                value = getattr(self, name)
                arrays[f"states/{name.rstrip('_')}"] = value if value.ndim < 2 else value.astype(np.float32)
        if self.scorer_.basis is not None:
            arrays["basis"] = self.scorer_.basis
        heads = []
        for name, head in self.scorer_.heads:
            heads.append(
                {"name": name, "kind": type(head).__name__, "fields": _pack(head, f"heads/{name}", arrays)}
            )
        record = {
            "model": "MultiLabelMoM",
            "parameters": self.get_params(),
            "heads": heads,
            "head_weights": list(self.scorer_.weights),
            "settings": self.settings_,
            "n_documents": self.n_documents_,
            "diagnostics": self.diagnostics_,
            "selection": self.selection_,
            "timings": self.timings_,
            "fit_seconds": self.fit_seconds_,
        }
        save_model(path, record, arrays, self.vocabulary_, self.label_names_, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MultiLabelMoM:
        """Read a model; UsageError if there is none, StoreError if it is damaged."""
        record = load_record(path)
        try:
            return cls._from_record(path, record)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, UsageError):
                raise
            raise StoreError(
                f"{Path(path) / 'model.json'}: not a whole model description: {error!r}"
            ) from error

    @classmethod
    def _from_record(cls, path: str | os.PathLike[str], record: dict[str, Any]) -> MultiLabelMoM:
        arrays = load_arrays(path, record)
        model = cls(**record["parameters"])
        model.vocabulary_, model.label_names_ = load_names(path, record)
        model.idf_ = arrays["idf"]
        model.label_frequency_ = arrays["label_frequency"]
        model.document_frequency_ = arrays["document_frequency"]
        model.n_features_in_ = len(model.idf_)
        model.n_documents_ = record["n_documents"]
        model.settings_ = record["settings"]
        model.diagnostics_, model.selection_ = record["diagnostics"], record["selection"]
        model.timings_, model.fit_seconds_ = record["timings"], record["fit_seconds"]
        for name, value in arrays.items():
            if name.startswith("states/"):
                setattr(model, name.removeprefix("states/") + "_", np.asarray(value, np.float64))
        model.basis_ = arrays.get("basis")
        heads = tuple(
            (entry["name"], _unpack(_KINDS[entry["kind"]], entry["fields"], f"heads/{entry['name']}", arrays))
            for entry in record["heads"]
        )
        model.scorer_ = Scorer(
            len(model.label_names_), model.idf_, heads, tuple(record["head_weights"]), model.basis_,
            model._label_factor(),
        )  # fmt: skip
        return model


def _checked(X: Any, min_samples: int) -> Any:
    """Return an array or CSR matrix that holds what scikit-learn allows, and nothing negative."""
    try:
        X = check_array(X, accept_sparse="csr", ensure_min_samples=min_samples, input_name="X")
        check_non_negative(X, "MultiLabelMoM")
    except ValueError as error:
        raise InputError(str(error)) from error
    return X


def _votes(index: NeighborsHead, weights: dict[str, float]) -> NeighborsHead:
    """Return one head for weighted votes and best cosines of one index."""
    votes = next((name for name in weights if name.startswith("neighbors")), None)
    best = weights.get("best-cosine", 0.0)
    if votes is None:
        return replace(index, n_neighbors=75, power=3.0, factor=0.0, best=best)
    _, n, power = votes.split("-")
    return replace(index, n_neighbors=int(n), power=float(power), factor=weights[votes], best=best)


def _pack(value: Any, prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Move the arrays of a dataclass into ``arrays`` and return its other fields."""
    rest: dict[str, Any] = {}
    for f in fields(value):
        item = getattr(value, f.name)
        if is_dataclass(item) and not isinstance(item, type):
            rest[f.name] = {"record": type(item).__name__, **_pack(item, f"{prefix}/{f.name}", arrays)}
        elif isinstance(item, np.ndarray):
            arrays[f"{prefix}/{f.name}"] = item
        else:
            rest[f.name] = item
    return rest


def _unpack(kind: type[Any], rest: dict[str, Any], prefix: str, arrays: dict[str, np.ndarray]) -> Any:
    """Rebuild a dataclass from `_pack`."""
    values: dict[str, Any] = {}
    for f in fields(kind):
        name = f"{prefix}/{f.name}"
        if name in arrays:
            values[f.name] = arrays[name]
        elif isinstance(rest[f.name], dict):
            values[f.name] = _unpack(_RECORDS[rest[f.name]["record"]], rest[f.name], name, arrays)
        else:
            values[f.name] = rest[f.name]
    return kind(**values)
