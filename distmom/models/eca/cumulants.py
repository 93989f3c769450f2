"""Whitened moments from the committed sums of views, on workers and the scheduler node."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine.directory.run_directory import load_sums
from distmom.linalg import Whitening
from distmom.moments.small import SmallMoments
from distmom.moments.views.fourth import view_fourth
from distmom.spectral.steps.concentration import find_alpha0, warn_at_ends

logger = logging.getLogger(__name__)

#: a k-th eigenvalue below this many times the level of noise, or the next eigenvalue, raises a warning
DOUBTFUL = 2.0


def load_fourth(directory: str, left: np.ndarray, right: np.ndarray) -> tuple[Any, ...]:
    """Finish the committed sums of a fourth-moment pass; runs on a worker."""
    with one_blas_thread():
        return left, right, *view_fourth(load_sums(directory)[0])


def alpha0_of_views(loaded: tuple[SmallMoments, tuple[SmallMoments, ...]], k: int) -> float:
    """Return the alpha0 for which the third moment of all documents decomposes best (see `find_alpha0`)."""
    found = find_alpha0(loaded[0], k).alpha0
    warn_at_ends(found)
    return found


def warn_of_noise(white: Whitening) -> None:
    """Log a warning where the last factor is hardly above the noise, or above a factor not requested."""
    k, values = white.W.shape[1], white.eigenvalues
    last, following = float(values[k - 1]), float(values[k]) if k < len(values) else 0.0
    if last < DOUBTFUL * max(white.noise, following):
        logger.warning(
            "ECA: eigenvalue %d of the second moment is %.3g, the next one %.3g and the level of noise %.3g; use "
            "another number of factors, or more data", k, last, following, white.noise,
        )  # fmt: skip
