"""Pictures of a fitted mixture of spherical Gaussians, as data for a report."""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.spectral.pictures import bars, lines, scatter


def mixture_pictures(model: Any) -> list[dict[str, Any]]:
    """Return the components in their leading plane, the weights and the spectrum."""
    points = np.zeros((len(model.kept_), 2))
    points[:, : model.kept_.shape[1]] = model.kept_
    centers = np.zeros((len(model.means_), 2))
    centers[:, : len(model.axes_)] = (model.means_ - model.center_) @ model.axes_.T
    n, names = len(model.means_), [str(i) for i in range(len(model.means_))]
    eigenvalues = model.diagnostics_["spectrum"]
    return [
        scatter(
            "Components in their leading plane",
            f"{len(points)} random rows and, with their numbers, the means, along the two leading eigenvectors of "
            "the covariance; rows have the colour of their most probable component.",
            np.concatenate([points, centers]),
            [int(i) for i in model.kept_components_] + list(range(n)),
            [""] * len(points) + names,
        ),
        bars("Weights", "Probability of every component.", names, model.weights_),
        lines(
            "Spectrum",
            "Leading eigenvalues of the covariance, and the variance of the noise; components are found in the "
            f"first {n - 1}.",
            {
                "eigenvalues": eigenvalues,
                "noise": [model.diagnostics_["noise_variance"]] * len(eigenvalues),
            },
        ),
    ]
