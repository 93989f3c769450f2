"""Steps of the fit of a mixture of axis-aligned Gaussians: from the sums of passes to parameters and state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, PassResult, StoredArray, StoredColumns, Tallies, TallResult
from distmom.engine.directory.run_directory import load_sums
from distmom.engine.sums.tall import read_rows
from distmom.errors import NumericalError
from distmom.models.diagonal.posterior import Diagonals, maximised
from distmom.models.diagonal.recovery import (
    Estimate,
    centred,
    decomposed_views,
    estimate_of,
    refused,
    score_coefficients,
)
from distmom.models.diagonal.together import together
from distmom.moments.dense_rows import mass_of_rows, view_slices
from distmom.moments.rows.diagonal import ColumnMoments, column_moments, spreads_of
from distmom.moments.three_views import N_GROUPS, GroupMoments
from distmom.spectral.program.run import Run
from distmom.spectral.saved.fields import array, value
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.em import count_empty
from distmom.spectral.steps.recovery import Recovery
from distmom.spectral.steps.spherical import Found
from distmom.spectral.steps.three_views import AlignedViews, mean_rows
from distmom.spectral.steps.view_basis import next_basis

#: least variance of a column within a component, as a share of its variance
LEAST_VARIANCE = 1e-6
#: least variance by moments, as a share of the average variance of the column within components, and of its whole
#: variance: moments of few rows may be negative, and the means of columns without noise have sampling errors
_LEAST_OF_WITHIN, _LEAST_BY_MOMENTS = 1e-2, 1e-3
#: share of the average variance within components in the variances of the first EM passes: a component that is too
#: narrow at first attracts few rows
START_SHARE = 0.5
#: least variance of a column, as a share of its mean square, by which it is scaled before its variance is known
#: exactly: rounding of values far from zero is below it
_LEAST_SCALE = 1e-12


@dataclass(frozen=True)
class DiagonalState:
    """The state of a fitted mixture.

    Attributes
    ----------
    means, variances : ndarray of shape (k, d)
    weights : ndarray of shape (k,)
    center, scales : ndarray of shape (d,)
        Mean and standard deviation of every column.
    diagnostics : dict
    """

    means: np.ndarray = array("k", "d")
    variances: np.ndarray = array("k", "d", least=0.0)
    weights: np.ndarray = array("k", least=0.0)
    center: np.ndarray = array("d")
    scales: np.ndarray = array("d", least=0.0)
    diagnostics: dict[str, Any] = value()


def units_of(engine: Engine, tallies: Tallies) -> TallResult:
    """Turn the sums of columns into their means and the factors by which passes scale them, and store both.

    A factor is finite and positive, also of a constant column, and does not need to be exact: the moments of
    scaled columns contain their variance.
    """
    mass = mass_of_rows(tallies.sums)
    total = tallies.tall["columns"]
    mean, squares = np.asarray(read_rows(total, slice(0, total.n_rows))).T / mass
    for wrong, what in ((~np.isfinite(squares), "overflow"), ((squares == 0.0) & (mean != 0.0), "underflow")):
        if wrong.any():
            raise NumericalError(
                f"the squares of the values of column {int(wrong.argmax())} {what}: scale its values"
            )
    variances = np.maximum(squares - mean**2, _LEAST_SCALE * squares)
    factors = np.where(variances > 0.0, 1.0 / np.sqrt(np.where(variances > 0.0, variances, 1.0)), 1.0)
    return TallResult({"units": StoredColumns((engine.put(np.column_stack([mean, factors])),))}, {})


def load_column_moments(directory: str) -> ColumnMoments:
    """Return the moments of all columns that a committed pass has added up."""
    return column_moments(load_sums(directory)[0])


# One partition


def ordered_units(engine: Engine, units: StoredArray, order: np.ndarray) -> StoredArray:
    """Store the units of the columns in the order of the views."""
    return engine.put(np.ascontiguousarray(units.load()[order]))


def next_view_basis(engine: Engine, tallies: Tallies, *arguments: Any) -> TallResult:
    """Return `distmom.spectral.steps.view_basis.next_basis`; its errors name the partition."""
    try:
        return next_basis(engine, tallies, *arguments)
    except NumericalError as error:
        raise _of_partition(error) from error


def decomposed_partition(moments: GroupMoments, k: int, method: str, may_refuse: bool) -> AlignedViews | str:
    """Return `distmom.models.diagonal.recovery.decomposed_views`; its errors name the partition.

    Where ``may_refuse``, the text of an error is returned.
    """
    try:
        return decomposed_views(moments, k, method)
    except NumericalError as error:
        if may_refuse:
            return str(_of_partition(error))
        raise _of_partition(error) from error


def _of_partition(error: NumericalError) -> NumericalError:
    return NumericalError(
        f"{error}; the views are a random partition of the columns, which random_state changes"
    )


def view_scores(found: AlignedViews | str, r: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients and constants of `distmom.moments.rows.diagonal.ViewSquaresPass`.

    Without decomposed views all scores are the same, and their sum is one.
    """
    coefficients = np.zeros((N_GROUPS, N_GROUPS, r, k))
    if isinstance(found, str):
        return coefficients, np.full(k, 1.0 / k)
    weights = found.weights / found.weights.sum()
    with one_blas_thread():
        for t in range(N_GROUPS):
            others = [s for s in range(N_GROUPS) if s != t]
            both = centred(np.concatenate([found.means[s] for s in others]), weights)
            coefficients[t, others] = score_coefficients(both, weights).reshape(2, r, k)
    return coefficients, weights


