"""A fit on a scheduler and workers that were started by hand, each on a host of its own, from an object store.

The hosts are network namespaces joined by a bridge: they have addresses and ports of their own, and a working
and temporary directory that the others do not see. The rest of the file system is common.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers import planted_corpus, scores
from stores import environment, free_port

from distmom.cli.main import main
from distmom.corpus import from_arrays, open_corpus
from distmom.evaluate.evaluation import evaluate_corpus
from distmom.models import MultiLabelMoM

pytestmark = pytest.mark.cluster

COMMAND = [sys.executable, "-m", "distmom.cli.main"]
MODEL = ("-k", "4", "--head", "linear")
NAMES = ("store", "scheduler", "one", "two")
#: asks every worker for its address and the number of tasks it has run
COUNT_TASKS = """
import json, sys
from distributed import Client
with Client(sys.argv[1], set_as_default=False, timeout=20) as client:
    print(json.dumps(client.run(lambda dask_worker: dask_worker.state.executed_count)))
"""
#: waits for the service, copies a corpus into a new bucket, and waits for the workers
PREPARE = """
import sys, time
from distributed import Client
from distmom.corpus import copy_corpus
from stores import S3
service = S3(sys.argv[1], int(sys.argv[2]))
for _ in range(600):
    try:
        service.make_bucket("bucket")
        break
    except OSError:
        time.sleep(0.05)
copy_corpus(sys.argv[3], "s3://bucket/c")
with Client(sys.argv[4], set_as_default=False, timeout=180) as client:
    client.wait_for_workers(2, timeout=180)
"""


@dataclass(frozen=True)
class Host:
    """An address, and the prefix of a command that runs there."""

    address: str
    prefix: tuple[str, ...] = ()
    port: int = 8786


def ip(*arguments):
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20).stdout


def obstacle():
    """Return why namespaces cannot be created here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces are made by root only"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (iproute2): run tests/packages.sh"
    space = f"distmom-{uuid.uuid4().hex[:6]}"
    try:
        ip("netns", "add", space)
        try:
            ip("-n", space, "link", "add", "bridge", "type", "bridge")
            ip("-n", space, "link", "add", "one", "type", "veth", "peer", "name", "two")
        finally:
            ip("netns", "del", space)
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not permitted here: {error.stderr.strip()}"
    return ""


@contextmanager
def separate_hosts(own):
    """Create a namespace per name, connected by a bridge in the first; ``own`` is a separate directory of each."""
    tag = uuid.uuid4().hex[:6]
    spaces = {name: f"distmom-{tag}-{name}" for name in NAMES}
    made = []
    try:
        for space in spaces.values():
            ip("netns", "add", space)
            made.append(space)
            ip("-n", space, "link", "set", "lo", "up")
        switch = spaces["store"]
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        ip("-n", switch, "addr", "add", "10.77.0.1/24", "dev", "bridge")
        for number, name in enumerate(NAMES[1:], 2):
            peer = ("peer", "name", "eth0", "netns", spaces[name])
            ip("-n", switch, "link", "add", name, "type", "veth", *peer)
            ip("-n", switch, "link", "set", name, "master", "bridge", "up")
            ip("-n", spaces[name], "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", spaces[name], "link", "set", "eth0", "up")
        hosts = {}
        for number, name in enumerate(NAMES, 1):
            private = own.with_name(f"{own.name}-{name}")
            private.mkdir()
            # A namespace is entered with mounts that are seen by nobody else.
            mount = ["sh", "-c", 'mount --bind "$0" "$1" && cd "$1" && shift && exec "$@"', private, own]
            prefix = ("ip", "netns", "exec", spaces[name], *map(str, mount))
            hosts[name] = Host(f"10.77.0.{number}", prefix)
        yield hosts
    finally:
        for space in made:
            for left in ip("netns", "pids", space).split():
                os.kill(int(left), signal.SIGKILL)
            ip("netns", "del", space)


@contextmanager
def one_host(own):
    """All processes on this machine."""
    yield {name: Host("127.0.0.1", port=free_port()) for name in NAMES}


