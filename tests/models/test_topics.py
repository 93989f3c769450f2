from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from helpers import WeightedCorpus
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linear_sum_assignment
from scipy.sparse import vstack
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from distmom.corpus import MemoryCorpus
from distmom.engine import PassDone, StoredColumns, open_engine, open_executor
from distmom.errors import InputError, NumericalError, StoreError, UsageError
from distmom.models import (
    AnchorTopics,
    IndependentTopics,
    SingleTopic,
    SpectralLDA,
    load_model,
    topic_model,
)
from distmom.models.planning import plan_fit
from distmom.models.polish import complete, polish_topics, start_topics
from distmom.moments.shares import folds_of
from distmom.simulate.multilabel import planted
from distmom.simulate.topics import TopicPopulation


def matched(found, truth):
    """Mean L1 distance of the best matching of rows, and the order of the rows of ``found``."""
    cost = np.abs(truth[:, None, :] - found[None, :, :]).sum(axis=2)
    rows, columns = linear_sum_assignment(cost)
    return cost[rows, columns].mean(), columns


def tiny(alpha=(0.3, 0.8, 0.5), d=6, seed=1):
    rng = np.random.default_rng(seed)
    return TopicPopulation(alpha, rng.dirichlet(np.full(d, 0.5), len(alpha)).T)


def population_corpus(population, lengths=(3, 4)):
    parts = [population.enumerate(n) for n in lengths]
    weights = np.concatenate([w for _, w in parts]) / len(parts)
    return WeightedCorpus(vstack([c for c, _ in parts]).astype(int), None, weights, shard_documents=40)


def pure(k, **options):
    """Moments alone, of all words."""
    exact = {"min_df": 0.0, "max_df": 1.0, "max_count": None, "precision": "double"}
    return SpectralLDA(k, n_polish=0, start="tensor", **{**exact, **options})


@pytest.mark.parametrize("decomposition", ["joint", "power"])
@pytest.mark.parametrize("scale_words", [True, False])
@pytest.mark.parametrize("weighting", ["tokens", "document"])
def test_exact_population_gives_back_topics_and_dirichlet_parameters(decomposition, scale_words, weighting):
    population = tiny()
    model = pure(
        3,
        alpha0=1.6,
        n_oversamples=3,
        scale_words=scale_words,
        decomposition=decomposition,
        weighting=weighting,
    ).fit_corpus(population_corpus(population))
    distance, order = matched(model.components_, population.topics.T)
    assert distance < 1e-10
    assert_allclose(model.weights_[order], population.alpha / 1.6, atol=1e-10)
    assert model.diagnostics_["sum_proportions"] == pytest.approx(1.0, abs=1e-10)
    assert model.diagnostics_["residual"] < 1e-10


def test_moments_of_some_words_are_exact_too():
    """Lengths count all words: the moments of the others are a block of the whole."""
    population = tiny(d=7)
    corpus = population_corpus(population)
    # Not the frequencies of the population, but they tell the words apart.
    share = np.asarray(corpus.document_frequency) / corpus.n_documents
    share[0] = corpus.document_frequency[0] = 0
    low = 0.1
    model = pure(3, alpha0=1.6, n_oversamples=2, min_df=low).fit_corpus(corpus)
    seen = share > low
    assert seen.sum() == 6
    assert_array_equal(model.components_[:, ~seen], 0.0)
    expected = population.topics[seen] / population.topics[seen].sum(axis=0)
    assert matched(model.components_[:, seen], expected.T)[0] < 1e-10
    assert_allclose(np.sort(model.weights_), np.sort(population.alpha / 1.6), atol=1e-10)


def test_exact_population_of_one_topic_a_document():
    population = planted(6, 3, 3, random_state=1)
    parts = [population.enumerate(n, 1) for n in (3, 4)]
    weights = np.concatenate([p.weights for p in parts]) / 2
    corpus = WeightedCorpus(vstack([p.words for p in parts]).astype(int), None, weights, shard_documents=50)
    exact = {"min_df": 0.0, "max_df": 1.0, "max_count": None, "precision": "double"}
    model = SingleTopic(3, n_polish=0, n_oversamples=3, **exact).fit_corpus(corpus)
    distance, order = matched(model.components_, population.O.T)
    assert distance < 1e-10
    assert_allclose(model.weights_[order], population.pi, atol=1e-10)


