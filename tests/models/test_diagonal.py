"""Mixtures of axis-aligned Gaussians: exact populations, samples, EM against scikit-learn, and refusals."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from diagonals import SKETCH, TOGETHER, WHOLE, few_of_many_columns, names_of, parameters, population, sample
from helpers import matched
from numpy.testing import assert_allclose
from scipy.linalg import hadamard
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from distmom.corpus import RowCorpus
from distmom.errors import NumericalError
from distmom.models.diagonal.estimator import MOST_WHOLE, DiagonalMixture
from distmom.models.diagonal.recovery import score_coefficients
from distmom.models.gaussian.estimator import SphericalMixture
from distmom.spectral.steps.three_views import random_views

# Moments


@pytest.mark.parametrize(
    ("d", "k", "options", "names"),
    [
        (13, 3, {}, WHOLE),
        (12, 5, {"decomposition": "power"}, WHOLE),
        (MOST_WHOLE, 8, {"n_partitions": 1}, WHOLE),
        (2, 1, {}, WHOLE),
        (1, 1, {}, WHOLE),
        (MOST_WHOLE + 1, 8, {}, SKETCH),
        (100, 5, {"decomposition": "power", "random_state": 3}, SKETCH),
        (100, 3, {"n_oversamples": 0, "n_power_iter": 1}, SKETCH[:3] + SKETCH[4:]),
        (70, 1, {}, SKETCH),
    ],
)
def test_an_exact_population_gives_back_the_parameters(d, k, options, names):
    means, variances, weights = parameters(d, k)
    # Columns differ in their units by eight orders of magnitude, and are far from zero in these.
    rng = np.random.default_rng(1)
    scales = 10.0 ** rng.uniform(-4.0, 4.0, d)
    origins = 100.0 * rng.normal(size=d)
    corpus = population((means + origins) * scales, variances * scales**2, weights, shard_rows=50)
    model = DiagonalMixture(k, n_em_iter=0, **options).fit_corpus(corpus)
    assert names_of(model) == names
    found = model.means_ / scales - origins
    order = matched(found, means)[1]
    assert_allclose(found, means[order], atol=1e-10)
    assert_allclose(model.variances_ / scales**2, variances[order], rtol=1e-10)
    assert_allclose(model.weights_, weights[order], rtol=1e-10)
    assert_allclose(model.center_ / scales - origins, weights @ means, atol=1e-10)
    pooled = weights @ (variances + means**2) - (weights @ means) ** 2
    assert_allclose(model.scales_ / scales, np.sqrt(pooled), rtol=1e-10)
    if k > 1:
        assert model.diagnostics_["asymmetry"] < 1e-10
        assert model.diagnostics_["residual"] < 1e-10
        assert model.diagnostics_["sum_weights"] == pytest.approx(1.0, abs=1e-10)
        # The largest leverage of a column of the centred means, by the definition.
        centred = (means - weights @ means) / np.sqrt(pooled)
        left = np.linalg.svd(centred.T, full_matrices=False)[0][:, : k - 1]
        assert model.diagnostics_["coherence"] == pytest.approx((left**2).sum(axis=1).max())


@pytest.mark.parametrize("d", [16, 80])
def test_columns_farther_from_zero_than_their_variance_can_be_subtracted_are_fitted(d):
    means, variances, weights = parameters(d, 3)
    # Squares of such values differ by less than their rounding.
    X = population(means, variances, weights)
    far = population(means + 1e8, variances, weights)
    near, moved = (DiagonalMixture(3, n_em_iter=0).fit_corpus(corpus) for corpus in (X, far))
    assert matched(moved.means_ - 1e8, means)[0] < 1e-6
    assert_allclose(moved.variances_, near.variances_, rtol=1e-5)
    assert_allclose(moved.scales_, near.scales_, rtol=1e-6)


@pytest.mark.parametrize("d", [15, 90])
def test_errors_fall_with_the_root_of_the_number_of_rows(d):
    true = parameters(d, 3, scale=0.8 if d < 64 else 0.5)
    errors = []
    for n in (2_000, 32_000):
        found = [DiagonalMixture(3, n_em_iter=0).fit(sample(*true, n, seed)[0]) for seed in range(6)]
        orders = [matched(model.means_, true[0])[1] for model in found]
        pairs = list(zip(found, orders, strict=True))
        errors.append(
            [
                np.mean([np.abs(model.means_ - true[0][order]).mean() for model, order in pairs]),
                np.mean([np.abs(model.variances_ - true[1][order]).mean() for model, order in pairs]),
                np.mean([np.abs(model.weights_ - true[2][order]).mean() for model, order in pairs]),
            ]
        )
    # A sixteenth of the variance is a quarter of the error.
    ratios = np.divide(*errors)
    assert (ratios > 2.5).all()
    assert (ratios < 6.5).all()


@pytest.mark.parametrize("d", [15, 90])
@pytest.mark.parametrize("n_em_iter", [0, 2])
def test_the_units_and_origins_of_columns_do_not_matter(d, n_em_iter):
    X, _ = sample(*parameters(d, 3), 2000, 0)
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.uniform(-100, 100, d)
    shifts = 1e3 * rng.normal(size=d)
    plain = DiagonalMixture(3, n_em_iter=n_em_iter).fit(X)
    moved = DiagonalMixture(3, n_em_iter=n_em_iter).fit((X + shifts) * scales)
    assert_allclose(moved.means_ / scales - shifts, plain.means_, atol=1e-8)
    assert_allclose(moved.variances_ / scales**2, plain.variances_, rtol=1e-8)
    assert_allclose(moved.predict_proba((X + shifts) * scales), plain.predict_proba(X), atol=1e-7)
    density = plain.score_samples(X) - np.log(scales).sum()
    assert_allclose(moved.score_samples((X + shifts) * scales), density, rtol=1e-9)


def errors_of_partitions(d, k, n_rows, n_partitions, seeds, scale=1.0):
    """Return the mean error of the means for every seed, NaN where the fit is refused."""
    errors = []
    for seed in range(seeds):
        true = parameters(d, k, seed, scale)
        model = DiagonalMixture(k, n_partitions=n_partitions, n_em_iter=0, random_state=seed)
        try:
            found = model.fit(sample(*true, n_rows, seed)[0]).means_
        except NumericalError:
            errors.append(np.nan)
        else:
            errors.append(np.abs(found - true[0][matched(found, true[0])[1]]).mean())
    return np.array(errors)


def test_the_best_of_several_partitions_is_better_than_a_single_one():
    one, many = (errors_of_partitions(12, 4, 3000, n, 20) for n in (1, 20))
    assert not np.isnan(many).any()
    assert many.max() < 0.2
    assert np.nanmax(one) > 0.3
    both = ~np.isnan(one)
    assert many[both].mean() < 0.85 * one[both].mean()


def test_partitions_that_are_refused_are_replaced_by_others_without_a_further_pass():
    # A hundred rows are few for four components: most partitions have moments of fewer.
    one, many = (errors_of_partitions(12, 4, 100, n, 12, 0.8) for n in (1, 20))
    assert np.isnan(one).sum() >= 8
    assert np.isnan(many).sum() <= 2
    true = parameters(12, 4, 0, scale=0.8)
    model = DiagonalMixture(4).fit(sample(*true, 100, 0)[0])
    assert model.diagnostics_["n_refused_partitions"] > 0
    assert names_of(model) == [*WHOLE, *["em"] * 10]


def test_scores_distinguish_components_and_are_the_shortest_that_do():
    means, _, weights = parameters(9, 4)
    A = (means - weights @ means).T
    C = score_coefficients(A, weights)
    assert_allclose(weights[:, None] + C.T @ A, np.eye(4), atol=1e-12)
    # Other solutions differ by columns that are orthogonal to the means, and C has no such part.
    outside = np.linalg.svd(A)[0][:, 3:]
    assert_allclose(outside.T @ C, 0.0, atol=1e-12)


# Proposition 3.2


def coherence(A):
    return float((np.linalg.qr(A)[0] ** 2).sum(axis=1).max())


def least_of_thirds(A, views):
    return min(np.linalg.svd(A[views == t], compute_uv=False)[-1] for t in range(3))


def incoherent_matrices():
    """Return matrices of full rank whose coherence is close to the least possible, k / n."""
    rng = np.random.default_rng(0)
    yield hadamard(512)[:, 1:5] @ rng.normal(size=(4, 4))
    yield rng.uniform(0.9, 1.1, (900, 1)) * rng.choice((-1.0, 1.0), (900, 3)) + 0.1
    yield rng.normal(size=(1500, 2))


@pytest.mark.parametrize("number", range(3))
def test_thirds_of_an_incoherent_matrix_keep_the_singular_values_of_proposition_3_2(number):
    A = list(incoherent_matrices())[number]
    k, epsilon = A.shape[1], 0.7
    # The least delta for which the proposition holds: coherence <= (epsilon^2 / 6) / ln(3 k / delta).
    delta = 3 * k * np.exp(-(epsilon**2) / (6.0 * coherence(A)))
    assert delta < 0.5, "the matrix has to satisfy the condition"
    bound = np.sqrt((1.0 - epsilon) / 3.0) * np.linalg.svd(A, compute_uv=False)[-1]
    partitions = random_views(len(A), 400, 0)
    kept = np.mean([least_of_thirds(A, views) >= bound for views in partitions])
    assert kept >= 1.0 - delta
    # In the same partitions no third has a larger share than a third of all columns, up to the same epsilon.
    upper = np.sqrt((1.0 + epsilon) / 3.0) * np.linalg.svd(A, compute_uv=False)[0]
    largest = [max(np.linalg.norm(A[v == t], 2) for t in range(3)) for v in partitions]
    assert np.mean(np.array(largest) <= upper) >= 1.0 - delta


def test_thirds_of_a_coherent_matrix_lose_its_rank():
    rng = np.random.default_rng(0)
    # The k-th column depends on a few rows alone: it is lost unless every third has one of them.
    for n_rows, expected in ((1, 0.0), (2, 0.0), (4, 4.0 / 9.0), (30, 1.0)):
        A = np.column_stack([rng.normal(size=(600, 2)), np.zeros(600)])
        A[:n_rows, 2] = 10.0
        found = [least_of_thirds(A, views) > 1e-6 for views in random_views(600, 400, 1)]
        assert np.mean(found) == pytest.approx(expected, abs=0.1)
        assert coherence(A) == pytest.approx(1.0 / n_rows, abs=0.02)


def test_coherence_decides_whether_thirds_of_the_columns_tell_components_apart():
    means, variances, weights = parameters(100, 3)
    spread = DiagonalMixture(3, n_em_iter=0).fit_corpus(population(means, variances, weights))
    assert spread.diagnostics_["coherence"] < 0.3
    # Two components that differ in a single column, which two of the thirds do not have.
    means[1] = means[0]
    means[1, 7] += 5.0
    for d in (100, 30):
        corpus = population(means[:, :d], variances[:, :d], weights)
        with pytest.raises(NumericalError, match=r"3 components need rank 2|none of 20 random partitions"):
            DiagonalMixture(3, n_em_iter=0).fit_corpus(corpus)
    means[1, :20] += 2.0
    again = DiagonalMixture(3, n_em_iter=0).fit_corpus(population(means, variances, weights))
    assert matched(again.means_, means)[0] < 1e-10


# EM


def brute_force(X, means, variances, weights):
    """Return the logarithms of the joint probabilities of rows and components."""
    logs = norm.logpdf(X[:, None, :], means, np.sqrt(variances)).sum(axis=2)
    return logs + np.log(weights)


def iterated(X, weights, means, variances, n_iter):
    """Return a mixture after one or several iterations of scikit-learn's EM from given parameters."""
    peer = GaussianMixture(
        len(weights), covariance_type="diag", means_init=means, weights_init=weights,
        precisions_init=1.0 / variances, max_iter=n_iter, reg_covar=0.0, tol=0.0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return peer.fit(X)


def em_of_scikit_learn(X, weights, means, variances, n_iter):
    """Return a mixture after EM with averaged variances in the first half, and the likelihood that is compared."""
    n_first = n_iter // 2 + 1
    for _ in range(n_first):
        variances = 0.5 * variances + 0.5 * weights @ variances
        compared = np.mean(logsumexp(brute_force(X, means, variances, weights), axis=1))
        peer = iterated(X, weights, means, variances, 1)
        weights, means, variances = peer.weights_, peer.means_, peer.covariances_
    if n_iter > n_first:
        peer = iterated(X, weights, means, variances, n_iter - n_first)
    return peer, compared


def start_together(X, k):
    """Return the start of EM by all columns together: that of spherical Gaussians in the units of the columns."""
    center, scales = X.mean(axis=0), X.std(axis=0)
    rows = SphericalMixture(k, n_em_iter=0).fit((X - center) / scales)
    within = 1.0 - rows.weights_ @ rows.means_**2
    return rows.weights_, center + scales * rows.means_, np.tile(scales**2 * within, (k, 1))


def starts_of(X, k):
    """Return the starts of EM by thirds of the columns, and by all of them."""
    thirds = DiagonalMixture(k, n_em_iter=0).fit_corpus(RowCorpus(X, shard_rows=200))
    return {"thirds": (thirds.weights_, thirds.means_, thirds.variances_), "rows": start_together(X, k)}


@pytest.mark.parametrize("n_em_iter", [1, 2, 5])
@pytest.mark.parametrize(
    ("d", "n_rows", "scale", "seed", "start"),
    [(12, 1500, 0.4, 0, "rows"), (12, 1500, 0.6, 0, "thirds"), (80, 1500, 0.4, 0, "thirds")],
)
def test_em_passes_are_iterations_of_scikit_learn_from_the_likelier_start(
    d, n_rows, scale, seed, start, n_em_iter
):
    X, _ = sample(*parameters(d, 3, scale=scale), n_rows, seed)
    found = {name: em_of_scikit_learn(X, *of, n_em_iter) for name, of in starts_of(X, 3).items()}
    best = max(found, key=lambda name: found[name][1])
    peer = found[best][0]
    model = DiagonalMixture(3, n_em_iter=n_em_iter).fit_corpus(RowCorpus(X, shard_rows=200))
    assert model.diagnostics_["start"] == best == start
    order = np.argsort(-peer.weights_)
    assert_allclose(model.weights_, peer.weights_[order], atol=1e-8)
    assert_allclose(model.means_, peer.means_[order], atol=1e-8)
    assert_allclose(model.variances_, peer.covariances_[order], atol=1e-8)
    assert_allclose(model.score_samples(X), peer.score_samples(X), atol=1e-8)
    assert_allclose(model.predict_proba(X), peer.predict_proba(X)[:, order], atol=1e-8)
    assert len(model.diagnostics_["log_likelihoods"]) == n_em_iter
    assert model.bic(X) == pytest.approx(peer.bic(X))
    assert model.aic(X) == pytest.approx(peer.aic(X))


def test_few_rows_and_few_columns_are_fitted_with_all_columns_together():
    # Thirds of these rows are refused or poor; with all columns the groups are found as with the true parameters.
    shares = []
    for seed in range(6):
        true = parameters(15, 5, seed, scale=0.9)
        X, h = sample(*true, 200, seed)
        model = DiagonalMixture(5).fit(X)
        order = matched(model.means_, true[0])[1]
        best = (brute_force(X, *true).argmax(axis=1) == h).mean()
        shares.append([(order[model.predict(X)] == h).mean() / best, model.diagnostics_["start"] == "rows"])
    ratios, together = np.transpose(shares)
    assert ratios.mean() > 0.95
    assert together.sum() >= 3
    true = parameters(4, 3, 1, scale=2.0)
    X, h = sample(*true, 2000, 0)
    model = DiagonalMixture(3).fit(X)
    best = (brute_force(X, *true).argmax(axis=1) == h).mean()
    assert (matched(model.means_, true[0])[1][model.predict(X)] == h).mean() > best - 0.01


@pytest.mark.parametrize("few_rows", [0, 100_000])
def test_many_columns_together_start_em_of_few_rows_or_where_a_partition_does_not_suffice(
    monkeypatch, few_rows
):
    X, h = few_of_many_columns(250, 0)
    with pytest.raises(NumericalError, match=r"random_state changes$"):
        DiagonalMixture(8, n_em_iter=0).fit(X)
    monkeypatch.setattr("distmom.models.diagonal.estimator.FEW_ROWS", few_rows)
    model = DiagonalMixture(8, n_em_iter=1, n_oversamples=64).fit_corpus(RowCorpus(X, shard_rows=60))
    assert names_of(model) == [*SKETCH, *TOGETHER, "em"]
    assert model.diagnostics_["start"] == "rows"
    own, scales = X[:, :72], X[:, :72].std(axis=0)
    peer = em_of_scikit_learn(own, *start_together(own, 8), 1)[0]
    order = np.argsort(-peer.weights_)
    assert_allclose(model.weights_, peer.weights_[order], atol=1e-6)
    assert_allclose(model.means_[:, :72] / scales, peer.means_[order] / scales, atol=1e-6)
    assert_allclose(model.variances_[:, :72] / scales**2, peer.covariances_[order] / scales**2, atol=1e-5)
    assert_allclose(model.means_[:, 72], 7.0)
    assert model.scales_[72] == pytest.approx(7.0)
    # Another seed, with which thirds suffice.
    X, h = few_of_many_columns(250, 1)
    model = DiagonalMixture(8).fit(X)
    assert names_of(model) == [*SKETCH, *(TOGETHER if few_rows else []), *["em"] * 10]
    assert model.diagnostics_["start"] == ("rows" if few_rows else "thirds")
    found = adjusted_rand_score(h, model.predict(X))
    assert found > 0.95 if few_rows else found < 0.9


def test_em_passes_raise_the_likelihood_and_lower_the_errors():
    true = parameters(20, 4, scale=0.7)
    X, _ = sample(*true, 5000, 1)
    before, after = (DiagonalMixture(4, n_em_iter=n).fit(X) for n in (0, 10))
    likelihoods = after.diagnostics_["log_likelihoods"]
    assert all(b > a for a, b in pairwise(likelihoods))
    assert after.score(X) > likelihoods[-1]
    for name, values in (("means_", true[0]), ("variances_", true[1])):
        errors = [
            np.abs(getattr(model, name) - values[matched(model.means_, true[0])[1]]).mean()
            for model in (before, after)
        ]
        assert errors[1] < 0.9 * errors[0]


def test_rows_are_read_by_the_rule_of_bayes():
    X, _ = sample(*parameters(14, 3), 3000, 0)
    model = DiagonalMixture(3).fit(X)
    logs = brute_force(X, model.means_, model.variances_, model.weights_)
    density = logsumexp(logs, axis=1)
    assert_allclose(model.score_samples(X), density, atol=1e-9)
    assert_allclose(model.predict_proba(X), np.exp(logs - density[:, None]), atol=1e-9)
    assert (model.predict(X) == logs.argmax(axis=1)).all()
    assert model.score(X) == pytest.approx(density.mean())
    # A row that is far from all means has probabilities too, even if its squares overflow.
    assert_allclose(model.predict_proba(np.full((1, 14), 1e6)).sum(), 1.0)
    assert_allclose(model.predict_proba(np.full((1, 14), 1e300)), 1.0 / 3.0)
    assert np.isneginf(model.score(np.full((1, 14), -1e300)))


def test_components_that_differ_in_few_columns_of_other_variances_are_found():
    # Means that differ give the components; variances that differ distinguish them further.
    means, variances, weights = parameters(30, 3, scale=0.35)
    X, h = sample(means, variances, weights, 20_000, 0)
    model = DiagonalMixture(3).fit(X)
    order = matched(model.means_, means)[1]
    found = (order[model.predict(X)] == h).mean()
    best = (brute_force(X, means, variances, weights).argmax(axis=1) == h).mean()
    assert found > best - 0.005


# Columns and rows of all kinds


@pytest.mark.parametrize("d", [15, 90])
def test_constant_columns_and_columns_without_noise_are_fitted(d):
    X, h = sample(*parameters(d, 3), 3000, 1)
    X = np.column_stack([X, np.full(3000, 7e5), np.zeros(3000), h == 1, np.full(3000, 0.1)])
    for n_em_iter in (0, 3):
        model = DiagonalMixture(3, n_em_iter=n_em_iter).fit(X)
        order = matched(model.means_[:, :d], parameters(d, 3)[0])[1]
        assert (order[model.predict(X)] == h).mean() > 0.98
        assert_allclose(model.means_[:, [d, d + 1, d + 3]], np.tile([7e5, 0.0, 0.1], (3, 1)), rtol=1e-12)
        assert_allclose(model.scales_[[d, d + 1, d + 3]], [7e5, 1.0, 0.1], rtol=1e-12)
        assert_allclose(model.variances_[:, d + 1], 1e-6)
        assert (model.variances_ > 0.0).all()
        assert np.isfinite(model.score_samples(X)).all()
        if n_em_iter:
            assert_allclose(model.means_[:, d + 2], order == 1, atol=1e-6)


def test_rows_without_noise_are_told_apart():
    means = np.random.default_rng(0).normal(size=(3, 9))
    rows = np.repeat(means, [50, 30, 20], axis=0)
    model = DiagonalMixture(3).fit(rows)
    assert_allclose(model.means_, means, atol=1e-8)
    assert_allclose(model.weights_, [0.5, 0.3, 0.2], atol=1e-9)
    assert (model.predict(rows) == np.repeat([0, 1, 2], [50, 30, 20])).all()
    assert_allclose(model.variances_, np.tile(1e-6 * rows.var(axis=0), (3, 1)), rtol=1e-6)
    single = DiagonalMixture(1).fit(rows)
    assert_allclose(single.means_, rows.mean(axis=0, keepdims=True))
    assert_allclose(single.variances_, rows.var(axis=0, keepdims=True))


def test_single_precision_rows_and_integers_give_nearly_the_same_model():
    X, _ = sample(*parameters(15, 3), 2000, 0)
    double, single = DiagonalMixture(3).fit(X), DiagonalMixture(3).fit(X.astype(np.float32))
    assert single.means_.dtype == np.float64
    assert_allclose(single.means_, double.means_, atol=1e-5)
    counts = np.round(10 * X).astype(int)
    whole, real = DiagonalMixture(3).fit(counts), DiagonalMixture(3).fit(counts.astype(float))
    assert (whole.means_ == real.means_).all()


def test_drawn_rows_are_of_the_mixture():
    model = DiagonalMixture(3, n_em_iter=0).fit_corpus(population(*parameters(12, 3)))
    X, components = model.sample(30_000, random_state=1)
    for h in range(3):
        own = X[components == h]
        assert_allclose(own.mean(axis=0), model.means_[h], atol=0.1)
        assert_allclose(own.var(axis=0), model.variances_[h], rtol=0.1)
    assert_allclose(np.bincount(components) / 30_000, model.weights_, atol=0.02)
