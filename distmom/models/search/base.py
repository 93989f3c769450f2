"""The base class of searches for one component of a mixture of rows.

Source: Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18, 2018). The moments
of the rows are added up and whitened once. A search then solves one small eigenvalue problem, without a pass.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.blas import one_blas_thread
from distmom.corpus import RowCorpus
from distmom.corpus.rows import as_array
from distmom.errors import InputError, NumericalError, UsageError
from distmom.linalg import Whitening
from distmom.linalg.search.component import SIDE_SEARCHES, SIDES, Found, conditioned
from distmom.models.search.state import SearchState
from distmom.spectral.capabilities import Capability
from distmom.spectral.estimator import SpectralEstimator, layer_parameter
from distmom.spectral.inputs.checks import check_n_rows, checked_dense
from distmom.spectral.inputs.tables import check_column_names, column_names, corpus_of_rows
from distmom.spectral.parameters import parameter
from distmom.spectral.pictures import spectrum
from distmom.spectral.seeds import Seed, seed_parameter

#: setting of a corpus in memory with the number of its columns of side information
_N_TARGETS = "n_targets"
#: more rows are asked for if at most this many times those of the fit would be enough
_MAX_FACTOR = 1000


@dataclass(frozen=True, kw_only=True)
class FoundComponent:
    """A component found by a search.

    Attributes
    ----------
    weight : float
        Mixing weight of the component.
    gap : float
        Preference of the side information for this component, less its preference for the next one.
    noise : float
        Sampling error of the gap, estimated from two halves of the rows and, if there are several labelled rows
        of Gaussians or regressions, from their differences.
    n_rows_needed : float
        Number of rows like those of the fit at which the noise, whose part from these rows decreases with the
        square root of that number, would equal the gap; infinite if no number is enough.
    preferences : ndarray of shape (k,)
        Preference of the side information for this component, then for the others in descending order.
    """

    weight: float
    gap: float
    noise: float
    n_rows_needed: float
    preferences: np.ndarray

    @property
    def informative(self) -> bool:
        """Whether the gap is larger than the noise."""
        return self.gap > self.noise


class SearchAttributes:
    """The attributes of a fitted search (see `distmom.models.search.state.SearchState`)."""

    basis_: np.ndarray
    center_: np.ndarray
    whitening_: np.ndarray
    unwhitening_: np.ndarray
    first_: np.ndarray
    slices_: np.ndarray
    slices_error_: np.ndarray
    targets_: np.ndarray
    targets_error_: np.ndarray
    extras_: np.ndarray
    n_sampled_: int


class RowSearch(SearchAttributes, SpectralEstimator):
    """Base class of searches for one component of a mixture of dense rows."""

    State = SearchState
    reads = ("dense",)
    capabilities = frozenset({Capability.ROWS, Capability.SEARCH})
    #: number of columns between the features and the side information
    n_responses: ClassVar[int] = 0

    n_components: int = parameter(
        "Number of components of the mixture: the rank of the moments.", default=10, least=2, kw_only=False
    )
    n_targets: int | None = parameter(
        "Number of columns of side information at the end of a row, one for each component to be found. Given the "
        "component, they must be independent of the other columns.",
        default=None, kind=int, least=1, none=True, unset="those given to fit, else none",
    )  # fmt: skip
    method: str = parameter(
        "Search by the leading eigenvector of the whitened side information (whitening), or by the multiple of it "
        "that removes the component from the second moment: in closed form (cancellation), by bisection, by a "
        "threshold of the least eigenvalue, or by the nuclear norm. All find the same component.",
        default="whitening", choices=tuple(SIDE_SEARCHES),
    )  # fmt: skip
    side: str = parameter(
        "Project labelled rows and vectors onto the span of the components (project), or multiply them by the "
        "inverse of the second moment (whiten), so that components need not have equal norms. auto whitens "
        "labelled rows, and takes vectors as they are.",
        default="auto", choices=SIDES,
    )  # fmt: skip
    layer: str | None = layer_parameter()
    random_state: Seed = seed_parameter()

    # Fit

    def _in_memory(self, X: Any, **columns: Any) -> RowCorpus:
        """Return features and further columns, of which the last are side information or None, as a corpus.

        The columns are given by the names that they have in messages.
        """
        features = checked_rows(X, "X")
        parts, further = [features], []
        last = list(columns)[-1]
        for name, column in columns.items():
            if column is None:
                continue
            given = column if hasattr(column, "columns") else as_array(column, name)
            found = checked_rows(given[:, None] if getattr(given, "ndim", 2) == 1 else given, name)
            if len(found) != len(features):
                raise InputError(f"{name}: expected {len(features)} rows as X has, got {len(found)}")
            parts.append(found)
            own = "side" if name == last else name
            numbered = [f"{own}[{j}]" for j in range(found.shape[1])]
            further += column_names(column, name) or _series_name(column) or numbered
        corpus = corpus_of_rows(X, np.hstack(parts) if further else features, further=further)
        corpus.settings[_N_TARGETS] = 0 if columns[last] is None else parts[-1].shape[1]
        return corpus

    def _sizes_of(self, corpus: Any) -> tuple[int, int]:
        """Return the numbers of features and of targets of a corpus; UsageError if there is no feature."""
        known = corpus.settings.get(_N_TARGETS)
        q = (known or 0) if self.n_targets is None else self.n_targets
        if known is not None and q != known:
            raise UsageError(f"n_targets: expected {known} as side information has columns, got {q}")
        d = corpus.n_words - self.n_responses - q
        if d < 1:
            raise UsageError(
                f"n_targets: expected fewer than {corpus.n_words - self.n_responses}, as a row has "
                f"{corpus.n_words} columns, got {q}"
            )
        return d, q

    def check(self, corpus: Any) -> None:
        """Check that the parameters are valid and suit a corpus; raise a UsageError otherwise."""
        super().check(corpus)
        d, _ = self._sizes_of(corpus)
        if self.n_components > d:
            raise UsageError(
                f"n_components: expected at most {d}, the number of features, got {self.n_components}"
            )
        check_n_rows(corpus.n_rows, self.n_components)

    def _keep(self, state: Any) -> None:
        super()._keep(state)
        # The vocabulary names further columns, too.
        self.n_features_in_ = len(self.basis_)
        self._name_columns()

    # Use

    def _search(
        self, along: Any, rows: Any, target: int | str | None, force: bool
    ) -> tuple[Found, dict[str, Any]]:
        """Return the component that side information prefers, and the fields of a `FoundComponent`."""
        check_is_fitted(self)
        if sum(given is not None for given in (along, rows, target)) != 1:
            raise UsageError("search: specify one of along, rows and target")
        k = self.whitening_.shape[1]
        white = Whitening(self.whitening_, self.unwhitening_, np.ones(k), 0.0, k, 1.0)
        # What overflows is refused, or has an infinite sampling error.
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            if target is not None:
                column = self._column(target)
                M, error = self.targets_[:, :, column], self.targets_error_[:, :, column]
            else:
                each = self._of_rows(rows) if along is None else self._of_vector(along)[None, :]
                each = conditioned(white, each, self.side, labelled=along is None)
                v = each.mean(axis=0)
                M, error = self.slices_ @ v, self.slices_error_ @ v
            check_range_of(M, error)
            # Searches by cancellation may square the entries.
            _, exponent = np.frexp(np.abs(M).max())
            scaled = np.ldexp(M, -exponent)
            found = SIDE_SEARCHES[self.method](white, (scaled + scaled.T) / 2.0, self.first_)
            found = replace(found, values=np.ldexp(found.values, exponent))
            # The spectral norm of a symmetric matrix.
            noise = float(np.abs(np.linalg.eigvalsh((error + error.T) / 2.0)).max())
            of_rows = 0.0 if rows is None else self._error_of_rows(each, M)
        facts = judged(found.gap, noise, self.n_sampled_, force, of_rows)
        facts |= {"weight": found.weight, "preferences": found.values}
        return found, facts

    def _column(self, target: int | str) -> int:
        """Return the number of a target, given by its number or the name of its column."""
        q = self.targets_.shape[2]
        names = self.vocabulary_[len(self.vocabulary_) - q :]
        if isinstance(target, str) and target in names:
            return names.index(target)
        if isinstance(target, str) or target not in range(q):
            expected = (
                f"a number below {q}, or one of {', '.join(map(repr, names))}"
                if q
                else "none without side information"
            )
            raise UsageError(f"target: expected {expected}, got {target!r}")
        return int(target)

    def _of_vector(self, along: Any) -> np.ndarray:
        """Return the coordinates of a vector of features."""
        check_vector_names(self, along)
        found = as_array(along, "along")
        is_vector = found.dtype.kind in "iubf" and found.shape == (len(self.basis_),)
        if not (is_vector and np.isfinite(found).all()):
            raise UsageError(
                f"along: expected {len(self.basis_)} finite numbers, got {found.dtype} of shape {found.shape}"
            )
        v = np.zeros(len(self.whitening_))
        v[: self.basis_.shape[1]] = found @ self.basis_
        return v

    def _of_rows(self, rows: Any) -> np.ndarray:
        """Return the coordinates of each labelled row."""
        X = checked_rows(rows, "rows")
        n_columns = len(self.basis_) + self.n_responses
        if X.shape[1] != n_columns:
            raise UsageError(f"rows: expected {n_columns} columns, got {X.shape[1]}")
        if hasattr(rows, "columns"):
            rows = rows[list(rows.columns)[: len(self.basis_)]]
        check_column_names(self, rows)
        return self._coordinates(X - self.center_)

    @abstractmethod
    def _coordinates(self, X: np.ndarray) -> np.ndarray:
        """Return coordinates of rows minus the center, (n, s), whose means are those of their components."""

    def _error_of_rows(self, each: np.ndarray, M: np.ndarray) -> float:
        """Return the standard error of the gap because labelled rows are few; 0 for a single one."""
        if len(each) < 2:
            return 0.0
        first, second = np.linalg.eigh((M + M.T) / 2.0)[1].T[:-3:-1]
        # Derivatives of the two largest preferences.
        slope = np.einsum("i,ijs,j->s", first, self.slices_, first)
        slope -= np.einsum("i,ijs,j->s", second, self.slices_, second)
        return float(np.std(each @ slope, ddof=1) / np.sqrt(len(each)))

    def _extras_of(self, found: Found) -> np.ndarray:
        """Return the further parameters of a component (see `distmom.models.search.state.Part`)."""
        return np.asarray((self.whitening_.T @ found.component) @ self.extras_)

    def summary(self) -> dict[str, Any]:
        check_is_fitted(self)
        shown = {"n_components": self.n_components, "n_targets": self.targets_.shape[2]}
        return shown | {"n_features": len(self.basis_), **super().summary()}

    def pictures(self) -> list[dict[str, Any]]:
        """Return the pictures of a report: the spectrum of the moment that is whitened."""
        check_is_fitted(self)
        caption = "Leading eigenvalues of the second moment in which components are searched."
        return [spectrum(caption, self.diagnostics_["spectrum"])]


def check_vector_names(model: SpectralEstimator, along: Any) -> None:
    """Raise a UsageError if a vector from a table has other names, or another order of them, than the fit."""
    index = getattr(along, "index", None)
    if hasattr(along, "to_frame") and index is not None and all(isinstance(name, str) for name in index):
        check_column_names(model, along.to_frame().T)


def check_range_of(*moments: np.ndarray) -> None:
    """Refuse moments of side information that are not finite with a NumericalError."""
    if not all(np.isfinite(moment).all() for moment in moments):
        raise NumericalError("the side information is so large that its moments overflow: scale it")


def judged(gap: float, noise: float, n_sampled: int, force: bool, of_rows: float = 0.0) -> dict[str, Any]:
    """Return the fields of a `FoundComponent` that compare a gap with its sampling error.

    Parameters
    ----------
    gap, noise : float
    n_sampled : int
        Number of rows of the fit, from which the noise comes.
    force : bool
    of_rows : float, default 0.0
        Sampling error because labelled rows are few.

    Raises
    ------
    NumericalError
        If the gap is not larger than both errors together and ``force`` is False.
    """
    total = float(np.hypot(noise, of_rows))
    # Squares of the gap itself may overflow or underflow.
    rest = 1.0 - (of_rows / gap) ** 2 if gap > of_rows else 0.0
    needed = float(n_sampled * (noise / gap) ** 2 / rest) if rest > 0.0 else np.inf
    if not (force or gap > total):
        # A gap of rounding errors only would ask for more rows than there are anywhere.
        more = f", or about {needed:,.0f} rows in all" if needed <= _MAX_FACTOR * n_sampled else ""
        raise NumericalError(
            f"the side information does not determine a component: it prefers one by {gap:.3g}, but the sampling "
            f"error is {total:.3g}; give other side information{', more labelled rows' if of_rows else ''}{more}"
        )
    return {"gap": gap, "noise": total, "n_rows_needed": needed}


def _series_name(column: Any) -> list[str] | None:
    """Return the name of a column of a table as a list; None if it has none, or is no such column."""
    name = getattr(column, "name", None)
    return [name] if isinstance(name, str) and name else None


def checked_rows(X: Any, name: str) -> np.ndarray:
    """Return rows in memory as a matrix of finite numbers, float64; InputError if they are not."""
    return checked_dense(X, 1, name).astype(np.float64, copy=False)
