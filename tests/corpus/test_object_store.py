"""Corpora in an object store: the same bytes as on disk, or one clear error."""

import pickle
import shutil
import socket
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from stores import KEYS, file_server, free_port, use

from distmom.corpus import copy_corpus, from_arrays, ingest, ingest_rows, open_corpus
from distmom.corpus.files import storage
from distmom.corpus.files.storage import MissingError, ObjectStorage, Patience
from distmom.corpus.stored import base as stored
from distmom.errors import StoreError, UsageError


def matrices(n=50, seed=0):
    rng = np.random.default_rng(seed)
    return rng.poisson(0.3, (n, 30)), (rng.random((n, 7)) < 0.2).astype(int)


@pytest.fixture
def corpus(tmp_path):
    return from_arrays(tmp_path / "corpus", *matrices(), shard_documents=25)


@pytest.fixture
def files(corpus, tmp_path, monkeypatch):
    """A server that has the corpus at ``s3://bucket/c`` and can be made to misbehave."""
    shutil.copytree(corpus.path, tmp_path / "bucket" / "c")
    with file_server(tmp_path) as files:
        use(monkeypatch, files.endpoint)
        yield files


def files_of(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in Path(root).rglob("*") if p.is_file()}


def read_all(corpus):
    blocks = [corpus.read_shard(index) for index in range(len(corpus.shards))]
    return blocks, corpus.vocabulary, corpus.label_names, corpus.document_frequency


def forget_opened():
    stored._reopen.cache_clear()


def test_a_copy_there_and_back_holds_the_same_bytes(corpus, s3, bucket, tmp_path):
    stages = []
    url = f"s3://{bucket}/some/prefix"
    there = copy_corpus(corpus.path, f"{url}/", progress=lambda *event: stages.append(event))
    assert stages == [("copy", 0, 50), ("copy", 25, 50), ("copy", 50, 50)]
    assert (there.path, there.digest, there.n_documents) == (url, corpus.digest, 50)
    local = files_of(corpus.path)
    assert s3.keys(bucket) == {f"some/prefix/{name}" for name in local}
    assert all(s3.get(bucket, f"some/prefix/{name}") == content for name, content in local.items())
    assert there.verify() == []
    for index in range(2):
        a, b = corpus.read_shard(index), there.read_shard(index)
        assert (a.words != b.words).nnz == 0
        assert (a.labels != b.labels).nnz == 0
    assert np.array_equal(there.word_frequency, corpus.word_frequency)
    back = copy_corpus(url, tmp_path / "back")
    assert files_of(back.path) == local
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["back", "corpus"]
    second = copy_corpus(url, f"s3://{bucket}/second")
    assert s3.keys(bucket) == {f"{place}/{name}" for place in ("some/prefix", "second") for name in local}
    assert second.digest == corpus.digest


def test_a_corpus_pickles_as_url_and_digest(corpus, s3, bucket):
    there = copy_corpus(corpus.path, f"s3://{bucket}/c")
    there.read_shard(0)
    packed = pickle.dumps(there)
    assert len(packed) < 300
    assert not any(value.encode() in packed for value in (*KEYS.values(), s3.endpoint))
    forget_opened()
    sent = pickle.loads(packed)
    assert repr(sent) == f"Corpus('s3://{bucket}/c')"
    assert np.array_equal(sent.read_shard(1).words.toarray(), matrices()[0][25:])
    assert "n_documents=50" in repr(sent)


def test_unpickling_and_forwarding_a_corpus_reads_nothing(corpus, s3, bucket, monkeypatch):
    """The scheduler of a cluster unpickles a corpus only to send it to workers."""
    packed = pickle.dumps(copy_corpus(corpus.path, f"s3://{bucket}/c"))
    forget_opened()
    use(monkeypatch, "http://127.0.0.1:1")
    assert pickle.dumps(pickle.loads(packed)) == packed
    sent = pickle.loads(packed)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(StoreError, match=rf"distmom\[s3\].* \(on host {socket.gethostname()}\)"):
        sent.read_shard(0)
    monkeypatch.undo()
    use(monkeypatch, s3.endpoint)
    # A failure is not cached.
    assert sent.read_shard(0).n_documents == 25


