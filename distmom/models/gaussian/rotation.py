"""From the moments of rows to a mixture of spherical Gaussians, by random rotations.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 3.3.2 and proposition 3.3. The coordinates of a row under a random orthogonal matrix are independent given
its component, whatever the variance of the component. Three groups of them are therefore three views, and neither
their cross moments nor their third moment contain any noise: no variance has to be estimated and subtracted first.

With ``y = Q'(x - m)`` and R uniformly random, the views are ``(R_t'y, 1)``: rows are centred, and the constant
coordinate replaces the component that centring takes away (see `distmom.spectral.steps.spherical`). All rotations
are applied to one tensor of moments, and their estimates are averaged.

The variances follow from ``E[||x - m||^2]`` and ``E[y ||x - m||^2]``, which are linear in them, given the rest:

    sum_i w_i s_i = (E||x - m||^2 - sum_i w_i ||a_i||^2) / d
    sum_i w_i a_i s_i = (E[y ||x - m||^2] - sum_i w_i a_i ||a_i||^2) / (d + 2)       a_i = Q'(mu_i - m)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from distmom.blas import one_blas_thread
from distmom.errors import NumericalError
from distmom.linalg import multilinear
from distmom.moments.rows.gaussian import RowMoments
from distmom.moments.three_views import N_GROUPS, PAIRS, GroupMoments
from distmom.spectral.steps.isotropic import check_range, noise_of
from distmom.spectral.steps.spherical import (
    LEAST_VARIANCE,
    LEAST_WEIGHT,
    Found,
    least_variance,
)
from distmom.spectral.steps.three_views import align_views

#: directions per direction between components: with fewer, a rotation more often makes badly conditioned views
_PER_DIRECTION = 2 * N_GROUPS


def n_directions(k: int) -> int:
    """Return the number of directions of a basis for k components, whose centred means have rank k - 1."""
    return _PER_DIRECTION * (k - 1)


def most_components(d: int) -> int:
    """Return the most components that views of d coordinates together can carry."""
    return d // N_GROUPS + 1


def recover_by_rotation(
    moments: RowMoments, k: int, d: int, common: bool, method: str, seed: int, offset: float, n_rotations: int
) -> Found:
    """Find k components in the moments of rows of d columns; runs on the scheduler node.

    Parameters
    ----------
    moments : RowMoments
        In a basis of at least three times ``k - 1`` vectors.
    k, d : int
    common : bool
        Whether all components have the same variance.
    method : str
        A method of `distmom.linalg.decompose`.
    seed : int
    offset : float
        Squared norm of the mean of the rows, for the rounding errors of distances.
    n_rotations : int

    Raises
    ------
    NumericalError
        If no rotation gives views that carry k components, the rows are so far from the origin that their
        covariance is inexact, or the values are so large or small that moments overflow or underflow.
    """
    check_range(moments, k, d, offset)
    rng = np.random.default_rng(seed)
    with one_blas_thread():
        values, vectors = np.linalg.eigh(moments.second)
        values, plane = values[::-1], vectors[:, ::-1][:, :2]
        noise = noise_of(values, moments.trace, k, d)
        if k == 1:
            means, weights, diagnostics = np.zeros((len(values), 1)), np.ones(1), dict[str, Any]()
        else:
            # No variance between views is then larger than that of the constant coordinate.
            unit = float(np.sqrt(values[0])) if values[0] > 0.0 else 1.0
            estimates = _estimates(moments, k, method, rng, n_rotations, unit)
            means, weights = _averaged(estimates)
            diagnostics = {
                "n_rotations": len(estimates),
                "conditioning": [each.conditioning for each in estimates],
                "asymmetry": float(np.median([each.asymmetry for each in estimates])),
                "residual": float(np.median([each.residual for each in estimates])),
                "spread": _spread(estimates, means),
            }
        raw = _variances(moments, means, weights, d)
    clipped = weights < LEAST_WEIGHT
    weights = np.maximum(weights, LEAST_WEIGHT)
    weights = weights / weights.sum()
    floor = max(LEAST_VARIANCE * noise, least_variance(moments.trace, d, offset))
    variances = np.full(k, weights @ raw) if common else raw
    report = {
        "spectrum": [float(x) for x in values],
        "noise_variance": float(noise),
        "n_components": k,
        **diagnostics,
        "n_clipped_weights": int(clipped.sum()),
        "n_floored_variances": int((variances < floor).sum()),
        "least_variance": float(variances.min()),
    }
    order = np.argsort(-weights, kind="stable")
    variances = np.maximum(variances, floor)
    return Found(means[:, order], weights[order], variances[order], plane, moments.kept, report)


@dataclass(frozen=True)
class _Estimate:
    """The components by one rotation.

    Attributes
    ----------
    means : ndarray of shape (r, k)
        ``Q'(mu_i - m)``.
    weights : ndarray of shape (k,)
    conditioning : float
        The smallest of the ``k - 1`` leading singular values of a cross moment of two views, as a share of the
        variance between components per direction.
    asymmetry, residual : float
    """

    means: np.ndarray
    weights: np.ndarray
    conditioning: float
    asymmetry: float
    residual: float


def _estimates(
    moments: RowMoments, k: int, method: str, rng: np.random.Generator, n_rotations: int, unit: float
) -> list[_Estimate]:
    """Return the estimates of the rotations that carry k components, the best conditioned first.

    Views are divided by ``unit`` for the decomposition.
    """
    r, found, refused = len(moments.second), list[_Estimate](), None
    for _ in range(n_rotations):
        factors = np.linalg.qr(rng.standard_normal((r, r)))
        rotation = factors.Q * np.sign(np.diag(factors.R))
        try:
            found.append(_estimate(moments, k, method, rotation, unit))
        except NumericalError as error:
            refused = error
    if not found:
        assert refused is not None
        raise refused
    return sorted(found, key=lambda each: -each.conditioning)


def _estimate(moments: RowMoments, k: int, method: str, rotation: np.ndarray, unit: float) -> _Estimate:
    views = [rotation[:, t::N_GROUPS] for t in range(N_GROUPS)]
    extended = _extended(moments, [view / unit for view in views])
    own = align_views(extended, k, method)
    means = sum(
        (view @ rows[: view.shape[1]] for view, rows in zip(views, own.means, strict=True)), np.zeros(())
    )
    weights = own.weights / own.weights.sum()
    singular = [np.linalg.svd(pair[:-1, :-1], compute_uv=False)[k - 2] for pair in extended.pairs]
    between = max(float(weights @ (means**2).sum(axis=0)) / (k - 1), np.finfo(float).tiny)
    return _Estimate(
        unit * means,
        weights,
        float(min(singular)) / between,
        own.diagnostics["asymmetry"],
        own.diagnostics["residual"],
    )


def _extended(moments: RowMoments, views: list[np.ndarray]) -> GroupMoments:
    """Return the moments of the views, each with zeros up to a common width and a last coordinate of one."""
    assert moments.third is not None
    own = [slice(0, view.shape[1]) for view in views]
    last = max(view.shape[1] for view in views)
    pairs = np.zeros((len(PAIRS), last + 1, last + 1))
    triples = np.zeros((last + 1, last + 1, last + 1))
    triples[own[0], own[1], own[2]] = multilinear(moments.third, *views)
    for out, (s, t) in zip(pairs, PAIRS, strict=True):
        out[own[s], own[t]] = views[s].T @ moments.second @ views[t]
        out[last, last] = 1.0
    (first, second, third), end = own, last
    triples[first, second, end] = pairs[PAIRS.index((0, 1))][first, second]
    triples[first, end, third] = pairs[PAIRS.index((0, 2))][first, third]
    triples[end, second, third] = pairs[PAIRS.index((1, 2))][second, third]
    triples[end, end, end] = 1.0
    means = np.zeros((N_GROUPS, last + 1))
    means[:, last] = 1.0
    return GroupMoments(means, pairs, triples)


def _averaged(found: list[_Estimate]) -> tuple[np.ndarray, np.ndarray]:
    """Return the averages of means and weights, weighted by conditioning, in the order of the first estimate."""
    first, shares = found[0], np.array([each.conditioning**2 for each in found])
    means, weights = np.zeros_like(first.means), np.zeros_like(first.weights)
    for each, share in zip(found, shares / shares.sum(), strict=True):
        order = _matched(first.means, each.means)
        means += share * each.means[:, order]
        weights += share * each.weights[order]
    return means, weights


def _matched(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the columns of the other matrix that are nearest to those of one, each taken once."""
    distances = (one**2).sum(axis=0)[:, None] - 2.0 * one.T @ other + (other**2).sum(axis=0)
    return np.asarray(linear_sum_assignment(distances)[1])


def _spread(found: list[_Estimate], means: np.ndarray) -> float:
    """Return how far the means by single rotations are from the average, as a share of its norm."""
    distances = [np.linalg.norm(each.means[:, _matched(means, each.means)] - means) for each in found]
    size = max(float(np.linalg.norm(means)), np.finfo(float).tiny)
    return float(np.sqrt(np.mean(np.square(distances)))) / size


def _variances(moments: RowMoments, means: np.ndarray, weights: np.ndarray, d: int) -> np.ndarray:
    """Solve the equations for the variances by least squares, at the scale of the means."""
    assert moments.norms is not None
    squares = (means**2).sum(axis=0)
    average = (moments.trace - weights @ squares) / d
    if len(weights) == 1:
        return np.array([average])
    scale = np.sqrt(squares.max())
    rows = np.vstack([np.ones(len(weights)), means / scale]) * weights
    right = np.concatenate([[average], (moments.norms - means @ (weights * squares)) / ((d + 2) * scale)])
    return np.asarray(np.linalg.lstsq(rows, right, rcond=None)[0])
