"""Mixtures of three views: exact populations, samples, rows read by brute force, and refusals."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers import WeightedRows, assigned, matched
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.model_selection import GridSearchCV

from distmom.cli.main import main
from distmom.corpus import RowCorpus, open_corpus
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import load_model
from distmom.models.multiview.estimator import MultiView
from distmom.simulate.views import MixedViewPopulation

WIDTHS = (7, 5, 11)


def parameters(seed=4):
    """Return the means of a binary view, of counts and of real values, (3, 23)."""
    rng = np.random.default_rng(seed)
    return np.hstack(
        [rng.uniform(0.05, 0.95, (3, 7)), rng.gamma(2.0, 2.0, (3, 5)), 3.0 * rng.normal(size=(3, 11))]
    )


MEANS, WEIGHTS = parameters(), np.array([0.5, 0.2, 0.3])
TRUE = MixedViewPopulation(MEANS, WEIGHTS, [("bits", 7), ("counts", 5), ("values", 11)])


def sample(n, seed):
    """Return bits, counts and real values of rows, and the components."""
    rows = TRUE.sample(n, seed)
    return tuple(TRUE.split(rows.X)), rows.components


def distance(model):
    """Return the largest error of the means of any view, relative to those of all views of a component."""
    return matched(model.components_, MEANS)


@pytest.mark.parametrize("decomposition", ["joint", "power"])
@pytest.mark.parametrize("n_oversamples", [0, 2, 10])
def test_an_exact_population_gives_back_all_views_aligned(decomposition, n_oversamples):
    rows = TRUE.exact()
    corpus = WeightedRows(rows.X, rows.weights, shard_rows=400)
    corpus.settings["widths"] = list(WIDTHS)
    model = MultiView(3, decomposition=decomposition, n_oversamples=n_oversamples, n_em_iter=0).fit_corpus(
        corpus
    )
    error, order = distance(model)
    assert error < 1e-10
    for found, means in zip(model.views(), TRUE.split(MEANS), strict=True):
        assert_allclose(found, means[order], atol=1e-10)
    assert_allclose(model.weights_, WEIGHTS[order], rtol=1e-10)
    assert model.diagnostics_["asymmetry"] < 1e-10
    assert model.diagnostics_["residual"] < 1e-10
    assert model.diagnostics_["sum_weights"] == pytest.approx(1.0, abs=1e-10)
    # The variance that the components leave.
    bits, counts, values = np.split(model.variances_, np.cumsum(WIDTHS)[:-1])
    assert_allclose(bits, WEIGHTS @ (MEANS[:, :7] * (1.0 - MEANS[:, :7])), rtol=1e-9)
    assert_allclose(counts, WEIGHTS @ MEANS[:, 7:12], rtol=1e-9)
    assert_allclose(values, 1.0, rtol=1e-9)


def test_functions_of_a_view_that_are_columns_have_their_conditional_means():
    """Theorem 3.6 for functions of views with any law: here all functions of numbers from 0 to 4."""
    rng = np.random.default_rng(0)
    laws = [rng.dirichlet(np.ones(n), 3) for n in (4, 5, 6)]
    tuples = np.indices((4, 5, 6)).reshape(3, -1)
    given = np.prod([law[:, values] for law, values in zip(laws, tuples, strict=True)], axis=0)
    x = tuples[1]
    functions = np.column_stack([x, x**2, x >= 3, np.sin(x)])
    X = np.hstack([np.eye(4)[tuples[0]], functions, np.eye(6)[tuples[2]]])
    corpus = WeightedRows(X, WEIGHTS @ given)
    corpus.settings["widths"] = [4, 4, 6]
    model = MultiView(3, n_em_iter=0).fit_corpus(corpus)
    numbers = np.arange(5)
    expected = laws[1] @ np.column_stack([numbers, numbers**2, numbers >= 3, np.sin(numbers)])
    found = model.views()[1]
    assert_allclose(found, expected[matched(found, expected)[1]], atol=1e-9)
    # A view of indicators has its law as means, which gives the mean of any function.
    assert_allclose(model.views()[2], laws[2][matched(model.views()[2], laws[2])[1]], atol=1e-9)


def test_squares_beside_their_columns_give_the_variances_within_components():
    deviations, errors = np.array([[0.5, 1.0, 2.0], [1.5, 0.5, 1.0], [1.0, 2.0, 0.5]]), []
    for n in (4_000, 64_000):
        of_draws = []
        for seed in range(4):
            rng = np.random.default_rng(seed)
            h = rng.choice(3, n, p=WEIGHTS)
            views = [4.0 * np.eye(3)[h] + deviations[h] * rng.standard_normal((n, 3)) for _ in range(3)]
            views[1] = np.hstack([views[1], views[1] ** 2])
            model = MultiView(3).fit(views)
            means, squares = np.split(model.views()[1], 2, axis=1)
            order = matched(means, 4.0 * np.eye(3))[1]
            of_draws.append(np.abs(squares - means**2 - deviations[order] ** 2).mean())
        errors.append(np.mean(of_draws))
    assert errors[1] < 0.1
    assert 2.8 < errors[0] / errors[1] < 5.7


def test_the_units_and_origins_of_columns_do_not_matter():
    views, _ = sample(2000, 0)
    plain = MultiView(3).fit(views)
    rng = np.random.default_rng(0)
    scales = [10.0 ** rng.uniform(-6, 6, width) for width in WIDTHS]
    shifts = [1e3 * s * rng.normal(size=len(s)) for s in scales]
    moved = tuple(x * s + b for x, s, b in zip(views, scales, shifts, strict=True))
    found = MultiView(3).fit(moved)
    for a, b, s, shift in zip(plain.views(), found.views(), scales, shifts, strict=True):
        assert_allclose((b - shift) / s, a, atol=1e-6)
    assert_allclose(found.weights_, plain.weights_, rtol=1e-6)
    assert_allclose(found.predict_proba(moved), plain.predict_proba(views), atol=1e-5)


def test_errors_fall_with_the_root_of_the_number_of_rows():
    errors = []
    for n in (2_000, 32_000):
        found = [MultiView(3).fit(sample(n, seed)[0]).components_ for seed in range(8)]
        errors.append(np.mean([np.abs(c - MEANS[matched(c, MEANS)[1]]).mean() for c in found]))
    # A sixteenth of the variance is a quarter of the error.
    assert 3.0 < errors[0] / errors[1] < 5.5


def test_rows_are_read_by_the_rule_of_bayes():
    views, h = sample(3000, 1)
    model = MultiView(3, n_em_iter=0).fit(views)
    X = np.hstack(views)
    logs = norm.logpdf(X[:, None, :], model.components_, np.sqrt(model.variances_)).sum(axis=2)
    logs += np.log(model.weights_)
    expected = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    assert_allclose(model.predict_proba(views), expected, atol=1e-9)
    assert_allclose(model.predict_proba(X), expected, atol=1e-9)
    assert (model.predict(views) == expected.argmax(axis=1)).all()
    assert_allclose(model.score_samples(views), logsumexp(logs, axis=1), rtol=1e-10)
    assert_allclose(model.score_samples(csr_array(X)), logsumexp(logs, axis=1), rtol=1e-10)
    assert model.score(views) == pytest.approx(logsumexp(logs, axis=1).mean())
    with pytest.raises(InputError, match="expected at least one row"):
        model.score(X[:0])
    order = matched(model.components_, MEANS)[1]
    assert (order[model.predict(views)] == h).mean() > 0.97
    # A row that is far from all means has probabilities, too.
    assert_allclose(model.predict_proba(np.full((1, 23), 1e6)).sum(), 1.0)


def test_grid_search_chooses_the_number_of_components_by_the_score():
    X = np.hstack(sample(3000, 1)[0])
    grid = {"n_components": [1, 2, 3]}
    found = GridSearchCV(MultiView(widths="7,5,11"), grid, cv=2, error_score="raise").fit(X)
    assert found.best_params_ == {"n_components": 3}


def test_constant_columns_and_columns_without_noise_are_fitted():
    (marks, counts, sizes), h = sample(3000, 1)
    marked = np.column_stack([marks, np.full(3000, 7), np.zeros(3000), h == 1])
    model = MultiView(3).fit((marked, counts, sizes))
    order = matched(model.components_[:, 10:], MEANS[:, 7:])[1]
    assert_allclose(model.views()[0][:, 7], 7.0, rtol=1e-12)
    assert_allclose(model.views()[0][:, 8], 0.0, atol=1e-12)
    assert_allclose(model.views()[0][:, 9], order == 1, atol=0.05)
    assert (order[model.predict((marked, counts, sizes))] == h).mean() > 0.97


@pytest.mark.parametrize("sparse", [False, True])
def test_views_columns_and_sparse_rows_give_the_same_model(sparse):
    views, _ = sample(1500, 2)
    joined = np.hstack(views).astype(float)
    model = MultiView(3).fit(views)
    given = csr_array(joined) if sparse else joined
    same = MultiView(3, widths="7,5,11").fit(given)
    assert same.widths_ == model.widths_ == [7, 5, 11]
    assert_allclose(same.components_, model.components_, atol=1e-9)
    assert_allclose(same.variances_, model.variances_, atol=1e-9)
    assert_allclose(same.predict_proba(given), model.predict_proba(views), atol=1e-7)
    mixed = MultiView(3, widths=(7, 5, 11)).fit((csr_array(views[0]), views[1], views[2]))
    assert_allclose(mixed.components_, model.components_, atol=1e-9)
    if not sparse:
        assert (same.components_ == model.components_).all()


def test_a_fit_gives_the_same_bits_again_and_with_a_memory_limit():
    views, _ = sample(4000, 3)
    corpus = RowCorpus(np.hstack(views), shard_rows=150)
    models = [MultiView(3, widths="7,5,11").fit_corpus(corpus) for _ in range(2)]
    # The groups in which sums are added depend on the corpus alone.
    models.append(MultiView(3, widths="7,5,11").fit_corpus(corpus, memory_limit=1 << 30))
    for other in models[1:]:
        for name in ("components_", "weights_", "variances_"):
            assert (getattr(other, name) == getattr(models[0], name)).all()
    # Other shards add the same products in another order. Power passes would leave directions at the edge of what
    # counts as rounding.
    one, other = (
        MultiView(3, widths="7,5,11", n_oversamples=2, n_power_iter=0).fit_corpus(
            RowCorpus(np.hstack(views), shard_rows=rows)
        )
        for rows in (150, 1000)
    )
    assert_allclose(other.components_, one.components_, atol=1e-9)


def test_the_plan_lists_the_passes_that_are_made_and_a_saved_model_is_the_same(tmp_path):
    views, _ = sample(800, 0)
    corpus = RowCorpus(np.hstack(views), shard_rows=100)
    model = MultiView(3, widths=(7, 5, 11), n_power_iter=1)
    names = ["columns", "sketch", "power", "moments", *["em"] * 5, "correction"]
    plan = model.plan(corpus, n_workers=1)
    assert [p.name for p in plan.passes] == names
    model.fit_corpus(corpus).save(tmp_path / "m")
    assert [timing["name"] for timing in model.timings_] == names
    loaded = load_model(tmp_path / "m")
    for name in ("components_", "weights_", "variances_", "coefficients_"):
        assert (getattr(loaded, name) == getattr(model, name)).all()
    assert loaded.widths_ == model.widths_
    assert loaded.diagnostics_ == model.diagnostics_
    assert (loaded.predict_proba(views) == model.predict_proba(views)).all()
    assert loaded.pictures() == model.pictures()
    # A loaded model is fitted again with its parameters.
    again = loaded.fit_corpus(corpus)
    assert (again.components_ == model.components_).all()


def test_a_fit_resumes_after_the_last_pass(tmp_path):
    views, _ = sample(800, 0)
    corpus = RowCorpus(np.hstack(views), shard_rows=100)
    first = MultiView(3, widths="7,5,11").fit_corpus(corpus, run=tmp_path / "run")
    again = MultiView(3, widths="7,5,11").fit_corpus(corpus, run=tmp_path / "run")
    assert (again.components_ == first.components_).all()
    assert all(timing["resumed"] for timing in again.timings_)


def test_components_of_rows_are_stored():
    views, _ = sample(500, 0)
    model = MultiView(3).fit(views)
    # Units of three rows and more are cut by shards.
    corpus = RowCorpus(np.hstack(views), np.r_[np.full(100, 3), 200], shard_rows=64)
    stored = assigned(model, corpus)
    assert (stored["components"] == model.predict(views)).all()
    assert_allclose(stored["probabilities"], model.predict_proba(views), atol=1e-6)


def test_pictures_and_summary_are_json_values_and_show_the_views():
    model = MultiView(3).fit(sample(2000, 0)[0])
    summary = json.loads(json.dumps(model.summary()))
    assert summary["weights"] == pytest.approx(list(model.weights_), rel=1e-5)
    weights, shares, *views = json.loads(json.dumps(model.pictures(4)))
    assert weights["values"] == list(model.weights_)
    assert shares["values"] == model.diagnostics_["explained"]
    assert [len(picture["columns"]) for picture in views] == [4, 4, 4]
    assert all(name.startswith("3.") for name in views[2]["columns"])
    column = int(views[2]["columns"][0].removeprefix("3."))
    means = model.views()[2][:, column]
    expected = (means - model.weights_ @ means) / np.sqrt(model.variances_[12 + column])
    assert_allclose(np.array(views[2]["values"])[:, 0], expected)


def test_diagnostics_show_views_that_do_not_suit_the_model():
    (marks, counts, sizes), _ = sample(20_000, 0)
    good = MultiView(3).fit((marks, counts, sizes)).diagnostics_
    assert all(0.2 < share <= 1.0 for share in good["explained"])
    # A view that is nearly a copy of another one is not independent of it given the component.
    rng = np.random.default_rng(0)
    copied = MultiView(3).fit((sizes[:, :5], sizes[:, 5:] + np.pad(sizes[:, :5], ((0, 0), (0, 1))), counts))
    assert copied.diagnostics_["asymmetry"] > 3 * good["asymmetry"]
    # A view without information has no cross moments but noise.
    blind = MultiView(3).fit((rng.normal(size=(20_000, 4)) + 3.0, counts, sizes)).diagnostics_
    assert min(blind["conditioning"][:2]) < 0.2 * min(good["conditioning"])


def test_what_cannot_be_fitted_is_refused_with_one_sentence():
    (marks, counts, sizes), _ = sample(300, 0)
    joined = np.hstack([marks, counts, sizes])
    with pytest.raises(UsageError, match="at most 6, one more than the columns of the narrowest view, got 7"):
        MultiView(7).fit((marks, counts, sizes))
    with pytest.raises(UsageError, match="at most 2, the number of rows, got 3"):
        MultiView(3).fit((marks[:2], counts[:2], sizes[:2]))
    with pytest.raises(InputError, match="X: expected at least one row, got none"):
        MultiView(3).fit((marks[:0], counts[:0], sizes[:0]))
    with pytest.raises(UsageError, match=r"widths: expected the numbers .* add up to 23, got none"):
        MultiView(3).fit(joined)
    for widths in ("7,5", "7,5,12", "7,five,11", "0,12,11", (7, 16), 23):
        with pytest.raises(UsageError, match=r"widths: expected the numbers .* add up to 23"):
            MultiView(3, widths=widths).fit(joined)
    with pytest.raises(UsageError, match="widths: expected 7, 5, 11 as the views have, got 5,7,11"):
        MultiView(3, widths="5,7,11").fit((marks, counts, sizes))
    with pytest.raises(InputError, match=r"X\[1\].*expected 300 as in X\[0\], got 299"):
        MultiView(3).fit((marks, counts[:299], sizes))
    with pytest.raises(InputError, match="number of views: expected 3, got 2"):
        MultiView(3).fit((marks, counts))
    with pytest.raises(InputError, match=r"X\[2\].*row 0, column 0.*a finite number, got nan"):
        MultiView(3).fit((marks, counts, np.where(sizes == sizes[0, 0], np.nan, sizes)))
    with pytest.raises(InputError, match="matrix of rows and columns"):
        MultiView(3).fit((marks, counts[:, 0], sizes))
    with pytest.raises(
        NumericalError, match=r"columns of view 1, or those of the other views, are constant up to rounding"
    ):
        MultiView(3).fit((np.ones((300, 4)), counts, sizes))
    with pytest.raises(NumericalError, match=r"view 2 .* rank 1, and 3 components need rank 2"):
        MultiView(3).fit((marks, counts[:, :1] * np.ones(4), sizes))
    with pytest.raises(NumericalError, match="squares of the values of view 3 overflow: scale its values"):
        MultiView(3).fit((marks, counts, 1e200 * sizes))
    model = MultiView(3).fit((marks, counts, sizes))
    with pytest.raises(UsageError, match="X has 22 features, but MultiView is expecting 23"):
        model.predict(joined[:, 1:])
    with pytest.raises(UsageError, match="X: expected views of 7, 5, 11 columns, got 5, 7, 11"):
        model.predict((counts, marks, sizes))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_command_line_fits_views_and_writes_components_and_a_report(tmp_path, capsys, kind):
    import zarr
    from scipy.sparse import save_npz

    views, h = sample(900, 0)
    X = np.hstack(views).astype(float)
    source = str(tmp_path / ("X.npy" if kind == "dense" else "X.npz"))
    if kind == "dense":
        np.save(source, X)
    else:
        save_npz(source, csr_array(X))
    corpus, place, out = (str(tmp_path / name) for name in ("c", "m", "out"))
    as_rows = [] if kind == "dense" else ["--format", "rows-npz"]
    assert main(["ingest", source, corpus, "--shard-rows", "200", *as_rows, "--workers", "0"]) == 0
    options = ["--model", "multiview", "-k", "3", "--widths", "7,5,11", "--workers", "0"]
    assert main(["plan", corpus, *options[:-2]]) == 0
    assert "moments" in capsys.readouterr().out
    assert main(["fit", corpus, place, *options]) == 0
    assert "conditioning" in capsys.readouterr().out
    assert main(["transform", place, corpus, out, "--workers", "0"]) == 0
    found = zarr.open_group(f"{out}/components.zarr", mode="r")
    model = load_model(place)
    assert (found["components"][:] == model.predict(X)).all()
    order = matched(model.components_, MEANS)[1]
    assert (order[found["components"][:]] == h).mean() > 0.9
    assert main(["report", place, str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "View 3" in page
    assert open_corpus(corpus).n_rows == 900
    assert main(["fit", corpus, place, *options[:4], "--workers", "0", "--overwrite"]) != 0
    assert "widths: expected the numbers of columns of 3 views" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.nightly
def test_a_memory_limit_cuts_the_basis_into_slabs():
    rng = np.random.default_rng(0)
    widths, n = (100_000, 60_000, 40_000), 120
    h = rng.integers(0, 3, n)
    X = 0.5 * rng.normal(size=(3, sum(widths)))[h] + rng.normal(size=(n, sum(widths)))
    corpus = RowCorpus(X.astype(np.float32), shard_rows=8)
    model = MultiView(3, widths=widths, n_power_iter=1, n_em_iter=0)
    planned = [(p.name, p.n_slabs) for p in model.plan(corpus, 652 << 20).passes]
    assert [name for name, _ in planned] == ["columns", "sketch", "power", "moments"]
    assert planned[1][1] > 1
    limited = MultiView(3, widths=widths, n_power_iter=1, n_em_iter=0).fit_corpus(
        corpus, memory_limit=652 << 20
    )
    assert_allclose(limited.components_, model.fit_corpus(corpus).components_, atol=1e-6)


@pytest.mark.slow
@pytest.mark.cluster
def test_two_processes_give_the_same_bits(cluster):
    corpus = RowCorpus(np.hstack(sample(3000, 0)[0]), shard_rows=150)
    alone = MultiView(3, widths="7,5,11").fit_corpus(corpus)
    both = MultiView(3, widths="7,5,11").fit_corpus(corpus, client=cluster)
    for name in ("components_", "weights_", "variances_", "coefficients_"):
        assert (getattr(alone, name) == getattr(both, name)).all()


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[2] / "docs" / "multiview.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    names = {}
    exec(code, names)
    assert [means.shape for means in names["model"].views()] == [(3, 40), (3, 12), (3, 6)]
    found, true = names["model"].predict(names["views"]), names["groups"]
    assert np.mean([np.bincount(true[found == h]).max() / (found == h).sum() for h in range(3)]) > 0.95


@pytest.mark.parametrize(
    "options",
    [{}, {"n_em_iter": 0}, {"third_moment": "slices"}, {"n_em_iter": 0, "lift": 2}, {"alpha0": 0.5}],
)
def test_one_component_of_views_that_determine_each_other_is_the_mean(options):
    rng = np.random.default_rng(0)
    for x in (
        rng.exponential(size=(500, 1)),
        rng.normal(3.0, 1.0, (500, 1)),
        rng.integers(0, 2, (50, 1)) * 1.0,
    ):
        for view in (x, np.repeat(x, 2, axis=1)):
            model = MultiView(1, **options).fit((view, view, view))
            assert_allclose(model.components_[0], view.mean(), rtol=1e-12)
            assert model.diagnostics_["sum_weights"] == pytest.approx(1.0)
