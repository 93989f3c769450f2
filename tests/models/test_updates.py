"""Documents that are added to a fitted multi-label model and removed from it, compared with sums over all."""

import numpy as np
import pytest
from helpers import carried_out
from scipy.sparse import csr_array
from updated import BLENDS, FIXED, KINDS, N_FIRST, all_documents, close, documents_of, first_model, rest

from distmom.corpus import MemoryCorpus
from distmom.engine import open_engine
from distmom.errors import UsageError
from distmom.models import MultiLabelMoM, load_model
from distmom.models.multilabel.classifiers.margin import fit_margins
from distmom.models.multilabel.heads.features import Features
from distmom.models.multilabel.updates import updatable as updates
from distmom.moments.features.regression import ridge_coefficients
from distmom.moments.features.tfidf import tfidf_rows, with_constant


@pytest.fixture(scope="module")
def data():
    return all_documents()


@pytest.fixture(scope="module")
def first():
    return first_model


@pytest.fixture(autouse=True)
def centroids(monkeypatch, request):
    """Let the model of centroids alone, which no parameter requests, be updated as such."""
    if "centroid" in request.node.name:
        monkeypatch.setattr(updates, "weights_of", lambda head: {"centroid": 1.0})


def dense(matrix):
    return matrix.to_scipy().toarray().astype(np.float64)


def features(model, X):
    return with_constant(tfidf_rows(csr_array(X), model.idf_, np.float32)).toarray().astype(np.float64)


def stage_scores(a, y, w, n_negatives=5):
    """Scores on the true labels, and on the wrong labels of largest positive score."""
    scores = (a.astype(np.float32) @ w.astype(np.float32)).astype(np.float64)
    wrong = np.where((y == 0) & (scores > 0), scores, -np.inf)
    order = np.argsort(-wrong, axis=1, kind="stable")[:, :n_negatives]
    kept = y > 0
    np.put_along_axis(kept, order, np.take_along_axis(wrong, order, axis=1) > -np.inf, axis=1)
    return np.where(kept | (y > 0), scores, 0.0)


# Sums


@pytest.mark.parametrize("kind", ["centroid", *BLENDS])
def test_the_cross_moment_is_that_of_all_documents(first, data, kind):
    model = first(kind).partial_fit(*rest(data))
    X, Y = data
    a, y = features(model, X), Y.toarray().astype(np.float64)
    close(dense(model.sums_.cross.matrix), a.T @ y)
    close(model.sums_.squares, (a**2).sum(axis=0))
    assert model.n_documents_ == len(y)
    np.testing.assert_array_equal(model.label_frequency_, y.sum(axis=0))
    assert model.label_frequency_.dtype == np.int64


