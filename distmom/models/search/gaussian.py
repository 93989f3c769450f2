"""Search for one component of a mixture of spherical Gaussians.

Source: Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18, 2018), section 3.1,
with averages over all noise directions in place of a single one, and central moments as in
`distmom.spectral.steps.spherical`.

The coordinates of a component are ``c_i = (Q'(mu_i - m), 1)``, with m the mean of the rows and Q a basis of the
leading eigenvectors of their covariance. With ``z = (Q'(x - m), 1)``, a side information t that is independent
of the row given its component, the k - 1 leading eigenvectors U, and ``J = diag(I, 0)``

    A = E[z z'] - s J                  s = E[||x - m||^2 - ||U'(x - m)||^2] / (d - k + 1)
    C = E[z (x) z (x) z] - sym(a J)    a = E[z (||x - m||^2 - ||U'(x - m)||^2)] / (d - k + 1)
    B = E[t z z'] - b J                b = E[t (||x - m||^2 - ||U'(x - m)||^2)] / (d - k + 1)

are ``sum_i p_i c_i c_i'``, ``sum_i p_i c_i (x) c_i (x) c_i`` and ``sum_i p_i E[t | i] c_i c_i'``. The matrix B
of the paper, for a vector v, is the contraction of C with the coordinates of v. The variance of a component
follows from ``a = sum_i p_i s_i c_i``. Means need to be affinely independent only, and the origin of the rows
does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Sums
from distmom.linalg import Whitening
from distmom.models.search.base import FoundComponent, RowSearch
from distmom.models.search.state import (
    Part,
    SearchState,
    loaded_halves,
    search_state,
    symmetric_product,
    whitened_cube,
)
from distmom.moments.rows.gaussian import row_moments
from distmom.moments.rows.search import RowTargetsPass, whole_third
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.isotropic import check_range, noise_of, whitened_covariance
from distmom.spectral.steps.rank import halves
from distmom.spectral.steps.recovery import product
from distmom.spectral.steps.row_basis import (
    basis_rank,
    mean_of_rows,
    offset_of,
    row_basis,
    sketch_facts,
    takes_whole,
)


@dataclass(frozen=True, kw_only=True)
class FoundGaussian(FoundComponent):
    """A component of a mixture of spherical Gaussians, found by a search.

    Attributes
    ----------
    mean : ndarray of shape (n_features,)
    variance : float
        Variance along every axis; an estimate from few rows may be negative.
    weight, gap, noise, n_rows_needed, preferences
        As in `distmom.models.search.base.FoundComponent`.
    """

    mean: np.ndarray
    variance: float


class GaussianSearch(RowSearch):
    """Find one component of a mixture of spherical Gaussians from side information about it.

    Attributes
    ----------
    center_ : ndarray of shape (n_features,)
        Mean of the rows.
    basis_ : ndarray of shape (n_features, r)
        Orthonormal basis of the leading eigenvectors of the covariance.
    diagnostics_ : dict
        ``spectrum`` has the leading eigenvalues of the covariance, ``noise_variance`` the average of those
        beyond the first ``n_components - 1``. With a sketch, ``basis_error`` estimates its error: the sine of the
        largest angle between the basis and one of these eigenvectors.
    vocabulary_ : list of str
        Names of the columns, with those of side information last.
    n_features_in_ : int
        Number of features.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> means = np.array([[4.0, 0.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0], [0.0, 0.0, 4.0, 0.0]])
    >>> z = rng.integers(0, 3, 5000)
    >>> X = means[z] + rng.normal(size=(5000, 4))
    >>> found = GaussianSearch(3).fit(X).search(rows=X[z == 1][:3])
    >>> bool(np.abs(found.mean - means[1]).max() < 0.3)
    True
    """

    shown = ("noise_variance", "noise_level", "relative_gap", "basis_error")

    n_oversamples: int = parameter("Columns of the sketch beyond the components.", default=10, least=0)
    n_power_iter: int = parameter("Power passes of the sketch.", default=2, least=0)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Add up the moments of rows in memory.

        Parameters
        ----------
        X : array_like of shape (n_rows, n_features)
            Finite numbers.
        y : array_like of shape (n_rows,) or (n_rows, n_targets), optional
            Side information: numbers that are larger, on average, in the component to be found than in any
            other, and independent of the row given its component, such as 1 for rows that are labelled and 0 for
            others. None by default.

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
            If the moments carry fewer components than requested, or the rows are so far from the origin or so
            large or small that moments are inexact.
        """
        return self.fit_corpus(self._in_memory(X, y=y))

    def program(self, run: Run) -> SearchState:
        """Add up the moments by the passes of a run, in two halves, and return the state."""
        d, q = self._sizes_of(run.corpus)
        k, options = self.n_components, (self.n_oversamples, self.n_power_iter)
        whole = takes_whole(d, k, *options)
        pass_ = RowTargetsPass(d, rank=basis_rank(d, k, self.n_oversamples, whole), n_targets=q)
        basis = row_basis(run, d, k, *options, self._seed, whole, [pass_])
        pass_ = replace(pass_, basis=basis.matrix, origin=basis.mean, rank=basis.rank)
        parts = tuple(run.scan(replace(pass_, selection=half)).directory for half in halves(self._seed))
        state: SearchState = run.apply(_state, basis, parts, k, d, out=unknown())
        return state

    def search(
        self, along: Any = None, *, rows: Any = None, target: int | str | None = None, force: bool = False
    ) -> FoundGaussian:
        """Find the component that side information prefers, without a pass over the rows.

        Parameters
        ----------
        along : array_like of shape (n_features,), optional
            A vector whose product with the mean of the component is larger than with any other mean.
        rows : array_like of shape (n, n_features), optional
            Labelled rows, most of them of the component, in place of a vector; few are enough.
        target : int or str, optional
            Number, from 0, or name of a column of side information of the fit, in place of a vector.
        force : bool, default False
            Return a component even if the side information does not determine it.

        Returns
        -------
        FoundGaussian

        Raises
        ------
        UsageError
            If not exactly one of along, rows and target is given, or it does not suit the fit.
        InputError
            If a value of the labelled rows is not finite.
        NumericalError
            If the gap is not larger than the noise and ``force`` is False.
        """
        found, facts = self._search(along, rows, target, force)
        mean = self.basis_ @ found.component[:-1] + self.center_
        return FoundGaussian(mean=mean, variance=float(self._extras_of(found)[0]), **facts)

    def _coordinates(self, X: np.ndarray) -> np.ndarray:
        return np.hstack([X @ self.basis_, np.ones((len(X), 1))])


