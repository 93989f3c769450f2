"""Faults of workers, network, disk and clock end in the same bits or in one error that names the thing."""

import errno
import gc
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import dask
import numpy as np
import pytest
from clusters import wait_until
from disks import needs_mount, small_disk
from distributed import Client, LocalCluster
from distributed.comm.core import CommClosedError
from helpers import content, random_corpus

from distmom.cli.main import main
from distmom.corpus import from_arrays, ingest, open_corpus
from distmom.corpus.lock import Lock
from distmom.corpus.space import held_bytes, space_explained
from distmom.engine import (
    InProcess,
    OnCluster,
    Pass,
    RunDirectory,
    SumSpec,
    attempts,
    open_engine,
    open_executor,
    plan,
    watch,
)
from distmom.engine.tasks import fold_group
from distmom.engine.threads import on_threads
from distmom.errors import ClusterError, InputError, OutOfSpaceError, StoreError, WorkersLostError
from distmom.moments.words import WordSketchPass

MODEL = ("-k", "3", "--head", "posterior", "--workers", "0", "--quiet")


@contextmanager
def threads(n_workers=1):
    """A cluster whose workers are threads of this process."""
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=":0"
        ) as local,
        Client(local, set_as_default=False) as client,
    ):
        yield local, client


@dataclass(frozen=True)
class RootPass(Pass):
    """Adds irrational numbers, whose sum depends on the order, and stores rows."""

    delays: tuple[float, ...] = ()

    def specs(self):
        return {"x": SumSpec((self.n_features,))}

    def add(self, sums, block, rows):
        if self.delays:
            time.sleep(self.delays[block.first % len(self.delays)])
        values = np.sqrt(block.words.toarray() + 0.1)
        sums["x"] += values.sum(axis=0)
        return {"first": values[:, :2]}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    block = random_corpus(n=300, shard_documents=300).read_shard(0)
    return from_arrays(tmp_path_factory.mktemp("faults") / "c", block.words, block.labels, shard_documents=20)


def total(corpus, executor=None, delays=(), during=lambda: None):
    """Return the bits of the sum and of the rows of a pass."""
    with open_engine(corpus, executor=executor) as engine:
        thread = threading.Thread(target=during)
        thread.start()
        found = engine.run(RootPass(corpus.n_words, delays=delays))
        thread.join()
        rows = [found.rows["first"].read(i).tobytes() for i in range(len(corpus.shards))]
        return found.sums["x"].tobytes(), rows


def fail(place, times, error, is_cause=False):
    """Fail for the first times, and note every call with its time."""
    with Path(place).open("a") as stream:
        stream.write(f"{time.monotonic()}\n")
    if Path(place).read_text().count("\n") <= times:
        if is_cause:
            raise StoreError("a shard cannot be read") from error
        raise error
    return 7


def called(place):
    """Return the seconds between the calls."""
    return np.diff([float(line) for line in place.read_text().split()])


@pytest.fixture(params=["in process", "on threads", "on a cluster"])
def anywhere(request, monkeypatch):
    """An executor of every kind, with shorter pauses."""
    monkeypatch.setattr(attempts, "PAUSES_S", (0.1, 0.4))
    with ExitStack() as stack:
        if request.param == "in process":
            yield InProcess()
        elif request.param == "on threads":
            yield stack.enter_context(on_threads(2))
        else:
            yield OnCluster(stack.enter_context(threads())[1])


def carried_out(executor, way, *arguments):
    """Let a task be one of a pass, or one of work on slabs or sources."""
    if way == "map":
        return next(executor.map(partial(apply, fail), iter([arguments])))
    return executor.reduce(fail, [arguments], sum, 2, lambda index: None, "pass")


def apply(function, arguments):
    return function(*arguments)


@pytest.mark.parametrize("way", ["reduce", "map"])
@pytest.mark.parametrize("is_cause", [False, True])
def test_an_error_of_the_disk_that_passes_is_followed_by_another_attempt(anywhere, tmp_path, way, is_cause):
    error = OSError(errno.ESTALE, "Stale file handle", "/mnt/shard")
    assert carried_out(anywhere, way, tmp_path / "calls", 2, error, is_cause) == 7
    first, second = called(tmp_path / "calls")
    assert first >= 0.1
    assert second >= 0.4


