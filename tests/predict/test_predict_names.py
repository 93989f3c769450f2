"""Predictions go by the names of words, labels and documents."""

import csv
import json

import numpy as np
import pandas as pd
import pytest
import zarr
from helpers import lines
from scipy.sparse import csr_array, vstack

from distmom.corpus import CorpusWriter, MemoryCorpus, text_corpus
from distmom.errors import UsageError
from distmom.evaluate.topics import evaluate_topics
from distmom.models import MultiLabelMoM, SpectralLDA
from distmom.predict import AlignedCorpus, align, predict_corpus, read_shares, transform_corpus
from distmom.predict.aligned import unknown_words
from distmom.predict.lines import escaped


def other_numbering():
    """Three documents with other words in another order."""
    X = np.array([[1, 2, 0, 4], [0, 0, 3, 0], [5, 0, 0, 1]])
    Y = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 1]])
    return MemoryCorpus(X, Y, vocabulary=["d", "x", "a", "b"], label_names=["L2", "new", "L1"])


def test_words_and_labels_are_numbered_by_name():
    corpus = other_numbering()
    aligned = align(corpus, ["a", "b", "c", "d"], ["L1", "L2"])
    assert isinstance(aligned, AlignedCorpus)
    block = aligned.read_shard(0)
    np.testing.assert_array_equal(block.words.toarray(), [[0, 4, 0, 1], [3, 0, 0, 0], [0, 1, 0, 5]])
    np.testing.assert_array_equal(block.labels.toarray(), [[1, 1, 0], [0, 0, 1], [1, 0, 0]])
    assert block.words.has_sorted_indices
    assert aligned.label_names == ["L1", "L2", "new"]
    assert (aligned.n_words, aligned.n_labels) == (4, 3)
    assert aligned.n_unknown_labels == 1
    np.testing.assert_array_equal(aligned.document_frequency, [1, 2, 0, 2])
    np.testing.assert_array_equal(aligned.label_frequency, [2, 1, 1])
    assert unknown_words(corpus, ["a", "b", "c", "d"]) == 2
    assert unknown_words(corpus, ["d"]) == 10


def test_a_corpus_with_the_numbering_of_the_model_is_used_unchanged():
    corpus = other_numbering()
    assert align(corpus, list(corpus.vocabulary), list(corpus.label_names)) is corpus
    assert align(corpus, list(corpus.vocabulary), ["L2", "new"]) is corpus
    assert align(corpus, list(corpus.vocabulary), ["L1"]) is not corpus


def test_digest_depends_on_the_numbering():
    corpus = other_numbering()
    digests = {
        AlignedCorpus(corpus, words, labels).digest
        for words, labels in [
            (["a", "b"], ["L1"]),
            (["b", "a"], ["L1"]),
            (["a", "b"], ["L2"]),
            (["a"], ["b", "L1"]),
        ]
    }
    assert len(digests) == 4
    assert corpus.digest not in digests


def test_predictions_do_not_depend_on_the_numbering_of_the_corpus(model, planted, tmp_path):
    X, Y = planted[0][:200].toarray(), planted[1][:200]
    order = np.random.default_rng(0).permutation(120)
    shuffled = MemoryCorpus(
        np.hstack([X[:, order], np.ones((200, 1), int)]),
        Y,
        vocabulary=[*(model.vocabulary_[i] for i in order), "unknown"],
        label_names=model.label_names_,
    )
    straight = MemoryCorpus(X, Y, vocabulary=model.vocabulary_, label_names=model.label_names_)
    result = predict_corpus(model, shuffled, tmp_path / "shuffled")
    predict_corpus(model, straight, tmp_path / "straight")
    assert result["n_unknown_words"] == 200
    assert lines(tmp_path / "shuffled") == lines(tmp_path / "straight")


def of_unknown_words(model, X, n_unknown):
    """Return documents over the words of a model, the first ``n_unknown`` of them renamed."""
    names = [*model.vocabulary_]
    names[:n_unknown] = [f"other{i}" for i in range(n_unknown)]
    return MemoryCorpus(X, vocabulary=names)


