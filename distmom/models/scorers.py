"""Fit the heads that score labels from features: sketch basis, ridge, centroids, sparse weights, neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack
from scipy.sparse.linalg import LinearOperator, svds
from threadpoolctl import threadpool_limits

from distmom.corpus.block import csr_from_parts
from distmom.engine import (
    Csr,
    Engine,
    MixedRows,
    Selection,
    StoredArray,
    StoredColumns,
    Sums,
    Tallies,
    TallResult,
    merge,
)
from distmom.engine.csr import add_csr, drop_small
from distmom.engine.passes import transform_fields
from distmom.models.heads import NeighborsHead, RidgeHead, SketchNeighbors, SparseHead, unit_rows
from distmom.models.tall import orthonormal_basis
from distmom.moments.features import inverse_document_frequency, tfidf_rows
from distmom.moments.regression import CrossMomentPass, FeatureSketchPass, RidgePass, ridge_coefficients
from distmom.moments.residuals import ResidualPass

#: added to diag(A'A): a word seen in few rows must not decide a label
DIAGONAL_PENALTY = 3.0
#: added to the squared length of a centroid
CENTROID_PENALTY = 10.0
#: sparse weights below this share of their 99th percentile are left out
PRUNE = 0.01
#: weights that the percentile is taken from
PRUNE_SAMPLE = 1_000_000
#: rows of a sketch that are compared by brute force; above, neighbours are searched in the sparse rows only
SKETCH_NEIGHBORS_ROWS = 100_000


@dataclass
class Features:
    """What all scoring heads of one fit share.

    Attributes
    ----------
    idf : ndarray of shape (d,)
    selection : Selection or None
        Documents that are fitted on.
    cross : Sums
        Sums of `CrossMomentPass`.
    """

    idf: np.ndarray
    selection: Selection | None
    cross: Sums

    @property
    def n_documents(self) -> int:
        """Number of documents fitted on."""
        return int(self.cross["n_documents"])


def fit_features(engine: Engine, selection: Selection | None) -> Features:
    """Run the cross-moment pass."""
    corpus = engine.corpus
    idf = inverse_document_frequency(np.asarray(corpus.document_frequency), corpus.n_documents)
    return _cross(engine, idf, selection)


def _cross(engine: Engine, idf: np.ndarray, selection: Selection | None) -> Features:
    corpus = engine.corpus
    pairs = sum(
        s.nnz_words * s.nnz_labels / max(s.n_documents, 1) for s in corpus.shards
    )  # words times labels of an average document, summed: the number of products
    bound = int(min(pairs, corpus.n_words * corpus.n_labels))
    cross = engine.run(
        CrossMomentPass(corpus.n_words, selection, n_labels=corpus.n_labels, idf=idf, projected_nnz=bound)
    ).sums
    return Features(idf, selection, cross)


def extend_features(engine: Engine, features: Features, held_out: Selection) -> tuple[Features, Features]:
    """Add held-out documents by addition of their sums, and return the features of all and of the added."""
    added = _cross(engine, features.idf, held_out)
    return Features(features.idf, None, merge((features.cross, added.cross))), added


def sketch_basis(
    engine: Engine, features: Features, rank: int, n_power_iter: int, n_oversamples: int, seed: int
) -> StoredArray:
    """Return a basis (d, rank): half from ``A'A``, half from the cross moment with labels.

    The label half is the range of ``A'Y D_f^{-1/2}``, D_f the label frequencies: rare labels count as much as
    common ones (CPLST; Mineiro and Karampatziakis, 2015). It costs no pass, the cross moment is at hand.
    """
    corpus = engine.corpus
    d = corpus.n_words
    half = min(rank - rank // 2, d)
    width = min(half + n_oversamples, d)
    basis: StoredArray | None = None
    for _ in range(n_power_iter + 1):
        pass_ = FeatureSketchPass(
            d, features.selection, idf=features.idf, n_columns=width, seed=seed, basis=basis
        )
        found = engine.run_tall(pass_, partial(_orthonormalised, engine, half), (half,))
        basis, width = found.states["basis"].parts[0], found.values["rank"]
    with threadpool_limits(limits=1):
        left = found.states["left"].parts[0].load()
        frequency = np.maximum(np.asarray(features.cross["labels"], np.float64), 1.0)
        cross = _scipy(features.cross["cross"])
        weighted = csr_array(
            (cross.data / np.sqrt(frequency[cross.indices]), cross.indices, cross.indptr), cross.shape
        )
        n_label = min(rank // 2, min(weighted.shape) - 1, corpus.n_labels)
        if n_label > 0 and weighted.nnz:
            rng = np.random.default_rng(seed)
            start = rng.standard_normal(min(weighted.shape))
            operator = LinearOperator(
                weighted.shape,
                matvec=lambda x: _rest(left, weighted @ x),
                rmatvec=lambda x: weighted.T @ _rest(left, x),
                dtype=np.float64,
            )
            u, s, _ = svds(operator, k=n_label, v0=start, tol=1e-3, solver="arpack")
            order = np.argsort(-s, kind="stable")
            u = u[:, order[s[order] > 1e-10 * s.max()]]
            left = orthonormal_basis(
                np.hstack([left, u * np.sign(u[np.abs(u).argmax(0), np.arange(u.shape[1])])])
            )
    return engine.put(left.astype(np.float32))


def _orthonormalised(engine: Engine, k: int, tallies: Tallies) -> TallResult:
    """Return a basis of a sketch, and its k leading left directions in the order of its singular values."""
    tall = tallies.tall["sketch"]
    sketch = tall.read_rows(slice(0, tall.n_rows))
    basis = orthonormal_basis(sketch)
    with threadpool_limits(limits=1):
        u, _, _ = np.linalg.svd(basis.T @ sketch)
        left = basis @ u[:, :k]
    states = {name: StoredColumns((engine.put(x),)) for name, x in (("basis", basis), ("left", left))}
    return TallResult(states, {"rank": basis.shape[1]})


def _rest(left: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.asarray(x - left @ (left.T @ x))


def _scipy(matrix: Any) -> csr_array:
    return matrix if isinstance(matrix, csr_array) else csr_array(matrix)


@dataclass(frozen=True)
class RidgeFit:
    """Ridge sums and, when they were stored, the rows of the sketch.

    Attributes
    ----------
    sums : Sums
    rows : ndarray of shape (n_documents, r), float32, or None
    """

    sums: Sums
    rows: np.ndarray | None

    def head(self, penalty: float) -> RidgeHead:
        """Solve for one penalty."""
        with threadpool_limits(limits=1):
            coefficients, intercept = ridge_coefficients(self.sums, penalty)
        return RidgeHead(coefficients.astype(np.float32), intercept.astype(np.float32))


def fit_ridge(engine: Engine, features: Features, basis: StoredArray, *, store: bool) -> RidgeFit:
    """Run the ridge pass in a sketch basis."""
    corpus = engine.corpus
    rank = basis.load().shape[1]
    result = engine.run(
        RidgePass(
            corpus.n_words, features.selection, n_labels=corpus.n_labels, rank=rank, idf=features.idf,
            basis=basis, store=store,
        )
    )  # fmt: skip
    rows = None
    if store:
        handle = result.rows["z"]
        rows = np.concatenate([handle.read(i) for i in range(len(corpus.shards))])
    return RidgeFit(result.sums, rows)


def centroid_weights(features: Features) -> csr_array:
    """Return label centroids (Rocchio): columns of ``A'Y`` over ``sqrt(length^2 + CENTROID_PENALTY)``."""
    cross = _scipy(features.cross["cross"])
    lengths = np.bincount(cross.indices, cross.data**2, minlength=cross.shape[1])
    scale = 1.0 / np.sqrt(lengths + CENTROID_PENALTY)
    return csr_from_parts(cross.data * scale[cross.indices], cross.indices, cross.indptr, cross.shape)


