from itertools import permutations

import numpy as np
import pytest
from helpers import WeightedViews
from numpy.testing import assert_allclose
from scipy.sparse import csr_array

from distmom.corpus import ViewCorpus
from distmom.engine import StoredColumns, Sums, TallResult, TallSum, merge, open_engine
from distmom.moments.counter import uniforms
from distmom.moments.documents.dirichlet import fourth_moment, third_moment
from distmom.moments.sketching import omega, omega_key
from distmom.moments.views.fourth import ViewFourthPass, pair_directions, view_fourth
from distmom.moments.views.groups import N_PARTS, contrasts
from distmom.moments.views.moments import ViewMeanPass, ViewMomentsPass, ViewSketchPass, view_moments
from distmom.simulate.views import Views

RNG = np.random.default_rng(0)
SIZES = [4, 2, 5, 3, 1, 6, 4, 3, 5, 2]
D, R, K, M = 5, 4, 3, 3
X = 1.0 + RNG.normal(size=(sum(SIZES), D)) * (RNG.random((sum(SIZES), D)) < 0.7)
GROUPS = np.repeat(np.arange(len(SIZES)), SIZES)
ORIGIN, BASIS, WHITENER = RNG.normal(size=D), RNG.normal(size=(D, R)), RNG.normal(size=(R, K))
LEFT, RIGHT = RNG.normal(size=(K, M)), RNG.normal(size=(K, M))


def brute(order, min_views, origin, weights=None):
    """Average over groups of averages over all ordered tuples of distinct views."""
    total, mass = np.zeros((D,) * order), 0.0
    for group, own in enumerate(np.ones(len(SIZES)) if weights is None else weights):
        views = X[group == GROUPS] - origin
        if len(views) < min_views:
            continue
        tuples = list(permutations(range(len(views)), order))
        for chosen in tuples:
            product = np.ones(())
            for v in chosen:
                product = np.multiply.outer(product, views[v])
            total += own * product / len(tuples)
        mass += own
    return total / mass


def corpus_of(kind, shard_rows=9):
    if kind == "weighted":
        return WeightedViews(Views(X, GROUPS, np.zeros(0), WEIGHTS), shard_rows=shard_rows)
    return ViewCorpus(csr_array(X) if kind == "sparse" else X, GROUPS, shard_rows=shard_rows)


WEIGHTS = RNG.uniform(0.5, 2.0, len(SIZES))


def tall(engine, pass_):
    found = {}

    def finish(tallies):
        for name, value in tallies.tall.items():
            found[name] = value.read_rows(slice(0, D))
        found.update(tallies.sums)
        return TallResult({}, {})

    engine.run(pass_, finish=finish)
    return found


@pytest.mark.parametrize("kind", ["dense", "sparse", "weighted"])
@pytest.mark.parametrize("centred", [False, True])
def test_moments_are_those_of_all_tuples_of_distinct_views(kind, centred):
    own = WEIGHTS if kind == "weighted" else None
    origin, at = (ORIGIN, ORIGIN) if centred else (None, np.zeros(D))
    with open_engine(corpus_of(kind)) as engine:
        mean = engine.run(ViewMeanPass(D, min_views=3)).sums
        moments = ViewMomentsPass(D, min_views=3, origin=origin, basis=BASIS, rank=R)
        found, parts = view_moments(engine.run(moments).sums)
        sketch = tall(engine, ViewSketchPass(D, min_views=3, origin=origin, n_columns=R, basis=BASIS))
        drawn = tall(engine, ViewSketchPass(D, min_views=3, origin=origin, n_columns=2, seed=5))
        fourth = ViewFourthPass(
            D, min_views=4, origin=origin, basis=BASIS, rank=R, whitener=WHITENER, left=LEFT, right=RIGHT,
            n_states=K, n_pairs=M,
        )  # fmt: skip
        contracted, _ = view_fourth(engine.run(fourth).sums)
    e1, e2, e3 = (brute(order, 3, at, own) for order in (1, 2, 3))
    assert mean["groups"].tolist() == [7, 3]
    assert_allclose(mean["mean"] / mean["mass"], brute(1, 3, 0.0, own), atol=1e-14)
    assert_allclose(found.m1, BASIS.T @ e1, atol=1e-13)
    assert_allclose(found.m2, BASIS.T @ e2 @ BASIS, atol=1e-13)
    assert_allclose(found.m3, np.einsum("abc,ai,bj,ck->ijk", e3, BASIS, BASIS, BASIS), atol=1e-12)
    assert_allclose(sketch["sketch"] / sketch["mass"], e2 @ BASIS, atol=1e-13)
    assert_allclose(drawn["sketch"] / drawn["mass"], e2 @ omega(np.arange(D), 2, omega_key(5)), atol=1e-13)
    W = BASIS @ WHITENER
    whole = np.einsum("abcd,ai,bj,ck,dl->ijkl", brute(4, 4, at, own), W, W, W, W)
    assert_allclose(contracted, np.einsum("ijkl,km,lm->ijm", whole, LEFT, RIGHT), rtol=1e-12, atol=1e-11)
    assert len(parts) == (1 if kind == "weighted" else len(set(parts_of(kind))))


