"""Fits of excess correlation analysis: from files and clusters, stored, resumed, and refused."""

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import zarr
from helpers import matched, planted_corpus
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from distmom.corpus import ViewCorpus, ingest_rows
from distmom.engine import plan_pass
from distmom.engine.plan import LIMIT_SHARE
from distmom.errors import InputError, NumericalError, StoreError, UsageError
from distmom.evaluate.factor_report import render_factor_report
from distmom.models import ECA, load_model
from distmom.models.eca.cumulants import warn_of_noise
from distmom.moments.small import SmallMoments
from distmom.moments.views.moments import ViewSketchPass
from distmom.predict import transform_views
from distmom.simulate.views import poisson_sentences
from distmom.spectral.saved.artifact import MODEL
from distmom.spectral.steps.views import whiten_views


def arrays_of(model):
    return {
        name: getattr(model, name).tobytes()
        for name in ("components_", "unmixing_", "mean_", "skewness_", "kurtosis_")
    }


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """Rows of Poisson sentences in mixed order, and the files that hold them."""
    columns = 3.0 * np.random.default_rng(0).gamma(0.5, size=(15, 3))
    views = poisson_sentences(columns, [1.0, 0.5, 2.0], 4_000, 4, seed=1)
    place = tmp_path_factory.mktemp("views")
    order = np.random.default_rng(2).permutation(len(views.X))
    np.save(place / "sorted.npy", views.X)
    np.save(place / "sorted-groups.npy", views.groups)
    np.save(place / "mixed.npy", views.X[order])
    np.save(place / "mixed-groups.npy", views.groups[order])
    return views, place


@pytest.mark.slow
def test_a_file_gives_the_bits_of_memory(sample):
    views, place = sample
    model = ECA(3, orders="both")
    in_memory = model.fit_corpus(ViewCorpus(views.X, views.groups, shard_rows=1_500))
    expected = arrays_of(in_memory)
    of_files = ViewCorpus(place / "sorted.npy", place / "sorted-groups.npy", shard_rows=1_500)
    assert arrays_of(model.fit_corpus(of_files)) == expected
    assert arrays_of(model.fit(views.X, groups=views.groups)) != expected, "shards are added in another order"
    mixed = ViewCorpus(place / "mixed.npy", place / "mixed-groups.npy", shard_rows=1_500)
    again = arrays_of(model.fit_corpus(mixed))
    rows = ViewCorpus(np.load(place / "mixed.npy"), np.load(place / "mixed-groups.npy"), shard_rows=1_500)
    assert arrays_of(model.fit_corpus(rows)) == again


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("decompose_on", ["scheduler", "client"])
def test_a_cluster_gives_the_bits_of_one_process(sample, cluster, decompose_on):
    _, place = sample
    for name in ("sorted", "mixed"):
        corpus = ViewCorpus(place / f"{name}.npy", place / f"{name}-groups.npy", shard_rows=1_500)
        assert len(corpus.shards) > 8
        model = ECA(3, orders="both", decompose_on=decompose_on)
        expected = arrays_of(model.fit_corpus(corpus))
        assert arrays_of(model.fit_corpus(corpus, client=cluster)) == expected
    # Fewer shards than workers.
    corpus = ViewCorpus(place / "mixed.npy", place / "mixed-groups.npy")
    assert len(corpus.shards) == 1
    expected = arrays_of(model.fit_corpus(corpus))
    assert arrays_of(model.fit_corpus(corpus, client=cluster)) == expected


