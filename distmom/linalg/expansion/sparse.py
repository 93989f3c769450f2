"""Sparse columns of a matrix from its column space alone.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350). A second moment ``A E[hh'] A'`` gives the column space of A and no more. If the
supports of the columns expand and the entries are generic, the columns are the sparsest vectors in that space
(theorem 3.1), and if they overlap little, linear programs find them (theorem 3.2, TWMLearn): for a row i,

    minimise ||U w||_1  subject to  U_i w = 1.

On samples, and where supports overlap more, a program often returns another vertex. `sparse_columns` therefore
starts reweighted least squares (Chartrand and Yin, "Iteratively reweighted algorithms for compressive sensing",
2008), which need no linear program, from the solutions and from the null vectors of random rows, picks the
sparsest independent vectors of all (in an exact space, including these null vectors), and solves for each by
least squares on the rows where it is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import linprog

from distmom.errors import NumericalError, UsageError
from distmom.linalg.checks import check_whole, generator
from distmom.linalg.expansion.row_choice import constraint_rows, program_rows

#: share of the largest magnitude below which an entry of a sampled vector counts as zero
ZERO = 0.02
#: steps of the polish, after each of which entries below this multiple of the noise of the zeros count as zero
N_POLISH, NOISE_FACTOR = 5, 4.0
#: the same up to rounding. More such zeros than k - 1, which every vertex of a program has, show that the space is
#: exact; this many more are required
EXACT_ZERO, EXACT_MARGIN = 1e-8, 2
#: values of epsilon of reweighted least squares, those that follow where a space may be exact, and steps for each
SAMPLED_EPSILONS, EXACT_EPSILONS = (1.0, 0.3, 0.1, 0.03, 0.01), (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
N_REWEIGHTED = 8
#: least norm of a unit vector outside of the span of those picked before; lowered where fewer than k are found
INDEPENDENT = (0.3, 0.1, 0.03, 1e-3, 1e-6)
#: the same for exact vectors
EXACT_INDEPENDENT = 1e-6
#: cosines above which two vectors are one start, and one candidate: a column and its sum with a little of another
#: column may be close
SAME_START, SAME = 0.999, 1.0 - 1e-9


@dataclass(frozen=True)
class SparseColumns:
    """Sparse vectors ``U w`` in the range of a basis U.

    Attributes
    ----------
    coefficients : ndarray of shape (k, k)
        The w as columns, sparsest first, such that the entry of largest magnitude of every ``U w`` is 1.
    zeros : ndarray of shape (k,), int
        Rows where each vector is zero, at most 2 % of its largest entry.
    leaks : ndarray of shape (k,)
        Norm of each vector on these rows, relative to that of the vector closest in size: the square root of the
        ratio of the two smallest eigenvalues of ``U_Z' U_Z``. Near 0 for a column, and near 1 for a vector that
        the rows do not determine.
    exact : ndarray of shape (k,), bool
        Whether the zeros are zero up to rounding, as in an exact population.
    n_programs : int
        Number of linear programs solved.
    """

    coefficients: np.ndarray
    zeros: np.ndarray
    leaks: np.ndarray
    exact: np.ndarray
    n_programs: int


@dataclass(frozen=True)
class Polished:
    """A vector ``U w`` solved for on the rows where it is zero.

    Attributes
    ----------
    w : ndarray of shape (k,)
        The unit vector with the least ``||U_Z w||``; the start if there are fewer than ``k - 1`` rows Z.
    n_zeros : int
        Number of rows Z.
    leak : float
        As in `SparseColumns`.
    exact : bool
        Whether the rows Z are zero up to rounding, and too many for a vertex.
    """

    w: np.ndarray
    n_zeros: int
    leak: float
    exact: bool


def sparse_program(basis: np.ndarray, constraint: np.ndarray) -> np.ndarray | None:
    """Minimise ``||U w||_1`` subject to ``a'w = 1`` (TWMLearn, line 2).

    Solved in its dual form, which has k rows: maximise t subject to ``U'u = t a``, ``-1 <= u <= 1``.

    Parameters
    ----------
    basis : ndarray of shape (n, k)
        U; rows multiplied by positive numbers weight the terms of the norm.
    constraint : ndarray of shape (k,)
        a.

    Returns
    -------
    ndarray of shape (k,) or None
        w; None if the program has no solution, as where a is zero.
    """
    n = len(basis)
    size = float(np.linalg.norm(constraint))
    if not size > 0.0:
        return None
    found = linprog(
        np.append(np.zeros(n), -1.0),
        A_eq=np.hstack([basis.T, -constraint[:, None] / size]),
        b_eq=np.zeros(len(constraint)),
        bounds=[(-1.0, 1.0)] * n + [(None, None)],
        method="highs-ds",
    )
    if found.status != 0:
        return None
    w = np.asarray(found.eqlin.marginals)
    along = float(constraint @ w)
    return w / along if abs(along) > 1e-14 * size else None


def reweighted(basis: np.ndarray, row_weights: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Make ``U w`` sparser by least squares in which a row has the weight ``1 / ((U_i w)^2 + epsilon^2)``.

    Parameters
    ----------
    basis : ndarray of shape (n, k)
    row_weights : ndarray of shape (n,)
        Further weights of the rows (see `program_rows`).
    w : ndarray of shape (k,)
        Start.

    Returns
    -------
    ndarray of shape (k,)
        If the space is exact, the result of small epsilons, whose zeros are zero up to rounding; else that of
        `SAMPLED_EPSILONS`.
    """
    k = basis.shape[1]
    sampled = _reweighted(basis, row_weights, w, SAMPLED_EPSILONS)
    exact = _reweighted(basis, row_weights, sampled, EXACT_EPSILONS)
    return exact if _is_exact(basis @ exact, k) else sampled


