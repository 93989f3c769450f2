"""Nothing is written inside a corpus, model, run or output, or below a file."""

import shutil

import pytest
from test_untouched import tree

from distmom.engine.directory.run_directory import RunDirectory
from distmom.errors import UsageError

LOCAL = ("--workers", "0", "--quiet")


@pytest.fixture
def written(tmp_path, run, place):
    """A folder with a corpus, a model, and predictions."""
    for name in ("corpus", "model"):
        shutil.copytree(place / name, tmp_path / name)
    assert run("predict", place / "model", place / "test.tsv", tmp_path / "answers", *LOCAL)[0] == 0
    return tmp_path


@pytest.mark.parametrize(
    ("command", "folder", "kind"),
    [
        ("ingest {place}/test.tsv {written}/corpus/new", "corpus", "corpus"),
        ("ingest {place}/test.tsv {written}/corpus/shards/new", "corpus", "corpus"),
        ("ingest {place}/test.tsv {written}/link/new --overwrite", "corpus", "corpus"),
        ("ingest {place}/test.tsv {written}/deep/new", "corpus", "corpus"),
        ("ingest {place}/test.tsv {written}/model/new", "model", "model"),
        ("copy {place}/corpus {written}/answers/new", "answers", "predictions"),
        ("synth wikilshtc {written}/corpus/new --docs 10", "corpus", "corpus"),
        ("fit {place}/corpus {written}/model/new -k 3", "model", "model"),
        ("fit {place}/corpus {written}/new -k 3 --run {written}/corpus/run", "corpus", "corpus"),
        ("moments {place}/corpus {written}/corpus/new", "corpus", "corpus"),
        ("predict {place}/model {place}/test.tsv {written}/model/new", "model", "model"),
        ("evaluate {place}/model {place}/test.tsv --per-label {written}/model/labels.tsv", "model", "model"),
        ("report {place}/model {written}/model/page.html", "model", "model"),
    ],
)
def test_a_destination_inside_is_refused(written, run, place, command, folder, kind):
    (written / "link").symlink_to(written / "corpus")
    (written / "deep").symlink_to(written / "corpus" / "shards")
    before = tree(written)
    options = () if command.startswith(("copy", "report")) else LOCAL
    words = command.format(written=written, place=place).split()
    destination = [word for word in words if word.startswith(str(written))][-1]
    code, _, err = run(*words, *options)
    message = f"{destination}: is inside {written / folder} ({kind}); choose a location outside it"
    assert (code, message in err) == (2, True)
    assert tree(written) == before


def test_directories_of_other_software_take_output(tmp_path, run, place):
    for name in ("manifest.json", "model.json", "run.json"):
        (tmp_path / name).write_text('{\n "format": "other",\n "name": "distmom-corpus"\n}\n')
    (tmp_path / "job.json").mkdir()
    assert run("ingest", place / "test.tsv", tmp_path / "corpus", *LOCAL)[0] == 0


@pytest.mark.parametrize(
    "command",
    [
        "ingest {place}/test.tsv {file}/new",
        "copy {place}/corpus {file}/new",
        "synth wikilshtc {file}/new --docs 10",
        "fit {place}/corpus {file}/deep/new -k 3",
        "fit {place}/corpus {file}.model -k 3 --run {file}/new",
        "moments {place}/corpus {file}/new",
        "predict {place}/model {place}/test.tsv {file}/new",
    ],
)
def test_a_destination_below_a_file_is_refused(tmp_path, run, place, command):
    file = tmp_path / "file"
    file.write_text("kept")
    words = command.format(place=place, file=file).split()
    code, _, err = run(*words, *(() if words[0] == "copy" else LOCAL))
    assert f"/new: expected a path below a directory, got one below {file}, which is not one" in err
    assert (code, file.read_text(), list(tmp_path.iterdir())) == (2, "kept", [file])


def test_a_file_is_refused_as_a_run(tmp_path, run, place):
    file = tmp_path / "file"
    file.write_text("kept")
    code, _, err = run("fit", place / "corpus", tmp_path / "m", "-k", "3", "--run", file, *LOCAL)
    assert (code, err.strip()) == (2, f"error: {file}: exists and is not a run")
    with pytest.raises(UsageError, match="file: exists and is not a run"):
        RunDirectory(file)
    with pytest.raises(UsageError, match="run: expected a path below a directory"):
        RunDirectory(file / "run")
    assert (file.read_text(), list(tmp_path.iterdir())) == ("kept", [file])
