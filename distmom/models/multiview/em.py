"""Expectation-maximisation (EM) for three views whose columns depend on each other within a view.

Views are read through the bases B_t of their ranges, in which their means differ: ``z_t = B_t'(x_t - m_t)``.
Given the component of a row, the z_t are independent and Gaussian, with the means of the component and covariances
that all components share. In units in which the covariance of z_t over all rows is the identity, the covariance
within components is the identity minus ``sum_h w_h d_th d_th'``, with d_th the mean given component h. So an
iteration adds up no products of columns, and scores are linear in the row (see
`distmom.models.multiview.posterior`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, PassResult, StoredArray, StoredColumns
from distmom.models.multiview.correction import load_shares, means_of_shares, unmix
from distmom.models.multiview.fitting import Conditional
from distmom.models.multiview.posterior import ScoresEMPass, ViewSharesPass
from distmom.moments.dense_rows import view_slices
from distmom.moments.three_views import N_GROUPS
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.scores import scores_by_covariance, whitening_of
from distmom.spectral.steps.em import iterate
from distmom.spectral.steps.recovery import Recovery
from distmom.spectral.steps.three_views import mean_rows
from distmom.spectral.steps.view_basis import rows_by_view

#: share of all rows up to which a component is empty
_EMPTY = 1e-12


@dataclass(frozen=True)
class Scores:
    """The parameters as an EM pass reads them, and the part of the log-likelihood that is the same for all rows.

    Attributes
    ----------
    coefficients : ndarray of shape (d, k)
    offsets : ndarray of shape (3, k)
        Offsets of the scores of each view.
    logs : ndarray of shape (k,)
        Logarithms of the weights.
    constant : float
        Added to the average of the logarithms of the sums of the exponentials of the scores, it gives the
        log-likelihood per row, less that of a single component.
    """

    coefficients: np.ndarray
    offsets: np.ndarray
    logs: np.ndarray
    constant: float


@dataclass(frozen=True)
class Refined:
    """What EM returns.

    Attributes
    ----------
    found : Conditional
        Components by descending weight.
    coefficients : ndarray of shape (d, k)
        Coefficients of the scores by these parameters.
    diagnostics : dict
        ``log_likelihoods``, on average per row before each pass, less that of a single component; ``corrected``,
        where the last pass is made.
    """

    found: Conditional
    coefficients: np.ndarray
    diagnostics: dict[str, Any]


def refined(
    run: Run,
    parameters: Conditional,
    moments: PassResult,
    basis: StoredColumns,
    averages: StoredArray,
    widths: tuple[int, ...],
    n_iter: int,
    correct: bool,
    method: str,
    where: str,
) -> Refined:
    """Make EM passes, starting from the parameters by the moments, and the pass that corrects their means.

    Parameters
    ----------
    run : Run
    parameters : Conditional
    moments : PassResult
        Result of `distmom.moments.rows.multiview.MultiViewMomentsPass`, with the moments of each view with itself.
    basis : StoredColumns
    averages : StoredArray
    widths : tuple of int
        Numbers of columns of the views.
    n_iter : int
    correct : bool
        Whether to make the last pass (see `distmom.models.multiview.correction`).
    method : str
        A method of `distmom.linalg.decompose`.
    where : {"scheduler", "client"}
    """
    d, k = parameters.deviations.shape
    reads = (basis, run.apply(whitenings, moments, out=unknown()), averages, widths)
    out = Scores(unknown(d, k), unknown(N_GROUPS, k), unknown(k), unknown())

    def expect(parameters: Conditional) -> tuple[Any, ...]:
        scores = run.rows(scores_of, parameters, *reads, out=out)
        pass_ = ScoresEMPass(
            d, coefficients=run.put(scores.coefficients), n_components=k, averages=averages,
            offsets=run.put(run.apply(_row_offsets, scores, out=unknown(k))),
        )  # fmt: skip
        return run.scan(pass_), parameters, scores.constant

    parameters, likelihoods = iterate(run, parameters, n_iter, expect, maximised)
    corrected = None
    if correct:
        scores = run.rows(scores_of, parameters, *reads, out=out)
        pass_of_shares = ViewSharesPass(
            d, coefficients=run.put(scores.coefficients), offsets=run.put(scores.offsets),
            logs=run.put(scores.logs), n_components=k, averages=averages, widths=widths,
        )  # fmt: skip
        scanned = run.scan(pass_of_shares)
        unmixed = run.small(
            unmix, partial(load_shares, scanned.directory), k, method, where=where,
            out=unknown(),
        )  # fmt: skip
        parameters, corrected = run.apply(
            means_of_shares, scanned, parameters, unmixed, widths, out=(parameters, unknown())
        )
    parameters = run.apply(sorted_by_weight, parameters, out=parameters)
    coefficients = run.rows(scores_of, parameters, *reads, out=out).coefficients
    return Refined(parameters, coefficients, run.apply(_diagnostics, likelihoods, corrected, out=unknown()))


def _row_offsets(scores: Scores) -> np.ndarray:
    return np.asarray(scores.logs + scores.offsets.sum(axis=0))


def _diagnostics(likelihoods: list[float], corrected: bool | None) -> dict[str, Any]:
    return {"log_likelihoods": likelihoods} | ({} if corrected is None else {"corrected": corrected})


def whitenings(moments: PassResult) -> list[np.ndarray]:
    """Return matrices W_t, of r rows, for which ``W_t'z_t`` has the identity as covariance over all rows."""
    mass = float(moments.sums["mass"])
    found = []
    with one_blas_thread():
        for own, first in zip(moments.sums["own"], moments.sums["means"], strict=True):
            mean = np.asarray(first) / mass
            found.append(whitening_of(np.asarray(own) / mass - np.outer(mean, mean)))
    return found


