"""Rows that are mixtures of independent sources: samples, and small exact populations.

A row is ``mean + A h``, with independent sources h, and optionally Gaussian noise. In an exact population, sources
and noise take few values, all combinations of which are enumerated with their probabilities; estimates of moments
up to order four from it have no sampling error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from distmom.errors import UsageError
from distmom.simulate.mixtures import checked_matrix
from distmom.simulate.views import Law

_MOST_ROWS = 20_000_000
#: the moments of a standard normal variable up to order five
_NORMAL = Law((-math.sqrt(3.0), 0.0, math.sqrt(3.0)), (1.0 / 6.0, 2.0 / 3.0, 1.0 / 6.0))


def symmetric_law(kurtosis: float) -> Law:
    """Return a symmetric law over two or three values, with variance one and an excess kurtosis of at least -2.

    Raises
    ------
    UsageError
        If there is none with this kurtosis.
    """
    if not -2.0 <= kurtosis < np.inf:
        raise UsageError(f"kurtosis: expected a number of at least -2, got {kurtosis}")
    s = kurtosis + 3.0
    if s == 1.0:
        return Law((-1.0, 1.0), (0.5, 0.5))
    return Law((-math.sqrt(s), 0.0, math.sqrt(s)), (0.5 / s, 1.0 - 1.0 / s, 0.5 / s))


class SourcePopulation:
    """Rows of independent sources with few values each, mixed linearly, with Gaussian noise.

    Parameters
    ----------
    laws : sequence of Law
        Distributions of the k sources.
    mixing : array_like of shape (d, k)
        A.
    noise : array_like of shape (d, r), or None, default=None
        A matrix R with the covariance ``R R^T`` of the noise; no noise by default.
    mean : array_like of shape (d,), or float, default=0.0
        Added to all rows; the mean if the sources have the mean zero.

    Raises
    ------
    UsageError
        If shapes do not match.
    """

    laws: tuple[Law, ...]
    mixing: np.ndarray
    noise: np.ndarray
    mean: np.ndarray

    def __init__(
        self,
        laws: Sequence[Law],
        mixing: np.ndarray,
        noise: np.ndarray | None = None,
        mean: np.ndarray | float = 0.0,
    ) -> None:
        self.laws, self.mixing = tuple(laws), checked_matrix("mixing", mixing)
        d, k = self.mixing.shape
        self.noise = np.zeros((d, 0)) if noise is None else np.asarray(noise, float)
        self.mean = np.asarray(mean, float)
        if k != len(self.laws):
            raise UsageError(f"mixing: expected {len(self.laws)} columns, one for each source, got {k}")
        if self.noise.ndim != 2 or len(self.noise) != d or self.mean.shape not in ((), (d,)):
            raise UsageError(
                f"noise, mean: expected {d} rows and {d} numbers, got shapes {self.noise.shape} and "
                f"{self.mean.shape}"
            )

    @property
    def kurtosis(self) -> np.ndarray:
        """Excess kurtosis of each source, (k,)."""
        return np.array([law.kurtosis for law in self.laws])

    def sample(self, n_rows: int, seed: int | np.random.Generator = 0) -> np.ndarray:
        """Draw rows, (n_rows, d)."""
        rng = np.random.default_rng(seed)
        H = np.column_stack([rng.choice(law.values, n_rows, p=law.probabilities) for law in self.laws])
        return np.asarray(
            self.mean + H @ self.mixing.T + rng.normal(size=(n_rows, self.noise.shape[1])) @ self.noise.T
        )

    def exact(self) -> tuple[np.ndarray, np.ndarray]:
        """Return rows with the moments of the population up to order five in the noise, and their probabilities.

        Returns
        -------
        X : ndarray of shape (n, d)
        probabilities : ndarray of shape (n,)

        Raises
        ------
        UsageError
            If there are too many rows.
        """
        laws = [*self.laws, *[_NORMAL] * self.noise.shape[1]]
        n = math.prod(len(law.values) for law in laws)
        if n > _MOST_ROWS:
            raise UsageError(f"{n} combinations of sources and noise are too many to enumerate")
        H = np.array(list(itertools.product(*(law.values for law in laws))))
        chances = np.array(list(itertools.product(*(law.probabilities for law in laws))))
        return self.mean + H @ np.hstack([self.mixing, self.noise]).T, chances.prod(axis=1)


def continuous_sources(n_rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Draw sources of mean zero and variance one, (n_rows, k), whose kinds alternate.

    They are Laplace, uniform, exponential, arcsine and Student t with seven degrees of freedom, with excess
    kurtoses of 3, -1.2, 6, -1.5 and 2.
    """
    laws: tuple[Callable[[], np.ndarray], ...] = (
        lambda: rng.laplace(size=n_rows) / np.sqrt(2.0),
        lambda: rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), n_rows),
        lambda: rng.gamma(1.0, size=n_rows) - 1.0,
        lambda: np.sqrt(2.0) * np.cos(np.pi * rng.random(n_rows)),
        lambda: rng.standard_t(7.0, size=n_rows) * np.sqrt(5.0 / 7.0),
    )
    return np.column_stack([laws[i % len(laws)]() for i in range(k)])
