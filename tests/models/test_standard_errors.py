"""Standard errors of components by the jackknife, beside errors of samples and fits by hand."""

import itertools
import logging

import numpy as np
import pytest
from helpers import MemoryCorpus, RowCorpus
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linear_sum_assignment

from distmom.errors import NumericalError, UsageError
from distmom.models import ICA, DiagonalMixture, MultiView, ProductMixture, SphericalMixture
from distmom.spectral.program import jackknife as module
from distmom.spectral.program.jackknife import Jackknife, standard_errors

WEIGHTS = np.array([0.5, 0.3, 0.2])


def spherical(rng, states, d=9):
    means = 2.0 * rng.standard_normal((3, d))
    return means, RowCorpus(means[states] + rng.standard_normal((len(states), d)))


def wide(rng, states):
    """Rows of many more columns than the basis of the moments."""
    return spherical(rng, states, d=100)


def diagonal(rng, states):
    means, deviations = 2.0 * rng.standard_normal((3, 12)), rng.uniform(0.5, 1.5, (3, 12))
    return means, RowCorpus(means[states] + deviations[states] * rng.standard_normal((len(states), 12)))


def binary(rng, states):
    means = rng.uniform(0.1, 0.9, (3, 30))
    return means, MemoryCorpus((rng.random((len(states), 30)) < means[states]).astype(int))


