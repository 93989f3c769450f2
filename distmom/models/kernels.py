"""Compiled loops that score labels: sparse weights, nearest rows by an inverted index, votes, top lists."""

from __future__ import annotations

import numpy as np

from distmom.compiled import compiled

#: labels that are looked at together for one that enters a list of the best
WINDOW = 128


@compiled
def add_sparse_scores(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    w_indptr: np.ndarray,
    w_indices: np.ndarray,
    w_data: np.ndarray,
    dense_row: np.ndarray,
    dense: np.ndarray,
    factor: float,
    out: np.ndarray,
) -> None:
    """Add ``factor * A W`` to ``out``, A (n x d) in CSR, out (n, L) dense.

    W (d x L) is in CSR but for the words with ``dense_row[v] >= 0``, whose row is ``dense[dense_row[v]]``:
    nearly full rows of common words are several times faster to add without their column numbers.
    """
    # Unsigned: a signed subscript may count from the end, which is looked at every time.
    w_columns = w_indices.view(np.uint32)
    for i in range(indptr.shape[0] - 1):
        row = out[i]
        for p in range(indptr[i], indptr[i + 1]):
            v = indices[p]
            x = np.float32(factor * data[p])
            if dense_row[v] >= 0:
                weights = dense[dense_row[v]]
                for label in range(row.shape[0]):
                    row[label] += x * weights[label]
            else:
                for q in range(w_indptr[v], w_indptr[v + 1]):
                    row[w_columns[q]] += x * w_data[q]


@compiled
def _sift_down(values: np.ndarray, ids: np.ndarray, size: int) -> None:
    """Restore a heap whose root (the worst: smallest value, largest id) was replaced."""
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
    """Sort a heap by falling value, ties by rising id, in place."""
    size = values.shape[0]
    while size > 1:
        size -= 1
        values[0], values[size] = values[size], values[0]
        ids[0], ids[size] = ids[size], ids[0]
        _sift_down(values, ids, size)


@compiled
def _largest(keys: np.ndarray) -> np.int32:
    """Return the largest of some integers, or the smallest integer; the loop runs on vectors."""
    found = np.int32(-2147483648)
    for j in range(keys.shape[0]):
        found = max(found, keys[j])
    return found


