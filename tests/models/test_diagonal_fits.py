"""Fits of mixtures of axis-aligned Gaussians: passes, storage, the command line, and refusals."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from diagonals import SKETCH, TOGETHER, WHOLE, few_of_many_columns, names_of, parameters, population, sample
from helpers import WeightedRows, assigned, matched
from numpy.testing import assert_allclose
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import parametrize_with_checks

from distmom.cli.main import main
from distmom.corpus import RowCorpus, open_corpus
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import load_model
from distmom.models.diagonal.estimator import DiagonalMixture

ARRAYS = ("means_", "variances_", "weights_", "center_", "scales_")


def arrays_of(model):
    return {name: getattr(model, name).tobytes() for name in ARRAYS}


@pytest.mark.parametrize(("d", "names"), [(12, WHOLE), (90, SKETCH + TOGETHER)])
def test_the_plan_lists_the_passes_that_are_made_and_a_saved_model_is_the_same(tmp_path, d, names):
    X, _ = sample(*parameters(d, 3), 800, 0)
    corpus = RowCorpus(X, shard_rows=100)
    model = DiagonalMixture(3, n_em_iter=2)
    plan = model.plan(corpus, n_workers=1)
    assert [p.name for p in plan.passes] == [*names, "em", "em"]
    assert plan.seconds is not None
    model.fit_corpus(corpus).save(tmp_path / "m")
    assert names_of(model) == [*names, "em", "em"]
    loaded = load_model(tmp_path / "m")
    assert arrays_of(loaded) == arrays_of(model)
    assert loaded.diagnostics_ == model.diagnostics_
    assert (loaded.predict_proba(X) == model.predict_proba(X)).all()
    assert loaded.pictures() == model.pictures()
    # A loaded model is fitted again with its parameters.
    assert arrays_of(loaded.fit_corpus(corpus)) == arrays_of(model)


def test_many_rows_take_further_passes_only_where_a_partition_does_not_suffice(monkeypatch):
    corpus = RowCorpus(sample(*parameters(90, 3), 800, 0)[0], shard_rows=100)
    monkeypatch.setattr("distmom.models.diagonal.estimator.FEW_ROWS", 799)
    planned = DiagonalMixture(3, n_em_iter=2).plan(corpus).passes
    assert [p.name for p in planned if not p.possible] == [*SKETCH, "em", "em"]
    assert [(p.part, p.name) for p in planned if p.possible] == [("all columns", name) for name in TOGETHER]
    assert names_of(DiagonalMixture(3, n_em_iter=2).fit_corpus(corpus)) == [*SKETCH, "em", "em"]
    assert not any(p.possible for p in DiagonalMixture(3, n_em_iter=0).plan(corpus).passes)


@pytest.mark.parametrize("d", [12, 90])
def test_a_fit_resumes_after_the_last_pass(tmp_path, d):
    X = sample(*parameters(d, 3), 800, 0)[0]
    # Components that hardly overlap are a fixed point of EM after one pass, which is then the same as the next.
    X += 1.5 * np.random.default_rng(0).normal(size=X.shape)
    corpus = RowCorpus(X, shard_rows=100)
    first = DiagonalMixture(3, n_em_iter=2).fit_corpus(corpus, run=tmp_path / "run")
    again = DiagonalMixture(3, n_em_iter=2).fit_corpus(corpus, run=tmp_path / "run")
    assert arrays_of(again) == arrays_of(first)
    assert all(timing["resumed"] for timing in again.timings_)
    # More iterations make only the passes that are missing.
    more = DiagonalMixture(3, n_em_iter=3).fit_corpus(corpus, run=tmp_path / "run")
    assert [timing["resumed"] for timing in more.timings_] == [True] * len(first.timings_) + [False]
    assert arrays_of(more) == arrays_of(DiagonalMixture(3, n_em_iter=3).fit_corpus(corpus))


@pytest.mark.parametrize("d", [12, 90])
def test_a_file_gives_the_bits_of_memory(tmp_path, d):
    X, _ = sample(*parameters(d, 3), 1000, 0)
    np.save(tmp_path / "X.npy", X)
    ingest = ["ingest", str(tmp_path / "X.npy"), str(tmp_path / "c"), "--shard-rows", "150", "--workers", "0"]
    assert main(ingest) == 0
    stored = open_corpus(tmp_path / "c")
    assert len(stored.shards) == 7
    in_memory = DiagonalMixture(3).fit_corpus(RowCorpus(X, shard_rows=150))
    assert arrays_of(DiagonalMixture(3).fit_corpus(stored)) == arrays_of(in_memory)
    limited = DiagonalMixture(3).fit_corpus(stored, memory_limit=1 << 30)
    assert arrays_of(limited) == arrays_of(in_memory)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(("d", "start"), [(12, "rows"), (73, "rows"), (90, "thirds")])
def test_two_processes_give_the_same_bits(d, start, cluster):
    X, k = (few_of_many_columns(250, 1)[0], 8) if d == 73 else (sample(*parameters(d, 3), 3000, 0)[0], 3)
    corpus = RowCorpus(X, shard_rows=150)
    alone = DiagonalMixture(k).fit_corpus(corpus)
    both = DiagonalMixture(k).fit_corpus(corpus, client=cluster)
    assert alone.diagnostics_["start"] == start
    assert arrays_of(both) == arrays_of(alone)


@pytest.mark.slow
def test_a_memory_limit_cuts_the_basis_into_slabs():
    rng = np.random.default_rng(0)
    d, n = 200_000, 120
    h = rng.integers(0, 3, n)
    X = 0.5 * rng.normal(size=(3, d))[h] + rng.normal(size=(n, d))
    corpus = RowCorpus(X.astype(np.float32), shard_rows=8)
    model = DiagonalMixture(3, n_power_iter=1, n_em_iter=1)
    limit = 722 << 20
    planned = [(p.name, p.n_slabs) for p in model.plan(corpus, limit).passes]
    names = ["columns", "sketch", "power", "moments", "squares", "sketch", "power", "moments", "em"]
    assert [name for name, _ in planned] == names
    assert planned[1][1] > 1
    limited = DiagonalMixture(3, n_power_iter=1, n_em_iter=1).fit_corpus(corpus, memory_limit=limit)
    assert_allclose(limited.means_, model.fit_corpus(corpus).means_, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_components_of_rows_are_stored(weighted):
    X, _ = sample(*parameters(9, 3), 500, 0)
    model = DiagonalMixture(3).fit(X)
    # Units of three rows and more are cut by shards.
    lengths = np.r_[np.full(100, 3), 200]
    corpus = (
        WeightedRows(X, np.arange(1.0, 102.0), lengths, shard_rows=64)
        if weighted
        else RowCorpus(X, lengths, shard_rows=64)
    )
    stored = assigned(model, corpus)
    assert stored["components"].dtype == np.int32
    assert stored["probabilities"].dtype == np.float32
    assert (stored["components"] == model.predict(X)).all()
    assert_allclose(stored["probabilities"], model.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("d", [12, 90])
def test_rows_with_weights_count_as_often_as_they_say(d):
    X, _ = sample(*parameters(d, 3), 600, 0)
    counts = np.random.default_rng(0).integers(1, 4, 600)
    weighted = DiagonalMixture(3, n_em_iter=2).fit_corpus(WeightedRows(X, counts))
    repeated = DiagonalMixture(3, n_em_iter=2).fit(np.repeat(X, counts, axis=0))
    for name in ARRAYS:
        assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-7, atol=1e-8)


def test_pictures_and_summary_are_json_values_and_show_the_components():
    means, variances, weights = parameters(12, 3)
    means[:, 5] = [10.0, 0.0, 0.0]
    model = DiagonalMixture(3).fit(sample(means, variances, weights, 2000, 0)[0])
    summary = json.loads(json.dumps(model.summary()))
    assert summary["weights"] == pytest.approx(list(model.weights_), rel=1e-5)
    assert 0.0 < summary["explained"] < 1.0
    bars, centers, spreads, lines = json.loads(json.dumps(model.pictures(4)))
    assert bars["values"] == list(model.weights_)
    assert len(centers["columns"]) == 4
    assert "5" in centers["columns"]
    within = np.sqrt(model.weights_ @ model.variances_)
    expected = (model.means_ - model.weights_ @ model.means_) / within
    at = [int(name) for name in centers["columns"]]
    assert_allclose(centers["values"], expected[:, at])
    assert_allclose(spreads["values"], (np.sqrt(model.variances_) / within)[:, at])
    assert lines["ys"]["log-likelihood"] == model.diagnostics_["log_likelihoods"]
    assert len(DiagonalMixture(3, n_em_iter=0).fit_corpus(population(*parameters(9, 3))).pictures()) == 3


def test_what_cannot_be_fitted_is_refused_with_the_numbers():
    X, _ = sample(*parameters(12, 3, scale=3.0), 2000, 0)
    wide, _ = sample(*parameters(90, 3), 2000, 0)
    most = "n_components: expected at most 5, one more than a third of the 12 columns, got 6"
    with pytest.raises(UsageError, match=most):
        DiagonalMixture(6, n_em_iter=0).fit(X)
    with pytest.raises(UsageError, match="one more than a third of the 90 columns, got 32"):
        DiagonalMixture(32).fit(wide)
    with pytest.raises(UsageError, match="expected at most 2, the number of columns, got 3"):
        DiagonalMixture(3).fit(X[:, :2])
    with pytest.raises(UsageError, match="n_components: expected at most 2, the number of rows, got 3"):
        DiagonalMixture(3).fit(X[:2])
    with pytest.raises(UsageError, match="n_partitions: expected at least 1, got 0"):
        DiagonalMixture(3, n_partitions=0).fit(X)
    refusal = r"n_components=3: none of 20 random partitions of the columns .* for the best one, "
    together = "; and with all columns together, the covariance carries fewer than 3 components"
    with pytest.raises(NumericalError, match=refusal + ".*" + together):
        DiagonalMixture(3).fit(np.tile(X[:, :1], (1, 12)))
    with pytest.raises(
        NumericalError, match=refusal + ".*together, only 0 of the columns vary, fewer than n_components=3"
    ):
        DiagonalMixture(3).fit(np.ones((50, 12)))
    with pytest.raises(
        NumericalError, match="thirds of the columns can distinguish at most 5; and with all columns"
    ):
        DiagonalMixture(7).fit(np.tile(X[:, :2], (1, 6)))
    partition = "random partition of the columns, which random_state changes"
    with pytest.raises(NumericalError, match=f"rank 1, and 3 components need rank 2.* {partition}"):
        DiagonalMixture(3).fit(np.tile(wide[:, :1], (1, 90)))
    with pytest.raises(NumericalError, match=partition):
        DiagonalMixture(25, n_oversamples=0, n_em_iter=0).fit(wide)
    with pytest.raises(NumericalError, match=f"{partition}; and with all columns together, the covariance"):
        DiagonalMixture(8).fit(np.random.default_rng(0).normal(size=(100, 90)))
    for scale, what in ((1e200, "overflow"), (1e-200, "underflow")):
        scaled = X.copy()
        scaled[:, 4] *= scale
        with pytest.raises(
            NumericalError, match=f"squares of the values of column 4 {what}: scale its values"
        ):
            DiagonalMixture(3).fit(scaled)
    with pytest.raises(InputError, match="NaN"):
        DiagonalMixture(3).fit(np.where(X.max() == X, np.nan, X))
    with pytest.raises(UsageError, match="decomposition: expected one of"):
        DiagonalMixture(3, decomposition="none").fit(X)
    model = DiagonalMixture(3).fit(X)
    with pytest.raises(UsageError, match="X has 3 features, but DiagonalMixture is expecting 12"):
        model.predict(np.ones((2, 3)))
    for measure in (model.score, model.bic, model.aic):
        with pytest.raises(InputError, match=r"0 sample\(s\) .* while a minimum of 1 is required"):
            measure(X[:0])
    with pytest.raises(UsageError, match="n_samples: expected at least 0, got -1"):
        model.sample(-1)
    with pytest.raises(NumericalError, match="expected rows of positive weight, got none"):
        DiagonalMixture(1).fit_corpus(WeightedRows(X, np.zeros(len(X))))


def test_the_command_line_fits_rows_and_writes_components_and_a_report(tmp_path, capsys):
    import zarr

    X, h = sample(*parameters(9, 3, scale=3.0), 500, 0)
    np.save(tmp_path / "X.npy", X)
    corpus, place, out = (str(tmp_path / name) for name in ("c", "m", "out"))
    assert main(["ingest", str(tmp_path / "X.npy"), corpus, "--shard-rows", "200", "--workers", "0"]) == 0
    options = ["--model", "diagonal", "-k", "3", "--workers", "0"]
    assert main(["plan", corpus, *options[:-2]]) == 0
    assert "moments" in capsys.readouterr().out
    assert main(["fit", corpus, place, *options, "--n-em-iter", "3"]) == 0
    assert "coherence" in capsys.readouterr().out
    assert main(["transform", place, corpus, out, "--workers", "0"]) == 0
    found = zarr.open_group(f"{out}/components.zarr", mode="r")
    model = load_model(place)
    assert (found["components"][:] == model.predict(X)).all()
    assert_allclose(found["probabilities"][:], model.predict_proba(X), atol=1e-6)
    assert len(set(zip(found["components"][:], h, strict=True))) == 3
    assert main(["report", place, str(tmp_path / "r.html")]) == 0
    assert "Spread" in (tmp_path / "r.html").read_text()
    capsys.readouterr()


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[2] / "docs" / "diagonal.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    names = {}
    exec(code, names)
    order = matched(names["model"].means_, names["means"])[1]
    assert (order[names["model"].predict(names["X"])] == names["groups"]).mean() > 0.95


@parametrize_with_checks([DiagonalMixture(1), DiagonalMixture(1, n_em_iter=0)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_components_without_a_row_are_counted():
    X = load_digits().data
    fitted = DiagonalMixture(40, random_state=0).fit(X)
    n_empty = fitted.diagnostics_["n_empty"]
    # Forty components are too many for the images of ten digits: some lose all rows.
    assert 0 < n_empty < 10
    assert n_empty == np.count_nonzero(fitted.weights_ < 1.0 / len(X))
    assert (
        DiagonalMixture(3, random_state=0).fit(sample(*parameters(12, 3), 800, 0)[0]).diagnostics_["n_empty"]
        == 0
    )


def test_a_fit_whose_likelihood_still_rises_at_the_end_warns(caplog):
    # EM needs about 30 passes for the pixels of digits.
    X = load_digits().data / 16.0
    for n_em_iter in (10, 60):
        model = DiagonalMixture(10, n_em_iter=n_em_iter).fit(X)
    before, last = model.diagnostics_["log_likelihoods"][-2:]
    assert last - before < 0.01
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "was still rising after 10 EM passes" in record.getMessage()
    # A single pass has no earlier one to rise from.
    caplog.clear()
    for n_em_iter in (0, 1):
        DiagonalMixture(3, n_em_iter=n_em_iter).fit(sample(*parameters(12, 3), 800, 0)[0])
    assert not caplog.records
