"""Factors in whitened coordinates from the committed sums of views, on workers and the scheduler node."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine.directory import load_sums
from distmom.linalg import Whitening
from distmom.linalg.factors import Factors, Slices, find_factors
from distmom.moments.dirichlet import fourth_moment, second_moment, third_moment
from distmom.moments.fourth import view_fourth
from distmom.moments.groups import contrasts
from distmom.moments.small import SmallMoments
from distmom.moments.views import view_moments
from distmom.spectral.core import unknown_whitening, whiten_moment
from distmom.spectral.run import unknown

logger = logging.getLogger(__name__)

#: a k-th eigenvalue below this many times the level of noise, or the next eigenvalue, raises a warning
DOUBTFUL = 2.0


@dataclass(frozen=True)
class White:
    """Moments in whitened coordinates.

    Attributes
    ----------
    whitening : Whitening
        Whitening of the second moment in the basis.
    moments : SmallMoments
        Moments of all documents.
    parts : tuple of SmallMoments
        Moments of random parts of the documents.
    """

    whitening: Whitening
    moments: SmallMoments
    parts: tuple[SmallMoments, ...]

    @classmethod
    def upto(cls, r: int, k: int) -> White:
        """Return whitened moments of known shapes without content, for a ledger."""
        return cls(unknown_whitening(r, k), unknown(), ())


def load_views(directory: str) -> tuple[SmallMoments, tuple[SmallMoments, ...]]:
    """Finish the committed sums of a moments pass; runs on a worker."""
    with one_blas_thread():
        return view_moments(load_sums(directory)[0])


def load_fourth(directory: str, left: np.ndarray, right: np.ndarray) -> tuple[Any, ...]:
    """Finish the committed sums of a fourth-moment pass; runs on a worker."""
    with one_blas_thread():
        return left, right, *view_fourth(load_sums(directory)[0])


def whiten_views(
    loaded: tuple[SmallMoments, tuple[SmallMoments, ...]], k: int, alpha0: float, noise: float
) -> White:
    """Whiten the second moment above a noise level, and transform all moments to whitened coordinates.

    Parameters
    ----------
    loaded : tuple of SmallMoments and their parts
    k : int
    alpha0 : float
        Infinite for central moments.
    noise : float
        Level below which an eigenvalue is noise, as a share of the largest. Eigenvalues
        below the magnitude of the most negative one are noise too.

    Raises
    ------
    NumericalError
        If fewer than k eigenvalues are above the level.
    """
    moments, parts = loaded
    with one_blas_thread():
        m2 = second_moment(moments.m1, moments.m2, alpha0)
        values = np.linalg.eigvalsh(m2) if np.isfinite(m2).all() else np.zeros(1)
        white = whiten_moment(m2, k, max(noise * float(values[-1]), -float(values[0]), 0.0))
        within = [m.within(white.W) for m in (moments, *parts)]
    return White(white, within[0], tuple(within[1:]))


def warn_of_noise(white: Whitening) -> None:
    """Log a warning where the last factor is hardly above the noise, or above a factor not requested."""
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
        """Return the corrected moment of all documents, and draws of its error where there are parts."""
        of_parts = parts or [None] * len(white.parts)
        found = [correct(m, e) for m, e in zip(white.parts, of_parts, strict=True)]
        return correct(white.moments, total), contrasts(found) if len(found) > 1 else None

    def of_three(m: SmallMoments, _: None) -> np.ndarray:
        return third_moment(m.m1, m.m2, _third(m), alpha0)

    with one_blas_thread():
        k = len(white.moments.m1)
        tensor, noise = cumulant(of_three)
        known = [Slices(tensor, (np.eye(k),), noise)]
        if fourth is not None:
            left, right, total, parts = fourth

            def of_four(m: SmallMoments, contracted: np.ndarray) -> np.ndarray:
                return fourth_moment(m.m1, m.m2, _third(m), contracted, left, right, alpha0)

            matrices, noise = cumulant(of_four, total, parts)
            known.append(Slices(matrices, (left, right), noise))
        return find_factors(known, orders, method, **options)


def _third(moments: SmallMoments) -> np.ndarray:
    assert moments.m3 is not None
    return moments.m3
