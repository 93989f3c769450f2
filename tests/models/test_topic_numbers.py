"""What kept moments tell: numbers of topics, alpha0, noise and standard errors."""

import math

import numpy as np
import pytest
from helpers import WeightedCorpus
from kept import ALL_WORDS, PURE, sample
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix

from distmom.corpus import MemoryCorpus
from distmom.errors import UsageError
from distmom.models import SpectralLDA, TopicMoments
from distmom.models.topics import choice
from distmom.moments.small import SmallMoments
from distmom.simulate.topics import TopicPopulation
from distmom.spectral.steps.core import CoreSettings, whiten_words
from distmom.spectral.steps.rank import count_replicated


def test_standard_errors_are_as_large_as_the_errors():
    """Errors over standard errors have a spread of about one, over topics, words and seeds."""
    ratios, shares = [], []
    for seed in range(4):
        population, counts = sample(6000, d=200, k=5, seed=seed)
        kept = TopicMoments(5, n_parts=8, **ALL_WORDS).fit(counts)
        model = SpectralLDA(5, alpha0=1.0, **PURE).fit_moments(kept)
        truth = population.topics.T
        of, found = linear_sum_assignment(-np.sqrt(truth) @ np.sqrt(model.components_).T)
        frequent = truth[of] > 5e-3
        error = model.components_[found] - truth[of]
        ratios.append(error[frequent] / model.components_error_[found][frequent])
        shares.append((model.weights_[found] - 0.2) / model.weights_error_[found])
    # With eight parts the ratio has the law of Student's t with seven degrees, of deviation 1.18.
    assert 0.8 < np.concatenate(ratios).std() < 1.6
    assert 0.5 < np.sqrt(np.mean(np.square(shares))) < 2.0


def test_noise_falls_with_the_documents_that_were_added():
    """The level of a corpus four times as large is half of it, as one pass over all would find, about."""
    _, counts = sample(4000, d=300, k=4)
    first = TopicMoments(4, n_oversamples=20, **ALL_WORDS).fit(counts[:1000])
    both = first + first.of(MemoryCorpus(counts[1000:]))
    assert both.sums_.noise_level == pytest.approx(first.sums_.noise_level / 2)
    whole = TopicMoments(4, n_oversamples=20, **ALL_WORDS).fit(counts)
    assert 0.6 < both.sums_.noise_level / whole.sums_.noise_level < 1.6


def test_corpora_that_are_added_are_left_out_part_by_part():
    _, counts = sample(900)
    kept = TopicMoments(3, n_parts=4, **ALL_WORDS).fit(counts[:500])
    both = kept + kept.of(MemoryCorpus(counts[500:]))
    left = list(both.sums_.without_parts())
    assert len(left) == 4
    # Every document is left out once.
    mass = sum(float(both.sums_.total()["mass"][2]) - float(sums["mass"][2]) for sums in left)
    assert mass == pytest.approx(float(both.sums_.total()["mass"][2]))


@pytest.mark.parametrize(("k", "n", "d"), [(2, 2000, 60), (5, 3000, 200), (12, 6000, 400)])
def test_the_number_of_topics_is_found(k, n, d):
    _, counts = sample(n, d=d, k=k, length=80, seed=k)
    model = SpectralLDA("auto", max_df=1.0, max_count=None, n_refine=0).fit(counts)
    assert model.n_components_ == len(model.components_) == k
    spectrum, again = (model.diagnostics_[f"{x}_spectrum"] for x in ("half", "replicated"))
    # Of a topic all comes back, and of noise next to nothing.
    assert again[k - 1] > 0.7 * spectrum[k - 1]
    assert again[k] < 0.2 * spectrum[k]


def test_words_without_topics_make_one():
    rng = np.random.default_rng(0)
    counts = rng.multinomial(50, rng.dirichlet(np.ones(100)), 2000)
    assert SpectralLDA("auto", max_df=1.0, max_count=None, n_refine=0).fit(counts).n_components_ == 1


