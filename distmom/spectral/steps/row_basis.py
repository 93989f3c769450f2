"""A basis of the leading eigenvectors of the second moment of dense rows: of the whole moment, or of a sketch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, Pass, PassResult, Selection, StoredColumns
from distmom.errors import NumericalError
from distmom.linalg import fix_signs
from distmom.moments.dense_rows import mass_of_rows
from distmom.moments.rows.gaussian import RowCovariancePass, RowMomentsPass, RowSketchPass
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.basis import Basis, range_basis, unknown_columns
from distmom.spectral.steps.components import basis_slabs


def takes_whole(d: int, k: int, n_oversamples: int, n_power_iter: int) -> bool:
    """Return whether adding up the whole second moment takes fewer operations than all passes of a sketch."""
    return d <= 2 * (n_power_iter + 1) * min(k + n_oversamples, d)


def sketched_basis(
    run: Run,
    sketch: RowSketchPass,
    n_power_iter: int,
    n_signals: int,
    passes: Sequence[Pass] | None = None,
) -> Basis:
    """Find a basis that contains the ``n_signals`` leading eigenvectors of a second moment of rows.

    Parameters
    ----------
    run : Run
    sketch : RowSketchPass
        The first pass. The moment is that about its origin, or without one about the mean of the rows; with a
        scale D of the columns, it is D M2 D.
    n_power_iter : int
        Passes after the first.
    n_signals : int
        Number of eigenvalues above isotropic noise.
    passes : sequence of Pass, optional
        Those that read the basis, without arrays; by default one that adds up second moments.
    """
    if passes is None:
        passes = (RowMomentsPass(sketch.n_features, rank=sketch.n_columns, third=False),)
    n_slabs = basis_slabs(run, sketch, passes)
    return range_basis(
        run,
        sketch,
        n_power_iter,
        "float64",
        n_slabs,
        indefinite=False,
        scale=sketch.scale,
        n_signals=n_signals,
    )


def basis_rank(d: int, k: int, n_oversamples: int, whole: bool) -> int:
    """Return the number of vectors of a basis for k components, at most."""
    return min(max(k - 1, 2) if whole else k + n_oversamples, d)


def row_basis(
    run: Run,
    d: int,
    k: int,
    n_oversamples: int,
    n_power_iter: int,
    seed: int,
    whole: bool,
    passes: Sequence[Pass],
    selection: Selection | None = None,
) -> Basis:
    """Find a basis that contains the k - 1 leading eigenvectors of the covariance of the first d columns.

    The ``whole`` covariance takes one pass. Where there are few columns, it also takes fewer operations than
    all passes of a sketch together (see `takes_whole`). The ``passes`` are those that
    read the basis, without arrays.
    """
    r = basis_rank(d, k, n_oversamples, whole)
    if whole:
        scanned = run.scan(RowCovariancePass(d, selection))
        out = Basis(unknown_columns(d, r), r, 0.0, unknown(d, 1))
        return run.rows(leading_basis, scanned, r, out=out)
    sketch = RowSketchPass(d, selection, n_columns=r, seed=seed)
    return sketched_basis(run, sketch, n_power_iter, max(k - 1, 1), passes)


def leading_basis(engine: Engine, scanned: PassResult, rank: int) -> Basis:
    """Return the leading eigenvectors of the covariance as a basis."""
    mean, covariance = covariance_of(scanned)
    with one_blas_thread():
        vectors = fix_signs(np.linalg.eigh(covariance)[1][:, ::-1][:, :rank])
    columns = StoredColumns((engine.put(vectors),))
    return Basis(columns, rank, 0.0, engine.put(mean[:, None]))


def covariance_of(scanned: PassResult) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean (d,) and the covariance (d, d) of rows; NumericalError if it overflows or there are none."""
    mass = mass_of_rows(scanned.sums)
    mean = np.asarray(scanned.sums["mean"]) / mass
    with np.errstate(over="ignore", invalid="ignore"):
        covariance = np.asarray(scanned.sums["second"]) / mass - np.outer(mean, mean)
    if not np.isfinite(covariance).all():
        largest = float(np.abs(mean).max())
        raise NumericalError(
            f"the covariance of the rows overflows, their largest mean is {largest:.3g}: scale the rows"
        )
    return mean, covariance


def sketch_facts(basis: Basis) -> dict[str, float]:
    """Return the diagnostics of a basis: ``basis_error`` if it comes from a sketch (see `Basis`)."""
    return {} if basis.error is None else {"basis_error": float(basis.error)}


def offset_of(basis: Basis) -> float:
    """Return the squared norm of the mean of the rows."""
    return float(np.sum(mean_of_rows(basis) ** 2))


def mean_of_rows(basis: Basis) -> np.ndarray:
    """Return the mean of the rows (d,) that was found with a basis of central moments."""
    assert basis.mean is not None
    return np.asarray(basis.mean.load(), np.float64)[:, 0]
