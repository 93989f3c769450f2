"""Nothing is written inside a corpus, model, run or output."""

import shutil

import pytest
from test_untouched import tree

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
