"""The experiments of the paper on expansion (arXiv:1209.5350, section 6), beside the numbers printed there.

hierarchy
    Example 1: 5 hidden variables, 30 hidden ones below, 180 observed ones at the bottom, from the covariance of
    the observed variables. `A2` are the loadings of the observed level, `A1` those of the level above.
network
    Example 2: 150 observed variables of a network of 25 hidden ones, from the second and third moments of a single
    view. `A` are the loadings, `Lambda` the weights of the network.
decomposition
    The root of the mean squared error of the noise variances of example 1: by a random partition (median of 100),
    by the random partition with the least share off the diagonal, as in the paper, and by `find_split`.

Entries of the matrices are zero with probability 0.7 and else normal; in every row the second magnitude is at
most ``1 - gap`` of the first. Matrices of smaller rank are drawn again. For each seed, smaller numbers of rows are
the first rows of one sample, and 0 rows stand for the exact moments.

programs
    TWMLearn: the sparsest independent solutions of one linear program per row.
projections
    TWMLearn(proj) of appendix G, as in the experiments of the paper.
polished
    The columns of projections, each solved for again on the rows where it is zero.
search
    `sparse_columns`, which `learn_hierarchy` and `latent_network` use.
both
    The same with the columns of projections among the candidates.

dist
    `ColumnScores.distance`, the paper's measure, on average over the seeds. Lambda is brought to the order and the
    scale of the true nodes first. What cannot be learned from the columns found before counts with a distance
    of 1.
error
    Mean distance of matched unit columns.
precision, recall
    Of the support of A2 or A; entries up to 2 % of the largest of their column count as zero. The paper counts
    every entry that is not exactly zero, which says little, and its numbers are not repeated here.

Examples::

    python workflows/benchmark_expansion.py hierarchy --json hierarchy.json --markdown hierarchy.md
    python workflows/benchmark_expansion.py network --json network.json --markdown network.md
    python workflows/benchmark_expansion.py decomposition --rows 25000 100000 400000
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from distmom.errors import NumericalError
from distmom.evaluate.columns import ColumnScores, score_columns
from distmom.linalg.expansion.networks import network_of_factors
from distmom.linalg.expansion.projected import projected_columns
from distmom.linalg.expansion.sparse import (
    EXACT_MARGIN,
    EXACT_ZERO,
    pick_sparsest,
    polished,
    sparse_columns,
    sparse_program,
)
from distmom.linalg.factors import Slices, find_factors
from distmom.linalg.lowrank import find_split, split_diagonal
from distmom.linalg.one_view import denoised_moments, without_noise
from distmom.linalg.whiten import Whitening, whiten
from distmom.simulate.loadings import bernoulli_gaussian
from distmom.simulate.networks import SKEWED_FAMILIES, HierarchyPopulation, NetworkPopulation, Noises

METHODS = ("programs", "projections", "polished", "search", "both")
#: sizes of the levels of example 1, lowest first, and of the observed and hidden variables of example 2
LEVELS, NETWORK = (180, 30, 5), (150, 25)
#: share of the largest entry of a column up to which an entry counts as zero
ZERO = 0.02
N_PARTITIONS, BLOCK_ROWS = 100, 25_000
ROWS = {
    "hierarchy": (25_000, 50_000, 100_000, 200_000, 400_000),
    "network": (200_000, 300_000, 400_000, 500_000),
}
#: for each gap and measure the numbers of tables 1 and 2, for the numbers of rows above
PAPER: dict[str, dict[float, dict[str, tuple[float, ...]]]] = {
    "hierarchy": {
        0.3: {
            "dist_A2": (0.2674, 0.1516, 0.1466, 0.1299, 0.0943),
            "dist_A1": (0.9283, 0.8029, 0.7656, 0.6939, 0.4813),
        },
        0.5: {
            "dist_A2": (0.0731, 0.0338, 0.0157, 0.0084, 0.0048),
            "dist_A1": (0.5942, 0.4016, 0.3205, 0.1187, 0.0661),
        },
    },
    "network": {
        0.3: {
            "dist_A": (0.2818, 0.2584, 0.1894, 0.0809),
            "dist_Lambda": (0.7933, 0.4627, 0.3894, 0.1778),
        },
        0.5: {
            "dist_A": (0.1777, 0.0757, 0.0478, 0.0330),
            "dist_Lambda": (0.4597, 0.1820, 0.0832, 0.0492),
        },
    },
}  # fmt: skip
MEASURES = {
    "hierarchy": ("dist_A2", "error_A2", "precision_A2", "recall_A2", "dist_A1"),
    "network": ("dist_A", "error_A", "precision_A", "recall_A", "dist_Lambda"),
    "decomposition": ("one_random", "best_random", "find_split"),
}


def loadings(n: int, k: int, gap: float, rng: np.random.Generator) -> np.ndarray:
    """Draw a matrix of full rank."""
    while True:
        matrix = bernoulli_gaussian(n, k, rng, gap=gap)
        if np.linalg.matrix_rank(matrix) == k:
            return matrix


def hierarchy(gap: float, seed: int, sizes: Sequence[int] = LEVELS) -> HierarchyPopulation:
    """Draw the population of example 1."""
    rng = np.random.default_rng([seed, 1])
    matrices = [loadings(n, k, gap, rng) for n, k in pairwise(sizes)]
    return HierarchyPopulation(matrices, [Noises.draw(n, rng) for n in sizes])


def network(gap: float, seed: int, sizes: tuple[int, int] = NETWORK) -> NetworkPopulation:
    """Draw the population of example 2."""
    rng = np.random.default_rng([seed, 2])
    n, k = sizes
    weights = np.tril((rng.random((k, k)) < 0.3) * rng.standard_normal((k, k)), -1)
    latent, noise = (Noises.draw(m, rng, SKEWED_FAMILIES) for m in (k, n))
    return NetworkPopulation(loadings(n, k, gap, rng), weights, latent, noise)


def covariances(
    population: HierarchyPopulation, rows: Sequence[int], seed: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the covariances of the first rows of one sample, in ascending order of their number."""
    if 0 in rows:
        yield 0, population.covariances()[0]
    ends = sorted(set(rows) - {0})
    if not ends:
        return
    cuts = sorted({*ends, *range(BLOCK_ROWS, ends[-1], BLOCK_ROWS)})
    n = len(population.loadings[0])
    total, product, done = np.zeros(n), np.zeros((n, n)), 0
    for block in population.blocks(np.diff([0, *cuts]).tolist(), seed):
        total += block.sum(axis=0)
        product += block.T @ block
        done += len(block)
        if done in ends:
            mean = total / done
            yield done, product / done - np.outer(mean, mean)