def test_exact_population_with_anchor_words():
    """Every topic has a word of its own, so that anchors give back the topics."""
    rng = np.random.default_rng(0)
    topics = np.vstack([np.diag([0.3, 0.2, 0.25]), rng.dirichlet(np.ones(4), 3).T * [0.7, 0.8, 0.75]])
    population = TopicPopulation([0.3, 0.8, 0.5], topics)
    exact = {"min_df": 0.0, "max_df": 1.0, "max_count": None, "precision": "double"}
    model = AnchorTopics(3, n_polish=0, n_oversamples=4, **exact).fit_corpus(population_corpus(population))
    # Least squares end at a change of 1e-4.
    assert matched(model.components_, topics.T)[0] < 5e-3
    assert set(model.diagnostics_["anchors"]) == set(model.vocabulary_[:3])


def lda_corpus(n=2000, d=200, k=5, length=60, seed=0, shard_documents=300):
    rng = np.random.default_rng(seed)
    population = TopicPopulation(np.full(k, 0.2), rng.dirichlet(np.full(d, 0.1), k).T)
    counts, shares = population.sample(n, length, seed=seed + 1)
    return population, shares, MemoryCorpus(counts, shard_documents=shard_documents)


def test_errors_fall_with_the_root_of_the_number_of_documents():
    sizes, errors = np.array([1000, 4000, 16000]), []
    for n in sizes:
        found = []
        for seed in range(3):
            population, _, corpus = lda_corpus(int(n), d=60, k=4, length=30, seed=seed, shard_documents=4000)
            model = pure(4, alpha0=0.8, n_oversamples=20, precision="single").fit_corpus(corpus)
            found.append(matched(model.components_, population.topics.T)[0])
        errors.append(np.median(found))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.7 < slope < -0.35


def factorial_law(means):
    """Probabilities of 0 to 3 with the first three factorial moments of Poisson laws, for means up to one."""
    return np.stack(
        [1 - means + means**2 / 2 - means**3 / 6, means - means**2 + means**3 / 2,
         (means**2 - means**3) / 2, means**3 / 6], axis=-1,
    )  # fmt: skip


def independent_population(topics, odds, sizes):
    """All documents of counts up to 3 about topics of which each is there, in some amount, or not."""
    d, k = topics.shape
    counts = np.array(list(product(range(4), repeat=d)))
    weights = np.zeros(len(counts))
    for there in product((0, 1), repeat=k):
        chance = np.prod(np.where(there, odds, 1 - odds))
        law = factorial_law(topics @ (there * sizes))
        weights += chance * np.prod(law[np.arange(d), counts], axis=1)
    return WeightedCorpus(counts, None, weights, shard_documents=300)


@pytest.mark.parametrize("scale_words", [True, False])
def test_exact_population_of_independent_amounts(scale_words):
    rng = np.random.default_rng(3)
    topics = rng.dirichlet(np.full(5, 0.7), 3).T
    odds, sizes = np.array([0.2, 0.3, 0.15]), np.array([0.4, 0.3, 0.25])
    corpus = independent_population(topics, odds, sizes)
    assert corpus.row_weights.min() >= 0.0
    exact = {"min_df": 0.0, "max_df": 1.0, "precision": "double", "scale_words": scale_words}
    model = IndependentTopics(3, n_polish=0, n_oversamples=2, **exact).fit_corpus(corpus)
    distance, order = matched(model.components_, topics.T)
    assert distance < 1e-10
    assert_allclose(model.weights_[order], odds * sizes / (odds * sizes).sum(), atol=1e-10)
    skewness = (1 - 2 * odds) / np.sqrt(odds * (1 - odds))
    assert_allclose(np.array(model.diagnostics_["skewness"])[order], skewness, atol=1e-8)


def test_no_held_out_position_chooses_nothing(caplog):
    """The documents held out are empty, so that there is nothing to complete."""
    counts = lda_corpus(n=60, d=20, k=2)[2].read_shard(0).words.toarray()
    counts[topic_model.held_out(MemoryCorpus(counts), 0).mask(0, 60)] = 0
    model = SpectralLDA(2, max_df=1.0, min_df=0.0, n_polish=1).fit(counts)
    assert model.selection_ is None
    assert "no held-out document has words" in caplog.text


