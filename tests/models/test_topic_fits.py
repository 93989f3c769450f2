"""Fits of topic models: stored, resumed, shown and scored, on counts of any type; weights are refused."""

import math

import numpy as np
import pytest
from helpers import lda_corpus
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from distmom.corpus import MemoryCorpus, from_arrays
from distmom.engine import PassDone
from distmom.errors import InputError, NumericalError, StoreError, UsageError
from distmom.evaluate.topics import evaluate_topics
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
from distmom.spectral.inputs import documents
from distmom.spectral.steps import components, core


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
