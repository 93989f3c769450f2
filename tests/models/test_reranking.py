"""Ranking the best labels of a blend again: features, the fit, the choice, and models that do it."""

import itertools
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from helpers import not_reranked, planted_corpus, rank_few_labels_exhaustively, scored_of
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from distmom.corpus import MemoryCorpus
from distmom.engine import Csr, open_executor
from distmom.errors import StoreError
from distmom.models import MultiLabelMoM, load_model
from distmom.models.multilabel.blend import choose as blend
from distmom.models.multilabel.blend import choose_reranker, reranking
from distmom.models.multilabel.blend.boosting import Binned, Boosting, fit_trees
from distmom.models.multilabel.blend.choice import ChosenStack, apply_choice
from distmom.models.multilabel.blend.choose import choose_blend
from distmom.models.multilabel.blend.choose_reranker import BLEND
from distmom.models.multilabel.blend.companions import companion_features, companion_shares
from distmom.models.multilabel.blend.objective import Objective
from distmom.models.multilabel.blend.reranking import N_COMMON, Reranker, fit_reranker, pair_features
from distmom.models.multilabel.blend.stack import Stack, StackInput, informative, negative_log_likelihood
from distmom.models.multilabel.classifiers import margin
from distmom.models.multilabel.heads.blends import Reranked, SumLogOdds
from distmom.models.multilabel.kernels import top_labels

NAMES = ["a", "b", "posterior"]


