"""A start of EM by many columns together, in place of that by thirds of the columns, or in addition to it.

Source: as for the start by few columns together (`distmom.models.diagonal.recovery`), in a basis of the leading
eigenvectors of the correlations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import StoredColumns
from distmom.engine.sums.tall import read_rows
from distmom.models.diagonal.recovery import Estimate, estimate_together
from distmom.moments.rows.diagonal import ColumnProjectionPass, ColumnSketchPass
from distmom.spectral.program.run import Run
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.row_basis import sketched_basis
from distmom.spectral.steps.spherical import Found, recover_in_basis


def find_together(
    run: Run,
    units: Any,
    n_varying: int,
    k: int,
    n_oversamples: int,
    n_power_iter: int,
    method: str,
    where: str,
    seed: int,
) -> tuple[Basis, Found | str]:
    """Find k components in a basis by ``n_power_iter + 2`` passes.

    Parameters
    ----------
    run : Run
    units : StoredArray of shape (d, 2)
        Mean of every column, and the factor that scales it.
    n_varying : int
        Number of columns that are not constant.
    k : int
    n_oversamples : int
        Columns of the sketch beyond the components.
    n_power_iter : int
        Power passes of the sketch.
    method : str
        A method of `distmom.linalg.decompose`.
    where : {"scheduler", "client"}
    seed : int

    Returns
    -------
    basis : Basis
    found : Found or str
        The mixture in this basis, or the reason if the moments carry fewer components.
    """
    run, d = run.part("all columns"), run.corpus.n_words
    r = min(k + n_oversamples, d)
    sketch = ColumnSketchPass(d, n_columns=r, seed=seed, units=units)
    passes = (ColumnProjectionPass(d, rank=r),)
    basis = sketched_basis(run, sketch, n_power_iter, max(k - 1, 1), passes)
    pass_ = ColumnProjectionPass(d, basis=basis.matrix, rank=basis.rank, units=units, origin=basis.mean)
    return basis, recover_in_basis(run, pass_, k, n_varying, method, where, seed)


def together(basis: Basis, found: Found, shifts: np.ndarray, spreads: np.ndarray) -> Estimate:
    """Map conditional means from the basis back to the columns.

    Parameters
    ----------
    basis : Basis
    found : Found
    shifts, spreads : ndarray of shape (d,)
        Means and standard deviations of the scaled columns; constant columns have spread zero.
    """
    assert isinstance(basis.matrix, StoredColumns)
    with one_blas_thread():
        means = np.asarray(read_rows(basis.matrix, slice(0, len(shifts)))) @ found.means
    means /= np.where(spreads > 0.0, spreads, 1.0)[:, None]
    return estimate_together(means, found, shifts, spreads)
