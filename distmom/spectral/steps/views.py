"""Moments of exchangeable views: their mean, a basis of the range of their second moment, and its whitening."""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import PassResult, StoredArray
from distmom.engine.directory.run_directory import load_sums
from distmom.moments.documents.dirichlet import second_moment
from distmom.moments.small import SmallMoments
from distmom.moments.views.moments import ViewSketchPass, view_moments
from distmom.spectral.program.run import Run
from distmom.spectral.steps.basis import N_PROBES, Basis, range_basis
from distmom.spectral.steps.core import whiten_moment
from distmom.spectral.steps.factors import White


def mean_of_views(counted: PassResult) -> np.ndarray:
    """Return the mean of the views, (d,), from the sums of `ViewMeanPass`."""
    return np.asarray(counted.sums["mean"] / counted.sums["mass"])


def basis_of_views(
    run: Run,
    origin: Any,
    n_columns: int,
    n_power_iter: int,
    *,
    min_views: int,
    seed: int,
    scale: StoredArray | None = None,
) -> Basis:
    """Return a basis of the range of the second moment of different views.

    Parameters
    ----------
    run : Run
    origin : StoredArray of shape (d,) or None
        Subtracted from every view; None for zero.
    n_columns : int
        Number of columns of the sketch, at most d.
    n_power_iter : int
        Passes after the first.
    min_views : int
        Groups of fewer views are left out.
    seed : int
    scale : StoredArray of shape (d, 1), optional
        Multiplies the values of the views; none by default.
    """
    d = run.corpus.n_words
    n_columns = min(n_columns, d)
    sketch = ViewSketchPass(
        d,
        min_views=min_views,
        origin=origin,
        n_columns=n_columns,
        seed=seed,
        n_probes=min(N_PROBES, d - n_columns),
    )
    n_slabs = run.plan(sketch).n_mapped
    return range_basis(run, sketch, n_power_iter, "float64", n_slabs, indefinite=True, scale=scale)


def load_views(directory: str) -> tuple[SmallMoments, tuple[SmallMoments, ...]]:
    """Finish the committed sums of a moments pass; runs on a worker."""
    with one_blas_thread():
        return view_moments(load_sums(directory)[0])


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
