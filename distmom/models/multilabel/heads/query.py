"""A block of documents that heads score, with the features that they need, each computed at most once.

X is the presence of words, A the tf-idf rows of unit length, Z = A R a sketch of them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block
from distmom.engine import Csr
from distmom.moments.features.tfidf import tfidf_rows
from distmom.moments.kernels import gather


class Index(Protocol):
    """An inverted index of documents, such as a `NeighborsHead`."""

    @property
    def lists(self) -> Csr: ...

    @property
    def alive(self) -> Any: ...

    def search(self, features: csr_array, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and cosines of the k nearest indexed rows."""


class QueriedHead:
    """Base class of heads, with defaults for optional attributes and methods."""

    #: whether its scores multiply those of other heads, so that it ranks no labels itself
    multiplies: ClassVar[bool] = False
    #: whether its method ``top`` finds the best labels, usually without scoring all of them
    finds_top: ClassVar[bool] = False

    def prepare(self, query: Query) -> None:
        """Compute intermediate results that are cheaper for all documents at once; none by default."""


class Query:
    """A block of documents with the features that heads need, each computed at most once.

    Parameters
    ----------
    block : Block
        Documents over the model's vocabulary.
    idf : ndarray of shape (d,) or (0,)
        Inverse document frequencies.
    basis : ndarray of shape (d, r), optional
        R of the sketch; needed by heads on the sketch.
    """

    def __init__(self, block: Block, idf: np.ndarray, basis: np.ndarray | None = None) -> None:
        self.block = block
        self.idf = idf
        self.basis = basis
        self._neighbors: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @cached_property
    def features(self) -> csr_array:
        """tf-idf rows, float32."""
        return tfidf_rows(self.block.words, self.idf, np.float32)

    @cached_property
    def sketch(self) -> np.ndarray:
        """Z, float32."""
        if self.basis is None:
            raise ValueError("this model has no sketch basis")
        a = self.features
        return gather(a.indptr, a.indices, a.data, self.basis).astype(np.float32)

    def nearest(self, index: Index, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return at least k nearest indexed rows and their cosines, found once for heads that share an index."""
        key = id(index.lists.data)
        known = self._neighbors.get(key)
        if known is None or known[0].shape[1] < min(k, len(index.alive)):
            known = self._neighbors[key] = index.search(self.features, k)
        return known

    def covariates(self, index: Index | None) -> np.ndarray:
        """Return the covariates of the documents, (n, 2) float64 (see `Covariates`); cosines need an index."""
        n_words = np.log1p(np.diff(self.block.words.indptr).astype(np.float64))
        if index is None:
            return np.stack([n_words, np.zeros_like(n_words)], axis=1)
        cosines = self.nearest(index, 1)[1].max(axis=1, initial=0.0)
        return np.stack([n_words, np.asarray(cosines, np.float64)], axis=1)

    def part(self, rows: slice) -> Query:
        """Return the query of some of the documents, with the nearest rows found so far."""
        query = Query(self.block.take(rows), self.idf, self.basis)
        query._neighbors = {key: (f[rows], c[rows]) for key, (f, c) in self._neighbors.items()}
        return query
