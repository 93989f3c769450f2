"""Search for one component of a mixture of linear regressions: exact populations, samples, plans and refusals."""

import json
import re

import numpy as np
import pytest
from helpers import WeightedRows, exact_rows, peak_bytes, widened
from numpy.testing import assert_allclose

from distmom.cli.main import main
from distmom.corpus import RowBlock, RowCorpus, ingest_rows
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import RegressionSearch, load_model
from distmom.moments.rows.search import (
    ResponseMomentsPass,
    ResponsePairsPass,
    ResponseSketchPass,
    whole_third,
)
from distmom.simulate.mixtures import RegressionPopulation, draw_labels
from distmom.spectral.steps.directions import cholesky_factor


def population(d, k, seed=0, correlated=True):
    """Return a mixture with random parameters, of which the features are the same for all seeds."""
    rng, features = np.random.default_rng(seed), np.random.default_rng(1)
    coefs, intercepts = 2.0 * rng.normal(size=(k, d)), rng.normal(size=k)
    variances, weights = rng.uniform(0.2, 1.0, k), rng.dirichlet(np.full(k, 8.0))
    mean, root = features.normal(size=d), np.eye(d) + 0.4 * features.normal(size=(d, d))
    return RegressionPopulation(coefs, weights, variances, intercepts, mean, root if correlated else None)


def uncorrelated_population(d, k, n_within=3):
    """Return a mixture with uncorrelated features, and rows with its second moments, and third moments within."""
    rng, drawn = np.random.default_rng(0), population(n_within, k)
    inner = RegressionPopulation(drawn.coefs, drawn.weights, drawn.variances, drawn.intercepts)
    rows = inner.exact()
    Z, Q = widened(rows.X, 1.0, d)
    n, mean, scales = len(Z) // len(rows.X), rng.normal(size=d), rng.uniform(0.2, 3.0, d)
    coefs = inner.coefs @ Q[:, :n_within].T / scales
    true = RegressionPopulation(
        coefs, inner.weights, inner.variances, inner.intercepts - coefs @ mean, mean, np.diag(scales)
    )
    columns = np.c_[mean + Z * scales, np.repeat(rows.responses, n), np.repeat(rows.components == 1, n)]
    return true, WeightedRows(columns, np.repeat(rows.weights, n) / n, shard_rows=2000)


def assert_is(found, true, i, tolerance=1e-10):
    assert_allclose(found.coef, true.coefs[i], atol=tolerance)
    assert found.intercept == pytest.approx(true.intercepts[i], abs=tolerance)
    assert found.variance == pytest.approx(true.variances[i], abs=10 * tolerance)
    assert found.weight == pytest.approx(true.weights[i], abs=tolerance)


@pytest.mark.parametrize(
    "method", ["whitening", "cancellation", "cancellation-bisection", "cancellation-norm"]
)
@pytest.mark.parametrize(("d", "k"), [(4, 3), (3, 3), (4, 2)])
def test_an_exact_population_gives_every_component_by_any_side_information(method, d, k):
    true = population(d, k)
    coefs, weights = true.coefs, true.weights
    side = np.stack([np.roll(np.arange(k) / k, 1), -1.0 - np.arange(k)], axis=1)
    corpus = exact_rows(true, side, shard_rows=300)
    model = RegressionSearch(k, n_targets=2, method=method).fit_corpus(corpus)
    assert [timing["name"] for timing in model.timings_] == ["covariance", "pairs", "moments", "moments"]
    rng = np.random.default_rng(2)
    for i in range(k):
        along = np.linalg.pinv(coefs)[:, i] + 0.1 * rng.normal(size=d)
        assert (coefs @ along).argmax() == i
        found = model.search(along)
        assert_is(found, true, i)
        assert_allclose(found.preferences, np.sort(coefs @ along)[::-1], atol=1e-9)
        # All rows of the component, as its rows without noise at the nodes of the features.
        X = true.mean + np.concatenate([np.eye(d), -np.eye(d)]) * np.sqrt(d) @ true.root.T
        labelled = np.c_[X, X @ coefs[i] + true.intercepts[i]]
        # They are so few that only force finds the component.
        found = model.search(rows=labelled, force=True)
        assert_is(found, true, i)
        assert_allclose(found.preferences[0], 1.0 / weights[i], rtol=1e-9)
        assert_allclose(found.preferences[1:], 0.0, atol=1e-9)
    for j in range(2):
        found = model.search(target=j)
        assert_is(found, true, side[:, j].argmax())
        assert_allclose(found.preferences, np.sort(side[:, j])[::-1], atol=1e-9)
        assert found.noise == 0.0


