"""Report of a fitted multi-label model as one self-contained HTML file without scripts."""

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
from distmom.evaluate.reliability import reliability_section
from distmom.models.multilabel.estimator import MultiLabelMoM
from distmom.spectral.capabilities import Capability, require

_DEPTH_METRICS = ("P", "nDCG", "PSP", "PSnDCG", "recall")
_HISTORY = {
    "sweep": (
        "Joint diagonalisation",
        "sweep",
        "Share of the slices' energy that is off the diagonal after each sweep.",
    ),
    "polar": ("Polar steps", "step", "Relative residual of the tensor after each step."),
    "deflation": ("Power method", "component", "Eigenvalue estimated before each deflation."),
}


def write_label_report(
    model: MultiLabelMoM, out: str | os.PathLike[str], *, metrics: Mapping[str, Any] | None = None
) -> None:
    """Write the report of a fitted model.

    Parameters
    ----------
    model : MultiLabelMoM
    out : path-like
        HTML file; an existing file is replaced atomically.
    metrics : mapping of str to float, optional
        As returned by `distmom.evaluate.evaluation.evaluate_corpus`; other entries that are not numbers are
        omitted. No metrics by default.

    Raises
    ------
    UsageError
        If the model ranks no labels, ``metrics`` is not a mapping, or the parent directory of ``out`` does not
        exist.
    """
    check_is_fitted(model)
    require(model, Capability.LABELS)
    write_page(out, metrics, lambda: render_label_report(model, metrics=metrics))


def render_label_report(model: MultiLabelMoM, *, metrics: Mapping[str, Any] | None = None) -> str:
    """Return the report as HTML; see `write_label_report`."""
    diagnostics = dict(model.diagnostics_)
    has_states, topics = hasattr(model, "components_"), model.corpus_topics_
    page = template("labels.html.j2").render(
        head=model.as_fitted().head,
        facts=_facts(model, has_states),
        metrics=_metric_table(metrics or {}),
        counts=_metric_counts(metrics or {}),
        measured=metrics is not None,
        selection=_selection(model),
        reliability=reliability_section(
            metrics, model.selection_ if model.scorer_.has_probabilities else None
        ),
        topics=cards(model.topics(N_TOP)) if topics is not None else [],
        background="" if topics is None else f"{100.0 * float(topics.weights[-1]):.0f} %",
        topics_error=diagnostics.get("topics_error"),
        states=cards(model.topics(N_TOP, states=True)) if has_states else [],
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
        Row(
            "topics",
            "none" if model.corpus_topics_ is None else number(len(model.corpus_topics_.weights) - 1),
        ),
        Row("latent states", number(len(model.weights_)) if has_states else "none"),
        Row("passes", number(len(model.timings_))),
        Row("fit time", f"{model.fit_seconds_:,.1f} s"),
        Row("heads", ", ".join(name for name, _ in model.scorer_.heads)),
    ]


