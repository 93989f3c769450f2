"""Contractions of the third moment of rows against the moment itself, and their memory against the plan."""

from math import prod

import numpy as np
import pytest
from helpers import WeightedRows, peak_bytes
from numpy.testing import assert_allclose
from scipy import sparse

from distmom.corpus import RowCorpus
from distmom.engine import Columns, merge
from distmom.linalg import slice_directions, symmetrise
from distmom.moments.rows.contracted import (
    RowContractionsPass,
    ViewContractionsPass,
    row_contraction,
    view_contraction,
)
from distmom.moments.rows.gaussian import RowMomentsPass, row_moments
from distmom.moments.rows.multiview import MultiViewMomentsPass
from distmom.moments.three_views import group_moments, group_pairs

N, D, R, K = 300, 31, 14, 12
RNG = np.random.default_rng(0)
X = RNG.gamma(2.0, size=(N, D))
WEIGHTS = RNG.uniform(size=N)
Q = np.linalg.qr(RNG.normal(size=(D, R)))[0]
ORIGIN = RNG.normal(size=(D, 1))
#: one whitener per view; for rows, its columns must be orthogonal but for the constant coordinate
WHITENERS = RNG.normal(size=(3, R + 1, K))
EXTENDED = np.zeros((R + 1, K))
EXTENDED[1:, :-1] = np.linalg.qr(RNG.normal(size=(R, K - 1)))[0] * RNG.uniform(0.5, 2.0, K - 1)
EXTENDED[0, -1] = 1.0
VECTORS = np.linalg.qr(RNG.normal(size=(K, K)))[0]
WIDTHS = (14, 9, 8)
AVERAGES = np.column_stack([RNG.normal(size=D), np.ones(D)])


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    """Make blocks consist of several pieces."""
    monkeypatch.setattr("distmom.moments.dense_rows.LEAST_ROWS", 16)
    monkeypatch.setattr("distmom.moments.dense_rows.PIECE_VALUES", 1)


def summed(pass_, weights=None, rows=X, shard_rows=64):
    options = {"shard_rows": shard_rows}
    corpus = RowCorpus(rows, **options) if weights is None else WeightedRows(rows, weights, **options)
    parts = []
    for index in range(len(corpus.shards)):
        parts.append(pass_.zero())
        pass_.add(parts[-1], corpus.read_shard(index), {})
    return merge(parts)


def contractions(T, vectors):
    return T @ vectors, np.einsum("abc,bl,cl->al", T, vectors, vectors)


def row_pass(vectors, steps, basis=Q, d=D, r=R, k=K, **options):
    return RowContractionsPass(
        d, basis=basis, rank=r, vectors=vectors, n_whitened=k, n_vectors=vectors.shape[1], steps=steps,
        **{"origin": ORIGIN, "whitener": EXTENDED, **options},
    )  # fmt: skip


def view_pass(vectors, steps, basis=Q):
    return ViewContractionsPass(
        D, widths=WIDTHS, averages=AVERAGES, basis=basis, rank=R, whiteners=WHITENERS, vectors=vectors,
        n_whitened=K, n_vectors=vectors.shape[1], steps=steps,
    )  # fmt: skip


def moments_of_rows(weights):
    """The moments of extended whitened rows by the ordinary pass, and the sums of squared distances."""
    sums = summed(RowMomentsPass(D, basis=np.eye(D), origin=ORIGIN, rank=D), weights)
    found = row_moments(sums)
    mean = np.asarray(sums["y"]) / float(sums["mass"])
    inner = Q @ EXTENDED[1:]
    T = np.einsum("abc,ai,bj,cl->ijl", found.third, inner, inner, inner, optimize=True)
    second = inner.T @ (found.second + np.outer(mean, mean)) @ inner
    # The coordinate that is constantly one, which is the last.
    T[-1], T[:, -1], T[:, :, -1] = second, second, second
    T[-1, -1], T[-1, :, -1], T[:, -1, -1] = (mean @ inner,) * 3
    T[-1, -1, -1] = 1.0
    U = Q @ np.linalg.svd(EXTENDED[1:, :-1], full_matrices=False)[0]
    rest = np.eye(D) - U @ U.T
    beyond = np.einsum("abc,ai,bc->i", found.third, inner, rest, optimize=True)
    beyond[-1] = np.trace(rest @ (found.second + np.outer(mean, mean)))
    return T, beyond


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_contractions_of_rows_are_those_of_the_third_moment(weights):
    T, beyond = moments_of_rows(weights)
    directions = slice_directions(K)[:, :5]
    scale = np.abs(T).max()
    for vectors in (directions, VECTORS):
        slices, steps = contractions(T, vectors)
        sums = summed(row_pass(vectors, False), weights)
        assert_allclose(row_contraction(sums), slices, atol=1e-12 * scale)
        assert_allclose(np.asarray(sums["ys"]) / float(sums["mass"]), beyond, atol=1e-12 * scale)
        found = row_contraction(summed(row_pass(vectors, True), weights))
        assert_allclose(found, steps, atol=1e-12 * scale)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_contractions_of_views_are_those_of_the_third_moment(weights, kind):
    rows = X if kind == "dense" else sparse.csr_matrix(X)
    sums = summed(MultiViewMomentsPass(D, widths=WIDTHS, averages=AVERAGES, basis=Q, rank=R), weights)
    moments = group_moments(sums)
    means, pairs = moments.means, moments.pairs
    constants, inner = WHITENERS[:, 0], WHITENERS[:, 1:]
    T = np.einsum("abc,ai,bj,cl->ijl", moments.triples, *inner, optimize=True)
    for (s, t), u, order in (((0, 1), 2, "ij,l->ijl"), ((0, 2), 1, "il,j->ijl"), ((1, 2), 0, "jl,i->ijl")):
        pair = inner[s].T @ pairs[(s + t) - 1] @ inner[t]
        T += np.einsum(order, pair, constants[u])
    own = [mean @ each for mean, each in zip(means, inner, strict=True)]
    for t in range(3):
        factors = [own[s] if s == t else constants[s] for s in range(3)]
        T += np.einsum("i,j,l->ijl", *factors)
    T = symmetrise(T + np.einsum("i,j,l->ijl", *constants))
    for vectors in (slice_directions(K)[:, :5], VECTORS):
        slices, steps = contractions(T, vectors)
        scale = np.abs(T).max()
        found = view_contraction(summed(view_pass(vectors, False), weights, rows))
        assert_allclose(found, slices, atol=1e-12 * scale)
        found = view_contraction(summed(view_pass(vectors, True), weights, rows))
        assert_allclose(found, steps, atol=1e-12 * scale)


