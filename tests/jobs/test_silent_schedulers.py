"""Requests of jobs to a scheduler that accepts connections and does not answer."""

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from clusters import scheduler

import distmom
from distmom.engine.executors import connections, watch
from distmom.errors import ClusterError
from distmom.jobs import Job, list_jobs, submission

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@contextmanager
def silenced(process, monkeypatch, limit_s):
    """Stop a scheduler within the block, which accepts connections still, and limit the wait for its replies."""
    monkeypatch.setattr(watch, "SILENCE_TIMEOUT_S", limit_s)
    monkeypatch.setattr(watch, "REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr(connections, "CLOSE_TIMEOUT_S", 1.0)
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def ended(function, *arguments):
    """Return the error of a call in a thread, which has 30 seconds."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function, *arguments).exception(timeout=30)


def test_jobs_of_a_scheduler_that_has_fallen_silent_are_not_waited_for(tmp_path, monkeypatch):
    with scheduler(tmp_path) as (address, process):

        @contextmanager
        def connected(*arguments, **options):
            with connections.connected(*arguments, **options) as client, silenced(process, monkeypatch, 2.0):
                yield client

        monkeypatch.setattr(submission, "connected", connected)
        error = ended(list_jobs, tmp_path, address)
    assert isinstance(error, ClusterError)
    assert "the scheduler has not answered for 2 s" in str(error)


def test_a_job_is_named_where_its_scheduler_falls_silent_once_it_was_submitted(tmp_path, monkeypatch):
    with ExitStack() as stack:
        address, process = stack.enter_context(scheduler(tmp_path))
        start = Job.start

        def started(*arguments):
            start(*arguments)
            stack.enter_context(silenced(process, monkeypatch, 2.0))

        monkeypatch.setattr(Job, "start", started)
        # Its driver finds no corpus, later.
        fit = ["fit", str(tmp_path / "none"), str(tmp_path / "m")]
        error = ended(lambda: distmom.submit(fit, scheduler=address, directory=tmp_path / "job"))
        assert isinstance(error, ClusterError)
        assert f"the job in {tmp_path}/job was submitted, but " in str(error)
        assert "the scheduler has not answered for 2 s" in str(error)
        assert (tmp_path / "job" / "job.json").exists()
