"""Estimation of a single component of a mixture from side information, without the others.

Source: Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18, 2018): with the
moments ``m = sum p_i mu_i``, ``A = sum p_i mu_i mu_i'`` and ``B = sum p_i <mu_i, v> mu_i mu_i'``, the target of a
vector v, which is the component with the largest ``<mu_i, v>``, is an eigenvector of M, the whitened B. All
matrices here are small, as moments are expressed in a basis. W whitens A; the ``theta_i = sqrt(p_i) W'mu_i``
are orthonormal, M is ``sum <mu_i, v> theta_i theta_i'``, and the whitened third moment T is
``sum p_i^(-1/2) theta_i^(x)3``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from distmom.errors import NumericalError, UsageError
from distmom.linalg.search.cancellation import FACTORS, cancel, weightless
from distmom.linalg.tensors.decompose import decompose
from distmom.linalg.tensors.decomposition import Decomposition
from distmom.linalg.tensors.power import PackedCube, climb
from distmom.linalg.tensors.tensor import symmetrise
from distmom.linalg.whiten import Whitening

#: maximum number of updates in a run of the power method
_POWER_STEPS = 200
STARTS = ("preference", "projection")
#: transformations of side information before a search; "auto" whitens labelled data and leaves vectors unchanged
SIDES = ("auto", "project", "whiten")


@dataclass(frozen=True)
class Found:
    """Result of a search for one component.

    Attributes
    ----------
    component : ndarray of shape (r,)
        The component mu.
    weight : float
        Its mixing weight p.
    values : ndarray of shape (k,)
        Estimates of ``<mu_i, v>``: first for the component found, then for the others in decreasing order.
    """

    component: np.ndarray
    weight: float
    values: np.ndarray

    @property
    def gap(self) -> float:
        """Preference of v for this component over the next one; negative if v prefers another component."""
        return float(self.values[0] - self.values[1]) if len(self.values) > 1 else float(abs(self.values[0]))


@dataclass(frozen=True, eq=False)
class WhitenedMoments:
    """Data shared by all searches: moments of a mixture in coordinates that whiten the second moment.

    Attributes
    ----------
    white : Whitening
        Whitening of A.
    m : ndarray of shape (r,)
        The first moment.
    slices : ndarray of shape (k, k, r)
        The third moment ``sum p_i mu_i^(x)3`` with two modes whitened.
    seed : int, default=0
        Seed for decompositions.
    """

    white: Whitening
    m: np.ndarray
    slices: np.ndarray
    seed: int = 0

    def along(self, v: np.ndarray) -> np.ndarray:
        """Return the symmetric matrix M, of shape (k, k), of a vector of shape (r,) in the basis."""
        k, _, r = self.slices.shape
        M = (self.slices.reshape(k * k, r) @ v).reshape(k, k)
        return np.asarray((M + M.T) / 2.0)

    @cached_property
    def tensor(self) -> np.ndarray:
        """The whitened third moment T, of shape (k, k, k)."""
        return symmetrise(self.slices @ self.white.W)

    @cached_property
    def cube(self) -> PackedCube:
        """T in packed form, for the power method."""
        return PackedCube(self.tensor)

    @cached_property
    def _decompositions(self) -> dict[str, Decomposition]:
        return {}

    def decomposed(self, method: str, **options: int) -> Decomposition:
        """Return the decomposition of T by a method of `distmom.linalg.decompose`; computed only once."""
        key = repr((method, options))
        if key not in self._decompositions:
            self._decompositions[key] = decompose(self.tensor, method, random_state=self.seed, **options)
        return self._decompositions[key]


def conditioned(white: Whitening, v: np.ndarray, side: str, *, labelled: bool) -> np.ndarray:
    """Project side information onto the range of A, or whiten it.

    The projection ``V V'v``, with V the eigenvectors of A, has the same products with the components as v, without
    the noise of v in other directions. The whitened ``A^+ v`` has the product ``c_i / p_i`` with component i if
    ``v = sum c_i mu_i``: a mean of labelled data then prefers the component whose share of them is the largest
    relative to its weight, whatever the norms. For another vector, whitening may change which component
    is preferred.

    Parameters
    ----------
    white : Whitening
        Whitening of A.
    v : ndarray of shape (r,) or (n, r)
        One vector, or one per row.
    side : {"auto", "project", "whiten"}
        "auto" whitens labelled data, and returns other vectors as they are.
    labelled : bool
        Whether v was computed from labelled data.
    """
    if whitens(side, labelled):
        return np.asarray(v @ white.W @ white.W.T)
    return v if side == "auto" else np.asarray(v @ white.W @ white.B.T)


def whitens(side: str, labelled: bool) -> bool:
    """Return whether `conditioned` whitens side information."""
    return side == "whiten" or (side == "auto" and labelled)


def whitening_search(white: Whitening, M: np.ndarray, m: np.ndarray) -> Found:
    """Find the component with the largest ``<mu_i, v>`` from the leading eigenvector of M (algorithm 1).

    Parameters
    ----------
    white : Whitening
        Whitening of A, which does not depend on v.
    M : ndarray of shape (k, k)
        The whitened B, symmetric.
    m : ndarray of shape (r,)
        The first moment.

    Raises
    ------
    NumericalError
        If the component has no weight.
    """
    values, vectors = np.linalg.eigh(M)
    u = vectors[:, -1]
    # a = sqrt(p), and B' u = sqrt(p) mu
    a = float(u @ (white.W.T @ m))
    if not abs(a) > 1e-12:
        raise weightless()
    return Found(white.B @ u / a, a * a, values[::-1])


def cancellation_search(
    white: Whitening, M: np.ndarray, m: np.ndarray, factor: str = "spectrum", along: np.ndarray | None = None
) -> Found:
    """Find the same component by subtracting the multiple of B that removes it from A (algorithm 2).

    Parameters
    ----------
    white, M, m
        As in `whitening_search`, whose result this is up to rounding, except with a threshold.
    factor : {"spectrum", "bisection", "threshold", "norm"}, default="spectrum"
        How the multiple is found (see `distmom.linalg.search.cancellation`).
    along : ndarray of shape (r,), optional
        v: the pair ``(A v, B)`` replaces (m, A). The component has the same direction, and another length and
        weight where moments are noisy.

    Raises
    ------
    NumericalError
        If the component has no weight.
    """
    found = cancel(white, M, m, factor, along)
    return Found(found.coordinates, found.weight, np.linalg.eigvalsh(M)[::-1])


def decomposition_search(moments: WhitenedMoments, v: np.ndarray, method: str, **options: int) -> Found:
    """Decompose the tensor, once for all v, and return the component with the largest ``<mu_i, v>``.

    Parameters
    ----------
    moments : WhitenedMoments
    v : ndarray of shape (r,)
    method : str
        Method of `distmom.linalg.decompose`; ``"power"`` is the tensor power method used as a baseline in the
        paper. ``"jennrich"`` with ``n_draws=1`` contracts T along a random vector in place of v, as the spectral
        methods do with which section 3.5 of the paper compares the search.
    **options
        Options of the decomposition.

    Raises
    ------
    NumericalError
        If the component has no weight.
    """
    found = moments.decomposed(method, **options)
    V = found.eigenvectors
    values = np.einsum("ij,ij->j", V, moments.along(v) @ V)
    order = np.argsort(-values, kind="stable")
    return _of_eigenpair(moments.white, float(found.eigenvalues[order[0]]), V[:, order[0]], values[order])


def power_search(moments: WhitenedMoments, v: np.ndarray, *, start: str = "preference") -> Found:
    """Run the tensor power method once, initialised from v (Fast-TPM of section 4).

    The run converges to the component with the largest ``|<theta_i, x>| / sqrt(p_i)`` for the initial vector
    x. With ``W'A v`` that is the component with the largest ``|<mu_i, v>|``. With the paper's ``W'v`` it is
    the one with the largest ``|<mu_i, A^+ v>|``, which need not be the target of v.

    Parameters
    ----------
    moments : WhitenedMoments
    v : ndarray of shape (r,)
    start : {"preference", "projection"}, default="preference"
        Initial vector: ``W'A v``, or the paper's ``W'v``.

    Raises
    ------
    UsageError
        If ``start`` is unknown.
    NumericalError
        If v is orthogonal to the range of A, or the component has no weight.
    """
    if start not in STARTS:
        raise UsageError(f"start: expected one of {', '.join(STARTS)}, got {start!r}")
    white = moments.white
    # W'A equals B' of the whitening, because the columns of W are scaled eigenvectors of A.
    first = (white.B if start == "preference" else white.W).T @ v
    size = float(np.linalg.norm(first))
    if not size > 0.0:
        raise NumericalError("the side information carries no information about any component")
    eigenvalue, theta, _ = climb(moments.cube, first / size, _POWER_STEPS)
    M = moments.along(v)
    image = M @ theta
    value = float(theta @ image)
    # Eigenvalues of M on the complement of theta: theta is shifted above all others, and its eigenvalue dropped.
    lift = 2.0 * float(np.linalg.norm(M))
    across = np.outer(theta, image)
    rest = M - across - across.T + (value + lift) * np.outer(theta, theta)
    others = np.linalg.eigvalsh(rest)[-2::-1]
    return _of_eigenpair(white, eigenvalue, theta, np.append(value, others))


def _of_eigenpair(white: Whitening, eigenvalue: float, theta: np.ndarray, values: np.ndarray) -> Found:
    """Return the component of an eigenpair ``(p^(-1/2), theta)`` of T."""
    if not eigenvalue > 0.0:
        raise weightless()
    return Found(eigenvalue * (white.B @ theta), eigenvalue**-2.0, values)


#: searches that use the side information as a matrix alone
SIDE_SEARCHES: dict[str, Callable[[Whitening, np.ndarray, np.ndarray], Found]] = {
    "whitening": whitening_search,
    "cancellation": cancellation_search,
    **{
        f"cancellation-{name}": partial(cancellation_search, factor=name)
        for name in FACTORS
        if name != "spectrum"
    },
}

_METHODS: dict[str, Callable[[WhitenedMoments, np.ndarray], Found]] = {
    "cancellation-pair": lambda moments, v: cancellation_search(
        moments.white, moments.along(v), moments.m, along=v
    ),
    "fast-tpm": power_search,
    "tpm": lambda moments, v: decomposition_search(moments, v, "power"),
    "joint": lambda moments, v: decomposition_search(moments, v, "joint"),
    "random": lambda moments, v: decomposition_search(moments, v, "jennrich", n_draws=1),
}

SEARCHES = (*SIDE_SEARCHES, *_METHODS)


def search(method: str, moments: WhitenedMoments, v: np.ndarray) -> Found:
    """Find the component with the largest ``<mu_i, v>`` by one of `SEARCHES`; v is a vector in the basis."""
    if method in SIDE_SEARCHES:
        return SIDE_SEARCHES[method](moments.white, moments.along(v), moments.m)
    if method not in _METHODS:
        raise UsageError(f"method: expected one of {', '.join(SEARCHES)}, got {method!r}")
    return _METHODS[method](moments, v)
