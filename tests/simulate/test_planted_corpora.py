"""Planted corpora: the same bits for any sizes of shards, states that are recovered, and presets."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.corpus import from_arrays, open_corpus
from distmom.engine import OnCluster
from distmom.errors import StoreError, UsageError
from distmom.evaluate.recovery import score_recovery
from distmom.models import MultiLabelMoM
from distmom.simulate import PRESETS, Planted, corpora, load_truth, preset, synthesise
from distmom.simulate.corpora import TRUTH
from distmom.simulate.draws import draw_documents
from distmom.simulate.planted_model import Zipf

SMALL = Planted(3000, 900, 60, 6, 20, 28, 2, 3.0, seed=3)


def rows(corpus):
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    return [(b.words.toarray(), b.labels.toarray()) for b in blocks]


@pytest.mark.cluster
def test_bits_do_not_depend_on_workers_or_shards(tmp_path, cluster):
    one = synthesise(SMALL, tmp_path / "one", shard_documents=700)
    two = synthesise(SMALL, tmp_path / "two", shard_documents=700, map=OnCluster(cluster).map)
    assert one.digest == two.digest
    other = synthesise(SMALL, tmp_path / "other", shard_documents=3000)
    words, labels = rows(other)[0]
    assert np.array_equal(np.vstack([w for w, _ in rows(one)]), words)
    assert np.array_equal(np.vstack([y for _, y in rows(one)]), labels)
    later = synthesise(preset_of(SMALL, 500), tmp_path / "later", first=2500)
    assert np.array_equal(rows(later)[0][0], words[2500:])
    assert open_corpus(tmp_path / "one").verify() == []


def preset_of(model, n_documents):
    return Planted(**{**vars(model), "n_documents": n_documents})


def test_documents_follow_the_model():
    n = 60_000
    words, labels, states = draw_documents(SMALL, 0, n)
    assert np.diff(words.indptr).mean() == pytest.approx(28, rel=0.02)
    assert np.median(np.diff(words.indptr)) == 20
    assert_allclose(np.bincount(states) / n, SMALL.weights(), atol=0.01)
    # Words and labels of the documents of a state follow its distributions.
    truth = truth_of(SMALL)
    lengths = np.diff(words.indptr)
    short = np.flatnonzero(lengths <= 3)
    assert len(short) > 100
    for state in range(3):
        mine = np.flatnonzero(states == state)
        frequency = np.asarray(labels[mine].sum(axis=0)).ravel() / labels[mine].sum()
        # Labels of a document are distinct, so frequent ones occur slightly less often than they are drawn.
        assert np.abs(frequency - truth.labels(state)).sum() < 0.25
        first = np.asarray(words[mine].sum(axis=0)).ravel()
        assert np.abs(first / first.sum() - truth.words(state)).sum() < 0.25
        others = [np.abs(first / first.sum() - truth.words(h)).sum() for h in range(6) if h != state]
        assert min(others) > 0.5


def truth_of(model):
    from distmom.simulate import Truth

    return Truth(model, 0, model.weights(), model.word_order(), model.label_order(), np.zeros(0, np.uint16))


def test_laws_are_distributions_and_topics_of_documents_mix():
    law = Zipf(1000, 5.0).probabilities()
    assert law.sum() == pytest.approx(1.0)
    assert (np.diff(law) < 0).all()
    assert law[0] / law[99] == pytest.approx(np.log(6 / 5) / np.log(105 / 104))
    model = Planted(2000, 500, 0, 5, 80, 100, alpha0=0.5)
    words, labels, states = draw_documents(model, 0, 2000)
    assert labels.shape == (2000, 0)
    assert len(states) == 0
    assert np.asarray(words.sum(axis=1)).mean() == pytest.approx(100, rel=0.03)
    truth = truth_of(model)
    mean = np.asarray(words.sum(axis=0)).ravel() / words.sum()
    assert np.abs(mean - np.mean([truth.words(h) for h in range(5)], axis=0)).sum() < 0.12


def test_a_fit_recovers_the_planted_states(tmp_path):
    model = Planted(20_000, 2000, 100, 5, 30, 42, 2, 3.0)
    train = synthesise(model, tmp_path / "train")
    fitted = MultiLabelMoM(5, head="posterior", moments="distinct").fit_corpus(train)
    score = score_recovery(fitted, load_truth(tmp_path / "train.truth"))
    assert score["n_recovered"] == score["n_planted"] == 5
    assert score["words_l1"] < 0.4
    assert score["labels_l1"] < 0.25
    assert score["weights_l1"] < 0.2


#: words, labels and training documents; mean and median words and labels of a document; how many to draw.
#: Of the multi-label paper, table 1, and of the Extreme Classification Repository, which has no medians.
SIZES = {
    "bibtex": (1836, 159, 4880, (68.67, 69), (2.4, 2), 3000),
    "delicious": (500, 983, 12_920, (18.29, 6), (19.02, 20), 3000),
    "nytimes": (24_670, 4185, 14_669, (373.91, 354), (5.4, 5), 3000),
    "wiki31k": (101_938, 30_938, 14_146, (669.05, 513), (18.64, 19), 3000),
    "amazoncat": (203_882, 13_330, 1_186_239, (71.09, 45), (5.04, 4), 3000),
    "wikilshtc": (1_617_899, 325_056, 1_778_351, (42.15, 30), (3.19, 2), 3000),
    "amazon670k": (135_909, 670_091, 490_449, (75.68, None), (5.45, None), 12_000),
    "delicious200k": (782_585, 205_443, 196_606, (301.17, None), (75.54, None), 12_000),
}


@pytest.mark.parametrize("name", SIZES)
def test_presets_have_the_published_sizes(name):
    n_words, n_labels, n_documents, *numbers, n_drawn = SIZES[name]
    model = PRESETS[name]
    assert (model.n_words, model.n_labels, model.n_documents) == (n_words, n_labels, n_documents)
    words, labels, _ = draw_documents(model, 0, n_drawn)
    for matrix, (mean, median) in zip((words, labels), numbers, strict=True):
        lengths = np.diff(matrix.indptr)
        assert lengths.mean() == pytest.approx(mean, rel=0.05)
        assert median is None or np.median(lengths) == pytest.approx(median, rel=0.06)


def test_attributes_of_a_preset_may_be_changed():
    assert preset("bibtex", n_documents=7, n_words=None, seed=2) == replace(
        PRESETS["bibtex"], n_documents=7, seed=2
    )


def test_wrong_sizes_and_damaged_truths_are_named(tmp_path):
    with pytest.raises(UsageError, match="every state needs words and labels of its own"):
        Planted(10, 5, 3, 4, 2, 3, 1, 2)
    with pytest.raises(UsageError, match="n_documents: expected at least 1, got 0"):
        preset("bibtex", n_documents=0)
    with pytest.raises(UsageError, match="head_words: expected at least 1, got 0"):
        preset("bibtex", head_words=0)
    with pytest.raises(UsageError, match=r"word_offset: expected a positive number, got 0\.0"):
        replace(SMALL, word_offset=0.0)
    with pytest.raises(UsageError, match="is not the truth of a planted corpus"):
        load_truth(tmp_path)
    synthesise(preset_of(SMALL, 50), tmp_path / "corpus")
    with pytest.raises(UsageError, match="already exists"):
        synthesise(SMALL, tmp_path / "corpus")
    record = TRUTH.read(path := tmp_path / "corpus.truth" / "truth.json")
    TRUTH.write(path, {**record, "model": {**record["model"], "own_words": "0.4"}})
    with pytest.raises(StoreError, match=r"truth\.json: model: own_words: expected float, got '0\.4'"):
        load_truth(path.parent)
    TRUTH.write(path, record)
    (tmp_path / "corpus.truth" / "weights.npy").write_bytes(b"none")
    with pytest.raises(StoreError, match=r"weights\.npy: expected \d+ bytes"):
        load_truth(tmp_path / "corpus.truth")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_states": 2**16 + 1}, "n_states: expected at most 65,536, got 65,537"),
        ({"n_documents": 2**63}, "n_documents: expected at most 9,223,372,036,854,775,807, got"),
        ({"n_words": 2**31}, "n_words: expected at most 2,147,483,647, got 2,147,483,648"),
        ({"median_words": 0.0}, r"median_words: expected a positive number, got 0\.0"),
        ({"mean_words": np.nan}, "mean_words: expected a positive number, got nan"),
        ({"median_labels": 0.0}, r"median_labels: expected a positive number, got 0\.0"),
        ({"own_words": 1.5}, r"own_words: expected a number from 0 to 1, got 1\.5"),
        ({"own_labels": -0.1}, r"own_labels: expected a number from 0 to 1, got -0\.1"),
        ({"n_labels": 0, "alpha0": 0.0}, r"alpha0: expected a positive number, got 0\.0"),
        ({"n_labels": 0, "alpha0": np.nan}, "alpha0: expected a positive number, got nan"),
        ({"n_labels": 0, "alpha0": 1.0, "n_states": 901}, "needs words of its own, but there are 900 words$"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_drawn_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        replace(SMALL, **changes)


def test_numbers_of_documents_beyond_64_bits_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(
        UsageError, match=f"first={2**63}: expected at most {2**63 - 1 - 3000}, so that numbers"
    ):
        synthesise(SMALL, tmp_path / "corpus", first=2**63)
    assert not list(tmp_path.iterdir())
    last = synthesise(preset_of(SMALL, 3), tmp_path / "corpus", first=2**63 - 4)
    assert last.n_documents == 3


def interrupted(*arguments, **options):
    raise KeyboardInterrupt


def left_without_truth(path, monkeypatch, **options):
    with monkeypatch.context() as change:
        change.setattr(corpora, "put_directory", interrupted)
        with pytest.raises(KeyboardInterrupt):
            synthesise(SMALL, path, **options)


def test_a_corpus_whose_truth_was_not_written_gets_it_from_the_same_call(tmp_path, monkeypatch):
    whole = synthesise(SMALL, tmp_path / "whole", shard_documents=700)
    left_without_truth(tmp_path / "c", monkeypatch, shard_documents=700)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "whole", "whole.truth"]
    with monkeypatch.context() as change:
        change.setattr(corpora, "write_shard", interrupted)
        assert synthesise(SMALL, tmp_path / "c", shard_documents=700).digest == whole.digest
    for file in (tmp_path / "whole.truth").iterdir():
        assert (tmp_path / "c.truth" / file.name).read_bytes() == file.read_bytes()
    with pytest.raises(UsageError, match=r"truth: already exists"):
        synthesise(SMALL, tmp_path / "c", shard_documents=700)


@pytest.mark.parametrize(
    ("model", "options", "differing"),
    [
        (SMALL, {"shard_documents": 1000}, "expected shard_documents=1000, got shard_documents=700"),
        (SMALL, {"shard_documents": 3000}, "expected shard_documents=3000, got shard_documents=700"),
        (SMALL, {"shard_documents": 700, "first": 5}, "expected first=5, got first=0"),
        (
            replace(SMALL, seed=4, own_words=0.5),
            {"shard_documents": 700},
            "expected own_words=0.5, seed=4, got own_words=0.4, seed=3",
        ),
    ],
)
def test_a_corpus_without_truth_is_kept_and_refused_for_other_parameters(
    tmp_path, monkeypatch, model, options, differing
):
    left_without_truth(tmp_path / "c", monkeypatch, shard_documents=700)
    before = open_corpus(tmp_path / "c").digest
    with pytest.raises(UsageError) as caught:
        synthesise(model, tmp_path / "c", **options)
    assert str(caught.value) == (
        f"{tmp_path / 'c'}: already holds a planted corpus with other parameters, without its truth: {differing}; "
        "choose another location or overwrite it (overwrite=True, or --overwrite)"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert open_corpus(tmp_path / "c").digest == before


def test_any_size_of_shards_that_holds_all_documents_completes_a_corpus_of_one_shard(tmp_path, monkeypatch):
    left_without_truth(tmp_path / "c", monkeypatch, shard_documents=3000)
    assert len(synthesise(SMALL, tmp_path / "c", shard_documents=20_000).shards) == 1
    assert load_truth(tmp_path / "c.truth").model == SMALL


def test_a_corpus_that_was_not_planted_is_not_given_a_truth(tmp_path):
    from_arrays(tmp_path / "c", np.eye(3))
    with pytest.raises(UsageError, match=r"c: already exists"):
        synthesise(SMALL, tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
