"""How a fitted model of three views reads rows: linear scores of components, or least squares for hidden vectors.

Where a row has one component, scores are linear in the row, as squares cancel. Shares of several components, and
independent factors, are estimated from all views by weighted least squares, with the inverse variances of the
columns given the hidden vector as weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.linalg.simplex import simplex_minima
from distmom.moments.dense_rows import aligned, dense_rows, total_weight
from distmom.moments.kernels import BLOCK_ROWS
from distmom.moments.rows.multiview import squared_distances
from distmom.spectral.posteriors import normalise
from distmom.spectral.scores import ScoresPass


def scores_of_model(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients (d, k) and offsets (k,) of the scores by which a model reads rows of one component."""
    own = model.coefficients_
    return _scores(model, _per_variance(loadings_of(model), model) if own is None else own)


def log_densities(model: Any, rows: Any) -> np.ndarray:
    """Return the log-density at rows, (n,), whose columns are independent and Gaussian within a component."""
    variances = np.asarray(model.variances_, np.float64)
    coefficients, offsets = _scores(model, _per_variance(loadings_of(model), model))
    distances = squared_distances(rows, model.weights_ @ model.components_, 1.0 / variances)
    logs = normalise(np.asarray(rows @ coefficients) + offsets)
    return np.asarray(logs - 0.5 * (distances + np.log(2.0 * np.pi * variances).sum()))


def _per_variance(loadings: np.ndarray, model: Any) -> np.ndarray:
    """Return rows (k, d) divided by the variances of the columns, transposed."""
    return np.ascontiguousarray((loadings / np.asarray(model.variances_, np.float64)).T)


def _scores(model: Any, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logs = np.log(np.maximum(model.weights_, np.finfo(float).tiny))
    norms = np.einsum("kd,dk->k", loadings_of(model), coefficients)
    return coefficients, logs - 0.5 * norms - model.weights_ @ model.components_ @ coefficients


def loadings_of(model: Any) -> np.ndarray:
    """Return the effects of independent factors, or the means minus the mean of all rows, (k, d) float64."""
    components = np.asarray(model.components_, np.float64)
    if model.weights_ is None:
        return components
    # Accurate where columns are far from zero.
    return np.asarray(components - model.weights_ @ components)


@dataclass(frozen=True)
class Reading:
    """How rows are read: ``coefficients' x + offsets`` are factors, or the linear part of a least-squares problem.

    Attributes
    ----------
    coefficients : ndarray of shape (d, k)
    offsets : ndarray of shape (k,)
    gram : ndarray of shape (k, k) or None
        The quadratic part of the problem, whose minimum over the simplex are the shares; None for factors.
    """

    coefficients: np.ndarray
    offsets: np.ndarray
    gram: np.ndarray | None

    def hidden(self, X: Any) -> np.ndarray:
        """Return the shares or factors of dense or sparse rows, (n, k) float64."""
        linear = np.asarray(X @ self.coefficients) + self.offsets
        return linear if self.gram is None else simplex_minima(self.gram, linear)


def reading_of_model(model: Any) -> Reading:
    """Return how a model reads rows of several components, or of independent factors."""
    independent, loadings = model.weights_ is None, loadings_of(model)
    mean = np.asarray(model.mean_ if independent else model.weights_ @ model.components_, np.float64)
    weighted = _per_variance(loadings, model)
    gram = loadings @ weighted
    if independent:
        weighted = weighted @ np.linalg.pinv(gram, hermitian=True)
    return Reading(weighted, -(mean @ weighted), None if independent else gram)


@dataclass(frozen=True)
class RowHiddenPass(ScoresPass):
    """Store the shares of the components in every row and the largest of them, or the factors of every row.

    Attributes
    ----------
    gram : ndarray of shape (k, k) or None
        As in `Reading`.

    Notes
    -----
    Other fields as in `ScoresPass`. Rows: ``components`` (n,), int32, and ``shares`` (n, k), float32; or
    ``factors`` (n, k), float32. Sums: ``mass`` ().
    """

    gram: Any = None

    row_axis = "rows"

    @property
    def name(self) -> str:
        return "hidden"

    @property
    def row_bytes(self) -> int:
        return 4 * self.n_components + (0 if self.gram is None else 4)

    def working_bytes(self, n_rows: int) -> int:
        # What is stored, and for some rows at a time the arrays of the iterations.
        n, k = min(n_rows, BLOCK_ROWS), self.n_components
        return n_rows * self.row_bytes + 8 * n * (12 * k + 4) + 8 * k * k

    def specs(self) -> dict[str, SumSpec]:
        return {"mass": SumSpec(())}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        sums["mass"] += total_weight(block)
        X = aligned(dense_rows(block)[0])
        reading = Reading(
            np.asarray(self.coefficients), np.asarray(self.offsets),
            None if self.gram is None else np.asarray(self.gram),
        )  # fmt: skip
        found = np.empty((X.shape[0], self.n_components), np.float32)
        for start in range(0, len(found), BLOCK_ROWS):
            piece = slice(start, min(start + BLOCK_ROWS, len(found)))
            found[piece] = reading.hidden(X[piece])
        if self.gram is None:
            return {"factors": found}
        return {"components": found.argmax(axis=1).astype(np.int32), "shares": found}
