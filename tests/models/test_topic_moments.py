"""Kept moments: added, subtracted, stored, planned, and fitted to."""

import tracemalloc
from collections import Counter, deque

import numpy as np
import pytest
from helpers import WeightedCorpus
from kept import ALL_WORDS, PURE, sample
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linear_sum_assignment
from scipy.sparse import vstack

from distmom.corpus import MemoryCorpus
from distmom.engine import PassDone
from distmom.errors import StoreError, UsageError
from distmom.models import (
    AnchorTopics,
    IndependentTopics,
    SingleTopic,
    SpectralLDA,
    TopicMoments,
    TopicSearch,
    load_model,
)
from distmom.models.topics.sources import part_selections
from distmom.simulate.topics import TopicPopulation


def summed(moments):
    return {name: np.asarray(value) for name, value in moments.sums_.total().items()}


def assert_same_sums(left, right):
    """Equal up to rounding, which is relative to the largest number of each sum."""
    left, right = summed(left), summed(right)
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert_allclose(value, right[name], atol=1e-12 * max(1.0, np.abs(value).max()), rtol=0, err_msg=name)


def test_moments_of_parts_add_up_to_those_of_one_pass():
    _, counts = sample(700)
    one = TopicMoments(3, n_parts=1, **ALL_WORDS).fit(counts)
    some = TopicMoments(3, n_parts=5, **ALL_WORDS).fit(counts)
    assert len(some.sources_[0].parts) == 5
    assert_array_equal(one.basis_, some.basis_)
    assert_same_sums(one, some)


def test_every_document_is_in_one_part():
    for n in range(2, 41):
        masks = [part.mask(0, 3000) for part in part_selections(n, 7)]
        assert_array_equal(np.sum(masks, axis=0), 1)


def test_exact_population_comes_back_from_kept_moments():
    rng = np.random.default_rng(1)
    population = TopicPopulation((0.3, 0.8, 0.5), rng.dirichlet(np.full(6, 0.5), 3).T)
    drawn = [population.enumerate(n) for n in (3, 4, 2)]
    corpora = [WeightedCorpus(c.astype(int), None, w, shard_documents=40) for c, w in drawn]
    counts, weights = vstack([c for c, _ in drawn]).astype(int), np.concatenate([w for _, w in drawn])
    both = WeightedCorpus(counts, None, weights, shard_documents=40)
    whole = TopicMoments(3, n_parts=2, n_oversamples=3, **ALL_WORDS).fit_corpus(both)
    # The population of either length has the moments; each alone, both, and one taken out of both. Documents of
    # two words add nothing.
    short, long, pairs = (whole.of(corpus) for corpus in corpora)
    assert not any(part["m2"].any() for part in pairs.sources_[0].parts)
    for moments in (whole, short, long, short + long, short + pairs, whole - long, whole - pairs):
        model = SpectralLDA(3, alpha0=1.6, **PURE).fit_moments(moments)
        cost = np.abs(population.topics.T[:, None, :] - model.components_[None, :, :]).sum(axis=2)
        of, found = linear_sum_assignment(cost)
        assert cost[of, found].max() < 1e-10
        assert_allclose(model.weights_[found], population.alpha / 1.6, atol=1e-10)
        assert model.diagnostics_["proportions_disagreement"] < 1e-10
        assert max(model.diagnostics_["sum_rules"].values()) < 1e-10


def test_documents_are_added_and_taken_away():
    _, counts = sample(900)
    old, new, gone = counts[:500], counts[500:], counts[100:180]
    kept = TopicMoments(3, **ALL_WORDS).fit(old)
    both = kept + kept.of(MemoryCorpus(new))
    assert both.n_documents_ == 900
    assert_same_sums(both, kept.of(MemoryCorpus(counts)))
    # Documents that are only a part of a corpus are taken out of its sums.
    less = both - kept.of(MemoryCorpus(gone))
    rest = vstack([counts[:100], counts[180:]])
    assert less.n_documents_ == 820
    assert_same_sums(less, kept.of(MemoryCorpus(rest)))
    totals, expected = less.totals(), MemoryCorpus(rest)
    assert_array_equal(totals.document_frequency, expected.document_frequency)
    assert_array_equal(totals.word_frequency, expected.word_frequency)
    # Adding and then subtracting a corpus leaves no trace.
    again = both - kept.of(MemoryCorpus(new))
    assert [s.name for s in again.sources_] == [s.name for s in kept.sources_]
    for name, value in summed(again).items():
        assert_array_equal(value, summed(kept)[name])


