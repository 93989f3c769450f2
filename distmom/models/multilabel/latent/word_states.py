"""The word distributions of latent states, recovered from a decomposition.

Multi-label paper, Algorithm 1: ``pi = lambda^-2``, ``O = Q B U diag(lambda)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.engine import Engine, StoredColumns
from distmom.linalg import mixing_weights
from distmom.moments.documents.labels import LabelMomentsPass
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.core import Core, CoreSettings, warn_of_sum_rules
from distmom.spectral.steps.recovery import Slabs, product, store_columns

#: a state with a smaller eigenvalue has no meaningful weight
MIN_EIGENVALUE = 1e-8


@dataclass(frozen=True)
class WordStates:
    """The word distributions of latent states, from which the posteriors of documents follow.

    Attributes
    ----------
    weights, log_weights : ndarray of shape (k,)
        Probabilities of the states, and their logarithms.
    topics, log_topics : StoredColumns
        Word probabilities (d, k), and logarithms of the smoothed word probabilities.
    directions : StoredColumns or None
        ``W U`` (d, k), for the cross moment.
    diagnostics : dict
    """

    weights: np.ndarray
    log_weights: np.ndarray
    topics: StoredColumns
    log_topics: StoredColumns
    directions: StoredColumns | None
    diagnostics: dict[str, Any]


def word_states(
    engine: Engine,
    settings: CoreSettings,
    smoothing: float,
    basis: Basis,
    core: Core,
    labels: LabelMomentsPass,
) -> WordStates:
    """Recover the word distributions of the states of positive weight.

    Parameters
    ----------
    engine : Engine
    settings : CoreSettings
    smoothing : float
        Share of the unigram distribution in the logarithms.
    basis : Basis
    core : Core
        Components in the basis.
    labels : LabelMomentsPass
        The pass that reads the logarithms, and the directions where it adds up the cross moment.
    """
    warn_of_sum_rules(core.diagnostics.get("sum_rules", {}))
    corpus = engine.corpus
    k, d = len(core.eigenvalues), corpus.n_words
    # mu_h = lambda_h B v_h (tensor paper, theorem 4.3)
    unwhiten = core.B @ (core.V * core.eigenvalues)
    mass = product(basis.matrix, d, unwhiten).masses(engine)
    usable = (core.eigenvalues > MIN_EIGENVALUE) & (mass.positive > 0.0)
    weights, raw_weights = mixing_weights(core.eigenvalues, usable)
    weights, n_states = weights[usable], int(usable.sum())
    n_slabs = engine.plan(replace(labels, n_states=n_states)).n_mapped
    frequency = engine.put(np.asarray(corpus.document_frequency, np.float64)[:, None])
    outputs = {"topics": (n_states, 1), "log": (n_states, n_slabs)}
    directions = None
    if labels.directions is not None:
        directions = (core.W @ core.V)[:, usable]
        outputs["direction"] = (n_states, n_slabs)
    stored = store_columns(
        engine, _state_rows, (basis.matrix, frequency), d, outputs, settings.dtype,
        unwhiten[:, usable] / mass.positive[usable], directions,
        float(np.sum(frequency.load() + 0.5)), smoothing, settings.dtype,
    )  # fmt: skip
    engine.directory.sync(stored["topics"])
    diagnostics = {
        **core.diagnostics,
        **core.lengths,
        "n_states": n_states,
        "n_states_asked": settings.n_states,
        "n_dropped": k - n_states,
        "sum_pi": float(raw_weights.sum()),
        "column_sums": [float(x) for x in mass.positive - mass.negative],
        "clipped_words": [float(x) for x in mass.negative_share],
    }
    return WordStates(
        weights, np.log(weights), stored["topics"], stored["log"], stored.get("direction"), diagnostics
    )


def _state_rows(
    rows: slice,
    q: np.ndarray,
    frequency: np.ndarray,
    topics: np.ndarray,
    directions: np.ndarray | None,
    total: float,
    smoothing: float,
    dtype: str,
) -> tuple[Slabs, Slabs]:
    """Return rows of the clipped distributions, of their logarithms and of the directions."""
    wide = np.asarray(q, np.float64)
    clipped = np.maximum(wide @ topics, 0.0).astype(dtype)
    written = {"topics": clipped, "log": smoothed_logs(clipped, frequency[:, 0], total, smoothing)}
    if directions is not None:
        written["direction"] = wide @ directions
    return written, {}


def smoothed_logs(topics: np.ndarray, frequency: np.ndarray, total: float, smoothing: float) -> np.ndarray:
    """Mix the smoothed unigram distribution into topic columns and take logarithms.

    Parameters
    ----------
    topics : ndarray of shape (n, k)
        Rows of some words.
    frequency : ndarray of shape (n,)
        Document frequencies of the same words.
    total : float
        Sum of all document frequencies, each increased by 1/2.
    smoothing : float
        Share of the unigram distribution.
    """
    unigram = ((frequency + 0.5) * (smoothing / total)).astype(topics.dtype)
    mixed = topics.dtype.type(1.0 - smoothing) * topics + unigram[:, None]
    return np.asarray(np.log(np.maximum(mixed, np.finfo(topics.dtype).tiny)))
