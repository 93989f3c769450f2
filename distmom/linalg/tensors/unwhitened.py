"""Components of a second and a third moment without whitening: by a pencil, a Schur form, and maximal skewness.

The moments are ``M2 = sum w_i mu_i mu_i'`` and ``M3 = sum w_i mu_i (x) mu_i (x) mu_i``, with linearly independent
mu_i, which need not be orthogonal. Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for
Learning Latent Variable Models" (JMLR 2014), appendix D (after Chang, 1996) and section 4.3.2. Whitened components
(`distmom.linalg.decompose`) are more stable under noise; these are for comparison, and for small moments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, schur

from distmom.errors import NumericalError, UsageError
from distmom.linalg.checks import generator
from distmom.linalg.tensors.tensor import as_symmetric, compose, contract_one, contract_two, multilinear

Array = NDArray[np.float64]

#: share of the largest skewness up to which others are rounding errors
_ROUNDING = 1e-10


def pencil_components(
    M2: Array, M3: Array, k: int, *, n_draws: int = 8, random_state: int = 0
) -> tuple[Array, Array]:
    """Return components and weights by the eigenvectors of ``(U'M3(I, I, eta) U) (U'M2 U)^-1`` (appendix D).

    Parameters
    ----------
    M2 : ndarray of shape (d, d)
    M3 : ndarray of shape (d, d, d)
        Symmetric.
    k : int
        Number of components, at most d.
    n_draws : int, default=8
        Number of random vectors eta; the one with the largest relative gap between eigenvalues is used.
    random_state : int, default=0

    Returns
    -------
    components : ndarray of shape (d, k)
        The mu_i, with their scale.
    weights : ndarray of shape (k,)
        The w_i.

    Raises
    ------
    UsageError
        If shapes do not match.
    NumericalError
        If a moment has entries that are not finite, the second one has a rank below k, or the third one is zero.
    """
    M2, M3 = _checked(M2, M3, k)
    rng = generator(random_state)
    U = _range(M2, k)[0]
    below = U.T @ M2 @ U

    def drawn() -> tuple[Array, Array, Array]:
        eta = rng.standard_normal(len(M2))
        # Symmetric and definite: no eigenvalue is complex. The product has the eigenvectors below @ vectors.
        values, vectors = eigh(U.T @ contract_one(M3, eta) @ U, below)
        return values, vectors, eta

    values, vectors, eta = max((drawn() for _ in range(n_draws)), key=_relative_gap)
    directions = U @ below @ vectors
    components = directions * (values / (eta @ directions))
    return components, _weights(components, M2)


def schur_components(
    M2: Array, M3: Array, k: int, *, n_draws: int = 8, random_state: int = 0
) -> tuple[Array, Array]:
    """Return components and weights by the Schur form of a random contraction, which makes all others triangular.

    The matrices ``(U'M3(I, I, u_j) U) (U'M2 U)^-1``, with u_j the columns of U, commute and have the eigenvalues
    ``u_j'mu_i``. In the Schur basis of a random combination of them these are on the diagonals, in one order.

    Parameters
    ----------
    M2 : ndarray of shape (d, d)
    M3 : ndarray of shape (d, d, d)
        Symmetric.
    k : int
        Number of components, at most d.
    n_draws : int, default=8
        Number of random combinations; the one with the largest relative gap between eigenvalues is used.
    random_state : int, default=0

    Returns
    -------
    components : ndarray of shape (d, k)
        The mu_i, with their scale.
    weights : ndarray of shape (k,)
        The w_i.

    Raises
    ------
    UsageError
        If shapes do not match.
    NumericalError
        If a moment has entries that are not finite, the second one has a rank below k, or the third one is zero.
    """
    M2, M3 = _checked(M2, M3, k)
    rng = generator(random_state)
    U = _range(M2, k)[0]
    commuting = np.linalg.solve(U.T @ M2 @ U, multilinear(M3, U, U, U)).transpose(0, 2, 1)

    def drawn() -> tuple[Array, Array]:
        triangular, basis = schur(np.einsum("j,jab->ab", rng.standard_normal(k), commuting))
        return np.sort(np.diag(triangular)), basis

    _, Q = max((drawn() for _ in range(n_draws)), key=_relative_gap)
    components = U @ np.einsum("ai,jab,bi->ji", Q, commuting, Q)
    return components, _weights(components, M2)


def _relative_gap(drawn: tuple[Array, ...]) -> float:
    """Return the smallest gap between the numbers of the first array, ascending, as a share of the largest."""
    values = drawn[0]
    return float(np.diff(values).min() / np.abs(values).max()) if len(values) > 1 else 0.0


def skewness_components(
    M2: Array,
    M3: Array,
    k: int,
    *,
    n_starts: int = 10,
    n_iter: int = 200,
    random_state: int = 0,
) -> tuple[Array, Array]:
    """Return components and weights by maximising ``M3(u, u, u) / M2(u, u)^(3/2)`` (section 4.3.2).

    The local maximisers u of positive skewness in the range of M2, scaled to ``M2(u, u) = 1``, satisfy
    ``M2 u = sqrt(w_i) mu_i``, and their skewness is ``1 / sqrt(w_i)``. The steps are ``u <- M2^+ M3(I, u, u)``.
    Components that were found are subtracted from the third moment, and each is improved by steps with the whole
    of it.

    Parameters
    ----------
    M2 : ndarray of shape (d, d)
    M3 : ndarray of shape (d, d, d)
        Symmetric.
    k : int
        Number of components, at most d.
    n_starts : int, default=10
        Number of random initial vectors for every component.
    n_iter : int, default=200
        Largest number of steps for every component.
    random_state : int, default=0

    Returns
    -------
    components : ndarray of shape (d, k)
        The mu_i, with their scale, in the order in which they were found.
    weights : ndarray of shape (k,)
        The w_i.

    Raises
    ------
    UsageError
        If shapes do not match.
    NumericalError
        If a moment has entries that are not finite, the second one has a rank below k, or the third one has fewer
        than k components.
    """
    M2, M3 = _checked(M2, M3, k)
    rng = generator(random_state)
    U, values = _range(M2, k)
    inverse = (U / values) @ U.T
    rest, components, weights = M3, np.zeros((len(M2), k)), np.zeros(k)
    for i in range(k):
        starts = _scaled(M2, U @ rng.standard_normal((k, n_starts)))
        climbed = _climb(M2, inverse, rest, starts, n_iter)
        skewness = np.einsum("in,in->n", climbed, contract_two(rest, climbed))
        u = climbed[:, [int(skewness.argmax())]]
        u = _climb(M2, inverse, M3, u, n_iter)
        largest = float(u[:, 0] @ contract_two(M3, u[:, 0]))
        # What rounding leaves of subtracted components would lead to one of them again.
        if not largest > 0.0 or skewness.max() <= _ROUNDING * np.max(weights[:i] ** -0.5, initial=0.0):
            raise NumericalError(f"the third moment has {i} of {k} components with positive skewness")
        weights[i] = largest**-2.0
        components[:, i] = M2 @ u[:, 0] * largest
        rest = rest - compose(weights[i : i + 1], components[:, i : i + 1])
    return components, weights


def _climb(M2: Array, inverse: Array, M3: Array, U: Array, n_iter: int) -> Array:
    """Return vectors after the steps, until none of them moves."""
    for _ in range(n_iter):
        moved = inverse @ contract_two(M3, U)
        if not np.einsum("in,ij,jn->n", moved, M2, moved).min() > 0.0:
            return U
        before, U = U, _scaled(M2, moved)
        if np.abs(U - before).max() < 1e-14 * np.abs(U).max():
            break
    return U


def _scaled(M2: Array, U: Array) -> Array:
    """Return vectors with ``M2(u, u) = 1``."""
    return np.asarray(U / np.sqrt(np.einsum("in,ij,jn->n", U, M2, U)))


def _weights(components: Array, M2: Array) -> Array:
    inverse = np.linalg.pinv(components)
    return np.asarray(np.einsum("id,de,ie->i", inverse, M2, inverse))


def _range(M2: Array, k: int) -> tuple[Array, Array]:
    """Return the leading eigenvectors, (d, k), and their eigenvalues."""
    values, vectors = np.linalg.eigh(M2)
    values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
    if not values[-1] > 1e-12 * values[0]:
        raise NumericalError(f"the second moment has a rank below {k}")
    return vectors, values


def _checked(M2: Array, M3: Array, k: int) -> tuple[Array, Array]:
    M2, M3 = np.asarray(M2, np.float64), as_symmetric(M3)
    if not np.isfinite(M2).all():
        raise NumericalError(f"the second moment of shape {M2.shape} has entries that are not finite")
    if M2.shape != M3.shape[:2] or not 1 <= k <= len(M2):
        raise UsageError(
            f"expected moments of shapes (d, d) and (d, d, d), and k of at most d, got {M2.shape}, {M3.shape} and "
            f"{k}"
        )
    if not M3.any():
        raise NumericalError(f"the third moment of shape {M3.shape} is zero")
    return (M2 + M2.T) / 2.0, M3
