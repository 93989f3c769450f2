"""Report of a fitted topic model as one self-contained HTML file without scripts."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from sklearn.utils.validation import check_is_fitted

from distmom.errors import UsageError
from distmom.evaluate.charts import bar_chart, disc_map, heat_chart, line_chart
from distmom.evaluate.page import (
    N_TOP,
    Row,
    cards,
    clean,
    configuration,
    error_of,
    is_number,
    number,
    small,
    template,
    write_page,
)
from distmom.models.topics.program import TopicModel
from distmom.predict import LabelShares, StoredShares, read_shares
from distmom.spectral.capabilities import Capability, require

#: number of representative documents shown per topic
N_DOCUMENTS = 5
#: maximum number of topics, of labels, and of labels with numeric names in a heat map
MAX_TOPICS, MAX_LABELS, MAX_NUMBERS = 50, 40, 100
#: number of pairs of correlated topics shown
N_PAIRS = 10

_METRIC_NOTES = {
    "perplexity": "perplexity of one half of every document, given the other half; lower is better",
    "log_likelihood": "mean log-likelihood of a predicted token; the same measure on another scale",
    "NPMI": "co-occurrence of the top words of a topic in documents: 1 always, 0 by chance, -1 never",
    "UMass": "co-occurrence on another scale; closer to 0 is better",
    "negative_NPMI": "share of topics whose top words co-occur less than by chance",
    "diversity": "share of distinct words among the top words of all topics",
    "n_documents": "number of documents evaluated",
    "n_tokens": "number of tokens predicted",
}
_FIT_NOTES = {
    "residual": "share of the norm of the third moment not explained by the decomposition: near 0 if documents "
    "follow the model",
    "off_diagonal_share": "the same as a share of its energy",
    "sum_proportions": "1 if alpha0 fits the documents",
    "n_usable_eigenvalues": "number of eigenvalues of the second moment above the noise level",
    "noise_level": "magnitude of the sampling error of an eigenvalue",
    "n_moment_words": "number of words used for the moments",
    "mean_length": "mean number of words per document, with capped counts",
}


def write_topic_report(
    model: TopicModel,
    out: str | os.PathLike[str],
    *,
    metrics: Mapping[str, Any] | None = None,
    shares: str | os.PathLike[str] | None = None,
) -> None:
    """Write the report of a topic model.

    Parameters
    ----------
    model : TopicModel
    out : path-like
        HTML file; an existing file is replaced atomically.
    metrics : mapping of str to float, optional
        As returned by `distmom.evaluate.topics.evaluate_topics`; entries that are not numbers are omitted. No
        metrics by default.
    shares : path-like, optional
        A directory written by `distmom.predict.transform_corpus` with this model. The report then shows
        representative documents, and means, correlations and means by label of the topic shares. None by
        default.

    Raises
    ------
    UsageError
        If ``metrics`` is not a mapping, ``shares`` is not such a directory or has a different number of topics,
        or the parent directory of ``out`` does not exist.
    StoreError
        If the shares are damaged.
    """
    check_is_fitted(model)
    require(model, Capability.SHARES)
    stored = None
    if shares is not None:
        stored = read_shares(shares)
        if len(stored.mean_shares) != len(model.weights_):
            raise UsageError(
                f"{os.fspath(shares)}: expected shares of the {len(model.weights_)} topics of the model, got "
                f"{len(stored.mean_shares)}"
            )
    write_page(out, metrics, lambda: render_topic_report(model, metrics=metrics, stored=stored))


def render_topic_report(
    model: TopicModel, *, metrics: Mapping[str, Any] | None = None, stored: StoredShares | None = None
) -> str:
    """Return the report as HTML, optionally with shares computed by the model; see `write_topic_report`."""
    diagnostics = dict(model.diagnostics_)
    selection = model.selection_ or {}
    points, explained = plane(model.similar_topics())
    spectrum = [float(x) for x in diagnostics.get("spectrum", [])]
    likelihoods = [float(x) for x in diagnostics.get("log_likelihoods", [])]
    names = [str(i) for i in range(len(model.weights_))]
    topics = model.topics(2 * N_TOP)
    page = template("topics.html.j2").render(
        model=type(model).__name__,
        facts=_facts(model),
        metrics=_rows(metrics or {}, _METRIC_NOTES),
        tried=[
            Row(name, f"{value:,.1f}", "chosen" if name == model.init_ else "")
            for name, value in sorted(selection.get("perplexity", {}).items(), key=lambda item: item[1])
        ],
        n_held_out=number(selection.get("n_held_out", 0)),
        topics=_cards(topics, stored),
        stored=None if stored is None else _stored(topics, stored),
        has_errors=model.weights_error_ is not None,
        map=disc_map(
            [(float(x), float(y)) for x, y in points], model.weights_.tolist(), names, title="Map of the topics"
        ),
        explained=f"{100.0 * explained:.0f} %",
        spectrum=line_chart(
            spectrum, title="Eigenvalues of the second moment", x_label="eigenvalue, by decreasing magnitude",
            log=True, level=diagnostics.get("noise_level"), level_label="noise level",
        ),
        fit_rows=_rows(diagnostics, _FIT_NOTES),
        shares=bar_chart(
            [topic["weight"] for topic in topics], title="Shares of the topics",
            x_label="topics, by decreasing share",
            errors=[error_of(topic.get("weight_error")) for topic in topics],
        ),
        likelihoods=line_chart(likelihoods, title="Log-likelihood by pass", x_label="pass"),
        **configuration(model),
    )  # fmt: skip
    return str(page)


def plane(similarity: np.ndarray) -> tuple[np.ndarray, float]:
    """Place topics in the plane by classical multidimensional scaling of the distances ``sqrt(1 - similarity)``.

    Parameters
    ----------
    similarity : ndarray of shape (k, k)
        Similarities, with ones on the diagonal.

    Returns
    -------
    points : ndarray of shape (k, 2)
    explained : float
        Share of the squared distances from the centroid that is represented in the plane.
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


