"""Stacks whose coefficients vary: the regression beside scikit-learn's, what it finds, and what it is made of."""

import json
from dataclasses import replace

import numpy as np
import pytest
from helpers import not_reranked, scored_of
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

from distmom.models import MultiLabelMoM
from distmom.models.multilabel.blend.choose import choose_blend
from distmom.models.multilabel.blend.covariates import MOST_DEVIATIONS, Covariates, frequency_log_odds
from distmom.models.multilabel.blend.curves import curve_of
from distmom.models.multilabel.blend.stack import PENALTY, Pairs, Stack, fit_stack
from distmom.models.multilabel.blend.varying import CHANGE_PENALTY, covariate_names, vary
from distmom.models.multilabel.heads.scorer import Scorer

N, WIDTH = 900, 10


def pairs_of(seed=0, change=1.5, names=("linear", "neighbors-75-3")):
    """Return pairs of two inputs: what the second says grows with the cosine of a document."""
    rng = np.random.default_rng(seed)
    cosine, n_words = rng.random(N), rng.normal(3.0, 0.5, N)
    labels = rng.normal(-2.0, 1.0, WIDTH)
    first, second = rng.normal(0.0, 1.0, (2, N, WIDTH))
    z = -2.0 + first + (1.0 + change * (cosine[:, None] - 0.5)) * second
    truth = (rng.random(z.shape) < 1 / (1 + np.exp(-z))).astype(np.uint8)
    scores = np.exp(np.stack([first, second])).astype(np.float32)
    covariates = Covariates(np.stack([n_words, cosine], axis=1).astype(np.float32), labels)
    return Pairs(names, (False, False), scores, truth, np.ones(truth.shape, bool), covariates)


def loss(log_odds, truth):
    z = log_odds.astype(np.float64)
    return float((np.logaddexp(0, z) - truth * z).mean())


def test_the_regression_is_that_of_scikit_learn(monkeypatch):
    """With all pairs: a logistic regression of features and their products, of which the penalties differ."""
    monkeypatch.setattr("distmom.models.multilabel.blend.stack.STRIDE", 1)
    pairs = pairs_of()
    stack = fit_stack(pairs).stack
    got = vary(pairs, stack).log_odds(pairs.scores, pairs.covariates)

    def standard(values):
        return (values - values.mean()) / values.std()

    x = []
    for own, each in zip(pairs.scores.astype(np.float64), stack.inputs, strict=True):
        x += [standard(own).ravel(), standard(curve_of(own, False, each.floor)).ravel()]
    x = np.stack(x, axis=1)
    cov = pairs.covariates
    z = [np.repeat(standard(cov.documents[:, i].astype(np.float64)), WIDTH) for i in (0, 1)]
    z.append(np.tile(standard(cov.labels), N))
    ones = np.ones((len(x), 1))
    products = [np.hstack([x, ones]) * np.clip(c, -MOST_DEVIATIONS, MOST_DEVIATIONS)[:, None] for c in z]
    # A feature divided by the root of its penalty has penalty one.
    features = np.hstack([x / np.sqrt(PENALTY), *(p / np.sqrt(CHANGE_PENALTY) for p in products)])
    peer = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(features, pairs.truth.ravel())
    np.testing.assert_allclose(got.ravel(), peer.decision_function(features), atol=5e-3)


def test_what_depends_on_the_cosine_is_found():
    """The likelihood of new pairs gains three quarters of what knowing the truth would."""
    pairs, new = pairs_of(), pairs_of(seed=1)
    stack = fit_stack(pairs).stack
    varied = vary(pairs, stack)
    first, second = np.log(new.scores.astype(np.float64))
    exact = -2.0 + first + (1.0 + 1.5 * (new.covariates.documents[:, 1:] - 0.5)) * second
    constant, best = loss(stack.log_odds(new.scores), new.truth), loss(exact, new.truth)
    got = loss(varied.log_odds(new.scores, new.covariates), new.truth)
    assert best < got < best + 0.25 * (constant - best)
    cosine = next(effect for effect in varied.effects if effect.name == "cosine")
    # The curve of the second input is its logarithm.
    assert cosine.curve[1] / cosine.scale == pytest.approx(1.5, abs=0.4)
    assert abs(cosine.curve[0] / cosine.scale) < 0.4


def test_few_of_the_negligible_pairs_suffice(monkeypatch):
    pairs = pairs_of()
    stack = fit_stack(pairs).stack
    monkeypatch.setattr("distmom.models.multilabel.blend.stack.NEGLIGIBLE", -2.5)
    some = vary(pairs, stack).log_odds(pairs.scores, pairs.covariates)
    monkeypatch.setattr("distmom.models.multilabel.blend.stack.STRIDE", 1)
    every = vary(pairs, stack).log_odds(pairs.scores, pairs.covariates)
    assert loss(some, pairs.truth) < loss(every, pairs.truth) + 1e-3
    assert np.abs(some - every).mean() < 0.1


