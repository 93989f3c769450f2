"""Solver of the classifiers of a gate: each label's documents against hard and random documents without it."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.compiled import compiled
from distmom.engine import Csr
from distmom.hashing import GOLDEN, scramble
from distmom.models.multilabel.classifiers.descent import MAX_EPOCHS, descend, own_seed
from distmom.models.multilabel.classifiers.margin_solver import by_word

#: cost of the squared hinge loss
COST = 0.3
#: a descent ends at this difference of projected gradients
GATE_TOLERANCE = 0.5
#: weights below this share of the largest weight of their label are left out
GATE_KEPT_SHARE = 0.1
#: share of all random documents that is divided equally among the labels; the rest is divided in proportion to
#: the frequencies of the labels, as the random documents of a rare label would otherwise outweigh its own
EVEN_SHARE = 2.0 / 3.0


def n_drawn(n_documents: int, frequency: np.ndarray, n_random: float) -> np.ndarray:
    """Return the number of random documents of every label, (L,) int64.

    Parameters
    ----------
    n_documents : int
        Number of documents of the fit.
    frequency : ndarray of shape (L,)
        Number of documents of every label.
    n_random : float
        Number of random labels per document, on average.
    """
    even = EVEN_SHARE / max(1, len(frequency))
    uneven = (1.0 - EVEN_SHARE) / max(1.0, float(np.sum(frequency))) * frequency
    return np.asarray(np.ceil(n_random * n_documents * (even + uneven)), np.int64)


def fit_gate_group(
    index: int, n_groups: int, rows: Csr, judged: Csr, alive: Any, drawn: Any, d: int, seed: int
) -> list[csr_array]:
    """Fit the classifiers of labels ``index, index + n_groups, ...``; return their weights (d + 1, L).

    Parameters
    ----------
    index, n_groups : int
    rows : Csr
        A (n_documents, d).
    judged : Csr
        For every label, its documents (1), and those for which it is a hard wrong label (-1).
    alive : StoredArray of shape (n_documents,), uint8
        1 for the documents of the fit.
    drawn : StoredArray of shape (n_labels,), int64
        Number of random documents of every label (see `n_drawn`).
    d : int
    seed : int
    """
    own, labels, known = rows.opened(), judged.opened(), np.asarray(alive.load()).astype(bool)
    # Plain arrays: slices of maps take longer than the classifiers of rare labels.
    bounds, documents, signs = (np.asarray(x) for x in (labels.indptr, labels.indices, labels.data))
    n_labels, n_others = len(bounds) - 1, np.asarray(drawn.load())
    weights, met = np.zeros(d + 1), np.full(len(known), -1, np.int32)
    parts = []
    for label in range(index, n_labels, n_groups):
        judged_ones = slice(bounds[label], bounds[label + 1])
        used, positive = gate_documents(
            documents[judged_ones], signs[judged_ones], known, int(n_others[label]), seed, label, met
        )
        parts.append((*gate_weights(own, used, positive, weights, own_seed(seed, label)), label))
    return [by_word(parts, (d + 1, n_labels))]


def gate_documents(
    documents: np.ndarray,
    signs: np.ndarray,
    known: np.ndarray,
    n_drawn: int,
    seed: int,
    label: int,
    met: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the documents to which the classifier of a label is fitted, ascending, and which of them have it.

    Parameters
    ----------
    documents : ndarray of int32
        Documents of the label (positive sign), and those for which it is a hard wrong label.
    signs : ndarray of the same shape
    known : ndarray of shape (n_documents,), bool
        Which documents belong to the fit.
    n_drawn : int
        Number of documents that are drawn with replacement, and used where they belong to the fit.
    seed : int
    label : int
    met : ndarray of shape (n_documents,), int32
        Values below ``label``; used as working memory, and left with values of at most ``label``.
    """
    most = len(documents) + n_drawn
    used, positive = np.empty(most, np.int32), np.empty(most, bool)
    first = np.uint64(seed) ^ (np.uint64(label + 1) << np.uint64(32))
    n = _collect(documents, signs, known, n_drawn, first, label, met, used, positive)
    order = np.argsort(used[:n])
    return used[:n][order], positive[:n][order]


