"""Models in an object store: the bits of the local model, or one clear error."""

import json
import shutil
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from helpers import planted_matrices
from stores import file_server, free_port, use

from distmom import load_model
from distmom.corpus import copy_corpus, from_arrays, open_corpus
from distmom.corpus.files import uploads
from distmom.corpus.files.storage import ObjectStorage
from distmom.errors import StoreError, UsageError
from distmom.models import MultiLabelMoM, SpectralLDA, TopicMoments
from distmom.spectral.saved import artifact

pytestmark = pytest.mark.usefixtures("scratch")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return from_arrays(tmp_path_factory.mktemp("store") / "corpus", *planted_matrices(), shard_documents=500)


@pytest.fixture(scope="module")
def model(corpus):
    return MultiLabelMoM(4, head="linear").fit_corpus(corpus)


@pytest.fixture(scope="module")
def other(corpus):
    return MultiLabelMoM(3, head="linear").fit_corpus(corpus)


@pytest.fixture
def url(bucket):
    return f"s3://{bucket}/a/model"


def scores(model, corpus):
    return model.decision_function(corpus.read_shard(0).words[:300]).tobytes()


def contents(s3, bucket):
    return json.loads(s3.get(bucket, "a/model/contents.json"))


def object_of(s3, bucket, name):
    return f"a/model/{contents(s3, bucket)['upload']}/{name}"


def test_a_model_comes_back_with_the_same_bits(model, corpus, s3, bucket, url, tmp_path, monkeypatch):
    # Arrays in files of their own are mapped, and stay valid when the downloaded files are removed.
    monkeypatch.setattr(artifact, "LARGE_BYTES", 64)
    model.save(url)
    model.save(tmp_path / "model")
    again = load_model(url)
    assert type(again) is MultiLabelMoM
    assert scores(again, corpus) == scores(model, corpus)
    local = load_model(tmp_path / "model")
    for name, value in vars(local).items():
        if isinstance(value, np.ndarray):
            assert getattr(again, name).tobytes() == value.tobytes(), name
    found = contents(s3, bucket)
    assert found["kind"] == "model"
    assert any(name.endswith(".npy") for name in found["files"])
    objects = {f"a/model/{found['upload']}/{name}" for name in found["files"]}
    assert s3.keys(bucket) == {"a/model/contents.json"} | objects
    files = {str(p.relative_to(tmp_path / "model")) for p in (tmp_path / "model").rglob("*") if p.is_file()}
    assert set(found["files"]) == files
    assert scores(MultiLabelMoM.load(url), corpus) == scores(model, corpus)


def test_large_files_are_transferred_in_parts(model, corpus, url, tmp_path, monkeypatch):
    # The least size that S3 accepts for a part; the last one is not full.
    monkeypatch.setattr("distmom.corpus.files.storage.PART_BYTES", 5 << 20)
    folder = tmp_path / "large"
    folder.mkdir()
    content = np.random.default_rng(0).bytes((11 << 20) + 1)
    (folder / "large.bin").write_bytes(content)
    (folder / "empty.txt").write_bytes(b"")
    uploads.upload_directory(folder, url, "model")
    with uploads.local_directory(url, "model") as place:
        assert (place / "large.bin").read_bytes() == content
        assert (place / "empty.txt").read_bytes() == b""
    monkeypatch.setattr(artifact, "LARGE_BYTES", 64)
    model.save(url, overwrite=True)
    for size in (100, 1000):
        monkeypatch.setattr("distmom.corpus.files.storage.PART_BYTES", size)
        assert scores(load_model(url), corpus) == scores(model, corpus)


