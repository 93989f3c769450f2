"""deploy/prometheus: alerts on metrics that a scheduler of Dask really has."""

import json
import re
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml
from clusters import running, wait_until
from deployment import DEPLOY, needs, needs_deploy, run, started
from distributed import Client
from stores import free_port

pytestmark = needs_deploy
PROMETHEUS = DEPLOY / "prometheus"


def read(url):
    """Return what a server answers; nothing as long as it does not."""
    try:
        with urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except URLError:
        return ""


def expressions():
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


@pytest.fixture
def scheduler(tmp_path):
    """A scheduler with its metrics; yields its address and that of the metrics."""
    pytest.importorskip("prometheus_client", reason="needs prometheus_client: pip install -e '.[dev]'")
    port, dashboard = free_port(), f"127.0.0.1:{free_port()}"
    place = ("--host", "127.0.0.1", "--port", str(port), "--dashboard-address", dashboard)
    with running(tmp_path / "scheduler.log", "dask", "scheduler", *place):
        wait_until(lambda: read(f"http://{dashboard}/health"))
        yield f"tcp://127.0.0.1:{port}", dashboard


@pytest.mark.cluster
def test_metrics_of_the_alerts_exist(scheduler, tmp_path):
    address, dashboard = scheduler
    place = ("--nworkers", "1", "--nthreads", "1", "--no-nanny", "--no-dashboard")
    with (
        running(tmp_path / "worker.log", "dask", "worker", address, *place),
        Client(address, set_as_default=False, timeout=30) as client,
    ):
        client.wait_for_workers(1, timeout=60)
        assert client.submit(sum, (1, 2)).result(30) == 3
        text = wait_until(lambda: read(f"http://{dashboard}/metrics"))
    samples = {line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")}
    exposed = {sample.split("{")[0] for sample in samples}
    for alert, expression in expressions().items():
        names = set(re.findall(r"\bdask_\w+", expression))
        assert names <= exposed, alert
        assert names or "up{" in expression
        for name, states in re.findall(r'(dask_\w+)\{state=~?"([^"]+)"\}', expression):
            for state in states.split("|"):
                assert f'{name}{{state="{state}"}}' in samples, alert


@needs("promtool")
def test_alerts_fire_when_they_should():
    alerts = DEPLOY.parent / "tests" / "deploy" / "alerts.test.yml"
    assert "SUCCESS" in run("promtool", "test", "rules", alerts)
    run("promtool", "check", "config", PROMETHEUS / "prometheus.yml")
    tested = {
        each["alertname"]
        for group in yaml.safe_load(alerts.read_text())["tests"]
        for each in group["alert_rule_test"]
        if each["exp_alerts"]
    }
    assert tested == set(expressions())


@needs("prometheus")
@pytest.mark.cluster
@pytest.mark.slow
def test_prometheus_raises_an_alert_for_a_scheduler_without_workers(scheduler, tmp_path):
    address, dashboard = scheduler
    settings = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    settings["global"] = dict.fromkeys(settings["global"], "1s")
    settings["rule_files"] = [str(PROMETHEUS / name) for name in settings["rule_files"]]
    settings["scrape_configs"][0]["static_configs"][0]["targets"] = [dashboard]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    own = f"127.0.0.1:{free_port()}"

    def alerts():
        answer = read(f"http://{own}/api/v1/alerts")
        found = json.loads(answer)["data"]["alerts"] if answer else []
        return {(each["labels"]["alertname"], each["labels"].get("instance")) for each in found}

    log, data = tmp_path / "prometheus.log", f"--storage.tsdb.path={tmp_path}/data"
    config = f"--config.file={tmp_path}/prometheus.yml"
    with started(log, "prometheus", config, data, f"--web.listen-address={own}"):
        wait_until(
            lambda: dashboard in read(f"http://{own}/api/v1/targets") and read(f"http://{own}/-/ready")
        )
        assert alerts() == set()
        with Client(address, set_as_default=False, timeout=30):
            wait_until(lambda: ("DaskHasNoWorkers", dashboard) in alerts())
            assert {name for name, _ in alerts()} == {"DaskHasNoWorkers"}
