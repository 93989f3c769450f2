"""A lower bound of the time of a fit of latent states, for ``distmom bench floor``: its kernels alone, in memory.

Every worker loads its share of the shards and then runs the kernels of a fit of latent states on them, all workers
at the same time, without reading, decompressing, merging, writing or waiting. The time of a fit is compared with
this lower bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Executor, InProcess, TallSum
from distmom.engine.sums.tall import frequent_rows
from distmom.linalg import compose, decompose
from distmom.moments.documents.labels import posteriors
from distmom.moments.kernels import add_third_moment, gather
from distmom.moments.sketching import add_product, omega_key, scatter_rows

#: documents that are processed at a time, as in the passes
BLOCK_ROWS = 8192


def measure_floor(
    corpus: Corpus | MemoryCorpus,
    n_states: int,
    *,
    n_oversamples: int = 10,
    n_power_iter: int = 1,
    executor: Executor | None = None,
) -> dict[str, float]:
    """Time the kernels of a fit of latent states.

    Parameters
    ----------
    corpus : Corpus or MemoryCorpus
        Must fit into the memory of all workers together.
    n_states : int
    n_oversamples : int, default 10
        Columns of the sketch beyond the states.
    n_power_iter : int, default 1
        Power passes.
    executor : Executor, optional
        Its workers share the documents; this process by default.

    Returns
    -------
    dict of str to float
        Seconds of each kernel on the slowest worker, and their sum, ``floor_s``.
    """
    where = executor if executor is not None else InProcess()
    n_parts = max(1, min(where.n_threads, len(corpus.shards)))

    def timed(edges: list[int]) -> list[dict[str, float]]:
        work = partial(_time_part, corpus, edges, n_states, n_states + n_oversamples)
        return list(where.map(work, range(n_parts)))

    # A first round on one shard each loads the compiled kernels, which a fit loads once.
    timed(list(range(n_parts + 1)))
    parts = timed([len(corpus.shards) * i // n_parts for i in range(n_parts + 1)])
    seconds = {name: max(part[name] for part in parts) for name in parts[0]}
    seconds["power_s"] *= n_power_iter
    seconds["decomposition_s"] = _time_decomposition(n_states)
    return {**seconds, "floor_s": sum(seconds.values())}


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _time_part(
    corpus: Corpus | MemoryCorpus, edges: list[int], n_states: int, width: int, part: int
) -> dict[str, float]:
    """Time the kernels on the shards of one part."""
    with one_blas_thread():
        shards = [corpus.read_shard(i) for i in range(edges[part], edges[part + 1])]
        blocks = [
            shard.take(slice(start, start + BLOCK_ROWS))
            for shard in shards
            for start in range(0, shard.n_documents, BLOCK_ROWS)
        ]
        del shards
        d, n_labels = corpus.n_words, corpus.n_labels
        key, presence = omega_key(0), np.zeros(0, np.int32)
        no_basis = np.zeros((0, width), np.float32)
        basis = np.random.default_rng(0).standard_normal((d, width), np.float32)
        frequent = frequent_rows(np.asarray(corpus.document_frequency))
        sums = TallSum.zero(d, width, frequent)
        # Allocating the pages of the sums is not measured either.
        sums.single[:] = 0.0
        sums.double[:] = 0.0

        def product(matrix: np.ndarray) -> None:
            for block in blocks:
                words, weights = block.words, np.ones(block.n_documents)
                add_product(
                    words.indptr, words.indices, presence, weights, matrix, key, 0, False, sums.single
                )  # fmt: skip
            sums.settle()

        projected: list[np.ndarray] = []

        def project() -> None:
            for block in blocks:
                words = block.words
                projected.append(gather(words.indptr, words.indices, np.ones(words.nnz), basis))

        tensor = np.zeros((width, width, width))

        def third() -> None:
            for rows in projected:
                add_third_moment(tensor, rows, rows, np.ones(len(rows)))

        seconds = {
            "sketch_s": _timed(lambda: product(no_basis)),
            "power_s": _timed(lambda: product(basis)),
        }
        seconds["projection_s"] = _timed(project)
        seconds["third_moment_s"] = _timed(third)
        projected.clear()
        logs = np.ascontiguousarray(basis[:, :n_states])
        by_label = TallSum.zero(n_labels, n_states, frequent_rows(np.asarray(corpus.label_frequency)))
        by_label.single[:] = 0.0

        def label() -> None:
            for block in blocks:
                rows, _ = posteriors(block, logs, np.zeros(n_states))
                scatter_rows(block.labels.indptr, block.labels.indices, rows, by_label.single)
            by_label.settle()

        return {**seconds, "labels_s": _timed(label)}


def _time_decomposition(k: int) -> float:
    """Time the decomposition of an orthogonal tensor with a little noise."""
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.standard_normal((k, k)))[0]
    noise = rng.standard_normal((k, k, k)) * 1e-3
    tensor = compose(rng.uniform(1.0, 3.0, k), vectors)
    tensor += sum(noise.transpose(p) for p in ((0, 1, 2), (1, 2, 0), (2, 0, 1))) / 3.0
    tensor += tensor.transpose(1, 0, 2)
    with one_blas_thread():
        return _timed(lambda: decompose(tensor / 2.0, "joint", random_state=0))
