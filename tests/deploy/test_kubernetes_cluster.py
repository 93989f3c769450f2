"""deploy/kubernetes on a real cluster of one node: the chart of the operator, a job, and a cluster that stays."""

import zipfile

import pytest
import yaml
from clusters import wait_until
from containers import base_files, build, engine, import_base, needs_engine
from deployment import DEPLOY, certificates, needs, needs_deploy, same_models
from node import PROGRAMS, name_services, node
from operators import OPERATOR, operator_wheel

pytestmark = [needs_deploy, needs(*PROGRAMS, "helm", script="tests/kubernetes.sh")]
KUBERNETES = DEPLOY / "kubernetes"
MODEL = ("-k", "3", "--head", "posterior")
#: image of the recipes
IMAGE = "distmom:0.1.0"
#: what a pod reserves on this small node
REQUESTS = {"cpu": "50m", "memory": "128Mi"}
#: folder of the chart in the package of the operator
CHART = "dask_kubernetes/operator/deployment/helm/dask-kubernetes-operator/"


@pytest.fixture(scope="module")
def images(request, tmp_path_factory):
    """The folder of an engine with the images of distmom and of the operator, and data of the image of distmom."""
    folder, data = tmp_path_factory.mktemp("images"), tmp_path_factory.mktemp("data")
    data.chmod(0o777)
    with engine(folder) as docker:
        import_base(docker, base_files(request.config.cache))
        build(docker, IMAGE)
        recipes = {
            "operator:1": f'FROM {IMAGE}\nUSER 0\nRUN pip install --no-cache-dir "{OPERATOR}"\n'
            "RUN useradd --uid 1000 dask\nUSER 1000\n"
            'ENTRYPOINT ["kopf", "run", "-m", "dask_kubernetes.operator.controller"]\n',
            "pause:1": f'FROM {IMAGE}\nCMD ["sleep", "infinity"]\n',
        }
        for tag, recipe in recipes.items():
            (folder / "recipe").mkdir(exist_ok=True)
            (folder / "recipe" / "Dockerfile").write_text(recipe)
            docker("build", "--network", "host", "-t", tag, folder / "recipe", timeout=300)
        once = ("run", "--rm", "--network", "none", "--volume", f"{data}:/data", IMAGE, "distmom")
        docker(*once, "synth", "bibtex", "/data/corpus", "--docs", "2000", "--shard-docs", "100", timeout=300)
        docker(*once, "fit", "/data/corpus", "/data/local", *MODEL, "--workers", "0", timeout=300)
    return folder, data


@pytest.fixture(scope="module")
def cluster(images, tmp_path_factory):
    """A cluster with the operator, and the claim and the secret of the recipes."""
    folder, data = tmp_path_factory.mktemp("node"), images[1]
    with node(folder, images[0], "pause:1") as cluster:
        name_services(cluster)
        volume = {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "100Gi"},
            "hostPath": {"path": str(data)},
        }
        claim = adapted("daskjob.yaml", "model")[0]
        cluster.apply(
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "data"}, "spec": volume},
            claim,
        )
        certificates(folder / "tls")
        cluster.kubectl("create", "secret", "generic", "distmom-tls", f"--from-file={folder}/tls")
        install_operator(cluster, operator_wheel(folder))
        yield cluster


def install_operator(cluster, wheel):
    """Install the operator from the chart in its package."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(cluster.folder, [name for name in archive.namelist() if name.startswith(CHART)])
    values = ("--set", "image.name=operator", "--set-string", "image.tag=1")
    place = cluster.folder / CHART
    cluster.run("helm", "install", "operator", place, "-n", "dask-operator", "--create-namespace", *values)
    cluster.kubectl("rollout", "status", "deployment", "-n", "dask-operator", "--timeout=180s", timeout=200)


def adapted(name, model):
    """Return the resources of a file, for a node of this size and a small model."""

    def adapt(value):
        if isinstance(value, list):
            if value[:3] == ["distmom", "submit", "fit"]:
                start = value.index("-k")
                value = [*value[:4], f"/data/{model}", *MODEL, *value[start + 2 :]]
            return [adapt(each) for each in value]
        if not isinstance(value, dict):
            return value
        value = {key: adapt(each) for key, each in value.items()}
        if "requests" in value and "limits" in value:
            value["requests"] = REQUESTS
        if "replicas" in value:
            value["replicas"] = 2
        return value

    return [adapt(each) for each in yaml.safe_load_all((KUBERNETES / name).read_text())]


@needs_engine
def test_a_job_has_the_bits_of_one_process(cluster, images):
    cluster.apply(*adapted("daskjob.yaml", "model"))

    def state():
        name_services(cluster)
        return (cluster.get("daskjob", "distmom-fit") or {}).get("status", {}).get("jobStatus")

    with cluster.explained():
        wait_until(lambda: state() in ("Successful", "Failed"), timeout_s=200)
        assert state() == "Successful", cluster.kubectl("logs", "distmom-fit-runner")
    assert same_models(images[1] / "model", images[1] / "local")


@needs_engine
def test_a_cluster_that_stays_takes_jobs_and_loses_a_worker(cluster, images):
    cluster.apply(*adapted("daskcluster.yaml", "second"))

    def workers():
        name_services(cluster)
        found = cluster.list("pods", "-l", "dask.org/cluster-name=distmom,dask.org/component=worker")
        return [
            each["metadata"]["name"]
            for each in found
            if each["status"]["phase"] == "Running" and "deletionTimestamp" not in each["metadata"]
        ]

    def here(*command):
        return cluster.kubectl("exec", "deploy/distmom-scheduler", "--", *command, timeout=300)

    with cluster.explained():
        first = wait_until(lambda: len(workers()) == 2 and workers(), timeout_s=200)
        cluster.kubectl("rollout", "status", "deployment/distmom-scheduler", "--timeout=100s", timeout=120)
        fit = f"distmom submit fit corpus second {' '.join(MODEL)} --scheduler $DASK_SCHEDULER_ADDRESS"
        here("sh", "-c", f"cd /data && {fit}")
        cluster.kubectl("delete", "pod", first[0], "--force", "--grace-period=0")
        assert "running" in here("distmom", "jobs", "list")
        place = here("sh", "-c", "ls -dt /data/jobs/*/ | head -1").strip()
        here("distmom", "jobs", "wait", place)
        # The operator has replaced the worker, and starts another one.
        cluster.kubectl("scale", "daskworkergroup", "distmom-default", "--replicas", "3")
        wait_until(lambda: len(workers()) == 3, timeout_s=200)
        assert first[0] not in workers()
        cluster.kubectl("delete", "daskcluster", "distmom", timeout=120)
        wait_until(lambda: not workers(), timeout_s=200)
    assert same_models(images[1] / "second", images[1] / "local")
