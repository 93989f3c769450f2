"""Excess correlation analysis: exact populations by every order, and errors of samples."""

import logging

import numpy as np
import pytest
from helpers import WeightedViews, matched
from numpy.testing import assert_allclose
from scipy.sparse import csr_array

from distmom.errors import NumericalError
from distmom.models import ECA
from distmom.moments.small import SmallMoments
from distmom.simulate.views import (
    DirichletPopulation,
    FactorPopulation,
    Law,
    bernoulli,
    gaussian_binary,
    poisson_sentences,
)
from distmom.spectral.steps.views import whiten_views

D = 6
RNG = np.random.default_rng(1)
O = RNG.normal(size=(D, 3))  # noqa: E741
NOISE = np.stack([RNG.normal(size=D), np.zeros(D)])
NOISE[1] = -NOISE[0]
#: no excess kurtosis
Q4 = (3 - 3**0.5) / 6


def population(*laws):
    return FactorPopulation([law if isinstance(law, Law) else bernoulli(law) for law in laws], O, NOISE)


def fit_exactly(of, n_views=4, **options):
    corpus = WeightedViews(of.enumerate(n_views), shard_rows=60)
    assert len(corpus.shards) > 1
    return ECA(3, **options).fit_corpus(corpus)


@pytest.mark.parametrize("decomposition", ["joint", "single"])
@pytest.mark.parametrize(
    "laws",
    [
        (0.2, 0.7, 0.4),
        (0.9, 0.8, 0.7),
        (0.5, 0.3, 0.6),
        (Law((-1.0, 0.0, 4.0), (0.3, 0.5, 0.2)), 0.6, Law((0.0, 1.0, 1.5), (0.1, 0.1, 0.8))),
    ],
)
def test_skewed_factors_of_an_exact_population_come_back(laws, decomposition):
    """Algorithm 1, through the production passes: skewness of either sign, and one factor without any."""
    true = population(*laws)
    model = fit_exactly(true, decomposition=decomposition)
    error, of = matched(model.components_, true.components, signed=False)
    assert error < 1e-9
    assert_allclose(model.skewness_, np.abs(true.skewness[of]), atol=1e-9)
    assert_allclose(model.mean_, true.mean, atol=1e-12)
    skewed = np.abs(true.skewness[of]) > 1e-6
    signs = np.sign(np.sum(model.components_ * true.components[of], axis=1))
    assert np.array_equal(signs[skewed], np.sign(true.skewness[of])[skewed])
    assert np.isnan(model.kurtosis_).all()
    assert model.diagnostics_["noise_level"] < 1e-9


@pytest.mark.parametrize("decomposition", ["joint", "single"])
def test_two_factors_without_skewness_need_the_fourth_order(decomposition, caplog):
    true = population(0.5, 0.5, 0.2)
    with caplog.at_level(logging.WARNING):
        model = fit_exactly(true, decomposition=decomposition)
    assert "2 of 3 factors are left out" in caplog.text
    assert model.components_.shape == (1, D)
    assert matched(model.components_, true.components)[1].tolist() == [2]
    assert matched(model.components_, true.components)[0] < 1e-9
    assert model.diagnostics_["n_rejected"] == 2
    model = fit_exactly(true, orders="4", decomposition=decomposition)
    error, of = matched(model.components_, true.components, signed=False)
    assert error < 1e-9
    assert_allclose(model.kurtosis_, true.kurtosis[of], atol=1e-9)
    assert_allclose(model.skewness_, np.abs(true.skewness[of]), atol=1e-9)


@pytest.mark.parametrize("decomposition", ["joint", "single"])
def test_both_orders_complete_each_other_without_duplicates(decomposition, caplog):
    """Remark 4: two factors without skewness, two without kurtosis, one of them without either order's help."""
    true = population(0.5, Q4, 1 - Q4)
    model = fit_exactly(true, orders="4", decomposition=decomposition)
    assert len(model.components_) == 1
    model = fit_exactly(true, orders="both", decomposition=decomposition)
    error, of = matched(model.components_, true.components, signed=False)
    assert model.components_.shape == (3, D)
    assert error < 1e-9
    assert sorted(of.tolist()) == [0, 1, 2]


