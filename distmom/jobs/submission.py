"""Submission of jobs to a Dask cluster; opening and listing of jobs."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from distributed import Client

from distmom.corpus.files.storage import FIRST, N_REQUESTS, ObjectStorage, is_url
from distmom.engine.directory.observation import Condition, Observation
from distmom.engine.executors import watch
from distmom.engine.executors.connections import certified, connected
from distmom.engine.executors.watch import Watch
from distmom.errors import ClusterError, StoreError, UsageError
from distmom.jobs.job import Job
from distmom.jobs.places import ObjectPlace
from distmom.jobs.record import find_job, jobs_place, new_record, write_record
from distmom.jobs.remote import INDEX, check_versions

_R = TypeVar("_R")

logger = logging.getLogger(__name__)


def submit(
    arguments: Sequence[str | os.PathLike[str]],
    *,
    scheduler: str,
    directory: str | os.PathLike[str] | None = None,
    share: float = 1.0,
    priority: int = 0,
    restarts: int = 0,
    driver: str = "scheduler",
    folder: str | os.PathLike[str] | None = None,
    url: str | None = None,
    ca_file: str | None = None,
    cert: str | None = None,
    key: str | None = None,
) -> Job:
    """Submit a command of distmom to a Dask cluster; it continues when this process ends.

    The command runs in a process on the scheduler's host, in the current directory, and its tasks run on the
    workers. Paths must be visible to all of them.

    Parameters
    ----------
    arguments : sequence of str or path-like
        A command (``fit``, ``update``, ``moments``, ``ingest``, ``predict``, ``transform`` or ``evaluate``)
        and its arguments, such as ``["fit", "corpus", "model", "-k", "100"]``.
    scheduler : str
        Address of a running Dask scheduler.
    directory : path-like, optional
        Directory of the job, which is created; by default one below ``$DISTMOM_JOBS``, or ``distmom-jobs`` here.
        With a URL, it is created where the driver runs, by default below ``distmom-jobs`` in ``folder``.
    share : float, default 1.0
        Share of the cluster relative to other jobs, more than 0 and at most 1.
    priority : int, default 0
        Jobs of a lower priority wait for those of a higher one.
    restarts : int, default 0
        How often the command is restarted after a failure of the cluster (exit code 5).
    driver : {"scheduler", "worker", "slurm"}, default "scheduler"
        Where the process of the command runs: on the scheduler's host, beside a worker under the supervision of a
        task, or in a job of SLURM, which ``sbatch`` submits from here.
    folder : path-like, optional
        Directory in which the command runs, such as one of the cluster; this one by default.
    url : str, optional
        ``s3://BUCKET/PREFIX``, below which the driver publishes the records of the job, so that it can be
        managed without the file system of the cluster; by default one below ``$DISTMOM_JOBS`` if that is a URL.
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
        If the scheduler does not answer, or versions on the cluster differ. The message names a job that was
        submitted before the scheduler fell silent.
    """
    if driver == "here":
        raise UsageError(
            "driver: a job whose driver runs here is carried out by distmom submit --driver here"
        )
    tls = {"ca_file": ca_file, "cert": cert, "key": key}
    record = new_record(arguments, scheduler, share, priority, restarts, driver, tls, directory, folder, url)
    with certified(ca_file, cert, key), connected(scheduler) as client:
        check_versions(client)
        if record.url:
            ObjectPlace(record.url).create(record.dump())
        else:
            write_record(Path(record.run), record)
        try:
            job = Job(record.url or record.run)
            job.start(client)
        except BaseException:
            if record.url:
                ObjectPlace(record.url).remove()
            else:
                shutil.rmtree(record.run, ignore_errors=True)
            raise
        entry = {"place": record.url or record.run, "created": record.created}
        try:
            _asked(client, client.set_metadata, [*INDEX, record.id], entry)
        except ClusterError as error:
            raise ClusterError(f"the job in {entry['place']} was submitted, but {error}") from error
    return job


def open_job(job: str | os.PathLike[str]) -> Job:
    """Open a job by its directory or URL, or by its id in ``$DISTMOM_JOBS`` or ``distmom-jobs``."""
    return Job(find_job(job))


def list_jobs(directory: str | os.PathLike[str] | None = None, scheduler: str | None = None) -> list[Job]:
    """Return the jobs in a directory or below a URL, and those that a scheduler knows, in the order of their ids.

    Parameters
    ----------
    directory : path-like, optional
        ``$DISTMOM_JOBS``, or ``distmom-jobs`` here, by default.
    scheduler : str, optional
        Address of a scheduler that is asked for further jobs; none by default.

    Returns
    -------
    list of Job

    Raises
    ------
    ClusterError
        If the scheduler does not answer.
    """
    jobs = jobs_place(directory)
    places: set[str]
    if isinstance(jobs, str):
        places = {f"{jobs}/{name}" for name in ObjectStorage(jobs, FIRST).folders()}
    else:
        places = {str(path.parent) for path in jobs.glob("*/job.json")}
    if scheduler is not None:
        with connected(scheduler) as client:
            known = _asked(client, client.get_metadata, INDEX, default={})
        places |= {entry["place"] for entry in known.values()}
    with ThreadPoolExecutor(N_REQUESTS) as threads:
        found = [job for job in threads.map(_opened, places) if job is not None]
    # A published job may have been found by its directory, too.
    unique = {job.place.name: job for job in found}
    return sorted(unique.values(), key=lambda job: (job.record.created, job.id))


def _asked(client: Client, function: Callable[..., _R], *arguments: Any, **options: Any) -> _R:
    """Call a method of a client; a ClusterError if the scheduler does not answer in time."""
    return Watch(client, "jobs").call(function, *arguments, limit_s=watch.SILENCE_TIMEOUT_S, **options)


def _opened(place: str) -> Job | None:
    """Return the job at a place that may hold none, or something else; a warning names a damaged record."""
    if not is_url(place) and not (Path(place) / "job.json").exists():
        return None
    try:
        return Job(place)
    except UsageError:
        return None
    except StoreError as error:
        logger.warning("a job is left out of the list: %s", error)
        return None


def statuses(jobs: Iterable[Job], patience_s: float | None = None) -> list[dict[str, Any]]:
    """Return the states of jobs (see `Job.status`), which are observed at the same time.

    Jobs whose directories are removed meanwhile are left out.
    """
    observed = [(job, Observation(job.place.records, patience_s)) for job in jobs]
    with ThreadPoolExecutor(N_REQUESTS) as threads:
        while True:
            looks = threads.map(_looked, [observation for _, observation in observed])
            found = [(job, each) for (job, _), each in zip(observed, looks, strict=True) if each is not None]
            if all(each.state != "unknown" for _, each in found):
                return [job.described(each) for job, each in found]
            time.sleep(max(job.place.look_s for job, _ in observed))


def _looked(observation: Observation) -> Condition | None:
    """Return the observed state of a job; None if its directory was removed."""
    try:
        return observation.look()
    except UsageError:
        return None
