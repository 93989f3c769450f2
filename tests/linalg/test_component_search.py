import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import NumericalError, UsageError
from distmom.linalg import whiten
from distmom.linalg.search import (
    SEARCHES,
    WhitenedMoments,
    cancellation_search,
    power_search,
    search,
    whitening_search,
)


def components(d=20, k=6, seed=0):
    """Components as columns and their weights, of a mixture in d dimensions."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((d, k)), rng.dirichlet(np.full(k, 5.0))


def moments_of(mu, p):
    """Whitened moments of a mixture."""
    white = whiten((mu * p) @ mu.T, len(p))
    U = white.W.T @ mu
    return WhitenedMoments(white, mu @ p, np.einsum("ih,jh,lh,h->ijl", U, U, mu, p))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("method", SEARCHES)
def test_exact_moments_give_the_component_that_is_preferred(method, sign):
    for seed in range(10):
        mu, p = components(seed=seed)
        moments = moments_of(mu, p)
        v = np.random.default_rng(100 + seed).standard_normal(20)
        if sign < 0 and method != "fast-tpm":
            # All preferences negative, by a part of v along which all components are alike.
            v -= np.linalg.pinv(mu.T) @ np.full(6, (mu.T @ v).max() + 1.0)
        elif method == "fast-tpm":
            # Its run ends at the largest magnitude: make all preferences positive.
            v -= np.linalg.pinv(mu.T) @ np.full(6, (mu.T @ v).min() - 1.0)
        w = mu.T @ v
        found = search(method, moments, v)
        best = int(np.argmax(w))
        assert_allclose(found.component, mu[:, best], atol=1e-8)
        assert found.weight == pytest.approx(p[best], abs=1e-9)
        assert_allclose(found.values, np.sort(w)[::-1], atol=1e-8)
        assert found.gap == pytest.approx(np.diff(np.sort(w))[-1], abs=1e-8)


@pytest.mark.parametrize("method", SEARCHES)
def test_every_component_is_found_by_a_vector_that_prefers_it(method):
    for k in (1, 2, 5, 12):
        mu, p = components(d=30, k=k, seed=k)
        moments = moments_of(mu, p)
        dual = np.linalg.pinv(mu)
        for i in range(k):
            # What v says of the others is a half of what it says of this one, or less.
            said = np.random.default_rng(i).uniform(0.0, 0.5, k)
            said[i] = 1.0
            found = search(method, moments, dual.T @ said)
            assert_allclose(found.component, mu[:, i], atol=1e-8)
            assert found.weight == pytest.approx(p[i], abs=1e-8)
            assert_allclose(found.values[0], 1.0, atol=1e-8)


def test_a_power_run_ends_where_its_start_points_and_says_so():
    mu, p = components()
    moments, dual = moments_of(mu, p), np.linalg.pinv(mu)
    # The largest magnitude is not the largest value: the run ends at the first, and the gap tells.
    said = np.array([-3.0, 2.0, 1.0, 0.0, 0.5, 0.1])
    found = power_search(moments, dual.T @ said)
    assert_allclose(found.component, mu[:, 0], atol=1e-8)
    assert_allclose(found.values, [-3.0, 2.0, 1.0, 0.5, 0.1, 0.0], atol=1e-8)
    assert found.gap == pytest.approx(-5.0)
    # The paper's start goes by what A^+ v says: c_i for the v of sum c_i p_i mu_i, here the first component.
    mu[:, 1] *= 20.0
    moments = moments_of(mu, p)
    v = mu @ (p * np.array([1.0, 0.9, 0.1, 0.1, 0.1, 0.1]))
    assert np.abs(mu.T @ v).argmax() == 1
    assert_allclose(power_search(moments, v, start="projection").component, mu[:, 0], atol=1e-8)
    assert_allclose(power_search(moments, v).component, mu[:, 1], atol=1e-7)


def noisy(noise, size, mu, p, v):
    """Whitening, M and m of moments that are off by some noise."""
    A, B, m = (mu * p) @ mu.T, (mu * (p * (mu.T @ v))) @ mu.T, mu @ p
    m, A, B = (x + size * (e + e.T) / 2 for x, e in zip((m, A, B), noise, strict=True))
    white = whiten(A, len(p), noise=0.0)
    return white, white.W.T @ B @ white.W, m


def test_both_ways_are_one_on_noisy_moments_and_errors_grow_with_the_noise():
    mu, p = components()
    rng = np.random.default_rng(1)
    v = rng.standard_normal(20)
    best, errors = int(np.argmax(mu.T @ v)), []
    noise = [rng.standard_normal(shape) for shape in (20, (20, 20), (20, 20))]
    for size in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        moments = noisy(noise, size, mu, p, v)
        one, other = whitening_search(*moments), cancellation_search(*moments)
        assert_allclose(one.component, other.component, rtol=1e-5, atol=1e-7)
        assert one.weight == pytest.approx(other.weight, rel=1e-5)
        errors.append(np.linalg.norm(one.component - mu[:, best]) / size)
    assert max(errors[1:]) < 1.5 * min(errors[1:])


def test_what_says_nothing_or_has_no_weight_is_refused():
    mu, p = components()
    exact = moments_of(mu, p)
    v = np.random.default_rng(0).standard_normal(20)
    empty = WhitenedMoments(exact.white, np.zeros(20), exact.slices)
    for method in ("whitening", "cancellation"):
        with pytest.raises(NumericalError, match="has no weight"):
            search(method, empty, v)
    with pytest.raises(NumericalError, match="has no weight"):
        search("fast-tpm", WhitenedMoments(exact.white, exact.m, 0.0 * exact.slices), v)
    with pytest.raises(NumericalError, match="says nothing of any component"):
        power_search(exact, np.zeros(20))
    with pytest.raises(UsageError, match="start: expected one of preference, projection, got 'x'"):
        power_search(exact, v, start="x")
    with pytest.raises(
        UsageError, match="method: expected one of whitening, cancellation, fast-tpm, tpm, joint, got 'x'"
    ):
        search("x", exact, v)
