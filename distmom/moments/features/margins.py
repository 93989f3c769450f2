"""The tf-idf rows of a corpus by document, and its documents by label, which margin classifiers read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import Block
from distmom.corpus.block import csr_from_parts
from distmom.engine.passes import Pass, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.features.index import placed
from distmom.moments.features.tfidf import tfidf_rows


@dataclass(frozen=True)
class MarginsPass(Pass):
    """Collect the tf-idf rows of all documents, and the documents of every label.

    Attributes
    ----------
    n_documents, n_labels : int
        Numbers of documents and labels of the corpus.
    idf : ndarray of shape (n_words,) or (0,)
    nnz_words, nnz_labels : int
        Numbers of entries of the words and of the labels of all documents, for the plan.
    labels : tuple of int, optional
        The labels whose documents are collected, ascending, ``n_labels`` of them; all by default.

    Notes
    -----
    Sums: ``rows`` = A (n_documents, n_words) sparse, ``holders`` = Y' (n_labels, n_documents) sparse. After the
    pass, a worker that fits a classifier needs a few numbers per document and per word (`fit_bytes`).
    """

    n_documents: int = 0
    n_labels: int = 0
    idf: Any = None
    nnz_words: int = 0
    nnz_labels: int = 0
    labels: tuple[int, ...] | None = None

    block_rows = 1 << 15

    @property
    def name(self) -> str:
        return "margins" if self.labels is None else "frequent"

    @property
    def mapped_bytes(self) -> int:
        return 8 * self.nnz_words

    @property
    def finish_bytes(self) -> int:
        # Per row, dual variables and signs of eight labels, norm and order; per word, weights of eight labels.
        return 112 * self.n_documents + 100 * self.n_features

    def specs(self) -> dict[str, SumSpec]:
        return {
            "rows": SumSpec(
                (self.n_documents, self.n_features),
                "float32",
                tall="documents",
                sparse=True,
                n_bytes=8 * self.nnz_words,
            ),
            "holders": SumSpec(
                (self.n_labels, self.n_documents),
                "float32",
                tall="labels",
                sparse=True,
                n_bytes=8 * self.nnz_labels,
            ),
        }

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        a = tfidf_rows(block.words, self.idf, np.float32)
        sums["rows"].add(placed(a, block.first, self.n_documents))
        y = (block.labels if self.labels is None else block.labels[:, self.labels]).tocsc()
        holders = y.indices.astype(np.int32) + np.int32(block.first)
        ones = np.ones(len(holders), np.float32)
        sums["holders"].add(csr_from_parts(ones, holders, y.indptr, (self.n_labels, self.n_documents)))
        return None
