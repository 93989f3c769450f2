"""Orthogonal joint diagonalisation of symmetric matrices by Jacobi rotations.

Sources: Cardoso and Souloumiac, "Jacobi angles for simultaneous diagonalization" (SIAM J. Matrix Anal. Appl.
17, 1996) for the angle; Kuleshov, Chaganty, Liang, "Tensor factorization via matrix factorization" (AISTATS
2015) for slices of a tensor along random directions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmom.compiled import compiled

Array = NDArray[np.float64]


@compiled
def _rotate(x: Any, y: Any, cosine: float, sine: float) -> None:
    """Apply a plane rotation to two vectors, in place."""
    for s in range(x.shape[0]):
        a = x[s]
        b = y[s]
        x[s] = cosine * a + sine * b
        y[s] = cosine * b - sine * a


@compiled
def _sweep(M: Any, V: Any) -> float:
    """Rotate every pair of axes once, in place, and return the largest angle.

    ``M`` is (k, k, m) with the m matrices along the last, contiguous axis; only entries with first index <= second
    are read or written. ``V`` is (k, k) with the basis vectors as rows.
    """
    k = M.shape[0]
    m = M.shape[2]
    largest = 0.0
    for p in range(k - 1):
        for q in range(p + 1, k):
            dd = 0.0
            oo = 0.0
            do = 0.0
            for s in range(m):
                d = M[p, p, s] - M[q, q, s]
                o = 2.0 * M[p, q, s]
                dd += d * d
                oo += o * o
                do += d * o
            # Twice theta is the angle of the leading eigenvector of [[dd, do], [do, oo]]. This formula also
            # escapes the saddle point do = 0, dd < oo.
            theta = 0.25 * math.atan2(2.0 * do, dd - oo)
            largest = max(largest, abs(theta))
            if abs(theta) <= 1e-15:
                continue
            cosine = math.cos(theta)
            sine = math.sin(theta)
            for r in range(p):
                _rotate(M[r, p], M[r, q], cosine, sine)
            for r in range(p + 1, q):
                _rotate(M[p, r], M[r, q], cosine, sine)
            for r in range(q + 1, k):
                _rotate(M[p, r], M[q, r], cosine, sine)
            cc = cosine * cosine
            ss = sine * sine
            cs = cosine * sine
            for s in range(m):
                a = M[p, p, s]
                b = M[q, q, s]
                o = M[p, q, s]
                M[p, p, s] = cc * a + ss * b + 2.0 * cs * o
                M[q, q, s] = ss * a + cc * b - 2.0 * cs * o
                M[p, q, s] = (cc - ss) * o - cs * (a - b)
            _rotate(V[p], V[q], cosine, sine)
    return largest


@compiled
def _diagonal_energy(M: Any) -> float:
    """Return the sum of squares of the diagonals of the m matrices."""
    total = 0.0
    for p in range(M.shape[0]):
        for s in range(M.shape[2]):
            total += M[p, p, s] * M[p, p, s]
    return total


def joint_diagonalise(
    M: Array, *, tol: float = 1e-8, stall: float = 1e-6, max_sweeps: int = 100
) -> tuple[Array, list[float], bool]:
    """Find the orthogonal basis in which several symmetric matrices are as diagonal as possible.

    Parameters
    ----------
    M : ndarray of shape (k, k, m), float64
        Symmetric matrices along the last axis. Overwritten.
    tol : float, default=1e-8
        The search ends after a sweep in which no angle exceeds ``tol``. As convergence is quadratic, matrices
        with a common eigenbasis are then diagonal up to about ``tol ** 2``.
    stall : float, default=1e-6
        The search also ends after a sweep that moves less energy to the diagonal than this fraction of the
        energy on the diagonal or off it, whichever is smaller.
    max_sweeps : int, default=100
        Maximum number of sweeps over all pairs.

    Returns
    -------
    V : ndarray of shape (k, k), float64
        The basis as columns, orthonormal up to rounding.
    shares : list of float
        Share of the matrices' energy that is off the diagonal, after each sweep.
    converged : bool
        Whether the search ended before ``max_sweeps``.
    """
    k = M.shape[0]
    rows = np.eye(k)
    energy = float(np.vdot(M, M))
    shares: list[float] = []
    if energy == 0.0:
        return rows, shares, True
    previous = 1.0 - _diagonal_energy(M) / energy
    for _ in range(max_sweeps):
        largest = _sweep(M, rows)
        share = max(0.0, 1.0 - _diagonal_energy(M) / energy)
        shares.append(share)
        if largest <= tol or previous - share < stall * min(share, 1.0 - share):
            return np.ascontiguousarray(rows.T), shares, True
        previous = share
    return np.ascontiguousarray(rows.T), shares, False


def slices(T: Array, n_slices: int | None, rng: np.random.Generator) -> Array:
    """Contract the last mode of a cube with random orthonormal directions, or return all slices.

    Parameters
    ----------
    T : ndarray of shape (k, k, k), float64
    n_slices : int or None
        Number of directions; None or a number >= k returns the k slices of the tensor.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray of shape (k, k, m), float64
        A new array.
    """
    k = T.shape[0]
    if n_slices is None or n_slices >= k:
        return T.copy()
    directions = orthonormal_directions(k, n_slices, rng)
    return np.ascontiguousarray((T.reshape(k * k, k) @ directions).reshape(k, k, n_slices))


def orthonormal_directions(k: int, n: int, rng: np.random.Generator) -> Array:
    """Draw n random orthonormal vectors as the columns of a (k, n) matrix."""
    directions, _ = np.linalg.qr(rng.standard_normal((k, n)))
    return np.asarray(directions)
