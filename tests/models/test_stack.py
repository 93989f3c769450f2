"""Stacking: the regression beside scikit-learn's, what it leaves out, and whether its probabilities are true."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from distmom.models.multilabel.blend.stack import (
    FLOOR_SHARE,
    Pairs,
    Stack,
    fit_stack,
    probability,
    select_inputs,
)

N, WIDTH = 800, 12


def pairs_of(*noises, signed=(), seed=0):
    """Return pairs whose log-odds are a random number plus noise in every input."""
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.standard_normal((N, WIDTH)) - 2.0
    truth = (rng.random((N, WIDTH)) < 1 / (1 + np.exp(-z))).astype(np.uint8)
    scores = [np.exp(0.7 * (z + s * rng.standard_normal(z.shape))) for s in noises]
    scores = [np.log(s) / 3 if i in signed else s for i, s in enumerate(scores)]
    names = tuple(f"h{i}" for i in range(len(noises)))
    flags = tuple(i in signed for i in range(len(noises)))
    return Pairs(names, flags, np.array(scores, np.float32), truth, np.ones((N, WIDTH), bool))


def columns(pairs):
    found = []
    for s, signed in zip(pairs.scores.astype(float), pairs.signed, strict=True):
        s = s.ravel()
        found += [s, -np.log1p(np.exp(-2 * s)) if signed else np.log(np.maximum(s, FLOOR_SHARE * s.max()))]
    return np.stack(found, axis=1)


def test_the_regression_is_that_of_scikit_learn():
    pairs = pairs_of(0.5, 1.0, signed=(1,))
    x = columns(pairs)
    peer = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(
        (x - x.mean(axis=0)) / x.std(axis=0), pairs.truth.ravel()
    )
    expected = peer.decision_function((x - x.mean(axis=0)) / x.std(axis=0))
    got = fit_stack(pairs).stack.log_odds(pairs.scores)
    np.testing.assert_allclose(got.ravel(), expected, atol=2e-3)


def test_a_start_does_not_change_the_regression():
    pairs = pairs_of(0.5, 1.0)
    cold = fit_stack(pairs).stack
    warm = fit_stack(pairs, fit_stack(pairs.of(np.arange(100))).stack).stack
    np.testing.assert_allclose(warm.log_odds(pairs.scores), cold.log_odds(pairs.scores), atol=1e-3)


@pytest.mark.parametrize("intercept", [-1e4, -50.0, 90.0, 1e4])
def test_a_start_at_which_all_is_certain_does_not_change_the_regression(intercept):
    pairs = pairs_of(0.5, 1.0)
    plain = fit_stack(pairs).stack
    far = fit_stack(pairs, replace(plain, intercept=intercept)).stack
    np.testing.assert_allclose(far.coefficients(), plain.coefficients(), rtol=1e-3, atol=1e-3)


def test_what_an_input_is_worth_is_the_likelihood_that_is_lost_without_it():
    pairs = pairs_of(0.8, 0.8, 3.0)
    fit = fit_stack(pairs)
    y = pairs.truth

    def loss(stack, scores):
        z = stack.log_odds(scores).astype(float)
        return (np.logaddexp(0, z) - y * z).sum()

    whole = loss(fit.stack, pairs.scores)
    for i in range(3):
        rest = pairs.only([j for j in range(3) if j != i])
        lost = loss(fit_stack(rest).stack, rest.scores) - whole
        assert fit.losses[i] == pytest.approx(lost, rel=0.3, abs=2.0)


def test_inputs_that_bring_nothing_are_left_out():
    pairs = pairs_of(0.5, 0.5, 20.0)
    kept, fit = select_inputs(pairs)
    assert kept == [0, 1]
    assert [each.name for each in fit.stack.inputs] == ["h0", "h1"]


def test_probabilities_are_frequencies():
    """On pairs that it was not fitted to, as many labels are true as the probabilities say, in every fifth."""
    stack = fit_stack(pairs_of(0.5, 1.0, signed=(1,))).stack
    new = pairs_of(0.5, 1.0, signed=(1,), seed=1)
    p = probability(stack.log_odds(new.scores)).ravel()
    y = new.truth.ravel()
    for part in np.array_split(np.argsort(p), 5):
        error = np.sqrt(p[part].mean() / len(part))
        assert abs(p[part].mean() - y[part].mean()) < 4 * error


def test_pairs_that_are_no_candidates_are_ignored():
    pairs = pairs_of(0.5)
    known = pairs.known.copy()
    known[:, ::3] = False
    scores, truth = pairs.scores.copy(), pairs.truth.copy()
    scores[:, :, ::3], truth[:, ::3] = 0.1, 1
    first = fit_stack(Pairs(pairs.names, pairs.signed, scores, truth, known)).stack
    keep = np.arange(WIDTH) % 3 > 0
    second = fit_stack(
        Pairs(pairs.names, pairs.signed, pairs.scores[:, :, keep], pairs.truth[:, keep], known[:, keep])
    ).stack
    np.testing.assert_allclose(first.log_odds(pairs.scores), second.log_odds(pairs.scores), rtol=1e-4)


def test_a_stack_is_json_and_checked_when_read():
    stack = fit_stack(pairs_of(0.5, 1.0, signed=(1,))).stack
    record = json.loads(json.dumps(stack.to_json()))
    assert Stack.from_json(record) == stack
    for damage in ({"linear": float("nan")}, {"floor": 0.0}):
        other = json.loads(json.dumps(stack.to_json()))
        other["inputs"][0].update(damage)
        with pytest.raises(ValueError, match="expected finite coefficients"):
            Stack.from_json(other)
    with pytest.raises(ValueError, match="expected finite"):
        Stack.from_json({"inputs": [], "intercept": 0.0})


def test_extreme_scores_are_finite():
    stack = fit_stack(pairs_of(0.5, 1.0, signed=(1,))).stack
    scores = np.array([[[0.0, 1e30, 1e-30]], [[-1e4, 1e4, 0.0]]], np.float32)
    assert np.isfinite(stack.log_odds(scores)).all()
    p = probability(stack.log_odds(scores))
    assert ((p >= 0) & (p <= 1)).all()
