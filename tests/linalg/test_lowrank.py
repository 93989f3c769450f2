"""Matrices of low rank beside a diagonal: exact ones, trees, and sampled covariances."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import NumericalError, UsageError
from distmom.linalg.lowrank import find_split, split_diagonal


def parts_of(n, seed=0):
    return np.array_split(np.random.default_rng(seed).permutation(n), 3)


def test_a_product_of_different_factors_beside_a_diagonal_is_split_exactly():
    """Lemma 5.1."""
    rng = np.random.default_rng(0)
    low = rng.standard_normal((30, 4)) @ rng.standard_normal((4, 30))
    diagonal = rng.uniform(-1.0, 2.0, 30)
    found = split_diagonal(low + np.diag(diagonal), 4, parts_of(30))
    assert_allclose(found.diagonal, diagonal, atol=1e-10)
    assert_allclose(found.low_rank, low, atol=1e-10)
    assert found.off_diagonal_share < 1e-10


def ternary(levels, seed=0):
    """Return the factors of the leaves of ternary trees: every leaf depends on one hidden parent."""
    rng = np.random.default_rng(seed)
    return np.kron(np.eye(levels), np.ones((3, 1))) * rng.uniform(0.5, 1.5, (3 * levels, 1))


def test_the_leaves_of_a_tree_are_split_where_random_partitions_fail():
    factors = ternary(9)
    rng = np.random.default_rng(1)
    latent = rng.standard_normal((9, 9)) / 6.0
    low = factors @ (np.eye(9) + latent @ latent.T) @ factors.T
    diagonal = rng.uniform(0.5, 1.0, 27)
    n_valid = 0
    for seed in range(20):
        try:
            n_valid += (
                split_diagonal(low + np.diag(diagonal), 9, parts_of(27, seed)).off_diagonal_share < 1e-6
            )
        except NumericalError:
            continue
    assert n_valid == 0
    found = find_split(low + np.diag(diagonal), 9, n_partitions=5)
    assert_allclose(found.diagonal, diagonal, atol=1e-9)
    assert found.off_diagonal_share < 1e-9


def test_errors_of_sampled_covariances_fall_with_the_root_of_the_number_of_rows():
    rng = np.random.default_rng(2)
    factors, deviations = rng.standard_normal((24, 3)), np.sqrt(rng.uniform(0.5, 1.0, 24))
    errors = []
    for n in (1_000, 16_000):
        found = []
        for _ in range(3):
            X = rng.standard_normal((n, 3)) @ factors.T + rng.standard_normal((n, 24)) * deviations
            split = find_split(np.cov(X.T), 3, n_partitions=10)
            found.append(np.sqrt(np.mean((split.diagonal - deviations**2) ** 2)))
            assert_allclose(split.low_rank + np.diag(split.diagonal), np.cov(X.T), atol=1e-12)
        errors.append(np.mean(found))
    assert 2.5 < errors[0] / errors[1] < 6.5


def test_parts_that_are_no_partition_or_too_small_are_refused():
    matrix = np.eye(9)
    with pytest.raises(UsageError, match="expected a partition"):
        split_diagonal(matrix, 2, [np.arange(3), np.arange(3), np.arange(3, 9)])
    with pytest.raises(UsageError, match="expected at least 4 rows in each"):
        split_diagonal(matrix, 4, np.array_split(np.arange(9), 3))
    with pytest.raises(UsageError, match="rank: expected at most 3, a third of the 9 rows, got 4"):
        find_split(matrix, 4)
    with pytest.raises(NumericalError, match="no partition of the rows has three parts of rank 2"):
        find_split(matrix, 2, n_partitions=3)
