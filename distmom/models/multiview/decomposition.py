"""The decomposition of the moments of three views, for rows of one component and of several.

Source: Anandkumar, Foster, Hsu, Kakade, Liu, "A Spectral Algorithm for Latent Dirichlet Allocation", section 4.4
and Algorithm 4. A row has a hidden vector h, and its views are independent given h, with means ``O_t h``. For
Dirichlet-distributed shares h, moments corrected for alpha0 by the mean of every view
(`distmom.moments.documents.dirichlet`) are, up to their factors,

    sum_i p_i O_si O_ti'          sum_i p_i O_1i (x) O_2i (x) O_3i          p_i = alpha_i / alpha0

which is what a mixture of components with the weights p_i has. For independent factors, central moments are

    sum_i C_si C_ti'              sum_i gamma_i C_1i (x) C_2i (x) C_3i

with C_ti the column of O_t times the standard deviation of factor i, and gamma_i its skewness: those of a mixture
with the weights ``gamma_i^-2`` and the means ``gamma_i C_ti``. One decomposition serves all.

The weights of shares sum to one only if the moments are corrected for the true alpha0: the sum falls as the alpha0
of the correction grows, which is how an unknown alpha0 is found.
"""

from __future__ import annotations

import logging
import math

import numpy as np
from scipy.optimize import brentq

from distmom.blas import one_blas_thread
from distmom.errors import NumericalError
from distmom.moments.documents.dirichlet import second_cross_moment, third_cross_moment
from distmom.moments.three_views import PAIRS, GroupMoments
from distmom.spectral.steps.centred_views import extended, measured_views, of_one_component
from distmom.spectral.steps.concentration import LEAST, MOST, warn_at_ends
from distmom.spectral.steps.three_views import AlignedViews

logger = logging.getLogger(__name__)

#: factor between the values of alpha0 that are tried before the interval between two of them is divided
_STEP = 10.0
#: skewness of a factor up to which rounding accounts for it
_ROUNDING = 1e-8


def diagonal_moments(moments: GroupMoments, alpha0: float) -> GroupMoments:
    """Return the pairs and triples that a mixture of the components would have.

    Parameters
    ----------
    moments : GroupMoments
        For shares, of views with a constant coordinate.
    alpha0 : float
        Sum of the Dirichlet parameters; infinite for independent factors. With 0, the moments are as they are.
    """
    if alpha0 == 0.0:
        return moments
    first, second, third = moments.means
    pairs = np.stack(
        [
            second_cross_moment(moments.means[s], moments.means[t], pair, alpha0)
            for (s, t), pair in zip(PAIRS, moments.pairs, strict=True)
        ]
    )
    ab, ac, bc = moments.pairs
    triples = third_cross_moment((first, second, third), (ab, ac, bc), moments.triples, alpha0)
    if math.isfinite(alpha0):
        pairs *= alpha0 + 1.0
        triples *= (alpha0 + 1.0) * (alpha0 + 2.0) / 2.0
    return GroupMoments(moments.means, pairs, triples)


def decomposed(moments: GroupMoments, k: int, method: str, alpha0: float = 0.0) -> AlignedViews:
    """Decompose the moments, and measure how well views distinguish components; runs on the scheduler node.

    The means are those of the components in the bases, and the effects of factors of variance one if these are
    independent; the weights are then their skewness.

    Raises
    ------
    NumericalError
        If the moments carry fewer than k components, or an independent factor is not skewed.
    """
    independent = math.isinf(alpha0)
    if not independent:
        # The correction divides the pair of the constant coordinate by alpha0 + 1, and no pair of centred columns.
        # The coordinate must stay the largest singular direction, also where rows have more components than k.
        moments = of_one_component(extended(moments, math.sqrt(alpha0 + 1.0)), k)
    moments = diagonal_moments(moments, alpha0)
    views = measured_views(moments, k, method)
    diagnostics = dict(views.diagnostics)
    if not independent:
        if alpha0 > 0.0:
            diagnostics["proportions_disagreement"] = _disagreement(moments.means, views)
        return AlignedViews(views.means[:, 1:], views.weights, diagnostics)
    skewness = views.weights**-0.5
    if not skewness.min() > _ROUNDING:
        shown = ", ".join(f"{x:.3g}" for x in skewness)
        raise NumericalError(
            "independent factors are found by their skewness, which is zero for "
            f"{int((skewness <= _ROUNDING).sum())} of {k}: {shown}"
        )
    # The weights of factors are no probabilities.
    del diagnostics["sum_weights"]
    return AlignedViews(views.means / skewness, skewness, diagnostics)


def find_alpha0(moments: GroupMoments, k: int, method: str) -> float:
    """Return the alpha0 for which the weights of the components sum to one; runs on the scheduler node.

    It is between `LEAST` and `MOST`. If the sum is below one at the least value, or above one at the largest, that
    value is returned, with a warning.

    Parameters
    ----------
    moments : GroupMoments
    k : int
        Number of components, at least 2.
    method : str
        A method of `distmom.linalg.decompose`.

    Raises
    ------
    NumericalError
        If the moments carry fewer than k components.
    """

    def excess(log_alpha0: float) -> float:
        found = decomposed(moments, k, method, math.exp(log_alpha0))
        return float(found.diagnostics["sum_weights"]) - 1.0

    # Corrections for an alpha0 far above the true one may leave fewer components, so values are tried upwards.
    low, most = math.log(LEAST), math.log(MOST)
    above, high = excess(low), low
    while above > 0.0 and high < most:
        low, high = high, min(high + math.log(_STEP), most)
        above = excess(high)
    if low == high or above > 0.0:
        warn_at_ends(math.exp(high))
        return math.exp(high)
    return math.exp(brentq(excess, low, high, xtol=1e-14))


def _disagreement(means: np.ndarray, found: AlignedViews) -> float:
    """Return the largest difference of average shares by the moments from those by the mean of a view."""
    with one_blas_thread():
        by_mean = [np.linalg.pinv(own) @ mean for own, mean in zip(found.means, means, strict=True)]
    return float(np.abs(np.array(by_mean) - found.weights).max())
