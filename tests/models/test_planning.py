"""Plans compared with fits: passes, memory and disk."""

import re
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers import planted_corpus

from distmom.corpus import MemoryCorpus
from distmom.engine import PassStarted, Selection, open_engine, open_executor
from distmom.engine.plan import LIMIT_SHARE
from distmom.errors import UsageError
from distmom.models import AnchorTopics, MultiLabelMoM, SpectralLDA, TopicMoments
from distmom.models.multilabel import program as fitting
from distmom.models.multilabel import trials
from distmom.models.multilabel.heads.candidates import candidates_pass
from distmom.models.multilabel.heads.heads import GateHead, RidgeHead
from distmom.models.multilabel.latent.states import fit_states
from distmom.moments.documents.words import WordMomentsPass
from distmom.simulate import TopicPopulation, preset, synthesise
from distmom.spectral.program import timing
from distmom.spectral.program.execute import execute
from distmom.spectral.program.ledger import Ledger
from distmom.spectral.program.run import LedgerError, unknown


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Few documents, but of so many words and labels that matrices outweigh the process."""
    model = preset("wikilshtc", n_documents=8_000, n_words=300_000, n_labels=150_000, n_states=50)
    return synthesise(model, tmp_path_factory.mktemp("planned") / "c", shard_documents=1000)


def _forget_peak():
    Path("/proc/self/clear_refs").write_text("5")


def _peak():
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from /proc")
@pytest.mark.parametrize(
    ("limit", "third_moment"), [(None, "full"), pytest.param(800 << 20, "slices", marks=pytest.mark.nightly)]
)
def test_a_worker_takes_what_was_planned_within_a_fifth(corpus, limit, third_moment):
    # Wide sketches of few states: what is wide is measured, and the decomposition takes no time.
    model = MultiLabelMoM(
        60, head="posterior", n_power_iter=1, n_oversamples=140, third_moment=third_moment, force=True
    )
    planned = {p.name: p.task_bytes for p in model.plan(corpus, limit).passes}
    measured, running = {}, []
    with open_executor(workers=1, memory_limit=limit) as executor:

        def watch(event):
            # What is made of the sums of a pass, up to the next, counts as of the pass.
            if running:
                [peak] = executor.client.run(_peak).values()
                measured[running[-1]] = max(peak, measured.get(running[-1], 0))
            if isinstance(event, PassStarted):
                executor.client.run(_forget_peak)
                running.append(event.name)

        with open_engine(corpus, None, executor, limit, watch) as engine:
            execute(partial(fit_states, settings=model.state_settings(60)), engine)
    assert measured.keys() == planned.keys()
    assert ("slices" in planned) == (third_moment == "slices")
    for name, peak in measured.items():
        assert peak < 1.2 * planned[name], name
    assert max(planned.values()) < 1.2 * max(measured.values())


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from /proc")
def test_anchor_words_need_no_room_for_the_third_moment():
    topics = np.random.default_rng(0).dirichlet(np.full(800, 0.05), 10).T
    corpus = MemoryCorpus(TopicPopulation(np.full(10, 0.1), topics).sample(2000, 40)[0], shard_documents=500)
    options = {"min_df": 0.0, "max_df": 1.0, "n_oversamples": 350, "n_power_iter": 0, "n_refine": 1}
    limit, cube = 700 << 20, 8 * 360**3
    anchors = AnchorTopics(10, **options)
    planned = anchors.plan(corpus, limit).passes
    assert max(p.task_bytes for p in planned) <= LIMIT_SHARE * limit
    assert max(p.sums_bytes for p in planned) < cube / 10
    with pytest.raises(UsageError, match="pass moments: a task needs"):
        SpectralLDA(10, init="tensor", alpha0=1.0, **options).plan(corpus, limit)
    with open_executor(workers=1, memory_limit=limit) as executor:
        executor.client.run(_forget_peak)
        anchors.fit_corpus(corpus, client=executor, memory_limit=limit)
        [peak] = executor.client.run(_peak).values()
    assert peak < LIMIT_SHARE * limit
    found = np.abs(anchors.components_[:, None] - topics.T[None]).sum(axis=2).min(axis=0)
    assert np.median(found) < 0.5


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_auto_makes_the_planned_passes(share, monkeypatch):
    monkeypatch.setattr(fitting, "REFIT_SHARE", share)
    corpus = planted_corpus(1500, n_labels=150, k=2)[2]
    model = MultiLabelMoM(2, head="auto")
    planned = Counter(p.name for p in model.plan(corpus).passes)
    made = Counter(timing["name"] for timing in model.fit_corpus(corpus).timings_)
    # The linear head is extended, and classifiers are fitted again, only where they were chosen.
    assert planned.pop("residual") - made.pop("residual") in (0, 1)
    assert planned.pop("margins") - made.pop("margins") in (0, 1)
    assert made == planned


@pytest.mark.parametrize(
    ("model", "untried"),
    [
        (MultiLabelMoM(3, head="posterior"), set()),
        (MultiLabelMoM(3, head="ridge"), set()),
        (MultiLabelMoM(3, head="linear"), {"residual"}),
        (MultiLabelMoM(3, head="neighbors"), set()),
        (MultiLabelMoM(3, head="auto"), {"residual"}),
        (SpectralLDA(3, min_df=0.02), set()),
        (AnchorTopics(3, min_df=0.02), set()),
        (TopicMoments(3, n_parts=2, min_df=0.02), set()),
    ],
)
def test_every_pass_but_those_of_fitted_weights_is_tried_on_a_block(model, untried, monkeypatch):
    refused = []

    def trying(pass_, *arguments):
        try:
            return tried(pass_, *arguments)
        except timing._CannotBeTriedError:
            refused.append(pass_.name)
            raise

    tried = timing._try
    monkeypatch.setattr(timing, "_try", trying)
    corpus = planted_corpus(600, n_labels=20, k=3)[2]
    plan = model.plan(corpus, n_workers=2)
    assert set(refused) == untried
    assert len(plan.seconds) == len(plan.passes) + 1
    assert all(0.0 <= each.low <= each.high for each in plan.seconds)
    total = plan.total_seconds
    assert 0.0 < total.low < total.high
    assert plan.to_json()["seconds"] == [total.low, total.high]
    assert model.plan(corpus).total_seconds is None


def test_the_choice_of_a_blend_counts_in_the_time_of_a_plan(monkeypatch):
    corpus = planted_corpus(600, n_labels=20, k=3)[2]
    model = MultiLabelMoM(3, head="auto")
    monkeypatch.setattr(fitting, "scoring_seconds", lambda block, **sizes: 100.0)
    monkeypatch.setattr(fitting, "choice_seconds", lambda block, **sizes: 1000.0)
    plan = model.plan(corpus, n_workers=2)
    scored = {p.name: s for p, s in zip(plan.passes, plan.seconds, strict=False)}["selection"]
    low, high = timing.RANGE
    assert low * 100.0 / 2 <= scored.low <= scored.high <= high * 100.0 / 2 + 5.0
    assert low * 1000.0 <= plan.seconds[-1].low <= plan.seconds[-1].high <= high * 1000.0 + 60.0


@pytest.mark.parametrize("n_labels", [20, 1200])
def test_a_trial_scores_held_out_documents_by_as_many_heads_as_the_fit(n_labels):
    corpus = planted_corpus(600, n_labels=n_labels, k=3)[2]
    tried = fitting.tried_variants(corpus, 3)
    pass_ = candidates_pass(corpus, Selection(0.2, heldout=True), len(tried) - 2, len(tried))
    block, gate = corpus.read_shard(0), n_labels > 1000
    heads = trials._heads(block, n_labels, tried, 600, 3, 3, 20)
    assert [name for name, _ in heads.heads] == [variant.name for variant in tried]
    assert any(isinstance(head, GateHead) for _, head in heads.heads) == gate
    assert any(isinstance(head, RidgeHead) for _, head in heads.heads) != gate
    times = [trials.scoring_seconds(block, pass_, tried, n, 3, 3, 20) for n in (600, 60_000_000)]
    assert 0.0 < 1000 * times[0] < times[1]
    assert trials.choice_seconds(block, pass_, 600) > 0.0
    if gate:
        assert trials.gate_seconds(block, corpus) > 0.0


def test_the_index_of_neighbors_is_a_planned_pass_that_is_not_made_again(tmp_path):
    corpus = planted_corpus(600, n_labels=20, k=3)[2]
    model = MultiLabelMoM(3, head="neighbors")
    (planned,) = [p for p in model.plan(corpus).passes if p.name == "index"]
    assert planned.sums_bytes >= 8 * sum(s.nnz_words + s.nnz_labels for s in corpus.shards)
    first = model.fit_corpus(corpus, run=tmp_path / "run")
    known = {name: getattr(first.scorer_.heads[0][1].lists, name) for name in ("indptr", "indices", "data")}
    again = model.fit_corpus(corpus, run=tmp_path / "run")
    assert [t["resumed"] for t in again.timings_ if t["name"] == "index"] == [True]
    for name, array in known.items():
        np.testing.assert_array_equal(getattr(again.scorer_.heads[0][1].lists, name), array)


def test_a_pass_that_the_plan_lacks_is_an_error(monkeypatch):
    """The program of a model looks at something else when it is planned than when it is executed."""
    corpus = planted_corpus(600, n_labels=20, k=3)[2]

    def program(run):
        rank = 3 if isinstance(run, Ledger) else 4
        run.scan(WordMomentsPass(corpus.n_words, basis=np.eye(corpus.n_words)[:, :rank], rank=rank))

    with open_engine(corpus) as engine, pytest.raises(LedgerError, match=r"pass moments .* left in the plan"):
        execute(program, engine)


@pytest.mark.parametrize(
    "look", [bool, float, len, list, np.asarray, lambda x: x[0], lambda x: x.shape[0], lambda x: x.weights]
)
def test_a_program_cannot_look_at_data_outside_of_its_verbs(look):
    with pytest.raises((LedgerError, IndexError)):
        look(unknown())


def test_what_is_unknown_has_a_shape_and_is_passed_on():
    value = unknown(4, 2)
    assert (value.shape, len(value)) == ((4, 2), 4)
    assert not hasattr(value, "load")


def test_a_resumed_run_takes_the_branch_it_has_taken(tmp_path):
    """The third moment is cut into slices, or not, by the memory limit of the first attempt."""
    corpus = planted_corpus(400, n_labels=20, k=3)[2]
    model = MultiLabelMoM(3, head="posterior", n_oversamples=290)
    limit = int(model.plan(corpus).worker_bytes / LIMIT_SHARE) - (64 << 20)
    assert model.plan(corpus).third_moment == "full"
    first = model.fit_corpus(corpus, run=tmp_path / "run", memory_limit=limit)
    assert first.diagnostics_["third_moment"] == "slices"
    again = model.fit_corpus(corpus, run=tmp_path / "run")
    assert again.diagnostics_["third_moment"] == "slices"
    assert all(timing["resumed"] for timing in again.timings_)
