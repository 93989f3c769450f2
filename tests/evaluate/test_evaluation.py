import csv

import numpy as np
import pytest
from helpers import planted_matrices
from scipy.sparse import csr_array, hstack
from sklearn.metrics import f1_score, precision_recall_fscore_support

from distmom.corpus import MemoryCorpus
from distmom.errors import UsageError
from distmom.evaluate.evaluation import evaluate_corpus
from distmom.evaluate.metrics import RankingSums
from distmom.models import MultiLabelMoM
from distmom.ranking import inverse_propensity


@pytest.fixture(scope="module")
def planted():
    return planted_matrices()


@pytest.fixture(scope="module")
def model(planted):
    X, Y = planted
    return MultiLabelMoM(4).fit(X[:1000], Y[:1000])


def corpus_of(model, X, Y, shard_documents=90, label_names=None):
    names = model.label_names_ if label_names is None else label_names
    return MemoryCorpus(
        X, Y, vocabulary=model.vocabulary_, label_names=names, shard_documents=shard_documents
    )


def ranking(metrics):
    """Return the metrics of ranked lists."""
    of_assigned = ("F1_micro", "F1_macro", "ECE", "threshold", "n_assigned", "reliability")
    return {name: value for name, value in metrics.items() if name not in of_assigned}


def by_hand(model, X, Y, **options):
    inverse = inverse_propensity(model.label_frequency_, model.n_documents_, n_labels=Y.shape[1], **options)
    scores = model.decision_function(X)
    labels, values = model.predict_top(X, 5)
    total = RankingSums.zero((1, 3, 5), inverse_propensity=inverse)
    return total.add_lists(labels, Y, scores=values).add_scores(scores, Y).finish()


@pytest.mark.parametrize("options", [{}, {"A": 0.5, "B": 0.4}])
def test_metrics_are_those_of_the_dense_scores(model, planted, options):
    X, Y = planted[0][1000:], planted[1][1000:]
    given = {f"propensity_{name.lower()}": value for name, value in options.items()}
    metrics = evaluate_corpus(model, corpus_of(model, X, Y), **given)
    expected = by_hand(model, X, Y, **options)
    assert {**expected, "n_unknown_words": 0, "n_unknown_labels": 0} == pytest.approx(ranking(metrics))
    assert metrics["n_documents"] == metrics["n_scored"] == 500


def test_a_label_that_the_model_does_not_know_counts_against_it(model, planted):
    X, Y = planted[0][1000:], planted[1][1000:]
    more = csr_array(hstack([Y, csr_array(np.ones((500, 1), np.uint8))]))
    metrics = evaluate_corpus(model, corpus_of(model, X, more, label_names=[*model.label_names_, "new"]))
    known = evaluate_corpus(model, corpus_of(model, X, Y))
    assert metrics["n_unknown_labels"] == 1
    assert metrics["P@1"] == pytest.approx(known["P@1"])
    for name in ("recall@5", "nDCG@5", "AUC", "PSP@5"):
        assert metrics[name] < known[name]
    expected = {**by_hand(model, X, more), "n_unknown_words": 0, "n_unknown_labels": 1}
    assert ranking(metrics) == pytest.approx(expected)


def test_a_tenth_of_unknown_labels_gives_a_warning_and_all_unknown_an_error(model, planted, caplog):
    X, Y = (
        planted[0][1000:],
        csr_array((np.ones(1000), np.arange(1000) % 10, np.arange(0, 1001, 2)), shape=(500, 12)),
    )
    names = list(model.label_names_)
    evaluate_corpus(model, corpus_of(model, X, Y, label_names=names))
    # Labels without documents do not count.
    evaluate_corpus(model, corpus_of(model, X, Y, label_names=[*names[:10], "x", "y"]))
    assert not caplog.records
    metrics = evaluate_corpus(model, corpus_of(model, X, Y, label_names=["x", *names[1:]]))
    assert metrics["n_unknown_labels"] == 1
    [record] = caplog.records
    assert record.getMessage() == (
        "the model does not know 10 % of the labels of the documents (100 of 1,000), such as 'x'; they count as "
        "misses; ingest the documents with 'distmom ingest --like MODEL' to use the words and labels of the model"
    )
    message = "labels .*: expected names known to the model, such as '0', .* got none of them, such as 'n0'"
    with pytest.raises(UsageError, match=message):
        evaluate_corpus(model, corpus_of(model, X, Y, label_names=[f"n{i}" for i in range(12)]))


