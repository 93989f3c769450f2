"""A SLURM of one node, which runs on this machine for the time of a test."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

from clusters import wait_until
from deployment import needs, started
from stores import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
#: command that runs the node
NODE = ["slurmd", "-D", "-N", "one"]
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
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL State=UP PriorityTier=2
"""


def fail_node(environment, job):
    """Kill everything that runs on the node, as a power failure does, and let SLURM know of it."""
    daemon = int(Path(environment["SLURM_CONF"]).with_name("slurmd.pid").read_text())
    os.kill(daemon, signal.SIGKILL)
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            of_job = f"SLURM_JOB_ID={job}".encode() in (place / "environ").read_bytes().split(b"\0")
            if of_job or (place / "cmdline").read_bytes().startswith(f"slurmstepd: [{job}.".encode()):
                os.kill(int(place.name), signal.SIGKILL)
    down = ("scontrol", "update", "NodeName=one", "State=DOWN", "Reason=power")
    subprocess.run(down, env=environment, check=True)


@contextmanager
def node(environment):
    """Run the node again."""
    with started(Path(environment["SLURM_CONF"]).with_name("slurmd.out"), *NODE, env=environment) as process:
        yield process


@contextmanager
def slurm(place):
    """Run SLURM with one node in a directory; yield the environment in which its commands find it."""
    # One at a time: where three ran at once on two processors, jobs did not end within the limits of time.
    with (Path(tempfile.gettempdir()) / "distmom-slurm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _running(place) as environment:
            yield environment


@contextmanager
def _running(place):
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
        NODE,
    ]
    running = []
    try:
        for command in commands:
            with (place / f"{command[0]}.out").open("wb") as out:
                running.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=place))
        state = ["sinfo", "--noheader", "--format=%T"]
        wait_until(
            lambda: (
                subprocess.run(state, env=environment, capture_output=True, check=False).stdout == b"idle\n"
            )
        )
        yield environment
    finally:
        for process in reversed(running):
            process.send_signal(signal.SIGTERM)
            process.wait(30)
