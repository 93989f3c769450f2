import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.linalg.simplex import _project_rows, simplex_rows


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_nearest_distributions_move_all_entries_that_are_left_by_the_same(scale):
    points = scale * np.random.default_rng(1).standard_normal((500, 6))
    found = simplex_rows(points)
    assert_allclose(found.sum(axis=1), 1.0, atol=1e-14)
    assert found.min() >= 0.0
    moved = points - found
    shift = np.where(found > 0.0, moved, -np.inf).max(axis=1, keepdims=True)
    assert_allclose(np.where(found > 0.0, moved, shift), np.broadcast_to(shift, moved.shape), atol=1e-13)
    # An entry that is zero could only become negative.
    assert (points <= shift + 1e-13)[found == 0.0].all()


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e3, 1e9])
def test_projection_ends_where_entries_are_equal_up_to_rounding(scale):
    rng = np.random.default_rng(0)
    points = scale * (rng.integers(0, 3, (20_000, 5)) / 3.0 + 1e-16 * rng.standard_normal((20_000, 5)))
    found = points.copy()
    _project_rows(found)
    # In a large row, rounding removes the digits of the projection.
    assert_allclose(found.sum(axis=1), 1.0, atol=1e-12 + 1e-15 * scale)
    assert found.min() >= 0.0
    assert_allclose(found, simplex_rows(points), atol=1e-12 + 1e-15 * scale)
    nothing = np.full((1, 3), np.nan)
    _project_rows(nothing)
    assert np.isnan(nothing).any()


@pytest.mark.parametrize("scale", [1e10, 1e17, 1e300])
def test_entries_that_are_far_from_one_have_a_projection(scale):
    points = np.array(
        [[scale, 0.0, 1.0], [-scale, -scale, -2.0 * scale], [1.0, -scale, 1.2], [0.2, scale, -scale]]
    )
    expected = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.4, 0.0, 0.6], [0.0, 1.0, 0.0]]
    found = points.copy()
    _project_rows(found)
    assert_allclose(found, expected, atol=1e-12)
    assert_allclose(simplex_rows(points), expected, atol=1e-12)