def test_two_sites_merge_to_what_one_would_have_found():
    population, counts = sample(6000, d=80, k=4)
    here = TopicMoments(4, **ALL_WORDS).fit(counts[:3000])
    there = here.of(MemoryCorpus(counts[3000:]))
    model = SpectralLDA(4, alpha0=0.8, **PURE).fit_moments(here + there)
    whole = SpectralLDA(4, alpha0=0.8, **PURE, **ALL_WORDS).fit(counts)
    order = linear_sum_assignment(-np.sqrt(whole.components_) @ np.sqrt(model.components_).T)[1]
    # The basis is that of one half; what is left of the topics outside of it comes back by ``M2 Q``.
    assert np.abs(whole.components_ - model.components_[order]).sum(axis=1).max() < 0.01
    assert_allclose(whole.weights_, model.weights_[order], atol=0.005)
    cost = np.abs(population.topics.T[:, None] - model.components_[None]).sum(axis=2)
    assert cost[linear_sum_assignment(cost)].max() < 0.12


def test_what_cannot_be_added_is_refused():
    _, counts = sample(400)
    kept = TopicMoments(3, **ALL_WORDS).fit(counts)
    with pytest.raises(UsageError, match="are in both sums"):
        kept + kept
    with pytest.raises(UsageError, match="different bases"):
        kept + TopicMoments(3, random_state=1, **ALL_WORDS).fit(counts[:300])
    with pytest.raises(UsageError, match="another vocabulary of 59 words"):
        kept.of(MemoryCorpus(counts[:, 1:]))
    for wrong in (1, None, SpectralLDA(3)):
        with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \+: 'TopicMoments'"):
            kept + wrong
    part = kept.of(MemoryCorpus(counts[:100]))
    less = kept - part
    with pytest.raises(UsageError, match="are subtracted twice"):
        less - part
    with pytest.raises(UsageError, match="documents are subtracted that are not in the sums"):
        part - kept.of(MemoryCorpus(50 * counts[:50]))
    with pytest.raises(UsageError, match="the sums contain no documents"):
        (kept - kept).sums_.total()
    with pytest.raises(UsageError, match="100 more documents are subtracted"):
        kept.of(MemoryCorpus(counts[:100])) - kept.of(MemoryCorpus(counts[100:300]))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (SpectralLDA("auto", alpha0=1.0, **PURE), "n_components: expected a number, got 'auto'"),
        (
            SpectralLDA(3, init="tensor", n_refine=0),
            "one initialisation, such as 1.0 and 'tensor', got 'auto' and 'tensor'",
        ),
        (SpectralLDA(3, alpha0=1.0, init="tensor"), "n_refine: expected 0, got 'auto'"),
        (IndependentTopics(3, n_refine=0), "need other moments than those kept"),
        (AnchorTopics(3), "n_refine: expected 0, got 'auto'"),
        (SpectralLDA(4, alpha0=1.0, **PURE), "expected at most 3, for which the moments were made, got 4"),
    ],
)
def test_what_needs_documents_is_refused(model, message):
    _, counts = sample(300)
    kept = TopicMoments(3, **ALL_WORDS).fit(counts)
    with pytest.raises(UsageError, match=message):
        model.fit_moments(kept)


@pytest.mark.parametrize("kind", [SingleTopic, AnchorTopics])
def test_other_models_take_kept_moments(kind):
    _, counts = sample(3000, k=3)
    model = kind(3, n_refine=0, **ALL_WORDS)
    kept = TopicMoments(5, n_parts=4, n_oversamples=28, **ALL_WORDS).fit(counts)
    fitted = model.fit_moments(kept)
    alone = kind(3, n_refine=0, n_oversamples=30, **ALL_WORDS).fit(counts)
    order = linear_sum_assignment(-np.sqrt(alone.components_) @ np.sqrt(fitted.components_).T)[1]
    assert np.abs(alone.components_ - fitted.components_[order]).sum(axis=1).max() < 1e-3
    assert fitted.transform(counts[:5]).shape == (5, 3)


