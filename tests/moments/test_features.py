"""Features of documents whose words have counts, or weights of several kinds."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize

from distmom.corpus import MemoryCorpus
from distmom.moments.features.tfidf import fit_idf, inverse_document_frequency, tfidf_rows


@pytest.fixture(scope="module")
def counts():
    """Documents of very different lengths, with a few frequent words and many rare ones."""
    rng = np.random.default_rng(0)
    law = 1.0 / (np.arange(300) + 3.0)
    rows = [rng.multinomial(n, law / law.sum()) for n in rng.geometric(0.04, 2000)]
    return csr_array(np.array(rows))


def transformer(**options):
    return TfidfTransformer(**options).fit_transform


@pytest.mark.parametrize(
    ("weigh", "has_idf"),
    [
        (lambda X: X, False),
        (lambda X: normalize(X, "l1"), False),
        (lambda X: normalize(X), False),
        (lambda X: normalize(X > 0), False),
        (transformer(use_idf=False, sublinear_tf=True), False),
        (transformer(), True),
        (transformer(sublinear_tf=True), True),
        (transformer(norm="l1"), True),
        (transformer(norm=None, sublinear_tf=True), True),
        (transformer(norm=None, smooth_idf=False), True),
    ],
)
def test_weights_by_idf_are_told_from_counts_and_frequencies(counts, weigh, has_idf):
    corpus = MemoryCorpus(csr_array(weigh(counts.astype(float))))
    expected = inverse_document_frequency(corpus.document_frequency, corpus.n_documents)
    assert_array_equal(fit_idf(corpus), [] if has_idf else expected)
    assert_array_equal(fit_idf(corpus, "tfidf"), expected)
    assert len(fit_idf(corpus, "given")) == 0


def test_words_in_all_documents_or_in_none_say_nothing():
    rng = np.random.default_rng(1)
    X = np.hstack([rng.uniform(0.1, 5.0, (50, 4)), np.zeros((50, 2))])
    assert len(fit_idf(MemoryCorpus(csr_array(X)))) == 6
    assert len(fit_idf(MemoryCorpus(csr_array(X[:3])))) == 6
    assert len(fit_idf(MemoryCorpus(csr_array((50, 6))))) == 6


def test_given_values_are_only_scaled(counts):
    weights = TfidfTransformer(norm=None).fit_transform(counts)
    found = tfidf_rows(csr_array(weights), np.zeros(0))
    assert_allclose(found.toarray(), normalize(weights).toarray(), rtol=1e-12)
    assert_array_equal(found.indices, weights.indices)
