"""Whitening of a second moment: the matrix that makes the components orthonormal.

Source: Anandkumar et al., "Tensor decompositions for learning latent variable models" (JMLR 2014), section
4.3; with M2 in the basis of a range finder, this is the signed Rayleigh-Ritz form of section 6.1.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distmom.errors import NumericalError, UsageError

_ROUNDING = 16 * float(np.finfo(np.float64).eps)
#: relative difference of magnitudes that decides no sign
_EQUAL = 1e-6


@dataclass(frozen=True)
class Whitening:
    """The whitening of a second moment, and its spectrum.

    Attributes
    ----------
    W : ndarray of shape (r, k), float64
        ``W.T @ M2 @ W = I``.
    B : ndarray of shape (r, k), float64
        ``B = pinv(W.T)``, so ``B.T @ W = I`` and ``B @ B.T`` is the best rank-k part of M2.
    eigenvalues : ndarray of shape (r,), float64
        All eigenvalues of M2, in decreasing order.
    noise : float
        The level above which an eigenvalue counts as signal.
    n_usable : int
        Number of eigenvalues above ``noise``.
    gap : float
        ``1 - eigenvalues[k] / eigenvalues[k - 1]``, or 1 if r = k.
    """

    W: NDArray[np.float64]
    B: NDArray[np.float64]
    eigenvalues: NDArray[np.float64]
    noise: float
    n_usable: int
    gap: float


def whiten(M2: ArrayLike, k: int, *, noise: float | None = None) -> Whitening:
    """Whiten a symmetric matrix by its k algebraically largest eigenpairs.

    A sampled second moment need not be positive semidefinite. Its most negative eigenvalue indicates the size
    of the sampling error of eigenvalues, and is the default noise level. The sign of each eigenvector is
    chosen so that its entry of largest magnitude is positive.

    Parameters
    ----------
    M2 : array_like of shape (r, r)
        Symmetric up to rounding.
    k : int
        Number of components, 1 <= k <= r.
    noise : float, optional
        Eigenvalues up to this level are not usable. By default, the magnitude of the most negative eigenvalue; in
        any case, at least the rounding error of the largest.

    Returns
    -------
    Whitening

    Raises
    ------
    UsageError
        If M2 is not a symmetric matrix, k is not between 1 and r, or ``noise`` is negative.
    NumericalError
        If an entry is not finite, or fewer than k eigenvalues are above the noise level.
    """
    matrix = np.asarray(M2, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] < 1:
        raise UsageError(f"a second moment must be a square matrix, got shape {matrix.shape}")
    r = matrix.shape[0]
    if not 1 <= k <= r:
        raise UsageError(f"n_components={k} is out of range for a second moment of shape {matrix.shape}")
    if noise is not None and not noise >= 0:
        raise UsageError(f"the noise level must not be negative, got {noise}")
    if not np.isfinite(matrix).all():
        raise NumericalError(f"the second moment of shape {matrix.shape} has entries that are not finite")
    scale = float(np.abs(matrix).max())
    asymmetry = float(np.abs(matrix - matrix.T).max())
    if asymmetry > 1e-6 * scale:
        raise UsageError(
            f"the second moment is not symmetric: entries differ by {asymmetry:.3g} at scale {scale:.3g}"
        )
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    values, vectors = values[::-1].copy(), vectors[:, ::-1]
    rounding = r * _ROUNDING * float(np.abs(values).max())
    level = max(rounding, -float(values[-1]) if noise is None else float(noise))
    n_usable = int(np.count_nonzero(values > level))
    if n_usable < k:
        raise NumericalError(_rank_message(values, k, level, n_usable))
    U = fix_signs(vectors[:, :k])
    root = np.sqrt(values[:k])
    gap = 1.0 - float(values[k] / values[k - 1]) if k < r else 1.0
    return Whitening(
        W=np.ascontiguousarray(U / root),
        B=np.ascontiguousarray(U * root),
        eigenvalues=values,
        noise=level,
        n_usable=n_usable,
        gap=gap,
    )


def fix_signs(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Choose the signs of columns so that the first entry of largest magnitude in each is positive.

    Magnitudes that differ by a millionth or less count as equal, so that rounding does not decide which is first.

    Parameters
    ----------
    vectors : ndarray of shape (r, k)

    Returns
    -------
    ndarray of shape (r, k), float64
    """
    magnitudes = np.abs(vectors)
    rows = (magnitudes >= (1.0 - _EQUAL) * magnitudes.max(axis=0)).argmax(axis=0)
    signs = np.where(vectors[rows, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
    flipped: NDArray[np.float64] = vectors * signs
    return flipped


def _rank_message(values: NDArray[np.float64], k: int, level: float, n_usable: int) -> str:
    """Describe the rank deficiency, with the eigenvalues around the k-th and the largest possible k."""
    first, last = max(0, k - 3), min(values.size, k + 2)
    largest = f"the largest is {values[0]:.3g}; " if first else ""
    around = ", ".join(f"{value:.3g}" for value in values[first:last])
    advice = (
        f"use n_components={n_usable} or fewer, or more data"
        if n_usable
        else "no number of components can be learned from it"
    )
    return (
        f"the second moment has {n_usable} of n_components={k} eigenvalues above the noise level {level:.3g} "
        f"({largest}from number {first + 1} on they are {around}); {advice}"
    )
