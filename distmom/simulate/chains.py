"""Sequences that depend on a hidden chain, or on several independent ones: samples, and small exact populations.

A hidden Markov model has one chain of states and gives a symbol at each step. In simple factorial hidden Markov
models, every chain is -1 or +1 at each step, and ``x_t = m + O h_t`` plus noise (ECA paper, section 2.3, with an
offset m). An exact population enumerates all sequences of symbols, or all paths of the chains with all
combinations of noise, which takes few values, and their probabilities; estimates from it have no sampling error.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distmom.errors import UsageError

_MOST_ROWS = 20_000_000


@dataclass(frozen=True)
class Sequences:
    """Sequences, one after the other.

    Attributes
    ----------
    X : ndarray of shape (n_steps, d), float64, or (n_steps,), int64
        Dense steps, or symbols.
    states : ndarray of shape (n_steps, k), int8, or (n_steps,), int64, or None
        The chains at every step, -1 or +1, or the states of one chain; None in an exact population of symbols.
    lengths : ndarray of shape (n_sequences,), int64
    weights : ndarray of shape (n_sequences,), float64, or None, default=None
        Probabilities of the sequences in an exact population; None in a sample.
    """

    X: np.ndarray
    states: np.ndarray | None
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


class MarkovPopulation:
    """A hidden Markov model of symbols.

    Parameters
    ----------
    start : array_like of shape (k,)
        Probabilities of the states at the first step.
    transition : array_like of shape (k, k)
        Probabilities of the next state in the row of a state.
    emission : array_like of shape (k, n_symbols)
        Probabilities of the symbols in the row of a state.

    Raises
    ------
    UsageError
        If shapes do not match, or a row is not a distribution.
    """

    start: np.ndarray
    transition: np.ndarray
    emission: np.ndarray

    def __init__(self, start: np.ndarray, transition: np.ndarray, emission: np.ndarray) -> None:
        self.start, self.transition = np.asarray(start, float), np.asarray(transition, float)
        self.emission = np.asarray(emission, float)
        k = self.start.size
        for name, rows, shape in (
            ("start", self.start[None], (1, k)),
            ("transition", self.transition, (k, k)),
            ("emission", self.emission, (k, self.emission.shape[-1])),
        ):
            if rows.shape != shape:
                raise UsageError(f"{name}: expected shape {shape} for {k} states, got {rows.shape}")
            if not (rows >= 0.0).all() or not np.allclose(rows.sum(axis=1), 1.0, atol=1e-9):
                raise UsageError(f"{name}: expected non-negative rows that sum to 1")

    def sample(self, lengths: Sequence[int], seed: int | np.random.Generator = 0) -> Sequences:
        """Draw sequences of given lengths."""
        rng = np.random.default_rng(seed)
        starts = np.cumsum(lengths) - np.asarray(lengths)
        change, choice = rng.random((2, int(np.sum(lengths))))
        # What follows each state at each step, so that only the path itself needs a loop.
        after = np.stack([_drawn(law, change) for law in self.transition], axis=1)
        after[starts] = _drawn(self.start, change[starts])[:, None]
        states, state = np.empty(len(change), np.int64), 0
        for t, row in enumerate(after.tolist()):
            states[t] = state = row[state]
        symbols = np.empty(len(change), np.int64)
        for state, law in enumerate(self.emission):
            own = states == state
            symbols[own] = _drawn(law, choice[own])
        return Sequences(symbols, states, np.asarray(lengths, np.int64))

    def enumerate(self, *lengths: int) -> Sequences:
        """Return all sequences of given lengths, and their probabilities, which sum to one for each length.

        Raises
        ------
        UsageError
            If there are too many sequences.
        """
        n_symbols = self.emission.shape[1]
        if sum(n * float(n_symbols) ** n for n in lengths) > _MOST_ROWS:
            raise UsageError(
                f"sequences of {n_symbols} symbols and lengths {list(lengths)} are too many to enumerate"
            )
        found, weights = [], []
        for length in lengths:
            symbols = np.array(list(itertools.product(range(n_symbols), repeat=length)), np.int64)
            # Probabilities of the symbols so far together with the state at the last of them.
            forward = self.start * self.emission.T[symbols[:, 0]]
            for t in range(1, length):
                forward = forward @ self.transition * self.emission.T[symbols[:, t]]
            found.append(symbols)
            weights.append(forward.sum(axis=1))
        return Sequences(
            np.concatenate([symbols.ravel() for symbols in found]),
            None,
            np.concatenate([np.full(*symbols.shape) for symbols in found]),
            np.concatenate(weights),
        )


def _drawn(law: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Return values of a distribution from uniform variables."""
    edges = np.cumsum(law)
    return np.minimum(np.searchsorted(edges / edges[-1], uniform, side="right"), len(law) - 1)
