"""Fits of the heads that score labels from features: sketch, ridge, centroids, sparse weights, neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, svds

from distmom.blas import one_blas_thread
from distmom.engine import (
    Csr,
    Engine,
    PassResult,
    Pruning,
    Selection,
    StoredArray,
    StoredColumns,
    Sums,
    Tallies,
    TallResult,
    Term,
    merge,
)
from distmom.errors import NumericalError
from distmom.models.multilabel.heads.features import Features, from_states, to_states
from distmom.models.multilabel.heads.heads import RidgeHead, SparseHead
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead, SketchNeighbors, unit_rows
from distmom.moments.features.index import IndexPass
from distmom.moments.features.regression import FeatureSketchPass, RidgePass, ridge_coefficients
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.basis import orthonormal_basis, unknown_columns

#: added to the squared length of a centroid
CENTROID_PENALTY = 10.0
#: pruning of sparse weights: those below 1 % of the 99th percentile are left out, and where there are more than
#: 300 million, which take 2.4 GB, the smallest ones of the words with most
PRUNING = Pruning(share=0.01, n_unlimited_rows=1, total_entries=300_000_000)


@dataclass(frozen=True)
class WeightLimits:
    """Limits on the number of weights of the sparse heads; intercepts are not limited.

    Attributes
    ----------
    per_word, per_label : int or None, default None
        Largest number of weights of a word, and of a label; those of largest magnitude are kept. None: as the
        pruning of a head states.
    """

    per_word: int | None = None
    per_label: int | None = None

    def of_words(self, pruning: Pruning) -> Pruning:
        """Return a pruning with the limit per word, if there is one."""
        if self.per_word is None:
            return pruning
        return replace(pruning, row_entries=self.per_word, n_unlimited_rows=1)

    def of(self, pruning: Pruning) -> Pruning:
        """Return a pruning with all limits."""
        if self.per_label is None:
            return self.of_words(pruning)
        return replace(self.of_words(pruning), column_entries=self.per_label, n_unlimited_rows=1)


#: the limits of the parameters' defaults
NO_LIMITS = WeightLimits()
#: labels up to which the label half of the basis is found from a matrix of labels by labels
GRAM_LABELS = 1000
#: share of the squared length of a document whose frequent words are skipped when its neighbours are searched
SKIPPED = 0.05
#: power passes of the sketch, and its columns beyond those that are kept
N_POWER_ITER, N_OVERSAMPLES = 1, 10
#: largest number of rows of a sketch searched by brute force; beyond it, neighbours are found in sparse rows only
SKETCH_NEIGHBORS_ROWS = 100_000


def sketch_basis(run: Run, features: Features, rank: int, seed: int) -> tuple[StoredArray, int]:
    """Return a basis (d, rank) and its rank: half from ``A'A``, half from the cross moment with labels.

    The label half is the range of ``A'Y D_f^{-1/2}``, D_f the label frequencies, so that rare labels count as much
    as common ones (CPLST; Mineiro and Karampatziakis, 2015). It takes no pass, as the cross moment is known.
    """
    d = run.corpus.n_words
    half = min(rank - rank // 2, d)
    width = min(half + N_OVERSAMPLES, d)
    basis: StoredArray | None = None
    for _ in range(N_POWER_ITER + 1):
        pass_ = FeatureSketchPass(
            d, features.selection, idf=features.idf, n_columns=width, seed=seed, basis=basis
        )
        out = {"basis": unknown_columns(d, width), "left": unknown_columns(d, half)}
        found = run.scan(pass_, _orthonormalised, half, out=TallResult(out, {"rank": width}))
        basis, width = found.states["basis"].parts[0], found.values["rank"]
    left = found.states["left"].parts[0]
    return run.rows(_with_label_half, features, left, rank, seed, out=(unknown(d, rank), rank))


def _with_label_half(
    engine: Engine, features: Features, stored: StoredArray, rank: int, seed: int
) -> tuple[StoredArray, int]:
    corpus = engine.corpus
    with one_blas_thread():
        left = stored.load()
        scale = 1.0 / np.sqrt(np.maximum(features.label_counts.astype(np.float64), 1.0))
        cross = engine.maps.combine(features.cross_terms(columns=scale)).to_scipy()
        weighted = cross[: corpus.n_words].astype(np.float64)
        n_label = min(rank // 2, min(weighted.shape) - 1, corpus.n_labels)
        if n_label > 0 and weighted.nnz:
            u = _label_vectors(left, weighted, n_label, seed)
            left = orthonormal_basis(
                np.hstack([left, u * np.sign(u[np.abs(u).argmax(0), np.arange(u.shape[1])])])
            )
    return engine.put(left.astype(np.float32)), left.shape[1]


def _label_vectors(left: np.ndarray, weighted: csr_array, k: int, seed: int) -> np.ndarray:
    """Return the k leading left singular vectors of a matrix (d, L) outside of the span of ``left``, or fewer."""
    if weighted.shape[1] <= GRAM_LABELS:
        within = (weighted.T @ left).T
        gram = (weighted.T @ weighted).toarray()
        # The squares of singular values are known up to rounding errors of the whole matrix, which are all that is
        # left if ``left`` spans its columns.
        least = 1e-12 * gram.diagonal().max()
        values, vectors = np.linalg.eigh(gram - within.T @ within)
        values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
        vectors = vectors[:, values > least]
        u = weighted @ vectors - left @ (within @ vectors)
        return np.asarray(u / np.linalg.norm(u, axis=0))
    operator = LinearOperator(
        weighted.shape,
        matvec=lambda x: _rest(left, weighted @ x),
        rmatvec=lambda x: weighted.T @ _rest(left, x),
        dtype=np.float64,
    )
    initial = np.random.default_rng(seed).standard_normal(min(weighted.shape))
    u, s, _ = svds(operator, k=k, v0=initial, tol=1e-3, solver="arpack")
    order = np.argsort(-s, kind="stable")
    return np.asarray(u[:, order[s[order] > 1e-10 * np.linalg.norm(weighted.data)]])


def _orthonormalised(engine: Engine, tallies: Tallies, k: int) -> TallResult:
    """Return a basis of a sketch, and its k leading left singular vectors in the order of its singular values."""
    tall = tallies.tall["sketch"]
    sketch = tall.read_rows(slice(0, tall.n_rows))
    if not sketch.any():
        raise NumericalError(
            "no document that heads are fitted to has a word of the vocabulary: expected documents with words"
        )
    basis = orthonormal_basis(sketch)
    with one_blas_thread():
        u, _, _ = np.linalg.svd(basis.T @ sketch)
        left = basis @ u[:, :k]
    states = {name: StoredColumns((engine.put(x),)) for name, x in (("basis", basis), ("left", left))}
    return TallResult(states, {"rank": basis.shape[1]})


def _rest(left: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.asarray(x - left @ (left.T @ x))


@dataclass(frozen=True)
class RidgeFit:
    """The ridge sums and, if they were stored, the rows of the sketch.

    Attributes
    ----------
    sums : Sums
    rows : ndarray of shape (n_documents, r), float32, or None
    """

    sums: Sums
    rows: np.ndarray | None

    def head(self, penalty: float) -> RidgeHead:
        """Solve for one penalty."""
        with one_blas_thread():
            coefficients, intercept = ridge_coefficients(self.sums, penalty)
        return RidgeHead(coefficients.astype(np.float32), intercept.astype(np.float32))


def fit_ridge(run: Run, features: Features, basis: tuple[StoredArray, int], *, store: bool) -> RidgeFit:
    """Run the ridge pass in a sketch basis, given with its rank; ``store`` keeps the rows of the sketch."""
    corpus, (matrix, rank) = run.corpus, basis
    result = run.scan(
        RidgePass(
            corpus.n_words, features.selection, n_labels=corpus.n_labels, rank=rank, idf=features.idf,
            basis=matrix, store=store,
        )
    )  # fmt: skip
    return run.rows(_ridge_fit, result, store, out=RidgeFit(unknown(), unknown() if store else None))


def extend_ridge(
    run: Run, known: tuple[tuple[StoredArray, int], RidgeFit], added: Features
) -> tuple[tuple[StoredArray, int], RidgeFit]:
    """Add documents to ridge sums; return the basis and the new sums."""
    basis, fit = known
    new = fit_ridge(run, added, basis, store=fit.rows is not None)
    out = RidgeFit(unknown(), unknown() if fit.rows is not None else None)
    return basis, run.rows(_joined_ridge, fit, new, added.selection, out=out)


def _joined_ridge(engine: Engine, fit: RidgeFit, new: RidgeFit, added: Selection) -> RidgeFit:
    rows = None
    if fit.rows is not None and new.rows is not None:
        mask = added.mask(0, engine.corpus.n_documents)
        rows = np.empty((len(mask), fit.rows.shape[1]), np.float32)
        rows[mask], rows[~mask] = new.rows, fit.rows
    return RidgeFit(merge(iter((fit.sums, new.sums))), rows)


def _ridge_fit(engine: Engine, result: PassResult, store: bool) -> RidgeFit:
    rows = None
    if store:
        handle = result.rows["z"]
        rows = np.concatenate([handle.read(i) for i in range(len(engine.corpus.shards))])
    return RidgeFit(result.sums, rows)


def centroid_terms(engine: Engine, features: Features) -> list[Term]:
    """Return label centroids (Rocchio): columns of ``A'Y`` over ``sqrt(length^2 + CENTROID_PENALTY)``."""
    # Centroids have no intercept.
    words = np.append(np.ones(len(features.squares) - 1), 0.0)
    squares = engine.maps.column_squares(features.cross_terms(rows=words))
    return features.cross_terms(rows=words, columns=1.0 / np.sqrt(squares + CENTROID_PENALTY))


