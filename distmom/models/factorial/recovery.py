"""Independent hidden chains from the central moments of windows of three steps.

Source: Anandkumar, Foster, Hsu, Kakade, Liu, "A Spectral Algorithm for Latent Dirichlet Allocation", section 2.3
and Algorithm 4. Given the chains at the middle step, the mean of every chain at its neighbours is linear in it,
so that the steps of a window are three views of the middle one: with h_2 of mean e and variance
``s^2 = 1 - e^2``, and ``b = 1 - P(+ -> -) - P(- -> +)``,

    C = O diag(s)          E[x_2 x_3'] = C diag(b) C'          skewness of h_2 = -2 e / s

for central moments. The paper takes ``E[x | h] = O h``; here an offset may be added, as central moments do not
depend on it, and e then follows from the skewness alone. Changing the sign of a column swaps -1 and +1 of its
chain; skewness is positive here, so that +1 is the rarer state of the middle step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine.directory.run_directory import load_sums
from distmom.errors import NumericalError
from distmom.linalg.factors import ROUNDING, Slices, find_factors
from distmom.moments.sequences.factorial import ChainMoments, chain_moments
from distmom.spectral.program.run import Decomposed, unknown
from distmom.spectral.steps.three_views import advising, shared_range, symmetric_view

#: a skewness or memory below this many standard errors is not distinguished from zero
DEVIATIONS = 3.0


@dataclass(frozen=True)
class Canonical(Decomposed):
    """Chains of variance one in a basis.

    Attributes
    ----------
    columns : ndarray of shape (r, k)
        Columns of O times the standard deviations of the chains at the middle step, in the basis.
    skewness : ndarray of shape (k,)
        Skewness of the chains at the middle step.
    memory : ndarray of shape (k,)
        ``1 - P(+ -> -) - P(- -> +)`` of every chain.
    backward : ndarray of shape (k,)
        The same times the ratio of the variances of a chain at the first and at the middle step.
    means : ndarray of shape (3, r)
        Means of the steps of windows in the basis.
    squares : ndarray of shape (d,)
        Mean squares of the scaled values of the middle step.
    diagnostics : dict
    """

    columns: np.ndarray
    skewness: np.ndarray
    memory: np.ndarray
    backward: np.ndarray
    means: np.ndarray
    squares: np.ndarray
    diagnostics: dict[str, Any]

    @property
    def n_components(self) -> int:
        """Number of chains."""
        return len(self.skewness)

    @classmethod
    def upto(cls, r: int, k: int, d: int) -> Canonical:
        """Return a result of known shapes without content, for a ledger."""
        laws = (unknown(k), unknown(k), unknown(k))
        return cls(unknown(r, k), *laws, unknown(3, r), unknown(d), unknown())


def load_chains(directory: str) -> ChainMoments:
    """Finish the committed sums of a moments pass; runs on a worker."""
    return chain_moments(load_sums(directory)[0])


def recover(moments: ChainMoments, k: int, pooled: bool) -> Canonical:
    """Recover canonical chains; runs on the scheduler node.

    Parameters
    ----------
    moments : ChainMoments
    k : int
    pooled : bool
        Whether several windows of a sequence are among the moments, which then depend on each other.

    Raises
    ------
    NumericalError
        If the moments carry fewer than k chains, or chains cannot be identified.
    """
    orders = ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1))
    pairs = [moments.pair(s, t) for s, t in orders]
    if not (np.isfinite(moments.triples).all() and all(np.isfinite(pair).all() for pair in pairs)):
        raise NumericalError("the moments of windows overflow: scale the steps")
    with advising("" if pooled else "if the chains are stationary, windows='all' uses all steps"):
        return _canonical(moments, pairs, k, pooled)


def _canonical(moments: ChainMoments, pairs: list[np.ndarray], k: int, pooled: bool) -> Canonical:
    with one_blas_thread():
        U = shared_range(np.hstack(pairs), k)
        P12, _, P13, _, P23, _ = (U.T @ pair @ U for pair in pairs)
        smallest = [float(np.linalg.svd(pair, compute_uv=False)[-1]) for pair in (P12, P13, P23)]
        if not min(smallest) > ROUNDING * float(np.linalg.norm(P12, 2)):
            raise _too_few(k, f"their smallest singular value is {min(smallest):.3g}")
        try:
            view = symmetric_view(P13, P12, P23.T, moments.triples.swapaxes(1, 2), (U, U, U))
        except NumericalError as error:
            raise _too_few(k, str(error)) from error
        factors = find_factors([Slices(view.third, (np.eye(k),))], (3,))
        if factors.n_rejected:
            raise _without_skewness(factors.n_rejected)
        own = view.white.B @ factors.vectors
        inverse = np.linalg.inv(own)
        lagged = inverse @ P23 @ inverse.T
        memory, skewness = np.diag(lagged).copy(), factors.strengths[3]
        columns = U @ own
        # Variances of the least-squares chains of a step, of which one is that of the chain itself.
        spread = np.einsum("ir,rs,is->i", inverse @ U.T, moments.own, inverse @ U.T)
        backward = np.diag(inverse @ P12 @ inverse.T).copy()
    levels = _levels(moments.n_windows, spread, memory, pooled)
    _check_identified(memory, skewness, *levels)
    order = np.argsort(-np.linalg.norm(columns, axis=0), kind="stable")
    off = lagged - np.diag(memory)
    diagnostics = {
        "asymmetry": view.asymmetry,
        "off_diagonal_share": float(factors.off_diagonal_share),
        "coupling": float(np.abs(off).max() / np.abs(memory).max()),
        "skewness": [float(x) for x in skewness[order]],
        "skewness_level": [float(x) for x in levels[1][order]],
        "memory": [float(x) for x in memory[order]],
        "memory_level": [float(x) for x in levels[0][order]],
        "noise_share": [float(x) for x in 1.0 - 1.0 / np.maximum(spread, 1.0)[order]],
        "spectrum": [float(x) for x in view.white.eigenvalues],
    }
    return Canonical(
        columns[:, order], skewness[order], memory[order], backward[order], moments.means, moments.squares,
        diagnostics,
    )  # fmt: skip


def _levels(
    n_windows: float, spread: np.ndarray, memory: np.ndarray, pooled: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the memory and the skewness below which those of a chain are not distinguished from zero.

    The standard errors are those of products of independent values with the variances of the least-squares
    chains, divided by the slopes of the neighbours of a step. Windows of one sequence are as informative as
    ``(1 - |b|) / (1 + |b|)`` independent ones each.
    """
    strength = np.clip(np.abs(memory), 1e-3, 1.0)
    share = np.maximum((1.0 - strength) / (1.0 + strength), 1e-3) if pooled else 1.0
    unit = DEVIATIONS / np.sqrt(n_windows * share)
    return (
        np.maximum(spread / strength * unit, ROUNDING),
        np.maximum(spread**1.5 / strength**2 * unit, ROUNDING),
    )


