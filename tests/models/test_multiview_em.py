"""EM passes of a mixture of three views beside EM by dense covariances, and the pass that corrects its means."""

import numpy as np
import pytest
from helpers import WeightedRows, matched, peak_bytes
from numpy.testing import assert_allclose
from scipy.linalg import block_diag
from scipy.sparse import csr_array
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal

from distmom.corpus import RowCorpus
from distmom.engine import open_engine
from distmom.errors import NumericalError, UsageError
from distmom.models.multiview import correction
from distmom.models.multiview.correction import unmix
from distmom.models.multiview.estimator import MultiView
from distmom.models.multiview.posterior import ScoresEMPass, ViewSharesPass
from distmom.moments.three_views import PAIRS, GroupMoments, group_moments
from distmom.simulate.views import MixedViewPopulation

WIDTHS = (4, 5, 6)
CUTS = [slice(0, 4), slice(4, 9), slice(9, 15)]


def correlated(n, seed, separation=0.8):
    """Return rows whose columns depend on each other within a view, and the means of three components."""
    rng = np.random.default_rng(7)
    means, mixing = separation * rng.normal(size=(3, 15)), [rng.normal(size=(w, w)) for w in WIDTHS]
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(n, 15)) @ block_diag(*mixing) / 2.0
    return means[rng.choice(3, n, p=[0.5, 0.3, 0.2])] + noise, means


def em_by_covariances(X, weights, means, n_iter):
    """Run EM with a dense covariance of each view, and return the parameters and log-likelihoods."""
    values = []

    def joint():
        deviations = means - X.mean(axis=0)
        within = np.cov(X.T, bias=True) - (deviations.T * weights) @ deviations
        logs = np.log(weights) + np.zeros((len(X), len(weights)))
        for cut in CUTS:
            for h, mean in enumerate(means):
                logs[:, h] += multivariate_normal(mean[cut], within[cut, cut]).logpdf(X[:, cut])
        return logs

    for _ in range(n_iter):
        logs = joint()
        values.append(logsumexp(logs, axis=1).mean())
        shares = softmax(logs, axis=1)
        weights, means = shares.mean(axis=0), shares.T @ X / shares.sum(axis=0)[:, None]
    return weights, means, np.array(values), softmax(joint(), axis=1)


@pytest.mark.parametrize("sparse", [False, True])
def test_em_passes_are_iterations_with_dense_covariances_and_raise_the_likelihood(sparse):
    X, _ = correlated(3_000, 0)
    rows = csr_array(X) if sparse else X
    start = MultiView(3, widths=WIDTHS, n_em_iter=0).fit(rows)
    weights, means, values, shares = em_by_covariances(X, start.weights_, start.components_, 8)
    model = MultiView(3, widths=WIDTHS, n_em_iter=8, em_correction=False).fit(rows)
    order = np.argsort(-weights)
    assert_allclose(model.components_, means[order], atol=1e-7)
    assert_allclose(model.weights_, weights[order], atol=1e-7)
    assert_allclose(model.predict_proba(rows), shares[:, order], atol=1e-6)
    found = np.array(model.diagnostics_["log_likelihoods"])
    assert (np.diff(found) > 0.0).all()
    single = sum(
        multivariate_normal(X[:, cut].mean(axis=0), np.cov(X[:, cut].T, bias=True)).logpdf(X[:, cut]).mean()
        for cut in CUTS
    )
    assert_allclose(found, values - single, atol=1e-7)
    assert "corrected" not in model.diagnostics_


def test_em_lowers_the_errors_where_columns_depend_on_each_other():
    errors = []
    for seed in range(6):
        X, means = correlated(6_000, seed)
        fits = (MultiView(3, widths=WIDTHS, n_em_iter=n).fit(X) for n in (0, 5))
        errors.append(
            [np.abs(fit.components_ - means[matched(fit.components_, means)[1]]).mean() for fit in fits]
        )
    assert np.mean(errors, axis=0)[1] < 0.75 * np.mean(errors, axis=0)[0]


