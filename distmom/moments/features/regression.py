"""Sums for scoring labels by least squares: sketches of tf-idf rows, ridge sums, sparse cross moments.

A is the matrix of tf-idf rows (n x d), Y the labels (n x L, 0/1), R a basis (d x r), Z = A R. In cross moments A
has one more column, of ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block
from distmom.corpus.block import csr_from_parts
from distmom.engine.passes import Pass, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.engine.sums.algebra import transposed_product
from distmom.engine.sums.sparse import SparseSum
from distmom.moments.features.tfidf import tfidf_rows, with_constant
from distmom.moments.kernels import gather, scatter
from distmom.moments.sketching import add_product, omega_key


@dataclass(frozen=True)
class FeatureSketchPass(Pass):
    """Multiply ``A'A`` by a test matrix or a basis.

    Attributes
    ----------
    idf : ndarray of shape (n_words,) or (0,)
    n_columns : int
    seed : int
    basis : ndarray of shape (n_words, n_columns), optional
        Replaces the test matrix in a power pass; None by default.

    Notes
    -----
    Sums: ``sketch`` (n_words, n_columns) tall.
    """

    idf: Any = None
    n_columns: int = 0
    seed: int = 0
    basis: Any = None

    @property
    def name(self) -> str:
        return "features"

    @property
    def mapped_bytes(self) -> int:
        return 0 if self.basis is None else 8 * self.n_features * self.n_columns

    def specs(self) -> dict[str, SumSpec]:
        return {"sketch": SumSpec((self.n_features, self.n_columns), tall="features", separable=True)}

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        a = tfidf_rows(block.words, self.idf)
        out, columns = sums["sketch"], self.columns or slice(0, self.n_columns)
        basis = np.zeros((0, 0), np.float32)
        if self.basis is not None:
            basis = np.ascontiguousarray(self.basis[:, columns])
        add_product(
            a.indptr, a.indices, a.data, np.ones(a.shape[0]), basis, omega_key(self.seed), columns.start, False,
            out.single,
        )  # fmt: skip
        out.settle()
        return None


#: products that are computed at a time
PRODUCTS = 1 << 22


def sparse_spec(n_words: int, n_columns: int, n_products: int) -> SumSpec:
    """Return the specification of a sparse sum of about ``n_products`` products."""
    return SumSpec((n_words, n_columns), "float32", tall="features", sparse=True, n_bytes=8 * n_products)


def add_products(total: SparseSum, a: csr_array, b: csr_array) -> None:
    """Add ``A'B`` to a sparse sum, in pieces of rows with at most about `PRODUCTS` products."""
    ends = np.cumsum(np.diff(a.indptr).astype(np.int64) * np.diff(b.indptr))
    first = 0
    while first < a.shape[0]:
        done = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + PRODUCTS, side="right")))
        total.add(transposed_product(a[first:last], b[first:last]))
        first = last


def _with_columns(a: csr_array, columns: slice) -> csr_array:
    """Return a matrix of the same shape without the entries of other columns."""
    kept = (a.indices >= columns.start) & (a.indices < columns.stop)
    indptr = np.concatenate([[0], np.cumsum(kept)])[a.indptr]
    return csr_from_parts(a.data[kept], a.indices[kept], indptr, a.shape)


