"""Margin classifiers: the solver beside LIBLINEAR's, and the fits of all labels."""

import numpy as np
import pytest
from helpers import planted_corpus
from scipy.sparse import csr_array, random_array, vstack
from sklearn.svm import LinearSVC

from distmom.corpus import MemoryCorpus
from distmom.engine import Csr, open_engine
from distmom.errors import UsageError
from distmom.lanes import LANES
from distmom.models import MultiLabelMoM
from distmom.models.multilabel.classifiers import margin
from distmom.models.multilabel.classifiers.descent import descend, descend_lanes
from distmom.models.multilabel.classifiers.margin_solver import batch_weights
from distmom.models.multilabel.variants import COSTS
from distmom.moments.features.tfidf import tfidf_rows


@pytest.fixture(scope="module")
def problem():
    """Rows of unit length, and which of them are positive."""
    rng = np.random.default_rng(0)
    a = csr_array(random_array((600, 80), density=0.1, rng=rng, format="csr", dtype=np.float32))
    a = tfidf_rows(a, np.ones(80), np.float32)
    positive = (a @ rng.standard_normal(80) + 0.3 * rng.standard_normal(600)) > 0.3
    return a, positive


def objective(w, a, positive, cost, negative_cost):
    signs = np.where(positive, 1.0, -1.0)
    hinge = np.maximum(0.0, 1.0 - signs * (a @ w[:-1] + w[-1]))
    return 0.5 * w @ w + (np.where(positive, cost, negative_cost) * hinge**2).sum()


@pytest.mark.parametrize("cost", [0.1, 1.0, 10.0])
def test_the_solver_finds_what_liblinear_finds(problem, cost):
    a, positive = problem
    own = Csr.of(a)
    rows = np.arange(a.shape[0], dtype=np.int32)
    alpha, w = np.zeros(len(rows)), np.zeros(a.shape[1] + 1)
    descend(own.indptr, own.indices, own.data, rows, positive, cost, cost, 1e-8, 10_000, 0, alpha, w)
    peer = LinearSVC(C=cost, tol=1e-8, max_iter=100_000).fit(a, positive)
    np.testing.assert_allclose(w, np.append(peer.coef_[0], peer.intercept_), atol=1e-5)
    # The weights are those of the dual variables.
    signs = np.where(positive, 1.0, -1.0)
    np.testing.assert_allclose(w, np.append(a.T @ (alpha * signs), alpha @ signs), atol=1e-9)


def test_costs_of_negatives_differ(problem):
    """With another cost of negatives, no small change of the weights lowers the objective."""
    a, positive = problem
    own = Csr.of(a)
    rows = np.arange(a.shape[0], dtype=np.int32)
    w = np.zeros(a.shape[1] + 1)
    descend(
        own.indptr, own.indices, own.data, rows, positive, 1.0, 5.0, 1e-9, 10_000, 0, np.zeros(len(rows)), w
    )
    least = objective(w, a, positive, 1.0, 5.0)
    rng = np.random.default_rng(1)
    for _ in range(20):
        assert objective(w + 1e-3 * rng.standard_normal(len(w)), a, positive, 1.0, 5.0) > least


def test_labels_together_have_the_weights_of_each_alone(problem):
    """Every label with rows, signs and costs of its own; the last one has no rows."""
    a, positive = problem
    own, rng = Csr.of(a), np.random.default_rng(2)
    rows = np.arange(a.shape[0], dtype=np.int32)
    taken, signs = rng.random((LANES, len(rows))) < 0.8, rng.random((LANES, len(rows))) < 0.3
    signs[0], taken[-1] = positive, False
    costs, negative_costs = rng.uniform(0.1, 3.0, LANES), rng.uniform(0.1, 3.0, LANES)
    bits = (1 << np.arange(LANES, dtype=np.uint8))[:, None]
    packed = [(bits * which).sum(axis=0, dtype=np.uint8) for which in (taken, signs)]
    alpha, w = np.zeros((len(rows), LANES)), np.zeros((a.shape[1] + 1, LANES))
    n_epochs = descend_lanes(
        own.indptr, own.indices, own.data, rows, *packed, costs, negative_costs, 1e-8, 10_000, 0, alpha, w
    )
    assert n_epochs < 10_000
    for j in range(LANES - 1):
        alone, kept = np.zeros(len(w)), rows[taken[j]]
        descend(
            own.indptr, own.indices, own.data, kept, signs[j][kept], costs[j], negative_costs[j], 1e-8, 10_000,
            0, np.zeros(len(kept)), alone,
        )  # fmt: skip
        np.testing.assert_allclose(w[:, j], alone, atol=1e-6)
    assert not w[:, -1].any()
    assert not alpha[:, -1].any()


