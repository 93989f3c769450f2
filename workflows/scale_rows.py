"""Fit rows or sequences that do not fit in the memory of a worker: time, memory as planned, and the same bits.

    python workflows/scale_rows.py gaussian --rows 10_000_000
    python workflows/scale_rows.py hmm --rows 100_000_000

Planted rows (a mixture of 20 spherical Gaussians in 100 dimensions), or sequences of 2,000 steps from a hidden
Markov model of 10 states and 500 symbols, are drawn shard by shard by the workers and written as a corpus, unless
it exists already.
The model is fitted on a local cluster of two workers; the peak memory of each is compared with the plan. With
``--check-bits`` it is fitted in this process too, and all arrays of both are compared bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster
from scipy.optimize import linear_sum_assignment

from distmom.corpus import LayeredCorpus, open_corpus
from distmom.corpus.layer_write import LayerResult, LayerShard, LayerWriter, write_layer_shard
from distmom.corpus.layers import CONTEXT_ROWS, Layer
from distmom.engine.connections import WORKER_ENVIRONMENT, open_executor
from distmom.models import HiddenMarkov, SphericalMixture

N_FEATURES, N_COMPONENTS = 100, 20
N_SYMBOLS, N_STATES, STEPS = 500, 10, 2_000
ROWS, SYMBOLS = "rows", "symbols"


def gaussians() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means, weights and standard deviations of the planted mixture."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((N_COMPONENTS, N_FEATURES)) * 0.5
    return means, rng.dirichlet(np.full(N_COMPONENTS, 10.0)), rng.uniform(0.8, 1.2, N_COMPONENTS)


def chain() -> tuple[np.ndarray, np.ndarray]:
    """Return transition and emission probabilities of the planted hidden Markov model; rows sum to one."""
    rng = np.random.default_rng(0)
    transition = 0.6 * np.eye(N_STATES) + 0.4 * rng.dirichlet(np.full(N_STATES, 0.5), N_STATES)
    return transition, rng.dirichlet(np.full(N_SYMBOLS, 0.05), N_STATES)


def rows_of_shard(index: int, n: int) -> LayerShard:
    """Draw rows of the mixture."""
    means, weights, deviations = gaussians()
    rng = np.random.default_rng((1, index))
    component = rng.choice(N_COMPONENTS, n, p=weights)
    rows = rng.standard_normal((n, N_FEATURES), np.float32)
    rows *= deviations[component, None].astype(np.float32)
    rows += means[component].astype(np.float32)
    return LayerShard((Layer(ROWS, "dense", "rows", N_FEATURES, "float32"),), {ROWS: rows})


def symbols_of_shard(index: int, n: int) -> LayerShard:
    """Draw sequences; all of them take their steps at the same time."""
    transition, emission = chain()
    rng = np.random.default_rng((2, index))
    n_sequences = n // STEPS
    laws = np.cumsum(transition, axis=1)
    state = rng.integers(0, N_STATES, n_sequences)
    states = np.empty((n_sequences, STEPS), np.int8)
    for t in range(STEPS):
        states[:, t] = state
        draw = rng.random(n_sequences)
        state = np.minimum((laws[state] < draw[:, None]).sum(axis=1), N_STATES - 1)
    symbols = np.empty(states.shape, np.int32)
    for h in range(N_STATES):
        own = states == h
        edges = np.cumsum(emission[h])
        symbols[own] = np.minimum(np.searchsorted(edges, rng.random(int(own.sum()))), N_SYMBOLS - 1)
    starts = np.arange(0, n + 1, STEPS, dtype=np.int64)
    return LayerShard(
        (Layer(SYMBOLS, "symbols", "rows", N_SYMBOLS, "int32"),), {SYMBOLS: symbols.ravel()}, starts
    )


def write_one(directory: str, kind: str, task: tuple[int, int]) -> LayerResult:
    """Draw and write one shard."""
    draw = rows_of_shard if kind == "gaussian" else symbols_of_shard
    return write_layer_shard(directory, task[0], draw(*task))


def planted(place: Path, kind: str, n_rows: int, executor: Any) -> LayeredCorpus:
    """Open the planted corpus, or write it."""
    path = place / f"{kind}-{n_rows}"
    if not path.exists():
        size = 80_000 if kind == "gaussian" else 4_000_000
        tasks = [(i, min(size, n_rows - first)) for i, first in enumerate(range(0, n_rows, size))]
        layer = (
            rows_of_shard(0, CONTEXT_ROWS).layers if kind == "gaussian" else symbols_of_shard(0, STEPS).layers
        )
        with LayerWriter(path) as writer:
            for result in executor.map(partial(write_one, writer.directory, kind), tasks):
                writer.add(result)
            writer.finalise(layer)
    corpus = open_corpus(path)
    assert isinstance(corpus, LayeredCorpus)
    return corpus


def peak_bytes() -> int:
    """Return the peak resident memory of a process; called on workers."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def digest(model: Any) -> str:
    """Return the sha256 of the fitted arrays."""
    found = hashlib.sha256()
    for name, value in sorted(vars(model).items()):
        if name.endswith("_") and isinstance(value, np.ndarray):
            found.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return found.hexdigest()


