"""From the moments of rows to the means, weights and variances of a mixture of spherical Gaussians.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
theorems 3.2 and 3.3, with averages over all noise directions in place of a single one.

Moments are taken about the mean m of the rows. Central moments alone carry one component fewer, as the centred
means add up to zero; therefore every row is extended by a coordinate that is constantly one and has no noise.
With U the k - 1 leading eigenvectors of the covariance, e their eigenvalues, s the average of the other
eigenvalues and ``W = U diag(e - s)^(-1/2)``, the extended means ``(W'(mu_i - m), 1)`` are ``v_i / sqrt(w_i)``
with orthonormal v_i, and the extended third moment ``sum_i w_i^(-1/2) v_i (x) v_i (x) v_i`` has the entries

    T_abc = E[y_a y_b y_c] - sym(a_a W'W_bc)      T_abk = delta_ab      T_akk = 0      T_kkk = 1

with ``y = W'(x - m)`` and ``a = W'E[(x - m) (||x - m||^2 - ||U'(x - m)||^2)] / (d - k + 1)``, which is zero for a
common variance. The means need to be affinely independent only, and the result does not depend on the origin
of the rows. The last coordinate of ``v_i`` is ``sqrt(w_i)``, so that the weights add up to one and the
weighted means to m.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine.directory.run_directory import load_sums
from distmom.errors import NumericalError
from distmom.linalg import Decomposition, Whitening, decompose, multilinear, robust_components, symmetrise
from distmom.moments.rows.gaussian import RowMoments, row_moments
from distmom.moments.sketching import ProjectedPass
from distmom.spectral.program.run import Decomposed, Run, unknown
from distmom.spectral.steps.isotropic import check_range, n_usable, noise_of, whitened_covariance
from distmom.spectral.steps.rank import REPLICATED_SHARE

#: least variance of a component, as a share of the average variance of the components
LEAST_VARIANCE = 1e-3
#: the same where rows have no noise, as a share of their variance per column
LEAST_NOISE = 1e-9
#: least weight of a component
LEAST_WEIGHT = 1e-6
#: number of standard errors by which an eigenvalue of noise may exceed its variance in one half of the rows
N_ERRORS = 3.0


@dataclass(frozen=True)
class Found(Decomposed):
    """A mixture in a basis Q.

    Attributes
    ----------
    means : ndarray of shape (r, k)
        ``Q'(mu_i - m)``.
    weights, variances : ndarray of shape (k,)
    plane : ndarray of shape (r, 1 or 2)
        The leading eigenvectors of the covariance.
    kept : ndarray of shape (n_kept, r + 1)
        Coordinates and squared norms of some rows.
    diagnostics : dict
    """

    means: np.ndarray
    weights: np.ndarray
    variances: np.ndarray
    plane: np.ndarray
    kept: np.ndarray
    diagnostics: dict[str, Any]

    @property
    def n_components(self) -> int:
        return len(self.weights)

    @classmethod
    def upto(cls, r: int, k: int, n_kept: int) -> Found:
        """Return a mixture of known shapes without content, for a ledger."""
        plane = unknown(r, min(2, r))
        return cls(unknown(r, k), unknown(k), unknown(k), plane, unknown(n_kept, r + 1), unknown())


@dataclass(frozen=True)
class WhitenedRows:
    """Moments of rows up to the second order, prepared for k components.

    Attributes
    ----------
    n_components : int
        k.
    values, vectors : ndarray of shape (r,) and (r, r)
        Eigenvalues of the covariance in the basis, descending, and eigenvectors.
    noise : float
        Average of the eigenvalues beyond the first k - 1.
    least : float
        Least variance of a component.
    white : Whitening
        Whitening of the covariance minus the noise, by k - 1 columns.
    kept : ndarray of shape (n_kept, r + 1)
    """

    n_components: int
    values: np.ndarray
    vectors: np.ndarray
    noise: float
    least: float
    white: Whitening
    kept: np.ndarray


def whitened_rows(moments: RowMoments, k: int, d: int, offset: float, lower: bool) -> WhitenedRows:
    """Whiten the covariance of rows for k components; parameters and errors as for `recover`."""
    check_range(moments, k, d, offset)
    with one_blas_thread():
        values, vectors = np.linalg.eigh(moments.second)
        values, vectors = values[::-1], vectors[:, ::-1]
        while lower and k > 1 and n_usable(values, noise_of(values, moments.trace, k, d), d, moments) < k - 1:
            k -= 1
        noise = noise_of(values, moments.trace, k, d)
        if k == 1:
            none = np.zeros((len(values), 0))
            white = Whitening(none, none, values, 0.0, 0, 1.0)
        else:
            white = whitened_covariance(moments, values, k, noise, d)
    least = least_variance(moments.trace, d, offset)
    return WhitenedRows(k, values, vectors, noise, least, white, moments.kept)


def recover(
    moments: RowMoments, k: int, d: int, common: bool, method: str, seed: int, offset: float, lower: bool
) -> Found:
    """Find k components in the moments of rows of d columns; runs on the scheduler node.

    Parameters
    ----------
    moments : RowMoments
    k, d : int
    common : bool
        Whether all components have the same variance.
    method : str
        A method of `distmom.linalg.decompose`.
    seed : int
    offset : float
        Squared norm of the mean of the rows, for the rounding errors of distances.
    lower : bool
        Find fewer components where the covariance carries fewer than k, instead of raising an error.

    Raises
    ------
    NumericalError
        If the covariance carries fewer than k components and ``lower`` is False, the rows are so far from the
        origin that their covariance is inexact, or the values are so large or small that moments overflow or
        underflow.
    """
    of = whitened_rows(moments, k, d, offset, lower)
    if of.n_components == 1:
        return single(of)
    with one_blas_thread():
        W = of.white.W
        mixed = weighted_means(_beyond(moments, W), of.noise, d, common)
        tensor = _extended(moments, W, mixed)
        found = decompose(tensor, method, random_state=seed)
        robust = robust_components(tensor, found.eigenvectors)
        return mixture(of, found, mixed, {"n_robust": int(robust.sum())})


def recover_in_basis(
    run: Run, pass_: ProjectedPass, k: int, d: int, method: str, where: str, seed: int
) -> Found | str:
    """Find k components, with variances of their own, by a pass of the moments of rows about their mean.

    Parameters
    ----------
    run : Run
    pass_ : ProjectedPass
        Adds up the sums of `distmom.moments.rows.gaussian.RowMomentsPass`.
    k, d : int
        Number of components, and of columns that are not constant.
    method : str
        A method of `distmom.linalg.decompose`.
    where : {"scheduler", "client"}
    seed : int

    Returns
    -------
    Found or str
        The mixture in the basis of the pass, or the reason if its moments carry fewer components.
    """
    load = partial(load_moments, run.scan(pass_).directory)
    out: Found | str = Found.upto(pass_.rank, k, 0)
    return run.small(_recovered, load, k, d, method, seed, where=where, out=out)


def load_moments(directory: str) -> RowMoments:
    """Return the moments of rows that a committed pass has added up."""
    return row_moments(load_sums(directory)[0])


def _recovered(moments: RowMoments, k: int, d: int, method: str, seed: int) -> Found | str:
    if d < k:
        return f"only {d} of the columns vary, fewer than n_components={k}"
    try:
        return recover(moments, k, d, False, method, seed, 0.0, False)
    except NumericalError as error:
        return str(error)


def single(of: WhitenedRows) -> Found:
    """Return the mixture of one component."""
    variances = np.full(1, max(of.noise, of.least))
    facts = {**_facts(of), "n_floored_variances": int(of.noise < of.least)}
    return Found(np.zeros((len(of.values), 1)), np.ones(1), variances, of.vectors[:, :2], of.kept, facts)


def mixture(of: WhitenedRows, found: Decomposition, mixed: np.ndarray, more: dict[str, Any]) -> Found:
    """Return the mixture whose extended third moment has been decomposed.

    Parameters
    ----------
    of : WhitenedRows
    found : Decomposition
    mixed : ndarray of shape (k,)
        As returned by `weighted_means`.
    more : dict
        Further diagnostics.
    """
    white, V = of.white, found.eigenvectors
    roots = V[-1] * np.where(V[-1] < 0.0, 0.0, 1.0)
    clipped = roots**2 < LEAST_WEIGHT
    # Where noise has made a weight zero, the eigenvalue still gives the distance of the component from the mean.
    roots = np.where(clipped, np.maximum(found.eigenvalues, 1.0) ** -1.0, roots)
    weights = np.maximum(roots**2, LEAST_WEIGHT)
    weights = weights / weights.sum()
    variances = V.T @ mixed / roots
    floor = max(LEAST_VARIANCE * of.noise, of.least)
    floored = variances < floor
    facts = {
        **_facts(of),
        "noise_level": float(white.noise),
        "gap": float(white.gap),
        "residual": float(found.residual),
        "converged": bool(found.converged),
        **more,
        "sum_weights": float(np.sum(np.maximum(found.eigenvalues, 1e-12) ** -2.0)),
        "eigenvalues": [float(x) for x in found.eigenvalues],
        "n_clipped_weights": int(clipped.sum()),
        "n_floored_variances": int(floored.sum()),
        "least_variance": float(variances.min()),
    }
    means = white.B @ (V[:-1] / roots)
    order = np.argsort(-weights, kind="stable")
    variances = np.maximum(variances, floor)
    # A transfer to another process makes arrays contiguous, and the bits of later products depend on that.
    means = np.ascontiguousarray(means[:, order])
    return Found(means, weights[order], variances[order], of.vectors[:, :2], of.kept, facts)


def _facts(of: WhitenedRows) -> dict[str, Any]:
    return {
        "spectrum": [float(x) for x in of.values],
        "noise_variance": float(of.noise),
        "n_components": of.n_components,
    }


def least_variance(trace: float, d: int, offset: float) -> float:
    """Return the least variance of a component, also where rows have no noise.

    Parameters
    ----------
    trace : float
        Total variance of the rows.
    d : int
    offset : float
        As for `recover`.
    """
    return float(LEAST_NOISE * trace / d + 1e-15 * offset / d + np.finfo(float).tiny)


def _beyond(moments: RowMoments, W: np.ndarray) -> np.ndarray:
    """Return ``E[y (||x - m||^2 - ||U'(x - m)||^2)]`` of the whitened rows y, (k - 1,)."""
    assert moments.third is not None
    assert moments.norms is not None
    U = W / np.linalg.norm(W, axis=0)
    within = np.einsum("ijk,jl,kl->i", moments.third, U, U, optimize=True)
    return np.asarray(W.T @ (moments.norms - within))


def weighted_means(beyond: np.ndarray, noise: float, d: int, common: bool) -> np.ndarray:
    """Return the extended means of the whitened rows, weighted by variances, (k,): a, and the average variance.

    Parameters
    ----------
    beyond : ndarray of shape (k - 1,)
        ``E[y (||x - m||^2 - ||U'(x - m)||^2)]``, which is proportional to a unless all variances are the same.
    noise : float
    d : int
    common : bool
    """
    mixed = np.zeros(len(beyond) + 1)
    mixed[-1] = noise
    if not common:
        mixed[:-1] = beyond / (d - len(beyond))
    return mixed


def _extended(moments: RowMoments, W: np.ndarray, mixed: np.ndarray) -> np.ndarray:
    """Return the extended third moment, (k, k, k)."""
    assert moments.third is not None
    p = W.shape[1]
    tensor = np.zeros((p + 1, p + 1, p + 1))
    tensor[:p, :p, :p] = multilinear(moments.third, W, W, W)
    correction = mixed[:p, None, None] * (W.T @ W)
    tensor[:p, :p, :p] -= correction + correction.transpose(1, 0, 2) + correction.transpose(1, 2, 0)
    inner = np.arange(p)
    for place in ((inner, inner, p), (inner, p, inner), (p, inner, inner), (p, p, p)):
        tensor[place] = 1.0
    return symmetrise(tensor)


def count_components(first: RowMoments, second: RowMoments, d: int, most: int) -> tuple[int, list[float]]:
    """Return the number of components that two halves of the rows agree on, and the shares that are replicated.

    The eigenvectors of the covariance of one half are tested on the other: in excess of the average over the
    directions that follow, a direction of noise has an expected variance of zero there, and a direction between
    components the same as in the first half. What `N_ERRORS` standard errors explain does not count.
    """
    with one_blas_thread():
        values, vectors = np.linalg.eigh(first.second)
        values, vectors = values[::-1], vectors[:, ::-1]
        again = np.einsum("ij,ij->j", vectors, second.second @ vectors)
    n = min(most - 1, len(values), d - 1)
    noise = [_following(own, trace, d)[:n] for own, trace in ((values, first.trace), (again, second.trace))]
    excess = [values[:n] - noise[0], again[:n] - noise[1]]
    shares = np.divide(excess[1], excess[0], out=np.zeros(n), where=excess[0] > 0.0)
    # The variance of n Gaussian values has the relative standard error sqrt(2 / n).
    error = noise[1] * np.sqrt(2.0 / second.n_sampled) if second.n_sampled else 0.0
    beyond = np.cumsum(excess[1] - N_ERRORS * error - REPLICATED_SHARE * np.abs(excess[0]))
    return 1 + int(np.argmax(np.concatenate([[0.0], beyond]))), [float(x) for x in shares]


def _following(values: np.ndarray, trace: float, d: int) -> np.ndarray:
    """Return the average of each eigenvalue and all that follow."""
    before = np.concatenate([[0.0], np.cumsum(values)[:-1]])
    left = d - np.arange(len(values))
    return np.asarray((trace - before) / left)
