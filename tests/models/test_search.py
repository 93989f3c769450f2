import numpy as np
import pytest
from helpers import WeightedCorpus
from numpy.testing import assert_allclose
from scipy.sparse import issparse, vstack
from sklearn.utils.estimator_checks import parametrize_with_checks

from distmom.corpus import MemoryCorpus
from distmom.errors import NumericalError, UsageError
from distmom.linalg.search.component import SEARCHES, whitening_search
from distmom.models import TopicSearch
from distmom.models.topics import search as models_search
from distmom.moments.documents.dirichlet import third_moment
from distmom.simulate import TopicPopulation
from distmom.spectral.inputs import documents


def tiny(seed=1):
    rng = np.random.default_rng(seed)
    return TopicPopulation((0.3, 0.8, 0.5), rng.dirichlet(np.full(6, 0.5), 3).T)


#: a search by a threshold has its error (see tests/linalg/test_cancellation.py)
EXACT = [name for name in SEARCHES if name != "cancellation-threshold"]


@pytest.mark.parametrize("method", EXACT)
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
        assert_allclose(found.topic, population.topics[:, topic], atol=1e-10)
        assert found.share == pytest.approx(population.alpha[topic] / 1.6, abs=1e-10)
        assert_allclose(found.preferences, np.sort(population.topics[word])[::-1], atol=1e-10)
        assert found.negative_mass < 1e-10
        # A document of the topic's own frequencies, much longer than it has words.
        document = np.round(1e8 * population.topics[:, [topic]].T).astype(int)
        found = model.search(documents=document, force=True)
        assert_allclose(found.topic, population.topics[:, topic], atol=1e-6)
        assert_allclose(found.preferences, [1.6 / population.alpha[topic], 0.0, 0.0], atol=1e-6)
        # Projected, documents and words prefer the topic with which they have the largest product.
        model.side = "project"
        products = population.topics.T @ population.topics[:, topic]
        found = model.search(documents=document, force=True)
        assert_allclose(found.topic, population.topics[:, products.argmax()], atol=1e-6)
        assert_allclose(found.preferences, np.sort(products)[::-1], atol=1e-6)
        found = model.search([word], force=True)
        assert_allclose(found.preferences, np.sort(population.topics[word])[::-1], atol=1e-10)
        model.side = "auto"


def sampled(n=4000, d=300, k=10, seed=0):
    rng = np.random.default_rng(seed)
    population = TopicPopulation(np.full(k, 0.1), rng.dirichlet(np.full(d, 0.05), k).T)
    counts, shares = population.sample(n, 60, seed=seed + 1)
    return population, counts, shares


def label_words(topics):
    """The word that each topic, a column, has by the largest margin."""
    others = np.stack([np.delete(topics, i, axis=1).max(axis=1) for i in range(topics.shape[1])], axis=1)
    return [int(word) for word in (topics - others).argmax(axis=0)]


def test_searches_are_as_good_as_the_whole_decomposition():
    population, counts, shares = sampled()
    model = TopicSearch(10, alpha0=1.0, min_df=0.0, max_df=1.0, max_count=None).fit(counts)
    words = [[word] for word in label_words(population.topics)]
    documents = [counts[np.argsort(-shares[:, topic])[:20]] for topic in range(10)]

    def error(method, targets):
        found = model.set_params(method=method).search_all(targets)
        return np.mean([np.abs(f.topic - t).sum() for f, t in zip(found, population.topics.T, strict=True)])

    errors = {(method, by): error(method, targets) for method in SEARCHES for by, targets in
              (("words", words), ("documents", documents))}  # fmt: skip
    decomposed = errors["joint", "words"]
    assert decomposed < 0.2
    assert errors["joint", "documents"] == decomposed
    for (method, by), value in errors.items():
        # Eigenvalues of one random contraction are nearer to each other than those along the side information.
        assert value < (2.0 if method == "random" else 1.25) * decomposed, (method, by)
    assert errors["random", "words"] > 1.25 * errors["whitening", "words"]


def test_the_first_words_of_a_topic_are_found():
    population, counts, _ = sampled(n=16_000)
    model = TopicSearch(10, alpha0=1.0, min_df=0.0, max_df=1.0, max_count=None).fit(counts)
    found = model.search_all([[word] for word in label_words(population.topics)])
    for topic, truth in zip(found, population.topics.T, strict=True):
        first, true = (set(np.argsort(-each)[:20].tolist()) for each in (topic.topic, truth))
        assert len(first & true) >= 18


@pytest.mark.parametrize("method", SEARCHES)
def test_many_targets_are_as_many_searches_and_their_shares_sum_to_one(method):
    population, counts, shares = sampled()
    model = TopicSearch(10, alpha0=1.0, method=method, min_df=0.0, max_df=1.0, max_count=None).fit(counts)
    words = label_words(population.topics)
    about = counts[np.argsort(-shares[:, 9])[:20]]
    targets = [*([word] for word in words[:8]), [words[8], words[8]], about]
    all_of_them = model.search_all(targets)
    alone = [*(model.search(target) for target in targets[:9]), model.search(documents=about)]
    for one, other in zip(all_of_them, alone, strict=True):
        assert one.share == other.share
        assert one.noise == other.noise
        assert np.array_equal(one.topic, other.topic)
        assert np.array_equal(one.preferences, other.preferences)
    assert sum(found.share for found in all_of_them) == pytest.approx(1.0, abs=0.05)
    nearest = [np.abs(found.topic[:, None] - population.topics).sum(axis=0).argmin() for found in all_of_them]
    assert nearest == list(range(10))
    assert model.search_all([]) == []


