"""Steps of the fit of a mixture of spherical Gaussians: from the sums of passes to bases, parameters and state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import PassResult
from distmom.engine.stored.arrays import SLAB_ROWS
from distmom.engine.sums.tall import read_rows
from distmom.linalg import fix_signs
from distmom.models.gaussian.posterior import Gaussians, Posterior, maximised
from distmom.spectral.program.run import Run
from distmom.spectral.saved.fields import array, value
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.em import count_empty
from distmom.spectral.steps.recovery import product
from distmom.spectral.steps.row_basis import mean_of_rows, sketch_facts
from distmom.spectral.steps.spherical import (
    LEAST_VARIANCE,
    Found,
    count_components,
    least_variance,
    load_moments,
)

#: largest number of rows that are kept for pictures
N_KEPT = 500
#: least variance with which EM starts, as a share of that of the noise: a component that is too narrow at first
#: attracts few rows
START_VARIANCE = 0.5


@dataclass(frozen=True)
class MixtureState:
    """The state of a fitted mixture.

    Attributes
    ----------
    means : ndarray of shape (k, d)
    weights, variances : ndarray of shape (k,)
    center : ndarray of shape (d,)
        Mean of the rows.
    axes : ndarray of shape (1 or 2, d)
        The leading eigenvectors of the covariance.
    kept : ndarray of shape (n_kept, 1 or 2)
        Coordinates of some rows minus the mean along the axes.
    kept_components : ndarray of shape (n_kept,), int32
    diagnostics : dict
    """

    means: np.ndarray = array("k", "d")
    weights: np.ndarray = array("k", least=0.0)
    variances: np.ndarray = array("k", least=0.0)
    center: np.ndarray = array("d")
    axes: np.ndarray = array("axes", "d")
    kept: np.ndarray = array("kept*", "axes")
    kept_components: np.ndarray = array("kept*", types=("<i4",), least=0)
    diagnostics: dict[str, Any] = value()


def kept_positions(n: int, seed: int) -> np.ndarray:
    """Return the positions of the units whose first rows are kept, ascending."""
    if n <= N_KEPT:
        return np.arange(n, dtype=np.int64)
    return np.unique(np.random.default_rng((seed, 1)).integers(0, n, N_KEPT))


def agreed_count(directories: tuple[str, ...], d: int, most: int) -> tuple[int, Any]:
    """Return the number of components that the moments of two halves agree on, and the replicated shares."""
    first, second = (load_moments(directory) for directory in directories)
    return count_components(first, second, d, most)


def gaussians_of(basis: Basis, found: Found) -> Gaussians:
    """Map the means from the basis back to the columns of the rows."""
    mean = mean_of_rows(basis)
    offsets = np.ascontiguousarray(product(basis.matrix, len(mean), found.means).whole().T)
    return Gaussians(mean[:, None], offsets, found.weights, found.variances)


def widened(of: Gaussians, found: Found) -> Gaussians:
    """Return the parameters with which EM starts."""
    least = START_VARIANCE * found.diagnostics["noise_variance"]
    return replace(of, variances=np.maximum(of.variances, least))


def stored_gaussians(run: Run, of: Gaussians, origin: Any) -> Gaussians:
    """Return the parameters as stored arrays, which passes read."""
    return Gaussians(origin, run.put(of.offsets), run.put(of.weights), run.put(of.variances))


def maximise(scanned: PassResult, of: Gaussians, found: Found, common: bool) -> tuple[Gaussians, float]:
    """Return the parameters after an EM pass, and the log-likelihood per row with those before it."""
    d, n = of.offsets.shape[1], found.n_components - 1
    noise, spectrum = found.diagnostics["noise_variance"], found.diagnostics["spectrum"]
    # The least variance of the estimate by moments; with another one, EM might begin by lowering the likelihood.
    trace = float(np.sum(spectrum[:n])) + (d - n) * noise
    least = max(LEAST_VARIANCE * noise, least_variance(trace, d, float(np.sum(np.square(of.origin)))))
    return maximised(scanned.sums, of, common, least)


def mixture_state(
    basis: Basis, found: Found, of: Gaussians, likelihoods: list[float], shares: Any, n_rows: int
) -> MixtureState:
    """Return the state, with the components by descending weight and the kept rows by component."""
    mean, order = of.origin[:, 0], np.argsort(-of.weights, kind="stable")
    of = Gaussians(of.origin, of.offsets[order], of.weights[order], of.variances[order])
    plane = product(basis.matrix, len(mean), found.plane).whole()
    # Eigenvectors have any sign, which rounding and thereby the number of shards would decide.
    axes = fix_signs(plane)
    signs = np.where(np.einsum("da,da->a", plane, axes) < 0.0, -1.0, 1.0)
    coordinates = np.zeros((len(order), basis.rank))
    with one_blas_thread():
        for start in range(0, len(mean), SLAB_ROWS):
            rows = slice(start, min(start + SLAB_ROWS, len(mean)))
            coordinates += of.offsets[:, rows] @ read_rows(basis.matrix, rows)
        Y, squares = found.kept[:, :-1], found.kept[:, -1]
        joint = Posterior(of).joint_of_products(Y @ coordinates.T, squares)
        kept = Y @ found.plane * signs
    diagnostics = found.diagnostics | sketch_facts(basis) | {"n_empty": count_empty(of.weights, n_rows)}
    if likelihoods:
        diagnostics["log_likelihoods"] = likelihoods
    if shares is not None:
        diagnostics["replicated_shares"] = shares
    return MixtureState(
        of.offsets + mean, of.weights, of.variances, mean, np.ascontiguousarray(axes.T), kept,
        joint.argmax(axis=1).astype(np.int32), diagnostics,
    )  # fmt: skip
