"""Workers, networks and clocks that fail end in the same bits or in one error that names the thing."""

import asyncio
import gc
import random
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import dask
import distributed
import numpy as np
import pytest
from clusters import threads, wait_until
from distributed import Client, Status
from distributed.comm.core import CommClosedError
from helpers import content

from distmom.cli.main import main
from distmom.engine import OnCluster, Pass, RunDirectory, SumSpec, open_engine, open_executor
from distmom.engine.executors import watch
from distmom.engine.executors.reduction import Reduction
from distmom.engine.tasks import GroupTask, fold
from distmom.errors import ClusterError

MODEL = ("-k", "3", "--head", "posterior", "--workers", "0", "--quiet")


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


def total(corpus, executor=None, delays=(), during=lambda: None):
    """Return the bits of the sum and of the rows of a pass."""
    with open_engine(corpus, executor=executor) as engine:
        thread = threading.Thread(target=during)
        thread.start()
        found = engine.run(RootPass(corpus.n_words, delays=delays))
        thread.join()
        rows = [found.rows["first"].read(i).tobytes() for i in range(len(corpus.shards))]
        return found.sums["x"].tobytes(), rows


def test_a_cluster_without_workers_is_given_up(monkeypatch):
    monkeypatch.setattr(watch, "NO_WORKERS_TIMEOUT_S", 1.0)
    with (
        threads(n_workers=0) as (_, client),
        pytest.raises(ClusterError, match="map: the cluster has had no worker for 1 s"),
    ):
        next(OnCluster(client).map(abs, [1]))


def slept(seconds):
    time.sleep(seconds)
    return 1


def reduced(executor, seconds):
    return executor.reduce(slept, [(each,) for each in seconds], sum, 4, lambda index: None, "pass")


def mapped(executor, seconds):
    return sum(executor.map(slept, seconds))


def decomposed(executor, seconds):
    return executor.on_scheduler(int, partial(slept, seconds[0])) * len(seconds)


# The client looks whether the scheduler answers after one second.
@pytest.mark.parametrize("longest", [0.0, 1.2])
@pytest.mark.parametrize("work", [reduced, mapped, decomposed])
def test_a_cluster_keeps_nothing_of_work_that_has_ended(work, longest):
    """Otherwise, a worker that dies later would let Dask carry out tasks of this work again."""
    with threads() as (local, client):
        gc.disable()
        try:
            assert work(OnCluster(client), [longest, *[0.0] * 19]) == 20
            wait_until(lambda: not local.scheduler.tasks, 20)
        finally:
            gc.enable()


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
        files = str(tmp_path / "partial" / "x" / "pass")
        return fold(GroupTask(corpus, (0, 1), pass_, {}, outputs, files))

    (tmp_path / "rows").mkdir()
    first = attempt()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "rows").rglob("*") if path.is_file()}
    second = attempt()
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "rows").rglob("*") if p.is_file()}
    assert second.row_digests == first.row_digests
    np.testing.assert_array_equal(first.sums["x"], second.sums["x"])


@contextmanager
def proxied(port, delays_s=(0.0,)):
    """Forward connections to a port of this host; yield another port, and a function that cuts all connections.

    What arrives is forwarded after these delays, in turn; a lost packet, which is sent again, is a delay of 0.2 s.
    """
    open_, server = [], socket.create_server(("127.0.0.1", 0))

    def forward(one, other):
        waits = cycle(delays_s)
        with suppress(OSError):
            while content := one.recv(1 << 16):
                time.sleep(next(waits))
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
    monkeypatch.setattr("distmom.engine.executors.connections.CLOSE_TIMEOUT_S", 2.0)
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


def test_delays_and_lost_packets_change_no_bit(corpus):
    delays_s = (0.0, 0.02, 0.2, 0.0, 0.05)
    with (
        threads() as (local, _),
        proxied(int(local.scheduler_address.rpartition(":")[2]), delays_s) as (port, _),
        open_executor(scheduler=f"tcp://127.0.0.1:{port}") as executor,
    ):
        assert total(corpus, executor) == total(corpus)


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
        closing = threading.Timer(0.5, client.close)
        if way == "on_scheduler":
            closing.start()
        with pytest.raises(ClusterError, match=r"lost|closed"):
            works[way]()
        if way == "on_scheduler":
            # It still waits for the loop of the cluster, which ends with the block.
            closing.join()


