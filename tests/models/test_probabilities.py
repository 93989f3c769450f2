"""Probabilities of labels, the labels that a threshold assigns, and the threshold of the best F1."""

import numpy as np
import pytest
from helpers import planted_matrices, scored_of
from scipy.sparse import csr_array, vstack
from sklearn.metrics import f1_score

from distmom.errors import NumericalError, UsageError
from distmom.models import MultiLabelMoM
from distmom.models.multilabel.blend.choose import choose_blend
from distmom.models.multilabel.blend.probabilities import N_BINS, Reliability, best_threshold
from distmom.models.multilabel.blend.stack import probability
from distmom.models.multilabel.heads.candidates import ALL_LABELS


@pytest.fixture(scope="module")
def planted():
    X, Y = planted_matrices()
    X = X.tolil()
    X[1003] = 0
    return csr_array(X), Y


@pytest.fixture(scope="module")
def model(planted):
    X, Y = planted
    return MultiLabelMoM(4).fit(X[:1000], Y[:1000])


def test_probabilities_are_those_of_the_scores(model, planted):
    X = planted[0][1000:]
    p = model.predict_proba(X)
    assert (p.shape, p.dtype) == ((500, 12), np.float32)
    assert ((p >= 0) & (p <= 1)).all()
    scores = model.decision_function(X)
    np.testing.assert_array_equal(p, probability(scores))
    assert model.predict_proba(X[:0]).shape == (0, 12)


def test_probabilities_are_shares_of_new_documents(model, planted):
    p, y = model.predict_proba(planted[0][1000:]), planted[1][1000:].toarray()
    error = np.sqrt((p * (1 - p)).sum())
    assert abs(p.sum() - y.sum()) < 5 * error


def test_every_label_of_sufficient_probability_is_predicted(model, planted):
    X = planted[0][1000:]
    p = model.predict_proba(X)
    for given in (None, "best", 0.3, 0.9, 1.0):
        threshold = model.threshold_ if given in (None, "best") else given
        expected = p >= np.float32(threshold)
        expected[3] = False
        found = model.predict(X, given)
        np.testing.assert_array_equal(found.toarray(), expected)
    assert model.predict(X, 0.0).sum() == 499 * 12


def test_names_are_ordered_by_score(planted):
    X, Y = planted
    lists = [[f"L{j}" for j in row.indices] for row in Y[:1000]]
    model = MultiLabelMoM(4).fit(X[:1000], lists)
    p = model.predict_proba(X[1000:])
    found = model.predict(X[1000:], 0.2)
    column = {name: j for j, name in enumerate(model.label_names_)}
    assert found[3] == []
    assert max(map(len, found)) > 1
    for names, row in zip(found, p, strict=True):
        values = [row[column[name]] for name in names]
        assert values == sorted(values, reverse=True)


def test_models_without_probabilities_say_which_head_has_them(planted):
    X, Y = planted
    for options in ({"head": "ridge"}, {"propensity": 0.5}):
        model = MultiLabelMoM(4, **options).fit(X[:1000], Y[:1000])
        with pytest.raises(
            UsageError, match=r"predict_proba: this model has no .* need head='auto' and prop"
        ):
            model.predict_proba(X[:2])
        assert not hasattr(model, "predict_proba")
        assert not hasattr(model, "predict_log_proba")
        assert model.threshold_ == (0.5 if "head" in options else model.selection_["threshold"])
        with pytest.raises(UsageError, match="threshold: this model has no probabilities"):
            model.predict(X[:2], 0.5)
        assert model.predict(X[1000:]).sum(axis=1).tolist() == [i != 3 for i in range(500)]


def test_one_name_per_document_stays_the_best_label(planted):
    X, Y = planted
    names = [f"L{row.indices[0]}" if row.nnz else "L0" for row in Y[:1000]]
    model = MultiLabelMoM(4).fit(X[:1000], names)
    best = model.predict_proba(X[1000:]).argmax(axis=1)
    assert model.predict(X[1000:]).tolist() == [model.label_names_[j] for j in best]
    logs = model.predict_log_proba(X[1000:], labels=["L1", "L0"])
    np.testing.assert_allclose(np.exp(logs), model.predict_proba(X[1000:], ["L1", "L0"]), rtol=1e-5)
    for threshold in (0.5, "best"):
        with pytest.raises(UsageError, match=f"threshold: expected none for a model .* got {threshold!r}"):
            model.predict(X[:2], threshold)


def test_scores_that_are_no_numbers_are_refused(model, planted, monkeypatch):
    scorer = model.scorer_
    monkeypatch.setattr(type(scorer), "scores", lambda self, query: np.full((2, 12), np.nan, np.float32))
    with pytest.raises(NumericalError, match="scores of labels are NaN"):
        model.predict(planted[0][:2])


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan"), "most", [0.5], True])
def test_thresholds_are_probabilities(model, planted, threshold):
    with pytest.raises(UsageError, match="threshold: expected a probability from 0 to 1"):
        model.predict(planted[0][:2], threshold)


# The threshold


def test_the_threshold_has_the_best_f1_of_all():
    rng = np.random.default_rng(0)
    for _ in range(5):
        # Few distinct values, so that many are equal.
        p = (rng.integers(1, 40, (60, 5)) / 40).astype(np.float32)
        y = (rng.random(p.shape) < p**2).astype(np.uint8)
        found = best_threshold(p.ravel(), y.ravel(), int(y.sum()))
        scores = {t: f1_score(y, p >= t, average="micro", zero_division=0.0) for t in np.unique(p)}
        least = max(t for t, f1 in scores.items() if f1 > max(scores.values()) - 1e-12)
        assert ((p >= np.float32(found)) == (p >= least)).all()
        assert found == pytest.approx((least + p[p < least].max()) / 2)


