from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers import carried_out, lda_corpus, matched_topics
from numpy.testing import assert_allclose
from sklearn.base import clone

from distmom.corpus import MemoryCorpus
from distmom.engine import StoredColumns, open_engine
from distmom.errors import UsageError
from distmom.models import AnchorTopics, SingleTopic, SpectralLDA
from distmom.models.topics import choice, settings, steps
from distmom.models.topics.initial import Initial
from distmom.models.topics.refine import Completion, _near, complete, initial_topics, refine_topics
from distmom.models.topics.steps import Topics
from distmom.moments.documents.shares import folds_of
from distmom.simulate.multilabel import planted
from distmom.simulate.topics import TopicPopulation


def test_no_held_out_position_chooses_nothing(caplog):
    """The documents held out are empty, so that there is nothing to complete."""
    counts = lda_corpus(n=60, d=20, k=2)[2].read_shard(0).words.toarray()
    counts[choice.held_out(MemoryCorpus(counts), 0).mask(0, 60)] = 0
    model = SpectralLDA(2, max_df=1.0, min_df=0.0, n_refine=1).fit(counts)
    assert model.selection_ is None
    assert "no held-out document has enough words" in caplog.text


def test_a_background_topic_needs_refine():
    with pytest.raises(UsageError, match="expected n_refine of at least 1"):
        SpectralLDA(3, background=True, n_refine=0).fit(np.ones((5, 4), int))


def test_refine_improves_moments_and_shares_are_found():
    population, shares, corpus = lda_corpus()
    truth = population.topics.T
    distances = []
    for n_refine in (0, 1, 4):
        model = SpectralLDA(
            5, alpha0=1.0, init="tensor", n_refine=n_refine, min_df=0.0, max_df=1.0, max_count=None
        ).fit_corpus(corpus)
        distance, order = matched_topics(model.components_, truth)
        distances.append(distance)
        assert_allclose(model.components_.sum(axis=1), 1.0, atol=1e-5)
        assert_allclose(model.weights_[order], shares.mean(axis=0), atol=0.05)
    assert distances[0] < 0.08
    assert distances[2] < distances[0]
    likelihoods = model.diagnostics_["log_likelihoods"]
    assert len(likelihoods) == 4
    assert likelihoods == sorted(likelihoods)
    X = corpus.read_shard(0).words
    for method, bound in (("vb", 0.2), ("fast", 0.3)):
        found = model.transform(X, method)[:, order]
        assert_allclose(found.sum(axis=1), 1.0, atol=1e-5)
        assert np.abs(found - shares[:300]).sum(axis=1).mean() < bound
    with pytest.raises(UsageError, match="method: expected one of vb, fast, got 'slow'"):
        model.transform(X, "slow")


@pytest.mark.parametrize("refine", ["em", "vb", "cvb"])
def test_initial_topics_are_chosen_on_documents_held_out(refine):
    population, _, corpus = lda_corpus()
    model = SpectralLDA(5, refine=refine, min_df=0.0, max_df=1.0).fit_corpus(corpus)
    tried = model.selection_["perplexity"]
    assert set(tried) == {"tensor-1", "tensor-5", "anchors"}
    assert model.init_ == min(tried, key=tried.get)
    assert 100 < model.selection_["n_held_out"] < 300
    assert matched_topics(model.components_, population.topics.T)[0] < 0.15
    assert_passes_are_planned(model, corpus)


def assert_passes_are_planned(model, corpus):
    """All passes that are certain were made, and no others than planned."""
    made = Counter(timing["name"] for timing in model.timings_)
    planned = model.plan(corpus).passes
    assert Counter(p.name for p in planned if not p.possible) <= made
    assert made <= Counter(p.name for p in planned)


def test_large_corpora_try_initial_topics_on_a_sample(monkeypatch):
    population, _, corpus = lda_corpus()
    monkeypatch.setattr(choice, "TRIAL_DOCUMENTS", 500)
    model = SpectralLDA(5, n_refine=2, min_df=0.0, max_df=1.0).fit_corpus(corpus)
    made = Counter(timing["name"] for timing in model.timings_)
    # One pass for each of three initialisations on the sample, another for the best, and two over all.
    assert made["refine"] == 6
    assert made == Counter(p.name for p in SpectralLDA(5, n_refine=2).plan(corpus).passes)
    assert matched_topics(model.components_, population.topics.T)[0] < 0.2


