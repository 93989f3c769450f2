"""Weights of documents in the moments of orders one to four and in the label moment.

For a document with n words and m labels, an estimator of order o averages over the ordered tuples of positions,
``f_o(n)`` of them: ``n^o`` with all tuples (``moments="paper"``), ``n (n-1)``, ``n (n-1) (n-2)`` and so on with
distinct positions (``moments="distinct"``). With distinct positions a document of fewer positions than the
highest order used is left out of all orders, so that all moments are of the same documents. The weight of a
tuple is ``rho_o = omega / f_o(n)``, so that the document has the total weight ``omega``:

========== ==========================================================================
weighting  omega
========== ==========================================================================
pooled     ``f_o(n)``: every tuple has the same weight (multi-label paper, equations 16, 18, 21)
document   1: every document has the same weight
length     ``(n / (n + c))^2`` with a given c: long documents weigh more, up to a bound
tokens     n: every position has the same weight
counts     ``f_o(n)``, with mass 1 for every document: factorial moments of the counts
           themselves (documents of independent Poisson counts); short documents are
           included, as a document without triples contributes zero
========== ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block
from distmom.errors import UsageError
from distmom.moments.kernels import row_sums

MOMENTS = ("paper", "distinct")
#: weightings of moments that are averages over positions
WEIGHTINGS = ("pooled", "document", "length", "tokens")


@dataclass(frozen=True)
class MomentKind:
    """The tuples of positions that moments average over, and the weighting of documents.

    Attributes
    ----------
    moments : {"paper", "distinct"}, default "paper"
    weighting : {"pooled", "document", "length", "tokens", "counts"}, default "pooled"
    binary : bool, default True
        Use the presence of words; otherwise their counts.
    length_scale : float, default 1.0
        The c of ``weighting="length"``.
    max_count : int or None, default None
        Larger counts are replaced by this value, as real texts repeat words more often than the model; None: no
        limit.
    orders : {2, 3, 4}, default 3
        Highest order of the moments that are used together.
    """

    moments: str = "paper"
    weighting: str = "pooled"
    binary: bool = True
    length_scale: float = 1.0
    max_count: int | None = None
    orders: int = 3

    def __post_init__(self) -> None:
        if self.moments not in MOMENTS:
            raise UsageError(f"moments: expected one of {', '.join(MOMENTS)}, got {self.moments!r}")
        if self.weighting not in (*WEIGHTINGS, "counts"):
            raise UsageError(f"weighting: expected one of {', '.join(WEIGHTINGS)}, got {self.weighting!r}")

    @property
    def distinct(self) -> bool:
        """Whether pairs and triples are of distinct positions."""
        return self.moments == "distinct"

    @property
    def needs_positions(self) -> bool:
        """Whether documents of fewer positions than the highest order are left out of all orders."""
        return self.distinct and self.weighting != "counts"

    @property
    def has_sum_rules(self) -> bool:
        """Whether a document weighs the same in every order, so that moments sum to those of the order below."""
        return self.needs_positions and self.weighting != "pooled"


@dataclass(frozen=True)
class DocumentWeights:
    """Weights of the documents of a block.

    Attributes
    ----------
    rho1, rho2, rho3, rho4, rho_label : ndarray of shape (n,), float64
        Weight of a position, pair, triple, quadruple, and label-pair tuple of each document; zero where a
        document is too short. Label-pair tuples need two positions, whatever the orders of the word moments,
        as only the proportions between labels are taken from them.
    mass1, mass2, mass3, mass4, mass_label : float
        Mass that the block contributes to each moment; the moment is the sum divided by the total mass.
    """

    rho1: np.ndarray
    rho2: np.ndarray
    rho3: np.ndarray
    rho4: np.ndarray
    rho_label: np.ndarray
    mass1: float
    mass2: float
    mass3: float
    mass4: float
    mass_label: float


def word_values(words: csr_array, kind: MomentKind, dtype: np.typing.DTypeLike = np.float64) -> np.ndarray:
    """Return the values that enter the moments: ones, or counts up to ``kind.max_count``."""
    if kind.binary:
        return np.ones(words.nnz, dtype)
    values = words.data.astype(dtype)
    return np.asarray(values if kind.max_count is None else np.minimum(values, kind.max_count))


def document_weights(
    lengths: np.ndarray, n_labels: np.ndarray, kind: MomentKind, weights: np.ndarray | None = None
) -> DocumentWeights:
    """Return the weights of documents.

    Parameters
    ----------
    lengths : ndarray of shape (n,)
        Number of words of each document (distinct words when ``kind.binary``).
    n_labels : ndarray of shape (n,)
        Number of labels of each document.
    kind : MomentKind
    weights : ndarray of shape (n,), optional
        Multiplicity of each document; 1 by default.
    """
    n = lengths.astype(np.float64)
    m = n_labels.astype(np.float64)
    own = np.ones(len(n)) if weights is None else weights.astype(np.float64)
    step = 1.0 if kind.distinct else 0.0
    tuples = {1: n, 2: n * (n - step), 3: n * (n - step) * (n - 2 * step)}
    tuples[4] = tuples[3] * (n - 3 * step)

    long_enough = n >= kind.orders if kind.needs_positions else np.ones(len(n), bool)

    def weigh(count: np.ndarray, allowed: np.ndarray) -> tuple[np.ndarray, float]:
        if kind.weighting == "counts":
            return own, float(own.sum())
        usable = (count > 0) & allowed
        if kind.weighting == "pooled":
            omega = count
        elif kind.weighting == "document":
            omega = np.ones_like(n)
        elif kind.weighting == "tokens":
            omega = n
        else:
            omega = (n / (n + kind.length_scale)) ** 2
        rho = np.divide(own * omega, count, out=np.zeros_like(n), where=usable)
        return rho, float((own * omega)[usable].sum())

    rho1, mass1 = weigh(tuples[1], long_enough)
    rho2, mass2 = weigh(tuples[2], long_enough)
    rho3, mass3 = weigh(tuples[3], long_enough)
    rho4, mass4 = weigh(tuples[4], long_enough)
    rho_label, mass_label = weigh(tuples[2] * m, np.ones(len(n), bool))
    return DocumentWeights(rho1, rho2, rho3, rho4, rho_label, mass1, mass2, mass3, mass4, mass_label)


def document_lengths(block: Block, kind: MomentKind) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of words and of labels of every document of a block, float64.

    All words of a document count, also those left out of the moments: the moments of some words are then a part
    of the moments of all words.
    """
    words = block.words if block.whole is None else block.whole
    if kind.binary:
        n = np.diff(words.indptr).astype(np.float64)
    else:
        n = row_sums(words.indptr, word_values(words, kind))
    return n, np.diff(block.labels.indptr).astype(np.float64)


