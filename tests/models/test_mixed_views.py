"""Several components, or independent factors, in a row of three views: exact populations and errors of samples."""

import re
from pathlib import Path

import numpy as np
import pytest
from helpers import WeightedRows, matched
from mixed import SHAPES, effects, parameters, sampled_factors, sampled_shares
from numpy.testing import assert_allclose

from distmom.errors import NumericalError, UsageError
from distmom.models.multiview.decomposition import LEAST, MOST
from distmom.models.multiview.estimator import MultiView
from distmom.simulate.views import DirichletPopulation, FactorPopulation, Law, bernoulli

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


@pytest.mark.slow
def test_errors_of_an_alpha0_that_is_found_fall_with_the_root_of_the_number_of_rows():
    found = []
    for n in (8_000, 128_000):
        fits = [MultiView(3, alpha0="auto").fit(sampled_shares(n, 1000 + seed)[0]) for seed in range(16)]
        found.append(np.median([abs(np.log(model.alpha_.sum() / 1.2)) for model in fits]))
    # A sixteenth of the variance is a quarter of the error.
    assert 2.0 < found[0] / found[1] < 8.0


@pytest.mark.slow
def test_the_residual_of_many_rows_is_least_near_the_true_alpha0():
    """The range that docs/multiview.md states."""
    for seed in range(4):
        views, _ = sampled_shares(64_000, seed)
        residuals = {
            alpha0: MultiView(3, alpha0=alpha0).fit(views).diagnostics_["residual"]
            for alpha0 in (0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 2.0, 2.4)
        }
        assert 0.8 <= min(residuals, key=residuals.get) <= 1.4


def test_one_component_per_row_is_what_it_was():
    views, _ = sampled_shares(1_000, 0)
    plain = MultiView(3).fit(views)
    assert plain.alpha_ is plain.skewness_ is plain.mean_ is None
    assert [timing["name"] for timing in plain.timings_].count("em") == 5
    assert (plain.transform(views) == plain.predict_proba(views)).all()
    assert (MultiView(3, prior="dirichlet", alpha0=0.0).fit(views).components_ == plain.components_).all()


def test_the_example_of_the_documentation_runs():
    code = re.search(
        r"## Several components in a row.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )[1]
    names = {}
    exec(code, names)
    assert matched(names["model"].components_, names["means"])[0] < 0.1
    assert_allclose(names["model"].alpha_, [0.6, 0.4, 0.2], atol=0.05)


def test_shares_of_rows_that_are_far_from_all_components_sum_to_one():
    rows, corpus = exact_shares()
    model = MultiView(3, widths=WIDTHS, alpha0=ALPHA.sum()).fit_corpus(corpus)
    direction = model.components_[1] - model.components_[0]
    for distance in (1e3, 1e10, 1e20, 1e200):
        found = model.predict_proba(rows[:1] + distance * direction)
        assert_allclose(found.sum(axis=1), 1.0)


def test_a_fitted_model_does_not_depend_on_parameters_for_another_fit():
    rows, corpus = exact_shares()
    shares = MultiView(3, widths=WIDTHS, alpha0=ALPHA.sum()).fit_corpus(corpus)
    single = MultiView(3, widths=WIDTHS).fit_corpus(corpus)
    factors = MultiView(3, widths=WIDTHS, prior="independent").fit_corpus(exact_factors()[2])
    for model, other in (
        (shares, {"alpha0": 0.0}),
        (single, {"alpha0": 1.0}),
        (factors, {"prior": "dirichlet"}),
    ):
        expected = model.transform(rows)
        assert np.array_equal(model.set_params(**other).transform(rows), expected)
    assert np.isfinite(single.score(rows))
    with pytest.raises(UsageError, match="one component per row"):
        shares.score(rows)
