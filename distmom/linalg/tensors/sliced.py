"""Decompositions of a symmetric tensor that is known only through its slices or its power steps."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distmom.blas import one_blas_thread
from distmom.errors import NumericalError, UsageError
from distmom.linalg.checks import check_whole, generator
from distmom.linalg.tensors.decomposition import Decomposition, Found, described, measures, ordered
from distmom.linalg.tensors.jacobi import joint_diagonalise, orthonormal_directions
from distmom.linalg.tensors.tensor import frobenius, near_one
from distmom.linalg.tensors.weights import polar

Array = NDArray[np.float64]


def slice_directions(k: int, random_state: int = 0) -> Array:
    """Draw random directions for the tensor contractions that `decompose_slices` expects.

    Parameters
    ----------
    k : int
        Number of components.
    random_state : int, default=0

    Returns
    -------
    ndarray of shape (k, m), float64
        Orthonormal columns, ``m = min(k, ceil(4 log2 k))``. With m = k the contractions determine the tensor.

    Raises
    ------
    UsageError
        If k is not a whole number from 1, or ``random_state`` is no seed.
    """
    check_whole("k", k, 1)
    n_slices = max(1, math.ceil(4 * math.log2(k)))
    with one_blas_thread():
        return orthonormal_directions(k, min(k, n_slices), generator(random_state))


def decompose_slices(matrices: ArrayLike, directions: ArrayLike, *, max_sweeps: int = 100) -> Decomposition:
    """Decompose a symmetric tensor that is known only through its contractions with some directions.

    As ``T(I, I, h) = sum_i lambda_i (v_i' h) v_i v_i'``, the components are common eigenvectors of the
    slices, which are found by Jacobi sweeps; every ``lambda_i`` is the least-squares solution over all
    slices. Runs on one BLAS thread.

    Parameters
    ----------
    matrices : array_like of shape (k, k, m)
        ``T(I, I, h_l)`` along the last axis, symmetric up to rounding.
    directions : array_like of shape (k, m)
        The ``h_l`` as orthonormal columns.
    max_sweeps : int, default=100

    Returns
    -------
    Decomposition
        With method "joint". Residual and off-diagonal share refer to the slices. With random directions they
        estimate the values of the tensor; with m = k they are exact.

    Raises
    ------
    UsageError
        If shapes do not match, a matrix is not symmetric, or the directions are not orthonormal.
    NumericalError
        If all slices are zero, or an entry is not finite.

    References
    ----------
    Kuleshov, Chaganty, Liang, "Tensor factorization via matrix factorization" (AISTATS 2015), section 3.
    """
    with one_blas_thread():
        symmetric, H = _checked_slices(matrices, directions)
        symmetric, scale = near_one(symmetric)
        norm = frobenius(symmetric)
        if norm == 0.0:
            raise NumericalError(
                f"the slices of shape {symmetric.shape} are zero: there is nothing to decompose"
            )
        # Smaller gains are not worth the time, because the remainder of sampled slices is mostly noise.
        V, shares, converged = joint_diagonalise(symmetric / norm, stall=1e-5, max_sweeps=max_sweeps)
        diagonals, along = np.empty(H.shape), V.T @ H
        for index in range(H.shape[1]):
            diagonals[:, index] = np.einsum("ai,ai->i", V, symmetric[:, :, index] @ V)
        weight = np.einsum("il,il->i", along, along)
        values = np.einsum("il,il->i", diagonals, along) / np.where(weight > 0.0, weight, 1.0)
        values, V, n_flipped = ordered(values, V)
        along = V.T @ H
        rest = 0.0
        for index in range(H.shape[1]):
            difference = symmetric[:, :, index] - (V * (values * along[:, index])) @ V.T
            rest += float(np.vdot(difference, difference))
        found = Found(V, values, [("sweep", share) for share in shares], converged)
        residual = math.sqrt(rest) / norm
        # With orthonormal vectors and least-squares values, the residual is exactly the off-diagonal part.
        return described(found, values * scale, n_flipped, residual, residual**2, "joint")


def power_step(vectors: Array, contracted: Array) -> tuple[Array, Array, dict[str, float]]:
    """Improve the components of a symmetric tensor that is known only through its power steps.

    All vectors are replaced together, by the orthonormal basis nearest to ``T(I, v_i, v_i) lambda_i``, so that no
    deflation is needed: near the components of an exact tensor, a step squares the error. Runs on one BLAS thread.

    Parameters
    ----------
    vectors : ndarray of shape (k, k)
        Orthonormal columns v_i.
    contracted : ndarray of shape (k, k)
        ``T(I, v_i, v_i)`` as columns.

    Returns
    -------
    eigenvalues : ndarray of shape (k,), float64
        Eigenvalues of the new vectors, up to the square of the change; ascending.
    eigenvectors : ndarray of shape (k, k), float64
    diagnostics : dict of str to float
        As in `Decomposition`.

    Raises
    ------
    NumericalError
        If an entry is not finite, or all eigenvalues are zero.

    References
    ----------
    Tensor paper, section 6.1.2.
    """
    with one_blas_thread():
        before = np.einsum("ai,ai->i", vectors, contracted)
        if not np.isfinite(contracted).all() or not before.any():
            raise NumericalError("power step: expected finite contractions and an eigenvalue other than zero")
        following = polar(contracted * before)
        # T is cubic, so a small change of a vector counts three times.
        values = 3.0 * np.einsum("ai,ai->i", following, contracted) - 2.0 * before
        values, following, n_flipped = ordered(values, following)
        return values, following, measures(values, following, n_flipped)


def _checked_slices(matrices: ArrayLike, directions: ArrayLike) -> tuple[Array, Array]:
    """Check slices and directions; return them as float64 arrays, the slices symmetrised."""
    S, H = np.asarray(matrices, np.float64), np.asarray(directions, np.float64)
    if S.ndim != 3 or S.shape[0] != S.shape[1] or H.shape != S.shape[1:] or H.size == 0:
        raise UsageError(f"slices of shape {S.shape} and directions of shape {H.shape} do not match")
    if not (np.isfinite(S).all() and np.isfinite(H).all()):
        raise NumericalError(
            f"slices of shape {S.shape} or their directions have entries that are not finite"
        )
    asymmetry, scale = frobenius(S - S.transpose(1, 0, 2)), frobenius(S)
    if asymmetry > 1e-6 * scale:
        raise UsageError(f"the slices are not symmetric: relative asymmetry {asymmetry / scale:.3g}")
    if np.abs(H.T @ H - np.eye(H.shape[1])).max() > 1e-8:
        raise UsageError("the directions of slices must be orthonormal")
    return (S + S.transpose(1, 0, 2)) / 2.0, H
