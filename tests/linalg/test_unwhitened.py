"""Components of moments that are not whitened, beside their truth and a general optimiser."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from distmom.errors import NumericalError, UsageError
from distmom.linalg import compose, decompose, multilinear, symmetrise, whiten
from distmom.linalg.tensors.unwhitened import pencil_components, schur_components, skewness_components

METHODS = [pencil_components, schur_components, skewness_components]


def moments(d=7, k=4, seed=2):
    rng = np.random.default_rng(seed)
    mu, w = rng.standard_normal((d, k)), np.arange(1.0, k + 1.0)
    w /= w.sum()
    return mu, w, (mu * w) @ mu.T, compose(w, mu)


@pytest.mark.parametrize("find", METHODS)
@pytest.mark.parametrize(("d", "k"), [(7, 4), (5, 5), (6, 1)])
def test_components_have_their_scale_and_weights(find, d, k):
    mu, w, M2, M3 = moments(d, k)
    found, weights = find(M2, M3, k)
    order = np.argsort(weights)
    assert_allclose(weights[order], w, atol=1e-10)
    assert_allclose(found[:, order], mu, atol=1e-9)


def test_the_local_maximisers_of_skewness_are_the_components():
    """Section 4.3.2, with a general optimiser from many initial vectors in the range."""
    _, w, M2, M3 = moments(5, 3)
    found, weights = skewness_components(M2, M3, 3)
    expected = np.linalg.pinv(M2, rcond=1e-10) @ (found * np.sqrt(weights))
    rng = np.random.default_rng(0)
    U = whiten(M2, 3).W

    def skewness(c):
        u = U @ c
        return np.einsum("abc,a,b,c", M3, u, u, u) / (u @ M2 @ u) ** 1.5

    reached = set()
    for _ in range(30):
        start = rng.standard_normal(3)
        start *= np.sign(skewness(start))
        # The scale of c does not matter, and is held near 1 for the optimiser.
        end = minimize(lambda c: (c @ c - 1.0) ** 2 - skewness(c), start)
        u = U @ end.x
        distances = np.linalg.norm(expected.T - u / np.sqrt(u @ M2 @ u), axis=1)
        assert distances.min() < 1e-3
        reached.add(int(distances.argmin()))
        assert np.abs(1.0 / np.sqrt(w) - skewness(end.x)).min() < 1e-6
    assert reached == {0, 1, 2}


@pytest.mark.parametrize("find", METHODS)
def test_errors_are_of_the_size_of_the_noise(find):
    mu, w, M2, M3 = moments()
    rng = np.random.default_rng(0)
    E2, E3 = rng.standard_normal((7, 7)), symmetrise(rng.standard_normal((7, 7, 7)))
    errors = []
    for noise in (1e-4, 1e-6):
        found, weights = find(M2 + noise * (E2 + E2.T), M3 + noise * E3, 4)
        order = np.argsort(weights)
        errors.append(np.abs(found[:, order] - mu).max())
        assert np.abs(weights[order] - w).max() < 100 * noise
    assert errors[0] < 1e-2
    assert 30 < errors[0] / errors[1] < 300


def test_skewness_agrees_with_the_whitened_decomposition():
    _, _, M2, M3 = moments(6, 4, 5)
    noise = 1e-6 * symmetrise(np.random.default_rng(1).standard_normal((6, 6, 6)))
    white = whiten(M2, 4)
    result = decompose(multilinear(M3 + noise, *[white.W] * 3), "power")
    expected = white.B @ (result.eigenvectors * result.eigenvalues)
    found, weights = skewness_components(M2, M3 + noise, 4)
    order = [int(np.abs(found - column[:, None]).max(axis=0).argmin()) for column in expected.T]
    assert sorted(order) == [0, 1, 2, 3]
    assert_allclose(found[:, order], expected, atol=1e-4)
    assert_allclose(weights[order], result.eigenvalues**-2.0, atol=1e-4)


@pytest.mark.parametrize("find", METHODS)
def test_moments_that_do_not_match_or_lack_components_are_refused(find):
    _, _, M2, M3 = moments()
    with pytest.raises(UsageError, match=r"expected moments of shapes \(d, d\) and \(d, d, d\)"):
        find(M2[:3, :3], M3, 2)
    with pytest.raises(UsageError, match="k of at most d"):
        find(M2, M3, 8)
    with pytest.raises(NumericalError, match="rank below 5"):
        find(M2, M3, 5)


def test_third_moments_with_fewer_components_are_refused():
    with pytest.raises(NumericalError, match="1 of 2 components with positive skewness"):
        skewness_components(np.eye(2), compose([1.0], np.eye(2)[:, :1]), 2)


@pytest.mark.parametrize("find", METHODS)
def test_moments_that_are_not_finite_or_zero_are_refused(find):
    _, _, M2, M3 = moments(5, 3)
    with pytest.raises(NumericalError, match=r"second moment of shape .* not finite"):
        find(np.where(M2 > 0.0, np.nan, M2), M3, 3)
    with pytest.raises(NumericalError, match="third moment"):
        find(M2, 0.0 * M3, 3)
