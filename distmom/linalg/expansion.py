"""Checks of the conditions under which the sparsest vectors of a column space are the columns of a matrix.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), conditions 2 and 3 and theorem 3.2. The matrix must be known, so these checks are
for simulations and tests. N(S) denotes the rows in which some column of S is not zero.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from distmom.errors import UsageError

#: capacity of an edge that no minimum cut contains
_UNCUT = 1 << 24
#: most submatrices that `is_generic` examines
MOST_SUBMATRICES = 500_000
#: singular values and entries of null vectors up to this value count as zero
_ZERO = 1e-10


def least_excess(support: np.ndarray) -> int:
    """Return the minimum of ``|N(S)| - |S|`` over all sets S of at least two columns.

    For two columns that S must contain, it is the value of a minimum cut less the number of columns: the function
    is submodular.

    Parameters
    ----------
    support : ndarray of shape (n, k), bool

    Raises
    ------
    UsageError
        If there are fewer than two columns.
    """
    n, k = support.shape
    if k < 2:
        raise UsageError(f"support: expected at least 2 columns, got {k}")
    columns, rows = np.nonzero(support.T)
    source, sink = n + k, n + k + 1
    tails = np.concatenate([np.full(k, source), columns, k + np.arange(n)])
    heads = np.concatenate([np.arange(k), k + rows, np.full(n, sink)])
    capacities = np.concatenate([np.ones(k), np.full(len(rows), _UNCUT), np.ones(n)]).astype(np.int32)
    least: int = n
    for pair in itertools.combinations(range(k), 2):
        forced = capacities.copy()
        forced[list(pair)] = _UNCUT
        graph = csr_array((forced, (tails, heads)), shape=(n + k + 2, n + k + 2))
        least = min(least, int(maximum_flow(graph.tocsr(), source, sink).flow_value) - k)
    return least


def expands(support: np.ndarray) -> bool:
    """Return whether every set S of at least two columns has ``|N(S)| >= |S| + max_j |N(j)|`` (condition 2)."""
    return bool(least_excess(support) >= np.count_nonzero(support, axis=0).max())


def is_generic(matrix: np.ndarray) -> bool:
    """Return whether ``||A v||_0 > |N(supp v)| - |supp v|`` for all v of at least two entries (condition 3).

    A vector v without zeros on S violates it exactly where ``A v`` is zero on ``|S|`` rows of N(S), so that every
    square submatrix of ``|S|`` such rows is examined.

    Parameters
    ----------
    matrix : ndarray of shape (n, k)
        A, small.

    Raises
    ------
    UsageError
        If there are more than `MOST_SUBMATRICES` submatrices.
    """
    k = matrix.shape[1]
    sets = [list(s) for size in range(2, k + 1) for s in itertools.combinations(range(k), size)]
    reached = [np.flatnonzero((matrix[:, s] != 0.0).any(axis=1)) for s in sets]
    n_submatrices = sum(math.comb(len(rows), len(s)) for s, rows in zip(sets, reached, strict=True))
    if n_submatrices > MOST_SUBMATRICES:
        raise UsageError(f"{n_submatrices:,} submatrices are too many to check that the matrix is generic")
    for s, rows in zip(sets, reached, strict=True):
        for some in itertools.combinations(rows, len(s)):
            _, singular, right = np.linalg.svd(matrix[list(some)][:, s])
            null = right[singular <= _ZERO * max(float(singular[0]), np.finfo(float).tiny)]
            # Some null vector has no zeros exactly where no entry is zero in all of them.
            if len(null) and (np.abs(null).max(axis=0) > _ZERO).all():
                return False
    return True


def program_certificate(matrix: np.ndarray, row: int, column: int) -> float:
    """Return a number below 1 exactly where the program of a row has the given column as its only solution.

    It replaces conditions (i) and (ii) of theorem 3.2, which are sufficient but range over all vectors. By
    duality the column is optimal if some u with ``|u| <= 1`` equals the signs of the column on its support and
    makes ``A'u`` a multiple of the row; it is the only solution if u is below 1 in magnitude elsewhere.

    Parameters
    ----------
    matrix : ndarray of shape (n, k)
        A. The rows where the column is zero must have rank ``k - 1`` in the other columns.
    row : int
        The row whose entry is 1 in the program.
    column : int
        With an entry in this row that is not zero.

    Returns
    -------
    float
        The least possible maximum of ``|u|`` over the rows where the column is zero; infinite if there is no u,
        or if the rows have a smaller rank.

    Raises
    ------
    UsageError
        If the column is zero in this row.
    """
    own = matrix[row, column]
    if own == 0.0:
        raise UsageError(f"column: expected one that is not zero in row {row}, got {column}")
    inside = matrix[:, column] != 0.0
    others = np.delete(matrix, column, axis=1)
    outside = others[~inside]
    k = matrix.shape[1]
    if np.linalg.matrix_rank(outside) < k - 1:
        return math.inf
    signs = np.sign(matrix[inside, column] * own)
    factor = float(np.abs(matrix[:, column]).sum()) / abs(own)
    # In the scale of the program the sum of the column with these signs is `factor` times the entry of the row.
    target = factor * others[row] - signs @ others[inside]
    m = len(outside)
    found = linprog(
        np.append(np.zeros(m), 1.0),
        A_ub=np.block([[np.eye(m), -np.ones((m, 1))], [-np.eye(m), -np.ones((m, 1))]]),
        b_ub=np.zeros(2 * m),
        A_eq=np.hstack([outside.T, np.zeros((k - 1, 1))]),
        b_eq=target,
        bounds=[(None, None)] * m + [(0.0, None)],
        method="highs",
    )
    return float(found.fun) if found.status == 0 else math.inf
