"""Independent component analysis, by the fourth cumulants of dense rows.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models" (JMLR
2014), theorem 3.4 (see `distmom.models.ica.recovery`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.blas import one_blas_thread
from distmom.digits import significant
from distmom.engine import StoredRows
from distmom.errors import NumericalError, UsageError
from distmom.models.ica.fitting import (
    IcaState,
    Projection,
    contrast_basis,
    covariance_projection,
    full_projection,
    ica_state,
    load_fourth,
    narrowed,
    sketched_projection,
)
from distmom.models.ica.pictures import pictures_of
from distmom.models.ica.recovery import CONVERGED, METHODS, Found, checked, recover, stepped
from distmom.moments.rows.gaussian import RowCovariancePass, RowMomentsPass, RowSketchPass
from distmom.moments.rows.ica import RowContrastPass, RowFourthPass, RowScorePass, n_pairs
from distmom.moments.views.fourth import pair_directions
from distmom.spectral.bases import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from distmom.spectral.capabilities import Capability
from distmom.spectral.estimator import SpectralEstimator, layer_parameter, place_parameter
from distmom.spectral.inputs.checks import check_n_rows, checked_dense
from distmom.spectral.inputs.tables import corpus_of_rows
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.seeds import Seed, seed_parameter
from distmom.spectral.steps.row_basis import sketched_basis, takes_whole
from distmom.spectral.steps.sources import sources_in_memory, stored_sources

NOISES = ("none", "isotropic", "gaussian")
MOMENTS = ("auto", "full", "slices")
#: components up to which "auto" adds up the whole fourth moment
MOST_WHOLE = 40
#: pairs of directions with which the fourth moment is contracted beyond that, at least, and per component
LEAST_PAIRS, PAIRS_PER_COMPONENT = 66, 2
#: columns of rows up to which whole d x d matrices are added up with noise="gaussian"
MOST_COLUMNS = 2000


class ICA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, SpectralEstimator):
    """Independent components of dense rows, found by their fourth cumulants.

    A row is ``x = m + A h + z`` with independent sources h of mean zero and variance one, at most one of which is
    Gaussian, and Gaussian noise z, which may be absent. Excess kurtoses may have either sign.

    Attributes
    ----------
    components_ : ndarray of shape (n_found, n_features)
        Unmixing: the sources of a row are the product of this matrix with the row minus ``mean_``. Components
        are in the order of descending magnitude of ``kurtosis_``.
    mixing_ : ndarray of shape (n_features, n_found)
        A; the entry of largest magnitude of every column is positive.
    mean_ : ndarray of shape (n_features,)
        Mean of the rows.
    kurtosis_ : ndarray of shape (n_found,)
        Excess kurtosis of the sources; 0 for a Gaussian source.
    diagnostics_ : dict
        ``off_diagonal_share`` is the share of the fourth cumulant that is between different sources,
        ``kurtosis_level`` the kurtosis up to which a source is not distinguished from a Gaussian one,
        ``explained`` the share of the variance of the rows in the space of the components, ``spectrum`` the
        leading eigenvalues of the covariance, and, with a sketch, ``basis_error`` how far its basis is from their
        eigenvectors (see docs/ica.md).
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> sources = np.c_[rng.uniform(-1, 1, 5000), rng.laplace(size=5000)]
    >>> model = ICA(2).fit(sources @ np.array([[2.0, 1.0], [1.0, 3.0]]))
    >>> [round(float(x)) for x in np.sign(model.kurtosis_)]
    [1, -1]
    """

    State = IcaState
    reads = ("dense",)
    capabilities = frozenset({Capability.ROWS, Capability.COMPONENTS})
    shown = (
        "n_components",
        "explained",
        "basis_error",
        "noise_variance",
        "off_diagonal_share",
        "kurtosis_level",
        "n_gaussian",
        "converged",
    )

    n_components: int = parameter("Number of components.", default=10, least=1, kw_only=False)
    noise: str = parameter(
        "Assumption about Gaussian noise: there is none (none), it has the same variance along all axes "
        "(isotropic), or it has any covariance (gaussian).", default="none", choices=NOISES,
    )  # fmt: skip
    decomposition: str = parameter(
        "Method for the fourth cumulant: joint diagonalisation of all contractions (joint), the power method "
        "(power; with noise=gaussian for kurtoses of one sign only), or eigenvectors of two contractions "
        "(pencil).",
        default="joint", choices=METHODS,
    )  # fmt: skip
    fourth_moment: str = parameter(
        "Add up the whole fourth moment (full), or contractions with random pairs of directions (slices); auto "
        f"uses slices for more than {MOST_WHOLE} components.", default="auto", choices=MOMENTS,
    )  # fmt: skip
    n_refine: int = parameter(
        "Largest number of quasi-maximum likelihood steps after the moments, one pass each; they end when the "
        "components no longer change. Not used with noise.", default=20, least=0,
    )  # fmt: skip
    gaussian: str = parameter(
        "What to do if components cannot be distinguished from Gaussian ones: raise an error (refuse), or leave "
        "them out (drop).", default="refuse", choices=("refuse", "drop"),
    )  # fmt: skip
    n_oversamples: int = parameter("Columns of the sketch beyond the components.", default=10, least=0)
    n_power_iter: int = parameter(
        "Power passes of the sketch; with noise=gaussian, passes that improve the space of the components.",
        default=2, least=0,
    )  # fmt: skip
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
            If the rows span fewer directions than there are components, two or more components are Gaussian as far
            as the rows show, or the values are so large, so small or so far from zero that moments are inexact.
        """
        return self.fit_corpus(corpus_of_rows(X, checked_dense(X, 2)))

    def check(self, corpus: Any) -> None:
        """Check that the parameters are valid and suit a corpus; raise a UsageError otherwise."""
        super().check(corpus)
        d, k = corpus.n_words, self.n_components
        most = d - 1 if self.noise == "isotropic" else d
        features = "one less than the number of features" if most < d else "the number of features"
        if k > most:
            raise UsageError(f"n_components: expected at most {most}, {features}, got {k}")
        check_n_rows(corpus.n_rows, k)
        if self.noise == "gaussian" and d > MOST_COLUMNS:
            raise UsageError(
                f"noise: expected none or isotropic with more than {MOST_COLUMNS} features, got 'gaussian' with "
                f"{d}, which needs matrices of that size"
            )
        if self.decomposition == "power" and not self._whole:
            raise UsageError(
                "decomposition: expected joint or pencil with slices of the fourth moment, got 'power'; "
                "use fourth_moment='full'"
            )

    @property
    def _n_directions(self) -> int:
        """Number of pairs of directions of the slices."""
        return max(LEAST_PAIRS, PAIRS_PER_COMPONENT * self.n_components)

    @property
    def _whole(self) -> bool:
        k = self.n_components
        if self.fourth_moment == "auto":
            return k <= MOST_WHOLE
        return self.fourth_moment == "full" or self._n_directions >= n_pairs(k)

    def program(self, run: Run) -> IcaState:
        """Fit the model by the passes of a run and return its state."""
        d, k, any_noise = run.corpus.n_words, self.n_components, self.noise == "gaussian"
        projection = self._any_noise(run) if any_noise else self._whitened(run)
        left, right = (None, None) if self._whole else pair_directions(k, self._n_directions, self._seed)
        pass_ = RowFourthPass(
            d, matrix=projection.matrix, origin=projection.origin, rank=k, left=_put(run, left),
            right=_put(run, right), n_directions=0 if left is None else left.shape[1],
        )  # fmt: skip
        load = partial(load_fourth, run.scan(pass_).directory)
        found = run.small(
            recover, load, None if any_noise else projection.noise, self.decomposition, self._seed,
            left, right, where=self.decompose_on, out=Found.upto(k),
        )  # fmt: skip
        found = run.apply(checked, found, any_noise, self.gaussian == "drop", out=found)
        if self.noise == "none":
            for _ in range(self.n_refine):
                found = run.when(partial(_moves, found), self._refined, projection, found, otherwise=found)
        state: IcaState = run.apply(ica_state, projection, found, self.gaussian == "drop", out=unknown())
        return state

    def _whitened(self, run: Run) -> Projection:
        """Project on the leading eigenvectors of the covariance.

        The whole covariance takes one pass. Where there are few columns, it also takes fewer operations than all
        passes of a sketch together.
        """
        d, k, isotropic = run.corpus.n_words, self.n_components, self.noise == "isotropic"
        r = min(k + self.n_oversamples, d)
        out = Projection.upto(d, k)
        if takes_whole(d, k, self.n_oversamples, self.n_power_iter):
            return run.rows(covariance_projection, run.scan(RowCovariancePass(d)), k, isotropic, out=out)
        sketch = RowSketchPass(d, n_columns=r, seed=self._seed)
        basis = sketched_basis(run, sketch, self.n_power_iter, k)
        pass_ = RowMomentsPass(d, basis=basis.matrix, origin=basis.mean, rank=basis.rank, third=False)
        return run.rows(sketched_projection, run.scan(pass_), basis, k, isotropic, out=out)

    def _any_noise(self, run: Run) -> Projection:
        """Project on the range of the fourth cumulant, which Gaussian noise does not change."""
        d, k = run.corpus.n_words, self.n_components
        scanned = run.scan(RowCovariancePass(d))
        full = run.rows(full_projection, scanned, k, out=Projection.upto(d, d))
        found: Any = None
        if k < d:
            rank, basis = full.back.shape[1], None
            for _ in range(self.n_power_iter + 1):
                pass_ = RowContrastPass(
                    d, matrix=full.matrix, origin=full.origin, rank=rank, basis=_put(run, basis),
                    n_columns=0 if basis is None else k,
                )  # fmt: skip
                found = run.apply(contrast_basis, run.scan(pass_), basis, k, out=(unknown(d, k), unknown()))
                basis = found[0]
        return run.rows(narrowed, full, found, out=Projection.upto(d, k))

    def _refined(self, run: Run, projection: Projection, found: Found) -> Found:
        """Make a step of quasi-maximum likelihood."""
        pass_ = RowScorePass(
            run.corpus.n_words, matrix=projection.matrix, origin=projection.origin, rank=self.n_components,
            rotation=run.put(found.unmixing),
        )  # fmt: skip
        return run.apply(_stepped, run.scan(pass_), found, out=found)

    # Use

    def transform(self, X: Any) -> np.ndarray:
        """Return the sources of rows: the unmixing ``components_`` times every row minus the mean.

        Parameters
        ----------
        X : array_like of shape (n_rows, n_features)

        Returns
        -------
        ndarray of shape (n_rows, n_found), float64
            Of mean zero over the fitted rows, and of variance one unless the noise is isotropic, in which case the
            noise that is left in the estimates adds to it.

        Raises
        ------
        UsageError
            If the number of features differs from that of the fit.
        InputError
            If a value is not finite.
        """
        check_is_fitted(self)
        return sources_in_memory(self, X, self.components_)

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Return the rows without noise that have the given sources.

        Parameters
        ----------
        X : array_like of shape (n_rows, n_found)
            Sources.

        Returns
        -------
        ndarray of shape (n_rows, n_features), float64

        Raises
        ------
        UsageError
            If the number of sources differs from that of the fit.
        InputError
            If a value is not finite.
        """
        check_is_fitted(self)
        X = checked_dense(X, 0)
        if X.shape[1] != len(self.components_):
            raise UsageError(f"X: expected {len(self.components_)} sources, got {X.shape[1]}")
        with one_blas_thread():
            return np.asarray(X @ self.mixing_.T + self.mean_)

    def without_noise(self, covariance: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the mixing matrix and the kurtoses of the sources without their noise, whose covariance is known.

        With ``noise="gaussian"`` the directions of the columns of A are found without knowledge of the noise,
        but not their lengths: a source with its noise has variance one, of which the noise takes the share
        ``(B C B')_ii``, for the unmixing B and the covariance C of the noise.

        Parameters
        ----------
        covariance : array_like of shape (n_features, n_features)
            C.

        Returns
        -------
        mixing : ndarray of shape (n_features, n_found)
        kurtosis : ndarray of shape (n_found,)

        Raises
        ------
        UsageError
            If the model was fitted with another ``noise``, or the covariance is not a symmetric matrix of this
            size.
        NumericalError
            If the noise has as much variance along a source as the rows.
        """
        check_is_fitted(self)
        if self.noise != "gaussian":
            raise UsageError(f"noise: expected a model fitted with 'gaussian', got {self.noise!r}")
        C, d = np.asarray(covariance, np.float64), self.n_features_in_
        if C.shape != (d, d) or not np.allclose(C, C.T):
            raise UsageError(
                f"covariance: expected a symmetric matrix of shape {(d, d)}, got shape {C.shape}"
            )
        shares = 1.0 - np.einsum("id,de,ie->i", self.components_, C, self.components_)
        if not (shares > 0.0).all():
            raise NumericalError(
                f"the noise has as much variance as the rows along {int((shares <= 0.0).sum())} of {len(shares)} "
                "sources"
            )
        return self.mixing_ * np.sqrt(shares), self.kurtosis_ / shares**2

    def assign(self, run: Run) -> dict[str, StoredRows]:
        """Store the sources of every row of the corpus of a run.

        Parameters
        ----------
        run : Run

        Returns
        -------
        dict of str to StoredRows
            ``sources`` (n, n_found), float64, along rows.
        """
        check_is_fitted(self)
        return {"sources": stored_sources(run, self.mean_, self.components_)}

    def summary(self) -> dict[str, Any]:
        return super().summary() | {"kurtosis": significant(self.kurtosis_)}

    def pictures(self) -> list[dict[str, Any]]:
        """Return the pictures of a report: kurtoses, the mixing, and the spectrum of the covariance.

        Returns
        -------
        list of dict
            JSON values, as for `SphericalMixture.pictures`.
        """
        check_is_fitted(self)
        return pictures_of(self)


def _put(run: Run, array: Any) -> Any:
    return None if array is None else run.put(array)


def _moves(found: Found) -> bool:
    return found.moved > CONVERGED


def _stepped(scanned: Any, found: Found) -> Found:
    return stepped(scanned.sums, found)
