import os
from dataclasses import dataclass

import numpy as np
import pytest
from helpers import peak_bytes, random_corpus
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from distmom.engine import (
    Csr,
    InProcess,
    OnCluster,
    Pass,
    Pruning,
    Selection,
    SumSpec,
    TallResult,
    Term,
    open_engine,
)
from distmom.engine.stored.held import HELD_SUM_BYTES
from distmom.engine.sums.algebra import SHORT_ROW, combine, transposed_product
from distmom.engine.sums.csr import drop_small, largest_of_rows
from distmom.errors import StoreError
from distmom.moments.features.regression import CrossMomentPass


def random_matrix(seed, shape, density):
    rng = np.random.default_rng(seed)
    return csr_array(np.where(rng.random(shape) < density, rng.integers(-2, 3, shape), 0).astype(float))


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (40, 5000)])
@pytest.mark.parametrize("density", [0.0, 0.1, 0.7])
def test_matrices_add_like_dense_ones(shape, density):
    a, b = random_matrix(1, shape, density), random_matrix(2, shape, density)
    rows = np.random.default_rng(3).random(shape[0])
    found = combine([a, b.astype(np.float32), a], [0.5, -3.0, rows], np.float64)
    expected = 0.5 * a.toarray() - 3.0 * b.toarray() + rows[:, None] * a.toarray()
    assert_allclose(found.toarray(), expected, atol=1e-14)
    assert found.has_sorted_indices
    assert (found.data.dtype, found.indices.dtype) == (np.float64, np.int32)
    # Entries that cancel stay, as zeros.
    assert combine([a, a], [1.0, -1.0]).nnz == a.nnz


def added_one_by_one(terms, shape):
    """Add terms (row, column, value) in their order, in double precision."""
    total = np.zeros(shape)
    for row, column, value in terms:
        total[row, column] += value
    return total


@pytest.mark.parametrize("n_parts", [2, 70])
def test_short_and_long_rows_in_several_chunks_have_the_bits_of_terms_added_in_order(n_parts, monkeypatch):
    monkeypatch.setattr("distmom.engine.sums.algebra.CHUNK_ROWS", 16)
    shape, rng = (100, 300), np.random.default_rng(0)
    shares = np.linspace(0, 40 / n_parts / 150, 100)[:, None]
    parts = [csr_array(rng.standard_normal(shape) * (rng.random(shape) < shares)) for _ in range(n_parts)]
    lengths = sum(np.diff(part.indptr) for part in parts)
    assert 0 < np.mean(lengths > SHORT_ROW) < 1
    factors = [0.1 if i % 2 else rng.random(100) for i in range(n_parts)]
    terms = [
        (row, column, np.broadcast_to(factor, 100)[row] * value)
        for part, factor in zip(parts, factors, strict=True)
        for row, column, value in zip(*part.tocoo().coords, part.data, strict=True)
    ]
    assert_array_equal(combine(parts, factors, np.float64).toarray(), added_one_by_one(terms, shape))


def test_short_and_long_rows_of_a_product_have_the_bits_of_terms_added_in_order():
    rng = np.random.default_rng(0)
    a = csr_array(rng.standard_normal((60, 50)) * (rng.random((60, 50)) < np.linspace(0, 0.5, 50)))
    b = csr_array(rng.standard_normal((60, 200)) * (rng.random((60, 200)) < 0.02))
    n_terms = (abs(a).sign().T @ np.diff(b.indptr)).astype(int)
    assert 0 < np.mean(n_terms > SHORT_ROW) < 1
    terms = [
        (a.indices[p], b.indices[q], a.data[p] * b.data[q])
        for row in range(60)
        for p in range(a.indptr[row], a.indptr[row + 1])
        for q in range(b.indptr[row], b.indptr[row + 1])
    ]
    assert_array_equal(transposed_product(a, b, np.float64).toarray(), added_one_by_one(terms, (50, 200)))


def test_a_sum_needs_room_for_its_parts_and_the_result_only(monkeypatch):
    monkeypatch.setattr("distmom.engine.sums.algebra.CHUNK_ROWS", 1 << 10)
    parts = [random_matrix(seed, (20_000, 50), 0.2).astype(np.float32) for seed in range(4)]
    enough = 1.5 * 8 * sum(part.nnz for part in parts)
    assert peak_bytes(lambda: combine(parts), enough) < enough


