"""The choice between the whole second moment of dense rows and a sketch of it, and a basis from that sketch."""

from __future__ import annotations

from collections.abc import Sequence

from distmom.engine.passes import Pass
from distmom.moments.gaussian import RowMomentsPass, RowSketchPass
from distmom.spectral.basis import Basis, range_basis
from distmom.spectral.components import basis_slabs
from distmom.spectral.run import Run


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
