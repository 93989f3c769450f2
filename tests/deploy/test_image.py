"""deploy/Dockerfile: its style, and an image that is built and runs a cluster."""

import faulthandler
import json
import os
import signal
import subprocess
from contextlib import ExitStack, contextmanager

import pytest
from clusters import wait_until
from deployment import DEPLOY, needs, needs_deploy, needs_extra, run, same_models, started
from stores import free_port

pytestmark = needs_deploy
FILE = DEPLOY / "Dockerfile"
#: compiles some kernels in seconds; all of them take minutes
WARM = "distmom synth bibtex /tmp/warm --docs 300"


@needs_extra("hadolint")
def test_the_file_follows_the_rules_of_hadolint():
    assert run("hadolint", FILE) == ""


class Builder:
    """Buildah with images in a directory of its own."""

    def __init__(self, folder):
        # Without a daemon, and in a container that has no more rights than this process.
        self.environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "overlay"}
        self.stores = ("--root", folder / "images", "--runroot", folder / "run")

    def __call__(self, *command, timeout=60):
        return run(*self.command(*command), timeout=timeout, env=self.environment)

    def command(self, *command):
        return ("buildah", *self.stores, *command)

    @contextmanager
    def started(self, log, container, *command):
        """Run a command in a container until the block ends."""
        with started(log, *self.command("run", container, "--", *command), env=self.environment) as process:
            try:
                yield process
            finally:
                # Buildah would end without them.
                inside = subprocess.run(
                    ["ps", "-s", str(process.pid), "-o", "pid=,comm="],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                for line in inside.stdout.splitlines():
                    number, name = line.split(maxsplit=1)
                    if name == "tini":
                        os.kill(int(number), signal.SIGTERM)
                process.wait(30)


@pytest.fixture(scope="module")
def base(request):
    """The files of a Debian with Python, in place of the image that the file names."""
    place = request.config.cache.mkdir("distmom-image") / "bookworm.tar"
    if not place.exists():
        new = place.with_suffix(".new.tar")
        packages = "--include=python3,python3-venv,ca-certificates"
        run("mmdebstrap", "--variant=minbase", packages, "bookworm", new, timeout=200)
        new.rename(place)
    return place


@pytest.fixture(scope="module")
def image(base, tmp_path_factory):
    """The image; yields a builder that has it as localhost/distmom."""
    # It takes longer than the time after which pytest prints where a test is.
    faulthandler.cancel_dump_traceback_later()
    folder = tmp_path_factory.mktemp("image")
    buildah = Builder(folder)
    container = buildah("from", "scratch").strip()
    buildah("add", container, base, "/")
    buildah("commit", "--rm", container, "localhost/base", timeout=120)
    # What pip of this machine needs to find packages.
    shared = [path for path in ("/etc/ssl/certs", "/etc/pip.conf") if os.path.exists(path)]
    mounts = [f"--volume={path}:{path}:ro" for path in shared]
    arguments = ("--build-arg", "BASE=localhost/base", "--build-arg", f"WARM={WARM}")
    build = ("bud", "--pull-never", *arguments, *mounts, "-f", FILE, "-t", "localhost/distmom", DEPLOY.parent)
    try:
        buildah(*build, timeout=500)
        yield buildah
    finally:
        # Which also unmounts their files.
        buildah("rm", "--all")
        buildah("rmi", "--all", "--force")


def kernels(run_in):
    found = run_in("sh", "-c", "find $NUMBA_CACHE_DIR -name '*.nbc'").split()
    assert found
    return set(found)


@needs("buildah", "mmdebstrap")
@pytest.mark.skipif(os.getuid() != 0, reason="needs the rights of root, to build an image without a daemon")
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_an_image_runs_a_cluster_without_rights(image, tmp_path):
    settings = json.loads(image("inspect", "--type", "image", "localhost/distmom"))["OCIv1"]["config"]
    assert settings["User"] == "10001"
    assert settings["Entrypoint"][0] == "tini"
    assert settings["Labels"]["org.opencontainers.image.title"] == "distmom"
    tmp_path.chmod(0o777)
    container = image("from", f"--volume={tmp_path}:/data", "localhost/distmom").strip()

    def run_in(*command, options=()):
        return image("run", *options, container, "--", *command, timeout=120)

    assert run_in("id", "-u").strip() == "10001"
    assert "yes" not in run_in("sh", "-c", "touch /opt/distmom/x /etc/dask/x && echo yes; true")
    variables = run_in("tini", "-g", "--", "sh", "-c", "echo $OMP_NUM_THREADS $MALLOC_TRIM_THRESHOLD_")
    assert variables.split() == ["1", "134217728"]
    assert run_in("dask", "config", "get", "distributed.scheduler.allowed-failures").split() == ["5"]
    # Kernels that were compiled for the image are found again, and others are added to them.
    compiled = kernels(run_in)
    run_in(*WARM.replace("/tmp/warm", "/data/corpus").split())
    assert kernels(run_in) == compiled
    fit = (
        "distmom",
        "fit",
        "/data/corpus",
        "/data/local",
        "-k",
        "3",
        "--head",
        "posterior",
        "--workers",
        "0",
    )
    # Any other user, too, if it is in the group 0.
    run_in(*fit, options=("--user", "1234:0"))
    assert kernels(run_in) > compiled
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    with ExitStack() as stack:
        scheduler = ("dask", "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
        stack.enter_context(image.started(tmp_path / "scheduler.log", container, "tini", "--", *scheduler))
        worker = ("dask", "worker", address, "--nworkers", "1", "--nthreads", "1", "--no-dashboard")
        stack.enter_context(image.started(tmp_path / "worker.log", container, "tini", "--", *worker))
        wait_until(lambda: "Registered to" in (tmp_path / "worker.log").read_text())
        fit = (*fit[:3], "/data/model", *fit[4:-2], "--scheduler", address)
        run_in(*fit)
    for part in ("scheduler", "worker"):
        assert f"End {part}" in (tmp_path / f"{part}.log").read_text()
    assert same_models(tmp_path / "model", tmp_path / "local")
