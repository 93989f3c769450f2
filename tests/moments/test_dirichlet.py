import itertools

import numpy as np
import pytest
from helpers import WeightedCorpus
from numpy.testing import assert_allclose
from scipy.sparse import vstack

from distmom.corpus import MemoryCorpus
from distmom.engine import open_engine
from distmom.errors import UsageError
from distmom.moments.documents.dirichlet import (
    fourth_moment,
    least_skewness,
    proportions,
    proportions_of_kurtosis,
    second_cross_moment,
    second_moment,
    shifts,
    third_cross_moment,
    third_moment,
    third_moment_slices,
    third_moment_steps,
    topic_factor,
)
from distmom.moments.documents.word_fourth import WordFourthPass, word_fourth
from distmom.moments.documents.word_moments import word_moments
from distmom.moments.documents.words import WordMomentsPass
from distmom.moments.views.fourth import pair_directions
from distmom.moments.weighting import MomentKind
from distmom.simulate.topics import TopicPopulation


def raw_moments(population, n_orders=3):
    """Moments of one, two, three and more positions, from the moments of the shares."""
    k, topics, found = len(population.alpha), population.topics, []
    for order in range(1, n_orders + 1):
        tensor = np.zeros((k,) * order)
        for index in itertools.product(range(k), repeat=order):
            tensor[index] = population.share_moment(np.bincount(index, minlength=k).tolist())
        for _ in range(order):
            # Contracting the first axis appends the new one.
            tensor = np.tensordot(tensor, topics, axes=(0, 1))
        found.append(tensor)
    return found


@pytest.mark.parametrize("alpha", [(0.3, 0.8, 0.5), (5.0, 1.0, 9.0), (0.01, 0.02, 0.03)])
def test_corrected_moments_are_diagonal_in_the_topics(alpha):
    topics = np.random.default_rng(0).dirichlet(np.ones(5), 3).T
    population, alpha0, alpha = TopicPopulation(alpha, topics), sum(alpha), np.array(alpha)
    m1, e2, e3 = raw_moments(population)
    expected2 = (topics * (alpha / (alpha0 * (alpha0 + 1)))) @ topics.T
    factors = 2 * alpha / (alpha0 * (alpha0 + 1) * (alpha0 + 2))
    expected3 = np.einsum("k,ak,bk,ck->abc", factors, topics, topics, topics)
    assert_allclose(second_moment(m1, e2, alpha0), expected2, atol=1e-14)
    assert_allclose(third_moment(m1, e2, e3, alpha0), expected3, atol=1e-14)
    directions = np.random.default_rng(1).standard_normal((5, 4))
    slices = np.einsum("abc,cl->abl", e3, directions)
    assert_allclose(
        third_moment_slices(m1, e2, slices, directions, alpha0),
        np.einsum("abc,cl->abl", expected3, directions),
        atol=1e-14,
    )
    # What whitening makes of it: eigenvalues, from which proportions and topics follow.
    eigenvalues = factors * (alpha / (alpha0 * (alpha0 + 1))) ** -1.5
    assert_allclose(proportions(eigenvalues, alpha0), alpha / alpha0, rtol=1e-12)
    scale = topic_factor(alpha0) * eigenvalues * np.sqrt(alpha / (alpha0 * (alpha0 + 1)))
    assert_allclose(scale, 1.0, rtol=1e-12)


@pytest.mark.parametrize("alpha", [(0.3, 0.8, 0.5), (5.0, 1.0, 9.0), (0.01, 0.02, 0.03)])
def test_corrected_moments_of_views_with_means_of_their_own_are_diagonal(alpha):
    """Section 4.4 of the ECA paper, with moments about zero in place of central ones."""
    rng, alpha0, alpha = np.random.default_rng(0), sum(alpha), np.array(alpha)
    shares = raw_moments(TopicPopulation(alpha, np.eye(3)))
    views = [rng.normal(size=(n, 3)) for n in (4, 3, 5)]
    means = tuple(view @ shares[0] for view in views)
    index = ((0, 1), (0, 2), (1, 2))
    pairs = tuple(views[s] @ shares[1] @ views[t].T for s, t in index)
    triples = np.einsum("xyz,ax,by,cz->abc", shares[2], *views)
    for (s, t), pair in zip(index, pairs, strict=True):
        found = second_cross_moment(means[s], means[t], pair, alpha0)
        assert_allclose(found, views[s] * alpha @ views[t].T / (alpha0 * (alpha0 + 1)), atol=1e-13)
    factors = 2 * alpha / (alpha0 * (alpha0 + 1) * (alpha0 + 2))
    expected = np.einsum("k,ak,bk,ck->abc", factors, *views)
    assert_allclose(third_cross_moment(means, pairs, triples, alpha0), expected, atol=1e-13)


