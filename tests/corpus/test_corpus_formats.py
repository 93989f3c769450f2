"""Every format is read as written, compressed or not, and its irregularities are repaired and counted."""

import bz2
import gzip
import io
import json
import lzma

import numpy as np
import pytest
import zstandard
from helpers import make
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from distmom.corpus import FORMATS, ingest
from distmom.corpus.sources.formats import detect_format
from distmom.corpus.sources.readers.source import _decompressed
from distmom.errors import InputError, UsageError


def rows(corpus):
    """Words and labels of all documents as dense arrays."""
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    return (
        np.concatenate([block.words.toarray() for block in blocks]),
        np.concatenate([block.labels.toarray() for block in blocks]),
    )


documents = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 8), st.integers(1, 9), max_size=5),
        st.sets(st.integers(0, 4), max_size=3),
    ),
    min_size=1,
    max_size=9,
)
thorough = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def dense(content, n_words=9, n_labels=5):
    X, Y = np.zeros((len(content), n_words)), np.zeros((len(content), n_labels))
    for i, (words, labels) in enumerate(content):
        X[i, list(words)] = list(words.values())
        Y[i, sorted(labels)] = 1
    return X, Y


def pairs(words, base=0):
    return " ".join(f"{word + base}:{value}" for word, value in sorted(words.items()))


@thorough
@given(content=documents, size=st.integers(1, 4))
def test_documents_written_as_xmc_come_back(tmp_path, content, size):
    lines = [f"{','.join(map(str, sorted(labels)))} {pairs(words)}" for words, labels in content]
    text = f"{len(content)} 9 5\n" + "".join(f"{line}\n" for line in lines)
    corpus = make(tmp_path, text, shard_documents=size)
    X, Y = dense(content)
    assert np.array_equal(rows(corpus)[0], X)
    assert np.array_equal(rows(corpus)[1], Y)
    assert [s.n_documents for s in corpus.shards[:-1]] == [size] * (len(corpus.shards) - 1)


@thorough
@given(content=documents, size=st.integers(1, 4))
def test_uci_and_ldac_round_trip(tmp_path, content, size):
    X = dense(content)[0]
    triples = [
        f"{i + 1} {word + 1} {value}" for i, (words, _) in enumerate(content) for word, value in words.items()
    ]
    text = "\n".join([str(len(content)), "9", str(len(triples)), *triples]) + "\n"
    assert np.array_equal(rows(make(tmp_path, text, "docword.x.txt", shard_documents=size))[0], X)
    text = "".join(f"{len(words)} {pairs(words)}".strip() + "\n" for words, _ in content)
    names = [f"w{i}" for i in range(9)]
    corpus = make(tmp_path, text, "x.ldac", vocabulary=names, shard_documents=size)
    assert np.array_equal(rows(corpus)[0], X)
    assert corpus.vocabulary == names


@thorough
@given(content=documents, base=st.integers(0, 1))
def test_svmlight_agrees_with_scikit_learn(tmp_path, content, base):
    content = [entry for entry in content if entry[0] and entry[1]]
    if not content:
        return
    lines = [f"{','.join(map(str, sorted(labels)))} {pairs(words, base)}" for words, labels in content]
    text = "".join(f"{line}\n" for line in lines)
    corpus = make(tmp_path, text, "x.svm", zero_based=not base)
    X, labels = load_svmlight_file(io.BytesIO(text.encode()), multilabel=True, zero_based=not base)
    found, Y = rows(corpus)
    assert np.array_equal(found, X.toarray())
    named = [{int(corpus.label_names[j]) for j in np.flatnonzero(row)} for row in Y]
    assert named == [set(map(int, each)) for each in labels]


words = st.lists(st.sampled_from(["ape", "bee", "éclair", "naïve", "дом"]), max_size=6)
names = st.sets(st.sampled_from(["x", "y z", "ü"]), max_size=3)


