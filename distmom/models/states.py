"""Latent states from word and label moments: passes, whitening, decomposition, parameters.

Multi-label paper, Algorithm 1, with the basis of a range finder in place of the words: a sketch pass and
``n_power_iter`` power passes give an orthonormal basis Q (d x r), one pass the moments in it, W' whitens
``Q'M2 Q`` and T = M3(QW', QW', QW') is decomposed on the scheduler node; then ``pi = lambda^-2``,
``O = Q B' U diag(lambda)`` and one pass over the labels gives the label states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from distmom.engine import Engine, Selection, StoredArray, merge
from distmom.engine.state import load_sums
from distmom.errors import NumericalError, UsageError
from distmom.linalg import clip_columns, decompose, mixture_parameters, multilinear, orthonormalise, whiten
from distmom.moments.labels import LabelMomentsPass
from distmom.moments.weighting import MomentKind
from distmom.moments.words import WordMoments, WordMomentsPass, WordSketchPass, word_moments

#: rows of a tall matrix that are orthonormalised at a time
SLAB_ROWS = 1 << 16


#: columns that measure what sampling does to a second moment of distinct positions
N_PROBES = 8
#: the basis has sought out the largest noise, which a few passes of independent probes do not quite reach
PROBE_MARGIN = 1.5


@dataclass(frozen=True)
class StateSettings:
    """How latent states are fitted.

    Attributes
    ----------
    n_states : int
    kind : MomentKind
    n_oversamples, n_power_iter : int
        Width of the sketch beyond the states, and power passes.
    decomposition : str
        A method of `distmom.linalg.decompose`.
    smoothing : float
        Share of the unigram distribution mixed into every state, so that no word vetoes a state.
    seed : int
    single_precision : bool
        Multiply blocks in float32; sums are float64 in any case.
    lower : bool
        Take fewer states when the second moment does not carry as many, instead of refusing.
    decompose_on : {"scheduler", "client"}
    """

    n_states: int
    kind: MomentKind = field(default_factory=MomentKind)
    n_oversamples: int = 10
    n_power_iter: int = 2
    decomposition: str = "joint"
    smoothing: float = 0.1
    seed: int = 0
    single_precision: bool = True
    lower: bool = False
    decompose_on: str = "scheduler"


@dataclass(frozen=True)
class States:
    """Fitted latent states.

    Attributes
    ----------
    weights : ndarray of shape (k,)
        Probabilities of the states.
    components : ndarray of shape (k, d)
        Word probabilities, rows sum to one.
    label_states : ndarray of shape (k, L)
        Label probabilities from the cross moment (equation 21), rows sum to one.
    label_posteriors : ndarray of shape (k, L)
        The same from the posteriors of the training documents.
    spectrum : ndarray of shape (r,)
        Ritz values of the second moment.
    basis : StoredArray
        Basis Q of the moments.
    directories : tuple of str
        Committed passes whose sums the moments are.
    noise : float
        Level below which an eigenvalue of M2 is noise, as a share of the largest (see `_next_probes`).
    diagnostics : dict
        Everything that says how far to trust the fit; JSON values.
    """

    weights: np.ndarray
    components: np.ndarray
    label_states: np.ndarray
    label_posteriors: np.ndarray
    spectrum: np.ndarray
    basis: StoredArray
    directories: tuple[str, ...]
    noise: float
    diagnostics: dict[str, Any]


@dataclass(frozen=True)
class _Core:
    """What comes back from the scheduler node, all in the basis Q."""

    W: np.ndarray
    B: np.ndarray
    V: np.ndarray
    eigenvalues: np.ndarray
    spectrum: np.ndarray
    lengths: dict[str, float]
    m1: np.ndarray
    diagnostics: dict[str, Any]


def fit_states(engine: Engine, settings: StateSettings, selection: Selection | None = None) -> States:
    """Fit latent states and their labels in ``n_power_iter + 3`` passes.

    Raises
    ------
    NumericalError
        If the second moment carries fewer states than asked for, with its eigenvalues.
    """
    corpus = engine.corpus
    d = corpus.n_words
    dtype = np.float32 if settings.single_precision else np.float64
    r = min(settings.n_states + settings.n_oversamples, d)
    common: dict[str, Any] = {"n_words": d, "selection": selection, "kind": settings.kind}
    basis: StoredArray | None = None
    probes: StoredArray | None = None
    # With pairs of a position and itself every eigenvalue is positive, and none of them vanishes as noise.
    n_probes = min(N_PROBES, d - r) if settings.kind.distinct else 0
    noise = 0.0
    for _ in range(settings.n_power_iter + 1):
        sums = engine.run(
            WordSketchPass(
                **common, n_columns=r, seed=settings.seed, basis=basis, n_probes=n_probes, probes=probes
            )
        ).sums
        largest, directions = _next_basis(np.asarray(sums["sketch"]), basis)
        if n_probes:
            level, outside = _next_probes(np.asarray(sums["noise"]), probes, directions)
            noise = level / largest if largest > 0.0 else 0.0
            n_probes, probes = outside.shape[1], engine.put(outside.astype(dtype)) if outside.size else None
        basis, r = engine.put(directions.astype(dtype)), directions.shape[1]
    assert basis is not None
    result = engine.run(WordMomentsPass(**common, basis=basis, rank=r))
    return _finish(engine, settings, selection, basis, (result.directory,), noise)


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
    basis = states.basis
    rank = basis.load().shape[1]
    result = engine.run(
        WordMomentsPass(engine.corpus.n_words, added, kind=settings.kind, basis=basis, rank=rank)
    )
    return _finish(engine, settings, None, basis, (*states.directories, result.directory), states.noise)


def _finish(
    engine: Engine,
    settings: StateSettings,
    selection: Selection | None,
    basis: StoredArray,
    directories: tuple[str, ...],
    noise: float,
) -> States:
    """Decompose the moments of some committed passes and fit the labels of the states."""
    corpus = engine.corpus
    dtype = np.float32 if settings.single_precision else np.float64
    load = partial(load_moments, directories, settings.kind, basis)
    if settings.decompose_on == "scheduler":
        core = engine.on_scheduler(decompose_moments, load, settings, noise)
    else:
        core = decompose_moments(load(), settings, noise)
    k = len(core.eigenvalues)
    with threadpool_limits(limits=1):
        Q = np.asarray(basis.load(), np.float64)
        mixture = mixture_parameters(core.eigenvalues, core.V, Q @ core.B)
        keep = mixture.usable
        directions = (Q @ (core.W @ core.V))[:, keep]
    topics = mixture.components[:, keep]
    weights = mixture.weights[keep] / mixture.weights[keep].sum()
    smooth = smoothed(topics, np.asarray(corpus.document_frequency, np.float64), settings.smoothing)
    labels = engine.run(
        LabelMomentsPass(
            corpus.n_words,
            selection,
            kind=settings.kind,
            n_labels=corpus.n_labels,
            n_states=int(keep.sum()),
            directions=engine.put(directions.astype(dtype)),
            log_topics=engine.put(np.log(smooth).astype(dtype)),
            log_weights=np.log(weights),
        )
    ).sums
    by_cross, _, cross_clipped = clip_columns(
        np.asarray(labels["cross"]) / max(float(labels["mass"]), 1e-300)
    )
    by_posterior, _, _ = clip_columns(np.asarray(labels["posterior"]))
    return States(
        weights=weights,
        components=np.ascontiguousarray(topics.T),
        label_states=np.ascontiguousarray(by_cross.T),
        label_posteriors=np.ascontiguousarray(by_posterior.T),
        spectrum=core.spectrum,
        basis=basis,
        directories=directories,
        noise=noise,
        diagnostics={
            **core.diagnostics,
            **core.lengths,
            "n_states": int(keep.sum()),
            "n_states_asked": settings.n_states,
            "n_dropped": int(k - keep.sum()),
            "sum_pi": float(mixture.raw_weights.sum()),
            "column_sums": [float(x) for x in mixture.column_sums],
            "clipped_words": [float(x) for x in mixture.clipped],
            "clipped_labels": [float(x) for x in cross_clipped],
            "mean_log_likelihood": float(labels["log_likelihood"]) / max(core.lengths["n_documents"], 1.0),
            "bounds": error_bounds(core, settings.kind, k, mixture.raw_weights),
        },
    )


def smoothed(topics: np.ndarray, document_frequency: np.ndarray, smoothing: float) -> np.ndarray:
    """Mix the unigram distribution, itself without zeros, into topic columns (d, k)."""
    unigram = document_frequency + 0.5
    unigram /= unigram.sum()
    floor = np.finfo(np.float64).tiny if smoothing == 0.0 else 0.0
    return np.maximum((1.0 - smoothing) * topics + smoothing * unigram[:, None], floor)


def _next_basis(sketch: np.ndarray, basis: StoredArray | None) -> tuple[float, np.ndarray]:
    """Orthonormalise ``M2 Q``, or ``(M2 + c I) Q`` where M2 has a negative Ritz value -c.

    Sampled moments of distinct positions have negative eigenvalues, and a power pass would be drawn to those
    of large magnitude; the shift makes the algebraically largest the dominant ones. Also return the largest
    Ritz value, 0 where there is no basis yet.
    """
    if basis is None:
        return 0.0, orthonormal_basis(sketch)
    Q = np.asarray(basis.load(), np.float64)
    with threadpool_limits(limits=1):
        ritz = np.linalg.eigvalsh((Q.T @ sketch + sketch.T @ Q) / 2)
    if ritz[0] < -1e-9 * abs(ritz[-1]):
        sketch = sketch - ritz[0] * Q
    return float(ritz[-1]), orthonormal_basis(sketch)


def _next_probes(
    product: np.ndarray, probes: StoredArray | None, basis: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return `PROBE_MARGIN` times the largest magnitude of noise met by the probes, and the next probes.

    They stay outside of the basis: what sampling does to the directions of large eigenvalues is large too,
    but says nothing of the small ones.
    """
    level = 0.0
    with threadpool_limits(limits=1):
        if probes is not None:
            P = np.asarray(probes.load(), np.float64)
            level = PROBE_MARGIN * float(
                np.abs(np.linalg.eigvalsh((P.T @ product + product.T @ P) / 2)).max()
            )
        outside = product - basis @ (basis.T @ product)
    if not np.linalg.norm(outside) > 1e-9 * np.linalg.norm(product):
        return level, np.zeros((len(basis), 0))
    return level, orthonormal_basis(outside)


