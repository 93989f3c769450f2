"""Hidden Markov models: exact populations, samples, and decoding by brute force and across cuts."""

import itertools

import numpy as np
import pytest
from helpers import WeightedRows, matched
from markov import EMISSION, START, TRANSITION, block_of, exact, planted, sample
from numpy.testing import assert_allclose

from distmom.corpus import RowCorpus
from distmom.engine import open_engine
from distmom.errors import NumericalError
from distmom.models import HiddenMarkov
from distmom.models.markov.chain import Chain, Edges, Steps, best_path, posterior
from distmom.models.markov.passes import DecodePass, ExpectationPass, TransferPass, cut_edges
from distmom.moments.sequences.moments import WindowMomentsPass, WindowSketchPass, window_moments
from distmom.simulate.chains import MarkovPopulation


def check_parameters(model, tolerance=1e-10):
    error, order = matched(model.emissionprob_, EMISSION)
    assert error < tolerance
    assert_allclose(model.transmat_, TRANSITION[np.ix_(order, order)], atol=tolerance)
    assert_allclose(model.startprob_, START[order], atol=tolerance)


@pytest.mark.parametrize("transition", ["pairs", "forward", "backward"])
@pytest.mark.parametrize("shard_rows", [None, 700])
def test_all_sequences_with_their_probabilities_give_back_the_parameters(transition, shard_rows):
    model = HiddenMarkov(3, transition=transition, smoothing=0.0, n_oversamples=2, n_em_iter=0)
    model.fit_corpus(exact(shard_rows=shard_rows))
    check_parameters(model)
    diagnostics = model.diagnostics_
    assert max(diagnostics["asymmetry"], *diagnostics["disagreement"].values()) < 1e-10
    assert diagnostics["sum_weights"] == pytest.approx(1.0, abs=1e-10)


def anchored():
    """Emissions in which the first three symbols are anchors, and all sequences of them."""
    emission = np.array([[0.5, 0.0, 0.0, 0.3, 0.2], [0.0, 0.4, 0.0, 0.2, 0.4], [0.0, 0.0, 0.6, 0.3, 0.1]])
    return emission, exact(emission, shard_rows=900)


@pytest.mark.parametrize("transition", ["pairs", "forward", "backward"])
def test_anchors_give_back_the_parameters_from_pairs(transition):
    emission, corpus = anchored()
    model = HiddenMarkov(3, init="anchors", transition=transition, smoothing=0.0, n_em_iter=0).fit_corpus(
        corpus
    )
    error, order = matched(model.emissionprob_, emission)
    assert error < 1e-10
    assert_allclose(model.transmat_, TRANSITION[np.ix_(order, order)], atol=1e-10)
    assert_allclose(model.startprob_, START[order], atol=1e-10)
    assert sorted(model.diagnostics_["anchors"]) == ["0", "1", "2"]
    assert max(model.diagnostics_["disagreement"].values()) < 1e-10
    names = ["sketch", "power", "power", "contexts"]
    assert [p.name for p in HiddenMarkov(3, init="anchors", n_em_iter=0).plan(corpus).passes] == names
    assert [timing["name"] for timing in model.timings_] == names


def test_clusters_give_back_the_parameters_where_each_symbol_is_of_one_state():
    emission = np.array([[0.5, 0.0, 0.0, 0.5, 0.0], [0.0, 0.4, 0.0, 0.0, 0.6], [0.0, 0.0, 1.0, 0.0, 0.0]])
    model = HiddenMarkov(3, init="clusters", smoothing=0.0, n_em_iter=0)
    model.fit_corpus(exact(emission, shard_rows=900))
    error, order = matched(model.emissionprob_, emission)
    assert error < 1e-10
    assert_allclose(model.transmat_, TRANSITION[np.ix_(order, order)], atol=1e-10)
    assert_allclose(model.startprob_, START[order], atol=1e-10)