def _reweighted(
    basis: np.ndarray, row_weights: np.ndarray, w: np.ndarray, epsilons: Sequence[float]
) -> np.ndarray:
    w = w / np.linalg.norm(w)
    for epsilon in epsilons:
        for _ in range(N_REWEIGHTED):
            vector = _scaled(basis @ w)
            # Fixes the largest entry: with R'R the weighted Gram matrix, w is R^-1 R^-T a up to scale. A
            # triangle keeps the digits that the Gram matrix itself loses for small epsilon.
            weights = np.sqrt(row_weights / (vector**2 + epsilon**2))
            triangle = np.linalg.qr(basis * weights[:, None], mode="r")
            diagonal = np.abs(np.diag(triangle))
            if not diagonal.min() > np.finfo(float).eps * diagonal.max():
                return w
            constraint = basis[np.abs(vector).argmax()]
            following = solve_triangular(triangle, solve_triangular(triangle, constraint, trans="T"))
            following /= np.linalg.norm(following)
            moved = min(np.abs(following - w).max(), np.abs(following + w).max())
            w = following
            if moved < 1e-3 * epsilon:
                break
    return w


def polished(basis: np.ndarray, w: np.ndarray) -> Polished:
    """Solve for the vector ``U w`` by least squares on the rows where it is zero.

    Parameters
    ----------
    basis : ndarray of shape (n, k)
    w : ndarray of shape (k,)
    """
    k = basis.shape[1]
    if k == 1:
        return Polished(np.ones(1), int((np.abs(_scaled(basis[:, 0])) < EXACT_ZERO).sum()), 0.0, True)
    zeros = np.abs(_scaled(basis @ w)) < EXACT_ZERO
    if zeros.sum() >= k - 1 + EXACT_MARGIN:
        found, leak, unique = _null_vector(basis[zeros])
        # Zeros that several columns share leave a choice of vectors, of which none need be sparse.
        if unique:
            return Polished(found, int(zeros.sum()), leak, True)
    threshold, n_zeros, leak = ZERO, 0, 1.0
    for _ in range(N_POLISH):
        zeros = np.abs(_scaled(basis @ w)) < threshold
        n_zeros = int(zeros.sum())
        if n_zeros < k - 1:
            break
        w, leak, _ = _null_vector(basis[zeros])
        if n_zeros < 2 * k:
            break
        # Small entries that are not noise would bias the vector.
        noise = 1.4826 * float(np.median(np.abs(_scaled(basis @ w)[zeros])))
        threshold = min(threshold, max(NOISE_FACTOR * noise, EXACT_ZERO))
    exact = threshold == EXACT_ZERO and n_zeros >= k - 1 + EXACT_MARGIN
    return Polished(w, n_zeros, leak, exact)


