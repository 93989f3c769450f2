"""The basis of all subspaces of a search: leading eigenvectors of a second moment, whole or in a wider basis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, PassResult, StoredArray, StoredColumns
from distmom.errors import NumericalError
from distmom.moments.dense_rows import mass_of_rows
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.recovery import product
from distmom.spectral.steps.row_basis import sketch_facts

#: eigenvalues that are reported
N_SPECTRUM = 100


@dataclass(frozen=True)
class SubspaceBasis:
    """The range of A.

    Attributes
    ----------
    matrix : StoredColumns of shape (d, r)
    origin : StoredArray of shape (d, 1)
        Zero: subspaces contain the origin.
    eigenvalues : ndarray of shape (r,)
        Eigenvalues of A.
    noise_variance : float
    facts : dict
    """

    matrix: StoredColumns
    origin: StoredArray
    eigenvalues: np.ndarray
    noise_variance: float
    facts: dict[str, Any]


def whole_basis(engine: Engine, scanned: PassResult, origin: StoredArray, r: int) -> SubspaceBasis:
    """Return the r leading eigenvectors of the second moment, and the variance of the noise."""
    values, vectors, _ = _eigenpairs(scanned, "second")
    noise, facts = _noise_of(values, float(values[r:].sum()), len(values), r)
    columns = StoredColumns((engine.put(np.ascontiguousarray(vectors[:, :r])),))
    return SubspaceBasis(columns, origin, values[:r] - noise, noise, facts)


def narrowed_basis(
    engine: Engine, scanned: PassResult, basis: Basis, origin: StoredArray, d: int, r: int
) -> SubspaceBasis:
    """Return the same, given a basis of the range of the second moment and sums in that basis."""
    values, vectors, mass = _eigenpairs(scanned, "yy")
    # A basis has fewer columns where the moment has no more dimensions.
    values = np.append(values, np.zeros(max(0, r + 1 - len(values))))
    rest = float(scanned.sums["s"]) / mass - float(values[:r].sum())
    noise, facts = _noise_of(values, rest, d, r)
    matrix = product(basis.matrix, d, vectors[:, :r]).whole()
    columns = StoredColumns((engine.put(matrix),))
    return SubspaceBasis(columns, origin, values[:r] - noise, noise, facts | sketch_facts(basis))


def _eigenpairs(scanned: PassResult, name: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the eigenvalues of a second moment, descending, its eigenvectors, and the mass of the rows."""
    mass = mass_of_rows(scanned.sums)
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        second = np.asarray(scanned.sums[name]) / mass
        if not np.isfinite(second).all():
            raise NumericalError("the second moment of the rows overflows: scale the rows")
        values, vectors = np.linalg.eigh(second)
    return values[::-1], vectors[:, ::-1], mass


def _noise_of(values: np.ndarray, rest: float, d: int, r: int) -> tuple[float, dict[str, Any]]:
    """Return the variance of the noise, and the numbers for the report.

    Parameters
    ----------
    values : ndarray of shape (n,)
        More than r leading eigenvalues, descending.
    rest : float
        Sum of all eigenvalues but the first r.
    d, r : int

    Raises
    ------
    NumericalError
        If eigenvalue r is not above the noise.
    """
    noise = max(rest / (d - r), 0.0)
    if not values[r - 1] - noise > 1e-12 * float(values[0]):
        shown = ", ".join(f"{x:.3g}" for x in values[: r + 1])
        raise NumericalError(
            f"the second moment carries fewer than {r} dimensions: its eigenvalue {r} must be above the variance "
            f"of the noise, {noise:.3g}; the largest are {shown}"
        )
    return noise, {
        "spectrum": [float(x) for x in values[:N_SPECTRUM]], "noise_variance": noise,
        "relative_gap": float(1.0 - (values[r] - noise) / (values[r - 1] - noise)),
    }  # fmt: skip