@pytest.mark.parametrize("n_em_iter", [0, 2])
def test_the_initial_law_can_be_stationary(n_em_iter):
    model = HiddenMarkov(3, initial="stationary", n_em_iter=n_em_iter).fit(sample(3000, 0)[0])
    assert_allclose(model.startprob_ @ model.transmat_, model.startprob_, atol=1e-12)
    assert_allclose(model.startprob_.sum(), 1.0)


@pytest.mark.parametrize("features", ["linear", "squares"])
def test_dense_steps_give_back_conditional_means_and_variances(features):
    # Points with a law of their own in every state: only means and variances of the values matter.
    points = np.random.default_rng(5).normal(3.0, 2.0, (6, 4))
    laws = np.random.default_rng(6).dirichlet(np.full(6, 0.5), 3)
    drawn = MarkovPopulation(START, TRANSITION, laws).enumerate(3, 4)
    corpus = WeightedRows(points[drawn.X], drawn.weights, drawn.lengths)
    model = HiddenMarkov(3, features=features, smoothing=0.0, min_variance=0.0, n_em_iter=0).fit_corpus(
        corpus
    )
    means = laws @ points
    error, order = matched(model.means_, means)
    assert error < 1e-10
    assert_allclose(model.variances_, (laws @ points**2 - means**2)[order], rtol=1e-8)
    assert_allclose(model.transmat_, TRANSITION[np.ix_(order, order)], atol=1e-10)
    assert_allclose(model.startprob_, START[order], atol=1e-10)


def test_squares_tell_states_of_equal_means_apart():
    rng = np.random.default_rng(0)
    states = np.cumsum(rng.random(40_000) < 0.1) % 2
    X = rng.standard_normal((40_000, 2)) * np.where(states == 0, 1.0, 4.0)[:, None]
    model = HiddenMarkov(2, features="squares", n_em_iter=0).fit(X)
    assert_allclose(np.sort(model.variances_.mean(axis=1)), [1.0, 16.0], rtol=0.15)
    assert_allclose(model.transmat_, [[0.9, 0.1], [0.1, 0.9]], atol=0.03)


def test_errors_fall_with_the_root_of_the_number_of_steps():
    errors = []
    for n in (10_000, 160_000):
        of_seeds = []
        for seed in range(4):
            model = HiddenMarkov(3, n_em_iter=0).fit(sample(n, seed)[0])
            order = matched(model.emissionprob_, EMISSION)[1]
            of_seeds.append(np.abs(model.emissionprob_ - EMISSION[order]).mean())
        errors.append(np.mean(of_seeds))
    assert 2.2 < errors[0] / errors[1] < 7.0


def test_decoding_agrees_with_all_paths():
    model = planted()[0]
    X = sample(7, 3)[0]
    paths = list(itertools.product(range(3), repeat=7))
    start, transition, emission = model.startprob_, model.transmat_, model.emissionprob_
    joint = np.array([
        start[p[0]] * np.prod([transition[a, b] for a, b in itertools.pairwise(p)])
        * np.prod([emission[h, x] for h, x in zip(p, X, strict=True)])
        for p in paths
    ])  # fmt: skip
    marginal = np.array([[joint[[p[t] == h for p in paths]].sum() for h in range(3)] for t in range(7)])
    assert_allclose(model.predict_proba(X), marginal / joint.sum(), rtol=1e-10)
    assert model.predict(X).tolist() == list(paths[int(np.argmax(joint))])
    assert model.score(X) == pytest.approx(np.log(joint.sum()))
    twice = model.score_samples(np.tile(X, 2), [7, 7])
    assert_allclose(twice, np.log(joint.sum()), rtol=1e-12)


