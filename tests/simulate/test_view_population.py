import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import UsageError
from distmom.simulate.views import (
    DirichletPopulation,
    FactorPopulation,
    Law,
    MixedViewPopulation,
    bernoulli,
    gaussian_binary,
    poisson_sentences,
)

O = np.array([[1.0, -0.5], [0.3, 2.0], [-1.0, 0.4]])  # noqa: E741
NOISE = np.array([[0.5, -1.0, 0.2], [-0.5, 1.0, -0.2]])


def pairs_of(views, weights=None):
    """Return the mean of the views, and of the products of the first two views of every group."""
    n = len(views.hidden)
    X = views.X.reshape(n, -1, views.X.shape[1])
    weights = np.full(n, 1.0 / n) if weights is None else weights
    return weights @ X[:, 0], np.einsum("g,gi,gj->ij", weights, X[:, 0], X[:, 1])


def test_laws_have_the_moments_of_their_formulas():
    q = 0.2
    law = bernoulli(q)
    assert law.skewness == pytest.approx((1 - 2 * q) / np.sqrt(q * (1 - q)))
    assert law.kurtosis == pytest.approx((1 - 6 * q * (1 - q)) / (q * (1 - q)))
    assert bernoulli(0.5).skewness == pytest.approx(0.0, abs=1e-14)
    assert bernoulli((3 - 3**0.5) / 6).kurtosis == pytest.approx(0.0, abs=1e-12)
    assert Law((-1.0, 0.0, 1.0), (0.25, 0.5, 0.25)).kurtosis == pytest.approx(-1.0)


def test_pairs_of_independent_factors_are_o_sigma_o():
    """Lemma 4.1, enumerated, with noise that depends on the factors."""
    laws = [bernoulli(0.3), Law((-1.0, 0.0, 2.0), (0.2, 0.5, 0.3))]
    population = FactorPopulation(laws, O, NOISE)
    views = population.enumerate(3)
    assert views.weights.sum() == pytest.approx(1.0, abs=1e-12)
    mean, pairs = pairs_of(views, views.weights)
    sigma = np.diag([law.central(2) for law in laws])
    assert_allclose(mean, population.mean, atol=1e-14)
    assert_allclose(pairs - np.outer(mean, mean), O @ sigma @ O.T, atol=1e-14)
    assert_allclose(population.components.T @ population.components, O @ sigma @ O.T, atol=1e-14)


def test_triples_and_quadruples_of_independent_factors_are_diagonal_in_the_factors():
    """Lemmas 4.1 and 4.2, enumerated: all entries of the third and the fourth cumulant of different views."""
    laws = [bernoulli(0.3), Law((-1.0, 0.0, 2.0), (0.2, 0.5, 0.3))]
    views = FactorPopulation(laws, O, NOISE).enumerate(4)
    X = views.X.reshape(len(views.weights), 4, len(O))
    x1, x2, x3, x4 = np.moveaxis(X - views.weights @ X[:, 0], 1, 0)
    third = np.einsum("g,gi,gj,gl->ijl", views.weights, x1, x2, x3)
    skewed = [law.central(3) for law in laws]
    assert_allclose(third, np.einsum("c,ic,jc,lc->ijl", skewed, O, O, O), atol=1e-13)
    pairs = np.einsum("g,gi,gj->ij", views.weights, x1, x2)
    fourth = np.einsum("g,gi,gj,gl,gm->ijlm", views.weights, x1, x2, x3, x4)
    for order in ("ij,lm->ijlm", "il,jm->ijlm", "im,jl->ijlm"):
        fourth -= np.einsum(order, pairs, pairs)
    excess = [law.central(4) - 3.0 * law.central(2) ** 2 for law in laws]
    assert_allclose(fourth, np.einsum("c,ic,jc,lc,mc->ijlm", excess, O, O, O, O), atol=1e-13)


def test_pairs_of_a_dirichlet_law_are_those_of_lemma_b1():
    alpha = np.array([0.4, 1.1])
    population = DirichletPopulation(alpha, O, NOISE)
    views = population.enumerate(3)
    assert views.weights.sum() == pytest.approx(1.0, abs=1e-12)
    mean, pairs = pairs_of(views, views.weights)
    alpha0 = alpha.sum()
    second = (np.diag(alpha) + np.outer(alpha, alpha)) / (alpha0 * (alpha0 + 1))
    assert_allclose(mean, O @ alpha / alpha0, atol=1e-14)
    assert_allclose(pairs, O @ second @ O.T, atol=1e-14)
    assert_allclose(views.weights @ views.hidden, alpha / alpha0, atol=1e-14)
    sampled = population.sample(100_000, 2, seed=1)
    for found, true in zip(pairs_of(sampled), (mean, pairs), strict=True):
        assert_allclose(found, true, atol=0.03)
    assert_allclose(sampled.hidden.mean(axis=0), alpha / alpha0, atol=0.01)


@pytest.mark.parametrize("kind", ["gaussian", "poisson"])
def test_samples_have_the_moments_of_their_model(kind):
    """Tolerances are for 100,000 groups; products of two different views contain no noise."""
    n = 100_000
    if kind == "gaussian":
        q = np.array([0.3, 0.6])
        views, sigma, mean = gaussian_binary(O, q, n, 3, noise=2.0, seed=1), q * (1 - q), O @ q
    else:
        shapes = np.array([0.5, 2.0])
        views, sigma, mean = poisson_sentences(np.abs(O), shapes, n, 3, seed=1), shapes, np.abs(O) @ shapes
    first, pairs = pairs_of(views)
    columns = O if kind == "gaussian" else np.abs(O)
    spread = np.sqrt(np.var(views.X, axis=0).max())
    assert_allclose(first, mean, atol=5 * spread / np.sqrt(n))
    expected = columns @ np.diag(sigma) @ columns.T + np.outer(mean, mean)
    assert_allclose(pairs, expected, atol=10 * spread**2 / np.sqrt(n))
    assert views.X.shape == (3 * n, 3)
    assert views.groups.tolist()[:4] == [0, 0, 0, 1]


