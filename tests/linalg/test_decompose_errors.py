"""Errors of decompositions of noisy tensors: their bounds, their first order, and their order by method."""

import numpy as np
import pytest
from tensors import aligned, noise, orthogonal_tensor

from distmom.linalg import (
    METHODS,
    compose,
    contract_two,
    decompose,
    decompose_slices,
    operator_norm_bounds,
    slice_directions,
    symmetrise,
)


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


def test_power_and_joint_agree_within_the_noise():
    T = orthogonal_tensor(15, 1.0, 3.0)[0] + noise(15, 0.05, 6)
    joint, power = decompose(T), decompose(T, "power", orthogonalise=True)
    np.testing.assert_allclose(joint.eigenvalues, power.eigenvalues, atol=0.05)
    cosines = np.abs(joint.eigenvectors.T @ power.eigenvectors).max(axis=0)
    assert cosines.min() > 0.998
    assert power.diagnostics["max_inner"] < 1e-13
    # Polar steps maximise the least-squares objective, which deflation does not.
    assert joint.residual <= power.residual


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