def scored(n=2000, c=40, seed=0):
    """Return scores of candidates: head b is right about documents of many words, and head a about the others."""
    rng = np.random.default_rng(seed)
    truth = np.zeros((n, c), np.uint8)
    truth[np.arange(n), rng.integers(0, c, n)] = 1
    long = rng.random(n) < 0.5
    good, noise = truth + rng.gamma(1.0, 0.25, (n, c)), rng.gamma(1.0, 0.5, (n, c))
    scores = np.stack(
        [np.where(long[:, None], noise, good), np.where(long[:, None], good, noise), noise], axis=1
    ).astype(np.float32)
    labels = np.sort(rng.permuted(np.tile(np.arange(3 * c), (n, 1)), axis=1)[:, :c], axis=1).astype(np.int32)
    # Fewer candidates than columns.
    labels[truth[:, 0] == 0, 0] = -1
    rows = {
        "labels": labels, "scores": scores, "best": scores.max(axis=2), "truth": truth,
        "n_true": np.ones(n, np.int32),
        "covariates": np.stack([np.where(long, 4.0, 1.0), np.zeros(n)], axis=1).astype(np.float32),
    }  # fmt: skip
    counts = np.full(3 * c, n // c) - np.bincount(labels[truth > 0], minlength=3 * c)
    return rows, (np.maximum(counts, 0), 4 * n)


def no_companions(n_labels):
    return Csr.of(csr_array((n_labels, n_labels), dtype=np.float32))


def chosen(rows, frequency, metric="mean", inverse=None):
    """Return the choice among heads a, b and posterior."""
    companions = no_companions(len(frequency[0]))
    return choose_blend(scored_of(NAMES, rows, frequency), metric, inverse, companions=[companions])


def test_companions_are_counted_in_the_documents_that_are_alive():
    rng = np.random.default_rng(0)
    y = (rng.random((200, 12)) < 0.2).astype(np.uint8)
    alive = rng.random(200) < 0.7
    found = companion_shares(Csr.of(csr_array(y), np.uint8), alive).to_scipy().toarray()
    own = y[alive].astype(int)
    together = own.T @ own
    expected = np.where(together >= 2, together / (own.sum(axis=0)[:, None] + 2.0), 0.0)
    np.fill_diagonal(expected, 0.0)
    assert_allclose(found, expected, rtol=1e-6)


def test_documents_with_very_many_pairs_are_sampled(monkeypatch):
    y = np.ones((100, 10), np.uint8)
    monkeypatch.setattr("distmom.models.multilabel.blend.companions.MOST_PAIRS", 1000)
    found = companion_shares(Csr.of(csr_array(y), np.uint8), np.ones(100)).to_scipy()
    # Ten documents are counted.
    assert_allclose(found.data, 10 / 12)
    assert found.nnz == 90


def test_companions_of_a_ranking_are_sums_over_the_other_labels():
    rng = np.random.default_rng(0)
    shares = np.where(rng.random((15, 15)) < 0.4, rng.random((15, 15)), 0.0)
    np.fill_diagonal(shares, 0.0)
    labels = np.stack([rng.permutation(15)[:5] for _ in range(20)]).astype(np.int32)
    z = rng.standard_normal((20, 5)).astype(np.float32)
    found = companion_features(labels, z, Csr.of(csr_array(shares)))
    for own, log_odds, got in zip(labels, z, found, strict=True):
        p = 1 / (1 + np.exp(-log_odds))
        assert_allclose(got[:, 0], p @ shares[np.ix_(own, own)], rtol=1e-5)
        assert_allclose(got[:, 1], shares[own[0], own], rtol=1e-6)


def test_features_are_scores_ratios_ranks_and_covariates():
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((3, 5, 4)).astype(np.float32)
    scores[1, 2] = -1.0
    blended = -np.sort(-rng.standard_normal((5, 4)), axis=1).astype(np.float32)
    frequency, documents = rng.standard_normal((5, 4)), rng.standard_normal((5, 2))
    labels = np.stack([rng.permutation(9)[:4] for _ in range(5)]).astype(np.int32)
    companions = Csr.of(csr_array(rng.random((9, 9)).astype(np.float32)))
    x = pair_features(labels, scores, blended, frequency, documents, companions)
    assert x.shape == (5, 4, 2 * 3 + N_COMMON)
    for i in range(5):
        for j in range(4):
            largest = np.maximum(scores[:, i].max(axis=1), 0.0)
            ratios = scores[:, i, j] / np.where(largest > 0, largest, 1e-9)
            expected = np.stack([scores[:, i, j], ratios], axis=1).ravel()
            assert_allclose(x[i, j, :6], expected, rtol=1e-5)
            step = blended[i, j + 1] - blended[i, j] if j < 3 else 0.0
            common = [blended[i, j], blended[i, j] - blended[i, 0], step, j, frequency[i, j], *documents[i]]
            assert_allclose(x[i, j, 6:13], common, rtol=1e-5)
    assert_array_equal(x[:, :, 13:], companion_features(labels, blended, companions))


def test_log_odds_of_documents_come_from_trees_of_others():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 3, 4)).astype(np.float32)
    truth = (x[:, :, 0] > 0.5).astype(np.uint8)
    known = np.ones(truth.shape, bool)
    known[::3, 2] = False
    blended = (1.5 * x[:, :, 0] + rng.standard_normal(truth.shape) - 1.0).astype(np.float32)
    halves = [(np.arange(0, 400, 2), np.arange(1, 400, 2)), (np.arange(1, 400, 2), np.arange(0, 400, 2))]
    whole, crossed = fit_reranker(["a"], x, truth, known, blended, no_companions(3), halves)
    assert whole.share in reranking.SHARES

    def trees(documents, n_trees):
        own = known[documents]
        used, weights = informative(blended[documents][own], truth[documents][own])
        assert weights.sum() == pytest.approx(own.sum())
        # The bins are those of all pairs that are informative.
        codes = np.zeros((*known.shape, 4), np.uint8)
        binned = Binned.of(x[known], informative(blended[known], truth[known])[0])
        codes[known] = binned.codes
        own_binned = replace(binned, codes=codes[documents][own][used])
        return Boosting(own_binned, truth[documents][own][used], weights).grow(n_trees)

    def averages(half, other, n_trees, share):
        own = known[other]
        return (1 - share) * trees(half, n_trees).log_odds(x[other][own]) + share * blended[other][own]

    # Of the numbers of trees and the shares of the blend, those that make the other half most probable.
    tried = itertools.product(range(reranking.STEP, 6 * reranking.STEP, reranking.STEP), reranking.SHARES)
    losses = {
        each: sum(
            negative_log_likelihood(averages(half, other, *each), truth[other][known[other]])
            for half, other in halves
        )
        for each in tried
    }
    assert (len(whole.trees.roots), whole.share) == min(losses, key=losses.get)
    for half, other in halves:
        expected = averages(half, other, len(whole.trees.roots), whole.share)
        assert_allclose(crossed[other][known[other]], expected, rtol=1e-5, atol=1e-5)
    assert not crossed[~known].any()
    everything = trees(np.arange(400), len(whole.trees.roots))
    assert_array_equal(whole.trees.values, everything.values)


