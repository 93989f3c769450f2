from itertools import combinations_with_replacement

import numpy as np
import pytest
from helpers import matched
from numpy.testing import assert_allclose

from distmom.errors import NumericalError, UsageError
from distmom.linalg.factors import Slices, find_factors, unique_eigenvectors
from distmom.moments.views.fourth import pair_directions

K = 4


def rotation(k=K, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(k, k)))[0]


def cumulant(M, strengths, order, n_pairs=100):
    """Return the slices of ``sum_i strength_i m_i^(x)order``."""
    k = len(M)
    directions = (np.eye(k),) if order == 3 else pair_directions(k, n_pairs, seed=3)
    weights = np.prod([M.T @ d for d in directions], axis=0)
    return Slices(np.einsum("i,il,ai,bi->abl", np.asarray(strengths, float), weights, M, M), directions)


def symmetric_noise(k, order, n_draws, rng, size):
    """Return draws of symmetric tensors with independent entries, as matrices of their slices."""
    draws = []
    for _ in range(n_draws):
        T = np.zeros((k,) * order)
        for index in combinations_with_replacement(range(k), order):
            T[index] = rng.normal()
        # Every entry equals the one with sorted indices.
        T = T[tuple(np.sort(np.indices(T.shape), axis=0))]
        draws.append(size * T)
    return np.stack(draws, axis=-1)


@pytest.mark.parametrize("method", ["joint", "single"])
@pytest.mark.parametrize("strengths", [[1.0, -0.5, 2.0, 0.3], [1.0, -1.0, 1.0, -1.0], [0.7, 0.0, -0.2, 1.0]])
def test_skewed_columns_are_recovered_with_positive_skewness(method, strengths):
    """This includes negative, equal and zero skewness."""
    M = rotation()
    found = find_factors([cumulant(M, strengths, 3)], (3,), method)
    error, of = matched(found.vectors.T, M.T, signed=False)
    assert found.vectors.shape == (K, K)
    assert error < 1e-10
    assert_allclose(found.strengths[3], np.abs(strengths)[of], atol=1e-10)
    skewed = found.strengths[3] > 1e-3
    signs = np.sign(np.sum(found.vectors * M[:, of], axis=0))
    assert np.array_equal(signs[skewed], np.sign(np.array(strengths)[of])[skewed])
    assert (found.separation > 1.0).all()
    assert found.n_rejected == 0


@pytest.mark.parametrize("method", ["joint", "single"])
@pytest.mark.parametrize("seed", range(5))
def test_two_columns_without_skewness_are_rejected_and_no_other(method, seed):
    M = rotation(seed=seed)
    found = find_factors([cumulant(M, [1.0, 0.0, 2.0, 0.0], 3)], (3,), method, random_state=seed)
    assert found.vectors.shape == (K, 2)
    error, of = matched(found.vectors.T, M.T)
    assert error < 1e-10
    assert sorted(of.tolist()) == [0, 2]
    assert found.n_rejected == 2


@pytest.mark.parametrize("n_pairs", [100, 6])
@pytest.mark.parametrize("method", ["joint", "single"])
def test_kurtotic_columns_are_recovered(method, n_pairs):
    """With all pairs of axes, and with fewer random directions."""
    M, kurtosis = rotation(seed=1), [-2.0, 3.0, 0.5, -2.0]
    known = [cumulant(M, np.zeros(K), 3), cumulant(M, kurtosis, 4, n_pairs)]
    found = find_factors(known, (4,), method)
    error, of = matched(found.vectors.T, M.T, signed=False)
    assert found.vectors.shape == (K, K)
    assert error < 1e-9
    assert_allclose(found.strengths[4], np.array(kurtosis)[of], atol=1e-9)
    largest = np.abs(found.vectors).argmax(axis=0)
    assert (found.vectors[largest, range(K)] > 0).all(), "without skewness the largest entry is positive"


@pytest.mark.parametrize("method", ["joint", "single"])
def test_both_orders_find_the_union_without_duplicates(method):
    """Columns 0, 1 have no skewness and columns 1, 2 and 3 no kurtosis: order 3 leaves two, order 4 three."""
    M = rotation(seed=2)
    known = [cumulant(M, [0, 0, 1.0, -2.0], 3), cumulant(M, [3.0, 1.0, 0, 0], 4)]
    assert find_factors(known, (3,), method).vectors.shape == (K, 2)
    assert find_factors(known, (4,), method).vectors.shape == (K, 2)
    found = find_factors(known, (3, 4), method)
    error, of = matched(found.vectors.T, M.T, signed=False)
    assert found.vectors.shape == (K, K)
    assert error < 1e-10
    assert sorted(of.tolist()) == [0, 1, 2, 3]


def test_nothing_is_found_in_zero_cumulants():
    nothing = [cumulant(rotation(), np.zeros(K), 3), cumulant(rotation(), np.zeros(K), 4)]
    for method in ("joint", "single"):
        found = find_factors(nothing, (3, 4), method)
        assert found.vectors.shape == (K, 0)
        assert found.n_rejected == K


def test_a_single_factor_needs_no_other():
    found = find_factors([cumulant(np.ones((1, 1)), [-0.5], 3)], (3,))
    assert found.vectors.tolist() == [[-1.0]]
    assert found.strengths[3] == pytest.approx(0.5)


