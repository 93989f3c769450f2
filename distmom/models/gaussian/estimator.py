"""Mixtures of spherical Gaussians, by the moments of dense rows.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
theorems 3.2 and 3.3 (see `distmom.spectral.steps.spherical`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.blas import one_blas_thread
from distmom.digits import significant
from distmom.engine import Selection, StoredRows
from distmom.errors import UsageError
from distmom.linalg import METHODS
from distmom.models.gaussian.contracted import contraction_passes, recover_by_contractions
from distmom.models.gaussian.fitting import (
    MixtureState,
    agreed_count,
    gaussians_of,
    kept_positions,
    maximise,
    mixture_state,
    stored_gaussians,
    widened,
)
from distmom.models.gaussian.pictures import mixture_pictures
from distmom.models.gaussian.posterior import Gaussians, Posterior, RowAssignPass, RowEMPass
from distmom.models.gaussian.rotation import most_components, n_directions, recover_by_rotation
from distmom.moments.rows.gaussian import RowMomentsPass
from distmom.spectral.bases import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from distmom.spectral.capabilities import Capability
from distmom.spectral.densities import RowDensity
from distmom.spectral.estimator import layer_parameter, place_parameter
from distmom.spectral.inputs.checks import check_n_rows, checked_dense
from distmom.spectral.inputs.tables import corpus_of_rows, rows_in_memory
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.seeds import Seed, seed_parameter
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.contracted import (
    check_third_moment,
    power_steps_parameter,
    settled_third_moment,
    third_moment_parameter,
)
from distmom.spectral.steps.em import iterate
from distmom.spectral.steps.rank import MOST_COMPONENTS, halves
from distmom.spectral.steps.row_basis import basis_rank, offset_of, row_basis, takes_whole
from distmom.spectral.steps.spherical import Found, load_moments, recover

VARIANCES = ("differing", "common")
ROUTES = ("noise", "rotation")


class MixtureAttributes:
    """Further attributes of a fitted mixture; see `SphericalMixture`."""

    center_: np.ndarray
    axes_: np.ndarray
    kept_: np.ndarray
    kept_components_: np.ndarray


class SphericalMixture(ClassNamePrefixFeaturesOutMixin, TransformerMixin, MixtureAttributes, RowDensity):
    """Mixture of spherical Gaussians, fitted to dense rows by their moments.

    Attributes
    ----------
    means_ : ndarray of shape (n_found, n_features)
        Means of the components, by descending weight; ``n_found`` is ``n_components``, or the number found.
    weights_ : ndarray of shape (n_found,)
        Probabilities of the components; they sum to one.
    variances_ : ndarray of shape (n_found,)
        Variance of a component along every axis.
    center_ : ndarray of shape (n_features,)
        Mean of the rows.
    axes_ : ndarray of shape (1 or 2, n_features)
        Leading eigenvectors of the covariance; the entry of largest magnitude of each is positive.
    kept_ : ndarray of shape (n_kept, 1 or 2)
        Coordinates along ``axes_`` of at most 500 rows minus their mean, for pictures: the first rows of random
        units of the corpus (sequences if it has any, else single rows).
    kept_components_ : ndarray of shape (n_kept,), int32
        Most probable components of these rows.
    diagnostics_ : dict
        ``spectrum`` has the leading eigenvalues of the covariance, ``noise_variance`` the average of those
        beyond the first ``n_found - 1``; ``residual`` is the share of the whitened third moment that the
        components do not explain, ``log_likelihoods`` the average per row before each EM pass, and ``spread``
        how far the means found by single rotations are from their average, as a share of their size;
        ``basis_error``, with a sketch, estimates how far its basis is from the leading eigenvectors (see
        docs/gaussian.md).
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> means = np.array([[4.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    >>> X = means[rng.integers(0, 2, 5000)] + rng.normal(size=(5000, 3))
    >>> model = SphericalMixture(2).fit(X)
    >>> error = min(np.abs(model.means_[order] - means).max() for order in ([0, 1], [1, 0]))
    >>> bool(error < 0.3)
    True
    """

    State = MixtureState
    matched_by = "means_"
    reads = ("dense",)
    capabilities = frozenset({Capability.ROWS, Capability.COMPONENTS})
    shown = (
        "n_components", "noise_variance", "residual", "gap", "basis_error", "n_clipped_weights",
        "n_floored_variances", "n_empty",
    )  # fmt: skip

    n_components: int | str = parameter(
        "Number of components; auto uses as many as random halves of the rows agree on.",
        default=10, least=1, auto=True, kw_only=False,
    )  # fmt: skip
    variances: str = parameter(
        "Whether every component has its own variance (differing), or all have the same (common).",
        default="differing", choices=VARIANCES,
    )  # fmt: skip
    route: str = parameter(
        "How the noise is removed: by subtracting its estimate (noise), or by random rotations (rotation), which "
        "make views without common noise and require about three times as many features as components.",
        default="noise", choices=ROUTES,
    )  # fmt: skip
    n_rotations: int = parameter(
        "Number of rotations whose estimates are averaged. Used with route=rotation only.",
        default=20,
        least=1,
    )
    n_oversamples: int = parameter("Columns of the sketch beyond the components.", default=10, least=0)
    n_power_iter: int = parameter("Power passes of the sketch.", default=2, least=0)
    decomposition: str = parameter(
        "Method for the whitened third moment.", default="joint", choices=tuple(METHODS)
    )
    third_moment: str = third_moment_parameter()
    power_steps: int = power_steps_parameter()
    n_em_iter: int = parameter(
        "Number of expectation-maximisation (EM) iterations after the moments, one pass each.",
        default=10,
        least=0,
    )
    layer: str | None = layer_parameter()
    decompose_on: str = place_parameter()
    random_state: Seed = seed_parameter()

    # Fit

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit rows in memory.

        Parameters
        ----------
        X : array_like of shape (n_rows, n_features)
            Finite numbers.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If a parameter is invalid, or there are fewer rows or features than components.
        InputError
            If a value is not finite.
        NumericalError
            If the moments carry fewer components than requested, or the rows are so far from the origin or
            so large or small that moments are inexact.
        """
        return self.fit_corpus(corpus_of_rows(X, checked_dense(X, 2)))

    def check(self, corpus: Any) -> None:
        """Check that the parameters are valid and suit a corpus; raise a UsageError otherwise."""
        super().check(corpus)
        check_third_moment(self.third_moment, self.decomposition, self.power_steps)
        if self.route == "rotation" and (self.third_moment == "slices" or self.power_steps):
            raise UsageError(
                "route='rotation' rotates the whole third moment: expected third_moment='full' or 'auto' and "
                f"power_steps=0, got {self.third_moment!r} and {self.power_steps}"
            )
        if self.n_components == "auto":
            return
        if self.n_components > corpus.n_words:
            raise UsageError(
                f"n_components: expected at most {corpus.n_words}, the number of features, got {self.n_components}"
            )
        check_n_rows(corpus.n_rows, int(self.n_components))
        most = most_components(corpus.n_words)
        if self.route == "rotation" and int(self.n_components) > most:
            raise UsageError(
                f"n_components: expected at most {most} with route='rotation' and {corpus.n_words} features, got "
                f"{self.n_components}"
            )

    def program(self, run: Run) -> MixtureState:
        """Fit the model by the passes of a run and return its state."""
        d, shares, auto = run.corpus.n_words, None, self.n_components == "auto"
        most = min(MOST_COMPONENTS, d, max(1, run.corpus.n_rows // 2)) if auto else int(self.n_components)
        if self.route == "rotation":
            most = min(most, most_components(d))
        # The plan knows only an upper bound of the number of components.
        whole = takes_whole(d, most, self.n_oversamples, self.n_power_iter)
        rotates = self.route == "rotation"
        k, third = most, rotates or self._takes_third(run, most, whole)
        if auto:
            k, shares = self._count(run.part("components"), most, whole)
        n_columns = min(d, n_directions(k)) + 1 if rotates else k
        whole = takes_whole(d, n_columns, self.n_oversamples, self.n_power_iter) if rotates else whole
        basis = self._basis(run, n_columns, whole, None, self._moment_passes(d, n_columns, whole, third))
        positions = kept_positions(run.corpus.n_documents, self._seed)
        pass_ = RowMomentsPass(
            d, basis=basis.matrix, origin=basis.mean, rank=basis.rank, third=third, kept=run.put(positions),
            n_kept=len(positions),
        )  # fmt: skip
        load = partial(load_moments, run.scan(pass_).directory)
        offset = run.apply(offset_of, basis, out=unknown())
        common = self.variances == "common"
        if third:
            function, last = (recover_by_rotation, self.n_rotations) if rotates else (recover, auto)
            found = run.small(
                function, load, k, d, common, self.decomposition, self._seed, offset, last,
                where=self.decompose_on, out=Found.upto(basis.rank, k, len(positions)),
            )  # fmt: skip
        else:
            found = recover_by_contractions(
                run, pass_, k, common, self._seed, offset, auto, self.power_steps, self.decompose_on, load
            )
        out = Gaussians(unknown(d, 1), unknown(k, d), unknown(k), unknown(k))
        of = run.apply(gaussians_of, basis, found, out=out)
        if self.n_em_iter:
            of = run.apply(widened, of, found, out=of)

        def expect(of: Gaussians) -> tuple[Any, ...]:
            stored = stored_gaussians(run, of, basis.mean)
            return run.scan(RowEMPass(d, of=stored, n_components=found.n_components)), of, found, common

        of, likelihoods = iterate(run, of, self.n_em_iter, expect, maximise)
        state: MixtureState = run.apply(
            mixture_state, basis, found, of, likelihoods, shares, run.corpus.n_rows, out=unknown()
        )
        return state

    def _takes_third(self, run: Run, k: int, whole: bool) -> bool:
        """Return whether the whole third moment is added up, rather than contractions of it."""
        (pass_,) = self._moment_passes(run.corpus.n_words, k, whole, True)
        return settled_third_moment(run, self.third_moment, self.decomposition, pass_) == "full"

    def _moment_passes(self, d: int, k: int, whole: bool, third: bool) -> list[RowMomentsPass]:
        """Return the passes that add up moments in a basis for k components, without arrays."""
        moments = RowMomentsPass(d, rank=basis_rank(d, k, self.n_oversamples, whole), third=third)
        return [moments] if third else [moments, *contraction_passes(moments, k, self.power_steps)]

    def _basis(
        self, run: Run, k: int, whole: bool, selection: Selection | None, passes: Sequence[RowMomentsPass]
    ) -> Basis:
        options = (self.n_oversamples, self.n_power_iter, self._seed)
        return row_basis(run, run.corpus.n_words, k, *options, whole, passes, selection)

    def _count(self, run: Run, most: int, whole: bool) -> tuple[int, Any]:
        """Return the number of components that random halves of the rows agree on."""
        d = run.corpus.n_words
        selections = halves(self._seed)
        pairs = RowMomentsPass(d, rank=basis_rank(d, most, self.n_oversamples, whole), third=False)
        basis = self._basis(run, most, whole, selections[0], [pairs])
        directories = tuple(
            run.scan(
                replace(pairs, selection=half, basis=basis.matrix, origin=basis.mean, rank=basis.rank)
            ).directory
            for half in selections
        )
        return run.apply(agreed_count, directories, d, most, out=(most, unknown()))

    # Use

    def transform(self, X: Any) -> np.ndarray:
        """Return the coordinates of rows in an orthonormal basis of the span of the means.

        Parameters
        ----------
        X : array_like of shape (n_rows, n_features)

        Returns
        -------
        ndarray of shape (n_rows, n_coordinates), float64
            Rows are not centred. The basis consists of the right singular vectors of ``means_``, by descending
            singular value; ``n_coordinates`` is the rank of the means, ``n_found`` if they are linearly
            independent.

        Raises
        ------
        UsageError
            If the number of features differs from that of the fit.
        InputError
            If a value is not finite.
        """
        X = rows_in_memory(self, X)
        with one_blas_thread():
            return np.asarray(X @ self._directions().T)

    def _directions(self) -> np.ndarray:
        """Return the right singular vectors of the means, as rows."""
        values, right = np.linalg.svd(self.means_, full_matrices=False)[1:]
        basis = right[values > 1e-12 * max(float(values[0]), np.finfo(float).tiny)]
        signs = np.sign(basis[np.arange(len(basis)), np.abs(basis).argmax(axis=1)])
        return np.asarray(basis * signs[:, None])

    @property
    def _n_features_out(self) -> int:
        check_is_fitted(self)
        with one_blas_thread():
            return len(self._directions())

    def assign(self, run: Run) -> dict[str, StoredRows]:
        """Store the component and the posterior probabilities of every row of the corpus of a run.

        Parameters
        ----------
        run : Run

        Returns
        -------
        dict of str to StoredRows
            ``components`` (n,), int32, and ``probabilities`` (n, n_found), float32, along rows.
        """
        check_is_fitted(self)
        of = self._gaussians()
        stored = stored_gaussians(run, of, run.put(of.origin))
        return run.scan(RowAssignPass(self.n_features_in_, of=stored, n_components=len(self.weights_))).rows

    def summary(self) -> dict[str, Any]:
        check_is_fitted(self)
        values = {"weights": self.weights_, "variances": self.variances_}
        return super().summary() | {name: significant(found) for name, found in values.items()}

    def pictures(self) -> list[dict[str, Any]]:
        """Return the pictures of a report: clusters in their leading plane, weights, and the spectrum.

        Returns
        -------
        list of dict
            JSON values, with the keys ``kind``, ``title``, ``caption`` and those of the kind: ``x``, ``y``,
            ``group`` and ``labels`` of a scatter plot, ``names`` and ``values`` of bars, ``x`` and ``ys`` of
            lines.
        """
        check_is_fitted(self)
        return mixture_pictures(self)

    def _gaussians(self) -> Gaussians:
        origin = np.ascontiguousarray(self.center_[:, None])
        return Gaussians(origin, self.means_ - self.center_, self.weights_, self.variances_)

    def _mixture(self) -> Posterior:
        return Posterior(self._gaussians())

    def _n_parameters(self) -> int:
        k, d = (int(size) for size in self.means_.shape)
        return k * d + k - 1 + (1 if self.variances == "common" else k)