@pytest.mark.parametrize("way", ["reduce", "map"])
def test_an_error_of_the_disk_that_stays_names_the_path(anywhere, tmp_path, way):
    error = OSError(errno.EIO, "Input/output error", "/mnt/shard")
    with pytest.raises(OSError, match="/mnt/shard") as caught:
        carried_out(anywhere, way, tmp_path / "calls", 99, error)
    assert caught.value.errno == errno.EIO
    assert len(called(tmp_path / "calls")) == 2


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), StoreError("a chunk has changed"), InputError("x:3")]
)  # fmt: skip
def test_an_error_that_does_not_pass_is_raised_at_once(anywhere, tmp_path, error):
    with pytest.raises(type(error)):
        carried_out(anywhere, "reduce", tmp_path / "calls", 99, error)
    assert len(called(tmp_path / "calls")) == 0


def test_a_cluster_without_workers_is_given_up(monkeypatch):
    monkeypatch.setattr(watch, "NO_WORKERS_TIMEOUT_S", 1.0)
    with (
        threads(n_workers=0) as (_, client),
        pytest.raises(ClusterError, match="map: the cluster has had no worker for 1 s"),
    ):
        next(OnCluster(client).map(abs, [1]))


def test_a_cluster_keeps_nothing_of_a_pass_that_has_ended():
    """Otherwise, a worker that dies later would let Dask carry out tasks of this pass again."""
    with threads() as (local, client):
        gc.disable()
        try:
            done = OnCluster(client).reduce(int, [("1",)] * 20, sum, 4, lambda index: None, "pass")
            wait_until(lambda: not local.scheduler.tasks, 20)
        finally:
            gc.enable()
    assert done == 20


def test_tasks_that_finish_in_another_order_change_no_bit(corpus, cluster):
    delays = tuple(random.Random(0).choices((0.0, 0.01, 0.1), k=17))
    assert total(corpus, OnCluster(cluster), delays) == total(corpus)


def test_workers_that_join_and_leave_change_no_bit(corpus):
    with threads() as (local, client):

        def scale():
            time.sleep(0.2)
            local.scale(3)
            time.sleep(0.6)
            local.scale(1)

        assert total(corpus, OnCluster(client), (0.1,), during=scale) == total(corpus)


def test_a_task_that_was_carried_out_twice_counts_once_and_replaces_nothing(corpus, tmp_path):
    def attempt():
        pass_, outputs = RootPass(corpus.n_words), str(tmp_path / "rows" / "pass")
        return fold_group(
            corpus, (0, 1), pass_, {}, outputs, str(tmp_path / "partial" / "x" / "pass"), (False, False)
        )

    (tmp_path / "rows").mkdir()
    first = attempt()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "rows").rglob("*") if path.is_file()}
    second = attempt()
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "rows").rglob("*") if p.is_file()}
    assert second.row_digests == first.row_digests
    np.testing.assert_array_equal(first.sums["x"], second.sums["x"])


def die(value):
    """Kill the worker for one of the values."""
    if value == 7:
        os._exit(1)
    return value


@pytest.mark.slow
@pytest.mark.cluster
def test_a_task_that_kills_every_worker_is_named_and_others_are_not_blamed(monkeypatch):
    monkeypatch.setattr("distmom.engine.cluster.MAX_ATTEMPTS", 1)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        open_executor(workers=1) as executor,
    ):
        results = executor.map(die, iter(range(20)))
        assert [next(results) for _ in range(7)] == list(range(7))
        with pytest.raises(ClusterError, match=r"map: the worker of task \S+ died 2 times"):
            next(results)


@dataclass(frozen=True)
class DeadlyPass(Pass):
    """Kills every worker that reads a certain document."""

    deadly: int = -1

    def specs(self):
        return {"n": SumSpec(())}

    def add(self, sums, block, rows):
        if block.first == self.deadly:
            os._exit(1)
        sums["n"] += block.n_documents


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.cluster
def test_the_shard_that_kills_every_worker_is_named(corpus, monkeypatch):
    """It is in the middle of a group of three."""
    monkeypatch.setattr("distmom.engine.cluster.MAX_ATTEMPTS", 1)
    monkeypatch.setattr(plan, "MAX_GROUPS", 5)
    monkeypatch.setattr(plan, "MIN_GROUPS", 5)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        open_executor(workers=1) as executor,
        open_engine(corpus, executor=executor) as engine,
    ):
        assert engine.plan(DeadlyPass(corpus.n_words)).groups[2] == (6, 7, 8)
        with pytest.raises(WorkersLostError) as caught:
            engine.run(DeadlyPass(corpus.n_words, deadly=140))
    first, second, last = (shard.id for shard in corpus.shards[6:9])
    died = r"the worker of task \S+ died 2 times; the task may need more memory than the worker's limit"
    assert re.fullmatch(f"deadly: shard {second}: {died}", str(caught.value))
    assert re.fullmatch(f"deadly: shards {first} to {last}: {died}", str(caught.value.__cause__))


