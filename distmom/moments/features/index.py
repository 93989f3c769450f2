"""The inverted index of a corpus: for every word, the documents that contain it, with their tf-idf values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block
from distmom.corpus.block import csr_from_parts
from distmom.engine.passes import Pass, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.features.tfidf import tfidf_rows


@dataclass(frozen=True)
class IndexPass(Pass):
    """Index the tf-idf rows of all documents by their words, and collect their labels.

    A matrix with a row or a column for every document is a sum over blocks, each of which has entries for its own
    documents alone.

    Attributes
    ----------
    n_documents, n_labels : int
        Numbers of documents and labels of the corpus.
    idf : ndarray of shape (n_words,) or (0,)
    nnz_words, nnz_labels : int
        Entries of the words and of the labels of all documents, for the plan.

    Notes
    -----
    Sums: ``lists`` = A' (n_words, n_documents) sparse, ``labels`` = Y (n_documents, n_labels) sparse.
    """

    n_documents: int = 0
    n_labels: int = 0
    idf: Any = None
    nnz_words: int = 0
    nnz_labels: int = 0

    # One matrix with a row for every word is kept per block.
    block_rows = 1 << 15

    def specs(self) -> dict[str, SumSpec]:
        return {
            "lists": SumSpec(
                (self.n_features, self.n_documents),
                "float32",
                tall="features",
                sparse=True,
                n_bytes=8 * self.nnz_words,
            ),
            "labels": SumSpec(
                (self.n_documents, self.n_labels),
                "float32",
                tall="documents",
                sparse=True,
                n_bytes=8 * self.nnz_labels,
            ),
        }

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        a = tfidf_rows(block.words, self.idf, np.float32).tocsc()
        holders = a.indices.astype(np.int32) + np.int32(block.first)
        sums["lists"].add(csr_from_parts(a.data, holders, a.indptr, (a.shape[1], self.n_documents)))
        y = block.labels
        ones = csr_from_parts(np.ones(y.nnz, np.float32), y.indices, y.indptr, y.shape)
        sums["labels"].add(placed(ones, block.first, self.n_documents))
        return None


def placed(rows: csr_array, first: int, n_rows: int) -> csr_array:
    """Return rows as rows ``first, first + 1, ...`` of a matrix of ``n_rows`` rows, the others empty."""
    after = n_rows - first - rows.shape[0]
    indptr = np.concatenate([np.zeros(first, np.int64), rows.indptr, np.full(after, rows.indptr[-1])])
    return csr_from_parts(rows.data, rows.indices, indptr, (n_rows, rows.shape[1]))