def test_another_corpus_at_the_place_is_found(corpus, s3, bucket, tmp_path):
    packed = pickle.dumps(copy_corpus(corpus.path, f"s3://{bucket}/c"))
    other = from_arrays(tmp_path / "other", *matrices(seed=1))
    copy_corpus(other.path, f"s3://{bucket}/c", overwrite=True)
    forget_opened()
    with pytest.raises(StoreError, match="a different corpus is there"):
        read_all(pickle.loads(packed))


def test_overwriting_replaces_all_files(corpus, s3, bucket, tmp_path):
    url = f"s3://{bucket}/c"
    copy_corpus(corpus.path, url)
    other = from_arrays(tmp_path / "other", *matrices(seed=1), shard_documents=50)
    with pytest.raises(UsageError, match="already exists"):
        copy_corpus(other.path, url)
    assert open_corpus(url).verify() == []
    s3.put(bucket, "c/letter.txt", b"dear")
    there = copy_corpus(other.path, url, overwrite=True)
    assert there.digest == other.digest
    assert there.verify() == []
    expected = {f"c/{name}" for name in files_of(other.path)} | {"c/letter.txt"}
    assert s3.keys(bucket) == expected
    with pytest.raises(UsageError, match="already exists"):
        copy_corpus(url, corpus.path)
    assert copy_corpus(url, corpus.path, overwrite=True).digest == other.digest
    assert files_of(corpus.path) == files_of(other.path)
    for place in (url, other.path):
        with pytest.raises(UsageError, match="same place"):
            copy_corpus(place, f"{place}/", overwrite=True)
    copy_corpus(other.path, f"s3://{bucket}/c d")
    with pytest.raises(UsageError, match="same place"):
        copy_corpus(f"s3://{bucket}/c d", f"s3://{bucket}/c%20d", overwrite=True)


def test_overwriting_repairs_a_damaged_corpus(corpus, s3, bucket, caplog):
    url = f"s3://{bucket}/c"
    copy_corpus(corpus.path, url)
    s3.put(bucket, "c/shards/s00001/words/data/c/0", b"damage")
    s3.put(bucket, "c/shards/s00000/shard.json", b"damage")
    assert len(open_corpus(url).verify()) == 2
    assert copy_corpus(corpus.path, url, overwrite=True).verify() == []
    assert "s00000/shard.json" in caplog.text
    assert "may remain" in caplog.text
    s3.put(bucket, "c/manifest.json", b"damage")
    assert copy_corpus(corpus.path, url, overwrite=True).verify() == []


@pytest.mark.parametrize("to_store", [True, False])
def test_an_interrupted_copy_is_no_corpus_and_resumes(to_store, corpus, s3, bucket, tmp_path, monkeypatch):
    url, path = f"s3://{bucket}/c", str(tmp_path / "copy")
    source, target = corpus.path, url
    if not to_store:
        copy_corpus(corpus.path, url)
        source, target = url, path
    kind = storage.ObjectStorage if to_store else storage.LocalStorage
    written = []

    def write(self, key, content):
        if stops and key.startswith("shards/s00001/words/i"):
            raise KeyboardInterrupt
        written.append(key)
        return original(self, key, content)

    original, stops = kind.write_bytes, True
    monkeypatch.setattr(kind, "write_bytes", write)
    with pytest.raises(KeyboardInterrupt):
        copy_corpus(source, target)
    assert "shards/s00000/shard.json" in written
    with pytest.raises(
        UsageError, match=r"there is no manifest\.json below" if to_store else "run the same copy"
    ):
        open_corpus(target)
    written.clear()
    stops = False
    assert copy_corpus(source, target).verify() == []
    assert {key.split("/")[1] for key in written if key.startswith("shards/")} == {"s00001"}
    assert not (tmp_path / "copy.partial").exists()


