"""Small charts as inline SVG, styled by the page that contains them.

A chart contains no external references, and all text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

WIDTH, HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 14, 38
#: maximum number of characters shown of the name of a row or column of a table
_LONGEST = 24
#: width of a character of 11 pixels in the wider of usual fonts
_CHARACTER = 6.8


def line_chart(
    values: Sequence[float],
    *,
    title: str,
    x_label: str,
    log: bool = False,
    mark: float | None = None,
    mark_label: str = "",
    level: float | None = None,
    level_label: str = "",
) -> Markup:
    """Draw values over 1, 2, 3, ... as a line with points.

    Parameters
    ----------
    values : sequence of float
        Values that are not finite are omitted.
    title : str
        Text alternative for screen readers.
    x_label : str
    log : bool, default=False
        Draw magnitudes on a logarithmic scale, with hollow points for negative values; zeros are omitted.
    mark : float, optional
        Position of a vertical line; none by default.
    mark_label : str, default=""
    level : float, optional
        Value of a horizontal line, which is omitted if it is outside the scale; none by default.
    level_label : str, default=""

    Returns
    -------
    Markup
        An ``<svg>`` element, or an empty string if there is nothing to draw.
    """
    points = [(i + 1, float(v)) for i, v in enumerate(values) if math.isfinite(v) and (v != 0 or not log)]
    if not points:
        return Markup("")
    scale = _Scale([abs(v) for _, v in points] if log else [v for _, v in points], log)
    last = max(2, len(values))

    def x(position: float) -> float:
        return _LEFT + (position - 1) / (last - 1) * (WIDTH - _LEFT - _RIGHT)

    parts = [scale.grid()]
    parts += [_text(x(tick), HEIGHT - _BOTTOM + 16, str(tick), "middle") for tick in _whole_ticks(last)]
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 5, x_label, "middle"))
    if level is not None and (height := scale.y(level)) is not None:
        parts.append(_line(_LEFT, height, WIDTH - _RIGHT, height, "level"))
        parts.append(_text(WIDTH - _RIGHT, height - 4, level_label, "end"))
    if mark is not None:
        parts.append(_line(x(mark), _TOP, x(mark), HEIGHT - _BOTTOM, "mark"))
        on_left = x(mark) > WIDTH / 2
        parts.append(
            _text(x(mark) + (-6 if on_left else 6), _TOP + 10, mark_label, "end" if on_left else "start")
        )
    drawn = [(x(i), scale.y(abs(v) if log else v) or 0.0, v) for i, v in points]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py, _ in drawn)
    parts.append(f'<polyline class="curve" points="{path}"/>')
    radius = 2.4 if len(drawn) <= 150 else 1.4
    for px, py, v in drawn:
        kind = "hollow" if log and v < 0 else "dot"
        parts.append(f'<circle class="{kind}" cx="{px:.1f}" cy="{py:.1f}" r="{radius}"/>')
    return _svg(title, parts)


def bar_chart(
    values: Sequence[float], *, title: str, x_label: str, errors: Sequence[float] | None = None
) -> Markup:
    """Draw non-negative values as adjacent vertical bars.

    Parameters
    ----------
    values : sequence of float
    title : str
        Text alternative for screen readers.
    x_label : str
    errors : sequence of float, optional
        Half the length of the error bar of each value, cut off at 0; none if not finite. No error bars by default.

    Returns
    -------
    Markup
        An ``<svg>`` element, or an empty string if there is nothing to draw.
    """
    heights = [max(0.0, float(v)) if math.isfinite(v) else 0.0 for v in values]
    if not heights:
        return Markup("")
    spread = [e if math.isfinite(e) else 0.0 for e in errors or [0.0] * len(heights)]
    scale = _Scale([0.0, *(v + e for v, e in zip(heights, spread, strict=True))], log=False)
    slot = (WIDTH - _LEFT - _RIGHT) / len(heights)
    width = max(0.6, min(0.8 * slot, 40.0))
    floor = HEIGHT - _BOTTOM
    parts = [scale.grid()]
    for i, v in enumerate(heights):
        top = scale.y(v) or floor
        left = _LEFT + (i + 0.5) * slot - width / 2
        size = f'width="{width:.2f}" height="{max(0.0, floor - top):.1f}"'
        parts.append(f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" {size}/>')
        if spread[i] > 0.0:
            ends = (scale.y(max(0.0, v - spread[i])) or floor, scale.y(v + spread[i]) or floor)
            parts.append(_line(left + width / 2, ends[0], left + width / 2, ends[1], "spread"))
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 5, x_label, "middle"))
    return _svg(title, parts)


def disc_map(
    points: Sequence[tuple[float, float]], sizes: Sequence[float], names: Sequence[str], *, title: str
) -> Markup:
    """Draw labelled discs at points of the plane.

    Parameters
    ----------
    points : sequence of (float, float)
        Drawn to the same scale in both directions.
    sizes : sequence of float
        Areas of the discs, up to a factor; non-negative.
    names : sequence of str
    title : str
        Text alternative for screen readers.

    Returns
    -------
    Markup
        An ``<svg>`` element, or an empty string if there is nothing to draw.
    """
    if not points:
        return Markup("")
    height = 2 * HEIGHT
    largest = max(max(sizes), 1e-300)
    radius = 26.0
    low = [min(p[i] for p in points) for i in (0, 1)]
    high = [max(p[i] for p in points) for i in (0, 1)]
    room = (WIDTH - 2 * radius - 60, height - 2 * radius - 10)
    scale = min(room[i] / max(high[i] - low[i], 1e-12) for i in (0, 1))
    middle = [(low[i] + high[i]) / 2 for i in (0, 1)]
    parts = []
    for (px, py), size, name in sorted(zip(points, sizes, names, strict=True), key=lambda entry: -entry[1]):
        x = WIDTH / 2 + (px - middle[0]) * scale
        y = height / 2 - (py - middle[1]) * scale
        r = max(2.0, radius * math.sqrt(size / largest))
        parts.append(f'<circle class="disc" cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>')
        parts.append(_text(x, y + 4, name, "middle"))
    return _svg(title, parts, height)


def group_color(group: int) -> str:
    """Return a colour for a group, as different as possible from those of the groups before it."""
    # Multiples of the golden ratio spread evenly over the circle of hues, however many there are.
    return f"hsl({(210 + 222.5 * group) % 360:.0f} 55% 48%)"


def scatter_chart(
    x: Sequence[float], y: Sequence[float], groups: Sequence[int], labels: Sequence[str], *, title: str
) -> Markup:
    """Draw points of the plane in the colours of their groups, those with labels larger.

    Parameters
    ----------
    x, y : sequence of float
        Drawn to the same scale in both directions; points that are not finite are omitted.
    groups : sequence of int
    labels : sequence of str
        Label of each point; empty for none.
    title : str
        Text alternative for screen readers.

    Returns
    -------
    Markup
        An ``<svg>`` element, or an empty string if there is nothing to draw.
    """
    drawn = [
        ((float(a), float(b)), group, label)
        for a, b, group, label in zip(x, y, groups, labels, strict=True)
        if math.isfinite(a) and math.isfinite(b)
    ]
    if not drawn:
        return Markup("")
    height = 2 * HEIGHT
    low = [min(at[i] for at, _, _ in drawn) for i in (0, 1)]
    high = [max(at[i] for at, _, _ in drawn) for i in (0, 1)]
    room = (WIDTH - 2 * _RIGHT - 20, height - 2 * _TOP - 20)
    scale = min(room[i] / max(high[i] - low[i], 1e-300) for i in (0, 1))
    middle = [low[i] / 2 + high[i] / 2 for i in (0, 1)]
    parts = []
    for point, group, label in sorted(drawn, key=lambda entry: entry[2] != ""):
        px = WIDTH / 2 + (point[0] - middle[0]) * scale
        py = height / 2 - (point[1] - middle[1]) * scale
        kind, radius = ("center", 6.0) if label else ("point", 2.2)
        fill = group_color(group)
        parts.append(f'<circle class="{kind}" cx="{px:.1f}" cy="{py:.1f}" r="{radius}" fill="{fill}"/>')
        if label:
            parts.append(_text(px, py - 9, label, "middle"))
    return _svg(title, parts, height)


def series_chart(x: Sequence[float], ys: dict[str, Sequence[float]], *, title: str) -> Markup:
    """Draw several series of values over common positions as lines, with their names below.

    Parameters
    ----------
    x : sequence of float
        Positions, ascending.
    ys : dict of str to sequence of float
        Values that are not finite are omitted.
    title : str
        Text alternative for screen readers.

    Returns
    -------
    Markup
        An ``<svg>`` element, or an empty string if there is nothing to draw.
    """
    finite = [float(v) for values in ys.values() for v in values if math.isfinite(v)]
    if not finite or not len(x):
        return Markup("")
    scale = _Scale(finite, log=False)
    span = max(float(x[-1]) - float(x[0]), 1e-300)
    parts = [scale.grid()]
    for i, values in enumerate(ys.values()):
        drawn = [
            (_LEFT + (float(a) - float(x[0])) / span * (WIDTH - _LEFT - _RIGHT), scale.y(float(v)) or 0.0)
            for a, v in zip(x, values, strict=True)
            if math.isfinite(v)
        ]
        color = group_color(i)
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in drawn)
        parts.append(f'<polyline class="series" points="{path}" stroke="{color}"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2" fill="{color}"/>' for px, py in drawn]
    legend, height = _legend(list(ys))
    return _svg(title, [*parts, *legend], height)


def _legend(names: Sequence[str]) -> tuple[list[str], int]:
    """Return the names of series, each after a dot in its colour, and the height of the chart with them."""
    x, y = float(_LEFT), HEIGHT - _BOTTOM + 24
    parts = []
    for i, name in enumerate(map(_shortened, names)):
        width = 28.0 + _CHARACTER * len(name)
        if x > _LEFT and x + width > WIDTH - _RIGHT:
            x, y = float(_LEFT), y + 16
        parts.append(f'<circle cx="{x + 4:.1f}" cy="{y - 4}" r="4" fill="{group_color(i)}"/>')
        parts.append(_text(x + 12, y, name, "start"))
        x += width
    return parts, max(HEIGHT, y + 8)


def heat_chart(
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    notes: Sequence[Sequence[str]],
) -> Markup:
    """Draw a table of values as cells, darker for larger magnitudes and in another colour for negative values.

    Parameters
    ----------
    values : sequence of sequence of float
        Values from -1 to 1, one sequence per row.
    rows, columns : sequence of str
        Names on the left and at the top.
    title : str
        Text alternative for screen readers.
    notes : sequence of sequence of str
        Tooltips of the cells.

    Returns
    -------
    Markup
        An ``<svg>`` element, or an empty string if there is nothing to draw.
    """
    if not rows or not columns:
        return Markup("")
    row_names, names = ([_shortened(name) for name in own] for own in (rows, columns))
    left, top = (10.0 + _CHARACTER * max(len(name) for name in own) for own in (row_names, names))
    left = max(left, _LEFT)
    side = min(18.0, (WIDTH - left - _RIGHT) / len(columns))
    tall = min(18.0, max(side, 12.0))
    parts = []
    for j, name in enumerate(names):
        # If columns are narrower than letters, only some of them have room for a name.
        if j % max(1, math.ceil(11.0 / side)) == 0:
            parts.append(_upright(left + (j + 0.5) * side + 4, top - 4, name))
    for i, (row, name) in enumerate(zip(values, row_names, strict=True)):
        y = top + i * tall
        parts.append(_text(left - 6, y + tall / 2 + 4, name, "end"))
        for j, (value, note) in enumerate(zip(row, notes[i], strict=True)):
            strength = min(1.0, abs(value)) if math.isfinite(value) else 0.0
            cell = Markup(
                '<g><title>{}</title><rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" '
                'fill-opacity="{:.3f}"/></g>'
            ).format(
                note,
                "cell low" if value < 0 else "cell",
                left + j * side,
                y,
                side - 0.6,
                tall - 0.6,
                strength,
            )
            parts.append(str(cell))
    return _svg(title, parts, math.ceil(top + len(rows) * tall + 6))


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


class _Scale:
    """The vertical scale of a chart, linear or logarithmic."""

    def __init__(self, values: Sequence[float], log: bool) -> None:
        self.log = log
        low, high = min(values), max(values)
        if log:
            self.low, self.high = math.log10(low), math.log10(high)
            if self.high - self.low < 0.5:
                middle = (self.low + self.high) / 2
                self.low, self.high = middle - 0.25, middle + 0.25
        else:
            self.low, self.high = min(low, 0.0), high
            # Adding 1 to a large value may leave it unchanged.
            if self.high - self.low <= max(1e-300, 1e-12 * abs(self.low)):
                self.high = self.low + max(1.0, 0.1 * abs(self.low))

    def y(self, value: float) -> float | None:
        """Return the vertical position of a value, None if it is outside the scale."""
        if self.log and value <= 0:
            return None
        # The difference of halves does not overflow.
        at = math.log10(value) if self.log else value
        share = (at / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        if not -1e-9 <= share <= 1 + 1e-9:
            return None
        return HEIGHT - _BOTTOM - share * (HEIGHT - _BOTTOM - _TOP)

    def ticks(self) -> list[float]:
        """Return the values of the horizontal grid lines."""
        if not self.log:
            return _round_ticks(self.low, self.high)
        first, last = math.ceil(self.low), math.floor(self.high)
        step = max(1, (last - first) // 5 + 1)
        decades = [10.0**e for e in range(first, last + 1, step)]
        if len(decades) >= 2:
            return decades
        every = [
            m * 10.0**e
            for e in range(math.floor(self.low), math.ceil(self.high) + 1)
            for m in (1, 2, 3, 5, 7)
        ]
        return [v for v in every if self.low <= math.log10(v) <= self.high]

    def grid(self) -> str:
        """Return the horizontal grid lines with their values, and the axis."""
        parts = []
        for tick in self.ticks():
            height = self.y(tick)
            if height is not None:
                parts.append(_line(_LEFT, height, WIDTH - _RIGHT, height, "grid"))
                parts.append(_text(_LEFT - 6, height + 4, f"{tick:.3g}", "end"))
        parts.append(_line(_LEFT, HEIGHT - _BOTTOM, WIDTH - _RIGHT, HEIGHT - _BOTTOM, "axis"))
        return "".join(parts)


def _round_ticks(low: float, high: float) -> list[float]:
    rough = high / 4 - low / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _whole_ticks(last: int) -> list[int]:
    step = next(s for e in range(12) for s in (10**e, 2 * 10**e, 5 * 10**e) if last / s <= 8)
    inner = [i for i in range(step, last + 1, step) if i > 1 and last - i >= step / 2]
    return [1, *inner, last]


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return str(Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, text))


def _upright(x: float, y: float, text: str) -> str:
    turned = Markup('<text x="{0:.1f}" y="{1:.1f}" transform="rotate(-90 {0:.1f} {1:.1f})">{2}</text>')
    return str(turned.format(x, y, text))


def _svg(title: str, parts: Sequence[str], height: int = HEIGHT) -> Markup:
    head = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        WIDTH, height, title
    )
    return head + Markup("".join(parts)) + Markup("</svg>")