@pytest.mark.parametrize("kind", ["labels", "topics"])
def test_a_tenth_of_unknown_words_gives_a_warning_and_all_unknown_an_error(
    kind, model, planted, tmp_path, caplog
):
    X = np.ones((20, 120), int)
    X[:, 1] = 3
    fitted = (
        model if kind == "labels" else SpectralLDA(3, init="tensor", alpha0=1.0, max_df=1.0).fit(planted[0])
    )
    applied = {"labels": predict_corpus, "topics": transform_corpus}[kind]
    # Every document has 122 tokens.
    applied(fitted, of_unknown_words(fitted, X, 10), tmp_path / "few")
    assert not caplog.records
    result = applied(fitted, of_unknown_words(fitted, X, 11), tmp_path / "more")
    [record] = caplog.records
    assert record.getMessage() == (
        "the model does not know 11 % of the words of the documents (260 of 2,440), such as 'other1', 'other0', "
        "'other2', 'other3', 'other4'; they are left out; ingest the documents with 'distmom ingest --like MODEL' "
        "to use the words and labels of the model"
    )
    assert result["n_unknown_words"] == 260
    message = (
        "expected names known to the model, such as '0', .* got none .* such as 'other1', .*; the model was "
        "fitted to words without names: fit it again to documents with names"
    )
    with pytest.raises(UsageError, match=message):
        applied(fitted, of_unknown_words(fitted, X, 120), tmp_path / "none")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["few", "more"]
    if kind == "topics":
        with pytest.raises(UsageError, match=message):
            evaluate_topics(fitted, of_unknown_words(fitted, X, 120))


