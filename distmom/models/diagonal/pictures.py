"""Pictures of a fitted mixture of axis-aligned Gaussians, as data for a report."""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.spectral.pictures import bars, lines, matrix


def pictures_of(model: Any, n_top: int) -> list[dict[str, Any]]:
    """Return the pictures of a fitted model; see `DiagonalMixture.pictures`."""
    names = [f"component {h}" for h in range(len(model.weights_))]
    within = np.sqrt(model.weights_ @ model.variances_)
    deviations = (model.means_ - model.weights_ @ model.means_) / within
    ratios = np.sqrt(model.variances_) / within
    top = np.sort(np.argsort(-np.abs(deviations).max(axis=0), kind="stable")[:n_top])
    columns = [model.vocabulary_[i] for i in top]
    found = [
        bars("Weights", "Probability of every component.", names, model.weights_),
        matrix(
            "Means",
            "Means of the columns that set components apart most, less those of all rows, in average standard "
            "deviations within components.",
            deviations[:, top],
            names,
            columns,
        ),
        matrix(
            "Spread",
            "Standard deviations of the same columns, as a share of their average within components.",
            ratios[:, top],
            names,
            columns,
        ),
    ]
    likelihoods = model.diagnostics_.get("log_likelihoods", [])
    if len(likelihoods) > 1:
        caption = "Average per row before each iteration of EM; more iterations help if it still rises."
        found.append(lines("Log-likelihood", caption, {"log-likelihood": likelihoods}))
    return found
