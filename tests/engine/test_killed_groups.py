"""A fit whose processes are killed in the middle of a pass repeats only the groups that were in flight."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from clusters import wait_until
from helpers import content, planted_corpus

from distmom.corpus import from_arrays

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

COMMAND = [sys.executable, "-m", "distmom.cli.main"]
MODEL = ("-k", "3", "--head", "linear")
#: notes every group that is folded, in every process, and takes some time for it
NOTED = """
import os, time
from pathlib import Path
from distmom.engine import tasks

accumulate = tasks._accumulate


def noted(task, *arguments):
    with open(os.environ["FOLDED"], "a") as stream:
        stream.write(Path(task.files).name + "\\n")
    time.sleep(float(os.environ["SECONDS"]))
    return accumulate(task, *arguments)


tasks._accumulate = noted
"""


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A corpus, the environment of noted commands, the content of a model, and the tasks of every pass."""
    place = tmp_path_factory.mktemp("killed")
    block = planted_corpus(1200, d=300, n_labels=12, k=3, shard_documents=1200)[2].read_shard(0)
    from_arrays(place / "corpus", block.words, block.labels, shard_documents=100)
    (place / "site").mkdir()
    (place / "site" / "sitecustomize.py").write_text(NOTED)
    path = os.pathsep.join([str(place / "site"), str(Path(__file__).parents[2]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "SECONDS": "0", "FOLDED": str(place / "folded")}
    fit = [*COMMAND, "fit", str(place / "corpus"), str(place / "m"), *MODEL, "--workers", "0", "--quiet"]
    subprocess.run(fit, env=environment, check=True, timeout=120)
    n_tasks = Counter((place / "folded").read_text().split())
    assert set(n_tasks.values()) == {12}
    return place / "corpus", environment, content(place / "m"), n_tasks


def reports(run, name):
    return list((run / "partial").glob(f"*/{name}-*/*.json"))


@pytest.mark.parametrize(
    ("name", "killed"), [pytest.param("power", "all", marks=pytest.mark.nightly), ("moments", "driver")]
)
def test_a_killed_fit_repeats_only_the_groups_in_flight(tmp_path, calm, name, killed):
    corpus, environment, expected, n_tasks = calm
    environment = {**environment, "SECONDS": "0.2", "FOLDED": str(tmp_path / "folded")}
    run = tmp_path / "m.run"
    fit = [*COMMAND, "fit", str(corpus), str(tmp_path / "m"), *MODEL, "--workers", "2"]
    with (
        (tmp_path / "fit.log").open("wb") as log,
        subprocess.Popen(fit, env=environment, stdout=log, stderr=log, start_new_session=True) as process,
    ):
        try:
            wait_until(lambda: len(reports(run, name)) > 4 or process.poll() is not None)
            assert process.poll() is None, (tmp_path / "fit.log").read_text()
            if killed == "driver":
                process.send_signal(signal.SIGKILL)
        finally:
            if killed == "all":
                os.killpg(process.pid, signal.SIGKILL)
    done = reports(run, name)
    [of_pass] = {path.parent.name for path in done}
    assert 4 < len(done) < n_tasks[of_pass]
    (tmp_path / "folded").unlink()
    resumed = subprocess.run(
        [*COMMAND, "resume", str(run), "--workers", "2"],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stderr
    folded = Counter((tmp_path / "folded").read_text().split())
    n_repeated = folded.pop(of_pass)
    found = f"{name}: {n_tasks[of_pass] - n_repeated} of {n_tasks[of_pass]} tasks found done"
    assert found in resumed.stderr
    if killed == "all":
        assert n_repeated == n_tasks[of_pass] - len(done)
    else:
        # Its workers may have finished what they were doing.
        assert 0 < n_repeated <= n_tasks[of_pass] - len(done)
    # Passes before are committed, and all groups of those behind are folded once.
    assert folded == {each: n_tasks[each] for each in folded}
    assert folded
    assert content(tmp_path / "m") == expected
    assert not run.exists()
