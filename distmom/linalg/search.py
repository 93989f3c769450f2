"""One component of a mixture from side information, without the others.

Source: Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18, 2018): with the
moments ``m = sum p_i mu_i``, ``A = sum p_i mu_i mu_i'`` and ``B = sum p_i <mu_i, v> mu_i mu_i'`` the component
that a vector v points at most is an eigenvector of M, the whitened B. All matrices here are small: moments in a
basis. W whitens A; the ``theta_i = sqrt(p_i) W'mu_i`` are orthonormal, M is ``sum <mu_i, v> theta_i theta_i'``
and the whitened third moment T is ``sum p_i^(-1/2) theta_i^(x)3``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from distmom.errors import NumericalError, UsageError
from distmom.linalg.decompose import Decomposition, decompose
from distmom.linalg.power import PackedCube, climb
from distmom.linalg.tensor import symmetrise
from distmom.linalg.whiten import Whitening

_BISECTIONS = 200
#: updates of a power run, which ends sooner where it has settled
_POWER_STEPS = 200
STARTS = ("preference", "projection")


@dataclass(frozen=True)
class Found:
    """A component that was searched for.

    Attributes
    ----------
    component : ndarray of shape (r,)
        mu.
    weight : float
        p.
    values : ndarray of shape (k,)
        Estimates of ``<mu_i, v>``: that of the component found, then those of the others, falling.
    """

    component: np.ndarray
    weight: float
    values: np.ndarray

    @property
    def gap(self) -> float:
        """How far v prefers this component to the next one; negative where it prefers another."""
        return float(self.values[0] - self.values[1]) if len(self.values) > 1 else float(abs(self.values[0]))


@dataclass(frozen=True, eq=False)
class WhitenedMoments:
    """What searches have in common: moments of a mixture in the coordinates that whiten the second.

    Attributes
    ----------
    white : Whitening
        Of A.
    m : ndarray of shape (r,)
    slices : ndarray of shape (k, k, r)
        The third moment ``sum p_i mu_i^(x)3`` with two modes whitened.
    seed : int
        Of decompositions.
    """

    white: Whitening
    m: np.ndarray
    slices: np.ndarray
    seed: int = 0

    def along(self, v: np.ndarray) -> np.ndarray:
        """Return M of a vector in the basis, (r,), as a symmetric matrix of shape (k, k)."""
        k, _, r = self.slices.shape
        M = (self.slices.reshape(k * k, r) @ v).reshape(k, k)
        return np.asarray((M + M.T) / 2.0)

    @cached_property
    def tensor(self) -> np.ndarray:
        """T, of shape (k, k, k)."""
        return symmetrise(self.slices @ self.white.W)

    @cached_property
    def cube(self) -> PackedCube:
        """T for power runs."""
        return PackedCube(self.tensor)

    @cached_property
    def _decompositions(self) -> dict[str, Decomposition]:
        return {}

    def decomposed(self, method: str) -> Decomposition:
        """Return all components, once for each method of `distmom.linalg.decompose`."""
        if method not in self._decompositions:
            self._decompositions[method] = decompose(self.tensor, method, random_state=self.seed)
        return self._decompositions[method]


def whitening_search(white: Whitening, M: np.ndarray, m: np.ndarray) -> Found:
    """Find the component that v points at most (algorithm 1).

    Parameters
    ----------
    white : Whitening
        Of A; the same for all v.
    M : ndarray of shape (k, k)
        Symmetric.
    m : ndarray of shape (r,)

    Raises
    ------
    NumericalError
        If the component found has no weight.
    """
    values, vectors = np.linalg.eigh(M)
    u = vectors[:, -1]
    # a = sqrt(p), and B' u = sqrt(p) mu
    a = float(u @ (white.W.T @ m))
    if not abs(a) > 1e-12:
        raise _weightless()
    return Found(white.B @ u / a, a * a, values[::-1])


def cancellation_search(white: Whitening, M: np.ndarray, m: np.ndarray) -> Found:
    """Find the same by the multiple of B that takes the component out of A (algorithm 2).

    The largest lambda such that ``A - lambda B`` is positive semidefinite on the range of A is searched by
    bisection; what is orthogonal to the range of the rest is the component's alone. Equal to
    `whitening_search` up to rounding, by another way.

    Parameters
    ----------
    white, M, m
        As in `whitening_search`.
    """
    values = np.linalg.eigvalsh(M)[::-1]
    # A multiple of A added to B adds it to every value, and leaves the order.
    shift = 0.0 if values[0] > 0.0 else 1.0 - float(values[-1])
    M = M + shift * np.eye(len(M))

    def rest(factor: float) -> np.ndarray:
        return np.asarray(np.eye(len(M)) - factor * M)

    low, high = 0.0, 1.0
    while np.linalg.eigvalsh(rest(high))[0] >= 0.0:
        low, high = high, 2.0 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if np.linalg.eigvalsh(rest(middle))[0] >= 0.0:
            low = middle
        else:
            high = middle
        if high - low <= 1e-15 * high:
            break
    # In coordinates of the range of A, white.B maps back and A is the identity.
    _, vectors = np.linalg.eigh(rest(low))
    others = vectors[:, 1:]
    whole = white.W.T @ m
    left = whole - others @ (others.T @ whole)
    size = float(left @ left)
    if not size > 1e-24:
        raise _weightless()
    # sqrt(p) mu is left / |left| in these coordinates, and sqrt(p) its length.
    return Found(white.B @ left / size, size, values)


def decomposition_search(moments: WhitenedMoments, v: np.ndarray, method: str) -> Found:
    """Find all components, once for all v, and take the one that v points at most.

    Parameters
    ----------
    moments : WhitenedMoments
    v : ndarray of shape (r,)
    method : str
        Of `distmom.linalg.decompose`; ``"power"`` is the tensor power method that the paper compares with.

    Raises
    ------
    NumericalError
        If the component found has no weight.
    """
    found = moments.decomposed(method)
    V = found.eigenvectors
    values = np.einsum("ij,ij->j", V, moments.along(v) @ V)
    order = np.argsort(-values, kind="stable")
    return _of_eigenpair(moments.white, float(found.eigenvalues[order[0]]), V[:, order[0]], values[order])


def power_search(moments: WhitenedMoments, v: np.ndarray, *, start: str = "preference") -> Found:
    """Follow one run of the tensor power method that starts from v (Fast-TPM of section 4).

    A run ends at the component with the largest ``|<theta_i, start>| / sqrt(p_i)``. That is the one with the
    largest ``|<mu_i, v>|`` for ``W'A v``; the paper's ``W'v`` ends at the one with the largest
    ``|<mu_i, A^+ v>|``, which v need not point at.

    Parameters
    ----------
    moments : WhitenedMoments
    v : ndarray of shape (r,)
    start : {"preference", "projection"}
        ``W'A v``, or the paper's ``W'v``.

    Raises
    ------
    UsageError
        If the start is unknown.
    NumericalError
        If v has no part in the range of A, or the component found has no weight.
    """
    if start not in STARTS:
        raise UsageError(f"start: expected one of {', '.join(STARTS)}, got {start!r}")
    white = moments.white
    # W'A is B' of the whitening, as W holds scaled eigenvectors of A.
    first = (white.B if start == "preference" else white.W).T @ v
    size = float(np.linalg.norm(first))
    if not size > 0.0:
        raise NumericalError("the side information says nothing of any component")
    eigenvalue, theta, _ = climb(moments.cube, first / size, _POWER_STEPS)
    M = moments.along(v)
    image = M @ theta
    value = float(theta @ image)
    # M on the complement of theta; theta itself is lifted above all other values, and left out.
    lift = 2.0 * float(np.linalg.norm(M))
    across = np.outer(theta, image)
    rest = M - across - across.T + (value + lift) * np.outer(theta, theta)
    others = np.linalg.eigvalsh(rest)[-2::-1]
    return _of_eigenpair(white, eigenvalue, theta, np.append(value, others))


def _of_eigenpair(white: Whitening, eigenvalue: float, theta: np.ndarray, values: np.ndarray) -> Found:
    """Return the component of an eigenpair ``(p^(-1/2), theta)`` of T."""
    if not eigenvalue > 0.0:
        raise _weightless()
    return Found(eigenvalue * (white.B @ theta), eigenvalue**-2.0, values)


def _weightless() -> NumericalError:
    return NumericalError("the component that the side information points at has no weight")


_METHODS: dict[str, Callable[[WhitenedMoments, np.ndarray], Found]] = {
    "whitening": lambda moments, v: whitening_search(moments.white, moments.along(v), moments.m),
    "cancellation": lambda moments, v: cancellation_search(moments.white, moments.along(v), moments.m),
    "fast-tpm": power_search,
    "tpm": lambda moments, v: decomposition_search(moments, v, "power"),
    "joint": lambda moments, v: decomposition_search(moments, v, "joint"),
}

SEARCHES = tuple(_METHODS)


def search(method: str, moments: WhitenedMoments, v: np.ndarray) -> Found:
    """Search by one of `SEARCHES` for the component that v, a vector in the basis, points at most."""
    if method not in _METHODS:
        raise UsageError(f"method: expected one of {', '.join(SEARCHES)}, got {method!r}")
    return _METHODS[method](moments, v)
