"""What a report draws of a mixture of three views."""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.moments.multiview import view_slices


def pictures_of(model: Any, n_top: int) -> list[dict[str, Any]]:
    """Return the pictures of a fitted model; see `MultiView.pictures`."""
    names = [f"component {h}" for h in range(len(model.weights_))]
    shares = model.diagnostics_["explained"]
    found: list[dict[str, Any]] = [
        {
            "kind": "bars", "title": "Weights", "caption": "Probability of every component.",
            "names": names, "values": [float(x) for x in model.weights_],
        },
        {
            "kind": "bars", "title": "Views", "caption": "Share of the variance that lies between components.",
            "names": [f"view {t + 1}" for t in range(len(shares))], "values": shares,
        },
    ]  # fmt: skip
    deviations = (model.components_ - model.weights_ @ model.components_) / np.sqrt(model.variances_)
    for t, cut in enumerate(view_slices(tuple(model.widths_))):
        own = deviations[:, cut]
        top = np.sort(np.argsort(-np.abs(own).max(axis=0), kind="stable")[:n_top])
        found.append(
            {
                "kind": "matrix", "title": f"View {t + 1}",
                "caption": "Means of the columns that set components apart most, less those of all rows, in "
                "standard deviations within components.",
                "values": own[:, top].tolist(), "rows": names,
                "columns": [model.vocabulary_[cut.start + i] for i in top],
            }
        )  # fmt: skip
    return found
