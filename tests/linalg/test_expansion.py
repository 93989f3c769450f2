"""Conditions of expansion: each compared with its definition, by brute force."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from distmom.errors import UsageError
from distmom.linalg.expansion.conditions import (
    expands,
    is_generic,
    largest_ratio,
    least_excess,
    program_certificate,
    program_conditions,
)
from distmom.linalg.expansion.sparse import sparse_program


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


@pytest.mark.parametrize("decades", [3, 12, 140])
def test_units_of_rows_and_columns_do_not_decide_whether_a_matrix_is_generic(decades):
    rng = np.random.default_rng(0)
    generic = bernoulli_gaussian(9, 3, 0.4, 0)
    planted = generic.copy()
    planted[:2, :2] = 1.0
    assert is_generic(generic)
    assert not is_generic(planted)
    for _ in range(5):
        units = 10.0 ** rng.uniform(-decades, decades, (9, 1)), 10.0 ** rng.uniform(-decades, decades, 3)
        assert is_generic(generic * units[0] * units[1])
        assert not is_generic(planted * units[0] * units[1])


@pytest.mark.parametrize("unit", [1e-150, 1e-9, 1e12, 1e150])
def test_units_change_neither_certificates_nor_conditions_of_programs(unit):
    matrix = bernoulli_gaussian(24, 4, 0.35, 0)
    expected = program_conditions(matrix)
    columns = np.array([unit, 1.0, 1.0, 1.0])
    for row in range(0, 24, 4):
        for column in np.flatnonzero(matrix[row]):
            certificate = program_certificate(matrix, row, int(column))
            for scaled in (matrix * unit, matrix * columns):
                np.testing.assert_allclose(
                    program_certificate(scaled, row, int(column)), certificate, rtol=1e-6
                )
    found = program_conditions(matrix * unit)
    np.testing.assert_allclose(found.first, expected.first)
    np.testing.assert_allclose(found.second, expected.second)


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


def ratio_by_signs(above, below):
    """Maximise ``s'C v`` over ``|B v|_1 <= 1`` for all signs s, by linear programs."""
    n, r = below.shape
    limits = np.block([[below, -np.eye(n)], [-below, -np.eye(n)], [np.zeros((1, r)), np.ones((1, n))]])
    found = [
        linprog(
            np.append(-np.array(signs) @ above, np.zeros(n)), A_ub=limits, b_ub=np.append(np.zeros(2 * n), 1.0),
            bounds=[(None, None)] * (r + n), method="highs",
        )
        for signs in itertools.product([-1.0, 1.0], repeat=len(above))
    ]  # fmt: skip
    return max(-each.fun if each.status == 0 else np.inf for each in found)


@pytest.mark.parametrize(("m", "n", "r"), [(3, 5, 1), (4, 7, 2), (4, 8, 3), (3, 7, 4), (2, 3, 4)])
def test_largest_ratios_are_those_of_linear_programs_for_all_signs(m, n, r):
    rng = np.random.default_rng(0)
    for _ in range(4):
        above, below = rng.standard_normal((m, r)), rng.standard_normal((n, r))
        below[rng.random(below.shape) < 0.3] = 0.0
        found = largest_ratio(above, below)
        assert found == pytest.approx(ratio_by_signs(above, below), rel=1e-8)
        for v in rng.standard_normal((100, r)):
            assert np.abs(above @ v).sum() <= found * np.abs(below @ v).sum() * (1.0 + 1e-12)
    assert largest_ratio(np.ones((2, 0)), np.ones((3, 0))) == 0.0
    with pytest.raises(UsageError, match="sets of rows are too many to find the largest ratio"):
        largest_ratio(np.ones((1, 9)), rng.standard_normal((40, 9)))


def with_gaps(n, k, density, share, seed):
    """Return a matrix whose entries beside the largest one of each row are multiplied by a share."""
    matrix = bernoulli_gaussian(n, k, density, seed)
    largest = np.abs(matrix).argmax(axis=1)[:, None] == np.arange(k)
    return np.where(largest, matrix, share * matrix)


def test_programs_find_the_dominant_column_where_the_conditions_of_theorem_3_2_hold():
    n_hold, n_more, n_whole = 0, 0, 0
    for seed in range(12):
        matrix = with_gaps(24, 4, 0.12 + 0.06 * (seed % 4), 0.7, seed)
        found = program_conditions(matrix)
        assert (found.dominant == np.abs(matrix).argmax(axis=1)).all()
        basis = np.linalg.qr(matrix)[0]
        for row in range(24):
            column = found.dominant[row]
            own = matrix[:, column] / matrix[row, column]
            finds = np.abs(basis @ sparse_program(basis, basis[row]) - own).max() < 1e-8
            if found.rows[row]:
                assert finds
                assert program_certificate(matrix, row, int(column)) < 1.0
                n_hold += 1
            else:
                n_more += finds
        n_whole += found.hold
    # They hold in many rows, and in whole matrices, but are not necessary.
    assert n_hold > 150
    assert n_whole > 2
    assert n_more > 15


def test_each_condition_of_theorem_3_2_is_noticed_when_it_fails():
    matrix = np.kron(np.eye(3), np.array([[1.0], [2.0], [1.5]]))
    found = program_conditions(matrix)
    assert found.hold
    assert (found.gap == 1.0).all()
    assert (found.first == 0.0).all()
    assert (found.second == 0.0).all()
    # Two largest entries, so no gap.
    tied = matrix.copy()
    tied[0, 1] = -1.0
    found = program_conditions(tied)
    assert found.gap[0] == 0.0
    assert not found.hold
    assert found.rows[3:].all()
    # A column that is the largest in no row.
    hidden = np.vstack([matrix, matrix[:, [2]] @ np.array([[0.0, 0.0, 1.0]])])
    hidden[:, 2] *= 0.3
    hidden[6:9, 0] = hidden[9:, 1] = 1.0
    hidden[12:, 0] = 1.0
    assert set(program_conditions(hidden).dominant) == {0, 1}
    assert not program_conditions(hidden).hold
    # (i) compares the masses of another column outside and inside the rows that share a column with a row.
    shared = matrix.copy()
    shared[0, 1], shared[0, 0] = 0.2, 10.0
    found = program_conditions(shared)
    # Row 1 has column 0 alone, which has rows 0 to 2; column 1 has 0.2 there and 4.5 elsewhere.
    assert found.first[1] == pytest.approx(0.2 / 4.5)
    # Row 0 has both: column 1 has 4.5 outside column 0, and 0.2 inside beside 0.02 times the sum of column 0.
    assert found.gap[0] == pytest.approx(0.98)
    assert found.second[0] == pytest.approx((0.2 + 0.02 * 13.5) / 4.5)
    shared[0, 1] = 5.0
    assert program_conditions(shared).first[1] > 1.0
