"""Drivers and workers that are killed or paused at the first task of every pass of a fit: same bits."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from clusters import wait_until
from helpers import content, lda_corpus, planted_corpus

from distmom.corpus import from_arrays
from distmom.engine import RunDirectory
from distmom.engine.directory import epochs

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

COMMAND = [sys.executable, "-m", "distmom.cli.main"]
MODELS = {"labels": ("-k", "3"), "topics": ("--model", "lda", "-k", "3")}
#: kills or stops the process that first runs a task of a pass, with a lease of two seconds
DISTURBED = """
import os, signal, subprocess, time
from pathlib import Path
from distmom.engine import tasks
from distmom.engine.directory import epochs

epochs.BEAT_S, epochs.LEASE_S, epochs.LOOK_S = 0.2, 2.0, 0.1
accumulate = tasks._accumulate


def disturbed(task, *arguments):
    try:
        (Path(os.environ["NOTES"]) / Path(task.files).name.rpartition("-")[0]).touch(exist_ok=False)
    except FileExistsError:
        return accumulate(task, *arguments)
    own = os.getpid()
    if os.environ["ROLE"] == "worker":
        # The nanny of a worker that dies while it starts starts no other.
        time.sleep(1.0)
        if os.environ["SIGNAL"] == "SIGSTOP":
            subprocess.Popen(["sh", "-c", f"sleep 8; kill -CONT {own}"])
    os.kill(own, getattr(signal, os.environ["SIGNAL"]))
    return accumulate(task, *arguments)


tasks._accumulate = disturbed
"""


@pytest.fixture(scope="module", params=list(MODELS))
def calm(request, tmp_path_factory):
    """Arguments of a fit, the content of its model, and the names of passes that it must and may have."""
    place = tmp_path_factory.mktemp("every")
    if request.param == "labels":
        block = planted_corpus(600, d=120, n_labels=12, k=3, shard_documents=600)[2].read_shard(0)
        from_arrays(place / "corpus", block.words, block.labels, shard_documents=100)
    else:
        words = lda_corpus(600, 60, 3, shard_documents=600)[2].read_shard(0).words
        from_arrays(place / "corpus", words, shard_documents=100)
    model = MODELS[request.param]
    fit = [*COMMAND, "fit", str(place / "corpus"), str(place / "m"), *model, "--workers", "0", "--quiet"]
    subprocess.run(fit, check=True, timeout=240)
    plan = [*COMMAND, "plan", str(place / "corpus"), *model, "--json"]
    shown = json.loads(subprocess.run(plan, check=True, capture_output=True, timeout=120).stdout)
    must = {each["name"] for each in shown["passes"] if not each["possible"]}
    may = {each["name"] for each in shown["passes"]}
    return ["fit", str(place / "corpus")], model, content(place / "m"), must, may


@pytest.mark.parametrize("kind", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("role", ["driver", "worker"])
def test_a_fit_that_is_disturbed_in_every_pass_has_the_same_bits(calm, tmp_path, role, kind):
    """A driver that was paused for longer than its lease ends with exit code 5 when it wakes up."""
    fit, model, expected, must, may = calm
    (site := tmp_path / "site").mkdir()
    (site / "sitecustomize.py").write_text(DISTURBED)
    (notes := tmp_path / "notes").mkdir()
    path = os.pathsep.join([str(site), str(Path(__file__).parents[2]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "NOTES": str(notes), "SIGNAL": kind, "ROLE": role}
    # Workers are paused for longer than their scheduler allows, so that their tasks run elsewhere.
    environment["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"] = "1s"
    run, log = tmp_path / "run", tmp_path / "log"
    where = ["--workers", "0" if role == "driver" else "2"]
    codes, paused = [], []
    with ExitStack() as stack, log.open("wb") as out:
        line = [*fit, str(tmp_path / "m"), *model, "--run", str(run), *where]
        while not codes or codes[-1] != 0:
            process = subprocess.Popen([*COMMAND, *line], env=environment, stdout=out, stderr=out)
            stack.callback(end, process)
            if paused:
                wait_until(lambda: epochs.latest_epoch(run) == len(paused) + 1)
                paused[-1].send_signal(signal.SIGCONT)
                assert paused[-1].wait(60) == 5, log.read_text()
            codes.append(ended_or_stopped(process))
            if codes[-1] is None:
                paused.append(process)
            assert codes[-1] in (0, None, -signal.SIGKILL), log.read_text()
            line = ["resume", str(run), *where]
    injected = {path.name for path in notes.iterdir()}
    assert must <= injected <= may
    assert len(codes) == (len(injected) + 1 if role == "driver" else 1)
    assert len(paused) == (len(injected) if (role, kind) == ("driver", "SIGSTOP") else 0)
    assert content(tmp_path / "m") == expected
    assert RunDirectory(run).verify() == []


def ended_or_stopped(process):
    """Wait for a command; return its exit code, or None where it has stopped."""
    seen = psutil.Process(process.pid)
    wait_until(lambda: process.poll() is not None or seen.status() == psutil.STATUS_STOPPED, 300)
    return process.poll()


def end(process):
    """End a command that a failed test has left, also one that has stopped."""
    process.kill()
    process.wait(60)
