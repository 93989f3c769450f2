"""The memory limit of the workers of deploy/slurm.sh, with stand-ins for the programs that it calls."""

import os
import subprocess

import pytest
from deployment import DEPLOY, needs_deploy

pytestmark = needs_deploy


@pytest.mark.parametrize(
    ("variables", "limit"),
    [
        ({}, "4096MiB"),
        ({"SLURM_MEM_PER_CPU": "8192"}, "4096MiB"),
        ({"SLURM_MEM_PER_CPU": "2048"}, "2048MiB"),
        ({"SLURM_MEM_PER_CPU": "1024", "SLURM_CPUS_PER_TASK": "2"}, "2048MiB"),
        ({"SLURM_MEM_PER_NODE": "16384", "SLURM_NTASKS_PER_NODE": "8"}, "2048MiB"),
        # All memory of the node.
        ({"SLURM_MEM_PER_NODE": "0"}, "4096MiB"),
        ({"SLURM_MEM_PER_CPU": "2048", "MEMORY": "8GiB"}, "8GiB"),
    ],
)
def test_a_worker_has_no_more_memory_than_its_task(variables, limit, tmp_path):
    for name in ("python", "dask", "distmom", "srun"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/{name}.called\n')
        program.chmod(0o755)
    # The fit lasts until the worker has been started.
    (tmp_path / "distmom").write_text(
        f"#!/bin/sh\nuntil [ -s {tmp_path}/srun.called ]; do sleep 0.05; done\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "DASK_"))}
    kept.pop("MEMORY", None)
    environment = {**kept, "PATH": f"{tmp_path}:{kept['PATH']}", "HOST": "127.0.0.1", **variables}
    done = subprocess.run(
        ["bash", str(DEPLOY / "slurm.sh"), "corpus", "model"], cwd=tmp_path, env=environment, timeout=30,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    called = (tmp_path / "srun.called").read_text().split()
    assert called[called.index("--memory-limit") + 1] == limit
