"""Factors behind exchangeable real-valued views, by excess correlation analysis.

Source: Anandkumar, Foster, Hsu, Kakade, Liu, "A Spectral Algorithm for Latent Dirichlet Allocation": Algorithms 1
and 2 for independent factors, Algorithms 3 and 5 and remark 8 for shares with a Dirichlet law. With M2 and M3 the
moments that are diagonal in the factors (`distmom.moments.dirichlet`; central ones for independent factors), Q a
basis of the range of M2 and W whitening it there, the columns of M = W'Q'O are orthonormal and diagonalise M3.
"""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.corpus import ViewCorpus
from distmom.engine import Engine, StoredArray
from distmom.errors import InputError, UsageError
from distmom.linalg import Whitening
from distmom.linalg.factors import METHODS, Factors
from distmom.models.eca.cumulants import (
    White,
    decompose_views,
    load_fourth,
    load_moments,
    warn_of_noise,
    whiten_views,
)
from distmom.models.eca.recovery import admissible, recover_factors
from distmom.moments.fourth import ViewFourthPass, pair_directions
from distmom.moments.views import ViewMeanPass, ViewMomentsPass, ViewSketchPass
from distmom.spectral.artifact import check_target, load_arrays, load_record_of, save_model, whole_description
from distmom.spectral.basis import N_PROBES, Basis, range_basis
from distmom.spectral.estimator import DECOMPOSE_ON, CorpusEstimator, check_bounds, check_choices, check_seed
from distmom.spectral.layout import Array

ORDERS = {"3": (3,), "4": (4,), "both": (3, 4)}
PRIORS = ("independent", "dirichlet")
#: pairs of directions that the fourth moment is contracted with, or as many as the factors where there are more
N_PAIRS = 66

_LAYOUT = {
    "components": Array(("k", "d")),
    "unmixing": Array(("k", "d")),
    "mean": Array(("d",)),
    "skewness": Array(("k",)),
    # Not known with third moments alone.
    "kurtosis": Array(("k",), finite=False),
    "alpha": Array(("k",)),
    "proportions": Array(("k",)),
}
_EMPTY = {"alpha": Array((0,)), "proportions": Array((0,))}


