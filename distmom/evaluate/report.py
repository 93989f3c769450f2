"""A report of a fitted multi-label model as one HTML file that needs nothing else and runs nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup
from sklearn.utils.validation import check_is_fitted

from distmom.evaluate.charts import bar_chart, line_chart
from distmom.evaluate.page import (
    N_TOP,
    Row,
    cards,
    configuration,
    is_number,
    number,
    percent,
    template,
    write_page,
)
from distmom.models.multilabel.estimator import MultiLabelMoM

_DEPTH_METRICS = ("P", "nDCG", "PSP", "PSnDCG", "recall")
_HISTORY = {
    "sweep": (
        "Joint diagonalisation",
        "sweep",
        "Share of the slices' energy off the diagonal after each sweep.",
    ),
    "polar": ("Polar steps", "step", "Relative residual of the tensor after each step."),
    "deflation": ("Power method", "component", "Eigenvalue found before each deflation."),
}


def write_report(
    model: MultiLabelMoM, out: str | os.PathLike[str], *, metrics: Mapping[str, Any] | None = None
) -> None:
    """Write the report of a fitted model.

    Parameters
    ----------
    model : MultiLabelMoM
    out : path-like
        An HTML file; an existing one is replaced once the new one is whole.
    metrics : mapping of str to float, optional
        As from `distmom.evaluate.evaluation.evaluate_corpus`; entries that are not numbers are left out.

    Raises
    ------
    UsageError
        If the metrics are not a mapping, or there is no directory to write into.
    """
    check_is_fitted(model, "scorer_")
    write_page(out, metrics, lambda: render_report(model, metrics=metrics))


def render_report(model: MultiLabelMoM, *, metrics: Mapping[str, Any] | None = None) -> str:
    """Return the report as HTML; see `write_report`."""
    diagnostics = dict(model.diagnostics_)
    has_states = hasattr(model, "components_")
    page = template("report.html.j2").render(
        head=model.head,
        facts=_facts(model, has_states),
        metrics=_metric_table(metrics or {}),
        counts=_metric_counts(metrics or {}),
        measured=metrics is not None,
        selection=_selection(model),
        states=cards(model.topics(N_TOP)) if has_states else [],
        states_error=diagnostics.get("states_error"),
        spectrum=_spectrum(model, diagnostics) if has_states else None,
        histories=_histories(diagnostics),
        fit_rows=_fit_rows(diagnostics) if has_states else [],
        weights=_weights(model) if has_states else None,
        bounds=_bounds(diagnostics),
        **configuration(model),
    )
    return str(page)


def _facts(model: MultiLabelMoM, has_states: bool) -> list[Row]:
    return [
        Row("training documents", number(model.n_documents_)),
        Row("words", number(model.n_features_in_)),
        Row("labels", number(len(model.label_names_))),
        Row("latent states", number(len(model.weights_)) if has_states else "none"),
        Row("passes", number(len(model.timings_))),
        Row("fitted in", f"{model.fit_seconds_:,.1f} s"),
        Row("scored by", ", ".join(name for name, _ in model.scorer_.heads)),
    ]


def _metric_table(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Arrange ``name@k`` as rows of names and columns of k."""
    depths = sorted(
        {
            int(depth)
            for name, _, depth in (key.partition("@") for key in metrics if isinstance(key, str))
            if name in _DEPTH_METRICS and depth.isdecimal() and len(depth) < 9
        }
    )
    rows = []
    for name in _DEPTH_METRICS:
        cells = [metrics.get(f"{name}@{depth}") for depth in depths]
        if any(is_number(cell) for cell in cells):
            rows.append(Row(name, "", _METRIC_NOTES[name]))
    return {
        "depths": depths,
        "rows": [(row, [_share(metrics.get(f"{row.name}@{depth}")) for depth in depths]) for row in rows],
    }


_METRIC_NOTES = {
    "P": "share of the k first labels that are right",
    "nDCG": "P@k with early places counting more, over the best possible",
    "PSP": "P@k with rare labels counting more, over the best possible",
    "PSnDCG": "nDCG@k with rare labels counting more, over the best possible",
    "recall": "share of a document's labels among the k first",
}


def _share(value: Any) -> str:
    if not is_number(value):
        return ""
    return "not defined" if math.isnan(value) else f"{value:.4f}"


def _metric_counts(metrics: Mapping[str, Any]) -> list[Row]:
    notes = {
        "AUC": "chance that a label of a document is scored above another label",
        "AUC_listed": "the same from the ranked lists alone, all other labels tied below",
        "n_documents": "documents measured",
        "n_unlabelled": "of them without any label",
        "n_auc": "documents on which AUC was measured",
        "n_unknown_words": "occurrences of words that the model does not know",
        "n_unknown_labels": "labels of these documents that the model does not know",
    }
    return [
        Row(name, _share(metrics[name]) if name.startswith("AUC") else number(metrics[name]), note)
        for name, note in notes.items()
        if is_number(metrics.get(name))
    ]


