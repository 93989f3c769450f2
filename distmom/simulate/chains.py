"""Sequences of dense steps that depend on several independent hidden chains: samples, and small exact populations.

Every chain is -1 or +1 at each step, and ``x_t = m + O h_t`` plus noise (ECA paper, section 2.3: simple factorial
hidden Markov models, with an offset m). An exact population enumerates all paths of the chains with all
combinations of noise, which takes few values, and their probabilities; estimates from it have no sampling error.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from distmom.errors import UsageError

_MOST_ROWS = 20_000_000


@dataclass(frozen=True)
class Sequences:
    """Sequences of dense steps, one after the other.

    Attributes
    ----------
    X : ndarray of shape (n_steps, d), float64
    states : ndarray of shape (n_steps, k), int8
        The chains at every step, -1 or +1.
    lengths : ndarray of shape (n_sequences,), int64
    weights : ndarray of shape (n_sequences,), float64, or None, default=None
        Probabilities of the sequences in an exact population; None in a sample.
    """

    X: np.ndarray
    states: np.ndarray
    lengths: np.ndarray
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class FactorialChains:
    """A simple factorial hidden Markov model.

    Attributes
    ----------
    components : ndarray of shape (k, d)
        Columns of O as rows.
    intercept : ndarray of shape (d,)
        The offset m.
    start : ndarray of shape (k,)
        Probability that a chain is +1 at the first step.
    fall, rise : ndarray of shape (k,)
        Probabilities that a chain changes from +1 to -1, and from -1 to +1.
    """

    components: np.ndarray
    intercept: np.ndarray
    start: np.ndarray
    fall: np.ndarray
    rise: np.ndarray

    @property
    def stationary(self) -> np.ndarray:
        """Probability of +1 of every chain after many steps, (k,)."""
        return np.asarray(self.rise / (self.rise + self.fall))

    def sample(
        self, n_sequences: int, length: int, noise: np.ndarray | float = 1.0, seed: int = 0
    ) -> Sequences:
        """Draw sequences of equal length with Gaussian noise.

        Parameters
        ----------
        n_sequences, length : int
        noise : float or ndarray of shape (d,), default 1.0
            Standard deviations of the values of a step given the chains.
        seed : int, default 0
        """
        k, d = np.shape(self.components)
        rng = np.random.default_rng(seed)
        states = np.empty((n_sequences, length, k), np.int8)
        up = rng.random((n_sequences, k)) < self.start
        for t in range(length):
            if t:
                draws = rng.random((n_sequences, k))
                up = np.where(up, draws >= self.fall, draws < self.rise)
            states[:, t] = np.where(up, 1, -1)
        flat = states.reshape(-1, k)
        X = self.intercept + flat @ self.components + noise * rng.standard_normal((len(flat), d))
        return Sequences(X, flat, np.full(n_sequences, length))

    def enumerate(self, length: int, noise: np.ndarray) -> Sequences:
        """Return all sequences of a length, and their probabilities.

        Parameters
        ----------
        length : int
        noise : ndarray of shape (n_noise, d)
            Equally likely values of the noise of a step, with mean zero.

        Raises
        ------
        UsageError
            If there are too many sequences.
        """
        k, d = np.shape(self.components)
        n_noise = len(noise)
        n = (2**k * n_noise) ** length
        if n * length > _MOST_ROWS:
            raise UsageError(f"{n} sequences of {length} steps are too many to enumerate")
        paths = np.array(
            list(itertools.product(itertools.product((-1, 1), repeat=k), repeat=length)), np.int8
        )
        up = paths > 0
        chances = np.where(up[:, 0], self.start, 1.0 - self.start).prod(axis=1)
        for before, after in itertools.pairwise(range(length)):
            rises = np.where(up[:, before], 1.0 - self.fall, self.rise)
            chances = chances * np.where(up[:, after], rises, 1.0 - rises).prod(axis=1)
        choices = np.array(list(itertools.product(range(n_noise), repeat=length)))
        states = np.repeat(paths, len(choices), axis=0)
        values = self.intercept + paths @ self.components
        X = (values[:, None] + np.asarray(noise)[choices]).reshape(-1, d)
        weights = np.repeat(chances, len(choices)) / len(choices)
        return Sequences(X, states.reshape(-1, k), np.full(len(states), length), weights)
