"""The planted data of fits out of core: a shard depends on its number alone, and the models recover it."""

import importlib

import pytest
from numpy.testing import assert_array_equal


@pytest.fixture
def scale_rows(scripts):
    return importlib.import_module("scale_rows")


@pytest.mark.parametrize("kind", ["spherical", "network", "ica", "hmm"])
def test_a_shard_is_determined_by_its_number(scale_rows, kind):
    draw = scale_rows.KINDS[kind].draw
    (first,), (again,), (other,) = (draw(i, 2 * scale_rows.STEPS).arrays.values() for i in (4, 4, 5))
    assert_array_equal(first, again)
    assert (first != other).any()
    assert len(first) == 2 * scale_rows.STEPS


@pytest.mark.parametrize(("kind", "most"), [("spherical", 0.4), ("network", 0.05), ("ica", 0.005)])
def test_a_model_of_one_shard_is_near_the_truth(scale_rows, kind, most):
    planted = scale_rows.KINDS[kind]
    rows = planted.draw(0, 40_000).arrays["rows"]
    error = planted.error(planted.model().fit(rows))
    assert 0.0 < error < most
