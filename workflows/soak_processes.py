"""The processes of a leg of the soak: they are started, found by a mark in their environment, and measured."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

#: environment variable that all processes of a leg have
MARK = "DISTMOM_SOAK"


def marked(mark: str) -> list[int]:
    """Return the processes of a leg that are running."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def _is_worker(process: psutil.Process) -> bool:
    """Whether a process was started by a nanny."""
    line = " ".join(process.cmdline())
    return "multiprocessing" in line and "resource_tracker" not in line and "forkserver" not in line


def workers_of(driver: int, mark: str) -> list[psutil.Process]:
    """Return the worker processes of a leg."""
    found = []
    for pid in marked(mark):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if pid != driver and _is_worker(process):
                found.append(process)
    return found


@contextmanager
def running(log: Path, environment: Mapping[str, str], *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of Python until the block ends; a context manager."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], stdout=out, stderr=out, env=dict(environment), cwd=log.parent
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def cluster(place: Path, environment: Mapping[str, str]) -> Iterator[tuple[str, list[Any]]]:
    """Run a scheduler and two workers with nannies; yield the address and the processes, scheduler first."""
    record = place / "scheduler.json"
    record.unlink(missing_ok=True)
    with ExitStack() as stack:
        # The scheduler chooses its port: another process may take a port that is free now.
        host = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(record))
        processes = [
            stack.enter_context(running(place / "scheduler.txt", environment, "dask", "scheduler", *host))
        ]
        address = _address_in(record)
        work = ("--nworkers", "1", "--nthreads", "1", "--no-dashboard")
        for number in range(2):
            log = place / f"worker-{number}.txt"
            processes.append(stack.enter_context(running(log, environment, "dask", "worker", address, *work)))
        yield address, processes


def _address_in(record: Path, timeout_s: float = 60.0) -> str:
    """Wait for the file of a scheduler, and return its address."""
    ends = time.monotonic() + timeout_s
    while True:
        with suppress(FileNotFoundError, json.JSONDecodeError):
            return str(json.loads(record.read_text())["address"])
        if time.monotonic() > ends:
            raise TimeoutError(f"no scheduler has started within {timeout_s:.0f} s")
        time.sleep(0.05)


class Sampler:
    """Keeps the largest resident memory and number of descriptors of the processes of a leg, by role.

    Parameters
    ----------
    mark : str

    Attributes
    ----------
    peaks : dict of str to [float, int]
        Memory in MiB, and descriptors.
    """

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.peaks: dict[str, list[float]] = {}

    def sample(self) -> None:
        """Measure all processes of the leg once."""
        for pid in marked(self.mark):
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                line = " ".join(process.cmdline())
                role = (
                    "driver"
                    if "distmom.cli.main" in line
                    else "scheduler"
                    if "dask scheduler" in line
                    else ""
                )
                role = role or ("worker" if _is_worker(process) else "")
                if role:
                    peak = self.peaks.setdefault(role, [0.0, 0.0])
                    peak[0] = max(peak[0], process.memory_info().rss / 2**20)
                    peak[1] = max(peak[1], float(process.num_fds()))
