"""The corpus on disk: content is read back as written, and any damage is detected."""

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from distmom.corpus import CorpusWriter, MemoryCorpus, from_arrays, open_corpus
from distmom.corpus.files.commit import restore_replaced
from distmom.corpus.names import number_lines
from distmom.corpus.stored import shard
from distmom.corpus.stored.manifest import CORPUS, parse_manifest
from distmom.corpus.stored.shard import column_sums
from distmom.corpus.stored.words import read_block
from distmom.errors import InputError, StoreError, UsageError


def matrices(n=50, d=30, n_labels=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.poisson(0.3, (n, d)), (rng.random((n, n_labels)) < 0.2).astype(int)


@pytest.fixture
def corpus(tmp_path):
    X, Y = matrices()
    return from_arrays(tmp_path / "corpus", X, Y, shard_documents=20)


def files_of(corpus):
    return sorted(path for path in Path(corpus.path).rglob("*") if path.is_file())


def read_all(corpus):
    for index in range(len(corpus.shards)):
        corpus.read_shard(index)
    return corpus.vocabulary, corpus.label_names, corpus.document_frequency


@settings(max_examples=12, deadline=None)
@given(
    X=arrays(np.int32, st.tuples(st.integers(0, 9), st.integers(1, 5)), elements=st.integers(0, 3)),
    size=st.integers(1, 4),
)
def test_arrays_are_read_back(tmp_path_factory, X, size):
    corpus = from_arrays(tmp_path_factory.mktemp("c") / "corpus", X, X > 1, shard_documents=size)
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    assert [block.first for block in blocks] == list(range(0, len(X), size))
    found = [block.words.toarray() for block in blocks]
    assert np.array_equal(np.concatenate(found) if found else X[:0], X)
    assert all(np.array_equal(b.labels.toarray(), b.words.toarray() > 1) for b in blocks)
    assert np.array_equal(corpus.document_frequency, (X > 0).sum(0))
    assert np.array_equal(corpus.word_frequency, X.sum(0))
    assert np.array_equal(corpus.label_frequency, (X > 1).sum(0))
    assert corpus.verify() == []


def test_memory_and_disk_agree(corpus):
    memory = MemoryCorpus(*matrices(), shard_documents=20)
    assert memory.totals == corpus.totals
    assert memory.vocabulary == corpus.vocabulary
    for name in ("document_frequency", "word_frequency", "label_frequency"):
        assert np.array_equal(getattr(memory, name), getattr(corpus, name))
    for index in range(3):
        a, b = memory.read_shard(index), corpus.read_shard(index)
        assert (a.words != b.words).nnz == 0
        assert (a.labels != b.labels).nnz == 0
        assert (a.first, a.words.dtype, a.labels.dtype) == (b.first, b.words.dtype, b.labels.dtype)
        assert (memory.shards[index].n_documents, memory.shards[index].nnz_words) == (
            corpus.shards[index].n_documents,
            corpus.shards[index].nnz_words,
        )


def test_totals_are_exact(corpus):
    X, Y = matrices()
    n, m = (X > 0).sum(1), Y.sum(1)
    assert corpus.totals["sum_n3"] == (n**3).sum()
    assert corpus.totals["sum_n2m"] == (n**2 * m).sum()
    assert corpus.totals["n_empty_documents"] == (n == 0).sum()
    assert corpus.totals["n_unlabelled"] == (m == 0).sum()


def test_equal_input_has_equal_digest(tmp_path):
    X, Y = matrices()
    digests = {from_arrays(tmp_path / name, X, Y).digest for name in "ab"}
    assert len(digests) == 1
    assert from_arrays(tmp_path / "c", X[::-1], Y).digest not in digests
    assert MemoryCorpus(X, Y).digest == MemoryCorpus(sparse.csc_array(X), Y).digest


def test_weights_are_float32(tmp_path):
    X = np.array([[0.5, 1e-60], [2.0, 1.0]])
    corpus = from_arrays(tmp_path / "w", X, shard_documents=1)
    assert corpus.values == "weights"
    assert [corpus.read_shard(i).words.dtype for i in range(2)] == [np.float32, np.float32]
    assert corpus.totals["nnz_words"] == 3


def test_block_takes_rows(corpus):
    block = corpus.read_shard(1)
    assert block.take(slice(3, 5)).first == 23
    mask = np.arange(block.n_documents) % 2 == 1
    taken = block.take(mask)
    assert taken.first == 21
    assert np.array_equal(taken.words.toarray(), block.words.toarray()[mask])


def test_pickle_reopens_the_same_corpus(corpus):
    copy = pickle.loads(pickle.dumps(corpus))
    assert (copy.digest, copy.n_documents) == (corpus.digest, corpus.n_documents)
    packed = pickle.dumps(corpus)
    X, Y = matrices(seed=1)
    from_arrays(corpus.path, X, Y, overwrite=True)
    from distmom.corpus.stored import base as stored

    stored._reopen.cache_clear()
    with pytest.raises(StoreError, match="a different corpus is there"):
        read_all(pickle.loads(packed))


def test_anndata_reads_the_words(corpus):
    import anndata

    group = zarr.open_group(f"{corpus.path}/shards/s00001", mode="r")["words"]
    words = anndata.io.sparse_dataset(group)[:]
    assert np.array_equal(words.toarray(), matrices()[0][20:40])


def test_columns_without_names_are_named_by_their_numbers(tmp_path):
    for n in (0, 1, 9, 10, 11, 100, 12_345):
        assert number_lines(n) == "".join(f"{i}\n" for i in range(n)).encode()
    corpus = from_arrays(tmp_path / "c", np.eye(11), np.eye(11))
    assert corpus.vocabulary == corpus.label_names == [str(i) for i in range(11)]


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_columns_are_summed_alike_however_many_there_are(dtype):
    rng = np.random.default_rng(0)
    matrix = sparse.csr_array(rng.integers(0, 4, (30, 50)) * 0.3 if dtype == np.float32 else np.eye(50) * 3)
    matrix = matrix.astype(dtype)
    matrix.eliminate_zeros()
    wide = sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], 10**6))
    narrow = column_sums(matrix)
    for few, many in zip(narrow, column_sums(wide), strict=True):
        assert few.tobytes() == many.tobytes()
    columns, counts, sums = narrow
    assert np.array_equal(columns, np.unique(matrix.nonzero()[1]))
    assert np.array_equal(counts, np.bincount(matrix.indices)[columns])
    assert np.allclose(sums, matrix.sum(axis=0)[columns])
    empty = column_sums(sparse.csr_array((3, 4), dtype=dtype))
    assert [len(each) for each in empty] == [0, 0, 0]


