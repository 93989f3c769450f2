import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import UsageError
from distmom.linalg import multilinear
from distmom.moments.dirichlet import (
    least_skewness,
    proportions,
    second_moment,
    shifts,
    third_moment,
    third_moment_slices,
    third_moment_steps,
    topic_factor,
)
from distmom.simulate.topics import TopicPopulation


def raw_moments(population):
    """Moments of one, two and three positions, from the moments of the shares."""
    k, topics = len(population.alpha), population.topics
    e1, e2, e3 = np.zeros(k), np.zeros((k, k)), np.zeros((k, k, k))
    for tensor in (e1, e2, e3):
        for index in itertools.product(range(k), repeat=tensor.ndim):
            tensor[index] = population.share_moment(np.bincount(index, minlength=k).tolist())
    return topics @ e1, topics @ e2 @ topics.T, multilinear(e3, topics.T, topics.T, topics.T)


@pytest.mark.parametrize("alpha", [(0.3, 0.8, 0.5), (5.0, 1.0, 9.0), (0.01, 0.02, 0.03)])
def test_corrected_moments_are_diagonal_in_the_topics(alpha):
    topics = np.random.default_rng(0).dirichlet(np.ones(5), 3).T
    population, alpha0, alpha = TopicPopulation(alpha, topics), sum(alpha), np.array(alpha)
    m1, e2, e3 = raw_moments(population)
    expected2 = (topics * (alpha / (alpha0 * (alpha0 + 1)))) @ topics.T
    factors = 2 * alpha / (alpha0 * (alpha0 + 1) * (alpha0 + 2))
    expected3 = np.einsum("k,ak,bk,ck->abc", factors, topics, topics, topics)
    assert_allclose(second_moment(m1, e2, alpha0), expected2, atol=1e-14)
    assert_allclose(third_moment(m1, e2, e3, alpha0), expected3, atol=1e-14)
    directions = np.random.default_rng(1).standard_normal((5, 4))
    slices = np.einsum("abc,cl->abl", e3, directions)
    assert_allclose(
        third_moment_slices(m1, e2, slices, directions, alpha0),
        np.einsum("abc,cl->abl", expected3, directions),
        atol=1e-14,
    )
    # What whitening makes of it: eigenvalues, from which proportions and topics follow.
    eigenvalues = factors * (alpha / (alpha0 * (alpha0 + 1))) ** -1.5
    assert_allclose(proportions(eigenvalues, alpha0), alpha / alpha0, rtol=1e-12)
    scale = topic_factor(alpha0) * eigenvalues * np.sqrt(alpha / (alpha0 * (alpha0 + 1)))
    assert_allclose(scale, 1.0, rtol=1e-12)


def test_limits_are_raw_and_central_moments():
    m1, e2, e3 = raw_moments(TopicPopulation([1.0, 2.0], np.array([[0.2, 0.5], [0.8, 0.5]])))
    assert third_moment(m1, e2, e3, 0.0) is e3
    assert_allclose(second_moment(m1, e2, 0.0), e2)
    assert shifts(np.inf) == (1.0, 1.0, 2.0)
    assert_allclose(third_moment(m1, e2, e3, 1e12), third_moment(m1, e2, e3, np.inf), atol=1e-10)
    assert_allclose(proportions(np.array([-1.0, 2.0]), 0.0), [0.0, 0.25])
    with pytest.raises(UsageError, match="alpha0: expected a number of at least 0, got -1"):
        shifts(-1.0)


@pytest.mark.parametrize("alpha0", [0.0, 0.5, 30.0])
def test_the_least_skewness_is_that_of_the_only_topic(alpha0):
    assert_allclose(proportions(np.array([least_skewness(alpha0)]), alpha0), 1.0, rtol=1e-14)


@pytest.mark.parametrize("alpha0", [0.0, 0.7, np.inf])
def test_power_steps_are_those_of_the_corrected_third_moment(alpha0):
    rng = np.random.default_rng(1)
    m1, e2, e3 = rng.standard_normal(4), rng.standard_normal((4, 4)), rng.standard_normal((4, 4, 4))
    e2 = e2 + e2.T
    e3 = sum(e3.transpose(order) for order in itertools.permutations(range(3)))
    vectors = rng.standard_normal((4, 6))
    whole = third_moment(m1, e2, e3, alpha0)
    expected = np.einsum("abc,bl,cl->al", whole, vectors, vectors)
    steps = np.einsum("abc,bl,cl->al", e3, vectors, vectors)
    assert_allclose(third_moment_steps(m1, e2, steps, vectors, alpha0), expected, atol=1e-12)