def found_columns(basis: np.ndarray, methods: Sequence[str], seed: int) -> dict[str, np.ndarray]:
    """Return unit columns in the range of an orthonormal basis, (n, k), by every method."""
    n, k = basis.shape
    found = {}
    if "programs" in methods:
        solved = [w for w in (sparse_program(basis, row) for row in basis) if w is not None]
        vectors = basis @ np.array(solved).T
        n_zeros = (np.abs(vectors) < EXACT_ZERO * np.abs(vectors).max(axis=0)).sum(axis=0)
        found["programs"] = vectors[:, pick_sparsest(vectors, k, n_zeros >= k - 1 + EXACT_MARGIN)]
    if {"projections", "polished", "both"} & set(methods):
        found["projections"] = projected_columns(basis)
        ends = [polished(basis, basis.T @ column) for column in found["projections"].T]
        found["polished"] = basis @ np.array([end.w for end in ends]).T
    for method in [name for name in ("search", "both") if name in methods]:
        candidates = found["projections"] if method == "both" else None
        chosen = sparse_columns(
            basis, n_constraints=n, n_program_rows=n, n_starts=10 * k, candidates=candidates, seed=seed
        )
        found[method] = basis @ chosen.coefficients
    return {name: found[name] / np.linalg.norm(found[name], axis=0) for name in methods}


def directions(white: Whitening) -> np.ndarray:
    """Return the orthonormal directions of a whitening, (n, k)."""
    return np.asarray(white.B / np.linalg.norm(white.B, axis=0))


