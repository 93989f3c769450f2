"""Fit the sparse weights of the linear head: diagonal ridge, and residual passes on hard wrong labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import (
    Csr,
    Engine,
    Partials,
    Pruning,
    StoredArray,
    StoredColumns,
    Tallies,
    TallResult,
    Term,
)
from distmom.engine.stored.arrays import release_maps
from distmom.models.multilabel.heads.columns import PIECE_ENTRIES
from distmom.models.multilabel.heads.features import Features, unknown_csr
from distmom.models.multilabel.heads.names import NAME_DOCUMENTS, name_sums
from distmom.models.multilabel.heads.regression import NO_LIMITS, WeightLimits
from distmom.moments.features.residuals import ENTRY_COLUMNS, ResidualPass
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.saved.fields import record
from distmom.spectral.saved.layout import Matrix

#: added to diag(A'A): a word seen in few rows must not decide a label
DIAGONAL_PENALTY = 3.0
#: pruning of the linear head, which also keeps only the largest weights of a word: common words have weights for
#: nearly all labels
LINEAR_PRUNING = Pruning(share=0.01, row_entries=300)


@dataclass(frozen=True)
class KeptStage:
    """One residual pass of a linear scorer, in which documents can be added later.

    Saved models contain the name of the class.

    Attributes
    ----------
    weights : Csr
        The weights (d + 1, m) before the pass: stored arrays in a fit, and arrays in a model.
    scale : float
        Factor on those weights.
    step : float
        Factor on the residual.
    """

    weights: Csr = record({"": Matrix(("d1", "m"))})
    scale: float = 1.0
    step: float = 1.0


@dataclass(frozen=True)
class LinearFit:
    """A sparse linear scorer, and the residual passes that led to it.

    Attributes
    ----------
    stages : tuple of KeptStage
    terms : tuple of Term
        Stored matrices that add up to W (d + 1, L).
    inverse : ndarray of shape (d + 1,)
        Diagonal of ``D^-1``.
    diagonal : StoredArray of shape (d + 1,), float32
        The same in single precision, for passes.
    n_entries : int
        Number of weights.
    """

    stages: tuple[KeptStage, ...]
    terms: tuple[Term, ...]
    inverse: np.ndarray
    diagonal: StoredArray
    n_entries: int


def fit_linear(run: Run, features: Features, n_passes: int, limits: WeightLimits = NO_LIMITS) -> LinearFit:
    """Fit diagonal ridge regression ``D^-1 A'Y``, then improve it by residual passes.

    Where documents are long and their words correlated, diagonal ridge counts the same evidence many times. The
    scale of least squares, at most one, shrinks the weights, and is the step of all passes, as evidence counted r
    times would overshoot r times. Negligible weights are dropped before the passes, and no entries are added
    later: otherwise most entries, and most of the time, would go to pairs of common words with nearly all labels.
    The constant column is a feature like any word; its weights are the intercepts.

    Parameters
    ----------
    run : Run
    features : Features
    n_passes : int
        Number of residual passes.
    limits : WeightLimits, default NO_LIMITS
        The limit per word applies here; the limit per label applies to the heads that are made from the fit.
    """
    corpus, pruning = run.corpus, limits.of_words(LINEAR_PRUNING)
    planned = unknown(), unknown_csr(corpus.n_labels), n_linear_entries(corpus, pruning)
    inverse, first, n_entries = run.rows(_first_weights, features, pruning, out=planned)
    diagonal = run.rows(_stored_single, inverse, out=unknown())
    weights, stages = first, list[KeptStage]()
    for _ in range(n_passes):
        step = stages[0].step if stages else None
        # A document's contribution to the weights is left out of its own scores: the whole contribution in the
        # first pass, the share given by the step later.
        leave_out = 1.0 if step is None else step
        pass_ = _residual_pass(run, features, weights, n_entries, diagonal, leave_out)
        out = TallResult({"weights": StoredColumns((unknown(),))}, {"scale": unknown(), "step": unknown()})
        found = run.scan(pass_, _next_weights, inverse, first, weights, step, out=out)
        stages.append(KeptStage(weights, found.values["scale"], found.values["step"]))
        weights = replace(first, data=found.states["weights"].parts[0])
    return LinearFit(tuple(stages), (Term(weights),), inverse, diagonal, n_entries)


def _first_weights(engine: Engine, features: Features, pruning: Pruning) -> tuple[np.ndarray, Csr, int]:
    """Return ``D^-1``, the weights ``D^-1 A'Y`` without negligible entries, and the number of entries.

    A'Y includes the names of the labels, each as a few documents.
    """
    corpus = engine.corpus
    inverse = 1.0 / (features.squares + DIAGONAL_PENALTY)
    names = name_sums(corpus.label_names, corpus.vocabulary, np.asarray(features.idf.load()))
    terms = features.cross_terms(rows=inverse)
    if names.nnz:
        terms.append(Term(_stored(engine, names), NAME_DOCUMENTS, rows=inverse))
    first = engine.maps.combine(terms, pruning)
    return inverse, first, len(first.data.load())


def _stored(engine: Engine, matrix: csr_array) -> Csr:
    own = Csr.of(matrix)
    return Csr(engine.put(own.indptr), engine.put(own.indices), engine.put(own.data), own.n_columns)


def _stored_single(engine: Engine, inverse: np.ndarray) -> StoredArray:
    return engine.put(inverse.astype(np.float32))


def _residual_pass(
    run: Run, features: Features, weights: Csr, n_entries: int, diagonal: StoredArray, leave_out: float
) -> ResidualPass:
    corpus = run.corpus
    return ResidualPass(
        corpus.n_words,
        features.selection,
        n_labels=corpus.n_labels,
        idf=features.idf,
        weights=weights,
        n_entries=n_entries,
        inverse_diagonal=diagonal,
        leave_out=leave_out,
    )


def n_linear_entries(corpus: Corpus | MemoryCorpus, pruning: Pruning = LINEAR_PRUNING) -> int:
    """Return an estimate of the number of weights of the linear head."""
    n_labels = sum(s.nnz_labels for s in corpus.shards) / max(corpus.n_documents, 1)
    # The constant feature is in every document.
    of_words = np.append(corpus.document_frequency, corpus.n_documents) * n_labels
    limits = np.full(len(of_words), pruning.row_entries or np.inf)
    limits[len(limits) - pruning.n_unlimited_rows :] = corpus.n_labels
    return int(np.minimum(of_words, limits).sum())


def _next_weights(
    engine: Engine, tallies: Tallies, inverse: np.ndarray, first: Csr, weights: Csr, step: float | None
) -> TallResult:
    """Return ``s W + step D^-1 (A'Y - s A'F)`` on the entries of W, where ``D^-1 A'Y`` are the first weights."""
    hits, squares = (float(x) for x in tallies.sums["fit"])
    scale = min(1.0, hits / squares) if hits > 0 else 1.0
    if step is None:
        step = scale
    indptr, known, initial = weights.indptr.load(), weights.data.load(), first.data.load()
    with engine.directory.writer("float32", len(known)) as data:
        for entries, scores in _entries(tallies.tall["entries"], len(known)):
            start, stop = entries.start, entries.stop
            low, high = np.searchsorted(indptr, start, side="right") - 1, np.searchsorted(indptr, stop)
            of_rows = np.repeat(inverse[low:high], np.diff(np.clip(indptr[low : high + 1], start, stop)))
            data.append(scale * known[entries] + step * (initial[entries] - scale * of_rows * scores))
    release_maps()
    return TallResult({"weights": StoredColumns((data.stored,))}, {"scale": scale, "step": step})