def overlapping(**options):
    """Return the exact population of yes-or-no columns of overlapping components, and its parameters."""
    rng = np.random.default_rng(2)
    means, weights = rng.uniform(0.1, 0.9, (3, 12)), np.array([0.5, 0.3, 0.2])
    rows = np.array(list(np.ndindex(*(2,) * 12)), float)
    chances = np.stack([np.prod(np.where(rows > 0.0, mean, 1.0 - mean), axis=1) for mean in means])
    corpus = WeightedRows(rows, weights @ chances, **options)
    corpus.settings["widths"] = [4, 4, 4]
    return corpus, means, weights


def test_the_correction_gives_back_an_exact_population_where_em_does_not():
    corpus, means, weights = overlapping(shard_rows=1_000)
    biased = MultiView(3, em_correction=False).fit_corpus(corpus)
    assert matched(biased.components_, means)[0] > 0.01
    model = MultiView(3).fit_corpus(corpus)
    error, order = matched(model.components_, means)
    assert error < 1e-9
    assert_allclose(model.weights_, weights[order], atol=1e-9)
    assert model.diagnostics_["corrected"]


@pytest.mark.slow
def test_corrected_errors_fall_with_the_root_of_the_number_of_rows():
    _, means, weights = overlapping()
    population = MixedViewPopulation(means, weights, [("bits", 4)] * 3)
    errors = []
    for n in (10_000, 160_000):
        fits = [MultiView(3, widths=(4, 4, 4)).fit(population.sample(n, seed).X) for seed in range(6)]
        assert all(fit.diagnostics_["corrected"] for fit in fits)
        errors.append(
            np.mean([np.abs(f.components_ - means[matched(f.components_, means)[1]]) for f in fits])
        )
    assert 2.8 < errors[0] / errors[1] < 5.7


@pytest.mark.parametrize("kind", ["dense", "sparse", "weighted"])
def test_the_sums_of_passes_are_those_over_all_rows(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 15)) * (rng.random((90, 15)) < 0.6)
    weights = rng.uniform(0.5, 2.0, 90) if kind == "weighted" else np.ones(90)
    if kind == "weighted":
        corpus = WeightedRows(X, weights, shard_rows=16)
        # Weights are shares of all rows.
        weights = weights / weights.sum()
    else:
        corpus = RowCorpus(csr_array(X) if kind == "sparse" else X, shard_rows=16)
    coefficients, offsets, logs = rng.normal(size=(15, 3)), rng.normal(size=(3, 3)), rng.normal(size=3)
    averages = np.column_stack([rng.normal(size=15), np.ones(15)])
    fields = {"coefficients": coefficients, "n_components": 3, "averages": averages}
    with open_engine(corpus) as engine:
        em = engine.run(ScoresEMPass(15, offsets=offsets[0], **fields)).sums
        found = engine.run(ViewSharesPass(15, offsets=offsets, logs=logs, widths=WIDTHS, **fields)).sums
    scale = float(em["mass"]) / weights.sum()
    own, centred = (scale * weights)[:, None], X - averages[:, 0]
    scores = X @ coefficients + offsets[0]
    p = own * softmax(scores, axis=1)
    assert_allclose(em["p"], p.sum(axis=0))
    assert_allclose(em["px"], centred.T @ p, atol=1e-10)
    assert_allclose(em["evidence"], own[:, 0] @ logsumexp(scores, axis=1))
    of_views = [X[:, cut] @ coefficients[cut] + offset for cut, offset in zip(CUTS, offsets, strict=True)]
    q = [softmax(each + logs, axis=1) for each in of_views]
    others = [own * softmax(sum(of_views) - each + logs, axis=1) for each in of_views]
    moments = group_moments(found)
    mass = float(found["mass"])
    assert_allclose(moments.means, [(own * each).sum(axis=0) / mass for each in q])
    assert_allclose(moments.pairs, [q[s].T @ (own * q[t]) / mass for s, t in PAIRS])
    assert_allclose(moments.triples, np.einsum("na,nb,nc->abc", own * q[0], q[1], q[2]) / mass)
    assert_allclose(found["crosses"], [p.T @ each for p, each in zip(others, q, strict=True)])
    expected = np.vstack([centred[:, cut].T @ p for cut, p in zip(CUTS, others, strict=True)])
    assert_allclose(found["px"], expected, atol=1e-10)


