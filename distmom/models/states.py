"""Latent states from word and label moments: passes, whitening, decomposition, parameters.

Multi-label paper, Algorithm 1, with the basis of a range finder in place of the words: a sketch pass and
``n_power_iter`` power passes give an orthonormal basis Q (d x r), one pass the moments in it, W' whitens
``Q'M2 Q`` and T = M3(QW', QW', QW') is decomposed on the scheduler node; then ``pi = lambda^-2``,
``O = Q B' U diag(lambda)`` and one pass over the labels gives the label states.

Where the r^3 numbers of M3(Q, Q, Q) are too many, the pass gives the first two moments, and a second one
contractions T(I, I, h) with a few directions h, which are diagonalised jointly. The directions are drawn in the
whitened space, and so after the second moment is known: drawn before, in the basis, they would have parts
outside of the range of W', which carry nothing but noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from distmom.engine import (
    Engine,
    PassPlan,
    Selection,
    StoredColumns,
    Sums,
    Tallies,
    TallResult,
    merge,
)
from distmom.engine.directory import load_sums
from distmom.engine.passes import Pass
from distmom.errors import NumericalError, UsageError
from distmom.linalg import (
    Decomposition,
    Whitening,
    decompose,
    decompose_slices,
    mixing_weights,
    multilinear,
    slice_directions,
    whiten,
)
from distmom.models.tall import (
    WHOLE_BYTES,
    clipped_columns,
    column_masses,
    next_directions,
    state_rows,
    store_columns,
    to_columns,
)
from distmom.moments.labels import LabelMomentsPass
from distmom.moments.weighting import MomentKind
from distmom.moments.words import (
    WordMoments,
    WordMomentsPass,
    WordSketchPass,
    WordSlicesPass,
    word_moments,
    word_slices,
)

THIRD_MOMENTS = ("auto", "full", "slices")
#: columns that measure what sampling does to a second moment of distinct positions
N_PROBES = 8
#: a state with a smaller eigenvalue has no meaningful weight
MIN_EIGENVALUE = 1e-8
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
    third_moment : {"auto", "full", "slices"}
        Add up all of the third moment, or contractions with a few directions, which takes one more pass and
        goes with ``decomposition="joint"`` alone; "auto" takes slices where the whole does not fit a worker.
    smoothing : float
        Share of the unigram distribution mixed into every state, so that no word vetoes a state.
    seed : int
    single_precision : bool
        Multiply blocks in float32; sums are float64 in any case.
    lower : bool
        Take fewer states when the second moment does not carry as many, instead of refusing.
    decompose_on : {"scheduler", "client"}
    cross_moment : bool
        Also accumulate the cross moment of labels and pairs of words (equation 21).
    """

    n_states: int
    kind: MomentKind = field(default_factory=MomentKind)
    n_oversamples: int = 10
    n_power_iter: int = 2
    decomposition: str = "joint"
    third_moment: str = "auto"
    smoothing: float = 0.1
    seed: int = 0
    single_precision: bool = True
    lower: bool = False
    decompose_on: str = "scheduler"
    cross_moment: bool = True

    def __post_init__(self) -> None:
        if self.third_moment not in THIRD_MOMENTS:
            raise UsageError(
                f"third_moment: expected one of {', '.join(THIRD_MOMENTS)}, got {self.third_moment!r}"
            )
        if self.third_moment == "slices" and self.decomposition != "joint":
            raise UsageError(
                f"decomposition={self.decomposition!r} works on the whole third moment: "
                "third_moment='slices' goes with decomposition='joint'"
            )

    @property
    def dtype(self) -> str:
        """Type in which blocks are multiplied and tall results are held."""
        return "float32" if self.single_precision else "float64"


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
    basis : StoredColumns
        Basis Q of the moments.
    directories : tuple of str
        Committed passes whose sums the moments are.
    noise : float
        Level below which an eigenvalue of M2 is noise, as a share of the largest (see `_next_basis`).
    diagnostics : dict
        Everything that says how far to trust the fit; JSON values.
    """

    weights: np.ndarray
    components: np.ndarray
    label_states: np.ndarray | None
    label_posteriors: np.ndarray
    log_topics: StoredColumns
    spectrum: np.ndarray
    basis: StoredColumns
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
    diagnostics: dict[str, Any]


def fit_states(engine: Engine, settings: StateSettings, selection: Selection | None = None) -> States:
    """Fit latent states and their labels in ``n_power_iter + 3`` passes, one more with slices.

    Raises
    ------
    NumericalError
        If the second moment carries fewer states than asked for, with its eigenvalues.
    """
    d = engine.corpus.n_words
    r = min(settings.n_states + settings.n_oversamples, d)
    common: dict[str, Any] = {
        "n_words": d, "selection": selection, "kind": settings.kind, "single": settings.single_precision
    }  # fmt: skip
    basis: StoredColumns | None = None
    probes: StoredColumns | None = None
    # With pairs of a position and itself every eigenvalue is positive, and none of them vanishes as noise.
    n_probes = min(N_PROBES, d - r) if settings.kind.distinct else 0
    noise = 0.0
    moments = moment_passes(settings, WordMomentsPass(**common, rank=r), engine.plan)
    power = WordSketchPass(**common, n_columns=r, n_probes=n_probes, basis=0)
    n_slabs = basis_slabs(power, moments, engine.plan)
    for _ in range(settings.n_power_iter + 1):
        pass_ = WordSketchPass(
            **common, n_columns=r, seed=settings.seed, basis=basis, n_probes=n_probes, probes=probes
        )
        finish = partial(_next_basis, engine, basis, probes, n_slabs, settings)
        found = engine.run_tall(pass_, finish, (settings.dtype,))
        basis, r = found.states["basis"], found.values["rank"]
        probes, n_probes = found.states.get("probes"), found.values["n_probes"]
        noise = found.values["noise"]
    assert basis is not None
    of_basis, slices = moment_passes(settings, WordMomentsPass(**common, basis=basis, rank=r), engine.plan)
    result = engine.run(of_basis)
    return _finish(engine, settings, selection, basis, (result.directory,), slices, noise)


def moment_passes(
    settings: StateSettings, whole: WordMomentsPass, plan: Callable[[Pass], PassPlan]
) -> tuple[WordMomentsPass, WordSlicesPass | None]:
    """Return the passes that give the moments in a basis: one, or two where the third is cut into slices.

    Parameters
    ----------
    settings : StateSettings
    whole : WordMomentsPass
        The one pass over all moments.
    plan : callable
        Plans a pass, and refuses one whose tasks cannot fit.
    """
    sliced = settings.third_moment == "slices"
    if settings.third_moment == "auto" and settings.decomposition == "joint":
        try:
            plan(whole)
        except UsageError:
            sliced = True
    if not sliced:
        return whole, None
    slices = WordSlicesPass(
        whole.n_words, whole.selection, kind=whole.kind, basis=whole.basis, rank=whole.rank,
        n_states=settings.n_states, n_slices=slice_directions(settings.n_states).shape[1], single=whole.single,
    )  # fmt: skip
    return replace(whole, third=False), slices


def basis_slabs(
    power: WordSketchPass, moments: tuple[Pass | None, ...], plan: Callable[[Pass], PassPlan]
) -> int:
    """Return how many slabs of columns the passes over a basis want it in."""
    return max(plan(p).n_mapped for p in (power, *moments) if p is not None)


def _next_basis(
    engine: Engine,
    basis: StoredColumns | None,
    probes: StoredColumns | None,
    n_slabs: int,
    settings: StateSettings,
    tallies: Tallies,
) -> TallResult:
    """Orthonormalise ``M2 Q`` and the product of the probes, and measure the noise.

    The level of noise is `PROBE_MARGIN` times the largest magnitude met by the probes, as a share of the
    largest Ritz value.
    """
    dtype = settings.dtype
    found = next_directions(
        engine, tallies.tall["sketch"], basis, tallies.tall.get("noise"), probes,
        indefinite=settings.kind.distinct,
    )  # fmt: skip
    states = {"basis": store_columns(engine, found.basis, dtype, n_slabs)}
    n_probes = found.probes.width if found.probes is not None else 0
    if found.probes is not None and n_probes:
        states["probes"] = store_columns(engine, found.probes, dtype, 1)
    noise = PROBE_MARGIN * found.noise / found.largest if found.largest > 0.0 else 0.0
    return TallResult(states, {"rank": found.basis.width, "n_probes": n_probes, "noise": noise})


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
    whole = WordMomentsPass(
        engine.corpus.n_words, added, kind=settings.kind, basis=basis, rank=basis.load().shape[1],
        single=settings.single_precision,
    )  # fmt: skip
    moments, slices = moment_passes(settings, whole, engine.plan)
    directories = (*states.directories, engine.run(moments).directory)
    # Another second moment whitens otherwise, so that slices are of all documents anew.
    slices = None if slices is None else replace(slices, selection=None)
    return _finish(engine, settings, None, basis, directories, slices, states.noise)


def _finish(
    engine: Engine,
    settings: StateSettings,
    selection: Selection | None,
    basis: StoredColumns,
    directories: tuple[str, ...],
    slices: WordSlicesPass | None,
    noise: float,
) -> States:
    """Decompose the moments of some committed passes and fit the labels of the states."""
    corpus = engine.corpus
    core = _components(engine, settings, basis, directories, slices, noise)
    k, d = len(core.eigenvalues), corpus.n_words
    # mu_h = lambda_h B v_h (tensor paper, theorem 4.3)
    unwhiten = core.B @ (core.V * core.eigenvalues)
    mass = column_masses(engine, basis, d, unwhiten)
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
        engine, basis, d, unwhiten[:, usable] / mass["positive"][usable],
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
        noise=noise,
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


def _components(
    engine: Engine,
    settings: StateSettings,
    basis: StoredColumns,
    directories: tuple[str, ...],
    slices: WordSlicesPass | None,
    noise: float,
) -> _Core:
    """Whiten the second moment of some committed passes and decompose the third, whole or by slices."""
    load = partial(load_moments, directories, settings.kind, basis)
    if slices is None:
        whole: _Core = _decomposed(engine, settings, decompose_moments, load, settings, noise)
        return whole
    moments, white = _decomposed(engine, settings, whiten_moments, load, settings, noise)
    directions = slice_directions(white.W.shape[1], settings.seed)
    k, m = directions.shape
    stored, across = engine.put(white.W), engine.put(directions)
    result = engine.run(replace(slices, whitener=stored, directions=across, n_states=k, n_slices=m))
    contracted = partial(load_slices, result.directory, settings.kind, basis, white.W, directions)
    core: _Core = _decomposed(engine, settings, decompose_contracted, contracted, moments, white, directions)
    return core


def _decomposed(
    engine: Engine, settings: StateSettings, function: Callable[..., Any], load: Callable[[], Any], *rest: Any
) -> Any:
    """Call ``function(load(), *rest)`` where moments are to be decomposed."""
    if settings.decompose_on == "scheduler":
        return engine.on_scheduler(function, load, *rest)
    return function(load(), *rest)


def load_moments(directories: tuple[str, ...], kind: MomentKind, basis: StoredColumns) -> WordMoments:
    """Add the committed sums of moments passes and finish them; runs on a worker."""
    with threadpool_limits(limits=1):
        return word_moments(_added(directories), kind, basis)


def load_slices(
    directory: str, kind: MomentKind, basis: StoredColumns, whitener: np.ndarray, directions: np.ndarray
) -> np.ndarray:
    """Finish the committed sums of a slices pass; runs on a worker."""
    with threadpool_limits(limits=1):
        return word_slices(_added((directory,)), kind, whitener, directions, basis)


def _added(directories: tuple[str, ...]) -> Sums:
    """Return the sums of some committed passes together, mapped where there is only one."""
    parts = (load_sums(directory)[0] for directory in directories)
    return next(parts) if len(directories) == 1 else merge(parts)


def decompose_moments(moments: WordMoments, settings: StateSettings, noise: float) -> _Core:
    """Whiten the second moment above a noise level and decompose the third; runs on the scheduler node."""
    assert moments.m3 is not None
    _, white = whiten_moments(moments, settings, noise)
    with threadpool_limits(limits=1):
        tensor = multilinear(moments.m3, white.W, white.W, white.W)
        found = decompose(tensor, settings.decomposition, random_state=settings.seed)
    return _core(moments, white, found, {"third_moment": "full", "decomposition": settings.decomposition})


def whiten_moments(
    moments: WordMoments, settings: StateSettings, noise: float
) -> tuple[WordMoments, Whitening]:
    """Whiten the second moment above a noise level; runs on the scheduler node."""
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
    return moments, white


def decompose_contracted(
    slices: np.ndarray, moments: WordMoments, white: Whitening, directions: np.ndarray
) -> _Core:
    """Decompose the third moment by its slices; runs on the scheduler node."""
    with threadpool_limits(limits=1):
        found = decompose_slices(slices, directions)
    how = {"third_moment": "slices", "n_slices": directions.shape[1], "decomposition": "joint"}
    return _core(moments, white, found, how)


def _core(moments: WordMoments, white: Whitening, found: Decomposition, how: dict[str, Any]) -> _Core:
    diagnostics = {
        **how,
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
        white.W,
        white.B,
        found.eigenvectors,
        found.eigenvalues,
        white.eigenvalues,
        moments.lengths,
        diagnostics,
    )


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