def test_the_units_of_the_features_do_not_matter():
    true = population(4, 2)
    rows = true.sample(20_000, 0)
    units, y, z = np.array([1e-30, 1e-3, 1e3, 1e30]), rows.responses, rows.components == 1
    plain, scaled = (RegressionSearch(2).fit(X, y, z) for X in (rows.X, rows.X * units))
    labelled = np.c_[rows.X, y][z][:100]
    for given, others in (
        ({"target": 0}, {"target": 0}),
        ({"rows": labelled}, {"rows": labelled * [*units, 1.0]}),
    ):
        theirs, ours = plain.search(**given, force=True), scaled.search(**others, force=True)
        assert_allclose(ours.coef * units, theirs.coef, atol=1e-8)
        assert (ours.intercept, ours.variance) == pytest.approx((theirs.intercept, theirs.variance), abs=1e-8)
        assert (ours.gap, ours.noise) == pytest.approx((theirs.gap, theirs.noise))


def test_a_component_of_small_coefficients_is_found_by_whitened_rows_only():
    drawn = population(4, 2)
    coefs = np.array([[0.5, 0.1, 0.0, 0.0], [2.0, 0.5, 0.3, 0.0]])
    true = RegressionPopulation(coefs, drawn.weights, drawn.variances, drawn.intercepts)
    model = RegressionSearch(2).fit_corpus(exact_rows(true, shard_rows=300))
    X = np.concatenate([np.eye(4), -np.eye(4)]) * 2.0
    labelled = np.c_[X, X @ coefs[0] + true.intercepts[0]]
    assert_is(model.search(rows=labelled, force=True), true, 0)
    found = model.set_params(side="project").search(rows=labelled, force=True)
    assert_is(found, true, 1)
    assert_allclose(found.preferences, np.sort(coefs @ coefs[0])[::-1], atol=1e-9)


@pytest.mark.parametrize("n_bytes", [1 << 30, 0])
@pytest.mark.parametrize(("n_oversamples", "n_power_iter"), [(0, 4), (5, 3), (60, 0)])
def test_an_exact_population_of_uncorrelated_features_comes_back_from_a_sketch(
    n_oversamples, n_power_iter, n_bytes, monkeypatch
):
    # Without room for whole bases, they are orthonormalised by slabs of rows.
    monkeypatch.setattr("distmom.spectral.steps.directions.WHOLE_BYTES", n_bytes)
    true, corpus = uncorrelated_population(60, 2)
    options = {"n_oversamples": n_oversamples, "n_power_iter": n_power_iter, "n_targets": 1}
    model = RegressionSearch(2, covariance="diagonal", **options).fit_corpus(corpus)
    names = ["columns", "sketch", *["power"] * n_power_iter, "pairs", "moments", "moments"]
    assert [timing["name"] for timing in model.timings_] == names
    assert model.diagnostics_["correlation"] < 1e-6
    for i in range(2):
        assert_is(model.search(np.linalg.pinv(true.coefs)[:, i]), true, i)
    assert_is(model.search(target=0), true, 1)


def test_a_gram_matrix_with_a_negative_square_has_no_factor():
    # Where a shift nearly cancels a column, rounding may leave a negative square; warnings are errors here.
    assert cholesky_factor(np.diag([1.0, -1e-18])) is None
    assert_allclose(cholesky_factor(np.diag([1.0, 4.0])), np.diag([1.0, 0.5]))


