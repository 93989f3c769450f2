"""Search for one component of a mixture of linear regressions, with its noise.

Source: Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18, 2018), section 3.3,
with ``E[y^2]`` in place of the smallest singular value, any covariance of the features, and an intercept per
component.

Features are ``x = m + S^(1/2) z`` with standard Gaussian z, and the response of component i is
``beta_i'z + b_i``, in excess of its mean, plus noise of variance s_i. By Stein's identity, whatever the
intercepts and variances,

    E[y z] = sum_i p_i beta_i
    (E[y^2 z z'] - E[y^2] I) / 2 = sum_i p_i beta_i beta_i'
    (E[g z (x) z (x) z] - sym(E[g z] I)) / 6 = sum_i p_i beta_i (x) beta_i (x) beta_i
    (E[t y^2 z z'] - E[t y^2] I) / 2 = sum_i p_i E[t | i] beta_i beta_i'
    E[y^2 z] / 2 = sum_i p_i b_i beta_i
    E[y^3 z] / 3 = sum_i p_i (||beta_i||^2 + b_i^2 + s_i) beta_i

for side information t that is independent of x and of the noise given the component. Q has the leading
eigenvectors of the second matrix, and the coordinates of a component are ``Q'beta_i``. g is ``y^3`` minus a
linear function of z, which only reduces the sampling error. Coefficients of x are
``S^(-1/2) beta_i``. In place of ``S^(-1/2)``, any R with ``R S R' = I`` maps the features, and R' the
coefficients. R is a matrix of all features, except for uncorrelated features, where it is diagonal; the range of
the second matrix is then found from its products with few columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from distmom.blas import one_blas_thread
from distmom.corpus.rows import as_array
from distmom.engine import Sums, TallResult
from distmom.errors import InputError, UsageError
from distmom.models.search.base import FoundComponent, RowSearch
from distmom.models.search.directions import (
    RegressionBasis,
    Standardised,
    column_scales,
    narrowed_basis,
    regression_basis,
    standardised,
    unknown_basis,
)
from distmom.models.search.state import (
    Part,
    SearchState,
    loaded_halves,
    search_state,
    symmetric_product,
    whitened_cube,
)
from distmom.moments.rows.gaussian import RowCovariancePass
from distmom.moments.rows.multiview import MultiViewColumnsPass
from distmom.moments.rows.search import (
    ResponseMomentsPass,
    ResponsePairsPass,
    ResponseSketchPass,
    whole_third,
)
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.basis import unknown_columns
from distmom.spectral.steps.rank import halves
from distmom.spectral.steps.row_basis import sketched_basis

#: eigenvalues that are reported
N_SPECTRUM = 100
#: assumptions about the covariance of the features
COVARIANCES = ("full", "diagonal")


@dataclass(frozen=True, kw_only=True)
class FoundRegression(FoundComponent):
    """A component of a mixture of linear regressions, found by a search.

    Attributes
    ----------
    coef : ndarray of shape (n_features,)
        Coefficients of the features.
    intercept : float
    variance : float
        Variance of the noise; an estimate from few rows may be negative.
    weight, gap, noise, n_rows_needed, preferences
        As in `distmom.models.search.base.FoundComponent`.
    """

    coef: np.ndarray
    intercept: float
    variance: float


class RegressionSearch(RowSearch):
    """Find one component of a mixture of linear regressions from side information about it.

    Features are Gaussian, with any mean and covariance, or with a diagonal covariance. Every component has its own
    coefficients, intercept and variance of the noise.

    Attributes
    ----------
    center_ : ndarray of shape (n_features + 1,)
        Mean of the features and, last, of the response.
    basis_ : ndarray of shape (n_features, n_components)
        Maps coordinates to coefficients.
    diagnostics_ : dict
        ``spectrum`` has the leading eigenvalues of the weighted sum of the products of the standardised
        coefficients. With ``covariance="diagonal"``, ``correlation`` is the largest difference from one of the
        variance of a coordinate in the sketched basis. It is much larger than ``2 sqrt(r / n)``, for n rows and r
        coordinates, where features are correlated after all; and ``basis_error`` estimates the sine of the largest
        angle between the sketched basis and one of the leading eigenvectors.
    vocabulary_ : list of str
        Names of the columns: the features, the response, and those of side information.
    n_features_in_ : int
        Number of features.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> coefs = np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    >>> z = rng.integers(0, 2, 20_000)
    >>> X = rng.normal(size=(20_000, 3))
    >>> y = np.sum(X * coefs[z], axis=1) + 0.5 * rng.normal(size=20_000)
    >>> found = RegressionSearch(2).fit(X, y).search(along=[0.0, 1.0, 0.0])
    >>> bool(np.abs(found.coef - coefs[1]).max() < 0.3)
    True
    """

    n_responses = 1
    shown = ("noise_level", "relative_gap", "correlation", "basis_error")

    covariance: str = parameter(
        "Covariance of the features: any (full), which forms matrices of features x features, or zero between "
        "different features (diagonal), which does not.", default="full", choices=COVARIANCES,
    )  # fmt: skip
    n_oversamples: int = parameter(
        "Columns of the sketch beyond the components, with covariance=diagonal.", default=10, least=0
    )
    n_power_iter: int = parameter("Power passes of the sketch, with covariance=diagonal.", default=2, least=0)

    def fit(self, X: Any, y: Any, side: Any = None) -> Self:
        """Add up the moments of rows in memory.

        Parameters
        ----------
        X : array_like of shape (n_rows, n_features)
            Features, finite numbers.
        y : array_like of shape (n_rows,)
            Responses.
        side : array_like of shape (n_rows,) or (n_rows, n_targets), optional
            Side information: numbers that are larger, on average, in the component to be found than in any
            other, and independent of features and noise given the component, such as 1 for rows that are
            labelled and 0 for others. None by default.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If a parameter is invalid, y is None, or there are fewer rows or features than components.
        InputError
            If a value is not finite or masked, or there is not one response per row.
        NumericalError
            If the features are linearly dependent, or the moments carry fewer components than requested.
        """
        if y is None:
            raise UsageError(
                "requires y to be passed, but the target y is None: RegressionSearch needs a response per row"
            )
        response = as_array(y, "y")
        if response.ndim == 0 or response.ndim > 2 or response[:1].size != 1:
            raise InputError(f"y: expected one response per row, got an array of shape {response.shape}")
        return self.fit_corpus(self._in_memory(X, y=response.reshape(-1, 1), side=side))

    def program(self, run: Run) -> SearchState:
        """Add up the moments by the passes of a run, in two halves, and return the state."""
        (d, q), k = self._sizes_of(run.corpus), self.n_components
        basis = self._whole(run, d, k) if self.covariance == "full" else self._sketched(run, d, k)
        pass_ = ResponseMomentsPass(
            d, basis=basis.matrix, origin=basis.origin, slopes=basis.slopes, rank=k, n_targets=q
        )
        parts = tuple(run.scan(replace(pass_, selection=half)).directory for half in halves(self._seed))
        state: SearchState = run.apply(_state, basis, parts, out=unknown())
        return state

    def _whole(self, run: Run, d: int, k: int) -> RegressionBasis:
        """Find the directions of the coefficients of features with any covariance."""
        out = Standardised(unknown(d, d), unknown(d + 1, 1))
        scale = run.rows(standardised, run.scan(RowCovariancePass(d + 1)), out=out)
        pairs = run.scan(ResponsePairsPass(d, origin=scale.origin))
        return run.rows(regression_basis, pairs, scale, k, out=unknown_basis(d, d, k, scale.origin))

    def _sketched(self, run: Run, d: int, k: int) -> RegressionBasis:
        """Find the directions of the coefficients of uncorrelated features from a sketch."""
        out = TallResult({"origin": unknown_columns(d + 1, 1), "scale": unknown_columns(d, 1)}, {})
        columns = run.scan(MultiViewColumnsPass(d + 1, widths=(d + 1,)), column_scales, out=out).states
        origin, scale = columns["origin"].parts[0], columns["scale"].parts[0]
        sketch = ResponseSketchPass(
            d, n_columns=min(k + self.n_oversamples, d), seed=self._seed, origin=origin, scale=scale
        )
        found = sketched_basis(run, sketch, self.n_power_iter, k)
        pairs = run.scan(ResponsePairsPass(d, origin=origin, basis=found.matrix, rank=found.rank))
        out_basis = unknown_basis(d, found.rank, k, origin)
        return run.rows(narrowed_basis, pairs, found, origin, d, k, out=out_basis)

    def search(
        self, along: Any = None, *, rows: Any = None, target: int | str | None = None, force: bool = False
    ) -> FoundRegression:
        """Find the component that side information prefers, without a pass over the rows.

        Parameters
        ----------
        along : array_like of shape (n_features,), optional
            A vector whose product with the coefficients of the component is larger than with those of any other.
        rows : array_like of shape (n, n_features + 1), optional
            Labelled rows, features and last the response, most of them of the component, in place of a vector.
        target : int or str, optional
            Number, from 0, or name of a column of side information of the fit, in place of a vector.
        force : bool, default False
            Return a component even if the side information does not determine it.

        Returns
        -------
        FoundRegression

        Raises
        ------
        UsageError
            If not exactly one of along, rows and target is given, or it does not suit the fit.
        InputError
            If a value of the labelled rows is not finite.
        NumericalError
            If the gap is not larger than the noise and ``force`` is False.
        """
        found, facts = self._search(along, rows, target, force)
        coef = self.basis_ @ found.component
        excess, square = self._extras_of(found)
        # The basis of the standardised coefficients is orthonormal.
        variance = float(square - found.component @ found.component - excess**2)
        intercept = float(self.center_[-1] + excess - self.center_[:-1] @ coef)
        return FoundRegression(coef=coef, intercept=intercept, variance=variance, **facts)

    def _coordinates(self, X: np.ndarray) -> np.ndarray:
        return np.asarray((X[:, :-1] @ self.basis_) * X[:, -1:])


def regression_part(sums: Sums, W: np.ndarray) -> Part:
    """Return the moments of some rows in whitened coordinates.

    Parameters
    ----------
    sums : Sums
        Sums of `distmom.moments.rows.search.ResponseMomentsPass`.
    W : ndarray of shape (k, k)
        Whitening of ``sum_i p_i beta_i beta_i'`` in the basis.
    """
    mass, k = float(sums["mass"]), len(W)
    cube = whole_third(sums["gzzz"]) / mass - symmetric_product(np.asarray(sums["gz"]) / mass, np.eye(k))
    targets = np.asarray(sums["tyyzz"]) - np.asarray(sums["tyy"])[:, None, None] * np.eye(k)
    extras = np.stack([sums["yyz"] / mass / 2.0, sums["yyyz"] / mass / 3.0], axis=1)
    return Part(
        np.asarray(sums["yz"]) / mass, whitened_cube(cube / 6.0, W),
        np.ascontiguousarray((W.T @ (targets / mass / 2.0) @ W).transpose(1, 2, 0)), W.T @ extras,
    )  # fmt: skip


def _state(basis: RegressionBasis, directories: tuple[str, ...]) -> SearchState:
    (whole, first, second), white = loaded_halves(directories), basis.white
    with one_blas_thread():
        parts = [regression_part(sums, white.W) for sums in (whole, first, second)]
    facts = {
        "spectrum": [float(x) for x in white.eigenvalues[:N_SPECTRUM]], "noise_level": float(white.noise),
        "relative_gap": float(white.gap), **basis.facts,
    }  # fmt: skip
    matrix, center = basis.matrix.parts[0].load(), np.asarray(basis.origin.load())[:, 0]
    return search_state(np.asarray(matrix), center, white, parts, int(whole["sampled"]), facts)
