"""Passes over the centred and scaled presence of words against dense algebra, and memory within the plan."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import WeightedCorpus, peak_bytes
from numpy.testing import assert_allclose
from scipy.sparse import random_array

from distmom.corpus import MemoryCorpus
from distmom.engine import Columns
from distmom.moments.documents.presence import PresenceMomentsPass, PresenceSketchPass
from distmom.moments.kernels import fill_symmetric

RNG = np.random.default_rng(0)
X = RNG.poisson(0.8, (300, 9))
PRESENT = (X > 0).astype(float)
OWN = RNG.uniform(size=300)
SCALE, MEAN = RNG.uniform(0.5, 3.0, (9, 1)), RNG.uniform(size=(9, 1))


def summed(pass_, own=None):
    options = {"shard_documents": 64}
    corpus = MemoryCorpus(X, **options) if own is None else WeightedCorpus(X, X[:, :1], own, **options)
    sums = pass_.zero()
    for index in range(len(corpus.shards)):
        assert pass_.add(sums, corpus.read_shard(index), {}) is None
    return sums


@pytest.mark.parametrize("own", [None, OWN])
@pytest.mark.parametrize("origin", [None, MEAN])
def test_products_are_those_of_the_second_moment(origin, own):
    rows = PRESENT - (0.0 if origin is None else MEAN.T)
    weights = np.ones(300) if own is None else own
    pass_ = PresenceSketchPass(9, n_columns=4, seed=3, scale=SCALE, origin=origin)
    basis = RNG.normal(size=(9, 4))
    for each in (pass_, replace(pass_, basis=basis)):
        sums = summed(each, own)
        expected = (rows.T * weights) @ rows @ each.matrix()
        assert_allclose(sums["sketch"].single, expected, rtol=1e-10, atol=1e-10)
        assert float(sums["squares"]) == pytest.approx(weights @ ((rows * SCALE.T) ** 2).sum(axis=1))
        assert float(sums["mass"]) == pytest.approx(weights.sum())
        assert ("mean" in sums) == (origin is None)
        if origin is None:
            assert_allclose(sums["mean"].single[:, 0], weights @ PRESENT, rtol=1e-12)


@pytest.mark.parametrize("own", [None, OWN])
def test_moments_are_those_of_centred_and_scaled_rows(own):
    weights = np.ones(300) if own is None else own
    Q = np.linalg.qr(RNG.normal(size=(9, 3)))[0]
    pass_ = PresenceMomentsPass(9, basis=SCALE * Q, scale=SCALE, origin=MEAN, rank=3)
    z = (PRESENT - MEAN.T) * SCALE.T
    y, s = z @ Q, (z**2).sum(axis=1)
    slabs = Columns((np.ascontiguousarray(SCALE * Q[:, :1]), np.ascontiguousarray(SCALE * Q[:, 1:])))
    for each in (pass_, replace(pass_, basis=slabs)):
        sums = summed(each, own)
        assert_allclose(sums["y"], weights @ y, rtol=1e-10, atol=1e-10)
        assert_allclose(sums["yy"], (y.T * weights) @ y, rtol=1e-10)
        third = np.einsum("i,ia,ib,ic->abc", weights, y, y, y)
        assert_allclose(fill_symmetric(np.array(sums["yyy"])), third, rtol=1e-9, atol=1e-9)
        assert_allclose(sums["ys"], (weights * s) @ y, rtol=1e-10, atol=1e-9)
        assert float(sums["s"]) == pytest.approx(weights @ s)
        assert float(sums["sampled"]) == (300 if own is None else 0)


def test_a_block_needs_no_more_memory_than_planned():
    n, d = 3000, 20_000
    words = random_array((n, d), density=0.002, rng=1, format="csr")
    words.data[:] = 1
    block = MemoryCorpus(words.astype(int), shard_documents=n).read_shard(0)
    scale, mean, basis = np.ones((d, 1)), np.full((d, 1), 0.002), RNG.normal(size=(d, 20))
    for pass_ in (
        PresenceSketchPass(d, n_columns=20, scale=scale),
        PresenceSketchPass(d, n_columns=20, scale=scale, origin=mean, basis=basis),
        PresenceMomentsPass(d, basis=basis, scale=scale, origin=mean, rank=20),
    ):
        sums = pass_.zero()
        most = 1.05 * (pass_.working_bytes(n) + pass_.mapped_bytes) + 6 * block.words.indices.nbytes
        assert peak_bytes(lambda pass_=pass_, sums=sums: pass_.add(sums, block, {}), most) < most, pass_.name
