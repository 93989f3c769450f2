"""Removal of a component from a second moment: factors, projections, and the pair of the experiments."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import NumericalError, UsageError
from distmom.linalg import whiten
from distmom.linalg.search.cancellation import (
    FACTORS,
    by_norm,
    by_spectrum,
    by_threshold,
    cancel,
    cancel_literally,
)
from distmom.linalg.search.component import whitening_search

D, K = 20, 6


def mixture(seed=0, size=0.0):
    """Return components, weights, a vector with positive preferences, and A, B and m with errors of a size."""
    rng = np.random.default_rng(seed)
    mu, p = rng.standard_normal((D, K)), rng.dirichlet(np.full(K, 5.0))
    v = np.linalg.pinv(mu).T @ rng.uniform(0.5, 2.0, K)
    A, B, m = (mu * p) @ mu.T, (mu * (p * (mu.T @ v))) @ mu.T, mu @ p
    A, B = (x + size * (e + e.T) / 2.0 for x, e in zip((A, B), rng.standard_normal((2, D, D)), strict=True))
    return mu, p, v, A, B, m + size * rng.standard_normal(D)


def whitened(A, B):
    white = whiten(A, K, noise=0.0)
    M = white.W.T @ B @ white.W
    return white, (M + M.T) / 2.0


@pytest.mark.parametrize("size", [0.0, 1e-3])
def test_factors_by_bisection_and_by_the_norm_are_that_of_the_spectrum(size):
    for seed in range(20):
        _, _, _, A, B, _ = mixture(seed, size)
        white, M = whitened(A, B)
        second = np.diag(white.eigenvalues[:K])
        root = np.sqrt(second)
        projected = root @ M @ root
        exact = by_spectrum(second, projected)
        assert exact == pytest.approx(1.0 / np.linalg.eigvalsh(M)[-1], rel=1e-12)
        assert FACTORS["bisection"](second, projected) == pytest.approx(exact, rel=1e-10)
        values = np.linalg.eigvalsh(M)
        scale = values.sum() - values[-1]
        assert by_norm(second, projected / scale) == pytest.approx(exact * scale, rel=1e-10)


def test_a_search_by_the_norm_is_refused_without_its_condition():
    eye = np.eye(3)
    # By the norm of a small B, nothing is removed: the minimum is at zero.
    for preferences in ([0.3, 0.1, 0.05], [2.0, 1.9, 1.8], [1.0, -0.6, -0.7]):
        M, best = np.diag(preferences), 1.0 / max(preferences)
        values = [np.abs(1.0 - f * np.diag(M)).sum() + f for f in (0.99 * best, best, 1.01 * best)]
        assert values[1] > min(values[0], values[2])
        with pytest.raises(NumericalError, match="requires preferences with sum w >= 1"):
            by_norm(eye, M)
    assert by_norm(eye, np.diag([1.0, 0.4, 0.3])) == pytest.approx(1.0, rel=1e-10)


def test_a_search_by_a_threshold_ends_there_and_errs_by_as_much(monkeypatch):
    mu, p, v, A, B, m = mixture()
    white, M = whitened(A, B)
    best, errors = int(np.argmax(mu.T @ v)), []
    second = np.diag(white.eigenvalues[:K])
    projected = np.sqrt(second) @ M @ np.sqrt(second)
    for threshold in (1e-2, 1e-3, 1e-4):
        f = by_threshold(second, projected, threshold)
        least = np.linalg.eigvalsh(second - f * projected)[0]
        assert least == pytest.approx(threshold * white.eigenvalues[K - 1], rel=1e-6)
        assert 0.0 < 1.0 - f / by_spectrum(second, projected) < threshold * K
        monkeypatch.setitem(FACTORS, "this", partial(by_threshold, threshold=threshold))
        found = cancel(white, M, m, "this")
        errors.append(np.linalg.norm(found.coordinates - mu[:, best]) / threshold)
        assert found.weight == pytest.approx(p[best], abs=threshold)
    assert max(errors) < 1.2 * min(errors)
    assert max(errors) < np.linalg.norm(mu[:, best])
    for wrong in (0.0, 1.0):
        with pytest.raises(
            UsageError, match=r"threshold: expected a share of the least eigenvalue, in \(0, 1\)"
        ):
            by_threshold(second, projected, wrong)


@pytest.mark.parametrize("factor", ["spectrum", "bisection", "norm"])
def test_removal_in_whitened_dimensions_is_the_search_by_whitening_whatever_the_noise(factor):
    for size in (0.0, 1e-3, 1e-2):
        _, _, _, A, B, m = mixture(1, size)
        white, M = whitened(A, B)
        one, other = whitening_search(white, M, m), cancel(white, M, m, factor)
        assert_allclose(other.coordinates, one.component, rtol=1e-10, atol=1e-10)
        assert other.weight == pytest.approx(one.weight, rel=1e-10)


@pytest.mark.parametrize("factor", [*FACTORS])
def test_units_of_the_rows_and_of_the_side_information_do_not_matter(factor):
    mu, p, _, A, _, m = mixture()
    tolerance = 5e-2 if factor == "threshold" else 1e-8
    for preferences in ([-3.0, -1.0, -2.0, -3.0, -4.0, -5.0], [0.5, -2.0, 0.3, -1.0, -1.0, -2.0]):
        B, best = (mu * (p * preferences)) @ mu.T, int(np.argmax(preferences))
        for unit, of_side in ((1.0, 1.0), (1.0, 1e-12), (1e-14, 1.0), (1e6, 1e6)):
            white, M = whitened(unit**2 * A, unit**2 * of_side * B)
            found = cancel(white, M, unit * m, factor)
            assert_allclose(found.coordinates / unit, mu[:, best], atol=tolerance)
            assert found.weight == pytest.approx(p[best], abs=tolerance)


def test_the_pair_of_the_experiments_has_the_direction_of_whitening_and_its_own_length():
    for size in (0.0, 1e-3):
        mu, p, v, A, B, m = mixture(2, size)
        white, M = whitened(A, B)
        one, pair = whitening_search(white, M, m), cancel(white, M, m, along=v)
        cosine = one.component @ pair.coordinates
        cosine /= np.linalg.norm(one.component) * np.linalg.norm(pair.coordinates)
        assert cosine == pytest.approx(1.0, abs=1e-12)
        # By the definitions of steps 4 to 6: |x|^2 / (x' B x) of the pair, times 1 / w.
        best = int(np.argmax(mu.T @ v))
        if size == 0.0:
            assert_allclose(pair.coordinates, mu[:, best], atol=1e-10)
            assert pair.weight == pytest.approx(p[best], abs=1e-10)
        else:
            assert np.linalg.norm(pair.coordinates - mu[:, best]) < 0.1
            assert pair.weight != pytest.approx(one.weight, rel=1e-6)
    # The first moment is not used where a preference is positive.
    assert cancel(white, M, 0.0 * m, along=v).weight == pair.weight


def test_the_literal_form_is_exact_without_noise_and_errs_more_with_it():
    mu, p, v, A, B, m = mixture(3)
    best = int(np.argmax(mu.T @ v))
    for factor in FACTORS:
        found = cancel_literally(A, B, m, K, factor)
        tolerance = 1e-2 if factor == "threshold" else 1e-9
        assert_allclose(found.coordinates, mu[:, best], atol=tolerance)
        assert found.weight == pytest.approx(p[best], abs=tolerance)
    errors = []
    for seed in range(30):
        mu, p, v, A, B, m = mixture(seed, 3e-3)
        best, (white, M) = int(np.argmax(mu.T @ v)), whitened(A, B)
        estimates = (cancel_literally(A, B, m, K), cancel(white, M, m))
        errors.append([np.linalg.norm(each.coordinates - mu[:, best]) for each in estimates])
    literal, projected = np.median(errors, axis=0)
    assert literal > 1.1 * projected


def test_components_that_cannot_be_removed_are_refused():
    mu, p, _, A, B, m = mixture()
    white, M = whitened(A, B)
    with pytest.raises(
        UsageError, match="factor: expected one of spectrum, bisection, threshold, norm, got 'x'"
    ):
        cancel(white, M, m, "x")
    with pytest.raises(UsageError, match="factor: expected one of"):
        cancel_literally(A, B, m, K, "x")
    with pytest.raises(NumericalError, match="has no weight"):
        cancel(white, M, 0.0 * m)
    with pytest.raises(NumericalError, match="the largest preference is not positive"):
        cancel_literally(A, -B, m, K)
    B = (mu * (p * np.array([1.0, -3.0, -1.0, 0.0, 0.0, 0.0]))) @ mu.T
    with pytest.raises(NumericalError, match="the norm requires preferences with a positive sum, got -3"):
        cancel_literally(A, B, m, K, "norm")