def test_rows_that_are_not_in_order_and_matrices_that_do_not_fit():
    unsorted = csr_array((np.ones(3), [2, 0, 2], [0, 3]), shape=(1, 3))
    assert_array_equal(combine([unsorted, unsorted]).toarray(), [[2, 0, 4]])
    with pytest.raises(ValueError, match="expected equal shapes"):
        combine([csr_array((1, 2)), csr_array((2, 1))])


@pytest.mark.parametrize("n_columns", [3, 64, 9000])
def test_transposed_products_are_dense_ones(n_columns):
    a, b = random_matrix(1, (50, 30), 0.2), random_matrix(2, (50, n_columns), 0.1)
    found = transposed_product(a, b, np.float64)
    assert_allclose(found.toarray(), a.toarray().T @ b.toarray(), atol=1e-13)
    assert found.has_canonical_format
    assert_array_equal(found.indices, (abs(a).T @ abs(b)).tocsr().sorted_indices().indices)


def test_small_entries_and_all_but_the_largest_are_dropped():
    a = csr_array(np.random.default_rng(0).standard_normal((9, 40)))
    levels, dense = np.linspace(0, 2, 9), a.toarray()
    assert_array_equal(drop_small(a, levels).toarray(), np.where(np.abs(dense) >= levels[:, None], dense, 0))
    cut = largest_of_rows(a, 7).toarray()
    assert_array_equal((cut != 0).sum(axis=1), np.full(9, 7))
    smallest_kept = np.where(cut != 0, np.abs(cut), np.inf).min(axis=1)
    assert (smallest_kept >= np.sort(np.abs(dense), axis=1)[:, -7]).all()


@dataclass(frozen=True)
class CrossPass(Pass):
    """Adds up words times labels."""

    block_rows = 16

    def specs(self):
        spec = SumSpec((self.n_features, 12), "float32", tall="features", sparse=True, n_bytes=1000)
        return {"cross": spec, "total": SumSpec(())}

    def add(self, sums, block, rows):
        ones = csr_array(block.labels.astype(np.float32))
        sums["cross"].add(transposed_product(block.words.astype(np.float32), ones))
        sums["total"] += block.words.sum()


def cross(engine, terms=None, pruning=None):
    """Run the pass and return the matrix that `Engine.combine` makes of its runs."""
    found = {}

    def finish(tallies):
        found["runs"] = tallies.runs["cross"]
        stored = engine.maps.combine([Term(tallies.runs["cross"]), *(terms or ())], pruning)
        found["matrix"] = stored.to_scipy().copy()
        found["total"] = float(tallies.sums["total"])
        return TallResult({}, {})

    engine.run(CrossPass(engine.corpus.n_words), finish=finish)
    return found


def expected_cross(corpus):
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    return sum(b.words.toarray().T @ b.labels.toarray().astype(float) for b in blocks)


@pytest.mark.parametrize("slab_entries", [1 << 22, 50])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("n_unlimited", [0, 2])
def test_limits_keep_the_largest_of_rows_and_columns(slab_entries, mixed, n_unlimited, monkeypatch):
    monkeypatch.setattr("distmom.engine.terms.SLAB_ENTRIES", slab_entries)
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((60, 9)) * (rng.random((60, 9)) < np.linspace(0, 1, 9))
    dense[17:21] = 0.0
    kept = np.abs(dense)
    end = 60 - n_unlimited
    order = np.sort(kept[:end], axis=1)[:, [-4]]
    kept[:end] = np.where(kept[:end] >= order, kept[:end], 0.0)
    least = np.sort(kept[:end], axis=0)[-20]
    kept[:end] = np.where(kept[:end] >= least, kept[:end], 0.0)
    expected = np.where(kept > 0, dense, 0.0)
    limits = Pruning(0.0, row_entries=4, column_entries=20, n_unlimited_rows=n_unlimited)
    with open_engine(random_corpus()) as engine:
        term = Term(Csr.of(csr_array(dense)))
        if mixed:
            stored = engine.maps.combine_mixed([term], limits)
            found, rows = stored.sparse.to_scipy().toarray(), np.asarray(stored.dense_row.load())
            assert (rows >= 0).any()
            found[rows >= 0] = stored.dense.load()[rows[rows >= 0]]
        else:
            found = engine.maps.combine([term], limits).to_scipy().toarray()
    assert_allclose(found, expected, rtol=1e-6)
    assert ((found[:end] != 0).sum(axis=0) <= 20).all()
    assert ((found[:end] != 0).sum(axis=0) == 20).any()


