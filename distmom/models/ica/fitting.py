"""Steps of the fit of independent components: from the sums of passes to projections and the state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, PassResult, StoredArray, StoredColumns
from distmom.engine.directory.run_directory import load_sums
from distmom.errors import NumericalError
from distmom.models.ica.recovery import Found, magnitudes
from distmom.moments.rows.gaussian import row_moments
from distmom.moments.rows.ica import FourthMoment, row_contrast, row_fourth
from distmom.spectral.program.run import unknown
from distmom.spectral.saved.fields import array, value
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.recovery import product
from distmom.spectral.steps.row_basis import covariance_of, sketch_facts

#: least eigenvalue of the covariance, as a share of the largest, that rounding does not account for
LEAST_SHARE = 1e-12
#: largest rounding error of the covariance, as a share of its smallest eigenvalue that is used
MOST_ROUNDING = 1e-3
#: least total variance of rows: products of four smaller values underflow
LEAST_TRACE = 1e-140
#: eigenvalues of the covariance that are reported
N_SPECTRUM = 100


@dataclass(frozen=True)
class IcaState:
    """The state of a fitted model.

    Attributes
    ----------
    components : ndarray of shape (k, d)
        Unmixing.
    mixing : ndarray of shape (d, k)
    mean : ndarray of shape (d,)
    kurtosis : ndarray of shape (k,)
    diagnostics : dict
    """

    components: np.ndarray = array("k", "d")
    mixing: np.ndarray = array("d", "k")
    mean: np.ndarray = array("d")
    kurtosis: np.ndarray = array("k")
    diagnostics: dict[str, Any] = value()


@dataclass(frozen=True)
class Projection:
    """A map of centred rows to few coordinates.

    Attributes
    ----------
    matrix : StoredColumns of shape (d, k)
        P: coordinates are ``y = P'(x - m)``.
    back : ndarray of shape (d, k)
        L: rows in the range of the map are ``m + L y``.
    origin : StoredArray of shape (d, 1)
        m, the mean of the rows.
    noise : ndarray of shape (k, k)
        Covariance of the noise of y, as far as it is known; else zero.
    facts : dict
        JSON values: ``spectrum`` of the covariance, ``explained`` share of the variance, ``noise_variance``.
    """

    matrix: StoredColumns
    back: np.ndarray
    origin: StoredArray
    noise: np.ndarray
    facts: dict[str, Any]

    @classmethod
    def upto(cls, d: int, k: int) -> Projection:
        """Return a projection of known shape without content, for a ledger."""
        return cls(StoredColumns((unknown(d, k),)), unknown(d, k), unknown(d, 1), unknown(k, k), unknown())


def load_fourth(directory: str) -> FourthMoment:
    """Return the moments that a committed pass has added up."""
    return row_fourth(load_sums(directory)[0])


def covariance_projection(engine: Engine, scanned: PassResult, k: int, isotropic: bool) -> Projection:
    """Project on the k leading eigenvectors of the covariance that a pass has added up, scaled to variance one."""
    mean, values, vectors, trace = _eigenpairs(scanned)
    if _rank(values, trace) < k == len(mean) and not isotropic:
        # The rows may span all directions in units in which the columns have one variance.
        return full_projection(engine, scanned, k)
    return _whitening(
        engine, engine.put(mean[:, None]), np.asarray(vectors[:, :k]), values, trace, k, isotropic, mean
    )


def sketched_projection(
    engine: Engine, scanned: PassResult, basis: Basis, k: int, isotropic: bool
) -> Projection:
    """Return the same projection, given a basis of the range of the covariance and sums in that basis."""
    assert basis.mean is not None
    moments = row_moments(scanned.sums)
    mean = np.asarray(basis.mean.load(), np.float64)[:, 0]
    with one_blas_thread():
        values, small = np.linalg.eigh(moments.second)
    values, small = values[::-1], small[:, ::-1]
    vectors = product(basis.matrix, len(mean), small[:, :k]).whole()
    found = _whitening(engine, basis.mean, vectors, values, moments.trace, k, isotropic, mean)
    return replace(found, facts=found.facts | sketch_facts(basis))


def full_projection(engine: Engine, scanned: PassResult, k: int) -> Projection:
    """Project on all directions above rounding, scaled to variance one, whatever the units of the columns."""
    mean, covariance = covariance_of(scanned)
    scale, trace = _column_scales(mean, covariance), float(np.trace(covariance))
    with one_blas_thread():
        spectrum = np.linalg.eigvalsh(covariance)[::-1]
        values, vectors = np.linalg.eigh(scale[:, None] * covariance * scale)
    values, vectors = values[::-1], vectors[:, ::-1]
    rank = _rank(values, trace)
    _check(values, trace, k, rank, mean * scale, values[max(0, min(rank, len(values)) - 1)])
    sizes = np.sqrt(values[:rank])
    facts = {"spectrum": [float(x) for x in spectrum[:N_SPECTRUM]], "explained": 1.0}
    return Projection(
        StoredColumns((engine.put(np.ascontiguousarray(scale[:, None] * (vectors[:, :rank] / sizes))),)),
        vectors[:, :rank] * sizes / scale[:, None], engine.put(mean[:, None]), np.zeros((rank, rank)), facts,
    )  # fmt: skip


def _column_scales(mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return factors (d,) that give all columns one variance, and leave the total variance as it is."""
    variances = np.diagonal(covariance)
    # The variances of other columns are rounding errors.
    varies = variances > LEAST_SHARE * np.square(mean)
    if not varies.any():
        return np.ones(len(mean))
    deviations = np.sqrt(np.where(varies, variances, variances[varies].max()))
    return np.asarray(np.sqrt(variances[varies].mean()) / deviations)


