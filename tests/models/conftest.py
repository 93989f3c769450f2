"""Fixtures that tests of several models share."""

import pytest
from helpers import matrices, planted_corpus

from distmom.models import MultiLabelMoM
from distmom.models.multilabel.variants import HEADS


@pytest.fixture(scope="module")
def planted():
    """Words and labels of documents to fit, and of others with the same states."""
    X, Y = matrices(planted_corpus(3000)[2])
    return X[:2500], Y[:2500], X[2500:], Y[2500:]


@pytest.fixture(scope="module")
def fitted(planted):
    """One fitted model of each head."""
    X, Y, _, _ = planted
    return {head: MultiLabelMoM(6, head=head).fit(X, Y) for head in HEADS}


@pytest.fixture
def amari(workflow):
    """The Amari index of the product of an unmixing and the mixing: 0 if it is a permutation."""
    return workflow("benchmark_ica").amari
