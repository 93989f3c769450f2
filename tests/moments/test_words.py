import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from helpers import WeightedCorpus, peak_bytes, random_corpus
from numpy.testing import assert_allclose, assert_array_equal

from distmom.corpus import MemoryCorpus
from distmom.engine import StoredColumns, Sums, TallResult, TallSum, merge, open_engine, plan_pass
from distmom.engine.executors.connections import open_executor
from distmom.engine.passes import Selection
from distmom.engine.sums.tall import FREQUENT, frequent_rows
from distmom.errors import InputError, UsageError
from distmom.moments.documents.power import WordPowerPass, word_steps
from distmom.moments.documents.word_fourth import WordFourthPass, word_fourth
from distmom.moments.documents.word_moments import word_moments, word_slices
from distmom.moments.documents.words import WordMomentsPass, WordSketchPass, WordSlicesPass
from distmom.moments.kernels import add_slices, add_third_moment, fill_pairs, fill_symmetric
from distmom.moments.small import SmallMoments
from distmom.moments.weighting import MomentKind, document_weights


def positions(row):
    return np.repeat(np.arange(len(row)), row)


def brute_moments(X, kind, weights):
    """Loop over ordered tuples of word positions."""
    d = X.shape[1]
    orders = (1, 2, 3, 4)[: max(kind.orders, 3)]
    totals = [np.zeros((d,) * order) for order in orders]
    masses = np.zeros(len(orders))
    for row, own in zip(X, weights, strict=True):
        words = np.flatnonzero(row) if kind.binary else positions(row)
        n = len(words)
        for order in orders:
            if kind.distinct:
                tuples = list(permutations(range(n), order))
            else:
                tuples = [tuple(t) for t in np.ndindex(*(n,) * order)]
            if kind.weighting == "counts":
                masses[order - 1] += own
                weight = own * len(tuples)
            elif not tuples or (kind.distinct and n < kind.orders):
                continue
            else:
                omega = {
                    "pooled": len(tuples),
                    "document": 1.0,
                    "tokens": n,
                    "length": (n / (n + kind.length_scale)) ** 2,
                }
                weight = own * omega[kind.weighting]
                masses[order - 1] += weight
            for t in tuples:
                totals[order - 1][tuple(words[i] for i in t)] += weight / len(tuples)
    return [total / mass for total, mass in zip(totals, masses, strict=True)]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("weighting", ["pooled", "document", "length"])
