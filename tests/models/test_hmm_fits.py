"""Fits of hidden Markov models: plans, runs, memory, stored models, refusals, and the same bits."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from helpers import peak_bytes
from markov import EMISSION, TRANSITION, block_of, planted, sample
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from sklearn.base import clone

from distmom.corpus import RowCorpus
from distmom.engine import StoredColumns, open_engine
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import HiddenMarkov, load_model
from distmom.models.markov.chain import Chain
from distmom.models.markov.fitting import LEAST_WITHIN, Fitting
from distmom.models.markov.passes import DecodePass, ExpectationPass
from distmom.models.markov.recovery import ROUTES, Recovered
from distmom.moments.sequences.moments import ContextPass, WindowMomentsPass, WindowSketchPass
from distmom.moments.sequences.windows import StepMeanPass
from distmom.spectral.program.execute import execute
from distmom.spectral.steps.basis import Basis

SINGULAR = "two views is singular: . components need . singular values above"


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
        (np.zeros((9, 2)), None, {"n_components": 6}, UsageError, "at most 5 for steps of 2 values"),
        (
            np.zeros((9, 2)), None, {"n_components": 4, "features": "linear"}, UsageError,
            "at most 3 for steps of 2 values.*; features='squares' allows more",
        ),
        ([0, 1, 2, 1, 0], [3, 1], {}, InputError, "sum of the lengths: expected 5"),
        ([0, -1, 2], None, {}, InputError, "symbol of row 1"),
        ([[0.0], [np.nan], [1.0]], None, {}, InputError, "value in row 1, column 0"),
        ([0, 1, 0, 1], None, {"transition": "other"}, UsageError, "expected one of pairs, forward, backward"),
        (np.zeros((9, 2)), None, {"init": "anchors"}, UsageError, "expected symbols, got dense steps"),
        ([[0, 1, 2], [1, 0]], None, {}, InputError, "one after the other, got rows of different lengths"),
        (csr_array(np.eye(4)), None, {}, UsageError, r"of kind symbols or dense, got rows \(csr along rows\)"),
        ([0] * 9, None, {"n_components": 1, "n_power_iter": -1}, UsageError, "n_power_iter: expected at least 0"),
        ([0, 1, 0, 1], None, {"smoothing": -1.0}, UsageError, "smoothing: expected at least 0"),
        (
            [0, 1, 1, 2, 2, 2, 1, 2, 2], None, {"n_components": 3}, NumericalError,
            f"{SINGULAR}.*; init='clusters' uses",
        ),
        ([0, 0, 0, 0, 1, 2], None, {}, NumericalError, SINGULAR),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted_is_refused(X, lengths, options, error, message):
    with pytest.raises(error, match=message):
        HiddenMarkov(**{"n_components": 2, **options}).fit(
            np.zeros(0, int) if isinstance(X, list) and not X else X, lengths
        )


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


@pytest.mark.parametrize("d", [9, 60])
@pytest.mark.parametrize("degree", [1, 2])
def test_passes_over_dense_steps_take_no_more_memory_than_planned(degree, d):
    rng = np.random.default_rng(0)
    block = RowCorpus(rng.standard_normal((60_000, d)), [60_000], shard_rows=1 << 40).read_shard(0)
    p = 1 + d * degree
    common = {"degree": degree, "origin": np.zeros(d), "scale": np.ones(d), "basis": np.eye(p)[:, :7]}
    for pass_ in (
        StepMeanPass(d), WindowSketchPass(p, n_columns=7, **common), WindowMomentsPass(p, rank=7, **common),
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
    with pytest.raises(UsageError, match="random_state: expected a whole number from 0, got -1"):
        model.sample(2, random_state=-1)


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


def test_more_states_than_values_allow_are_found_by_their_squares():
    rng = np.random.default_rng(0)
    states = sample(20_000, 0)[1]
    steps = np.array([-4.0, 0.0, 4.0])[states] + rng.standard_normal(20_000)
    model = HiddenMarkov(3).fit(steps[:, None])
    order = np.argsort(model.means_[:, 0])
    assert_allclose(model.means_[order, 0], [-4.0, 0.0, 4.0], atol=0.1)
    assert_allclose(model.transmat_[np.ix_(order, order)], TRANSITION, atol=0.05)
    assert len(model.diagnostics_["log_likelihoods"]) == 10


def test_states_of_equal_means_are_found_by_squares():
    rng = np.random.default_rng(0)
    states = np.cumsum(rng.random(10_000) < 0.1) % 2
    steps = rng.standard_normal((10_000, 2)) * np.where(states == 0, 1.0, 4.0)[:, None]
    with pytest.raises(NumericalError, match="features='squares' also finds states of equal means"):
        HiddenMarkov(2, features="linear").fit(steps)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        others = (
            rng.standard_normal((3000, 2))
            * np.where(np.cumsum(rng.random(3000) < 0.1) % 2, 4.0, 1.0)[:, None]
        )
        assert HiddenMarkov(2, n_em_iter=0).fit(others).diagnostics_["features"] == "squares"
        others[:, 0] += 6.0 * (np.cumsum(rng.random(3000) < 0.1) % 2)
        assert HiddenMarkov(2, n_em_iter=0).fit(others).diagnostics_["features"] == "linear"
    model = HiddenMarkov(2).fit(steps)
    assert model.diagnostics_["features"] == "squares"
    assert_allclose(np.sort(model.variances_, axis=0), [[1.0, 1.0], [16.0, 16.0]], rtol=0.1)
    assert_allclose(model.transmat_, [[0.9, 0.1], [0.1, 0.9]], atol=0.02)
    names = [timing["name"] for timing in model.timings_]
    first = ["sketch", "power", "power", "moments"]
    assert names == ["means", *first, *first, *(10 * ["expect"])]
    plan = model.plan(RowCorpus(steps, [len(steps)]))
    assert [(p.name, p.possible) for p in plan.passes] == [
        *((name, False) for name in names[:5]), *((name, True) for name in first), *(10 * [("expect", False)])
    ]  # fmt: skip


def test_auto_finds_the_states_that_values_or_squares_find():
    used = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        steps = rng.standard_normal((150, 2))
        steps[:, 0] += 1.5 * (np.cumsum(rng.random(150) < 0.2) % 2)
        found = {}
        for features in ("auto", "squares", "linear"):
            with suppress(NumericalError):
                model = HiddenMarkov(2, features=features, n_em_iter=0).fit(steps)
                found[features] = model.diagnostics_["features"]
        assert ("auto" in found) == (len(found) > 0)
        assert found.get("auto") == ("squares" if "squares" in found else found.get("linear"))
        used.append(found.get("auto"))
    assert {"squares", "linear"} <= set(used)


def test_variances_that_the_moments_clip_are_warned_of_unless_passes_follow(caplog):
    # An autoregressive series is no chain of two states, and the moments give one of them a negative variance.
    rng = np.random.default_rng(0)
    steps = np.zeros((3000, 1))
    for t in range(1, len(steps)):
        steps[t] = 0.95 * steps[t - 1] + rng.exponential()
    alone, refined = (HiddenMarkov(2, n_em_iter=n).fit(steps) for n in (0, 5))
    assert sorted(alone.diagnostics_["clipped"]) == [0.0, 1.0]
    warned = [r.getMessage() for r in caplog.records if "min_variance" in r.getMessage()]
    assert len(warned) == 1
    assert "gave 1 of 2 states variances below min_variance" in warned[0]
    assert alone.score(steps) < refined.score(steps) - 10_000
    # The means differ by more than the steps do, so that the least average variance takes its place.
    alone.variances_[np.argmax(alone.diagnostics_["clipped"])] = LEAST_WITHIN * steps.var()
    first = refined.diagnostics_["log_likelihoods"][0]
    assert alone.score(steps) / len(steps) == pytest.approx(first, rel=1e-9)


def test_passes_begin_with_the_average_variance_of_states_in_place_of_clipped_ones():
    means, weights = np.array([[-0.6, 0.3], [2.0, -1.0]]), np.array([0.5, 0.5])
    moments = Recovered(
        np.vstack([[1.0, 1.0], means]), weights, dict.fromkeys(ROUTES, np.full((2, 2), 0.5)), weights,
        np.add(np.square(means), [[-0.1, 0.7], [0.3, 0.4]]), {},
    )  # fmt: skip
    corpus = RowCorpus(np.eye(2), [2])
    fields = {"degree": 1, "origin": np.zeros(2), "scale": np.ones(2)}
    fitting = Fitting("pairs", "stationary", 0.0, 1e-3, is_spread=False, is_refined=True)
    with open_engine(corpus) as engine:
        basis = Basis(StoredColumns((engine.put(np.eye(3)),)), 3, 0.0)
        chain, notes = fitting.from_moments(corpus, basis, moments, fields)
    # 1 - (0.36 + 0.09) / 2 + 0.15^2, of steps of variance 1
    assert_allclose(chain.variances, [[1.0 - 0.225 + 0.0225, 0.7], [0.3, 0.4]])
    assert notes["clipped"] == [0.5, 0.0]