def parts_of(kind):
    """Return the part of every group that counts."""
    index = (N_PARTS * uniforms(np.arange(len(SIZES)), 1, seed=0)[:, 0]).astype(int)
    return index[np.array(SIZES) >= 3].tolist()


def test_a_set_origin_does_not_change_central_moments():
    with open_engine(corpus_of("dense")) as engine:
        found = []
        for origin in (None, ORIGIN):
            pass_ = ViewMomentsPass(D, min_views=3, origin=origin, basis=BASIS, rank=R)
            found.append(view_moments(engine.run(pass_).sums)[0])
    central = [third_moment(m.m1, m.m2, m.m3, np.inf) for m in found]
    assert_allclose(central[0], central[1], atol=1e-11)


def test_an_origin_keeps_the_digits_of_views_far_from_zero():
    """The third cumulant of views a million deviations away is that of the views themselves."""
    far = ViewCorpus(X + 1e6, GROUPS)
    with open_engine(far) as engine, open_engine(corpus_of("dense")) as near:
        mean = engine.run(ViewMeanPass(D, min_views=3)).sums
        origin = mean["mean"] / mean["mass"]
        a = view_moments(engine.run(ViewMomentsPass(D, origin=origin, basis=BASIS, rank=R)).sums)[0]
        b = view_moments(near.run(ViewMomentsPass(D, basis=BASIS, rank=R)).sums)[0]
    assert_allclose(third_moment(a.m1, a.m2, a.m3, np.inf), third_moment(b.m1, b.m2, b.m3, np.inf), atol=1e-7)


def test_slabs_of_columns_are_parts_of_the_whole():
    """A scan over some columns gives the sums of a scan over all columns, with and without a basis."""
    slabs = (slice(0, 1), slice(1, R))
    block = corpus_of("dense").read_shard(0)
    for basis in (None, BASIS):
        pass_ = ViewSketchPass(D, n_columns=R, seed=1, basis=basis, origin=ORIGIN)
        found = []
        for part in (pass_, *(pass_.for_columns(i, slabs) for i in range(2))):
            columns = part.columns or slice(0, R)
            sums = Sums(mass=np.zeros(()), sketch=TallSum.zero(D, columns.stop - columns.start))
            part.add(sums, block, {})
            found.append(sums["sketch"].dense())
        assert_allclose(np.concatenate(found[1:], axis=1), found[0], rtol=1e-12, atol=1e-12)
    with open_engine(corpus_of("dense")) as engine:
        stored = StoredColumns((engine.put(BASIS[:, :2]), engine.put(BASIS[:, 2:])))
        of_slabs = tall(engine, ViewSketchPass(D, n_columns=R, basis=stored))["sketch"]
        at_once = tall(engine, ViewSketchPass(D, n_columns=R, basis=BASIS))["sketch"]
    assert_allclose(of_slabs, at_once, rtol=1e-12, atol=1e-12)


def test_merged_shards_are_one():
    """Sums of shards add up to those of one shard, and to those of the shards of two halves."""
    pass_ = ViewMomentsPass(D, basis=BASIS, rank=R)

    def sums(corpus):
        with open_engine(corpus) as engine:
            return Sums({name: np.array(value) for name, value in engine.run(pass_).sums.items()})

    one = sums(corpus_of("dense", 1000))
    assert len(corpus_of("dense", 9).shards) > 3
    for other in (sums(corpus_of("dense", 9)), sums(corpus_of("sparse", 4))):
        for name in one:
            assert_allclose(other[name], one[name], atol=1e-12)
    cut = GROUPS < 4
    # Which part a group is in depends on its place, so that only totals are compared.
    two = merge([sums(ViewCorpus(X[half], GROUPS[half])) for half in (cut, ~cut)])
    assert_allclose(view_moments(two)[0].m3, view_moments(one)[0].m3, atol=1e-12)


