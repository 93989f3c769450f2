"""The robust tensor power method, with deflation and either restarts or a stopping condition.

Source: Anandkumar et al., "Tensor decompositions for learning latent variable models" (JMLR 2014), Algorithm
1 (section 5) and Algorithm 2 (appendix C).
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distmom.blas import map_on_cores, pieces

Array = NDArray[np.float64]
History = list[tuple[str, float]]

_FIXED = 1e-13
_SETTLED = 1e-7
#: largest number of entries of packed outer products that are multiplied at a time
PIECE_ENTRIES = 1 << 18


class PackedCube:
    """A symmetric cube stored as a (k (k + 1) / 2, k) matrix, which halves the cost of contractions.

    Row (i, j) with i <= j holds ``T[i, j, :]``, doubled for i < j, so that a contraction of two modes is one
    matrix product with the packed outer products of the vectors.

    Parameters
    ----------
    T : ndarray of shape (k, k, k), float64
        Symmetric. Copied.
    """

    def __init__(self, T: Array) -> None:
        self.k: int = T.shape[0]
        i, j = np.triu_indices(self.k)
        self._times = np.where(i == j, 1.0, 2.0)
        self._rows = T[i, j, :] * self._times[:, None]
        # Rows (i, i), ..., (i, k - 1) begin at ``starts[i]``.
        self._starts = np.append(np.searchsorted(i, np.arange(self.k)), len(i))

    def _pairs(self, U: Array, of: slice) -> Array:
        """Return the packed outer product of each column with itself, the rows (i, j) with i in a slice."""
        starts = self._starts[of.start : of.stop + 1] - self._starts[of.start]
        pairs = np.empty((starts[-1], U.shape[1]))
        for i, (first, last) in enumerate(pairwise(starts), of.start):
            np.multiply(U[i], U[i:], out=pairs[first:last])
        return pairs

    def contract_two(self, U: Array) -> Array:
        """Return ``T(I, u, u)`` for the columns of a (k, m) matrix, as a (k, m) matrix."""

        def of_piece(piece: slice) -> Array:
            rows = self._rows[self._starts[piece.start] : self._starts[piece.stop]]
            return np.asarray(rows.T @ self._pairs(U, piece))

        size = max(1, PIECE_ENTRIES // (self.k * U.shape[1]))
        first, *rest = map_on_cores(of_piece, pieces(self.k, size))
        for each in rest:
            first += each
        return first

    def cubic_form(self, U: Array) -> Array:
        """Return ``T(u, u, u)`` for the columns of a (k, m) matrix, of shape (m,)."""
        values: Array = np.einsum("in,in->n", U, self.contract_two(U))
        return values

    def slice_norm(self, u: Array) -> float:
        """Return the Frobenius norm of ``T(I, I, u)``."""
        packed = self._rows @ u
        return float(np.sqrt(np.sum(packed * packed / self._times)))

    def norm(self) -> float:
        """Return the Frobenius norm of the tensor."""
        return float(np.sqrt(np.einsum("pk,pk,p->", self._rows, self._rows, 1.0 / self._times)))

    def flattened_norm(self) -> float:
        """Return the spectral norm of the (k, k * k) flattening."""
        gram = (self._rows / self._times[:, None]).T @ self._rows
        return float(np.sqrt(max(0.0, np.linalg.eigvalsh(gram)[-1])))

    def deflate(self, eigenvalue: float, u: Array) -> None:
        """Subtract ``eigenvalue * u (x) u (x) u`` in place."""
        self._rows -= (eigenvalue * self._times * self._pairs(u[:, None], slice(0, self.k))[:, 0])[
            :, None
        ] * u


def _unit_columns(U: Array, fallback: Array) -> Array:
    """Normalise the columns; a zero column is replaced by the one in ``fallback``."""
    norms = np.linalg.norm(U, axis=0)
    dead = norms == 0.0
    normalised: Array = np.where(dead, fallback, U / np.where(dead, 1.0, norms))
    return normalised


def iterate(cube: PackedCube, U: Array, n_iter: int, tol: float, shift: float = 0.0) -> Array:
    """Apply power updates ``u <- T(I, u, u) + shift u`` to all columns at once, except those that have converged.

    Parameters
    ----------
    cube : PackedCube
    U : ndarray of shape (k, m), float64
        Unit columns.
    n_iter : int
        Maximum number of updates; with a noisy tensor, columns may never converge.
    tol : float
        A column that changes by at most this has converged.
    shift : float, default=0.0
        With twice the spectral norm of the flattening, no update lowers ``T(u, u, u)`` (Kolda and Mayo, "Shifted
        power method for computing tensor eigenpairs", SIAM J. Matrix Anal. Appl. 32, 2011).

    Returns
    -------
    ndarray of shape (k, m), float64
        Unit columns.
    """
    U = U.copy()
    active = np.arange(U.shape[1])
    for _ in range(n_iter):
        if active.size == 0:
            break
        before = U[:, active]
        after = _unit_columns(cube.contract_two(before) + shift * before, before)
        U[:, active] = after
        active = active[np.linalg.norm(after - before, axis=0) > tol]
    return U


def nearest_starts(cube: PackedCube, starts: Array | None, n: int) -> Array:
    """Return at most n of some unit columns, (k, n): those of largest ``T(u, u, u)``, in descending order."""
    if starts is None or not starts.size:
        return np.empty((cube.k, 0))
    order = np.argsort(-cube.cubic_form(starts), kind="stable")
    return starts[:, order[:n]]


def power_deflation(
    T: Array,
    rng: np.random.Generator,
    *,
    n_restarts: int | None = None,
    n_iter: int = 25,
    starts: Array | None = None,
    shifted: bool = False,
) -> tuple[Array, Array, History, bool]:
    """Estimate the components one by one, each from the best of many initial vectors (Algorithm 1).

    Parameters
    ----------
    T : ndarray of shape (k, k, k), float64
        Symmetric.
    rng : numpy.random.Generator
    n_restarts : int, optional
        Number of initial vectors per component, all updated in one matrix product; ``max(10, 2 k)`` by default.
    n_iter : int, default=25
        Number of updates of every vector, and of further updates of the best one.
    starts : ndarray of shape (k, m), float64, optional
        Unit columns that may be near components (section 5.2). Those of the largest ``T(u, u, u)`` are at most
        half of the initial vectors of a component, rounded up; the others are random, as all are by default.
    shifted : bool, default=False
        Whether updates are shifted so that none lowers ``T(u, u, u)``, as plain ones may with a noisy tensor.
        They converge linearly, and plain ones quadratically.

    Returns
    -------
    eigenvalues : ndarray of shape (k,)
        Eigenvalues in the order of estimation.
    eigenvectors : ndarray of shape (k, k)
        Eigenvectors as columns.
    history : list of (str, float)
        The eigenvalue estimated before each deflation.
    converged : bool
        Whether every eigenvector is a fixed point of the update.
    """
    k = T.shape[0]
    n_starts = max(10, 2 * k) if n_restarts is None else n_restarts
    cube = PackedCube(T)
    found: list[float] = []
    vectors = np.empty((k, k))
    converged = True
    for component in range(k):
        shift = 2.0 * cube.flattened_norm() if shifted else 0.0
        given = nearest_starts(cube, starts, (n_starts + 1) // 2)
        drawn = rng.standard_normal((k, n_starts - given.shape[1]))
        drawn /= np.linalg.norm(drawn, axis=0)
        ends = iterate(cube, np.hstack([given, drawn]), n_iter, _SETTLED, shift)
        winner = int(cube.cubic_form(ends).argmax())
        eigenvalue, u, fixed = climb(cube, ends[:, winner], n_iter, shift)
        converged &= fixed
        vectors[:, component] = u
        found.append(eigenvalue)
        cube.deflate(eigenvalue, u)
    return np.array(found), vectors, [("deflation", value) for value in found], converged


def power_stopping(
    T: Array,
    rng: np.random.Generator,
    *,
    max_restarts: int = 100,
    n_iter: int = 25,
    starts: Array | None = None,
    shifted: bool = False,
) -> tuple[Array, Array, History, bool]:
    """Estimate the components one by one, each from the first vector that meets a condition (Algorithm 2).

    An initial vector, after its updates, is accepted if
    ``T(u, u, u) >= max(||T||_F / (2 sqrt(r)), ||T(I, I, u)||_F / 1.05)`` with r the number of remaining
    components. The second bound rejects every mixture of two or more components, for which the ratio is at
    most 1 / sqrt(2).

    Parameters
    ----------
    T : ndarray of shape (k, k, k), float64
        Symmetric.
    rng : numpy.random.Generator
    max_restarts : int, default=100
        Maximum number of initial vectors per component, after which the best one is used.
    n_iter : int, default=25
        Number of updates of every vector, and of further updates of the accepted one.
    starts : ndarray of shape (k, m), float64, optional
        As in `power_deflation`: at most half of ``max_restarts``, before random vectors.
    shifted : bool, default=False
        As in `power_deflation`.

    Returns
    -------
    eigenvalues, eigenvectors, converged
        As in `power_deflation`; ``converged`` also requires that every component was accepted.
    history : list of (str, float)
        The number of initial vectors used for each component.
    """
    k = T.shape[0]
    cube = PackedCube(T)
    found: list[float] = []
    vectors = np.empty((k, k))
    history: History = []
    converged = True
    for component in range(k):
        # Section 5.2 prints sqrt(2 r) in the bound; Algorithm 2 and Lemma C.1 with beta = 1/2 give 2 sqrt(r).
        bound = cube.norm() / (2.0 * math.sqrt(k - component))
        shift = 2.0 * cube.flattened_norm() if shifted else 0.0
        best, best_value, accepted = np.zeros(k), -math.inf, False
        given = nearest_starts(cube, starts, (max_restarts + 1) // 2)
        n_starts = 0
        while n_starts < max_restarts and not accepted:
            n_starts += 1
            fits = n_starts <= given.shape[1]
            start = given[:, [n_starts - 1]] if fits else rng.standard_normal((k, 1))
            end = iterate(cube, start / np.linalg.norm(start), n_iter, _SETTLED, shift)
            value = float(cube.cubic_form(end)[0])
            accepted = value > 0 and value >= max(bound, cube.slice_norm(end[:, 0]) / 1.05)
            if accepted or value > best_value:
                best, best_value = end[:, 0], value
        eigenvalue, u, fixed = climb(cube, best, n_iter, shift)
        converged &= fixed and accepted
        vectors[:, component] = u
        found.append(eigenvalue)
        history.append(("starts", float(n_starts)))
        cube.deflate(eigenvalue, u)
    return np.array(found), vectors, history, converged


def climb(cube: PackedCube, u: Array, n_iter: int, shift: float = 0.0) -> tuple[float, Array, bool]:
    """Update a unit vector at most ``n_iter`` times; return eigenvalue, vector and whether it is a fixed point."""
    u = iterate(cube, u[:, None], n_iter, _FIXED, shift)
    value = float(cube.cubic_form(u)[0])
    moved = float(np.linalg.norm(_unit_columns(cube.contract_two(u), u) - u))
    return value, u[:, 0], moved <= 1e-9