def test_a_target_that_cannot_be_searched_for_is_named_by_its_number():
    population, counts, _ = sampled(n=500)
    model = TopicSearch(10, alpha0=1.0, min_df=0.0, max_df=1.0).fit(counts)
    word = label_words(population.topics)[0]
    with pytest.raises(UsageError, match="target 1: search: 'zebra' is not in the vocabulary"):
        model.search_all([[word], ["zebra"]], force=True)
    with pytest.raises(UsageError, match="target 0: search: expected a list of words, got the word 'zebra'"):
        model.search_all(["zebra"])
    with pytest.raises(NumericalError, match="target 1: the side information does not determine"):
        # All words together say of each topic that it sums to one.
        model.search_all([[word], np.flatnonzero(counts.sum(axis=0) > 0)])


@pytest.mark.parametrize("alpha0", [0.0, 1.0])
def test_whitened_slices_give_what_the_moments_in_the_basis_do(alpha0, monkeypatch):
    whole = []
    of_model = models_search.whitened_slices
    monkeypatch.setattr(
        models_search, "whitened_slices",
        lambda white, moments, alpha0: [whole.append(moments), of_model(white, moments, alpha0)][1],
    )  # fmt: skip
    population, counts, _ = sampled(n=1000)
    model = TopicSearch(10, alpha0=alpha0, min_df=0.0, max_df=1.0, max_count=None).fit(counts)
    white = model.whitened_.white
    for word in label_words(population.topics):
        found = model.search([word], force=True)
        v = model._along([word], None)
        Ms = []
        for moments in whole:
            m3 = third_moment(moments.m1, moments.m2, moments.m3, alpha0)
            M = (alpha0 + 1) * (alpha0 + 2) / 2 * white.W.T @ (m3 @ v) @ white.W
            Ms.append((M + M.T) / 2)
        direct = whitening_search(white, Ms[0], whole[0].m1)
        assert_allclose(found.preferences, direct.values, rtol=1e-10, atol=1e-12)
        assert found.share == pytest.approx(direct.weight, rel=1e-10)
        assert found.noise == pytest.approx(np.linalg.norm(Ms[1] - Ms[2], 2) / 2, rel=1e-10)
        topic = np.maximum((model._stored / model._scale**2) @ direct.component, 0.0)
        assert_allclose(found.topic[model._numbers >= 0], topic / topic.sum(), atol=1e-10)


def test_how_many_documents_would_tell_is_told_by_few_of_them():
    population, _, _ = sampled()
    words = label_words(population.topics)
    needed = []
    for n in (500, 8000):
        model = TopicSearch(10, alpha0=1.0, min_df=0.0, max_df=1.0, max_count=None)
        model.fit(population.sample(n, 60, seed=n)[0])
        found = [model.search([word], force=True) for word in words]
        assert [f.informative for f in found] == [f.n_documents_needed < n for f in found]
        needed.append([f.n_documents_needed for f in found])
    assert 0.5 < np.median(np.divide(*needed)) < 2.0


def test_the_first_words_of_topics_are_found():
    population, counts, _ = sampled(n=20_000)
    model = TopicSearch(10, alpha0=1.0, min_df=0.0, max_df=1.0, max_count=None).fit(counts)
    overlaps = []
    for topic, word in enumerate(label_words(population.topics)):
        found = np.argsort(-model.search([word]).topic)[:20]
        overlaps.append(len(np.intersect1d(found, np.argsort(-population.topics[:, topic])[:20])) / 20)
    assert np.mean(overlaps) >= 0.9


def test_words_that_tell_nothing_are_refused():
    population, _, _ = sampled()
    # A word that all topics have alike.
    topics = np.vstack([0.9 * population.topics, np.full((1, 10), 0.1)])
    counts = TopicPopulation(population.alpha, topics).sample(4000, 60, seed=3)[0]
    model = TopicSearch(10, alpha0=1.0, min_df=0.0, max_df=1.0, max_count=None).fit(counts)
    refusal = r"does not determine a topic: it prefers one by .* or about [\d,]+ documents in all"
    with pytest.raises(NumericalError, match=refusal):
        model.search([300])
    assert not model.search([300], force=True).informative


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"words": ["nonsense"]}, "'nonsense' is not in the vocabulary"),
        ({"words": []}, "no word was given"),
        (
            {"words": [0.5]},
            "expected words or their column numbers, got 0.5; give a matrix of documents by name",
        ),
        ({"words": np.ones((2, 300))}, "expected words or their column numbers, got array"),
        ({"words": "nonsense"}, "expected a list of words, got the word 'nonsense'"),
        ({"words": [0], "documents": [[1] * 300]}, "specify either words or documents"),
        ({}, "specify either words or documents"),
        ({"documents": [[1, 2]]}, "X has 2 features, but TopicSearch is expecting 300"),
        ({"documents": [[0] * 300]}, "the documents have no words"),
        ({"words": [5]}, "is left out of the moments"),
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
        ({"alpha0": -1.0}, "alpha0: expected at least 0"),
        ({"min_df": 0.9}, "expected 0 <= min_df <= max_df <= 1"),
        ({"n_components": 0}, "n_components: expected at least 1"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(UsageError, match=message):
        TopicSearch(**{"n_components": 3, **parameters}).fit(sampled(n=100)[1])


@parametrize_with_checks([TopicSearch(1, alpha0=0.0, min_df=0.0, max_df=1.0)])
def test_scikit_learn_contract(estimator, check, monkeypatch):
    # The documents of the checks are made of counts.
    checked = documents.checked_rows

    def counts(*arguments):
        X = 10 * checked(*arguments)
        return X.ceil() if issparse(X) else np.ceil(X)

    monkeypatch.setattr(documents, "checked_rows", counts)
    check(estimator)
