"""Mixtures beside peers: the tasks, the measures by their definitions, and distmom's own models."""

import importlib

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix, save_npz
from scipy.stats import multivariate_normal


@pytest.fixture
def mixtures():
    return importlib.import_module("mixtures")


@pytest.fixture
def tasks():
    return importlib.import_module("mixture_tasks")


def shuffled(task):
    order = np.random.default_rng(0).permutation(task.k)
    return task.weights[order], task.components[order]


@pytest.mark.parametrize("model", ["product", "multiview", "diagonal", "single-topic"])
def test_own_models_find_planted_components(mixtures, tasks, tmp_path, model):
    # Least ARI and largest error; with fixed seeds errors are a half of it.
    task, error = {
        "product": (tasks.presence(3, 30, 3_000, 2.0, 0), 0.018),
        "multiview": (tasks.mixed_views(6_000, 0), 0.04),
        "diagonal": (tasks.axis_aligned(5, 60, 20_000, 0.4, 0), 0.025),
        "single-topic": (tasks.topics(5, 300, 3_000, (20, 60), 0.3, 0), 0.16),
    }[model]
    save_npz(tmp_path / "rows.npz", task.train)
    command = [
        model,
        "distmom",
        f"--rows={tmp_path / 'rows.npz'}",
        f"-k{task.k}",
        f"--out={tmp_path / 'out'}",
    ]
    assert importlib.import_module("run_mixture").main([*command, "--views", *task.views]) == 0
    with np.load(tmp_path / "out" / "found.npz") as found:
        measured = mixtures.measures(task, **found)
    assert measured["ARI"] > 0.95
    assert measured["error"] < error
    assert measured["weights_error"] < 0.02
    if model == "diagonal":
        best = mixtures.held_out_density(task, task.weights, task.components, task.variances)
        assert measured["held_out"] == pytest.approx(best, rel=1e-3)
        assert measured["variances_error"] < 0.03
    elif model != "multiview":
        assert measured["held_out"] == pytest.approx(mixtures.held_out(task, *shuffled(task)), rel=1e-2)


def test_errors_are_those_of_matched_components(mixtures, tasks):
    for task in (tasks.presence(4, 20, 100, 1.0, 1), tasks.gaussian_views(4, 500, 1.0, True, 1),
                 tasks.axis_aligned(4, 20, 500, 1.0, 1), tasks.topics(4, 50, 100, (5, 9), 0.3, 1)):  # fmt: skip
        weights, components = shuffled(task)
        assert mixtures.errors(task, weights, components) == {"error": 0.0, "weights_error": 0.0}
        moved = mixtures.errors(task, weights + 0.01, components + 0.001)
        assert moved["weights_error"] == pytest.approx(0.01)
        d = task.train.shape[1]
        expected = {
            "product": 0.001,
            "multiview": 0.001 * np.mean(1.0 / task.train.toarray().std(axis=0)),
            "diagonal": 0.001 * np.mean(1.0 / task.train.toarray().std(axis=0)),
            "single-topic": 0.001 * d,
        }[task.model]
        assert moved["error"] == pytest.approx(expected)


def test_the_held_out_likelihood_is_that_of_the_smoothed_mixture(mixtures, tasks):
    rows = csr_matrix(np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0]]))
    weights, components = np.array([0.25, 0.75]), np.array([[0.5, 0.0, 0.9], [0.2, 0.4, 1.0]])
    counts = rows.toarray().sum(axis=0) + 0.1
    w = 0.99 * weights + 0.005
    P = 0.99 * components + 0.01 * counts / 4.2
    each = [w @ [np.prod(np.where(row, p, 1.0 - p)) for p in P] for row in rows.toarray()]
    task = tasks.Task("product", rows, rows, np.zeros(4, int), 2)
    assert_allclose(mixtures.held_out(task, weights, components), np.log(each).mean())

    topics = components / components.sum(axis=1, keepdims=True)
    P = 0.99 * topics + 0.01 * counts / counts.sum()
    each = [w @ [np.prod(p**row) for p in P] for row in rows.toarray()]
    task = tasks.Task("single-topic", rows, rows, np.zeros(4, int), 2)
    assert_allclose(mixtures.held_out(task, weights, topics), np.log(each).mean())