def test_pairs_of_views_are_the_same_without_the_third_moment():
    fields = {"widths": WIDTHS, "averages": AVERAGES, "basis": Q, "rank": R}
    whole = summed(MultiViewMomentsPass(D, **fields, with_own=True))
    pairs = summed(MultiViewMomentsPass(D, **fields, with_own=True, third=False))
    assert set(whole) - set(pairs) == {"triples"}
    for name, value in pairs.items():
        assert (np.asarray(value) == np.asarray(whole[name])).all()
    assert (group_pairs(pairs).pairs == group_moments(whole).pairs).all()


@pytest.mark.parametrize("steps", [False, True])
def test_contractions_do_not_depend_on_slabs_of_the_basis_and_on_shards(steps):
    slabs = Columns((Q[:, :5], Q[:, 5:]))
    for make, finish in ((row_pass, row_contraction), (view_pass, view_contraction)):
        one = finish(summed(make(VECTORS, steps)))
        scale = np.abs(one).max()
        assert_allclose(finish(summed(make(VECTORS, steps, slabs))), one, atol=1e-13 * scale)
        assert_allclose(finish(summed(make(VECTORS, steps), shard_rows=17)), one, atol=1e-13 * scale)
        assert (finish(summed(make(VECTORS, steps))) == one).all()


@pytest.mark.parametrize("d", [60, 1500])
def test_a_block_needs_the_memory_that_is_planned_which_has_no_cube_of_the_rank(d, monkeypatch):
    monkeypatch.undo()
    n, r = 5000, 40
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, d))
    basis, origin = np.linalg.qr(rng.normal(size=(d, r)))[0], np.zeros((d, 1))
    directions, vectors = slice_directions(r), np.eye(r)
    block = RowCorpus(rows, shard_rows=n).read_shard(0)
    fields = {"origin": origin, "whitener": rng.normal(size=(r + 1, r))}
    widths, averages = (d - 40, 20, 20), np.zeros((d, 2))
    views = ViewContractionsPass(
        d, widths=widths, averages=averages, basis=basis, rank=r, n_whitened=r,
        whiteners=rng.normal(size=(3, r + 1, r)),
    )  # fmt: skip
    for steps, given in ((False, directions), (True, vectors)):
        m = given.shape[1]
        for pass_ in (
            row_pass(given, steps, basis, d, r, r, **fields),
            ViewContractionsPass(**{**vars(views), "vectors": given, "n_vectors": m, "steps": steps}),
        ):
            sums = pass_.zero()
            most = 1.05 * (pass_.working_bytes(n) + pass_.mapped_bytes) + (1 << 16)
            assert peak_bytes(lambda pass_=pass_, sums=sums: pass_.add(sums, block, {}), most) < most
    # With ten times as many components, sums and the memory to finish them are 100 times as large, and for slices
    # grow by a logarithm besides; with a cube they would be 1000 times as large.
    for kind in (RowContractionsPass, ViewContractionsPass):
        for steps in (False, True):
            sizes = []
            for k in (100, 1000):
                m = k if steps else slice_directions(k).shape[1]
                pass_ = kind(10 * k, rank=k, n_whitened=k, n_vectors=m, steps=steps)
                sizes.append((sum(prod(spec.shape) for spec in pass_.specs().values()), pass_.finish_bytes))
            for small, large in zip(*sizes, strict=True):
                assert large < (101 if steps else 160) * small
