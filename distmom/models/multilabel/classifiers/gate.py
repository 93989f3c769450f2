"""Fit the gate of corpora with many labels: a classifier per label against hard and random documents without it.

Where labels are too many to fit each classifier to all documents, each is fitted to the documents of its label, to
those for which the linear head ranks the label among the best wrong ones, and to random documents, as in Slice
(Jain, Balasubramanian, Chunduri and Varma, WSDM 2019). The labels are cut into groups that run on all workers, and
the weights have the same bits for any number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block, Corpus, MemoryCorpus
from distmom.corpus.block import csr_from_parts
from distmom.engine import Csr, Engine, Pruning, Selection, StoredColumns, Tallies, TallResult, Term
from distmom.engine.passes import Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.models.multilabel.classifiers.gate_solver import COST, fit_gate_group, n_drawn
from distmom.models.multilabel.classifiers.margin import (
    MAX_GROUPS,
    MAX_LABELS,
    PRUNING,
    MarginFit,
    cost_name,
    stored_weights,
)
from distmom.models.multilabel.heads.regression import NO_LIMITS, WeightLimits
from distmom.moments.features.margins import MarginsPass
from distmom.moments.features.residuals import restricted_scores
from distmom.moments.features.tfidf import tfidf_rows, with_constant
from distmom.spectral.program.run import Run, Trial, unknown

#: hard wrong labels per document
N_HARD = 10
#: largest number of entries of the rows to which all classifiers are fitted, which bounds the time
MAX_GATE_ENTRIES = 300_000_000
#: smallest and largest number of random labels per document; below the smallest, no gate is fitted
MIN_RANDOM, MAX_RANDOM = 5, 15


@dataclass(frozen=True)
class HardLabelsPass(MarginsPass):
    """Collect the tf-idf rows of all documents, and for every label its documents and those it is hard for.

    Attributes
    ----------
    weights : Csr
        W (n_words + 1, n_labels) of the linear head, float32, which finds the hard labels: the wrong ones of
        largest positive score.
    n_entries : int
        Upper bound of the number of entries of W.
    n_hard : int
        Number of hard labels per document.

    Notes
    -----
    Sums: ``rows`` as in `MarginsPass`; ``holders`` (n_labels, n_documents) sparse is 1 for the documents of a
    label and -1 for those that it is hard for.
    """

    weights: Csr | None = None
    n_entries: int = 0
    n_hard: int = 0

    @property
    def name(self) -> str:
        return "gate"

    @property
    def estimated(self) -> bool:
        # The number of weights that are not negligible is known only after they are computed.
        return True

    @property
    def mapped_bytes(self) -> int:
        return max(super().mapped_bytes, 8 * self.n_entries)

    def specs(self) -> dict[str, SumSpec]:
        n_bytes = 8 * (self.nnz_labels + self.n_hard * self.n_documents)
        shape = (self.n_labels, self.n_documents)
        judged = SumSpec(shape, "float32", tall="labels", sparse=True, n_bytes=n_bytes)
        return super().specs() | {"holders": judged}

    def working_bytes(self, n_rows: int) -> int:
        return 4 * self.n_labels + 24 * n_rows * self.n_hard

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        super().add(sums, block, rows)
        hard = hardest_labels(block, self.idf, self.weights, self.n_hard).tocsc()
        documents = hard.indices.astype(np.int32) + np.int32(block.first)
        shape = (self.n_labels, self.n_documents)
        sums["holders"].add(csr_from_parts(-hard.data, documents, hard.indptr, shape))
        return None


def hardest_labels(block: Block, idf: Any, weights: Any, n_hard: int) -> csr_array:
    """Return the wrong labels with the largest positive scores as ones (n, L), at most ``n_hard`` per row."""
    a = with_constant(tfidf_rows(block.words, idf, np.float32))
    y, n_labels = block.labels, block.labels.shape[1]
    n_true = np.diff(y.indptr)
    indptr, labels, scores = restricted_scores(
        a, y, weights, np.zeros(a.shape[1]), n_labels, n_hard, 0.0, np.zeros(0, np.float32)
    )
    documents = np.repeat(np.arange(block.n_documents), n_true + n_hard)
    # The true labels of a document come first.
    wrong = (np.arange(len(labels)) - indptr[documents] >= n_true[documents]) & (scores > 0.0)
    parts = (np.ones(int(wrong.sum()), np.float32), (documents[wrong], labels[wrong]))
    return csr_array(parts, shape=(block.n_documents, n_labels))


def random_labels(corpus: Corpus | MemoryCorpus) -> float:
    """Return the number of random labels per document that the classifiers are fitted to, at most `MAX_RANDOM`.

    A negative number means that even the documents of the labels and the hard ones would take too long.
    """
    n_documents = max(1, corpus.n_documents)
    entries = sum(s.nnz_words for s in corpus.shards) / n_documents + 1.0
    of_labels = sum(s.nnz_labels for s in corpus.shards) / n_documents
    return min(float(MAX_RANDOM), MAX_GATE_ENTRIES / entries / n_documents - of_labels - N_HARD)


def tries_gate(corpus: Corpus | MemoryCorpus) -> bool:
    """Return whether ``auto`` fits a gate: where labels are many, and the corpus not too large."""
    return corpus.n_labels > MAX_LABELS and random_labels(corpus) >= MIN_RANDOM


def fit_gate(
    run: Run,
    idf: Any,
    weights: Csr,
    n_entries: int,
    selection: Selection | None,
    seed: int,
    trial: Trial,
    limits: WeightLimits = NO_LIMITS,
) -> MarginFit:
    """Fit one classifier per label to the selected documents.

    Parameters
    ----------
    run : Run
    idf : StoredArray of shape (d,)
    weights : Csr
        Weights of the linear head.
    n_entries : int
        Upper bound of the number of these weights.
    selection : Selection or None
        Documents of the fit; None means all.
    seed : int
        Seed of the order in which documents are visited, and of the random documents.
    trial : callable
        Measures the time of the fit, for a plan with times.
    limits : WeightLimits, default NO_LIMITS
        Limits on the number of weights per word and per label.
    """
    corpus = run.corpus
    pass_ = HardLabelsPass(
        corpus.n_words,
        n_documents=corpus.n_documents,
        n_labels=corpus.n_labels,
        idf=idf,
        nnz_words=sum(s.nnz_words for s in corpus.shards),
        nnz_labels=sum(s.nnz_labels for s in corpus.shards),
        weights=weights,
        n_entries=n_entries,
        n_hard=N_HARD,
    )
    out = TallResult(unknown(), unknown())
    arguments = selection, random_labels(corpus), seed, limits.of(PRUNING)
    found = run.scan(pass_, _fitted, *arguments, out=out, trial=trial)
    fit: MarginFit = run.rows(_gate_fit, found, out=unknown())
    return fit


def _fitted(
    engine: Engine,
    tallies: Tallies,
    selection: Selection | None,
    n_random: float,
    seed: int,
    pruning: Pruning,
) -> TallResult:
    corpus = engine.corpus
    n, n_labels, d = corpus.n_documents, corpus.n_labels, corpus.n_words
    rows, judged = (engine.maps.combine([Term(tallies.runs[name])]) for name in ("rows", "holders"))
    known = np.ones(n, bool) if selection is None else selection.mask(0, n)
    alive = engine.put(known.astype(np.uint8))
    drawn = engine.put(n_drawn(int(known.sum()), np.asarray(corpus.label_frequency), n_random))
    n_groups = min(MAX_GROUPS, n_labels)
    [own] = engine.maps.map_runs(
        fit_gate_group, n_groups, (d + 1, n_labels), 1, n_groups, rows, judged, alive, drawn, d, seed
    )
    states: dict[str, StoredColumns] = stored_weights(
        cost_name(COST), engine.maps.combine_mixed([Term(own)], pruning)
    )
    return TallResult(states, {})


def _gate_fit(engine: Engine, found: TallResult) -> MarginFit:
    return MarginFit.stored(found, (COST,), engine.corpus.n_labels)
