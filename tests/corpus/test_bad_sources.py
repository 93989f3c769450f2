"""Sources that cannot be read are refused with file and line."""

import numpy as np
import pytest
from helpers import make
from scipy import sparse

from distmom.corpus import ingest
from distmom.corpus.sources.readers import matrices
from distmom.corpus.sources.readers import source as source_module
from distmom.errors import InputError, UsageError


@pytest.mark.parametrize("kind", ["pickle", "foreign", "cut", "bomb", "negative", "structure"])
def test_invalid_npz_files_are_refused(tmp_path, monkeypatch, kind):
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
def test_invalid_lines_of_xmc_are_named_and_nothing_is_left(tmp_path, line, message):
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
        ("1 9 4\n0 1:1\n".encode("utf-32"), r":1: encoding: expected UTF-8, got UTF-32"),
    ],
)
def test_invalid_headers_of_xmc_are_refused(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        make(tmp_path, content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", "a\tone\nno tab\n", r":2: line: expected labels, a tab and a text"),
        ("x.tsv", "a\tone\na,,b\ttwo\n", r":2: label: expected a name that is not empty"),
        ("x.tsv", "a\tone\nb\x01\ttwo\n", r":2: label: expected a name without control"),
        ("x.tsv", b"a\tone\nb\tt\xffwo\n", r":2: encoding: expected UTF-8, got bytes b'.xff"),
        ("x.tsv", "a\tone\nb\tt\0wo\n", r":2: content: expected text, got a NUL byte"),
        ("x.tsv", "", r"at least one document"),
        ("x.txt", "", r"at least one document"),
        ("x.tsv", "a\tone\nb\ttwo\n", r"vocabulary: expected a word in at least 2"),
        ("x.jsonl", '{"text": "one"}\n{"text": \n', r":2: line: expected a JSON object"),
        (
            "x.jsonl",
            '{"text": "one"}\n[1]\n',
            r":2: line: expected a JSON object, got list: write one object per",
        ),
        (
            "x.jsonl",
            '[\n {"text": "one"}]\n',
            r":1: line: expected a JSON object, got text that is not valid JSON \(Exp",
        ),
        (
            "x.tsv",
            "a\t😀 😃\nb\t12 34\n",
            r"vocabulary: [^#]* got no word in 2 documents \(texts are split into",
        ),
        ("x.jsonl", "[" * 100_000 + "\n", r":1: line: expected a JSON object"),
        ("x.jsonl", '{"labels": []}\n', r":1: field 'text': expected text, got fields \['labels'\]"),
        ("x.jsonl", '{"text": 5}\n', r":1: field 'text': expected text, got int"),
        ("x.jsonl", '{"text": "one", "labels": 1.5}\n', r":1: field 'labels': expected a name or whole"),
        ("x.jsonl", '{"text": "one", "label": {"a": 1}}\n', r":1: field 'label': expected a name or whole"),
        ("x.jsonl", '{"text": "one", "labels": [true]}\n', r":1: field 'labels': expected a name or whole"),
        ("x.jsonl", '{"text": "one", "labels": ["a\\nb"]}\n', r":1: label"),
        (
            "x.csv",
            "labels,words\na,b\n",
            r":1: header: expected a field 'text' \(--text-field\), or --format table for",
        ),
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
def test_invalid_sources_of_every_format_are_refused(tmp_path, name, content, message):
    options = {"zero_based": False} if name == "x.svm" else {}
    with pytest.raises(InputError, match=message):
        make(tmp_path, content, name, **options)


def test_a_text_that_is_null_is_named(tmp_path):
    with pytest.raises(InputError, match=r":2: field 'text': expected text, got null"):
        make(tmp_path, '{"text": "fine"}\n{"text": null}\n', "x.jsonl")
    with pytest.raises(InputError, match=r":1: field 'text': expected text, got fields \['title'\]"):
        make(tmp_path, '{"title": "fine"}\n', "x.jsonl")


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
