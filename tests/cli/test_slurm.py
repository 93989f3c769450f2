"""deploy/slurm.sh under a real SLURM, which runs on this machine for the time of a test."""

import json
import subprocess
import time
from pathlib import Path

import pytest
from batch import fail_node, needs_slurm, node, slurm
from clusters import wait_until
from deployment import needs
from helpers import planted_corpus
from stores import free_port

from distmom.cli.main import main
from distmom.corpus import from_arrays, open_corpus
from distmom.engine.directory.run_directory import committed_passes

DEPLOY = Path(__file__).parents[2] / "deploy"
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(not DEPLOY.is_dir(), reason="needs the files of deploy/"),
    needs_slurm,
]

MODEL = ("-k", "3", "--head", "posterior")
#: makes every task of a worker take a while, as long as a file exists
SLOW = """
import os, time
from distmom.corpus.sources import pipeline
from distmom.engine import tasks


def slowed(function):
    def slow(*arguments):
        time.sleep(2.0 if os.path.exists({file!r}) else 0.0)
        return function(*arguments)

    return slow


# A worker may load this twice.
if tasks._accumulate.__name__ != "slow":
    tasks._accumulate, pipeline.encode_chunk = slowed(tasks._accumulate), slowed(pipeline.encode_chunk)
"""
#: stands in for the program of this name; with APART, workers that are no tasks of an array do nothing
DASK = """#!/bin/sh
if [ "$1" = worker ] && [ -n "$SLURM_ARRAY_TASK_ID" ]; then
    echo joined >>"{folder}/joined-$SLURM_ARRAY_TASK_ID"
elif [ "$1" = worker ] && [ -n "$APART" ]; then
    exec sleep 600
fi
exec python -m dask "$@" --preload {folder}/slow.py
"""


def has_settings(job):
    """Whether a worker of the job runs with the settings of deploy/dask.yaml."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            variables = (place / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if {f"SLURM_JOB_ID={job}".encode(), b"MALLOC_TRIM_THRESHOLD_=134217728"} <= set(variables):
            return True
    return False


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A corpus, and a model of it that was fitted in this process."""
    folder = tmp_path_factory.mktemp("slurm")
    block = planted_corpus(800, d=300, n_labels=12, k=3, shard_documents=800)[2].read_shard(0)
    from_arrays(folder / "corpus", block.words, block.labels, shard_documents=40)
    fit = ["fit", str(folder / "corpus"), str(folder / "local"), *MODEL, "--workers", "0", "--quiet"]
    assert main(fit) == 0
    return folder


@pytest.fixture
def batch(tmp_path):
    with slurm(tmp_path / "slurm") as environment:
        yield Batch(tmp_path, environment)


class Batch:
    """A running SLURM, in which deploy/slurm.sh is submitted with two workers."""

    def __init__(self, folder, environment):
        self.folder, self.environment, self.log = folder, environment, folder / "job.log"

    def command(self, *command, **variables):
        done = subprocess.run(
            command, env={**self.environment, **variables}, capture_output=True, text=True, check=True,
            cwd=self.folder,
        )  # fmt: skip
        return done.stdout

    def submit(self, *arguments, options=(), **variables):
        own = {"HOST": "127.0.0.1", "PORT": str(free_port()), "MEMORY": "1GiB", **variables}
        sbatch = ("sbatch", "--parsable", "--ntasks=2", "--mem-per-cpu=1G", f"--output={self.log}")
        return self.command(*sbatch, *options, str(DEPLOY / "slurm.sh"), *map(str, arguments), **own).strip()

    def shown(self, job, entry):
        return self.command("scontrol", "show", "job", job).split(f"{entry}=")[1].split()[0]

    def wait(self, job, state):
        busy = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"} - {state}
        wait_until(lambda: self.shown(job, "JobState") not in busy, 120)
        assert self.shown(job, "JobState") == state, self.log.read_text()


def assert_same_models(found, expected):
    for name in ("vocabulary.txt", "labels.txt"):
        assert (found / name).read_bytes() == (expected / name).read_bytes()
    for path in (expected / "arrays.zarr").rglob("*"):
        if path.is_file():
            assert (found / path.relative_to(expected)).read_bytes() == path.read_bytes()


def slowed(batch):
    """Make workers slow as long as the returned file exists; return also the variables of their job."""
    slow, module, dask = (batch.folder / name for name in ("slow", "slow.py", "dask"))
    slow.touch()
    module.write_text(SLOW.format(file=str(slow)))
    dask.write_text(DASK.format(folder=batch.folder))
    dask.chmod(0o755)
    return slow, {"PATH": f"{batch.folder}:{batch.environment['PATH']}"}