def _entries(total: Partials, n_entries: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the sums of a residual pass piece by piece."""
    n_rows = PIECE_ENTRIES // ENTRY_COLUMNS
    for start in range(0, total.n_rows, n_rows):
        rows = slice(start, min(start + n_rows, total.n_rows))
        entries = slice(start * ENTRY_COLUMNS, min(rows.stop * ENTRY_COLUMNS, n_entries))
        yield entries, total.read_rows(rows).ravel()[: entries.stop - entries.start]


def extend_linear(run: Run, fit: LinearFit, features: Features, added: Features) -> LinearFit:
    """Add documents to a linear fit: add their sums for every stage.

    Parameters
    ----------
    run : Run
    fit : LinearFit
    features : Features
        Features of all documents.
    added : Features
        Features of the documents to add.
    """
    own = added_weights(run, fit, added)
    return run.apply(_joined_linear, fit, features, own, out=fit)


def added_weights(run: Run, fit: LinearFit, added: Features) -> Csr:
    """Return the terms that documents add to ``D W`` (d + 1, L), by one residual pass per stage of a fit.

    The stages and D are fixed, so these terms are sums over documents.
    """
    own = run.rows(_whole_cross, added, out=unknown_csr(run.corpus.n_labels))
    for stage in fit.stages:
        # These documents did not contribute to the weights of the stage, so nothing is left out of their scores.
        pass_ = _residual_pass(run, added, stage.weights, fit.n_entries, fit.diagonal, 0.0)
        out = TallResult({"scores": StoredColumns((unknown(),))}, {})
        found = run.scan(pass_, _stored_scores, fit.n_entries, out=out)
        own = run.rows(_added_stage, own, added, stage, found, out=unknown_csr(run.corpus.n_labels))
    return own


def _whole_cross(engine: Engine, features: Features) -> Csr:
    return features.whole_cross(engine)


def _added_stage(engine: Engine, own: Csr, added: Features, stage: KeptStage, found: TallResult) -> Csr:
    scores = replace(stage.weights, data=found.states["scores"].parts[0])
    terms = [
        Term(own, stage.scale),
        *added.cross_terms(stage.step),
        Term(scores, -stage.step * stage.scale),
    ]
    return engine.maps.combine(terms)


def _joined_linear(fit: LinearFit, features: Features, own: Csr) -> LinearFit:
    inverse = 1.0 / (features.squares + DIAGONAL_PENALTY)
    (known,) = fit.terms
    # D depends on all documents, so the known weights are rescaled.
    terms = (replace(known, rows=inverse / fit.inverse), Term(own, rows=inverse))
    return replace(fit, terms=terms, inverse=inverse)


def _stored_scores(engine: Engine, tallies: Tallies, n_entries: int) -> TallResult:
    with engine.directory.writer("float32", n_entries) as data:
        for _, scores in _entries(tallies.tall["entries"], n_entries):
            data.append(scores)
    return TallResult({"scores": StoredColumns((data.stored,))}, {})