@pytest.mark.parametrize("n_words", range(20, 40))
def test_the_number_of_topics_is_estimated_for_any_number_of_words(n_words):
    """The plan allows for the number of topics that is found, whatever share of the words its basis is."""
    rng = np.random.default_rng(n_words)
    topics, shares = rng.dirichlet(np.full(n_words, 0.5), 4), rng.dirichlet(np.full(4, 0.3), 300)
    counts = csr_matrix(np.stack([rng.multinomial(40, p / p.sum()) for p in shares @ topics]))
    model = SpectralLDA("auto", max_df=1.0, min_df=0.0, n_refine=1).fit(counts)
    assert 2 <= len(model.components_) <= 8


def test_a_background_topic_is_one_more():
    _, counts = sample(2000, d=100, k=4, length=80)
    model = SpectralLDA("auto", background=True, max_df=1.0, max_count=None, n_refine=1).fit(counts)
    assert model.n_components_ == len(model.components_) == 5


def test_at_least_one_and_at_most_all_come_back():
    values = np.array([4.0, 3.0, 2.0, 1.0, -1.0])
    assert count_replicated(values, np.array([4.0, 2.0, 0.5, -0.1, -2.0]), 4) == 2
    # One that does not come back among others that do.
    assert count_replicated(values, np.array([4.0, 0.5, 2.0, -0.1, -2.0]), 4) == 3
    assert count_replicated(values, values, 2) == 2
    assert count_replicated(values, -values, 4) == 1


def test_noise_is_a_share_of_the_moment_before_the_shift():
    """The sketch met it beside a second moment that the mean was not yet taken from."""
    rng = np.random.default_rng(0)
    m1, root = rng.uniform(1, 2, 6), rng.standard_normal((6, 6))
    moments = SmallMoments(m1, root @ root.T + np.outer(m1, m1), None, {})
    largest = np.linalg.eigvalsh(moments.m2)[-1]
    for alpha0 in (0.0, 1.0, math.inf):
        white = whiten_words(moments, CoreSettings(2, alpha0=alpha0), 1e-3)
        assert white.noise == pytest.approx(1e-3 * largest)


def test_trials_on_some_documents_are_not_told_as_passes(monkeypatch):
    monkeypatch.setattr(choice, "TRIAL_DOCUMENTS", 200)
    _, counts = sample(600)
    model = SpectralLDA(3, max_df=1.0, n_refine=2).fit(counts)
    assert len(model.diagnostics_["log_likelihoods"]) == 2


def test_alpha0_of_an_exact_population_has_no_residual():
    population = TopicPopulation([0.5, 0.3, 0.9], np.random.default_rng(0).dirichlet(np.full(8, 0.3), 3).T)
    counts, probabilities = population.enumerate(3)
    kept = TopicMoments(3, n_oversamples=5, **ALL_WORDS).fit_corpus(
        WeightedCorpus(counts, None, probabilities)
    )
    found = kept.find_alpha0()
    assert found.alpha0 == pytest.approx(1.7, rel=1e-5)
    assert found.residual < 1e-5
    # It rises on both sides.
    nearest = int(np.abs(np.log(found.alpha0s / 1.7)).argmin())
    assert found.residuals[nearest - 3] > found.residuals[nearest - 1] > 10 * found.residual
    assert found.residuals[nearest + 3] > found.residuals[nearest + 1] > 10 * found.residual
    with pytest.raises(UsageError, match="n_components: expected at least 2, got 1"):
        kept.find_alpha0(1)
    with pytest.raises(UsageError, match="expected at most 3, for which the moments were made, got 4"):
        kept.find_alpha0(4)


@pytest.mark.slow
def test_errors_of_alpha0_by_the_residual_fall_with_the_root_of_the_number_of_documents():
    errors = []
    for n in (2_000, 32_000):
        found = []
        for seed in range(6):
            rng = np.random.default_rng(seed)
            population = TopicPopulation(np.full(4, 0.3), rng.dirichlet(np.full(40, 0.1), 4).T)
            kept = TopicMoments(4, **ALL_WORDS).fit(population.sample(n, 30, seed=seed)[0])
            found.append(np.log(kept.find_alpha0().alpha0 / 1.2))
        errors.append(np.sqrt(np.mean(np.square(found))))
    assert errors[1] < 0.05
    assert 1.6 < errors[0] / errors[1] < 8.0