class Losing(InProcess):
    """Loses the workers of tasks, given as a function of their shards, or the cluster."""

    def __init__(self, loses):
        self.loses, self.tasks = loses, []

    def reduce(self, function, arguments, merge, fan_in, on_done, name, subject):
        for index, (_, shards, *_) in enumerate(arguments):
            self.tasks.append(shards)
            if self.loses(shards):
                raise WorkersLostError(f"{name}: {subject(index)}: died", index)
        return super().reduce(function, arguments, merge, fan_in, on_done, name, subject)


@pytest.mark.parametrize("is_tall", [False, True])
@pytest.mark.parametrize(
    ("loses", "message", "last"),
    [
        (lambda shards: 7 in shards, "shard {1}: died", 7),
        (lambda shards: 6 in shards, "shard {0}: died", 6),
        (
            lambda shards: {7, 8} <= set(shards),
            "shards {0} to {2}: died; none of its shards causes it alone",
            8,
        ),
    ],
)
def test_a_group_that_lost_its_workers_runs_shard_by_shard(
    corpus, monkeypatch, is_tall, loses, message, last
):
    monkeypatch.setattr(plan, "MAX_GROUPS", 5)
    monkeypatch.setattr(plan, "MIN_GROUPS", 5)
    executor = Losing(loses)
    pass_ = WordSketchPass(corpus.n_words, n_columns=4) if is_tall else DeadlyPass(corpus.n_words)
    finish = {"finish": tuple} if is_tall else {}
    with open_engine(corpus, executor=executor) as engine, pytest.raises(WorkersLostError) as caught:
        engine.run(pass_, **finish)
    first = executor.tasks.index((6, 7, 8)) + 1
    assert executor.tasks[first:] == [(shard,) for shard in range(6, last + 1)]
    named = message.format(*(shard.id for shard in corpus.shards[6:9]))
    assert str(caught.value) == f"{pass_.name}: {named}"


def test_a_cluster_that_is_lost_while_a_shard_is_looked_for_does_not_hide_what_was_lost(corpus, monkeypatch):
    monkeypatch.setattr(plan, "MAX_GROUPS", 1)
    monkeypatch.setattr(plan, "MIN_GROUPS", 1)

    def loses(shards):
        if len(shards) == 1:
            raise ClusterError("no worker")
        return True

    with open_engine(corpus, executor=Losing(loses)) as engine, pytest.raises(WorkersLostError) as caught:
        engine.run(DeadlyPass(corpus.n_words))
    assert str(caught.value).endswith(f"shards {corpus.shards[0].id} to {corpus.shards[-1].id}: died")
    assert str(caught.value.__cause__) == "no worker"


def work_or_die(value, folder):
    """Note when a call begins and ends; the first call with one of the values kills its worker."""
    attempt = len(list(Path(folder).glob(f"{value}-*.begin")))
    (Path(folder) / f"{value}-{attempt}.begin").write_text(str(time.time()))
    time.sleep(0.3)
    if value == 3 and attempt == 0:
        os._exit(1)
    (Path(folder) / f"{value}-{attempt}.end").write_text(str(time.time()))
    return value


@pytest.mark.slow
@pytest.mark.cluster
def test_tasks_that_lost_a_worker_run_again_with_no_other(tmp_path):
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        open_executor(workers=2) as executor,
    ):
        arguments = [(value, str(tmp_path)) for value in range(16)]
        assert executor.reduce(work_or_die, arguments, sum, 16, lambda index: None, "pass") == sum(range(16))

    def seconds(path):
        return float(path.read_text())

    calls = {
        path.stem: (seconds(path), seconds(path.with_suffix(".end")))
        for path in tmp_path.glob("*.begin") if path.with_suffix(".end").exists()
    }  # fmt: skip
    begin, end = calls.pop("3-1")
    assert not [name for name, (first, last) in calls.items() if first < end and last > begin]


@contextmanager
def proxied(port):
    """Forward connections to a port of this host; yield another port, and a function that cuts all connections."""
    open_, server = [], socket.create_server(("127.0.0.1", 0))

    def forward(one, other):
        with suppress(OSError):
            while content := one.recv(1 << 16):
                other.sendall(content)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def serve():
        with suppress(OSError):
            while True:
                near = server.accept()[0]
                far = socket.create_connection(("127.0.0.1", port))
                open_.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=forward, args=pair, daemon=True).start()

    def cut():
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        for each in open_:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield server.getsockname()[1], cut
    finally:
        cut()
        for each in open_:
            each.close()


