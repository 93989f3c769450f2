"""deploy/Dockerfile and deploy/compose.yaml with Docker: containers of a new image, in a network of their own."""

import os
import signal
import urllib.request
from pathlib import Path

import pytest
import yaml
from clusters import wait_until
from containers import WARM, base_files, engine, import_base, needs_engine
from deployment import DEPLOY, certificates, needs_deploy, needs_extra, run, same_models

import distmom

pytestmark = needs_deploy
#: user of the containers
OWNER = 1234
#: where the package of Compose has its program
PLUGIN = "./usr/libexec/docker/cli-plugins/docker-compose"


class Compose:
    """Docker Compose for deploy/compose.yaml, with another base image than that of the Dockerfile."""

    def __init__(self, docker, program, override, **variables):
        self.command = (program, "-f", DEPLOY / "compose.yaml", "-f", override)
        self.environment = {**docker.environment, **variables}

    def __call__(self, *command, timeout=120):
        return run(*self.command, *command, timeout=timeout, env=self.environment)

    def logs(self, service):
        return self("logs", "--no-color", service)


@needs_extra("hadolint")
def test_the_image_follows_the_rules_of_hadolint():
    assert run("hadolint", DEPLOY / "Dockerfile") == ""


@pytest.fixture(scope="module")
def docker(tmp_path_factory):
    """An engine whose images and containers are removed with it."""
    with engine(tmp_path_factory.mktemp("docker")) as docker:
        yield docker


@pytest.fixture(scope="module")
def compose(docker, request, tmp_path_factory):
    """A scheduler and two workers as containers, brought up as the file says."""
    folder = tmp_path_factory.mktemp("compose")
    import_base(docker, base_files(request.config.cache))
    # Debian 12 has the first version of Compose only, which refuses the file.
    package = folder / "compose.tar"
    run("mmdebstrap", "--variant=extract", "--include=docker-compose", "trixie", package, timeout=200)
    run("tar", "-xf", package, "-C", folder, "--strip-components=5", PLUGIN)
    recipe = {"args": {"BASE": "distmom-base", "WARM": WARM}, "network": "host"}
    override = folder / "override.yaml"
    override.write_text(
        yaml.safe_dump({"services": {name: {"build": recipe} for name in ("scheduler", "worker", "driver")}})
    )
    tls, data = certificates(folder / "tls"), folder / "data"
    data.mkdir()
    for path in (data, tls, *tls.iterdir()):
        os.chown(path, OWNER, 0)
    variables = {"OWNER": str(OWNER), "TLS": str(tls), "DATA": str(data), "WORKERS": "2"}
    composed = Compose(docker, folder / Path(PLUGIN).name, override, **variables)
    composed("up", "--build", "--detach", "scheduler", "worker", timeout=900)
    try:
        yield composed, data
    finally:
        composed("down", timeout=120)


@pytest.fixture(scope="module")
def inside(docker, compose):
    """A function that runs a command in a container of the image, which has no network."""
    container = docker("run", "--detach", "--network", "none", "distmom", "sleep", "infinity").strip()
    yield lambda *command, user="10001:0": docker("exec", "--user", user, container, *command, timeout=120)
    docker("rm", "--force", container)


@needs_engine
def test_the_image_has_the_user_and_the_settings_of_the_recipe(docker, inside):
    config = docker.inspect("distmom", ".Config")
    assert config["User"] == "10001"
    assert config["Entrypoint"][0] == "tini"
    assert config["Labels"]["org.opencontainers.image.title"] == "distmom"
    assert inside("distmom", "--version") == f"distmom, version {distmom.__version__}\n"
    assert inside("cat", "/proc/1/comm") == "tini\n"
    assert "yes" not in inside("sh", "-c", "touch /opt/distmom/x /etc/dask/x && echo yes; true")
    variables = inside("sh", "-c", "echo $OMP_NUM_THREADS $MALLOC_TRIM_THRESHOLD_")
    assert variables.split() == ["1", "134217728"]
    assert inside("dask", "config", "get", "distributed.scheduler.allowed-failures").split() == ["5"]


@needs_engine
def test_kernels_of_the_image_are_found_again_and_others_are_added_to_them(inside):
    def kernels():
        return set(inside("sh", "-c", "find $NUMBA_CACHE_DIR -name '*.nbc'").split())

    compiled = kernels()
    assert compiled
    inside(*WARM.replace("/tmp/warm", "/tmp/corpus").split())
    assert kernels() == compiled
    # Any other user, too, if it is in the group 0.
    fit = ("distmom", "fit", "/tmp/corpus", "/tmp/model", "-k", "3", "--head", "posterior", "--workers", "0")
    inside(*fit, user="1234:0")
    assert kernels() > compiled


@needs_engine
def test_containers_have_the_rights_and_limits_of_the_file(docker, compose):
    composed, _ = compose
    workers = composed("ps", "--quiet", "worker").split()
    assert len(workers) == 2
    for worker in workers:
        assert docker("exec", worker, "id", "-u").strip() == str(OWNER)
        assert docker("exec", worker, "grep", "CapEff", "/proc/1/status").split()[1] == 16 * "0"
        assert docker("exec", worker, "grep", "NoNewPrivs", "/proc/1/status").split()[1] == "1"
        assert docker.inspect(worker, ".HostConfig.Memory") == 2560 * 2**20
    (scheduler,) = composed("ps", "--quiet", "scheduler").split()
    assert docker.inspect(scheduler, ".State.Health.Status") == "healthy"
    with urllib.request.urlopen("http://127.0.0.1:8787/health", timeout=10) as answer:
        assert answer.read() == b"ok"


@needs_engine
def test_a_fit_of_containers_has_the_bits_of_one_process_also_after_a_worker_was_killed(docker, compose):
    composed, data = compose
    driver = ("run", "--rm", "driver", "distmom")
    composed(*driver, "synth", "bibtex", "corpus", "--docs", "2000", "--shard-docs", "100")
    model = ("-k", "3", "--head", "posterior")
    composed(*driver, "fit", "corpus", "local", *model, "--workers", "0")
    composed(*driver, "fit", "corpus", "model", *model, "--scheduler", "tls://scheduler:8786")
    assert same_models(data / "model", data / "local")

    worker = composed("ps", "--quiet", "worker").split()[0]
    os.kill(docker.inspect(worker, ".State.Pid"), signal.SIGKILL)
    wait_until(lambda: docker.inspect(worker, ".RestartCount") == 1)
    # Both workers, and one of them again.
    wait_until(lambda: composed.logs("worker").count("Registered to") == 3)
    composed(*driver, "fit", "corpus", "again", *model, "--scheduler", "tls://scheduler:8786")
    assert same_models(data / "again", data / "local")


@needs_engine
def test_containers_end_when_they_are_stopped(compose):
    composed, _ = compose
    composed("stop", timeout=120)
    logs = composed.logs("worker")
    assert logs.count("End worker") >= 2
    assert "End scheduler" in composed.logs("scheduler")
