"""Extrapolate time, traffic and memory of a fit of latent states to larger sizes, from measured constants.

The constants are seconds per core from `distmom bench floor CORPUS -k 100 --workers 1` on a planted corpus
with the size of WikiLSHTC, and the bandwidth of disk or network, which is an option. The division into groups
and slabs follows the rules of the planner. See docs/scaling.md.

    python workflows/scaling.py
    python workflows/scaling.py --memory-gib 16 --gbytes-per-s 1
    python workflows/scaling.py --memory-gib 16 --third-moment slices
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

from distmom.engine.passes import Pass
from distmom.engine.plan import LIMIT_SHARE, MAX_GROUPS, RESERVED_BYTES
from distmom.linalg import slice_directions


@dataclass(frozen=True)
class Constants:
    """Seconds per core, by default per entry of a row and column of the basis."""

    sketch: float = 0.86e-9
    power: float = 1.26e-9
    projection: float = 0.84e-9
    labels: float = 0.63e-9
    #: per document and product; there are r^3 / 6 products for the full moment, m k^2 / 2 for slices
    third_moment: float = 31e-12
    #: per entry, for reading from disk, checking and decoding
    read: float = 19e-9
    #: seconds of the scheduler per task
    task: float = 1e-3


@dataclass(frozen=True)
class Size:
    """Size of a fit."""

    n_documents: float
    n_words: float
    n_states: int
    words_per_document: float = 42.0
    n_power_iter: int = 1


def predict(
    size: Size, n_workers: int, memory_bytes: float, rate: float, c: Constants, *, sliced: bool = False
) -> dict[str, float]:
    """Return the seconds of each part of a fit, and the traffic over disk or network."""
    r = size.n_states + 10
    nnz = size.n_documents * size.words_per_document
    n_groups = max(2, min(MAX_GROUPS, nnz // (Pass.entries_per_row * size.n_words)))
    usable = LIMIT_SHARE * memory_bytes - RESERVED_BYTES - 100e6
    # One column of the accumulator, and one of the memory-mapped basis.
    fitting = max(1, math.floor(usable / (8 * size.n_words)))
    n_slabs = max(math.ceil(r / fitting), math.ceil(n_workers / n_groups))
    n_slabs = min(n_slabs, r)
    # At most groups times slabs workers can be busy.
    busy = min(n_workers, n_groups * n_slabs)
    sketches = 1 + size.n_power_iter
    partial_bytes = n_groups * size.n_words * r * 4
    traffic = sketches * (3 * partial_bytes + 2 * size.n_words * r * 4)
    reads = sketches * n_slabs * nnz * c.read / busy + (2 + sliced) * nnz * c.read / n_workers
    sketch = nnz * r * (c.sketch + size.n_power_iter * c.power) / busy
    k = size.n_states
    # Slices are of rows that are projected again, and whitened.
    third = slice_directions(k).shape[1] * k**2 / 2 + r * k if sliced else r**3 / 6
    moments = ((1 + sliced) * nnz * r * c.projection + size.n_documents * third * c.third_moment) / n_workers
    labels = nnz * k * c.labels / n_workers
    n_tasks = sketches * (n_groups * n_slabs + 2 * size.n_words / 32768) + 4 * MAX_GROUPS
    parts = {
        "sketches": sketch,
        "moments": moments,
        "labels": labels,
        "reading": reads,
        "partial sums": traffic / (rate * n_workers),
        "scheduler": n_tasks * c.task,
    }
    return {
        **parts,
        "total": sum(parts.values()),
        "groups": n_groups,
        "slabs": n_slabs,
        "busy": busy,
        "traffic TB": traffic / 1e12,
        "tasks": n_tasks,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memory-gib", type=float, default=16.0, help="memory of one worker [%(default)s]")
    parser.add_argument(
        "--gbytes-per-s",
        type=float,
        default=1.0,
        help="bandwidth of one worker's disk or network [%(default)s]",
    )
    parser.add_argument("--third-moment", choices=["full", "slices"], default="full", help="[%(default)s]")
    options = parser.parse_args()
    sizes = {
        "WikiLSHTC, K = 100": Size(1_778_351, 1_617_899, 100),
        "100 M documents, D = 10^8, K = 500": Size(1e8, 1e8, 500),
        "10 G documents, D = 10^8, K = 500": Size(1e10, 1e8, 500),
    }
    constants = Constants()
    columns = ["sketches", "moments", "labels", "reading", "partial sums", "scheduler", "total"]
    print(
        "| size | workers | "
        + " | ".join(f"{name} s" for name in columns)
        + " | groups x slabs | traffic TB |"
    )
    print("|---|---:" + "|---:" * (len(columns) + 2) + "|")
    for name, size in sizes.items():
        for n_workers in (2, 10, 100, 1000):
            if n_workers == 2 and size.n_documents > 1e7:
                continue
            found = predict(
                size, n_workers, options.memory_gib * 2**30, options.gbytes_per_s * 1e9, constants,
                sliced=options.third_moment == "slices",
            )  # fmt: skip
            cells = [f"{found[c]:,.0f}" for c in columns]
            print(
                f"| {name} | {n_workers} | {' | '.join(cells)} | {found['groups']:.0f} x {found['slabs']} "
                f"| {found['traffic TB']:.2f} |"
            )


if __name__ == "__main__":
    main()
