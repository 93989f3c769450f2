"""A worker that is killed after its task has finished a group, and before it can report that."""

import signal
from collections import Counter

import pytest
from clusters import cluster_of_processes
from helpers import content, planted_corpus

from distmom.cli.main import main
from distmom.corpus import from_arrays

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

MODEL = ("-k", "3", "--head", "linear")
#: notes every group that was added up, and kills one process that has just written its third report in a pass
KILLED = """
import os, signal
from pathlib import Path
from distmom.engine.reports import Report

here, own = Path(os.environ["NOTES"]), []


def noted(self, folded, write=Report.write):
    write(self, folded)
    line = f"{Path(self.directory).name} {self.key}"
    with (here / "folded").open("a") as stream:
        stream.write(line + "\\n")
    own.append(line.partition("-")[0])
    if own.count(os.environ["PASS"]) == 3:
        try:
            (here / "killed").open("x").write(line)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


# A worker may load this twice.
if Report.write.__name__ != "noted":
    Report.write = noted
"""


@pytest.mark.parametrize(
    "name", ["sketch", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("power", "moments"))]
)
def test_a_group_whose_worker_was_killed_before_it_replied_is_not_added_up_again(tmp_path, name):
    block = planted_corpus(1200, d=300, n_labels=12, k=3, shard_documents=1200)[2].read_shard(0)
    corpus = from_arrays(tmp_path / "corpus", block.words, block.labels, shard_documents=100)
    fit = ["fit", str(corpus.path)]
    assert main([*fit, str(tmp_path / "calm"), *MODEL, "--workers", "0", "--quiet"]) == 0
    (tmp_path / "killed.py").write_text(KILLED)
    preload = {"preload": tmp_path / "killed.py", "NOTES": str(tmp_path), "PASS": name}
    with cluster_of_processes(tmp_path, 2, **preload) as (address, processes):
        assert main([*fit, str(tmp_path / "m"), *MODEL, "--scheduler", address, "--quiet"]) == 0
        assert [process.poll() for process in processes[1:]].count(-signal.SIGKILL) == 1
    assert content(tmp_path / "m") == content(tmp_path / "calm")
    folded = Counter((tmp_path / "folded").read_text().splitlines())
    assert (tmp_path / "killed").read_text() in folded
    # Nor are those whose results only the killed process had.
    assert set(folded.values()) == {1}
    assert len(folded) % len(corpus.shards) == 0
