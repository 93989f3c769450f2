"""Latent states of documents with labels: distributions over words, and over labels.

Multi-label paper, Algorithm 1, in the basis of a range finder instead of the space of words (see
`distmom.spectral.steps.components`): ``pi = lambda^-2``, ``O = Q B U diag(lambda)``, and one pass over the labels
gives the label probabilities of the states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.engine import Engine, Selection, StoredColumns, Tallies, TallResult
from distmom.errors import UsageError
from distmom.models.multilabel.latent.bounds import error_bounds
from distmom.models.multilabel.latent.word_states import WordStates, word_states
from distmom.moments.documents.labels import LabelMomentsPass
from distmom.moments.documents.words import WordSlicesPass
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.basis import Basis, unknown_columns
from distmom.spectral.steps.components import Words, find_components, fit_basis, moment_passes, settled
from distmom.spectral.steps.core import Core, CoreSettings
from distmom.spectral.steps.recovery import in_memory, tall_sum, to_columns


@dataclass(frozen=True)
class StateSettings(CoreSettings):
    """Settings of the fit of latent states.

    Attributes
    ----------
    smoothing : float, default 0.1
        Share of the unigram distribution mixed into every state, so that no single word excludes a state.
    cross_moment : bool, default True
        Also add up the cross moment of labels and pairs of words (equation 21).
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
        Label probabilities from the posteriors of the training documents, rows sum to one.
    log_topics : StoredColumns
        Logarithms of the smoothed word probabilities (d, k).
    spectrum : ndarray of shape (r,)
        Ritz values of the second moment.
    basis : Basis
        Basis of the moments.
    core : Core
        Components in that basis.
    directories : tuple of str
        Directories of the committed passes whose sums are the moments.
    diagnostics : dict
        Measures of the quality of the fit; JSON values.
    """

    weights: np.ndarray
    components: np.ndarray
    label_states: np.ndarray | None
    label_posteriors: np.ndarray
    log_topics: StoredColumns
    spectrum: np.ndarray
    basis: Basis
    core: Core
    directories: tuple[str, ...]
    diagnostics: dict[str, Any]


def fit_states(run: Run, settings: StateSettings, selection: Selection | None = None) -> States:
    """Fit latent states and their labels in ``n_power_iter + 3`` passes.

    Slices take one more pass, and so does every power step.

    Raises
    ------
    NumericalError
        If the second moment carries fewer states than requested; the message lists its eigenvalues.
    """
    words = Words(run.corpus.n_words)
    settings = settled(run, settings, words)
    basis = fit_basis(run, settings, words, selection)
    moments, *slices = moment_passes(settings, words, basis, selection)
    return _finish(run, settings, selection, basis, (run.scan(moments).directory,), slices)


def extend_states(run: Run, settings: StateSettings, states: States, added: Selection) -> States:
    """Add documents to fitted states: add their moments in the same basis, and repeat the steps after that.

    Where the whole third moment is known, its decomposition begins with the components of the fitted states.

    Parameters
    ----------
    run : Run
    settings : StateSettings
    states : States
        States fitted to the other documents of the corpus.
    added : Selection
        The documents to add.
    """
    words = Words(run.corpus.n_words)
    settings = settled(run, settings, words)
    moments, *slices = moment_passes(settings, words, states.basis, added)
    directories = (*states.directories, run.scan(moments).directory)
    # The new second moment has another whitening, so slices are added up over all documents again.
    slices = [replace(pass_, selection=None) for pass_ in slices]
    return _finish(run, settings, None, states.basis, directories, slices, states.core)


def _finish(
    run: Run,
    settings: StateSettings,
    selection: Selection | None,
    basis: Basis,
    directories: tuple[str, ...],
    slices: Sequence[WordSlicesPass],
    near: Core | None = None,
) -> States:
    """Decompose the moments of some committed passes and fit the labels of the states."""
    d, n_labels, k = run.corpus.n_words, run.corpus.n_labels, settings.n_states
    core = find_components(run, settings, basis, directories, slices[0] if slices else None, near)
    pass_ = LabelMomentsPass(
        d, selection, kind=settings.kind, n_labels=n_labels, n_states=k, single=settings.single_precision,
        directions=0 if settings.cross_moment else None,
    )  # fmt: skip
    n_slabs = run.plan(pass_).n_mapped
    columns = unknown_columns(d, k, n_slabs)
    out = WordStates(
        unknown(k), unknown(k), unknown_columns(d, k), columns,
        columns if settings.cross_moment else None, unknown(),
    )  # fmt: skip
    words = run.rows(word_states, settings, settings.smoothing, basis, core, pass_, out=out)
    pass_ = replace(
        pass_, n_states=len(words.weights), directions=words.directions, log_topics=words.log_topics,
        log_weights=words.log_weights,
    )  # fmt: skip
    labels = run.scan(pass_, _label_states, settings.dtype, out=TallResult(unknown(), unknown()))
    found = States(
        unknown(k), unknown(k, d), unknown(k, n_labels) if settings.cross_moment else None,
        unknown(k, n_labels), columns, unknown(basis.rank), basis, core, directories, unknown(),
    )  # fmt: skip
    return run.apply(_states, core, words, labels, basis, directories, out=found)


def _states(
    core: Core,
    words: WordStates,
    labels: TallResult,
    basis: Basis,
    directories: tuple[str, ...],
) -> States:
    cross = labels.states.get("cross")
    n_documents = max(core.lengths["n_documents"], 1.0)
    return States(
        weights=words.weights,
        components=in_memory(to_columns(words.topics)).T,
        label_states=None if cross is None else in_memory(to_columns(cross)).T,
        label_posteriors=in_memory(to_columns(labels.states["posterior"])).T,
        log_topics=words.log_topics,
        spectrum=core.spectrum,
        basis=basis,
        core=core,
        directories=directories,
        diagnostics={
            **words.diagnostics,
            "clipped_labels": labels.values["clipped"],
            "bounds": error_bounds(core, np.array(labels.values["spread"])),
            "mean_log_likelihood": labels.values["log_likelihood"] / n_documents,
        },
    )


def _label_states(engine: Engine, tallies: Tallies, dtype: str) -> TallResult:
    """Turn the label moments into label probabilities of the states."""
    states, clipped = {}, [0.0]
    for name, partials in tallies.tall.items():
        states[name], masses = tall_sum(partials).distributions(engine, dtype)
        if name == "cross":
            clipped = [float(x) for x in masses.negative_share]
    values = {
        "clipped": clipped,
        "log_likelihood": float(tallies.sums["log_likelihood"]),
        "spread": tallies.sums["spread"].tolist(),
    }
    return TallResult(states, values)


def check_size(n_documents: int, n_states: int, force: bool) -> None:
    """Check that there are enough documents for a number of states (multi-label paper, section 6).

    Raises
    ------
    UsageError
        If there are fewer documents than the square of the number of states and ``force`` is False.
    """
    if n_documents < n_states**2 and not force:
        raise UsageError(
            f"n_components={n_states} needs at least n_components^2 = {n_states**2} documents, the corpus has "
            f"{n_documents}: use n_components={math.isqrt(n_documents)} or fewer, or force=True"
        )
