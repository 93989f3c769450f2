"""The reliability diagram of a report: probabilities of labels and observed shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from distmom.errors import UsageError
from distmom.evaluate.charts import series_chart
from distmom.evaluate.page import number
from distmom.models.multilabel.blend.probabilities import N_BINS, Reliability


def reliability_section(metrics: Mapping[str, Any] | None, selection: Mapping[str, Any] | None) -> Any:
    """Arrange the reliability diagram.

    Parameters
    ----------
    metrics : mapping or None
        As returned by `evaluate_corpus`; its sums of test documents are shown if it has them.
    selection : mapping or None
        ``selection_`` of a model with probabilities, whose sums of held-out documents are shown otherwise.

    Returns
    -------
    dict or None
        ``chart``, ``rows`` of cells, ``error`` (the expected calibration error) and ``tested``, whether the sums
        are those of test documents; None if there are no sums.

    Raises
    ------
    UsageError
        If the sums of ``metrics`` are invalid.
    """
    tested = metrics is not None and "reliability" in metrics
    record = (metrics if tested else selection) or {}
    if "reliability" not in record:
        return None
    try:
        bins = Reliability.from_json(record["reliability"])
    except ValueError as cause:
        raise UsageError(f"metrics: reliability: {cause}") from cause
    if not bins.n_pairs.sum():
        return None
    filled = [b for b in range(N_BINS) if bins.n_pairs[b]]
    means = [float(bins.probabilities[b] / bins.n_pairs[b]) for b in filled]
    shares = [float(bins.truths[b] / bins.n_pairs[b]) for b in filled]
    # The ends of the diagonal, so that the scale is that of all probabilities.
    chart = series_chart(
        [0.0, *means, 1.0],
        {"observed": [math.nan, *shares, math.nan], "calibrated": [0.0, *means, 1.0]},
        title="Observed share of true labels over their mean probability, in ten bins of probability",
    )
    rows = []
    for b, mean, share in zip(filled, means, shares, strict=True):
        n = int(bins.n_pairs[b])
        error = math.sqrt(share * (1.0 - share) / n)
        rows.append(
            (
                f"{b / N_BINS:.1f} to {(b + 1) / N_BINS:.1f}",
                number(n),
                f"{mean:.4f}",
                f"{share:.4f}",
                f"{error:.4f}",
            )
        )
    return {
        "chart": chart,
        "rows": rows,
        "error": f"{bins.expected_calibration_error:.4f}",
        "tested": tested,
    }
