"""Variants of heads: their names, those that a fit tries, and those whose scores are read from saved models."""

import numpy as np
import pytest
from helpers import planted_corpus, rank_few_labels_exhaustively

from distmom.models import MultiLabelMoM
from distmom.models.multilabel.effort import EFFORTS
from distmom.models.multilabel.program import tried_variants
from distmom.models.multilabel.variants import HEADS, VARIANTS, Votes, alone, costs_of, named, votes_of


def test_names_are_unique_and_name_their_variants():
    names = [each.name for each in VARIANTS]
    assert len(set(names)) == len(names)
    assert [named(name) for name in names] == list(VARIANTS)
    assert {"ridge-0.03", "svm-1", "neighbors-75-3", "best-cosine", "sketch-neighbors"} < set(names)


def test_numbers_of_saved_models_need_not_be_tried():
    assert named("ridge-0.5").numbers == (0.5,)
    assert named("neighbors-20-1.5").votes == votes_of("neighbors-20-1.5") == Votes(20, 1.5)
    assert costs_of(map(named, ("svm-2", "linear", "svm-0.5"))) == (0.5, 2.0)


@pytest.mark.parametrize("name", ["neighbors-75", "neighbors-x-3", "neighbors-0.5-3", "neighbors-75-nan"])
def test_votes_need_a_number_of_neighbors_and_a_power(name):
    with pytest.raises(ValueError, match=r"number of neighbours and a power|could not convert"):
        votes_of(name)


@pytest.mark.parametrize("name", ["", "forest", "ridge", "linear-3", "svm-1-2"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="expected the name of a variant of a head"):
        named(name)


def test_every_value_of_the_parameter_head_stands_for_one_variant():
    assert [alone(head).kind for head in HEADS[1:]] == list(HEADS[1:])
    assert len({each.place for each in VARIANTS if each.place}) == len(HEADS) - 1


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("effort", EFFORTS)
def test_auto_measures_the_variants_that_it_is_to_try(effort, many, monkeypatch):
    if many:
        rank_few_labels_exhaustively(monkeypatch)
    corpus = planted_corpus(600, d=100, n_labels=30, k=3, shard_documents=200)[2]
    model = MultiLabelMoM(3, effort=effort, n_topics=0).fit_corpus(corpus)
    names = [each.name for each in tried_variants(corpus, 3, EFFORTS[effort])]
    measured = [name for name in model.selection_["held_out"] if name not in ("auto", "blend")]
    assert sorted(measured) == sorted(names)
    assert ("gate" in names) == ("frequent" in names) == many
    assert ("svm-0.3" in names) != many
    assert ("sketch-neighbors" in names) == (effort == "high")


def test_inputs_are_scores_of_the_heads_that_have_their_arrays():
    corpus = planted_corpus(600, d=100, n_labels=30, k=3, shard_documents=200)[2]
    scorer = MultiLabelMoM(3, head="neighbors").fit_corpus(corpus).scorer_
    query = scorer.query(corpus.read_shard(0))
    votes, cosines = np.zeros((2, query.block.n_documents, 30), np.float32)
    scorer.variant("neighbors-75-3").add_scores(query, 1.0, votes)
    scorer.variant("best-cosine").add_scores(query, 1.0, cosines)
    found, cosine = query.nearest(scorer.index, 75)
    labels = scorer.index.labels.to_scipy().toarray() > 0
    largest = [(labels[own] * near[:, None]).max(axis=0) for own, near in zip(found, cosine, strict=True)]
    np.testing.assert_allclose(cosines, largest, rtol=1e-6)
    weights = cosine**3.0
    expected = np.einsum("ij,ijl->il", weights / weights.sum(axis=1, keepdims=True), labels[found])
    np.testing.assert_allclose(votes, expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(KeyError):
        scorer.variant("linear")
