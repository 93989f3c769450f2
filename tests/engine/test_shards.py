"""Shards of small corpora are read once per process."""

import numpy as np
import pytest
from helpers import planted_corpus

from distmom.corpus import MemoryCorpus
from distmom.engine import shards
from distmom.models import SpectralLDA


class Counted(MemoryCorpus):
    """A corpus that counts how often each of its shards is read."""

    def read_shard(self, index):
        self.reads = getattr(self, "reads", [])
        self.reads.append(index)
        return super().read_shard(index)


@pytest.fixture
def corpus(monkeypatch):
    monkeypatch.setattr(shards, "_kept", shards._Kept())
    own = planted_corpus(600, d=40, k=3)[2]
    words = np.concatenate([own.read_shard(i).words.toarray() for i in range(len(own.shards))])
    return Counted(words, shard_documents=100)


def test_a_small_corpus_is_read_once(corpus):
    SpectralLDA(3, n_refine=0, alpha0=1.0).fit_corpus(corpus)
    assert sorted(corpus.reads) == list(range(len(corpus.shards)))


def test_a_large_corpus_is_read_in_every_pass_and_gives_the_same_bits(corpus, monkeypatch):
    kept = SpectralLDA(3, n_refine=0, alpha0=1.0).fit_corpus(corpus)
    monkeypatch.setattr(shards, "KEPT_BYTES", 10)
    corpus.reads = []
    read = SpectralLDA(3, n_refine=0, alpha0=1.0).fit_corpus(corpus)
    assert len(corpus.reads) >= 3 * len(corpus.shards)
    np.testing.assert_array_equal(kept.components_, read.components_)


def test_another_corpus_has_its_own_shards(corpus):
    other = Counted(np.eye(40, dtype=np.int32), shard_documents=100)
    first = shards.read_shard(corpus, 0)
    assert shards.read_shard(other, 0).n_documents == 40
    assert shards.read_shard(corpus, 0).words.nnz == first.words.nnz
    assert corpus.reads == [0, 0]
