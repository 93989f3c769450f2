"""Clusters with TLS: certificates from the command line or Dask's configuration."""

import json
import shutil
import subprocess
from contextlib import ExitStack

import pytest
from clusters import running, scheduler
from distributed import Client
from helpers import planted_corpus

from distmom import jobs
from distmom.cli.main import main
from distmom.corpus import from_arrays
from distmom.engine.executors.connections import certified, connected
from distmom.errors import ClusterError

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl"),
]

MODEL = ("-k", "3", "--head", "posterior")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Certificates of an authority, a server and a client, and of an authority that nobody trusts; a corpus."""
    folder = tmp_path_factory.mktemp("tls")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    for authority in ("ca", "other"):
        openssl("req", "-x509", *key, "-keyout", f"{authority}.key", "-out", f"{authority}.pem", "-days", "2",
                "-subj", f"/CN={authority}")  # fmt: skip
    for name, authority in (("server", "ca"), ("client", "ca"), ("stranger", "other")):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
                "-CAcreateserial", "-out", f"{name}.pem", "-days", "2")  # fmt: skip
    block = planted_corpus(400, d=200, n_labels=12, k=3, shard_documents=400)[2].read_shard(0)
    from_arrays(folder / "corpus", block.words, block.labels, shard_documents=100)
    fit = ["fit", str(folder / "corpus"), str(folder / "local"), *MODEL, "--workers", "0", "--quiet"]
    assert main(fit) == 0
    return folder


def files(place, name="client", prefix="--tls-"):
    return (f"{prefix}ca-file", str(place / "ca.pem"), f"{prefix}cert", str(place / f"{name}.pem"),
            f"{prefix}key", str(place / f"{name}.key"))  # fmt: skip


@pytest.fixture(scope="module")
def cluster(place):
    """A scheduler and a worker with certificates on their command lines, of which their children know nothing."""
    own = files(place, "server")
    with ExitStack() as stack:
        address, _ = stack.enter_context(scheduler(place, "--protocol", "tls", *own))
        work = ("--nworkers", "1", "--nthreads", "1", "--no-nanny", "--no-dashboard", *own)
        stack.enter_context(running(place / "worker.log", "dask", "worker", address, *work))
        with certified(str(place / "ca.pem"), str(place / "client.pem"), str(place / "client.key")):
            client = stack.enter_context(Client(address, set_as_default=False, timeout=30))
            client.wait_for_workers(1, timeout=60)
        yield address


def content(model):
    found = [path for path in sorted(model.rglob("*")) if path.is_file() and path.name != "model.json"]
    return {path.relative_to(model): path.read_bytes() for path in found}


def test_a_fit_on_a_cluster_with_tls_has_the_same_bits(place, cluster, tmp_path):
    fit = ["fit", str(place / "corpus"), str(tmp_path / "m"), *MODEL, "--scheduler", cluster]
    assert main([*fit, *files(place), "--quiet"]) == 0
    assert content(tmp_path / "m") == content(place / "local")


@pytest.mark.parametrize("name", ["plain", "none", "stranger"])
def test_whoever_lacks_a_certificate_is_refused(place, cluster, name):
    address = cluster.replace("tls://", "tcp://") if name == "plain" else cluster
    cert = (str(place / f"{name}.pem"), str(place / f"{name}.key")) if name == "stranger" else (None, None)
    ca_file = None if name == "plain" else str(place / "ca.pem")
    with (
        pytest.raises(ClusterError, match="no scheduler answers"),
        certified(ca_file, *cert),
        connected(address, 5.0),
    ):
        pass


def test_a_job_on_a_cluster_with_tls_has_the_same_bits_and_keeps_no_secret(place, cluster, tmp_path):
    fit = ["fit", str(place / "corpus"), str(tmp_path / "m"), *MODEL]
    command = ["submit", *fit, "--scheduler", cluster, "--run", str(tmp_path / "job"), *files(place)]
    assert main(command) == 0
    job = jobs.open_job(tmp_path / "job")
    assert job.wait(120) == 0, "\n".join(job.logs())
    assert content(tmp_path / "m") == content(place / "local")
    record = (tmp_path / "job" / "job.json").read_text()
    assert json.loads(record)["tls"]["key"] == str(place / "client.key")
    assert "BEGIN" not in record


def test_a_certificate_that_is_missing_is_refused(place, tmp_path, capsys):
    fit = ["fit", str(place / "corpus"), str(tmp_path / "m"), *MODEL, "--scheduler", "tls://127.0.0.1:1"]
    assert main([*fit, "--tls-key", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err