def test_all_pairs_of_axes_hold_the_whole_tensor():
    T = np.random.default_rng(1).normal(size=(4, 4, 4, 4))
    T = sum(T.transpose(p) for p in permutations(range(4)))
    left, right = pair_directions(4, 10)
    slices = np.einsum("abcd,cl,dl->abl", T, left, right)
    assert np.sum(slices**2) == pytest.approx(np.sum(T**2))
    left, right = pair_directions(4, 9, seed=1)
    assert left.shape == right.shape == (4, 9)
    assert_allclose(np.linalg.norm(left, axis=0), 1.0)
    assert_allclose(left[:, :4].T @ left[:, :4], np.eye(4), atol=1e-14)


def test_contrasts_have_the_size_of_the_error_of_the_mean():
    rng = np.random.default_rng(2)
    parts = list(rng.normal(size=(8, 20_000)) + 3.0)
    draws = contrasts(parts)
    assert draws.shape == (20_000, 7)
    assert_allclose(draws.std(axis=0), np.mean(parts, axis=0).std(), rtol=0.05)
    assert_allclose(draws.mean(axis=0), 0.0, atol=0.02)
    assert_allclose(np.corrcoef(draws.T) - np.eye(7), 0.0, atol=0.05)


def test_parts_tell_the_error_of_the_third_moment():
    """The contrasts of one sample are as large as the differences between samples."""
    errors, estimates = [], []
    for seed in range(60):
        rows = np.random.default_rng(seed).normal(size=(1200, 2))
        with open_engine(ViewCorpus(rows, np.arange(1200) // 4)) as engine:
            pass_ = ViewMomentsPass(2, basis=np.eye(2), rank=2)
            whole, parts = view_moments(engine.run(pass_).sums)
        errors.append(np.mean(whole.m3**2))
        estimates.append(np.mean(contrasts([p.m3 for p in parts]) ** 2))
    assert np.mean(estimates) == pytest.approx(np.mean(errors), rel=0.2)


def cumulant4(m, M2, M3, M4, alpha0):
    """The whole of equation 2.4 in symmetric sums, for comparison."""
    if np.isinf(alpha0):
        p, q, s, t = 1.0, 1.0, 2.0, 6.0
    else:
        p = alpha0 / (alpha0 + 3)
        q = alpha0 * (alpha0 + 1) / ((alpha0 + 2) * (alpha0 + 3))
        s = 2 * alpha0**2 / ((alpha0 + 2) * (alpha0 + 3))
        t = 6 * alpha0**3 / ((alpha0 + 1) * (alpha0 + 2) * (alpha0 + 3))
    out = M4 - t * np.einsum("a,b,c,d->abcd", m, m, m, m)
    for one in "abcd":
        rest = "abcd".replace(one, "")
        out = out - p * np.einsum(f"{rest},{one}->abcd", M3, m)
    for pair in ("ab", "ac", "ad"):
        rest = "".join(x for x in "abcd" if x not in pair)
        out = out - q * np.einsum(f"{pair},{rest}->abcd", M2, M2)
    for pair in ("ab", "ac", "ad", "bc", "bd", "cd"):
        one, other = (x for x in "abcd" if x not in pair)
        out = out + s * np.einsum(f"{pair},{one},{other}->abcd", M2, m, m)
    return out


@pytest.mark.parametrize("alpha0", [0.0, 0.01, 1.0, 50.0, np.inf])
def test_fourth_moments_are_corrected_as_the_whole_tensor_is(alpha0):
    whole = [brute(order, 4, 0.0) for order in (1, 2, 3, 4)]
    left, right = np.random.default_rng(3).normal(size=(2, D, 4))
    contracted = np.einsum("abcd,cl,dl->abl", whole[3], left, right)
    expected = np.einsum("abcd,cl,dl->abl", cumulant4(*whole, alpha0), left, right)
    found = fourth_moment(*whole[:3], contracted, left, right, alpha0)
    assert_allclose(found, expected, atol=1e-12 * np.abs(contracted).max())
