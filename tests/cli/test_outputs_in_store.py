"""Predictions and shares in an object store: the bytes of the local output, or one clear error."""

import json
import os
import signal
import subprocess
import sys

import pytest
from helpers import planted_matrices
from stores import free_port

from distmom.cli.main import main
from distmom.corpus import from_arrays
from distmom.corpus.files import uploads
from distmom.corpus.files.storage import ObjectStorage
from distmom.errors import StoreError, UsageError
from distmom.predict import read_shares

pytestmark = pytest.mark.usefixtures("scratch")

LOCAL = ("--workers", "0", "--quiet")
#: the command line, in a process that is killed when it has uploaded four files
KILLED = """
import os, signal, sys, threading
from distmom.cli.main import main
from distmom.corpus.files.storage import ObjectStorage
write, written, one_at_a_time = ObjectStorage.write_file, [], threading.Lock()

def killed(self, key, path):
    with one_at_a_time:
        if len(written) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, key, path)
        written.append(key)

ObjectStorage.write_file = killed
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a corpus, a multi-label model and a topic model of it."""
    folder = tmp_path_factory.mktemp("store")
    corpus = from_arrays(folder / "corpus", *planted_matrices(), shard_documents=500)
    assert main(["fit", corpus.path, str(folder / "labels"), "-k", "4", "--head", "linear", *LOCAL]) == 0
    topics = ["fit", corpus.path, str(folder / "topics"), "--model", "lda", "-k", "3"]
    assert main([*topics, "--n-refine", "0", *LOCAL]) == 0
    return folder


@pytest.fixture
def predict(place, bucket, run):
    """The command that writes predictions to a store."""
    return lambda *more: run("predict", place / "labels", place / "corpus", f"s3://{bucket}/p", *LOCAL, *more)


def files_of(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("command", "model", "kind"), [("predict", "labels", "predictions"), ("transform", "topics", "shares")]
)
def test_an_output_in_a_store_has_the_bytes_of_the_local_one(
    command, model, kind, place, bucket, run, tmp_path
):
    url, local = f"s3://{bucket}/out", tmp_path / "out"
    reports = []
    for out in (local, url):
        code, printed, _ = run(command, place / model, place / "corpus", out, *LOCAL, "--json")
        assert code == 0
        reports.append(json.loads(printed))
        assert reports[-1].pop("out") == str(out)
    assert reports[0] == reports[1]
    with uploads.local_directory(url, kind) as found:
        assert files_of(found) == files_of(local)
    expected = run("info", local, "--json")
    assert run("info", url, "--json") == expected
    assert json.loads(expected[1])["kind"] == kind
    assert run("verify", url) == (0, f"{url}: all bytes are as written\n", "")
    with pytest.raises(UsageError, match=f"{url}: expected model, got {kind}"):
        uploads.read_contents(url, "model")
    code, _, err = run("topics", url)
    assert (code, err) == (2, f"error: {url}: expected model, got {kind}\n")


def test_shares_in_a_store_are_reported(place, bucket, run, tmp_path, s3):
    url, local = f"s3://{bucket}/out", tmp_path / "out"
    for out in (local, url):
        assert run("transform", place / "topics", place / "corpus", out, *LOCAL)[0] == 0
        page = tmp_path / f"{'local' if out == local else 'store'}.html"
        assert run("report", place / "topics", page, "--shares", out)[0] == 0
    # The summary does without the shares of documents.
    for key in s3.keys(bucket):
        if "/shares.zarr/" in key:
            s3.delete(bucket, key)
    assert read_shares(url).mean_shares.tobytes() == read_shares(local).mean_shares.tobytes()
    pages = [(tmp_path / f"{name}.html").read_text() for name in ("local", "store")]
    assert pages[0] == pages[1]
    key = next(key for key in s3.keys(bucket) if key.endswith("/topics.json"))
    s3.delete(bucket, key)
    with pytest.raises(StoreError, match=f"s3://{bucket}/{key}: cannot be read"):
        read_shares(url)


def test_existing_outputs_are_replaced_on_request_only(predict, place, bucket, run, s3):
    url = f"s3://{bucket}/p"
    assert predict()[0] == 0
    before = s3.keys(bucket)
    code, _, err = predict("--top", "2")
    elsewhere = "choose another location or overwrite it (overwrite=True, or --overwrite)"
    assert (code, err) == (2, f"error: {url}: already exists; {elsewhere}\n")
    transform = ("transform", place / "topics", place / "corpus", url, *LOCAL, "--overwrite")
    code, _, err = run(*transform)
    assert (code, err) == (2, f"error: {url}: holds predictions and cannot be replaced by shares\n")
    assert s3.keys(bucket) == before
    assert predict("--top", "2", "--overwrite")[0] == 0
    assert json.loads(run("info", url, "--json")[1])["top"] == 2
    assert before & s3.keys(bucket) == {"p/contents.json"}


