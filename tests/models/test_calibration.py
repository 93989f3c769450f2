"""Errors on samples of known topics, against reference errors of the same algorithms.

Each reference is of another draw of the same setting (topics are Dirichlet(0.1) columns here), so that levels are
met within a factor, and the fall with the number of documents by its slope.
"""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from distmom.models import SingleTopic, SpectralLDA, TopicSearch
from distmom.simulate import TopicPopulation

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

#: the bare method of moments: every word, every count, every document alike
MOMENTS = {"min_df": 0.0, "max_df": 1.0, "max_count": None, "weighting": "document", "precision": "double"}
SEEDS = (0, 1, 2)


def drawn_topics(d, k, seed):
    return np.random.default_rng(seed).dirichlet(np.full(d, 0.1), k).T


def errors(found, topics, metric):
    """Distances of topics found, as rows, to those planted, as columns, matched one to one."""
    distances = cdist(found, topics.T, metric)
    return distances[linear_sum_assignment(distances)]


def assert_met(sizes, medians, reference, factor=2.0):
    """Check levels within a factor, and the slope."""
    ratios = np.array(medians) / reference
    assert (ratios > 1.0 / factor).all(), medians
    assert (ratios < factor).all(), medians
    slope = np.polyfit(np.log(sizes), np.log(medians), 1)[0]
    assert -0.7 < slope < -0.35, slope


@pytest.mark.parametrize(
    ("kind", "reference"),
    [("single", (0.077, 0.040, 0.020, 0.0093)), ("lda", (0.156, 0.072, 0.036, 0.018))],
)
def test_the_tensor_power_method_has_its_errors(kind, reference):
    """Mean L1 of 5 topics over 100 words from documents of 20; alpha0 = 1 where they mix."""
    sizes, medians = (1000, 4000, 16_000, 64_000), []
    for n in sizes:
        found = []
        for seed in SEEDS:
            topics = drawn_topics(100, 5, seed)
            if kind == "single":
                rng = np.random.default_rng(seed)
                counts = rng.multinomial(20, topics.T[rng.integers(5, size=n)])
                model = SingleTopic(5, n_refine=0, decomposition="power", **MOMENTS)
            else:
                counts, _ = TopicPopulation(np.full(5, 0.2), topics).sample(n, 20, seed)
                model = SpectralLDA(
                    5, alpha0=1.0, init="tensor", n_refine=0, decomposition="power", **MOMENTS
                )
            found.append(errors(model.fit(counts).components_, topics, "cityblock").mean())
        medians.append(np.median(found))
    assert_met(sizes, medians, reference)


@pytest.mark.parametrize(
    ("length", "reference"),
    [
        (3, (0.159, 0.101, 0.045, 0.022)),
        (20, (0.033, 0.019, 0.0071, 0.0042)),
        (100, (0.019, 0.0080, 0.0053)),
    ],
)
def test_mixed_topics_of_unequal_share_have_the_errors_of_excess_correlations(length, reference):
    """Largest Euclidean error of 4 topics over 40 words whose smallest singular value is near 0.34."""
    sizes, medians = (1000, 4000, 16_000, 64_000)[: len(reference)], []
    for n in sizes:
        found = []
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            topics = rng.dirichlet(np.full(40, 0.1), 4).T
            while abs(np.linalg.svd(topics, compute_uv=False)[-1] - 0.34) > 0.03:
                topics = rng.dirichlet(np.full(40, 0.1), 4).T
            counts, _ = TopicPopulation((0.2, 0.3, 0.25, 0.45), topics).sample(n, length, seed)
            model = SpectralLDA(4, alpha0=1.2, init="tensor", n_refine=0, **MOMENTS).fit(counts)
            found.append(errors(model.components_, topics, "euclidean").max())
        medians.append(np.median(found))
    assert_met(sizes, medians, reference)


def searched(n, seed, alpha0):
    """Mean Euclidean error, and mean negative mass, of 5 topics over 500 words found by a label word each."""
    topics = drawn_topics(500, 5, seed)
    margins = [topics[:, i] - np.delete(topics, i, axis=1).max(axis=1) for i in range(5)]
    counts, _ = TopicPopulation(np.full(5, 0.2), topics).sample(n, 50, seed)
    model = TopicSearch(5, alpha0=alpha0, **MOMENTS).fit(counts)
    found = model.search_all([[int(margin.argmax())] for margin in margins], force=True)
    distances = [np.linalg.norm(f.topic - topic) for f, topic in zip(found, topics.T, strict=True)]
    return np.mean(distances), np.mean([f.negative_mass for f in found])


def test_topic_search_has_its_errors():
    sizes = (4000, 8000, 16_000)
    medians = [np.median([searched(n, seed, 1.0)[0] for seed in SEEDS]) for n in sizes]
    assert_met(sizes, medians, (0.0085, 0.0055, 0.0038))


def test_a_wrong_alpha0_costs_what_it_should():
    """The true one is 1; too small a one leaves no trace, too large a one makes topics negative."""
    reference = {0.0: 0.0316, 0.01: 0.0313, 0.5: 0.0155, 1.0: 0.0036, 2.0: 0.0297, 5.0: 0.112}
    found = {alpha0: searched(16_000, 0, alpha0) for alpha0 in reference}
    for alpha0 in (0.0, 0.01, 0.5, 1.0):
        assert 0.5 < found[alpha0][0] / reference[alpha0] < 2.0, alpha0
    # The reference is of topics whose negative entries were left; setting them to zero mends a part.
    for alpha0 in (2.0, 5.0):
        assert 2.0 * found[1.0][0] < found[alpha0][0] < reference[alpha0], alpha0
    masses = [mass for _, mass in found.values()]
    assert max(masses[:3]) < masses[3] < 0.05 < masses[4] < masses[5]
