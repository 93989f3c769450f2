"""Independent components: exact populations, samples, contractions by brute force, and refusals."""

import json
import re
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from helpers import WeightedRows, carried_out, matched
from numpy.testing import assert_allclose
from sklearn.decomposition import FastICA
from sklearn.utils.estimator_checks import parametrize_with_checks

from distmom.cli.main import main
from distmom.corpus import RowBlock, RowCorpus, open_corpus
from distmom.engine import open_engine
from distmom.errors import InputError, NumericalError, UsageError
from distmom.linalg.pencil import joint_basis, off_diagonal_share, pencil_basis, transformed
from distmom.linalg.quartic import (
    axis_slices,
    contracted_cumulants,
    cubic_contractions,
    fourth_cumulant,
    map_quartic,
    quartic_power,
)
from distmom.models import load_model
from distmom.models.ica.estimator import ICA
from distmom.moments.ica import (
    RowContrastPass,
    RowFourthPass,
    RowScorePass,
    functions_of,
    row_contrast,
    row_fourth,
)
from distmom.simulate.sources import SourcePopulation, continuous_sources, symmetric_law

KURTOSES = (5.0, -2.0, 1.5)
SAME_SIGN = (5.0, 3.0, 1.5)


def mixing(d, k, seed=0):
    return np.random.default_rng(seed).normal(size=(d, k))


def population(A, kurtoses, noise=None, mean=0.0, **options):
    rows, chances = SourcePopulation(map(symmetric_law, kurtoses), A, noise, mean).exact()
    return WeightedRows(rows, chances, **options)


def assert_recovered(model, A, kurtoses, tolerance=1e-10):
    error, order = matched(model.mixing_.T, A.T, signed=False)
    assert error < tolerance
    assert_allclose(model.kurtosis_, np.array(kurtoses)[order], atol=100 * tolerance)
    assert_allclose(model.components_ @ model.mixing_, np.eye(len(kurtoses)), atol=1e-9)


@pytest.mark.parametrize("decomposition", ["joint", "power", "pencil"])
@pytest.mark.parametrize("n_refine_iter", [0, 3])
@pytest.mark.parametrize("d", [3, 7])
def test_an_exact_population_gives_back_the_mixing(decomposition, n_refine_iter, d):
    A = mixing(d, 3)
    corpus = population(A, KURTOSES, mean=np.arange(d), shard_rows=8)
    model = ICA(3, decomposition=decomposition, n_refine_iter=n_refine_iter).fit_corpus(corpus)
    assert_recovered(model, A, KURTOSES)
    assert_allclose(model.mean_, np.arange(d), atol=1e-12)
    assert model.diagnostics_["off_diagonal_share"] < 1e-12
    assert model.diagnostics_["explained"] == pytest.approx(1.0)
    # By descending magnitude of kurtosis, with a positive entry of largest magnitude.
    assert (np.diff(np.abs(model.kurtosis_)) <= 0.0).all()
    assert all(column[np.abs(column).argmax()] > 0.0 for column in model.mixing_.T)


@pytest.mark.parametrize("decomposition", ["joint", "pencil"])
@pytest.mark.parametrize("noise", ["none", "gaussian"])
def test_contractions_of_an_exact_population_give_back_the_mixing(monkeypatch, decomposition, noise):
    monkeypatch.setattr("distmom.models.ica.estimator.LEAST_PAIRS", 1)
    monkeypatch.setattr("distmom.models.ica.estimator.PAIRS_PER_COMPONENT", 1)
    A = mixing(4, 3)
    model = ICA(3, decomposition=decomposition, noise=noise, fourth_moment="slices", n_refine_iter=0)
    model.fit_corpus(population(A, KURTOSES, shard_rows=8))
    assert_recovered(model, A, KURTOSES)


def test_many_columns_are_sketched():
    A = mixing(100, 3)
    model = ICA(3, n_oversamples=2, n_power_iter=1).fit_corpus(
        population(A, KURTOSES, mean=3.0, shard_rows=8)
    )
    names = [timing["name"] for timing in model.timings_]
    assert names[:4] == ["sketch", "power", "pairs", "fourth"]
    assert set(names[4:]) == {"refine"}
    assert_recovered(model, A, KURTOSES, 1e-9)


