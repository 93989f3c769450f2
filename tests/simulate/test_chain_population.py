"""Sequences of hidden chains: exact populations, and samples of the same model."""

from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import UsageError
from distmom.simulate.chains import FactorialChains, MarkovPopulation

CHAINS = FactorialChains(
    np.array([[1.0, -0.5, 0.2], [0.3, 2.0, -1.0]]),
    np.array([0.5, 0.0, -1.0]),
    np.array([0.2, 0.7]),
    np.array([0.3, 0.5]),
    np.array([0.1, 0.4]),
)
NOISE = np.array([[0.5, -1.0, 0.2], [-0.5, 1.0, -0.2]])


def test_chains_of_a_population_follow_their_probabilities_of_change():
    drawn = CHAINS.enumerate(3, NOISE)
    assert drawn.weights.sum() == pytest.approx(1.0, abs=1e-12)
    up = (drawn.states > 0).reshape(-1, 3, 2)
    law = CHAINS.start
    for t in range(3):
        assert_allclose(drawn.weights @ up[:, t], law, atol=1e-12)
        law = law * (1.0 - CHAINS.fall) + (1.0 - law) * CHAINS.rise
    both = drawn.weights @ (up[:, 1, 0] & up[:, 1, 1])
    assert both == pytest.approx(np.prod(drawn.weights @ up[:, 1]), abs=1e-12)
    fell = drawn.weights @ (up[:, 0] & ~up[:, 1])
    assert_allclose(fell, CHAINS.start * CHAINS.fall, atol=1e-12)
    settled = CHAINS.stationary
    assert_allclose(settled * (1.0 - CHAINS.fall) + (1.0 - settled) * CHAINS.rise, settled, atol=1e-15)


def test_samples_have_the_moments_of_their_population():
    exact = CHAINS.enumerate(3, NOISE)
    drawn = CHAINS.sample(100_000, 3, noise=np.abs(NOISE[0]), seed=1)
    X, Y = exact.X.reshape(-1, 3, 3), drawn.X.reshape(-1, 3, 3)
    assert_allclose(Y.mean(axis=0), np.einsum("n,nti->ti", exact.weights, X), atol=0.03)
    for s, t in ((0, 1), (0, 2), (1, 2)):
        pairs = np.einsum("n,ni,nj->ij", exact.weights, X[:, s], X[:, t])
        assert_allclose(Y[:, s].T @ Y[:, t] / len(Y), pairs, atol=0.05)
    assert_allclose(np.mean(Y[:, 1] ** 2, axis=0), exact.weights @ X[:, 1] ** 2, rtol=0.02)


def test_a_seed_determines_the_sample():
    first, again, other = (CHAINS.sample(50, 4, seed=seed) for seed in (1, 1, 2))
    assert (first.X == again.X).all()
    assert (first.X != other.X).any()
    assert first.lengths.tolist() == [4] * 50
    assert set(np.unique(first.states)) == {-1, 1}


def test_too_many_sequences_are_refused():
    with pytest.raises(UsageError, match=r"\d+ sequences of 12 steps are too many to enumerate"):
        CHAINS.enumerate(12, NOISE)


MARKOV = MarkovPopulation(
    [0.6, 0.4], [[0.7, 0.3], [0.2, 0.8]], [[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]
)  # fmt: skip


def test_probabilities_of_sequences_of_symbols_are_sums_over_all_paths():
    drawn = MARKOV.enumerate(2, 4)
    assert drawn.lengths.tolist() == [2] * 9 + [4] * 81
    assert drawn.states is None
    ends = np.cumsum(drawn.lengths)
    for length, end, weight in zip(drawn.lengths, ends, drawn.weights, strict=True):
        symbols, total = drawn.X[end - length : end], 0.0
        for path in product(range(2), repeat=int(length)):
            chance = MARKOV.start[path[0]] * MARKOV.emission[path[0], symbols[0]]
            for t in range(1, length):
                chance *= MARKOV.transition[path[t - 1], path[t]] * MARKOV.emission[path[t], symbols[t]]
            total += chance
        assert weight == pytest.approx(total, abs=1e-14)
    assert drawn.weights[:9].sum() == pytest.approx(1.0)
    assert len(np.unique(drawn.X[18:].reshape(-1, 4), axis=0)) == 81


def test_samples_of_symbols_follow_their_probabilities():
    n = 50_000
    drawn = MARKOV.sample([3] * n, seed=1)
    X, states = drawn.X.reshape(-1, 3), drawn.states.reshape(-1, 3)
    exact = MARKOV.enumerate(3)
    found = np.bincount(X @ [9, 3, 1], minlength=27) / n
    # Symbols of enumerated sequences are in the order of these numbers; five standard errors of a share.
    assert_allclose(found, exact.weights, atol=5 * np.sqrt(exact.weights.max() / n))
    assert_allclose(np.bincount(states[:, 0]) / n, MARKOV.start, atol=0.012)
    moves = np.zeros((2, 2))
    np.add.at(moves, (states[:, :2].ravel(), states[:, 1:].ravel()), 1.0)
    assert_allclose(moves / moves.sum(axis=1, keepdims=True), MARKOV.transition, atol=0.012)
    for state, law in enumerate(MARKOV.emission):
        assert_allclose(np.bincount(X[states == state]) / (states == state).sum(), law, atol=0.012)


def test_a_sample_of_symbols_is_determined_by_its_seed_and_cut_by_its_lengths():
    first, again, other = (MARKOV.sample([5, 1, 40], seed) for seed in (1, 1, 2))
    assert (first.X == again.X).all()
    assert (first.states == again.states).all()
    assert (first.X != other.X).any()
    assert first.lengths.tolist() == [5, 1, 40]
    assert len(first.X) == len(first.states) == 46
    # A chain that never returns to the first state does so where a sequence begins.
    leaving = MarkovPopulation([1.0, 0.0], [[0.0, 1.0], [0.0, 1.0]], np.eye(2))
    assert leaving.sample([2, 3, 1], 0).X.tolist() == [0, 1, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MarkovPopulation([0.5, 0.5], np.eye(3), np.eye(2)), r"transition: expected shape \(2, 2\)"),
        (lambda: MarkovPopulation([0.5, 0.5], np.eye(2), np.eye(3)), r"emission: expected shape \(2, 3\)"),
        (lambda: MarkovPopulation([0.5, 0.4], np.eye(2), np.eye(2)), "start: expected non-negative rows"),
        (lambda: MarkovPopulation([0.5, 0.5], np.eye(2), -np.eye(2)), "emission: expected non-negative rows"),
        (lambda: MARKOV.enumerate(3, 30), r"3 symbols and lengths \[3, 30\] are too many"),
    ],
)  # fmt: skip
def test_what_is_no_hidden_markov_model_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