def test_errors_of_variances_and_the_held_out_density_are_those_of_the_smoothed_mixture(mixtures, tasks):
    task = tasks.axis_aligned(4, 20, 500, 1.0, 1)
    order = np.random.default_rng(0).permutation(4)
    spread = task.train.toarray().var(axis=0)
    found = [task.weights[order], task.components[order], task.variances[order]]
    assert mixtures.errors(task, *found)["variances_error"] == 0.0
    moved = mixtures.errors(task, *found[:2], found[2] + 0.03 * spread)
    assert moved["variances_error"] == pytest.approx(0.03)
    rows, w = task.held_out.toarray(), 0.99 * found[0] + 0.0025
    variances = 0.99 * found[2] + 0.01 * spread
    each = [
        w @ [multivariate_normal(m, np.diag(v)).pdf(row) for m, v in zip(found[1], variances, strict=True)]
        for row in rows
    ]
    assert_allclose(mixtures.held_out_density(task, *found), np.log(each).mean())


def test_posts_of_several_groups_and_without_words_are_left_out(tasks, tmp_path):
    lines = ["6 3 3", "0 0:1 1:1", "1 2:1", "0,1 0:1", "2 1:1", "1", "0 2:1"]
    path = tmp_path / "posts.xmc.txt"
    path.write_text("\n".join(lines) + "\n")
    task = tasks.newsgroup_posts(path, "product", 2, 0, format="xmc")
    assert task.train.shape[0] + task.held_out.shape[0] == 3
    assert task.train.sum() + task.held_out.sum() == 4
    assert task.k == 2


@pytest.mark.parametrize("correlated", [False, True])
def test_yes_or_no_columns_depend_on_each_other_within_a_view_alone(tasks, correlated):
    task = tasks.bit_views(2, 60_000, correlated, 0)
    rows = task.train.toarray()[task.groups == 0].astype(float)
    assert np.abs(rows.mean(axis=0) - task.components[0]).max() < 0.02
    correlations = np.abs(np.corrcoef(rows.T) - np.eye(45)).reshape(3, 15, 3, 15).mean(axis=(1, 3))
    within, between = np.diag(correlations), correlations[np.triu_indices(3, 1)]
    assert between.max() < 0.02
    assert (within > 0.1).all() if correlated else within.max() < 0.02


def test_views_of_tumours_have_the_same_properties_three_times(tasks):
    task = tasks.class_views("tumours", 0)
    assert task.views == ("gaussian_diag:9", "gaussian_diag:9", "gaussian_diag:12")
    together = np.vstack([task.train.toarray(), task.held_out.toarray()])
    assert_allclose(together.mean(axis=0), 0.0, atol=1e-12)
    # The mean radius and the mean perimeter are nearly the same.
    assert np.corrcoef(together[:, :9].T)[0, 1] > 0.99


def test_the_tables_have_medians_and_what_was_left_out(mixtures):
    same = {"task": "some rows", "model": "product", "n_train": 10, "d": 4, "k": 2}
    rows = [{"system": "one", "seed": seed, **same, "error": 0.1 * seed, "NMI": 0.5} for seed in range(3)]
    rows += [{"system": "other", "seed": seed, **same, "left_out": "not installed"} for seed in range(3)]
    lines = mixtures.COMPARISON.report(rows).splitlines()
    assert lines[0] == "product"
    assert lines[2] == "| system | seeds | error | NMI |"
    assert lines[4] == "| some rows: one | 3 | 0.1000 (0.0000 to 0.2000) | 0.500 |"
    assert lines[5] == "| other | 0 |  |  |"
    assert lines[-1] == "some rows: other, seed 2: not installed."
