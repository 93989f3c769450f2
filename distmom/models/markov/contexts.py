"""Hidden Markov models of symbols by the contexts of symbols, from pairs of steps.

Anchors: Stratos, Collins, Hsu, "Unsupervised Part-Of-Speech Tagging with Anchor Hidden Markov Models" (TACL 2016),
section 3. The context of a symbol x, the mean of the steps before and after it, is ``sum_h P(h | x) c_h``,
where c_h is the mean context of state h. If each state has an anchor, a symbol that no other state emits, the
contexts of the anchors are the vertices of the convex hull of all contexts, and the weights of a context in
terms of them are ``P(h | x)``. The transition matrix follows in the same way: the mean of the steps after state
i is ``sum_j T_ij m_j``, where m_j is the mean of the steps of state j. All means are in a basis.

Clusters: Schuetze, "Distributional Part-of-Speech Tagging" (EACL 1995). Contexts are scaled to unit length and
clustered; each symbol belongs to the one state of its cluster. The rest is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.cluster import KMeans

from distmom.blas import one_blas_thread
from distmom.engine import Engine, StoredColumns, Tallies, TallResult
from distmom.engine.sums.tall import read_rows
from distmom.errors import NumericalError
from distmom.linalg.anchors import select_anchors, simplex_weights
from distmom.linalg.simplex import simplex_rows
from distmom.models.markov.recovery import ROUTES, disagreements
from distmom.spectral.program.run import unknown
from distmom.spectral.steps.basis import unknown_columns
from distmom.spectral.steps.recovery import Slabs

#: smallest share of all steps that an anchor has, unless fewer than `CANDIDATES` symbols per state have it
ANCHOR_SHARE = 5e-4
#: smallest number of candidates per state
CANDIDATES = 10
#: a negative weight above this is a rounding error, and counts as zero
_ROUNDING = -1e-9


@dataclass(frozen=True)
class Contextual:
    """A model from contexts.

    Attributes
    ----------
    joint : StoredColumns of shape (n_symbols, k)
        Shares of windows by the symbol and the state of their middle step.
    transitions : dict of str to ndarray of shape (k, k)
        By route; each row is a distribution.
    weights : ndarray of shape (k,)
        Distribution of the state of a middle step.
    start : ndarray of shape (k,)
        Distribution of the first state.
    diagnostics : dict
    """

    joint: StoredColumns
    transitions: dict[str, np.ndarray]
    weights: np.ndarray
    start: np.ndarray
    diagnostics: dict[str, Any]


def unknown_contexts(d: int, k: int) -> TallResult:
    """Return the result of `assign_symbols` without content, for a ledger."""
    return TallResult({"joint": unknown_columns(d, k)}, unknown())


def assign_symbols(
    engine: Engine, tallies: Tallies, basis: StoredColumns, rank: int, k: int, how: str, seed: int
) -> TallResult:
    """Find the states of symbols by their contexts.

    Parameters
    ----------
    engine : Engine
    tallies : Tallies
        Sums of a `ContextPass`.
    basis : StoredColumns of shape (n_symbols, rank)
    rank : int
    k : int
    how : {"anchors", "clusters"}
    seed : int
        Seed of the clusters.

    Raises
    ------
    NumericalError
        If fewer than k symbols have contexts that differ.
    """
    d, width = engine.corpus.n_words, 2 * rank
    mass = float(tallies.sums["mass"])
    if not mass > 0.0:
        raise NumericalError("contexts need windows of three steps, got none")
    stored, _ = engine.maps.map_rows(
        _contexts, [tallies.tall["contexts"]], d, {"contexts": (width + 1, "float64")}
    )
    contexts = stored["contexts"]
    frequency = np.asarray(engine.corpus.document_frequency, np.float64)
    order = np.argsort(-frequency, kind="stable")
    n = max(int(np.sum(frequency >= ANCHOR_SHARE * frequency.sum())), CANDIDATES * k)
    candidates = np.sort(order[: min(n, int(np.sum(frequency > 0.0)))])
    rows = np.asarray(contexts.load()[candidates])
    seen = rows[:, width] > 0.0
    candidates, rows = candidates[seen], rows[seen, :width]
    if len(candidates) < k:
        raise NumericalError(
            f"init={how!r}: expected at least n_components={k} frequent symbols inside sequences, got "
            f"{len(candidates)}; use fewer states, or more data"
        )
    with one_blas_thread():
        if how == "anchors":
            chosen = select_anchors(rows, k, np.arange(len(rows)))
            vertices = rows[chosen]
        else:
            unit, weights = _unit(rows), frequency[candidates] ** 0.5
            fitted = KMeans(k, n_init=10, random_state=seed % (1 << 32)).fit(unit, sample_weight=weights)
            vertices = fitted.cluster_centers_
            chosen = np.array([np.argmax(np.where(fitted.labels_ == h, weights, 0.0)) for h in range(k)])
    found, sums = engine.maps.map_rows(
        _joint, [contexts, basis], d, {"joint": (k, "float64")}, vertices, mass, how
    )  # fmt: skip
    first = np.asarray(tallies.sums["first"]) / max(float(tallies.sums["n_first"]), np.finfo(float).tiny)
    values = {name: np.asarray(value).tolist() for name, value in {**sums, "first": first}.items()}
    joint = {"joint": StoredColumns((found["joint"],))}
    return TallResult(joint, values | {"anchors": [int(i) for i in candidates[chosen]]})


def _contexts(rows: slice, sums: np.ndarray) -> tuple[Slabs, Slabs]:
    """Turn sums into means; the last column has the sums of weights."""
    means = np.array(sums)
    means[:, :-1] /= np.where(sums[:, -1:] > 0.0, sums[:, -1:], 1.0)
    return {"contexts": means}, {}


def _joint(
    rows: slice, contexts: np.ndarray, basis: np.ndarray, vertices: np.ndarray, mass: float, how: str
) -> tuple[Slabs, Slabs]:
    """Return the shares of windows by symbol and state, and the sums that the transition matrix is made of."""
    means = np.asarray(contexts[:, :-1], np.float64)
    shares = mixtures(means, vertices) if how == "anchors" else _nearest(_unit(means), vertices)
    joint = shares * (contexts[:, -1:] / mass)
    return {"joint": joint}, {
        "gram": joint.T @ shares, "cross": joint.T @ means, "means": joint.T @ basis, "weights": joint.sum(axis=0),
    }  # fmt: skip


def contextual_model(found: TallResult, vocabulary: list[str]) -> Contextual:
    """Return the model of symbols that have been assigned to states."""
    values = found.values
    gram, cross, sums, weights, first = (
        np.asarray(values[name]) for name in ("gram", "cross", "means", "weights", "first")
    )
    with one_blas_thread():
        means = sums / weights[:, None]
        # Mean steps before and after each state, from the contexts of all symbols.
        around = np.linalg.lstsq(gram, cross, rcond=None)[0]
        before, after = (mixtures(part, means) for part in np.split(around, 2, axis=1))
        earlier, later = (weights[:, None] * before).T, weights[:, None] * after
        transitions = dict(zip(ROUTES, (earlier + later, later, earlier), strict=True))
        for name, joint in transitions.items():
            transitions[name] = simplex_rows(joint / np.maximum(joint.sum(axis=1, keepdims=True), 1e-300))
        start = mixtures(first[None], means)[0]
    diagnostics = {
        "sum_weights": float(weights.sum()),
        "disagreement": disagreements(transitions, weights),
        # The most frequent symbol of a cluster represents it.
        "anchors": [vocabulary[i] for i in values["anchors"]],
    }
    return Contextual(found.states["joint"], transitions, weights, start, diagnostics)


def mixtures(rows: np.ndarray, vertices: np.ndarray) -> np.ndarray:
    """Return the weights (n, k) of the nearest mixtures of vertices (k, r) to rows (n, r)."""
    origin = vertices[0]
    inside = np.linalg.lstsq((vertices[1:] - origin).T, (rows - origin).T, rcond=None)[0].T
    weights = np.hstack([1.0 - inside.sum(axis=1, keepdims=True), inside])
    # Only rows outside the hull need iterations, which are less exact than the least squares inside.
    outside = weights.min(axis=1) < _ROUNDING
    if outside.any():
        weights[outside] = simplex_weights(rows[outside], vertices)
    weights = np.maximum(weights, 0.0)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _unit(rows: np.ndarray) -> np.ndarray:
    """Return rows of length one."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300))


def _nearest(rows: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return ones where a center (k, r) is the nearest to a row (n, r), else zeros, (n, k) float64."""
    distance = np.square(centers).sum(axis=1) - 2.0 * rows @ centers.T
    return np.asarray(np.eye(len(centers))[distance.argmin(axis=1)])


def joint_of(model: Contextual, n_symbols: int) -> np.ndarray:
    """Return the shares of windows by symbol and state, (n_symbols, k) float64."""
    return np.asarray(read_rows(model.joint, slice(0, n_symbols)), np.float64)
