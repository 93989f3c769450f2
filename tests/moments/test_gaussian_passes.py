"""Passes of mixtures of spherical Gaussians against their definitions, and their memory against the plan."""

import numpy as np
import pytest
from helpers import WeightedRows, peak_bytes
from numpy.testing import assert_allclose

from distmom.corpus import RowCorpus
from distmom.engine import Columns, merge
from distmom.models.gaussian.posterior import Gaussians, RowAssignPass, RowEMPass
from distmom.moments.rows.gaussian import RowCovariancePass, RowMomentsPass, RowSketchPass, row_moments

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 7)) + 3.0
WEIGHTS = RNG.uniform(size=300)
Q = np.linalg.qr(RNG.normal(size=(7, 4)))[0]
ORIGIN = RNG.normal(size=(7, 1))


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    """Make blocks consist of several pieces."""
    monkeypatch.setattr("distmom.moments.dense_rows.LEAST_ROWS", 16)
    monkeypatch.setattr("distmom.moments.dense_rows.PIECE_VALUES", 1)


def summed(pass_, weights=None, **options):
    corpus = RowCorpus(X, **options) if weights is None else WeightedRows(X, weights, **options)
    parts = []
    for index in range(len(corpus.shards)):
        parts.append(pass_.zero())
        pass_.add(parts[-1], corpus.read_shard(index), {})
    total = merge([{k: v.dense() if hasattr(v, "dense") else v for k, v in part.items()} for part in parts])
    return corpus, total


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("lengths", [None, [10, 250, 40]])
def test_moments_are_those_of_their_definition(weights, lengths):
    if weights is not None and lengths is not None:
        own, weights = np.repeat([0.5, 2.0, 1.0], lengths), np.array([0.5, 2.0, 1.0])
    else:
        own = np.ones(300) if weights is None else weights
    kept = np.array([0, 1, 2]) if lengths else np.array([3, 70, 299])
    pass_ = RowMomentsPass(7, basis=Q, origin=ORIGIN, rank=4, kept=kept, n_kept=len(kept))
    _, sums = summed(pass_, weights, lengths=lengths, shard_rows=64)
    centred = X - ORIGIN[:, 0]
    Y, s, w = centred @ Q, (centred**2).sum(axis=1), own / own.sum()
    found = row_moments(sums)
    mean = w @ Y
    assert_allclose(found.second, (Y * w[:, None]).T @ Y - np.outer(mean, mean), atol=1e-12)
    assert_allclose(found.third, np.einsum("n,ni,nj,nk->ijk", w, Y, Y, Y), atol=1e-11)
    assert_allclose(found.norms, (w * s) @ Y, atol=1e-11)
    assert found.trace == pytest.approx(w @ s - mean @ mean)
    assert found.n_sampled == (300 if weights is None else 0)
    first = np.array([0, 10, 260]) if lengths else kept
    assert_allclose(found.kept, np.c_[Y, s][first], atol=1e-12)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_products_are_those_of_the_second_moment(weights):
    w = np.ones(300) if weights is None else weights
    _, sums = summed(RowCovariancePass(7), weights, shard_rows=64)
    assert_allclose(sums["second"], (X * w[:, None]).T @ X)
    assert_allclose(sums["mean"], w @ X)
    _, sums = summed(RowSketchPass(7, n_columns=4, basis=Q), weights, shard_rows=64)
    assert_allclose(sums["sketch"], (X * w[:, None]).T @ X @ Q)
    assert_allclose(sums["mean"][:, 0], w @ X)
    _, sums = summed(RowSketchPass(7, n_columns=4, basis=Q, origin=ORIGIN), weights, shard_rows=64)
    centred = X - ORIGIN[:, 0]
    assert_allclose(sums["sketch"], (centred * w[:, None]).T @ centred @ Q)
    assert float(sums["squares"]) == pytest.approx(w @ (centred**2).sum(axis=1))
    assert float(sums["mass"]) == pytest.approx(w.sum())


def test_a_basis_in_slabs_gives_the_same_moments():
    passes = [
        RowMomentsPass(7, basis=basis, origin=ORIGIN, rank=4)
        for basis in (Q, Columns((np.ascontiguousarray(Q[:, :3]), np.ascontiguousarray(Q[:, 3:]))))
    ]
    whole, slabs = (summed(pass_)[1] for pass_ in passes)
    for name in ("yyy", "ys", "yy", "s"):
        assert_allclose(slabs[name], whole[name])


def test_the_test_matrix_does_not_depend_on_shards():
    whole = summed(RowSketchPass(7, n_columns=4, seed=5))[1]["sketch"]
    assert_allclose(summed(RowSketchPass(7, n_columns=4, seed=5), shard_rows=64)[1]["sketch"], whole)
    assert np.linalg.matrix_rank(whole) == 4


@pytest.mark.parametrize("d", [40, 3000])
def test_a_block_needs_the_memory_that_is_planned(d, monkeypatch):
    monkeypatch.undo()
    n, k, r = 6000, 12, 16
    rows = np.random.default_rng(0).normal(size=(n, d))
    basis, origin = np.linalg.qr(rows[:r].T)[0], np.zeros((d, 1))
    of = Gaussians(origin, rows[:k], np.full(k, 1 / k), np.ones(k))
    block = RowCorpus(rows, shard_rows=n).read_shard(0)
    passes = [
        RowSketchPass(d, n_columns=r),
        RowSketchPass(d, n_columns=r, basis=basis, origin=origin),
        RowMomentsPass(d, basis=basis, origin=origin, rank=r),
        RowMomentsPass(d, basis=basis, origin=origin, rank=r, third=False),
        RowEMPass(d, of=of, n_components=k),
        RowAssignPass(d, of=of, n_components=k),
    ]
    if d < 100:
        passes.append(RowCovariancePass(d))
    for pass_ in passes:
        sums = pass_.zero()
        most = 1.05 * (pass_.working_bytes(n) + pass_.mapped_bytes) + (1 << 16)
        assert peak_bytes(lambda pass_=pass_, sums=sums: pass_.add(sums, block, {}), most) < most, pass_.name
