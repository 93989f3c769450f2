"""Multi-label models: rankings of every head, states, bounds of parameters and of data, and Bibtex."""

import json

import numpy as np
import pytest
from helpers import bits, hold_out_one_fold, matrices, planted_corpus, random_corpus
from scipy.sparse import csr_array
from sklearn.exceptions import NotFittedError

from distmom.corpus import MemoryCorpus, ingest
from distmom.errors import NumericalError, UsageError
from distmom.evaluate.evaluation import evaluate_corpus
from distmom.models import MultiLabelMoM
from distmom.models.multilabel import program as fitting
from distmom.models.multilabel.effort import EFFORTS
from distmom.models.multilabel.folds import held_out
from distmom.models.multilabel.variants import HEADS
from distmom.ranking import inverse_propensity


def one_of_top(model, X, Y, k=1):
    labels, _ = model.predict_top(X, k)
    return np.take_along_axis(Y.toarray(), labels, axis=1).mean()


@pytest.mark.parametrize("head", HEADS)
def test_every_head_ranks_far_better_than_label_frequency(head, planted, fitted):
    _, Y, X_new, Y_new = planted
    n_labels = Y.shape[1]
    scores = fitted[head].decision_function(X_new)
    frequency = np.broadcast_to(np.asarray(Y.sum(axis=0)).ravel(), scores.shape)
    truth = Y_new.toarray() > 0

    def area(values):
        found = []
        for row, true in zip(values, truth, strict=True):
            if 0 < true.sum() < n_labels:
                found.append(
                    ((row[true][:, None] > row[~true]) + 0.5 * (row[true][:, None] == row[~true])).mean()
                )
        return np.mean(found)

    assert area(scores) > area(frequency) + 0.15
    by_frequency = truth[:, frequency[0].argmax()].mean()
    assert one_of_top(fitted[head], X_new, Y_new) > by_frequency + 0.15


def test_top_labels_are_the_best_scores_in_order(planted, fitted):
    X_new = planted[2]
    labels, scores = fitted["auto"].predict_top(X_new, 4)
    dense = fitted["auto"].decision_function(X_new)
    np.testing.assert_array_equal(scores, -np.sort(-dense, axis=1)[:, :4])
    np.testing.assert_array_equal(np.take_along_axis(dense, labels, axis=1), scores)
    assert fitted["auto"].predict_top(X_new, 1000)[0].shape == dense.shape
    assert fitted["auto"].predict_top(X_new[:0], 3)[0].shape == (0, 3)


def test_state_probabilities_sum_to_one(planted, fitted):
    p = fitted["posterior"].state_posteriors(planted[2])
    assert p.shape == (planted[2].shape[0], 6)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-6)
    assert (p >= 0).all()


def test_states_are_sorted_and_named(fitted):
    model = fitted["auto"]
    topics = model.topics(4, states=True)
    weights = [topic["weight"] for topic in topics]
    assert weights == sorted(weights, reverse=True)
    assert sorted(topic["state"] for topic in topics) == list(range(6))
    for topic in topics:
        assert [name for name, _ in topic["words"]] == [
            model.vocabulary_[i] for i in np.argsort(-model.components_[topic["state"]], kind="stable")[:4]
        ]
        assert len(topic["labels"]) == 4
    np.testing.assert_allclose(model.components_.sum(axis=1), 1.0, rtol=2e-6)


def test_propensity_raises_rare_labels(planted):
    X, Y, X_new, _ = planted
    plain = MultiLabelMoM(6, head="ridge").fit(X, Y)
    raised = MultiLabelMoM(6, head="ridge", propensity=1.0).fit(X, Y)
    frequency = np.asarray(Y.sum(axis=0)).ravel()

    def mean_frequency(model):
        return frequency[model.predict_top(X_new, 3)[0]].mean()

    assert mean_frequency(raised) < mean_frequency(plain)
    # As the metrics define propensity: 1 + (ln n - 1) 2.5^0.55 (N + 1.5)^-0.55.
    inverse = 1 + (np.log(2500) - 1) * 2.5**0.55 * (frequency + 1.5) ** -0.55
    assert np.ptp(inverse) > 0.1
    scores = np.maximum(plain.decision_function(X_new), 1e-6)
    np.testing.assert_allclose(raised.decision_function(X_new), scores * inverse, rtol=1e-5)


