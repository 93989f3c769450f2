"""Steps of the fit of a mixture of three views: from sums of columns to bases, moments and the state.

An ``alpha0`` is the sum of the Dirichlet parameters of the components in a row: 0 for one component per row, and
infinite for independent factors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, StoredArray, StoredColumns
from distmom.moments.dense_rows import view_slices
from distmom.moments.rows.multiview import lifted_widths, own_columns
from distmom.moments.three_views import N_GROUPS
from distmom.spectral.saved.fields import array, value
from distmom.spectral.scores import LEAST_VARIANCE
from distmom.spectral.steps.recovery import Recovery
from distmom.spectral.steps.three_views import AlignedViews, mean_rows
from distmom.spectral.steps.view_basis import grams_of_views, variances_of


@dataclass(frozen=True, kw_only=True)
class MultiViewState:
    """The state of a fitted mixture; shapes are those on disk.

    Attributes
    ----------
    components : ndarray of shape (d, k)
        Conditional means of all columns, view by view; for independent factors, their effects.
    weights : ndarray of shape (k,) or None
        None for independent factors.
    variances : ndarray of shape (d,)
    widths : list of int
    diagnostics : dict
    coefficients : ndarray of shape (d, k) or None
        Coefficients of the scores by which EM has read rows; None without EM.
    alpha : ndarray of shape (k,) or None
        Dirichlet parameters; None for one component per row and for independent factors.
    skewness : ndarray of shape (k,) or None
    mean : ndarray of shape (d,) or None
        Skewness of independent factors, and the mean of all rows; None without such factors.
    """

    components: np.ndarray = array("d", "k", transposed=True)
    weights: np.ndarray | None = array("k", least=0.0, optional=True)
    variances: np.ndarray = array("d", least=0.0)
    widths: list[int] = value()
    diagnostics: dict[str, Any] = value()
    coefficients: np.ndarray | None = array("d", "k", types=("<f8",), optional=True)
    alpha: np.ndarray | None = array("k", least=0.0, optional=True)
    skewness: np.ndarray | None = array("k", least=0.0, optional=True)
    mean: np.ndarray | None = array("d", optional=True)


@dataclass(frozen=True)
class Conditional:
    """Conditional means and weights during a fit.

    Attributes
    ----------
    deviations : ndarray of shape (d, k)
        Means of the columns given the components, minus the means of all rows; for independent factors, the
        effects of factors of variance one.
    weights : ndarray of shape (k,)
        In descending order; for independent factors, their skewness.
    """

    deviations: np.ndarray
    weights: np.ndarray


def recovered(
    engine: Engine,
    basis: StoredColumns,
    averages: StoredArray,
    units: StoredArray,
    widths: tuple[int, ...],
    degree: int,
    found: AlignedViews,
    alpha0: float,
) -> Conditional:
    """Map conditional means from the bases back to the columns, components by descending weight.

    Parameters
    ----------
    engine : Engine
    basis : StoredColumns
    averages : StoredArray
        Averages of the columns of the basis, among them products of columns.
    units : StoredArray
        Averages of the columns of the corpus.
    widths : tuple of int
        Numbers of columns of the views in the corpus.
    degree : int
        Largest degree of products.
    found : AlignedViews
    alpha0 : float
    """
    lifted, k = lifted_widths(widths, degree), len(found.weights)
    grams = engine.maps.map_rows(grams_of_views, (basis, averages), sum(lifted), {}, lifted, -1.0)[1]["grams"]
    with one_blas_thread():
        # The columns of Q_t are orthonormal up to rounding only, and depend on each other for views of lower rank.
        pairs = zip(grams, found.means, strict=True)
        own = np.stack([np.linalg.pinv(gram, 1e-9, hermitian=True) @ means for gram, means in pairs])
    views = np.repeat(np.arange(N_GROUPS), lifted)
    deviations = Recovery((basis, views), sum(lifted), k, mean_rows, (own,)).whole()
    factors = np.asarray(units.load(), np.float64)[:, 1]
    varying = factors > 0.0
    if degree == 1:
        deviations[varying] /= factors[varying, None] ** 2
    else:
        # Columns that have products are in other units than the products, and are scaled once more with them.
        at = own_columns(widths, degree)
        scales = np.asarray(averages.load(), np.float64)[at, 1]
        deviations = deviations[at]
        deviations[varying] /= (scales**2 * factors)[varying, None]
    order = np.argsort(-found.weights, kind="stable")
    total = found.weights.sum() if math.isfinite(alpha0) else 1.0
    return Conditional(np.ascontiguousarray(deviations[:, order]), np.sort(found.weights)[::-1] / total)


def state_of(
    of: Conditional,
    units: StoredArray,
    squares: StoredColumns,
    widths: tuple[int, ...],
    diagnostics: dict[str, Any],
    coefficients: np.ndarray | None,
    alpha0: float,
) -> MultiViewState:
    """Return the state of a model, with the variances of the columns that its components leave.

    Parameters
    ----------
    of : Conditional
    units, squares : StoredArray and StoredColumns
        Averages and mean squares of the columns.
    widths : tuple of int
        Numbers of columns of the views.
    diagnostics : dict
    coefficients : ndarray of shape (d, k) or None
        Coefficients of scores, after EM.
    alpha0 : float
    """
    independent = math.isinf(alpha0)
    mean, factors = np.asarray(units.load(), np.float64).T
    varying = factors > 0.0
    mean_squares = np.asarray(squares.parts[0].load(), np.float64)[:, 0]
    variances = variances_of(mean, mean_squares)
    # Shares h have the covariance (diag(p) - pp') / (alpha0 + 1).
    between = (
        (of.deviations**2).sum(axis=1) if independent else of.deviations**2 @ of.weights / (alpha0 + 1.0)
    )
    within = np.maximum(variances - between, LEAST_VARIANCE * variances)
    # A constant column distinguishes no components, whatever its variance.
    within[~varying] = 1.0
    shares = np.divide(between, variances, out=np.zeros(len(mean)), where=varying)
    explained = [float(shares[cut].sum() / max(1, int(varying[cut].sum()))) for cut in view_slices(widths)]
    return MultiViewState(
        components=of.deviations if independent else of.deviations + mean[:, None],
        weights=None if independent else of.weights,
        variances=within,
        widths=list(widths),
        diagnostics=diagnostics | {"explained": explained},
        coefficients=coefficients,
        alpha=alpha0 * of.weights if 0.0 < alpha0 < math.inf else None,
        skewness=of.weights if independent else None,
        mean=np.ascontiguousarray(mean) if independent else None,
    )