@pytest.mark.parametrize("error", [CommClosedError("Address removed."), KeyError("tcp://gone")])
def test_data_whose_worker_is_lost_on_their_way_are_sent_again(error, monkeypatch, caplog):
    """The scheduler ends its connection to the client, too, when it loses that to the worker."""
    with threads() as (local, client):
        handlers = local.scheduler.handlers
        scatter, n_lost = handlers["scatter"], 1

        async def lose(**message):
            nonlocal n_lost
            n_lost -= 1
            if n_lost >= 0:
                raise error
            return await scatter(**message)

        monkeypatch.setitem(handlers, "scatter", lose)
        assert list(OnCluster(client).map(len, ["a", "bb", "ccc"])) == [1, 2, 3]
        assert caplog.text.count("map: data were lost with the worker") == 1
        n_lost = watch.MAX_LOST + 1
        with pytest.raises(ClusterError, match="map: data were lost 4 times on their way to a worker"):
            next(OnCluster(client).map(len, ["a"]))
        assert n_lost == 0


def test_data_wait_for_a_worker(monkeypatch):
    with threads(n_workers=0) as (local, client):
        threading.Timer(3.0, local.scale, [1]).start()
        assert list(OnCluster(client).map(len, ["a", "bb"])) == [1, 2]
        monkeypatch.setattr(watch, "NO_WORKERS_TIMEOUT_S", 1.0)
        local.scale(0)
        wait_until(lambda: not local.scheduler.workers)
        with pytest.raises(ClusterError, match="map: the cluster has had no worker for 1 s"):
            next(OnCluster(client).map(len, ["a"]))


def test_a_cluster_that_adapts_to_its_load_starts_workers_for_data():
    with threads(n_workers=0) as (local, client):
        local.adapt(minimum=0, maximum=1, interval="100ms")
        assert list(OnCluster(client).map(len, ["a", "bb"])) == [1, 2]


def test_data_that_were_on_their_way_at_an_interruption_do_not_stay():
    def interrupt():
        if begun.is_set():
            raise KeyboardInterrupt

    with threads() as (local, _):
        scatter, begun = local.scheduler.handlers["scatter"], threading.Event()

        async def slow(**message):
            begun.set()
            await asyncio.sleep(2.0)
            return await scatter(**message)

        local.scheduler.handlers["scatter"] = slow
        with Client(local, set_as_default=False) as other, pytest.raises(KeyboardInterrupt):
            watch.Watch(other, "map", interrupt).send("data")
        wait_until(lambda: not local.scheduler.tasks, 20)
        assert other.id not in local.scheduler.clients


def test_results_that_another_client_cancels_end_a_pass_with_the_reason():
    with threads() as (local, client), Client(local, set_as_default=False) as other:

        def cancel(index):
            if index == 3:
                keys = [key for key in local.scheduler.tasks if key.startswith("pass")]
                other.cancel([distributed.Future(key, other) for key in keys], force=True)

        with pytest.raises(
            ClusterError, match="pass: results of its tasks were cancelled, by another client"
        ):
            OnCluster(client).reduce(int, [("1",)] * 20, sum, 20, cancel, "pass")


