"""A client that is killed and resumed at once, while a task of the first one is still writing."""

import signal
import subprocess
import sys

import pytest
from clusters import cluster_of_processes, wait_until
from helpers import content, planted_corpus

from distmom.cli.main import main
from distmom.corpus import from_arrays

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

COMMAND = [sys.executable, "-m", "distmom.cli.main"]
#: so many states that sums of third moments wait for their merge in files
MODEL = ("-k", "90", "--head", "posterior", "--force")
#: makes the first such file of one worker stall half way until a file `go` appears
STALL = """
import os, time
from pathlib import Path
from distmom.engine.stored import scratch

here, write = Path(os.environ["STALL"]), scratch.ScratchWriter.write


def stalled(self, array, write=write):
    try:
        if array.nbytes < 4 << 20:
            raise FileExistsError
        # One worker of all is the one that stalls.
        (here / "stalled").open("x").close()
    except FileExistsError:
        return write(self, array)
    flat = array.reshape(-1)
    write(self, flat[: len(flat) // 2])
    self._stream.flush()
    while not (here / "go").exists():
        time.sleep(0.05)
    write(self, flat[len(flat) // 2 :])
    (here / "gone").touch()


# A worker may load this twice.
if write.__name__ != "stalled":
    scratch.ScratchWriter.write = stalled
"""


def large_partials(run):
    """Partial sums in files; none if the run removes a directory meanwhile."""
    try:
        found = [path for path in (run / "partial").rglob("[!.]*") if path.parent.name != "spare"]
        return [path for path in found if path.stat().st_size > 4 << 20]
    except FileNotFoundError:
        return []


def test_a_resumed_fit_has_the_bits_of_one_that_was_never_interrupted(tmp_path):
    block = planted_corpus(1600, d=1500, n_labels=24, k=4, shard_documents=1600)[2].read_shard(0)
    corpus = str(tmp_path / "corpus")
    from_arrays(corpus, block.words, block.labels, shard_documents=100)
    assert main(["fit", corpus, str(tmp_path / "whole"), *MODEL, "--workers", "0", "--quiet"]) == 0
    (tmp_path / "stall.py").write_text(STALL)
    stall = {"preload": tmp_path / "stall.py", "STALL": str(tmp_path)}
    with cluster_of_processes(tmp_path, 2, **stall) as (address, _):
        fit = [*COMMAND, "fit", corpus, str(tmp_path / "m"), *MODEL, "--scheduler", address]
        with (
            (tmp_path / "fit.log").open("wb") as log,
            subprocess.Popen(fit, stdout=log, stderr=log) as client,
        ):
            wait_until(lambda: (tmp_path / "stalled").exists() or client.poll() is not None)
            assert client.poll() is None, (tmp_path / "fit.log").read_text()
            client.send_signal(signal.SIGKILL)
        resume = [*COMMAND, "resume", str(tmp_path / "m.run"), "--scheduler", address]
        with (
            (tmp_path / "resume.log").open("wb") as log,
            subprocess.Popen(resume, stdout=log, stderr=log) as second,
        ):
            # The straggler resumes once many tasks of the second client have written their sums.
            wait_until(lambda: len(large_partials(tmp_path / "m.run")) > 6 or second.poll() is not None)
            (tmp_path / "go").touch()
            wait_until((tmp_path / "gone").exists)
            assert second.wait(120) == 0, (tmp_path / "resume.log").read_text()
    assert content(tmp_path / "m") == content(tmp_path / "whole")
    assert len(content(tmp_path / "m")) > 5