def orthonormal_basis(sketch: np.ndarray) -> np.ndarray:
    """Orthonormalise a sketch slab by slab and return the (d, rank) basis, float64."""
    with threadpool_limits(limits=1):
        slabs = [sketch[start : start + SLAB_ROWS] for start in range(0, len(sketch), SLAB_ROWS)]
        return np.concatenate(orthonormalise(slabs).slabs)


def load_moments(directories: tuple[str, ...], kind: MomentKind, basis: StoredArray) -> WordMoments:
    """Add the committed sums of moments passes and finish them; runs on a worker."""
    with threadpool_limits(limits=1):
        sums = merge(load_sums(directory)[0] for directory in directories)
        return word_moments(sums, kind, basis.load() if kind.distinct else None)


def decompose_moments(moments: WordMoments, settings: StateSettings, noise: float) -> _Core:
    """Whiten the second moment above a noise level and decompose the third; runs on the scheduler node."""
    with threadpool_limits(limits=1):
        values = np.linalg.eigvalsh(moments.m2)[::-1]
        level = noise * max(float(values[0]), 0.0)
        k = min(settings.n_states, len(moments.m2))
        if k < settings.n_states and not settings.lower:
            raise NumericalError(
                f"M2 numerically has rank < k: n_components={settings.n_states}, but the sketch has rank {k}; "
                f"use n_components={k} or fewer, or more data"
            )
        try:
            white = whiten(moments.m2, k, noise=level)
        except NumericalError:
            k = int(np.sum(values[:k] > max(level, 1e-12 * values[0])))
            if not settings.lower or k == 0:
                raise
            white = whiten(moments.m2, k, noise=level)
        tensor = multilinear(moments.m3, white.W, white.W, white.W)
        found = decompose(tensor, settings.decomposition, random_state=settings.seed)
    diagnostics = {
        "decomposition": settings.decomposition,
        "residual": found.residual,
        "off_diagonal_share": found.off_diagonal_share,
        "converged": bool(found.converged),
        "n_iter": int(found.n_iter),
        "history": [[str(name), float(value)] for name, value in found.history],
        "eigenvalues": [float(x) for x in found.eigenvalues],
        "n_usable_eigenvalues": int(white.n_usable),
        "noise_level": float(white.noise),
        "gap": float(white.gap),
        **{name: float(value) for name, value in found.diagnostics.items()},
    }
    return _Core(
        white.W, white.B, found.eigenvectors, found.eigenvalues, white.eigenvalues,
        moments.lengths, moments.m1, diagnostics,
    )  # fmt: skip


def error_bounds(
    core: _Core, kind: MomentKind, k: int, weights: np.ndarray, delta: float = 0.05
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
