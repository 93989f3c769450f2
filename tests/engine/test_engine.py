import errno
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from helpers import random_corpus

from distmom.corpus.block import csr_from_parts
from distmom.corpus.commit import put_if_absent
from distmom.engine import (
    Engine,
    GroupDone,
    InProcess,
    Pass,
    PassDone,
    RunDirectory,
    Selection,
    StoredArray,
    StoredColumns,
    Sums,
    SumSpec,
    TallResult,
    fingerprint,
    merge,
    open_engine,
    plan_pass,
)
from distmom.engine.csr import combine
from distmom.engine.directory import load_sums
from distmom.engine.environment import environment
from distmom.engine.executors import tree_levels
from distmom.engine.held import HELD_SUM_BYTES
from distmom.engine.plan import LIMIT_SHARE, RESERVED_BYTES
from distmom.engine.state import _maps, release_maps
from distmom.engine.sums import _add_files, large_to_files
from distmom.errors import StoreError, UsageError
from distmom.moments.words import WordSketchPass


@dataclass(frozen=True)
class CountPass(Pass):
    """Counts words; sums of irrational multiples show the order of additions."""

    factor: float = 1.0
    wide: int = 0

    def specs(self):
        return {
            "words": SumSpec((self.n_features,), by_feature=True),
            "total": SumSpec(()),
            "wide": SumSpec((self.wide,)),
        }

    def add(self, sums, block, rows):
        lo, hi = self.slab.start, self.slab.stop
        sums["words"] += np.asarray(block.words[:, lo:hi].sum(axis=0)).ravel() * self.factor
        sums["total"] += np.sqrt(block.words.sum() + 0.1) * self.factor
        stored = {"length": np.asarray(block.words.sum(axis=1)).ravel().astype(float)}
        if "length" in rows:
            stored["twice"] = rows["length"] * 2
        return stored


def count(corpus, **options):
    return CountPass(corpus.n_words, **options)


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


def test_totals_rows_and_events():
    corpus, events = random_corpus(), []
    with open_engine(corpus, observer=events.append) as engine:
        result = engine.run(count(corpus))
        again = engine.run(count(corpus, factor=2.0), rows=result.rows)
        lengths = np.concatenate([result.rows["length"].read(i) for i in range(len(corpus.shards))])
        twice = np.concatenate([again.rows["twice"].read(i) for i in range(len(corpus.shards))])
    X = np.vstack([corpus.read_shard(i).words.toarray() for i in range(len(corpus.shards))])
    np.testing.assert_array_equal(result.sums["words"], X.sum(axis=0))
    np.testing.assert_array_equal(lengths, X.sum(axis=1))
    np.testing.assert_array_equal(twice, 2 * lengths)
    assert sum(e.n_documents for e in events if isinstance(e, GroupDone)) == 2 * corpus.n_documents
    assert [e.resumed for e in events if isinstance(e, PassDone)] == [False, False]


def test_a_committed_pass_is_found_and_another_is_not(tmp_path):
    corpus = random_corpus()
    events = []

    def engine():
        return Engine(corpus, RunDirectory(tmp_path), observer=events.append)

    first = engine().run(count(corpus))
    second = engine().run(count(corpus))
    engine().run(count(corpus, factor=3.0))
    engine_on_other = Engine(random_corpus(seed=1), RunDirectory(tmp_path), observer=events.append)
    engine_on_other.run(count(corpus))
    assert [e.resumed for e in events if isinstance(e, PassDone)] == [False, True, False, False]
    for name in ("words", "total"):
        assert first.sums[name].tobytes() == second.sums[name].tobytes()


