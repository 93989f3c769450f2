"""One component of a mixture from side information, without the others.

Source: Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18, 2018): with the
moments ``m = sum p_i mu_i``, ``A = sum p_i mu_i mu_i'`` and ``B = sum p_i <mu_i, v> mu_i mu_i'`` the component
that a vector v points at most is an eigenvector of the whitened B. All matrices here are small: moments in a
basis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distmom.errors import NumericalError, UsageError
from distmom.linalg.whiten import Whitening

SEARCHES = ("whitening", "cancellation")
_BISECTIONS = 200


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
        Eigenvalues of the whitened B, falling: estimates of ``<mu_i, v>``, the first that of the component found.
    """

    component: np.ndarray
    weight: float
    values: np.ndarray

    @property
    def gap(self) -> float:
        """How far v prefers this component: the difference of the two largest values."""
        return float(self.values[0] - self.values[1]) if len(self.values) > 1 else float(abs(self.values[0]))


def whitened(white: Whitening, B: np.ndarray) -> np.ndarray:
    """Return ``W'B W``, symmetric; its eigenvalues are the ``<mu_i, v>``."""
    M = white.W.T @ B @ white.W
    return np.asarray((M + M.T) / 2.0)


def whitening_search(white: Whitening, B: np.ndarray, m: np.ndarray) -> Found:
    """Find the component that v points at most (algorithm 1).

    Parameters
    ----------
    white : Whitening
        Of A; the same for all v.
    B : ndarray of shape (r, r)
    m : ndarray of shape (r,)

    Raises
    ------
    NumericalError
        If the component found has no weight.
    """
    values, vectors = np.linalg.eigh(whitened(white, B))
    u = vectors[:, -1]
    # a = sqrt(p), and B' u = sqrt(p) mu
    a = float(u @ (white.W.T @ m))
    if not abs(a) > 1e-12:
        raise NumericalError("the component that the side information points at has no weight")
    return Found(white.B @ u / a, a * a, values[::-1])


def cancellation_search(white: Whitening, B: np.ndarray, m: np.ndarray) -> Found:
    """Find the same by the multiple of B that takes the component out of A (algorithm 2).

    The largest lambda such that ``A - lambda B`` is positive semidefinite on the range of A is searched by
    bisection; what is orthogonal to the range of the rest is the component's alone. Equal to
    `whitening_search` up to rounding, by another way.

    Parameters
    ----------
    white, B, m
        As in `whitening_search`.
    """
    M = whitened(white, B)
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
        raise NumericalError("the component that the side information points at has no weight")
    # sqrt(p) mu is left / |left| in these coordinates, and sqrt(p) its length.
    return Found(white.B @ left / size, size, values)


def search(method: str, white: Whitening, B: np.ndarray, m: np.ndarray) -> Found:
    """Search by ``"whitening"`` or ``"cancellation"``."""
    if method not in SEARCHES:
        raise UsageError(f"method: expected one of {', '.join(SEARCHES)}, got {method!r}")
    return (whitening_search if method == "whitening" else cancellation_search)(white, B, m)