def test_views_far_from_zero_cost_no_digits():
    true = population(0.2, 0.7, 0.4)
    views = true.enumerate(3)
    views.X[...] += 1e5
    model = ECA(3).fit_corpus(WeightedViews(views, shard_rows=60))
    assert matched(model.components_, true.components, signed=False)[0] < 1e-7


def test_more_views_of_a_group_give_the_same_population():
    true = population(0.2, 0.7, 0.4)
    for n_views in (3, 5):
        model = fit_exactly(true, n_views)
        assert matched(model.components_, true.components, signed=False)[0] < 1e-9


@pytest.mark.parametrize("orders", ["3", "both"])
@pytest.mark.parametrize("alpha0", [0.01, 1.0, 50.0])
def test_real_valued_columns_of_a_dirichlet_law_come_back(alpha0, orders):
    """Remark 8: columns with scale and sign, and the parameters by all four recoveries."""
    alpha = np.array([0.2, 0.3, 0.5]) * alpha0
    model = fit_exactly(DirichletPopulation(alpha, O, NOISE), orders=orders, prior="dirichlet", alpha0=alpha0)
    error, of = matched(model.components_, O.T)
    assert error < 1e-9
    assert_allclose(model.alpha_, alpha[of], rtol=1e-9)
    for shares in model.diagnostics_["proportions"].values():
        assert_allclose(shares, alpha[of] / alpha0, rtol=1e-9)
    assert model.diagnostics_["proportions_disagreement"] < 1e-9
    gamma = 2 * np.sqrt(alpha0 * (alpha0 + 1) / ((alpha0 + 2) ** 2 * alpha[of]))
    assert_allclose(model.skewness_, gamma, rtol=1e-9)
    if orders == "both":
        kappa = 6 * alpha0 * (alpha0 + 1) / ((alpha0 + 2) * (alpha0 + 3) * alpha[of])
        assert_allclose(model.kurtosis_, kappa, rtol=1e-7)


@pytest.mark.parametrize("alpha0", [0.3, 1.0, 8.0])
def test_an_unknown_alpha0_of_an_exact_population_is_found(alpha0):
    alpha = np.array([0.2, 0.3, 0.5]) * alpha0
    model = fit_exactly(DirichletPopulation(alpha, O, NOISE), orders="both", prior="dirichlet", alpha0="auto")
    # The least residual is zero, where its decimals end.
    assert model.diagnostics_["alpha0"] == pytest.approx(alpha0, rel=1e-6)
    error, of = matched(model.components_, O.T)
    assert error < 1e-6
    assert_allclose(model.alpha_, alpha[of], rtol=1e-6)


@pytest.mark.slow
def test_an_unknown_alpha0_is_nearer_with_more_documents():
    noise = np.vstack([np.eye(15), -np.eye(15)])

    def error(n, seed):
        columns = 3.0 * np.random.default_rng(seed).gamma(0.3, size=(15, 3))
        views = DirichletPopulation([0.6, 0.4, 0.2], columns, noise).sample(n, 5, seed)
        model = ECA(3, prior="dirichlet", alpha0="auto").fit(views.X, groups=views.groups)
        return abs(np.log(model.diagnostics_["alpha0"] / 1.2))

    few, many = (np.median([error(n, seed) for seed in range(5)]) for n in (8000, 128_000))
    assert many < 0.4 * few
    assert few < 0.2


def test_an_alpha0_that_the_moments_do_not_determine_is_reported(caplog):
    """Groups of one column each, the limit of alpha0 = 0."""
    population = DirichletPopulation(np.array([0.2, 0.3, 0.5]) * 1e-12, O, NOISE)
    model = fit_exactly(population, prior="dirichlet", alpha0="auto")
    assert model.diagnostics_["alpha0"] < 0.011
    assert "at the end of the range that is searched" in caplog.text


def test_a_wrong_alpha0_shows_in_the_recoveries():
    alpha = np.array([0.2, 0.3, 0.5])
    model = fit_exactly(DirichletPopulation(alpha, O, NOISE), prior="dirichlet", alpha0=3.0)
    assert model.diagnostics_["proportions_disagreement"] > 0.01
    assert model.diagnostics_["off_diagonal_share"] > 1e-4