def _is_exact(vector: np.ndarray, k: int) -> bool:
    """Return whether a vector has more zeros up to rounding than one in a sampled space of k dimensions."""
    return int((np.abs(_scaled(vector)) < EXACT_ZERO).sum()) >= k - 1 + EXACT_MARGIN


def _null_vector(rows: np.ndarray) -> tuple[np.ndarray, float, bool]:
    """Return the unit w with the least ``||rows w||``, its ratio to the next, and whether it is unique."""
    m, k = rows.shape
    # The null vector of k - 1 rows is among all right vectors alone.
    singular, right = np.linalg.svd(rows, full_matrices=m < k)[1:]
    singular = np.append(singular, np.zeros(k - len(singular)))
    following = max(float(singular[-2]), np.finfo(float).tiny)
    return right[-1], float(singular[-1]) / following, following > 1e-9 * float(singular[0])


def pick_sparsest(vectors: np.ndarray, n_columns: int, exact: np.ndarray | None = None) -> np.ndarray:
    """Choose the sparsest vectors that are independent of each other, greedily (TWMLearn, line 3).

    Parameters
    ----------
    vectors : ndarray of shape (n, m)
        Candidates as columns.
    n_columns : int
        Number of vectors.
    exact : ndarray of shape (m,), bool, optional
        Candidates whose zeros are exact. They come first, with entries above `EXACT_ZERO` of the largest counted;
        for the others entries above `ZERO` count. Ties are broken by the ratio of the norms of orders one and two.
        By default none are exact.

    Returns
    -------
    ndarray of shape (n_columns,), int
        Numbers of the chosen candidates, sparsest first; fewer if the candidates span fewer dimensions.
    """
    magnitudes = np.abs(vectors) / np.abs(vectors).max(axis=0, initial=np.finfo(float).tiny)
    exact = np.zeros(vectors.shape[1], bool) if exact is None else exact
    n_entries = (magnitudes > np.where(exact, EXACT_ZERO, ZERO)).sum(axis=0)
    unit = vectors / np.linalg.norm(vectors, axis=0)
    order = np.lexsort((np.abs(unit).sum(axis=0), n_entries, ~exact))
    chosen: list[int] = []
    for least in INDEPENDENT:
        span = np.zeros((len(vectors), 0))
        chosen = []
        for i in order:
            rest = unit[:, i] - span @ (span.T @ unit[:, i])
            rest -= span @ (span.T @ rest)
            norm = float(np.linalg.norm(rest))
            if norm > (min(least, EXACT_INDEPENDENT) if exact[i] else least):
                chosen.append(int(i))
                span = np.column_stack([span, rest / norm])
                if len(chosen) == n_columns:
                    return np.array(chosen)
    return np.array(chosen, dtype=np.int64)


