import math
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from helpers import WeightedCorpus, lda_corpus, matched_topics
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import issparse, vstack
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from distmom.corpus import MemoryCorpus, from_arrays
from distmom.engine import PassDone
from distmom.errors import InputError, NumericalError, StoreError, UsageError
from distmom.evaluate.topics import evaluate_topics
from distmom.linalg.anchors import divergence_weights
from distmom.models import (
    AnchorTopics,
    IndependentTopics,
    SingleTopic,
    SparseTopics,
    SpectralLDA,
    TopicMoments,
    TopicSearch,
    load_model,
)
from distmom.models.topics.anchors import LOSSES, grouped
from distmom.models.topics.committed import word_numbers
from distmom.moments import weighting
from distmom.simulate.multilabel import planted
from distmom.simulate.topics import TopicPopulation
from distmom.spectral import components, core, documents


def tiny(alpha=(0.3, 0.8, 0.5), d=6, seed=1):
    rng = np.random.default_rng(seed)
    return TopicPopulation(alpha, rng.dirichlet(np.full(d, 0.5), len(alpha)).T)


def population_corpus(population, lengths=(2, 3, 4)):
    parts = [population.enumerate(n) for n in lengths]
    weights = np.concatenate([w for _, w in parts]) / len(parts)
    return WeightedCorpus(vstack([c for c, _ in parts]).astype(int), None, weights, shard_documents=40)


def pure(k, **options):
    """Moments alone, of all words."""
    exact = {"min_df": 0.0, "max_df": 1.0, "max_count": None, "precision": "double"}
    return SpectralLDA(k, n_refine=0, init="tensor", **{**exact, **options})


@pytest.mark.parametrize("decomposition", ["joint", "power"])
@pytest.mark.parametrize("scale_words", [True, False])
@pytest.mark.parametrize("weighting", ["tokens", "document"])
def test_exact_population_gives_back_topics_and_dirichlet_parameters(decomposition, scale_words, weighting):
    population = tiny()
    model = pure(
        3,
        alpha0=1.6,
        n_oversamples=3,
        scale_words=scale_words,
        decomposition=decomposition,
        weighting=weighting,
    ).fit_corpus(population_corpus(population))
    distance, order = matched_topics(model.components_, population.topics.T)
    assert distance < 1e-10
    assert_allclose(model.weights_[order], population.alpha / 1.6, atol=1e-10)
    assert model.diagnostics_["sum_proportions"] == pytest.approx(1.0, abs=1e-10)
    assert model.diagnostics_["residual"] < 1e-10
    assert model.diagnostics_["sum_rules"].keys() == {"2", "3"}
    assert max(model.diagnostics_["sum_rules"].values()) < 1e-10


@pytest.mark.parametrize("decomposition", ["power", "power-stop"])
def test_documents_as_initial_vectors_give_back_an_exact_population(decomposition):
    population = tiny()
    options = {"alpha0": 1.6, "n_oversamples": 3, "decomposition": decomposition}
    model = pure(3, starts="documents", **options).fit_corpus(population_corpus(population))
    distance, order = matched_topics(model.components_, population.topics.T)
    assert distance < 1e-10
    assert_allclose(model.weights_[order], population.alpha / 1.6, atol=1e-10)
    assert ("n_starts" in model.diagnostics_) == (decomposition == "power-stop")


def test_documents_as_initial_vectors_are_accepted_no_later_than_random_ones_and_for_any_cut():
    population = TopicPopulation(
        np.full(20, 0.02), np.random.default_rng(0).dirichlet(np.full(200, 0.05), 20).T
    )
    counts, _ = population.sample(4000, 60, seed=1)
    options = {"alpha0": 0.4, "decomposition": "power-stop", "random_state": 0}
    models = {
        (starts, cut): pure(20, starts=starts, **options).fit_corpus(
            MemoryCorpus(counts, shard_documents=cut)
        )
        for starts, cut in (("random", 4000), ("documents", 4000), ("documents", 700))
    }
    given, other = models["documents", 4000], models["documents", 700]
    assert_allclose(given.components_, other.components_, atol=1e-8)
    assert given.diagnostics_["n_starts"] == other.diagnostics_["n_starts"]
    assert sum(given.diagnostics_["n_starts"]) <= sum(models["random", 4000].diagnostics_["n_starts"])
    assert given.diagnostics_["residual"] == pytest.approx(
        models["random", 4000].diagnostics_["residual"], rel=0.01
    )