def _cards(topics: list[dict[str, Any]], stored: StoredShares | None) -> list[dict[str, Any]]:
    """Return the cards of the topics, with representative documents if shares are given."""
    found = cards(topics)
    if stored is None:
        return found
    for card in found:
        best = stored.representatives[card["state"]][:N_DOCUMENTS]
        card["documents"] = [(str(document), f"{share:.2f}") for document, share in best]
        card["mean_share"] = small(stored.mean_shares[card["state"]])
    return found


def _stored(topics: list[dict[str, Any]], stored: StoredShares) -> dict[str, Any]:
    """Arrange statistics of the stored shares, with topics by decreasing share in the training corpus."""
    order = [topic["state"] for topic in topics]
    drawn = order[:MAX_TOPICS]
    # The diagonal carries no information and would be the darkest.
    correlation = stored.correlation[np.ix_(drawn, drawn)] * (1.0 - np.eye(len(drawn)))
    strongest = correlation.flat[np.abs(correlation).argmax()]
    names = [str(state) for state in drawn]
    labels, label_order = _labels_shown(stored.labels)
    means = np.array([label.shares[drawn] for label in labels]).reshape(len(labels), len(drawn)).T
    largest = means.max(axis=1, keepdims=True, initial=0.0)
    return {
        "n_documents": number(stored.n_documents),
        "means": bar_chart(
            stored.mean_shares[order].tolist(), title="Mean shares in the documents", x_label="topics, as above"
        ),
        "n_correlated": len(drawn),
        "strongest": f"{strongest:.2f}",
        "correlations": "" if len(drawn) < 2 else _correlations(correlation, names),
        "pairs": _pairs(topics, stored.correlation),
        "labels": heat_chart(
            np.divide(means, largest, out=np.zeros_like(means), where=largest > 0.0).tolist(),
            names,
            [clean(label.name) for label in labels],
            title="Mean shares of topics by label",
            notes=[
                [
                    f"topic {state}, {clean(label.name)} ({number(label.n_documents)} documents): {small(mean)}"
                    for label, mean in zip(labels, row, strict=True)
                ]
                for state, row in zip(names, means.tolist(), strict=True)
            ],
        ),
        "n_labels": number(len(stored.labels)),
        "n_labels_shown": number(len(labels)),
        "n_labelled_topics": number(len(drawn)),
        "label_order": label_order,
    }  # fmt: skip


def _correlations(correlation: np.ndarray, names: list[str]) -> Markup:
    notes = [
        [f"topics {a}, {b}: {value:.2f}" for b, value in zip(names, row, strict=True)]
        for a, row in zip(names, correlation.tolist(), strict=True)
    ]
    return heat_chart(
        (correlation / (np.abs(correlation).max() or 1.0)).tolist(),
        names,
        names,
        title="Correlations of shares",
        notes=notes,
    )


def _labels_shown(labels: list[LabelShares]) -> tuple[list[LabelShares], str]:
    """Return the labels with the most documents and their order, by value if all names are numbers."""
    some = sorted((label for label in labels if label.n_documents), key=lambda label: -label.n_documents)
    values = {label.name: _number_of(label.name) for label in some}
    if not all(math.isfinite(value) for value in values.values()):
        return some[:MAX_LABELS], "by decreasing number of documents"
    shown = sorted(some[:MAX_NUMBERS], key=lambda label: values[label.name])
    return shown, "by value" if len(shown) == len(some) else "those with the most documents, by value"


def _number_of(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return math.nan


def _pairs(topics: list[dict[str, Any]], correlation: np.ndarray) -> list[Row]:
    """Return the pairs of topics with the largest positive correlations."""
    words = {topic["state"]: " ".join(word for word, _ in topic["words"][:4]) for topic in topics}
    first, second = np.triu_indices(len(correlation), 1)
    best = np.argsort(-correlation[first, second], kind="stable")[:N_PAIRS]
    return [
        Row(f"{i}, {j}", f"{correlation[i, j]:.2f}", f"{words[i]} | {words[j]}")
        for i, j in zip(first[best].tolist(), second[best].tolist(), strict=True)
        if correlation[i, j] > 0.0
    ]


def _facts(model: TopicModel) -> list[Row]:
    return [
        Row("training documents", number(model.n_documents_)),
        Row("words", number(model.n_features_in_)),
        Row("topics", number(len(model.weights_))),
        Row("initialised by", model.init_),
        Row("passes", number(len(model.timings_))),
        Row("fit time", f"{model.fit_seconds_:,.1f} s"),
    ]


def _rows(values: Mapping[str, Any], notes: Mapping[str, str]) -> list[Row]:
    return [
        Row(name, number(values[name]), note) for name, note in notes.items() if is_number(values.get(name))
    ]
