"""Mixtures of Gaussians and of views whose third moment is never formed: slices, and power steps by passes."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import WeightedRows, exact_rows, gaussian_population, matched
from numpy.testing import assert_allclose

from distmom.corpus import RowCorpus
from distmom.engine import open_engine
from distmom.engine.plan import LIMIT_SHARE, plan_pass
from distmom.errors import UsageError
from distmom.linalg import decompose_slices
from distmom.linalg.tensors.weights import polar
from distmom.models import load_model
from distmom.models.gaussian.estimator import SphericalMixture
from distmom.models.multiview.estimator import MultiView
from distmom.moments.rows.gaussian import RowCovariancePass, RowMomentsPass
from distmom.moments.rows.multiview import MultiViewMomentsPass
from distmom.simulate.mixtures import GaussianPopulation
from distmom.spectral.steps import contracted
from distmom.spectral.steps.row_basis import leading_basis

K = 24
WIDTHS = (26, 25, 24)


def view_population(k=K, seed=3):
    """Return means (k, d) and weights of three views."""
    rng = np.random.default_rng(seed)
    return 3.0 * rng.normal(size=(k, sum(WIDTHS))), rng.dirichlet(np.full(k, 20.0))


def view_rows(k=K):
    """Return an enumerated population: each view has its mean plus or minus a vector, independently."""
    means, weights = view_population(k)
    rng = np.random.default_rng(5)
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, -1).T
    noise = np.repeat(signs, WIDTHS, axis=1)[None] * rng.normal(size=(k, 1, sum(WIDTHS)))
    X = (means[:, None] + noise).reshape(-1, sum(WIDTHS))
    return means, weights, WeightedRows(X, np.repeat(weights / len(signs), len(signs)), shard_rows=40)


def sample_of_views(n, k=K, seed=0):
    means, weights = view_population(k)
    rng = np.random.default_rng(seed)
    h = rng.choice(k, n, p=weights)
    return means[h] + rng.normal(size=(n, sum(WIDTHS)))


def gaussians(**options):
    return SphericalMixture(K, n_em_iter=0, third_moment="slices", **options)


def views(**options):
    return MultiView(K, widths=WIDTHS, n_em_iter=0, third_moment="slices", **options)


def exact_fit(kind, **options):
    """Return a model of an exact population, and its largest error of the means and the weights."""
    if kind == "gaussians":
        true = gaussian_population(30, K)
        model = gaussians(**options).fit_corpus(exact_rows(true, shard_rows=50))
        error, order = matched(model.means_, true.means)
        return model, max(error, np.abs(model.weights_ / true.weights[order] - 1.0).max())
    means, weights, corpus = view_rows()
    model = views(**options).fit_corpus(corpus)
    error, order = matched(model.components_, means)
    return model, max(error, np.abs(model.weights_ / weights[order] - 1.0).max())


@pytest.mark.parametrize("kind", ["gaussians", "views"])
def test_slices_and_power_steps_of_an_exact_population_give_back_the_parameters(kind):
    for n_steps in (0, 2):
        model, error = exact_fit(kind, power_steps=n_steps)
        assert error < 1e-10
        names = [timing["name"] for timing in model.timings_]
        assert names[-2 - n_steps :] == ["pairs", "slices", *["tensor-power"] * n_steps]
        found = model.diagnostics_
        # There are fewer slices than components.
        assert (found["third_moment"], found["n_slices"]) == ("slices", 19)
        assert [name for name, _ in found["history"]].count("power") == n_steps
        assert found["residual"] < 1e-10
        assert found["sum_weights"] == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize("kind", ["gaussians", "views"])
def test_power_steps_bring_perturbed_components_to_those_of_the_exact_model(kind, monkeypatch):
    def perturbed(matrices, directions):
        found = decompose_slices(matrices, directions)
        noise = 0.01 * np.random.default_rng(0).standard_normal(found.eigenvectors.shape)
        return replace(found, eigenvectors=polar(found.eigenvectors + noise))

    monkeypatch.setattr(contracted, "decompose_slices", perturbed)
    errors = [exact_fit(kind, power_steps=n)[1] for n in (0, 1, 4)]
    assert errors[0] > 1e-2
    assert errors[1] < 0.2 * errors[0]
    assert errors[2] < 1e-10


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("variances", ["differing", "common"])
def test_variances_come_back_from_slices(k, variances):
    true = gaussian_population(6, k)
    if variances == "common":
        true = GaussianPopulation(true.means, true.weights, 1.3)
    model = SphericalMixture(k, n_em_iter=0, third_moment="slices", variances=variances, power_steps=1)
    model.fit_corpus(exact_rows(true))
    error, order = matched(model.means_, true.means)
    assert error < 1e-10
    assert_allclose(model.variances_, np.broadcast_to(true.variances, k)[order], rtol=1e-10)


@pytest.mark.parametrize("kind", ["gaussians", "views"])
def test_power_steps_bring_components_of_slices_to_those_of_the_whole_third_moment(kind):
    if kind == "gaussians":
        X, make = gaussian_population(40, K, scale=1.5).sample(8000, 0).X, gaussians
    else:
        X, make = sample_of_views(4000), views

    def components(**options):
        model = make(**options).fit_corpus(RowCorpus(X, shard_rows=500))
        return getattr(model, model.matched_by)

    full = (
        SphericalMixture(K, n_em_iter=0) if kind == "gaussians" else MultiView(K, widths=WIDTHS, n_em_iter=0)
    ).fit_corpus(RowCorpus(X, shard_rows=500))
    assert "third_moment" not in full.diagnostics_
    whole = getattr(full, full.matched_by)
    distances = [matched(components(power_steps=n), whole)[0] for n in (0, 1, 8)]
    assert distances[1] < 0.8 * distances[0]
    assert distances[2] < 0.25 * distances[0]


@pytest.mark.parametrize("kind", ["gaussians", "views"])
def test_a_fit_goes_through_where_the_whole_third_moment_does_not_fit(kind):
    k, d = 60, 200
    rng = np.random.default_rng(0)
    means = 4.0 * rng.normal(size=(k, d))
    X = means[rng.integers(0, k, 6000)] + rng.normal(size=(6000, d))
    corpus = RowCorpus(X, shard_rows=1000)
    if kind == "gaussians":
        options = {"n_em_iter": 0, "n_power_iter": 1}
        # The covariance is added up whole, and its leading eigenvectors are the basis.
        make, whole = SphericalMixture, RowMomentsPass(d, rank=k - 1)
    else:
        options = {"widths": (70, 66, 64), "n_em_iter": 0, "n_power_iter": 1}
        make = MultiView
        whole = MultiViewMomentsPass(d, widths=options["widths"], averages=0, rank=k + 10)
    limit = int((plan_pass(corpus, whole).task_bytes - 1_000_000) / LIMIT_SHARE)
    with pytest.raises(UsageError, match="pass moments: a task needs"):
        make(k, third_moment="full", **options).fit_corpus(corpus, memory_limit=limit)
    model = make(k, power_steps=1, **options)
    names = [p.name for p in model.plan(corpus, limit).passes]
    assert names[-3:] == ["pairs", "slices", "tensor-power"]
    model.fit_corpus(corpus, memory_limit=limit)
    assert [timing["name"] for timing in model.timings_] == names
    assert model.diagnostics_["third_moment"] == "slices"
    assert matched(getattr(model, model.matched_by), means)[0] < 1.0
    # Where the whole fits, it is decomposed, and needs no power steps.
    assert [p.name for p in model.plan(corpus).passes][-1] == "moments"


@pytest.mark.parametrize("kind", ["gaussians", "views"])
@pytest.mark.parametrize("n_steps", [0, 2])
def test_fits_give_the_same_bits_with_a_memory_limit_and_the_same_components_for_other_shards(
    kind, n_steps, tmp_path
):
    if kind == "gaussians":
        X, make = gaussian_population(40, K, scale=4.0).sample(3000, 0).X, gaussians
    else:
        X, make = sample_of_views(3000), views
    options = {"power_steps": n_steps}
    model = make(**options).fit_corpus(RowCorpus(X, shard_rows=150))
    same = make(**options).fit_corpus(RowCorpus(X, shard_rows=150), memory_limit=1 << 30)
    other = make(**options).fit_corpus(RowCorpus(X, shard_rows=700))
    name = model.matched_by
    assert (getattr(same, name) == getattr(model, name)).all()
    assert (same.weights_ == model.weights_).all()
    assert_allclose(getattr(other, name), getattr(model, name), atol=1e-8)
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert (loaded.power_steps, loaded.third_moment) == (n_steps, "slices")
    assert (getattr(loaded, name) == getattr(model, name)).all()
    assert loaded.diagnostics_ == model.diagnostics_


def test_the_basis_of_a_whole_covariance_does_not_depend_on_the_signs_of_eigenvectors():
    corpus = RowCorpus(np.random.default_rng(0).normal(size=(200, 12)) * np.arange(1, 13), shard_rows=50)
    with open_engine(corpus) as engine:
        scanned = engine.run(RowCovariancePass(12))
        vectors = leading_basis(engine, scanned, 8).matrix.parts[0].load()
    assert (vectors[np.abs(vectors).argmax(axis=0), np.arange(8)] > 0.0).all()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["gaussians", "views"])
def test_two_processes_give_the_same_bits(kind, cluster):
    X = (
        gaussian_population(40, K, scale=4.0).sample(3000, 0).X
        if kind == "gaussians"
        else sample_of_views(3000)
    )
    make, corpus = gaussians if kind == "gaussians" else views, RowCorpus(X, shard_rows=150)
    alone = make(power_steps=1).fit_corpus(corpus)
    both = make(power_steps=1).fit_corpus(corpus, client=cluster)
    assert (getattr(alone, alone.matched_by) == getattr(both, both.matched_by)).all()


def test_the_number_of_components_may_be_found_and_be_one():
    for k in (1, 4):
        X = gaussian_population(8, k, scale=3.0).sample(4000, 0).X
        slices, whole = (SphericalMixture("auto", third_moment=each).fit(X) for each in ("slices", "full"))
        assert len(slices.weights_) == k
        assert_allclose(slices.means_, whole.means_, atol=0.05)


@pytest.mark.parametrize("kind", ["gaussians", "views"])
def test_contradicting_parameters_are_refused(kind):
    X = sample_of_views(100)
    make = SphericalMixture if kind == "gaussians" else (lambda k, **o: MultiView(k, widths=WIDTHS, **o))
    for options, message in (
        ({"third_moment": "slices", "decomposition": "power"}, "decomposition='power' needs the whole"),
        ({"third_moment": "full", "power_steps": 2}, "power_steps=2 improve components found by slices"),
        ({"third_moment": "half"}, "third_moment: expected"),
        ({"power_steps": -1}, "power_steps: expected at least 0"),
        (
            {"third_moment": "slices", "route": "rotation"}
            if kind == "gaussians"
            else {"power_steps": 1, "alpha0": 1.0},
            "expected .*third_moment='full' or 'auto'|third_moment: expected 'full' or 'auto'",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            make(3, **options).fit(X)
