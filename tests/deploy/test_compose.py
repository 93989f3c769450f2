"""deploy/compose.yaml: what it says, and its commands as processes of this machine."""

import os
import shlex
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from clusters import wait_until
from dask.utils import parse_bytes
from deployment import (
    DEPLOY,
    PATH,
    certificates,
    needs,
    needs_deploy,
    needs_extra,
    planted,
    run,
    same_models,
    started,
)
from stores import free_port

pytestmark = [needs_deploy, needs("podman"), needs_extra("podman-compose")]
FILE = DEPLOY / "compose.yaml"


@pytest.fixture(scope="module")
def composed():
    """The settings with all variables and references replaced, as a reader of compose files finds them."""
    given = {"OWNER": "1234", "TLS": "/given/tls", "DATA": "/given/data", "WORKERS": "2"}
    shown = run(
        "podman-compose",
        "-f",
        FILE,
        "--profile",
        "driver",
        "config",
        env={**os.environ, **given, "PATH": PATH},
    )
    return yaml.safe_load(shown)


def words(service):
    command = service["command"]
    return shlex.split(command) if isinstance(command, str) else list(command)


def after(option, command):
    return command[command.index(option) + 1]


def test_services_fit_together(composed, tmp_path):
    services = composed["services"]
    assert set(services) == {"scheduler", "worker", "driver"}
    scheduler, worker, driver = (services[name] for name in ("scheduler", "worker", "driver"))
    names = {path.name for path in certificates(tmp_path / "tls").iterdir()}
    for service in services.values():
        assert service["user"] == "1234:0"
        assert set(service["volumes"]) == {"/given/tls:/tls:ro", "/given/data:/data"}
        files = {value for value in service["environment"].values() if value.startswith("/tls/")}
        assert {Path(file).name for file in files} == names
        assert service["environment"]["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "True"
        assert shutil.which(words(service)[0], path=PATH)
        context = (DEPLOY / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).is_file()
    port = after("--port", words(scheduler))
    address = f"tls://scheduler:{port}"
    assert after("--protocol", words(scheduler)) == "tls"
    assert words(worker)[2] == after("--scheduler", words(driver)) == address
    # Nothing but the dashboard, and for this machine only.
    assert [place.rsplit(":", 1)[0] for place in scheduler["ports"]] == ["127.0.0.1:8787"]
    assert after("--dashboard-address", words(scheduler)) == ":8787"
    assert not any("ports" in service for service in (worker, driver))
    assert int(worker["deploy"]["replicas"]) == 2
    assert parse_bytes(after("--memory-limit", words(worker))) < parse_bytes(worker["mem_limit"] + "iB")
    assert driver["profiles"] == ["driver"]


@pytest.mark.cluster
@pytest.mark.slow
def test_commands_of_the_services_make_a_cluster_with_tls(composed, tmp_path):
    """Hosts, ports and directories are those of this machine."""
    services = composed["services"]
    model = planted(tmp_path)
    tls, port, dashboard = certificates(tmp_path / "tls"), free_port(), free_port()

    def here(text):
        for name, value in (
            ("scheduler:8786", f"127.0.0.1:{port}"), (":8787", f":{dashboard}"), ("8786", str(port)),
            ("/tls/", f"{tls}/"),
        ):  # fmt: skip
            text = text.replace(name, value)
        return text

    def command(name):
        return [here(word) for word in words(services[name])]

    def options(name):
        own = {key: here(value) for key, value in services[name]["environment"].items()}
        return {"env": {**os.environ, **own, "PATH": PATH}, "cwd": tmp_path}

    kind, *check = services["scheduler"]["healthcheck"]["test"]
    assert kind == "CMD"
    with ExitStack() as stack:
        stack.enter_context(
            started(
                tmp_path / "scheduler.log",
                *command("scheduler"),
                "--host",
                "127.0.0.1",
                **options("scheduler"),
            )
        )

        def healthy():
            try:
                run(*map(here, check), **options("scheduler"))
            except AssertionError:
                return False
            return True

        wait_until(healthy)
        for number in range(int(services["worker"]["deploy"]["replicas"])):
            stack.enter_context(started(tmp_path / f"{number}.log", *command("worker"), **options("worker")))
        logs = [tmp_path / f"{number}.log" for number in range(2)]
        wait_until(lambda: all("Registered to" in log.read_text() for log in logs))
        # Paths of the command are relative, as in the container.
        with started(tmp_path / "driver.log", *command("driver"), *model, **options("driver")) as driver:
            assert driver.wait(120) == 0, (tmp_path / "driver.log").read_text()
    assert f"on 2 threads of tls://127.0.0.1:{port}" in (tmp_path / "driver.log").read_text()
    assert same_models(tmp_path / "model", tmp_path / "local")
