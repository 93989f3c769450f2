"""Functions that run on the host of a scheduler: they start, end and find the drivers of jobs.

The functions with an argument ``dask_scheduler`` run in the process of the scheduler; only texts and numbers are
sent to them.
"""

from __future__ import annotations

import logging
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import distributed
import distributed.worker
from distributed import Client, Future

from distmom.corpus.files.records import MAX_RECORD_BYTES
from distmom.corpus.files.storage import FIRST, ObjectStorage
from distmom.engine.directory import epochs
from distmom.engine.directory.epochs import End, Owner, put_once
from distmom.engine.executors import watch
from distmom.engine.executors.watch import Watch
from distmom.errors import ClusterError, DistmomError, UsageError
from distmom.jobs.publisher import Publisher, publish_rest
from distmom.jobs.record import parse_record, read_record

_R = TypeVar("_R")

logger = logging.getLogger(__name__)

#: packages whose versions must be the same on scheduler and workers
PACKAGES = ("distmom", "numpy", "scipy", "numba", "zarr")
#: seconds within which workers are stopped, and others have taken their places
RESTART_TIMEOUT_S = 30.0
#: place of the index of jobs in the metadata of a scheduler
INDEX = ["distmom", "jobs"]


def check_versions(client: Client) -> None:
    """Check that scheduler and workers have the same versions, and the same distmom as this process.

    Raises
    ------
    ClusterError
        With a table of the versions, if they differ or the scheduler lacks distmom.
    """
    found = Watch(client, "cluster").call(
        client.get_versions, packages=list(PACKAGES), limit_s=watch.SILENCE_TIMEOUT_S
    )
    rows = {"scheduler": _versions(found["scheduler"])}
    rows |= {address: _versions(each) for address, each in sorted(found["workers"].items())}
    here = _versions(found["client"])
    expected = rows["scheduler"]
    differ = any(row != expected for row in rows.values())
    if differ or here["distmom"] != expected["distmom"]:
        table = _table({**rows, "here": here})
        raise ClusterError(
            f"expected the same versions on scheduler and workers, and of distmom here, got\n{table}"
        )


def _versions(reported: Mapping[str, Any]) -> dict[str, str]:
    if not reported:
        return dict.fromkeys(("python", *PACKAGES), "unknown")
    python = ".".join(str(reported["host"]["python"]).split(".")[:2])
    return {"python": python, **{name: str(reported["packages"].get(name)) for name in PACKAGES}}


def _table(rows: Mapping[str, Mapping[str, str]]) -> str:
    """Return versions as lines of aligned columns."""
    names = list(next(iter(rows.values())))
    cells = [["", *names], *([place, *(row[name] for name in names)] for place, row in rows.items())]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names) + 1)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def on_scheduler(client: Client, function: Callable[..., _R], **arguments: Any) -> _R:
    """Call a function of this module in the process of the scheduler; a ClusterError if that is impossible."""
    try:
        found: _R = Watch(client, "job").call(
            client.run_on_scheduler, function, limit_s=watch.SILENCE_TIMEOUT_S, **arguments
        )
    except (ImportError, AttributeError) as error:
        raise ClusterError(f"the scheduler cannot run this distmom: {error}") from error
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise ClusterError(
            f"the scheduler refuses to run functions: {error}; try --driver worker or slurm"
        ) from error
    return found


def start_driver(dask_scheduler: Any, run: str, options: Sequence[str] = (), record: str = "") -> int:
    """Start the driver of a job as a process of its own on this host, and return its process id.

    ``options`` are those of ``distmom jobs run``. With the content of ``job.json`` as ``record``, the directory of
    the job is created.
    """
    process = started(Path(run), options, record)
    threading.Thread(target=_watched, args=(process, Path(run)), name="distmom-driver", daemon=True).start()
    return process.pid


def started(
    place: Path, options: Sequence[str], record: str = "", **variables: str
) -> subprocess.Popen[bytes]:
    """Start the driver of a job on this host, with further variables of its environment.

    With a record, the directory of the job is created, once this host has found the record where it is published.
    """
    check_place(str(place), record)
    if record:
        create_directory(place, record)
    (place / "epochs").mkdir(exist_ok=True)
    with open(place / "out.txt", "ab") as out:
        process = subprocess.Popen(
            driver_line(place, options), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True, env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
        )  # fmt: skip
    # A driver works without the record, if its directory was removed or its disk is full.
    with suppress(OSError):
        epochs.record_start(place, process.pid)
    # The store may take its time, and the event loop of a scheduler must not wait for it.
    threading.Thread(target=_announced, args=(place,), name="distmom-announcer", daemon=True).start()
    return process


