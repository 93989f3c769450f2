"""Searches in rows at a small size: the measures by hand, and errors beside those of other systems."""

import importlib
from argparse import Namespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

SIZES = {
    "rows": 20_000, "features": 20, "components": 4, "distance": 2.5, "noise": 1.0, "share": 0.5, "wrong": 0.02,
    "dimension": 5, "vector_share": 0.8, "deviation": 0.5, "least_weight": 0.0253, "seeds": 2,
}  # fmt: skip


@pytest.fixture
def searches():
    return importlib.import_module("row_search")


def errors_of(searches, monkeypatch, task, names, **sizes):
    """Return the errors of some of the systems of a task."""
    systems = searches.TASKS[task]

    def some(arguments, seed):
        return {name: each for name, each in systems(arguments, seed).items() if name in names}

    monkeypatch.setitem(searches.TASKS, task, some)
    monkeypatch.setitem(searches.REFERENCES, task, names[0])
    found = searches.compare(Namespace(**(SIZES | sizes)), task)
    assert set(found) == set(names)
    assert found[names[0]][1] == 0.0
    return [found[name][0] for name in names]


def test_measures_are_those_by_hand(searches):
    target = np.array([3.0, 4.0])
    assert searches.nearest(np.zeros(2), target) == 5.0
    assert searches.nearest(np.array([[0.0, 0.0], [3.0, 3.0]]), target) == 1.0
    found = searches.row_distances(np.array([[0.0, 0.0], [3.0, 3.0]]), np.array([target, target]))
    assert found.tolist() == [5.0, 1.0]
    # The norm of the difference of projections is the sine of the largest angle.
    line = np.array([[np.cos(0.3)], [np.sin(0.3)]])
    assert searches.between(line, np.array([[1.0], [0.0]])) == pytest.approx(np.sin(0.3))
    assert searches.between(-line, line) == pytest.approx(0.0, abs=1e-15)
    # A half and a tenth less, and as much more.
    assert searches.gain(np.array([1.0, 0.9]), np.array([2.0, 1.0])) == pytest.approx(30.0)
    assert searches.gain(np.array([2.0]), np.array([1.0])) == -100.0


def test_a_rare_gaussian_is_found_where_clusters_and_labelled_rows_miss_it(searches, monkeypatch):
    names = ["search (labels)", "search (rows)", "labelled rows", "seeded k-means"]
    by_labels, by_rows, labelled, clusters = errors_of(searches, monkeypatch, "gaussian", names)
    assert by_labels < 0.5
    assert by_rows < 0.5
    # Nearly half of the labels are wrong, and clusters merge the target with its neighbour.
    assert labelled > 1.5
    assert clusters > 2.0 * max(by_labels, by_rows)


def test_a_regression_is_found_better_than_in_its_labelled_rows(searches, monkeypatch):
    names = ["search (labels)", "search (rows)", "labelled rows"]
    by_labels, by_rows, labelled = errors_of(searches, monkeypatch, "regression", names)
    assert max(by_labels, by_rows) < 0.8 * labelled


def test_a_subspace_is_nearer_than_that_of_labelled_rows_or_of_a_cluster(searches, monkeypatch):
    names = ["search (rows)", "search (vector)", "labelled rows", "k-means and singular vectors"]
    by_rows, by_vector, labelled, cluster = errors_of(searches, monkeypatch, "subspace", names)
    assert by_rows < 0.8 * labelled
    # Section 4.3 of the paper: far nearer than by k-means.
    assert max(by_rows, by_vector) < 0.3 * cluster


def test_searches_by_a_vector_are_as_good_as_all_components_of_a_sphere(searches, monkeypatch):
    """Section 4.1 of the paper, with a tenth of its columns."""
    sizes = {"rows": 6_000, "features": 50, "components": 5}
    names = ["tpm", "whitening", "cancellation"]
    tpm, whitening, cancellation = errors_of(searches, monkeypatch, "sphere", names, **sizes)
    assert whitening < 1.05 * tpm
    assert cancellation < 1.05 * tpm
    # The error of the average of all rows of a component, if they were known.
    weights = searches.spheres(50, 5, 0.5, 0.0253, np.random.default_rng(0)).weights
    assert whitening < 1.1 * np.mean(0.5 * np.sqrt(50 / (6_000 * weights)))


