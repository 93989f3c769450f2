"""Distributions nearest to given rows, and minima of quadratic functions over the simplex.

Distributions, rows of non-negative numbers of sum one, are the points of the simplex.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.compiled import compiled

#: iterations of projected gradient between checks, at which converged rows are removed
_ITERATIONS_BETWEEN_CHECKS = 10
#: largest entry of a row, in magnitude, up to which rounding leaves digits of its projection
_FAR = 1e8


def simplex_minima(
    gram: np.ndarray, linear: np.ndarray, n_iter: int = 500, tolerance: float = 1e-5
) -> np.ndarray:
    """Minimise ``w'Gw / 2 - l'w`` over the simplex for every row l.

    Projected gradient with momentum (FISTA), which is reset for rows where it leads uphill (O'Donoghue and Candes,
    "Adaptive restart for accelerated gradient schemes", 2015). The step size is the inverse of the largest
    eigenvalue of G.

    Parameters
    ----------
    gram : ndarray of shape (k, k)
        G, symmetric and positive semidefinite.
    linear : ndarray of shape (n, k)
    n_iter : int, default=500
        Maximum number of iterations.
    tolerance : float, default=1e-5
        The iterations of a row end when no weight changes by this much.

    Returns
    -------
    ndarray of shape (n, k)
        Non-negative weights; rows sum to 1.
    """
    step = 1.0 / max(float(np.linalg.eigvalsh(gram)[-1]), np.finfo(float).tiny)
    minima = np.full(linear.shape, 1.0 / len(gram))
    weights, ahead, momentum = minima.copy(), minima.copy(), np.ones(len(linear))
    left = np.arange(len(linear))
    for i in range(1, n_iter + 1):
        after = ahead - step * (ahead @ gram - linear)
        _project_rows(after)
        moved = after - weights
        momentum[np.einsum("nk,nk->n", ahead - after, moved) > 0.0] = 1.0
        following = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
        ahead = after + ((momentum - 1.0) / following)[:, None] * moved
        weights, momentum = after, following
        if i % _ITERATIONS_BETWEEN_CHECKS == 0 or i == n_iter:
            minima[left] = weights
            going_on = np.abs(moved).max(axis=1) >= tolerance
            left, momentum = left[going_on], momentum[going_on]
            weights, ahead, linear = weights[going_on], ahead[going_on], linear[going_on]
            if not len(left):
                break
    return minima


def simplex_rows(rows: np.ndarray) -> np.ndarray:
    """Return the distributions nearest to the rows of a matrix (n, k), by sorting."""
    top = rows.max(axis=1, keepdims=True)
    # A projection does not depend on what all entries share.
    rows = np.where(np.abs(top) > _FAR, rows - top, rows)
    ordered = -np.sort(-rows, axis=1)
    shifts = (np.cumsum(ordered, axis=1) - 1.0) / np.arange(1, rows.shape[1] + 1)
    n_left = (ordered > shifts).sum(axis=1)
    return np.asarray(np.maximum(rows - shifts[np.arange(len(rows)), n_left - 1][:, None], 0.0))


@compiled
def _project_rows(points: Any) -> None:
    """Replace rows by the nearest distributions, in place.

    Michelot, "A finite algorithm for finding the projection of a point onto the canonical simplex" (1986).
    """
    n, k = points.shape
    for i in range(n):
        row = points[i]
        top = np.max(row)
        if abs(top) > _FAR:
            for c in range(k):
                row[c] -= top
        size = k
        total = 0.0
        for c in range(k):
            total += row[c]
        shift = (total - 1.0) / size
        while True:
            n_left, total = 0, 0.0
            for c in range(k):
                if row[c] > shift:
                    n_left += 1
                    total += row[c]
            # In exact arithmetic the support only shrinks; stop if rounding makes it grow or empty.
            if n_left == 0 or n_left >= size:
                break
            size = n_left
            shift = (total - 1.0) / size
        for c in range(k):
            row[c] = max(row[c] - shift, 0.0)
