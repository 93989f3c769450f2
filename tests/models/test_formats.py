"""Files of the present and the earlier versions of the formats: they are read, and mean what they meant."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from distmom.cli.run_record import RUN, describe
from distmom.corpus import open_corpus
from distmom.engine import PassDone, PassStarted, RunDirectory
from distmom.engine.directory.events import read_log
from distmom.models import SpectralLDA, TopicMoments, load_model
from distmom.spectral.saved.artifact import MODEL

GOLDEN = Path(__file__).parents[1] / "golden"


def extracted(archive, path):
    with tarfile.open(GOLDEN / archive) as opened:
        # Python has filters from 3.11.4 on, and asks for one from 3.12 on.
        opened.extractall(path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Models of version 3, and a corpus of version 1, with what they gave when they were written."""
    return extracted("models-3.tar.xz", tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def expected(place):
    with np.load(place / "expected.npz") as arrays:
        return dict(arrays)


def read(model, arrays):
    """Return what a model says of the rows that were kept."""
    if hasattr(model, "scorer_"):
        return model.decision_function(arrays["X"])
    if hasattr(model, "unmixing_"):
        return model.transform(arrays["views"], arrays["groups"])
    if model.components_error_ is not None:
        return model.components_
    return model.transform(arrays["docs"])


@pytest.mark.parametrize("name", ["multilabel-posterior", "multilabel-auto", "lda", "lda-moments", "factors"])
def test_models_of_the_version_before_are_read(place, expected, tmp_path, name):
    assert '"format_version": 3' in (place / name / "model.json").read_text()
    model = load_model(place / name)
    np.testing.assert_allclose(read(model, expected), expected[f"of {name}"], rtol=1e-5, atol=1e-7)
    # Saved again, they are of the present version.
    model.save(tmp_path / "again")
    assert MODEL.read(tmp_path / "again" / "model.json")["format_version"] == MODEL.version == 4
    again = load_model(tmp_path / "again")
    np.testing.assert_array_equal(read(again, expected), read(model, expected))
    assert again.get_params() == model.get_params()


def test_renamed_parameters_and_diagnostics_have_their_new_names(place):
    model = load_model(place / "lda")
    assert (model.refine, model.init, model.n_refine) == ("vb", "auto", "auto")
    assert model.init_ == model.diagnostics_["init"]
    assert "start" not in model.diagnostics_


def test_moments_of_the_version_before_are_read(place, expected):
    moments = TopicMoments.load(place / "moments")
    model = SpectralLDA(3, alpha0=0.6, init="tensor", n_refine=0).fit_moments(moments)
    np.testing.assert_allclose(model.components_, expected["of moments"], rtol=1e-5, atol=1e-7)


def test_a_corpus_of_version_1_has_the_same_digest(place):
    corpus = open_corpus(place / "corpus")
    assert corpus.digest == (place / "corpus.digest").read_text()
    assert corpus.verify() == []
    assert (corpus.n_documents, corpus.vocabulary, corpus.label_names) == (10, ["a", "b", "c"], ["x"])


@pytest.fixture
def interrupted(tmp_path):
    """What ``tests/golden/write.py`` writes: an interrupted run of version 2, and models of version 4."""
    return extracted("run-2.tar.xz", tmp_path)


@pytest.fixture
def numbers(interrupted):
    with np.load(interrupted / "expected.npz") as arrays:
        return dict(arrays)


def test_the_record_of_a_run_is_read(interrupted):
    record = describe(interrupted / "run")
    assert RUN.version == record["format_version"] == 2
    assert (record["model_name"], record["corpus"]) == ("lda", "/tmp/golden/corpus")
    assert SpectralLDA(**record["parameters"]).n_refine == 1
    assert [name.partition("-")[0] for name in record["committed"]] == ["moments", *["power"] * 4, "sketch"]
    assert RunDirectory(interrupted / "run").verify() == []


def test_a_run_is_resumed_in_another_place(interrupted, numbers):
    """Committed passes are found by their fingerprints, wherever the run and its corpus are now.

    If passes are changed on purpose, so that this run begins again, the archive is to be written again.
    """
    parameters = describe(interrupted / "run")["parameters"]
    seen = []
    model = SpectralLDA(**parameters).fit_corpus(
        open_corpus(interrupted / "corpus"), run=interrupted / "run", observer=seen.append
    )
    done = [(event.name, event.resumed) for event in seen if isinstance(event, PassDone)]
    assert done[:5] == [("sketch", True), *[("power", True)] * 4]
    assert done[-1] == ("refine", False)
    np.testing.assert_allclose(model.components_, numbers["components"], rtol=1e-5, atol=1e-7)


def test_the_log_of_a_run_is_read_and_continued(interrupted):
    logged = read_log(interrupted / "run" / "log.jsonl")
    done = [each.event for each in logged if isinstance(each.event, PassDone)]
    assert [event.name for event in done] == ["sketch", *["power"] * 4, "moments"]
    assert {event.n_documents for event in done} == {120}
    assert logged[0].event == PassStarted("sketch", n_documents=120, n_groups=3, n_slabs=1)
    corpus = open_corpus(interrupted / "corpus")
    SpectralLDA(**describe(interrupted / "run")["parameters"]).fit_corpus(corpus, run=interrupted / "run")
    assert read_log(interrupted / "run" / "log.jsonl")[: len(logged)] == logged


def test_the_corpus_of_a_run_has_the_digest_of_its_record(interrupted, numbers):
    corpus = open_corpus(interrupted / "corpus")
    assert corpus.verify() == []
    assert corpus.digest == str(numbers["digest"]) == describe(interrupted / "run")["corpus_digest"]
    assert (corpus.n_documents, corpus.n_words, len(corpus.shards)) == (120, 12, 3)


def test_models_and_moments_of_version_4_are_read(interrupted, numbers):
    model = load_model(interrupted / "model")
    np.testing.assert_allclose(model.components_, numbers["components"], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(model.transform(numbers["docs"]), numbers["shares"], rtol=1e-4, atol=1e-6)
    moments = TopicMoments.load(interrupted / "moments")
    assert MODEL.read(interrupted / "moments" / "model.json")["format_version"] == 4
    found = SpectralLDA(2, alpha0=0.6, init="tensor", n_refine=0).fit_moments(moments)
    np.testing.assert_allclose(found.components_, numbers["of_moments"], rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def layered(tmp_path_factory):
    """Corpora of layers of version 2, with their content and digests when they were written."""
    place = extracted("rows-2.tar.xz", tmp_path_factory.mktemp("layered"))
    with np.load(place / "expected.npz") as arrays:
        return place, dict(arrays)


def test_corpora_of_layers_have_the_same_digest(layered):
    place, expected = layered
    for name, digest in zip(("dense", "tagged", "views"), expected["digests"], strict=True):
        corpus = open_corpus(place / name)
        assert corpus.digest == str(digest)
        assert corpus.verify() == []


def test_sequences_that_are_cut_are_read(layered):
    place, expected = layered
    corpus = open_corpus(place / "dense")
    blocks = [corpus.read_shard(index) for index in range(len(corpus.shards))]
    rows = np.concatenate([block.with_context(0).rows for block in blocks])
    np.testing.assert_array_equal(rows, expected["steps"])
    assert (corpus.n_documents, corpus.n_rows, corpus.largest) == (4, 53, 40)
    assert [(block.first, block.context, block.sizes.tolist()) for block in blocks] == [
        (0, 0, [3]), (1, 0, [16]), (1, 8, [16]), (1, 8, [8, 1]), (3, 0, [9]),
    ]  # fmt: skip
    assert [block.continues for block in blocks] == [False, True, True, False, False]
    assert [layer.to_json() for layer in corpus.layers] == [
        {"name": "rows", "kind": "dense", "along": "rows", "width": 2, "dtype": "float32"}
    ]
    assert (corpus.vocabulary, corpus.read_ids(0)) == (["u", "v"], None)


def test_tagged_texts_are_read(layered):
    place, expected = layered
    corpus = open_corpus(place / "tagged")
    assert corpus.vocabulary == ["<rare>", "the", "dog"]
    assert corpus.names("tags") == ["AT", "CD", "NN", "VB"]
    block = corpus.read_shard(0)
    np.testing.assert_array_equal(block.rows, expected["words"])
    assert block.rows.tolist() == [1, 2, 0, 1, 0, 0, 1, 2]
    np.testing.assert_array_equal(block.others["tags"], expected["tags"])
    assert (block.starts.tolist(), corpus.read_ids(0)) == ([0, 3, 6, 8], ["1", "3", "4"])
    assert corpus.warnings == {"blank_lines": 1}
    assert corpus.document_frequency.tolist() == [3, 3, 2]


def test_sentences_are_read(layered):
    place, expected = layered
    corpus = open_corpus(place / "views")
    assert corpus.vocabulary == ["dog", "sat", "the"]
    np.testing.assert_array_equal(corpus.read_shard(0).rows.toarray(), expected["counts"])
    assert corpus.read_shard(0).starts.tolist() == [0, 2, 4]
