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
from distmom.engine import Engine, StoredArray, StoredColumns, Tallies, TallResult
from distmom.engine.tall import read_rows
from distmom.errors import NumericalError
from distmom.linalg import fix_signs
from distmom.moments.multiview import lifted_widths, own_columns, view_slices
from distmom.moments.product import N_GROUPS
from distmom.spectral.layout import array, value
from distmom.spectral.recovery import Recovery, store_columns
from distmom.spectral.three_views import AlignedViews, mean_rows

#: least eigenvalue of a Gram matrix, as a share of the largest, that rounding does not account for
_LEAST_SHARE = 1e-12
#: least variance of a column within components, as a share of its variance
LEAST_VARIANCE = 1e-3
#: variance of a column as a share of its mean square up to which the column is constant
_CONSTANT = 1e-12


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
        Of the scores by which EM has read rows; None without EM.
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


def averages_of(engine: Engine, tallies: Tallies, widths: tuple[int, ...]) -> TallResult:
    """Turn the sums of columns into the averages that passes read, and store them with the mean squares.

    Columns are scaled to variance one, and constant ones to zero. Rows of a view are then divided by the root of
    its number of columns, so that views of different widths and units weigh the same.
    """
    mass = float(tallies.sums["mass"])
    if not mass > 0.0:
        raise NumericalError("expected rows of positive weight, got none")
    total = tallies.tall["columns"]
    mean, squares = np.asarray(read_rows(total, slice(0, total.n_rows))).T / mass
    factors = np.zeros(len(mean))
    for t, cut in enumerate(view_slices(widths)):
        if not np.isfinite(squares[cut]).all():
            raise NumericalError(f"the squares of the values of view {t + 1} overflow: scale its values")
        variances = variances_of(mean[cut], squares[cut])
        varying = variances > 0.0
        factors[cut][varying] = (variances[varying] * max(1, int(varying.sum()))) ** -0.5
    averages = np.column_stack([mean, factors])
    return TallResult(
        {
            "averages": StoredColumns((engine.put(averages),)),
            "squares": StoredColumns((engine.put(np.ascontiguousarray(squares[:, None])),)),
        },
        {},
    )


