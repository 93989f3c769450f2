"""Factors in whitened coordinates, by moments of orders three and four and their sampling errors.

Source: Anandkumar, Foster, Hsu, Kakade, Liu, "A Spectral Algorithm for Latent Dirichlet Allocation", Algorithms 1
and 2 and remark 4. Models of views and of words share it; the decomposition itself is `distmom.linalg.factors`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.errors import NumericalError
from distmom.linalg import Whitening
from distmom.linalg.factors import Factors, Slices, find_factors
from distmom.moments.documents.dirichlet import fourth_moment, least_skewness, third_moment
from distmom.moments.small import SmallMoments
from distmom.moments.views.groups import contrasts
from distmom.spectral.program.run import unknown
from distmom.spectral.steps.core import unknown_whitening

logger = logging.getLogger(__name__)

#: distributions of hidden vectors
PRIORS = ("independent", "dirichlet")
#: orders of the moments that are used, by the name of the choice
ORDERS = {"3": (3,), "4": (4,), "both": (3, 4)}
#: pairs of directions with which the fourth moment is contracted; the number of factors if that is larger
N_PAIRS = 66
#: share of the least possible skewness above which a deficit is attributed to sampling
LEAST_SKEWNESS = 0.5


def moment_alpha0(prior: str, alpha0: float | str) -> float:
    """Return the alpha0 of the moments: infinite, for central moments, with independent factors."""
    return float(alpha0) if prior == "dirichlet" else math.inf


@dataclass(frozen=True)
class White:
    """Moments in whitened coordinates.

    Attributes
    ----------
    whitening : Whitening
        Whitening of the second moment in the basis.
    moments : SmallMoments
        Moments of all documents.
    parts : tuple of SmallMoments
        Moments of random parts of the documents.
    """

    whitening: Whitening
    moments: SmallMoments
    parts: tuple[SmallMoments, ...]

    @classmethod
    def upto(cls, r: int, k: int) -> White:
        """Return whitened moments of known shapes without content, for a ledger."""
        return cls(unknown_whitening(r, k), unknown(), ())


def decompose_cumulants(
    fourth: tuple[Any, ...] | None,
    white: White,
    alpha0: float,
    orders: tuple[int, ...],
    method: str,
    options: dict[str, Any],
) -> Factors:
    """Correct the whitened moments of orders three and four and find the factors; runs on the scheduler node."""

    def cumulant(correct: Callable[..., np.ndarray], total: Any = None, parts: Any = None) -> tuple[Any, Any]:
        """Return the corrected moment of all documents, and draws of its error where there are parts."""
        of_parts = parts or [None] * len(white.parts)
        found = [correct(m, e) for m, e in zip(white.parts, of_parts, strict=True)]
        return correct(white.moments, total), contrasts(found) if len(found) > 1 else None

    def of_three(m: SmallMoments, _: None) -> np.ndarray:
        return third_moment(m.m1, m.m2, _third(m), alpha0)

    with one_blas_thread():
        k = len(white.moments.m1)
        tensor, noise = cumulant(of_three)
        known = [Slices(tensor, (np.eye(k),), noise)]
        if fourth is not None:
            left, right, total, parts = fourth

            def of_four(m: SmallMoments, contracted: np.ndarray) -> np.ndarray:
                return fourth_moment(m.m1, m.m2, _third(m), contracted, left, right, alpha0)

            matrices, noise = cumulant(of_four, total, parts)
            known.append(Slices(matrices, (left, right), noise))
        return find_factors(known, orders, method, **options)


def _third(moments: SmallMoments) -> np.ndarray:
    assert moments.m3 is not None
    return moments.m3


def admissible(factors: Factors, alpha0: float, n_components: int, orders: str) -> Factors:
    """Return the factors that shares allow, and log a warning where there are fewer than requested.

    Parameters
    ----------
    factors : Factors
    alpha0 : float
    n_components : int
        Number of factors requested.
    orders : str
        A name in `ORDERS`, for messages.

    Raises
    ------
    NumericalError
        If no factor is left.
    """
    n_impossible = 0
    if math.isfinite(alpha0):
        skewness = factors.strengths[3]
        # Shares are at most one, which bounds their skewness from below; the scale of a column depends on it.
        least = LEAST_SKEWNESS * least_skewness(alpha0)
        n_impossible = int(np.sum(skewness <= least))
        if n_impossible:
            logger.warning(
                "%d factors are left out, because shares with alpha0=%g have a skewness above %.3g: "
                "try another alpha0", n_impossible, alpha0, least,
            )  # fmt: skip
        if n_impossible == len(skewness) > 0:
            raise NumericalError(
                f"no factor has a skewness above {least:.3g}, which shares with alpha0={alpha0:g} "
                "must have; try another alpha0"
            )
        factors = factors.subset(skewness > least)
    n = factors.vectors.shape[1]
    if n == 0:
        raise NumericalError(
            f"orders={orders!r}: no factor can be separated from the others: expected skewness above "
            f"{factors.levels[3]:.3g}"
            + (f" or excess kurtosis above {factors.levels[4]:.3g}" if 4 in factors.levels else "")
            + ", the level of noise; use another order, fewer factors, or more data"
        )
    if n + n_impossible < n_components:
        logger.warning(
            "%d of %d factors are left out, because they cannot be separated from each other",
            n_components - n - n_impossible, n_components,
        )  # fmt: skip
    return factors


def separation(found: Factors) -> dict[str, Any]:
    """Return how distinct factors are, as JSON values."""
    return {
        "n_found": found.vectors.shape[1],
        "n_rejected": found.n_rejected,
        # A single factor has no other factor to be separated from.
        "separation": [float(x) if math.isfinite(x) else None for x in found.separation],
        "skewness_level": float(found.levels[3]),
        "kurtosis_level": float(found.levels[4]) if 4 in found.levels else None,
        "off_diagonal_share": None if math.isnan(found.off_diagonal_share) else found.off_diagonal_share,
    }
