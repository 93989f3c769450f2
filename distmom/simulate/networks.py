"""Linear networks and hierarchies of latent variables: samples, and the moments of their populations.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), conditions 1 and 4, definition 5.4 and section 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from distmom.errors import UsageError
from distmom.linalg.tensors.tensor import compose
from distmom.simulate.views import Views

#: distributions of noise in section 6
FAMILIES = ("exponential", "poisson", "chi-squared", "gaussian")
#: those with skewness
SKEWED_FAMILIES = FAMILIES[:3]


@dataclass(frozen=True)
class Noises:
    """Independent variables with mean zero, each of a distribution of its own.

    Attributes
    ----------
    families : tuple of str
        One of `FAMILIES` for every variable: an exponential distribution, a Poisson distribution, a multiple of a
        chi-squared distribution with one degree of freedom, all three without their mean, or a normal one.
    variances : ndarray of shape (n,)
    """

    families: tuple[str, ...]
    variances: np.ndarray

    def __post_init__(self) -> None:
        unknown = set(self.families) - set(FAMILIES)
        if unknown:
            raise UsageError(f"families: expected some of {', '.join(FAMILIES)}, got {min(unknown)}")
        if self.variances.shape != (len(self.families),) or not (self.variances > 0.0).all():
            raise UsageError(f"variances: expected {len(self.families)} positive numbers")

    @classmethod
    def draw(cls, n: int, rng: np.random.Generator, families: Sequence[str] = FAMILIES) -> Noises:
        """Draw n distributions, with variances between 0.5 and 1 (section 6)."""
        return cls(tuple(str(x) for x in rng.choice(list(families), n)), rng.uniform(0.5, 1.0, n))

    @property
    def thirds(self) -> np.ndarray:
        """Third moments, (n,)."""
        deviations = np.sqrt(self.variances)
        factors = {"exponential": 2.0, "chi-squared": 2.0 * np.sqrt(2.0), "gaussian": 0.0}
        return np.array(
            [
                variance if family == "poisson" else factors[family] * deviation**3
                for family, variance, deviation in zip(self.families, self.variances, deviations, strict=True)
            ]
        )

    def sample(self, n_rows: int, rng: np.random.Generator) -> np.ndarray:
        """Draw rows, (n_rows, n)."""
        rows = np.empty((n_rows, len(self.families)))
        for j, (family, variance) in enumerate(zip(self.families, self.variances, strict=True)):
            deviation = float(np.sqrt(variance))
            if family == "exponential":
                rows[:, j] = rng.exponential(deviation, n_rows) - deviation
            elif family == "poisson":
                rows[:, j] = rng.poisson(variance, n_rows) - variance
            elif family == "chi-squared":
                rows[:, j] = (rng.standard_normal(n_rows) ** 2 - 1.0) * deviation / np.sqrt(2.0)
            else:
                rows[:, j] = deviation * rng.standard_normal(n_rows)
        return rows


class NetworkPopulation:
    """Observed variables ``x = A h + epsilon`` of a linear network ``h = Lambda h + eta``.

    Parameters
    ----------
    loadings : ndarray of shape (n, k)
        A.
    weights : ndarray of shape (k, k)
        Lambda: the weight of node j in node i. The graph must have no cycles.
    latent : Noises
        Distributions of the k noises eta.
    noise : Noises
        Distributions of the n noises epsilon.

    Attributes
    ----------
    responses : ndarray of shape (k, k)
        ``(I - Lambda)^-1``: h for unit noises eta.
    second : ndarray of shape (k, k)
        ``E[h h']``.

    Raises
    ------
    UsageError
        If shapes do not match, or the graph has a cycle.
    """

    loadings: np.ndarray
    weights: np.ndarray
    latent: Noises
    noise: Noises
    responses: np.ndarray
    second: np.ndarray

    def __init__(self, loadings: np.ndarray, weights: np.ndarray, latent: Noises, noise: Noises) -> None:
        n, k = loadings.shape
        if weights.shape != (k, k) or len(latent.families) != k or len(noise.families) != n:
            raise UsageError(
                f"loadings of shape {(n, k)}: expected weights of shape {(k, k)}, {k} latent noises and {n} "
                f"noises, got {weights.shape}, {len(latent.families)} and {len(noise.families)}"
            )
        # No path of a graph without cycles is longer than k - 1 edges.
        if np.linalg.matrix_power((weights != 0.0).astype(float), k).any():
            raise UsageError("weights: the graph of the nodes has a cycle")
        self.loadings, self.weights, self.latent, self.noise = loadings, weights, latent, noise
        self.responses = np.linalg.inv(np.eye(k) - weights)
        self.second = (self.responses * latent.variances) @ self.responses.T

    def covariance(self) -> np.ndarray:
        """Return ``E[x x']``, (n, n)."""
        return np.asarray(self.loadings @ self.second @ self.loadings.T + np.diag(self.noise.variances))

    def third(self, W: np.ndarray) -> np.ndarray:
        """Return the third moment of ``W'x``, (r, r, r), for W of shape (n, r)."""
        own, below = W.T @ self.loadings @ self.responses, W.T
        return compose(self.latent.thirds, own) + compose(self.noise.thirds, below)

    def sample(self, n_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows x, (n_rows, n), and their h, (n_rows, k)."""
        rng = np.random.default_rng(seed)
        hidden = self.latent.sample(n_rows, rng) @ self.responses.T
        return hidden @ self.loadings.T + self.noise.sample(n_rows, rng), hidden

    def sample_views(self, n_groups: int, n_views: int, seed: int = 0) -> Views:
        """Draw groups of rows with the same h and independent noise (condition 1)."""
        rng = np.random.default_rng(seed)
        hidden = self.latent.sample(n_groups, rng) @ self.responses.T
        rows = np.repeat(hidden @ self.loadings.T, n_views, axis=0)
        rows += self.noise.sample(len(rows), rng)
        return Views(rows, np.repeat(np.arange(n_groups), n_views), hidden)


class HierarchyPopulation:
    """Levels of variables, each of which depends only on the level above (definition 5.4).

    Parameters
    ----------
    loadings : sequence of ndarray
        ``A_1, ..., A_m`` from the lowest level upwards, of shapes (n_0, n_1), (n_1, n_2) and so on; level 0 is
        observed.
    noises : sequence of Noises
        Noises of the levels 0 to m; those of level m are the variables of the highest level themselves.

    Raises
    ------
    UsageError
        If shapes do not match.
    """

    loadings: tuple[np.ndarray, ...]
    noises: tuple[Noises, ...]

    def __init__(self, loadings: Sequence[np.ndarray], noises: Sequence[Noises]) -> None:
        self.loadings, self.noises = tuple(loadings), tuple(noises)
        widths = [*(len(A) for A in self.loadings), *(A.shape[1] for A in self.loadings[-1:])]
        if any(below.shape[1] != len(above) for below, above in pairwise(self.loadings)):
            raise UsageError("loadings: every level must have as many rows as the one below has columns")
        if [len(noise.families) for noise in self.noises] != widths:
            raise UsageError(f"noises: expected levels of {', '.join(map(str, widths))} variables")

    def covariances(self) -> list[np.ndarray]:
        """Return the covariances of all levels, lowest first."""
        found = [np.diag(self.noises[-1].variances)]
        for A, noise in zip(reversed(self.loadings), reversed(self.noises[:-1]), strict=True):
            found.insert(0, A @ found[0] @ A.T + np.diag(noise.variances))
        return found

    def blocks(self, sizes: Sequence[int], seed: int = 0) -> Iterator[np.ndarray]:
        """Draw blocks of rows of the observed level, one of each size."""
        rng = np.random.default_rng(seed)
        for n_rows in sizes:
            rows = self.noises[-1].sample(n_rows, rng)
            for A, noise in zip(reversed(self.loadings), reversed(self.noises[:-1]), strict=True):
                rows = rows @ A.T + noise.sample(n_rows, rng)
            yield rows
