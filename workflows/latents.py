"""Factors of views beside factor analysis and ICA, and trees of hidden variables beside EM.

Every task is fitted by all systems with the same number of factors or states. Each system runs on one thread in a
separate process (see `run_latent` for the definition of its time). A seed determines planted rows, the rows that
are held out, and the initialisation of the systems; the tables show medians and, in parentheses, minima and
maxima over seeds.

error
    For planted factors: mean distance of unit columns of the loadings that are matched one to one, without their
    signs; a column that is not found has a distance of 1. For planted trees: mean absolute error of the
    probabilities of categories given the hidden variable above, whose states are matched one to one.
error of edges
    For planted trees: mean absolute error of the probabilities of a hidden variable given its parent.
held out
    For trees: log-likelihood per held-out row. Distributions are mixed with 1 % of the uniform one, for all
    systems alike.
halves
    For other views: mean over the factors of the correlation between their least-squares values of the two halves
    of the views of held-out units.
apart
    For other views: the error between the loadings of the fit and of a second one to the held-out units.

Factor analysis, FastICA and NMF are given the mean view of every unit, and NMF is left out for negative values.
``em-N`` is the best of N random starts of EM by belief propagation (`tree_em`), and ``distmom-moments`` is distmom
without its passes of EM. pgmpy is left out where there are many distinct rows. Systems that are not
installed, or fail, are listed below the tables. Photographs need Pillow::

    pip install pillow
    python3 -m venv peers
    peers/bin/pip install multiviewica pgmpy

Examples::

    python workflows/latents.py --peers-python peers/bin/python
    python workflows/latents.py --models latent-tree --seeds 1 --json trees.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from latent_tasks import TreeTask, ViewsTask, tasks
from run_latent import SYSTEMS, positive
from scipy.optimize import linear_sum_assignment
from side_by_side import Comparison
from tree_em import Law, log_likelihoods
from watched import LeftOutError, run_watched

from distmom.evaluate.columns import score_columns
from distmom.models.trees.structure import Tree

#: systems that run on the interpreter of the peers
PEERS = ("group-ica", "multiview-ica", "pgmpy")
#: largest number of distinct rows for pgmpy, which infers the hidden variables of each of them by itself
MOST_DISTINCT = 500


# Factors of views


def padded(loadings: np.ndarray, k: int) -> np.ndarray:
    """Return loadings with a column of zeros for every factor that was not found."""
    return np.pad(loadings, ((0, 0), (0, k - loadings.shape[1])))


def halves(units: np.ndarray, loadings: np.ndarray) -> float:
    """Return the mean correlation between factors of the two halves of the views (n, n_views, d)."""
    n_first = units.shape[1] // 2
    inverse = np.linalg.pinv(loadings)
    first, second = (part.mean(axis=1) @ inverse.T for part in (units[:, :n_first], units[:, n_first:]))
    each = [np.corrcoef(a, b)[0, 1] for a, b in zip(first.T, second.T, strict=True)]
    return float(np.mean(each))


def measure_views(task: ViewsTask, found: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the measures of loadings."""
    loadings = padded(found["loadings"], task.k)
    if task.loadings is not None:
        return {"error": score_columns(task.loadings, loadings).error}
    return {
        "halves": halves(task.held_out, found["loadings"]),
        "apart": score_columns(loadings, padded(found["again"], task.k)).error,
    }


# Trees


def leaves_below(task: TreeTask, law: Law) -> list[np.ndarray]:
    """Return for every hidden variable the probabilities of all leaves below it, by its state."""
    tree = Tree.parse(task.text)
    found: list[list[np.ndarray]] = [[] for _ in tree.parents]
    for leaf, h in enumerate(tree.of_leaves):
        below = law.leaves[leaf]
        while h >= 0:
            found[h].append(below)
            if h:
                below = law.edges[h - 1] @ below
            h = tree.parents[h]
    return [np.hstack(each) for each in found]


def errors(task: TreeTask, law: Law) -> dict[str, float]:
    """Return the errors of the leaves and of the edges, with the states of hidden variables matched."""
    assert task.law is not None
    order = []
    for own, other in zip(leaves_below(task, task.law), leaves_below(task, law), strict=True):
        order.append(linear_sum_assignment(np.abs(own[:, None] - other[None]).sum(axis=2))[1])
    leaves = [
        np.abs(own - other[order[h]]).mean()
        for own, other, h in zip(task.law.leaves, law.leaves, task.shape.of_leaves, strict=True)
    ]
    edges = [
        np.abs(own - other[np.ix_(order[parent], order[g])]).mean()
        for g, (own, other, parent) in enumerate(
            zip(task.law.edges, law.edges, task.shape.parents[1:], strict=True), start=1
        )
    ]
    return {"error": float(np.mean(leaves)), "edges_error": float(np.mean(edges))}


def measure_tree(task: TreeTask, found: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the measures of the probabilities of a tree."""
    law = positive(
        Law(
            found["root"],
            [found[f"edge{g}"] for g in range(len(task.shape.parents) - 1)],
            [found[f"leaf{i}"] for i in range(len(task.shape.of_leaves))],
        )
    )
    planted = {} if task.law is None else errors(task, law)
    return {**planted, "held_out": float(log_likelihoods(task.shape, law, task.held_out).mean())}


def run_system(
    name: str, task: ViewsTask | TreeTask, seed: int, out: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Run one system; return its measures, time and memory. LeftOutError if it gives no result."""
    place = out / name
    python = options.peers_python if options.peers_python and name in PEERS else sys.executable
    command = [
        python, str(Path(__file__).with_name("run_latent.py")), task.model, name, f"--task={out / 'task.npz'}",
        f"--seed={seed}", f"--iterations={options.iterations}", f"--out={place}",
    ]  # fmt: skip
    run_watched(command, place / "log.txt", timeout_s=options.timeout, memory_mb=1e3 * options.memory_gb)
    with np.load(place / "found.npz", allow_pickle=False) as stored:
        found = dict(stored)
    if not all(np.isfinite(each).all() for each in found.values()):
        raise LeftOutError("parameters that are not finite")
    measured = measure_views(task, found) if isinstance(task, ViewsTask) else measure_tree(task, found)
    return {**measured, **json.loads((place / "fit.json").read_text())}


def suits(name: str, task: ViewsTask | TreeTask) -> bool:
    """Return whether a system is run on a task."""
    if isinstance(task, ViewsTask):
        return name != "nmf" or task.train.min() >= 0.0
    return name != "pgmpy" or len(np.unique(task.train, axis=0)) <= MOST_DISTINCT


COMPARISON = Comparison(
    SYSTEMS,
    run_system,
    ranges=("error", "held_out", "halves", "apart"),
    medians=("edges_error", "fit_s", "cpu_s", "peak_rss_mb"),
    suits=suits,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison."""
    options = COMPARISON.arguments_parser(__doc__).parse_args(arguments)
    return COMPARISON.run(tasks(), options)


if __name__ == "__main__":
    sys.exit(main())
