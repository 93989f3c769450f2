"""Latent states of documents with labels: components of their words, and what labels they bring.

Multi-label paper, Algorithm 1, with the basis of a range finder in place of the words (see
`distmom.spectral.components`): then ``pi = lambda^-2``, ``O = Q B' U diag(lambda)``, and one pass over the labels
gives the label states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from distmom.engine import Engine, Selection, StoredColumns, Tallies, TallResult
from distmom.errors import UsageError
from distmom.linalg import mixing_weights
from distmom.moments.labels import LabelMomentsPass
from distmom.moments.weighting import MomentKind
from distmom.moments.words import WordSlicesPass
from distmom.spectral.basis import Basis
from distmom.spectral.components import (
    Core,
    CoreSettings,
    Words,
    basis_passes,
    find_components,
    fit_basis,
    warn_of_sum_rules,
)
from distmom.spectral.tall import WHOLE_BYTES, clipped_columns, column_masses, state_rows, to_columns

#: a state with a smaller eigenvalue has no meaningful weight
MIN_EIGENVALUE = 1e-8


@dataclass(frozen=True)
class StateSettings(CoreSettings):
    """How latent states are fitted.

    Attributes
    ----------
    smoothing : float
        Share of the unigram distribution mixed into every state, so that no word vetoes a state.
    cross_moment : bool
        Also accumulate the cross moment of labels and pairs of words (equation 21).
    """

    smoothing: float = 0.1
    cross_moment: bool = True


@dataclass(frozen=True)
class States:
    """Fitted latent states.

    Attributes
    ----------
    weights : ndarray of shape (k,)
        Probabilities of the states.
    components : ndarray of shape (k, d)
        Word probabilities, rows sum to one.
    label_states : ndarray of shape (k, L) or None
        Label probabilities from the cross moment (equation 21), rows sum to one.
    label_posteriors : ndarray of shape (k, L)
        The same from the posteriors of the training documents.
    log_topics : StoredColumns
        Logarithms of the smoothed word probabilities (d, k).
    spectrum : ndarray of shape (r,)
        Ritz values of the second moment.
    basis : Basis
        Of the moments.
    directories : tuple of str
        Committed passes whose sums the moments are.
    diagnostics : dict
        Everything that says how far to trust the fit; JSON values.
    """

    weights: np.ndarray
    components: np.ndarray
    label_states: np.ndarray | None
    label_posteriors: np.ndarray
    log_topics: StoredColumns
    spectrum: np.ndarray
    basis: Basis
    directories: tuple[str, ...]
    diagnostics: dict[str, Any]


def fit_states(engine: Engine, settings: StateSettings, selection: Selection | None = None) -> States:
    """Fit latent states and their labels in ``n_power_iter + 3`` passes, one more with slices.

    Raises
    ------
    NumericalError
        If the second moment carries fewer states than asked for, with its eigenvalues.
    """
    words = Words(engine.corpus.n_words)
    basis = fit_basis(engine, settings, words, selection)
    moments, slices = basis_passes(engine, settings, words, basis, selection)
    return _finish(engine, settings, selection, basis, (engine.run(moments).directory,), slices)


def extend_states(engine: Engine, settings: StateSettings, states: States, added: Selection) -> States:
    """Add documents to fitted states: the sums of their moments in the same basis, then all that follows.

    Parameters
    ----------
    engine : Engine
    settings : StateSettings
    states : States
        Fitted to the other documents of the corpus.
    added : Selection
        The documents that were left out.
    """
    moments, slices = basis_passes(engine, settings, Words(engine.corpus.n_words), states.basis, added)
    directories = (*states.directories, engine.run(moments).directory)
    # Another second moment whitens otherwise, so that slices are of all documents anew.
    slices = None if slices is None else replace(slices, selection=None)
    return _finish(engine, settings, None, states.basis, directories, slices)


def _finish(
    engine: Engine,
    settings: StateSettings,
    selection: Selection | None,
    basis: Basis,
    directories: tuple[str, ...],
    slices: WordSlicesPass | None,
) -> States:
    """Decompose the moments of some committed passes and fit the labels of the states."""
    corpus = engine.corpus
    core = find_components(engine, settings, basis, directories, slices)
    warn_of_sum_rules(core.diagnostics.get("sum_rules", {}))
    k, d = len(core.eigenvalues), corpus.n_words
    # mu_h = lambda_h B v_h (tensor paper, theorem 4.3)
    unwhiten = core.B @ (core.V * core.eigenvalues)
    mass = column_masses(engine, basis.matrix, d, unwhiten)
    usable = (core.eigenvalues > MIN_EIGENVALUE) & (mass["positive"] > 0.0)
    weights, raw_weights = mixing_weights(core.eigenvalues, usable)
    weights, n_states = weights[usable], int(usable.sum())
    planned = LabelMomentsPass(
        d, selection, n_labels=corpus.n_labels, n_states=n_states, single=settings.single_precision,
        directions=0 if settings.cross_moment else None,
    )  # fmt: skip
    n_slabs = engine.plan(planned).n_mapped
    frequency = engine.put(np.asarray(corpus.document_frequency, np.float64)[:, None])
    topics, log_topics, directions = state_rows(
        engine, basis.matrix, d, unwhiten[:, usable] / mass["positive"][usable],
        (core.W @ core.V)[:, usable] if settings.cross_moment else None,
        frequency, settings.smoothing, settings.dtype, n_slabs,
    )  # fmt: skip
    engine.directory.sync(topics)
    labels = engine.run_tall(
        LabelMomentsPass(
            d, selection, kind=settings.kind, n_labels=corpus.n_labels, n_states=n_states,
            directions=directions, log_topics=log_topics, log_weights=np.log(weights),
            single=settings.single_precision,
        ),
        partial(_label_states, engine, settings.dtype),
        (settings.dtype,),
    )  # fmt: skip
    cross = labels.states.get("cross")
    total, negative = mass["positive"] - mass["negative"], mass["negative"]
    return States(
        weights=weights,
        components=_loaded(topics).T,
        label_states=None if cross is None else _loaded(cross).T,
        label_posteriors=_loaded(labels.states["posterior"]).T,
        log_topics=log_topics,
        spectrum=core.spectrum,
        basis=basis,
        directories=directories,
        diagnostics={
            **core.diagnostics,
            **core.lengths,
            "n_states": n_states,
            "n_states_asked": settings.n_states,
            "n_dropped": k - n_states,
            "sum_pi": float(raw_weights.sum()),
            "column_sums": [float(x) for x in total],
            "clipped_words": [float(x) for x in negative / np.maximum(mass["positive"] + negative, 1e-300)],
            "clipped_labels": labels.values["clipped"],
            "mean_log_likelihood": labels.values["log_likelihood"] / max(core.lengths["n_documents"], 1.0),
            "bounds": error_bounds(core, settings.kind, k, raw_weights),
        },
    )


def _loaded(stored: StoredColumns) -> np.ndarray:
    """Return a stored matrix: a large one as a memory map, whose file may be unlinked but not shortened."""
    matrix = to_columns(stored)
    return matrix if matrix.nbytes > WHOLE_BYTES else np.array(matrix)


def _label_states(engine: Engine, dtype: str, tallies: Tallies) -> TallResult:
    """Turn the label moments into label probabilities of the states."""
    states, clipped = {}, [0.0]
    for name, partials in tallies.tall.items():
        states[name], share = clipped_columns(engine, partials, dtype)
        if name == "cross":
            clipped = [float(x) for x in share]
    values = {"clipped": clipped, "log_likelihood": float(tallies.sums["log_likelihood"])}
    return TallResult(states, values)


def error_bounds(
    core: Core, kind: MomentKind, k: int, weights: np.ndarray, delta: float = 0.05
) -> dict[str, float]:
    """Return the three bounds of the multi-label paper's Theorem 1; they are loose.

    The bounds of the word, label and weight estimates hold with probability ``1 - delta`` for large enough N.
    """
    lengths = core.lengths
    n = max(lengths["n_documents"], 1.0)
    eps1, eps2 = 1 + math.sqrt(math.log(1 / delta) / 2), 1 + math.sqrt(math.log(2 / delta) / 2)
    s1, sk = float(core.spectrum[0]), float(core.spectrum[k - 1])
    d2, d3 = max(lengths["mean_length2"], 1e-300), max(lengths["mean_length3"], 1e-300)
    dl = max(lengths["mean_length2_labels"], 1e-300)
    root2 = math.sqrt(2.0)
    return {
        "delta": delta,
        "words": (
            160 * math.sqrt(s1) / (d2 * sk**2.5)
            + 32 * math.sqrt(2 * s1) / (d3 * sk**1.5)
            + 4 * math.sqrt(s1) / (d2 * sk)
        ) * eps1 / math.sqrt(n),
        "labels": (
            160 / (d2 * sk**3.5) + 32 * root2 / (d3 * sk**2.5) + (2 + 2 * root2) / (d2 * sk**2)
        ) * 2 * eps1 / math.sqrt(n) + 8 * eps2 / (dl * sk * math.sqrt(n)),
        "weights": (200 / sk**2.5 + 40 * root2 / sk**1.5) * eps1 / (d3 * math.sqrt(n)),
    }  # fmt: skip


def check_size(n_documents: int, n_states: int, force: bool) -> None:
    """Refuse a number of states that the documents cannot carry (multi-label paper, section 6).

    Raises
    ------
    UsageError
        If there are fewer documents than the square of the number of states, unless forced.
    """
    if n_documents < n_states**2 and not force:
        raise UsageError(
            f"n_components={n_states} needs at least n_components^2 = {n_states**2} documents, the corpus has "
            f"{n_documents}: use n_components={math.isqrt(n_documents)} or fewer, or force"
        )
