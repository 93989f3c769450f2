"""Compiled solver of one support vector machine: dual coordinate descent on some rows of a sparse matrix."""

from __future__ import annotations

import numpy as np

from distmom.compiled import compiled
from distmom.hashing import scramble


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
