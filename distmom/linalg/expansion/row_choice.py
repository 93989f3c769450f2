"""Choice of the rows of a tall basis that linear programs use: in their norm, and as constraints."""

from __future__ import annotations

import numpy as np
from scipy.linalg import qr

#: iterations for Lewis weights
N_LEWIS = 20


def lewis_weights(basis: np.ndarray) -> np.ndarray:
    """Return the l1 Lewis weights of the rows of a basis, (n,): how much ``||U w||_1`` depends on each.

    Cohen and Peng, "Lp row sampling by Lewis weights" (2015). They sum to the rank; rows of zeros have weight 0.
    """
    weights = np.linalg.norm(basis, axis=1)
    some = weights > 0.0
    rows, found = basis[some], weights[some]
    for _ in range(N_LEWIS):
        inverse = np.linalg.pinv(rows.T @ (rows / found[:, None]))
        found = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", rows, inverse, rows), np.finfo(float).tiny))
    weights[some] = found
    return np.asarray(weights)


def program_rows(basis: np.ndarray, n_rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Choose rows for the norm of the programs, at random by their Lewis weights, without replacement.

    Returns
    -------
    rows : ndarray of shape (m,), int
        Ascending; all rows if there are at most ``n_rows``.
    weights : ndarray of shape (m,)
        Factors of the rows for which the expected norm is about that of all rows.
    """
    if len(basis) <= n_rows:
        return np.arange(len(basis)), np.ones(len(basis))
    lewis = lewis_weights(basis)
    chances = np.minimum(lewis * n_rows / lewis.sum(), 1.0)
    n_rows = min(n_rows, int((chances > 0.0).sum()))
    rows = np.sort(rng.choice(len(basis), n_rows, replace=False, p=chances / chances.sum()))
    return rows, 1.0 / chances[rows]


def constraint_rows(basis: np.ndarray, n_rows: int) -> np.ndarray:
    """Choose rows as constraints: large ones in many directions, by rounds of a pivoted QR decomposition.

    Returns
    -------
    ndarray of int
        All rows if there are at most ``n_rows``.
    """
    n, k = basis.shape
    if n <= n_rows:
        return np.arange(n)
    rest = np.arange(n)
    chosen: list[int] = []
    while len(chosen) < n_rows:
        pivots = qr(basis[rest].T, mode="r", pivoting=True)[1][:k]
        chosen += [int(i) for i in rest[pivots]]
        rest = np.delete(rest, pivots)
    return np.array(chosen[:n_rows])