def test_a_sketch_of_uncorrelated_features_is_as_accurate_as_their_whole_covariance():
    rng, errors = np.random.default_rng(0), {}
    coefs = np.linalg.qr(rng.normal(size=(40, 2)))[0].T * 2.0 / (scales := rng.uniform(0.5, 2.0, 40))
    true = RegressionPopulation(coefs, [0.5, 0.5], 0.5, 0.0, rng.normal(size=40), np.diag(scales))
    for seed in range(3):
        rows = true.sample(40_000, seed)
        for covariance in ("full", "diagonal"):
            model = RegressionSearch(2, covariance=covariance).fit(rows.X, rows.responses)
            found = model.search(np.linalg.pinv(coefs)[:, 0])
            errors.setdefault(covariance, []).append(np.linalg.norm((found.coef - coefs[0]) * scales))
        assert model.diagnostics_["correlation"] < 3.0 * np.sqrt(12 / 40_000)
    assert np.mean(errors["diagonal"]) < 1.1 * np.mean(errors["full"]) < 0.5
    # A common cause of all features along the coefficients of one component.
    X = rows.X + rng.normal(size=(40_000, 1)) * true.coefs[0] * scales**2
    model = RegressionSearch(2, covariance="diagonal").fit(X, rows.responses)
    assert model.diagnostics_["correlation"] > 20.0 * np.sqrt(12 / 40_000)


def test_as_many_features_as_components_leave_no_noise_to_subtract():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(20_000, 2)), rng.integers(0, 2, 20_000)
    y = np.where(z, 2 * x[:, 0], 2 * x[:, 1])
    fits = [
        RegressionSearch(2, covariance=name).fit(x, y, side=z.astype(float)) for name in ("full", "diagonal")
    ]
    found = [fit.search(target=0).coef for fit in fits]
    assert_allclose(found[1], found[0], atol=0.05)
    assert_allclose(np.abs(found[1]), [2.0, 0.0], atol=0.2)


def test_no_matrix_of_all_features_is_formed_with_a_diagonal_covariance():
    d, rng = 800, np.random.default_rng(0)
    coefs = 3.0 * np.linalg.qr(rng.normal(size=(d, 2)))[0].T
    rows = RegressionPopulation(coefs, [0.5, 0.5], 0.5).sample(8_000, 0)
    corpus = RowCorpus(np.c_[rows.X, rows.responses], shard_rows=100)
    model, matrix = RegressionSearch(2, covariance="diagonal"), 8 * d**2
    assert max(p.sums_bytes for p in model.plan(corpus).passes) < matrix / 50
    assert max(p.sums_bytes for p in RegressionSearch(2).plan(corpus).passes) >= matrix
    assert peak_bytes(lambda: model.fit_corpus(corpus), matrix / 2) < matrix / 2
    assert model.basis_.shape == (d, 2)


@pytest.mark.parametrize(("d", "n"), [(40, 6_000), (500, 300)])
def test_a_task_takes_what_is_projected(d, n):
    rng, r = np.random.default_rng(0), 8
    rows, origin = rng.normal(size=(n, d + 1)), np.zeros((d + 1, 1))
    basis, scale = np.linalg.qr(rng.normal(size=(d, r)))[0], np.ones((d, 1))
    passes = [
        ResponseSketchPass(d, n_columns=r, origin=origin, scale=scale),
        ResponseSketchPass(d, n_columns=r, origin=origin, scale=scale, basis=basis),
        ResponsePairsPass(d, origin=origin, basis=basis, rank=r),
        ResponsePairsPass(d, origin=origin),
    ]
    block = RowCorpus(rows, shard_rows=n).read_shard(0)
    for pass_ in passes:
        sums = pass_.zero()
        most = 1.05 * (pass_.working_bytes(n) + pass_.mapped_bytes) + (1 << 16)
        assert peak_bytes(lambda pass_=pass_, sums=sums: pass_.add(sums, block, {}), most) < most, pass_.name


