"""Mixtures of independent sources: exact populations by their cumulants, samples and refusals."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import UsageError
from distmom.simulate.sources import SourcePopulation, continuous_sources, symmetric_law

RNG = np.random.default_rng(0)
A, NOISE, MEAN = RNG.normal(size=(3, 2)), 0.5 * RNG.normal(size=(3, 3)), np.array([1.0, -2.0, 0.5])
KURTOSES = np.array([5.0, -2.0])
POPULATION = SourcePopulation(map(symmetric_law, KURTOSES), A, NOISE, MEAN)


def cumulant(X, p):
    """Return the fourth cumulant of weighted rows by its definition."""
    X = X - p @ X
    second = (X * p[:, None]).T @ X
    pairs = np.einsum("ab,cd->abcd", second, second)
    raw = np.einsum("n,na,nb,nc,nd->abcd", p, X, X, X, X, optimize=True)
    return raw - pairs - pairs.transpose(0, 2, 1, 3) - pairs.transpose(0, 2, 3, 1)


@pytest.mark.parametrize("kurtosis", [-2.0, -1.5, 0.0, 6.0])
def test_laws_have_their_kurtosis(kurtosis):
    law = symmetric_law(kurtosis)
    assert sum(law.probabilities) == pytest.approx(1.0)
    assert law.mean == pytest.approx(0.0)
    assert law.central(2) == pytest.approx(1.0)
    assert law.skewness == pytest.approx(0.0, abs=1e-14)
    assert law.kurtosis == pytest.approx(kurtosis, abs=1e-12)


def test_exact_rows_have_the_cumulants_of_their_sources():
    X, p = POPULATION.exact()
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert_allclose(p @ X, MEAN, atol=1e-12)
    assert_allclose((X * p[:, None]).T @ X - np.outer(MEAN, MEAN), A @ A.T + NOISE @ NOISE.T, atol=1e-12)
    # Noise has none, and those of sources are in the directions of their columns.
    assert_allclose(POPULATION.kurtosis, KURTOSES, atol=1e-12)
    assert_allclose(cumulant(X, p), np.einsum("i,ai,bi,ci,di->abcd", KURTOSES, A, A, A, A), atol=1e-12)


def test_samples_have_the_cumulants_of_the_exact_population():
    n, (exact, p) = 200_000, POPULATION.exact()
    X = POPULATION.sample(n, seed=1)
    assert_allclose(X.mean(axis=0), MEAN, atol=5 * X.std(axis=0).max() / np.sqrt(n))
    assert_allclose(np.cov(X.T), A @ A.T + NOISE @ NOISE.T, atol=10 * X.var(axis=0).max() / np.sqrt(n))
    # Five standard errors of the largest fourth moment.
    tolerance = 5 * ((X - MEAN) ** 4).std(axis=0).max() / np.sqrt(n)
    assert_allclose(cumulant(X, np.full(n, 1.0 / n)), cumulant(exact, p), atol=tolerance)
    assert tolerance < np.abs(cumulant(exact, p)).max()
    assert (POPULATION.sample(50, seed=1) == POPULATION.sample(50, seed=1)).all()
    assert (POPULATION.sample(50, seed=1) != POPULATION.sample(50, seed=2)).any()
    quiet = SourcePopulation([symmetric_law(-2.0)], np.ones((2, 1)))
    assert set(np.unique(quiet.sample(50))) == {-1.0, 1.0}


def test_continuous_sources_have_variance_one_and_their_kurtoses():
    n = 400_000
    H = continuous_sources(n, 6, np.random.default_rng(0))
    assert_allclose(H.mean(axis=0), 0.0, atol=5 / np.sqrt(n))
    assert_allclose(np.cov(H.T), np.eye(6), atol=0.02)
    kurtoses = (H**4).mean(axis=0) / (H**2).mean(axis=0) ** 2 - 3.0
    # The sixth is of the kind of the first; heavy tails have large errors.
    assert_allclose(kurtoses, [3.0, -1.2, 6.0, -1.5, 2.0, 3.0], atol=0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: symmetric_law(-2.1), "kurtosis: expected a number of at least -2"),
        (lambda: SourcePopulation([symmetric_law(1.0)], A), "mixing: expected 1 columns"),
        (lambda: SourcePopulation(POPULATION.laws, A, np.ones((2, 2))), "expected 3 rows and 3 numbers"),
        (lambda: SourcePopulation(POPULATION.laws, A, mean=np.ones(2)), "expected 3 rows and 3 numbers"),
        (lambda: SourcePopulation(POPULATION.laws, A, np.ones((3, 20))).exact(), "too many to enumerate"),
    ],
)
def test_what_is_no_mixture_of_sources_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
