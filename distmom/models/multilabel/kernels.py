"""Compiled loops that keep lists of the best: labels of highest score, nearest rows by an inverted index."""

from __future__ import annotations

import numpy as np

from distmom.compiled import compiled
from distmom.errors import NumericalError

#: number of labels whose maximum is compared with a list of the best before each label is
WINDOW = 128
#: indexed rows whose products are accumulated together
ROW_WINDOW = 1 << 17
#: words in at most this many indexed rows are never skipped
LONG_LIST = 1 << 14

#: relative error per term of a sum in float32
ROUNDING = 2.0**-23


@compiled
def _sift_down(values: np.ndarray, ids: np.ndarray, size: int) -> None:
    """Restore a heap whose root (the worst entry: smallest value, then largest id) was replaced."""
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            return
        right = child + 1
        if right < size and (
            values[right] < values[child] or (values[right] == values[child] and ids[right] > ids[child])
        ):
            child = right
        if values[child] < values[parent] or (values[child] == values[parent] and ids[child] > ids[parent]):
            values[child], values[parent] = values[parent], values[child]
            ids[child], ids[parent] = ids[parent], ids[child]
            parent = child
        else:
            return


@compiled
def _sort_heap(values: np.ndarray, ids: np.ndarray) -> None:
    """Sort a heap by descending value, ties by ascending id, in place."""
    size = values.shape[0]
    while size > 1:
        size -= 1
        values[0], values[size] = values[size], values[0]
        ids[0], ids[size] = ids[size], ids[0]
        _sift_down(values, ids, size)


@compiled
def _let_in(values: np.ndarray, ids: np.ndarray, value: np.float32, number: int) -> None:
    """Replace the worst entry of a heap by a value if it is larger, or equal with a smaller id."""
    if value > values[0] or (value == values[0] and number < ids[0]):
        values[0] = value
        ids[0] = number
        _sift_down(values, ids, values.shape[0])


@compiled
def _largest(keys: np.ndarray) -> np.int32:
    """Return the largest of some integers, or the least int32 if there are none; the loop is vectorised."""
    found = np.int32(-2147483648)
    for j in range(keys.shape[0]):
        found = max(found, keys[j])
    return found