@pytest.mark.parametrize("d", [3, 5])
@pytest.mark.parametrize(
    ("decomposition", "kurtoses"),
    [
        ("joint", KURTOSES),
        ("pencil", KURTOSES),
        ("joint", SAME_SIGN),
        ("power", SAME_SIGN),
        ("power", (-2.0, -1.0, -1.5)),
    ],
)
def test_gaussian_noise_of_unknown_covariance_does_not_matter(decomposition, kurtoses, d):
    A = mixing(d, 3, 1)
    noise = 0.8 * mixing(d, 3, 2)
    corpus = population(A, kurtoses, noise, mean=1.0, shard_rows=100)
    model = ICA(3, noise="gaussian", decomposition=decomposition).fit_corpus(corpus)
    # Directions are determined, sizes are not: sources contain noise and have variance one with it.
    unit = model.mixing_ / np.linalg.norm(model.mixing_, axis=0)
    error, order = matched(unit.T, (A / np.linalg.norm(A, axis=0)).T, signed=False)
    assert error < 1e-10
    assert np.array_equal(np.sign(model.kurtosis_), np.sign(np.array(kurtoses)[order]))
    p = corpus.unit_weights
    X = np.concatenate([corpus.read_shard(i).rows for i in range(len(corpus.shards))])
    S = model.transform(X)
    assert_allclose(p @ S**2, 1.0, atol=1e-10)
    assert_allclose(p @ S**4 - 3.0, model.kurtosis_, atol=1e-9)
    assert_allclose(model.components_ @ model.mixing_, np.eye(3), atol=1e-9)
    # Of all left inverses of the mixing, that of the least variance.
    inverse = np.linalg.inv(A @ A.T + noise @ noise.T)
    best = np.linalg.solve(model.mixing_.T @ inverse @ model.mixing_, model.mixing_.T @ inverse)
    assert_allclose(model.components_, best, atol=1e-9)
    # The covariance alone does not show the mixing.
    plain = ICA(3, n_refine_iter=0, gaussian="drop").fit_corpus(corpus).mixing_
    plain = plain / np.linalg.norm(plain, axis=0)
    assert matched(plain.T, (A / np.linalg.norm(A, axis=0)).T, signed=False)[0] > 0.01


@pytest.mark.parametrize("d", [3, 5])
def test_a_known_covariance_of_the_noise_gives_lengths_and_kurtoses(d):
    A = mixing(d, 3, 1)
    noise = 0.8 * mixing(d, 3, 2)
    model = ICA(3, noise="gaussian").fit_corpus(population(A, KURTOSES, noise, mean=1.0, shard_rows=100))
    found, kurtosis = model.without_noise(noise @ noise.T)
    error, order = matched(found.T, A.T, signed=False)
    assert error < 1e-9
    assert_allclose(kurtosis, np.array(KURTOSES)[order], atol=1e-8)
    # Noise of another size gives other lengths.
    assert matched(model.without_noise(0.5 * noise @ noise.T)[0].T, A.T, signed=False)[0] > 0.01
    with pytest.raises(NumericalError, match="as much variance as the rows along 3 of 3 sources"):
        model.without_noise(1e3 * np.eye(d))
    with pytest.raises(UsageError, match="covariance: expected a symmetric matrix of shape"):
        model.without_noise(np.eye(d + 1))
    with pytest.raises(UsageError, match="expected a model fitted with 'gaussian', got 'none'"):
        ICA(3).fit(np.random.default_rng(0).laplace(size=(500, d))).without_noise(np.eye(d))


def test_isotropic_noise_is_estimated_from_the_other_directions():
    A = mixing(5, 2, 1)
    corpus = population(A, (5.0, -2.0), 0.7 * np.eye(5), shard_rows=200)
    model = ICA(2, noise="isotropic").fit_corpus(corpus)
    assert_recovered(model, A, (5.0, -2.0))
    assert model.diagnostics_["noise_variance"] == pytest.approx(0.49)
    power = ICA(2, noise="isotropic", decomposition="power").fit_corpus(corpus)
    assert_recovered(power, A, (5.0, -2.0))