def test_one_factor_a_group_is_the_limit_of_alpha0_zero():
    """A group of one column each: probabilities of columns in place of parameters, which vanish."""
    weights, tiny = np.array([0.2, 0.3, 0.5]), 1e-12
    model = fit_exactly(
        DirichletPopulation(weights * tiny, O, NOISE), orders="both", prior="dirichlet", alpha0=0.0
    )
    error, of = matched(model.components_, O.T)
    assert error < 1e-9
    assert_allclose(model.proportions_, weights[of], rtol=1e-9)
    assert model.alpha_.tolist() == [0.0, 0.0, 0.0]


def test_least_squares_factors_of_groups():
    true = population(0.2, 0.7, 0.4)
    model = fit_exactly(true)
    h = np.array([[0.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    exact = np.repeat(h @ O.T, 2, axis=0)
    found = model.transform(exact, ["b", "b", "a", "a"])
    _, of = matched(model.components_, true.components, signed=False)
    signs = np.sign(np.sum(model.components_ * true.components[of], axis=1))
    q = np.array([0.2, 0.7, 0.4])
    assert_allclose(found, signs * ((h - q) / np.sqrt(q * (1 - q)))[:, of], atol=1e-9)
    # A view and the one that noise of the other sign makes of it.
    noisy = exact + np.tile(NOISE, (2, 1))
    assert_allclose(model.transform(csr_array(noisy[[0, 2, 1, 3]]), [1, 2, 1, 2]), found, atol=1e-9)
    shares = fit_exactly(DirichletPopulation([0.3, 0.3, 0.6], O, NOISE), prior="dirichlet", alpha0=1.2)
    _, of = matched(shares.components_, O.T)
    assert_allclose(shares.transform(O.T, [0, 1, 2])[:, of.argsort()], np.eye(3), atol=1e-9)


def slope(error_of, sizes):
    """Return the slope of the logarithm of the median error of five seeds, and the errors."""
    errors = [np.median([error_of(n, seed) for seed in range(5)]) for n in sizes]
    return np.polyfit(np.log(sizes), np.log(errors), 1)[0], errors


def poisson_error(n, seed, **options):
    columns = 3.0 * np.random.default_rng(seed).gamma(0.5, size=(15, 3))
    shapes = [1.0, 0.5, 2.0]
    views = poisson_sentences(columns, shapes, n, 5, seed)
    model = ECA(3, random_state=seed, **options).fit(views.X, groups=views.groups)
    assert len(model.components_) == 3
    return matched(model.components_, (columns * np.sqrt(shapes)).T)[0]


def binary_error(n, seed, **options):
    columns = np.random.default_rng(seed).normal(size=(15, 3))
    views = gaussian_binary(columns, [0.5] * 3, n, 6, noise=0.5, seed=seed)
    model = ECA(3, orders="4", random_state=seed, **options).fit(views.X, groups=views.groups)
    assert len(model.components_) == 3
    return matched(model.components_, columns.T / 2, signed=False)[0]


@pytest.mark.slow
def test_errors_of_poisson_sentences_fall_as_the_root_of_groups():
    """Near those of an independent implementation: 0.057 for 2,000 and, by the root, 0.0085 for 64,000 groups."""
    exponent, errors = slope(poisson_error, [2_000, 12_000, 64_000])
    assert -0.7 < exponent < -0.35
    assert errors[0] < 2.5 * 0.057
    assert errors[-1] < 2.5 * 0.0085


@pytest.mark.slow
def test_errors_of_symmetric_binary_factors_fall_as_the_root_of_groups():
    """Likewise 0.021 for 4,000 and, by the root, 0.0062 for 64,000 groups, from the fourth order alone."""
    exponent, errors = slope(binary_error, [4_000, 16_000, 64_000])
    assert -0.7 < exponent < -0.35
    assert errors[0] < 2.5 * 0.021
    assert errors[-1] < 2.5 * 0.0062


@pytest.mark.slow
def test_skewed_binary_factors_with_gaussian_noise_are_found_by_order_three():
    def error_of(n, seed):
        columns = np.random.default_rng(seed).normal(size=(15, 3))
        views = gaussian_binary(columns, [0.1, 0.8, 0.25], n, 4, noise=0.5, seed=seed)
        model = ECA(3, random_state=seed).fit(views.X, groups=views.groups)
        return matched(model.components_, columns.T * [[0.3], [-0.4], [np.sqrt(0.1875)]])[0]

    exponent, errors = slope(error_of, [2_000, 16_000, 64_000])
    assert -0.7 < exponent < -0.35
    assert errors[-1] < 0.02


@pytest.mark.slow
def test_joint_diagonalisation_is_better_than_single_directions():
    """Over twelve samples; the noise of each single direction is its own."""
    joint, single = (
        [poisson_error(8_000, seed, decomposition=name) for seed in range(12)] for name in ("joint", "single")
    )
    assert np.mean(joint) < np.mean(single)


@pytest.mark.slow
def test_a_sampled_dirichlet_law_comes_back():
    alpha = np.array([0.3, 0.5, 0.4])
    columns = np.random.default_rng(0).normal(size=(12, 3))
    noise = 0.5 * np.random.default_rng(1).normal(size=(5, 12))
    true = DirichletPopulation(alpha, columns, np.concatenate([noise, -noise]))

    def error_of(n, seed):
        views = true.sample(n, 5, seed)
        model = ECA(3, prior="dirichlet", alpha0=1.2).fit(views.X, groups=views.groups)
        error, of = matched(model.components_, columns.T)
        assert_allclose(model.alpha_, alpha[of], atol=20 / np.sqrt(n))
        return error

    exponent, errors = slope(error_of, [2_000, 16_000, 64_000])
    assert -0.7 < exponent < -0.35
    assert errors[-1] < 0.03


@pytest.mark.slow
def test_columns_that_sampling_makes_up_are_seldom_returned():
    """Three factors of four have no skewness: what is returned is the fourth, and hardly ever more."""
    more = 0
    for seed in range(20):
        columns = np.random.default_rng(seed).normal(size=(8, 4))
        views = gaussian_binary(columns, [0.5, 0.5, 0.5, 0.1], 3_000, 3, noise=0.5, seed=seed)
        model = ECA(4, random_state=seed).fit(views.X, groups=views.groups)
        assert matched(model.components_[model.skewness_ > 2.0], 0.3 * columns.T[3:])[0] < 0.3
        more += len(model.components_) > 1
    assert more <= 3


def test_more_factors_than_there_are_is_an_error():
    true = population(0.2, 0.7, 0.4)
    with pytest.raises(NumericalError, match="n_components=4, but the sketch has rank 3"):
        ECA(4).fit_corpus(WeightedViews(true.enumerate(3)))
    rows = np.random.default_rng(0).normal(size=(900, 6))
    with pytest.raises(NumericalError, match="eigenvalues above the noise level"):
        ECA(4).fit(rows, groups=np.arange(900) // 3)


def test_perturbed_pairs_obey_lemma_c1():
    """Whitening by a perturbed second moment, against the one that also whitens the exact one."""
    rng = np.random.default_rng(5)

    def norm(matrix):
        return np.linalg.norm(matrix, 2)

    worst = 0.0
    for _ in range(200):
        columns = rng.normal(size=(D, 3)) * rng.uniform(0.3, 1.0, 3)
        pairs = columns @ columns.T
        s1, sk = np.linalg.svd(columns, compute_uv=False)[[0, -1]]
        error = rng.normal(size=(D, D))
        error = (error + error.T) / norm(error + error.T) * rng.uniform(0.02, 0.5) * sk**2
        moments = SmallMoments(np.zeros(D), pairs + error, np.zeros((D, D, D)))
        try:
            estimate = whiten_views((moments, ()), 3, np.inf, 0.0).whitening.W
        except NumericalError:
            # Large perturbations make negative eigenvalues as large as the third.
            continue
        values, A = np.linalg.eigh(estimate.T @ pairs @ estimate)
        exact = estimate @ A @ np.diag(values**-0.5) @ A.T
        M, M_hat, E = exact.T @ columns, estimate.T @ columns, norm(error)
        projection = [X @ np.linalg.pinv(X) for X in (columns, exact)]
        inverse, inverse_hat = np.linalg.pinv(exact), np.linalg.pinv(estimate)
        ratios = [
            norm(M_hat) / 2, norm(estimate) * sk / 2, norm(inverse_hat) / (2 * s1), norm(inverse) / (3 * s1),
            norm(M - M_hat) * sk**2 / (4 * E), norm(inverse_hat - inverse) * sk**2 / (6 * s1 * E),
            norm(projection[0] - projection[1]) * sk**2 / (4 * E),
        ]  # fmt: skip
        assert_allclose(M @ M.T, np.eye(3), atol=1e-8)
        worst = max(worst, *ratios)
    assert 0.3 < worst <= 1.0
