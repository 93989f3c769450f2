"""Topics by moments: exact populations, errors of samples, and the words and documents that moments take."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from helpers import WeightedCorpus, lda_corpus, matched_topics, population_corpus
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import vstack

from distmom.corpus import MemoryCorpus
from distmom.errors import NumericalError, UsageError
from distmom.models import (
    AnchorTopics,
    IndependentTopics,
    SingleTopic,
    SpectralLDA,
    TopicMoments,
    TopicSearch,
)
from distmom.models.topics.committed import word_numbers
from distmom.moments import weighting
from distmom.simulate.multilabel import planted
from distmom.simulate.topics import TopicPopulation


def tiny(alpha=(0.3, 0.8, 0.5), d=6, seed=1):
    rng = np.random.default_rng(seed)
    return TopicPopulation(alpha, rng.dirichlet(np.full(d, 0.5), len(alpha)).T)


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


def test_a_word_with_just_the_least_or_the_largest_share_of_documents_is_in_the_moments():
    # In binary, 0.07 * 100 is above 7, and 0.57 * 100 below 57.
    counts = (np.arange(100)[:, None] < np.array([6, 7, 30, 57, 58])).astype(int)
    numbers = word_numbers(MemoryCorpus(counts), 2, 0.07, 0.57)
    assert numbers.tolist() == [-1, 0, 1, 2, -1]
    fitted = SpectralLDA(1, min_df=0.07, max_df=0.57).fit(counts)
    assert fitted.diagnostics_["n_moment_words"] == 3
    assert fitted.diagnostics_["common_words"] == pytest.approx(58 / counts.sum())


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
            NumericalError, match=r"no document is long enough for the moments: .* triples need 3"
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