def brute_force_cumulant(Y, p):
    """Return the fourth cumulant of weighted rows by its definition, entry by entry."""
    Y = Y - p @ Y
    k = Y.shape[1]
    second = (Y * p[:, None]).T @ Y
    found = np.empty((k,) * 4)
    for a, b, c, d in product(range(k), repeat=4):
        raw = p @ (Y[:, a] * Y[:, b] * Y[:, c] * Y[:, d])
        pairs = second[a, b] * second[c, d] + second[a, c] * second[b, d] + second[a, d] * second[b, c]
        found[a, b, c, d] = raw - pairs
    return found


def block_of(X, weights=None):
    return RowBlock(X, np.arange(len(X) + 1), 0, weights=weights)


@pytest.mark.parametrize("weighted", [False, True])
def test_fourth_cumulants_and_their_contractions_are_those_by_brute_force(weighted):
    rng = np.random.default_rng(0)
    n, d, k = 60, 5, 3
    X, P, m = rng.gamma(1.0, size=(n, d)), rng.normal(size=(d, k)), rng.normal(size=(d, 1))
    weights = rng.uniform(0.5, 2.0, n) if weighted else None
    p = np.full(n, 1.0 / n) if weights is None else weights / weights.sum()
    m[:, 0] = p @ X
    Y = (X - m[:, 0]) @ P
    true = brute_force_cumulant(Y, p)
    fields = {"matrix": P, "origin": m, "rank": k}

    def added(pass_):
        sums = pass_.zero()
        # Two blocks give the same sums as one.
        for rows in (slice(0, 25), slice(25, n)):
            pass_.add(sums, block_of(X[rows], None if weights is None else weights[rows]), {})
        return sums

    moments = row_fourth(added(RowFourthPass(d, **fields)))
    assert moments.n_sampled == (0 if weighted else n)
    assert_allclose(moments.second, (Y * p[:, None]).T @ Y, atol=1e-12)
    assert_allclose(fourth_cumulant(moments.fourth, moments.second), true, atol=1e-10)
    left, right = rng.normal(size=(k, 4)), rng.normal(size=(k, 4))
    sliced = row_fourth(added(RowFourthPass(d, **fields, left=left, right=right, n_directions=4)))
    assert_allclose(
        contracted_cumulants(sliced.fourth, sliced.second, left, right),
        np.einsum("abcd,cm,dm->abm", true, left, right), atol=1e-10,
    )  # fmt: skip
    contrast = row_contrast(added(RowContrastPass(d, **fields)), None)
    assert_allclose(contrast, np.einsum("abcc->ab", true), atol=1e-10)
    U = np.linalg.qr(rng.normal(size=(k, 2)))[0]
    contrast = row_contrast(added(RowContrastPass(d, **fields, basis=U, n_columns=2)), U)
    assert_allclose(contrast, np.einsum("abcd,cu,du->ab", true, U, U), atol=1e-10)


def test_what_a_step_of_likelihood_needs_is_what_it_says():
    rng = np.random.default_rng(0)
    X, C, m = rng.laplace(size=(50, 3)), rng.normal(size=(3, 3)), rng.normal(size=(3, 1))
    weights = rng.uniform(0.5, 2.0, 50)
    pass_ = RowScorePass(3, matrix=np.eye(3), origin=m, rank=3, rotation=C)
    sums = pass_.zero()
    pass_.add(sums, block_of(X, weights), {})
    S = (X - m[:, 0]) @ C.T
    values, slopes = functions_of(S)
    for i, (value, slope) in enumerate(zip(values, slopes, strict=True)):
        step = 1e-6
        above, below = functions_of(S + step)[0][i], functions_of(S - step)[0][i]
        assert_allclose(slope, (above - below) / (2 * step), atol=1e-5)
        assert_allclose(sums["slopes"][i], np.einsum("n,ni,nj->ij", weights, value, S), atol=1e-9)
        assert_allclose(sums["curvatures"][i], weights @ slope, atol=1e-9)
        assert_allclose(sums["means"][i], weights @ value, atol=1e-9)
        for j in range(i + 1):
            assert_allclose(sums["products"][i, j], weights @ (value * values[j]), atol=1e-9)