def test_labels_are_matched_by_name_not_by_column(model, planted):
    X, Y = planted[0][1000:], planted[1][1000:].toarray()
    order = np.random.default_rng(0).permutation(12)
    names = [model.label_names_[i] for i in order]
    straight, moved = corpus_of(model, X, Y), corpus_of(model, X, Y[:, order], label_names=names)
    assert ranking(evaluate_corpus(model, moved)) == pytest.approx(ranking(evaluate_corpus(model, straight)))


def test_auc_of_a_sample_is_accurate_and_reproducible(model, planted):
    X, Y = planted
    corpus = corpus_of(model, X, Y)
    exact = evaluate_corpus(model, corpus)
    sampled = evaluate_corpus(model, corpus, auc_documents=300)
    assert 200 < sampled["n_auc"] < 400
    assert sampled["AUC"] == pytest.approx(exact["AUC"], abs=0.03)
    assert sampled["P@1"] == exact["P@1"]
    assert sampled["n_documents"] == 1500
    again = evaluate_corpus(model, corpus_of(model, X, Y, shard_documents=400), auc_documents=300)
    assert ranking(again) == pytest.approx(ranking(sampled))
    assert evaluate_corpus(model, corpus, auc_documents=1500) == exact


def test_each_head_can_be_measured_alone(model, planted):
    corpus = corpus_of(model, planted[0][1000:], planted[1][1000:])
    for name, _ in model.scorer_.heads:
        assert 0.5 < evaluate_corpus(model, corpus, head=name)["AUC"] <= 1


def test_a_head_that_a_blend_does_not_have_is_refused_with_those_it_has(model, planted):
    corpus = corpus_of(model, planted[0][1000:], planted[1][1000:])
    names = ", ".join(name for name, _ in model.scorer_.heads)
    with pytest.raises(UsageError, match=f"head: expected one of {names}, which the model has, got 'auto'"):
        evaluate_corpus(model, corpus, head="auto")


def test_documents_without_labels_or_words_are_counted(model, planted):
    X, Y = planted[0][1000:1100].tolil(), planted[1][1000:1100].tolil()
    X[3] = 0
    Y[5] = 0
    metrics = evaluate_corpus(model, corpus_of(model, csr_array(X), csr_array(Y)))
    assert metrics["n_documents"] == 100
    assert metrics["n_unlabelled"] == 1
    assert metrics["n_auc"] == 99
    assert np.isfinite(list(ranking(metrics).values())).all()


def test_depths_beyond_the_labels_of_the_model_are_misses():
    X = np.array([[3, 0, 1], [0, 3, 1]] * 40)
    Y = np.array([[1, 0], [0, 1]] * 40)
    model = MultiLabelMoM(2, head="posterior").fit(X, Y)
    metrics = evaluate_corpus(model, MemoryCorpus(X, Y))
    assert metrics["P@1"] == metrics["AUC"] == metrics["recall@5"] == 1
    assert metrics["P@5"] == pytest.approx(0.2)


def test_no_labels_is_one_clear_error(model, planted):
    corpus = MemoryCorpus(planted[0][:10], vocabulary=model.vocabulary_)
    with pytest.raises(UsageError, match="no labels: there is nothing to evaluate against"):
        evaluate_corpus(model, corpus)


@pytest.mark.cluster
def test_the_cluster_measures_the_same_bits(model, planted, cluster):
    corpus = corpus_of(model, planted[0][1000:], planted[1][1000:])
    assert evaluate_corpus(model, corpus, client=cluster) == evaluate_corpus(model, corpus)


# Assigned labels


def assigned_by_hand(model, X, Y):
    """Return probabilities and assigned labels, (n, n_labels of Y), zero for labels the model does not know."""
    p = np.zeros(Y.shape, np.float32)
    p[:, : len(model.label_names_)] = model.predict_proba(X)
    taken = p >= np.float32(model.threshold_)
    return p, taken & (X.sum(axis=1) > 0)[:, None]


def with_gaps(planted):
    """Documents of which one has no words, one no labels, and of which none has label 7."""
    X, Y = planted[0][1000:].tolil(), planted[1][1000:].tolil()
    X[3], Y[5], Y[:, 7] = 0, 0, 0
    return csr_array(X), csr_array(hstack([csr_array(Y), csr_array(np.eye(500, 1, dtype=np.uint8))]))


