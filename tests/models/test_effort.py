"""Efforts: the passes that they plan and make, what they leave out, and what they try."""

from collections import Counter

import numpy as np
import pytest
from helpers import planted_corpus

from distmom.errors import UsageError
from distmom.evaluate.dispatch import write_report
from distmom.evaluate.evaluation import evaluate_corpus
from distmom.models import MultiLabelMoM, load_model
from distmom.models.multilabel import program as fitting
from distmom.models.multilabel import trials
from distmom.models.multilabel.effort import EFFORTS, NORMAL
from distmom.models.multilabel.folds import held_out
from distmom.models.multilabel.variants import alone
from distmom.spectral.capabilities import Capability


@pytest.fixture(scope="module")
def corpus():
    return planted_corpus(1500, n_labels=30, k=4)[2]


@pytest.fixture(scope="module")
def fitted(corpus):
    return {effort: MultiLabelMoM(4, effort=effort).fit_corpus(corpus) for effort in EFFORTS}


def names_of(timings):
    return Counter(timing["name"] for timing in timings)


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("n_labels", [30, pytest.param(1100, marks=pytest.mark.slow)])
def test_an_effort_makes_the_planned_passes(effort, n_labels, fitted, corpus):
    if n_labels == 30:
        model = fitted[effort]
    else:
        corpus = planted_corpus(1200, n_labels=n_labels, k=2)[2]
        model = MultiLabelMoM(2, effort=effort).fit_corpus(corpus)
    planned = Counter(p.name for p in model.plan(corpus).passes)
    made = names_of(model.timings_)
    # These are made once more only where their head was chosen.
    for name in ("residual", "margins", "features", "ridge", "gate", "frequent"):
        assert 0 <= planned.pop(name, 0) - made.pop(name, 0) <= EFFORTS[effort].n_residual_passes * 2
    assert made == planned


def test_low_leaves_out_what_costs_most_for_least(fitted, corpus, tmp_path):
    low, normal = names_of(fitted["low"].timings_), names_of(fitted["normal"].timings_)
    assert set(normal) - set(low) == {"sketch", "power", "moments", "labels", "refine", "topic-labels"}
    assert low["margins"] == 1
    held = fitted["low"].selection_
    assert {"svm-0.3", "linear", "neighbors-75-3", "ridge-0.03"} <= set(held["held_out"])
    assert not {"svm-1", "sketch-neighbors", "posterior", "moment"} & set(held["held_out"])
    assert held["n_held_out"] < 0.7 * fitted["normal"].selection_["n_held_out"]
    first = [evaluate_corpus(fitted[effort], corpus)["P@1"] for effort in ("low", "normal")]
    assert first[0] > 0.9 * first[1]


def test_a_model_of_low_effort_has_no_states_and_no_topics_unless_they_are_requested(
    fitted, corpus, tmp_path, caplog
):
    low = fitted["low"]
    assert low.diagnostics_["states_error"] == "effort='low' fits none"
    assert low.diagnostics_["topics_error"] == "effort='low' fits no topics; n_topics requests them"
    assert not low.can(Capability.TOPICS)
    with pytest.raises(UsageError, match="the model has no latent states: effort='low' fits none"):
        low.topics()
    low.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    X = corpus.read_shard(0).words
    np.testing.assert_array_equal(again.decision_function(X), low.decision_function(X))
    write_report(again, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 1000
    with_topics = MultiLabelMoM(4, effort="low", n_topics=3).fit_corpus(corpus)
    assert len(with_topics.topics()) == 3
    posterior = MultiLabelMoM(4, head="posterior", effort="low").fit_corpus(corpus)
    assert posterior.components_.shape[0] == 4
    assert "could not be fitted" not in caplog.text


def test_high_tries_more(fitted):
    choosing = names_of(fitted["high"].timings_)["residual"]
    assert choosing >= 2 > NORMAL.n_residual_passes
    assert MultiLabelMoM(4, head="linear", effort="high").residual_passes() == 3
    # More exact classifiers have a smaller primal objective.
    small = planted_corpus(600, n_labels=12, k=4)[2]
    X, Y = small.read_shard(0).words, small.read_shard(0).labels.toarray()
    losses = []
    for effort in ("normal", "high"):
        model = MultiLabelMoM(4, head="svm", effort=effort).fit(X, Y)
        (head,) = [head for _, head in model.scorer_.heads]
        w = head.weights.sparse.to_scipy().toarray()
        w[head.weights.dense_row >= 0] = head.weights.dense[
            head.weights.dense_row[head.weights.dense_row >= 0]
        ]
        margins = 1 - np.where(Y, 1, -1) * model.decision_function(X)
        losses.append(0.5 * (w**2).sum() + 0.3 * (np.maximum(margins, 0) ** 2).sum())
    assert losses[1] < losses[0]


def test_every_effort_has_the_default_cost_and_ascending_ones():
    for effort in EFFORTS.values():
        assert alone("svm").cost in effort.costs
        assert list(effort.costs) == sorted(set(effort.costs))


@pytest.mark.parametrize("effort", EFFORTS)
def test_the_time_of_a_plan_counts_the_heads_of_the_effort(effort, corpus, monkeypatch):
    tried = []
    original = trials._heads

    def record(*arguments):
        tried.append(original(*arguments))
        return tried[-1]

    monkeypatch.setattr(trials, "_heads", record)
    plan = MultiLabelMoM(4, effort=effort).plan(corpus, n_workers=1)
    assert plan.total_seconds.low > 0.0
    own = EFFORTS[effort]
    names = [variant.name for variant in fitting.tried_variants(corpus, 4, own)]
    assert [name for name, _ in tried[0].heads] == names
    assert len(names) == {"low": 10, "normal": 14, "high": 15}[effort]


def test_held_out_documents_of_large_corpora_are_capped():
    class Large:
        n_documents = 1_000_000

    assert held_out(Large, 0, EFFORTS["low"]).fraction == pytest.approx(0.003, rel=0.01)
    assert held_out(Large, 0).fraction == pytest.approx(0.01, rel=0.01)


def test_an_unknown_effort_is_refused(corpus):
    with pytest.raises(UsageError, match="effort: expected one of low, normal, high, got 'huge'"):
        MultiLabelMoM(4, effort="huge").plan(corpus)