def test_a_background_topic_needs_polish():
    with pytest.raises(UsageError, match="expected n_polish of at least 1"):
        SpectralLDA(3, background=True, n_polish=0).fit(np.ones((5, 4), int))


def test_counts_without_topics_are_no_error_of_use():
    """The whitened tensor is noise, and what rounding makes of it is not symmetric to six digits."""
    counts = np.random.default_rng(0).poisson(1.0, (200, 30))
    for kind in (SingleTopic, SpectralLDA, AnchorTopics):
        assert kind(2, max_df=1.0).fit(counts).components_.shape == (2, 30)


def test_counts_that_vary_less_than_poisson_counts_have_no_amounts():
    counts = np.full((50, 4), 3)
    with pytest.raises(NumericalError, match="no number of components can be learned"):
        IndependentTopics(2, min_df=0.0, max_df=1.0).fit(counts)


def test_errors_of_independent_amounts_fall_likewise():
    """Amounts of Gamma laws of several shapes, whose skewness is two over the root of the shape."""
    sizes, errors, skewness = np.array([1000, 4000, 16000]), [], []
    shapes = np.array([0.3, 0.5, 0.8, 1.0])
    for n in sizes:
        found = []
        for seed in range(3):
            rng = np.random.default_rng(seed)
            topics = rng.dirichlet(np.full(80, 0.1), 4)
            counts = rng.poisson(rng.gamma(shapes, 15.0, (n, 4)) @ topics)
            model = IndependentTopics(4, n_polish=0, min_df=0.0, max_df=1.0).fit(counts)
            distance, order = matched(model.components_, topics)
            found.append(distance)
            skewness.append(np.array(model.diagnostics_["skewness"])[order])
        errors.append(np.median(found))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.7 < slope < -0.3
    assert_allclose(np.mean(skewness[-3:], axis=0), 2 / np.sqrt(shapes), rtol=0.15)


def test_polish_improves_moments_and_shares_are_found():
    population, shares, corpus = lda_corpus()
    truth = population.topics.T
    distances = []
    for n_polish in (0, 1, 4):
        model = SpectralLDA(
            5, alpha0=1.0, start="tensor", n_polish=n_polish, min_df=0.0, max_df=1.0, max_count=None
        ).fit_corpus(corpus)
        distance, order = matched(model.components_, truth)
        distances.append(distance)
        assert_allclose(model.components_.sum(axis=1), 1.0, atol=1e-5)
        assert_allclose(model.weights_[order], shares.mean(axis=0), atol=0.05)
    assert distances[0] < 0.08
    assert distances[2] < distances[0]
    rising = model.diagnostics_["log_likelihoods"]
    assert len(rising) == 4
    assert rising == sorted(rising)
    X = corpus.read_shard(0).words
    for method, bound in (("vb", 0.2), ("fast", 0.3)):
        found = model.transform(X, method)[:, order]
        assert_allclose(found.sum(axis=1), 1.0, atol=1e-5)
        assert np.abs(found - shares[:300]).sum(axis=1).mean() < bound
    with pytest.raises(UsageError, match="method: expected one of vb, fast, got 'slow'"):
        model.transform(X, "slow")


@pytest.mark.parametrize("polish", ["em", "vb", "cvb"])
def test_the_start_is_chosen_on_documents_held_out(polish):
    population, _, corpus = lda_corpus()
    model = SpectralLDA(5, polish=polish, min_df=0.0, max_df=1.0).fit_corpus(corpus)
    tried = model.selection_["perplexity"]
    assert set(tried) == {"tensor-1", "tensor-5", "anchors"}
    assert model.start_ == min(tried, key=tried.get)
    assert 100 < model.selection_["n_held_out"] < 300
    assert matched(model.components_, population.topics.T)[0] < 0.15
    made = Counter(timing["name"] for timing in model.timings_)
    planned = Counter({p.name: p.n_scans for p in plan_fit(SpectralLDA(5, polish=polish), corpus)})
    assert made == planned


