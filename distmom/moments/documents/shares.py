"""Passes that infer the shares of documents with given topics.

The shares of a document are found as `distmom.moments.documents.document_shares` describes, and contribute counts
of words to every topic; the sums of counts give the next topics (`RefinePass`), by folds of the documents if no
document is to be read with topics estimated from it. `MixturePass` does the same where a document has a single
topic. `CompletionPass` measures how well shares inferred from one half of a document's words predict the other
half.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.special import psi

from distmom.corpus import Block
from distmom.corpus.block import csr_from_parts
from distmom.engine.passes import Pass, Rows
from distmom.engine.stored.arrays import Columns
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.engine.sums.csr import CsrArrays
from distmom.moments.documents.document_shares import SHORT, document_shares, mixture_shares
from distmom.moments.documents.halves import half_counts
from distmom.moments.documents.labels import posteriors
from distmom.moments.documents.share_kernels import (
    Counts,
    GivenTopics,
    log_likelihood,
    row_totals,
)
from distmom.moments.kernels import row_sums, scatter
from distmom.moments.weighting import row_weights


def folds_of(words: csr_array, n_folds: int) -> np.ndarray:
    """Return the fold of every document, (n,) int, which depends on its words alone.

    It is therefore the same in every pass, however the corpus is cut into shards, and equal documents are in
    one fold.
    """
    return np.asarray(row_totals(words.indptr, words.indices).astype(np.int64) % n_folds)


@dataclass(frozen=True)
class TopicsPass(Pass):
    """Base class of passes that infer the shares of documents with given topics.

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
    """

    topics: Any = None
    n_topics: int = 0
    alpha: Any = None
    unigram: Any = None
    smoothing: float = 0.0

    block_rows = 4096

    @property
    def mapped_bytes(self) -> int:
        return 4 * self.n_features * (self.n_topics + 1)

    def working_bytes(self, n_rows: int) -> int:
        return 3 * 8 * n_rows * self.n_topics

    def given(self, part: int = 0) -> GivenTopics:
        """Return the topics, or one slab of their columns, with the parameters of the shares."""
        matrix = self.topics.parts[part] if isinstance(self.topics, Columns) else self.topics
        frequency = np.asarray(self.unigram).reshape(-1)
        return GivenTopics(np.ascontiguousarray(matrix), frequency, self.smoothing, self.alpha)


@dataclass(frozen=True)
class RefinePass(TopicsPass):
    """Count words by topic: one step of EM or of variational Bayes.

    Attributes
    ----------
    how : {"em", "vb", "cvb"}
        EM, variational Bayes, or collapsed variational Bayes.
    n_folds : int
        Number of folds of the documents, which are counted separately. Every fold is read with its own topics,
        a slab of columns of ``topics``.

    Notes
    -----
    Sums: ``counts0``, ``counts1``, ..., one per fold, (n_words, k) tall, to be multiplied by the topics of the
    fold; ``totals`` (n_folds, k), their column sums after that; ``shares`` (k,), the sum of shares over
    documents; with variational Bayes ``log_shares`` (k,), the sum of expected logarithms; ``documents``,
    ``tokens`` and ``log_likelihood`` (). Rows, with EM over all documents: ``shares`` (n, k), the initial shares
    of the next step.
    """

    how: str = "em"
    n_folds: int = 1

    @property
    def name(self) -> str:
        return "refine"

    @property
    def _stores_shares(self) -> bool:
        # Stored shares have no gaps. Passes over some documents start from even shares.
        return self.how == "em" and self.selection is None

    @property
    def row_bytes(self) -> int:
        return 4 * self.n_topics if self._stores_shares else 0

    @property
    def mapped_bytes(self) -> int:
        return 4 * self.n_features * (self.n_folds * self.n_topics + 1)

    def specs(self) -> dict[str, SumSpec]:
        k = self.n_topics
        counts = SumSpec((self.n_features, k), "float32", tall="features")
        specs = {
            **{f"counts{fold}": counts for fold in range(self.n_folds)},
            "totals": SumSpec((self.n_folds, k)),
            "shares": SumSpec((k,)),
            "documents": SumSpec(()),
            "tokens": SumSpec(()),
            "log_likelihood": SumSpec(()),
        }
        return specs | {"log_shares": SumSpec((k,))} if self.how == "vb" else specs

    def _folds(self, words: csr_array) -> Iterator[tuple[slice | np.ndarray, csr_array]]:
        """Yield the documents of each fold, and their words."""
        if self.n_folds == 1:
            yield slice(None), words
            return
        folds = folds_of(words, self.n_folds)
        order = np.argsort(folds, kind="stable")
        by_fold, ends = words[order], np.cumsum(np.bincount(folds, minlength=self.n_folds))
        for first, last in pairwise([0, *ends]):
            begin, end = by_fold.indptr[first], by_fold.indptr[last]
            own = (
                by_fold.data[begin:end],
                by_fold.indices[begin:end],
                by_fold.indptr[first : last + 1] - begin,
            )
            yield order[first:last], csr_from_parts(*own, (last - first, words.shape[1]))

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words, own = block.words, row_weights(block)
        begin, lengths = rows.get("shares"), row_totals(words.indptr, words.data)
        shares = np.empty((words.shape[0], self.n_topics), self.given().topics.dtype)
        for fold, (mine, read) in enumerate(self._folds(words)):
            counts = sums[f"counts{fold}"]
            shares[mine], likelihood = document_shares(
                read,
                self.given(fold),
                how=self.how,
                start=None if begin is None else begin[mine],
                iteration=SHORT,
                counts=Counts(own[mine], sums["totals"][fold], counts.single),
            )
            counts.settle()
            sums["log_likelihood"] += likelihood
        if self.how == "vb":
            total = self.alpha.sum() + lengths
            gamma = shares.astype(np.float64) * total[:, None]
            sums["log_shares"] += own @ (psi(np.maximum(gamma, 1e-10)) - psi(total)[:, None])
        sums["shares"] += own @ shares.astype(np.float64)
        sums["documents"] += own.sum()
        sums["tokens"] += own @ lengths
        return {"shares": shares} if self._stores_shares else None


@dataclass(frozen=True)
class MixturePass(Pass):
    """Count words by the topic of each document: one step of EM for documents with a single topic each.

    Attributes
    ----------
    log_topics : matrix of shape (n_words, n_topics)
        Logarithms of the word probabilities.
    n_topics : int
    log_weights : ndarray of shape (n_topics,)

    Notes
    -----
    Sums: ``counts0`` (n_words, k) tall, ``totals`` (1, k), their column sums; ``shares`` (k,), the sum of
    posteriors; ``documents``, ``tokens`` and ``log_likelihood`` ().
    """

    log_topics: Any = None
    n_topics: int = 0
    log_weights: Any = None

    block_rows = 4096

    @property
    def name(self) -> str:
        return "refine"

    @property
    def mapped_bytes(self) -> int:
        return 4 * self.n_features * self.n_topics

    def working_bytes(self, n_rows: int) -> int:
        return 8 * 4 * n_rows * self.n_topics

    def specs(self) -> dict[str, SumSpec]:
        return RefinePass(self.n_features, n_topics=self.n_topics).specs()

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words, own = block.words, row_weights(block)
        posterior, evidence = posteriors(block, self.log_topics, self.log_weights, counts=True)
        posterior *= own[:, None]
        counts = sums["counts0"]
        scatter(words.indptr, words.indices, words.data, posterior, counts.single, 0)
        counts.settle()
        lengths = row_sums(words.indptr, words.data)
        sums["totals"][0] += lengths @ posterior
        sums["shares"] += posterior.sum(axis=0)
        sums["documents"] += own.sum()
        sums["tokens"] += lengths @ own
        sums["log_likelihood"] += evidence @ own
        return None


@dataclass(frozen=True)
class CompletionPass(TopicsPass):
    """Predict one half of every document's positions from the other.

    Attributes
    ----------
    alpha_sums : tuple of float
        Sums of the Dirichlet parameters to try; ``alpha`` gives their proportions.
    mixture : bool
        Whether documents have a single topic each, with the probabilities ``alpha``.
    seed : int
        Seed of the division of documents into halves.

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
        words, given = block.words, self.given()
        first = np.empty(words.nnz)
        half_counts(words.indptr, words.indices, words.data, np.uint64(self.seed), first)
        second = words.data - first
        own = np.repeat(row_weights(block), np.diff(words.indptr))
        proportions = self.alpha / self.alpha.sum()
        half = csr_from_parts(first, words.indices, words.indptr, words.shape)
        documents = CsrArrays(words.indptr, words.indices, second * own)
        shares = None
        for j, total in enumerate(self.alpha_sums):
            if self.mixture:
                of_half = replace(block, words=half)
                shares = mixture_shares(of_half, given)
            else:
                # The shares with one sum are close to those with the next.
                trial = given._replace(alpha=total * proportions)
                shares, _ = document_shares(half, trial, how="em", start=shares)
            sums["log_likelihood"][j] += log_likelihood(documents, given, shares)
        sums["tokens"] += (second * own).sum()
        sums["documents"] += row_weights(block).sum()
        return None
