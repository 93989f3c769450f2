"""Calibration of every label by itself: what it gains where labels are biased, and what it loses where none is."""

import importlib

import numpy as np
import pytest
from scipy.special import expit


@pytest.fixture
def workflow(scripts):
    return importlib.import_module("label_calibration")


@pytest.fixture
def events():
    rng = np.random.default_rng(0)
    z = rng.normal(-1.0, 2.0, (20_000, 3))
    return z, (rng.random(z.shape) < expit(z)).astype(float)


def test_biased_log_odds_are_corrected_by_every_method_that_can(workflow, events):
    z, truth = events
    calibrations, exact = workflow.CALIBRATIONS, workflow.loss(z, truth)
    shifted, scaled = z + np.array([1.0, -0.5, 0.0]), 2.0 * z
    for name, fit in calibrations.items():
        assert workflow.loss(workflow.calibrated(shifted, truth, fit), truth) < exact * 1.01, name
    for name in ("Platt, 1", "isotonic"):
        assert workflow.loss(workflow.calibrated(scaled, truth, calibrations[name]), truth) < exact * 1.01
    offset = workflow.calibrated(scaled, truth, calibrations["offset, 1"])
    assert workflow.loss(offset, truth) > exact * 1.02


def test_numbers_of_documents_of_calibrated_labels_are_as_far_as_chance(workflow, events):
    z, truth = events
    distance, of_chance = workflow.distances(z, truth)
    assert distance < 3.0 * of_chance
    assert workflow.distances(z + 0.5, truth)[0] > 5.0 * of_chance
