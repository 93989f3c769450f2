"""Heads: alternative ways to score all labels for a block of documents.

A head is a frozen dataclass of arrays with a method ``add_scores(query, factor, out)`` that adds its scores times
a factor to a dense matrix (n, L), a method ``scores_at(query, labels)`` that returns its scores of some distinct
labels (n, m) of every document, and a method ``of_labels(labels)`` that returns the head of some labels alone.
Heads that updates do not change have a method ``with_more_labels(n_labels)`` for the labels that updates add.
X, A and Z are those of `distmom.models.multilabel.heads.query`.

=================== ==========================================================================
head                score of label l
=================== ==========================================================================
`StateHead`         ``sum_h P(h | x) Q_lh`` (multi-label paper, equations 14 and 15)
`RidgeHead`         centred ridge regression on Z
`SparseHead`        ``(A, 1) W`` for sparse weights W: centroids, or diagonal ridge after residual passes
`NeighborsHead`     votes of the rows of largest cosine in A, found exactly with an inverted index
`SketchNeighbors`   votes of the rows of largest cosine in Z
`FrequentHead`      probability by a classifier of its own, where l is frequent
=================== ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from distmom.engine import MixedRows
from distmom.models.multilabel.heads.columns import mixed_columns, with_zero_columns
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead, SketchNeighbors
from distmom.models.multilabel.heads.query import QueriedHead, Query
from distmom.models.multilabel.heads.score_kernels import add_sparse_scores, sparse_scores_at
from distmom.models.multilabel.kernels import (
    ROUNDING,
    check_labels,
    sort_top,
    top_by_states,
    top_of_products,
    update_top,
)
from distmom.moments.documents.labels import posteriors
from distmom.moments.features.tfidf import with_constant
from distmom.spectral.saved.fields import array, record
from distmom.spectral.saved.layout import Array, Matrix

#: bytes of dense scores that are held in memory at a time
SCORES_BYTES = 16 << 20
#: smallest number of documents that are scored together: a product of few rows with a large matrix is memory-bound
MIN_ROWS = 64
#: documents and labels of a block of scores from which the best are selected
TOP_ROWS, TOP_LABELS = 512, 1024
#: number of labels of every state that are kept in descending order of probability
RANKED_LABELS = 1024
#: part of all labels that is visited before all are scored together, which takes about as long
VISITS = 64
#: columns that are copied together: float32 values in one cache line
_STATES_AT_A_TIME = 16
#: the probability of a frequent label is the logistic function of this number times the margin of its classifier
SLOPE = 5.0


def _sparse_weights(of_labels: str) -> dict[str, Array | Matrix]:
    """Return the layout of weights (d + 1, m) of sparse features."""
    return {
        "sparse": Matrix(("d1", of_labels)),
        "dense": Array(("dense rows*", of_labels), ("<f4",)),
        "dense_row": Array(("d1",), ("<i4",), least=-1, below="dense rows*"),
    }


SPARSE_WEIGHTS = _sparse_weights("m")


@dataclass(frozen=True)
class StateHead(QueriedHead):
    """Scores from the posterior of the latent states.

    Attributes
    ----------
    log_topics : matrix of shape (d, k)
        Logarithms of the smoothed word probabilities: an array, or slabs of columns.
    log_weights : ndarray of shape (k,)
    label_states : ndarray of shape (L, k)
        Label probabilities of the states; columns sum to one.
    factor : float, default 1.0
    ranked : ndarray of shape (k, m), int32
        The labels of largest probability of every state, descending (see `rank_labels`).
    """

    log_topics: Any
    log_weights: Any
    label_states: Any
    factor: float = 1.0
    ranked: Any = None

    finds_top: ClassVar[bool] = True

    def of_labels(self, labels: np.ndarray) -> StateHead:
        """Return the head of some labels (m,), int32, numbered by their place."""
        states = np.asarray(self.label_states)[labels]
        return replace(self, label_states=states, ranked=rank_labels(states))

    def with_more_labels(self, n_labels: int) -> StateHead:
        """Return the head: the probabilities of labels are stored with the states."""
        return self

    def add_scores(self, query: Query, factor: float, out: np.ndarray) -> None:
        """Add ``factor * self.factor * P(h | x) Q'``."""
        posterior, _ = posteriors(query.block, self.log_topics, self.log_weights)
        out += (factor * self.factor * posterior).astype(np.float32) @ np.asarray(
            self.label_states, np.float32
        ).T

    def top(self, query: Query, factor: float, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best labels and their scores exactly, usually without scoring all labels.

        All labels are scored for documents whose posterior is so flat that the ranked lists of the states do not
        soon determine the best ones.
        """
        scaled, states = self._scaled(query, factor), np.asarray(self.label_states, np.float32)
        n_labels, n_states = states.shape
        labels, values, found = top_by_states(scaled, states, self.ranked, k, n_labels // VISITS)
        rows, step = np.flatnonzero(found == 0), rows_at_a_time(n_labels, MIN_ROWS)
        for start in range(0, len(rows), step):
            own = rows[start : start + step]
            flat = scaled[own]
            # A product with other rows may differ in its last bits; those of the best labels are added up again.
            labels[own], values[own] = top_of_products(flat @ states.T, flat, states, k, ROUNDING * n_states)
        check_labels(labels, n_labels)
        return labels, values

    def scores_at(self, query: Query, labels: np.ndarray) -> np.ndarray:
        """Return the scores of some labels (n, c) of every document."""
        scaled, states = self._scaled(query, 1.0), np.asarray(self.label_states, np.float32)
        return np.asarray(np.einsum("nch,nh->nc", states[labels], scaled))

    def _scaled(self, query: Query, factor: float) -> np.ndarray:
        posterior, _ = posteriors(query.block, self.log_topics, self.log_weights)
        return np.asarray((factor * self.factor * posterior).astype(np.float32))


@dataclass(frozen=True)
class RidgeHead(QueriedHead):
    """Least squares on the sketch.

    Attributes
    ----------
    coefficients : ndarray of shape (r, L)
    intercept : ndarray of shape (L,)
    """

    coefficients: Any = array("r", "m")
    intercept: Any = array("m")

    def of_labels(self, labels: np.ndarray) -> RidgeHead:
        """Return the head of some labels (m,), int32, numbered by their place."""
        return RidgeHead(np.asarray(self.coefficients)[:, labels], np.asarray(self.intercept)[labels])

    def add_scores(self, query: Query, factor: float, out: np.ndarray) -> None:
        """Add ``factor * (Z B + b)``."""
        out += np.float32(factor) * (query.sketch @ np.asarray(self.coefficients, np.float32))
        out += np.float32(factor) * np.asarray(self.intercept, np.float32)

    def scores_at(self, query: Query, labels: np.ndarray) -> np.ndarray:
        """Return the scores of some labels (n, m) of every document."""
        columns = np.asarray(self.coefficients, np.float32).T[labels]
        return np.asarray(np.einsum("nr,nmr->nm", query.sketch, columns) + self.intercept[labels], np.float32)

    def top(self, query: Query, factor: float, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best labels and their scores, from products of blocks that fit the processor's cache."""
        z = np.float32(factor) * query.sketch
        coefficients = np.asarray(self.coefficients, np.float32)
        shift = np.float32(factor) * np.asarray(self.intercept, np.float32)
        labels = np.full((len(z), k), np.iinfo(np.int32).max, np.int32)
        values = np.full((len(z), k), -np.inf, np.float32)
        for row in range(0, len(z), TOP_ROWS):
            rows = slice(row, row + TOP_ROWS)
            for first in range(0, len(shift), TOP_LABELS):
                columns = slice(first, first + TOP_LABELS)
                scores = z[rows] @ coefficients[:, columns]
                update_top(scores, shift[columns], first, labels[rows], values[rows])
        sort_top(labels, values)
        return labels, values


@dataclass(frozen=True)
class SparseHead(QueriedHead):
    """Sparse weights on the features.

    Attributes
    ----------
    weights : MixedRows
        W (d + 1, L); the last row holds the intercepts.
    """

    weights: MixedRows = record(SPARSE_WEIGHTS)

    def of_labels(self, labels: np.ndarray) -> SparseHead:
        """Return the head of some labels (m,), int32, numbered by their place."""
        return replace(self, weights=mixed_columns(self.weights, labels))

    def add_scores(self, query: Query, factor: float, out: np.ndarray) -> None:
        """Add ``factor * (A, 1) W``."""
        a, w = with_constant(query.features), self.weights
        add_sparse_scores(
            a.indptr, a.indices, a.data, w.sparse.indptr, w.sparse.indices, w.sparse.data, w.dense_row, w.dense,
            factor, out,
        )  # fmt: skip

    def scores_at(self, query: Query, labels: np.ndarray, factor: float = 1.0) -> np.ndarray:
        """Return ``factor`` times the scores of some labels (n, m); those of repeated labels are undefined."""
        a, w = with_constant(query.features), self.weights
        out = np.zeros(labels.shape, np.float32)
        sparse_scores_at(
            a.indptr, a.indices, a.data, w.sparse.indptr, w.sparse.indices, w.sparse.data, w.dense_row, w.dense,
            factor, labels, w.sparse.n_columns, out,
        )  # fmt: skip
        return out


@dataclass(frozen=True)
class GateHead(QueriedHead):
    """Classifiers of labels, fitted to the documents for which other heads rank the labels high.

    A classifier that was fitted to few documents without its label ranks labels badly overall, but ranks well
    those that other heads rank high. So the scores of a gate are factors of the sum of the other heads.

    Attributes
    ----------
    weights : MixedRows
        W (d + 1, L); the last row holds the intercepts.
    power : float, default 1.0
        The factor of a label is ``sigmoid(2 (A, 1) W)`` to this power.
    """

    weights: MixedRows = record(SPARSE_WEIGHTS)
    power: float = 1.0

    multiplies: ClassVar[bool] = True

    def of_labels(self, labels: np.ndarray) -> GateHead:
        """Return the head of some labels (m,), int32, numbered by their place."""
        return replace(self, weights=mixed_columns(self.weights, labels))

    def with_more_labels(self, n_labels: int) -> GateHead:
        """Return the gate, undecided about new labels."""
        return replace(self, weights=with_zero_columns(self.weights, n_labels))

    def add_scores(self, query: Query, factor: float, out: np.ndarray) -> None:
        """Add ``factor`` times the factors of the labels."""
        gate = np.ones_like(out)
        self.multiply(query, gate)
        out += np.float32(factor) * gate

    def multiply(self, query: Query, out: np.ndarray) -> None:
        """Multiply positive scores (n, L) by the factors of the labels, in place."""
        margins = np.zeros_like(out)
        SparseHead(self.weights).add_scores(query, -2.0, margins)
        # Row by row, in the processor's cache.
        for scores, own in zip(out, margins, strict=True):
            np.multiply(scores, self._factors(own), out=scores, where=scores > 0.0)

    def scores_at(self, query: Query, labels: np.ndarray) -> np.ndarray:
        """Return the factors of some labels (n, m) of every document; those of repeated labels are undefined."""
        return self._factors(SparseHead(self.weights).scores_at(query, labels, -2.0))

    def _factors(self, margins: np.ndarray) -> np.ndarray:
        """Return the factors of margins times -2, in place."""
        with np.errstate(over="ignore"):
            np.exp(margins, out=margins)
        margins += 1.0
        np.log(margins, out=margins)
        margins *= np.float32(-self.power)
        return np.asarray(np.exp(margins, out=margins))


@dataclass(frozen=True)
class FrequentHead(QueriedHead):
    """Classifiers of frequent labels, whose probabilities are added; other labels have score 0.

    Attributes
    ----------
    weights : MixedRows
        W (d + 1, n_frequent); the last row holds the intercepts.
    labels : ndarray of shape (n_frequent,), int32
        The labels.
    factor : float, default 1.0
        The score of a label is ``factor * sigmoid(SLOPE * (A, 1) W)``.
    """

    weights: MixedRows = record(_sparse_weights("n_frequent"))
    labels: Any = array("n_frequent", types=("<i4",), least=0, below="m")
    factor: float = 1.0

    def of_labels(self, labels: np.ndarray) -> FrequentHead:
        """Return the head of some labels (m,), int32, numbered by their place."""
        places = np.full(max([-1, *labels.tolist(), *np.asarray(self.labels).tolist()]) + 1, -1, np.int32)
        places[labels] = np.arange(len(labels), dtype=np.int32)
        found = places[np.asarray(self.labels)]
        own = np.flatnonzero(found >= 0).astype(np.int32)
        return replace(self, weights=mixed_columns(self.weights, own), labels=found[own])

    def with_more_labels(self, n_labels: int) -> FrequentHead:
        """Return the head: new labels have no classifier."""
        return self

    def add_scores(self, query: Query, factor: float, out: np.ndarray) -> None:
        """Add ``factor`` times the scores."""
        labels = np.asarray(self.labels)
        odds = np.zeros((len(out), len(labels)), np.float32)
        SparseHead(self.weights).add_scores(query, -SLOPE, odds)
        with np.errstate(over="ignore"):
            np.exp(odds, out=odds)
        odds += 1.0
        out[:, labels] += np.float32(factor * self.factor) / odds

    def scores_at(self, query: Query, labels: np.ndarray) -> np.ndarray:
        """Return the scores of some labels (n, m) of every document; those of repeated labels are undefined."""
        own = np.asarray(self.labels)
        places = np.full(max(int(labels.max(initial=0)), int(own.max(initial=0))) + 1, -1, np.int32)
        places[own] = np.arange(len(own), dtype=np.int32)
        found = places[labels]
        odds = SparseHead(self.weights).scores_at(query, found, -SLOPE)
        with np.errstate(over="ignore"):
            scores = np.float32(self.factor) / (np.exp(odds) + np.float32(1.0))
        return np.where(found >= 0, scores, np.float32(0.0))


Head = StateHead | RidgeHead | SparseHead | GateHead | FrequentHead | NeighborsHead | SketchNeighbors


def rows_at_a_time(n_labels: int, min_rows: int) -> int:
    """Return the number of documents that are scored together, so that their dense scores stay small."""
    return max(min_rows, SCORES_BYTES // (4 * max(1, n_labels)))


def rank_labels(label_states: np.ndarray) -> np.ndarray:
    """Return the labels of largest probability of every state, (k, m) int32, ties by smaller label."""
    n_labels = len(label_states)
    depth = min(n_labels, RANKED_LABELS)
    ranked = np.empty((label_states.shape[1], depth), np.int32)
    for first in range(0, len(ranked), _STATES_AT_A_TIME):
        columns = np.ascontiguousarray(label_states[:, first : first + _STATES_AT_A_TIME].T)
        for state, column in enumerate(columns, first):
            top = np.argpartition(-column, depth - 1)[:depth] if depth < n_labels else np.arange(n_labels)
            top.sort()
            ranked[state] = top[np.argsort(-column[top], kind="stable")]
    return ranked
