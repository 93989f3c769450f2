"""Networks of latent variables from moments of several views, of one, and of observed variables."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import NumericalError, UsageError
from distmom.linalg import whiten
from distmom.linalg.expansion.latent_networks import latent_network, observed_network
from distmom.linalg.lowrank import independent_parts
from distmom.linalg.one_view import denoised_moments, find_parts, find_predictors
from distmom.moments.rows.one_view import noise_moments

WEIGHTS = np.array([[0.0, 0.0, 0.7], [0.9, 0.0, -0.4], [0.0, 0.0, 0.0]])  # node 2, then 0, then 1
ORDER = [2, 0, 1]
DEVIATIONS = np.array([0.8, 1.3, 1.0])
#: probabilities of the upper of two values: different skewness of each noise
UPPER = np.array([0.2, 0.85, 0.3])


def two_points(probabilities, deviations):
    """Return all combinations of independent centred variables of two values, and their probabilities."""
    scale = np.sqrt(probabilities * (1.0 - probabilities))
    points, chances = [], []
    for upper in itertools.product([False, True], repeat=len(probabilities)):
        points.append((np.array(upper) - probabilities) / scale * deviations)
        chances.append(np.prod(np.where(upper, probabilities, 1.0 - probabilities)))
    return np.array(points), np.array(chances)


def sparse_loadings(n, seed, k=3):
    """Return loadings of k nodes of either sign, each on its own rows and on a few others."""
    rng = np.random.default_rng(seed)
    support = np.kron(np.eye(k), np.ones((n // k, 1))) + (rng.random((n, k)) < 0.15) > 0
    return support * rng.choice([-1.0, 1.0], (n, k)) * rng.uniform(0.5, 1.5, (n, k))


def latent_population(loadings):
    """Return the weighted values of ``A h`` in the exact population."""
    noises, chances = two_points(UPPER, DEVIATIONS)
    return noises @ np.linalg.inv(np.eye(3) - WEIGHTS).T @ loadings.T, chances


def moments(rows, chances, basis=None):
    """Return the whitening of the second moment of centred rows, and the third moment whitened with it."""
    inside = rows if basis is None else rows @ basis
    white = whiten((inside.T * chances) @ inside, 3)
    y = inside @ white.W
    return white, np.einsum("i,ia,ib,ic->abc", chances, y, y, y, optimize=True)


def matched(found, loadings):
    """Return the column of every node, and the scale of the loadings in which the found ones are."""
    cosines = (found / np.linalg.norm(found, axis=0)).T @ (loadings / np.linalg.norm(loadings, axis=0))
    nodes = np.abs(cosines).argmax(axis=1)
    assert sorted(nodes) == list(range(loadings.shape[1]))
    scales = np.sum(found * loadings[:, nodes], axis=0) / np.sum(loadings[:, nodes] ** 2, axis=0)
    return nodes, scales


def errors_of(found, loadings):
    """Return the largest errors of loadings, weights and deviations in the scale of the true nodes."""
    nodes, scales = matched(found.loadings, loadings)
    weights = found.network.weights * scales[:, None] / scales
    return (
        np.abs(found.loadings / scales - loadings[:, nodes]).max(),
        np.abs(weights - WEIGHTS[np.ix_(nodes, nodes)]).max(),
        np.abs(found.network.deviations * np.abs(scales) - DEVIATIONS[nodes]).max(),
    )


@pytest.mark.parametrize("seed", range(4))
def test_an_exact_population_of_views_gives_back_loadings_and_network(seed):
    loadings = sparse_loadings(24, seed)
    found = latent_network(*moments(*latent_population(loadings)), seed=seed)
    assert max(errors_of(found, loadings)) < 1e-10
    assert_allclose(np.abs(found.loadings).max(axis=0), 1.0)
    nodes, scales = matched(found.loadings, loadings)
    assert [int(nodes[i]) for i in found.network.order] == ORDER
    assert found.network.against < 1e-10
    assert found.columns.exact.all()
    noises = np.linalg.inv(np.eye(3) - WEIGHTS) * DEVIATIONS
    covariance = (noises @ noises.T)[np.ix_(nodes, nodes)]
    assert_allclose(found.covariance * np.outer(scales, scales), covariance, atol=1e-10)
    # The skewness of a variable of two values, and any sign.
    skewness = np.abs(1.0 - 2.0 * UPPER) / np.sqrt(UPPER * (1.0 - UPPER))
    assert_allclose(found.skewness, np.sort(skewness)[::-1], atol=1e-10)


def test_moments_in_a_basis_give_the_network_of_moments_of_rows():
    loadings = sparse_loadings(30, 5)
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(
        np.column_stack([loadings, rng.standard_normal((30, 3))]) @ rng.standard_normal((6, 6))
    )[0]
    found = latent_network(*moments(*latent_population(loadings), basis), basis=basis)
    assert max(errors_of(found, loadings)) < 1e-10


def test_an_observed_network_needs_no_sparse_columns():
    rows, chances = latent_population(np.eye(3))
    found = observed_network(*moments(rows, chances))
    assert_allclose(found.network.weights, WEIGHTS, atol=1e-10)
    assert_allclose(found.network.deviations, DEVIATIONS, atol=1e-10)
    assert found.network.order.tolist() == ORDER
    assert_allclose(found.loadings, np.eye(3))


def one_view_population(loadings, seed=3):
    """Return the weighted values of ``A h + epsilon``, and the variances and third moments of the noises."""
    n = len(loadings)
    latent, chances = latent_population(loadings)
    rng = np.random.default_rng(seed)
    upper, deviations = rng.uniform(0.1, 0.4, n), rng.uniform(0.3, 0.9, n)
    noises, of_noises = two_points(upper, deviations)
    thirds = (1.0 - 2.0 * upper) / np.sqrt(upper * (1.0 - upper)) * deviations**3
    rows = (latent[:, None, :] + noises[None, :, :]).reshape(-1, n) + 2.0
    return rows, np.outer(chances, of_noises).ravel(), deviations**2, thirds


def test_both_moments_of_a_single_view_are_freed_of_noise_exactly():
    loadings = np.zeros((12, 3))
    loadings[:4, 0], loadings[4:8, 1], loadings[8:, 2] = (
        [1, -0.7, 0.8, 1.2],
        [1, 0.6, -1.1, 0.9],
        [0.7, 1, 1.3, -1],
    )
    loadings[[0, 5, 9], [1, 2, 0]] = 0.5, -0.4, 0.6
    rows, chances, variances, thirds = one_view_population(loadings)
    found = denoised_moments(rows, 3, weights=chances, n_partitions=10)
    assert_allclose(found.mean, 2.0, atol=1e-12)
    assert_allclose(found.variances, variances, atol=1e-10)
    assert_allclose(found.thirds, thirds, atol=1e-10)
    latent, of_latent = latent_population(loadings)
    y = latent @ found.whitening.W
    assert_allclose(found.third, np.einsum("i,ia,ib,ic->abc", of_latent, y, y, y), atol=1e-10)
    network = latent_network(found.whitening, found.third)
    assert max(errors_of(network, loadings)) < 1e-10
    # The residuals give the variances that the covariance gives.
    predictors = find_predictors(found.whitening.B, find_parts(found.whitening.B))
    assert_allclose(noise_moments(rows - 2.0, predictors, chances)[0], variances, atol=1e-10)
    # With the noise the third moment is another one.
    z = (rows - 2.0) @ found.whitening.W
    noisy = np.einsum("i,ia,ib,ic->abc", chances, z, z, z, optimize=True)
    assert np.abs(noisy - found.third).max() > 1e-3


def test_sums_of_noise_of_blocks_add_up():
    rng = np.random.default_rng(0)
    rows, factors, weights = rng.standard_normal((50, 9)), rng.standard_normal((9, 2)), rng.random(50)
    predictors = find_predictors(factors, independent_parts(np.linalg.qr(factors)[0], rng))
    whole = noise_moments(rows, predictors, weights)
    halves = [noise_moments(rows[s], predictors, weights[s]) for s in (slice(20), slice(20, 50))]
    for total, first, second in zip(whole, *halves, strict=True):
        assert_allclose(first + second, total, atol=1e-12)


@pytest.mark.parametrize("noisy", [False, True], ids=["views", "one view"])
@pytest.mark.slow
def test_errors_of_samples_fall_with_the_root_of_their_number(noisy):
    loadings = sparse_loadings(24, 1)
    responses = np.linalg.inv(np.eye(3) - WEIGHTS)
    errors = []
    for n in (4_000, 64_000):
        found = []
        for seed in range(12):
            rng = np.random.default_rng(seed)
            latent = (rng.exponential(size=(n, 3)) - 1.0) * DEVIATIONS @ responses.T @ loadings.T
            if noisy:
                rows = latent + 0.6 * (rng.exponential(size=latent.shape) - 1.0)
                denoised = denoised_moments(rows, 3, n_partitions=5, seed=seed)
                network = latent_network(denoised.whitening, denoised.third, seed=seed)
            else:
                network = latent_network(*moments(latent, np.full(n, 1.0 / n)), seed=seed)
            found.append(errors_of(network, loadings)[1])
        errors.append(np.median(found))
    assert errors[1] < 0.1
    assert 2.0 < errors[0] / errors[1] < 8.0


def test_one_noise_may_be_symmetric(monkeypatch):
    loadings = sparse_loadings(24, 0)
    monkeypatch.setitem(globals(), "UPPER", np.array([0.2, 0.85, 0.5]))
    assert max(errors_of(latent_network(*moments(*latent_population(loadings))), loadings)) < 1e-10
    monkeypatch.setitem(globals(), "UPPER", np.array([0.2, 0.5, 0.5]))
    with pytest.raises(NumericalError, match="separates 1 of 3 noises"):
        latent_network(*moments(*latent_population(loadings)))


def test_noises_without_skewness_are_refused():
    loadings = sparse_loadings(24, 0)
    white, third = moments(*latent_population(loadings))
    with pytest.raises(NumericalError, match="the third moment separates 0 of 3 noises"):
        latent_network(white, np.zeros_like(third))
    draws = np.random.default_rng(0).standard_normal((3, 3, 3, 4))
    with pytest.raises(NumericalError, match="all but one must have a skewness above"):
        latent_network(white, third, noise=10.0 * draws)


def test_arguments_that_do_not_agree_are_refused():
    white, third = moments(*latent_population(sparse_loadings(24, 0)))
    with pytest.raises(UsageError, match=r"third: expected shape \(3, 3, 3\), got \(2, 2, 2\)"):
        latent_network(white, third[:2, :2, :2])
    with pytest.raises(UsageError, match="noise: expected shape"):
        latent_network(white, third, noise=third)
    with pytest.raises(UsageError, match="basis: expected 24 columns, got 5"):
        latent_network(white, third, basis=np.eye(30)[:, :5])
    with pytest.raises(
        UsageError, match="whitening: expected 24 columns, as many as there are variables, got 3"
    ):
        observed_network(white, third)
    rows = np.random.default_rng(0).standard_normal((20, 9))
    with pytest.raises(UsageError, match="weights: expected 20 nonnegative numbers"):
        denoised_moments(rows, 2, weights=-np.ones(20))
    with pytest.raises(NumericalError, match="not finite"):
        denoised_moments(np.full((20, 9), np.nan), 2)
    with pytest.raises(UsageError, match="expected at least 12 rows, three per column, got 9"):
        find_parts(rows[:9, :4])
    with pytest.raises(UsageError, match="expected a partition of the variables into three sets"):
        find_predictors(np.ones((9, 1)), [np.arange(9)])
    with pytest.raises(NumericalError, match="a part of 3 variables have a rank below 2"):
        find_predictors(np.ones((9, 2)), np.array_split(np.arange(9), 3))
