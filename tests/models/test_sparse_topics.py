"""Sparse topics: exact populations, samples of correlated topics, moments of shares, and plans."""

import itertools
import math

import numpy as np
import pytest
from helpers import WeightedCorpus, matched_topics
from numpy.testing import assert_allclose
from scipy.sparse import csr_array

from distmom.cli.main import main
from distmom.corpus import MemoryCorpus, from_arrays, write_corpus
from distmom.errors import UsageError
from distmom.models import AnchorTopics, SpectralLDA, load_model
from distmom.models.topics.sparse import SparseTopics, dirichlet_parameters

#: moments of all words without a cap on counts
EVERY = {"min_df": 0.0, "max_df": 1.0, "max_count": None}
EXACT = {**EVERY, "precision": "double", "n_oversamples": 4}


def sparse_topics(d, k, density, rng):
    """Return topics, (d, k), whose columns have random supports and sum to one; every word is in some topic."""
    topics = (rng.random((d, k)) < density) * rng.gamma(1.0, 1.0, (d, k))
    empty = np.flatnonzero(topics.max(axis=1) == 0.0)
    topics[empty, rng.integers(0, k, len(empty))] = rng.gamma(1.0, 1.0, len(empty))
    return topics / topics.sum(axis=0)


def logistic_normal(n, k, rng):
    """Return shares, (n, k), with strong correlations of both signs."""
    amounts = np.exp(rng.standard_normal((n, k)) @ rng.normal(0.0, 0.9, (k, k)).T)
    return amounts / amounts.sum(axis=1, keepdims=True)


def population(topics, shares, length):
    """Return all documents of some length with their probabilities, for shares that are equally likely."""
    d = len(topics)
    documents = np.array(list(itertools.combinations_with_replacement(range(d), length)))
    words = shares @ topics.T
    probabilities = np.mean(np.prod(words[:, documents], axis=2), axis=0)
    counts = np.zeros((len(documents), d), int)
    np.add.at(counts, (np.arange(len(documents))[:, None], documents), 1)
    same = np.array([math.prod(map(math.factorial, row)) for row in counts.tolist()])
    return WeightedCorpus(
        csr_array(counts), None, probabilities * math.factorial(length) / same, shard_documents=500
    )


def sample(n, seed, d=120, k=5, length=60):
    rng = np.random.default_rng(seed)
    topics = sparse_topics(d, k, 0.2, rng)
    shares = logistic_normal(n, k, rng)
    return topics, shares, csr_array(rng.multinomial(length, shares @ topics.T))


@pytest.mark.parametrize("scale_words", [True, False])
def test_an_exact_population_gives_back_topics_and_second_moments_of_shares(scale_words):
    rng = np.random.default_rng(0)
    topics, shares = sparse_topics(40, 4, 0.2, rng), logistic_normal(7, 4, rng)
    model = SparseTopics(4, scale_words=scale_words, **EXACT).fit_corpus(population(topics, shares, 2))
    order = np.abs(topics.T[:, None] - model.components_[None]).sum(axis=2).argmin(axis=1)
    assert sorted(order) == [0, 1, 2, 3]
    assert_allclose(model.components_[order], topics.T, atol=1e-10)
    assert_allclose(model.shares_moment_[np.ix_(order, order)], shares.T @ shares / 7, atol=1e-10)
    assert_allclose(model.weights_[order], shares.mean(axis=0), atol=1e-10)
    assert_allclose(model.diagnostics_["shares_sums"], 1.0, atol=1e-10)
    assert all(model.diagnostics_["exact"])
    expected = np.corrcoef(shares.T)
    assert_allclose(model.correlations()[np.ix_(order, order)], expected, atol=1e-8)
    # These shares do not follow a Dirichlet distribution, of which all correlations are negative.
    assert np.triu(expected, 1).max() > 0.1


def test_an_exact_population_gives_back_third_moments_of_shares():
    rng = np.random.default_rng(1)
    topics, shares = sparse_topics(20, 3, 0.2, rng), logistic_normal(5, 3, rng)
    model = SparseTopics(3, third_moment="full", **EXACT).fit_corpus(population(topics, shares, 3))
    order = matched_topics(model.components_, topics.T)[1]
    third = np.einsum("ni,nj,nk->ijk", shares, shares, shares) / 5
    assert_allclose(model.components_[order], topics.T, atol=1e-10)
    assert_allclose(model.shares_third_[np.ix_(order, order, order)], third, atol=1e-10)


@pytest.mark.slow
def test_errors_fall_with_the_root_of_the_number_of_documents():
    sizes, errors = np.array([1000, 4000, 16000]), []
    for n in sizes:
        found = []
        for seed in range(2):
            topics, shares, counts = sample(int(n), seed)
            model = SparseTopics(5, **EVERY).fit(counts)
            error, order = matched_topics(model.components_, topics.T)
            second = model.shares_moment_[np.ix_(order, order)] - shares.T @ shares / n
            found.append((error, np.abs(second).max()))
        errors.append(np.mean(found, axis=0))
    slopes = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert (slopes > -0.7).all()
    assert (slopes < -0.35).all()


def test_correlated_topics_are_found_where_moments_of_a_dirichlet_distribution_mislead():
    topics, _, counts = sample(8000, 3)
    errors = [
        matched_topics(model.fit(counts).components_, topics.T)[0]
        for model in (
            SparseTopics(5, **EVERY),
            AnchorTopics(5, n_refine=0, **EVERY),
            SpectralLDA(5, init="tensor", n_refine=0, **EVERY),
        )
    ]
    assert errors[0] < 0.75 * errors[1]
    assert errors[0] < 0.4 * errors[2]