def test_no_more_trees_are_fitted_than_help(monkeypatch):
    grown = []
    grow = Boosting.grow
    monkeypatch.setattr(Boosting, "grow", lambda self, n: grown.append(n) or grow(self, n))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 3, 4)).astype(np.float32)
    # Nothing can be learnt.
    truth = (rng.random((300, 3)) < 0.3).astype(np.uint8)
    even, odd = np.arange(0, 300, 2), np.arange(1, 300, 2)
    constant = np.full(truth.shape, np.log(0.3 / 0.7), np.float32)
    arguments = x, truth, np.ones(truth.shape, bool), constant, no_companions(3), [(even, odd), (odd, even)]
    reranker, _ = fit_reranker(["a"], *arguments)
    assert reranker.share == max(reranking.SHARES)
    assert len(reranker.trees.roots) == reranking.STEP
    # Both halves, with patience, and all documents.
    assert grown == [reranking.STEP] * (2 * (1 + reranking.PATIENCE) + 1)


def test_a_reranker_is_chosen_where_no_sum_is_as_good_and_ranks_other_documents_better():
    rows, frequency = scored()
    choice = chosen(rows, frequency)
    assert choice.reranker is not None
    # States do not take part.
    assert choice.reranker.inputs == ["a", "b"]
    assert choice.scores["auto"]["P@1"] > choice.scores[BLEND]["P@1"] + 0.1
    new, _ = scored(seed=1)
    objective = Objective(*(new[name] for name in ("labels", "truth", "n_true")))
    others = scored_of(NAMES, new, frequency)
    found = objective.named(apply_choice(choice, others))
    plain = objective.named(apply_choice(replace(choice, reranker=None), others))
    # The expected metrics are those of documents that nothing was fitted to.
    assert found["P@1"] == pytest.approx(choice.scores["auto"]["P@1"], abs=0.03)
    assert plain["P@1"] == pytest.approx(choice.scores[BLEND]["P@1"], abs=0.03)


def test_candidates_beyond_the_best_follow_in_the_order_of_the_blend(monkeypatch):
    monkeypatch.setattr(choose_reranker, "DEPTH", 7)
    rows, frequency = scored(c=30)
    choice = chosen(rows, frequency)
    assert choice.reranker is not None
    documents = scored_of(NAMES, rows, frequency)
    totals = apply_choice(choice, documents)
    before = apply_choice(replace(choice, reranker=None), documents)
    # The columns without a candidate come last.
    order, old = (
        np.argsort(np.where(rows["labels"] >= 0, -own, np.inf), axis=1, kind="stable")
        for own in (totals, before)
    )
    assert_array_equal(np.sort(order[:, :7]), np.sort(old[:, :7]))
    # Probabilities that are next to each other may be rounded to the same log-odds.
    others = np.take_along_axis(np.where(rows["labels"] >= 0, before, 0.0), order, axis=1)[:, 7:]
    assert np.diff(others, axis=1).max() < 1e-6


def test_a_reranker_that_gains_nothing_is_not_chosen():
    rng = np.random.default_rng(0)
    rows, frequency = scored()
    # One head has all information: the log-odds of a label are a function of its score.
    truth = rows["truth"]
    own = np.where(truth, rng.normal(1.0, 0.5, truth.shape), rng.normal(0.0, 0.5, truth.shape))
    rows["scores"] = np.exp(own[:, None]).repeat(3, axis=1).astype(np.float32)
    rows["covariates"][:] = 1.0
    assert chosen(rows, frequency).reranker is None


def test_a_reranker_of_a_stack_has_a_head_with_an_index():
    rows, frequency = scored()
    choice, heads = chosen(rows, frequency), scored_of(["linear", "neighbors-75-3", "best-cosine"], rows)

    def inputs(*names):
        stack = Stack(tuple(StackInput(name, False, 1e-9, 1.0, 0.0) for name in names), 0.0)
        return choose_reranker._inputs(heads, replace(choice, blend=ChosenStack(stack, {})))

    assert inputs("linear") == ["linear", "best-cosine"]
    assert inputs("linear", "neighbors-75-3") == ["linear", "neighbors-75-3"]


