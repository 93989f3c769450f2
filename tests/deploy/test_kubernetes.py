"""deploy/kubernetes: manifests under the schemas of Kubernetes and the Dask operator, and commands of the pods."""

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from pathlib import Path

import jsonschema
import pytest
import yaml
from clusters import wait_until
from dask.utils import parse_bytes
from deployment import DEPLOY, PATH, certificates, planted, same_models, started
from operators import operator_wheel
from stores import free_port

if not DEPLOY.is_dir():
    pytest.skip("needs the files of deploy/", allow_module_level=True)

KUBERNETES = DEPLOY / "kubernetes"


def documents(name):
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


CLAIM, JOB = documents("daskjob.yaml")
[CLUSTER] = documents("daskcluster.yaml")


def pods(cluster):
    """Return the specifications of the pods of a cluster, and of the job on it."""
    found = {part: cluster[part]["spec"] for part in ("scheduler", "worker")}
    return (
        {**found, "job": JOB["spec"]["job"]["spec"]} if cluster == JOB["spec"]["cluster"]["spec"] else found
    )


BOTH = pytest.mark.parametrize(
    ("name", "cluster"),
    [
        (JOB["metadata"]["name"], JOB["spec"]["cluster"]["spec"]),
        (CLUSTER["metadata"]["name"], CLUSTER["spec"]),
    ],
    ids=["job", "cluster"],
)


