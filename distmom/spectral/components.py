"""From passes to components: a basis, moments in it, whitening, and a decomposition on the scheduler node.

Every model of words begins so. A sketch pass and ``n_power_iter`` power passes give an orthonormal basis Q
(d x r), one pass the moments in it, W' whitens ``Q'M2 Q`` and T = M3(QW', QW', QW') is decomposed.

Where the r^3 numbers of M3(Q, Q, Q) are too many, the pass gives the first two moments, and a second one
contractions T(I, I, h) with a few directions h, which are diagonalised jointly. The directions are drawn in the
whitened space, and so after the second moment is known: drawn before, in the basis, they would have parts
outside of the range of W', which carry nothing but noise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import (
    Engine,
    PassPlan,
    Selection,
    StoredArray,
    StoredColumns,
    Sums,
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
    multilinear,
    slice_directions,
    symmetrise,
    whiten,
)
from distmom.moments.dirichlet import second_moment, third_moment, third_moment_slices
from distmom.moments.weighting import MomentKind
from distmom.moments.word_moments import WordMoments, word_moments, word_slices
from distmom.moments.words import WordMomentsPass, WordSketchPass, WordSlicesPass
from distmom.spectral.basis import N_PROBES, Basis, range_basis

logger = logging.getLogger(__name__)

#: residual of a sum rule that rounding does not explain; one document of millions in one order alone is as much
SUM_RULE_TOLERANCE = 1e-8
THIRD_MOMENTS = ("auto", "full", "slices", "none")


@dataclass(frozen=True)
class CoreSettings:
    """How components are found.

    Attributes
    ----------
    n_states : int
        Components.
    kind : MomentKind
    n_oversamples, n_power_iter : int
        Width of the sketch beyond the components, and power passes.
    decomposition : str
        A method of `distmom.linalg.decompose`.
    third_moment : {"auto", "full", "slices", "none"}
        Add up all of the third moment, or contractions with a few directions, which takes one more pass and
        goes with ``decomposition="joint"`` alone; "auto" takes slices where the whole does not fit a worker.
        "none" leaves it at the second moment.
    alpha0 : float
        Sum of the Dirichlet parameters of the components in a document; 0 means one component a document.
    seed : int
    single_precision : bool
        Multiply blocks in float32; sums are float64 in any case.
    lower : bool
        Take fewer components when the second moment does not carry as many, instead of refusing.
    decompose_on : {"scheduler", "client"}
    """

    n_states: int
    kind: MomentKind = field(default_factory=MomentKind)
    n_oversamples: int = 10
    n_power_iter: int = 2
    decomposition: str = "joint"
    third_moment: str = "auto"
    alpha0: float = 0.0
    seed: int = 0
    single_precision: bool = True
    lower: bool = False
    decompose_on: str = "scheduler"

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
class Words:
    """The words that moments are of.

    Attributes
    ----------
    n_words : int
    vocabulary : StoredArray of shape (n_words of the corpus,), int32, optional
        Number of each word of the corpus among them, -1 for the others; None means all words.
    scale : StoredArray of shape (n_words, 1), optional
        Factor of every word, so that the moments are those of ``scale * x``; None means one.
    """

    n_words: int
    vocabulary: StoredArray | None = None
    scale: StoredArray | None = None


@dataclass(frozen=True)
class Core:
    """What comes back from the scheduler node, all in the basis Q.

    Attributes
    ----------
    W, B : ndarray of shape (r, k)
        Whitening matrix and the transpose of its pseudo-inverse.
    V : ndarray of shape (k, k)
        Eigenvectors of the whitened third moment.
    eigenvalues : ndarray of shape (k,)
    spectrum : ndarray of shape (r,)
        Ritz values of the second moment.
    mean : ndarray of shape (k,)
        ``V'W'Q'M1``.
    lengths : dict of str to float
    diagnostics : dict
    """

    W: np.ndarray
    B: np.ndarray
    V: np.ndarray
    eigenvalues: np.ndarray
    spectrum: np.ndarray
    mean: np.ndarray
    lengths: dict[str, float]
    diagnostics: dict[str, Any]


def warn_of_sum_rules(rules: Mapping[str, float]) -> None:
    """Warn where moments of different orders are not of the same documents, beyond rounding."""
    broken = {order: value for order, value in rules.items() if not value < SUM_RULE_TOLERANCE}
    if broken:
        logger.warning(
            "the moments of different orders are not of the same documents: summed over one position, that of "
            "order %s differs from the order below by %s of it; the topics may be wrong", ", ".join(broken),
            ", ".join(f"{value:.2g}" for value in broken.values()),
        )  # fmt: skip


def fit_basis(
    engine: Engine, settings: CoreSettings, words: Words, selection: Selection | None = None
) -> Basis:
    """Find a basis for the moments of some documents in ``n_power_iter + 1`` passes."""
    r = min(settings.n_states + settings.n_oversamples, words.n_words)
    common = common_fields(settings, words, selection)
    # With pairs of a position and itself every eigenvalue is positive, and none of them vanishes as noise.
    n_probes = min(N_PROBES, words.n_words - r) if settings.kind.distinct else 0
    moments = moment_passes(settings, WordMomentsPass(**common, rank=r), engine.plan)
    sketch = WordSketchPass(**common, n_columns=r, seed=settings.seed, n_probes=n_probes)
    n_slabs = basis_slabs(replace(sketch, basis=0), moments, engine.plan)
    return range_basis(
        engine, sketch, settings.n_power_iter, settings.dtype, n_slabs,
        indefinite=settings.kind.distinct, scale=words.scale,
    )  # fmt: skip


def common_fields(settings: CoreSettings, words: Words, selection: Selection | None) -> dict[str, Any]:
    """Return what all passes over the same documents and words have in common."""
    return {
        "n_words": words.n_words, "selection": selection, "vocabulary": words.vocabulary,
        "kind": settings.kind, "single": settings.single_precision,
    }  # fmt: skip


def basis_passes(
    engine: Engine, settings: CoreSettings, words: Words, basis: Basis, selection: Selection | None
) -> tuple[WordMomentsPass, WordSlicesPass | None]:
    """Return the passes that give the moments in a basis."""
    common = common_fields(settings, words, selection)
    whole = WordMomentsPass(**common, basis=basis.matrix, rank=basis.rank)
    return moment_passes(settings, whole, engine.plan)


def moment_passes(
    settings: CoreSettings, whole: WordMomentsPass, plan: Callable[[Pass], PassPlan]
) -> tuple[WordMomentsPass, WordSlicesPass | None]:
    """Return the passes that give the moments in a basis: one, or two where the third is cut into slices.

    Parameters
    ----------
    settings : CoreSettings
    whole : WordMomentsPass
        The one pass over all moments.
    plan : callable
        Plans a pass, and refuses one whose tasks cannot fit.
    """
    if settings.third_moment == "none":
        return replace(whole, third=False), None
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


def basis_slabs(power: Pass, moments: tuple[Pass | None, ...], plan: Callable[[Pass], PassPlan]) -> int:
    """Return how many slabs of columns the passes over a basis want it in."""
    return max(plan(p).n_mapped for p in (power, *moments) if p is not None)


def find_components(
    engine: Engine,
    settings: CoreSettings,
    basis: Basis,
    directories: tuple[str, ...],
    slices: WordSlicesPass | None,
) -> Core:
    """Whiten the second moment of some committed passes and decompose the third, whole or by slices."""
    if slices is None:
        found = find_each(engine, (settings,), basis, directories)[0]
        if isinstance(found, NumericalError):
            raise found
        return found
    load = partial(load_moments, directories, settings.kind, basis.matrix)
    moments, white = _decomposed(engine, settings, whiten_moments, load, settings, basis.noise)
    directions = slice_directions(white.W.shape[1], settings.seed)
    k, m = directions.shape
    stored, across = engine.put(white.W), engine.put(directions)
    result = engine.run(replace(slices, whitener=stored, directions=across, n_states=k, n_slices=m))
    contracted = partial(load_slices, result.directory, settings.kind, basis.matrix, white.W, directions)
    core: Core = _decomposed(
        engine, settings, decompose_contracted, contracted, moments, white, directions, settings.alpha0
    )
    return core


def find_each(
    engine: Engine, settings: tuple[CoreSettings, ...], basis: Basis, directories: tuple[str, ...]
) -> list[Core | NumericalError]:
    """Decompose the moments of some committed passes, loaded once, with each of some settings of one kind."""
    load = partial(load_moments, directories, settings[0].kind, basis.matrix)
    found: list[Core | NumericalError] = _decomposed(
        engine, settings[0], decompose_each, load, settings, basis.noise
    )
    return found


def _decomposed(
    engine: Engine, settings: CoreSettings, function: Callable[..., Any], load: Callable[[], Any], *rest: Any
) -> Any:
    """Call ``function(load(), *rest)`` where moments are to be decomposed."""
    if settings.decompose_on == "scheduler":
        return engine.on_scheduler(function, load, *rest)
    return function(load(), *rest)


def load_moments(directories: tuple[str, ...], kind: MomentKind, basis: StoredColumns) -> WordMoments:
    """Add the committed sums of moments passes and finish them; runs on a worker."""
    with one_blas_thread():
        return word_moments(added_sums(directories), kind, basis)


def load_slices(
    directory: str, kind: MomentKind, basis: StoredColumns, whitener: np.ndarray, directions: np.ndarray
) -> np.ndarray:
    """Finish the committed sums of a slices pass; runs on a worker."""
    with one_blas_thread():
        return word_slices(added_sums((directory,)), kind, whitener, directions, basis)


def added_sums(directories: tuple[str, ...], *, without: str = "") -> Sums:
    """Return the sums of some committed passes together but for one, mapped where there is only one pass."""

    def load(directory: str) -> Sums:
        return Sums({name: value for name, value in load_sums(directory)[0].items() if name != without})

    parts = map(load, directories)
    return next(parts) if len(directories) == 1 else merge(parts)


def decompose_each(
    moments: WordMoments, settings: tuple[CoreSettings, ...], noise: float
) -> list[Core | NumericalError]:
    """Decompose moments with each of some settings; where they do not carry it, return the error in its place."""
    found: list[Core | NumericalError] = []
    for each in settings:
        try:
            found.append(decompose_moments(moments, each, noise))
        except NumericalError as error:
            found.append(error)
    return found


def decompose_moments(moments: WordMoments, settings: CoreSettings, noise: float) -> Core:
    """Whiten the second moment above a noise level and decompose the third; runs on the scheduler node."""
    assert moments.m3 is not None
    _, white = whiten_moments(moments, settings, noise)
    with one_blas_thread():
        # Corrected where it is small.
        m1, e2 = moments.m1 @ white.W, white.W.T @ moments.m2 @ white.W
        e3 = multilinear(moments.m3, white.W, white.W, white.W)
        # What products in float32 round off is large beside a tensor of noise alone.
        tensor = symmetrise(third_moment(m1, e2, e3, settings.alpha0))
        found = decompose(tensor, settings.decomposition, random_state=settings.seed)
    return _core(moments, white, found, {"third_moment": "full", "decomposition": settings.decomposition})


def whiten_moments(
    moments: WordMoments, settings: CoreSettings, noise: float
) -> tuple[WordMoments, Whitening]:
    """Whiten the second moment above a noise level; runs on the scheduler node."""
    with one_blas_thread():
        m2 = second_moment(moments.m1, moments.m2, settings.alpha0)
        values = np.linalg.eigvalsh(m2)[::-1]
        # It is a share of the largest eigenvalue that the sketch met, before the shift by the mean.
        level = noise * max(float(np.linalg.eigvalsh(moments.m2)[-1]), 0.0)
        k = min(settings.n_states, len(m2))
        if k < settings.n_states and not settings.lower:
            raise NumericalError(
                f"M2 numerically has rank < k: n_components={settings.n_states}, but the sketch has rank {k}; "
                f"use n_components={k} or fewer, or more data"
            )
        try:
            white = whiten(m2, k, noise=level)
        except NumericalError:
            k = int(np.sum(values[:k] > max(level, 1e-12 * values[0])))
            if not settings.lower or k == 0:
                raise
            white = whiten(m2, k, noise=level)
    return moments, white


def decompose_contracted(
    slices: np.ndarray, moments: WordMoments, white: Whitening, directions: np.ndarray, alpha0: float
) -> Core:
    """Decompose the third moment by its slices; runs on the scheduler node."""
    with one_blas_thread():
        m1, e2 = moments.m1 @ white.W, white.W.T @ moments.m2 @ white.W
        slices = third_moment_slices(m1, e2, slices, directions, alpha0)
        slices = (slices + slices.transpose(1, 0, 2)) / 2.0
        found = decompose_slices(slices, directions)
    how = {"third_moment": "slices", "n_slices": directions.shape[1], "decomposition": "joint"}
    return _core(moments, white, found, how)


def _core(moments: WordMoments, white: Whitening, found: Decomposition, how: dict[str, Any]) -> Core:
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
        **({"sum_rules": moments.sum_rules} if moments.sum_rules else {}),
        **{name: float(value) for name, value in found.diagnostics.items()},
    }
    return Core(
        white.W,
        white.B,
        found.eigenvectors,
        found.eigenvalues,
        white.eigenvalues,
        (moments.m1 @ white.W) @ found.eigenvectors,
        moments.lengths,
        diagnostics,
    )