def row_weights(block: Block) -> np.ndarray:
    """Return the multiplicity of every document of a block, float64."""
    return np.ones(block.n_documents) if block.weights is None else block.weights


def block_weights(block: Block, kind: MomentKind) -> DocumentWeights:
    """Return the weights of the documents of a block."""
    n, m = document_lengths(block, kind)
    return document_weights(n, m, kind, block.weights)


def moment_spread(block: Block, kind: MomentKind) -> np.ndarray:
    """Return sums over the documents of a block that bound the sampling errors of their moments.

    A document with words x and labels y adds omega to the mass of a moment, and to its sum a tensor with a
    Frobenius norm of at most s: rho times that of ``x (x) x``, of ``x (x) x (x) x``, or of ``y (x) x (x) x``.

    Parameters
    ----------
    block : Block
    kind : MomentKind

    Returns
    -------
    ndarray of shape (3, 2), float64
        The sums of ``omega`` and of ``s^2``, for the moments of pairs, of triples, and of labels and pairs.
    """
    weights, own = block_weights(block, kind), row_weights(block)
    norm = np.sqrt(row_sums(block.words.indptr, word_values(block.words, kind) ** 2))
    labels = np.sqrt(np.diff(block.labels.indptr))
    sizes = weights.rho2 * norm**2, weights.rho3 * norm**3, weights.rho_label * norm**2 * labels
    # A document of multiplicity c counts as c documents.
    squares = [np.divide(s**2, own, out=np.zeros_like(s), where=own > 0.0).sum() for s in sizes]
    return np.column_stack([(weights.mass2, weights.mass3, weights.mass_label), squares])


def positive(mass: Any) -> float:
    """Return a mass by which sums can be divided: zero is replaced by the least positive number."""
    return max(float(mass), np.finfo(float).tiny)
