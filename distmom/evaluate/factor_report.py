"""Report of a fitted model of factors of views as one self-contained HTML file without scripts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from sklearn.utils.validation import check_is_fitted

from distmom.evaluate.charts import bar_chart, line_chart
from distmom.evaluate.page import (
    N_TOP,
    Row,
    configuration,
    is_number,
    number,
    percent,
    template,
    write_page,
)
from distmom.models.eca.estimator import ECA
from distmom.spectral.capabilities import Capability, require

_FIT_NOTES = {
    "n_groups": "number of groups used",
    "n_dropped_groups": "number of groups left out because they have too few views",
    "n_rejected": "number of components left out because they cannot be distinguished from each other",
    "gap": "relative drop of the second moment's eigenvalues after the last component: 1 for exact moments",
    "smallest_eigenvalue": "eigenvalue of the second moment for the last component",
    "noise_level": "magnitude of the sampling error of an eigenvalue",
    "off_diagonal_share": "share of the moments' energy between different components: 0 if the model holds and "
    "there is no sampling error",
    "skewness_level": "magnitude of the sampling error of a skewness",
    "kurtosis_level": "magnitude of the sampling error of an excess kurtosis",
    "proportions_disagreement": "largest difference between proportions computed in four ways: large if alpha0 "
    "does not fit the data",
}


def write_factor_report(model: ECA, out: str | os.PathLike[str]) -> None:
    """Write the report of a model of factors.

    Parameters
    ----------
    model : ECA
    out : path-like
        HTML file; an existing file is replaced atomically.

    Raises
    ------
    UsageError
        If the model infers no factors, or the parent directory of ``out`` does not exist.
    """
    check_is_fitted(model)
    require(model, Capability.FACTORS)
    write_page(out, None, lambda: render_factor_report(model))


def render_factor_report(model: ECA) -> str:
    """Return the report as HTML; see `write_factor_report`."""
    diagnostics = model.diagnostics_
    order = component_order(model)
    spectrum, k = [float(x) for x in diagnostics["spectrum"]], int(diagnostics["n_components"])
    page = template("factors.html.j2").render(
        prior=model.as_fitted().prior,
        facts=_facts(model),
        components=_cards(model, order),
        table=_table(model, order),
        has_kurtosis=bool(np.isfinite(model.kurtosis_).any()),
        has_proportions=len(model.proportions_) > 0,
        charts=_charts(model, order),
        spectrum=line_chart(
            spectrum, title=f"Eigenvalues of the second moment, {k} components used",
            x_label="eigenvalue, by decreasing magnitude", log=True,
            mark=k + 0.5 if k < len(spectrum) else float(k), mark_label=f"{k} components",
            level=diagnostics.get("noise_level"), level_label="noise level",
        ),
        fit_rows=[
            Row(name.replace("_", " "), number(diagnostics[name]), note)
            for name, note in _FIT_NOTES.items()
            if is_number(diagnostics.get(name))
        ],
        **configuration(model),
    )  # fmt: skip
    return str(page)


def component_order(model: ECA) -> list[int]:
    """Return the components in the order of the report: by decreasing proportion, skewness or excess kurtosis."""
    strength = model.proportions_
    if not len(strength):
        strength = np.abs(model.kurtosis_ if model.as_fitted().orders == "4" else model.skewness_)
    return [int(i) for i in np.argsort(-strength, kind="stable")]


def _facts(model: ECA) -> list[Row]:
    return [
        Row("training groups", number(model.n_documents_)),
        Row("features", number(model.n_features_in_)),
        Row("components", number(len(model.components_))),
        Row("distribution of the factors", model.as_fitted().prior),
        Row("passes", number(len(model.timings_))),
        Row("fit time", f"{model.fit_seconds_:,.1f} s"),
    ]


def _cards(model: ECA, order: list[int]) -> list[dict[str, Any]]:
    """Return a card for every component, with its entries of largest magnitude."""
    found = []
    for i in order:
        row = model.components_[i]
        best = np.lexsort((np.arange(len(row)), -np.abs(row)))[: 2 * N_TOP]
        largest = float(np.abs(row[best[0]]))
        found.append(
            {
                "state": i,
                "weight": _strength(model, i),
                "width": percent(float(np.linalg.norm(row)), _largest_norm(model)),
                "words": [
                    {
                        "name": model.vocabulary_[j] if model.vocabulary_ else f"feature {j}",
                        "value": number(float(row[j])),
                        "width": percent(float(np.abs(row[j])), largest),
                        "has_error": False,
                    }
                    for j in best
                    if row[j] != 0.0
                ],
                "labels": [],
                "documents": [],
            }
        )
    return found


def _largest_norm(model: ECA) -> float:
    return float(np.linalg.norm(model.components_, axis=1).max())


def _strength(model: ECA, i: int) -> str:
    if len(model.proportions_):
        return f"proportion {number(float(model.proportions_[i]))}"
    if model.as_fitted().orders == "4":
        return f"kurtosis {number(float(model.kurtosis_[i]))}"
    return f"skewness {number(float(model.skewness_[i]))}"


def _table(model: ECA, order: list[int]) -> list[Mapping[str, str]]:
    """Return the numbers of every component, as text."""
    separation = model.diagnostics_["separation"]

    def shown(values: Any, i: int) -> str:
        return number(float(values[i])) if len(values) else ""

    return [
        {
            "name": str(i),
            "skewness": shown(model.skewness_, i),
            "kurtosis": shown(model.kurtosis_, i),
            "proportion": shown(model.proportions_, i),
            "alpha": shown(model.alpha_, i),
            "separation": "" if separation[i] is None else number(separation[i]),
        }
        for i in order
    ]


def _charts(model: ECA, order: list[int]) -> list[tuple[str, str, Markup]]:
    """Return title, explanation and picture of the numbers of the components that can be drawn."""
    x_label = "component, in the order above"
    charts = [
        (
            "Skewness",
            "Third central moment of a factor, in units of its standard deviation.",
            line_chart(model.skewness_[order].tolist(), title="Skewness of the factors", x_label=x_label),
        ),
        (
            "Excess kurtosis",
            "Fourth central moment of a factor in the same units, minus 3, that of a normal distribution.",
            line_chart(
                model.kurtosis_[order].tolist(), title="Excess kurtosis of the factors", x_label=x_label
            ),
        ),
    ]
    if len(model.proportions_):
        proportions = bar_chart(
            model.proportions_[order].tolist(), title="Proportions of the components", x_label=x_label
        )
        charts.append(("Proportions", "Average share of a component in a group.", proportions))
    return [chart for chart in charts if chart[2]]
