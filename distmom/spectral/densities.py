"""Base classes of mixtures: components and likelihoods of rows, and for Gaussians densities and samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.blas import one_blas_thread
from distmom.errors import InputError
from distmom.linalg.checks import generator
from distmom.spectral.bases import DensityMixin
from distmom.spectral.estimator import SpectralEstimator
from distmom.spectral.inputs.checks import check_size
from distmom.spectral.inputs.tables import rows_in_memory
from distmom.spectral.posteriors import Posterior, logs_of, posterior_of


class ComponentsOfRows:
    """Base class of models that assign each row to one component: ``fit_predict`` and ``predict_log_proba``."""

    if TYPE_CHECKING:

        def fit(self, X: Any, y: Any = None) -> Self: ...

        def predict(self, X: Any) -> np.ndarray: ...

        def predict_proba(self, X: Any) -> np.ndarray: ...

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of `predict_proba`, minus infinity where a probability is zero.

        Parameters and errors as for `predict_proba`.
        """
        return logs_of(self.predict_proba(X))

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:
        """Fit the model and return the component of every row, (n_rows,) int64, as ``fit(X).predict(X)`` does.

        Parameters
        ----------
        X : array_like, or any other input of `fit`
        y : None
            Ignored.
        """
        return self.fit(X, y).predict(X)


class ViewsLikelihood:
    """Base class of models of rows in parts, such as views, with the method ``score_samples``."""

    if TYPE_CHECKING:

        def score_samples(self, X: Any) -> np.ndarray: ...

    def score(self, X: Any, y: Any = None) -> float:
        """Return the log-likelihood of rows, on average per row; assumptions and errors as for `score_samples`.

        Parameters
        ----------
        X : tuple or list of arrays or sparse matrices of shape (n_rows, d_t), or one of shape (n_rows, d)
            At least one row; an InputError otherwise.
        y : None
            Ignored.
        """
        found = self.score_samples(X)
        if not len(found):
            raise InputError("X: expected at least one row, got none")
        return float(found.mean())


class RowDensity(ComponentsOfRows, DensityMixin, SpectralEstimator):
    """Base class of mixtures of Gaussians, with the rows of a component independent along the axes.

    Attributes
    ----------
    means_ : ndarray of shape (k, n_features)
    weights_ : ndarray of shape (k,)
    variances_ : ndarray of shape (k,) or (k, n_features)
        Variance of a component along every axis, or variances along each axis.
    """

    means_: np.ndarray
    weights_: np.ndarray
    variances_: np.ndarray

    def _mixture(self) -> Posterior:
        """Return the posterior probabilities by the fitted parameters."""
        raise TypeError(f"{type(self).__name__} does not define its posterior probabilities")

    def _n_parameters(self) -> int:
        """Return the number of free parameters."""
        raise TypeError(f"{type(self).__name__} does not define its number of parameters")

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the posterior probabilities of the components of rows.

        Parameters
        ----------
        X : array_like of shape (n_rows, n_features)

        Returns
        -------
        ndarray of shape (n_rows, n_found), float64
            Rows sum to one; ``n_found`` is the number of components.

        Raises
        ------
        UsageError
            If the number of features differs from that of the fit.
        InputError
            If a value is not finite.
        """
        return self._posterior(X)[0]

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable component of every row, (n_rows,) int64; parameters as for `predict_proba`."""
        return np.asarray(self.predict_proba(X).argmax(axis=1))

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log-density at every row, (n_rows,) float64; parameters as for `predict_proba`."""
        return np.asarray(self._posterior(X)[1])

    def score(self, X: Any, y: Any = None) -> float:
        """Return the log-likelihood of rows, on average per row.

        Parameters
        ----------
        X : array_like of shape (n_rows, n_features)
            At least one row; an InputError otherwise.
        y : None
            Ignored.
        """
        return float(self._posterior(X, 1)[1].mean())

    def bic(self, X: Any) -> float:
        """Return the Bayesian information criterion on rows, at least one; lower is better."""
        densities = self._posterior(X, 1)[1]
        return -2.0 * float(densities.sum()) + self._n_parameters() * float(np.log(len(densities)))

    def aic(self, X: Any) -> float:
        """Return the Akaike information criterion on rows, at least one; lower is better."""
        return -2.0 * float(self._posterior(X, 1)[1].sum()) + 2.0 * self._n_parameters()

    def sample(self, n_samples: int = 1, random_state: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows from the fitted mixture.

        Parameters
        ----------
        n_samples : int, default 1
            Number of rows, 0 or more.
        random_state : int, default 0
            Seed.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features), float64
        components : ndarray of shape (n_samples,), int64
            Component of each row.

        Raises
        ------
        UsageError
            If ``n_samples`` or ``random_state`` is not a whole number from 0.
        """
        check_is_fitted(self)
        check_size("n_samples", n_samples)
        rng = generator(random_state)
        components = rng.choice(len(self.weights_), n_samples, p=self.weights_)
        noise = rng.standard_normal((n_samples, self.n_features_in_))
        deviations = np.sqrt(self.variances_).reshape(len(self.weights_), -1)
        return self.means_[components] + noise * deviations[components], components

    def _posterior(self, X: Any, least: int = 0) -> tuple[np.ndarray, np.ndarray]:
        X = rows_in_memory(self, X, least)
        with one_blas_thread():
            return posterior_of(X, self._mixture(), len(self.weights_))