def _selection(model: MultiLabelMoM) -> dict[str, Any] | None:
    """Arrange what ``auto`` chose and the held-out scores, best head first."""
    if not model.selection_:
        return None
    weights, held_out = model.selection_["weights"], model.selection_["held_out"]
    keys = list(dict.fromkeys(key for scores in held_out.values() for key in scores))
    first = keys[0] if keys else ""
    order = sorted(held_out, key=lambda name: (name != "auto", -held_out[name].get(first, 0.0), name))
    best = {key: max(scores.get(key, 0.0) for scores in held_out.values()) for key in keys}
    return {
        "keys": keys,
        "n_documents": number(model.selection_["n_held_out"]),
        "rows": [
            {
                "name": "blend" if name == "auto" else name,
                "chosen": name == "auto" or name in weights,
                "weight": number(weights[name]) if name in weights else "",
                "cells": [
                    (_share(held_out[name].get(key)), percent(held_out[name].get(key, 0.0), best[key]))
                    for key in keys
                ],
            }
            for name in order
        ],
    }


def _spectrum(model: MultiLabelMoM, diagnostics: Mapping[str, Any]) -> dict[str, Any]:
    values = [float(v) for v in model.spectrum_]
    k = len(model.weights_) + int(diagnostics.get("n_dropped", 0))
    chart = line_chart(
        values,
        title=f"Eigenvalues of the second moment, {k} states taken",
        x_label="eigenvalue, by falling size",
        log=True,
        mark=k + 0.5 if k < len(values) else float(k),
        mark_label=f"{k} states",
        level=diagnostics.get("noise_level"),
        level_label="noise level",
    )
    gap = diagnostics.get("gap")
    return {
        "chart": chart,
        "k": k,
        "n": len(values),
        "gap": None if gap is None else number(gap),
        "usable": number(diagnostics["n_usable_eigenvalues"])
        if "n_usable_eigenvalues" in diagnostics
        else None,
        "negative": any(v < 0 for v in values),
    }


def _histories(diagnostics: Mapping[str, Any]) -> list[dict[str, Any]]:
    series: dict[str, list[float]] = {}
    for name, value in diagnostics.get("history", []):
        series.setdefault(name, []).append(float(value))
    return [
        {
            "title": title,
            "note": note,
            "chart": line_chart(series[name], title=f"{title}: {note}", x_label=x_label),
        }
        for name, (title, x_label, note) in _HISTORY.items()
        if name in series
    ]


def _fit_rows(diagnostics: Mapping[str, Any]) -> list[Row]:
    """Return the diagnostics of the states, each with one sentence on how to read it."""
    shown: list[tuple[str, Any, str]] = []

    def show(name: str, key: str, note: str) -> None:
        if is_number(diagnostics.get(key)) or isinstance(diagnostics.get(key), bool):
            shown.append((name, diagnostics[key], note))

    def show_list(name: str, key: str, note: str) -> None:
        values = [float(x) for x in diagnostics.get(key, [])]
        if values:
            shown.append((f"{name}, mean", sum(values) / len(values), note))
            shown.append((f"{name}, largest", max(values), "The same of the state where it is largest."))

    show(
        "slices of the third moment", "n_slices",
        "The third moment was not formed whole: residual and off-diagonal share are estimates from its slices.",
    )  # fmt: skip
    show(
        "residual", "residual",
        "Share of the third moment's norm that the states leave unexplained: near 0 the single-state model holds, "
        "near 1 the states are a summary and no more.",
    )  # fmt: skip
    show(
        "off-diagonal share", "off_diagonal_share",
        "Share of the third moment's energy between different states: 0 for exact moments of the model.",
    )  # fmt: skip
    show(
        "converged",
        "converged",
        "Whether the decomposition ended by its own criterion, not by its step limit.",
    )
    show("states dropped", "n_dropped", "States without a usable weight that were left out.")
    show(
        "sum of pi", "sum_pi",
        "Sum of the state weights before they were normalised: 1 when the model holds and all moments weight "
        "documents alike. Otherwise read the weights as an order, not as shares.",
    )  # fmt: skip
    show_list(
        "clipped mass of words", "clipped_words",
        "Negative share of a state's word probabilities, set to zero: small for states that were recovered well.",
    )  # fmt: skip
    show_list(
        "clipped mass of labels", "clipped_labels",
        "The same for the label probabilities of the head moment.",
    )  # fmt: skip
    show(
        "mean log-likelihood", "mean_log_likelihood",
        "Natural logarithm of a training document's probability, averaged: compare it only between fits to one "
        "corpus.",
    )  # fmt: skip
    show("mean number of words", "mean_length", "Distinct words of a training document.")
    show("documents with three words", "n_with_triples", "Shorter documents say nothing on the third moment.")
    return [Row(name, number(value), note) for name, value, note in shown]


def _weights(model: MultiLabelMoM) -> Markup:
    return bar_chart(
        sorted((float(w) for w in model.weights_), reverse=True),
        title="Weights of the states by falling size",
        x_label="state, by falling weight",
    )


def _bounds(diagnostics: Mapping[str, Any]) -> dict[str, Any] | None:
    bounds = diagnostics.get("bounds")
    if not bounds:
        return None
    names = {
        "words": "Euclidean distance of a state's word probabilities from the true ones.",
        "labels": "Euclidean distance of a state's label probabilities from the true ones.",
        "weights": "Distance of a state's weight from the true one.",
    }
    finite = [bounds[name] for name in names if name in bounds]
    return {
        "chance": number(1.0 - bounds.get("delta", 0.05)),
        "rows": [Row(name, number(bounds[name]), note) for name, note in names.items() if name in bounds],
        "loose": bool(finite) and min(finite) > 1.0,
    }