def test_words_left_out_at_ingest_count_as_unknown(model, planted, tmp_path, caplog):
    corpus = MemoryCorpus(planted[0][:10], vocabulary=model.vocabulary_)
    n = int(corpus.word_frequency.sum())
    corpus.warnings = {"unknown_words": n // 9 + 1}
    result = predict_corpus(model, corpus, tmp_path / "out")
    assert result["n_unknown_words"] == n // 9 + 1
    assert "does not know 10 % of the words" in caplog.text
    assert "ingest --like" not in caplog.text
    corpus = MemoryCorpus(csr_array((10, 120), dtype=int), vocabulary=model.vocabulary_)
    corpus.warnings = {"unknown_words": 30}
    with pytest.raises(UsageError, match="got none of them; the model was fitted to words without names"):
        predict_corpus(model, corpus, tmp_path / "none")


def test_label_names_without_documents_write_no_file_of_labels(planted, tmp_path):
    topics = SpectralLDA(3, init="tensor", alpha0=1.0, max_df=1.0).fit(planted[0])
    for name, labels in (("none", np.zeros((30, 2))), ("some", np.eye(30, 2))):
        corpus = MemoryCorpus(planted[0][:30], labels, label_names=["a", "b"])
        transform_corpus(topics, corpus, tmp_path / name)
    assert not (tmp_path / "none" / "labels.tsv").exists()
    rows = (tmp_path / "some" / "labels.tsv").read_text().splitlines()
    assert [row.split("\t")[:2] for row in rows] == [["a", "1"], ["b", "1"]]


def test_lists_of_names_and_shares_of_labels_have_no_escapes(planted, tmp_path):
    X, names = planted[0][:30], ["a\\b", "c"]
    chosen = MemoryCorpus(X, np.eye(30, 2), label_names=names)
    topics = SpectralLDA(3, init="tensor", alpha0=1.0, max_df=1.0).fit(planted[0])
    transform_corpus(topics, chosen, tmp_path / "shares")
    rows = (tmp_path / "shares" / "labels.tsv").read_text().splitlines()
    assert [row.split("\t")[0] for row in rows] == names
    assert [each.name for each in read_shares(tmp_path / "shares").labels] == names
    fitted = MultiLabelMoM(2, head="linear", random_state=0).fit(X, [[names[i % 2]] for i in range(30)])
    predict_corpus(fitted, MemoryCorpus(X), tmp_path / "predicted", top=2)
    assert (tmp_path / "predicted" / "labels.txt").read_text().splitlines() == names
    rows = (tmp_path / "predicted" / "predictions.tsv").read_text().splitlines()[1:]
    assert {row.split("\t")[1] for row in rows} == {escaped(name) for name in names}


@pytest.fixture(scope="module")
def with_ids(planted, tmp_path_factory):
    """Five documents in two shards, with ids that need escapes; the second has no words."""
    X, Y = planted[0][:5].tolil(), planted[1][:5]
    X[1] = 0
    X, ids = csr_array(X), ["b\tc", "7", "x\\y", "ü", "7"]
    with CorpusWriter(tmp_path_factory.mktemp("ids") / "c") as writer:
        writer.write_shard(0, X[:3], Y[:3], ids[:3])
        writer.write_shard(1, X[3:], Y[3:], ids[3:])
        return writer.finalise()


def test_every_line_has_the_id_of_its_document(model, with_ids, tmp_path):
    predict_corpus(model, with_ids, tmp_path / "out", top=2)
    assert (tmp_path / "out" / "ids.txt").read_text().split("\n") == ["b\tc", "7", "x\\y", "ü", "7", ""]
    header, *rest = (tmp_path / "out" / "predictions.tsv").read_text().splitlines()
    assert header == "id\tlabel\tprobability"
    expected = ["b\\tc"] * 2 + ["x\\\\y"] * 2 + ["ü"] * 2 + ["7"] * 2
    assert [line.split("\t")[0] for line in rest] == expected
    X = vstack([with_ids.read_shard(i).words for i in range(2)])[[0, 2, 3, 4]]
    labels, scores = model.predict_top(X, 2)
    scores = model.scorer_.probabilities(scores)
    assert [line.split("\t")[1] for line in rest] == [model.label_names_[i] for i in labels.ravel()]
    np.testing.assert_allclose([float(line.split("\t")[2]) for line in rest], scores.ravel(), rtol=1e-5)
    assert (tmp_path / "out" / "labels.txt").read_text().splitlines() == model.label_names_


def test_json_lines_have_one_object_per_document(model, with_ids, tmp_path):
    predict_corpus(model, with_ids, tmp_path / "out", top=2, output_format="jsonl")
    assert not (tmp_path / "out" / "predictions.tsv").exists()
    found = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert [each["id"] for each in found] == ["b\tc", "7", "x\\y", "ü", "7"]
    assert found[1] == {"id": "7", "labels": [], "probabilities": []}
    predict_corpus(model, with_ids, tmp_path / "tsv", top=2)
    assert [
        list(zip(each["labels"], each["probabilities"], strict=True)) for each in found if each["labels"]
    ] == [pairs for text in ("b\tc", "x\\y", "ü", "7") for pairs in [of_id(tmp_path / "tsv", text)]]  # fmt: skip


def of_id(out, text):
    cells = [line.split("\t") for line in (out / "predictions.tsv").read_text().splitlines()[1:]]
    return [(label, float(score)) for own, label, score in cells if own == escaped(text)]


def test_documents_without_a_known_word_have_labels_only_with_fill(model, with_ids, tmp_path):
    predict_corpus(model, with_ids, tmp_path / "without", top=3, output_format="zarr")
    assert sorted(entry.name for entry in (tmp_path / "without").iterdir()) == [
        "ids.txt", "labels.txt", "predictions.json", "predictions.zarr"
    ]  # fmt: skip
    group = zarr.open_group(tmp_path / "without" / "predictions.zarr", mode="r")
    assert group["indptr"][...].tolist() == [0, 3, 3, 6, 9, 12]
    result = predict_corpus(model, with_ids, tmp_path / "filled", top=3, fill=True)
    assert result["n_empty"] == 1
    rest = (tmp_path / "filled" / "predictions.tsv").read_text().splitlines()[1:]
    assert len(rest) == 15
    empty = csr_array((1, 120), dtype=np.int32)
    assert [line.split("\t")[1] for line in rest[3:6]] == [
        model.label_names_[i] for i in model.predict_top(empty, 3)[0][0]
    ]
    nothing = MemoryCorpus(np.vstack([np.zeros((1, 120), int), np.ones((1, 120), int)]))
    predict_corpus(model, nothing, tmp_path / "first", top=1)
    assert lines(tmp_path / "first")[0] == []


def test_shares_are_written_with_ids(planted, with_ids, tmp_path):
    topics = SpectralLDA(3, init="tensor", alpha0=1.0, max_df=1.0).fit(planted[0])
    for form in ("tsv", "jsonl", "zarr"):
        transform_corpus(topics, with_ids, tmp_path / form, output_format=form)
    shares = zarr.open_array(tmp_path / "zarr" / "shares.zarr", mode="r")[...]
    assert (tmp_path / "zarr" / "ids.txt").read_text().split("\n")[3] == "ü"
    assert not {"shares.tsv", "shares.jsonl"} & {entry.name for entry in (tmp_path / "zarr").iterdir()}
    header, *rest = (tmp_path / "tsv" / "shares.tsv").read_text().splitlines()
    assert header == "id\ttopic\tshare"
    expected = [
        (escaped(text), str(h), f"{row[h]:.6g}")
        for text, row in zip(["b\tc", "7", "x\\y", "ü", "7"], shares, strict=True)
        for h in np.argsort(-row, kind="stable")
        if row[h] >= 0.01
    ]
    assert [tuple(line.split("\t")) for line in rest] == expected
    found = [json.loads(line) for line in (tmp_path / "jsonl" / "shares.jsonl").read_text().splitlines()]
    assert [len(each["topics"]) for each in found] == (shares >= 0.01).sum(axis=1).tolist()
    assert found[3]["topics"][0] == str(shares[3].argmax())
    with pytest.raises(UsageError, match="output_format: expected one of tsv, jsonl, zarr, got 'csv'"):
        transform_corpus(topics, with_ids, tmp_path / "other", output_format="csv")
    assert not (tmp_path / "other").exists()


def test_ids_and_predictions_do_not_depend_on_pieces(model, with_ids, tmp_path, monkeypatch):
    predict_corpus(model, with_ids, tmp_path / "whole")
    monkeypatch.setattr("distmom.predict.pieces.PIECE_DOCUMENTS", 2)
    monkeypatch.setattr("distmom.predict.lines._MANY", 2)
    predict_corpus(model, with_ids, tmp_path / "pieces")
    assert (tmp_path / "pieces" / "predictions.tsv").read_bytes() == (
        tmp_path / "whole" / "predictions.tsv"
    ).read_bytes()
    predict_corpus(model, MemoryCorpus(np.ones((5, 120), int), shard_documents=3), tmp_path / "numbered")
    assert (tmp_path / "numbered" / "ids.txt").read_text() == "1\n2\n3\n4\n5\n"


def test_pandas_reads_labels_with_quotes_and_missing_values_as_documented(tmp_path):
    own = ['"quoted', "null", "NA", 'a "b" c']
    corpus = text_corpus(["salmon net", "oak leaf", "comet dust", "owl wren"] * 20, own * 20)
    predict_corpus(MultiLabelMoM(2, head="linear").fit_corpus(corpus), corpus, tmp_path / "out", top=1)
    found = pd.read_csv(
        tmp_path / "out/predictions.tsv", sep="\t", quoting=csv.QUOTE_NONE, keep_default_na=False
    )
    assert found.columns.tolist() == ["id", "label", "score"]
    assert found.label.tolist() == own * 20


def test_escapes_can_be_undone():
    assert escaped("a\tb\nc\rd\\t") == r"a\tb\nc\rd\\t"
    assert escaped("plain ü") == "plain ü"