@thorough
@given(content=st.lists(st.tuples(words, names), min_size=1, max_size=6))
def test_texts_agree_in_all_their_formats(tmp_path, content):
    found = []
    if not any(text for text, _ in content):
        return
    for name, line in {
        "a.jsonl": lambda t, n: json.dumps({"text": t, "labels": sorted(n)}),
        "a.tsv": lambda t, n: f"{','.join(sorted(n))}\t{t}",
        "a.csv": lambda t, n: f'"{",".join(sorted(n))}","{t}"',
    }.items():
        head = "labels,text\n" if name == "a.csv" else ""
        text = head + "".join(line(" ".join(w), n) + "\n" for w, n in content)
        corpus = make(tmp_path, text, name, min_df=1, shard_documents=2)
        X, Y = rows(corpus)
        found.append((corpus.vocabulary, corpus.label_names, X.tolist(), Y.tolist()))
        assert X.sum() == sum(len(w) for w, _ in content)
    assert found[0] == found[1] == found[2]


def test_features_and_labels_are_read_from_a_pair_of_files(tmp_path):
    (tmp_path / "Y.txt").write_text("3 4\n0:1 3:1\n\n1:1\n")
    text = "3 5\n0:1.5 4:2\n1:1\n\n"
    corpus = make(tmp_path, text, "X.txt", format="xmc", label_source=tmp_path / "Y.txt")
    assert rows(corpus)[0].tolist() == [[1.5, 0, 0, 0, 2], [0, 1, 0, 0, 0], [0] * 5]
    assert rows(corpus)[1].tolist() == [[1, 0, 0, 1], [0] * 4, [0, 1, 0, 0]]
    assert corpus.values == "weights"
    (tmp_path / "Y.txt").write_text("3 4\n0:1 1:0\n3:0\n1:1\n")
    corpus = make(tmp_path, text, "X.txt", format="xmc", label_source=tmp_path / "Y.txt")
    assert rows(corpus)[1].tolist() == [[1, 0, 0, 0], [0] * 4, [0, 1, 0, 0]]
    assert corpus.warnings == {"zero_values": 2}
    (tmp_path / "Y.txt").write_text("2 4\n0:1\n1:1\n")
    with pytest.raises(InputError, match=r"Y\.txt:1: number of documents: expected 3 .*, got 2"):
        make(tmp_path, text, "X.txt", format="xmc", label_source=tmp_path / "Y.txt")
    (tmp_path / "Y.txt").write_text("3 4\n0:1\n1:1\n4:1\n")
    with pytest.raises(InputError, match=r"Y\.txt:4: label: expected 0 to 3, got 4"):
        make(tmp_path, text, "X.txt", format="xmc", label_source=tmp_path / "Y.txt")


def test_sparse_matrices_of_any_type_are_read_from_a_pair_of_files(tmp_path):
    X, Y = np.array([[0, 2], [1, 0], [0, 0]]), np.array([[1], [0], [1]])
    sparse.save_npz(tmp_path / "Y.npz", sparse.csc_array(Y))
    for kind in (sparse.csr_array, sparse.csc_array, sparse.coo_array):
        sparse.save_npz(tmp_path / "X.npz", kind(X))
        corpus = ingest(
            tmp_path / "X.npz",
            tmp_path / "c",
            label_source=tmp_path / "Y.npz",
            shard_documents=2,
            overwrite=True,
        )
        assert rows(corpus)[0].tolist() == X.tolist()
        assert rows(corpus)[1].tolist() == Y.tolist()


