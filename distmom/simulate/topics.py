"""Documents with mixtures of topics: samples, and for Dirichlet-distributed shares small exact populations.

Shares ``theta ~ Dir(alpha)`` are drawn for each document, and a word from ``phi theta`` for each position.
The moments of theta are ``E prod theta_i^{n_i} = prod alpha_i^(n_i) / alpha0^(sum n_i)`` with rising
factorials (ECA paper, lemma B.1); they determine the probabilities of documents.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

from distmom.errors import UsageError

_MOST_PRODUCTS = 50_000_000


class TopicPopulation:
    """The population of documents for given topics.

    Parameters
    ----------
    alpha : array_like of shape (k,)
        Dirichlet parameters.
    topics : array_like of shape (d, k)
        Word distributions as columns.

    Raises
    ------
    UsageError
        If shapes do not match, a parameter is not positive, or a column is not a distribution.
    """

    def __init__(self, alpha: Sequence[float] | np.ndarray, topics: np.ndarray) -> None:
        self.alpha: np.ndarray = np.asarray(alpha, np.float64)
        self.topics: np.ndarray = np.asarray(topics, np.float64)
        if self.topics.ndim != 2 or self.alpha.shape != self.topics.shape[1:]:
            raise UsageError(f"alpha has shape {self.alpha.shape}, but topics has shape {self.topics.shape}")
        if not self.alpha.size or not ((self.alpha > 0.0) & np.isfinite(self.alpha)).all():
            raise UsageError(f"alpha: expected positive finite numbers, got {self.alpha.tolist()}")
        self.topics = _distributions(self.topics)

    @property
    def n_words(self) -> int:
        """Size of the vocabulary d."""
        return len(self.topics)

    def share_moment(self, exponents: Sequence[int]) -> float:
        """Return ``E prod_i theta_i^{n_i}``."""
        above = math.prod(
            math.prod(a + j for j in range(n)) for a, n in zip(self.alpha, exponents, strict=True)
        )
        return float(above / math.prod(float(self.alpha.sum()) + j for j in range(sum(exponents))))

    def enumerate(self, length: int) -> tuple[csr_array, np.ndarray]:
        """Return all documents of a given length and their probabilities.

        Returns
        -------
        counts : csr_array of shape (n, d), int64
        probabilities : ndarray of shape (n,), float64
        """
        d, k = self.topics.shape
        documents = np.array(list(itertools.combinations_with_replacement(range(d), length)), np.int64)
        documents = documents.reshape(-1, length)
        if len(documents) * k**length > _MOST_PRODUCTS:
            raise UsageError(
                f"{len(documents)} documents of {length} words and {k} topics are too many to enumerate"
            )
        counts = np.zeros((len(documents), d), np.int64)
        np.add.at(counts, (np.arange(len(documents))[:, None], documents), 1)
        probabilities = np.zeros(len(documents))
        for chosen in itertools.product(range(k), repeat=length):
            product = np.ones(len(documents))
            for position, topic in enumerate(chosen):
                product *= self.topics[documents[:, position], topic]
            probabilities += product * self.share_moment(np.bincount(chosen, minlength=k).tolist())
        same = np.array([math.prod(map(math.factorial, row)) for row in counts.tolist()])
        return csr_array(counts), probabilities * (math.factorial(length) / same)

    def sample(
        self, n_documents: int, lengths: int | np.ndarray, seed: int = 0
    ) -> tuple[csr_array, np.ndarray]:
        """Draw documents.

        Parameters
        ----------
        n_documents : int
        lengths : int or ndarray of shape (n_documents,)
            Number of tokens in each document.
        seed : int, default=0

        Returns
        -------
        counts : csr_array of shape (n_documents, d), int64
        shares : ndarray of shape (n_documents, k)
        """
        rng = np.random.default_rng(seed)
        sizes = np.broadcast_to(np.asarray(lengths, np.int64), (n_documents,))
        shares = rng.dirichlet(self.alpha, n_documents)
        k = len(self.alpha)
        by_topic = rng.multinomial(sizes, shares)
        owners, words = [], []
        for topic in range(k):
            owner = np.repeat(np.arange(n_documents), by_topic[:, topic])
            owners.append(owner)
            edges = np.cumsum(self.topics[:, topic])
            drawn = np.searchsorted(edges / edges[-1], rng.random(len(owner)), side="right")
            words.append(np.minimum(drawn, self.n_words - 1))
        rows, columns = np.concatenate(owners), np.concatenate(words)
        counts = csr_array((np.ones(len(rows), np.int64), (rows, columns)), shape=(n_documents, self.n_words))
        counts.sum_duplicates()
        return counts, shares


class CorrelatedTopicPopulation:
    """Documents whose shares of topics are logistic-normal, with any correlations.

    ``theta`` is proportional to ``exp(M z)`` for a vector z of independent standard normal variables, so that the
    logarithms of ratios of shares are normal: a Dirichlet distribution has neither their correlations nor their
    form.

    Parameters
    ----------
    mixing : array_like of shape (k, k)
        M.
    topics : array_like of shape (d, k)
        Word distributions as columns.

    Raises
    ------
    UsageError
        If shapes do not match, or a column is not a distribution.
    """

    def __init__(self, mixing: np.ndarray, topics: np.ndarray) -> None:
        self.mixing: np.ndarray = np.asarray(mixing, np.float64)
        self.topics: np.ndarray = _distributions(topics)
        k = self.topics.shape[1]
        if self.mixing.shape != (k, k):
            raise UsageError(f"mixing: expected shape {(k, k)}, got {self.mixing.shape}")

    def sample(
        self, n_documents: int, lengths: int | np.ndarray, seed: int | np.random.Generator = 0
    ) -> tuple[csr_array, np.ndarray]:
        """Draw documents.

        Parameters
        ----------
        n_documents : int
        lengths : int or ndarray of shape (n_documents,)
            Number of tokens in each document.
        seed : int or Generator, default=0

        Returns
        -------
        counts : csr_array of shape (n_documents, d), int64
        shares : ndarray of shape (n_documents, k)
        """
        rng = np.random.default_rng(seed)
        logs = rng.standard_normal((n_documents, len(self.mixing))) @ self.mixing.T
        largest = logs.max(axis=1, keepdims=True)
        # Shares do not depend on what is subtracted from all logarithms, so that no sum overflows or vanishes.
        amounts = np.exp(logs - (largest - np.clip(largest, -600.0, 600.0)))
        shares = amounts / amounts.sum(axis=1, keepdims=True)
        return csr_array(rng.multinomial(lengths, shares @ self.topics.T)), shares


def label_words(
    topics: np.ndarray, *, drawn: bool = False, seed: int | np.random.Generator = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return words that are more probable in one topic than in any other: side information for its search.

    The margin of a word for a topic is by how much it is more probable there than in any other topic (Ray,
    Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models", section 3.2). Topics without a word of
    positive margin have no label.

    Parameters
    ----------
    topics : ndarray of shape (d, k)
        Word probabilities as columns; words with zeros everywhere are no labels.
    drawn : bool, default=False
        Whether labels are drawn with the probabilities of the topic among the words of positive margin; by
        default, they are the words of the largest margin.
    seed : int or Generator, default=0

    Returns
    -------
    labelled : ndarray of shape (n_labelled,), int64
        Numbers of the topics that have a label.
    words : ndarray of shape (n_labelled,), int64
        Their labels.
    """
    rows = np.asarray(topics, np.float64).T
    others = [np.delete(rows, i, axis=0).max(axis=0, initial=0.0) for i in range(len(rows))]
    margins = rows - np.array(others)
    labelled = np.flatnonzero(margins.max(axis=1) > 0.0)
    if not drawn:
        return labelled, margins[labelled].argmax(axis=1)
    rng = np.random.default_rng(seed)
    weights = np.where(margins > 0.0, rows, 0.0)[labelled]
    return labelled, np.array([rng.choice(len(each), p=each / each.sum()) for each in weights], np.int64)


def _distributions(topics: np.ndarray) -> np.ndarray:
    """Return a matrix whose columns are distributions; UsageError for others."""
    topics = np.asarray(topics, np.float64)
    if topics.ndim != 2 or topics.min() < 0.0 or not np.allclose(topics.sum(axis=0), 1.0, atol=1e-9):
        raise UsageError("topics: expected non-negative columns that sum to 1")
    return topics
