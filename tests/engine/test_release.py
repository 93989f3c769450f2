"""A task holds the rows of one shard at a time, and nothing keeps the rows of a pass that has ended."""

import gc
import weakref

import numpy as np
import pytest

from distmom.corpus import RowCorpus
from distmom.engine import Pass, open_engine, open_executor
from distmom.engine.sums.additive import SumSpec


class Watched(RowCorpus):
    """Notes how many blocks read before are still in memory when a shard is read."""

    def read_shard(self, index):
        seen = vars(self).setdefault("seen", [])
        vars(self).setdefault("alive", []).append(sum(block() is not None for block in seen))
        block = super().read_shard(index)
        seen.append(weakref.ref(block))
        return block


class SumPass(Pass):
    """Add up the rows."""

    def specs(self):
        return {"total": SumSpec((self.n_features,))}

    def add(self, sums, block, rows):
        sums["total"] += block.rows.sum(axis=0)
        return


def test_a_shard_is_released_before_the_next_is_read():
    corpus = Watched(np.ones((100, 3)), shard_rows=10)
    with open_engine(corpus) as engine:
        np.testing.assert_array_equal(engine.run(SumPass(3)).sums["total"], [100.0] * 3)
    assert corpus.alive == [0] * 10


@pytest.mark.parametrize("threads", [1, 2])
def test_a_corpus_is_released_without_a_garbage_collection(threads):
    corpus = RowCorpus(np.ones((100, 3)), shard_rows=10)
    reference = weakref.ref(corpus)
    gc.disable()
    try:
        with open_executor(threads=threads) as executor, open_engine(corpus, executor=executor) as engine:
            np.testing.assert_array_equal(engine.run(SumPass(3)).sums["total"], [100.0] * 3)
        del corpus, engine
        assert reference() is None
    finally:
        gc.enable()
