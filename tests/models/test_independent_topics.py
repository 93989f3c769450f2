"""Topics with independent amounts by moments of the third and the fourth order."""

import json
import logging
from collections import Counter
from itertools import product

import numpy as np
import pytest
from helpers import WeightedCorpus, matched_topics
from numpy.testing import assert_allclose, assert_array_equal

from distmom.corpus import MemoryCorpus
from distmom.engine import PassDone
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import IndependentTopics, load_model

EXACT = {"n_refine": 0, "n_oversamples": 2, "min_df": 0.0, "max_df": 1.0, "precision": "double"}
TOPICS = np.random.default_rng(3).dirichlet(np.full(5, 0.7), 3)
SIZES = np.array([0.5, 0.4, 0.3])
#: chance of presence without excess kurtosis
Q4 = (3 - 3**0.5) / 6


def factorial_law(means):
    """Probabilities of 0 to 4 with the first four factorial moments of Poisson laws, for means up to one."""
    m = means
    return np.stack(
        [1 - m + m**2 / 2 - m**3 / 6 + m**4 / 24, m - m**2 + m**3 / 2 - m**4 / 6,
         m**2 / 2 - m**3 / 2 + m**4 / 4, m**3 / 6 - m**4 / 6, m**4 / 24], axis=-1,
    )  # fmt: skip


def population(odds):
    """All documents of counts up to 4, where each topic is either absent or has a fixed amount."""
    d, k = TOPICS.T.shape
    counts = np.array(list(product(range(5), repeat=d)))
    weights = np.zeros(len(counts))
    for there in product((0, 1), repeat=k):
        chance = np.prod(np.where(there, odds, 1 - np.asarray(odds)))
        law = factorial_law(TOPICS.T @ (there * SIZES))
        weights += chance * np.prod(law[np.arange(d), counts], axis=1)
    assert weights.min() >= 0.0
    return WeightedCorpus(counts, None, weights, shard_documents=900)


def moments_of(odds):
    variance = odds * (1 - odds)
    return (1 - 2 * odds) / np.sqrt(variance), (1 - 6 * variance) / variance


