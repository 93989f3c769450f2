"""Dense reference implementations that results of the package are compared with."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distmom.errors import UsageError
from distmom.linalg import contract_two, cubic_form, multilinear, whiten
from distmom.linalg.tensor import as_symmetric, contract_one, frobenius


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


def jennrich(M2, M3, k, *, random_state=0):
    """Components that are not orthogonal, and their weights, from dense moments (the same paper, appendix D).

    The paper's pencil ``(U' M3(I, I, eta) U) (U' M2 U)^-1`` is symmetric definite when M2 is positive on its
    range: whitening turns it into a symmetric matrix, and no eigenvalue can be complex.
    """
    whitening = whiten(M2, k)
    eta = np.random.default_rng(random_state).standard_normal(len(M2))
    pencil = whitening.W.T @ (M3 @ eta) @ whitening.W
    values, vectors = np.linalg.eigh((pencil + pencil.T) / 2.0)
    directions = whitening.B @ vectors
    means = directions * (values / (directions.T @ eta))
    pseudo = np.linalg.pinv(means)
    return means, np.einsum("id,de,ie->i", pseudo, M2, pseudo)


def operator_norm_bounds(E, *, random_state=0, n_starts=20, max_iter=200):
    """Bounds from below and above of ``sup |E(u, u, u)|`` over unit vectors, E a symmetric tensor.

    They are the best value found by the shifted power method, and the spectral norm of the (k, k * k) flattening.
    """
    cube = as_symmetric(E)
    k = cube.shape[0]
    upper = float(np.linalg.norm(cube.reshape(k, k * k), 2))
    if upper == 0.0:
        return 0.0, 0.0
    U = np.random.default_rng(random_state).standard_normal((k, n_starts))
    U /= np.linalg.norm(U, axis=0)
    best = float(np.abs(cubic_form(cube, U)).max())
    for _ in range(max_iter):
        # The shift makes every step an ascent (Kolda and Mayo, SIAM J. Matrix Anal. Appl. 32, 2011), and as the
        # form is odd, its largest value is also its largest magnitude.
        U = contract_two(cube, U) + 2.0 * upper * U
        U /= np.linalg.norm(U, axis=0)
        value = float(np.abs(cubic_form(cube, U)).max())
        if value <= best * (1.0 + 1e-12):
            break
        best = value
    return min(best, upper), upper


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
