"""Fitted trees: the methods that apply them to rows, and the pictures of their reports."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.blas import one_blas_thread
from distmom.digits import significant
from distmom.engine import StoredRows
from distmom.errors import UsageError
from distmom.models.trees.posterior import TreeReader, TreeStatesPass
from distmom.models.trees.structure import Tree
from distmom.moments.dense_rows import view_slices
from distmom.spectral.densities import ViewsLikelihood
from distmom.spectral.estimator import SpectralEstimator
from distmom.spectral.inputs.row_parts import checked_views
from distmom.spectral.pictures import bars, matrix
from distmom.spectral.program.run import Run


class FittedTree(ViewsLikelihood, SpectralEstimator):
    """Base class of `LatentTree` with the methods that use the parameters; see there for attributes."""

    tree_: str
    components_: np.ndarray
    weights_: np.ndarray
    transitions_: np.ndarray
    widths_: list[int]
    coefficients_: np.ndarray | None
    offsets_: np.ndarray | None
    has_categories_: bool

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the states of all hidden variables given rows.

        They take all leaves into account. Leaves whose columns are indicators of a category have the probabilities
        ``components_``; the columns of all others count as Gaussian given the state, with a covariance that the
        states share (see docs/trees.md).

        Parameters
        ----------
        X : tuple or list of arrays or sparse matrices of shape (n_rows, d_t), or one of shape (n_rows, d)
            As in `fit`.

        Returns
        -------
        ndarray of shape (n_rows, n_hidden, n_components), float64
            Sums over the last axis are one.

        Raises
        ------
        UsageError
            If leaves have other columns than those of the fit, or an earlier version fitted the model.
        InputError
            If a value is not finite, or leaves have different numbers of rows.
        """
        return np.ascontiguousarray(np.moveaxis(self._states(X)[0], 0, 1))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable state of every hidden variable given rows, (n_rows, n_hidden) int64.

        The most probable state of each variable does not depend on those of the others. Parameters and errors as
        for `predict_proba`.
        """
        return np.asarray(self.predict_proba(X).argmax(axis=2))

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log-likelihood of every row, (n_rows,) float64.

        Parameters and errors as for `predict_proba`. A UsageError is raised unless the columns of every leaf are
        indicators of a category: no distribution of other leaves is assumed.
        """
        evidence = self._states(X)[1]
        if not self.has_categories_:
            raise UsageError("LatentTree: rows have a likelihood only where every leaf is a category")
        return evidence

    def _states(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        check_is_fitted(self)
        fields = self._reading()
        rows = checked_views(self, X, len(self.widths_))
        with one_blas_thread():
            return TreeReader(**fields).states(rows)

    def _reading(self) -> dict[str, Any]:
        """Return the fields of `TreeReader`."""
        if self.coefficients_ is None:
            raise UsageError(
                "LatentTree: an earlier version fitted this model, which cannot read rows; fit it again"
            )
        tree = Tree.parse(self.tree_)
        return {
            "widths": tuple(self.widths_), "parents": tree.parents, "of_leaves": tree.of_leaves,
            "coefficients": self.coefficients_, "offsets": self.offsets_,
            "root": np.asarray(self.weights_[0], np.float64),
            "transitions": np.asarray(self.transitions_, np.float64),
        }  # fmt: skip

    def assign(self, run: Run) -> dict[str, StoredRows]:
        """Store the most probable state of every hidden variable given each row, and the probabilities of all.

        Parameters
        ----------
        run : Run
            Over the rows.

        Returns
        -------
        dict of str to StoredRows
            ``states`` (n, n_hidden), int32, and ``probabilities`` (n, n_hidden, n_components), float32, along
            rows.
        """
        check_is_fitted(self)
        fields = {
            name: run.put(own) if isinstance(own, np.ndarray) else own
            for name, own in self._reading().items()
        }
        return run.scan(
            TreeStatesPass(self.n_features_in_, n_components=self.weights_.shape[1], **fields)
        ).rows

    def leaves(self) -> list[np.ndarray]:
        """Return the means of the columns of every leaf, of shapes (n_components, d_t)."""
        check_is_fitted(self)
        return [self.components_[:, cut] for cut in view_slices(tuple(self.widths_))]

    def summary(self) -> dict[str, Any]:
        return super().summary() | {"weights": significant(self.weights_)}

    def pictures(self, n_top: int = 10) -> list[dict[str, Any]]:
        """Return the pictures of a report: the distribution of the root, the edges, and the means of every leaf.

        Parameters
        ----------
        n_top : int, default 10
            Number of columns per leaf.

        Returns
        -------
        list of dict
            JSON values, as for `SphericalMixture.pictures`.
        """
        check_is_fitted(self)
        parents = Tree.parse(self.tree_).parents
        states = [f"state {i}" for i in range(self.weights_.shape[1])]
        found = [bars("Root", "Probability of every state.", states, self.weights_[0])]
        for g, law in enumerate(self.transitions_, start=1):
            caption = f"Probability of its states, given each state of hidden variable {parents[g]}."
            found.append(matrix(f"Hidden variable {g}", caption, law, states, states))
        caption = "Means of its columns, given each state of the hidden variable above it."
        for t, cut in enumerate(view_slices(tuple(self.widths_))):
            columns = self.vocabulary_[cut][:n_top]
            found.append(
                matrix(f"Leaf {t + 1}", caption, self.components_[:, cut][:, :n_top], states, columns)
            )
        return found
