"""The linear support vector machines of a group of labels, fitted to the rows of a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import coo_array, csr_array

from distmom.engine import Csr
from distmom.hashing import GOLDEN, scramble_array
from distmom.lanes import LANES
from distmom.models.multilabel.classifiers.descent import MAX_EPOCHS, TOLERANCE, descend_lanes, own_seed

#: largest number of pairs of a document and a label, over all labels
MAX_VISITS = 200_000_000
#: smallest number of negatives of a label, where there are that many
MIN_NEGATIVES = 20_000
#: weights below this share of the largest weight of their label are left out
KEPT_SHARE = 0.01


def n_negatives(n_labels: int) -> int:
    """Return the largest number of documents without a label that its classifier is fitted to."""
    return max(MIN_NEGATIVES, MAX_VISITS // max(1, n_labels))


def n_batches(n_labels: int) -> int:
    """Return the number of batches of labels that are fitted together."""
    return -(-n_labels // LANES)


def fit_group(
    index: int,
    n_groups: int,
    rows: Csr,
    holders: Csr,
    alive: Any,
    costs: tuple[float, ...],
    d: int,
    seed: int,
    tolerance: float = TOLERANCE,
) -> list[csr_array]:
    """Fit the classifiers of batches ``index, index + n_groups, ...``; return their weights for every cost.

    A batch is `LANES` consecutive labels.
    """
    own, y = rows.opened(), holders.opened()
    documents = np.flatnonzero(alive.load()).astype(np.int32)
    n_labels = len(y.indptr) - 1
    found: list[list[tuple[np.ndarray, np.ndarray, int]]] = [[] for _ in costs]
    for batch in range(index, n_batches(n_labels), n_groups):
        labels = range(batch * LANES, min((batch + 1) * LANES, n_labels))
        holding = [np.asarray(y.indices[y.indptr[label] : y.indptr[label + 1]]) for label in labels]
        fits = batch_weights(
            own, documents, holding, costs, d, n_negatives(n_labels), own_seed(seed, labels[0]), tolerance
        )
        for parts, each in zip(found, fits, strict=True):
            parts.extend((*weights, label) for label, weights in zip(labels, each, strict=True))
    return [by_word(parts, (d + 1, n_labels)) for parts in found]


def batch_weights(
    rows: Csr,
    documents: np.ndarray,
    holding: Sequence[np.ndarray],
    costs: tuple[float, ...],
    d: int,
    most_negatives: int,
    seed: int,
    tolerance: float = TOLERANCE,
) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Fit the classifiers of at most `LANES` labels for every cost.

    Parameters
    ----------
    rows : Csr
        A (n_documents, d).
    documents : ndarray of int32
        Documents of the fit, ascending.
    holding : sequence of ndarray of int32
        Documents that have each label.
    costs : tuple of float
    d : int
    most_negatives : int
        Approximate limit on the number of documents without a label that its classifier is fitted to.
    seed : int
    tolerance : float, default 0.4
        Tolerance of the descent, see `descend`.

    Returns
    -------
    list of list of (ndarray, ndarray)
        For every cost and label the features, ascending, ``d`` for the constant one, and their weights, float32.
    """
    taken, positive, shares = _problems(documents, holding, most_negatives, seed)
    used = taken != 0
    documents, taken, positive = documents[used], taken[used], positive[used]
    alpha, weights = np.zeros((len(documents), LANES)), np.zeros((d + 1, LANES))
    fits = []
    for cost in costs:
        descend_lanes(
            rows.indptr, rows.indices, rows.data, documents, taken, positive, np.full(LANES, cost),
            cost / shares, tolerance, MAX_EPOCHS, np.uint64(seed), alpha, weights,
        )  # fmt: skip
        fits.append([_kept(weights[:, j]) for j in range(len(holding))])
    return fits


def _problems(
    documents: np.ndarray, holding: Sequence[np.ndarray], most_negatives: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which documents each label takes and which have it, as bits, and the shares of negatives taken."""
    taken, positive = np.zeros(len(documents), np.uint8), np.zeros(len(documents), np.uint8)
    shares = np.ones(LANES)
    drawn = scramble_array(documents.astype(np.uint64) * GOLDEN ^ np.uint64(seed))
    for j, own in enumerate(holding):
        bit, has = np.uint8(1 << j), np.isin(documents, own, assume_unique=True)
        if not has.any():
            continue
        positive[has] |= bit
        shares[j] = min(1.0, most_negatives / max(1, int((~has).sum())))
        if shares[j] < 1.0:
            has |= drawn < np.uint64(shares[j] * 2.0**64)
            taken[has] |= bit
        else:
            taken |= bit
    return taken, positive, shares


def _kept(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the features whose weights are large enough, and these weights."""
    largest = float(np.abs(weights).max())
    if largest == 0.0:
        # The solution where no document has the label.
        return np.array([len(weights) - 1], np.int32), np.array([-1.0], np.float32)
    words = np.flatnonzero(np.abs(weights) > KEPT_SHARE * largest)
    return words.astype(np.int32), weights[words].astype(np.float32)


def by_word(parts: list[tuple[np.ndarray, np.ndarray, int]], shape: tuple[int, int]) -> csr_array:
    """Return weights of labels as a matrix with a row for every feature."""
    words = np.concatenate([words for words, _, _ in parts])
    values = np.concatenate([values for _, values, _ in parts])
    labels = np.concatenate([np.full(len(words), label, np.int32) for words, _, label in parts])
    matrix = csr_array(coo_array((values, (words, labels)), shape=shape))
    matrix.sort_indices()
    return matrix
