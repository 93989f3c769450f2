"""Whitened moments from the committed sums of views, on workers and the scheduler node."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine.directory import load_sums
from distmom.linalg import Whitening
from distmom.moments.dirichlet import second_moment
from distmom.moments.fourth import view_fourth
from distmom.moments.small import SmallMoments
from distmom.moments.views import view_moments
from distmom.spectral.concentration import find_alpha0, warn_at_ends
from distmom.spectral.core import whiten_moment
from distmom.spectral.factors import White

logger = logging.getLogger(__name__)

#: a k-th eigenvalue below this many times the level of noise, or the next eigenvalue, raises a warning
DOUBTFUL = 2.0


def load_views(directory: str) -> tuple[SmallMoments, tuple[SmallMoments, ...]]:
    """Finish the committed sums of a moments pass; runs on a worker."""
    with one_blas_thread():
        return view_moments(load_sums(directory)[0])


def load_fourth(directory: str, left: np.ndarray, right: np.ndarray) -> tuple[Any, ...]:
    """Finish the committed sums of a fourth-moment pass; runs on a worker."""
    with one_blas_thread():
        return left, right, *view_fourth(load_sums(directory)[0])


def alpha0_of_views(loaded: tuple[SmallMoments, tuple[SmallMoments, ...]], k: int) -> float:
    """Return the alpha0 for which the third moment of all documents decomposes best (see `find_alpha0`)."""
    found = find_alpha0(loaded[0], k).alpha0
    warn_at_ends(found)
    return found


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
