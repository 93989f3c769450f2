"""The choice of a blend: what a stack and the weights of a sum keep, drop and reach."""

import numpy as np
import pytest
from helpers import scored_of

from distmom.evaluate.metrics import RankingSums
from distmom.models.multilabel.blend.choice import TOTAL, ChosenStack
from distmom.models.multilabel.blend.choose import choose_blend
from distmom.models.multilabel.blend.objective import AUC_DOCUMENTS
from distmom.models.multilabel.blend.stack import probability
from distmom.models.multilabel.blend.weighted_sum import MIN_GAIN

N, WIDTH = 3000, 40


def rows_of(noises: list[float]) -> dict[str, np.ndarray]:
    """Return rows in which every head scores the true labels one higher, with its own noise."""
    rng = np.random.default_rng(0)
    truth = np.zeros((N, WIDTH), np.uint8)
    truth[np.arange(N), rng.integers(0, WIDTH, N)] = 1
    truth[np.arange(N), rng.integers(0, WIDTH, N)] = 1
    scores = np.stack([truth + noise * rng.standard_normal((N, WIDTH)) for noise in noises], axis=1)
    return {
        "labels": np.full((N, WIDTH), -1, np.int32) + np.arange(1, WIDTH + 1, dtype=np.int32),
        "scores": scores.astype(np.float32),
        "best": scores.max(axis=2).astype(np.float32),
        "truth": truth,
        "n_true": truth.sum(axis=1).astype(np.int32),
    }


