"""Predictions are those of the model, in pieces and processes, and replace earlier ones whole."""

import json
import os
from pathlib import Path

import anndata
import numpy as np
import pytest
import zarr
from helpers import lines
from scipy.sparse import csr_array, vstack

from distmom.corpus import MemoryCorpus, from_arrays
from distmom.errors import StoreError, UsageError
from distmom.models import MultiLabelMoM, SpectralLDA
from distmom.predict import predict_corpus, transform_corpus
from distmom.predict.pieces import Pieces, in_pieces


@pytest.fixture(scope="module")
def on_disk(planted, tmp_path_factory):
    """The first documents as a corpus on disk; one of them has no words."""
    X, Y = planted[0][:500].tolil(), planted[1][:500]
    X[17] = 0
    return from_arrays(tmp_path_factory.mktemp("predict") / "c", csr_array(X), Y, shard_documents=120)


def test_written_lists_are_those_of_predict_top(model, on_disk, tmp_path):
    result = predict_corpus(model, on_disk, tmp_path / "out", top=3)
    assert result == {
        "n_documents": 500,
        "n_empty": 1,
        "n_unknown_words": 0,
        "out": str(tmp_path / "out"),
    }
    X = vstack([on_disk.read_shard(i).words for i in range(len(on_disk.shards))])
    labels, scores = model.predict_top(X, 3)
    scores = model.scorer_.probabilities(scores)
    np.testing.assert_array_equal(scores, np.take_along_axis(model.predict_proba(X), labels, axis=1))
    written = lines(tmp_path / "out")
    # The document without words has no labels.
    assert written.pop(17) == []
    assert [[name for name, _ in row] for row in written] == [
        [model.label_names_[i] for i in row] for row in np.delete(labels, 17, axis=0)
    ]
    of_others = np.delete(scores, 17, axis=0)
    np.testing.assert_allclose([[s for _, s in row] for row in written], of_others, rtol=1e-5, atol=1e-6)
    matrix = anndata.io.read_elem(zarr.open_group(tmp_path / "out" / "predictions.zarr", mode="r"))
    assert matrix.shape == (500, 12)
    assert np.diff(matrix.indptr).tolist() == [0 if i == 17 else 3 for i in range(500)]
    assert all((np.diff(matrix.indices[a : a + 3]) > 0).all() for a in matrix.indptr[:-1])
    dense = np.zeros(matrix.shape, np.float32)
    np.put_along_axis(dense, labels, scores, axis=1)
    dense[17] = 0.0
    np.testing.assert_allclose(matrix.toarray(), dense, rtol=1e-5, atol=1e-6)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("threshold", [0.3, "best", 1.0])
def test_only_probable_labels_are_written(model, on_disk, tmp_path, threshold):
    result = predict_corpus(model, on_disk, tmp_path / "out", top=3, threshold=threshold)
    used = model.threshold_ if threshold == "best" else threshold
    X = vstack([on_disk.read_shard(i).words for i in range(len(on_disk.shards))])
    p = model.predict_proba(X)
    expected = []
    for i, row in enumerate(p):
        best = np.argsort(-row, kind="stable")[:3]
        expected.append([model.label_names_[j] for j in best if row[j] >= np.float32(used) and i != 17])
    written = lines(tmp_path / "out")
    assert [[name for name, _ in row] for row in written] == expected
    assert (result["threshold"], result["n_predicted"]) == (used, sum(map(len, expected)))
    record = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert (record["values"], record["threshold"]) == ("probability", used)
    matrix = anndata.io.read_elem(zarr.open_group(tmp_path / "out" / "predictions.zarr", mode="r"))
    assert np.diff(matrix.indptr).tolist() == [len(row) for row in expected]
    for i, row in enumerate(written):
        entries = dict(zip(matrix[[i]].indices.tolist(), matrix[[i]].data.tolist(), strict=True))
        assert list(entries) == sorted(entries)
        assert entries == pytest.approx({model.label_names_.index(name): x for name, x in row}, rel=1e-5)


def test_a_model_without_probabilities_writes_scores(planted, on_disk, tmp_path):
    model = MultiLabelMoM(4, head="ridge").fit(*planted)
    predict_corpus(model, on_disk, tmp_path / "tsv", top=1)
    header, first, *_ = (tmp_path / "tsv" / "predictions.tsv").read_text().splitlines()
    assert header == "id\tlabel\tscore"
    scores = model.predict_top(on_disk.read_shard(0).words[:1], 1)[1]
    assert float(first.split("\t")[2]) == pytest.approx(float(scores[0, 0]), rel=1e-5)
    assert json.loads((tmp_path / "tsv" / "predictions.json").read_text())["values"] == "score"
    predict_corpus(model, on_disk, tmp_path / "jsonl", top=1, output_format="jsonl")
    line = (tmp_path / "jsonl" / "predictions.jsonl").read_text().splitlines()[0]
    assert set(json.loads(line)) == {"id", "labels", "scores"}
    with pytest.raises(UsageError, match="threshold: this model has no probabilities of labels, which need"):
        predict_corpus(model, on_disk, tmp_path / "no", threshold=0.5)


def test_thresholds_are_probabilities_or_the_best(model, on_disk, tmp_path):
    for threshold in (1.5, "most"):
        with pytest.raises(UsageError, match="threshold: expected a probability"):
            predict_corpus(model, on_disk, tmp_path / "no", threshold=threshold)
    assert not list(tmp_path.iterdir())


