"""Means, weights and variances of axis-aligned Gaussians from moments of columns.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 3.3.1, proposition 3.2 and theorem 3.6. The views of a random partition of the columns are independent
given the component. Their moments give conditional means and weights (`distmom.spectral.steps.three_views`). For
column i of view t, with y the values of the other two views and A their conditional means, ``s_h = w_h + c_h'y``
with ``A'c_h = e_h - w_h 1`` has mean one in component h and zero in all others, so that ``E[z_i^2 s_h] / w_h`` is
the conditional mean of the square. Of all such c_h, the shortest is used.

Where EM follows, all columns together can give it another start, as if the columns of a component had one
variance (theorems 3.2 and 3.3, by `distmom.spectral.steps.spherical`). It needs no views, and so finds components
that thirds of the columns do not distinguish.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.errors import NumericalError
from distmom.moments.rows.diagonal import ColumnMoments
from distmom.moments.rows.gaussian import RowMoments
from distmom.moments.three_views import N_GROUPS, PAIRS, GroupMoments
from distmom.spectral.program.run import unknown
from distmom.spectral.steps import centred_views
from distmom.spectral.steps.spherical import Found, recover
from distmom.spectral.steps.three_views import AlignedViews, random_views

#: least singular value of conditional means, as a share of the largest, that rounding does not account for
_LEAST_SHARE = 1e-9


@dataclass(frozen=True)
class Estimate:
    """Parameters of a mixture by moments, for columns that passes have centred and scaled.

    Attributes
    ----------
    means, variances : ndarray of shape (k, d)
        Conditional moments of columns scaled to variance one; variances may be negative by sampling error.
    weights : ndarray of shape (k,)
        They sum to one.
    shifts, spreads : ndarray of shape (d,)
        Means and standard deviations of the columns that the passes have added up; constant columns have spread
        zero, and their parameters mean nothing.
    diagnostics : dict
    """

    means: np.ndarray
    variances: np.ndarray
    weights: np.ndarray
    shifts: np.ndarray
    spreads: np.ndarray
    diagnostics: dict[str, Any]

    @classmethod
    def of_shape(cls, k: int, d: int) -> Estimate:
        """Return an estimate with given shapes but without content, for a ledger."""
        return cls(unknown(k, d), unknown(k, d), unknown(k), unknown(d), unknown(d), unknown())


def most_components(d: int) -> int:
    """Return the largest number of components that thirds of d columns can distinguish."""
    return d // N_GROUPS + 1


def view_moments(moments: ColumnMoments, views: np.ndarray) -> GroupMoments:
    """Return the moments of the views of a partition, divided by `view_scales`.

    Views of fewer columns end with zeros.
    """
    members = [np.flatnonzero(views == t) for t in range(N_GROUPS)]
    scales = view_scales(views)
    r = max(len(own) for own in members)
    pairs, triples = np.zeros((len(PAIRS), r, r)), np.zeros((r, r, r))
    for i, (s, t) in enumerate(PAIRS):
        own = moments.second[np.ix_(members[s], members[t])]
        pairs[i, : len(members[s]), : len(members[t])] = own / (scales[s] * scales[t])
    a, b, c = members
    triples[: len(a), : len(b), : len(c)] = moments.third[np.ix_(a, b, c)] / scales.prod()
    return GroupMoments(np.zeros((N_GROUPS, r)), pairs, triples)


def view_scales(views: np.ndarray) -> np.ndarray:
    """Return the roots of the numbers of columns of the views, (3,).

    Divided by them, the columns of a view have a total variance of one. No singular value of the moments of two
    views is then larger than that of the coordinate that is one in every row, which all decompositions need.
    """
    return np.sqrt(np.maximum(np.bincount(views, minlength=N_GROUPS), 1))


def decomposed_views(moments: GroupMoments, k: int, method: str) -> AlignedViews:
    """Decompose views as `distmom.spectral.steps.centred_views` does; one component needs no decomposition."""
    if k > 1:
        return centred_views.decomposed_views(moments, k, method)
    diagnostics = {
        "asymmetry": 0.0, "residual": 0.0, "sum_weights": 1.0, "eigenvalues": [1.0], "spectrum": [1.0],
        "conditioning": [1.0] * len(PAIRS),
    }  # fmt: skip
    return AlignedViews(np.zeros((N_GROUPS, moments.means.shape[1], 1)), np.ones(1), diagnostics)


def recover_starts(
    moments: ColumnMoments, k: int, method: str, n: int, seed: int, together: bool
) -> list[Estimate]:
    """Estimate the parameters by random partitions, and by all columns together; runs on the scheduler node.

    Parameters
    ----------
    moments, k, method, n, seed
        As for `recover_by_partitions`.
    together : bool
        Whether to estimate them by all columns together, too.

    Returns
    -------
    list of Estimate
        Those that the moments give, in this order.

    Raises
    ------
    NumericalError
        If the moments give none.
    """
    if not together:
        return [recover_by_partitions(moments, k, method, n, seed)]
    found: list[Estimate] = []
    refusals: list[str] = []
    for recovered in (
        partial(recover_by_partitions, moments, k, method, n, seed),
        partial(_recover_together, moments, k, method, seed),
    ):
        try:
            found.append(recovered())
        except NumericalError as error:
            refusals.append(str(error))
    if not found:
        raise refused(*refusals)
    return found


def refused(by_thirds: str, together: str) -> NumericalError:
    """Return the error about both refusals."""
    return NumericalError(f"{by_thirds}; and with all columns together, {together}")


def _recover_together(moments: ColumnMoments, k: int, method: str, seed: int) -> Estimate:
    """Estimate means and weights as if all columns of a component had the same variance."""
    varying = np.flatnonzero(moments.spreads > 0.0)
    d = len(varying)
    if d < k:
        raise NumericalError(f"only {d} of the columns vary, fewer than n_components={k}")
    third = np.ascontiguousarray(moments.third[np.ix_(varying, varying, varying)])
    of = RowMoments(
        second=moments.second[np.ix_(varying, varying)], trace=float(d), third=third,
        norms=np.einsum("ijj->i", third), n_sampled=moments.n_sampled, kept=np.zeros((0, d + 1)),
    )  # fmt: skip
    found = recover(of, k, d, False, method, seed, 0.0, False)
    means = np.zeros((len(moments.spreads), k))
    means[varying] = found.means
    return estimate_together(means, found, moments.shifts, moments.spreads)


def estimate_together(means: np.ndarray, found: Found, shifts: np.ndarray, spreads: np.ndarray) -> Estimate:
    """Return the estimate by all columns together: means (d, k), and average variances within components."""
    means = centred(means, found.weights)
    within = np.maximum(1.0 - means**2 @ found.weights, 0.0)
    kept = ("residual", "sum_weights", "eigenvalues", "spectrum")
    measures = {"start": "rows"} | {name: found.diagnostics[name] for name in kept}
    return estimate_of(means, means**2 + within[:, None], found.weights, shifts, spreads, measures)


def recover_by_partitions(moments: ColumnMoments, k: int, method: str, n: int, seed: int) -> Estimate:
    """Estimate the parameters by the best of several random partitions; runs on the scheduler node.

    Partitions are tried in the order of their conditioning: the smallest of the k-th singular values of the
    moments of two views.

    Parameters
    ----------
    moments : ColumnMoments
    k : int
        Number of components.
    method : str
        A method of `distmom.linalg.decompose`.
    n : int
        Number of partitions.
    seed : int
        Seed of the partitions.

    Raises
    ------
    NumericalError
        If no partition has moments of k components.
    """
    most = most_components(len(moments.second))
    if k > most:
        raise NumericalError(f"n_components={k}: thirds of the columns can distinguish at most {most}")
    partitions = random_views(len(moments.second), n, seed)
    with one_blas_thread():
        found = [view_moments(moments, views) for views in partitions]
        least = [_least_singular_value(each, k) for each in found]
    refusals: list[NumericalError] = []
    for i in np.argsort(-np.array(least), kind="stable"):
        try:
            aligned = decomposed_views(found[i], k, method)
        except NumericalError as error:
            refusals.append(error)
            continue
        return _estimate(moments, partitions[i], aligned, len(refusals))
    raise NumericalError(
        f"n_components={k}: none of {n} random partitions of the columns into three views distinguishes all "
        f"components; for the best one, {refusals[0]}"
    )


def _least_singular_value(moments: GroupMoments, k: int) -> float:
    pairs = centred_views.extended(moments)
    if k > len(pairs.means[0]):
        return 0.0
    return min(float(np.linalg.svd(pairs.pair(*pair), compute_uv=False)[k - 1]) for pair in PAIRS)


def _estimate(moments: ColumnMoments, views: np.ndarray, found: AlignedViews, n_refused: int) -> Estimate:
    k = len(found.weights)
    weights = found.weights / found.weights.sum()
    means, squares = np.empty((len(views), k)), np.empty((len(views), k))
    members = [np.flatnonzero(views == t) for t in range(N_GROUPS)]
    for own, each, scale in zip(members, found.means, view_scales(views), strict=True):
        means[own] = scale * each[: len(own)]
    means = centred(means, weights)
    with one_blas_thread():
        for own in members:
            others = np.setdiff1d(np.arange(len(views)), own)
            coefficients = score_coefficients(means[others], weights)
            squares[own] = 1.0 + (moments.third[own, own][:, others] @ coefficients) / weights
    diagnostics = found.diagnostics | {"start": "thirds", "n_refused_partitions": n_refused}
    return estimate_of(means, squares, weights, moments.shifts, moments.spreads, diagnostics)


def centred(means: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return conditional means (d, k) whose average over the components is zero, as that of the columns is."""
    return np.asarray(means - (means @ weights)[:, None])


