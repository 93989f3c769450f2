"""Moments of three views in a basis, of orders one to three, from the sums of a pass.

The views are words of three groups (`distmom.moments.documents.product`), three groups of columns
(`distmom.moments.rows.multiview`) or the steps of windows (`distmom.moments.sequences.moments`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distmom.engine.sums.additive import Sums
from distmom.moments.weighting import positive

#: groups of words or columns: as many views as the third moment takes
N_GROUPS = 3
#: pairs of views, in the order of the sums
PAIRS = ((0, 1), (0, 2), (1, 2))


def pair_of(pairs: np.ndarray, s: int, t: int) -> np.ndarray:
    """Return ``E[z_s z_t']`` from moments (3, r, r) in the order of `PAIRS`."""
    return np.asarray(pairs[PAIRS.index((s, t))] if s < t else pairs[PAIRS.index((t, s))].T)


@dataclass(frozen=True)
class GroupPairs:
    """Moments of three views in a basis, up to the second order.

    Attributes
    ----------
    means : ndarray of shape (3, r)
    pairs : ndarray of shape (3, r, r)
    """

    means: np.ndarray
    pairs: np.ndarray

    def pair(self, s: int, t: int) -> np.ndarray:
        """Return ``E[z_s z_t']``."""
        return pair_of(self.pairs, s, t)


@dataclass(frozen=True)
class GroupMoments(GroupPairs):
    """Moments of three views in a basis.

    Attributes
    ----------
    means : ndarray of shape (3, r)
    pairs : ndarray of shape (3, r, r)
    triples : ndarray of shape (r, r, r)
    """

    triples: np.ndarray


def group_moments(sums: Sums) -> GroupMoments:
    """Turn sums up to the third order into moments."""
    pairs = group_pairs(sums)
    return GroupMoments(pairs.means, pairs.pairs, np.asarray(sums["triples"]) / positive(sums["mass"]))


def group_pairs(sums: Sums) -> GroupPairs:
    """Turn sums up to the second order into moments."""
    return GroupPairs(*(np.asarray(sums[name]) / positive(sums["mass"]) for name in ("means", "pairs")))
