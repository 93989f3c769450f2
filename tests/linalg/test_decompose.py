import itertools
import sys

import numpy as np
import pytest
from oracles import check_eigenpair
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits

from distmom.errors import NumericalError, UsageError
from distmom.linalg import (
    METHODS,
    compose,
    contract_two,
    decompose,
    decompose_slices,
    frobenius,
    multilinear,
    operator_norm_bounds,
    polar,
    power_step,
    robust_components,
    slice_directions,
    symmetrise,
)
from distmom.linalg.jacobi import joint_diagonalise
from distmom.linalg.power import PackedCube, iterate, power_stopping


def orthogonal_tensor(k, low=1.0, high=4.0, seed=0):
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((k, k)))[0]
    lam = np.linspace(low, high, k)
    return compose(lam, V), lam, V


def noise(k, size, seed):
    """Return a random symmetric tensor with flattening norm ``size``, an upper bound of its operator norm."""
    E = symmetrise(np.random.default_rng([seed, 7]).standard_normal((k, k, k)))
    return size / operator_norm_bounds(E)[1] * E


def aligned(result, V):
    """Eigenvalues and eigenvectors in the order of the columns of V."""
    _, columns = linear_sum_assignment(-(V.T @ result.eigenvectors))
    return result.eigenvalues[columns], result.eigenvectors[:, columns]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [1, 2, 3, 8, 21])
def test_exact_tensors_are_recovered_by_every_method(method, k):
    T, lam, V = orthogonal_tensor(k)
    result = decompose(T, method)
    values, vectors = aligned(result, V)
    np.testing.assert_allclose(values, lam, atol=1e-12)
    np.testing.assert_allclose(vectors, V, atol=1e-12)
    assert result.residual < 1e-12
    assert result.off_diagonal_share < 1e-20
    assert result.converged
    assert result.method == method
    assert result.n_iter == len(result.history)


@pytest.mark.parametrize("options", [{"n_slices": 3}, {"n_slices": 1}, {"max_polar_steps": 0}])
def test_joint_options_keep_exact_recovery(options):
    T, lam, V = orthogonal_tensor(12)
    values, vectors = aligned(decompose(T, "joint", **options), V)
    np.testing.assert_allclose(values, lam, atol=1e-11)
    np.testing.assert_allclose(vectors, V, atol=1e-11)


@pytest.mark.parametrize(("k", "m"), [(1, 1), (2, 2), (3, 3), (8, 8), (21, 18), (60, 24)])
def test_exact_tensors_are_recovered_from_few_slices(k, m):
    T, lam, V = orthogonal_tensor(k)
    H = slice_directions(k, random_state=3)
    assert H.shape == (k, m)
    result = decompose_slices(T @ H, H)
    values, vectors = aligned(result, V)
    np.testing.assert_allclose(values, lam, atol=1e-10)
    np.testing.assert_allclose(vectors, V, atol=1e-10)
    assert result.residual < 1e-12
    assert result.off_diagonal_share < 1e-20
    assert result.converged
    assert (np.diff(result.eigenvalues) >= 0).all()
    assert result.diagnostics["weight_sum"] == pytest.approx(float((lam**-2).sum()), rel=1e-9)


def test_slices_of_a_whole_basis_are_as_good_as_the_tensor():
    T = orthogonal_tensor(12)[0] + noise(12, 0.3, 1)
    H = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 12)))[0]
    whole, sliced = decompose(T, max_polar_steps=0), decompose_slices(T @ H, H)
    np.testing.assert_allclose(sliced.eigenvalues, whole.eigenvalues, atol=1e-6)
    # Both stop when a sweep gains little, but not at the same sweep.
    assert sliced.residual == pytest.approx(whole.residual, rel=1e-6)
    assert sliced.off_diagonal_share == pytest.approx(whole.off_diagonal_share, rel=1e-6)


def test_residual_of_few_slices_estimates_that_of_the_tensor():
    T = orthogonal_tensor(60)[0]
    for size in (0.1, 1.0):
        noisy = T + noise(60, size, 2)
        H = slice_directions(60)
        whole, sliced = decompose(noisy), decompose_slices(noisy @ H, H)
        assert sliced.residual == pytest.approx(whole.residual, rel=0.1)
        assert sliced.off_diagonal_share == pytest.approx(whole.off_diagonal_share, rel=0.2)


