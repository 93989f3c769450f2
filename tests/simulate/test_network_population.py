"""Linear networks, hierarchies and sparse loadings: their moments, and samples of them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import UsageError
from distmom.simulate.loadings import bernoulli_gaussian, tree_loadings
from distmom.simulate.networks import FAMILIES, HierarchyPopulation, NetworkPopulation, Noises

WEIGHTS = np.array([[0.0, 0.0, 0.7], [0.9, 0.0, -0.4], [0.0, 0.0, 0.0]])  # node 2, then 0, then 1


def network(n=6):
    rng = np.random.default_rng(0)
    latent = Noises(("exponential", "poisson", "chi-squared"), np.array([0.6, 1.3, 0.9]))
    return NetworkPopulation(tree_loadings([2, 3, 1], rng), WEIGHTS, latent, Noises.draw(n, rng))


def test_noises_have_the_moments_of_their_distributions():
    """The formulas of section 6, and samples of a million."""
    variances = np.array([0.6, 0.6, 0.6, 0.6])
    noises = Noises(FAMILIES, variances)
    assert_allclose(noises.thirds, [2 * 0.6**1.5, 0.6, 2 * 2**0.5 * 0.6**1.5, 0.0])
    rows = noises.sample(1_000_000, np.random.default_rng(1))
    assert_allclose(rows.mean(axis=0), 0.0, atol=5e-3)
    assert_allclose((rows**2).mean(axis=0), variances, rtol=0.02)
    assert_allclose((rows**3).mean(axis=0), noises.thirds, atol=0.06)
    drawn = Noises.draw(200, np.random.default_rng(2))
    assert set(drawn.families) == set(FAMILIES)
    assert 0.5 <= drawn.variances.min() < 0.52
    assert 0.98 < drawn.variances.max() <= 1.0


def test_moments_of_a_network_are_those_of_its_samples():
    population = network()
    rows, hidden = population.sample(400_000, seed=1)
    # h = Lambda h + eta, in a topological order of the nodes.
    eta = hidden - hidden @ WEIGHTS.T
    assert_allclose(np.cov(eta.T), np.diag(population.latent.variances), atol=0.02)
    assert_allclose(hidden.T @ hidden / len(hidden), population.second, atol=0.03)
    assert_allclose(np.cov(rows.T), population.covariance(), atol=0.05)
    y = rows @ np.linalg.cholesky(np.linalg.inv(population.covariance()))
    W = np.linalg.cholesky(np.linalg.inv(population.covariance()))
    sampled = np.einsum("ia,ib,ic->abc", y, y, y, optimize=True) / len(y)
    assert_allclose(sampled, population.third(W), atol=0.08)
    assert np.abs(population.third(W)).max() > 0.5


def test_views_share_the_latent_variables_and_not_the_noise():
    population = network()
    views = population.sample_views(200_000, 2, seed=3)
    X = views.X.reshape(-1, 2, 6)
    between = population.covariance() - np.diag(population.noise.variances)
    assert_allclose(X[:, 0].T @ X[:, 1] / len(X), between, atol=0.05)
    assert_allclose(X[:, 0].T @ X[:, 0] / len(X), population.covariance(), atol=0.05)
    assert views.groups[:4].tolist() == [0, 0, 1, 1]


def test_covariances_of_a_hierarchy_are_those_of_its_samples():
    rng = np.random.default_rng(0)
    loadings = [tree_loadings([2, 2, 3], rng), tree_loadings([3], rng)]
    population = HierarchyPopulation(loadings, [Noises.draw(n, rng) for n in (7, 3, 1)])
    lowest, middle, top = population.covariances()
    assert_allclose(top, np.diag(population.noises[2].variances))
    assert_allclose(middle, loadings[1] @ top @ loadings[1].T + np.diag(population.noises[1].variances))
    blocks = list(population.blocks([50_000, 150_000], seed=1))
    assert [len(block) for block in blocks] == [50_000, 150_000]
    assert_allclose(np.cov(np.concatenate(blocks).T), lowest, atol=0.04)


def test_sparse_loadings_have_the_density_and_the_gap_that_were_asked_for():
    matrix = bernoulli_gaussian(400, 30, np.random.default_rng(0), density=0.3, gap=0.4)
    assert np.count_nonzero(matrix) / matrix.size == pytest.approx(0.3, abs=0.02)
    magnitudes = np.sort(np.abs(matrix), axis=1)
    assert (magnitudes[:, -2] <= 0.6 * magnitudes[:, -1] + 1e-12).all()
    # Without a gap the same entries, of which only the largest of a row was enlarged.
    plain = bernoulli_gaussian(400, 30, np.random.default_rng(0), density=0.3)
    changed = plain != matrix
    assert changed.sum(axis=1).max() == 1
    assert (np.sign(plain) == np.sign(matrix)).all()
    assert (np.abs(matrix[changed]) > np.abs(plain[changed])).all()
    assert bernoulli_gaussian(5, 1, np.random.default_rng(0)).shape == (5, 1)
    tree = tree_loadings([2, 1, 4], np.random.default_rng(0))
    assert (np.count_nonzero(tree, axis=0) == [2, 1, 4]).all()
    assert (np.count_nonzero(tree, axis=1) == 1).all()
    assert 0.5 <= np.abs(tree[tree != 0]).min() <= np.abs(tree).max() <= 1.5


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Noises(("normal",), np.ones(1)), "families: expected some of exponential"),
        (lambda: Noises(("poisson",), np.zeros(1)), "variances: expected 1 positive numbers"),
        (lambda: bernoulli_gaussian(3, 2, np.random.default_rng(0), gap=1.0), "gap: expected a number in"),
        (lambda: bernoulli_gaussian(3, 2, np.random.default_rng(0), density=0.0), "density: expected"),
        (lambda: tree_loadings([2, 0], np.random.default_rng(0)), "expected at least one child"),
        (lambda: network(5), "6 noises, got"),
        (
            lambda: NetworkPopulation(np.ones((4, 2)), np.ones((2, 2)) - np.eye(2), *[noises(n) for n in (2, 4)]),
            "has a cycle",
        ),
        (lambda: HierarchyPopulation([np.ones((4, 2)), np.ones((3, 1))], []), "as many rows as the one below"),
        (lambda: HierarchyPopulation([np.ones((4, 2))], [noises(4)]), "expected levels of 4, 2 variables"),
    ],
)  # fmt: skip
def test_invalid_populations_are_refused(build, message):
    with pytest.raises(UsageError, match=message):
        build()


def noises(n):
    return Noises(("gaussian",) * n, np.ones(n))
