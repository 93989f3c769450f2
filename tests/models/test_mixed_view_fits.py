"""Fits of several components or factors in a row: shares, errors, stored models, refusals, the same bits."""

import json

import numpy as np
import pytest
from helpers import assigned, matched, peak_bytes
from mixed import KINDS, effects, parameters, sampled_factors, sampled_shares
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.sparse import csr_array

from distmom.cli.main import main
from distmom.corpus import RowCorpus
from distmom.errors import UsageError
from distmom.models import load_model
from distmom.models.multiview.estimator import MultiView
from distmom.models.multiview.reading import RowHiddenPass
from distmom.spectral.program.jackknife import standard_errors


def test_shares_are_the_least_squares_over_the_simplex():
    views, _ = sampled_shares(3_000, 1)
    model = MultiView(3, alpha0=1.2).fit(views)
    X = np.hstack(views)[:40]
    shares = model.predict_proba(X)
    assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)
    assert shares.min() >= 0.0
    for x, found in zip(X, shares, strict=True):

        def loss(h, x=x):
            return ((x - h @ model.components_) ** 2 / model.variances_).sum()

        best = minimize(
            loss, np.full(3, 1 / 3), bounds=[(0, 1)] * 3, options={"ftol": 1e-14, "maxiter": 500},
            constraints={"type": "eq", "fun": lambda h: h.sum() - 1},
        )  # fmt: skip
        assert loss(found) <= best.fun + 1e-6
    assert (model.predict(X) == shares.argmax(axis=1)).all()
    assert (model.transform(X) == shares).all()
    assert_allclose(model.predict_proba(csr_array(X)), shares, atol=1e-9)
    assert model.predict_proba(X[:0]).shape == (0, 3)


def test_factors_are_the_least_squares():
    views, h = sampled_factors(3_000, 1)
    model = MultiView(3, prior="independent").fit(views)
    X = np.hstack(views)
    roots = np.sqrt(model.variances_)
    expected = np.linalg.lstsq((model.components_ / roots).T, ((X - model.mean_) / roots).T, rcond=None)[0].T
    found = model.transform(views)
    assert_allclose(found, expected, atol=1e-9)
    assert_allclose(model.transform(csr_array(X)), expected, atol=1e-9)
    assert_allclose(found.mean(axis=0), 0.0, atol=1e-9)
    order = matched(model.components_, effects())[1]
    assert np.corrcoef(found.T, h[:, order].T)[[0, 1, 2], [3, 4, 5]].min() > 0.9


FITS = [
    ({"alpha0": 1.2}, sampled_shares, ("components_", "weights_", "alpha_", "variances_")),
    ({"alpha0": "auto"}, sampled_shares, ("components_", "weights_", "alpha_", "variances_")),
    ({"prior": "independent"}, sampled_factors, ("components_", "skewness_", "mean_", "variances_")),
]


@pytest.mark.parametrize(("options", "sample", "names"), FITS)
def test_fits_give_the_same_bits_again_and_with_a_memory_limit(options, sample, names):
    X = np.hstack(sample(4_000, 3)[0])
    corpus = RowCorpus(X, shard_rows=150)
    models = [MultiView(3, widths=KINDS, **options).fit_corpus(corpus) for _ in range(2)]
    models.append(MultiView(3, widths=KINDS, **options).fit_corpus(corpus, memory_limit=1 << 30))
    for other in models[1:]:
        for name in names:
            assert (getattr(other, name) == getattr(models[0], name)).all()
    one, other = (
        MultiView(3, widths=KINDS, n_oversamples=2, n_power_iter=0, **options).fit_corpus(
            RowCorpus(X, shard_rows=rows)
        )
        for rows in (150, 1000)
    )
    for name in names:
        assert_allclose(getattr(other, name), getattr(one, name), atol=1e-9)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(("options", "sample", "names"), FITS)
def test_two_processes_give_the_same_bits(cluster, options, sample, names):
    corpus = RowCorpus(np.hstack(sample(3_000, 0)[0]), shard_rows=150)
    alone = MultiView(3, widths=KINDS, **options).fit_corpus(corpus)
    both = MultiView(3, widths=KINDS, **options).fit_corpus(corpus, client=cluster)
    for name in names:
        assert (getattr(alone, name) == getattr(both, name)).all()


