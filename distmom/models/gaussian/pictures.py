"""Pictures of a fitted mixture of spherical Gaussians, as data for a report."""

from __future__ import annotations

from typing import Any

import numpy as np


def mixture_pictures(model: Any) -> list[dict[str, Any]]:
    """Return the components in their leading plane, the weights and the spectrum."""
    points = np.zeros((len(model.kept_), 2))
    points[:, : model.kept_.shape[1]] = model.kept_
    centers = np.zeros((len(model.means_), 2))
    centers[:, : len(model.axes_)] = (model.means_ - model.center_) @ model.axes_.T
    both = np.concatenate([points, centers])
    n, names = len(model.means_), [str(i) for i in range(len(model.means_))]
    spectrum = model.diagnostics_["spectrum"]
    return [
        {
            "kind": "scatter",
            "title": "Components in their leading plane",
            "caption": f"{len(points)} random rows and, with their numbers, the means, along the two leading "
            "eigenvectors of the covariance; rows have the color of their most probable component.",
            "x": [float(x) for x in both[:, 0]],
            "y": [float(x) for x in both[:, 1]],
            "group": [int(i) for i in model.kept_components_] + list(range(n)),
            "labels": [""] * len(points) + names,
        },
        {
            "kind": "bars",
            "title": "Weights",
            "caption": "Probability of every component.",
            "names": names,
            "values": [float(x) for x in model.weights_],
        },
        {
            "kind": "lines",
            "title": "Spectrum",
            "caption": "Leading eigenvalues of the covariance, and the variance of the noise; components are "
            f"found in the first {n - 1}.",
            "x": list(range(1, len(spectrum) + 1)),
            "ys": {
                "eigenvalues": spectrum,
                "noise": [model.diagnostics_["noise_variance"]] * len(spectrum),
            },
        },
    ]