@pytest.mark.parametrize("refine", ["em", "cvb"])
def test_documents_held_out_are_added_back(refine):
    """As a fit with the same initialisation, except that the basis excludes the held-out documents."""
    _, _, corpus = lda_corpus()
    options = {"refine": refine, "min_df": 0.0, "max_df": 1.0}
    model = SpectralLDA(5, **options).fit_corpus(corpus)
    assert model.init_ in ("tensor-1", "tensor-5")
    alpha0 = float(model.init_.removeprefix("tensor-"))
    fixed = SpectralLDA(5, init="tensor", alpha0=alpha0, **options).fit_corpus(corpus)
    assert matched_topics(model.components_, fixed.components_)[0] < 0.004
    assert model.alpha_.sum() == pytest.approx(fixed.alpha_.sum())
    for found in (model, fixed):
        # All documents count in the moments, and in every pass over their words.
        assert found.diagnostics_["n_documents"] == corpus.n_documents
        assert len(found.diagnostics_["log_likelihoods"]) == found.n_refine_passes(corpus)


@pytest.mark.parametrize("model", [SpectralLDA(10, init="tensor", alpha0=1.0), AnchorTopics(10)])
def test_documents_that_topics_were_not_made_of_tell_how_documents_are_read(model):
    """There are so few that topics learn them by heart, and seem to need no prior."""
    law = np.random.default_rng(0).dirichlet(np.full(3000, 0.05), 10)
    population = TopicPopulation(np.full(10, 0.3), law.T)
    model.fit(population.sample(300, 60, seed=1)[0])
    others = MemoryCorpus(population.sample(1000, 60, seed=2)[0])
    with open_engine(others) as engine:
        topics = StoredColumns((engine.put(np.ascontiguousarray(model.components_.T, np.float32)),))
        options = {"unigram": engine.put(model.unigram_[:, None])}
        best = carried_out(engine, complete, topics, model.alpha_, **options)
        own = carried_out(engine, complete, topics, model.alpha_, alpha_sums=(model.alpha_.sum(),), **options)
    # It was 1 % with the documents that the topics were made of.
    assert own.perplexity < 1.003 * best.perplexity


def test_variational_bayes_finds_the_dirichlet_parameters():
    _, _, corpus = lda_corpus(n=4000, length=80)
    model = SpectralLDA(5, alpha0=1.0, init="tensor", refine="vb", n_refine=6).fit_corpus(corpus)
    assert model.alpha_.sum() == pytest.approx(1.0, rel=0.3)
    assert "completion" not in {p.name for p in model.plan(corpus).passes}


@pytest.mark.parametrize(("length", "how", "n_passes"), [(12, "cvb", 2), (60, "cvb", 4), (120, "em", 4)])
def test_long_documents_are_refined_by_em_and_others_by_collapsed_variational_bayes(length, how, n_passes):
    _, _, corpus = lda_corpus(n=500, length=length)
    model, other = (SpectralLDA(5, max_df=1.0, refine=refine).fit_corpus(corpus) for refine in ("auto", how))
    assert model.diagnostics_["refine"] == how
    assert model.n_refine_passes(corpus) == n_passes
    assert_allclose(model.components_, other.components_)
    assert_allclose(model.alpha_, other.alpha_)
    assert_passes_are_planned(model, corpus)


@pytest.mark.parametrize(
    ("length", "how", "is_relaxed"), [(12, "cvb", False), (60, "cvb", True), (12, "em", True)]
)
def test_steps_are_over_relaxed_but_for_collapsed_variational_bayes_of_short_documents(
    length, how, is_relaxed, monkeypatch
):
    _, _, corpus = lda_corpus(n=500, length=length)
    model = SpectralLDA(5, alpha0=1.0, init="tensor", max_df=1.0, refine=how, n_refine=4)
    found = model.fit_corpus(corpus).components_
    monkeypatch.setattr(steps, "RELAXATION", 1.0)
    plain = model.fit_corpus(corpus).components_
    # Without relaxation the last bits may differ, as the topics are scaled once more.
    assert (np.abs(found - plain).max() > 1e-4) == is_relaxed