def test_a_sample_of_negatives_stands_for_all(problem):
    a, positive = problem
    rows, holding = np.arange(600, dtype=np.int32), np.flatnonzero(positive).astype(np.int32)

    def dense(n_negatives, seed):
        ((words, values),) = batch_weights(Csr.of(a), rows, [holding], (1.0,), 80, n_negatives, seed)[0]
        w = np.zeros(81)
        w[words] = values
        return w

    whole = dense(10_000, 0)
    sampled = np.mean([dense(150, seed) for seed in range(20)], axis=0)
    assert np.corrcoef(whole, sampled)[0, 1] > 0.97
    assert abs(whole[-1] - sampled[-1]) < 0.4 * abs(whole[-1])


def test_any_seed_gives_the_classifiers():
    _, _, corpus = planted_corpus(600, d=40, k=3)
    X = corpus.read_shard(0).words
    scores = [
        MultiLabelMoM(3, head="svm", random_state=seed).fit_corpus(corpus).decision_function(X)
        for seed in (0, (1 << 63) - 1, (1 << 64) - 1)
    ]
    # The order in which documents are visited matters little, up to the tolerance of the descent.
    for own in scores[1:]:
        assert np.corrcoef(own.ravel(), scores[0].ravel())[0, 1] > 0.97


def test_a_label_without_documents_is_never_preferred():
    a = tfidf_rows(csr_array(np.eye(4, dtype=np.float32)), np.ones(4), np.float32)
    none = np.zeros(0, np.int32)
    some = np.array([1], np.int32)
    for fits in batch_weights(Csr.of(a), np.arange(4, dtype=np.int32), [some, none], COSTS, 4, 10, 0):
        assert len(fits[0][0]) > 1
        words, values = fits[1]
        assert words.tolist() == [4]
        assert values.tolist() == [-1.0]


def test_the_head_ranks_as_one_classifier_per_label():
    _, _, corpus = planted_corpus(1200, d=60, k=3)
    model = MultiLabelMoM(3, head="svm").fit_corpus(corpus)
    X = corpus.read_shard(0).words
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    Y = np.concatenate([b.labels.toarray() for b in blocks]).astype(bool)
    a = [tfidf_rows(b.words, model.idf_, np.float32) for b in blocks]
    A = csr_array(vstack(a))
    expected = np.full((X.shape[0], Y.shape[1]), -1.0)
    for label in np.flatnonzero(Y.any(axis=0)):
        peer = LinearSVC(C=0.3, tol=1e-6, max_iter=10_000).fit(A, Y[:, label])
        expected[:, label] = peer.decision_function(a[0])
    got = model.decision_function(X)
    assert np.abs(got - expected).max() < 0.1
    assert (got.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.95
    assert not model.scorer_.has_probabilities


def test_groups_of_labels_do_not_change_bits(monkeypatch):
    _, _, corpus = planted_corpus(600, d=40, k=3)
    first = MultiLabelMoM(3, head="svm").fit_corpus(corpus)
    monkeypatch.setattr(margin, "MAX_GROUPS", 2)
    second = MultiLabelMoM(3, head="svm").fit_corpus(corpus)
    X = corpus.read_shard(0).words
    np.testing.assert_array_equal(first.decision_function(X), second.decision_function(X))


def test_many_labels_are_refused(monkeypatch):
    monkeypatch.setattr("distmom.models.multilabel.estimator.MAX_LABELS", 2)
    X = csr_array(np.eye(6, dtype=np.int32))
    with pytest.raises(UsageError, match="expected at most 2 labels, got 3"):
        MultiLabelMoM(2, head="svm").fit_corpus(MemoryCorpus(X, np.eye(6, 3, dtype=np.int32)))


def test_a_fit_resumes_after_its_classifiers(tmp_path):
    """The classifiers are committed with their pass, so a second fit in the run fits none."""
    _, _, corpus = planted_corpus(600, d=40, k=3)
    with open_engine(corpus, tmp_path / "run"):
        pass
    model = MultiLabelMoM(3, head="svm").fit_corpus(corpus, run=tmp_path / "run")
    events = []
    again = MultiLabelMoM(3, head="svm").fit_corpus(corpus, run=tmp_path / "run", observer=events.append)
    assert {e.name: e.resumed for e in events if hasattr(e, "resumed")}["margins"]
    X = corpus.read_shard(0).words
    np.testing.assert_array_equal(model.decision_function(X), again.decision_function(X))
