"""Mixtures of axis-aligned Gaussians, by the moments of dense rows.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 3.3.1 and theorem 3.6 (see `distmom.models.diagonal.recovery`). Columns are put into three groups at
random, which are three views of a row that are independent given its component. Expectation-maximisation (EM)
iterations start from the moments and use all columns together. With few columns or few rows, EM has a second
start, and the one of the larger likelihood is kept; with many of both, only where the views do not suffice.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.digits import significant
from distmom.engine import StoredColumns, StoredRows, TallResult
from distmom.errors import UsageError
from distmom.linalg import METHODS
from distmom.models.diagonal.fitting import (
    DiagonalState,
    averaged,
    count_varying,
    decomposed_partition,
    diagonal_state,
    diagonals_of,
    estimates_of_columns,
    likeliest,
    load_column_moments,
    maximise,
    next_view_basis,
    ordered_units,
    stored_diagonals,
    sums_of_squares,
    units_of,
    view_scores,
)
from distmom.models.diagonal.pictures import pictures_of
from distmom.models.diagonal.posterior import DiagonalAssignPass, DiagonalEMPass, Diagonals, Posterior
from distmom.models.diagonal.recovery import (
    Estimate,
    most_components,
    recover_starts,
    view_scales,
)
from distmom.models.diagonal.together import find_together
from distmom.moments.rows.diagonal import ColumnMomentsPass, ViewSquaresPass
from distmom.moments.rows.multiview import MultiViewColumnsPass, MultiViewMomentsPass, MultiViewSketchPass
from distmom.moments.three_views import N_GROUPS
from distmom.spectral.capabilities import Capability
from distmom.spectral.densities import RowDensity
from distmom.spectral.estimator import layer_parameter, place_parameter
from distmom.spectral.inputs.checks import check_n_rows, checked_dense
from distmom.spectral.inputs.tables import corpus_of_rows
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.seeds import Seed, seed_parameter
from distmom.spectral.steps.basis import unknown_columns
from distmom.spectral.steps.components import basis_slabs
from distmom.spectral.steps.em import iterate
from distmom.spectral.steps.three_views import AlignedViews, load_moments, random_views

#: number of columns up to which all moments are added up, for any partition
MOST_WHOLE = 64
#: number of rows up to which EM has two starts with more columns
FEW_ROWS = 100_000


class DiagonalMixture(RowDensity):
    """Mixture of axis-aligned Gaussians, fitted to dense rows by moments of random thirds of the columns.

    Attributes
    ----------
    means_ : ndarray of shape (n_components, n_features)
        Means of the components, by descending weight.
    variances_ : ndarray of shape (n_components, n_features)
        Variance of every column in every component.
    weights_ : ndarray of shape (n_components,)
        Probabilities of the components; they sum to one.
    center_, scales_ : ndarray of shape (n_features,)
        Mean and standard deviation of every column. A constant column counts as having its value as the standard
        deviation, or one if it is zero.
    diagnostics_ : dict
        ``start`` states which moments the fit is based on: "thirds" for those of three views, "rows" for those
        of all columns together. ``conditioning`` has, for every pair of thirds of the columns, the ratio of the
        n_components-th to the largest singular value of their moment; ``coherence`` the largest leverage of a
        column, which must be small for random thirds to work (proposition 3.2); ``residual`` the share of the
        whitened third moment that the components do not explain; ``log_likelihoods`` the average per row before
        each EM pass (see docs/diagonal.md).
    vocabulary_ : list of str
        Names of the columns.
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> means = rng.normal(size=(2, 12))
    >>> deviations = rng.uniform(0.5, 1.5, (2, 12))
    >>> h = rng.integers(0, 2, 5000)
    >>> X = means[h] + deviations[h] * rng.normal(size=(5000, 12))
    >>> model = DiagonalMixture(2).fit(X)
    >>> order = [0, 1] if abs(model.means_[0] - means[0]).max() < 0.2 else [1, 0]
    >>> bool(np.abs(np.sqrt(model.variances_[order]) - deviations).max() < 0.1)
    True
    """

    State = DiagonalState
    matched_by = "means_"
    reads = ("dense",)
    capabilities = frozenset({Capability.ROWS, Capability.COMPONENTS})
    shown = (
        "start", "asymmetry", "residual", "sum_weights", "conditioning", "coherence", "explained",
        "n_refused_partitions", "n_floored_variances", "n_empty",
    )  # fmt: skip

    n_components: int = parameter("Number of components.", default=10, least=1, kw_only=False)
    n_partitions: int = parameter(
        "Number of random partitions of the columns into thirds, of which the best is used. More than "
        f"{MOST_WHOLE} columns are partitioned only once.",
        default=20, least=1,
    )  # fmt: skip
    decomposition: str = parameter(
        "Method for the whitened third moment.", default="joint", choices=tuple(METHODS)
    )
    n_oversamples: int = parameter("Columns of the sketch beyond the components.", default=10, least=0)
    n_power_iter: int = parameter("Power passes of the sketch.", default=2, least=0)
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
            If a parameter is invalid, there are fewer rows than components, or there are more components than
            features, or more than ``n_features // 3 + 1`` with more than 64 features or without EM.
        InputError
            If a value is not finite.
        NumericalError
            If the moments carry fewer components than requested, or squares of values are out of range.
        """
        return self.fit_corpus(corpus_of_rows(X, checked_dense(X, 1)))

    def check(self, corpus: Any) -> None:
        """Check that the parameters are valid and suit a corpus; raise a UsageError otherwise."""
        super().check(corpus)
        d = corpus.n_words
        whole = d <= MOST_WHOLE and self.n_em_iter > 0
        most = max(d, 1) if whole else most_components(d)
        if self.n_components > most:
            what = "the number of columns" if whole else f"one more than a third of the {d} columns"
            raise UsageError(f"n_components: expected at most {most}, {what}, got {self.n_components}")
        check_n_rows(corpus.n_rows, self.n_components)

    def program(self, run: Run) -> DiagonalState:
        """Fit the model by the passes of a run and return its state."""
        d, k = run.corpus.n_words, self.n_components
        columns = MultiViewColumnsPass(d, widths=(d,))
        counted = run.scan(columns, units_of, out=TallResult({"units": unknown_columns(d, 2)}, {}))
        (units,) = counted.states["units"].parts
        found = self._whole(run, units) if d <= MOST_WHOLE else self._views(run, units)
        one, stacked = (
            Diagonals(unknown(d, 2), unknown(n * k, d), unknown(n * k, d), unknown(n * k))
            for n in (1, len(found))
        )
        of, n_floored = run.apply(diagonals_of, units, found, out=(stacked, unknown()))

        def first(of: Diagonals) -> tuple[Any, ...]:
            of = run.apply(averaged, of, k, out=of)
            stored = stored_diagonals(run, of)
            return run.scan(DiagonalEMPass(d, of=stored, n_components=k, n_mixtures=len(found))), of

        def expect(of: Diagonals) -> tuple[Any, ...]:
            return run.scan(DiagonalEMPass(d, of=stored_diagonals(run, of), n_components=k)), of

        n_first = self.n_em_iter // 2 + 1 if self.n_em_iter else 0
        of, before = iterate(run, of, n_first, first, maximise)
        of, best = run.apply(likeliest, of, k, before, out=(one, unknown()))
        of, after = iterate(run, of, self.n_em_iter - n_first, expect, maximise)
        state: DiagonalState = run.apply(
            diagonal_state, of, best, found, n_floored, before, after, run.corpus.n_rows, out=unknown()
        )
        return state

    def _whole(self, run: Run, units: Any) -> list[Estimate]:
        """Add up all moments of few columns, and estimate the parameters, in two ways where EM follows."""
        d, k = run.corpus.n_words, self.n_components
        load = partial(load_column_moments, run.scan(ColumnMomentsPass(d, units=units)).directory)
        # One component has one start, and without EM there is nothing to choose by.
        together = k > 1 and self.n_em_iter > 0
        return run.small(
            recover_starts, load, k, self.decomposition, self.n_partitions, self._seed, together,
            where=self.decompose_on, out=[Estimate.of_shape(k, d)] * (1 + together),
        )  # fmt: skip

    def _views(self, run: Run, units: Any) -> list[Estimate]:
        """Add up the moments of a single partition in bases of the ranges of its views.

        Where EM follows, moments of all columns together give another start: with few rows always, as their
        third moments are noisy, and with many rows only if the views do not suffice.
        """
        d, k = run.corpus.n_words, self.n_components
        views = random_views(d, 1, self._seed)[0]
        order, widths = np.argsort(views, kind="stable"), tuple(int(n) for n in np.bincount(views))
        stored_order = run.put(order)
        # Rows are centred and scaled before they are multiplied, and the passes only scale views.
        averages = run.put(np.column_stack([np.zeros(d), np.repeat(1.0 / view_scales(views), widths)]))
        fields: dict[str, Any] = {
            "widths": widths, "order": stored_order, "averages": averages,
            "units": run.rows(ordered_units, units, order, out=unknown(d, 2)),
        }  # fmt: skip
        r = min(k + self.n_oversamples, max(widths))
        sketch = MultiViewSketchPass(d, **fields, n_columns=r, seed=self._seed)
        n_slabs = basis_slabs(run, sketch, (MultiViewMomentsPass(d, **fields, rank=r),))
        basis: StoredColumns | None = None
        pass_ = sketch
        for _ in range(self.n_power_iter + 1):
            spanned = run.scan(
                pass_, next_view_basis, averages, widths, k, n_slabs,
                out=TallResult({"basis": unknown_columns(d, r, n_slabs)}, {"rank": r}),
            )  # fmt: skip
            basis, r = spanned.states["basis"], spanned.values["rank"]
            pass_ = replace(sketch, basis=basis, n_columns=r)
        fields |= {"basis": basis, "rank": r}
        moments = run.scan(MultiViewMomentsPass(d, **fields))
        with_em = self.n_em_iter > 0
        out: AlignedViews | str = AlignedViews(unknown(N_GROUPS, r, k), unknown(k), unknown())
        aligned = run.small(
            decomposed_partition, partial(load_moments, moments.directory), k, self.decomposition, with_em,
            where=self.decompose_on, out=out,
        )  # fmt: skip
        scores = run.apply(view_scores, aligned, r, k, out=(unknown(N_GROUPS, N_GROUPS, r, k), unknown(k)))
        pass_of_squares = ViewSquaresPass(
            d, **fields, coefficients=run.put(scores[0]), constants=run.put(scores[1]), n_components=k
        )
        states = run.scan(
            pass_of_squares, sums_of_squares,
            out=TallResult({"squares": unknown_columns(d, k), "first": unknown_columns(d, 1)}, {}),
        ).states  # fmt: skip
        squares = states["squares"], states["first"]
        other, several = None, with_em and k > 1 and run.corpus.n_rows <= FEW_ROWS
        if several:
            other = self._together(run, units, squares)
        elif with_em:
            other = run.when(lambda: isinstance(aligned, str), self._together, units, squares, otherwise=None)
        return run.apply(
            estimates_of_columns, basis, order, widths, *squares, aligned, other,
            out=[Estimate.of_shape(k, d)] * (1 + several),
        )  # fmt: skip

    def _together(self, run: Run, units: Any, squares: tuple[StoredColumns, StoredColumns]) -> Any:
        """Find components in the moments of all columns together."""
        n_varying = run.apply(count_varying, *squares, out=unknown())
        return find_together(
            run, units, n_varying, self.n_components, self.n_oversamples, self.n_power_iter,
            self.decomposition, self.decompose_on, self._seed,
        )  # fmt: skip

    # Use

    def assign(self, run: Run) -> dict[str, StoredRows]:
        """Store the component and the posterior probabilities of every row of the corpus of a run.

        Parameters
        ----------
        run : Run

        Returns
        -------
        dict of str to StoredRows
            ``components`` (n,), int32, and ``probabilities`` (n, n_components), float32, along rows.
        """
        check_is_fitted(self)
        stored = stored_diagonals(run, self._diagonals())
        pass_ = DiagonalAssignPass(self.n_features_in_, of=stored, n_components=len(self.weights_))
        return run.scan(pass_).rows

    def summary(self) -> dict[str, Any]:
        return super().summary() | {"weights": significant(self.weights_)}

    def pictures(self, n_top: int = 10) -> list[dict[str, Any]]:
        """Return the pictures of a report: weights, columns that set components apart, and the log-likelihoods.

        Parameters
        ----------
        n_top : int, default 10
            Number of columns.

        Returns
        -------
        list of dict
            JSON values, as for `SphericalMixture.pictures`.
        """
        check_is_fitted(self)
        return pictures_of(self, n_top)

    def _diagonals(self) -> Diagonals:
        units = np.column_stack([self.center_, 1.0 / self.scales_])
        means = (self.means_ - self.center_) / self.scales_
        return Diagonals(units, means, self.variances_ / self.scales_**2, self.weights_)

    def _mixture(self) -> Posterior:
        return Posterior(self._diagonals())

    def _n_parameters(self) -> int:
        k, d = (int(size) for size in self.means_.shape)
        return 2 * k * d + k - 1