def sample(n, seed=0, k=4, d=80, skewed=False, shard_documents=4000):
    """Documents of 60 words on average, which have each topic with probability one half, or gamma amounts."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(d, 0.1), k)
    amounts = rng.gamma(0.5, 2.0, (n, k)) if skewed else 2.0 * (rng.random((n, k)) < 0.5)
    counts = rng.poisson(60 / k * amounts @ topics)
    return topics, MemoryCorpus(counts, shard_documents=shard_documents)


def by_moments(k, orders, **options):
    return IndependentTopics(k, n_refine=0, min_df=0.0, max_df=1.0, orders=orders, **options)


@pytest.mark.parametrize("scale_words", [True, False])
@pytest.mark.parametrize("orders", ["4", "both"])
@pytest.mark.parametrize("odds", [(0.5, 0.5, 0.2), (0.5, 0.5, 0.5), (0.8, 0.7, 0.3)])
def test_kurtotic_amounts_of_an_exact_population_give_back_topics(odds, orders, scale_words):
    """Algorithm 2, through the production passes: also where two or three amounts are not skewed."""
    odds = np.array(odds)
    model = IndependentTopics(3, orders=orders, scale_words=scale_words, **EXACT).fit_corpus(population(odds))
    distance, order = matched_topics(model.components_, TOPICS)
    assert distance < 1e-10
    assert_allclose(model.weights_[order], odds * SIZES / (odds * SIZES).sum(), atol=1e-10)
    skewness, kurtosis = moments_of(odds)
    assert_allclose(np.array(model.diagnostics_["skewness"])[order], skewness, atol=1e-8)
    assert_allclose(np.array(model.diagnostics_["kurtosis"])[order], kurtosis, atol=1e-8)
    assert (model.diagnostics_["n_found"], model.diagnostics_["n_rejected"]) == (3, 0)


def test_the_third_order_does_not_find_amounts_without_skewness():
    model = IndependentTopics(3, **EXACT).fit_corpus(population([0.5, 0.5, 0.2]))
    # What is found in their place depends on rounding.
    assert matched_topics(model.components_, TOPICS)[0] > 1e-3


@pytest.mark.parametrize("odds", [(0.8, 0.7, 0.9), (0.5, 0.3, 0.9)])
def test_amounts_of_either_skewness_are_found_by_the_third_order(odds):
    odds = np.array(odds)
    model = IndependentTopics(3, **EXACT).fit_corpus(population(odds))
    distance, order = matched_topics(model.components_, TOPICS)
    assert distance < 1e-10
    assert_allclose(np.array(model.diagnostics_["skewness"])[order], moments_of(odds)[0], atol=1e-8)
    assert_allclose(model.weights_[order], odds * SIZES / (odds * SIZES).sum(), atol=1e-10)


def test_both_orders_complete_each_other(caplog):
    """Remark 4: one amount without skewness, and two without excess kurtosis."""
    corpus = population([0.5, Q4, 1 - Q4])
    with caplog.at_level(logging.WARNING):
        one = IndependentTopics(3, orders="4", **EXACT).fit_corpus(corpus)
    assert "2 of 3 factors are left out, because they cannot be separated" in caplog.text
    assert one.components_.shape == (1, 5)
    assert np.abs(one.components_ - TOPICS[0]).sum() < 1e-10
    model = IndependentTopics(3, orders="both", **EXACT).fit_corpus(corpus)
    assert matched_topics(model.components_, TOPICS)[0] < 1e-10


@pytest.mark.slow
def test_errors_fall_with_the_root_of_the_number_of_documents():
    sizes, errors = np.array([1000, 4000, 16000]), {"3": [], "4": []}
    for n in sizes:
        for orders, found in errors.items():
            each = []
            for seed in range(3):
                topics, corpus = sample(int(n), seed)
                model = by_moments(4, orders).fit_corpus(corpus)
                each.append(matched_topics(model.components_, topics)[0])
            found.append(np.median(each))
    assert -0.7 < np.polyfit(np.log(sizes), np.log(errors["4"]), 1)[0] < -0.35
    assert errors["4"][-1] < 0.05
    # Without skewness the third moment is noise, however many documents there are.
    assert min(errors["3"]) > 0.3


def test_the_number_of_topics_may_be_found():
    topics, corpus = sample(8000)
    model = by_moments("auto", "4").fit_corpus(corpus)
    assert matched_topics(model.components_, topics)[0] < 0.1


@pytest.mark.slow
def test_the_third_order_is_more_accurate_for_skewed_amounts():
    errors = {"3": [], "both": [], "4": []}
    for seed in range(4):
        topics, corpus = sample(8000, seed, skewed=True)
        for orders, found in errors.items():
            found.append(matched_topics(by_moments(4, orders).fit_corpus(corpus).components_, topics)[0])
    third, both, fourth = (np.mean(found) for found in errors.values())
    assert third < both < fourth < 0.15


def test_the_plan_lists_the_fourth_pass():
    corpus = sample(1000)[1]
    model = by_moments(4, "both")
    plan = model.plan(corpus)
    passes = [p for p in plan.passes if p.name == "fourth"]
    # Before the choice of the sum of the Dirichlet parameters, and with the documents held out for it.
    assert len(passes) == 2
    # Sums of 8 parts of the documents: 10 pairs of axes and the third moment, in 4 coordinates.
    assert all(p.task_bytes > 8 * 8 * (10 * 4**2 + 4**3) for p in passes)
    made = Counter(timing["name"] for timing in model.fit_corpus(corpus).timings_)
    assert made == Counter(p.name for p in plan.passes)
    assert "fourth" not in {p.name for p in by_moments(4, "3").plan(corpus).passes}


def test_a_saved_model_is_the_same(tmp_path):
    _, corpus = sample(2000)
    model = IndependentTopics(4, orders="both", min_df=0.0, max_df=1.0).fit_corpus(corpus)
    model.save(tmp_path / "m")
    again = load_model(tmp_path / "m")
    assert again.get_params() == model.get_params()
    assert again.orders == "both"
    X = corpus.read_shard(0).words
    assert_array_equal(again.transform(X), model.transform(X))
    assert json.loads(json.dumps(again.diagnostics_)) == json.loads(json.dumps(model.diagnostics_))
    assert len(again.diagnostics_["kurtosis"]) == len(again.diagnostics_["separation"]) == 4


@pytest.mark.cluster
def test_any_number_of_workers_gives_the_same_bits(cluster):
    corpus = sample(2000, shard_documents=300)[1]
    expected = by_moments(4, "both").fit_corpus(corpus)
    found = by_moments(4, "both").fit_corpus(corpus, client=cluster)
    assert_array_equal(found.components_, expected.components_)
    assert found.diagnostics_ == expected.diagnostics_


def test_a_resumed_fit_gives_the_same_bits(tmp_path):
    corpus = sample(2000, shard_documents=500)[1]
    expected = by_moments(4, "4").fit_corpus(corpus)
    events = []

    def stop(event):
        events.append(event)
        if isinstance(event, PassDone) and event.name == "fourth":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        by_moments(4, "4").fit_corpus(corpus, run=tmp_path, observer=stop)
    n_done = sum(isinstance(event, PassDone) for event in events)
    events.clear()
    resumed = by_moments(4, "4").fit_corpus(corpus, run=tmp_path, observer=events.append)
    done = [event.resumed for event in events if isinstance(event, PassDone)]
    assert done == [True] * n_done + [False] * (len(expected.timings_) - n_done)
    assert_array_equal(resumed.components_, expected.components_)


@pytest.mark.parametrize("orders", ["4", "both"])
def test_documents_without_four_words_are_refused(orders):
    # Of the documents with at most three words, the third order finds topics.
    rng = np.random.default_rng(0)
    there = rng.integers(0, 2, 4000)
    counts = rng.multinomial(3, [0.4, 0.4, 0.1, 0.1], 4000) * there[:, None]
    assert len(by_moments(1, "3").fit(counts).components_) == 1
    with pytest.raises(
        InputError, match="expected documents of at least 4 words for the fourth moment, got none"
    ):
        by_moments(1, orders).fit(counts)


def test_what_is_noise_is_refused():
    with pytest.raises(NumericalError, match="orders='4': no factor can be separated from the others"):
        by_moments(4, "4").fit_corpus(sample(300, skewed=True)[1])


def test_other_decompositions_and_orders_are_refused():
    _, corpus = sample(100)
    with pytest.raises(UsageError, match="orders='both' requires decomposition='joint'"):
        by_moments(3, "both", decomposition="power").fit_corpus(corpus)
    with pytest.raises(UsageError, match="orders: expected one of 3, 4, both, got '5'"):
        by_moments(3, "5").fit_corpus(corpus)
