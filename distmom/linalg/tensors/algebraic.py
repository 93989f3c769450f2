"""Decompositions by a single matrix factorisation: baselines that are unstable under noise.

Source: Anandkumar et al., "Tensor decompositions for learning latent variable models" (JMLR 2014), section
6.2 (flattening) and appendix D (simultaneous diagonalisation, after Harshman and Jennrich).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distmom.linalg.tensors.tensor import contract_one

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