@dataclass(frozen=True)
class Stage:
    """One residual pass of a linear scorer.

    Attributes
    ----------
    weights : MixedRows
        What it started from, as stored arrays.
    scale : float
        Factor on those weights.
    step : float
        Factor on the residual.
    """

    weights: MixedRows
    scale: float
    step: float


@dataclass(frozen=True)
class LinearFit:
    """The sums of a sparse linear scorer, and the residual passes that led to them.

    Attributes
    ----------
    stages : tuple of Stage
    total : csr_array of shape (d, L)
        ``D W``.
    inverse : ndarray of shape (d,)
        1 / D.
    """

    stages: tuple[Stage, ...]
    total: csr_array
    inverse: np.ndarray

    @property
    def weights(self) -> csr_array:
        """W."""
        return _scaled_rows(self.total, self.inverse)


def fit_linear(engine: Engine, features: Features, n_passes: int) -> LinearFit:
    """Fit diagonal ridge ``D^-1 A'Y``, then residual passes on hard wrong labels.

    Where documents are long and their words correlated, diagonal ridge counts the same evidence many times.
    The scale of least squares, at most one, shrinks it, and is the step of all passes: what is counted r times
    would overshoot r times. Negligible weights are dropped after every pass: most of the entries, and of the
    time, would be those of common words with nearly all labels.

    Parameters
    ----------
    engine : Engine
    features : Features
    n_passes : int
        Residual passes.
    """
    inverse = 1.0 / (np.asarray(features.cross["squares"]) + DIAGONAL_PENALTY)
    cross = _scipy(features.cross["cross"])
    total = _pruned(cross, inverse)
    stages: list[Stage] = []
    for _ in range(n_passes):
        weights = MixedRows.of(_scaled_rows(total, inverse))
        stored = transform_fields(weights, lambda leaf: engine.put(leaf) if np.ndim(leaf) else leaf)
        leave_out = stages[0].step if stages else 1.0
        sums = _restricted(engine, features, stored, inverse, leave_out, 4 * total.nnz)
        hits, squares = (float(x) for x in sums["fit"])
        scale = min(1.0, hits / squares) if hits > 0 else 1.0
        stage = Stage(stored, scale, stages[0].step if stages else scale)
        total = _pruned(_next_total(total, cross, _scipy(sums["cross"]), stage), inverse)
        stages.append(stage)
    return LinearFit(tuple(stages), total, inverse)


