"""Probabilities of labels, and whether calibrating every label separately improves them.

    python workflows/label_calibration.py bibtex labels/reuters labels/goemotions

distmom is fitted to four fifths of the training rows and scores the others; test rows are not used. For every
label with at least `LEAST` of the scored rows, log-odds z are calibrated once more, on one half of them for the
other half: by an offset ``z + b``, by Platt scaling ``(1 + a) z + b``, both with a Gaussian prior on a and b, or
by isotonic regression. The table has the change of the negative log-likelihood, in percent, and the distance
between expected and observed numbers of documents before this calibration, beside the distance by chance.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from small_corpora import training_rows

from distmom.models import MultiLabelMoM

#: scored rows that have a label which is calibrated
LEAST = 100
#: variances of the prior
VARIANCES = (0.01, 0.1, 1.0)
#: probabilities by isotonic regression keep this distance from zero and one
LEAST_PROBABILITY = 1e-4
Calibration = Callable[[np.ndarray], np.ndarray]


def newton(z: np.ndarray, truth: np.ndarray, variance: float, *, scaled: bool) -> Calibration:
    """Fit ``z + b``, or ``(1 + a) z + b`` if scaled, to the events of one label."""
    x = np.stack([np.ones_like(z), z]) if scaled else np.ones((1, len(z)))
    own = np.zeros(len(x))
    for _ in range(20):
        p = expit(z + own @ x)
        hessian = (x * (p * (1.0 - p))) @ x.T + np.eye(len(x)) / variance
        own += np.clip(np.linalg.solve(hessian, x @ (truth - p) - own / variance), -1.0, 1.0)
    return lambda z: z + own[0] + (own[1] * z if scaled else 0.0)


def isotonic(z: np.ndarray, truth: np.ndarray) -> Calibration:
    """Fit an increasing function to the events of one label."""
    bounds = {"y_min": LEAST_PROBABILITY, "y_max": 1.0 - LEAST_PROBABILITY}
    fitted = IsotonicRegression(out_of_bounds="clip", **bounds).fit(z, truth)
    return lambda z: np.asarray(logit(fitted.predict(z)))


CALIBRATIONS: dict[str, Callable[[np.ndarray, np.ndarray], Calibration]] = {
    **{f"offset, {v:g}": partial(newton, variance=v, scaled=False) for v in VARIANCES},
    **{f"Platt, {v:g}": partial(newton, variance=v, scaled=True) for v in VARIANCES},
    "isotonic": isotonic,
}


def calibrated(z: np.ndarray, truth: np.ndarray, fit: Callable[..., Calibration]) -> np.ndarray:
    """Return log-odds (n, m), each half calibrated on the other half, label by label."""
    out = np.array(z)
    for first in (0, 1):
        fitted, other = slice(first, None, 2), slice(1 - first, None, 2)
        for j in range(z.shape[1]):
            out[other, j] = fit(z[fitted, j], truth[fitted, j])(z[other, j])
    return out


def loss(z: np.ndarray, truth: np.ndarray) -> float:
    """Return the negative log-likelihood of all pairs per document."""
    return float((np.logaddexp(0.0, z) - truth * z).sum() / len(z))


def distances(z: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Return the distance of expected and observed numbers of documents, and that of chance, as shares."""
    p = expit(z)
    of_chance = np.sqrt(2.0 / np.pi * (p * (1.0 - p)).sum(axis=0))
    return tuple(float(d.sum() / truth.sum()) for d in (np.abs((p - truth).sum(axis=0)), of_chance))


def run(name: str, words: Any, labels: Any, seed: int) -> dict[str, Any]:
    """Fit to four fifths of the rows, and calibrate the labels on the others."""
    order = np.random.default_rng(seed).permutation(words.shape[0])
    fitted, others = np.sort(order[len(order) // 5 :]), np.sort(order[: len(order) // 5])
    model = MultiLabelMoM(min(200, int(len(fitted) ** 0.5)), random_state=seed).fit(
        words[fitted], labels[fitted]
    )
    p, truth = model.predict_proba(words[others]).astype(float), labels[others].toarray()
    known = np.flatnonzero(truth.sum(axis=0) >= LEAST)
    all_labels = logit(np.clip(p, 1e-12, 1.0 - 1e-7))
    z, truth_of = all_labels[:, known], truth[:, known]
    before = loss(all_labels, truth)
    row = {"corpus": name, "documents": len(others), "labels": truth.shape[1], "calibrated": len(known)}
    row |= dict(zip(("distance", "by chance"), distances(z, truth_of), strict=True))
    for title, fit in CALIBRATIONS.items():
        gained = loss(calibrated(z, truth_of, fit), truth_of) - loss(z, truth_of)
        row[title] = 100.0 * gained / before
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as a table in Markdown."""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    for row in rows:
        cells = [f"{value:,}" if isinstance(value, int) else value for value in row.values()]
        shown = [f"{cell:+.2f}" if column in CALIBRATIONS else f"{cell:.3f}" if isinstance(cell, float) else cell
                 for column, cell in zip(columns, cells, strict=True)]  # fmt: skip
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure all corpora and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("data", type=Path, nargs="+", metavar="DATA", help="folders or prefixes, as for benchmark_peers.py")
    add("--seed", type=int, default=0, help="[%(default)s]")
    add("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    rows = []
    for name, words, labels in training_rows(options.data):
        rows.append(run(name, words, labels, options.seed))
        print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
