"""Steps of the fit of a latent network: from the sums of passes to moments without noise, and to the state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, PassResult, StoredArray
from distmom.errors import NumericalError
from distmom.linalg import Whitening, whiten
from distmom.linalg.expansion.latent_networks import FoundNetwork, latent_network, observed_network
from distmom.linalg.lowrank import find_split
from distmom.linalg.one_view import find_parts, find_predictors, without_noise
from distmom.moments.documents.dirichlet import third_moment
from distmom.moments.rows.one_view import one_view_moments
from distmom.moments.small import SmallMoments
from distmom.moments.views.groups import contrasts, mean_of_parts
from distmom.spectral.program.run import unknown
from distmom.spectral.saved.fields import array, value
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.core import unknown_whitening
from distmom.spectral.steps.factors import White
from distmom.spectral.steps.recovery import product
from distmom.spectral.steps.row_basis import covariance_of

#: partitions of the columns of either kind that are tried (`find_split`)
N_PARTITIONS = 10
#: variance of a column as a share of its mean square that rounding does not account for
LEAST_SHARE = 1e-12
#: eigenvalues that are reported
N_SPECTRUM = 100


@dataclass(frozen=True)
class NetworkState:
    """The state of a fitted network; shapes are those on disk.

    Attributes
    ----------
    components : ndarray of shape (d, k)
        Loadings A of nodes with variance one.
    adjacency : ndarray of shape (k, k)
        Lambda.
    order : list of int
    noise_share, skewness : ndarray of shape (k,)
    correlations : ndarray of shape (k, k)
    mean, noise_variance : ndarray of shape (d,)
    diagnostics : dict
    """

    components: np.ndarray = array("d", "k", transposed=True)
    adjacency: np.ndarray = array("k", "k")
    order: list[int] = value()
    noise_share: np.ndarray = array("k", least=0.0)
    skewness: np.ndarray = array("k")
    correlations: np.ndarray = array("k", "k")
    mean: np.ndarray = array("d")
    noise_variance: np.ndarray = array("d", least=0.0)
    diagnostics: dict[str, Any] = value()


@dataclass(frozen=True)
class OneView:
    """The covariance of rows without the noise of the columns, all columns scaled to variance one.

    Attributes
    ----------
    whitening : Whitening
        Whitening of the covariance without noise.
    deviations : ndarray of shape (d,)
        Standard deviations of the columns.
    mean, variances : ndarray of shape (d,)
        Means of the columns, and variances of their noise.
    origin, whitener : StoredArray
        Arrays that the pass over third moments reads, in the units of the columns.
    predictors : tuple of StoredArray
        The matrices of `Predictors`, likewise; three times None without noise.
    facts : dict
        JSON values.
    """

    whitening: Whitening
    deviations: np.ndarray
    mean: np.ndarray
    variances: np.ndarray
    origin: StoredArray
    whitener: StoredArray
    predictors: tuple[Any, Any, Any]
    facts: dict[str, Any]

    @classmethod
    def upto(cls, d: int, k: int, noisy: bool) -> OneView:
        """Return moments of known shapes without content, for a ledger."""
        predictors = (unknown(d, 3 * k),) * 3 if noisy else (None,) * 3
        return cls(
            unknown_whitening(d, k), unknown(d), unknown(d), unknown(d), unknown(d), unknown(d, k), predictors,
            unknown(),
        )  # fmt: skip


def one_view(engine: Engine, scanned: PassResult, k: int, noisy: bool, seed: int) -> OneView:
    """Return the covariance that a pass has added up, without noise.

    Raises
    ------
    NumericalError
        If there are no rows, their covariance overflows, a column is constant, or the covariance carries fewer
        than k latent variables.
    """
    mean, covariance = covariance_of(scanned)
    variances = np.diag(covariance)
    squares = np.diag(scanned.sums["second"]) / float(scanned.sums["mass"])
    constant = np.flatnonzero(variances <= LEAST_SHARE * squares)
    if len(constant):
        at = int(constant[0])
        raise NumericalError(
            f"column {at} (counted from 0) is constant, up to rounding: its mean is {mean[at]:.3g}, and its "
            f"variance {variances[at]:.3g}; leave it out, or subtract the mean from the rows if it is not constant"
        )
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        deviations = np.sqrt(variances)
        scaled = covariance / np.outer(deviations, deviations)
        facts: dict[str, Any] = {}
        own = np.zeros(len(mean))
        if noisy:
            split = find_split(scaled, k, n_partitions=N_PARTITIONS, seed=seed)
            scaled, own = split.low_rank, np.maximum(split.diagonal, 0.0)
            facts["off_diagonal_share"] = split.off_diagonal_share
        white = whiten(scaled, k)
        predictors: tuple[Any, Any, Any] = (None, None, None)
        if noisy:
            found, units = find_predictors(white.B, find_parts(white.B, seed=seed)), deviations[:, None]
            predictors = (
                engine.put(found.latent / units), engine.put(found.left * units), engine.put(found.right * units)
            )  # fmt: skip
    return OneView(
        white, deviations, mean, own * variances, engine.put(mean), engine.put(white.W / deviations[:, None]),
        predictors, facts,
    )  # fmt: skip


def network_of_rows(view: OneView, scanned: PassResult, options: dict[str, Any]) -> NetworkState:
    """Return the network with the moments of one view."""
    d, k = view.whitening.W.shape
    with one_blas_thread():
        W = view.whitening.W / view.deviations[:, None]
        parts = one_view_moments(scanned.sums, d)
        with np.errstate(over="ignore", invalid="ignore"):
            thirds = [without_noise(part.third, W, part.noise) for part in parts]
        if not np.isfinite(thirds).all():
            raise NumericalError("the third moments of the rows are out of range: scale the rows")
        third = mean_of_parts(thirds, np.array([part.mass for part in parts]))
        draws = contrasts(thirds) if len(thirds) > 1 else None
        if k == d:
            found = observed_network(view.whitening, third, noise=draws, seed=options["seed"])
        else:
            found = latent_network(view.whitening, third, noise=draws, **options)
    loadings = found.loadings * view.deviations[:, None]
    return _state(found, loadings, view.whitening, view.mean, view.variances, view.facts)


def variances_of_views(counted: PassResult, mean: np.ndarray) -> np.ndarray:
    """Return the variances of the columns of views, (d,), by which columns are scaled.

    A variance that may be rounding is replaced by the least one that is not.

    Raises
    ------
    NumericalError
        If the squares of a column overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        squares = counted.sums["squares"] / float(counted.sums["mass"])
        found = np.maximum(squares - mean**2, LEAST_SHARE * squares)
    if not np.isfinite(found).all():
        at = int(np.argmin(np.isfinite(found)))
        raise NumericalError(
            f"the squares of column {at} (counted from 0) overflow, its mean is {mean[at]:.3g}: scale the rows"
        )
    return np.asarray(found)