def test_tensors_of_order_four_by_brute_force():
    rng = np.random.default_rng(0)
    k = 4
    E = rng.normal(size=(k,) * 4)
    T = sum(E.transpose(p) for p in permutations(range(4))) / 24
    W = rng.normal(size=(k, 3))
    assert_allclose(map_quartic(T, W), np.einsum("abcd,ai,bj,ck,dl->ijkl", T, W, W, W, W), atol=1e-10)
    assert_allclose(cubic_contractions(T, W), np.einsum("abcd,bi,ci,di->ai", T, W, W, W), atol=1e-10)
    matrices, left, right = axis_slices(T)
    assert np.sum(matrices**2) == pytest.approx(np.sum(T**2))
    assert_allclose(matrices, np.einsum("abcd,cm,dm->abm", T, left, right), atol=1e-12)
    B = rng.normal(size=(3, k))
    assert_allclose(transformed(matrices, B), np.einsum("ia,abm,jb->ijm", B, matrices, B), atol=1e-10)


def kruskal(A, kurtoses):
    return np.einsum("i,ai,bi,ci,di->abcd", kurtoses, A, A, A, A)


def test_power_steps_and_pencils_find_the_components_of_a_tensor_and_resist_noise():
    rng = np.random.default_rng(1)
    kurtoses = np.array([3.0, -2.0, 1.0, -0.5, 2.0])
    V = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    found = quartic_power(kruskal(V, kurtoses), rng)
    assert matched(found.T, V.T, signed=False)[0] < 1e-12
    A = np.linalg.qr(rng.normal(size=(5, 5)))[0] + 0.3 * rng.normal(size=(5, 5))
    exact = axis_slices(kruskal(A, kurtoses))[0]
    B = pencil_basis(exact, rng)
    assert off_diagonal_share(exact, B) < 1e-12
    E = rng.normal(size=(5,) * 4)
    noisy = axis_slices(
        kruskal(A, kurtoses) + 0.02 * sum(E.transpose(p) for p in permutations(range(4))) / 24
    )[0]
    unit = A / np.linalg.norm(A, axis=0)

    def error(B):
        columns = np.linalg.inv(B)
        return matched((columns / np.linalg.norm(columns, axis=0)).T, unit.T, signed=False)[0]

    first = pencil_basis(noisy, rng, 1)
    joint, converged = joint_basis(noisy, first)
    assert converged
    # All contractions together are more accurate than two of them.
    assert error(joint) < 0.5 * error(first)
    assert error(joint) < 0.05


def sample(n, seed, d=4, k=4, noise=0.0):
    """Return rows with sources of kurtoses 3, -1.2, 6 and -1.5, and the mixing."""
    rng = np.random.default_rng(seed)
    A = mixing(d, k, 3)
    H = np.hstack([continuous_sources(n, min(4, k - i), rng) for i in range(0, k, 4)])
    return H @ A.T + noise * rng.normal(size=(n, d)), A


@pytest.fixture
def amari(workflow):
    """The Amari index of the product of an unmixing and the mixing: 0 if it is a permutation."""
    return workflow("benchmark_ica").amari


@pytest.mark.parametrize(
    ("options", "noise"),
    [({"n_refine_iter": 0}, 0.0), ({}, 0.0), ({"noise": "gaussian"}, 0.2), ({"noise": "isotropic"}, 0.5)],
)
def test_errors_fall_with_the_root_of_the_number_of_rows(options, noise, amari):
    d = 5 if noise else 4
    errors = []
    for n in (8_000, 128_000):
        found = []
        for seed in range(6):
            X, A = sample(n, seed, d, noise=noise)
            found.append(amari(ICA(4, **options).fit(X).components_ @ A))
        errors.append(np.mean(found))
    # A sixteenth of the variance is a quarter of the error.
    assert 2.6 < errors[0] / errors[1] < 6.0


def test_steps_of_likelihood_are_more_accurate_than_moments_alone_and_than_a_fixed_score(amari):
    errors = np.array(
        [
            [
                amari(model.fit(X).components_ @ A)
                for model in (
                    ICA(4),
                    ICA(4, n_refine_iter=0),
                    FastICA(4, whiten="unit-variance", random_state=0),
                )
            ]
            for X, A in (sample(5_000, seed) for seed in range(5))
        ]
    )
    likelihood, moments, fixed = errors.mean(axis=0)
    assert likelihood < 0.6 * moments
    assert likelihood < 0.9 * fixed
    model = ICA(4).fit(sample(5_000, 0)[0])
    assert model.diagnostics_["converged"]
    assert len(model.diagnostics_["changes"]) < 10
    assert model.diagnostics_["changes"][-1] < 1e-8


