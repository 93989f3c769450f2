"""Every format is read as written; every irregularity is repaired and counted, or refused with its line."""

import bz2
import gzip
import io
import json
import lzma

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from distmom.corpus import FORMATS, ingest
from distmom.corpus.ingest import detect_format
from distmom.corpus.readers import matrices
from distmom.corpus.readers import source as source_module
from distmom.errors import InputError, UsageError


def make(tmp_path, content, name="data.xmc.txt", **options):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return ingest(path, tmp_path / "corpus", overwrite=True, **options)


def rows(corpus):
    """Words and labels of all documents as dense arrays."""
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    return (
        np.concatenate([block.words.toarray() for block in blocks]),
        np.concatenate([block.labels.toarray() for block in blocks]),
    )


# -- round trips ---------------------------------------------------------------------------------------------

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
def test_xmc_round_trip(tmp_path, content, size):
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


def test_pair_files(tmp_path):
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


def test_npz_pair(tmp_path):
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


@pytest.mark.parametrize("kind", ["pickle", "foreign", "cut", "bomb", "negative", "structure"])
def test_bad_npz(tmp_path, monkeypatch, kind):
    path = tmp_path / "X.npz"
    X = sparse.csr_array(np.eye(3))
    if kind == "negative":
        X.data[1] = -1
    if kind == "structure":
        X.indices[1] = 7
    sparse.save_npz(path, X)
    if kind == "pickle":
        np.savez(path, data=np.array([print], dtype=object), format=b"csr", shape=(1, 1))
    if kind == "foreign":
        np.savez(path, something=np.zeros(3))
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:-50])
    if kind == "bomb":
        monkeypatch.setattr(matrices, "MAX_EXPANDED_BYTES", 1 << 20)
        np.savez_compressed(path, data=np.zeros(10**6), shape=(1, 1))
    with pytest.raises(InputError, match=r"X\.npz"):
        ingest(path, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "c.partial").exists()


# -- compression ---------------------------------------------------------------------------------------------

packers = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("suffix", packers)
def test_compressed_sources(tmp_path, suffix):
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


def test_format_is_determined_by_the_file_name():
    formats = {
        "a/b.JSONL.gz": "jsonl", "x.csv.zst": "csv", "x.tsv": "tsv", "x.svm.bz2": "svmlight", "x.npz": "npz",
        "x.libsvm": "svmlight", "docword.kos.txt.xz": "uci", "t.xmc.txt.xz": "xmc", "x.ldac": "ldac",
    }  # fmt: skip
    assert {path: detect_format(path) for path in formats} == formats
    with pytest.raises(UsageError, match=", ".join(FORMATS)):
        detect_format("x.dat")


# -- repairs -------------------------------------------------------------------------------------------------


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
def test_repairs_of_xmc(tmp_path, content, kind, line, count):
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


def test_repairs_of_texts(tmp_path):
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


