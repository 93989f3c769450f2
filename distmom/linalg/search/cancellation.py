"""Removal of one component from a second moment by a multiple of its side information (algorithm 2).

Source: Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18, 2018), with the moments
A, B and m and the preferences ``w_i = <mu_i, v>`` of `distmom.linalg.search.component`. The component of the
largest preference w has no part in ``Z = A - f B = sum p_i (1 - f w_i) mu_i mu_i'`` if f is 1 / w. The direction
that is orthogonal to the range of Z then belongs to that component alone. M is the whitened B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from distmom.errors import NumericalError, UsageError
from distmom.linalg.whiten import Whitening, whiten

#: largest number of steps of a search for a factor, and the relative width of the interval at which it ends
_STEPS, _WIDTH = 400, 1e-15
#: least eigenvalue at which a search by threshold ends, as a share of the least eigenvalue of A
THRESHOLD = 1e-3
#: least norm of a part of the first moment, as a share of the whole, that rounding does not account for
_LEAST_PART = 1e-12
#: least difference of two preferences, as a share of their size, for which the preferences are shifted by as much
_LEAST_SPREAD = 1e-3
#: part of an interval that a golden section keeps
_GOLDEN = (5.0**0.5 - 1.0) / 2.0


@dataclass(frozen=True)
class Removed:
    """The component that was removed from a second moment.

    Attributes
    ----------
    coordinates : ndarray of shape (k,)
        The component in the coordinates of the second moment.
    weight : float
        Its weight, in the units of the second moment.
    """

    coordinates: np.ndarray
    weight: float


def _whitened(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return B in coordinates that whiten A; its eigenvalues are the preferences."""
    root = np.linalg.inv(np.linalg.cholesky(A))
    return np.asarray(root @ B @ root.T)


def by_spectrum(A: np.ndarray, B: np.ndarray) -> float:
    """Return 1 / w, where w is the largest generalised eigenvalue of B and A: the factor in closed form.

    Parameters
    ----------
    A : ndarray of shape (k, k)
        Symmetric and positive definite.
    B : ndarray of shape (k, k)
        Symmetric, with a positive w.
    """
    return 1.0 / float(np.linalg.eigvalsh(_whitened(A, B))[-1])


def by_bisection(A: np.ndarray, B: np.ndarray) -> float:
    """Return the largest factor f for which ``A - f B`` is positive semidefinite, by bisection.

    Parameters are those of `by_spectrum`.
    """
    return _last(lambda f: float(np.linalg.eigvalsh(A - f * B)[0]) >= 0.0)


def by_threshold(A: np.ndarray, B: np.ndarray, threshold: float = THRESHOLD) -> float:
    """Return the least factor for which the least eigenvalue of ``A - f B`` is below a threshold.

    The paper uses this search in its experiments with Gaussian mixtures. The least eigenvalue is a concave
    function of f, positive at zero, so the factors with a value above the threshold are an interval that begins
    there. The error of the component is of the size of the threshold.

    Parameters
    ----------
    A, B : ndarray of shape (k, k)
        As for `by_spectrum`.
    threshold : float, default 1e-3
        Share of the least eigenvalue of A, in (0, 1).

    Raises
    ------
    UsageError
        If the threshold is not in (0, 1).
    """
    if not 0.0 < threshold < 1.0:
        raise UsageError(f"threshold: expected a share of the least eigenvalue, in (0, 1), got {threshold:g}")
    least = threshold * float(np.linalg.eigvalsh(A)[0])
    return _last(lambda f: float(np.linalg.eigvalsh(A - f * B)[0]) >= least)


def by_norm(A: np.ndarray, B: np.ndarray) -> float:
    """Return the factor that minimises ``|A - f B|_* + f`` for the nuclear norm in whitened coordinates.

    The paper uses this search in its experiments with topics. There, the norm is ``sum |1 - f w_i|``, and the
    factor is 1 / w for the largest w if and only if ``sum w_i >= 1 >= sum w_i - 2 w``.

    Parameters are those of `by_spectrum`.

    Raises
    ------
    NumericalError
        If the condition does not hold; a multiple of v may satisfy it, since w is proportional to v.
    """
    M = _whitened(A, B)
    total, largest = float(np.trace(M)), float(np.linalg.eigvalsh(M)[-1])
    if not total >= 1.0 >= total - 2.0 * largest:
        raise NumericalError(
            "a search by the norm requires preferences with sum w >= 1 >= sum w - 2 max w, got "
            f"sum w = {total:.3g} and max w = {largest:.3g}; scale the side information"
        )
    eye = np.eye(len(M))

    def value(f: float) -> float:
        return float(np.abs(np.linalg.eigvalsh(eye - f * M)).sum()) + f

    low, high = 0.0, 2.0 / largest
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = value(left), value(right)
    for _ in range(_STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = value(right)
        if high - low <= _WIDTH * high:
            break
    return (low + high) / 2.0


FACTORS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "spectrum": by_spectrum,
    "bisection": by_bisection,
    "threshold": by_threshold,
    "norm": by_norm,
}