def scales(true: np.ndarray, scores: ColumnScores) -> np.ndarray:
    """Return t such that unit columns stand for variables ``t h`` in the order of the scores."""
    return np.asarray(scores.signs * np.linalg.norm(true[:, scores.order], axis=0))


def measured(name: str, scores: ColumnScores) -> dict[str, float]:
    return {
        f"dist_{name}": scores.distance,
        f"error_{name}": scores.error,
        f"precision_{name}": scores.precision,
        f"recall_{name}": scores.recall,
    }


def run_hierarchy(
    population: HierarchyPopulation, covariance: np.ndarray, methods: Sequence[str], seed: int
) -> dict[str, dict[str, float]]:
    """Learn both levels of example 1 by every method, and compare them with the truth."""
    lower, upper = population.loadings
    split = find_split(covariance, lower.shape[1], n_partitions=N_PARTITIONS, seed=seed)
    white = whiten(split.low_rank, lower.shape[1])
    results = {}
    for method, columns in found_columns(directions(white), methods, seed).items():
        scores = score_columns(lower, columns, zero=ZERO)
        results[method] = measured("A2", scores)
        roots = np.linalg.pinv(columns) @ white.B
        own = upper[scores.order] * scales(lower, scores)[:, None]
        try:
            above = find_split(roots @ roots.T, upper.shape[1], n_partitions=N_PARTITIONS, seed=seed)
            basis = directions(whiten(above.low_rank, upper.shape[1]))
            second = found_columns(basis, [method], seed)[method]
            results[method] |= measured("A1", score_columns(own, second, zero=ZERO))
        except NumericalError:
            results[method] |= {"dist_A1": 1.0}
    return results


def run_network(
    population: NetworkPopulation,
    white: Whitening,
    third: np.ndarray,
    methods: Sequence[str],
    seed: int,
) -> dict[str, dict[str, float]]:
    """Learn the network of example 2 by every method, and compare it with the truth."""
    k = len(population.weights)
    factors = find_factors([Slices(third, (np.eye(k),), None)], (3,), random_state=seed).vectors
    results = {}
    for method, columns in found_columns(directions(white), methods, seed).items():
        scores = score_columns(population.loadings, columns, zero=ZERO)
        results[method] = measured("A", scores)
        t, weights = scales(population.loadings, scores), np.zeros((k, k))
        try:
            found = network_of_factors(np.linalg.pinv(columns) @ white.B @ factors).weights
            weights[np.ix_(scores.order, scores.order)] = found * t / t[:, None]
            results[method]["dist_Lambda"] = score_columns(population.weights, weights).distance
        except NumericalError:
            results[method]["dist_Lambda"] = 1.0
    return results


def run_decomposition(
    covariance: np.ndarray, variances: np.ndarray, rank: int, seed: int
) -> dict[str, dict[str, float]]:
    """Return the errors of the variances of the noise by partitions of different kinds."""

    def error(diagonal: np.ndarray) -> float:
        return float(np.sqrt(np.mean((diagonal - variances) ** 2)))

    rng = np.random.default_rng(seed)
    random = []
    for _ in range(N_PARTITIONS):
        try:
            random.append(
                split_diagonal(covariance, rank, np.array_split(rng.permutation(len(covariance)), 3))
            )
        except NumericalError:
            continue
    best = min(random, key=lambda split: split.off_diagonal_share)
    refined = find_split(covariance, rank, n_partitions=N_PARTITIONS, seed=seed)
    return {
        "noise variances": {
            "one_random": float(np.median([error(split.diagonal) for split in random])),
            "best_random": error(best.diagonal),
            "find_split": error(refined.diagonal),
        }
    }


