"""Compiled loops that add scores of labels, all or some: sparse weights, and votes of the nearest rows."""

from __future__ import annotations

import numpy as np

from distmom.compiled import compiled


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
    """Add ``factor * A W`` to the dense matrix ``out`` (n, L), for A (n, d) in CSR.

    W (d, L) is in CSR, except for the words with ``dense_row[v] >= 0``, whose row is ``dense[dense_row[v]]``:
    nearly full rows of common words are several times faster to add without column indices.
    """
    # Unsigned: a signed subscript may be negative, which would be checked on every access.
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
def sparse_scores_at(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    w_indptr: np.ndarray,
    w_indices: np.ndarray,
    w_data: np.ndarray,
    dense_row: np.ndarray,
    dense: np.ndarray,
    factor: float,
    labels: np.ndarray,
    n_labels: int,
    out: np.ndarray,
) -> None:
    """Add ``factor * A W`` at some labels (n, m) of every document to ``out`` (n, m).

    The other parameters are those of `add_sparse_scores`, and so are the bits. A label that a document has several
    times is scored at its first place; -1 stands for no label.
    """
    place = np.full(n_labels, -1, np.int32)
    for i in range(labels.shape[0]):
        for j in range(labels.shape[1]):
            if labels[i, j] >= 0 and place[labels[i, j]] < 0:
                place[labels[i, j]] = j
        for p in range(indptr[i], indptr[i + 1]):
            v = indices[p]
            x = np.float32(factor * data[p])
            if dense_row[v] >= 0:
                for j in range(labels.shape[1]):
                    if labels[i, j] >= 0 and place[labels[i, j]] == j:
                        out[i, j] += x * dense[dense_row[v], labels[i, j]]
            else:
                for q in range(w_indptr[v], w_indptr[v + 1]):
                    j = place[w_indices[q]]
                    if j >= 0:
                        out[i, j] += x * w_data[q]
        for j in range(labels.shape[1]):
            if labels[i, j] >= 0:
                place[labels[i, j]] = -1


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


@compiled
def votes_at(
    rows: np.ndarray,
    products: np.ndarray,
    y_indptr: np.ndarray,
    y_indices: np.ndarray,
    n_neighbors: int,
    power: float,
    factor: float,
    best_factor: float,
    labels: np.ndarray,
    n_labels: int,
    out: np.ndarray,
) -> None:
    """Add the scores of `add_votes` at some labels (n, m) of every document to ``out`` (n, m).

    The bits are those of `add_votes`. A label that a document has several times is scored at its first place.
    """
    place = np.full(n_labels, -1, np.int32)
    best = np.zeros(labels.shape[1], np.float32)
    m = min(n_neighbors, rows.shape[1])
    for i in range(labels.shape[0]):
        total = 0.0
        for j in range(m):
            if rows[i, j] >= 0:
                total += products[i, j] ** power
        if total <= 0.0:
            continue
        for c in range(labels.shape[1]):
            best[c] = 0.0
            if place[labels[i, c]] < 0:
                place[labels[i, c]] = c
        for j in range(m):
            r = rows[i, j]
            if r < 0:
                continue
            vote = np.float32(factor * products[i, j] ** power / total)
            for q in range(y_indptr[r], y_indptr[r + 1]):
                c = place[y_indices[q]]
                if c >= 0:
                    out[i, c] += vote
                    best[c] = max(best[c], products[i, j])
        for c in range(labels.shape[1]):
            out[i, c] += np.float32(best_factor) * best[c]
            place[labels[i, c]] = -1