def test_propensity_weights_leave_the_blend_as_it_is():
    rows, frequency = scored()
    rows["ideal"] = np.ones((len(rows["truth"]), 3))
    choice = chosen(rows, frequency, "PSP@1", np.ones(len(frequency[0])))
    assert choice.reranker is None


@pytest.fixture(params=["sum", "classes", "stack"])
def corpus(request, monkeypatch):
    """Return a corpus whose blend is ranked again: with more labels than are ranked exhaustively, or with few."""
    if request.param != "stack":
        rank_few_labels_exhaustively(monkeypatch)
    monkeypatch.setattr(choose_reranker, "RERANK_GAIN", -1.0)
    monkeypatch.setattr(blend, "RERANK_DOCUMENTS", 50)
    monkeypatch.setattr(choose_reranker, "DEPTH", 8)
    monkeypatch.setattr(choose_reranker, "FEW_DEPTH", 8)
    if request.param == "classes":
        monkeypatch.setattr(margin, "MAX_FREQUENT", 30)
        monkeypatch.setattr(margin, "FEW_ENTRIES", 0)
        monkeypatch.setattr(blend, "STACK_GAIN", -1.0)
    return planted_corpus(1500, n_labels=60, k=3)[2]


@pytest.fixture(scope="module")
def models():
    return {}


@pytest.fixture
def model(corpus, models, request):
    """Return a model of the corpus, which tests that share it leave as it is."""
    kind = request.node.callspec.params["corpus"]
    if kind not in models:
        models[kind] = MultiLabelMoM(5, n_topics=0).fit_corpus(corpus)
    return models[kind]


def dense_scores(scorer, query, name):
    out = np.zeros((query.block.n_documents, scorer.n_labels), np.float32)
    scorer.variant(name).add_scores(query, 1.0, out)
    return out


def test_a_model_ranks_the_best_labels_again(corpus, model, tmp_path):
    scorer, block = model.scorer_, corpus.read_shard(0)
    assert scorer.blend.reranker is not None
    assert model.selection_["reranked"] == scorer.blend.reranker.summary()
    assert {"auto", BLEND} <= set(model.selection_["held_out"])
    query = scorer.query(block)
    scores = scorer.scores(query)
    first = scorer.blend.first
    if isinstance(first, SumLogOdds):
        weights = model.selection_["weights"]
        total = sum(
            weight * dense_scores(scorer, query, name) for name, weight in weights.items() if name != "gate"
        )
        if "gate" in weights:
            total *= np.where(total > 0, dense_scores(scorer, query, "gate") ** weights["gate"], 1.0)
        by_hand = first.calibration.log_odds(np.asarray(total, np.float32)[None])
        assert_allclose(not_reranked(scorer).scores(query), by_hand, rtol=1e-3, atol=1e-3)
    # By hand: the best labels of the blend, their features, and the trees.
    plain = not_reranked(scorer)
    before = plain.scores(query)
    labels, blended = top_labels(before, 8)
    dense = [dense_scores(scorer, query, name) for name in scorer.blend.reranker.inputs]
    x = pair_features(
        labels, np.stack([np.take_along_axis(own, labels, axis=1) for own in dense]), blended,
        scorer.blend.label_log_odds[labels], query.covariates(scorer.index), scorer.blend.reranker.companions,
    )  # fmt: skip
    counted = companion_shares(scorer.index.labels, scorer.index.alive)
    assert_array_equal(scorer.blend.reranker.companions.data, counted.data)
    assert len(scorer.index.alive) == corpus.n_documents
    found = scorer.blend.reranker.trees.log_odds(x.reshape(-1, x.shape[2])).reshape(labels.shape)
    share = scorer.blend.reranker.share
    found = (1 - share) * found + share * blended
    assert_allclose(np.take_along_axis(scores, labels, axis=1), found, atol=1e-5)
    # The others keep their order, below these.
    rest = np.setdiff1d(np.arange(60), labels[0])
    order = rest[np.argsort(-scores[0, rest], kind="stable")]
    assert np.diff(before[0, order]).max() < 1e-5
    assert scores[0, rest].max() <= found[0].min() + 1e-5
    # The same lists without scores of all labels, of any length.
    for k in (1, 5, 8, 30):
        lists, values = scorer.top(block, k)
        assert_array_equal(lists, top_labels(scores, k)[0])
        assert_allclose(values, top_labels(scores, k)[1], atol=1e-5)
    assert_allclose(scorer.probabilities(scores), 1 / (1 + np.exp(-scores)), rtol=1e-5)
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert_array_equal(again.decision_function(block.words), model.decision_function(block.words))
    with open_executor(workers=0, threads=2) as threads:
        assert_array_equal(
            MultiLabelMoM(5, n_topics=0).fit_corpus(corpus, client=threads).scorer_.scores(query), scores
        )


