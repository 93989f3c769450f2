"""Jobs are submitted to a Dask cluster, opened and listed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from distmom.engine import epochs
from distmom.engine.connections import certified, connected
from distmom.engine.observation import Condition, Observation
from distmom.errors import UsageError
from distmom.jobs.job import Job
from distmom.jobs.record import find_run, jobs_directory, new_record, write_record
from distmom.jobs.remote import INDEX, check_versions


def submit(
    arguments: Sequence[str],
    *,
    scheduler: str,
    directory: str | os.PathLike[str] | None = None,
    share: float = 1.0,
    priority: int = 0,
    restarts: int = 0,
    driver: str = "scheduler",
    ca_file: str | None = None,
    cert: str | None = None,
    key: str | None = None,
) -> Job:
    """Submit a command of distmom to a Dask cluster; it runs on when this process has ended.

    The command runs in a process on the scheduler's host, in the current directory, and its tasks run on the
    workers. Paths must be visible to all of them.

    Parameters
    ----------
    arguments : sequence of str
        A command (``fit``, ``update``, ``moments``, ``ingest``, ``predict``, ``transform`` or ``evaluate``)
        and its arguments, such as ``["fit", "corpus", "model", "-k", "100"]``.
    scheduler : str
        Address of a running Dask scheduler.
    directory : path-like, optional
        Directory of the job, which is created; by default one below ``$DISTMOM_JOBS``, or ``distmom-jobs`` here.
    share : float, default 1.0
        Share of the cluster relative to other jobs, more than 0 and at most 1.
    priority : int, default 0
        Jobs of a lower priority wait for those of a higher one.
    restarts : int, default 0
        How often the command is restarted after a failure of the cluster (exit code 5).
    driver : {"scheduler", "worker", "slurm"}, default "scheduler"
        Where the process of the command runs: on the scheduler's host, beside a worker under the supervision of a
        task, or in a job of SLURM, which ``sbatch`` submits from here.
    ca_file, cert, key : str, optional
        PEM files for a cluster with TLS: certificate of the authority, certificate of the client and its key;
        Dask's configuration by default.

    Returns
    -------
    Job

    Raises
    ------
    UsageError
        If the command cannot be submitted, or the directory is not empty.
    ClusterError
        If the scheduler does not answer, or versions on the cluster differ.
    """
    given = {"ca_file": ca_file, "cert": cert, "key": key}
    tls = {name: str(Path(path).absolute()) for name, path in given.items() if path is not None}
    if driver == "here":
        raise UsageError(
            "driver: a job whose driver runs here is carried out by distmom submit --driver here"
        )
    record = new_record(arguments, scheduler, share, priority, restarts, driver, tls)
    run = jobs_directory() / record.id if directory is None else Path(directory).absolute()
    with certified(ca_file, cert, key), connected(scheduler) as client:
        check_versions(client)
        write_record(run, record)
        job = Job(run)
        try:
            job.start(client)
        except BaseException:
            shutil.rmtree(run, ignore_errors=True)
            raise
        client.set_metadata([*INDEX, record.id], {"directory": str(run), "created": record.created})
    return job


def open_job(job: str | os.PathLike[str]) -> Job:
    """Open a job by its directory, or by its id in ``$DISTMOM_JOBS`` or ``distmom-jobs``."""
    return Job(find_run(job))


def list_jobs(directory: str | os.PathLike[str] | None = None, scheduler: str | None = None) -> list[Job]:
    """Return the jobs in a directory, and those that a scheduler knows, in the order of their ids.

    Parameters
    ----------
    directory : path-like, optional
        ``$DISTMOM_JOBS``, or ``distmom-jobs`` here, by default.
    scheduler : str, optional
        Address of a scheduler that is asked for further jobs; none by default.

    Returns
    -------
    list of Job
    """
    places: set[Path] = {path.parent for path in jobs_directory(directory).glob("*/job.json")}
    if scheduler is not None:
        with connected(scheduler) as client:
            known = client.get_metadata(INDEX, default={})
        places |= {Path(entry["directory"]) for entry in known.values()}
    found = [Job(place) for place in places if (place / "job.json").exists()]
    return sorted(found, key=lambda job: (job.record.created, job.id))


def statuses(jobs: Iterable[Job], patience_s: float | None = None) -> list[dict[str, Any]]:
    """Return the states of jobs (see `Job.status`), which are observed at the same time."""
    observed = [(job, Observation(job.directory, patience_s)) for job in jobs]
    found: dict[str, Condition] = {}
    while True:
        found |= {str(job.directory): one.look() for job, one in observed}
        if all(each.state != "unknown" for each in found.values()):
            return [job.described(found[str(job.directory)]) for job, _ in observed]
        time.sleep(epochs.LOOK_S / 4)
