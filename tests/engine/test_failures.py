"""Clusters that are not what they should be: silent, standing still, idle, of other versions."""

import http.server
import importlib
import itertools
import os
import shutil
import signal
import socket
import threading
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from clusters import cluster_of_processes, scheduler, worker
from distributed import Client
from helpers import meanwhile, planted_corpus, random_corpus

import distmom
from distmom.corpus import from_arrays
from distmom.engine import open_engine, open_executor
from distmom.engine.environment import differing, environment
from distmom.engine.executors import stalled, watch
from distmom.errors import ClusterError
from distmom.models import MultiLabelMoM
from distmom.moments.documents.words import WordMomentsPass

pytestmark = pytest.mark.cluster


def opened_within(address, seconds):
    started = time.monotonic()
    with pytest.raises(ClusterError) as caught, open_executor(scheduler=address, connect_timeout_s=2.0):
        pass
    assert time.monotonic() - started < seconds
    return str(caught.value)


def test_a_port_that_never_answers_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        assert "expected a Dask scheduler, got no reply within 2 s" in opened_within(address, 10)


def test_a_web_server_is_refused():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            message = opened_within(f"tcp://127.0.0.1:{server.server_port}", 10)
        finally:
            server.shutdown()
            thread.join()
    assert "no scheduler answers" in message


def test_a_connection_that_is_closed_without_a_message_has_a_reason(monkeypatch):
    async def closed(address, **options):
        raise ConnectionResetError

    monkeypatch.setattr(watch, "connect", closed)
    message = opened_within("tcp://127.0.0.1:1", 10)
    assert message == "no scheduler answers at tcp://127.0.0.1:1: ConnectionResetError"


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["Worker", "Nanny"])
def test_the_address_of_a_worker_is_refused(cluster, kind):
    [(address, worker), *_] = cluster.scheduler_info()["workers"].items()
    message = opened_within(address if kind == "Worker" else worker["nanny"], 10)
    assert "expected the address of a Dask scheduler, got that of a process of type" in message
    assert message.endswith(kind)


def test_an_address_of_an_unknown_kind_is_refused():
    assert "no scheduler answers at no-such-kind://here" in opened_within("no-such-kind://here:1", 10)


def _wait(value):
    time.sleep(value)
    return value


@pytest.mark.slow
def test_a_scheduler_that_stands_still_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("distmom.engine.executors.connections.CLOSE_TIMEOUT_S", 2.0)
    with cluster_of_processes(tmp_path, 1) as (address, processes):
        stopped_at = []

        def stopped():
            with open_executor(scheduler=address) as executor:
                results = executor.map(_wait, iter([0, 600]))
                assert next(results) == 0
                # Not before: on a busy machine, a worker may take longer for its versions.
                monkeypatch.setattr(watch, "SILENCE_TIMEOUT_S", 2.0)
                monkeypatch.setattr(watch, "REQUEST_TIMEOUT_S", 0.5)
                processes[0].send_signal(signal.SIGSTOP)
                stopped_at.append(time.monotonic())
                next(results)

        with pytest.raises(ClusterError, match="map: the scheduler has not answered for 2 s"):
            stopped()
        assert time.monotonic() - stopped_at[0] < 30


@pytest.mark.slow
def test_a_worker_that_stands_still_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "STALL_TIMEOUT_S", 2.0)
    with cluster_of_processes(tmp_path, 1) as (address, processes):

        def stopped():
            with open_executor(scheduler=address) as executor:
                results = executor.map(_wait, iter([0, 600]))
                assert next(results) == 0
                processes[1].send_signal(signal.SIGSTOP)
                next(results)

        with pytest.raises(ClusterError, match="map: no task has finished for 2 s"):
            stopped()


