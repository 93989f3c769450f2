"""Anchor words: topics from second moments alone, if every topic has a word that is rare in all other topics.

Source: Arora, Ge, Halpern, Mimno, Moitra, Sontag, Wu, Zhu, "A Practical Algorithm for Topic Modeling with
Provable Guarantees" (ICML 2013). With E2 the moment of pairs and M1 its row sums, the row ``E2_w / M1_w`` of a
word is a mixture of the rows of the anchor words with weights ``P(topic | w)``. The anchors are therefore the
vertices of a simplex that contains all rows, and ``phi_wk ~ P(k | w) M1_w``. The weights are those of least
squares (RecoverL2 of the paper), or of least Kullback-Leibler divergence (RecoverKL).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.compiled import compiled
from distmom.errors import NumericalError
from distmom.linalg.simplex import simplex_minima

#: numbers of a block of rows, in the rows and in their matrices of second derivatives
_BLOCK_VALUES = 1 << 20
#: sweeps of coordinate descent in a Newton step, and the change of a weight at which they end
_N_SWEEPS, _LEAST_CHANGE = 200, 1e-12
#: least decrease of the divergence, as a share of that of its tangent, and halvings of a step until there is one
_LEAST_DECREASE, _N_HALVINGS = 1e-4, 30
#: rounding of a change of the divergence
_ROUNDING = 64 * float(np.finfo(np.float64).eps)


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


def divergence_weights(
    rows: np.ndarray, anchors: np.ndarray, contexts: np.ndarray, n_iter: int = 100, tolerance: float = 1e-10
) -> np.ndarray:
    """Approximate rows by mixtures of anchor rows, by the Kullback-Leibler divergence of their contexts.

    For the distribution f of a row, those A of the anchors and weights w, ``sum(w) - sum_j f_j log (w'A)_j`` is
    minimised over non-negative w; at the minimum, w sums to one. Newton steps solve the quadratic problem over
    non-negative weights by coordinate descent (Kim, Carbonetto, Stephens, Anitescu, "A Fast Algorithm for Maximum
    Likelihood Estimation of Mixture Proportions Using Sequential Quadratic Programming", 2020). The exponentiated
    gradient of the paper has the same minimum, but approaches weights of zero slowly.

    Parameters
    ----------
    rows : ndarray of shape (n, r)
    anchors : ndarray of shape (k, r)
    contexts : ndarray of shape (r, m)
        Maps rows and anchors to their distributions. Negative entries become zero, contexts that no anchor has are
        left out, and distributions are normalised.
    n_iter : int, default=100
        Maximum number of Newton steps.
    tolerance : float, default=1e-10
        The steps of a row end when its divergence is within this of the least one, by the duality gap
        ``max_k sum_j f_j A_kj / (w'A)_j - 1``, or when rounding hides the decrease.

    Returns
    -------
    ndarray of shape (n, k)
        Non-negative weights; rows sum to 1. Weights are equal for a row without contexts.
    """
    k, A = len(anchors), np.maximum(anchors @ contexts, 0.0)
    seen = np.flatnonzero(A.any(axis=0))
    contexts, A = contexts[:, seen], _normalised(A[:, seen])
    left, right = np.triu_indices(k)
    pairs = np.ascontiguousarray((A[left] * A[right]).T)
    found = np.full((len(rows), k), 1.0 / k)
    step = max(1, _BLOCK_VALUES // (len(seen) + len(left)))
    for start in range(0, len(rows), step):
        some = slice(start, min(start + step, len(rows)))
        F = _normalised(np.maximum(rows[some] @ contexts, 0.0))
        found[some] = _least_divergence(F, A, pairs, found[some], n_iter, tolerance)
    return found


def _normalised(rows: np.ndarray) -> np.ndarray:
    """Return non-negative rows divided by their sums; rows of zeros stay zero."""
    return np.asarray(rows / np.maximum(rows.sum(axis=1, keepdims=True), np.finfo(float).tiny))


def _least_divergence(
    F: np.ndarray, A: np.ndarray, pairs: np.ndarray, initial: np.ndarray, n_iter: int, tolerance: float
) -> np.ndarray:
    """Return the weights of a block of rows F; ``pairs`` (m, k (k + 1) / 2) has the products of anchors i <= j."""
    found, weights, left = initial.copy(), initial.copy(), np.arange(len(F))
    for _ in range(n_iter):
        fitted = weights @ A
        ratios = np.divide(F, fitted, out=np.zeros_like(F), where=F > 0.0)
        slopes = 1.0 - ratios @ A.T
        open_ = -slopes.min(axis=1) > tolerance
        if not open_.any():
            break
        left, F, weights, fitted, slopes = left[open_], F[open_], weights[open_], fitted[open_], slopes[open_]
        curvatures = np.divide(ratios[open_], fitted, out=np.zeros_like(F), where=F > 0.0) @ pairs
        moves = _newton_moves(curvatures, slopes, weights, _N_SWEEPS, _LEAST_CHANGE)
        sizes = _step_sizes(F, fitted, moves @ A, moves, slopes)
        weights = np.maximum(weights + sizes[:, None] * moves, 0.0)
        # The best multiple of the weights has sum one.
        weights = found[left] = _normalised(weights)
        # No step is left where rounding hides the decrease.
        moved = sizes > 0.0
        left, F, weights = left[moved], F[moved], weights[moved]
    return found


def _step_sizes(
    F: np.ndarray, fitted: np.ndarray, ahead: np.ndarray, moves: np.ndarray, slopes: np.ndarray
) -> np.ndarray:
    """Return the share of the move of every row, halved until the divergence decreases; zero if it never does."""
    sizes, left = np.ones(len(F)), np.arange(len(F))
    expected, sums = np.einsum("nk,nk->n", moves, slopes), moves.sum(axis=1)
    for _ in range(_N_HALVINGS):
        with np.errstate(divide="ignore", invalid="ignore"):
            growth = np.log1p(sizes[left, None] * ahead[left] / fitted[left])
            change = -np.where(F[left] > 0.0, F[left] * growth, 0.0).sum(axis=1) + sizes[left] * sums[left]
        least = _LEAST_DECREASE * sizes[left] * expected[left] + _ROUNDING
        left = left[~(change <= least)]
        if not len(left):
            return sizes
        sizes[left] *= 0.5
    sizes[left] = 0.0
    return sizes


@compiled
def _newton_moves(curvatures: Any, slopes: Any, weights: Any, n_sweeps: Any, least_change: Any) -> Any:
    """Return the moves of rows of weights that minimise their quadratic approximations without negative weights.

    Parameters
    ----------
    curvatures : ndarray of shape (n, k (k + 1) / 2)
        Entries i <= j of the matrix of second derivatives.
    slopes, weights : ndarray of shape (n, k)
    n_sweeps : int
        Maximum number of sweeps of coordinate descent.
    least_change : float
        Change of a weight at which they end.

    Returns
    -------
    ndarray of shape (n, k)
    """
    n, k = slopes.shape
    H, slope, moves = np.empty((k, k)), np.empty(k), np.zeros((n, k))
    for row in range(n):
        place = 0
        for i in range(k):
            for j in range(i, k):
                H[i, j] = H[j, i] = curvatures[row, place]
                place += 1
            # Anchors may be equal up to rounding.
            H[i, i] *= 1.0 + 1e-13
            slope[i] = slopes[row, i]
        for _ in range(n_sweeps):
            largest = 0.0
            for i in range(k):
                if H[i, i] > 0.0:
                    change = max(-slope[i] / H[i, i], -weights[row, i] - moves[row, i])
                    if change != 0.0:
                        moves[row, i] += change
                        for j in range(k):
                            slope[j] += change * H[i, j]
                        largest = max(largest, abs(change))
            if largest <= least_change:
                break
    return moves
