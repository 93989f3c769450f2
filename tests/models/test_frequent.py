"""Classifiers of frequent labels, where labels are too many to fit classifiers to all."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import hold_out_one_fold, planted_corpus, rank_few_labels_exhaustively, scored_of
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array, random_array
from sklearn.svm import LinearSVC

from distmom.corpus import MemoryCorpus
from distmom.engine import Csr, MixedRows
from distmom.errors import StoreError
from distmom.models import MultiLabelMoM, load_model
from distmom.models.multilabel.blend import choose as blend
from distmom.models.multilabel.blend import choose_sum, weighted_sum
from distmom.models.multilabel.blend.objective import Objective
from distmom.models.multilabel.blend.weighted_sum import SumWeights
from distmom.models.multilabel.classifiers import margin
from distmom.models.multilabel.classifiers.margin import frequent_labels
from distmom.models.multilabel.heads import candidates
from distmom.models.multilabel.heads.heads import SLOPE, FrequentHead
from distmom.moments.features.tfidf import inverse_document_frequency, tfidf_rows


@pytest.fixture
def many(monkeypatch):
    """Return a corpus with more labels than are ranked exhaustively."""
    hold_out_one_fold(monkeypatch)
    rank_few_labels_exhaustively(monkeypatch)
    monkeypatch.setattr(margin, "MAX_FREQUENT", 30)
    monkeypatch.setattr(margin, "FEW_ENTRIES", 0)
    return planted_corpus(1500, n_labels=60, k=3)[2]


@pytest.fixture
def always(monkeypatch):
    """Let the classifiers be chosen whether or not they help."""
    summed = choose_sum.choose_weights

    def with_frequent(*arguments):
        weights, value = summed(*arguments)
        return replace(weights, factors={**weights.factors, "frequent": 0.5}), value

    monkeypatch.setattr(choose_sum, "choose_weights", with_frequent)
    monkeypatch.setattr(Objective, "clearly_prefers", lambda *rankings: False)


def counted(*counts, n_entries=1000):
    """Return a corpus of labels with given numbers of documents."""
    shards = (SimpleNamespace(nnz_words=n_entries),)
    return SimpleNamespace(n_labels=len(counts), label_frequency=np.array(counts), shards=shards)


def test_frequent_labels_are_the_most_frequent_that_hold_enough_of_the_pairs(monkeypatch):
    monkeypatch.setattr(margin, "MAX_LABELS", 3)
    monkeypatch.setattr(margin, "MAX_FREQUENT", 4)
    monkeypatch.setattr(margin, "FEW_ENTRIES", 0)
    assert frequent_labels(counted(9, 40, 8, 30, 7)) == (0, 1, 2, 3)
    assert frequent_labels(counted(9, 40, 5, 30, 7)) == (0, 1, 3)
    # Of equally frequent ones at the limit, none is taken.
    assert frequent_labels(counted(9, 40, 9, 30, 9, 3)) == (1, 3)
    assert frequent_labels(counted(*[10] * 4, *[7] * 8)) == (0, 1, 2, 3)
    assert frequent_labels(counted(*[10] * 4, *[7] * 9)) == ()
    assert frequent_labels(counted(50, 40, 30)) == ()


def test_large_corpora_have_fewer_or_none(monkeypatch):
    monkeypatch.setattr(margin, "MAX_LABELS", 3)
    monkeypatch.setattr(margin, "MAX_FREQUENT_ENTRIES", 2000)
    monkeypatch.setattr(margin, "FEW_ENTRIES", 0)
    assert frequent_labels(counted(50, 40, 30, 20)) == (0, 1)
    assert frequent_labels(counted(50, 40, 30, 20, n_entries=1001)) == ()
    assert frequent_labels(counted(50, 40, 30, 20, n_entries=2001)) == ()


def test_small_corpora_have_classifiers_of_all_labels_but_the_rarest(monkeypatch):
    monkeypatch.setattr(margin, "MAX_LABELS", 3)
    monkeypatch.setattr(margin, "FEW_ENTRIES", 3000)
    assert frequent_labels(counted(9, 2, 3, 1, 7)) == (0, 2, 4)
    # The fourth one is more than a small corpus affords; the others are those of a large corpus.
    assert frequent_labels(counted(9, 2, 3, 1, 7, 8)) == (0, 5)


@pytest.fixture
def head():
    """Return weights (41, 4) of labels 7, 1, 5 and 11 of 12, dense rows among them, and their head."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((41, 4)).astype(np.float32) * (rng.random((41, 4)) < 0.5)
    dense_row = np.full(41, -1, np.int32)
    dense_row[[3, 40]] = [0, 1]
    sparse = w.copy()
    sparse[[3, 40]] = 0
    mixed = MixedRows(Csr.of(csr_array(sparse)), dense_row, w[[3, 40]])
    return w, FrequentHead(mixed, np.array([7, 1, 5, 11], np.int32), 0.7)


def test_scores_are_probabilities_of_frequent_labels_alone(head):
    w, frequent = head
    rng = np.random.default_rng(1)
    features = csr_array(random_array((25, 40), density=0.3, rng=rng, dtype=np.float32))
    query = SimpleNamespace(features=features)
    found = np.full((25, 12), 3.0, np.float32)
    frequent.add_scores(query, 2.0, found)
    expected = np.full((25, 12), 3.0)
    margins = np.hstack([features.toarray(), np.ones((25, 1))]) @ w
    expected[:, [7, 1, 5, 11]] += 2.0 * 0.7 / (1.0 + np.exp(-SLOPE * margins))
    assert_allclose(found, expected, rtol=1e-5)
    chosen = np.array([11, 2, 7, 0], np.int32)
    own = np.full((25, 4), 3.0, np.float32)
    frequent.of_labels(chosen).add_scores(query, 2.0, own)
    assert_allclose(own, expected[:, chosen], rtol=1e-5)
    none = np.zeros((25, 2), np.float32)
    frequent.of_labels(np.array([2, 0], np.int32)).add_scores(query, 2.0, none)
    assert not none.any()


