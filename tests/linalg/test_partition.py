"""Partitions of rows into parts of full rank, beside all assignments of the rows to parts."""

import itertools

import numpy as np
import pytest

from distmom.errors import NumericalError, UsageError
from distmom.linalg.expansion.partition import rank_partition
from distmom.linalg.lowrank import split_diagonal


def ranks(matrix, parts):
    return [int(np.linalg.matrix_rank(matrix[part])) for part in parts]


def exists(matrix, n_parts):
    k = matrix.shape[1]
    for places in itertools.product(range(n_parts), repeat=len(matrix)):
        parts = [np.flatnonzero(np.array(places) == i) for i in range(n_parts)]
        if min(map(len, parts)) >= k and ranks(matrix, parts) == [k] * n_parts:
            return True
    return False


@pytest.mark.parametrize(("n", "k", "n_parts"), [(6, 2, 3), (7, 2, 3), (7, 3, 2), (8, 3, 2), (4, 4, 1)])
def test_a_partition_is_found_exactly_where_one_of_all_assignments_has_full_ranks(n, k, n_parts):
    rng, outcomes = np.random.default_rng(0), []
    for _ in range(40):
        # Few directions, so that many rows are dependent.
        directions = rng.integers(-1, 2, (k + 2, k)).astype(float)
        matrix = directions[rng.integers(0, k + 2, n)] * rng.uniform(0.1, 10.0, (n, 1))
        parts = rank_partition(matrix, n_parts)
        assert (parts is not None) == exists(matrix, n_parts)
        outcomes.append(parts is not None)
        if parts is not None:
            assert ranks(matrix, parts) == [k] * n_parts
            assert sorted(np.concatenate(parts)) == list(range(n))
    assert 3 < sum(outcomes) < 37


def test_trees_have_a_partition_from_three_leaves_per_node_on():
    leaves = np.random.default_rng(0).uniform(0.5, 1.0, (15, 1))
    for n_leaves, expected in ((2, False), (3, True)):
        matrix = np.kron(np.eye(5), leaves[:n_leaves])
        assert (rank_partition(matrix) is not None) == expected
    # A column of two leaves, with enough rows in all.
    uneven = np.vstack([np.kron(np.eye(4), leaves[:3]), leaves[:3] * np.eye(4)[0]])[1:]
    assert rank_partition(uneven) is not None
    assert rank_partition(np.delete(uneven, 2, axis=0)) is None


def test_the_partition_splits_a_diagonal_from_a_matrix_of_low_rank():
    rng = np.random.default_rng(1)
    # Three rows per direction, in an order in which equal parts of successive rows are of rank one.
    matrix = np.repeat(np.eye(3), 3, axis=0) * rng.uniform(0.5, 1.5, (9, 1))
    parts = rank_partition(matrix)
    assert ranks(matrix, parts) == [3, 3, 3]
    low, noise = matrix @ matrix.T, rng.uniform(0.5, 1.0, 9)
    found = split_diagonal(low + np.diag(noise), 3, parts)
    np.testing.assert_allclose(found.diagonal, noise, atol=1e-10)
    with pytest.raises(NumericalError, match="has a rank below 3"):
        split_diagonal(low + np.diag(noise), 3, np.arange(9).reshape(3, 3))


@pytest.mark.parametrize("decades", [3, 12, 140])
def test_units_of_rows_and_columns_do_not_decide_whether_there_is_a_partition(decades):
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((9, 3))
    dependent = matrix.copy()
    dependent[2:, 2] = dependent[2:, 1]
    for _ in range(5):
        units = 10.0 ** rng.uniform(-decades, decades, (9, 1)), 10.0 ** rng.uniform(-decades, decades, 3)
        assert rank_partition(matrix * units[0] * units[1]) is not None
        assert rank_partition(dependent * units[0] * units[1]) is None


def test_no_part_is_refused():
    with pytest.raises(UsageError, match="n_parts: expected at least 1, got 0"):
        rank_partition(np.eye(2), 0)
