"""Dense reference implementations that results of the package are compared with."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distmom.errors import UsageError
from distmom.linalg import contract_two, multilinear
from distmom.linalg.tensors.tensor import as_symmetric, contract_one, frobenius


def project(M3, W):
    """``M3(W, W, W)``, symmetric to the last bit."""
    return as_symmetric(multilinear(M3, W, W, W))


class Mixture(NamedTuple):
    """The parameters of a mixture of k distributions over d outcomes; components are columns.

    ``raw_weights`` and ``column_sums`` are sums that are 1 where the model holds, ``clipped`` is the negative mass
    of every column as a share of its absolute mass.
    """

    weights: np.ndarray
    components: np.ndarray
    raw_weights: np.ndarray
    column_sums: np.ndarray
    clipped: np.ndarray


def mixture_parameters(eigenvalues, eigenvectors, B):
    """Weights ``lambda_i ** -2`` and distributions ``lambda_i B v_i``.

    Anandkumar et al., "Tensor decompositions for learning latent variable models" (JMLR 2014), theorem 4.3.
    """
    raw = eigenvalues**-2.0
    columns = B @ (eigenvectors * eigenvalues)
    positive = np.maximum(columns, 0.0)
    clipped = (positive - columns).sum(axis=0) / np.abs(columns).sum(axis=0)
    return Mixture(raw / raw.sum(), positive / positive.sum(axis=0), raw, columns.sum(axis=0), clipped)


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


def check_eigenpair(T, u, *, tol=1e-8):
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
