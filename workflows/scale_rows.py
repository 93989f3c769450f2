"""Fit rows or sequences that do not fit in the memory of a worker: time, memory as planned, and the same bits.

    python workflows/scale_rows.py spherical diagonal --rows 10_000_000
    python workflows/scale_rows.py network ica --rows 10_000_000
    python workflows/scale_rows.py hmm --rows 100_000_000

Planted data are drawn shard by shard by the workers and written as a corpus, unless it exists already:

spherical, diagonal
    One corpus of a mixture of 20 spherical Gaussians in 100 dimensions. The error is the mean distance of the
    estimated means from the true ones.
network
    10 nodes with skewed noises that act on each other, observed by 50 columns with noise. The error is that of the
    weights, relative to their norm.
ica
    20 independent sources of different kurtosis, mixed in 20 columns. The error is the Amari index.
hmm
    Sequences of 2,000 steps from a hidden Markov model of 10 states and 500 symbols. The error is the mean L1
    distance of emission probabilities.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmark_ica import amari
from distributed import Client, LocalCluster
from networks import population, score
from scipy.optimize import linear_sum_assignment

from distmom.corpus import LayeredCorpus, open_corpus
from distmom.corpus.layer_write import LayerResult, LayerShard, LayerWriter, write_layer_shard
from distmom.corpus.layers import Layer
from distmom.engine.connections import WORKER_ENVIRONMENT, open_executor
from distmom.models import (
    ICA,
    DiagonalMixture,
    HiddenMarkov,
    LatentNetwork,
    SphericalMixture,
)
from distmom.simulate.networks import NetworkPopulation
from distmom.simulate.sources import SourcePopulation, symmetric_law

N_FEATURES, N_COMPONENTS = 100, 20
N_SYMBOLS, N_STATES, STEPS = 500, 10, 2_000
N_NODES, PER_NODE = 10, 5
N_SOURCES = 20
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


@cache
def network() -> NetworkPopulation:
    """Return the planted network."""
    return population(N_NODES, PER_NODE, seed=0)


def sources() -> SourcePopulation:
    """Return the planted sources, whose excess kurtosis is from -1.5 to -0.5 and from 1 to 6."""
    mixing = np.random.default_rng(0).standard_normal((N_SOURCES, N_SOURCES))
    half = N_SOURCES // 2
    kurtosis = [*np.linspace(-1.5, -0.5, half), *np.linspace(1.0, 6.0, N_SOURCES - half)]
    return SourcePopulation([symmetric_law(each) for each in kurtosis], mixing)


def dense(rows: np.ndarray) -> LayerShard:
    """Return a shard of rows."""
    layer = Layer(ROWS, "dense", "rows", rows.shape[1], "float32")
    return LayerShard((layer,), {ROWS: rows.astype(np.float32, copy=False)})


def gaussian_shard(index: int, n: int) -> LayerShard:
    """Draw rows of the mixture."""
    means, weights, deviations = gaussians()
    rng = np.random.default_rng((1, index))
    component = rng.choice(N_COMPONENTS, n, p=weights)
    rows = rng.standard_normal((n, N_FEATURES), np.float32)
    rows *= deviations[component, None].astype(np.float32)
    rows += means[component].astype(np.float32)
    return dense(rows)


def network_shard(index: int, n: int) -> LayerShard:
    """Draw rows of the network."""
    return dense(network().sample(n, index)[0])


def source_shard(index: int, n: int) -> LayerShard:
    """Draw rows of mixed sources."""
    return dense(sources().sample(n, np.random.default_rng((3, index))))


def symbol_shard(index: int, n: int) -> LayerShard:
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


def matched(found: np.ndarray, truth: np.ndarray, order: int) -> float:
    """Return the mean distance, by a norm of some order, of rows from the true ones that are matched to them."""
    distance = np.linalg.norm(found[:, None] - truth[None], axis=2, ord=order)
    return float(distance[linear_sum_assignment(distance)].mean())


def error_of_means(model: Any) -> float:
    """Return the mean distance of means."""
    return matched(model.means_, gaussians()[0], 2)


def error_of_weights(model: Any) -> float:
    """Return the relative error of the weights of the network."""
    return score(network(), (model.components_.T, model.adjacency_))["error"]


def error_of_mixing(model: Any) -> float:
    """Return the Amari index of the sources."""
    return amari(model.components_ @ sources().mixing)


def error_of_emissions(model: Any) -> float:
    """Return the mean L1 distance of emission probabilities."""
    return matched(model.emissionprob_, chain()[1], 1)


@dataclass(frozen=True)
class Kind:
    """Planted data, and the model that is fitted to them.

    Attributes
    ----------
    data : str
        Name of the corpus; kinds of the same name share it.
    draw : callable
        Draws a shard, given its number and its number of rows.
    shard_rows : int
        Rows of a shard.
    model : callable
        Returns the estimator.
    error : callable
        Returns the error of a fitted model.
    """

    data: str
    draw: Callable[[int, int], LayerShard]
    shard_rows: int
    model: Callable[[], Any]
    error: Callable[[Any], float]


KINDS = {
    "spherical": Kind(
        "gaussian", gaussian_shard, 80_000, partial(SphericalMixture, N_COMPONENTS), error_of_means
    ),
    "diagonal": Kind(
        "gaussian", gaussian_shard, 80_000, partial(DiagonalMixture, N_COMPONENTS), error_of_means
    ),
    "network": Kind("network", network_shard, 160_000, partial(LatentNetwork, N_NODES), error_of_weights),
    "ica": Kind("sources", source_shard, 400_000, partial(ICA, N_SOURCES), error_of_mixing),
    "hmm": Kind("hmm", symbol_shard, 4_000_000, partial(HiddenMarkov, N_STATES), error_of_emissions),
}


def write_one(directory: str, kind: str, task: tuple[int, int]) -> LayerResult:
    """Draw and write one shard."""
    return write_layer_shard(directory, task[0], KINDS[kind].draw(*task))


def planted(place: Path, kind: str, n_rows: int, executor: Any) -> LayeredCorpus:
    """Open the planted corpus, or write it."""
    path = place / f"{KINDS[kind].data}-{n_rows}"
    if not path.exists():
        size = KINDS[kind].shard_rows
        tasks = [(i, min(size, n_rows - first)) for i, first in enumerate(range(0, n_rows, size))]
        with LayerWriter(path) as writer:
            for result in executor.map(partial(write_one, writer.directory, kind), tasks):
                writer.add(result)
            writer.finalise(KINDS[kind].draw(0, STEPS).layers)
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
            dashboard_address=None,
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