@pytest.mark.slow
@pytest.mark.nightly
def test_error_of_few_slices_grows_with_the_root_of_the_omitted_share():
    """Every slice has the same information about a rotation, so the expected variance is k / m times as large."""
    T, _, V = orthogonal_tensor(40, 1.0, 3.0)
    H, errors = slice_directions(40), []
    for seed in range(5):
        noisy = T + noise(40, 0.02, seed)
        found = decompose(noisy), decompose_slices(noisy @ H, H)
        errors.append([np.linalg.norm(aligned(result, V)[1] - V) for result in found])
    ratio = np.divide(*np.median(errors, axis=0)[::-1])
    assert 1.0 < ratio < 1.3 * (40 / H.shape[1]) ** 0.5


@pytest.mark.parametrize("method", METHODS)
def test_components_come_in_order_of_decreasing_weight_with_positive_values(method):
    T, _, _ = orthogonal_tensor(6)
    result = decompose(T + noise(6, 0.02, 0), method)
    assert (np.diff(result.eigenvalues) >= 0).all()
    assert (np.einsum("ijl,in,jn,ln->n", T, *[result.eigenvectors] * 3) > 0).all()
    assert result.diagnostics["smallest"] == result.eigenvalues[0]
    assert result.diagnostics["largest"] == result.eigenvalues[-1]
    assert result.diagnostics["weight_sum"] == pytest.approx(float((result.eigenvalues**-2).sum()))
    assert set(result.diagnostics) == {
        "weight_sum",
        "max_inner",
        "n_below_one",
        "n_flipped",
        "smallest",
        "largest",
    }


def test_reported_residual_and_share_are_correct():
    T = orthogonal_tensor(7)[0] + noise(7, 0.3, 1)
    for method in METHODS:
        result = decompose(T, method)
        rest = T - compose(result.eigenvalues, result.eigenvectors)
        assert result.residual == pytest.approx(frobenius(rest) / frobenius(T), rel=1e-12)
        rotated = multilinear(T, *[result.eigenvectors] * 3)
        diagonal = np.einsum("iii->i", rotated)
        share = 1 - diagonal @ diagonal / np.vdot(rotated, rotated)
        assert result.off_diagonal_share == pytest.approx(share, rel=1e-9, abs=1e-13)


def test_only_the_flattening_fails_on_equal_eigenvalues():
    T, _, V = orthogonal_tensor(10, 2.0, 2.0)
    T = T + noise(10, 1e-3, 2)
    errors = {m: np.abs(aligned(decompose(T, m), V)[1] - V).max() for m in METHODS}
    assert errors["flatten"] > 0.3
    for method in ("joint", "power", "power-stop"):
        assert errors[method] < 1e-3


def test_errors_are_ordered_as_the_methods_are_stable():
    """Median errors over tensors: all slices are better than deflation, and that is much better than one slice."""
    T, _, V = orthogonal_tensor(20, 1.0, 3.0)
    errors = {method: [] for method in ("joint", "power", "jennrich")}
    for seed in range(5):
        noisy = T + noise(20, 1e-3, seed)
        for method, values in errors.items():
            values.append(np.linalg.norm(aligned(decompose(noisy, method), V)[1] - V, axis=0).max())
    medians = {method: np.median(values) for method, values in errors.items()}
    assert medians["joint"] <= medians["power"] < 0.2 * medians["jennrich"]


@pytest.mark.parametrize("method", ["joint", "power", "power-stop"])
@pytest.mark.parametrize("level", [0.01, 0.1, 0.3])
def test_robustness_bounds_hold_with_a_margin(method, level):
    """Theorem 5.1: vector error 8 eps / lambda, value error 5 eps, residual 55 eps; measured about 1 eps."""
    T, lam, V = orthogonal_tensor(8, 1.0, 3.0)
    for seed in range(5):
        E = noise(8, 1.0, seed)
        lower = operator_norm_bounds(E)[0]
        eps = level * lam.min()
        E *= eps / lower
        result = decompose(T + E, method)
        values, vectors = aligned(result, V)
        assert (np.linalg.norm(vectors - V, axis=0) <= 2 * eps / lam).all()
        assert (np.abs(values - lam) <= 2 * eps).all()
        rest = operator_norm_bounds(T - compose(values, vectors))[0]
        assert rest <= 3 * eps


