"""Evaluation and report of a model of any kind, depending on its capabilities."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from distmom.errors import UsageError
from distmom.evaluate.evaluation import evaluate_corpus
from distmom.evaluate.factor_report import write_factor_report
from distmom.evaluate.label_report import write_label_report
from distmom.evaluate.picture_report import write_picture_report
from distmom.evaluate.topic_report import write_topic_report
from distmom.evaluate.topics import evaluate_topics
from distmom.spectral.capabilities import Capability, check_model, require


def evaluate(model: Any, corpus: Any, **options: Any) -> dict[str, Any]:
    """Evaluate a fitted model, usually on documents that were not used for fitting.

    Parameters
    ----------
    model : SpectralEstimator
        A model that ranks labels or infers shares of topics.
    corpus : Corpus or MemoryCorpus
    **options
        Options of `distmom.evaluate.evaluation.evaluate_corpus` for a model that ranks labels, and of
        `distmom.evaluate.topics.evaluate_topics` for a topic model.

    Returns
    -------
    dict of str to float
        Metrics by name.

    Raises
    ------
    UsageError
        If the model does neither, or if one of these functions raises it.
    """
    check_model(model)
    if model.can(Capability.LABELS):
        return evaluate_corpus(model, corpus, **options)
    require(model, Capability.SHARES, hint="labels and topics are evaluated")
    return evaluate_topics(model, corpus, **options)


def write_report(
    model: Any,
    out: str | os.PathLike[str],
    *,
    metrics: Mapping[str, Any] | None = None,
    shares: str | os.PathLike[str] | None = None,
) -> None:
    """Write the report of a fitted model as one self-contained HTML file.

    Parameters
    ----------
    model : SpectralEstimator
    out : path-like
        HTML file; an existing file is replaced atomically.
    metrics : mapping of str to float, optional
        As returned by `evaluate`; entries that are not numbers are omitted. No metrics by default.
    shares : path-like, optional
        For a topic model, a directory written by `distmom.predict.transform_corpus` with this model, from which
        documents, correlations and labels of topics are shown. None by default.

    Raises
    ------
    UsageError
        If there is no report of such models, ``metrics`` or ``shares`` do not apply to the
        model, or the parent directory of ``out`` does not exist.
    StoreError
        If the shares are damaged.
    """
    check_model(model)
    if shares is not None:
        require(model, Capability.SHARES, "shares")
    if model.can(Capability.SHARES):
        write_topic_report(model, out, metrics=metrics, shares=shares)
    elif model.can(Capability.LABELS):
        write_label_report(model, out, metrics=metrics)
    else:
        if metrics is not None:
            raise UsageError(f"metrics: expected none for a model of class {type(model).__name__}")
        if model.can(Capability.FACTORS):
            write_factor_report(model, out)
        else:
            write_picture_report(model, out)
