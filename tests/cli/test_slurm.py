"""deploy/slurm.sh under a real SLURM, which runs on this machine for the time of the test."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from clusters import wait_until
from helpers import planted_corpus
from stores import free_port

from distmom.cli.main import main
from distmom.corpus import from_arrays

DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
missing = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(not DEPLOY.is_dir(), reason="needs the files of deploy/"),
    pytest.mark.skipif(bool(missing), reason=f"needs SLURM and munge: {', '.join(missing)}"),
]

SETTINGS = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
StateSaveLocation={place}/state
SlurmctldPidFile={place}/slurmctld.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdPidFile={place}/slurmd.pid
SlurmdLogFile={place}/slurmd.log
SlurmdSpoolDir={place}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@contextmanager
def slurm(place):
    """Run SLURM with one node in a directory; yield the environment in which its commands find it."""
    for name in ("state", "spool"):
        (place / name).mkdir(parents=True)
    place.chmod(0o755)
    key = place / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    settings = {"place": place, "user": user, "host": socket.gethostname().split(".")[0]}
    (place / "slurm.conf").write_text(SETTINGS.format(ports=(free_port(), free_port()), **settings))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "DASK_"))},
        "SLURM_CONF": str(place / "slurm.conf"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
    }
    munge = [f"--{name}={place}/munge.{name}" for name in ("socket", "seed-file", "log-file", "pid-file")]
    commands = [
        ["munged", "--force", "--foreground", f"--key-file={key}", *munge],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", "one"],
    ]
    started = []
    try:
        for command in commands:
            with (place / f"{command[0]}.out").open("wb") as out:
                started.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=place))
        state = ["sinfo", "--noheader", "--format=%T"]
        wait_until(
            lambda: (
                subprocess.run(state, env=environment, capture_output=True, check=False).stdout == b"idle\n"
            )
        )
        yield environment
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            process.wait(30)


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

        def state():
            shown = subprocess.run(
                ["scontrol", "show", "job", job], env=environment, capture_output=True, text=True, check=True
            ).stdout
            return shown.split("JobState=")[1].split()[0]

        wait_until(lambda: state() not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), 120)
        assert state() == "COMPLETED", log.read_text()
    for name in ("vocabulary.txt", "labels.txt"):
        assert (tmp_path / "m" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    for path in (tmp_path / "local" / "arrays.zarr").rglob("*"):
        if path.is_file():
            assert (tmp_path / "m" / path.relative_to(tmp_path / "local")).read_bytes() == path.read_bytes()