@pytest.mark.parametrize(
    ("model", "draw"),
    [
        (SphericalMixture(3, n_em_iter=0), spherical),
        (SphericalMixture(3, n_em_iter=3), spherical),
        (SphericalMixture(3, n_em_iter=0), wide),
        (DiagonalMixture(3, n_em_iter=3), diagonal),
        (MultiView(3, widths="3,3,3"), spherical),
        (ProductMixture(3, n_em_iter=3), binary),
    ],
    ids=["spherical", "spherical-em", "spherical-wide", "diagonal", "views", "product"],
)
@pytest.mark.slow
def test_standard_errors_are_as_large_as_the_errors(model, draw):
    """Errors over standard errors have a spread of about one, over components, columns and seeds."""
    ratios, shares = [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        means, corpus = draw(rng, rng.choice(3, 4000, p=WEIGHTS))
        model.fit_corpus(corpus)
        found = getattr(model, model.matched_by)
        errors = standard_errors(model, corpus)
        of, at = linear_sum_assignment(((means[:, None] - found) ** 2).sum(axis=2))
        ratios.append((found[at] - means[of]) / errors[model.matched_by][at])
        shares.append((model.weights_[at] - WEIGHTS[of]) / errors["weights_"][at])
    # With eight parts the ratio has the law of Student's t with seven degrees, of deviation 1.18.
    assert 0.9 < np.std(ratios) < 1.5
    assert 0.01 < np.mean(np.abs(ratios) > 2.36) < 0.12
    assert 0.4 < np.sqrt(np.mean(np.square(shares))) < 1.7


@pytest.mark.parametrize("n_components", [3, "auto"])
def test_standard_errors_are_those_of_fits_to_the_other_rows(n_components):
    rng = np.random.default_rng(5)
    X = 3.0 * np.eye(3, 9)[rng.choice(3, 2000, p=WEIGHTS)] + rng.standard_normal((2000, 9))
    model = SphericalMixture(n_components, n_em_iter=2).fit(X)
    errors = standard_errors(model, RowCorpus(X, shard_rows=300), n_parts=3)
    left_out, fits = np.zeros(len(X), int), []
    for part in module._parts(3, 0):
        mask = part.mask(0, len(X))
        left_out += ~mask
        fit = SphericalMixture(3, n_em_iter=2).fit(X[mask])
        at = linear_sum_assignment(((model.means_[:, None] - fit.means_) ** 2).sum(axis=2))[1]
        fits.append({name: getattr(fit, name)[at] for name in errors})
    # Every row is in one part.
    assert_array_equal(left_out, 1)
    assert set(errors) == {"means_", "weights_", "variances_"}
    for name, found in errors.items():
        values = np.stack([fit[name] for fit in fits])
        expected = np.sqrt(2.0 / 3.0 * ((values - values.mean(axis=0)) ** 2).sum(axis=0))
        assert found.shape == getattr(model, name).shape
        assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.cluster
def test_a_cluster_gives_the_same_bits(cluster):
    rng = np.random.default_rng(1)
    X = spherical(rng, rng.choice(3, 1500, p=WEIGHTS))[1].read_shard(0).rows
    corpus = RowCorpus(X, shard_rows=400)
    model = SphericalMixture(3, n_em_iter=1).fit_corpus(corpus)
    alone = standard_errors(model, corpus, n_parts=2)
    for name, found in standard_errors(model, corpus, n_parts=2, client=cluster).items():
        assert_array_equal(found, alone[name])


def test_parts_that_cannot_be_fitted_are_left_out(caplog, monkeypatch):
    rng = np.random.default_rng(0)
    _, corpus = spherical(rng, rng.choice(3, 1000, p=WEIGHTS))
    model = SphericalMixture(3, n_em_iter=0).fit_corpus(corpus)
    whole, calls = module.execute, []

    def fails_at_times(program, engine):
        calls.append(engine)
        if len(calls) in failing:
            raise NumericalError("no component")
        return whole(program, engine)

    monkeypatch.setattr(module, "execute", fails_at_times)
    failing = {2}
    with caplog.at_level(logging.WARNING, "distmom"):
        errors = standard_errors(model, corpus, n_parts=3)
    assert "standard errors leave out a part of the units: no component" in caplog.text
    assert np.isfinite(errors["means_"]).all()
    calls.clear()
    failing = {1, 3}
    with pytest.raises(NumericalError, match="fewer than two of 3 fits"):
        standard_errors(model, corpus, n_parts=3)


def test_models_and_numbers_of_parts_without_standard_errors_are_refused():
    corpus = RowCorpus(np.random.default_rng(0).exponential(size=(500, 3)))
    with pytest.raises(UsageError, match="ICA does not state how components of two fits are matched"):
        standard_errors(ICA(3).fit_corpus(corpus), corpus)
    with pytest.raises(UsageError, match="n_parts: expected a whole number, got '8'"):
        standard_errors(SphericalMixture(1).fit_corpus(corpus), corpus, n_parts="8")
    with pytest.raises(UsageError, match="n_parts: expected at least 2, got 1"):
        standard_errors(SphericalMixture(1).fit_corpus(corpus), corpus, n_parts=1)


def test_jackknife_is_the_formula():
    rng = np.random.default_rng(0)
    rows = np.eye(3) * 0.9 + 0.05
    fits = [(rows + rng.uniform(0, 0.05, (3, 3)), rng.dirichlet(np.ones(3))) for _ in range(6)]
    jackknife = Jackknife(rows, {"rows": rows, "shares": np.full(3, 1 / 3)})
    for (found, shares), order in zip(fits, itertools.cycle(itertools.permutations(range(3))), strict=False):
        # In whatever order the components come.
        jackknife.add(found[list(order)], {"rows": found[list(order)], "shares": shares[list(order)]})
    errors = jackknife.errors()
    for name, values in (("rows", [f[0] for f in fits]), ("shares", [f[1] for f in fits])):
        expected = np.sqrt(5 / 6 * ((np.stack(values) - np.mean(values, axis=0)) ** 2).sum(axis=0))
        assert_allclose(errors[name], expected, rtol=1e-12)


def test_the_spread_of_parameters_far_from_zero_is_not_lost():
    jackknife = Jackknife(np.eye(2), {"means": np.full((2, 1), 1e9)})
    for deviation in (-1e-3, 1e-3):
        jackknife.add(np.eye(2), {"means": np.full((2, 1), 1e9 + deviation)})
    assert_allclose(jackknife.errors()["means"], 1e-3, rtol=1e-3)


def test_jackknife_with_one_fit_says_nothing():
    jackknife = Jackknife(np.eye(2), {"shares": np.full(2, 0.5)})
    assert jackknife.errors() is None
    jackknife.add(np.eye(2), {"shares": np.full(2, 0.5)})
    assert jackknife.errors() is None


def test_a_component_that_few_fits_have_has_no_error():
    jackknife = Jackknife(np.eye(2), {"rows": np.eye(2), "shares": np.full(2, 0.5)})
    for _ in range(2):
        jackknife.add(np.eye(2)[:1], {"rows": np.eye(2)[:1], "shares": np.array([0.4])})
    errors = jackknife.errors()
    assert_array_equal(np.isnan(errors["shares"]), [False, True])
    assert_array_equal(np.isnan(errors["rows"]).all(axis=1), [False, True])
