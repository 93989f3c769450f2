"""Blends chosen for one metric: its values, what is chosen for it, and how labels are then ranked."""

from dataclasses import replace

import numpy as np
import pytest
from crafted import edit_record
from helpers import planted_corpus, scored_of
from scipy.sparse import csr_array

from distmom.corpus import MemoryCorpus
from distmom.errors import StoreError, UsageError
from distmom.evaluate.evaluation import evaluate_corpus
from distmom.evaluate.metrics import RankingSums
from distmom.models import MultiLabelMoM, load_model
from distmom.models.multilabel.blend.choice import ChosenStack
from distmom.models.multilabel.blend.choose import choose_blend
from distmom.models.multilabel.blend.class_stack import ClassStack
from distmom.models.multilabel.blend.objective import EXPONENTS, MEAN, OBJECTIVES, Objective, ideal_gains
from distmom.models.multilabel.blend.stack import Stack, probability
from distmom.ranking import inverse_propensity

METRICS = [each for each in OBJECTIVES if each != MEAN]
N, WIDTH = 1500, 30


def rows_of(noises, n=N, seed=0):
    """Scores of heads with their own noise, for labels of which some are rare; also their inverse propensities."""
    rng = np.random.default_rng(seed)
    frequency = 1.0 / np.arange(1, WIDTH + 1) ** 1.5
    truth = (rng.random((n, WIDTH)) < frequency).astype(np.uint8)
    truth[:5] = 0
    prior = np.log(frequency)
    scores = np.stack([prior + 3 * truth + x * rng.standard_normal((n, WIDTH)) for x in noises], axis=1)
    scores = np.exp(scores / 3)
    inverse = inverse_propensity(truth.sum(axis=0), n)
    return {
        "labels": np.tile(np.arange(WIDTH, dtype=np.int32), (n, 1)),
        "scores": scores.astype(np.float32),
        "best": scores.max(axis=2).astype(np.float32),
        "truth": truth,
        "n_true": truth.sum(axis=1).astype(np.int32),
        "ideal": ideal_gains(csr_array(truth), inverse),
    }, inverse


def without_a_candidate(rows):
    """The blend of such rows is a weighted sum."""
    rows["labels"][7, 0], rows["truth"][7, 0] = -1, 0
    return rows


def objective_of(rows, inverse, metric):
    return Objective(rows["labels"], rows["truth"], rows["n_true"], metric, inverse, rows["ideal"])


@pytest.mark.parametrize("metric", METRICS)
def test_a_value_is_that_of_an_evaluation_of_the_same_rows(metric):
    rows, inverse = rows_of([2.0])
    # Ties, and true labels that are no candidates and so are missed.
    scores = np.round(rows["scores"][:, 0], 1)
    truth = rows["truth"].copy()
    rows["labels"][:, 4::5], rows["truth"][:, 4::5] = -1, 0
    lists = np.argsort(np.where(rows["labels"] < 0, np.inf, -scores), axis=1, kind="stable")[:, :5]
    sums = RankingSums.zero(inverse_propensity=inverse).add_lists(lists, truth)
    objective = objective_of(rows, inverse, metric)
    assert objective.value(scores) == pytest.approx(sums.finish()[metric], rel=1e-11)


def test_auc_is_not_reported_where_no_document_has_both_a_label_and_another_one():
    rows, inverse = rows_of([2.0], n=50)
    totals = rows["scores"][:, 0]
    assert 0.5 < objective_of(rows, inverse, MEAN).named(totals)["AUC"] < 1.0
    for value in (0, 1):
        rows["truth"][:] = value
        rows["n_true"][:] = value * WIDTH
        found = objective_of(rows, inverse, MEAN).named(totals)
        assert list(found) == ["P@1", "P@3", "P@5", "nDCG@5"]


@pytest.mark.parametrize("metric", METRICS)
def test_the_standard_error_is_that_of_resampled_documents(metric):
    rows, inverse = rows_of([2.0])
    objective, scores = objective_of(rows, inverse, metric), rows["scores"][:, 0]
    rng = np.random.default_rng(1)
    drawn = [rng.integers(0, N, N) for _ in range(300)]
    values = [objective.of(documents).value(scores[documents]) for documents in drawn]
    assert objective.error(scores) == pytest.approx(np.std(values), rel=0.15)


def test_a_ranking_is_preferred_that_is_better_by_more_than_a_standard_error():
    rows, inverse = rows_of([2.0, 2.02, 3.0])
    good, like, bad = np.ascontiguousarray(rows["scores"].swapaxes(0, 1))
    for metric in METRICS:
        objective = objective_of(rows, inverse, metric)
        assert objective.clearly_prefers(good, bad)
        assert not objective.clearly_prefers(bad, good)
        assert not objective.clearly_prefers(good, good)
        of_document = [
            objective.of(np.array([i])).value(good[[i]]) - objective.of(np.array([i])).value(like[[i]])
            for i in range(5, N)
        ]
        if metric.startswith("P@"):
            gain, error = np.sum(of_document) / N, np.std([*of_document, *np.zeros(5)]) / np.sqrt(N)
            assert objective.clearly_prefers(good, like) == (gain > error)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("metric", OBJECTIVES)
