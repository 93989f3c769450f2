"""Recursions of hidden Markov models beside plain ones, for numbers of states around whole vectors."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.models.markov.kernels import backward, expect, forward, transfer

SIZES = [1, 2, 7, 8, 9, 16, 17, 33]
N = 40


class Case:
    """Two sequences of random steps, with their filtered and posterior probabilities in plain NumPy."""

    def __init__(self, k: int, scale: float = 1.0) -> None:
        rng = np.random.default_rng(k)
        self.k, self.scale = k, scale
        self.transition, self.start = rng.dirichlet(np.ones(k), k), rng.dirichlet(np.ones(k))
        self.table = rng.random((6, k)) * scale
        self.index = rng.integers(0, 6, N)
        self.begins = np.isin(np.arange(N), [0, 25])
        self.filtered, self.evidence = np.zeros((N, k)), np.zeros(N)
        for t in range(N):
            law = self.start if self.begins[t] else self.filtered[t - 1] @ self.transition
            joint = law * self.table[self.index[t]]
            self.evidence[t] = joint.sum()
            self.filtered[t] = joint / joint.sum()
        self.posterior, self.pairs = self.filtered.copy(), np.zeros((k, k))
        for t in range(N - 2, -1, -1):
            if self.begins[t + 1]:
                continue
            # P(state now, state next | all steps), from the posterior of the next state.
            joint = self.filtered[t][:, None] * self.transition
            joint *= self.posterior[t + 1] / (self.filtered[t] @ self.transition)
            self.posterior[t] = joint.sum(axis=1)
            self.pairs += joint

    def filter(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        alpha, evidence, state = np.zeros((N, self.k)), np.zeros(N), np.zeros(self.k)
        forward(self.index, self.table, self.begins, self.start, self.transition, state, alpha, evidence)
        return alpha, evidence, state


@pytest.mark.parametrize("k", SIZES)
def test_filtered_probabilities_are_those_of_the_plain_recursion(k: int) -> None:
    case = Case(k)
    alpha, evidence, state = case.filter()
    assert_allclose(alpha, case.filtered, rtol=1e-12)
    assert_allclose(evidence, case.evidence, rtol=1e-12)
    assert_allclose(state, case.filtered[-1], rtol=1e-12)


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("scale", [1.0, 1e-50, 1e50])
def test_posteriors_are_those_of_the_plain_recursion(k: int, scale: float) -> None:
    """With small and large likelihoods, messages are scaled at many steps; with others, at none."""
    case = Case(k, scale)
    found, message = np.zeros((N, k)), np.ones(k)
    backward(case.index, case.table, case.begins, case.transition, message, case.filtered, found)
    assert_allclose(found, case.posterior, rtol=1e-11)


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("scale", [1.0, 1e-50])
def test_expected_numbers_are_those_of_posteriors(k: int, scale: float) -> None:
    case = Case(k, scale)
    found, message, weights = np.zeros((N, k)), np.ones(k), np.full(N, 1.5)
    first, pairs = np.zeros(k), np.zeros((k, k))
    expect(
        case.index, case.table, case.begins, weights, case.transition, message, np.zeros(k), case.filtered, found,
        first, pairs,
    )  # fmt: skip
    assert_allclose(found, 1.5 * case.posterior, rtol=1e-11)
    assert_allclose(first, 1.5 * case.posterior[[0, 25]].sum(axis=0), rtol=1e-11)
    assert_allclose(pairs * case.transition, 1.5 * case.pairs, rtol=1e-11)


@pytest.mark.parametrize("k", SIZES)
def test_a_transfer_is_the_product_of_its_steps(k: int) -> None:
    case = Case(k)
    expected, product = np.eye(k), np.eye(k)
    for t in range(1, 12):
        expected = expected @ case.transition * case.table[case.index[t]]
    transfer(case.index[1:12], case.table, np.zeros(11, bool), case.transition, product)
    assert_allclose(product, expected / expected.max(), rtol=1e-12)


def test_a_step_that_no_state_produces_says_nothing() -> None:
    case = Case(9)
    case.table[case.index[3]] = 0.0
    alpha, evidence, _ = case.filter()
    nothing = case.index == case.index[3]
    assert_allclose(evidence[nothing], 0.0)
    assert_allclose(alpha[nothing], 1.0 / 9)
    found, message = np.zeros((N, 9)), np.ones(9)
    backward(case.index, case.table, case.begins, case.transition, message, alpha, found)
    assert_allclose(found.sum(axis=1), 1.0)