# -- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 9:1", "column of a word: expected 0 to 8, got 9"),
        ("4 1:1", "label: expected 0 to 3, got 4"),
        ("0 -1:1", "feature 1: expected a column in decimal digits, got '-1'"),
        ("0 1:1 2", "feature 2: expected column:value, got '2'"),
        ("0 1:", "feature 1: expected a finite, non-negative value"),
        ("0 1:nan", "expected a finite, non-negative value in decimal digits, got 'nan'"),
        ("0 1:inf", "got 'inf'"),
        ("0 1:-2", "got '-2'"),
        ("0 1:1_000", "got '1_000'"),
        ("0 1:0x10", "got '0x10'"),
        ("0 1:1e400", "value: expected a finite number"),
        ("0 1:4294967296", "value: expected a finite number up to 2147483647"),
        ("0 1:2:3", "got '2:3'"),
        ("0 1:" + "9" * 5000, "value: expected a finite number"),
        ("9" * 5000 + " 1:1", "labels: expected whole numbers"),
        ("0 \u0661:1", "a column in decimal digits"),
        ("0 99999999999:1", "a column in decimal digits"),
        ("0 1:1\x00", "got '1.x00'"),
        ("nan 1:1", "labels: expected whole numbers"),
        ("-1 1:1", "labels: expected whole numbers"),
        ("1.5 1:1", "labels: expected whole numbers"),
        ("0,,1 1:1", "labels: expected whole numbers"),
        ("0, 1:1", "labels: expected whole numbers"),
        (",0 1:1", "labels: expected whole numbers"),
        ("0 qid:3 1:1", "a column in decimal digits, got 'qid'"),
        (" 0 1:1", "feature 1: expected column:value, got '0'"),
    ],
)
def test_bad_lines_of_xmc(tmp_path, line, message):
    lines = [" ".join(["0", f"{i % 9}:1"]) for i in range(30)]
    lines[17] = line
    content = "30 9 4\n" + "\n".join(lines) + "\n"
    with pytest.raises(InputError, match=rf"data\.xmc\.txt:19: .*{message}"):
        make(tmp_path, content, shard_documents=7)
    assert not (tmp_path / "corpus").exists()
    assert not (tmp_path / "corpus.partial").exists()
    assert not (tmp_path / "corpus.lock").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r":1: header: .*got an empty file"),
        ("0 1:1\n", r":1: header: expected the numbers of documents, words, labels"),
        ("1 2\n0 1:1\n", r":1: header"),
        ("1 2 -3\n0 1:1\n", r":1: header"),
        ("3 9 4\n0 1:1\n1 1:1\n", r":1: header: expected 2 documents, as in the file, got 3"),
        ("1 9 4\n0 1:1\n1 1:1\n", r":3: line: expected the end after 1 documents"),
        ("0 9 4\n", r"at least one document"),
        ("1 99999999999 4\n", r":1: header"),
        ("1 9999999999 4\n", r":1: header: expected at most"),
        ("1 9 4\n0 1:1\n".encode("utf-16"), r":1: encoding: expected UTF-8, got UTF-16"),
    ],
)
def test_bad_headers_of_xmc(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        make(tmp_path, content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", "a\tone\nno tab\n", r":2: line: expected labels, a tab and a text"),
        ("x.tsv", "a\tone\na,,b\ttwo\n", r":2: label: expected a name"),
        ("x.tsv", "a\tone\nb\x01\ttwo\n", r":2: label: expected a name without control"),
        ("x.tsv", b"a\tone\nb\tt\xffwo\n", r":2: encoding: expected UTF-8, got bytes b'.xff"),
        ("x.tsv", "a\tone\nb\tt\0wo\n", r":2: content: expected text, got a NUL byte"),
        ("x.tsv", "", r"at least one document"),
        ("x.txt", "", r"at least one document"),
        ("x.tsv", "a\tone\nb\ttwo\n", r"vocabulary: expected a word in at least 2"),
        ("x.jsonl", '{"text": "one"}\n{"text": \n', r":2: line: expected a JSON object"),
        ("x.jsonl", '{"text": "one"}\n[1]\n', r":2: line: expected a JSON object, got list"),
        ("x.jsonl", "[" * 100_000 + "\n", r":1: line: expected a JSON object"),
        ("x.jsonl", '{"labels": []}\n', r":1: field 'text': expected text, got fields \['labels'\]"),
        ("x.jsonl", '{"text": 5}\n', r":1: field 'text': expected text, got int"),
        ("x.jsonl", '{"text": "one", "labels": 1.5}\n', r":1: field 'labels': expected a name or whole"),
        ("x.jsonl", '{"text": "one", "label": {"a": 1}}\n', r":1: field 'label': expected a name or whole"),
        ("x.jsonl", '{"text": "one", "labels": [true]}\n', r":1: field 'labels': expected a name or whole"),
        ("x.jsonl", '{"text": "one", "labels": ["a\\nb"]}\n', r":1: label"),
        ("x.csv", "labels,words\na,b\n", r":1: header: expected a field 'text'"),
        ("x.csv", "", r":1: header"),
        ("x.csv", "text,text\na,b\n", r":1: header: expected unique names, got 'text' twice"),
        ("x.csv", "id;text\na;b\n", r":1: header: expected fields separated by commas, one of them 'text'"),
        ("x.csv", "text,labels\none,a\ntwo\n", r":3: number of fields: expected 2 as in the header, got 1"),
        ("x.csv", 'text,labels\n"a\nb",a\n5" disk,b\n', r":4: quotes"),
        ("x.csv", 'text,labels\n"one,a\n', r":2: (record|quotes)"),
        ("x.svm", "0 1:1\n1 -1:1\n", r":2: feature 1"),
        ("docword.x", "2\n2\n", r":3: header: expected the number of triples, got the end"),
        ("docword.x", "2\n2\n2\n2 1 1\n1 1 1\n", r":5: document: expected documents in order"),
        ("docword.x", "2\n2\n2\n1 1 1\n3 1 1\n", r":5: document: expected documents in order, 1 to 2, got 3"),
        ("docword.x", "2\n2\n2\n1 1 1\n2 3 1\n", r":5: word: expected 1 to 2, got 3"),
        ("docword.x", "2\n2\n2\n1 1 1\n2 0 1\n", r":5: triple"),
        ("docword.x", "2\n2\n2\n1 1 1\n2 1 -1\n", r":5: triple"),
        ("docword.x", "2\n2\n2\n1 1 1\n2 1 1.5\n", r":5: triple"),
        ("docword.x", "2\n2\n2\n1 1 1\n2 1 9999999999\n", r":5: count"),
        ("docword.x", "2\n2\n2\n1 1 1\n" + "9" * 5000 + " 1 1\n", r":5: triple"),
        ("docword.x", "2\n2\n3\n1 1 1\n2 1 1\n", r":3: header: expected 2 triples, as in the file, got 3"),
        (
            "docword.x",
            "1000001\n2\n3\n1 1 1\n",
            r":1: header: expected at most 1000000 documents for 3 triples",
        ),
        (
            "docword.x",
            f"{10**12 - 1}\n2\n{10**11}\n1 1 1\n2 1 1\n",
            r":3: header: expected 2 triples, as in the file, got 100000000000",
        ),
        ("x.ldac", "1 0:1\n2 0:1\n", r":2: number of pairs: expected 1, as on the line, got 2"),
    ],
)
def test_bad_sources(tmp_path, name, content, message):
    options = {"zero_based": False} if name == "x.svm" else {}
    with pytest.raises(InputError, match=message):
        make(tmp_path, content, name, **options)


