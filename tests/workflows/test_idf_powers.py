"""Powers of idf: kinds of values with and without idf are apart, and the table has their ends."""

import importlib

import numpy as np
import pytest
from scipy.sparse import csr_array

from distmom.corpus import MemoryCorpus
from distmom.moments.features.tfidf import fit_idf


@pytest.fixture
def idf_powers():
    return importlib.import_module("idf_powers")


def test_kinds_of_values_are_told_apart(idf_powers):
    rng = np.random.default_rng(0)
    law = 1.0 / (np.arange(300) + 3.0)
    X = csr_array(np.array([rng.multinomial(n, law / law.sum()) for n in rng.geometric(0.04, 2000)]))
    found = idf_powers.powers(X)
    assert max(found[kind] for kind in idf_powers.WITHOUT) < 0.0
    assert min(found[kind] for kind in idf_powers.WITH) > 0.3
    for kind, weigh in (idf_powers.WITHOUT | idf_powers.WITH).items():
        given = len(fit_idf(MemoryCorpus(weigh(csr_array(X, dtype=float))))) == 0
        assert given == (kind in idf_powers.WITH)
    lines = idf_powers.table({"a": found, "b": {kind: x + 1.0 for kind, x in found.items()}}).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| a", "| b", "| least", "| largest"]
    assert lines[4].partition(" | ")[2] == lines[2].partition(" | ")[2]
    assert lines[5].partition(" | ")[2] == lines[3].partition(" | ")[2]


def test_bm25_is_that_of_its_definition(idf_powers):
    X = np.array([[3.0, 1.0], [0.0, 2.0], [1.0, 1.0], [0.0, 4.0]])
    lengths = X.sum(axis=1)
    expected = np.zeros_like(X)
    for i, j in np.argwhere(X > 0):
        df = (X[:, j] > 0).sum()
        saturation = 1.2 * (1.0 - 0.75 + 0.75 * lengths[i] / lengths.mean())
        expected[i, j] = X[i, j] * 2.2 / (X[i, j] + saturation) * np.log(1.0 + (4 - df + 0.5) / (df + 0.5))
    np.testing.assert_allclose(idf_powers.bm25(csr_array(X)).toarray(), expected)
