"""Hierarchies of latent variables from exact and sampled covariances of their lowest level."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import NumericalError, UsageError
from distmom.linalg.expansion.hierarchy import learn_hierarchy
from distmom.linalg.expansion.projected import projected_columns


def tree(k, seed, n_children=3):
    """Return the loadings of the children of k parents."""
    rng = np.random.default_rng(seed)
    n = k * n_children
    return (
        np.kron(np.eye(k), np.ones((n_children, 1)))
        * rng.uniform(0.6, 1.4, (n, 1))
        * rng.choice([-1, 1], (n, 1))
    )


def crossed(k, seed, n_children):
    """Return the loadings of children of which some have two parents."""
    rng = np.random.default_rng(seed)
    loadings = tree(k, seed, n_children)
    for parent in range(k):
        loadings[rng.integers(n_children) + n_children * ((parent + 1) % k), parent] = rng.uniform(0.4, 0.8)
    return loadings


def population(loadings, top, seed=0):
    """Return the covariances of all levels, lowest first, and the variances of the noises of the lower ones."""
    rng = np.random.default_rng(seed)
    covariances, noises = [top], []
    for A in reversed(loadings):
        noises.insert(0, rng.uniform(0.3, 0.8, len(A)))
        covariances.insert(0, A @ covariances[0] @ A.T + np.diag(noises[0]))
    return covariances, noises


def in_found_coordinates(found, true):
    """Return the columns of the found loadings, and h' = t h in which ``found = A / t``."""
    cosines = (found / np.linalg.norm(found, axis=0)).T @ (true / np.linalg.norm(true, axis=0))
    nodes = np.abs(cosines).argmax(axis=1)
    assert sorted(nodes) == list(range(true.shape[1]))
    return nodes, np.sum(true[:, nodes] * found, axis=0) / np.sum(found**2, axis=0)


@pytest.mark.parametrize("make", ["tree", "crossed"])
def test_an_exact_covariance_gives_back_all_levels(make):
    loadings = [tree(9, 1), tree(3, 2)] if make == "tree" else [crossed(8, 1, 6), crossed(2, 2, 4)]
    k = loadings[-1].shape[1]
    # The highest level may be correlated.
    top = np.eye(k) + 0.3
    covariances, noises = population(loadings, top)
    levels = learn_hierarchy(covariances[0], [A.shape[1] for A in loadings], n_partitions=20)
    nodes, scales = np.arange(len(covariances[0])), np.ones(len(covariances[0]))
    for level, A, noise, above in zip(levels, loadings, noises, covariances[1:], strict=True):
        # Variables of this level come in the order and scale of the columns below.
        true = A[nodes] * scales[:, None]
        assert_allclose(level.noise, noise[nodes] * scales**2, atol=1e-10)
        nodes, scales = in_found_coordinates(level.loadings, true)
        assert_allclose(level.loadings * scales, true[:, nodes], atol=1e-10)
        assert_allclose(level.covariance, above[np.ix_(nodes, nodes)] * np.outer(scales, scales), atol=1e-10)
        assert level.off_diagonal_share < 1e-10
    assert len(levels) == 2


@pytest.mark.parametrize("decades", [3, 100])
def test_units_of_the_observed_variables_do_not_matter(decades):
    loadings = [crossed(8, 1, 6), crossed(2, 2, 4)]
    covariances, noises = population(loadings, np.eye(2) + 0.3)
    units = 10.0 ** np.random.default_rng(1).uniform(-decades, decades, 48)
    lower, upper = learn_hierarchy(covariances[0] * np.outer(units, units), [8, 2], n_partitions=20)
    assert_allclose(np.abs(lower.loadings).max(axis=0), 1.0)
    assert_allclose(lower.noise / units**2, noises[0], atol=1e-10)
    nodes, scales = in_found_coordinates(lower.loadings / units[:, None], loadings[0])
    assert_allclose(lower.loadings / units[:, None] * scales, loadings[0][:, nodes], atol=1e-10)
    of_units = lower.covariance / scales[:, None] / scales
    assert_allclose(of_units, covariances[1][np.ix_(nodes, nodes)], atol=1e-10)
    true = loadings[1][nodes]
    found = upper.loadings / scales[:, None]
    nodes, scales = in_found_coordinates(found, true)
    assert_allclose(found * scales, true[:, nodes], atol=1e-10)