def _announced(place: Path) -> None:
    """Publish which process was started as the driver, if the job is published; errors are logged."""
    try:
        if url := read_record(place).url:
            Publisher(place, url).publish_start()
    except (DistmomError, OSError) as error:
        logger.warning("%s: the start of the driver was not published: %s", place, error)


def check_place(run: str, record: str = "") -> None:
    """Check that this host sees the directory of a job, or its published record.

    Raises
    ------
    UsageError, StoreError
        If it does not.
    """
    if record:
        check_published(record)
    elif not (Path(run) / "job.json").exists():
        raise UsageError(
            f"{run}: host {socket.gethostname()} does not see this directory; use one on a common file system"
        )


def check_workers(client: Client, run: str, record: str = "") -> None:
    """Check the place of a job on all workers, as `check_place` does."""
    # The error of a driver that is started by a task would be seen by nobody.
    found = Watch(client, "job").call(
        client.run, check_place, run, record, on_error="return", limit_s=watch.SILENCE_TIMEOUT_S
    )
    for error in found.values():
        if isinstance(error, DistmomError):
            raise error


def check_published(record: str) -> None:
    """Check that this host can read the published record of a job, and has the folder in which the job runs.

    Raises
    ------
    UsageError, StoreError
        If it cannot, or has not.
    """
    parsed, host = parse_record(record.encode(), "job.json"), socket.gethostname()
    if ObjectStorage(parsed.url, FIRST).read_bytes("job.json", MAX_RECORD_BYTES) != record.encode():
        raise UsageError(f"{parsed.url}: host {host} finds another job there")
    if not Path(parsed.folder).is_dir():
        raise UsageError(f"{parsed.folder}: host {host} has no such directory; specify one with --folder")


def create_directory(place: Path, record: str) -> None:
    """Create the directory of a job on this host, unless it exists; a UsageError if it is that of another job."""
    content = record.encode()
    try:
        place.mkdir(parents=True, exist_ok=True)
        is_other = not put_once(place / "job.json", content) and (place / "job.json").read_bytes() != content
    except OSError as error:
        raise UsageError(f"{place}: {error.strerror} on host {socket.gethostname()}") from error
    if is_other:
        raise UsageError(f"{place}: is the directory of another job on host {socket.gethostname()}")


def driver_options(scheduler: str | None, tls: Mapping[str, str | None]) -> list[str]:
    """Return the options of ``distmom jobs run`` for an address and certificates other than those of the record.

    ``tls`` has the names of `distmom.engine.executors.connections.certified`.
    """
    flags = {"ca_file": "--tls-ca-file", "cert": "--tls-cert", "key": "--tls-key"}
    options = [] if scheduler is None else ["--scheduler", scheduler]
    for name, path in tls.items():
        options += [] if path is None else [flags[name], str(Path(path).absolute())]
    return options


def driver_line(place: Path, options: Sequence[str]) -> list[str]:
    """Return the command line that carries out a job."""
    return [sys.executable, "-m", "distmom.cli.main", "jobs", "run", str(place), *options]


def await_end(process: subprocess.Popen[bytes], place: Path) -> int:
    """Wait for a driver, record the end of one that has not begun its first epoch, and return its exit code."""
    code = process.wait()
    if epochs.latest_epoch(place) == 0:
        text = f"the driver ended before it had begun: see {place / 'out.txt'}"
        epochs.write_end(place, 0, End("failed", code or 1, "ClusterError", text))
    if url := read_record(place).url:
        publish_rest(place, url)
    return code


def _watched(process: subprocess.Popen[bytes], place: Path) -> None:
    """Wait for a driver as `await_end` does, in a thread of its own; errors are logged."""
    try:
        await_end(process, place)
    except (DistmomError, OSError) as error:
        logger.warning("%s: the end of the driver could not be recorded: %s", place, error)


