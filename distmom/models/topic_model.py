"""What all topic models share: the way from a corpus to topics, their use, and their form on disk."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Engine, Selection
from distmom.errors import NumericalError, StoreError, UsageError
from distmom.linalg import METHODS
from distmom.models.artifact import check_target, load_arrays, load_names, load_record, save_model
from distmom.models.base import DECOMPOSE_ON, CorpusEstimator, check_bounds, check_choices
from distmom.models.core import CoreSettings
from distmom.models.inputs import checked_rows
from distmom.models.polish import (
    POLISHES,
    Completion,
    Topics,
    complete,
    polish_topics,
    start_topics,
    with_background,
    word_shares,
)
from distmom.models.reader import DocumentReader, least_squares_matrix
from distmom.models.starts import (
    Start,
    TopicMoments,
    anchor_start,
    check_topics,
    fit_moments,
    moment_words,
    tensor_start,
    topic_settings,
)
from distmom.models.tall import to_columns

logger = logging.getLogger(__name__)

STARTS = ("auto", "tensor", "anchors")
METHODS_OF_SHARES = ("vb", "fast")
#: how much of a word's own frequency is taken out when the words of a topic are ranked
_LIFT_PARTS = {"probability": 0.0, "relevance": 0.4, "lift": 1.0}
#: sums of Dirichlet parameters that ``alpha0="auto"`` tries
ALPHA0S = (1.0, 5.0)
#: documents on which starts are chosen at most, and the largest share of the corpus
HELD_OUT_DOCUMENTS, HELD_OUT_SHARE = 5_000, 0.1
#: documents that a start is polished on before it is chosen, at most
TRIAL_DOCUMENTS = 50_000
#: documents that tell the sum of the Dirichlet parameters where nothing is chosen
ALPHA_DOCUMENTS = 500
#: share of the documents that an anchor word is in at least
ANCHOR_DF = 0.01


class TopicModel(TransformerMixin, CorpusEstimator):  # type: ignore[misc]
    """Base of the topic models; see `SpectralLDA` for parameters and attributes."""

    # What a model does not let the user choose.
    n_components: int
    n_polish: int
    min_df: float
    max_df: float
    max_count: int | None
    scale_words: bool
    weighting: str
    eta: float
    n_oversamples: int | None
    n_power_iter: int
    precision: str
    random_state: int
    background: bool = False
    alpha0: float | str = 0.0
    start: str = "tensor"
    polish: str = "em"
    decomposition: str = "joint"
    decompose_on: str = "client"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any, y: Any = None) -> TopicModel:
        """Fit arrays in memory.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_documents, n_words)
            Counts, not negative.
        y : None
            Ignored.

        Returns
        -------
        self
        """
        return self.fit_corpus(MemoryCorpus(checked_rows(X, 2, type(self).__name__)))

    def check(self, corpus: Corpus | MemoryCorpus) -> None:
        """Refuse parameters that are wrong or do not go with a corpus; UsageError."""
        check_topics(self, corpus, 1 + int(self.background))
        check_choices(
            self,
            {"start": STARTS, "decomposition": METHODS, "polish": POLISHES, "decompose_on": DECOMPOSE_ON},
        )
        check_bounds(self, {"n_polish": 0})
        if not self.eta > 0.0:
            raise UsageError(f"eta: expected more than 0, got {self.eta}")
        for value in self._alpha0s():
            if not (0.0 <= value < math.inf):
                raise UsageError(f"alpha0: expected a number from 0 on, or 'auto', got {value}")

    # How it is fitted

    def _alpha0s(self) -> tuple[float, ...]:
        if self.alpha0 == "auto":
            return ALPHA0S
        try:
            return (float(self.alpha0),)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"alpha0: expected a number from 0 on, or 'auto', got {self.alpha0!r}"
            ) from error

    @property
    def finds_alpha(self) -> bool:
        """No further pass is needed for the parameters that documents are read with."""
        return self.polish == "mixture" or (self.polish == "vb" and self.n_polish > 0)

    def core_settings(self) -> CoreSettings:
        """Return how moments are decomposed."""
        k = self.n_components - int(self.background)
        settings = topic_settings(self, k, "none" if self.start == "anchors" else "full")
        return replace(settings, decomposition=self.decomposition, decompose_on=self.decompose_on)

    def _fit(self, engine: Engine) -> None:
        corpus = engine.corpus
        self.vocabulary_ = list(corpus.vocabulary)
        self.label_names_: list[str] = []
        self.n_features_in_ = corpus.n_words
        self.settings_ = dict(corpus.settings)
        self.n_documents_ = corpus.n_documents
        self.unigram_ = word_shares(corpus)
        self.selection_: dict[str, Any] | None = None
        trials = self.trials()
        held = held_out(corpus, self.random_state) if len(trials) > 1 else None
        rest = None if held is None else replace(held, heldout=False)
        settings = self.core_settings()
        words, numbers = moment_words(engine, settings.n_states, self.min_df, self.max_df, self.scale_words)
        moments = fit_moments(engine, settings, words, rest)
        starts = self._starts(engine, moments, numbers, trials)
        completion = None
        if held is None:
            start, topics = starts[0], start_topics(starts[0].topics, starts[0].proportions)
            left = self.n_polish
        else:
            start, topics, completion = self._choose(engine, starts, held)
            left = self.n_polish_passes(corpus)
        if left:
            topics = polish_topics(engine, topics, self.polish, left, eta=self.eta)
        self.start_ = start.name
        self.diagnostics_ = {
            **start.diagnostics,
            "start": start.name,
            "alpha0": start.alpha0,
            "n_moment_words": words.n_words,
            "log_likelihoods": list(topics.log_likelihoods),
        }
        self.components_ = np.array(to_columns(topics.matrix).T)
        self.weights_ = topics.shares
        self.alpha_ = self._final_alpha(engine, topics, completion)

    def trials(self) -> list[float | None]:
        """Return the starts to be tried: an alpha0 of the tensor, or None for anchor words."""
        tensors: list[float | None] = [] if self.start == "anchors" else list(self._alpha0s())
        return tensors if self.start == "tensor" else [*tensors, None]

    def n_polish_passes(self, corpus: Corpus | MemoryCorpus) -> int:
        """Return the passes of polish over all documents, those in which starts are tried apart."""
        tried_on_all = len(self.trials()) > 1 and corpus.n_documents <= TRIAL_DOCUMENTS
        return max(0, self.n_polish - int(tried_on_all))

    def _starts(
        self, engine: Engine, moments: TopicMoments, numbers: np.ndarray, trials: list[float | None]
    ) -> list[Start]:
        found: list[Start] = []
        errors: list[NumericalError] = []
        for alpha0 in trials:
            try:
                if alpha0 is None:
                    found.append(anchor_start(engine, moments, numbers, self.vocabulary_, ANCHOR_DF))
                else:
                    found.append(tensor_start(engine, moments, numbers, alpha0))
            except NumericalError as error:
                errors.append(error)
        if not found:
            raise errors[0]
        for start in found:
            if len(start.proportions) < moments.settings.n_states:
                logger.warning(
                    "%s: the moments carry %d topics of the %d asked for", start.name, len(start.proportions),
                    moments.settings.n_states,
                )  # fmt: skip
        return [_with_background(engine, start) for start in found] if self.background else found

    def _choose(
        self, engine: Engine, starts: list[Start], held: Selection
    ) -> tuple[Start, Topics, Completion]:
        """Polish every start by one pass and keep the one that completes held-out documents best."""
        n = engine.corpus.n_documents
        trial = replace(held, heldout=False)
        if n > TRIAL_DOCUMENTS:
            trial = Selection(TRIAL_DOCUMENTS / n, heldout=True, seed=held.seed, offset=held.fraction)
        tried: list[tuple[Start, Topics, Completion]] = []
        for start in starts:
            topics = start_topics(start.topics, start.proportions)
            if self.n_polish:
                topics = polish_topics(engine, topics, self.polish, 1, trial, self.eta)
            tried.append((start, topics, complete(engine, topics.matrix, topics.shares, held)))
        best = max(tried, key=lambda t: t[2].log_likelihood)
        self.selection_ = {
            "start": best[0].name,
            "n_held_out": best[2].n_documents,
            "perplexity": {start.name: completion.perplexity for start, _, completion in tried},
        }
        return best

    def _final_alpha(self, engine: Engine, topics: Topics, completion: Completion | None) -> np.ndarray:
        """Return the parameters that new documents are read with."""
        if self.finds_alpha:
            return topics.shares if self.polish == "mixture" else topics.alpha
        shares = np.maximum(topics.shares, 1e-6)
        shares = shares / shares.sum()
        if completion is None:
            n = max(1, engine.corpus.n_documents)
            some = Selection(min(1.0, ALPHA_DOCUMENTS / n), heldout=True, seed=self.random_state)
            completion = complete(engine, topics.matrix, shares, some)
        return np.asarray(completion.alpha.sum() * shares)

    # Using a fitted model

    def transform(self, X: Any, method: str = "vb") -> np.ndarray:
        """Return the shares of the topics in documents.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_documents, n_words)
        method : {"vb", "fast"}
            Variational Bayes, or least squares in one sparse product. A model of one topic a document returns the
            probabilities of the topics in either case.

        Returns
        -------
        ndarray of shape (n_documents, n_components), float32
            Rows sum to one.
        """
        return self.reader(method).shares(self._block(X))

    def reader(self, method: str = "vb") -> DocumentReader:
        """Return what finds the shares of topics in documents."""
        check_is_fitted(self, "components_")
        if method not in METHODS_OF_SHARES:
            raise UsageError(f"method: expected one of {', '.join(METHODS_OF_SHARES)}, got {method!r}")
        topics = np.ascontiguousarray(self.components_.T, dtype=np.float32)
        if self.polish == "mixture":
            return DocumentReader("mixture", topics, self.weights_, self.unigram_)
        if method == "fast":
            topics = least_squares_matrix(self.components_.T, self.unigram_)
        return DocumentReader(method, topics, self.alpha_, self.unigram_)

    def topics(self, n_top: int = 10, by: str = "probability") -> list[dict[str, Any]]:
        """Return the first words of every topic, topics by falling share of the corpus.

        Parameters
        ----------
        n_top : int
        by : {"probability", "relevance", "lift"}
            Rank words by ``p(w | topic)``, by ``p(w | topic) / p(w)``, or by relevance, 0.6 parts of the logarithm
            of the first and 0.4 of the second (Sievert and Shirley, "LDAvis", 2014).

        Returns
        -------
        list of dict
            Keys ``state``, ``weight``, ``words``, a list of (word, probability), and ``labels``, an empty list.
        """
        check_is_fitted(self, "components_")
        if by not in _LIFT_PARTS:
            raise UsageError(f"by: expected one of {', '.join(_LIFT_PARTS)}, got {by!r}")
        part = _LIFT_PARTS[by]
        usual = part * np.log(self.unigram_.astype(np.float64))
        found = []
        for h in np.argsort(-self.weights_, kind="stable"):
            row = self.components_[h]
            with np.errstate(divide="ignore"):
                rank = np.log(row.astype(np.float64)) - usual
            order = np.lexsort((np.arange(len(row)), -rank))[:n_top]
            words = [(self.vocabulary_[i], float(row[i])) for i in order if row[i] > 0]
            found.append({"state": int(h), "weight": float(self.weights_[h]), "words": words, "labels": []})
        return found

    def similar_topics(self) -> np.ndarray:
        """Return the similarity of every two topics, a matrix: 1 for equal ones, 0 for disjoint ones.

        The affinity of Bhattacharyya, ``sum_w sqrt(p(w | i) p(w | j))``.
        """
        check_is_fitted(self, "components_")
        roots = np.sqrt(self.components_.astype(np.float64))
        return np.asarray(roots @ roots.T)

    def pyldavis_input(self, n_words: int = 20_000) -> dict[str, Any]:
        """Return what ``pyLDAvis.prepare`` takes, without going through the documents.

        The shares of the topics in the corpus stand for the documents: pyLDAvis takes nothing else from them.

        Parameters
        ----------
        n_words : int
            The most frequent words, at most; it draws no more than a few thousand well.

        Returns
        -------
        dict
            To be called as ``pyLDAvis.prepare(**model.pyldavis_input())``.
        """
        check_is_fitted(self, "components_")
        kept = np.sort(np.argsort(-self.unigram_, kind="stable")[:n_words])
        topics = self.components_[:, kept].astype(np.float64)
        # Counts of a corpus of this many positions, which is only their scale.
        n_positions = 1e6
        return {
            "topic_term_dists": topics / topics.sum(axis=1, keepdims=True),
            "doc_topic_dists": np.eye(len(topics)),
            "doc_lengths": self.weights_ * n_positions,
            "vocab": [self.vocabulary_[i] for i in kept],
            "term_frequency": self.unigram_[kept] * n_positions,
        }

    # On disk

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model as a directory of arrays and JSON.

        Raises
        ------
        UsageError
            If the path exists, and is not a model or ``overwrite`` is not given.
        """
        check_is_fitted(self, "components_")
        check_target(Path(path).absolute(), overwrite)
        arrays = {
            "topics": self.components_.T,
            "weights": self.weights_,
            "alpha": self.alpha_,
            "unigram": self.unigram_,
        }
        record = {
            "model": type(self).__name__,
            "parameters": self.get_params(),
            "settings": self.settings_,
            "n_documents": self.n_documents_,
            "diagnostics": self.diagnostics_,
            "selection": self.selection_,
            "timings": self.timings_,
            "spent": self.spent_,
            "fit_seconds": self.fit_seconds_,
        }
        save_model(path, record, arrays, self.vocabulary_, [], overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TopicModel:
        """Read a model; UsageError if there is none of this class, StoreError if it is damaged."""
        record = load_record(path)
        if record.get("model") != cls.__name__:
            raise UsageError(f"{path}: a model of class {record.get('model')}, expected {cls.__name__}")
        try:
            arrays = load_arrays(path, record)
            model = cls(**record["parameters"])
            model.vocabulary_, model.label_names_ = load_names(path, record)
            model.components_, model.weights_ = arrays["topics"].T, arrays["weights"]
            model.alpha_, model.unigram_ = arrays["alpha"], arrays["unigram"]
            model.n_features_in_ = len(model.unigram_)
            for name in (
                "settings",
                "n_documents",
                "diagnostics",
                "selection",
                "timings",
                "spent",
                "fit_seconds",
            ):
                setattr(model, name + "_", record[name])
            model.start_ = record["diagnostics"]["start"]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, UsageError):
                raise
            raise StoreError(
                f"{Path(path) / 'model.json'}: not a whole model description: {error!r}"
            ) from error
        return model


def _with_background(engine: Engine, start: Start) -> Start:
    """Return a start with the distribution of all words as one more topic, of half of the corpus."""
    topics = with_background(engine, start.topics)
    return replace(start, topics=topics, proportions=np.append(0.5 * start.proportions, 0.5))


def held_out(corpus: Corpus | MemoryCorpus, seed: int) -> Selection:
    """Return the documents on which starts are chosen."""
    share = min(HELD_OUT_SHARE, HELD_OUT_DOCUMENTS / max(1, corpus.n_documents))
    return Selection(share, heldout=True, seed=seed)
