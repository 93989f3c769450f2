"""LEML with the squared loss: scores ``X W H'`` of low rank, by alternating minimisation, for comparison.

Source: Yu, Jain, Kar, Dhillon, "Large-scale Multi-label Learning with Missing Labels" (ICML 2014), for labels that
are all observed. The objective is

    J(W, H) = 1/2 ||Y - X W H'||^2 + lambda/2 (||W||^2 + ||H||^2).

For a given H it is quadratic in W, and conjugate gradients minimise it with products by sparse X alone; for a
given W every row of H is a least squares problem with the same matrix of size rank x rank. With full rank its
minimum is that of ``1/2 ||Y - X Z||^2 + lambda ||Z||_*`` in ``Z = W H'``, with the trace norm of Z.

It requires NumPy and SciPy, but not distmom: `run_peer` runs it in a process of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class Factors:
    """The factors of LEML.

    Attributes
    ----------
    W : ndarray of shape (d, rank)
    H : ndarray of shape (L, rank)
    objectives : list of float
        J of the initial factors, and after each half of every round.
    """

    W: np.ndarray
    H: np.ndarray
    objectives: list[float]

    def scores(self, X: csr_matrix) -> np.ndarray:
        """Return the scores of all labels, (n, L)."""
        return np.asarray((X @ self.W) @ self.H.T)


def objective(X: csr_matrix, Y: csr_matrix, W: np.ndarray, H: np.ndarray, penalty: float) -> float:
    """Return J(W, H) without forming ``X W H'``."""
    mapped = X @ W
    fitted = float(np.sum((mapped.T @ mapped) * (H.T @ H)))
    along = float(np.sum((Y.T @ mapped) * H))
    size = float(np.sum(np.asarray(Y.data, np.float64) ** 2))
    return 0.5 * (size - 2.0 * along + fitted) + 0.5 * penalty * float(np.sum(W**2) + np.sum(H**2))


def gradients(
    X: csr_matrix, Y: csr_matrix, W: np.ndarray, H: np.ndarray, penalty: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients of J by W and by H."""
    mapped = X @ W
    return (
        X.T @ (mapped @ (H.T @ H) - Y @ H) + penalty * W,
        H @ (mapped.T @ mapped) - Y.T @ mapped + penalty * H,
    )


def best_inputs(
    X: csr_matrix,
    Y: csr_matrix,
    W: np.ndarray,
    H: np.ndarray,
    penalty: float,
    *,
    n_steps: int,
    tolerance: float,
) -> np.ndarray:
    """Return W that minimises J for a given H, by conjugate gradients from a given W.

    They end after ``n_steps`` steps, or where the norm of the gradient is at most ``tolerance`` times that at
    W = 0.
    """
    gram, right = H.T @ H, X.T @ (Y @ H)

    def curvature(direction: np.ndarray) -> np.ndarray:
        return np.asarray(X.T @ ((X @ direction) @ gram) + penalty * direction)

    rest = right - curvature(W)
    direction, square = rest, float(np.sum(rest**2))
    least = (tolerance * float(np.linalg.norm(right))) ** 2
    for _ in range(n_steps):
        if square <= least:
            break
        product = curvature(direction)
        step = square / float(np.sum(direction * product))
        W = W + step * direction
        rest = rest - step * product
        square, before = float(np.sum(rest**2)), square
        direction = rest + square / before * direction
    return W


def best_outputs(X: csr_matrix, Y: csr_matrix, W: np.ndarray, penalty: float) -> np.ndarray:
    """Return H that minimises J for a given W."""
    mapped = X @ W
    gram = mapped.T @ mapped + penalty * np.eye(W.shape[1])
    return np.asarray(np.linalg.solve(gram, (Y.T @ mapped).T).T)


def fit_leml(
    X: csr_matrix,
    Y: csr_matrix,
    rank: int,
    penalty: float,
    *,
    n_rounds: int = 20,
    n_steps: int = 20,
    tolerance: float = 1e-2,
    least_decrease: float = 1e-4,
    seed: int = 0,
) -> Factors:
    """Minimise J alternately over W and H, from random W.

    Parameters
    ----------
    X : csr_matrix of shape (n, d)
    Y : csr_matrix of shape (n, L)
    rank : int
    penalty : float
        lambda, positive.
    n_rounds, n_steps : int, default 20
        Largest numbers of rounds, and of steps of conjugate gradients in a round.
    tolerance : float, default 0.01
        Of conjugate gradients (see `best_inputs`).
    least_decrease : float, default 1e-4
        The rounds end where one decreases J by less than this share.
    seed : int, default 0
    """
    X, Y = X.astype(np.float64), Y.astype(np.float64)
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((X.shape[1], rank)) / np.sqrt(X.shape[1])
    H = np.zeros((Y.shape[1], rank))
    objectives = [objective(X, Y, W, H, penalty)]
    for _ in range(n_rounds):
        H = best_outputs(X, Y, W, penalty)
        objectives.append(objective(X, Y, W, H, penalty))
        W = best_inputs(X, Y, W, H, penalty, n_steps=n_steps, tolerance=tolerance)
        before = objectives[-3] if len(objectives) > 2 else np.inf
        objectives.append(objective(X, Y, W, H, penalty))
        if before - objectives[-1] < least_decrease * objectives[-1]:
            break
    return Factors(W, H, objectives)
