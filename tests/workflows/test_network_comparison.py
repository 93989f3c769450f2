"""The comparison of networks: its measures, and a run of the system that needs no other package."""

import importlib

import numpy as np
import pytest


@pytest.fixture
def networks(scripts):
    return importlib.import_module("networks")


@pytest.mark.parametrize("per_node", [0, 5])
def test_the_true_network_in_any_order_sign_and_scale_has_no_error(networks, per_node):
    truth = networks.population(6, per_node, 0)
    rng = np.random.default_rng(1)
    nodes, signs = rng.permutation(6), rng.choice([-1.0, 1.0], 6)
    scale = np.sqrt(np.diag(truth.second))
    weights = (truth.weights * scale / scale[:, None])[np.ix_(nodes, nodes)] * np.outer(signs, signs)
    assert networks.score(truth, (truth.loadings[:, nodes] * signs, weights)) == pytest.approx(
        {"error": 0.0, "edges": 1.0}
    )
    assert networks.score(truth, (truth.loadings, np.zeros((6, 6))))["error"] == pytest.approx(1.0)


def test_errors_of_a_fit_fall_with_the_number_of_rows(networks):
    truth = networks.population(4, 5, 0)
    errors = [
        networks.score(truth, networks.by_moments(4, 0, "independent")(truth.sample(n)[0]))
        for n in (2_000, 50_000)
    ]
    assert errors[1]["edges"] == 1.0
    assert errors[1]["error"] < min(0.1, errors[0]["error"] / 2.0)
