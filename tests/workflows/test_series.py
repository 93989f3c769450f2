"""Series of measurements: how they are divided and scaled, and a planted chain at a small size."""

import importlib
from argparse import Namespace

import numpy as np
import pytest
from markov import sample
from numpy.testing import assert_allclose


@pytest.fixture
def series():
    return importlib.import_module("series")


def test_the_last_steps_are_held_out_and_scale_nothing(series):
    first, last = series.split(np.arange(10.0)[:, None] * [1.0, -2.0])
    assert_allclose(first.mean(axis=0), 0.0, atol=1e-12)
    assert_allclose(first.std(axis=0), 1.0)
    assert_allclose(last[:, 0], (np.arange(7.0, 10.0) - 3.0) / 2.0)


def test_a_planted_chain_is_likelier_with_its_number_of_states(series):
    states = sample(4000, 0)[1]
    means = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
    steps = np.random.default_rng(1).normal(means[states])
    args = Namespace(features=["auto"], passes=[0, 10], restarts=0)
    parts = series.split(steps)
    (_, two), (moments, passes) = (series.compared("planted", *parts, k, args) for k in (2, 3))
    assert passes["held-out"] > two["held-out"] + 0.02
    assert passes["training"] > moments["training"]
    assert passes["system"] == "3 states, auto + 10"
