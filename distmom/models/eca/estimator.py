"""Factors behind exchangeable real-valued views, by excess correlation analysis.

Source: Anandkumar, Foster, Hsu, Kakade, Liu, "A Spectral Algorithm for Latent Dirichlet Allocation": Algorithms
1 and 2 for independent factors, Algorithms 3 and 5 and remark 8 for Dirichlet-distributed shares. With M2 and
M3 the moments that are diagonal in the factors (`distmom.moments.documents.dirichlet`; central ones for
independent factors), Q a basis of the range of M2 and W the whitening matrix in it, the columns of M = W'Q'O
are orthonormal and diagonalise M3.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.corpus import ViewCorpus
from distmom.digits import significant
from distmom.engine import Engine, PassResult, StoredArray
from distmom.errors import InputError, UsageError
from distmom.linalg import Whitening
from distmom.linalg.factors import METHODS, Factors
from distmom.models.eca.cumulants import alpha0_of_views, load_fourth, warn_of_noise
from distmom.models.eca.recovery import group_factors, recover_factors
from distmom.moments.views.fourth import ViewFourthPass, pair_directions
from distmom.moments.views.moments import ViewMeanPass, ViewMomentsPass
from distmom.spectral.capabilities import Capability
from distmom.spectral.estimator import SpectralEstimator, layer_parameter, place_parameter
from distmom.spectral.inputs.checks import check_n_features
from distmom.spectral.inputs.tables import NAMED_COLUMNS, check_column_names, column_names
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.saved.fields import array, value
from distmom.spectral.seeds import Seed, seed_parameter
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.factors import (
    N_PAIRS,
    ORDERS,
    PRIORS,
    White,
    admissible,
    decompose_cumulants,
    moment_alpha0,
    separation,
)
from distmom.spectral.steps.views import basis_of_views, load_views, mean_of_views, whiten_views


@dataclass(frozen=True)
class FactorState:
    """The state of a fitted model of factors.

    Attributes
    ----------
    components, unmixing : ndarray of shape (k, d)
    mean : ndarray of shape (d,)
    skewness, kurtosis : ndarray of shape (k,)
        Kurtoses are NaN where only third moments are used.
    alpha, proportions : ndarray of shape (k,) or (0,)
        Empty for independent factors.
    diagnostics : dict
    """

    components: np.ndarray = array("k", "d")
    unmixing: np.ndarray = array("k", "d")
    mean: np.ndarray = array("d")
    skewness: np.ndarray = array("k")
    kurtosis: np.ndarray = array("k", finite=False)
    alpha: np.ndarray = array("k or none*")
    proportions: np.ndarray = array("k or none*")
    diagnostics: dict[str, Any] = value()


class ECA(SpectralEstimator):
    """Independent factors, or Dirichlet-distributed shares, behind exchangeable views of documents.

    A document (or an image) has views (sentences, patches) that are independent given its factors h, with
    ``E[x | h] = O h``; no other assumption on their noise is made.

    Attributes
    ----------
    components_ : ndarray of shape (n_found, n_features)
        Columns of O as rows. For independent factors they are canonical: each is multiplied by the standard
        deviation of its factor, with the sign of positive skewness. With the Dirichlet distribution they are
        columns of O.
    skewness_ : ndarray of shape (n_found,)
        Skewness of the factors; with the Dirichlet distribution the effective skewness (appendix C).
    kurtosis_ : ndarray of shape (n_found,)
        Excess kurtosis likewise; NaN with ``orders="3"``.
    mean_ : ndarray of shape (n_features,)
        Mean of the views.
    unmixing_ : ndarray of shape (n_found, n_features)
        Least-squares factors are the product of this matrix with a view.
    proportions_ : ndarray of shape (n_found,)
        ``alpha_i / alpha0`` with the Dirichlet distribution; otherwise empty.
    alpha_ : ndarray of shape (n_found,)
        Parameters of the Dirichlet distribution; otherwise empty.
    diagnostics_ : dict
        Eigenvalues, noise levels and checks of the fit (see docs/eca.md).
    n_documents_ : int
        Number of documents with enough views.
    n_features_in_ : int
        Number of features of a view.

    Examples
    --------
    >>> import numpy as np
    >>> from distmom.simulate.views import poisson_sentences
    >>> O = np.random.default_rng(0).gamma(0.3, size=(15, 3))
    >>> views = poisson_sentences(O, [1.0, 0.5, 2.0], 2000, 5)
    >>> model = ECA(3).fit(views.X, groups=views.groups)
    >>> model.components_.shape, model.transform(views.X, views.groups).shape
    ((3, 15), (2000, 3))
    """

    State = FactorState
    reads = ("dense", "csr")
    capabilities = frozenset({Capability.VIEWS, Capability.FACTORS})
    shown = ("n_groups", "n_dropped_groups", "n_found", "gap", "noise_level", "alpha0")

    n_components: int = parameter("Number of factors.", default=10, least=1, kw_only=False)
    orders: str = parameter(
        "Find factors by their skewness (3), by their excess kurtosis (4), or by both together (both). A "
        "document needs three views, or four with 4 and both.", default="3", choices=tuple(ORDERS),
    )  # fmt: skip
    prior: str = parameter("Distribution of the factors.", default="independent", choices=PRIORS)
    alpha0: float | str = parameter(
        "Sum of the Dirichlet parameters; 0 means one factor per document. auto finds the value for which the "
        "third moment decomposes best. Used with prior=dirichlet only.",
        default=1.0, kind=float, least=0, auto=True,
    )  # fmt: skip
    decomposition: str = parameter(
        "Diagonalise all contractions of the moments together (joint), or use the eigenvectors of "
        "contractions with single random directions (single), as Algorithms 1 and 2 do.",
        default="joint", choices=tuple(METHODS),
    )  # fmt: skip
    n_directions: int = parameter(
        "Number of random directions with decomposition=single.", default=10, least=1
    )
    n_oversamples: int = parameter("Columns of the sketch beyond the factors.", default=10, least=0)
    n_power_iter: int = parameter("Power passes of the sketch.", default=2, least=0)
    layer: str | None = layer_parameter()
    decompose_on: str = place_parameter()
    random_state: Seed = seed_parameter()

    @property
    def min_views(self) -> int:
        """Smallest number of views of a document that enters the moments."""
        return max(3, *ORDERS[self.orders])

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Fit the model to rows in memory or in a file.

        Parameters
        ----------
        X : array, sparse matrix or path of shape (n_rows, n_features)
            Views, as in `ViewCorpus`.
        y : None
            Ignored.
        groups : array of shape (n_rows,) or path
            Document of every row. Required.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If a parameter is invalid, or ``groups`` is None.
        InputError
            If a value is not finite, the groups do not match the rows, or no document has enough views.
        NumericalError
            If the moments carry fewer factors than requested.
        """
        if groups is None:
            raise UsageError(
                "ECA.fit: groups: expected one per row of X, given by name (groups=...), got none"
            )
        corpus = ViewCorpus(X, groups)
        if (names := column_names(X)) is not None:
            corpus.vocabulary, corpus.settings = names, {NAMED_COLUMNS: True}
        return self.fit_corpus(corpus)

    def fit_transform(self, X: Any, y: Any = None, *, groups: Any = None) -> np.ndarray:
        """Fit the model to rows and return the factors of their documents (see `transform`)."""
        return self.fit(X, groups=groups).transform(X, groups)

    def check(self, corpus: Any) -> None:
        """Check that the parameters are valid and suit a corpus; else a UsageError or InputError."""
        super().check(corpus)
        if any(getattr(shard, "continues", False) for shard in corpus.shards):
            raise UsageError(
                f"ECA: expected documents that fit into a shard, got one of {corpus.largest} views; "
                "write the corpus with larger shards"
            )
        if self._moment_alpha0 is None and self.n_components < 2:
            raise UsageError(f"n_components: expected at least 2 with alpha0='auto', got {self.n_components}")
        if self.n_components > corpus.n_words:
            raise UsageError(
                f"n_components={self.n_components} is more than the {corpus.n_words} features of the views"
            )
        if corpus.largest < self.min_views:
            raise InputError(
                f"ECA with orders={self.orders!r}: expected documents of at least {self.min_views} views, "
                f"got at most {corpus.largest} in a document"
            )

    def program(self, run: Run) -> FactorState:
        """Fit the model by the passes of a run and return its state."""
        d, k = run.corpus.n_words, self.n_components
        counted = run.scan(ViewMeanPass(d, min_views=self.min_views))
        mean = run.apply(mean_of_views, counted, out=unknown(d))
        basis = basis_of_views(
            run, run.rows(self._origin, mean, True, out=unknown(d)), k + self.n_oversamples, self.n_power_iter,
            min_views=self.min_views, seed=self._seed,
        )  # fmt: skip
        origin = run.rows(self._origin, mean, False, out=unknown(d))
        fields = {
            "min_views": self.min_views, "origin": origin, "basis": basis.matrix, "rank": basis.rank,
            "seed": self._seed,
        }  # fmt: skip
        load = partial(load_views, run.scan(ViewMomentsPass(d, **fields)).directory)
        alpha0 = self._moment_alpha0
        if alpha0 is None:
            alpha0 = run.small(alpha0_of_views, load, k, where=self.decompose_on, out=unknown())
        white = run.small(
            whiten_views, load, k, alpha0, basis.noise, where=self.decompose_on,
            out=White.upto(basis.rank, k),
        )  # fmt: skip
        fourth: Callable[[], Any] = _nothing
        if self.orders != "3":
            left, right = pair_directions(k, max(N_PAIRS, k), self._seed)
            pass_ = ViewFourthPass(
                d, **fields, whitener=run.put(white.whitening.W), left=run.put(left), right=run.put(right),
                n_states=k, n_pairs=left.shape[1],
            )  # fmt: skip
            fourth = partial(load_fourth, run.scan(pass_).directory, left, right)
        options = {"n_directions": self.n_directions, "random_state": self._seed}
        found = run.small(
            decompose_cumulants, fourth, white, alpha0, ORDERS[self.orders], self.decomposition, options,
            where=self.decompose_on, out=unknown(),
        )  # fmt: skip
        state: FactorState = run.apply(
            self._assembled, counted, mean, basis, white, found, alpha0, out=unknown()
        )
        return state

    def _assembled(
        self,
        counted: PassResult,
        mean: np.ndarray,
        basis: Basis,
        white: White,
        found: Factors,
        alpha0: float,
    ) -> FactorState:
        warn_of_noise(white.whitening)
        kept = admissible(found, alpha0, self.n_components, self.orders)
        recovered = recover_factors(basis, white, kept, mean, alpha0)
        n_groups, n_dropped = (int(n) for n in counted.sums["groups"])
        return FactorState(
            components=recovered.components,
            unmixing=recovered.unmixing,
            mean=mean,
            skewness=recovered.skewness,
            kurtosis=recovered.kurtosis,
            alpha=recovered.alpha,
            proportions=recovered.proportions,
            diagnostics={
                **_spectrum(white.whitening, self.n_components),
                **separation(kept),
                **recovered.diagnostics,
                **({"alpha0": alpha0} if math.isfinite(alpha0) else {}),
                "n_groups": n_groups,
                "n_dropped_groups": n_dropped,
            },
        )

    @property
    def _moment_alpha0(self) -> float | None:
        """The alpha0 of the moments: infinite for central moments, and None if it is to be found."""
        is_unknown = self.prior == "dirichlet" and isinstance(self.alpha0, str)
        return None if is_unknown else moment_alpha0(self.prior, self.alpha0)

    def _origin(self, engine: Engine, mean: np.ndarray, sketch: bool) -> StoredArray | None:
        """Return the vector that passes subtract from every view; None for zero.

        With the mean times ``1 - (alpha0 + 1)^-1/2`` subtracted, the plain second moment equals the second
        moment corrected for alpha0, so that a sketch finds its range and its noise; without alpha0, the range
        is that of the second moment about zero. The other moments of a Dirichlet distribution are taken about
        zero and corrected; central moments do not depend on the origin, and lose no digits about the mean.
        """
        alpha0 = self._moment_alpha0
        if alpha0 is not None and math.isinf(alpha0):
            return engine.put(mean)
        if alpha0 is None or not sketch:
            return None
        return engine.put(mean * (1.0 - 1.0 / math.sqrt(alpha0 + 1.0)))

    def _describe(self, corpus: Any) -> None:
        # The columns of a file of views have no names.
        self.vocabulary_ = list(getattr(corpus, "vocabulary", ()))
        self.label_names_, self.settings_ = [], dict(getattr(corpus, "settings", {}))
        self.n_features_in_ = corpus.n_words
        self._name_columns()

    def _keep(self, state: FactorState) -> None:
        super()._keep(state)
        self.n_features_in_ = len(state.mean)
        self.n_documents_ = int(state.diagnostics["n_groups"])

    def _sizes(self) -> dict[str, int]:
        return {}

    def summary(self) -> dict[str, Any]:
        check_is_fitted(self)
        values = {"skewness": self.skewness_, "kurtosis": self.kurtosis_, "proportions": self.proportions_}
        return super().summary() | {
            name: significant(value)
            for name, value in values.items()
            if len(value) and np.isfinite(value).all()
        }

    # Using a fitted model

    def transform(self, X: Any, groups: Any) -> np.ndarray:
        """Return the least-squares factors of documents, from the mean of the views of each.

        Parameters
        ----------
        X : array, sparse matrix or path of shape (n_rows, n_features)
        groups : array of shape (n_rows,) or path
            Document of every row. One view per document is enough.

        Returns
        -------
        ndarray of shape (n_groups, n_found), float64
            Documents in the order in which they first appear. Independent factors have mean zero and variance one
            over the fitted documents; shares are neither clipped nor normalised.

        Raises
        ------
        UsageError
            If the number or the names of the features differ from those of the fit.
        InputError
            If a value is not finite, or the groups do not match the rows.
        """
        check_is_fitted(self, "components_")
        if not isinstance(X, str | os.PathLike):
            check_column_names(self, X)
        corpus = ViewCorpus(X, groups)
        check_n_features(corpus.n_words, self.n_features_in_, type(self).__name__)
        origin = self.factor_origin()
        blocks = (corpus.read_shard(index) for index in range(len(corpus.shards)))
        found = [group_factors(block, self.unmixing_, origin) for block in blocks]
        return np.concatenate(found) if found else np.zeros((0, len(origin)))

    def factor_origin(self) -> np.ndarray:
        """Return the origin of least-squares factors, (n_found,): zero for shares, else their means."""
        check_is_fitted(self)
        if len(self.alpha_):
            return np.zeros(len(self.unmixing_))
        return np.asarray(self.unmixing_ @ self.mean_)


def _nothing() -> None:
    return None


def _spectrum(white: Whitening, k: int) -> dict[str, Any]:
    return {
        "spectrum": [float(x) for x in white.eigenvalues],
        "gap": float(white.gap),
        "smallest_eigenvalue": float(white.eigenvalues[-1]),
        "noise_level": float(white.noise),
        "n_components": k,
    }