@compiled
def _collect(
    documents: np.ndarray,
    signs: np.ndarray,
    known: np.ndarray,
    n_drawn: int,
    first: np.uint64,
    label: int,
    met: np.ndarray,
    used: np.ndarray,
    positive: np.ndarray,
) -> int:
    """Collect the documents of `gate_documents`, each once; return their number."""
    n = 0
    for j in range(documents.shape[0]):
        i = documents[j]
        if known[i]:
            met[i] = label
            used[n] = i
            positive[n] = signs[j] > 0
            n += 1
    for draw in range(n_drawn):
        drawn = scramble((first + np.uint64(draw)) * GOLDEN)
        i = np.int64(drawn % np.uint64(known.shape[0]))
        if known[i] and met[i] != label:
            met[i] = label
            used[n] = i
            positive[n] = False
            n += 1
    return n


def gate_weights(
    rows: Csr, used: np.ndarray, positive: np.ndarray, weights: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fit the classifier of one label.

    Parameters
    ----------
    rows : Csr
        A (n_documents, d).
    used : ndarray of shape (n,), int32
        Documents of the fit, ascending.
    positive : ndarray of shape (n,), bool
        Which of these documents have the label.
    weights : ndarray of shape (d + 1,), float64
        Zeros; used as working memory, and left as zeros.
    seed : int

    Returns
    -------
    (ndarray, ndarray)
        Features, ascending, ``d`` for the constant one, and their weights, float32.
    """
    if not positive.any():
        # Nothing is known about the label: the other heads decide.
        return np.zeros(0, np.int32), np.zeros(0, np.float32)
    descend(
        rows.indptr, rows.indices, rows.data, used, positive, COST, COST, GATE_TOLERANCE, MAX_EPOCHS,
        np.uint64(seed), np.zeros(len(used)), weights,
    )  # fmt: skip
    n_entries = min(len(weights), int((rows.indptr[used + 1] - rows.indptr[used]).sum()) + 1)
    words, values = np.empty(n_entries, np.int32), np.empty(n_entries, np.float32)
    n = take_weights(rows.indptr, rows.indices, used, GATE_KEPT_SHARE, weights, words, values)
    order = np.argsort(words[:n])
    return words[:n][order], values[:n][order]


@compiled
def take_weights(
    indptr: np.ndarray,
    indices: np.ndarray,
    rows: np.ndarray,
    share: float,
    weights: np.ndarray,
    words: np.ndarray,
    values: np.ndarray,
) -> int:
    """Move weights above a share of the largest one to lists, and set the weights of all words of rows to zero.

    Parameters
    ----------
    indptr, indices : ndarray
        Words of all rows.
    rows : ndarray of int32
        Rows that together contain every word whose weight is not zero.
    share : float
    weights : ndarray of shape (d + 1,)
        Changed in place; the last one is the intercept, which is always moved.
    words, values : ndarray
        Filled in place, with room for all different words of the rows and the intercept.

    Returns
    -------
    int
        Number of weights in the lists.
    """
    constant = weights.shape[0] - 1
    largest = abs(weights[constant])
    for i in rows:
        for p in range(indptr[i], indptr[i + 1]):
            largest = max(largest, abs(weights[indices[p]]))
    words[0] = constant
    values[0] = weights[constant]
    weights[constant] = 0.0
    n = 1
    for i in rows:
        for p in range(indptr[i], indptr[i + 1]):
            v = indices[p]
            if abs(weights[v]) > share * largest:
                words[n] = v
                values[n] = weights[v]
                n += 1
            weights[v] = 0.0
    return n