def _metric_table(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Arrange entries ``name@k`` in a table with rows of names and columns of k."""
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
    "P": "share of the top k labels that are correct",
    "nDCG": "P@k with higher weight on top positions, relative to the best possible value",
    "PSP": "P@k with higher weight on rare labels, relative to the best possible value",
    "PSnDCG": "nDCG@k with higher weight on rare labels, relative to the best possible value",
    "recall": "share of a document's labels that are among the top k",
}


def _share(value: Any) -> str:
    if not is_number(value):
        return ""
    return "not defined" if math.isnan(value) else f"{value:.4f}"


def _metric_counts(metrics: Mapping[str, Any]) -> list[Row]:
    notes = {
        "AUC": "probability that a label of a document has a higher score than another label",
        "AUC_listed": "the same from the ranked lists only, with all other labels tied below them",
        "n_documents": "number of documents evaluated",
        "n_unlabelled": "number of these documents without labels",
        "n_auc": "number of documents on which AUC was measured",
        "F1_micro": "F1 of all pairs of a document and a label that are assigned at the threshold of probability",
        "F1_macro": "mean F1 of the labels that a document has or is assigned",
        "ECE": "mean difference between the probability of a label and the share observed at this probability",
        "threshold": "probability from which labels are assigned",
        "n_assigned": "number of pairs of a document and a label that are assigned",
        "n_unknown_words": "number of occurrences of words unknown to the model",
        "n_unknown_labels": "number of labels of these documents unknown to the model",
    }
    return [
        Row(name, number(metrics[name]) if name.startswith("n_") else _share(metrics[name]), note)
        for name, note in notes.items()
        if is_number(metrics.get(name))
    ]


def _selection(model: MultiLabelMoM) -> dict[str, Any] | None:
    """Arrange the choice of ``auto`` and the held-out scores, best head first."""
    if not model.selection_:
        return None
    weights, held_out = model.selection_["weights"], model.selection_["held_out"]
    keys = list(dict.fromkeys(key for scores in held_out.values() for key in scores))
    first = keys[0] if keys else ""
    order = sorted(held_out, key=lambda name: (name != "auto", -held_out[name].get(first, 0.0), name))
    best = {key: max(scores.get(key, 0.0) for scores in held_out.values()) for key in keys}
    return {
        "keys": keys,
        "ranks_again": "blend" in held_out,
        "n_documents": number(model.selection_["n_held_out"]),
        "rows": [
            {
                "name": name,
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
        title=f"Eigenvalues of the second moment, {k} states used",
        x_label="eigenvalue, by decreasing magnitude",
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
    """Return the diagnostics of the states, each with one sentence of interpretation."""
    shown: list[tuple[str, Any, str]] = []

    def show(name: str, key: str, note: str) -> None:
        if is_number(diagnostics.get(key)) or isinstance(diagnostics.get(key), bool):
            shown.append((name, diagnostics[key], note))

    def show_list(name: str, key: str, note: str) -> None:
        values = [float(x) for x in diagnostics.get(key, [])]
        if values:
            shown.append((f"{name}, mean", sum(values) / len(values), note))
            shown.append((f"{name}, largest", max(values), "The same for the state where it is largest."))

    show(
        "slices of the third moment", "n_slices",
        "The full third moment was not formed: residual and off-diagonal share are estimates from its slices.",
    )  # fmt: skip
    show(
        "residual", "residual",
        "Share of the third moment's norm not explained by the states: near 0, the single-state model holds; "
        "near 1, the states are only a summary.",
    )  # fmt: skip
    show(
        "off-diagonal share", "off_diagonal_share",
        "Share of the third moment's energy between different states; 0 for exact moments of the model.",
    )  # fmt: skip
    show(
        "converged",
        "converged",
        "Whether the decomposition met its convergence criterion before the step limit.",
    )
    show("states dropped", "n_dropped", "Number of states left out because they have no usable weight.")
    show(
        "sum of pi", "sum_pi",
        "Sum of the state weights before normalisation: 1 if the model holds and all moments weight documents "
        "equally. Otherwise, interpret the weights as an order, not as shares.",
    )  # fmt: skip
    show_list(
        "clipped mass of words", "clipped_words",
        "Negative share of a state's word probabilities, which was set to zero: small for well recovered states.",
    )  # fmt: skip
    show_list(
        "clipped mass of labels", "clipped_labels",
        "The same for the label probabilities of the head moment.",
    )  # fmt: skip
    show(
        "mean log-likelihood", "mean_log_likelihood",
        "Mean natural logarithm of the probability of a training document; comparable only between fits to the "
        "same corpus.",
    )  # fmt: skip
    show("mean number of words", "mean_length", "Mean number of distinct words in a training document.")
    show(
        "documents with three words",
        "n_with_triples",
        "Shorter documents do not contribute to the third moment.",
    )
    return [Row(name, number(value), note) for name, value, note in shown]


def _weights(model: MultiLabelMoM) -> Markup:
    return bar_chart(
        sorted((float(w) for w in model.weights_), reverse=True),
        title="Weights of the states in decreasing order",
        x_label="state, by decreasing weight",
    )


def _bounds(diagnostics: Mapping[str, Any]) -> dict[str, Any] | None:
    bounds = diagnostics.get("bounds")
    # Models of earlier versions have the bounds as printed, which do not hold.
    if not bounds or "pairs" not in bounds:
        return None
    names = {
        "pairs": "Error of the second moment, in Frobenius norm.",
        "triples": "Error of the third moment.",
        "label_pairs": "Error of the moment of labels and pairs of words.",
        "words": "Euclidean distance between estimated and true word probabilities of a state.",
        "labels": "Euclidean distance between estimated and true label probabilities of a state.",
        "weights": "Difference between estimated and true weight of a state.",
    }
    known = {name: bounds[name] for name in names if name in bounds}
    of_states = [known.get(name) for name in ("words", "labels", "weights")]
    return {
        "chance": number(1.0 - bounds.get("delta", 0.05)),
        "rows": [
            Row(
                "labels and pairs" if name == "label_pairs" else name,
                "none" if value is None else number(value),
                names[name],
            )
            for name, value in known.items()
        ],
        "loose": all(value is None or value > 1.0 for value in of_states),
    }