def test_moments_of_too_few_topics_are_reported_once(caplog):
    """Not again for every part that the standard errors leave out."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(12, 0.3), 2)
    counts = np.stack([rng.multinomial(40, topic) for topic in topics])[rng.integers(0, 2, 80)]
    kept = TopicMoments(3, n_parts=4, **ALL_WORDS).fit(counts)
    model = SpectralLDA(3, alpha0=1.0, **PURE).fit_moments(kept)
    assert model.components_error_.shape == (2, 12)
    assert [r.getMessage() for r in caplog.records] == [
        "tensor-1: the moments carry 2 of the 3 topics requested"
    ]


def test_moments_on_disk_are_whole(tmp_path):
    _, counts = sample(500)
    kept = TopicMoments(3, n_parts=3, **ALL_WORDS).fit(counts)
    less = kept - kept.of(MemoryCorpus(counts[:50]))
    less.save(tmp_path / "less")
    found = TopicMoments.load(tmp_path / "less")
    assert [s.sign for s in found.sources_] == [1, -1]
    assert found.n_documents_ == 450
    for name, value in summed(less).items():
        assert_array_equal(value, summed(found)[name])
    models = [SpectralLDA(3, alpha0=0.6, **PURE).fit_moments(m) for m in (less, found)]
    assert_array_equal(models[0].components_, models[1].components_)
    models[0].save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert_array_equal(loaded.components_error_, models[0].components_error_)
    assert loaded.topics(3)[0]["weight_error"] == models[0].topics(3)[0]["weight_error"]
    with pytest.raises(UsageError, match="kept moments, not a model"):
        load_model(tmp_path / "less")
    with pytest.raises(UsageError, match="a model of class SpectralLDA, expected TopicMoments"):
        TopicMoments.load(tmp_path / "model")
    with pytest.raises(UsageError, match="the model exists"):
        kept.save(tmp_path / "less")
    file = next(f for f in (tmp_path / "less" / "arrays.zarr").rglob("c/*") if f.is_file())
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(StoreError):
        TopicMoments.load(tmp_path / "less")


@pytest.mark.slow
def test_moments_of_many_corpora_take_the_memory_of_their_total(tmp_path):
    """NumPy reports every array to tracemalloc, except memory-mapped files."""
    _, counts = sample(900, d=100)
    kept = TopicMoments(3, n_parts=4, n_oversamples=97, **ALL_WORDS).fit(counts[:300])
    several = kept + kept.of(MemoryCorpus(counts[300:600])) + kept.of(MemoryCorpus(counts[600:]))
    several = several - kept.of(MemoryCorpus(counts[:50]))
    several.save(tmp_path / "kept")
    n_bytes = sum(value.nbytes for value in several.sums_.total().values())
    n_parts = sum(len(source.parts) for source in several.sources_)
    assert n_parts == 16
    tracemalloc.start()
    try:

        def peak_of(make):
            """Totals held at most while something is made of them, and the thing."""
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            made = make()
            return (tracemalloc.get_traced_memory()[1] - before) / n_bytes, made

        loading, loaded = peak_of(lambda: TopicMoments.load(tmp_path / "kept"))
        # Of the sums of a part all but the smallest are in files.
        assert loading < 1.0
        assert peak_of(loaded.sums_.total)[0] < 1.2
        assert peak_of(loaded.sums_.halves)[0] < 2.2
        # A caller that holds none of them.
        assert peak_of(lambda: deque(loaded.sums_.without_parts(), maxlen=0))[0] < 2.2
        assert peak_of(lambda: loaded.save(tmp_path / "again"))[0] < 1.0
    finally:
        tracemalloc.stop()
    for memory, mapped in zip(several.sums_.without_parts(), loaded.sums_.without_parts(), strict=True):
        for name, value in memory.items():
            assert_array_equal(value, mapped[name])
    # They stay what they are when something else takes their place.
    kept.save(tmp_path / "kept", overwrite=True)
    for name, value in summed(several).items():
        assert_array_equal(value, summed(loaded)[name])


@pytest.mark.slow
@pytest.mark.cluster
def test_a_cluster_finds_the_same_moments(cluster):
    _, counts = sample(1500)
    corpus = MemoryCorpus(counts, shard_documents=200)
    kept = TopicMoments(3, n_parts=2, **ALL_WORDS).fit_corpus(corpus)
    found = TopicMoments(3, n_parts=2, **ALL_WORDS).fit_corpus(corpus, client=cluster)
    more = found.of(corpus, client=cluster)
    for name, value in summed(kept).items():
        assert_array_equal(value, summed(found)[name])
        assert_array_equal(value, summed(more)[name])


@pytest.mark.parametrize(
    "model",
    [
        SpectralLDA("auto", max_df=1.0, n_refine=2),
        SpectralLDA(3, max_df=1.0, n_refine=0),
        SpectralLDA(3, max_df=1.0, n_refine=1),
        SpectralLDA(3, max_df=1.0, refine="vb", init="tensor", alpha0=1.0),
        SpectralLDA(3, max_df=1.0, n_refine=1, init="tensor", alpha0=1.0, orders="both"),
        AnchorTopics(3, max_df=1.0),
        AnchorTopics(3, max_df=1.0, n_refine=0),
        IndependentTopics(3, max_df=1.0, n_refine=1),
        SingleTopic(3, max_df=1.0),
        TopicMoments(3, max_df=1.0, n_parts=3),
    ],
)
def test_planned_passes_are_made(model):
    _, counts = sample(1500)
    corpus = MemoryCorpus(counts, shard_documents=400)
    planned, made = Counter(), Counter()
    for p in model.plan(corpus).passes:
        planned[p.name] += p.n_scans
    model.fit_corpus(corpus, observer=lambda event: made.update([event.name] * isinstance(event, PassDone)))
    assert made == planned


def test_searches_take_kept_moments():
    population, counts = sample(4000, d=100, k=5)
    word = int((population.topics[:, 0] - population.topics[:, 1:].max(axis=1)).argmax())
    options = {**ALL_WORDS, "n_oversamples": 20}
    alone = TopicSearch(5, **options).fit(counts).search([word])
    kept = TopicMoments(5, n_parts=4, **options).fit(counts)
    found = TopicSearch(5).fit_moments(kept).search([word])
    assert_allclose(found.topic, alone.topic, atol=1e-9)
    assert found.share == pytest.approx(alone.share, abs=1e-9)
    # Halves are other documents, so that the noise is the same in size alone.
    assert 0.3 < found.noise / alone.noise < 3.0
    more = kept + kept.of(MemoryCorpus(sample(2000, d=100, k=5, seed=0)[1][1000:]))
    assert np.abs(TopicSearch(5).fit_moments(more).search([word]).topic - found.topic).sum() < 0.2
    with pytest.raises(UsageError, match="expected moments in at least 2 parts"):
        TopicSearch(5).fit_moments(TopicMoments(5, n_parts=1, **options).fit(counts))
    with pytest.raises(UsageError, match="expected at most 5, for which the moments were made, got 6"):
        TopicSearch(6).fit_moments(kept)


def test_a_run_over_other_shards_is_not_taken_up(tmp_path):
    """Which sign a document has in the noise depends on its shard, and so do bits of every sum."""
    _, counts = sample(300)
    for shard_documents, resumed in ((100, False), (100, True), (50, False)):
        corpus = MemoryCorpus(counts, shard_documents=shard_documents)
        moments = TopicMoments(3, n_parts=2, **ALL_WORDS).fit_corpus(corpus, run=tmp_path / "run")
        assert {timing["resumed"] for timing in moments.timings_} == {resumed}


def test_documents_that_were_never_added_cannot_be_subtracted():
    """No sum of documents is negative, and no word is in more documents than there are, or than it occurs."""
    counts = sample(100)[1].toarray()
    kept = TopicMoments(3, weighting="pooled", **ALL_WORDS).fit(counts)
    often = int((counts > 0).sum(axis=0).argmax())
    assert (counts[:, often] > 0).sum() > 40
    total, n = counts.sum(axis=0), (counts > 0).sum(axis=0)
    one = np.zeros((1, counts.shape[1]), int)
    one[0, often] = total[often] + 5
    longest = np.where(n > 0, total - n + 1, 0)[None]
    for other, message in (
        (one, f"'{often}' would remain in {n[often] - 1} of 99 documents, -5 times"),
        (np.zeros((60, counts.shape[1]), int), r"would remain in \d+ of 40 documents"),
        (longest, r"pairs and triples would be \["),
    ):
        with pytest.raises(
            UsageError, match=f"documents are subtracted that are not in the sums: .*{message}"
        ):
            kept - kept.of(MemoryCorpus(other))
    # Documents that were added can be subtracted, whatever corpus they are in now.
    assert (kept - kept.of(MemoryCorpus(counts[::3]))).n_documents_ == 66
    assert (kept - kept.of(MemoryCorpus(counts[::-1], shard_documents=7))).n_documents_ == 0


def test_kept_moments_do_not_depend_on_parameters_for_other_moments(tmp_path):
    _, counts = sample(500)
    first, second = counts[:300], MemoryCorpus(counts[300:])
    moments = TopicMoments(3, n_parts=2, **ALL_WORDS).fit(first)
    expected, digest = moments + moments.of(second), moments.basis_digest
    for other in ({"max_count": 1}, {"weighting": "document"}, {"precision": "single"}, {"n_components": 2}):
        moments = TopicMoments(3, n_parts=2, **ALL_WORDS).fit(first).set_params(**other)
        moments.save(tmp_path / "m", overwrite=True)
        for one in (moments, TopicMoments.load(tmp_path / "m")):
            assert one.basis_digest == digest
            assert one.get_params() == moments.get_params()
            assert_same_sums(one + one.of(second), expected)
            SpectralLDA(3, alpha0=0.6, **PURE, **ALL_WORDS).fit_moments(one)
    with pytest.raises(UsageError, match="expected at most 3, for which the moments were made, got 5"):
        moments.set_params(n_components=5).find_alpha0(5)