def test_limits_are_raw_and_central_moments():
    m1, e2, e3 = raw_moments(TopicPopulation([1.0, 2.0], np.array([[0.2, 0.5], [0.8, 0.5]])))
    assert third_moment(m1, e2, e3, 0.0) is e3
    assert_allclose(second_moment(m1, e2, 0.0), e2)
    assert shifts(np.inf) == (1.0, 1.0, 2.0)
    assert_allclose(third_moment(m1, e2, e3, 1e12), third_moment(m1, e2, e3, np.inf), atol=1e-10)
    assert_allclose(proportions(np.array([-1.0, 2.0]), 0.0), [0.0, 0.25])
    assert_allclose(proportions_of_kurtosis(np.array([-1.0, 0.0, 2.0]), 0.0), [0.0, 0.0, 0.5])
    with pytest.raises(UsageError, match="alpha0: expected a number of at least 0, got -1"):
        shifts(-1.0)


@pytest.mark.parametrize("alpha0", [0.0, 0.5, 30.0])
def test_the_least_skewness_is_that_of_the_only_topic(alpha0):
    assert_allclose(proportions(np.array([least_skewness(alpha0)]), alpha0), 1.0, rtol=1e-14)


@pytest.mark.parametrize("alpha0", [0.0, 0.7, np.inf])
def test_power_steps_are_those_of_the_corrected_third_moment(alpha0):
    rng = np.random.default_rng(1)
    m1, e2, e3 = rng.standard_normal(4), rng.standard_normal((4, 4)), rng.standard_normal((4, 4, 4))
    e2 = e2 + e2.T
    e3 = sum(e3.transpose(order) for order in itertools.permutations(range(3)))
    vectors = rng.standard_normal((4, 6))
    whole = third_moment(m1, e2, e3, alpha0)
    expected = np.einsum("abc,bl,cl->al", whole, vectors, vectors)
    steps = np.einsum("abc,bl,cl->al", e3, vectors, vectors)
    assert_allclose(third_moment_steps(m1, e2, steps, vectors, alpha0), expected, atol=1e-12)


def documents_of(population, lengths):
    """All documents of some lengths with their probabilities, each length as likely."""
    parts = [population.enumerate(n) for n in lengths]
    weights = np.concatenate([weights for _, weights in parts]) / len(parts)
    return WeightedCorpus(
        vstack([counts for counts, _ in parts]).astype(int), None, weights, shard_documents=70
    )


@pytest.mark.parametrize("weighting", ["document", "tokens", "pooled"])
@pytest.mark.parametrize("alpha", [(0.3, 0.8, 0.5), (5.0, 1.0, 9.0)])
def test_fourth_moments_of_documents_are_diagonal_in_the_topics(alpha, weighting):
    """Remark 7 for words: the fourth moment of an exact population, through the production passes."""
    topics = np.random.default_rng(0).dirichlet(np.ones(5), 3).T
    population, alpha0, alpha = TopicPopulation(alpha, topics), sum(alpha), np.array(alpha)
    kind = MomentKind("distinct", weighting, binary=False, orders=4)
    whitener = np.random.default_rng(1).standard_normal((5, 3))
    left, right = pair_directions(3, 6)
    pass_ = WordFourthPass(
        5,
        kind=kind,
        basis=np.eye(5),
        rank=5,
        whitener=whitener,
        left=left,
        right=right,
        n_states=3,
        n_pairs=6,
    )
    # Documents of three words have no quadruple, and are left out of all orders.
    with open_engine(documents_of(population, (3, 4, 5))) as engine:
        found = word_fourth(engine.run(pass_).sums)
    m, white = found.moments, whitener.T @ topics
    corrected = fourth_moment(m.m1, m.m2, m.m3, found.fourth, left, right, alpha0)
    scale = 6 * alpha / (alpha0 * (alpha0 + 1) * (alpha0 + 2) * (alpha0 + 3))
    expected = np.einsum("i,ai,bi,il,il->abl", scale, white, white, white.T @ left, white.T @ right)
    assert_allclose(corrected, expected, atol=1e-12 * np.abs(found.fourth).max())
    expected = (white * (2 * alpha / (alpha0 * (alpha0 + 1) * (alpha0 + 2)))) @ white.T
    third = third_moment(m.m1, m.m2, m.m3, alpha0) @ np.linalg.solve(white.T, np.ones(3))
    assert_allclose(third, expected, atol=1e-12 * np.abs(m.m3).max())


