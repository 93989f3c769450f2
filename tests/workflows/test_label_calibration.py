"""Calibration of every label by itself: what it gains where labels are biased, and what it loses where none is."""

import importlib

import numpy as np
import pytest
from scipy.special import expit


@pytest.fixture
def script(scripts):
    return importlib.import_module("label_calibration")


@pytest.fixture
def events():
    rng = np.random.default_rng(0)
    z = rng.normal(-1.0, 2.0, (20_000, 3))
    return z, (rng.random(z.shape) < expit(z)).astype(float)


def test_biased_log_odds_are_corrected_by_every_method_that_can(script, events):
    z, truth = events
    calibrations, exact = script.CALIBRATIONS, script.loss(z, truth)
    shifted, scaled = z + np.array([1.0, -0.5, 0.0]), 2.0 * z
    for name, fit in calibrations.items():
        assert script.loss(script.calibrated(shifted, truth, fit), truth) < exact * 1.01, name
    for name in ("Platt, 1", "isotonic"):
        assert script.loss(script.calibrated(scaled, truth, calibrations[name]), truth) < exact * 1.01
    offset = script.calibrated(scaled, truth, calibrations["offset, 1"])
    assert script.loss(offset, truth) > exact * 1.02


def test_numbers_of_documents_of_calibrated_labels_are_as_far_as_chance(script, events):
    z, truth = events
    distance, of_chance = script.distances(z, truth)
    assert distance < 3.0 * of_chance
    assert script.distances(z + 0.5, truth)[0] > 5.0 * of_chance
