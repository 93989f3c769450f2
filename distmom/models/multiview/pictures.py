"""Pictures of a fitted mixture of three views, as data for a report."""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.models.multiview.reading import loadings_of
from distmom.moments.dense_rows import view_slices
from distmom.spectral.pictures import bars, matrix


def pictures_of(model: Any, n_top: int) -> list[dict[str, Any]]:
    """Return the pictures of a fitted model; see `MultiView.pictures`."""
    shares = model.diagnostics_["explained"]
    title, caption, values, name, between, what = _of_hidden(model)
    names = [f"{name} {h}" for h in range(len(values))]
    found = [
        bars(title, caption, names, values),
        bars(
            "Views",
            f"Share of the variance that {between}.",
            [f"view {t + 1}" for t in range(len(shares))],
            shares,
        ),
    ]
    deviations = loadings_of(model) / np.sqrt(model.variances_)
    for t, cut in enumerate(view_slices(tuple(model.widths_))):
        own = deviations[:, cut]
        top = np.sort(np.argsort(-np.abs(own).max(axis=0), kind="stable")[:n_top])
        columns = [model.vocabulary_[cut.start + i] for i in top]
        found.append(matrix(f"View {t + 1}", what, own[:, top], names, columns))
    return found


def _of_hidden(model: Any) -> tuple[str, str, np.ndarray, str, str, str]:
    """Return the title, the caption and the values of the first picture, and the words of the others."""
    if model.weights_ is None:
        what = (
            "Effects of the factors on the columns that they change most, in standard deviations given the "
            "factors."
        )
        return "Skewness", "Skewness of every factor.", model.skewness_, "factor", "factors account for", what
    chance = "Probability" if model.alpha_ is None else "Average share"
    what = (
        "Means of the columns that set components apart most, less those of all rows, in standard deviations "
        "within components."
    )
    return (
        "Weights",
        f"{chance} of every component.",
        model.weights_,
        "component",
        "lies between components",
        what,
    )
