"""Comparison of an estimated matrix with the true one, up to order, scale and sign of their columns.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), section 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from distmom.errors import UsageError


@dataclass(frozen=True)
class ColumnScores:
    """How near an estimated matrix is to the true one.

    Attributes
    ----------
    distance : float
        Squared distance of the true columns from the lines through the nearest estimated ones, relative to the
        squared norm of the true matrix: 0 to 1. Several columns may have the same nearest one, as in the paper.
    error : float
        Mean distance of unit columns that are matched one to one, without their signs: 0 to the root of 2.
    precision : float
        Share of the entries of the estimated support that are of the true one.
    recall : float
        Share of the entries of the true support that are of the estimated one.
    order : ndarray of shape (k,), int
        The true column that is matched with each estimated one.
    signs : ndarray of shape (k,)
        1 or -1 for each estimated column: the sign of its product with the true one.
    """

    distance: float
    error: float
    precision: float
    recall: float
    order: np.ndarray
    signs: np.ndarray


def score_columns(true: np.ndarray, found: np.ndarray, *, zero: float = 0.0) -> ColumnScores:
    """Compare the columns of an estimated matrix with those of the true one.

    Parameters
    ----------
    true, found : ndarray of shape (n, k)
    zero : float, default 0
        Entries of the estimated matrix up to this share of the largest magnitude in their column count as zero.
        The paper takes 0, with which a column of an estimate from samples has few zeros or none.

    Raises
    ------
    UsageError
        If the shapes differ, or the true matrix is zero.
    """
    if true.ndim != 2 or true.shape != found.shape:
        raise UsageError(f"found: expected shape {true.shape}, got {found.shape}")
    if not true.any():
        raise UsageError("true: expected a matrix that is not zero")
    unit, cosines = _unit(found), _unit(true).T @ _unit(found)
    distance = float(np.sum(np.sum(true**2, axis=0) * (1.0 - (cosines**2).max(axis=1)))) / np.sum(true**2)
    order, columns = linear_sum_assignment(-np.abs(cosines))
    order = order[np.argsort(columns)]
    signs = np.where(cosines[order, np.arange(len(order))] < 0.0, -1.0, 1.0)
    error = float(np.linalg.norm(_unit(true)[:, order] - unit * signs, axis=0).mean())
    estimated = np.abs(found) > zero * np.abs(found).max(axis=0)
    actual = true[:, order] != 0.0
    common = int((estimated & actual).sum())
    return ColumnScores(
        max(float(distance), 0.0),
        error,
        common / max(1, int(estimated.sum())),
        common / int(actual.sum()),
        order,
        signs,
    )


def _unit(matrix: np.ndarray) -> np.ndarray:
    """Return a matrix with columns of unit norm; columns of zeros remain."""
    norms = np.linalg.norm(matrix, axis=0)
    return np.asarray(matrix / np.where(norms > 0.0, norms, 1.0))
