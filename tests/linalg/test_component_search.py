import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import NumericalError, UsageError
from distmom.linalg import whiten
from distmom.linalg.search.component import (
    SEARCHES,
    WhitenedMoments,
    cancellation_search,
    conditioned,
    power_search,
    search,
    whitening_search,
)


def components(d=20, k=6, seed=0):
    """Return the components, as columns, and weights of a mixture in d dimensions."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((d, k)), rng.dirichlet(np.full(k, 5.0))


def moments_of(mu, p):
    """Whitened moments of a mixture."""
    white = whiten((mu * p) @ mu.T, len(p))
    U = white.W.T @ mu
    return WhitenedMoments(white, mu @ p, np.einsum("ih,jh,lh,h->ijl", U, U, mu, p))


#: a search by a threshold has its error (see tests/linalg/test_cancellation.py)
EXACT = [name for name in SEARCHES if name != "cancellation-threshold"]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("method", EXACT)
def test_exact_moments_give_the_component_that_is_preferred(method, sign):
    for seed in range(10):
        mu, p = components(seed=seed)
        moments = moments_of(mu, p)
        v = np.random.default_rng(100 + seed).standard_normal(20)
        if sign < 0 and method != "fast-tpm":
            # Make all preferences negative by a part of v that is the same for all components.
            v -= np.linalg.pinv(mu.T) @ np.full(6, (mu.T @ v).max() + 1.0)
        elif method == "fast-tpm":
            # The power method finds the largest magnitude, so make all preferences positive.
            v -= np.linalg.pinv(mu.T) @ np.full(6, (mu.T @ v).min() - 1.0)
        w = mu.T @ v
        found = search(method, moments, v)
        best = int(np.argmax(w))
        assert_allclose(found.component, mu[:, best], atol=1e-8)
        assert found.weight == pytest.approx(p[best], abs=1e-9)
        assert_allclose(found.values, np.sort(w)[::-1], atol=1e-8)
        assert found.gap == pytest.approx(np.diff(np.sort(w))[-1], abs=1e-8)


@pytest.mark.parametrize("method", EXACT)
def test_every_component_is_found_by_a_vector_that_prefers_it(method):
    for k in (1, 2, 5, 12):
        mu, p = components(d=30, k=k, seed=k)
        moments = moments_of(mu, p)
        dual = np.linalg.pinv(mu)
        for i in range(k):
            # The preference for this component is at least twice that for any other.
            said = np.random.default_rng(i).uniform(0.0, 0.5, k)
            said[i] = 1.0
            found = search(method, moments, dual.T @ said)
            assert_allclose(found.component, mu[:, i], atol=1e-8)
            assert found.weight == pytest.approx(p[i], abs=1e-8)
            assert_allclose(found.values[0], 1.0, atol=1e-8)


def test_a_power_run_converges_to_the_component_of_its_initial_vector():
    mu, p = components()
    moments, dual = moments_of(mu, p), np.linalg.pinv(mu)
    # If the largest magnitude is not the largest value, the former is found and the gap is negative.
    said = np.array([-3.0, 2.0, 1.0, 0.0, 0.5, 0.1])
    found = power_search(moments, dual.T @ said)
    assert_allclose(found.component, mu[:, 0], atol=1e-8)
    assert_allclose(found.values, [-3.0, 2.0, 1.0, 0.5, 0.1, 0.0], atol=1e-8)
    assert found.gap == pytest.approx(-5.0)
    # With the paper's initial vector, A^+ v decides: for v = sum c_i p_i mu_i, the largest c_i, here the first.
    mu[:, 1] *= 20.0
    moments = moments_of(mu, p)
    v = mu @ (p * np.array([1.0, 0.9, 0.1, 0.1, 0.1, 0.1]))
    assert np.abs(mu.T @ v).argmax() == 1
    assert_allclose(power_search(moments, v, start="projection").component, mu[:, 0], atol=1e-8)
    assert_allclose(power_search(moments, v).component, mu[:, 1], atol=1e-7)


def noisy(noise, size, mu, p, v):
    """Return whitening, M and m of noisy moments."""
    A, B, m = (mu * p) @ mu.T, (mu * (p * (mu.T @ v))) @ mu.T, mu @ p
    m, A, B = (x + size * (e + e.T) / 2 for x, e in zip((m, A, B), noise, strict=True))
    white = whiten(A, len(p), noise=0.0)
    return white, white.W.T @ B @ white.W, m


def test_both_searches_agree_on_noisy_moments_and_errors_grow_with_the_noise():
    mu, p = components()
    rng = np.random.default_rng(1)
    v = rng.standard_normal(20)
    best, errors = int(np.argmax(mu.T @ v)), []
    noise = [rng.standard_normal(shape) for shape in (20, (20, 20), (20, 20))]
    for size in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        moments = noisy(noise, size, mu, p, v)
        one, other = whitening_search(*moments), cancellation_search(*moments)
        assert_allclose(one.component, other.component, rtol=1e-10, atol=1e-10)
        assert one.weight == pytest.approx(other.weight, rel=1e-10)
        errors.append(np.linalg.norm(one.component - mu[:, best]) / size)
    assert max(errors[1:]) < 1.5 * min(errors[1:])


def test_uninformative_vectors_and_components_without_weight_are_refused():
    mu, p = components()
    exact = moments_of(mu, p)
    v = np.random.default_rng(0).standard_normal(20)
    empty = WhitenedMoments(exact.white, np.zeros(20), exact.slices)
    for method in ("whitening", "cancellation"):
        with pytest.raises(NumericalError, match="has no weight"):
            search(method, empty, v)
    with pytest.raises(NumericalError, match="has no weight"):
        search("fast-tpm", WhitenedMoments(exact.white, exact.m, 0.0 * exact.slices), v)
    with pytest.raises(NumericalError, match="no information about any component"):
        power_search(exact, np.zeros(20))
    with pytest.raises(UsageError, match="start: expected one of preference, projection, got 'x'"):
        power_search(exact, v, start="x")
    with pytest.raises(UsageError, match=f"method: expected one of {', '.join(SEARCHES)}, got 'x'"):
        search("x", exact, v)


def norm(matrix):
    return float(np.linalg.norm(matrix, 2))


def draws(share, n=1000):
    """Return A of rank k, B, and both with errors below a fraction of the k-th singular value of A."""
    rng = np.random.default_rng(0)
    for _ in range(n):
        k = int(rng.integers(2, 6))
        d = k + int(rng.integers(0, 6))
        mu, p = rng.standard_normal((d, k)), rng.dirichlet(np.full(k, 5.0))
        # At least the singular values of A, as the last step of lemma 30 requires.
        w = rng.uniform(1.0, 3.0, k)
        A, B = (mu * p) @ mu.T, (mu * (p * w)) @ mu.T
        sigma = np.linalg.svd(A, compute_uv=False)[k - 1]
        eps = share * sigma * rng.uniform(0.01, 1.0)
        off = [e + e.T for e in rng.standard_normal((2, d, d))]
        yield k, A, B, sigma, eps, *(x + 0.999 * eps * e / norm(e) for x, e in zip((A, B), off, strict=True))


def test_whitening_of_noisy_moments_keeps_the_bounds_of_the_paper():
    """Lemmas 16, 28 and 29."""
    worst = np.zeros(3)
    for k, A, _, sigma, eps, noisy_A, _ in draws(0.25):
        white = whiten(noisy_A, k, noise=0.0)
        V, estimate = np.linalg.svd(A)[0][:, :k], white.W * np.sqrt(white.eigenvalues[:k])
        singular = np.linalg.svd(estimate.T @ V, compute_uv=False)
        assert singular.max() < 1.0 + 1e-9
        values, vectors = np.linalg.eigh(white.W.T @ A @ white.W)
        root = (vectors / np.sqrt(values)) @ vectors.T
        ratios = (
            np.sqrt(max(0.0, 1.0 - 16.0 * (eps / sigma) ** 2)) / singular.min(),
            norm(np.eye(k) - root) / (4.0 * eps / sigma),
            norm(white.W - white.W @ root) / (8.0 * eps / sigma**1.5),
        )
        worst = np.maximum(worst, ratios)
    assert (worst < 1.0).all()
    # The bounds are tight enough to be violated.
    assert (worst > [0.9, 0.05, 0.02]).all()


def test_preferences_of_noisy_moments_keep_the_bound_of_the_paper():
    """Lemma 30."""
    worst = 0.0
    for k, A, B, sigma, eps, noisy_A, noisy_B in draws(1.0 / 16.0):
        white = whiten(noisy_A, k, noise=0.0)
        values, vectors = np.linalg.eigh(white.W.T @ A @ white.W)
        exact = white.W @ (vectors / np.sqrt(values)) @ vectors.T
        assert eps < norm(B) / 2.0
        change = norm(white.W.T @ noisy_B @ white.W - exact.T @ B @ exact)
        worst = max(worst, change / (51.0 * norm(B) * eps / sigma**2))
    assert 1e-3 < worst < 1.0


def test_the_weight_of_a_component_moves_no_more_than_the_mean():
    """Lemmas 18 and 19, for the component w and the span E of the others."""
    rng, tight = np.random.default_rng(1), []
    for k, A, _, _, eps, noisy_A, noisy_B in draws(0.25):
        white, m = whiten(noisy_A, k, noise=0.0), A @ rng.standard_normal(len(A))
        M = white.W.T @ noisy_B @ white.W
        found = whitening_search(white, M, m)
        w = np.sqrt(found.weight) * found.component
        others = white.B @ np.linalg.svd((white.W.T @ w)[:, None])[0][:, 1:]
        E = np.linalg.qr(others)[0]
        distance = np.linalg.norm(w - E @ (E.T @ w))
        bound = white.eigenvalues[k - 1]
        assert np.linalg.norm(w) * distance >= bound * (1.0 - 1e-9)
        change = eps * rng.standard_normal(len(m))
        change = white.B @ (white.W.T @ change)
        moved = whitening_search(white, M, m + change)
        # w has the sign of a.
        a, b = (np.sqrt(f.weight) * np.sign(f.component @ w) for f in (found, moved))
        assert abs(a - b) <= np.linalg.norm(change) / distance * (1.0 + 1e-9)
        tight.append((bound / (np.linalg.norm(w) * distance), abs(a - b) * distance / np.linalg.norm(change)))
    assert (np.max(tight, axis=0) > 0.99).all()


def test_side_information_that_is_projected_or_whitened_has_the_products_of_its_definition():
    mu, p = components()
    white = moments_of(mu, p).white
    rng = np.random.default_rng(3)
    v = rng.standard_normal((4, 20))
    A = (mu * p) @ mu.T
    assert conditioned(white, v, "auto", labelled=False) is v
    projected = conditioned(white, v, "project", labelled=False)
    assert_allclose(projected, v @ np.linalg.pinv(mu).T @ mu.T, atol=1e-10)
    assert_allclose(projected @ mu, v @ mu, atol=1e-10)
    for side in ("auto", "whiten"):
        assert_allclose(conditioned(white, v, side, labelled=True), v @ np.linalg.pinv(A), atol=1e-8)
    shares = rng.dirichlet(np.ones(6))
    assert_allclose(conditioned(white, mu @ shares, "whiten", labelled=False) @ mu, shares / p, atol=1e-9)


def test_a_random_contraction_is_worse_than_one_along_the_side_information():
    mu, p = components(k=12)
    rng, errors = np.random.default_rng(4), {"random": [], "whitening": []}
    exact = moments_of(mu, p)
    for seed in range(20):
        noise = rng.standard_normal(exact.slices.shape)
        noise = 1e-3 * (noise + noise.transpose(1, 0, 2))
        moments = WhitenedMoments(exact.white, exact.m, exact.slices + noise, seed)
        i = seed % 12
        v = np.linalg.pinv(mu)[i]
        for method, found in errors.items():
            found.append(np.linalg.norm(search(method, moments, v).component - mu[:, i]))
    assert np.median(errors["random"]) > 2.0 * np.median(errors["whitening"])
