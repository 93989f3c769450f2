import numpy as np
import pytest
from helpers import WeightedCorpus
from numpy.testing import assert_allclose
from scipy.optimize import linear_sum_assignment
from scipy.sparse import vstack

from distmom.models import SpectralLDA
from distmom.simulate.topics import TopicPopulation


def matched(found, truth):
    """Mean L1 distance of the best matching of rows, and the order of the rows of ``found``."""
    cost = np.abs(truth[:, None, :] - found[None, :, :]).sum(axis=2)
    rows, columns = linear_sum_assignment(cost)
    return cost[rows, columns].mean(), columns


def tiny(alpha=(0.3, 0.8, 0.5), d=6, seed=1):
    rng = np.random.default_rng(seed)
    return TopicPopulation(alpha, rng.dirichlet(np.full(d, 0.5), len(alpha)).T)


def population_corpus(population, lengths=(3, 4)):
    parts = [population.enumerate(n) for n in lengths]
    weights = np.concatenate([w for _, w in parts]) / len(parts)
    return WeightedCorpus(vstack([c for c, _ in parts]).astype(int), None, weights, shard_documents=40)


def pure(k, **options):
    """Moments alone, of all words."""
    exact = {"min_df": 0.0, "max_df": 1.0, "max_count": None, "precision": "double"}
    return SpectralLDA(k, n_polish=0, start="tensor", **{**exact, **options})


@pytest.mark.parametrize("decomposition", ["joint", "power"])
@pytest.mark.parametrize("scale_words", [True, False])
@pytest.mark.parametrize("weighting", ["tokens", "document"])
def test_exact_population_gives_back_topics_and_dirichlet_parameters(decomposition, scale_words, weighting):
    population = tiny()
    model = pure(
        3,
        alpha0=1.6,
        n_oversamples=3,
        scale_words=scale_words,
        decomposition=decomposition,
        weighting=weighting,
    ).fit_corpus(population_corpus(population))
    distance, order = matched(model.components_, population.topics.T)
    assert distance < 1e-9
    assert_allclose(model.weights_[order], population.alpha / 1.6, atol=1e-9)
    assert model.diagnostics_["sum_proportions"] == pytest.approx(1.0, abs=1e-9)
    assert model.diagnostics_["residual"] < 1e-9
