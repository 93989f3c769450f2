"""Report of a model with its ``pictures`` and numbers, as one self-contained HTML file without scripts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup
from sklearn.utils.validation import check_is_fitted

from distmom.errors import UsageError
from distmom.evaluate.charts import heat_chart, scatter_chart, series_chart
from distmom.evaluate.page import Row, clean, configuration, is_number, number, percent, template, write_page
from distmom.spectral.pictures import PictureKind

#: largest number of bars that are shown in a picture
_MAX_BARS = 60
#: largest number of entries of a list that are shown
_MAX_LISTED = 12


def write_picture_report(model: Any, out: str | os.PathLike[str]) -> None:
    """Write the report of a model that has ``pictures``.

    Parameters
    ----------
    model : SpectralEstimator
        A fitted model.
    out : path-like
        HTML file; an existing file is replaced atomically.

    Raises
    ------
    UsageError
        If the model has no pictures, or the parent directory of ``out`` does not exist.
    """
    check_is_fitted(model)
    if not hasattr(model, "pictures"):
        raise UsageError(f"there is no report of models of class {type(model).__name__}")
    write_page(out, None, lambda: render_picture_report(model))


def render_picture_report(model: Any) -> str:
    """Return the report as HTML; see `write_picture_report`."""
    page = template("pictures.html.j2").render(
        model=type(model).__name__,
        facts=[
            Row("units", number(model.n_documents_)),
            Row("features", number(model.n_features_in_)),
            Row("passes", number(len(model.timings_))),
            Row("fit time", f"{model.fit_seconds_:,.1f} s"),
        ],
        pictures=[_drawn(picture) for picture in model.pictures()],
        rows=[
            Row(name.replace("_", " "), text)
            for name, value in {**model.diagnostics_, **model.summary()}.items()
            if (text := _text(value)) is not None
        ],
        **configuration(model),
    )
    return str(page)


def _text(value: Any) -> str | None:
    """Return a number, a name, or a few numbers with or without names as text; None for anything else."""
    if is_number(value) or isinstance(value, bool):
        return number(value)
    if isinstance(value, str):
        return value
    named = value if isinstance(value, dict) else {}
    entries = list(named.values()) if named else value
    if not (isinstance(entries, list) and 0 < len(entries) <= _MAX_LISTED and all(map(is_number, entries))):
        return None
    if not named:
        return ", ".join(number(each) for each in entries)
    return ", ".join(f"{name} {number(each)}" for name, each in named.items())


def _drawn(picture: Mapping[str, Any]) -> dict[str, Any]:
    kind = picture["kind"]
    if kind not in tuple(PictureKind):
        raise ValueError(f"picture: expected one of {', '.join(PictureKind)}, got {kind!r}")
    if kind == PictureKind.BARS:
        return {**picture, "bars": _bars(picture), "chart": ""}
    return {**picture, "bars": [], "chart": _CHARTS[kind](picture)}


def _bars(picture: Mapping[str, Any]) -> list[dict[str, Any]]:
    largest = max((abs(float(v)) for v in picture["values"]), default=0.0)
    pairs = list(zip(picture["names"], picture["values"], strict=True))[:_MAX_BARS]
    return [
        {
            "name": name,
            "value": number(value),
            "width": percent(abs(float(value)), largest),
            "has_error": False,
        }
        for name, value in pairs
    ]


def _matrix(picture: Mapping[str, Any]) -> Markup:
    values = [[float(v) for v in row] for row in picture["values"]]
    largest = max((abs(v) for row in values for v in row), default=0.0) or 1.0
    rows, columns = ([clean(name) for name in picture[names]] for names in ("rows", "columns"))
    notes = [
        [f"{row}, {column}: {number(v)}" for column, v in zip(columns, own, strict=True)]
        for row, own in zip(rows, values, strict=True)
    ]
    # Probabilities keep their scale; other values are relative to the largest.
    scale = 1.0 if largest <= 1.0 else largest
    shares = [[v / scale for v in row] for row in values]
    return heat_chart(shares, rows, columns, title=picture["title"], notes=notes)


_CHARTS: dict[PictureKind, Callable[[Mapping[str, Any]], Markup]] = {
    PictureKind.LINES: lambda p: series_chart(
        p["x"], {clean(name): own for name, own in p["ys"].items()}, title=p["title"]
    ),
    PictureKind.MATRIX: _matrix,
    PictureKind.SCATTER: lambda p: scatter_chart(
        p["x"], p["y"], p["group"], [clean(name) for name in p["labels"]], title=p["title"]
    ),
}