def test_topics_do_not_depend_on_how_words_are_chosen_for_programs_but_for_noise():
    topics, _, counts = sample(4000, 4)
    every = SparseTopics(5, n_constraints=120, n_program_words=120, **EVERY).fit(counts)
    few = SparseTopics(5, n_constraints=20, n_program_words=80, n_starts=10, **EVERY).fit(counts)
    assert every.diagnostics_["n_programs"] == 120
    assert few.diagnostics_["n_programs"] == 20
    assert matched_topics(few.components_, every.components_)[0] < 0.05
    assert matched_topics(few.components_, topics.T)[0] < 0.1


def test_refinement_gives_words_left_out_probabilities_and_moments_of_its_topics():
    topics, _, counts = sample(2000, 5)
    options = {"min_df": 0.1, "max_df": 1.0, "max_count": None}
    pure, refined = (SparseTopics(5, n_refine=n, **options).fit(counts) for n in (0, 2))
    rare = np.asarray((counts > 0).sum(axis=0)) < 200
    assert rare.any()
    assert (pure.components_[:, rare] == 0.0).all()
    assert (refined.components_[:, rare].sum(axis=0) > 0.0).all()
    assert matched_topics(refined.components_, topics.T)[0] < 0.12
    assert len(refined.diagnostics_["log_likelihoods"]) == 2
    assert refined.shares_moment_.sum() == pytest.approx(1.0)
    assert np.abs(refined.shares_moment_ - pure.shares_moment_).max() > 1e-6


def test_the_plan_lists_the_passes_that_are_made_and_a_saved_model_is_the_same(tmp_path):
    counts = sample(1000, 6)[2]
    corpus = MemoryCorpus(counts, shard_documents=300)
    model = SparseTopics(5, n_power_iter=1, n_refine=1, **EVERY)
    expected = ["sketch", "power", "moments", "refine"]
    assert [p.name for p in model.plan(corpus).passes] == expected
    model.fit_corpus(corpus).save(tmp_path / "m")
    assert [timing["name"] for timing in model.timings_] == expected
    loaded = load_model(tmp_path / "m")
    assert (loaded.components_ == model.components_).all()
    assert (loaded.shares_moment_ == model.shares_moment_).all()
    assert loaded.shares_third_ is None
    assert (loaded.correlations() == model.correlations()).all()
    assert (loaded.transform(counts[:9]) == model.transform(counts[:9])).all()


def test_a_stored_corpus_gives_the_bits_of_memory_and_other_shards_the_same_topics(tmp_path):
    counts = sample(1000, 10)[2]
    names = [f"w{v:03}" for v in range(counts.shape[1])]
    stored = from_arrays(tmp_path / "c", counts, vocabulary=names, shard_documents=300)
    model = SparseTopics(5, third_moment="full", precision="double", **EVERY)
    expected = model.fit_corpus(MemoryCorpus(counts, shard_documents=300))
    components, second, third = expected.components_, expected.shares_moment_, expected.shares_third_
    model.fit_corpus(stored)
    assert (model.components_ == components).all()
    assert (model.shares_moment_ == second).all()
    assert (model.shares_third_ == third).all()
    model.fit_corpus(MemoryCorpus(counts, shard_documents=70))
    assert_allclose(model.components_, components, atol=1e-9)
    assert_allclose(model.shares_moment_, second, atol=1e-9)


def test_impossible_fits_are_refused():
    counts = sample(300, 7)[2]
    with pytest.raises(UsageError, match="n_constraints: expected at least 5 for 5 topics, got 4"):
        SparseTopics(5, n_constraints=4, **EVERY).fit(counts)


def test_fewer_topics_are_found_where_the_moments_carry_fewer(caplog):
    one = np.tile(np.arange(1, 7), (50, 1))
    model = SparseTopics(2, **EVERY).fit(one)
    assert "the moments carry 1 of the 2 topics requested" in caplog.text
    assert model.n_components_ == 1
    assert model.components_.shape == (1, 6)


def test_documents_are_read_with_the_dirichlet_distribution_of_the_moments():
    alpha = np.array([0.3, 0.6, 1.1])
    total = alpha.sum()
    second = (np.outer(alpha, alpha) + np.diag(alpha)) / (total * (total + 1.0))
    assert_allclose(dirichlet_parameters(alpha / total, second), alpha, rtol=1e-12)
    topics, shares, counts = sample(1000, 8)
    model = SparseTopics(5, **EVERY).fit(counts)
    order = matched_topics(model.components_, topics.T)[1]
    assert np.abs(model.transform(counts)[:, order] - shares).sum(axis=1).mean() < 0.35


def test_the_command_line_fits_it_and_shows_its_words(tmp_path, capsys):
    _, _, counts = sample(600, 9)
    documents = (([f"w{v}" for v in np.repeat(row.indices, row.data)], []) for row in counts)
    write_corpus(tmp_path / "c", documents)
    place, options = str(tmp_path / "m"), ["--model", "sparse", "-k", "5", "--max-df", "1", "--workers", "0"]
    assert main(["fit", str(tmp_path / "c"), place, *options]) == 0
    assert main(["topics", place, "--top", "3"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if " w" in line]) >= 5
