import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from scipy.special import psi

from distmom.corpus import Block, MemoryCorpus
from distmom.engine import open_engine
from distmom.engine.stored.arrays import Columns
from distmom.engine.sums.csr import CsrArrays
from distmom.engine.sums.tall import TallSum
from distmom.moments.documents.document_shares import mixture_shares
from distmom.moments.documents.halves import half_counts
from distmom.moments.documents.share_kernels import (
    Counts,
    GivenTopics,
    Iteration,
    find_collapsed,
    find_shares,
    log_likelihood,
)
from distmom.moments.documents.shares import CompletionPass, MixturePass, RefinePass, folds_of

#: topics of the documents below: more than fit into one vector of lanes, and no multiple of them
K = 11
#: Dirichlet parameters, whose sum is one
ALPHA = np.arange(K, 0, -1) / (K * (K + 1) / 2)


@pytest.fixture
def documents():
    rng = np.random.default_rng(0)
    X = csr_array(rng.poisson(0.6, (30, 25)))
    X = csr_array(np.vstack([X.toarray(), np.zeros((1, 25), int)]))
    topics = rng.dirichlet(np.full(25, 0.3), K).T.copy()
    unigram = rng.dirichlet(np.ones(25))
    return X, topics, unigram


def shares_of(X, topics, unigram, smoothing, alpha, variational, n_iter, tolerance, own=None, out=None):
    """Call the kernel from even shares; return them, the likelihood and the totals."""
    (n, _), k = X.shape, topics.shape[1]
    shares, totals = np.full((n, k), 1 / k, topics.dtype), np.zeros(k)
    likelihood = find_shares(
        counts_of(X),
        GivenTopics(topics, unigram, smoothing, alpha),
        variational,
        Iteration(n_iter, tolerance),
        shares,
        Counts(
            np.ones(n) if own is None else own,
            totals,
            np.zeros((0, k), topics.dtype) if out is None else out,
        ),
    )
    return shares, likelihood, totals


def counts_of(X):
    """Return counts as the kernels read them."""
    return CsrArrays(X.indptr, X.indices, X.data.astype(float))


def plain_shares(x, topics, alpha, variational, n_iter):
    """The two iterations of the module's first lines, word for word; shares, and what topics are weighted with."""
    theta = np.full(topics.shape[1], 1.0 / topics.shape[1])
    gamma = alpha + x.sum() * theta
    for _ in range(n_iter):
        e = np.exp(psi(gamma) - psi(gamma.sum())) if variational else theta
        s = topics @ e
        gamma = alpha + e * (topics.T @ np.where(x > 0, x / s, 0.0))
        theta = gamma / gamma.sum()
    return theta, np.exp(psi(gamma) - psi(gamma.sum())) if variational else theta