def test_data_wait_for_a_worker_that_is_paused(monkeypatch, caplog):
    """As workers are whose memory is short."""
    monkeypatch.setattr(watch, "REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr(watch, "PAUSED_S", 0.4)
    # Otherwise, the worker would set its status by its memory.
    with dask.config.set({"distributed.worker.memory.pause": False}), threads(n_workers=1) as (local, client):
        statuses = []

        async def set_status(status):
            statuses.append(status)
            (worker,) = local.workers.values()
            worker.status = status

        local.sync(set_status, Status.paused)
        wait_until(lambda: not local.scheduler.running)
        threading.Timer(2.0, local.sync, [set_status, Status.running]).start()
        assert list(OnCluster(client).map(len, ["a", "bb"])) == [1, 2]
        assert statuses == [Status.paused, Status.running]
        named = "as workers are paused until they have memory: tcp://"
        found = [each.getMessage() for each in caplog.records if named in each.getMessage()]
        assert 1 <= len(found) <= 3
        assert all(each.startswith("map: no worker has received data for ") for each in found)
        local.sync(set_status, Status.paused)
        wait_until(lambda: not local.scheduler.running)
        monkeypatch.setattr(watch, "STALL_TIMEOUT_S", 1.0)
        with pytest.raises(
            ClusterError, match="received data for 1 s, as workers are paused until they have memory: tcp:"
        ):
            next(OnCluster(client).map(len, ["a"]))


def test_a_paused_worker_on_which_tasks_wait_is_named(monkeypatch, caplog):
    monkeypatch.setattr(watch, "PAUSED_S", 0.4)
    with dask.config.set({"distributed.worker.memory.pause": False}), threads(n_workers=1) as (local, client):

        async def set_status(status):
            (worker,) = local.workers.values()
            worker.status = status

        local.sync(set_status, Status.paused)
        wait_until(lambda: not local.scheduler.running)
        threading.Timer(4.0, local.sync, [set_status, Status.running]).start()
        assert reduced(OnCluster(client), [0.0] * 3) == 3
    (first, *others) = [each.getMessage() for each in caplog.records if "are paused" in each.getMessage()]
    assert first.startswith("pass: no worker has finished a task for ")
    assert len(others) < 3


def test_results_of_children_are_released_once_their_parent_has_its_own():
    submitted = []

    def submit(node, parts):
        submitted.append((node.level, len(parts)))
        return node

    tree = Reduction(5, 4, submit)
    tree.submit_leaves(5)
    while tree.flying:
        future, node = next(iter(tree.flying.items()))
        del tree.flying[future]
        tree.finished(node, future)
    # The fifth leaf is the only child of its parent, and is its result.
    assert submitted == [*[(0, 0)] * 5, (1, 4), (2, 2)]
    assert [len(of_level) for of_level in tree.ready] == [0, 0, 1]


def test_a_result_that_is_lost_with_the_data_of_its_task_is_made_again(monkeypatch):
    with threads(n_workers=1) as (local, client):
        fetch, closed = distributed.Future.result, []

        def lose(future):
            if not closed:
                closed.extend(local.workers.values())
                local.sync(closed[0].close)
                local.scale(2)
            return fetch(future)

        monkeypatch.setattr(distributed.Future, "result", lose)
        assert list(OnCluster(client).map(len, ["a", "bb"])) == [1, 2]
        assert len(closed) == 1


def test_a_worker_that_leaves_while_versions_are_checked_is_no_error(monkeypatch):
    with threads() as (_, client):
        run = client.run
        left = {"tcp://gone": CommClosedError("Stream is closed")}
        monkeypatch.setattr(client, "run", lambda *arguments, **options: run(*arguments, **options) | left)
        OnCluster(client).check()
        left["tcp://gone"] = ImportError("no distmom")
        with pytest.raises(ClusterError, match="worker tcp://gone: cannot run this distmom: no distmom"):
            OnCluster(client).check()


def _ones():
    return np.ones(5)


def _total(values):
    return float(values.sum())


def test_what_is_lost_before_the_scheduler_has_it_is_made_again(monkeypatch):
    with threads() as (local, client):
        executor, ask, lost = OnCluster(client), client.run_on_scheduler, []

        def lose(function, **options):
            if "key" not in options or lost:
                return ask(function, **options)
            for worker in list(local.workers.values()):
                lost.append(worker)
                local.sync(worker.close)
            found = ask(function, **options)
            local.scale(2)
            return found

        monkeypatch.setattr(client, "run_on_scheduler", lose)
        assert executor.on_scheduler(_total, _ones) == 5.0
        assert len(lost) == 1
        monkeypatch.setattr(client, "run_on_scheduler", lambda function, **options: None)
        with pytest.raises(ClusterError, match="was lost 4 times with its worker"):
            executor.on_scheduler(_total, _ones)
