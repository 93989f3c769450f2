"""Steps of the fit of a mixture of three views: from the rows given to bases, moments and the state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csr_array

from distmom.blas import one_blas_thread
from distmom.corpus.rows import checked_rows_of_layer
from distmom.engine import Engine, StoredColumns, Tallies, TallResult
from distmom.engine.directory import load_sums
from distmom.engine.tall import read_rows
from distmom.errors import InputError, NumericalError
from distmom.moments.multiview import view_slices
from distmom.moments.product import N_GROUPS, PAIRS, GroupMoments, group_moments
from distmom.spectral.layout import array, value
from distmom.spectral.recovery import Recovery, store_columns
from distmom.spectral.three_views import AlignedViews, align_views, mean_rows

#: least eigenvalue of a Gram matrix, as a share of the largest, that rounding does not account for
_LEAST_SHARE = 1e-12
#: least variance of a column within components, as a share of its variance
_LEAST_VARIANCE = 1e-3
#: variance of a column as a share of its mean square up to which the column is constant
_CONSTANT = 1e-12


@dataclass(frozen=True)
class MultiViewState:
    """The state of a fitted mixture; shapes are those on disk.

    Attributes
    ----------
    components : ndarray of shape (d, k)
        Conditional means of all columns, view by view.
    weights : ndarray of shape (k,)
    variances : ndarray of shape (d,)
    widths : list of int
    diagnostics : dict
    """

    components: np.ndarray = array("d", "k", transposed=True)
    weights: np.ndarray = array("k", least=0.0)
    variances: np.ndarray = array("d", least=0.0)
    widths: list[int] = value()
    diagnostics: dict[str, Any] = value()


def joined_views(X: Any) -> tuple[Any, tuple[int, ...] | None, list[str] | None]:
    """Return the columns of views side by side, with the widths and names; no widths for a single matrix."""
    several = isinstance(X, tuple) or (isinstance(X, list) and any(getattr(x, "ndim", 0) == 2 for x in X))
    if not several:
        rows, kind, _ = checked_rows_of_layer(X, "X")
        if kind == "symbols":
            raise InputError.at(
                "X", None, "shape", "a matrix of rows and columns, or three of them", f"{rows.shape}"
            )
        return rows, None, None
    if len(X) != N_GROUPS:
        raise InputError.at("X", None, "number of views", f"{N_GROUPS}", f"{len(X)}")
    views = [checked_rows_of_layer(view, f"X[{t}]") for t, view in enumerate(X)]
    for t, (rows, kind, _) in enumerate(views):
        if kind == "symbols":
            raise InputError.at(f"X[{t}]", None, "shape", "a matrix of rows and columns", f"{rows.shape}")
        if rows.shape[0] != (n := views[0][0].shape[0]):
            raise InputError.at(f"X[{t}]", None, "number of rows", f"{n} as in X[0]", f"{rows.shape[0]}")
    widths = tuple(width for _, _, width in views)
    names = [f"{t + 1}.{j}" for t, width in enumerate(widths) for j in range(width)]
    if any(kind == "csr" for _, kind, _ in views):
        return csr_array(sparse.hstack([rows for rows, _, _ in views], format="csr")), widths, names
    return np.hstack([rows for rows, _, _ in views]), widths, names


def next_bases(
    engine: Engine,
    tallies: Tallies,
    columns: StoredColumns | None,
    widths: tuple[int, ...],
    k: int,
    n_slabs: int,
) -> TallResult:
    """Turn the products of a sketch into orthogonal bases of the ranges of the views.

    The basis of a view is divided by the root mean square of its rows: views of different units then weigh the
    same in the next pass. The averages of every column and of its squares are stored with the first basis.
    """
    mass = float(tallies.sums["mass"])
    if not mass > 0.0:
        raise NumericalError("expected rows of positive weight, got none")
    sketch, states = tallies.tall["sketch"], {}
    if columns is None:
        total = tallies.tall["columns"]
        columns = StoredColumns((engine.put(np.asarray(read_rows(total, slice(0, total.n_rows))) / mass),))
        states["columns"] = columns
    squares = columns.parts[0].load()[:, 1]
    scales = [float(squares[cut].sum()) for cut in view_slices(widths)]
    for t, scale in enumerate(scales):
        if not np.isfinite(scale):
            raise NumericalError(f"the moments of view {t + 1} overflow: scale its values")
    grams = engine.map_rows(_grams, (sketch,), sketch.n_rows, {}, widths)[1]["grams"]
    found = []
    for t, (gram, scale) in enumerate(zip(grams, scales, strict=True)):
        if not np.isfinite(gram).all():
            raise NumericalError(
                f"the cross moments of view {t + 1} with the others overflow: scale the values"
            )
        with one_blas_thread():
            values, vectors = np.linalg.eigh(gram)
        kept = np.flatnonzero((values > _LEAST_SHARE * values[-1]) & (values > 0.0))[::-1]
        if len(kept) < k:
            raise NumericalError(
                f"the cross moments of view {t + 1} with the other views have rank {len(kept)}, and {k} "
                f"components need rank {k}; use fewer components, or a view that tells them apart"
            )
        found.append(vectors[:, kept] / np.sqrt(values[kept] * scale))
    rank = max(factor.shape[1] for factor in found)
    factors = [np.pad(factor, ((0, 0), (0, rank - factor.shape[1]))) for factor in found]
    states["basis"] = store_columns(
        engine, _times_factors, (sketch,), sketch.n_rows, {"it": (rank, n_slabs)}, "float64", widths, factors
    )["it"]
    return TallResult(states, {"rank": rank})


def _within(rows: slice, widths: tuple[int, ...]) -> list[slice]:
    """Return the rows of every view among some rows of a tall matrix, counted from the first of these."""
    found = []
    for cut in view_slices(widths):
        start, stop = max(cut.start, rows.start), min(cut.stop, rows.stop)
        found.append(slice(start - rows.start, max(start, stop) - rows.start))
    return found


def _grams(rows: slice, matrix: np.ndarray, widths: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.errstate(over="ignore", invalid="ignore"):
        return {}, {"grams": np.stack([matrix[own].T @ matrix[own] for own in _within(rows, widths)])}


def _times_factors(
    rows: slice, matrix: np.ndarray, widths: tuple[int, ...], factors: list[np.ndarray]
) -> tuple[dict[str, Any], dict[str, Any]]:
    parts = [matrix[own] @ factor for own, factor in zip(_within(rows, widths), factors, strict=True)]
    return {"it": np.concatenate(parts)}, {}


def load_moments(directory: str) -> GroupMoments:
    return group_moments(load_sums(directory)[0])


def decomposed(moments: GroupMoments, k: int, method: str) -> AlignedViews:
    """Decompose the moments, and measure how well views tell components apart; runs on the scheduler node."""
    found = align_views(moments, k, method)
    with one_blas_thread():
        values = [np.linalg.svd(moments.pair(*pair), compute_uv=False) for pair in PAIRS]
    conditioning = [float(each[k - 1] / each[0]) for each in values]
    return replace(found, diagnostics={**found.diagnostics, "conditioning": conditioning})


def state_of(
    engine: Engine,
    basis: StoredColumns,
    columns: StoredColumns,
    widths: tuple[int, ...],
    found: AlignedViews,
) -> MultiViewState:
    """Bring conditional means back from the bases to the columns, and estimate variances within components."""
    d, k = sum(widths), len(found.weights)
    grams = engine.map_rows(_grams, (basis,), d, {}, widths)[1]["grams"]
    with one_blas_thread():
        # Bases are orthogonal up to rounding only, and narrow views have columns of zeros.
        own = np.stack(
            [np.linalg.pinv(g, 1e-9, hermitian=True) @ m for g, m in zip(grams, found.means, strict=True)]
        )
    views = np.repeat(np.arange(N_GROUPS), widths)
    components = Recovery((basis, views), d, k, mean_rows, (own,)).whole()
    order = np.argsort(-found.weights, kind="stable")
    components = np.ascontiguousarray(components[:, order])
    weights = found.weights[order] / found.weights.sum()
    mean, squares = np.asarray(columns.parts[0].load(), np.float64).T
    variances = np.maximum(squares - mean**2, 0.0)
    within = np.maximum(squares - components**2 @ weights, _LEAST_VARIANCE * variances)
    # Errors of the means of a constant column must not tell components apart.
    constant = variances <= _CONSTANT * squares
    within = np.where(constant, np.where(squares > 0.0, squares, 1.0), within)
    between = (components - mean[:, None]) ** 2 @ weights
    explained = [
        float(between[cut].sum() / max(float(variances[cut].sum()), np.finfo(float).tiny))
        for cut in view_slices(widths)
    ]
    diagnostics = {**found.diagnostics, "explained": explained}
    return MultiViewState(components, weights, within, list(widths), diagnostics)