def run_seed(
    experiment: str, gap: float, rows: Sequence[int], methods: Sequence[str], seed: int
) -> Iterator[dict[str, Any]]:
    """Yield one result for every number of rows and method."""
    if experiment == "network":
        nodes = network(gap, seed)
        k = len(nodes.weights)
        if 0 in rows:
            white = whiten(nodes.loadings @ nodes.second @ nodes.loadings.T, k)
            third = without_noise(nodes.third(white.W), white.W, nodes.noise.thirds)
            yield from _rows(gap, 0, seed, run_network(nodes, white, third, methods, seed))
        sample = nodes.sample(max(rows), seed)[0]
        for n in sorted(set(rows) - {0}):
            moments = denoised_moments(sample[:n], k, n_partitions=N_PARTITIONS, seed=seed)
            result = run_network(nodes, moments.whitening, moments.third, methods, seed)
            yield from _rows(gap, n, seed, result)
        return
    levels = hierarchy(gap, seed)
    for n, covariance in covariances(levels, rows, seed):
        if experiment == "hierarchy":
            result = run_hierarchy(levels, covariance, methods, seed)
        else:
            variances, rank = levels.noises[0].variances, levels.loadings[0].shape[1]
            result = run_decomposition(covariance, variances, rank, seed)
        yield from _rows(gap, n, seed, result)


def _rows(
    gap: float, n_rows: int, seed: int, results: dict[str, dict[str, float]]
) -> Iterator[dict[str, Any]]:
    for method, values in results.items():
        yield {"gap": gap, "n_rows": n_rows, "seed": seed, "method": method, **values}


def averages(results: Sequence[dict[str, Any]], measures: Sequence[str]) -> list[dict[str, Any]]:
    """Return the mean over the seeds for every gap, method and number of rows."""
    groups: dict[tuple[float, int, str], list[dict[str, Any]]] = {}
    for row in results:
        groups.setdefault((row["gap"], row["n_rows"], row["method"]), []).append(row)
    found = []
    for (gap, n_rows, method), same in groups.items():
        means = {name: float(np.mean([row[name] for row in same if name in row])) for name in measures}
        found.append({"gap": gap, "n_rows": n_rows, "method": method, **means})
    return found


def printed(experiment: str, gap: float) -> list[dict[str, Any]]:
    """Return the numbers of the paper as rows of the table."""
    measures = PAPER.get(experiment, {}).get(gap, {})
    return [
        {"gap": gap, "method": "paper", "n_rows": n, **{name: values[i] for name, values in measures.items()}}
        for i, n in enumerate(ROWS.get(experiment, ()))
        if measures
    ]


def markdown(experiment: str, results: Sequence[dict[str, Any]]) -> str:
    """Return the table of the averages, with the numbers of the paper."""
    measures = MEASURES[experiment]
    lines = [
        "| gap | rows | method | " + " | ".join(name.replace("_", " ") for name in measures) + " |",
        "|---:|---:|---|" + "---:|" * len(measures),
    ]
    rows = averages(results, measures)
    shown = {(row["gap"], row["n_rows"]) for row in rows}
    for gap in sorted({row["gap"] for row in rows}):
        rows += [row for row in printed(experiment, gap) if (gap, row["n_rows"]) in shown]
    rows.sort(key=lambda row: (row["gap"], row["n_rows"] or np.inf, row["method"] != "paper"))
    for row in rows:
        cells = [f"{row[name]:.4f}" if name in row else "" for name in measures]
        n = f"{row['n_rows']:,}" if row["n_rows"] else "exact"
        lines.append(f"| {row['gap']} | {n} | {row['method']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run an experiment and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("experiment", choices=MEASURES)
    add("--gaps", type=float, nargs="+", default=[0.3, 0.5], help="[0.3 0.5]")
    add("--rows", type=int, nargs="+", help="numbers of rows, 0 for exact moments [those of the paper]")
    add("--methods", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD",
        help=f"some of {', '.join(METHODS)} [all]")  # fmt: skip
    add("--seeds", type=int, default=5, help="number of draws of the model and the sample [%(default)s]")
    add("--json", type=Path, help="write all results to this file")
    add("--markdown", type=Path, help="write the table to this file")
    options = parser.parse_args(arguments)
    rows = options.rows or ROWS.get(options.experiment, ROWS["hierarchy"])
    results: list[dict[str, Any]] = []
    for gap in options.gaps:
        for seed in range(options.seeds):
            for row in run_seed(options.experiment, gap, rows, options.methods, seed):
                print(json.dumps(row), flush=True)
                results.append(row)
                if options.json is not None:
                    options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table = markdown(options.experiment, results)
    print(table)
    if options.markdown is not None:
        options.markdown.write_text(table, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