@pytest.mark.parametrize("moments", ["paper", "distinct"])
def test_moments_are_those_of_all_tuples_of_positions(moments, weighting, binary):
    rng = np.random.default_rng(3)
    X = rng.poisson(0.7, (9, 6))
    X[0] = 0
    X[1] = [1, 0, 0, 0, 0, 0]
    X[2] = [1, 0, 1, 0, 0, 0]
    own = rng.uniform(0.5, 2.0, 9)
    kind = MomentKind(moments, weighting, binary, length_scale=3.0)
    corpus = WeightedCorpus(X, np.ones((9, 1), int), own, shard_documents=4)
    basis = rng.standard_normal((6, 4))
    m1, m2, m3 = brute_moments(X, kind, own)
    with open_engine(corpus) as engine:
        sums = engine.run(WordMomentsPass(6, kind=kind, basis=basis, rank=4)).sums
        sketch = total(engine, WordSketchPass(6, kind=kind, n_columns=4, basis=basis))
    found = word_moments(sums, kind, basis)
    assert_allclose(found.m1, basis.T @ m1, atol=1e-13)
    assert_allclose(found.m2, basis.T @ m2 @ basis, atol=1e-13)
    assert_allclose(found.m3, np.einsum("abc,ai,bj,ck->ijk", m3, basis, basis, basis), atol=1e-12)
    assert_allclose(sketch["sketch"] / sketch["mass"], m2 @ basis, atol=1e-13)
    assert_allclose([*found.sum_rules.values()], 0.0, atol=1e-14)
    assert [*found.sum_rules] == (["2", "3"] if moments == "distinct" and weighting != "pooled" else [])
    # Any matrix serves as the whitener here.
    whitener, directions = rng.standard_normal((4, 3)), rng.standard_normal((3, 2))
    slices = WordSlicesPass(
        6, kind=kind, basis=basis, rank=4, whitener=whitener, directions=directions, n_states=3, n_slices=2
    )
    with open_engine(corpus) as engine:
        lean = word_moments(
            engine.run(WordMomentsPass(6, kind=kind, basis=basis, rank=4, third=False)).sums, kind, basis
        )
        contracted = word_slices(engine.run(slices).sums, kind, whitener, directions, basis)
    assert lean.m3 is None
    assert_allclose(lean.m2, found.m2, atol=1e-15)
    white = basis @ whitener
    expected = np.einsum("abc,ai,bj,cl->ijl", m3, white, white, white @ directions)
    assert_allclose(contracted, expected, atol=1e-12)
    vectors = rng.standard_normal((3, 5))
    with open_engine(corpus) as engine:
        steps = [
            word_steps(
                engine.run(WordPowerPass(6, kind=kind, vectors=each, n_vectors=5)).sums,
                kind,
                whitener,
                vectors,
                basis,
            )
            for each in (white @ vectors, engine.put(white @ vectors))
        ]
    eta = white @ vectors
    expected = np.einsum("abc,ai,bl,cl->il", m3, white, eta, eta)
    for each in steps:
        assert_allclose(each, expected, atol=1e-12)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("weighting", ["pooled", "document", "length", "tokens", "counts"])
def test_fourth_moments_are_those_of_all_quadruples_of_positions(weighting, binary):
    X, own, kind = few_documents(weighting, binary)
    corpus = WeightedCorpus(X, None, own, shard_documents=4)
    m1, m2, m3, m4 = brute_moments(X, kind, own)
    pass_, W = fourth_pass(kind)
    with open_engine(corpus) as engine:
        sums = engine.run(pass_).sums
        found = word_fourth(sums)
        lower = word_moments(
            engine.run(WordMomentsPass(6, kind=kind, basis=pass_.basis, rank=4)).sums, kind, pass_.basis
        )
    whole = np.einsum("abcd,ai,bj,ck,dl->ijkl", m4, W, W, W, W)
    expected = np.einsum("ijkl,km,lm->ijm", whole, pass_.left, pass_.right)
    assert_allclose(found.fourth, expected, atol=1e-12 * np.abs(expected).max())
    of_words = SmallMoments(m1, m2, m3).within(W)
    for expected in (of_words, lower.within(pass_.whitener)):
        for name in ("m1", "m2", "m3"):
            size = np.abs(getattr(expected, name)).max()
            assert_allclose(getattr(found.moments, name), getattr(expected, name), atol=1e-12 * size)
    assert len(found.parts) == len(found.fourth_parts) == 1
    long = (X > 0).sum(axis=1) >= 4 if binary else X.sum(axis=1) >= 4
    assert 0 < long.sum() < 12
    assert_allclose(sums["documents"], [own.sum(), own[long].sum()])
    # Without the documents that are too short, the moments are the same, except those of counts.
    with open_engine(WeightedCorpus(X[long], None, own[long])) as engine:
        rest = word_fourth(engine.run(pass_).sums)
    scale = own[long].sum() / own.sum() if weighting == "counts" else 1.0
    assert_allclose(scale * rest.fourth, found.fourth, atol=1e-12 * np.abs(found.fourth).max())


