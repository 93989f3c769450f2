"""Several components, or independent factors, in a row of three views: exact populations, samples, refusals."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers import WeightedRows, carried_out, matched, peak_bytes
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.sparse import csr_array

from distmom.cli.main import main
from distmom.corpus import RowCorpus
from distmom.engine import open_engine
from distmom.errors import NumericalError, UsageError
from distmom.models import load_model
from distmom.models.multiview.decomposition import LEAST, MOST
from distmom.models.multiview.estimator import MultiView
from distmom.models.multiview.reading import RowHiddenPass
from distmom.simulate.views import DirichletPopulation, FactorPopulation, Law, bernoulli
from distmom.spectral.jackknife import standard_errors

PAGE = Path(__file__).parents[2] / "docs" / "multiview.md"
WIDTHS = (4, 3, 5)
_RNG = np.random.default_rng(0)
NOISE = np.repeat([[1.0], [-1.0]], 2, axis=0) * np.vstack([_RNG.normal(size=(2, 12))] * 2)
LOADINGS = 2.0 * _RNG.normal(size=(12, 3)) + 1.0
ALPHA = np.array([0.6, 0.3, 0.2])
LAWS = [bernoulli(0.2), Law((-1.0, 0.0, 2.0), (0.3, 0.6, 0.1)), bernoulli(0.9)]


def rows_of(groups, **options):
    """Return rows whose views are columns of the three views of a group, with the probabilities of the groups."""
    X = groups.X.reshape(len(groups.weights), 3, -1)
    cuts = np.split(np.arange(12), np.cumsum(WIDTHS)[:-1])
    rows = np.hstack([X[:, t, cut] for t, cut in enumerate(cuts)])
    return rows, WeightedRows(rows, groups.weights, **options)


def exact_shares(alpha=ALPHA, **options):
    return rows_of(DirichletPopulation(alpha, LOADINGS, NOISE).enumerate(3), **options)


def exact_factors(laws=LAWS, **options):
    population = FactorPopulation(laws, LOADINGS, NOISE)
    return population, *rows_of(population.enumerate(3), **options)


def variances_of(rows, corpus):
    return corpus.unit_weights @ (rows - corpus.unit_weights @ rows) ** 2


@pytest.mark.parametrize("n_oversamples", [0, 10])
@pytest.mark.parametrize("alpha", [0.05 * ALPHA, ALPHA, 20.0 * ALPHA, np.array([0.3, 0.3, 0.3])])
def test_an_exact_population_of_shares_gives_back_all_views_and_alpha(alpha, n_oversamples):
    rows, corpus = exact_shares(alpha, shard_rows=300)
    alpha0 = alpha.sum()
    model = MultiView(3, widths=WIDTHS, alpha0=alpha0, n_oversamples=n_oversamples).fit_corpus(corpus)
    error, order = matched(model.components_, LOADINGS.T)
    assert error < 1e-10
    assert_allclose(model.alpha_, alpha[order], rtol=1e-10)
    assert_allclose(model.weights_, alpha[order] / alpha0, rtol=1e-10)
    for name in ("asymmetry", "residual", "proportions_disagreement"):
        assert model.diagnostics_[name] < 1e-10
    assert model.diagnostics_["sum_weights"] == pytest.approx(1.0, abs=1e-10)
    p = alpha / alpha0
    covariance = (np.diag(p) - np.outer(p, p)) / (alpha0 + 1.0)
    of_shares = np.einsum("dk,kl,dl->d", LOADINGS, covariance, LOADINGS)
    assert_allclose(model.variances_, variances_of(rows, corpus) - of_shares, rtol=1e-9)
    assert model.skewness_ is model.mean_ is model.coefficients_ is None


@pytest.mark.parametrize("decomposition", ["joint", "power"])
@pytest.mark.parametrize("n_oversamples", [0, 10])
def test_an_exact_population_of_independent_factors_gives_back_effects_of_variance_one(
    decomposition, n_oversamples
):
    population, rows, corpus = exact_factors(shard_rows=300)
    model = MultiView(
        3, widths=WIDTHS, prior="independent", decomposition=decomposition, n_oversamples=n_oversamples
    ).fit_corpus(corpus)
    # The sign of a factor is that of positive skewness.
    error, order = matched(model.components_, population.components * np.sign(population.skewness)[:, None])
    assert error < 1e-10
    assert_allclose(model.skewness_, np.abs(population.skewness)[order], rtol=1e-10)
    assert (np.diff(model.skewness_) < 0.0).all()
    assert_allclose(model.mean_, population.mean, atol=1e-12)
    assert model.diagnostics_["residual"] < 1e-10
    assert model.weights_ is model.alpha_ is None
    of_factors = (population.components**2).sum(axis=0)
    assert_allclose(model.variances_, variances_of(rows, corpus) - of_factors, rtol=1e-9)


@pytest.mark.parametrize("decomposition", ["joint", "power"])
@pytest.mark.parametrize("alpha", [0.05 * ALPHA, ALPHA, 20.0 * ALPHA, np.array([0.3, 0.3, 0.3])])
def test_an_exact_population_of_shares_gives_back_alpha0(alpha, decomposition):
    _, corpus = exact_shares(alpha, shard_rows=300)
    model = MultiView(3, widths=WIDTHS, alpha0="auto", decomposition=decomposition).fit_corpus(corpus)
    error, order = matched(model.components_, LOADINGS.T)
    assert error < 1e-10
    assert_allclose(model.alpha_, alpha[order], rtol=1e-10)
    assert model.diagnostics_["sum_weights"] == pytest.approx(1.0, abs=1e-10)


def test_alpha0_that_the_moments_do_not_determine_is_at_an_end_with_a_warning(caplog):
    # Rows of a single component each, and shares that are nearly equal in all rows.
    for alpha, end in ((0.001 * ALPHA, LEAST), (500.0 * ALPHA, MOST)):
        caplog.clear()
        _, corpus = exact_shares(alpha)
        model = MultiView(3, widths=WIDTHS, alpha0="auto").fit_corpus(corpus)
        assert model.alpha_.sum() == pytest.approx(end)
        assert [f"alpha0={end:g}, at the end" in record.message for record in caplog.records] == [True]


def test_moments_of_another_alpha0_are_not_diagonal():
    _, corpus = exact_shares()
    found = [
        MultiView(3, widths=WIDTHS, alpha0=a, n_em_iter=0).fit_corpus(corpus) for a in (0.0, 0.5, 1.1, 2.0)
    ]
    residuals = [model.diagnostics_["residual"] for model in found]
    assert residuals[2] < 1e-10 < 1e-3 < min(residuals[:2] + residuals[3:])
    errors = [matched(model.components_, LOADINGS.T)[0] for model in found]
    assert errors[2] < 1e-10 < 0.1 < min(errors[:2] + errors[3:])
    assert max(abs(model.diagnostics_["sum_weights"] - 1.0) for model in (found[0], found[3])) > 0.01


def test_factors_without_skewness_are_refused():
    _, _, corpus = exact_factors([bernoulli(0.2), bernoulli(0.5), bernoulli(0.9)])
    with pytest.raises(NumericalError, match=r"by their skewness, which is zero for 1 of 3"):
        MultiView(3, widths=WIDTHS, prior="independent").fit_corpus(corpus)
    # Shares have one dimension less than components.
    _, corpus = exact_shares()
    with pytest.raises(NumericalError, match=r"view 1 .* rank 2, and 3 components need rank 3"):
        MultiView(3, widths=WIDTHS, prior="independent").fit_corpus(corpus)


# Samples of a view of bits, one of counts and one of values

KINDS = (8, 6, 7)


def parameters():
    rng = np.random.default_rng(3)
    means = [rng.uniform(0.05, 0.95, (3, 8)), rng.gamma(2.0, 2.0, (3, 6)), 2.0 * rng.normal(size=(3, 7))]
    return np.hstack(means), np.array([0.6, 0.4, 0.2])


def sampled_shares(n, seed):
    """Return bits, counts and values, and the shares of the components in every row."""
    rng, (means, alpha) = np.random.default_rng(seed), parameters()
    h = rng.dirichlet(alpha, n)
    bits, rates, values = np.split(h @ means, np.cumsum(KINDS)[:-1], axis=1)
    return (rng.random(bits.shape) < bits, rng.poisson(rates), values + rng.normal(size=values.shape)), h


SHAPES = np.array([1.0, 0.5, 2.0])


def effects():
    """Return the effects of gamma factors of variance one on sizes, counts and values."""
    found = np.random.default_rng(5).normal(size=(3, 21))
    found[:, 8:14] = np.abs(found[:, 8:14])
    return found * np.sqrt(SHAPES)[:, None]


def sampled_factors(n, seed):
    """Return sizes, counts and values, and the factors of every row in units of mean zero and variance one."""
    rng = np.random.default_rng(seed)
    h = rng.gamma(SHAPES, size=(n, 3))
    sizes, rates, values = np.split(h @ (effects() / np.sqrt(SHAPES)[:, None]), np.cumsum(KINDS)[:-1], axis=1)
    views = (
        sizes + rng.normal(size=sizes.shape), rng.poisson(rates), values + rng.normal(size=values.shape)
    )  # fmt: skip
    return views, (h - SHAPES) / np.sqrt(SHAPES)


def errors_of_shares(n, seed, alpha0=1.2):
    """Return errors of means in standard deviations of their columns, of alpha and of shares, and the residual."""
    views, h = sampled_shares(n, seed)
    means, alpha = parameters()
    model = MultiView(3, alpha0=alpha0).fit(views)
    order = matched(model.components_, means)[1]
    deviations = np.hstack(views).std(axis=0)
    of_alpha = np.nan if model.alpha_ is None else np.abs(model.alpha_ - alpha[order]).mean()
    of_means = np.abs((model.components_ - means[order]) / deviations).mean()
    of_shares = np.abs(model.transform(views) - h[:, order]).mean()
    # With three components, the moments corrected for the alpha0 that is found are those of a mixture exactly.
    residual = np.nan if alpha0 == "auto" else model.diagnostics_["residual"]
    return of_means, of_alpha, of_shares, residual


def errors_of_factors(n, seed):
    """Return errors of effects in standard deviations of columns, of skewness and factors, and the residual."""
    views, h = sampled_factors(n, seed)
    model = MultiView(3, prior="independent").fit(views)
    order = matched(model.components_, effects())[1]
    deviations = np.hstack(views).std(axis=0)
    of_skewness = np.abs(model.skewness_ - (2.0 / np.sqrt(SHAPES))[order]).mean()
    of_effects = np.abs((model.components_ - effects()[order]) / deviations).mean()
    of_factors = np.abs(model.transform(views) - h[:, order]).mean()
    return of_effects, of_skewness, of_factors, model.diagnostics_["residual"]


@pytest.mark.slow
def test_errors_are_those_of_the_documentation_and_fall_with_the_root_of_the_number_of_rows():
    """Every number of the table is the average over eight seeds."""
    text = (
        PAGE.read_text(encoding="utf-8").partition("## Several components in a row")[2].partition("\n## ")[0]
    )
    table = re.findall(
        r"^\| (shares|factors), ([\d,]+) rows(?:, alpha0=([\d.]+|auto))? \| (.*) \|$", text, re.MULTILINE
    )
    found = {}
    for name, n_rows, alpha0, numbers in table:
        n, call = int(n_rows.replace(",", "")), errors_of_shares if name == "shares" else errors_of_factors
        given = {"alpha0": alpha0 if alpha0 == "auto" else float(alpha0)} if alpha0 else {}
        own = np.mean([call(n, seed, **given) for seed in range(8)], axis=0)
        found[name, n, alpha0] = own
        documented = [float(number) if number.strip() else np.nan for number in numbers.split("|")]
        assert_allclose(documented, own, rtol=0.03)
    for name in ("shares", "factors"):
        few, many = found[name, 4_000, ""], found[name, 64_000, ""]
        # A sixteenth of the variance is a quarter of the error.
        assert 2.8 < few[0] / many[0] < 5.7
        assert 2.0 < few[1] / many[1] < 8.0
    # With another alpha0, errors do not approach zero.
    assert {alpha0 for _, _, alpha0 in found} == {"", "0", "0.6", "2.4", "auto"}
    assert found["shares", 64_000, "auto"][0] < 0.5 * found["shares", 64_000, "0.6"][0]
    for alpha0 in ("0", "0.6", "2.4"):
        assert found["shares", 64_000, alpha0][0] > 3.0 * found["shares", 64_000, ""][0]
        assert found["shares", 64_000, alpha0][3] > found["shares", 64_000, ""][3]


def test_errors_of_an_alpha0_that_is_found_fall_with_the_root_of_the_number_of_rows():
    found = []
    for n in (8_000, 128_000):
        fits = [MultiView(3, alpha0="auto").fit(sampled_shares(n, 1000 + seed)[0]) for seed in range(16)]
        found.append(np.median([abs(np.log(model.alpha_.sum() / 1.2)) for model in fits]))
    # A sixteenth of the variance is a quarter of the error.
    assert 2.0 < found[0] / found[1] < 8.0


def test_the_residual_of_many_rows_is_least_near_the_true_alpha0():
    """The range that docs/multiview.md states."""
    for seed in range(4):
        views, _ = sampled_shares(64_000, seed)
        residuals = {
            alpha0: MultiView(3, alpha0=alpha0).fit(views).diagnostics_["residual"]
            for alpha0 in (0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 2.0, 2.4)
        }
        assert 0.8 <= min(residuals, key=residuals.get) <= 1.4


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
    with open_engine(corpus) as engine:
        rows = carried_out(engine, loaded.assign)
        stored = {
            name: np.concatenate([own.read(i) for i in range(len(corpus.shards))])
            for name, own in rows.items()
        }
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


def test_one_component_per_row_is_what_it_was():
    views, _ = sampled_shares(1_000, 0)
    plain = MultiView(3).fit(views)
    assert plain.alpha_ is plain.skewness_ is plain.mean_ is None
    assert [timing["name"] for timing in plain.timings_].count("em") == 5
    assert (plain.transform(views) == plain.predict_proba(views)).all()
    assert (MultiView(3, prior="dirichlet", alpha0=0.0).fit(views).components_ == plain.components_).all()


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


def test_the_example_of_the_documentation_runs():
    code = re.search(
        r"## Several components in a row.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )[1]
    names = {}
    exec(code, names)
    assert matched(names["model"].components_, names["means"])[0] < 0.1
    assert_allclose(names["model"].alpha_, [0.6, 0.4, 0.2], atol=0.05)
