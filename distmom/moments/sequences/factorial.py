"""Moments of windows of three dense steps for independent hidden chains, from first or from all windows.

Source: Anandkumar, Foster, Hsu, Kakade, Liu, "A Spectral Algorithm for Latent Dirichlet Allocation", section 2.3
and Algorithm 4. Chains that are independent of each other at the first step of a sequence are so at every step,
but on average over the steps only if they are stationary. The first windows of sequences therefore serve for any
initial distribution, and all windows for stationary chains.

The passes are those of `distmom.moments.sequences.moments`, in a basis whose first column is the constant feature,
so that central moments follow from the sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.sequences.moments import WindowMomentsPass, WindowSketchPass, window_moments
from distmom.moments.sequences.windows import N_STEPS, window_weights
from distmom.moments.three_views import PAIRS, pair_of
from distmom.moments.weighting import positive


@dataclass(frozen=True)
class ChainSketchPass(WindowSketchPass):
    """Multiply the second moment of different steps of a window by a test matrix or a basis.

    Attributes
    ----------
    first : bool
        Whether the first window of every sequence alone is used.

    Notes
    -----
    Other fields and sums as in `WindowSketchPass`.
    """

    first: bool = True

    #: one row more than a window reads, which shows whether a sequence began before it
    halo = N_STEPS

    def working_bytes(self, n_rows: int) -> int:
        # The windows that are selected, and the rows where they begin.
        return super().working_bytes(n_rows) + 24 * n_rows

    def windows(self, block: RowBlock) -> np.ndarray:
        return selected_windows(block, self.first)


@dataclass(frozen=True)
class ChainMomentsPass(WindowMomentsPass):
    """Add up the moments of orders one to three of windows in a basis whose first column is the constant feature.

    Attributes
    ----------
    first : bool
        Whether the first window of every sequence alone is used.

    Notes
    -----
    Other fields and sums as in `WindowMomentsPass`; further sums: ``own`` (r, r) of the middle steps with
    themselves, and ``drawn`` (), the number of windows of blocks without weights, which are samples.
    """

    first: bool = True

    halo = N_STEPS

    def working_bytes(self, n_rows: int) -> int:
        # The windows that are selected, and the rows where they begin.
        return super().working_bytes(n_rows) + 24 * n_rows

    def windows(self, block: RowBlock) -> np.ndarray:
        return selected_windows(block, self.first)

    def specs(self) -> dict[str, SumSpec]:
        return {**super().specs(), "own": SumSpec((self.rank, self.rank)), "drawn": SumSpec(())}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        if block.weights is None:
            sums["drawn"] += self.windows(block).sum()
        return super().add(sums, block, rows)

    def add_views(self, sums: Sums, views: list[np.ndarray], weighted: list[np.ndarray]) -> None:
        super().add_views(sums, views, weighted)
        sums["own"] += weighted[1].T @ views[1]


@dataclass(frozen=True)
class ChainMoments:
    """Central moments of windows in a basis of features without the constant one.

    Attributes
    ----------
    means : ndarray of shape (3, r)
        Means of the three steps.
    pairs : ndarray of shape (3, r, r)
        Cross covariances, in the order of `PAIRS`.
    triples : ndarray of shape (r, r, r)
        Central third moment of the three steps.
    own : ndarray of shape (r, r)
        Covariance of the middle step.
    squares : ndarray of shape (d,)
        Mean squares of the scaled values of the middle step.
    n_windows : float
        Number of windows of the sample; infinite for an enumerated population.
    """

    means: np.ndarray
    pairs: np.ndarray
    triples: np.ndarray
    own: np.ndarray
    squares: np.ndarray
    n_windows: float

    def pair(self, s: int, t: int) -> np.ndarray:
        """Return the cross covariance of two different steps, counted from zero."""
        return pair_of(self.pairs, s, t)


def chain_moments(sums: Sums) -> ChainMoments:
    """Turn the sums of `ChainMomentsPass` into central moments."""
    raw = window_moments(sums)
    assert raw.squares is not None
    means = raw.means[:, 1:]
    pairs = np.stack([raw.pair(s, t)[1:, 1:] - np.multiply.outer(means[s], means[t]) for s, t in PAIRS])
    a, b, c = means
    (ab, ac, bc), triples = pairs, raw.triples[1:, 1:, 1:]
    triples = (
        triples
        - ab[:, :, None] * c
        - ac[:, None, :] * b[:, None]
        - bc * a[:, None, None]
        - a[:, None, None] * b[:, None] * c
    )
    mass = positive(sums["mass"])
    own = np.asarray(sums["own"])[1:, 1:] / mass - np.multiply.outer(b, b)
    n_windows = float(sums["drawn"]) or np.inf
    # The first coordinate of a step in the basis is the constant feature.
    return ChainMoments(means, pairs, triples, own, raw.squares[0][:, 0], n_windows)


def selected_windows(block: RowBlock, first: bool) -> np.ndarray:
    """Return the weight of the window that begins at each row of a block with `N_STEPS` rows of context, at most.

    A window that ends in the context belongs to the shard before.
    """
    found = window_weights(block)
    starts = block.starts[:-1]
    if block.continued and len(starts):
        if block.context >= N_STEPS:
            found[: block.context - N_STEPS + 1] = 0.0
            starts = starts[1:]
        else:
            # All rows of the sequence before the cut are context.
            starts = np.append(0, starts[1:])
    if not first:
        return found
    kept = np.zeros_like(found)
    kept[starts] = found[starts]
    return kept
