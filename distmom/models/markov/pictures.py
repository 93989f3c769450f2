"""Pictures of a hidden Markov model, as data for a report."""

from __future__ import annotations

from typing import Any

import numpy as np


def pictures_of(model: Any, n_top: int) -> list[dict[str, Any]]:
    """Return the pictures of a fitted model; see `HiddenMarkov.pictures`."""
    names = [f"state {h}" for h in range(len(model.startprob_))]
    found: list[dict[str, Any]] = [
        {
            "kind": "matrix",
            "title": "Transition matrix",
            "caption": "Probability of the state in the column after the state in the row.",
            "values": np.asarray(model.transmat_).tolist(),
            "rows": names,
            "columns": names,
        }
    ]
    if model.emissionprob_ is None:
        found.append(
            {
                "kind": "matrix",
                "title": "Means",
                "caption": "Mean of each value in each state.",
                "values": np.asarray(model.means_).tolist(),
                "rows": names,
                "columns": list(model.vocabulary_),
            }
        )
        return found
    for name, row in zip(names, model.emissionprob_, strict=True):
        top = np.argsort(-row, kind="stable")[:n_top]
        found.append(
            {
                "kind": "bars",
                "title": f"Emissions of {name}",
                "caption": "The most probable symbols.",
                "names": [model.vocabulary_[i] for i in top],
                "values": [float(row[i]) for i in top],
            }
        )
    return found
