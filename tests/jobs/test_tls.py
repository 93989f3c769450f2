"""Clusters with TLS: certificates from the command line or Dask's configuration."""

import json
import shlex
import shutil
import ssl
import subprocess
from contextlib import ExitStack
from pathlib import Path

import dask
import pytest
from clusters import running, scheduler, wait_until
from distributed import Client
from distributed.comm.core import FatalCommClosedError
from helpers import planted_corpus

from distmom import jobs
from distmom.cli.main import main
from distmom.corpus import from_arrays
from distmom.engine.executors import watch
from distmom.engine.executors.connections import (
    certified,
    connected,
    insecure_allowed,
    security_options,
)
from distmom.errors import ClusterError, UsageError

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
            client.wait_for_workers(1, timeout=180)
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
    assert job.wait(300) == 0, "\n".join(job.logs())
    assert content(tmp_path / "m") == content(place / "local")
    record = (tmp_path / "job" / "job.json").read_text()
    assert json.loads(record)["tls"]["key"] == str(place / "client.key")
    assert "BEGIN" not in record


def test_a_certificate_that_is_missing_is_refused(place, tmp_path, capsys):
    fit = ["fit", str(place / "corpus"), str(tmp_path / "m"), *MODEL, "--scheduler", "tls://127.0.0.1:1"]
    assert main([*fit, "--tls-key", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "key"), [("client", "stranger.key"), ("client", "ca.pem")])
def test_files_that_do_not_belong_together_are_named(place, tmp_path, capsys, name, key):
    fit = ["fit", str(place / "corpus"), str(tmp_path / "m"), *MODEL, "--scheduler", "tls://127.0.0.1:1"]
    assert main([*fit, *files(place, name)[:4], "--tls-key", str(place / key)]) == 2
    shown = capsys.readouterr().err
    assert f"got --tls-ca-file {place / 'ca.pem'}, --tls-cert {place / 'client.pem'}, " in shown
    assert f"--tls-key {place / key}: " in shown
    assert "to resume" not in shown


def test_a_file_of_the_configuration_that_is_missing_is_named(place, tmp_path, capsys):
    fit = ["fit", str(place / "corpus"), str(tmp_path / "m"), *MODEL, "--scheduler", "tls://127.0.0.1:1"]
    missing = str(tmp_path / "none.pem")
    with dask.config.set({"distributed.comm.tls.client.cert": missing}):
        assert main([*fit, *files(place)[:2], *files(place)[4:]]) == 2
    assert f"--tls-cert {missing}" in capsys.readouterr().err


def test_a_key_in_the_configuration_is_not_shown(place):
    content = (place / "stranger.key").read_text()
    with (
        dask.config.set({"distributed.comm.tls.client.key": content}),
        certified(str(place / "ca.pem"), str(place / "client.pem"), None),
    ):
        with (
            pytest.raises(UsageError, match="TLS: expected PEM files") as refused,
            connected("tls://127.0.0.1:1"),
        ):
            pass
        assert "PRIVATE" not in str(refused.value)
        assert "--tls-key" not in security_options("tls://127.0.0.1:1")


@pytest.mark.parametrize("is_early", [False, True])
def test_a_scheduler_without_tls_is_named(place, monkeypatch, is_early):
    async def connect(*_, **__):
        # Whether a scheduler speaks first is a matter of chance; these are the errors of Dask.
        if is_early:
            raise ValueError("IOStream is not idle; cannot convert to SSL")
        try:
            raise ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
        except ssl.SSLError as error:
            raise FatalCommClosedError from error

    monkeypatch.setattr(watch, "connect", connect)
    with (
        certified(*files(place)[1::2]),
        pytest.raises(ClusterError, match="expected a scheduler with TLS, got an answer without it"),
        connected("tls://127.0.0.1:1"),
    ):
        pass


def test_the_command_that_resumes_a_fit_has_the_certificates(place, cluster, tmp_path, capsys):
    fit = ["fit", str(place / "corpus"), str(tmp_path / "m"), *MODEL, "--scheduler", cluster]
    assert main([*fit, *files(place, "stranger")]) == 5
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("to resume: "))
    words = shlex.split(line.removeprefix("to resume: "))
    assert words == [
        "distmom", "resume", str(tmp_path / "m.run"), "--scheduler", cluster, *files(place, "stranger"),
    ]  # fmt: skip
    assert main([*words[1:5], *files(place), "--quiet"]) == 0
    assert content(tmp_path / "m") == content(place / "local")


def test_the_command_that_resumes_a_fit_allows_what_was_allowed():
    assert security_options("tcp://192.0.2.1:8786") == []
    with insecure_allowed():
        assert security_options("tcp://192.0.2.1:8786") == ["--insecure"]
        assert security_options("tcp://127.0.0.1:8786") == []


def test_a_job_is_ended_and_resumed_with_other_files_than_it_was_submitted_with(
    place, cluster, tmp_path, capsys
):
    for name in ("ca.pem", "client.pem", "client.key"):
        (tmp_path / "old").mkdir(exist_ok=True)
        shutil.copy(place / name, tmp_path / "old" / name)
    fit = ["fit", str(place / "corpus"), str(tmp_path / "m"), *MODEL]
    job = tmp_path / "job"
    assert main(["submit", *fit, "--scheduler", cluster, "--run", str(job), *files(tmp_path / "old")]) == 0
    (tmp_path / "old").rename(tmp_path / "new")
    capsys.readouterr()
    driver = Path("/proc", str(jobs.open_job(job).status()["pid"]))
    assert main(["jobs", "cancel", str(job), *files(tmp_path / "new")]) == 0
    # One that has not begun ends when it finds the request, which the next command withdraws.
    wait_until(lambda: not driver.exists())
    assert "cancelled" in capsys.readouterr().out
    assert main(["jobs", "resume", str(job)]) == 2
    assert str(tmp_path / "old" / "client.key") in capsys.readouterr().err
    assert main(["jobs", "resume", str(job), *files(tmp_path / "new")]) == 0
    resumed = jobs.open_job(job)
    assert resumed.wait(300) == 0, "\n".join(resumed.logs())
    assert content(tmp_path / "m") == content(place / "local")
