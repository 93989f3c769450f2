"""Mixtures of spherical Gaussians: exact populations, samples, posteriors by brute force, and refusals."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers import assigned, exact_rows, gaussian_population, matched
from numpy.testing import assert_allclose
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.utils.estimator_checks import parametrize_with_checks

from distmom.cli.main import main
from distmom.corpus import RowCorpus, open_corpus
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import load_model
from distmom.models.gaussian.estimator import SphericalMixture
from distmom.simulate.mixtures import GaussianPopulation


def of_moments(n_components, **options):
    """A mixture that is fitted by the moments alone."""
    return SphericalMixture(n_components, n_em_iter=0, **options)


def assert_recovered(model, true, tolerance=1e-10):
    error, order = matched(model.means_, true.means)
    assert error < tolerance
    assert_allclose(model.weights_, true.weights[order], rtol=tolerance)
    assert_allclose(model.variances_, true.variances[order], rtol=tolerance)


@pytest.mark.parametrize(
    ("d", "k", "options", "names"),
    [
        (6, 3, {}, ["covariance", "moments"]),
        (6, 3, {"decomposition": "power"}, ["covariance", "moments"]),
        (5, 5, {}, ["covariance", "moments"]),
        (4, 2, {}, ["covariance", "moments"]),
        (3, 1, {}, ["covariance", "moments"]),
        (1, 1, {}, ["covariance", "moments"]),
        (90, 4, {"n_oversamples": 6}, ["sketch", "power", "power", "moments"]),
        (40, 2, {"n_oversamples": 0, "n_power_iter": 3}, ["sketch", "power", "power", "power", "moments"]),
    ],
)
def test_an_exact_population_gives_back_the_parameters(d, k, options, names):
    true = gaussian_population(d, k)
    model = of_moments(k, **options).fit_corpus(exact_rows(true, shard_rows=50))
    assert [timing["name"] for timing in model.timings_] == names
    assert_recovered(model, true)
    if k > 1:
        assert model.diagnostics_["residual"] < 1e-10
        assert model.diagnostics_["sum_weights"] == pytest.approx(1.0, abs=1e-10)
        assert model.diagnostics_["n_robust"] == k


@pytest.mark.parametrize(
    ("d", "k", "options", "names"),
    [
        (6, 3, {}, ["covariance", "moments"]),
        (9, 4, {"n_rotations": 3}, ["covariance", "moments"]),
        (3, 1, {}, ["covariance", "moments"]),
        (150, 3, {"n_oversamples": 5, "n_power_iter": 3}, ["sketch", "power", "power", "power", "moments"]),
    ],
)
def test_an_exact_population_gives_back_the_parameters_by_rotations(d, k, options, names):
    true = gaussian_population(d, k)
    model = of_moments(k, route="rotation", **options).fit_corpus(exact_rows(true, shard_rows=50))
    assert [timing["name"] for timing in model.timings_] == names
    assert_recovered(model, true)
    if k > 1:
        assert model.diagnostics_["n_rotations"] == options.get("n_rotations", 20)
        assert model.diagnostics_["spread"] < 1e-10
        assert model.diagnostics_["asymmetry"] < 1e-10


@pytest.mark.slow
def test_the_average_of_rotations_is_better_than_one_and_nearly_as_good_as_an_estimate_of_the_noise():
    true = gaussian_population(9, 3, scale=1.0)
    errors = {}
    for seed in range(12):
        X = true.sample(5000, seed).X
        for name, options in {
            "noise": {}, "one": {"route": "rotation", "n_rotations": 1}, "many": {"route": "rotation"},
        }.items():  # fmt: skip
            found = of_moments(3, random_state=seed, **options).fit(X).means_
            errors.setdefault(name, []).append(matched(found, true.means)[0])
    noise, one, many = (np.mean(errors[name]) for name in ("noise", "one", "many"))
    assert many < 0.2 * one
    # 1.3 times on average over 40 samples
    assert many < 1.5 * noise


def test_rotations_average_the_variances_where_they_are_common():
    differing = gaussian_population(9, 3)
    true = GaussianPopulation(differing.means, differing.weights, 1.3)
    model = of_moments(3, route="rotation", variances="common").fit_corpus(exact_rows(true))
    assert_recovered(model, true)


def test_a_common_variance_is_recovered_and_differing_ones_are_averaged():
    differing = gaussian_population(6, 3)
    true = GaussianPopulation(differing.means, differing.weights, 1.3)
    model = of_moments(3, variances="common").fit_corpus(exact_rows(true))
    assert_recovered(model, true)
    averaged = of_moments(3, variances="common").fit_corpus(exact_rows(differing))
    assert_allclose(averaged.variances_, differing.weights @ differing.variances, rtol=1e-10)
    # The third moment lacks the correction for differing variances.
    assert matched(averaged.means_, true.means)[0] > 0.01


def test_the_origin_of_the_rows_does_not_matter():
    true = gaussian_population(6, 3)
    # Linearly dependent means: their average is zero.
    centred, weights = true.means - true.weights @ true.means, true.weights

    def moved(distance):
        return GaussianPopulation(centred + distance, weights, true.variances)

    model = of_moments(3).fit_corpus(exact_rows(moved(0.0)))
    assert_recovered(model, moved(0.0))
    far = of_moments(3).fit_corpus(exact_rows(moved(1e4)))
    error, order = matched(far.means_ - 1e4, centred)
    assert error < 1e-7
    assert_allclose(far.weights_, weights[order], rtol=1e-7)
    # Farther away, the covariance loses its digits.
    farther = of_moments(3).fit_corpus(exact_rows(moved(1e6)))
    assert matched(farther.means_ - 1e6, centred)[0] < 0.1
    refusal = r"mean of the rows has norm 2\.45e\+08, and .* covariance by about 13\.3: subtract the mean"
    for k in (3, "auto"):
        with pytest.raises(NumericalError, match=refusal):
            of_moments(k).fit_corpus(exact_rows(moved(1e8)))


@pytest.mark.parametrize("route", ["noise", "rotation"])
@pytest.mark.parametrize("scale", [1e-40, 1e-6, 255.0, 1e30])
def test_the_scale_of_the_rows_does_not_matter(scale, route):
    X = gaussian_population(6, 3).sample(2000, 0).X
    plain, scaled = (SphericalMixture(3, route=route, n_em_iter=1).fit(rows) for rows in (X, scale * X))
    assert_allclose(scaled.means_ / scale, plain.means_, rtol=1e-9)
    assert_allclose(scaled.variances_ / scale**2, plain.variances_, rtol=1e-9)
    assert_allclose(scaled.predict_proba(scale * X), plain.predict_proba(X), atol=1e-9)


@pytest.mark.parametrize("route", ["noise", "rotation"])
def test_errors_fall_with_the_root_of_the_number_of_rows(route):
    true = gaussian_population(20, 3, scale=1.0)
    errors = []
    for n in (2_000, 32_000):
        models = [of_moments(3, route=route).fit(true.sample(n, seed).X) for seed in range(8)]
        found = [model.means_ for model in models]
        errors.append(
            np.mean([np.linalg.norm(m - true.means[matched(m, true.means)[1]], axis=1).mean() for m in found])
        )
    # A sixteenth of the variance is a quarter of the error.
    assert 3.2 < errors[0] / errors[1] < 5.0


def brute_force(X, means, weights, variances):
    """Return the logarithms of the joint probabilities of rows and components."""
    d = means.shape[1]
    densities = [
        np.log(w) + multivariate_normal(m, v * np.eye(d)).logpdf(X)
        for m, w, v in zip(means, weights, variances, strict=True)
    ]
    return np.stack(densities, axis=1)


def test_rows_are_read_by_the_rule_of_bayes():
    true = gaussian_population(5, 3, scale=1.0)
    X = true.sample(3000, 0).X
    model = of_moments(3).fit(X)
    logs = brute_force(X, model.means_, model.weights_, model.variances_)
    density = logsumexp(logs, axis=1)
    assert_allclose(model.score_samples(X), density, atol=1e-9)
    assert_allclose(model.predict_proba(X), np.exp(logs - density[:, None]), atol=1e-9)
    assert (model.predict(X) == logs.argmax(axis=1)).all()
    assert model.score(X) == pytest.approx(density.mean())
    # 15 coordinates of means, 3 variances, 2 free weights.
    assert model.bic(X) == pytest.approx(-2.0 * density.sum() + 20 * np.log(3000))
    assert model.aic(X) == pytest.approx(-2.0 * density.sum() + 40)
    # A row that is far from all means has probabilities too, even if its squared norm overflows.
    assert_allclose(model.predict_proba(np.full((1, 5), 1e6)).sum(), 1.0)
    with np.errstate(over="ignore"):
        assert_allclose(model.predict_proba(np.full((1, 5), 1e200)), 1.0 / 3.0)
        assert np.isneginf(model.score(np.full((1, 5), 1e200)))


@pytest.mark.parametrize("variances", ["differing", "common"])
def test_an_em_pass_is_an_iteration_by_brute_force(variances):
    X = gaussian_population(5, 3, scale=1.0).sample(2000, 0).X
    before = of_moments(3, variances=variances).fit(X)
    after = SphericalMixture(3, variances=variances, n_em_iter=1).fit_corpus(RowCorpus(X, shard_rows=300))
    logs = brute_force(X, before.means_, before.weights_, before.variances_)
    p = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    means = p.T @ X / p.sum(axis=0)[:, None]
    spread = np.stack([p[:, i] @ ((X - means[i]) ** 2).sum(axis=1) for i in range(3)]) / 5
    expected = np.full(3, spread.sum() / 2000) if variances == "common" else spread / p.sum(axis=0)
    order = np.argsort(-p.sum(axis=0))
    assert_allclose(after.means_, means[order], atol=1e-9)
    assert_allclose(after.weights_, p.mean(axis=0)[order], atol=1e-9)
    assert_allclose(after.variances_, expected[order], atol=1e-9)
    assert after.diagnostics_["log_likelihoods"] == [pytest.approx(before.score(X))]


def test_em_passes_raise_the_likelihood():
    X = gaussian_population(30, 4, scale=0.6).sample(3000, 1).X
    likelihoods = SphericalMixture(4, n_em_iter=6).fit(X).diagnostics_["log_likelihoods"]
    assert all(b > a for a, b in pairwise(likelihoods))


@pytest.mark.parametrize("d", [5, 9, 300])
def test_em_passes_keep_the_least_variance_of_rows_without_noise(d):
    X = 3.0 * np.random.default_rng(0).normal(size=(5, d)) + 10.0
    before = of_moments(5).fit(X)
    model = SphericalMixture(5, n_em_iter=3).fit(X)
    # A billionth of the variance per column.
    assert_allclose(before.variances_, 1e-9 * X.var(axis=0).mean(), rtol=1e-3)
    assert_allclose(model.variances_, before.variances_, rtol=1e-9)
    assert_allclose(model.diagnostics_["log_likelihoods"], before.score(X), rtol=1e-6)


def test_axes_have_the_same_signs_for_any_number_of_shards():
    X = gaussian_population(12, 3, scale=2.0).sample(1500, 5).X
    first, *others = (
        of_moments(3).fit_corpus(RowCorpus(X, shard_rows=n)) for n in (1500, 100, 130, 333, 700)
    )
    assert (np.take_along_axis(first.axes_, np.abs(first.axes_).argmax(axis=1)[:, None], 1) > 0.0).all()
    for other in others:
        assert_allclose(other.axes_, first.axes_, atol=1e-9)
        assert_allclose(other.kept_, first.kept_, atol=1e-9)


@pytest.mark.parametrize("d", [8, 300])
def test_random_halves_agree_on_the_number_of_components(d):
    true = gaussian_population(d, 4, scale=6.0 / np.sqrt(d))
    model = SphericalMixture("auto").fit(true.sample(3000, 0).X)
    assert len(model.weights_) == model.diagnostics_["n_components"] == 4
    assert min(model.diagnostics_["replicated_shares"][:3]) > 0.8
    noise = np.random.default_rng(0).normal(size=(2000, d))
    assert len(SphericalMixture("auto", n_em_iter=1).fit(noise).weights_) == 1


def test_noise_in_few_columns_is_not_counted_as_components():
    found = []
    for seed in range(20):
        true = gaussian_population(5, 3, seed, scale=4.0)
        X = GaussianPopulation(true.means, true.weights, 1.0).sample(600, seed).X
        found.append(len(SphericalMixture("auto").fit(X).weights_))
    assert found == [3] * 20


@pytest.mark.parametrize("k", [3, "auto"])
@pytest.mark.parametrize("d", [12, 200])
def test_the_plan_lists_the_passes_that_are_made_and_a_saved_model_is_the_same(tmp_path, k, d):
    X = gaussian_population(d, 3).sample(600, 0).X
    corpus = RowCorpus(X, shard_rows=100)
    model = SphericalMixture(k, n_em_iter=2, n_power_iter=1, n_oversamples=5)
    planned = [p.name for p in model.plan(corpus).passes]
    model.fit_corpus(corpus).save(tmp_path / "m")
    assert [timing["name"] for timing in model.timings_] == planned
    assert planned[-3:] == ["moments", "em", "em"]
    loaded = load_model(tmp_path / "m")
    for name in ("means_", "weights_", "variances_", "kept_", "kept_components_"):
        assert (getattr(loaded, name) == getattr(model, name)).all()
    assert (loaded.predict_proba(X) == model.predict_proba(X)).all()
    assert loaded.pictures() == model.pictures()


def test_components_of_rows_are_stored(tmp_path):
    X = gaussian_population(6, 3).sample(500, 0).X
    model = of_moments(3).fit(X)
    # Units of three rows and more are cut by shards.
    corpus = RowCorpus(X, np.r_[np.full(100, 3), 200], shard_rows=64)
    stored = assigned(model, corpus)
    assert stored["components"].dtype == np.int32
    assert stored["probabilities"].dtype == np.float32
    assert (stored["components"] == model.predict(X)).all()
    assert_allclose(stored["probabilities"], model.predict_proba(X), atol=1e-6)


def test_drawn_rows_are_of_the_mixture():
    true = gaussian_population(6, 3)
    model = of_moments(3).fit_corpus(exact_rows(true))
    X, components = model.sample(20_000, random_state=1)
    for i in range(3):
        own = X[components == i]
        assert_allclose(own.mean(axis=0), model.means_[i], atol=0.1)
        assert own.var(axis=0).mean() == pytest.approx(model.variances_[i], rel=0.05)
    assert_allclose(np.bincount(components) / 20_000, model.weights_, atol=0.02)
    for seed in (-1, "a", 1.5):
        with pytest.raises(UsageError, match="random_state: expected a whole number from 0, got"):
            model.sample(2, random_state=seed)


def test_coordinates_are_in_the_span_of_the_means():
    true = gaussian_population(6, 3)
    model = of_moments(3).fit_corpus(exact_rows(true))
    Z = model.transform(model.means_)
    assert Z.shape == (3, 3)
    # The span contains the means, so that distances between them are kept.
    assert_allclose(Z @ Z.T, model.means_ @ model.means_.T, atol=1e-9)
    outside = np.linalg.svd(model.means_)[2][-1:]
    assert_allclose(model.transform(outside), 0.0, atol=1e-12)
    centred = GaussianPopulation(true.means - true.weights @ true.means, true.weights, true.variances)
    dependent = of_moments(3).fit_corpus(exact_rows(centred))
    assert dependent.transform(model.means_).shape == (3, 2)


def test_pictures_and_summary_are_json_values_and_show_the_components():
    X = gaussian_population(6, 3, scale=4.0).sample(2000, 0).X
    model = of_moments(3).fit(X)
    assert json.loads(json.dumps(model.summary()))["n_components"] == 3
    scatter, bars, lines = json.loads(json.dumps(model.pictures()))
    points = np.c_[scatter["x"], scatter["y"]]
    group, labels = np.array(scatter["group"]), np.array(scatter["labels"])
    assert 400 < (labels == "").sum() <= 500
    assert list(labels[-3:]) == ["0", "1", "2"]
    centers = points[-3:]
    assert_allclose(centers, (model.means_ - X.mean(axis=0)) @ model.axes_.T, atol=1e-9)
    for i in range(3):
        own = points[:-3][group[:-3] == i]
        assert_allclose(own.mean(axis=0), centers[i], atol=0.6)
    assert bars["values"] == pytest.approx(list(model.weights_))
    assert lines["ys"]["eigenvalues"][0] > 5 * lines["ys"]["noise"][0]


def test_what_cannot_be_fitted_is_refused_with_the_numbers():
    means = np.eye(3, 8) * 5.0
    X = GaussianPopulation(means, np.full(3, 1 / 3), 1.0).sample(2000, 0).X
    with pytest.raises(UsageError, match="n_components: expected at most 8, the number of features, got 9"):
        SphericalMixture(9).fit(X)
    with pytest.raises(UsageError, match="n_components: expected at most 2, the number of rows, got 3"):
        SphericalMixture(3).fit(X[:2])
    refusal = (
        r"fewer than 5 components: 4 of its eigenvalues must be above 1\.\d+, the noise of variance 0\.9\d+ .*"
        r"the largest are \d\.\d+, \d\.\d+, 1\.\d+"
    )
    with pytest.raises(NumericalError, match=refusal):
        SphericalMixture(5).fit(X)
    with pytest.raises(NumericalError, match="fewer than 2 components"):
        SphericalMixture(2).fit(np.ones((50, 4)))
    with pytest.raises(
        NumericalError, match=r"total variance of \S+e-299, whose third moments are out of range: scale"
    ):
        SphericalMixture(3).fit(1e-150 * X)
    overflow = r"covariance of the rows overflows, .* 1\.\d+e\+160: scale the rows"
    with pytest.raises(NumericalError, match=overflow), np.errstate(over="ignore", invalid="ignore"):
        SphericalMixture(3).fit(1e160 * X)
    with pytest.raises(NumericalError, match=r"must be above 4e\+09, the noise .* and rounding, but 1 are"):
        SphericalMixture(3).fit(np.vstack([X, np.full((1, 8), 1e12)]))
    with pytest.raises(InputError, match="NaN"):
        SphericalMixture(3).fit(np.where(X > 5.0, np.nan, X))
    with pytest.raises(UsageError, match="X has 3 features, but SphericalMixture is expecting 8"):
        SphericalMixture(3).fit(X).predict(np.ones((2, 3)))
    model = SphericalMixture(3).fit(X)
    for measure in (model.score, model.bic, model.aic):
        with pytest.raises(InputError, match=r"0 sample\(s\) .* while a minimum of 1 is required"):
            measure(X[:0])
    with pytest.raises(UsageError, match="n_samples: expected at least 0, got -1"):
        model.sample(-1)
    with pytest.raises(UsageError, match="variances: expected one of differing, common, got 'full'"):
        SphericalMixture(3, variances="full").fit(X)


def test_rows_without_noise_and_constant_columns_are_fitted():
    means = np.random.default_rng(0).normal(size=(3, 7))
    rows = np.repeat(means, [50, 30, 20], axis=0)
    model = SphericalMixture(3, n_em_iter=1).fit(rows)
    assert_allclose(model.means_, means, atol=1e-8)
    assert_allclose(model.weights_, [0.5, 0.3, 0.2], atol=1e-9)
    assert (model.predict(rows) == np.repeat([0, 1, 2], [50, 30, 20])).all()
    assert model.diagnostics_["n_floored_variances"] == 3
    X = np.hstack([gaussian_population(6, 3).sample(2000, 0).X, np.full((2000, 2), 7.0)])
    assert_allclose(of_moments(3).fit(X).means_[:, 6:], 7.0)


def test_the_command_line_fits_rows_and_writes_components_and_a_report(tmp_path, capsys):
    import zarr

    rows = gaussian_population(6, 3, scale=4.0).sample(500, 0)
    X, z = rows.X, rows.components
    np.save(tmp_path / "X.npy", X)
    corpus, place, out = (str(tmp_path / name) for name in ("c", "m", "out"))
    assert main(["ingest", str(tmp_path / "X.npy"), corpus, "--shard-rows", "200", "--workers", "0"]) == 0
    assert (
        main(["fit", corpus, place, "--model", "gaussian", "-k", "3", "--workers", "0", "--n-em-iter", "1"])
        == 0
    )
    assert main(["transform", place, corpus, out, "--workers", "0"]) == 0
    found = zarr.open_group(f"{out}/components.zarr", mode="r")
    model = load_model(place)
    assert (found["components"][:] == model.predict(X)).all()
    assert_allclose(found["probabilities"][:], model.predict_proba(X), atol=1e-6)
    assert len(set(zip(found["components"][:], z, strict=True))) == 3
    assert main(["report", place, str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "Components in their leading plane" in page
    assert open_corpus(corpus).n_rows == 500
    capsys.readouterr()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_memory_limit_cuts_the_basis_into_slabs():
    true = gaussian_population(200_000, 3, scale=0.01)
    corpus = RowCorpus(true.sample(120, 0).X, shard_rows=8)
    model = of_moments(3, n_power_iter=1)
    planned = [(p.name, p.n_slabs) for p in model.plan(corpus, 652 << 20).passes]
    assert planned == [("sketch", 4), ("power", 4), ("moments", 1)]
    limited = of_moments(3, n_power_iter=1).fit_corpus(corpus, memory_limit=652 << 20)
    assert_allclose(limited.means_, model.fit_corpus(corpus).means_, atol=1e-8)


@pytest.mark.slow
@pytest.mark.cluster
def test_two_processes_give_the_same_bits(cluster):
    X = gaussian_population(150, 4).sample(3000, 0).X
    corpus = RowCorpus(X, shard_rows=150)
    options = {"n_em_iter": 2, "n_oversamples": 5, "n_power_iter": 1}
    alone = SphericalMixture(4, **options).fit_corpus(corpus)
    both = SphericalMixture(4, **options).fit_corpus(corpus, client=cluster)
    for name in ("means_", "weights_", "variances_", "kept_"):
        assert (getattr(alone, name) == getattr(both, name)).all()


@parametrize_with_checks([SphericalMixture(1), SphericalMixture(1, variances="common", n_em_iter=1)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[2] / "docs" / "gaussian.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    names = {}
    exec(code, names)
    assert names["model"].means_.shape == (3, 20)
    assert (names["model"].predict(names["X"]) == names["labels"]).mean() > 0.95
