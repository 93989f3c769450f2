"""Boosted trees: splits of largest gain, values of leaves, and what they learn."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import HistGradientBoostingClassifier

from distmom.models.multilabel.blend import boosting
from distmom.models.multilabel.blend.boosting import Binned, Boosting, Trees, fit_trees


def events(n=4000, n_features=4, seed=0):
    """Return features, events whose log-odds are no sum of functions of single features, and these log-odds."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (n, n_features)).astype(np.float32)
    z = np.where(x[:, 0] > 0.2, 3.0 * x[:, 1], -2.0) + np.sin(3.0 * x[:, 2])
    return x, (rng.uniform(size=n) < 1.0 / (1.0 + np.exp(-z))).astype(np.uint8), z


def loss(log_odds, truth):
    z = log_odds.astype(np.float64)
    return float(np.mean(np.logaddexp(0.0, z) - truth * z))


def test_the_first_split_has_the_largest_gain_of_all():
    x, truth, _ = events(300)
    # Every value is a bin of its own.
    x = np.round(x, 1)
    p = truth.mean()
    g, h = p - truth, np.full(len(x), p * (1 - p))

    def score(rows):
        return g[rows].sum() ** 2 / (h[rows].sum() + boosting.PENALTY)

    gains = {}
    for j in range(x.shape[1]):
        for border in np.unique(x[:, j])[:-1]:
            left = x[:, j] <= border
            if min(h[left].sum(), h[~left].sum()) >= boosting.LEAST_CURVATURE:
                gains[j, border] = score(left) + score(~left) - score(slice(None))
    trees = fit_trees(x, truth, 1)
    best = max(gains, key=gains.get)
    assert (trees.features[0], trees.borders[0]) == best
    # The values of the leaves are Newton steps.
    leaf = leaves_of(trees, x)
    for node in np.unique(leaf):
        own = leaf == node
        step = -boosting.LEARNING_RATE * g[own].sum() / (h[own].sum() + boosting.PENALTY)
        assert trees.values[node] == pytest.approx(step, rel=1e-5)
        assert h[own].sum() >= boosting.LEAST_CURVATURE
    assert len(np.unique(leaf)) <= boosting.MAX_LEAVES


def leaves_of(trees, x):
    """Return the leaf of every event in the first tree."""
    node = np.zeros(len(x), int)
    while (inner := trees.children[node] > 0).any():
        right = x[np.arange(len(x)), trees.features[node]] > trees.borders[node]
        node = np.where(inner, trees.children[node] + right, node)
    return node


def test_log_odds_are_sums_of_leaves():
    x, truth, _ = events()
    trees = fit_trees(x, truth, 7)
    total = np.full(len(x), trees.start[0])
    ends = [*trees.roots[1:], len(trees.features)]
    for root, end in zip(trees.roots, ends, strict=True):
        own = slice(root, end)
        children = np.where(trees.children[own] > 0, trees.children[own] - root, 0)
        part = Trees(np.zeros(1, int), trees.features[own], trees.borders[own], children, None, None)
        total += trees.values[own][leaves_of(part, x)]
    assert_allclose(trees.log_odds(x), total, rtol=1e-5, atol=1e-6)


def test_trees_that_grow_step_by_step_are_those_of_one_fit():
    x, truth, _ = events()
    growing, n_before = Boosting(Binned.of(x), truth), 0
    totals = np.full(len(x), fit_trees(x, truth, 1).start[0])
    for n_trees in (3, 6, 7):
        trees = growing.grow(n_trees - n_before)
        trees.add_to(totals, x, n_before)
        n_before = len(trees.roots)
        assert_array_equal(totals.astype(np.float32), fit_trees(x, truth, n_trees).log_odds(x))
    for name in ("roots", "features", "borders", "children", "values", "start"):
        assert_array_equal(getattr(trees, name), getattr(fit_trees(x, truth, 7), name))


