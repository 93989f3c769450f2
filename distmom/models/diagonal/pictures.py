"""What a report draws of a mixture of axis-aligned Gaussians."""

from __future__ import annotations

from typing import Any

import numpy as np


def pictures_of(model: Any, n_top: int) -> list[dict[str, Any]]:
    """Return the pictures of a fitted model; see `DiagonalMixture.pictures`."""
    names = [f"component {h}" for h in range(len(model.weights_))]
    within = np.sqrt(model.weights_ @ model.variances_)
    deviations = (model.means_ - model.weights_ @ model.means_) / within
    ratios = np.sqrt(model.variances_) / within
    top = np.sort(np.argsort(-np.abs(deviations).max(axis=0), kind="stable")[:n_top])
    columns = [model.vocabulary_[i] for i in top]
    found: list[dict[str, Any]] = [
        {
            "kind": "bars", "title": "Weights", "caption": "Probability of every component.",
            "names": names, "values": [float(x) for x in model.weights_],
        },
        {
            "kind": "matrix", "title": "Means",
            "caption": "Means of the columns that set components apart most, less those of all rows, in average "
            "standard deviations within components.",
            "values": deviations[:, top].tolist(), "rows": names, "columns": columns,
        },
        {
            "kind": "matrix", "title": "Spread",
            "caption": "Standard deviations of the same columns, as a share of their average within components.",
            "values": ratios[:, top].tolist(), "rows": names, "columns": columns,
        },
    ]  # fmt: skip
    likelihoods = model.diagnostics_.get("log_likelihoods", [])
    if len(likelihoods) > 1:
        found.append(
            {
                "kind": "lines", "title": "Log-likelihood",
                "caption": "Average per row before each iteration of EM; more iterations help if it still rises.",
                "x": list(range(1, len(likelihoods) + 1)), "ys": {"log-likelihood": likelihoods},
            }
        )  # fmt: skip
    return found