def with_a_label_that_is_no_candidate(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return rows of a corpus of many labels: the blend is then a weighted sum."""
    rows["labels"][0, 0], rows["truth"][0, 0] = -1, 0
    return rows


def hits_at_1(rows: dict[str, np.ndarray], totals: np.ndarray) -> float:
    return float(rows["truth"][np.arange(N), totals.argmax(axis=1)].mean())


def test_held_out_documents_are_measured_like_all_others():
    """The report on one head has the definitions of the ranking metrics, ties and documents without labels too."""
    rows = rows_of([0.6])
    rows["scores"] = np.round(rows["scores"], 1)
    rows["truth"][:30], rows["n_true"][:30] = 0, 0
    rows["truth"][30:50], rows["n_true"][30:50] = 1, WIDTH
    found = choose_blend(scored_of(["a"], rows)).scores["a"]
    scores = rows["scores"][:, 0]
    lists = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    sums = RankingSums.zero().add_lists(lists, rows["truth"])
    expected = sums.add_scores(scores[:AUC_DOCUMENTS], rows["truth"][:AUC_DOCUMENTS]).finish()
    assert found == pytest.approx({name: expected[name] for name in found}, rel=1e-11)
    assert set(found) == {"P@1", "P@3", "P@5", "nDCG@5", "AUC"}


def test_a_few_documents_with_equally_many_candidates_are_not_ranked_exhaustively():
    rows = {name: values[:3] for name, values in rows_of([0.6, 1.0]).items()}
    counts = np.full((1, 2000), 2)
    choice = choose_blend(scored_of(["a", "b"], rows, (counts, np.array([[50.0]]))))
    assert not isinstance(choice.blend, ChosenStack)
    assert set(choice.scores["auto"]) == {"P@1", "P@3", "P@5", "nDCG@5"}


def test_labels_that_are_no_candidates_count_as_missed():
    rows = rows_of([0.6])
    rows["truth"][:, ::2] = 0
    rows["labels"][:, ::2] = -1
    found = choose_blend(scored_of(["a"], rows)).scores["a"]
    order = np.argsort(-rows["scores"][:, 0, 1::2], axis=1, kind="stable")[:, :5]
    hits = np.take_along_axis(rows["truth"][:, 1::2], order, axis=1)
    discounts = 1 / np.log2(np.arange(2, 7))
    ideal = np.cumsum(discounts)[np.minimum(rows["n_true"], 5) - 1]
    assert found["P@5"] == pytest.approx(hits.mean(), rel=1e-11)
    assert found["nDCG@5"] == pytest.approx((hits @ discounts / ideal).mean(), rel=1e-11)
    assert set(found) == {"P@1", "P@3", "P@5", "nDCG@5"}


@pytest.mark.parametrize("stacked", [False, True])
def test_independent_heads_are_weighted_by_their_precision(stacked):
    rows = rows_of([0.6, 0.6, 0.9])
    if not stacked:
        with_a_label_that_is_no_candidate(rows)
    names = ["a", "b", "c"]
    choice = choose_blend(scored_of(names, rows))
    assert isinstance(choice.blend, ChosenStack) == stacked
    if stacked:
        kept = [names.index(each.name) for each in choice.blend.stack.inputs]
        totals = choice.blend.stack.log_odds(rows["scores"].swapaxes(0, 1)[kept])
    else:
        totals = sum(choice.weights[name] * rows["scores"][:, i] for i, name in enumerate(names))
    # The best weights of independent noises are the inverse variances.
    best = sum(rows["scores"][:, i] / noise**2 for i, noise in enumerate([0.6, 0.6, 0.9]))
    alone = max(choice.scores[name]["P@1"] for name in names)
    # What is reported was measured on documents that the blend was not chosen on.
    assert hits_at_1(rows, totals) == pytest.approx(choice.scores["auto"]["P@1"], abs=0.005)
    assert hits_at_1(rows, best) - choice.scores["auto"]["P@1"] < 0.08 * (hits_at_1(rows, best) - alone)
    p = choice.scores["auto"]["P@1"]
    assert choice.precision_error == pytest.approx(np.sqrt(p * (1 - p) / N), rel=1e-3)
    assert choice.n_documents == N


def test_the_sum_of_many_labels_has_a_probability():
    rows = with_a_label_that_is_no_candidate(rows_of([0.6, 0.9]))
    choice = choose_blend(scored_of(["a", "b"], rows))
    assert [each.name for each in choice.blend.calibration.inputs] == [TOTAL]
    total = sum(choice.weights[name] * rows["scores"][:, i] for i, name in enumerate("ab"))
    p = probability(choice.blend.calibration.log_odds(total[None].astype(np.float32)))
    for part in np.array_split(np.argsort(p, axis=None), 4):
        error = np.sqrt(p.ravel()[part].mean() / len(part))
        assert abs(p.ravel()[part].mean() - rows["truth"].ravel()[part].mean()) < 5 * error


def test_heads_that_bring_nothing_are_left_out():
    rows = rows_of([0.6, 0.6, 50.0])
    choice = choose_blend(scored_of(["a", "b", "noise"], rows))
    assert set(choice.weights) == {"a", "b"}


@pytest.mark.parametrize("stacked", [False, True])
def test_of_variants_one_is_kept(stacked):
    rows = rows_of([0.8, 0.6, 0.7, 0.9])
    if not stacked:
        with_a_label_that_is_no_candidate(rows)
    names = ["a-1", "a-2", "a-3", "b"]
    choice = choose_blend(scored_of(names, rows))
    assert len(choice.weights) == 2
    assert "b" in choice.weights


def test_the_head_that_was_best_alone_may_be_left_out():
    """A head that is the sum of two others is the best alone, and worth nothing beside both with less noise."""
    rows = rows_of([0.7, 0.7, 1.0])
    both = rows["scores"][:, 0] + rows["scores"][:, 1]
    rng = np.random.default_rng(1)
    rows["scores"][:, 2] = both + 0.3 * rng.standard_normal(both.shape)
    rows["best"][:, 2] = rows["scores"][:, 2].max(axis=1)
    names = ["a", "b", "sum"]
    choice = choose_blend(scored_of(names, rows))
    assert max(names, key=lambda name: choice.scores[name]["P@1"]) == "sum"
    assert set(choice.weights) == {"a", "b"}
    assert choice.objective > np.mean(list(choice.scores["sum"].values())) + MIN_GAIN


def test_of_equally_good_variants_the_first_is_stacked():
    """Variants of a head have one place among the heads of a model, so a stack must not have two of them."""
    rows = rows_of([0.6, 0.6, 0.8])
    # Both rank the labels of every document alike, and their mean is better than either across documents.
    level = np.random.default_rng(1).standard_normal((N, 1)).astype(np.float32)
    rows["scores"][:, 1] = rows["scores"][:, 0] - level
    rows["scores"][:, 0] += level
    choice = choose_blend(scored_of(["svm-0.1", "svm-0.3", "b"], rows))
    assert choice.scores["svm-0.1"] == choice.scores["svm-0.3"]
    assert [each.name for each in choice.blend.stack.inputs] == ["svm-0.1", "b"]
