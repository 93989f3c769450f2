"""Bounds of the errors of a search by those of the moments: theorems 1, 3 and 6, with explicit constants.

Source: Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18, 2018). The
theorems have a constant that is not given, and eigenvalues of the true moments. The bounds here have neither:
they follow from errors of the moments in spectral norm and from the estimates, and as in the paper they are
proportional to the errors of the moments and, where these are small, to the inverse of the gap of the
preferences.

Let ``s_1`` to ``s_k`` be eigenvalues of the estimate A, W its whitening matrix, and ``eA``, ``eB``, ``em``
the errors of A, B and m. Then ``W S^(-1/2)`` with ``S = W' E[A] W`` whitens the true A, with ``|S^(1/2) -
I|`` at most ``g = 1 - (1 - eA / s_k)^(1/2)``, and ``M = W'B W`` differs from the matrix of the true
preferences by at most

    eM = (eB / s_k + |M| ((1 + g)^2 - 1)) / (2 - (1 + g)^2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from distmom.linalg.search.cancellation import cancel_literally
from distmom.linalg.whiten import Whitening, whiten


@dataclass(frozen=True)
class MomentErrors:
    """Bounds of the errors of moments.

    Attributes
    ----------
    A, B : float
        Errors of the second moment and of the side information, in spectral norm.
    m : float, default 0.0
        Error of the first moment, in Euclidean norm; not used for subspaces.
    """

    A: float
    B: float
    m: float = 0.0


@dataclass(frozen=True)
class SearchBounds:
    """Bounds of the errors of a component that was found; infinite where the moments are too noisy for a bound.

    Attributes
    ----------
    component : float
        Euclidean distance from the true component; for a subspace, spectral norm of the difference of the
        projections onto both.
    weight : float
        Difference from the true weight.
    """

    component: float
    weight: float


NONE = SearchBounds(math.inf, math.inf)


def whitening_bounds(white: Whitening, M: np.ndarray, m: np.ndarray, errors: MomentErrors) -> SearchBounds:
    """Bound the errors of `whitening_search` (theorem 1).

    The leading eigenvector u of M turns by ``t = 2^(1/2) eM / (gap - eM)`` at most (Davis and Kahan), so that
    with ``w = B u`` and ``a = u'W'm``

        ew = eA / s_k^(1/2) + (s_1 + eA)^(1/2) (t + g),    ea = em / s_k^(1/2) + |W'm| (t + g),
        component <= (ew + ea |mu|) / (|a| - ea),           weight <= ea (2 |a| + ea),

    where ``|W'm|`` is increased to a bound of its true value. `cancellation_search` has the same estimate,
    and so the same bounds, if its factor is that of the spectrum.

    Parameters
    ----------
    white : Whitening
        Whitening of A.
    M : ndarray of shape (k, k)
        The whitened B, symmetric.
    m : ndarray of shape (r,)
        The first moment.
    errors : MomentErrors
    """
    k = len(M)
    apart, off = _distortions(white, M, errors)
    values, vectors = np.linalg.eigh(M)
    turned = _turned(float(values[-1] - values[-2]) if k > 1 else math.inf, off)
    if not turned < math.inf:
        return NONE
    s1, sk = float(white.eigenvalues[0]), float(white.eigenvalues[k - 1])
    u, scaled = vectors[:, -1], white.W.T @ m
    root, length = abs(float(u @ scaled)), float(np.linalg.norm(scaled))
    length = (length + errors.m / math.sqrt(sk)) / math.sqrt(1.0 - errors.A / sk)
    off_root = errors.m / math.sqrt(sk) + length * (turned + apart)
    if not off_root < root:
        return NONE
    off_vector = errors.A / math.sqrt(sk) + math.sqrt(s1 + errors.A) * (turned + apart)
    size = float(np.linalg.norm(white.B @ u)) / root
    return SearchBounds(
        (off_vector + off_root * size) / (root - off_root), off_root * (2.0 * root + off_root)
    )


def cancellation_bounds(
    A: np.ndarray, B: np.ndarray, m: np.ndarray, n_components: int, errors: MomentErrors
) -> SearchBounds:
    """Bound the errors of `cancel_literally` with the factor of the spectrum (theorem 3).

    The factor ``f = 1 / l`` for the largest eigenvalue l of M is off by at most ``eM / (l (l - eM))``, so
    that Z is off by at most ``eZ = eA + f eB + (|B| + eB) eM / (l (l - eM))``, and its range by the sine ``s
    = eZ / s_(k-1)(Z)``. The part x of m outside this range is then off by at most ``ex = em + s (|m| + em)``,
    and its direction by ``t = 2 ex / |x|``. The component ``A x / |x|^2`` and the weight ``|x|^4 / x'A x``
    follow.

    Parameters
    ----------
    A, B : ndarray of shape (d, d)
        Symmetric; the largest preference must be positive.
    m : ndarray of shape (d,)
    n_components : int
        k.
    errors : MomentErrors

    Raises
    ------
    UsageError, NumericalError
        As `cancel_literally`.
    """
    found = cancel_literally(A, B, m, n_components)
    white = whiten(A, n_components, noise=0.0)
    M = white.W.T @ B @ white.W
    _, off = _distortions(white, (M + M.T) / 2.0, errors)
    largest = float(np.linalg.eigvalsh((M + M.T) / 2.0)[-1])
    if not off < largest:
        return NONE
    size_a, size_b = (float(np.linalg.norm(x, 2)) + e for x, e in ((A, errors.A), (B, errors.B)))
    Z = A - B / largest
    off_z = errors.A + errors.B / largest + size_b * off / (largest * (largest - off))
    left, singular, _ = np.linalg.svd(Z, hermitian=True)
    others = left[:, : n_components - 1]
    sine = off_z / float(singular[n_components - 2]) if n_components > 1 else 0.0
    rest = m - others @ (others.T @ m)
    size = float(np.linalg.norm(rest))
    off_rest = errors.m + sine * (float(np.linalg.norm(m)) + errors.m)
    own = rest / size
    inner = float(own @ A @ own)
    turned = 2.0 * off_rest / size
    off_inner = errors.A + 2.0 * size_a * turned
    if not (sine < 1.0 and off_rest < size and off_inner < inner):
        return NONE
    image = float(np.linalg.norm(A @ own)) / size
    off_image = (errors.A + size_a * turned + image * off_rest) / (size - off_rest)
    # The estimate is projected onto the direction and the range of Z, which the component need not be in exactly.
    component = off_image + (image + off_image) * math.hypot(turned, sine)
    low, high = (size - off_rest) ** 2 / (inner + off_inner), (size + off_rest) ** 2 / (inner - off_inner)
    return SearchBounds(component, max(high - found.weight, found.weight - low))


def subspace_bounds(white: Whitening, R: np.ndarray, dimension: int, errors: MomentErrors) -> SearchBounds:
    """Bound the errors of a search for a subspace (theorem 6).

    With Y the leading eigenvectors of R, as many as the subspace has dimensions, ``Z = B Y`` is off by at
    most ``eZ``, which is ``ew`` of `whitening_bounds` with the gap after these eigenvalues. Then

        projection <= eZ / s_min(Z),    weight <= eZ (2 p^(1/2) + eZ)    for the estimated weight p.

    Parameters
    ----------
    white : Whitening
        Whitening of A, of rank k times the dimension.
    R : ndarray of shape (r, r)
        The whitened B, symmetric.
    dimension : int
        Dimension of the subspace.
    errors : MomentErrors
    """
    r = len(R)
    apart, off = _distortions(white, R, errors)
    values, vectors = np.linalg.eigh(R)
    gap = float(values[-dimension] - values[-dimension - 1]) if r > dimension else math.inf
    turned = _turned(gap, off)
    if not turned < math.inf:
        return NONE
    s1, sk = float(white.eigenvalues[0]), float(white.eigenvalues[r - 1])
    singular = np.linalg.svd(white.B @ vectors[:, -dimension:], compute_uv=False)
    off_z = errors.A / math.sqrt(sk) + math.sqrt(s1 + errors.A) * (turned + apart)
    root = math.sqrt(float(np.sum(singular**2)) / dimension)
    return SearchBounds(off_z / float(singular[-1]), off_z * (2.0 * root + off_z))


def _distortions(white: Whitening, M: np.ndarray, errors: MomentErrors) -> tuple[float, float]:
    """Return g and ``eM``; infinite if A is too noisy."""
    share = errors.A / float(white.eigenvalues[len(M) - 1])
    if share >= 1.0:
        return math.inf, math.inf
    apart = 1.0 - math.sqrt(1.0 - share)
    grown = (1.0 + apart) ** 2 - 1.0
    if not grown < 1.0:
        return apart, math.inf
    off = errors.B / float(white.eigenvalues[len(M) - 1]) + float(np.linalg.norm(M, 2)) * grown
    return apart, off / (1.0 - grown)


def _turned(gap: float, off: float) -> float:
    """Return how far eigenvectors may be from the true ones, up to a rotation; infinite if there is no bound."""
    sine = off / (gap - off) if off < gap else math.inf
    return math.sqrt(2.0) * sine if sine < 1.0 else math.inf
