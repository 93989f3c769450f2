"""From committed sums of views to factors in whitened coordinates; what runs on workers and the scheduler node."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine.directory import load_sums
from distmom.errors import NumericalError
from distmom.linalg import Whitening, whiten
from distmom.linalg.factors import Factors, Slices, find_factors
from distmom.moments.dirichlet import fourth_moment, second_moment, third_moment
from distmom.moments.fourth import view_fourth
from distmom.moments.groups import contrasts
from distmom.moments.views import ViewMoments, view_moments

logger = logging.getLogger(__name__)

#: a k-th eigenvalue below this many times the level of noise, or the next one, is worth a warning
DOUBTFUL = 2.0


@dataclass(frozen=True)
class White:
    """Moments in whitened coordinates.

    Attributes
    ----------
    whitening : Whitening
        Of the second moment in the basis.
    moments : ViewMoments
        Of all groups.
    parts : tuple of ViewMoments
        Of random parts of them.
    """

    whitening: Whitening
    moments: ViewMoments
    parts: tuple[ViewMoments, ...]


def load_moments(directory: str) -> tuple[ViewMoments, tuple[ViewMoments, ...]]:
    """Finish the committed sums of a moments pass; runs on a worker."""
    with one_blas_thread():
        return view_moments(load_sums(directory)[0])


def load_fourth(directory: str, left: np.ndarray, right: np.ndarray) -> tuple[Any, ...]:
    """Finish the committed sums of a fourth-moment pass; runs on a worker."""
    with one_blas_thread():
        return left, right, *view_fourth(load_sums(directory)[0])


def whiten_views(
    loaded: tuple[ViewMoments, tuple[ViewMoments, ...]], k: int, alpha0: float, noise: float
) -> White:
    """Whiten the second moment above a noise level, and bring all moments there.

    Parameters
    ----------
    loaded : tuple of ViewMoments and their parts
    k : int
    alpha0 : float
        Infinite for central moments.
    noise : float
        Level below which an eigenvalue is noise, as a share of the largest. The most negative one is a level too.

    Raises
    ------
    NumericalError
        If fewer than k eigenvalues stand above the level.
    """
    moments, parts = loaded
    with one_blas_thread():
        m2 = second_moment(moments.m1, moments.m2, alpha0)
        if not np.isfinite(m2).all():
            raise NumericalError("the second moment has entries that are not finite")
        if len(m2) < k:
            raise NumericalError(
                f"M2 numerically has rank < k: n_components={k}, but the sketch has rank {len(m2)}; use "
                f"n_components={len(m2)} or fewer"
            )
        values = np.linalg.eigvalsh(m2)
        level = max(noise * float(values[-1]), -float(values[0]), 0.0)
        white = whiten(m2, k, noise=level)
        within = [m.within(white.W) for m in (moments, *parts)]
    return White(white, within[0], tuple(within[1:]))


def warn_of_noise(white: Whitening) -> None:
    """Warn where the last factor is hardly more than noise, or than a factor that was not asked for."""
    k, values = white.W.shape[1], white.eigenvalues
    last, following = float(values[k - 1]), float(values[k]) if k < len(values) else 0.0
    if last < DOUBTFUL * max(white.noise, following):
        logger.warning(
            "ECA: eigenvalue %d of the second moment is %.3g, the next one %.3g and the level of noise %.3g; use "
            "another number of factors, or more data", k, last, following, white.noise,
        )  # fmt: skip


def decompose_views(
    fourth: tuple[Any, ...] | None,
    white: White,
    alpha0: float,
    orders: tuple[int, ...],
    method: str,
    options: dict[str, Any],
) -> Factors:
    """Correct the whitened moments of orders three and four and find the factors; runs on the scheduler node."""

    def cumulant(correct: Callable[..., np.ndarray], total: Any = None, parts: Any = None) -> tuple[Any, Any]:
        """Return what a correction makes of all groups, and draws of its error where there are parts."""
        of_parts = parts or [None] * len(white.parts)
        found = [correct(m, e) for m, e in zip(white.parts, of_parts, strict=True)]
        return correct(white.moments, total), contrasts(found) if len(found) > 1 else None

    def of_three(m: ViewMoments, _: None) -> np.ndarray:
        return third_moment(m.m1, m.m2, m.m3, alpha0)

    with one_blas_thread():
        k = len(white.moments.m1)
        tensor, noise = cumulant(of_three)
        known = [Slices(tensor, (np.eye(k),), noise)]
        if fourth is not None:
            left, right, total, parts = fourth

            def of_four(m: ViewMoments, contracted: np.ndarray) -> np.ndarray:
                return fourth_moment(m.m1, m.m2, m.m3, contracted, left, right, alpha0)

            matrices, noise = cumulant(of_four, total, parts)
            known.append(Slices(matrices, (left, right), noise))
        return find_factors(known, orders, method, **options)
