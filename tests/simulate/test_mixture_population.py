"""Mixtures of rows: exact populations by their closed forms, samples, side information and refusals."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import UsageError
from distmom.simulate import GaussianPopulation, RegressionPopulation, SubspacePopulation, draw_labels

RNG = np.random.default_rng(0)
WEIGHTS = np.array([0.5, 0.3, 0.2])
GAUSSIANS = GaussianPopulation(RNG.normal(size=(3, 5)), WEIGHTS, [0.3, 1.0, 2.0])
REGRESSIONS = RegressionPopulation(
    RNG.normal(size=(3, 4)), WEIGHTS, [0.2, 0.5, 1.0], [0.3, -1.0, 0.0], RNG.normal(size=4),
    np.eye(4) + 0.3 * RNG.normal(size=(4, 4)),
)  # fmt: skip
SUBSPACES = SubspacePopulation(np.linalg.qr(RNG.normal(size=(3, 9, 2)))[0], WEIGHTS, 0.2)
DIAGONALS = GaussianPopulation(RNG.normal(size=(3, 5)), WEIGHTS, RNG.uniform(0.2, 2.0, (3, 5)))
POPULATIONS = {"gaussian": GAUSSIANS, "diagonal": DIAGONALS, "regression": REGRESSIONS, "subspace": SUBSPACES}


@pytest.fixture(params=list(POPULATIONS))
def population(request):
    return POPULATIONS[request.param]


def joint(rows):
    """Return rows with their responses as the last column."""
    return rows.X if rows.responses is None else np.c_[rows.X, rows.responses]


def laws(population):
    """Return mean and covariance of the rows of each component, by their definition."""
    if population is GAUSSIANS:
        return population.means, [v * np.eye(5) for v in population.variances]
    if population is DIAGONALS:
        return population.means, [np.diag(v) for v in population.variances]
    if population is SUBSPACES:
        return np.zeros((3, 9)), [u @ u.T + 0.2 * np.eye(9) for u in population.bases]
    means, covariances = [], []
    S = population.root @ population.root.T
    for coef, intercept, variance in zip(
        population.coefs, population.intercepts, population.variances, strict=True
    ):
        means.append(np.append(population.mean, coef @ population.mean + intercept))
        covariances.append(np.block([[S, (S @ coef)[:, None]], [coef @ S, coef @ S @ coef + variance]]))
    return np.array(means), covariances


def third_moment(mean, covariance):
    """Return ``E x x x`` of a normal vector."""
    pairs = np.einsum("a,bc->abc", mean, covariance)
    return (
        np.einsum("a,b,c->abc", mean, mean, mean)
        + pairs + pairs.transpose(1, 0, 2) + pairs.transpose(1, 2, 0)
    )  # fmt: skip


def test_exact_populations_have_the_moments_of_their_mixtures(population):
    rows = population.exact()
    X, p = joint(rows), rows.weights
    assert_allclose(np.bincount(rows.components, p), WEIGHTS, atol=1e-13)
    for i, (mean, covariance) in enumerate(zip(*laws(population), strict=True)):
        own = rows.components == i
        q = p[own] / WEIGHTS[i]
        assert_allclose(q @ X[own], mean, atol=1e-12)
        assert_allclose((X[own] * q[:, None]).T @ X[own], covariance + np.outer(mean, mean), atol=1e-12)
        third = np.einsum("n,na,nb,nc->abc", q, X[own], X[own], X[own], optimize=True)
        assert_allclose(third, third_moment(mean, covariance), atol=1e-12)


def test_moments_of_high_order_are_those_of_normal_features_and_coordinates():
    """The order six of features with two of responses, which searches read, and the order four of subspaces."""
    rng = np.random.default_rng(1)
    rows, v = REGRESSIONS.exact(), rng.normal(size=4)
    z = np.linalg.solve(REGRESSIONS.root, (rows.X - REGRESSIONS.mean).T).T @ v / np.linalg.norm(v)
    for order, moment in enumerate((1.0, 0.0, 1.0, 0.0, 3.0, 0.0, 15.0, 0.0)):
        assert rows.weights @ z**order == pytest.approx(moment, abs=1e-11)
    i = rows.components
    residual = rows.responses - np.sum(rows.X * REGRESSIONS.coefs[i], axis=1) - REGRESSIONS.intercepts[i]
    assert_allclose(residual**2, REGRESSIONS.variances[i], rtol=1e-9)
    assert rows.weights @ residual == pytest.approx(0.0, abs=1e-12)
    rows, v = SUBSPACES.exact(), rng.normal(size=9)
    variances = [v @ (u @ u.T) @ v + 0.2 * v @ v for u in SUBSPACES.bases]
    assert rows.weights @ (rows.X @ v) ** 4 == pytest.approx(WEIGHTS @ (3.0 * np.square(variances)))


def test_samples_have_the_moments_of_the_exact_population_within_their_errors(population):
    exact = population.exact()
    X = joint(exact)
    true = np.concatenate([exact.weights @ X, ((X * exact.weights[:, None]).T @ X).ravel()])
    errors = {}
    for n in (20_000, 80_000):
        moments = []
        for seed in range(8):
            rows = population.sample(n, seed)
            X = joint(rows)
            # Six standard errors of a share.
            assert_allclose(np.bincount(rows.components) / n, WEIGHTS, atol=3.0 / np.sqrt(n))
            moments.append(np.concatenate([X.mean(axis=0), (X.T @ X).ravel() / n]))
        # Standard errors of the average of eight draws are themselves known to a quarter.
        spread = np.std(moments, axis=0, ddof=1) / np.sqrt(8)
        assert (np.abs(np.mean(moments, axis=0) - true) < 8.0 * spread).all()
        errors[n] = np.abs(np.array(moments) - true).mean()
    # Four times the rows have half the error.
    assert 1.5 < errors[20_000] / errors[80_000] < 2.7


def test_a_seed_determines_the_sample(population):
    first, again, other = (population.sample(50, seed) for seed in (1, 1, 2))
    assert (joint(first) == joint(again)).all()
    assert (first.components == again.components).all()
    assert (joint(first) != joint(other)).any()
    # A generator is taken as it is: it has gone on after the first sample.
    rng = np.random.default_rng(1)
    assert (joint(population.sample(50, rng)) == joint(first)).all()
    assert (joint(population.sample(50, rng)) != joint(first)).any()
    assert first.weights is None


@pytest.mark.parametrize("share", [1.0, 0.98])
def test_a_side_vector_prefers_its_target(population, share):
    for target in range(3):
        v = population.side_vector(target, share)
        preferences = population.preferences(v)
        assert np.linalg.norm(v) == pytest.approx(1.0)
        assert preferences.argmax() == target
        if share == 1.0:
            assert_allclose(np.delete(preferences, target), 0.0, atol=1e-12)
    # The part along the direction that is orthogonal to all other components has the share as squared length.
    assert population.side_vector(0) @ population.side_vector(0, share) == pytest.approx(np.sqrt(share))


def test_preferences_are_products_or_norms_of_projections():
    v = np.arange(9.0)
    assert_allclose(GAUSSIANS.preferences(v[:5]), GAUSSIANS.means @ v[:5])
    assert_allclose(REGRESSIONS.preferences(v[:4]), REGRESSIONS.coefs @ v[:4])
    assert_allclose(SUBSPACES.preferences(v), [np.linalg.norm(u @ u.T @ v) for u in SUBSPACES.bases])


def test_labels_prefer_the_target():
    z = GAUSSIANS.sample(20_000, 0).components
    marked = draw_labels(z, 1, 0.6, 0.1, seed=(0, 1))
    # Standard errors are at most 0.0066.
    assert marked[z == 1].mean() == pytest.approx(0.6, abs=0.03)
    assert marked[z != 1].mean() == pytest.approx(0.1, abs=0.015)
    assert (marked == draw_labels(z, 1, 0.6, 0.1, seed=(0, 1))).all()
    assert (draw_labels(z, 1) == (z == 1)).all()


def test_features_are_standard_and_numbers_are_those_of_all_components_by_default():
    population = RegressionPopulation(np.ones((2, 3)), [0.5, 0.5], 1.0)
    assert population.variances.tolist() == [1.0, 1.0]
    assert population.intercepts.tolist() == [0.0, 0.0]
    rows = population.exact()
    assert_allclose((rows.X * rows.weights[:, None]).T @ rows.X, np.eye(3), atol=1e-12)
    assert_allclose(rows.weights @ rows.X, 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianPopulation(np.ones(3), WEIGHTS, 1.0), r"means: expected a matrix .* \(3,\)"),
        (lambda: GaussianPopulation(np.full((3, 2), np.nan), WEIGHTS, 1.0), "means: expected a matrix of finite"),
        (lambda: GaussianPopulation(np.ones((2, 2)), WEIGHTS, 1.0), "weights: expected 2 positive numbers"),
        (lambda: GaussianPopulation(np.ones((2, 2)), [0.5, 0.4], 1.0), "numbers that sum to 1"),
        (lambda: GaussianPopulation(np.ones((3, 2)), WEIGHTS, -1.0), "variances: expected one or 3 non-negative"),
        (lambda: GaussianPopulation(np.ones((3, 2)), WEIGHTS, [1.0, 2.0]), "variances: expected one or 3"),
        (lambda: GaussianPopulation(np.ones((3, 2)), WEIGHTS, np.ones((2, 3))), r"variances: .* of \(3, 2\) non-"),
        (lambda: GaussianPopulation(np.ones((3, 2)), WEIGHTS, -np.ones((3, 2))), "a least one of -1"),
        (lambda: RegressionPopulation(np.ones((3, 2)), WEIGHTS, 1.0, np.inf), "intercepts: .* finite"),
        (lambda: RegressionPopulation(np.ones((3, 2)), WEIGHTS, 1.0, mean=np.ones(3)), "a mean of shape"),
        (lambda: RegressionPopulation(np.ones((3, 2)), WEIGHTS, 1.0, root=np.ones(2)), "a root of shape"),
        (lambda: RegressionPopulation(np.ones((3, 20)), WEIGHTS, 1.0).exact(), "rows .* are too many"),
        (lambda: SubspacePopulation(np.ones((3, 4, 2)), WEIGHTS, 1.0), "bases: expected orthonormal columns"),
        (lambda: SubspacePopulation(np.eye(3), WEIGHTS, 1.0), r"bases: .* shape \(3, 3\)"),
        (lambda: SubspacePopulation(SUBSPACES.bases, WEIGHTS, np.nan), "variance: expected a finite"),
        (lambda: GAUSSIANS.side_vector(3), "target: expected a number from 0 to 2, got 3"),
        (lambda: GAUSSIANS.side_vector(0, 0.0), "share: expected a number above 0 and at most 1"),
        (lambda: GAUSSIANS.side_vector(2, 0.01), r"share: with 0\.01, component \d is preferred to 2"),
        (lambda: GaussianPopulation(np.ones((3, 2)), WEIGHTS, 1.0).side_vector(0), "linearly dependent"),
        (lambda: draw_labels(np.zeros(3), 0, 0.1, 0.2), "expected 0 <= wrong < share <= 1"),
    ],
)  # fmt: skip
def test_what_is_no_mixture_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize("features", [{"mean": [np.inf]}, {"root": [[np.nan]]}])
def test_features_of_regressions_that_are_not_finite_are_refused(features):
    with pytest.raises(UsageError, match="expected a mean and a root of finite numbers"):
        RegressionPopulation([[1.0]], [1.0], 1.0, **features)


def test_components_of_labelled_rows_may_be_a_list():
    assert draw_labels([0, 1, 1], 1).tolist() == [False, True, True]