def contrast_basis(scanned: PassResult, basis: np.ndarray | None, k: int) -> tuple[np.ndarray, list[float]]:
    """Return the k leading directions of the contracted fourth cumulant, (r, k), and its eigenvalues."""
    with one_blas_thread():
        values, vectors = np.linalg.eigh(row_contrast(scanned.sums, basis))
    order = np.argsort(-np.abs(values), kind="stable")
    return np.ascontiguousarray(vectors[:, order[:k]]), [float(x) for x in values[order][:N_SPECTRUM]]


def narrowed(engine: Engine, full: Projection, found: tuple[np.ndarray, list[float]] | None) -> Projection:
    """Return the projection on directions of the projected rows; all of them where none were found."""
    if found is None:
        return full
    basis, values = found
    with one_blas_thread():
        matrix = product(full.matrix, len(full.back), basis).whole()
        back = full.back @ basis
    k = basis.shape[1]
    facts = {
        **full.facts, "contrast": values,
        "explained": float(np.sum(back**2) / max(np.sum(full.back**2), np.finfo(float).tiny)),
    }  # fmt: skip
    return Projection(StoredColumns((engine.put(matrix),)), back, full.origin, np.zeros((k, k)), facts)


def ica_state(projection: Projection, found: Found, drop: bool) -> IcaState:
    """Return the state, with the components by descending magnitude of their kurtosis."""
    mean = np.asarray(projection.origin.load(), np.float64)[:, 0]
    order = np.argsort(-np.abs(found.kurtosis), kind="stable")
    if drop:
        left_out = np.argsort(magnitudes(found.kurtosis), kind="stable")[: found.diagnostics["n_gaussian"]]
        order = order[~np.isin(order, left_out)]
    with one_blas_thread():
        mixing = projection.back @ found.mixing[:, order]
        components = product(projection.matrix, len(mean), found.unmixing[order].T).whole().T
    # The entry of largest magnitude of every column of the mixing is positive.
    largest = mixing[np.abs(mixing).argmax(axis=0), np.arange(len(order))]
    signs = np.where(largest < 0.0, -1.0, 1.0)
    return IcaState(
        np.ascontiguousarray(components * signs[:, None]), np.ascontiguousarray(mixing * signs), mean,
        found.kurtosis[order], {**projection.facts, **found.diagnostics, "n_components": len(order)},
    )  # fmt: skip


