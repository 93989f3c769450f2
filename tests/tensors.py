"""Orthogonal tensors, and results in the order of their components."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from distmom.linalg import compose, operator_norm_bounds, symmetrise


def orthogonal_tensor(k, low=1.0, high=4.0, seed=0):
    """Return a tensor with orthonormal components V, its eigenvalues from ``low`` to ``high``, and V."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((k, k)))[0]
    lam = np.linspace(low, high, k)
    return compose(lam, V), lam, V


def noise(k, size, seed):
    """Return a random symmetric tensor with flattening norm ``size``, an upper bound of its operator norm."""
    E = symmetrise(np.random.default_rng([seed, 7]).standard_normal((k, k, k)))
    return size / operator_norm_bounds(E)[1] * E


def aligned(result, V):
    """Eigenvalues and eigenvectors in the order of the columns of V."""
    _, columns = linear_sum_assignment(-(V.T @ result.eigenvectors))
    return result.eigenvalues[columns], result.eigenvectors[:, columns]
