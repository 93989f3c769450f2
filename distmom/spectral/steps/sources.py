"""Linear estimates of hidden variables: one matrix times centred rows, in memory or over a corpus."""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import StoredColumns, StoredRows
from distmom.moments.rows.ica import RowSourcesPass
from distmom.spectral.inputs.tables import rows_in_memory
from distmom.spectral.program.run import Run


def sources_in_memory(model: Any, X: Any, unmixing: np.ndarray) -> np.ndarray:
    """Return the products of rows, minus the mean of the fit, with the rows of a matrix.

    Parameters
    ----------
    model : SpectralEstimator
        A fitted model with the attribute ``mean_``.
    X : array_like or table of shape (n_rows, n_features)
    unmixing : ndarray of shape (k, n_features)

    Returns
    -------
    ndarray of shape (n_rows, k), float64

    Raises
    ------
    UsageError
        If the number or the names of the columns differ from those of the fit.
    InputError
        If a value is not finite.
    """
    rows = rows_in_memory(model, X)
    with one_blas_thread():
        return np.asarray((rows - model.mean_) @ unmixing.T)


def stored_sources(run: Run, mean: np.ndarray, unmixing: np.ndarray) -> StoredRows:
    """Store the same products for every row of the corpus of a run, (n, k) float64.

    Parameters
    ----------
    run : Run
    mean : ndarray of shape (n_features,)
    unmixing : ndarray of shape (k, n_features)
    """
    matrix = StoredColumns((run.put(np.ascontiguousarray(unmixing.T)),))
    pass_ = RowSourcesPass(len(mean), matrix=matrix, origin=run.put(mean[:, None]), rank=len(unmixing))
    return run.scan(pass_).rows["sources"]