def _check_identified(
    memory: np.ndarray, skewness: np.ndarray, memory_level: np.ndarray, skewness_level: np.ndarray
) -> None:
    """Refuse chains without memory, and two or more without skewness."""
    short = np.abs(memory) <= memory_level
    if short.any():
        i = int(np.argmax(short))
        raise NumericalError(
            f"{int(short.sum())} of n_components={len(memory)} chains cannot be found, as no dependence of "
            "their next state on their state is detected: expected 1 - P(+ to -) - P(- to +) above "
            f"{memory_level[i]:.3g} in magnitude, got {memory[i]:.3g}; use fewer chains, or more data"
        )
    even = int((skewness <= skewness_level).sum())
    if even > 1:
        raise _without_skewness(even)


def _too_few(k: int, reason: str) -> NumericalError:
    return NumericalError(
        f"n_components={k}: the covariances of the steps of windows carry fewer chains; chains that never change, "
        f"or whose next state does not depend on their state, cannot be found: {reason}"
    )


def _without_skewness(n: int) -> NumericalError:
    return NumericalError(
        f"{n} chains are in both states equally often at the middle step of windows, up to sampling errors: "
        "the third moment cannot separate them from each other, and at most one may have no skewness; use fewer "
        "chains, or more data"
    )


@dataclass(frozen=True)
class Laws:
    """Probabilities of the first states and of the changes of the chains.

    Attributes
    ----------
    start : ndarray of shape (k,)
        Probability of +1 at the first step of windows.
    fall, rise : ndarray of shape (k,)
        Probabilities of a change from +1 to -1, and from -1 to +1.
    clipped : float
        Largest change of a probability that was outside [0, 1].
    drift : ndarray of shape (k,)
        Change of the mean of every chain from the first step of windows to the last.
    """

    start: np.ndarray
    fall: np.ndarray
    rise: np.ndarray
    clipped: float
    drift: np.ndarray


def middle_means(skewness: np.ndarray) -> np.ndarray:
    """Return the means of chains with values -1 and +1, given their skewness."""
    return np.asarray(-skewness / np.sqrt(skewness**2 + 4.0))


def laws_of(means: np.ndarray, memory: np.ndarray) -> Laws:
    """Return the probabilities of chains, given their means at three steps (3, k) and their memory."""
    first, middle, last = means
    shift = last - memory * middle
    raw = np.stack([(1.0 + first) / 2.0, (1.0 - memory - shift) / 2.0, (1.0 - memory + shift) / 2.0])
    start, fall, rise = kept = np.clip(raw, 0.0, 1.0)
    return Laws(start, fall, rise, float(np.abs(raw - kept).max()), last - first)
