"""Fits of independent components: units, refusals, plans, sources, reports, and the same bits."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from crafted import edit_record
from helpers import carried_out, matched
from mixings import mixing, sample
from numpy.testing import assert_allclose
from sklearn.utils.estimator_checks import parametrize_with_checks

from distmom.cli.main import main
from distmom.corpus import RowCorpus, open_corpus
from distmom.engine import open_engine
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import load_model
from distmom.models.ica.estimator import ICA


@pytest.mark.parametrize("scale", [1e-6, 255.0])
def test_units_and_origins_of_columns_do_not_matter(scale):
    X = sample(3_000, 0)[0]
    factors = scale * np.array([1.0, 1e-2, 1e2, 10.0])
    for noise in ("none", "gaussian"):
        plain, moved = ICA(4, noise=noise).fit(X), ICA(4, noise=noise).fit(X * factors + 100.0 * factors)
        # The sign depends on which column is the largest.
        found, true = moved.mixing_ / factors[:, None], plain.mixing_
        assert_allclose(found * np.sign(found[0] * true[0]), true, atol=1e-5)
        assert_allclose(moved.kurtosis_, plain.kurtosis_, atol=1e-5)


def test_units_that_differ_widely_do_not_matter_where_every_direction_is_used():
    X = sample(5_000, 0)[0]
    units = np.array([1.0, 1e7, 1e-40, 1e9])
    plain, moved = ICA(4).fit(X), ICA(4).fit(X * units)
    found, true = moved.mixing_ / units[:, None], plain.mixing_
    assert_allclose(found * np.sign(found[0] * true[0]), true, atol=1e-5)
    assert_allclose(moved.kurtosis_, plain.kurtosis_, atol=1e-5)
    with pytest.raises(NumericalError, match="span 3 of the directions"):
        ICA(4).fit(np.c_[X[:, :3], X[:, 0] + X[:, 1]] * units)


def test_units_do_not_matter_to_components_in_noise():
    X = sample(5_000, 0)[0]
    rng = np.random.default_rng(0)
    rows = X @ rng.normal(size=(4, 6)) + 0.2 * rng.normal(size=(5_000, 6)) @ rng.normal(size=(6, 6))
    units = np.array([1e-40, 1e-9, 1.0, 1e3, 1e9, 1e40])
    plain = ICA(4, noise="gaussian").fit(rows)
    # A column without variance has a unit, too.
    for moved in (rows * units, np.c_[rows * units, np.full(5_000, 7.0)]):
        model = ICA(4, noise="gaussian").fit(moved)
        found, true = model.mixing_[:6] / units[:, None], plain.mixing_
        assert_allclose(found * np.sign(found[0] * true[0]), true, atol=1e-5)
        assert_allclose(model.kurtosis_, plain.kurtosis_, atol=1e-5)
        assert_allclose(np.abs(model.transform(moved)), np.abs(plain.transform(rows)), atol=1e-4)


def test_sources_and_rows_are_turned_into_each_other():
    X, _ = sample(3_000, 0)
    model = ICA(4).fit(X)
    S = model.transform(X)
    assert_allclose(S, (X - X.mean(axis=0)) @ model.components_.T, atol=1e-9)
    assert_allclose(np.cov(S.T, bias=True), np.eye(4), atol=1e-8)
    assert_allclose((S**4).mean(axis=0) - 3.0, model.kurtosis_, rtol=0.02)
    assert_allclose(model.inverse_transform(S), X, atol=1e-9)
    assert list(model.get_feature_names_out()) == [f"ica{i}" for i in range(4)]
    with pytest.raises(UsageError, match="X: expected 4 sources, got 3"):
        model.inverse_transform(S[:, :3])


def test_gaussian_components_are_refused_or_left_out():
    X, A = sample(20_000, 0)
    rng = np.random.default_rng(1)
    more = np.column_stack([X, rng.normal(size=(20_000, 2))]) @ mixing(6, 6, 5).T
    refusal = r"2 of 6 components have an excess kurtosis between -0\.08\d+ and 0\.13\d*, .* 0\.00\d+, 0\.0"
    with pytest.raises(NumericalError, match=refusal):
        ICA(6).fit(more)
    model = ICA(6, gaussian="drop").fit(more)
    assert model.components_.shape == (4, 6)
    assert model.diagnostics_["n_gaussian"] == 2
    true = mixing(6, 6, 5)[:, :4] @ A
    assert matched(model.mixing_.T, true.T, signed=False)[0] < 0.1
    # A single one is what the others leave.
    one = np.column_stack([X, rng.normal(size=20_000)])
    assert len(ICA(5).fit(one).kurtosis_) == 5
    # With noise of unknown covariance it is part of the noise.
    with pytest.raises(NumericalError, match="1 of 5 components have an excess kurtosis between"):
        ICA(5, noise="gaussian").fit(one)
    for gaussian in ("refuse", "drop"):
        with pytest.raises(NumericalError, match="3 of 3 components have an excess kurtosis"):
            ICA(3, gaussian=gaussian).fit(rng.normal(size=(20_000, 3)))


@pytest.mark.parametrize("k", [2, 5, 12, 25])
def test_kurtoses_that_are_found_in_gaussian_rows_are_below_the_level(k):
    for seed in range(3):
        X = np.random.default_rng(seed).normal(size=(4_000, k))
        with pytest.raises(NumericalError, match=f"{k} of {k} components"):
            ICA(k).fit(X)


def test_what_cannot_be_fitted_is_refused_with_the_numbers():
    X = sample(2_000, 0)[0]
    with pytest.raises(UsageError, match="n_components: expected at most 4, the number of features, got 5"):
        ICA(5).fit(X)
    with pytest.raises(UsageError, match="expected at most 3, one less than the number of features, got 4"):
        ICA(4, noise="isotropic").fit(X)
    with pytest.raises(UsageError, match="n_components: expected at most 3, the number of rows, got 4"):
        ICA(4).fit(X[:3])
    with pytest.raises(UsageError, match="noise: expected none or isotropic with more than 2000 features"):
        ICA(2, noise="gaussian").fit(np.ones((3, 2001)))
    with pytest.raises(
        UsageError, match=r"decomposition: expected joint or pencil with slices .* got 'power'"
    ):
        ICA(15, decomposition="power", fourth_moment="slices").fit(np.ones((30, 20)))
    with pytest.raises(NumericalError, match=r"needs kurtoses of one sign, .* use decomposition='joint'"):
        ICA(4, noise="gaussian", decomposition="power").fit(X)
    twice = np.column_stack([X, X[:, 0]])
    for noise in ("none", "gaussian"):
        with pytest.raises(
            NumericalError, match=r"the rows span 4 of the directions that n_components=5 needs: .* or fewer"
        ):
            ICA(5, noise=noise).fit(twice)
        # Directions that the rows do not span need not be exact; only eigenvalues near the last one are listed.
        wide = np.column_stack(
            [50.0 + np.arange(1.0, 13.0) * (X @ np.eye(4, 12)), np.full((len(X), 3), 50.0)]
        )
        with pytest.raises(
            NumericalError, match=r"span 4 of the directions that n_components=15 needs: [^;]{,120};"
        ):
            ICA(15, noise=noise).fit(wide)
        with pytest.raises(
            NumericalError, match=r"the rows are all equal up to rounding: .* mean is 2, .* 0, with"
        ):
            ICA(2, noise=noise).fit(np.ones((50, 4)))
        for offset in (3e7, 1e9):
            with pytest.raises(
                NumericalError, match=r"mean of the rows has norm \de\+\d+, .* subtract the mean"
            ):
                ICA(4, noise=noise).fit(X + offset)
    with pytest.raises(
        NumericalError, match=r"total variance of \S+e-159, whose fourth moments are out of range"
    ):
        ICA(4).fit(1e-80 * X)
    overflow = r"covariance of the rows overflows, .*: scale the rows"
    with pytest.raises(NumericalError, match=overflow), np.errstate(over="ignore", invalid="ignore"):
        ICA(4).fit(1e160 * X)
    with pytest.raises(InputError, match="NaN"):
        ICA(4).fit(np.where(X > 5.0, np.nan, X))
    with pytest.raises(UsageError, match="X has 3 features, but ICA is expecting 4"):
        ICA(4).fit(X).transform(np.ones((2, 3)))
    with pytest.raises(UsageError, match="noise: expected one of none, isotropic, gaussian, got 'white'"):
        ICA(4, noise="white").fit(X)


@pytest.mark.parametrize(
    ("d", "options"),
    [
        (4, {}),
        (150, {"n_power_iter": 1, "n_oversamples": 5}),
        (6, {"noise": "gaussian"}),
        (6, {"noise": "isotropic"}),
    ],
)
def test_the_plan_lists_the_passes_that_are_made_and_a_saved_model_is_the_same(tmp_path, d, options):
    X = sample(4_000, 0, d, noise=0.1)[0]
    corpus = RowCorpus(X, shard_rows=500)
    model = ICA(4, **options)
    planned = [p.name for p in model.plan(corpus, n_workers=1).passes]
    model.fit_corpus(corpus, run=tmp_path / "run").save(tmp_path / "m")
    made = [timing["name"] for timing in model.timings_]
    assert made == planned[: len(made)]
    assert set(planned[len(made) :]) <= {"refine"}
    loaded = load_model(tmp_path / "m")
    for name in ("components_", "mixing_", "mean_", "kurtosis_"):
        assert (getattr(loaded, name) == getattr(model, name)).all()
    assert loaded.diagnostics_ == model.diagnostics_
    assert (loaded.transform(X) == model.transform(X)).all()
    assert loaded.pictures() == model.pictures()
    again = ICA(4, **options).fit_corpus(corpus, run=tmp_path / "run")
    assert (again.components_ == model.components_).all()
    assert all(timing["resumed"] for timing in again.timings_)


def test_sources_of_rows_are_stored():
    X, _ = sample(500, 0)
    model = ICA(4).fit(sample(4_000, 1)[0])
    # Units of three rows and more are cut by shards.
    corpus = RowCorpus(X, np.r_[np.full(100, 3), 200], shard_rows=64)
    with open_engine(corpus) as engine:
        found = carried_out(engine, model.assign)["sources"]
        stored = np.concatenate([found.read(i) for i in range(len(corpus.shards))])
    assert found.axis == "rows"
    assert stored.dtype == np.float64
    assert_allclose(stored, model.transform(X), atol=1e-10)


def test_pictures_and_summary_are_json_values_and_show_the_components():
    model = ICA(4).fit(sample(4_000, 0, 60, noise=0.01)[0])
    summary = json.loads(json.dumps(model.summary()))
    assert summary["n_components"] == 4
    assert summary["converged"] is True
    assert summary["kurtosis"] == pytest.approx(list(model.kurtosis_), rel=1e-5)
    bars, matrix, lines = json.loads(json.dumps(model.pictures()))
    assert bars["values"] == list(model.kurtosis_)
    assert len(matrix["columns"]) == 40
    assert_allclose(matrix["values"], model.mixing_[[int(c) for c in matrix["columns"]]].T)
    assert len(lines["ys"]["eigenvalues"]) == len(lines["x"])


def test_the_command_line_fits_rows_and_writes_sources_and_a_report(tmp_path, capsys, amari):
    import zarr

    X, A = sample(4_000, 0)
    np.save(tmp_path / "X.npy", X)
    corpus, place, out = (str(tmp_path / name) for name in ("c", "m", "out"))
    assert main(["ingest", str(tmp_path / "X.npy"), corpus, "--shard-rows", "1000", "--workers", "0"]) == 0
    options = ["--model", "ica", "-k", "4"]
    assert main(["plan", corpus, *options]) == 0
    assert "fourth" in capsys.readouterr().out
    assert main(["fit", corpus, place, *options, "--workers", "0", "--n-refine", "5"]) == 0
    assert "kurtosis" in capsys.readouterr().out
    assert main(["transform", place, corpus, out, "--workers", "0"]) == 0
    found = zarr.open_group(f"{out}/components.zarr", mode="r")
    model = load_model(place)
    assert_allclose(found["sources"][:], model.transform(X), atol=1e-10)
    assert amari(model.components_ @ A) < 0.05
    assert main(["report", place, str(tmp_path / "r.html")]) == 0
    assert "Excess kurtosis" in (tmp_path / "r.html").read_text()
    assert main(["info", place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["model"] == "ICA"
    assert open_corpus(corpus).n_rows == 4_000
    assert main(["fit", corpus, place, "--model", "ica", "-k", "5", "--workers", "0", "--overwrite"]) == 2
    assert "n_components: expected at most 4" in capsys.readouterr().err


def test_other_shards_and_a_repeated_fit_give_the_same_model():
    X = sample(4_000, 0)[0]
    models = [ICA(4).fit_corpus(RowCorpus(X, shard_rows=300)) for _ in range(2)]
    models.append(ICA(4).fit_corpus(RowCorpus(X, shard_rows=300), memory_limit=1 << 30))
    for other in models[1:]:
        for name in ("components_", "mixing_", "kurtosis_"):
            assert (getattr(other, name) == getattr(models[0], name)).all()
    other = ICA(4).fit_corpus(RowCorpus(X, shard_rows=1000))
    assert_allclose(other.components_, models[0].components_, atol=1e-9)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("d", "options"), [(5, {}), (150, {}), (20, {"fourth_moment": "slices"}), (6, {"noise": "gaussian"})]
)
def test_two_processes_give_the_same_bits(d, options, cluster):
    k = 15 if d == 20 else 4
    corpus = RowCorpus(sample(6_000, 0, d, k, noise=0.1)[0], shard_rows=300)
    alone = ICA(k, **options).fit_corpus(corpus)
    both = ICA(k, **options).fit_corpus(corpus, client=cluster)
    for name in ("components_", "mixing_", "kurtosis_", "mean_"):
        assert (getattr(alone, name) == getattr(both, name)).all()


@parametrize_with_checks([ICA(1), ICA(1, n_refine=0, decomposition="power")])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_the_example_of_the_documentation_runs(amari):
    text = (Path(__file__).parents[2] / "docs" / "ica.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    names = {}
    exec(code, names)
    assert names["found"].shape == (20_000, 4)
    assert amari(names["model"].components_ @ names["mixing"]) < 0.02
    assert amari(names["noisy"].components_ @ names["mixing"]) < 0.05


def test_a_model_with_the_earlier_name_of_a_parameter_is_read(tmp_path):
    ICA(2, n_refine=3).fit(np.random.default_rng(0).laplace(size=(2000, 3))).save(tmp_path / "m")
    edit_record(
        tmp_path / "m",
        lambda record: record["parameters"].update(n_refine_iter=record["parameters"].pop("n_refine")),
    )
    assert load_model(tmp_path / "m").n_refine == 3
