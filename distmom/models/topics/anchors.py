"""Anchor words of committed moments, and the joint distribution of words and topics that they imply.

See `distmom.linalg.anchors` for the method and its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.blas import one_blas_thread
from distmom.engine import Engine
from distmom.engine.sums.tall import read_rows
from distmom.linalg.anchors import divergence_weights, select_anchors, simplex_weights
from distmom.models.topics.committed import CommittedMoments
from distmom.moments.documents.word_moments import word_moments
from distmom.spectral.steps.core import added_sums

#: losses by which words are mixtures of anchor words
LOSSES = ("least_squares", "divergence")
#: smallest number of candidates per topic for anchor words
ANCHOR_CANDIDATES = 10
#: least share of the documents that contain an anchor word, unless there are too few candidates
ANCHOR_DF = 0.01
#: largest number of contexts in which distributions are compared by their divergence
N_CONTEXTS = 2000


@dataclass(frozen=True)
class AnchorWords:
    """Anchor words and the topics that they span.

    Attributes
    ----------
    anchors : ndarray of shape (k,), int
        Numbers of the anchor words among all words.
    joint : ndarray of shape (n_words, k)
        Masses of the words of the moments in every topic.
    facts : dict
        Diagnostics of the moments.
    """

    anchors: np.ndarray
    joint: np.ndarray
    facts: dict[str, Any]


def anchor_topics(engine: Engine, moments: CommittedMoments, numbers: np.ndarray, loss: str) -> AnchorWords:
    """Find anchor words in the second moment, and every word as a mixture of them.

    Parameters
    ----------
    engine : Engine
    moments : CommittedMoments
    numbers : ndarray of shape (n_all_words,), int32
        Numbers of the words in the moments.
    loss : str
        A name in `LOSSES`.

    Raises
    ------
    NumericalError
        If there are too few candidates, or they span too few dimensions.
    """
    settings, corpus = moments.settings, engine.corpus
    kept = np.flatnonzero(numbers >= 0)
    frequency = np.asarray(corpus.document_frequency)[kept]
    n_least = min(len(frequency), ANCHOR_CANDIDATES * settings.n_states)
    least = min(ANCHOR_DF * corpus.n_documents, np.sort(frequency)[-n_least])
    candidates = np.flatnonzero(frequency >= least)
    with one_blas_thread():
        sums = added_sums(moments.directories, without="m3")
        found = word_moments(sums, settings.kind, moments.basis.matrix)
        mean = np.maximum(np.asarray(sums["mean"]), 0.0)
        stored = np.asarray(read_rows(moments.basis.matrix, slice(0, len(kept))), np.float64)
        scale = 1.0 if moments.words.scale is None else np.asarray(moments.words.scale.load())
        # Row w of D E2 D is Q_w (Q'D E2 D Q) Q'; the last factor does not change distances.
        rows = (stored / scale) @ found.m2 / np.where(mean > 0.0, mean, 1.0)[:, None] / scale
        anchors = select_anchors(rows, settings.n_states, candidates)
        if loss == "divergence":
            weights = divergence_weights(rows, rows[anchors], grouped(stored / scale**2, mean, N_CONTEXTS))
        else:
            weights = simplex_weights(rows, rows[anchors])
    facts = {**found.lengths, "sum_rules": found.sum_rules}
    return AnchorWords(kept[anchors], weights * mean[:, None], facts)


def grouped(vectors: np.ndarray, mean: np.ndarray, n_groups: int) -> np.ndarray:
    """Return the sums of the vectors of groups of words, (r, n_groups), or of all words if these are fewer.

    A word is a mixture of anchor words also in its distribution over groups of contexts. Half of the groups are
    the most frequent words, one in each; the others are dealt out to the other half by descending frequency.

    Parameters
    ----------
    vectors : ndarray of shape (n_words, r)
    mean : ndarray of shape (n_words,)
        Frequencies of the words.
    n_groups : int
    """
    n = len(vectors)
    if n <= n_groups:
        return np.ascontiguousarray(vectors.T)
    ranks, half = np.empty(n, np.int64), n_groups // 2
    ranks[np.argsort(-mean, kind="stable")] = np.arange(n)
    groups = np.where(ranks < half, ranks, half + (ranks - half) % (n_groups - half))
    return np.asarray((csr_array((np.ones(n), (groups, np.arange(n))), shape=(n_groups, n)) @ vectors).T)
