"""The core of a fit: small moments are loaded on a worker, and whitened and decomposed on the scheduler node."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import StoredColumns, Sums, merge
from distmom.engine.directory.run_directory import load_sums
from distmom.errors import NumericalError, UsageError
from distmom.linalg import (
    Decomposition,
    Whitening,
    decompose,
    multilinear,
    robust_components,
    symmetrise,
    whiten,
)
from distmom.linalg.tensors.decompose import methods_taking
from distmom.moments.documents.dirichlet import (
    second_moment,
    third_moment,
    third_moment_slices,
    third_moment_steps,
)
from distmom.moments.documents.power import word_steps
from distmom.moments.documents.word_moments import word_moments, word_slices
from distmom.moments.small import SmallMoments
from distmom.moments.weighting import MomentKind
from distmom.spectral.program.run import Decomposed, unknown
from distmom.spectral.steps.contracted import THIRD_MOMENTS, Contracted, check_third_moment

logger = logging.getLogger(__name__)

#: residual of a sum rule beyond rounding; one document among millions that is in one order alone gives as much
SUM_RULE_TOLERANCE = 1e-8


@dataclass(frozen=True)
class CoreSettings:
    """Settings of the search for components.

    Attributes
    ----------
    n_states : int
        Number of components.
    kind : MomentKind, default MomentKind()
        How documents are weighted and pairs formed.
    n_oversamples : int, default 10
        Columns of the sketch beyond ``n_states``.
    n_power_iter : int, default 2
        Power passes.
    decomposition : str, default "joint"
        A method of `distmom.linalg.decompose`.
    third_moment : {"auto", "full", "slices", "none"}, default "auto"
        "full" adds up the whole third moment; "slices" adds up contractions with a few directions, which takes
        one more pass and requires ``decomposition="joint"``; "auto" uses slices where the whole does not fit a
        worker; "none" stops after the second moment.
    power_steps : int, default 0
        Power steps that improve the components found by slices, each by one more pass.
    alpha0 : float, default 0.0
        Sum of the Dirichlet parameters of the components in a document; 0 means one component per document.
    seed : int, default 0
    single_precision : bool, default True
        Multiply blocks in float32; sums are always float64.
    lower : bool, default False
        Find fewer components where the second moment carries fewer, instead of raising an error.
    decompose_on : {"scheduler", "client"}, default "scheduler"
        Where the small moments are decomposed.
    kept : tuple of int, default ()
        Positions, ascending, of documents whose whitened rows are initial vectors of ``decomposition="power"`` or
        "power-stop".
    """

    n_states: int
    kind: MomentKind = field(default_factory=MomentKind)
    n_oversamples: int = 10
    n_power_iter: int = 2
    decomposition: str = "joint"
    third_moment: str = "auto"
    power_steps: int = 0
    alpha0: float = 0.0
    seed: int = 0
    single_precision: bool = True
    lower: bool = False
    decompose_on: str = "scheduler"
    kept: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        choices = (*THIRD_MOMENTS, "none")
        if self.third_moment not in choices:
            raise UsageError(f"third_moment: expected one of {', '.join(choices)}, got {self.third_moment!r}")
        check_third_moment(self.third_moment, self.decomposition, self.power_steps)

    @property
    def dtype(self) -> str:
        """Type in which blocks are multiplied and tall results are stored."""
        return "float32" if self.single_precision else "float64"


@dataclass(frozen=True)
class Core(Decomposed):
    """The decomposed moments, all in the basis Q.

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

    @property
    def n_components(self) -> int:
        return len(self.eigenvalues)

    @classmethod
    def upto(cls, r: int, k: int) -> Core:
        """Return components of known shapes without content, for a ledger."""
        return cls(
            unknown(r, k),
            unknown(r, k),
            unknown(k, k),
            unknown(k),
            unknown(r),
            unknown(k),
            unknown(),
            unknown(),
        )


def unknown_whitening(r: int, k: int) -> Whitening:
    """Return a whitening of known shapes without content, for a ledger."""
    return Whitening(unknown(r, k), unknown(r, k), unknown(r), unknown(), unknown(), unknown())


def warn_of_sum_rules(rules: Mapping[str, float]) -> None:
    """Log a warning where moments of different orders are not of the same documents, beyond rounding."""
    broken = {order: value for order, value in rules.items() if not value < SUM_RULE_TOLERANCE}
    if broken:
        logger.warning(
            "the moments of different orders are not of the same documents: summed over one position, that of "
            "order %s differs from the order below by a share of %s; the topics may be wrong", ", ".join(broken),
            ", ".join(f"{value:.2g}" for value in broken.values()),
        )  # fmt: skip


def load_moments(directories: tuple[str, ...], kind: MomentKind, basis: StoredColumns) -> SmallMoments:
    """Add the committed sums of moments passes and finish them; runs on a worker."""
    with one_blas_thread():
        return word_moments(added_sums(directories), kind, basis)


def load_slices(
    directory: str,
    kind: MomentKind,
    basis: StoredColumns,
    moments: SmallMoments,
    whitener: np.ndarray,
    directions: np.ndarray,
    alpha0: float,
) -> np.ndarray:
    """Finish the committed sums of a slices pass, and correct them for alpha0; runs on a worker."""
    with one_blas_thread():
        slices = word_slices(added_sums((directory,)), kind, whitener, directions, basis)
        return third_moment_slices(*_whitened(moments, whitener), slices, directions, alpha0)