packers = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("suffix", packers)
def test_compressed_sources_give_the_same_shards(tmp_path, suffix):
    rng = np.random.default_rng(0)
    text = "3000 50 2\n" + "".join(f"0 {i % 50}:{rng.integers(1, 10**6)}\n" for i in range(3000))
    plain = make(tmp_path, text)
    packed = packers[suffix](text.encode())
    corpus = make(tmp_path, packed, f"data.xmc.txt{suffix}")
    assert [shard.digest for shard in corpus.shards] == [shard.digest for shard in plain.shards]
    twice = packers[suffix](text.encode()[:9000]) + packers[suffix](text.encode()[9000:])
    assert make(tmp_path, twice, f"data.xmc.txt{suffix}").shards == plain.shards
    for damaged in (packed[:-1], packed[: len(packed) // 2], b"no archive", packed[:-9] + bytes(9)):
        with pytest.raises(InputError, match=r"compressed data|content"):
            make(tmp_path, damaged, f"other.xmc.txt{suffix}")


@pytest.mark.parametrize("suffix", packers)
def test_no_stream_of_a_compressed_source_is_left_out(tmp_path, suffix):
    streams = [packers[suffix](f"{label}\tred pine\n".encode()) for label in "ab"]
    assert make(tmp_path, b"".join(streams), f"x.tsv{suffix}").n_documents == 2
    if suffix != ".zst":
        assert make(tmp_path, streams[0] + bytes(8), f"y.tsv{suffix}", min_df=1).n_documents == 1
    # A stream with a damaged header looks like what follows the last stream.
    for damaged in (streams[0] + b"\x01" + streams[1][1:], streams[0] + b"tail"):
        with pytest.raises(InputError, match=f"content: expected readable {suffix} data"):
            make(tmp_path, damaged, f"z.tsv{suffix}")


@pytest.mark.parametrize("suffix", [".xz", ".bz2"])
def test_a_compressed_source_is_decompressed_in_small_blocks(suffix):
    plain = b"a\tred\n" + bytes(50_000_000)
    packed = packers[suffix](plain)
    blocks = list(_decompressed(f"x{suffix}", io.BytesIO(packed)))
    assert b"".join(blocks) == plain
    assert max(map(len, blocks)) < 5_000_000


def test_format_is_determined_by_the_file_name():
    formats = {
        "a/b.JSONL.gz": "jsonl", "x.csv.zst": "csv", "x.tsv": "tsv", "x.svm.bz2": "svmlight", "x.npz": "npz",
        "x.libsvm": "svmlight", "docword.kos.txt.xz": "uci", "t.xmc.txt.xz": "xmc", "x.ldac": "ldac",
    }  # fmt: skip
    assert {path: detect_format(path) for path in formats} == formats
    with pytest.raises(UsageError, match=", ".join(FORMATS)):
        detect_format("x.dat")


@pytest.mark.parametrize(("name", "found"), [("x.npy", "npy"), ("a/x.zarr", "zarr"), ("x.tagged", "tagged")])
def test_a_file_of_rows_in_place_of_documents_is_named_as_such(name, found):
    with pytest.raises(UsageError, match=f"^{name}: expected documents, got rows or sequences \\({found}\\)"):
        detect_format(name)


def test_lines_of_fasttext_are_not_taken_for_texts(tmp_path):
    with pytest.raises(UsageError, match=r"x\.txt: lines begin with __label__, as for fastText: write"):
        make(tmp_path, "__label__a __label__b one two\n__label__a one two\n", "x.txt")


def check_repair(tmp_path, content, kind, line, name="data.xmc.txt", count=1, **options):
    corpus = make(tmp_path, content, name, **options)
    assert corpus.warnings == {kind: count}
    with pytest.raises(InputError, match=rf":{line}: {kind.replace('_', ' ')}: expected .*, got"):
        make(tmp_path, content, name, strict=True, **options)
    return rows(corpus)


@pytest.mark.parametrize(
    ("content", "kind", "line", "count"),
    [
        ("2 9 4\n0,1 3:1 1:1\n2 4:1\n", "unsorted_features", 2, 1),
        ("2 9 4\n0,1 1:0.5 1:0.5 3:1\n2 4:1\n", "duplicate_features", 2, 1),
        ("2 9 4\n0,1,0 1:1 3:1\n2 4:1\n", "duplicate_labels", 2, 1),
        ("2 9 4\n0,1 1:1 3:1\n2 4:1 5:0\n", "zero_values", 3, 1),
        ("2 9 4\r\n0,1 1:1 3:1\r\n2 4:1\r\n", "carriage_returns", 1, 3),
        ("2 9 4\n0,1 1:1 3:1 \n2 4:1\n", "extra_spaces", 2, 1),
        ("2 9 4\n0,1 1:1  3:1\n2\t4:1\n", "extra_spaces", 2, 2),
        (" 2  9 4\n0,1 1:1 3:1\n2 4:1\n", "extra_spaces", 1, 1),
        ("2 9 4\n0, 1 1:1 3:1\n2 4:1\n", "label_spaces", 2, 1),
        ("2 9 4\n0,1 1:1 3:1\n2 4:1", "no_final_newline", 3, 1),
        ("2 9 4\n0,1 1:1 3:1\n2 4:1\n\n\n", "blank_lines", 4, 2),
        ("\ufeff2 9 4\n0,1 1:1 3:1\n2 4:1\n", "byte_order_mark", 1, 1),
    ],
)
def test_repairs_of_xmc_are_counted(tmp_path, content, kind, line, count):
    X, Y = check_repair(tmp_path, content, kind, line, count=count)
    assert X.tolist() == [[0, 1, 0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0, 0]]
    assert Y.tolist() == [[1, 1, 0, 0], [0, 0, 1, 0]]


def test_document_without_labels_or_words(tmp_path):
    corpus = make(tmp_path, "4 3 2\n 1:1\n0\n\n1 0:2\n", strict=True)
    assert rows(corpus)[0].tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0], [2, 0, 0]]
    assert rows(corpus)[1].tolist() == [[0, 0], [1, 0], [0, 0], [0, 1]]
    assert (corpus.totals["n_empty_documents"], corpus.totals["n_unlabelled"]) == (2, 2)
    X, Y = check_repair(tmp_path, "1 3 2\n1:1 2:1\n", "no_label_field", 2)
    assert (X.tolist(), Y.tolist()) == ([[0, 1, 1]], [[0, 0]])