def gaussian_part(sums: Sums, W: np.ndarray, U: np.ndarray, n_noise: int) -> Part:
    """Return the moments of some rows in whitened coordinates.

    Parameters
    ----------
    sums : Sums
        Sums of `distmom.moments.rows.search.RowTargetsPass`.
    W : ndarray of shape (r + 1, k)
        Whitening of A.
    U : ndarray of shape (r, k - 1)
        Leading eigenvectors of the covariance.
    n_noise : int
        Number of directions that have noise only, ``d - k + 1``.
    """
    mass = float(sums["mass"])
    y, yy, third = sums["y"] / mass, sums["yy"] / mass, whole_third(sums["yyy"]) / mass
    r, within = len(y), U @ U.T
    cube = np.zeros((r + 1, r + 1, r + 1))
    cube[:r, :r, :r] = third
    cube[:r, :r, r] = cube[:r, r, :r] = cube[r, :r, :r] = yy
    cube[:r, r, r] = cube[r, :r, r] = cube[r, r, :r] = y
    cube[r, r, r] = 1.0
    mixed = sums["ys"] / mass - np.tensordot(third, within, 2)
    noise = float(sums["s"]) / mass - float(np.sum(yy * within))
    a = np.append(mixed, noise) / n_noise
    J = np.diag(np.append(np.ones(r), 0.0))
    targets = []
    for t, ty, tyy, ts in zip(*(sums[name] / mass for name in ("t", "ty", "tyy", "ts")), strict=True):
        b = (float(ts) - float(np.sum(tyy * within))) / n_noise
        B = np.block([[tyy, ty[:, None]], [ty[None, :], np.full((1, 1), t)]]) - b * J
        targets.append(W.T @ B @ W)
    k = W.shape[1]
    return Part(
        np.append(y, 1.0), whitened_cube(cube - symmetric_product(a, J), W),
        np.stack(targets, axis=-1) if targets else np.zeros((k, k, 0)), (W.T @ a)[:, None],
    )  # fmt: skip


def extended(white: Whitening) -> Whitening:
    """Return the whitening of coordinates that are extended by one, which is 1 for all components."""
    W, B = ([[matrix, np.zeros((len(matrix), 1))], [np.zeros((1, matrix.shape[1])), np.ones((1, 1))]]
            for matrix in (white.W, white.B))  # fmt: skip
    return replace(white, W=np.block(W), B=np.block(B))


def _state(basis: Basis, directories: tuple[str, ...], k: int, d: int) -> SearchState:
    whole, first, second = loaded_halves(directories)
    moments = row_moments(whole)
    check_range(moments, k, d, offset_of(basis))
    with one_blas_thread():
        values, vectors = np.linalg.eigh(moments.second)
        values, vectors = values[::-1], vectors[:, ::-1]
        noise = noise_of(values, moments.trace, k, d)
        white = whitened_covariance(moments, values, k, noise, d)
        both = extended(white)
        parts = [
            gaussian_part(sums, both.W, vectors[:, : k - 1], d - k + 1) for sums in (whole, first, second)
        ]
    mean = mean_of_rows(basis)
    facts = {
        "spectrum": [float(x) for x in values], "noise_variance": float(noise), "noise_level": float(white.noise),
        "relative_gap": float(white.gap), **sketch_facts(basis),
    }  # fmt: skip
    matrix = product(basis.matrix, d, np.eye(basis.rank)).whole()
    return search_state(matrix, mean, both, parts, moments.n_sampled, facts)
