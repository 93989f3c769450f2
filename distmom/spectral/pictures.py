"""Pictures of fitted models as data for a report: bars, matrices, lines and scatter plots.

Each function returns JSON values: ``kind``, ``title``, ``caption``, and the values that the kind needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


class PictureKind(StrEnum):
    """A kind of picture; the value is the entry ``kind``."""

    BARS = "bars"
    LINES = "lines"
    MATRIX = "matrix"
    SCATTER = "scatter"


def bars(title: str, caption: str, names: Sequence[str], values: ArrayLike) -> dict[str, Any]:
    """Return a bar for every name, of lengths ``values`` (n,)."""
    lengths = [float(x) for x in np.asarray(values)]
    return _picture(PictureKind.BARS, title, caption, names=list(names), values=lengths)


def matrix(
    title: str, caption: str, values: ArrayLike, rows: Sequence[str], columns: Sequence[str]
) -> dict[str, Any]:
    """Return a table of values (n_rows, n_columns) with the names of its rows and columns."""
    cells = np.asarray(values).tolist()
    return _picture(PictureKind.MATRIX, title, caption, values=cells, rows=list(rows), columns=list(columns))


def lines(title: str, caption: str, ys: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return a line for every name in ``ys``, all with values at 1, 2, ..."""
    n = max(len(values) for values in ys.values())
    return _picture(PictureKind.LINES, title, caption, x=list(range(1, n + 1)), ys=dict(ys))


def scatter(
    title: str, caption: str, points: np.ndarray, groups: Sequence[int], labels: Sequence[str]
) -> dict[str, Any]:
    """Return points (n, 2) with the group and the label of each; an empty label is not shown."""
    x, y = np.asarray(points, np.float64).T.tolist()
    return _picture(PictureKind.SCATTER, title, caption, x=x, y=y, group=list(groups), labels=list(labels))


def spectrum(caption: str, eigenvalues: Sequence[float]) -> dict[str, Any]:
    """Return the line of some eigenvalues."""
    return lines("Spectrum", caption, {"eigenvalues": eigenvalues})


def _picture(kind: PictureKind, title: str, caption: str, **values: Any) -> dict[str, Any]:
    return {"kind": kind.value, "title": title, "caption": caption, **values}
