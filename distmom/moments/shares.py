"""Shares of topics in documents, and what they say of the topics.

A document with counts c is read as draws from ``phi theta``, topics phi (d x k) and shares theta. Its shares
are found by iterating, with ``s = phi theta`` on the words of the document,

    MAP          theta <- (alpha + theta * phi'(c / s)) / total          (Dirichlet prior of parameters alpha + 1)
    variational  gamma <- alpha + e * phi'(c / s),  theta ~ e = exp(psi(gamma))        (Blei, Ng, Jordan 2003)

and bring every topic the counts ``phi_wi theta_i c_w / s_w``, whose sums over documents are the next topics
(`PolishPass`). `MixturePass` does the same where a document is of one topic. `CompletionPass` tells how well
shares found in one half of a document's words predict the other half.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import psi

from distmom.compiled import compiled
from distmom.corpus import Block
from distmom.corpus.block import csr_from_parts
from distmom.engine.passes import Pass, Rows
from distmom.engine.state import Columns
from distmom.engine.sums import Sums, SumSpec
from distmom.moments.kernels import scatter
from distmom.moments.labels import posteriors
from distmom.moments.words import row_weights

#: iterations for the shares of a document at most, and the change of shares at which they end
MAX_ITER, TOLERANCE = 20, 0.02
#: the same where shares are the result
FULL_ITER, FULL_TOLERANCE = 100, 1e-4
#: probability of a word that no topic has; a count over it is still a finite float32
LEAST = 1e-30


@compiled
def _digamma(x: Any) -> Any:
    """Return psi(x) for x > 0: recurrence up to 6, then the asymptotic series."""
    value = 0.0
    while x < 6.0:
        value -= 1.0 / x
        x += 1.0
    y = 1.0 / (x * x)
    series = y * (1.0 / 12.0 - y * (1.0 / 120.0 - y * (1.0 / 252.0 - y * (1.0 / 240.0 - y / 132.0))))
    return value + np.log(x) - 0.5 / x - series


@compiled
def find_shares(
    indptr: Any,
    indices: Any,
    data: Any,
    topics: Any,
    unigram: Any,
    smoothing: Any,
    alpha: Any,
    variational: Any,
    n_iter: Any,
    tolerance: Any,
    shares: Any,
    weights: Any,
) -> None:
    """Find the shares of documents.

    Parameters
    ----------
    indptr, indices, data : ndarray
        CSR rows of counts, (n, d).
    topics : ndarray of shape (d, k)
        Word probabilities; products are formed in its type.
    unigram : ndarray of shape (d,)
        Word probabilities of the corpus, of which ``smoothing`` is mixed into every topic.
    smoothing : float
    alpha : ndarray of shape (k,)
    variational : bool
    n_iter : int
        Iterations at most.
    tolerance : float
        End when the shares of a document change by less, summed over topics.
    shares : ndarray of shape (n, k)
        What iteration begins with; changed in place. Rows sum to one.
    weights : ndarray of shape (n, k)
        What topics are weighted with in ``s``, set in place: the shares, or e up to a factor.
    """
    k = topics.shape[1]
    kind = topics.dtype.type
    n = indptr.shape[0] - 1
    widest = 0
    for i in range(n):
        widest = max(widest, indptr[i + 1] - indptr[i])
    by_word = np.empty((widest, k), topics.dtype)
    by_topic = np.empty((k, widest), topics.dtype)
    s = np.empty(widest, topics.dtype)
    found = np.empty(k, topics.dtype)
    keep, least = kind(1.0 - smoothing), kind(LEAST)
    for i in range(n):
        start, size = indptr[i], indptr[i + 1] - indptr[i]
        length = 0.0
        for p in range(size):
            v = np.uint64(indices[start + p])
            length += data[start + p]
            floor = kind(smoothing * unigram[v])
            for c in range(k):
                value = keep * topics[v, c] + floor
                by_word[p, c] = value
                by_topic[c, p] = value
        theta, e = shares[i], weights[i]
        prior = 0.0
        for c in range(k):
            prior += alpha[c]
        for c in range(k):
            e[c] = theta[c]
            if variational:
                e[c] = np.exp(_digamma(alpha[c] + length * theta[c]) - _digamma(prior + length))
        if length == 0.0:
            for c in range(k):
                theta[c] = alpha[c] / prior
            continue
        for _ in range(n_iter):
            s[:size] = least
            for c in range(k):
                weight = e[c]
                for p in range(size):
                    s[p] += weight * by_topic[c, p]
            found[:] = 0.0
            for p in range(size):
                ratio = kind(data[start + p]) / s[p]
                for c in range(k):
                    found[c] += ratio * by_word[p, c]
            total = 0.0
            for c in range(k):
                found[c] = alpha[c] + e[c] * found[c]
                total += found[c]
            change = 0.0
            for c in range(k):
                value = found[c] / total
                change += abs(value - theta[c])
                theta[c] = value
                e[c] = np.exp(_digamma(found[c]) - _digamma(total)) if variational else value
            if change < tolerance:
                break


@compiled
def add_counts(
    indptr: Any,
    indices: Any,
    data: Any,
    topics: Any,
    unigram: Any,
    smoothing: Any,
    weights: Any,
    totals: Any,
    out: Any,
) -> float:
    """Add what documents say of topics, and return the log-likelihood ``sum c log s``.

    Parameters
    ----------
    indptr, indices, data, topics, unigram, smoothing
        As in `find_shares`.
    weights : ndarray of shape (n, k)
        As set by `find_shares`, times how often each document counts in ``data``.
    totals : ndarray of shape (k,)
        ``sum phi_wi theta_i c_w / s_w``; changed in place.
    out : ndarray of shape (d, k)
        ``sum theta_i c_w / s_w``, to be multiplied by phi; changed in place. Without rows only the likelihood is
        found.
    """
    k = topics.shape[1]
    kind = topics.dtype.type
    keep, least = kind(1.0 - smoothing), kind(LEAST)
    phi = np.empty(k, topics.dtype)
    own = np.empty(k, topics.dtype)
    likelihood = 0.0
    for i in range(indptr.shape[0] - 1):
        e = weights[i]
        own[:] = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            v = np.uint64(indices[p])
            floor = kind(smoothing * unigram[v])
            source = topics[v]
            for c in range(k):
                phi[c] = e[c] * (keep * source[c] + floor)
            s = least
            for c in range(k):
                s += phi[c]
            likelihood += data[p] * np.log(s)
            if out.shape[0]:
                ratio = kind(data[p]) / s
                target = out[v]
                for c in range(k):
                    target[c] += ratio * e[c]
                    own[c] += ratio * phi[c]
        for c in range(k):
            totals[c] += own[c]
    return likelihood


@dataclass(frozen=True)
class TopicsPass(Pass):
    """Base of the passes that look at documents with given topics.

    Attributes
    ----------
    topics : matrix of shape (n_words, n_topics)
        Columns are word probabilities.
    n_topics : int
    alpha : ndarray of shape (n_topics,)
        Dirichlet parameters.
    unigram : ndarray of shape (n_words,) or (n_words, 1), float32
    smoothing : float
        Share of the unigram distribution that is mixed into every topic.
    variational : bool
        Find shares by variational Bayes, else those of largest posterior.
    """

    topics: Any = None
    n_topics: int = 0
    alpha: Any = None
    unigram: Any = None
    smoothing: float = 0.0
    variational: bool = False

    block_rows = 4096

    @property
    def mapped_bytes(self) -> int:
        return 4 * self.n_words * (self.n_topics + 1)

    def working_bytes(self, n_rows: int) -> int:
        return 3 * 8 * n_rows * self.n_topics

    def _frequency(self) -> np.ndarray:
        return np.asarray(self.unigram).reshape(-1)

    def _matrix(self) -> np.ndarray:
        return self.topics.parts[0] if isinstance(self.topics, Columns) else np.asarray(self.topics)

    def _shares(
        self, block: Block, data: np.ndarray, start: np.ndarray | None, n_iter: int, tolerance: float,
        alpha: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Return shares and weights of the documents of a block."""
        topics = self._matrix()
        shape = (block.n_documents, topics.shape[1])
        shares = np.full(shape, 1.0 / max(1, shape[1]), topics.dtype) if start is None else start.copy()
        weights = np.empty(shape, topics.dtype)
        find_shares(
            block.words.indptr, block.words.indices, data, topics, self._frequency(), self.smoothing,
            self.alpha if alpha is None else alpha, self.variational, n_iter, tolerance, shares, weights,
        )  # fmt: skip
        return shares, weights