def test_moments_of_cut_sequences_are_those_of_whole_ones():
    lengths = [1, 40, 2, 3, 90, 1, 1, 9]
    X = np.random.default_rng(1).integers(0, 5, sum(lengths))
    Q = np.linalg.qr(np.random.default_rng(2).standard_normal((5, 4)))[0]
    for values, degree in ((X, 0), (np.eye(5)[X][:, :2] + 0.5, 2)):
        common = {"degree": degree, "origin": np.full(2, 0.2), "scale": np.full(2, 0.7)} if degree else {}
        found = []
        for shard_rows in (1000, 8, 17):
            corpus = RowCorpus(values, lengths, shard_rows=shard_rows, n_symbols=None if degree else 5)
            with open_engine(corpus) as engine:
                sums = engine.run(WindowMomentsPass(5, basis=Q, rank=4, **common)).sums
            assert sums["mass"] == sum(max(n - 2, 0) for n in lengths)
            assert sums["n_first"] == len(lengths)
            found.append(dict(sums))
        for other in found[1:]:
            for name, value in other.items():
                assert_allclose(value, found[0][name], atol=1e-10)


def test_the_sketch_is_the_moment_of_different_steps():
    lengths, X = [6, 2, 5], sample(13, 5)[0]
    block = block_of(X, lengths)
    pass_ = WindowSketchPass(5, n_columns=5, basis=np.eye(5))
    sums = pass_.zero()
    pass_.add(sums, block, {})
    expected = np.zeros((5, 5))
    for start, length in ((0, 6), (6, 2), (8, 5)):
        for t in range(start, start + length - 2):
            for a, b in itertools.permutations(range(3), 2):
                expected[X[t + a], X[t + b]] += 1.0
    assert_allclose(sums["sketch"].single, expected)
    moments = WindowMomentsPass(5, basis=np.eye(5), rank=5)
    added = moments.zero()
    moments.add(added, block, {})
    found = window_moments(added)
    total = sum(found.pair(a, b) for a, b in itertools.permutations(range(3), 2))
    assert_allclose(total * sums["mass"], expected, atol=1e-12)


CUTS = ([30, 1, 2, 120, 3, 1, 77], (13, 8))


def chains():
    rng = np.random.default_rng(4)
    means, variances = rng.standard_normal((2, 3)), rng.uniform(0.5, 2.0, (2, 3))
    n = sum(CUTS[0])
    yield Chain(START, TRANSITION, np.ascontiguousarray(EMISSION.T)), rng.integers(0, 5, n)
    yield Chain(START, TRANSITION, None, means, variances), rng.standard_normal((n, 2))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("shard_rows", CUTS[1])
def test_cut_sequences_are_decoded_as_whole_ones(dense, shard_rows):
    chain, X = list(chains())[dense]
    corpus = RowCorpus(X, CUTS[0], shard_rows=shard_rows, **({} if dense else {"n_symbols": 5}))
    whole = Steps(RowCorpus(X, CUTS[0], shard_rows=1 << 40).read_shard(0), chain)
    logs, shares = posterior(whole, chain, Edges.none(3))
    path = best_path(whole, chain, Edges.none(3))
    d = corpus.n_words
    common = {"chain": chain, "n_states": 3, "dense": dense}
    with open_engine(corpus) as engine:
        products = engine.run(TransferPass(d, paths=True, **common)).rows["products"]
        stored = {"edges": cut_edges(engine, products, chain)}
        decode = DecodePass(d, **common)
        found, states = [], []
        for i in range(len(corpus.shards)):
            block = corpus.read_shard(i).with_context(0)
            edges = decode.edges({"edges": stored["edges"].read(i)})
            found.append(posterior(Steps(block, chain), chain, edges)[1])
        result = engine.run(decode, stored)
        states = [result.rows["states"].read(i) for i in range(len(corpus.shards))]
        sums = engine.run(ExpectationPass(d, origin=np.zeros(d), **common), stored).sums
    assert_allclose(np.concatenate(found), shares, atol=1e-12)
    np.testing.assert_array_equal(np.concatenate(states), path)
    assert float(result.sums["log_likelihood"]) == pytest.approx(logs.sum(), rel=1e-12)
    step = ExpectationPass(d, origin=np.zeros(d), **common)
    expected = step.zero()
    step.add(expected, RowCorpus(X, CUTS[0], shard_rows=1 << 40).read_shard(0), {})
    for name, value in expected.items():
        assert_allclose(sums[name], value, rtol=1e-10, atol=1e-10)
    assert expected["pairs"].sum() == pytest.approx(sum(CUTS[0]) - len(CUTS[0]))