def test_every_deleted_or_truncated_file_is_found(corpus):
    for path in files_of(corpus):
        content = path.read_bytes()
        for damage in (None, b"", content[: len(content) // 2], content[:-1]):
            if damage is None:
                path.unlink()
            else:
                path.write_bytes(damage)
            with pytest.raises((StoreError, UsageError), match="corpus"):
                read_all(open_corpus(corpus.path))
            if path.name != "manifest.json":
                (problem, *_) = open_corpus(corpus.path).verify()
                assert path.parent.name in problem
            path.write_bytes(content)
    assert open_corpus(corpus.path).verify() == []


def test_every_flipped_bit_is_found(corpus):
    rng = np.random.default_rng(0)
    files = files_of(corpus)
    for _ in range(200):
        path = files[rng.integers(len(files))]
        content = bytearray(path.read_bytes())
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
        before = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(StoreError):
            read_all(open_corpus(corpus.path))
        path.write_bytes(before)


def test_swapped_and_stale_shards_are_found(corpus, tmp_path):
    shards = Path(corpus.path) / "shards"
    (shards / "s00000").rename(shards / "x")
    (shards / "s00001").rename(shards / "s00000")
    (shards / "x").rename(shards / "s00001")
    problems = corpus.verify()
    assert len(problems) == 2
    assert "shards/s00000/shard.json" in problems[0]
    other = from_arrays(tmp_path / "other", *matrices(seed=3), shard_documents=20)
    shutil.rmtree(shards / "s00002")
    shutil.copytree(Path(other.path) / "shards" / "s00002", shards / "s00002")
    with pytest.raises(StoreError, match=r"s00002/shard\.json: sha256: expected"):
        corpus.read_shard(2)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"[" * 100_000, b'{"format": "distmom-corpus"}', b"\xff", b"{}" * 10],
)
def test_damaged_manifest_is_named(corpus, content):
    (Path(corpus.path) / "manifest.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"manifest\.json"):
        open_corpus(corpus.path)


def test_manifest_of_wrong_types_or_version(corpus):
    path = Path(corpus.path) / "manifest.json"
    good = json.loads(path.read_text())
    good.pop("checksum")
    assert parse_manifest("m", CORPUS.dump(good, 1))[1] == corpus.digest
    with pytest.raises(StoreError, match="newer"):
        parse_manifest("m", CORPUS.dump(good, 3))
    for key, value in {
        "totals": {},
        "shards": [{"id": "../../etc", "n_documents": 50, "nnz_words": 0, "nnz_labels": 0, "digest": ""}],
        "values": "floats",
        "files": {"../vocabulary.txt": {"size": 1, "sha256": ""}},
        "settings": None,
        "warnings": 3,
    }.items():
        with pytest.raises(StoreError, match="wrong type"):
            parse_manifest("m", CORPUS.dump({**good, key: value}, 1))
    edited = json.dumps({**good, "values": "weights", "checksum": corpus.digest}, indent=1, sort_keys=True)
    with pytest.raises(StoreError, match="altered"):
        parse_manifest("m", edited.encode())


def test_a_place_without_a_corpus_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such directory"):
        open_corpus(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"no manifest\.json"):
        open_corpus(tmp_path)


def test_writer_in_any_order_and_twice(tmp_path):
    X, Y = matrices()
    with CorpusWriter(tmp_path / "c") as writer:
        for index in (2, 0, 1, 0):
            rows = slice(20 * index, 20 * index + 20)
            writer.write_shard(index, X[rows], Y[rows])
        with pytest.raises(StoreError, match="a different shard already exists"):
            writer.write_shard(0, X[20:40], Y[20:40])
        corpus = writer.finalise()
    assert corpus.verify() == []
    assert np.array_equal(corpus.read_shard(1).words.toarray(), X[20:40])
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_writer_refuses_gaps_and_misfits(tmp_path):
    X, Y = matrices()
    with CorpusWriter(tmp_path / "c") as writer:
        writer.write_shard(1, X, Y)
        with pytest.raises(StoreError, match="shard 0 of 1"):
            writer.finalise()
        writer.write_shard(0, X[:, 1:], Y)
        with pytest.raises(StoreError, match="shard 1"):
            writer.finalise()
    assert not (tmp_path / "c").exists()


def test_a_corpus_is_overwritten_only_on_request_and_by_a_valid_one(corpus, tmp_path):
    X, Y = matrices(seed=2)
    with pytest.raises(UsageError, match="already exists"):
        from_arrays(corpus.path, X, Y)
    with pytest.raises(InputError):
        from_arrays(corpus.path, -X, Y, overwrite=True)
    assert open_corpus(corpus.path).digest == corpus.digest
    new = from_arrays(corpus.path, X, Y, overwrite=True)
    assert new.digest != corpus.digest
    assert new.verify() == []
    other = tmp_path / "mine"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="not a corpus"):
        from_arrays(other, X, Y, overwrite=True)
    assert (other / "letter.txt").read_text() == "dear"
    stranger = tmp_path / "new.partial"
    stranger.mkdir()
    (stranger / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="in the way"):
        from_arrays(tmp_path / "new", X, Y)
    assert (stranger / "letter.txt").read_text() == "dear"


