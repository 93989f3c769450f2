"""The sums that heads share, added up in one pass or range by range of words."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers import carried_out, planted_corpus, random_corpus
from numpy.testing import assert_allclose, assert_array_equal

from distmom.engine import Selection, open_engine
from distmom.models import MultiLabelMoM
from distmom.models.multilabel.heads import features
from distmom.models.multilabel.heads.features import extend_features, fit_features, n_products, word_ranges
from distmom.models.multilabel.heads.regression import centroid_terms

CHOSEN = Selection(0.3, heldout=True, seed=0)


def few_products(monkeypatch, corpus, n_ranges):
    monkeypatch.setattr(features, "PASS_PRODUCTS", -(-n_products(corpus) // n_ranges))


@pytest.mark.parametrize("n_ranges", [1, 2, 5, 1000])
def test_ranges_of_words_cover_all_columns_once_with_about_equal_entries(n_ranges):
    corpus = random_corpus(n=300, d=90, density=0.1)
    ranges = word_ranges(corpus, n_ranges)
    columns = np.concatenate([np.arange(each.start, each.stop) for each in ranges])
    assert_array_equal(columns, np.arange(91))
    counts = np.append(corpus.document_frequency, corpus.n_documents)
    sizes = np.array([counts[each].sum() for each in ranges])
    assert len(ranges) <= n_ranges
    if n_ranges <= 5:
        assert len(ranges) == n_ranges
        assert sizes.max() <= counts.sum() / n_ranges + 2 * counts.max()


def test_ranges_of_words_have_the_sums_of_one_pass(monkeypatch):
    corpus = planted_corpus(600, d=150, n_labels=20, k=3, shard_documents=100)[2]

    def sums():
        with open_engine(corpus) as engine:
            rest = carried_out(engine, fit_features, "auto", replace(CHOSEN, heldout=False))
            whole, added = carried_out(engine, extend_features, rest, CHOSEN)
            passes = [timing.name for timing in engine.timings]
            terms = centroid_terms(engine, whole)
            matrices = [each.whole_cross(engine).to_scipy().toarray() for each in (rest, whole, added)]
            return passes, whole, [*matrices, engine.maps.combine(terms).to_scipy().toarray()]

    once, whole, expected = sums()
    few_products(monkeypatch, corpus, 4)
    passes, cut, found = sums()
    assert passes.count("cross") == 5 > once.count("cross") == 2
    assert_allclose(cut.squares, whole.squares, rtol=1e-12)
    assert_array_equal(cut.label_counts, whole.label_counts)
    assert cut.n_documents == whole.n_documents == 600
    for a, b in zip(found, expected, strict=True):
        assert_allclose(a, b, rtol=1e-6)
    assert np.abs(expected[0] - expected[1]).max() > 0.1


def test_centroids_are_columns_of_the_cross_moment_over_their_lengths():
    corpus = random_corpus(n=300, d=50, density=0.1)
    with open_engine(corpus) as engine:
        whole = carried_out(engine, fit_features, "auto", None)
        cross = whole.whole_cross(engine).to_scipy().toarray()[:-1]
        found = engine.maps.combine(centroid_terms(engine, whole)).to_scipy().toarray()
    assert_allclose(found[:-1], cross / np.sqrt((cross**2).sum(axis=0) + 10.0), rtol=1e-6)
    assert not found[-1].any()


@pytest.mark.parametrize("head", ["linear", "auto"])
def test_a_fit_by_ranges_of_words_is_planned_and_scores_as_one_by_a_single_pass(head, monkeypatch):
    corpus = planted_corpus(1500, d=200, n_labels=30, k=3, shard_documents=300)[2]
    model = partial(MultiLabelMoM, 3, head=head, keep_sums=True)
    expected = model().fit_corpus(corpus)
    few_products(monkeypatch, corpus, 3)
    planned = [each.name for each in model().plan(corpus).passes]
    found = model().fit_corpus(corpus)
    assert planned.count("cross") == [t["name"] for t in found.timings_].count("cross") >= 3
    new = corpus.read_shard(0).words
    assert_allclose(found.decision_function(new), expected.decision_function(new), rtol=1e-4, atol=1e-5)
    more = planted_corpus(300, d=200, n_labels=30, k=3, seed=1)[2]
    for each in (found, expected):
        each.partial_fit_corpus(more)
    assert_allclose(found.decision_function(new), expected.decision_function(new), rtol=1e-4, atol=1e-5)
