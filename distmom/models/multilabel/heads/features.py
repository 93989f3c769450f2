"""The idf weights, and the sums of features and labels that all heads on features share.

The cross moment of features and labels has one entry for every pair of a word and a label that occur together.
It is added up range by range of words, each in a pass of its own, where the products of a single pass would
take much disk space until they are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import (
    Csr,
    Engine,
    Selection,
    StoredArray,
    StoredColumns,
    Tallies,
    TallResult,
    Term,
)
from distmom.moments.features.regression import CrossMomentPass
from distmom.moments.features.tfidf import fit_idf
from distmom.spectral.program.run import Run, unknown

#: estimated number of products that one pass adds up, of 8 bytes each
PASS_PRODUCTS = 1 << 30
CSR_PARTS = ("indptr", "indices", "data")


@dataclass
class Features:
    """The idf weights and sums that all heads of one fit share.

    Attributes
    ----------
    idf : StoredArray of shape (d,) or (0,)
        From `distmom.moments.features.tfidf.fit_idf`.
    selection : Selection or None
        Documents of the fit; None means all.
    cross : tuple of Csr
        Stored matrices that add up to A'Y (d + 1, L); the last row belongs to the constant column.
    squares : ndarray of shape (d + 1,)
        diag(A'A).
    label_counts : ndarray of shape (L,)
        Y'1.
    n_documents : int
        Number of documents of the fit.
    """

    idf: StoredArray
    selection: Selection | None
    cross: tuple[Csr, ...]
    squares: np.ndarray
    label_counts: np.ndarray
    n_documents: int

    def cross_terms(self, factor: float = 1.0, rows: Any = None, columns: Any = None) -> list[Term]:
        """Return the terms that add up to A'Y, times a factor and factors of rows and columns (see `Term`)."""
        return [Term(part, factor, rows, columns) for part in self.cross]

    def whole_cross(self, engine: Engine) -> Csr:
        """Return A'Y as one stored matrix."""
        return self.cross[0] if len(self.cross) == 1 else engine.maps.combine(self.cross_terms())

    @classmethod
    def unknown(
        cls, corpus: Corpus | MemoryCorpus, idf: StoredArray, selection: Selection | None
    ) -> Features:
        """Return features without content, for a ledger."""
        return cls(idf, selection, (unknown_csr(corpus.n_labels),), unknown(), unknown(), unknown())


def unknown_csr(n_columns: int) -> Csr:
    """Return a sparse matrix without content, for a ledger."""
    return Csr(unknown(), unknown(), unknown(), n_columns)


def fit_features(run: Run, kind: str, selection: Selection | None) -> Features:
    """Compute the idf weights for a kind of features (see `fit_idf`), and add up the cross moment."""
    idf = run.rows(_stored_idf, kind, out=unknown(run.corpus.n_words))
    return cross_features(run, idf, selection)


def _stored_idf(engine: Engine, kind: str) -> StoredArray:
    return engine.put(fit_idf(engine.corpus, kind))


def n_products(corpus: Corpus | MemoryCorpus, selection: Selection | None = None) -> int:
    """Return an estimate of the number of pairs of a word and a label in the selected documents."""
    n = sum((s.nnz_words / max(s.n_documents, 1) + 1) * s.nnz_labels for s in corpus.shards)
    return int(n * (1.0 if selection is None else selection.share))


def word_ranges(corpus: Corpus | MemoryCorpus, n_ranges: int) -> list[slice]:
    """Cut the words, and the constant column after them, into ranges with about the same number of entries."""
    ends = np.cumsum(np.append(corpus.document_frequency, corpus.n_documents), dtype=np.float64)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, n_ranges) / n_ranges, side="left") + 1
    edges = np.unique(np.concatenate([[0], cuts, [len(ends)]]))
    return [slice(int(a), int(b)) for a, b in pairwise(edges)]


def cross_features(run: Run, idf: StoredArray, selection: Selection | None) -> Features:
    """Add up the cross moment with given idf weights."""
    corpus = run.corpus
    n_pairs = n_products(corpus, selection)
    ranges = word_ranges(corpus, -(-n_pairs // PASS_PRODUCTS))
    found = [
        run.scan(
            CrossMomentPass(
                corpus.n_words, selection, n_labels=corpus.n_labels, idf=idf,
                n_products=n_pairs // len(ranges), words=None if len(ranges) == 1 else words,
            ),
            _cross_moment,
            out=TallResult(unknown(), unknown()),
        )
        for words in ranges
    ]  # fmt: skip
    return run.rows(_features, idf, selection, found, out=Features.unknown(corpus, idf, selection))


def _cross_moment(engine: Engine, tallies: Tallies) -> TallResult:
    states = to_states("cross", engine.maps.combine([Term(tallies.runs["cross"])]))
    states |= {name: StoredColumns((engine.put(tallies.sums[name]),)) for name in ("squares", "labels")}
    return TallResult(states, {"n_documents": int(tallies.sums["n_documents"])})


def _features(
    engine: Engine, idf: StoredArray, selection: Selection | None, found: Sequence[TallResult]
) -> Features:
    # The sums that are not cut into ranges are the same in all passes.
    first = found[0]
    small = {name: np.asarray(first.states[name].parts[0].load()) for name in ("squares", "labels")}
    cross = tuple(from_states(each.states, "cross", engine.corpus.n_labels) for each in found)
    return Features(idf, selection, cross, small["squares"], small["labels"], first.values["n_documents"])


def to_states(name: str, matrix: Csr) -> dict[str, StoredColumns]:
    """Return the arrays of a stored matrix by name, for the result of a pass."""
    return {f"{name}.{part}": StoredColumns((getattr(matrix, part),)) for part in CSR_PARTS}


def from_states(states: dict[str, StoredColumns], name: str, n_columns: int) -> Csr:
    """Return the matrix whose arrays `to_states` has named."""
    indptr, indices, data = (states[f"{name}.{part}"].parts[0] for part in CSR_PARTS)
    return Csr(indptr, indices, data, n_columns)


def extend_features(run: Run, features: Features, held_out: Selection) -> tuple[Features, Features]:
    """Add the sums of held-out documents; return the features of all documents and of those added."""
    added = cross_features(run, features.idf, held_out)
    out = Features.unknown(run.corpus, features.idf, None)
    return run.apply(_joined_features, features, added, out=out), added


def _joined_features(features: Features, added: Features) -> Features:
    return Features(
        features.idf,
        None,
        features.cross + added.cross,
        features.squares + added.squares,
        features.label_counts + added.label_counts,
        features.n_documents + added.n_documents,
    )