def test_header_gives_the_shape(tmp_path):
    corpus = make(tmp_path, "1 100 50\n0 1:1\n")
    assert (corpus.n_words, corpus.n_labels) == (100, 50)


def test_repairs_of_texts_are_counted(tmp_path):
    check_repair(tmp_path, "a, b\tone\n", "label_spaces", 1, "x.tsv", min_df=1)
    check_repair(tmp_path, "a,b,a\tone\n", "duplicate_labels", 1, "x.tsv", min_df=1)
    check_repair(tmp_path, "a\tone\n\nb\ttwo\n", "blank_lines", 2, "x.tsv", min_df=1)
    check_repair(tmp_path, '{"text": "one"}\n \n', "blank_lines", 2, "x.jsonl", min_df=1)
    check_repair(tmp_path, "text\none\n\ntwo\n", "blank_lines", 3, "x.csv", min_df=1)
    check_repair(tmp_path, "a\tone\r\nb\ttwo\r\n", "carriage_returns", 1, "x.tsv", count=2, min_df=1)
    check_repair(tmp_path, "\ufeffa\tone\n", "byte_order_mark", 1, "x.tsv", min_df=1)
    check_repair(tmp_path, "a\tone", "no_final_newline", 1, "x.tsv", min_df=1)


def test_repairs_of_other_formats(tmp_path):
    check_repair(tmp_path, "0 1:1\n\n1 1:1\n", "blank_lines", 2, "x.svm", zero_based=True)
    check_repair(tmp_path, "2\n2\n2\n1 1 1\n 2  2 1\n", "extra_spaces", 5, "docword.x")
    check_repair(tmp_path, "2\n2\n2\n1 1 1\n1 1 2\n", "duplicate_features", 4, "docword.x")
    check_repair(tmp_path, "2\n2\n2\n1 1 1\n2 2 0\n", "zero_values", 5, "docword.x")
    check_repair(tmp_path, "2\n2\n1\n1 1 1\n\n", "blank_lines", 5, "docword.x")
    check_repair(tmp_path, "2 1:1 0:1\n", "unsorted_features", 1, "x.ldac")
    corpus = make(tmp_path, "1,2 1:1 # comment\n# another\n2 3:1\n", "x.svm", zero_based=False, strict=True)
    assert rows(corpus)[0].tolist() == [[1, 0, 0], [0, 0, 1]]
