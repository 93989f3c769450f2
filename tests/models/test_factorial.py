"""Factorial hidden Markov models: exact populations, samples, decoding by all paths, refusals."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from helpers import WeightedRows, matched, peak_bytes
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from distmom.corpus import RowBlock, RowCorpus
from distmom.engine import open_engine
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import FactorialHMM, load_model
from distmom.models.factorial.joint import JointDecodePass, joint_chain
from distmom.moments.sequences.factorial import ChainMomentsPass, ChainSketchPass, selected_windows
from distmom.simulate.chains import FactorialChains
from distmom.spectral.program.execute import execute

NOISE = np.array([[0.5, 0.0, 0.0], [-0.5, 0.0, 0.0], [0.0, 1.0, 0.3], [0.0, -1.0, -0.3]])


def planted(k=2, d=3, seed=1, stationary=False, intercept=True):
    """A model whose chains are rarely +1 at the second step."""
    rng = np.random.default_rng(seed)
    fall, rise = rng.uniform(0.25, 0.45, k), rng.uniform(0.05, 0.15, k) + 0.05 * np.arange(k)
    chains = FactorialChains(
        rng.standard_normal((k, d)), rng.standard_normal(d) if intercept else np.zeros(d),
        rng.uniform(0.1, 0.3, k), fall, rise,
    )  # fmt: skip
    if stationary:
        return FactorialChains(chains.components, chains.intercept, chains.stationary, fall, rise)
    return chains


def population(chains, length=3, noise=NOISE, **options):
    drawn = chains.enumerate(length, noise)
    return WeightedRows(drawn.X, drawn.weights, drawn.lengths, **options)


def with_laws(start, fall, rise):
    chains = planted(len(start))
    return FactorialChains(chains.components, chains.intercept, *(np.array(x) for x in (start, fall, rise)))


def second_law(chains):
    """Probability of +1 at the second step."""
    return chains.start * (1.0 - chains.fall) + (1.0 - chains.start) * chains.rise


def check_parameters(model, chains, tolerance=1e-10):
    error, order = matched(model.components_, chains.components)
    assert error < tolerance
    for found, true in (
        (model.startprob_, chains.start), (model.fall_, chains.fall), (model.rise_, chains.rise),
    ):  # fmt: skip
        assert_allclose(found, true[order], atol=tolerance)
    assert_allclose(model.intercept_, chains.intercept, atol=10 * tolerance)


@pytest.mark.parametrize("windows", ["first", "all"])
@pytest.mark.parametrize("shard_rows", [None, 5000])
def test_all_sequences_with_their_probabilities_give_back_the_parameters(windows, shard_rows):
    chains = planted()
    assert (second_law(chains) < 0.5).all()
    model = FactorialHMM(2, windows=windows, n_em_iter=0).fit_corpus(
        population(chains, shard_rows=shard_rows)
    )
    check_parameters(model, chains)
    assert_allclose(model.variances_, np.square(NOISE).mean(axis=0), atol=1e-10)
    facts = model.diagnostics_
    assert max(facts["asymmetry"], facts["coupling"], facts["off_diagonal_share"]) < 1e-10
    assert max(facts["disagreement"]) < 1e-10


def test_three_chains_of_six_values_come_back():
    chains = planted(3, 6, seed=4)
    noise = np.array([[0.2, -0.1, 0.4, 0.0, 0.3, 0.1]])
    corpus = population(chains, noise=np.concatenate([noise, -noise]))
    model = FactorialHMM(3, n_oversamples=0, min_variance=0.0, n_em_iter=0).fit_corpus(corpus)
    check_parameters(model, chains)
    assert_allclose(model.variances_, np.square(noise[0]), atol=1e-10)
    check_parameters(FactorialHMM(3, n_em_iter=0).fit_corpus(corpus), chains)


def test_a_frequent_state_is_the_negative_one():
    chains = planted()
    turned = FactorialChains(
        -chains.components, chains.intercept, 1.0 - chains.start, chains.rise, chains.fall
    )
    check_parameters(FactorialHMM(2, n_em_iter=0).fit_corpus(population(turned)), chains)


def test_one_chain_and_one_chain_without_skewness_are_found():
    chains = planted()
    fall, start = np.array([0.3, 0.3]), np.array([0.2, 0.5])
    even = FactorialChains(chains.components, chains.intercept, start, fall, np.array([0.1, 0.3]))
    assert second_law(even)[1] == pytest.approx(0.5)
    model = FactorialHMM(2, n_em_iter=0).fit_corpus(population(even))
    error, order = matched(model.components_, even.components, signed=False)
    assert error < 1e-10
    assert_allclose(model.fall_, fall, atol=1e-10)
    assert_allclose(model.rise_, even.rise[order], atol=1e-10)
    one = FactorialChains(*(getattr(chains, name)[:1] for name in ("components",)), chains.intercept,
                          chains.start[:1], chains.fall[:1], chains.rise[:1])  # fmt: skip
    check_parameters(FactorialHMM(1, n_em_iter=0).fit_corpus(population(one)), one)


def test_first_windows_serve_for_any_initial_law_and_all_windows_for_stationary_chains():
    noise = np.zeros((1, 3))
    chains = with_laws([0.9, 0.8], [0.5, 0.6], [0.1, 0.15])
    longer = population(chains, 5, noise, shard_rows=700)
    check_parameters(FactorialHMM(2, windows="first", n_em_iter=0).fit_corpus(longer), chains)
    pooled = FactorialHMM(2, windows="all", n_em_iter=0).fit_corpus(longer)
    assert matched(pooled.components_, chains.components)[0] > 1e-4
    assert pooled.diagnostics_["coupling"] > 1e-4
    settled = planted(seed=2, stationary=True)
    for windows in ("first", "all"):
        model = FactorialHMM(2, windows=windows, n_em_iter=0).fit_corpus(population(settled, 4, noise))
        check_parameters(model, settled)
        assert np.abs(model.diagnostics_["drift"]).max() < 1e-10


def test_without_an_offset_the_means_of_the_steps_give_those_of_the_chains():
    chains = planted(intercept=False)
    model = FactorialHMM(2, fit_intercept=False, n_em_iter=0).fit_corpus(population(chains))
    check_parameters(model, chains)
    # The noise is not Gaussian, as passes assume.
    refined = FactorialHMM(2, fit_intercept=False).fit_corpus(population(chains))
    assert 1e-3 < matched(refined.components_, chains.components)[0] < 0.05
    assert max(model.diagnostics_["skewness_mismatch"]) < 1e-10
    assert not model.intercept_.any()
    shifted = FactorialHMM(2, fit_intercept=False, n_em_iter=0).fit_corpus(population(planted()))
    assert max(shifted.diagnostics_["skewness_mismatch"]) > 0.1


@pytest.mark.parametrize("windows", ["first", "all"])
@pytest.mark.slow
def test_errors_fall_with_the_root_of_the_number_of_sequences(windows):
    chains = planted(2, 5, seed=3, stationary=windows == "all")
    length = 3 if windows == "first" else 20
    errors = []
    for n in (4000, 64_000):
        n_sequences = n if windows == "first" else n // 4
        of_seeds = []
        for seed in range(6):
            drawn = chains.sample(n_sequences, length, noise=0.5, seed=seed)
            model = FactorialHMM(2, windows=windows, n_em_iter=0).fit(drawn.X, drawn.lengths)
            order = matched(model.components_, chains.components)[1]
            laws = np.concatenate([model.fall_ - chains.fall[order], model.rise_ - chains.rise[order]])
            of_seeds.append(
                (np.abs(model.components_ - chains.components[order]).mean(), np.abs(laws).mean())
            )
        errors.append(np.mean(of_seeds, axis=0))
    ratios = errors[0] / errors[1]
    assert ((ratios > 2.3) & (ratios < 7.0)).all(), ratios


def test_one_long_sequence_is_enough_for_stationary_chains():
    chains = planted(2, 5, seed=3, stationary=True)
    model = FactorialHMM(2, windows="all").fit(chains.sample(1, 60_000, noise=0.5, seed=1).X)
    error, order = matched(model.components_, chains.components)
    assert error < 0.1
    assert_allclose(model.rise_, chains.rise[order], atol=0.03)
    assert_allclose(model.startprob_, chains.start[order], atol=0.05)


def test_ten_chains_are_fitted_though_not_decoded():
    rng = np.random.default_rng(0)
    fall, rise = rng.uniform(0.1, 0.2, 10), rng.uniform(0.02, 0.05, 10)
    chains = FactorialChains(rng.standard_normal((10, 20)), np.zeros(20), rise / (rise + fall), fall, rise)
    drawn = chains.sample(2000, 50, noise=0.3, seed=1)
    model = FactorialHMM(10, windows="all").fit(drawn.X, drawn.lengths)
    assert matched(model.components_, chains.components)[0] < 0.2
    with pytest.raises(UsageError, match="at most 8 chains, which have 256 joint states, got 10"):
        model.predict(drawn.X, drawn.lengths)


def fitted(chains):
    """A fitted model with the parameters of planted chains."""
    model = FactorialHMM(2, n_em_iter=0).fit_corpus(population(planted()))
    model.components_, model.intercept_ = chains.components, chains.intercept
    model.startprob_, model.fall_, model.rise_ = chains.start, chains.fall, chains.rise
    model.variances_ = np.array([0.4, 0.9, 0.6])
    return model


def test_decoding_agrees_with_all_paths():
    chains = planted()
    model = fitted(chains)
    X = chains.sample(1, 5, seed=3).X
    paths = np.array(list(itertools.product(itertools.product((-1, 1), repeat=2), repeat=5)))
    up = paths > 0
    joint = np.where(up[:, 0], chains.start, 1.0 - chains.start).prod(axis=1)
    for t in range(1, 5):
        rises = np.where(up[:, t - 1], 1.0 - chains.fall, chains.rise)
        joint = joint * np.where(up[:, t], rises, 1.0 - rises).prod(axis=1)
    away = X - chains.intercept - paths @ chains.components
    density = np.exp(-0.5 * away**2 / model.variances_) / np.sqrt(2.0 * np.pi * model.variances_)
    joint = joint * density.prod(axis=(1, 2))
    assert_allclose(model.transform(X), np.einsum("p,pti->ti", joint, paths) / joint.sum(), atol=1e-10)
    assert model.predict(X).tolist() == paths[int(np.argmax(joint))].tolist()
    assert model.score(X) == pytest.approx(np.log(joint.sum()))
    assert_allclose(model.score_samples(np.tile(X, (2, 1)), [5, 5]), np.log(joint.sum()), rtol=1e-12)


def test_a_run_decodes_cut_sequences_as_whole_ones():
    chains = planted()
    model = fitted(chains)
    drawn = chains.sample(1, 600, seed=4)
    corpus = RowCorpus(drawn.X, [500, 3, 97], shard_rows=64)
    with open_engine(corpus) as engine:
        found = execute(model.assign, engine)
        stored = {
            name: np.concatenate([rows.read(i) for i in range(len(corpus.shards))])
            for name, rows in found.items()
        }
    assert {name: rows.axis for name, rows in found.items()} == {"states": "rows", "means": "rows"}
    np.testing.assert_array_equal(stored["states"], model.predict(drawn.X, [500, 3, 97]))
    assert_allclose(stored["means"], model.transform(drawn.X, [500, 3, 97]), atol=1e-6)
    agreement = np.mean(np.sign(stored["means"]) == drawn.states)
    assert agreement > 0.75


def test_windows_of_cut_sequences_are_those_of_whole_ones():
    lengths = [1, 40, 2, 3, 90, 1, 1, 9, 4, 3]
    X = np.random.default_rng(1).standard_normal((sum(lengths), 2))
    common = {"degree": 1, "origin": np.full(2, 0.2), "scale": np.full(2, 0.7), "basis": np.eye(3)}
    for first, n in ((True, 6), (False, sum(max(m - 2, 0) for m in lengths))):
        found = []
        for shard_rows in (1000, 8, 9, 17):
            corpus = RowCorpus(X, lengths, shard_rows=shard_rows)
            with open_engine(corpus) as engine:
                sums = engine.run(ChainMomentsPass(3, rank=3, first=first, **common)).sums
            sketch = ChainSketchPass(3, n_columns=3, first=first, **common)
            products = sketch.zero()
            for i in range(len(corpus.shards)):
                sketch.add(products, corpus.read_shard(i).with_context(sketch.halo), {})
            assert sums["mass"] == sums["drawn"] == products["mass"] == n
            found.append({**sums, "sketch": products["sketch"].single})
        for other in found[1:]:
            for name, value in other.items():
                assert_allclose(value, found[0][name], atol=1e-10)
    whole = RowCorpus(X, lengths, shard_rows=1 << 40).read_shard(0)
    starts = np.cumsum([0, *lengths[:-1]])
    expected = [start for start, m in zip(starts, lengths, strict=True) if m >= 3]
    assert np.flatnonzero(selected_windows(whole, True)).tolist() == expected


@pytest.mark.parametrize("cut", range(1, 9))
def test_the_first_window_of_a_sequence_is_found_across_any_cut(cut):
    rows = np.arange(9.0)[:, None]
    context = min(cut, ChainMomentsPass.halo)
    before = RowBlock(rows[:cut], np.array([0, cut]), 0, continues=True)
    after = RowBlock(rows[cut - context :], np.array([context, context + 9 - cut]), 0, continued=True)
    for first, expected in ((True, [0]), (False, list(range(7)))):
        found = [*np.flatnonzero(selected_windows(before, first))]
        found += [*(cut - context + np.flatnonzero(selected_windows(after, first)))]
        assert found == expected


def test_passes_of_baum_and_welch_raise_the_likelihood_and_find_the_parameters():
    chains = planted(2, 4, seed=3)
    drawn = chains.sample(4000, 5, noise=0.5, seed=1)
    first = FactorialHMM(2, n_em_iter=0).fit(drawn.X, drawn.lengths)
    model = FactorialHMM(2, n_em_iter=8).fit(drawn.X, drawn.lengths)
    logs = [*model.diagnostics_["log_likelihoods"], model.score(drawn.X, drawn.lengths) / len(drawn.X)]
    assert len(logs) == 9
    assert min(np.diff(logs)) > -1e-9
    errors = [matched(each.components_, chains.components)[0] for each in (first, model)]
    assert errors[1] < min(0.05, errors[0])
    order = matched(model.components_, chains.components)[1]
    assert_allclose(model.fall_, chains.fall[order], atol=0.03)
    assert_allclose(model.rise_, chains.rise[order], atol=0.03)
    assert_allclose(model.startprob_, chains.start[order], atol=0.03)
    assert_allclose(model.variances_, 0.25, rtol=0.05)


def test_the_parameters_of_the_sample_are_a_fixed_point_of_baum_and_welch():
    """Expected counts of a population whose chains are seen without noise are those of its law."""
    chains = planted(intercept=False)
    corpus = population(chains, noise=np.zeros((1, 3)))
    for intercept in (True, False):
        model = FactorialHMM(2, fit_intercept=intercept, n_em_iter=2).fit_corpus(corpus)
        check_parameters(model, chains, 1e-8)


def test_the_plan_lists_the_passes_that_are_made(tmp_path):
    drawn = planted().sample(60, 50, noise=0.3, seed=2)
    for shard_rows, cut in ((None, []), (40, ["transfer"])):
        corpus = RowCorpus(drawn.X, drawn.lengths, shard_rows=shard_rows)
        model = FactorialHMM(2, windows="all", n_power_iter=1, n_em_iter=2)
        names = ["means", "sketch", "power", "moments", *(2 * [*cut, "expect"])]
        assert [p.name for p in model.plan(corpus).passes] == names
        model.fit_corpus(corpus, run=tmp_path / f"run{shard_rows}", memory_limit=2 << 30)
        assert [timing["name"] for timing in model.timings_] == names
        again = clone(model).fit_corpus(corpus, run=tmp_path / f"run{shard_rows}")
        assert all(timing["resumed"] for timing in again.timings_)
        assert (again.components_ == model.components_).all()
    assert model.plan(corpus, n_workers=2).seconds is not None


def test_a_saved_model_is_the_same(tmp_path):
    drawn = planted().sample(6000, 3, noise=0.3, seed=2)
    model = FactorialHMM(2, n_em_iter=1).fit(drawn.X, drawn.lengths)
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert (loaded.transform(drawn.X, drawn.lengths) == model.transform(drawn.X, drawn.lengths)).all()
    assert loaded.summary() == model.summary()
    assert loaded.get_params() == model.get_params()
    assert [picture["kind"] for picture in loaded.pictures(2)] == ["matrix", "bars", "matrix"]


def test_pipelines_take_chains_as_columns():
    drawn = planted().sample(6000, 3, noise=0.3, seed=2)
    model = FactorialHMM(2)
    found = model.fit_transform(drawn.X, drawn.lengths)
    np.testing.assert_array_equal(found, model.transform(drawn.X, drawn.lengths))
    assert list(model.get_feature_names_out()) == ["factorialhmm0", "factorialhmm1"]
    steps = make_pipeline(StandardScaler(), FactorialHMM(2)).set_output(transform="default")
    scaled = StandardScaler().fit_transform(drawn.X)
    expected = FactorialHMM(2).fit_transform(scaled, drawn.lengths)
    np.testing.assert_array_equal(steps.fit_transform(drawn.X, drawn.lengths), expected)
    by_name = {"factorialhmm__lengths": drawn.lengths}
    np.testing.assert_array_equal(steps.fit_transform(drawn.X, **by_name), expected)
    found = steps.fit(drawn.X, **by_name)[-1].transform(scaled, drawn.lengths)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(UsageError, match="lengths: expected them once"):
        steps.fit(drawn.X, drawn.lengths, **by_name)


@pytest.mark.cluster
def test_workers_do_not_change_the_bits(cluster):
    drawn = planted(2, 5, seed=3).sample(6000, 4, noise=0.5, seed=2)
    corpus = RowCorpus(drawn.X, drawn.lengths, shard_rows=1000)
    model = FactorialHMM(2, n_em_iter=1)
    alone, together = clone(model).fit_corpus(corpus), clone(model).fit_corpus(corpus, client=cluster)
    for name in ("components_", "intercept_", "variances_", "startprob_", "fall_", "rise_"):
        assert (getattr(alone, name) == getattr(together, name)).all(), name
    assert alone.diagnostics_ == together.diagnostics_


STEPS = np.random.default_rng(0).standard_normal((30, 2))


@pytest.mark.parametrize(
    ("X", "lengths", "options", "error", "message"),
    [
        (STEPS[:4], [2, 2], {}, InputError, "at least 3 steps, got 2 as the longest of 2"),
        (STEPS, [3] * 10, {"n_components": 3}, UsageError, "at most 2, the number of values of a step, got 3"),
        (STEPS, None, {}, UsageError, "more than 2 sequences, the number of chains, got 1; windows='all'"),
        (STEPS, [20, 9], {}, InputError, "sum of the lengths: expected 30"),
        (STEPS, [15, 15], {"windows": "some"}, UsageError, "expected one of first, all"),
        ([[0.0, np.nan]] * 9, None, {}, InputError, "value in row 0, column 1"),
        ([0.0, 1.0, 2.0], None, {}, InputError, "X"),
        (csr_array(np.eye(4)), None, {}, UsageError, r"of kind dense, got rows \(csr along rows\)"),
        (STEPS, [3] * 10, {"n_components": 0}, UsageError, "n_components: expected at least 1"),
        (np.zeros((90, 9)), [3] * 30, {"n_components": 9, "n_em_iter": 1}, UsageError, "at most 8 chains"),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted_is_refused(X, lengths, options, error, message):
    with pytest.raises(error, match=message):
        FactorialHMM(**{"n_components": 2, **options}).fit(X, lengths)


#: laws of chains that cannot be identified, and what is said about them
UNIDENTIFIED = {
    "two without skewness": (
        with_laws([0.5, 0.5], [0.3, 0.2], [0.3, 0.2]),
        "2 chains are in both states equally often at the middle step .* at most one may have no skewness",
    ),
    "one without memory": (
        with_laws([0.2, 0.3], [0.7, 0.3], [0.3, 0.1]),
        "n_components=2: expected moments of windows of at least that rank, got 1",
    ),
    "one that never changes": (
        with_laws([0.0, 0.3], [0.5, 0.3], [0.0, 0.1]),
        "n_components=2: the cross moments of the steps of windows have rank 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNIDENTIFIED)
def test_chains_that_cannot_be_identified_are_refused(name):
    chains, message = UNIDENTIFIED[name]
    with pytest.raises(NumericalError, match=message):
        FactorialHMM(2).fit_corpus(population(chains))
    for seed in range(3):
        drawn = chains.sample(20_000, 3, noise=0.3, seed=seed)
        with pytest.raises(
            NumericalError,
            match=r"chains (cannot be found|that never change|are in both states).*windows='all'",
        ):
            FactorialHMM(2).fit(drawn.X, drawn.lengths)


def test_more_chains_than_there_are_and_constant_steps_are_refused():
    drawn = planted(2, 6, seed=3).sample(20_000, 3, noise=0.3, seed=0)
    FactorialHMM(2).fit(drawn.X, drawn.lengths)
    with pytest.raises(NumericalError):
        FactorialHMM(4).fit(drawn.X, drawn.lengths)
    with pytest.raises(NumericalError, match="rank"):
        FactorialHMM(2).fit(np.tile([1.0, 2.0, 3.0], (60, 1)), [3] * 20)
    with pytest.raises(NumericalError, match="squares of value 0 overflow"), np.errstate(over="ignore"):
        FactorialHMM(2).fit(1e160 * drawn.X, drawn.lengths)


def test_too_many_chains_are_not_decoded_and_other_steps_are_refused():
    model = fitted(planted())
    with pytest.raises(UsageError, match="expecting 3 features"):
        model.transform(np.zeros((4, 5)))
    with pytest.raises(InputError, match="number of steps"):
        model.predict(np.zeros((0, 3)))
    model.startprob_ = np.full(9, 0.5)
    with pytest.raises(UsageError, match="at most 8 chains, which have 256 joint states, got 9"):
        model.transform(np.zeros((4, 3)))


def test_passes_take_no_more_memory_than_planned():
    n, d = 60_000, 9
    X = np.random.default_rng(0).standard_normal((n, d))
    common = {"degree": 1, "origin": np.zeros(d), "scale": np.ones(d), "basis": np.eye(d + 1)[:, :7]}
    chain = joint_chain(FactorialHMM(2, n_em_iter=0).fit_corpus(population(planted()))._state())
    for lengths in ([n], [3] * (n // 3)):
        block = RowCorpus(X, lengths, shard_rows=1 << 40).read_shard(0)
        narrow = RowCorpus(X[:, :3], lengths, shard_rows=1 << 40).read_shard(0)
        for pass_, rows in (
            (ChainSketchPass(d + 1, n_columns=7, **common), block),
            (ChainMomentsPass(d + 1, rank=7, **common), block),
            (JointDecodePass(3, chain=chain, n_states=4, dense=True, n_chains=2), narrow),
        ):
            sums = pass_.zero()
            most = 1.1 * (pass_.working_bytes(n) + pass_.row_bytes * n) + 50_000
            peak = peak_bytes(lambda pass_=pass_, sums=sums, rows=rows: pass_.add(sums, rows, {}), most)
            assert peak <= most, pass_.name


def test_the_example_of_the_page_runs():
    text = (Path(__file__).parents[2] / "docs" / "factorial.md").read_text()
    names = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    assert names["right"] > 0.98
    assert sorted(names["order"]) == [0, 1, 2]
