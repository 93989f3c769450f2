"""Scorers of chosen labels: every head keeps only their columns, so the work falls with their number.

What does not depend on labels remains: the features of a document, the search for its neighbours, the posterior of
its latent states. Scores of sparse weights and of votes have the same bits as those of all labels. Products of
dense matrices, in the heads on the sketch and on the states, may differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from distmom.engine import Csr, MixedRows
from distmom.errors import UsageError
from distmom.models.multilabel.heads.heads import (
    FrequentHead,
    GateHead,
    Head,
    RidgeHead,
    SparseHead,
    StateHead,
    rank_labels,
)
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead, SketchNeighbors
from distmom.models.multilabel.heads.scorer import Scorer

#: entries of a matrix whose columns are looked up at a time
PIECE_ENTRIES = 1 << 22


def label_numbers(names: Sequence[str], known: Sequence[str]) -> np.ndarray:
    """Return the numbers of labels given by name, int32, in the order given.

    Parameters
    ----------
    names : sequence of str
        At least one; without repetition.
    known : sequence of str
        Names of all labels.

    Raises
    ------
    UsageError
        If there is no name, a name is unknown or occurs twice, or ``names`` is not a sequence of names.
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"labels: expected a list of names of labels, got {names!r}")
    if not len(names):
        raise UsageError("labels: expected at least one name of a label, got none")
    numbers = {name: i for i, name in enumerate(known)}
    met: set[str] = set()
    for name in names:
        if name not in numbers:
            raise UsageError(f"labels: the model has no label {name!r}")
        if name in met:
            raise UsageError(f"labels: {name!r} is given twice")
        met.add(name)
    return np.array([numbers[name] for name in names], np.int32)


def of_labels(scorer: Scorer, labels: np.ndarray) -> Scorer:
    """Return the scorer of some labels, numbered by their place among ``labels``.

    The labels are ranked by the blend: ranking the best labels again depends on all labels.

    Parameters
    ----------
    scorer : Scorer
    labels : ndarray of shape (m,), int32
        Without repetition.
    """
    factor, log_odds = scorer.label_factor, scorer.label_log_odds
    return replace(
        scorer,
        n_labels=len(labels),
        heads=tuple((name, head_of_labels(head, labels)) for name, head in scorer.heads),
        label_factor=None if factor is None else np.asarray(factor)[labels],
        label_log_odds=None if log_odds is None else np.asarray(log_odds)[labels],
        reranker=None,
    )


def head_of_labels(head: Head, labels: np.ndarray) -> Head:
    """Return a head that scores only some labels (see `of_labels`)."""
    if isinstance(head, StateHead):
        states = np.asarray(head.label_states)[labels]
        return replace(head, label_states=states, ranked=rank_labels(states))
    if isinstance(head, RidgeHead):
        return RidgeHead(np.asarray(head.coefficients)[:, labels], np.asarray(head.intercept)[labels])
    if isinstance(head, SparseHead | GateHead):
        w = head.weights
        dense = np.ascontiguousarray(np.asarray(w.dense)[:, labels])
        return replace(head, weights=MixedRows(columns_of(w.sparse, labels), w.dense_row, dense))
    if isinstance(head, FrequentHead):
        places = np.full(max([-1, *labels.tolist(), *np.asarray(head.labels).tolist()]) + 1, -1, np.int32)
        places[labels] = np.arange(len(labels), dtype=np.int32)
        found = places[np.asarray(head.labels)]
        own = np.flatnonzero(found >= 0).astype(np.int32)
        w = head.weights
        dense = np.ascontiguousarray(np.asarray(w.dense)[:, own])
        weights = MixedRows(columns_of(w.sparse, own), w.dense_row, dense)
        return replace(head, weights=weights, labels=found[own])
    if isinstance(head, NeighborsHead | SketchNeighbors):
        return replace(head, labels=columns_of(head.labels, labels))
    raise TypeError(f"expected a head, got {type(head).__name__}")


def columns_of(matrix: Csr, columns: np.ndarray) -> Csr:
    """Return some columns of a sparse matrix, numbered by their place among ``columns``.

    Entries keep their order within rows.
    """
    own = matrix.opened()
    places = np.full(own.n_columns, -1, np.int32)
    places[columns] = np.arange(len(columns), dtype=np.int32)
    n_entries = len(own.indices)
    ends = np.zeros(len(own.indptr), np.int64)
    indices: list[Any] = [np.zeros(0, np.int32)]
    data: list[Any] = [np.zeros(0, own.data.dtype)]
    n_kept = 0
    for start in range(0, n_entries, PIECE_ENTRIES):
        piece = slice(start, min(start + PIECE_ENTRIES, n_entries))
        found = places[own.indices[piece]]
        kept = found >= 0
        before = np.concatenate([[0], np.cumsum(kept)])
        first, last = np.searchsorted(own.indptr, [piece.start, piece.stop], side="right")
        ends[first:last] = n_kept + before[own.indptr[first:last] - piece.start]
        indices.append(found[kept])
        data.append(np.asarray(own.data[piece])[kept])
        n_kept += int(before[-1])
    return Csr(ends, np.concatenate(indices), np.concatenate(data), len(columns))
