"""Mixtures of words, views, Gaussians and topics beside scikit-learn, StepMix, pomegranate, dmx-learn and noloox.

Every task has rows of known groups; a random fifth is held out, and the others are fitted by all systems with as
many components as there are groups. Each system runs on one thread in a separate process (see `run_mixture` for
the definition of its time). A seed determines planted rows, the rows that are held out, and the initialisation
of the systems; the tables show medians and, in parentheses, minima and maxima over seeds.

error
    For planted rows: mean absolute error of the probabilities of words, or of the means of columns in their
    standard deviations, or, for topics, mean L1 distance; components are matched one to one by it.
error of weights, error of variances
    Mean absolute error of the weights of matched components, and of their variances as a share of those of the
    columns.
held out
    Log-likelihood per held-out row, where the model is a distribution. Components, or the variances of Gaussians,
    are smoothed with 1 % of the averages over all rows, for all systems alike.
ARI, NMI
    Adjusted Rand index and normalised mutual information of the fitted rows' components and known groups.

``distmom-moments`` is distmom without EM, ``distmom-uncorrected`` without the pass that corrects the means of EM.
pomegranate is left out for words of real data: its probabilities become NaN where a word is in no row of a
component.
Systems that are not installed, or fail, are listed below the tables::

    python3 -m venv peers
    peers/bin/pip install stepmix pomegranate dmx-learn noloox

Examples::

    python workflows/mixtures.py --peers-python peers/bin/python
    python workflows/mixtures.py --models single-topic --seeds 1 --json topics.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mixture_tasks import Task, tasks
from run_mixture import MOMENTS, SYSTEMS, UNCORRECTED
from run_topics import OWN
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp
from scipy.stats import norm
from side_by_side import Comparison
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from watched import LeftOutError, run_watched

#: models and systems that are run on planted rows alone
PLANTED_ONLY = (("product", "pomegranate"),)
#: models of real-valued columns
REAL = ("multiview", "diagonal")
#: share of the averages over all rows in smoothed components, and added to their counts
SMOOTHING, ADDED = 0.01, 0.1


def errors(
    task: Task, weights: np.ndarray, components: np.ndarray, variances: np.ndarray | None = None
) -> dict[str, float]:
    """Return the errors of components (k, d), weights and variances, matched one to one to the planted ones."""
    assert task.components is not None
    assert task.weights is not None
    distance = np.abs(task.components[:, None] - components[None])
    if task.model in REAL:
        distance /= task.train.toarray().std(axis=0)
    cost = distance.sum(axis=2) if task.model == "single-topic" else distance.mean(axis=2)
    own, matched = linear_sum_assignment(cost)
    found = {
        "error": float(cost[own, matched].mean()),
        "weights_error": float(np.abs(task.weights[own] - weights[matched]).mean()),
    }
    if task.variances is not None and variances is not None:
        difference = np.abs(task.variances[own] - variances[matched]) / task.train.toarray().var(axis=0)
        found["variances_error"] = float(difference.mean())
    return found


def held_out(task: Task, weights: np.ndarray, components: np.ndarray) -> float:
    """Return the log-likelihood per held-out row: of present and absent words, or of a sequence of words."""
    counts = np.asarray(task.train.sum(axis=0)).ravel() + ADDED
    present = task.model == "product"
    average = counts / (task.train.shape[0] + 2.0 * ADDED if present else counts.sum())
    smoothed = (1.0 - SMOOTHING) * components + SMOOTHING * average
    logs = np.log((1.0 - SMOOTHING) * weights + SMOOTHING / len(weights))
    if present:
        logs = logs + np.log1p(-smoothed).sum(axis=1)
        smoothed = smoothed / (1.0 - smoothed)
    return float(logsumexp(task.held_out @ np.log(smoothed).T + logs, axis=1).mean())


def held_out_density(task: Task, weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> float:
    """Return the log-density per held-out row of a mixture of Gaussians; constant columns are left out."""
    train = task.train.toarray()
    average = train.var(axis=0)
    # The variance of equal numbers is rounding, and need not be zero.
    kept = np.ptp(train, axis=0) > 0.0
    rows = task.held_out.toarray()[:, kept]
    spread = (1.0 - SMOOTHING) * variances[:, kept] + SMOOTHING * average[kept]
    logs = np.log((1.0 - SMOOTHING) * weights + SMOOTHING / len(weights))
    logs = logs + norm.logpdf(rows[:, None], means[:, kept], np.sqrt(spread)).sum(axis=2)
    return float(logsumexp(logs, axis=1).mean())


def measures(
    task: Task,
    weights: np.ndarray,
    components: np.ndarray,
    groups: np.ndarray,
    variances: np.ndarray | None = None,
) -> dict[str, float]:
    """Return all measures of a fitted mixture that the task has."""
    found = {} if task.components is None else errors(task, weights, components, variances)
    if task.model == "diagonal":
        assert variances is not None
        found["held_out"] = held_out_density(task, weights, components, variances)
    elif task.model != "multiview":
        found["held_out"] = held_out(task, weights, components)
    return {
        **found,
        "ARI": float(adjusted_rand_score(task.groups, groups)),
        "NMI": float(normalized_mutual_info_score(task.groups, groups)),
    }


def run_system(name: str, task: Task, seed: int, out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run one system; return its measures, time and memory. LeftOutError if it gives no result."""
    place = out / name
    python = (
        options.peers_python
        if options.peers_python and name not in (*OWN, MOMENTS, UNCORRECTED)
        else sys.executable
    )
    command = [
        python, str(Path(__file__).with_name("run_mixture.py")), task.model, name, f"--rows={out / 'rows.npz'}",
        f"-k{task.k}", f"--seed={seed}", f"--iterations={options.iterations}", f"--out={place}",
        "--views", *task.views,
    ]  # fmt: skip
    run_watched(command, place / "log.txt", timeout_s=options.timeout, memory_mb=1e3 * options.memory_gb)
    with np.load(place / "found.npz", allow_pickle=False) as found:
        arrays = dict(found)
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise LeftOutError("parameters that are not finite")
    return {**measures(task, **arrays), **json.loads((place / "fit.json").read_text())}


COMPARISON = Comparison(
    SYSTEMS,
    run_system,
    ranges=("error", "held_out", "ARI", "fit_s"),
    medians=("weights_error", "variances_error", "NMI", "peak_rss_mb"),
    suits=lambda name, task: (task.model, name) not in PLANTED_ONLY or task.components is not None,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison."""
    parser = COMPARISON.arguments_parser(__doc__)
    data = Path(__file__).resolve().parents[2] / "shared" / "data" / "labels"
    parser.add_argument("--data", type=Path, default=data, help="folder with the newsgroups")
    options = parser.parse_args(arguments)
    return COMPARISON.run(tasks(options.data), options)


if __name__ == "__main__":
    sys.exit(main())
