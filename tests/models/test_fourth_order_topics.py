"""Topics whose shares have a Dirichlet distribution by moments of the fourth order, alone or with the third."""

import json
import logging
import math
from collections import Counter

import numpy as np
import pytest
from helpers import WeightedCorpus, lda_corpus, matched_topics
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import vstack

from distmom.corpus import MemoryCorpus
from distmom.engine import PassDone
from distmom.errors import NumericalError, UsageError
from distmom.models import SpectralLDA, TopicMoments, load_model
from distmom.simulate.topics import TopicPopulation

TOPICS = np.random.default_rng(3).dirichlet(np.full(5, 0.7), 3)
SHARES = np.array([0.2, 0.3, 0.5])
#: documents of three words have no quadruple, and are left out of all orders
LENGTHS = (3, 4, 5)


def population(alpha0):
    """All documents of some lengths, with shares of a Dirichlet distribution, or of one topic each."""
    if alpha0:
        laws = [(1.0, TopicPopulation(alpha0 * SHARES, TOPICS.T))]
    else:
        laws = [
            (share, TopicPopulation([1.0], topic[:, None]))
            for share, topic in zip(SHARES, TOPICS, strict=True)
        ]
    parts = [(share, *law.enumerate(n)) for share, law in laws for n in LENGTHS]
    weights = np.concatenate([share * own for share, _, own in parts])
    return WeightedCorpus(
        vstack([counts for _, counts, _ in parts]).astype(int), None, weights, shard_documents=70
    )


def exact(orders, alpha0, **options):
    return SpectralLDA(
        3, orders=orders, alpha0=alpha0, init="tensor", n_refine=0, n_oversamples=2, min_df=0.0, max_df=1.0,
        max_count=None, precision="double", **options,
    )  # fmt: skip


def by_moments(k, orders, alpha0=1.0, **options):
    """Moments alone, of all words."""
    return SpectralLDA(
        k, orders=orders, alpha0=alpha0, init="tensor",
        **{"n_refine": 0, "min_df": 0.0, "max_df": 1.0, "max_count": None, **options},
    )  # fmt: skip


def sample(n, alpha0, seed, k=4, d=80):
    """Documents of 60 words on average, and their topics."""
    rng = np.random.default_rng(seed)
    topics, shares = rng.dirichlet(np.full(d, 0.1), k), np.arange(1, k + 1) ** -0.5
    law = TopicPopulation(alpha0 * shares / shares.sum(), topics.T)
    counts, _ = law.sample(n, np.maximum(rng.poisson(60, n), 4), seed=seed)
    return topics, MemoryCorpus(counts, shard_documents=4000)


@pytest.mark.parametrize("weighting", ["tokens", "document", "pooled"])
@pytest.mark.parametrize("orders", ["4", "both"])
@pytest.mark.parametrize("alpha0", [0.0, 0.3, 1.0, 5.0])
def test_an_exact_population_gives_back_topics_and_proportions(alpha0, orders, weighting):
    """Remark 7, through the production passes: proportions of the mean and of both coefficients agree."""
    model = exact(orders, alpha0, weighting=weighting).fit_corpus(population(alpha0))
    distance, order = matched_topics(model.components_, TOPICS)
    assert distance < 1e-10
    assert_allclose(model.weights_[order], SHARES, atol=1e-10)
    found = model.diagnostics_
    assert found["proportions_disagreement"] < 1e-10
    assert found["sum_proportions"] == pytest.approx(1.0, abs=1e-10)
    kurtosis = 6 * (alpha0 + 1) / ((alpha0 + 2) * (alpha0 + 3) * SHARES)
    assert_allclose(np.array(found["kurtosis"])[order], kurtosis, rtol=1e-10)
    assert (found["orders"], found["n_found"], found["n_rejected"]) == (orders, 3, 0)
    if weighting != "pooled":
        assert max(found["sum_rules"].values()) < 1e-10


@pytest.mark.parametrize("scale_words", [True, False])
@pytest.mark.parametrize("orders", ["4", "both"])
def test_with_another_alpha0_topics_are_wrong_and_proportions_disagree(orders, scale_words):
    corpus = population(1.0)
    for alpha0 in (0.3, 5.0):
        model = exact(orders, alpha0, scale_words=scale_words).fit_corpus(corpus)
        assert matched_topics(model.components_, TOPICS)[0] > 0.05
        assert model.diagnostics_["proportions_disagreement"] > 0.005
    model = exact(orders, 1.0, scale_words=scale_words).fit_corpus(corpus)
    assert matched_topics(model.components_, TOPICS)[0] < 1e-10
    assert model.diagnostics_["proportions_disagreement"] < 1e-10