def few_documents(weighting, binary):
    rng = np.random.default_rng(5)
    X = rng.poisson(0.9, (12, 6))
    X[:3] = [[0] * 6, [1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]
    return X, rng.uniform(0.5, 2.0, 12), MomentKind("distinct", weighting, binary, length_scale=3.0, orders=4)


def fourth_pass(kind, d=6, r=4, k=3, m=2):
    """Return a pass, and the product of its basis and whitener; any matrices serve here."""
    rng = np.random.default_rng(1)
    basis, whitener = rng.standard_normal((d, r)), rng.standard_normal((r, k))
    left, right = rng.standard_normal((2, k, m))
    pass_ = WordFourthPass(
        d, kind=kind, basis=basis, rank=r, whitener=whitener, left=left, right=right, n_states=k, n_pairs=m
    )
    return pass_, basis @ whitener


def test_fourth_moments_of_merged_shards_are_those_of_one():
    X = few_documents("document", False)[0]
    pass_, _ = fourth_pass(MomentKind("distinct", "document", False, orders=4))

    def sums(corpus):
        with open_engine(corpus) as engine:
            return Sums({name: np.array(value) for name, value in engine.run(pass_).sums.items()})

    one = sums(MemoryCorpus(X))
    for other in (sums(MemoryCorpus(X, shard_documents=5)), sums(MemoryCorpus(X, shard_documents=1))):
        for name, value in one.items():
            assert_allclose(other[name], value, atol=1e-12)
    # Which part a document is in depends on its place, so that only totals are compared.
    two = word_fourth(merge([sums(MemoryCorpus(X[:7])), sums(MemoryCorpus(X[7:]))]))
    assert_allclose(two.fourth, word_fourth(one).fourth, atol=1e-12)
    assert_allclose(two.moments.m3, word_fourth(one).moments.m3, atol=1e-12)
    assert len(word_fourth(one).parts) > 2


def test_slabs_of_columns_give_the_same_fourth_moments():
    corpus = random_corpus(60, d=6, shard_documents=25)
    pass_, _ = fourth_pass(MomentKind("distinct", "tokens", False, orders=4))
    with open_engine(corpus) as engine:
        stored = StoredColumns((engine.put(pass_.basis[:, :3]), engine.put(pass_.basis[:, 3:])))
        found = [engine.run(each).sums for each in (pass_, replace(pass_, basis=stored))]
    for name, value in found[0].items():
        assert_array_equal(found[1][name], value)


@pytest.mark.cluster
def test_fourth_moments_have_the_same_bits_with_any_number_of_workers(cluster):
    corpus = random_corpus(300, d=6, shard_documents=25)
    pass_, _ = fourth_pass(MomentKind("distinct", "tokens", False, orders=4))
    found = []
    for client in (None, cluster):
        with open_executor(client) as executor, open_engine(corpus, executor=executor) as engine:
            found.append({name: np.array(value) for name, value in engine.run(pass_).sums.items()})
    for name, value in found[0].items():
        assert_array_equal(found[1][name], value)


def test_fourth_moments_of_other_kinds_or_of_short_documents_alone_are_refused():
    for kind in (MomentKind("paper", orders=4), MomentKind("distinct")):
        with pytest.raises(UsageError, match="needs distinct positions and 4 orders"):
            WordFourthPass(6, kind=kind)
    pass_, _ = fourth_pass(MomentKind("distinct", "document", False, orders=4))
    with open_engine(MemoryCorpus(np.eye(6, dtype=int) * 3)) as engine:
        sums = engine.run(pass_).sums
    assert sums["documents"].tolist() == [6.0, 0.0]
    with pytest.raises(
        InputError, match="expected documents of at least 4 words for the fourth moment, got none"
    ):
        word_fourth(sums)


@pytest.mark.parametrize("orders", [2, 3, 4])
@pytest.mark.parametrize("weighting", ["pooled", "document", "length", "tokens", "counts"])
@pytest.mark.parametrize("moments", ["paper", "distinct"])
def test_documents_weigh_by_their_tuples_of_positions(moments, weighting, orders):
    n, m = np.array([0, 1, 2, 3, 7, 7]), np.array([1, 2, 3, 1, 2, 0])
    own = np.array([2.0, 0.5, 1.0, 3.0, 1.5, 0.25])
    kind = MomentKind(moments, weighting, length_scale=3.0, orders=orders)
    found = document_weights(n, m, kind, own)
    least = orders if moments == "distinct" else 1
    for name, order, n_labels, shortest in (
        ("1", 1, np.ones(6), least),
        ("2", 2, np.ones(6), least),
        ("3", 3, np.ones(6), least),
        ("4", 4, np.ones(6), least),
        ("_label", 2, m, 1),
    ):
        rho, mass = np.zeros(6), 0.0
        for i in range(6):
            count = (math.perm(n[i], order) if moments == "distinct" else n[i] ** order) * n_labels[i]
            if weighting == "counts":
                rho[i], mass = own[i], mass + own[i]
            elif count > 0 and n[i] >= shortest:
                length = (n[i] / (n[i] + 3.0)) ** 2
                omega = {"pooled": count, "document": 1.0, "length": length, "tokens": n[i]}[weighting]
                rho[i], mass = own[i] * omega / count, mass + own[i] * omega
        assert_allclose(getattr(found, f"rho{name}"), rho, rtol=1e-14)
        assert_allclose(getattr(found, f"mass{name}"), mass, rtol=1e-14)


def test_sketch_of_a_test_matrix_is_the_same_for_any_cut():
    totals = []
    for shard_documents in (1000, 50, 7):
        corpus = random_corpus(shard_documents=shard_documents)
        with open_engine(corpus) as engine:
            totals.append(total(engine, WordSketchPass(corpus.n_words, n_columns=5, seed=4))["sketch"])
    assert_allclose(totals[1], totals[0], rtol=1e-12)
    assert_allclose(totals[2], totals[0], rtol=1e-12)


@pytest.mark.parametrize("r", [3, 20, 47])
def test_blocked_third_moment(r):
    rng = np.random.default_rng(r)
    left, right, weight = rng.standard_normal((50, r)), rng.standard_normal((50, r)), rng.random(50)
    full = np.zeros((r, r, r))
    add_third_moment(full, left, left, weight)
    assert_allclose(fill_symmetric(full), np.einsum("n,ni,nj,nk->ijk", weight, left, left, left), atol=1e-12)
    pairs = np.zeros((r, r, r))
    add_third_moment(pairs, left, right)
    assert_allclose(fill_pairs(pairs), np.einsum("ni,nj,nk->ijk", left, left, right), atol=1e-12)


@pytest.mark.parametrize(("r", "m"), [(3, 1), (20, 10), (47, 23)])
def test_slices_in_blocks_are_the_sums_of_their_definition(r, m):
    rng = np.random.default_rng(r)
    left, right, weight = rng.standard_normal((50, r)), rng.standard_normal((50, r)), rng.random(50)
    factors = rng.standard_normal((50, m))
    one = np.zeros((r, m, r))
    add_slices(one, left, left, factors, weight)
    expected = np.einsum("n,ni,nj,nl->ijl", weight, left, left, factors)
    assert_allclose(fill_pairs(one.transpose(0, 2, 1)), expected, atol=1e-12)
    two = np.zeros((r, m, r))
    add_slices(two, left, right, factors)
    assert_allclose(two.transpose(0, 2, 1), np.einsum("ni,nj,nl->ijl", left, right, factors), atol=1e-12)


def test_single_precision_blocks_stay_close_to_double():
    corpus = random_corpus(n=2000, d=200, shard_documents=500)
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((200, 30)))[0]
    found = []
    for dtype in (np.float32, np.float64):
        with open_engine(corpus) as engine:
            sums = engine.run(WordMomentsPass(200, basis=basis.astype(dtype), rank=30)).sums
            found.append(word_moments(sums, MomentKind()))
    whitener, directions = np.linalg.qr(found[1].m2)[0][:, :25], np.eye(25, 7)
    slices = []
    for dtype in (np.float32, np.float64):
        pass_ = WordSlicesPass(
            200, basis=basis.astype(dtype), rank=30, whitener=whitener, directions=directions, n_states=25,
            n_slices=7,
        )  # fmt: skip
        with open_engine(corpus) as engine:
            slices.append(word_slices(engine.run(pass_).sums, MomentKind(), whitener, directions))
    # The promise for float32 blocks with float64 sums.
    assert 0 < np.abs(slices[0] - slices[1]).max() < 1e-5 * np.abs(slices[1]).max()
    assert np.abs(found[0].m3 - found[1].m3).max() < 1e-5 * np.abs(found[1].m3).max()
    assert np.abs(found[0].m2 - found[1].m2).max() < 1e-5 * np.abs(found[1].m2).max()


