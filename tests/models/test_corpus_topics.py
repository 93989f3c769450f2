"""Topics of the corpus of a multi-label model, with the labels of each topic."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array

from distmom.cli.main import main
from distmom.corpus import Block, MemoryCorpus
from distmom.errors import UsageError
from distmom.models import MultiLabelMoM, load_model
from distmom.models.multilabel.latent import corpus_topics
from distmom.models.multilabel.latent.corpus_topics import default_topics
from distmom.moments.documents.document_shares import SHORT, document_shares
from distmom.moments.documents.share_kernels import GivenTopics
from distmom.moments.documents.topic_labels import TopicLabelsPass

K, N_OWN, N_COMMON = 3, 12, 4
LABELS = ["all", "zero", "one", "two", "rare"]


@pytest.fixture(scope="module")
def documents():
    """Documents of three topics with words of their own, of which half share a label, and common words."""
    rng = np.random.default_rng(0)
    topics = np.zeros((K, K * N_OWN + N_COMMON))
    for t in range(K):
        topics[t, t * N_OWN : (t + 1) * N_OWN] = 0.5 * rng.dirichlet(np.ones(N_OWN))
    topics[:, -N_COMMON:] = 0.5 / N_COMMON
    shares = rng.dirichlet([0.1] * K, 600)
    X = np.stack([rng.multinomial(60, row @ topics) for row in shares])
    Y = np.zeros((600, len(LABELS)), int)
    Y[:, 0] = rng.random(600) < 0.9
    Y[np.arange(600), 1 + shares.argmax(axis=1)] = 1
    Y[7, 4] = 1
    return X, Y


@pytest.fixture(scope="module")
def model(documents):
    return MultiLabelMoM(3, head="linear", n_topics=K).fit(*documents)


def named(model):
    model.label_names_ = LABELS
    return model


def test_topics_have_their_words_and_labels(model):
    """Neither the common words nor the label of nearly all documents describe a topic."""
    found = named(model).topics(3)
    assert len(found) == K
    seen = set()
    for topic in found:
        owners = {int(word) // N_OWN for word, _ in topic["words"]}
        assert len(owners) == 1
        owner = owners.pop()
        assert topic["labels"][0][0] == LABELS[1 + owner]
        assert "rare" not in dict(topic["labels"])
        seen.add(owner)
    assert seen == set(range(K))
    weights = [topic["weight"] for topic in found]
    assert weights == sorted(weights, reverse=True)
    with pytest.raises(UsageError, match="by: expected one of"):
        model.topics(3, "fame")


def test_words_are_ranked_by_relevance_by_default(model):
    assert model.topics(5) == model.topics(5, "relevance") != model.topics(5, "probability")


def test_the_background_has_the_common_words(model):
    background = model.corpus_topics_.components[:, -1]
    assert set(np.argsort(-background)[:N_COMMON]) == set(range(K * N_OWN, K * N_OWN + N_COMMON))
    assert_allclose(model.corpus_topics_.components.sum(axis=0), 1.0, rtol=1e-5)
    assert_allclose(model.corpus_topics_.label_components.sum(axis=0), 1.0, rtol=1e-5)


def test_states_are_shown_on_request(model):
    assert len(model.topics(2, states=True)) == len(model.weights_)
    for state in model.topics(4, states=True):
        row = model.components_[state["state"]]
        assert [word for word, _ in state["words"]] == [str(i) for i in np.argsort(-row, kind="stable")[:4]]


def test_pass_adds_shares_to_labels():
    rng = np.random.default_rng(1)
    X, Y = rng.integers(0, 3, (20, 9)), rng.integers(0, 2, (20, 4))
    topics = rng.dirichlet(np.ones(9), 3).T.astype(np.float32)
    corpus = MemoryCorpus(csr_array(X.astype(np.int32)), csr_array(Y.astype(np.int32)))
    block = corpus.read_shard(0)
    assert isinstance(block, Block)
    unigram, alpha = np.full(9, 1 / 9, np.float32), np.full(3, 0.3)
    pass_ = TopicLabelsPass(
        9, topics=topics, n_topics=3, alpha=alpha, unigram=unigram, smoothing=0.01, n_labels=4
    )
    sums = pass_.zero()
    pass_.add(sums, block, {})
    shares, _ = document_shares(
        block.words, GivenTopics(topics, unigram, 0.01, alpha), how="em", iteration=SHORT
    )
    assert_allclose(sums["labels"].dense(), Y.T @ shares, rtol=1e-5)


def test_passes_are_planned_and_resumed(documents, model, tmp_path):
    X, Y = documents
    again = MultiLabelMoM(3, head="linear", n_topics=K)
    corpus = again._corpus(X, Y)
    planned = [entry.name for entry in again.plan(corpus).passes if entry.part == "topics"]
    assert planned == ["sketch", "power", "power", "moments", "refine", "refine", "topic-labels"]
    for _ in range(2):
        again.fit_corpus(corpus, run=tmp_path / "run")
        assert np.array_equal(again.corpus_topics_.components, model.corpus_topics_.components)
    assert all(timing["resumed"] for timing in again.timings_)


def test_a_saved_model_has_the_same_topics(documents, model, tmp_path, capsys):
    path = tmp_path / "model"
    model.save(path)
    loaded = load_model(path)
    assert loaded.topics(5) == model.topics(5)
    assert (
        loaded.predict_top(documents[0][:3], 2)[0].tolist()
        == model.predict_top(documents[0][:3], 2)[0].tolist()
    )
    assert main(["topics", str(path), "--top", "3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["topics"]
    assert [[word for word, _ in t["words"]] for t in shown] == [
        [word for word, _ in t["words"]] for t in model.topics(3)
    ]
    assert main(["topics", str(path), "--top", "3", "--states", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["topics"]) == len(model.weights_)


def test_a_model_without_topics_shows_states(documents, tmp_path):
    plain = MultiLabelMoM(3, head="linear").fit(*documents)
    assert plain.corpus_topics_ is None
    assert "topics_error" not in plain.diagnostics_
    assert plain.topics(4) == plain.topics(4, states=True)
    plain.save(tmp_path / "model")
    assert load_model(tmp_path / "model").topics(4) == plain.topics(4)


def test_reasons_for_no_topics(documents):
    X, Y = documents
    weights = MultiLabelMoM(3, head="linear", n_topics=3).fit(X * 0.5, Y)
    assert "need counts of words" in weights.diagnostics_["topics_error"]
    many = MultiLabelMoM(3, head="linear", n_topics=45).fit(X, Y)
    assert many.diagnostics_["topics_error"].startswith("45 topics need at least 46 words")
    assert weights.corpus_topics_ is many.corpus_topics_ is None


def test_default_number_follows_the_size_of_the_corpus(documents, monkeypatch):
    X, Y = (csr_array(m.astype(np.int32)) for m in documents)
    assert default_topics(MemoryCorpus(X, Y)) == 6
    assert default_topics(MemoryCorpus(X[:399], Y[:399])) == 0
    with monkeypatch.context() as patch:
        patch.setattr(corpus_topics, "MOST_WORDS", X.shape[1] - 1)
        assert default_topics(MemoryCorpus(X, Y)) == 0
    few = MultiLabelMoM(3).fit(X[:200], Y[:200])
    assert few.diagnostics_["topics_error"].startswith("by default, a corpus of 200 documents and")


def test_fewer_topics_than_by_default_are_no_warning(documents, caplog):
    """Three kinds of documents carry three topics."""
    Y = documents[1]
    kinds = np.repeat(np.eye(K, dtype=int), N_OWN, axis=1) * np.tile(np.arange(1, N_OWN + 1), K)
    X = kinds[np.arange(600) % K]
    by_default = MultiLabelMoM(3).fit(X, Y)
    assert by_default.corpus_topics_ is not None
    assert "topics requested" not in caplog.text
    MultiLabelMoM(3, head="linear", n_topics=6).fit(X, Y)
    assert "the moments carry 3 of the 6 topics requested" in caplog.text


def test_large_corpora_are_sampled(documents, model, monkeypatch):
    monkeypatch.setattr(corpus_topics, "MOST_POSITIONS", 20_000)
    sampled = named(MultiLabelMoM(3, head="linear", n_topics=K).fit(*documents))
    mass = sampled.corpus_topics_.label_weights.sum() / model.corpus_topics_.label_weights.sum()
    assert 0.4 < mass < 0.7
    assert {topic["labels"][0][0] for topic in sampled.topics(3)} == set(LABELS[1:4])