def forget_maps():
    _maps.clear()


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("what", ["passes/*/words.npy", "passes/*/DONE.json", "rows/*/length/s00003-*/c/0"])
def test_a_damaged_pass_is_run_again(tmp_path, caplog, what):
    corpus, events = random_corpus(), []
    engine = Engine(corpus, RunDirectory(tmp_path), observer=events.append)
    first = engine.run(count(corpus))
    expected = {name: np.array(value) for name, value in first.sums.items()}
    [file] = tmp_path.glob(what)
    for damage in (flip, Path.unlink):
        damage(file)
        assert engine.directory.verify()
        with caplog.at_level("WARNING", "distmom"):
            result = engine.run(count(corpus))
        assert engine.directory.verify() == []
        assert {name: value.tobytes() for name, value in result.sums.items()} == {
            name: value.tobytes() for name, value in expected.items()
        }
        assert result.rows == first.rows
    assert [event.resumed for event in events if isinstance(event, PassDone)] == [False] * 3
    if "DONE" not in what:
        assert "is run again, as its committed result is damaged" in caplog.text
    assert engine.run(count(corpus)).rows == first.rows
    assert events[-1].resumed
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_damaged_pass_is_run_again_where_its_bits_are_others(tmp_path, monkeypatch):
    """The first total was made on another kind of processor: it belongs to the rows committed with it."""
    corpus = random_corpus()
    Engine(corpus, RunDirectory(tmp_path)).run(count(corpus))
    [file] = tmp_path.glob("rows/*/length/s00003-*/c/0")
    flip(file)
    add = CountPass.add

    def rounded(self, sums, block, rows):
        stored = add(self, sums, block, rows)
        return {name: np.nextafter(value, np.inf) for name, value in stored.items()}

    monkeypatch.setattr(CountPass, "add", rounded)
    for resumed in (False, True):
        engine = Engine(corpus, RunDirectory(tmp_path))
        result = engine.run(count(corpus))
        assert engine.timings[-1].resumed is resumed
        length = np.concatenate([result.rows["length"].read(i) for i in range(len(corpus.shards))])
        assert not np.array_equal(length, np.rint(length))
    assert engine.directory.verify() == []


def test_a_damaged_state_of_a_committed_pass_is_made_again(tmp_path):
    corpus, pass_ = random_corpus(), WordSketchPass(40, n_columns=4)

    def finish(tallies):
        state = engine.put(tallies.tall["sketch"].read_rows(slice(0, corpus.n_words)))
        return TallResult({"total": StoredColumns((state,))}, {})

    engine = Engine(corpus, RunDirectory(tmp_path))
    [state] = engine.run(pass_, finish=finish).stored_arrays()
    engine.directory.flush()
    expected = Path(state.path).read_bytes()
    for damage in (flip, Path.unlink):
        damage(Path(state.path))
        # What this process has checked it trusts; a driver that resumes is another one.
        forget_maps()
        assert engine.run(pass_, finish=finish).stored_arrays() == [state]
        engine.directory.flush()
        assert Path(state.path).read_bytes() == expected
        assert not engine.timings[-1].resumed


def test_rows_that_are_missing_are_an_error(tmp_path):
    corpus = random_corpus()
    result = Engine(corpus, RunDirectory(tmp_path)).run(count(corpus))
    [rows] = tmp_path.glob("rows/*/length/s00003-*/c")
    for chunk in rows.iterdir():
        chunk.unlink()
    with pytest.raises(StoreError, match=r"s00003-\w+/c/0: expected a chunk, got no such file"):
        result.rows["length"].read(3)
    with pytest.raises(StoreError, match="no rows are stored for shard 99"):
        result.rows["length"].read(99)


def test_a_late_commit_removes_nothing(tmp_path):
    """Two drivers commit the same pass: the second finds an intact commit and keeps it."""
    corpus = random_corpus()
    Engine(corpus, RunDirectory(tmp_path)).run(count(corpus))
    [place] = tmp_path.glob("passes/*")
    inodes = {path: path.stat().st_ino for path in sorted(tmp_path.rglob("*")) if "partial" not in path.parts}
    late = Engine(corpus, RunDirectory(tmp_path))
    sums, folded = late._scans.add_up(count(corpus), {}, fingerprint((*late._origin, count(corpus), {})))
    record = load_sums(str(place))[1]
    assert folded.row_digests == record["rows"]
    key = fingerprint((*late._origin, count(corpus), {}))
    late.directory.commit_pass("count", key, sums, {"rows": folded.row_digests})
    now = {path: path.stat().st_ino for path in sorted(tmp_path.rglob("*")) if "partial" not in path.parts}
    assert now == inodes