def test_limits_of_the_fourth_moment_are_raw_and_the_fourth_cumulant():
    """Remark 7: alpha0 of zero leaves the moment as it is, and infinite alpha0 gives Quadruples of section 4.1."""
    m1, e2, e3, e4 = raw_moments(
        TopicPopulation([0.4, 1.0], np.random.default_rng(2).dirichlet(np.ones(4), 2).T), 4
    )
    left, right = np.random.default_rng(3).standard_normal((2, 4, 5))
    contracted = np.einsum("abcd,cl,dl->abl", e4, left, right)

    def corrected(alpha0):
        return fourth_moment(m1, e2, e3, contracted, left, right, alpha0)

    assert_allclose(corrected(0.0), contracted, atol=1e-15)
    assert_allclose(corrected(1e-14), contracted, atol=1e-12)
    # Quadruples in the form of the paper: the central fourth moment, less products of Pairs.
    pairs = e2 - np.outer(m1, m1)
    central = e4.copy()
    for place in range(4):
        central -= np.moveaxis(np.multiply.outer(e3, m1), 3, place)
    for i, j in itertools.combinations(range(4), 2):
        central += np.moveaxis(np.multiply.outer(e2, np.outer(m1, m1)), (0, 1), (i, j))
    central -= 3.0 * np.multiply.outer(np.outer(m1, m1), np.outer(m1, m1))
    quadruples = np.einsum("abcd,cl,dl->abl", central, left, right)
    a, b = pairs @ left, pairs @ right
    quadruples -= pairs[:, :, None] * np.einsum("cl,cl->l", left, b)
    quadruples -= a[:, None] * b[None] + b[:, None] * a[None]
    assert_allclose(corrected(np.inf), quadruples, atol=1e-12)
    assert_allclose(corrected(1e13), quadruples, atol=1e-12)
    # With another alpha0 it is another moment.
    assert np.abs(corrected(1.0) - quadruples).max() > 1e-3
    with pytest.raises(UsageError, match="alpha0: expected a number of at least 0, got -1"):
        corrected(-1.0)


@pytest.mark.parametrize("length", [3, 8])
def test_errors_of_empirical_moments_obey_lemma_d1(length):
    """All orders are within ``(1 + sqrt(ln(1 / delta))) / sqrt(N)`` of the truth with probability 1 - delta."""
    n, n_samples, delta = 200, 400, 0.1
    population = TopicPopulation([0.05, 0.1, 0.05], np.random.default_rng(0).dirichlet(np.full(6, 0.1), 3).T)
    true = raw_moments(population)
    pass_ = WordMomentsPass(6, kind=MomentKind("distinct", "document", binary=False), basis=np.eye(6), rank=6)
    counts = population.sample(n * n_samples, length, seed=1)[0]
    errors = np.zeros((n_samples, 3))
    for i in range(n_samples):
        sums = pass_.zero()
        pass_.add(sums, MemoryCorpus(counts[i * n : (i + 1) * n]).read_shard(0), {})
        found = word_moments(sums, pass_.kind, pass_.basis)
        errors[i, :2] = np.linalg.norm(found.m1 - true[0]), np.linalg.norm(found.m2 - true[1])
        # The largest Frobenius norm of the contraction with a unit vector.
        errors[i, 2] = np.linalg.norm((found.m3 - true[2]).reshape(36, 6), 2)
    bound = (1.0 + np.sqrt(np.log(1.0 / delta))) / np.sqrt(n)
    assert (np.mean(errors <= bound, axis=0) >= 1.0 - delta).all()
    # The bound holds in expectation without the second term, and with documents of three words it is not loose:
    # a quarter of it is exceeded too often.
    assert (np.mean(errors, axis=0) <= 1.0 / np.sqrt(n)).all()
    if length == 3:
        assert (np.mean(errors <= bound / 4.0, axis=0) < 1.0 - delta).all()
