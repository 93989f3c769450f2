"""The result of a decomposition: components in order, and the quality of their fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distmom.linalg.tensors.power import History

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Decomposition:
    """The components of a symmetric tensor and the quality of their fit.

    Components are in order of decreasing weight ``eigenvalue ** -2``, that is, of increasing eigenvalue; ties
    keep the order of the method.

    Attributes
    ----------
    eigenvalues : ndarray of shape (k,), float64
        Non-negative: the sign of each vector is chosen so that ``T(v, v, v) >= 0``.
    eigenvectors : ndarray of shape (k, k), float64
        Unit columns, orthonormal up to rounding except for "power" and "power-stop", where noise and deflation
        leave them only approximately orthogonal.
    residual : float
        ``||T - sum_i lambda_i v_i (x) v_i (x) v_i||_F / ||T||_F``.
    off_diagonal_share : float
        Share of the energy of ``T(V, V, V)`` that is off its diagonal; 0 for an exact tensor.
    history : tuple of (str, float)
        The steps of the method: ("sweep", off-diagonal share of the slices), ("polar", residual),
        ("deflation", eigenvalue), ("starts", number of starts) or ("restart", residual).
    n_iter : int
        Number of steps in the history.
    converged : bool
        Whether the iterations met their convergence criterion.
    method : str
    diagnostics : dict of str to float
        "weight_sum", the sum of ``lambda ** -2`` (1 for a mixture); "max_inner", the largest
        ``|v_i . v_j|`` of a pair; "n_below_one", the number of eigenvalues below 1 (weights above 1);
        "n_flipped", the number of vectors whose sign was reversed; "smallest" and "largest", the extreme
        eigenvalues.
    """

    eigenvalues: Array
    eigenvectors: Array
    residual: float
    off_diagonal_share: float
    history: tuple[tuple[str, float], ...]
    n_iter: int
    converged: bool
    method: str
    diagnostics: dict[str, float]


@dataclass(frozen=True)
class Found:
    """Result of a method: vectors as columns, eigenvalues if the method computes them, and the history."""

    vectors: Array
    values: Array | None
    history: History
    converged: bool


def ordered(values: Array, V: Array) -> tuple[Array, Array, int]:
    """Make eigenvalues non-negative by flipping vectors, sort them, and return the number of flips too."""
    flip = values < 0.0
    V = np.where(flip, -V, V)
    order = np.argsort(np.abs(values), kind="stable")
    return np.abs(values)[order], np.ascontiguousarray(V[:, order]), int(np.count_nonzero(flip))


def described(
    found: Found, values: Array, n_flipped: int, residual: float, share: float, method: str
) -> Decomposition:
    """Build the result for components in their final order."""
    return Decomposition(
        eigenvalues=values,
        eigenvectors=found.vectors,
        residual=residual,
        off_diagonal_share=share,
        history=tuple(found.history),
        n_iter=len(found.history),
        converged=found.converged,
        method=method,
        diagnostics=measures(values, found.vectors, n_flipped),
    )


def measures(values: Array, V: Array, n_flipped: int) -> dict[str, float]:
    """Return the diagnostics of components in their final order."""
    inner = np.abs(V.T @ V - np.diag(np.einsum("ij,ij->j", V, V)))
    with np.errstate(divide="ignore", over="ignore"):
        weight_sum = float(np.sum(values**-2.0))
    return {
        "weight_sum": weight_sum,
        "max_inner": float(inner.max()),
        # A mixture of one component has eigenvalue 1, which must not be counted because of rounding.
        "n_below_one": float(np.count_nonzero(values < 1.0 - 1e-9)),
        "n_flipped": float(n_flipped),
        "smallest": float(values[0]),
        "largest": float(values[-1]),
    }
