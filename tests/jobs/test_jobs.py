"""Jobs on a scheduler and workers that are processes of their own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from batch import needs_slurm, slurm
from clusters import cluster_of_processes, running, scheduler, wait_until, worker
from distributed import Client
from helpers import content, planted_corpus
from stores import free_port

import distmom
from distmom.cli.main import main
from distmom.corpus import from_arrays
from distmom.engine import open_executor
from distmom.engine.directory import epochs
from distmom.engine.directory.run_directory import committed_passes
from distmom.engine.executors.connections import sharing
from distmom.errors import ClusterError, UsageError
from distmom.jobs import Job, job, list_jobs, remote
from distmom.jobs.record import new_record, write_record

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

COMMAND = [sys.executable, "-m", "distmom.cli.main"]
MODEL = ("-k", "3", "--head", "posterior")
#: makes every task of a worker take a while
SLOW = """
import os, time
from distmom.engine import tasks


def slow(*arguments, accumulate=tasks._accumulate):
    time.sleep(float(os.environ.get("SLOW", 0.1)))
    return accumulate(*arguments)


# A worker may load this twice.
if tasks._accumulate.__name__ != "slow":
    tasks._accumulate = slow
"""
#: makes a driver that restarts stay for a while without handlers of signals
SLOW_RESTART = """
import sys, time

if "--restarted" in sys.orig_argv:
    open("restarted", "x").close()
    time.sleep(60)
"""
#: gives a scheduler drivers that never begin
IDLE = """
import sys
from distmom.jobs import remote

CODE = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"
remote.driver_line = lambda place, options: [sys.executable, "-c", CODE]
"""
#: hides the records of jobs from a worker
BLIND = """
from pathlib import Path


def exists(path, known=Path.exists):
    return path.name != "job.json" and known(path)


Path.exists = exists
"""


def planted_arrays():
    """Words and labels of a planted corpus."""
    block = planted_corpus(800, d=300, n_labels=12, k=3, shard_documents=800)[2].read_shard(0)
    return block.words, block.labels


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A corpus, and a model of it that was fitted in this process."""
    folder = tmp_path_factory.mktemp("jobs")
    from_arrays(folder / "corpus", *planted_arrays(), shard_documents=40)
    fit = ["fit", str(folder / "corpus"), str(folder / "local"), *MODEL, "--workers", "0", "--quiet"]
    assert main(fit) == 0
    (folder / "slow.py").write_text(SLOW)
    return folder


@pytest.fixture(scope="module")
def cluster(place):
    with cluster_of_processes(place, 2, preload=place / "slow.py") as (address, _):
        yield address


def submitted(place, cluster, tmp_path, **options):
    fit = ["fit", str(place / "corpus"), str(tmp_path / "m"), *MODEL]
    return distmom.submit(fit, scheduler=cluster, directory=tmp_path / "job", **options)


def in_the_middle(found):
    """Wait until a pass is committed and another is running."""
    wait_until(
        lambda: any(found.directory.glob("passes/sketch-*/DONE.json")) or found.status()["state"] == "failed"
    )
    assert found.status()["state"] == "running", "\n".join(found.logs())
    return found.status()


def tasks_of(address):
    with Client(address, set_as_default=False, timeout=20) as client:
        return client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))