@pytest.mark.parametrize(("gain", "taken"), [(-np.inf, 24), (np.inf, 0)])
def test_passes_are_added_as_long_as_held_out_documents_gain(gain, taken, monkeypatch):
    """Without a gain the fit is that of four passes, bit for bit."""
    _, _, corpus = lda_corpus(n=600, length=40)
    monkeypatch.setattr(choice, "LEAST_GAIN", gain)
    monkeypatch.setattr(choice, "SHARED", 0.0)
    monkeypatch.setattr(choice, "_with_further", with_further(gain < 0.0))
    model, usual = (SpectralLDA(5, max_df=1.0, n_refine=n).fit_corpus(corpus) for n in ("auto", 4))
    assert model.diagnostics_["trial_passes"] == taken
    assert list(model.diagnostics_["trial_perplexity"]) == (["4", "8", "16", "24"] if taken else ["4", "8"])
    assert (model.components_ == usual.components_).all() == (not taken)
    assert len(model.diagnostics_["log_likelihoods"]) == 4
    made = Counter(timing["name"] for timing in model.timings_)
    assert made["refine"] == 3 + 1 + (22 if taken else 6) + 4
    assert_passes_are_planned(model, corpus)


def test_no_passes_are_added_to_those_of_large_corpora(monkeypatch):
    _, _, corpus = lda_corpus(n=300)
    positions = float(corpus.word_frequency.sum())
    for part, tried in ((0.04, False), (0.06, True)):
        monkeypatch.setattr(choice, "PART_POSITIONS", part * positions)
        planned = Counter(p.name for p in SpectralLDA(5, max_df=1.0).plan(corpus).passes)
        assert planned["refine"] == 3 + 1 + 4 + (22 + 16) * tried
    given = SpectralLDA(5, max_df=1.0, background=True).plan(corpus).passes
    assert Counter(p.name for p in given)["refine"] == 3 + 1 + 4 + 22


def with_further(always):
    """Return the choice of further passes, whatever their held-out perplexity if ``always``."""
    original = choice._with_further

    def chosen_of(chosen, last):
        worst = replace(chosen.completion, log_likelihood=-np.inf)
        return original(replace(chosen, completion=worst) if always else chosen, last)

    return chosen_of


def test_topics_that_complete_worse_than_those_before_are_not_chosen():
    completions = [Completion(np.ones(2), value, 10, 5) for value in (-7.0, -7.1, -6.9)]
    topics = Topics(StoredColumns(()), StoredColumns(()), np.ones(2), np.ones(2), rows={"shares": None})
    init = Initial("anchors", StoredColumns(()), np.ones(2), None, {})
    before, worse, better = (choice.Chosen(init, topics, each) for each in completions)
    assert choice._with_further(before, replace(worse, n_passes=8)).further is None
    assert choice._with_further(before, replace(better, n_passes=4)).further is None
    further = choice._with_further(before, replace(better, n_passes=8)).further
    assert further.rows == {}
    tried = replace(better, perplexities={"8": 1.0})
    assert choice._preferred(True, before, before, replace(worse)).background is False
    assert choice._preferred(True, before, tried, replace(better)).background is True
    assert choice._preferred(False, before, tried, replace(better)) is before


def shared_corpus(share, n=400, d=200, k=4):
    """Return documents of topics with a share of common words, and the common distribution."""
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.full(d, 0.1))
    topics = share * law + (1.0 - share) * rng.dirichlet(np.full(d, 0.05), k)
    return law, MemoryCorpus(TopicPopulation(np.full(k, 0.3), topics.T).sample(n, 200, seed=1)[0])


@pytest.mark.parametrize("share", [0.95, 0.0])
def test_a_background_topic_is_tried_where_topics_share_words(share):
    _, corpus = shared_corpus(share)
    model = SpectralLDA(4, max_df=1.0).fit_corpus(corpus)
    assert ("background" in model.diagnostics_["trial_perplexity"]) == (share > 0.0)
    assert not (model.diagnostics_["background"] and share == 0.0)
    assert_passes_are_planned(model, corpus)