def test_propensity_ranks_negative_margins_as_probabilities(planted):
    X, Y, X_new, _ = planted
    plain = MultiLabelMoM(6, head="svm").fit(X, Y)
    margins = plain.decision_function(X_new).astype(np.float64)
    assert (margins.max(axis=1) < 0).any()
    slight = MultiLabelMoM(6, head="svm", propensity=1e-6).fit(X, Y)
    np.testing.assert_array_equal(slight.predict_top(X_new, 1)[0], plain.predict_top(X_new, 1)[0])
    raised = MultiLabelMoM(6, head="svm", propensity=1.0).fit(X, Y)
    inverse = inverse_propensity(np.asarray(Y.sum(axis=0)).ravel(), 2500)
    expected = inverse / (1.0 + np.exp(-2.0 * margins))
    np.testing.assert_allclose(raised.decision_function(X_new), expected, rtol=1e-5)
    alone = raised.scorer_.only("svm").top(raised._block(X_new), 1)[1][:, 0]
    np.testing.assert_allclose(alone, expected.max(axis=1), rtol=1e-5)


def test_auto_says_what_it_chose(fitted):
    chosen = fitted["auto"].selection_
    assert set(chosen) == {
        "weights", "objective", "held_out", "n_held_out", "repeated", "precision_error", "threshold",
        "reliability",
    }  # fmt: skip
    assert chosen["weights"]
    assert set(chosen["weights"]) <= set(chosen["held_out"])
    assert all(weight > 0 for weight in chosen["weights"].values())
    for scores in chosen["held_out"].values():
        assert set(scores) == {"P@1", "P@3", "P@5", "nDCG@5", "AUC"}
    blend = np.mean(list(chosen["held_out"]["auto"].values()))
    assert blend == pytest.approx(chosen["objective"], abs=1e-6)
    assert all(np.mean(list(s.values())) <= blend + 1e-6 for s in chosen["held_out"].values())
    # Two fifths of 2,500 documents.
    assert 900 < chosen["n_held_out"] < 1100
    assert fitted["ridge"].selection_ is None
    json.dumps(chosen)


def test_distinct_moments_find_the_states():
    population, _, corpus = planted_corpus(20_000, d=100, k=4)
    model = MultiLabelMoM(4, head="posterior", moments="distinct").fit_corpus(corpus)
    true = population.O.T
    distance = np.abs(model.components_[:, None] - true[None]).sum(axis=2)
    assert sorted(distance.argmin(axis=0)) == [0, 1, 2, 3]
    assert (distance.min(axis=0) < 0.5).all()
    np.testing.assert_allclose(model.components_.sum(axis=1), 1.0, rtol=2e-6)


def test_the_largest_seed_is_one_below_the_bound():
    MultiLabelMoM(random_state=2**64 - 1).check_parameters()
    with pytest.raises(UsageError, match="random_state: expected a number below"):
        MultiLabelMoM(random_state=2**64).check_parameters()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"head": "best"}, "head: expected one of auto, moment, .* got 'best'"),
        ({"moments": "third"}, "moments: expected one of"),
        ({"weighting": "none"}, "weighting: expected one of"),
        ({"decomposition": "svd"}, "decomposition: expected one of joint"),
        ({"third_moment": "half"}, "third_moment: expected one of auto, full, slices, got 'half'"),
        ({"third_moment": "slices", "decomposition": "power"}, "requires decomposition='joint'"),
        ({"precision": "half"}, "precision: expected one of single, double"),
        ({"decompose_on": "moon"}, "decompose_on: expected one of"),
        ({"smoothing": 1.0}, "smoothing: expected a number below 1, got 1.0"),
        ({"random_state": -1}, "random_state: expected at least 0, got -1"),
        ({"random_state": 1.5}, "random_state: expected a whole number, a RandomState or None, got 1.5"),
        (
            {"random_state": np.random.default_rng(0)},
            "random_state: expected a whole number, a RandomState or None, got Generator",
        ),
        ({"random_state": True}, "random_state: expected a whole number, a RandomState or None, got True"),
        ({"n_components": True}, "n_components: expected a whole number, got True"),
        ({"length_scale": True}, "length_scale: expected a number, got True"),
        ({"length_scale": 0.0}, "length_scale: expected at least 1e-12, got 0.0"),
        ({"length_scale": -100.0}, "length_scale: expected at least 1e-12, got -100.0"),
        ({"keep_sums": "no"}, "keep_sums: expected True or False, got 'no'"),
        ({"keep_sums": 1}, "keep_sums: expected True or False, got 1"),
        ({"force": None}, "force: expected True or False, got None"),
        ({"propensity": float("nan")}, "propensity: expected a finite number, got nan"),
        ({"n_components": 0}, "n_components: expected at least 1, got 0"),
        ({"n_residual_passes": -1}, "n_residual_passes: expected at least 0, got -1"),
        ({"n_components": 41}, "n_components=41 is more than the 40 words"),
        ({"n_components": 20, "head": "posterior"}, r"at least n_components\^2 = 400 documents, .* has 300"),
    ],
)
def test_parameters_that_cannot_be_used_are_named(parameters, message):
    with pytest.raises(UsageError, match=message):
        MultiLabelMoM(**{"n_components": 3, **parameters}).fit_corpus(random_corpus())


