"""Pictures of fitted independent components, as data for a report."""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.models.ica.recovery import LIGHT_TAILS
from distmom.spectral.pictures import bars, matrix, spectrum

#: largest numbers of components and columns in the picture of the mixing
_MOST_COMPONENTS, _MOST_COLUMNS = 30, 40


def pictures_of(model: Any) -> list[dict[str, Any]]:
    """Return the kurtoses, the columns that components move most, and the spectrum of the covariance."""
    k = len(model.kurtosis_)
    names = [f"component {i}" for i in range(k)]
    facts = model.diagnostics_
    level = facts["kurtosis_level"]
    rows = np.asarray(model.mixing_.T[:_MOST_COMPONENTS])
    top = np.sort(np.argsort(-np.abs(rows).max(axis=0), kind="stable")[:_MOST_COLUMNS])
    columns = model.vocabulary_ or [str(i) for i in range(model.n_features_in_)]
    return [
        bars(
            "Excess kurtosis",
            f"Of every source; between {-level / LIGHT_TAILS:.3g} and {level:.3g} it is not distinguished from "
            "that of Gaussian rows.",
            names,
            model.kurtosis_,
        ),
        matrix(
            "Mixing",
            "Change of the columns that components move most when a source increases by one.",
            rows[:, top],
            names[:_MOST_COMPONENTS],
            [columns[i] for i in top],
        ),
        spectrum("Leading eigenvalues of the covariance.", facts["spectrum"]),
    ]
