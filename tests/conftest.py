import importlib
import os
import tempfile
import uuid
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("ci", max_examples=300, deadline=None)
settings.register_profile("dev", max_examples=25, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

DATA = Path(__file__).parents[2] / "shared" / "data"
WORKFLOWS = Path(__file__).parents[1] / "workflows"

#: seconds that a slow test may take; others may take the `timeout` of pyproject.toml
SLOW_TIMEOUT_S = 900


def pytest_configure(config):
    # Processes that share the processors must not each start a thread of BLAS for every processor.
    if config.getoption("numprocesses", None):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_collection_modifyitems(items):
    # The time limit ends tests that hang; on slow processors, some slow tests take longer than it allows others.
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


@pytest.fixture(scope="session")
def real_data():
    """The folder of real data sets, which a clone does not carry."""

    def folder(name):
        if not (DATA / name).is_dir():
            pytest.skip(f"the data set {name} is not here")
        return DATA / name

    return folder


@pytest.fixture(scope="session")
def cluster():
    """A local cluster of two worker processes, for tests that leave it whole; the client is nobody's default."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", memory_limit="2GiB"
        ) as local,
        Client(local, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def s3_server():
    """An S3 service in a process of its own."""
    from stores import s3_service

    with s3_service() as service:
        yield service


@pytest.fixture
def s3(s3_server, monkeypatch):
    """The S3 service, to which the environment of the test leads."""
    from stores import use

    use(monkeypatch, s3_server.endpoint)
    return s3_server


@pytest.fixture
def bucket(s3):
    """A fresh bucket."""
    name = f"b{uuid.uuid4().hex}"
    s3.make_bucket(name)
    return name


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The folder of temporary files, which is empty after the test."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def workflow(monkeypatch):
    """A function that imports a script in workflows/, which a copy of the package alone lacks."""
    if not WORKFLOWS.is_dir():
        pytest.skip("the workflows are not part of this copy")
    monkeypatch.syspath_prepend(WORKFLOWS)
    return importlib.import_module
