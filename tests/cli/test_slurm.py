"""deploy/slurm.sh under a real SLURM, which runs on this machine for the time of the test."""

import subprocess
from pathlib import Path

import pytest
from batch import needs_slurm, slurm
from clusters import wait_until
from helpers import planted_corpus
from stores import free_port

from distmom.cli.main import main
from distmom.corpus import from_arrays

DEPLOY = Path(__file__).parents[2] / "deploy"
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(not DEPLOY.is_dir(), reason="needs the files of deploy/"),
    needs_slurm,
]


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


def test_a_submitted_job_has_its_settings_and_the_same_bits(tmp_path):
    block = planted_corpus(800, d=300, n_labels=12, k=3, shard_documents=800)[2].read_shard(0)
    corpus, model = str(tmp_path / "corpus"), ("-k", "3", "--head", "posterior")
    from_arrays(corpus, block.words, block.labels, shard_documents=100)
    assert main(["fit", corpus, str(tmp_path / "local"), *model, "--workers", "0", "--quiet"]) == 0
    with slurm(tmp_path / "slurm") as environment:
        log = tmp_path / "job.log"
        sbatch = [
            "sbatch",
            "--parsable",
            "--ntasks=2",
            "--mem-per-cpu=1G",
            f"--output={log}",
        ]
        variables = {**environment, "HOST": "127.0.0.1", "PORT": str(free_port()), "MEMORY": "1GiB"}
        fit = [str(DEPLOY / "slurm.sh"), corpus, str(tmp_path / "m"), *model]
        sent = subprocess.run(
            [*sbatch, *fit], env=variables, capture_output=True, text=True, check=True, cwd=tmp_path
        )
        job = sent.stdout.strip()
        wait_until(lambda: has_settings(job))
        certificates = tmp_path / f".distmom-{job}"
        assert certificates.stat().st_mode & 0o777 == 0o700
        assert (certificates / "key.pem").stat().st_mode & 0o777 == 0o600

        def state():
            shown = subprocess.run(
                ["scontrol", "show", "job", job], env=environment, capture_output=True, text=True, check=True
            ).stdout
            return shown.split("JobState=")[1].split()[0]

        wait_until(lambda: state() not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), 120)
        assert state() == "COMPLETED", log.read_text()
    assert "tls://127.0.0.1" in log.read_text()
    assert not certificates.exists()
    for name in ("vocabulary.txt", "labels.txt"):
        assert (tmp_path / "m" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    for path in (tmp_path / "local" / "arrays.zarr").rglob("*"):
        if path.is_file():
            assert (tmp_path / "m" / path.relative_to(tmp_path / "local")).read_bytes() == path.read_bytes()
