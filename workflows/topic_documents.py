"""Documents for `benchmark_topics`: read from UCI files or a corpus, or simulated with known topics."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from distmom.corpus import Corpus, ingest
from distmom.simulate.topics import CorrelatedTopicPopulation, TopicPopulation

HELD_OUT_SHARE = 0.2
#: for planted documents: average Dirichlet parameters of topics and of words; the latter decrease with the rank of
#: the word as 1 / (rank + WORD_OFFSET)
TOPIC_ALPHA, WORD_ALPHA, WORD_OFFSET = 0.12, 0.05, 3.0
SHORTEST = 3
#: standard deviation of the logits of misspecified shares, and number of factors that correlate them
LOGIT_SPREAD, N_FACTORS = 2.5, 3
#: sum of the Dirichlet parameters of a document's own word probabilities in a topic: after n words of the
#: topic, the  next one repeats an earlier one with probability n / (n + BURST)
BURST = 100.0
#: shapes of gamma distributed amounts of topics: from very skewed to hardly skewed
AMOUNT_SHAPES = (0.1, 1.0)
#: of documents with correlated shares: sizes, the share of the words of a topic, and the spread of the logits
CORRELATED_WORDS, CORRELATED_TOPICS, CORRELATED_LENGTH, DENSITY, CORRELATED_SPREAD = 300, 8, 60, 0.2, 0.9


@dataclass(frozen=True)
class Data:
    """Training and held-out documents.

    Attributes
    ----------
    name : str
    train, held_out : csr_array of shape (n_documents, n_words), int32
    words : list of str
    truth : ndarray of shape (k, n_planted_words) or None
        Planted topics.
    alpha0 : float or None
        Sum of the Dirichlet parameters, or of those with the same variance; None if unknown.
    kept : ndarray of int
        Columns of the source that are kept.
    """

    name: str
    train: csr_array
    held_out: csr_array
    words: list[str]
    truth: np.ndarray | None
    alpha0: float | None
    kept: np.ndarray

    def sizes(self) -> dict[str, Any]:
        """Return the sizes that are stored with every result."""
        return {
            "n_train": self.train.shape[0],
            "n_held_out": self.held_out.shape[0],
            "n_words": self.train.shape[1],
            "n_tokens": int(self.train.sum()),
        }


def read_uci(docword: Path, vocabulary: str | None) -> tuple[csr_array, list[str]]:
    """Read counts and word names from UCI files."""
    with tempfile.TemporaryDirectory(prefix="topics-") as temporary:
        return read_corpus(ingest(docword, Path(temporary) / "corpus", format="uci", vocabulary=vocabulary))


def read_corpus(corpus: Corpus) -> tuple[csr_array, list[str]]:
    """Read counts and word names of a whole corpus."""
    blocks = [corpus.read_shard(i).words for i in range(len(corpus.shards))]
    return csr_array(vstack(blocks, format="csr")), list(corpus.vocabulary)


def bare_name(docword: Path) -> str:
    """Return the name of the data set in the name of a docword file."""
    return re.sub(r"^docword\.|\.txt(\.\w+)?$", "", docword.name)


def hold_out(
    name: str,
    counts: csr_array,
    words: list[str],
    *,
    seed: int,
    min_df: int,
    truth: np.ndarray | None = None,
    alpha0: float | None = None,
) -> Data:
    """Hold out documents, and keep the words that occur in at least ``min_df`` training documents."""
    n_documents = counts.shape[0]
    order = np.random.default_rng(seed).permutation(n_documents)
    n_train = n_documents - int(HELD_OUT_SHARE * n_documents)
    # Keep the random order, because the order of the source may harm systems that learn online.
    train, held_out = counts[order[:n_train]], counts[order[n_train:]]
    kept = np.flatnonzero(np.bincount(train.indices, minlength=counts.shape[1]) >= min_df)
    train, held_out = (csr_array(rows[:, kept].astype(np.int32)) for rows in (train, held_out))
    return Data(name, train, held_out, [words[i] for i in kept], truth, alpha0, kept)


def plant(
    k: int, n_documents: int, n_words: int, length: int, seed: int, misspecified: bool
) -> tuple[csr_array, np.ndarray, float]:
    """Simulate documents; also return the topics as rows, and the sum of the Dirichlet parameters."""
    rng = np.random.default_rng(seed)
    topics = zipfian(k, n_words, rng)
    proportions = np.arange(1, k + 1) ** -0.5
    alpha = TOPIC_ALPHA * k * proportions / proportions.sum()
    lengths = np.maximum(rng.poisson(length, n_documents), SHORTEST)
    if not misspecified:
        population = TopicPopulation(alpha, topics.T)
        counts, _ = population.sample(n_documents, lengths, seed=int(rng.integers(2**32)))
        return csr_array(counts), topics, float(alpha.sum())
    factors = np.hstack([rng.standard_normal((k, N_FACTORS)), np.eye(k)])
    factors /= np.linalg.norm(factors, axis=1, keepdims=True)
    logits = np.log(alpha) + LOGIT_SPREAD * rng.standard_normal((n_documents, factors.shape[1])) @ factors.T
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    # The variances of a Dirichlet distribution sum to this numerator divided by alpha0 + 1.
    alpha0 = (1.0 - (shares.mean(axis=0) ** 2).sum()) / shares.var(axis=0).sum() - 1.0
    return bursty(shares, topics, lengths, rng), topics, float(alpha0)


def zipfian(k: int, n_words: int, rng: np.random.Generator) -> np.ndarray:
    """Draw topics as rows, of words whose probabilities fall with their ranks."""
    law = 1.0 / (np.arange(n_words) + WORD_OFFSET)
    return rng.dirichlet(WORD_ALPHA * n_words * law / law.sum(), k)


def plant_amounts(
    k: int, n_documents: int, n_words: int, length: int, seed: int
) -> tuple[csr_array, np.ndarray]:
    """Simulate Poisson counts for independent amounts of topics; also return the topics as rows.

    Amounts are gamma distributed and have the same mean. Their shapes differ, so that shares are not Dirichlet
    distributed and lengths vary freely around ``length``.
    """
    rng = np.random.default_rng(seed)
    topics, shapes = zipfian(k, n_words, rng), np.geomspace(*AMOUNT_SHAPES, k)
    amounts = rng.gamma(shapes, length / (k * shapes), (n_documents, k))
    return csr_array(rng.poisson(amounts @ topics)), topics


def plant_present(
    k: int, n_documents: int, n_words: int, length: int, seed: int
) -> tuple[csr_array, np.ndarray]:
    """Simulate Poisson counts of documents with each topic, or not, by chance; also return the topics as rows.

    Every document has each topic with probability one half, always in the same amount: amounts are not skewed.
    """
    rng = np.random.default_rng(seed)
    topics = zipfian(k, n_words, rng)
    amounts = 2.0 * length / k * (rng.random((n_documents, k)) < 0.5)
    return csr_array(rng.poisson(amounts @ topics)), topics


def plant_correlated(n_documents: int, seed: int) -> tuple[csr_array, np.ndarray]:
    """Simulate documents of sparse topics with correlated shares; also return the topics as rows."""
    rng = np.random.default_rng(seed)
    d, k = CORRELATED_WORDS, CORRELATED_TOPICS
    topics = (rng.random((d, k)) < DENSITY) * rng.gamma(1.0, 1.0, (d, k))
    empty = np.flatnonzero(topics.max(axis=1) == 0.0)
    topics[empty, rng.integers(0, k, len(empty))] = rng.gamma(1.0, 1.0, len(empty))
    topics /= topics.sum(axis=0)
    population = CorrelatedTopicPopulation(rng.normal(0.0, CORRELATED_SPREAD, (k, k)), topics)
    return population.sample(n_documents, CORRELATED_LENGTH, rng)[0], topics.T


def bursty(
    shares: np.ndarray, topics: np.ndarray, lengths: np.ndarray, rng: np.random.Generator
) -> csr_array:
    """Simulate documents with their own word probabilities for each topic, Dirichlet around those of the topic."""
    sizes = rng.multinomial(lengths, shares).T.ravel()
    n_documents, (k, n_words) = len(shares), topics.shape
    topic = np.repeat(np.repeat(np.arange(k), n_documents), sizes)
    words = np.empty(len(topic), np.int64)
    for j in range(k):
        mine = topic == j
        words[mine] = rng.choice(n_words, int(mine.sum()), p=topics[j])
    # Polya urn: a token is a new word, or repeats an earlier token of the same topic and document.
    starts = np.cumsum(sizes) - sizes
    for i in range(1, int(sizes.max())):
        at = starts[sizes > i] + i
        repeats = rng.random(len(at)) < i / (i + BURST)
        earlier = at - i + rng.integers(0, i, len(at))
        words[at[repeats]] = words[earlier[repeats]]
    rows = np.repeat(np.tile(np.arange(n_documents), k), sizes)
    counts = csr_array((np.ones(len(rows), np.int64), (rows, words)), shape=(n_documents, n_words))
    counts.sum_duplicates()
    return counts