def test_rows_are_on_the_disk_before_their_pass_is_committed(tmp_path, monkeypatch):
    synced, committed = set(), []

    def sync(path):
        synced.add(Path(path))

    def put(temporary, final, is_whole):
        committed.append(set(synced))
        put_if_absent(temporary, final, is_whole)

    monkeypatch.setattr("distmom.corpus.commit.sync_path", sync)
    monkeypatch.setattr("distmom.engine.directory.sync_path", sync)
    monkeypatch.setattr("distmom.engine.directory.put_if_absent", put)
    corpus = random_corpus()
    Engine(corpus, RunDirectory(tmp_path)).run(count(corpus))
    rows = {path for path in (tmp_path / "rows").rglob("*") if ".tmp-" not in str(path)}
    assert len(rows) > 3 * len(corpus.shards)
    [before] = committed
    assert rows | {tmp_path / "rows"} <= before
    # The entry of the pass itself comes last.
    assert tmp_path / "passes" not in before
    assert tmp_path / "passes" in synced
    # Nothing waits for the disk where the directory goes away with the process.
    synced.clear()
    Engine(corpus, RunDirectory(tmp_path / "other", durable=False)).run(count(corpus))
    assert not synced


def test_a_run_is_held_by_one_process(tmp_path):
    """The lease of `fit_corpus` keeps other processes out, and files of an earlier driver are removed."""
    corpus = random_corpus()
    with open_engine(corpus, tmp_path) as engine:
        engine.run(count(corpus))
        script = "import sys; from distmom.engine import RunDirectory as R; R(sys.argv[1]).held().__enter__()"
        command = [sys.executable, "-c", script, str(tmp_path)]
        other = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert f"is held by process {os.getpid()}" in other.stderr
        (state := engine.directory.new_state()).touch()
        assert engine.directory.verify() == []
        (stray := engine.directory.path / "partial" / "other" / "pass").mkdir(parents=True)
    with open_engine(corpus, tmp_path):
        assert not state.exists()
        assert not stray.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "environment.json",
        "epochs",
        "lease.json",
        "log.jsonl",
        "passes",
        "rows",
        "states",
    ]


def test_an_engine_whose_corpus_is_replaced_reads_the_new_one():
    corpus, other = random_corpus(40, 5, seed=0), random_corpus(40, 5, seed=1)
    with open_engine(corpus) as engine:
        engine.corpus = other
        found = engine.run(CountPass(5)).sums["words"]
    with open_engine(other) as engine:
        np.testing.assert_array_equal(found, engine.run(CountPass(5)).sums["words"])


def test_a_temporary_directory_that_cannot_be_removed_is_reported(tmp_path, monkeypatch, caplog):
    def fails(path, **options):
        raise OSError(errno.EIO, "the disk fails", path)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as change, open_engine(random_corpus(20, 5)) as engine:
        engine.put(np.ones(3))
        change.setattr(os, "unlink", fails)
    [message] = caplog.messages
    assert message == (
        f"{engine.directory.path}: the temporary directory could not be removed: [Errno 5] the disk fails: "
        f"'{os.listdir(engine.directory.states)[0]}'; remove it"
    )


def test_a_run_records_the_processors_that_have_worked_for_it(tmp_path, caplog):
    corpus, own = random_corpus(), environment()
    with open_engine(corpus, tmp_path) as engine:
        assert engine.directory.environments() == [asdict(own)]
    with open_engine(corpus, tmp_path):
        pass
    assert not caplog.text
    other = replace(own, processor="another")
    engine.directory.record_environments([own, other])
    assert engine.directory.environments() == [asdict(own), asdict(other)]
    assert f"processors differ: another ({own.blas}); {own.processor} ({own.blas})" in caplog.text
    assert engine.directory.verify() == []
    flip(tmp_path / "environment.json")
    [problem] = engine.directory.verify()
    assert problem.startswith(f"{tmp_path / 'environment.json'}: ")


def test_verify_tells_every_damage_of_a_run(tmp_path):
    corpus, directory = random_corpus(), RunDirectory(tmp_path)
    directory.put(np.arange(5.0))
    Engine(corpus, directory).run(count(corpus))
    assert directory.verify() == []
    [state] = tmp_path.glob("states/*.npy")
    [total] = tmp_path.glob("passes/*/words.npy")
    for file in (state, total):
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        [problem] = directory.verify()
        assert problem.startswith(f"{file}: ")
        file.write_bytes(content)
    [rows] = tmp_path.glob("rows/*/length/s00003-*/c")
    for chunk in rows.iterdir():
        chunk.unlink()
    state.unlink()
    [problem] = directory.verify()
    assert "/length/s00003-" in problem
    assert "expected a chunk, got no such file" in problem


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

    monkeypatch.setattr("distmom.engine.sums._add_files", counted)
    monkeypatch.setattr("distmom.engine.sums._CHUNK", 77)
    monkeypatch.setattr("distmom.engine.sums.FILE_BYTES", 1000)
    for most in (HELD_SUM_BYTES, 0):
        monkeypatch.setattr("distmom.engine.held.HELD_SUM_BYTES", most)
        engine = Engine(corpus, RunDirectory(tmp_path / str(most)))
        sums = engine.run(count(corpus, factor=0.1)).sums
        found.append({name: np.asarray(x).tobytes() for name, x in sums.items()})
        assert [place.name for place in engine.directory.partials.spare.parent.iterdir()] == ["spare"]
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