@pytest.mark.slow
def test_every_damaged_object_is_found_before_use(model, s3, bucket, url):
    model.save(url)
    kinds = cycle(["flipped", "short", "long", "missing", "flipped"])
    for name, damage in zip(contents(s3, bucket)["files"], kinds, strict=False):
        key = object_of(s3, bucket, name)
        content = s3.get(bucket, key)
        if not content and damage != "missing":
            continue
        if damage == "missing":
            s3.delete(bucket, key)
        else:
            changed = {
                "flipped": content[:-1] + bytes([content[-1] ^ 1]),
                "short": content[:-1],
                "long": content + b"0",
            }
            s3.put(bucket, key, changed[damage])
        with pytest.raises(StoreError, match=f"s3://{bucket}/{key}: ") as found:
            load_model(url)
        assert "\n" not in str(found.value)
        s3.put(bucket, key, content)
    load_model(url)
    record = s3.get(bucket, "a/model/contents.json")
    s3.put(bucket, "a/model/contents.json", record.replace(b'"size": ', b'"size": 1', 1))
    with pytest.raises(StoreError, match=f"{url}/contents.json: checksum"):
        load_model(url)
    outside = uploads.Contents("model", "0" * 32, {"../x": {"size": 1, "sha256": "0" * 64}})
    s3.put(bucket, "a/model/contents.json", uploads._FORMAT.dump(vars(outside)))
    with pytest.raises(StoreError, match=f"{url}/contents.json: expected kind, name and files"):
        load_model(url)
    # Its files are not known, but they do not prevent a new model.
    model.save(url, overwrite=True)
    load_model(url)


def test_an_interrupted_upload_is_no_model_and_is_repaired(model, corpus, s3, bucket, url, monkeypatch):
    write, written = ObjectStorage.write_file, []

    def fails(self, key, path):
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(key)
        write(self, key, path)

    with monkeypatch.context() as change:
        change.setattr(ObjectStorage, "write_file", fails)
        with pytest.raises(KeyboardInterrupt):
            model.save(url)
    assert s3.keys(bucket) == set()
    with monkeypatch.context() as change:
        # As if the process was killed before its last request.
        change.setattr(ObjectStorage, "write_if", lambda *arguments: written[100])
        with pytest.raises(IndexError):
            model.save(url)
    left = s3.keys(bucket)
    assert left != set()
    with pytest.raises(UsageError, match=f"{url}: holds no model: there is no contents.json below it"):
        load_model(url)
    model.save(url)
    assert scores(load_model(url), corpus) == scores(model, corpus)
    assert not left & s3.keys(bucket)
    assert len(s3.keys(bucket)) == len(contents(s3, bucket)["files"]) + 1


def test_an_upload_that_begins_while_leftovers_are_removed_is_spared(
    model, other, corpus, s3, bucket, url, monkeypatch
):
    write, uploaded, swept = ObjectStorage.write_if, threading.Event(), threading.Event()
    second = threading.Thread(target=other.save, args=(url,), kwargs={"overwrite": True})

    def first_then_second(self, *arguments):
        if threading.current_thread() is second:
            uploaded.set()
            assert swept.wait(30)
        write(self, *arguments)
        if threading.current_thread() is not second:
            second.start()
            assert uploaded.wait(30)

    monkeypatch.setattr(ObjectStorage, "write_if", first_then_second)
    nested = f"a/model/{uuid.uuid4().hex}/model.json"
    s3.put(bucket, nested, b"of others")
    s3.put(bucket, f"a/model/upload-{uuid.uuid4().hex}/part/model.json", b"of an upload that was killed")
    model.save(url)
    assert len({key.split("/")[2] for key in s3.keys(bucket)}) == 4
    swept.set()
    second.join()
    assert scores(load_model(url), corpus) == scores(other, corpus)
    assert len(s3.keys(bucket) - {nested}) == len(contents(s3, bucket)["files"]) + 1


def test_overwriting_is_atomic_and_removes_the_old_files(model, other, corpus, s3, bucket, url, monkeypatch):
    model.save(url)
    with pytest.raises(UsageError, match=f"{url}: already exists"):
        other.save(url)
    seen = []
    write = ObjectStorage.write_if

    def looks(self, *arguments):
        seen.append(scores(load_model(url), corpus))
        write(self, *arguments)

    with monkeypatch.context() as change:
        change.setattr(ObjectStorage, "write_if", looks)
        other.save(url, overwrite=True)
    assert seen == [scores(model, corpus)]
    assert scores(load_model(url), corpus) == scores(other, corpus)
    found = contents(s3, bucket)
    assert len(s3.keys(bucket)) == len(found["files"]) + 1