@pytest.mark.parametrize("k", [6, 60])
@pytest.mark.parametrize("kind", [ScoresEMPass, ViewSharesPass])
def test_memory_stays_within_the_plan(kind, k):
    rng, n, d = np.random.default_rng(0), 5_000, 300
    fields = {"coefficients": rng.normal(size=(d, k)), "averages": np.zeros((d, 2)), "n_components": k}
    if kind is ViewSharesPass:
        fields |= {"offsets": np.zeros((3, k)), "logs": np.zeros(k), "widths": (100, 100, 100)}
    else:
        fields |= {"offsets": np.zeros(k)}
    pass_ = kind(d, **fields)
    block = RowCorpus(rng.normal(size=(n, d)), shard_rows=n).read_shard(0)
    sums = pass_.zero()
    most = pass_.working_bytes(n) + pass_.mapped_bytes + (1 << 16)
    assert peak_bytes(lambda: pass_.add(sums, block, {}), most) < most


def test_probabilities_that_hardly_distinguish_components_correct_nothing(monkeypatch):
    even = GroupMoments(np.full((3, 2), 0.5), np.full((3, 2, 2), 0.25), np.full((2, 2, 2), 0.125))
    assert unmix((even, np.full((3, 2, 2), 0.25)), 2, "joint") is None
    X, _ = correlated(3_000, 0)

    def refused(*arguments):
        raise NumericalError("too few")

    monkeypatch.setattr(correction, "align_views", refused)
    model = MultiView(3, widths=WIDTHS, decompose_on="client").fit(X)
    assert model.diagnostics_["corrected"] is False
    same = MultiView(3, widths=WIDTHS, em_correction=False).fit(X)
    assert (model.components_ == same.components_).all()


def test_one_component_and_constant_columns_are_fitted():
    X, _ = correlated(500, 0)
    one = MultiView(1, widths=WIDTHS).fit(X)
    assert_allclose(one.components_[0], X.mean(axis=0), atol=1e-12)
    assert_allclose(one.diagnostics_["log_likelihoods"], 0.0, atol=1e-12)
    constant = np.insert(X, (0, 15), (3.0, -1.0), axis=1)
    model = MultiView(3, widths=(5, 5, 7)).fit(constant)
    assert_allclose(model.components_[:, [0, 16]], np.tile([3.0, -1.0], (3, 1)), atol=1e-12)
    plain = MultiView(3, widths=WIDTHS).fit(X)
    assert_allclose(model.predict_proba(constant), plain.predict_proba(X), atol=1e-6)


def test_units_and_shards_do_not_matter_and_memory_gives_the_bits_of_other_limits():
    X, _ = correlated(3_000, 1)
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.uniform(-5, 5, 15)
    moved = X * scales + 1e3 * scales * rng.normal(size=15)
    plain, other = (MultiView(3, widths=WIDTHS).fit(each) for each in (X, moved))
    assert_allclose(other.predict_proba(moved), plain.predict_proba(X), atol=1e-5)
    assert_allclose(other.diagnostics_["log_likelihoods"], plain.diagnostics_["log_likelihoods"], atol=1e-6)
    corpus = RowCorpus(X, shard_rows=170)
    fits = [MultiView(3, widths=WIDTHS).fit_corpus(corpus, memory_limit=m) for m in (None, 1 << 30)]
    assert (fits[0].components_ == fits[1].components_).all()
    assert (fits[0].coefficients_ == fits[1].coefficients_).all()
    assert_allclose(fits[0].components_, plain.components_, atol=1e-6)


def test_products_of_columns_have_no_em_passes():
    X, _ = correlated(2_000, 0)
    model = MultiView(3, widths=WIDTHS, lift=2).fit(X)
    assert "log_likelihoods" not in model.diagnostics_
    assert model.coefficients_ is None
    with pytest.raises(
        UsageError, match=r"n_em_iter: expected 0 where columns are multiplied \(lift=2\), got 3"
    ):
        MultiView(3, widths=WIDTHS, lift=2, n_em_iter=3).fit(X)