def test_damage_is_found(predict, bucket, run, s3):
    url = f"s3://{bucket}/p"
    assert predict()[0] == 0
    for name in ("predictions.json", "ids.txt"):
        [key] = [key for key in s3.keys(bucket) if key.endswith(f"/{name}")]
        content = s3.get(bucket, key)
        s3.put(bucket, key, bytes([content[0] ^ 1]) + content[1:])
        code, out, _ = run("verify", url, "--json")
        assert code == 4
        [problem] = json.loads(out)["problems"]
        assert problem.startswith(f"s3://{bucket}/{key}: sha256: expected ")
        assert run("info", url)[0] == (4 if name == "predictions.json" else 0)
        s3.put(bucket, key, content)
    assert run("verify", url)[0] == 0


def test_an_interrupted_upload_is_no_output_and_is_repaired(predict, bucket, run, s3, monkeypatch):
    url = f"s3://{bucket}/p"

    def interrupted(*arguments):
        raise KeyboardInterrupt

    for name in ("write_file", "write_if"):
        with monkeypatch.context() as change:
            change.setattr(ObjectStorage, name, interrupted)
            assert predict()[0] == 130
        code, _, err = run("verify", url)
        assert code == 2
        assert "is not a corpus" in err
        with pytest.raises(UsageError, match=f"{url}: holds no shares: there is no contents.json below it"):
            read_shares(url)
    assert predict()[0] == 0
    assert run("verify", url)[0] == 0


@pytest.mark.parametrize("command", ["predict", "fit"])
@pytest.mark.slow
def test_objects_of_an_upload_that_was_killed_are_removed(command, place, bucket, run, s3, tmp_path):
    """The same command, or the resumed run, uploads again; what lies below neighbouring URLs is left alone."""
    arguments = {
        "predict": ("predict", place / "labels", place / "corpus", f"s3://{bucket}/p"),
        "fit": (
            "fit",
            place / "corpus",
            f"s3://{bucket}/p",
            "-k",
            "4",
            "--head",
            "linear",
            "--run",
            tmp_path / "run",
        ),
    }[command]
    elsewhere = {f"{folder}/upload-{'0' * 32}/x" for folder in ("p2", "p/below", "")} | {
        "p/upload-/x",
        "p/notes/x",
    }
    for key in elsewhere:
        s3.put(bucket, key.lstrip("/"), b"of others")
    before = s3.keys(bucket)
    (tmp_path / "killed").mkdir()
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, arguments), *LOCAL],
        env={**os.environ, "TMPDIR": str(tmp_path / "killed")},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    left = s3.keys(bucket) - before
    assert len(left) == 4
    assert f"p/{uploads.CONTENTS}" not in left
    assert run(*(("resume", tmp_path / "run", *LOCAL) if command == "fit" else (*arguments, *LOCAL)))[0] == 0
    contents = uploads.find_contents(f"s3://{bucket}/p")
    assert s3.keys(bucket) - before == {f"p/{key}" for key in (*contents.keys, uploads.CONTENTS)}
    assert before < s3.keys(bucket)
    assert run("verify", f"s3://{bucket}/p")[0] == 0


def test_a_store_that_may_not_be_listed_can_be_written(predict, bucket, s3, monkeypatch):
    def refused(self, folders):
        raise StoreError("access is refused")

    monkeypatch.setattr(ObjectStorage, "keys_in", refused)
    assert predict()[0] == 0
    before = s3.keys(bucket)
    assert predict("--overwrite")[0] == 0
    assert before & s3.keys(bucket) == {"p/contents.json"}


def test_a_store_that_cannot_be_written_costs_no_pass(place, bucket, run, monkeypatch):
    sources = (place / "labels", place / "corpus")
    for out, code, said in (
        ("s3://no-such-bucket/p", 2, "s3://no-such-bucket/p: cannot be used: there is no such bucket"),
        ("https://host/p", 2, "https://host/p: cannot be a destination"),
        ("gs://bucket/p", 2, "expected a local path or one of s3://"),
    ):
        found = run("predict", *sources, out, "--workers", "0")
        assert (found[0], found[1]) == (code, "")
        assert said in found[2]
        assert "predict:" not in found[2]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    code, _, err = run("predict", *sources, f"s3://{bucket}/p", *LOCAL)
    assert code == 4
    assert f"s3://{bucket}/p/contents.json: cannot be read" in err
