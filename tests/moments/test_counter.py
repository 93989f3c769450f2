import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import kstest

from distmom.errors import UsageError
from distmom.moments.counter import normal_omega, uniforms


def test_omega_rows_do_not_depend_on_who_asks():
    whole = normal_omega(np.arange(1000), 20, seed=3, stream=1)
    words = np.array([999, 0, 17, 17, 512])
    assert normal_omega(words, 20, seed=3, stream=1).tobytes() == whole[words].tobytes()
    assert normal_omega(words.astype(np.uint32), 20, seed=3, stream=1).tobytes() == whole[words].tobytes()
    assert normal_omega(words, 7, seed=3, stream=1).tobytes() == whole[words, :7].tobytes()
    single = normal_omega(words, 20, seed=3, stream=1, dtype=np.float32)
    assert single.tobytes() == whole[words].astype(np.float32).tobytes()
    assert normal_omega([], 3).shape == (0, 3)


def test_omega_bits_are_pinned():
    """A stored run must find the same matrix in a later version."""
    row = normal_omega([0, 2**40], 2, seed=0)
    np.testing.assert_array_equal(
        row, [[2.269491816337967, -0.06781247199405875], [0.43291740781181937, -0.3188867578042945]]
    )


def test_seeds_and_streams_give_unrelated_matrices():
    draws = [normal_omega(np.arange(4000), 1, seed=s, stream=t)[:, 0] for s in (0, 1) for t in (0, 1)]
    assert np.abs(np.corrcoef(draws) - np.eye(4)).max() < 0.06


def test_omega_is_standard_normal_and_uncorrelated():
    Z = normal_omega(np.arange(20000), 10, seed=1)
    assert kstest(Z.ravel(), "norm").pvalue > 1e-3
    for column in (Z[:, 0], Z[:, 9], Z[:2000].T.ravel()):
        assert kstest(column, "norm").pvalue > 1e-3
    # 200000 and 20000 draws: standard errors 0.002 and 0.007.
    assert abs(Z.mean()) < 0.01
    assert np.abs(np.cov(Z.T) - np.eye(10)).max() < 0.05
    neighbours = np.corrcoef(Z[:-1, 0], Z[1:, 0])[0, 1]
    assert abs(neighbours) < 0.03


def test_normal_quantile_is_exact_to_seven_digits():
    rows = np.arange(30000)
    U, Z = uniforms(rows, 3, seed=5), normal_omega(rows, 3, seed=5)
    assert 0 < U.min() < 1e-3
    assert 1 - 1e-3 < U.max() < 1
    np.testing.assert_allclose(Z, ndtri(U), rtol=3e-7, atol=1e-9)


def test_bad_coordinates():
    with pytest.raises(UsageError, match="one-dimensional integer array, got float64"):
        normal_omega([0.5], 2)
    with pytest.raises(UsageError, match="must not be negative, got -1"):
        normal_omega([3, -1], 2)
    with pytest.raises(UsageError, match="n_columns, seed and stream"):
        normal_omega([3], 2, seed=-1)
