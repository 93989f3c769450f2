"""Rows of axis-aligned Gaussians, of linear regressions and near subspaces: samples, and small exact populations.

Each row comes from a component that is drawn by its weight. An exact population is a finite set of rows whose
probabilities give the moments of the mixture up to some order; estimates from it have no sampling error.

Side information about one component, the target of a search, takes the forms of Ray, Neeman, Sanghavi, Shakkottai,
"The Search Problem in Mixture Models" (JMLR 18, 2018): a vector that prefers the target (`side_vector`), or rows
that are labelled as rows of the target, some wrongly (`draw_labels`). In an exact population, a column of side
information is its expectation in the component of each row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from distmom.errors import UsageError

_MOST_ROWS = 20_000_000


@dataclass(frozen=True)
class Rows:
    """Rows of a mixture.

    Attributes
    ----------
    X : ndarray of shape (n_rows, d), float64
    components : ndarray of shape (n_rows,), int64
        Component of each row.
    responses : ndarray of shape (n_rows,), float64, or None, default=None
        Responses of regressions.
    weights : ndarray of shape (n_rows,), float64, or None, default=None
        Probabilities of the rows in an exact population; None in a sample.
    """

    X: np.ndarray
    components: np.ndarray
    responses: np.ndarray | None = None
    weights: np.ndarray | None = None


class Mixture(ABC):
    """A mixture of rows.

    Attributes
    ----------
    weights : ndarray of shape (k,)
        Probabilities of the components.
    """

    weights: np.ndarray

    @abstractmethod
    def sample(self, n_rows: int, seed: int | np.random.Generator = 0) -> Rows:
        """Draw rows.

        Parameters
        ----------
        n_rows : int
        seed : int or Generator, default=0

        Returns
        -------
        Rows
        """

    @abstractmethod
    def exact(self) -> Rows:
        """Return an exact population.

        Returns
        -------
        Rows
            With probabilities.

        Raises
        ------
        UsageError
            If it has too many rows.
        """

    @abstractmethod
    def preferences(self, v: np.ndarray) -> np.ndarray:
        """Return how much a vector prefers each component; a search finds the one that is preferred most.

        Parameters
        ----------
        v : array_like of shape (d,)

        Returns
        -------
        ndarray of shape (k,)
            Products with the means or coefficients, or norms of the projections on the subspaces.
        """

    @abstractmethod
    def _directions(self) -> np.ndarray:
        """Return the directions of each component as rows, (k, m, d)."""

    def side_vector(self, target: int, share: float = 1.0) -> np.ndarray:
        """Return a unit vector that prefers a component (section 4.1).

        Let v_1 be orthogonal to all other components, and v_2, ..., v_q an orthonormal basis of their directions.
        The vector is ``sqrt(share) v_1 + sqrt((1 - share) / (q - 1)) (v_2 + ... + v_q)``.

        Parameters
        ----------
        target : int
            Number of the component.
        share : float, default=1.0
            Squared length of the part along v_1; with 1, the vector is orthogonal to all other components.

        Returns
        -------
        ndarray of shape (d,)

        Raises
        ------
        UsageError
            If there is no such component, the share is not in (0, 1], directions of the components are linearly
            dependent, or the vector prefers another component.
        """
        directions = self._directions()
        k, m, d = directions.shape
        if not 0 <= target < k:
            raise UsageError(f"target: expected a number from 0 to {k - 1}, got {target}")
        if not 0.0 < share <= 1.0:
            raise UsageError(f"share: expected a number above 0 and at most 1, got {share}")
        rows, own = directions.reshape(-1, d), np.repeat(np.arange(k) == target, m)
        if np.linalg.matrix_rank(rows) < len(rows):
            raise UsageError("side_vector: the directions of the components are linearly dependent")
        v = np.linalg.pinv(rows) @ own.astype(float)
        v /= np.linalg.norm(v)
        if k > 1 and share < 1.0:
            others, upper = np.linalg.qr(rows[~own].T)
            others *= np.sign(np.diag(upper))
            v = np.sqrt(share) * v + np.sqrt((1.0 - share) / others.shape[1]) * others.sum(axis=1)
        preferences = self.preferences(v)
        if preferences.argmax() != target:
            raise UsageError(
                f"share: with {share}, component {preferences.argmax()} is preferred to {target}"
            )
        return np.asarray(v)


class GaussianPopulation(Mixture):
    """A mixture of Gaussians whose columns are independent in each component.

    Parameters
    ----------
    means : array_like of shape (k, d)
    weights : array_like of shape (k,)
        Probabilities of the components.
    variances : array_like of shape (k, d) or (k,), or float
        Variances of the columns in each component, or those of spherical components: one for each, or for all.

    Attributes
    ----------
    means : ndarray of shape (k, d)
    weights : ndarray of shape (k,)
    variances : ndarray of shape (k, d) or (k,)

    Raises
    ------
    UsageError
        If shapes do not match, the weights are not a distribution, or a variance is negative.
    """

    means: np.ndarray
    variances: np.ndarray

    def __init__(self, means: np.ndarray, weights: np.ndarray, variances: np.ndarray | float) -> None:
        self.means = checked_matrix("means", means)
        self.weights = checked_weights(weights, len(self.means))
        if np.ndim(variances) == 2:
            self.variances = checked_matrix("variances", np.asarray(variances))
            if self.variances.shape != self.means.shape or self.variances.min() < 0.0:
                raise UsageError(
                    f"variances: expected a matrix of {self.means.shape} non-negative numbers, got "
                    f"{self.variances.shape} and a least one of {self.variances.min():g}"
                )
        else:
            self.variances = _per_component("variances", variances, len(self.means), signed=False)

    @property
    def _deviations(self) -> np.ndarray:
        """Standard deviations of the columns in each component, (k, d)."""
        own = self.variances if self.variances.ndim == 2 else self.variances[:, None]
        return np.broadcast_to(np.sqrt(own), self.means.shape)

    def sample(self, n_rows: int, seed: int | np.random.Generator = 0) -> Rows:
        """Draw rows."""
        rng = np.random.default_rng(seed)
        z = rng.choice(len(self.weights), n_rows, p=self.weights)
        noise = rng.normal(size=(n_rows, self.means.shape[1]))
        return Rows(self.means[z] + noise * self._deviations[z], z)

    def exact(self) -> Rows:
        """Return rows with all moments up to order three: two on each axis around each mean."""
        k, d = self.means.shape
        _check_size(2 * k * d)
        steps = np.sqrt(d) * self._deviations[:, :, None] * np.eye(d)
        X = np.concatenate([self.means[:, None] + steps, self.means[:, None] - steps], axis=1)
        z = np.repeat(np.arange(k), 2 * d)
        return Rows(X.reshape(-1, d), z, weights=self.weights[z] / (2 * d))

    def preferences(self, v: np.ndarray) -> np.ndarray:
        """Return the products of a vector with the means, (k,)."""
        return np.asarray(self.means @ v)

    def _directions(self) -> np.ndarray:
        return self.means[:, None]


class RegressionPopulation(Mixture):
    """A mixture of linear regressions with Gaussian features.

    A row of component i has the response ``<x, coefs[i]> + intercepts[i]`` plus normal noise, and features
    ``mean + root z`` for a standard normal vector z.

    Parameters
    ----------
    coefs : array_like of shape (k, d)
    weights : array_like of shape (k,)
        Probabilities of the components.
    variances : array_like of shape (k,), or float
        Variance of the noise.
    intercepts : array_like of shape (k,), or float, default=0.0
    mean : array_like of shape (d,), or None, default=None
        Mean of the features; zero by default.
    root : array_like of shape (d, d), or None, default=None
        A matrix R with the covariance ``R R^T`` of the features; the identity by default.

    Attributes
    ----------
    coefs : ndarray of shape (k, d)
    weights, variances, intercepts : ndarray of shape (k,)
    mean : ndarray of shape (d,)
    root : ndarray of shape (d, d)

    Raises
    ------
    UsageError
        If shapes do not match, the weights are not a distribution, or a variance is negative.
    """

    coefs: np.ndarray
    variances: np.ndarray
    intercepts: np.ndarray
    mean: np.ndarray
    root: np.ndarray

    def __init__(
        self,
        coefs: np.ndarray,
        weights: np.ndarray,
        variances: np.ndarray | float,
        intercepts: np.ndarray | float = 0.0,
        mean: np.ndarray | None = None,
        root: np.ndarray | None = None,
    ) -> None:
        self.coefs = checked_matrix("coefs", coefs)
        k, d = self.coefs.shape
        self.weights = checked_weights(weights, k)
        self.variances = _per_component("variances", variances, k, signed=False)
        self.intercepts = _per_component("intercepts", intercepts, k)
        self.mean = np.zeros(d) if mean is None else np.asarray(mean, float)
        self.root = np.eye(d) if root is None else np.asarray(root, float)
        if self.mean.shape != (d,) or self.root.shape != (d, d):
            raise UsageError(
                f"features: expected a mean of shape {(d,)} and a root of shape {(d, d)}, got {self.mean.shape} "
                f"and {self.root.shape}"
            )
        if not (np.isfinite(self.mean).all() and np.isfinite(self.root).all()):
            raise UsageError("features: expected a mean and a root of finite numbers")

    def sample(self, n_rows: int, seed: int | np.random.Generator = 0) -> Rows:
        """Draw rows with responses."""
        rng = np.random.default_rng(seed)
        z = rng.choice(len(self.weights), n_rows, p=self.weights)
        X = self.mean + rng.normal(size=(n_rows, len(self.mean))) @ self.root.T
        y = np.sum(X * self.coefs[z], axis=1) + self.intercepts[z]
        return Rows(X, z, y + np.sqrt(self.variances[z]) * rng.normal(size=n_rows))

    def exact(self) -> Rows:
        """Return rows with all moments of the features up to order seven, and of the noise up to order three."""
        k, d = self.coefs.shape
        _check_size(2 * k * 4.0**d)
        nodes, mass = _normal_grid(4, d)
        X = self.mean + nodes @ self.root.T
        y = (X @ self.coefs.T + self.intercepts).T
        deviations = np.sqrt(self.variances)[:, None]
        # For each component all features with noise of one sign, then with the other.
        responses = np.stack([y - deviations, y + deviations], axis=1).ravel()
        z = np.repeat(np.arange(k), 2 * len(X))
        return Rows(np.tile(X, (2 * k, 1)), z, responses, self.weights[z] * np.tile(mass / 2.0, 2 * k))

    def preferences(self, v: np.ndarray) -> np.ndarray:
        """Return the products of a vector with the coefficients, (k,)."""
        return np.asarray(self.coefs @ v)

    def _directions(self) -> np.ndarray:
        return self.coefs[:, None]


class SubspacePopulation(Mixture):
    """Rows near subspaces: standard normal coordinates within one of them, and spherical Gaussian noise.

    Parameters
    ----------
    bases : array_like of shape (k, d, m)
        Orthonormal columns that span each subspace.
    weights : array_like of shape (k,)
        Probabilities of the components.
    variance : float
        Variance of the noise of every column.

    Attributes
    ----------
    bases : ndarray of shape (k, d, m)
    weights : ndarray of shape (k,)
    variance : float

    Raises
    ------
    UsageError
        If shapes do not match, columns are not orthonormal, the weights are not a distribution, or the variance is
        negative.
    """

    bases: np.ndarray
    variance: float

    def __init__(self, bases: np.ndarray, weights: np.ndarray, variance: float) -> None:
        self.bases = np.asarray(bases, float)
        if self.bases.ndim != 3 or not np.allclose(
            np.swapaxes(self.bases, 1, 2) @ self.bases, np.eye(self.bases.shape[2]), atol=1e-9
        ):
            raise UsageError(f"bases: expected orthonormal columns, got an array of shape {self.bases.shape}")
        self.weights = checked_weights(weights, len(self.bases))
        self.variance = float(variance)
        if not 0.0 <= self.variance < np.inf:
            raise UsageError(f"variance: expected a finite number of at least 0, got {variance}")

    def sample(self, n_rows: int, seed: int | np.random.Generator = 0) -> Rows:
        """Draw rows."""
        rng = np.random.default_rng(seed)
        _, d, m = self.bases.shape
        z = rng.choice(len(self.weights), n_rows, p=self.weights)
        within = np.einsum("ndm,nm->nd", self.bases[z], rng.normal(size=(n_rows, m)))
        return Rows(within + np.sqrt(self.variance) * rng.normal(size=(n_rows, d)), z)

    def exact(self) -> Rows:
        """Return rows with all moments up to order five."""
        k, d, _ = self.bases.shape
        _check_size(k * 3.0**d)
        nodes, mass = _normal_grid(3, d)
        within = self.bases @ np.swapaxes(self.bases, 1, 2)
        # Roots of the covariances, which are 1 + variance within a subspace and variance outside.
        roots = np.sqrt(1.0 + self.variance) * within + np.sqrt(self.variance) * (np.eye(d) - within)
        z = np.repeat(np.arange(k), len(nodes))
        return Rows((nodes @ roots).reshape(-1, d), z, weights=self.weights[z] * np.tile(mass, k))

    def preferences(self, v: np.ndarray) -> np.ndarray:
        """Return the norms of the projections of a vector on the subspaces, (k,)."""
        return np.asarray(np.linalg.norm(np.swapaxes(self.bases, 1, 2) @ v, axis=1))

    def _directions(self) -> np.ndarray:
        return np.swapaxes(self.bases, 1, 2)


def draw_labels(
    components: np.ndarray,
    target: int,
    share: float = 1.0,
    wrong: float = 0.0,
    seed: int | tuple[int, ...] | np.random.Generator = 0,
) -> np.ndarray:
    """Draw which rows are labelled as rows of a component.

    Parameters
    ----------
    components : ndarray of shape (n_rows,)
        Component of each row.
    target : int
        Number of the component.
    share : float, default=1.0
        Probability that a row of the component is labelled.
    wrong : float, default=0.0
        Probability that any other row is labelled.
    seed : int, tuple of int or Generator, default=0

    Returns
    -------
    ndarray of shape (n_rows,), bool

    Raises
    ------
    UsageError
        Unless ``0 <= wrong < share <= 1``, without which labels do not prefer the component.
    """
    if not 0.0 <= wrong < share <= 1.0:
        raise UsageError(f"labels: expected 0 <= wrong < share <= 1, got wrong={wrong} and share={share}")
    rng = np.random.default_rng(seed)
    return np.asarray(rng.random(len(components)) < np.where(np.asarray(components) == target, share, wrong))


def _normal_grid(n_nodes: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes of a Gauss-Hermite quadrature in d dimensions, (n_nodes^d, d), and probabilities."""
    nodes, mass = hermegauss(n_nodes)
    axes = np.meshgrid(*[nodes] * d, indexing="ij")
    masses = np.meshgrid(*[mass / mass.sum()] * d, indexing="ij")
    return np.stack(axes, axis=-1).reshape(-1, d), np.prod(masses, axis=0).ravel()