def test_top_beyond_the_number_of_labels_returns_all(model, on_disk, tmp_path):
    predict_corpus(model, on_disk, tmp_path / "out", top=100)
    assert {len(row) for row in lines(tmp_path / "out")} == {0, 12}


def test_no_document_gives_empty_predictions(model, tmp_path):
    predict_corpus(model, MemoryCorpus(csr_array((0, 120))), tmp_path / "out")
    assert lines(tmp_path / "out") == []
    assert zarr.open_group(tmp_path / "out" / "predictions.zarr", mode="r").attrs["shape"] == [0, 12]


def test_only_earlier_predictions_are_overwritten(model, on_disk, tmp_path):
    predict_corpus(model, on_disk, tmp_path / "out", top=2)
    with pytest.raises(UsageError, match=r"already exists; .* overwrite it \(overwrite=True, or"):
        predict_corpus(model, on_disk, tmp_path / "out")
    predict_corpus(model, on_disk, tmp_path / "out", top=4, overwrite=True)
    assert {len(row) for row in lines(tmp_path / "out")} == {0, 4}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("keep")
    with pytest.raises(UsageError, match="exists and does not contain predictions; choose"):
        predict_corpus(model, on_disk, tmp_path / "mine", overwrite=True)
    with pytest.raises(UsageError, match="top: expected at least 1, got 0"):
        predict_corpus(model, on_disk, tmp_path / "other", top=0)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["mine", "out"]


def test_a_failure_leaves_nothing_behind_and_keeps_what_was_there(model, planted, tmp_path):
    corpus = from_arrays(tmp_path / "c", *planted, shard_documents=300)
    predict_corpus(model, corpus, tmp_path / "out", top=2)
    before = (tmp_path / "out" / "predictions.tsv").read_bytes()
    chunk = next(f for f in (tmp_path / "c" / "shards" / "s00003" / "words").rglob("c/*") if f.is_file())
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(StoreError, match="s00003"):
        predict_corpus(model, corpus, tmp_path / "out", top=4, overwrite=True)
    with pytest.raises(StoreError, match="s00003"):
        predict_corpus(model, corpus, tmp_path / "new")
    assert (tmp_path / "out" / "predictions.tsv").read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c", "out"]


@pytest.mark.cluster
def test_the_cluster_writes_the_same_bytes(model, on_disk, cluster, tmp_path):
    predict_corpus(model, on_disk, tmp_path / "here")
    predict_corpus(model, on_disk, tmp_path / "there", client=cluster)
    here = {f.relative_to(tmp_path / "here"): f for f in (tmp_path / "here").rglob("*") if f.is_file()}
    assert here
    for name, file in here.items():
        assert (tmp_path / "there" / name).read_bytes() == file.read_bytes(), name


def test_pieces_are_the_documents_in_order_and_do_not_change_predictions(
    model, on_disk, tmp_path, monkeypatch
):
    pieces = Pieces(on_disk, 50)
    assert [shard.n_documents for shard in pieces.shards] == [50, 50, 20] * 4 + [20]
    assert [shard.first for shard in pieces.shards] == [
        120 * i + j for i in range(4) for j in (0, 50, 100)
    ] + [480]
    for i, shard in enumerate(pieces.shards):
        block = pieces.read_shard(i)
        whole = on_disk.read_shard(shard.first // 120)
        window = slice(shard.first % 120, shard.first % 120 + shard.n_documents)
        assert (block.first, block.n_documents) == (shard.first, shard.n_documents)
        np.testing.assert_array_equal(block.words.toarray(), whole.words.toarray()[window])
    assert in_pieces(on_disk) is on_disk
    predict_corpus(model, on_disk, tmp_path / "whole")
    monkeypatch.setattr("distmom.predict.pieces.PIECE_DOCUMENTS", 50)
    predict_corpus(model, on_disk, tmp_path / "pieces")
    assert lines(tmp_path / "pieces") == lines(tmp_path / "whole")


@pytest.mark.parametrize(("method", "n_reads"), [("fast", 5), ("vb", 13)])
def test_shards_are_read_once_with_the_fast_method(planted, on_disk, tmp_path, monkeypatch, method, n_reads):
    """Every piece reads its whole shard."""
    topics = SpectralLDA(3, init="tensor", alpha0=1.0, max_df=1.0).fit(planted[0])
    read, reads = type(on_disk).read_shard, []

    def counted(corpus, index, **options):
        reads.append(index)
        return read(corpus, index, **options)

    monkeypatch.setattr(type(on_disk), "read_shard", counted)
    monkeypatch.setattr("distmom.predict.pieces.PIECE_DOCUMENTS", 50)
    transform_corpus(topics, on_disk, tmp_path / "out", method=method)
    assert len(reads) == n_reads
    shares = zarr.open_array(tmp_path / "out" / "shares.zarr", mode="r")[...]
    X = planted[0][:500].tolil()
    X[17] = 0
    np.testing.assert_allclose(shares, topics.transform(csr_array(X), method), atol=1e-6)


def test_earlier_predictions_survive_when_new_ones_cannot_take_their_place(
    model, on_disk, tmp_path, monkeypatch
):
    predict_corpus(model, on_disk, tmp_path / "out", top=2)
    before = lines(tmp_path / "out")
    rename = os.rename

    def fails(source, target):
        if Path(source).name == "out" and Path(source).parent.name.startswith(".tmp-"):
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OSError, match="no"):
        predict_corpus(model, on_disk, tmp_path / "out", top=3, overwrite=True)
    assert lines(tmp_path / "out") == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
