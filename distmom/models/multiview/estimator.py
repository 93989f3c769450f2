"""Mixtures of three views of different kinds and sizes, which are independent given the components of a row.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 3.3 and theorem 3.6. The range of a view is that of its cross moments with the two others. In bases of
the ranges, the third cross moment is turned into one of copies of the last view
(`distmom.spectral.steps.three_views`), whose decomposition gives the conditional means of all views with their
components in one order. With products of columns (section 4.3), views of few columns distinguish more
components. Expectation-maximisation (EM) iterations start from the moments and use all views together.
Rows of several components have the moments of a mixture after a correction
(`distmom.models.multiview.decomposition`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import comb
from typing import Any, Self

import numpy as np

from distmom.engine import TallResult
from distmom.errors import UsageError
from distmom.linalg import METHODS
from distmom.models.multiview.contracted import contraction_passes, decomposed_by_contractions
from distmom.models.multiview.decomposition import decomposed, find_alpha0
from distmom.models.multiview.em import refined
from distmom.models.multiview.fitted import FittedViews
from distmom.models.multiview.fitting import (
    Conditional,
    MultiViewState,
    recovered,
    state_of,
)
from distmom.moments.rows.multiview import (
    MultiViewColumnsPass,
    MultiViewMomentsPass,
    MultiViewSketchPass,
    lifted_widths,
)
from distmom.moments.three_views import N_GROUPS
from distmom.spectral.capabilities import Capability
from distmom.spectral.estimator import layer_parameter, place_parameter
from distmom.spectral.inputs.checks import check_n_rows
from distmom.spectral.inputs.row_parts import joined_views, widths_of
from distmom.spectral.inputs.tables import corpus_of_rows, corpus_of_views
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.seeds import Seed, seed_parameter
from distmom.spectral.steps.basis import unknown_columns
from distmom.spectral.steps.components import basis_slabs
from distmom.spectral.steps.contracted import (
    check_third_moment,
    power_steps_parameter,
    settled_third_moment,
    third_moment_parameter,
)
from distmom.spectral.steps.factors import PRIORS, moment_alpha0
from distmom.spectral.steps.three_views import AlignedViews, load_moments
from distmom.spectral.steps.view_basis import averages_of, next_basis

#: EM passes by default
_N_EM_ITER = 5
#: number of columns and products of columns up to which views are lifted
_MOST_COLUMNS = 10_000_000


class MultiView(FittedViews):
    """Mixture seen through three views that are independent given the component of a row.

    With ``alpha0`` above 0, a row has Dirichlet-distributed shares h of several components; with
    ``prior="independent"``, it has independent factors h. In both cases, views are independent given h, with
    means that are linear in h.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Mean of every column in every component, the columns of the views side by side; components are in one
        order in all views, by descending weight. For independent factors, the effect of every factor on every
        column, for variance one and positive skewness of the factor, by descending skewness.
    weights_ : ndarray of shape (n_components,) or None
        Probabilities of the components, or their average shares; they sum to one. None for independent factors.
    alpha_ : ndarray of shape (n_components,) or None
        Parameters of the Dirichlet law: ``alpha0 * weights_``. None without such a distribution.
    skewness_ : ndarray of shape (n_components,) or None
        Skewness of independent factors; None without these.
    mean_ : ndarray of shape (n_features,) or None
        Mean of every column, for independent factors; None without these.
    variances_ : ndarray of shape (n_features,)
        Variance of every column within components, on average over the components; with several components or
        factors in a row, the variance given these, on average over all rows.
    coefficients_ : ndarray of shape (n_features, n_components) or None
        Coefficients of the linear scores by which EM and `predict_proba` read rows; None without EM passes.
    widths_ : list of int
        Numbers of columns of the views.
    diagnostics_ : dict
        ``asymmetry`` is the relative asymmetry of the symmetrised second moment, zero for an exact population;
        ``residual`` the share of the whitened third moment that the components do not explain; ``conditioning``
        the ratios of the n_components-th to the largest singular value of the cross moments of views 1 and 2, 1
        and 3, and 2 and 3; ``explained`` the share of the variance of each view that lies between components;
        ``proportions_disagreement`` how far the average shares found from the moments differ from those found
        from the means of the views; ``log_likelihoods`` the average per row before each EM pass, less that of a
        single component; ``corrected`` whether the pass after EM has corrected the means (see
        docs/multiview.md).
    vocabulary_ : list of str
        Names of the columns: ``"t.c"`` for column c of view t, counted from 1, if the views are given
        separately.
    n_features_in_ : int
        Number of columns of all views.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> h = rng.integers(0, 2, 5000)
    >>> marks = (rng.random((5000, 4)) < np.where(h == 0, 0.2, 0.7)[:, None]).astype(int)
    >>> counts = rng.poisson(np.where(h == 0, 1.0, 4.0)[:, None], (5000, 3))
    >>> sizes = rng.normal(np.where(h == 0, -1.0, 1.0)[:, None], size=(5000, 2))
    >>> model = MultiView(2).fit((marks, counts, sizes))
    >>> [means.shape for means in model.views()]
    [(2, 4), (2, 3), (2, 2)]
    """

    State = MultiViewState
    matched_by = "components_"
    reads = ("dense", "csr")
    capabilities = frozenset({Capability.ROWS, Capability.COMPONENTS})
    shown = (
        "asymmetry", "residual", "sum_weights", "proportions_disagreement", "conditioning", "explained",
        "corrected",
    )  # fmt: skip

    n_components: int = parameter("Number of components.", default=10, least=1, kw_only=False)
    widths: str | Sequence[int] | None = parameter(
        "Numbers of columns of the three views, in the order of the columns of a row, such as 7,5,11.",
        default=None, kind=str, none=True, unset="those of the views given to fit",
    )  # fmt: skip
    prior: str = parameter(
        "Hidden variables of a row: shares of components (dirichlet), or independent factors (independent).",
        default="dirichlet", choices=PRIORS,
    )  # fmt: skip
    alpha0: float | str = parameter(
        "Sum of the Dirichlet parameters; 0 means one component per row. auto finds the value for which average "
        "shares sum to one. Used with prior=dirichlet only.",
        default=0.0, kind=float, least=0, auto=True,
    )  # fmt: skip
    lift: int = parameter(
        "Largest number of columns of a view that are multiplied with each other; 2 or more allows more "
        "components than columns.",
        default=1, least=1,
    )  # fmt: skip
    decomposition: str = parameter(
        "Method for the whitened third moment.", default="joint", choices=tuple(METHODS)
    )
    third_moment: str = third_moment_parameter()
    power_steps: int = power_steps_parameter()
    n_oversamples: int = parameter("Columns of the sketch beyond the components.", default=10, least=0)
    n_power_iter: int = parameter("Power passes of the sketch.", default=2, least=0)
    n_em_iter: int | None = parameter(
        "Number of expectation-maximisation (EM) iterations after the moments, one pass each.",
        default=None, kind=int, least=0, none=True,
        unset=f"{_N_EM_ITER}, and 0 where columns are multiplied or a row has several components",
    )  # fmt: skip
    em_correction: bool = parameter(
        "Whether one more pass after EM corrects its means where columns are not Gaussian.", default=True
    )
    layer: str | None = layer_parameter()
    decompose_on: str = place_parameter()
    random_state: Seed = seed_parameter()

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit rows in memory.

        Parameters
        ----------
        X : tuple or list of three arrays or sparse matrices of shape (n_rows, d_t), or one of shape (n_rows, d)
            Finite numbers: the views, or, with ``widths``, their columns side by side.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If a parameter is invalid, or a view has fewer columns than there are components.
        InputError
            If a value is not finite, or views have different numbers of rows.
        NumericalError
            If the moments carry fewer components than requested.
        """
        rows, widths = joined_views(X)
        if widths is None:
            return self.fit_corpus(corpus_of_rows(X, rows))
        return self.fit_corpus(corpus_of_views(X, rows, widths))

    def check(self, corpus: Any) -> None:
        """Check that the parameters are valid and suit a corpus; else a UsageError."""
        super().check(corpus)
        k, widths = self.n_components, self._widths(corpus)
        check_third_moment(self.third_moment, self.decomposition, self.power_steps)
        self._check_mixed()
        if self.lift > 1 and (n := sum(lifted_widths(widths, self.lift))) > _MOST_COLUMNS:
            raise UsageError(
                f"lift: expected at most {_MOST_COLUMNS} columns of the views and products of them, got {n} with "
                f"lift={self.lift}"
            )
        if self.lift > 1 and self.n_em_iter:
            raise UsageError(
                f"n_em_iter: expected 0 where columns are multiplied (lift={self.lift}), got {self.n_em_iter}: EM "
                "distinguishes components by the means of the columns alone"
            )
        narrowest = min(widths)
        if self.prior == "independent" and k > narrowest:
            raise UsageError(
                f"n_components: expected at most {narrowest} independent factors, the number of columns of the "
                f"narrowest view, got {k}"
            )
        most, more = (comb(narrowest + degree, degree) for degree in (self.lift, self.lift + 1))
        if k > most:
            products = "" if self.lift == 1 else f" and products of up to {self.lift} columns"
            raise UsageError(
                f"n_components: expected at most {most}, one more than the columns{products} of the narrowest "
                f"view, got {k}; lift={self.lift + 1} allows up to {more}"
            )
        check_n_rows(corpus.n_rows, k)

    def _check_mixed(self) -> None:
        """Refuse parameters that assume one component per row where rows have several; UsageError."""
        if not self._has_several:
            return
        given = "prior='independent'" if self.prior == "independent" else f"alpha0={self.alpha0}"
        if isinstance(self.alpha0, str) and self.n_components < 2:
            raise UsageError(f"n_components: expected at least 2 with {given}, got {self.n_components}")
        if self.lift > 1:
            raise UsageError(
                f"lift: expected 1 with {given}, got {self.lift}: products of columns are not linear in the "
                "components of a row"
            )
        if self.third_moment == "slices" or self.power_steps:
            raise UsageError(
                f"third_moment: expected 'full' or 'auto' and power_steps=0 with {given}, got "
                f"{self.third_moment!r} and {self.power_steps}: the moments of several components per row are "
                "corrected as a whole"
            )
        if self.n_em_iter:
            raise UsageError(
                f"n_em_iter: expected 0 with {given}, got {self.n_em_iter}: EM assumes one component per row"
            )

    @property
    def _has_several(self) -> bool:
        """Whether the parameters ask for several components or factors in a row."""
        return self.prior == "independent" or self.alpha0 != 0.0

    def _alpha0(self, run: Run, directory: str) -> Any:
        """Return the alpha0 of the moments, which for alpha0=auto is found in the committed sums."""
        if self.prior == "dirichlet" and isinstance(self.alpha0, str):
            return run.small(
                find_alpha0, partial(load_moments, directory), self.n_components, self.decomposition,
                where=self.decompose_on, out=unknown(),
            )  # fmt: skip
        return moment_alpha0(self.prior, self.alpha0)

    def _widths(self, corpus: Any) -> tuple[int, ...]:
        return widths_of(corpus, self.widths, N_GROUPS, "views")

    def program(self, run: Run) -> MultiViewState:
        """Fit the model by the passes of a run and return its state."""
        d, k, widths = run.corpus.n_words, self.n_components, self._widths(run.corpus)
        counted = run.scan(MultiViewColumnsPass(d, widths=(d,)), averages_of, widths, out=_averages(d))
        (units,) = counted.states["averages"].parts
        fields: dict[str, Any] = {"widths": widths}
        averages, lifted = units, widths
        if self.lift > 1:
            lifted = lifted_widths(widths, self.lift)
            d, fields = sum(lifted), fields | {"degree": self.lift, "units": units}
            scaled = run.scan(MultiViewColumnsPass(d, **fields), averages_of, lifted, out=_averages(d))
            (averages,) = scaled.states["averages"].parts
        fields["averages"] = averages
        r = min(k + self.n_oversamples, max(lifted))
        sketch = MultiViewSketchPass(d, **fields, n_columns=r, seed=self._seed)
        n_em_iter = self._n_em_iter()
        of_moments = MultiViewMomentsPass(d, **fields, rank=r, with_own=n_em_iter > 0)
        third = self._takes_third(run, of_moments)
        of_moments = replace(of_moments, third=third)
        contractions = () if third else contraction_passes(of_moments, k, self.power_steps)
        n_slabs = basis_slabs(run, sketch, (of_moments, *contractions))
        pass_ = sketch
        for _ in range(self.n_power_iter + 1):
            spanned = run.scan(
                pass_, next_basis, averages, lifted, k, n_slabs, self.prior == "independent",
                out=TallResult({"basis": unknown_columns(d, r, n_slabs)}, {"rank": r}),
            )  # fmt: skip
            basis, r = spanned.states["basis"], spanned.values["rank"]
            pass_ = replace(sketch, basis=basis, n_columns=r)
        of_moments = replace(of_moments, basis=basis, rank=r)
        moments = run.scan(of_moments)
        alpha0 = self._alpha0(run, moments.directory)
        if third:
            aligned = run.small(
                decomposed, partial(load_moments, moments.directory), k, self.decomposition, alpha0,
                where=self.decompose_on, out=AlignedViews(unknown(N_GROUPS, r, k), unknown(k), unknown()),
            )  # fmt: skip
        else:
            aligned = decomposed_by_contractions(
                run, of_moments, moments.directory, k, self._seed, self.power_steps, self.decompose_on
            )
        found = run.rows(
            recovered, basis, averages, units, widths, self.lift, aligned, alpha0,
            out=Conditional(unknown(sum(widths), k), unknown(k)),
        )  # fmt: skip
        coefficients: np.ndarray | None = None
        diagnostics = aligned.diagnostics
        if n_em_iter:
            after = refined(
                run, found, moments, basis, averages, widths, n_em_iter, self.em_correction, self.decomposition,
                self.decompose_on,
            )  # fmt: skip
            found, coefficients = after.found, after.coefficients
            diagnostics = run.apply(_joined, diagnostics, after.diagnostics, out=unknown())
        squares = counted.states["squares"]
        state: MultiViewState = run.apply(
            state_of, found, units, squares, widths, diagnostics, coefficients, alpha0, out=unknown()
        )
        return state

    def _takes_third(self, run: Run, whole: MultiViewMomentsPass) -> bool:
        """Return whether the whole third moment is added up, rather than contractions of it."""
        if self._has_several:
            return True
        # The answer is stored under the pass, whose arrays only an execution has.
        sizes = replace(whole, averages=0, units=None if whole.units is None else 0)
        return settled_third_moment(run, self.third_moment, self.decomposition, sizes) == "full"

    def _n_em_iter(self) -> int:
        if self.n_em_iter is None:
            return _N_EM_ITER if self.lift == 1 and not self._has_several else 0
        return self.n_em_iter


def _joined(diagnostics: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return diagnostics | more


def _averages(d: int) -> TallResult:
    """Return what `averages_of` stores, for a ledger."""
    return TallResult({"averages": unknown_columns(d, 2), "squares": unknown_columns(d, 1)}, {})
