"""Moments of pairs and triples of leaves, in one pass and in two, beside sums over all rows."""

from functools import partial

import numpy as np
import pytest
from helpers import WeightedRows, peak_bytes
from numpy.testing import assert_allclose
from scipy.sparse import csr_array

from distmom.corpus import RowCorpus
from distmom.engine import open_engine
from distmom.moments.rows.trees import TreeMomentsPass, tree_moments

WIDTHS, LEAVES = (3, 1, 4, 2), ((0, 1, 2), (3, 1, 0))
CUTS = [slice(0, 3), slice(3, 4), slice(4, 8), slice(8, 10)]
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(70, 10)) * (RNG.random((70, 10)) < 0.6)
WEIGHTS = RNG.uniform(0.5, 2.0, 70)
AVERAGES = np.column_stack([RNG.normal(size=10), RNG.uniform(0.5, 2.0, 10)])


def corpus_of(kind):
    if kind == "weighted":
        return WeightedRows(ROWS, WEIGHTS, shard_rows=16)
    return RowCorpus(csr_array(ROWS) if kind == "sparse" else ROWS, shard_rows=16)


@pytest.mark.parametrize("kind", ["dense", "sparse", "weighted"])
def test_moments_in_one_pass_and_in_two_are_averages_over_rows(kind):
    own = WEIGHTS if kind == "weighted" else np.ones(len(ROWS))
    own = own / own.sum()
    z = (ROWS - AVERAGES[:, 0]) * AVERAGES[:, 1]
    make = partial(TreeMomentsPass, 10, widths=WIDTHS, averages=AVERAGES)
    both, pairs = make(leaves=LEAVES), make()
    triples = make(leaves=LEAVES, with_pairs=False, n_products=12)
    assert [each.name for each in (both, pairs, triples)] == ["moments", "pairs", "triples"]
    assert set(pairs.specs()) == {"means", "pairs", "sampled", "mass"}
    assert set(triples.specs()) == {"triples_0", "triples_1", "mass"}
    with open_engine(corpus_of(kind)) as engine:
        one, first, second = (engine.run(each).sums for each in (both, pairs, triples))
    for sums in (one, {**first, **second}):
        found = tree_moments(sums, WIDTHS, LEAVES)
        assert_allclose(found.means, own @ z, atol=1e-12)
        assert_allclose(found.pairs, (z * own[:, None]).T @ z, atol=1e-12)
        for each, (a, b, c) in zip(found.triples, LEAVES, strict=True):
            expected = np.einsum("n,na,nb,nc->abc", own, *(z[:, CUTS[leaf]] for leaf in (a, b, c)))
            assert_allclose(each, expected, atol=1e-12)


@pytest.mark.parametrize("options", [{"leaves": ((0, 1, 2), (1, 2, 3))}, {}, {"with_pairs": False}])
def test_memory_stays_within_the_plan(options):
    widths, n = (30, 40, 20, 10), 3000
    if options.get("with_pairs") is False:
        options = {**options, "leaves": ((0, 1, 2), (3, 2, 1)), "n_products": 1200}
    block = RowCorpus(np.random.default_rng(0).normal(size=(n, 100)), shard_rows=n).read_shard(0)
    pass_ = TreeMomentsPass(100, widths=widths, averages=np.tile([0.0, 1.0], (100, 1)), **options)
    sums = pass_.zero()
    most = 1.05 * pass_.working_bytes(n) + (1 << 16)
    assert peak_bytes(lambda: pass_.add(sums, block, {}), most) < most


def test_a_plan_with_wider_leaves_holds_for_narrower_ones():
    wide = TreeMomentsPass(10, widths=WIDTHS, leaves=((2, 0, 3), (2, 0, 3)), with_pairs=False, n_products=12)
    for leaves in (LEAVES, ((3, 1, 0), (3, 1, 2))):
        narrow = TreeMomentsPass(10, widths=WIDTHS, leaves=leaves, with_pairs=False, n_products=12)
        assert narrow.piece_rows == wide.piece_rows
        for n in (1, 100, 100_000):
            assert narrow.working_bytes(n) <= wide.working_bytes(n)
        assert narrow.finish_bytes <= wide.finish_bytes
