"""Sparse mixing matrices with known truth: random ones with a gap in every row, and those of trees.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), section 6 and the examples of section 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distmom.errors import UsageError


def bernoulli_gaussian(
    n: int, k: int, rng: np.random.Generator, *, density: float = 0.3, gap: float = 0.0
) -> np.ndarray:
    """Draw a matrix, (n, k), of independent normal entries, each of which is kept with a given probability.

    In every row the entry of largest magnitude is enlarged, where necessary, such that the next one is at most
    ``1 - gap`` of it (section 6).

    Parameters
    ----------
    n, k : int
    rng : Generator
    density : float, default 0.3
    gap : float, default 0
        In [0, 1).

    Raises
    ------
    UsageError
        If the density is not in (0, 1] or the gap not in [0, 1).
    """
    if not 0.0 < density <= 1.0:
        raise UsageError(f"density: expected a number in (0, 1], got {density}")
    if not 0.0 <= gap < 1.0:
        raise UsageError(f"gap: expected a number in [0, 1), got {gap}")
    matrix = (rng.random((n, k)) < density) * rng.standard_normal((n, k))
    if k < 2:
        return matrix
    rows = np.arange(n)
    first, second = np.argsort(np.abs(matrix), axis=1)[:, [-1, -2]].T
    least = np.abs(matrix[rows, second]) / (1.0 - gap)
    matrix[rows, first] = np.copysign(np.maximum(np.abs(matrix[rows, first]), least), matrix[rows, first])
    return matrix


def tree_loadings(n_children: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Draw the loadings, (n, k), of the children of k parents; every child has one parent.

    Equal numbers are those of a regular tree, differing ones those of the leaves of a caterpillar, whose hidden
    path is a network among the parents (section 2). Magnitudes are between 0.5 and 1.5, with either sign.

    Parameters
    ----------
    n_children : sequence of int
        Number of children of every parent, at least 1.
    rng : Generator

    Raises
    ------
    UsageError
        If a parent has no children.
    """
    numbers = np.asarray(n_children, np.int64)
    if numbers.ndim != 1 or not len(numbers) or numbers.min() < 1:
        raise UsageError("n_children: expected at least one child for every parent")
    n = int(numbers.sum())
    parents = np.repeat(np.arange(len(numbers)), numbers)
    matrix = np.zeros((n, len(numbers)))
    matrix[np.arange(n), parents] = rng.uniform(0.5, 1.5, n) * rng.choice([-1.0, 1.0], n)
    return matrix
