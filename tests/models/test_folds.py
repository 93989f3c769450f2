"""Folds: which documents are held out, what their scores are made from, and fits of small corpora."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
from helpers import planted_corpus, rank_few_labels_exhaustively, scored_of
from numpy.testing import assert_array_equal

from distmom.corpus import MemoryCorpus
from distmom.engine.opening import open_engine
from distmom.models import MultiLabelMoM
from distmom.models.multilabel.blend.covariates import Covariates, Effect, frequency_log_odds
from distmom.models.multilabel.blend.scored import joined
from distmom.models.multilabel.blend.stack import Stack, StackInput
from distmom.models.multilabel.effort import EFFORTS
from distmom.models.multilabel.folds import blend_inputs, folds_of, held_out
from distmom.models.multilabel.program import score_fold
from distmom.spectral.program.execute import execute


class Sized:
    """A corpus of a number of documents."""

    def __init__(self, n_documents):
        self.n_documents = n_documents


@pytest.mark.parametrize(
    ("n", "n_folds"), [(40, 5), (1_000, 5), (1_300, 4), (2_500, 2), (4_600, 1), (10**6, 1)]
)
def test_small_corpora_have_as_many_folds_as_a_choice_needs(n, n_folds):
    folds = folds_of(Sized(n), 3)
    assert len(folds) == n_folds
    assert folds[0] == held_out(Sized(n), 3)
    masks = np.array([fold.mask(0, n) for fold in folds])
    assert masks.sum(axis=0).max() == 1
    assert masks.sum(axis=1) == pytest.approx(folds[0].fraction * n, abs=6.0 * n**0.5)
    assert masks.any(axis=0).all() == (n_folds == 5)


def test_efforts_have_folds_of_their_own():
    assert len(folds_of(Sized(1_000), 0, EFFORTS["low"])) == 1
    assert len(folds_of(Sized(5_000), 0, EFFORTS["high"])) == 4


def dense_of(corpus):
    """Return the words and the labels of a corpus."""
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    return tuple(
        np.vstack([getattr(block, name).toarray() for block in blocks]) for name in ("words", "labels")
    )


def inputs_of(model, corpus):
    """Return the arguments of `choose_blend` of all folds, and the folds."""
    settings = model.head_settings(corpus.n_documents)
    chosen = folds_of(corpus, settings.seed, settings.effort)
    with open_engine(corpus) as engine:
        folds = [execute(partial(score_fold, settings=settings, chosen=own), engine)[1] for own in chosen]
        return blend_inputs(engine, folds), chosen


def test_scores_are_those_of_heads_that_were_fitted_without_the_fold():
    corpus = planted_corpus(600, n_labels=12, k=3)[2]
    dense, labels = dense_of(corpus)
    model = MultiLabelMoM(3, n_topics=0)
    inputs, chosen = inputs_of(model, corpus)
    scored = inputs["scored"]
    assert len(chosen) == 5
    assert len(scored.truth) == 600
    counts, n_fitted = scored.frequency
    assert_array_equal(n_fitted.ravel(), [600 - sum(own.mask(0, 600)) for own in chosen])
    for number, own in enumerate(chosen):
        held = own.mask(0, 600)
        part = scored.fold == number
        assert_array_equal(scored.truth[part], labels[held])
        assert_array_equal(counts[number], labels[~held].sum(axis=0))
        rest = MemoryCorpus(dense[~held], labels[~held])
        apart, leaking = (
            MultiLabelMoM(3, head="linear", n_residual_passes=1, n_topics=0).fit_corpus(each)
            for each in (rest, corpus)
        )
        found = scored.scores_of("linear")[part]
        errors = [np.abs(found - each.decision_function(dense[held])).max() for each in (apart, leaking)]
        # Only the weights of words are those of all documents.
        assert errors[0] < 0.2 * errors[1]
    companions = inputs["companions"]
    assert len(companions) == 5
    assert len({each.data.tobytes() for each in companions}) == 5


def test_covariates_of_labels_are_those_of_the_documents_that_their_fold_is_fitted_to():
    rng = np.random.default_rng(0)
    counts, n_fitted = rng.integers(1, 50, (2, 6)), np.array([[80.0], [90.0]])
    fold = np.repeat([0, 1], [30, 50])
    labels = np.tile(np.arange(6), (80, 1))
    rows = {"labels": labels, "covariates": rng.random((80, 2)), "fold": fold}
    rest = {name: np.zeros((80, 1)) for name in ("scores", "best", "truth", "n_true")}
    scored = scored_of(["a"], {**rows, **rest}, (counts, n_fitted))
    covariates = scored.all_covariates()
    expected = frequency_log_odds(counts, n_fitted)
    assert_array_equal(covariates.labels, expected[fold])
    assert_array_equal(scored.label_log_odds(labels[:, ::-1]), expected[fold][:, ::-1])
    # The log-odds of a stack are those of the documents of each fold alone.
    scores = rng.random((1, 80, 6)).astype(np.float32)
    effect = Effect("frequency", -1.0, 0.7, (0.3,), (0.2,), 0.5)
    stack = Stack((StackInput("a", False, 1e-3, 1.0, 0.5),), -2.0, (effect,))
    found = stack.log_odds(scores, covariates)
    for number in (0, 1):
        part = fold == number
        own = Covariates(rows["covariates"][part], expected[number])
        assert_array_equal(found[part], stack.log_odds(scores[:, part], own))
    # Documents may be any of both folds.
    some = np.arange(0, 80, 3)
    assert_array_equal(stack.log_odds(scores[:, some], covariates.of(some)), found[some])


def test_rows_of_folds_with_different_numbers_of_candidates_are_joined():
    def part(n, width, number):
        shape = (n, width)
        rows = {
            "labels": np.full(shape, 7, np.int32), "truth": np.ones(shape, np.uint8),
            "scores": np.ones((n, 2, width), np.float32), "best": np.ones((n, 2), np.float32),
            "n_true": np.full(n, width), "fold": np.full(n, number),
        }  # fmt: skip
        return scored_of(["a", "b"], rows)

    rows = vars(joined([part(2, 3, 0), part(4, 5, 1)]))
    assert rows["n_true"].tolist() == [3] * 2 + [5] * 4
    assert rows["labels"].tolist() == [[7, 7, 7, -1, -1]] * 2 + [[7] * 5] * 4
    assert rows["scores"].shape == (6, 2, 5)
    assert not rows["scores"][:2, :, 3:].any()
    assert not rows["truth"][:2, 3:].any()
    assert rows["fold"].tolist() == [0, 0, 1, 1, 1, 1]


def test_scores_of_some_documents_and_heads():
    rng = np.random.default_rng(0)
    rows = {
        "labels": rng.integers(0, 9, (6, 4)), "scores": rng.random((6, 3, 4)), "best": rng.random((6, 3)),
        "truth": rng.integers(0, 2, (6, 4)), "n_true": rng.integers(0, 3, 6), "covariates": rng.random((6, 2)),
        "fold": rng.integers(0, 2, 6), "ideal": rng.random((6, 3)),
    }  # fmt: skip
    scored = scored_of(["svm-0.1", "svm-0.3", "linear"], rows)
    assert scored.families == ("svm", "svm", "linear")
    some = scored.of(np.array([4, 1]))
    for name, values in rows.items():
        assert_array_equal(getattr(some, name), values[[4, 1]])
    few = scored.only(["linear", "svm-0.1"])
    assert few.names == ("linear", "svm-0.1")
    assert_array_equal(few.scores, rows["scores"][:, [2, 0]])
    assert_array_equal(few.best, rows["best"][:, [2, 0]])
    assert_array_equal(few.scores_of("svm-0.1"), rows["scores"][:, 0])
    assert few.truth is scored.truth
    pairs = scored.pairs(["linear", "svm-0.3"])
    assert (pairs.names, pairs.signed) == (("linear", "svm-0.3"), (False, True))
    assert_array_equal(pairs.scores, rows["scores"].swapaxes(0, 1)[[2, 1]])


@pytest.mark.parametrize("many", [False, True])
def test_small_corpora_are_fitted_in_the_planned_passes(many, monkeypatch):
    if many:
        rank_few_labels_exhaustively(monkeypatch)
    corpus = planted_corpus(700, n_labels=40, k=3)[2]
    model = MultiLabelMoM(3)
    planned = Counter(p.name for p in model.plan(corpus).passes)
    model.fit_corpus(corpus)
    made = Counter(timing["name"] for timing in model.timings_)
    assert planned["selection"] == made["selection"] == 5
    assert made <= planned
    assert model.selection_["n_held_out"] == 700


def test_copies_among_held_out_documents_are_counted():
    corpus = planted_corpus(400, d=200, n_labels=10, k=3)[2]
    block = corpus.read_shard(0)
    once = MultiLabelMoM(3).fit(block.words, block.labels)
    n_copies = 100
    rows = np.concatenate([np.arange(400), np.arange(n_copies)])
    some = MultiLabelMoM(3).fit(block.words[rows], block.labels[rows])
    assert once.selection_["repeated"] == 0.0
    assert some.selection_["n_held_out"] == 500
    # A copy is not found if both are held out in the same fold.
    assert 0.75 * 2 * n_copies / 500 < some.selection_["repeated"] < 2 * n_copies / 500


def test_the_expected_precision_of_a_small_corpus_is_that_of_other_documents():
    X, Y = dense_of(planted_corpus(3_400, n_labels=20, k=4)[2])
    errors = []
    for seed in range(6):
        order = np.random.default_rng(seed).permutation(3_400)
        fitted, others = order[:400], order[400:]
        model = MultiLabelMoM(4, n_topics=0, random_state=seed).fit(X[fitted], Y[fitted])
        first = model.predict_top(X[others], 1)[0][:, 0]
        found = Y[others, first].mean()
        errors.append(
            (model.selection_["held_out"]["auto"]["P@1"] - found) / model.selection_["precision_error"]
        )
    # In standard errors, of which those of a mean of six fits are 0.4.
    assert abs(np.mean(errors)) < 2.0