@BOTH
def test_what_the_operator_makes_follows_the_schemas_of_kubernetes(name, cluster):
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="needs kubernetes_validate: pip install -e '.[dev]'"
    )
    made = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        for spec in pods(cluster).values()
    ]
    service = cluster["scheduler"]["service"]
    made += [CLAIM, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": service}]
    for each in made:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    wrong = {**CLAIM, "spec": {**CLAIM["spec"], "accessmodes": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


@BOTH
def test_parts_fit_together(name, cluster, tmp_path):
    address = f"tls://{name}-scheduler:8786"
    secrets = {path.name for path in certificates(tmp_path / "tls").iterdir()}
    for spec in pods(cluster).values():
        [container] = spec["containers"]
        variables = {each["name"]: each["value"] for each in container["env"]}
        assert variables["DASK_SCHEDULER_ADDRESS"] == address
        assert {Path(value).name for value in variables.values() if value.startswith("/tls/")} == secrets
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} == {
            "data": "/data",
            "tls": "/tls",
        }
        claimed = volumes["data"]["persistentVolumeClaim"]["claimName"]
        assert claimed == CLAIM["metadata"]["name"]
        assert spec["securityContext"]["runAsNonRoot"]
        # Read by the group of the files alone.
        assert volumes["tls"]["secret"]["defaultMode"] == 0o440
        assert spec["securityContext"]["fsGroup"]
        limit = parse_bytes(container["resources"]["limits"]["memory"] + "B")
        if "--memory-limit" in container["args"]:
            assert parse_bytes(container["args"][container["args"].index("--memory-limit") + 1]) <= limit
    service = cluster["scheduler"]["service"]
    assert service["selector"] == {"dask.org/cluster-name": name, "dask.org/component": "scheduler"}
    ports = {
        port["name"]: port["containerPort"] for port in cluster["scheduler"]["spec"]["containers"][0]["ports"]
    }
    assert {port["name"]: port["port"] for port in service["ports"]} == ports
    assert ports["tcp-comm"] == 8786


def test_the_cluster_that_stays_is_that_of_the_job():
    text = json.dumps(JOB["spec"]["cluster"]["spec"]).replace(
        JOB["metadata"]["name"], CLUSTER["metadata"]["name"]
    )
    assert json.loads(text) == CLUSTER["spec"]


def strict(schema):
    """Refuse unknown keys, as the server does not; and translate the two words that JSON Schema lacks."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        schema = {**schema, "anyOf": [{"type": "integer"}, {"type": "string"}]}
        schema.pop("type", None)
    if schema.pop("nullable", False) is True and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    is_closed = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if is_closed and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    return schema


@pytest.fixture(scope="module")
def definitions(tmp_path_factory):
    """The definitions of the operator's resources by kind, from its package."""
    found = {}
    with zipfile.ZipFile(operator_wheel(tmp_path_factory.mktemp("operator"))) as archive:
        for name in archive.namelist():
            if re.search(r"/crds/\w+\.yaml$", name):
                read = yaml.load(archive.read(name), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
                [version] = read["spec"]["versions"]
                schema = strict(version["schema"]["openAPIV3Schema"])
                schema["properties"] |= {key: {} for key in ("apiVersion", "kind", "metadata")}
                found[f"{read['spec']['group']}/{version['name']}", read["spec"]["names"]["kind"]] = schema
    assert len(found) == 4
    return found


@pytest.mark.slow
def test_resources_follow_the_definitions_of_the_operator(definitions):
    def problems(resource):
        schema = definitions[resource["apiVersion"], resource["kind"]]
        found = jsonschema.Draft202012Validator(schema).iter_errors(resource)
        return ["/".join(map(str, each.absolute_path)) for each in found]

    assert problems(JOB) == problems(CLUSTER) == []
    wrong = json.loads(json.dumps(JOB))
    wrong["spec"]["cluster"]["spec"]["worker"]["replicaz"] = 3
    wrong["spec"]["job"]["spec"]["activeDeadlineSeconds"] = "soon"
    assert set(problems(wrong)) == {"spec/job/spec/activeDeadlineSeconds", "spec/cluster/spec/worker"}


class Pods:
    """The containers of the job as processes of this machine, with its own hosts, ports and directories."""

    def __init__(self, folder):
        self.folder, self.log = folder, folder / "job.log"
        self.directory = folder / "jobs" / "fit"
        self.port, self.dashboard = free_port(), free_port()
        certificates(folder / "tls")

    def _here(self, text):
        for name, value in (
            ("distmom-fit-scheduler:8786", f"127.0.0.1:{self.port}"), ("8786", str(self.port)),
            (":8787", f"127.0.0.1:{self.dashboard}"), (":8788", "127.0.0.1:0"), ("/tls/", f"{self.folder}/tls/"),
            ("/data/", f"{self.folder}/"), ("$(DASK_WORKER_NAME)", "one"),
        ):  # fmt: skip
            text = text.replace(name, value)
        return text

    def _environment(self, container):
        variables = {each["name"]: self._here(each["value"]) for each in container["env"]}
        return {**os.environ, "PATH": PATH, **variables}

    def started(self, component, *more):
        """Start a component; more arguments follow its own."""
        spec = pods(JOB["spec"]["cluster"]["spec"])[component]
        [container] = spec["containers"]
        # Else the entry point of the image, which passes signals on, would not be in force.
        assert "command" not in container
        environment = self._environment(container)
        address = environment["DASK_SCHEDULER_ADDRESS"]
        command = [
            self._here(word).replace("$(DASK_SCHEDULER_ADDRESS)", address) for word in container["args"]
        ]
        command += more
        return started(self.folder / f"{component}.log", *command, env=environment, cwd=self.folder)

    def jobs(self, *arguments):
        """Run 'distmom jobs' in the pod of the scheduler, and return its exit code and what it has printed."""
        [container] = pods(JOB["spec"]["cluster"]["spec"])["scheduler"]["containers"]
        done = subprocess.run(
            ["distmom", "jobs", *arguments], env=self._environment(container), cwd=self.folder / "tls",
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        sys.stderr.write(done.stderr)
        return done.returncode, done.stdout

    def status(self):
        code, printed = self.jobs("status", "fit", "--json")
        assert code == 0
        return json.loads(printed)


@pytest.mark.cluster
@pytest.mark.slow
def test_the_job_waits_for_the_scheduler_and_has_the_same_bits(tmp_path):
    model = planted(tmp_path)
    place = Pods(tmp_path)
    with ExitStack() as stack:
        # Of an option that is given twice, the last value counts.
        job = stack.enter_context(place.started("job", *model))
        wait_until(lambda: "restart 1 of 1000" in place.log.read_text() or job.poll() is not None)
        assert job.poll() is None
        assert "no scheduler answers" in place.log.read_text()
        assert place.status()["state"] == "running"
        stack.enter_context(place.started("scheduler"))
        stack.enter_context(place.started("worker"))
        assert job.wait(200) == 0, place.log.read_text()
        listed = place.jobs("list")
        assert (listed[0], listed[1].splitlines()[1].split()[1]) == (0, "done")
        assert place.jobs("wait", "fit")[0] == 0
        # The pod and every other one have the same lines.
        assert place.jobs("logs", "fit") == (0, place.log.read_text())
        # What 'kubectl replace' starts again for a job that is done.
        with place.started("job", *model) as again:
            assert again.wait(60) == 0
    assert same_models(tmp_path / "model", tmp_path / "local")


@pytest.mark.slow
def test_the_job_is_not_tried_again_after_an_error_of_the_input(tmp_path):
    place = Pods(tmp_path)
    with place.started("job") as job:
        assert job.wait(60) == 2
    assert place.log.read_text().count("error:") == 1
    status = place.status()
    assert (status["state"], status["exit_code"], status["epoch"]) == ("failed", 2, 1)


@pytest.mark.cluster
@pytest.mark.slow
def test_a_job_that_is_stopped_records_that(tmp_path):
    planted(tmp_path)
    place = Pods(tmp_path)
    with place.started("scheduler"), place.started("job") as job:
        wait_until((place.directory / "epochs" / "0001.json").exists)
        # What Kubernetes sends to the first process of the container, tini, which passes it on.
        job.send_signal(signal.SIGTERM)
        assert job.wait(30) == 130
    status = place.status()
    assert (status["state"], status["exit_code"]) == ("failed", 130)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.nightly
def test_a_job_is_cancelled_from_another_pod_and_continues_when_that_is_taken_back(tmp_path):
    model = planted(tmp_path)
    place = Pods(tmp_path)
    with ExitStack() as stack:
        stack.enter_context(place.started("scheduler"))
        with place.started("job", *model) as job:
            # Without workers it waits.
            wait_until(lambda: (place.directory / "epochs" / "0001.json").exists() or job.poll() is not None)
            assert place.status()["state"] == "running"
            code, printed = place.jobs("cancel", "fit", "--json")
            assert (code, json.loads(printed)["state"]) == (0, "cancelled")
            assert job.wait(30) == 130
        assert place.jobs("wait", "fit")[0] == 130
        stack.enter_context(place.started("worker"))
        with place.started("job", *model) as job:
            assert job.wait(60) == 130
        assert not (tmp_path / "model").exists()
        assert place.jobs("resume", "fit")[0] == 0
        with place.started("job", *model) as job:
            assert job.wait(120) == 0, place.log.read_text()
        assert (place.status()["state"], place.status()["epoch"]) == ("done", 3)
    assert same_models(tmp_path / "model", tmp_path / "local")