def test_documents_as_initial_vectors_need_a_power_method_and_documents():
    X = np.random.default_rng(0).poisson(1.0, (50, 8))
    for options in ({}, {"decomposition": "power", "init": "anchors"}):
        with pytest.raises(UsageError, match="starts='documents' is for decomposition=power or power-stop"):
            SpectralLDA(2, starts="documents", **options).fit(X)
    kept = TopicMoments(2, min_df=0.0, max_df=1.0).fit(X)
    with pytest.raises(UsageError, match="starts: expected 'random', got 'documents'; kept moments"):
        pure(2, alpha0=1.0, starts="documents", decomposition="power").fit_moments(kept)


@pytest.mark.parametrize("model", [SpectralLDA, IndependentTopics])
def test_the_largest_entries_of_topics_of_few_words_are_nearer_than_all(model):
    k, d, n_own = 5, 3000, 40
    rng = np.random.default_rng(0)
    topics = np.zeros((d, k))
    for column in topics.T:
        column[rng.choice(d, n_own, replace=False)] = rng.dirichlet(np.full(n_own, 2.0))
    # Gamma distributed amounts, with Dirichlet distributed shares.
    counts = rng.poisson(rng.gamma(0.2, 60.0, (3000, k)) @ topics.T)
    options = {"min_df": 0.0, "max_df": 1.0, "n_refine": 0, "random_state": 0}
    if model is SpectralLDA:
        options |= {"alpha0": 1.0, "init": "tensor", "max_count": None}

    def fitted(max_words):
        found = model(k, max_words=max_words, **options).fit(counts)
        assert_allclose(found.components_.sum(axis=1), 1.0, rtol=1e-5)
        return found

    whole, largest = fitted(None), fitted(n_own)
    assert ((largest.components_ > 0.0).sum(axis=1) == n_own).all()
    # The weights and the share of negative mass are those of all words.
    assert_array_equal(largest.weights_, whole.weights_)
    assert largest.diagnostics_["negative_mass"] == whole.diagnostics_["negative_mass"]
    errors = {
        name: matched_topics(found.components_, topics.T)[0]
        for name, found in (("all", whole), ("own", largest))
    }
    assert errors["own"] < 0.7 * errors["all"]
    # As many words as there are leave the topics as they are.
    assert_array_equal(fitted(d).components_, whole.components_)


def test_moments_of_some_words_are_exact_too():
    """Lengths count all words: the moments of the others are a block of the whole."""
    population = tiny(d=7)
    corpus = population_corpus(population)
    # Not the frequencies of the population, but different for all words.
    share = np.asarray(corpus.document_frequency) / corpus.n_documents
    share[0] = corpus.document_frequency[0] = 0
    low = 0.1
    model = pure(3, alpha0=1.6, n_oversamples=2, min_df=low).fit_corpus(corpus)
    seen = share > low
    assert seen.sum() == 6
    assert_array_equal(model.components_[:, ~seen], 0.0)
    expected = population.topics[seen] / population.topics[seen].sum(axis=0)
    assert matched_topics(model.components_[:, seen], expected.T)[0] < 1e-10
    assert_allclose(np.sort(model.weights_), np.sort(population.alpha / 1.6), atol=1e-10)


def zipf_counts(n, d, length):
    law = 1.0 / np.arange(3, d + 3)
    return np.random.default_rng(0).multinomial(length, law / law.sum(), n)


@pytest.mark.parametrize(("n", "d", "length", "least"), [(1000, 3000, 100, 5), (700, 500, 3, 4)])
def test_the_moments_see_the_words_in_half_a_percent_of_long_or_few_documents(n, d, length, least):
    counts = zipf_counts(n, d, length)
    frequency = (counts > 0).sum(axis=0)
    seen = word_numbers(MemoryCorpus(counts), 2, "auto", 0.5) >= 0
    assert_array_equal(seen, (frequency >= least) & (frequency <= 0.5 * n))
    assert 0 < seen.sum() < d


