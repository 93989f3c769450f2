"""The power method: convergence, stopping, initial vectors, shifted updates and robust eigenvectors."""

import itertools

import numpy as np
import pytest
from oracles import check_eigenpair
from tensors import aligned, orthogonal_tensor

from distmom.errors import NumericalError
from distmom.linalg import compose, decompose, frobenius, polar, power_step, robust_components, symmetrise
from distmom.linalg.tensors.power import PackedCube, iterate, power_stopping


def test_quadratic_convergence_of_the_power_map():
    """Lemma 5.1: the distance to the winner is bounded by the ratio of the two largest |lambda_i c_i|."""
    rng = np.random.default_rng(5)
    for _ in range(60):
        k = int(rng.integers(2, 7))
        V = np.linalg.qr(rng.standard_normal((k, k)))[0]
        lam = rng.uniform(0.5, 3.0, k)
        cube = PackedCube(compose(lam, V))
        theta = rng.standard_normal(k)
        theta /= np.linalg.norm(theta)
        c = V.T @ theta
        order = np.argsort(-np.abs(lam * c))
        first = order[0]
        ratio = abs(lam[order[1]] * c[order[1]] / (lam[first] * c[first]))
        constant = 2 * lam[first] ** 2 * (lam[order[1:]] ** -2).sum()
        for t in range(1, 9):
            theta = cube.contract_two(theta[:, None])[:, 0]
            theta /= np.linalg.norm(theta)
            bound = constant * ratio ** (2.0 ** (t + 1))
            assert ((V[:, first] - theta) ** 2).sum() <= bound * (1 + 1e-9) + 1e-28


def test_all_spurious_eigenvectors_are_distinguished_from_components():
    T, lam, V = orthogonal_tensor(4)
    for size in range(1, 5):
        for subset in itertools.combinations(range(4), size):
            u = V[:, subset] @ (1 / lam[list(subset)])
            check = check_eigenpair(T, u)
            assert check.is_eigenvector
            assert check.eigenvalue == pytest.approx(float((lam[list(subset)] ** -2.0).sum() ** -0.5))
            assert check.is_robust == (size == 1)
            if size == 1:
                assert check.curvature == pytest.approx(-1.0)
            else:
                assert check.curvature == pytest.approx(1.0)
    assert not check_eigenpair(T, V[:, 0] + 0.3 * V[:, 1]).is_eigenvector
    assert check_eigenpair(np.full((1, 1, 1), 2.0), np.ones(1)).is_robust


def test_stopping_condition_refuses_every_mixture():
    T, lam, V = orthogonal_tensor(5)
    cube = PackedCube(T)
    for size in range(1, 6):
        for subset in itertools.combinations(range(5), size):
            u = V[:, subset] @ (1 / lam[list(subset)])
            u /= np.linalg.norm(u)
            ratio = float(cube.cubic_form(u[:, None])[0]) / cube.slice_norm(u)
            assert ratio == pytest.approx(size**-0.5)
            assert (ratio >= 1 / 1.05) == (size == 1)


def test_stopping_condition_draws_until_a_vector_is_accepted():
    """Two updates of a random vector are rarely sufficient, so vectors are rejected and drawn again."""
    T, _, V = orthogonal_tensor(20, 1.0, 1.0)
    _, vectors, history, _ = power_stopping(T, np.random.default_rng(0), n_iter=2, max_restarts=500)
    assert max(count for _, count in history) > 1
    assert np.abs(V.T @ vectors).max(axis=0).min() > 0.99
    assert decompose(T, "power-stop", max_restarts=1, n_iter=1).converged is False


def test_given_vectors_near_components_are_accepted_sooner_than_random_ones():
    k = 20
    T, lam, V = orthogonal_tensor(k, 1.0, 1.0)
    rng = np.random.default_rng(1)
    near = V + 0.05 * rng.standard_normal((k, k))
    # Columns of zeros are documents that were left out.
    starts = np.hstack([np.zeros((k, 2)), near[:, ::-1], rng.standard_normal((k, 5))])
    given = decompose(T, "power-stop", starts=starts, n_iter=2)
    random = decompose(T, "power-stop", n_iter=2)
    assert [value for _, value in given.history] == [1.0] * k
    assert np.mean([value for _, value in random.history]) > 5.0
    for method, options in (("power", {"n_restarts": 1}), ("power", {}), ("power-stop", {})):
        values, vectors = aligned(decompose(T, method, starts=starts, **options), V)
        np.testing.assert_allclose(values, lam, atol=1e-12)
        np.testing.assert_allclose(vectors, V, atol=1e-12)
        none = decompose(T, method, starts=starts[:, :2], **options)
        np.testing.assert_array_equal(none.eigenvectors, decompose(T, method, **options).eigenvectors)


