"""Groups of real-valued views, and rows of views of different kinds: samples, and small exact populations.

The views of a group are independent given its hidden vector h, and ``E[x | h] = O h`` (ECA paper, section 2).
An exact population enumerates all values of h with all combinations of noise, which takes few values with
mean zero, and their probabilities; estimates from it have no sampling error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distmom.errors import UsageError
from distmom.simulate.mixtures import Rows, checked_matrix, checked_weights
from distmom.simulate.topics import TopicPopulation

_MOST_ROWS = 20_000_000
#: kinds of views, with the least and the largest mean that a column may have
_MEANS = {"bits": (0.0, 1.0), "counts": (0.0, np.inf), "values": (-np.inf, np.inf)}


@dataclass(frozen=True)
class Views:
    """Rows of views.

    Attributes
    ----------
    X : ndarray of shape (n_rows, d), float64
    groups : ndarray of shape (n_rows,), int64
        Group of each row, in ascending order.
    hidden : ndarray of shape (n_groups, k), float64
        The hidden vector h of every group; in an enumerated Dirichlet population, the mean of h given the topics.
    weights : ndarray of shape (n_groups,), float64, or None, default=None
        Probabilities of the groups in an exact population; None in a sample.
    """

    X: np.ndarray
    groups: np.ndarray
    hidden: np.ndarray
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Law:
    """The distribution of a factor over a few values.

    Attributes
    ----------
    values, probabilities : tuple of float
    """

    values: tuple[float, ...]
    probabilities: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.dot(self.values, self.probabilities))

    def central(self, order: int) -> float:
        """Return a central moment."""
        return float(np.dot((np.array(self.values) - self.mean) ** order, self.probabilities))

    @property
    def skewness(self) -> float:
        return float(self.central(3) / self.central(2) ** 1.5)

    @property
    def kurtosis(self) -> float:
        """Excess kurtosis."""
        return float(self.central(4) / self.central(2) ** 2 - 3.0)


def bernoulli(q: float) -> Law:
    """Return the law of a factor that is 1 with probability q and 0 otherwise.

    Its skewness ``(1 - 2 q) / sqrt(q (1 - q))`` is zero for q = 1/2, and its excess kurtosis
    ``(1 - 6 q (1 - q)) / (q (1 - q))`` is zero for ``q = (3 +- sqrt 3) / 6``.

    Raises
    ------
    UsageError
        If q is not strictly between 0 and 1.
    """
    if not 0.0 < q < 1.0:
        raise UsageError(f"q: expected a number between 0 and 1, got {q}")
    return Law((0.0, 1.0), (1.0 - q, q))


class FactorPopulation:
    """Views of independent factors with few values each.

    Parameters
    ----------
    laws : sequence of Law
        Distributions of the k factors.
    O : array_like of shape (d, k)
        Matrix of full column rank.
    noise : array_like of shape (n_noise, d)
        Equally likely values of the noise of a view, with mean zero; scaled by ``1 + |h|``, so that noise depends
        on h.

    Attributes
    ----------
    components : ndarray of shape (k, d)
        Canonical components: the columns of O times the standard deviations of their factors.
    skewness, kurtosis : ndarray of shape (k,)
    mean : ndarray of shape (d,)

    Raises
    ------
    UsageError
        If shapes do not match, or the mean of the noise is not zero.
    """

    laws: tuple[Law, ...]
    O: np.ndarray  # noqa: E741
    noise: np.ndarray
    components: np.ndarray
    skewness: np.ndarray
    kurtosis: np.ndarray
    mean: np.ndarray

    def __init__(self, laws: Sequence[Law], O: np.ndarray, noise: np.ndarray) -> None:  # noqa: E741
        self.laws, self.O, self.noise = tuple(laws), np.asarray(O, float), np.asarray(noise, float)
        if self.O.ndim != 2 or self.O.shape[1] != len(self.laws):
            raise UsageError(f"O has shape {self.O.shape} for {len(self.laws)} factors")
        if self.noise.ndim != 2 or self.noise.shape[1] != len(self.O):
            raise UsageError(f"noise has shape {self.noise.shape}, but O has shape {self.O.shape}")
        if np.abs(self.noise.sum(axis=0)).max() > 1e-12:
            raise UsageError("noise: expected a mean of zero")
        self.components = (self.O * np.sqrt([law.central(2) for law in self.laws])).T
        self.skewness = np.array([law.skewness for law in self.laws])
        self.kurtosis = np.array([law.kurtosis for law in self.laws])
        self.mean = self.O @ np.array([law.mean for law in self.laws])

    def enumerate(self, n_views: int) -> Views:
        """Return all groups with a given number of views, and their probabilities."""
        states = list(itertools.product(*(range(len(law.values)) for law in self.laws)))
        choices = _choices(len(self.noise), n_views, len(states))
        hidden = np.array([[law.values[i] for law, i in zip(self.laws, s, strict=True)] for s in states])
        chances = np.array(
            [np.prod([law.probabilities[i] for law, i in zip(self.laws, s, strict=True)]) for s in states]
        )
        eta = self.noise[choices]
        size = 1.0 + np.linalg.norm(hidden, axis=1)
        X = (hidden @ self.O.T)[:, None, None, :] + size[:, None, None, None] * eta[None]
        n = len(states) * len(choices)
        weights = np.repeat(chances, len(choices)) / len(choices)
        groups = np.repeat(np.arange(n), n_views)
        return Views(X.reshape(-1, len(self.O)), groups, np.repeat(hidden, len(choices), axis=0), weights)


class DirichletPopulation:
    """Real-valued views of Dirichlet-distributed shares (ECA paper, remark 8).

    For each view a topic is drawn from the shares; the view is its column of O plus noise, so ``E[x | h] = O h``.

    Parameters
    ----------
    alpha : array_like of shape (k,)
        Dirichlet parameters.
    O : array_like of shape (d, k)
        Entries may have either sign.
    noise : array_like of shape (n_noise, d)
        Equally likely values of the noise of a view, with mean zero.

    Raises
    ------
    UsageError
        If shapes do not match.
    """

    alpha: np.ndarray
    O: np.ndarray  # noqa: E741
    noise: np.ndarray

    def __init__(self, alpha: np.ndarray, O: np.ndarray, noise: np.ndarray) -> None:  # noqa: E741
        self.alpha, self.O = np.asarray(alpha, float), np.asarray(O, float)
        self.noise = np.asarray(noise, float)
        if self.O.ndim != 2 or self.O.shape[1] != len(self.alpha) or self.noise.shape[1:] != (len(self.O),):
            raise UsageError(
                f"O has shape {self.O.shape} for {len(self.alpha)} shares and noise of shape {self.noise.shape}"
            )
        # A population in which every topic is a word of its own.
        self._shares = TopicPopulation(self.alpha, np.eye(len(self.alpha)))

    def enumerate(self, n_views: int) -> Views:
        """Return all groups with a given number of views, and their probabilities."""
        k, alpha0 = len(self.alpha), self.alpha.sum()
        X, hidden, weights = [], [], []
        choices = _choices(len(self.noise), n_views, k**n_views)
        for topics in itertools.product(range(k), repeat=n_views):
            counts = np.bincount(topics, minlength=k)
            X.append(self.O.T[list(topics)][None] + self.noise[choices])
            hidden.append(np.tile((self.alpha + counts) / (alpha0 + n_views), (len(choices), 1)))
            chance = self._shares.share_moment(counts.tolist()) / len(choices)
            weights.append(np.full(len(choices), chance))
        rows = np.concatenate(X).reshape(-1, len(self.O))
        groups = np.repeat(np.arange(len(rows) // n_views), n_views)
        return Views(rows, groups, np.concatenate(hidden), np.concatenate(weights))

    def sample(self, n_groups: int, n_views: int, seed: int = 0) -> Views:
        """Draw groups."""
        rng = np.random.default_rng(seed)
        hidden = rng.dirichlet(self.alpha, n_groups)
        uniform = rng.random((n_groups, n_views, 1))
        topics = np.minimum(
            (uniform > np.cumsum(hidden, axis=1)[:, None, :]).sum(axis=2), len(self.alpha) - 1
        )
        eta = self.noise[rng.integers(len(self.noise), size=(n_groups, n_views))]
        return _views(self.O.T[topics] + eta, hidden)


class MixedViewPopulation:
    """A mixture of rows whose views, which are ranges of columns, are of different kinds.

    Views are independent given the component of a row. In a sample, the columns of a view are independent too:
    bits, Poisson counts, or normal values.

    Parameters
    ----------
    means : array_like of shape (k, d)
        Means of all columns in each component.
    weights : array_like of shape (k,)
        Probabilities of the components.
    views : sequence of tuple of str and int
        Kind of each view ("bits", "counts" or "values"), and the number of its columns.
    variance : float, default=1.0
        Variance of values.

    Raises
    ------
    UsageError
        If shapes do not match, a kind is unknown, the weights are not a distribution, a mean of bits is not
        between 0 and 1, or a mean of counts or the variance is negative.
    """

    means: np.ndarray
    weights: np.ndarray
    views: tuple[tuple[str, int], ...]
    variance: float

    def __init__(
        self,
        means: np.ndarray,
        weights: np.ndarray,
        views: Sequence[tuple[str, int]],
        variance: float = 1.0,
    ) -> None:
        self.means = checked_matrix("means", means)
        self.weights = checked_weights(weights, len(self.means))
        self.views, self.variance = tuple(views), float(variance)
        if sum(self.widths) != self.means.shape[1] or min(self.widths) < 1:
            raise UsageError(f"views: expected {self.means.shape[1]} columns, got {list(self.widths)}")
        if not 0.0 <= self.variance < np.inf:
            raise UsageError(f"variance: expected a finite number of at least 0, got {variance}")
        for (kind, _), own in zip(self.views, self.split(self.means), strict=True):
            if kind not in _MEANS:
                raise UsageError(f"views: expected one of {', '.join(_MEANS)}, got {kind!r}")
            least, most = _MEANS[kind]
            if not ((own >= least) & (own <= most)).all():
                raise UsageError(f"means: {kind} have means from {least} to {most}, got {own.tolist()}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of columns of the views."""
        return tuple(width for _, width in self.views)

    def split(self, X: np.ndarray) -> list[np.ndarray]:
        """Return the columns of each view."""
        return np.split(X, np.cumsum(self.widths)[:-1], axis=1)

    def sample(self, n_rows: int, seed: int | np.random.Generator = 0) -> Rows:
        """Draw rows."""
        rng = np.random.default_rng(seed)
        z = rng.choice(len(self.weights), n_rows, p=self.weights)
        drawn: list[np.ndarray] = []
        for (kind, _), own in zip(self.views, self.split(self.means), strict=True):
            means = own[z]
            if kind == "bits":
                drawn.append(rng.random(means.shape) < means)
            elif kind == "counts":
                drawn.append(rng.poisson(means))
            else:
                drawn.append(means + np.sqrt(self.variance) * rng.normal(size=means.shape))
        return Rows(np.hstack(drawn).astype(float), z)

    def exact(self) -> Rows:
        """Return rows with the means and variances of the mixture, and its moments of columns of different views.

        The bits of a view depend on each other: a bit is 1 where a uniform variable, which they share, is below
        its mean. Of counts and values, one at a time is above or below its mean; counts are not whole numbers.

        Raises
        ------
        UsageError
            If there are too many rows.
        """
        n_choices = math.prod(n + 1 + (n - 1) * (kind != "bits") for kind, n in self.views)
        if n_choices * len(self.weights) > _MOST_ROWS:
            raise UsageError(f"{n_choices} combinations of views are too many to enumerate")
        X, z, chances = [], [], []
        for component, means in enumerate(self.means):
            outcomes = [
                self._outcomes(kind, own[0])
                for (kind, _), own in zip(self.views, self.split(means[None]), strict=True)
            ]
            choices = np.indices([len(p) for _, p in outcomes]).reshape(len(outcomes), -1)
            X.append(np.hstack([values[i] for (values, _), i in zip(outcomes, choices, strict=True)]))
            chances.append(np.prod([p[i] for (_, p), i in zip(outcomes, choices, strict=True)], axis=0))
            z.append(np.full(choices.shape[1], component))
        own = np.concatenate(z)
        return Rows(np.concatenate(X), own, weights=self.weights[own] * np.concatenate(chances))

    def _outcomes(self, kind: str, means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of a view in a component, and their probabilities."""
        if kind == "bits":
            edges = np.sort(np.concatenate([[0.0, 1.0], means]))
            levels = (edges[:-1] + edges[1:]) / 2.0
            return np.array(levels[:, None] < means, float), np.diff(edges)
        d = len(means)
        variances = means if kind == "counts" else np.full(d, self.variance)
        steps = np.diag(np.sqrt(d * variances))
        return np.concatenate([means + steps, means - steps]), np.full(2 * d, 0.5 / d)


def gaussian_binary(
    O: np.ndarray,  # noqa: E741
    q: Sequence[float],
    n_groups: int,
    n_views: int,
    noise: float = 1.0,
    seed: int = 0,
) -> Views:
    """Draw a multiple mixture of Gaussians: binary factors, and independent noise for every view.

    Parameters
    ----------
    O : ndarray of shape (d, k)
    q : sequence of float
        Probability that each factor is 1.
    n_groups, n_views : int
    noise : float, default=1.0
        Standard deviation of the noise.
    seed : int, default=0
    """
    rng = np.random.default_rng(seed)
    hidden = (rng.random((n_groups, len(q))) < np.asarray(q)).astype(float)
    eta = noise * rng.standard_normal((n_groups, n_views, len(O)))
    return _views((hidden @ O.T)[:, None, :] + eta, hidden)


def poisson_sentences(
    O: np.ndarray,  # noqa: E741
    shapes: Sequence[float],
    n_groups: int,
    n_views: int,
    seed: int = 0,
) -> Views:
    """Draw a multiple mixture of Poissons: word counts of sentences with rates that are sums of gamma factors.

    Parameters
    ----------
    O : ndarray of shape (d, k)
        Non-negative matrix.
    shapes : sequence of float
        Shape s of each gamma factor with scale 1, which has variance s, skewness ``2 / sqrt s`` and excess
        kurtosis ``6 / s``.
    n_groups, n_views : int
    seed : int, default=0
    """
    rng = np.random.default_rng(seed)
    hidden = rng.gamma(np.asarray(shapes), size=(n_groups, len(shapes)))
    rates = np.repeat((hidden @ O.T)[:, None, :], n_views, axis=1)
    return _views(rng.poisson(rates).astype(float), hidden)


def _choices(n_noise: int, n_views: int, n_states: int) -> np.ndarray:
    """Return all combinations of noise over the views, (n, n_views); UsageError if there are too many."""
    if n_states * n_noise**n_views * n_views > _MOST_ROWS:
        raise UsageError(
            f"{n_states} states and {n_noise**n_views} choices of noise are too many to enumerate"
        )
    return np.array(list(itertools.product(range(n_noise), repeat=n_views)))


def _views(X: np.ndarray, hidden: np.ndarray) -> Views:
    n_groups, n_views, d = X.shape
    return Views(X.reshape(-1, d), np.repeat(np.arange(n_groups), n_views), hidden)
