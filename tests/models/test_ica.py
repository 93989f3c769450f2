"""Independent components: exact populations, contractions by brute force, and errors of samples."""

from itertools import permutations, product

import numpy as np
import pytest
from helpers import WeightedRows, matched
from mixings import mixing, sample
from numpy.testing import assert_allclose
from sklearn.decomposition import FastICA

from distmom.corpus import RowBlock
from distmom.errors import NumericalError, UsageError
from distmom.linalg.tensors.pencil import joint_basis, off_diagonal_share, pencil_basis, transformed
from distmom.linalg.tensors.quartic import (
    axis_slices,
    contracted_cumulants,
    cubic_contractions,
    fourth_cumulant,
    map_quartic,
    quartic_power,
)
from distmom.models.ica.estimator import ICA
from distmom.moments.rows.ica import (
    RowContrastPass,
    RowFourthPass,
    RowScorePass,
    functions_of,
    row_contrast,
    row_fourth,
)
from distmom.simulate.sources import SourcePopulation, symmetric_law

KURTOSES = (5.0, -2.0, 1.5)
SAME_SIGN = (5.0, 3.0, 1.5)


def population(A, kurtoses, noise=None, mean=0.0, **options):
    rows, chances = SourcePopulation(map(symmetric_law, kurtoses), A, noise, mean).exact()
    return WeightedRows(rows, chances, **options)


def assert_recovered(model, A, kurtoses, tolerance=1e-10):
    error, order = matched(model.mixing_.T, A.T, signed=False)
    assert error < tolerance
    assert_allclose(model.kurtosis_, np.array(kurtoses)[order], atol=100 * tolerance)
    assert_allclose(model.components_ @ model.mixing_, np.eye(len(kurtoses)), atol=1e-9)


@pytest.mark.parametrize("decomposition", ["joint", "power", "pencil"])
@pytest.mark.parametrize("n_refine", [0, 3])
@pytest.mark.parametrize("d", [3, 7])
def test_an_exact_population_gives_back_the_mixing(decomposition, n_refine, d):
    A = mixing(d, 3)
    corpus = population(A, KURTOSES, mean=np.arange(d), shard_rows=8)
    model = ICA(3, decomposition=decomposition, n_refine=n_refine).fit_corpus(corpus)
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
    model = ICA(3, decomposition=decomposition, noise=noise, fourth_moment="slices", n_refine=0)
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
    plain = ICA(3, n_refine=0, gaussian="drop").fit_corpus(corpus).mixing_
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


@pytest.mark.parametrize(
    ("options", "noise"),
    [({"n_refine": 0}, 0.0), ({}, 0.0), ({"noise": "gaussian"}, 0.2), ({"noise": "isotropic"}, 0.5)],
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
                    ICA(4, n_refine=0),
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
    first = ICA(12, n_refine=0, **options).fit(X)
    assert_allclose(np.cov(first.transform(X).T, bias=True), np.eye(12), atol=1e-8)
    assert amari(first.components_ @ A) > 1.5 * amari(other.components_ @ A)


def test_light_tails_are_recognised_in_few_rows(amari):
    rng = np.random.default_rng(0)
    A = mixing(3, 3)
    X = rng.uniform(-1.0, 1.0, (300, 3)) @ A.T
    assert amari(ICA(3).fit(X).components_ @ A) < 0.15