def test_derivatives_are_kept_to_ten_digits_and_their_sums_are_exact():
    rng = np.random.default_rng(0)
    totals, truth = 3.0 * rng.standard_normal(50_000), rng.integers(0, 2, 50_000).astype(float)
    weights = rng.choice([1.0, 7.5], 50_000)
    derivatives = np.empty(50_000, np.int64)
    units = boosting.derive(totals, truth, weights, np.empty((2, 50_000)), derivatives)
    p = 1.0 / (1.0 + np.exp(-totals))
    expected = weights * (p - truth), weights * p * (1.0 - p)
    parts = derivatives >> 32, derivatives & (2**32 - 1)
    for unit, part, own in zip(units, parts, expected, strict=True):
        assert_allclose(unit * part, own, rtol=0.0, atol=0.5001 * unit)
        assert unit * len(own) < 1e-4 * np.abs(own).sum()
    # Sums of pairs are pairs of sums, and in any order.
    total = rng.permutation(derivatives).sum()
    assert (total >> 32, total & (2**32 - 1)) == tuple(int(part.sum()) for part in parts)


def test_bins_end_at_quantiles():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.standard_normal(5000), rng.integers(0, 40, 5000), np.ones(5000)]).astype(
        np.float32
    )
    binned = Binned.of(x)
    quantiles = np.quantile(x[:, 0], np.arange(1, boosting.N_BINS) / boosting.N_BINS, method="lower")
    for own, expected in zip(binned.borders, (quantiles, np.arange(39), []), strict=True):
        assert_array_equal(own, expected)
    for j, own in enumerate(binned.borders):
        assert_array_equal(binned.codes[:, j], (x[:, j, None] > own).sum(axis=1))


def test_an_event_of_weight_two_is_two_events():
    x, truth, _ = events()
    # Few values, so that all are borders of bins in both.
    x = np.round(4 * x) / 4
    weights = np.where(np.arange(len(x)) % 3 == 0, 2.0, 1.0)
    own = fit_trees(x, truth, 5, weights)
    repeated = np.repeat(np.arange(len(x)), weights.astype(int))
    expected = fit_trees(x[repeated], truth[repeated], 5)
    assert_allclose(own.log_odds(x), expected.log_odds(x), rtol=1e-5, atol=1e-6)


def test_interactions_are_learned_as_well_as_by_another_library():
    x, truth, _ = events(20_000)
    new, expected, z = events(20_000, seed=1)
    other = HistGradientBoostingClassifier(
        max_iter=100, learning_rate=boosting.LEARNING_RATE, max_leaf_nodes=boosting.MAX_LEAVES,
        early_stopping=False, l2_regularization=boosting.PENALTY,
    ).fit(x, truth)  # fmt: skip
    own, best = loss(fit_trees(x, truth, 100).log_odds(new), expected), loss(z, expected)
    theirs = loss(other.decision_function(new), expected)
    # Both lose about as much to the true log-odds, and far less than a constant.
    assert own - best < 1.1 * (theirs - best) < 0.1 * (loss(np.full(len(z), z.mean()), expected) - best)


def test_the_order_of_events_and_other_fits_change_nothing():
    x, truth, _ = events()
    first = fit_trees(x, truth, 20)
    fit_trees(*events(seed=3)[:2], 5)
    again = fit_trees(x.copy(), truth.copy(), 20)
    for name in ("roots", "features", "borders", "children", "values", "start"):
        assert_array_equal(getattr(first, name), getattr(again, name))


@pytest.mark.parametrize("truth", [np.zeros(200, np.uint8), np.ones(200, np.uint8)])
def test_events_that_are_all_alike_have_no_splits(truth):
    x = np.random.default_rng(0).uniform(size=(200, 3)).astype(np.float32)
    trees = fit_trees(x, truth, 10)
    assert len(trees.roots) == 1
    assert_allclose(trees.log_odds(x), np.where(truth[0], 1, -1) * np.log(1e9), rtol=0.01)


def test_constant_features_are_not_split():
    x, truth, _ = events()
    x[:, 0] = 1.0
    trees = fit_trees(x, truth, 10)
    assert not (trees.features[trees.children > 0] == 0).any()


def test_damaged_trees_are_refused():
    x, truth, _ = events()
    trees = fit_trees(x, truth, 3)
    assert trees.checked(4) is trees
    with pytest.raises(ValueError, match="over 2 features"):
        trees.checked(2)
    for node, child in ((1, 1), (2, 1), (len(trees.children) - 1, len(trees.children) - 1)):
        children = trees.children.copy()
        children[node] = child
        bad = Trees(trees.roots, trees.features, trees.borders, children, trees.values, trees.start)
        with pytest.raises(ValueError, match="precede"):
            bad.checked(4)
