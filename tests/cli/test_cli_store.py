"""The command line on a corpus in an object store."""

import json
import time

import pytest
from helpers import planted_matrices, scores
from stores import free_port

from distmom.cli.main import main
from distmom.corpus import from_arrays, open_corpus
from distmom.corpus.files.storage import ObjectStorage
from distmom.models import MultiLabelMoM

LOCAL = ("--workers", "0", "--quiet")
MODEL = ("-k", "4", "--head", "linear")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a corpus and a model of it."""
    folder = tmp_path_factory.mktemp("store")
    from_arrays(folder / "corpus", *planted_matrices(), shard_documents=500)
    assert main(["fit", str(folder / "corpus"), str(folder / "model"), *MODEL, *LOCAL]) == 0
    return folder


@pytest.fixture
def url(bucket, place, run):
    """The corpus in a store, brought there by the command."""
    url = f"s3://{bucket}/c"
    code, out, err = run("copy", place / "corpus", url, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["digest"] == open_corpus(place / "corpus").digest
    return url


def test_a_fit_from_a_store_gives_the_same_bits(url, run, place, tmp_path):
    code, out, err = run("fit", url, tmp_path / "m", *MODEL, "--workers", "0", "--json")
    assert code == 0
    assert json.loads(out)["n_states"] == 4
    assert "moments: 1,500 documents in" in err
    assert scores(tmp_path / "m", place / "corpus") == scores(place / "model", place / "corpus")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m"]


def test_every_command_reads_a_store_as_it_reads_a_path(url, run, place, tmp_path):
    local = str(place / "corpus")
    for command in (
        ["info"],
        ["plan", "--workers", "0", "-k", "4"],
        ["evaluate", str(place / "model"), *LOCAL],
    ):
        name, *options = command
        before = options[:1] if name == "evaluate" else []
        after = options[len(before) :]
        expected = run(name, *before, local, *after, "--json")
        assert run(name, *before, url, *after, "--json") == expected
        assert expected[0] == 0
    assert run("verify", url) == (0, f"{url}: all bytes are as written\n", "")
    for source, out in ((local, "a"), (url, "b")):
        assert run("predict", place / "model", source, tmp_path / out, *LOCAL)[0] == 0
    texts = [(tmp_path / out / "predictions.tsv").read_bytes() for out in "ab"]
    assert texts[0] == texts[1]
    code, _, err = run("copy", url, tmp_path / "back")
    assert code == 0
    assert err == ""
    assert run("verify", tmp_path / "back")[0] == 0
    code, _, err = run("copy", url, tmp_path / "back")
    assert code == 2
    assert "already exists" in err
    assert run("copy", url, tmp_path / "back", "--overwrite", "--quiet")[0] == 0


def test_damage_in_a_store_exits_4_and_the_run_goes_on_when_it_is_repaired(
    url, bucket, s3, run, place, tmp_path
):
    key = "c/shards/s00001/words/data/c/0"
    content = s3.get(bucket, key)
    s3.put(bucket, key, content[:-1] + bytes([content[-1] ^ 1]))
    code, out, _ = run("verify", url, "--json")
    assert code == 4
    [problem] = json.loads(out)["problems"]
    assert problem.startswith(f"s3://{bucket}/{key}: sha256: expected ")
    fit = ("fit", url, tmp_path / "m", *MODEL, *LOCAL)
    code, _, err = run(*fit)
    assert code == 4
    assert f"s3://{bucket}/{key}: sha256" in err
    s3.delete(bucket, key)
    code, _, err = run("resume", tmp_path / "m.run", *LOCAL)
    assert code == 4
    assert f"s3://{bucket}/{key}: cannot be read" in err
    assert run("copy", place / "corpus", url, "--overwrite", "--quiet")[0] == 0
    assert run("resume", tmp_path / "m.run", *LOCAL)[0] == 0
    assert scores(tmp_path / "m", place / "corpus") == scores(place / "model", place / "corpus")


def test_a_store_that_cannot_be_reached_does_not_cost_a_run(url, run, tmp_path, monkeypatch):
    """Of which passes are committed, while keys or network are missing when it is resumed."""

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as change:
        change.setattr(MultiLabelMoM, "save", interrupted)
        assert run("fit", url, tmp_path / "m", *MODEL, *LOCAL)[0] == 130
    committed = sorted((tmp_path / "m.run" / "passes").iterdir())
    assert len(committed) > 3
    for endpoint in (f"http://127.0.0.1:{free_port()}", "nonsense"):
        with monkeypatch.context() as change:
            change.setenv("AWS_ENDPOINT_URL", endpoint)
            code, _, err = run("resume", tmp_path / "m.run", *LOCAL)
        assert code == 4
        assert "to resume: distmom resume" in err
        assert sorted((tmp_path / "m.run" / "passes").iterdir()) == committed
    code, _, err = run("resume", tmp_path / "m.run", "--workers", 0)
    assert code == 0
    assert "found committed" in err


def test_a_model_in_a_store_serves_every_command_as_a_local_one(bucket, s3, run, place, tmp_path):
    local, model, corpus = place / "model", f"s3://{bucket}/m", place / "corpus"
    fit = ("fit", corpus, model, *MODEL, "--run", tmp_path / "run", *LOCAL)
    assert run(*fit)[0] == 0
    assert json.loads(run("resume", tmp_path / "run", "--json")[1]) == {"model": model, "finished": True}
    assert scores(model, corpus) == scores(local, corpus)
    for command in (["evaluate", corpus, *LOCAL], ["topics"], ["topics", "--states"]):
        name, *rest = command
        expected = run(name, local, *rest, "--json")
        assert run(name, model, *rest, "--json") == expected
        assert expected[0] == 0
    for each, out in ((local, "a"), (model, "b")):
        assert run("predict", each, corpus, tmp_path / out, *LOCAL)[0] == 0
        assert run("report", each, tmp_path / f"{out}.html")[0] == 0
    texts = [(tmp_path / out / "predictions.tsv").read_bytes() for out in "ab"]
    assert texts[0] == texts[1]
    found, expected = (json.loads(run("info", each, "--json")[1]) for each in (model, local))
    assert found["kind"] == "model"
    assert found.keys() == expected.keys()
    assert run("verify", model) == (0, f"{model}: all bytes are as written\n", "")
    code, _, err = run("fit", corpus, model, *MODEL, "--run", tmp_path / "second", *LOCAL)
    assert code == 2
    assert f"{model}: already exists; choose another location or overwrite it" in err
    assert not (tmp_path / "second").exists()
    key = next(key for key in sorted(s3.keys(bucket)) if key.endswith("/vocabulary.txt"))
    content = s3.get(bucket, key)
    s3.put(bucket, key, content[:-2] + b"~\n")
    code, out, _ = run("verify", model, "--json")
    assert code == 4
    assert json.loads(out)["problems"][0].startswith(f"s3://{bucket}/{key}: sha256: expected ")
    assert run("predict", model, corpus, tmp_path / "c", *LOCAL)[0] == 4
    assert not (tmp_path / "c").exists()
    assert run(*fit, "--overwrite")[0] == 0
    assert run("verify", model)[0] == 0


def test_a_fit_whose_upload_fails_is_resumed(bucket, s3, run, place, tmp_path, monkeypatch):
    model, directory = f"s3://{bucket}/m", tmp_path / "run"
    write = ObjectStorage.write_file

    def interrupted(self, key, path):
        if key.endswith("labels.txt"):
            raise KeyboardInterrupt
        write(self, key, path)

    with monkeypatch.context() as change:
        change.setattr(ObjectStorage, "write_file", interrupted)
        code, _, err = run("fit", place / "corpus", model, *MODEL, "--run", directory, *LOCAL)
    assert code == 130
    assert f"distmom resume {directory}" in err
    code, _, err = run("info", model)
    assert code == 2
    assert run("evaluate", model, place / "corpus", *LOCAL)[0] == 2
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    code, _, err = run("resume", directory, *LOCAL)
    assert code == 4
    assert f"{model}/contents.json: cannot be read" in err
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    assert run("resume", directory, *LOCAL)[0] == 0
    assert scores(model, place / "corpus") == scores(place / "model", place / "corpus")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("info s3://no-such-bucket/c", 2, "s3://no-such-bucket/c: is not a corpus: there is no such bucket"),
        ("fit s3://{bucket}/nothing m -k 4", 2, "is not a corpus: there is no manifest.json below it"),
        ("plan gs://{bucket}/c", 2, "expected a local path or one of s3://, http://, https://, got gs://"),
        ("ingest {place}/corpus s3://{bucket}/c", 2, "expected a local path, got 's3://{bucket}/c'"),
        (
            "fit {place}/corpus s3://{bucket}/m",
            2,
            "s3://{bucket}/m: give --run, a directory on a file system",
        ),
        ("fit {place}/corpus s3://no-such-bucket/m --run r", 2, "cannot be used: there is no such bucket"),
        ("fit {place}/corpus https://host/m --run r", 2, "expected a local path or s3://BUCKET/PREFIX"),
        (
            "predict s3://{bucket}/m {place}/corpus p",
            2,
            "s3://{bucket}/m: holds no model: there is no contents",
        ),
        ("moments {place}/corpus s3://{bucket}/m", 2, "expected a local path"),
        ("fit {place}/corpus m --run s3://{bucket}/m", 2, "expected a local path"),
        ("report {place}/model s3://{bucket}/r.html", 2, "expected a local path"),
        ("copy {place}/corpus s3://no-such-bucket/c", 2, "cannot be a destination: there is no such bucket"),
        ("copy nothing s3://{bucket}/c", 2, "nothing: is not a corpus"),
        ("copy {place}/model s3://{bucket}/c", 2, "is not a corpus"),
    ],
)
def test_wrong_places_are_one_clear_sentence(
    arguments, code, message, bucket, place, run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    found = run(*(each.format(place=place, bucket=bucket) for each in arguments.split()))
    assert found[:2] == (code, "")
    assert message.format(bucket=bucket) in found[2]
    assert list(tmp_path.iterdir()) == []


def test_an_endpoint_that_does_not_answer_exits_4_within_seconds(bucket, place, run, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    started = time.monotonic()
    for command in (
        ("fit", f"s3://{bucket}/c", tmp_path / "m"),
        ("copy", place / "corpus", f"s3://{bucket}/c"),
    ):
        code, out, err = run(*command)
        assert (code, out) == (4, "")
        [line] = err.splitlines()
        assert line.startswith(f"error: s3://{bucket}/c/manifest.json: cannot be read: ")
    assert time.monotonic() - started < 10
    assert list(tmp_path.iterdir()) == []
