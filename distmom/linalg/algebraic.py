"""Decompositions by a single matrix factorisation: baselines and oracles that are unstable under noise.

Source: Anandkumar et al., "Tensor decompositions for learning latent variable models" (JMLR 2014), section
6.2 (flattening) and appendix D (simultaneous diagonalisation, after Harshman and Jennrich).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distmom.errors import NumericalError, UsageError
from distmom.linalg.tensor import as_symmetric, contract_one, multilinear
from distmom.linalg.whiten import whiten

Array = NDArray[np.float64]


def flattening_vectors(T: Array) -> Array:
    """Return the left singular vectors of the (k, k * k) flattening.

    They are the components if all eigenvalues differ; components with equal eigenvalues are mixed.

    Parameters
    ----------
    T : ndarray of shape (k, k, k), float64
        Symmetric.

    Returns
    -------
    ndarray of shape (k, k), float64
        Orthonormal columns.
    """
    k = T.shape[0]
    U, _, _ = np.linalg.svd(T.reshape(k, k * k), full_matrices=False)
    vectors: Array = U
    return vectors


def pencil_vectors(T: Array, rng: np.random.Generator, *, n_draws: int = 8) -> Array:
    """Return the eigenvectors of one random contraction of an orthogonal tensor (appendix D, whitened).

    Parameters
    ----------
    T : ndarray of shape (k, k, k), float64
        Symmetric.
    rng : numpy.random.Generator
    n_draws : int, default=8
        Number of random directions; the contraction with the largest relative eigenvalue gap is used.

    Returns
    -------
    ndarray of shape (k, k), float64
        Orthonormal columns.
    """
    k = T.shape[0]
    best_gap, best = -np.inf, np.eye(k)
    for _ in range(n_draws):
        values, vectors = np.linalg.eigh(contract_one(T, rng.standard_normal((k,))))
        spread = float(np.abs(values).max())
        gap = float(np.diff(values).min()) / spread if k > 1 and spread > 0 else 0.0
        if gap > best_gap:
            best_gap, best = gap, vectors
    return best


def jennrich(M2: ArrayLike, M3: ArrayLike, k: int, *, random_state: int = 0) -> tuple[Array, Array]:
    """Recover non-orthogonal components from dense second and third moments (appendix D).

    Parameters
    ----------
    M2 : array_like of shape (d, d)
        ``sum_i w_i mu_i mu_i'``.
    M3 : array_like of shape (d, d, d)
        ``sum_i w_i mu_i (x) mu_i (x) mu_i``.
    k : int
        Number of components, at most d.
    random_state : int, default=0
        Seed of the random direction with which the third moment is contracted.

    Returns
    -------
    means : ndarray of shape (d, k), float64
        The ``mu_i`` as columns, including their scale.
    weights : ndarray of shape (k,), float64

    Raises
    ------
    UsageError
        If the shapes do not match.
    NumericalError
        If M2 has rank below k, or a component is orthogonal to the random direction.
    """
    second = np.asarray(M2, dtype=np.float64)
    third = as_symmetric(M3)
    d = third.shape[0]
    if second.shape != (d, d):
        raise UsageError(f"M2 has shape {second.shape}, but M3 has shape {third.shape}")
    whitening = whiten(second, k)
    eta = np.random.default_rng(random_state).standard_normal((d,))
    # The paper's pencil (U' M3(I, I, eta) U) (U' M2 U)^-1 is symmetric definite if M2 is positive on its range.
    # Whitening turns it into a symmetric matrix, so that all eigenvalues are real.
    pencil = whitening.W.T @ contract_one(third, eta) @ whitening.W
    values, vectors = np.linalg.eigh((pencil + pencil.T) / 2.0)
    directions = whitening.B @ vectors
    along = directions.T @ eta
    if not np.all(along != 0.0):
        raise NumericalError("a component is orthogonal to the random direction; use another random_state")
    means: Array = directions * (values / along)
    pseudo = np.linalg.pinv(means)
    weights: Array = np.einsum("id,de,ie->i", pseudo, second, pseudo)
    return means, weights


def project(M3: ArrayLike, W: ArrayLike) -> Array:
    """Return ``M3(W, W, W)``, symmetrised exactly.

    Parameters
    ----------
    M3 : array_like of shape (r, r, r)
    W : array_like of shape (r, k)

    Returns
    -------
    ndarray of shape (k, k, k), float64
    """
    return as_symmetric(multilinear(M3, W, W, W))
