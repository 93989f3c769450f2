"""Scores of all heads for the candidate labels of held-out documents, on which a blend is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from distmom.corpus import Block, Corpus, MemoryCorpus
from distmom.engine import Engine, Pass, PassResult, Rows, Selection, Sums, SumSpec
from distmom.engine.passes import transform_fields
from distmom.engine.stored.arrays import release_maps
from distmom.hashing import scramble_array
from distmom.models.multilabel.blend.objective import DEPTHS, ideal_gains
from distmom.models.multilabel.blend.scored import Scored
from distmom.models.multilabel.heads.collection import Heads
from distmom.models.multilabel.heads.heads import rows_at_a_time
from distmom.models.multilabel.heads.query import Query
from distmom.models.multilabel.kernels import top_labels

#: up to this number of labels all of them are candidates
ALL_LABELS = 1000
#: labels that each head adds to the candidates of a document
PER_HEAD = 30
#: random labels that are added to them where a stack by classes of labels may be chosen
N_RANDOM = 20
#: smallest number of documents that are scored together by all heads
MIN_ROWS = 16

AnyHeads = TypeVar("AnyHeads", bound=Heads)


def n_candidates(n_labels: int, n_heads: int, n_random: int = 0) -> int:
    """Return the number of candidate labels of a document, at most."""
    return n_labels if n_labels <= ALL_LABELS else min(PER_HEAD, n_labels) * n_heads + n_random


@dataclass(frozen=True)
class CandidatesPass(Pass):
    """Score held-out documents with every head and keep the scores on candidate labels.

    Attributes
    ----------
    heads : Heads
    n_labels, n_dense, n_heads : int
        Number of labels, of heads that score all labels, and of all heads, at most; the memory of a block and the
        size of the rows depend on them. The heads themselves are memory-mapped.
    inverse : ndarray of shape (L,), optional
        Inverse propensities of the labels, where the objective weights by them.
    n_random : int, default 0
        Number of random candidates of a document.

    Notes
    -----
    Rows: arrays of `Scored`, with ``ideal`` only where there are inverse propensities.
    """

    heads: Heads | None = None
    n_labels: int = 0
    n_dense: int = 0
    n_heads: int = 0
    inverse: Any = None
    n_random: int = 0

    # Few documents of a shard are held out, and searching for many of them at once is cheaper.
    block_rows = 1 << 15

    @property
    def name(self) -> str:
        return "selection"

    def specs(self) -> dict[str, SumSpec]:
        return {"n_documents": SumSpec(())}

    def working_bytes(self, n_rows: int) -> int:
        # Scores of every dense head, and the true labels.
        window = min(n_rows, rows_at_a_time(self.n_labels, MIN_ROWS))
        return window * self.n_labels * (4 * self.n_dense + 1)

    @property
    def row_bytes(self) -> int:
        width = n_candidates(self.n_labels, self.n_heads, self.n_random)
        of_document = width * (4 + 4 * self.n_heads + 1) + 4 * self.n_heads + 12
        of_document += 0 if self.inverse is None else 8 * len(DEPTHS)
        return int(of_document if self.selection is None else self.selection.fraction * of_document)

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        assert self.heads is not None
        query = self.heads.query(block)
        for _, head in self.heads.heads:
            if block.n_documents:
                head.prepare(query)
        parts = []
        for window in self.heads.blocks(block.n_documents, MIN_ROWS):
            # All heads are large, and their mapped pages count as memory once they are read.
            release_maps()
            parts.append(self._candidates(query.part(window)))
        sums["n_documents"] += block.n_documents
        if not parts:
            parts = [self._candidates(query)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _candidates(self, query: Query) -> dict[str, np.ndarray]:
        heads, block = self.heads, query.block
        assert heads is not None
        n, n_labels = block.n_documents, heads.n_labels
        every = n_labels <= ALL_LABELS
        depth = min(PER_HEAD, n_labels)
        n_ranking = sum(not head.multiplies for _, head in heads.heads)
        width = n_candidates(n_labels, n_ranking, self.n_random)
        dense: dict[int, np.ndarray] = {}
        tops, best = [], []
        for h, (_, head) in enumerate(heads.heads):
            if head.multiplies:
                best.append(np.ones(n, np.float32))
                continue
            if head.finds_top and not every:
                labels, values = head.top(query, 1.0, depth)
                best.append(values[:, 0])
            else:
                dense[h] = np.zeros((n, n_labels), np.float32)
                head.add_scores(query, 1.0, dense[h])
                best.append(dense[h].max(axis=1))
                labels = np.zeros((n, 0), np.int32) if every else top_labels(dense[h], depth)[0]
            tops.append(labels)
        if every:
            labels = np.broadcast_to(np.arange(n_labels, dtype=np.int32), (n, n_labels)).copy()
        else:
            tops.append(drawn_labels(block, n_labels, self.n_random))
            labels = np.sort(np.hstack(tops), axis=1) if n else np.zeros((0, width), np.int32)
            labels[:, 1:][labels[:, 1:] == labels[:, :-1]] = -1
        known = np.maximum(labels, 0)
        scores = np.stack(
            [
                np.take_along_axis(dense[h], known, axis=1) if h in dense else head.scores_at(query, known)
                for h, (_, head) in enumerate(heads.heads)
            ],
            axis=1,
        )
        truth = np.zeros((n, n_labels), np.uint8)
        owner = np.repeat(np.arange(n), np.diff(block.labels.indptr))
        truth[owner, block.labels.indices] = 1
        found = np.take_along_axis(truth, known, axis=1) * (labels >= 0)
        ideal = {} if self.inverse is None else {"ideal": ideal_gains(block.labels, self.inverse)}
        return {
            "labels": labels,
            "scores": scores,
            "best": np.stack(best, axis=1),
            "truth": found.astype(np.uint8),
            "n_true": np.diff(block.labels.indptr).astype(np.int32),
            "covariates": query.covariates(heads.index).astype(np.float32),
            **ideal,
        }


def drawn_labels(block: Block, n_labels: int, n: int) -> np.ndarray:
    """Return random labels of every document of a block, (n_documents, n) int32, which may be repeated."""
    places = np.arange(block.first * n, (block.first + block.n_documents) * n, dtype=np.uint64)
    drawn = scramble_array(places) % np.uint64(n_labels)
    return np.asarray(drawn.reshape(block.n_documents, n), np.int32)


def candidates_pass(
    corpus: Corpus | MemoryCorpus, selection: Selection, n_dense: int, n_heads: int, n_random: int = 0
) -> CandidatesPass:
    """Return the pass that scores held-out documents, without its heads."""
    return CandidatesPass(
        corpus.n_words,
        selection,
        n_labels=corpus.n_labels,
        n_dense=n_dense,
        n_heads=n_heads,
        n_random=n_random,
    )


def read_scores(engine: Engine, result: PassResult, names: Sequence[str], fold: int = 0) -> Scored:
    """Return the rows that `CandidatesPass` stored, with no more columns than a document has candidates.

    Parameters
    ----------
    engine : Engine
    result : PassResult
    names : sequence of str
        Names of the heads.
    fold : int, default 0
        Number of the fold of the documents.
    """
    shards = range(len(engine.corpus.shards))
    rows: dict[str, Any] = {
        name: np.concatenate([handle.read(i) for i in shards]) for name, handle in result.rows.items()
    }
    known = rows["labels"] >= 0
    width = int(known.sum(axis=1).max(initial=0))
    if width < known.shape[1]:
        order = np.argsort(~known, axis=1, kind="stable")[:, :width]
        rows |= {name: np.take_along_axis(rows[name], order, axis=1) for name in ("labels", "truth")}
        rows["scores"] = np.take_along_axis(rows["scores"], order[:, None], axis=2)
    return Scored(tuple(names), **rows, fold=np.full(len(known), fold))


def stored_heads(engine: Engine, heads: AnyHeads) -> AnyHeads:
    """Return heads, or the scorer that has them, with large arrays stored, so that workers can memory-map them."""
    stored: AnyHeads = transform_fields(
        heads,
        lambda leaf: engine.put(leaf) if isinstance(leaf, np.ndarray) and leaf.nbytes > 1 << 16 else leaf,
    )
    return stored
