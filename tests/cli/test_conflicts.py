"""Two runs with one destination: the model of the first stays, and what the second has computed too."""

import shutil
import tempfile
import uuid
from pathlib import Path

import pytest
from helpers import planted_matrices

from distmom.cli.main import main
from distmom.corpus import from_arrays
from distmom.corpus.files.commit import commit_directory
from distmom.corpus.files.storage import is_url
from distmom.corpus.files.uploads import upload_directory
from distmom.models import MultiLabelMoM, load_model
from distmom.spectral.saved import artifact
from distmom.spectral.saved.artifact import record_digest

LOCAL = ("--workers", "0", "--quiet")
MODEL = ("-k", "4", "--head", "linear")
PUT = {"path": "put_directory", "store": "upload_directory"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a corpus and a model that another run has fitted to it."""
    folder = tmp_path_factory.mktemp("conflicts")
    corpus = from_arrays(folder / "corpus", *planted_matrices(), shard_documents=500)
    assert main(["fit", corpus.path, str(folder / "other"), "-k", "3", "--head", "linear", *LOCAL]) == 0
    return folder


@pytest.fixture(params=["path", "store"])
def kind(request):
    return request.param


@pytest.fixture
def destination(kind, tmp_path, request):
    """A path, or a URL of a fresh bucket, where there is no model yet."""
    if kind == "path":
        return str(tmp_path / "m")
    bucket = f"b{uuid.uuid4().hex}"
    request.getfixturevalue("s3").make_bucket(bucket)
    return f"s3://{bucket}/m"


@pytest.fixture
def other(place, destination):
    """Put the model of the other run at the destination, unless there is one; its digest is ``put.digest``."""

    def put():
        if record_digest(destination) is not None:
            return
        if is_url(destination):
            upload_directory(place / "other", destination, artifact.KIND)
        else:
            copy = tempfile.mkdtemp(dir=Path(destination).parent)
            commit_directory(shutil.copytree(place / "other", copy, dirs_exist_ok=True), destination)

    put.digest = record_digest(place / "other")
    return put


@pytest.fixture
def fit(place, destination, tmp_path, run):
    """The command whose run is in the directory ``run``."""
    return lambda *more: run(
        "fit", place / "corpus", *(more or [destination]), *MODEL, "--run", tmp_path / "run", *LOCAL
    )


@pytest.mark.parametrize("moment", ["before the check", "after the check"])
def test_the_loser_of_a_race_replaces_nothing_and_loses_nothing(
    moment, kind, other, destination, fit, run, tmp_path, monkeypatch
):
    place = (MultiLabelMoM, "save") if moment == "before the check" else (artifact, PUT[kind])
    changed, directory = getattr(*place), tmp_path / "run"

    def late(*arguments, **options):
        other()
        return changed(*arguments, **options)

    with monkeypatch.context() as change:
        change.setattr(*place, late)
        code, _, err = fit()
    passes = sorted((directory / "passes").iterdir())
    assert len(passes) > 1
    for repeated in (None, lambda: run("resume", directory, *LOCAL), fit):
        if repeated is not None:
            code, _, err = repeated()
        assert code == 2
        assert err.startswith(f"error: {destination}: ")
        assert err.endswith(
            f"; this run is kept: repeat its command with another destination, or with --overwrite, and with "
            f"--run {directory}\n"
        )
        assert err.count("\n") == 1
        assert record_digest(destination) == other.digest
        assert sorted((directory / "passes").iterdir()) == passes
    assert fit(tmp_path / "elsewhere")[0] == 0
    assert load_model(tmp_path / "elsewhere").n_components == 4
    assert fit(destination, "--overwrite")[0] == 0
    assert load_model(destination).n_components == 4
    assert sorted((directory / "passes").iterdir()) == passes
    assert list(tmp_path.glob(".tmp-*")) == []


def test_a_run_that_was_killed_after_its_model_was_put_in_place_ends_well(
    kind, destination, fit, run, tmp_path, monkeypatch
):
    put = getattr(artifact, PUT[kind])

    def killed(directory, **options):
        put(directory, **options)
        if destination in map(str, options.values()):
            raise KeyboardInterrupt

    with monkeypatch.context() as change:
        change.setattr(artifact, PUT[kind], killed)
        assert fit()[0] == 130
    digest = record_digest(destination)
    assert digest is not None
    assert run("resume", tmp_path / "run", *LOCAL)[0] == 0
    assert record_digest(destination) == digest
    assert '"finished": true' in run("resume", tmp_path / "run", "--json")[1]


def test_two_drivers_of_one_run_that_put_its_model_in_place_are_no_conflict(
    kind, destination, fit, tmp_path, monkeypatch
):
    put = getattr(artifact, PUT[kind])

    def twice(directory, **options):
        if destination in map(str, options.values()):
            put(shutil.copytree(directory, tmp_path / "copy"), **options)
        put(directory, **options)

    monkeypatch.setattr(artifact, PUT[kind], twice)
    assert fit()[0] == 0
    assert load_model(destination).n_components == 4
