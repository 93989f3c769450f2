"""Charts of unusual values: all equal, very large, very small, not finite, none."""

import math

import pytest

from distmom.evaluate.charts import bar_chart, heat_chart, line_chart, scatter_chart, series_chart

VALUES = [
    [], [1.0], [0.0, 0.0], [-1e20], [-3e16, -3e16], [5e-324], [1e308, -1e308], [-1e308], [math.nan],
    [math.inf, 1.0],
]  # fmt: skip


def drawn(values):
    """All charts of the values."""
    n = len(values)
    return {
        "series": series_chart(range(n), {"<q": values}, title="t"),
        "line": line_chart(values, title="t", x_label="x"),
        "bar": bar_chart(values, title="t", x_label="x"),
        "scatter": scatter_chart(values, values, [0] * n, ["<q"] * n, title="t"),
        "heat": heat_chart([values], ["r"], ["c"] * n, title="t", notes=[["<q"] * n]),
    }


@pytest.mark.parametrize("values", VALUES)
def test_every_chart_is_drawn(values):
    for kind, chart in drawn(values).items():
        assert bool(chart) == (
            any(map(math.isfinite, values)) or (bool(values) and kind in ("bar", "heat"))
        ), kind
        assert "nan" not in chart
        assert "inf" not in chart
        assert "<q" not in chart


def test_equal_values_are_a_flat_line_within_the_chart():
    chart = series_chart([0, 1], {"a": [-3e16, -3e16]}, title="t")
    points = chart.partition('points="')[2].partition('"')[0].split()
    heights = {float(point.partition(",")[2]) for point in points}
    assert len(heights) == 1
    assert 0 < heights.pop() < 220
