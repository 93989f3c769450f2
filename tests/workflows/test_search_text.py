"""The comparison of topics by label words with those of anchor words, on planted documents in UCI files."""

import importlib
import json

import numpy as np
import pytest
from scipy.sparse import csr_array

from distmom.simulate.topics import TopicPopulation

N_TOPICS = 4


@pytest.fixture
def comparison():
    return importlib.import_module("search_text")


@pytest.fixture
def files(tmp_path):
    """Counts in the UCI format, and the names of the words."""
    counts, _, _ = importlib.import_module("topic_documents").plant(N_TOPICS, 1_500, 300, 60, 0, False)
    entries = counts.tocoo()
    lines = [f"{i + 1} {j + 1} {n}" for i, j, n in zip(*entries.coords, entries.data, strict=True)]
    docword, vocab = tmp_path / "docword.planted.txt", tmp_path / "vocab.planted.txt"
    docword.write_text("\n".join([*map(str, counts.shape), str(len(lines)), *lines]) + "\n")
    vocab.write_text("".join(f"word{i}\n" for i in range(counts.shape[1])))
    return docword, vocab


def test_topics_of_labels_of_planted_documents_are_coherent(comparison, files, tmp_path):
    path = tmp_path / "found.json"
    arguments = [*map(str, files), "-k", str(N_TOPICS), "--json", str(path)]
    assert comparison.main(arguments) == 0
    rows = json.loads(path.read_text())
    found = {row["system"]: row for row in rows}
    assert list(found) == ["whitening", "nmf", "ss-nmf"]
    for row in rows:
        assert row["labels"] == found["nmf"]["labels"]
        assert row["n_targets"] == len(row["labels"]) == len(row["NPMI"])
        assert row["n_train"] == 1_200
        assert row["n_failed"] == 0
        assert all(len(words) == comparison.N_TOP for words in row["words"])
    assert sum(row["n_best"] for row in rows) == found["nmf"]["n_targets"]
    # Words of a planted topic occur together far more often than by chance; NPMI is 0 by chance.
    assert np.mean(found["whitening"]["NPMI"]) > 0.1
    assert np.mean(found["whitening"]["NPMI"]) > np.mean(found["ss-nmf"]["NPMI"]) - 0.02


def test_topics_in_documents_weighted_by_an_anchor_word_are_the_planted_ones(comparison):
    rng = np.random.default_rng(0)
    anchors = np.array([0.02, 0.03, 0.025])
    topics = np.vstack([np.diag(anchors), rng.dirichlet(np.full(147, 0.5), 3).T * (1.0 - anchors)])
    counts = csr_array(TopicPopulation(np.full(3, 0.2), topics).sample(20_000, 40, seed=0)[0])
    words = [f"word{i}" for i in range(150)]
    documents = importlib.import_module("topic_documents")
    data = documents.Data("planted", counts, counts[:0], words, topics.T, 0.6, np.arange(150))
    errors = {}
    for name in ("nmf", "ss-nmf"):
        found = comparison.FINDERS[name](data, 3, 0, [0, 1, 2])[0]
        errors[name] = np.abs(np.array(found) - topics.T).sum(axis=1)
    assert errors["nmf"].max() < 0.5
    # All of these documents are about the topic of the label.
    assert errors["ss-nmf"].max() < 0.2


def test_coherence_is_the_mutual_information_of_the_label_and_the_first_words(comparison, monkeypatch):
    monkeypatch.setattr(comparison, "N_TOP", 4)
    met = csr_array(np.array([
        [1, 1, 0, 1, 1], [1, 1, 0, 1, 0], [1, 0, 1, 1, 0], [0, 0, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 0, 1, 0],
    ], float))  # fmt: skip
    topic = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    # Of six documents three have the label; words 1, 2 and 3 are with it in two, one and three.
    by_hand = [
        np.log((2 / 6) / (3 / 6 * 3 / 6)) / -np.log(2 / 6),
        np.log((1 / 6) / (2 / 6 * 3 / 6)) / -np.log(1 / 6),
        0.0,
    ]
    assert comparison.coherence(topic, 0, met) == pytest.approx(np.mean(by_hand))
    # A word that is never with the label counts -1, as does a label without a topic or other words.
    assert comparison.coherence(np.array([0.0, 0.5, 0.5, 0.0, 0.0]), 1, met) == -1.0
    assert comparison.coherence(np.array([1.0, 0.0, 0.0, 0.0, 0.0]), 0, met) == -1.0
    assert comparison.coherence(None, 0, met) == -1.0
