"""Full disks of temporary files, and of results that workers move out of memory."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from clusters import cluster_of_processes
from disks import needs_mount, small_disk
from helpers import content, random_corpus

from distmom.cli.main import main
from distmom.corpus import from_arrays
from distmom.engine import Pass, SumSpec, open_engine, open_executor
from distmom.errors import OutOfSpaceError
from distmom.models import MultiLabelMoM

pytestmark = needs_mount

MODEL = ("-k", "3", "--head", "posterior", "--quiet")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    block = random_corpus(n=300, shard_documents=300).read_shard(0)
    return from_arrays(tmp_path_factory.mktemp("full") / "c", block.words, block.labels, shard_documents=20)


@pytest.fixture
def full(tmp_path, monkeypatch):
    """A directory of temporary files on a disk without a free byte."""
    with small_disk(tmp_path / "disk", 1 << 14):
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "disk" / "other").write_bytes(bytes(1 << 15))
        monkeypatch.setenv("TMPDIR", str(tmp_path / "disk"))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "disk"))
        yield tmp_path / "disk"
        # Nothing else was left there.
        assert [path.name for path in (tmp_path / "disk").iterdir()] == ["other"]


def test_a_fit_without_a_run_directory_names_the_temporary_one_that_is_full(corpus, full):
    with pytest.raises(
        OutOfSpaceError, match=rf"^{full}/distmom-\S+: no space left on device: 0 of 16,384 bytes"
    ):
        MultiLabelMoM(3, head="posterior").fit_corpus(corpus)


def test_a_command_needs_space_for_temporary_files_where_it_starts_workers(corpus, full, tmp_path, capsys):
    """Its run is beside the model; directories of workers are temporary."""
    fit = ["fit", str(corpus.path)]
    assert main([*fit, str(tmp_path / "calm"), *MODEL, "--workers", "0"]) == 0
    assert main([*fit, str(tmp_path / "m"), *MODEL, "--workers", "2"]) == 5
    error = capsys.readouterr().err
    assert "the worker processes did not start: OSError: [Errno 28] No space left on device" in error
    run = tmp_path / "m.run"
    assert f"to resume: distmom resume {run} --workers 2" in error
    assert main(["resume", str(run), "--workers", "0", "--quiet"]) == 0
    assert content(tmp_path / "m") == content(tmp_path / "calm")


@dataclass(frozen=True)
class WidePass(Pass):
    """Adds sums of 1.6 MB, which are results of tasks and not files."""

    def specs(self):
        return {"x": SumSpec((200_000,))}

    def add(self, sums, block, rows):
        sums["x"] += np.random.default_rng(block.first).random(200_000)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.cluster
def test_results_that_find_no_space_on_the_disk_of_a_worker_stay_in_memory(corpus, tmp_path):
    """Dask moves results out of memory above a share of it, here at once."""
    moving = {
        "DASK_TEMPORARY_DIRECTORY": str(tmp_path / "disk"),
        "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "1e-9",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    with (
        small_disk(tmp_path / "disk", 1 << 20),
        cluster_of_processes(tmp_path, 2, **moving) as (address, _),
        open_executor(scheduler=address) as executor,
        open_engine(corpus, executor=executor) as engine,
    ):
        bits = engine.run(WidePass(corpus.n_words)).sums["x"].tobytes()
    with open_engine(corpus) as engine:
        assert engine.run(WidePass(corpus.n_words)).sums["x"].tobytes() == bits
    assert "Spill to disk failed" in "".join(path.read_text() for path in tmp_path.glob("worker-*.log"))