@pytest.mark.parametrize("theta", [np.eye(K)[0], np.eye(K)[1] + np.eye(K)[2], np.zeros(K), np.arange(4.0)])
def test_no_direction_gives_a_wrong_column(theta):
    """Theorem 4.1: for any direction, even degenerate ones, every returned vector is a column."""
    M = rotation(seed=4)
    matrix, noise = cumulant(M, [1.0, -1.0, 0.5, 0.0], 3).along(M @ theta)
    assert noise == 0.0
    vectors, margins = unique_eigenvectors(matrix)
    values = np.array([1.0, -1.0, 0.5, 0.0]) * theta
    n_unique = sum(np.sum(np.isclose(values, v)) == 1 for v in values) if values.any() else 0
    assert vectors.shape[1] == len(margins) == n_unique
    if n_unique:
        assert matched(vectors.T, M.T, signed=False)[0] < 1e-10


def test_eigenvalues_of_opposite_sign_are_no_tie_and_noise_makes_ties():
    values, V = np.array([1.0, -1.0, 0.9, 0.0]), rotation(seed=5)
    matrix = V @ np.diag(values) @ V.T
    assert unique_eigenvectors(matrix)[0].shape == (K, K)
    vectors, _ = unique_eigenvectors(matrix, noise=0.05)
    assert vectors.shape == (K, 2)
    assert_allclose(np.abs(vectors.T @ V[:, [1, 3]]), np.eye(2), atol=1e-12)
    assert unique_eigenvectors(matrix, tol=0.2)[0].shape == (K, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "most_missed"), [("joint", 2), ("single", 12)])
def test_noise_is_rarely_mistaken_for_a_factor(method, most_missed):
    """Two of four columns are skewed; the others are returned in only a few of a hundred cases."""
    wrong = missed = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        M = rotation(seed=seed)
        exact = cumulant(M, [1.0, 0.0, 1.5, 0.0], 3)
        draws = symmetric_noise(K, 3, 8, rng, 0.05)
        noisy = Slices(exact.matrices + draws[..., 0], exact.directions, draws[..., 1:])
        found = find_factors([noisy], (3,), method)
        overlap = np.abs(found.vectors.T @ M[:, [0, 2]]).max(axis=1)
        wrong += bool((overlap < 0.9).any())
        missed += bool((overlap > 0.9).sum() < 2)
    assert wrong <= 8
    assert missed <= most_missed


def test_orders_are_weighted_by_their_noise():
    """With a good third order and a noisy fourth, both together are as good as the third alone."""
    M = rotation(seed=6)
    rng = np.random.default_rng(1)

    def noisy(order, size):
        exact = cumulant(M, [1.0, 1.2, 0.8, 1.5], order)
        draws = symmetric_noise(K, order, 6, rng, size)
        if order == 4:
            draws = np.einsum("abcdn,cl,dl->abln", draws, *exact.directions)
        return Slices(exact.matrices + draws[..., 0], exact.directions, draws[..., 1:])

    known = [noisy(3, 0.01), noisy(4, 1.0)]
    third, both = (matched(find_factors(known, orders).vectors.T, M.T)[0] for orders in ((3,), (3, 4)))
    assert third < 0.05
    assert both < 1.2 * third


@pytest.mark.parametrize(
    ("orders", "options", "message"),
    [
        ((4,), {}, r"orders: expected some of \[3\], got \[4\]"),
        ((), {}, "orders: expected some"),
        ((3,), {"method": "svd"}, "decomposition: expected one of joint, single, got 'svd'"),
        ((3,), {"n_directions": 0}, "n_directions >= 1"),
        ((3,), {"tol": 1.0}, "0 < tol < 1"),
    ],
)
def test_wrong_parameters_are_refused(orders, options, message):
    with pytest.raises(UsageError, match=message):
        find_factors([cumulant(rotation(), np.ones(K), 3)], orders, **options)


def test_entries_that_are_not_finite_are_refused():
    bad = Slices(np.full((2, 2, 2), np.nan), (np.eye(2),))
    with pytest.raises(NumericalError, match="not finite"):
        find_factors([bad], (3,))


@pytest.mark.parametrize("delta", [0.5, 0.25, 0.1])
def test_gaps_of_a_random_direction_are_as_large_as_lemma_c5_says(delta):
    """With probability 1 - delta all gaps exceed ``min |a_i - a_j| delta / (sqrt(e) k^2.5)``."""
    rng = np.random.default_rng(7)
    A = np.array([1.0, 1.1, 0.9, 2.0])[:, None] * rotation(seed=7).T
    theta = rng.normal(size=(4000, K))
    theta /= np.linalg.norm(theta, axis=1, keepdims=True)
    values = theta @ A.T
    pairs = [(i, j) for i in range(K) for j in range(i)]
    gaps = np.min([np.abs(values[:, i] - values[:, j]) for i, j in pairs], axis=0)
    apart = min(np.linalg.norm(A[i] - A[j]) for i, j in pairs)
    assert np.mean(gaps > apart * delta / (np.sqrt(np.e) * K**2.5)) > 1.0 - delta
