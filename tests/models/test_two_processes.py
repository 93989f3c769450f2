"""Models without such tests of their own: the same bits in one process and on a cluster, and a report."""

import numpy as np
import pytest

from distmom.corpus import MemoryCorpus, RowCorpus
from distmom.evaluate.dispatch import write_report
from distmom.models import GaussianSearch, LatentNetwork, RegressionSearch, SparseTopics, SubspaceSearch


def rows(seed=0, n=6000):
    """Return standard Gaussian rows, and which of two components each belongs to."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 12)), rng.integers(0, 2, n)


def gaussians():
    X, h = rows()
    return GaussianSearch(2, n_targets=1), np.column_stack([X + 4.0 * np.eye(2, 12)[h], h])


def regressions():
    X, h = rows()
    return RegressionSearch(2), np.column_stack([X, (X * 2.0 * np.eye(2, 12)[h]).sum(axis=1)])


def uncorrelated():
    return RegressionSearch(2, covariance="diagonal"), regressions()[1]


def subspaces():
    X, h = rows()
    X[:, 4:] *= 0.1
    X[h == 0, :2] *= 0.1
    X[h == 1, 2:4] *= 0.1
    return SubspaceSearch(2, dimension=2), X


def network():
    noises = np.random.default_rng(1).exponential(size=(6000, 2))
    nodes = noises @ [[1.0, 0.8], [0.0, 1.0]]
    return LatentNetwork(2), nodes @ np.kron(np.eye(2), np.ones(4)) + 0.3 * rows()[0][:, :8]


def topics():
    rng = np.random.default_rng(2)
    shares = rng.dirichlet([0.5, 0.5], 2000)
    words = np.kron(np.eye(2), np.full(10, 0.1))
    counts = np.stack([rng.multinomial(40, share @ words) for share in shares])
    return SparseTopics(2, max_df=1.0, max_count=None), counts


FITS = {
    "gaussian-search": gaussians,
    "regression-search": regressions,
    "regression-search, diagonal": uncorrelated,
    "subspace-search": subspaces,
    "network": network,
    "sparse": topics,
}


def corpus_of(X):
    if X.dtype.kind == "i":
        return MemoryCorpus(X, shard_documents=300)
    return RowCorpus(X, shard_rows=300)


def arrays_of(model):
    return {name: value for name, value in vars(model).items() if isinstance(value, np.ndarray)}


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("name", FITS)
def test_two_processes_give_the_same_bits(name, cluster):
    model, X = FITS[name]()
    alone = arrays_of(model.fit_corpus(corpus_of(X)))
    other, _ = FITS[name]()
    both = arrays_of(other.fit_corpus(corpus_of(X), client=cluster))
    assert len(alone) > 2
    assert alone.keys() == both.keys()
    for key, value in alone.items():
        assert value.tobytes() == both[key].tobytes(), key


@pytest.mark.parametrize("name", FITS)
def test_a_report_has_charts(name, tmp_path):
    model, X = FITS[name]()
    write_report(model.fit_corpus(corpus_of(X)), tmp_path / "r.html")
    assert '<svg class="chart"' in (tmp_path / "r.html").read_text(encoding="utf-8")