def test_weights_of_a_sphere_rise_from_that_of_the_paper(searches):
    population = searches.spheres(12, 5, 0.4, 0.0253, np.random.default_rng(0))
    assert_allclose(np.linalg.norm(population.means, axis=1), 10.0)
    assert population.weights[0] == pytest.approx(0.0253)
    assert_allclose(np.diff(population.weights, 2), 0.0, atol=1e-12)
    assert_allclose(population.variances, 0.16)
    equal = searches.spheres(12, 5, 0.4, 0.2, np.random.default_rng(0))
    assert_allclose(equal.weights, 0.2)


def test_a_system_that_refuses_has_no_error(searches, monkeypatch):
    def systems(arguments, seed):
        def refuse():
            raise searches.NumericalError("no component")

        return {"EM": (lambda: 1.0, float), "search": (refuse, float)}

    monkeypatch.setitem(searches.TASKS, "gaussian", systems)
    found = searches.compare(Namespace(seeds=2), "gaussian")
    assert found["EM"][:2] == (1.0, 0.0)
    assert np.isnan(found["search"][:2]).all()


def test_the_table_has_all_systems(searches, capsys):
    searches.main(
        ["--rows", "3000", "--features", "8", "--components", "3", "--dimension", "2", "--seeds", "1"]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| task | system | error | gain % | CPU s | refused |"
    tasks = [line.split(" | ")[0].strip("| ") for line in lines[2:]]
    assert [tasks.count(task) for task in searches.PLANTED] == [8, 8, 4, 3]
    assert all(float(line.split(" | ")[2]) >= 0.0 for line in lines[2:])


def test_draws_that_a_system_refuses_are_counted_and_left_out(searches):
    own = [np.array([1.0]), np.array([np.nan]), np.array([3.0])]
    reference = [np.array([2.0]), np.array([2.0]), np.array([2.0])]
    assert searches.summary(own, reference, [1.0, 2.0, 3.0]) == (2.0, 0.0, 2.0, 1)
    never = searches.summary(own[1:2], reference[:1], [1.0])
    assert np.isnan(never.error)
    assert never.n_refused == 1


def test_every_row_has_one_of_its_responses(searches):
    responses = np.c_[np.arange(1000.0), -np.arange(1000.0)]
    y, components = searches.one_response(responses, 0.4, np.random.default_rng(0))
    assert y.tolist() == np.where(components == 0, responses[:, 0], responses[:, 1]).tolist()
    assert np.mean(components == 0) == pytest.approx(0.4, abs=0.05)
    assert searches.PLANTED == ["gaussian", "regression", "subspace", "sphere"]


def test_records_are_drawn_again_and_keep_their_regressions(searches, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.exponential(size=(500, 3)) - 1.0
    coefs = np.array([[1.0, 0.0, 0.5], [0.0, -1.0, 0.5]])
    monkeypatch.setattr(searches, "health_records", lambda: (X, X @ coefs.T))
    for gaussian in (False, True):
        options = Namespace(**SIZES, resampled=5000)
        systems = searches.of_records(options, 0, gaussian)
        found, error_of = systems["labelled rows"]
        assert error_of(found()) < 1e-12
        found, error_of = systems["EM"]
        assert error_of(found()) < 0.05


@pytest.mark.realdata
def test_records_of_health_are_those_of_the_package(searches):
    pytest.importorskip("causaldata", reason="needs pip install causaldata")
    X, responses = searches.health_records()
    assert (X.shape, responses.shape) == ((1521, 4), (1521, 2))
    coefs = np.linalg.lstsq(X, responses)[0]
    # The weight depends on the earlier one, and the blood pressure on the age.
    assert np.abs(coefs).argmax(axis=0).tolist() == [1, 2]
    # The norm that the page states.
    assert np.linalg.norm(coefs[:, 0]) == pytest.approx(0.853, abs=0.001)
