"""How much each document counts in the moments of order two, three and in the label moment.

With n words and m labels in a document, an estimator of order o counts the ordered tuples of positions
``f_o(n)``: ``n^o`` with every tuple (``moments="paper"``), ``n (n-1)`` and ``n (n-1) (n-2)`` with distinct
positions (``moments="distinct"``). With distinct positions a document of fewer positions than the highest order
that is used counts in none of the orders, so that all of them are of the same documents. A document enters with
``rho_o = omega / f_o(n)``, so that its own moment has mass ``omega``:

========== ==========================================================================
weighting  omega
========== ==========================================================================
pooled     ``f_o(n)``: every tuple counts the same (multi-label paper, equations 16, 18, 21)
document   1: every document counts the same
length     ``(n / (n + c))^2`` with a given c: long documents count more, up to a bound
tokens     n: every position counts the same
counts     ``f_o(n)``, and every document brings the mass 1: factorial moments of the
           counts themselves (documents of independent Poisson counts); short documents
           count too, as a document without triples has zero of them
========== ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block
from distmom.errors import UsageError
from distmom.moments.kernels import row_sums

MOMENTS = ("paper", "distinct")
#: of moments that are means over positions
WEIGHTINGS = ("pooled", "document", "length", "tokens")


@dataclass(frozen=True)
class MomentKind:
    """Which tuples of positions count, and how much each document does.

    Attributes
    ----------
    moments : {"paper", "distinct"}
    weighting : {"pooled", "document", "length", "tokens", "counts"}
    binary : bool
        Words are present or absent; otherwise counts are used.
    length_scale : float
        The c of ``weighting="length"``.
    max_count : int or None
        Larger counts enter as this one: a word that was met is met again sooner than the model has it.
    orders : {2, 3}
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
        """Pairs and triples are of distinct positions."""
        return self.moments == "distinct"

    @property
    def needs_positions(self) -> bool:
        """Documents of fewer positions than the highest order count in none."""
        return self.distinct and self.weighting != "counts"

    @property
    def has_sum_rules(self) -> bool:
        """A document weighs the same in every order, so that moments sum to those of the order below."""
        return self.needs_positions and self.weighting != "pooled"


@dataclass(frozen=True)
class DocumentWeights:
    """Weights of the documents of a block.

    Attributes
    ----------
    rho1, rho2, rho3, rho_label : ndarray of shape (n,), float64
        Factor of a document's sum over positions, pairs, triples, and label-pair tuples; zero where a
        document is too short. Label-pair tuples need two positions, whatever the orders of the moments of words:
        only the proportions between labels are taken from them.
    mass1, mass2, mass3, mass_label : float
        Total mass that the block brings to each moment; the moment is the sum divided by the total mass.
    """

    rho1: np.ndarray
    rho2: np.ndarray
    rho3: np.ndarray
    rho_label: np.ndarray
    mass1: float
    mass2: float
    mass3: float
    mass_label: float


def word_values(words: csr_array, kind: MomentKind, dtype: np.typing.DTypeLike = np.float64) -> np.ndarray:
    """Return the stored values that enter the moments: ones, or the counts up to the largest."""
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
        How often each document counts; one when absent.
    """
    n = lengths.astype(np.float64)
    m = n_labels.astype(np.float64)
    own = np.ones(len(n)) if weights is None else weights.astype(np.float64)
    step = 1.0 if kind.distinct else 0.0
    tuples = {1: n, 2: n * (n - step), 3: n * (n - step) * (n - 2 * step)}

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
    rho_label, mass_label = weigh(tuples[2] * m, np.ones(len(n), bool))
    return DocumentWeights(rho1, rho2, rho3, rho_label, mass1, mass2, mass3, mass_label)


def document_lengths(block: Block, kind: MomentKind) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of words and of labels of every document of a block, float64.

    All its words: the pairs of some words are a part of the pairs of all, and only so moments of their own.
    """
    words = block.words if block.whole is None else block.whole
    if kind.binary:
        n = np.diff(words.indptr).astype(np.float64)
    else:
        n = row_sums(words.indptr, word_values(words, kind))
    return n, np.diff(block.labels.indptr).astype(np.float64)


def row_weights(block: Block) -> np.ndarray:
    """Return how often every document of a block counts, float64."""
    return np.ones(block.n_documents) if block.weights is None else block.weights


def block_weights(block: Block, kind: MomentKind) -> DocumentWeights:
    """Return the weights of the documents of a block."""
    n, m = document_lengths(block, kind)
    return document_weights(n, m, kind, block.weights)
