"""Files that earlier versions of the formats have written: they are read, and mean what they meant."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from distmom.corpus import open_corpus
from distmom.models import SpectralLDA, TopicMoments, load_model
from distmom.spectral.artifact import MODEL

#: models of version 3, and a corpus of version 1, with what they gave when they were written
ARCHIVE = Path(__file__).parents[1] / "golden" / "models-3.tar.xz"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("golden")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(path, filter="data")
    return path


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
