"""Models of documents to which others are added, which tests of updates share."""

from copy import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.sparse import csr_array

from distmom.corpus import MemoryCorpus
from distmom.models import MultiLabelMoM
from distmom.models.multilabel import folds, program
from distmom.models.multilabel.blend import choose as blend
from distmom.models.multilabel.blend.choice import TOTAL, ChosenStack, ChosenSum
from distmom.models.multilabel.blend.stack import Stack, StackInput
from distmom.models.multilabel.blend.weighted_sum import SumWeights

FIXED = ("linear", "ridge", "neighbors", "svm")
#: blends that use every head, as a stack and as a weighted sum
BLENDS = ("stack", "sum")
EVERY = (*FIXED, "centroid", *BLENDS)
KINDS = [pytest.param(kind, marks=pytest.mark.slow if kind == "sum" else ()) for kind in EVERY]
N_FIRST = 400


def documents_of(n, d=120, n_labels=12, seed=0):
    """Documents whose labels depend on single words and on two topics of six."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(d, 0.08), 6)
    held = rng.integers(0, 6, (n, 2))
    X = np.stack([rng.multinomial(25, 0.5 * topics[a] + 0.3 * topics[b] + 0.2 / d) for a, b in held])
    score = rng.normal(0.0, 0.5, (n, n_labels))
    for label in range(n_labels):
        words = rng.choice(d, 6, replace=False)
        score[:, label] += np.log1p(X[:, words]).sum(axis=1) + 0.7 * (held == label % 6).sum(axis=1)
    return csr_array(X), csr_array((score >= np.sort(score, axis=1)[:, [-2]]).astype(np.uint8))


@cache
def all_documents():
    """Words and labels of the first documents and of those that are added."""
    return documents_of(600)


@cache
def _fitted(kind):
    X, Y = all_documents()
    corpus = MemoryCorpus(X[:N_FIRST], Y[:N_FIRST], shard_documents=150)
    with pytest.MonkeyPatch.context() as change:
        head = kind
        if kind == "centroid":
            head = "linear"
            change.setattr(program, "weights_of", lambda head: {"centroid": 1.0})
        if kind in BLENDS:
            head = "auto"
            change.setattr(folds, "choose_blend", every_head if kind == "stack" else summed)
        model = MultiLabelMoM(10, head=head, n_topics=5 if kind in BLENDS else 0, keep_sums=True)
        return model.fit_corpus(corpus)


def first_model(kind):
    """A copy of a model of the first documents, by what it scores with."""
    return copy(_fitted(kind))


def every_head(scored, **others):
    """Choose a stack of one variant of every head, and of all neighbours."""
    found = blend.choose_blend(scored, **others)
    scale = np.maximum(scored.best.mean(axis=0), 1e-3)
    named = enumerate(zip(scored.names, scored.families, strict=True))
    one_of = {family if family != "neighbors" else name: i for i, (name, family) in named}
    inputs = tuple(
        StackInput(scored.names[i], scored.families[i] == "svm", 1e-4, 1.0 / float(scale[i]), 0.1)
        for i in one_of.values()
    )
    return replace(found, blend=ChosenStack(Stack(inputs, -3.0), {each.name: 1.0 for each in inputs}))


def summed(scored, **others):
    """Choose a weighted sum of one variant of every head but the classifiers, which are only stacked."""
    found = blend.choose_blend(scored, **others)
    scale = np.maximum(scored.best.mean(axis=0), 1e-3)
    one_of = {family: i for i, family in enumerate(scored.families) if family != "svm"}
    weights = {scored.names[i]: 0.5 / float(scale[i]) for i in one_of.values()}
    calibration = Stack((StackInput(TOTAL, False, 1e-4, 1.0, 0.1),), -3.0)
    return replace(found, blend=ChosenSum(SumWeights(weights), calibration))


def rest(data, part=slice(N_FIRST, None)):
    return data[0][part], data[1][part]


def close(found, expected):
    """Whether two sums agree to 1e-6 of the largest value."""
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
