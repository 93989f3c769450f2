"""Search for one of several subspaces near which rows lie.

Source: Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18, 2018), section 3.4 and
algorithm 3. A row of component i is ``U_i g + e`` with the orthonormal columns U_i of a basis of its subspace, of
dimension m, standard Gaussian g and Gaussian noise of variance s along every axis. With ``S = v v'`` for a
vector v, or the average of such products over labelled rows,

    A = E[x x'] - s I = sum_i p_i U_i U_i'
    B = E[(x'S x) x x'] - s tr(S A) I - s tr(S) A - s^2 (tr(S) I + 2 S) - 2 s (A S + S A)
      = sum_i p_i tr(U_i'S U_i) U_i U_i' + 2 sum_i p_i U_i U_i'S U_i U_i'

where the paper prints ``s^2 S`` in place of ``2 s^2 S`` (its proof has the factor). Only the part of S within the
subspaces matters, so everything is computed in a basis of the range of A, whose fourth moment is added up once.

Rows may have any unit: the variance of g is ``tr(A) / m``, by which a search divides the moments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.blas import one_blas_thread
from distmom.engine import StoredColumns
from distmom.errors import NumericalError, UsageError
from distmom.linalg.search.component import SIDES
from distmom.models.search.base import (
    FoundComponent,
    check_range_of,
    check_vector_names,
    checked_rows,
    judged,
)
from distmom.models.search.state import loaded_halves
from distmom.models.search.subspace_basis import SubspaceBasis, narrowed_basis, whole_basis
from distmom.moments.rows.gaussian import RowCovariancePass, RowMomentsPass, RowSketchPass
from distmom.moments.rows.ica import RowFourthPass
from distmom.spectral.capabilities import Capability
from distmom.spectral.estimator import SpectralEstimator, layer_parameter
from distmom.spectral.inputs.tables import check_column_names, corpus_of_rows
from distmom.spectral.parameters import parameter
from distmom.spectral.pictures import spectrum
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.saved.fields import array, value
from distmom.spectral.seeds import Seed, seed_parameter
from distmom.spectral.steps.rank import halves
from distmom.spectral.steps.row_basis import sketched_basis, takes_whole

#: least variance of rows: products of four smaller values underflow
LEAST_VARIANCE = 1e-140
#: relative difference of a gap from the mismatch up to which they count as equal
TIE = 1e-9


@dataclass(frozen=True, kw_only=True)
class FoundSubspace(FoundComponent):
    """A subspace found by a search.

    Attributes
    ----------
    basis : ndarray of shape (n_features, dimension)
        Orthonormal columns.
    spread : float
        Smallest singular value, as a share of the largest, of the matrix whose columns span the subspace; 1 for
        exact moments.
    mismatch : float
        Largest difference of the eigenvalues of the subspace from those that its basis and the side information
        imply. It is as large as the gap where directions of several subspaces are mixed.
    weight, gap, noise, n_rows_needed
        As in `distmom.models.search.base.FoundComponent`.
    preferences : ndarray of shape (r,)
        All eigenvalues of the whitened side information, descending. For a vector v, component i has
        ``3 ||U_i'v||^2`` once, and ``||U_i'v||^2`` otherwise. The gap is between the eigenvalues of the subspace
        and the next one.
    """

    basis: np.ndarray
    spread: float
    mismatch: float

    @property
    def informative(self) -> bool:
        """Whether the gap is larger than the noise and the mismatch."""
        return self.gap > self.noise and _exceeds(self.gap, self.mismatch)


@dataclass(frozen=True)
class SubspaceState:
    """The state of a fitted search.

    Attributes
    ----------
    basis : ndarray of shape (d, r)
        Eigenvectors of the second moment.
    eigenvalues : ndarray of shape (r,)
        Eigenvalues of A, descending.
    fourth : ndarray of shape (r (r + 1) / 2, r (r + 1) / 2)
        Fourth moment of the coordinates i <= j.
    fourth_error : ndarray of the same shape
        A draw of its sampling error; zero for an enumerated population.
    noise_variance : float
        s.
    n_sampled : int
        Number of rows; 0 for an enumerated population.
    diagnostics : dict
    """

    basis: np.ndarray = array("d", "r")
    eigenvalues: np.ndarray = array("r", least=0.0)
    fourth: np.ndarray = array("p", "p")
    fourth_error: np.ndarray = array("p", "p")
    noise_variance: float = value()
    n_sampled: int = value()
    diagnostics: dict[str, Any] = value()


class SubspaceAttributes:
    """The attributes of a fitted search (see `SubspaceState`)."""

    basis_: np.ndarray
    eigenvalues_: np.ndarray
    fourth_: np.ndarray
    fourth_error_: np.ndarray
    noise_variance_: float
    n_sampled_: int


class SubspaceSearch(SubspaceAttributes, SpectralEstimator):
    """Find one of several subspaces near which rows lie, from side information about it.

    Attributes
    ----------
    basis_ : ndarray of shape (n_features, n_components * dimension)
        Leading eigenvectors of the second moment: a basis of the sum of all subspaces.
    noise_variance_ : float
        Variance of the noise along every axis.
    diagnostics_ : dict
        ``spectrum`` has the leading eigenvalues of the second moment. With a sketch, ``basis_error`` estimates the
        sine of the largest angle between the sketched basis and one of its ``n_components * dimension`` leading
        eigenvectors.
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> bases = [np.linalg.qr(rng.normal(size=(8, 2)))[0] for _ in range(3)]
    >>> z = rng.integers(0, 3, 20_000)
    >>> X = np.stack([bases[i] @ rng.normal(size=2) for i in z]) + 0.1 * rng.normal(size=(20_000, 8))
    >>> found = SubspaceSearch(3, dimension=2).fit(X).search(rows=X[z == 1][:10])
    >>> bool(np.linalg.norm(found.basis @ found.basis.T - bases[1] @ bases[1].T, 2) < 0.2)
    True
    """

    State = SubspaceState
    reads = ("dense",)
    capabilities = frozenset({Capability.ROWS, Capability.SEARCH})
    shown = ("noise_variance", "relative_gap", "basis_error")

    n_components: int = parameter("Number of subspaces.", default=5, least=2, kw_only=False)
    dimension: int = parameter("Dimension of every subspace.", default=2, least=1)
    n_oversamples: int = parameter(
        "Columns of the sketch beyond those of all subspaces.", default=10, least=0
    )
    n_power_iter: int = parameter("Power passes of the sketch.", default=2, least=0)
    side: str = parameter(
        "Project labelled rows and vectors onto the sum of all subspaces (project), or multiply them by the "
        "inverse of the second moment (whiten): rows of a subspace then have no part in any other. auto projects.",
        default="auto", choices=SIDES,
    )  # fmt: skip
    layer: str | None = layer_parameter()
    random_state: Seed = seed_parameter()

    def fit(self, X: Any, y: Any = None) -> Self:
        """Add up the moments of rows in memory.

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
            If a parameter is invalid, or there are too few features or rows.
        InputError
            If a value is not finite.
        NumericalError
            If the second moment carries fewer dimensions than the subspaces have together.
        """
        return self.fit_corpus(corpus_of_rows(X, checked_rows(X, "X")))

    def check(self, corpus: Any) -> None:
        """Check that the parameters are valid and suit a corpus; raise a UsageError otherwise."""
        super().check(corpus)
        r = self.n_components * self.dimension
        if r >= corpus.n_words or r > corpus.n_rows:
            raise UsageError(
                f"n_components, dimension: expected a product below {corpus.n_words}, the number of features, "
                f"and at most {corpus.n_rows}, the number of rows, got {r}"
            )

    def program(self, run: Run) -> SubspaceState:
        """Add up the moments by the passes of a run, in two halves, and return the state."""
        d, r = run.corpus.n_words, self.n_components * self.dimension
        basis = self._basis(run, d, r)
        pass_ = RowFourthPass(d, matrix=basis.matrix, origin=basis.origin, rank=r)
        parts = tuple(run.scan(replace(pass_, selection=half)).directory for half in halves(self._seed))
        state: SubspaceState = run.apply(_state, basis, parts, out=unknown())
        return state

    def _basis(self, run: Run, d: int, r: int) -> SubspaceBasis:
        """Find the r leading eigenvectors of the second moment, which is formed only for few columns."""
        # Subspaces contain the origin.
        origin = run.put(np.zeros((d, 1)))
        out = SubspaceBasis(StoredColumns((unknown(d, r),)), origin, unknown(r), unknown(), unknown())
        if takes_whole(d, r, self.n_oversamples, self.n_power_iter):
            return run.rows(whole_basis, run.scan(RowCovariancePass(d)), origin, r, out=out)
        sketch = RowSketchPass(d, n_columns=min(r + self.n_oversamples, d), seed=self._seed, origin=origin)
        basis = sketched_basis(run, sketch, self.n_power_iter, r)
        pairs = RowMomentsPass(d, basis=basis.matrix, origin=origin, rank=basis.rank, third=False)
        return run.rows(narrowed_basis, run.scan(pairs), basis, origin, d, r, out=out)

    def search(self, along: Any = None, *, rows: Any = None, force: bool = False) -> FoundSubspace:
        """Find the subspace that side information prefers, without a pass over the rows.

        Parameters
        ----------
        along : array_like of shape (n_features,), optional
            A vector; the square of its norm in the subspace must be more than three times that in any other.
        rows : array_like of shape (n, n_features), optional
            Labelled rows of the subspace, in place of a vector. With many of them, it is enough that the average
            of their squared norms is larger in the subspace than in any other.
        force : bool, default False
            Return a subspace even if the side information does not determine it.

        Returns
        -------
        FoundSubspace

        Raises
        ------
        UsageError
            If not exactly one of along and rows is given, or it does not suit the fit.
        InputError
            If a value is not finite.
        NumericalError
            If the gap is not larger than the noise or the mismatch, and ``force`` is False.
        """
        check_is_fitted(self)
        if (along is None) == (rows is None):
            raise UsageError("search: specify either along or rows")
        if rows is None and np.ndim(along) != 1:
            raise UsageError(f"along: expected a vector, got an array of {np.ndim(along)} dimensions")
        X = checked_rows(np.atleast_2d(along) if rows is None else rows, "along" if rows is None else "rows")
        if X.shape[1] != len(self.basis_):
            raise UsageError(f"search: expected {len(self.basis_)} features, got {X.shape[1]}")
        if rows is not None:
            check_column_names(self, rows)
        else:
            check_vector_names(self, along)
        m, unit = self.dimension, self._unit
        with one_blas_thread():
            eigenvalues, s = self.eigenvalues_ / unit, self.noise_variance_ / unit
            Y = (X if rows is None else X / np.sqrt(unit)) @ self.basis_
            if self.side == "whiten":
                Y /= eigenvalues
            with np.errstate(over="ignore", invalid="ignore"):
                S = Y.T @ Y / len(Y)
            check_range_of(S)
            A, root = np.diag(eigenvalues), np.sqrt(eigenvalues)
            moment, error = (
                contracted_fourth(packed / unit / unit, S) for packed in (self.fourth_, self.fourth_error_)
            )
            R = subspace_side(moment, A, S, s) / np.outer(root, root)
            error /= np.outer(root, root)
            check_range_of(R, error)
            values, vectors = np.linalg.eigh((R + R.T) / 2.0)
            noise = float(np.abs(np.linalg.eigvalsh((error + error.T) / 2.0)).max())
            Z = root[:, None] * vectors[:, -m:]
            left, singular, _ = np.linalg.svd(Z, full_matrices=False)
            basis = self.basis_ @ left
            inner = np.linalg.eigvalsh(left.T @ S @ left)[::-1]
        preferences = values[::-1]
        gap = float(preferences[m - 1] - preferences[m])
        mismatch = float(np.abs(preferences[:m] - (inner.sum() + 2.0 * inner)).max())
        facts = judged(gap, noise, self.n_sampled_, force)
        if not (force or _exceeds(gap, mismatch)):
            raise NumericalError(
                f"the side information prefers directions of several subspaces: the eigenvalues differ by "
                f"{mismatch:.3g} from those of a single one, and the gap is {gap:.3g}; give more labelled rows"
            )
        return FoundSubspace(
            basis=basis, spread=float(singular[-1] / singular[0]), mismatch=mismatch,
            weight=float(np.sum(singular**2) / m), preferences=preferences, **facts,
        )  # fmt: skip

    @property
    def _unit(self) -> float:
        """Variance of the coordinates of rows in their subspaces: the weights of these add up to one."""
        return float(self.eigenvalues_.sum()) / self.dimension

    def pictures(self) -> list[dict[str, Any]]:
        """Return the pictures of a report: the spectrum of the second moment."""
        check_is_fitted(self)
        return [spectrum("Leading eigenvalues of the second moment.", self.diagnostics_["spectrum"])]


def _exceeds(gap: float, mismatch: float) -> bool:
    """Whether the gap is larger than the mismatch by more than rounding, which may decide a tie either way."""
    return gap > (1.0 + TIE) * mismatch


def contracted_fourth(packed: np.ndarray, S: np.ndarray) -> np.ndarray:
    """Return ``E[(y'S y) y y']``, (r, r), from the fourth moment of the coordinates i <= j."""
    i, j = np.triu_indices(len(S))
    sums = packed @ (S[i, j] * np.where(i == j, 1.0, 2.0))
    found = np.empty_like(S)
    found[i, j] = found[j, i] = sums
    return found


def subspace_side(moment: np.ndarray, A: np.ndarray, S: np.ndarray, s: float) -> np.ndarray:
    """Return B, (r, r), from ``E[(x'S x) x x']`` in a basis, A, S and the variance of the noise."""
    eye, crossed = np.eye(len(A)), A @ S
    noise = s * float(np.sum(S * A)) * eye + s * float(np.trace(S)) * A + 2.0 * s * (crossed + crossed.T)
    return np.asarray(moment - noise - s**2 * (float(np.trace(S)) * eye + 2.0 * S))


def _state(basis: SubspaceBasis, directories: tuple[str, ...]) -> SubspaceState:
    variance = float(basis.eigenvalues.sum())
    if variance < LEAST_VARIANCE:
        raise NumericalError(
            f"the rows have a variance of {variance:.3g} in the subspaces, whose fourth moments are out of range: "
            "scale the rows"
        )
    whole, first, second = loaded_halves(directories)
    n_sampled = int(whole["sampled"])
    packed = [np.asarray(sums["fourth"]) / float(sums["mass"]) for sums in (whole, first, second)]
    error = (0.5 if n_sampled else 0.0) * (packed[1] - packed[2])
    matrix = np.ascontiguousarray(basis.matrix.parts[0].load())
    return SubspaceState(
        matrix, basis.eigenvalues, packed[0], error, basis.noise_variance, n_sampled, basis.facts
    )
