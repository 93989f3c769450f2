"""Standard errors of topics, from fits that each leave out one part of the documents."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment


class Jackknife:
    """Collects the topics of fits without one of G parts, and computes their spread.

    With theta_g of the fit without part g, the squared standard error is ``(G - 1) / G sum_g (theta_g - mean)^2``
    (Efron, "The Jackknife, the Bootstrap and Other Resampling Plans", 1982, equation 3.5).

    Parameters
    ----------
    topics : ndarray of shape (k, d)
        Topics fitted to all documents; rows sum to one.
    shares : ndarray of shape (k,)
        Their shares in the corpus.
    """

    def __init__(self, topics: np.ndarray, shares: np.ndarray) -> None:
        self._roots = np.sqrt(topics.astype(np.float64))
        self._sums = [np.zeros((2, *x.shape)) for x in (topics, shares)]
        self._counts = np.zeros(len(shares), np.int64)

    def add(self, topics: np.ndarray, shares: np.ndarray) -> None:
        """Add the topics of one more fit, which may be fewer and in any order, matched to all topics."""
        of, found = linear_sum_assignment(-self._roots @ np.sqrt(topics.astype(np.float64)).T)
        self._counts[of] += 1
        for total, values in zip(self._sums, (topics, shares), strict=True):
            value = values[found].astype(np.float64)
            total[0, of] += value
            total[1, of] += value**2

    def errors(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return the standard errors of topics, float32, and shares, float64.

        None if there were fewer than two fits; NaN for topics found by fewer than two fits.
        """
        if self._counts.max(initial=0) < 2:
            return None, None
        n = np.where(self._counts > 1, self._counts, np.nan).astype(np.float64)
        topics, shares = (
            np.sqrt((n - 1.0) * np.maximum(s[1].T / n - (s[0].T / n) ** 2, 0.0)).T for s in self._sums
        )
        return topics.astype(np.float32), shares
