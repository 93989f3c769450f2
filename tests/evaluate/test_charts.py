"""Charts of unusual values: all equal, very large, very small, not finite, none."""

import math
import re

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


def test_each_name_of_a_series_has_the_colour_of_its_line():
    names = [f"a rather long name {i}" for i in range(12)]
    chart = series_chart([0.0, 1.0], {name: [i, i + 1.0] for i, name in enumerate(names)}, title="t")
    lines = re.findall(r'<polyline class="series" points="[^"]*" stroke="([^"]+)"/>', chart)
    named = re.findall(
        r'<circle cx="([\d.]+)" cy="([\d.]+)" r="4" fill="([^"]+)"/><text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]+)<',
        chart,
    )
    assert [name for *_, name in named] == names
    assert [color for _, _, color, *_ in named] == lines
    height = int(re.search(r'viewBox="0 0 \d+ (\d+)"', chart)[1])
    at = [(float(x), float(y)) for *_, x, y, _ in named]
    assert len(set(at)) == len(names)
    assert max(y for _, y in at) < height
    # Names share lines where there is room.
    assert len({y for _, y in at}) < len(names) / 2
