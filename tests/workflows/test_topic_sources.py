"""Planted documents of the comparison of topic models."""

import importlib

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix, save_npz


@pytest.fixture
def documents():
    return importlib.import_module("topic_documents")


def test_independent_amounts_have_their_moments(documents):
    counts, topics = documents.plant_amounts(4, 20_000, 50, 60, 0)
    lengths = counts.sum(axis=1)
    assert_allclose(topics.sum(axis=1), 1.0)
    assert lengths.mean() == pytest.approx(60.0, rel=0.02)
    # Amounts of mean 15 and the shapes, and the Poisson distribution.
    expected = (15.0**2 / np.geomspace(0.1, 1.0, 4)).sum() + 60.0
    assert lengths.var() == pytest.approx(expected, rel=0.1)


def test_present_topics_have_amounts_without_skewness(documents):
    counts, topics = documents.plant_present(4, 40_000, 50, 60, 0)
    lengths = counts.sum(axis=1).astype(float)
    assert_allclose(topics.sum(axis=1), 1.0)
    assert lengths.mean() == pytest.approx(60.0, rel=0.02)
    # Amounts of 30, present or not, and the Poisson distribution.
    assert lengths.var() == pytest.approx(4 * 15.0**2 + 60.0, rel=0.03)
    # Without skewness of the amounts, the third cumulant is that of Poisson counts of such means.
    assert np.mean((lengths - 60.0) ** 3) == pytest.approx(60.0 + 3 * 4 * 15.0**2, abs=1500.0)


def test_correlated_documents_have_sparse_topics(documents):
    counts, topics = documents.plant_correlated(100, 0)
    assert counts.shape == (100, 300)
    assert (counts.sum(axis=1) == 60).all()
    assert_allclose(topics.sum(axis=1), 1.0)
    assert (topics > 0.0).mean() == pytest.approx(0.2, abs=0.05)


def test_the_error_of_planted_topics_is_zero_in_any_order(documents):
    benchmark = importlib.import_module("benchmark_topics")
    topics = documents.plant_correlated(10, 0)[1]
    order = np.random.default_rng(0).permutation(len(topics))
    assert benchmark.distance(topics[order], topics) == 0.0
    assert benchmark.distance(topics[order[1:]], topics) == pytest.approx(2.0 / len(topics))


def test_sources_have_their_numbers():
    benchmark = importlib.import_module("benchmark_topics")
    assert benchmark.planted_sizes("amounts:10,2000,1000,60") == ("amounts:", [10, 2000, 1000, 60])
    assert benchmark.planted_sizes("present:10,2000,1000,60") == ("present:", [10, 2000, 1000, 60])
    assert benchmark.planted_sizes("correlated:500") == ("correlated:", [500])
    for source in ("correlated:5,6", "amounts:10", "planted:0,1,2,3", "uci:kos.txt"):
        assert benchmark.planted_sizes(source) == ("", [])


@pytest.mark.parametrize(
    ("system", "largest"),
    [
        ("distmom-eca", 0.3),
        ("distmom-eca-moments", 0.3),
        ("distmom-eca-fourth", 0.3),
        ("distmom-eca-both", 0.3),
        ("distmom-sparse-uncapped", 0.3),
        ("distmom-anchors-divergence", 0.3),
    ],
)
def test_own_models_find_planted_topics(documents, tmp_path, system, largest):
    """Topics without a word in common have a distance of 2."""
    if system in ("distmom-eca-fourth", "distmom-eca-both"):
        counts, topics = documents.plant_present(3, 2_000, 100, 60, 0)
    elif "eca" in system:
        counts, topics = documents.plant_amounts(3, 2_000, 100, 60, 0)
    else:
        counts, topics = documents.plant_correlated(1_000, 0)
    save_npz(tmp_path / "train.npz", csr_matrix(counts.astype(np.int32)))
    command = [f"--system={system}", f"--train={tmp_path / 'train.npz'}", f"-k{len(topics)}"]
    assert importlib.import_module("run_topics").main([*command, f"--out={tmp_path / 'out'}"]) == 0
    found = np.load(tmp_path / "out" / "phi.npy")
    assert importlib.import_module("benchmark_topics").distance(found, topics) < largest
