"""Heads: alternative ways to score all labels for a block of documents.

A head is a frozen dataclass of arrays with a method ``add_scores(query, factor, out)`` that adds its scores times
a factor to a dense matrix (n, L), and a method ``scores_at(query, labels)`` that returns its scores of some
different labels (n, m) of every document. X is the presence of words, A the tf-idf rows of unit length, Z = A R a
sketch of them.

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

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block
from distmom.engine import Csr, MixedRows
from distmom.models.multilabel.kernels import (
    check_labels,
    nearest_of,
    nearest_rows,
    sort_top,
    top_by_states,
    top_of_products,
    update_top,
)
from distmom.models.multilabel.score_kernels import add_sparse_scores, add_votes, sparse_scores_at, votes_at
from distmom.moments.features import tfidf_rows, with_constant
from distmom.moments.kernels import gather
from distmom.moments.labels import posteriors
from distmom.spectral.layout import Array, Matrix, array, record

#: bytes of dense scores that are held in memory at a time
SCORES_BYTES = 16 << 20
#: least number of documents that are scored together: a product of few rows with a large matrix is memory-bound
MIN_ROWS = 64
#: documents and labels of a block of scores from which the best are selected
TOP_ROWS, TOP_LABELS = 512, 1024
#: relative error per term of a sum in float32
ROUNDING = 2.0**-23
#: number of labels of every state that are kept in descending order of probability
RANKED_LABELS = 1024
#: part of all labels that is visited before all are scored together, which takes about as long
VISITS = 64
#: columns that are copied together: float32 values in one cache line
_STATES_AT_A_TIME = 16
#: labels (n, m) of the n indexed documents of a head
LABELS = Matrix(("n", "m"), ("|u1",), ("<i4", "<i8"))
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


class Query:
    """A block of documents with the features that heads need, each computed at most once.

    Parameters
    ----------
    block : Block
        Documents over the model's vocabulary.
    idf : ndarray of shape (d,) or (0,)
        Inverse document frequencies.
    basis : ndarray of shape (d, r), optional
        R of the sketch; needed by heads on the sketch.
    """

    def __init__(self, block: Block, idf: np.ndarray, basis: np.ndarray | None = None) -> None:
        self.block = block
        self.idf = idf
        self.basis = basis
        self._neighbors: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @cached_property
    def features(self) -> csr_array:
        """tf-idf rows, float32."""
        return tfidf_rows(self.block.words, self.idf, np.float32)

    @cached_property
    def sketch(self) -> np.ndarray:
        """Z, float32."""
        if self.basis is None:
            raise ValueError("this model has no sketch basis")
        a = self.features
        return gather(a.indptr, a.indices, a.data, self.basis).astype(np.float32)

    def nearest(self, index: NeighborsHead, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return at least k nearest indexed rows and their cosines, found once for heads that share an index."""
        key = id(index.lists.data)
        known = self._neighbors.get(key)
        if known is None or known[0].shape[1] < min(k, len(index.alive)):
            known = self._neighbors[key] = index.search(self.features, k)
        return known

    def covariates(self, index: NeighborsHead | None) -> np.ndarray:
        """Return the covariates of the documents, (n, 2) float64 (see `Covariates`); cosines need an index."""
        n_words = np.log1p(np.diff(self.block.words.indptr).astype(np.float64))
        if index is None:
            return np.stack([n_words, np.zeros_like(n_words)], axis=1)
        cosines = self.nearest(index, 1)[1].max(axis=1, initial=0.0)
        return np.stack([n_words, np.asarray(cosines, np.float64)], axis=1)

    def part(self, rows: slice) -> Query:
        """Return the query of some of the documents, with the nearest rows found so far."""
        query = Query(self.block.take(rows), self.idf, self.basis)
        query._neighbors = {key: (f[rows], c[rows]) for key, (f, c) in self._neighbors.items()}
        return query


@dataclass(frozen=True)
class StateHead:
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
class RidgeHead:
    """Least squares on the sketch.

    Attributes
    ----------
    coefficients : ndarray of shape (r, L)
    intercept : ndarray of shape (L,)
    """

    coefficients: Any = array("r", "m")
    intercept: Any = array("m")

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
class SparseHead:
    """Sparse weights on the features.

    Attributes
    ----------
    weights : MixedRows
        W (d + 1, L); the last row holds the intercepts.
    """

    weights: MixedRows = record(SPARSE_WEIGHTS)

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
class GateHead:
    """Classifiers of labels, fitted to the documents for which other heads rank the labels high.

    A classifier that has met few documents without its label ranks all labels badly, but the labels that others
    rank high well. So the scores of a gate are factors of the sum of the other heads.

    Attributes
    ----------
    weights : MixedRows
        W (d + 1, L); the last row holds the intercepts.
    power : float, default 1.0
        The factor of a label is ``sigmoid(2 (A, 1) W)`` to this power.
    """

    weights: MixedRows = record(SPARSE_WEIGHTS)
    power: float = 1.0

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
class FrequentHead:
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


