"""Inputs of passes over three views: averages that bring columns to one scale, and bases of the ranges of views.

The range of a view is that of its centred cross moments with the other views.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, StoredArray, StoredColumns, Tallies, TallResult
from distmom.engine.sums.tall import read_rows
from distmom.errors import NumericalError
from distmom.linalg import fix_signs
from distmom.moments.dense_rows import mass_of_rows, view_slices
from distmom.spectral.steps.recovery import store_columns

#: least eigenvalue of a Gram matrix, as a share of the largest, that rounding does not account for
_LEAST_SHARE = 1e-12
#: variance of a column as a share of its mean square up to which the column is constant
_CONSTANT = 1e-12


def averages_of(engine: Engine, tallies: Tallies, widths: tuple[int, ...]) -> TallResult:
    """Turn the sums of columns into the averages that passes read, and store them with the mean squares.

    Columns are scaled to variance one, and constant ones to zero. Rows of a view are then divided by the root of
    its number of columns, so that views of different widths and units weigh the same.
    """
    mass = mass_of_rows(tallies.sums)
    total = tallies.tall["columns"]
    mean, squares = np.asarray(read_rows(total, slice(0, total.n_rows))).T / mass
    factors = np.zeros(len(mean))
    for t, cut in enumerate(view_slices(widths)):
        if not np.isfinite(squares[cut]).all():
            raise NumericalError(f"the squares of the values of view {t + 1} overflow: scale its values")
        variances = variances_of(mean[cut], squares[cut])
        varying = variances > 0.0
        factors[cut][varying] = (variances[varying] * max(1, int(varying.sum()))) ** -0.5
    averages = np.column_stack([mean, factors])
    return TallResult(
        {
            "averages": StoredColumns((engine.put(averages),)),
            "squares": StoredColumns((engine.put(np.ascontiguousarray(squares[:, None])),)),
        },
        {},
    )


def variances_of(mean: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return the variances of columns, zero where the difference of squares is rounding."""
    found = squares - mean**2
    return np.asarray(np.where(found > _CONSTANT * squares, found, 0.0))


def next_basis(
    engine: Engine,
    tallies: Tallies,
    averages: StoredArray,
    widths: tuple[int, ...],
    k: int,
    n_slabs: int,
    independent: bool = False,
) -> TallResult:
    """Turn the products of a sketch into bases of the ranges of the views.

    The centred cross moments of k components have the rank k - 1, and those of k independent factors the rank k.

    A basis is ``B_t = D_t Q_t``, with D_t the factors of the columns and r columns of Q_t that span the range:
    they are orthonormal up to rounding, or, where a view has a lower rank, a projection of orthonormal columns.
    """
    sketch = tallies.tall["sketch"]
    least = k if independent else k - 1
    grams = engine.maps.map_rows(grams_of_views, (sketch, averages), sketch.n_rows, {}, widths, 1.0)[1][
        "grams"
    ]
    found = []
    for t, gram in enumerate(grams):
        if not np.isfinite(gram).all():
            raise NumericalError(
                f"the cross moments of view {t + 1} with the others overflow: scale the values"
            )
        if not gram.any():
            raise NumericalError(
                f"the columns of view {t + 1}, or those of the other views, are constant up to rounding: "
                "subtract a constant from columns whose mean is more than 10^6 times as large as their standard "
                "deviation"
            )
        with one_blas_thread():
            values, vectors = np.linalg.eigh(gram)
        kept = np.flatnonzero((values > _LEAST_SHARE * values[-1]) & (values > 0.0))[::-1]
        if len(kept) < least:
            raise NumericalError(
                f"the centred cross moments of view {t + 1} with the other views have rank {len(kept)}, and {k} "
                f"components need rank {least}; use fewer components, or a view that distinguishes them"
            )
        found.append((vectors[:, kept], values[kept]))
    factors = _rotated(grams, found)
    rank = factors[0].shape[1]
    basis = store_columns(
        engine, _times_factors, (sketch, averages), sketch.n_rows, {"it": (rank, n_slabs)}, "float64", widths,
        factors,
    )["it"]  # fmt: skip
    return TallResult({"basis": basis}, {"rank": rank})


def _rotated(grams: np.ndarray, found: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Return the factors by which sketches give bases, from eigenvectors and eigenvalues of their Gram matrices.

    A sketch adds up the products of two bases with the cross moments, so that its range depends on how the columns
    of one are rotated towards those of the other. Eigenvectors have any sign; the columns of all bases are
    therefore those nearest to the same directions, and a range depends on rounding no more than its moments do.
    """
    rank = max(1, *(len(values) for _, values in found))
    with one_blas_thread():
        total = sum(gram / max(float(np.trace(gram)), np.finfo(float).tiny) for gram in grams)
        common = fix_signs(np.linalg.eigh(total)[1][:, -rank:])
        factors = []
        for vectors, values in found:
            left, _, right = np.linalg.svd(vectors.T @ common, full_matrices=False)
            factors.append((vectors / np.sqrt(values)) @ (left @ right))
    return factors


def rows_by_view(rows: slice, widths: tuple[int, ...]) -> list[slice]:
    """Return the rows of every view among some rows of a tall matrix, counted from the first of these."""
    found = []
    for cut in view_slices(widths):
        start, stop = max(cut.start, rows.start), min(cut.stop, rows.stop)
        found.append(slice(start - rows.start, max(start, stop) - rows.start))
    return found


def grams_of_views(
    rows: slice, matrix: np.ndarray, averages: np.ndarray, widths: tuple[int, ...], power: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the Gram matrices of the views of a matrix whose rows are multiplied by a power of the factors."""
    factors = averages[:, 1:]
    scaled = np.where(factors > 0.0, matrix * np.where(factors > 0.0, factors, 1.0) ** power, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        return {}, {"grams": np.stack([scaled[own].T @ scaled[own] for own in rows_by_view(rows, widths)])}


def _times_factors(
    rows: slice,
    matrix: np.ndarray,
    averages: np.ndarray,
    widths: tuple[int, ...],
    factors: list[np.ndarray],
) -> tuple[dict[str, Any], dict[str, Any]]:
    # Once to scale the products of a sketch, and once as the passes multiply rows that are not scaled.
    scaled = matrix * averages[:, 1:] ** 2
    parts = [scaled[own] @ factor for own, factor in zip(rows_by_view(rows, widths), factors, strict=True)]
    return {"it": np.concatenate(parts)}, {}