def test_a_connection_that_is_cut_ends_a_pass_within_seconds(corpus, monkeypatch):
    monkeypatch.setattr(watch, "SILENCE_TIMEOUT_S", 2.0)
    monkeypatch.setattr("distmom.engine.connections.CLOSE_TIMEOUT_S", 2.0)
    with threads() as (local, _), proxied(int(local.scheduler_address.rpartition(":")[2])) as (port, cut):

        def interrupted():
            with open_executor(scheduler=f"tcp://127.0.0.1:{port}") as executor:
                timer = threading.Timer(0.3, cut)
                timer.start()
                total(corpus, executor, (0.2,))

        started = time.monotonic()
        with pytest.raises(ClusterError, match=r"cluster was lost|connection to the scheduler|not answered"):
            interrupted()
        assert time.monotonic() - started < 30
        assert total(corpus, OnCluster(local.get_client())) == total(corpus)


class Connected:
    """A client whose scheduler answers."""

    status = "running"

    def nthreads(self):
        return {"worker": 1}


def test_a_connection_that_is_lost_during_a_request_is_an_error_of_the_cluster():
    def lost():
        raise CommClosedError("Stream is closed")

    with pytest.raises(ClusterError, match="cluster: the cluster was lost: Stream is closed"):
        watch.Watch(Connected(), "cluster").call(lost)


#: runs a command while the clock jumps
JUMPING = """
import random, sys, time
from distmom.cli.main import main
jumps = random.Random(1)
time.time = lambda: jumps.uniform(0.0, 2e9)
sys.exit(main(sys.argv[1:]))
"""


