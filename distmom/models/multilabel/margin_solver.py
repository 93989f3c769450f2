"""Solver of linear support vector machines: dual coordinate descent, for the labels of a group."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import coo_array, csr_array

from distmom.compiled import compiled
from distmom.engine import Csr
from distmom.hashing import GOLDEN, scramble, scramble_array

#: most pairs of a document and a label, over all labels
MAX_VISITS = 200_000_000
#: least negatives of a label, where there are as many
MIN_NEGATIVES = 20_000
#: largest difference of projected gradients, and most epochs, at which the descent ends
TOLERANCE, MAX_EPOCHS = 0.5, 100
#: weights below this share of the largest of a label are left out
KEPT_SHARE = 0.01


def n_negatives(n_labels: int) -> int:
    """Return the most documents without a label that its classifier is fitted to."""
    return max(MIN_NEGATIVES, MAX_VISITS // max(1, n_labels))


def fit_group(
    index: int,
    n_groups: int,
    rows: Csr,
    holders: Csr,
    alive: Any,
    costs: tuple[float, ...],
    d: int,
    seed: int,
    tolerance: float = TOLERANCE,
) -> list[csr_array]:
    """Fit the classifiers of labels ``index, index + n_groups, ...``; return their weights for every cost."""
    own, y = rows.opened(), holders.opened()
    documents = np.flatnonzero(alive.load()).astype(np.int32)
    n_labels = len(y.indptr) - 1
    found: list[list[tuple[np.ndarray, np.ndarray, int]]] = [[] for _ in costs]
    for label in range(index, n_labels, n_groups):
        holding = np.asarray(y.indices[y.indptr[label] : y.indptr[label + 1]])
        fits = label_weights(
            own, documents, holding, costs, d, n_negatives(n_labels), seed + label, tolerance
        )
        for parts, (words, values) in zip(found, fits, strict=True):
            parts.append((words, values, label))
    return [by_word(parts, (d + 1, n_labels)) for parts in found]


def label_weights(
    rows: Csr,
    documents: np.ndarray,
    holding: np.ndarray,
    costs: tuple[float, ...],
    d: int,
    most_negatives: int,
    seed: int,
    tolerance: float = TOLERANCE,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Fit the classifier of one label for every cost.

    Parameters
    ----------
    rows : Csr
        A (n_documents, d).
    documents : ndarray of int32
        Documents of the fit, ascending.
    holding : ndarray of int32
        Documents that have the label.
    costs : tuple of float
    d : int
    most_negatives : int
        Most documents without the label that are used.
    seed : int
    tolerance : float, default 0.5
        Of the descent, see `fit_margin`.

    Returns
    -------
    list of (ndarray, ndarray)
        Features, ascending, ``d`` for the constant one, and their weights, float32.
    """
    positive = np.isin(documents, holding, assume_unique=True)
    if not positive.any():
        # What the classifier would be: no document has the label.
        return [(np.array([d], np.int32), np.array([-1.0], np.float32))] * len(costs)
    share = most_negatives / max(1, int((~positive).sum()))
    if share < 1.0:
        drawn = scramble_array(documents.astype(np.uint64) * GOLDEN ^ np.uint64(seed))
        taken = positive | (drawn < np.uint64(share * 2.0**64))
        documents, positive = documents[taken], positive[taken]
    else:
        share = 1.0
    alpha, weights = np.zeros(len(documents)), np.zeros(d + 1)
    fits = []
    for cost in costs:
        fit_margin(
            rows.indptr, rows.indices, rows.data, documents, positive, cost, cost / share, tolerance, MAX_EPOCHS,
            seed, alpha, weights,
        )  # fmt: skip
        words = np.flatnonzero(np.abs(weights) > KEPT_SHARE * np.abs(weights).max())
        fits.append((words.astype(np.int32), weights[words].astype(np.float32)))
    return fits


