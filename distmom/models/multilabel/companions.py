"""Labels that occur together: how often a label is in the documents of another one, as features of a ranking.

A head scores every label by itself, although a document that surely has one label is likely to have its companions
too. The shares of companions are counted in the training documents.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from distmom.compiled import compiled
from distmom.corpus.block import csr_from_parts
from distmom.engine import Csr

#: number of documents that is added to those of a label, so that the shares of rare labels are small
ADDED_DOCUMENTS = 2.0
#: least number of documents that have both labels of a pair
LEAST_DOCUMENTS = 2
#: most pairs of labels that are counted, as documents have them; of more, evenly spaced documents are used
MOST_PAIRS = 64_000_000


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
    counted = csr_array(own[rows[::stride]], dtype=np.float32)
    counted.data[:] = 1.0
    n_documents = np.asarray(counted.sum(axis=0), np.float64).ravel()
    found = csr_array(counted.T @ counted)
    found.sort_indices()
    first = np.repeat(np.arange(found.shape[0]), np.diff(found.indptr))
    kept = (found.data >= LEAST_DOCUMENTS) & (first != found.indices)
    shares = found.data[kept] / (n_documents[first[kept]] + ADDED_DOCUMENTS)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(first[kept], minlength=found.shape[0]))])
    return Csr.of(csr_from_parts(shares.astype(np.float32), found.indices[kept], indptr, found.shape))


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