def test_f1_is_that_of_scikit_learn(model, planted):
    X, Y = with_gaps(planted)
    corpus = corpus_of(model, X, Y, label_names=[*model.label_names_, "new"])
    metrics = evaluate_corpus(model, corpus)
    _, taken = assigned_by_hand(model, X, Y)
    truth = Y.toarray() > 0
    assert metrics["F1_micro"] == pytest.approx(f1_score(truth, taken, average="micro"))
    assert metrics["F1_macro"] == pytest.approx(f1_score(truth, taken, average="macro", zero_division=np.nan))
    assert (metrics["threshold"], metrics["n_assigned"]) == (model.threshold_, taken.sum())
    assert taken.sum() == model.predict(X).sum()


def test_the_calibration_error_is_that_of_all_pairs(model, planted):
    X, Y = with_gaps(planted)
    metrics = evaluate_corpus(model, corpus_of(model, X, Y, label_names=[*model.label_names_, "new"]))
    p, y = model.predict_proba(X), Y.toarray()[:, :12] > 0
    error = 0.0
    for b in range(10):
        own = (p >= b / 10) & ((p < (b + 1) / 10) | (b == 9))
        assert metrics["reliability"]["n_pairs"][b] == own.sum()
        assert metrics["reliability"]["truths"][b] == y[own].sum()
        error += abs(p[own].sum() - y[own].sum()) / p.size
    assert metrics["ECE"] == pytest.approx(error, abs=1e-6)
    assert 0 < metrics["ECE"] < 0.1


def test_the_table_of_labels_has_counts_and_ratios(model, planted, tmp_path):
    X, Y = with_gaps(planted)
    names = [*model.label_names_[:11], "a\\b", "new"]
    model.label_names_, kept = names[:12], model.label_names_
    try:
        evaluate_corpus(model, corpus_of(model, X, Y, label_names=names), per_label=tmp_path / "labels.tsv")
    finally:
        model.label_names_ = kept
    with (tmp_path / "labels.tsv").open(newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert [row["label"] for row in rows] == [*model.label_names_[:11], "a\\\\b", "new"]
    assert [int(row["frequency"]) for row in rows] == [*model.label_frequency_.astype(int), 0]
    _, taken = assigned_by_hand(model, X, Y)
    truth = Y.toarray() > 0
    assert [int(row["true"]) for row in rows] == truth.sum(axis=0).tolist()
    assert [int(row["predicted"]) for row in rows] == taken.sum(axis=0).tolist()
    expected = precision_recall_fscore_support(truth, taken, zero_division=np.nan)
    for name, values in zip(("precision", "recall", "F1"), expected, strict=False):
        found = [float(row[name] or "nan") for row in rows]
        np.testing.assert_allclose(found, values, rtol=1e-5)
    assert rows[12]["precision"] == rows[7]["recall"] == ""


def test_sums_of_shards_are_those_of_all_documents(model, planted):
    X, Y = planted[0][1000:], planted[1][1000:]
    whole, parts = (evaluate_corpus(model, corpus_of(model, X, Y, shard_documents=n)) for n in (500, 37))
    for name in ("F1_micro", "F1_macro", "n_assigned"):
        assert whole[name] == parts[name]
    assert whole["ECE"] == pytest.approx(parts["ECE"], rel=1e-9)
    assert whole["reliability"]["n_pairs"] == parts["reliability"]["n_pairs"]


def test_models_and_heads_without_probabilities_have_no_f1(model, planted, tmp_path):
    corpus = corpus_of(model, planted[0][1000:], planted[1][1000:])
    ridge = MultiLabelMoM(4, head="ridge").fit(planted[0][:1000], planted[1][:1000])
    name = model.scorer_.heads[0][0]
    for metrics in (evaluate_corpus(ridge, corpus), evaluate_corpus(model, corpus, head=name)):
        assert not {"F1_micro", "ECE", "reliability"} & set(metrics)
    with pytest.raises(UsageError, match="per_label: this model has no probabilities of labels"):
        evaluate_corpus(ridge, corpus, per_label=tmp_path / "t")
    with pytest.raises(UsageError, match="per_label: cannot be combined with head"):
        evaluate_corpus(model, corpus, head=name, per_label=tmp_path / "t")
    with pytest.raises(UsageError, match="there is no directory"):
        evaluate_corpus(model, corpus, per_label=tmp_path / "no" / "t")
    (tmp_path / "t").write_text("mine")
    with pytest.raises(UsageError, match="exists; choose another path"):
        evaluate_corpus(model, corpus, per_label=tmp_path / "t")
    assert (tmp_path / "t").read_text() == "mine"