def sparse_head(
    engine: Engine, *parts: tuple[Sequence[Term], float], limits: WeightLimits = NO_LIMITS
) -> SparseHead:
    """Return a head whose weights are a weighted sum of sparse matrices without negligible entries.

    The arrays of the head are stored arrays.
    """
    terms = [replace(term, factor=term.factor * weight) for of_part, weight in parts for term in of_part]
    return SparseHead(engine.maps.combine_mixed(terms, limits.of(PRUNING)))


def fit_neighbors(run: Run, features: Features) -> NeighborsHead:
    """Index the tf-idf rows of the corpus in one pass; rows outside the selection are indexed but do not vote.

    The arrays of the head are stored arrays.
    """
    corpus = run.corpus
    pass_ = IndexPass(
        corpus.n_words,
        n_documents=corpus.n_documents,
        n_labels=corpus.n_labels,
        idf=features.idf,
        nnz_words=sum(s.nnz_words for s in corpus.shards),
        nnz_labels=sum(s.nnz_labels for s in corpus.shards),
    )
    found = run.scan(pass_, _index, out=TallResult(unknown(), unknown()))
    head: NeighborsHead = run.rows(_neighbors, features.selection, found, out=unknown())
    return head


def _index(engine: Engine, tallies: Tallies) -> TallResult:
    lists, labels = (engine.maps.combine([Term(tallies.runs[name])]) for name in ("lists", "labels"))
    ones = engine.put(np.ones(len(labels.indices.load()), np.uint8))
    return TallResult(to_states("lists", lists) | to_states("labels", replace(labels, data=ones)), {})


def _neighbors(engine: Engine, selection: Selection | None, found: TallResult) -> NeighborsHead:
    corpus = engine.corpus
    n = corpus.n_documents
    alive = np.ones(n, bool) if selection is None else selection.mask(0, n)
    return NeighborsHead(
        from_states(found.states, "lists", n),
        from_states(found.states, "labels", corpus.n_labels),
        engine.put(alive.astype(np.uint8)),
        skipped=SKIPPED,
    )


def sketch_neighbors(fit: RidgeFit, labels: Csr) -> SketchNeighbors:
    """Index the stored rows of the sketch; ``labels`` are the labels of the same documents."""
    assert fit.rows is not None
    return SketchNeighbors(unit_rows(fit.rows), labels, np.ones(len(fit.rows), np.uint8))