def test_of_short_documents_the_moments_see_rarer_words():
    counts = zipf_counts(6000, 500, 3)
    frequency = (counts > 0).sum(axis=0)
    seen = word_numbers(MemoryCorpus(counts), 2, "auto", 0.5) >= 0
    least = frequency[seen].min()
    assert 10 < least < 30
    assert_array_equal(seen, frequency >= least)
    assert counts[:, frequency > least].sum() < 0.8 * counts.sum() <= counts[:, seen].sum()


def test_words_of_the_moments_are_in_ten_documents_at_least():
    counts = np.random.default_rng(0).multinomial(5, np.full(3000, 1 / 3000), 4000)
    frequency = (counts > 0).sum(axis=0)
    seen = word_numbers(MemoryCorpus(counts), 2, "auto", 0.5) >= 0
    assert_array_equal(seen, frequency >= 10)
    assert seen.sum() < 600


def test_exact_population_of_one_topic_a_document():
    population = planted(6, 3, 3, random_state=1)
    parts = [population.enumerate(n, 1) for n in (3, 4)]
    weights = np.concatenate([p.weights for p in parts]) / 2
    corpus = WeightedCorpus(vstack([p.words for p in parts]).astype(int), None, weights, shard_documents=50)
    exact = {"min_df": 0.0, "max_df": 1.0, "max_count": None, "precision": "double"}
    model = SingleTopic(3, n_refine=0, n_oversamples=3, **exact).fit_corpus(corpus)
    distance, order = matched_topics(model.components_, population.O.T)
    assert distance < 1e-10
    assert_allclose(model.weights_[order], population.pi, atol=1e-10)