def test_margins_are_those_of_support_vector_machines(many, always):
    model = MultiLabelMoM(3, effort="high").fit_corpus(many)
    [own] = [head for _, head in model.scorer_.heads if isinstance(head, FrequentHead)]
    labels = frequent_labels(many)
    assert_array_equal(own.labels, labels)
    block = many.read_shard(0)
    whole = [many.read_shard(i) for i in range(len(many.shards))]
    idf = inverse_document_frequency(np.asarray(many.document_frequency), many.n_documents)
    rows = np.vstack([tfidf_rows(each.words, idf, np.float64).toarray() for each in whole])
    truth = np.vstack([each.labels.toarray() for each in whole])
    scores = np.zeros((block.n_documents, 60), np.float32)
    own.add_scores(model.scorer_.query(block), 1.0 / own.factor, scores)
    for label in labels[:4]:
        machine = LinearSVC(C=margin.FREQUENT_COST, tol=1e-8, max_iter=100_000).fit(rows, truth[:, label])
        expected = 1.0 / (1.0 + np.exp(-SLOPE * machine.decision_function(rows[: block.n_documents])))
        assert_allclose(scores[:, label], expected, atol=0.02)


def test_fits_have_the_planned_passes_and_are_saved(many, always, tmp_path):
    model = MultiLabelMoM(3)
    planned = Counter(p.name for p in model.plan(many).passes)
    fitted = model.fit_corpus(many)
    made = Counter(timing["name"] for timing in fitted.timings_)
    assert planned["frequent"] == made["frequent"] == 2
    fitted.save(tmp_path / "model")
    X, loaded = many.read_shard(0).words, load_model(tmp_path / "model")
    assert_array_equal(fitted.decision_function(X), loaded.decision_function(X))
    names = fitted.label_names_[3:40:5]
    assert_allclose(
        loaded.decision_function(X, labels=names), fitted.decision_function(X)[:, 3:40:5], rtol=1e-6
    )


def test_labels_out_of_range_are_refused(many, always, tmp_path):
    fitted = MultiLabelMoM(3).fit_corpus(many)
    [own] = [head for _, head in fitted.scorer_.heads if isinstance(head, FrequentHead)]
    own.labels[-1] = 60
    fitted.save(tmp_path / "model")
    with pytest.raises(StoreError, match="expected numbers below 60, got 60"):
        load_model(tmp_path / "model")


def test_updates_keep_the_classifiers(many, always):
    model = MultiLabelMoM(3, keep_sums=True).fit_corpus(many)
    block, before = many.read_shard(0), dict(model.scorer_.heads)["frequent"]
    names = [*model.label_names_, "new"]
    Y = np.zeros((block.n_documents, len(names)), np.uint8)
    Y[:, -1] = 1
    model.partial_fit_corpus(MemoryCorpus(block.words, csr_array(Y), model.vocabulary_, names))
    after = dict(model.scorer_.heads)["frequent"]
    assert_array_equal(after.labels, before.labels)
    assert_array_equal(after.weights.dense, before.weights.dense)
    assert_array_equal(after.weights.sparse.to_scipy().toarray(), before.weights.sparse.to_scipy().toarray())
    assert not model.scorer_.only("frequent").scores(model.scorer_.query(block))[:, -1].any()


def test_a_sum_without_the_classifiers_is_tried_too(monkeypatch):
    tried = []

    def ascend(scored, objective):
        tried.append(scored.names)
        return SumWeights({scored.names[0]: 1.0}), 1.0 if "frequent" in scored.names else 2.0

    monkeypatch.setattr(weighted_sum, "ascend", ascend)
    rows = {name: np.zeros((4, 3), np.int32) for name in ("labels", "truth", "n_true")}
    rows |= {"scores": np.zeros((4, 2, 3), np.float32), "best": np.zeros((4, 2), np.float32)}
    both = scored_of(["frequent", "linear"], rows)
    weights, value = weighted_sum.choose_weights(both, None)
    assert tried == [("frequent", "linear"), ("linear",)]
    assert (weights.named, value) == ({"linear": 1.0}, 2.0)
    weights, value = weighted_sum.choose_weights(both.only(["frequent"]), None)
    assert (weights.named, value) == ({"frequent": 1.0}, 1.0)


def test_the_classifiers_are_not_used_alone(monkeypatch):
    monkeypatch.setattr(candidates, "ALL_LABELS", 10)
    monkeypatch.setattr(Objective, "clearly_prefers", lambda *rankings: True)
    rng = np.random.default_rng(0)
    n, c = 400, 12
    truth = np.zeros((n, c), np.uint8)
    truth[np.arange(n), rng.integers(0, c, n)] = 1
    noise = rng.standard_normal((n, 2, c))
    scores = np.exp(truth[:, None] * np.array([[3.0], [1.0]]) + noise).astype(np.float32)
    labels = np.tile(np.arange(c, dtype=np.int32), (n, 1))
    labels[:, -1] = -1
    rows = {
        "labels": labels,
        "truth": truth,
        "n_true": truth.sum(axis=1),
        "scores": scores,
        "best": scores.max(axis=2),
    }
    choice = blend.choose_blend(scored_of(["frequent", "linear"], rows))
    assert choice.scores["frequent"]["P@1"] > choice.scores["linear"]["P@1"] + 0.2
    assert set(choice.weights) == {"linear"}