def test_slabs_of_the_vocabulary_give_the_same_bits():
    corpus = random_corpus(n=300, d=100_000, density=0.0002, shard_documents=50)
    basis = np.random.default_rng(0).standard_normal((100_000, 40))
    pass_ = WordMomentsPass(100_000, kind=MomentKind("distinct"), basis=basis, rank=40)
    whole, found = plan_pass(corpus, pass_), []
    limit = int((whole.task_bytes - (14 << 20)) / 0.7)
    cut = plan_pass(corpus, pass_, limit)
    assert len(whole.slabs) == 1
    assert len(cut.slabs) > 1
    assert cut.groups == whole.groups
    for memory_limit in (None, limit):
        with open_engine(corpus, memory_limit=memory_limit) as engine:
            found.append({k: v.copy() for k, v in engine.run(pass_).sums.items()})
    for name, value in found[0].items():
        assert value.tobytes() == found[1][name].tobytes(), name


@pytest.mark.parametrize("selection", [None, Selection(0.3, heldout=True), Selection(0.3, heldout=False)])
def test_kept_documents_are_their_rows_for_any_cut(selection):
    rng = np.random.default_rng(0)
    X = rng.poisson(0.5, (80, 30))
    X[3], X[41, 2:] = 0, 0
    basis, kept = rng.standard_normal((30, 4)), (0, 3, 17, 40, 41, 42, 79)
    expected = X[list(kept)] @ basis
    left_out = X[list(kept)].sum(axis=1) < 3
    if selection is not None:
        left_out |= ~selection.mask(0, 80)[list(kept)]
    assert 0 < left_out.sum() < len(kept)
    expected[left_out] = 0.0
    pass_ = WordMomentsPass(
        30, selection, kind=MomentKind("distinct", binary=False), basis=basis, rank=4, kept=kept
    )
    found = []
    for shard_documents in (80, 33, 7):
        with open_engine(MemoryCorpus(X, shard_documents=shard_documents)) as engine:
            found.append(np.array(engine.run(pass_).sums["rows"]))
    assert_allclose(found[0], expected, atol=1e-12)
    for other in found[1:]:
        assert_array_equal(other, found[0])


