"""Scores and predictions of chosen labels, compared with the columns of those of all labels."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers import planted_matrices
from scipy.sparse import csr_array, random_array

from distmom.corpus import MemoryCorpus
from distmom.engine import Csr, MixedRows
from distmom.errors import UsageError
from distmom.models import MultiLabelMoM
from distmom.models.multilabel.blend import choose as blend
from distmom.models.multilabel.heads import columns
from distmom.models.multilabel.heads.chosen_labels import of_labels
from distmom.models.multilabel.heads.columns import columns_of
from distmom.models.multilabel.heads.heads import MIN_ROWS, GateHead, SparseHead
from distmom.models.multilabel.heads.neighbor_heads import SketchNeighbors, unit_rows
from distmom.predict import predict_corpus

CHOSEN = ["7", "2", "11"]
IDS = np.array([7, 2, 11], np.int32)


@pytest.fixture(scope="module")
def planted():
    return planted_matrices()


@pytest.fixture(scope="module")
def fitted(planted):
    """Models by name, fitted when they are needed, which do not rank the best labels again."""
    X, Y = planted
    known = {}

    def fit(name):
        with pytest.MonkeyPatch.context() as change:
            change.setattr(blend, "RERANK_DOCUMENTS", X.shape[0] + 1)
            return once(name)

    def once(name):
        if name in known:
            return known[name]
        if name == "sum":
            Y_wide = csr_array(np.hstack([Y.toarray(), np.zeros((Y.shape[0], 1000), int)]))
            known[name] = MultiLabelMoM(4, n_topics=0).fit(X, Y_wide)
        elif name == "stack":
            known[name] = MultiLabelMoM(4, n_topics=0).fit(X, Y)
        elif name == "propensity":
            known[name] = MultiLabelMoM(4, n_topics=0, propensity=0.5).fit(X, Y)
        else:
            known[name] = MultiLabelMoM(4, head=name).fit(X, Y)
        return known[name]

    return fit


@pytest.mark.parametrize(
    ("name", "is_exact"),
    [
        ("linear", True), ("svm", True), ("neighbors", True), ("ridge", False), ("moment", False),
        ("posterior", False), ("stack", False), ("sum", False), ("propensity", False),
    ],
)  # fmt: skip
def test_scores_of_chosen_labels_are_columns_of_those_of_all(name, is_exact, planted, fitted):
    model, X = fitted(name), planted[0][: 3 * MIN_ROWS + 5]
    scores, found = model.decision_function(X), model.decision_function(X, CHOSEN)
    assert found.shape == (X.shape[0], 3)
    assert np.ptp(found) > 0
    if is_exact:
        np.testing.assert_array_equal(found, scores[:, IDS])
    np.testing.assert_allclose(found, scores[:, IDS], rtol=1e-5, atol=1e-6)
    if name in ("stack", "sum"):
        np.testing.assert_allclose(
            model.predict_proba(X, CHOSEN), model.predict_proba(X)[:, IDS], rtol=1e-5, atol=1e-6
        )


def test_neighbors_in_the_sketch_vote_for_chosen_labels(planted):
    rng = np.random.default_rng(0)
    labels = Csr.of(csr_array(planted[1][:200]), np.uint8)
    head = SketchNeighbors(unit_rows(rng.standard_normal((200, 6))), labels, np.ones(200, np.uint8))
    query = SimpleNamespace(sketch=rng.standard_normal((30, 6)).astype(np.float32))
    scores, found = np.zeros((30, 12), np.float32), np.zeros((30, 3), np.float32)
    head.add_scores(query, 1.0, scores)
    head.of_labels(IDS).add_scores(query, 1.0, found)
    np.testing.assert_array_equal(found, scores[:, IDS])
    assert found.max() > 0


def test_dense_rows_of_sparse_weights_keep_their_columns():
    rng = np.random.default_rng(0)
    w = rng.standard_normal((41, 12)).astype(np.float32) * (rng.random((41, 12)) < 0.3)
    dense_row = np.full(41, -1, np.int32)
    dense_row[[3, 40]] = [0, 1]
    sparse = w.copy()
    sparse[[3, 40]] = 0
    head = SparseHead(MixedRows(Csr.of(csr_array(sparse)), dense_row, w[[3, 40]]))
    features = csr_array(random_array((25, 40), density=0.2, rng=rng, dtype=np.float32))
    query = SimpleNamespace(features=features)
    found = np.zeros((25, 3), np.float32)
    head.of_labels(IDS).add_scores(query, 1.0, found)
    expected = np.hstack([features.toarray(), np.ones((25, 1))]) @ w[:, IDS]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    gate = GateHead(head.weights, power=0.5)
    scores = rng.uniform(0.1, 1.0, (25, 12)).astype(np.float32)
    own = np.ascontiguousarray(scores[:, IDS])
    gate.multiply(query, scores)
    gate.of_labels(IDS).multiply(query, own)
    np.testing.assert_allclose(own, scores[:, IDS], rtol=1e-6)


@pytest.mark.parametrize("piece_entries", [1, 7, 1 << 22])
def test_columns_of_a_sparse_matrix(piece_entries, monkeypatch):
    monkeypatch.setattr(columns, "PIECE_ENTRIES", piece_entries)
    rng = np.random.default_rng(1)
    matrix = csr_array(random_array((30, 12), density=0.2, rng=rng, dtype=np.float32)).tolil()
    matrix[[0, 4, 5, 29]] = 0
    matrix = csr_array(matrix)
    found = columns_of(Csr.of(matrix), IDS)
    np.testing.assert_array_equal(found.to_scipy().toarray(), matrix.toarray()[:, IDS])
    assert found.to_scipy().nnz < matrix.nnz
    assert columns_of(Csr.of(csr_array((3, 12))), IDS).to_scipy().nnz == 0


@pytest.mark.parametrize("name", ["posterior", "ridge"])
def test_the_best_labels_are_those_among_the_chosen(name, planted, fitted):
    """Also with heads that find them without scoring all labels."""
    model, X = fitted(name), planted[0][:100]
    labels, _ = of_labels(model.scorer_, IDS).top(model._block(X), 2)
    expected = np.argsort(-model.decision_function(X, CHOSEN), axis=1, kind="stable")[:, :2]
    np.testing.assert_array_equal(labels, expected)


@pytest.mark.parametrize("form", ["names", "lists", "matrix", "sparse"])
def test_predictions_have_the_form_of_the_targets(form, planted):
    X, Y = planted[0][:600], planted[1][:600].toarray()
    targets = {
        "names": [f"l{row.argmax()}" for row in Y],
        "lists": [[f"l{i}" for i in np.flatnonzero(row)] for row in Y],
        "matrix": Y,
        "sparse": csr_array(Y),
    }[form]
    model = MultiLabelMoM(4, n_topics=0).fit(X, targets)
    chosen = [model.label_names_[i] for i in (3, 0, 1)]
    found = model.predict(X[:50], labels=chosen)
    p = model.predict_proba(X[:50], chosen)
    assigned = p >= np.float32(model.threshold_)
    if form == "names":
        assert [chosen[i] for i in p.argmax(axis=1)] == found.tolist()
    elif form == "lists":
        assert [set(row) for row in found] == [{chosen[i] for i in np.flatnonzero(row)} for row in assigned]
    else:
        np.testing.assert_array_equal(found if form == "matrix" else found.toarray(), assigned)


def test_predictions_of_a_corpus_have_only_the_chosen_labels(planted, fitted, tmp_path):
    model, X = fitted("stack"), planted[0][:200]
    corpus = MemoryCorpus(X, np.zeros((200, 1)))
    predict_corpus(model, corpus, tmp_path / "out", top=2, labels=CHOSEN)
    assert (tmp_path / "out" / "labels.txt").read_text().split() == CHOSEN
    _, *lines = (tmp_path / "out" / "predictions.tsv").read_text().splitlines()
    p = model.predict_proba(X, CHOSEN)
    order = np.argsort(-p, axis=1, kind="stable")[:, :2]
    expected = [CHOSEN[i] for row in order for i in row]
    assert [line.split("\t")[1] for line in lines] == expected
    values = np.take_along_axis(p, order, axis=1).ravel()
    np.testing.assert_allclose([float(line.split("\t")[2]) for line in lines], values, rtol=1e-4)


def test_the_work_falls_with_the_number_of_labels(fitted, planted):
    scorer = fitted("linear").scorer_
    few = of_labels(scorer, IDS)
    weights = [head.weights for s in (scorer, few) for _, head in s.heads]
    sizes = [w.sparse.data.size + np.asarray(w.dense).size for w in weights]
    assert sizes[1] < 0.4 * sizes[0]
    assert few.n_labels == 3


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "expected at least one name"),
        (["7", "x"], "the model has no label 'x'"),
        (["7", "7"], "'7' is given twice"),
        ("7", "expected a list of names"),
        ([7], "expected a list of names"),
    ],
)
def test_labels_that_cannot_be_chosen_are_refused(labels, message, fitted, planted, tmp_path):
    model, X = fitted("stack"), planted[0][:5]
    for use in (model.predict, model.decision_function, model.predict_proba):
        with pytest.raises(UsageError, match=f"labels: {message}"):
            use(X, labels=labels)
    with pytest.raises(UsageError, match=f"labels: {message}"):
        predict_corpus(model, MemoryCorpus(X, np.zeros((5, 1))), tmp_path / "out", labels=labels)
    assert not (tmp_path / "out").exists()
