"""Lanes of compiled kernels: every operation beside NumPy, for both types and any number of lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba.core.errors import TypingError
from numpy.testing import assert_array_equal

from distmom.compiled import compiled
from distmom.lanes import LANES, accumulate, dot, load, magnitude, padded, positive, spread, store, sum_of


@compiled
def _operations(x: Any, y: Any, out: Any) -> None:
    for c in range(0, x.shape[0], LANES):
        a, b = load(x, c), load(y, c)
        store(out[0], c, a + b)
        store(out[1], c, a - b)
        store(out[2], c, a * b)
        store(out[3], c, a / b)
        store(out[4], c, positive(a))
        store(out[5], c, magnitude(a))
        store(out[6], c, spread(y[c + 1]))


@compiled
def _accumulate(x: Any, out: Any) -> None:
    for c in range(0, x.shape[0], LANES):
        accumulate(out, c, load(x, c))


@compiled
def _sum(x: Any) -> Any:
    return sum_of(load(x, 0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_operations_are_those_of_numpy(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    # A view that is not aligned to vectors.
    x, y = rng.normal(size=(2, 5 * LANES + 1)).astype(dtype)[:, 1:]
    out = np.zeros((7, 5 * LANES), dtype)
    _operations(np.ascontiguousarray(x), y, out)
    spread_y = np.repeat(y[1::LANES], LANES)
    expected = [x + y, x - y, x * y, x / y, np.maximum(x, 0), np.abs(x), spread_y]
    assert_array_equal(out, np.asarray(expected, dtype))


def test_negative_numbers_and_nan_have_no_positive_part() -> None:
    x = np.array([np.nan, -np.inf, np.inf, -0.0, 0.0, -1.0, 1.0, 1e-300])
    out = np.ones((7, LANES))
    _operations(x, np.ones(LANES), out)
    assert_array_equal(out[4], [0, 0, np.inf, 0, 0, 0, 1, 1e-300])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_have_one_order(dtype: Any) -> None:
    # Numbers of very different size, so that every other order gives other bits.
    x = (np.float64(3.7) ** np.arange(-8, 8)).astype(dtype)
    four = x[:4] + x[4:8]
    two = four[:2] + four[2:]
    assert _sum(x[:LANES]) == two[0] + two[1]
    products = x[:LANES] * x[:LANES] + x[LANES:] * x[LANES:]
    four = products[:4] + products[4:]
    two = four[:2] + four[2:]
    assert dot(x, x, 2 * LANES) == two[0] + two[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_single_precision_is_added_to_both(dtype: Any) -> None:
    x, out = np.random.default_rng(1).normal(size=(2, 3 * LANES)).astype(np.float32)
    total = out.astype(dtype)
    _accumulate(x, total)
    assert_array_equal(total, out.astype(dtype) + x)


def test_double_precision_is_not_added_to_single() -> None:
    with pytest.raises(TypingError, match="expected an array of float64"):
        _accumulate(np.ones(LANES), np.ones(LANES, np.float32))


def test_sizes_are_padded_to_whole_lanes() -> None:
    assert [padded(size) for size in (0, 1, 7, 8, 9, 16, 17)] == [0, 8, 8, 8, 16, 16, 24]


def test_elements_that_are_apart_are_refused() -> None:
    with pytest.raises(TypingError, match="expected a C-contiguous array"):
        _sum(np.ones((LANES, 2))[:, 0])