@dataclass(frozen=True)
class CrossMomentPass(Pass):
    """Add up the sparse cross moment of features and labels.

    Attributes
    ----------
    n_labels : int
    idf : ndarray of shape (n_words,) or (0,)
    n_products : int
        Estimated number of products of an entry of A and an entry of Y, for the plan.
    words : slice or None
        Rows of the cross moment that are added up, None (default) for all.

    Notes
    -----
    Sums: ``cross`` = A'Y (n_words + 1, n_labels) sparse, ``squares`` = diag(A'A) (n_words + 1,), ``labels`` = Y'1
    (n_labels,), ``n_documents`` (). The last row and entry are those of the constant column. Only ``cross`` is
    restricted to ``words``.
    """

    n_labels: int = 0
    idf: Any = None
    n_products: int = 0
    words: slice | None = None

    # Products with the same word and label are added up within a block.
    block_rows = 1 << 15

    @property
    def name(self) -> str:
        return "cross"

    def specs(self) -> dict[str, SumSpec]:
        return {
            "cross": sparse_spec(self.n_features + 1, self.n_labels, self.n_products),
            "squares": SumSpec((self.n_features + 1,)),
            "labels": SumSpec((self.n_labels,)),
            "n_documents": SumSpec(()),
        }

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        a = with_constant(tfidf_rows(block.words, self.idf, np.float32))
        ones = np.ones(block.labels.nnz, np.float32)
        add_products(
            sums["cross"],
            a if self.words is None else _with_columns(a, self.words),
            csr_from_parts(ones, block.labels.indices, block.labels.indptr, block.labels.shape),
        )
        sums["squares"] += np.bincount(a.indices, a.data.astype(np.float64) ** 2, minlength=a.shape[1])
        sums["labels"] += np.bincount(block.labels.indices, minlength=self.n_labels)
        sums["n_documents"] += block.n_documents
        return None


@dataclass(frozen=True)
class RidgePass(Pass):
    """Add up the sums for least squares from ``Z = A R`` to the labels, and optionally store the rows of Z.

    Attributes
    ----------
    n_labels, rank : int
    idf : ndarray of shape (n_words,) or (0,)
    basis : ndarray of shape (n_words, rank)
        R.
    store : bool
        Store the rows of Z, float32.

    Notes
    -----
    Sums: ``zz`` = Z'Z, ``z`` = Z'1, ``zy`` = Y'Z (n_labels, rank), ``y`` = Y'1, ``n_documents`` ().
    """

    n_labels: int = 0
    rank: int = 0
    idf: Any = None
    basis: Any = None
    store: bool = False

    @property
    def name(self) -> str:
        return "ridge"

    def working_bytes(self, n_rows: int) -> int:
        return 8 * n_rows * self.rank * 2

    def specs(self) -> dict[str, SumSpec]:
        return {
            "zz": SumSpec((self.rank, self.rank)),
            "z": SumSpec((self.rank,)),
            "zy": SumSpec((self.n_labels, self.rank)),
            "y": SumSpec((self.n_labels,)),
            "n_documents": SumSpec(()),
        }

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        a = tfidf_rows(block.words, self.idf)
        z = gather(a.indptr, a.indices, a.data, self.basis).astype(np.float64)
        labels = block.labels
        sums["zz"] += z.T @ z
        sums["z"] += z.sum(axis=0)
        scatter(labels.indptr, labels.indices, np.ones(labels.nnz), z, sums["zy"], 0)
        sums["y"] += np.bincount(labels.indices, minlength=self.n_labels)
        sums["n_documents"] += block.n_documents
        return {"z": z.astype(np.float32)} if self.store else None


#: share of the squares of the sketch below which its variance is rounding
LEAST_SPREAD = 1e-12


def ridge_coefficients(sums: Sums, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """Solve the centred ridge regression from the sums of `RidgePass`.

    The penalty is relative to the mean diagonal of the centred Gram matrix; relative to the uncentred matrix it
    would grow with the mean and shrink the coefficients too much.

    Parameters
    ----------
    sums : Sums
    penalty : float
        Positive.

    Returns
    -------
    coefficients : ndarray of shape (rank, n_labels)
    intercept : ndarray of shape (n_labels,)
    """
    n = float(sums["n_documents"])
    mean_z, mean_y = np.asarray(sums["z"]) / n, np.asarray(sums["y"]) / n
    gram = np.asarray(sums["zz"]) - n * np.outer(mean_z, mean_z)
    cross = np.asarray(sums["zy"]).T - n * np.outer(mean_z, mean_y)
    if not np.trace(gram) > LEAST_SPREAD * np.trace(sums["zz"]):
        # If all documents are alike, labels can be ranked by their frequency only.
        return np.zeros_like(cross), mean_y
    gram = gram + (penalty * np.trace(gram) / len(gram)) * np.eye(len(gram))
    coefficients = np.linalg.solve(gram, cross)
    return coefficients, mean_y - mean_z @ coefficients