def test_pieces_inside_a_block_do_not_change_what_is_decoded(monkeypatch):
    chain, X = next(chains())
    steps = Steps(RowCorpus(X, CUTS[0], n_symbols=5).read_shard(0), chain)
    logs, shares = posterior(steps, chain, Edges.none(3))
    path = best_path(steps, chain, Edges.none(3))
    monkeypatch.setattr("distmom.models.markov.chain.PIECE_ROWS", 7)
    again = posterior(steps, chain, Edges.none(3))
    np.testing.assert_array_equal(again[0], logs)
    np.testing.assert_array_equal(again[1], shares)
    np.testing.assert_array_equal(best_path(steps, chain, Edges.none(3)), path)


def test_passes_of_baum_and_welch_raise_the_likelihood():
    X = sample(4000, 7)[0]
    model = HiddenMarkov(3, n_em_iter=6, smoothing=0.0, initial="first").fit(X)
    logs = [*model.diagnostics_["log_likelihoods"], model.score(X) / len(X)]
    assert len(logs) == 7
    assert min(np.diff(logs)) > -1e-12
    assert logs[-1] > logs[0] + 1e-4


def test_dense_passes_of_baum_and_welch_find_the_parameters():
    rng = np.random.default_rng(0)
    states = sample(20_000, 1)[1]
    means = np.array([[0.0, 5.0], [3.0, 0.0], [6.0, 6.0]])
    X = (
        1000.0
        + means[states]
        + rng.standard_normal((len(states), 2)) * np.array([0.5, 1.0, 1.5])[states][:, None]
    )
    model = HiddenMarkov(3, n_em_iter=10).fit(X)
    order = matched(model.means_ - 1000.0, means)[1]
    assert_allclose(model.means_ - 1000.0, means[order], atol=0.1)
    assert_allclose(np.sqrt(model.variances_).mean(axis=1), np.array([0.5, 1.0, 1.5])[order], rtol=0.05)
    assert (model.predict(X) == np.argsort(order)[states]).mean() > 0.97


def test_unseen_symbols_have_a_finite_likelihood():
    X = sample(5000, 0)[0]
    corpus = RowCorpus(X, [5000], n_symbols=9)
    model = HiddenMarkov(3).fit_corpus(corpus)
    assert np.isfinite(model.score(np.array([0, 8, 1, 7, 2])))
    assert_allclose(model.emissionprob_.sum(axis=1), 1.0)
    assert np.isneginf(HiddenMarkov(3, smoothing=0.0, n_em_iter=1).fit_corpus(
        RowCorpus(X, [5000], n_symbols=9)).score(np.array([0, 8, 1])))  # fmt: skip


def test_samples_follow_the_model():
    model, _ = planted()
    X, states = model.sample(50_000, random_state=1)
    pairs = np.zeros((3, 3))
    np.add.at(pairs, (states[:-1], states[1:]), 1.0)
    assert_allclose(pairs / pairs.sum(axis=1, keepdims=True), model.transmat_, atol=0.02)
    assert_allclose(
        np.bincount(X[states == 0], minlength=5) / (states == 0).sum(), model.emissionprob_[0], atol=0.02
    )


def test_moments_without_the_states_are_refused_with_numbers():
    with pytest.raises(
        NumericalError, match=r"n_components=2: expected moments of windows of at least .*, got 1;"
    ):
        HiddenMarkov(2).fit(np.tile([1.0, 2.0, 3.0], (50, 1)))
    constant = RowCorpus(np.zeros(50, int), [50], n_symbols=3)
    for init in ("anchors", "clusters"):
        with pytest.raises(
            NumericalError, match=f"init='{init}': expected at least n_components=2 .* got 1;"
        ):
            HiddenMarkov(2, init=init).fit_corpus(constant)
    large = 1e160 * np.random.default_rng(0).standard_normal((50, 2))
    with pytest.raises(NumericalError, match="squares of value 0 overflow"), np.errstate(over="ignore"):
        HiddenMarkov(2).fit(large)
