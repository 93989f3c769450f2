"""Checks of the conditions under which the sparsest vectors of a column space are the columns of a matrix.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), conditions 2 and 3 and theorem 3.2; `distmom.linalg.expansion.partition` has
condition 5. The matrix must be known, so these checks are for simulations and tests. N(S) denotes the rows in
which some column of S is not zero.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from distmom.errors import UsageError

#: capacity of an edge that no minimum cut contains
_UNCUT = 1 << 24
#: largest number of submatrices that `is_generic` and `largest_ratio` examine
MOST_SUBMATRICES = 500_000
#: sets of rows whose null vectors are found at a time
_SETS = 10_000
#: singular values and entries of null vectors up to this value count as zero
_ZERO = 1e-10


def least_excess(support: np.ndarray) -> int:
    """Return the minimum of ``|N(S)| - |S|`` over all sets S of at least two columns.

    For two columns that S must contain, it is the value of a minimum cut less the number of columns: the
    function is submodular.

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


def balanced(matrix: np.ndarray) -> np.ndarray:
    """Return a matrix with rows and columns in units for which its entries are of similar magnitude.

    The mean square of the logarithms of the entries that are not zero is as small as possible, so that the result
    does not depend on the units of the rows and columns that are given. The zeros of ``A v`` and the ranks of
    submatrices are those of the matrix.

    Parameters
    ----------
    matrix : ndarray of shape (n, k)
    """
    n, k = matrix.shape
    rows, columns = np.nonzero(matrix)
    logs = np.log(np.abs(matrix[rows, columns]))
    units = np.linalg.lstsq(np.hstack([np.eye(n)[rows], np.eye(k)[columns]]), logs, rcond=None)[0]
    found = np.zeros((n, k))
    found[rows, columns] = np.sign(matrix[rows, columns]) * np.exp(logs - units[rows] - units[n + columns])
    return found


def is_generic(matrix: np.ndarray) -> bool:
    """Return whether ``||A v||_0 > |N(supp v)| - |supp v|`` for all v of at least two entries (condition 3).

    A vector v without zeros on S violates it exactly where ``A v`` is zero on ``|S|`` rows of N(S), so that
    every square submatrix of ``|S|`` such rows is examined.

    Parameters
    ----------
    matrix : ndarray of shape (n, k)
        A, small.

    Raises
    ------
    UsageError
        If there are more than `MOST_SUBMATRICES` submatrices.
    """
    matrix = balanced(matrix)
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
    if matrix[row, column] == 0.0:
        raise UsageError(f"column: expected one that is not zero in row {row}, got {column}")
    # The solver has absolute tolerances, and the units of the columns do not matter.
    sizes = np.abs(matrix).max(axis=0)
    matrix = matrix / np.where(sizes > 0.0, sizes, 1.0)
    own = matrix[row, column]
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


@dataclass(frozen=True)
class ProgramConditions:
    """The conditions of theorem 3.2, under which the program of every row has a column as its solution.

    Attributes
    ----------
    dominant : ndarray of shape (n,), int64
        Column of the largest entry, in magnitude, of each row.
    gap : ndarray of shape (n,), float64
        ``gamma_i``: one less the share of the second largest entry in the largest; 0 in a row of zeros.
    first, second : ndarray of shape (n,), float64
        Largest ratio of the right-hand to the left-hand side of conditions (i) and (ii) over all vectors, with
        ``gamma = gamma_i``. The condition holds in a row where the ratio is below 1.
    n_columns : int
    """

    dominant: np.ndarray
    gap: np.ndarray
    first: np.ndarray
    second: np.ndarray
    n_columns: int

    @property
    def rows(self) -> np.ndarray:
        """Whether the gap and both conditions hold, for each row: its program then finds its dominant column."""
        return (self.gap > 0.0) & (self.first < 1.0) & (self.second < 1.0)

    @property
    def hold(self) -> bool:
        """Whether they hold in all rows, and every column is dominant in some row."""
        return bool(self.rows.all()) and len(np.unique(self.dominant)) == self.n_columns


def program_conditions(matrix: np.ndarray) -> ProgramConditions:
    """Check the conditions of theorem 3.2, which are sufficient for the programs to find all columns.

    Condition (ii) is checked for the dominant column of a row only. The paper states it for all columns in
    the row, but its proof uses no other.

    Parameters
    ----------
    matrix : ndarray of shape (n, k)
        A, small.

    Raises
    ------
    UsageError
        If there are more than `MOST_SUBMATRICES` candidates for the vector of the largest ratio of a row.
    """
    n, k = matrix.shape
    support, sizes = matrix != 0.0, np.abs(matrix)
    dominant = sizes.argmax(axis=1)
    largest = sizes.max(axis=1)
    second_largest = np.sort(sizes, axis=1)[:, -2] if k > 1 else np.zeros(n)
    gap = np.where(largest > 0.0, 1.0 - second_largest / np.where(largest > 0.0, largest, 1.0), 0.0)
    first, second = np.zeros(n), np.zeros(n)
    for i in range(n):
        siblings = support[:, support[i]].any(axis=1)
        others = matrix[:, ~support[i]]
        first[i] = largest_ratio(others[siblings], others[~siblings])
        own = support[:, dominant[i]]
        beside = support[i] & (np.arange(k) != dominant[i])
        weight = (1.0 - gap[i]) * float(sizes[:, dominant[i]].sum())
        others = matrix[:, beside]
        right = np.vstack([others[own], weight * np.eye(others.shape[1])])
        second[i] = largest_ratio(right, others[~own])
    return ProgramConditions(dominant, gap, first, second, k)


def largest_ratio(above: np.ndarray, below: np.ndarray) -> float:
    """Return the maximum of ``|C v|_1 / |B v|_1`` over all vectors v that are not zero.

    A convex function has its maximum over the polytope ``|B v|_1 <= 1`` in a vertex, where as many
    independent rows of B as v has entries, less one, are zero.

    Parameters
    ----------
    above : ndarray of shape (m, r)
        C.
    below : ndarray of shape (n, r)
        B.

    Returns
    -------
    float
        Infinite if ``B v`` is zero for some v that is not, and 0 if v has no entries.

    Raises
    ------
    UsageError
        If there are more than `MOST_SUBMATRICES` sets of rows of B to examine.
    """
    r = below.shape[1]
    if r == 0:
        return 0.0
    lengths = np.linalg.norm(below, axis=1)
    rows = below[lengths > 0.0] / lengths[lengths > 0.0, None]
    if len(rows) < r or np.linalg.matrix_rank(rows) < r:
        return math.inf
    if r == 1:
        return float(np.abs(above).sum() / np.abs(below).sum())
    n_sets = math.comb(len(rows), r - 1)
    if n_sets > MOST_SUBMATRICES:
        raise UsageError(f"{n_sets:,} sets of rows are too many to find the largest ratio")
    chosen = np.array(list(itertools.combinations(range(len(rows)), r - 1)))
    largest = 0.0
    for sets in np.array_split(chosen, -(-n_sets // _SETS)):
        _, singular, right = np.linalg.svd(rows[sets])
        vertices = right[singular[:, -1] > _ZERO, -1].T
        ratios = np.abs(above @ vertices).sum(axis=0) / np.abs(below @ vertices).sum(axis=0)
        largest = max(largest, float(ratios.max(initial=0.0)))
    return largest