def sums_of_squares(engine: Engine, tallies: Tallies) -> TallResult:
    """Store the averages of the products of squares and scores, and those of the columns."""
    mass = float(tallies.sums["mass"])
    found = {}
    for name in ("squares", "first"):
        total = tallies.tall[name]
        found[name] = StoredColumns(
            (engine.put(np.asarray(read_rows(total, slice(0, total.n_rows))) / mass),)
        )
    return TallResult(found, {})


def _spreads(squares: StoredColumns, first: StoredColumns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the products of squares and scores, and means and standard deviations of the scaled columns."""
    products, shifts = (np.asarray(each.parts[0].load(), np.float64) for each in (squares, first))
    return products, shifts[:, 0], spreads_of(shifts[:, 0], products.sum(axis=1))


def count_varying(squares: StoredColumns, first: StoredColumns) -> int:
    """Return the number of columns that are not constant, by the averages of `sums_of_squares`."""
    return int(np.count_nonzero(_spreads(squares, first)[2]))


def estimates_of_columns(
    basis: StoredColumns,
    order: np.ndarray,
    widths: tuple[int, ...],
    squares: StoredColumns,
    first: StoredColumns,
    found: AlignedViews | str,
    other: tuple[Basis, Found | str] | None,
) -> list[Estimate]:
    """Map conditional means from the bases back to the columns of the rows, and finish their variances.

    Parameters
    ----------
    basis : StoredColumns
        Bases of the views, whose columns are orthonormal up to rounding, or depend on each other.
    order : ndarray of shape (d,)
        Columns of the rows in the order of the views.
    widths : tuple of int
    squares, first : StoredColumns
        Averages by `sums_of_squares`.
    found : AlignedViews, or str if the views do not suffice
    other : tuple, optional
        Result for all columns together (see `distmom.models.diagonal.together.find_together`).

    Returns
    -------
    list of Estimate
        Those of the two that the moments give, in this order.

    Raises
    ------
    NumericalError
        If they give neither.
    """
    products, shifts, spreads = _spreads(squares, first)
    back = np.argsort(order)
    estimates = []
    if not isinstance(found, str):
        estimates.append(_estimate_of_views(basis, order, widths, products, shifts, spreads, found))
    if other is not None and not isinstance(other[1], str):
        estimates.append(together(other[0], other[1], shifts[back], spreads[back]))
    if not estimates:
        assert other is not None
        raise refused(str(found), str(other[1]))
    return estimates


def _estimate_of_views(
    basis: StoredColumns,
    order: np.ndarray,
    widths: tuple[int, ...],
    products: np.ndarray,
    shifts: np.ndarray,
    spreads: np.ndarray,
    found: AlignedViews,
) -> Estimate:
    """Return the estimate of decomposed views; other parameters in the order of the views."""
    d, k = len(order), len(found.weights)
    weights = found.weights / found.weights.sum()
    matrix = np.empty((d, found.means.shape[1]))
    own = []
    with one_blas_thread():
        for cut, means in zip(view_slices(widths), found.means, strict=True):
            matrix[cut] = read_rows(basis, cut)
            own.append(np.linalg.pinv(matrix[cut].T @ matrix[cut], 1e-9, hermitian=True) @ means)
    views = np.repeat(np.arange(N_GROUPS), widths)
    means = centred(Recovery((basis, views), d, k, mean_rows, (np.stack(own),)).whole(), weights)
    inverse = np.where(spreads > 0.0, 1.0 / np.where(spreads > 0.0, spreads, 1.0), 0.0)[:, None]
    back = np.argsort(order)
    return estimate_of(
        (means * inverse)[back], (products / weights * inverse**2)[back], weights, shifts[back], spreads[back],
        found.diagnostics | {"start": "thirds"},
    )  # fmt: skip


# Parameters and state


def diagonals_of(units: StoredArray, found: list[Estimate]) -> tuple[Diagonals, list[int]]:
    """Return stacked mixtures in units of the columns' deviations, and their numbers of floored variances.

    A constant column has no variance to be a unit: it counts as having its value as the standard deviation, or
    one if it is zero.
    """
    mean, factors = np.asarray(units.load(), np.float64).T
    varying, spreads = found[0].spreads > 0.0, found[0].spreads
    center = mean + found[0].shifts / factors
    constant = np.where(center == 0.0, 1.0, np.abs(center))
    scales = np.where(varying, spreads / factors, constant)
    stacked, n_floored = [], []
    for each in found:
        means = np.where(varying, each.means, 0.0)
        within = np.where(varying, 1.0 - each.weights @ means**2, 0.0)
        least = np.maximum(_LEAST_OF_WITHIN * within, _LEAST_BY_MOMENTS)
        variances = np.where(varying, np.maximum(each.variances, least), LEAST_VARIANCE)
        stacked.append((means, variances, each.weights))
        n_floored.append(int(np.count_nonzero((each.variances < least)[:, varying])))
    parts = (np.concatenate(values) for values in zip(*stacked, strict=True))
    return Diagonals(np.column_stack([center, 1.0 / scales]), *parts), n_floored


def averaged(of: Diagonals, k: int) -> Diagonals:
    """Return stacked mixtures of k components with the variances of the first EM passes."""
    variances = of.variances.reshape(-1, k, of.variances.shape[1])
    within = np.einsum("sh,shi->si", of.weights.reshape(-1, k), variances)[:, None]
    mixed = (1.0 - START_SHARE) * variances + START_SHARE * within
    return replace(of, variances=mixed.reshape(of.variances.shape))


def likeliest(of: Diagonals, k: int, likelihoods: list[np.ndarray]) -> tuple[Diagonals, int]:
    """Return the mixture of largest likelihood among stacked mixtures of k components, and its position.

    Parameters
    ----------
    of : Diagonals
    k : int
    likelihoods : list of ndarray of shape (n_mixtures,)
        Log-likelihoods before each EM pass; without a pass the first mixture is returned.
    """
    best = int(np.argmax(np.nan_to_num(likelihoods[-1], nan=-np.inf))) if likelihoods else 0
    own = slice(best * k, (best + 1) * k)
    return Diagonals(of.units, of.means[own], of.variances[own], of.weights[own]), best


def stored_diagonals(run: Run, of: Diagonals) -> Diagonals:
    """Return the parameters as stored arrays, which passes read."""
    return Diagonals(run.put(of.units), run.put(of.means), run.put(of.variances), run.put(of.weights))


def maximise(scanned: PassResult, of: Diagonals) -> tuple[Diagonals, np.ndarray]:
    """Return the parameters after an EM pass, and the log-likelihoods per row of the mixtures before it."""
    return maximised(scanned.sums, of, LEAST_VARIANCE)


def diagonal_state(
    of: Diagonals,
    best: int,
    found: list[Estimate],
    n_floored: list[int],
    first: list[np.ndarray],
    others: list[np.ndarray],
    n_rows: int,
) -> DiagonalState:
    """Return the state, with the components by descending weight.

    Parameters
    ----------
    of : Diagonals
        The parameters after all EM passes.
    best : int
        Position of the start from which they come.
    found : list of Estimate
        All starts.
    n_floored : list of int
        Their numbers of floored variances.
    first, others : list of ndarray
        Log-likelihoods before the EM passes of all starts, and of the best one.
    n_rows : int
    """
    order = np.argsort(-of.weights, kind="stable")
    center, factors = np.ascontiguousarray(of.units.T)
    scales = 1.0 / factors
    measured = found[best].diagnostics | {
        "n_floored_variances": n_floored[best], "n_empty": count_empty(of.weights, n_rows),
    }  # fmt: skip
    likelihoods = [float(each[best]) for each in first] + [float(each[0]) for each in others]
    if likelihoods:
        measured["log_likelihoods"] = likelihoods
    return DiagonalState(
        center + scales * of.means[order], scales**2 * of.variances[order], of.weights[order], center, scales,
        measured,
    )  # fmt: skip