def test_large_corpora_try_starts_on_a_sample(monkeypatch):
    population, _, corpus = lda_corpus()
    monkeypatch.setattr(topic_model, "TRIAL_DOCUMENTS", 500)
    model = SpectralLDA(5, n_polish=2, min_df=0.0, max_df=1.0).fit_corpus(corpus)
    made = Counter(timing["name"] for timing in model.timings_)
    # One pass for each of three starts on the sample, and two over all documents.
    assert made["polish"] == 5
    assert made == Counter({p.name: p.n_scans for p in plan_fit(SpectralLDA(5, n_polish=2), corpus)})
    assert matched(model.components_, population.topics.T)[0] < 0.2


def test_variational_bayes_finds_the_dirichlet_parameters():
    _, _, corpus = lda_corpus(n=4000, length=80)
    model = SpectralLDA(5, alpha0=1.0, start="tensor", polish="vb", n_polish=6).fit_corpus(corpus)
    assert model.alpha_.sum() == pytest.approx(1.0, rel=0.3)
    assert len(plan_fit(model, corpus)) == 4


@pytest.mark.parametrize(("length", "how"), [(12, "cvb"), (60, "em")])
def test_short_documents_are_polished_by_collapsed_variational_bayes(length, how):
    _, _, corpus = lda_corpus(n=500, length=length)
    model, other = (SpectralLDA(5, max_df=1.0, polish=polish).fit_corpus(corpus) for polish in ("auto", how))
    assert model.diagnostics_["polish"] == how
    assert_allclose(model.components_, other.components_)
    assert_allclose(model.alpha_, other.alpha_)
    made = Counter(timing["name"] for timing in model.timings_)
    assert made == Counter({p.name: p.n_scans for p in plan_fit(SpectralLDA(5, max_df=1.0), corpus)})


def test_few_words_of_a_document_do_not_confirm_themselves():
    population, _, corpus = lda_corpus(n=2000, d=500, k=10, length=6)
    options = {"alpha0": 2.0, "start": "tensor", "min_df": 0.0, "max_df": 1.0}
    em, vb, cvb = (
        matched(SpectralLDA(10, polish=how, **options).fit_corpus(corpus).components_, population.topics.T)[0]
        for how in ("em", "vb", "cvb")
    )
    assert cvb < 0.98 * vb < 0.9 * em


def test_the_share_of_words_that_most_documents_have_is_told():
    counts = np.array([[3, 1, 0, 1], [2, 0, 1, 0], [1, 1, 0, 0], [4, 0, 1, 0], [2, 0, 0, 1]] * 20)
    for polish in ("cvb", "vb"):
        model = SpectralLDA(2, alpha0=1.0, start="tensor", polish=polish, max_df=0.4, min_df=0.0).fit(counts)
        assert model.diagnostics_["common_words"] == pytest.approx(12 / 18)
        # In so few words the moments carry one topic.
        assert_allclose(model.components_.sum(axis=1), 1.0, rtol=1e-6)
    assert model.alpha_ == pytest.approx([1.0])


def test_a_step_of_polish_goes_further_unless_the_one_before_overshot():
    _, _, corpus = lda_corpus(n=300, d=50, k=3)
    rng = np.random.default_rng(1)
    start = rng.dirichlet(np.ones(50), 3).T.astype(np.float32)
    with open_engine(corpus) as engine:
        stored = StoredColumns((engine.put(start),))
        for last, power in (((), 1.0), ((-100.0,), 1.5), ((0.0,), 1.0)):
            topics = replace(start_topics(stored, np.full(3, 1 / 3)), smoothing=0.0, log_likelihoods=last)
            found = polish_topics(engine, topics, "em", 1)
            plain = polish_topics(engine, replace(topics, log_likelihoods=()), "em", 1)
            step = np.asarray(plain.matrix.load().parts[0], np.float64)
            expected = step**power * start.astype(np.float64) ** (1 - power)
            assert_allclose(found.matrix.load().parts[0], expected / expected.sum(axis=0), rtol=1e-5)