def scores_of(
    engine: Engine,
    of: Conditional,
    basis: StoredColumns,
    whitening: list[np.ndarray],
    averages: StoredArray,
    widths: tuple[int, ...],
) -> Scores:
    """Return the scores by the parameters, with a variance of `LEAST_VARIANCE` or more in every direction."""
    d, k = of.deviations.shape
    means = engine.maps.map_rows(_projected, (basis, of.deviations), d, {}, widths)[1]["means"]
    own, constant = np.zeros((N_GROUPS, means.shape[1], k)), 0.0
    with one_blas_thread():
        for t, W in enumerate(whitening):
            found, part = scores_by_covariance(W.T @ means[t], of.weights)
            own[t] = W @ found
            constant += part
    views = np.repeat(np.arange(N_GROUPS), widths)
    coefficients = Recovery((basis, views), d, k, mean_rows, (own,)).whole()
    logs = np.log(np.maximum(of.weights, np.finfo(float).tiny))
    mean = np.asarray(averages.load(), np.float64)[:, 0]
    centers = np.stack([mean[cut] @ coefficients[cut] for cut in view_slices(widths)])
    offsets = -0.5 * np.einsum("trk,trk->tk", means, own) - centers
    return Scores(coefficients, offsets, logs, constant)


def _projected(
    rows: slice, basis: np.ndarray, deviations: np.ndarray, widths: tuple[int, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the deviations of the means of the views in the bases, (3, r, k)."""
    return {}, {"means": np.stack([basis[own].T @ deviations[own] for own in rows_by_view(rows, widths)])}


def maximised(scanned: PassResult, before: Conditional, constant: float) -> tuple[Conditional, float]:
    """Return the parameters after an EM pass, and the log-likelihood per row with those before it.

    A component without rows keeps its means.
    """
    p, mass = np.asarray(scanned.sums["p"]), float(scanned.sums["mass"])
    some = p > _EMPTY * mass
    deviations = np.where(some, np.asarray(scanned.sums["px"]) / np.where(some, p, 1.0), before.deviations)
    return Conditional(deviations, p / p.sum()), float(scanned.sums["evidence"]) / mass + constant


def sorted_by_weight(of: Conditional) -> Conditional:
    """Return the components by descending weight."""
    order = np.argsort(-of.weights, kind="stable")
    return Conditional(np.ascontiguousarray(of.deviations[:, order]), of.weights[order])
