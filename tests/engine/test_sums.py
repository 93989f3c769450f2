"""Sums of passes: planned in groups and slabs, and merged in order, in memory and in files."""

import os
from pathlib import Path

import numpy as np
import pytest
from helpers import count, random_corpus

from distmom.corpus.block import csr_from_parts
from distmom.engine import (
    Engine,
    InProcess,
    PassDone,
    RunDirectory,
    Selection,
    StoredArray,
    StoredColumns,
    Sums,
    TallResult,
    merge,
    open_engine,
    plan_pass,
)
from distmom.engine.executors.executor import tree_levels
from distmom.engine.plan import LIMIT_SHARE, RESERVED_BYTES
from distmom.engine.stored.arrays import release_maps
from distmom.engine.stored.held import HELD_SUM_BYTES
from distmom.engine.sums.additive import _add_files, large_to_files
from distmom.engine.sums.algebra import combine
from distmom.errors import StoreError, UsageError
from distmom.moments.documents.words import WordSketchPass
from distmom.moments.features.residuals import ENTRY_COLUMNS, ResidualPass


def test_merge_adds_in_order_and_keeps_its_parts():
    a, b = Sums(x=np.array([1.0]), y=np.eye(2)), Sums(x=np.array([2.0]), y=np.ones((2, 2)))
    total = a + b
    assert total["x"] == [3.0]
    assert a["x"] == [1.0]
    np.testing.assert_array_equal(total["y"], [[2, 1], [1, 2]])
    with pytest.raises(ValueError, match="expected sums named"):
        merge([a, Sums(x=np.zeros(1))])
    with pytest.raises(ValueError, match="at least one part"):
        merge([])


def test_selection_splits_the_documents_once_and_for_all():
    corpus = random_corpus()
    rest, held_out = Selection(0.3, heldout=False, seed=5), Selection(0.3, heldout=True, seed=5)
    whole = held_out.mask(0, 10_000)
    assert 0.27 < whole.mean() < 0.33
    np.testing.assert_array_equal(whole, ~rest.mask(0, 10_000))
    np.testing.assert_array_equal(whole[700:900], held_out.mask(700, 200))
    with open_engine(corpus) as engine:
        parts = [engine.run(count(corpus, selection=s)).sums["words"].copy() for s in (rest, held_out, None)]
    np.testing.assert_array_equal(parts[0] + parts[1], parts[2])
    assert parts[1].sum() > 0