@pytest.mark.parametrize("orders", ["4", "both"])
@pytest.mark.slow
def test_errors_fall_with_the_root_of_the_number_of_documents(orders):
    sizes, errors, shares = np.array([1000, 4000, 16000]), [], []
    expected = np.arange(1, 5) ** -0.5 / (np.arange(1, 5) ** -0.5).sum()
    for n in sizes:
        of_topics, of_shares = [], []
        for seed in range(3):
            topics, corpus = sample(int(n), 1.0, seed)
            model = by_moments(4, orders).fit_corpus(corpus)
            distance, order = matched_topics(model.components_, topics)
            of_topics.append(distance)
            of_shares.append(np.abs(model.weights_[order] - expected).sum())
        errors.append(np.median(of_topics))
        shares.append(np.median(of_shares))
    assert -0.7 < np.polyfit(np.log(sizes), np.log(errors), 1)[0] < -0.35
    assert errors[-1] < 0.02
    assert np.polyfit(np.log(sizes), np.log(shares), 1)[0] < -0.3
    assert shares[-1] < 0.02


@pytest.mark.parametrize(("alpha0", "expected"), [(1.0, (0.049, 0.049, 0.049)), (5.0, (0.098, 0.102, 0.107))])
@pytest.mark.slow
def test_the_fourth_order_is_not_more_accurate_than_the_third(alpha0, expected):
    """The errors that docs/topics.md reports: 1,000 documents, averages of five seeds."""
    errors = {"3": [], "both": [], "4": []}
    for seed in range(5):
        topics, corpus = sample(1000, alpha0, seed)
        for orders, found in errors.items():
            model = by_moments(4, orders, alpha0).fit_corpus(corpus)
            found.append(matched_topics(model.components_, topics)[0])
    assert_allclose([np.mean(found) for found in errors.values()], expected, atol=0.001)


def test_with_too_few_documents_the_fourth_order_is_refused():
    topics, corpus = sample(300, 1.0, 0, k=10, d=1000)
    model = by_moments(10, "3").fit_corpus(corpus)
    assert matched_topics(model.components_, topics)[0] < 0.6
    with pytest.raises(NumericalError, match="orders='both': no factor can be separated from the others"):
        by_moments(10, "both").fit_corpus(corpus)


@pytest.mark.parametrize("orders", ["4", "both"])
def test_the_plan_lists_the_fourth_pass(orders):
    corpus = lda_corpus(1000)[2]
    model = by_moments(5, orders, n_refine=2)
    plan = model.plan(corpus)
    passes = [p for p in plan.passes if p.name == "fourth"]
    # Before the choice of the sum of the Dirichlet parameters, and with the documents held out for it.
    assert len(passes) == 2
    # Sums of 8 parts of the documents: 15 pairs of axes and the third moment, in 5 coordinates.
    assert all(p.task_bytes > 8 * 8 * (15 * 5**2 + 5**3) for p in passes)
    made = Counter(timing["name"] for timing in model.fit_corpus(corpus).timings_)
    assert made == Counter(p.name for p in plan.passes)
    assert "fourth" not in {p.name for p in by_moments(5, "3").plan(corpus).passes}


def test_topics_are_refined_saved_and_read(tmp_path):
    population, _, corpus = lda_corpus(1500)
    model = SpectralLDA(5, orders="both", init="tensor", alpha0=1.0).fit_corpus(corpus)
    assert matched_topics(model.components_, population.topics.T)[0] < 0.1
    assert model.init_ == "tensor-1"
    model.save(tmp_path / "m")
    again = load_model(tmp_path / "m")
    assert again.get_params() == model.get_params()
    assert again.orders == "both"
    X = corpus.read_shard(0).words
    assert_array_equal(again.transform(X), model.transform(X))
    assert json.loads(json.dumps(again.diagnostics_)) == json.loads(json.dumps(model.diagnostics_))
    assert len(again.diagnostics_["kurtosis"]) == len(again.diagnostics_["separation"]) == 5


