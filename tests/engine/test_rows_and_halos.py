"""Passes over sequences: halos count windows across cuts once, and stored rows belong to units or to rows."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from distmom.corpus import RowCorpus
from distmom.engine import Pass, Selection, open_engine
from distmom.engine.sums.additive import SumSpec


@dataclass(frozen=True)
class PairsPass(Pass):
    """Count pairs of consecutive symbols."""

    halo = 1

    def specs(self):
        return {"pairs": SumSpec((self.n_features, self.n_features))}

    def add(self, sums, block, rows):
        starts = block.starts.copy()
        starts[0] = 0
        for first, last in itertools.pairwise(starts):
            np.add.at(sums["pairs"], (block.rows[first : last - 1], block.rows[first + 1 : last]), 1.0)
        return


@dataclass(frozen=True)
class NumberPass(Pass):
    """Store the position of every row, or the length of every part of a unit."""

    row_axis = "rows"

    def specs(self):
        return {"n": SumSpec(())}

    def add(self, sums, block, rows):
        sums["n"] += len(block.rows)
        return {"value": block.rows}


@dataclass(frozen=True)
class SumPass(Pass):
    """Compare stored rows with the rows that they belong to."""

    block_rows = 2

    def specs(self):
        return {"difference": SumSpec(()), "n": SumSpec(())}

    def add(self, sums, block, rows):
        sums["difference"] += np.abs(rows["value"] - block.rows).sum()
        sums["n"] += len(rows["value"])
        return


def sequences(shard_rows):
    rng = np.random.default_rng(1)
    lengths = np.array([1, 30, 2, 5, 47, 1, 1, 9])
    return RowCorpus(rng.integers(0, 6, lengths.sum()), lengths, shard_rows=shard_rows)


@pytest.mark.parametrize("shard_rows", [8, 9, 16, 1000])
def test_windows_across_cuts_are_counted_once(shard_rows):
    corpus = sequences(1000)
    expected = np.zeros((6, 6))
    symbols, starts = corpus._rows, corpus._starts
    for first, last in itertools.pairwise(starts):
        np.add.at(expected, (symbols[first : last - 1], symbols[first + 1 : last]), 1.0)
    with open_engine(sequences(shard_rows)) as engine:
        np.testing.assert_array_equal(engine.run(PairsPass(6)).sums["pairs"], expected)


def test_stored_rows_of_rows_follow_windows_and_selections():
    corpus = sequences(16)
    held = Selection(0.5, heldout=True, seed=3)
    with open_engine(corpus) as engine:
        stored = engine.run(NumberPass(6)).rows
        assert stored["value"].axis == "rows"
        found = engine.run(SumPass(6), stored).sums
        assert (found["difference"], found["n"]) == (0.0, corpus.n_rows)
        found = engine.run(SumPass(6, held), stored).sums
        sizes = np.diff(corpus._starts)[held.mask(0, corpus.n_documents)]
        assert (found["difference"], found["n"]) == (0.0, sizes.sum())
        assert 0 < sizes.sum() < corpus.n_rows