def top_labels(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best labels of every row, by descending score, ties by smaller label.

    Parameters
    ----------
    scores : ndarray of shape (n, L), float32, C-contiguous
    k : int
        At most L.

    Returns
    -------
    labels : ndarray of shape (n, k), int32
    values : ndarray of shape (n, k), float32

    Raises
    ------
    NumericalError
        If fewer than k scores of a row are numbers other than NaN.
    """
    labels, values = _top_labels(scores, k)
    check_labels(labels, scores.shape[1])
    return labels, values


def check_labels(labels: np.ndarray, n_labels: int) -> None:
    """Raise a NumericalError if a list of the best labels is incomplete: its entries are then out of range."""
    if labels.size and labels.max() >= n_labels:
        raise NumericalError(
            "scores of labels are NaN: weights of the model, or values of the documents, are too large"
        )


@compiled
def _top_labels(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    n, n_labels = scores.shape
    labels = np.empty((n, k), np.int32)
    values = np.empty((n, k), np.float32)
    for i in range(n):
        ids, best = labels[i], values[i]
        best[:] = -np.inf
        ids[:] = np.int32(2147483647)
        # Non-negative floats compare like their bits as integers, and negative floats have smaller ones.
        keys, best_keys = scores[i].view(np.int32), best.view(np.int32)
        for start in range(0, n_labels, WINDOW):
            stop = min(start + WINDOW, n_labels)
            if best[0] >= 0.0 and _largest(keys[start:stop]) <= best_keys[0]:
                continue
            for label in range(start, stop):
                _let_in(best, ids, scores[i, label], label)
        _sort_heap(best, ids)
    return labels, values


@compiled
def top_candidates(scores: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """Return the k best candidates of every row, by descending score, ties by smaller column.

    Parameters
    ----------
    scores : ndarray of shape (n, m), float32
        NaN is left out.
    labels : ndarray of shape (n, m), integer
        Negative where there is no candidate.
    k : int

    Returns
    -------
    ndarray of shape (n, k), int32
        Columns of ``scores``; -1 fills lists that are shorter.
    """
    n, m = scores.shape
    found = np.full((n, k), 2147483647, np.int32)
    best = np.empty(k, np.float32)
    for i in range(n):
        ids = found[i]
        best[:] = -np.inf
        for c in range(m):
            if labels[i, c] >= 0:
                _let_in(best, ids, scores[i, c], c)
        _sort_heap(best, ids)
        for j in range(k):
            if ids[j] >= m:
                ids[j] = -1
    return found


@compiled
def update_top(
    scores: np.ndarray, shift: np.ndarray, first: int, labels: np.ndarray, values: np.ndarray
) -> None:
    """Update lists of the best labels with more labels; the lists are heaps until `sort_top`.

    Parameters
    ----------
    scores : ndarray of shape (n, m), float32
        Changed in place.
    shift : ndarray of shape (m,), float32
        Added to the scores.
    first : int
        The label of the first column; labels ascend from call to call.
    labels : ndarray of shape (n, k), int32
        Filled with the largest integer before the first call.
    values : ndarray of shape (n, k), float32
        Filled with minus infinity before the first call.
    """
    n, m = scores.shape
    for i in range(n):
        row, ids, best = scores[i], labels[i], values[i]
        keys, best_keys = row.view(np.int32), best.view(np.int32)
        for start in range(0, m, WINDOW):
            stop = min(start + WINDOW, m)
            for j in range(start, stop):
                row[j] += shift[j]
            # As in `_top_labels`.
            if best[0] >= 0.0 and _largest(keys[start:stop]) <= best_keys[0]:
                continue
            for j in range(start, stop):
                _let_in(best, ids, row[j], first + j)


@compiled
def sort_top(labels: np.ndarray, values: np.ndarray) -> None:
    """Sort lists of the best labels by descending score, ties by smaller label, in place."""
    for i in range(labels.shape[0]):
        _sort_heap(values[i], labels[i])


@compiled
def top_by_states(
    posterior: np.ndarray, label_states: np.ndarray, ranked: np.ndarray, k: int, most_visits: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the k labels of largest ``sum_h p_h Q_lh`` without scoring all labels.

    Labels are visited in the order of the ranked lists of the states, one depth of all lists at a time, and scored
    in full on their first visit. A label not visited up to depth j scores at most ``sum_h p_h Q_(j)h``, plus the
    largest entries of the states of negligible mass times that mass: once the k-th best score is above this bound,
    no other label can enter (Fagin, Lotem and Naor, "Optimal aggregation algorithms for middleware", 2003).

    Parameters
    ----------
    posterior : ndarray of shape (n, h), float32
    label_states : ndarray of shape (L, h), float32
    ranked : ndarray of shape (h, m), int32
        The labels of largest ``Q_lh`` of every state, descending.
    k : int
    most_visits : int
        Labels that are scored for a document before it is given up.

    Returns
    -------
    labels : ndarray of shape (n, k), int32
        By descending score, ties by smaller label.
    values : ndarray of shape (n, k), float32
    found : ndarray of shape (n,), uint8
        0 where the lists were too short, or too many labels were visited, to determine the best labels.
    """
    n, n_states = posterior.shape
    n_labels, depth = label_states.shape[0], ranked.shape[1]
    labels, values = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    found = np.zeros(n, np.uint8)
    met = np.full(n_labels, -1, np.int32)
    for i in range(n):
        p = posterior[i]
        order = np.argsort(-p)
        ids, best = labels[i], values[i]
        best[:] = -1.0
        ids[:] = np.int32(2147483647)
        # Only the lists of states that together have nearly all of the mass are visited.
        n_active, rest = 0, 0.0
        mass = np.float64(0.0)
        for j in range(n_states):
            h = order[j]
            if mass > 1.0 - 1e-4:
                rest += p[h] * np.float64(label_states[ranked[h, 0], h])
            else:
                mass += p[h]
                n_active += 1
        n_visits = 0
        for j in range(depth):
            if n_visits > most_visits:
                break
            bound = rest
            for a in range(n_active):
                h = order[a]
                label = ranked[h, j]
                row = label_states[label]
                bound += p[h] * np.float64(row[h])
                if met[label] == i:
                    continue
                met[label] = i
                n_visits += 1
                _let_in(best, ids, _score(p, row), label)
            # The margin covers rounding; at zero there may be ties among labels that were not visited.
            if best[0] > bound * (1.0 + 1e-5) and best[0] > 0.0:
                found[i] = 1
                break
        if depth == n_labels and n_visits == n_labels:
            found[i] = 1
        _sort_heap(best, ids)
    return labels, values, found


@compiled
def _score(posterior: np.ndarray, row: np.ndarray) -> np.float32:
    """Return the product of two vectors, added up in their order."""
    score = np.float32(0.0)
    for h in range(row.shape[0]):
        score += posterior[h] * row[h]
    return score


@compiled
def top_of_products(
    products: np.ndarray, posterior: np.ndarray, label_states: np.ndarray, k: int, slack: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k labels of largest ``sum_h p_h Q_lh``, given these sums with other rounding errors.

    Parameters
    ----------
    products : ndarray of shape (n, L), float32, C-contiguous
        The sums, not negative, as a library computes them.
    posterior : ndarray of shape (n, h), float32
    label_states : ndarray of shape (L, h), float32
    k : int
    slack : float
        Largest relative difference of a product and the sum that is returned.

    Returns
    -------
    labels : ndarray of shape (n, k), int32
        By descending score, ties by smaller label.
    values : ndarray of shape (n, k), float32
        Added up in the order of the states, as by `top_by_states`.
    """
    labels, values = _top_labels(products, k)
    for i in range(products.shape[0]):
        ids, best = labels[i], values[i]
        least = np.float32(max(best[k - 1] * (1.0 - 2.0 * slack), 0.0))
        keys = products[i].view(np.int32)
        best[:] = -np.inf
        ids[:] = np.int32(2147483647)
        threshold = np.full(1, least, np.float32).view(np.int32)[0]
        for start in range(0, products.shape[1], WINDOW):
            stop = min(start + WINDOW, products.shape[1])
            if _largest(keys[start:stop]) < threshold:
                continue
            for label in range(start, stop):
                if products[i, label] >= least:
                    # Zero is zero in any order.
                    some = products[i, label] > 0.0
                    _let_in(
                        best,
                        ids,
                        _score(posterior[i], label_states[label]) if some else np.float32(0.0),
                        label,
                    )
        _sort_heap(best, ids)
    return labels, values


@compiled
def _skip_light(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    lists_indptr: np.ndarray,
    skipped: float,
    long_list: int,
    at: np.ndarray,
) -> None:
    """Set the places of skipped words to the ends of their lists, the lightest words of every query first."""
    for i in range(indptr.shape[0] - 1):
        budget = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            budget += np.float64(data[p]) * np.float64(data[p])
        budget *= skipped
        while True:
            lightest, weight = -1, np.inf
            for p in range(indptr[i], indptr[i + 1]):
                stop = lists_indptr[indices[p] + 1]
                if stop - at[p] > long_list and data[p] < weight:
                    lightest, weight = p, np.float64(data[p])
            if lightest < 0 or weight * weight > budget:
                break
            budget -= weight * weight
            at[lightest] = lists_indptr[indices[lightest] + 1]


@compiled
def nearest_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    lists_indptr: np.ndarray,
    lists_rows: np.ndarray,
    lists_data: np.ndarray,
    alive: np.ndarray,
    k: int,
    skipped: float = 0.0,
    window: int = ROW_WINDOW,
    long_list: int = LONG_LIST,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k indexed rows of largest inner product with every query row.

    Products are accumulated for windows of indexed rows that fit the processor's cache, for all queries before the
    next window, so that a list is read from memory once for all queries that contain its word.

    Parameters
    ----------
    indptr, indices, data : ndarray
        Query rows in CSR, non-negative.
    lists_indptr, lists_rows, lists_data : ndarray
        For every word, the indexed rows that contain it, ascending.
    alive : ndarray of shape (N,), uint8
        1 for rows that may be returned.
    k : int
    skipped : float, default 0.0
        Share of the squared length of a query that may be left out: the lightest of its words with long lists.
    window : int, default ROW_WINDOW
        Number of indexed rows whose products are accumulated together.
    long_list : int, default LONG_LIST
        Words in at most this many indexed rows are never skipped.

    Returns
    -------
    rows : ndarray of shape (n, k), int32
        By descending product, ties by smaller row; -1 where fewer than k rows share a word.
    products : ndarray of shape (n, k), float32
    """
    n, n_rows = indptr.shape[0] - 1, alive.shape[0]
    found = np.full((n, k), 2147483647, np.int32)
    products = np.zeros((n, k), np.float32)
    at = lists_indptr[indices]
    if skipped > 0.0:
        _skip_light(indptr, indices, data, lists_indptr, skipped, long_list, at)
    sums = np.zeros(window, np.float32)
    keys = sums.view(np.int32)
    for first in range(0, n_rows, window):
        last = min(first + window, n_rows)
        for i in range(n):
            met = False
            for p in range(indptr[i], indptr[i + 1]):
                x = np.float32(data[p])
                start, stop = at[p], lists_indptr[indices[p] + 1]
                if last < n_rows:
                    stop = start + np.searchsorted(lists_rows[start:stop], last)
                for q in range(start, stop):
                    sums[np.uint32(lists_rows[q] - first)] += x * lists_data[q]
                met |= stop > start
                at[p] = stop
            if not met:
                continue
            ids, best = found[i], products[i]
            best_keys = best.view(np.int32)
            for start in range(0, last - first, WINDOW):
                stop = min(start + WINDOW, last - first)
                # Non-negative floats compare like their bits as integers.
                if _largest(keys[start:stop]) <= best_keys[0]:
                    continue
                for j in range(start, stop):
                    # Rows ascend, so an equal product never replaces an earlier row.
                    if sums[j] > best[0] and alive[first + j]:
                        best[0] = sums[j]
                        ids[0] = first + j
                        _sift_down(best, ids, k)
            sums[: last - first] = 0.0
    for i in range(n):
        _sort_heap(products[i], found[i])
        for j in range(k):
            if products[i, j] <= 0.0:
                found[i, j] = -1
    return found, products


@compiled
def nearest_of(
    cosines: np.ndarray, least: np.ndarray, queries: np.ndarray, rows: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k rows of largest inner product with every query, given approximate products.

    Products are computed again, term by term in double precision, so that equal rows have equal products.

    Parameters
    ----------
    cosines : ndarray of shape (n, N), float32
        Approximate products.
    least : ndarray of shape (n,), float32
        Rows with a smaller approximate product are not among the k nearest.
    queries : ndarray of shape (n, r), float32
    rows : ndarray of shape (N, r), float32
    k : int

    Returns
    -------
    rows : ndarray of shape (n, k), int32
        By descending product, ties by smaller row; -1 where fewer than k products are positive.
    products : ndarray of shape (n, k), float32
    """
    n = len(queries)
    found = np.full((n, k), 2147483647, np.int32)
    products = np.zeros((n, k), np.float32)
    for i in range(n):
        ids, best = found[i], products[i]
        for j in range(len(rows)):
            if cosines[i, j] < least[i] or cosines[i, j] <= 0.0:
                continue
            product = 0.0
            for c in range(rows.shape[1]):
                product += np.float64(queries[i, c]) * np.float64(rows[j, c])
            # Rows ascend, so an equal product never replaces an earlier row.
            if np.float32(product) > best[0]:
                best[0] = np.float32(product)
                ids[0] = j
                _sift_down(best, ids, k)
        _sort_heap(best, ids)
        for j in range(k):
            if best[j] <= 0.0:
                ids[j] = -1
    return found, products