def test_a_variable_without_variance_has_no_loadings():
    covariances, _ = population([crossed(8, 1, 6)], np.eye(8))
    plain = learn_hierarchy(covariances[0], [8], n_partitions=20)[0]
    level = learn_hierarchy(np.pad(covariances[0], (0, 1)), [8], n_partitions=20)[0]
    assert_allclose(level.loadings[-1], 0.0, atol=1e-10)
    assert_allclose(level.noise[:-1], plain.noise, atol=1e-10)


@pytest.mark.slow
def test_errors_fall_with_the_root_of_the_number_of_rows():
    loadings = [crossed(6, 3, 5), tree(2, 4)]
    covariances, _ = population(loadings, np.eye(2))
    root = np.linalg.cholesky(covariances[0])
    errors = []
    for n in (4_000, 64_000):
        found = []
        for seed in range(3):
            rows = np.random.default_rng(seed).standard_normal((n, 30)) @ root.T
            level = learn_hierarchy(np.cov(rows.T), [6], n_partitions=5, seed=seed)[0]
            nodes, scales = in_found_coordinates(level.loadings, loadings[0])
            found.append(np.sqrt(np.mean((level.loadings * scales - loadings[0][:, nodes]) ** 2)))
        errors.append(np.mean(found))
    assert 2.0 < errors[0] / errors[1] < 8.0
    assert errors[1] < 0.05


def test_rows_of_projections_are_those_asked_for(monkeypatch):
    asked = []

    def projected(basis, *, n_constraints):
        asked.append((basis.shape, n_constraints))
        return projected_columns(basis, n_constraints=n_constraints)

    monkeypatch.setattr("distmom.linalg.expansion.latent_networks.projected_columns", projected)
    loadings = [tree(9, 1), tree(3, 2)]
    covariance = population(loadings, np.eye(3))[0][0]
    found = learn_hierarchy(covariance, [9, 3], n_partitions=5, n_projected=18)
    assert asked == [((27, 9), 18), ((9, 3), 18)]
    assert_allclose(np.abs(found[0].loadings).max(axis=0), 1.0)
    asked.clear()
    learn_hierarchy(covariance, [9], n_partitions=5)
    assert asked == []


def test_sizes_that_no_hierarchy_has_are_refused():
    covariance = population([tree(9, 1)], np.eye(9))[0][0]
    with pytest.raises(UsageError, match="at least one hidden level, got"):
        learn_hierarchy(covariance, [])
    with pytest.raises(UsageError, match="expected at most 9 variables above 27, a third, got 10"):
        learn_hierarchy(covariance, [10])
    with pytest.raises(UsageError, match="expected at most 3 variables above 9, a third, got 4"):
        learn_hierarchy(covariance, [9, 4])
    for sizes in (9, "9", [9.0], [0]):
        with pytest.raises(UsageError, match="sizes: expected a "):
            learn_hierarchy(covariance, sizes)
    for name, least in (("n_partitions", 1), ("n_projected", 0)):
        with pytest.raises(UsageError, match=f"{name}: expected a whole number of at least {least}, got -1"):
            learn_hierarchy(covariance, [9], **{name: -1})
    with pytest.raises(NumericalError):
        learn_hierarchy(np.eye(27), [3], n_partitions=2)


def test_sizes_may_be_an_array():
    covariance = population([tree(9, 1), tree(3, 2)], np.eye(3))[0][0]
    assert len(learn_hierarchy(covariance, np.array([9, 3]), n_partitions=5)) == 2


def test_covariances_that_are_no_square_or_not_finite_are_refused():
    with pytest.raises(UsageError, match=r"covariance: expected a square matrix, got shape \(9, 8\)"):
        learn_hierarchy(np.ones((9, 8)), [2])
    with pytest.raises(NumericalError, match="the covariance has entries that are not finite"):
        learn_hierarchy(np.diag([np.nan] * 9), [2])
    with pytest.raises(UsageError, match="is not symmetric"):
        learn_hierarchy(population([tree(3, 1)], np.eye(3))[0][0] + np.triu(np.ones((9, 9)), 1), [3])
