"""Fitted models of three views: the methods that apply them to rows, and the pictures of their reports."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.blas import one_blas_thread
from distmom.digits import significant
from distmom.engine import StoredRows
from distmom.errors import UsageError
from distmom.models.multiview.pictures import pictures_of
from distmom.models.multiview.posterior import RowScoresPass, shares_of
from distmom.models.multiview.reading import (
    RowHiddenPass,
    log_densities,
    reading_of_model,
    scores_of_model,
)
from distmom.moments.dense_rows import view_slices
from distmom.spectral.bases import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from distmom.spectral.densities import ComponentsOfRows, ViewsLikelihood
from distmom.spectral.estimator import SpectralEstimator
from distmom.spectral.inputs.row_parts import checked_views
from distmom.spectral.program.run import Run


class FittedViews(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, ComponentsOfRows, ViewsLikelihood, SpectralEstimator
):
    """Base class of `MultiView` with the methods that use the components; see there for attributes."""

    components_: np.ndarray
    weights_: np.ndarray | None
    alpha_: np.ndarray | None
    skewness_: np.ndarray | None
    widths_: list[int]

    def views(self) -> list[np.ndarray]:
        """Return the means of the three views, of shapes (n_components, d_t), components in the same order."""
        check_is_fitted(self)
        return [self.components_[:, cut] for cut in view_slices(tuple(self.widths_))]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the components given rows, or the shares of the components in rows.

        Views count as Gaussian within a component, with covariances that all components share. Without EM passes,
        their columns count as independent, with the variances ``variances_`` (see docs/multiview.md). Where a row
        has several components, their shares are estimated by least squares (see `transform`).

        Parameters
        ----------
        X : tuple or list of three arrays or sparse matrices of shape (n_rows, d_t), or one of shape (n_rows, d)
            As in `fit`.

        Returns
        -------
        ndarray of shape (n_rows, n_components), float64
            Rows sum to one.

        Raises
        ------
        UsageError
            If the views have other columns than those of the fit, or factors are independent.
        InputError
            If a value is not finite, or views have different numbers of rows.
        """
        rows = checked_views(self, X)
        if self.weights_ is None:
            raise UsageError("MultiView: independent factors have no probabilities; use transform")
        return self._hidden(rows)

    def predict(self, X: Any) -> np.ndarray:
        """Return the component of largest probability or share of every row, (n_rows,) int64.

        Parameters and errors as for `predict_proba`.
        """
        return np.asarray(self.predict_proba(X).argmax(axis=1))

    def transform(self, X: Any) -> np.ndarray:
        """Return the hidden vectors of rows: probabilities or shares of components, or independent factors.

        Shares minimise the squared differences between a row and the means that they imply, over all
        distributions; factors minimise them without a constraint. Squares are divided by ``variances_``:
        columns count as independent given the hidden vector.

        Parameters
        ----------
        X : tuple or list of three arrays or sparse matrices of shape (n_rows, d_t), or one of shape (n_rows, d)
            As in `fit`.

        Returns
        -------
        ndarray of shape (n_rows, n_components), float64
            Independent factors have mean zero over the fitted rows, and variance one plus that of their errors.

        Raises
        ------
        UsageError
            If the views have other columns than those of the fit.
        InputError
            If a value is not finite, or views have different numbers of rows.
        """
        return self._hidden(checked_views(self, X))

    @property
    def _mixed(self) -> bool:
        """Whether a row has several components, or independent factors."""
        return self.weights_ is None or self.alpha_ is not None

    def _hidden(self, rows: Any) -> np.ndarray:
        with one_blas_thread():
            if self._mixed:
                return reading_of_model(self).hidden(rows)
            return shares_of(rows, *scores_of_model(self))[0]

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log-density at every row, (n_rows,) float64.

        Columns count as independent and Gaussian within a component, with the variances ``variances_``. A
        UsageError is raised where a row has several components: no distribution of such rows is assumed.
        """
        rows = checked_views(self, X)
        if self._mixed:
            raise UsageError(
                "MultiView: rows have a likelihood with one component per row (alpha0=0) only; the residual and "
                "sum_weights of diagnostics_ show how well moments fit"
            )
        with one_blas_thread():
            return log_densities(self, rows)

    def assign(self, run: Run) -> dict[str, StoredRows]:
        """Store the component and the probabilities or shares of all components, or the factors, of every row.

        Parameters
        ----------
        run : Run
            Over the rows.

        Returns
        -------
        dict of str to StoredRows
            ``components`` (n,), int32, and ``probabilities`` or, where a row has several components, ``shares``
            (n, n_components), float32, along rows; with independent factors ``factors`` (n, n_components),
            float32, alone.
        """
        check_is_fitted(self)
        d, k = self.n_features_in_, len(self.components_)
        if not self._mixed:
            coefficients, offsets = scores_of_model(self)
            fields = {"coefficients": run.put(coefficients), "offsets": run.put(offsets), "n_components": k}
            return run.scan(RowScoresPass(d, **fields)).rows
        own = reading_of_model(self)
        pass_ = RowHiddenPass(
            d, coefficients=run.put(own.coefficients), offsets=run.put(own.offsets), n_components=k,
            gram=None if own.gram is None else run.put(own.gram),
        )  # fmt: skip
        return run.scan(pass_).rows

    def summary(self) -> dict[str, Any]:
        check_is_fitted(self)
        values = {"weights": self.weights_, "alpha": self.alpha_, "skewness": self.skewness_}
        return super().summary() | {name: significant(own) for name, own in values.items() if own is not None}

    def pictures(self, n_top: int = 10) -> list[dict[str, Any]]:
        """Return the pictures of a report: weights, shares of variance, and the columns that set components apart.

        Parameters
        ----------
        n_top : int, default 10
            Number of columns per view.

        Returns
        -------
        list of dict
            JSON values, as for `SphericalMixture.pictures`.
        """
        check_is_fitted(self)
        return pictures_of(self, n_top)