@pytest.mark.parametrize("options", [{"fourth_moment": "slices"}, {"decomposition": "pencil"}])
def test_less_accurate_moments_are_a_start_for_steps_of_likelihood(options, amari):
    X, A = sample(10_000, 0, 12, 12)
    whole, other = ICA(12).fit(X), ICA(12, **options).fit(X)
    assert amari(other.components_ @ A) == pytest.approx(amari(whole.components_ @ A), rel=1e-2)
    first = ICA(12, n_refine_iter=0, **options).fit(X)
    assert_allclose(np.cov(first.transform(X).T, bias=True), np.eye(12), atol=1e-8)
    assert amari(first.components_ @ A) > 1.5 * amari(other.components_ @ A)


@pytest.mark.parametrize("scale", [1e-6, 255.0])
def test_units_and_origins_of_columns_do_not_matter(scale):
    X = sample(3_000, 0)[0]
    factors = scale * np.array([1.0, 1e-2, 1e2, 10.0])
    for noise in ("none", "gaussian"):
        plain, moved = ICA(4, noise=noise).fit(X), ICA(4, noise=noise).fit(X * factors + 100.0 * factors)
        # The sign depends on which column is the largest.
        found, true = moved.mixing_ / factors[:, None], plain.mixing_
        assert_allclose(found * np.sign(found[0] * true[0]), true, atol=1e-5)
        assert_allclose(moved.kurtosis_, plain.kurtosis_, atol=1e-5)


def test_sources_and_rows_are_turned_into_each_other():
    X, _ = sample(3_000, 0)
    model = ICA(4).fit(X)
    S = model.transform(X)
    assert_allclose(S, (X - X.mean(axis=0)) @ model.components_.T, atol=1e-9)
    assert_allclose(np.cov(S.T, bias=True), np.eye(4), atol=1e-8)
    assert_allclose((S**4).mean(axis=0) - 3.0, model.kurtosis_, rtol=0.02)
    assert_allclose(model.inverse_transform(S), X, atol=1e-9)
    assert list(model.get_feature_names_out()) == [f"ica{i}" for i in range(4)]
    with pytest.raises(UsageError, match="X: expected 4 sources, got 3"):
        model.inverse_transform(S[:, :3])


def test_gaussian_components_are_refused_or_left_out():
    X, A = sample(20_000, 0)
    rng = np.random.default_rng(1)
    more = np.column_stack([X, rng.normal(size=(20_000, 2))]) @ mixing(6, 6, 5).T
    refusal = r"2 of 6 components have an excess kurtosis between -0\.08\d+ and 0\.13\d*, .* 0\.00\d+, 0\.0"
    with pytest.raises(NumericalError, match=refusal):
        ICA(6).fit(more)
    model = ICA(6, gaussian="drop").fit(more)
    assert model.components_.shape == (4, 6)
    assert model.diagnostics_["n_gaussian"] == 2
    true = mixing(6, 6, 5)[:, :4] @ A
    assert matched(model.mixing_.T, true.T, signed=False)[0] < 0.1
    # A single one is what the others leave.
    one = np.column_stack([X, rng.normal(size=20_000)])
    assert len(ICA(5).fit(one).kurtosis_) == 5
    # With noise of unknown covariance it is part of the noise.
    with pytest.raises(NumericalError, match="1 of 5 components have an excess kurtosis between"):
        ICA(5, noise="gaussian").fit(one)
    for gaussian in ("refuse", "drop"):
        with pytest.raises(NumericalError, match="3 of 3 components have an excess kurtosis"):
            ICA(3, gaussian=gaussian).fit(rng.normal(size=(20_000, 3)))


@pytest.mark.parametrize("k", [2, 5, 12, 25])
def test_kurtoses_that_are_found_in_gaussian_rows_are_below_the_level(k):
    for seed in range(3):
        X = np.random.default_rng(seed).normal(size=(4_000, k))
        with pytest.raises(NumericalError, match=f"{k} of {k} components"):
            ICA(k).fit(X)


def test_light_tails_are_recognised_in_few_rows(amari):
    rng = np.random.default_rng(0)
    A = mixing(3, 3)
    X = rng.uniform(-1.0, 1.0, (300, 3)) @ A.T
    assert amari(ICA(3).fit(X).components_ @ A) < 0.15