@pytest.mark.parametrize("method", ["power", "power-stop"])
def test_first_order_error_formula(method):
    """The remainder after the linear term is quadratic: with a tenth of the noise it is a hundredth."""
    T, lam, V = orthogonal_tensor(6, 1.0, 3.0)
    E = noise(6, 1.0, 3)
    image = contract_two(E, V)
    first_values = np.einsum("in,in->n", V, image)
    first_vectors = (image - V * first_values) / lam
    remainders = []
    for eps in (1e-3, 1e-4):
        values, vectors = aligned(decompose(T + eps * E, method), V)
        remainders.append(
            (
                np.abs(values - lam - eps * first_values).max(),
                np.abs(vectors - V - eps * first_vectors).max(),
            )
        )
    for coarse, fine in zip(*remainders, strict=True):
        assert fine < 0.02 * coarse


def test_joint_first_order_error_splits_noise_by_precision():
    """At the least-squares optimum, pair (i, j) turns by (l_j E_ijj - l_i E_iij) / (l_i^2 + l_j^2)."""
    T, lam, V = orthogonal_tensor(6, 1.0, 3.0)
    E = noise(6, 1.0, 4)
    turned = V.T @ contract_two(E, V)
    turn = (turned * lam - (turned * lam).T) / (lam[:, None] ** 2 + lam**2)
    remainders = []
    for eps in (1e-3, 1e-4):
        _, vectors = aligned(decompose(T + eps * E), V)
        remainders.append(np.abs(vectors - V - eps * V @ turn).max())
    assert remainders[1] < 0.02 * remainders[0]


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
            values = [float(cube.cubic_form(v)[0])]
            for _ in range(3000):
                before, v = v, iterate(cube, v, 1, 0.0, shift)
                values.append(float(cube.cubic_form(v)[0]))
            n_lowered[shifted] += bool((np.diff(values) < -1e-12).any())
            n_converged[shifted] += bool(np.linalg.norm(v - before) < 1e-8)
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


def test_joint_begins_with_the_components_of_a_similar_tensor():
    rng = np.random.default_rng(5)
    V, values = np.linalg.qr(rng.standard_normal((12, 12)))[0], np.linspace(1.5, 6.0, 12)
    tensors = [symmetrise(compose(values, V) + 0.02 * rng.standard_normal((12, 12, 12))) for _ in range(2)]
    near = decompose(tensors[0])
    cold, warm = decompose(tensors[1]), decompose(tensors[1], initial=near.eigenvectors)
    np.testing.assert_allclose(warm.eigenvectors, cold.eigenvectors, atol=1e-3)
    assert warm.residual == pytest.approx(cold.residual, rel=1e-4)
    assert {kind for kind, _ in warm.history} == {"polar"}
    with pytest.raises(UsageError, match=r"initial: expected finite vectors of shape \(12, 12\)"):
        decompose(tensors[1], initial=V[:, :3])


def test_power_and_joint_agree_within_the_noise():
    T = orthogonal_tensor(15, 1.0, 3.0)[0] + noise(15, 0.05, 6)
    joint, power = decompose(T), decompose(T, "power", orthogonalise=True)
    np.testing.assert_allclose(joint.eigenvalues, power.eigenvalues, atol=0.05)
    cosines = np.abs(joint.eigenvectors.T @ power.eigenvectors).max(axis=0)
    assert cosines.min() > 0.998
    assert power.diagnostics["max_inner"] < 1e-13
    # Polar steps maximise the least-squares objective, which deflation does not.
    assert joint.residual <= power.residual


