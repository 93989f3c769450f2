"""Heads: alternative ways to score all labels for a block of documents.

A head is a frozen dataclass of arrays with a method ``add_scores(query, factor, out)`` that adds its scores times
a factor to a dense matrix (n, L). A `Scorer` adds the scores of several heads. X is the presence of words, A the
tf-idf rows of unit length, Z = A R a sketch of them.

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

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block
from distmom.engine import Csr, MixedRows
from distmom.errors import UsageError
from distmom.models.multilabel.covariates import Covariates
from distmom.models.multilabel.kernels import (
    check_labels,
    nearest_of,
    nearest_rows,
    sort_top,
    top_by_states,
    top_labels,
    top_of_products,
    update_top,
)
from distmom.models.multilabel.score_kernels import add_sparse_scores, add_votes, sparse_scores_at
from distmom.models.multilabel.stack import Stack, probability
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
#: labels of the largest sums whose factors by a gate are computed first
GATED_LABELS = 50
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
    idf : ndarray of shape (d,)
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
        a, w = with_constant(query.features), self.weights
        margins = np.zeros(labels.shape, np.float32)
        sparse_scores_at(
            a.indptr, a.indices, a.data, w.sparse.indptr, w.sparse.indices, w.sparse.data, w.dense_row, w.dense,
            -2.0, labels, w.sparse.n_columns, margins,
        )  # fmt: skip
        return self._factors(margins)

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
        z = unit_rows(query.sketch)
        k = min(self.n_neighbors, len(self.alive))
        rows = np.asarray(self.rows, np.float32)
        cosines = z @ rows.T
        cosines[:, np.asarray(self.alive) == 0] = -1.0
        # Products with equal rows may differ in the last bits, depending on where the rows are stored.
        margin = np.float32(2 * ROUNDING * rows.shape[1])
        least = np.partition(cosines, -k, axis=1)[:, -k] - margin
        found, products = nearest_of(cosines, least, z, rows, k)
        y = self.labels
        add_votes(found, products, y.indptr, y.indices, k, self.power, factor * self.factor, 0.0, out)


Head = StateHead | RidgeHead | SparseHead | GateHead | FrequentHead | NeighborsHead | SketchNeighbors


@dataclass(frozen=True)
class Scorer:
    """The features, heads and weights that score documents.

    Attributes
    ----------
    n_labels : int
    idf : ndarray of shape (d,)
    heads : tuple of (str, Head)
        Names and heads.
    weights : tuple of float
        Factor of every head in the sum.
    basis : ndarray of shape (d, r), optional
        R of the sketch.
    label_factor : ndarray of shape (L,), optional
        Multiplies the positive part of every label's score (propensity re-weighting), or its probability where
        heads are stacked; none by default.
    stack : Stack, optional
        Combines the scores of variants of the heads; their weighted sum by default.
    calibration : Stack, optional
        Log-odds of a label given the weighted sum; unknown by default.
    label_log_odds : ndarray of shape (L,), optional
        Log-odds of the frequency of every label; required by a stack whose coefficients vary.
    weighs_probability : bool, default False
        Whether ``label_factor`` multiplies the calibrated probability of a weighted sum instead of the sum.
    """

    n_labels: int
    idf: Any
    heads: tuple[tuple[str, Any], ...]
    weights: tuple[float, ...]
    basis: Any = None
    label_factor: Any = None
    stack: Stack | None = None
    calibration: Stack | None = None
    weighs_probability: bool = False
    label_log_odds: Any = None

    def query(self, block: Block) -> Query:
        """Prepare a block for scoring."""
        return Query(block, self.idf, self.basis)

    def scores(self, query: Query) -> np.ndarray:
        """Return the scores of all labels, (n, L) float32; log-odds where heads are stacked."""
        out = np.zeros((query.block.n_documents, self.n_labels), np.float32)
        if self.stack is not None:
            heads, scores = dict(self.heads), np.zeros((len(self.stack.inputs), *out.shape), np.float32)
            for own, given in zip(scores, self.stack.inputs, strict=True):
                variant(heads, given.name).add_scores(query, 1.0, own)
            out = self.stack.log_odds(scores, self._covariates(query))
            if self.label_factor is not None:
                out = probability(out) * np.asarray(self.label_factor, np.float32)
            return out
        self._add_sums(query, out)
        if self.gate is not None:
            self.gate.multiply(query, out)
        if self.label_factor is not None:
            if self.weighs_probability and self.calibration is not None:
                out = probability(self.calibration.log_odds(out[None]))
            else:
                np.maximum(out, np.float32(1e-6), out=out)
            out *= np.asarray(self.label_factor, np.float32)
        return out

    def _covariates(self, query: Query) -> Covariates | None:
        if self.stack is None or not self.stack.effects:
            return None
        return Covariates(query.covariates(self.index), np.asarray(self.label_log_odds))

    @property
    def index(self) -> NeighborsHead | None:
        """The first head with an index of training documents, if there is one."""
        return next((head for _, head in self.heads if isinstance(head, NeighborsHead)), None)

    @property
    def gate(self) -> GateHead | None:
        """The head that multiplies the sum of the others, if there is one."""
        if len(self.heads) == 1:
            return None
        return next((head for _, head in self.heads if isinstance(head, GateHead)), None)

    def _add_sums(self, query: Query, out: np.ndarray) -> None:
        """Add the weighted sum of all heads but the gate."""
        gate = self.gate
        for (_, head), weight in zip(self.heads, self.weights, strict=True):
            if head is not gate:
                head.add_scores(query, weight, out)

    @property
    def has_probabilities(self) -> bool:
        """Whether scores can be converted to probabilities."""
        return self.label_factor is None and (self.stack is not None or self.calibration is not None)

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities of labels, given their scores (...), float32; see `has_probabilities`."""
        if self.stack is not None:
            return probability(scores)
        if self.calibration is None:
            raise ValueError("the scores of this model were not calibrated")
        return probability(self.calibration.log_odds(np.ascontiguousarray(scores)[None]))

    @property
    def ranks_alone(self) -> bool:
        """Whether `top` finds the best labels without a dense matrix of scores."""
        heads = [head for _, head in self.heads]
        alone = len(heads) == 1 and isinstance(heads[0], StateHead | RidgeHead)
        return alone and self.label_factor is None and self.stack is None

    def top(self, block: Block, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best labels of documents and their scores, (n, k) each; ties by smaller label."""
        if self.ranks_alone:
            labels, values = self.heads[0][1].top(self.query(block), self.weights[0], k)
            check_labels(labels, self.n_labels)
            return labels, values
        labels = np.zeros((block.n_documents, k), np.int32)
        values = np.zeros((block.n_documents, k), np.float32)
        few = max(GATED_LABELS, 4 * k)
        for rows in self.blocks(block.n_documents):
            query = self.query(block.take(rows))
            if self.gate is not None and self.label_factor is None and few < self.n_labels:
                labels[rows], values[rows] = self._gated_top(query, self.gate, k, few)
            else:
                labels[rows], values[rows] = top_labels(self.scores(query), k)
        return labels, values

    def _gated_top(self, query: Query, gate: GateHead, k: int, few: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what `top` does for a gated sum, with the factors of few labels where these suffice."""
        sums = np.zeros((query.block.n_documents, self.n_labels), np.float32)
        self._add_sums(query, sums)
        found, totals = top_labels(sums, few)
        gated = np.where(totals > 0.0, totals * gate.scores_at(query, found), totals)
        order = np.lexsort((found, -gated), axis=1)[:, :k]
        labels, values = np.take_along_axis(found, order, axis=1), np.take_along_axis(gated, order, axis=1)
        # Factors are at most one, so a label beyond these has at most the last of their sums.
        for row in np.flatnonzero(values[:, -1] <= totals[:, -1]):
            own = slice(row, row + 1)
            gate.multiply(query.part(own), sums[own])
            labels[own], values[own] = top_labels(sums[own], k)
        return labels, values

    def blocks(self, n_documents: int, min_rows: int = MIN_ROWS) -> Iterator[slice]:
        """Cut documents into blocks whose dense scores stay small."""
        n_matrices = 1 if self.stack is None else 1 + len(self.stack.inputs)
        step = rows_at_a_time(n_matrices * self.n_labels, min_rows)
        for start in range(0, n_documents, step):
            yield slice(start, min(start + step, n_documents))

    def only(self, name: str) -> Scorer:
        """Return the scorer of one head alone; a UsageError if there is no head of that name."""
        heads = tuple(h for h in self.heads if h[0] == name)
        if not heads:
            names = ", ".join(known for known, _ in self.heads)
            raise UsageError(f"head: expected one of {names}, which the model has, got {name!r}")
        return replace(self, heads=heads, weights=(1.0,), stack=None, calibration=None)


def variant(heads: Mapping[str, Any], name: str) -> Any:
    """Return the head whose scores are the input of a stack of that name.

    Parameters
    ----------
    heads : mapping of str to Head
        The heads of a scorer.
    name : str
        ``neighbors-N-P`` stands for the votes of N neighbours with power P, ``best-cosine`` for the largest cosine
        among 75 neighbours, and any other name for the head of that name, or of the part before its hyphen.

    Raises
    ------
    KeyError
        If there is no such head.
    ValueError
        If the name has no number of neighbours or no power.
    """
    family, _, rest = name.partition("-")
    if family == "neighbors" and rest:
        n, power = (float(part) for part in rest.split("-"))
        if not (n >= 1 and n.is_integer() and math.isfinite(power)):
            raise ValueError(f"expected a number of neighbours and a power, got {name!r}")
        return replace(heads[family], n_neighbors=int(n), power=power, factor=1.0, best=0.0)
    if name == "best-cosine":
        return replace(heads["neighbors"], n_neighbors=75, power=3.0, factor=0.0, best=1.0)
    return heads[name] if name in heads else heads[family]


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
