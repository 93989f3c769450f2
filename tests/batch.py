"""A SLURM of one node, which runs on this machine for the time of a test."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from clusters import wait_until
from deployment import needs
from stores import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
#: mark of tests that need it
needs_slurm = needs(*PROGRAMS)

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
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=8000
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
