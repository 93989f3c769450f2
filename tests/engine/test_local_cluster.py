"""Workers that distmom starts serve the process that started them; other hosts are reached with TLS alone."""

import multiprocessing
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack

import dask
import numpy as np
import pytest
from distributed import Client, Security
from distributed.comm import parse_address
from joblib.externals.loky import ProcessPoolExecutor
from packaging.version import Version

from distmom.corpus import from_arrays
from distmom.engine import open_executor
from distmom.engine.executors.connections import connected, insecure_allowed
from distmom.errors import ClusterError, UsageError

restarts = pytest.mark.skipif(
    Version(dask.__version__) < Version("2026.7"),
    reason="Dask before 2026.7 restarts workers that end before they are ready, for ever",
)


@pytest.fixture(scope="module")
def executor():
    with open_executor(workers=1) as executor:
        yield executor


def addresses(executor):
    """Return the addresses of the scheduler, the worker and its nanny."""
    info = executor.client.scheduler_info()
    return [info["address"], *info["workers"], *(worker["nanny"] for worker in info["workers"].values())]


def test_all_servers_listen_on_loopback_and_speak_tls(executor):
    for address in addresses(executor):
        scheme, place = parse_address(address)
        assert scheme == "tls"
        assert place.startswith("127.0.0.1:")


def test_the_dashboard_listens_on_loopback(executor):
    assert executor.dashboard.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("kind", ["plain", "other certificate"])
def test_a_client_without_the_certificate_is_refused(executor, kind):
    for address in addresses(executor)[:2]:
        if kind == "plain":
            where, security = address.replace("tls://", "tcp://"), None
        else:
            where, security = address, Security.temporary()
        with pytest.raises((OSError, TimeoutError)):
            Client(where, security=security, set_as_default=False, timeout=2.0)
    assert executor.client.submit(str, 3).result() == "3"


def test_bytes_that_are_not_tls_are_answered_with_nothing_of_dask(executor):
    for address in addresses(executor):
        host, port = parse_address(address)[1].split(":")
        with socket.create_connection((host, int(port)), timeout=5.0) as peer:
            peer.settimeout(5.0)
            peer.sendall(b"\x00" * 64)
            try:
                answer = peer.recv(4096)
            except ConnectionResetError:
                answer = b""
        # An alert of TLS has type 21, and nothing else is sent.
        assert answer[:1] in (b"", b"\x15")
        assert len(answer) < 16


@pytest.mark.parametrize(
    "address", ["tcp://192.0.2.1:8786", "192.0.2.1:8786", "tcp://0.0.0.0:1", "ws://[2001:db8::1]:8786"]
)
def test_another_host_is_refused_without_tls(address):
    with pytest.raises(UsageError, match="without TLS are refused"), connected(address, 1.0):
        pass


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "tcp://localhost:1", "tls://0.0.0.0:1", "tcp://no-such-host.invalid:1"]
)
def test_this_host_and_tls_are_not_refused(address):
    with pytest.raises(ClusterError, match="no scheduler answers"), connected(address, 1.0):
        pass


def test_tls_without_certificates_is_an_error_that_names_their_options():
    expected = pytest.raises(ClusterError, match="TLS needs certificates: expected --tls-ca-file")
    with expected, connected("tls://127.0.0.1:1", 1.0):
        pass


@pytest.mark.parametrize("how", ["argument", "context", "configuration"])
def test_a_connection_without_tls_may_be_asked_for(how):
    with ExitStack() as stack:
        if how == "context":
            stack.enter_context(insecure_allowed())
        elif how == "configuration":
            stack.enter_context(dask.config.set({"distmom.insecure": True}))
        with pytest.raises(ClusterError, match="no scheduler answers"):
            stack.enter_context(
                connected("tcp://0.0.0.0:1", 1.0, insecure=True if how == "argument" else None)
            )


@restarts
def test_workers_that_end_before_they_are_ready_are_an_error_of_the_cluster(tmp_path):
    (tmp_path / "ends.py").write_text("import os\nos._exit(3)\n")
    with (
        dask.config.set({"distributed.worker.preload": [str(tmp_path / "ends.py")]}),
        pytest.raises(ClusterError, match="the worker processes did not start"),
        open_executor(workers=1),
    ):
        pass


@restarts
def test_a_script_without_a_guard_is_told_what_it_needs(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from distmom.engine import open_executor\nwith open_executor(workers=1):\n    print('open')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stdout == ""
    found = [line for line in done.stderr.splitlines() if line.startswith("distmom.errors.")]
    assert [line.partition(":")[0] for line in found] == [
        "distmom.errors.UsageError",
        "distmom.errors.ClusterError",
    ]
    assert all(line.endswith("under `if __name__ == '__main__':`") for line in found)


def opened():
    """Start a worker in a process that another one has started."""
    with open_executor(workers=1) as executor:
        return executor.n_threads


@pytest.mark.parametrize("kind", ["daemonic", "one of loky"])
def test_a_process_that_cannot_have_children_is_refused_as_their_parent(kind):
    with multiprocessing.get_context("spawn").Pool(1) as pool, ProcessPoolExecutor(1) as executor:
        result = pool.apply_async(opened).get if kind == "daemonic" else executor.submit(opened).result
        with pytest.raises(UsageError, match=f"cannot start workers, as it is {kind}: use threads"):
            result()


#: interrupts all processes of its group while workers start, and while they fit, and repeats the fit on both
INTERRUPTED = """
import multiprocessing, os, signal, sys, threading
from distmom import SpectralLDA, open_corpus
from distmom.corpus import from_arrays
from distmom.engine import open_executor

def interrupt_soon(seconds):
    threading.Timer(seconds, os.killpg, (0, signal.SIGINT)).start()

def fitted(**where):
    return SpectralLDA(2, max_df=1.0, random_state=0).fit_corpus(corpus, **where).components_.tobytes()

if __name__ == "__main__":
    corpus = open_corpus(sys.argv[1])
    interrupt_soon(0.5)
    try:
        with open_executor(workers=1):
            print("not interrupted")
    except KeyboardInterrupt:
        print("interrupted while it opens,", len(multiprocessing.active_children()), "left")
    with open_executor(workers=1) as executor:
        reduce = executor.reduce
        def interrupted(*arguments, **options):
            # Once, as several passes may begin before the interrupt comes.
            executor.reduce = reduce
            interrupt_soon(0.2)
            return reduce(*arguments, **options)
        executor.reduce = interrupted
        try:
            fitted(client=executor)
        except KeyboardInterrupt:
            print("interrupted while it fits")
        print(fitted(client=executor) == fitted())
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.cluster
def test_an_interrupted_group_of_processes_keeps_its_workers_and_the_fit_can_be_repeated(tmp_path):
    rng = np.random.default_rng(0)
    from_arrays(tmp_path / "c", rng.poisson(0.5, (300, 20)).astype(np.int32), shard_documents=100)
    (tmp_path / "script.py").write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", tmp_path / "c"],
        capture_output=True, text=True, timeout=120, start_new_session=True, check=False,
        # A process started in the background may have been reported to ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.splitlines() == [
        "interrupted while it opens, 0 left",
        "interrupted while it fits",
        "True",
        "True",
    ]
