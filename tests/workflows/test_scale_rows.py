"""The planted data of fits out of core: a shard depends on its number alone, and the models recover it."""

import importlib

import numpy as np
import pytest
from numpy.testing import assert_array_equal


@pytest.fixture
def planted_rows(scripts):
    return importlib.import_module("planted_rows")


@pytest.mark.parametrize(
    "kind",
    [
        "spherical",
        "regression-search",
        "subspace-search",
        "network",
        "ica",
        "latent-tree",
        "factors",
        "hmm",
        "factorial-hmm",
    ],
)
def test_a_shard_is_determined_by_its_number(planted_rows, kind):
    draw = planted_rows.KINDS[kind].data.draw
    (first,), (again,), (other,) = (draw(i, 2 * planted_rows.STEPS).arrays.values() for i in (4, 4, 5))
    assert_array_equal(first, again)
    assert (first != other).any()
    assert len(first) == 2 * planted_rows.STEPS


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("spherical", 0.4),
        ("multiview", 0.4),
        ("gaussian-search", 0.4),
        ("regression-search", 0.4),
        ("subspace-search", 0.2),
        ("network", 0.05),
        ("ica", 0.005),
        ("latent-tree", 0.2),
    ],
)
def test_a_model_of_one_shard_is_near_the_truth(planted_rows, kind, most):
    planted = planted_rows.KINDS[kind]
    rows = planted.data.draw(0, 40_000).arrays["rows"]
    model = planted.model()
    fitted = model.fit(rows[:, :-1], rows[:, -1]) if kind == "regression-search" else model.fit(rows)
    assert 0.0 < planted.error(fitted) < most


@pytest.mark.parametrize(("kind", "most"), [("factors", 0.2), ("factorial-hmm", 0.4)])
def test_a_model_of_units_of_rows_is_near_the_truth(planted_rows, kind, most):
    planted = planted_rows.KINDS[kind]
    shard = planted.data.draw(0, 40_000)
    rows, lengths = shard.arrays["rows"], np.diff(shard.starts)
    model = planted.model()
    if kind == "factors":
        fitted = model.fit(rows, groups=np.repeat(np.arange(len(lengths)), lengths))
    else:
        fitted = model.fit(rows, lengths)
    assert 0.0 < planted.error(fitted) < most