def test_sums_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(InputError, match="sum of values in document 1: expected at most 2147483647"):
        make(tmp_path, "2 3 2\n0 1:1\n0 0:1 1:2147483647 1:1\n")


def test_words_fit_on_a_line(tmp_path):
    content = '{"text": "fine"}\n{"text": "one\\ntwo"}\n'
    with pytest.raises(InputError, match=r":2: word: expected no control characters"):
        make(tmp_path, content, "x.jsonl", token_pattern="[^ ]+", min_df=1)


def test_svmlight_base_is_declared(tmp_path):
    with pytest.raises(UsageError, match="zero_based"):
        make(tmp_path, "0 1:1\n", "x.svm")
    with pytest.raises(InputError, match=r":1: column of a word: expected 1 to .*, got 0"):
        make(tmp_path, "0 0:1\n", "x.svm", zero_based=False)


@pytest.mark.parametrize("name", ["x.tsv", "x.csv"])
def test_endless_lines_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(source_module, "MAX_LINE_BYTES", 1 << 20)
    with pytest.raises(InputError, match=r":2: length of the line: expected at most 1 MiB"):
        make(tmp_path, b"text,\tx\n" + b"word " * (1 << 19), name)


def test_name_files_are_checked(tmp_path):
    text = "1 3 2\n0 1:1\n"
    labels = tmp_path / "labels.txt"
    for content, message in {
        "a\na\n": r"labels\.txt:2: name: expected a unique name, got 'a', as on line 1",
        "a\n\nb\n": r"labels\.txt:2: name: expected text, got a blank line",
        "a\n": r"number of labels: expected 1 as in the label file, got 2",
    }.items():
        labels.write_text(content)
        with pytest.raises(InputError, match=message):
            make(tmp_path, text, labels=labels)
    labels.write_bytes(b"a\xff\nb\n")
    with pytest.raises(InputError, match=r"labels\.txt:1: encoding"):
        make(tmp_path, text, labels=labels)
    labels.write_text("u:1\tsame\nu:2\tsame\n")
    assert make(tmp_path, text, labels=labels).label_names == ["same (u:1)", "same (u:2)"]
    with pytest.raises(InputError, match="number of words: expected 2 as in the vocabulary, got 3"):
        make(tmp_path, text, vocabulary=["a", "b"])