def test_chosen_labels_and_single_heads_are_not_ranked_again(corpus, model):
    block = corpus.read_shard(0)
    plain = not_reranked(model.scorer_)
    some = ["5", "40", "7"] if model.label_names_[5] == "5" else [model.label_names_[i] for i in (5, 40, 7)]
    expected = plain.probabilities(plain.scores(plain.query(block)))[:, [5, 40, 7]]
    assert_allclose(model.predict_proba(block.words, labels=some), expected, atol=1e-6)
    log_odds = model.decision_function(block.words, labels=some)
    assert_allclose(log_odds, plain.scores(plain.query(block))[:, [5, 40, 7]], atol=1e-4)
    alone = model.scorer_.only(model.scorer_.heads[0][0])
    assert not isinstance(alone.blend, Reranked)
    assert not alone.has_probabilities


def test_a_factor_of_labels_multiplies_the_probabilities(corpus):
    model = MultiLabelMoM(5, n_topics=0, propensity=1.0).fit_corpus(corpus)
    scorer, block = model.scorer_, corpus.read_shard(0)
    query = scorer.query(block)
    p = replace(scorer, label_factor=None)
    expected = p.probabilities(p.scores(query)) * scorer.label_factor
    assert_allclose(scorer.scores(query), expected, rtol=1e-5)
    assert_array_equal(scorer.top(block, 5)[0], top_labels(scorer.scores(query), 5)[0])


def test_updates_keep_the_trees(corpus):
    blocks = [corpus.read_shard(i) for i in range(2)]
    first, new = (MemoryCorpus(b.words, b.labels) for b in blocks)
    model = MultiLabelMoM(5, n_topics=0, keep_sums=True).fit_corpus(first)
    trees, start = model.reranker_.trees, model.start_digest
    before = model.decision_function(blocks[1].words)
    model.partial_fit_corpus(new)
    assert model.reranker_.trees is trees
    # The companions are those of all documents.
    counted = companion_shares(model.scorer_.index.labels, model.scorer_.index.alive)
    assert_array_equal(model.reranker_.companions.data, counted.data)
    assert len(model.scorer_.index.alive) == 1000
    assert model.start_digest == start
    assert not np.array_equal(model.decision_function(blocks[1].words), before)


def test_damaged_rerankers_are_refused(model, tmp_path):
    model = copy(model)
    reranker = model.reranker_
    trees = reranker.trees
    own = np.flatnonzero(trees.children)[-1]
    children = trees.children.copy()
    children[own] = own
    for name, bad in {
        "loop": replace(reranker, trees=replace(trees, children=children)),
        "head": replace(reranker, inputs=["unheard"] * len(reranker.inputs)),
        "few": replace(reranker, inputs=[]),
        "depth": replace(reranker, depth=0),
        "share": replace(reranker, share=1.5),
    }.items():
        model.reranker_ = bad
        model.save(tmp_path / name)
        with pytest.raises(StoreError):
            load_model(tmp_path / name)


def test_names_and_trees_must_suit_one_another():
    x = np.random.default_rng(0).standard_normal((50, 2 + N_COMMON)).astype(np.float32)
    trees = fit_trees(x, (x[:, -1] > 0).astype(np.uint8), 2)
    assert Reranker(["a"], 3, no_companions(4), trees).checked().depth == 3
    with pytest.raises(ValueError, match="names"):
        Reranker([], 3, no_companions(4), trees).checked()