@pytest.mark.parametrize("n_folds", [1, 3])
def test_a_step_of_polish_makes_the_topics_of_a_fold_of_the_others(n_folds):
    _, _, corpus = lda_corpus(n=300, d=50, k=3)
    start = np.random.default_rng(1).dirichlet(np.ones(50), 3).T.astype(np.float32)
    words = corpus.read_shard(0).words
    folds = folds_of(words, n_folds)
    with open_engine(corpus) as engine:
        begin = start_topics(StoredColumns((engine.put(start),)), np.full(3, 1 / 3), n_folds)
        begin = replace(begin, smoothing=0.0)
        found = polish_topics(engine, begin, "em", 1)
        whole = found.matrix.load().parts[0]
        by_fold = found.by_fold.load().parts
    assert len(by_fold) == n_folds
    for fold in range(n_folds):
        others = words[folds != fold] if n_folds > 1 else words
        with open_engine(MemoryCorpus(others)) as engine:
            begin = replace(
                start_topics(StoredColumns((engine.put(start),)), np.full(3, 1 / 3)), smoothing=0.0
            )
            alone = polish_topics(engine, begin, "em", 1).matrix.load().parts[0]
        assert_allclose(by_fold[fold], alone, rtol=1e-5)
    with open_engine(corpus) as engine:
        begin = replace(start_topics(StoredColumns((engine.put(start),)), np.full(3, 1 / 3)), smoothing=0.0)
        assert_allclose(whole, polish_topics(engine, begin, "em", 1).matrix.load().parts[0], rtol=1e-5)


def test_folds_are_for_corpora_with_few_positions_for_every_number(monkeypatch):
    population, _, corpus = lda_corpus(n=400, d=1000, k=20)
    others, _ = population.sample(400, 60, seed=9)
    model = SpectralLDA(20, max_df=1.0, n_polish=6)
    assert model.n_folds(corpus) == 4
    assert SingleTopic(20).n_folds(corpus) == 1
    perplexities = []
    for enough in (0.0, 4.0):
        monkeypatch.setattr(topic_model, "ENOUGH_POSITIONS", enough)
        fitted = clone(model).fit_corpus(corpus)
        made = Counter(timing["name"] for timing in fitted.timings_)
        assert made == Counter({p.name: p.n_scans for p in plan_fit(model, corpus)})
        with open_engine(MemoryCorpus(others)) as engine:
            topics = StoredColumns((engine.put(np.ascontiguousarray(fitted.components_.T)),))
            perplexities.append(complete(engine, topics, fitted.weights_).perplexity)
    # What a document says of rare words does not come back to it.
    assert perplexities[1] < 0.995 * perplexities[0]
    assert SpectralLDA(50).n_folds(corpus) == 4
    assert SpectralLDA(51).n_folds(corpus) == 1
    monkeypatch.setattr(topic_model, "MOST_FREE", 20 * corpus.n_words - 1)
    assert model.n_folds(corpus) == 1


def test_a_mixture_is_polished_as_one():
    population = planted(150, 4, 4, random_state=0)
    documents = population.sample(0, 1500, words_per_document=(20, 40), labels_per_document=1, random_state=0)
    model = SingleTopic(4, min_df=0.0, max_df=1.0).fit(documents.words.astype(int))
    distance, order = matched(model.components_, population.O.T)
    assert distance < 0.15
    found = model.transform(documents.words.astype(int))[:, order].argmax(axis=1)
    assert (found == documents.states).mean() > 0.98
    assert_allclose(model.alpha_, model.weights_)


@pytest.mark.parametrize(
    "model", [SpectralLDA(5), SingleTopic(5), AnchorTopics(5)], ids=lambda m: type(m).__name__
)
def test_saved_models_are_the_same_and_damage_is_told(model, tmp_path):
    _, _, corpus = lda_corpus(800)
    X = corpus.read_shard(0).words
    model = clone(model).fit_corpus(corpus)
    model.save(tmp_path / "m")
    again = load_model(tmp_path / "m")
    assert type(again) is type(model)
    assert again.get_params() == model.get_params()
    assert_array_equal(again.transform(X), model.transform(X))
    assert again.topics(3) == model.topics(3)
    with pytest.raises(UsageError, match="the model exists"):
        model.save(tmp_path / "m")
    with pytest.raises(UsageError, match="expected"):
        next(c for c in (SpectralLDA, SingleTopic) if c is not type(model)).load(tmp_path / "m")
    vocabulary = tmp_path / "m" / "vocabulary.txt"
    vocabulary.write_text(vocabulary.read_text().replace("1", "one"))
    with pytest.raises(StoreError, match=r"vocabulary\.txt: expected sha256"):
        load_model(tmp_path / "m")


