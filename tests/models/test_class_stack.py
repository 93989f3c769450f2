"""Stacks by classes of labels: their regressions, when they are chosen, and models that have one."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers import hold_out_one_fold, planted_corpus, rank_few_labels_exhaustively, scored_of
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from distmom.corpus import Block, MemoryCorpus
from distmom.errors import StoreError
from distmom.models import MultiLabelMoM, load_model
from distmom.models.multilabel.blend import choose as blend
from distmom.models.multilabel.blend import class_stack
from distmom.models.multilabel.blend.choice import ChosenStack, ChosenSum, apply_choice
from distmom.models.multilabel.blend.class_stack import (
    ClassStack,
    class_cuts,
    classes_of,
    fit_classes,
    stack_from_json,
)
from distmom.models.multilabel.blend.covariates import Covariates, frequency_log_odds
from distmom.models.multilabel.blend.stack import Pairs, fit_stack
from distmom.models.multilabel.classifiers import margin
from distmom.models.multilabel.folds import held_counts, without_classifiers
from distmom.models.multilabel.heads import candidates
from distmom.models.multilabel.heads.candidates import drawn_labels

N, WIDTH, N_LABELS = 3000, 12, 60
NAMES = ["frequent", "other"]


@pytest.fixture
def rows():
    """Return scores of candidates, of which one head knows the frequent labels and the other the rare ones."""
    rng = np.random.default_rng(0)
    labels = np.argsort(rng.random((N, N_LABELS)), axis=1)[:, :WIDTH].astype(np.int32)
    rare = labels >= N_LABELS // 2
    z = rng.standard_normal((N, WIDTH)) - 2.0
    truth = (rng.random((N, WIDTH)) < 1 / (1 + np.exp(-3 * z))).astype(np.uint8)
    noise = rng.standard_normal((2, N, WIDTH))
    scores = np.exp(np.stack([np.where(rare, noise[0], z), np.where(rare, z, noise[1])])).astype(np.float32)
    labels[:, -1], truth[:, -1] = -1, 0
    return {
        "labels": labels,
        "truth": truth,
        "n_true": truth.sum(axis=1).astype(np.int32),
        "scores": np.ascontiguousarray(scores.swapaxes(0, 1)),
        "best": scores.max(axis=2).T,
        "covariates": np.zeros((N, 2), np.float32),
    }


@pytest.fixture
def frequency(rows):
    """Return numbers of fitted documents of labels, more for the first half, and of all of them."""
    return np.where(np.arange(N_LABELS) < N_LABELS // 2, 5000, 50), 40_000 - N


def pairs_of(rows, frequency):
    return scored_of(NAMES, rows, frequency).pairs(NAMES)


def test_covariates_of_labels_are_their_frequencies(rows, frequency):
    pairs = pairs_of(rows, frequency)
    expected = frequency_log_odds(np.array([5000, 50]), 40_000 - N)
    known = pairs.known
    assert_allclose(pairs.covariates.labels[known], expected[(rows["labels"][known] >= 30).astype(int)])


def test_classes_hold_about_as_many_true_pairs(monkeypatch):
    rng = np.random.default_rng(1)
    log_odds = np.round(rng.standard_normal((N, WIDTH)), 2)
    truth = (rng.random((N, WIDTH)) < 0.3).astype(np.uint8)
    pairs = Pairs(("a",), (False,), truth[None].astype(np.float32), truth, np.ones((N, WIDTH), bool))
    pairs = replace(pairs, covariates=Covariates(np.zeros((N, 2)), log_odds))
    counts = Counter(classes_of(log_odds[truth > 0], class_cuts(pairs, 9.0)).tolist())
    assert sorted(counts) == list(range(class_stack.MAX_CLASSES))
    assert max(counts.values()) < 1.1 * min(counts.values())
    # The boundary takes the place of cuts beside it.
    median = float(np.median(log_odds[truth > 0]))
    assert len(class_cuts(pairs, median + 0.02)) == class_stack.MAX_CLASSES - 1
    assert median + 0.02 in class_cuts(pairs, median + 0.02)
    few = replace(pairs, known=np.cumsum(truth).reshape(N, WIDTH) <= 3 * class_stack.MIN_TRUE)
    assert len(class_cuts(few, 9.0)) == 3
    assert class_cuts(replace(pairs, known=np.zeros((N, WIDTH), bool)), 9.0) == (9.0,)
    # Labels that are all as frequent are one class.
    same = replace(pairs, covariates=Covariates(np.zeros((N, 2)), np.full((N, WIDTH), -2.0)))
    assert class_cuts(same, 9.0) == (9.0,)


def test_labels_are_on_the_side_of_the_boundary_that_their_classifiers_require():
    stack = ClassStack((-5.0, -3.0), -3.0, ())
    found = stack.limited(np.array([-6.0, -2.0, -2.0, -4.0]), np.array([2, 3]))
    assert classes_of(found, stack.cuts).tolist() == [0, 1, 2, 2]
    assert_array_equal(found[[0, 2]], [-6.0, -2.0])


def test_the_regression_of_a_class_is_that_of_its_pairs_alone(rows, frequency):
    pairs = pairs_of(rows, frequency)
    cuts = (-4.0,)
    stack, losses = fit_classes(pairs, cuts, -4.0)
    rare = rows["labels"] >= N_LABELS // 2
    log_odds, total = np.zeros((N, WIDTH), np.float32), np.zeros(2)
    for own in (rare, ~rare):
        alone = fit_stack(replace(pairs, known=pairs.known & own))
        log_odds[own] = alone.stack.log_odds(pairs.scores)[own]
        total += alone.losses
    found = stack.log_odds(pairs.scores, pairs.covariates)
    assert_allclose(found[pairs.known], log_odds[pairs.known], rtol=1e-5, atol=1e-6)
    assert_allclose(losses, total)
    # One row of frequencies stands for all documents.
    labels = np.arange(WIDTH)
    assert_array_equal(
        stack.log_odds(pairs.scores, Covariates(np.zeros((N, 2)), labels - 8.0)),
        stack.log_odds(pairs.scores, Covariates(np.zeros((N, 2)), np.tile(labels - 8.0, (N, 1)))),
    )


def test_json_keeps_the_bits_and_invalid_records_are_refused(rows, frequency):
    pairs = pairs_of(rows, frequency)
    stack, _ = fit_classes(pairs, (-4.0,), -4.0)
    record = json.loads(json.dumps(stack.to_json()))
    assert_array_equal(
        stack_from_json(record).log_odds(pairs.scores, pairs.covariates),
        stack.log_odds(pairs.scores, pairs.covariates),
    )
    for broken in (
        {**record, "cuts": []},
        {**record, "cuts": [float("nan")]},
        {**record, "boundary": -3.0},
        {**record, "cuts": [-4.0, -5.0], "classes": [*record["classes"], record["classes"][0]]},
        {**record, "classes": [record["classes"][0], {**record["classes"][1], "inputs": []}]},
    ):
        with pytest.raises(ValueError, match="expected"):
            stack_from_json(broken)


def test_a_stack_is_chosen_where_frequency_matters(rows, frequency):
    scored = scored_of(NAMES, rows, frequency)
    choice = blend.choose_blend(scored, least=1000)
    assert isinstance(choice.blend.stack, ClassStack)
    summed = blend.choose_blend(scored_of(NAMES, rows))
    assert isinstance(summed.blend, ChosenSum)
    assert choice.objective > summed.objective + 0.05
    assert set(choice.weights) == set(NAMES)
    # Without classifiers of frequent labels, it is not tried.
    assert not isinstance(blend.choose_blend(scored).blend, ChosenStack)
    pairs = pairs_of(rows, frequency)
    expected = choice.blend.stack.log_odds(pairs.scores, pairs.covariates)
    assert_array_equal(apply_choice(choice, scored), expected)


def test_a_sum_is_kept_where_a_stack_gains_little(rows, frequency):
    rare = rows["labels"] >= N_LABELS // 2
    scores = np.where(rare[:, None], rows["scores"][:, [1]], rows["scores"][:, [0]])
    scores = np.ascontiguousarray(np.concatenate([scores, rows["scores"][:, [1]]], axis=1))
    rows = {**rows, "scores": scores, "best": scores.max(axis=2)}
    choice = blend.choose_blend(scored_of(NAMES, rows, frequency), least=1000)
    assert isinstance(choice.blend, ChosenSum)


def test_a_classifier_does_not_reveal_held_out_documents(rows):
    held_out = np.bincount(rows["labels"][rows["truth"] > 0], minlength=N_LABELS)
    fitted, scored = np.arange(N_LABELS), scored_of(NAMES, rows)
    assert_array_equal(held_counts(scored, N_LABELS), held_out)
    shown = without_classifiers(scored, fitted, 20).scores
    labels = rows["labels"]
    hidden = fitted[np.maximum(labels, 0)] < 20
    assert_array_equal(shown[:, 1], rows["scores"][:, 1])
    assert not shown[:, 0][hidden].any()
    assert_array_equal(shown[:, 0][~hidden], rows["scores"][:, 0][~hidden])


def test_random_candidates_are_those_of_positions():
    words, labels = csr_array((50, 4)), csr_array((50, 9))
    whole = drawn_labels(Block(words, labels, 1000), 9, 7)
    assert whole.shape == (50, 7)
    assert 0 <= whole.min() < whole.max() < 9
    part = drawn_labels(Block(words[20:], labels[20:], 1020), 9, 7)
    assert_array_equal(part, whole[20:])
    assert drawn_labels(Block(words, labels, 0), 9, 0).shape == (50, 0)


@pytest.fixture
def many(monkeypatch):
    """Return a corpus for which a stack by classes is chosen whether or not it helps."""
    hold_out_one_fold(monkeypatch)
    rank_few_labels_exhaustively(monkeypatch)
    monkeypatch.setattr(margin, "MAX_FREQUENT", 30)
    monkeypatch.setattr(margin, "FEW_ENTRIES", 0)
    monkeypatch.setattr(class_stack, "MIN_TRUE", 40)
    monkeypatch.setattr(blend, "STACK_GAIN", -1.0)
    return planted_corpus(1500, n_labels=60, k=3)[2]


def test_models_have_the_planned_passes_and_are_saved(many, tmp_path):
    model = MultiLabelMoM(3)
    planned = Counter(p.name for p in model.plan(many).passes)
    fitted = model.fit_corpus(many)
    assert Counter(timing["name"] for timing in fitted.timings_)["frequent"] == planned["frequent"]
    assert isinstance(fitted.scorer_.blend.stack, ClassStack)
    assert len(fitted.scorer_.blend.stack.stacks) > 2
    fitted.save(tmp_path / "model")
    X, loaded = many.read_shard(0).words, load_model(tmp_path / "model")
    scores = fitted.decision_function(X)
    assert_array_equal(loaded.decision_function(X), scores)
    labels, values = loaded.predict_top(X, 3)
    assert_array_equal(values, -np.sort(-scores, axis=1)[:, :3])
    assert_array_equal(np.take_along_axis(scores, labels, axis=1), values)
    assert_allclose(loaded.predict_proba(X), 1 / (1 + np.exp(-scores)), rtol=1e-5)
    names = fitted.label_names_[3:40:5]
    assert_allclose(loaded.decision_function(X, labels=names), scores[:, 3:40:5], rtol=1e-4, atol=1e-4)


def test_probabilities_of_likely_labels_are_calibrated(many):
    model = MultiLabelMoM(3).fit_corpus(planted_corpus(5000, n_labels=60, k=3)[2])
    new = planted_corpus(6000, n_labels=60, k=3, shard_documents=1000)[2].read_shard(5)
    p, truth = model.predict_proba(new.words), new.labels.toarray()
    likely = p > 0.05
    assert truth[likely].sum() > 800
    assert abs(p[likely].sum() / truth[likely].sum() - 1.0) < 0.1


def test_updates_score_new_labels(many):
    model = MultiLabelMoM(3, keep_sums=True).fit_corpus(many)
    block, n_before = many.read_shard(0), many.n_labels
    names = [*model.label_names_, "new"]
    Y = np.zeros((block.n_documents, len(names)), np.uint8)
    Y[:, -1] = 1
    model.partial_fit_corpus(MemoryCorpus(block.words, csr_array(Y), model.vocabulary_, names))
    scores = model.decision_function(block.words)
    assert scores.shape[1] == n_before + 1
    assert np.isfinite(scores).all()
    # It is as frequent as labels with classifiers, of which it has none.
    assert (scores[:, -1] > np.median(scores, axis=1)).mean() > 0.9


def test_a_stack_with_a_head_that_is_missing_is_refused(many, tmp_path):
    fitted = MultiLabelMoM(3).fit_corpus(many)
    state = fitted._state()
    heads = tuple(h for h in state.heads if h[0] != "frequent")
    fitted._state = lambda: replace(state, heads=heads, head_weights=[1.0] * len(heads))
    fitted.save(tmp_path / "model")
    with pytest.raises(StoreError):
        load_model(tmp_path / "model")


def test_random_labels_are_scored_only_for_stacks(many, monkeypatch):
    taken = []
    draw = candidates.drawn_labels
    monkeypatch.setattr(candidates, "drawn_labels", lambda *a: taken.append(a[2]) or draw(*a))
    MultiLabelMoM(3).fit_corpus(many)
    assert set(taken) == {candidates.N_RANDOM}
    monkeypatch.setattr(margin, "FREQUENT_SHARE", 2.0)
    monkeypatch.setattr(margin, "FEW_ENTRIES", 0)
    taken.clear()
    MultiLabelMoM(3).fit_corpus(many)
    assert set(taken) == {0}
