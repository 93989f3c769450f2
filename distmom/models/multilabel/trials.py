"""Trials of a fit: how long it takes to fit classifiers, to score held-out documents, and to choose a blend.

None can be tried with random arrays alone: the time of a search for neighbours depends on which words documents
share, and that of a classifier on how well words separate its label. So heads are made of random arrays and of
the documents of one block, a few of which are scored, and a few labels are fitted to these documents.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.blas import one_blas_thread
from distmom.corpus import Block, Corpus, MemoryCorpus
from distmom.engine import Csr, MixedRows
from distmom.engine.sums.algebra import transposed_product
from distmom.lanes import LANES
from distmom.models.multilabel.blend.boosting import fit_trees
from distmom.models.multilabel.blend.covariates import Covariates
from distmom.models.multilabel.blend.objective import Objective
from distmom.models.multilabel.blend.reranking import DEPTH, FEW_DEPTH, N_COMMON
from distmom.models.multilabel.blend.stack import FIT_PAIRS, Pairs, fit_stack
from distmom.models.multilabel.blend.varying import vary
from distmom.models.multilabel.blend.weighted_sum import GRID
from distmom.models.multilabel.classifiers.descent import TOLERANCE
from distmom.models.multilabel.classifiers.gate import N_HARD, hardest_labels, random_labels
from distmom.models.multilabel.classifiers.gate_solver import gate_documents, gate_weights
from distmom.models.multilabel.classifiers.margin_solver import batch_weights, n_batches, n_negatives
from distmom.models.multilabel.heads.candidates import ALL_LABELS, CandidatesPass, n_candidates
from distmom.models.multilabel.heads.collection import Heads
from distmom.models.multilabel.heads.columns import columns_of
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
from distmom.models.multilabel.variants import INDEX, Variant, needs
from distmom.moments.features.tfidf import inverse_document_frequency, tfidf_rows, with_constant

#: documents that are scored
N_QUERIES = 256
#: labels that are fitted to the documents of a block
N_LABELS_TRIED = 8
#: inputs and pairs of a regression that is tried
N_INPUTS, TRIED_PAIRS = 9, 100_000
#: regressions of all held-out documents that take as long as those fitted: constant, and varying coefficients
N_FITS, N_VARYING = 4, 2
#: ascents on all documents that take as long as that on all and those on both halves, on two cores
N_ASCENTS = 1
#: rounds of coordinate ascent over all heads and weights, the last of which finds no gain
N_ROUNDS = 3
#: trees that are tried, and the pairs that they are fitted to
N_TREES_TRIED, TRIED_EVENTS = 5, 20_000
#: trees that are usually fitted, and the usual share of the pairs that are informative
N_TREES, INFORMATIVE_SHARE = 125, 0.5


def scoring_seconds(
    block: Block,
    pass_: CandidatesPass,
    tried: Sequence[Variant],
    n_documents: int,
    rank: int,
    n_states: int,
    n_frequent: int,
) -> float:
    """Return the seconds in which held-out documents are scored by all heads, on one thread.

    Parameters
    ----------
    block : Block
        Some documents of the corpus.
    pass_ : CandidatesPass
    tried : sequence of Variant
        The variants of heads.
    n_documents : int
        Number of documents of the corpus, all of which are indexed.
    rank : int
        Columns of the sketch.
    n_states : int
        Number of latent states.
    n_frequent : int
        Number of frequent labels, which have classifiers.
    """
    words = np.unique(block.words.indices)
    numbers = np.full(block.words.shape[1], -1, np.int32)
    numbers[words] = np.arange(len(words), dtype=np.int32)
    block = block.of_words(numbers)
    heads = _heads(block, pass_.n_labels, tried, n_documents, rank, n_states, n_frequent)
    queries = block.take(slice(0, min(N_QUERIES, block.n_documents)))
    if not queries.n_documents:
        return 0.0
    scoring = replace(pass_, n_features=len(words), selection=None, heads=heads)
    index = next(head for _, head in heads.heads if isinstance(head, NeighborsHead))
    with one_blas_thread():
        # Compiles, or loads, the kernels.
        scoring.add(scoring.zero(), queries.take(slice(0, 1)), {})
        sums, started = scoring.zero(), time.perf_counter()
        scoring.add(sums, queries, {})
        scored = time.perf_counter() - started
        query, started = heads.query(queries), time.perf_counter()
        query.nearest(index, index.n_neighbors)
        searched = time.perf_counter() - started
    # A search takes as long as there are indexed documents.
    total = max(scored - searched, 0.0) + searched * max(1.0, n_documents / block.n_documents)
    return _held_out(pass_, n_documents) / queries.n_documents * total


def choice_seconds(block: Block, pass_: CandidatesPass, n_held_out: int) -> float:
    """Return the seconds in which a blend is chosen: one regression or evaluation, times their usual number.

    Parameters
    ----------
    block : Block
    pass_ : CandidatesPass
    n_held_out : int
        Number of held-out documents of all folds.
    """
    n = n_held_out
    width = n_candidates(pass_.n_labels, pass_.n_heads, pass_.n_random)
    rng = np.random.default_rng(0)
    if pass_.n_labels <= ALL_LABELS:
        n_tried = min(n, max(1, TRIED_PAIRS // width))
        scores = rng.uniform(size=(N_INPUTS, n_tried, width)).astype(np.float32)
        truth = (rng.uniform(size=(n_tried, width)) < 1.0 / width).astype(np.uint8)
        truth[0, 0] = 1
        covariates = Covariates(rng.uniform(size=(n_tried, 2)), rng.uniform(size=width))
        names = (INDEX,) * N_INPUTS
        pairs = Pairs(names, (False,) * N_INPUTS, scores, truth, np.ones(truth.shape, bool), covariates)
        few = pairs.some(N_INPUTS * 8)
        vary(few, fit_stack(few).stack).log_odds(few.scores, few.covariates)
        started = time.perf_counter()
        stack = fit_stack(pairs).stack
        fitted = time.perf_counter()
        vary(pairs, stack)
        seconds = N_FITS * (fitted - started) + N_VARYING * (time.perf_counter() - fitted)
        stacks = min(n * width, FIT_PAIRS) / truth.size * seconds
        return stacks + _reranker_seconds(n * min(FEW_DEPTH, width), 2 * N_INPUTS + N_COMMON)
    totals, scores = (rng.uniform(size=(n, width)).astype(np.float32) for _ in range(2))
    labels = np.broadcast_to(np.arange(width, dtype=np.int32), (n, width)).copy()
    if width < pass_.n_labels:
        labels[:, ::2] = -1
    truth = (rng.uniform(size=(n, width)) < 1.0 / max(width, 1)).astype(np.uint8)
    objective = Objective(labels, truth, truth.sum(axis=1, dtype=np.int32))
    objective.value(totals)
    started = time.perf_counter()
    objective.value(totals + np.float32(GRID[-1]) * scores)
    ascents = N_ASCENTS * pass_.n_heads * len(GRID) * N_ROUNDS * (time.perf_counter() - started)
    return ascents + _reranker_seconds(n * min(DEPTH, width), 2 * pass_.n_heads + N_COMMON)


def _reranker_seconds(n_pairs: int, n_features: int) -> float:
    """Return the seconds in which trees are fitted to informative pairs of all documents and of both halves."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(min(n_pairs, TRIED_EVENTS), n_features)).astype(np.float32)
    truth = (rng.uniform(size=len(x)) < x[:, 0]).astype(np.uint8)
    fit_trees(x[:8], truth[:8], 1)
    started = time.perf_counter()
    fit_trees(x, truth, N_TREES_TRIED)
    seconds = (time.perf_counter() - started) / len(x) / N_TREES_TRIED
    # Both halves at once.
    return 1.5 * INFORMATIVE_SHARE * n_pairs * N_TREES * seconds