def test_a_blend_is_at_least_its_best_part(metric, stacked):
    rows, inverse = rows_of([2.0, 2.5, 4.0, 9.0], n=300)
    if not stacked:
        without_a_candidate(rows)
    names = ["a", "b", "c", "noise"]
    choice = choose_blend(scored_of(names, rows), metric, inverse)
    assert isinstance(choice.blend, ChosenStack) == stacked

    def value(name):
        return np.mean(list(choice.scores[name].values())) if metric == MEAN else choice.scores[name][metric]

    # A single head is taken where it is better by more than a standard error; of the mean of metrics, if better.
    assert value("auto") >= max(value(name) for name in names) - max(choice.error, 1e-12)
    if metric != MEAN:
        assert choice.objective == pytest.approx(choice.scores["auto"][metric], abs=1e-12)
        assert choice.to_json()["expected"]["error"] == choice.error > 0
    else:
        assert "expected" not in choice.to_json()


def test_a_single_head_is_taken_where_a_sum_is_worse_on_other_documents():
    """Of few documents and many heads of noise, a sum is fitted to their noise."""
    rows, inverse = rows_of([3.0] + [30.0] * 12, n=40, seed=3)
    without_a_candidate(rows)
    names = ["a", *(f"noise{i}" for i in range(12))]
    choice = choose_blend(scored_of(names, rows), "P@1", inverse)
    assert set(choice.weights) == {"a"}
    assert choice.scores["auto"] == choice.scores["a"]
    assert choice.objective == pytest.approx(choice.scores["a"]["P@1"])


def test_the_exponent_is_that_of_the_best_value():
    rows, inverse = rows_of([2.0, 2.5])
    names = ["a", "b"]
    choice = choose_blend(scored_of(names, rows), "PSP@1", inverse)
    log_odds = choice.blend.stack.log_odds(rows["scores"].swapaxes(0, 1))
    objective = objective_of(rows, inverse, "PSP@1")
    gains = {}
    for exponent in EXPONENTS:
        first = (probability(log_odds) * inverse.astype(np.float32) ** exponent).argmax(axis=1)
        hits = rows["truth"][np.arange(N), first] * inverse[first]
        gains[exponent] = hits.sum() / rows["ideal"][:, 0].sum()
        ranking = objective.ranking(log_odds, exponent)
        assert objective.value(ranking) == pytest.approx(gains[exponent], abs=2e-3)
    assert objective.best_exponent(log_odds) == max(gains, key=gains.get)
    assert choice.exponent > 0.0
    assert gains[choice.exponent] > gains[0.0] + 0.01


@pytest.fixture(scope="module", params=[40, pytest.param(1010, marks=pytest.mark.slow)])
def split(request):
    """Training and test documents with labels of very unequal frequency, also so many that a sum is chosen."""
    rng, n = np.random.default_rng(0), 2400
    share = 0.7 / np.arange(1, 41) ** 1.2
    Y = rng.random((n, 40)) < share
    # Every label shares its words with a label of another frequency.
    words = (np.arange(40)[:, None] // 2 * 5 + np.array([[0, 1, 2], [2, 3, 4]] * 20)) % 100
    X = (rng.random((n, 100)) < 0.03).astype(int)
    for label in range(40):
        X[:, words[label]] += Y[:, [label]] & (rng.random((n, 3)) < 0.5)
    Y = np.hstack([Y, np.zeros((n, request.param - 40))]).astype(int)
    return MemoryCorpus(X[:1200], Y[:1200], shard_documents=400), MemoryCorpus(X[1200:], Y[1200:])


def test_a_model_for_psp_ranks_by_weighted_probability_and_beats_the_default(split, tmp_path):
    train, test = split
    default = MultiLabelMoM(5, n_topics=0).fit_corpus(train)
    model = MultiLabelMoM(5, n_topics=0, objective="PSP@1").fit_corpus(train)
    found = [evaluate_corpus(each, test)["PSP@1"] for each in (default, model)]
    assert found[1] >= found[0] + 0.02
    expected, exponent = model.selection_["expected"], model.selection_["exponent"]
    assert exponent > 0.0
    assert abs(found[1] - expected["value"]) < 4 * expected["error"]
    assert (expected["metric"], expected["value"]) == ("PSP@1", model.selection_["held_out"]["auto"]["PSP@1"])
    assert "expected" not in default.selection_

    scorer, block = model.scorer_, test.read_shard(0)
    assert isinstance(scorer.blend.stack, ClassStack if train.n_labels > 1000 else Stack)
    plain = replace(scorer, label_factor=None)
    p = plain.probabilities(plain.scores(plain.query(block)))
    weight = inverse_propensity(train.label_frequency, train.n_documents) ** exponent
    np.testing.assert_allclose(model.decision_function(block.words), p * weight, rtol=1e-6)
    assert not hasattr(model, "predict_proba")

    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    np.testing.assert_array_equal(again.decision_function(block.words), model.decision_function(block.words))
    edit_record(tmp_path / "model", lambda record: record["state"]["selection"].update(exponent="many"))
    with pytest.raises(StoreError, match=r"model\.json"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"objective": "P@2"}, "objective: expected one of mean, P@1"),
        ({"objective": "P@1", "head": "linear"}, "objective='P@1': expected head='auto'"),
        ({"objective": "PSP@3", "propensity": 0.5}, "objective='PSP@3': expected propensity=0"),
    ],
)
def test_what_does_not_go_together_is_refused(parameters, message):
    corpus = planted_corpus(400, d=60, n_labels=12, k=2)[2]
    with pytest.raises(UsageError, match=message):
        MultiLabelMoM(2, **parameters).plan(corpus)