def test_unknown_kinds_are_refused():
    with pytest.raises(UsageError, match="moments: expected one of paper, distinct, got 'all'"):
        MomentKind("all")
    with pytest.raises(UsageError, match="weighting: expected one of"):
        MomentKind(weighting="mine")


@pytest.mark.parametrize("moments", ["paper", "distinct"])
def test_noise_is_the_moment_with_a_random_sign_on_every_document(moments):
    corpus = random_corpus(60, d=25, shard_documents=60)
    block, kind = corpus.read_shard(0), MomentKind(moments)
    probes = np.random.default_rng(0).standard_normal((25, 3))
    sketch = WordSketchPass(25, kind=kind, n_columns=3, basis=probes, n_probes=3, probes=probes, seed=5)
    noise = added(sketch, block)["noise"]
    signs = np.random.default_rng((5, 0)).choice((-1.0, 1.0), 60)
    assert 0 < (signs > 0).sum() < 60
    rows = [added(sketch, block.take(slice(i, i + 1)))["sketch"] for i in range(60)]
    expected = sum(sign * row for sign, row in zip(signs, rows, strict=True))
    assert_allclose(noise, expected, atol=1e-12)
    assert not added(sketch, replace(block, weights=np.ones(60)))["noise"].any()


@pytest.mark.parametrize("moments", ["paper", "distinct"])
@pytest.mark.parametrize(("frequent", "density"), [(150, 0.05), (FREQUENT, FREQUENT / 3000)])
def test_a_large_sketch_in_single_precision_is_that_in_double(moments, frequent, density, monkeypatch):
    monkeypatch.setattr("distmom.engine.plan.SMALL_TALL_BYTES", 0)
    monkeypatch.setattr("distmom.engine.sums.tall.FREQUENT", frequent)
    corpus = random_corpus(n=3000, d=300, density=density, shard_documents=200)
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((300, 20)))[0]
    found = []
    for single in (True, False):
        with open_engine(corpus) as engine:
            basis_ = basis.astype(np.float32) if single else basis.astype(np.float32).astype(float)
            pass_ = WordSketchPass(300, kind=MomentKind(moments), n_columns=20, basis=basis_, single=single)
            assert engine.plan(pass_).single == single
            assert 0 < len(frequent_rows(corpus.document_frequency)) < 300
            found.append(total(engine, pass_)["sketch"])
    # The promise for float32 within a block and float64 across blocks.
    assert 0 < np.abs(found[0] - found[1]).max() < 1e-6 * np.abs(found[1]).max()


