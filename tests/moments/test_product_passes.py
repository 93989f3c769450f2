"""The EM pass over the presence of words against its definition, and its memory against the plan."""

import numpy as np
import pytest
from helpers import WeightedCorpus, peak_bytes
from numpy.testing import assert_allclose
from scipy.sparse import random_array
from scipy.special import logsumexp

from distmom.corpus import MemoryCorpus
from distmom.engine import Columns, merge
from distmom.moments.documents.product import PresenceEMPass, maximised, presence_logs, smoothed_rates

RNG = np.random.default_rng(0)
X = RNG.poisson(0.8, (300, 9))
MEANS = RNG.uniform(0.05, 0.95, (9, 3))
WEIGHTS = np.array([0.5, 0.3, 0.2])
OWN = RNG.uniform(size=300)


def summed(log_odds, constants, own=None, **fields):
    options = {"shard_documents": 64}
    corpus = MemoryCorpus(X, **options) if own is None else WeightedCorpus(X, X[:, :1], own, **options)
    pass_ = PresenceEMPass(9, log_odds=log_odds, constants=constants, n_components=3, **fields)
    parts = []
    for index in range(len(corpus.shards)):
        parts.append(pass_.zero())
        assert pass_.add(parts[-1], corpus.read_shard(index), {}) is None
    return merge(parts)


@pytest.mark.parametrize("own", [None, OWN])
def test_the_sums_are_those_of_the_e_step(own):
    present = (X > 0).astype(float)
    w = np.ones(300) if own is None else own
    chance = np.stack([np.prod(np.where(present, mean, 1.0 - mean), axis=1) for mean in MEANS.T], axis=1)
    joint = chance * WEIGHTS
    p = joint / joint.sum(axis=1, keepdims=True) * w[:, None]
    sums = summed(*presence_logs(MEANS, WEIGHTS, 1e-15), own)
    assert_allclose(sums["p"], p.sum(axis=0), rtol=1e-12)
    assert_allclose(sums["px"], present.T @ p, rtol=1e-12)
    assert float(sums["log_likelihood"]) == pytest.approx(w @ np.log(joint.sum(axis=1)), rel=1e-12)
    assert float(sums["mass"]) == pytest.approx(w.sum())


def test_slabs_of_components_and_of_words_have_the_same_bits():
    log_odds, constants = presence_logs(MEANS, WEIGHTS, 1e-15)
    whole = summed(log_odds, constants)
    cut = Columns((np.ascontiguousarray(log_odds[:, :1]), np.ascontiguousarray(log_odds[:, 1:])))
    by_columns = summed(cut, constants)
    slabs = [summed(log_odds, constants, features=slice(a, b)) for a, b in ((0, 4), (4, 9))]
    for name in ("p", "log_likelihood", "mass"):
        assert (by_columns[name] == whole[name]).all()
        assert (slabs[0][name] == whole[name]).all()
    assert (by_columns["px"] == whole["px"]).all()
    assert (np.concatenate([slab["px"] for slab in slabs]) == whole["px"]).all()


def test_probabilities_of_zero_and_one_and_empty_components_give_finite_logarithms():
    means = MEANS.copy()
    means[:2, 0] = 0.0, 1.0
    log_odds, constants = presence_logs(means, np.array([1.0, 0.0, 0.0]), 1e-15)
    assert np.isfinite(log_odds).all()
    assert np.isfinite(constants).all()
    unchanged, _ = presence_logs(MEANS, WEIGHTS, 1e-15)
    assert_allclose(unchanged, np.log(MEANS / (1.0 - MEANS)), atol=1e-12)
    assert_allclose(
        logsumexp(presence_logs(MEANS, WEIGHTS, 1e-15)[1]), np.log(WEIGHTS @ np.prod(1 - MEANS, axis=0))
    )


def test_added_documents_have_words_as_often_as_all_documents():
    sums = {"p": np.array([3.0, 1.0, 0.0]), "px": np.array([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0], [2.0, 0.0, 0.0]]),
            "log_likelihood": np.array(-8.0), "mass": np.array(4.0)}  # fmt: skip
    means, weights, log_likelihood = maximised(sums, 1.0)
    rates = np.array([4.5, 0.5, 2.5]) / 5.0
    assert_allclose(smoothed_rates([4.0, 0.0, 2.0], 4.0), rates)
    assert_allclose(means, [[(3 + 0.9) / 4, 1.9 / 2, 0.9], [0.1 / 4, 0.1 / 2, 0.1], [2.5 / 4, 0.5 / 2, 0.5]])
    assert_allclose(weights, [0.75, 0.25, 0.0])
    assert log_likelihood == -2.0


@pytest.mark.parametrize("d", [40, 3000])
def test_a_block_needs_the_memory_that_is_planned(d):
    n, k = 2048, 12
    rows = random_array((n, d), density=10.0 / d, rng=np.random.default_rng(0)).tocsr()
    rows.data[:] = 1.0
    block = MemoryCorpus(rows.astype(int), shard_documents=n).read_shard(0)
    log_odds, constants = presence_logs(np.full((d, k), 0.1), np.full(k, 1 / k), 1e-15)
    pass_ = PresenceEMPass(d, log_odds=log_odds, constants=constants, n_components=k)
    sums = pass_.zero()
    most = 1.05 * pass_.working_bytes(n) + (1 << 18)
    assert peak_bytes(lambda: pass_.add(sums, block, {}), most) < most
