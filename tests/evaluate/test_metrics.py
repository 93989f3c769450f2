import math

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import rankdata
from sklearn.metrics import ndcg_score, roc_auc_score

from distmom.errors import NumericalError, UsageError
from distmom.evaluate.metrics import RankingSums
from distmom.ranking import inverse_propensity


def top_lists(scores, depth):
    """Labels by decreasing score, ties by smaller label."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :depth].astype(np.int32)


@pytest.fixture
def block():
    rng = np.random.default_rng(0)
    truth = (rng.random((40, 15)) < 0.2).astype(float)
    truth[0] = 0
    truth[1] = 1
    # Few distinct scores, so that there are many ties.
    scores = rng.integers(0, 6, (40, 15)).astype(np.float32)
    return scores, truth


def test_hand_computed_example():
    """The first document has three true labels, one of them ranked second; the second has one, ranked first."""
    truth = sparse.csr_array(np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]))
    lists = np.array([[3, 0, 4], [4, -1, -1], [-1, -1, -1]], dtype=np.int32)
    inverse = np.array([2.0, 3.0, 5.0, 7.0, 11.0])
    sums = RankingSums.zero((1, 3), inverse_propensity=inverse).add_lists(lists, truth)
    result = sums.finish()
    log3 = math.log2(3)
    ideal = 1 + 1 / log3 + 0.5
    assert result["P@1"] == pytest.approx(1 / 3)
    assert result["P@3"] == pytest.approx((1 / 3 + 1 / 3) / 3)
    assert result["recall@3"] == pytest.approx((1 / 3 + 1) / 3)
    assert result["nDCG@1"] == pytest.approx(1 / 3)
    assert result["nDCG@3"] == pytest.approx((1 / log3 / ideal + 1) / 3)
    assert result["PSP@1"] == pytest.approx(11 / (5 + 11))
    assert result["PSP@3"] == pytest.approx((2 + 11) / (5 + 3 + 2 + 11))
    best = (5 + 3 / log3 + 2 / 2) / ideal
    assert result["PSnDCG@3"] == pytest.approx((2 / log3 / ideal + 11) / (best + 11))
    # Document 1: labels 3, 0, 4 then a tie of 1 and 2; wins 1 of 2 and 0, 0. Document 2: all won.
    assert result["AUC_listed"] == pytest.approx((1 / 6 + 1) / 2)
    assert {k: v for k, v in result.items() if k.startswith("n_")} == {
        "n_documents": 3,
        "n_scored": 2,
        "n_unlabelled": 1,
        "n_auc_listed": 2,
        "n_auc": 0,
    }
    assert "AUC" not in result
    matlab = RankingSums.zero((1, 3), inverse_propensity=inverse, convention="matlab")
    numerator, denominator = 2 / log3 + 11, 5 + 3 / log3 + 1 + 11
    assert matlab.add_lists(lists, truth).finish()["PSnDCG@3"] == pytest.approx(numerator / denominator)


def test_unlabelled_documents_count_as_zero_unless_skipped():
    truth = np.array([[1, 0], [0, 0]])
    lists = np.array([[0], [1]])
    assert RankingSums.zero((1,)).add_lists(lists, truth).finish()["P@1"] == 0.5
    skipped = RankingSums.zero((1,), skip_unlabelled=True).add_lists(lists, truth).finish()
    assert skipped["P@1"] == 1.0
    assert skipped["n_documents"] == 2
    assert skipped["n_unlabelled"] == 1


def test_metrics_equal_brute_force(block):
    scores, truth = block
    inverse = inverse_propensity(truth.sum(axis=0), len(truth))
    depths = (1, 2, 5, 8)
    lists = top_lists(scores, 8)
    result = RankingSums.zero(depths, inverse_propensity=inverse).add_lists(lists, truth).finish()
    matlab = RankingSums.zero(depths, inverse_propensity=inverse, convention="matlab")
    other = matlab.add_lists(lists, truth).finish()
    for k in depths:
        gain = np.take_along_axis(truth, lists[:, :k].astype(int), axis=1)
        discount = 1 / np.log2(np.arange(2, k + 2))
        n_true = truth.sum(axis=1).astype(int)
        ideal = np.array([discount[: min(k, n)].sum() for n in n_true])
        with np.errstate(divide="ignore", invalid="ignore"):
            ndcg = np.nan_to_num(gain @ discount / ideal)
            recall = np.nan_to_num(gain.sum(axis=1) / n_true)
        assert result[f"P@{k}"] == pytest.approx(gain.sum() / k / 40)
        assert result[f"nDCG@{k}"] == pytest.approx(ndcg.mean())
        assert result[f"recall@{k}"] == pytest.approx(recall.mean())
        assert result[f"nDCG@{k}"] == pytest.approx(
            ndcg_score(truth, -np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1), k=k)
        )
        weighted = gain * inverse[lists[:, :k]]
        best = -np.sort(-(truth * inverse), axis=1)[:, :k]
        assert result[f"PSP@{k}"] == pytest.approx(weighted.sum() / best.sum())
        assert other[f"PSnDCG@{k}"] == pytest.approx((weighted @ discount).sum() / (best @ discount).sum())
        with np.errstate(divide="ignore", invalid="ignore"):
            per_document = np.nan_to_num(weighted @ discount / ideal).sum()
            per_document /= np.nan_to_num(best @ discount / ideal).sum()
        assert result[f"PSnDCG@{k}"] == pytest.approx(per_document)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_auc_equals_scikit_learn_per_document_with_ties(block, dtype):
    scores, truth = block
    expected = [roc_auc_score(t, s) for t, s in zip(truth, scores, strict=True) if 0 < t.sum() < 15]
    result = RankingSums.zero().add_scores(scores.astype(dtype), truth).finish()
    assert result["AUC"] == pytest.approx(np.mean(expected), abs=1e-14)
    assert result["n_auc"] == len(expected)
    assert result["n_documents"] == 0


def test_auc_equals_the_mid_rank_formula(block):
    scores, truth = block
    areas = []
    for t, s in zip(truth, scores, strict=True):
        n_true = int(t.sum())
        if 0 < n_true < 15:
            ranks = rankdata(s)[t > 0].sum()
            areas.append((ranks - n_true * (n_true + 1) / 2) / (n_true * (15 - n_true)))
    assert RankingSums.zero().add_scores(scores, truth).finish()["AUC"] == pytest.approx(np.mean(areas))


def test_labels_unknown_to_the_model_are_one_tie_below_all(block):
    scores, truth = block
    rng = np.random.default_rng(1)
    wide = np.column_stack([truth, rng.random((40, 4)) < 0.3])
    padded = np.column_stack([scores, np.full((40, 4), -1.0)])
    lists = top_lists(scores, 15)
    narrow = RankingSums.zero().add_scores(scores, wide).add_lists(lists, wide).finish()
    full = RankingSums.zero().add_scores(padded, wide).add_lists(lists, wide).finish()
    assert narrow == full
    assert narrow["n_auc"] > 0


def test_auc_of_full_lists_with_scores_is_exact(block):
    scores, truth = block
    lists = top_lists(scores, 15)
    listed = np.take_along_axis(scores, lists.astype(int), axis=1)
    result = RankingSums.zero().add_lists(lists, truth, scores=listed).add_scores(scores, truth).finish()
    assert result["AUC_listed"] == pytest.approx(result["AUC"], abs=1e-14)


def test_auc_of_short_lists_ties_the_tail(block):
    scores, truth = block
    lists = top_lists(scores, 5)
    listed = np.take_along_axis(scores, lists.astype(int), axis=1)
    tied = np.full(scores.shape, -1.0)
    np.put_along_axis(tied, lists.astype(int), listed, axis=1)
    result = RankingSums.zero().add_lists(lists, truth, scores=listed).add_scores(tied, truth).finish()
    assert result["AUC_listed"] == pytest.approx(result["AUC"], abs=1e-14)


def test_infinite_scores_rank_like_others():
    truth = np.array([[1, 0, 0]])
    assert RankingSums.zero().add_scores([[-np.inf, -np.inf, 1.0]], truth).finish()["AUC"] == 0.25


@pytest.mark.parametrize("cut", [0, 1, 17, 40])
def test_blocks_merge_to_the_whole(block, cut):
    scores, truth = block
    zero = RankingSums.zero((1, 5), inverse_propensity=np.linspace(1, 3, 15))
    lists = top_lists(scores, 5)

    def measured(rows):
        return zero.add_lists(lists[rows], truth[rows]).add_scores(scores[rows], truth[rows])

    whole = measured(slice(None)).finish()
    merged = (measured(slice(cut)) + measured(slice(cut, None))).finish()
    assert merged == pytest.approx(whole, rel=1e-14)
    assert zero.finish()["n_documents"] == 0
    with pytest.raises(TypeError):
        zero + 1


def test_truth_may_have_duplicates_and_explicit_zeros():
    clean = sparse.csr_array(np.array([[1, 0, 1, 0]]))
    messy = sparse.csr_array(
        (np.array([2.0, 1.0, -1.0, 0.0]), np.array([2, 0, 0, 3]), np.array([0, 4])), (1, 4)
    )
    lists = np.array([[2, 3, 1]])
    first, second = (RankingSums.zero((1, 3)).add_lists(lists, t).finish() for t in (clean, messy))
    assert first == second
    assert messy.nnz == 4


def test_nothing_measured_is_nan():
    result = RankingSums.zero((1,), inverse_propensity=[1.0]).finish()
    assert all(math.isnan(result[key]) for key in ("P@1", "nDCG@1", "PSP@1", "PSnDCG@1", "AUC_listed"))


def test_inverse_propensity_formula():
    C = (math.log(1000) - 1) * 2.5**0.55
    found = inverse_propensity([0, 4], 1000, n_labels=3)
    expected = [1 + C * 1.5**-0.55, 1 + C * 5.5**-0.55, 1 + C * 1.5**-0.55]
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    C = (math.log(1000) - 1) * 1.4**0.5
    np.testing.assert_allclose(inverse_propensity([2], 1000, A=0.5, B=0.4), [1 + C * 2.4**-0.5])


def test_metrics_agree_with_napkinxc(block):
    metrics = pytest.importorskip("napkinxc.metrics", reason="napkinxc (extra 'peers') is not installed")
    scores, truth = block
    lists = top_lists(scores, 5)
    inverse = inverse_propensity(truth.sum(axis=0), len(truth))
    result = RankingSums.zero((1, 3, 5), inverse_propensity=inverse).add_lists(lists, truth).finish()
    true_lists = [list(np.flatnonzero(row)) for row in truth]
    ranked = [list(map(int, row)) for row in lists]
    theirs = {
        "P": metrics.precision_at_k(true_lists, ranked, k=5),
        "nDCG": metrics.ndcg_at_k(true_lists, ranked, k=5),
        "PSP": metrics.psprecision_at_k(true_lists, ranked, inverse, k=5),
        "PSnDCG": metrics.psndcg_at_k(true_lists, ranked, inverse, k=5),
    }
    for name, values in theirs.items():
        for k in (1, 3, 5):
            assert result[f"{name}@{k}"] == pytest.approx(values[k - 1])


ONE = np.array([[1, 0]])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: RankingSums.zero((0,)), UsageError, "positive integers"),
        (
            lambda: RankingSums.zero(convention="page"),
            UsageError,
            "expected 'pyxclib' or 'matlab', got 'page'",
        ),
        (
            lambda: RankingSums.zero(inverse_propensity=[0.0]),
            UsageError,
            "positive finite .* from 0.0 to 0.0",
        ),
        (lambda: RankingSums.zero().add_lists([[0]], ONE), UsageError, "width 1 are too short for depth 5"),
        (lambda: RankingSums.zero((1,)).add_lists([[2]], ONE), UsageError, "labels from -1 to 1, got 2 to 2"),
        (lambda: RankingSums.zero((1,)).add_lists([[0], [1]], ONE), UsageError, "do not match a truth"),
        (lambda: RankingSums.zero((1,)).add_lists([[0.5]], ONE), UsageError, "whole numbers, got .* float64"),
        (lambda: RankingSums.zero((2,)).add_lists([[1, 1]], ONE), UsageError, "without repetition"),
        (lambda: RankingSums.zero((1,)).add_lists([[0]], ONE, scores=[0.0]), UsageError, "scores of shape"),
        (lambda: RankingSums.zero((1,)).add_lists([[0]], ONE, scores=[[np.nan]]), NumericalError, "NaN"),
        (lambda: RankingSums.zero().add_scores([[np.nan, 1.0]], ONE), NumericalError, "NaN"),
        (lambda: RankingSums.zero().add_scores([[1.0, 1.0, 1.0]], ONE), UsageError, "do not match a truth"),
        (lambda: RankingSums.zero((1,)) + RankingSums.zero((2,)), UsageError, "cannot be merged"),
        (
            lambda: RankingSums.zero(inverse_propensity=[1.0]) + RankingSums.zero(inverse_propensity=[2.0]),
            UsageError,
            "cannot be merged",
        ),
        (
            lambda: RankingSums.zero(inverse_propensity=[1.0]) + RankingSums.zero(),
            UsageError,
            "cannot be merged",
        ),
        (
            lambda: RankingSums.zero((1,), inverse_propensity=[1.0]).add_lists([[0]], ONE),
            UsageError,
            "truth has 2 labels, but inverse propensities are given for 1",
        ),
        (lambda: inverse_propensity([-1], 10), UsageError, "non-negative"),
        (lambda: inverse_propensity([1], 2), UsageError, "at least 3"),
        (lambda: inverse_propensity([3], 9, B=-1.5), UsageError, "B above 0, got 0.55 and -1.5"),
        (lambda: inverse_propensity([3], 9, A=-0.5), UsageError, "A from 0 and B above 0, got -0.5 and 1.5"),
        (lambda: inverse_propensity([3], 9, A=math.nan), UsageError, "A and B: expected finite numbers"),
        (lambda: inverse_propensity([0], 9, A=1e6), UsageError, "finite propensities, got 1000000.0 and 1.5"),
        (lambda: inverse_propensity([1, 1], 10, n_labels=1), UsageError, "n_labels=1 is less than"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