@compiled
def top_labels(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best labels of every row, by falling score, ties by smaller label.

    Parameters
    ----------
    scores : ndarray of shape (n, L), float32, C-contiguous
    k : int
        At most L.

    Returns
    -------
    labels : ndarray of shape (n, k), int32
    values : ndarray of shape (n, k), float32
    """
    n, n_labels = scores.shape
    labels = np.empty((n, k), np.int32)
    values = np.empty((n, k), np.float32)
    for i in range(n):
        ids, best = labels[i], values[i]
        best[:] = -np.inf
        ids[:] = np.int32(2147483647)
        # The bits of floats from zero on are ordered like integers, and those of negative floats are below.
        keys, best_keys = scores[i].view(np.int32), best.view(np.int32)
        for start in range(0, n_labels, WINDOW):
            stop = min(start + WINDOW, n_labels)
            if best[0] >= 0.0 and _largest(keys[start:stop]) <= best_keys[0]:
                continue
            for label in range(start, stop):
                s = scores[i, label]
                # Labels come in rising order, so an equal score never replaces an earlier label.
                if s > best[0] or (s == best[0] and label < ids[0]):
                    best[0] = s
                    ids[0] = label
                    _sift_down(best, ids, k)
        _sort_heap(best, ids)
    return labels, values


@compiled
def top_by_states(
    posterior: np.ndarray, label_states: np.ndarray, ranked: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the k labels of largest ``sum_h p_h Q_lh`` without scoring all labels.

    Labels are met in the order of the states' own lists, all lists of the states with some mass at a time, and
    scored in full when first met. A label not met by depth j scores at most ``sum_h p_h Q_(j)h`` over those
    states, plus the largest entries of the others times their mass: once the k-th best is above, no other label
    can enter (Fagin, Lotem and Naor, "Optimal aggregation algorithms for middleware", 2003).

    Parameters
    ----------
    posterior : ndarray of shape (n, h), float32
    label_states : ndarray of shape (L, h), float32
    ranked : ndarray of shape (h, m), int32
        The labels of largest ``Q_lh`` of every state, falling.
    k : int

    Returns
    -------
    labels : ndarray of shape (n, k), int32
        By falling score, ties by smaller label.
    values : ndarray of shape (n, k), float32
    found : ndarray of shape (n,), uint8
        0 where the lists were too short to tell.
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
        # States that together have all but a small mass take part with their lists.
        n_active, rest = 0, 0.0
        mass = np.float64(0.0)
        for j in range(n_states):
            h = order[j]
            if mass > 1.0 - 1e-4:
                rest += p[h] * np.float64(label_states[ranked[h, 0], h])
            else:
                mass += p[h]
                n_active += 1
        for j in range(depth):
            bound = rest
            for a in range(n_active):
                h = order[a]
                label = ranked[h, j]
                row = label_states[label]
                bound += p[h] * np.float64(row[h])
                if met[label] == i:
                    continue
                met[label] = i
                score = np.float32(0.0)
                for b in range(n_states):
                    score += p[b] * row[b]
                if score > best[0] or (score == best[0] and label < ids[0]):
                    best[0] = score
                    ids[0] = label
                    _sift_down(best, ids, k)
            # The margin keeps rounding from deciding; at zero there may be ties among labels not met.
            if best[0] > bound * (1.0 + 1e-5) and best[0] > 0.0:
                found[i] = 1
                break
        if depth == n_labels:
            found[i] = 1
        _sort_heap(best, ids)
    return labels, values, found


@compiled
def invert_rows(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, d: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the inverted lists of rows: for every word, the rows that hold it in rising order, and their values.

    Returns
    -------
    indptr : ndarray of shape (d + 1,), int64
    rows : ndarray of shape (nnz,), int32
    values : ndarray of shape (nnz,), float32
    largest : ndarray of shape (d,), float32
        Largest value of every word.
    """
    starts = np.zeros(d + 1, np.int64)
    for p in range(indices.shape[0]):
        starts[indices[p] + 1] += 1
    for v in range(d):
        starts[v + 1] += starts[v]
    free = starts[:d].copy()
    rows, values = np.empty(indices.shape[0], np.int32), np.empty(indices.shape[0], np.float32)
    largest = np.zeros(d, np.float32)
    for i in range(indptr.shape[0] - 1):
        for p in range(indptr[i], indptr[i + 1]):
            v = indices[p]
            at = free[v]
            rows[at] = i
            values[at] = data[p]
            free[v] = at + 1
            largest[v] = max(largest[v], data[p])
    return starts, rows, values, largest


@compiled
def mask_rows(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, bits: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return which of 64 words every row holds, and the largest ratio of their values to the scale of the word.

    Parameters
    ----------
    indptr, indices, data : ndarray
        Rows in CSR.
    bits : ndarray of shape (d,), int8
        Bit of each of those words, -1 of the others.
    scale : ndarray of shape (d,), float32

    Returns
    -------
    masks : ndarray of shape (n,), uint64
    caps : ndarray of shape (n,), float32
    """
    n = indptr.shape[0] - 1
    masks, caps = np.zeros(n, np.uint64), np.zeros(n, np.float32)
    for i in range(n):
        for p in range(indptr[i], indptr[i + 1]):
            v = indices[p]
            if bits[v] >= 0:
                masks[i] |= np.uint64(1) << np.uint64(bits[v])
                caps[i] = max(caps[i], data[p] / max(scale[v], np.float32(1e-30)))
    return masks, caps


@compiled
def nearest_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    lists_indptr: np.ndarray,
    lists_rows: np.ndarray,
    lists_data: np.ndarray,
    largest: np.ndarray,
    rows_indptr: np.ndarray,
    rows_indices: np.ndarray,
    rows_data: np.ndarray,
    alive: np.ndarray,
    bits: np.ndarray,
    masks: np.ndarray,
    scale: np.ndarray,
    caps: np.ndarray,
    k: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k indexed rows of largest inner product with every query row, exactly.

    Lists are read from the shortest on. A row met with partial product p over the words read so far, whose
    part of the query has length a, can gain at most ``b sqrt(1 - (p / a)^2)`` from the unread words, b the
    length of their part of the query, as indexed rows have length at most one; and at most the sum of the
    largest entries of those words. Once that is below the k-th best partial product for a row not met yet
    (p = 0), the unread lists, the long ones of common words, are skipped. Of a row met, a mask tells which
    common words it holds at all: b counts those alone, and no value exceeds the row's cap times the scale of
    the word. The few rows that can still enter are multiplied in full.

    Parameters
    ----------
    indptr, indices, data : ndarray
        Query rows in CSR, non-negative.
    lists_indptr, lists_rows, lists_data : ndarray
        For every word the indexed rows that hold it.
    largest : ndarray of shape (d,)
        Largest value of every word over the indexed rows.
    rows_indptr, rows_indices, rows_data : ndarray
        The indexed rows in CSR, of Euclidean length at most one.
    alive : ndarray of shape (N,), uint8
        Rows that may be returned.
    bits : ndarray of shape (d,), int8
        Bit of each common word in the masks, -1 of the others.
    masks : ndarray of shape (N,), uint64
        Common words of the indexed rows.
    scale : ndarray of shape (d,), float32
    caps : ndarray of shape (N,), float32
        Largest ratio of a value to the scale of its word, over the common words of a row.
    k : int

    Returns
    -------
    rows : ndarray of shape (n, k), int32
        By falling product, ties by smaller row; -1 where fewer than k rows share a word.
    products : ndarray of shape (n, k), float32
    """
    n, n_rows = indptr.shape[0] - 1, rows_indptr.shape[0] - 1
    found = np.full((n, k), -1, np.int32)
    products = np.zeros((n, k), np.float32)
    # Rows met get slots in the order of meeting, so that only one array is read at random; -2 never votes.
    slot = np.empty(n_rows, np.int32)
    for r in range(n_rows):
        slot[r] = -1 if alive[r] else -2
    partial = np.empty(n_rows, np.float32)
    touched = np.empty(n_rows, np.int32)
    query = np.zeros(lists_indptr.shape[0] - 1, np.float32)
    heap_ids = np.empty(k, np.int32)
    heap = np.empty(k, np.float32)
    unread_bits = np.empty(64, np.uint64)
    unread_squares = np.empty(64)
    unread_scaled = np.empty(64)
    # Products in float32 and bounds round differently; the margin keeps bounds bounds.
    margin = 1e-5
    for i in range(n):
        start, stop = indptr[i], indptr[i + 1]
        n_words = stop - start
        cost = np.empty(n_words, np.int64)
        rest_sum, rest_square = 0.0, 0.0
        for p in range(start, stop):
            v = indices[p]
            query[v] = data[p]
            cost[p - start] = lists_indptr[v + 1] - lists_indptr[v]
            rest_sum += data[p] * largest[v]
            rest_square += data[p] * data[p]
        order = np.argsort(cost)
        read_square = 0.0
        n_touched = 0
        cut = 0.0
        complete = True
        for step in range(n_words):
            p = start + order[step]
            v, x = indices[p], data[p]
            gain = min(rest_sum, np.sqrt(max(rest_square, 0.0))) + margin
            # A selection costs less than reading half as many entries of a list.
            if n_touched >= k and 2 * cost[order[step]] > n_touched:
                heap[:] = 0.0
                heap_ids[:] = 0
                for t in range(n_touched):
                    s = partial[t]
                    if s > heap[0]:
                        heap[0] = s
                        _sift_down(heap, heap_ids, k)
                if heap[0] > gain:
                    complete = False
                    cut = heap[0]
                    break
            for q in range(lists_indptr[v], lists_indptr[v + 1]):
                r = lists_rows[q]
                t = slot[r]
                if t >= 0:
                    partial[t] += x * lists_data[q]
                elif t == -1:
                    slot[r] = n_touched
                    touched[n_touched] = r
                    partial[n_touched] = x * lists_data[q]
                    n_touched += 1
            rest_sum -= x * largest[v]
            rest_square -= x * x
            read_square += x * x
        rest_length = np.sqrt(max(rest_square, 0.0))
        n_unread = 0
        other_square = 0.0
        if not complete:
            for j in range(step, n_words):
                p = start + order[j]
                b = bits[indices[p]]
                if b >= 0:
                    unread_bits[n_unread] = np.uint64(b)
                    unread_squares[n_unread] = data[p] * data[p]
                    unread_scaled[n_unread] = data[p] * scale[indices[p]]
                    n_unread += 1
                else:
                    other_square += data[p] * data[p]
        other_length = np.sqrt(other_square)
        heap[:] = 0.0
        heap_ids[:] = np.int32(2147483647)
        low = 0.0
        # The rows of largest partial product first: they raise the bar for the many others.
        for half in range(2):
            if half == 1 and not complete:
                # The smallest p with p + b sqrt(1 - (p / a)^2) at the bar.
                bar = max(cut, heap[0]) - margin
                ratio = 1.0 + rest_length * rest_length / read_square
                root = bar * bar - ratio * (bar * bar - rest_length * rest_length)
                low = max((bar - np.sqrt(max(root, 0.0))) / ratio - margin, bar - rest_sum)
            for t in range(n_touched):
                s = partial[t]
                if s == 0.0 or s < low or (half == 0 and s < cut):
                    continue
                r = touched[t]
                partial[t] = 0.0
                if not complete:
                    if half == 1:
                        mask = masks[r]
                        square, scaled = other_square, 0.0
                        for u in range(n_unread):
                            has = np.float64((mask >> unread_bits[u]) & np.uint64(1))
                            square += unread_squares[u] * has
                            scaled += unread_scaled[u] * has
                        free = np.sqrt(1.0 - min(1.0, s * s / read_square))
                        most = min(np.sqrt(square) * free, scaled * caps[r] + other_length * free)
                        if s + most + margin < max(cut, heap[0]):
                            continue
                    s = np.float32(0.0)
                    for q in range(rows_indptr[r], rows_indptr[r + 1]):
                        s += query[rows_indices[q]] * rows_data[q]
                if s > heap[0] or (s == heap[0] and s > 0.0 and r < heap_ids[0]):
                    heap[0] = s
                    heap_ids[0] = r
                    _sift_down(heap, heap_ids, k)
        for t in range(n_touched):
            slot[touched[t]] = -1
        _sort_heap(heap, heap_ids)
        for j in range(k):
            if heap[j] > 0.0:
                found[i, j] = heap_ids[j]
                products[i, j] = heap[j]
        for p in range(start, stop):
            query[indices[p]] = 0.0
    return found, products


@compiled
def add_votes(
    rows: np.ndarray,
    products: np.ndarray,
    y_indptr: np.ndarray,
    y_indices: np.ndarray,
    n_neighbors: int,
    power: float,
    factor: float,
    best_factor: float,
    out: np.ndarray,
) -> None:
    """Add the labels of the nearest rows: normalised votes ``product^power`` and each label's best product.

    Parameters
    ----------
    rows : ndarray of shape (n, m), int32
        As returned by `nearest_rows`; the first ``n_neighbors`` vote.
    products : ndarray of shape (n, m), float32
    y_indptr, y_indices : ndarray
        Labels of the indexed rows in CSR.
    n_neighbors : int
    power : float
    factor, best_factor : float
        Weights of the votes and of the best product.
    out : ndarray of shape (n, L), float32
        Changed in place.
    """
    best = np.zeros(out.shape[1], np.float32)
    m = min(n_neighbors, rows.shape[1])
    for i in range(rows.shape[0]):
        total = 0.0
        for j in range(m):
            if rows[i, j] >= 0:
                total += products[i, j] ** power
        if total <= 0.0:
            continue
        for j in range(m):
            r = rows[i, j]
            if r < 0:
                continue
            vote = np.float32(factor * products[i, j] ** power / total)
            for q in range(y_indptr[r], y_indptr[r + 1]):
                label = y_indices[q]
                out[i, label] += vote
                best[label] = max(best[label], products[i, j])
        for j in range(m):
            r = rows[i, j]
            if r < 0:
                continue
            for q in range(y_indptr[r], y_indptr[r + 1]):
                label = y_indices[q]
                if best[label] > 0.0:
                    out[i, label] += np.float32(best_factor) * best[label]
                    best[label] = 0.0
