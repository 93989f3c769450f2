"""Compiled kernels of the ranking metrics, which are defined in `distmom.evaluate.metrics`."""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.compiled import compiled


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
            dcg = 0.0
            psp = 0.0
            psp_best = 0.0
            psdcg = 0.0
            psdcg_best = 0.0
            ideal = 0.0
            full = 0.0
            for j in range(depth):
                full += discounts[j]
                if j < n_true:
                    ideal += discounts[j]
                hits += gains[j]
                dcg += gains[j] * discounts[j]
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

    For each true label, labels with a lower and with an equal score are counted; rows are never sorted.
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
        known = start
        while known < stop and labels[known] < width:
            known += 1
        n_unscored_false = (n_labels - width) - (stop - known)
        # Twice the number of comparisons won, so that a tie adds one.
        won = np.int64(0)
        for a in range(start, known):
            value = row[labels[a]]
            below = np.int64(0)
            equal = np.int64(0)
            for j in range(width):
                below += row[j] < value
                equal += row[j] == value
            for b in range(start, known):
                other = row[labels[b]]
                below -= other < value
                equal -= other == value
            won += 2 * (below + n_unscored_false) + equal
        won += (stop - known) * n_unscored_false
        areas[i] = 0.5 * won / (np.float64(n_true) * np.float64(n_false))
    return True


@compiled
def listed_areas(lists: Any, scores: Any, indptr: Any, labels: Any, n_labels: int, areas: Any) -> None:
    """Fill ``areas`` with the AUC of each ranked list, with all unlisted labels tied below it."""
    width = lists.shape[1]
    hits = np.zeros(width, dtype=np.bool_)
    for i in range(lists.shape[0]):
        start = indptr[i]
        stop = indptr[i + 1]
        n_true = stop - start
        n_false = n_labels - n_true
        if n_true == 0 or n_false == 0:
            continue
        n_listed_true = 0
        n_listed_false = 0
        for j in range(width):
            if lists[i, j] < 0:
                hits[j] = False
                continue
            hits[j] = _holds(labels, start, stop, lists[i, j])
            if hits[j]:
                n_listed_true += 1
            else:
                n_listed_false += 1
        n_unlisted_false = n_false - n_listed_false
        won = np.int64(0)
        for a in range(width):
            if not hits[a]:
                continue
            won += 2 * n_unlisted_false
            for b in range(width):
                if lists[i, b] < 0 or hits[b]:
                    continue
                if scores[i, b] < scores[i, a]:
                    won += 2
                elif scores[i, b] == scores[i, a]:
                    won += 1
        won += (n_true - n_listed_true) * n_unlisted_false
        areas[i] = 0.5 * won / (np.float64(n_true) * np.float64(n_false))
