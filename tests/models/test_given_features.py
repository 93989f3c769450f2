"""Models of documents whose words have tf-idf weights: the same as those of their counts."""

import json

import numpy as np
import pytest
from crafted import edit_arrays
from helpers import planted_corpus
from numpy.testing import assert_allclose
from scipy.sparse import csr_array, vstack

from distmom.cli.main import main
from distmom.errors import StoreError
from distmom.models import MultiLabelMoM, load_model
from distmom.moments.features.tfidf import inverse_document_frequency, tfidf_rows

OPTIONS = {"effort": "low", "random_state": 0}


@pytest.fixture(scope="module")
def documents():
    """Return counts, their tf-idf weights and labels."""
    corpus = planted_corpus(2000, n_labels=20, k=4)[2]
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    X, Y = (csr_array(vstack([getattr(each, name) for each in blocks])) for name in ("words", "labels"))
    idf = inverse_document_frequency(corpus.document_frequency, corpus.n_documents)
    return X, tfidf_rows(X, idf), Y


@pytest.fixture(scope="module")
def models(documents):
    X, weights, Y = documents
    return {name: MultiLabelMoM(4, **OPTIONS).fit(x, Y) for name, x in (("counts", X), ("weights", weights))}


def test_a_model_of_weights_is_that_of_the_counts(documents, models):
    X, weights, _ = documents
    assert models["counts"].diagnostics_["features"] == "tfidf"
    assert models["weights"].diagnostics_["features"] == "given"
    expected = models["counts"].decision_function(X)
    assert_allclose(
        models["weights"].decision_function(weights), expected, atol=1e-3 * np.abs(expected).max()
    )


def test_idf_may_be_applied_to_weights_too(documents):
    _, weights, Y = documents
    twice = MultiLabelMoM(4, head="ridge", features="tfidf", **OPTIONS).fit(weights, Y)
    idf = inverse_document_frequency(np.diff(weights.tocsc().indptr), len(weights.indptr) - 1)
    scaled = csr_array(weights.multiply(idf).tocsr())
    once = MultiLabelMoM(4, head="ridge", features="given", **OPTIONS).fit(scaled, Y)
    assert_allclose(twice.decision_function(weights), once.decision_function(scaled), atol=1e-4)


def test_files_stored_models_and_updates_use_weights_as_they_are(documents, models, tmp_path, capsys):
    _, weights, Y = documents
    lines = [f"{len(weights.indptr) - 1} {weights.shape[1]} {Y.shape[1]}"]
    for i in range(weights.shape[0]):
        own, labels = (each.indices[each.indptr[i] : each.indptr[i + 1]] for each in (weights, Y))
        values = weights.data[weights.indptr[i] : weights.indptr[i + 1]]
        words = (f"{word}:{value:.9g}" for word, value in zip(own, values, strict=True))
        lines.append(",".join(map(str, labels)) + " " + " ".join(words))
    (tmp_path / "rows.xmc.txt").write_text("\n".join(lines) + "\n")
    corpus, model = str(tmp_path / "corpus"), str(tmp_path / "model")
    assert main(["ingest", str(tmp_path / "rows.xmc.txt"), corpus, "--format", "xmc", "--workers", "0"]) == 0
    assert (
        main(["fit", corpus, model, "-k", "4", "--effort", "low", "--keep-sums", "--json", "--workers", "0"])
        == 0
    )
    loaded = load_model(model)
    assert loaded.diagnostics_["features"] == "given"
    new, old = weights[:100], loaded.decision_function(weights[:100])
    expected = models["weights"].decision_function(new)
    assert_allclose(old, expected, atol=1e-3 * np.abs(expected).max())
    loaded.partial_fit(new, Y[:100])
    assert loaded.n_documents_ == 2100
    assert np.isfinite(loaded.decision_function(new)).all()
    capsys.readouterr()
    assert main(["evaluate", model, str(tmp_path / "rows.xmc.txt"), "--json", "--workers", "0"]) == 0
    best = models["weights"].decision_function(weights).argmax(axis=1)
    right = float(Y.toarray()[np.arange(len(best)), best].mean())
    assert json.loads(capsys.readouterr().out)["P@1"] == pytest.approx(right, abs=0.01)


def test_idf_of_another_number_of_words_is_refused(models, tmp_path):
    models["counts"].save(tmp_path / "m")

    def cut(arrays, names):
        arrays["idf"] = arrays["idf"][:-1]

    edit_arrays(tmp_path / "m", cut)
    with pytest.raises(StoreError, match=r"expected idf of \d+ words or none, got \d+"):
        load_model(tmp_path / "m")
