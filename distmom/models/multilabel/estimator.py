"""The multi-label estimator: latent states, and heads that rank all labels for new documents.

Source: Dasgupta, "Multi-Label Learning with Provable Guarantee" (arXiv:1609.03426) for the states and the
heads ``moment`` and ``posterior``; the other heads are fitted from similar sums over the same shards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from sklearn.utils import ClassifierTags

from distmom.corpus import Corpus, MemoryCorpus
from distmom.corpus.layers import refuse_corpus
from distmom.errors import NumericalError, UsageError
from distmom.linalg import METHODS
from distmom.models.multilabel.assembly import HeadSettings
from distmom.models.multilabel.blend.objective import MEAN, OBJECTIVES, weighs_propensity
from distmom.models.multilabel.blend.reranking import Reranker
from distmom.models.multilabel.classifiers.margin import MAX_LABELS
from distmom.models.multilabel.effort import EFFORTS
from distmom.models.multilabel.folds import held_out
from distmom.models.multilabel.heads.heads import Head, StateHead, rank_labels
from distmom.models.multilabel.heads.regression import WeightLimits
from distmom.models.multilabel.heads.scorer import Scorer
from distmom.models.multilabel.latent.corpus_topics import (
    CorpusTopics,
    default_topics,
    fit_topics,
    topic_model,
    why_no_topics,
)
from distmom.models.multilabel.latent.reader import LatentReader
from distmom.models.multilabel.latent.states import StateSettings, check_size
from distmom.models.multilabel.prediction import LabelPredictor
from distmom.models.multilabel.program import fit_heads
from distmom.models.multilabel.stored import LatentStates, MultiLabelState, scorer_of, state_of
from distmom.models.multilabel.targets import TARGET_TYPE, TARGETS, checked_targets, first_names, label_type
from distmom.models.multilabel.updates.sums import KeptSums, check_kept
from distmom.models.multilabel.updates.updatable import Updatable
from distmom.models.multilabel.variants import HEADS, STATE_HEADS
from distmom.moments.features.tfidf import FEATURES
from distmom.moments.weighting import MOMENTS, WEIGHTINGS, MomentKind
from distmom.ranking import inverse_propensity
from distmom.spectral.capabilities import Capability
from distmom.spectral.estimator import SpectralEstimator, place_parameter, precision_parameter
from distmom.spectral.inputs.documents import corpus_in_memory
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.seeds import Seed, seed_parameter
from distmom.spectral.steps.contracted import power_steps_parameter, third_moment_parameter

#: largest number of states fitted with ``head="auto"``: they describe the corpus, and hardly affect the ranking
AUTO_STATES = 100
#: up to this number of documents the held-out documents are counted before anything runs
FEW_DOCUMENTS = 1000
#: smallest `length_scale`, which is positive
LEAST_LENGTH = 1e-12
#: fitted attributes of latent states
_LATENT = tuple(f"{field.name}_" for field in fields(LatentStates))


class MultiLabelMoM(Updatable, LabelPredictor, LatentReader, SpectralEstimator):
    """Rank labels for documents by moments of words and labels.

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
        Scores all labels of documents.
    diagnostics_ : dict
        Residual, ``sum_pi``, clipped mass, bounds of Theorem 1 and other measurements of the fit.
    selection_ : dict or None
        With ``head="auto"``, the weights chosen and the metrics of each head on held-out documents; else None.
    sums_ : KeptSums or None
        The sums from which the heads were made, with ``keep_sums=True``; else None.
    corpus_topics_ : CorpusTopics or None
        Topics of the corpus with their labels; None without topics. ``diagnostics_["topics_error"]`` then states
        why, if they were requested.
    vocabulary_, label_names_ : list of str
        Names of the words and of the labels.
    classes_ : ndarray of shape (n_labels,)
        The labels: of the type of those given to `fit` if these were one per document, else names (object).
    n_features_in_ : int
        Number of words.

    Examples
    --------
    >>> texts = ["salmon and herring", "herring nets", "oak and pine", "oak leaves"] * 15
    >>> subjects = [["fish"], ["fish"], ["trees"], ["trees"]] * 15
    >>> model = MultiLabelMoM(2).fit(texts, subjects)
    >>> model.predict(["smoked herring", "an old oak"])
    [['fish'], ['trees']]

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> topic = rng.integers(0, 2, 400)
    >>> X = (rng.random((400, 20)) < np.where(np.arange(20) % 2 == topic[:, None], 0.5, 0.05)).astype(int)
    >>> Y = np.stack([topic == 0, topic == 1], axis=1).astype(int)
    >>> model = MultiLabelMoM(2, head="posterior").fit(X, Y)
    >>> bool((model.predict_top(X, 1)[0].ravel() == topic).mean() > 0.95)
    True
    """

    State = MultiLabelState
    capabilities = frozenset({Capability.DOCUMENTS, Capability.LABELS, Capability.TOPICS})
    shown = (
        "features", "n_states", "third_moment", "residual", "sum_pi", "off_diagonal_share", "mean_log_likelihood",
        "n_usable_eigenvalues",
    )  # fmt: skip

    n_components: int = parameter(
        "Number of latent states of the heads moment and posterior; rank of the sketch of the other heads, "
        "which fit at most 100 states.", default=100, least=1, kw_only=False,
    )  # fmt: skip
    head: str = parameter(
        "How labels are scored. auto chooses a blend of heads on held-out documents of the corpus.",
        default="auto", choices=HEADS,
    )  # fmt: skip
    effort: str = parameter(
        "How much is fitted. low leaves out latent states, topics and all but one cost of the head svm, and holds "
        "out fewer documents. high also tries neighbours in the sketch of small corpora, makes one more residual "
        "pass, fits svm more exactly, and chooses the blend on more held-out documents of small corpora.",
        default="normal", choices=tuple(EFFORTS),
    )  # fmt: skip
    objective: str = parameter(
        "Metric for which head=auto chooses the blend: the mean of P@1, P@3, P@5 and nDCG@5 (and of AUC with at "
        "most 1,000 labels), or one metric. For PSP@k, labels are ranked by probability times a power of the "
        "inverse propensity, whose exponent is chosen too.", default=MEAN, choices=OBJECTIVES,
    )  # fmt: skip
    features: str = parameter(
        "Features of all heads but moment and posterior: tf-idf of the values of words (tfidf), or the values as "
        "they are (given), scaled to unit length. auto is tfidf, unless the values grow with idf, as tf-idf "
        "weights do.",
        default="auto", choices=FEATURES,
    )  # fmt: skip
    moments: str = parameter(
        "Pairs and triples of word positions with (paper) or without (distinct) a position paired with "
        "itself.", default="paper", choices=MOMENTS,
    )  # fmt: skip
    weighting: str = parameter(
        "Weight of each document in the moments (see distmom.moments.weighting).",
        default="pooled", choices=tuple(WEIGHTINGS),
    )  # fmt: skip
    length_scale: float = parameter(
        "Length, in words, of documents with a quarter of the largest weight. Used with weighting=length.",
        default=100.0, least=LEAST_LENGTH,
    )  # fmt: skip
    decomposition: str = parameter(
        "Method that decomposes the third moment.", default="joint", choices=tuple(METHODS)
    )
    third_moment: str = third_moment_parameter()
    power_steps: int = power_steps_parameter()
    n_oversamples: int | None = parameter(
        "Columns of the sketch beyond its rank.",
        default=None, kind=int, least=0, none=True,
        unset="10, or n_components with distinct positions, whose sampled second moment is indefinite",
    )  # fmt: skip
    n_power_iter: int | None = parameter(
        "Number of power passes of the word sketch.",
        default=None, kind=int, least=0, none=True, unset="2, or 6 with distinct positions",
    )  # fmt: skip
    n_topics: int | None = parameter(
        "Number of topics that describe the corpus, in addition to the latent states; 0 fits none.",
        default=None, kind=int, least=0, none=True,
        unset="with head=auto a quarter of the square root of the number of documents, at most 50, or none for "
        "fewer than 400 documents or more than 500,000 words; none with other heads",
    )  # fmt: skip
    n_residual_passes: int | None = parameter(
        "Number of residual passes of the linear head.",
        default=None, kind=int, least=0, none=True, unset="2, or 1 with head=auto; one more with effort=high",
    )  # fmt: skip
    weights_per_word: int | None = parameter(
        "Largest number of weights of a word in each of the heads linear, centroid and svm, which keep those of "
        "largest magnitude. Fewer make models smaller and scoring faster.",
        default=None, kind=int, least=1, none=True,
        unset="300 while the head linear is fitted, and then all that are not negligible; linear and "
        "centroid have at most about 300 million in total",
    )  # fmt: skip
    weights_per_label: int | None = parameter(
        "Largest number of weights of a label in each of the heads linear, centroid and svm.",
        default=None, kind=int, least=1, none=True, unset="all that are not negligible",
    )  # fmt: skip
    smoothing: float = parameter(
        "Share of the unigram distribution that is mixed into the states to score documents.",
        default=0.1, least=0, below=1,
    )  # fmt: skip
    propensity: float = parameter(
        "Exponent of the inverse propensity of labels that multiplies the final score; 0 has no effect. "
        "objective=PSP@k chooses it.",
        default=0.0,
    )  # fmt: skip
    precision: str = precision_parameter()
    decompose_on: str = place_parameter()
    force: bool = parameter("Allow more states than the rule N >= n_components^2 does.", default=False)
    keep_sums: bool = parameter(
        "Keep the sums that the heads are made from, so that documents can be added and removed later.",
        default=False,
    )
    random_state: Seed = seed_parameter()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = tags.target_tags.multi_output = True
        if hasattr(self, "scorer_") and self._has_one_label:
            # Not before the fit: scikit-learn refuses lists of labels for unfitted classifiers.
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        return tags

    def fit(self, X: Any, y: Any = None) -> MultiLabelMoM:
        """Fit the model to documents in memory.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            Texts, which are tokenized with the defaults of `distmom.corpus.text_corpus`, or counts or weights, not
            negative.
        y : list of lists of str, list of str, list or array of int, or array, sparse matrix or table of shape \
                (n_documents, n_labels)
            Names of the labels of every document, the name or number of its only label, or a matrix that is 1
            where a label is set; the names of the columns of a table are those of the labels. Required.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If a parameter is invalid, or ``y`` is missing or neither names nor a matrix.
        InputError
            If a value is invalid.
        NumericalError
            If the moments carry fewer states than requested and the head needs the states.
        """
        return self._fit(X, y)

    def _fit(self, X: Any, y: Any, classes: Sequence[Any] | None = None) -> MultiLabelMoM:
        """Fit the model to documents in memory, with labels that documents may have; see `partial_fit`."""
        refuse_corpus(X)
        if y is None:
            raise UsageError("requires y to be passed, but the target y is None: MultiLabelMoM needs labels")
        targets, form = checked_targets(y)
        corpus = corpus_in_memory(X, targets, type(self).__name__, first_names(targets, form, classes))
        corpus.settings[TARGETS] = form
        if form != "lists":
            corpus.settings[TARGET_TYPE] = label_type(y)
        return self.fit_corpus(corpus)

    def check(self, corpus: Corpus | MemoryCorpus) -> None:
        """Check that the parameters are valid and suit a corpus; else a UsageError."""
        super().check(corpus)
        # The settings check combinations of parameters.
        self.state_settings(1)
        if corpus.n_labels == 0 or not np.asarray(corpus.label_frequency).any():
            raise UsageError("the corpus has no labels: a multi-label model needs labels")
        if self.n_components > corpus.n_words:
            raise UsageError(
                f"n_components={self.n_components} is more than the {corpus.n_words} words of the vocabulary"
            )
        if self.head == "svm" and corpus.n_labels > MAX_LABELS:
            raise UsageError(
                f"head='svm' fits a classifier to all documents for every label: expected at most {MAX_LABELS} "
                f"labels, got {corpus.n_labels}; use head='auto' or 'linear'"
            )
        if self.objective != MEAN and self.head != "auto":
            raise UsageError(
                f"objective={self.objective!r}: expected head='auto', which chooses a blend, got "
                f"head={self.head!r}"
            )
        if weighs_propensity(self.objective) and self.propensity != 0.0:
            raise UsageError(
                f"objective={self.objective!r}: expected propensity=0, as the exponent is chosen, got "
                f"propensity={self.propensity:g}"
            )
        if self.head in STATE_HEADS:
            if self.keep_sums:
                raise UsageError(
                    f"keep_sums: expected False with head={self.head!r}, whose latent states are not updated"
                )
            check_size(corpus.n_documents, self.n_components, self.force)
        if self.head == "auto" and corpus.n_documents <= FEW_DOCUMENTS:
            selection = held_out(corpus, self._seed, EFFORTS[self.effort])
            n_held_out = int(selection.mask(0, corpus.n_documents).sum())
            if n_held_out in (0, corpus.n_documents):
                raise UsageError(
                    f"head='auto': expected enough documents to hold some out, got {corpus.n_documents}; "
                    "specify a head, such as 'ridge'"
                )

    def program(self, run: Run) -> MultiLabelState:
        """Fit the model by the passes of a run and return its state."""
        fitted = fit_heads(run, self.head_settings(run.corpus.n_documents))
        topics = self._fit_topics(run.part("topics"))
        state: MultiLabelState = run.rows(state_of, fitted, topics, out=unknown())
        return state

    def _fit_topics(self, run: Run) -> CorpusTopics | NumericalError | str | None:
        """Return the topics of the corpus, the reason why there are none, or None if none are requested."""
        n_topics = self.n_topics
        if n_topics is None and not EFFORTS[self.effort].has_topics:
            return (
                f"effort={self.effort!r} fits no topics; n_topics requests them"
                if self.head == "auto"
                else None
            )
        if n_topics is None:
            n_topics = default_topics(run.corpus) if self.head == "auto" else 0
            if self.head == "auto" and not n_topics:
                n_documents, n_words = run.corpus.n_documents, run.corpus.n_words
                return (
                    f"by default, a corpus of {n_documents} documents and {n_words} words gets no topics; "
                    "n_topics requests them"
                )
        if not n_topics:
            return None
        model = topic_model(n_topics, self._seed, self.precision, self.decompose_on)
        return why_no_topics(run, model) or run.attempt(
            fit_topics, model, self.n_topics is not None, required=False
        )

    def _keep(self, state: MultiLabelState) -> None:
        super()._keep(state)
        # An earlier fit of the same model may have had latent states.
        for name in _LATENT:
            vars(self).pop(name, None)
        self.corpus_topics_: CorpusTopics | None = state.topics
        if state.sums is not None:
            check_kept(state.sums, state.basis)
        self.sums_: KeptSums | None = state.sums
        self.reranker_: Reranker | None = state.reranker
        if state.states is not None:
            super()._keep(state.states)
        heads = tuple((name, self._completed(name, head)) for name, head in state.heads)
        self.scorer_: Scorer = scorer_of(state, heads, self.n_documents_, self._label_factor())

    def _completed(self, name: str, head: Head) -> Head:
        """Return a head with the arrays that are derived from the states."""
        if not isinstance(head, StateHead) or head.log_topics is not None:
            return head
        moments = self.label_moments_ if name == "moment" else self.label_components_
        labels = np.asarray(moments).T
        return replace(
            head, log_topics=self._log_topics(), log_weights=np.log(self.weights_), label_states=labels,
            ranked=rank_labels(labels),
        )  # fmt: skip

    def _state(self) -> MultiLabelState:
        latent = None
        if hasattr(self, "components_"):
            moments = self.label_moments_
            latent = LatentStates(
                self.components_.T, self.weights_, self.label_components_.T, self.spectrum_,
                None if moments is None else moments.T,
            )  # fmt: skip
        derived: dict[str, Any] = dict.fromkeys(("log_topics", "log_weights", "label_states", "ranked"))
        return MultiLabelState(
            idf=self.idf_,
            label_frequency=self.label_frequency_,
            document_frequency=self.document_frequency_,
            basis=self.basis_,
            states=latent,
            heads=tuple(
                (name, replace(head, **derived) if isinstance(head, StateHead) else head)
                for name, head in self.scorer_.heads
            ),
            head_weights=list(map(float, self.head_weights_)),
            diagnostics=self.diagnostics_,
            selection=self.selection_,
            stack=self.stack_,
            reranker=self.reranker_,
            topics=self.corpus_topics_,
            sums=self.sums_,
        )

    def _sizes(self) -> dict[str, int]:
        d = super()._sizes()["d"]
        return {"d": d, "d1": d + 1, "m": len(self.label_names_)}

    def _label_factor(self) -> np.ndarray | None:
        chosen = (self.selection_ or {}).get("exponent")
        exponent = self.as_fitted().propensity if chosen is None else float(chosen)
        if not math.isfinite(exponent):
            raise ValueError(f"expected a finite exponent of the inverse propensity, got {exponent}")
        if exponent == 0.0:
            return None
        inverse = inverse_propensity(self.label_frequency_, max(self.n_documents_, 3))
        return np.asarray(inverse**exponent, np.float32)

    def can(self, capability: Capability) -> bool:
        """Return whether this fitted model can do something: it may lack both topics and latent states."""
        has_topics = self.corpus_topics_ is not None or hasattr(self, "components_")
        return super().can(capability) and (capability != Capability.TOPICS or has_topics)

    def summary(self) -> dict[str, Any]:
        found, diagnostics = super().summary(), self.diagnostics_
        if "clipped_words" in diagnostics:
            found["clipped_words"] = sum(diagnostics["clipped_words"]) / max(
                1, len(diagnostics["clipped_words"])
            )
        if bounds := dict(diagnostics.get("bounds", {})):
            found[f"theorem_1_bounds_{1 - bounds.pop('delta'):.0%}"] = bounds
        if self.corpus_topics_ is not None:
            # The last one is the background.
            found["n_topics"] = len(self.corpus_topics_.weights) - 1
        if self.selection_ is not None:
            found["chosen"] = {name: round(w, 4) for name, w in self.selection_["weights"].items()}
            if "expected" in self.selection_:
                found["expected"] = self.selection_["expected"]
            found["held_out"] = {
                name: {key: round(x, 4) for key, x in scores.items()}
                for name, scores in self.selection_["held_out"].items()
            }
        return found

    # States

    def n_states_for(self, n_documents: int) -> int:
        """Return the number of latent states that are fitted to ``n_documents`` documents."""
        if self.head in STATE_HEADS:
            return self.n_components
        return max(1, min(self.n_components, AUTO_STATES, math.isqrt(n_documents)))

    def residual_passes(self) -> int:
        """Return the number of residual passes of the linear head."""
        if self.n_residual_passes is None:
            return EFFORTS[self.effort].n_residual_passes + (self.head != "auto")
        return self.n_residual_passes

    def weight_limits(self) -> WeightLimits:
        """Return the limits on the weights of the sparse heads."""
        return WeightLimits(self.weights_per_word, self.weights_per_label)

    def head_settings(self, n_documents: int) -> HeadSettings:
        """Return the settings with which the heads are fitted to ``n_documents`` documents."""
        return HeadSettings(
            self.head, self.n_components, self.residual_passes(),
            self.state_settings(self.n_states_for(n_documents)), self.features, self._seed,
            self.objective, self.weight_limits(), EFFORTS[self.effort], self.keep_sums,
        )  # fmt: skip

    def state_settings(self, k: int) -> StateSettings:
        """Return the settings with which k latent states are fitted."""
        kind = MomentKind(self.moments, self.weighting, binary=True, length_scale=self.length_scale)
        needed = self.head in STATE_HEADS
        return StateSettings(
            n_states=k,
            kind=kind,
            n_oversamples=(k if kind.distinct else 10) if self.n_oversamples is None else self.n_oversamples,
            n_power_iter=(6 if kind.distinct else 2) if self.n_power_iter is None else self.n_power_iter,
            decomposition=self.decomposition,
            third_moment=self.third_moment,
            power_steps=self.power_steps,
            smoothing=self.smoothing,
            seed=self._seed,
            single_precision=self.precision == "single",
            lower=not needed or self.force,
            decompose_on=self.decompose_on,
            cross_moment=self.head != "posterior",
        )