def test_sums_are_those_of_their_definition():
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(40, 7)), rng.uniform(0.5, 2.0, 40)
    P, m, slopes = rng.normal(size=(4, 3)), rng.normal(size=(5, 1)), rng.normal(size=(3, 1))
    of_moments = ResponseMomentsPass(4, basis=P, origin=m, slopes=slopes, rank=3, n_targets=2)
    of_pairs = ResponsePairsPass(4, origin=m)
    of_projected = ResponsePairsPass(4, origin=m, basis=P, rank=3)
    D = rng.uniform(0.5, 2.0, (4, 1))
    of_sketch = ResponseSketchPass(4, n_columns=3, basis=P, origin=m, scale=D)
    moments, pairs, projected, sketch = (p.zero() for p in (of_moments, of_pairs, of_projected, of_sketch))
    for cut in (slice(0, 15), slice(15, 40)):
        block = RowBlock(rows[cut], np.arange(cut.stop - cut.start + 1), cut.start, weights=weights[cut])
        of_moments.add(moments, block, {})
        of_pairs.add(pairs, block, {})
        of_projected.add(projected, block, {})
        of_sketch.add(sketch, block, {})
    x, y, t = rows[:, :4] - m[:4, 0], rows[:, 4] - m[4, 0], rows[:, 5:]
    Z, w = x @ P, weights
    assert_allclose(pairs["xx"], np.einsum("n,na,nb->ab", w * y**2, x, x))
    assert_allclose(pairs["squares"], w @ y**2)
    assert_allclose(pairs["cubes"], (w * y**3) @ x)
    assert_allclose(projected["xx"], np.einsum("n,na,nb->ab", w * y**2, Z, Z))
    assert_allclose(projected["zz"], np.einsum("n,na,nb->ab", w, Z, Z))
    assert_allclose(projected["squares"], w @ y**2)
    assert_allclose(projected["cubes"], (w * y**3) @ Z)
    assert_allclose(sketch["sketch"].single, pairs["xx"] @ P)
    assert_allclose(sketch["squares"], np.trace(D * pairs["xx"] * D.T))
    assert_allclose(sketch["mass"], w.sum())
    for power, name in enumerate(("yz", "yyz", "yyyz"), 1):
        assert_allclose(moments[name], (w * y**power) @ Z)
    g = y**3 - Z @ slopes[:, 0]
    assert_allclose(moments["gz"], (w * g) @ Z)
    assert_allclose(whole_third(moments["gzzz"]), np.einsum("n,na,nb,nc->abc", w * g, Z, Z, Z))
    assert_allclose(moments["tyy"], (w * y**2) @ t)
    assert_allclose(moments["tyyzz"], np.einsum("n,nq,na,nb->qab", w * y**2, t, Z, Z))


@pytest.mark.parametrize("how", ["along", "rows", "target"])
def test_errors_fall_with_the_root_of_the_number_of_rows(how):
    true = population(4, 2, 3)
    coefs, errors = true.coefs, []
    for n in (20_000, 320_000):
        for seed in range(5):
            rows = true.sample(n, seed)
            X, y, z = rows.X, rows.responses, rows.components
            marked = draw_labels(z, 1, 0.5, 0.1, (seed, 1))
            labelled = np.c_[X, y][z == 1][:200]
            model = RegressionSearch(2).fit(X, y, marked.astype(float))
            given = {"along": coefs[1] - coefs[0], "rows": labelled, "target": 0}[how]
            found = model.search(**{how: given})
            errors.append(np.linalg.norm(found.coef - coefs[1]))
    assert found.weight == pytest.approx(true.weights[1], abs=0.05)
    few, many = np.mean(errors[:5]), np.mean(errors[5:])
    # A sixteenth of the variance is a quarter of the error.
    assert 2.4 < few / many < 7.0


@pytest.mark.parametrize("options", [{}, {"covariance": "diagonal", "n_oversamples": 1}])
def test_the_plan_lists_the_passes_and_a_saved_model_is_the_same(tmp_path, options):
    rows = population(4, 2, correlated=not options).sample(20_000, 0)
    X, y, z = rows.X, rows.responses, rows.components
    corpus = RowCorpus(np.c_[X, y, z == 1], shard_rows=2000)
    model = RegressionSearch(2, n_targets=1, **options)
    planned = [p.name for p in model.plan(corpus).passes]
    model.fit_corpus(corpus).save(tmp_path / "m")
    assert [timing["name"] for timing in model.timings_] == planned
    loaded = load_model(tmp_path / "m")
    stored = RegressionSearch(2, n_targets=1, **options).fit_corpus(
        ingest_rows(np.c_[X, y, z == 1], tmp_path / "c", shard_rows=2000)
    )
    limited = RegressionSearch(2, n_targets=1, **options).fit_corpus(corpus, memory_limit=1 << 30)
    ours = model.search(target=0)
    for other in (loaded, stored, limited):
        theirs = other.search(target=0)
        assert (ours.coef == theirs.coef).all()
        assert (ours.weight, ours.variance, ours.noise) == (theirs.weight, theirs.variance, theirs.noise)
    cut = RegressionSearch(2, n_targets=1, **options)
    cut.fit_corpus(RowCorpus(np.c_[X, y, z == 1], shard_rows=5000))
    assert_allclose(cut.search(target=0).coef, ours.coef, rtol=1e-9)
    assert loaded.pictures() == model.pictures()