def test_a_damaged_source_makes_no_copy(corpus, s3, bucket, tmp_path):
    chunk = Path(corpus.path) / "shards/s00001/labels/data/c/0"
    content = chunk.read_bytes()
    chunk.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StoreError, match=r"s00001/labels/data/c/0: sha256"):
        copy_corpus(corpus.path, f"s3://{bucket}/c")
    assert "c/manifest.json" not in s3.keys(bucket)
    with pytest.raises(StoreError, match=r"s00001/labels/data/c/0: sha256"):
        copy_corpus(corpus.path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.slow
def test_every_deleted_truncated_or_altered_object_is_found(s3, bucket, tmp_path):
    corpus = from_arrays(tmp_path / "corpus", *matrices(20))
    url = f"s3://{bucket}/c"
    copy_corpus(corpus.path, url)
    local = files_of(corpus.path)
    assert len(local) > 25
    for number, (name, content) in enumerate(sorted(local.items())):
        key = f"c/{name}"
        if number % 3 == 0:
            s3.delete(bucket, key)
        elif number % 3 == 1:
            s3.put(bucket, key, content[:-1])
        else:
            s3.put(bucket, key, content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises((StoreError, UsageError), match=f"^s3://{bucket}/c"):
            read_all(open_corpus(url))
        if name != "manifest.json":
            (problem,) = open_corpus(url).verify()
            assert problem.startswith((f"{url}/{name}: ", f"{url}/{name}".rsplit("/", 1)[0]))
        s3.put(bucket, key, content)
    assert open_corpus(url).verify() == []


def test_a_larger_object_is_not_fetched(corpus, s3, bucket):
    url = f"s3://{bucket}/c"
    copy_corpus(corpus.path, url)
    s3.put(bucket, "c/vocabulary.txt", bytes(1000))
    with pytest.raises(StoreError, match=r"vocabulary\.txt: size: expected at most \d+ bytes, got 1000"):
        _ = open_corpus(url).vocabulary
    with pytest.raises(MissingError, match="cannot be read"):
        ObjectStorage(url, storage.FIRST).read_bytes("nothing")


def test_wrong_locations_are_reported(s3, bucket, corpus, monkeypatch):
    for url, message in {
        f"s3://{bucket}/c": r"is not a corpus: there is no manifest\.json below it",
        "s3://no-such-bucket/c": "is not a corpus: there is no such bucket",
        "ftp://host/c": "expected a local path or one of s3://, http://, https://, got ftp://",
        "s3://": "without user, query or fragment",
        "s3://bu cket/c": "without user, query or fragment",
        "s3://bucket/c?versionId=1": "without user, query or fragment",
        f"s3://{bucket}/b/../c": r"expected a path without empty parts, '\.' and '\.\.'",
        f"s3://{bucket}/%2e/c": "expected a path without empty parts",
        f"s3://{bucket}//c": "expected a path without empty parts",
        f"s3://{bucket}/c\td": "expected a URL without control characters",
        f"s3://{bucket}/c%0Ad": "expected a URL without control characters",
        f"s3://{bucket}:9000/c": "the address of a store belongs in AWS_ENDPOINT_URL",
    }.items():
        with pytest.raises(UsageError, match=message):
            open_corpus(url)
    with pytest.raises(UsageError, match=r"^https://\.\.\.: .* without user") as caught:
        open_corpus("https://me:secret@host/c")
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="cannot be a destination: there is no such bucket"):
        copy_corpus(corpus.path, "s3://no-such-bucket/c")
    with pytest.raises(UsageError, match="a corpus is written to a local path"):
        from_arrays(f"s3://{bucket}/c", *matrices())
    for source in (f"s3://{bucket}/texts.jsonl", "https://host/texts.jsonl", f"s3://{bucket}/rows.npy"):
        with pytest.raises(UsageError, match="expected a source on a file system, got a URL"):
            ingest_rows(source, "x") if source.endswith("npy") else ingest(source, "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(
        UsageError, match=r"AWS_ENDPOINT_URL: expected a URL such as .*, got 'localhost:9000'"
    ):
        open_corpus(f"s3://{bucket}/c")


def test_wrong_keys_are_refused(s3, bucket, corpus):
    url = f"s3://{bucket}/c"
    opened = copy_corpus(corpus.path, url)
    try:
        assert s3.request("POST", "/moto-api/reset-auth", b"0")[0] == 200
        with pytest.raises(UsageError, match=r"access is refused: .*InvalidAccessKeyId"):
            open_corpus(url)
        with pytest.raises(StoreError, match=r"s00000/shard\.json: cannot be read: .*InvalidAccessKeyId"):
            opened.read_shard(0)
        with pytest.raises(UsageError, match="cannot be a destination: access is refused"):
            copy_corpus(corpus.path, f"s3://{bucket}/d")
    finally:
        assert s3.request("POST", "/moto-api/reset-auth", b"inf")[0] == 200


def test_missing_keys_are_reported(files, monkeypatch):
    """Without keys the client requests the role of the machine, and this one has none."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", files.endpoint)
    with pytest.raises(UsageError, match="the environment holds no keys"):
        open_corpus("s3://bucket/c")
    assert not files.requests
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert open_corpus("s3://bucket/c").n_documents == 50


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UsageError, match=r"needs the package obstore: pip install 'distmom\[s3\]'"):
        open_corpus("s3://bucket/c")


def test_an_endpoint_that_does_not_respond_is_reported_within_seconds(monkeypatch):
    use(monkeypatch, f"http://127.0.0.1:{free_port()}")
    started = time.monotonic()
    with pytest.raises(StoreError, match=r"s3://bucket/c/manifest\.json: cannot be read: .*sending request"):
        open_corpus("s3://bucket/c")
    assert time.monotonic() - started < 10
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(storage, "FIRST", Patience(connect_s=0.5, read_s=0.5, n_retries=3, retry_s=0.8))
        started = time.monotonic()
        with pytest.raises(StoreError, match="cannot be read"):
            open_corpus("s3://bucket/c")
        assert 0.4 < time.monotonic() - started < 5


def test_requests_to_a_busy_store_are_retried(files):
    files.busy = 2
    assert np.array_equal(open_corpus("s3://bucket/c").read_shard(0).words.toarray(), matrices()[0][:25])
    assert len(files.requests) > 15
    assert set(files.requests.values()) == {3}


def test_a_truncated_response_is_completed(files):
    files.cut = 1
    assert np.array_equal(open_corpus("s3://bucket/c").read_shard(0).words.toarray(), matrices()[0][:25])
    assert files.requests["bucket/c/shards/s00000/words/data/c/0"] == 2


@pytest.mark.parametrize(
    ("fault", "said"),
    [("busy", "503 Service Unavailable: .*SlowDown"), ("cut", "body error"), ("refuse", "AccessDenied")],
)
def test_a_store_that_keeps_failing_gives_one_error(fault, said, files, monkeypatch):
    monkeypatch.setattr(storage, "PATIENT", Patience(connect_s=1, read_s=1, n_retries=2, retry_s=2))
    opened = open_corpus("s3://bucket/c")
    setattr(files, fault, 1000)
    place = r"s3://bucket/c/shards/s00000/shard\.json"
    with pytest.raises(StoreError, match=rf"^{place}: cannot be read: .*{said}") as caught:
        opened.read_shard(0)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError if fault == "refuse" else StoreError, match=said):
        open_corpus("s3://bucket/c")


def test_a_web_server_is_read_as_well(files, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "PATIENT", Patience(connect_s=1, read_s=1, n_retries=1, retry_s=1))
    url = f"{files.endpoint}/bucket/c"
    assert open_corpus(url).verify() == []
    copy_corpus(url, tmp_path / "copy")
    assert files_of(tmp_path / "copy") == files_of(corpus.path)
    with pytest.raises(StoreError, match="cannot be written"):
        copy_corpus(corpus.path, f"{files.endpoint}/bucket/d")
    with pytest.raises(UsageError, match=r"there is no manifest\.json below it"):
        open_corpus(f"{files.endpoint}/bucket/nothing")


def test_rows_and_sequences_in_a_store(s3, bucket, tmp_path):
    symbols = np.arange(300) % 7
    corpus = ingest_rows(symbols, tmp_path / "corpus", lengths=[10, 240, 50], shard_rows=100)
    there = copy_corpus(corpus.path, f"s3://{bucket}/c")
    assert there.digest == corpus.digest
    assert there.verify() == []
    again = pickle.loads(pickle.dumps(there.select("rows")))
    rows = [again.read_shard(i).with_context(0).rows for i in range(len(again.shards))]
    np.testing.assert_array_equal(np.concatenate(rows), symbols)
    back = copy_corpus(f"s3://{bucket}/c", tmp_path / "back")
    assert files_of(back.path) == files_of(corpus.path)