@dataclass(frozen=True)
class NeighborsHead:
    """Votes of the nearest training rows in the sparse features.

    Attributes
    ----------
    lists : Csr
        For every word, the indexed rows of A that contain it, and their values (d, N).
    labels : Csr
        Labels of the indexed rows (N, L).
    alive : ndarray of shape (N,), uint8
        1 for rows that vote.
    n_neighbors : int, default 75
    power : float, default 3.0
        The vote of a neighbour is its cosine raised to this power; votes are normalised to sum to one.
    factor, best : float, default 1.0 and 0.0
        Weights of the votes, and of the largest cosine among the neighbours with the label.
    skipped : float, default 0.0
        Share of the squared length of a document whose words are skipped, see `nearest_rows`.
    """

    lists: Csr = record({"": Matrix(("d", "n"))})
    labels: Csr = record({"": LABELS})
    alive: Any = array("n", types=("|u1",))
    n_neighbors: int = 75
    power: float = 3.0
    factor: float = 1.0
    best: float = 0.0
    skipped: float = 0.0

    def search(self, features: csr_array, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and cosines of the k nearest indexed rows (see `nearest_rows`)."""
        k = min(k, len(self.alive))
        return nearest_rows(
            features.indptr, features.indices, features.data,
            self.lists.indptr, self.lists.indices, self.lists.data, self.alive, k, self.skipped,
        )  # fmt: skip

    def add_scores(self, query: Query, factor: float, out: np.ndarray) -> None:
        """Add ``factor * (self.factor * votes + self.best * largest cosine)``."""
        found, cosines = query.nearest(self, self.n_neighbors)
        y = self.labels
        add_votes(
            found, cosines, y.indptr, y.indices, self.n_neighbors, self.power,
            factor * self.factor, factor * self.best, out,
        )  # fmt: skip

    def scores_at(self, query: Query, labels: np.ndarray) -> np.ndarray:
        """Return the scores of some labels (n, m) of every document; those of repeated labels are undefined."""
        found, cosines = query.nearest(self, self.n_neighbors)
        y, out = self.labels, np.zeros(labels.shape, np.float32)
        votes_at(
            found, cosines, y.indptr, y.indices, self.n_neighbors, self.power, self.factor, self.best, labels,
            y.n_columns, out,
        )  # fmt: skip
        return out


@dataclass(frozen=True)
class SketchNeighbors:
    """Votes of the nearest training rows in the sketch, found by brute force; ties by smaller row.

    Attributes
    ----------
    rows : ndarray of shape (N, r)
        Rows of Z of unit length.
    labels : Csr
        Labels of the rows (N, L).
    alive : ndarray of shape (N,), uint8
        1 for rows that vote.
    n_neighbors : int, default 20
    power : float, default 2.0
    factor : float, default 1.0
    """

    rows: Any = array("n", "r")
    labels: Csr = record({"": LABELS})
    alive: Any = array("n", types=("|u1",))
    n_neighbors: int = 20
    power: float = 2.0
    factor: float = 1.0

    def add_scores(self, query: Query, factor: float, out: np.ndarray) -> None:
        """Add ``factor * votes``."""
        found, products = self._nearest(query)
        y, k = self.labels, products.shape[1]
        add_votes(found, products, y.indptr, y.indices, k, self.power, factor * self.factor, 0.0, out)

    def scores_at(self, query: Query, labels: np.ndarray) -> np.ndarray:
        """Return the scores of some labels (n, m) of every document; those of repeated labels are undefined."""
        found, products = self._nearest(query)
        y, k, out = self.labels, products.shape[1], np.zeros(labels.shape, np.float32)
        votes_at(
            found, products, y.indptr, y.indices, k, self.power, self.factor, 0.0, labels, y.n_columns, out
        )
        return out

    def _nearest(self, query: Query) -> tuple[np.ndarray, np.ndarray]:
        """Return the nearest rows and their cosines, (n, k) each."""
        z = unit_rows(query.sketch)
        k = min(self.n_neighbors, len(self.alive))
        rows = np.asarray(self.rows, np.float32)
        cosines = z @ rows.T
        cosines[:, np.asarray(self.alive) == 0] = -1.0
        # Products with equal rows may differ in the last bits, depending on where the rows are stored.
        margin = np.float32(2 * ROUNDING * rows.shape[1])
        least = np.partition(cosines, -k, axis=1)[:, -k] - margin
        return nearest_of(cosines, least, z, rows, k)


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


def unit_rows(z: np.ndarray) -> np.ndarray:
    """Scale rows to Euclidean length one; zero rows stay zero."""
    length = np.linalg.norm(z, axis=1, keepdims=True)
    return np.asarray(z / np.where(length > 0, length, 1.0))