@pytest.mark.parametrize("kind", ["ridge", *BLENDS])
def test_ridge_sums_are_those_of_all_documents(first, data, kind):
    before = first(kind)
    model = first(kind).partial_fit(*rest(data))
    np.testing.assert_array_equal(model.basis_, before.basis_)
    X, Y = data
    z, y = features(model, X)[:, :-1] @ model.basis_, Y.toarray().astype(np.float64)
    sums = {"zz": z.T @ z, "z": z.sum(axis=0), "zy": y.T @ z}
    for name, expected in sums.items():
        close(getattr(model.sums_.ridge, name), expected)
    if kind == "ridge":
        sums |= {"y": y.sum(axis=0), "n_documents": float(len(y))}
        coefficients, intercept = ridge_coefficients(sums, 0.03)
        head = dict(model.scorer_.heads)["ridge"]
        np.testing.assert_allclose(head.coefficients, coefficients, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(head.intercept, intercept, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["linear", *BLENDS])
def test_the_linear_head_adds_what_documents_add_in_its_stages(first, data, kind):
    before = first(kind)
    model = first(kind).partial_fit(*rest(data))
    X, Y = rest(data)
    a, y = features(model, X), Y.toarray().astype(np.float64)
    own = a.T @ y
    assert len(before.sums_.linear.stages) == (2 if kind == "linear" else 1)
    for _, stage in before.sums_.linear.stages:
        w = dense(stage.weights)
        moment = np.where(w != 0, a.T @ stage_scores(a, y, w), 0.0)
        own = stage.scale * own + stage.step * (a.T @ y - stage.scale * moment)
    close(dense(model.sums_.linear.weights), dense(before.sums_.linear.weights) + own)


@pytest.mark.parametrize("kind", ["neighbors", "svm", *BLENDS])
def test_documents_are_those_of_the_first_fit_and_then_those_added(first, data, kind):
    model = first(kind).partial_fit(*rest(data))
    heads, sums = dict(model.scorer_.heads), model.sums_
    index = heads.get("neighbors", sums.documents)
    assert (sums.documents is None) == ("neighbors" in heads)
    X, Y = data
    np.testing.assert_array_equal(
        index.lists.to_scipy().toarray().T, tfidf_rows(X, model.idf_, np.float32).toarray()
    )
    np.testing.assert_array_equal(index.labels.to_scipy().toarray(), Y.toarray())
    assert index.alive.all()
    if "sketch-neighbors" in heads:
        near = heads["sketch-neighbors"]
        z = features(model, X)[:, :-1] @ model.basis_
        np.testing.assert_allclose(near.rows, z / np.linalg.norm(z, axis=1, keepdims=True), atol=1e-6)
        np.testing.assert_array_equal(near.labels.to_scipy().toarray(), Y.toarray())


def test_classifiers_are_those_of_all_documents(first, data):
    model = first("svm").partial_fit(*rest(data))
    with open_engine(MemoryCorpus(*data)) as engine:
        own = Features(engine.put(model.idf_), None, (), None, None, 0)
        expected = carried_out(engine, fit_margins, own, None, (0.3,), 0).weights["0.3"]
        found = dict(model.scorer_.heads)["svm"].weights
        np.testing.assert_array_equal(dense(found.sparse), dense(expected.sparse))
        np.testing.assert_array_equal(found.dense, expected.dense.load())


# Heads


@pytest.mark.parametrize("kind", [*FIXED, "stack"])
def test_an_update_is_as_good_as_a_fit_to_all(first, data, kind):
    X, Y = data
    X_new, Y_new = documents_of(1100)
    X_new, Y_new = X_new[600:], Y_new[600:]
    model = first(kind)
    before = model.score(X_new, Y_new)
    model.partial_fit(*rest(data))
    if kind in FIXED:
        whole = MultiLabelMoM(10, head=kind).fit(X, Y)
        assert abs(model.score(X_new, Y_new) - whole.score(X_new, Y_new)) < 0.06
    assert model.score(X_new, Y_new) > before - 0.03
    assert np.isfinite(model.decision_function(X_new)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_two_updates_are_one_and_a_saved_model_is_updated_alike(first, data, kind, tmp_path):
    once = first(kind).partial_fit(*rest(data))
    twice = first(kind).partial_fit(*rest(data, slice(N_FIRST, 500)))
    twice.save(tmp_path / "model")
    twice = load_model(tmp_path / "model").partial_fit(*rest(data, slice(500, None)))
    # Entries of the first sum were rounded once more.
    np.testing.assert_allclose(
        twice.decision_function(data[0]), once.decision_function(data[0]), rtol=1e-3, atol=2e-4
    )
    assert twice.n_documents_ == once.n_documents_ == 600


@pytest.mark.parametrize("kind", KINDS)
def test_documents_that_were_added_are_removed_up_to_rounding(first, data, kind):
    before, model = first(kind), first(kind)
    model.partial_fit(*rest(data))
    changed = model.decision_function(data[0])
    # In another order, and in two parts.
    X, Y = rest(data)
    order = np.random.default_rng(0).permutation(X.shape[0])
    for part in (order[:50], order[50:]):
        model.remove(X[part], Y[part])
    assert model.n_documents_ == N_FIRST
    np.testing.assert_array_equal(model.label_frequency_, before.label_frequency_)
    close(model.sums_.squares, before.sums_.squares)
    for name in ("cross", "linear", "ridge"):
        own, known = getattr(model.sums_, name), getattr(before.sums_, name)
        assert (own is None) == (known is None)
        if name == "ridge" and own is not None:
            close(own.zz, known.zz)
            close(own.zy, known.zy)
        elif own is not None:
            matrix = "matrix" if name == "cross" else "weights"
            close(dense(getattr(own, matrix)), dense(getattr(known, matrix)))
    scores = before.decision_function(data[0])
    np.testing.assert_allclose(model.decision_function(data[0]), scores, rtol=1e-3, atol=2e-4)
    assert np.abs(changed - scores).max() > 0.01
    np.testing.assert_array_equal(model.predict_top(data[0], 1)[0], before.predict_top(data[0], 1)[0])


@pytest.mark.parametrize("kind", [*FIXED, "stack"])
def test_documents_of_the_first_fit_can_be_removed(first, data, kind):
    X, Y = data
    gone = slice(0, 40)
    model = first(kind).remove(X[gone], Y[gone])
    assert model.n_documents_ == N_FIRST - 40
    a, y = features(model, X[40:N_FIRST]), Y[40:N_FIRST].toarray().astype(np.float64)
    close(model.sums_.squares, (a**2).sum(axis=0))
    if model.sums_.cross is not None:
        close(dense(model.sums_.cross.matrix), a.T @ y)
    if "neighbors" in dict(model.scorer_.heads):
        assert dict(model.scorer_.heads)["neighbors"].labels.to_scipy().shape[0] == N_FIRST - 40
    if kind in FIXED:
        whole = MultiLabelMoM(10, head=kind).fit(X[40:N_FIRST], Y[40:N_FIRST])
        assert abs(model.score(*rest(data)) - whole.score(*rest(data))) < 0.06


@pytest.mark.parametrize("kind", KINDS)
def test_new_labels_are_predicted(first, data, kind):
    model = first(kind)
    rng = np.random.default_rng(1)
    X = np.zeros((60, 120), int)
    # Documents about five words that are together nowhere else.
    X[:, :5] = rng.integers(1, 4, (60, 5))
    names = [["fresh", str(i % 12)] for i in range(40)]
    model.partial_fit(X[:40], names)
    assert model.label_names_ == [*map(str, range(12)), "fresh"]
    assert list(model.classes_)[-1] == "fresh"
    assert model.label_frequency_[-1] == 40
    labels = model.predict_top(X[40:], 1)[0].ravel()
    assert (labels == 12).mean() > 0.9
    assert model.decision_function(X).shape == (60, 13)
    if model.corpus_topics_ is not None:
        assert model.corpus_topics_.label_components.shape[0] == 13
        assert model.topics()
    # It is removed like the others.
    model.remove(X[:40], names)
    assert model.label_frequency_[-1] == 0
    assert (model.predict_top(data[0], 1)[0] != 12).all()


@pytest.mark.parametrize("kind", ["linear", "stack"])
def test_new_labels_keep_their_number_when_saved(first, data, kind, tmp_path):
    X = rest(data)[0]
    model = first(kind).partial_fit(X, [["new"] if i % 3 else ["newer", "1"] for i in range(X.shape[0])])
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.label_names_ == model.label_names_
    np.testing.assert_allclose(again.decision_function(X), model.decision_function(X), rtol=1e-5, atol=1e-6)


def test_names_of_columns_are_matched(first, data):
    pandas = pytest.importorskip("pandas")
    X, Y = rest(data)
    order = [*range(11, -1, -1)]
    table = pandas.DataFrame(Y.toarray()[:, order], columns=[str(i) for i in order])
    table["other"] = 1
    model = first("neighbors").partial_fit(X, table)
    assert model.label_names_ == [*map(str, range(12)), "other"]
    expected = first("neighbors").partial_fit(X, Y)
    np.testing.assert_array_equal(model.label_frequency_[:12], expected.label_frequency_)
    assert model.label_frequency_[12] == X.shape[0]


def test_texts_are_read_as_in_the_fit_and_unknown_words_left_out():
    texts = ["salmon and herring", "herring nets", "oak and pine", "oak leaves"] * 15
    subjects = [["fish"], ["fish"], ["trees"], ["trees"]] * 15
    model = MultiLabelMoM(2, head="neighbors").partial_fit(texts, subjects)
    assert model.sums_ is not None
    model.partial_fit(["salmon nets in quarantine", "pine nets"], [["fish"], ["odd"]])
    assert model.vocabulary_ == MultiLabelMoM(2, head="neighbors").fit(texts, subjects).vocabulary_
    assert model.label_names_ == ["fish", "trees", "odd"]
    assert model.n_documents_ == 62
    assert model.predict(["salmon nets"]) == [["fish"]]


# Combination


@pytest.mark.parametrize("kind", [*FIXED, "stack"])
def test_the_combination_of_two_updates_is_one_update_with_both(first, data, kind):
    X, Y = rest(data)
    names = [[str(label) for label in np.flatnonzero(row)] for row in Y.toarray()]
    monday = [[*own, "monday", "both"] for own in names[:100]]
    tuesday = [[*own, "both", "tuesday"] for own in names[100:]]
    start = first(kind)
    one = first(kind).partial_fit(X[:100], monday)
    other = first(kind).partial_fit(X[100:], tuesday)
    # Numbered in another order, which the names settle.
    assert one.label_names_[12:] != other.label_names_[12:]
    total = MultiLabelMoM.combine([one, other], [start])
    both = first(kind).partial_fit(X, [*monday, *tuesday])
    assert total.n_documents_ == 600
    assert sorted(total.label_names_) == sorted(both.label_names_)
    order = [both.label_names_.index(name) for name in total.label_names_]
    np.testing.assert_array_equal(total.label_frequency_, both.label_frequency_[order])
    found, expected = total.decision_function(data[0]), both.decision_function(data[0])[:, order]
    # The order of labels, which decides how documents are visited and so where classifiers stop, is another.
    close_enough = {"svm": 0.2, "stack": 0.2}.get(kind, 1e-3)
    np.testing.assert_allclose(found, expected, atol=close_enough * np.abs(expected).max())
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.95
    # The models themselves are as before.
    assert (one.n_documents_, other.n_documents_, start.n_documents_) == (500, 500, 400)


def test_combinations_that_count_documents_twice_or_differ_are_refused(first, data):
    X, Y = rest(data)
    one, other = first("linear").partial_fit(X[:100], Y[:100]), first("linear").partial_fit(X[100:], Y[100:])
    with pytest.raises(UsageError, match="would be counted 2 times: they were added before, or models share"):
        MultiLabelMoM.combine([one, other])
    with pytest.raises(UsageError, match="updates of different fits"):
        MultiLabelMoM.combine([one, first("ridge")])
    again = MultiLabelMoM(10, head="linear", keep_sums=True).fit(X, Y)
    with pytest.raises(UsageError, match="updates of different fits"):
        MultiLabelMoM.combine([one, again])
    with pytest.raises(UsageError, match="expected at least one model"):
        MultiLabelMoM.combine([])
    expected = "expected a list of models of class MultiLabelMoM, got"
    with pytest.raises(UsageError, match=f"added: {expected} MultiLabelMoM"):
        MultiLabelMoM.combine(one)
    with pytest.raises(UsageError, match=f"taken: {expected} one of str"):
        MultiLabelMoM.combine([one, other], ["start"])
    with pytest.raises(UsageError, match="fitted without its sums"):
        MultiLabelMoM.combine([MultiLabelMoM(10, head="linear").fit(X, Y)])
    with pytest.raises(UsageError, match="at least 1 remaining document, got 0"):
        MultiLabelMoM.combine([one], [one])
