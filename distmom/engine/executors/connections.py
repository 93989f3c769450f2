"""Opening of executors: in this process, on worker processes that are started, or on a running scheduler."""

from __future__ import annotations

import ipaddress
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any

import dask
from distributed import Client, LocalCluster, Security
from distributed.comm import parse_address, parse_host_port
from distributed.comm.core import CommClosedError

from distmom.engine.executors.cluster import OnCluster
from distmom.engine.executors.executor import Executor, InProcess
from distmom.engine.executors.threads import on_threads
from distmom.engine.executors.watch import check_address, kept_alive, tls_files, touch
from distmom.errors import ClusterError, UsageError

#: freed memory that glibc keeps in the workers of our LocalCluster. With Dask's default all of it is returned
#: at once, and the kernel clears the pages of every large temporary array again
WORKER_ENVIRONMENT = {"MALLOC_TRIM_THRESHOLD_": 128 << 20, "MALLOC_MMAP_THRESHOLD_": 32 << 20}
#: seconds that closing a connection may take
CLOSE_TIMEOUT_S = 10.0
#: seconds between checks whether a new client has begun to connect
START_LOOK_S = 0.01


@contextmanager
def open_executor(
    client: Client | Executor | None = None,
    *,
    scheduler: str | None = None,
    workers: int = 0,
    threads: int = 1,
    memory_limit: int | None = None,
    connect_timeout_s: float = 20.0,
) -> Iterator[Executor]:
    """Open an executor, and on exit close everything opened for it; a context manager.

    Parameters
    ----------
    client : distributed.Client or Executor, optional
        Used and left open; not checked if it is an executor.
    scheduler : str, optional
        Address of a running scheduler; only the connection is closed on exit.
    workers : int, default 0
        Number of processes of a LocalCluster, which accept connections of this process alone; 0 runs tasks in
        this process.
    threads : int, default 1
        Number of threads of this process that run tasks; more than one need as many times the memory.
    memory_limit : int, optional
        Bytes that each process of the LocalCluster may use; Dask's "auto" by default.
    connect_timeout_s : float, default 20.0
        Seconds to wait for a scheduler.

    Raises
    ------
    UsageError
        If the client is something else or asynchronous, both a scheduler and a number of workers are given, or
        the scheduler is refused by `connected`.
    ClusterError
        If the scheduler does not answer, or a worker runs other versions than this process.
    """
    if isinstance(client, InProcess | OnCluster):
        yield client
    elif client is not None:
        if not isinstance(client, Client):
            raise UsageError(f"client: expected a distributed.Client, got {type(client).__name__}")
        if client.asynchronous:
            raise UsageError(
                "client: expected a distributed.Client that is not asynchronous, got one that is"
            )
        _await_start(client, connect_timeout_s)
        with _in_use(client) as executor:
            yield executor
    elif scheduler is not None:
        if workers:
            raise UsageError("specify either a scheduler or a number of workers, not both")
        with connected(scheduler, connect_timeout_s) as remote, _in_use(remote) as executor:
            yield executor
    elif workers:
        variables = {**dask.config.get("distributed.nanny.pre-spawn-environ"), **WORKER_ENVIRONMENT}
        with (
            dask.config.set({"distributed.nanny.pre-spawn-environ": variables}),
            _on_local_cluster(workers, memory_limit) as local,
            _in_use(local) as executor,
        ):
            yield executor
    elif threads > 1:
        with on_threads(threads) as executor:
            yield executor
    else:
        yield InProcess()