def variances_of(mean: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return the variances of columns, zero where the difference of squares is rounding."""
    found = squares - mean**2
    return np.asarray(np.where(found > _CONSTANT * squares, found, 0.0))


def next_basis(
    engine: Engine,
    tallies: Tallies,
    averages: StoredArray,
    widths: tuple[int, ...],
    k: int,
    n_slabs: int,
    independent: bool = False,
) -> TallResult:
    """Turn the products of a sketch into bases of the ranges of the views.

    The centred cross moments of k components have the rank k - 1, and those of k independent factors the rank k.

    A basis is ``B_t = D_t Q_t``, with D_t the factors of the columns and r columns of Q_t that span the range:
    they are orthonormal up to rounding, or, where a view has a lower rank, a projection of orthonormal columns.
    """
    sketch = tallies.tall["sketch"]
    least = k if independent else k - 1
    grams = engine.map_rows(_grams, (sketch, averages), sketch.n_rows, {}, widths, 1.0)[1]["grams"]
    found = []
    for t, gram in enumerate(grams):
        if not np.isfinite(gram).all():
            raise NumericalError(
                f"the cross moments of view {t + 1} with the others overflow: scale the values"
            )
        with one_blas_thread():
            values, vectors = np.linalg.eigh(gram)
        kept = np.flatnonzero((values > _LEAST_SHARE * values[-1]) & (values > 0.0))[::-1]
        if len(kept) < least:
            raise NumericalError(
                f"the centred cross moments of view {t + 1} with the other views have rank {len(kept)}, and {k} "
                f"components need rank {least}; use fewer components, or a view that tells them apart"
            )
        found.append((vectors[:, kept], values[kept]))
    factors = _rotated(grams, found)
    rank = factors[0].shape[1]
    basis = store_columns(
        engine, _times_factors, (sketch, averages), sketch.n_rows, {"it": (rank, n_slabs)}, "float64", widths,
        factors,
    )["it"]  # fmt: skip
    return TallResult({"basis": basis}, {"rank": rank})


def _rotated(grams: np.ndarray, found: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Return the factors by which sketches give bases, from eigenvectors and eigenvalues of their Gram matrices.

    A sketch adds up the products of two bases with the cross moments, so that its range depends on how the columns
    of one are rotated towards those of the other. Eigenvectors have any sign; the columns of all bases are
    therefore those nearest to the same directions, and a range depends on rounding no more than its moments do.
    """
    rank = max(1, *(len(values) for _, values in found))
    with one_blas_thread():
        total = sum(gram / max(float(np.trace(gram)), np.finfo(float).tiny) for gram in grams)
        common = fix_signs(np.linalg.eigh(total)[1][:, -rank:])
        factors = []
        for vectors, values in found:
            left, _, right = np.linalg.svd(vectors.T @ common, full_matrices=False)
            factors.append((vectors / np.sqrt(values)) @ (left @ right))
    return factors


def rows_by_view(rows: slice, widths: tuple[int, ...]) -> list[slice]:
    """Return the rows of every view among some rows of a tall matrix, counted from the first of these."""
    found = []
    for cut in view_slices(widths):
        start, stop = max(cut.start, rows.start), min(cut.stop, rows.stop)
        found.append(slice(start - rows.start, max(start, stop) - rows.start))
    return found


def _grams(
    rows: slice, matrix: np.ndarray, averages: np.ndarray, widths: tuple[int, ...], power: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the Gram matrices of the views of a matrix whose rows are multiplied by a power of the factors."""
    factors = averages[:, 1:]
    scaled = np.where(factors > 0.0, matrix * np.where(factors > 0.0, factors, 1.0) ** power, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        return {}, {"grams": np.stack([scaled[own].T @ scaled[own] for own in rows_by_view(rows, widths)])}


def _times_factors(
    rows: slice,
    matrix: np.ndarray,
    averages: np.ndarray,
    widths: tuple[int, ...],
    factors: list[np.ndarray],
) -> tuple[dict[str, Any], dict[str, Any]]:
    # Once to scale the products of a sketch, and once as the passes multiply rows that are not scaled.
    scaled = matrix * averages[:, 1:] ** 2
    parts = [scaled[own] @ factor for own, factor in zip(rows_by_view(rows, widths), factors, strict=True)]
    return {"it": np.concatenate(parts)}, {}


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
    """Bring conditional means back from the bases to the columns, components by descending weight.

    Parameters
    ----------
    engine : Engine
    basis : StoredColumns
    averages : StoredArray
        Of the columns of the basis, among them products of columns.
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
    grams = engine.map_rows(_grams, (basis, averages), sum(lifted), {}, lifted, -1.0)[1]["grams"]
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
        # Columns with products are in units of their own, and are scaled once more beside the products.
        at = own_columns(widths, degree)
        scales = np.asarray(averages.load(), np.float64)[at, 1]
        deviations = deviations[at]
        deviations[varying] /= (scales**2 * factors)[varying, None]
    order = np.argsort(-found.weights, kind="stable")
    total = found.weights.sum() if math.isfinite(alpha0) else 1.0
    return Conditional(np.ascontiguousarray(deviations[:, order]), np.sort(found.weights)[::-1] / total)


def state_of(
    engine: Engine,
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
    engine : Engine
    of : Conditional
    units, squares : StoredArray and StoredColumns
        Averages and mean squares of the columns.
    widths : tuple of int
        Numbers of columns of the views.
    diagnostics : dict
    coefficients : ndarray of shape (d, k) or None
        Of scores, after EM.
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
    # A constant column tells no components apart, whatever its variance.
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
