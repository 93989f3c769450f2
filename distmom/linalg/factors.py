"""Directions of skewed or kurtotic factors from whitened cumulants of order three and four.

Source: Anandkumar, Foster, Hsu, Kakade, Liu, "A Spectral Algorithm for Latent Dirichlet Allocation" (Algorithms 1
and 2, remarks 2 to 4). With M orthogonal, a cumulant contracted with directions is

    T(I, I, h) = M diag(gamma_i (M'h)_i) M'            Q(I, I, a, b) = M diag(kappa_i (M'a)_i (M'b)_i) M'

Columns of M with zero strength (gamma, kappa) cannot be distinguished from each other: a single one is
identified as the orthogonal complement of the others, two or more are not identifiable. Sampling errors
perturb strengths; their size is estimated from differences between parts of the sample, and a strength below
that level counts as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmom.blas import one_blas_thread
from distmom.errors import NumericalError, UsageError
from distmom.linalg.checks import generator
from distmom.linalg.tensors.jacobi import joint_diagonalise
from distmom.linalg.whiten import fix_signs

Array = NDArray[np.float64]

METHODS = ("joint", "single")
#: strengths below this are attributed to rounding; skewness and kurtosis are of order one
ROUNDING = 1e-8
#: ratio of the noise level to the largest strength found in pure noise
NOISE_MARGIN = 2.0
#: ratio of the noise level to the standard deviation of strengths in random directions
NOISE_DEVIATIONS = 3.0
#: number of random bases for that standard deviation
_NOISE_BASES = 16
#: directions with at least this cosine count as the same, as different factors are orthogonal
_SAME = 0.5


@dataclass(frozen=True)
class Slices:
    """Contractions of a whitened symmetric cumulant.

    Attributes
    ----------
    matrices : ndarray of shape (k, k, m), float64
        Matrices along the last axis, symmetric up to rounding.
    directions : tuple of ndarray of shape (k, m)
        Directions with which the modes beyond the second are contracted: one array for order three, two for order
        four.
    noise : ndarray of shape (k, k, m, n) or None, default=None
        n draws of the sampling error of the matrices; None for exact population moments.
    """

    matrices: Array
    directions: tuple[Array, ...]
    noise: Array | None = None

    @property
    def order(self) -> int:
        """Order of the cumulant."""
        return 2 + len(self.directions)

    def strengths(self, V: Array, matrices: Array | None = None) -> Array:
        """Estimate the skewness or excess kurtosis along orthonormal columns, by least squares over the slices.

        Parameters
        ----------
        V : ndarray of shape (k, n)
        matrices : ndarray of shape (k, k, m), optional
            Matrices to use instead of ``self.matrices``.

        Returns
        -------
        ndarray of shape (n,)
        """
        matrices = self.matrices if matrices is None else matrices
        along = np.einsum("abm,an,bn->nm", matrices, V, V, optimize=True)
        factors = np.prod([V.T @ d for d in self.directions], axis=0)
        return np.asarray(np.sum(along * factors, axis=1) / np.maximum(np.sum(factors**2, axis=1), 1e-300))

    def along(self, *vectors: Array) -> tuple[Array, float]:
        """Return the contraction with one vector per mode beyond the second, and the spectral norm of its noise.

        The contraction, of shape (k, k), is exact if the slices determine the tensor; otherwise it is a
        projection.
        """
        products = [
            np.prod([d.T @ v for d, v in zip(self.directions, order, strict=True)], axis=0)
            for order in permutations(vectors)
        ]
        weights = np.mean(products, axis=0)
        norms = [np.linalg.norm(_symmetric(draw @ weights), 2) for draw in self._draws()]
        return _symmetric(self.matrices @ weights), _root_mean_square(norms)

    def _draws(self) -> list[Array]:
        return [] if self.noise is None else list(np.moveaxis(self.noise, -1, 0))

    def scale(self) -> float:
        """Return the root mean square of the noise, at least the size of rounding errors."""
        noise = 0.0 if self.noise is None else float(np.sqrt(np.mean(self.noise**2)))
        return max(noise, ROUNDING)

    def level(self, V: Array, seed: int = 0) -> float:
        """Return the strength below which a direction in the span of orthonormal columns counts as noise.

        It is the maximum of two values: the largest strength that joint diagonalisation finds in pure noise,
        times a margin; and a multiple of the standard deviation of noise strengths in random directions.
        """
        rng, n = generator(seed, "seed"), V.shape[1]
        largest: list[Any] = []
        drawn: list[Any] = []
        for noise in self._draws():
            there = np.einsum("abm,ai,bj->ijm", noise, V, V, optimize=True)
            found = self.strengths(V @ joint_diagonalise(_stacked(there))[0], noise)
            largest.append(np.abs(found).max())
            bases = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(_NOISE_BASES))
            drawn += [self.strengths(V @ basis, noise) for basis in bases]
        return max(
            NOISE_MARGIN * _root_mean_square(largest),
            NOISE_DEVIATIONS * _root_mean_square(drawn),
            ROUNDING,
        )


@dataclass(frozen=True)
class Factors:
    """Identified directions.

    Attributes
    ----------
    vectors : ndarray of shape (k, n), float64
        Unit columns; orthogonal with method "joint".
    strengths : dict of int to ndarray of shape (n,)
        Skewness (3) and excess kurtosis (4) along each direction, for every available order.
    separation : ndarray of shape (n,)
        Distinctness of each column from the most similar one, relative to noise; above 1.
    levels : dict of int to float
        Noise level of the strengths in the whole space, by order.
    off_diagonal_share : float
        Share of the energy of the slices, in units of their noise, that is off the diagonal in the estimated
        basis; NaN for method "single".
    n_rejected : int
        Number of directions that are not identified.
    """

    vectors: Array
    strengths: dict[int, Array]
    separation: Array
    levels: dict[int, float]
    off_diagonal_share: float
    n_rejected: int

    def subset(self, kept: NDArray[np.bool_]) -> Factors:
        """Return the directions selected by a Boolean array of shape (n,)."""
        strengths = {order: values[kept] for order, values in self.strengths.items()}
        n_rejected = self.n_rejected + int((~kept).sum())
        return replace(
            self, vectors=self.vectors[:, kept], strengths=strengths, separation=self.separation[kept],
            n_rejected=n_rejected,
        )  # fmt: skip


def find_factors(
    known: Sequence[Slices],
    orders: Sequence[int],
    method: str = "joint",
    *,
    n_directions: int = 10,
    tol: float = 1e-6,
    random_state: int = 0,
) -> Factors:
    """Estimate the columns of M that are identified by cumulants of one or both orders.

    Parameters
    ----------
    known : sequence of Slices
        Cumulants for which strengths are reported, one per order; they include those of ``orders``.
    orders : sequence of int
        Orders from which columns are estimated.
    method : {"joint", "single"}, default="joint"
        "joint" diagonalises all slices of all orders together, each in units of its noise. "single" takes
        eigenvectors with unique eigenvalues of contractions with single random directions (Algorithms 1 and
        2), for several directions of every order, without duplicates (remarks 2 and 4).
    n_directions : int, default=10
        Number of random directions per order, for "single".
    tol : float, default=1e-6
        Minimum gap of a unique eigenvalue relative to the largest eigenvalue, in addition to the noise level; for
        "single".
    random_state : int, default=0

    Returns
    -------
    Factors
        Columns have positive skewness; columns without skewness have a positive largest entry.

    Raises
    ------
    UsageError
        If a parameter is invalid, or an order is not available.
    NumericalError
        If an entry is not finite.
    """
    slices = {s.order: s for s in known}
    if method not in METHODS:
        raise UsageError(f"decomposition: expected one of {', '.join(METHODS)}, got {method!r}")
    if not orders or not set(orders) <= set(slices):
        raise UsageError(f"orders: expected some of {sorted(slices)}, got {list(orders)}")
    if n_directions < 1 or not 0.0 < tol < 1.0:
        raise UsageError(f"expected n_directions >= 1 and 0 < tol < 1, got {n_directions} and {tol}")
    if not all(np.isfinite(s.matrices).all() for s in known):
        raise NumericalError("the whitened cumulants have entries that are not finite")
    used = [slices[order] for order in orders]
    with one_blas_thread():
        levels = {s.order: s.level(np.eye(len(s.matrices)), random_state) for s in known}
        if method == "joint":
            V, separation, share = _joint(used, random_state)
        else:
            V, separation = _single(used, n_directions, tol, random_state)
            share = float("nan")
        V = fix_signs(V) if V.size else V
        strengths = {s.order: s.strengths(V) for s in known}
        if 3 in strengths:
            flipped = strengths[3] < -ROUNDING
            V = np.where(flipped, -V, V)
            strengths[3] = np.where(flipped, -strengths[3], strengths[3])
    return Factors(V, strengths, separation, levels, share, len(used[0].matrices) - V.shape[1])


def unique_eigenvectors(matrix: Array, *, tol: float = 1e-6, noise: float = 0.0) -> tuple[Array, Array]:
    """Return the eigenvectors of a symmetric matrix that have unique eigenvalues.

    Eigenvectors are used rather than singular vectors, so that eigenvalues of opposite sign are not ties.

    Parameters
    ----------
    matrix : ndarray of shape (k, k)
    tol : float, default=1e-6
        Minimum gap to the nearest eigenvalue, relative to the largest magnitude.
    noise : float, default=0.0
        Spectral norm of the error of the matrix. The gap must also be three times this norm, because errors can
        separate equal eigenvalues by up to twice it.

    Returns
    -------
    vectors : ndarray of shape (k, n)
    margins : ndarray of shape (n,)
        Gap divided by the minimum gap.
    """
    values, vectors = np.linalg.eigh(_symmetric(matrix))
    steps = np.diff(values)
    gaps = np.minimum(np.append(np.inf, steps), np.append(steps, np.inf))
    least = max(tol * float(np.abs(values).max()), 3.0 * noise, float(np.finfo(np.float64).tiny))
    # If the matrix is only rounding error, every gap is large relative to the largest eigenvalue.
    unique = (gaps > least) & (np.abs(values).max() > ROUNDING)
    return np.asarray(vectors[:, unique]), np.asarray(gaps[unique] / least)


def _joint(used: Sequence[Slices], seed: int) -> tuple[Array, Array, float]:
    """Diagonalise all slices together and keep the columns that some order distinguishes from all others.

    Noise is larger along strong factors than elsewhere. Columns that exceed the noise level of the whole space are
    therefore separated first, then those that exceed the level of the remaining space, until none does.
    """
    V, shares, _ = joint_diagonalise(_stacked(*(s.matrices / s.scale() for s in used)))
    weak, separation = np.arange(V.shape[1]), np.full(V.shape[1], np.inf)
    while len(weak) > 1:
        # Largest strength over orders, in units of the noise level of the order.
        left = V[:, weak]
        relative = np.max([np.abs(s.strengths(left)) / s.level(left, seed) for s in used], axis=0)
        separation[weak] = relative
        if not (relative > 1.0).any():
            break
        weak = weak[relative <= 1.0]
    kept = np.ones(len(separation), bool)
    if len(weak) > 1:
        kept[weak] = False
    else:
        # The last column is as distinct as the least distinct of the others.
        separation[weak] = np.delete(separation, weak).min(initial=np.inf)
    return np.asarray(V[:, kept]), separation[kept], shares[-1] if shares else 0.0


def _single(used: Sequence[Slices], n_directions: int, tol: float, seed: int) -> tuple[Array, Array]:
    """Return the distinct columns identified by single directions of all orders, the most distinct first."""
    rng, k = generator(seed, "seed"), len(used[0].matrices)
    candidates: list[tuple[float, Array]] = []
    for s in used:
        for _ in range(n_directions):
            thetas = [rng.standard_normal(k) for _ in s.directions]
            matrix, noise = s.along(*(theta / np.linalg.norm(theta) for theta in thetas))
            vectors, margins = unique_eigenvectors(matrix, tol=tol, noise=noise)
            candidates += list(zip(margins.tolist(), vectors.T, strict=True))
    candidates.sort(key=lambda pair: -pair[0])
    columns: list[Array] = []
    separation: list[float] = []
    for margin, vector in candidates:
        if all(abs(vector @ other) < _SAME for other in columns) and len(columns) < k:
            columns.append(vector)
            separation.append(margin)
    return np.array(columns).reshape(-1, k).T, np.array(separation)


def _stacked(*stacks: Array) -> Array:
    """Symmetrise the matrices of several stacks and join them along the last axis, in a new array."""
    return np.ascontiguousarray(np.concatenate([(s + s.transpose(1, 0, 2)) / 2.0 for s in stacks], axis=2))


def _root_mean_square(values: Sequence[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else 0.0


def _symmetric(matrix: Array) -> Array:
    return np.asarray((matrix + matrix.T) / 2.0)
