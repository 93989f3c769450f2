"""Dask clusters: processes of their own, as a user would start them by hand, or threads of this process."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path

from distributed import Client, LocalCluster


@contextmanager
def running(log, *command, **environment):
    """Run a Python module until the block ends; what it prints goes to a file."""
    # Paths of the tests and of the package come first, unless the caller has another package in mind.
    path = os.pathsep.join([environment.pop("PYTHONPATH", ""), *sys.path, str(Path(__file__).parents[1])])
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], stdout=out, stderr=out, cwd=log.parent,
            env={**os.environ, **environment, "PYTHONPATH": path.lstrip(os.pathsep)},
        )  # fmt: skip
    try:
        yield process
    finally:
        for number in (signal.SIGCONT, signal.SIGTERM):
            process.send_signal(number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@contextmanager
def scheduler(directory, *options, **environment):
    """Run a scheduler; yield its address and its process."""
    # The scheduler chooses its port: another process may take a port that is free now.
    record = directory / f"scheduler-{uuid.uuid4().hex}.json"
    place = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(record))
    with running(
        directory / "scheduler.log", "dask", "scheduler", *place, *options, **environment
    ) as process:
        yield wait_until(lambda: _address_in(record)), process


def _address_in(record):
    """Return the address in the file of a scheduler, or None before it is written."""
    try:
        return json.loads(record.read_text())["address"]
    except (FileNotFoundError, json.JSONDecodeError):
        return None


@contextmanager
def worker(directory, address, name, *options, **environment):
    """Run a worker with one thread."""
    place = ("--nworkers", "1", "--nthreads", "1", "--no-nanny", "--no-dashboard", "--name", name)
    log = directory / f"{name}.log"
    with running(log, "dask", "worker", address, *place, *options, **environment) as process:
        yield process


@contextmanager
def cluster_of_processes(directory, n_workers=2, *, options=(), preload=None, **environment):
    """Run a scheduler and workers that have arrived; yield the address of the scheduler and all processes.

    ``preload`` is a module that the scheduler and the workers import first.
    """
    loaded = () if preload is None else ("--preload", str(preload))
    with ExitStack() as stack:
        address, first = stack.enter_context(scheduler(directory, *options, *loaded, **environment))
        processes = [first]
        for number in range(n_workers):
            one = worker(directory, address, f"worker-{number}", *loaded, **environment)
            processes.append(stack.enter_context(one))
        with Client(address, set_as_default=False, timeout=30) as client:
            client.wait_for_workers(n_workers, timeout=180)
        yield address, processes


def wait_until(condition, timeout_s=180.0):
    """Wait until a function returns something true, and return that."""
    ends = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < ends, "it did not come about in time"
        time.sleep(0.05)
    return found


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