@pytest.mark.parametrize(("options", "sample", "names"), FITS)
def test_a_saved_model_is_the_same_and_its_rows_are_stored(tmp_path, options, sample, names):
    X = np.hstack(sample(900, 0)[0])
    corpus = RowCorpus(X, shard_rows=200)
    model = MultiView(3, widths=KINDS, n_power_iter=1, **options)
    passes = ["columns", "sketch", "power", "moments"]
    assert [p.name for p in model.plan(corpus, n_workers=1).passes] == passes
    model.fit_corpus(corpus).save(tmp_path / "m")
    assert [timing["name"] for timing in model.timings_] == passes
    loaded = load_model(tmp_path / "m")
    for name in names:
        assert (getattr(loaded, name) == getattr(model, name)).all()
    lacking = {"weights_", "alpha_", "skewness_", "mean_", "coefficients_"} - set(names)
    assert all(getattr(loaded, name) is None for name in lacking)
    assert (loaded.transform(X) == model.transform(X)).all()
    assert loaded.diagnostics_ == model.diagnostics_
    assert json.loads(json.dumps(loaded.pictures())) == model.pictures()
    stored = assigned(loaded, corpus)
    if "alpha0" in options:
        assert (stored["components"] == model.predict(X)).all()
        assert_allclose(stored.pop("shares"), model.transform(X), atol=1e-5)
        assert list(stored) == ["components"]
    else:
        assert_allclose(stored.pop("factors"), model.transform(X), rtol=1e-5, atol=1e-6)
        assert not stored


def test_fewer_components_than_rows_have_still_average_to_the_mean_of_all_rows():
    views, _ = sampled_shares(2_000, 0)
    mean = np.hstack(views).mean(axis=0)
    for k, alpha0 in ((1, 1.0), (1, 50.0), (2, 1.2), (2, 20.0)):
        model = MultiView(k, alpha0=alpha0).fit(views)
        assert_allclose(model.weights_ @ model.components_, mean, atol=0.1 if k > 1 else 1e-9)
    assert (MultiView(1, alpha0=1.0).fit(views).predict_proba(views) == 1.0).all()


@pytest.mark.parametrize(("options", "sample", "names"), FITS)
def test_standard_errors_are_as_large_as_the_errors(options, sample, names):
    corpus = RowCorpus(np.hstack(sample(4_000, 0)[0]), shard_rows=500)
    model = MultiView(3, widths=KINDS, **options).fit_corpus(corpus)
    found = standard_errors(model, corpus)
    assert set(found) == set(names) - {"variances_", "mean_"}
    true = parameters()[0] if "alpha0" in options else effects()
    errors = np.abs(model.components_ - true[matched(model.components_, true)[1]])
    assert 0.4 < errors.mean() / (found["components_"].mean() * np.sqrt(2.0 / np.pi)) < 2.0


def test_pictures_and_summary_name_what_a_row_has():
    shares = MultiView(3, alpha0=1.2).fit(sampled_shares(2_000, 0)[0])
    weights, _, view, *_ = shares.pictures(4)
    assert weights["caption"] == "Average share of every component."
    assert weights["values"] == list(shares.weights_)
    assert shares.summary()["alpha"] == pytest.approx(list(shares.alpha_), rel=1e-5)
    factors = MultiView(3, prior="independent").fit(sampled_factors(2_000, 0)[0])
    skewness, parts, view, *_ = factors.pictures(4)
    assert skewness["values"] == list(factors.skewness_)
    assert skewness["names"] == view["rows"] == ["factor 0", "factor 1", "factor 2"]
    assert parts["values"] == factors.diagnostics_["explained"]
    column = int(view["columns"][0].removeprefix("1."))
    expected = factors.components_[:, column] / np.sqrt(factors.variances_[column])
    assert_allclose(np.array(view["values"])[:, 0], expected)
    assert factors.summary()["skewness"] == pytest.approx(list(factors.skewness_), rel=1e-5)
    assert "weights" not in factors.summary()