def test_a_background_topic_and_an_unknown_number_of_topics():
    population, _, corpus = lda_corpus(3000)
    model = by_moments("auto", "both").fit_corpus(corpus)
    assert model.n_components_ == 5
    assert matched_topics(model.components_, population.topics.T)[0] < 0.1
    model = by_moments(6, "4", background=True, n_refine=2).fit_corpus(corpus)
    assert matched_topics(model.components_, population.topics.T)[0] < 0.2
    assert len(model.diagnostics_["kurtosis"]) == 5


@pytest.mark.cluster
def test_any_number_of_workers_gives_the_same_bits(cluster):
    corpus = lda_corpus(900)[2]
    expected = by_moments(5, "both").fit_corpus(corpus)
    found = by_moments(5, "both").fit_corpus(corpus, client=cluster)
    assert_array_equal(found.components_, expected.components_)
    assert found.diagnostics_ == expected.diagnostics_


def test_a_resumed_fit_gives_the_same_bits(tmp_path):
    corpus = lda_corpus(900)[2]
    expected = by_moments(5, "both", n_refine=2).fit_corpus(corpus)
    events = []

    def stop(event):
        events.append(event)
        if isinstance(event, PassDone) and event.name == "fourth":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        by_moments(5, "both", n_refine=2).fit_corpus(corpus, run=tmp_path, observer=stop)
    n_done = sum(isinstance(event, PassDone) for event in events)
    events.clear()
    resumed = by_moments(5, "both", n_refine=2).fit_corpus(corpus, run=tmp_path, observer=events.append)
    done = [event.resumed for event in events if isinstance(event, PassDone)]
    assert done == [True] * n_done + [False] * (len(expected.timings_) - n_done)
    assert_array_equal(resumed.components_, expected.components_)
    assert_array_equal(resumed.alpha_, expected.alpha_)


def test_documents_of_three_words_are_left_out_of_all_orders(caplog):
    corpus = population(1.0)
    short = TopicPopulation([0.5, 2.0, 0.1], np.roll(TOPICS.T, 1, axis=0)).enumerate(3)
    parts = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    counts = vstack([*(part.words for part in parts), short[0]]).astype(int)
    weights = np.concatenate([corpus.row_weights, 9.0 * short[1]])
    with caplog.at_level(logging.WARNING):
        model = exact("both", 1.0).fit_corpus(WeightedCorpus(counts, None, weights, shard_documents=70))
    assert matched_topics(model.components_, TOPICS)[0] < 1e-10
    assert "83 % of the documents have fewer than 4 words and do not enter the moments" in caplog.text


def test_documents_without_four_words_are_refused():
    law = TopicPopulation([0.5, 0.5], np.array([[0.4, 0.4, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4]]).T)
    counts, _ = law.sample(2000, np.full(2000, 3), seed=0)
    assert len(by_moments(2, "3").fit(counts).components_) == 2
    with pytest.raises(
        NumericalError,
        match=r"no document is long enough for the moments: .* triples need 3, quadruples need 4",
    ):
        by_moments(2, "both").fit(counts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha0": "auto", "init": "tensor"}, "got init='tensor' and alpha0='auto'"),
        ({"alpha0": 1.0}, "orders='both' requires init='tensor' and a number for alpha0, got init='auto'"),
        ({"alpha0": 1.0, "init": "anchors"}, "got init='anchors' and alpha0=1.0"),
        (
            {"alpha0": 1.0, "init": "tensor", "decomposition": "power"},
            "decomposition='power' is for the third moment alone: orders='both' requires decomposition='joint'",
        ),
        ({"alpha0": math.inf, "init": "tensor"}, "alpha0: expected a finite number, or 'auto', got inf"),
    ],
)
def test_what_does_not_suit_the_fourth_order_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        SpectralLDA(5, orders="both", **options).fit_corpus(lda_corpus(300)[2])
    with pytest.raises(UsageError, match="orders: expected one of 3, 4, both, got '5'"):
        SpectralLDA(5, orders="5").fit_corpus(lda_corpus(300)[2])


def test_kept_moments_have_no_fourth_order():
    kept = TopicMoments(3, max_df=1.0).fit_corpus(lda_corpus(300)[2])
    with pytest.raises(UsageError, match="orders: expected '3', got '4'"):
        by_moments(3, "4").fit_moments(kept)
