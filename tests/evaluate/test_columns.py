"""Measures of estimated columns, by hand and against their definition."""

import numpy as np
import pytest

from distmom.errors import UsageError
from distmom.evaluate.columns import score_columns

TRUE = np.array([[3.0, 0.0], [4.0, 0.0], [0.0, 2.0]])


def test_order_scale_and_sign_do_not_count():
    scores = score_columns(TRUE, TRUE[:, ::-1] * [-7.0, 0.1])
    assert scores.distance == pytest.approx(0.0, abs=1e-15)
    assert scores.error == pytest.approx(0.0, abs=1e-15)
    assert (scores.precision, scores.recall) == (1.0, 1.0)
    assert scores.order.tolist() == [1, 0]
    assert scores.signs.tolist() == [-1.0, 1.0]


def test_measures_are_those_by_hand():
    # The second column is nearly the first true one, the first has a cosine of 0.8 with it.
    found = np.array([[0.0, 0.6], [1.0, 0.8], [0.0, 0.01]])
    scores = score_columns(TRUE, found)
    # Both true columns: the nearest of the first is the second found one, and so is that of the second.
    unit = found[:, 1] / np.linalg.norm(found[:, 1])
    assert scores.distance == pytest.approx(
        (25.0 * (1.0 - ([0.6, 0.8, 0.0] @ unit) ** 2) + 4.0 * (1.0 - unit[2] ** 2)) / 29.0
    )
    assert scores.order.tolist() == [1, 0]
    assert scores.error == pytest.approx((2**0.5 + (2.0 - 2.0 * ([0.6, 0.8, 0.0] @ unit)) ** 0.5) / 2.0)
    assert scores.precision == pytest.approx(2 / 4)
    assert scores.recall == pytest.approx(2 / 3)
    # One entry of the found support is small.
    assert score_columns(TRUE, found, zero=0.02).precision == pytest.approx(2 / 3)


def test_the_distance_is_the_least_over_scales_and_columns():
    """Equation of section 6, by least squares for every pair of columns."""
    rng = np.random.default_rng(0)
    true, found = rng.standard_normal((9, 3)), rng.standard_normal((9, 3))
    total = 0.0
    for column in true.T:
        rests = [np.linalg.lstsq(each[:, None], column)[1][0] for each in found.T]
        total += min(rests)
    assert score_columns(true, found).distance == pytest.approx(total / np.sum(true**2))


def test_columns_of_zeros_and_wrong_shapes():
    scores = score_columns(TRUE, np.array([[3.0, 0.0], [4.0, 0.0], [0.0, 0.0]]))
    assert scores.distance == pytest.approx(4.0 / 29.0)
    assert scores.precision == 1.0
    assert scores.recall == pytest.approx(2 / 3)
    with pytest.raises(UsageError, match=r"found: expected shape \(3, 2\), got \(2, 2\)"):
        score_columns(TRUE, TRUE[:2])
    with pytest.raises(UsageError, match="not zero"):
        score_columns(0.0 * TRUE, TRUE)
