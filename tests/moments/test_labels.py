"""Label moments and posteriors of states, against their definitions."""

from itertools import permutations, product

import numpy as np
import pytest
from helpers import WeightedCorpus
from numpy.testing import assert_allclose

from distmom.engine import TallResult, open_engine
from distmom.moments.documents.labels import LabelMomentsPass, posteriors
from distmom.moments.weighting import MomentKind
from distmom.simulate.multilabel import planted

N, D, L, K = 9, 6, 4, 3


def data():
    rng = np.random.default_rng(3)
    X, Y = rng.poisson(0.9, (N, D)), rng.integers(0, 2, (N, L))
    X[0] = 0
    X[1] = [1, 0, 0, 0, 0, 0]
    X[2] = [1, 0, 1, 0, 0, 0]
    # The two words of a document are a pair, though not a triple.
    Y[2, 0] = 1
    return X, Y, rng.uniform(0.5, 2.0, N), rng.standard_normal((D, K))


def label_moment(X, Y, own, directions, kind):
    """Average ``D_ak D_bk`` over pairs (a, b) of positions of a document and its labels."""
    total, mass = np.zeros((L, K)), 0.0
    for x, y, weight in zip(X, Y, own, strict=True):
        words = np.flatnonzero(x) if kind.binary else np.repeat(np.arange(D), x)
        n, m = len(words), int(y.sum())
        chosen = list(permutations(range(n), 2) if kind.distinct else product(range(n), repeat=2))
        if not chosen or not m:
            continue
        omega = weight * (len(chosen) * m if kind.weighting == "pooled" else 1.0)
        mean = np.mean([directions[words[a]] * directions[words[b]] for a, b in chosen], axis=0)
        total += omega / m * np.outer(y, mean)
        mass += omega
    return total / mass


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("weighting", ["pooled", "document"])
@pytest.mark.parametrize("moments", ["paper", "distinct"])
def test_the_label_moment_is_that_of_all_pairs_of_positions(moments, weighting, binary):
    X, Y, own, directions = data()
    kind, found = MomentKind(moments, weighting, binary), {}
    pass_ = LabelMomentsPass(
        D, n_labels=L, n_states=K, kind=kind, directions=directions, log_topics=np.zeros((D, K)),
        log_weights=np.zeros(K),
    )  # fmt: skip

    def finish(tallies):
        found["cross"] = tallies.tall["cross"].read_rows(slice(0, L))
        found["mass"] = tallies.sums["mass"]
        return TallResult({}, {})

    with open_engine(WeightedCorpus(X, Y, own, shard_documents=4)) as engine:
        engine.run(pass_, finish=finish)
    assert_allclose(found["cross"] / found["mass"], label_moment(X, Y, own, directions, kind), atol=1e-12)


def test_posteriors_follow_the_rule_of_bayes():
    population = planted(D, L, K, random_state=1)
    X = data()[0]
    block = WeightedCorpus(X, np.ones((N, 1), int), np.ones(N), shard_documents=N).read_shard(0)
    logs = np.log(population.O)
    # A word counts once, however often it occurs.
    found, evidence = posteriors(block, logs, np.log(population.pi))
    joint = population.pi * np.prod(np.where(X[:, :, None] > 0, population.O, 1.0), axis=1)
    assert_allclose(found, joint / joint.sum(axis=1, keepdims=True), rtol=1e-5)
    assert_allclose(evidence, np.log(joint.sum(axis=1)), rtol=1e-5, atol=1e-12)
    counted = posteriors(block, logs, np.log(population.pi), counts=True)[0]
    assert_allclose(counted, population.state_posterior(X), rtol=1e-5)
