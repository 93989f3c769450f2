"""Probabilities of labels: the threshold of the best F1, and how far probabilities differ from observed shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from distmom.errors import UsageError

#: threshold of models for which none was chosen
DEFAULT_THRESHOLD = 0.5
#: least threshold that is considered; pairs of lower probability are not sorted
LEAST_THRESHOLD = 0.01
#: number of bins of equal width of a reliability diagram
N_BINS = 10


def checked_threshold(threshold: Any, best: float) -> float:
    """Return a threshold, or ``best`` for "best"; a UsageError if it is neither that nor a number from 0 to 1."""
    if isinstance(threshold, str) and threshold == "best":
        return best
    is_number = isinstance(threshold, Real) and not isinstance(threshold, bool)
    if not (is_number and 0.0 <= threshold <= 1.0):
        raise UsageError(f"threshold: expected a probability from 0 to 1, or 'best', got {threshold!r}")
    return float(threshold)


def best_threshold(probabilities: np.ndarray, truth: np.ndarray, n_true: int) -> float:
    """Return the threshold of probability with the best micro F1.

    Parameters
    ----------
    probabilities : ndarray of shape (n_pairs,), float32
        Probabilities of pairs of a document and a label.
    truth : ndarray of shape (n_pairs,), uint8
        Whether the document has the label.
    n_true : int
        Number of labels of all documents, including those in no pair.

    Returns
    -------
    float
        Halfway between the least probability that is predicted, which is at least `LEAST_THRESHOLD`, and the next
        lower one: labels of new documents may be slightly less probable than those of the given ones. Of equally
        good thresholds, the largest. It is `DEFAULT_THRESHOLD` if no true label is so probable.
    """
    tried = np.flatnonzero(probabilities >= np.float32(LEAST_THRESHOLD))
    order = tried[np.argsort(-probabilities[tried], kind="stable")]
    p = probabilities[order]
    hits = np.cumsum(truth[order], dtype=np.int64)
    if not len(hits) or hits[-1] == 0:
        return DEFAULT_THRESHOLD
    f1 = 2.0 * hits / (np.arange(1, len(p) + 1) + n_true)
    # Pairs of equal probability are predicted together.
    f1[:-1][p[:-1] == p[1:]] = -1.0
    last = int(np.argmax(f1))
    left = p[last + 1 :] if last + 1 < len(p) else np.delete(probabilities, tried)
    least, below = p[last], left.max(initial=np.float32(0.0))
    # Rounding must not lead down to a pair that is not predicted.
    return float(max((least + below) / 2, np.nextafter(below, least)))


@dataclass(frozen=True)
class Reliability:
    """Sums over pairs of a document and a label, in ten bins of probability of equal width.

    Attributes
    ----------
    n_pairs : ndarray of shape (10,), int64
    probabilities : ndarray of shape (10,), float64
        Sums of the probabilities of the pairs.
    truths : ndarray of shape (10,), int64
        Numbers of pairs whose document has the label.
    """

    n_pairs: np.ndarray
    probabilities: np.ndarray
    truths: np.ndarray

    @classmethod
    def of(cls, probabilities: np.ndarray, truth: np.ndarray) -> Reliability:
        """Return the sums of pairs.

        Parameters
        ----------
        probabilities : ndarray of any shape, float32
        truth : ndarray of the same shape
            Nonzero where the document has the label.
        """
        p = probabilities.ravel().astype(np.float64)
        bins = np.minimum((N_BINS * p).astype(np.int64), N_BINS - 1)
        return cls(
            np.bincount(bins, minlength=N_BINS).astype(np.int64),
            np.bincount(bins, weights=p, minlength=N_BINS).astype(np.float64),
            np.bincount(bins[truth.ravel() != 0], minlength=N_BINS).astype(np.int64),
        )

    @property
    def expected_calibration_error(self) -> float:
        """Mean over pairs of the difference between mean probability and observed share in their bin.

        NaN without pairs. Naeini, Cooper, Hauskrecht, "Obtaining well calibrated probabilities using Bayesian
        binning", AAAI 2015.
        """
        n = int(self.n_pairs.sum())
        return float(np.abs(self.probabilities - self.truths).sum() / n) if n else float("nan")

    def to_json(self) -> dict[str, list[float]]:
        """Return JSON values."""
        return {
            "n_pairs": [int(x) for x in self.n_pairs],
            "probabilities": [float(x) for x in self.probabilities],
            "truths": [int(x) for x in self.truths],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Reliability:
        """Rebuild the sums from what `to_json` returned; a ValueError if they are not such sums."""
        given = record if isinstance(record, Mapping) else {}
        n, probabilities, truths = parts = [
            np.asarray(given.get(name)) for name in ("n_pairs", "probabilities", "truths")
        ]
        is_numeric = all(
            x.shape == (N_BINS,) and x.dtype.kind in "if" and np.isfinite(x).all() for x in parts
        )
        if not (is_numeric and ((truths >= 0) & (truths <= n)).all()):
            raise ValueError(
                f"expected {N_BINS} numbers of pairs, sums of probabilities, and numbers of truths, at most "
                "as many as pairs"
            )
        return cls(n.astype(np.int64), probabilities.astype(np.float64), truths.astype(np.int64))
