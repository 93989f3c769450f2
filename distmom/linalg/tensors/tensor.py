"""Primitives on symmetric third-order tensors, dense and float64.

Notation of Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor decompositions for learning latent variable
models" (JMLR 2014), section 2: ``T(A, B, C)`` is the multilinear map, ``T(I, u, u)`` and ``T(I, I, u)`` its
contractions with vectors.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distmom.blas import map_on_cores, pieces
from distmom.errors import NumericalError, UsageError
from distmom.linalg.checks import check_whole, generator

Array = NDArray[np.float64]

_ASYMMETRY_LIMIT = 1e-6
#: entries of a tensor that are contracted at a time
_PIECE_ENTRIES = 1 << 17
#: sums of squares between these have all their digits
_SMALL, _LARGE = 1e-280, 1e300


def near_one(T: Array) -> tuple[Array, float]:
    """Scale a tensor of extreme magnitude by a power of two, so that no product of entries overflows or vanishes.

    Parameters
    ----------
    T : ndarray of any shape

    Returns
    -------
    scaled : ndarray
        ``T / scale``, without rounding; T itself if its largest magnitude is between 1e-60 and 1e60.
    scale : float
    """
    largest = max(float(T.max(initial=0.0)), -float(T.min(initial=0.0)))
    if largest == 0.0 or 1e-60 < largest < 1e60:
        return T, 1.0
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1)
    return T / scale, scale


def as_cube(T: ArrayLike) -> Array:
    """Convert to a (k, k, k) float64 array, and check its shape and that it is finite.

    Parameters
    ----------
    T : array_like of shape (k, k, k)

    Returns
    -------
    ndarray of shape (k, k, k), float64

    Raises
    ------
    UsageError
        If the shape is not (k, k, k) with k >= 1.
    NumericalError
        If an entry is not finite.
    """
    cube = np.ascontiguousarray(T, dtype=np.float64)
    if cube.ndim != 3 or cube.shape[0] < 1 or len(set(cube.shape)) != 1:
        raise UsageError(f"a third-order tensor must have shape (k, k, k) with k >= 1, got {cube.shape}")
    if not np.isfinite(cube).all():
        bad = int(cube.size - np.isfinite(cube).sum())
        raise NumericalError(f"the tensor of shape {cube.shape} has {bad} entries that are not finite")
    return cube


def as_symmetric(T: ArrayLike) -> Array:
    """Return a symmetric copy of a tensor that is symmetric up to rounding.

    Parameters
    ----------
    T : array_like of shape (k, k, k)

    Returns
    -------
    ndarray of shape (k, k, k), float64
        The average over index permutations, so that later steps can interchange modes.

    Raises
    ------
    UsageError
        If the shape is wrong, or ``||T - symmetrise(T)||_F > 1e-6 ||T||_F``.
    NumericalError
        If an entry is not finite.
    """
    cube = as_cube(T)
    symmetric = symmetrise(cube)
    scale = frobenius(cube)
    asymmetry = frobenius(cube - symmetric) / scale if scale > 0 else 0.0
    if asymmetry > _ASYMMETRY_LIMIT:
        raise UsageError(
            f"the tensor is not symmetric: relative asymmetry {asymmetry:.3g}, at most {_ASYMMETRY_LIMIT:g} "
            "is attributed to rounding; apply distmom.linalg.symmetrise to use its symmetric part"
        )
    return symmetric


def multilinear(T: ArrayLike, A: ArrayLike, B: ArrayLike, C: ArrayLike) -> Array:
    """Contract each mode of a third-order tensor with a matrix: ``T(A, B, C)``.

    Parameters
    ----------
    T : array_like of shape (a, b, c)
    A, B, C : array_like of shape (a, i), (b, j) and (c, l)

    Returns
    -------
    ndarray of shape (i, j, l), float64
        ``sum_abc T[a, b, c] A[a, i] B[b, j] C[c, l]`` (section 2 of the paper).

    Raises
    ------
    UsageError
        If the shapes do not match.
    """
    tensor = np.asarray(T, dtype=np.float64)
    maps = [np.asarray(M, dtype=np.float64) for M in (A, B, C)]
    if tensor.ndim != 3 or any(
        M.ndim != 2 or M.shape[0] != n for M, n in zip(maps, tensor.shape, strict=True)
    ):
        raise UsageError(
            f"a tensor of shape {tensor.shape} cannot be mapped by matrices of shapes "
            f"{', '.join(str(M.shape) for M in maps)}"
        )
    for M in maps:
        # Contracting the first axis appends the new one; after three contractions the order is (i, j, l).
        tensor = np.tensordot(tensor, M, axes=(0, 0))
    return np.ascontiguousarray(tensor)


def symmetrise(T: ArrayLike) -> Array:
    """Average a cube over all six permutations of its indices.

    Parameters
    ----------
    T : array_like of shape (k, k, k)

    Returns
    -------
    ndarray of shape (k, k, k), float64
        Exactly symmetric, to the last bit.

    Raises
    ------
    UsageError
        If the shape is not (k, k, k).
    NumericalError
        If an entry is not finite.
    """
    cube = as_cube(T)
    cyclic = cube + cube.transpose(1, 2, 0) + cube.transpose(2, 0, 1)
    total: Array = cyclic + cyclic.transpose(0, 2, 1)
    total /= 6.0
    # At permuted positions the six terms are added in different orders, so results may differ in the last bit.
    return _mirror(total)


def _mirror(cube: Array) -> Array:
    """Copy the entries with sorted indices to all permutations of the indices."""
    k = cube.shape[0]
    upper = np.tri(k, dtype=bool).T
    result = np.empty_like(cube)
    for n in range(k):
        # Indices from n on; the entries with smaller ones are known.
        own = cube[n, n:, n:]
        own = np.where(upper[n:, n:], own, own.T)
        result[n, n:, n:] = result[n:, n, n:] = result[n:, n:, n] = own
    return result


def contract_one(T: Array, u: Array) -> Array:
    """Contract the last mode with a vector: ``T(I, I, u)``.

    Parameters
    ----------
    T : ndarray of shape (k, k, k)
    u : ndarray of shape (k,)

    Returns
    -------
    ndarray of shape (k, k), float64
    """
    result: Array = T @ u
    return result


def contract_two(T: Array, U: Array) -> Array:
    """Contract two modes with the same vector, for many vectors at once: ``T(I, u, u)``.

    Parameters
    ----------
    T : ndarray of shape (k, k, k)
    U : ndarray of shape (k,) or (k, m)
        One vector, or m of them as columns.

    Returns
    -------
    ndarray of shape (k,) or (k, m), float64
        ``sum_jl T[i, j, l] U[j, n] U[l, n]`` in column n.
    """
    k = T.shape[0]
    columns = U.reshape(k, -1)

    def rows(piece: slice) -> Array:
        # One matrix product for the last mode; the weighted sum for the second mode costs 1 / k of it.
        own = T[piece]
        half = (own.reshape(-1, k) @ columns).reshape(len(own), k, -1)
        return np.asarray(np.einsum("ijn,jn->in", half, columns))

    result: Array = np.concatenate(map_on_cores(rows, pieces(k, -(-_PIECE_ENTRIES // k**2))))
    return result.reshape(U.shape)


def cubic_form(T: Array, U: Array) -> Array:
    """Evaluate ``T(u, u, u)`` for every column.

    Parameters
    ----------
    T : ndarray of shape (k, k, k)
    U : ndarray of shape (k, m)

    Returns
    -------
    ndarray of shape (m,), float64
    """
    values: Array = np.einsum("in,in->n", U, contract_two(T, U))
    return values


def compose(weights: ArrayLike, vectors: ArrayLike) -> Array:
    """Form the sum of weighted outer cubes ``sum_i weights[i] v_i (x) v_i (x) v_i``.

    Parameters
    ----------
    weights : array_like of shape (n,)
    vectors : array_like of shape (k, n)
        The vectors as columns.

    Returns
    -------
    ndarray of shape (k, k, k), float64
    """
    lam = np.asarray(weights, dtype=np.float64)
    V = np.asarray(vectors, dtype=np.float64)
    k = V.shape[0]
    pairs = (V[:, None, :] * V[None, :, :]).reshape(k * k, -1)
    cube: Array = (pairs @ (V * lam).T).reshape(k, k, k)
    return cube


def deflate(T: Array, eigenvalue: float, vector: Array) -> Array:
    """Subtract one component from a tensor: ``T - eigenvalue * v (x) v (x) v``.

    Parameters
    ----------
    T : ndarray of shape (k, k, k)
    eigenvalue : float
    vector : ndarray of shape (k,)

    Returns
    -------
    ndarray of shape (k, k, k), float64
        A new array.
    """
    result: Array = T - compose([eigenvalue], vector[:, None])
    return result


def frobenius(T: Array) -> float:
    """Return the Frobenius norm, the square root of the sum of squared entries.

    Parameters
    ----------
    T : ndarray of any shape

    Returns
    -------
    float
    """
    square = float(np.vdot(T, T))
    if _SMALL < square < _LARGE:
        return float(np.sqrt(square))
    # Squares may have overflowed or vanished.
    largest = float(np.abs(T).max(initial=0.0))
    return largest * float(np.linalg.norm(T / largest)) if 0.0 < largest < np.inf else largest


def operator_norm_bounds(
    E: ArrayLike, *, n_starts: int = 20, max_iter: int = 5000, random_state: int = 0
) -> tuple[float, float]:
    """Return bounds from below and above of the operator norm ``sup |E(u, u, u)|`` over unit vectors u.

    The bounds of perturbation of theorem 5.1 are in this norm, whose value is hard to compute. The lower bound is
    the largest value that the shifted power method finds, and the upper one the spectral norm of the (k, k * k)
    flattening; they agree for an orthogonal tensor.

    Parameters
    ----------
    E : array_like of shape (k, k, k)
        Symmetric.
    n_starts : int, default=20
        Number of random initial vectors.
    max_iter : int, default=5000
        Largest number of iterations.
    random_state : int, default=0

    Returns
    -------
    lower, upper : float

    Raises
    ------
    UsageError
        If E is not a symmetric tensor of shape (k, k, k), or ``n_starts`` is below 1.
    NumericalError
        If an entry is not finite.
    """
    check_whole("n_starts", n_starts, 1)
    cube, scale = near_one(as_symmetric(E))
    k = cube.shape[0]
    upper = float(np.linalg.norm(cube.reshape(k, k * k), 2))
    if upper == 0.0:
        return 0.0, 0.0
    U = generator(random_state).standard_normal((k, n_starts))
    U *= np.where(cubic_form(cube, U) < 0.0, -1.0, 1.0)
    U /= np.linalg.norm(U, axis=0)
    values = cubic_form(cube, U)
    for _ in range(max_iter):
        # The shift makes every step an ascent (Kolda and Mayo, SIAM J. Matrix Anal. Appl. 32, 2011), and as the
        # form is odd, its largest value is also its largest magnitude.
        U = contract_two(cube, U) + 2.0 * upper * U
        U /= np.linalg.norm(U, axis=0)
        before, values = values, cubic_form(cube, U)
        if (values <= before * (1.0 + 1e-12)).all():
            break
    return min(float(values.max()), upper) * scale, upper * scale
