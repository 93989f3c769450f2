"""Linear scores of the components of a row.

Distributions of one shape have densities whose ratios are linear in the row: with scores ``s_h(x) = c_h'x + o_h``,
component h has the probability ``exp s_h(x) / sum_g exp s_g(x)``. So do Gaussians that share a covariance.
"""

from __future__ import annotations

import numpy as np

#: least variance of a column within components, as a share of its variance
LEAST_VARIANCE = 1e-3
#: least variance of z_t in a direction, as a share of the largest, that rounding does not account for
_LEAST_SHARE = 1e-9


def whitening_of(covariance: np.ndarray) -> np.ndarray:
    """Return a matrix W with one column for each direction of positive variance, for which ``W'CW = I``."""
    values, vectors = np.linalg.eigh(covariance)
    kept = (values > _LEAST_SHARE * values[-1]) & (values > 0.0)
    return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))


def scores_by_covariance(deviations: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the coefficients of the scores of Gaussians that share a covariance.

    Parameters
    ----------
    deviations : ndarray of shape (r, k)
        Means, in units in which the covariance over all rows is the identity. The covariance within components is
        what they leave of it, with a variance of `LEAST_VARIANCE` or more in every direction.
    weights : ndarray of shape (k,)

    Returns
    -------
    coefficients : ndarray of shape (r, k)
    constant : float
        Part of the average log-likelihood, less that of a single component, that is the same for all rows.
    """
    values, vectors = np.linalg.eigh(np.eye(len(deviations)) - (deviations * weights) @ deviations.T)
    values = np.maximum(values, LEAST_VARIANCE)
    coefficients = vectors @ ((vectors.T @ deviations) / values[:, None])
    return coefficients, -0.5 * float((np.log(values) + 1.0 / values - 1.0).sum())
