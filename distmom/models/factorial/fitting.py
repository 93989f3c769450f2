"""Steps of the fit of independent hidden chains: a basis, and the model from moments or from expected counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, PassResult, StoredColumns
from distmom.engine.sums.tall import read_rows
from distmom.errors import NumericalError
from distmom.models.factorial.joint import joint_values
from distmom.models.factorial.recovery import Canonical, laws_of, middle_means
from distmom.spectral.saved.fields import array, value
from distmom.spectral.steps.basis import Basis

#: singular value of a basis, as a share of the largest, that rounding does not account for
_LEAST_SHARE = 1e-10


@dataclass(frozen=True)
class FactorialState:
    """The state of a fitted model; shapes are those on disk.

    Attributes
    ----------
    components : ndarray of shape (k, d)
    intercept, variances : ndarray of shape (d,)
    startprob, fall, rise : ndarray of shape (k,)
    diagnostics : dict
    """

    components: np.ndarray = array("k", "d")
    intercept: np.ndarray = array("d")
    variances: np.ndarray = array("d", least=0.0)
    startprob: np.ndarray = array("k", least=0.0)
    fall: np.ndarray = array("k", least=0.0)
    rise: np.ndarray = array("k", least=0.0)
    diagnostics: dict[str, Any] = value()


def with_constant(engine: Engine, basis: Basis, k: int) -> Basis:
    """Return a basis of the constant feature, and of the other features that a basis has.

    Parameters
    ----------
    engine : Engine
    basis : Basis
        Basis of the range of the moments of `distmom.moments.sequences.windows.step_features` of degree 1.
    k : int
        Number of chains, at most the rank of the other features.

    Raises
    ------
    NumericalError
        If the rank is smaller.
    """
    Q = _whole(basis)
    with one_blas_thread():
        left, values, _ = np.linalg.svd(Q[1:], full_matrices=False)
    rank = int(np.sum(values > _LEAST_SHARE * max(float(values[0]), 1.0)))
    if rank < k:
        raise NumericalError(
            f"n_components={k}: the cross moments of the steps of windows have rank {rank}; use fewer chains, or "
            "more data"
        )
    found = np.zeros((len(Q), rank + 1))
    found[0, 0] = 1.0
    found[1:, 1:] = left[:, :rank]
    return Basis(StoredColumns((engine.put(found),)), rank + 1, basis.noise)


def _whole(basis: Basis) -> np.ndarray:
    n_rows = basis.matrix.parts[0].load().shape[0]
    return np.asarray(read_rows(basis.matrix, slice(0, n_rows)), np.float64)


def state_of(
    basis: Basis,
    found: Canonical,
    standards: tuple[np.ndarray, np.ndarray],
    fit_intercept: bool,
    min_variance: float,
) -> FactorialState:
    """Map chains from the basis back to the values of a step, and estimate their probabilities and the noise.

    Parameters
    ----------
    basis : Basis
        From `with_constant`.
    found : Canonical
    standards : (ndarray of shape (d,), ndarray of shape (d,))
        Origin and scale of the values.
    fit_intercept, min_variance
        As in `FactorialHMM`.
    """
    origin, scale = standards
    Q = _whole(basis)[1:, 1:]
    with one_blas_thread():
        canonical, average = Q @ found.columns, found.means @ Q.T
        middle = middle_means(found.skewness)
        implied = found.skewness
        if not fit_intercept:
            # C^+ E[x_2] = e / s, with zero as the origin of the steps.
            ratio = np.linalg.pinv(canonical) @ (origin / scale + average[1])
            middle, implied = ratio / np.sqrt(1.0 + ratio**2), -2.0 * ratio
        deviation = np.sqrt(1.0 - middle**2)
        columns = canonical / deviation
        means = middle + (np.linalg.pinv(found.columns / deviation) @ (found.means - found.means[1]).T).T
    laws = laws_of(means, found.memory)
    # A check: the covariance of the first two steps has the variance of the first, which its mean implies too.
    second = found.backward * deviation**2 / np.maximum(1.0 - means[0] ** 2, 1e-3)
    offset = origin + scale * (average[1] - columns @ middle)
    noise = found.squares - average[1] ** 2 - canonical**2 @ np.ones(len(middle))
    floor = _floor(min_variance)
    diagnostics = {
        **found.diagnostics,
        "disagreement": [float(x) for x in np.abs(second - found.memory)],
        "drift": [float(x) for x in laws.drift],
        "clipped": laws.clipped,
        "clipped_variances": float((noise < floor).mean()),
        "skewness_mismatch": [float(x) for x in np.abs(implied - found.skewness)],
        "log_likelihoods": [],
    }
    return FactorialState(
        components=np.ascontiguousarray((columns * scale[:, None]).T),
        intercept=offset if fit_intercept else np.zeros(len(offset)),
        variances=np.maximum(noise, floor) * scale**2,
        startprob=laws.start,
        fall=laws.fall,
        rise=laws.rise,
        diagnostics=diagnostics,
    )


def maximised(
    state: FactorialState,
    counts: PassResult,
    standards: tuple[np.ndarray, np.ndarray],
    fit_intercept: bool,
    min_variance: float,
    first: bool,
) -> FactorialState:
    """Turn expected counts of joint states into a model: the M-step.

    Parameters
    ----------
    state : FactorialState
        The model of the E-step.
    counts : PassResult
        Result of a `distmom.models.markov.passes.ExpectationPass` over the joint states.
    standards, fit_intercept, min_variance
        As in `state_of`.
    first : bool
        Whether ``startprob`` is that of the first steps of sequences; otherwise, that of all steps.
    """
    sums, (origin, scale) = counts.sums, standards
    starts, pairs, mass = (np.asarray(sums[name]) for name in ("first", "pairs", "states"))
    starts = starts if first else mass
    values, squares = np.asarray(sums["values"])
    signs = joint_values(len(state.startprob))
    if not fit_intercept:
        squares = squares + 2.0 * origin * values + np.multiply.outer(mass, origin**2)
        values = values + np.multiply.outer(mass, origin)
    design = np.column_stack([np.ones(len(signs)), signs]) if fit_intercept else signs
    with one_blas_thread():
        targets = design.T @ values
        solution = np.linalg.lstsq(design.T @ (mass[:, None] * design), targets, rcond=None)[0]
    noise = (squares.sum(axis=0) - (solution * targets).sum(axis=0)) / mass.sum()
    up = signs > 0.0
    rises, falls = (
        np.array([pairs[np.ix_(a, b)].sum() for a, b in zip(before.T, after.T, strict=True)])
        for before, after in ((~up, up), (up, ~up))
    )
    low, high = (pairs.sum(axis=1) @ side for side in (~up, up))
    diagnostics = dict(state.diagnostics)
    diagnostics["log_likelihoods"] = [
        *diagnostics["log_likelihoods"], float(sums["log_likelihood"] / sums["mass"])
    ]  # fmt: skip
    return replace(
        state,
        components=np.ascontiguousarray(solution[-signs.shape[1] :]),
        intercept=origin + solution[0] if fit_intercept else state.intercept,
        variances=np.maximum(noise, _floor(min_variance) * scale**2),
        startprob=_shares(starts @ up, np.full(len(state.startprob), starts.sum()), state.startprob),
        fall=_shares(falls, high, state.fall),
        rise=_shares(rises, low, state.rise),
        diagnostics=diagnostics,
    )


def _shares(parts: np.ndarray, totals: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Return parts of totals, and other values where a total is zero."""
    found = np.array(otherwise, np.float64)
    found[totals > 0.0] = parts[totals > 0.0] / totals[totals > 0.0]
    return found


def _floor(min_variance: float) -> float:
    return max(min_variance, float(np.finfo(np.float64).eps))
