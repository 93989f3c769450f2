"""Runs of passes over a corpus: committed once, found again, and whole after damage and interruptions."""

import errno
import json
import mmap
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from helpers import CountPass, count, random_corpus

from distmom.corpus.files.commit import put_if_absent
from distmom.engine import (
    Engine,
    GroupDone,
    InProcess,
    PassDone,
    RunDirectory,
    StoredArray,
    StoredColumns,
    TallResult,
    fingerprint,
    open_engine,
)
from distmom.engine.directory.run_directory import load_sums
from distmom.engine.environment import environment
from distmom.engine.maps import Maps
from distmom.engine.stored.arrays import _maps
from distmom.engine.stored.held import Holding
from distmom.errors import StoreError
from distmom.moments.documents.words import WordSketchPass
from distmom.spectral.inputs.aligned import AlignedCorpus


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

    monkeypatch.setattr("distmom.corpus.files.commit.sync_path", sync)
    monkeypatch.setattr("distmom.engine.directory.run_directory.sync_path", sync)
    monkeypatch.setattr("distmom.engine.directory.run_directory.put_if_absent", put)
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
        "partial",
        "passes",
        "plan.json",
        "rows",
        "states",
    ]


def test_tasks_read_the_stored_arrays_of_a_corpus(tmp_path):
    corpus = random_corpus(40, 5)
    aligned = AlignedCorpus(corpus, corpus.vocabulary[::-1], corpus.label_names)
    with open_engine(aligned, tmp_path / "run") as engine:
        found = engine.run(CountPass(5)).sums["words"]
        assert isinstance(engine.corpus._words, StoredArray)
    with open_engine(corpus) as engine:
        np.testing.assert_array_equal(found, engine.run(CountPass(5)).sums["words"][::-1])


def test_a_temporary_directory_that_cannot_be_removed_is_reported(tmp_path, monkeypatch, caplog):
    def fails(path, **options):
        raise OSError(errno.EIO, "the disk fails", path)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as change, open_engine(random_corpus(20, 5)) as engine:
        engine.put(np.ones(3))
        change.setattr(os, "unlink", fails)
    [message] = caplog.messages
    assert message == (
        f"{engine.directory.path}: the temporary directory could not be removed: the disk fails; remove it"
    )


def test_a_run_records_the_processors_that_have_worked_for_it(tmp_path, caplog):
    corpus, own = random_corpus(), environment()
    with open_engine(corpus, tmp_path) as engine:
        assert engine.directory.environments() == []
        engine.run(count(corpus))
        assert engine.directory.environments() == [asdict(own)]
        engine.run(count(corpus, factor=2.0))
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


def test_states_are_stored_once_by_digest(tmp_path):
    directory = RunDirectory(tmp_path)
    array = np.random.default_rng(0).standard_normal((5, 3))
    one, two = directory.put(array), directory.put(array.copy())
    assert one == two
    assert len(list((tmp_path / "states").iterdir())) == 1
    loaded = one.load()
    assert isinstance(loaded.base, mmap.mmap)
    np.testing.assert_array_equal(loaded, array)
    json.dumps(one.digest)


def broken(rows, matrix):
    raise ValueError("no")


@pytest.mark.parametrize("maps_per_thread", [1, 3, 8])
def test_rows_are_mapped_in_slabs_and_a_failure_leaves_nothing(tmp_path, monkeypatch, maps_per_thread):
    monkeypatch.setattr("distmom.engine.maps.MAPS_PER_THREAD", maps_per_thread)
    for module in ("stored.arrays", "sums.tall", "maps"):
        monkeypatch.setattr(f"distmom.engine.{module}.SLAB_ROWS", 7)
    engine = Engine(random_corpus(), RunDirectory(tmp_path))
    matrix = np.random.default_rng(0).standard_normal((40, 3))
    stored, sums = engine.maps.map_rows(
        doubled, [engine.put(matrix), matrix], 40, {"twice": (3, "float32"), "row": (1, "int64")}, 2.0
    )
    np.testing.assert_array_equal(stored["twice"].load(), (3.0 * matrix).astype(np.float32))
    np.testing.assert_array_equal(stored["row"].load().ravel(), np.arange(40))
    np.testing.assert_allclose(sums["total"], matrix.sum(axis=0))
    assert engine.directory.verify() == []
    before = sorted(tmp_path.glob("states/*"))
    with pytest.raises(ValueError, match="no"):
        engine.maps.map_rows(broken, [matrix], 40, {"x": (3, "float64")})
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


def test_a_failing_background_commit_is_raised_by_flush(tmp_path):
    directory = RunDirectory(tmp_path)
    state = directory.put(np.arange(4.0))
    Path(state.path).unlink()
    directory.commit_pass("p", "0" * 32, {}, {"rows": {}}, [state])
    with pytest.raises(FileNotFoundError):
        directory.flush()
    assert directory.load_pass("p", "0" * 32) is None
    directory.flush()


def test_a_run_ends_at_the_pass_after_a_failing_background_commit(tmp_path, monkeypatch):
    corpus = random_corpus(d=8)
    done = []

    def fail(path):
        raise OSError(errno.EIO, "input/output error", str(path))

    def run(engine, seed):
        pass_ = WordSketchPass(8, n_columns=3, seed=seed)
        state = engine.put(np.arange(4.0))
        engine.run(pass_, finish=lambda tallies: TallResult({"all": StoredColumns((state,))}, {}))
        done.append(seed)

    def run_all():
        with open_engine(corpus, tmp_path) as engine:
            for seed in range(4):
                run(engine, seed)

    monkeypatch.setattr("distmom.engine.directory.run_directory.sync_path", fail)
    with pytest.raises(OSError, match="input/output error"):
        run_all()
    assert done == [0]


def test_files_of_a_temporary_run_leave_nothing_open(monkeypatch):
    monkeypatch.setattr("distmom.engine.stored.held.HELD_STATE_BYTES", 0)
    with open_engine(random_corpus(d=8)) as engine:
        state = engine.put(np.arange(4.0))
        array = state.load()
        before = len(os.listdir("/proc/self/fd"))
    assert (state.path, state.digest) not in _maps
    # An array that is in use stays valid.
    assert array.tolist() == [0.0, 1.0, 2.0, 3.0]
    del array
    assert len(os.listdir("/proc/self/fd")) < before


def test_a_stored_array_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path)
    maps = Maps(directory, InProcess(), Holding(False, True, None), {})
    headers = []

    def fail(*arguments, **options):
        raise OSError(errno.ENOSPC, "no space left on device")

    def write_first(stream, header, write=np.lib.format.write_array_header_1_0):
        headers.append(header)
        write(stream, header) if len(headers) == 1 else fail()

    def append():
        with directory.writer("float32", 3) as writer:
            writer.append(np.ones(3, np.float32))

    def map_two():
        maps.map_rows(doubled, [], 3, {"twice": (1, "float32"), "row": (1, "int64")}, 2)

    with monkeypatch.context() as change:
        change.setattr(np.lib.format, "write_array_header_1_0", write_first)
        for write in (map_two, append):
            headers.clear()
            with pytest.raises(OSError, match="no space left"):
                write()
    with monkeypatch.context() as change:
        # NumPy writes the header before the elements.
        change.setattr(np.lib.format, "write_array", fail)
        with pytest.raises(OSError, match="no space left"):
            directory.put(np.ones(3))
    assert list(directory.states.iterdir()) == []
