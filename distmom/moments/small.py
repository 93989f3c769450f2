"""Small moments: those of words or views in a basis, which are whitened and decomposed on the scheduler node."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class SmallMoments:
    """Moments in a basis Q of r columns.

    Attributes
    ----------
    m1 : ndarray of shape (r,)
        ``Q'M1``.
    m2 : ndarray of shape (r, r)
        ``Q'M2 Q``.
    m3 : ndarray of shape (r, r, r) or None
        ``M3(Q, Q, Q)``; None if it was not added up.
    lengths : dict of str to float
        For words, the number of documents, and means of powers of their lengths.
    sum_rules : dict of str to float
        Relative differences between the moments of orders two ("2") and three ("3"), summed over all words at one
        position, and those of the order below (see `sum_rules`). Empty (default) where a document does not
        weigh the same in every order.
    rows : ndarray of shape (m, r) or None
        A few documents in the basis, zero for those with too few words; None (default) if none were kept.
    """

    m1: np.ndarray
    m2: np.ndarray
    m3: np.ndarray | None
    lengths: dict[str, float] = field(default_factory=dict)
    sum_rules: dict[str, float] = field(default_factory=dict)
    rows: np.ndarray | None = None

    def within(self, W: np.ndarray) -> SmallMoments:
        """Return the moments in the coordinates ``W'y``, for W of shape (r, k)."""
        m3 = None if self.m3 is None else np.einsum("abc,ai,bj,ck->ijk", self.m3, W, W, W, optimize=True)
        return SmallMoments(self.m1 @ W, W.T @ self.m2 @ W, m3, self.lengths, self.sum_rules)
