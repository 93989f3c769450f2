"""The sum of the Dirichlet parameters, by how well the corrected third moment decomposes.

Corrected for the true alpha0, the whitened third moment is a sum of orthogonal components; for other values it is
not, and the residual of its decomposition rises on both sides. Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky,
"Tensor Decompositions for Learning Latent Variable Models" (JMLR 2014), theorem 3.5, whose moments are used here;
the choice by the residual is a diagnostic that follows from it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from distmom.blas import one_blas_thread
from distmom.errors import NumericalError, UsageError
from distmom.linalg.tensors.decompose import decompose
from distmom.linalg.tensors.tensor import multilinear, symmetrise
from distmom.linalg.whiten import whiten
from distmom.moments.documents.dirichlet import second_moment, third_moment
from distmom.moments.small import SmallMoments

logger = logging.getLogger(__name__)

#: least and largest alpha0, and the number of values, evenly spaced in the logarithm, from which the search begins
LEAST, MOST, N_VALUES = 0.01, 100.0, 25


#: share of the range, at each end, in which a value counts as being at its end
_END = 1e-3


@dataclass(frozen=True)
class Concentration:
    """The alpha0 with the least residual.

    Attributes
    ----------
    alpha0 : float
        Between `LEAST` and `MOST`; at one of these ends, the moments do not determine it.
    residual : float
        Relative residual of the decomposition, 0 in an exact population. A large one indicates that shares do
        not follow a Dirichlet distribution, or too few documents.
    alpha0s, residuals : ndarray of shape (n,)
        Values that were tried, ascending, and their residuals; infinite where the moments carry fewer topics.
    """

    alpha0: float
    residual: float
    alpha0s: np.ndarray
    residuals: np.ndarray


def residual_of_alpha0(moments: SmallMoments, n_components: int, alpha0: float) -> float:
    """Return the relative residual of the decomposition of the third moment corrected for alpha0.

    Parameters
    ----------
    moments : SmallMoments
        Word moments, with the third.
    n_components : int
    alpha0 : float

    Returns
    -------
    float
        Infinite if the corrected second moment carries fewer components.
    """
    if moments.m3 is None:
        raise UsageError("moments: expected the third moment")
    try:
        W = whiten(second_moment(moments.m1, moments.m2, alpha0), n_components).W
        third = multilinear(third_moment(moments.m1, moments.m2, moments.m3, alpha0), W, W, W)
        return float(decompose(symmetrise(third)).residual)
    except NumericalError:
        return float("inf")


def find_alpha0(moments: SmallMoments, n_components: int) -> Concentration:
    """Return the alpha0 for which the corrected third moment decomposes best.

    Parameters
    ----------
    moments : SmallMoments
        Word moments, with the third.
    n_components : int
        Number of topics, at least 2.

    Raises
    ------
    UsageError
        If there are fewer than two components, for which every alpha0 has the residual 0.
    NumericalError
        If the moments carry fewer components for every alpha0.
    """
    if n_components < 2:
        raise UsageError(f"n_components: expected at least 2, got {n_components}")
    with one_blas_thread():
        tried = np.linspace(np.log(LEAST), np.log(MOST), N_VALUES)
        residuals = np.array([residual_of_alpha0(moments, n_components, float(x)) for x in np.exp(tried)])
        best = int(residuals.argmin())
        if not np.isfinite(residuals[best]):
            raise NumericalError(f"the moments carry fewer than {n_components} topics for every alpha0")
        found = minimize_scalar(
            lambda x: residual_of_alpha0(moments, n_components, float(np.exp(x))),
            bounds=(tried[max(best - 1, 0)], tried[min(best + 1, N_VALUES - 1)]),
            method="bounded",
            options={"xatol": 1e-8},
        )
    return Concentration(float(np.exp(found.x)), float(found.fun), np.exp(tried), residuals)


def warn_at_ends(alpha0: float) -> None:
    """Log a warning if a value that was searched for is at an end of the range."""
    if not LEAST * (1.0 + _END) < alpha0 < MOST * (1.0 - _END):
        logger.warning(
            "alpha0=%g, at the end of the range that is searched: the moments do not determine it", alpha0
        )
