import numpy as np
import pytest
from helpers import WeightedCorpus
from numpy.testing import assert_allclose
from scipy.sparse import vstack
from sklearn.utils.estimator_checks import parametrize_with_checks

from distmom.corpus import MemoryCorpus
from distmom.errors import NumericalError, UsageError
from distmom.linalg import decompose, multilinear, whiten
from distmom.linalg.search import cancellation_search, search, whitening_search
from distmom.models import TopicSearch
from distmom.moments.dirichlet import second_moment, third_moment
from distmom.simulate.topics import TopicPopulation


def exact_moments(d=20, k=6, seed=0, sign=1.0):
    """m, A, B of some components in d dimensions, and what v says of each."""
    rng = np.random.default_rng(seed)
    mu, p = rng.standard_normal((d, k)), rng.dirichlet(np.full(k, 5.0))
    v = rng.standard_normal(d)
    w = mu.T @ v
    if sign < 0:
        # All preferences negative, by a part of v along which all components are alike.
        v -= np.linalg.pinv(mu.T) @ np.full(k, w.max() + 1.0)
        w = mu.T @ v
    return mu, p, w, mu @ p, (mu * p) @ mu.T, (mu * (p * w)) @ mu.T


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("method", ["whitening", "cancellation"])
def test_exact_moments_give_the_component_that_is_preferred(method, sign):
    for seed in range(10):
        mu, p, w, m, A, B = exact_moments(seed=seed, sign=sign)
        found = search(method, whiten(A, 6), B, m)
        best = int(np.argmax(w))
        assert_allclose(found.component, mu[:, best], atol=1e-8)
        assert found.weight == pytest.approx(p[best], abs=1e-9)
        assert_allclose(found.values, np.sort(w)[::-1], atol=1e-9)
        assert found.gap == pytest.approx(np.diff(np.sort(w))[-1], abs=1e-9)


def test_both_ways_are_one_on_noisy_moments_and_errors_grow_with_the_noise():
    mu, _, w, m, A, B = exact_moments()
    rng = np.random.default_rng(1)
    best, errors = int(np.argmax(w)), []
    noise = [rng.standard_normal(x.shape) for x in (m, A, B)]
    for size in (1e-2, 1e-3, 1e-4, 1e-5):
        mn, An, Bn = (x + size * (e + e.T) / 2 for x, e in zip((m, A, B), noise, strict=True))
        white = whiten(An, 6, noise=0.0)
        one, other = whitening_search(white, Bn, mn), cancellation_search(white, Bn, mn)
        assert_allclose(one.component, other.component, rtol=1e-5, atol=1e-7)
        assert one.weight == pytest.approx(other.weight, rel=1e-5)
        errors.append(np.linalg.norm(one.component - mu[:, best]) / size)
    assert max(errors[1:]) < 1.5 * min(errors[1:])


def test_a_component_without_weight_is_refused():
    _, _, _, m, A, B = exact_moments()
    with pytest.raises(NumericalError, match="has no weight"):
        whitening_search(whiten(A, 6), B, np.zeros(20))
    with pytest.raises(UsageError, match="method: expected one of whitening, cancellation, got 'x'"):
        search("x", whiten(A, 6), B, m)


def tiny(seed=1):
    rng = np.random.default_rng(seed)
    return TopicPopulation((0.3, 0.8, 0.5), rng.dirichlet(np.full(6, 0.5), 3).T)


@pytest.mark.parametrize("method", ["whitening", "cancellation"])
@pytest.mark.parametrize("scale_words", [True, False])
def test_exact_population_gives_every_topic_by_a_word_and_by_documents(method, scale_words):
    population = tiny()
    parts = [population.enumerate(n) for n in (3, 4)]
    weights = np.concatenate([w for _, w in parts]) / 2
    corpus = WeightedCorpus(vstack([c for c, _ in parts]).astype(int), None, weights, shard_documents=40)
    model = TopicSearch(
        3, alpha0=1.6, method=method, min_df=0.0, max_df=1.0, max_count=None, scale_words=scale_words,
        n_oversamples=3, precision="double",
    ).fit_corpus(corpus)  # fmt: skip
    ratio = population.topics / population.topics.sum(axis=1, keepdims=True)
    for topic in range(3):
        # Halves of a population are no samples of it: what they say of noise means nothing here.
        word = int(np.argmax(ratio[:, topic]))
        assert population.topics[word].argmax() == topic
        found = model.search([word], force=True)
        assert_allclose(found.topic, population.topics[:, topic], atol=1e-9)
        assert found.share == pytest.approx(population.alpha[topic] / 1.6, abs=1e-9)
        assert_allclose(found.preferences, np.sort(population.topics[word])[::-1], atol=1e-9)
        assert found.negative_mass < 1e-9
        # A document of the topic's own frequencies, much longer than it has words.
        document = np.round(1e8 * population.topics[:, [topic]].T).astype(int)
        found = model.search(documents=document, force=True)
        assert_allclose(found.topic, population.topics[:, topic], atol=1e-6)
        assert_allclose(found.preferences, [1.6 / population.alpha[topic], 0.0, 0.0], atol=1e-6)