def test_what_another_command_writes_meanwhile_is_kept_and_so_are_the_shards(tmp_path):
    X, Y = matrices()

    def write():
        with CorpusWriter(tmp_path / "corpus", fingerprint="this source") as writer:
            writer.write_shard(0, X, Y)
            (tmp_path / "corpus").mkdir()
            (tmp_path / "corpus" / "model.json").write_text("of a fit")
            writer.finalise()

    with pytest.raises(UsageError, match="already exists"):
        write()
    assert (tmp_path / "corpus" / "model.json").read_text() == "of a fit"
    shutil.rmtree(tmp_path / "corpus")
    (kept,) = tmp_path.glob("corpus.partial/*/corpus/shards/s00000")
    before = kept.stat().st_ino
    with CorpusWriter(tmp_path / "corpus", fingerprint="this source") as writer:
        writer.write_shard(0, X, Y)
        assert kept.stat().st_ino == before
        assert writer.finalise().n_documents == len(X)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_of_two_attempts_that_find_a_damaged_shard_the_faster_one_replaces_it(tmp_path, monkeypatch):
    X, Y = matrices()
    with CorpusWriter(tmp_path / "corpus") as writer:
        entry = writer.write_shard(0, X, Y).entry
        shards = Path(writer.directory) / "shards"
        chunk = shards / "s00000" / "words" / "data" / "c" / "0"
        chunk.unlink()
        seen = []

        def read_before_another(*arguments):
            monkeypatch.setattr(shard, "read_block", read_block)
            with pytest.raises(StoreError, match="cannot be read"):
                read_block(*arguments)
            assert writer.write_shard(0, X, Y).entry == entry
            seen.append(chunk.stat().st_mtime_ns)
            raise StoreError("damaged")

        monkeypatch.setattr(shard, "read_block", read_before_another)
        assert writer.write_shard(0, X, Y).entry == entry
        assert seen == [chunk.stat().st_mtime_ns]
        assert [path.name for path in shards.iterdir()] == ["s00000"]
        assert list((Path(writer.directory) / "wip").iterdir()) == []


@pytest.mark.parametrize("key", ["vocabulary.txt", "shards/s00000/shard.json"])
def test_a_device_or_a_pipe_in_place_of_a_file_is_refused(corpus, key):
    place = Path(corpus.path, key)
    for make in (lambda: place.symlink_to("/dev/zero"), lambda: os.mkfifo(place)):
        place.unlink()
        make()
        with pytest.raises(StoreError, match=f"{key}: expected a file"):
            read_all(open_corpus(corpus.path))


@pytest.mark.parametrize("name", ["replaced", "replaced-0123456789abcdef0123"])
def test_interrupted_replacement_is_undone(corpus, name):
    (other := Path(f"{corpus.path}.{name}.txt")).write_text("another")
    os.rename(corpus.path, f"{corpus.path}.{name}")
    restore_replaced(corpus.path)
    assert open_corpus(corpus.path).digest == corpus.digest
    assert other.read_text() == "another"
    other.unlink()