def joined(batch):
    """How often each task of an array has started its worker."""
    return {
        path.name.partition("-")[2]: len(path.read_text().split()) for path in batch.folder.glob("joined-*")
    }


def committed(run):
    """Committed passes, each with the time of its record."""
    return {name: (run / "passes" / name / "DONE.json").stat().st_mtime_ns for name in committed_passes(run)}


def check_resumed(batch, job, place, before):
    """Start a waiting job again: it must keep the passes that were committed ``before``, and fit the model."""
    # Otherwise SLURM waits for two minutes.
    batch.command("scontrol", "update", f"JobId={job}", "StartTime=now")
    batch.wait(job, "COMPLETED")
    assert before
    assert before.items() < committed(batch.folder / "run").items()
    assert_same_models(batch.folder / "m", place / "local")


def test_a_submitted_job_has_its_settings_and_the_same_bits(place, batch, tmp_path):
    job = batch.submit(place / "corpus", tmp_path / "m", *MODEL)
    wait_until(lambda: has_settings(job))
    certificates = tmp_path / f".distmom-{job}"
    assert certificates.stat().st_mode & 0o777 == 0o700
    assert (certificates / "key.pem").stat().st_mode & 0o777 == 0o600
    batch.wait(job, "COMPLETED")
    assert "tls://127.0.0.1" in batch.log.read_text()
    assert not certificates.exists()
    assert_same_models(tmp_path / "m", place / "local")


def test_a_job_that_reaches_its_time_limit_is_queued_again_and_resumes(place, batch, tmp_path):
    slow, variables = slowed(batch)
    fit = (place / "corpus", tmp_path / "m", *MODEL, "--run", tmp_path / "run")
    # SLURM looks every 30 seconds, and sends the signal at most 150 seconds before the limit.
    job = batch.submit(*fit, options=("--time=3",), **variables)
    wait_until(lambda: committed(tmp_path / "run"))
    wait_until(lambda: batch.shown(job, "Restarts") == "1", 120)
    batch.wait(job, "PENDING")
    before = committed(tmp_path / "run")
    ended = json.loads((tmp_path / "run" / "epochs" / "0001.end.json").read_text())
    assert (ended["state"], ended["exit_code"]) == ("failed", 130)
    assert not (tmp_path / "m").exists()
    # As after a start that was killed, which SLURM may have done before the script removed the directory.
    (tmp_path / f".distmom-{job}").mkdir(exist_ok=True)
    (tmp_path / f".distmom-{job}" / "key.pem").touch()
    slow.unlink()
    check_resumed(batch, job, place, before)


def test_a_job_that_is_preempted_is_queued_again_by_slurm_and_resumes(place, batch, tmp_path):
    slow, variables = slowed(batch)
    fit = (place / "corpus", tmp_path / "m", *MODEL, "--run", tmp_path / "run")
    job = batch.submit(*fit, **variables)
    wait_until(lambda: committed(tmp_path / "run"))
    urgent = ("sbatch", "--parsable", "--partition=urgent", "--exclusive", "--output=urgent.log")
    other = batch.command(*urgent, "--wrap=sleep 1").strip()
    batch.wait(other, "COMPLETED")
    batch.wait(job, "PENDING")
    assert batch.shown(job, "Restarts") == "1"
    before = committed(tmp_path / "run")
    assert not (tmp_path / "m").exists()
    slow.unlink()
    check_resumed(batch, job, place, before)


def test_a_job_whose_node_fails_is_queued_again_by_slurm_and_resumes(place, batch, tmp_path):
    slow, variables = slowed(batch)
    job = batch.submit(place / "corpus", tmp_path / "m", *MODEL, "--run", tmp_path / "run", **variables)
    wait_until(lambda: committed(tmp_path / "run"))
    before = committed(tmp_path / "run")
    fail_node(batch.environment, job)
    assert not (tmp_path / "m").exists()
    slow.unlink()
    with node(batch.environment):
        wait_until(lambda: batch.shown(job, "Restarts") == "1", 120)
        # SLURM still tries to kill what ran on the node, and would kill a job that begins at once.
        time.sleep(5.0)
        check_resumed(batch, job, place, before)