def test_what_does_not_suit_is_refused():
    rows = population(4, 2).sample(2000, 0)
    X, y = rows.X, rows.responses
    model = RegressionSearch(2).fit(X, y)
    with pytest.raises(UsageError, match="rows: expected 5 columns, got 4"):
        model.search(rows=X)
    with pytest.raises(NumericalError, match="so large that its moments overflow: scale it"):
        model.search(rows=np.full((1, 5), 1e200))
    with pytest.raises(UsageError, match="n_components: expected at most 4, the number of features, got 5"):
        RegressionSearch(5).fit(X, y)
    with pytest.raises(InputError, match="y: expected 2000 rows as X has, got 1999"):
        RegressionSearch(2).fit(X, y[1:])
    with pytest.raises(UsageError, match="requires y to be passed, but the target y is None"):
        RegressionSearch(2).fit(X, None)
    for responses in (X[:, :2], 3.0, X[:, :1, None]):
        shape = re.escape(f"{np.shape(responses)}")
        with pytest.raises(
            InputError, match=f"y: expected one response per row, got an array of shape {shape}"
        ):
            RegressionSearch(2).fit(X, responses)
    with pytest.raises(NumericalError, match="the features are linearly dependent"):
        RegressionSearch(2).fit(np.c_[X, X[:, 0]], y)
    with pytest.raises(NumericalError, match="the features are linearly dependent, or far from the origin"):
        RegressionSearch(2).fit(X + 1e9, y)
    with pytest.raises(NumericalError, match="feature 4 is constant, or far from the origin: its mean is 1"):
        RegressionSearch(2, covariance="diagonal").fit(np.c_[X, np.ones(2000)], y)
    with pytest.raises(UsageError, match="covariance"):
        RegressionSearch(2, covariance="tied").fit(X, y)
    with pytest.raises(NumericalError, match="eigenvalues above the noise level"):
        # Noise alone has no component.
        RegressionSearch(4).fit(X, np.random.default_rng(0).normal(size=2000))
    chance = np.random.default_rng(2).random(2000)
    with pytest.raises(NumericalError, match="does not determine a component"):
        RegressionSearch(2).fit(X, y, chance).search(target=0)


def test_the_command_line_finds_a_regression(tmp_path, capsys):
    true = population(4, 2, 3)
    rows = true.sample(40_000, 0)
    X, y, z = rows.X, rows.responses, rows.components
    np.save(tmp_path / "X.npy", np.c_[X, y, z == 1])
    np.save(tmp_path / "rows.npy", np.c_[X, y][z == 1][:200])
    corpus, place = str(tmp_path / "c"), str(tmp_path / "m")
    assert main(["ingest", str(tmp_path / "X.npy"), corpus, "--workers", "0"]) == 0
    options = ["--model", "regression-search", "-k", "2", "--n-targets", "1", "--workers", "0"]
    assert main(["fit", corpus, place, *options, "--quiet"]) == 0
    capsys.readouterr()
    model = load_model(place)
    labelled = model.search(rows=np.load(tmp_path / "rows.npy"))
    for given, expected in (
        (["--rows", str(tmp_path / "rows.npy")], labelled),
        (["--target", "0"], model.search(target=0)),
    ):
        assert main(["find", place, *given, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["coef"] == expected.coef.tolist()
        assert found["variance"] == expected.variance
    assert_allclose(found["coef"], true.coefs[1], atol=0.5)
    assert found["weight"] == pytest.approx(true.weights[1], abs=0.1)
    assert main(["find", place, "--target", "0"]) == 0
    assert "intercept" in capsys.readouterr().out
