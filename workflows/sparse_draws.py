"""Compare searches for sparse columns on random matrices of several kinds, from their exact and noisy ranges.

The methods are those of `benchmark_expansion`. `exact` is the share of the draws for which all columns are found
from the exact range, `dist` the average of `ColumnScores.distance` there, and `noisy dist` that from the range of
the matrix with unit columns and normal noise of deviation 0.001. Draws of smaller rank, or with a column of fewer
than two entries, are left out; in some of the others a combination of columns is sparser than a column.

Example::

    python workflows/sparse_draws.py --markdown draws.md
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from benchmark_expansion import METHODS, found_columns

from distmom.evaluate.columns import score_columns
from distmom.simulate.loadings import bernoulli_gaussian

#: rows, columns, density, gap and number of draws of each kind
KINDS = (
    (30, 5, 0.3, 0.3, 20),
    (60, 6, 0.2, 0.3, 15),
    (60, 10, 0.3, 0.3, 10),
    (60, 10, 0.3, 0.5, 10),
    (100, 10, 0.1, 0.3, 5),
    (300, 8, 0.2, 0.3, 2),
    (150, 25, 0.1, 0.3, 3),
    (200, 20, 0.2, 0.3, 3),
)
NOISE = 1e-3
#: distance up to which columns are exact
EXACT = 1e-12


def distances(
    kind: tuple[int, int, float, float, int], methods: Sequence[str]
) -> dict[str, list[tuple[float, float]]]:
    """Return the distances from the exact and the noisy range of every draw, by method."""
    n, k, density, gap, n_draws = kind
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in methods}
    seed = 0
    while len(found[methods[0]]) < n_draws:
        rng = np.random.default_rng([seed, 7])
        seed += 1
        matrix = bernoulli_gaussian(n, k, rng, density=density, gap=gap)
        if np.linalg.matrix_rank(matrix) < k or np.count_nonzero(matrix, axis=0).min() < 2:
            continue
        matrix /= np.linalg.norm(matrix, axis=0)
        both = []
        for noise in (0.0, NOISE):
            noisy = matrix + noise * rng.standard_normal((n, k))
            rotation = np.linalg.qr(rng.standard_normal((k, k)))[0]
            columns = found_columns(np.linalg.qr(noisy @ rotation)[0], methods, seed)
            both.append({method: score_columns(matrix, columns[method]).distance for method in methods})
        for method in methods:
            found[method].append((both[0][method], both[1][method]))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--kinds", type=int, default=len(KINDS), metavar="N", help="run the first N kinds [all]")
    add("--methods", nargs="+", choices=METHODS, default=["programs", "projections", "search", "both"],
        metavar="METHOD", help=f"some of {', '.join(METHODS)} [all but polished]")  # fmt: skip
    add("--markdown", type=Path, help="write the table to this file")
    options = parser.parse_args(arguments)
    lines = [
        "| rows | columns | density | gap | draws | method | exact | dist | noisy dist |",
        "|---:|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    for kind in KINDS[: options.kinds]:
        for method, values in distances(kind, options.methods).items():
            exact, noisy = np.array(values).T
            cells = [*map(str, kind), method, f"{np.mean(exact < EXACT):.2f}"]
            cells += [f"{exact.mean():.4f}", f"{noisy.mean():.4f}"]
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    if options.markdown is not None:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