@dataclass(frozen=True)
class PolishPass(TopicsPass):
    """Count words by topic, one step of EM or of variational Bayes.

    Notes
    -----
    Sums: ``counts`` (n_words, k) tall, to be multiplied by the topics; ``totals`` (k,), their column sums after
    that; ``shares`` (k,), their sum over documents, and with variational Bayes ``log_shares`` (k,), that of the
    expected logarithms; ``documents``, ``tokens`` and ``log_likelihood`` (). Rows, but not with variational
    Bayes, which stalls when it goes on from them: ``shares`` (n, k), which the next step begins with.
    """

    @property
    def name(self) -> str:
        return "polish"

    def specs(self) -> dict[str, SumSpec]:
        k = self.n_topics
        specs = {
            "counts": SumSpec((self.n_words, k), "float32", tall="words"),
            "totals": SumSpec((k,)),
            "shares": SumSpec((k,)),
            "documents": SumSpec(()),
            "tokens": SumSpec(()),
            "log_likelihood": SumSpec(()),
        }
        return specs | {"log_shares": SumSpec((k,))} if self.variational else specs

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words, own = block.words, row_weights(block)
        data = words.data.astype(np.float64)
        shares, weights = self._shares(block, data, rows.get("shares"), MAX_ITER, TOLERANCE)
        if self.variational:
            total = self.alpha.sum() + np.diff(np.concatenate([[0.0], np.cumsum(data)])[words.indptr])
            gamma = shares.astype(np.float64) * total[:, None]
            sums["log_shares"] += own @ (psi(np.maximum(gamma, 1e-10)) - psi(total)[:, None])
        if block.weights is not None:
            data = data * np.repeat(own, np.diff(words.indptr))
        counts = sums["counts"]
        sums["log_likelihood"] += add_counts(
            words.indptr, words.indices, data, self._matrix(), self._frequency(), self.smoothing, weights,
            sums["totals"], counts.single,
        )  # fmt: skip
        counts.settle()
        sums["shares"] += own @ shares.astype(np.float64)
        sums["documents"] += own.sum()
        sums["tokens"] += data.sum()
        return None if self.variational else {"shares": shares}


