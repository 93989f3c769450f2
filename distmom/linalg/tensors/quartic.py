"""Symmetric tensors of order four, dense and float64: multilinear maps and the power method with deflation.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models" (JMLR
2014), theorem 3.4 and Algorithm 1. A fourth cumulant in whitened coordinates is
``T = sum_i kappa_i v_i (x) v_i (x) v_i (x) v_i`` with orthonormal ``v_i`` and ``kappa_i`` of either sign.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distmom.linalg.tensors.weights import polar

Array = NDArray[np.float64]

#: change of an iterate at which the power method ends
_CONVERGED = 1e-14
#: largest number of polar steps on the whole tensor at the end
_POLAR_STEPS = 50


def map_quartic(T: Array, W: Array) -> Array:
    """Contract each mode of a tensor with a matrix: ``T(W, W, W, W)``.

    Parameters
    ----------
    T : ndarray of shape (k, k, k, k)
    W : ndarray of shape (k, n)

    Returns
    -------
    ndarray of shape (n, n, n, n)
    """
    for _ in range(4):
        # Contracting the first axis appends the new one.
        T = np.tensordot(T, W, axes=(0, 0))
    return np.ascontiguousarray(T)


def fourth_cumulant(moment: Array, second: Array) -> Array:
    """Subtract the fourth moment of Gaussian variables of the same covariance from a central fourth moment.

    Parameters
    ----------
    moment : ndarray of shape (k, k, k, k)
    second : ndarray of shape (k, k)
    """
    pairs = np.multiply.outer(second, second)
    return np.asarray(moment - pairs - pairs.transpose(0, 2, 1, 3) - pairs.transpose(0, 2, 3, 1))


def contracted_cumulants(matrices: Array, second: Array, left: Array, right: Array) -> Array:
    """Subtract the same from contractions of the moment with pairs of directions.

    Parameters
    ----------
    matrices : ndarray of shape (k, k, m)
        ``E[(a'y)(b'y) y y']`` for every pair a, b.
    second : ndarray of shape (k, k)
    left, right : ndarray of shape (k, m)
        The pairs as columns.
    """
    a, b = second @ left, second @ right
    crossed = a[:, None, :] * b[None, :, :]
    inner = np.einsum("im,im->m", left, b)
    return np.asarray(matrices - second[:, :, None] * inner - crossed - crossed.transpose(1, 0, 2))


def axis_slices(T: Array) -> tuple[Array, Array, Array]:
    """Return the contractions of a tensor with all pairs of axes, and the pairs.

    Off-diagonal pairs are weighted by the root of two, so that the sum of squares of the matrices is that of the
    tensor.

    Parameters
    ----------
    T : ndarray of shape (k, k, k, k)

    Returns
    -------
    matrices : ndarray of shape (k, k, k (k + 1) / 2)
    left, right : ndarray of shape (k, k (k + 1) / 2)
    """
    k = len(T)
    i, j = np.triu_indices(k)
    weights = np.where(i == j, 1.0, np.sqrt(2.0))
    axes = np.eye(k)
    return np.ascontiguousarray(T[:, :, i, j] * weights), axes[:, i] * weights, axes[:, j]


def cubic_contractions(T: Array, V: Array) -> Array:
    """Return ``T(I, v, v, v)`` for every column of a matrix, (k, n)."""
    k, n = V.shape
    pairs = (V[:, None, :] * V[None, :, :]).reshape(k * k, n)
    half = (T.reshape(k * k, k * k) @ pairs).reshape(k, k, n)
    return np.asarray(np.einsum("ijn,jn->in", half, V))


def quartic_power(
    T: Array, rng: np.random.Generator, n_restarts: int | None = None, n_iter: int = 50
) -> Array:
    """Find the orthonormal components of a tensor of order four by the power method with deflation.

    Every component is the limit of ``v <- T(I, v, v, v)``, normalised, from that of some random unit vectors whose
    magnitude of ``T(v, v, v, v)`` is largest; it is subtracted before the next one is found. At the end all
    components take these steps together on the whole tensor, orthonormalised by the polar factor.

    Parameters
    ----------
    T : ndarray of shape (k, k, k, k)
        Symmetric.
    rng : numpy.random.Generator
    n_restarts : int, optional
        Number of random vectors; ``max(10, 2 k)`` by default.
    n_iter : int, default 50
        Steps per component, at most.

    Returns
    -------
    ndarray of shape (k, k)
        Orthonormal columns.
    """
    k = len(T)
    left = T.copy()
    vectors = np.zeros((k, 0))
    for _ in range(k):
        V = rng.standard_normal((k, n_restarts or max(10, 2 * k)))
        # Later components are orthogonal to those found.
        V = _unit(V - vectors @ (vectors.T @ V))
        for _ in range(n_iter):
            following = _unit(cubic_contractions(left, V))
            # Where the eigenvalue is negative the sign changes in every step.
            moved = np.minimum(np.abs(following - V).max(axis=0), np.abs(following + V).max(axis=0))
            V = following
            if moved.max() < _CONVERGED:
                break
        values = np.einsum("in,in->n", V, cubic_contractions(left, V))
        best = int(np.argmax(np.abs(values)))
        v = V[:, best]
        vectors = np.column_stack([vectors, v])
        pair = np.outer(v, v)
        left -= values[best] * np.multiply.outer(pair, pair)
    return _together(T, polar(vectors))


def _together(T: Array, V: Array) -> Array:
    """Take steps of all components on the whole tensor."""
    for _ in range(_POLAR_STEPS):
        steps = cubic_contractions(T, V)
        values = np.einsum("in,in->n", V, steps)
        # Weighted by their eigenvalues, steps ascend the sum of the squares of the eigenvalues.
        following = polar(steps * values)
        moved = float(np.abs(following - V).max())
        V = following
        if moved < _CONVERGED:
            break
    return V


def _unit(V: Array) -> Array:
    return np.asarray(V / np.maximum(np.linalg.norm(V, axis=0), np.finfo(float).tiny))
