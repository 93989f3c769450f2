import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from distmom.errors import NumericalError
from distmom.linalg.anchors import (
    _squared_distances,
    divergence_weights,
    select_anchors,
    simplex_weights,
)


def mixtures(n=60, k=5, r=9, seed=0):
    """Return points of a simplex in r dimensions; the first k are its vertices."""
    rng = np.random.default_rng(seed)
    corners = rng.standard_normal((k, r))
    weights = np.vstack([np.eye(k), rng.dirichlet(np.ones(k), n - k)])
    order = rng.permutation(n)
    return (weights @ corners)[order], weights[order], np.argsort(order)[:k]


def test_anchors_are_the_corners_and_weights_are_found():
    rows, weights, corners = mixtures()
    anchors = select_anchors(rows, 5, np.arange(60))
    assert set(anchors) == set(corners)
    found = simplex_weights(rows, rows[anchors], n_iter=20_000, tolerance=1e-13)
    columns = [int(np.argmax(weights[a])) for a in anchors]
    assert_allclose(found, weights[:, columns], atol=1e-7)


def test_only_candidates_are_chosen():
    rows, _, corners = mixtures()
    allowed = np.setdiff1d(np.arange(60), corners[:1])
    anchors = select_anchors(rows, 5, allowed)
    assert corners[0] not in anchors
    assert set(corners[1:]) <= set(anchors)


def test_an_initial_choice_is_improved():
    # The longest row is not a vertex of the largest triangle.
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.9, 0.9]])
    anchors = select_anchors(rows, 3, np.arange(4))

    def area(points):
        a, b, c = rows[list(points)]
        return abs(np.linalg.det(np.stack([b - a, c - a]))) / 2

    assert area(anchors) == pytest.approx(0.5)


@pytest.mark.parametrize("k", [2, 3, 6])
def test_distances_are_those_from_the_span_of_the_other_chosen_points(k):
    rng = np.random.default_rng(k)
    points = rng.standard_normal((30, 9)) + 5.0
    chosen = list(rng.permutation(30)[:k])
    found = _squared_distances(points, chosen)
    for i in range(k):
        first, *others = (points[c] for j, c in enumerate(chosen) if j != i)
        span = np.array([other - first for other in others]).reshape(-1, 9)
        for point, distance in zip(points - first, found[:, i], strict=True):
            weights = np.linalg.lstsq(span.T, point, rcond=None)[0]
            assert distance == pytest.approx(((point - weights @ span) ** 2).sum(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("outside", [0.0, 0.7])
def test_weights_are_the_least_squares_over_the_simplex(outside):
    rng = np.random.default_rng(1)
    anchors = rng.standard_normal((4, 6))
    rows = rng.dirichlet(np.ones(4), 8) @ anchors + outside * rng.standard_normal((8, 6))
    found = simplex_weights(rows, anchors, n_iter=20_000, tolerance=1e-12)
    assert_allclose(found.sum(axis=1), 1.0)
    assert found.min() >= 0
    for row, weights in zip(rows, found, strict=True):
        best = minimize(
            lambda w, row=row: ((w @ anchors - row) ** 2).sum(), np.full(4, 0.25), bounds=[(0, 1)] * 4,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        assert ((weights @ anchors - row) ** 2).sum() <= best.fun + 1e-9


def divergences(rows, weights, anchors):
    """Return the divergence of every row from its mixture."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rows > 0.0, rows * np.log(rows / (weights @ anchors)), 0.0).sum(axis=1)


@pytest.mark.parametrize(("k", "m", "concentration"), [(4, 7, 1.0), (5, 40, 0.3), (20, 500, 0.05)])
def test_weights_of_exact_mixtures_come_back_by_divergence(k, m, concentration):
    rng = np.random.default_rng(0)
    anchors = rng.dirichlet(np.full(m, concentration), k)
    # Most topics are absent, and some rows are anchors.
    weights = np.vstack([np.eye(k), rng.dirichlet(np.full(k, 0.2), 200)])
    weights[weights < 0.02] = 0.0
    weights /= weights.sum(axis=1, keepdims=True)
    found = divergence_weights(weights @ anchors, anchors, np.eye(m), tolerance=0.0)
    assert_allclose(found, weights, atol=1e-10)
    # The stopping rule bounds the divergence.
    loose = divergence_weights(weights @ anchors, anchors, np.eye(m), tolerance=1e-4)
    assert 1e-12 < divergences(weights @ anchors, loose, anchors).max() <= 1e-4


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds:RuntimeWarning")
def test_weights_are_those_of_the_least_divergence_over_the_simplex():
    rng = np.random.default_rng(2)
    anchors = rng.dirichlet(np.ones(9), 4)
    # Counts with zeros, of distributions that are no mixtures of the anchors.
    rows = rng.multinomial(30, rng.dirichlet(np.full(9, 0.5), 12)) / 30.0
    found = divergence_weights(rows, anchors, np.eye(9))
    assert_allclose(found.sum(axis=1), 1.0, atol=1e-14)
    assert found.min() >= 0.0
    assert (found == 0.0).any()
    ours = divergences(rows, found, anchors)
    for row, least in zip(rows, ours, strict=True):
        best = minimize(
            lambda w, row=row: divergences(row[None], w[None], anchors)[0], np.full(4, 0.25),
            bounds=[(1e-12, 1)] * 4, constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        assert least <= best.fun + 1e-9
        assert least == pytest.approx(best.fun, abs=1e-6)
    # The least squares are another mixture.
    assert (ours < divergences(rows, simplex_weights(rows, anchors), anchors) - 1e-4).any()


def test_every_row_has_a_distribution_of_weights_whatever_its_contexts():
    rng = np.random.default_rng(3)
    rows, contexts = rng.standard_normal((400, 6)), rng.standard_normal((6, 30))
    rows[0] = 0.0
    anchors = rng.standard_normal((5, 6))
    # Two anchors are equal, and the last context is one that no anchor has.
    anchors[4] = anchors[3]
    contexts[:, -1] = -np.linalg.lstsq(anchors, np.ones(5))[0]
    found = divergence_weights(rows, anchors, contexts)
    assert_allclose(found.sum(axis=1), 1.0, atol=1e-14)
    assert found.min() >= 0.0
    assert (found[0] == 0.2).all()
    # Blocks of rows, and rows alone, give the same.
    assert_allclose(found[17:18], divergence_weights(rows[17:18], anchors, contexts), atol=1e-12)


def test_too_few_dimensions_are_refused():
    rows = np.outer(np.arange(6.0), np.ones(3))
    with pytest.raises(
        NumericalError, match="3 anchor words are requested, but the second moment has only 2"
    ):
        select_anchors(rows, 3, np.arange(6))
    with pytest.raises(NumericalError, match="only 2 words are frequent"):
        select_anchors(rows, 3, np.arange(2))
