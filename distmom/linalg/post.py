"""Mixing weights from the eigenvalues of the whitened tensor, and a check of its eigenpairs.

Source: Anandkumar et al., "Tensor decompositions for learning latent variable models" (JMLR 2014), theorem
4.3 (recovery) and section 4.2 (robustness of eigenvectors).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distmom.errors import NumericalError, UsageError
from distmom.linalg.tensor import as_symmetric, contract_one, contract_two, frobenius

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


@dataclass(frozen=True)
class EigenpairCheck:
    """Properties of a unit vector as an eigenvector of a symmetric tensor.

    Attributes
    ----------
    eigenvalue : float
        ``T(u, u, u)``.
    residual : float
        ``||T(I, u, u) - eigenvalue * u|| / ||T||_F``: 0 at an eigenvector.
    curvature : float
        Largest eigenvalue of ``2 T(I, I, u) - eigenvalue * I`` on the orthogonal complement of u, relative to
        the eigenvalue; -1 at a component of an orthogonal tensor, positive at mixtures of components.
    is_eigenvector : bool
    is_robust : bool
        Whether u is an eigenvector to which power iterations converge.
    """

    eigenvalue: float
    residual: float
    curvature: float
    is_eigenvector: bool
    is_robust: bool


def check_eigenpair(T: ArrayLike, u: ArrayLike, *, tol: float = 1e-8) -> EigenpairCheck:
    """Distinguish robust from spurious eigenvectors by the second-derivative test.

    An orthogonal tensor of k components has ``2 ** k - 1`` eigenvectors with positive eigenvalue, the
    normalised ``sum_{i in S} v_i / lambda_i`` for every nonempty set S; only single components are robust
    (theorem 4.1 and section 4.2.2).

    Parameters
    ----------
    T : array_like of shape (k, k, k)
        Symmetric.
    u : array_like of shape (k,)
        Normalised before use.
    tol : float, default=1e-8
        Maximum residual of an eigenvector.

    Returns
    -------
    EigenpairCheck

    Raises
    ------
    UsageError
        If the shapes do not match or u is zero.
    NumericalError
        If T is not finite.
    """
    cube = as_symmetric(T)
    k = cube.shape[0]
    vector = np.asarray(u, dtype=np.float64)
    if vector.shape != (k,) or not np.linalg.norm(vector) > 0.0:
        raise UsageError(f"expected a nonzero vector of shape ({k},), got shape {vector.shape}")
    vector = vector / np.linalg.norm(vector)
    image = contract_two(cube, vector)
    eigenvalue = float(vector @ image)
    norm = frobenius(cube)
    residual = float(np.linalg.norm(image - eigenvalue * vector)) / norm if norm > 0.0 else 0.0
    # Columns 1..k-1 of a full QR of u span its orthogonal complement, which is empty for k = 1.
    complement = np.linalg.qr(vector[:, None], mode="complete")[0][:, 1:]
    hessian = 2.0 * contract_one(cube, vector) - eigenvalue * np.eye(k)
    curvatures = np.linalg.eigvalsh(complement.T @ hessian @ complement)
    scale = abs(eigenvalue) if eigenvalue != 0.0 else 1.0
    curvature = float(curvatures[-1]) / scale if k > 1 else -1.0
    is_eigenvector = residual <= tol
    return EigenpairCheck(
        eigenvalue=eigenvalue,
        residual=residual,
        curvature=curvature,
        is_eigenvector=is_eigenvector,
        is_robust=is_eigenvector and eigenvalue > 0.0 and curvature < 0.0,
    )
