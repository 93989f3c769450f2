"""The sparsest vectors of a column space, by exhaustive search.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), theorem 3.1. For small matrices; `distmom.linalg.expansion.sparse` searches in
others.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from distmom.errors import NumericalError, UsageError
from distmom.linalg.expansion.sparse import EXACT_ZERO, pick_sparsest

#: largest number of subsets of rows that the exhaustive search examines
MOST_SUBSETS = 2_000_000


def exhaustive_columns(basis: np.ndarray) -> np.ndarray:
    """Return the sparsest independent vectors in the range of a basis by exhaustive search (theorem 3.1).

    A vector with the most zeros is, up to scale, the only one that is zero on some ``k - 1`` independent rows.

    Parameters
    ----------
    basis : ndarray of shape (n, k)
        Basis of an exact space: entries up to `EXACT_ZERO` of the largest count as zero.

    Returns
    -------
    ndarray of shape (n, k)
        Unit columns, sparsest first.

    Raises
    ------
    UsageError
        If the basis is no matrix with at least as many rows as columns, or there are more than `MOST_SUBSETS`
        subsets of ``k - 1`` rows.
    NumericalError
        If an entry is not finite.
    """
    if np.ndim(basis) != 2 or not 1 <= np.shape(basis)[1] <= len(basis):
        raise UsageError(
            f"basis: expected a matrix with at least as many rows as columns, got shape {np.shape(basis)}"
        )
    if not np.isfinite(basis).all():
        raise NumericalError(f"the basis of shape {basis.shape} has entries that are not finite")
    n, k = basis.shape
    n_subsets = math.comb(n, k - 1)
    if n_subsets > MOST_SUBSETS:
        raise UsageError(f"{n_subsets:,} subsets of {k - 1} of {n} rows are too many to search")
    basis = np.linalg.qr(basis)[0]
    subsets = np.array(list(itertools.combinations(range(n), k - 1)), np.int64).reshape(n_subsets, k - 1)
    found: list[np.ndarray] = []
    rest: list[np.ndarray] = []
    for start in range(0, n_subsets, 4096):
        stacked = basis[subsets[start : start + 4096]]
        _, singular, right = np.linalg.svd(stacked, full_matrices=True)
        independent = singular[:, -1] > 1e-9 * singular[:, 0] if k > 1 else np.ones(len(stacked), bool)
        vectors = basis @ right[independent, -1].T
        size = np.abs(vectors).max(axis=0)
        n_entries = (np.abs(vectors) > EXACT_ZERO * size).sum(axis=0)
        # Each of these may be found by many subsets.
        found.append(vectors[:, n_entries <= n - k])
        rest.append(vectors[:, n_entries > n - k][:, :k])
    vectors = np.hstack(found + rest)
    chosen = pick_sparsest(vectors, k, np.ones(vectors.shape[1], bool))
    return np.asarray(vectors[:, chosen] / np.linalg.norm(vectors[:, chosen], axis=0))
