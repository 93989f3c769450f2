import numpy as np
import pytest
from helpers import random_corpus
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array, vstack
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import Ridge

from distmom.engine import TallResult, Term, open_engine
from distmom.models.multilabel.heads import regression
from distmom.moments.features.index import IndexPass
from distmom.moments.features.regression import (
    CrossMomentPass,
    FeatureSketchPass,
    RidgePass,
    ridge_coefficients,
)
from distmom.moments.features.tfidf import inverse_document_frequency, tfidf_rows


def dense(corpus):
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    X = np.vstack([b.words.toarray() for b in blocks])
    Y = np.vstack([b.labels.toarray() for b in blocks])
    return X, Y.astype(float)


def test_tfidf_is_that_of_scikit_learn():
    corpus = random_corpus(density=0.05)
    X, _ = dense(corpus)
    expected = TfidfTransformer(sublinear_tf=True).fit_transform(X).toarray()
    idf = inverse_document_frequency(corpus.document_frequency, corpus.n_documents)
    rows = [tfidf_rows(corpus.read_shard(i).words, idf).toarray() for i in range(len(corpus.shards))]
    assert_allclose(np.vstack(rows), expected, atol=1e-14)


def test_sums_are_dense_products():
    corpus = random_corpus()
    X, Y = dense(corpus)
    idf = inverse_document_frequency(corpus.document_frequency, corpus.n_documents)
    A = TfidfTransformer(sublinear_tf=True).fit_transform(X).toarray()
    basis = np.random.default_rng(0).standard_normal((corpus.n_words, 5))
    with open_engine(corpus) as engine:
        cross, sketch = {}, {}

        def finish_cross(tallies):
            cross.update(tallies.sums)
            cross["cross"] = engine.maps.combine([Term(tallies.runs["cross"])]).to_scipy()
            return TallResult({}, {})

        def finish(tallies):
            sketch["sketch"] = tallies.tall["sketch"].read_rows(slice(0, corpus.n_words))
            return TallResult({}, {})

        engine.run(CrossMomentPass(corpus.n_words, n_labels=12, idf=idf, n_products=500), finish=finish_cross)
        engine.run(FeatureSketchPass(corpus.n_words, idf=idf, n_columns=5, basis=basis), finish=finish)
        result = engine.run(RidgePass(corpus.n_words, n_labels=12, rank=5, idf=idf, basis=basis, store=True))
        stored = np.concatenate([result.rows["z"].read(i) for i in range(len(corpus.shards))])
    with_ones = np.hstack([A, np.ones((len(A), 1))])
    assert_allclose(cross["cross"].toarray(), with_ones.T @ Y, rtol=1e-6)
    assert_allclose(cross["squares"], (with_ones**2).sum(axis=0), rtol=1e-6)
    assert_allclose(cross["labels"], Y.sum(axis=0))
    assert_allclose(sketch["sketch"], A.T @ A @ basis, atol=1e-11)
    assert_allclose(stored, A @ basis, atol=1e-5)
    Z = A @ basis
    centred = Z - Z.mean(axis=0)
    penalty = 0.1 * np.trace(centred.T @ centred) / 5
    oracle = Ridge(alpha=penalty).fit(Z, Y)
    coefficients, intercept = ridge_coefficients(result.sums, 0.1)
    assert_allclose(coefficients, oracle.coef_.T, atol=1e-10)
    assert_allclose(intercept, oracle.intercept_, atol=1e-10)


def test_the_index_has_the_rows_of_all_documents_by_word():
    corpus = random_corpus(density=0.05)
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    assert len(blocks) > 1
    idf = inverse_document_frequency(corpus.document_frequency, corpus.n_documents)
    expected = vstack([tfidf_rows(block.words, idf, np.float32) for block in blocks]).tocsc()
    pass_ = IndexPass(corpus.n_words, n_documents=corpus.n_documents, n_labels=12, idf=idf)
    found = {}
    with open_engine(corpus) as engine:

        def finish(tallies):
            for name, runs in tallies.runs.items():
                assert len(runs.parts) > 1
                found[name] = engine.maps.combine([Term(runs)]).to_scipy().copy()
            return TallResult({}, {})

        engine.run(pass_, finish=finish)
    assert_array_equal(found["lists"].indptr, expected.indptr)
    assert_array_equal(found["lists"].indices, expected.indices)
    assert_array_equal(found["lists"].data, expected.data)
    assert_array_equal(found["labels"].toarray(), dense(corpus)[1])


@pytest.mark.parametrize("gram_labels", [1000, 10])
def test_the_label_half_of_the_basis_is_the_leading_space_outside_of_the_other_half(gram_labels, monkeypatch):
    monkeypatch.setattr(regression, "GRAM_LABELS", gram_labels)
    rng = np.random.default_rng(0)
    # Ten strong directions in the rows, and noise a tenth as strong.
    weighted = 10.0 * rng.standard_normal((90, 10)) @ rng.standard_normal((10, 25)) / 10.0
    weighted = csr_array(weighted + 0.1 * rng.standard_normal((90, 25)))
    left = np.linalg.qr(rng.standard_normal((90, 7)))[0]
    found = regression._label_vectors(left, weighted, 10, 0)
    outside = weighted.toarray() - left @ (left.T @ weighted.toarray())
    expected = np.linalg.svd(outside)[0][:, :10]
    assert np.abs(left.T @ found).max() < 1e-8
    cosines = np.linalg.svd(expected.T @ np.linalg.qr(found)[0])[1]
    np.testing.assert_allclose(cosines, 1.0, atol=1e-4)


def test_directions_without_weight_are_left_out_of_the_label_half():
    rng = np.random.default_rng(0)
    weighted = csr_array(rng.standard_normal((40, 3)) @ rng.standard_normal((3, 12)))
    left = np.linalg.qr(weighted.toarray()[:, :1])[0]
    assert regression._label_vectors(left, weighted, 8, 0).shape == (40, 2)


@pytest.mark.parametrize("gram_labels", [1000, 10])
def test_rounding_errors_are_no_label_half(gram_labels, monkeypatch):
    """As where all documents are equal, or have few words: the other half of the basis has all weights."""
    monkeypatch.setattr(regression, "GRAM_LABELS", gram_labels)
    rng = np.random.default_rng(0)
    for matrix in (rng.standard_normal((40, 3)) @ rng.standard_normal((3, 12)), np.full((40, 12), 3.0)):
        left = np.linalg.svd(matrix)[0][:, :3]
        assert regression._label_vectors(left, csr_array(matrix), 8, 0).shape == (40, 0)