@contextmanager
def _on_local_cluster(n_workers: int, memory_limit: int | None) -> Iterator[Client]:
    """Start worker processes that SIGINT never reaches, and end them on exit; a context manager."""
    with ExitStack() as opened:
        with _interrupts_held_back():
            cluster = opened.enter_context(_local_cluster(n_workers, memory_limit))
            client = opened.enter_context(Client(cluster, set_as_default=False))
        try:
            yield client
        finally:
            # A second interrupt would leave processes behind.
            with _interrupts_held_back():
                opened.close()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold SIGINT back within the block, also from processes and threads that are started there, for ever.

    Ctrl-C in a terminal or a notebook reaches every process of the group, and each worker would print a traceback
    and end. Threads and processes inherit the mask; a signal that arrives meanwhile is delivered here at the end.
    """
    # The tracker would clear the mask if multiprocessing started it later.
    resource_tracker.ensure_running()
    handler, arrived = signal.getsignal(signal.SIGINT), threading.Event()
    # The mask is that of this thread alone. If the process has others, one of them receives the signal, but its
    # handler runs in the main thread.
    is_replaced = callable(handler) and threading.current_thread() is threading.main_thread()
    if is_replaced:
        signal.signal(signal.SIGINT, lambda *_: arrived.set())
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
        if is_replaced:
            signal.signal(signal.SIGINT, handler)
        if arrived.is_set():
            signal.raise_signal(signal.SIGINT)


def _local_cluster(n_workers: int, memory_limit: int | None) -> LocalCluster:
    """Start worker processes of one thread each; a ClusterError if one of them ends before it is ready."""
    # Set while a new process runs the script of its parent; multiprocessing itself refuses to start others then.
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        raise UsageError(
            "a process that is being started runs the script that started it, and cannot start workers itself: "
            "put the script's own code under `if __name__ == '__main__':`"
        )
    # The processes of joblib have a start method of their own, which their children would have to know.
    method = multiprocessing.get_start_method(allow_none=True)
    is_known = method is None or method in multiprocessing.get_all_start_methods()
    if process.daemon or not is_known:
        kind = "daemonic" if is_known else f"one of {method}"
        raise UsageError(
            f"the process {process.name} cannot start workers, as it is {kind}: use threads in it, or the client "
            "of a cluster that another process has started"
        )
    try:
        return LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            memory_limit=memory_limit or "auto",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
            # Access to a port of Dask allows running code as its user, and other users of the host can access
            # loopback.
            security=Security.temporary(),
        )
    except (RuntimeError, CommClosedError) as error:
        # With Python 3.13, a cluster that has not started fails to close, too.
        failure = error if isinstance(error, RuntimeError) else error.__context__ or error
        cause = failure.__cause__ or failure
        raise ClusterError(
            f"the worker processes did not start: {type(cause).__name__}: {cause}. In a script, the code that "
            "starts them must be under `if __name__ == '__main__':`"
        ) from error


@contextmanager
def connected(
    scheduler: str, connect_timeout_s: float = 20.0, *, insecure: bool | None = None
) -> Iterator[Client]:
    """Connect to a scheduler with the security of Dask's configuration; a context manager.

    Parameters
    ----------
    scheduler : str
        Address of the scheduler.
    connect_timeout_s : float, default 20.0
        Seconds to wait for it.
    insecure : bool, optional
        Also connect to another host without TLS. By default, the value of ``distmom.insecure`` in Dask's
        configuration, or False.

    Raises
    ------
    UsageError
        If it is no address, or leads to another host, without TLS, and ``insecure`` is False; or if TLS cannot
        use the certificates.
    ClusterError
        If the scheduler does not answer.
    """
    allowed = dask.config.get("distmom.insecure", False) if insecure is None else insecure
    if not allowed and _is_open(scheduler):
        raise UsageError(
            f"{scheduler}: connections to other hosts without TLS are refused, as everybody who reaches such a "
            "scheduler runs code on it: use tls://, or --insecure (distmom.insecure of Dask's configuration) in a "
            "network that you trust"
        )
    check_address(scheduler, connect_timeout_s)
    try:
        client = Client(scheduler, set_as_default=False, timeout=connect_timeout_s)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(f"no scheduler answers at {scheduler}: {error}") from error
    try:
        yield client
    finally:
        with suppress(TimeoutError, OSError):
            client.close(timeout=CLOSE_TIMEOUT_S)


def security_options(address: str) -> list[str]:
    """Return the options by which another command connects to an address as this process does."""
    if parse_address(address)[0] == "tls":
        return [word for option, path in tls_files() for word in (option, os.path.abspath(path))]
    return ["--insecure"] if dask.config.get("distmom.insecure", False) and _is_open(address) else []


def _is_open(address: str) -> bool:
    """Whether connections to an address leave this host and are not encrypted; a UsageError if it is none."""
    try:
        scheme, place = parse_address(address)
        if scheme not in ("tcp", "ws"):
            return False
        host, port = parse_host_port(place)
    except ValueError as error:
        raise UsageError(
            f"scheduler: expected an address such as tcp://HOST:8786, got {address!r}"
        ) from error
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        # No connection is made to a host without an address.
        return False
    return not all(ipaddress.ip_address(str(place[0]).split("%")[0]).is_loopback for *_, place in found)


@contextmanager
def insecure_allowed() -> Iterator[None]:
    """Allow connections to other hosts without TLS within the block; a context manager."""
    with dask.config.set({"distmom.insecure": True}):
        yield


@contextmanager
def sharing(name: str, share: float = 1.0, priority: int = 0) -> Iterator[None]:
    """Set how executors that are opened within the block share a cluster with others; a context manager.

    Parameters
    ----------
    name : str
        Part of the name of the client, by which its tasks can be found.
    share : float, default 1.0
        The number of tasks that are submitted at a time, relative to twice the number of threads.
    priority : int, default 0
        Tasks of a higher priority run before all tasks of a lower one.
    """
    with dask.config.set({"client-name": name, "distmom.share": share, "distmom.priority": priority}):
        yield


@contextmanager
def certified(ca_file: str | None, cert: str | None, key: str | None) -> Iterator[None]:
    """Encrypt connections that are opened within the block; a context manager.

    Parameters
    ----------
    ca_file, cert, key : str or None
        Paths of PEM files: certificate of the authority, certificate of the client, and its key. Those that are
        None are taken from Dask's configuration.
    """
    given = {"ca-file": ca_file, "client.cert": cert, "client.key": key}
    settings: dict[str, Any] = {
        f"distributed.comm.tls.{name}": path for name, path in given.items() if path is not None
    }
    if settings:
        settings["distributed.comm.require-encryption"] = True
    with dask.config.set(settings):
        yield


def _await_start(client: Client, timeout_s: float) -> None:
    """Wait until a client that another thread has created has begun to connect, or the time is up.

    Tasks that run in one worker share a client (`distributed.worker_client`), which the first of them creates.
    """
    ends = time.monotonic() + timeout_s
    while client.status == "newly-created" and time.monotonic() < ends:
        time.sleep(START_LOOK_S)


@contextmanager
def _in_use(client: Client) -> Iterator[OnCluster]:
    """Check the versions of the workers of a cluster, and keep its scheduler alive."""
    executor = OnCluster(client)
    # A scheduler that has been idle since its start may have little time left, and imports distmom to answer.
    touch(client)
    with kept_alive(client, executor.idle_timeout_s()):
        executor.check()
        yield executor
