"""Bounds of the errors of searches (theorems 1, 3 and 6), beside the errors with noisy moments."""

import math

import numpy as np
import pytest

from distmom.linalg import whiten
from distmom.linalg.search.bounds import (
    MomentErrors,
    cancellation_bounds,
    subspace_bounds,
    whitening_bounds,
)
from distmom.linalg.search.cancellation import cancel_literally
from distmom.linalg.search.component import cancellation_search, whitening_search


def mixture(rng, gap=None):
    """Return components, weights, preferences, and A, B and m of a small mixture."""
    k = int(rng.integers(1 if gap is None else 2, 5))
    mu, p = rng.standard_normal((k + int(rng.integers(0, 6)), k)), rng.dirichlet(np.full(k, 5.0))
    w = rng.uniform(1.0, 3.0, k) if gap is None else np.where(np.arange(k) == 0, 2.0 + gap, 2.0)
    return mu, p, w, ((mu * p) @ mu.T, (mu * (p * w)) @ mu.T, mu @ p)


def noisy(rng, moments, eps):
    """Return moments with errors of norm eps each."""
    noise = [rng.standard_normal(x.shape) for x in moments]
    noise = [e + e.T if e.ndim == 2 else e for e in noise]
    sizes = [np.linalg.norm(e, 2) for e in noise]
    return [x + eps / size * e for x, e, size in zip(moments, noise, sizes, strict=True)]


def whitened(A, B, k):
    white = whiten(A, k, noise=0.0)
    M = white.W.T @ B @ white.W
    return white, (M + M.T) / 2.0


def least(A, k):
    return float(np.linalg.svd(A, compute_uv=False)[k - 1])


@pytest.mark.parametrize("share", [1e-2, 1e-3, 1e-5])
def test_errors_of_searches_by_whitening_and_cancellation_keep_their_bounds(share):
    """Theorems 1 and 3, with errors that are a share of the least eigenvalue of A."""
    rng, ratios, literal = np.random.default_rng(0), [], []
    for _ in range(200):
        mu, p, w, moments = mixture(rng)
        k, best = len(w), int(w.argmax())
        eps = share * least(moments[0], k)
        A, B, m = noisy(rng, moments, eps)
        white, M = whitened(A, B, k)
        errors = MomentErrors(eps, eps, eps)
        bounds = whitening_bounds(white, M, m, errors)
        if bounds.component < math.inf:
            for found in (whitening_search(white, M, m), cancellation_search(white, M, m)):
                off = np.linalg.norm(found.component - mu[:, best])
                ratios.append((off / bounds.component, abs(found.weight - p[best]) / bounds.weight))
        bounds = cancellation_bounds(A, B, m, k, errors)
        if bounds.component < math.inf:
            removed = cancel_literally(A, B, m, k)
            off = np.linalg.norm(removed.coordinates - mu[:, best])
            literal.append((off / bounds.component, abs(removed.weight - p[best]) / bounds.weight))
    # For a single component the bound of the weight is reached, up to rounding.
    assert np.max(ratios) < 1.0 + 1e-6
    assert np.max(literal) < 1.0
    # The bounds are not far from errors that occur.
    assert (np.max(ratios, axis=0) > 0.5).all()
    assert (np.max(literal, axis=0) > 0.3).all()
    assert len(ratios) > 300
    assert len(literal) > 50


@pytest.mark.parametrize("share", [1e-2, 1e-3, 1e-5])
def test_errors_of_searches_for_subspaces_keep_their_bounds(share):
    """Theorem 6."""
    rng, ratios = np.random.default_rng(1), []
    for _ in range(300):
        k, dimension = int(rng.integers(2, 4)), int(rng.integers(1, 4))
        r = k * dimension
        d = r + int(rng.integers(0, 4))
        bases = [np.linalg.qr(rng.standard_normal((d, dimension)))[0] for _ in range(k)]
        p, v = rng.dirichlet(np.full(k, 5.0)), bases[0] @ rng.standard_normal(dimension)
        squares = [float(np.sum((U.T @ v) ** 2)) for U in bases]
        if 3.0 * max(squares[1:]) > squares[0]:
            # v does not determine the subspace.
            continue
        A = sum(q * U @ U.T for q, U in zip(p, bases, strict=True))
        images = [U @ (U.T @ v) for U in bases]
        B = sum(
            q * (s * U @ U.T + 2.0 * np.outer(x, x))
            for q, s, U, x in zip(p, squares, bases, images, strict=True)
        )
        eps = share * least(A, r)
        white, R = whitened(*noisy(rng, (A, B), eps), r)
        bounds = subspace_bounds(white, R, dimension, MomentErrors(eps, eps))
        if bounds.component < math.inf:
            Z = white.B @ np.linalg.eigh(R)[1][:, -dimension:]
            left, singular, _ = np.linalg.svd(Z, full_matrices=False)
            off = np.linalg.norm(left @ left.T - bases[0] @ bases[0].T, 2)
            weight = float(np.sum(singular**2)) / dimension
            ratios.append((off / bounds.component, abs(weight - p[0]) / bounds.weight))
    assert np.max(ratios) < 1.0
    assert (np.max(ratios, axis=0) > [0.1, 0.03]).all()
    assert len(ratios) > 80


def bounds_of(rng, eps, gap):
    """Return the bounds of theorems 1 and 3 with moments whose errors are small beside their bounds eps."""
    _, _, w, (A, B, m) = mixture(rng, gap)
    white, M = whitened(A, B, len(w))
    errors = MomentErrors(eps, eps, eps)
    return whitening_bounds(white, M, m, errors), cancellation_bounds(A, B, m, len(w), errors)


def test_bounds_are_proportional_to_the_errors_of_moments_and_to_the_inverse_gap():
    for seed in range(10):
        few, many = (bounds_of(np.random.default_rng(seed), eps, 1.0) for eps in (1e-8, 1e-10))
        for large, small in zip(few, many, strict=True):
            assert large.component == pytest.approx(100.0 * small.component, rel=0.05)
            assert large.weight == pytest.approx(100.0 * small.weight, rel=0.05)
        # With a gap ten times as small, the part of the eigenvector is ten times as large.
        wide, narrow = (bounds_of(np.random.default_rng(seed), 1e-10, gap) for gap in (1e-2, 1e-3))
        for large, small in zip(narrow, wide, strict=True):
            assert 5.0 < large.component / small.component < 11.0


def test_noise_that_is_as_large_as_the_moments_leaves_no_bound():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        _, _, w, (A, B, m) = mixture(rng, 1.0)
        k = len(w)
        white, M = whitened(A, B, k)
        sk = least(A, k)
        for errors in (
            MomentErrors(sk, 0.0, 0.0), MomentErrors(0.8 * sk, 0.0, 0.0), MomentErrors(0.0, sk, 0.0),
            MomentErrors(0.0, 0.0, 1e3),
        ):  # fmt: skip
            assert whitening_bounds(white, M, m, errors).component == math.inf
            assert cancellation_bounds(A, B, m, k, errors).weight == math.inf
        assert subspace_bounds(white, M, 1, MomentErrors(0.0, sk)).component == math.inf
        exact = whitening_bounds(white, M, m, MomentErrors(0.0, 0.0, 0.0))
        assert (exact.component, exact.weight) == (0.0, 0.0)
