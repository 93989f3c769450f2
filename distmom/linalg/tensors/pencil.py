"""Simultaneous diagonalisation of symmetric matrices by a basis that need not be orthogonal.

Sources: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models" (JMLR
2014), appendix D, for the pencil of two matrices; Ziehe, Laskov, Nolte, Müller, "A fast algorithm for joint
diagonalization with non-orthogonal transformations" (JMLR 5, 2004) for the iteration on all matrices.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: random pencils, the best of which is used
N_PENCILS = 16
#: norm of a step at which the iteration ends
_CONVERGED = 1e-13
#: largest Frobenius norm of a step, which keeps the transformation invertible
_LARGEST_STEP = 0.9


def off_diagonal_share(matrices: Array, B: Array) -> float:
    """Return the share of the energy of transformed matrices that is off the diagonal.

    Rows of the transformation are scaled so that the diagonal entries of every row have the sum of squares one.

    Parameters
    ----------
    matrices : ndarray of shape (k, k, m)
    B : ndarray of shape (k, k)
        ``B M B'`` is to be diagonal for every M.
    """
    found = transformed(matrices, _scaled(matrices, B))
    diagonal = float(np.einsum("iim,iim->", found, found))
    return max(0.0, 1.0 - diagonal / max(float(np.vdot(found, found)), np.finfo(float).tiny))


def transformed(matrices: Array, B: Array) -> Array:
    """Return ``B M B'`` for matrices along the last axis."""
    half = np.tensordot(B, matrices, axes=(1, 0))
    return np.ascontiguousarray(np.tensordot(half, B, axes=(1, 1)).transpose(0, 2, 1))


def pencil_basis(matrices: Array, rng: np.random.Generator, n_pencils: int = N_PENCILS) -> Array:
    """Find a basis in which matrices are diagonal from the eigenvectors of pencils of two of their combinations.

    With ``M_j = A D_j A'`` the columns of A are the eigenvectors of ``X Y^-1`` for any two combinations X, Y
    of the M_j. Of several random pairs, the one that leaves the least share off the diagonals is used.

    Parameters
    ----------
    matrices : ndarray of shape (k, k, m)
        Symmetric matrices along the last axis.
    rng : numpy.random.Generator
    n_pencils : int, default 16

    Returns
    -------
    ndarray of shape (k, k)
        B, the inverse of A, up to the scale of its rows.
    """
    best: Array = np.eye(len(matrices))
    least = np.inf
    for _ in range(n_pencils):
        X, Y = (matrices @ rng.standard_normal(matrices.shape[2]) for _ in range(2))
        try:
            # Noise may make eigenvalues complex; pairs of them keep their common plane.
            A = _real(np.linalg.eig(np.linalg.solve(Y, X).T)[1])
            B = np.asarray(np.linalg.inv(A), np.float64)
        except np.linalg.LinAlgError:
            continue
        share = off_diagonal_share(matrices, B)
        if share < least:
            best, least = B, share
    return best


def joint_basis(matrices: Array, B: Array, max_iter: int = 200) -> tuple[Array, bool]:
    """Improve a basis in which matrices are nearly diagonal, all matrices together.

    Parameters
    ----------
    matrices : ndarray of shape (k, k, m)
    B : ndarray of shape (k, k)
        First estimate, such as from `pencil_basis`.
    max_iter : int, default 200

    Returns
    -------
    B : ndarray of shape (k, k)
        The last iterate, or the best one where the iteration does not converge.
    converged : bool
    """
    best, least = B, off_diagonal_share(matrices, B)
    for _ in range(max_iter):
        B = _scaled(matrices, B)
        step = _step(transformed(matrices, B))
        norm = float(np.linalg.norm(step))
        B = B + (step if norm <= _LARGEST_STEP else step * (_LARGEST_STEP / norm)) @ B
        share = off_diagonal_share(matrices, B)
        if share < least:
            best, least = B, share
        if norm < _CONVERGED * len(B):
            return B, True
    return best, False


def _step(found: Array) -> Array:
    """Return the matrix V for which ``(I + V) M (I + V)'`` has the least first-order off-diagonal part."""
    diagonals = np.einsum("iim->im", found)
    z = diagonals @ diagonals.T
    y = np.einsum("jm,ijm->ij", diagonals, found)
    own = np.diag(z)
    determinant = np.outer(own, own) - z**2
    # Where two rows of diagonals are proportional, the pair cannot be separated and is left as it is.
    separable = determinant > 1e-12 * np.outer(own, own)
    step = np.where(separable, z * y.T - own[:, None] * y, 0.0) / np.where(separable, determinant, 1.0)
    np.fill_diagonal(step, 0.0)
    return np.asarray(step)


def _scaled(matrices: Array, B: Array) -> Array:
    half = np.einsum("ia,abm->ibm", B, matrices, optimize=True)
    diagonals = np.einsum("ibm,ib->im", half, B)
    return np.asarray(B / np.maximum(np.sqrt(np.linalg.norm(diagonals, axis=1)), 1e-150)[:, None])


def _real(vectors: Array) -> Array:
    """Replace pairs of complex conjugate columns by their real and imaginary parts."""
    if not np.iscomplexobj(vectors):
        return vectors
    found = vectors.real.copy()
    twin = np.flatnonzero(np.abs(vectors.imag).max(axis=0) > 0.0)
    found[:, twin[1::2]] = vectors[:, twin[1::2]].imag
    return found
