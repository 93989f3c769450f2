"""Plot the results of `benchmark_peers`.

``time-precision.svg`` has one panel per corpus, for the largest number of training rows: P@1 against seconds,
with one point per system. ``scale.svg`` shows seconds and peak memory against the number of training rows,
for systems with two or more sizes. Seconds are the sum of training and ranking, because nearest neighbours do
all their work in ranking. Files of several runs can be plotted together; of two rows for the same system and
size, the later one is used.

Example::

    pip install 'distmom[plots]'
    python workflows/plot_peers.py bibtex.json planted.json sizes.json --out docs/images
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

#: colour and marker of every system; systems of the same package share a colour
LOOKS = {
    "distmom auto": ("#c1272d", "o"),
    "distmom posterior": ("#c1272d", "s"),
    "omikuji-parabel": ("#0b66a8", "^"),
    "omikuji-bonsai-1": ("#0b66a8", "v"),
    "omikuji-bonsai": ("#0b66a8", "D"),
    "napkinxc-plt": ("#3a8f3a", "o"),
    "pecos-xr-linear": ("#8a5fb0", "o"),
    "linear-svc": ("#8a6d3b", "o"),
    "logistic": ("#b08d57", "s"),
    "sklearn-neighbors": ("#8a6d3b", "s"),
    "leml": ("#444444", "o"),
}
OTHER = ("#666666", "x")
PANEL_INCHES = (4.0, 3.4)
SECONDS = "training and ranking, seconds"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "distmom",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
}

Row = dict[str, Any]


def require_matplotlib() -> None:
    """Exit with installation instructions if Matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("plots need Matplotlib: pip install 'distmom[plots]'")


def draw(rows: list[Row], out: Path) -> list[Path]:
    """Draw all plots for which there are rows, and return their files.

    Parameters
    ----------
    rows : list of dict
        Rows written by `benchmark_peers`.
    out : Path
        Folder of the plots.
    """
    require_matplotlib()
    import matplotlib as mpl

    out.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(STYLE):
        series = _series(rows)
        if series:
            written.append(_time_precision(series, out / "time-precision.svg"))
        several = {key: own for key, own in series.items() if len(own) > 1}
        if several:
            written.append(_scale(several, out / "scale.svg"))
    return written


def _series(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of every corpus and system, by size."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        found.setdefault((row["data"], row["system"]), {})[row["n_train"]] = row
    return {key: [by[n] for n in sorted(by)] for key, by in found.items()}


def _time_precision(series: dict[tuple[str, str], list[Row]], path: Path) -> Path:
    largest: dict[str, int] = {}
    for (data, _), own in series.items():
        largest[data] = max(largest.get(data, 0), own[-1]["n_train"])
    figure, axes = _figure(len(largest))
    for axis, (data, n_train) in zip(axes, largest.items(), strict=True):
        for row in (own[-1] for key, own in series.items() if key[0] == data):
            if row["n_train"] < n_train:
                continue
            colour, marker = LOOKS.get(row["system"], OTHER)
            axis.plot(_seconds(row), row["P@1"], marker, color=colour, markersize=7, label=row["system"])
        title = f"{data}, {n_train:,} training rows"
        axis.set(xscale="log", xlabel=SECONDS, ylabel="P@1", title=title)
        axis.margins(0.15)
        _plain_ticks(axis.xaxis)
    return _finish(figure, axes, path)


def _scale(series: dict[tuple[str, str], list[Row]], path: Path) -> Path:
    figure, axes = _figure(2)
    corpora = sorted({data for data, _ in series})
    for (data, system), rows in series.items():
        colour, marker = LOOKS.get(system, OTHER)
        n = [row["n_train"] for row in rows]
        label = system if len(corpora) == 1 else f"{system}, {data}"
        seconds = [_seconds(row) for row in rows]
        for axis, values in zip(axes, (seconds, [row["peak_rss_mb"] for row in rows]), strict=True):
            axis.plot(n, values, marker + "-", color=colour, markersize=5, linewidth=1.2, label=label)
    sizes = sorted({row["n_train"] for rows in series.values() for row in rows})
    for axis, name in zip(axes, (SECONDS, "peak memory, MB"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="training rows", ylabel=name)
        axis.set_xticks(sizes, [f"{n:,}" for n in sizes])
        axis.set_xticks([], minor=True)
        _plain_ticks(axis.yaxis)
    figure.suptitle(", ".join(corpora))
    return _finish(figure, axes, path)


def _seconds(row: Row) -> float:
    return float(row["fit_s"] + row["predict_s"])


def _plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    steps = (1.0, 2.0, 5.0) if math.log10(high / low) < 2 else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_locator(NullLocator())


def _figure(n_panels: int) -> tuple[Any, list[Any]]:
    # Avoid pyplot, which needs a display and keeps global state.
    from matplotlib.figure import Figure

    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * n_panels + 1.6, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, n_panels)))


def _finish(figure: Any, axes: list[Any], path: Path) -> Path:
    """Add one legend for all panels, and write the file."""
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    names = sorted(handles, key=lambda name: list(LOOKS).index(name) if name in LOOKS else len(LOOKS))
    figure.legend([handles[name] for name in names], names, loc="outside right upper")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def main(arguments: list[str] | None = None) -> int:
    """Plot the results in the given files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+", help="files written by benchmark_peers --json")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the plots [%(default)s]")
    options = parser.parse_args(arguments)
    rows = [row for path in options.results for row in json.loads(path.read_text(encoding="utf-8"))]
    for path in draw(rows, options.out):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
