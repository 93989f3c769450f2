"""The leading directions of the coefficients of a mixture of regressions, from the sums of passes.

See `distmom.models.search.regression` for the moments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, PassResult, StoredArray, StoredColumns, Tallies, TallResult
from distmom.engine.sums.tall import read_rows
from distmom.errors import NumericalError
from distmom.linalg import Whitening, whiten
from distmom.moments.dense_rows import mass_of_rows
from distmom.spectral.program.run import unknown
from distmom.spectral.steps.basis import Basis, unknown_columns
from distmom.spectral.steps.recovery import product
from distmom.spectral.steps.row_basis import covariance_of, sketch_facts

#: least eigenvalue of the correlations of the features, as a share of the largest
LEAST_SHARE = 1e-10
#: least eigenvalue, or variance of a feature, as a share of the squared mean
MEAN_SHARE = 1e-15


@dataclass(frozen=True)
class Standardised:
    """A map of features to uncorrelated ones of variance one.

    Attributes
    ----------
    root : ndarray of shape (d, d)
        R with ``R S R' = I``, for the covariance S.
    origin : StoredArray of shape (d + 1, 1)
        Mean of the features and, last, of the response.
    """

    root: np.ndarray
    origin: StoredArray


@dataclass(frozen=True)
class RegressionBasis:
    """A basis of the coefficients.

    Attributes
    ----------
    matrix : StoredColumns of shape (d, k)
        ``R'Q``, with R of `Standardised`, and Q the directions of the coefficients of standardised features.
    slopes : StoredArray of shape (k, 1)
        Slopes of the cubed response on the standardised features in the basis.
    origin : StoredArray of shape (d + 1, 1)
        Mean of the features and, last, of the response.
    white : Whitening
        Whitening of ``sum_i p_i beta_i beta_i'`` in the basis.
    facts : dict
        Further diagnostics.
    """

    matrix: StoredColumns
    slopes: StoredArray
    origin: StoredArray
    white: Whitening
    facts: dict[str, Any]


def standardised(engine: Engine, scanned: PassResult) -> Standardised:
    """Return the map that standardises the features, from the second moment of features and response."""
    mean, covariance = covariance_of(scanned)
    features, center = covariance[:-1, :-1], mean[:-1]
    variances = np.diagonal(features)
    # Features in units that differ have covariances whose small eigenvalues would be rounding errors.
    varies = variances > MEAN_SHARE * np.square(center)
    scale = np.where(varies, 1.0, 0.0) / np.sqrt(np.where(varies, variances, 1.0))
    with one_blas_thread():
        values, vectors = np.linalg.eigh(scale[:, None] * features * scale)
    if not values[0] > max(
        LEAST_SHARE * float(values[-1]), MEAN_SHARE * float(np.sum((scale * center) ** 2))
    ):
        raise NumericalError(
            "the features are linearly dependent, or far from the origin: the eigenvalues of their correlations "
            f"are between {values[0]:.3g} and {values[-1]:.3g}, and their mean has norm "
            f"{np.linalg.norm(center):.3g}; leave features out, or subtract the mean"
        )
    with one_blas_thread():
        root = (vectors / np.sqrt(values)) @ vectors.T * scale
    return Standardised(root, engine.put(mean[:, None]))


def column_scales(engine: Engine, tallies: Tallies) -> TallResult:
    """Return the means of the features and the response, and the factors of the features, from sums of columns."""
    mass = mass_of_rows(tallies.sums)
    total = tallies.tall["columns"]
    with np.errstate(over="ignore", invalid="ignore"):
        mean, squares = np.asarray(read_rows(total, slice(0, total.n_rows))).T / mass
        variances = (squares - mean**2)[:-1]
    if not np.isfinite(squares).all():
        raise NumericalError("the variances of the features overflow: scale the rows")
    constant = ~(variances > LEAST_SHARE * squares[:-1])
    if constant.any():
        j = int(constant.argmax())
        raise NumericalError(
            f"feature {j} is constant, or far from the origin: its mean is {mean[j]:.3g}, and its variance "
            f"{variances[j]:.3g}; leave it out, or subtract the mean"
        )
    found = {"origin": mean[:, None], "scale": 1.0 / np.sqrt(variances)[:, None]}
    return TallResult({name: StoredColumns((engine.put(column),)) for name, column in found.items()}, {})


def regression_basis(engine: Engine, scanned: PassResult, scale: Standardised, k: int) -> RegressionBasis:
    """Return the k leading directions of the coefficients, from the sums of `ResponsePairsPass`."""
    matrix, slopes, white = _directions(scanned, scale.root, k)
    columns = StoredColumns((engine.put(np.ascontiguousarray(matrix)),))
    return RegressionBasis(columns, engine.put(slopes), scale.origin, white, {})


def narrowed_basis(
    engine: Engine, scanned: PassResult, basis: Basis, origin: StoredArray, d: int, k: int
) -> RegressionBasis:
    """Like `regression_basis`, in a basis of the range, whose coordinates have a covariance near the identity."""
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        covariance = np.asarray(scanned.sums["zz"]) / float(scanned.sums["mass"])
        if not np.isfinite(covariance).all():
            raise NumericalError("the covariance of the features overflows: scale the rows")
        values, vectors = np.linalg.eigh(covariance)
        if not values[0] > LEAST_SHARE * values[-1]:
            raise NumericalError(
                "the features are linearly dependent: the eigenvalues of the covariance of their coordinates are "
                f"between {values[0]:.3g} and {values[-1]:.3g}"
            )
        root = (vectors / np.sqrt(values)) @ vectors.T
    small, slopes, white = _directions(scanned, root, k)
    facts = {"correlation": float(np.abs(values - 1.0).max()), **sketch_facts(basis)}
    columns = StoredColumns((engine.put(product(basis.matrix, d, small).whole()),))
    return RegressionBasis(columns, engine.put(slopes), origin, white, facts)


def _directions(scanned: PassResult, root: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, Whitening]:
    """Return the matrix, the slopes and the whitening of a `RegressionBasis` in the coordinates of a pass.

    Parameters
    ----------
    scanned : PassResult
        Sums of `ResponsePairsPass`.
    root : ndarray of shape (r, r)
        R with ``R S R' = I``, for the covariance S of the coordinates.
    k : int
    """
    sums, mass = scanned.sums, float(scanned.sums["mass"])
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        moment = root @ (np.asarray(sums["xx"]) / mass) @ root.T
        A = (moment + moment.T) / 4.0 - float(sums["squares"]) / mass / 2.0 * np.eye(len(moment))
        if not np.isfinite(A).all():
            raise NumericalError("the moments of the rows and responses overflow: scale the rows")
        white = whiten(A, k)
        sizes = np.sqrt(white.eigenvalues[:k])
        matrix = root.T @ (white.W * sizes)
    slopes = np.asarray(sums["cubes"]) / mass @ matrix
    return matrix, slopes[:, None], replace(white, W=np.diag(1.0 / sizes), B=np.diag(sizes))


def unknown_basis(d: int, r: int, k: int, origin: StoredArray) -> RegressionBasis:
    """Return a basis of known shape without content, for a ledger."""
    white = Whitening(unknown(k, k), unknown(k, k), unknown(r), unknown(), unknown(), unknown())
    return RegressionBasis(unknown_columns(d, k), unknown(k, 1), origin, white, unknown())