@dataclass(frozen=True)
class MixturePass(Pass):
    """Count words by the topic of each document, one step of EM for one topic a document.

    Attributes
    ----------
    log_topics : matrix of shape (n_words, n_topics)
        Logarithms of the word probabilities.
    n_topics : int
    log_weights : ndarray of shape (n_topics,)

    Notes
    -----
    Sums: ``counts`` (n_words, k) tall, ``totals`` (k,), their column sums; ``shares`` (k,), the sum of posteriors;
    ``documents``, ``tokens`` and ``log_likelihood`` ().
    """

    log_topics: Any = None
    n_topics: int = 0
    log_weights: Any = None

    block_rows = 4096

    @property
    def name(self) -> str:
        return "polish"

    @property
    def mapped_bytes(self) -> int:
        return 4 * self.n_words * self.n_topics

    def working_bytes(self, n_rows: int) -> int:
        return 8 * 4 * n_rows * self.n_topics

    def specs(self) -> dict[str, SumSpec]:
        return PolishPass(self.n_words, n_topics=self.n_topics).specs()

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words, own = block.words, row_weights(block)
        posterior, evidence = posteriors(block, self.log_topics, self.log_weights, counts=True)
        posterior *= own[:, None]
        counts = sums["counts"]
        scatter(words.indptr, words.indices, words.data, posterior, counts.single, 0)
        counts.settle()
        lengths = np.diff(np.concatenate([[0.0], np.cumsum(words.data, dtype=np.float64)])[words.indptr])
        sums["totals"] += lengths @ posterior
        sums["shares"] += posterior.sum(axis=0)
        sums["documents"] += own.sum()
        sums["tokens"] += lengths @ own
        sums["log_likelihood"] += evidence @ own
        return None