def test_slabs_of_columns_and_workers_do_not_change_a_bit_of_a_sketch():
    corpus = random_corpus(n=600, d=5000, density=0.01, shard_documents=50)
    limits = {}
    for basis in (None, np.random.default_rng(1).standard_normal((5000, 300)).astype(np.float32)):
        pass_ = WordSketchPass(5000, n_columns=300, seed=2, basis=basis)
        whole = plan_pass(corpus, pass_)
        limit = int((whole.task_bytes - 0.6 * whole.partial_bytes) / 0.7)
        cut = plan_pass(corpus, pass_, limit)
        assert len(whole.columns) == 1
        assert len(cut.columns) > 1
        assert cut.groups == whole.groups
        limits[basis is None] = limit
        bits = set()
        for memory_limit in (None, limit):
            with open_engine(corpus, memory_limit=memory_limit) as engine:
                bits.add(total(engine, pass_)["sketch"].tobytes())
        assert len(bits) == 1


def total(engine, pass_):
    """Run a pass with tall sums and return all sums as arrays in memory."""
    found = {}

    def finish(tallies):
        found.update(tallies.sums)
        for name, tall in tallies.tall.items():
            found[name] = tall.read_rows(slice(0, tall.n_rows))
        return TallResult({}, {})

    engine.run(pass_, finish=finish)
    return found


def added(pass_, block):
    """Return the tall sums of one block."""
    sums = pass_.zero()
    for name, spec in pass_.specs().items():
        if spec.tall:
            sums[name] = TallSum.zero(*spec.shape)
    pass_.add(sums, block, {})
    return {name: value.dense() for name, value in sums.items() if isinstance(value, TallSum)}


@pytest.mark.parametrize(
    ("n", "d", "k", "length"), [(600, 400, 12, 30), (200, 5000, 4, 60), (50, 60, 40, 20)]
)
def test_a_block_takes_the_planned_memory_for_its_fourth_moments(n, d, k, length):
    corpus = MemoryCorpus(np.random.default_rng(0).multinomial(length, np.full(d, 1 / d), n))
    pass_, _ = fourth_pass(MomentKind("distinct", "tokens", False, orders=4), d, k + 5, k, 3)
    block, sums = corpus.read_shard(0), pass_.zero()
    for each in (block, replace(block, weights=np.ones(n))):
        # The rows of the part are copied, and their indices and values are wide.
        most = pass_.working_bytes(n) + 28 * block.words.nnz
        peak = peak_bytes(lambda each=each: pass_.add(sums, each, {}), most)
        assert peak < most
    assert pass_.working_bytes(n) < 3 * peak