def deviations_of(variances: np.ndarray) -> np.ndarray:
    """Return the standard deviations of columns, (d,); 1 for columns that are zero."""
    return np.sqrt(np.where(variances > 0.0, variances, 1.0))


def scale_of_views(engine: Engine, variances: np.ndarray) -> StoredArray:
    """Store the factors (d, 1) that scale columns to variance one."""
    return engine.put(1.0 / deviations_of(variances)[:, None])


def network_of_views(
    counted: PassResult,
    mean: np.ndarray,
    variances: np.ndarray,
    basis: Basis,
    white: White,
    options: dict[str, Any],
) -> NetworkState:
    """Return the network with the moments of several views, whose columns were scaled to variance one."""
    d, deviations = len(mean), deviations_of(variances)[:, None]
    thirds = [_central_third(part) for part in (white.moments, *white.parts)]
    draws = contrasts(thirds[1:]) if len(thirds) > 2 else None
    matrix = product(basis.matrix, d, np.eye(basis.rank)).whole() * deviations
    with one_blas_thread():
        found = latent_network(white.whitening, thirds[0], basis=matrix, noise=draws, **options)
        loadings = found.loadings * deviations
        shared = np.einsum("dk,kl,dl->d", loadings, found.covariance, loadings, optimize=True)
    n_groups, n_dropped = (int(n) for n in counted.sums["groups"])
    facts = {"n_groups": n_groups, "n_dropped_groups": n_dropped}
    return _state(found, loadings, white.whitening, mean, np.maximum(variances - shared, 0.0), facts)


def _central_third(moments: SmallMoments) -> np.ndarray:
    assert moments.m3 is not None
    return third_moment(moments.m1, moments.m2, moments.m3, math.inf)


def _state(
    found: FoundNetwork,
    loadings: np.ndarray,
    white: Whitening,
    mean: np.ndarray,
    variances: np.ndarray,
    facts: dict[str, Any],
) -> NetworkState:
    """Return the state, with nodes of variance one whose largest loading is positive."""
    k = loadings.shape[1]
    largest = loadings[np.abs(loadings).argmax(axis=0), np.arange(k)]
    scale = np.sqrt(np.diag(found.covariance)) * np.where(largest < 0.0, -1.0, 1.0)
    network, columns = found.network, found.columns
    return NetworkState(
        components=np.ascontiguousarray(loadings * scale),
        adjacency=network.weights * scale / scale[:, None],
        order=[int(i) for i in network.order],
        noise_share=(network.deviations / scale) ** 2,
        skewness=found.skewness,
        correlations=found.covariance / np.outer(scale, scale),
        mean=mean,
        noise_variance=variances,
        diagnostics={
            "spectrum": [float(x) for x in white.eigenvalues[:N_SPECTRUM]],
            "gap": float(white.gap),
            "against": network.against,
            "zeros": [int(x) for x in columns.zeros],
            "leaks": [float(x) for x in columns.leaks],
            "exact": [bool(x) for x in columns.exact],
            "n_programs": columns.n_programs,
            **facts,
        },
    )
