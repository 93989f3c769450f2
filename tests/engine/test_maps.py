"""Maps over rows of tall matrices, without a corpus or an engine."""

import numpy as np
import pytest

from distmom.engine import InProcess, RunDirectory
from distmom.engine.maps import Maps
from distmom.engine.stored.arrays import SLAB_ROWS
from distmom.engine.stored.held import HELD_STATE_BYTES, HeldArray, Holding


def scaled(rows, X, factor):
    return {"scaled": X * factor}, {"total": X.sum(axis=0), "first": np.array(float(rows.start == 0))}


@pytest.mark.parametrize("durable", [True, False])
def test_a_map_reads_and_writes_slabs_of_rows(tmp_path, durable):
    X = np.random.default_rng(0).normal(size=(SLAB_ROWS + 100, 3))
    directory, spent = RunDirectory(tmp_path, durable=durable), {"kernels": 5.0}
    maps = Maps(directory, InProcess(), Holding(True, durable, None), spent)
    stored, sums = maps.map_rows(scaled, [directory.put(X)], len(X), {"scaled": (3, "float64")}, 2.0)
    np.testing.assert_array_equal(stored["scaled"].load(), 2.0 * X)
    np.testing.assert_allclose(sums["total"], X.sum(axis=0), rtol=1e-12)
    assert sums["first"] == 1.0
    assert isinstance(stored["scaled"], HeldArray) is not durable
    assert spent["kernels"] > 5.0


@pytest.mark.parametrize(
    ("in_process", "durable", "held"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_states_are_held_by_the_process_that_reads_them_alone(in_process, durable, held):
    holding = Holding(in_process, durable, None)
    assert holding.holds_states(HELD_STATE_BYTES) is held
    assert not holding.holds_states(HELD_STATE_BYTES + 1)
    assert holding.holds_sums(1) is in_process