def short_beside_long(length):
    """8,000 documents of a few words of the first topic beside 4,000 of 40 words of all three."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(30, 0.3), 3).T
    population = TopicPopulation([0.3, 0.3, 0.3], topics)
    short = rng.multinomial(length, topics[:, 0], 8000)
    return topics, MemoryCorpus(np.vstack([short, population.sample(4000, 40, seed=1)[0].toarray()]))


@pytest.mark.parametrize("weighting", ["document", "tokens", "length"])
def test_documents_of_two_words_count_in_no_order(weighting, caplog):
    topics, corpus = short_beside_long(2)
    model = pure(3, alpha0=0.9, weighting=weighting).fit_corpus(corpus)
    assert matched_topics(model.components_, topics.T)[0] < 0.05
    assert_allclose(model.weights_, 1 / 3, atol=0.03)
    assert max(model.diagnostics_["sum_rules"].values()) < 1e-12
    assert "67 % of the documents have fewer than 3 words and do not enter the moments" in caplog.text
    kept = TopicMoments(3, min_df=0.0, max_df=1.0, max_count=None, weighting=weighting).fit_corpus(corpus)
    model = SpectralLDA(3, alpha0=0.9, init="tensor", n_refine=0).fit_moments(kept)
    assert matched_topics(model.components_, topics.T)[0] < 0.05
    assert max(model.diagnostics_["sum_rules"].values()) < 1e-10
    words = [int(topic.argmax()) for topic in topics.T]
    searched = TopicSearch(3, alpha0=0.9).fit_moments(kept)
    found = np.array([found.topic for found in searched.search_all([[word] for word in words], force=True)])
    assert np.abs(found - topics.T).sum(axis=1).max() < 0.1
    assert max(searched.diagnostics_["sum_rules"].values()) < 1e-10


def test_anchors_need_two_words_of_a_document():
    """Moments of orders one and two are the same with documents of one word and without them."""
    counts = short_beside_long(1)[1].read_shard(0).words
    exact = {"min_df": 0.0, "max_df": 1.0, "max_count": None, "weighting": "document", "scale_words": False}
    model = AnchorTopics(3, n_refine=0, **exact).fit(counts)
    assert model.diagnostics_["sum_rules"].keys() == {"2"}
    assert model.diagnostics_["sum_rules"]["2"] < 1e-12
    assert_allclose(
        model.components_, AnchorTopics(3, n_refine=0, **exact).fit(counts[8000:]).components_, atol=1e-6
    )
    short = np.eye(30, dtype=int)[np.arange(600) % 30]
    for model, counts in (
        (AnchorTopics(3, **exact), short),
        (SpectralLDA(3, min_df=0.0, max_df=1.0), 2 * short),
    ):
        with pytest.raises(
            NumericalError, match="no document is long enough for the moments: triples of words"
        ):
            model.fit(counts)
    assert AnchorTopics(3, min_df=0.0, max_df=1.0, max_count=None).fit(2 * short).n_components_ == 3


def test_moments_of_other_documents_in_an_order_are_reported(monkeypatch, caplog):
    """As documents of two words were in pairs alone, and no third word is counted for."""
    weigh = weighting.document_weights

    def of_all_documents(lengths, n_labels, kind, weights=None):
        pairs = weigh(lengths, n_labels, replace(kind, orders=2), weights)
        return replace(weigh(lengths, n_labels, kind, weights), rho2=pairs.rho2, mass2=pairs.mass2)

    topics, corpus = short_beside_long(2)
    monkeypatch.setattr(weighting, "document_weights", of_all_documents)
    model = pure(3, alpha0=0.9, weighting="document").fit_corpus(corpus)
    assert min(model.diagnostics_["sum_rules"].values()) > 0.1
    assert "the moments of different orders are not of the same documents" in caplog.text
    assert matched_topics(model.components_, topics.T)[0] > 0.3


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


def test_errors_fall_with_the_root_of_the_number_of_documents():
    sizes, errors = np.array([1000, 4000, 16000]), []
    for n in sizes:
        found = []
        for seed in range(3):
            population, _, corpus = lda_corpus(int(n), d=60, k=4, length=30, seed=seed, shard_documents=4000)
            model = pure(4, alpha0=0.8, n_oversamples=20, precision="single").fit_corpus(corpus)
            found.append(matched_topics(model.components_, population.topics.T)[0])
        errors.append(np.median(found))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.7 < slope < -0.35


def factorial_law(means):
    """Probabilities of 0 to 3 with the first three factorial moments of Poisson laws, for means up to one."""
    return np.stack(
        [1 - means + means**2 / 2 - means**3 / 6, means - means**2 + means**3 / 2,
         (means**2 - means**3) / 2, means**3 / 6], axis=-1,
    )  # fmt: skip


def independent_population(topics, odds, sizes):
    """All documents of counts up to 3, where each topic is either absent or has a fixed amount."""
    d, k = topics.shape
    counts = np.array(list(product(range(4), repeat=d)))
    weights = np.zeros(len(counts))
    for there in product((0, 1), repeat=k):
        chance = np.prod(np.where(there, odds, 1 - odds))
        law = factorial_law(topics @ (there * sizes))
        weights += chance * np.prod(law[np.arange(d), counts], axis=1)
    return WeightedCorpus(counts, None, weights, shard_documents=300)


@pytest.mark.parametrize("scale_words", [True, False])
def test_exact_population_of_independent_amounts(scale_words):
    rng = np.random.default_rng(3)
    topics = rng.dirichlet(np.full(5, 0.7), 3).T
    odds, sizes = np.array([0.2, 0.3, 0.15]), np.array([0.4, 0.3, 0.25])
    corpus = independent_population(topics, odds, sizes)
    assert corpus.row_weights.min() >= 0.0
    exact = {"min_df": 0.0, "max_df": 1.0, "precision": "double", "scale_words": scale_words}
    model = IndependentTopics(3, n_refine=0, n_oversamples=2, **exact).fit_corpus(corpus)
    distance, order = matched_topics(model.components_, topics.T)
    assert distance < 1e-10
    assert_allclose(model.weights_[order], odds * sizes / (odds * sizes).sum(), atol=1e-10)
    skewness = (1 - 2 * odds) / np.sqrt(odds * (1 - odds))
    assert_allclose(np.array(model.diagnostics_["skewness"])[order], skewness, atol=1e-8)


def test_counts_without_topics_are_no_error_of_use():
    """The whitened tensor is noise, and what rounding makes of it is not symmetric to six digits."""
    counts = np.random.default_rng(0).poisson(1.0, (200, 30))
    for kind in (SingleTopic, SpectralLDA, AnchorTopics):
        found = kind(2, max_df=1.0).fit(counts).components_
        # The moments of all documents may carry fewer topics than those without the documents held out.
        assert 1 <= len(found) <= 2
        assert_allclose(found.sum(axis=1), 1.0, atol=1e-5)


def test_counts_that_vary_less_than_poisson_counts_have_no_amounts():
    counts = np.full((50, 4), 3)
    with pytest.raises(NumericalError, match="no number of components can be learned"):
        IndependentTopics(2, min_df=0.0, max_df=1.0).fit(counts)


def test_errors_of_independent_amounts_fall_likewise():
    """Amounts of Gamma laws of several shapes, whose skewness is two over the root of the shape."""
    sizes, errors, skewness = np.array([1000, 4000, 16000]), [], []
    shapes = np.array([0.3, 0.5, 0.8, 1.0])
    for n in sizes:
        found = []
        for seed in range(3):
            rng = np.random.default_rng(seed)
            topics = rng.dirichlet(np.full(80, 0.1), 4)
            counts = rng.poisson(rng.gamma(shapes, 15.0, (n, 4)) @ topics)
            model = IndependentTopics(4, n_refine=0, min_df=0.0, max_df=1.0).fit(counts)
            distance, order = matched_topics(model.components_, topics)
            found.append(distance)
            skewness.append(np.array(model.diagnostics_["skewness"])[order])
        errors.append(np.median(found))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.7 < slope < -0.3
    assert_allclose(np.mean(skewness[-3:], axis=0), 2 / np.sqrt(shapes), rtol=0.15)


def test_the_share_of_words_that_most_documents_have_is_told():
    counts = np.array([[3, 1, 0, 1], [2, 0, 1, 0], [1, 1, 0, 0], [4, 0, 1, 0], [2, 0, 0, 1]] * 20)
    for refine in ("cvb", "vb"):
        model = SpectralLDA(2, alpha0=1.0, init="tensor", refine=refine, max_df=0.4, min_df=0.0).fit(counts)
        assert model.diagnostics_["common_words"] == pytest.approx(12 / 18)
        # In so few words the moments carry one topic.
        assert_allclose(model.components_.sum(axis=1), 1.0, rtol=1e-6)
    assert model.alpha_ == pytest.approx([1.0])


@pytest.mark.parametrize(
    "model", [SpectralLDA(5), SingleTopic(5), AnchorTopics(5)], ids=lambda m: type(m).__name__
)
def test_saved_models_are_the_same_and_damage_is_told(model, tmp_path):
    _, _, corpus = lda_corpus(800)
    X = corpus.read_shard(0).words
    model = clone(model).fit_corpus(corpus)
    model.save(tmp_path / "m")
    again = load_model(tmp_path / "m")
    assert type(again) is type(model)
    assert again.get_params() == model.get_params()
    assert_array_equal(again.transform(X), model.transform(X))
    assert again.topics(3) == model.topics(3)
    with pytest.raises(UsageError, match="the model exists"):
        model.save(tmp_path / "m")
    with pytest.raises(UsageError, match="expected"):
        next(c for c in (SpectralLDA, SingleTopic) if c is not type(model)).load(tmp_path / "m")
    vocabulary = tmp_path / "m" / "vocabulary.txt"
    vocabulary.write_text(vocabulary.read_text().replace("1", "one"))
    with pytest.raises(StoreError, match=r"vocabulary\.txt: expected \d+ bytes, got"):
        load_model(tmp_path / "m")


def test_a_resumed_fit_gives_the_same_bits(tmp_path):
    _, _, corpus = lda_corpus(900)
    expected = SpectralLDA(5).fit_corpus(corpus)
    seen = []

    def stop(event):
        seen.append(event)
        if sum(isinstance(e, PassDone) for e in seen) == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SpectralLDA(5).fit_corpus(corpus, run=tmp_path, observer=stop)
    events = []
    resumed = SpectralLDA(5).fit_corpus(corpus, run=tmp_path, observer=events.append)
    done = [event.resumed for event in events if isinstance(event, PassDone)]
    assert done == [True] * 13 + [False] * (len(expected.timings_) - 13)
    assert_array_equal(resumed.components_, expected.components_)
    assert_array_equal(resumed.alpha_, expected.alpha_)


@pytest.mark.cluster
def test_any_number_of_workers_gives_the_same_bits(cluster):
    _, _, corpus = lda_corpus(900)
    expected = SpectralLDA(5).fit_corpus(corpus)
    found = SpectralLDA(5).fit_corpus(corpus, client=cluster)
    assert_array_equal(found.components_, expected.components_)
    assert_array_equal(found.alpha_, expected.alpha_)


def test_one_load_of_the_moments_serves_every_alpha0_and_one_that_fails_leaves_the_others(monkeypatch):
    _, _, corpus = lda_corpus(800)
    loads, load, decompose = [], core.load_moments, core.decompose_moments

    def counted(*arguments):
        loads.append(arguments)
        return load(*arguments)

    def failing(moments, settings, noise):
        if settings.alpha0 == 5.0:
            raise NumericalError("no number of components can be learned")
        return decompose(moments, settings, noise)

    monkeypatch.setattr(components, "load_moments", counted)
    model = SpectralLDA(5, init="tensor").fit_corpus(corpus)
    assert set(model.selection_["perplexity"]) == {"tensor-1", "tensor-5"}
    # Once for both of them, and once for the one that was taken, with the documents that were held out.
    assert len(loads) == 2
    monkeypatch.setattr(core, "decompose_moments", failing)
    model = SpectralLDA(5).fit_corpus(corpus)
    assert set(model.selection_["perplexity"]) == {"tensor-1", "anchors"}
    with pytest.raises(NumericalError, match="no number of components can be learned"):
        SpectralLDA(5, init="tensor", alpha0=5.0).fit_corpus(corpus)


def test_topics_are_ranked_by_their_share():
    _, _, corpus = lda_corpus(800)
    model = SpectralLDA(5, alpha0=1.0, init="tensor").fit_corpus(corpus)
    found = model.topics(4, "probability")
    weights = [topic["weight"] for topic in found]
    assert weights == sorted(weights, reverse=True)
    for topic in found:
        row = model.components_[topic["state"]]
        assert [p for _, p in topic["words"]] == pytest.approx(np.sort(row)[::-1][:4])
    unigram = model.unigram_.astype(float)
    for by, score in (
        ("lift", lambda row: row / unigram),
        ("relevance", lambda row: 0.6 * np.log(row) + 0.4 * np.log(row / unigram)),
    ):
        for topic in model.topics(4, by):
            row = model.components_[topic["state"]].astype(float)
            best = np.argsort(-score(row), kind="stable")[:4]
            assert [word for word, _ in topic["words"]] == [model.vocabulary_[i] for i in best]
            assert [p for _, p in topic["words"]] == pytest.approx(row[best])
    with pytest.raises(UsageError, match="by: expected one of probability, relevance, lift, got 'fame'"):
        model.topics(4, "fame")
    given = model.pyldavis_input(50)
    assert len(given["vocab"]) == 50
    assert given["topic_term_dists"].shape == (5, 50)
    assert_allclose(given["topic_term_dists"].sum(axis=1), 1.0)
    assert_allclose(given["doc_topic_dists"].T @ given["doc_lengths"] / 1e6, model.weights_)
    assert set(given["vocab"]) == {model.vocabulary_[i] for i in np.argsort(-unigram, kind="stable")[:50]}
    similar = model.similar_topics()
    assert_allclose(np.diag(similar), 1.0, atol=1e-6)
    a, b = model.components_[:2].astype(float)
    assert similar[0, 1] == pytest.approx(np.sqrt(a * b).sum())


@pytest.mark.parametrize("n_refine", [4, 0])
def test_pyldavis_draws_the_topics_of_the_model(n_refine):
    """Also of moments alone, where most topics lack some words and a few words have no topic."""
    vis = pytest.importorskip("pyLDAvis")
    population, _, _ = lda_corpus(n=10)
    counts = population.sample(1500, 60, seed=2)[0].toarray()
    rare = np.zeros((1500, 3), int)
    rare[:2] = 1
    model = SpectralLDA(5, alpha0=1.0, init="tensor", n_refine=n_refine)
    model.fit(np.hstack([counts, rare]))
    unseen = {model.vocabulary_[i] for i in np.flatnonzero(model.components_.max(axis=0) == 0.0)}
    assert bool(unseen) == (n_refine == 0)
    drawn = vis.prepare(**model.pyldavis_input(), n_jobs=1)
    order = np.argsort(-model.weights_, kind="stable")
    assert drawn.topic_order == (order + 1).tolist()
    assert_allclose(drawn.topic_coordinates["Freq"], 100.0 * model.weights_[order], rtol=1e-6)
    assert not {"Infinity", "NaN"} & set(drawn.to_json().replace(":", " ").replace(",", " ").split())
    mixture = model.weights_ @ model.components_.astype(float)
    for place, topic in enumerate(order, 1):
        listed = drawn.topic_info[drawn.topic_info["Category"] == f"Topic{place}"]
        columns = [model.vocabulary_.index(word) for word in listed["Term"]]
        row = model.components_[topic, columns].astype(float)
        has = row > 0.0
        # It rounds logarithms to four digits.
        assert_allclose(listed["logprob"][has], np.log(row[has]), atol=1e-4)
        assert_allclose(listed["loglift"][has], np.log(row[has] / mixture[columns][has]), atol=1e-4)
        assert not unseen & set(listed["Term"])
        for part in (0.0, 0.4, 1.0):
            score = np.log(np.maximum(model.components_[topic], 1e-12)) - part * np.log(
                np.maximum(mixture, 1e-12)
            )
            best = [model.vocabulary_[i] for i in np.argsort(-score, kind="stable")[:5]]
            relevance = (1.0 - part) * listed["logprob"] + part * listed["loglift"]
            assert listed["Term"][relevance.sort_values(ascending=False).index[:5]].tolist() == best


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"alpha0": -1.0}, "alpha0: expected at least 0, or 'auto', got -1"),
        ({"alpha0": "much"}, "alpha0: expected a number, or 'auto', got 'much'"),
        ({"init": "random"}, "init: expected one of auto, tensor, anchors"),
        ({"min_df": "few"}, "min_df: expected a number, or 'auto', got 'few'"),
        ({"min_df": 0.6}, "expected 0 <= min_df <= max_df <= 1"),
        ({"n_refine": "many"}, "n_refine: expected a whole number, or 'auto', got 'many'"),
        ({"n_refine": -1}, "n_refine: expected at least 0"),
        ({"eta": 0.0}, "eta: expected at least 1e-12, got 0.0"),
        ({"eta": 1e-300}, "eta: expected at least 1e-12, got 1e-300"),
        ({"eta": math.inf}, "eta: expected a finite number, got inf"),
        ({"random_state": -1}, r"random_state: expected at least 0, got -1"),
        ({"min_df": 0.99, "max_df": 1.0}, "n_components=5 needs as many words, but only 0 of 200"),
    ],
)
def test_what_does_not_go_together_is_refused(parameters, message):
    corpus = lda_corpus(300)[2]
    with pytest.raises(UsageError, match=message):
        SpectralLDA(5, **parameters).fit_corpus(corpus)


def test_negative_counts_and_other_vocabularies_are_refused():
    corpus = lda_corpus(300)[2]
    with pytest.raises(InputError, match="Negative values"):
        SpectralLDA(2).fit(np.array([[1, -1], [2, 3]]))
    model = SpectralLDA(5, alpha0=1.0, init="tensor").fit_corpus(corpus)
    with pytest.raises(UsageError, match="X has 3 features, but SpectralLDA is expecting 200"):
        model.transform(np.ones((2, 3)))
    assert model.transform(np.ones((0, 200))).shape == (0, 5)


@parametrize_with_checks([
    SpectralLDA(2, alpha0=1.0, init="tensor", min_df=0.0, max_df=1.0),
    AnchorTopics(2, min_df=0.0, max_df=1.0),
    SparseTopics(2, min_df=0.0, max_df=1.0),
    SingleTopic(2, min_df=0.0, max_df=1.0),
])  # fmt: skip
def test_scikit_learn_contract(estimator, check, monkeypatch):
    # The documents of the checks are made of counts.
    checked = documents.checked_rows

    def counts(*arguments):
        X = 10 * checked(*arguments)
        return X.ceil() if issparse(X) else np.ceil(X)

    monkeypatch.setattr(documents, "checked_rows", counts)
    check(estimator)


def small_counts():
    return lda_corpus(300, d=40, k=2)[2].read_shard(0).words


@pytest.mark.parametrize(
    "estimator",
    [SpectralLDA(2), AnchorTopics(2), SingleTopic(2), IndependentTopics(2), TopicMoments(2), TopicSearch(2)],
    ids=lambda estimator: type(estimator).__name__,
)
def test_weights_are_refused_with_their_place_and_what_to_do(estimator):
    counts = small_counts().astype(float)
    counts.data[counts.indptr[7]] = 0.5
    word = counts.indices[counts.indptr[7]]
    message = (
        rf"^document 7: word '{word}': expected a count, got 0\.5; {type(estimator).__name__} needs counts of "
        "words, not weights such as tf-idf: give the raw counts, or ingest the texts, whose words are counted$"
    )
    with pytest.raises(InputError, match=message):
        estimator.fit(counts)


def test_a_corpus_of_weights_on_disk_is_refused(tmp_path):
    X = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0], [1.25, 0.0, 2.0]])
    corpus = from_arrays(tmp_path / "c", X, vocabulary=["a", "b", "c"], shard_documents=1)
    with pytest.raises(InputError, match=r"document 2: word 'a': expected a count, got 1\.25"):
        SpectralLDA(2).fit_corpus(corpus)
    with pytest.raises(
        InputError, match=r"document 2: word 'a': expected a count, got 1\.25; perplexity needs"
    ):
        evaluate_topics(SpectralLDA(2, n_refine=1).fit(small_counts()), corpus)


def test_counts_of_any_type_give_the_same_topics():
    counts = small_counts()
    whole = SingleTopic(2, n_refine=1).fit(counts)
    assert_array_equal(SingleTopic(2, n_refine=1).fit(counts.astype(float)).components_, whole.components_)


def test_documents_of_weights_are_read():
    """Shares change no more than the weights do."""
    counts = small_counts()
    model = SpectralLDA(2, n_refine=1, alpha0=1.0, init="tensor").fit(counts)
    for method in ("vb", "fast"):
        assert_allclose(model.transform(counts * 1.0001, method), model.transform(counts, method), atol=1e-3)
    # Least squares look at proportions alone.
    assert_allclose(model.transform(0.01 * counts, "fast"), model.transform(counts, "fast"), atol=1e-5)


@pytest.mark.parametrize("model", [SpectralLDA(2, n_refine=1), SingleTopic(2), SparseTopics(2)], ids=repr)
def test_the_score_is_that_of_completion_and_grid_search_uses_it(model):
    counts = small_counts()
    model = clone(model).fit(counts[:200])
    expected = evaluate_topics(model, MemoryCorpus(counts[200:]))["log_likelihood"]
    assert model.score(counts[200:]) == pytest.approx(expected, rel=1e-12)
    found = GridSearchCV(clone(model), {"n_components": [1, 2]}, cv=2, error_score="raise").fit(counts)
    assert found.best_params_ == {"n_components": 2}


def test_documents_without_a_score_are_refused():
    model = SpectralLDA(2, n_refine=1).fit(small_counts())
    for X, message in (
        (np.zeros((2, 40), int), "expected documents with words to predict, got none"),
        (np.full((2, 40), 0.5), r"document 0: word '0': expected a count, got 0\.5; score needs counts"),
        (np.zeros((0, 40), int), "minimum of 1 is required"),
    ):
        with pytest.raises(InputError, match=message):
            model.score(X)


def test_a_topic_model_remembers_the_labels_of_its_corpus(tmp_path):
    X = lda_corpus(300, 40, 3, 20)[2].read_shard(0).words
    Y = np.eye(300, 3, dtype=int)
    for names in (["b", "c", "a"], None):
        corpus = MemoryCorpus(X, Y, label_names=names)
        model = SpectralLDA(2, init="tensor", alpha0=1.0, max_df=1.0, n_refine=0).fit_corpus(corpus)
        assert model.label_names_ == (names or ["0", "1", "2"])
        model.save(tmp_path / "m", overwrite=True)
        assert load_model(tmp_path / "m").label_names_ == model.label_names_
    assert SpectralLDA(2, init="tensor", alpha0=1.0, max_df=1.0, n_refine=0).fit(X).label_names_ == []
