"""Fit the margin classifiers of the head ``svm``: one linear support vector machine per label.

The problem of a label is that of LIBLINEAR's default: squared hinge loss on the tf-idf rows, with a constant
feature, all documents without the label being negatives. Above `MAX_VISITS` pairs of a document and a label,
negatives are a random sample whose costs make up for the others. Labels are independent of one another, so they
are cut into groups that run on all workers, and the weights have the same bits for any number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_array, csr_array

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import (
    Csr,
    Engine,
    MixedRows,
    Pruning,
    Selection,
    StoredColumns,
    Tallies,
    TallResult,
    Term,
)
from distmom.hashing import GOLDEN, scramble_array
from distmom.models.multilabel.margin_kernels import fit_margin
from distmom.models.multilabel.regression import CSR_PARTS, Features
from distmom.moments.margins import MarginsPass
from distmom.spectral.run import Run, unknown

#: costs C from which `auto` chooses
COSTS = (0.1, 0.3, 1.0)
#: most labels for which a classifier per label is fitted: more require their hardest wrong labels
MAX_LABELS = 1000
#: most pairs of a document and a label, over all labels
MAX_VISITS = 200_000_000
#: least negatives of a label, where there are as many
MIN_NEGATIVES = 20_000
#: largest difference of projected gradients, and most epochs, at which the descent ends
TOLERANCE, MAX_EPOCHS = 0.5, 100
#: weights below this share of the largest of a label are left out
KEPT_SHARE = 0.01
#: most groups of labels: each is written as one matrix with an offset for every word
MAX_GROUPS = 24
_PRUNING = Pruning(share=0.0)


@dataclass(frozen=True)
class MarginFit:
    """Weights of the classifiers, as stored arrays.

    Attributes
    ----------
    weights : dict of str to MixedRows
        W (d + 1, L) by cost, such as ``"0.3"``; the last row holds the intercepts.
    """

    weights: dict[str, MixedRows]


def tries_margin(corpus: Corpus | MemoryCorpus) -> bool:
    """Return whether ``auto`` fits margin classifiers."""
    return corpus.n_labels <= MAX_LABELS


def cost_name(cost: float) -> str:
    """Return a cost as it appears in the names of heads."""
    return f"{cost:g}"


def fit_margins(
    run: Run, features: Features, selection: Selection | None, costs: tuple[float, ...], seed: int
) -> MarginFit:
    """Fit one classifier per label and cost to the selected documents.

    Parameters
    ----------
    run : Run
    features : Features
        Its idf weights are used.
    selection : Selection or None
        Documents of the fit; None means all.
    costs : tuple of float
        Ascending; the fit for each starts from the one before.
    seed : int
        Of the order in which documents are visited, and of the sample of negatives.
    """
    corpus = run.corpus
    pass_ = MarginsPass(
        corpus.n_words,
        n_documents=corpus.n_documents,
        n_labels=corpus.n_labels,
        idf=features.idf,
        nnz_words=sum(s.nnz_words for s in corpus.shards),
        nnz_labels=sum(s.nnz_labels for s in corpus.shards),
    )
    out = TallResult(unknown(), unknown())
    found = run.scan(pass_, _fitted, selection, costs, seed, out=out)
    fit: MarginFit = run.rows(_margin_fit, found, costs, out=unknown())
    return fit


def _fitted(
    engine: Engine, tallies: Tallies, selection: Selection | None, costs: tuple[float, ...], seed: int
) -> TallResult:
    corpus = engine.corpus
    n, n_labels, d = corpus.n_documents, corpus.n_labels, corpus.n_words
    rows, holders = (engine.combine([Term(tallies.runs[name])]) for name in ("rows", "holders"))
    known = np.ones(n, bool) if selection is None else selection.mask(0, n)
    alive = engine.put(known.astype(np.uint8))
    n_groups = min(MAX_GROUPS, n_labels)
    runs = engine.map_runs(
        _fit_group, n_groups, (d + 1, n_labels), len(costs), n_groups, rows, holders, alive, costs, d, seed
    )
    states: dict[str, StoredColumns] = {}
    for cost, own in zip(costs, runs, strict=True):
        mixed = engine.combine_mixed([Term(own)], _PRUNING)
        arrays = {part: getattr(mixed.sparse, part) for part in CSR_PARTS}
        arrays |= {"dense_row": mixed.dense_row, "dense": mixed.dense}
        states |= {f"{cost_name(cost)}.{name}": StoredColumns((array,)) for name, array in arrays.items()}
    return TallResult(states, {})


def _margin_fit(engine: Engine, found: TallResult, costs: tuple[float, ...]) -> MarginFit:
    n_labels = engine.corpus.n_labels

    def weights(name: str) -> MixedRows:
        indptr, indices, data, dense_row, dense = (
            found.states[f"{name}.{part}"].parts[0] for part in (*CSR_PARTS, "dense_row", "dense")
        )
        return MixedRows(Csr(indptr, indices, data, n_labels), dense_row, dense)

    return MarginFit({cost_name(cost): weights(cost_name(cost)) for cost in costs})


def _fit_group(
    index: int,
    n_groups: int,
    rows: Csr,
    holders: Csr,
    alive: Any,
    costs: tuple[float, ...],
    d: int,
    seed: int,
) -> list[csr_array]:
    """Fit the classifiers of labels ``index, index + n_groups, ...``; return their weights for every cost."""
    own, y = rows.opened(), holders.opened()
    documents = np.flatnonzero(alive.load()).astype(np.int32)
    n_labels = len(y.indptr) - 1
    n_negatives = max(MIN_NEGATIVES, MAX_VISITS // max(1, n_labels))
    found: list[list[tuple[np.ndarray, np.ndarray, int]]] = [[] for _ in costs]
    for label in range(index, n_labels, n_groups):
        holding = np.asarray(y.indices[y.indptr[label] : y.indptr[label + 1]])
        fits = label_weights(own, documents, holding, costs, d, n_negatives, seed + label)
        for parts, (words, values) in zip(found, fits, strict=True):
            parts.append((words, values, label))
    return [_by_word(parts, (d + 1, n_labels)) for parts in found]


def label_weights(
    rows: Csr,
    documents: np.ndarray,
    holding: np.ndarray,
    costs: tuple[float, ...],
    d: int,
    n_negatives: int,
    seed: int,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Fit the classifier of one label for every cost.

    Parameters
    ----------
    rows : Csr
        A (n_documents, d).
    documents : ndarray of int32
        Documents of the fit, ascending.
    holding : ndarray of int32
        Documents that have the label.
    costs : tuple of float
    d : int
    n_negatives : int
        Most documents without the label that are used.
    seed : int

    Returns
    -------
    list of (ndarray, ndarray)
        Features, ascending, ``d`` for the constant one, and their weights, float32.
    """
    positive = np.isin(documents, holding, assume_unique=True)
    if not positive.any():
        # What the classifier would be: no document has the label.
        return [(np.array([d], np.int32), np.array([-1.0], np.float32))] * len(costs)
    share = n_negatives / max(1, int((~positive).sum()))
    if share < 1.0:
        drawn = scramble_array(documents.astype(np.uint64) * GOLDEN ^ np.uint64(seed))
        taken = positive | (drawn < np.uint64(share * 2.0**64))
        documents, positive = documents[taken], positive[taken]
    else:
        share = 1.0
    alpha, weights = np.zeros(len(documents)), np.zeros(d + 1)
    fits = []
    for cost in costs:
        fit_margin(
            rows.indptr, rows.indices, rows.data, documents, positive, cost, cost / share, TOLERANCE, MAX_EPOCHS,
            seed, alpha, weights,
        )  # fmt: skip
        words = np.flatnonzero(np.abs(weights) > KEPT_SHARE * np.abs(weights).max())
        fits.append((words.astype(np.int32), weights[words].astype(np.float32)))
    return fits


def _by_word(parts: list[tuple[np.ndarray, np.ndarray, int]], shape: tuple[int, int]) -> csr_array:
    """Return weights of labels as a matrix with a row for every feature."""
    words = np.concatenate([words for words, _, _ in parts])
    values = np.concatenate([values for _, values, _ in parts])
    labels = np.concatenate([np.full(len(words), label, np.int32) for words, _, label in parts])
    matrix = csr_array(coo_array((values, (words, labels)), shape=shape))
    matrix.sort_indices()
    return matrix