def test_a_job_outlives_the_client_that_has_submitted_it(place, cluster, tmp_path):
    command = ["submit", "fit", "corpus", str(tmp_path / "m"), *MODEL, "--scheduler", cluster, "--json"]
    environment = {**os.environ, "DISTMOM_JOBS": str(tmp_path / "jobs")}
    done = subprocess.run(
        [*COMMAND, *command],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    shown = json.loads(done.stdout)
    assert not (tmp_path / "m").exists()
    [found] = list_jobs(tmp_path / "jobs")
    assert (found.id, str(found.directory)) == (shown["id"], shown["directory"])
    assert [each.id for each in list_jobs(tmp_path, cluster) if each.id == found.id] == [found.id]
    lines = list(found.logs(follow=True))
    assert lines[0].startswith(f"fitting on 2 threads of {cluster}")
    assert lines[1].startswith("dashboard: http://127.0.0.1:")
    waited = subprocess.run([*COMMAND, "jobs", "wait", found.id], env=environment, timeout=240, check=False)
    assert waited.returncode == 0
    assert content(tmp_path / "m") == content(place / "local")
    status = found.status()
    assert (status["state"], status["exit_code"], status["epoch"]) == ("done", 0, 1)
    assert "pass" not in status
    # Nothing is left to be done.
    before = sorted(path.stat().st_mtime_ns for path in found.directory.rglob("*"))
    assert main(["jobs", "resume", str(found.directory)]) == 0
    assert main(["jobs", "run", str(found.directory)]) == 0
    assert sorted(path.stat().st_mtime_ns for path in found.directory.rglob("*")) == before


def test_a_job_that_is_cancelled_leaves_nothing_on_the_cluster_and_can_be_resumed(place, cluster, tmp_path):
    found = submitted(place, cluster, tmp_path)
    in_the_middle(found)
    started = time.monotonic()
    status = found.cancel()
    assert status["state"] == "cancelled", status
    wait_until(lambda: not tasks_of(cluster), 10)
    assert time.monotonic() - started < 10
    assert found.wait(1) == 130
    assert f"to resume: distmom resume {found.directory} --scheduler {cluster}" in list(found.logs())[-1]
    assert not (tmp_path / "m").exists()
    assert found.resume().wait(300) == 0
    assert content(tmp_path / "m") == content(place / "local")
    assert any(line.startswith("sketch: ") and line.endswith("found committed") for line in found.logs())


def test_a_driver_that_does_not_answer_is_killed_when_its_job_is_cancelled(
    place, cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr(job, "GRACE_S", 1.0)
    found = submitted(place, cluster, tmp_path)
    pid = in_the_middle(found)["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert found.cancel()["state"] == "cancelled"
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 5)
    wait_until(lambda: not tasks_of(cluster), 10)


def test_workers_that_run_tasks_of_a_cancelled_job_can_be_restarted(place, tmp_path):
    with scheduler(tmp_path) as (address, _):
        work = ("--nworkers", "1", "--nthreads", "1", "--no-dashboard", "--preload", str(place / "slow.py"))
        log = tmp_path / "worker.log"
        with (
            running(log, "dask", "worker", address, *work, SLOW="600"),
            Client(address, set_as_default=False) as client,
        ):
            client.wait_for_workers(1, timeout=180)
            found = submitted(place, address, tmp_path)
            [pid] = client.run(os.getpid).values()
            # Until the task has begun to sleep.
            wait_until(lambda: "in slow" in str(client.call_stack()))
            assert found.cancel(now=True)["state"] == "cancelled"
            client.wait_for_workers(1, timeout=180)
            wait_until(lambda: list(client.run(os.getpid).values()) not in ([], [pid]))
            assert client.submit(int, "3").result(timeout=180) == 3


def test_a_worker_without_nanny_that_runs_tasks_of_a_cancelled_job_is_named(place, cluster, tmp_path):
    found = submitted(place, cluster, tmp_path)
    with Client(cluster, set_as_default=False) as client:
        wait_until(lambda: "in slow" in str(client.call_stack()))
    with pytest.raises(
        ClusterError,
        match=r"the job was cancelled, but workers that have no nanny, .*, were not restarted: tcp://",
    ):
        found.cancel(now=True)
    assert found.status()["state"] == "cancelled"
    assert found.cancel(now=True)["state"] == "cancelled"


def test_a_job_whose_driver_was_killed_is_lost_and_has_the_same_bits_when_resumed(place, cluster, tmp_path):
    found = submitted(place, cluster, tmp_path)
    os.kill(in_the_middle(found)["pid"], signal.SIGKILL)
    wait_until(lambda: found.status()["state"] == "lost", 5)
    assert found.status()["resume"] == f"distmom jobs resume {found.directory}"
    assert found.wait() == 5
    assert found.resume().wait(300) == 0
    assert found.status()["epoch"] == 2
    assert content(tmp_path / "m") == content(place / "local")
    assert "is no longer running" in "\n".join(found.logs())


def test_a_job_runs_on_another_cluster_when_its_scheduler_was_killed(place, tmp_path):
    with cluster_of_processes(tmp_path, 1, preload=place / "slow.py") as (address, processes):
        found = submitted(place, address, tmp_path)
        in_the_middle(found)
        processes[0].kill()
        assert found.wait(240) == 5, "\n".join(found.logs())
        status = found.status()
        assert (status["state"], status["exit_code"]) == ("failed", 5)
        assert status["error"].startswith("ClusterError: ")
    with pytest.raises(ClusterError, match="no scheduler answers"):
        found.resume()
    other = tmp_path / "other"
    other.mkdir()
    with cluster_of_processes(other, 2, preload=place / "slow.py") as (address, _):
        assert found.resume(address).wait(300) == 0
    assert content(tmp_path / "m") == content(place / "local")


def test_a_job_whose_driver_and_scheduler_were_killed_before_it_began_is_lost(place, tmp_path):
    (tmp_path / "idle.py").write_text(IDLE)
    with scheduler(tmp_path, "--preload", str(tmp_path / "idle.py")) as (address, process):
        found = submitted(place, address, tmp_path)
        [pid] = wait_until(lambda: list(found.logs()))
        assert found.status()["state"] == "queued"
        assert found.status()["pid"] == int(pid)
        process.kill()
        process.wait()
        os.kill(int(pid), signal.SIGKILL)
    assert found.wait(120) == 5
    status = found.status()
    assert (status["state"], status["epoch"]) == ("lost", 0)
    with cluster_of_processes(tmp_path, 1) as (other, _):
        assert found.resume(other).wait(300) == 0, "\n".join(found.logs())
    assert content(tmp_path / "m") == content(place / "local")


def test_what_a_job_was_refused_for_is_recorded(place, cluster, tmp_path):
    fit = ["fit", str(tmp_path / "none"), str(tmp_path / "m"), *MODEL]
    found = distmom.submit(fit, scheduler=cluster, directory=tmp_path / "job")
    assert found.wait(240) == 2
    status = found.status()
    assert (status["state"], status["exit_code"]) == ("failed", 2)
    assert "UsageError" in status["error"]
    assert str(tmp_path / "none") in status["error"]
    assert (found.directory / "job.json").exists()


def test_other_commands_are_jobs_too(place, cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.tsv").write_text("a\tone two three\nb\tfour two five\n" * 20)
    ingested = distmom.submit(["ingest", "texts.tsv", "c", "--min-df", "1"], scheduler=cluster)
    assert ingested.directory.parent == tmp_path / "distmom-jobs"
    assert ingested.wait(240) == 0, "\n".join(ingested.logs())
    assert distmom.open_corpus("c").n_documents == 40
    measured = distmom.submit(
        ["evaluate", str(place / "local"), str(place / "corpus"), "--quiet", "--json"], scheduler=cluster
    )
    assert measured.wait(240) == 0, "\n".join(measured.logs())
    [line] = measured.logs()
    assert json.loads(line)["P@1"] > 0.1


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["moments", "update"])
def test_moments_and_updates_are_jobs_that_are_resumed_with_the_same_bits(place, cluster, tmp_path, command):
    """Their driver is killed after the first pass."""
    quiet = ("--workers", "0", "--quiet")
    if command == "moments":
        arguments, options = [str(place / "corpus")], ["-k", "3"]
    else:
        fit = ["fit", str(place / "corpus"), str(tmp_path / "kept"), "-k", "3", "--head", "linear"]
        assert main([*fit, "--keep-sums", *quiet]) == 0
        block = planted_corpus(400, d=300, n_labels=12, k=3, seed=1, shard_documents=400)[2].read_shard(0)
        from_arrays(tmp_path / "more", block.words, block.labels, shard_documents=40)
        arguments, options = [str(tmp_path / "kept"), str(tmp_path / "more")], []
    assert main([command, *arguments, str(tmp_path / "calm"), *options, *quiet]) == 0
    submitted = [command, *arguments, str(tmp_path / "m"), *options]
    found = distmom.submit(submitted, scheduler=cluster, directory=tmp_path / "job")
    wait_until(lambda: committed_passes(found.directory) or found.status()["state"] == "failed")
    assert found.status()["state"] == "running", "\n".join(found.logs())
    os.kill(found.status()["pid"], signal.SIGKILL)
    assert found.wait() == 5
    assert not (tmp_path / "m").exists()
    assert found.resume().wait(300) == 0, "\n".join(found.logs())
    assert any("found committed" in line for line in found.logs())
    assert content(tmp_path / "m") == content(tmp_path / "calm")


def test_other_versions_are_refused_before_anything_is_started(place, tmp_path):
    (other := tmp_path / "other" / "distmom-9.9.dist-info").mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: distmom\nVersion: 9.9\n")
    with (
        scheduler(tmp_path) as (address, _),
        worker(tmp_path, address, "other", PYTHONPATH=str(other.parent)),
        Client(address, set_as_default=False) as client,
    ):
        client.wait_for_workers(1, timeout=180)
        with pytest.raises(ClusterError, match="expected the same versions") as caught:
            submitted(place, address, tmp_path)
    header, *rows = str(caught.value).splitlines()[1:]
    assert header.split() == ["python", "distmom", "numpy", "scipy", "numba", "zarr"]
    assert [row.split()[2] for row in rows] == [distmom.__version__, "9.9", distmom.__version__]
    assert not (tmp_path / "job").exists()


def test_a_failure_of_the_cluster_is_followed_by_a_restart(place, tmp_path):
    """The scheduler is there only when the driver tries for the second time."""
    port = free_port()
    fit = ["fit", str(place / "corpus"), str(tmp_path / "m"), *MODEL]
    record = new_record(fit, f"tcp://127.0.0.1:{port}", restarts=1)
    write_record(tmp_path / "job", record)
    found = Job(tmp_path / "job")
    with (tmp_path / "job" / "out.txt").open("wb") as out:
        driver = subprocess.Popen([*COMMAND, "jobs", "run", str(found.directory)], stdout=out, stderr=out)
    try:
        wait_until(lambda: "restart 1 of 1 in 10 s" in "\n".join(found.logs()))
        assert found.status()["state"] == "running"
        with (
            scheduler(tmp_path, "--port", str(port)) as (_, _),
            worker(tmp_path, record.scheduler, "one"),
        ):
            assert driver.wait(300) == 0, "\n".join(found.logs())
    finally:
        driver.kill()
    assert found.wait(1) == 0
    assert [epochs.end_of(found.directory, epoch).state for epoch in (1, 2)] == ["failed", "done"]
    assert epochs.end_of(found.directory, 1).restarted
    assert content(tmp_path / "m") == content(place / "local")


def test_a_job_is_cancelled_whose_driver_is_ended_while_it_restarts(tmp_path):
    """The new program has no handler of signals at first, and its epoch has ended with the restart."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_RESTART)
    record = new_record(["fit", "c", str(tmp_path / "m")], f"tcp://127.0.0.1:{free_port()}", restarts=1)
    from_arrays(tmp_path / "c", *planted_arrays(), shard_documents=40)
    write_record(tmp_path / "job", replace(record, folder=str(tmp_path)))
    found = Job(tmp_path / "job")
    with (tmp_path / "job" / "out.txt").open("wb") as out:
        driver = subprocess.Popen(
            [*COMMAND, "jobs", "run", str(found.directory)], stdout=out, stderr=out, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        )  # fmt: skip
    try:
        wait_until((tmp_path / "restarted").exists)
        owner = epochs.owner_of(found.directory, 1)
        assert remote.send_signal(str(found.directory), owner, signal.SIGTERM)
        assert driver.wait(120) == -signal.SIGTERM, "\n".join(found.logs())
    finally:
        driver.kill()
        driver.wait()
    status = found.status()
    assert (status["state"], status["exit_code"], status["epoch"]) == ("cancelled", 130, 1)
    assert found.wait(1) == 130
    assert found.cancel() == status
    # Its end was not requested if a batch system ends it.
    found.place.forget_request()
    assert found.status()["state"] == "lost"


def test_a_driver_beside_a_worker_is_ended_with_its_job(place, cluster, tmp_path):
    found = submitted(place, cluster, tmp_path, driver="worker")
    pid = in_the_middle(found)["pid"]
    assert any(key.startswith(f"distmom-driver-{found.id}") for key in tasks_of(cluster))
    assert found.cancel()["state"] == "cancelled"
    wait_until(lambda: not tasks_of(cluster), 10)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 5)
    assert found.resume().wait(300) == 0, "\n".join(found.logs())
    assert content(tmp_path / "m") == content(place / "local")
    wait_until(lambda: not tasks_of(cluster), 10)


def test_a_driver_that_waits_for_a_worker_is_removed_with_its_job(place, tmp_path):
    with scheduler(tmp_path) as (address, _):
        found = submitted(place, address, tmp_path, driver="worker")
        wait_until(lambda: tasks_of(address), 10)
        assert found.cancel()["state"] == "cancelled"
        wait_until(lambda: not tasks_of(address), 10)


def test_a_driver_is_not_started_beside_workers_that_do_not_see_its_directory(place, tmp_path):
    (tmp_path / "blind.py").write_text(BLIND)
    with (
        scheduler(tmp_path) as (address, _),
        worker(tmp_path, address, "blind", "--preload", str(tmp_path / "blind.py")),
        Client(address, set_as_default=False) as client,
    ):
        client.wait_for_workers(1, timeout=180)
        with pytest.raises(UsageError, match=f"{tmp_path}/job: host .* does not see this directory"):
            submitted(place, address, tmp_path, driver="worker")
    assert not (tmp_path / "job").exists()


def test_a_scheduler_that_refuses_calls_has_drivers_beside_its_workers(place, tmp_path):
    blocked = {"DASK_DISTRIBUTED__SCHEDULER__BLOCKED_HANDLERS": "['run_function']"}
    fit = ["fit", str(place / "corpus"), str(tmp_path / "m"), *MODEL, "--decompose-on", "client"]
    with cluster_of_processes(tmp_path, 1, preload=place / "slow.py", **blocked) as (address, _):
        with pytest.raises(ClusterError, match=r"the scheduler refuses to run functions: .*--driver worker"):
            distmom.submit(fit, scheduler=address, directory=tmp_path / "job")
        assert not (tmp_path / "job").exists()
        found = distmom.submit(fit, scheduler=address, directory=tmp_path / "job", driver="worker")
        in_the_middle(found)
        with pytest.raises(
            ClusterError, match="cancelled, but no worker was restarted: the scheduler refuses"
        ):
            found.cancel(now=True)
        assert found.status()["state"] == "cancelled"
        assert found.resume().wait(300) == 0, "\n".join(found.logs())
    assert content(tmp_path / "m") == content(place / "local")


@needs_slurm
def test_a_driver_that_slurm_starts_has_the_same_bits(place, cluster, tmp_path, monkeypatch):
    with slurm(tmp_path / "slurm") as environment:
        path = os.pathsep.join([*sys.path, str(Path(distmom.__file__).parents[1])])
        for name, value in {**environment, "PYTHONPATH": path}.items():
            monkeypatch.setenv(name, value)
        found = submitted(place, cluster, tmp_path, driver="slurm")
        wait_until(lambda: found.status()["state"] in ("done", "failed", "cancelled"), 120)
        assert found.wait(1) == 0, "\n".join(found.logs())
    assert content(tmp_path / "m") == content(place / "local")


def wait_a_little(seconds):
    time.sleep(seconds)
    return 1


def done_together(address, n_tasks, seconds, *options):
    """Run equal jobs at the same time; return how many tasks of each were done when the first one ended."""
    counts = [0] * len(options)
    gate, frozen = threading.Barrier(len(options)), []
    opened = []
    for each in options:
        with sharing("job", **each):
            context = open_executor(scheduler=address)
            opened.append((context, context.__enter__()))

    def work(number):
        def on_done(_):
            counts[number] += 1

        gate.wait()
        opened[number][1].reduce(wait_a_little, [(seconds,)] * n_tasks, sum, n_tasks, on_done, "job")
        frozen.append(list(counts))

    with ThreadPoolExecutor(len(options)) as pool:
        list(pool.map(work, range(len(options))))
    for context, _ in opened:
        context.__exit__(None, None, None)
    return frozen[0]


def test_two_jobs_share_a_cluster(cluster):
    first, second = done_together(cluster, 200, 0.02, {}, {})
    assert 45 / 55 < first / second < 55 / 45
    whole, half = done_together(cluster, 200, 0.02, {}, {"share": 0.5})
    assert whole == 200
    assert half < 140
    urgent, patient = done_together(cluster, 50, 0.1, {"priority": 1}, {})
    assert urgent == 50
    # With the same priority, between 41 and 50 would have ended; how many start early depends on other load.
    assert patient < 35
