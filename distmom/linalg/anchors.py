"""Anchor words: topics from second moments alone, if every topic has a word that is rare in all other topics.

Source: Arora, Ge, Halpern, Mimno, Moitra, Sontag, Wu, Zhu, "A Practical Algorithm for Topic Modeling with
Provable Guarantees" (ICML 2013). With E2 the moment of pairs and M1 its row sums, the row ``E2_w / M1_w`` of a
word is a mixture of the rows of the anchor words with weights ``P(topic | w)``. The anchors are therefore the
vertices of a simplex that contains all rows, and ``phi_wk ~ P(k | w) M1_w``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.compiled import compiled
from distmom.errors import NumericalError

#: iterations of projected gradient between checks, at which converged rows are removed
_ITERATIONS_BETWEEN_CHECKS = 10


def select_anchors(rows: np.ndarray, n_anchors: int, candidates: np.ndarray) -> np.ndarray:
    """Choose rows whose convex hull contains the others, greedily, then improve each once (algorithm 4).

    Parameters
    ----------
    rows : ndarray of shape (n, r)
    n_anchors : int
    candidates : ndarray of shape (m,), int
        Numbers of the rows that may be chosen.

    Returns
    -------
    ndarray of shape (n_anchors,), int
        Numbers of the chosen rows, in the order of their selection.

    Raises
    ------
    NumericalError
        If there are too few candidates, or they span too few dimensions.
    """
    points = rows[candidates].astype(np.float64)
    if len(points) < n_anchors:
        raise NumericalError(
            f"{n_anchors} anchor words are requested, but only {len(points)} words are frequent"
        )
    chosen = [int(np.argmax((points**2).sum(axis=1)))]
    origin = points[chosen[0]]
    rest = points - origin
    scale = float((rest**2).sum(axis=1).max())
    for _ in range(1, n_anchors):
        lengths = (rest**2).sum(axis=1)
        best = int(np.argmax(lengths))
        if not lengths[best] > 1e-20 * scale:
            raise NumericalError(
                f"{n_anchors} anchor words are requested, but the second moment has only {len(chosen)}"
            )
        chosen.append(best)
        direction = rest[best] / np.sqrt(lengths[best])
        rest -= np.outer(rest @ direction, direction)
    if n_anchors > 1:
        distances = _squared_distances(points, chosen)
        for i in range(n_anchors):
            best = int(np.argmax(distances[:, i]))
            if best != chosen[i]:
                chosen[i] = best
                distances = _squared_distances(points, chosen)
    return np.asarray(candidates[chosen])


def _squared_distances(points: np.ndarray, chosen: list[int]) -> np.ndarray:
    """Return squared distances, (n, k), from each point to the span of all chosen points but the j-th."""
    shifted = points - points[chosen[0]]
    basis, triangle = np.linalg.qr(shifted[chosen[1:]].T)
    inside = shifted @ basis
    outside = np.maximum((shifted**2).sum(axis=1) - (inside**2).sum(axis=1), 0.0)
    # The weight of a chosen point in the affine combination for a given point is zero on the span of the other
    # chosen points; the distance is the weight divided by its slope.
    slopes = np.linalg.inv(triangle)
    slopes = np.vstack([-slopes.sum(axis=0), slopes])
    weights = inside @ slopes.T
    weights[:, 0] += 1.0
    return np.asarray(outside[:, None] + weights**2 / (slopes**2).sum(axis=1))


def simplex_weights(
    rows: np.ndarray, anchors: np.ndarray, n_iter: int = 500, tolerance: float = 1e-5
) -> np.ndarray:
    """Approximate rows by mixtures of anchor rows, by least squares over the simplex.

    Parameters
    ----------
    rows : ndarray of shape (n, r)
    anchors : ndarray of shape (k, r)
    n_iter, tolerance
        As for `simplex_minima`.

    Returns
    -------
    ndarray of shape (n, k)
        Non-negative weights; rows sum to 1.
    """
    return simplex_minima(anchors @ anchors.T, rows @ anchors.T, n_iter, tolerance)


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
    found = np.full(linear.shape, 1.0 / len(gram))
    weights, ahead, momentum = found.copy(), found.copy(), np.ones(len(linear))
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
            found[left] = weights
            going_on = np.abs(moved).max(axis=1) >= tolerance
            left, momentum = left[going_on], momentum[going_on]
            weights, ahead, linear = weights[going_on], ahead[going_on], linear[going_on]
            if not len(left):
                break
    return found


@compiled
def _project_rows(points: Any) -> None:
    """Replace rows by the nearest distributions, in place.

    Michelot, "A finite algorithm for finding the projection of a point onto the canonical simplex" (1986).
    """
    n, k = points.shape
    for i in range(n):
        row = points[i]
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
