"""Clusters of dask-jobqueue and Dask Gateway, whose clients fits take as docs/deploy.md shows."""

import os
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from batch import needs_slurm, slurm
from clusters import wait_until
from deployment import needs_deploy, planted, run, same_models, started
from stores import free_port

from distmom.engine import RunDirectory

pytestmark = [pytest.mark.cluster, needs_deploy]

#: where the processes of clusters find distmom if it is not installed
IMPORTED = os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])
#: settings of a Gateway whose clusters are processes of this machine
GATEWAY = """
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.address = "127.0.0.1:{ports[0]}"
c.Proxy.address = "127.0.0.1:{ports[1]}"
c.Proxy.tcp_address = "127.0.0.1:{ports[2]}"
c.LocalBackend.clusters_directory = {clusters!r}
c.LocalBackend.sigint_timeout = 5
c.ClusterConfig.worker_memory = "1 G"
c.ClusterConfig.scheduler_cmd = [{python!r}, "-m", "dask", "scheduler"]
c.ClusterConfig.worker_cmd = [{python!r}, "-m", "dask", "worker"]
c.ClusterConfig.environment = {environment!r}
"""


#: what a user runs: the fit of a corpus with the client of a cluster
FIT = """
import sys
from distmom.corpus import open_corpus
from distmom.models import MultiLabelMoM

{cluster}
def main():
    with new_cluster() as cluster, cluster.get_client() as client:
        cluster.scale(2)
        model = MultiLabelMoM(3, head="posterior", random_state=0)
        model.fit_corpus(open_corpus(sys.argv[1]), client=client, run=sys.argv[3]).save(sys.argv[2])


if __name__ == "__main__":
    main()
"""
SLURM_CLUSTER = """
from dask_jobqueue import SLURMCluster

def new_cluster():
    return SLURMCluster(cores=1, memory="1GiB", log_directory="logs")

"""
GATEWAY_CLUSTER = """
from dask_gateway import Gateway

def new_cluster():
    return Gateway({address!r}, proxy_address={proxy!r}, auth="basic").new_cluster()

"""


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A corpus, and a model of it that was fitted in this process."""
    folder = tmp_path_factory.mktemp("local")
    planted(folder)
    return folder


def check_fit(local, place, cluster, environment):
    """Fit on a cluster, and compare the bits with those of a fit in one process."""
    script = place / "fit.py"
    script.write_text(FIT.format(cluster=cluster))
    arguments = (local / "corpus", place / "model", place / "run")
    run(sys.executable, script, *arguments, timeout=180, cwd=place, env=environment)
    assert same_models(place / "model", local / "local")
    # The workers had not started yet when the run began.
    assert len(RunDirectory(place / "run").environments()) == 1


@needs_slurm
def test_a_fit_runs_on_workers_that_slurm_starts_for_dask_jobqueue(local, tmp_path):
    pytest.importorskip("dask_jobqueue", reason="needs dask-jobqueue: pip install -e '.[dev]'")
    with slurm(tmp_path / "slurm") as environment:
        check_fit(local, tmp_path, SLURM_CLUSTER, {**environment, "PYTHONPATH": IMPORTED})


def test_a_fit_runs_on_a_cluster_of_dask_gateway(local, tmp_path):
    pytest.importorskip("dask_gateway_server", reason="needs dask-gateway-server: pip install -e '.[dev]'")
    ports = [free_port() for _ in range(3)]
    # Workers get no other variables; some choose the kernels of BLAS, on which bits depend.
    passed = {name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")}
    settings, clusters = tmp_path / "settings.py", str(tmp_path / "clusters")
    settings.write_text(
        GATEWAY.format(
            ports=ports,
            clusters=clusters,
            python=sys.executable,
            environment={**passed, "PYTHONPATH": IMPORTED},
        )
    )
    address, proxy = f"http://127.0.0.1:{ports[1]}", f"gateway://127.0.0.1:{ports[2]}"
    with started(tmp_path / "gateway.log", "dask-gateway-server", "-f", settings):
        wait_until(lambda: answers(f"{address}/api/health"))
        cluster = GATEWAY_CLUSTER.format(address=address, proxy=proxy)
        check_fit(local, tmp_path, cluster, {**os.environ, "PYTHONPATH": IMPORTED})


def answers(url):
    """Whether a server is ready."""
    try:
        return urlopen(url, timeout=5).status == 200
    except URLError:
        return False