def _factor(A: np.ndarray, B: np.ndarray, name: str) -> float:
    """Return the factor of `FACTORS` that removes a component, for any scale of the side information.

    Some multiple of preferences with a positive sum satisfies the condition of a search by the norm.
    """
    if name not in FACTORS:
        raise UsageError(f"factor: expected one of {', '.join(FACTORS)}, got {name!r}")
    size = 1.0
    if name == "norm":
        values = np.linalg.eigvalsh(_whitened(A, B))
        size = float(max(values.sum() - values[-1], values.sum() / 2.0))
        if not size > 0.0:
            raise NumericalError(
                f"a search by the norm requires preferences with a positive sum, got {values.sum():.3g}; add a "
                "multiple of A to B"
            )
    return FACTORS[name](A, B / size) / size


def _last(holds: Callable[[float], bool]) -> float:
    """Return the largest factor for which a condition holds that holds from zero up to it."""
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, 2.0 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if holds(middle) else (low, middle)
        if high - low <= _WIDTH * high:
            break
    return low


def remove(Z: np.ndarray, moment: np.ndarray, mean: np.ndarray, n_components: int) -> Removed:
    """Return the component that is missing from Z, by steps 3 to 6 of algorithm 2.

    Parameters
    ----------
    Z : ndarray of shape (r, r)
        ``A - f B``.
    moment, mean : ndarray of shape (r, r) and (r,)
        A and m; or B and ``A v``, which give the same component, and its weight times its preference.
    n_components : int
        k; the range of Z is that of its k - 1 largest singular values.

    Raises
    ------
    NumericalError
        If the component has no weight.
    """
    left, _, _ = np.linalg.svd(Z, hermitian=True)
    others = left[:, : n_components - 1]
    rest = mean - others @ (others.T @ mean)
    size = float(np.linalg.norm(rest))
    if not size > _LEAST_PART * float(np.linalg.norm(mean)):
        raise weightless()
    own = rest / size
    image = moment @ own
    # The component is sum_i a_i v_i over an orthonormal basis that consists of the direction and the range of Z.
    inner, across = float(own @ image), others.T @ image
    if not abs(inner) > 0.0:
        raise weightless()
    return Removed((inner * own + others @ across) / size, size**2 / inner)


def cancel(
    white: Whitening, M: np.ndarray, m: np.ndarray, factor: str = "spectrum", along: np.ndarray | None = None
) -> Removed:
    """Find the component of the largest preference by its removal from A, projected to k dimensions.

    Parameters
    ----------
    white : Whitening
        Whitening of A.
    M : ndarray of shape (k, k)
        The whitened B, symmetric.
    m : ndarray of shape (r,)
        The first moment.
    factor : {"spectrum", "bisection", "threshold", "norm"}, default "spectrum"
        How the factor is found.
    along : ndarray of shape (r,), optional
        v: use ``(A v, B)`` in place of (m, A), as the experiments of the paper do. The estimate then does not
        depend on the first moment, unless no preference is positive.

    Returns
    -------
    Removed
        Its coordinates are those of the basis, and its weight is p.

    Raises
    ------
    UsageError
        If the factor is unknown.
    NumericalError
        If the component has no weight.
    """
    values = np.linalg.eigvalsh(M)
    shift = 0.0
    if not (values[-1] > 0.0 and values.sum() > 0.0):
        # A multiple of A that is added to B adds a constant to all preferences and keeps their order. The least of
        # them becomes as large as they differ, so that the unit of the side information does not matter.
        lowest = float(values[0])
        shift = (max(float(values[-1]) - lowest, -_LEAST_SPREAD * lowest) or 1.0) - lowest
    basis, root = np.linalg.qr(white.B)
    A, B, mean = root @ root.T, root @ (M + shift * np.eye(len(M))) @ root.T, basis.T @ m
    f = _factor(A, B, factor)
    if along is None:
        removed = remove(A - f * B, A, mean, len(M))
        return Removed(basis @ removed.coordinates, removed.weight)
    removed = remove(A - f * B, B, A @ (basis.T @ along) + shift * mean, len(M))
    # The weight in B is that in A times the preference, which is 1 / f.
    return Removed(basis @ removed.coordinates, f * removed.weight)


def cancel_literally(
    A: np.ndarray, B: np.ndarray, m: np.ndarray, n_components: int, factor: str = "spectrum"
) -> Removed:
    """Find the component of the largest preference by its removal from A, in all d dimensions, as printed.

    Only the factor is found in the range of A. Errors of A and B outside that range reach the estimate, which is
    therefore less accurate than that of `cancel`.

    Parameters
    ----------
    A, B : ndarray of shape (d, d)
        Symmetric; the largest preference must be positive.
    m : ndarray of shape (d,)
    n_components : int
        k, at most d.
    factor : str, default "spectrum"
        As for `cancel`.

    Raises
    ------
    UsageError
        If the factor is unknown, or k is not from 1 to d.
    NumericalError
        If A has fewer than k positive eigenvalues, the largest preference is not positive, the component has no
        weight, or the sum of the preferences is not positive with ``factor="norm"``.
    """
    white = whiten(A, n_components, noise=0.0)
    if not np.linalg.eigvalsh(white.W.T @ B @ white.W)[-1] > 0.0:
        raise NumericalError("the largest preference is not positive; add a multiple of A to B")
    basis, root = np.linalg.qr(white.B)
    f = _factor(root @ root.T, basis.T @ B @ basis, factor)
    return remove(A - f * B, A, m, n_components)


def weightless() -> NumericalError:
    """Return the error of a component without weight."""
    return NumericalError("the component selected by the side information has no weight")
