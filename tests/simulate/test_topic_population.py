import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.errors import UsageError
from distmom.simulate.topics import CorrelatedTopicPopulation, TopicPopulation, label_words

TOPICS = np.array([[0.6, 0.1], [0.3, 0.2], [0.1, 0.7]])


def test_probabilities_of_documents_agree_with_samples():
    population = TopicPopulation([0.5, 1.5], TOPICS)
    counts, probabilities = population.enumerate(3)
    assert counts.shape == (10, 3)
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-12)
    sampled, shares = population.sample(200_000, 3, seed=1)
    assert_allclose(shares.mean(axis=0), [0.25, 0.75], atol=0.01)
    key = np.array([16, 4, 1])
    frequency = np.bincount(sampled @ key, minlength=64) / 200_000
    assert_allclose(frequency[counts @ key], probabilities, atol=5 * np.sqrt(0.25 / 200_000))


def test_moments_of_shares_are_rising_factorials():
    population = TopicPopulation([0.5, 1.5], TOPICS)
    assert population.share_moment([1, 0]) == pytest.approx(0.25)
    assert population.share_moment([2, 1]) == pytest.approx(0.5 * 1.5 * 1.5 / (2 * 3 * 4))


def test_lengths_may_differ_and_may_be_zero():
    counts, _ = TopicPopulation([0.5, 1.5], TOPICS).sample(3, np.array([0, 5, 40]), seed=0)
    assert counts.sum(axis=1).tolist() == [0, 5, 40]


@pytest.mark.parametrize(
    ("alpha", "topics", "message"),
    [
        ([1.0], TOPICS, "alpha has shape"),
        ([1.0, 0.0], TOPICS, "alpha: expected positive"),
        ([1.0, 1.0], TOPICS + 0.1, "expected non-negative columns"),
    ],
)
def test_invalid_populations_are_refused(alpha, topics, message):
    with pytest.raises(UsageError, match=message):
        TopicPopulation(alpha, topics)
    with pytest.raises(UsageError, match="too many"):
        TopicPopulation([1.0, 1.0], TOPICS).enumerate(30)


def test_logarithms_of_ratios_of_correlated_shares_are_normal():
    mixing = np.array([[0.8, 0.0, 0.0], [0.6, 0.3, 0.0], [-0.5, 0.0, 0.4]])
    topics = np.column_stack([TOPICS, [0.2, 0.7, 0.1]])
    n = 100_000
    counts, shares = CorrelatedTopicPopulation(mixing, topics).sample(n, 50, seed=2)
    assert_allclose(shares.sum(axis=1), 1.0)
    ratios = np.log(shares[:, :2] / shares[:, 2:])
    differences = mixing[:2] - mixing[2]
    assert_allclose(np.cov(ratios.T), differences @ differences.T, atol=0.05)
    assert_allclose(np.mean(ratios**3, axis=0), 0.0, atol=0.2)
    # Words are drawn from the topics by the shares.
    assert set(counts.sum(axis=1).tolist()) == {50}
    assert_allclose(counts.T @ shares / n, 50.0 * topics @ (shares.T @ shares / n), atol=0.03)
    with pytest.raises(UsageError, match=r"mixing: expected shape \(3, 3\), got \(2, 2\)"):
        CorrelatedTopicPopulation(mixing[:2, :2], topics)
    with pytest.raises(UsageError, match="expected non-negative columns"):
        CorrelatedTopicPopulation(mixing, topics + 0.1)


def test_labels_are_words_that_are_more_probable_than_in_any_other_topic():
    topics = np.array([[0.5, 0.3, 0.5], [0.3, 0.0, 0.3], [0.2, 0.4, 0.2], [0.0, 0.3, 0.0]])
    # The first topic and the last are the same, and the largest margin of the other is that of the last word.
    labelled, words = label_words(topics)
    assert (labelled.tolist(), words.tolist()) == ([1], [3])
    labelled, words = label_words(topics[:, :2])
    assert (labelled.tolist(), words.tolist()) == ([0, 1], [1, 3])
    drawn = [label_words(topics[:, :2], drawn=True, seed=seed) for seed in range(400)]
    first, second = np.array([words for _, words in drawn]).T
    # In proportion to the probabilities in the topic: 5 to 3, and 4 to 3; the standard error is 0.025.
    assert set(first) == {0, 1}
    assert set(second) == {2, 3}
    assert np.mean(first == 0) == pytest.approx(5 / 8, abs=0.1)
    assert np.mean(second == 2) == pytest.approx(4 / 7, abs=0.1)
    again = label_words(topics[:, :2], drawn=True, seed=7)
    assert (again[1] == drawn[7][1]).all()
    assert label_words(topics[:, :1])[1].tolist() == [0]


def test_large_logarithms_of_shares_do_not_overflow():
    topics = np.array([[0.2, 0.5], [0.8, 0.5]])
    counts, shares = CorrelatedTopicPopulation(1e4 * np.eye(2), topics).sample(20, 5)
    np.testing.assert_array_equal(counts.sum(axis=1), 5)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


@pytest.mark.parametrize("alpha", [[np.inf, 1.0], [np.nan, 1.0]])
def test_parameters_that_are_not_finite_are_refused(alpha):
    with pytest.raises(UsageError, match="alpha: expected positive finite numbers"):
        TopicPopulation(alpha, np.full((2, 2), 0.5))
