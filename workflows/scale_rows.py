"""Fit rows or sequences that do not fit in the memory of a worker: time, memory as planned, and the same bits.

    python workflows/scale_rows.py spherical diagonal multiview gaussian-search --rows 10_000_000
    python workflows/scale_rows.py network ica latent-tree factors --rows 10_000_000
    python workflows/scale_rows.py hmm --rows 100_000_000

Planted data are drawn shard by shard by the workers and written as a corpus, unless it exists already (see
`planted_rows`):

spherical, diagonal, multiview, gaussian-search
    One corpus of a mixture of 20 spherical Gaussians in 100 dimensions, for `MultiView` in three views. The error
    is the mean distance of the estimated means from the true ones; a search has 200 labelled rows.
regression-search
    4 regressions on 20 features. The error is the mean distance of coefficients found by the true ones.
subspace-search
    4 planes in 20 dimensions. The error is the mean angle, in radians, of planes found by a vector in them.
network
    10 nodes with skewed noises that act on each other, observed by 50 columns with noise. The error is that of the
    weights, relative to their norm.
ica
    20 independent sources of different kurtosis, mixed in 20 columns. The error is the Amari index.
latent-tree
    A tree of three hidden variables of 4 states and six leaves of 8 columns. The error is the mean distance of the
    means of a leaf.
factors
    5 gamma distributed factors of units of five views with 30 counts each. The error is that of the columns,
    relative to their norm.
hmm
    Sequences of 2,000 steps from a hidden Markov model of 10 states and 500 symbols. The error is the mean L1
    distance of emission probabilities.
factorial-hmm
    Sequences of 100 steps of 20 values, from 4 chains. The error is that of the components, relative to their
    norm.

A model is fitted on a local cluster of two workers; the peak memory of each is compared with the plan. With
``--check-bits`` it is fitted in this process too, and all arrays of both are compared bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster
from planted_rows import KINDS, STEPS

from distmom.corpus import LayeredCorpus, open_corpus
from distmom.corpus.stored.write_layers import LayerResult, LayerWriter, write_layer_shard
from distmom.engine.executors.connections import WORKER_ENVIRONMENT, open_executor


def write_one(directory: str, kind: str, task: tuple[int, int]) -> LayerResult:
    """Draw and write one shard."""
    return write_layer_shard(directory, task[0], KINDS[kind].data.draw(*task))


def planted(place: Path, kind: str, n_rows: int, executor: Any) -> LayeredCorpus:
    """Open the planted corpus, or write it."""
    data = KINDS[kind].data
    path = place / f"{data.name}-{n_rows}"
    if not path.exists():
        size = data.shard_rows
        tasks = [(i, min(size, n_rows - first)) for i, first in enumerate(range(0, n_rows, size))]
        with LayerWriter(path) as writer:
            for result in executor.map(partial(write_one, writer.directory, kind), tasks):
                writer.add(result)
            writer.finalise(data.draw(0, STEPS).layers)
    corpus = open_corpus(path)
    assert isinstance(corpus, LayeredCorpus)
    return corpus


def peak_bytes() -> int:
    """Return the peak resident memory of a process; called on workers.

    ``getrusage`` would also count that of the process that has started it.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) * 1024  # type: ignore[index]


def digest(model: Any) -> str:
    """Return the sha256 of the fitted arrays."""
    found = hashlib.sha256()
    for name, value in sorted(vars(model).items()):
        if name.endswith("_") and isinstance(value, np.ndarray):
            found.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return found.hexdigest()


@contextmanager
def cluster(options: argparse.Namespace) -> Iterator[Client]:
    """Start a local cluster of workers of one thread; a context manager."""
    with (
        LocalCluster(
            n_workers=options.workers, threads_per_worker=1, memory_limit=options.memory_limit,
            dashboard_address="127.0.0.1:0",
        ) as started,
        Client(started) as client,
    ):  # fmt: skip
        yield client


def run(kind: str, place: Path, options: argparse.Namespace) -> None:
    """Draw, plan, fit, and print a row of the table and the seconds of every pass."""
    make = KINDS[kind].model
    with cluster(options) as client, open_executor(client) as executor:
        corpus = planted(place, kind, options.rows, executor)
    size = sum(f.stat().st_size for f in Path(corpus.path).rglob("*") if f.is_file())
    planned = make().plan(corpus, options.memory_limit, n_workers=options.workers)
    # Workers that have not drawn the corpus, whose peaks are those of the fit.
    with cluster(options) as client:
        started = time.perf_counter()
        model = make().fit_corpus(corpus, client=client, memory_limit=options.memory_limit)
        seconds = time.perf_counter() - started
        peak = max(client.run(peak_bytes).values())
    total = planned.total_seconds
    assert total is not None
    cells = [
        kind, f"{corpus.n_rows:,}", f"{size / 1e9:.2f}", f"{seconds:.1f}", f"{total.low:.0f} to {total.high:.0f}",
        f"{peak / 1e6:.0f}", f"{planned.worker_bytes / 1e6:.0f}",
        f"{KINDS[kind].error(model):.4f}",
    ]  # fmt: skip
    print("| " + " | ".join(cells) + " |")
    print(
        "  " + ", ".join(f"{entry['name']} {entry['seconds']:.1f} s" for entry in model.timings_), flush=True
    )
    if options.check_bits:
        started = time.perf_counter()
        alone = make().fit_corpus(corpus, memory_limit=options.memory_limit)
        same = digest(alone) == digest(model)
        print(f"  in one process: {time.perf_counter() - started:.1f} s, the same bits: {same}", flush=True)
        if not same:
            raise SystemExit(1)


def main(arguments: list[str] | None = None) -> None:
    """Fit models of all kinds and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="+", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows, or steps of all sequences")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--memory-limit", type=int, default=1 << 30, help="bytes of one worker")
    parser.add_argument(
        "--place", type=Path, default=None, help="directory of the corpus; a temporary one by default"
    )
    parser.add_argument("--check-bits", action="store_true", help="fit in this process too, and compare")
    options = parser.parse_args(arguments)
    os.environ.update({name: str(value) for name, value in WORKER_ENVIRONMENT.items()})
    print("| model | rows | corpus, GB | fit, s | planned, s | peak of a worker, MB | planned, MB | error |")
    print("|---|---:|---:|---:|---|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        place = options.place or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        for kind in options.kinds:
            run(kind, place, options)


if __name__ == "__main__":
    main()
