"""Factors and trees beside peers: the measures by their definitions, EM, and distmom's own models."""

import importlib
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose

TREE = "((1,2),(3,4),5)"


@pytest.fixture
def latents():
    return importlib.import_module("latents")


@pytest.fixture
def tasks():
    return importlib.import_module("latent_tasks")


@pytest.fixture
def tree_em():
    return importlib.import_module("tree_em")


def relabelled(tree_em, task, seed=0):
    """Return the planted law with the states of every hidden variable in another order."""
    rng = np.random.default_rng(seed)
    order = [rng.permutation(task.shape.k) for _ in task.shape.parents]
    edges = [
        edge[np.ix_(order[parent], order[g])]
        for g, (edge, parent) in enumerate(zip(task.law.edges, task.shape.parents[1:], strict=True), start=1)
    ]
    leaves = [leaf[order[h]] for leaf, h in zip(task.law.leaves, task.shape.of_leaves, strict=True)]
    return tree_em.Law(task.law.root[order[0]], edges, leaves)


def chances(task, law):
    """Return the probability of every row by the sum over all states of the hidden variables."""
    total = np.zeros(len(task.train))
    for states in product(range(task.shape.k), repeat=len(task.shape.parents)):
        chance = np.full(len(task.train), law.root[states[0]])
        for g, parent in enumerate(task.shape.parents[1:], start=1):
            chance *= law.edges[g - 1][states[parent], states[g]]
        for leaf, h in enumerate(task.shape.of_leaves):
            chance *= law.leaves[leaf][states[h]][task.train[:, leaf]]
        total += chance
    return total


def run(tmp_path, task, model, system):
    task.store(tmp_path)
    command = [model, system, f"--task={tmp_path / 'task.npz'}", f"--out={tmp_path / 'out'}"]
    assert importlib.import_module("run_latent").main(command) == 0
    with np.load(tmp_path / "out" / "found.npz") as found:
        return dict(found)


# Factors


def test_factors_in_any_order_sign_and_scale_have_no_error(latents, tasks):
    task = tasks.skewed_views(4, 12, 100, 3, "white", 0)
    rng = np.random.default_rng(1)
    found = task.loadings[:, rng.permutation(4)] * rng.choice([-1.0, 1.0], 4) * rng.uniform(0.5, 2.0, 4)
    assert latents.measure_views(task, {"loadings": found})["error"] == pytest.approx(0.0, abs=1e-7)
    # What is not found has a distance of one.
    assert latents.measure_views(task, {"loadings": found[:, :3]})["error"] == pytest.approx(0.25, abs=1e-7)


def test_halves_of_views_without_noise_agree_and_those_of_noise_do_not(latents):
    rng = np.random.default_rng(0)
    loadings, factors = rng.normal(size=(10, 3)), rng.normal(size=(4_000, 3))
    views = np.repeat((factors @ loadings.T)[:, None], 4, axis=1)
    assert latents.halves(views, loadings) == pytest.approx(1.0)
    # The noise of two views has the variance of a factor, so that the correlation is a half.
    eye = np.eye(3)
    noisy = np.repeat(factors[:, None], 4, axis=1) + np.sqrt(2.0) * rng.normal(size=(4_000, 4, 3))
    assert latents.halves(noisy, eye) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("system", "largest"), [("distmom", 0.12), ("fast-ica", 0.9)])
def test_factors_are_found(latents, tasks, tmp_path, system, largest):
    task = tasks.skewed_views(3, 20, 5_000, 4, "white", 0)
    assert latents.measure_views(task, run(tmp_path, task, "factors", system))["error"] < largest


def test_patches_of_a_region_are_neighbours(tasks):
    pytest.importorskip("PIL")
    task = tasks.patches(3, 0)
    n = len(task.train) + len(task.held_out)
    assert n == 2 * (427 // 8) * (640 // 8)
    assert task.train.shape[1:] == (4, 48)
    means = task.train.mean(axis=2)
    assert np.corrcoef(means.T).min() > 0.9


# Trees


def test_a_tree_with_states_in_any_order_has_no_error(latents, tasks, tree_em):
    task = tasks.planted_tree(TREE, 3, 4, 500, 5.0, 0)
    law = relabelled(tree_em, task)
    assert latents.errors(task, law) == {"error": 0.0, "edges_error": 0.0}
    law.leaves[0] += 0.01
    assert latents.errors(task, law)["error"] == pytest.approx(0.01 / 5)


def test_likelihoods_are_the_sum_over_hidden_states(tasks, tree_em):
    task = tasks.planted_tree(TREE, 2, 3, 60, 1.0, 0)
    for law in (task.law, relabelled(tree_em, task)):
        assert_allclose(tree_em.log_likelihoods(task.shape, law, task.train), np.log(chances(task, law)))


def test_em_raises_the_likelihood_and_finds_a_planted_tree(latents, tasks, tree_em):
    task = tasks.planted_tree(TREE, 2, 4, 4_000, 20.0, 0)
    law = tree_em.Law.random(task.shape, np.random.default_rng(1))
    before = -np.inf
    for _ in range(30):
        weights = np.ones(len(task.train))
        following, value = tree_em.em_step(task.shape, law, task.train, weights)
        assert value == pytest.approx(tree_em.log_likelihoods(task.shape, law, task.train).mean())
        assert value > before - 1e-12
        law, before = following, value
    found, value, _ = tree_em.fit_em(task.shape, law, task.train, 200)
    assert value >= before
    assert latents.errors(task, found)["error"] < 0.03
    assert np.allclose(found.root.sum(), 1.0)


def test_moments_find_a_planted_tree_and_em_from_them_is_likelier(latents, tasks, tmp_path):
    task = tasks.planted_tree(TREE, 2, 4, 5_000, 20.0, 0)
    measured = [
        latents.measure_tree(task, run(tmp_path, task, "latent-tree", system))
        for system in ("distmom-moments", "distmom")
    ]
    assert measured[0]["error"] < 0.03
    assert measured[1]["held_out"] > measured[0]["held_out"] - 1e-3


def test_leaves_of_digits_are_blocks_of_pixels(tasks):
    task = tasks.digit_rows(2, 0)
    assert task.shape.levels == (8,) * 8
    assert task.shape.of_leaves == (1, 1, 2, 2, 3, 3, 4, 4)
    assert len(task.train) + len(task.held_out) == 1797


def test_systems_are_run_where_they_can_be(latents, tasks):
    assert latents.suits("nmf", tasks.sentences(2, 10, 50, 3, 0))
    assert not latents.suits("nmf", tasks.skewed_views(2, 10, 50, 3, "white", 0))
    assert latents.suits("pgmpy", tasks.planted_tree("((1,2),3,4)", 2, 3, 1_000, 5.0, 0))
    assert not latents.suits("pgmpy", tasks.planted_tree("((1,2),3,4)", 2, 12, 5_000, 5.0, 0))