def test_plan_follows_corpus_and_pass_not_workers():
    corpus = random_corpus(n=2000, shard_documents=5)
    plan = plan_pass(corpus, count(corpus))
    assert [i for group in plan.groups for i in group] == list(range(400))
    assert len(plan.groups) == 128
    heavy = plan_pass(corpus, count(corpus, wide=(1 << 30) // 8))
    assert len(heavy.groups) == 12
    # Large sums are merged in files: a task holds one.
    assert heavy.task_bytes < 1.5 * (1 << 30)
    with pytest.raises(
        UsageError, match=r"pass count: a task needs \d+ MiB .* a worker of 1024 MiB can use only 717"
    ):
        plan_pass(corpus, count(corpus, wide=(1 << 30) // 8), 1 << 30)


def test_large_sums_are_merged_in_files_to_the_same_bits(tmp_path, monkeypatch):
    corpus, found, seen = random_corpus(n=600, d=500, shard_documents=10), [], []

    def counted(parts):
        seen.append(len(parts))
        return _add_files(parts)

    monkeypatch.setattr("distmom.engine.sums.additive._add_files", counted)
    monkeypatch.setattr("distmom.engine.sums.additive._CHUNK", 77)
    monkeypatch.setattr("distmom.engine.sums.additive.FILE_BYTES", 1000)
    for most in (HELD_SUM_BYTES, 0):
        monkeypatch.setattr("distmom.engine.stored.held.HELD_SUM_BYTES", most)
        engine = Engine(corpus, RunDirectory(tmp_path / str(most)))
        sums = engine.run(count(corpus, factor=0.1)).sums
        found.append({name: np.asarray(x).tobytes() for name, x in sums.items()})
        # Files that are no longer read are recycled; sums that stayed in memory have none.
        left = [place.name for place in engine.directory.path.glob("partial/*/*")]
        assert left == ([] if most else ["spare"])
    # One of the sums is large, of 60 groups: eight to a node, then the eight nodes.
    assert seen == [8] * 7 + [4, 8]
    assert found[0] == found[1]


def test_a_partial_sum_that_lost_its_end_is_an_error(tmp_path):
    sums = large_to_files({"x": np.ones(1 << 20), "n": np.ones(3)}, str(tmp_path / "pass"))
    assert isinstance(sums["n"], np.ndarray)
    file = Path(sums["x"].path)
    os.truncate(file, 100)
    with pytest.raises(StoreError, match="expected 4194304 bytes at 0, got 100"):
        merge([sums, sums])
    file.unlink()
    with pytest.raises(StoreError, match="a partial sum cannot be read"):
        merge([sums, sums])


@pytest.mark.parametrize(("n", "fan_in"), [(1, 2), (2, 2), (7, 2), (64, 8), (65, 8)])
def test_tree_adds_every_leaf_once_in_order(n, fan_in):
    order = InProcess().reduce(
        lambda i: [i],
        [(i,) for i in range(n)],
        lambda parts: [x for p in parts for x in p],
        fan_in,
        len(str(n)).__add__,
        "t",
    )
    assert order == list(range(n))
    assert tree_levels(n, fan_in)[-1] == 1


def test_subscripts_stay_narrow():
    matrix = csr_from_parts(np.ones(2), np.array([0, 3], np.int32), np.array([0, 1, 2], np.int64), (2, 4))
    assert (matrix.indices.dtype, matrix.indptr.dtype) == (np.int32, np.int32)
    assert combine([matrix, matrix]).indices.dtype == np.int32
    wide = csr_from_parts(np.ones(1), np.array([2**31 + 5]), np.array([0, 1]), (1, 2**32))
    assert wide.indices.dtype == np.int64
    assert wide.indices[0] == 2**31 + 5


def test_a_pass_with_tall_sums_is_committed_once_and_found(tmp_path, monkeypatch):
    monkeypatch.setattr("distmom.engine.stored.held.HELD_SUM_BYTES", 0)
    corpus, calls, events = random_corpus(), [], []

    def finish(tallies, *parameters):
        calls.append(1)
        state = engine.put(tallies.tall["sketch"].read_rows(slice(0, corpus.n_words)))
        return TallResult({"total": StoredColumns((state,))}, {"mass": float(tallies.sums["mass"])})

    pass_ = WordSketchPass(corpus.n_words, n_columns=4)
    found = []
    for _ in range(2):
        engine = Engine(corpus, RunDirectory(tmp_path), observer=events.append)
        result = engine.run(pass_, finish=finish)
        found.append((result.values["mass"], result.states["total"].load().parts[0].tobytes()))
        engine.directory.flush()
    assert found[0] == found[1]
    assert len(calls) == 1
    assert [e.resumed for e in events if isinstance(e, PassDone)] == [False, True]
    # Either driver recycles the files that its tasks have reported; the second had none to write.
    partials = sorted(
        path.relative_to(tmp_path / "partial").parts[1:] for path in tmp_path.glob("partial/*/*")
    )
    assert partials == [("spare",)]
    engine.run(pass_, finish=finish, parameters=("another",))
    assert len(calls) == 2
    # The state that a committed pass names is checked when it is mapped.
    release_maps()
    state = Path(result.states["total"].parts[0].path)
    state.write_bytes(state.read_bytes()[:-8])
    with pytest.raises(StoreError, match="cannot be read"):
        StoredArray(str(state), "0" * 64).load()


def test_residual_passes_have_twice_the_groups_of_a_sketch_of_as_many_rows(monkeypatch):
    monkeypatch.setattr("distmom.engine.plan.SMALL_TALL_BYTES", 0)
    corpus = random_corpus(n=3000, d=300, density=0.1, shard_documents=20)
    n_rows = sum(shard.n_entries for shard in corpus.shards) // 64
    sketch = WordSketchPass(n_rows, n_columns=7, single=True)
    residual = ResidualPass(300, n_labels=10, n_entries=ENTRY_COLUMNS * n_rows)
    assert [len(plan_pass(corpus, pass_).groups) for pass_ in (sketch, residual)] == [4, 8]


def test_tall_sums_have_few_groups_and_as_many_slabs_as_memory_asks_for():
    corpus = random_corpus(n=3000, d=30_000, density=0.004, shard_documents=20)
    pass_ = WordSketchPass(30_000, n_columns=700, single=True)
    plan = plan_pass(corpus, pass_)
    assert plan.single
    assert len(plan.groups) == 2
    assert len(plan.columns) == 1
    many = plan_pass(corpus, pass_, None, 6)
    assert many.groups == plan.groups
    assert len(many.columns) == 3
    limit = int((RESERVED_BYTES + 60e6) / LIMIT_SHARE)
    small = plan_pass(corpus, pass_, limit)
    assert small.groups == plan.groups
    assert small.task_bytes <= LIMIT_SHARE * limit
    assert len(small.columns) > 1
    with pytest.raises(UsageError, match="raise the memory limit"):
        plan_pass(corpus, pass_, RESERVED_BYTES)
