"""Pictures of a factorial hidden Markov model, as data for a report."""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.spectral.pictures import bars, matrix


def pictures_of(model: Any, n_top: int) -> list[dict[str, Any]]:
    """Return the pictures of a fitted model; see `FactorialHMM.pictures`."""
    names = [f"chain {i}" for i in range(len(model.startprob_))]
    rows = np.asarray(model.components_)
    deviations = np.sqrt(np.asarray(model.variances_))
    top = np.sort(np.argsort(-np.abs(rows / deviations).max(axis=0), kind="stable")[:n_top])
    return [
        matrix(
            "Chains",
            "Probability of +1 at the first step, and of a change from +1 to -1 and from -1 to +1.",
            np.column_stack([model.startprob_, model.fall_, model.rise_]),
            names,
            ["first step", "+1 to -1", "-1 to +1"],
        ),
        bars(
            "Memory",
            "Correlation of a chain at one step with the next, where it is stationary.",
            names,
            model.diagnostics_["memory"],
        ),
        matrix(
            "Components",
            "Half the difference that a chain makes, for the values that chains move most in standard deviations "
            "of the noise.",
            rows[:, top],
            names,
            [model.vocabulary_[j] for j in top],
        ),
    ]
