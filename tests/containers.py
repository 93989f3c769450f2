"""A Docker engine of the tests, and the images that it builds of deploy/Dockerfile."""

import faulthandler
import json
import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from clusters import wait_until
from deployment import DEPLOY, PATH, needs, run, started

MARKS = (
    needs("dockerd", "docker", "mmdebstrap"),
    pytest.mark.skipif(os.getuid() != 0, reason="needs the rights of root, to start a Docker engine"),
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(1500),
)
#: compiles some kernels in seconds; all of them take minutes
WARM = "distmom synth bibtex /tmp/warm --docs 300"
#: what pip of this machine needs to find packages
SHARED = ("/etc/ssl/certs", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates", "/etc/pip.conf")


def needs_engine(test):
    """Mark a test that runs containers."""
    for mark in MARKS:
        test = mark(test)
    return test


class Docker:
    """The clients of an engine that listens on a socket of its own."""

    def __init__(self, address):
        self.address = address
        self.environment = {**os.environ, "PATH": PATH, "DOCKER_HOST": address}

    def __call__(self, *command, timeout=60):
        return run("docker", *command, timeout=timeout, env=self.environment)

    def inspect(self, container, field):
        return json.loads(self("inspect", "--format", f"{{{{json {field}}}}}", container))


@contextmanager
def engine(folder, *options, inside=("unshare", "--mount")):
    """Run an engine whose images and containers are below a folder; neither network nor firewall is changed.

    Parameters
    ----------
    folder : Path
    *options : str
        Further options of dockerd; by default its containers have no network but that of the machine.
    inside : tuple of str
        Start of the command; by default, the mounts of the engine are its own and end with it.
    """
    # It takes longer than the time after which pytest prints where a test is.
    faulthandler.cancel_dump_traceback_later()
    address, log = f"unix://{folder}/docker.sock", folder / "log"
    log.unlink(missing_ok=True)
    fixed = ("--iptables=false", "--storage-driver=overlay2", "--host", address)
    places = ("--data-root", folder / "data", "--exec-root", folder / "run", "--pidfile", folder / "pid")
    command = (*inside, "dockerd", *(options or ("--bridge=none",)), *fixed, *places)
    with started(log, *command) as process:

        def listens():
            assert process.poll() is None, log.read_text()[-4000:]
            return "API listen" in log.read_text()

        wait_until(listens)
        yield Docker(address)


def base_files(cache):
    """Return the files of a Debian with Python, in place of the image that the Dockerfile names."""
    place = cache.mkdir("distmom-image") / "bookworm.tar"
    if not place.exists():
        new = place.with_suffix(".new.tar")
        packages = "--include=python3,python3-venv,ca-certificates"
        run("mmdebstrap", "--variant=minbase", packages, "bookworm", new, timeout=200)
        new.rename(place)
    return place


def import_base(docker, files):
    """Make the image ``distmom-base`` of these files, and of what pip needs to find packages."""
    docker("import", files, "bookworm", timeout=300)
    docker("create", "--name", "base", "--network", "none", "bookworm", "true")
    for path in filter(os.path.exists, SHARED):
        docker("cp", path, f"base:{Path(path).parent}/")
    docker("commit", "base", "distmom-base", timeout=120)
    docker("rm", "base")


def build(docker, tag):
    """Build deploy/Dockerfile on ``distmom-base``."""
    arguments = ("--build-arg", "BASE=distmom-base", "--build-arg", f"WARM={WARM}", "--network", "host")
    docker("build", *arguments, "-f", DEPLOY / "Dockerfile", "-t", tag, DEPLOY.parent, timeout=900)
