import itertools

import numpy as np
import pytest

from distmom.errors import NumericalError, UsageError
from distmom.linalg import (
    compose,
    contract_one,
    contract_two,
    cubic_form,
    deflate,
    frobenius,
    multilinear,
    operator_norm_bounds,
    symmetrise,
)


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def test_multilinear_equals_the_sum_over_all_indices(rng):
    T = rng.standard_normal((4, 5, 6))
    A, B, C = rng.standard_normal((4, 2)), rng.standard_normal((5, 3)), rng.standard_normal((6, 7))
    expected = np.zeros((2, 3, 7))
    for a, b, c in itertools.product(range(4), range(5), range(6)):
        expected += T[a, b, c] * np.multiply.outer(np.multiply.outer(A[a], B[b]), C[c])
    np.testing.assert_allclose(multilinear(T, A, B, C), expected, atol=1e-12)


def test_symmetrise_is_exactly_symmetric_and_idempotent(rng):
    T = rng.standard_normal((7, 7, 7))
    S = symmetrise(T)
    for axes in itertools.permutations(range(3)):
        assert np.array_equal(S, S.transpose(axes))
    np.testing.assert_allclose(
        S, sum(T.transpose(p) for p in itertools.permutations(range(3))) / 6, atol=1e-14
    )
    np.testing.assert_allclose(symmetrise(S), S, atol=1e-15)


def test_contractions_agree_with_einsum(rng):
    T = symmetrise(rng.standard_normal((6, 6, 6)))
    U = rng.standard_normal((6, 9))
    np.testing.assert_allclose(contract_one(T, U[:, 0]), np.einsum("ijl,l->ij", T, U[:, 0]), atol=1e-12)
    np.testing.assert_allclose(contract_two(T, U), np.einsum("ijl,jn,ln->in", T, U, U), atol=1e-12)
    np.testing.assert_allclose(contract_two(T, U[:, 1]), contract_two(T, U)[:, 1], atol=1e-12)
    np.testing.assert_allclose(cubic_form(T, U), np.einsum("ijl,in,jn,ln->n", T, U, U, U), atol=1e-12)


def test_compose_then_deflate_leaves_the_rest(rng):
    V, lam = rng.standard_normal((5, 3)), np.array([2.0, 3.0, 4.0])
    T = compose(lam, V)
    np.testing.assert_allclose(T, np.einsum("n,in,jn,ln->ijl", lam, V, V, V), atol=1e-12)
    np.testing.assert_allclose(deflate(T, 3.0, V[:, 1]), compose(lam[[0, 2]], V[:, [0, 2]]), atol=1e-12)


def test_norms_bracket_each_other(rng):
    E = symmetrise(rng.standard_normal((8, 8, 8)))
    lower, upper = operator_norm_bounds(E)
    assert 0 < lower <= upper <= frobenius(E)
    assert frobenius(E) <= 8 * upper
    U = rng.standard_normal((8, 2000))
    assert np.abs(cubic_form(E, U / np.linalg.norm(U, axis=0))).max() <= lower
    assert operator_norm_bounds(np.zeros((3, 3, 3))) == (0.0, 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_bounds_of_the_operator_norm_hold_on_a_grid_of_the_circle(seed):
    E = symmetrise(np.random.default_rng(seed).standard_normal((2, 2, 2)))
    angles = np.linspace(0.0, np.pi, 200_001)
    largest = np.abs(cubic_form(E, np.stack([np.cos(angles), np.sin(angles)]))).max()
    lower, upper = operator_norm_bounds(E)
    assert lower == pytest.approx(largest, rel=1e-6)
    assert upper >= largest
    assert upper == pytest.approx(np.sqrt(np.linalg.eigvalsh(np.einsum("ajl,bjl->ab", E, E))[-1]))


def test_operator_norm_of_an_orthogonal_tensor_is_its_largest_eigenvalue(rng):
    V = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    lower, upper = operator_norm_bounds(compose([1, 2, 3, 4, 5, 7.5], V))
    assert lower == pytest.approx(7.5, rel=1e-9)
    assert upper == pytest.approx(7.5, rel=1e-9)


def test_shapes_and_values_are_checked():
    with pytest.raises(UsageError, match=r"shape \(k, k, k\) with k >= 1, got \(2, 3, 2\)"):
        symmetrise(np.zeros((2, 3, 2)))
    with pytest.raises(UsageError, match=r"shape \(k, k, k\) with k >= 1, got \(2, 2, 2, 2\)"):
        symmetrise(np.zeros((2, 2, 2, 2)))
    with pytest.raises(NumericalError, match="1 entries that are not finite"):
        symmetrise(np.where(np.arange(8).reshape(2, 2, 2) == 3, np.nan, 1.0))
    with pytest.raises(UsageError, match=r"matrices of shapes \(2, 1\), \(3, 1\), \(2, 1\)"):
        multilinear(np.zeros((2, 2, 2)), np.zeros((2, 1)), np.zeros((3, 1)), np.zeros((2, 1)))


@pytest.mark.parametrize("scale", [2.0**-900, 2.0**600, 2.0**900])
def test_bounds_of_the_operator_norm_scale_with_the_tensor(scale, rng):
    E = symmetrise(rng.standard_normal((4, 4, 4)))
    lower, upper = operator_norm_bounds(E)
    assert operator_norm_bounds(E * scale) == (
        pytest.approx(lower * scale, rel=1e-12),
        pytest.approx(upper * scale, rel=1e-12),
    )


def test_bounds_of_the_operator_norm_need_a_start():
    with pytest.raises(UsageError, match="n_starts: expected a whole number of at least 1, got 0"):
        operator_norm_bounds(np.ones((2, 2, 2)), n_starts=0)