def _stands_still_once(marker, how):
    """Freeze the process or sleep, but only where the marker does not exist yet."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return 7
    if how == "frozen":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
    return 0


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("how", "reported"), [("frozen", "has not reported its call stack"), ("asleep", "in _stands_still_once")]
)
def test_a_worker_that_stands_still_is_restarted_once(how, reported, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(watch, "STALL_TIMEOUT_S", 12.0)
    monkeypatch.setattr(stalled, "REPORT_TIMEOUT_S", 3.0)
    with (
        scheduler(tmp_path) as (address, _),
        worker(tmp_path, address, "nannied", "--nanny", PYTHONPATH=str(Path(__file__).parent)),
        open_executor(scheduler=address) as executor,
    ):
        marker = tmp_path / "marker"
        assert list(executor.map(partial(_stands_still_once, how=how), iter([marker]))) == [7]
    assert reported in caplog.text
    assert "map: restarted as no task had finished: tcp://127.0.0.1" in caplog.text


@pytest.mark.slow
def test_a_worker_that_stands_still_from_the_beginning_is_named(tmp_path, monkeypatch):
    # The scheduler, which starts at the same time, must answer within the time.
    monkeypatch.setattr(watch, "SILENCE_TIMEOUT_S", 10.0)
    with cluster_of_processes(tmp_path, 1) as (address, processes):
        processes[1].send_signal(signal.SIGSTOP)
        message = "cluster: a worker has not answered for 10 s"
        with pytest.raises(ClusterError, match=message), open_executor(scheduler=address):
            pass


class SlowClient:
    """Answers requests after a given number of seconds, one after the other."""

    status = "running"

    def __init__(self, *delays):
        self.delays = list(delays)

    def nthreads(self):
        time.sleep(self.delays.pop(0) if self.delays else 0.0)
        return {"worker": 1}


def test_silence_is_counted_from_the_first_request_without_an_answer(monkeypatch):
    """No requests are made while tasks finish one after the other, or while results are written."""
    monkeypatch.setattr(watch, "SILENCE_TIMEOUT_S", 1.0)
    monkeypatch.setattr(watch, "REQUEST_TIMEOUT_S", 0.2)
    one_late = watch.Watch(SlowClient(0.0, 0.5), "pass")
    time.sleep(1.2)
    assert one_late.call(_wait, 2.5) == 2.5
    silent = watch.Watch(SlowClient(0.0, *[5.0] * 9), "pass")
    with pytest.raises(ClusterError, match="pass: the scheduler has not answered for 1 s"):
        silent.call(_wait, 30.0)


class EndsAtTheWait(Future):
    """The result of a call that ends at the moment at which the wait for it ends."""

    def result(self, timeout=None):
        if timeout is not None and not self.done():
            self.set_result(7)
            raise TimeoutError
        return super().result(timeout)


def test_a_call_that_ends_when_the_wait_for_it_does_has_its_result(monkeypatch):
    watched = watch.Watch(SlowClient(0.0), "pass")
    future = EndsAtTheWait()
    monkeypatch.setattr(watch, "_in_thread", lambda function: future)
    with meanwhile(lambda: future.done() or future.set_result(7), 0.2):
        assert watched.call(int) == 7


def test_an_error_of_a_call_that_is_a_timeout_is_its_own():
    def fail():
        raise TimeoutError("of the call")

    with pytest.raises(TimeoutError, match="of the call"):
        watch.Watch(SlowClient(0.0), "pass").call(fail)


def test_time_in_which_the_process_was_suspended_does_not_count(monkeypatch):
    """A laptop that wakes up, or a virtual machine that was paused, gives its cluster time to answer."""
    leaps = itertools.count(step=3600.0)
    clock = time.monotonic
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: clock() + next(leaps)))
    monkeypatch.setattr(watch, "LONGEST_LOOK_S", 0.01)
    monkeypatch.setattr(watch, "REQUEST_TIMEOUT_S", 0.2)
    watched = watch.Watch(SlowClient(0.0, 0.5, 0.5), "pass")
    assert watched.call(_wait, 2.5, limit_s=2.0) == 2.5


def _ones():
    return np.ones(3)


def _slow_sum(value, seconds):
    time.sleep(seconds)
    return float(value.sum())


@pytest.mark.slow
def test_a_decomposition_outlasts_the_idle_timeout_of_its_scheduler(tmp_path):
    """Work on the scheduler node is not a task, so that the cluster is idle to Dask."""
    with (
        cluster_of_processes(tmp_path, 1, options=("--idle-timeout", "15s")) as (address, _),
        open_executor(scheduler=address) as executor,
    ):
        assert executor.idle_timeout_s() == 15.0
        assert executor.on_scheduler(_slow_sum, _ones, 24.0) == 3.0


def altered_package(directory):
    """Copy the package, with an additional comment in a module that no test here calls."""
    package = Path(distmom.__file__).parent
    shutil.copytree(package, directory / "distmom", ignore=shutil.ignore_patterns("__pycache__", "data"))
    with (directory / "distmom" / "evaluate" / "charts.py").open("a") as stream:
        stream.write("# another version\n")
    return str(directory)


def test_a_worker_with_another_distmom_is_refused_before_and_after_it_has_come(tmp_path):
    corpus = random_corpus()
    other = altered_package(tmp_path / "other")
    version = rf"{distmom.__version__}\+"
    expected = f"distmom: expected {version}{environment().distmom[-12:]}, got {version}"
    pass_ = WordMomentsPass(corpus.n_words, basis=np.eye(corpus.n_words, 3), rank=3)
    with (
        scheduler(tmp_path) as (address, _),
        # There is no worker to be asked yet.
        open_executor(scheduler=address) as executor,
        worker(tmp_path, address, "late", PYTHONPATH=other),
        open_engine(corpus, None, executor) as engine,
    ):
        with pytest.raises(ClusterError, match=expected):
            engine.run(pass_)
        with (
            pytest.raises(
                ClusterError, match=rf"worker tcp://\S+: other versions than the client: {expected}"
            ),
            open_executor(scheduler=address),
        ):
            pass


@pytest.mark.slow
def test_a_pass_that_a_worker_cannot_import_ends_with_the_name_of_the_module(tmp_path, monkeypatch):
    corpus = random_corpus()
    place = tmp_path / "only_here"
    place.mkdir()
    (place / "passes_of_the_client.py").write_text(
        "from distmom.moments.documents.words import WordMomentsPass\nclass OwnPass(WordMomentsPass):\n    pass\n"
    )
    with cluster_of_processes(tmp_path, 1) as (address, _):
        monkeypatch.syspath_prepend(place)
        own = importlib.import_module("passes_of_the_client").OwnPass
        with (
            open_executor(scheduler=address) as executor,
            open_engine(corpus, None, executor) as engine,
            pytest.raises(
                ClusterError, match=r"cannot read a task: ModuleNotFoundError.*passes_of_the_client"
            ),
        ):
            engine.run(own(corpus.n_words, basis=np.eye(corpus.n_words, 3), rank=3))


def test_versions_that_differ_are_named():
    versions = environment().versions()
    assert differing(versions, versions) == ""
    assert set(versions) == {"distmom", "python", "numpy", "scipy", "numba", "zarr", "machine"}
    for name in versions:
        assert differing(versions, {**versions, name: "0"}) == f"{name}: expected {versions[name]}, got 0"
    assert environment().processor
    assert "openblas" in environment().blas


#: writes the role and the process of whoever decomposes a tensor to a file
WITNESS = """
import os
from distmom.spectral.steps import components
from distmom.spectral.steps import core


