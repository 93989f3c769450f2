"""Hidden Markov models from the moments of windows of three steps.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 3.3.3 and theorem 3.6, with the middle step as the view that is recovered: ``(P_23 P_13^+) y_1`` and
``(P_21 P_31^+) y_3``, where ``P_st = E[y_s y_t']``, have its conditional means. With O the conditional means
of the middle step and w the distribution of its state, ``E[y_1 y_2']`` and ``E[y_2 y_3']`` are ``O J O'``, where J
is the joint distribution of two consecutive states. Transition matrices here have rows that sum to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine.directory.run_directory import load_sums
from distmom.errors import NumericalError
from distmom.linalg.simplex import simplex_rows
from distmom.moments.sequences.moments import WindowMoments, window_moments
from distmom.spectral.program.run import Decomposed, unknown
from distmom.spectral.steps.three_views import advising, decompose_views, mapped, shared_range

#: estimates of the transition matrix
ROUTES = ("pairs", "forward", "backward")


@dataclass(frozen=True)
class Recovered(Decomposed):
    """A hidden Markov model in a basis.

    Attributes
    ----------
    means : ndarray of shape (r, k)
        Conditional means of steps.
    weights : ndarray of shape (k,)
        Distribution of the state of a middle step.
    transitions : dict of str to ndarray of shape (k, k)
        By route; each row is a distribution.
    start : ndarray of shape (k,)
        Distribution of the first state.
    squares : ndarray of shape (d, k) or None
        Conditional means of the squares of dense steps.
    diagnostics : dict
    """

    means: np.ndarray
    weights: np.ndarray
    transitions: dict[str, np.ndarray]
    start: np.ndarray
    squares: np.ndarray | None
    diagnostics: dict[str, Any]

    @property
    def n_components(self) -> int:
        """Number of states."""
        return len(self.weights)

    @classmethod
    def upto(cls, r: int, k: int) -> Recovered:
        """Return a result of known shapes without content, for a ledger."""
        return cls(unknown(r, k), unknown(k), unknown(), unknown(k), unknown(), unknown())


def load_windows(directory: str) -> WindowMoments:
    """Finish the committed sums of a moments pass; runs on a worker."""
    return window_moments(load_sums(directory)[0])


def recover(moments: WindowMoments, k: int, method: str, remedy: str = "", least: float = 0.0) -> Recovered:
    """Recover a model; runs on the scheduler node.

    Parameters
    ----------
    moments : WindowMoments
    k : int
    method : str
        A method of `distmom.linalg.decompose`.
    remedy : str, default ""
        What else may find k states, for the message of the error.
    least : float, default 0.0
        Smallest singular value of the moment of steps two apart that is not taken for noise.

    Raises
    ------
    NumericalError
        If the moments carry fewer than k states.
    """
    with one_blas_thread():
        U = _common_range(moments, k)
        P12, P13, P23 = (U.T @ moments.pair(s, t) @ U for s, t in ((0, 1), (0, 2), (1, 2)))
        smallest = float(np.linalg.svd(P13, compute_uv=False)[-1])
        if not smallest >= least:
            raise NumericalError(
                f"the moment of steps two apart carries fewer than n_components={k} states: expected singular "
                f"values of at least {least:.3g}, got {smallest:.3g}"
            )
        with advising(remedy):
            views = decompose_views(P13, P12, P23.T, moments.triples.swapaxes(1, 2), (U, U, U), method)
        own, raw = views.means, views.weights
        order = np.argsort(-raw, kind="stable")
        own, raw = own[:, order], raw[order]
        weights = raw / raw.sum()
        inverse = np.linalg.pinv(own)
        transitions = {
            # J of both pairs of neighbours
            "pairs": _rows_to_laws(inverse @ (P12 + P23) @ inverse.T),
            # O T' = P_31 P_21^-1 O, by the pairs two steps apart
            "forward": _rows_to_laws((inverse @ mapped(P13.T, P12.T) @ own).T),
            # and the conditional means of the first step, P_13 P_23^-1 O
            "backward": _rows_to_laws(inverse @ mapped(P13, P23) @ own * weights),
        }
        start = simplex_rows((inverse @ (U.T @ moments.first))[None])[0]
        squares = None
        if moments.squares is not None:
            # E[f(x_2) y_s'] = F (A_s diag(w))', and P_12 = A_1 diag(w) O', P_32 = A_3 diag(w) O'
            outer = np.hstack([(P12 @ inverse.T).T, (P23.T @ inverse.T).T])
            squares = np.hstack([s @ U for s in moments.squares]) @ np.linalg.pinv(outer)
    diagnostics = {
        **views.diagnostics,
        "disagreement": disagreements(transitions, weights),
    }
    return Recovered(U @ own, weights, transitions, start, squares, diagnostics)


def disagreements(transitions: dict[str, np.ndarray], weights: np.ndarray) -> dict[str, float]:
    """Return the average distance in total variation between the rows of each pair of estimates."""
    return {
        f"{a} {b}": float(np.abs(transitions[a] - transitions[b]).sum(axis=1) @ weights) / 2.0
        for a, b in combinations(ROUTES, 2)
    }


def _common_range(moments: WindowMoments, k: int) -> np.ndarray:
    """Return an orthonormal basis (r, k) of the range that all three views share.

    Its first column is the mean of the steps. Data with more than k states would otherwise leave no room for the
    mean, and the means of dense steps are divided by its part along the constant feature.
    """
    pairs = np.hstack([moments.pair(s, t) for s in range(3) for t in range(3) if s != t])
    mean = moments.means.sum(axis=0)
    length = float(np.linalg.norm(mean))
    if not (np.isfinite(pairs).all() and 0.0 < length < np.inf):
        raise NumericalError(
            f"expected finite moments of windows, and a mean step other than zero, got {length:.3g}"
        )
    first = mean[:, None] / length
    return shared_range(pairs, k, first)


def _rows_to_laws(matrix: np.ndarray) -> np.ndarray:
    """Scale the rows of a matrix to sums of one, and replace them by the nearest distributions."""
    totals = matrix.sum(axis=1, keepdims=True)
    return simplex_rows(
        np.where(totals > 0.0, matrix / np.where(totals > 0.0, totals, 1.0), 1.0 / len(matrix))
    )


def stationary_law(transition: np.ndarray) -> np.ndarray:
    """Return the stationary distribution (k,) of a transition matrix whose rows sum to one."""
    k = len(transition)
    system = np.vstack([transition.T - np.eye(k), np.ones(k)])
    law = np.linalg.lstsq(system, np.append(np.zeros(k), 1.0), rcond=None)[0]
    law = np.maximum(law, 0.0)
    return np.asarray(law / law.sum())
