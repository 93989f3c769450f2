"""Pictures of a hidden Markov model, as data for a report."""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.spectral.pictures import bars, matrix


def pictures_of(model: Any, n_top: int) -> list[dict[str, Any]]:
    """Return the pictures of a fitted model; see `HiddenMarkov.pictures`."""
    names = [f"state {h}" for h in range(len(model.startprob_))]
    found = [
        matrix(
            "Transition matrix",
            "Probability of the state in the column after the state in the row.",
            model.transmat_,
            names,
            names,
        )
    ]
    if model.emissionprob_ is None:
        found.append(
            matrix("Means", "Mean of each value in each state.", model.means_, names, model.vocabulary_)
        )
        return found
    for name, row in zip(names, model.emissionprob_, strict=True):
        top = np.argsort(-row, kind="stable")[:n_top]
        symbols = [model.vocabulary_[i] for i in top]
        found.append(bars(f"Emissions of {name}", "The most probable symbols.", symbols, row[top]))
    return found