@pytest.mark.parametrize("variational", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_shares_are_those_of_the_plain_iteration(documents, variational, smoothing):
    X, topics, unigram = documents
    alpha = np.linspace(0.1, 1.0, K)
    own, out = np.linspace(0.5, 2.0, 31), np.zeros((25, K))
    shares, likelihood, totals = shares_of(
        X, topics, unigram, smoothing, alpha, variational, 7, 0.0, own, out
    )
    mixed = (1 - smoothing) * topics + smoothing * unigram[:, None]
    plain = [plain_shares(x, mixed, alpha, variational, 7) for x in X.toarray()[:30]]
    expected, weights = (np.array(values) for values in zip(*plain, strict=True))
    assert_allclose(shares[:30], expected, atol=1e-9)
    # A document without words has the shares of the prior.
    assert_allclose(shares[30], alpha / alpha.sum())
    s = weights @ mixed.T
    dense = own[:30, None] * X.toarray()[:30]
    assert likelihood == pytest.approx((dense * np.log(s)).sum(), rel=1e-9)
    assert_allclose(out, (dense / s).T @ weights, rtol=1e-9)
    assert_allclose(totals, (out * mixed).sum(axis=0), rtol=1e-9)
    assert totals.sum() == pytest.approx(dense.sum())


@pytest.mark.parametrize("variational", [False, True])
def test_leaving_topics_out_changes_no_result(variational):
    """Documents of two topics among forty, most of which iteration leaves out."""
    rng = np.random.default_rng(4)
    topics = rng.dirichlet(np.full(300, 0.05), 40).T.copy()
    mixed = np.array([topics[:, rng.choice(40, 2, replace=False)] @ [0.7, 0.3] for _ in range(25)])
    X = csr_array(np.array([rng.multinomial(80, p / p.sum()) for p in mixed]))
    unigram, alpha = topics.mean(axis=1), np.full(40, 0.05)
    shares, _, _ = shares_of(X, topics, unigram, 0.01, alpha, variational, 3000, 1e-7)
    full = 0.99 * topics + 0.01 * unigram[:, None]
    expected = np.array([plain_shares(x, full, alpha, variational, 3000)[0] for x in X.toarray()])
    assert_allclose(shares, expected, atol=1e-4)
    assert_allclose(shares.sum(axis=1), 1.0, atol=1e-5)


def test_single_precision_is_near_double(documents):
    X, topics, unigram = documents
    found = [
        shares_of(X, topics.astype(dtype), unigram, 0.01, np.full(K, 0.2), True, 50, 1e-5)[0]
        for dtype in (np.float64, np.float32)
    ]
    assert_allclose(found[1], found[0], atol=2e-4)


def test_collapsed_shares_are_what_the_other_positions_say(documents):
    X, topics, unigram = documents
    alpha, own = ALPHA, np.linspace(0.5, 2.0, 31)
    shares, totals, out = np.full((31, K), 1 / K), np.zeros(K), np.zeros((25, K))
    given, counted = GivenTopics(topics, unigram, 0.1, alpha), Counts(own, totals, out)
    likelihood = find_collapsed(counts_of(X), given, Iteration(5000, 1e-14), shares, counted)
    mixed = 0.9 * topics + 0.1 * unigram[:, None]
    expected, expected_likelihood = np.zeros((25, K)), 0.0
    for i in range(31):
        row = slice(X.indptr[i], X.indptr[i + 1])
        words, counts = X.indices[row], X.data[row].astype(float)
        theta = np.full(K, 1 / K)
        taken = mixed[words] * theta
        taken /= taken.sum(axis=1, keepdims=True)
        for _ in range(3000):
            # All positions at once, and half of the way: another iteration to the same fixed point.
            after = mixed[words] * (counts @ taken - taken + alpha)
            taken = 0.5 * taken + 0.5 * after / after.sum(axis=1, keepdims=True)
        theta = (counts @ taken + alpha) / (counts.sum() + 1.0)
        assert_allclose(shares[i], theta, atol=1e-9)
        np.add.at(expected, words, own[i] * counts[:, None] * taken)
        expected_likelihood += own[i] * counts @ np.log(mixed[words] @ theta)
    assert_allclose(out * mixed, expected, atol=1e-9)
    assert_allclose(totals, expected.sum(axis=0), rtol=1e-9)
    assert likelihood == pytest.approx(expected_likelihood, rel=1e-9)


def test_words_that_no_topic_has_leave_finite_numbers():
    X = csr_array(np.array([[3, 1000000, 0]]))
    topics = np.array([[1.0, 0.5], [0.0, 0.0], [0.0, 0.5]], np.float32)
    out = np.zeros((3, 2), np.float32)
    shares, likelihood, totals = shares_of(X, topics, np.zeros(3), 0.0, np.ones(2), False, 5, 0.0, out=out)
    assert np.isfinite([*shares.ravel(), *totals, *out.ravel(), likelihood]).all()
    assert shares.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("k", [1, 4, 16, 37])
def test_likelihood_is_that_of_the_mixture(k):
    rng = np.random.default_rng(k)
    topics, shares = rng.dirichlet(np.ones(30), k).T.copy(), rng.dirichlet(np.ones(k), 12)
    X, unigram = csr_array(rng.poisson(0.5, (12, 30))), np.full(30, 1 / 30)
    given = GivenTopics(topics, unigram, 0.1, ALPHA)
    found = log_likelihood(counts_of(X), given, shares)
    s = shares @ (0.9 * topics + 0.1 * unigram[:, None]).T
    assert found == pytest.approx((X.toarray() * np.log(s)).sum(), rel=1e-12)


def test_weights_of_documents_count_as_repetition(documents):
    X, topics, unigram = documents
    pass_ = RefinePass(25, topics=topics, n_topics=K, alpha=np.full(K, 0.5), unigram=unigram, smoothing=0.1)
    no_labels = csr_array((31, 0), dtype=np.uint8)
    twice = csr_array(np.vstack([X.toarray()] * 2))
    found = []
    for block in (
        Block(X, no_labels, 0, np.full(31, 2.0)),
        Block(twice, csr_array((62, 0), dtype=np.uint8), 0),
    ):
        sums = pass_.zero()
        sums["counts0"] = TallSum.zero(25, K)
        rows = pass_.add(sums, block, {})
        assert rows["shares"].shape == (block.n_documents, K)
        found.append({**sums, "counts0": sums["counts0"].dense()})
    assert found[0].keys() == found[1].keys()
    for name in found[0]:
        assert_allclose(found[0][name], found[1][name], rtol=1e-9)


@pytest.mark.parametrize("how", ["em", "vb", "cvb"])
def test_folds_are_counted_apart_and_read_with_topics_of_their_own(documents, how):
    X, topics, unigram = documents
    others = np.ascontiguousarray(topics[:, ::-1])
    options = {
        "n_topics": K, "alpha": np.full(K, 0.5), "unigram": unigram, "smoothing": 0.1, "how": how
    }  # fmt: skip
    folds = folds_of(X, 2)
    assert_array_equal(folds, [X.indices[i:j].sum() % 2 for i, j in pairwise(X.indptr)])
    assert 5 < folds.sum() < 26

    def run(pass_, words):
        sums = pass_.zero()
        names = [f"counts{fold}" for fold in range(pass_.n_folds)]
        sums |= {name: TallSum.zero(25, K) for name in names}
        rows = pass_.add(sums, Block(words, csr_array((words.shape[0], 0), dtype=np.uint8), 0), {})
        return {**sums, **{name: sums[name].dense() for name in names}}, rows

    together, rows = run(RefinePass(25, topics=Columns((topics, others)), n_folds=2, **options), X)
    alone = [
        run(RefinePass(25, topics=own, **options), X[folds == fold])
        for fold, own in enumerate((topics, others))
    ]
    for fold, (sums, _) in enumerate(alone):
        assert_allclose(together[f"counts{fold}"], sums["counts0"], rtol=1e-6)
        assert_allclose(together["totals"][fold], sums["totals"][0], rtol=1e-9)
    for name in ("shares", "tokens", "documents", "log_likelihood"):
        assert_allclose(together[name], alone[0][0][name] + alone[1][0][name], rtol=1e-9)
    if how == "em":
        for fold, (_, own) in enumerate(alone):
            assert_allclose(rows["shares"][folds == fold], own["shares"])


def test_refine_goes_on_from_its_rows(documents):
    X, topics, unigram = documents
    pass_ = RefinePass(25, topics=topics, n_topics=K, alpha=np.full(K, 0.5), unigram=unigram)
    block = Block(X, csr_array((31, 0), dtype=np.uint8), 0)

    def run(rows):
        sums = pass_.zero()
        sums["counts0"] = TallSum.zero(25, K)
        return pass_.add(sums, block, rows)["shares"], float(sums["log_likelihood"])

    cold, before = run({})
    warm, after = run({"shares": cold})
    assert after > before
    assert np.abs(warm - cold).max() < 0.05
    variational = replace(pass_, how="vb")
    sums = variational.zero()
    sums["counts0"] = TallSum.zero(25, K)
    assert variational.add(sums, block, {}) is None


def test_a_mixture_step_is_plain_em(documents):
    X, topics, _ = documents
    logs, weights = np.log(0.99 * topics + 0.01 / 25), ALPHA
    pass_ = MixturePass(25, log_topics=logs, n_topics=K, log_weights=np.log(weights))
    sums = pass_.zero()
    sums["counts0"] = TallSum.zero(25, K)
    pass_.add(sums, Block(X, csr_array((31, 0), dtype=np.uint8), 0), {})
    dense = X.toarray()
    joint = dense @ logs + np.log(weights)
    evidence = np.logaddexp.reduce(joint, axis=1)
    posterior = np.exp(joint - evidence[:, None])
    assert_allclose(sums["counts0"].dense(), dense.T @ posterior, rtol=1e-5)
    assert_allclose(sums["totals"][0], (dense.T @ posterior).sum(axis=0), rtol=1e-5)
    assert_allclose(sums["shares"], posterior.sum(axis=0), rtol=1e-5)
    assert sums["log_likelihood"] == pytest.approx(evidence.sum(), rel=1e-6)


def test_halves_are_fair_and_follow_the_document_alone():
    rng = np.random.default_rng(0)
    X = csr_array(rng.integers(0, 200, (400, 30)))
    first = np.empty(X.nnz)
    half_counts(X.indptr, X.indices, X.data, np.uint64(0), first)
    assert (first >= 0).all()
    assert (first <= X.data).all()
    # Binomial: standardised deviations have mean 0 and variance 1.
    z = (first - X.data / 2) / np.sqrt(X.data / 4)
    assert abs(z.mean()) < 4 / np.sqrt(X.nnz)
    assert abs(z.var() - 1) < 4 * np.sqrt(2 / X.nnz)
    order = rng.permutation(400)
    again = np.empty(X.nnz)
    shuffled = csr_array(X[order])
    half_counts(shuffled.indptr, shuffled.indices, shuffled.data, np.uint64(0), again)
    whole = csr_array((first, X.indices, X.indptr), shape=X.shape)
    moved = csr_array((again, shuffled.indices, shuffled.indptr), shape=X.shape)
    assert_allclose(moved.toarray(), whole[order].toarray())
    other = np.empty(X.nnz)
    half_counts(X.indptr, X.indices, X.data, np.uint64(1), other)
    assert (other != first).mean() > 0.5


def scramble(x):
    """Splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def halves_bit_by_bit(indices, counts, key):
    """The positions of one document one by one, each by a bit of its own."""
    document = key
    for v, c in zip(indices, counts, strict=True):
        document = scramble(document ^ (scramble(v) + c) % 2**64)
    found = []
    for v, left in zip(indices, counts, strict=True):
        bits, n = scramble(document ^ v), 0
        while left > 0:
            n, bits, left = n + bits % 2, bits >> 1, left - 1
            if left > 0 and left % 64 == 0:
                document = scramble((document + left) % 2**64)
                bits = scramble(document ^ v)
        found.append(n)
    return found


def test_halves_are_those_of_a_bit_for_every_position():
    rng = np.random.default_rng(0)
    counts = np.array([1, 2, 63, 64, 65, 127, 128, 129, 500, 1024, 5000, 65_536], np.int32)
    for key in range(3):
        shuffled = rng.permutation(counts)
        indices, first = np.arange(3, 3 + len(counts), dtype=np.int32), np.empty(len(counts))
        half_counts(np.array([0, len(counts)]), indices, shuffled, np.uint64(key), first)
        assert first.tolist() == halves_bit_by_bit(indices.tolist(), shuffled.tolist(), key)


def test_halves_of_huge_counts_are_drawn_at_once():
    counts = np.repeat([70_000, 10**8, 2**31 - 1], 2000).astype(np.int32)
    order = np.random.default_rng(1).permutation(len(counts))
    first = np.empty(len(counts))
    indptr, indices = np.arange(0, len(counts) + 1, 10), np.tile(np.arange(10, dtype=np.int32), 600)
    started = time.monotonic()
    half_counts(indptr, indices, counts[order], np.uint64(0), first)
    # Position by position it would take an hour.
    assert time.monotonic() - started < 20
    assert (first == np.rint(first)).all()
    z = (first - counts[order] / 2) / np.sqrt(counts[order] / 4)
    for n in np.unique(counts):
        mine = z[counts[order] == n]
        assert abs(mine.mean()) < 4 / np.sqrt(len(mine))
        assert abs(mine.var() - 1) < 4 * np.sqrt(2 / len(mine))
        assert len(np.unique(mine)) > 500


@pytest.mark.parametrize("mixture", [False, True])
def test_completion_is_the_likelihood_of_second_halves(documents, mixture):
    X, topics, unigram = documents
    alpha = ALPHA
    first = np.empty(X.nnz)
    half_counts(X.indptr, X.indices, X.data, np.uint64(3), first)
    halves = csr_array((first, X.indices, X.indptr), shape=X.shape).toarray()
    mixed = 0.9 * topics + 0.1 * unigram[:, None]
    pass_ = CompletionPass(
        25, topics=topics, n_topics=K, alpha=alpha, unigram=unigram, smoothing=0.1, alpha_sums=(2.0,), seed=3,
        mixture=mixture,
    )  # fmt: skip
    with open_engine(MemoryCorpus(X, shard_documents=7)) as engine:
        sums = engine.run(pass_).sums
    expected = 0.0
    for x, half in zip(X.toarray(), halves, strict=True):
        if mixture:
            joint = half @ np.log(mixed) + np.log(alpha)
            theta = np.exp(joint - np.logaddexp.reduce(joint))
        else:
            theta = plain_shares(half, mixed, 2.0 * alpha, False, 300)[0] if half.sum() else alpha
        expected += (x - half) @ np.log(mixed @ theta)
    # Iteration ends at a change of 1e-4, and posteriors are found in float32.
    assert sums["log_likelihood"][0] == pytest.approx(expected, rel=1e-4)
    assert sums["tokens"] == (X.toarray() - halves).sum()
    assert sums["documents"] == 31


def test_mixture_shares_are_posteriors_of_counts(documents):
    X, topics, unigram = documents
    weights = ALPHA
    block = Block(X, csr_array((31, 0), dtype=np.uint8), 0)
    found = mixture_shares(block, GivenTopics(topics, unigram, 0.2, weights))
    joint = X.toarray() @ np.log(0.8 * topics + 0.2 * unigram[:, None]) + np.log(weights)
    assert_allclose(found, np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True)), atol=1e-5)
