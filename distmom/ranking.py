"""Discounts, propensities and compiled kernels of the ranking metrics.

The metrics are defined in `distmom.evaluate.metrics`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distmom.compiled import compiled
from distmom.errors import UsageError


@compiled
def _holds(labels: Any, start: int, stop: int, label: int) -> bool:
    """Whether a label is in the sorted ``labels[start:stop]``."""
    low = start
    high = stop
    while low < high:
        middle = (low + high) // 2
        if labels[middle] < label:
            low = middle + 1
        else:
            high = middle
    return low < stop and labels[low] == label


def rank_discounts(depth: int) -> NDArray[np.float64]:
    """Return the gain of a hit at rank 1, 2, ..., ``depth``, discounted to ``1 / log2(rank + 1)``."""
    discounts: NDArray[np.float64] = 1.0 / np.log2(np.arange(2, depth + 2))
    return discounts


def inverse_propensity(
    label_frequency: ArrayLike, n_train: int, *, A: float = 0.55, B: float = 1.5, n_labels: int | None = None
) -> NDArray[np.float64]:
    """Return 1/p of every label from its frequency in the training documents.

    ``1/p_l = 1 + C (N_l + B) ** -A`` with ``C = (ln n_train - 1) (B + 1) ** A``.

    Parameters
    ----------
    label_frequency : array_like of shape (L,)
        Number of training documents N_l of each label.
    n_train : int
        Number of training documents.
    A : float, default=0.55
    B : float, default=1.5
        Customary values are 0.5 and 0.4 for the Wikipedia data sets of the repository, 0.6 and 2.6 for those of
        Amazon, and the defaults for all others.
    n_labels : int, optional
        Length of the result, for truths with labels that did not occur in training and have frequency 0; L by
        default.

    Returns
    -------
    ndarray of shape (L,) or (n_labels,), float64

    Raises
    ------
    UsageError
        If a frequency is negative, ``n_train`` is below 3 (where 1/p would be less than 1), ``n_labels`` is
        less than the number of frequencies, ``A`` is negative, ``B`` is not positive, or they are so large
        that 1/p is not finite.

    References
    ----------
    Jain, Prabhu, Varma, "Extreme multi-label loss functions for recommendation, tagging, ranking and other
    missing label applications" (KDD 2016), section 4.
    """
    frequency = np.asarray(label_frequency, dtype=np.float64)
    if frequency.ndim != 1 or not (frequency >= 0).all():
        raise UsageError("label frequencies must be a vector of non-negative counts")
    if n_train < 3:
        raise UsageError(f"propensities need at least 3 training documents, got {n_train}")
    if n_labels is not None:
        if n_labels < frequency.size:
            raise UsageError(f"n_labels={n_labels} is less than the number of frequencies, {frequency.size}")
        frequency = np.concatenate([frequency, np.zeros(n_labels - frequency.size)])
    if not (A >= 0.0 and B > 0.0 and math.isfinite(A) and math.isfinite(B)):
        raise UsageError(f"A and B: expected finite numbers, A from 0 and B above 0, got {A} and {B}")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        C = (math.log(n_train) - 1.0) * np.float64(B + 1.0) ** A
        inverse: NDArray[np.float64] = 1.0 + C * (frequency + B) ** -A
    if not np.isfinite(inverse).all():
        raise UsageError(f"A and B: expected numbers with finite propensities, got {A} and {B}")
    return inverse


@compiled
def _discounted(gains: Any, n_true: int, discounts: Any, depth: int) -> Any:
    """Return the discounted gain of the first ranks, and that of an ideal list; nDCG is their ratio."""
    gain = 0.0
    ideal = 0.0
    for j in range(depth):
        gain += gains[j] * discounts[j]
        if j < n_true:
            ideal += discounts[j]
    return gain, ideal


@compiled
def _n_won(values: Any, true: Any) -> Any:
    """Add up the pairs of a true entry and another one: two points if the true one is larger, one for a tie.

    Every true entry is compared with all others, and values are never sorted.
    """
    won = np.int64(0)
    for a in range(true.shape[0]):
        value = values[true[a]]
        below = np.int64(0)
        equal = np.int64(0)
        for j in range(values.shape[0]):
            below += values[j] < value
            equal += values[j] == value
        for b in range(true.shape[0]):
            other = values[true[b]]
            below -= other < value
            equal -= other == value
        won += 2 * below + equal
    return won


@compiled
def _area(won: Any, n_true: Any, n_false: Any) -> Any:
    """Return the AUC from twice the number of pairs won."""
    return 0.5 * won / (np.float64(n_true) * np.float64(n_false))


@compiled
def list_metrics(
    lists: Any,
    indptr: Any,
    labels: Any,
    inverse: Any,
    discounts: Any,
    depths: Any,
    per_document: bool,
    rows: Any,
) -> None:
    """Fill ``rows[document, metric, depth]``, with metrics in the order of `RankingSums`."""
    deepest = depths[-1]
    gains = np.zeros(deepest)
    best = np.zeros(deepest)
    for i in range(lists.shape[0]):
        start = indptr[i]
        stop = indptr[i + 1]
        n_true = stop - start
        if n_true == 0:
            continue
        weighted = inverse.shape[0] > 0
        if weighted:
            ranked = np.sort(inverse[labels[start:stop]])
            for j in range(deepest):
                best[j] = ranked[n_true - 1 - j] if j < n_true else 0.0
        for j in range(deepest):
            label = lists[i, j]
            hit = label >= 0 and _holds(labels, start, stop, label)
            gains[j] = 1.0 if hit else 0.0
        for t in range(depths.shape[0]):
            depth = depths[t]
            hits = 0.0
            psp = 0.0
            psp_best = 0.0
            psdcg = 0.0
            psdcg_best = 0.0
            full = 0.0
            dcg, ideal = _discounted(gains, n_true, discounts, depth)
            for j in range(depth):
                full += discounts[j]
                hits += gains[j]
                if weighted:
                    if gains[j] > 0.0:
                        psp += inverse[lists[i, j]]
                        psdcg += inverse[lists[i, j]] * discounts[j]
                    psp_best += best[j]
                    psdcg_best += best[j] * discounts[j]
            divisor = ideal if per_document else full
            rows[i, 0, t] = hits / depth
            rows[i, 1, t] = hits / n_true
            rows[i, 2, t] = dcg / ideal
            rows[i, 3, t] = psp / depth
            rows[i, 4, t] = psp_best / depth
            rows[i, 5, t] = psdcg / divisor
            rows[i, 6, t] = psdcg_best / divisor


@compiled
def dense_areas(scores: Any, indptr: Any, labels: Any, n_labels: int, areas: Any) -> bool:
    """Fill ``areas`` with the AUC of each document, except where it is undefined; False if a score is NaN.

    Labels from ``scores.shape[1]`` to ``n_labels`` have no score and are tied below all others.
    """
    width = scores.shape[1]
    for i in range(scores.shape[0]):
        row = scores[i]
        start = indptr[i]
        stop = indptr[i + 1]
        n_true = stop - start
        n_false = n_labels - n_true
        n_bad = 0
        for j in range(width):
            n_bad += row[j] != row[j]
        if n_bad > 0:
            return False
        if n_true == 0 or n_false == 0:
            continue
        end = start
        while end < stop and labels[end] < width:
            end += 1
        n_unscored_false = (n_labels - width) - (stop - end)
        won = _n_won(row, labels[start:end]) + 2 * (end - start) * n_unscored_false
        won += (stop - end) * n_unscored_false
        areas[i] = _area(won, n_true, n_false)
    return True


@compiled
def listed_areas(lists: Any, scores: Any, indptr: Any, labels: Any, n_labels: int, areas: Any) -> None:
    """Fill ``areas`` with the AUC of each ranked list, with all unlisted labels tied below it."""
    width = lists.shape[1]
    values = np.empty(width)
    hits = np.empty(width, np.int64)
    for i in range(lists.shape[0]):
        start = indptr[i]
        stop = indptr[i + 1]
        n_true = stop - start
        n_false = n_labels - n_true
        if n_true == 0 or n_false == 0:
            continue
        n_listed = 0
        n_hits = 0
        for j in range(width):
            if lists[i, j] < 0:
                continue
            values[n_listed] = scores[i, j]
            if _holds(labels, start, stop, lists[i, j]):
                hits[n_hits] = n_listed
                n_hits += 1
            n_listed += 1
        n_unlisted_false = n_false - (n_listed - n_hits)
        won = _n_won(values[:n_listed], hits[:n_hits]) + 2 * n_hits * n_unlisted_false
        won += (n_true - n_hits) * n_unlisted_false
        areas[i] = _area(won, n_true, n_false)


@compiled
def mean_metrics(
    lists: Any, scores: Any, truth: Any, n_true: Any, depths: Any, discounts: Any, n_areas: int
) -> Any:
    """Return the means over documents of P@k for several k, of nDCG at the last, and of AUC.

    Parameters
    ----------
    lists : ndarray of shape (n, depths[-1]), integer
        Candidates, best first; -1 fills lists that are shorter.
    scores : ndarray of shape (n, m)
        Scores of the candidates.
    truth : ndarray of shape (n, m), uint8
        1 where a candidate is a label of the document.
    n_true : ndarray of shape (n,), integer
        Labels of the document, also those that are no candidates.
    depths : ndarray of int
        The values of k, increasing.
    discounts : ndarray of shape (depths[-1],)
        From `rank_discounts`.
    n_areas : int
        Documents, the first ones, whose AUC is measured, or 0. All labels must be candidates.

    Returns
    -------
    ndarray of shape (len(depths) + 2,), float64
        A document without labels counts as zero in all but AUC, which leaves it out.
    """
    n, width = scores.shape
    n_depths, deepest = depths.shape[0], depths[-1]
    means = np.zeros(n_depths + 2)
    gains = np.zeros(deepest)
    n_counted = 0
    for i in range(n):
        for j in range(deepest):
            gains[j] = 1.0 if lists[i, j] >= 0 and truth[i, lists[i, j]] else 0.0
            for t in range(n_depths):
                if j < depths[t]:
                    means[t] += gains[j] / depths[t]
        gain, ideal = _discounted(gains, n_true[i], discounts, deepest)
        if ideal > 0.0:
            means[n_depths] += gain / ideal
        if i < n_areas and 0 < n_true[i] < width:
            won = _n_won(scores[i], np.flatnonzero(truth[i]))
            means[n_depths + 1] += _area(won, n_true[i], width - n_true[i])
            n_counted += 1
    means[: n_depths + 1] /= max(n, 1)
    means[n_depths + 1] /= max(n_counted, 1)
    return means