def error(model: Any, kind: str) -> float:
    """Return the mean distance of matched means, or the mean L1 distance of matched emissions."""
    truth, found = (gaussians()[0], model.means_) if kind == "gaussian" else (chain()[1], model.emissionprob_)
    order = 2 if kind == "gaussian" else 1
    distance = np.linalg.norm(found[:, None] - truth[None], axis=2, ord=order)
    return float(distance[linear_sum_assignment(distance)].mean())


def main() -> None:
    """Draw, plan, fit, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=["gaussian", "hmm"])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows, or steps of all sequences")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--memory-limit", type=int, default=1 << 30, help="bytes of one worker")
    parser.add_argument(
        "--place", type=Path, default=None, help="directory of the corpus; a temporary one by default"
    )
    parser.add_argument("--check-bits", action="store_true", help="fit in this process too, and compare")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = options.place or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        os.environ.update({name: str(value) for name, value in WORKER_ENVIRONMENT.items()})
        with (
            LocalCluster(
                n_workers=options.workers, threads_per_worker=1, memory_limit=options.memory_limit,
                dashboard_address=None,
            ) as cluster,
            Client(cluster) as client,
            open_executor(client) as executor,
        ):  # fmt: skip
            corpus = planted(place, options.kind, options.rows, executor)
            size = sum(f.stat().st_size for f in Path(corpus.path).rglob("*") if f.is_file())
            client.restart()
            make = (
                partial(SphericalMixture, N_COMPONENTS)
                if options.kind == "gaussian"
                else partial(HiddenMarkov, N_STATES)
            )
            planned = make().plan(corpus, options.memory_limit, n_workers=options.workers)
            before = max(client.run(peak_bytes).values())
            started = time.perf_counter()
            model = make().fit_corpus(corpus, client=client, memory_limit=options.memory_limit)
            seconds = time.perf_counter() - started
            peak = max(client.run(peak_bytes).values())
        print(
            "| rows | corpus, GB | workers | fit, s | planned, s | peak of a worker, MB | planned, MB | error |"
        )
        print("|---|---|---|---|---|---|---|---|")
        total = planned.total_seconds
        assert total is not None
        print(
            f"| {corpus.n_rows:,} | {size / 1e9:.2f} | {options.workers} | {seconds:.1f} | {total.low:.0f} to "
            f"{total.high:.0f} | {peak / 1e6:.0f} ({before / 1e6:.0f} before) | "
            f"{planned.worker_bytes / 1e6:.0f} | {error(model, options.kind):.4f} |"
        )
        for entry in model.timings_:
            print(f"  {entry['name']}: {entry['seconds']:.1f} s")
        if options.check_bits:
            started = time.perf_counter()
            alone = make().fit_corpus(corpus, memory_limit=options.memory_limit)
            same = digest(alone) == digest(model)
            print(f"in one process: {time.perf_counter() - started:.1f} s, the same bits: {same}")
            if not same:
                raise SystemExit(1)


if __name__ == "__main__":
    main()