def test_a_clock_that_jumps_changes_no_bit(corpus, tmp_path):
    fit = ["fit", str(corpus.path)]
    assert main([*fit, str(tmp_path / "calm"), *MODEL]) == 0
    # In a process of its own: timers of clusters in this one would wait for years.
    run = [*fit, str(tmp_path / "m"), *MODEL, "--run", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", JUMPING, *run], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "m") == content(tmp_path / "calm")
    assert RunDirectory(tmp_path / "run").verify() == []


def test_a_run_that_cannot_be_written_is_refused_before_work(corpus, tmp_path, capsys):
    for place in ("/proc/none/run", "/dev/null/run"):
        assert main(["fit", str(corpus.path), str(tmp_path / "m"), *MODEL, "--run", place]) == 2
        assert place.rpartition("/")[0] in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


@needs_mount
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_run_on_a_full_disk_ends_with_its_path_and_resumes_with_the_same_bits(
    corpus, tmp_path, capsys, share
):
    """It becomes full while partial sums, stored arrays or passes are written."""
    fit = ["fit", str(corpus.path)]
    assert main([*fit, str(tmp_path / "calm"), *MODEL, "--run", str(tmp_path / "run")]) == 0
    needed = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    with small_disk(tmp_path / "disk", int(share * needed)) as resize:
        run = tmp_path / "disk" / "run"
        assert main([*fit, str(tmp_path / "m"), *MODEL, "--run", str(run)]) == 1
        error = capsys.readouterr().err
        assert f"{run}: no space left on device" in error
        assert f"to resume: distmom resume {run}" in error
        assert not (tmp_path / "m").exists()
        resize(4 * needed + (1 << 20))
        assert main(["resume", str(run), "--workers", "0"]) == 0
        assert RunDirectory(run).verify() == []
    assert content(tmp_path / "m") == content(tmp_path / "calm")


@needs_mount
@pytest.mark.parametrize("n_kibibytes", [4, 8])
def test_a_run_on_a_disk_that_is_full_from_the_beginning_names_it(corpus, tmp_path, capsys, n_kibibytes):
    """No space for its directories, or for its record."""
    fit = ["fit", str(corpus.path), str(tmp_path / "m"), *MODEL]
    with small_disk(tmp_path / "disk", n_kibibytes << 10) as resize:
        run = tmp_path / "disk" / "run"
        assert main([*fit, "--run", str(run)]) == 1
        error = capsys.readouterr().err
        assert str(run) in error
        assert ": no space left on device: " in error
        assert "bytes are free" in error
        resize(1 << 24)
        # There is nothing to resume; the same command begins the run.
        assert "to resume" not in error
        assert main([*fit, "--run", str(run)]) == 0
    assert (tmp_path / "m" / "model.json").exists()


@needs_mount
def test_a_model_for_which_there_is_no_space_is_absent_and_saved_by_the_resumed_run(corpus, tmp_path, capsys):
    fit = ["fit", str(corpus.path)]
    assert main([*fit, str(tmp_path / "calm"), *MODEL]) == 0
    run = tmp_path / "run"
    with small_disk(tmp_path / "disk", 1 << 14) as resize:
        model = tmp_path / "disk" / "m"
        assert main([*fit, str(model), *MODEL, "--run", str(run)]) == 1
        error = capsys.readouterr().err
        assert "no space left on device" in error
        assert str(model.parent) in error
        assert f"to resume: distmom resume {run}" in error
        assert list(model.parent.iterdir()) == []
        resize(1 << 24)
        assert main(["resume", str(run), "--workers", "0"]) == 0
        assert content(model) == content(tmp_path / "calm")


@needs_mount
def test_an_ingest_on_a_full_disk_leaves_no_corpus_and_resumes(tmp_path, capsys):
    lines = (f"l{i % 7}\tword{i} word{i + 1} other{i}\n" for i in range(4000))
    (tmp_path / "texts.tsv").write_text("".join(lines))
    expected = ingest(tmp_path / "texts.tsv", tmp_path / "c", min_df=1).digest
    needed = sum(path.stat().st_size for path in (tmp_path / "c").rglob("*") if path.is_file())
    shutil.rmtree(tmp_path / "c")
    command = [
        "ingest",
        str(tmp_path / "texts.tsv"),
        str(tmp_path / "disk" / "c"),
        "--min-df",
        "1",
        *MODEL[-3:],
    ]
    with small_disk(tmp_path / "disk", needed) as resize:
        assert main(command) == 1
        error = capsys.readouterr().err
        assert f"{tmp_path / 'disk' / 'c'}: no space left on device" in error
        assert not (tmp_path / "disk" / "c").exists()
        resize(20 * needed)
        assert main(command) == 0
        assert open_corpus(tmp_path / "disk" / "c").digest == expected


def test_a_lock_that_could_not_be_written_is_not_left(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    lock = Lock(tmp_path / "lock")
    with monkeypatch.context() as change:
        change.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            lock.acquire()
    assert not (tmp_path / "lock").exists()
    with lock:
        pass


@pytest.mark.parametrize("file", [None, "/mnt/part"])
def test_an_error_of_a_full_disk_has_its_path_and_the_bytes_that_are_free(tmp_path, file):
    expected = rf"^{file or tmp_path}: no space left on device: [\d,]+ of [\d,]+ bytes are free$"
    with pytest.raises(OutOfSpaceError, match=expected), space_explained(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)
    with pytest.raises(OSError, match="Input/output") as caught, space_explained(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), file)
    assert not isinstance(caught.value, OutOfSpaceError)


def test_files_that_vanish_while_a_directory_is_measured_are_left_out(tmp_path, monkeypatch):
    """Late tasks of an earlier driver write and rename files in the directory of a run."""
    (tmp_path / "stays").write_bytes(b"x" * 100)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "stays").write_bytes(b"x" * 20)
    (tmp_path / "part" / "vanishes").write_bytes(b"x" * 3)
    assert held_bytes(tmp_path) == 123
    listed = list(os.walk(tmp_path))
    (tmp_path / "part" / "vanishes").unlink()
    monkeypatch.setattr(os, "walk", lambda top: iter(listed))
    assert held_bytes(tmp_path) == 120


def test_a_directory_that_does_not_exist_holds_nothing(tmp_path):
    assert held_bytes(tmp_path / "none") == 0


@pytest.mark.cluster
@pytest.mark.parametrize("way", ["reduce", "map", "on_scheduler"])
def test_a_client_that_closes_is_a_lost_cluster(way):
    """A client closes itself when it cannot reach its scheduler for a while, and can neither submit nor cancel."""
    with threads() as (_, client):
        executor = OnCluster(client)
        works = {
            "reduce": lambda: executor.reduce(
                int, [("1",)] * 20, sum, 2, lambda index: client.close(), "pass"
            ),
            "map": lambda: [client.close() for _ in executor.map(int, range(20))],
            "on_scheduler": lambda: executor.on_scheduler(int, partial(time.sleep, 3)),
        }
        if way == "on_scheduler":
            threading.Timer(0.5, client.close).start()
        with pytest.raises(ClusterError, match=r"lost|closed"):
            works[way]()