def test_joint_history_shows_the_descent():
    result = decompose(orthogonal_tensor(15)[0] + noise(15, 0.3, 6))
    stages = [stage for stage, _ in result.history]
    assert stages == sorted(stages, reverse=True)
    for stage in ("sweep", "polar"):
        values = [value for name, value in result.history if name == stage]
        assert len(values) >= 1
        assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(values))
    assert [v for s, v in result.history if s == "polar"][-1] == pytest.approx(result.residual, rel=1e-9)


def test_polar_steps_end_when_one_gains_little_of_the_unexplained_part():
    """The threshold is 1e-5 of the unexplained part, even if that part is 1e-3."""
    result = decompose(orthogonal_tensor(8, 1.0, 3.0)[0] + noise(8, 0.1, 0))
    unexplained = np.array([value for stage, value in result.history if stage == "polar"]) ** 2
    assert unexplained[-1] < 1e-3
    assert len(unexplained) >= 2
    gains = -np.diff(unexplained)
    assert (gains[:-1] > 1e-5 * unexplained[1:-1]).all()
    assert gains[-1] <= 1e-5 * unexplained[-1]


def test_jacobi_escapes_the_saddle_of_equal_diagonals():
    """A matrix with equal diagonal and zero gradient must still be rotated by 45 degrees."""
    M = np.array([[1.0, 2.0], [2.0, 1.0]])[:, :, None]
    V, shares, converged = joint_diagonalise(M.copy())
    assert converged
    assert shares[-1] < 1e-28
    np.testing.assert_allclose(np.abs(V), np.full((2, 2), 0.5**0.5), atol=1e-15)


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_gives_the_same_bits_for_any_number_of_threads(method):
    T = orthogonal_tensor(24)[0] + noise(24, 0.1, 1)
    first = decompose(T, method, random_state=4)
    with threadpool_limits(2):
        second = decompose(T, method, random_state=4)
    assert first.eigenvectors.tobytes() == second.eigenvectors.tobytes()
    assert first.eigenvalues.tobytes() == second.eigenvalues.tobytes()
    assert first.history == second.history


def test_slices_give_the_same_bits_for_any_number_of_threads():
    T, H = orthogonal_tensor(24)[0] + noise(24, 0.1, 1), slice_directions(24)
    first = decompose_slices(T @ H, H)
    with threadpool_limits(2):
        second = decompose_slices(T @ H, slice_directions(24))
    assert first.eigenvectors.tobytes() == second.eigenvectors.tobytes()
    assert first.eigenvalues.tobytes() == second.eigenvalues.tobytes()


def test_scale_moves_only_the_eigenvalues():
    T = orthogonal_tensor(5)[0] + noise(5, 0.1, 1)
    small, large = decompose(T * 1e-60), decompose(T * 1e60)
    np.testing.assert_allclose(small.eigenvalues * 1e60, large.eigenvalues * 1e-60, rtol=1e-12)
    np.testing.assert_allclose(small.eigenvectors, large.eigenvectors, atol=1e-12)


def test_negative_components_are_flipped():
    V = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    T = compose([-2.0, 1.5, -3.0], V)
    H = slice_directions(3)
    for result in (*(decompose(T, method) for method in METHODS), decompose_slices(T @ H, H)):
        np.testing.assert_allclose(result.eigenvalues, [1.5, 2.0, 3.0], atol=1e-12)
        np.testing.assert_allclose(
            result.eigenvectors, np.stack([V[:, 1], -V[:, 0], -V[:, 2]], axis=1), atol=1e-12
        )


@pytest.mark.slow
@pytest.mark.parametrize(("k", "error"), [(100, 0.065), (200, 0.095)])
def test_many_noisy_components_are_all_found(k, error):
    T, _, V = orthogonal_tensor(k, 1.0, 6.0)
    rng = np.random.default_rng(9)
    # Entries with three different indices then have standard deviation 0.02.
    T += 0.02 * np.sqrt(6.0) * symmetrise(rng.standard_normal((k, k, k)))
    result = decompose(T)
    cosines = np.abs(V.T @ result.eigenvectors).max(axis=1)
    assert cosines.min() > 0.9
    assert np.sqrt(2 - 2 * cosines).mean() < error