def test_sparse_rows_give_what_dense_rows_give(sample):
    views, _ = sample
    model = ECA(3, orders="both")
    dense = model.fit(views.X, groups=views.groups).components_
    sparse = model.fit(csr_array(views.X), groups=views.groups).components_
    assert_allclose(sparse, dense, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_a_memory_limit_changes_nothing(sample):
    """Where a worker has no room for all columns of the basis they are worked on in slabs."""
    views, _ = sample
    d, places = 200_000, np.sort(np.random.default_rng(4).permutation(200_000)[:15])
    wide = csr_array(views.X)
    wide = csr_array((wide.data, places[wide.indices], wide.indptr), shape=(len(views.X), d))
    corpus = ViewCorpus(wide, views.groups, shard_rows=4_000)
    sketch = ViewSketchPass(d, n_columns=13, n_probes=8)
    needed = plan_pass(corpus, sketch).task_bytes
    limit = int((needed - (16 << 20)) / LIMIT_SHARE)
    assert len(plan_pass(corpus, sketch, limit).columns) > 1
    free, limited = ECA(3).fit_corpus(corpus), ECA(3).fit_corpus(corpus, memory_limit=limit)
    assert_allclose(limited.components_, free.components_, atol=1e-9)
    narrow = ECA(3).fit(views.X, groups=views.groups)
    assert matched(free.components_[:, places], narrow.components_)[0] < 1e-6
    with pytest.raises(UsageError, match="a task needs"):
        ECA(3).fit_corpus(corpus, memory_limit=400 << 20)


def test_a_run_is_taken_up_again(sample, tmp_path):
    views, _ = sample
    corpus = ViewCorpus(views.X, views.groups)
    first = ECA(3, orders="both").fit_corpus(corpus, run=tmp_path / "run")
    again = ECA(3, orders="both").fit_corpus(corpus, run=tmp_path / "run")
    assert not any(t["resumed"] for t in first.timings_)
    assert all(t["resumed"] for t in again.timings_)
    assert [t["name"] for t in again.timings_] == ["mean", "sketch", "power", "power", "moments", "fourth"]
    assert arrays_of(again) == arrays_of(first)


def test_small_groups_are_dropped_from_all_orders(sample):
    """Groups of two views count neither for the mean nor for anything else, and are counted."""
    views, _ = sample
    few = np.random.default_rng(3).normal(size=(60, 15)) * 100
    X = np.concatenate([few[:20], views.X, few[20:]])
    groups = np.concatenate([np.arange(20) // 2 - 10, views.groups, 10_000 + np.arange(40) // 2])
    model = ECA(3).fit(X, groups=groups)
    assert (model.diagnostics_["n_groups"], model.diagnostics_["n_dropped_groups"]) == (4_000, 30)
    plain = ECA(3).fit(views.X, groups=views.groups)
    assert_allclose(model.mean_, plain.mean_, rtol=1e-12)
    assert_allclose(model.components_, plain.components_, rtol=1e-6, atol=1e-6)
    assert model.transform(X, groups).shape == (4_030, 3)
    three = np.delete(X, np.flatnonzero(np.diff(groups, prepend=-99) != 0), axis=0)
    of_three = np.delete(groups, np.flatnonzero(np.diff(groups, prepend=-99) != 0))
    with pytest.raises(InputError, match="documents of at least 4 views, got at most 3 in a document"):
        ECA(3, orders="both").fit(three, groups=of_three)


def test_a_fit_is_stored_and_read_again(sample, tmp_path):
    views, _ = sample
    model = ECA(3, orders="both").fit(views.X, groups=views.groups)
    model.save(tmp_path / "m")
    again = ECA.load(tmp_path / "m")
    assert arrays_of(again) == arrays_of(model)
    assert again.get_params() == model.get_params()
    assert again.diagnostics_ == json.loads(json.dumps(model.diagnostics_, allow_nan=False))
    assert np.array_equal(again.transform(views.X, views.groups), model.transform(views.X, views.groups))
    assert isinstance(load_model(tmp_path / "m"), ECA)
    with pytest.raises(UsageError, match="the model exists"):
        model.save(tmp_path / "m")
    record = MODEL.read(tmp_path / "m" / "model.json")
    record["parameters"]["nonsense"] = 1
    MODEL.write(tmp_path / "m" / "model.json", record)
    with pytest.raises(StoreError, match="the model description is incomplete"):
        ECA.load(tmp_path / "m")


def test_manners_of_an_estimator(sample):
    views, _ = sample
    model = clone(ECA(3, orders="both", random_state=4))
    assert model.get_params()["orders"] == "both"
    with pytest.raises(NotFittedError):
        model.transform(views.X, views.groups)
    with pytest.raises(NotFittedError):
        model.factor_origin()
    found = model.fit_transform(views.X, groups=views.groups)
    assert np.array_equal(found, model.transform(views.X, views.groups))
    assert_allclose(found.mean(axis=0), 0.0, atol=1e-10)
    with pytest.raises(UsageError, match="X has 14 features, but ECA is expecting 15 features as input"):
        model.transform(views.X[:, 1:], views.groups)
    assert model.n_features_in_ == 15


def test_another_prior_does_not_change_a_fitted_model(sample, tmp_path):
    views, _ = sample
    model = ECA(3, prior="dirichlet", alpha0=3.5).fit(views.X, groups=views.groups)
    found = model.transform(views.X, views.groups)
    model.set_params(prior="independent").save(tmp_path / "m")
    for each in (model, ECA.load(tmp_path / "m")):
        np.testing.assert_array_equal(each.transform(views.X, views.groups), found)
        assert "distribution of the factors: <b>dirichlet</b>" in render_factor_report(each)
    skewed = ECA(3).fit(views.X, groups=views.groups)
    report = render_factor_report(skewed)
    assert render_factor_report(skewed.set_params(orders="4")) == report


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"orders": "5"}, "orders: expected one of 3, 4, both, got '5'"),
        ({"prior": "gamma"}, "prior: expected one of independent, dirichlet"),
        ({"prior": "dirichlet", "alpha0": -1.0}, "alpha0: expected at least 0, or 'auto', got -1.0"),
        ({"prior": "dirichlet", "alpha0": np.inf}, "alpha0: expected a finite number, or 'auto', got inf"),
        (
            {"prior": "dirichlet", "alpha0": "auto", "n_components": 1},
            "n_components: expected at least 2 with alpha0='auto', got 1",
        ),
        ({"decomposition": "svd"}, "decomposition: expected one of joint, single"),
        ({"n_components": 0}, "n_components: expected at least 1"),
        ({"n_components": 16}, "n_components=16 is more than the 15 features"),
        ({"n_power_iter": -1}, "n_power_iter: expected at least 0"),
    ],
)
def test_wrong_parameters_are_refused(sample, options, message):
    views, _ = sample
    with pytest.raises(UsageError, match=message):
        ECA(**{"n_components": 3, **options}).fit(views.X, groups=views.groups)


