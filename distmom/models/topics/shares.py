"""Inference of the shares of topics in documents, given the topics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import Block
from distmom.engine import StoredArray
from distmom.models.topics.refine import COMPLETION_SMOOTHING
from distmom.moments.documents.document_shares import document_shares, mixture_shares
from distmom.moments.documents.share_kernels import LEAST, GivenTopics
from distmom.moments.kernels import gather


@dataclass(frozen=True)
class DocumentReader:
    """Infers the shares of topics in documents.

    Attributes
    ----------
    method : {"vb", "fast", "mixture"}
        Variational Bayes; least squares, weighted by the inverse frequencies of words, with negative shares set to
        zero; or the probabilities of the topics of documents with a single topic each.
    matrix : ndarray of shape (d, k), float32
        Topics as columns; with "fast" the matrix that word counts are multiplied with.
    prior : ndarray of shape (k,)
        Dirichlet parameters; with "mixture" the probabilities of the topics.
    unigram : ndarray of shape (d,), float32
        Word probabilities of the corpus, mixed into every topic with a small weight.
    """

    method: str
    matrix: Any
    prior: Any
    unigram: Any

    def stored(self, put: Callable[[np.ndarray], StoredArray]) -> DocumentReader:
        """Return the same reader with its arrays stored, so that workers can memory-map them."""
        return DocumentReader(self.method, put(self.matrix), put(self.prior), put(self.unigram))

    def shares(self, block: Block) -> np.ndarray:
        """Return the shares of the topics, (n_documents, k) float32; rows sum to one."""
        words = block.words
        if self.method == "mixture":
            return mixture_shares(block, self._given())
        if self.method == "fast":
            shares = np.maximum(gather(words.indptr, words.indices, words.data, self.matrix), 0.0)
            total = shares.sum(axis=1, keepdims=True)
            even = np.asarray(self.prior / np.sum(self.prior), np.float32)
            return np.asarray(np.where(total > 0.0, shares / np.maximum(total, LEAST), even))
        return document_shares(words, self._given(), how="vb")[0]

    def _given(self) -> GivenTopics:
        return GivenTopics(self.matrix, self.unigram, COMPLETION_SMOOTHING, self.prior)


def least_squares_matrix(topics: np.ndarray, unigram: np.ndarray) -> np.ndarray:
    """Return the matrix (d, k), float32, whose product with word counts gives shares up to a factor.

    The shares minimise ``sum_w (c_w / n - phi_w theta)^2 / p_w``, as the variance of a word's share is nearly
    proportional to its frequency p_w.
    """
    weighted = topics / np.asarray(unigram, np.float64)[:, None]
    gram = topics.T.astype(np.float64) @ weighted
    return np.ascontiguousarray(weighted @ np.linalg.pinv(gram), dtype=np.float32)