def test_true_labels_in_no_pair_lower_the_threshold():
    p = np.array([0.9, 0.5, 0.4, 0.3, 0.2], np.float32)
    y = np.array([1, 0, 1, 0, 1], np.uint8)
    assert best_threshold(p, y, 1) == pytest.approx(0.7)
    assert best_threshold(p, y, 50) == pytest.approx(0.1)


def test_a_threshold_is_halfway_between_what_is_predicted_and_what_is_not():
    y = np.array([1, 1, 0], np.uint8)
    assert best_threshold(np.array([0.98, 0.96, 0.004], np.float32), y, 2) == pytest.approx(0.482)
    close = np.array([0.9, np.nextafter(np.float32(0.5), np.float32(1.0)), 0.5], np.float32)
    assert (close >= np.float32(best_threshold(close, y, 2))).tolist() == [True, True, False]


def test_without_a_probable_true_label_the_threshold_is_one_half():
    p = np.array([0.9, 0.001], np.float32)
    assert best_threshold(p, np.array([0, 1], np.uint8), 1) == 0.5
    assert best_threshold(p[:0], np.zeros(0, np.uint8), 0) == 0.5


@pytest.mark.parametrize("n_labels", [12, ALL_LABELS + 12])
def test_the_blend_keeps_the_threshold_of_documents_it_was_not_fitted_to(n_labels):
    rng = np.random.default_rng(1)
    n, width = 600, 12
    z = 2.0 * rng.standard_normal((n, width)) - 2.0
    y = (rng.random(z.shape) < 1 / (1 + np.exp(-z))).astype(np.uint8)
    scores = np.stack([np.exp(z / 2), np.exp(z / 3) * rng.random(z.shape)], axis=1).astype(np.float32)
    labels = np.sort(rng.permuted(np.tile(np.arange(n_labels), (n, 1)), axis=1)[:, :width], axis=1)
    if n_labels > ALL_LABELS:
        labels[:, 3], y[:, 3] = -1, 0
    rows = {
        "labels": labels.astype(np.int32), "scores": scores, "best": scores.max(axis=2), "truth": y,
        "n_true": y.sum(axis=1, dtype=np.int32),
    }  # fmt: skip
    record = choose_blend(scored_of(["a", "b"], rows)).to_json()
    known = labels >= 0
    sums = Reliability.from_json(record["reliability"])
    assert sums.n_pairs.sum() == known.sum()
    assert sums.truths.sum() == y.sum()
    assert sums.expected_calibration_error < 0.03
    # The log-odds are known, so the threshold is near that of the true probabilities.
    true_p = (1 / (1 + np.exp(-z))).astype(np.float32)
    best = best_threshold(true_p[known], y[known], int(y.sum()))
    reached, possible = (
        f1_score(y[known], true_p[known] >= t, average="micro") for t in (record["threshold"], best)
    )
    assert reached > possible - 0.02


# Reliability


def test_bins_are_sums_that_can_be_added():
    rng = np.random.default_rng(2)
    p = np.append(rng.random(999), 1.0).astype(np.float32).reshape(100, 10)
    y = (rng.random(p.shape) < 0.5 * p).astype(np.uint8)
    whole = Reliability.of(p, y)
    for b in range(N_BINS):
        own = (p >= b / 10) & ((p < (b + 1) / 10) | (b == 9))
        assert whole.n_pairs[b] == own.sum()
        assert whole.truths[b] == y[own].sum()
        assert whole.probabilities[b] == pytest.approx(p[own].sum(), rel=1e-5)
    parts = [Reliability.of(p[:30], y[:30]), Reliability.of(p[30:], y[30:])]
    np.testing.assert_array_equal(sum(x.n_pairs for x in parts), whole.n_pairs)
    expected = sum(abs(whole.probabilities[b] - whole.truths[b]) for b in range(N_BINS)) / 1000
    assert whole.expected_calibration_error == pytest.approx(expected)
    assert Reliability.from_json(whole.to_json()).to_json() == whole.to_json()
    assert np.isnan(Reliability.of(p[:0], y[:0]).expected_calibration_error)


@pytest.mark.parametrize("damage", [[1.0] * 9, [float("nan")] * 10, None, ["a"] * 10])
def test_damaged_bins_are_refused(damage):
    record = Reliability.of(np.array([0.5], np.float32), np.array([1])).to_json()
    with pytest.raises(ValueError, match="expected 10 numbers of pairs"):
        Reliability.from_json({**record, "truths": damage})


def test_a_saved_model_keeps_its_threshold(model, planted, tmp_path):
    model.save(tmp_path / "m")
    loaded = MultiLabelMoM.load(tmp_path / "m")
    assert loaded.threshold_ == model.threshold_ == model.selection_["threshold"]
    X = vstack([planted[0][:5], planted[0][1003:1004]])
    assert (loaded.predict(X) != model.predict(X)).nnz == 0


@pytest.mark.parametrize("seed", [2, 4])
def test_documents_that_are_all_equal_have_labels_with_the_probability_of_their_frequency(seed):
    rng = np.random.default_rng(seed)
    words, labels = np.tile([1, 1, 0, 1, 0], (200, 1)), (rng.random((200, 6)) < 0.3).astype(int)
    model = MultiLabelMoM(2).fit(words, labels)
    np.testing.assert_allclose(model.predict_proba(words[:1])[0], labels.mean(axis=0), atol=0.15)
