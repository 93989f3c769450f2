"""Multi-label learning from moments: latent states, and heads that rank all labels for new documents.

Source: Dasgupta, "Multi-Label Learning with Provable Guarantee" (arXiv:1609.03426) for the states and the
heads ``moment`` and ``posterior``; the other heads come from sums of the same kind over the same shards.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_is_fitted

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Engine
from distmom.engine.state import SLAB_ROWS
from distmom.errors import InputError, UsageError
from distmom.linalg import METHODS
from distmom.models.multilabel.heads import (
    Head,
    NeighborsHead,
    RidgeHead,
    Scorer,
    SketchNeighbors,
    SparseHead,
    StateHead,
    rank_labels,
)
from distmom.models.multilabel.program import HEADS, HeadFitter, held_out
from distmom.models.multilabel.states import States, StateSettings, check_size
from distmom.moments.features import inverse_document_frequency
from distmom.moments.labels import posteriors
from distmom.moments.weighting import MOMENTS, WEIGHTINGS, MomentKind
from distmom.spectral.artifact import (
    check_target,
    load_arrays,
    load_names,
    load_record_of,
    pack,
    save_model,
    unpack,
    whole_description,
)
from distmom.spectral.estimator import DECOMPOSE_ON, CorpusEstimator, check_bounds, check_choices, check_seed
from distmom.spectral.inputs import checked_rows
from distmom.spectral.layout import Array, Layout, Matrix
from distmom.spectral.tall import smoothed_logs

#: states that `auto` decomposes at most: they serve the reading, not the ranking
AUTO_STATES = 100
#: corpora up to this size are looked at for held-out documents before anything runs
FEW_DOCUMENTS = 1000
_STATES = ("components_", "weights_", "label_components_", "label_moments_", "spectrum_")
_LAYOUT: Layout = {
    "idf": Array(("d",)),
    "label_frequency": Array(("m",), ("<i8",), least=0.0),
    "document_frequency": Array(("d",), ("<i8",), least=0.0),
    "basis": Array(("d", "r"), optional=True),
}
#: what a model has beside that where its latent states could be fitted
_STATES_LAYOUT: Layout = {
    "states/components": Array(("d", "k"), least=0.0),
    "states/weights": Array(("k",), least=0.0),
    "states/label_components": Array(("m", "k"), least=0.0),
    "states/label_moments": Array(("m", "k"), least=0.0, optional=True),
    "states/spectrum": Array(("r of the moments",)),
}
_LABELS = Matrix(("n", "m"), ("|u1",), ("<i4", "<i8"))
#: heads by the names of their kinds, each with the layout of its arrays; n are the documents that it compares
#: with, d1 the words and a constant
_KINDS: dict[str, tuple[type[Head], Layout]] = {
    "StateHead": (StateHead, {}),
    "RidgeHead": (RidgeHead, {"coefficients": Array(("r", "m")), "intercept": Array(("m",))}),
    "SparseHead": (
        SparseHead,
        {
            "weights/sparse": Matrix(("d1", "m")),
            "weights/dense": Array(("dense rows*", "m"), ("<f4",)),
            "weights/dense_row": Array(("d1",), ("<i4",), least=-1, below="dense rows*"),
        },
    ),
    "NeighborsHead": (
        NeighborsHead,
        {"alive": Array(("n",), ("|u1",)), "lists": Matrix(("d", "n")), "labels": _LABELS},
    ),
    "SketchNeighbors": (
        SketchNeighbors,
        {"alive": Array(("n",), ("|u1",)), "rows": Array(("n", "r")), "labels": _LABELS},
    ),
}


class MultiLabelMoM(CorpusEstimator):
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
    decomposition : {"joint", "power", "power-stop", "eca", "flatten", "jennrich"}
        Method for the whitened third moment.
    third_moment : {"auto", "full", "slices"}
        Add up all ``n^3`` numbers of the third moment, n being the width of the sketch, or ``4 log2 k`` of its
        slices in one more pass; slices go with ``decomposition="joint"`` alone. ``auto`` takes slices where the
        whole does not fit a worker's memory limit.
    n_oversamples : int or None
        Columns of a sketch beyond its rank; None: 10, and ``n_components`` with distinct positions, whose
        sampled second moment is indefinite.
    n_power_iter : int or None
        Power passes of the word sketch; None: 2, and 6 with distinct positions.
    n_residual_passes : int or None
        Residual passes of the linear head; None: 2, and 1 with ``auto``.
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
        third_moment: str = "auto",
        n_oversamples: int | None = None,
        n_power_iter: int | None = None,
        n_residual_passes: int | None = None,
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
        self.third_moment = third_moment
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
        X = checked_rows(X, 2, "MultiLabelMoM")
        if not issparse(y):
            y = np.asarray(y)
            if y.dtype.kind not in "biuf":
                raise InputError(f"Unknown label type: y: expected numbers, got {y.dtype}")
            if y.ndim != 2:
                raise UsageError(
                    f"y: expected a matrix of shape (n_documents, n_labels), got shape {y.shape}"
                )
        return self.fit_corpus(MemoryCorpus(X, y))

    def check(self, corpus: Corpus | MemoryCorpus) -> None:
        """Refuse parameters that are wrong or do not go with a corpus; UsageError."""
        choices = {
            "head": HEADS,
            "moments": MOMENTS,
            "weighting": WEIGHTINGS,
            "decomposition": METHODS,
            "third_moment": ("auto", "full", "slices"),
            "precision": ("single", "double"),
            "decompose_on": DECOMPOSE_ON,
        }
        check_choices(self, choices)
        check_seed(self)
        # Settings refuse what does not go together.
        self.state_settings(1)
        if not 0 <= self.smoothing < 1:
            raise UsageError(f"smoothing: expected 0 <= smoothing < 1, got {self.smoothing}")
        if not math.isfinite(self.propensity):
            raise UsageError(f"propensity: expected a finite number, got {self.propensity}")
        check_bounds(self, {"n_components": 1, "n_residual_passes": 0})
        if corpus.n_labels == 0 or not np.asarray(corpus.label_frequency).any():
            raise UsageError("the corpus has no labels: a multi-label model cannot be fitted to it")
        if self.n_components > corpus.n_words:
            raise UsageError(
                f"n_components={self.n_components} is more than the {corpus.n_words} words of the vocabulary"
            )
        if self.head in ("moment", "posterior"):
            check_size(corpus.n_documents, self.n_components, self.force)
        if self.head == "auto" and corpus.n_documents <= FEW_DOCUMENTS:
            n_held_out = int(held_out(corpus, self.random_state).mask(0, corpus.n_documents).sum())
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
        fitter = HeadFitter(
            engine, self.head, self.n_components, self.residual_passes(),
            self.state_settings(self.n_states_for(corpus.n_documents)), self.random_state,
        )  # fmt: skip
        fitted, weights, choice = fitter.fit()
        heads = fitter.heads(fitted, weights)
        if not heads:
            raise UsageError("no head could be fitted: the corpus is too small")
        if choice is not None:
            self.selection_ = choice.to_json()
        if fitted.states is not None:
            self._keep_states(fitted.states)
        if fitted.states_error is not None:
            self.diagnostics_["states_error"] = fitted.states_error
        needs_basis = any(isinstance(head, RidgeHead | SketchNeighbors) for head in heads.values())
        self.basis_ = fitted.ridge[0] if fitted.ridge is not None and needs_basis else None
        self.scorer_ = Scorer(
            n_labels=corpus.n_labels,
            idf=self.idf_,
            heads=tuple(heads.items()),
            weights=(1.0,) * len(heads),
            basis=self.basis_,
            label_factor=self._label_factor(),
        )

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

    def residual_passes(self) -> int:
        """Return how many residual passes the linear head makes."""
        if self.n_residual_passes is None:
            return 1 if self.head == "auto" else 2
        return self.n_residual_passes

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
            third_moment=self.third_moment,
            smoothing=self.smoothing,
            seed=self.random_state,
            single_precision=self.precision == "single",
            lower=not needed or self.force,
            decompose_on=self.decompose_on,
            cross_moment=self.head != "posterior",
        )

    def _keep_states(self, states: States) -> None:
        self.components_ = states.components
        self.weights_ = states.weights
        self.label_components_ = states.label_posteriors
        if states.label_states is not None:
            self.label_moments_ = states.label_states
        self.spectrum_ = states.spectrum
        self.diagnostics_.update(states.diagnostics)

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
        return self.scorer_.top(self._block(X), k)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the scores of all labels, (n_documents, n_labels) float32; for small inputs."""
        check_is_fitted(self, "scorer_")
        block, scorer = self._block(X), self.scorer_
        parts = [scorer.scores(scorer.query(block.take(rows))) for rows in scorer.blocks(block.n_documents)]
        return np.concatenate(parts) if parts else np.zeros((0, scorer.n_labels), np.float32)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the latent states, (n_documents, n_states); rows sum to one.

        Multi-label paper, equation 14.
        """
        check_is_fitted(self, "components_")
        return posteriors(self._block(X), self._log_topics(), np.log(self.weights_))[0]

    def _log_topics(self) -> np.ndarray:
        """Return the logarithms that documents are scored with, (d, k)."""
        frequency = self.document_frequency_.astype(np.float64)
        total = float(np.sum(frequency + 0.5))
        topics = self.components_.T
        logs = np.empty(topics.shape, topics.dtype)
        for start in range(0, len(topics), SLAB_ROWS):
            rows = slice(start, start + SLAB_ROWS)
            logs[rows] = smoothed_logs(topics[rows], frequency[rows], total, self.smoothing)
        return logs

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
        for name in _STATES:
            if hasattr(self, name):
                # States are columns on disk, as they are computed: a row a word or label.
                arrays[f"states/{name.rstrip('_')}"] = getattr(self, name).T
        if self.scorer_.basis is not None:
            arrays["basis"] = self.scorer_.basis
        heads = []
        for name, head in self.scorer_.heads:
            if isinstance(head, StateHead):
                # Its arrays follow from the states.
                head = replace(head, log_topics=None, log_weights=None, label_states=None, ranked=None)
            heads.append(
                {"name": name, "kind": type(head).__name__, "fields": pack(head, f"heads/{name}", arrays)}
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
            "spent": self.spent_,
            "fit_seconds": self.fit_seconds_,
        }
        save_model(path, record, arrays, self.vocabulary_, self.label_names_, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MultiLabelMoM:
        """Read a model; UsageError if there is none, StoreError if it is damaged."""
        record = load_record_of(path, cls.__name__)
        with whole_description(path):
            return cls._from_record(path, record)

    @classmethod
    def _from_record(cls, path: str | os.PathLike[str], record: dict[str, Any]) -> MultiLabelMoM:
        model = cls(**record["parameters"])
        model.vocabulary_, model.label_names_ = load_names(path, record)
        d = len(model.vocabulary_)
        sizes = {"d": d, "d1": d + 1, "m": len(model.label_names_)}
        arrays = load_arrays(path, record, _layout(record), sizes)
        model.idf_ = arrays["idf"]
        model.label_frequency_ = arrays["label_frequency"]
        model.document_frequency_ = arrays["document_frequency"]
        model.n_features_in_ = len(model.idf_)
        model.n_documents_ = record["n_documents"]
        model.settings_ = record["settings"]
        model.diagnostics_, model.selection_ = record["diagnostics"], record["selection"]
        model.timings_, model.fit_seconds_ = record["timings"], record["fit_seconds"]
        model.spent_ = record["spent"]
        for name, value in arrays.items():
            if name.startswith("states/"):
                setattr(model, name.removeprefix("states/") + "_", value.T)
        model.basis_ = arrays.get("basis")
        heads = tuple((entry["name"], model._unpacked(entry, arrays)) for entry in record["heads"])
        weights = tuple(map(float, record["head_weights"]))
        if not heads or len(weights) != len(heads) or not all(map(math.isfinite, weights)):
            raise ValueError(f"expected a finite weight for each of {len(heads)} heads, got {weights}")
        model.scorer_ = Scorer(
            len(model.label_names_), model.idf_, heads, weights, model.basis_, model._label_factor()
        )
        return model

    def _unpacked(self, entry: dict[str, Any], arrays: dict[str, np.ndarray]) -> Head:
        """Rebuild a head from its record."""
        head: Head = unpack(_KINDS[entry["kind"]][0], entry["fields"], f"heads/{entry['name']}", arrays)
        if isinstance(head, StateHead):
            labels = (self.label_moments_ if entry["name"] == "moment" else self.label_components_).T
            return replace(
                head, log_topics=self._log_topics(), log_weights=np.log(self.weights_), label_states=labels,
                ranked=rank_labels(labels),
            )  # fmt: skip
        return head


def _layout(record: Mapping[str, Any]) -> Layout:
    """Return the arrays of the model that a record is of, which follow from its heads."""
    layout = dict(_LAYOUT)
    if "states/components" in record["arrays"]:
        layout |= _STATES_LAYOUT
    for entry in record["heads"]:
        of_head = _KINDS[entry["kind"]][1]
        layout |= {f"heads/{entry['name']}/{name}": array for name, array in of_head.items()}
        if entry["kind"] in ("RidgeHead", "SketchNeighbors"):
            layout["basis"] = Array(("d", "r"))
    return layout
