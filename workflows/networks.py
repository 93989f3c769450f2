"""Networks of latent and of observed variables, beside LiNGAM.

    pip install --no-deps lingam && pip install statsmodels autograd graphviz matplotlib networkx psy pygam
    python workflows/networks.py

Planted networks of skewed noises, whose weights are known. Where all variables are observed, `LatentNetwork` is
compared with DirectLiNGAM and ICA-LiNGAM. Where they are latent, it is compared with the manual alternative:
factor analysis with a varimax rotation, and DirectLiNGAM of its scores. Weights are those of nodes with variance
one, matched with the true nodes. The error of the weights is relative to their norm, and an edge is
found if the largest weights, as many as there are edges, include it. All systems run in this process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import FactorAnalysis

from distmom.errors import NumericalError
from distmom.models import LatentNetwork
from distmom.simulate.networks import SKEWED_FAMILIES, NetworkPopulation, Noises

#: loadings (d, k) and weights (k, k) of a fit
Found = tuple[np.ndarray, np.ndarray]
Fit = Callable[[np.ndarray], Found]
#: probability of an edge, and of a loading outside the columns of a node
EDGES, LOADINGS = 0.4, 0.05


def population(k: int, per_node: int, seed: int) -> NetworkPopulation:
    """Return a network of k nodes, each with columns of its own; the nodes themselves where there are none."""
    rng = np.random.default_rng(seed)
    weights = np.tril(rng.uniform(0.4, 0.9, (k, k)) * rng.choice([-1.0, 1.0], (k, k)), -1)
    weights *= rng.random((k, k)) < EDGES
    order = rng.permutation(k)
    weights = weights[np.ix_(order, order)]
    loadings = np.eye(k)
    if per_node:
        support = np.kron(np.eye(k), np.ones((per_node, 1))) + (rng.random((k * per_node, k)) < LOADINGS) > 0
        loadings = support * rng.choice([-1.0, 1.0], support.shape) * rng.uniform(0.5, 1.5, support.shape)
    latent = Noises.draw(k, rng, SKEWED_FAMILIES)
    return NetworkPopulation(loadings, weights, latent, Noises.draw(len(loadings), rng))


def by_moments(k: int, seed: int, noise: str) -> Fit:
    """Return a fit of `LatentNetwork`."""

    def fit(X: np.ndarray) -> Found:
        model = LatentNetwork(k, noise=noise, random_state=seed).fit(X)
        return model.components_.T, model.adjacency_

    return fit


def by_lingam(name: str, seed: int) -> Fit:
    """Return a fit of a class of the package lingam to observed variables."""
    import lingam

    def fit(X: np.ndarray) -> Found:
        options = {"random_state": seed} if name == "ICALiNGAM" else {}
        model = getattr(lingam, name)(**options).fit(X / X.std(axis=0))
        return np.eye(X.shape[1]), np.asarray(model.adjacency_matrix_)

    return fit


def by_scores(k: int, seed: int) -> Fit:
    """Return a fit of DirectLiNGAM to the scores of a factor analysis."""

    def fit(X: np.ndarray) -> Found:
        factors = FactorAnalysis(k, rotation="varimax", random_state=seed)
        scores = factors.fit_transform(X)
        return factors.components_.T, by_lingam("DirectLiNGAM", seed)(scores)[1]

    return fit


def systems(k: int, per_node: int, seed: int) -> Iterator[tuple[str, Fit]]:
    """Yield the names of the systems and their fits."""
    if per_node:
        yield "LatentNetwork", by_moments(k, seed, "independent")
        yield "factor analysis, DirectLiNGAM", by_scores(k, seed)
        return
    yield "LatentNetwork", by_moments(k, seed, "none")
    yield "DirectLiNGAM", by_lingam("DirectLiNGAM", seed)
    yield "ICA-LiNGAM", by_lingam("ICALiNGAM", seed)


def score(truth: NetworkPopulation, found: Found) -> dict[str, float]:
    """Return the error of the weights and the share of edges found, with nodes matched by their loadings."""
    loadings, weights = found
    scale = np.sqrt(np.diag(truth.second))
    own = truth.weights * scale / scale[:, None]
    cosines = (loadings / np.linalg.norm(loadings, axis=0)).T @ (
        truth.loadings / np.linalg.norm(truth.loadings, axis=0)
    )
    nodes = linear_sum_assignment(-np.abs(cosines))[1]
    signs = np.sign(cosines[np.arange(len(nodes)), nodes])
    own = own[np.ix_(nodes, nodes)] * np.outer(signs, signs)
    n_edges = np.count_nonzero(own)
    largest = np.argsort(-np.abs(weights), axis=None)[:n_edges]
    return {
        "error": float(np.linalg.norm(weights - own) / np.linalg.norm(own)),
        "edges": np.count_nonzero(own.ravel()[largest]) / n_edges,
    }


def run(k: int, per_node: int, n_rows: int, seed: int, most_rows: int) -> Iterator[dict[str, Any]]:
    """Yield one result per system."""
    truth = population(k, per_node, seed)
    x, h = truth.sample(n_rows, seed)
    X = x if per_node else h
    for system, fit in systems(k, per_node, seed):
        row = {"nodes": k, "columns": X.shape[1], "n_rows": n_rows, "system": system, "seed": seed}
        if system != "LatentNetwork" and n_rows > most_rows:
            continue
        started = time.perf_counter()
        try:
            found = fit(X)
        except NumericalError as error:
            yield row | {"refused": str(error)}
            continue
        yield row | {"fit_s": time.perf_counter() - started} | score(truth, found)


def table(rows: list[dict[str, Any]]) -> str:
    """Return medians over the seeds as a table in Markdown."""
    lines = [
        "| nodes | columns | rows | system | error | edges | fit s |",
        "|---:|---:|---:|---|---:|---:|---:|",
    ]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("nodes", "columns", "n_rows", "system"))
        groups.setdefault(key, []).append(row)
    for (nodes, columns, n_rows, system), same in groups.items():
        fitted = [row for row in same if "refused" not in row]
        cells = ["", "", ""]
        if fitted:
            error, edges, fit_s = (
                float(np.median([r[name] for r in fitted])) for name in ("error", "edges", "fit_s")
            )
            cells = [f"{error:.3f}", f"{edges:.2f}", f"{fit_s:.2f}"]
        if len(fitted) < len(same):
            cells[0] += f" ({len(same) - len(fitted)} of {len(same)} refused)"
        lines.append(f"| {nodes} | {columns} | {n_rows:,} | {system} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run all systems and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[5, 10, 20], help="[5 10 20]")
    parser.add_argument(
        "--per-node",
        type=int,
        nargs="+",
        default=[0, 6],
        help="columns of every node, 0 for observed ones [0 6]",
    )
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[2_000, 20_000, 200_000], help="[2000 20000 200000]"
    )
    parser.add_argument("--seeds", type=int, default=5, help="runs of every case [%(default)s]")
    parser.add_argument(
        "--peer-rows", type=int, default=200_000, help="rows beyond which LiNGAM is left out [%(default)s]"
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    rows = []
    for per_node, k, n_rows in product(options.per_node, options.nodes, options.rows):
        for seed in range(options.seeds):
            rows += run(k, per_node, n_rows, seed, options.peer_rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
