"""Updates of multi-label models on the command line."""

import json

import numpy as np
import pytest

from distmom.corpus import ingest, open_corpus
from distmom.models import MultiLabelMoM

LOCAL = ("--workers", "0", "--quiet")
WORDS = {
    "fish": ["salmon", "herring", "net", "sea", "trout"],
    "trees": ["oak", "pine", "leaf", "forest", "bark"],
    "birds": ["wren", "owl", "nest", "feather", "song"],
}


def write(path, subjects, n=60, seed=0):
    """Write documents with a subject each, of its words and others, and an id."""
    rng = np.random.default_rng(seed)
    with path.open("w") as out:
        for i in range(n):
            subject = subjects[i % len(subjects)]
            words = [*rng.choice(WORDS[subject], 4), *rng.choice(["the", "of", "and", "old"], 3)]
            out.write(
                json.dumps({"id": f"{path.stem}-{i}", "text": " ".join(words), "labels": [subject]}) + "\n"
            )
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Corpora of three days, and the models of the first day with and without its sums."""
    from distmom.cli.main import main

    folder = tmp_path_factory.mktemp("place")
    every = write(folder / "every.jsonl", list(WORDS))
    vocabulary = ingest(every, folder / "all", id_column="id").vocabulary
    first = ingest(
        write(folder / "first.jsonl", ["fish", "trees"], seed=1), folder / "first", id_column="id",
        vocabulary=vocabulary,
    )  # fmt: skip
    for seed, (day, subjects) in enumerate({"monday": ["fish", "birds"], "tuesday": ["birds"]}.items()):
        source = write(folder / f"{day}.jsonl", subjects, 30, seed + 2)
        ingest(source, folder / day, id_column="id", like=first)
    (folder / "odd.tsv").write_text("fish\tquark lepton\n" * 5)
    ingest(folder / "odd.tsv", folder / "odd")
    for name, options in (("model", ("--keep-sums",)), ("bare", ())):
        fit = ("fit", folder / "first", folder / name, "-k", 2, "--head", "neighbors", *options, *LOCAL)
        assert main([str(a) for a in fit]) == 0
    return folder


def updated(run, *arguments):
    code, out, err = run("update", *arguments, *LOCAL, "--json")
    assert code == 0, err
    return json.loads(out)


def test_documents_and_labels_are_added_and_removed(place, run, tmp_path):
    found = updated(run, place / "model", place / "monday", tmp_path / "newer")
    found.pop("update_seconds")
    assert found == {"model": str(tmp_path / "newer"), "n_documents": 90, "n_labels": 3, "n_new_labels": 1}
    model = MultiLabelMoM.load(tmp_path / "newer")
    expected = MultiLabelMoM.load(place / "model").partial_fit_corpus(open_corpus(place / "monday"))
    assert model.label_names_ == ["fish", "trees", "birds"]
    texts = ["owl and wren", "herring of the sea", "oak bark"]
    np.testing.assert_array_equal(model.decision_function(texts), expected.decision_function(texts))
    assert model.predict(texts) == [["birds"], ["fish"], ["trees"]]
    # The run is gone, and a command for models reads the new one.
    assert [entry.name for entry in tmp_path.iterdir()] == ["newer"]
    assert json.loads(run("info", tmp_path / "newer", "--json")[1])["n_documents"] == 90
    assert run("verify", tmp_path / "newer")[0] == 0
    less = updated(run, tmp_path / "newer", place / "monday", tmp_path / "newer", "--remove", "--overwrite")
    assert less["n_documents"] == 60
    again = MultiLabelMoM.load(tmp_path / "newer").decision_function(texts)
    first = MultiLabelMoM.load(place / "model").decision_function(texts)
    np.testing.assert_array_equal(again, np.hstack([first, np.zeros((3, 1))]))


def test_a_model_in_an_object_store_is_updated(place, run, tmp_path, s3):
    s3.make_bucket("updates")
    first, newer = "s3://updates/first", "s3://updates/newer"
    MultiLabelMoM.load(place / "model").save(first)
    found = updated(run, first, place / "monday", newer, "--run", tmp_path / "run")
    assert (found["model"], found["n_documents"]) == (newer, 90)
    updated(run, place / "model", place / "monday", tmp_path / "newer")
    texts = ["owl and wren", "herring of the sea", "oak bark"]
    scores = [MultiLabelMoM.load(path).decision_function(texts) for path in (newer, tmp_path / "newer")]
    np.testing.assert_array_equal(*scores)
    code, out, _ = run("resume", tmp_path / "run", "--json")
    assert (code, json.loads(out)) == (0, {"model": newer, "finished": True})
    code, _, err = run("combine", tmp_path / "less", "--add", newer, "--subtract", first)
    assert code == 0, err


def test_updates_are_combined(place, run, tmp_path):
    for day in ("monday", "tuesday"):
        updated(run, place / "model", place / day, tmp_path / day)
    updated(run, tmp_path / "monday", place / "tuesday", tmp_path / "both")
    models = ("--add", tmp_path / "monday", "--add", tmp_path / "tuesday")
    code, out, err = run("combine", tmp_path / "total", *models, "--subtract", place / "model", "--json")
    assert code == 0, err
    assert json.loads(out) == {"model": str(tmp_path / "total"), "n_documents": 120, "n_labels": 3}
    total, both = (MultiLabelMoM.load(tmp_path / name) for name in ("total", "both"))
    texts = ["owl and wren", "herring of the sea", "oak bark"]
    np.testing.assert_allclose(total.decision_function(texts), both.decision_function(texts), rtol=1e-5)
    code, _, err = run("combine", tmp_path / "wrong", *models)
    assert (code, (tmp_path / "wrong").exists()) == (2, False)
    assert "would be counted 2 times: they were added before, or models share them" in err
    assert run("combine", tmp_path / "total", *models)[0] == 2


def test_an_interrupted_update_resumes(place, run, tmp_path, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    command = ("update", place / "model", place / "monday", tmp_path / "newer", "--workers", 0)
    with monkeypatch.context() as change:
        change.setattr(MultiLabelMoM, "save", stop)
        code, out, err = run(*command)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == f"to resume: distmom resume {tmp_path / 'newer.run'} --workers 0"
    code, _, err = run(*command, "--remove")
    assert code == 2
    assert "holds another run, which differs in remove;" in err
    code, _, err = run("fit", place / "monday", tmp_path / "newer", *LOCAL)
    assert code == 2
    assert "holds another run, which differs in like;" in err
    code, out, err = run("resume", tmp_path / "newer.run", "--workers", 0)
    assert code == 0, err
    assert "n_documents     90" in out
    lines = [line for line in err.splitlines() if " documents in " in line]
    assert lines
    assert all(line.endswith("found committed") for line in lines)
    assert [entry.name for entry in tmp_path.iterdir()] == ["newer"]


def test_an_update_of_a_model_that_is_gone_or_changed_does_not_resume(place, run, tmp_path, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    updated(run, place / "model", place / "tuesday", tmp_path / "old")
    with monkeypatch.context() as change:
        change.setattr(MultiLabelMoM, "save", stop)
        run("update", tmp_path / "old", place / "monday", tmp_path / "newer", *LOCAL)
    (tmp_path / "old").rename(tmp_path / "elsewhere")
    code, _, err = run("resume", tmp_path / "newer.run", *LOCAL)
    assert code == 4
    assert "not a model" in err
    updated(run, place / "model", place / "monday", tmp_path / "old")
    code, _, err = run("resume", tmp_path / "newer.run", *LOCAL)
    assert code == 2
    assert f"{tmp_path / 'old'}: changed since the update began" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("{bare} {monday} {out}", 2, "fitted without its sums: fit it with --keep-sums"),
        ("{model} {monday} {out} --remove", 2, "no documents with the label 'birds'"),
        ("{model} {first} {out}", 2, "would be counted 2 times"),
        ("{model} {odd} {out}", 2, "got none of them, such as 'lepton', 'quark'"),
        ("{model} {monday} {bare}", 2, "the model exists"),
        ("{monday} {monday} {out}", 2, "not a model"),
        ("{model} {model} {out}", 2, "is not a corpus"),
        ("{model} {monday} s3://bucket/model", 2, "s3://bucket/model: give --run"),
    ],
)
def test_wrong_updates_are_refused(place, run, tmp_path, arguments, code, message):
    names = {name: place / name for name in ("bare", "model", "monday", "first", "odd")} | {
        "out": tmp_path / "out"
    }
    found = run("update", *(each.format(**names) for each in arguments.split()), *LOCAL)
    assert found[:2] == (code, "")
    assert message in found[2]
    assert "cross:" not in found[2]
    assert list(tmp_path.iterdir()) == []


def test_a_document_that_is_not_there_is_named(place, run, tmp_path):
    lines = (place / "first.jsonl").read_text().splitlines()
    other = lines[8].replace('"text": "', '"text": "old ')
    (tmp_path / "gone.jsonl").write_text(f"{lines[7]}\n{other}\n")
    ingest(tmp_path / "gone.jsonl", tmp_path / "gone", id_column="id", like=open_corpus(place / "first"))
    code, _, err = run("update", place / "model", tmp_path / "gone", tmp_path / "out", "--remove", *LOCAL)
    assert code == 2
    assert "document 'first-8' is not in the model with these words and labels; nothing was removed" in err
    code, _, err = run("combine", tmp_path / "out", "--add", place / "bare")
    assert code == 2
    assert "fitted without its sums" in err
