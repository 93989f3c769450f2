"""Mixtures of product distributions: exact populations, samples, and documents read by brute force."""

from itertools import product

import numpy as np
import pytest
from helpers import WeightedCorpus, matched
from numpy.testing import assert_allclose

from distmom.cli.main import main
from distmom.corpus import MemoryCorpus, write_corpus
from distmom.errors import NumericalError, UsageError
from distmom.models import load_model
from distmom.models.product import ProductMixture

MEANS = np.random.default_rng(3).uniform(0.1, 0.9, (2, 12))
WEIGHTS = np.array([0.35, 0.65])


def probabilities(X):
    """Return P(x | h) for every document and component, by the definition."""
    return np.stack([np.prod(np.where(X == 1, mean, 1.0 - mean), axis=1) for mean in MEANS], axis=1)


def population():
    X = np.array(list(product((0, 1), repeat=12)))
    return WeightedCorpus(X, np.ones((len(X), 1), int), probabilities(X) @ WEIGHTS, shard_documents=1000)


def sample(n, seed):
    rng = np.random.default_rng(seed)
    return (rng.random((n, 12)) < MEANS[(rng.random(n) < WEIGHTS[1]).astype(int)]).astype(int)


@pytest.mark.parametrize("decomposition", ["joint", "power"])
def test_an_exact_population_gives_back_the_parameters(decomposition):
    model = ProductMixture(2, decomposition=decomposition, n_oversamples=2).fit_corpus(population())
    error, order = matched(model.components_, MEANS)
    assert error < 1e-10
    assert_allclose(model.weights_, WEIGHTS[order], rtol=1e-10)
    assert model.diagnostics_["asymmetry"] < 1e-10
    assert model.diagnostics_["sum_weights"] == pytest.approx(1.0, abs=1e-10)


def test_errors_fall_with_the_root_of_the_number_of_documents():
    errors = []
    for n in (4_000, 64_000):
        found = [ProductMixture(2).fit(sample(n, seed)).components_ for seed in range(8)]
        errors.append(np.mean([np.abs(c - MEANS[matched(c, MEANS)[1]]).mean() for c in found]))
    # A sixteenth of the variance is a quarter of the error.
    assert 2.5 < errors[0] / errors[1] < 6.5


def test_documents_are_read_by_the_rule_of_bayes():
    model = ProductMixture(2, n_oversamples=2).fit_corpus(population())
    X = sample(200, 1)
    joint = probabilities(X) * WEIGHTS
    expected = (joint / joint.sum(axis=1, keepdims=True))[:, matched(model.components_, MEANS)[1]]
    assert_allclose(model.predict_proba(X), expected, atol=1e-8)
    assert (model.predict(X) == expected.argmax(axis=1)).all()
    # Presence counts, and how often a word is there does not.
    assert_allclose(model.predict_proba(3 * X), expected, atol=1e-8)


def test_the_plan_lists_the_passes_that_are_made_and_a_saved_model_is_the_same(tmp_path):
    corpus = MemoryCorpus(sample(500, 0), shard_documents=100)
    model = ProductMixture(2, n_power_iter=1)
    assert [p.name for p in model.plan(corpus).passes] == ["sketch", "power", "moments"]
    model.fit_corpus(corpus).save(tmp_path / "m")
    assert [timing["name"] for timing in model.timings_] == ["sketch", "power", "moments"]
    loaded = load_model(tmp_path / "m")
    assert loaded.topics(1)[0]["words"][0][1] == model.components_[0].max()
    assert (loaded.components_ == model.components_).all()
    assert (loaded.predict_proba(sample(9, 1)) == model.predict_proba(sample(9, 1))).all()


def test_more_components_than_a_group_of_words_can_tell_apart_are_refused():
    with pytest.raises(UsageError, match="n_components: expected at most 4, a third of the 12 words, got 5"):
        ProductMixture(5).fit(sample(100, 0))
    with pytest.raises(NumericalError):
        ProductMixture(2).fit(np.ones((50, 12), int))


def test_the_command_line_fits_it_and_shows_its_words(tmp_path, capsys):
    documents = (([f"w{v}" for v in np.flatnonzero(row)], []) for row in sample(600, 2))
    write_corpus(tmp_path / "c", documents)
    place, options = str(tmp_path / "m"), ["--model", "product", "-k", "2", "--workers", "0"]
    assert main(["fit", str(tmp_path / "c"), place, *options]) == 0
    assert main(["topics", place, "--top", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()[-1].split()) == 5
