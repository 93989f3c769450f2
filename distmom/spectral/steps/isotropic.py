"""The covariance of rows with noise of one variance in every direction: its level, its rank and its whitening."""

from __future__ import annotations

import numpy as np

from distmom.errors import NumericalError
from distmom.linalg import Whitening
from distmom.moments.rows.gaussian import RowMoments
from distmom.spectral.steps.core import whiten_moment

#: least total variance of rows: products of three smaller values underflow
LEAST_TRACE = 1e-180
#: largest rounding error of the covariance, as a share of the variance per direction between components
MOST_ROUNDING = 1e-3


def check_range(moments: RowMoments, k: int, d: int, offset: float) -> None:
    """Refuse rows whose moments are out of range, or inexact because the rows are far from the origin."""
    is_finite = np.isfinite(moments.trace) and (moments.third is None or np.isfinite(moments.third).all())
    if not is_finite or 0.0 < moments.trace < LEAST_TRACE:
        raise NumericalError(
            f"the rows have a total variance of {moments.trace:.3g}, whose third moments are out of range: scale "
            "the rows"
        )
    eps = float(np.finfo(float).eps)
    rounding = eps * offset
    # Constant rows are refused later, with a message of their own.
    if k == 1 or moments.trace <= 10.0 * eps * rounding:
        return
    # The trace is computed from centred rows, so it keeps its digits.
    if rounding > MOST_ROUNDING * moments.trace / min(k - 1, d):
        distance, spread = offset**0.5, moments.trace**0.5
        raise NumericalError(
            f"the mean of the rows has norm {distance:.3g}, and they are {spread:.3g} away from it on average, so "
            f"that rounding changes their covariance by about {rounding:.3g}: subtract the mean from the rows"
        )


def noise_of(values: np.ndarray, trace: float, k: int, d: int) -> float:
    """Return the average of the eigenvalues of the covariance beyond the first k - 1."""
    return max((trace - float(values[: k - 1].sum())) / (d - k + 1), 0.0)


def whitened_covariance(moments: RowMoments, values: np.ndarray, k: int, noise: float, d: int) -> Whitening:
    """Whiten the covariance minus the noise by its k - 1 leading eigenvalues."""
    n_found = n_usable(values, noise, d, moments)
    if n_found < k - 1:
        shown = ", ".join(f"{x:.3g}" for x in values[: k + 2])
        least = _threshold(values, noise, d, moments)
        raise NumericalError(
            f"the covariance carries fewer than {k} components: {k - 1} of its eigenvalues must be above "
            f"{least:.3g}, the noise of variance {noise:.3g} with its sampling error and rounding, but {n_found} "
            f"are; the largest are {shown}; use n_components={n_found + 1} or fewer, or more rows"
        )
    level = noise_level(noise, d, moments.n_sampled)
    return whiten_moment(moments.second - noise * np.eye(len(moments.second)), k - 1, level)


def n_usable(values: np.ndarray, noise: float, d: int, moments: RowMoments) -> int:
    """Return the number of eigenvalues of the covariance that can carry a component."""
    return int(np.count_nonzero(values > _threshold(values, noise, d, moments)))


def _threshold(values: np.ndarray, noise: float, d: int, moments: RowMoments) -> float:
    """Return the level that an eigenvalue of the covariance must exceed to carry a component."""
    level = noise + noise_level(noise, d, moments.n_sampled)
    return max(level, 1e-12 * float(values[0]))


def noise_level(noise: float, d: int, n: int) -> float:
    """Return how far the largest eigenvalue of noise is above its variance in a sample of n rows.

    It is the edge of the distribution of Marchenko and Pastur. A population that is enumerated rather than sampled
    (``n`` is 0) has no such error.
    """
    ratio = d / n if n else 0.0
    return max(noise, 0.0) * (2.0 * float(np.sqrt(ratio)) + ratio)
