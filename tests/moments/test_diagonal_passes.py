"""Passes over rows of independent columns: sums by brute force, and memory within the plan."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import WeightedRows, peak_bytes
from numpy.testing import assert_allclose

from distmom.corpus import RowCorpus
from distmom.engine import Columns
from distmom.models.diagonal.posterior import (
    DiagonalAssignPass,
    DiagonalEMPass,
    Diagonals,
    Posterior,
    maximised,
)
from distmom.moments.rows.diagonal import (
    ColumnMomentsPass,
    ColumnProjectionPass,
    ColumnSketchPass,
    ViewSquaresPass,
    column_moments,
)
from distmom.moments.rows.gaussian import RowMomentsPass, RowSketchPass
from distmom.moments.rows.multiview import MultiViewColumnsPass, MultiViewMomentsPass, MultiViewSketchPass
from distmom.spectral.posteriors import posterior_of

WIDTHS = (5, 4, 4)
#: parameters that are stacked for several mixtures
STACKED = ("means", "variances", "weights")


def rows_of(n=300, d=13, seed=0):
    rng = np.random.default_rng(seed)
    return 3.0 + rng.gamma(2.0, 1.0, (n, d)) * rng.uniform(0.5, 2.0, d), rng.uniform(0.5, 2.0, n)


def whole(corpus, pass_):
    """Return the sums of a pass over all shards."""
    sums = pass_.zero()
    for i in range(len(corpus.shards)):
        pass_.add(sums, corpus.read_shard(i), {})
    return sums


def random_units(X, seed=1):
    """Return means and factors that are only near those of the columns."""
    rng = np.random.default_rng(seed)
    factors = rng.uniform(0.5, 2.0, X.shape[1]) / X.std(axis=0)
    return np.column_stack([X.mean(axis=0) + 0.1 * rng.normal(size=X.shape[1]), factors])


def diagonals(X, k=3, seed=0):
    rng = np.random.default_rng(seed)
    d = X.shape[1]
    return Diagonals(
        random_units(X), rng.normal(size=(k, d)), rng.uniform(0.5, 2.0, (k, d)), rng.dirichlet(np.ones(k))
    )


def test_moments_are_central_and_of_columns_of_variance_one():
    X, weights = rows_of()
    X[:, 6] = 8.0
    pass_ = ColumnMomentsPass(
        13, units=np.where(np.arange(13)[:, None] == 6, [[8.0, 0.1]], random_units(rows_of()[0]))
    )
    found = column_moments(whole(WeightedRows(X, weights, shard_rows=64), pass_))
    p = weights / weights.sum()
    centred = X - p @ X
    spread = np.sqrt(p @ centred**2)
    z = np.where(np.arange(13) == 6, 0.0, centred / np.where(spread > 0.0, spread, 1.0))
    assert_allclose(found.second, (z * p[:, None]).T @ z, atol=1e-12)
    assert_allclose(found.third, np.einsum("n,ni,nj,nk->ijk", p, z, z, z), atol=1e-11)
    assert_allclose(found.spreads, spread * pass_.units[:, 1], atol=1e-12)
    assert found.spreads[6] == 0.0
    assert_allclose(found.shifts, (p @ X - pass_.units[:, 0]) * pass_.units[:, 1], atol=1e-12)


def test_passes_over_views_in_an_order_are_those_over_permuted_and_scaled_columns():
    X, weights = rows_of()
    rng = np.random.default_rng(2)
    order, units = rng.permutation(13), random_units(X)
    averages, basis = np.column_stack([np.zeros(13), np.ones(13)]), rng.normal(size=(13, 3))
    moved = ((X - units[:, 0]) * units[:, 1])[:, order]
    given, plain = (WeightedRows(rows, weights, shard_rows=64) for rows in (X, moved))
    fields = {"widths": WIDTHS, "averages": averages}
    for pass_ in (
        MultiViewSketchPass(13, **fields, n_columns=4, seed=1),
        MultiViewSketchPass(13, **fields, n_columns=3, basis=basis),
        MultiViewMomentsPass(13, **fields, basis=basis, rank=3),
    ):
        in_order = type(pass_)(**{**vars(pass_), "order": order, "units": units[order]})
        found, expected = whole(given, in_order), whole(plain, pass_)
        for name, value in expected.items():
            sums = (found[name].single, value.single) if name == "sketch" else (found[name], value)
            assert_allclose(*sums, rtol=1e-9, atol=1e-9)


def test_squares_are_multiplied_with_scores_of_the_other_views():
    X, weights = rows_of()
    rng = np.random.default_rng(3)
    order, units, basis = rng.permutation(13), random_units(X), rng.normal(size=(13, 3))
    coefficients, constants = rng.normal(size=(3, 3, 3, 2)), rng.normal(size=2)
    coefficients[np.arange(3), np.arange(3)] = 0.0
    pass_ = ViewSquaresPass(
        13, widths=WIDTHS, order=order, units=units[order], basis=basis, rank=3, n_components=2,
        averages=np.column_stack([np.zeros(13), np.ones(13)]), coefficients=coefficients, constants=constants,
    )  # fmt: skip
    sums = whole(WeightedRows(X, weights, shard_rows=64), pass_)
    z = ((X - units[:, 0]) * units[:, 1])[:, order]
    cuts = (slice(0, 5), slice(5, 9), slice(9, 13))
    y = [z[:, cut] @ basis[cut] for cut in cuts]
    for t, cut in enumerate(cuts):
        score = constants + sum(y[s] @ coefficients[t, s] for s in range(3) if s != t)
        assert_allclose(sums["squares"].single[cut], (z[:, cut] ** 2 * weights[:, None]).T @ score, rtol=1e-9)
    assert_allclose(sums["first"].single[:, 0], weights @ z, rtol=1e-9)
    assert float(sums["mass"]) == pytest.approx(weights.sum())


def test_a_projection_holds_one_slab_and_one_piece_of_rows():
    d, n = 3000, 200
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    block, slab = RowCorpus(X, shard_rows=n).read_shard(0), np.random.default_rng(1).normal(size=(d, 2))
    fields = {"rank": 160, "units": random_units(X), "origin": np.ones((d, 1))}
    pass_ = ColumnProjectionPass(d, basis=Columns((slab,) * 80), **fields)
    sums = pass_.zero()
    most = 1.05 * pass_.working_bytes(n) + (1 << 16)
    assert peak_bytes(lambda: pass_.add(sums, block, {}), most) < most


def test_passes_over_all_columns_are_those_over_centred_and_scaled_rows():
    X, weights = rows_of()
    rng = np.random.default_rng(4)
    units, origin, basis = random_units(X), 0.1 * rng.normal(size=(13, 1)), rng.normal(size=(13, 3))
    given, moved = (
        WeightedRows(rows, weights, shard_rows=64) for rows in (X, (X - units[:, 0]) * units[:, 1])
    )
    slabs = Columns((np.ascontiguousarray(basis[:, :1]), np.ascontiguousarray(basis[:, 1:])))
    for own, plain in (
        (ColumnSketchPass(13, n_columns=4, seed=1, units=units), RowSketchPass(13, n_columns=4, seed=1)),
        (
            ColumnSketchPass(13, n_columns=3, basis=basis, units=units, origin=origin),
            RowSketchPass(13, n_columns=3, basis=basis, origin=origin),
        ),
        *(
            (
                ColumnProjectionPass(13, basis=each, rank=3, units=units, origin=origin),
                RowMomentsPass(13, basis=each, rank=3, origin=origin),
            )
            for each in (basis, slabs)
        ),
    ):
        found, expected = whole(given, own), whole(moved, plain)
        assert set(found) == set(expected)
        for name, value in expected.items():
            sums = (found[name].single, value.single) if name in ("sketch", "mean") else (found[name], value)
            assert_allclose(*sums, rtol=1e-9, atol=1e-9)


def test_an_em_pass_adds_up_responsibilities_of_weighted_rows():
    X, weights = rows_of()
    of = diagonals(X)
    sums = whole(WeightedRows(X, weights, shard_rows=64), DiagonalEMPass(13, of=of, n_components=3))
    p, density = posterior_of(X, Posterior(of), len(of.weights))
    z, own = (X - of.units[:, 0]) * of.units[:, 1], p * weights[:, None]
    assert_allclose(sums["p"], own.sum(axis=0), rtol=1e-10)
    assert_allclose(sums["pz"], own.T @ z, rtol=1e-9, atol=1e-9)
    assert_allclose(sums["pzz"], own.T @ z**2, rtol=1e-9)
    assert sums["log_likelihood"] == pytest.approx([weights @ density])


def test_an_em_pass_adds_up_the_sums_of_stacked_mixtures():
    X, weights = rows_of()
    corpus = WeightedRows(X, weights, shard_rows=64)
    one = diagonals(X)
    other = replace(
        one, means=one.means[::-1] + 0.3, variances=2.0 * one.variances, weights=one.weights[::-1]
    )
    both = replace(
        one, **{name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in STACKED}
    )
    found = whole(corpus, DiagonalEMPass(13, of=both, n_components=3, n_mixtures=2))
    apart = [whole(corpus, DiagonalEMPass(13, of=of, n_components=3)) for of in (one, other)]
    for name in ("p", "pz", "pzz", "log_likelihood"):
        assert_allclose(found[name], np.concatenate([each[name] for each in apart]), rtol=1e-12)
    after, likelihoods = maximised(found, both, 1e-6)
    for i, (of, own) in enumerate(zip((one, other), apart, strict=True)):
        expected, (likelihood,) = maximised(own, of, 1e-6)
        for name in STACKED:
            assert_allclose(getattr(after, name)[3 * i : 3 * i + 3], getattr(expected, name), rtol=1e-12)
        assert likelihoods[i] == pytest.approx(likelihood)


@pytest.mark.parametrize("d", [48, 3000])
@pytest.mark.parametrize("n", [3000, 700])
def test_a_block_needs_no_more_memory_than_planned(d, n):
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    block = RowCorpus(X, shard_rows=n).read_shard(0)
    rng = np.random.default_rng(1)
    widths = (d // 3,) * 3
    fields = {
        "widths": widths, "order": rng.permutation(d), "units": random_units(X),
        "averages": np.column_stack([np.zeros(d), np.ones(d)]),
    }  # fmt: skip
    basis, of = rng.normal(size=(d, 8)), diagonals(X)
    passes = [
        MultiViewColumnsPass(d, widths=(d,)),
        MultiViewSketchPass(d, **fields, n_columns=8, seed=1),
        MultiViewSketchPass(d, **fields, n_columns=8, basis=basis),
        MultiViewMomentsPass(d, **fields, basis=basis, rank=8),
        ViewSquaresPass(
            d, **fields, basis=basis, rank=8, n_components=3, coefficients=rng.normal(size=(3, 3, 8, 3)),
            constants=np.ones(3),
        ),
        ColumnSketchPass(d, n_columns=8, seed=1, units=fields["units"]),
        ColumnSketchPass(d, n_columns=8, basis=basis, units=fields["units"], origin=np.ones((d, 1))),
        ColumnProjectionPass(d, basis=basis, rank=8, units=fields["units"], origin=np.ones((d, 1))),
        DiagonalEMPass(d, of=of, n_components=3),
        DiagonalEMPass(d, of=diagonals(X, 40), n_components=20, n_mixtures=2),
        DiagonalAssignPass(d, of=of, n_components=3),
    ]  # fmt: skip
    if d < 64:
        passes.append(ColumnMomentsPass(d, units=fields["units"]))
    for pass_ in passes:
        sums = pass_.zero()
        most = 1.05 * (pass_.working_bytes(n) + pass_.mapped_bytes) + (1 << 16)
        assert peak_bytes(lambda pass_=pass_, sums=sums: pass_.add(sums, block, {}), most) < most, pass_.name
