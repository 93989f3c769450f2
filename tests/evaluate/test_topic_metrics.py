import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array

from distmom.corpus import MemoryCorpus
from distmom.engine import open_engine
from distmom.evaluate.topics import coherence, coherence_of_counts, diversity, evaluate_topics, top_words
from distmom.models import SingleTopic, SpectralLDA
from distmom.simulate.topics import TopicPopulation


def test_coherence_agrees_with_counts_of_documents():
    X = csr_array(np.random.default_rng(0).poisson(0.5, (200, 30)))
    top = np.array([[4, 9, 1], [17, 4, 28]])
    with open_engine(MemoryCorpus(X, shard_documents=33)) as engine:
        npmi, umass = coherence(engine, top)
    there = X.toarray() > 0
    for row, words in enumerate(top):
        pairs = [(words[i], words[j]) for i in range(3) for j in range(i + 1, 3)]
        p = there.mean(axis=0)
        both = [(there[:, a] & there[:, b]).mean() for a, b in pairs]
        expected = [
            np.log(pab / (p[a] * p[b])) / -np.log(pab) for (a, b), pab in zip(pairs, both, strict=True)
        ]
        assert npmi[row] == pytest.approx(np.mean(expected))
        expected = [np.log((200 * pab + 1) / (200 * p[a])) for (a, _), pab in zip(pairs, both, strict=True)]
        assert umass[row] == pytest.approx(np.mean(expected))


def test_words_that_never_or_always_co_occur_have_extreme_coherence():
    together = np.array([[10.0, 10.0, 0.0], [10.0, 10.0, 0.0], [0.0, 0.0, 0.0]])
    npmi, umass = coherence_of_counts(together, 10.0, np.array([[0, 1], [0, 2], [2, 1]]))
    assert_allclose(npmi, [1.0, -1.0, -1.0])
    assert_allclose(umass, [np.log(1.1), np.log(0.1), 0.0])


def test_top_words_and_their_diversity():
    components = np.array([[0.1, 0.5, 0.1, 0.3], [0.25, 0.25, 0.25, 0.25]])
    top = top_words(components, 3)
    assert top.tolist() == [[1, 3, 0], [0, 1, 2]]
    assert diversity(top) == pytest.approx(4 / 6)


def test_planted_topics_predict_better_than_the_unigram_distribution_and_words_may_be_unknown():
    rng = np.random.default_rng(0)
    population = TopicPopulation([0.2] * 4, rng.dirichlet(np.full(60, 0.1), 4).T)
    train, test = population.sample(1500, 40, seed=1)[0], population.sample(300, 40, seed=2)[0]
    model = SpectralLDA(4, alpha0=1.0, init="tensor").fit(train)
    metrics = evaluate_topics(model, MemoryCorpus(test))
    p = np.asarray(train.sum(axis=0)).ravel() + 0.1
    unigram = np.exp(-(test @ np.log(p / p.sum())).sum() / test.sum())
    shares = population.sample(300, 40, seed=2)[1]
    truth = np.exp(-(test.multiply(np.log(shares @ population.topics.T + 1e-12))).sum() / test.sum())
    assert truth < metrics["perplexity"] < 0.9 * unigram
    assert metrics["n_documents"] == 300
    assert metrics["NPMI"] > 0
    # Different columns, one of them a word unknown to the model.
    names = [*model.vocabulary_[::-1], "unknown"]
    widened = csr_array(np.hstack([test.toarray()[:, ::-1], np.full((300, 1), 7)]))
    other = evaluate_topics(model, MemoryCorpus(widened, vocabulary=names))
    assert other["n_tokens"] < metrics["n_tokens"] * 1.1
    assert other["perplexity"] == pytest.approx(metrics["perplexity"], rel=0.1)
    mixture = evaluate_topics(SingleTopic(4).fit(train), MemoryCorpus(test))
    assert metrics["perplexity"] < mixture["perplexity"] < unigram


@pytest.mark.parametrize("n_top", [0, 1])
def test_coherence_without_a_pair_of_words_is_not_defined(n_top):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        npmi, umass = coherence_of_counts(np.eye(2), 2.0, np.array([[0], [1]])[:, :n_top])
    np.testing.assert_array_equal([npmi, umass], np.full((2, 2), np.nan))
