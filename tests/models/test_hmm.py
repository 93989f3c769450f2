"""Hidden Markov models: exact populations, samples, decoding by brute force and across cuts, refusals."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from helpers import WeightedRows, matched, peak_bytes
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from sklearn.base import clone

from distmom.corpus import RowCorpus
from distmom.engine import open_engine
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import HiddenMarkov, load_model
from distmom.models.markov.chain import Chain, Edges, Steps, best_path, posterior
from distmom.models.markov.passes import DecodePass, ExpectationPass, TransferPass, cut_edges
from distmom.moments.sequences import ContextPass, WindowMomentsPass, WindowSketchPass, window_moments
from distmom.moments.windows import StepMeanPass
from distmom.simulate.chains import MarkovPopulation
from distmom.spectral.execute import execute

START = np.array([0.6, 0.3, 0.1])
TRANSITION = np.array([[0.7, 0.2, 0.1], [0.1, 0.75, 0.15], [0.25, 0.15, 0.6]])
EMISSION = np.random.default_rng(2).dirichlet(np.full(5, 0.6), 3)


TRUE = MarkovPopulation(START, TRANSITION, EMISSION)


def exact(emission=EMISSION, **options):
    """All sequences of three and of four symbols, with their probabilities."""
    drawn = MarkovPopulation(START, TRANSITION, emission).enumerate(3, 4)
    return WeightedRows(drawn.X, drawn.weights, drawn.lengths, n_symbols=emission.shape[1], **options)


def sample(n, seed):
    """One sequence of symbols, and their states."""
    drawn = TRUE.sample([n], seed)
    return drawn.X, drawn.states


def check_parameters(model, tolerance=1e-10):
    error, order = matched(model.emissionprob_, EMISSION)
    assert error < tolerance
    assert_allclose(model.transmat_, TRANSITION[np.ix_(order, order)], atol=tolerance)
    assert_allclose(model.startprob_, START[order], atol=tolerance)


def planted(n_symbols=5):
    """The planted model as a fitted one."""
    model = HiddenMarkov(3, smoothing=0.0).fit_corpus(exact())
    order = matched(model.emissionprob_, EMISSION)[1]
    model.startprob_, model.transmat_ = START[order], TRANSITION[np.ix_(order, order)]
    model.emissionprob_ = EMISSION[order]
    return model, order


@pytest.mark.parametrize("transition", ["pairs", "forward", "backward"])
@pytest.mark.parametrize("shard_rows", [None, 700])
def test_all_sequences_with_their_probabilities_give_back_the_parameters(transition, shard_rows):
    model = HiddenMarkov(3, transition=transition, smoothing=0.0, n_oversamples=2)
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
    model = HiddenMarkov(3, init="anchors", transition=transition, smoothing=0.0).fit_corpus(corpus)
    error, order = matched(model.emissionprob_, emission)
    assert error < 1e-10
    assert_allclose(model.transmat_, TRANSITION[np.ix_(order, order)], atol=1e-10)
    assert_allclose(model.startprob_, START[order], atol=1e-10)
    assert sorted(model.diagnostics_["anchors"]) == ["0", "1", "2"]
    assert max(model.diagnostics_["disagreement"].values()) < 1e-10
    names = ["sketch", "power", "power", "contexts"]
    assert [p.name for p in HiddenMarkov(3, init="anchors").plan(corpus).passes] == names
    assert [timing["name"] for timing in model.timings_] == names


def test_clusters_give_back_the_parameters_where_each_symbol_is_of_one_state():
    emission = np.array([[0.5, 0.0, 0.0, 0.5, 0.0], [0.0, 0.4, 0.0, 0.0, 0.6], [0.0, 0.0, 1.0, 0.0, 0.0]])
    model = HiddenMarkov(3, init="clusters", smoothing=0.0)
    model.fit_corpus(exact(emission, shard_rows=900))
    error, order = matched(model.emissionprob_, emission)
    assert error < 1e-10
    assert_allclose(model.transmat_, TRANSITION[np.ix_(order, order)], atol=1e-10)
    assert_allclose(model.startprob_, START[order], atol=1e-10)


def test_the_initial_law_can_be_stationary():
    model = HiddenMarkov(3, initial="stationary", smoothing=0.0).fit_corpus(exact())
    assert_allclose(model.startprob_ @ model.transmat_, model.startprob_, atol=1e-12)


@pytest.mark.parametrize("features", ["linear", "squares"])
def test_dense_steps_give_back_conditional_means_and_variances(features):
    # Points with a law of their own in every state: only means and variances of the values matter.
    points = np.random.default_rng(5).normal(3.0, 2.0, (6, 4))
    laws = np.random.default_rng(6).dirichlet(np.full(6, 0.5), 3)
    drawn = MarkovPopulation(START, TRANSITION, laws).enumerate(3, 4)
    corpus = WeightedRows(points[drawn.X], drawn.weights, drawn.lengths)
    model = HiddenMarkov(3, features=features, smoothing=0.0, min_variance=0.0).fit_corpus(corpus)
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
    model = HiddenMarkov(2, features="squares").fit(X)
    assert_allclose(np.sort(model.variances_.mean(axis=1)), [1.0, 16.0], rtol=0.15)
    assert_allclose(model.transmat_, [[0.9, 0.1], [0.1, 0.9]], atol=0.03)


def test_errors_fall_with_the_root_of_the_number_of_steps():
    errors = []
    for n in (10_000, 160_000):
        of_seeds = []
        for seed in range(4):
            model = HiddenMarkov(3).fit(sample(n, seed)[0])
            order = matched(model.emissionprob_, EMISSION)[1]
            of_seeds.append(np.abs(model.emissionprob_ - EMISSION[order]).mean())
        errors.append(np.mean(of_seeds))
    assert 2.2 < errors[0] / errors[1] < 7.0


def block_of(X, lengths):
    return RowCorpus(X, lengths, n_symbols=5, shard_rows=1 << 40).read_shard(0)


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
    model = HiddenMarkov(3, n_em_iter=6, smoothing=0.0).fit(X)
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


def test_the_plan_lists_the_passes_that_are_made(tmp_path):
    X = sample(3000, 2)[0]
    for shard_rows, cut in ((None, []), (1000, ["transfer"])):
        corpus = RowCorpus(X, [2500, 500], shard_rows=shard_rows)
        model = HiddenMarkov(3, n_em_iter=2, n_power_iter=1)
        names = ["sketch", "power", "moments", *(2 * [*cut, "expect"])]
        assert [p.name for p in model.plan(corpus).passes] == names
        model.fit_corpus(corpus, run=tmp_path / f"run{shard_rows}", memory_limit=2 << 30)
        assert [timing["name"] for timing in model.timings_] == names
        again = HiddenMarkov(3, n_em_iter=2, n_power_iter=1).fit_corpus(
            corpus, run=tmp_path / f"run{shard_rows}"
        )
        assert all(timing["resumed"] for timing in again.timings_)
        assert (again.emissionprob_ == model.emissionprob_).all()
    assert model.plan(corpus, n_workers=2).seconds is not None


def test_a_run_decodes_a_corpus_with_cut_sequences():
    model, _ = planted()
    # A parameter of the next fit does not change the states of this one.
    model.set_params(n_components=4)
    X = sample(600, 4)[0]
    corpus = RowCorpus(X, [500, 100], n_symbols=5, shard_rows=64)
    with open_engine(corpus) as engine:
        found = execute(model.assign, engine)
        stored = {
            name: np.concatenate([rows.read(i) for i in range(len(corpus.shards))])
            for name, rows in found.items()
        }
    assert found["states"].axis == "rows"
    np.testing.assert_array_equal(stored["states"], model.predict(X, [500, 100]))
    assert_allclose(stored["probabilities"], model.predict_proba(X, [500, 100]), atol=1e-6)


def test_a_saved_model_is_the_same(tmp_path):
    X = sample(3000, 2)[0]
    symbols = HiddenMarkov(3).fit(X)
    dense = HiddenMarkov(3).fit(np.eye(5)[X] + np.random.default_rng(0).standard_normal((3000, 5)) / 9)
    for model, values in ((symbols, X), (dense, np.eye(5)[X])):
        model.save(tmp_path / "m", overwrite=True)
        loaded = load_model(tmp_path / "m")
        assert loaded.score(values) == model.score(values)
        assert (loaded.predict(values) == model.predict(values)).all()
        assert loaded.summary() == model.summary()
    assert (symbols.means_, dense.emissionprob_) == (None, None)


def test_pictures_are_data():
    model, _ = planted()
    matrix, *bars = model.pictures(2)
    assert matrix["kind"] == "matrix"
    assert_allclose(matrix["values"], model.transmat_)
    assert [bar["kind"] for bar in bars] == ["bars"] * 3
    assert bars[0]["names"][0] == model.vocabulary_[int(model.emissionprob_[0].argmax())]


def test_parameters_follow_the_contract_of_estimators():
    model = clone(HiddenMarkov(4, n_em_iter=2, transition="forward"))
    assert model.get_params()["transition"] == "forward"
    X = sample(3000, 2)[0]
    assert (HiddenMarkov(2).fit(X).transmat_ == HiddenMarkov(2).fit(X[:, None]).transmat_).all()


@pytest.mark.parametrize(
    ("X", "lengths", "options", "error", "message"),
    [
        ([0, 1, 0, 1], [2, 2], {}, InputError, "at least 3 steps, got 2 as the longest of 2"),
        ([0], None, {}, InputError, "at least 3 steps, got 1 as the longest of 1"),
        ([], None, {}, InputError, "got 0 as the longest of 0"),
        ([0, 1, 2, 1, 0], None, {"n_components": 4}, UsageError, "at most 3, the number of symbols, got 4"),
        (np.zeros((9, 2)), None, {"n_components": 4}, UsageError, "at most 3 for steps of 2 values"),
        ([0, 1, 2, 1, 0], [3, 1], {}, InputError, "sum of the lengths: expected 5"),
        ([0, -1, 2], None, {}, InputError, "symbol of row 1"),
        ([[0.0], [np.nan], [1.0]], None, {}, InputError, "value in row 1, column 0"),
        ([0, 1, 0, 1], None, {"transition": "other"}, UsageError, "expected one of pairs, forward, backward"),
        (np.zeros((9, 2)), None, {"init": "anchors"}, UsageError, "expected symbols, got dense steps"),
        ([[0, 1, 2], [1, 0]], None, {}, InputError, "one after the other, got rows of different lengths"),
        (csr_array(np.eye(4)), None, {}, UsageError, r"of kind symbols or dense, got rows \(csr along rows\)"),
        ([0] * 9, None, {"n_components": 1, "n_power_iter": -1}, UsageError, "n_power_iter: expected at least 0"),
        ([0, 1, 0, 1], None, {"smoothing": -1.0}, UsageError, "smoothing: expected at least 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted_is_refused(X, lengths, options, error, message):
    with pytest.raises(error, match=message):
        HiddenMarkov(**{"n_components": 2, **options}).fit(
            np.zeros(0, int) if isinstance(X, list) and not X else X, lengths
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


@pytest.mark.parametrize("features", ["linear", "squares"])
def test_one_state_has_the_mean_and_the_variance_of_all_steps(features):
    # There are three states: their differences must not displace the constant feature.
    states = sample(4000, 1)[1]
    X = np.array([[0.0, 5.0], [3.0, 0.0], [6.0, 6.0]])[states]
    X = X + np.random.default_rng(0).standard_normal(X.shape)
    model = HiddenMarkov(1, features=features).fit(X)
    assert_allclose(model.means_[0], X.mean(axis=0), atol=0.01)
    assert_allclose(model.variances_[0], X.var(axis=0), rtol=0.01)
    symbols = sample(4000, 1)[0]
    one = HiddenMarkov(1).fit(symbols)
    assert_allclose(one.emissionprob_[0], np.bincount(symbols) / 4000, atol=1e-3)


@pytest.mark.parametrize("lengths", [np.ones(200_000, int), np.full(100_000, 2), [200_000]])
def test_passes_take_no_more_memory_than_planned(lengths):
    rng = np.random.default_rng(0)
    lengths = np.append(lengths, 9)
    chain = Chain(np.full(3, 1 / 3), TRANSITION, np.ascontiguousarray(EMISSION.T))
    Q = np.linalg.qr(rng.standard_normal((5, 4)))[0]
    X = rng.integers(0, 5, lengths.sum())
    block = block_of(X, lengths)
    common = {"chain": chain, "n_states": 3}
    for pass_ in (
        WindowSketchPass(5, n_columns=4, basis=Q), WindowMomentsPass(5, basis=Q, rank=4),
        ContextPass(5, basis=Q, rank=4), ExpectationPass(5, **common), DecodePass(5, **common),
    ):  # fmt: skip
        sums = pass_.zero()
        n = len(X)
        most = 1.1 * (pass_.working_bytes(n) + pass_.row_bytes * n) + 50_000
        assert peak_bytes(lambda pass_=pass_, sums=sums: pass_.add(sums, block, {}), most) <= most, pass_.name


@pytest.mark.parametrize("degree", [1, 2])
def test_passes_over_dense_steps_take_no_more_memory_than_planned(degree):
    rng = np.random.default_rng(0)
    block = RowCorpus(rng.standard_normal((60_000, 9)), [60_000], shard_rows=1 << 40).read_shard(0)
    p = 1 + 9 * degree
    common = {"degree": degree, "origin": np.zeros(9), "scale": np.ones(9), "basis": np.eye(p)[:, :7]}
    for pass_ in (
        StepMeanPass(9), WindowSketchPass(p, n_columns=7, **common), WindowMomentsPass(p, rank=7, **common),
    ):  # fmt: skip
        sums = pass_.zero()
        most = pass_.working_bytes(60_000) + 50_000
        assert peak_bytes(lambda pass_=pass_, sums=sums: pass_.add(sums, block, {}), most) <= most, pass_.name


def test_a_column_of_integers_is_read_as_what_was_fitted():
    X = np.random.default_rng(0).integers(-3, 4, (2000, 1)) + 20 * sample(2000, 1)[1][:, None]
    model = HiddenMarkov(2).fit(X.astype(float))
    assert (model.predict(X) == model.predict(X.astype(float))).all()


def test_steps_that_overflow_say_nothing_about_the_states():
    X = np.random.default_rng(0).standard_normal((2000, 2)) + 5.0 * sample(2000, 1)[1][:, None]
    model = HiddenMarkov(2).fit(X)
    far = np.full((3, 2), 1e200)
    assert np.isneginf(model.score(far))
    assert_allclose(model.predict_proba(far).sum(axis=1), 1.0)


def test_steps_of_another_kind_or_width_are_refused():
    model, _ = planted()
    with pytest.raises(UsageError, match="expected steps of kind symbols as fitted, got dense"):
        model.predict(np.zeros((4, 5)))
    with pytest.raises(InputError, match="symbol of row 0: expected 0 to 4, got 7"):
        model.predict([7, 1])
    with pytest.raises(InputError, match="number of steps"):
        model.predict(np.zeros(0, int))
    with pytest.raises(UsageError, match="expected steps of kind symbols as fitted, got csr"):
        model.predict(csr_array(np.eye(5)))
    with pytest.raises(UsageError, match="n_steps: expected at least 0, got -1"):
        model.sample(-1)


@pytest.mark.cluster
def test_workers_do_not_change_the_bits(cluster):
    corpus = RowCorpus(sample(6000, 2)[0], [5500, 500], n_symbols=5, shard_rows=500)
    model = HiddenMarkov(3, n_em_iter=1)
    alone, together = clone(model).fit_corpus(corpus), clone(model).fit_corpus(corpus, client=cluster)
    assert (alone.emissionprob_ == together.emissionprob_).all()
    assert (alone.transmat_ == together.transmat_).all()


def test_the_example_of_the_page_runs():
    text = (Path(__file__).parents[2] / "docs" / "hmm.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    names = {}
    exec(code, names)
    assert names["error"] < 0.05
