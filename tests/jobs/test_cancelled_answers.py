"""Jobs that write answers or metrics stop between two blocks when they are cancelled, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from clusters import cluster_of_processes, wait_until
from distributed import Client
from helpers import lda_corpus, planted_corpus

import distmom
from distmom.cli.main import main
from distmom.corpus import from_arrays

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

COMMAND = [sys.executable, "-m", "distmom.cli.main"]
#: cuts shards into blocks of two documents, each of which takes a while, and notes every block
SLOW = """
import os, time
from pathlib import Path
from distmom.engine import tasks
from distmom.engine.passes import Pass
from distmom.predict import shares


def noted(*arguments, cut=tasks.cut_block):
    with Path(os.environ["BLOCKS"]).open("a") as stream:
        stream.write("block\\n")
    time.sleep(0.2)
    return cut(*arguments)


# A worker may load this twice.
if tasks.cut_block.__name__ != "noted":
    tasks.cut_block = noted
Pass.block_rows = shares.SharesPass.block_rows = 2
"""
#: seconds within which a job ends and its tasks stop
SECONDS = 10.0


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Corpora of shards whose blocks take 20 s, and models of them."""
    folder = tmp_path_factory.mktemp("answers")
    block = planted_corpus(800, d=300, n_labels=12, k=3, shard_documents=800)[2].read_shard(0)
    from_arrays(folder / "corpus", block.words, block.labels, shard_documents=200)
    words = lda_corpus(800, 60, 3)[2].read_shard(0).words
    from_arrays(folder / "texts", words, shard_documents=200)
    quiet = ("--workers", "0", "--quiet")
    labels = ("fit", folder / "corpus", folder / "labels", "-k", 3, "--head", "posterior", *quiet)
    topics = (
        "fit",
        folder / "texts",
        folder / "topics",
        "--model",
        "lda",
        "-k",
        3,
        "--init",
        "tensor",
        *quiet,
    )
    for fit in (labels, topics):
        assert main([str(argument) for argument in fit]) == 0
    (folder / "slow.py").write_text(SLOW)
    return folder


@pytest.fixture(scope="module")
def cluster(place):
    blocks = str(place / "blocks")
    with cluster_of_processes(place, 2, preload=place / "slow.py", BLOCKS=blocks) as (address, _):
        yield address


def n_blocks(place):
    return (place / "blocks").read_text().count("\n") if (place / "blocks").exists() else 0


def tasks_of_workers(address):
    with Client(address, set_as_default=False, timeout=20) as client:
        found = client.run(lambda dask_worker: list(dask_worker.state.tasks))
    return [key for keys in found.values() for key in keys]


def begun(place, found):
    """Wait until tasks of a job have begun."""
    before = n_blocks(place)
    wait_until(lambda: n_blocks(place) > before + 4 or found.status()["state"] == "failed")
    assert found.status()["state"] == "running", "\n".join(found.logs())


def arguments_of(command, place, out):
    return {
        "predict": ["predict", place / "labels", place / "corpus", out],
        "transform": ["transform", place / "topics", place / "texts", out],
        "evaluate": ["evaluate", place / "labels", place / "corpus", "--json"],
    }[command]


@pytest.mark.parametrize("command", ["predict", "transform", "evaluate"])
def test_a_cancelled_job_ends_between_two_blocks_and_leaves_nothing(place, cluster, tmp_path, command):
    out = tmp_path / "out" / command
    out.parent.mkdir()
    arguments = [str(each) for each in arguments_of(command, place, out)]
    found = distmom.submit([*arguments, "--quiet"], scheduler=cluster, directory=tmp_path / "job")
    begun(place, found)
    driver = psutil.Process(found.status()["pid"])
    started = time.monotonic()
    status = found.cancel()
    assert (status["state"], status["exit_code"]) == ("cancelled", 130), status
    assert status["resume"] == f"distmom jobs resume {found.directory}"
    wait_until(lambda: not tasks_of_workers(cluster), SECONDS)
    assert time.monotonic() - started < SECONDS
    before = n_blocks(place)
    time.sleep(1.0)
    assert n_blocks(place) == before
    # Its parent may not have asked for its exit code yet.
    wait_until(lambda: not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE, SECONDS)
    assert list(out.parent.iterdir()) == []
    assert sorted(path.name for path in found.directory.iterdir()) == [
        "cancel", "epochs", "job.json", "lease.json", "out.txt",
    ]  # fmt: skip


def test_a_job_whose_driver_was_killed_stops_and_its_files_are_removed_by_the_next(place, tmp_path):
    out = tmp_path / "out" / "predictions"
    predict = ["predict", str(place / "labels"), str(place / "corpus")]
    assert main([*predict, str(tmp_path / "whole"), "--workers", "0", "--quiet"]) == 0
    out.parent.mkdir()
    blocks = str(place / "blocks")
    with cluster_of_processes(tmp_path, 1, preload=place / "slow.py", BLOCKS=blocks) as (address, _):
        found = distmom.submit([*predict, str(out)], scheduler=address, directory=tmp_path / "job")
        begun(place, found)
        os.kill(found.status()["pid"], signal.SIGKILL)
        wait_until(lambda: not tasks_of_workers(address), SECONDS)
    [left] = out.parent.iterdir()
    assert left.name.startswith(".tmp-predictions-")
    done = subprocess.run([*COMMAND, *predict, str(out), "--workers", "0", "--quiet", "--json"], check=True,
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert json.loads(done.stdout)["n_documents"] == 800
    assert list(out.parent.iterdir()) == [out]
    assert (out / "predictions.tsv").read_bytes() == (tmp_path / "whole" / "predictions.tsv").read_bytes()