def test_what_cannot_be_fitted_is_refused_with_the_numbers():
    X = sample(2_000, 0)[0]
    with pytest.raises(UsageError, match="n_components: expected at most 4, the number of features, got 5"):
        ICA(5).fit(X)
    with pytest.raises(UsageError, match="expected at most 3, one less than the number of features, got 4"):
        ICA(4, noise="isotropic").fit(X)
    with pytest.raises(UsageError, match="n_components: expected at most 3, the number of rows, got 4"):
        ICA(4).fit(X[:3])
    with pytest.raises(UsageError, match="noise: expected none or isotropic with more than 2000 features"):
        ICA(2, noise="gaussian").fit(np.ones((3, 2001)))
    with pytest.raises(
        UsageError, match=r"decomposition: expected joint or pencil with slices .* got 'power'"
    ):
        ICA(15, decomposition="power", fourth_moment="slices").fit(np.ones((30, 20)))
    with pytest.raises(NumericalError, match=r"needs kurtoses of one sign, .* use decomposition='joint'"):
        ICA(4, noise="gaussian", decomposition="power").fit(X)
    twice = np.column_stack([X, X[:, 0]])
    for noise in ("none", "gaussian"):
        with pytest.raises(
            NumericalError, match=r"the rows span 4 directions, and 5 components need 5: .* or fewer"
        ):
            ICA(5, noise=noise).fit(twice)
        with pytest.raises(NumericalError, match="the rows span 0 directions, and 2 components need 2"):
            ICA(2, noise=noise).fit(np.ones((50, 4)))
        for offset in (3e7, 1e9):
            with pytest.raises(
                NumericalError, match=r"mean of the rows has norm \de\+\d+, .* subtract the mean"
            ):
                ICA(4, noise=noise).fit(X + offset)
    with pytest.raises(
        NumericalError, match=r"total variance of \S+e-159, whose fourth moments are out of range"
    ):
        ICA(4).fit(1e-80 * X)
    overflow = r"covariance of the rows overflows, .*: scale the rows"
    with pytest.raises(NumericalError, match=overflow), np.errstate(over="ignore", invalid="ignore"):
        ICA(4).fit(1e160 * X)
    with pytest.raises(InputError, match="NaN"):
        ICA(4).fit(np.where(X > 5.0, np.nan, X))
    with pytest.raises(UsageError, match="X has 3 features, but ICA is expecting 4"):
        ICA(4).fit(X).transform(np.ones((2, 3)))
    with pytest.raises(UsageError, match="noise: expected one of none, isotropic, gaussian, got 'white'"):
        ICA(4, noise="white").fit(X)


@pytest.mark.parametrize(
    ("d", "options"),
    [
        (4, {}),
        (150, {"n_power_iter": 1, "n_oversamples": 5}),
        (6, {"noise": "gaussian"}),
        (6, {"noise": "isotropic"}),
    ],
)
def test_the_plan_lists_the_passes_that_are_made_and_a_saved_model_is_the_same(tmp_path, d, options):
    X = sample(4_000, 0, d, noise=0.1)[0]
    corpus = RowCorpus(X, shard_rows=500)
    model = ICA(4, **options)
    planned = [p.name for p in model.plan(corpus, n_workers=1).passes]
    model.fit_corpus(corpus, run=tmp_path / "run").save(tmp_path / "m")
    made = [timing["name"] for timing in model.timings_]
    assert made == planned[: len(made)]
    assert set(planned[len(made) :]) <= {"refine"}
    loaded = load_model(tmp_path / "m")
    for name in ("components_", "mixing_", "mean_", "kurtosis_"):
        assert (getattr(loaded, name) == getattr(model, name)).all()
    assert loaded.diagnostics_ == model.diagnostics_
    assert (loaded.transform(X) == model.transform(X)).all()
    assert loaded.pictures() == model.pictures()
    again = ICA(4, **options).fit_corpus(corpus, run=tmp_path / "run")
    assert (again.components_ == model.components_).all()
    assert all(timing["resumed"] for timing in again.timings_)


def test_sources_of_rows_are_stored():
    X, _ = sample(500, 0)
    model = ICA(4).fit(sample(4_000, 1)[0])
    # Units of three rows and more are cut by shards.
    corpus = RowCorpus(X, np.r_[np.full(100, 3), 200], shard_rows=64)
    with open_engine(corpus) as engine:
        found = carried_out(engine, model.assign)["sources"]
        stored = np.concatenate([found.read(i) for i in range(len(corpus.shards))])
    assert found.axis == "rows"
    assert stored.dtype == np.float64
    assert_allclose(stored, model.transform(X), atol=1e-10)


