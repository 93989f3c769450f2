"""Sparse vectors in a column space: exact spaces, noisy ones, and comparisons with brute force."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linprog

from distmom.errors import NumericalError, UsageError
from distmom.linalg.expansion.conditions import expands, is_generic, program_certificate
from distmom.linalg.expansion.exhaustive import exhaustive_columns
from distmom.linalg.expansion.latent_networks import sparse_loadings
from distmom.linalg.expansion.projected import projected_columns
from distmom.linalg.expansion.row_choice import constraint_rows, lewis_weights, program_rows
from distmom.linalg.expansion.sparse import (
    pick_sparsest,
    polished,
    sparse_columns,
    sparse_program,
)
from distmom.linalg.whiten import whiten


def bernoulli_gaussian(n, k, density, seed, gap=0.3):
    """Return a sparse matrix in whose rows the largest magnitude exceeds the next by a factor (section 6)."""
    rng = np.random.default_rng(seed)
    matrix = (rng.random((n, k)) < density) * rng.standard_normal((n, k))
    for row in matrix:
        second, first = np.argsort(np.abs(row))[-2:]
        if row[second] != 0.0 and abs(row[second]) > (1.0 - gap) * abs(row[first]):
            row[first] *= abs(row[second]) / (1.0 - gap) / abs(row[first])
    return matrix


def basis_of(matrix, seed=0):
    k = matrix.shape[1]
    return np.linalg.qr(matrix @ np.random.default_rng(seed).standard_normal((k, k)))[0]


def missed(found, matrix):
    """Return the distance of every column from the nearest found one, both of unit norm and any sign."""
    found, matrix = (x / np.linalg.norm(x, axis=0) for x in (found, matrix))
    cosines = matrix.T @ found
    nearest = np.abs(cosines).argmax(axis=1)
    signs = np.sign(cosines[np.arange(len(nearest)), nearest])
    return np.abs(matrix - found[:, nearest] * signs).max(axis=0)


def search(basis, per_column=6, n_rows=40, starts=10, seed=0):
    k = basis.shape[1]
    options = {"n_constraints": per_column * k, "n_program_rows": n_rows * k, "n_starts": starts * k}
    return sparse_columns(basis, **options, seed=seed)


def test_the_dual_program_has_the_solution_of_the_primal_one_in_any_basis():
    matrix = bernoulli_gaussian(25, 4, 0.3, 0)
    for row in range(0, 25, 6):
        if not matrix[row].any():
            continue
        vectors = []
        for seed in (0, 1):
            basis = matrix @ np.random.default_rng(seed).standard_normal((4, 4))
            w = sparse_program(basis, basis[row])
            vectors.append(basis @ w)
            # |U w| <= t, and the sum of t is least.
            eye = np.eye(25)
            primal = linprog(
                np.append(np.zeros(4), np.ones(25)),
                A_ub=np.block([[basis, -eye], [-basis, -eye]]),
                b_ub=np.zeros(50),
                A_eq=np.append(basis[row], np.zeros(25))[None],
                b_eq=[1.0],
                bounds=[(None, None)] * 4 + [(0.0, None)] * 25,
            )
            assert_allclose(basis @ w, basis @ primal.x[:4], atol=1e-8)
        assert_allclose(*vectors, atol=1e-8)
    assert sparse_program(basis, np.zeros(4)) is None


def test_programs_find_columns_of_little_overlap():
    """Theorem 3.2; without random starts."""
    matrix = bernoulli_gaussian(400, 10, 0.05, 0)
    found = search(basis_of(matrix), per_column=3, starts=0)
    assert missed(basis_of(matrix) @ found.coefficients, matrix).max() < 1e-10
    assert found.exact.all()
    assert found.n_programs == 30
    assert found.leaks.max() < 1e-10
    assert sorted(found.zeros) == sorted((matrix == 0.0).sum(axis=0))


def test_exhaustive_search_gives_back_columns_that_expand():
    """Theorem 3.1."""
    n_expanding = 0
    for seed in range(12):
        matrix = bernoulli_gaussian(30, 4, 0.3, seed)
        if expands(matrix != 0.0) and is_generic(matrix):
            n_expanding += 1
            found = exhaustive_columns(basis_of(matrix))
            assert missed(found, matrix).max() < 1e-10
            assert (np.diff((np.abs(found) > 1e-8).sum(axis=0)) >= 0).all()
    assert n_expanding >= 3
    # Two columns with one support: their differences are sparser than they are.
    matrix = np.array([[1.0, 1.0], [2.0, 1.0], [1.0, 3.0]])
    assert missed(exhaustive_columns(basis_of(matrix)), matrix).min() > 0.1
    with pytest.raises(UsageError, match="subsets of 9 of 60 rows are too many"):
        exhaustive_columns(np.linalg.qr(np.random.default_rng(0).standard_normal((60, 10)))[0])


@pytest.mark.parametrize(("n", "k", "density"), [(24, 3, 0.35), (40, 5, 0.3)])
def test_all_columns_of_exact_spaces_are_found_where_their_supports_expand(n, k, density):
    n_tried = 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        matrix = rng.standard_normal((n, k)) * (rng.random((n, k)) < density)
        if not expands(matrix != 0.0):
            continue
        n_tried += 1
        basis = basis_of(matrix)
        found = search(basis)
        assert missed(basis @ found.coefficients, matrix).max() < 1e-8
        assert (np.sort(found.zeros) >= np.sort((matrix == 0.0).sum(axis=0))).all()
    assert n_tried > 10


def test_rows_of_zeros_do_not_make_a_sampled_space_exact():
    matrix = bernoulli_gaussian(60, 4, 0.3, 0)
    noisy = matrix + 0.01 * np.random.default_rng(1).standard_normal(matrix.shape)
    basis, padded = basis_of(noisy), basis_of(np.pad(noisy, ((0, 20), (0, 0))))
    found, wide = search(basis), search(padded)
    assert not wide.exact.any()
    assert_allclose(padded[:60] @ wide.coefficients, basis @ found.coefficients, atol=1e-8)
    assert (wide.zeros == found.zeros + 20).all()


def test_restarts_find_columns_that_overlap():
    """Draws that expand, of which programs alone solve few."""
    solved, by_programs = [], []
    for seed in range(10):
        matrix = bernoulli_gaussian(48, 7, 0.35, seed)
        if not expands(matrix != 0.0):
            continue
        basis = basis_of(matrix)
        solved.append(missed(basis @ search(basis).coefficients, matrix).max() < 1e-10)
        vectors = basis @ np.array([sparse_program(basis, row) for row in basis if row.any()]).T
        chosen = pick_sparsest(vectors, 7)
        by_programs.append(missed(vectors[:, chosen], matrix).max() < 1e-6)
    assert len(solved) >= 4
    assert np.mean(solved) >= 0.9
    assert np.mean(by_programs) < np.mean(solved)


def test_errors_of_noisy_spaces_are_of_the_size_of_the_noise():
    matrix = bernoulli_gaussian(200, 6, 0.2, 1)
    matrix /= np.linalg.norm(matrix, axis=0)
    rng = np.random.default_rng(0)
    for noise in (1e-3, 1e-4):
        basis = np.linalg.qr(matrix @ rng.standard_normal((6, 6)) + noise * rng.standard_normal((200, 6)))[0]
        found = search(basis, per_column=4, starts=2)
        assert not found.exact.any()
        assert missed(basis @ found.coefficients, matrix).max() < 20 * noise
        assert_allclose(np.abs(basis @ found.coefficients).max(axis=0), 1.0)


def test_polishing_finds_the_zeros_of_a_vector_nearby():
    matrix = bernoulli_gaussian(80, 4, 0.3, 0)
    basis = basis_of(matrix)
    near = np.linalg.lstsq(basis, matrix[:, 0] + 1e-3 * matrix[:, 1])[0]
    assert missed((basis @ near)[:, None], matrix[:, :1]).max() > 1e-4
    end = polished(basis, near)
    assert missed((basis @ end.w)[:, None], matrix[:, :1]).max() < 1e-10
    assert end.n_zeros == (matrix[:, 0] == 0.0).sum()
    assert end.leak < 1e-10
    assert end.exact


def test_some_rows_are_enough_for_exact_programs():
    matrix = np.maximum(bernoulli_gaussian(3000, 8, 0.1, 3), 0.0)
    basis = basis_of(matrix)
    found = search(basis, per_column=4, n_rows=20, starts=0)
    assert missed(basis @ found.coefficients, matrix).max() < 1e-10
    rows, weights = program_rows(basis, 160, np.random.default_rng(0))
    assert len(rows) == 160
    assert (np.diff(rows) > 0).all()
    w = np.random.default_rng(1).standard_normal(8)
    assert weights @ np.abs(basis[rows] @ w) == pytest.approx(np.abs(basis @ w).sum(), rel=0.2)
    chosen = constraint_rows(basis, 20)
    assert len(set(chosen.tolist())) == 20
    assert np.linalg.matrix_rank(basis[chosen[:8]]) == 8


def test_lewis_weights_solve_their_equation():
    basis = basis_of(bernoulli_gaussian(80, 5, 0.4, 4))
    basis[3] = 0.0
    weights = lewis_weights(basis)
    some = weights > 0.0
    assert not some[3]
    inverse = np.linalg.inv(basis[some].T @ (basis[some] / weights[some, None]))
    assert_allclose(
        weights[some] ** 2, np.einsum("ij,jk,ik->i", basis[some], inverse, basis[some]), rtol=1e-4
    )
    assert weights.sum() == pytest.approx(5.0, rel=1e-4)


def test_spaces_without_enough_vectors_are_refused():
    basis = np.zeros((10, 3))
    basis[[0, 1], [0, 1]] = 1.0
    with pytest.raises(NumericalError, match="2 rows of the basis are not zero, expected at least 3"):
        sparse_columns(basis, n_constraints=10, n_program_rows=10, n_starts=0)
    basis = basis_of(bernoulli_gaussian(30, 3, 0.3, 0))
    with pytest.raises(NumericalError, match="found 2 independent sparse vectors, expected 3"):
        sparse_columns(basis, n_constraints=2, n_program_rows=30, n_starts=0)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"n_program_rows": 0}, "n_program_rows: expected a whole number of at least 3, got 0"),
        ({"n_program_rows": 2}, "n_program_rows: expected a whole number of at least 3, got 2"),
        ({"n_constraints": 0}, "n_constraints: expected a whole number of at least 1, got 0"),
        ({"n_starts": -1}, "n_starts: expected a whole number of at least 0, got -1"),
        ({"n_starts": 1.5}, r"n_starts: expected a whole number of at least 0, got 1\.5"),
        ({"seed": -1}, "seed: expected a whole number from 0, got -1"),
        ({"candidates": np.ones((4, 2))}, r"candidates: expected columns of 30 numbers, got shape \(4, 2\)"),
    ],
)
def test_options_out_of_range_are_refused(option, message):
    basis = basis_of(bernoulli_gaussian(30, 3, 0.3, 0))
    with pytest.raises(UsageError, match=message):
        sparse_columns(basis, **{"n_constraints": 30, "n_program_rows": 30, "n_starts": 3, **option})


def test_bases_that_are_no_tall_matrices_are_refused():
    basis = basis_of(bernoulli_gaussian(30, 3, 0.3, 0))
    for wrong in (basis[:, 0], basis[:, :0]):
        with pytest.raises(UsageError, match="basis: expected a matrix with at least one column, got shape"):
            sparse_columns(wrong, n_constraints=30, n_program_rows=30, n_starts=3)
    for wrong in (basis[:2], basis[:, 0], basis[:, :0]):
        with pytest.raises(
            UsageError, match="basis: expected a matrix with at least as many rows as columns"
        ):
            exhaustive_columns(wrong)
    with pytest.raises(NumericalError, match=r"the basis of shape \(30, 3\) has entries that are not finite"):
        exhaustive_columns(np.full_like(basis, np.nan))


def programs_are_certified(matrix):
    """Return whether the program of every row has a column as its only solution (the claim of theorem 3.2)."""
    columns = np.abs(matrix / np.abs(matrix).sum(axis=0)).argmax(axis=1)
    rows = np.flatnonzero(matrix.any(axis=1))
    return all(program_certificate(matrix, i, columns[i]) < 0.999 for i in rows)


def test_projections_find_columns_of_certified_programs_in_any_order_of_the_rows():
    """Appendix G. TWMLearn finds the columns of these draws, too."""
    n_certified = 0
    for seed in range(16):
        matrix = bernoulli_gaussian(60, 5, 0.15, seed)
        if np.linalg.matrix_rank(matrix) < 5 or not programs_are_certified(matrix):
            continue
        n_certified += 1
        basis = basis_of(matrix)
        found = projected_columns(basis)
        assert missed(found, matrix).max() < 1e-10
        assert_allclose(np.linalg.norm(found, axis=0), 1.0)
        programs = search(basis, per_column=60, starts=0)
        assert missed(found, basis @ programs.coefficients).max() < 1e-10
        order = np.random.default_rng(seed).permutation(60)
        assert_allclose(np.abs(projected_columns(basis[order])), np.abs(found[order]), atol=1e-10)
        assert missed(projected_columns(basis, n_constraints=15), matrix).max() < 1e-10
    assert n_certified >= 3


@pytest.mark.slow
def test_errors_of_projections_are_of_the_size_of_the_noise():
    matrix = bernoulli_gaussian(100, 5, 0.2, 1)
    matrix /= np.linalg.norm(matrix, axis=0)
    rng = np.random.default_rng(0)
    for noise in (1e-3, 1e-4):
        basis = np.linalg.qr(matrix + noise * rng.standard_normal((100, 5)))[0]
        assert missed(projected_columns(basis), matrix).max() < 10 * noise


def test_columns_of_projections_complete_those_of_the_search():
    """A draw of which neither the search, with few programs, nor projections find all columns."""
    matrix = bernoulli_gaussian(60, 8, 0.3, 28)
    basis = basis_of(matrix)
    projected = projected_columns(basis, n_constraints=16)
    options = {"n_constraints": 8, "n_program_rows": 320, "n_starts": 0}
    assert missed(basis @ sparse_columns(basis, **options).coefficients, matrix).max() > 0.1
    assert missed(projected, matrix).max() > 0.1
    both = sparse_columns(basis, **options, candidates=projected)
    assert missed(basis @ both.coefficients, matrix).max() < 1e-10
    white = whiten(matrix @ matrix.T, 8)
    loadings = sparse_loadings(white, **options, n_projected=16, seed=0).loadings
    assert missed(loadings, matrix).max() < 1e-10


def test_projections_that_lack_rows_are_refused():
    basis = np.zeros((10, 3))
    basis[[0, 1], [0, 1]] = 1.0
    with pytest.raises(
        NumericalError, match="2 of 3 columns were found: no linear program has another solution"
    ):
        projected_columns(basis)