def extend_linear(engine: Engine, fit: LinearFit, features: Features, added: Features) -> LinearFit:
    """Add documents to a linear fit: what they bring to its sums at every stage.

    Parameters
    ----------
    engine : Engine
    fit : LinearFit
    features : Features
        Of all documents.
    added : Features
        Of the documents that the fit has not seen.
    """
    own = cross = _scipy(added.cross["cross"])
    for stage in fit.stages:
        # The stage has not seen these documents: nothing of them is to be left out of its scores.
        sums = _restricted(engine, added, stage.weights, fit.inverse, 0.0, fit.total.nnz)
        own = _next_total(own, cross, _scipy(sums["cross"]), stage)
    inverse = 1.0 / (np.asarray(features.cross["squares"]) + DIAGONAL_PENALTY)
    return LinearFit(fit.stages, add_csr(fit.total, own), inverse)


def _next_total(total: csr_array, cross: csr_array, scores: csr_array, stage: Stage) -> csr_array:
    """Return ``s D W + step (A'Y - s A'F)``."""
    kept = add_csr(total, cross, stage.scale, stage.step)
    return add_csr(kept, scores, 1.0, -stage.step * stage.scale)


def _restricted(
    engine: Engine,
    features: Features,
    weights: MixedRows,
    inverse: np.ndarray,
    leave_out: float,
    projected_nnz: int,
) -> Sums:
    corpus = engine.corpus
    return engine.run(
        ResidualPass(
            corpus.n_words,
            features.selection,
            n_labels=corpus.n_labels,
            idf=features.idf,
            weights=weights,
            inverse_diagonal=inverse.astype(np.float32),
            leave_out=leave_out,
            projected_nnz=projected_nnz,
        )
    ).sums


def _scaled_rows(matrix: csr_array, scale: np.ndarray) -> csr_array:
    factor = np.repeat(scale.astype(matrix.dtype), np.diff(matrix.indptr))
    return csr_from_parts(matrix.data * factor, matrix.indices, matrix.indptr, matrix.shape)


def _pruned(matrix: csr_array, scale: np.ndarray) -> csr_array:
    """Return a matrix without the entries that are negligible once its rows are scaled."""
    if not matrix.nnz:
        return matrix
    factor = scale.astype(matrix.dtype)
    sample = np.arange(0, matrix.nnz, max(1, matrix.nnz // PRUNE_SAMPLE))
    rows = np.searchsorted(matrix.indptr, sample, side="right") - 1
    level = PRUNE * np.quantile(np.abs(matrix.data[sample] * factor[rows]), 0.99)
    return drop_small(matrix, (level / np.maximum(factor, 1e-30)).astype(matrix.dtype))


def sparse_head(*parts: tuple[csr_array, float]) -> SparseHead:
    """Return a head whose weights are a weighted sum of sparse matrices, without its negligible entries."""
    total = csr_array(parts[0][0] * parts[0][1])
    for matrix, factor in parts[1:]:
        total = add_csr(total, matrix, 1.0, factor)
    total.sort_indices()
    return SparseHead(MixedRows.of(_pruned(total, np.ones(total.shape[0]))))


def fit_neighbors(engine: Engine, features: Features) -> NeighborsHead:
    """Index the tf-idf rows of the corpus; rows outside the selection are there but may not vote."""
    corpus = engine.corpus
    rows, labels, alive = [], [], []
    for i in range(len(corpus.shards)):
        block = corpus.read_shard(i)
        rows.append(tfidf_rows(block.words, features.idf, np.float32))
        labels.append(block.labels)
        chosen = features.selection
        alive.append(
            np.ones(block.n_documents, bool)
            if chosen is None
            else chosen.mask(block.first, block.n_documents)
        )
    return NeighborsHead.build(
        vstack(rows, format="csr"), vstack(labels, format="csr"), features.idf, np.concatenate(alive)
    )


def sketch_neighbors(fit: RidgeFit, labels: Csr) -> SketchNeighbors:
    """Index the stored rows of the sketch; ``labels`` are those of the same documents."""
    assert fit.rows is not None
    return SketchNeighbors(unit_rows(fit.rows), labels, np.ones(len(fit.rows), np.uint8))