@pytest.mark.parametrize("method", ["power", "power-stop"])
def test_shifted_updates_give_back_exact_tensors(method):
    T, lam, V = orthogonal_tensor(8)
    result = decompose(T, method, shifted=True, n_iter=200)
    values, vectors = aligned(result, V)
    np.testing.assert_allclose(values, lam, atol=1e-11)
    np.testing.assert_allclose(vectors, V, atol=1e-11)
    assert result.converged


def test_no_shifted_update_lowers_the_form_where_plain_ones_do():
    """Tensors without an orthogonal decomposition, on which the plain power method need not converge."""
    n_lowered, n_converged = {False: 0, True: 0}, {False: 0, True: 0}
    for seed in range(20):
        cube = PackedCube(symmetrise(np.random.default_rng(seed).standard_normal((6, 6, 6))))
        u = np.random.default_rng([seed, 1]).standard_normal((6, 1))
        for shifted in (False, True):
            shift = 2.0 * cube.flattened_norm() if shifted else 0.0
            # Odd, so that a vector or its opposite has a form that is not negative.
            v = u / np.linalg.norm(u) * (1.0 if cube.cubic_form(u)[0] > 0 else -1.0)
            values, change = [float(cube.cubic_form(v)[0])], np.inf
            while change >= 1e-8 and len(values) <= 3000:
                before, v = v, iterate(cube, v, 1, 0.0, shift)
                values.append(float(cube.cubic_form(v)[0]))
                change = np.linalg.norm(v - before)
            n_lowered[shifted] += bool((np.diff(values) < -1e-12).any())
            n_converged[shifted] += bool(change < 1e-8)
    assert (n_lowered[True], n_converged[True]) == (0, 20)
    assert n_lowered[False] > 5
    assert n_converged[False] < 20


def test_packed_tensor_agrees_with_the_cube():
    rng = np.random.default_rng(8)
    T = symmetrise(rng.standard_normal((5, 5, 5)))
    u = rng.standard_normal((5, 3))
    cube = PackedCube(T)
    np.testing.assert_allclose(cube.contract_two(u), np.einsum("ijl,jn,ln->in", T, u, u), atol=1e-12)
    assert cube.norm() == pytest.approx(frobenius(T))
    assert cube.slice_norm(u[:, 0]) == pytest.approx(np.linalg.norm(T @ u[:, 0]))
    assert cube.flattened_norm() == pytest.approx(np.linalg.norm(T.reshape(5, 25), 2))
    cube.deflate(0.7, u[:, 0])
    rest = T - compose([0.7], u[:, :1])
    np.testing.assert_allclose(cube.contract_two(u), np.einsum("ijl,jn,ln->in", rest, u, u), atol=1e-11)


def test_robust_components_are_those_of_the_second_derivative_test():
    rng = np.random.default_rng(3)
    V = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    T = compose(rng.uniform(0.5, 3.0, 6), V)
    noise = rng.standard_normal((6, 6, 6))
    for size in (0.0, 0.05, 0.3):
        noisy = symmetrise(T + size * noise)
        expected = [check_eigenpair(noisy, V[:, i]).curvature < 0.0 for i in range(6)]
        assert robust_components(noisy, V).tolist() == expected
    assert robust_components(T, V).all()
    # Another basis of two components: their sum and their difference, of which the first is a saddle.
    turned = np.stack([V[:, 0] + V[:, 1], V[:, 0] - V[:, 1]], axis=1) / np.sqrt(2.0)
    assert robust_components(compose([1.0, 1.0], V[:, :2]), turned).tolist() == [False, False]


def test_a_power_step_squares_the_error_of_the_components_of_an_exact_tensor():
    T = orthogonal_tensor(12)[0]
    exact = decompose(T)
    V, values = exact.eigenvectors, exact.eigenvalues
    start = polar(V + 1e-3 * np.random.default_rng(0).standard_normal(V.shape))
    contracted = np.einsum("abc,bi,ci->ai", T, start, start)
    found, vectors, measures = power_step(start, contracted)
    before, after = np.abs(start - V).max(), np.abs(vectors - V).max()
    assert 1e-4 < before < 1e-2
    assert after < 10 * before**2
    np.testing.assert_allclose(found, values, atol=20 * before**2)
    assert measures["max_inner"] < 1e-12
    with pytest.raises(NumericalError, match="expected finite contractions"):
        power_step(start, np.full((12, 12), np.nan))
