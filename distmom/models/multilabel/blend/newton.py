"""Newton's method with step halving, for penalised logistic regressions of many pairs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from distmom.blas import map_on_cores, pieces

#: pairs that are multiplied at a time, which fit the processor's cache
PIECE_PAIRS = 1 << 14
#: largest number of Newton steps, and the decrement at which they end
MAX_STEPS, DECREMENT = 50, 1e-6
#: size of a step below which growth of the value may be a rounding error, and the least size
SMALL, LEAST = 1e-3, 1e-16

#: a value, its gradient and its Hessian
Derivatives = tuple[float, np.ndarray, np.ndarray]


def minimise(
    of_piece: Callable[[np.ndarray, slice], Derivatives],
    n_pairs: int,
    b: np.ndarray,
    ridge: np.ndarray,
    *,
    single: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Minimise a convex function over pairs plus ``sum_j ridge_j b_j^2 / 2``.

    Parameters
    ----------
    of_piece : callable
        Returns the value, gradient and Hessian at some coefficients, added up over the pairs of a slice.
    n_pairs : int
    b : ndarray of shape (p,)
        Coefficients at which the method begins.
    ridge : ndarray of shape (p,)
        Penalties of the coefficients.
    single : bool, default False
        Whether the sums are in single precision, which do not distinguish small differences.

    Returns
    -------
    b : ndarray of shape (p,)
    hessian : ndarray of shape (p, p)
        The Hessian at b.
    """

    def derivatives(at: np.ndarray) -> Derivatives:
        sums = 0.5 * float(ridge @ at**2), ridge * at, np.diag(ridge)
        for added in map_on_cores(partial(of_piece, at), pieces(n_pairs, PIECE_PAIRS)):
            sums = sums[0] + added[0], sums[1] + added[1], sums[2] + added[2]
        return sums

    value, gradient, hessian = derivatives(b)
    for _ in range(MAX_STEPS):
        step = np.linalg.solve(hessian, gradient)
        decrement, size = float(gradient @ step), 1.0
        slack = DECREMENT * max(1.0, value) if single else 0.0
        while True:
            trial = b - size * step
            now, gradient, hessian = derivatives(trial)
            # Where nearly all probabilities are 0 or 1, the curvature is negligible, and a step overshoots by far.
            allowed = DECREMENT * max(1.0, value) if size < SMALL else slack
            if now <= value + allowed or size < LEAST:
                break
            size /= 2.0
        b, value = trial, now
        if decrement < (10.0 * slack if single else DECREMENT * max(1.0, value)):
            break
    return b, hessian