def test_random_slices_reach_the_same_optimum():
    T = orthogonal_tensor(40, 1.0, 4.0)[0] + noise(40, 0.2, 2)
    full, some = decompose(T), decompose(T, n_slices=12)
    np.testing.assert_allclose(some.eigenvalues, full.eigenvalues, atol=1e-5)
    assert some.residual == pytest.approx(full.residual, rel=1e-8)


def test_polar_factor_is_the_nearest_orthonormal_matrix():
    rng = np.random.default_rng(1)
    M = rng.standard_normal((6, 4))
    Q = polar(M)
    np.testing.assert_allclose(Q.T @ Q, np.eye(4), atol=1e-14)
    symmetric = Q.T @ M
    np.testing.assert_allclose(symmetric, symmetric.T, atol=1e-13)
    assert np.linalg.eigvalsh(symmetric).min() > 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: decompose(np.zeros((2, 2, 2))), NumericalError, "is zero"),
        (lambda: decompose(np.full((2, 2, 2), np.inf)), NumericalError, "not finite"),
        (lambda: decompose(np.ones((2, 2))), UsageError, r"shape \(k, k, k\)"),
        (lambda: decompose(np.arange(8.0).reshape(2, 2, 2)), UsageError, "not symmetric: relative asymmetry"),
        (lambda: decompose(np.ones((2, 2, 2)), "als"), UsageError, "unknown decomposition method 'als'"),
        (
            lambda: decompose(np.ones((2, 2, 2)), n_iter=3),
            UsageError,
            "has no option n_iter; its options are",
        ),
        (lambda: decompose(np.ones((2, 2, 2)), n_slices=0), UsageError, "n_slices=0 .* out of range"),
        (lambda: decompose(np.ones((2, 2, 2)), "power", orthogonalise=2), UsageError, "orthogonalise=2"),
        (lambda: check_eigenpair(np.ones((2, 2, 2)), np.zeros(2)), UsageError, "nonzero vector"),
        (lambda: decompose_slices(np.ones((2, 2, 1)), np.ones((1, 2))), UsageError, "do not match"),
        (lambda: decompose_slices(np.ones((2, 3, 1)), np.ones((3, 1))), UsageError, "do not match"),
        (lambda: decompose_slices(np.zeros((2, 2, 2)), np.eye(2)), NumericalError, "are zero"),
        (lambda: decompose_slices(np.full((2, 2, 2), np.nan), np.eye(2)), NumericalError, "not finite"),
        (
            lambda: decompose(np.ones((2, 2, 2)), "joint", starts=np.eye(2)),
            UsageError,
            "starts: expected method power or power-stop, got 'joint'",
        ),
        (
            lambda: decompose(np.ones((2, 2, 2)), "power", initial=np.eye(2)),
            UsageError,
            "initial: expected method joint, got 'power'",
        ),
        (
            lambda: decompose(np.ones((2, 2, 2)), "power", starts=np.eye(3)),
            UsageError,
            r"starts: expected finite columns of 2 numbers, got an array of shape \(3, 3\)",
        ),
        (lambda: decompose_slices(np.ones((2, 2, 2)), np.ones((2, 2))), UsageError, "must be orthonormal"),
        (
            lambda: decompose_slices(np.arange(8.0).reshape(2, 2, 2), np.eye(2)),
            UsageError,
            "slices are not symmetric",
        ),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_large_tensors_are_sliced_at_random(monkeypatch):
    T = orthogonal_tensor(64, 1.0, 4.0)[0] + noise(64, 0.1, 2)
    full = decompose(T)
    # The package exports a function with the same name as the module.
    module = sys.modules["distmom.linalg.decompose"]
    monkeypatch.setattr(module, "_ALL_SLICES_UP_TO", 8)
    sliced = decompose(T)
    assert sliced.history[0] != full.history[0]
    np.testing.assert_allclose(sliced.eigenvalues, full.eigenvalues, atol=1e-5)


def test_slices_without_energy_are_diagonal_already():
    V, shares, converged = joint_diagonalise(np.zeros((3, 3, 2)))
    assert converged
    assert shares == []
    np.testing.assert_array_equal(V, np.eye(3))
    assert joint_diagonalise(np.random.default_rng(0).standard_normal((9, 9, 1)), max_sweeps=1)[2] is False


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
