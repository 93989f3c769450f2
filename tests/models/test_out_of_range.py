"""Values so large or small that moments overflow or underflow: a fit or a clear error, and no warning of NumPy."""

import re
import warnings

import numpy as np
import pytest

from distmom.errors import NumericalError
from distmom.models import (
    ECA,
    ICA,
    DiagonalMixture,
    FactorialHMM,
    GaussianSearch,
    HiddenMarkov,
    LatentNetwork,
    MultiView,
    RegressionSearch,
    SphericalMixture,
    SubspaceSearch,
)


def groups_of_rows(d, n=1500):
    rng = np.random.default_rng(1)
    return 3.0 * rng.normal(size=(2, d))[rng.integers(0, 2, n)] + rng.normal(size=(n, d))


def steps():
    """Return steps of a sum of two chains, which are seldom in their second state."""
    rng = np.random.default_rng(4)
    first, second = np.repeat(rng.random(1000) < 0.2, 30), np.repeat(rng.random(3000) < 0.2, 10)
    means = 3.0 * rng.normal(size=(2, 6))
    return first[:, None] * means[0] + second[:, None] * means[1] + rng.normal(size=(30_000, 6))


def regression(d, scale, **options):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(20_000, d))
    coefficients = 2.0 * np.eye(2, d)[rng.integers(0, 2, len(X))]
    return RegressionSearch(2, **options).fit(scale * X, scale * (X * coefficients).sum(axis=1))


def subspaces(d, scale):
    rng = np.random.default_rng(6)
    X = np.zeros((6000, d))
    for own, columns in zip(np.split(X, 2), (slice(0, 2), slice(2, 4)), strict=True):
        own[:, columns] = rng.normal(size=(3000, 2))
    return SubspaceSearch(2, dimension=2).fit(scale * (X + 0.1 * rng.normal(size=X.shape)))


def mixed(d, n=1500):
    rng = np.random.default_rng(2)
    return rng.exponential(size=(n, 2)) @ rng.normal(size=(2, d)) + 0.1 * rng.normal(size=(n, d))


def several_views(scale):
    rng = np.random.default_rng(3)
    X = np.repeat(mixed(8, 500), 3, axis=0) + 0.1 * rng.normal(size=(1500, 8))
    return ECA(2).fit(scale * X, groups=np.repeat(np.arange(500), 3))


FITS = {
    "gaussian": lambda s: SphericalMixture(2).fit(s * groups_of_rows(10)),
    "gaussian, sketch": lambda s: SphericalMixture(2).fit(s * groups_of_rows(90)),
    "diagonal": lambda s: DiagonalMixture(2).fit(s * groups_of_rows(12)),
    "diagonal, sketch": lambda s: DiagonalMixture(2).fit(s * groups_of_rows(90)),
    "ica": lambda s: ICA(2).fit(s * mixed(6)),
    "ica, sketch": lambda s: ICA(2).fit(s * mixed(90)),
    "multiview": lambda s: MultiView(2).fit(tuple(np.split(s * groups_of_rows(12), 3, axis=1))),
    "network": lambda s: LatentNetwork(2).fit(s * mixed(8)),
    "factors": several_views,
    "hmm": lambda s: HiddenMarkov(2).fit(s * steps(), lengths=[1000] * 30),
    "factorial-hmm": lambda s: FactorialHMM(2).fit(s * steps(), lengths=[1000] * 30),
    "gaussian-search": lambda s: GaussianSearch(2).fit(s * groups_of_rows(10)),
    "gaussian-search, sketch": lambda s: GaussianSearch(2).fit(s * groups_of_rows(90)),
    "regression-search": lambda s: regression(4, s),
    "regression-search, sketch": lambda s: regression(90, s, covariance="diagonal"),
    "subspace-search": lambda s: subspaces(10, s),
    "subspace-search, sketch": lambda s: subspaces(120, s),
}


@pytest.mark.parametrize("scale", [1.0, 1e60, 1e100, 1e150, 1e200, 1e300])
@pytest.mark.parametrize("name", FITS)
def test_large_values_are_fitted_or_refused_without_a_warning(name, scale):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            FITS[name](scale)
            refused = ""
        except NumericalError as error:
            refused = str(error)
    # Squares of 1e200 are beyond the largest number.
    assert bool(refused) >= (scale > 1e150)
    if refused:
        assert scale >= 1e60
        assert re.search("overflow|out of range", refused)
        assert re.search("scale the|scale its", refused)
