"""Labels that occur together: how often a label is in the documents of another one, as features of a ranking.

A head scores every label by itself, although a document that surely has one label is likely to have its companions
too. The shares of companions are counted in the training documents.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from distmom.blas import map_on_cores, pieces
from distmom.compiled import compiled
from distmom.engine import Csr

#: number of documents that is added to those of a label, so that the shares of rare labels are small
ADDED_DOCUMENTS = 2.0
#: smallest number of documents that have both labels of a pair
LEAST_DOCUMENTS = 2
#: largest number of pairs of labels in the documents that are counted; with more, evenly spaced documents are used
MOST_PAIRS = 256_000_000
#: labels whose companions are counted at a time
PIECE_LABELS = 2_000


def companion_shares(labels: Csr, alive: np.ndarray) -> Csr:
    """Return for every label the shares of its documents that have each other label too.

    Parameters
    ----------
    labels : Csr
        Labels of documents (N, L), without repetition.
    alive : ndarray of shape (N,)
        1 for the documents that are counted.

    Returns
    -------
    Csr
        (L, L) float32, without the diagonal.
    """
    own = labels.to_scipy()
    lengths = np.diff(own.indptr).astype(np.int64)
    rows = np.flatnonzero(np.asarray(alive))
    stride = max(1, -(-int((lengths[rows] ** 2).sum()) // MOST_PAIRS))
    counted = csr_array(own[rows[::stride]])
    documents, holders = Csr.of(counted, np.uint8), Csr.of(csr_array(counted.T), np.uint8)
    matrices = documents.indptr, documents.indices, holders.indptr, holders.indices
    n_labels = documents.n_columns

    def of_piece(piece: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n_kept = np.zeros(piece.stop - piece.start, np.int64)
        nothing = np.zeros(0, np.int32), np.zeros(0, np.float32)
        count_companions(*matrices, piece.start, n_labels, LEAST_DOCUMENTS, ADDED_DOCUMENTS, n_kept, *nothing)
        others, shares = np.empty(n_kept.sum(), np.int32), np.empty(n_kept.sum(), np.float32)
        count_companions(
            *matrices, piece.start, n_labels, LEAST_DOCUMENTS, ADDED_DOCUMENTS, n_kept, others, shares
        )
        return n_kept, others, shares

    parts = map_on_cores(of_piece, pieces(n_labels, PIECE_LABELS))
    n_kept, others, shares = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Csr(np.concatenate([[0], np.cumsum(n_kept)]), others, shares, n_labels)


@compiled
def count_companions(
    indptr: np.ndarray,
    indices: np.ndarray,
    holder_indptr: np.ndarray,
    holder_indices: np.ndarray,
    first: int,
    n_labels: int,
    least: int,
    added: float,
    n_kept: np.ndarray,
    others: np.ndarray,
    shares: np.ndarray,
) -> None:
    """Count the companions of some labels, or write them where there is room for them.

    Parameters
    ----------
    indptr, indices : ndarray
        Labels of the documents.
    holder_indptr, holder_indices : ndarray
        Documents of the labels.
    first : int
        The first of the labels.
    n_labels : int
    least : int
        Smallest number of documents that have both labels.
    added : float
        Number of documents that is added to those of a label.
    n_kept : ndarray of shape (n,), int64
        Number of companions of every label; written if ``others`` is empty.
    others, shares : ndarray
        Companions of all these labels, ascending, and their shares; empty, or written.
    """
    counts, met = np.zeros(n_labels, np.int32), np.empty(n_labels, np.int32)
    at = 0
    for j in range(n_kept.shape[0]):
        label, n_met = first + j, 0
        for p in range(holder_indptr[label], holder_indptr[label + 1]):
            document = holder_indices[p]
            for q in range(indptr[document], indptr[document + 1]):
                other = indices[q]
                if counts[other] == 0:
                    met[n_met] = other
                    n_met += 1
                counts[other] += 1
        total = holder_indptr[label + 1] - holder_indptr[label] + added
        counts[label] = 0
        n_own = 0
        for m in range(n_met):
            if counts[met[m]] >= least:
                n_own += 1
        if others.shape[0] == 0:
            n_kept[j] = n_own
        else:
            kept = np.empty(n_own, np.int32)
            n_own = 0
            for m in range(n_met):
                if counts[met[m]] >= least:
                    kept[n_own] = met[m]
                    n_own += 1
            kept.sort()
            for other in kept:
                others[at] = other
                shares[at] = counts[other] / total
                at += 1
        for m in range(n_met):
            counts[met[m]] = 0


def companion_features(labels: np.ndarray, log_odds: np.ndarray, shares: Csr) -> np.ndarray:
    """Return how often labels accompany the other labels of a ranking.

    Parameters
    ----------
    labels : ndarray of shape (n, m), int32
        Labels of every document, the best one first.
    log_odds : ndarray of shape (n, m), float32
    shares : Csr
        From `companion_shares`.

    Returns
    -------
    ndarray of shape (n, m, 2), float32
        The sum over all other labels of their probability times the share of their documents that have the label,
        and the share of the documents of the first label.
    """
    out = np.zeros((*labels.shape, 2), np.float32)
    add_companions(labels, log_odds, shares.indptr, shares.indices, shares.data, out)
    return out


@compiled
def add_companions(
    labels: np.ndarray,
    log_odds: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add the features of `companion_features` to zeros; rows of the shares are sorted."""
    for i in range(labels.shape[0]):
        for j in range(labels.shape[1]):
            start, stop = indptr[labels[i, j]], indptr[labels[i, j] + 1]
            if start == stop:
                continue
            p = 1.0 / (1.0 + np.exp(-np.float64(log_odds[i, j])))
            for c in range(labels.shape[1]):
                wanted = labels[i, c]
                low, high = start, stop
                while low < high:
                    middle = (low + high) // 2
                    if indices[middle] < wanted:
                        low = middle + 1
                    else:
                        high = middle
                if low < stop and indices[low] == wanted:
                    out[i, c, 0] += p * data[low]
                    if j == 0:
                        out[i, c, 1] = data[low]
