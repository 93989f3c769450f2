"""Topics by anchor words: exact populations, groups of contexts, losses and samples."""

from functools import partial

import numpy as np
import pytest
from helpers import matched_topics, population_corpus
from numpy.testing import assert_allclose

from distmom.errors import UsageError
from distmom.linalg.anchors import divergence_weights
from distmom.models import AnchorTopics, TopicMoments, load_model
from distmom.models.topics.anchors import LOSSES, grouped
from distmom.simulate.topics import TopicPopulation


def test_exact_population_with_anchor_words():
    """Every topic has a word of its own, so that anchors give back the topics."""
    rng = np.random.default_rng(0)
    topics = np.vstack([np.diag([0.3, 0.2, 0.25]), rng.dirichlet(np.ones(4), 3).T * [0.7, 0.8, 0.75]])
    population = TopicPopulation([0.3, 0.8, 0.5], topics)
    exact = {"min_df": 0.0, "max_df": 1.0, "max_count": None, "precision": "double"}
    model = AnchorTopics(3, n_refine=0, n_oversamples=4, **exact).fit_corpus(population_corpus(population))
    # Least squares end at a change of 1e-4.
    assert matched_topics(model.components_, topics.T)[0] < 5e-3
    assert set(model.diagnostics_["anchors"]) == set(model.vocabulary_[:3])


def anchored(d, k, seed=0):
    """Topics with an anchor word each: the first k of d words."""
    rng = np.random.default_rng(seed)
    anchors = rng.uniform(0.1, 0.3, k)
    return np.vstack([np.diag(anchors), rng.dirichlet(np.full(d - k, 0.5), k).T * (1.0 - anchors)])


@pytest.mark.parametrize("scale_words", [True, False])
@pytest.mark.parametrize("weighting", ["tokens", "document"])
def test_exact_population_with_anchor_words_comes_back_by_divergence(scale_words, weighting, monkeypatch):
    topics = anchored(7, 3)
    population = TopicPopulation([0.3, 0.8, 0.5], topics)
    options = {"min_df": 0.0, "max_df": 1.0, "max_count": None, "precision": "double", "n_refine": 0}
    options |= {"n_oversamples": 4, "loss": "divergence", "scale_words": scale_words, "weighting": weighting}
    corpus = population_corpus(population)
    model = AnchorTopics(3, **options).fit_corpus(corpus)
    # Divergences are within 1e-10 of the least ones, so weights are within about the root.
    error, order = matched_topics(model.components_, topics.T)
    assert error < 1e-5
    assert set(model.diagnostics_["anchors"]) == set(model.vocabulary_[:3])
    assert_allclose(model.weights_[order], population.alpha / population.alpha.sum(), atol=1e-6)
    # Until rounding hides the decrease of the divergence.
    tight = partial(divergence_weights, tolerance=0.0)
    monkeypatch.setattr("distmom.models.topics.anchors.divergence_weights", tight)
    found = AnchorTopics(3, **options).fit_corpus(corpus).components_
    assert_allclose(found[matched_topics(found, topics.T)[1]], topics.T, atol=1e-10)


def test_groups_of_contexts_keep_mixtures():
    """Words are mixtures of anchor words also in groups of the words beside them."""
    topics, shares = anchored(60, 4), np.array([0.4, 0.3, 0.2, 0.1])
    pairs = topics @ np.diag(shares) @ topics.T
    rows, mean = pairs / pairs.sum(axis=1, keepdims=True), pairs.sum(axis=1)
    contexts = grouped(np.eye(60), mean, 10)
    assert contexts.shape == (60, 10)
    assert (contexts.sum(axis=1) == 1.0).all()
    # The most frequent words are groups of their own, and the others are dealt out evenly.
    assert (contexts.sum(axis=0) == [1.0] * 5 + [11.0] * 5).all()
    assert (contexts[np.argsort(-mean)[:5], :5] == np.eye(5)).all()
    found = divergence_weights(rows, rows[:4], contexts, tolerance=0.0)
    assert_allclose(found, topics * shares / mean[:, None], atol=1e-10)
    assert (grouped(np.eye(60), mean, 60) == np.eye(60)).all()


@pytest.mark.slow
def test_errors_of_anchor_words_by_divergence_fall_with_the_root_of_the_number_of_documents():
    topics, errors = anchored(200, 4, seed=1), {}
    population = TopicPopulation(np.full(4, 0.2), topics)
    options = {"n_refine": 0, "min_df": 0.0, "max_df": 1.0, "max_count": None}
    for n in (2_000, 32_000):
        for seed in range(3):
            counts = population.sample(n, 40, seed=seed)[0]
            for loss in ("least_squares", "divergence"):
                found = AnchorTopics(4, loss=loss, **options).fit(counts).components_
                errors.setdefault((loss, n), []).append(matched_topics(found, topics.T)[0])
    few, many = (np.mean(errors["divergence", n]) for n in (2_000, 32_000))
    assert 2.5 < few / many < 6.0
    assert many == pytest.approx(np.mean(errors["least_squares", 32_000]), rel=0.1)


def test_losses_are_saved_and_unknown_ones_refused(tmp_path):
    counts = TopicPopulation(np.full(3, 0.3), anchored(50, 3)).sample(2_000, 20, seed=0)[0]
    options = {"n_refine": 1, "min_df": 0.0, "max_df": 1.0, "loss": "divergence"}
    model = AnchorTopics(3, **options).fit(counts)
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.loss == "divergence"
    assert (loaded.components_ == model.components_).all()
    assert_allclose(model.components_.sum(axis=1), 1.0, rtol=1e-6)
    kept = TopicMoments(3, min_df=0.0, max_df=1.0).fit(counts)
    of_kept = [AnchorTopics(3, n_refine=0, loss=loss).fit_moments(kept).components_ for loss in LOSSES]
    assert np.abs(of_kept[0] - of_kept[1]).max() > 1e-6
    with pytest.raises(UsageError, match="loss"):
        AnchorTopics(3, loss="squares").fit(counts)


def test_anchors_are_chosen_among_ten_words_for_every_topic():
    """Hardly any word is in 1 % of the documents."""
    law = np.random.default_rng(1).dirichlet(np.full(4000, 0.3), 4)
    counts = TopicPopulation(np.full(4, 0.1), law.T).sample(12_000, 6, seed=2)[0]
    model = AnchorTopics(4, n_refine=0).fit(counts)
    frequency = (counts > 0).sum(axis=0)
    assert (frequency >= 120).sum() < 40
    anchors = [model.vocabulary_.index(word) for word in model.diagnostics_["anchors"]]
    assert frequency[anchors].min() >= np.sort(frequency)[-40]
    assert len({int(law[:, word].argmax()) for word in anchors}) == 4