def test_a_limit_in_all_leaves_out_the_smallest_of_the_longest_rows():
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((30, 40)) * (rng.random((30, 40)) < np.linspace(0, 1, 30)[:, None])
    lengths = (dense != 0).sum(axis=1)
    with open_engine(random_corpus()) as engine:
        term = Term(Csr.of(csr_array(dense)))

        def found(total):
            limits = Pruning(0.0, n_unlimited_rows=1, total_entries=total)
            return engine.maps.combine([term], limits).to_scipy().toarray()

        whole, some = found(int(lengths.sum())), found(300)
    assert_allclose(whole, dense, rtol=1e-6)
    kept = (some != 0).sum(axis=1)
    level = kept[:-1].max()
    assert_array_equal(kept[:-1], np.minimum(lengths[:-1], level))
    assert kept[-1] == lengths[-1] > level
    assert np.minimum(lengths, level).sum() <= 300 < np.minimum(lengths, level + 1).sum()
    assert np.abs(dense[20][some[20] == 0]).max() < np.abs(some[20][some[20] != 0]).min()


@pytest.mark.parametrize("slab_entries", [1 << 22, 50])
def test_squares_of_columns_are_those_of_the_whole_sum(slab_entries, monkeypatch):
    monkeypatch.setattr("distmom.engine.terms.SLAB_ENTRIES", slab_entries)
    a, b = random_matrix(1, (60, 9), 0.3), random_matrix(2, (60, 9), 0.3)
    rows, columns = np.linspace(0.0, 2.0, 60), np.linspace(1.0, 3.0, 9)
    whole = rows[:, None] * a.toarray() * columns - 2.0 * b.toarray()
    with open_engine(random_corpus()) as engine:
        terms = [Term(Csr.of(csr_array(a)), rows=rows, columns=columns), Term(Csr.of(csr_array(b)), -2.0)]
        assert_allclose(engine.maps.column_squares(terms), (whole**2).sum(axis=0), rtol=1e-6)


@pytest.mark.parametrize(("run_entries", "slab_entries"), [(1 << 24, 1 << 22), (200, 150)])
def test_runs_and_slabs_of_any_size_add_up_to_the_product(run_entries, slab_entries, monkeypatch):
    corpus = random_corpus(n=400, d=90, density=0.1, shard_documents=50)
    monkeypatch.setattr("distmom.engine.sums.sparse.RUN_ENTRIES", run_entries)
    monkeypatch.setattr("distmom.engine.terms.SLAB_ENTRIES", slab_entries)
    with open_engine(corpus) as engine:
        found = cross(engine)
        assert [place.name for place in engine.directory.partials.spare.parent.iterdir()] == ["spare"]
    assert_array_equal(found["matrix"].toarray(), expected_cross(corpus))
    assert len(found["runs"].parts) == 8 if run_entries > 1000 else len(found["runs"].parts) > 8


def test_a_sum_of_scaled_matrices_without_its_small_entries(monkeypatch):
    corpus = random_corpus(n=400, d=90, density=0.1, shard_documents=50)
    monkeypatch.setattr("distmom.engine.terms.SLAB_ENTRIES", 150)
    rng = np.random.default_rng(0)
    own = csr_array(np.where(rng.random((90, 12)) < 0.5, rng.standard_normal((90, 12)), 0))
    rows, columns = rng.random(90), rng.random(12)
    pruning = Pruning(row_entries=6, share=0.8, quantile=0.9)
    results = []
    for rule in (None, pruning):
        with open_engine(corpus) as engine:
            results.append(cross(engine, [Term(Csr.of(own), 3.0, rows, columns)], rule)["matrix"].toarray())
    whole, found = results
    expected = expected_cross(corpus) + 3.0 * rows[:, None] * own.toarray() * columns
    assert_allclose(whole, expected, rtol=1e-5, atol=1e-6)
    order = np.sort(np.abs(whole), axis=1)[:, ::-1]
    kept = np.where(np.abs(whole) >= order[:, 5:6], whole, 0)
    level = 0.8 * np.quantile(np.abs(kept[kept != 0]), 0.9)
    assert_allclose(found, np.where(np.abs(kept) >= level, kept, 0), rtol=1e-6)
    assert (found != 0).sum() < (kept != 0).sum()