class ECA(CorpusEstimator):
    """Independent factors, or shares with a Dirichlet law, behind groups of exchangeable views.

    A group (a document, an image) has views (sentences, patches) that are independent given its factors h, with
    ``E[x | h] = O h``; nothing else is assumed of their noise.

    Parameters
    ----------
    n_components : int
        Factors.
    orders : {"3", "4", "both"}
        Find factors by their skewness, by their excess kurtosis, or by both together. A group needs three views,
        four with the last two.
    prior : {"independent", "dirichlet"}
        Law of the factors.
    alpha0 : float
        Sum of the Dirichlet parameters; 0 means one factor a group. Used with ``prior="dirichlet"`` alone.
    decomposition : {"joint", "single"}
        Diagonalise all contractions of the moments together, or take the eigenvectors of contractions with single
        random directions, as Algorithms 1 and 2 do.
    n_directions : int
        Random directions for ``decomposition="single"``.
    n_oversamples : int
        Columns of the sketch beyond the factors.
    n_power_iter : int
        Power passes of the sketch.
    decompose_on : {"scheduler", "client"}
        Where moments are decomposed when there is a cluster.
    random_state : int
        Seed.

    Attributes
    ----------
    components_ : ndarray of shape (n_found, n_features)
        Columns of O as rows. Of independent factors canonical, each times the standard deviation of its factor,
        with positive skewness where there is any; with the Dirichlet law as they are.
    skewness_ : ndarray of shape (n_found,)
        Of the factors; with the Dirichlet law the effective one (appendix C).
    kurtosis_ : ndarray of shape (n_found,)
        Excess kurtosis likewise; NaN with ``orders="3"``.
    mean_ : ndarray of shape (n_features,)
    unmixing_ : ndarray of shape (n_found, n_features)
        What a view is multiplied with to give least-squares factors.
    proportions_ : ndarray of shape (n_found,)
        With the Dirichlet law ``alpha_i / alpha0``; otherwise empty.
    alpha_ : ndarray of shape (n_found,)
        With the Dirichlet law its parameters; otherwise empty.
    diagnostics_ : dict
        See the documentation.
    n_documents_ : int
        Groups that count.
    n_features_in_ : int

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

    def __init__(
        self,
        n_components: int = 10,
        *,
        orders: str = "3",
        prior: str = "independent",
        alpha0: float = 1.0,
        decomposition: str = "joint",
        n_directions: int = 10,
        n_oversamples: int = 10,
        n_power_iter: int = 2,
        decompose_on: str = "scheduler",
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.orders = orders
        self.prior = prior
        self.alpha0 = alpha0
        self.decomposition = decomposition
        self.n_directions = n_directions
        self.n_oversamples = n_oversamples
        self.n_power_iter = n_power_iter
        self.decompose_on = decompose_on
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = False
        return tags

    @property
    def min_views(self) -> int:
        """Views that a group needs."""
        return max(3, *ORDERS[self.orders])

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Fit rows in memory, or in a file.

        Parameters
        ----------
        X : array, sparse matrix or path of shape (n_rows, n_features)
            Views, as in `ViewCorpus`.
        y : None
            Ignored.
        groups : array of shape (n_rows,) or path
            Which group every row belongs to.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If a parameter is wrong, or groups are missing.
        InputError
            If a value is not finite, groups do not fit the rows, or none has enough views.
        NumericalError
            If the moments do not carry the number of factors asked for.
        """
        if groups is None:
            raise UsageError("ECA.fit: groups are needed, one for every row of X")
        return self.fit_corpus(ViewCorpus(X, groups))

    def fit_transform(self, X: Any, y: Any = None, *, groups: Any = None) -> np.ndarray:
        """Fit rows and return the factors of their groups (see `transform`)."""
        return self.fit(X, groups=groups).transform(X, groups)

    def check(self, corpus: ViewCorpus) -> None:
        """Refuse parameters that are wrong or do not go with a corpus; UsageError, InputError."""
        check_choices(
            self,
            {
                "orders": tuple(ORDERS),
                "prior": PRIORS,
                "decomposition": METHODS,
                "decompose_on": DECOMPOSE_ON,
            },
        )
        check_seed(self)
        check_bounds(self, {"n_components": 1, "n_oversamples": 0, "n_power_iter": 0, "n_directions": 1})
        if self.prior == "dirichlet" and not 0.0 <= self.alpha0 < math.inf:
            raise UsageError(f"alpha0: expected a number from 0 on, got {self.alpha0}")
        if not isinstance(corpus, ViewCorpus):
            raise UsageError(f"ECA: expected a ViewCorpus, got a {type(corpus).__name__}")
        if self.n_components > corpus.n_words:
            raise UsageError(f"n_components={self.n_components} factors do not fit {corpus.n_words} features")
        if corpus.largest < self.min_views:
            raise InputError(
                f"ECA with orders={self.orders!r}: expected groups of at least {self.min_views} views, "
                f"got at most {corpus.largest} in a group"
            )

    # How it is fitted

    def _fit(self, engine: Engine) -> None:
        d = engine.corpus.n_words
        counted = engine.run(ViewMeanPass(d, min_views=self.min_views)).sums
        self.n_features_in_ = d
        self.mean_ = np.asarray(counted["mean"] / counted["mass"])
        self.n_documents_, n_dropped = (int(n) for n in counted["groups"])
        basis = self._basis(engine)
        white = self._whitened(engine, basis)
        found = self._found(engine, basis, white)
        kept = admissible(found, self._alpha0, self.n_components, self.orders)
        recovered = recover_factors(basis, white, kept, self.mean_, self._alpha0)
        self.components_, self.unmixing_ = recovered.components, recovered.unmixing
        self.skewness_, self.kurtosis_ = recovered.skewness, recovered.kurtosis
        self.alpha_, self.proportions_ = recovered.alpha, recovered.proportions
        self.diagnostics_ = {
            **_spectrum(white.whitening, self.n_components),
            **_separation(kept),
            **recovered.diagnostics,
            "n_groups": self.n_documents_,
            "n_dropped_groups": n_dropped,
        }

    @property
    def _alpha0(self) -> float:
        """The alpha0 of the moments: infinite for central ones."""
        return float(self.alpha0) if self.prior == "dirichlet" else math.inf

    def _origin(self, engine: Engine, *, sketch: bool) -> StoredArray | None:
        """Return what passes take from every view.

        With the mean times ``1 - (alpha0 + 1)^-1/2`` taken away the plain second moment is the one corrected for
        alpha0, and a sketch finds its range and its noise. Further moments of a Dirichlet law are corrected
        about zero; central ones are the same about any origin, and lose no digits about the mean.
        """
        if math.isinf(self._alpha0):
            return engine.put(self.mean_)
        return engine.put(self.mean_ * (1.0 - 1.0 / math.sqrt(self._alpha0 + 1.0))) if sketch else None

    def _basis(self, engine: Engine) -> Basis:
        d = self.n_features_in_
        r = min(self.n_components + self.n_oversamples, d)
        sketch = ViewSketchPass(
            d, min_views=self.min_views, origin=self._origin(engine, sketch=True), n_columns=r,
            seed=self.random_state, n_probes=min(N_PROBES, d - r),
        )  # fmt: skip
        n_slabs = engine.plan(sketch).n_mapped
        return range_basis(engine, sketch, self.n_power_iter, "float64", n_slabs, indefinite=True)

    def _located(self, engine: Engine, function: Any, load: Any, *arguments: Any) -> Any:
        """Call ``function(load(), *arguments)`` where moments are to be decomposed."""
        if self.decompose_on == "scheduler":
            return engine.on_scheduler(function, load, *arguments)
        return function(load(), *arguments)

    def _whitened(self, engine: Engine, basis: Basis) -> White:
        pass_ = ViewMomentsPass(
            self.n_features_in_, min_views=self.min_views, origin=self._origin(engine, sketch=False),
            basis=basis.matrix, rank=basis.rank, seed=self.random_state,
        )  # fmt: skip
        load = partial(load_moments, engine.run(pass_).directory)
        white: White = self._located(engine, whiten_views, load, self.n_components, self._alpha0, basis.noise)
        warn_of_noise(white.whitening)
        return white

    def _found(self, engine: Engine, basis: Basis, white: White) -> Factors:
        options = {"n_directions": self.n_directions, "random_state": self.random_state}
        arguments = (white, self._alpha0, ORDERS[self.orders], self.decomposition, options)
        load: Any = _nothing
        if self.orders != "3":
            k = white.whitening.W.shape[1]
            left, right = pair_directions(k, max(N_PAIRS, k), self.random_state)
            pass_ = ViewFourthPass(
                self.n_features_in_, min_views=self.min_views, origin=self._origin(engine, sketch=False),
                basis=basis.matrix, rank=basis.rank, seed=self.random_state,
                whitener=engine.put(white.whitening.W), left=engine.put(left), right=engine.put(right),
                n_states=k, n_pairs=left.shape[1],
            )  # fmt: skip
            load = partial(load_fourth, engine.run(pass_).directory, left, right)
        found: Factors = self._located(engine, decompose_views, load, *arguments)
        return found

    # Using a fitted model

    def transform(self, X: Any, groups: Any) -> np.ndarray:
        """Return the least-squares factors of groups, from the mean of the views of each.

        Parameters
        ----------
        X : array, sparse matrix or path of shape (n_rows, n_features)
        groups : array of shape (n_rows,) or path
            Groups need only one view.

        Returns
        -------
        ndarray of shape (n_groups, n_found), float64
            Groups in the order in which they first appear. Independent factors have mean zero and variance one;
            shares are as they come out, neither clipped nor normalised.

        Raises
        ------
        UsageError
            If X has other features than those fitted.
        InputError
            If a value is not finite, or groups do not fit the rows.
        """
        check_is_fitted(self, "components_")
        corpus = ViewCorpus(X, groups)
        if corpus.n_words != self.n_features_in_:
            raise UsageError(
                f"X has {corpus.n_words} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        found = [np.zeros((0, len(self.unmixing_)))]
        for index in range(len(corpus.shards)):
            block = corpus.read_shard(index)
            rows = np.asarray(block.rows @ self.unmixing_.T)
            found.append(np.add.reduceat(rows, block.starts[:-1], axis=0) / block.sizes[:, None])
        factors = np.concatenate(found)
        return factors if self.prior == "dirichlet" else factors - self.unmixing_ @ self.mean_

    # On disk

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model as a directory of arrays and JSON.

        Raises
        ------
        UsageError
            If the path exists, and is not a model or ``overwrite`` is not given.
        """
        check_is_fitted(self, "components_")
        check_target(Path(path).absolute(), overwrite)
        record = {
            "model": type(self).__name__,
            "parameters": self.get_params(),
            "n_documents": self.n_documents_,
            "diagnostics": self.diagnostics_,
            "timings": self.timings_,
            "spent": self.spent_,
            "fit_seconds": self.fit_seconds_,
        }
        arrays = {name: getattr(self, f"{name}_") for name in _LAYOUT}
        save_model(path, record, arrays, [], [], overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ECA:
        """Read a model; UsageError if there is none of this class, StoreError if it is damaged."""
        record = load_record_of(path, cls.__name__)
        with whole_description(path):
            model = cls(**record["parameters"])
            layout = _LAYOUT if model.prior == "dirichlet" else {**_LAYOUT, **_EMPTY}
            arrays = load_arrays(path, record, layout, {})
            for name in _LAYOUT:
                setattr(model, f"{name}_", arrays[name])
            for name in ("n_documents", "diagnostics", "timings", "spent", "fit_seconds"):
                setattr(model, f"{name}_", record[name])
            model.n_features_in_ = model.components_.shape[1]
        return model


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


def _separation(found: Factors) -> dict[str, Any]:
    return {
        "n_found": found.vectors.shape[1],
        "n_rejected": found.n_rejected,
        # A single factor has no other to be told from.
        "separation": [float(x) if math.isfinite(x) else None for x in found.separation],
        "skewness_level": float(found.levels[3]),
        "kurtosis_level": float(found.levels[4]) if 4 in found.levels else None,
        "off_diagonal_share": None if math.isnan(found.off_diagonal_share) else found.off_diagonal_share,
    }