def witnessed(function):
    def call(*arguments, **options):
        with open(os.environ["WITNESS"], "a") as stream:
            stream.write(f"{os.getpid()}\\n")
        return function(*arguments, **options)
    call.__module__, call.__qualname__ = function.__module__, function.__qualname__
    return call


components.decompose_moments = core.decompose_moments = witnessed(core.decompose_moments)
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["scheduler", "client"])
def test_the_decomposition_runs_where_it_is_asked_for(tmp_path, monkeypatch, place):
    """Scheduler, workers and client are processes of their own."""
    block = planted_corpus(600, d=120, n_labels=12, k=4, shard_documents=600)[2].read_shard(0)
    corpus = from_arrays(tmp_path / "c", block.words, block.labels, shard_documents=150)
    (tmp_path / "witness.py").write_text(WITNESS)
    monkeypatch.setenv("WITNESS", str(tmp_path / "pids"))
    from distmom.spectral.steps import components, core

    for module in (components, core):
        monkeypatch.setattr(module, "decompose_moments", core.decompose_moments)
    exec(WITNESS, {})
    with cluster_of_processes(tmp_path, 1, preload=tmp_path / "witness.py") as (address, processes):
        with Client(address, set_as_default=False) as client:
            MultiLabelMoM(4, head="posterior", decompose_on=place).fit_corpus(corpus, client=client)
        expected = {"scheduler": processes[0].pid, "client": os.getpid()}[place]
    assert {int(pid) for pid in (tmp_path / "pids").read_text().split()} == {expected}