@pytest.mark.parametrize("slab_entries", [100, 1 << 22])
def test_nearly_full_rows_of_a_sum_are_dense(slab_entries, monkeypatch):
    monkeypatch.setattr("distmom.engine.terms.SLAB_ENTRIES", slab_entries)
    a = random_matrix(1, (40, 30), 0.1) + random_matrix(2, (40, 30), 0.3).multiply(
        np.arange(40)[:, None] % 3 == 0
    )
    with open_engine(random_corpus()) as engine:
        terms = [Term(Csr.of(csr_array(a))), Term(Csr.of(csr_array(a)), 0.5)]
        whole, mixed = engine.maps.combine(terms).to_scipy(), engine.maps.combine_mixed(terms)
        assert_array_equal(engine.put(np.array(mixed.dense.load())).digest, mixed.dense.digest)
        dense, dense_row = np.array(mixed.dense.load()), mixed.dense_row.load()
        rest = mixed.sparse.to_scipy().toarray()
    full = dense_row >= 0
    assert 5 < full.sum() < 35
    assert_array_equal(full, np.diff(whole.indptr) > 0.25 * 30)
    assert_array_equal(rest[full], 0)
    rest[full] = dense[dense_row[full]]
    assert_array_equal(rest, whole.toarray())


def test_a_sum_over_no_document_is_empty():
    corpus = random_corpus(n=40, d=30, density=0.2, shard_documents=20)
    none = Selection(0.0, heldout=True)
    with open_engine(corpus) as engine:
        found = {}

        def finish(tallies):
            found["matrix"] = engine.maps.combine(
                [Term(tallies.runs["cross"])], Pruning(0.1, row_entries=5)
            ).to_scipy()
            return TallResult({}, {})

        engine.run(CrossMomentPass(30, none, n_labels=12, idf=np.ones(30)), finish=finish)
    assert found["matrix"].shape == (31, 12)
    assert found["matrix"].nnz == 0


def test_runs_in_memory_give_the_bits_of_those_in_files(monkeypatch):
    corpus, found = random_corpus(n=100, d=30, density=0.2, shard_documents=50), []
    monkeypatch.setattr("distmom.engine.sums.sparse.RUN_ENTRIES", 40)
    for most in (HELD_SUM_BYTES, 0):
        monkeypatch.setattr("distmom.engine.stored.held.HELD_SUM_BYTES", most)
        with open_engine(corpus) as engine:
            matrix = cross(engine)["matrix"]
        found.append([getattr(matrix, name).tobytes() for name in ("indptr", "indices", "data")])
    assert found[0] == found[1]


def test_a_run_that_is_cut_short_is_an_error(monkeypatch):
    monkeypatch.setattr("distmom.engine.stored.held.HELD_SUM_BYTES", 0)
    corpus = random_corpus(n=100, d=30, density=0.2, shard_documents=50)
    with open_engine(corpus) as engine:

        def finish(tallies):
            os.truncate(tallies.runs["cross"].parts[0].data.path, 8)
            engine.maps.combine([Term(tallies.runs["cross"])])

        with pytest.raises(StoreError, match=r"expected \d+ bytes at \d+, got"):
            engine.run(CrossPass(corpus.n_words), finish=finish)


@pytest.mark.cluster
def test_workers_change_no_bit(cluster):
    corpus = random_corpus(n=400, d=90, density=0.1, shard_documents=50)
    found = []
    for executor in (InProcess(), OnCluster(cluster)):
        with open_engine(corpus, None, executor) as engine:
            found.append(cross(engine, pruning=Pruning(0.3, row_entries=5)))
    assert found[0]["total"] == found[1]["total"]
    for name in ("data", "indices", "indptr"):
        assert getattr(found[0]["matrix"], name).tobytes() == getattr(found[1]["matrix"], name).tobytes()
