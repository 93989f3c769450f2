"""Decompositions of exact tensors by every method: components in order, the same bits, and refusals."""

import itertools
import sys

import numpy as np
import pytest
from oracles import check_eigenpair
from tensors import aligned, noise, orthogonal_tensor
from threadpoolctl import threadpool_limits

from distmom.errors import NumericalError, UsageError
from distmom.linalg import (
    METHODS,
    compose,
    decompose,
    decompose_slices,
    frobenius,
    multilinear,
    polar,
    slice_directions,
    symmetrise,
)
from distmom.linalg.tensors.jacobi import joint_diagonalise


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
    module = sys.modules["distmom.linalg.tensors.decompose"]
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


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [2.0**-900, 2.0**-600, 2.0**600, 2.0**900])
def test_the_scale_of_a_tensor_multiplies_only_the_eigenvalues(method, scale):
    """Also where squares of entries overflow or vanish."""
    T = orthogonal_tensor(4)[0]
    one, other = decompose(T, method), decompose(T * scale, method)
    np.testing.assert_allclose(other.eigenvalues / scale, one.eigenvalues, rtol=1e-13)
    np.testing.assert_allclose(other.eigenvectors, one.eigenvectors, atol=1e-13)
    assert other.residual == pytest.approx(one.residual, abs=1e-13)
    with pytest.raises(UsageError, match="not symmetric"):
        decompose(T * scale + np.eye(4) * scale, method)


@pytest.mark.parametrize("seed", [-1, 1.5, "a"])
def test_seeds_that_are_none_are_refused(seed):
    message = "random_state: expected a whole number from 0, got"
    with pytest.raises(UsageError, match=message):
        decompose(np.ones((1, 1, 1)), random_state=seed)
    with pytest.raises(UsageError, match=message):
        slice_directions(3, seed)


@pytest.mark.parametrize("k", [0, -1, 1.5, "a"])
def test_directions_of_no_component_are_refused(k):
    with pytest.raises(UsageError, match="k: expected a whole number of at least 1, got"):
        slice_directions(k)


@pytest.mark.parametrize("scale", [2.0**-900, 2.0**-600, 2.0**600, 2.0**900])
def test_the_scale_of_slices_multiplies_only_the_eigenvalues(scale):
    T, H = orthogonal_tensor(4)[0], slice_directions(4)
    one, other = decompose_slices(T @ H, H), decompose_slices(T @ H * scale, H)
    np.testing.assert_allclose(other.eigenvalues / scale, one.eigenvalues, rtol=1e-13)
    np.testing.assert_allclose(other.eigenvectors, one.eigenvectors, atol=1e-13)
    assert frobenius(T * scale) == pytest.approx(frobenius(T) * scale, rel=1e-14)