def by_word(parts: list[tuple[np.ndarray, np.ndarray, int]], shape: tuple[int, int]) -> csr_array:
    """Return weights of labels as a matrix with a row for every feature."""
    words = np.concatenate([words for words, _, _ in parts])
    values = np.concatenate([values for _, values, _ in parts])
    labels = np.concatenate([np.full(len(words), label, np.int32) for words, _, label in parts])
    matrix = csr_array(coo_array((values, (words, labels)), shape=shape))
    matrix.sort_indices()
    return matrix


@compiled
def fit_margin(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    rows: np.ndarray,
    positive: np.ndarray,
    cost: float,
    negative_cost: float,
    tolerance: float,
    n_epochs: int,
    seed: int,
    alpha: np.ndarray,
    weights: np.ndarray,
) -> int:
    """Minimise ``|w|^2 / 2 + sum_i C_i max(0, 1 - y_i w'(a_i, 1))^2`` over w, by its dual.

    Dual coordinate descent with shrinking: Hsieh, Chang, Lin, Keerthi and Sundararajan, "A dual coordinate
    descent method for large-scale linear SVM" (ICML 2008), algorithm 3. As there, the intercept is the weight of a
    constant feature.

    Parameters
    ----------
    indptr, indices, data : ndarray
        Rows a_i in CSR.
    rows : ndarray of shape (n,), int32
        The rows of the problem.
    positive : ndarray of shape (n,), bool
        Whether y_i is 1, else -1.
    cost, negative_cost : float
        C_i of rows with y_i = 1 and -1.
    tolerance : float
        Largest difference of projected gradients at which the descent ends.
    n_epochs : int
        Largest number of epochs.
    seed : int
        Of the order in which rows are visited.
    alpha : ndarray of shape (n,), float64
        Dual variables to start from, changed in place.
    weights : ndarray of shape (d + 1,), float64
        ``sum_i alpha_i y_i (a_i, 1)`` of these, changed in place; the last entry is the intercept.

    Returns
    -------
    int
        Number of epochs.
    """
    n = rows.shape[0]
    constant = weights.shape[0] - 1
    curvature = np.empty(n)
    for i in range(n):
        total = 1.0 + (0.5 / cost if positive[i] else 0.5 / negative_cost)
        for p in range(indptr[rows[i]], indptr[rows[i] + 1]):
            total += np.float64(data[p]) * np.float64(data[p])
        curvature[i] = total
    active = np.arange(n)
    n_active = n
    bound = np.inf
    state = np.uint64(seed)
    epoch = 0
    while epoch < n_epochs:
        epoch += 1
        largest = -np.inf
        smallest = np.inf
        s = 0
        while s < n_active:
            state += np.uint64(1)
            other = s + np.int64(scramble(state) % np.uint64(n_active - s))
            i = active[other]
            active[other] = active[s]
            active[s] = i
            sign = 1.0 if positive[i] else -1.0
            start = indptr[rows[i]]
            stop = indptr[rows[i] + 1]
            product = weights[constant]
            for p in range(start, stop):
                product += weights[indices[p]] * data[p]
            diagonal = 0.5 / cost if positive[i] else 0.5 / negative_cost
            gradient = sign * product - 1.0 + diagonal * alpha[i]
            projected = gradient
            if alpha[i] == 0.0:
                if gradient > bound:
                    # A row far from the margin is not visited again in this round.
                    n_active -= 1
                    active[s] = active[n_active]
                    active[n_active] = i
                    continue
                projected = min(gradient, 0.0)
            largest = max(largest, projected)
            smallest = min(smallest, projected)
            if abs(projected) > 1e-12:
                before = alpha[i]
                alpha[i] = max(before - gradient / curvature[i], 0.0)
                step = (alpha[i] - before) * sign
                weights[constant] += step
                for p in range(start, stop):
                    weights[indices[p]] += step * data[p]
            s += 1
        if largest - smallest <= tolerance:
            if n_active == n:
                break
            # The solution of the active rows is checked on all of them.
            n_active = n
            bound = np.inf
            continue
        bound = largest if largest > 0.0 else np.inf
    return epoch
