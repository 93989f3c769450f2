"""Recovery of mixture parameters from eigenpairs of the whitened tensor, and a check of eigenpairs.

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


@dataclass(frozen=True)
class Mixture:
    """The parameters of a mixture of k distributions over d outcomes.

    Attributes
    ----------
    weights : ndarray of shape (k,), float64
        Mixing weights, summing to 1 over the usable components; 0 for the others.
    components : ndarray of shape (d, k), float64
        The distributions as columns, each summing to 1; zero for unusable components.
    raw_weights : ndarray of shape (k,), float64
        ``eigenvalue ** -2`` before normalisation; their sum is 1 if the model holds.
    column_sums : ndarray of shape (k,), float64
        Sums of the columns before clipping; 1 if the model holds.
    clipped : ndarray of shape (k,), float64
        Negative mass set to zero, as a share of the absolute mass of the column.
    usable : ndarray of shape (k,), bool
        False for a component without positive mass, or with an eigenvalue too small to define a weight.
    """

    weights: Array
    components: Array
    raw_weights: Array
    column_sums: Array
    clipped: Array
    usable: NDArray[np.bool_]


def mixture_parameters(
    eigenvalues: ArrayLike, eigenvectors: ArrayLike, B: ArrayLike, *, min_eigenvalue: float = 1e-8
) -> Mixture:
    """Recover mixing weights and distributions from the eigenpairs of a whitened third moment.

    ``pi_i = lambda_i ** -2`` and ``mu_i = lambda_i B v_i`` (theorem 4.3). Negative entries of ``mu_i`` are set to
    zero, and both are normalised.

    Parameters
    ----------
    eigenvalues : array_like of shape (k,)
    eigenvectors : array_like of shape (k, k)
        Eigenvectors as columns, with signs for which the eigenvalues are positive.
    B : array_like of shape (d, k)
        The un-whitening matrix.
    min_eigenvalue : float, default=1e-8
        Components with an eigenvalue up to this are marked as unusable, because their weight is meaningless.

    Returns
    -------
    Mixture

    Raises
    ------
    UsageError
        If the shapes do not match.
    NumericalError
        If no component is usable.
    """
    lam = np.asarray(eigenvalues, dtype=np.float64)
    V = np.asarray(eigenvectors, dtype=np.float64)
    unwhiten = np.asarray(B, dtype=np.float64)
    k = lam.size
    if lam.ndim != 1 or V.shape != (k, k) or unwhiten.ndim != 2 or unwhiten.shape[1] != k:
        raise UsageError(
            f"eigenvalues of shape {lam.shape}, eigenvectors of shape {V.shape} and an un-whitening matrix "
            f"of shape {unwhiten.shape} do not match"
        )
    large = lam > min_eigenvalue
    components, column_sums, clipped = clip_columns(unwhiten @ (V * lam))
    usable = large & (components.sum(axis=0) > 0.0)
    weights, _ = mixing_weights(lam, usable)
    raw_weights = mixing_weights(lam, large)[1]
    components[:, ~usable] = 0.0
    return Mixture(weights, components, raw_weights, column_sums, clipped, usable)


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


def clip_columns(M: ArrayLike) -> tuple[Array, Array, Array]:
    """Turn columns into distributions by clipping negative entries and dividing by the sum.

    Parameters
    ----------
    M : array_like of shape (d, k)

    Returns
    -------
    columns : ndarray of shape (d, k), float64
        Each column sums to 1, or is zero if it had no positive entry.
    sums : ndarray of shape (k,), float64
        Sums of the columns of M.
    clipped : ndarray of shape (k,), float64
        Negative mass of each column as a share of its absolute mass.

    Raises
    ------
    UsageError
        If M is not a matrix.
    """
    matrix = np.asarray(M, dtype=np.float64)
    if matrix.ndim != 2:
        raise UsageError(f"columns to clip must form a matrix, got shape {matrix.shape}")
    sums = matrix.sum(axis=0)
    columns = np.maximum(matrix, 0.0)
    positive = columns.sum(axis=0)
    negative = positive - sums
    # The difference of the two sums has rounding errors even in columns without negative entries.
    negative[(matrix >= 0.0).all(axis=0)] = 0.0
    total = positive + negative
    clipped = np.divide(negative, total, out=np.zeros_like(total), where=total > 0.0)
    columns /= np.where(positive > 0.0, positive, 1.0)
    return columns, sums, clipped


def project_simplex(M: ArrayLike) -> Array:
    """Project each column onto the probability simplex, in Euclidean distance.

    Parameters
    ----------
    M : array_like of shape (d, k)

    Returns
    -------
    ndarray of shape (d, k), float64
        Non-negative columns that sum to 1.

    Raises
    ------
    UsageError
        If M is not a matrix with at least one row.

    References
    ----------
    Duchi, Shalev-Shwartz, Singer, Chandra, "Efficient projections onto the l1-ball" (ICML 2008), figure 1.
    """
    matrix = np.asarray(M, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] < 1:
        raise UsageError(f"columns to project must form a matrix with rows, got shape {matrix.shape}")
    d, k = matrix.shape
    ranked = -np.sort(-matrix, axis=0)
    excess = (np.cumsum(ranked, axis=0) - 1.0) / np.arange(1, d + 1)[:, None]
    last = d - 1 - np.argmax((ranked > excess)[::-1], axis=0)
    projected: Array = np.maximum(matrix - excess[last, np.arange(k)], 0.0)
    return projected


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