def test_memory_of_reading_rows_stays_within_the_plan():
    n, d, k = 12_000, 30, 8
    rng = np.random.default_rng(0)
    block = RowCorpus(rng.normal(size=(n, d))).read_shard(0)
    loadings = rng.normal(size=(d, k))
    for gram in (loadings.T @ loadings, None):
        pass_ = RowHiddenPass(d, coefficients=loadings, offsets=np.zeros(k), n_components=k, gram=gram)
        sums = pass_.zero()
        rows = pass_.add(sums, block, {})
        assert sum(values.nbytes for values in rows.values()) == n * pass_.row_bytes
        most = pass_.working_bytes(n) + pass_.mapped_bytes + (1 << 16)
        assert peak_bytes(lambda pass_=pass_, sums=sums: pass_.add(sums, block, {}), most) < most


def test_what_cannot_be_fitted_or_used_is_refused_with_one_sentence():
    views, _ = sampled_shares(300, 0)
    with pytest.raises(
        UsageError, match=r"n_em_iter: expected 0 with alpha0=1\.2, got 5: EM assumes one component"
    ):
        MultiView(3, alpha0=1.2, n_em_iter=5).fit(views)
    with pytest.raises(UsageError, match="n_em_iter: expected 0 with prior='independent', got 1"):
        MultiView(3, prior="independent", n_em_iter=1).fit(views)
    with pytest.raises(
        UsageError, match=r"lift: expected 1 with alpha0=0\.5, got 2: products of columns are not"
    ):
        MultiView(3, alpha0=0.5, lift=2).fit(views)
    with pytest.raises(UsageError, match="n_components: expected at least 2 with alpha0=auto, got 1"):
        MultiView(1, alpha0="auto").fit(views)
    with pytest.raises(UsageError, match="n_em_iter: expected 0 with alpha0=auto, got 5"):
        MultiView(3, alpha0="auto", n_em_iter=5).fit(views)
    with pytest.raises(UsageError, match="alpha0: expected at least 0, or 'auto', got -1"):
        MultiView(3, alpha0=-1.0).fit(views)
    with pytest.raises(UsageError, match="prior: expected one of independent, dirichlet, got 'gamma'"):
        MultiView(3, prior="gamma").fit(views)
    with pytest.raises(
        UsageError, match="at most 6 independent factors, the number of columns of the narrowest"
    ):
        MultiView(7, prior="independent").fit(views)
    model = MultiView(3, alpha0=1.2).fit(views)
    with pytest.raises(UsageError, match=r"likelihood with one component per row \(alpha0=0\) only"):
        model.score(views)
    factors = MultiView(3, prior="independent").fit(sampled_factors(2_000, 0)[0])
    with pytest.raises(UsageError, match="independent factors have no probabilities; use transform"):
        factors.predict(views)
    with pytest.raises(UsageError, match="likelihood with one component per row"):
        factors.score_samples(views)


def test_the_command_line_fits_shares_and_writes_them(tmp_path, capsys):
    import zarr

    X = np.hstack(sampled_shares(2_000, 0)[0])
    np.save(tmp_path / "X.npy", X)
    corpus, place, out = (str(tmp_path / name) for name in ("c", "m", "out"))
    assert main(["ingest", str(tmp_path / "X.npy"), corpus, "--shard-rows", "600", "--workers", "0"]) == 0
    options = ["--model", "multiview", "-k", "3", "--widths", "8,6,7", "--alpha0", "1.2"]
    assert main(["plan", corpus, *options]) == 0
    assert "correction" not in capsys.readouterr().out
    assert main(["fit", corpus, place, *options, "--workers", "0"]) == 0
    assert "alpha" in capsys.readouterr().out
    assert main(["transform", place, corpus, out, "--workers", "0"]) == 0
    found, model = zarr.open_group(f"{out}/components.zarr", mode="r"), load_model(place)
    assert model.alpha_.sum() == pytest.approx(1.2)
    assert_allclose(found["shares"][:], model.transform(X), atol=1e-5)
    assert main(["report", place, str(tmp_path / "r.html")]) == 0
    assert "Average share of every component" in (tmp_path / "r.html").read_text()
    assert main(["fit", corpus, place, *options[:-1], "auto", "--workers", "0", "--overwrite"]) == 0
    by_sum = MultiView(3, widths=KINDS, alpha0="auto").fit(X)
    assert_allclose(load_model(place).alpha_, by_sum.alpha_, rtol=1e-6)
    assert main(["fit", corpus, place, *options, "--n-em-iter", "3", "--workers", "0", "--overwrite"]) == 2
    assert "n_em_iter: expected 0 with alpha0=1.2" in capsys.readouterr().err
