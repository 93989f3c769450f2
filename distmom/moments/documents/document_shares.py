"""The shares of given topics in documents, without sums over a corpus.

Documents of several topics are read by the kernels of `distmom.moments.documents.share_kernels`, documents of a
single topic each by the posterior probabilities of the topics.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block
from distmom.corpus.block import csr_from_parts
from distmom.engine.sums.csr import CsrArrays
from distmom.moments.documents.labels import posteriors
from distmom.moments.documents.share_kernels import (
    FULL_ITER,
    FULL_TOLERANCE,
    LEAST,
    MAX_ITER,
    TOLERANCE,
    Counts,
    GivenTopics,
    Iteration,
    find_collapsed,
    find_shares,
)

#: iteration to convergence, and few steps, for passes that are repeated
FULL, SHORT = Iteration(FULL_ITER, FULL_TOLERANCE), Iteration(MAX_ITER, TOLERANCE)


def document_shares(
    words: csr_array,
    given: GivenTopics,
    *,
    how: str,
    start: np.ndarray | None = None,
    iteration: Iteration = FULL,
    counts: Counts | None = None,
) -> tuple[np.ndarray, float]:
    """Find the shares of topics in documents.

    Parameters
    ----------
    words : csr_array of shape (n, d)
        Counts.
    given : GivenTopics
    how : {"em", "vb", "cvb"}
        MAP shares, variational Bayes, or collapsed variational Bayes.
    start : ndarray of shape (n, k), optional
        Initial shares; even shares by default.
    iteration : Iteration, default `FULL`
    counts : Counts, optional
        Where words are counted; nowhere by default.

    Returns
    -------
    shares : ndarray of shape (n, k)
        Shares in the type of the topics.
    likelihood : float
        Log-likelihood of the documents, if words are counted.
    """
    topics = np.ascontiguousarray(given.topics)
    n, k = words.shape[0], topics.shape[1]
    shares = np.full((n, k), 1.0 / max(1, k), topics.dtype) if start is None else start.copy()
    if counts is None:
        counts = Counts(np.ones(n), np.zeros(k), np.zeros((0, k), topics.dtype))
    documents = CsrArrays(words.indptr, words.indices, words.data.astype(np.float64))
    given = given._replace(topics=topics)
    if how == "cvb":
        return shares, find_collapsed(documents, given, iteration, shares, counts)
    return shares, find_shares(documents, given, how == "vb", iteration, shares, counts)


def mixture_shares(block: Block, given: GivenTopics) -> np.ndarray:
    """Return the probabilities of the topics of documents with a single topic each, (n, k) float32."""
    words = block.words
    used, columns = np.unique(words.indices, return_inverse=True)
    own_part = (1.0 - given.smoothing) * np.asarray(given.topics[used])
    mixed = own_part + given.smoothing * given.unigram[used, None]
    shape = (block.n_documents, len(used))
    own = csr_from_parts(words.data, columns.astype(np.int32), words.indptr, shape)
    logs = np.log(np.maximum(mixed, LEAST)).astype(np.float32)
    log_weights = np.log(np.maximum(given.alpha, LEAST))
    return posteriors(replace(block, words=own), logs, log_weights, counts=True)[0].astype(np.float32)
