"""A basis for the range of a second moment, by a sketch pass and power passes (a randomised range finder).

The sums of every pass give the basis of the next one as a combination of tall matrices (see
`distmom.spectral.steps.directions`), which a round over slabs of rows writes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, Partials, StoredArray, StoredColumns, Tallies, TallResult
from distmom.engine.sums.tall import read_rows
from distmom.errors import NumericalError
from distmom.linalg import orthonormalise
from distmom.moments.sketching import SketchPass
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.directions import Combination, next_directions
from distmom.spectral.steps.recovery import Slabs, column_edges, store_columns

#: columns that measure the sampling noise of a second moment of distinct positions
N_PROBES = 8
#: factor on the noise that the probes measure: power passes drive the basis towards the largest noise, which a few
#: passes of independent probes underestimate
PROBE_MARGIN = 1.5


@dataclass(frozen=True)
class Basis:
    """A basis for moments.

    Attributes
    ----------
    matrix : StoredColumns of shape (d, rank)
        Q, or ``scale * Q`` where rows are scaled: the matrix that passes multiply rows with.
    rank : int
        Number of columns.
    noise : float
        Level below which an eigenvalue of M2 is noise, as a share of the largest (see `_next_basis`).
    mean : StoredArray of shape (d, 1) or None
        Mean of the rows, from sketches that add it up; None (default) for others.
    error : float or None
        Estimate of the sine of the largest angle between the basis and an eigenvector above isotropic noise (see
        `Directions`); None (default) for other moments, and for a basis of a whole moment.
    """

    matrix: StoredColumns
    rank: int
    noise: float
    mean: StoredArray | None = None
    error: float | None = None


def range_basis(
    run: Run,
    sketch: SketchPass,
    n_power_iter: int,
    dtype: str,
    n_slabs: int = 1,
    *,
    indefinite: bool,
    scale: StoredArray | None = None,
    n_signals: int | None = None,
) -> Basis:
    """Find a basis for the range of a second moment in ``n_power_iter + 1`` passes.

    Parameters
    ----------
    run : Run
    sketch : SketchPass
        The first pass, with a random test matrix; later passes multiply with the basis and probes found so far.
    n_power_iter : int
        Passes after the first.
    dtype : str
        Type of the basis.
    n_slabs : int, default 1
        Number of slabs of columns in which the basis is stored.
    indefinite : bool
        Whether the moment may have negative eigenvalues.
    scale : StoredArray of shape (d, 1), optional
        Positive diagonal D; the range is then that of D M2 D, with M2 the moment of the passes. None by default.
    n_signals : int, optional
        Number of eigenvalues above isotropic noise, whose variance is estimated after every pass and
        subtracted (see `next_directions`). The sketch adds up ``squares``, the trace of M2. Where it also adds
        up the ``mean`` of the rows, that is subtracted from the rows in the later passes. None by default.

    Raises
    ------
    NumericalError
        If no document is long enough for the moments.
    """
    d, r, n_probes = sketch.n_features, sketch.n_columns, sketch.n_probes
    basis: StoredColumns | None = None
    probes: StoredColumns | None = None
    mean: StoredArray | None = None
    pass_, noise = sketch, 0.0
    error: float | None = None
    centres = n_signals is not None and "mean" in sketch.specs()
    for _ in range(n_power_iter + 1):
        out = {"basis": unknown_columns(d, r, n_slabs)}
        if n_probes:
            out["probes"] = unknown_columns(d, n_probes)
        if centres and mean is None:
            out["mean"] = unknown_columns(d, 1)
        # Results of models without isotropic noise keep their fingerprint.
        more = () if n_signals is None else (n_signals,)
        scanned = run.scan(
            pass_, _next_basis, basis, probes, n_slabs, dtype, indefinite, scale, *more,
            out=TallResult(out, {"rank": r, "n_probes": n_probes, "noise": unknown(), "error": unknown()}),
        )  # fmt: skip
        basis, r = scanned.states["basis"], scanned.values["rank"]
        probes, n_probes = scanned.states.get("probes"), scanned.values["n_probes"]
        noise = scanned.values["noise"]
        error = scanned.values["error"] if n_signals is not None else None
        pass_ = replace(sketch, n_columns=r, basis=basis, n_probes=n_probes, probes=probes)
        if centres:
            mean = mean if mean is not None else scanned.states["mean"].parts[0]
            pass_ = pass_.about(mean)
    assert basis is not None
    return Basis(basis, r, noise, mean, error)


def unknown_columns(n_rows: int, width: int, n_slabs: int = 1) -> StoredColumns:
    """Return a stored matrix of known shape without content, for a ledger."""
    edges = column_edges(width, n_slabs)
    return StoredColumns(tuple(unknown(n_rows, cut.stop - cut.start) for cut in edges))


def _next_basis(
    engine: Engine,
    tallies: Tallies,
    basis: StoredColumns | None,
    probes: StoredColumns | None,
    n_slabs: int,
    dtype: str,
    indefinite: bool,
    scale: StoredArray | None,
    n_signals: int | None = None,
) -> TallResult:
    """Orthonormalise ``M2 Q`` and the product with the probes, and measure the noise.

    The level of noise is `PROBE_MARGIN` times the largest magnitude met by the probes, as a share of the
    largest Ritz value.
    """
    if not float(tallies.sums["mass"]) > 0.0:
        raise NumericalError(
            "no document is long enough for the moments: pairs of words, which suffice for anchor words, need "
            "documents of 2 words, triples need 3, quadruples need 4"
        )
    trace = None if n_signals is None else float(tallies.sums["squares"])
    if trace == 0.0:
        raise NumericalError("expected rows that differ from each other, got rows that are all equal")
    directions = next_directions(
        engine, tallies.tall["sketch"], basis, tallies.tall.get("noise"), probes,
        indefinite=indefinite, scale=scale, isotropic=None if trace is None else (trace, n_signals or 0),
    )  # fmt: skip
    states = {"basis": _store_columns(engine, directions.basis, dtype, n_slabs)}
    if "mean" in tallies.tall:
        total = tallies.tall["mean"]
        mean = np.asarray(read_rows(total, slice(0, total.n_rows))) / float(tallies.sums["mass"])
        states["mean"] = StoredColumns((engine.put(mean),))
    n_probes = directions.probes.width if directions.probes is not None else 0
    if directions.probes is not None and n_probes:
        states["probes"] = _store_columns(engine, directions.probes, dtype, 1)
    noise = PROBE_MARGIN * directions.noise / directions.largest if directions.largest > 0.0 else 0.0
    values = {"rank": directions.basis.width, "n_probes": n_probes, "noise": noise, "error": directions.error}
    return TallResult(states, values)


def _store_columns(engine: Engine, what: Combination, dtype: str, n_slabs: int) -> StoredColumns:
    """Form a combination and store it in slabs of columns."""
    (matrix, coefficients), *others = what.terms
    if isinstance(matrix, np.ndarray) and not coefficients.size:
        edges = column_edges(what.width, n_slabs)
        return StoredColumns(tuple(engine.put(matrix[:, cut].astype(dtype)) for cut in edges))
    terms = ((matrix, coefficients), *others)
    inputs = tuple(item for item, _ in terms)
    scaled = [what.scale is not None and isinstance(item, Partials) for item in inputs]
    return store_columns(
        engine, _combine, inputs if what.scale is None else (*inputs, what.scale), what.n_rows,
        {"it": (what.width, n_slabs)}, dtype, [c for _, c in terms], scaled,
    )["it"]  # fmt: skip


def _combine(rows: slice, *arguments: Any) -> tuple[Slabs, Slabs]:
    *slabs, coefficients, scaled = arguments
    # Squared: once as sums of the passes lack the scale, once as the stored basis includes it.
    factor = np.asarray(slabs.pop(), np.float64) ** 2 if any(scaled) else 1.0
    products = (np.asarray(a, np.float64) @ c for a, c in zip(slabs, coefficients, strict=True))
    total = sum(product * factor if by else product for product, by in zip(products, scaled, strict=True))
    return {"it": np.asarray(total)}, {}


def orthonormal_basis(sketch: np.ndarray) -> np.ndarray:
    """Orthonormalise a matrix in memory and return the (d, rank) basis, float64."""
    with one_blas_thread():
        return orthonormalise([sketch]).slabs[0]
