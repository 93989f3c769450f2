"""Fitted topic models: their state, and the methods that use it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.engine import Engine, StoredColumns, open_engine
from distmom.errors import InputError, UsageError
from distmom.models.topics.base import TopicEstimator
from distmom.models.topics.refine import Completion, complete
from distmom.models.topics.shares import DocumentReader, least_squares_matrix
from distmom.spectral.bases import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from distmom.spectral.inputs.checks import check_counts, check_size
from distmom.spectral.inputs.documents import documents_in_memory
from distmom.spectral.program.execute import execute
from distmom.spectral.saved.fields import array, value

METHODS_OF_SHARES = ("vb", "fast")
#: exponent of a word's frequency in the corpus that divides its probability when the words of a topic are ranked
LIFT_PARTS = {"probability": 0.0, "relevance": 0.4, "lift": 1.0}
#: least probability passed to pyLDAvis, which takes logarithms
_LEAST = 1e-12


@dataclass(frozen=True, kw_only=True)
class TopicState:
    """The state of a fitted topic model, in the shapes stored on disk.

    Attributes
    ----------
    topics : ndarray of shape (d, k)
        Word probabilities.
    weights, alpha : ndarray of shape (k,)
    unigram : ndarray of shape (d,)
    topics_error : ndarray of shape (d, k) or None
        Standard errors of a fit to moments kept in parts; NaN for topics found in too few of the parts.
    weights_error : ndarray of shape (k,) or None
    diagnostics : dict
    selection : dict or None
    """

    topics: np.ndarray = array("d", "k", least=0.0, attribute="components_", transposed=True)
    weights: np.ndarray = array("k", least=0.0)
    alpha: np.ndarray = array("k", least=0.0)
    unigram: np.ndarray = array("d", least=0.0)
    topics_error: np.ndarray | None = array(
        "d", "k", finite=False, optional=True, attribute="components_error_", transposed=True
    )
    weights_error: np.ndarray | None = array("k", finite=False, optional=True)
    diagnostics: dict[str, Any] = value()
    selection: dict[str, Any] | None = value()


class TopicAttributes:
    """Types of the attributes of fitted topic models (see `SpectralLDA`)."""

    refine: str
    components_: np.ndarray
    weights_: np.ndarray
    alpha_: np.ndarray
    unigram_: np.ndarray
    components_error_: np.ndarray | None
    weights_error_: np.ndarray | None
    n_components_: int
    init_: str


class FittedTopics(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TopicAttributes, TopicEstimator):
    """Base class of topic models with the methods that use the topics; see `SpectralLDA` for attributes."""

    State = TopicState
    shown = (
        "third_moment", "residual", "off_diagonal_share", "n_usable_eigenvalues", "n_moment_words", "refine",
    )  # fmt: skip

    def _keep(self, state: TopicState) -> None:
        super()._keep(state)
        self.n_components_, self.init_ = len(state.weights), str(state.diagnostics["init"])

    def summary(self) -> dict[str, Any]:
        found = super().summary()
        if self.selection_ is not None:
            found["chosen"] = self.selection_["init"]
            found["held_out_perplexity"] = {
                name: round(value, 1) for name, value in self.selection_["perplexity"].items()
            }
        return found

    def transform(self, X: Any, method: str = "vb") -> np.ndarray:
        """Return the shares of the topics in documents.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            Texts, for a model that was fitted to texts, or counts, not negative. Weights are accepted too: a word
            of weight 0.5 counts as half an occurrence.
        method : {"vb", "fast"}, default "vb"
            Variational Bayes, or least squares in one sparse product. Models of documents with a single topic each
            return the probabilities of the topics in either case.

        Returns
        -------
        ndarray of shape (n_documents, n_components), float32
            Rows sum to one.

        Raises
        ------
        UsageError
            If the method is unknown, or the number of words differs from that of the fit.
        InputError
            If a value is negative or not finite.
        """
        return self.reader(method).shares(self._block(X))

    def reader(self, method: str = "vb") -> DocumentReader:
        """Return the reader that infers the shares of topics in documents; ``method`` as in `transform`."""
        check_is_fitted(self, "components_")
        if method not in METHODS_OF_SHARES:
            raise UsageError(f"method: expected one of {', '.join(METHODS_OF_SHARES)}, got {method!r}")
        topics = np.ascontiguousarray(self.components_.T, dtype=np.float32)
        if self.refine == "mixture":
            return DocumentReader("mixture", topics, self.weights_, self.unigram_)
        if method == "fast":
            topics = least_squares_matrix(self.components_.T, self.unigram_)
        return DocumentReader(method, topics, self.alpha_, self.unigram_)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the log-likelihood of one half of every document given the other, on average per position.

        The shares of the topics are inferred from a random half of the positions of a document, and predict the
        other half. Higher is better; the perplexity is ``exp(-score)``.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            Texts or counts, as in `transform`, but no weights.
        y : None
            Ignored.

        Raises
        ------
        UsageError
            If the number of words differs from that of the fit.
        InputError
            If a value is not a count, or no document has a word to predict.
        """
        check_is_fitted(self, "components_")
        corpus = documents_in_memory(self, X, 1)
        check_counts(corpus, "score")
        with open_engine(corpus) as engine:
            completion = self.completion(engine)
        if not completion.n_tokens:
            raise InputError("X: expected documents with words to predict, got none")
        return completion.log_likelihood

    def completion(self, engine: Engine, seed: int = 0) -> Completion:
        """Predict one half of every document of the corpus of an engine from the other.

        Parameters
        ----------
        engine : Engine
            Engine over a corpus of counts in the vocabulary of the model.
        seed : int, default 0
            Seed of the division of documents into halves.
        """
        topics = StoredColumns((engine.put(np.asarray(self.components_.T, np.float32)),))
        completing = partial(
            complete, topics=topics, proportions=self.alpha_, unigram=engine.put(self.unigram_[:, None]),
            alpha_sums=(float(self.alpha_.sum()),), mixture=self.refine == "mixture", seed=seed,
        )  # fmt: skip
        return execute(completing, engine)

    def topics(self, n_top: int = 10, by: str = "relevance") -> list[dict[str, Any]]:
        """Return the top words of every topic, topics by descending share of the corpus.

        Parameters
        ----------
        n_top : int, default 10
            Number of words per topic.
        by : {"relevance", "probability", "lift"}, default "relevance"
            Rank words by relevance, 0.6 times the logarithm of ``p(w | topic)`` plus 0.4 times the logarithm of
            the lift; by that probability; or by the lift, ``p(w | topic) / p(w)`` (Sievert and Shirley, "LDAvis",
            2014).

        Returns
        -------
        list of dict
            Keys ``state``, the number of the topic, ``weight``, ``words``, a list of (word, probability), and
            ``labels``, an empty list.
            After `fit_moments` with standard errors also ``weight_error`` and ``word_errors``, None for topics
            found in too few of the parts.

        Raises
        ------
        UsageError
            If ``n_top`` is not a whole number from 0, or ``by`` is unknown.
        """
        check_is_fitted(self, "components_")
        check_size("n_top", n_top)
        part = lift_part(by)
        found = []
        for h in np.argsort(-self.weights_, kind="stable"):
            row = self.components_[h]
            order = top_words(row, self.unigram_, n_top, part)
            words = [(self.vocabulary_[i], float(row[i])) for i in order]
            topic = {"state": int(h), "weight": float(self.weights_[h]), "words": words, "labels": []}
            if self.components_error_ is not None and self.weights_error_ is not None:
                topic["weight_error"] = _known(self.weights_error_[h])
                topic["word_errors"] = [_known(self.components_error_[h, i]) for i in order]
            found.append(topic)
        return found

    def similar_topics(self) -> np.ndarray:
        """Return the similarities of all pairs of topics, (k, k): 1 for equal topics, 0 for disjoint ones.

        The Bhattacharyya coefficient ``sum_w sqrt(p(w | i) p(w | j))``.
        """
        check_is_fitted(self, "components_")
        roots = np.sqrt(self.components_.astype(np.float64))
        return np.asarray(roots @ roots.T)

    def pyldavis_input(self, n_words: int = 20_000) -> dict[str, Any]:
        """Return the arguments of ``pyLDAvis.prepare``, without a pass over the documents.

        One document per topic, weighted by its share, replaces the documents: pyLDAvis uses only the shares of the
        topics. It numbers topics from 1, by descending share.

        Parameters
        ----------
        n_words : int, default 20000
            Largest number of words: the most frequent of those with a positive probability in some topic. pyLDAvis
            is slow with more than a few thousand.

        Returns
        -------
        dict
            For ``pyLDAvis.prepare(**model.pyldavis_input())``.

        Raises
        ------
        UsageError
            If ``n_words`` is not a whole number from 0.
        """
        check_is_fitted(self, "components_")
        check_size("n_words", n_words)
        some = np.flatnonzero(self.components_.max(axis=0) > 0.0)
        kept = np.sort(some[np.argsort(-self.unigram_[some], kind="stable")[:n_words]])
        topics = np.maximum(self.components_[:, kept].astype(np.float64), _LEAST)
        # Arbitrary: the scale of the counts.
        n_positions = 1e6
        return {
            "topic_term_dists": topics / topics.sum(axis=1, keepdims=True),
            "doc_topic_dists": np.eye(len(topics)),
            "doc_lengths": self.weights_ * n_positions,
            "vocab": [self.vocabulary_[i] for i in kept],
            "term_frequency": self.unigram_[kept] * n_positions,
        }


def lift_part(by: str) -> float:
    """Return the share of the lift in the rank of a word; a UsageError for an unknown ranking."""
    if by not in LIFT_PARTS:
        raise UsageError(f"by: expected one of {', '.join(LIFT_PARTS)}, got {by!r}")
    return LIFT_PARTS[by]


def top_words(probabilities: np.ndarray, unigram: np.ndarray, n_top: int, part: float) -> np.ndarray:
    """Return the words of a topic with the highest rank, ``log p(w | topic) - part log p(w)``.

    Parameters
    ----------
    probabilities, unigram : ndarray of shape (d,)
        Probabilities of words in the topic and in the corpus, the latter positive.
    n_top : int
    part : float
        From `lift_part`.

    Returns
    -------
    ndarray of int
        At most ``n_top`` words with a positive probability, by descending rank, ties by smaller number.
    """
    with np.errstate(divide="ignore"):
        rank = np.log(probabilities.astype(np.float64)) - part * np.log(unigram.astype(np.float64))
    order = np.lexsort((np.arange(len(rank)), -rank))[:n_top]
    return np.asarray(order[probabilities[order] > 0])


def _known(error: Any) -> float | None:
    return float(error) if np.isfinite(error) else None