def test_pictures_and_summary_are_json_values_and_show_the_components():
    model = ICA(4).fit(sample(4_000, 0, 60, noise=0.01)[0])
    summary = json.loads(json.dumps(model.summary()))
    assert summary["n_components"] == 4
    assert summary["kurtosis"] == pytest.approx(list(model.kurtosis_), rel=1e-5)
    bars, matrix, lines = json.loads(json.dumps(model.pictures()))
    assert bars["values"] == list(model.kurtosis_)
    assert len(matrix["columns"]) == 40
    assert_allclose(matrix["values"], model.mixing_[[int(c) for c in matrix["columns"]]].T)
    assert len(lines["ys"]["eigenvalues"]) == len(lines["x"])


def test_the_command_line_fits_rows_and_writes_sources_and_a_report(tmp_path, capsys, amari):
    import zarr

    X, A = sample(4_000, 0)
    np.save(tmp_path / "X.npy", X)
    corpus, place, out = (str(tmp_path / name) for name in ("c", "m", "out"))
    assert main(["ingest", str(tmp_path / "X.npy"), corpus, "--shard-rows", "1000", "--workers", "0"]) == 0
    options = ["--model", "ica", "-k", "4"]
    assert main(["plan", corpus, *options]) == 0
    assert "fourth" in capsys.readouterr().out
    assert main(["fit", corpus, place, *options, "--workers", "0", "--n-refine-iter", "5"]) == 0
    assert "kurtosis" in capsys.readouterr().out
    assert main(["transform", place, corpus, out, "--workers", "0"]) == 0
    found = zarr.open_group(f"{out}/components.zarr", mode="r")
    model = load_model(place)
    assert_allclose(found["sources"][:], model.transform(X), atol=1e-10)
    assert amari(model.components_ @ A) < 0.05
    assert main(["report", place, str(tmp_path / "r.html")]) == 0
    assert "Excess kurtosis" in (tmp_path / "r.html").read_text()
    assert main(["info", place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["model"] == "ICA"
    assert open_corpus(corpus).n_rows == 4_000
    assert main(["fit", corpus, place, "--model", "ica", "-k", "5", "--workers", "0", "--overwrite"]) == 2
    assert "n_components: expected at most 4" in capsys.readouterr().err


def test_other_shards_and_a_repeated_fit_give_the_same_model():
    X = sample(4_000, 0)[0]
    models = [ICA(4).fit_corpus(RowCorpus(X, shard_rows=300)) for _ in range(2)]
    models.append(ICA(4).fit_corpus(RowCorpus(X, shard_rows=300), memory_limit=1 << 30))
    for other in models[1:]:
        for name in ("components_", "mixing_", "kurtosis_"):
            assert (getattr(other, name) == getattr(models[0], name)).all()
    other = ICA(4).fit_corpus(RowCorpus(X, shard_rows=1000))
    assert_allclose(other.components_, models[0].components_, atol=1e-9)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("d", "options"), [(5, {}), (150, {}), (20, {"fourth_moment": "slices"}), (6, {"noise": "gaussian"})]
)
def test_two_processes_give_the_same_bits(d, options, cluster):
    k = 15 if d == 20 else 4
    corpus = RowCorpus(sample(6_000, 0, d, k, noise=0.1)[0], shard_rows=300)
    alone = ICA(k, **options).fit_corpus(corpus)
    both = ICA(k, **options).fit_corpus(corpus, client=cluster)
    for name in ("components_", "mixing_", "kurtosis_", "mean_"):
        assert (getattr(alone, name) == getattr(both, name)).all()


@parametrize_with_checks([ICA(1), ICA(1, n_refine_iter=0, decomposition="power")])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_the_example_of_the_documentation_runs(amari):
    text = (Path(__file__).parents[2] / "docs" / "ica.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    names = {}
    exec(code, names)
    assert names["found"].shape == (20_000, 4)
    assert amari(names["model"].components_ @ names["mixing"]) < 0.02
    assert amari(names["noisy"].components_ @ names["mixing"]) < 0.05
