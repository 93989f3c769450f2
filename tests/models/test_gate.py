"""The gate: classifiers of many labels against their hardest documents, and the blend that they multiply."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers import hold_out_one_fold, planted_corpus, rank_few_labels_exhaustively, scored_of
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array, random_array
from sklearn.svm import LinearSVC

from distmom.corpus import Block, MemoryCorpus
from distmom.engine import Csr
from distmom.models import MultiLabelMoM, load_model
from distmom.models.multilabel import program
from distmom.models.multilabel.blend import choose as blend
from distmom.models.multilabel.blend import choose_sum, weighted_sum
from distmom.models.multilabel.blend.objective import Objective
from distmom.models.multilabel.blend.weighted_sum import SumWeights
from distmom.models.multilabel.classifiers import gate
from distmom.models.multilabel.classifiers.descent import own_seed
from distmom.models.multilabel.classifiers.gate import hardest_labels
from distmom.models.multilabel.classifiers.gate_solver import COST, gate_documents, gate_weights, n_drawn
from distmom.models.multilabel.heads import blends, candidates
from distmom.models.multilabel.heads.heads import GateHead
from distmom.models.multilabel.kernels import top_labels
from distmom.moments.features.tfidf import inverse_document_frequency, tfidf_rows


@pytest.fixture
def many(monkeypatch):
    """Return a corpus with more labels than are ranked exhaustively."""
    hold_out_one_fold(monkeypatch)
    rank_few_labels_exhaustively(monkeypatch)
    return planted_corpus(1500, n_labels=60, k=3)[2]


def random_block(n, d, n_labels, seed=0):
    rng = np.random.default_rng(seed)
    words = csr_array(random_array((n, d), density=0.1, rng=rng, format="csr"))
    words.data[:] = 1.0
    labels = csr_array(random_array((n, n_labels), density=0.1, rng=rng, format="csr"))
    labels.data[:] = 1.0
    for matrix in (words, labels):
        matrix.sort_indices()
    return Block(words.astype(np.int32), labels.astype(np.uint8), 0)


def test_hard_labels_are_the_best_wrong_ones():
    block = random_block(50, 40, 30)
    rng = np.random.default_rng(1)
    weights = csr_array(random_array((41, 30), density=0.3, rng=rng, format="csr", dtype=np.float32))
    weights.data -= 0.5
    idf = inverse_document_frequency(np.bincount(block.words.indices, minlength=40), 50)
    a = tfidf_rows(block.words, idf, np.float64).toarray()
    scores = np.hstack([a, np.ones((50, 1))]) @ weights.toarray()
    scores[block.labels.toarray() > 0] = -np.inf
    found = hardest_labels(block, idf, Csr.of(weights), 4).toarray()
    for row, own in zip(found, scores, strict=True):
        best = np.argsort(-own)[:4]
        assert set(np.flatnonzero(row)) == set(best[own[best] > 0])


def test_a_classifier_is_that_of_its_documents():
    block = random_block(400, 80, 5)
    a = tfidf_rows(block.words, np.ones(80), np.float32)
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(400, 250, replace=False)).astype(np.int32)
    truth = rng.random(250) < 0.3
    work = np.zeros(81)
    words, values = gate_weights(Csr.of(a), rows, truth, work, 0)
    assert not work.any()
    assert (np.diff(words) > 0).all()
    peer = LinearSVC(C=COST, tol=1e-6, max_iter=10_000).fit(a[rows], truth)
    expected = np.append(peer.coef_[0], peer.intercept_)
    largest = np.abs(expected).max()
    # What is left out is below a tenth of the largest; the descent ends early.
    got = np.zeros(81)
    got[words] = values
    assert set(np.flatnonzero(np.abs(expected) > 0.15 * largest)) <= set(words)
    assert np.abs(got[words] - expected[words]).max() < 0.1 * largest


def test_documents_of_a_label_are_those_of_the_fit_each_once():
    known, met = np.arange(10_000) % 3 > 0, np.full(10_000, -1, np.int32)
    own = np.array([1, 4, 6, 7], np.int32), np.array([1.0, -1.0, 1.0, 1.0])
    alone, positive = gate_documents(*own, known, 0, 0, 4, met)
    assert_array_equal(alone, [1, 4, 7])
    assert_array_equal(positive, [True, False, True])
    first, other = (gate_documents(*own, known, 900, 0, label, met) for label in (5, 6))
    again = gate_documents(*own, known, 900, 0, 5, np.full(10_000, -1, np.int32))
    for got, expected in zip(again, first, strict=True):
        assert_array_equal(got, expected)
    used, positive = first
    assert (np.diff(used) > 0).all()
    assert known[used].all()
    assert_array_equal(used[positive], [1, 7])
    # 900 draws meet about 880 different documents, two thirds of which are known.
    assert abs(len(used) - 583) < 60
    assert len(np.intersect1d(used, other[0])) < 100


def test_documents_are_drawn_evenly_and_by_frequency():
    frequency = np.array([0, 10, 90])
    drawn = n_drawn(1000, frequency, 6.0)
    assert_array_equal(drawn, np.ceil(6000 * (2 / 9 + frequency / 300)))


def test_gated_scores_are_the_sum_times_the_factors(many):
    model = MultiLabelMoM(3).fit_corpus(many)
    gates = [(name, head) for name, head in model.scorer_.heads if isinstance(head, GateHead)]
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((7, 2, 9)).astype(np.float32)
    scores[:, 1] = rng.random((7, 9))
    expected = np.where(scores[:, 0] > 0, scores[:, 0] * scores[:, 1] ** 0.5, scores[:, 0])
    rows = {name: np.zeros((7, 9), np.int32) for name in ("labels", "truth", "n_true", "best")}
    scored = scored_of(["linear", "gate"], {**rows, "scores": scores})
    assert_allclose(SumWeights({"linear": 1.0}, 0.5).totals(scored), expected, rtol=1e-6)
    if gates:
        [(name, head)] = gates
        block = many.read_shard(0)
        query, alone = model.scorer_.query(block), model.scorer_
        margins = np.hstack(
            [tfidf_rows(block.words, model.idf_, np.float32).toarray(), np.ones((block.n_documents, 1))]
        )
        w = head.weights.sparse.to_scipy().toarray()
        w[head.weights.dense_row >= 0] = head.weights.dense
        factors = (1.0 / (1.0 + np.exp(-2.0 * margins @ w))) ** head.power
        assert_allclose(alone.only(name).scores(query), factors, rtol=1e-3)


@pytest.mark.parametrize("few", [1, 3, 8])
def test_the_best_labels_are_found_from_few_factors(many, always, monkeypatch, few):
    model = MultiLabelMoM(3).fit_corpus(many)
    block = many.read_shard(0)
    scores = model.scorer_.scores(model.scorer_.query(block))
    # With four times as many labels as are wanted, some documents need the factors of all.
    labels, values = top_labels(scores, 2)
    monkeypatch.setattr(blends, "GATED_LABELS", few)
    found, best = model.scorer_.top(block, 2)
    assert_array_equal(found, labels)
    assert_allclose(best, values, rtol=1e-6)
    gate = model.scorer_.blend.gate_of(model.scorer_)
    places = np.tile(np.array([7, 0, 0, 3], np.int32), (block.n_documents, 1))
    query = model.scorer_.query(block)
    factors = np.ones((block.n_documents, 60), np.float32)
    gate.multiply(query, factors)
    assert_allclose(gate.scores_at(query, places)[:, [0, 1, 3]], factors[:, [7, 0, 3]], rtol=1e-6)


def test_no_label_is_wanted(many, always):
    model = MultiLabelMoM(3).fit_corpus(many)
    assert isinstance(model.scorer_.blend, blends.GatedSum)
    labels, scores = model.predict_top(many.read_shard(0).words, 0)
    assert labels.shape == scores.shape == (many.shards[0].n_documents, 0)


def test_the_largest_seed_is_a_seed_of_classifiers_and_gates(many, always):
    seed = (1 << 64) - 1
    model = MultiLabelMoM(3, random_state=seed).fit_corpus(many)
    assert any(isinstance(head, GateHead) for _, head in model.scorer_.heads)
    # The seed of label 1 is the first one again.
    block = random_block(300, 40, 5)
    a, rows = tfidf_rows(block.words, np.ones(40), np.float32), np.arange(300, dtype=np.int32)
    truth, work = np.random.default_rng(0).random(300) < 0.3, np.zeros(41)
    fits = [gate_weights(Csr.of(a), rows, truth, work, each) for each in (own_seed(seed, 1), 0, seed)]
    assert_array_equal(fits[0][1], fits[1][1])
    assert len(fits[2][0]) > 1


def test_a_gate_is_chosen_where_it_helps_and_is_left_out_where_it_hurts(monkeypatch):
    monkeypatch.setattr(candidates, "ALL_LABELS", 10)
    rng = np.random.default_rng(0)
    n, c = 800, 12
    truth = np.zeros((n, c), np.uint8)
    truth[np.arange(n), rng.integers(0, c, n)] = 1
    scores = np.empty((n, 2, c), np.float32)
    scores[:, 0] = np.exp(truth + 0.8 * rng.standard_normal((n, c)))
    scores[:, 1] = 1.0 / (1.0 + np.exp(-2.0 * (2.0 * truth - 1.0 + rng.standard_normal((n, c)))))
    labels = np.tile(np.arange(c, dtype=np.int32), (n, 1))
    labels[:, -1] = -1
    rows = {
        "labels": labels,
        "truth": truth,
        "n_true": truth.sum(axis=1),
        "scores": scores,
        "best": scores.max(axis=2),
    }
    choice = blend.choose_blend(scored_of(["linear", "gate"], rows))
    assert choice.weights["gate"] in weighted_sum.POWERS
    assert choice.scores["auto"]["P@1"] > choice.scores["linear"]["P@1"] + 0.03
    scores[:, 1] = 1.0 - scores[:, 1]
    assert "gate" not in blend.choose_blend(scored_of(["linear", "gate"], rows)).weights


@pytest.fixture
def always(monkeypatch):
    """Let a gate be chosen whether or not it helps."""
    summed = choose_sum.choose_weights

    def with_gate(*arguments):
        weights, value = summed(*arguments)
        return replace(weights, power=0.5), value

    monkeypatch.setattr(choose_sum, "choose_weights", with_gate)
    # No head is used alone, whose sum has no gate.
    monkeypatch.setattr(Objective, "clearly_prefers", lambda *rankings: False)


def test_updates_keep_the_gate(many, always):
    model = MultiLabelMoM(3, keep_sums=True).fit_corpus(many)
    X = many.read_shard(0).words
    before = model.scorer_.only("gate").scores(model.scorer_.query(many.read_shard(0)))
    names = [*model.label_names_, "new"]
    Y = np.zeros((X.shape[0], len(names)), np.uint8)
    Y[:, -1] = 1
    model.partial_fit_corpus(MemoryCorpus(X, csr_array(Y), model.vocabulary_, names))
    after = model.scorer_.only("gate").scores(model.scorer_.query(many.read_shard(0)))
    assert_array_equal(after[:, :-1], before)
    assert_allclose(after[:, -1], 0.5**0.5, rtol=1e-6)
    assert (model.predict_top(X, 1)[0] == len(names) - 1).mean() > 0.5


def test_fits_with_a_gate_have_the_planned_passes_and_are_saved(many, always, monkeypatch, tmp_path):
    model = MultiLabelMoM(3)
    planned = Counter(p.name for p in model.plan(many).passes)
    fitted = model.fit_corpus(many)
    assert "gate" in fitted.selection_["weights"]
    made = Counter(timing["name"] for timing in fitted.timings_)
    assert planned["gate"] == made["gate"] == 2
    fitted.save(tmp_path / "model")
    X = many.read_shard(0).words
    for ours, loaded in zip(
        fitted.predict_top(X), load_model(tmp_path / "model").predict_top(X), strict=True
    ):
        assert_array_equal(ours, loaded)
    monkeypatch.setattr(gate, "MAX_GROUPS", 2)
    again = MultiLabelMoM(3).fit_corpus(many)
    assert_array_equal(fitted.decision_function(X), again.decision_function(X))


def test_large_corpora_have_no_gate(many, monkeypatch):
    assert gate.tries_gate(many)
    names = [variant.name for variant in program.tried_variants(many, 3)]
    without = [variant.name for variant in program.tried_variants(_without_gate(many, monkeypatch), 3)]
    assert "gate" in names
    assert without == [name for name in names if name != "gate"]


def _without_gate(corpus, monkeypatch):
    monkeypatch.setattr(gate, "MAX_GATE_ENTRIES", 100)
    assert not gate.tries_gate(corpus)
    return corpus
