"""Latent linear networks: variables that drive each other and the columns of rows, by TMLearn.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), section 4: algorithm TMLearn, theorem 4.1 and remark 4.3, and section 5 for the
noise of a single view (see `distmom.linalg.expansion.latent_networks` and `distmom.linalg.one_view`).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.blas import one_blas_thread
from distmom.corpus.views import layout_of
from distmom.engine import StoredRows
from distmom.errors import InputError, UsageError
from distmom.models.network.fitting import (
    NetworkState,
    OneView,
    network_of_rows,
    network_of_views,
    one_view,
    scale_of_views,
    variances_of_views,
)
from distmom.moments.rows.gaussian import RowCovariancePass
from distmom.moments.rows.one_view import OneViewPass
from distmom.moments.views.moments import ViewMeanPass, ViewMomentsPass
from distmom.spectral.bases import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from distmom.spectral.capabilities import Capability
from distmom.spectral.estimator import SpectralEstimator, layer_parameter, place_parameter
from distmom.spectral.inputs.checks import checked_dense
from distmom.spectral.inputs.tables import corpus_of_rows
from distmom.spectral.parameters import parameter
from distmom.spectral.pictures import matrix
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.seeds import Seed, seed_parameter
from distmom.spectral.steps.factors import White
from distmom.spectral.steps.sources import sources_in_memory, stored_sources
from distmom.spectral.steps.views import basis_of_views, load_views, mean_of_views, whiten_views

#: views that a group needs
MIN_VIEWS = 3
#: largest number of columns of one view: matrices of this size are added up and decomposed
MOST_COLUMNS = 2000
#: lower bound of the variance of the noise of a column in its weight, as a share of the variance of the column
LEAST_NOISE = 1e-3
#: least magnitude of a weight that a summary shows
SHOWN_WEIGHT = 0.05


class LatentNetwork(ClassNamePrefixFeaturesOutMixin, TransformerMixin, SpectralEstimator):
    """Linear network of latent variables, and their sparse loadings on the columns of rows.

    A row is ``x = m + A h + epsilon`` with ``h = Lambda h + eta``: the nodes h of a directed acyclic graph have
    independent skewed noises eta, and few columns depend on each node. Either the noises epsilon of the columns
    are independent (one view), or groups of at least three rows share the same h and their noise is arbitrary
    (several views).

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Loadings: rows are the columns of A. Nodes have variance one, and the largest loading of each is positive.
    adjacency_ : ndarray of shape (n_components, n_components)
        Lambda: entry (i, j) is the weight of node j in node i.
    order_ : list of int
        Nodes, parents before their children.
    noise_share_ : ndarray of shape (n_components,)
        Share of the variance of every node that its noise eta accounts for; 1 for a node without parents.
    correlations_ : ndarray of shape (n_components, n_components)
        Correlations of the nodes.
    skewness_ : ndarray of shape (n_components,)
        Magnitudes of the skewness of the noises eta, descending; not in the order of the nodes.
    noise_variance_ : ndarray of shape (n_features,)
        Variances of the noises epsilon; zero where they were not estimated.
    mean_ : ndarray of shape (n_features,)
        Mean of the rows.
    diagnostics_ : dict
        ``against`` is the share of the weights that was against the order and was set to zero; ``zeros``,
        ``leaks`` and ``exact`` state how well every column of the loadings is determined, as for
        `SparseTopics`; ``spectrum`` has the eigenvalues of the covariance without noise, ``off_diagonal_share``
        the share of the estimated noise of one view that is off the diagonal (docs/network.md).
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> h = rng.exponential(size=(20000, 2)) - 1
    >>> h[:, 1] += 0.8 * h[:, 0]
    >>> X = h @ np.kron(np.eye(2), np.ones((1, 6))) + 0.5 * rng.standard_normal((20000, 12))
    >>> model = LatentNetwork(2).fit(X)
    >>> bool(abs(model.adjacency_.max() - 0.8 / np.sqrt(1.64)) < 0.05)
    True
    """

    State = NetworkState
    reads = ("dense",)
    capabilities = frozenset({Capability.ROWS, Capability.COMPONENTS})
    shown = ("n_groups", "n_dropped_groups", "gap", "against", "leaks", "off_diagonal_share")

    n_components: int = parameter("Number of latent variables.", default=10, least=1, kw_only=False)
    views: str = parameter(
        "Every row is a view of its own (one), or rows of a group are views of the same latent variables "
        "(several).", default="one", choices=("one", "several"),
    )  # fmt: skip
    noise: str = parameter(
        "With views=one: columns have independent noise (independent), or there is none (none). Without noise, "
        "and with as many components as columns, the columns themselves are the nodes.",
        default="independent", choices=("independent", "none"),
    )  # fmt: skip
    n_starts: int | None = parameter(
        "Number of random starts of the search for sparse loadings.",
        default=None, kind=int, least=0, none=True, unset="10 per component",
    )  # fmt: skip
    n_projected: int = parameter(
        "Number of rows in every round of linear programs with projections, which find columns that overlap "
        "strongly; 0 for none.", default=0, least=0,
    )  # fmt: skip
    n_oversamples: int = parameter(
        "Columns of the sketch beyond the components, with views=several.", default=10, least=0
    )
    n_power_iter: int = parameter("Power passes of the sketch, with views=several.", default=2, least=0)
    layer: str | None = layer_parameter()
    decompose_on: str = place_parameter()
    random_state: Seed = seed_parameter()

    # Fit

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Fit rows in memory.

        Parameters
        ----------
        X : array_like of shape (n_rows, n_features)
            Finite numbers.
        y : None
            Ignored.
        groups : array_like of shape (n_rows,), optional
            Group of every row, with ``views="several"``.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If a parameter is invalid, there are too few columns, or groups are missing or not used.
        InputError
            If a value is not finite, the groups do not match the rows, or no group has three rows.
        NumericalError
            If the moments carry fewer latent variables than requested, or their noises are not skewed.
        """
        self.check_parameters()
        if (groups is None) != (self.views == "one"):
            expected = "none with views='one'" if groups is not None else "one per row with views='several'"
            raise UsageError(f"LatentNetwork.fit: groups: expected {expected}")
        rows = checked_dense(X, 2)
        if groups is None:
            return self.fit_corpus(corpus_of_rows(X, rows))
        layout = layout_of(groups, "groups")
        if layout.starts[-1] != len(rows):
            raise InputError(f"groups: expected {len(rows)}, one per row, got {layout.starts[-1]}")
        ordered = rows if layout.order is None else rows[layout.order]
        return self.fit_corpus(corpus_of_rows(X, ordered, np.diff(layout.starts)))

    def check(self, corpus: Any) -> None:
        """Check that the parameters are valid and suit a corpus; raise a UsageError or InputError otherwise."""
        super().check(corpus)
        d, k, several = corpus.n_words, self.n_components, self.views == "several"
        most = d // 3 if self._noisy else d
        if k > most:
            what = "a third of the columns" if self._noisy else "the number of columns"
            raise UsageError(f"n_components: expected at most {most}, {what}, got {k}")
        if not several and d > MOST_COLUMNS:
            raise UsageError(
                f"views: expected 'several' with more than {MOST_COLUMNS} columns, got 'one' with {d}, which "
                "needs matrices of that size"
            )
        if several and any(getattr(shard, "continues", False) for shard in corpus.shards):
            raise UsageError(
                f"LatentNetwork: expected groups that fit into a shard, got one of {corpus.largest} rows; write "
                "the corpus with larger shards"
            )
        if several and corpus.largest < MIN_VIEWS:
            raise InputError(
                f"LatentNetwork with views='several': expected groups of at least {MIN_VIEWS} rows, got at most "
                f"{corpus.largest} in a group"
            )

    @property
    def _noisy(self) -> bool:
        """Whether noise of the columns is removed from the moments."""
        return self.views == "one" and self.noise == "independent"

    def program(self, run: Run) -> NetworkState:
        """Fit the model by the passes of a run and return its state."""
        options = {
            "n_starts": self.n_starts,
            "n_projected": self.n_projected,
            "seed": self._seed,
        }
        return self._of_views(run, options) if self.views == "several" else self._of_rows(run, options)

    def _of_rows(self, run: Run, options: dict[str, Any]) -> NetworkState:
        d, k = run.corpus.n_words, self.n_components
        out = OneView.upto(d, k, self._noisy)
        view = run.rows(one_view, run.scan(RowCovariancePass(d)), k, self._noisy, self._seed, out=out)
        latent, left, right = view.predictors
        pass_ = OneViewPass(
            d, origin=view.origin, whitener=view.whitener, latent=latent, left=left, right=right, rank=k,
            seed=self._seed,
        )  # fmt: skip
        state: NetworkState = run.apply(network_of_rows, view, run.scan(pass_), options, out=unknown())
        return state

    def _of_views(self, run: Run, options: dict[str, Any]) -> NetworkState:
        d, k = run.corpus.n_words, self.n_components
        counted = run.scan(ViewMeanPass(d, min_views=MIN_VIEWS, with_squares=True))
        mean = run.apply(mean_of_views, counted, out=unknown(d))
        variances = run.apply(variances_of_views, counted, mean, out=unknown(d))
        origin = run.put(mean)
        basis = basis_of_views(
            run,
            origin,
            k + self.n_oversamples,
            self.n_power_iter,
            min_views=MIN_VIEWS,
            seed=self._seed,
            scale=run.rows(scale_of_views, variances, out=unknown(d, 1)),
        )
        pass_ = ViewMomentsPass(
            d, min_views=MIN_VIEWS, origin=origin, basis=basis.matrix, rank=basis.rank, seed=self._seed
        )
        load = partial(load_views, run.scan(pass_).directory)
        white = run.small(
            whiten_views,
            load,
            k,
            math.inf,
            basis.noise,
            where=self.decompose_on,
            out=White.upto(basis.rank, k),
        )
        state: NetworkState = run.apply(
            network_of_views, counted, mean, variances, basis, white, options, out=unknown()
        )
        return state

    # Use

    def transform(self, X: Any) -> np.ndarray:
        """Return the nodes of rows: weighted least squares of every row minus the mean on the loadings.

        Parameters
        ----------
        X : array_like of shape (n_rows, n_features)

        Returns
        -------
        ndarray of shape (n_rows, n_components), float64
            Columns are weighted by the inverse variance of their noise, where it was estimated (Bartlett
            scores). The nodes have variance one over the fitted rows, to which the noise that is left adds.

        Raises
        ------
        UsageError
            If the number of features differs from that of the fit.
        InputError
            If a value is not finite.
        """
        check_is_fitted(self)
        return sources_in_memory(self, X, self._unmixing())

    def assign(self, run: Run) -> dict[str, StoredRows]:
        """Store the nodes of every row of the corpus of a run.

        Parameters
        ----------
        run : Run

        Returns
        -------
        dict of str to StoredRows
            ``nodes`` (n, n_components), float64, along rows.
        """
        check_is_fitted(self)
        return {"nodes": stored_sources(run, self.mean_, self._unmixing())}

    def _unmixing(self) -> np.ndarray:
        """Return the matrix (k, d) whose product with a centred row is the weighted least-squares estimate."""
        A, variances = self.components_.T.astype(np.float64), self.noise_variance_.astype(np.float64)
        with one_blas_thread():
            roots = np.ones(len(A))
            if variances.any():
                # A column without noise would have all weight, and one that is zero has none.
                whole = variances + np.einsum("dk,kl,dl->d", A, self.correlations_, A, optimize=True)
                least = np.maximum(variances, LEAST_NOISE * whole)
                roots = np.divide(1.0, np.sqrt(least), out=np.zeros(len(A)), where=least > 0.0)
            return np.asarray(np.linalg.pinv(A * roots[:, None]) * roots)

    def summary(self) -> dict[str, Any]:
        return super().summary() | {
            "order": list(self.order_),
            "edges": [
                [int(i), int(j), round(float(self.adjacency_[j, i]), 4)]
                for i, j in zip(*np.nonzero(np.abs(self.adjacency_.T) >= SHOWN_WEIGHT), strict=True)
            ],
        }

    def pictures(self, n_top: int = 40) -> list[dict[str, Any]]:
        """Return the pictures of a report: the weights of the network, and the loadings.

        Parameters
        ----------
        n_top : int, default 40
            Number of columns whose loadings are shown: those with the largest ones.

        Returns
        -------
        list of dict
            JSON values, as for `SphericalMixture.pictures`.
        """
        check_is_fitted(self)
        names = [f"node {i}" for i in self.order_]
        order = np.asarray(self.order_)
        top = np.sort(np.argsort(-np.abs(self.components_).max(axis=0), kind="stable")[:n_top])
        columns = self.vocabulary_ or [str(i) for i in range(self.n_features_in_)]
        return [
            matrix(
                "Network",
                "Weight of the node of each column in the node of each row, parents first.",
                self.adjacency_[np.ix_(order, order)],
                names,
                names,
            ),
            matrix(
                "Loadings",
                "Change of a column when a node increases by one.",
                self.components_[order][:, top],
                names,
                [columns[i] for i in top],
            ),
        ]