def test_a_job_that_is_cancelled_is_not_queued_again(place, batch, tmp_path):
    _, variables = slowed(batch)
    job = batch.submit(
        place / "corpus", tmp_path / "m", *MODEL, "--run", tmp_path / "run", REQUEUES="9", **variables
    )
    wait_until((tmp_path / "run" / "run.json").exists)
    batch.command("scancel", job)
    batch.wait(job, "CANCELLED")
    ended = json.loads((tmp_path / "run" / "epochs" / "0001.end.json").read_text())
    assert (ended["state"], ended["exit_code"]) == ("failed", 130)
    assert batch.shown(job, "Restarts") == "0"


def titles(folder, shard_docs):
    """Arguments of an ingest before its destination, and the digest of the corpus that this process has made."""
    lines = [f"label{i % 5}\tword{i % 7} word{i % 11} word{i % 13}\n" for i in range(400)]
    (folder / "titles.tsv").write_text("".join(lines))
    ingest = ("--shard-docs", shard_docs, str(folder / "titles.tsv"))
    assert main(["ingest", *ingest, str(folder / "local"), "--workers", "0", "--quiet"]) == 0
    return ingest, open_corpus(folder / "local").digest


def test_an_ingest_has_the_same_bytes(batch, tmp_path):
    ingest, expected = titles(tmp_path, "100")
    job = batch.submit(*ingest, tmp_path / "c", COMMAND="ingest")
    batch.wait(job, "COMPLETED")
    assert open_corpus(tmp_path / "c").digest == expected


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_fit_whose_workers_are_tasks_of_an_array_has_the_same_bits(place, batch, tmp_path):
    """One is cancelled, one is near its time limit, and one is queued again by SLURM, as after a preemption."""
    slow, variables = slowed(batch)
    fit = (place / "corpus", tmp_path / "m", *MODEL, "--run", tmp_path / "run")
    job = batch.submit(*fit, options=("--ntasks=1",), **variables, APART="1")
    array = batch.submit(job, options=("--ntasks=1", "--array=1-3"), **variables)
    wait_until(lambda: joined(batch).keys() == {"1", "2", "3"})
    wait_until(lambda: committed(tmp_path / "run"))
    batch.command("scancel", f"{array}_2")
    commands = {
        "3": ("scancel", "--batch", "--signal=USR1", f"{array}_3"),
        "1": ("scontrol", "requeue", f"{array}_1"),
    }
    for task, command in commands.items():
        batch.command(*command)
        batch.wait(f"{array}_{task}", "PENDING")
        # SLURM refuses the credential of a task that it starts again within the second in which it ended.
        time.sleep(3.0)
        batch.command("scontrol", "update", f"JobId={array}_{task}", "StartTime=now")
        wait_until(lambda task=task: joined(batch)[task] == 2)
    slow.unlink()
    batch.wait(job, "COMPLETED")
    assert_same_models(tmp_path / "m", place / "local")
    for task, state in {"1": "COMPLETED", "2": "CANCELLED", "3": "COMPLETED"}.items():
        batch.wait(f"{array}_{task}", state)
    assert joined(batch) == {"1": 2, "2": 1, "3": 2}


def test_an_ingest_whose_workers_are_tasks_of_an_array_has_the_same_bytes(batch, tmp_path):
    slow, variables = slowed(batch)
    ingest, expected = titles(tmp_path, "20")
    job = batch.submit(
        *ingest, tmp_path / "c", options=("--ntasks=1",), **variables, APART="1", COMMAND="ingest"
    )
    array = batch.submit(job, options=("--ntasks=1", "--array=1-2"), **variables)
    wait_until(lambda: joined(batch).keys() == {"1", "2"})
    wait_until(lambda: len(list(tmp_path.glob("c.partial/*/parts/p*"))) >= 2)
    batch.command("scancel", f"{array}_1")
    batch.wait(f"{array}_1", "CANCELLED")
    assert not (tmp_path / "c").exists()
    slow.unlink()
    batch.wait(job, "COMPLETED")
    assert open_corpus(tmp_path / "c").digest == expected
    batch.wait(f"{array}_2", "COMPLETED")


def test_tasks_of_an_array_need_a_job(batch, tmp_path):
    array = batch.submit("corpus", "model", options=("--ntasks=1", "--array=1"))
    batch.wait(f"{array}_1", "FAILED")
    assert "expected the id of the job whose workers the tasks of this array are, got 'corpus model'" in (
        batch.log.read_text()
    )


@needs("shellcheck")
def test_scripts_follow_the_rules_of_shellcheck():
    own = Path(__file__).parents[1]
    scripts = (DEPLOY / "slurm.sh", own / "packages.sh", own / "kubernetes.sh")
    subprocess.run(["shellcheck", *map(str, scripts)], check=True)