def test_fingerprints_tell_values_apart():
    a = CountPass(5, factor=1.0)
    assert fingerprint(a) == fingerprint(CountPass(5, factor=1.0))
    others = [CountPass(5, factor=2.0), CountPass(6), (a,), Selection(0.5, True)]
    assert len({fingerprint(x) for x in [a, *others]}) == 5
    assert fingerprint(np.zeros(3)) != fingerprint(np.zeros(3, np.float32))
    assert fingerprint({"a": 1}) != fingerprint({"a": "1"})


def test_states_are_stored_once_by_digest(tmp_path):
    directory = RunDirectory(tmp_path)
    array = np.random.default_rng(0).standard_normal((5, 3))
    one, two = directory.put(array), directory.put(array.copy())
    assert one == two
    assert len(list((tmp_path / "states").iterdir())) == 1
    loaded = one.load()
    assert isinstance(loaded, np.memmap)
    np.testing.assert_array_equal(loaded, array)
    json.dumps(one.digest)


def test_subscripts_stay_narrow():
    matrix = csr_from_parts(np.ones(2), np.array([0, 3], np.int32), np.array([0, 1, 2], np.int64), (2, 4))
    assert (matrix.indices.dtype, matrix.indptr.dtype) == (np.int32, np.int32)
    assert combine([matrix, matrix]).indices.dtype == np.int32
    wide = csr_from_parts(np.ones(1), np.array([2**31 + 5]), np.array([0, 1]), (1, 2**32))
    assert wide.indices.dtype == np.int64
    assert wide.indices[0] == 2**31 + 5


def broken(rows, matrix):
    raise ValueError("no")


@pytest.mark.parametrize("maps_per_thread", [1, 3, 8])
def test_rows_are_mapped_in_slabs_and_a_failure_leaves_nothing(tmp_path, monkeypatch, maps_per_thread):
    monkeypatch.setattr("distmom.engine.maps.MAPS_PER_THREAD", maps_per_thread)
    for module in ("state", "tall", "maps"):
        monkeypatch.setattr(f"distmom.engine.{module}.SLAB_ROWS", 7)
    engine = Engine(random_corpus(), RunDirectory(tmp_path))
    matrix = np.random.default_rng(0).standard_normal((40, 3))
    stored, sums = engine.map_rows(
        doubled, [engine.put(matrix), matrix], 40, {"twice": (3, "float32"), "row": (1, "int64")}, 2.0
    )
    np.testing.assert_array_equal(stored["twice"].load(), (3.0 * matrix).astype(np.float32))
    np.testing.assert_array_equal(stored["row"].load().ravel(), np.arange(40))
    np.testing.assert_allclose(sums["total"], matrix.sum(axis=0))
    assert engine.directory.verify() == []
    before = sorted(tmp_path.glob("states/*"))
    with pytest.raises(ValueError, match="no"):
        engine.map_rows(broken, [matrix], 40, {"x": (3, "float64")})
    assert sorted(tmp_path.glob("states/*")) == before
    content = bytearray((path := Path(stored["twice"].path)).read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    [problem] = engine.directory.verify()
    assert "stored array has changed" in problem


def doubled(rows, left, right, factor):
    return {"twice": left + factor * right, "row": np.arange(rows.start, rows.stop)[:, None]}, {
        "total": left.sum(axis=0)
    }


def test_a_pass_with_tall_sums_is_committed_once_and_found(tmp_path):
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


def test_a_failing_background_commit_is_raised_by_flush(tmp_path):
    directory = RunDirectory(tmp_path)
    state = directory.put(np.arange(4.0))
    Path(state.path).unlink()
    directory.commit_pass("p", "0" * 32, {}, {"rows": {}}, [state])
    with pytest.raises(FileNotFoundError):
        directory.flush()
    assert directory.load_pass("p", "0" * 32) is None
    directory.flush()


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
