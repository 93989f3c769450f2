"""Mixing weights from the eigenvalues of the whitened tensor, and a check of its eigenpairs.

Source: Anandkumar et al., "Tensor decompositions for learning latent variable models" (JMLR 2014), theorem
4.3 (recovery) and section 4.2 (robustness of eigenvectors).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distmom.errors import NumericalError
from distmom.linalg.tensors.tensor import multilinear

Array = NDArray[np.float64]


def mixing_weights(eigenvalues: Array, usable: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return the weights ``lambda_i ** -2`` of the usable components, normalised and raw (theorem 4.3).

    Raises
    ------
    NumericalError
        If no component is usable.
    """
    if not usable.any():
        raise NumericalError(f"none of the {len(usable)} components has an eigenvalue and a mass above zero")
    raw = np.zeros(len(usable))
    raw[usable] = eigenvalues[usable] ** -2.0
    return raw / raw.sum(), raw


def polar(M: Array) -> Array:
    """Return the nearest matrix with orthonormal columns, the polar factor.

    Parameters
    ----------
    M : ndarray of shape (d, k), d >= k

    Returns
    -------
    ndarray of shape (d, k), float64
    """
    U, _, Vt = np.linalg.svd(M, full_matrices=False)
    factor: Array = U @ Vt
    return factor


def robust_components(T: ArrayLike, vectors: ArrayLike) -> NDArray[np.bool_]:
    """Return which components of a decomposition pass the second-derivative test of robust eigenvectors.

    Parameters
    ----------
    T : array_like of shape (k, k, k)
        Symmetric.
    vectors : array_like of shape (k, n)
        Orthonormal columns.

    Returns
    -------
    ndarray of shape (n,), bool
        Where False, other components lie nearby: noise may have mixed them.

    Notes
    -----
    An orthogonal tensor of k components has ``2 ** k - 1`` eigenvectors with positive eigenvalue, the normalised
    ``sum_{i in S} v_i / lambda_i`` for every nonempty set S; only single components are robust (tensor paper,
    theorem 4.1 and section 4.2.2): ``2 T(I, I, v) - lambda I`` is negative definite on the complement of v.
    """
    V = np.asarray(vectors, np.float64)
    n = V.shape[1]
    rotated = multilinear(T, V, V, V)
    eigenvalues = np.einsum("iii->i", rotated)
    if n == 1:
        return np.asarray(eigenvalues > 0.0)
    robust: NDArray[np.bool_] = np.asarray(eigenvalues > 0.0)
    for i in np.flatnonzero(robust):
        # Definite by its Cholesky factor, which takes a fraction of the time of eigenvalues.
        gap = -(rotated[:, :, i] + rotated[:, :, i].T) / 2.0
        gap[np.diag_indices(n)] += eigenvalues[i] / 2.0
        gap[i], gap[:, i], gap[i, i] = 0.0, 0.0, 1.0
        try:
            np.linalg.cholesky(gap)
        except np.linalg.LinAlgError:
            robust[i] = False
    return robust