def supervise_driver(run: str, options: Sequence[str] = (), record: str = "") -> None:
    """Carry a job out in a process beside a worker; a task, which ends the process when it is cancelled."""
    worker, key = distributed.get_worker(), distributed.worker.thread_state.key
    # It only waits, so it must not occupy a thread of the worker.
    distributed.secede()
    process = started(Path(run), options, record)
    try:
        while process.poll() is None:
            task = worker.state.tasks.get(key)
            if task is None or task.state in ("cancelled", "released"):
                process.terminate()
            time.sleep(epochs.LOOK_S / 4)
    finally:
        if process.poll() is None:
            process.terminate()
        await_end(process, Path(run))


def submit_to_slurm(place: Path, name: str, options: Sequence[str], record: str = "") -> None:
    """Submit a driver to SLURM, with the settings in the variables ``SBATCH_*`` of this process."""
    if record:
        check_published(record)
        create_directory(place, record)
    line = shlex.join(driver_line(place, options))
    command = ["sbatch", "--parsable", f"--job-name={name}", f"--output={place / 'out.txt'}"]
    command += ["--open-mode=append", "--wrap", f"exec {line}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"sbatch: the driver could not be submitted: {error}") from error
    if done.returncode != 0:
        raise ClusterError(f"sbatch: the driver could not be submitted: {done.stderr.strip()}")


def signal_driver(dask_scheduler: Any, run: str, owner: dict[str, Any], number: int) -> bool:
    """Send a signal to a driver, and return whether it is, or was, a process of this host."""
    return send_signal(run, Owner(**owner), number)


def signal_beside(run: str, owner: dict[str, Any], number: int) -> bool:
    """Send a signal from a worker, as `signal_driver` does from the scheduler."""
    return send_signal(run, Owner(**owner), number)


def signal_anywhere(client: Client, run: str, owner: Owner, number: int) -> bool:
    """Send a signal to a driver from the scheduler or a worker on its host; return whether there is one."""
    arguments = {"run": run, "owner": asdict(owner), "number": int(number)}
    # A scheduler that refuses calls may have workers that do not.
    with suppress(ClusterError):
        if on_scheduler(client, signal_driver, **arguments):
            return True
    found = Watch(client, "job").call(
        client.run, signal_beside, on_error="ignore", limit_s=watch.SILENCE_TIMEOUT_S, **arguments
    )
    return any(found.values())


def send_signal(run: str, owner: Owner, number: int) -> bool:
    """Send a signal to the driver of a job if it is one of this host, and return whether it is, or was.

    A request to end the job, which may be in an object store, is copied to its directory before.
    """
    if not owner.is_here:
        return False
    if not owner.is_gone:
        epochs.request_cancel(Path(run))
        # It may have ended meanwhile, at the request.
        with suppress(ProcessLookupError):
            os.kill(owner.pid, number)
    return True


def holders(dask_scheduler: Any, name: str) -> list[str]:
    """Return the addresses of the workers that run tasks of the clients whose names contain a text."""
    found = set()
    for key, client in dask_scheduler.clients.items():
        if name in key:
            found |= {task.processing_on.address for task in client.wants_what if task.processing_on}
    return sorted(found)


def remove_task(client: Client, key: str) -> None:
    """Remove a task from the scheduler, whoever wants its result."""
    Watch(client, "cancel").call(
        client.cancel, [Future(key, client)], force=True, limit_s=watch.SILENCE_TIMEOUT_S
    )


def restart(client: Client, workers: Sequence[str]) -> list[str]:
    """Restart workers, and return the addresses of those on the cluster that were not restarted."""
    if not workers:
        return []
    watched = Watch(client, "cancel")
    known = watched.call(client.scheduler_info, n_workers=-1, limit_s=watch.SILENCE_TIMEOUT_S)["workers"]
    chosen = [address for address in workers if known.get(address, {}).get("nanny")]
    found: dict[str, str] = {}
    if chosen:
        found = watched.call(
            client.restart_workers, chosen, timeout=RESTART_TIMEOUT_S, raise_for_error=False,
            limit_s=watch.SILENCE_TIMEOUT_S,
        )  # fmt: skip
    return [address for address in workers if address in known and found.get(address) != "OK"]