def _check_size(n_rows: float) -> None:
    if n_rows > _MOST_ROWS:
        raise UsageError(f"{n_rows:.3g} rows of an exact population are too many")


def checked_matrix(name: str, values: np.ndarray) -> np.ndarray:
    """Return a matrix of finite numbers with a row for each component; UsageError for others."""
    found = np.asarray(values, float)
    if found.ndim != 2 or not found.size or not np.isfinite(found).all():
        raise UsageError(f"{name}: expected a matrix of finite numbers, got an array of shape {found.shape}")
    return found


def checked_weights(weights: np.ndarray, k: int) -> np.ndarray:
    """Return the probabilities of components; UsageError for others."""
    found = np.asarray(weights, float)
    if found.shape != (k,) or not (found > 0.0).all() or abs(found.sum() - 1.0) > 1e-9:
        raise UsageError(f"weights: expected {k} positive numbers that sum to 1, got {found.tolist()}")
    return found


def _per_component(name: str, values: np.ndarray | float, k: int, *, signed: bool = True) -> np.ndarray:
    """Return one number for each component, from one or as many numbers; UsageError for others."""
    found = np.asarray(values, float)
    if found.shape not in ((), (k,)) or not np.isfinite(found).all() or not (signed or found.min() >= 0.0):
        kind = "finite" if signed else "non-negative"
        raise UsageError(f"{name}: expected one or {k} {kind} numbers, got {found.tolist()}")
    return np.broadcast_to(found, (k,))
