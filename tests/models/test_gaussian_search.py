"""Search for one component of a mixture of spherical Gaussians: exact populations, samples, plans and refusals."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import exact_rows, gaussian_population
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.metrics import normalized_mutual_info_score
from sklearn.mixture import GaussianMixture

from distmom.corpus import RowBlock, RowCorpus, ingest_rows
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import GaussianSearch, load_model
from distmom.moments.rows.search import RowTargetsPass
from distmom.simulate.mixtures import GaussianPopulation, draw_labels


def assert_is(found, true, i, tolerance=1e-10):
    assert_allclose(found.mean, true.means[i], atol=tolerance)
    assert found.weight == pytest.approx(true.weights[i], abs=tolerance)
    assert found.variance == pytest.approx(true.variances[i], abs=tolerance)


@pytest.mark.parametrize(
    "method", ["whitening", "cancellation", "cancellation-bisection", "cancellation-norm"]
)
@pytest.mark.parametrize(
    ("d", "k", "options", "names"),
    [
        (6, 3, {}, ["covariance", "moments", "moments"]),
        (4, 4, {}, ["covariance", "moments", "moments"]),
        (90, 4, {"n_oversamples": 6}, ["sketch", "power", "power", "moments", "moments"]),
    ],
)
def test_an_exact_population_gives_every_component_by_any_side_information(method, d, k, options, names):
    true = gaussian_population(d, k)
    means, weights = true.means, true.weights
    # The second target is negative everywhere, and its largest value is preferred.
    side = np.stack([np.roll(np.arange(k) / k, 1), -1.0 - np.arange(k)], axis=1)
    corpus = exact_rows(true, side, shard_rows=50)
    model = GaussianSearch(k, n_targets=2, method=method, **options).fit_corpus(corpus)
    assert [timing["name"] for timing in model.timings_] == names
    for i in range(k):
        # A vector whose product is one with a mean and zero with the others, less a constant.
        along = np.linalg.pinv(means - means.mean(axis=0))[:, i]
        products = means @ along
        if products.argmax() == i and products[i] - np.delete(products, i).max() > 1e-3:
            found = model.search(along)
            assert_is(found, true, i)
            assert_allclose(found.preferences, np.sort(products - products @ weights)[::-1], atol=1e-9)
        found = model.search(rows=means[i : i + 1])
        assert_is(found, true, i)
        # The preference of labelled rows is the inverse of the weight.
        assert_allclose(found.preferences[0], 1.0 / weights[i], rtol=1e-9)
        assert_allclose(found.preferences[1:], 0.0, atol=1e-9)
        assert found.informative
    for j in range(2):
        i, found = side[:, j].argmax(), model.search(target=j)
        assert_is(found, true, i)
        assert_allclose(found.preferences, np.sort(side[:, j])[::-1], atol=1e-9)
        assert found.noise == 0.0


def test_a_preference_along_a_vector_is_that_of_the_paper():
    true = gaussian_population(6, 3)
    model = GaussianSearch(3).fit_corpus(exact_rows(true))
    rng = np.random.default_rng(0)
    for _ in range(20):
        v = rng.normal(size=6)
        preferences = true.preferences(v)
        found = model.search(v)
        assert_is(found, true, preferences.argmax(), 1e-8)
        assert_allclose(
            found.preferences[0] - found.preferences[1], np.diff(np.sort(preferences))[-1], atol=1e-8
        )


def test_side_information_is_projected_or_whitened():
    # The mean of component 0 is near the center, and has its largest product with another one.
    means = np.array([[0.6, 0.1, 0.0, 0.2], [2.0, 0.3, 0.1, 0.0], [-2.0, 1.0, 0.4, 0.1]])
    true = GaussianPopulation(means, np.array([0.3, 0.3, 0.4]), np.array([0.5, 1.0, 0.8]))
    model, center = GaussianSearch(3).fit_corpus(exact_rows(true)), true.weights @ means
    assert model.side == "auto"
    for given in ({"rows": means[:1]}, {"along": means[0] - center}):
        # Coordinates of rows have a further one, which is 1 for all components.
        products = (means - center) @ (means[0] - center) + float("rows" in given)
        found = model.set_params(side="project").search(**given)
        assert_is(found, true, 1)
        assert_allclose(found.preferences, np.sort(products)[::-1], atol=1e-9)
        found = model.set_params(side="whiten").search(**given)
        assert_is(found, true, 0)
        assert_allclose(np.diff(found.preferences), [-1.0 / 0.3, 0.0], atol=1e-9)
    # A part of a vector outside of the span of the means has no effect.
    across = np.linalg.svd(means - center)[2][-1]
    for side in ("auto", "project", "whiten"):
        one, other = (model.set_params(side=side).search(v) for v in (means[1], means[1] + 5.0 * across))
        assert_allclose(one.preferences, other.preferences, atol=1e-9)
    with pytest.raises(UsageError, match="side: expected one of auto, project, whiten, got 'x'"):
        GaussianSearch(3, side="x").fit(true.sample(100, 0).X)


@pytest.mark.parametrize(
    "method",
    ["whitening", "cancellation", "cancellation-bisection", "cancellation-threshold", "cancellation-norm"],
)
def test_the_length_of_a_vector_does_not_matter(method):
    true = gaussian_population(6, 3, scale=4.0)
    model = GaussianSearch(3, method=method).fit(true.sample(2000, 0).X)
    along = np.linalg.pinv(true.means - true.means.mean(axis=0))[:, 1]
    plain = model.search(along)
    for length in (1e-250, 1e-100, 1e100, 1e200, 1e300):
        found = model.search(length * along)
        assert_allclose(found.mean, plain.mean, atol=1e-8)
        assert found.informative
        assert (found.gap / length, found.noise / length, found.n_rows_needed) == pytest.approx(
            (plain.gap, plain.noise, plain.n_rows_needed)
        )


def test_the_origin_of_the_rows_does_not_matter():
    true = gaussian_population(6, 3)
    for distance, tolerance in ((0.0, 1e-10), (1e4, 1e-6)):
        # Means with an average of zero are linearly dependent.
        means = true.means - true.weights @ true.means + distance
        moved = GaussianPopulation(means, true.weights, true.variances)
        model = GaussianSearch(3).fit_corpus(exact_rows(moved))
        assert_is(model.search(rows=means[:1]), moved, 0, tolerance)


def test_sums_are_those_of_their_definition():
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(40, 7)), rng.uniform(0.5, 2.0, 40)
    Q, m = np.linalg.qr(rng.normal(size=(5, 3)))[0], rng.normal(size=(5, 1))
    pass_ = RowTargetsPass(5, basis=Q, origin=m, rank=3, n_targets=2)
    sums = pass_.zero()
    for rows in (slice(0, 15), slice(15, 40)):
        block = RowBlock(X[rows], np.arange(rows.stop - rows.start + 1), rows.start, weights=weights[rows])
        pass_.add(sums, block, {})
    centred = X[:, :5] - m[:, 0]
    Y, s, t = centred @ Q, (centred**2).sum(axis=1), X[:, 5:] * weights[:, None]
    assert_allclose(sums["t"], t.sum(axis=0))
    assert_allclose(sums["ty"], t.T @ Y)
    assert_allclose(sums["tyy"], np.einsum("nq,na,nb->qab", t, Y, Y))
    assert_allclose(sums["ts"], t.T @ s)
    assert_allclose(sums["ys"], (weights * s) @ Y)
    assert_allclose(sums["yy"], (Y * weights[:, None]).T @ Y)


@pytest.mark.parametrize("how", ["along", "rows", "target"])
def test_errors_fall_with_the_root_of_the_number_of_rows(how):
    true = gaussian_population(20, 3, scale=1.0)
    means = true.means
    errors, noises = [], []
    for n in (4_000, 64_000):
        for seed in range(6):
            rows = true.sample(n, seed)
            marked = draw_labels(rows.components, 1, 0.5, 0.1, (seed, 1))
            model = GaussianSearch(3).fit(rows.X, marked.astype(float))
            given = {"along": means[1] - means.mean(axis=0), "rows": means[1:2], "target": 0}[how]
            found = model.search(**{how: given})
            errors.append(np.linalg.norm(found.mean - means[1]))
            noises.append(found.noise)
            assert found.weight == pytest.approx(true.weights[1], abs=0.1)
    few, many = np.mean(errors[:6]), np.mean(errors[6:])
    # A sixteenth of the variance is a quarter of the error.
    assert 2.6 < few / many < 6.0
    assert 2.0 < np.mean(noises[:6]) / np.mean(noises[6:]) < 8.0


def test_a_rare_component_is_found_where_other_methods_miss_it():
    rng = np.random.default_rng(0)
    d, n = 30, 20_000
    means = 1.2 * rng.normal(size=(4, d))
    means[0] = means[1] + 0.45 * rng.normal(size=d)
    true = GaussianPopulation(means, [0.05, 0.45, 0.3, 0.2], 1.0)
    errors = {name: [] for name in ("search", "em", "k-means", "seeded k-means")}
    for seed in range(3):
        rows = true.sample(n, seed)
        # Two in three rows of the component are labelled, and one in a hundred of the others.
        X, marked = rows.X, draw_labels(rows.components, 0, 0.67, 0.01, (seed, 1))
        found = GaussianSearch(4).fit(X, marked.astype(float)).search(target=0)
        em = GaussianMixture(4, covariance_type="spherical", random_state=seed).fit(X).means_
        centers = KMeans(4, n_init=1, random_state=seed).fit(X).cluster_centers_
        # The first cluster starts from the labelled rows, and the others from random rows.
        started = np.vstack([X[marked].mean(axis=0), kmeans_plusplus(X, 3, random_state=seed)[0]])
        seeded = KMeans(4, init=started, n_init=1).fit(X).cluster_centers_[:1]
        errors["search"].append(np.linalg.norm(found.mean - means[0]))
        for name, others in (("em", em), ("k-means", centers), ("seeded k-means", seeded)):
            errors[name].append(np.linalg.norm(others - means[0], axis=1).min())
    search = np.mean(errors.pop("search"))
    for name, others in errors.items():
        assert search < 0.6 * np.mean(others), name


def test_segments_of_an_image_are_found_from_a_pixel_each():
    """Section 4.2 of the paper: every pixel belongs to the nearest of the means that single pixels lead to."""
    rng = np.random.default_rng(3)
    truth = np.zeros((60, 60), int)
    truth[:, 30:] = 1
    truth[40:] = 2
    colours = rng.uniform(0, 10, (3, 3))
    image = colours[truth]
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="edge")
    shifted = [padded[a : a + 60, b : b + 60] for a in range(3) for b in range(3)]
    X = np.concatenate(shifted, axis=-1).reshape(-1, 27)
    X = X + rng.normal(size=X.shape)
    flat = truth.ravel()
    pixels = [rng.choice(np.flatnonzero(flat == i)) for i in range(3)]
    model = GaussianSearch(3).fit(X)
    means = np.stack([model.search(rows=X[[pixel]]).mean for pixel in pixels])
    segments = ((X[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    clusters = KMeans(3, init=X[pixels], n_init=1).fit_predict(X)
    by_search, by_clusters = (normalized_mutual_info_score(flat, own) for own in (segments, clusters))
    assert by_search > by_clusters - 0.02
    assert by_search > 0.9
    # Features at the edges are averages of neighbouring segments, and belong to either.
    assert (segments == flat).mean() > 0.97


def test_uninformative_side_information_is_refused_with_the_number_of_rows_needed():
    X = gaussian_population(8, 3).sample(3000, 0).X
    chance = np.random.default_rng(1).random(3000)
    model = GaussianSearch(3).fit(X, chance)
    with pytest.raises(
        NumericalError, match=r"prefers one by \S+, but the sampling error is .*about [\d,]+ rows"
    ):
        model.search(target=0)
    found = model.search(target=0, force=True)
    assert not found.informative
    assert found.n_rows_needed == pytest.approx(3000 * (found.noise / found.gap) ** 2)
    # Rounding errors of a constant say nothing about the number of rows.
    with pytest.raises(NumericalError, match=r"give other side information$"):
        GaussianSearch(3).fit(X, np.ones(3000)).search(target=0)


def test_a_constant_that_is_added_to_a_column_changes_only_preferences_and_noise():
    true = gaussian_population(6, 3, scale=4.0)
    rows = true.sample(3000, 0)
    plain, moved = (
        GaussianSearch(3).fit(rows.X, (rows.components == 1) + added).search(target=0, force=True)
        for added in (0.0, 100.0)
    )
    assert_allclose(moved.mean, plain.mean, atol=1e-8)
    assert_allclose(moved.preferences, plain.preferences + 100.0)
    assert moved.gap == pytest.approx(plain.gap)
    assert moved.noise > 10.0 * plain.noise


def test_side_information_keeps_the_name_of_its_column():
    rows = gaussian_population(6, 3, scale=4.0).sample(800, 0)
    X, labelled = rows.X, pd.Series(rows.components == 1, name="labelled")
    model = GaussianSearch(3).fit(X, labelled)
    assert model.vocabulary_[-1] == "labelled"
    assert_array_equal(model.search(target="labelled").mean, model.search(target=0).mean)


def test_the_noise_of_labelled_rows_is_that_of_repeated_draws():
    true = gaussian_population(8, 3, scale=1.0)
    means, variances = true.means, true.variances
    model = GaussianSearch(3).fit(true.sample(100_000, 0).X)
    rng = np.random.default_rng(1)
    draws = means[1] + np.sqrt(variances[1]) * rng.normal(size=(400, 10, 8))
    found = [model.search(rows=rows, force=True) for rows in draws]
    # The error of the fit, which repeated draws do not change, is small.
    assert model.search(rows=means[1:2]).noise < 0.2 * np.mean([each.noise for each in found])
    spread = np.std([each.gap for each in found])
    assert 0.7 < np.sqrt(np.mean([each.noise**2 for each in found])) / spread < 1.6
    with pytest.raises(NumericalError, match="give other side information, more labelled rows"):
        # One of each component.
        model.search(rows=means)


def test_the_plan_lists_the_passes_and_a_saved_model_is_the_same(tmp_path):
    for d, n_power_iter in ((12, 2), (120, 1)):
        rows = gaussian_population(d, 3).sample(600, 0)
        X, z = rows.X, rows.components
        corpus = RowCorpus(np.c_[X, z == 1], shard_rows=100)
        model = GaussianSearch(3, n_targets=1, n_power_iter=n_power_iter, n_oversamples=5)
        planned = [p.name for p in model.plan(corpus).passes]
        model.fit_corpus(corpus).save(tmp_path / f"m{d}")
        assert [timing["name"] for timing in model.timings_] == planned
        loaded = load_model(tmp_path / f"m{d}")
        assert loaded.n_features_in_ == model.n_features_in_ == d
        for given in ({"target": 0}, {"rows": X[z == 1][:5]}):
            ours, theirs = model.search(**given), loaded.search(**given)
            assert (ours.mean == theirs.mean).all()
            assert (ours.weight, ours.variance, ours.noise) == (theirs.weight, theirs.variance, theirs.noise)
        assert loaded.pictures() == model.pictures()
        assert json.loads(json.dumps(model.summary()))["n_targets"] == 1


def test_a_file_gives_the_bits_of_memory_and_other_shards_the_same_numbers(tmp_path):
    drawn = gaussian_population(12, 3).sample(1500, 0)
    rows = np.c_[drawn.X, drawn.components == 1]
    models = [
        GaussianSearch(3, n_targets=1).fit_corpus(corpus, **options)
        for corpus, options in (
            (RowCorpus(rows, shard_rows=200), {}),
            (RowCorpus(rows, shard_rows=200), {"memory_limit": 1 << 30}),
            (ingest_rows(rows, tmp_path / "c", shard_rows=200), {}),
            (RowCorpus(rows, shard_rows=640), {}),
        )
    ]
    found = [model.search(target=0) for model in models]
    for other in found[1:3]:
        assert (other.mean == found[0].mean).all()
        assert (other.weight, other.variance, other.noise) == (
            found[0].weight,
            found[0].variance,
            found[0].noise,
        )
    assert_allclose(found[3].mean, found[0].mean, rtol=1e-9)


def test_what_does_not_suit_is_refused():
    rows = gaussian_population(6, 3).sample(500, 0)
    X, z = rows.X, rows.components
    model = GaussianSearch(3).fit(X, z == 1)
    for given in ({}, {"along": X[0], "target": 0}):
        with pytest.raises(UsageError, match="specify one of along, rows and target"):
            model.search(**given)
    with pytest.raises(UsageError, match=r"target: expected a number below 1, or one of 'side\[0\]', got 1"):
        model.search(target=1)
    with pytest.raises(UsageError, match=r"target: expected a number below 1, or one of .*, got 0\.5"):
        model.search(target=0.5)
    with pytest.raises(UsageError, match="target: expected none without side information"):
        GaussianSearch(3).fit(X).search(target=0)
    with pytest.raises(
        InputError, match="rows: shape: expected rows of equal length, got lists of different"
    ):
        model.search(rows=(X[:5], z[:5]))
    with pytest.raises(UsageError, match="rows: expected 6 columns, got 7"):
        model.search(rows=np.ones((1, 7)))
    with pytest.raises(UsageError, match=r"along: expected 6 finite numbers, got <U3 of shape \(\)"):
        model.search(along="abc")
    with pytest.raises(UsageError, match=r"along: expected 6 finite numbers, got float64 of shape \(2,\)"):
        model.search([1.0, 2.0])
    with pytest.raises(UsageError, match="n_components: expected at most 6, the number of features, got 7"):
        GaussianSearch(7).fit(X, z)
    with pytest.raises(UsageError, match="n_targets: expected 1 as side information has columns, got 2"):
        GaussianSearch(3, n_targets=2).fit(X, z)
    with pytest.raises(UsageError, match="n_targets: expected fewer than 6, as a row has 6 columns, got 6"):
        GaussianSearch(3, n_targets=6).fit_corpus(RowCorpus(X))
    with pytest.raises(InputError, match="y: expected 500 rows as X has, got 499"):
        GaussianSearch(3).fit(X, z[1:])
    with pytest.raises(InputError, match="NaN"):
        GaussianSearch(3).fit(np.where(X > 5.0, np.nan, X))
    with pytest.raises(NumericalError, match="are in one of two random halves of the units"):
        GaussianSearch(3).fit_corpus(RowCorpus(X, [500]))
    X = GaussianPopulation(np.eye(3, 8) * 5.0, np.full(3, 1 / 3), 1.0).sample(2000, 0).X
    with pytest.raises(NumericalError, match="fewer than 5 components"):
        GaussianSearch(5).fit(X)


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[2] / "docs" / "search.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    names = {}
    exec(code, names)
    assert np.abs(names["found"].mean - names["centers"][2]).max() < 0.3