def test_a_resumed_fit_gives_the_same_bits(tmp_path):
    _, _, corpus = lda_corpus(900)
    expected = SpectralLDA(5).fit_corpus(corpus)
    seen = []

    def stop(event):
        seen.append(event)
        if sum(isinstance(e, PassDone) for e in seen) == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SpectralLDA(5).fit_corpus(corpus, run=tmp_path, observer=stop)
    events = []
    resumed = SpectralLDA(5).fit_corpus(corpus, run=tmp_path, observer=events.append)
    done = [event.resumed for event in events if isinstance(event, PassDone)]
    assert done == [True] * 13 + [False] * (len(expected.timings_) - 13)
    assert_array_equal(resumed.components_, expected.components_)
    assert_array_equal(resumed.alpha_, expected.alpha_)


@pytest.mark.cluster
def test_any_number_of_workers_gives_the_same_bits():
    _, _, corpus = lda_corpus(900)
    expected = SpectralLDA(5).fit_corpus(corpus)
    with open_executor(workers=2) as executor:
        found = SpectralLDA(5).fit_corpus(corpus, client=executor)
    assert_array_equal(found.components_, expected.components_)
    assert_array_equal(found.alpha_, expected.alpha_)


def test_a_background_takes_the_words_that_all_documents_share():
    population, _, _ = lda_corpus(n=10)
    # Half of every document is of common words.
    common = np.random.default_rng(3).dirichlet(np.ones(20))
    widened = np.vstack([0.5 * population.topics, np.outer(0.5 * common, np.ones(5))])
    counts = TopicPopulation(population.alpha, widened).sample(2000, 120, seed=4)[0]
    model = SpectralLDA(6, background=True, alpha0=1.0, start="tensor", min_df=0.0).fit(counts)
    plain = SpectralLDA(5, alpha0=1.0, start="tensor", min_df=0.0).fit(counts)
    assert model.components_.shape == (6, 220)
    mass = model.components_[:, 200:].sum(axis=1)
    most = int(np.argmax(mass))
    assert mass[most] > 0.7
    assert np.delete(mass, most).max() < plain.components_[:, 200:].sum(axis=1).min()
    assert len(model.transform(counts)[0]) == 6


def test_topics_are_ranked_by_their_share():
    _, _, corpus = lda_corpus(800)
    model = SpectralLDA(5, alpha0=1.0, start="tensor").fit_corpus(corpus)
    found = model.topics(4)
    weights = [topic["weight"] for topic in found]
    assert weights == sorted(weights, reverse=True)
    for topic in found:
        row = model.components_[topic["state"]]
        assert [p for _, p in topic["words"]] == pytest.approx(np.sort(row)[::-1][:4])
    unigram = model.unigram_.astype(float)
    for by, score in (
        ("lift", lambda row: row / unigram),
        ("relevance", lambda row: 0.6 * np.log(row) + 0.4 * np.log(row / unigram)),
    ):
        for topic in model.topics(4, by):
            row = model.components_[topic["state"]].astype(float)
            best = np.argsort(-score(row), kind="stable")[:4]
            assert [word for word, _ in topic["words"]] == [model.vocabulary_[i] for i in best]
            assert [p for _, p in topic["words"]] == pytest.approx(row[best])
    with pytest.raises(UsageError, match="by: expected one of probability, relevance, lift, got 'fame'"):
        model.topics(4, "fame")
    given = model.pyldavis_input(50)
    assert len(given["vocab"]) == 50
    assert given["topic_term_dists"].shape == (5, 50)
    assert_allclose(given["topic_term_dists"].sum(axis=1), 1.0)
    assert_allclose(given["doc_topic_dists"].T @ given["doc_lengths"] / 1e6, model.weights_)
    assert set(given["vocab"]) == {model.vocabulary_[i] for i in np.argsort(-unigram, kind="stable")[:50]}
    similar = model.similar_topics()
    assert_allclose(np.diag(similar), 1.0, atol=1e-6)
    a, b = model.components_[:2].astype(float)
    assert similar[0, 1] == pytest.approx(np.sqrt(a * b).sum())


