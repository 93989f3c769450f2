"""Sparse columns of a matrix by linear programs in the complement of the columns found before.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), appendix G: TWMLearn(proj), the variant of the experiments. It is ER-SpUD(proj) of
Spielman, Wang, Wright, "Exact Recovery of Sparsely-Used Dictionaries" (2012). `distmom.linalg.expansion.sparse`
solves every program once and chooses among all solutions; here every round solves them again, so that no column is
found twice.
"""

from __future__ import annotations

import numpy as np

from distmom.errors import NumericalError
from distmom.linalg.expansion.row_choice import constraint_rows
from distmom.linalg.expansion.sparse import EXACT_MARGIN, EXACT_ZERO, pick_sparsest, sparse_program

#: norm of the projection of a row, relative to the row, up to which it is in the span of the columns found before
_IN_SPAN = 1e-9


def projected_columns(basis: np.ndarray, *, n_constraints: int | None = None) -> np.ndarray:
    """Return as many sparse vectors of the range of a basis as it has dimensions, by projections (appendix G).

    Round i minimises ``||U w||_1`` subject to ``U_j P w = 1`` for every row j, with P the projection on the
    complement of ``w_1, ..., w_(i-1)``, and keeps the sparsest ``U w`` of all rows. Rows whose solution is a
    column that was found before give another one in this way; a wrong vector stays, however, and misleads later
    rounds.

    Parameters
    ----------
    basis : ndarray of shape (n, k)
        U, with orthonormal columns.
    n_constraints : int, optional
        Largest number of rows whose entry is fixed, at least k; the paper takes all, which is the default. The
        number of programs is k times this.

    Returns
    -------
    ndarray of shape (n, k)
        Unit columns in the order in which they were found. The zeros of a sampled column are those of a vertex
        of its program, ``k - 1``; `distmom.linalg.expansion.sparse.polished` finds the others.

    Raises
    ------
    NumericalError
        If no program of a round has a solution.
    """
    n, k = basis.shape
    rows = basis[constraint_rows(basis, n if n_constraints is None else n_constraints)]
    sizes = np.linalg.norm(rows, axis=1)
    coefficients = np.zeros((k, 0))
    for _ in range(k):
        span = np.linalg.qr(coefficients)[0]
        projected = rows - (rows @ span) @ span.T
        feasible = np.linalg.norm(projected, axis=1) > _IN_SPAN * sizes
        solutions = [sparse_program(basis, row) for row in projected[feasible]]
        candidates = [w / np.linalg.norm(w) for w in solutions if w is not None]
        if not candidates:
            raise NumericalError(
                f"{coefficients.shape[1]} of {k} columns were found: no linear program has another solution"
            )
        vectors = basis @ np.array(candidates).T
        n_zeros = (np.abs(vectors) < EXACT_ZERO * np.abs(vectors).max(axis=0)).sum(axis=0)
        best = pick_sparsest(vectors, 1, n_zeros >= k - 1 + EXACT_MARGIN)[0]
        coefficients = np.column_stack([coefficients, candidates[best]])
    # The basis is orthonormal, so the columns have unit norm.
    return np.asarray(basis @ coefficients)