def test_top_rows_of_slabs_are_those_of_the_whole(monkeypatch):
    monkeypatch.setattr(choice, "SLAB_ROWS", 7)
    values = np.random.default_rng(0).random((40, 3)).astype(np.float32)
    with open_engine(shared_corpus(0.5, d=40)[1]) as engine:
        found = choice.top_rows(StoredColumns((engine.put(values),)), 40, 5)
    assert (np.sort(found, axis=0) == np.sort(np.argsort(-values, axis=0)[:5], axis=0)).all()


def test_the_distribution_of_all_words_replaces_the_topic_that_is_most_like_it():
    law, corpus = shared_corpus(0.5, d=60)
    topics = np.random.default_rng(1).dirichlet(np.full(60, 0.05), 3)
    topics[1] = law
    with open_engine(corpus) as engine:
        stored = StoredColumns((engine.put(np.ascontiguousarray(topics.T, np.float32)),))
        init = Initial("anchors", stored, np.array([0.2, 0.5, 0.3]), None, {})
        assert choice._with_background(engine, False, init)[0] is init.topics
        matrix, shares = choice._with_background(engine, True, init)
        found = np.array(matrix.parts[0].load())
    assert_allclose(found[:, [0, 2]], topics[[0, 2]].T, atol=1e-6)
    frequency = np.asarray(corpus.word_frequency) + 0.1
    assert_allclose(found[:, 1], frequency / frequency.sum(), atol=1e-6)
    assert_allclose(shares, [0.2, 0.5, 0.3])


def test_few_words_of_a_document_do_not_confirm_themselves():
    population, _, corpus = lda_corpus(n=2000, d=500, k=10, length=6)
    options = {"alpha0": 2.0, "init": "tensor", "n_refine": 4, "min_df": 0.0, "max_df": 1.0}
    models = [SpectralLDA(10, refine=how, **options).fit_corpus(corpus) for how in ("em", "vb", "cvb")]
    em, vb, cvb = (matched_topics(model.components_, population.topics.T)[0] for model in models)
    assert cvb < 0.98 * vb < 0.9 * em


def test_a_step_of_refine_goes_further_unless_the_one_before_overshot():
    _, _, corpus = lda_corpus(n=300, d=50, k=3)
    rng = np.random.default_rng(1)
    start = rng.dirichlet(np.ones(50), 3).T.astype(np.float32)
    with open_engine(corpus) as engine:
        stored = StoredColumns((engine.put(start),))
        for last, power in (((), 1.0), ((-100.0,), 1.5), ((0.0,), 1.0)):
            topics = replace(initial_topics(stored, np.full(3, 1 / 3)), smoothing=0.0, log_likelihoods=last)
            found = carried_out(engine, refine_topics, topics, "em", 1)
            plain = carried_out(engine, refine_topics, replace(topics, log_likelihoods=()), "em", 1)
            step = np.asarray(plain.matrix.load().parts[0], np.float64)
            expected = step**power * start.astype(np.float64) ** (1 - power)
            assert_allclose(found.matrix.load().parts[0], expected / expected.sum(axis=0), rtol=1e-5)


@pytest.mark.parametrize("n_folds", [1, 3])
def test_a_step_of_refine_makes_the_topics_of_a_fold_of_the_others(n_folds):
    _, _, corpus = lda_corpus(n=300, d=50, k=3)
    start = np.random.default_rng(1).dirichlet(np.ones(50), 3).T.astype(np.float32)
    words = corpus.read_shard(0).words
    folds = folds_of(words, n_folds)
    with open_engine(corpus) as engine:
        begin = initial_topics(StoredColumns((engine.put(start),)), np.full(3, 1 / 3), n_folds)
        begin = replace(begin, smoothing=0.0)
        found = carried_out(engine, refine_topics, begin, "em", 1)
        whole = found.matrix.load().parts[0]
        by_fold = found.by_fold.load().parts
    assert len(by_fold) == n_folds
    for fold in range(n_folds):
        others = words[folds != fold] if n_folds > 1 else words
        with open_engine(MemoryCorpus(others)) as engine:
            begin = replace(
                initial_topics(StoredColumns((engine.put(start),)), np.full(3, 1 / 3)), smoothing=0.0
            )
            alone = carried_out(engine, refine_topics, begin, "em", 1).matrix.load().parts[0]
        assert_allclose(by_fold[fold], alone, rtol=1e-5)
    with open_engine(corpus) as engine:
        begin = replace(initial_topics(StoredColumns((engine.put(start),)), np.full(3, 1 / 3)), smoothing=0.0)
        assert_allclose(
            whole, carried_out(engine, refine_topics, begin, "em", 1).matrix.load().parts[0], rtol=1e-5
        )