def _eigenpairs(scanned: PassResult) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Return the mean, the eigenvalues of the covariance, descending, its eigenvectors and its trace."""
    mean, covariance = covariance_of(scanned)
    with one_blas_thread():
        values, vectors = np.linalg.eigh(covariance)
    return mean, values[::-1], vectors[:, ::-1], float(np.trace(covariance))


def _rank(values: np.ndarray, trace: float) -> int:
    """Return the number of eigenvalues above rounding."""
    return int(np.count_nonzero(values > LEAST_SHARE * values[0])) if trace > 0.0 else 0


def _check(values: np.ndarray, trace: float, k: int, rank: int, mean: np.ndarray, smallest: float) -> None:
    """Refuse rows that span too few directions, or whose moments are inexact."""
    if 0.0 < trace < LEAST_TRACE:
        raise NumericalError(
            f"the rows have a total variance of {trace:.3g}, whose fourth moments are out of range: scale the rows"
        )
    offset = float(np.sum(mean**2))
    rounding = float(np.finfo(float).eps) * offset
    # Rows that are all equal have a message of their own.
    least = max(smallest, LEAST_SHARE * float(values[0]))
    if rounding > MOST_ROUNDING * least and np.abs(values).max() > rounding:
        raise NumericalError(
            f"the mean of the rows has norm {offset**0.5:.3g}, and they are {max(trace, 0.0) ** 0.5:.3g} away "
            f"from it on average, so that rounding changes their covariance by about {rounding:.3g}: subtract the "
            "mean from the rows"
        )
    if rank == 0:
        raise NumericalError(
            f"the rows are all equal up to rounding: the norm of their mean is {offset**0.5:.3g}, and the largest "
            f"eigenvalue of their covariance {values[0]:.3g}, with an error of about {rounding:.3g}"
        )
    if rank < k:
        first = max(rank - 3, 0)
        shown = ", ".join(f"{x:.3g}" for x in values[first : rank + 3])
        raise NumericalError(
            f"the rows span {rank} of the directions that n_components={k} needs: from number {first + 1} on, the "
            f"eigenvalues of their covariance are {shown}; use n_components={rank} or fewer"
        )


def _whitening(
    engine: Engine,
    origin: StoredArray,
    vectors: np.ndarray,
    values: np.ndarray,
    trace: float,
    k: int,
    isotropic: bool,
    mean: np.ndarray,
) -> Projection:
    """Return the projection on eigenvectors of the covariance, (d, k), scaled to variance one."""
    d = len(mean)
    rank = _rank(values, trace)
    # Directions that the rows do not span need not be exact.
    _check(values, trace, k, rank, mean, values[max(min(k, rank), 1) - 1])
    noise = max((trace - float(values[:k].sum())) / (d - k), 0.0) if isotropic else 0.0
    if isotropic and values[k - 1] - noise <= LEAST_SHARE * values[0]:
        shown = ", ".join(f"{x:.3g}" for x in values[: k + 1])
        raise NumericalError(
            f"the covariance carries fewer than {k} components: its eigenvalue {k} must be above the variance of "
            f"the noise, {noise:.3g}; the largest are {shown}; use fewer components"
        )
    scale = np.sqrt(values[:k])
    facts = {
        "spectrum": [float(x) for x in values[:N_SPECTRUM]],
        "explained": float(values[:k].sum() / trace),
        **({"noise_variance": noise} if isotropic else {}),
    }
    return Projection(
        StoredColumns((engine.put(np.ascontiguousarray(vectors / scale)),)), vectors * scale, origin,
        np.diag(noise / values[:k]), facts,
    )  # fmt: skip
