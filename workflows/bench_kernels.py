"""Timings of the kernels one by one, with pytest-benchmark.

    pip install 'distmom[bench]'
    python -m pytest workflows/bench_kernels.py

Blocks are from a planted corpus with the shape of WikiLSHTC; --benchmark-json FILE stores the results. Some
kernels are compared with a straightforward implementation.
"""

from __future__ import annotations

from argparse import Namespace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ingest_speed import write_xmc
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from distmom.corpus import Block
from distmom.corpus.readers.scan import LABELLED, scan
from distmom.engine import Csr, TallSum
from distmom.engine.csr import combine, transposed_product
from distmom.engine.tall import frequent_rows
from distmom.linalg import compose, decompose
from distmom.models.multilabel.heads import NeighborsHead, RidgeHead, rank_labels
from distmom.models.multilabel.kernels import top_by_states, top_of_products
from distmom.moments.features import inverse_document_frequency, tfidf_rows
from distmom.moments.kernels import add_third_moment, gather
from distmom.moments.labels import posteriors
from distmom.moments.residuals import add_residuals
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
def test_add_product(benchmark: Any, block: Block, basis: np.ndarray, step: str, moments: str) -> None:
    words = block.words
    frequency = np.bincount(words.indices, minlength=words.shape[1])
    total = TallSum.zero(words.shape[1], WIDTH, frequent_rows(frequency))
    matrix = basis if step == "power" else np.zeros((0, WIDTH), np.float32)
    weights, presence = np.ones(N_DOCUMENTS), np.zeros(0, np.int32)
    benchmark(
        add_product, words.indptr, words.indices, presence, weights, matrix, omega_key(0), 0,
        moments == "distinct", total.single,
    )  # fmt: skip


def test_settle(benchmark: Any, block: Block) -> None:
    frequency = np.bincount(block.words.indices, minlength=block.words.shape[1])
    benchmark(TallSum.zero(len(frequency), WIDTH, np.argsort(-frequency)[:36_000].astype(np.int64)).settle)


def test_projection(benchmark: Any, block: Block, basis: np.ndarray) -> None:
    words = block.words
    benchmark(gather, words.indptr, words.indices, np.ones(words.nnz), basis)


@pytest.mark.parametrize("method", ["blocks", "one-product"])
@pytest.mark.parametrize("width", [60, 110, 310])
def test_third_moment(benchmark: Any, width: int, method: str) -> None:
    rows = np.random.default_rng(0).standard_normal((8192, width), np.float32)
    tensor = np.zeros((width,) * 3)
    if method == "blocks":
        benchmark(add_third_moment, tensor, rows, rows, np.ones(len(rows)))
        return
    step = max(1, PAIRS // width**2)

    def add_all() -> None:
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            pairs = (part[:, :, None] * part[:, None, :]).reshape(len(part), -1)
            tensor.reshape(-1, width)[:] += pairs.T @ part

    benchmark(add_all)


def test_posteriors(benchmark: Any, block: Block, basis: np.ndarray) -> None:
    benchmark(posteriors, block, np.ascontiguousarray(basis[:, :N_STATES]), np.zeros(N_STATES))


def test_scatter_labels(benchmark: Any, block: Block) -> None:
    labels = block.labels
    total = TallSum.zero(labels.shape[1], N_STATES, np.zeros(0, np.int64))
    rows = np.random.default_rng(0).dirichlet(np.ones(N_STATES), N_DOCUMENTS)
    benchmark(scatter_rows, labels.indptr, labels.indices, rows, total.single)


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
def test_top_labels_of_ridge(benchmark: Any, rank: int, method: str) -> None:
    rng = np.random.default_rng(0)
    coefficients = rng.standard_normal((rank, 325_056), np.float32)
    rows = rng.standard_normal((N_QUERIES, rank), np.float32)
    head = RidgeHead(coefficients, np.zeros(coefficients.shape[1], np.float32))
    with threadpool_limits(limits=1):
        if method == "running-top":
            benchmark(head.top, Namespace(sketch=rows), 1.0, 5)
        else:
            benchmark(
                np.matmul, rows, coefficients, out=np.empty((N_QUERIES, coefficients.shape[1]), np.float32)
            )


@pytest.mark.parametrize("method", ["index", "all-rows"])
def test_nearest_rows(benchmark: Any, block: Block, features: csr_array, method: str) -> None:
    queries = features[:N_QUERIES]
    if method == "index":
        alive = np.ones(features.shape[0], np.uint8)
        head = NeighborsHead(Csr.of(csr_array(features.T)), Csr.of(block.labels, np.uint8), alive)
        benchmark(head.search, queries, 75)
    else:
        benchmark(lambda: np.argpartition(-(queries @ features.T).toarray(), 75, axis=1)[:, :75])


@pytest.mark.parametrize("method", ["own", "scipy"])
def test_transposed_product(benchmark: Any, block: Block, features: csr_array, method: str) -> None:
    ones = csr_array(block.labels.astype(np.float32))
    if method == "own":
        benchmark(transposed_product, features, ones)
    else:
        benchmark(lambda: csr_array(features.T @ ones).sort_indices())


@pytest.mark.parametrize("method", ["own", "scipy"])
def test_sum_of_sparse_matrices(benchmark: Any, block: Block, features: csr_array, method: str) -> None:
    ones = csr_array(block.labels.astype(np.float32))
    edges = np.linspace(0, features.shape[0], 9).astype(int)
    parts = [transposed_product(features[a:b], ones[a:b]) for a, b in pairwise(edges)]
    if method == "own":
        benchmark(combine, parts)
    else:
        benchmark(lambda: sum(parts[1:], parts[0]))


def test_residuals(benchmark: Any, block: Block, features: csr_array) -> None:
    labels, n_labels, n_negatives = block.labels, block.labels.shape[1], 5
    inverse = 1.0 / (np.bincount(features.indices, features.data**2, minlength=features.shape[1]) + 3.0)
    cross = csr_array(features.T @ labels.astype(np.float32))
    cross.data *= np.repeat(inverse.astype(np.float32), np.diff(cross.indptr))
    cross.sort_indices()
    a, y = features[:N_QUERIES], labels[:N_QUERIES]
    indptr = np.concatenate([[0], np.cumsum(np.diff(y.indptr) + n_negatives)]).astype(np.int64)
    indices, data = np.zeros(indptr[-1], np.int32), np.zeros(indptr[-1], np.float32)
    benchmark(
        add_residuals, a.indptr, a.indices, a.data, y.indptr, y.indices, cross.indptr, cross.indices, cross.data,
        inverse.astype(np.float32), n_labels, n_negatives, 1.0, indptr, indices, data,
        np.zeros(cross.nnz, np.float32),
    )  # fmt: skip


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