def mixture_shares(
    block: Block, topics: np.ndarray, unigram: np.ndarray, smoothing: float, weights: np.ndarray
) -> np.ndarray:
    """Return the probabilities of the topics of documents that have one each, (n, k) float32.

    Parameters
    ----------
    block : Block
    topics : ndarray of shape (d, k)
        Columns are word probabilities.
    unigram : ndarray of shape (d,)
        Of which ``smoothing`` is mixed into every topic.
    smoothing : float
    weights : ndarray of shape (k,)
        Probabilities of the topics.
    """
    words = block.words
    used, columns = np.unique(words.indices, return_inverse=True)
    mixed = (1.0 - smoothing) * np.asarray(topics[used]) + smoothing * unigram[used, None]
    shape = (block.n_documents, len(used))
    own = csr_from_parts(words.data, columns.astype(np.int32), words.indptr, shape)
    logs = np.log(np.maximum(mixed, LEAST)).astype(np.float32)
    log_weights = np.log(np.maximum(weights, LEAST))
    return posteriors(replace(block, words=own), logs, log_weights, counts=True)[0].astype(np.float32)


@compiled
def half_counts(indptr: Any, indices: Any, data: Any, key: Any, first: Any) -> None:
    """Give every position of every document to its first half with probability 1/2.

    The bits are a hash of the document's words and counts and of the word, so that the halves of a document do
    not depend on where it lies.

    Parameters
    ----------
    indptr, indices, data : ndarray
        CSR rows of counts, (n, d).
    key : uint64
    first : ndarray of shape (nnz,), float64
        Counts of the first half; set in place.
    """
    for i in range(indptr.shape[0] - 1):
        document = np.uint64(key)
        for p in range(indptr[i], indptr[i + 1]):
            document = _scramble(document ^ _scramble(np.uint64(indices[p])) + np.uint64(data[p]))
        for p in range(indptr[i], indptr[i + 1]):
            bits = _scramble(document ^ np.uint64(indices[p]))
            left, n = np.int64(data[p]), np.int64(0)
            while left > 0:
                n += np.int64(bits & np.uint64(1))
                bits >>= np.uint64(1)
                left -= 1
                if left > 0 and left % 64 == 0:
                    document = _scramble(document + np.uint64(left))
                    bits = _scramble(document ^ np.uint64(indices[p]))
            first[p] = n


@compiled
def _scramble(x: Any) -> Any:
    """Scramble 64 bits (the output function of splitmix64)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class CompletionPass(TopicsPass):
    """Predict one half of every document's positions from the other.

    Attributes
    ----------
    alpha_sums : tuple of float
        Sums of the Dirichlet parameters that are tried, ``alpha`` giving their proportions.
    mixture : bool
        Documents have one topic each, ``alpha`` being the probabilities of the topics.
    seed : int
        Of the halves.

    Notes
    -----
    Sums: ``log_likelihood`` (len(alpha_sums),) of the second halves, ``tokens`` () in them, ``documents`` ().
    """

    alpha_sums: tuple[float, ...] = (1.0,)
    mixture: bool = False
    seed: int = 0

    @property
    def name(self) -> str:
        return "completion"

    def specs(self) -> dict[str, SumSpec]:
        return {
            "log_likelihood": SumSpec((len(self.alpha_sums),)), "tokens": SumSpec(()), "documents": SumSpec(())
        }  # fmt: skip

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words, topics = block.words, self._matrix()
        first = np.empty(words.nnz)
        half_counts(words.indptr, words.indices, words.data, np.uint64(self.seed), first)
        second = words.data - first
        own = np.repeat(row_weights(block), np.diff(words.indptr))
        proportions = self.alpha / self.alpha.sum()
        nothing = np.zeros((0, topics.shape[1]), topics.dtype)
        start = None
        for j, total in enumerate(self.alpha_sums):
            # What one sum has led to is near what the next one leads to.
            if self.mixture:
                half = csr_from_parts(first, words.indices, words.indptr, words.shape)
                start = mixture_shares(
                    replace(block, words=half), topics, self._frequency(), self.smoothing, self.alpha
                )
            else:
                start, _ = self._shares(block, first, start, FULL_ITER, FULL_TOLERANCE, total * proportions)
            sums["log_likelihood"][j] += add_counts(
                words.indptr, words.indices, second * own, topics, self._frequency(), self.smoothing, start,
                np.zeros(topics.shape[1]), nothing,
            )  # fmt: skip
        sums["tokens"] += (second * own).sum()
        sums["documents"] += row_weights(block).sum()
        return None