def sampled(n=4000, d=300, k=10, seed=0):
    rng = np.random.default_rng(seed)
    population = TopicPopulation(np.full(k, 0.1), rng.dirichlet(np.full(d, 0.05), k).T)
    counts, shares = population.sample(n, 60, seed=seed + 1)
    return population, counts, shares


def test_searches_are_as_good_as_the_whole_decomposition():
    population, counts, shares = sampled()
    model = TopicSearch(10, alpha0=1.0, min_df=0.0, max_df=1.0, max_count=None).fit(counts)
    moments = model._moments
    white = whiten(second_moment(moments.m1, moments.m2, 1.0), 10)
    small = (moments.m1 @ white.W, white.W.T @ moments.m2 @ white.W, multilinear(moments.m3, *[white.W] * 3))
    found = decompose(third_moment(*small, 1.0), "joint")
    whole = np.zeros((300, 10))
    components = white.B @ (found.eigenvectors * found.eigenvalues)
    whole[model._numbers >= 0] = (model._stored / model._scale**2) @ components
    whole = np.maximum(whole, 0.0) / np.maximum(whole, 0.0).sum(axis=0)
    errors = []
    for topic in range(10):
        truth = population.topics[:, topic]
        word = int(np.argmax(truth - np.delete(population.topics, topic, axis=1).max(axis=1)))
        by_word = model.search([word])
        assert by_word.informative
        pure = counts[np.argsort(-shares[:, topic])[:20]]
        by_documents = model.search(documents=pure)
        decomposed = np.abs(whole - truth[:, None]).sum(axis=0).min()
        errors.append([np.abs(f.topic - truth).sum() for f in (by_word, by_documents)] + [decomposed])
    by_word, by_documents, decomposed = np.mean(errors, axis=0)
    assert decomposed < 0.2
    assert by_word < 1.25 * decomposed
    assert by_documents < 1.25 * decomposed


def test_shares_of_all_topics_sum_to_one():
    population, counts, _ = sampled()
    model = TopicSearch(10, alpha0=1.0, min_df=0.0, max_df=1.0, max_count=None).fit(counts)
    words = [
        int(np.argmax(population.topics[:, t] - np.delete(population.topics, t, axis=1).max(axis=1)))
        for t in range(10)
    ]
    assert sum(model.search([word]).share for word in words) == pytest.approx(1.0, abs=0.05)


def test_words_that_tell_nothing_are_refused():
    population, _, _ = sampled()
    # A word that all topics have alike.
    topics = np.vstack([0.9 * population.topics, np.full((1, 10), 0.1)])
    counts = TopicPopulation(population.alpha, topics).sample(4000, 60, seed=3)[0]
    model = TopicSearch(10, alpha0=1.0, min_df=0.0, max_df=1.0, max_count=None).fit(counts)
    with pytest.raises(NumericalError, match="does not tell which topic is meant: it prefers one by"):
        model.search([300])
    assert not model.search([300], force=True).informative


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"words": ["nonsense"]}, "'nonsense' is not in the vocabulary"),
        ({"words": []}, "no word was given"),
        ({"words": [0], "documents": [[1] * 300]}, "give words or documents"),
        ({}, "give words or documents"),
        ({"documents": [[1, 2]]}, "X has 2 features, but TopicSearch is expecting 300"),
        ({"documents": [[0] * 300]}, "the documents have no words"),
        ({"words": [5]}, "is in fewer or more documents than the moments see"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(arguments, message):
    _, counts, _ = sampled(n=500)
    counts = counts.toarray()
    counts[1:, 5] = 0
    model = TopicSearch(5, alpha0=1.0, max_df=1.0, max_count=None).fit_corpus(MemoryCorpus(counts))
    with pytest.raises(UsageError, match=message):
        model.search(**arguments)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"method": "magic"}, "method: expected one of whitening, cancellation"),
        ({"alpha0": -1.0}, "alpha0: expected a number from 0 on"),
        ({"min_df": 0.9}, "expected 0 <= min_df <= max_df <= 1"),
        ({"n_components": 0}, "n_components: expected at least 1"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(UsageError, match=message):
        TopicSearch(**{"n_components": 3, **parameters}).fit(sampled(n=100)[1])


@parametrize_with_checks([TopicSearch(1, alpha0=0.0, min_df=0.0, max_df=1.0)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)
