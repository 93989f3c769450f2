"""Timings of the kernels one by one, with pytest-benchmark, and their shares of the rates that bound them.

    pip install 'distmom[bench]'
    python -m pytest -o addopts= -o timeout=0 workflows/bench_kernels.py

Blocks are from a planted corpus with the shape of WikiLSHTC; --benchmark-json FILE stores the results. Some
kernels are compared with a straightforward implementation.

A kernel takes at least the time that its multiplications and additions need at the rate of a single-precision
matrix product, and at least the time that its bytes need at the rate of memory. Both rates are measured first, on
one thread. The table at the end has the time of every kernel, and the larger of the two bounds as a share of it.
The bytes of a kernel are those of the rows of matrices that it reads and writes, each time that it does; rows
that stay in the processor's cache move faster, so that a share may exceed 100 %. The last column is for kernels
that are bound by access to random places. If such a kernel reads rows of a matrix, the column has the time of
reading as many rows of this width at random places of 256 MB, as a share of the time of the kernel; if it
changes single numbers of a vector, the time of as many changes at random places of such a vector.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ingest_speed import write_xmc
from kernel_bounds import Bounded, Machine
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from distmom.corpus import Block
from distmom.corpus.sources.readers.scan import LABELLED, scan
from distmom.engine import Csr, TallSum
from distmom.engine.sums.algebra import combine, transposed_product
from distmom.engine.sums.csr import CsrArrays
from distmom.engine.sums.tall import frequent_rows
from distmom.linalg import compose, decompose
from distmom.models.markov.kernels import forward
from distmom.models.multilabel.heads.heads import RidgeHead, rank_labels
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead
from distmom.models.multilabel.heads.score_kernels import add_sparse_scores
from distmom.models.multilabel.kernels import top_by_states, top_of_products
from distmom.moments.documents.labels import posteriors
from distmom.moments.documents.share_kernels import (
    Counts,
    GivenTopics,
    Iteration,
    find_collapsed,
)
from distmom.moments.features.residuals import restricted_scores
from distmom.moments.features.tfidf import inverse_document_frequency, tfidf_rows
from distmom.moments.kernels import add_third_moment, gather
from distmom.moments.sketching import add_product, omega, omega_key, scatter_rows
from distmom.simulate import preset
from distmom.simulate.draws import draw_documents

pytest.importorskip("pytest_benchmark")

N_DOCUMENTS, N_STATES, WIDTH = 20_000, 100, 110
#: numbers of documents to score or look up, and of lines to read
N_QUERIES, N_LINES = 500, 5_000
#: maximum number of products of columns in memory for the straightforward third moment
PAIRS = 1 << 24


@pytest.fixture(scope="module")
def bounded(request: pytest.FixtureRequest) -> Iterator[Bounded]:
    found = Bounded(Machine.measured())
    yield found
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("", found.table(), sep="\n")


@pytest.fixture(scope="module")
def block() -> Block:
    words, labels, _ = draw_documents(preset("wikilshtc"), 0, N_DOCUMENTS)
    return Block(words, labels, 0)


@pytest.fixture(scope="module")
def basis(block: Block) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((block.words.shape[1], WIDTH), np.float32)


@pytest.fixture(scope="module")
def idf(block: Block) -> np.ndarray:
    words = block.words
    return inverse_document_frequency(np.bincount(words.indices, minlength=words.shape[1]), N_DOCUMENTS)


@pytest.fixture(scope="module")
def features(block: Block, idf: np.ndarray) -> csr_array:
    return tfidf_rows(block.words, idf, np.float32)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    with threadpool_limits(limits=1):
        yield


def test_draw_documents(benchmark: Any) -> None:
    benchmark(draw_documents, preset("wikilshtc"), 0, N_DOCUMENTS)


def test_omega(benchmark: Any) -> None:
    benchmark(omega, np.arange(100_000), WIDTH, omega_key(0))


@pytest.mark.parametrize("step", ["sketch", "power"])
@pytest.mark.parametrize("moments", ["paper", "distinct"])
def test_add_product(
    benchmark: Any, bounded: Bounded, block: Block, basis: np.ndarray, step: str, moments: str
) -> None:
    words = block.words
    frequency = np.bincount(words.indices, minlength=words.shape[1])
    total = TallSum.zero(words.shape[1], WIDTH, frequent_rows(frequency))
    matrix = basis if step == "power" else np.zeros((0, WIDTH), np.float32)
    weights, presence = np.ones(N_DOCUMENTS), np.zeros(0, np.int32)
    # Rows of the basis are read and rows of the total changed, twice if pairs of equal positions are left out.
    n_moved = words.nnz * (2 + (step == "power")) * (1 + (moments == "distinct"))
    bounded.run(
        benchmark, add_product, words.indptr, words.indices, presence, weights, matrix, omega_key(0), 0,
        moments == "distinct", total.single, n_bytes=4.0 * WIDTH * n_moved, width=WIDTH,
    )  # fmt: skip


def test_settle(benchmark: Any, bounded: Bounded, block: Block) -> None:
    frequency = np.bincount(block.words.indices, minlength=block.words.shape[1])
    frequent = np.argsort(-frequency)[:36_000].astype(np.int64)
    total = TallSum.zero(len(frequency), WIDTH, frequent)
    bounded.run(benchmark, total.settle, n_bytes=(8.0 + 16.0) * WIDTH * len(frequent))


def test_projection(benchmark: Any, bounded: Bounded, block: Block, basis: np.ndarray) -> None:
    words, ones = block.words, np.ones(block.words.nnz)
    bounded.run(
        benchmark,
        gather,
        words.indptr,
        words.indices,
        ones,
        basis,
        n_bytes=4.0 * WIDTH * (words.nnz + N_DOCUMENTS),
        width=WIDTH,
    )


@pytest.mark.parametrize(
    ("width", "method"),
    [(60, "blocks"), (110, "blocks"), (310, "blocks"), (60, "one-product"), (110, "one-product")],
)
def test_third_moment(benchmark: Any, bounded: Bounded, width: int, method: str) -> None:
    rows = np.random.default_rng(0).standard_normal((8192, width), np.float32)
    tensor = np.zeros((width,) * 3)
    if method == "blocks":
        entries = width * (width + 1) * (width + 2) / 6
        ones = np.ones(len(rows))
        bounded.run(
            benchmark, add_third_moment, tensor, rows, rows, ones, operations=2.0 * len(rows) * entries
        )
        return
    step = max(1, PAIRS // width**2)

    def add_all() -> None:
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            pairs = (part[:, :, None] * part[:, None, :]).reshape(len(part), -1)
            tensor.reshape(-1, width)[:] += pairs.T @ part

    benchmark(add_all)


def test_posteriors(benchmark: Any, bounded: Bounded, block: Block, basis: np.ndarray) -> None:
    log_topics = np.ascontiguousarray(basis[:, :N_STATES])
    n_bytes = 4.0 * N_STATES * (block.words.nnz + N_DOCUMENTS)
    bounded.run(benchmark, posteriors, block, log_topics, np.zeros(N_STATES), n_bytes=n_bytes, width=N_STATES)


def test_scatter_labels(benchmark: Any, bounded: Bounded, block: Block) -> None:
    labels = block.labels
    total = TallSum.zero(labels.shape[1], N_STATES, np.zeros(0, np.int64))
    rows = np.random.default_rng(0).dirichlet(np.ones(N_STATES), N_DOCUMENTS)
    n_bytes = (16.0 * labels.nnz + 8.0 * N_DOCUMENTS) * N_STATES
    bounded.run(benchmark, scatter_rows, labels.indptr, labels.indices, rows, total.single, n_bytes=n_bytes)


@pytest.mark.parametrize("method", ["lists", "all-labels"])
def test_top_labels_of_states(benchmark: Any, method: str) -> None:
    rng = np.random.default_rng(0)
    states = rng.gamma(0.1, size=(325_056, N_STATES)).astype(np.float32)
    states /= states.sum(axis=0)
    posterior = rng.dirichlet(np.full(N_STATES, 0.01), 64).astype(np.float32)
    ranked = rank_labels(states)
    if method == "lists":
        benchmark(top_by_states, posterior, states, ranked, 5, len(states))
    else:
        benchmark(lambda: top_of_products(posterior @ states.T, posterior, states, 5, 1e-5))


@pytest.mark.parametrize("method", ["running-top", "product-alone"])
@pytest.mark.parametrize("rank", [100, 200])
def test_top_labels_of_ridge(benchmark: Any, bounded: Bounded, rank: int, method: str) -> None:
    rng = np.random.default_rng(0)
    coefficients = rng.standard_normal((rank, 325_056), np.float32)
    rows = rng.standard_normal((N_QUERIES, rank), np.float32)
    head = RidgeHead(coefficients, np.zeros(coefficients.shape[1], np.float32))
    with threadpool_limits(limits=1):
        if method == "running-top":
            bounded.run(
                benchmark, head.top, Namespace(sketch=rows), 1.0, 5, operations=2.0 * rows.size * 325_056
            )
        else:
            benchmark(
                np.matmul, rows, coefficients, out=np.empty((N_QUERIES, coefficients.shape[1]), np.float32)
            )


@pytest.mark.parametrize("method", ["index", "all-rows"])
def test_nearest_rows(
    benchmark: Any, bounded: Bounded, block: Block, features: csr_array, method: str
) -> None:
    queries = features[:N_QUERIES]
    if method == "index":
        alive = np.ones(features.shape[0], np.uint8)
        head = NeighborsHead(Csr.of(csr_array(features.T)), Csr.of(block.labels, np.uint8), alive)
        n_listed = float(np.bincount(features.indices, minlength=features.shape[1])[queries.indices].sum())
        # The row and its value are read, and its cosine changed.
        bounded.run(
            benchmark, head.search, queries, 75, n_bytes=16.0 * n_listed,
            changes=(n_listed, features.shape[0], "float32"),
        )  # fmt: skip
    else:
        benchmark(lambda: np.argpartition(-(queries @ features.T).toarray(), 75, axis=1)[:, :75])


@pytest.mark.parametrize("method", ["own", "scipy"])
def test_transposed_product(
    benchmark: Any, bounded: Bounded, block: Block, features: csr_array, method: str
) -> None:
    ones = csr_array(block.labels.astype(np.float32))
    if method == "own":
        n_products = float(np.diff(features.indptr).astype(np.int64) @ np.diff(ones.indptr))
        bounded.run(
            benchmark, transposed_product, features, ones, n_bytes=8.0 * (n_products + features.nnz),
            changes=(n_products, ones.shape[1], "float64"),
        )  # fmt: skip
    else:
        benchmark(lambda: csr_array(features.T @ ones).sort_indices())


@pytest.mark.parametrize("method", ["own", "scipy"])
def test_sum_of_sparse_matrices(
    benchmark: Any, bounded: Bounded, block: Block, features: csr_array, method: str
) -> None:
    ones = csr_array(block.labels.astype(np.float32))
    edges = np.linspace(0, features.shape[0], 9).astype(int)
    parts = [transposed_product(features[a:b], ones[a:b]) for a, b in pairwise(edges)]
    if method == "own":
        n_terms = float(sum(part.nnz for part in parts))
        bounded.run(
            benchmark, combine, parts, n_bytes=8.0 * (n_terms + combine(parts).nnz),
            changes=(n_terms, ones.shape[1], "float64"),
        )  # fmt: skip
    else:
        benchmark(lambda: sum(parts[1:], parts[0]))


def test_residuals(benchmark: Any, bounded: Bounded, block: Block, features: csr_array) -> None:
    labels, n_labels, n_negatives = block.labels, block.labels.shape[1], 5
    inverse = 1.0 / (np.bincount(features.indices, features.data**2, minlength=features.shape[1]) + 3.0)
    cross = csr_array(features.T @ labels.astype(np.float32))
    cross.data *= np.repeat(inverse.astype(np.float32), np.diff(cross.indptr))
    cross.sort_indices()
    a, y = features[:N_QUERIES], labels[:N_QUERIES]
    n_read = float(np.diff(cross.indptr)[a.indices].sum())
    bounded.run(
        benchmark, restricted_scores, a, y, cross, inverse.astype(np.float32), n_labels, n_negatives, 1.0,
        np.zeros(cross.nnz, np.float32), n_bytes=16.0 * n_read, changes=(n_read, n_labels, "float32"),
    )  # fmt: skip


def test_sparse_scores(benchmark: Any, bounded: Bounded, block: Block, features: csr_array) -> None:
    cross = csr_array(features.T @ block.labels.astype(np.float32))
    a, out = features[:N_QUERIES], np.zeros((N_QUERIES, cross.shape[1]), np.float32)
    no_dense = np.full(cross.shape[0], -1, np.int32), np.zeros((0, cross.shape[1]), np.float32)
    n_read = float(np.diff(cross.indptr)[a.indices].sum())
    bounded.run(
        benchmark, add_sparse_scores, a.indptr, a.indices, a.data, cross.indptr, cross.indices, cross.data,
        *no_dense, 1.0, out, n_bytes=16.0 * n_read, changes=(n_read, cross.shape[1], "float32"),
    )  # fmt: skip


@pytest.mark.parametrize("k", [20, 100])
def test_shares_of_topics(benchmark: Any, bounded: Bounded, block: Block, k: int) -> None:
    words, rng, n_iter = block.words[:N_LINES], np.random.default_rng(0), 10
    topics = rng.gamma(0.1, size=(words.shape[1], k)).astype(np.float32) + np.float32(1e-6)
    topics /= topics.sum(axis=0)
    unigram, counts = topics.mean(axis=1), np.ones(words.nnz, np.float32)
    shares, own = np.full((N_LINES, k), 1.0 / k), np.ones(N_LINES)
    out, totals = np.zeros((words.shape[1], k), np.float32), np.zeros(k)
    # Two products and three sums per topic and position in an iteration, with a tolerance that none reaches.
    bounded.run(
        benchmark, find_collapsed, CsrArrays(words.indptr, words.indices, counts),
        GivenTopics(topics, unigram, 0.01, np.full(k, 0.1)), Iteration(n_iter, 0.0), shares,
        Counts(own, totals, out), operations=5.0 * n_iter * k * words.nnz,
        n_bytes=12.0 * k * words.nnz,
    )  # fmt: skip


@pytest.mark.parametrize("k", [10, 50])
def test_forward(benchmark: Any, bounded: Bounded, k: int) -> None:
    rng, n = np.random.default_rng(0), 20_000
    transition, table = rng.dirichlet(np.ones(k), k), rng.random((1000, k))
    index, begins = rng.integers(0, 1000, n), np.arange(n) % 50 == 0
    start, alpha, scale = np.full(k, 1.0 / k), np.zeros((n, k)), np.zeros(n)
    # In double precision a matrix product makes half as many operations per second.
    bounded.run(
        benchmark,
        forward,
        index,
        table,
        begins,
        start,
        transition,
        np.zeros(k),
        alpha,
        scale,
        operations=4.0 * n * k * k,
    )


@pytest.mark.parametrize("values", ["counts", "weights"])
def test_scan(benchmark: Any, tmp_path: Path, values: str) -> None:
    write_xmc(tmp_path / "text", "wikilshtc", N_LINES, tfidf=values == "weights")
    header, _, lines = (tmp_path / "text").read_bytes().partition(b"\n")
    found = benchmark(scan, lines, 2, LABELLED, int(header.split()[1]))
    assert not found.lines


@pytest.mark.parametrize("k", [50, 100, 200])
def test_decomposition(benchmark: Any, k: int) -> None:
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((k, k, k)) * 1e-3
    symmetric = sum(
        noise.transpose(p) for p in ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (2, 1, 0), (1, 0, 2))
    )
    tensor = compose(rng.uniform(1.0, 3.0, k), np.linalg.qr(rng.standard_normal((k, k)))[0]) + symmetric
    benchmark(decompose, tensor, "joint", random_state=0)