@pytest.mark.parametrize("n_polish", [4, 0])
def test_pyldavis_draws_the_topics_of_the_model(n_polish):
    """Also of moments alone, where most topics lack some words and a few words have no topic."""
    vis = pytest.importorskip("pyLDAvis")
    population, _, _ = lda_corpus(n=10)
    counts = population.sample(1500, 60, seed=2)[0].toarray()
    rare = np.zeros((1500, 3), int)
    rare[:2] = 1
    model = SpectralLDA(5, alpha0=1.0, start="tensor", n_polish=n_polish)
    model.fit(np.hstack([counts, rare]))
    unseen = {model.vocabulary_[i] for i in np.flatnonzero(model.components_.max(axis=0) == 0.0)}
    assert bool(unseen) == (n_polish == 0)
    drawn = vis.prepare(**model.pyldavis_input(), n_jobs=1)
    order = np.argsort(-model.weights_, kind="stable")
    assert drawn.topic_order == (order + 1).tolist()
    assert_allclose(drawn.topic_coordinates["Freq"], 100.0 * model.weights_[order], rtol=1e-6)
    assert not {"Infinity", "NaN"} & set(drawn.to_json().replace(":", " ").replace(",", " ").split())
    mixture = model.weights_ @ model.components_.astype(float)
    for place, topic in enumerate(order, 1):
        listed = drawn.topic_info[drawn.topic_info["Category"] == f"Topic{place}"]
        columns = [model.vocabulary_.index(word) for word in listed["Term"]]
        row = model.components_[topic, columns].astype(float)
        has = row > 0.0
        # It rounds logarithms to four digits.
        assert_allclose(listed["logprob"][has], np.log(row[has]), atol=1e-4)
        assert_allclose(listed["loglift"][has], np.log(row[has] / mixture[columns][has]), atol=1e-4)
        assert not unseen & set(listed["Term"])
        for part in (0.0, 0.4, 1.0):
            score = np.log(np.maximum(model.components_[topic], 1e-12)) - part * np.log(
                np.maximum(mixture, 1e-12)
            )
            best = [model.vocabulary_[i] for i in np.argsort(-score, kind="stable")[:5]]
            relevance = (1.0 - part) * listed["logprob"] + part * listed["loglift"]
            assert listed["Term"][relevance.sort_values(ascending=False).index[:5]].tolist() == best


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"alpha0": -1.0}, "alpha0: expected a number from 0 on, or 'auto', got -1"),
        ({"alpha0": "much"}, "alpha0: expected a number from 0 on, or 'auto', got 'much'"),
        ({"start": "random"}, "start: expected one of auto, tensor, anchors"),
        ({"min_df": 0.6}, "expected 0 <= min_df <= max_df <= 1"),
        ({"n_polish": -1}, "n_polish: expected at least 0"),
        ({"eta": 0.0}, "eta: expected more than 0"),
        ({"min_df": 0.99, "max_df": 1.0}, "n_components=5 needs as many words, but only 0 of 200"),
    ],
)
def test_what_does_not_go_together_is_refused(parameters, message):
    corpus = lda_corpus(300)[2]
    with pytest.raises(UsageError, match=message):
        SpectralLDA(5, **parameters).fit_corpus(corpus)


def test_negative_counts_and_other_vocabularies_are_refused():
    corpus = lda_corpus(300)[2]
    with pytest.raises(InputError, match="Negative values"):
        SpectralLDA(2).fit(np.array([[1, -1], [2, 3]]))
    model = SpectralLDA(5, alpha0=1.0, start="tensor").fit_corpus(corpus)
    with pytest.raises(UsageError, match="X has 3 features, but SpectralLDA is expecting 200"):
        model.transform(np.ones((2, 3)))
    assert model.transform(np.ones((0, 200))).shape == (0, 5)


@parametrize_with_checks([
    SpectralLDA(2, alpha0=1.0, start="tensor", min_df=0.0, max_df=1.0),
    AnchorTopics(2, min_df=0.0, max_df=1.0),
    SingleTopic(2, min_df=0.0, max_df=1.0),
])  # fmt: skip
def test_scikit_learn_contract(estimator, check):
    check(estimator)
