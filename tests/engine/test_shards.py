"""Shards of small stored corpora are read once per process."""

import numpy as np
import pytest
from helpers import WeightedCorpus, planted_corpus

from distmom.corpus import Corpus, from_arrays
from distmom.engine import shards
from distmom.models import SpectralLDA


@pytest.fixture
def reads(monkeypatch):
    """The indices of the shards that are read, in order."""
    found = []
    read = Corpus.read_shard

    def counted(corpus, index):
        found.append(index)
        return read(corpus, index)

    monkeypatch.setattr(Corpus, "read_shard", counted)
    monkeypatch.setattr(shards, "_kept", shards._Kept())
    return found


def words():
    own = planted_corpus(600, d=40, k=3)[2]
    return np.concatenate([own.read_shard(i).words.toarray() for i in range(len(own.shards))])


@pytest.fixture
def corpus(reads, tmp_path):
    return from_arrays(tmp_path / "c", words().astype(np.int32), shard_documents=100)


def test_a_small_corpus_is_read_once(corpus, reads):
    SpectralLDA(3, n_refine=0, alpha0=1.0).fit_corpus(corpus)
    assert sorted(reads) == list(range(len(corpus.shards)))
    # Another fit checks the corpus again.
    SpectralLDA(3, n_refine=0, alpha0=1.0).fit_corpus(corpus)
    assert len(reads) == 2 * len(corpus.shards)


def test_a_large_corpus_is_read_in_every_pass_and_gives_the_same_bits(corpus, reads, monkeypatch):
    kept = SpectralLDA(3, n_refine=0, alpha0=1.0).fit_corpus(corpus)
    monkeypatch.setattr(shards, "KEPT_BYTES", 10)
    reads.clear()
    read = SpectralLDA(3, n_refine=0, alpha0=1.0).fit_corpus(corpus)
    assert len(reads) >= 3 * len(corpus.shards)
    np.testing.assert_array_equal(kept.components_, read.components_)


def test_another_corpus_has_its_own_shards(corpus, reads, tmp_path):
    halves = from_arrays(tmp_path / "halves", words().astype(np.int32), shard_documents=300)
    other = from_arrays(tmp_path / "other", np.eye(40, dtype=np.int32), shard_documents=100)
    with shards.keeping_shards():
        for own, n_documents in ((corpus, 100), (halves, 300), (other, 40), (corpus, 100)):
            for _ in range(2):
                assert shards.read_shard(own, 0).n_documents == n_documents
    assert reads == [0, 0, 0, 0]
    for _ in range(2):
        shards.read_shard(corpus, 0)
    assert reads == [0] * 6


def test_documents_in_memory_may_differ_in_more_than_their_digest():
    X = words()[:100]
    for weight in (1.0, 2.0):
        own = WeightedCorpus(X, np.zeros((100, 1), int), np.full(100, weight))
        assert (shards.read_shard(own, 0).weights == weight).all()