def test_covariates_are_limited():
    """A document far from all others has the coefficients of the limit."""
    pairs = pairs_of()
    stack = vary(pairs, fit_stack(pairs).stack)
    centre = pairs.covariates.documents.mean(axis=0, dtype=np.float64)
    scale = pairs.covariates.documents.astype(np.float64).std(axis=0)
    far, limit = np.array([[1e6, 1e6]]), (centre + MOST_DEVIATIONS * scale)[None]
    scores = pairs.scores[:, :1]
    got, expected = (
        stack.log_odds(scores, replace(pairs.covariates, documents=documents)) for documents in (far, limit)
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_a_covariate_without_variation_is_left_out():
    pairs = pairs_of()
    documents = pairs.covariates.documents.copy()
    documents[:, 0] = 2.0
    fixed = replace(pairs, covariates=Covariates(documents, np.zeros(WIDTH)))
    assert [effect.name for effect in vary(fixed, fit_stack(fixed).stack).effects] == ["cosine"]
    none = replace(pairs, covariates=Covariates(np.ones((N, 2)), np.zeros(WIDTH)))
    stack = fit_stack(none).stack
    assert vary(none, stack) is stack


def test_the_cosine_needs_an_index():
    assert covariate_names(["linear", "svm-1"]) == ("n_words", "frequency")
    assert covariate_names(["linear", "best-cosine"]) == ("n_words", "cosine", "frequency")


def test_the_frequency_of_a_label_may_be_zero_or_one():
    assert np.isfinite(frequency_log_odds(np.array([0, 7, 5]), 7)).all()
    assert frequency_log_odds(np.array([5]), 10)[0] == 0.0


def test_a_varying_stack_is_json_and_checked_when_read():
    pairs = pairs_of()
    stack = vary(pairs, fit_stack(pairs).stack)
    record = json.loads(json.dumps(stack.to_json()))
    assert Stack.from_json(record) == stack
    damages = [{"name": "length"}, {"scale": 0.0}, {"linear": [1.0]}, {"centre": float("nan")}]
    for damage in [*damages, {"curve": [float("inf"), 0.0]}]:
        other = json.loads(json.dumps(stack.to_json()))
        other["effects"][1].update(damage)
        with pytest.raises(ValueError, match="expected finite changes of 2 inputs"):
            Stack.from_json(other)


def rows_of(pairs):
    n, c = pairs.truth.shape
    labels = np.broadcast_to(np.arange(c, dtype=np.int32), (n, c)).copy()
    return {
        "labels": labels, "scores": pairs.scores.swapaxes(0, 1).copy(), "best": pairs.scores.max(axis=2).T,
        "truth": pairs.truth, "n_true": pairs.truth.sum(axis=1, dtype=np.int32),
        "covariates": pairs.covariates.documents,
    }  # fmt: skip


def test_coefficients_vary_only_where_documents_that_were_not_fitted_say_so():
    names = ["linear", "neighbors-75-3"]
    for change, expected in ((1.5, True), (0.0, False)):
        pairs = pairs_of(change=change)
        rows = rows_of(pairs)
        counts = np.full(WIDTH, N) - rows["truth"].sum(axis=0)  # alike but for the held-out ones
        choice = choose_blend(scored_of(names, rows, (counts, 4 * N)))
        assert bool(choice.blend.stack.effects) == expected
        assert choose_blend(scored_of(names, rows)).blend.stack.effects == ()


@pytest.fixture(scope="module")
def fitted():
    """A model with a varying stack, its corpus and its labels."""
    rng = np.random.default_rng(0)
    n, d, n_labels = 900, 60, 6
    topic = rng.integers(0, n_labels, n)
    rate = np.where(np.arange(d) % n_labels == topic[:, None], 0.5, 0.08)
    rate *= rng.uniform(0.2, 1.5, (n, 1))
    x = (rng.random((n, d)) < rate).astype(int)
    y = (rng.random((n, n_labels)) < 0.05) | (np.arange(n_labels) == topic[:, None])
    y[:, 0] &= rng.random(n) < 0.5
    return MultiLabelMoM(4, n_topics=0).fit(x, y.astype(int)), x, y


def test_a_model_scores_with_the_covariates_of_each_document(fitted, tmp_path):
    model, x, _ = fitted
    scorer = model.scorer_
    assert isinstance(scorer, Scorer)
    assert scorer.blend.stack.effects
    got = model.decision_function(x[:40])
    expected = np.vstack([model.decision_function(x[i : i + 1]) for i in range(40)])
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(
        scorer.blend.label_log_odds, frequency_log_odds(model.label_frequency_, 900)
    )
    blend = scorer.blend
    constant = replace(scorer, blend=replace(blend, stack=replace(blend.stack, effects=())))
    block = model._block(x[:40])
    assert np.abs(constant.scores(constant.query(block)) - got).max() > 1e-3
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(MultiLabelMoM.load(tmp_path / "model").decision_function(x[:40]), got)
    some = model.decision_function(x[:40], labels=[model.label_names_[i] for i in (4, 1)])
    # Chosen labels are not ranked again.
    plain = not_reranked(scorer)
    expected = plain.scores(plain.query(block))[:, [4, 1]]
    np.testing.assert_allclose(some, expected, rtol=1e-4, atol=1e-4)


def test_the_covariates_of_a_document(fitted):
    model, x, _ = fitted
    scorer = model.scorer_
    query = scorer.query(model._block(x[:50]))
    found = query.covariates(scorer.index)
    np.testing.assert_allclose(found[:, 0], np.log1p((x[:50] > 0).sum(axis=1)))
    a = csr_array(query.features).toarray()
    whole = csr_array(scorer.query(model._block(x)).features).toarray()
    np.testing.assert_allclose(found[:, 1], (a @ whole.T).max(axis=1), atol=1e-5)
    assert (query.covariates(None)[:, 1] == 0).all()
