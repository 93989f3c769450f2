from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import kstest

from distmom.engine import Columns
from distmom.errors import UsageError
from distmom.moments.counter import uniforms
from distmom.moments.sketching import SketchPass, omega, omega_key


def test_omega_rows_do_not_depend_on_who_asks():
    whole = omega(np.arange(1000), 20, omega_key(3, 1))
    words = np.array([999, 0, 17, 17, 512])
    assert omega(words, 20, omega_key(3, 1)).tobytes() == whole[words].tobytes()
    assert omega(words.astype(np.uint32), 20, omega_key(3, 1)).tobytes() == whole[words].tobytes()
    assert omega(words, 7, omega_key(3, 1)).tobytes() == whole[words, :7].tobytes()
    assert omega([], 3, omega_key(0)).shape == (0, 3)


def test_omega_bits_are_pinned():
    """A stored run must find the same matrix in a later version."""
    row = omega(np.array([0, 2**40]), 2, omega_key(0))
    assert row.tobytes().hex() == "b7a0b8bff378f4be43a9b5bf9315bfbd"


def test_seeds_and_streams_give_unrelated_matrices():
    draws = [omega(np.arange(4000), 1, omega_key(s, t))[:, 0] for s in (0, 1) for t in (0, 1)]
    assert np.abs(np.corrcoef(draws) - np.eye(4)).max() < 0.06


def test_omega_is_uniform_with_unit_variance_and_uncorrelated():
    Z = omega(np.arange(20000), 10, omega_key(1)).astype(float)
    half = np.sqrt(3.0)
    for column in (Z.ravel(), Z[:, 0], Z[:, 9], Z[:2000].T.ravel()):
        assert kstest(column, "uniform", args=(-half, 2 * half)).pvalue > 1e-3
    # 200000 and 20000 draws: standard errors 0.002 and 0.007.
    assert abs(Z.mean()) < 0.01
    assert abs(Z.var() - 1.0) < 0.01
    assert np.abs(np.corrcoef(Z.T) - np.eye(10)).max() < 0.03
    lagged = [np.corrcoef(Z[lag:, 0], Z[: -lag or None, 0])[0, 1] for lag in (1, 2, 64)]
    assert np.abs(lagged).max() < 0.03


def test_a_small_test_matrix_has_full_rank():
    for seed in range(50):
        assert np.linalg.cond(omega(np.arange(20), 20, omega_key(seed)).astype(float)) < 1e5


def test_uniforms_depend_on_their_row_alone():
    rows = np.array([5, 0, 123456])
    U = uniforms(np.arange(6), 3, seed=5)
    assert uniforms(rows[:2], 3, seed=5).tobytes() == U[rows[:2]].tobytes()
    assert ((U > 0) & (U < 1)).all()
    assert kstest(uniforms(np.arange(20000), 1, seed=2).ravel(), "uniform").pvalue > 1e-3


def test_bad_coordinates_are_refused():
    with pytest.raises(UsageError, match="one-dimensional integer array"):
        uniforms([0.5], 2)
    with pytest.raises(UsageError, match="row numbers: expected at least 0, got -1"):
        uniforms([3, -1], 2)
    with pytest.raises(UsageError, match="got 2, -1 and 0"):
        uniforms([3], 2, seed=-1)


def test_a_pass_multiplies_with_its_columns_of_the_test_matrix_or_of_a_basis():
    whole = omega(np.arange(9), 8, omega_key(3)).astype(np.float64)
    basis = np.arange(45.0).reshape(9, 5)
    sketch = SketchPass(9, n_columns=5, seed=3, n_probes=3)
    slabs = Columns((basis[:, :2].copy(), basis[:, 2:].copy()))
    for own in (None, slice(1, 4)):
        cut = own or slice(0, 5)
        assert replace(sketch, columns=own).matrix().tobytes() == whole[:, cut].tobytes()
        for stored in (basis, basis.astype(np.float32), slabs):
            found = replace(sketch, columns=own, basis=stored).matrix()
            assert found.dtype == np.float64
            assert_array_equal(found, basis[:, cut])
    # A slab of the basis alone, of which the first column has number 2.
    alone = replace(sketch, basis=slabs.parts[1], first_column=2, columns=slice(2, 5))
    assert_array_equal(alone.matrix(), basis[:, 2:])
    assert sketch.probe_matrix().tobytes() == whole[:, 5:].tobytes()
    assert_array_equal(replace(sketch, probes=basis[:, :3]).probe_matrix(), basis[:, :3])
