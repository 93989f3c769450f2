"""Columns, duals and Dirichlet parameters from factors in whitened coordinates.

Source: see `distmom.models.eca.estimator`, Algorithm 5 and the recoveries (i) to (iv) of Dirichlet-distributed
shares. An infinite alpha0 stands for independent factors.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.corpus import RowBlock
from distmom.linalg.factors import Factors
from distmom.moments.documents.dirichlet import proportions, second_moment
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.factors import White
from distmom.spectral.steps.recovery import product

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recovered:
    """Factors in the coordinates of the views.

    Attributes
    ----------
    components, unmixing : ndarray of shape (n_found, n_features)
        Columns of O as rows, and the matrix whose product with a view gives least-squares factors.
    skewness, kurtosis : ndarray of shape (n_found,)
        Skewness and excess kurtosis; the latter is NaN where it was not used.
    alpha, proportions : ndarray of shape (n_found,)
        Dirichlet parameters, and these divided by alpha0; empty for independent factors.
    diagnostics : dict
        JSON values.
    """

    components: np.ndarray
    unmixing: np.ndarray
    skewness: np.ndarray
    kurtosis: np.ndarray
    alpha: np.ndarray
    proportions: np.ndarray
    diagnostics: dict[str, Any]


def recover_factors(basis: Basis, white: White, found: Factors, mean: np.ndarray, alpha0: float) -> Recovered:
    """Transform admissible factors to the coordinates of the views.

    Parameters
    ----------
    basis : Basis
    white : White
        Moments in the basis.
    found : Factors
        Factors in whitened coordinates.
    mean : ndarray of shape (n_features,)
        Mean of the views.
    alpha0 : float
    """
    W, B, V = white.whitening.W, white.whitening.B, found.vectors
    skewness, scale = found.strengths[3], np.ones(V.shape[1])
    if math.isfinite(alpha0):
        # Algorithm 5: the length Z_i of the whitened column, from its skewness.
        scale = 2.0 / ((alpha0 + 2.0) * skewness)
    with one_blas_thread():
        coefficients, duals = B @ V, W @ V
    components = np.ascontiguousarray((product(basis.matrix, len(mean), coefficients).whole() / scale).T)
    unmixing = np.ascontiguousarray((product(basis.matrix, len(mean), duals).whole() * scale).T)
    shares: dict[str, np.ndarray] = {}
    if math.isfinite(alpha0):
        shares = _proportions(white, V, scale, skewness, unmixing @ mean, alpha0)
    own = shares.get("first_moment", np.zeros(0))
    return Recovered(
        components=components,
        unmixing=unmixing,
        skewness=skewness,
        kurtosis=found.strengths.get(4, np.full(V.shape[1], np.nan)),
        alpha=alpha0 * own if shares else own,
        proportions=own,
        diagnostics=_agreement(shares) if shares else {},
    )


def group_factors(block: RowBlock, unmixing: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """Return the least-squares factors of groups of views, from the mean of the views of each.

    Parameters
    ----------
    block : RowBlock
    unmixing : ndarray of shape (k, n_features)
    origin : ndarray of shape (k,)
        Subtracted from the factors.

    Returns
    -------
    ndarray of shape (n_groups, k), float64
    """
    if not block.n_documents:
        return np.zeros((0, len(unmixing)))
    rows = np.asarray(block.rows @ unmixing.T)
    return np.asarray(np.add.reduceat(rows, block.starts[:-1], axis=0) / block.sizes[:, None] - origin)


def _proportions(
    white: White, V: np.ndarray, scale: np.ndarray, skewness: np.ndarray, first: np.ndarray, alpha0: float
) -> dict[str, np.ndarray]:
    """Return the Dirichlet parameters divided by alpha0, from all four recoveries; (iii) is the first moment.

    Row i of ``O^+ = diag(Z) V'W'`` depends on factor i alone. With the second moment that W whitens, (i), (ii)
    and (iv) agree up to rounding; only the first moment is independent of them.
    """
    duals = (V * scale).T
    m2 = second_moment(white.moments.m1, white.moments.m2, alpha0)
    return {
        "second_moment": (alpha0 + 1.0) * (duals @ m2 @ duals.T).sum(axis=1),
        "lengths": (alpha0 + 1.0) * scale**2,
        "first_moment": first,
        "skewness": proportions(skewness, alpha0),
    }


def _agreement(shares: dict[str, np.ndarray]) -> dict[str, Any]:
    spread = np.ptp(list(shares.values()), axis=0)
    return {
        "proportions": {name: value.tolist() for name, value in shares.items()},
        "proportions_disagreement": float(spread.max()),
    }
