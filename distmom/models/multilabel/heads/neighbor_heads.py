"""Heads by votes of the training documents that are nearest to a document."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.engine import Csr
from distmom.models.multilabel.heads.columns import columns_of
from distmom.models.multilabel.heads.query import QueriedHead, Query
from distmom.models.multilabel.heads.score_kernels import add_votes, votes_at
from distmom.models.multilabel.kernels import ROUNDING, nearest_of, nearest_rows
from distmom.spectral.saved.fields import array, record
from distmom.spectral.saved.layout import Matrix

#: labels (n, m) of the n indexed documents of a head
LABELS = Matrix(("n", "m"), ("|u1",), ("<i4", "<i8"))


@dataclass(frozen=True)
class NeighborsHead(QueriedHead):
    """Votes of the nearest training rows in the sparse features.

    Attributes
    ----------
    lists : Csr
        For every word, the indexed rows of A that contain it, and their values (d, N).
    labels : Csr
        Labels of the indexed rows (N, L).
    alive : ndarray of shape (N,), uint8
        1 for rows that vote.
    n_neighbors : int, default 75
    power : float, default 3.0
        The vote of a neighbour is its cosine raised to this power; votes are normalised to sum to one.
    factor, best : float, default 1.0 and 0.0
        Weights of the votes, and of the largest cosine among the neighbours with the label.
    skipped : float, default 0.0
        Share of the squared length of a document whose words are skipped, see `nearest_rows`.
    """

    lists: Csr = record({"": Matrix(("d", "n"))})
    labels: Csr = record({"": LABELS})
    alive: Any = array("n", types=("|u1",))
    n_neighbors: int = 75
    power: float = 3.0
    factor: float = 1.0
    best: float = 0.0
    skipped: float = 0.0

    def of_labels(self, labels: np.ndarray) -> NeighborsHead:
        """Return the head of some labels (m,), int32, numbered by their place."""
        return replace(self, labels=columns_of(self.labels, labels))

    def prepare(self, query: Query) -> None:
        """Find the nearest rows: a list is read once for all documents that contain its word."""
        query.nearest(self, self.n_neighbors)

    def search(self, features: csr_array, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and cosines of the k nearest indexed rows (see `nearest_rows`)."""
        k = min(k, len(self.alive))
        return nearest_rows(
            features.indptr, features.indices, features.data,
            self.lists.indptr, self.lists.indices, self.lists.data, self.alive, k, self.skipped,
        )  # fmt: skip

    def add_scores(self, query: Query, factor: float, out: np.ndarray) -> None:
        """Add ``factor * (self.factor * votes + self.best * largest cosine)``."""
        found, cosines = query.nearest(self, self.n_neighbors)
        y = self.labels
        add_votes(
            found, cosines, y.indptr, y.indices, self.n_neighbors, self.power,
            factor * self.factor, factor * self.best, out,
        )  # fmt: skip

    def scores_at(self, query: Query, labels: np.ndarray) -> np.ndarray:
        """Return the scores of some labels (n, m) of every document; those of repeated labels are undefined."""
        found, cosines = query.nearest(self, self.n_neighbors)
        y, out = self.labels, np.zeros(labels.shape, np.float32)
        votes_at(
            found, cosines, y.indptr, y.indices, self.n_neighbors, self.power, self.factor, self.best, labels,
            y.n_columns, out,
        )  # fmt: skip
        return out


@dataclass(frozen=True)
class SketchNeighbors(QueriedHead):
    """Votes of the nearest training rows in the sketch, found by brute force; ties by smaller row.

    Attributes
    ----------
    rows : ndarray of shape (N, r)
        Rows of Z of unit length.
    labels : Csr
        Labels of the rows (N, L).
    alive : ndarray of shape (N,), uint8
        1 for rows that vote.
    n_neighbors : int, default 20
    power : float, default 2.0
    factor : float, default 1.0
    """

    rows: Any = array("n", "r")
    labels: Csr = record({"": LABELS})
    alive: Any = array("n", types=("|u1",))
    n_neighbors: int = 20
    power: float = 2.0
    factor: float = 1.0

    def of_labels(self, labels: np.ndarray) -> SketchNeighbors:
        """Return the head of some labels (m,), int32, numbered by their place."""
        return replace(self, labels=columns_of(self.labels, labels))

    def add_scores(self, query: Query, factor: float, out: np.ndarray) -> None:
        """Add ``factor * votes``."""
        found, products = self._nearest(query)
        y, k = self.labels, products.shape[1]
        add_votes(found, products, y.indptr, y.indices, k, self.power, factor * self.factor, 0.0, out)

    def scores_at(self, query: Query, labels: np.ndarray) -> np.ndarray:
        """Return the scores of some labels (n, m) of every document; those of repeated labels are undefined."""
        found, products = self._nearest(query)
        y, k, out = self.labels, products.shape[1], np.zeros(labels.shape, np.float32)
        votes_at(
            found, products, y.indptr, y.indices, k, self.power, self.factor, 0.0, labels, y.n_columns, out
        )
        return out

    def _nearest(self, query: Query) -> tuple[np.ndarray, np.ndarray]:
        """Return the nearest rows and their cosines, (n, k) each."""
        z = unit_rows(query.sketch)
        k = min(self.n_neighbors, len(self.alive))
        rows = np.asarray(self.rows, np.float32)
        cosines = z @ rows.T
        cosines[:, np.asarray(self.alive) == 0] = -1.0
        # Products with equal rows may differ in the last bits, depending on where the rows are stored.
        margin = np.float32(2 * ROUNDING * rows.shape[1])
        least = np.partition(cosines, -k, axis=1)[:, -k] - margin
        return nearest_of(cosines, least, z, rows, k)


def unit_rows(z: np.ndarray) -> np.ndarray:
    """Scale rows to Euclidean length one; zero rows stay zero."""
    length = np.linalg.norm(z, axis=1, keepdims=True)
    return np.asarray(z / np.where(length > 0, length, 1.0))
