"""Networks of real variables: the measures by hand, and planted scales in an order."""

import importlib

import numpy as np
import pytest


@pytest.fixture
def known(scripts):
    return importlib.import_module("known_networks")


def planted(known, n=20_000):
    """Return rows of two scales of six columns, the first of which drives the second."""
    rng = np.random.default_rng(0)
    h = rng.exponential(size=(n, 2)) - 1.0
    h[:, 1] += 0.8 * h[:, 0]
    X = h @ np.kron(np.eye(2), np.ones((1, 6))) + 0.5 * rng.standard_normal((n, 12))
    return known.Known(X, np.repeat([0, 1], 6), np.arange(2))


def test_measures_are_those_by_hand(known):
    data = known.Known(np.diag([1.0, 10.0, 1.0, 1.0, 1.0]), np.array([0, 0, 1, 1, 2]), np.array([0, 1, 2]))
    # Nodes 0, 1 and 2 are the scales 2, 0 and 1; the last column of scale 1 loads most on node 1.
    loadings = np.array([[0, 9.0, 0, 0, 3], [2, 9.5, 1, 2, 1], [1, 0, -2, 1, 0]])
    assert data.is_latent
    found = known.score(data, (loadings, [1, 2, 0]))
    assert found == pytest.approx({"columns": 4 / 5, "pairs": 1.0})
    assert known.score(data, (loadings, [0, 1, 2]))["pairs"] == pytest.approx(1 / 3)
    # With fewer nodes than scales there is no order to compare.
    assert set(known.score(data, (loadings[:2], [0, 1]))) == {"columns"}
    assert "pairs" not in known.score(data._replace(times=None), (loadings, [1, 2, 0]))


def test_observed_nodes_have_only_an_order(known):
    data = known.Known(np.eye(4), np.arange(4), np.arange(4))
    assert not data.is_latent
    assert known.score(data, (np.eye(4), [0, 3, 1, 2])) == {"pairs": pytest.approx(4 / 6)}


def test_planted_scales_and_their_order_are_found(known):
    assert known.score(planted(known), known.by_moments(planted(known), 2)) == {"columns": 1.0, "pairs": 1.0}


def test_few_rows_are_refused_with_the_reason(known, monkeypatch):
    monkeypatch.setattr(known, "by_scores", lambda data, k: (np.eye(2, 12), [0, 1]))
    lines = known.table(known.compared("few", planted(known, 40), 2)).splitlines()
    assert lines[2].startswith("| few | 40 | 2 | LatentNetwork | refused | ")
    assert lines[3].startswith("| few | 40 | 2 | factor analysis, DirectLiNGAM | ")
    assert lines[4].startswith("few, 2: ")


@pytest.mark.realdata
@pytest.mark.parametrize(("name", "shape"), [("abilities", (301, 9)), ("democracy", (75, 11))])
def test_a_few_hundred_real_rows_are_refused(known, name, shape):
    pytest.importorskip("semopy", reason="needs pip install semopy")
    data = known.DATA[name]()
    assert data.X.shape == shape
    with pytest.raises(known.NumericalError, match="level of noise"):
        known.by_moments(data, 3)
