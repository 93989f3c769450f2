"""Weights of directed acyclic graphs, from responses in any order and sign, and from second moments."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import NumericalError, UsageError
from distmom.linalg.expansion.networks import network_of_factors, network_of_order


def network(k, seed):
    """Return weights, in which parents precede their children only after a permutation, and deviations."""
    rng = np.random.default_rng(seed)
    weights = np.tril((rng.random((k, k)) < 0.5) * rng.uniform(-1.5, 1.5, (k, k)), -1)
    nodes = rng.permutation(k)
    return weights[np.ix_(nodes, nodes)], rng.uniform(0.5, 2.0, k), np.argsort(nodes), rng


def precedes(order, weights):
    """Return whether parents precede their children."""
    return not np.triu(weights[np.ix_(order, order)]).any()


@pytest.mark.parametrize("seed", range(5))
def test_responses_in_any_order_sign_and_scale_give_back_the_weights(seed):
    weights, deviations, _, rng = network(7, seed)
    responses = np.linalg.inv(np.eye(7) - weights) * deviations
    factors = responses[:, rng.permutation(7)] * rng.choice([-1.0, 1.0], 7)
    found = network_of_factors(factors)
    assert_allclose(found.weights, weights, atol=1e-10)
    assert_allclose(found.deviations, deviations, atol=1e-10)
    assert precedes(found.order, weights)
    assert found.against < 1e-10
    # Coefficients in columns of another scale and sign: h / t has the weights T^-1 Lambda T.
    scales = rng.uniform(0.5, 2.0, 7) * rng.choice([-1.0, 1.0], 7)
    scaled = network_of_factors(factors / scales[:, None])
    assert_allclose(scaled.weights, weights * scales / scales[:, None], atol=1e-10)
    assert_allclose(scaled.deviations, deviations / np.abs(scales), atol=1e-10)


@pytest.mark.parametrize("decades", [3, 8, 120])
def test_units_of_nodes_change_neither_the_order_nor_the_weights_for_noises_of_variance_one(decades):
    weights, deviations, _, rng = network(6, 2)
    responses = np.linalg.inv(np.eye(6) - weights) * deviations
    units = 10.0 ** rng.uniform(-decades, decades, 6)
    exact = network_of_factors(responses * units[:, None])
    assert_allclose(exact.weights * units / units[:, None], weights, atol=1e-10)
    assert_allclose(exact.deviations / units, deviations, rtol=1e-10)
    assert precedes(exact.order, weights)
    sampled = responses + 0.2 * rng.standard_normal((6, 6))
    found, scaled = network_of_factors(sampled), network_of_factors(sampled * units[:, None])
    assert_allclose(scaled.weights * units / units[:, None], found.weights, atol=1e-10)
    assert scaled.order.tolist() == found.order.tolist()
    assert_allclose(scaled.against, found.against)


def test_errors_of_responses_are_of_the_size_of_their_noise():
    weights, deviations, _, rng = network(6, 1)
    responses = np.linalg.inv(np.eye(6) - weights) * deviations
    found = network_of_factors(responses + 1e-4 * rng.standard_normal((6, 6)))
    assert 0.0 < found.against < 1e-2
    assert np.abs(found.weights - weights).max() < 1e-2
    assert precedes(found.order, found.weights)


@pytest.mark.parametrize("seed", range(3))
def test_second_moments_and_the_order_give_back_the_weights(seed):
    weights, deviations, order, _ = network(7, seed)
    responses = np.linalg.inv(np.eye(7) - weights) * deviations
    found = network_of_order(responses @ responses.T, order)
    assert_allclose(found.weights, weights, atol=1e-10)
    assert_allclose(found.deviations, deviations, atol=1e-10)
    wrong = network_of_order(responses @ responses.T, order[::-1])
    again = np.linalg.inv(np.eye(7) - wrong.weights) * wrong.deviations
    assert_allclose(again @ again.T, responses @ responses.T, atol=1e-10)
    assert (np.abs(wrong.weights) > 1e-9).sum() > (weights != 0.0).sum()


def test_dependent_factors_and_moments_are_refused():
    with pytest.raises(NumericalError, match="the factors of 3 nodes are linearly dependent"):
        network_of_factors(np.ones((3, 3)))
    for moment in (np.diag([1.0, -1.0]), np.full((2, 2), np.nan)):
        with pytest.raises(NumericalError, match="not positive definite"):
            network_of_order(moment, np.arange(2))
    for order in (np.zeros(2, int), np.arange(2.0), [0, 1, 2], ["a", "b"]):
        with pytest.raises(
            UsageError, match="order: expected a permutation of 2 nodes in whole numbers, got"
        ):
            network_of_order(np.eye(2), order)
    for moment in (np.ones((2, 3)), np.ones(2), 1.0):
        with pytest.raises(UsageError, match="second: expected a square matrix, got shape"):
            network_of_order(moment, np.arange(2))