def test_labels_are_needed():
    X = np.ones((30, 5))
    for y in (None, np.zeros((30, 4)), np.zeros((30, 0)), np.array(3), 3.5):
        with pytest.raises(UsageError, match="labels"):
            MultiLabelMoM(2).fit(X, y)


@pytest.mark.parametrize("head", ["ridge", "auto"])
def test_words_are_needed(head):
    with pytest.raises(NumericalError, match="no document that heads are fitted to has a word"):
        MultiLabelMoM(2, head=head).fit(np.zeros((50, 5)), ["a", "b"] * 25)


@pytest.mark.parametrize("k", [-1, 2.5, None, "a", True])
def test_the_number_of_best_labels_is_a_whole_number(k):
    model = MultiLabelMoM(3, head="linear").fit_corpus(random_corpus())
    X = np.ones((2, 40), int)
    expected = "at least 0, got -1" if k == -1 else f"a whole number, got {k!r}"
    with pytest.raises(UsageError, match=f"k: expected {expected}"):
        model.predict_top(X, k)
    assert model.predict_top(X, np.int64(2))[0].shape == (2, 2)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("head", HEADS)
def test_a_handful_of_documents_fits_or_says_why_not(n, head):
    corpus = random_corpus(n, d=8, n_labels=3, density=0.6, seed=n)
    model, refused = MultiLabelMoM(1, head=head), None
    try:
        model.fit_corpus(corpus)
    except (UsageError, NumericalError) as error:
        refused = str(error)
    if refused is None:
        assert np.isfinite(model.decision_function(matrices(corpus)[0])).all()
    else:
        assert "\n" not in refused


def test_held_out_documents_without_labels_are_one_clear_error():
    X, Y = matrices(random_corpus(200))
    chosen = held_out(MemoryCorpus(X, Y), 0, EFFORTS["low"]).mask(0, 200)
    Y = Y.toarray()
    Y[chosen] = 0
    with pytest.raises(UsageError, match="no held-out document has a label: the corpus is too small"):
        MultiLabelMoM(3, effort="low").fit(X, Y)
    # With several folds, documents with labels are held out as well.
    MultiLabelMoM(3).fit(X, Y)


def test_three_documents_are_refused_before_any_pass():
    X, Y = matrices(random_corpus(3))
    events = []
    with pytest.raises(UsageError, match="head='auto': expected enough documents to hold some out, got 3"):
        MultiLabelMoM(2).fit_corpus(MemoryCorpus(X, Y), observer=events.append)
    assert events == []


@pytest.mark.parametrize(("share", "n_label_passes"), [(0.01, 2), (0.5, 1)])
def test_states_stay_where_few_documents_were_held_out(share, n_label_passes, planted, monkeypatch):
    hold_out_one_fold(monkeypatch)
    monkeypatch.setattr(fitting, "REFIT_SHARE", share)
    model = MultiLabelMoM(6, head="auto").fit(planted[0], planted[1])
    names = [timing["name"] for timing in model.timings_]
    assert names.count("labels") == n_label_passes
    assert names.count("cross") == 2


