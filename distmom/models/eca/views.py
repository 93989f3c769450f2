"""First passes over groups of views: their mean, and a basis of the range of their second moment."""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.engine import Engine, PassResult
from distmom.moments.views import ViewSketchPass
from distmom.spectral.basis import N_PROBES, Basis, range_basis
from distmom.spectral.run import Run


def mean_of_views(engine: Engine, counted: PassResult) -> np.ndarray:
    """Return the mean of the views, (d,), from the sums of `ViewMeanPass`."""
    return np.asarray(counted.sums["mean"] / counted.sums["mass"])


def basis_of_views(
    run: Run, origin: Any, n_columns: int, n_power_iter: int, *, min_views: int, seed: int
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
    return range_basis(run, sketch, n_power_iter, "float64", n_slabs, indefinite=True)
