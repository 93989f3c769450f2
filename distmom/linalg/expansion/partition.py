"""Partitions of the rows of a matrix into parts of full rank.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), condition 5: the diagonal in the sum of a diagonal and a matrix of low rank is
identified if the rows of the factor have a partition into three parts of full column rank. The paper draws
partitions at random (lemma 5.3). The partition algorithm for matroids (Edmonds 1965) decides whether there is one:
parts are independent sets of rows, and a row that fits no part enters one by a shortest chain of exchanges.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from distmom.errors import UsageError
from distmom.linalg.expansion.conditions import balanced

#: residuals and coefficients up to this value, for rows of length one, count as zero
_ZERO = 1e-10


def rank_partition(matrix: np.ndarray, n_parts: int = 3) -> list[np.ndarray] | None:
    """Return a partition of the rows into parts that all have full column rank, if there is one (condition 5).

    Parameters
    ----------
    matrix : ndarray of shape (n, k)
        Rows count as dependent up to rounding.
    n_parts : int, default 3

    Returns
    -------
    list of ndarray of int, or None
        Row numbers of each part, ascending; every row is in one part. None if no partition has this property.

    Raises
    ------
    UsageError
        If ``n_parts`` is below 1.
    """
    if n_parts < 1:
        raise UsageError(f"n_parts: expected at least 1, got {n_parts}")
    n, k = matrix.shape
    matrix = balanced(matrix)
    lengths = np.linalg.norm(matrix, axis=1)
    rows = matrix / np.where(lengths > 0.0, lengths, 1.0)[:, None]
    parts: list[list[int]] = [[] for _ in range(n_parts)]
    left = [row for row in range(n) if lengths[row] == 0.0 or not _insert(rows, parts, row)]
    if any(len(part) < k for part in parts):
        return None
    for i, row in enumerate(left):
        parts[i % n_parts].append(row)
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts]


def _insert(rows: np.ndarray, parts: list[list[int]], row: int) -> bool:
    """Add a row to one of the independent parts, with exchanges if needed; return whether it fits."""
    # For each row that was reached: the row that would replace it, and the part in which it is.
    replaced_by: dict[int, tuple[int, int]] = {row: (-1, -1)}
    queue = deque([row])
    while queue:
        entering = queue.popleft()
        for i, part in enumerate(parts):
            if entering in part:
                continue
            circuit = _circuit(rows, part, entering)
            if circuit is None:
                _exchange(parts, replaced_by, entering, i)
                return True
            for leaving in circuit:
                if leaving not in replaced_by:
                    replaced_by[leaving] = (entering, i)
                    queue.append(leaving)
    return False


def _circuit(rows: np.ndarray, part: list[int], row: int) -> list[int] | None:
    """Return the rows of an independent part of which another row is a combination; None if it is independent."""
    coefficients = np.linalg.lstsq(rows[part].T, rows[row], rcond=None)[0]
    if float(np.linalg.norm(rows[row] - coefficients @ rows[part])) > _ZERO:
        return None
    return [each for each, c in zip(part, coefficients, strict=True) if abs(c) > _ZERO]


def _exchange(parts: list[list[int]], replaced_by: dict[int, tuple[int, int]], row: int, target: int) -> None:
    """Put a row into a part; the place that it leaves goes to the row that reached it, and so on."""
    while row >= 0:
        successor, source = replaced_by[row]
        if source >= 0:
            parts[source].remove(row)
        parts[target].append(row)
        row, target = successor, source