def test_folds_are_for_corpora_with_few_positions_for_every_number(monkeypatch):
    population, _, corpus = lda_corpus(n=400, d=1000, k=20)
    others, _ = population.sample(400, 60, seed=9)
    model = SpectralLDA(20, max_df=1.0, n_refine=6)
    assert model.n_folds(corpus) == 4
    assert SingleTopic(20).n_folds(corpus) == 1
    perplexities = []
    for enough in (0.0, 4.0):
        monkeypatch.setattr(settings, "ENOUGH_POSITIONS", enough)
        fitted = clone(model).fit_corpus(corpus)
        made = Counter(timing["name"] for timing in fitted.timings_)
        assert made == Counter(p.name for p in model.plan(corpus).passes)
        with open_engine(MemoryCorpus(others)) as engine:
            topics = StoredColumns((engine.put(np.ascontiguousarray(fitted.components_.T)),))
            perplexities.append(carried_out(engine, complete, topics, fitted.weights_).perplexity)
    # What a document says of rare words does not come back to it.
    assert perplexities[1] < 0.995 * perplexities[0]
    assert SpectralLDA(50).n_folds(corpus) == 4
    assert SpectralLDA(51).n_folds(corpus) == 1
    monkeypatch.setattr(settings, "MOST_FREE", 20 * corpus.n_words - 1)
    assert model.n_folds(corpus) == 1


def test_a_mixture_is_refined_as_one():
    population = planted(150, 4, 4, random_state=0)
    documents = population.sample(0, 1500, words_per_document=(20, 40), labels_per_document=1, random_state=0)
    model = SingleTopic(4, min_df=0.0, max_df=1.0).fit(documents.words.astype(int))
    distance, order = matched_topics(model.components_, population.O.T)
    assert distance < 0.15
    found = model.transform(documents.words.astype(int))[:, order].argmax(axis=1)
    assert (found == documents.states).mean() > 0.98
    assert_allclose(model.alpha_, model.weights_)


def test_a_background_takes_the_words_that_all_documents_share():
    population, _, _ = lda_corpus(n=10)
    # Half of every document is of common words.
    common = np.random.default_rng(3).dirichlet(np.ones(20))
    widened = np.vstack([0.5 * population.topics, np.outer(0.5 * common, np.ones(5))])
    counts = TopicPopulation(population.alpha, widened).sample(2000, 120, seed=4)[0]
    model = SpectralLDA(6, background=True, alpha0=1.0, init="tensor", min_df=0.0).fit(counts)
    plain = SpectralLDA(5, alpha0=1.0, init="tensor", min_df=0.0).fit(counts)
    assert model.components_.shape == (6, 220)
    mass = model.components_[:, 200:].sum(axis=1)
    most = int(np.argmax(mass))
    assert mass[most] > 0.7
    assert np.delete(mass, most).max() < plain.components_[:, 200:].sum(axis=1).min()
    assert len(model.transform(counts)[0]) == 6


@pytest.mark.parametrize(
    ("best", "near"), [(0.1, (0.1, 0.2, 0.5)), (2.0, (1.0, 2.0, 5.0)), (50.0, (10.0, 20.0, 50.0))]
)
def test_sums_of_dirichlet_parameters_next_to_the_best_are_tried_again(best, near):
    completion = Completion(best * np.array([0.25, 0.75]), -7.0, 100, 10)
    assert _near(completion) == near