def score_coefficients(means: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return how columns add up to scores that distinguish the components.

    Parameters
    ----------
    means : ndarray of shape (m, k)
        Conditional means of the columns, of average zero.
    weights : ndarray of shape (k,)
        They sum to one.

    Returns
    -------
    ndarray of shape (m, k)
        C, of least norm, for which ``weights + C'y`` has mean one in component h and zero in all others.
    """
    k = len(weights)
    inverse = np.linalg.pinv(means.T, _LEAST_SHARE)
    return np.asarray(inverse @ (np.eye(k) - weights))


def estimate_of(
    means: np.ndarray,
    squares: np.ndarray,
    weights: np.ndarray,
    shifts: np.ndarray,
    spreads: np.ndarray,
    diagnostics: dict[str, Any],
) -> Estimate:
    """Return the estimate of means and mean squares (d, k), components by descending weight."""
    order = np.argsort(-weights, kind="stable")
    means, squares, weights = means[:, order], squares[:, order], weights[order]
    varying = spreads > 0.0
    with one_blas_thread():
        left = np.linalg.svd(means[varying], full_matrices=False)[0][:, : len(weights) - 1]
    between = means[varying] ** 2 @ weights
    measures = {
        "coherence": float(np.square(left).sum(axis=1).max(initial=0.0)),
        "explained": float(between.mean()) if varying.any() else 0.0,
    }
    variances = np.ascontiguousarray((squares - means**2).T)
    return Estimate(
        np.ascontiguousarray(means.T), variances, weights, shifts, spreads, diagnostics | measures
    )
