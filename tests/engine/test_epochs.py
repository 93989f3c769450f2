"""Who carries out a run: one process at a time, whatever becomes of it, on this host or another one."""

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from clusters import wait_until
from helpers import content, meanwhile, planted_corpus, random_corpus

from distmom.cli import run as runs
from distmom.cli.main import main
from distmom.corpus import RowCorpus, from_arrays
from distmom.engine import Pass, RunDirectory, SumSpec, open_engine
from distmom.engine.directory import abandoned, epochs
from distmom.engine.directory.epochs import EPOCH, LEASE, Beat, End, Owner
from distmom.engine.directory.lease import Lease, leased
from distmom.engine.directory.observation import condition
from distmom.engine.directory.run_directory import committed_passes
from distmom.errors import CancelledError, ClusterError, TakenOverError, UsageError
from distmom.moments.documents.words import WordMomentsPass
from distmom.spectral.saved import artifact

#: the command with a lease of two seconds
QUICK = """
import sys
from distmom.engine.directory import epochs
epochs.BEAT_S, epochs.LEASE_S, epochs.LOOK_S = 0.2, 2.0, 0.1
from distmom.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def quick(monkeypatch):
    """A lease of half a second."""
    for name, value in (("BEAT_S", 0.1), ("LEASE_S", 0.5), ("LOOK_S", 0.05)):
        monkeypatch.setattr(epochs, name, value)


def flip(path):
    content = path.read_bytes()
    path.write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])


def words(corpus, scale=1.0):
    return WordMomentsPass(corpus.n_words, basis=scale * np.eye(corpus.n_words, 3), rank=3)


def begin_elsewhere(run, epoch=1, pid=4711):
    """Write the records of an epoch that a process on another host has begun."""
    (run / "epochs").mkdir(exist_ok=True, parents=True)
    owner = replace(Owner.this(), host="elsewhere", boot="another", pid=pid)
    assert epochs.put_once(epochs.file_of(run, epoch), EPOCH.dump(asdict(owner)))
    beat_elsewhere(run, epoch, 1)


def beat_elsewhere(run, epoch, count):
    (run / "lease.json").write_bytes(LEASE.dump(asdict(Beat(epoch, count, "another", 0.0, 0.0))))


def test_one_of_many_begins_an_epoch(tmp_path):
    contents = [f"{number}\n".encode() for number in range(16)]
    gate = threading.Barrier(8)

    def put(content):
        gate.wait()
        return epochs.put_once(tmp_path / "0001.json", content)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(put, contents))
    assert sum(won) == 1
    assert (tmp_path / "0001.json").read_bytes() == contents[won.index(True)]
    assert [path.name for path in tmp_path.iterdir()] == ["0001.json"]


def test_an_epoch_is_begun_once_where_there_are_no_links(tmp_path, monkeypatch):
    def refused(*paths):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert epochs.put_once(tmp_path / "0001.json", b"one")
    assert not epochs.put_once(tmp_path / "0001.json", b"two")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"one"]


def test_a_link_whose_confirmation_was_lost_counts(tmp_path, monkeypatch):
    link = os.link

    def answered_twice(*paths):
        link(*paths)
        raise FileExistsError

    monkeypatch.setattr(os, "link", answered_twice)
    assert epochs.put_once(tmp_path / "0001.json", b"one")


def test_a_run_of_another_host_is_taken_over_once_its_beat_stands_still(tmp_path, quick, caplog):
    begin_elsewhere(tmp_path)
    started = time.monotonic()
    with RunDirectory(tmp_path).held() as directory:
        assert time.monotonic() - started >= epochs.LEASE_S
        assert directory.lease.epoch == 2
    assert "waiting for at most 0 s, as it is not known whether process 4711 on host elsewhere" in caplog.text
    assert "taking over the run of process 4711 on host elsewhere" in caplog.text
    assert condition(tmp_path).state == "done"
    # The next epoch follows at once.
    started = time.monotonic()
    with RunDirectory(tmp_path).held() as directory:
        assert directory.lease.epoch == 3
    assert time.monotonic() - started < epochs.LEASE_S


def test_a_run_of_another_host_that_beats_is_not_taken_over(tmp_path, quick):
    begin_elsewhere(tmp_path)
    beats = itertools.count(2)
    with meanwhile(lambda: beat_elsewhere(tmp_path, 1, next(beats)), epochs.BEAT_S):
        assert condition(tmp_path).state == "running"
        with pytest.raises(UsageError, match="is held by process 4711 on host elsewhere since"):
            RunDirectory(tmp_path).held().__enter__()
    assert epochs.latest_epoch(tmp_path) == 1
    assert condition(tmp_path).state == "lost"


def test_a_run_whose_process_has_been_killed_is_taken_over_at_once(tmp_path, caplog):
    script = (
        "from distmom.engine import RunDirectory as R; h = R(sys.argv[1]).held(); h.__enter__(); os._exit(9)"
    )
    script = f"import os, sys; {script}"
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60, check=False)
    assert condition(tmp_path).state == "lost"
    with RunDirectory(tmp_path).held():
        assert condition(tmp_path).state == "running"
    assert "which is no longer running" in caplog.text


def test_a_process_that_is_paused_is_taken_over_and_commits_nothing(tmp_path, quick):
    """Its beat stands still for as long as the lease, and then another process begins an epoch."""
    corpus = random_corpus()

    def taken_over():
        with open_engine(corpus, tmp_path) as engine:
            assert engine.directory.partials.place("a").parent == tmp_path / "partial" / "0001"
            engine.run(words(corpus))
            begin_elsewhere(tmp_path, 2)
            (theirs := tmp_path / "partial" / "0002").mkdir(parents=True)
            before = sorted((tmp_path / "passes").iterdir())
            try:
                engine.run(words(corpus, 2.0))
            finally:
                assert sorted((tmp_path / "passes").iterdir()) == before
                assert theirs.exists()

    with pytest.raises(TakenOverError, match="taken over by process 4711 on host elsewhere") as caught:
        taken_over()
    assert caught.value.exit_code == 5
    assert epochs.end_of(tmp_path, 1).state == "failed"
    assert epochs.end_of(tmp_path, 2) is None


def test_an_error_after_a_run_was_taken_over_is_explained_by_that(tmp_path):
    def stop():
        with RunDirectory(tmp_path).held():
            begin_elsewhere(tmp_path, 2)
            raise FileNotFoundError("a file that the other process has removed")

    with pytest.raises(TakenOverError) as caught:
        stop()
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_request_ends_a_run_at_its_next_pass(tmp_path):
    corpus = random_corpus()

    def cancelled():
        with open_engine(corpus, tmp_path) as engine:
            assert epochs.request_cancel(tmp_path)
            assert not epochs.request_cancel(tmp_path)
            # What was computed before is kept.
            engine.directory.commit_pass("before", 64 * "0", {}, {"rows": {}})
            engine.run(words(corpus))

    with pytest.raises(CancelledError):
        cancelled()
    found = condition(tmp_path)
    assert (found.state, found.end.exit_code) == ("cancelled", 130)
    assert [path.name.partition("-")[0] for path in (tmp_path / "passes").iterdir()] == ["before"]
    # It was a request to that driver.
    with open_engine(corpus, tmp_path) as engine:
        engine.run(words(corpus))
    assert condition(tmp_path).state == "done"


@dataclass(frozen=True)
class CancelledPass(Pass):
    """Requests the end of its run in the first block of each task."""

    run: str = ""
    block_rows = 10

    def specs(self):
        return {"n": SumSpec((1,))}

    def add(self, sums, block, rows):
        with (Path(self.run) / "blocks").open("a") as stream:
            stream.write("block\n")
        epochs.request_cancel(Path(self.run))


def test_a_task_of_a_cancelled_run_stops_at_its_next_block(tmp_path, monkeypatch):
    monkeypatch.setattr(abandoned, "LOOK_S", 0.0)
    corpus = RowCorpus(np.ones((100, 3)), shard_rows=50)

    def cancelled():
        with open_engine(corpus, tmp_path) as engine:
            engine.run(CancelledPass(3, run=str(tmp_path)))

    with pytest.raises(CancelledError, match="a task was abandoned"):
        cancelled()
    assert (tmp_path / "blocks").read_text() == "block\n"


def test_an_end_is_recorded_once_for_each_epoch(tmp_path):
    def fail():
        with RunDirectory(tmp_path).held():
            error = ClusterError("the cluster was lost")
            error.add_note("distmom resume x")
            raise error

    with pytest.raises(ClusterError):
        fail()
    found = epochs.end_of(tmp_path, 1)
    assert (found.state, found.exit_code, found.error) == ("failed", 5, "ClusterError")
    assert (found.text, found.resume) == ("the cluster was lost", "distmom resume x")
    assert not epochs.write_end(tmp_path, 1, End("done", 0))
    assert epochs.end_of(tmp_path, 1) == found
    assert epochs.write_end(tmp_path, 2, End("done", 0))


@pytest.mark.parametrize("step", ["record", "beat"])
def test_an_interrupt_as_an_epoch_begins_is_recorded_as_its_end(tmp_path, monkeypatch, step):
    owner, name = (epochs, "put_once") if step == "record" else (Lease, "_beat")
    function, calls = getattr(owner, name), []

    def interrupted(*arguments, **keywords):
        done = function(*arguments, **keywords)
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt), leased(tmp_path):
        pytest.fail("the interrupt was lost")
    found = epochs.end_of(tmp_path, 1)
    assert (found.state, found.exit_code, found.error) == ("failed", 130, "KeyboardInterrupt")


def test_damaged_records_are_reported_and_not_believed(tmp_path):
    with RunDirectory(tmp_path).held():
        pass
    assert RunDirectory(tmp_path).verify() == []
    for path in (tmp_path / "epochs" / "0001.end.json", tmp_path / "lease.json"):
        flip(path)
    problems = RunDirectory(tmp_path).verify()
    assert [problem.partition(":")[0] for problem in problems] == [
        str(tmp_path / "epochs" / "0001.end.json"), str(tmp_path / "lease.json"),
    ]  # fmt: skip
    assert condition(tmp_path, 0.0).state in ("lost", "running", "unknown")
    assert epochs.end_of(tmp_path, 1) is None


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    block = planted_corpus(1600, d=300, n_labels=12, k=3, shard_documents=1600)[2].read_shard(0)
    place = tmp_path_factory.mktemp("corpus") / "c"
    from_arrays(place, block.words, block.labels, shard_documents=50)
    return str(place)


MODEL = ("-k", "3", "--head", "posterior", "--workers", "0", "--quiet")


def test_a_finished_run_is_not_run_again(corpus, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    assert main(["fit", corpus, str(tmp_path / "m"), *MODEL, "--run", str(run)]) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    capsys.readouterr()
    assert main(["resume", str(run), "--workers", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"model": str(tmp_path / "m"), "finished": True}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    # A model that has been replaced since is not that of the run.
    flip(tmp_path / "m" / "model.json")
    assert main(["resume", str(run), "--workers", "0"]) == 2
    assert "the model exists" in capsys.readouterr().err


def test_an_interrupt_that_arrives_in_a_kernel_ends_a_fit_like_any_other(
    corpus, tmp_path, monkeypatch, capsys
):
    """A kernel makes a SystemError of it."""
    run = tmp_path / "run"

    def interrupted(*arguments, **options):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise SystemError("returned a result with an exception set") from error

    monkeypatch.setattr(artifact, "put_directory", interrupted)
    assert main(["fit", corpus, str(tmp_path / "m"), *MODEL, "--run", str(run)]) == 130
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "interrupted", f"to resume: distmom resume {run} --workers 0"
    ]  # fmt: skip
    end = epochs.end_of(run, 1)
    assert (end.state, end.exit_code, end.error) == ("failed", 130, "KeyboardInterrupt")
    monkeypatch.undo()
    assert main(["resume", str(run), "--workers", "0"]) == 0


def test_a_driver_that_ends_after_the_model_was_saved_is_followed(corpus, tmp_path, monkeypatch):
    """The model exists, but nothing says that it is that of the run."""
    run, put = tmp_path / "run", artifact.put_directory

    def killed(temporary, final, **options):
        put(temporary, final, **options)
        if final == tmp_path / "m":
            raise KeyboardInterrupt

    fit = ["fit", corpus, str(tmp_path / "m"), *MODEL, "--run", str(run)]
    with monkeypatch.context() as change:
        change.setattr(artifact, "put_directory", killed)
        assert main(fit) == 130
    expected = content(tmp_path / "m")
    assert main(fit) == 0
    assert content(tmp_path / "m") == expected
    assert runs.reopen(run).is_finished()
    assert main(fit) == 2


@contextmanager
def started(log, *arguments):
    command = [sys.executable, "-c", QUICK, *map(str, arguments)]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()


@pytest.mark.slow
def test_a_driver_that_was_paused_ends_when_it_wakes_up(corpus, tmp_path):
    assert main(["fit", corpus, str(tmp_path / "whole"), *MODEL]) == 0
    run = tmp_path / "run"
    fit = ("fit", corpus, tmp_path / "m", *MODEL, "--run", run)
    with started(tmp_path / "first.log", *fit) as first:
        wait_until(lambda: committed_passes(run) or first.poll() is not None)
        first.send_signal(signal.SIGSTOP)
        assert first.poll() is None, (tmp_path / "first.log").read_text()
        with started(tmp_path / "second.log", "resume", run, "--workers", "0") as second:
            assert second.wait(120) == 0, (tmp_path / "second.log").read_text()
        first.send_signal(signal.SIGCONT)
        assert first.wait(60) == 5, (tmp_path / "first.log").read_text()
    assert "taking over the run of process" in (tmp_path / "second.log").read_text()
    assert "it was taken over by process" in (tmp_path / "first.log").read_text()
    assert "to resume: distmom resume" in (tmp_path / "first.log").read_text()
    assert content(tmp_path / "m") == content(tmp_path / "whole")
    assert [epochs.end_of(run, epoch).state for epoch in (1, 2)] == ["failed", "done"]


@pytest.mark.slow
def test_a_process_ends_when_its_run_is_cancelled_by_a_file(corpus, tmp_path):
    run = tmp_path / "run"
    with started(tmp_path / "log", "fit", corpus, tmp_path / "m", *MODEL, "--run", run) as process:
        wait_until(lambda: (run / "run.json").exists() or process.poll() is not None)
        epochs.request_cancel(run)
        assert process.wait(30) == 130, (tmp_path / "log").read_text()
    assert condition(run).state == "cancelled"
    assert f"to resume: distmom resume {run}" in (tmp_path / "log").read_text()