def sparse_columns(
    basis: np.ndarray,
    *,
    n_constraints: int,
    n_program_rows: int,
    n_starts: int,
    candidates: np.ndarray | None = None,
    seed: int = 0,
) -> SparseColumns:
    """Find as many sparse vectors as the range of a basis has dimensions.

    Parameters
    ----------
    basis : ndarray of shape (n, k)
        U, with orthonormal columns.
    n_constraints : int
        Largest number of rows whose entry is fixed in a program; the paper solves one for every row.
    n_program_rows : int
        Largest number of rows in the norm of a program (see `program_rows`).
    n_starts : int
        Number of starts of reweighted least squares at the null vector of ``k - 1`` random rows.
    candidates : ndarray of shape (n, m), optional
        Further vectors in the range of U to choose from, such as `projected_columns`.
    seed : int, default 0

    Returns
    -------
    SparseColumns

    Raises
    ------
    UsageError
        If the basis or the candidates are no matrices of n rows, there is no column, a number is out of range, or
        the seed is none.
    NumericalError
        If fewer than k rows are not zero, or the vectors that were found span fewer than k dimensions.
    """
    if np.ndim(basis) != 2 or not np.shape(basis)[1]:
        raise UsageError(f"basis: expected a matrix with at least one column, got shape {np.shape(basis)}")
    n, k = basis.shape
    if candidates is not None and (np.ndim(candidates) != 2 or len(candidates) != n):
        raise UsageError(f"candidates: expected columns of {n} numbers, got shape {np.shape(candidates)}")
    # The norm of fewer rows than dimensions is zero for some vectors.
    check_whole("n_program_rows", n_program_rows, k)
    check_whole("n_constraints", n_constraints, 1)
    check_whole("n_starts", n_starts, 0)
    # Rows of zeros would count among the zeros of every vector, which show whether the space is exact.
    sizes = np.linalg.norm(basis, axis=1)
    is_used = sizes > EXACT_ZERO * sizes.max()
    basis = basis[is_used]
    if len(basis) < k:
        raise NumericalError(f"{len(basis)} rows of the basis are not zero, expected at least {k}")
    rng = generator(seed, "seed")
    rows, weights = program_rows(basis, n_program_rows, rng)
    part = basis[rows]
    constraints = constraint_rows(basis, n_constraints)
    plain = [sparse_program(part * weights[:, None], basis[i]) for i in constraints]
    found = [w for w in plain if w is not None]
    if candidates is not None:
        found += list((basis.T @ candidates[is_used]).T)
    starts = distinct(part, found, SAME_START)
    for _ in range(n_starts if k > 1 else 0):
        some = rng.choice(len(part), min(len(part), k - 1), replace=False)
        starts.append(np.linalg.svd(part[some])[2][-1])
    # In an exact space, reweighting may lead away from a null vector that is a column.
    found += [start for start in starts if _is_exact(part @ start, k)]
    found += [reweighted(part, weights, start) for start in starts]
    ends = [polished(basis, w) for w in distinct(part, found, SAME)]
    vectors = basis @ np.array([end.w for end in ends]).reshape(-1, k).T
    chosen = pick_sparsest(vectors, k, np.array([end.exact for end in ends], bool))
    if len(chosen) < k:
        raise NumericalError(
            f"the linear programs found {len(chosen)} independent sparse vectors, expected {k}: the supports "
            "overlap too much, or the moments carry fewer"
        )
    picked = [ends[i] for i in chosen]
    largest = vectors[np.abs(vectors[:, chosen]).argmax(axis=0), chosen]
    return SparseColumns(
        np.column_stack([end.w for end in picked]) / largest,
        np.array([end.n_zeros for end in picked]) + np.count_nonzero(~is_used),
        np.array([end.leak for end in picked]),
        np.array([end.exact for end in picked]),
        len(constraints),
    )


def distinct(basis: np.ndarray, found: Sequence[np.ndarray], same: float) -> list[np.ndarray]:
    """Return coefficients whose vectors differ by more than scale: the sparsest of those that nearly agree.

    Parameters
    ----------
    basis : ndarray of shape (n, k)
        With orthonormal columns.
    found : sequence of ndarray of shape (k,)
    same : float
        Cosine above which two agree.
    """
    if not found:
        return []
    unit = np.array([w / np.linalg.norm(w) for w in found])
    order = np.argsort(np.abs(basis @ unit.T).sum(axis=0), kind="stable")
    kept: list[np.ndarray] = []
    for i in order:
        if not kept or np.abs(np.array(kept) @ unit[i]).max() < same:
            kept.append(unit[i])
    return kept


def _scaled(vector: np.ndarray) -> np.ndarray:
    """Return a vector divided by its entry of largest magnitude."""
    return np.asarray(vector / vector[np.abs(vector).argmax()])
