"""Pictures of fitted independent components, as data for a report."""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.models.ica.recovery import LIGHT_TAILS

#: components and columns of the picture of the mixing, at most
_MOST_COMPONENTS, _MOST_COLUMNS = 30, 40


def pictures_of(model: Any) -> list[dict[str, Any]]:
    """Return the kurtoses, the columns that components move most, and the spectrum of the covariance."""
    k = len(model.kurtosis_)
    names = [f"component {i}" for i in range(k)]
    facts = model.diagnostics_
    spectrum, level = facts["spectrum"], facts["kurtosis_level"]
    rows = np.asarray(model.mixing_.T[:_MOST_COMPONENTS])
    top = np.sort(np.argsort(-np.abs(rows).max(axis=0), kind="stable")[:_MOST_COLUMNS])
    columns = model.vocabulary_ or [str(i) for i in range(model.n_features_in_)]
    return [
        {
            "kind": "bars",
            "title": "Excess kurtosis",
            "caption": f"Of every source; between {-level / LIGHT_TAILS:.3g} and {level:.3g} it is not "
            "distinguished from that of Gaussian rows.",
            "names": names,
            "values": [float(x) for x in model.kurtosis_],
        },
        {
            "kind": "matrix",
            "title": "Mixing",
            "caption": "Change of the columns that components move most when a source increases by one.",
            "values": rows[:, top].tolist(),
            "rows": names[:_MOST_COMPONENTS],
            "columns": [columns[i] for i in top],
        },
        {
            "kind": "lines",
            "title": "Spectrum",
            "caption": "Leading eigenvalues of the covariance.",
            "x": list(range(1, len(spectrum) + 1)),
            "ys": {"eigenvalues": spectrum},
        },
    ]
