"""Sequences of independent hidden chains: exact populations, and samples of the same model."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import UsageError
from distmom.simulate.chains import FactorialChains

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