@pytest.mark.parametrize("n_residual_passes", [0, 1, 3, 6])
def test_residual_passes_do_not_overshoot_where_words_come_together(n_residual_passes):
    """Five words a label, all of them in most documents: every word alone explains its label."""
    rng = np.random.default_rng(0)
    owner = rng.integers(0, 3, 400)
    words = 5 * owner[:, None] + rng.integers(0, 5, (400, 8))
    X, Y = np.zeros((400, 15), int), np.zeros((400, 3), int)
    np.add.at(X, (np.arange(400)[:, None], words), 1)
    Y[np.arange(400), owner] = 1
    model = MultiLabelMoM(3, head="linear", n_residual_passes=n_residual_passes).fit(X[:300], Y[:300])
    scores = model.decision_function(X[300:])
    assert (scores.argmax(axis=1) == owner[300:]).all()
    if n_residual_passes:
        assert scores[np.arange(100), owner[300:]].mean() == pytest.approx(1.0, abs=0.02)


def test_other_features_and_an_unfitted_model_are_refused(planted, fitted):
    with pytest.raises(UsageError, match="X has 5 features, but MultiLabelMoM is expecting 300 features"):
        fitted["ridge"].predict_top(np.ones((2, 5)))
    for method in ("decision_function", "predict", "predict_top", "state_posteriors"):
        with pytest.raises(NotFittedError):
            getattr(MultiLabelMoM(), method)(planted[2])


@pytest.fixture(scope="module")
def bibtex(real_data, tmp_path_factory):
    folder, out = real_data("bibtex"), tmp_path_factory.mktemp("bibtex")
    options = {
        "format": "xmc",
        "vocabulary": folder / "bibtex.features.txt.xz",
        "labels": folder / "bibtex.labels.txt.xz",
        "shard_documents": 1000,
    }
    train = ingest(folder / "bibtex-train.xmc.txt.xz", out / "train", **options)
    return train, ingest(folder / "bibtex-test.xmc.txt.xz", out / "test", like=train, **options)


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize(
    ("parameters", "bounds"),
    [
        ({"n_components": 50, "head": "moment"}, {"P@1": (0.36, 0.41), "AUC": (0.82, 0.86)}),
        ({"n_components": 50, "head": "posterior"}, {"AUC": (0.875, 1)}),
        ({"n_components": 200, "head": "ridge"}, {"P@1": (0.63, 1)}),
        ({"n_components": 200, "head": "auto"}, {"P@1": (0.66, 1), "P@5": (0.30, 1), "AUC": (0.95, 1)}),
    ],
    ids=["moment", "posterior", "ridge", "auto"],
)
def test_bibtex_reaches_the_measured_metrics(bibtex, parameters, bounds):
    train, test = bibtex
    metrics = evaluate_corpus(MultiLabelMoM(**parameters).fit_corpus(train), test)
    for name, (low, high) in bounds.items():
        assert low <= metrics[name] <= high, (name, metrics[name])


def test_weights_and_counts_in_any_container_give_the_same_model(planted):
    X, Y, X_new, _ = planted
    sparse = MultiLabelMoM(6, head="ridge").fit(X, Y)
    dense = MultiLabelMoM(6, head="ridge").fit(X.toarray(), csr_array(Y).toarray() > 0)
    assert bits(sparse, X_new) == bits(dense, X_new.toarray())


@pytest.mark.parametrize("head", HEADS)
def test_equal_documents_have_labels_by_frequency(head):
    """The sketch has no variance, so that least squares has no information."""
    X, Y = np.tile([[1, 2, 0, 3]], (400, 1)), np.tile([[1, 0, 1]], (400, 1))
    Y[::2, 1] = 1
    Y[::4, 2] = 0
    model = MultiLabelMoM(1 if head in ("moment", "posterior") else 2, head=head).fit(X, Y)
    scores = model.decision_function(X)
    assert np.isfinite(scores).all()
    assert (np.argsort(-scores, axis=1) == [0, 2, 1]).all()
    if head == "ridge":
        np.testing.assert_allclose(scores, np.tile(Y.mean(axis=0), (400, 1)), rtol=1e-6)
