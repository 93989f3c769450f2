"""Moments of the latent part of a single view, from rows with independent noise in every variable.

The model is ``x = A h + epsilon`` with noises that are independent of h and of each other. They add a diagonal
matrix to the covariance (`distmom.linalg.lowrank`), and add to the entries (i, i, i) of the third moment. The
variables are divided into three parts. Each variable is predicted twice, from each of the two parts that it does
not belong to. The residuals u and v of both predictions have only the noise of the variable in common, so
``E[u v]`` is the variance of this noise and ``E[u v (u + v)] / 2`` its third moment.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), section 5 for the covariance. The paper leaves the noise in the third moment, which
biases the weights of a network; its removal is derived here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distmom.errors import NumericalError, UsageError
from distmom.linalg.checks import generator
from distmom.linalg.lowrank import find_split, independent_parts
from distmom.linalg.tensors.tensor import compose
from distmom.linalg.whiten import Whitening, whiten
from distmom.moments.rows.one_view import Predictors, noise_moments

#: random partitions of which the best conditioned one is used
N_PARTITIONS = 30
#: smallest singular value of the factors of a part, relative to the largest, that is not zero
_RANK_TOLERANCE = 1e-10


@dataclass(frozen=True)
class DenoisedMoments:
    """Moments of the rows without their noise.

    Attributes
    ----------
    mean : ndarray of shape (n,)
        Mean of the rows.
    whitening : Whitening
        Whitening of the part of low rank of the covariance.
    third : ndarray of shape (k, k, k)
        Third moment of the latent part, contracted with the whitening matrix in every mode.
    variances : ndarray of shape (n,)
        Variances of the noises.
    thirds : ndarray of shape (n,)
        Third moments of the noises.
    off_diagonal_share : float
        As in `DiagonalLowRank`.
    """

    mean: np.ndarray
    whitening: Whitening
    third: np.ndarray
    variances: np.ndarray
    thirds: np.ndarray
    off_diagonal_share: float


def denoised_moments(
    rows: np.ndarray, rank: int, *, weights: np.ndarray | None = None, n_partitions: int = 100, seed: int = 0
) -> DenoisedMoments:
    """Return the second and third moments of rows without the independent noise of the variables.

    Parameters
    ----------
    rows : ndarray of shape (m, n)
    rank : int
        Number of latent variables, at most n / 3.
    weights : ndarray of shape (m,), optional
        Weights of the rows, such as the probabilities of an enumerated population. Equal by default.
    n_partitions : int, default 100
        As in `find_split`.
    seed : int, default 0

    Raises
    ------
    UsageError
        If the rank exceeds a third of the variables, or the weights are not one nonnegative number per row.
    NumericalError
        If an entry is not finite, or the variables do not carry the rank in three parts.
    """
    m = len(rows)
    weights = np.ones(m) if weights is None else np.asarray(weights, float)
    if weights.shape != (m,) or not (weights >= 0.0).all() or not weights.sum() > 0.0:
        raise UsageError(f"weights: expected {m} nonnegative numbers with a positive sum")
    if not np.isfinite(rows).all():
        raise NumericalError(f"the rows of shape {rows.shape} have entries that are not finite")
    weights = weights / weights.sum()
    mean = weights @ rows
    centred = rows - mean
    split = find_split((centred.T * weights) @ centred, rank, n_partitions=n_partitions, seed=seed)
    whitening = whiten(split.low_rank, rank)
    predictors = find_predictors(whitening.B, find_parts(whitening.B, seed=seed))
    thirds = noise_moments(centred, predictors, weights)[1]
    white = centred @ whitening.W
    third = compose(weights, white.T)
    return DenoisedMoments(
        mean,
        whitening,
        without_noise(third, whitening.W, thirds),
        split.diagonal,
        thirds,
        split.off_diagonal_share,
    )


def find_parts(factors: np.ndarray, *, seed: int = 0) -> list[np.ndarray]:
    """Return three parts of the variables such that the factors of each are well conditioned.

    Parameters
    ----------
    factors : ndarray of shape (n, k)
        F with ``F F'`` the part of low rank of a covariance.
    seed : int, default 0

    Raises
    ------
    UsageError
        If there are fewer than three variables per factor.
    """
    n, k = factors.shape
    if n < 3 * k:
        raise UsageError(f"factors: expected at least {3 * k} rows, three per column, got {n}")
    rng = generator(seed, "seed")
    vectors = np.linalg.qr(factors)[0]
    trials = [independent_parts(vectors, rng) for _ in range(N_PARTITIONS)]
    return max(trials, key=lambda parts: min(np.linalg.svd(factors[p], compute_uv=False)[-1] for p in parts))


def find_predictors(factors: np.ndarray, parts: Sequence[np.ndarray]) -> Predictors:
    """Return the predictors of the variables.

    Parameters
    ----------
    factors : ndarray of shape (n, k)
        F with ``F F'`` the part of low rank of the covariance.
    parts : sequence of three ndarrays of int
        Partition of the variables.

    Raises
    ------
    UsageError
        If the parts are not a partition of the variables into three sets.
    NumericalError
        If the factors of a part have a rank below k.
    """
    n, k = factors.shape
    if len(parts) != 3 or not np.array_equal(np.sort(np.concatenate(parts)), np.arange(n)):
        raise UsageError("parts: expected a partition of the variables into three sets")
    latent, left, right = (np.zeros((n, 3 * k)) for _ in range(3))
    for i, part in enumerate(parts):
        singular = np.linalg.svd(factors[part], compute_uv=False)
        if len(part) < k or not singular[-1] > _RANK_TOLERANCE * singular[0]:
            raise NumericalError(f"the factors of a part of {len(part)} variables have a rank below {k}")
        columns = [slice(k * ((i + step) % 3), k * ((i + step) % 3) + k) for step in range(3)]
        latent[part, columns[0]] = np.linalg.pinv(factors[part]).T
        left[part, columns[1]] = right[part, columns[2]] = factors[part]
    return Predictors(latent, left, right)


def without_noise(third: np.ndarray, W: np.ndarray, thirds: np.ndarray) -> np.ndarray:
    """Return a contracted third moment without the noises of the variables, ``T - sum_i mu_i W_i^3``.

    Parameters
    ----------
    third : ndarray of shape (k, k, k)
        Third moment of the centred rows, contracted with W in every mode.
    W : ndarray of shape (n, k)
    thirds : ndarray of shape (n,)
        Third moments mu of the noises.
    """
    return np.asarray(third - compose(thirds, W.T))
