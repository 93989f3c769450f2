"""Conditions of expansion: each compared with its definition, by brute force."""

import itertools

import numpy as np
import pytest

from distmom.errors import UsageError
from distmom.linalg.expansion import expands, is_generic, least_excess, program_certificate
from distmom.linalg.sparse import sparse_program


def bernoulli_gaussian(n, k, density, seed):
    rng = np.random.default_rng(seed)
    matrix = (rng.random((n, k)) < density) * rng.standard_normal((n, k))
    rows = np.flatnonzero(~(matrix != 0.0).any(axis=1))
    matrix[rows, rng.integers(0, k, len(rows))] = rng.standard_normal(len(rows))
    return matrix


@pytest.mark.parametrize(("n", "k", "density"), [(10, 2, 0.5), (12, 5, 0.3), (20, 7, 0.2)])
def test_the_least_excess_is_that_of_all_sets_of_columns(n, k, density):
    for seed in range(4):
        support = bernoulli_gaussian(n, k, density, seed) != 0.0
        expected = min(
            int(support[:, list(s)].any(axis=1).sum()) - size
            for size in range(2, k + 1)
            for s in itertools.combinations(range(k), size)
        )
        assert least_excess(support) == expected
        assert expands(support) == (expected >= support.sum(axis=0).max())


def caterpillar(k, n_leaves):
    """Return the support of a path of hidden nodes with leaves of their own."""
    return np.kron(np.eye(k, dtype=bool), np.ones((n_leaves, 1), bool))


def test_trees_have_the_expansion_that_is_known_for_them():
    # A regular tree expands from two leaves per node on.
    assert not expands(caterpillar(4, 1))
    assert expands(caterpillar(4, 2))
    # Leaves of 2 and 4: 2 + 2 >= 2 + 4 does not hold, and 3 + 3 >= 2 + 4 does.
    uneven = np.vstack([caterpillar(4, 2), np.eye(4, dtype=bool)[[0, 0]]])
    assert not expands(uneven)
    assert expands(np.vstack([caterpillar(4, 3), np.eye(4, dtype=bool)[[0]]]))
    with pytest.raises(UsageError, match="expected at least 2 columns, got 1"):
        least_excess(np.ones((3, 1), bool))


def test_gaussian_entries_are_generic_and_equal_ones_are_not():
    matrix = bernoulli_gaussian(9, 3, 0.4, 0)
    assert is_generic(matrix)
    # The difference of two columns is zero in the two rows that they share.
    planted = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 0.0], [0.0, 4.0]])
    assert not is_generic(planted)
    planted[1, 1] = 2.5
    assert is_generic(planted)
    with pytest.raises(UsageError, match="submatrices are too many"):
        is_generic(np.ones((60, 8)))


def test_generic_matrices_satisfy_their_definition_for_cancelling_vectors():
    matrix = bernoulli_gaussian(10, 4, 0.5, 1)
    assert is_generic(matrix)
    for size in (2, 3, 4):
        for s in itertools.combinations(range(4), size):
            reached = np.flatnonzero((matrix[:, s] != 0.0).any(axis=1))
            for rows in itertools.combinations(reached, size - 1):
                v = np.linalg.svd(matrix[np.ix_(rows, s)])[2][-1]
                if (np.abs(v) > 1e-9).all():
                    n_entries = int((np.abs(matrix[:, s] @ v) > 1e-9).sum())
                    assert n_entries > len(reached) - size


def test_the_certificate_of_a_program_predicts_its_solution():
    outcomes = []
    for seed in range(3):
        matrix = bernoulli_gaussian(24, 4, 0.35, seed)
        basis = np.linalg.qr(matrix)[0]
        for row in range(0, 24, 2):
            vector = basis @ sparse_program(basis, basis[row])
            for column in np.flatnonzero(matrix[row]):
                certificate = program_certificate(matrix, row, int(column))
                expected = matrix[:, column] / matrix[row, column]
                assert (certificate < 1.0) == bool(np.abs(vector - expected).max() < 1e-8)
                outcomes.append(certificate < 1.0)
    assert 10 < sum(outcomes) < len(outcomes) - 10
    zero = int(np.flatnonzero(matrix[0] == 0.0)[0])
    with pytest.raises(UsageError, match="expected one that is not zero in row 0"):
        program_certificate(matrix, 0, zero)