@contextmanager
def running(host, log, *command, **options):
    """Run a Python module on a host until the block ends."""
    whole = [*host.prefix, sys.executable, "-m", *command]
    with log.open("wb") as out:
        process = subprocess.Popen(whole, stdout=out, stderr=out, **options)
    try:
        yield process
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@pytest.mark.slow
def test_scheduler_and_workers_on_separate_hosts_give_the_same_bits(tmp_path):
    if reason := obstacle():
        pytest.skip(reason)
    with separate_hosts(directory(tmp_path / "own")) as hosts:
        check_fit_on(hosts, tmp_path)


@pytest.mark.slow
def test_scheduler_and_workers_on_one_host_give_the_same_bits(tmp_path):
    if not obstacle():
        pytest.skip("separate hosts are tested here")
    with one_host(directory(tmp_path / "own")) as hosts:
        check_fit_on(hosts, tmp_path)


def directory(path):
    path.mkdir()
    return path


def check_fit_on(hosts, tmp_path):
    """Fit from a store on a scheduler and two workers, and compare with a fit from disk in this process."""
    corpus = str(tmp_path / "corpus")
    # So many words and labels that a head's arrays are read from a file, and not sent.
    block = planted_corpus(1600, d=1500, n_labels=24, k=4, shard_documents=1600)[2].read_shard(0)
    from_arrays(corpus, block.words, block.labels, shard_documents=400)
    assert main(["fit", corpus, str(tmp_path / "local"), *MODEL, "--workers", "0", "--quiet"]) == 0
    own, shared = tmp_path / "own", directory(tmp_path / "shared")
    store, scheduler = hosts["store"], hosts["scheduler"]
    path = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    endpoint = f"http://{store.address}:{store.port}"
    variables = {**environment(endpoint), "PYTHONPATH": path, "TMPDIR": str(own)}
    options = {"env": variables, "cwd": own}

    def done(*command, **extra):
        """Run a command to its end on the host of the store, which is nobody of the cluster."""
        ended = subprocess.run(
            [*store.prefix, *command], capture_output=True, text=True, timeout=300, check=False, cwd=own,
            env={**variables, **extra},
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert "Traceback" not in ended.stderr
        return ended

    service = ["moto.server", "-H", store.address, "-p", str(store.port)]
    address = f"tcp://{scheduler.address}:{scheduler.port}"
    listen = ["dask", "scheduler", "--host", scheduler.address, "--port", str(scheduler.port)]
    work = ["dask", "worker", address, "--nworkers", "1", "--nthreads", "1", "--memory-limit", "2GiB"]
    commands = {
        "store": service,
        "scheduler": [*listen, "--no-dashboard"],
        "one": [*work, "--no-dashboard"],
        "two": [*work, "--no-dashboard"],
    }
    with ExitStack() as stack:
        for name, command in commands.items():
            stack.enter_context(running(hosts[name], tmp_path / f"{name}.log", *command, **options))
        done(sys.executable, "-c", PREPARE, store.address, str(store.port), corpus, address)
        # From here on the corpus can only come from the store.
        os.rename(corpus, tmp_path / "moved")
        fit = done(
            *COMMAND, "fit", "s3://bucket/c", str(shared / "m"), *MODEL, "--scheduler", address, "--insecure"
        )
        assert f"fitting on 2 threads of {address}" in fit.stderr
        counts = json.loads(done(sys.executable, "-c", COUNT_TASKS, address).stdout)
        assert min(counts.values()) > 0
        found = sorted(worker.split("/")[2].rpartition(":")[0] for worker in counts)
        assert found == [hosts["one"].address, hosts["two"].address]
        # What workers need of a model lies in the directory for temporary files.
        evaluate = (
            "evaluate",
            str(shared / "m"),
            "s3://bucket/c",
            "--scheduler",
            address,
            "--insecure",
            "--json",
        )
        there = json.loads(done(*COMMAND, *evaluate, TMPDIR=str(shared)).stdout)
    moved = tmp_path / "moved"
    assert scores(shared / "m", moved) == scores(tmp_path / "local", moved)
    assert there == evaluate_corpus(MultiLabelMoM.load(tmp_path / "local"), open_corpus(moved))
    assert [entry.name for entry in shared.iterdir()] == ["m"]
