"""Fit the margin classifiers of the head ``svm``: one linear support vector machine per label.

The problem of a label is that of LIBLINEAR's default: squared hinge loss on the tf-idf rows, with a constant
feature, and all documents without the label as negatives. Above `MAX_VISITS` pairs of a document and a label,
negatives are a random sample, with costs raised to make up for the others. Labels are independent of one another,
so they are cut into groups that run on all workers, and the weights have the same bits for any number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import (
    Csr,
    Engine,
    MixedRows,
    Pruning,
    Selection,
    StoredArray,
    StoredColumns,
    Tallies,
    TallResult,
    Term,
)
from distmom.models.multilabel.classifiers.descent import TOLERANCE
from distmom.models.multilabel.classifiers.margin_solver import fit_group, n_batches
from distmom.models.multilabel.heads.candidates import ALL_LABELS
from distmom.models.multilabel.heads.features import CSR_PARTS, Features
from distmom.models.multilabel.heads.regression import NO_LIMITS, WeightLimits
from distmom.moments.features.margins import MarginsPass
from distmom.spectral.program.run import Run, Trial, unknown

#: largest number of labels with margin classifiers: a stack can use their signed scores only where all labels are
#: candidates, and more labels have a gate, whose negatives are the documents for which a label is hard
MAX_LABELS = ALL_LABELS
#: largest number of frequent labels (see `frequent_labels`), and smallest number of documents of such a label
MAX_FREQUENT, MIN_DOCUMENTS = 500, 8
#: least share of the pairs of a document and a label that frequent labels hold; below it, there are none
FREQUENT_SHARE = 0.4
#: largest number of entries of the rows that their classifiers are fitted to, over all labels
MAX_FREQUENT_ENTRIES = 2_000_000_000
#: smallest number of documents of a frequent label in small corpora, where the rows that all these classifiers are
#: fitted to have at most this number of entries: they are cheap there, and the other heads are weak
FEW_MIN_DOCUMENTS, FEW_ENTRIES = 3, 500_000_000
#: cost C of these classifiers
FREQUENT_COST = 0.3
#: largest number of groups of labels: each is written as one matrix with an offset for every word
MAX_GROUPS = 24
PRUNING = Pruning(share=0.0)


@dataclass(frozen=True)
class MarginFit:
    """Weights of the classifiers, as stored arrays.

    Attributes
    ----------
    weights : dict of str to MixedRows
        W (d + 1, m) by cost, such as ``"0.3"``; the last row holds the intercepts.
    labels : tuple of int, optional
        The m labels; all by default.
    """

    weights: dict[str, MixedRows]
    labels: tuple[int, ...] | None = None

    @property
    def only(self) -> MixedRows:
        """The weights, where there is one cost."""
        (weights,) = self.weights.values()
        return weights

    @classmethod
    def stored(
        cls, found: TallResult, costs: Sequence[float], n_labels: int, labels: tuple[int, ...] | None = None
    ) -> MarginFit:
        """Return the weights that `stored_weights` stored for some costs."""

        def weights(name: str) -> MixedRows:
            indptr, indices, data, dense_row, dense = (
                found.states[f"{name}.{part}"].parts[0] for part in (*CSR_PARTS, "dense_row", "dense")
            )
            return MixedRows(Csr(indptr, indices, data, n_labels), dense_row, dense)

        return cls({cost_name(cost): weights(cost_name(cost)) for cost in costs}, labels)


def stored_weights(name: str, mixed: MixedRows) -> dict[str, StoredColumns]:
    """Return the stored arrays of weights by name."""
    arrays = {part: getattr(mixed.sparse, part) for part in CSR_PARTS}
    arrays |= {"dense_row": mixed.dense_row, "dense": mixed.dense}
    return {f"{name}.{part}": StoredColumns((array,)) for part, array in arrays.items()}


def frequent_labels(corpus: Corpus | MemoryCorpus) -> tuple[int, ...]:
    """Return the labels for which ``auto`` fits classifiers where there are too many labels to do so for all.

    These are the most frequent ones, ascending, where a few hundred labels hold many of the pairs of a document
    and a label. They are then often the first of a ranking, and there are enough documents with and without them
    to fit such classifiers well. In small corpora, they are all labels but the rarest.
    """
    if tries_margin(corpus):
        return ()
    frequency = np.asarray(corpus.label_frequency)
    n_entries = sum(s.nnz_words for s in corpus.shards)
    found = np.flatnonzero(frequency >= FEW_MIN_DOCUMENTS)
    if len(found) * n_entries <= FEW_ENTRIES:
        return tuple(found.tolist())
    most = min(MAX_FREQUENT, MAX_FREQUENT_ENTRIES // max(1, n_entries))
    least = MIN_DOCUMENTS
    if most < len(frequency):
        # Of labels that are equally frequent, all are taken, or none.
        least = max(least, int(np.partition(frequency, -most - 1)[-most - 1]) + 1)
    found = np.flatnonzero(frequency >= least)
    enough = frequency[found].sum() >= FREQUENT_SHARE * frequency.sum()
    return tuple(found.tolist()) if enough else ()


def tries_margin(corpus: Corpus | MemoryCorpus) -> bool:
    """Return whether ``auto`` fits margin classifiers."""
    return corpus.n_labels <= MAX_LABELS


def cost_name(cost: float) -> str:
    """Return a cost as it appears in the names of heads."""
    return f"{cost:g}"


def fit_margins(
    run: Run,
    features: Features,
    selection: Selection | None,
    costs: tuple[float, ...],
    seed: int,
    trial: Trial | None = None,
    limits: WeightLimits = NO_LIMITS,
    tolerance: float = TOLERANCE,
    labels: tuple[int, ...] | None = None,
) -> MarginFit:
    """Fit one classifier per label and cost to the selected documents.

    Parameters
    ----------
    run : Run
    features : Features
        Features of the corpus; only their idf weights are used.
    selection : Selection or None
        Documents of the fit; None means all.
    costs : tuple of float
        Costs C, ascending; each fit starts from the solution for the cost before.
    seed : int
        Seed of the order in which documents are visited, and of the sample of negatives.
    trial : callable, optional
        Measures the time of the fit, for a plan with times.
    limits : WeightLimits, default NO_LIMITS
        Limits on the number of weights per word and per label.
    tolerance : float, default 0.4
        Tolerance of the descent, see `descend`.
    labels : tuple of int, optional
        The labels, ascending; all by default.
    """
    corpus = run.corpus
    n_labels = corpus.n_labels if labels is None else len(labels)
    pass_ = MarginsPass(
        corpus.n_words,
        n_documents=corpus.n_documents,
        n_labels=n_labels,
        idf=features.idf,
        nnz_words=sum(s.nnz_words for s in corpus.shards),
        nnz_labels=sum(s.nnz_labels for s in corpus.shards),
        labels=labels,
    )
    out = TallResult(unknown(), unknown())
    arguments = n_labels, selection, costs, seed, limits.of(PRUNING), tolerance
    found = run.scan(pass_, _fitted, *arguments, out=out, trial=trial)
    fit: MarginFit = run.apply(_margin_fit, found, costs, n_labels, labels, out=unknown())
    return fit


def _fitted(
    engine: Engine,
    tallies: Tallies,
    n_labels: int,
    selection: Selection | None,
    costs: tuple[float, ...],
    seed: int,
    pruning: Pruning,
    tolerance: float,
) -> TallResult:
    corpus = engine.corpus
    n, d = corpus.n_documents, corpus.n_words
    rows, holders = (engine.maps.combine([Term(tallies.runs[name])]) for name in ("rows", "holders"))
    known = np.ones(n, bool) if selection is None else selection.mask(0, n)
    alive = engine.put(known.astype(np.uint8))
    found = fit_classifiers(engine, rows, holders, alive, costs, (d, n_labels), seed, pruning, tolerance)
    states: dict[str, StoredColumns] = {}
    for cost, mixed in zip(costs, found, strict=True):
        states |= stored_weights(cost_name(cost), mixed)
    return TallResult(states, {})


def fit_classifiers(
    engine: Engine,
    rows: Csr,
    holders: Csr,
    alive: StoredArray,
    costs: tuple[float, ...],
    shape: tuple[int, int],
    seed: int,
    pruning: Pruning = PRUNING,
    tolerance: float = TOLERANCE,
) -> list[MixedRows]:
    """Fit one classifier per label and cost on all workers; return the weights of every cost.

    Parameters
    ----------
    engine : Engine
    rows : Csr
        A (n_documents, d).
    holders : Csr
        Y' (n_labels, n_documents).
    alive : StoredArray of shape (n_documents,), uint8
        1 for the documents of the fit.
    costs : tuple of float
    shape : (int, int)
        Numbers of words and labels: d and n_labels.
    seed : int
    pruning : Pruning, default PRUNING
        Pruning of the weights.
    tolerance : float, default 0.4
        Tolerance of the descent, see `descend`.
    """
    d, n_labels = shape
    n_groups = min(MAX_GROUPS, n_batches(n_labels))
    runs = engine.maps.map_runs(
        fit_group,
        n_groups,
        (d + 1, n_labels),
        len(costs),
        n_groups,
        rows,
        holders,
        alive,
        costs,
        d,
        seed,
        tolerance,
    )
    return [engine.maps.combine_mixed([Term(own)], pruning) for own in runs]


def _margin_fit(
    found: TallResult,
    costs: tuple[float, ...],
    n_labels: int,
    labels: tuple[int, ...] | None,
) -> MarginFit:
    return MarginFit.stored(found, costs, n_labels, labels)