def test_a_reader_of_a_model_that_is_replaced_reads_the_new_one(model, other, corpus, url, monkeypatch):
    model.save(url)
    read, replaced = ObjectStorage.read_parts, []

    def replaces(self, key, size):
        if not replaced:
            replaced.append(key)
            other.save(url, overwrite=True)
        yield from read(self, key, size)

    # One file after the other.
    monkeypatch.setattr(ObjectStorage, "each", lambda self, function, items: [function(x) for x in items])
    monkeypatch.setattr(ObjectStorage, "read_parts", replaces)
    assert scores(load_model(url), corpus) == scores(other, corpus)


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_writers_one_succeeds(overwrite, model, other, corpus, s3, bucket, url, monkeypatch):
    if overwrite:
        model.save(url)
    both, errors = threading.Barrier(2, timeout=30), []
    write = ObjectStorage.write_if

    def waits(self, *arguments):
        both.wait()
        write(self, *arguments)

    monkeypatch.setattr(ObjectStorage, "write_if", waits)

    def save(each):
        try:
            each.save(url, overwrite=overwrite)
        except UsageError as error:
            errors.append((each, str(error)))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(save, (model, other)))
    [(loser, message)] = errors
    assert message.startswith(f"{url}: another process has written there meanwhile")
    winner = other if loser is model else model
    assert scores(load_model(url), corpus) == scores(winner, corpus)
    assert len(s3.keys(bucket)) == len(contents(s3, bucket)["files"]) + 1


def test_a_response_that_is_lost_is_no_conflict(model, corpus, url, monkeypatch):
    write = ObjectStorage.write_if

    def twice(self, *arguments):
        write(self, *arguments)
        write(self, *arguments)

    monkeypatch.setattr(ObjectStorage, "write_if", twice)
    model.save(url)
    model.save(url, overwrite=True)
    assert scores(load_model(url), corpus) == scores(model, corpus)


def test_a_model_of_another_class(model, url):
    model.save(url)
    with pytest.raises(UsageError, match=f"^{url}: a model of class MultiLabelMoM, expected SpectralLDA"):
        SpectralLDA.load(url)


def test_wrong_places_are_reported(model, corpus, s3, bucket, url, monkeypatch):
    copy_corpus(corpus.path, url)
    with pytest.raises(UsageError, match="exists and is a corpus"):
        model.save(url, overwrite=True)
    elsewhere = f"s3://{bucket}/m"
    model.save(elsewhere)
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="holds model and cannot be replaced by a corpus"):
            copy_corpus(corpus.path, elsewhere, overwrite=overwrite)
    with pytest.raises(UsageError, match="is not a corpus"):
        open_corpus(elsewhere)
    for action in (model.save, load_model):
        with pytest.raises(
            UsageError, match="s3://no-such-bucket/m: cannot be used: there is no such bucket"
        ):
            action("s3://no-such-bucket/m")
        with pytest.raises(UsageError, match="expected a local path or one of s3://"):
            action("gs://bucket/m")
    with pytest.raises(UsageError, match="s3://bucket/m: expected a local path"):
        TopicMoments(2).save("s3://bucket/m")
    with pytest.raises(UsageError, match="cannot be a destination: expected a local path or s3://"):
        model.save("http://localhost/m")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StoreError, match=f"{elsewhere}/contents.json: cannot be read"):
        load_model(elsewhere)


def test_refused_access_is_reported(model, tmp_path, monkeypatch):
    with file_server(tmp_path) as files:
        files.refuse = True
        use(monkeypatch, files.endpoint)
        for action in (model.save, load_model):
            with pytest.raises(UsageError, match="s3://b/m: cannot be used: access is refused"):
                action("s3://b/m")


def test_a_web_server_is_read_as_well(model, corpus, tmp_path):
    with file_server(tmp_path) as files:
        model.save(tmp_path / "model")
        found = uploads.Contents("model", uuid.uuid4().hex, uploads.describe_files(tmp_path / "model"))
        (tmp_path / "m").mkdir()
        shutil.copytree(tmp_path / "model", tmp_path / "m" / found.upload)
        Path(tmp_path / "m" / "contents.json").write_bytes(uploads._FORMAT.dump(vars(found)))
        assert scores(load_model(f"{files.endpoint}/m"), corpus) == scores(model, corpus)
