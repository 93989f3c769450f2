"""Topics from sentences: views, their weights, and topics of planted sentences at a small size."""

import importlib
import lzma
from argparse import Namespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array

from distmom.simulate.views import poisson_sentences


@pytest.fixture
def topics():
    return importlib.import_module("sentence_topics")


@pytest.fixture
def few(topics):
    rows = csr_array(np.array([[1, 0, 2], [0, 0, 1], [3, 0, 1]], float))
    return topics.Sentences(rows, np.array([0, 0, 1]))


def test_sentences_add_up_to_documents(few):
    assert few.documents.toarray().tolist() == [[1, 0, 3], [3, 0, 1]]
    second = few.take(np.array([1]))
    assert second.groups.tolist() == [0]
    assert second.documents.toarray().tolist() == [[3, 0, 1]]


def test_weights_are_those_by_hand(topics, few):
    counts, weights = topics.weighed(few, "counts")
    assert_allclose(counts.toarray(), few.rows.toarray())
    assert weights.tolist() == [1.0, 1.0, 1.0]
    # Means of 4/3, 0 and 4/3; a word that does not occur has the weight of one that occurs once.
    counts, weights = topics.weighed(few, "poisson")
    assert_allclose(weights, [np.sqrt(3 / 4), np.sqrt(3.0), np.sqrt(3 / 4)])
    assert_allclose(counts.toarray(), few.rows.toarray() * weights)
    # Both documents have the first and the last word.
    present, weights = topics.weighed(few, "idf")
    assert_allclose(weights, [0.0, np.log(2.0), 0.0])
    assert present.toarray().tolist() == np.zeros((3, 3)).tolist()
    assert few.rows.toarray()[0, 2] == 2.0


def test_columns_become_distributions_in_the_units_of_counts(topics):
    found, negative = topics.topics_of(
        np.array([[2.0, 1.0, 5.0], [-1.0, 4.0, 0.0]]), np.array([2.0, 0.5, 0.0])
    )
    assert_allclose(found, [[1 / 3, 2 / 3, 0.0], [0.0, 1.0, 0.0]])
    assert negative == pytest.approx(0.5 / 11.5)


@pytest.mark.parametrize("how", ["counts", "poisson"])
def test_planted_topics_of_poisson_sentences_come_back(topics, how):
    columns = np.random.default_rng(0).gamma(0.3, size=(15, 3))
    views = poisson_sentences(columns, [1.0, 0.5, 2.0], 8000, 5)
    sentences = topics.Sentences(csr_array(views.X), np.repeat(np.arange(8000), 5))
    found, details = topics.eca_topics(sentences, 3, how, 0)
    truth = (columns / columns.sum(axis=0)).T
    distances = np.abs(found[:, None] - truth[None]).sum(axis=2)
    assert sorted(distances.argmin(axis=1)) == [0, 1, 2]
    assert distances.min(axis=1).max() < 0.15
    assert details["n_groups"] == 8000


def test_texts_are_split_for_the_choice_and_not_for_the_test(topics, tmp_path, monkeypatch):
    monkeypatch.setattr(topics, "MIN_DF", 1)
    for part, n in (("train", 10), ("test", 3)):
        with lzma.open(tmp_path / f"some-{part}.jsonl.xz", "wt") as stream:
            stream.writelines(f'{{"text": "Oil rose word{chr(97 + i)}. Gold fell."}}\n' for i in range(n))
    options = Namespace(prefix=tmp_path / "some", out=tmp_path, validation=False)
    sentences, data = topics.load(options)
    assert (data.train.shape[0], data.held_out.shape[0], len(sentences.groups)) == (10, 3, 20)
    options.validation = True
    sentences, data = topics.load(options)
    assert (data.train.shape[0], data.held_out.shape[0], len(sentences.groups)) == (8, 2, 16)
    assert sorted(data.words)[:3] == ["fell", "gold", "oil"]
    both = data.train.sum(axis=0) + data.held_out.sum(axis=0)
    assert both[data.words.index("gold")] == 10


@pytest.mark.realdata
def test_sentences_of_news_have_coherent_topics(topics, tmp_path, real_data):
    options = Namespace(prefix=real_data("labels") / "reuters", out=tmp_path, validation=True)
    sentences, data = topics.load(options)
    row = topics.measure("eca-idf", sentences, data, topics.Judge(data, 0), 10, 0)
    assert row["n_topics"] == 10
    assert row["held_NPMI"] > 0.25
    refused = topics.measure("eca-counts", sentences, data, None, 10, 0)
    assert "noise level" in refused["left_out"]
