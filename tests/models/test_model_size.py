"""Limits on the weights of the sparse heads: what is kept, how large models become, and what is planned."""

import numpy as np
import pytest
from helpers import planted_corpus

from distmom.errors import UsageError
from distmom.models import MultiLabelMoM, load_model
from distmom.models.multilabel.heads.heads import SparseHead


@pytest.fixture(scope="module")
def corpus():
    return planted_corpus(1500, d=200, n_labels=40, k=4)[2]


def dense_weights(model):
    """W of the only sparse head of a model, without its intercepts, and the intercepts."""
    (head,) = [head for _, head in model.scorer_.heads if isinstance(head, SparseHead)]
    w = head.weights.sparse.to_scipy().toarray()
    rows = np.asarray(head.weights.dense_row)
    w[rows >= 0] = np.asarray(head.weights.dense)[rows[rows >= 0]]
    return w[:-1], w[-1]


def size_of(model, path):
    model.save(path)
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize("head", ["linear", "svm"])
def test_heads_keep_the_largest_weights(head, corpus, tmp_path):
    whole = MultiLabelMoM(4, head=head, n_residual_passes=0).fit_corpus(corpus)
    few = MultiLabelMoM(4, head=head, n_residual_passes=0, weights_per_word=6, weights_per_label=12)
    few.fit_corpus(corpus)
    w, intercepts = dense_weights(whole)
    kept = np.where(np.abs(w) >= np.sort(np.abs(w), axis=1)[:, [-6]], w, 0.0)
    kept = np.where(np.abs(kept) >= np.sort(np.abs(kept), axis=0)[-12], kept, 0.0)
    found, found_intercepts = dense_weights(few)
    # Negligible weights are left out too, relative to the magnitudes of those that are kept.
    negligible = 0.015 * np.quantile(np.abs(w[w != 0]), 0.99) if head == "linear" else 0.0
    for own, expected in ((found, kept), (found_intercepts, intercepts)):
        lost = (own == 0) & (expected != 0)
        np.testing.assert_allclose(own[~lost], expected[~lost], rtol=1e-6)
        assert np.abs(expected[lost]).max(initial=0.0) <= negligible
    assert np.count_nonzero(found_intercepts) > 30
    assert ((found != 0).sum(axis=1) <= 6).all()
    assert ((found != 0).sum(axis=0) == 12).any()
    sizes = [size_of(model, tmp_path / name) for name, model in (("whole", whole), ("few", few))]
    assert sizes[1] < 0.7 * sizes[0]
    again = load_model(tmp_path / "few")
    X = corpus.read_shard(0).words
    np.testing.assert_array_equal(again.decision_function(X), few.decision_function(X))


def test_a_limit_above_the_default_keeps_more_weights_of_a_word():
    corpus = planted_corpus(1500, d=60, n_labels=500, k=4)[2]
    counts = []
    for limit in (None, 400):
        model = MultiLabelMoM(4, head="linear", n_residual_passes=0, weights_per_word=limit)
        w, _ = dense_weights(model.fit_corpus(corpus))
        counts.append((w != 0).sum(axis=1).max())
    # More where magnitudes are equal.
    assert counts[0] <= 305 < counts[1] <= 405


def test_auto_chooses_among_heads_with_these_limits(corpus):
    model = MultiLabelMoM(4, n_topics=0, weights_per_word=5, weights_per_label=8).fit_corpus(corpus)
    for _, head in model.scorer_.heads:
        if isinstance(head, SparseHead):
            w = head.weights.sparse.to_scipy()
            assert np.diff(w.indptr)[:-1].max() <= 5
    default = MultiLabelMoM(4, n_topics=0).fit_corpus(corpus).selection_["held_out"]
    held_out = model.selection_["held_out"]
    for head in ("linear", "centroid", "svm-0.3"):
        assert held_out[head] != default[head]
    assert held_out["neighbors-75-3"] == default["neighbors-75-3"]


@pytest.mark.parametrize("limit", [2, 20])
def test_a_plan_knows_the_number_of_weights(limit, corpus):
    plans = {
        each: {p.name: p for p in MultiLabelMoM(4, head="linear", weights_per_word=each).plan(corpus).passes}
        for each in (None, limit)
    }
    assert plans[limit]["residual"].sums_bytes < plans[None]["residual"].sums_bytes
    model = MultiLabelMoM(4, head="linear", weights_per_word=limit).fit_corpus(corpus)
    w, intercepts = dense_weights(model)
    n_entries = np.count_nonzero(w) + np.count_nonzero(intercepts)
    # Sums are in blocks of entries.
    assert 4 * n_entries <= plans[limit]["residual"].sums_bytes


@pytest.mark.parametrize("name", ["weights_per_word", "weights_per_label"])
def test_limits_are_positive(name, corpus):
    with pytest.raises(UsageError, match=f"{name}: expected at least 1"):
        MultiLabelMoM(4, **{name: 0}).plan(corpus)


@pytest.mark.parametrize("head", ["linear", "svm"])
def test_updates_keep_the_limits(head, corpus):
    model = MultiLabelMoM(4, head=head, weights_per_word=6, weights_per_label=12, keep_sums=True)
    model.fit_corpus(corpus)
    block = corpus.read_shard(0)
    names = model.label_names_
    before, _ = dense_weights(model)
    lists = [[names[i] for i in row.indices] for row in block.labels]
    model.partial_fit(block.words, lists)
    w, intercepts = dense_weights(model)
    assert np.abs(w - before).max() > 0
    assert ((w != 0).sum(axis=1) <= 6).all()
    assert ((w != 0).sum(axis=0) <= 12).all()
    assert np.count_nonzero(intercepts) > 30