def test_a_seed_determines_the_sample():
    for draw in (
        lambda seed: gaussian_binary(O, [0.3, 0.6], 20, 3, seed=seed).X,
        lambda seed: poisson_sentences(np.abs(O), [1.0, 2.0], 20, 3, seed=seed).X,
        lambda seed: DirichletPopulation([0.4, 1.1], O, NOISE).sample(20, 3, seed=seed).X,
    ):
        assert np.array_equal(draw(3), draw(3))
        assert not np.array_equal(draw(3), draw(4))


KINDS = [("bits", 2), ("counts", 2), ("values", 3)]
MEANS = np.array([[0.2, 0.9, 1.5, 3.0, 0.0, -2.0, 1.0], [0.7, 0.4, 0.5, 6.0, 1.0, 2.0, 1.0]])
MIXED = MixedViewPopulation(MEANS, [0.3, 0.7], KINDS, variance=0.5)
#: variances of the columns in each component
VARIANCES = np.hstack([MEANS[:, :2] * (1.0 - MEANS[:, :2]), MEANS[:, 2:4], np.full((2, 3), 0.5)])


def test_exact_rows_of_views_of_different_kinds_have_their_moments():
    rows = MIXED.exact()
    assert rows.weights.sum() == pytest.approx(1.0, abs=1e-12)
    for i, weight in enumerate(MIXED.weights):
        own = rows.components == i
        p, X = rows.weights[own] / weight, rows.X[own]
        assert_allclose(p @ X, MEANS[i], atol=1e-12)
        covariance = (X * p[:, None]).T @ X - np.outer(MEANS[i], MEANS[i])
        assert_allclose(np.diag(covariance), VARIANCES[i], atol=1e-12)
        # Views are independent, and so are products of three of their columns.
        for a, b in ((0, 1), (0, 2), (1, 2)):
            assert_allclose(MIXED.split(MIXED.split(covariance)[b].T)[a], 0.0, atol=1e-12)
        marks, counts, values = MIXED.split(X)
        triples = np.einsum("n,na,nb,nc->abc", p, marks, counts, values)
        assert_allclose(triples, np.einsum("a,b,c->abc", *np.split(MEANS[i], [2, 4])), atol=1e-12)


def test_samples_of_views_of_different_kinds_have_their_moments():
    n = 100_000
    rows = MIXED.sample(n, seed=1)
    marks, counts, _ = MIXED.split(rows.X)
    assert set(np.unique(marks)) == {0.0, 1.0}
    assert (counts == counts.astype(int)).all()
    assert (rows.components == 1).mean() == pytest.approx(0.7, abs=0.01)
    for i in range(2):
        own = rows.X[rows.components == i]
        # Five standard errors or more.
        assert_allclose(own.mean(axis=0), MEANS[i], atol=5 * np.sqrt(VARIANCES[i].max() / len(own)))
        assert_allclose(
            np.cov(own.T), np.diag(VARIANCES[i]), atol=10 * VARIANCES[i].max() / np.sqrt(len(own))
        )
    again, other = MIXED.sample(100, seed=1), MIXED.sample(100, seed=2)
    assert (MIXED.sample(100, seed=1).X == again.X).all()
    assert (other.X != again.X).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bernoulli(1.0), "q: expected a number between 0 and 1"),
        (lambda: FactorPopulation([bernoulli(0.5)], O, NOISE), "O has shape"),
        (lambda: FactorPopulation([bernoulli(0.5)] * 2, O, NOISE[:, :2]), "noise has shape"),
        (lambda: FactorPopulation([bernoulli(0.5)] * 2, O, NOISE[:1]), "expected a mean of zero"),
        (lambda: FactorPopulation([bernoulli(0.5)] * 2, O, NOISE).enumerate(24), "too many"),
        (lambda: DirichletPopulation([1.0], O, NOISE), "O has shape"),
        (lambda: DirichletPopulation([1.0, 2.0], O, NOISE).enumerate(20), "too many"),
        (lambda: MixedViewPopulation(MEANS, [0.5, 0.4], KINDS), "weights: expected 2 positive"),
        (
            lambda: MixedViewPopulation(MEANS, [0.5, 0.5], KINDS[:2]),
            r"views: expected 7 columns, got \[2, 2\]",
        ),
        (
            lambda: MixedViewPopulation(MEANS, [0.5, 0.5], [("words", 7)]),
            "views: expected one of bits, counts, values",
        ),
        (
            lambda: MixedViewPopulation(MEANS, [0.5, 0.5], [("bits", 7)]),
            r"means: bits have means from 0\.0 to 1\.0",
        ),
        (lambda: MixedViewPopulation(MEANS, [0.5, 0.5], [("counts", 7)]), "means: counts have means from"),
        (lambda: MixedViewPopulation(np.ones((1, 60)), [1.0], [("counts", 10)] * 6).exact(), "too many"),
    ],
)
def test_invalid_populations_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize("variance", [-1.0, np.nan, np.inf])
def test_variances_of_values_that_are_negative_or_not_finite_are_refused(variance):
    with pytest.raises(UsageError, match="variance: expected a finite number of at least 0"):
        MixedViewPopulation([[1.0]], [1.0], [("values", 1)], variance)