def test_wrong_data_are_refused(sample):
    views, _ = sample
    with pytest.raises(
        UsageError, match=r"groups: expected one per row of X, given by name \(groups=\.\.\.\), got none"
    ):
        ECA(3).fit(views.X)
    mixed = np.array([None, *views.groups[1:]], dtype=object)
    with pytest.raises(InputError, match=r"groups: group of row 0: expected a number or a string, got None"):
        ECA(3).fit(views.X, groups=mixed)
    with pytest.raises(NumericalError, match="is zero, as where all rows are equal"):
        ECA(3).fit(np.ones((32, 4)), groups=np.arange(32) // 4)
    bad = views.X.copy()
    bad[70, 3] = np.nan
    with pytest.raises(InputError, match="value in row 70, column 3: expected a finite number, got nan"):
        ECA(3).fit(bad, groups=views.groups)
    with pytest.raises(InputError, match="number of rows: expected 16000 as in X, got 15999"):
        ECA(3).fit(views.X, groups=views.groups[1:])
    with pytest.raises(InputError, match="documents of at least 3 views, got at most 2"):
        ECA(3).fit(views.X, groups=np.arange(len(views.X)) // 2)
    with pytest.raises(UsageError, match="expected a layer along rows of kind dense or csr, got words"):
        ECA(3).fit_corpus(planted_corpus(50)[2])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            [5.0, 1.5, 0.2, -1.0],
            "2 of the second moment is 1.5, the next one 0.2 and the level of noise 1;",
        ),
        (
            [5.0, 1.5, 1.2, 0.0],
            "2 of the second moment is 1.5, the next one 1.2 and the level of noise",
        ),
        ([5.0, 1.5, 0.7, -0.7], ""),
    ],
)
def test_a_factor_near_the_noise_is_warned_of(values, message, caplog):
    moments = SmallMoments(np.zeros(4), np.diag(values), np.zeros((4, 4, 4)))
    with caplog.at_level(logging.WARNING):
        warn_of_noise(whiten_views((moments, ()), 2, np.inf, 0.0).whitening)
    assert message in caplog.text
    assert bool(message) == bool(caplog.text)


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "eca.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(example, names)
    truth = (names["O"] * np.sqrt([1.0, 0.5, 2.0])).T
    assert matched(names["model"].components_, truth)[0] < 0.1
    assert matched(ECA.load("model").components_, truth)[0] < 0.1


def test_views_of_a_corpus_on_disk(tmp_path, sample):
    views, _ = sample
    order = np.argsort(views.groups, kind="stable")
    X, lengths = views.X[order], np.bincount(views.groups)
    corpus = ingest_rows(X, tmp_path / "corpus", lengths=lengths[lengths > 0], shard_rows=5_000)
    model = ECA(3).fit_corpus(corpus)
    expected = ECA(3).fit(X, groups=views.groups[order])
    np.testing.assert_allclose(model.components_, expected.components_, rtol=1e-8, atol=1e-10)
    result = transform_views(model, corpus, tmp_path / "out")
    assert result["n_groups"] == corpus.n_documents
    factors = zarr.open_array(tmp_path / "out/factors.zarr")[...]
    np.testing.assert_allclose(factors, model.transform(X, views.groups[order]), atol=1e-9)
    long = ingest_rows(X, tmp_path / "long", lengths=[len(X)], shard_rows=1_000)
    with pytest.raises(UsageError, match="expected documents that fit into a shard, got one of 16000 views"):
        ECA(3).fit_corpus(long)


def test_columns_in_another_order_are_refused(tmp_path, sample):
    views, _ = sample
    X, n = views.X[:2_000], views.X.shape[1]
    names = [f"c{i}" for i in range(n)]
    corpus = ingest_rows(X, tmp_path / "corpus", lengths=[4] * 500, names=names)
    other = ingest_rows(X, tmp_path / "other", lengths=[4] * 500, names=names[::-1])
    model = ECA(1).fit_corpus(corpus)
    with pytest.raises(
        UsageError, match="ECA in the same order, got others; ingest the source with '--like MODEL'"
    ):
        transform_views(model, other, tmp_path / "out")
    unnamed = ECA(1).fit_corpus(ingest_rows(X, tmp_path / "unnamed", lengths=[4] * 500))
    with pytest.raises(UsageError, match=rf"numbers 0 to {n - 1}: ingest the source .* \('--vocab FILE'"):
        transform_views(unnamed, other, tmp_path / "out")
    assert not (tmp_path / "out").exists()