def load_steps(
    directory: str,
    kind: MomentKind,
    basis: StoredColumns,
    moments: SmallMoments,
    whitener: np.ndarray,
    vectors: np.ndarray,
    alpha0: float,
) -> np.ndarray:
    """Finish the committed sums of a pass of power steps, and correct them for alpha0; runs on a worker."""
    with one_blas_thread():
        steps = word_steps(added_sums((directory,)), kind, whitener, vectors, basis)
        return third_moment_steps(*_whitened(moments, whitener), steps, vectors, alpha0)


def added_sums(directories: tuple[str, ...], *, without: str = "") -> Sums:
    """Add the sums of committed passes except the one named ``without``; those of a single pass are mapped."""

    def load(directory: str) -> Sums:
        return Sums({name: value for name, value in load_sums(directory)[0].items() if name != without})

    parts = map(load, directories)
    return next(parts) if len(directories) == 1 else merge(parts)


def decompose_each(
    moments: SmallMoments, settings: tuple[CoreSettings, ...], noise: float
) -> list[Core | NumericalError]:
    """Decompose moments with each of some settings; where one fails, its result is the error."""
    found: list[Core | NumericalError] = []
    for each in settings:
        try:
            found.append(decompose_moments(moments, each, noise))
        except NumericalError as error:
            found.append(error)
    return found


def decompose_moments(
    moments: SmallMoments, settings: CoreSettings, noise: float, near: Core | None = None
) -> Core:
    """Whiten the second moment above a noise level and decompose the third; runs on the scheduler node.

    Parameters
    ----------
    moments : SmallMoments
    settings : CoreSettings
    noise : float
    near : Core, optional
        Components of most of the documents in the same basis, which a method that takes such components improves,
        where there are as many.
    """
    assert moments.m3 is not None
    white = whiten_words(moments, settings, noise)
    with one_blas_thread():
        # The correction for alpha0 is applied to small arrays.
        m1, e2 = _whitened(moments, white.W)
        e3 = multilinear(moments.m3, white.W, white.W, white.W)
        # Rounding of float32 products breaks the symmetry noticeably where the tensor is noise alone.
        tensor = symmetrise(third_moment(m1, e2, e3, settings.alpha0))
        initial = None
        improves = settings.decomposition in methods_taking("initial")
        if improves and near is not None and near.V.shape == tensor.shape[:2]:
            initial = white.W.T @ (near.B @ near.V)
        found = decompose(
            tensor, settings.decomposition, random_state=settings.seed, initial=initial,
            starts=None if moments.rows is None else (moments.rows @ white.W).T,
        )  # fmt: skip
        robust = robust_components(tensor, found.eigenvectors)
    how = {
        "third_moment": "full",
        "decomposition": settings.decomposition,
        "n_robust": int(robust.sum()),
        **_starts_of(found),
    }
    return _core(moments, white, found, how)


def _starts_of(found: Decomposition) -> dict[str, Any]:
    """Return the numbers of initial vectors that the components took, where the method counts them."""
    n_starts = [int(value) for name, value in found.history if name == "starts"]
    return {"n_starts": n_starts} if n_starts else {}


def moments_and_whitening(
    moments: SmallMoments, settings: CoreSettings, noise: float
) -> tuple[SmallMoments, Whitening]:
    return moments, whiten_words(moments, settings, noise)


def whiten_words(moments: SmallMoments, settings: CoreSettings, noise: float) -> Whitening:
    """Whiten the second word moment above a level of noise; runs on the scheduler node.

    Parameters
    ----------
    moments : SmallMoments
    settings : CoreSettings
    noise : float
        Level as a share of the largest Ritz value of the second moment before the correction for alpha0.
    """
    with one_blas_thread():
        level = noise * max(float(np.linalg.eigvalsh(moments.m2)[-1]), 0.0)
        m2 = second_moment(moments.m1, moments.m2, settings.alpha0)
    return whiten_moment(m2, settings.n_states, level, lower=settings.lower)


def whiten_moment(m2: np.ndarray, k: int, level: float, *, lower: bool = False) -> Whitening:
    """Whiten a second moment in a basis by its k largest eigenpairs.

    Parameters
    ----------
    m2 : ndarray of shape (r, r)
    k : int
    level : float
        Eigenvalues below this level are noise.
    lower : bool, default False
        Use fewer than k where fewer eigenvalues are above the level.

    Raises
    ------
    NumericalError
        If no eigenvalue is above the level, or fewer than k are and ``lower`` is False.
    """
    with one_blas_thread():
        if not np.isfinite(m2).all():
            raise NumericalError("the second moment has entries that are not finite")
        wanted, k = k, min(k, len(m2))
        if k < wanted and not lower:
            raise NumericalError(
                f"n_components={wanted}, but the sketch has rank {k}; use n_components={k} or fewer, or more data"
            )
        try:
            return whiten(m2, k, noise=level)
        except NumericalError:
            values = np.linalg.eigvalsh(m2)[::-1]
            k = int(np.sum(values[:k] > max(level, 1e-12 * values[0])))
            if not lower or k == 0:
                raise
            return whiten(m2, k, noise=level)


def contracted_core(
    moments: SmallMoments, white: Whitening, directions: np.ndarray, found: Contracted
) -> Core:
    """Return the components of a third moment that was decomposed by contractions."""
    how = {"third_moment": "slices", "n_slices": directions.shape[1], "decomposition": "joint"}
    with one_blas_thread():
        return _core(moments, white, found.found, how)


def _whitened(moments: SmallMoments, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first two moments in whitened coordinates, before the correction for alpha0."""
    return moments.m1 @ W, W.T @ moments.m2 @ W


def _core(moments: SmallMoments, white: Whitening, found: Decomposition, how: dict[str, Any]) -> Core:
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
