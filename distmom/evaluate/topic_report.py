"""A report of a topic model as one HTML file that needs nothing else and runs nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.evaluate.charts import bar_chart, disc_map, line_chart
from distmom.evaluate.report import N_TOP, Row, cards, configuration, is_number, number, template, write_page
from distmom.models.topic_model import TopicModel

_METRIC_NOTES = {
    "perplexity": "of the second half of every document, given the first; the lower the better",
    "log_likelihood": "of a position, the same on another scale",
    "NPMI": "how much the first words of a topic meet in documents: 1 always, 0 by chance, -1 never",
    "UMass": "the same on another scale, the nearer to 0 the better",
    "negative_NPMI": "share of the topics whose words meet less than by chance",
    "diversity": "share of different words among the first words of all topics",
    "n_documents": "documents measured",
    "n_tokens": "positions predicted",
}
_FIT_NOTES = {
    "residual": "what the decomposition leaves of the third moment, as a share of its norm: near 0 where "
    "documents follow the model",
    "off_diagonal_share": "the same as a share of its energy",
    "sum_proportions": "1 where alpha0 fits the documents",
    "n_usable_eigenvalues": "eigenvalues of the second moment above the noise",
    "noise_level": "how far sampling alone moves an eigenvalue",
    "n_moment_words": "words that the moments see",
    "mean_length": "words a document, counts capped",
}


def write_topic_report(
    model: TopicModel, out: str | os.PathLike[str], *, metrics: Mapping[str, Any] | None = None
) -> None:
    """Write the report of a topic model.

    Parameters
    ----------
    model : TopicModel
    out : path-like
        An HTML file; an existing one is replaced once the new one is whole.
    metrics : mapping of str to float, optional
        As from `distmom.evaluate.topics.evaluate_topics`; entries that are not numbers are left out.

    Raises
    ------
    UsageError
        If the metrics are not a mapping, or there is no directory to write into.
    """
    check_is_fitted(model, "components_")
    write_page(out, metrics, lambda: render_topic_report(model, metrics=metrics))


def render_topic_report(model: TopicModel, *, metrics: Mapping[str, Any] | None = None) -> str:
    """Return the report as HTML; see `write_topic_report`."""
    diagnostics = dict(model.diagnostics_)
    selection = model.selection_ or {}
    points, explained = plane(model.similar_topics())
    spectrum = [float(x) for x in diagnostics.get("spectrum", [])]
    likelihoods = [float(x) for x in diagnostics.get("log_likelihoods", [])]
    names = [str(i) for i in range(len(model.weights_))]
    page = template("topics.html.j2").render(
        model=type(model).__name__,
        facts=_facts(model),
        metrics=_rows(metrics or {}, _METRIC_NOTES),
        tried=[
            Row(name, f"{value:,.1f}", "chosen" if name == model.start_ else "")
            for name, value in sorted(selection.get("perplexity", {}).items(), key=lambda item: item[1])
        ],
        n_held_out=number(selection.get("n_held_out", 0)),
        topics=cards(model.topics(2 * N_TOP, "relevance")),
        map=disc_map(
            [(float(x), float(y)) for x, y in points], model.weights_.tolist(), names, title="Map of the topics"
        ),
        explained=f"{100.0 * explained:.0f} %",
        spectrum=line_chart(
            spectrum, title="Eigenvalues of the second moment", x_label="eigenvalue, by falling size", log=True,
            level=diagnostics.get("noise_level"), level_label="noise level",
        ),
        fit_rows=_rows(diagnostics, _FIT_NOTES),
        shares=bar_chart(
            np.sort(model.weights_)[::-1].tolist(), title="Shares of the topics", x_label="topics by falling share"
        ),
        likelihoods=line_chart(likelihoods, title="Log-likelihood by pass", x_label="pass"),
        **configuration(model),
    )  # fmt: skip
    return str(page)


def plane(similarity: np.ndarray) -> tuple[np.ndarray, float]:
    """Place topics in the plane by classical scaling of the distances ``sqrt(1 - similarity)``.

    Parameters
    ----------
    similarity : ndarray of shape (k, k)
        Affinities, 1 on the diagonal.

    Returns
    -------
    points : ndarray of shape (k, 2)
    explained : float
        Share of the squared distances from the centre that the plane shows.
    """
    k = len(similarity)
    squares = np.maximum(1.0 - similarity, 0.0)
    centred = squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()
    values, vectors = np.linalg.eigh(-centred / 2.0)
    points = np.zeros((k, 2))
    n = min(2, k)
    points[:, :n] = vectors[:, ::-1][:, :n] * np.sqrt(np.maximum(values[::-1][:n], 0.0))
    total = float(np.maximum(values, 0.0).sum())
    return points, float((points**2).sum() / total) if total > 0.0 else 1.0


def _facts(model: TopicModel) -> list[Row]:
    return [
        Row("training documents", number(model.n_documents_)),
        Row("words", number(model.n_features_in_)),
        Row("topics", number(len(model.weights_))),
        Row("started from", model.start_),
        Row("passes", number(len(model.timings_))),
        Row("fitted in", f"{model.fit_seconds_:,.1f} s"),
    ]


def _rows(values: Mapping[str, Any], notes: Mapping[str, str]) -> list[Row]:
    return [
        Row(name, number(values[name]), note) for name, note in notes.items() if is_number(values.get(name))
    ]