def margin_seconds(
    block: Block, n_documents: int, n_labels: int, costs: tuple[float, ...], tolerance: float = TOLERANCE
) -> float:
    """Return the seconds in which the classifiers of all labels are fitted, on one thread.

    Parameters
    ----------
    block : Block
        Some documents of the corpus, to which a few labels are fitted. A descent takes as long as there are
        documents.
    n_documents : int
        Number of documents of the fit.
    n_labels : int
    costs : tuple of float
    tolerance : float, default 0.4
    """
    d, n = block.words.shape[1], block.n_documents
    if not n or not block.labels.nnz:
        return 0.0
    idf = inverse_document_frequency(np.bincount(block.words.indices, minlength=d), n)
    rows = Csr.of(tfidf_rows(block.words, idf, np.float32))
    documents, y = np.arange(n, dtype=np.int32), block.labels.tocsc()
    used = np.flatnonzero(np.diff(y.indptr))
    tried = used[:: -(-len(used) // LANES)]
    holding = [y.indices[y.indptr[j] : y.indptr[j + 1]].astype(np.int32) for j in tried]
    # The first call compiles, or loads, the kernel.
    batch_weights(rows, documents[:1], [documents[:1]], costs[:1], d, 1, 0)
    started = time.perf_counter()
    batch_weights(rows, documents, holding, costs, d, n_negatives(n_labels), 0, tolerance)
    seconds = time.perf_counter() - started
    fitted = min(n_documents, n_negatives(n_labels))
    return seconds * n_batches(n_labels) * fitted / n


def gate_seconds(block: Block, corpus: Corpus | MemoryCorpus) -> float:
    """Return the seconds in which hard labels are found and the classifiers of a gate are fitted, on one thread.

    Parameters
    ----------
    block : Block
        Some documents of the corpus. They are scored by their own sums, and a few labels are fitted to them.
    corpus : Corpus
    """
    d, n = block.words.shape[1], block.n_documents
    if not n or not block.labels.nnz:
        return 0.0
    idf = inverse_document_frequency(np.bincount(block.words.indices, minlength=d), n)
    a = tfidf_rows(block.words, idf, np.float32)
    weights = Csr.of(transposed_product(with_constant(a), csr_array(block.labels.astype(np.float32))))
    queries = block.take(slice(0, min(N_QUERIES, n)))
    hardest_labels(queries.take(slice(0, 1)), idf, weights, N_HARD)
    started = time.perf_counter()
    hardest_labels(queries, idf, weights, N_HARD)
    found = (time.perf_counter() - started) / queries.n_documents
    rows, y, n_random = Csr.of(a), block.labels.tocsc(), random_labels(corpus)
    labels = np.flatnonzero(np.diff(y.indptr))
    work, per_label = np.zeros(d + 1), int(np.ceil((N_HARD + n_random) * n / max(1, len(labels))))
    known, met = np.ones(n, bool), np.full(n, -1, np.int32)
    n_pairs, seconds = 0, 0.0
    for label in labels[:: -(-len(labels) // N_LABELS_TRIED)]:
        holding = y.indices[y.indptr[label] : y.indptr[label + 1]].astype(np.int32)
        judged = holding, np.ones(len(holding)), known, per_label, 0, label, met
        used, positive = gate_documents(*judged)
        gate_weights(rows, used[:1], positive[:1], work, 0)
        met[:] = -1
        started = time.perf_counter()
        used, positive = gate_documents(*judged)
        gate_weights(rows, used, positive, work, 0)
        seconds += time.perf_counter() - started
        n_pairs += len(used)
    pairs = sum(s.nnz_labels for s in corpus.shards) + (N_HARD + n_random) * corpus.n_documents
    return corpus.n_documents * found + seconds / max(1, n_pairs) * pairs


def _held_out(pass_: CandidatesPass, n_documents: int) -> int:
    assert pass_.selection is not None
    return max(1, int(pass_.selection.fraction * n_documents))


def _heads(
    block: Block,
    n_labels: int,
    tried: Sequence[Variant],
    n_documents: int,
    rank: int,
    n_states: int,
    n_frequent: int,
) -> Heads:
    """Return a head for every variant, made of random arrays or of the documents of a block."""
    d, rng = block.words.shape[1], np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return rng.uniform(0.1, 1.0, shape).astype(np.float32)

    idf = inverse_document_frequency(np.bincount(block.words.indices, minlength=d), block.n_documents)
    rows = tfidf_rows(block.words, idf, np.float32)
    labels = Csr.of(block.labels, np.uint8)
    cross = Csr.of(transposed_product(with_constant(rows), csr_array(block.labels.astype(np.float32))))
    dense_row = np.full(d + 1, -1, np.int32)
    weights = MixedRows(cross, dense_row, np.zeros((0, n_labels), np.float32))
    # A head for each set of parts: its variants share their arrays.
    of_parts: dict[tuple[str, ...], Head] = {}

    def head_of(variant: Variant) -> Head:
        if "states" in variant.parts:
            of_states = random(n_labels, n_states)
            topics = np.log(random(d, n_states))
            return StateHead(topics, np.zeros(n_states), of_states, ranked=rank_labels(of_states))
        if "rows" in variant.parts:
            none = Csr.of(csr_array((n_documents, n_labels), dtype=np.uint8), np.uint8)
            return SketchNeighbors(random(n_documents, rank), none, np.ones(n_documents, np.uint8))
        if "ridge" in variant.parts:
            return RidgeHead(random(rank, n_labels), random(n_labels))
        if "index" in variant.parts:
            return NeighborsHead(Csr.of(csr_array(rows.T)), labels, np.ones(block.n_documents, np.uint8))
        if "gate" in variant.parts:
            return GateHead(weights)
        if "frequent" in variant.parts:
            few = np.arange(n_frequent, dtype=np.int32)
            own = MixedRows(columns_of(cross, few), dense_row, np.zeros((0, len(few)), np.float32))
            return FrequentHead(own, few)
        return SparseHead(weights)

    for variant in tried:
        if variant.parts not in of_parts:
            of_parts[variant.parts] = head_of(variant)
    named = tuple((variant.name, of_parts[variant.parts]) for variant in tried)
    basis: Any = random(d, rank) if needs(tried, "ridge") else None
    return Heads(n_labels=n_labels, idf=idf, heads=named, basis=basis)
