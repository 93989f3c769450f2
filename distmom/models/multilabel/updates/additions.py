"""What new documents add to the sums of a fitted model, and the parts from which its heads are made again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distmom.engine import Csr, Engine, Sums, Term
from distmom.errors import NumericalError
from distmom.models.multilabel.assembly import Parts
from distmom.models.multilabel.classifiers.descent import TOLERANCE
from distmom.models.multilabel.classifiers.margin import PRUNING, MarginFit, cost_name, fit_classifiers
from distmom.models.multilabel.heads.documents import stored_matrix, transposed
from distmom.models.multilabel.heads.features import Features, cross_features, unknown_csr
from distmom.models.multilabel.heads.linear import DIAGONAL_PENALTY, KeptStage, LinearFit, added_weights
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead
from distmom.models.multilabel.heads.regression import (
    NO_LIMITS,
    RidgeFit,
    WeightLimits,
    fit_neighbors,
    fit_ridge,
)
from distmom.models.multilabel.recipe import Recipe
from distmom.models.multilabel.updates.kept_sums import Content, ridge_sum
from distmom.models.multilabel.updates.sums import CrossSum, KeptSums, LinearSum
from distmom.models.multilabel.variants import costs_of
from distmom.spectral.program.run import Run, unknown


@dataclass(frozen=True)
class Start:
    """The parts of a model that all its updates share.

    Attributes
    ----------
    recipe : Recipe
    idf : ndarray of shape (d,) or (0,)
    basis : ndarray of shape (d, r) or None
    stages : tuple of KeptStage
        Stages of the linear head.
    share : float
        Share of ``D^-1 A'Y`` in the weights of labels without weights in the stages.
    has_documents : bool
        Whether a head needs the documents themselves.
    seed : int
    limits : WeightLimits, default NO_LIMITS
        Limits on the weights of the sparse heads.
    tolerance : float, default 0.4
        Tolerance of the descent of margin classifiers.
    """

    recipe: Recipe
    idf: np.ndarray
    basis: np.ndarray | None
    stages: tuple[KeptStage, ...]
    share: float
    has_documents: bool
    seed: int
    limits: WeightLimits = NO_LIMITS
    tolerance: float = TOLERANCE


def collect(run: Run, start: Start, digest: str) -> Content:
    """Return the content of the documents of a run, from one pass for each kind of sum.

    Parameters
    ----------
    run : Run
    start : Start
    digest : str
        Digest of the corpus, which the content lists.
    """
    recipe = start.recipe
    features = cross_features(run, run.put(start.idf), None)
    linear = ridge = index = None
    if recipe.needs("linear"):
        known = added_weights(run, _linear_fit(run, start), features)
        linear = run.rows(_with_new_labels, start, known, features, out=unknown_csr(run.corpus.n_labels))
    if recipe.needs("ridge") and start.basis is not None:
        basis = (run.put(start.basis), start.basis.shape[1])
        ridge = fit_ridge(run, features, basis, store=recipe.needs("rows"))
    if start.has_documents:
        index = fit_neighbors(run, features)
    found: Content = run.rows(_content, recipe, features, linear, ridge, index, digest, out=unknown())
    return found


def _linear_fit(run: Run, start: Start) -> LinearFit:
    """Store the stages for the passes of a run. Nothing is left out of scores, so D is not used."""
    n_labels, inverse = run.corpus.n_labels, np.zeros(run.corpus.n_words + 1)
    stages = tuple(
        KeptStage(stored_matrix(run.put, each.weights, n_labels), each.scale, each.step)
        for each in start.stages
    )  # fmt: skip
    n_entries = len(start.stages[0].weights.data) if stages else 0
    return LinearFit(stages, (), inverse, run.put(inverse.astype(np.float32)), n_entries)


def _with_new_labels(engine: Engine, start: Start, weights: Csr, features: Features) -> Csr:
    """Replace the weights of labels without weights in the stages.

    A label without weights in the stages has no scores, so A'F takes nothing away from A'Y, and the label would
    rank too high. It gets the share of A'Y that other labels keep on average.
    """
    known = np.zeros(weights.n_columns)
    if not start.stages:
        return weights
    known[np.asarray(start.stages[0].weights.indices)] = 1.0
    if known.all():
        return weights
    added = features.cross_terms(start.share, columns=1.0 - known)
    return engine.maps.combine([Term(weights, columns=known), *added])


def _content(
    engine: Engine,
    recipe: Recipe,
    features: Features,
    linear: Csr | None,
    ridge: RidgeFit | None,
    index: NeighborsHead | None,
    digest: str,
) -> Content:
    sums = KeptSums(
        features.squares,
        CrossSum(features.whole_cross(engine)) if recipe.needs("features") else None,
        None if linear is None else LinearSum(linear, ()),
        None if ridge is None else ridge_sum(ridge.sums),
        index,
        [[digest, 1]],
    )
    rows = None if ridge is None else ridge.rows
    return Content(features.n_documents, features.label_counts.astype(np.int64), sums, rows)


def parts_of(engine: Engine, start: Start, content: Content) -> Parts:
    """Return the parts from which the heads of a content are made, without latent states."""
    sums, counts, n = content.sums, content.label_counts, content.n_documents
    cross = () if sums.cross is None else (sums.cross.matrix,)
    features = Features(engine.put(start.idf), None, cross, sums.squares, counts, n)
    linear = ridge = margins = None
    if sums.linear is not None:
        inverse, weights = 1.0 / (sums.squares + DIAGONAL_PENALTY), sums.linear.weights
        terms = (Term(weights, rows=inverse),)
        diagonal = engine.put(inverse.astype(np.float32))
        linear = LinearFit((), terms, inverse, diagonal, len(weights.opened().data))
    if sums.ridge is not None and start.basis is not None:
        own = sums.ridge
        total = Sums({"zz": own.zz, "z": own.z, "zy": own.zy, "y": counts, "n_documents": np.float64(n)})
        ridge = ((engine.put(start.basis), start.basis.shape[1]), RidgeFit(total, content.rows))
    if start.recipe.needs("margins") and sums.documents is not None:
        margins = _fit_margins(engine, start, sums.documents, len(sums.squares) - 1)
    states = NumericalError("latent states are not updated")
    return Parts(features, states, ridge, linear, sums.documents, margins)


def _fit_margins(engine: Engine, start: Start, documents: NeighborsHead, n_words: int) -> MarginFit:
    """Fit the classifiers of the model to all documents, as they are not sums."""
    rows, holders = transposed(engine, documents.lists), transposed(engine, documents.labels)
    costs = costs_of(start.recipe.variants)
    shape = (n_words, documents.labels.n_columns)
    found = fit_classifiers(
        engine,
        rows,
        holders,
        engine.put(documents.alive),
        costs,
        shape,
        start.seed,
        start.limits.of(PRUNING),
        start.tolerance,
    )
    return MarginFit({cost_name(cost): weights for cost, weights in zip(costs, found, strict=True)})
