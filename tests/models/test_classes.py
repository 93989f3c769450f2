"""Labels of other types, and one label per document, as classifiers of scikit-learn have them."""

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array, issparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.exceptions import DataConversionWarning
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score, cross_validate, train_test_split
from sklearn.preprocessing import MultiLabelBinarizer
from subjects import draw

from distmom.errors import InputError, UsageError
from distmom.models import ICA, MultiLabelMoM, SphericalMixture, load_model


@pytest.fixture(scope="module")
def data():
    return draw()


def test_cross_validation_takes_texts_and_lists_of_names(data):
    model = MultiLabelMoM(3, head="ridge")
    assert (cross_val_score(model, *data, cv=3) > 0.8).all()
    train, test, y_train, y_test = train_test_split(*data, random_state=0)
    assert model.fit(train, y_train).score(test, y_test) > 0.8


@pytest.mark.slow
def test_fitted_models_work_in_other_processes_of_joblib(data):
    """joblib sends mapped arrays by the name of their file, and those of the fit are gone."""
    rows = np.random.default_rng(0).laplace(size=(400, 6))
    calls = [
        (MultiLabelMoM(3, random_state=0).fit(*data).predict_proba, data[0]),
        (SphericalMixture(2, random_state=0).fit(rows).predict_proba, rows),
        (ICA(2, random_state=0).fit(rows).transform, rows),
    ]
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(call)(X) for call, X in calls)
    for (call, X), there in zip(calls, found, strict=True):
        np.testing.assert_array_equal(call(X), there)


def test_numbers_of_classes_are_labels_and_come_back_as_numbers(data, tmp_path):
    texts = data[0]
    words = ("herring", "comet", "oak")
    classes = np.array([next((10 * i + 2 for i, w in enumerate(words) if w in text), 2) for text in texts])
    assert len(np.unique(classes)) == 3
    model = MultiLabelMoM(3, head="ridge").fit(texts, classes)
    by_name = MultiLabelMoM(3, head="ridge").fit(texts, [str(each) for each in classes])
    assert model.classes_.tolist() == [2, 12, 22]
    assert model.classes_.dtype == np.int64
    found = model.predict(texts)
    assert found.dtype == np.int64
    assert [str(each) for each in found] == by_name.predict(texts).tolist()
    assert (found == classes).mean() == pytest.approx(model.score(texts, classes))
    order = [by_name.classes_.tolist().index(str(each)) for each in model.classes_]
    np.testing.assert_array_equal(model.decision_function(texts), by_name.decision_function(texts)[:, order])
    assert set(model.predict(texts, labels=[22, 2])) <= {2, 22}
    with pytest.raises(UsageError, match="3"):
        model.predict(texts, labels=[3])
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load_model(tmp_path / "m").predict(texts), found)
    same = MultiLabelMoM(3, head="ridge").fit(texts, classes.astype(float).tolist())
    np.testing.assert_array_equal(same.predict(texts), found)
    assert (cross_val_score(MultiLabelMoM(3, head="ridge"), texts, classes, cv=3) > 0.5).all()
    # scikit-learn expects classes in ascending order.
    signed = MultiLabelMoM(3, head="ridge").fit(texts, classes - 12)
    assert signed.classes_.tolist() == [-10, 0, 10]
    np.testing.assert_array_equal(signed.predict(texts), found - 12)


def test_scores_find_the_labels_of_a_table_by_name(data):
    texts, labels = data
    names = sorted({name for each in labels for name in each})
    table = pd.DataFrame([[int(name in each) for name in names] for each in labels], columns=names)
    model = MultiLabelMoM(3, head="ridge").fit(texts, table)
    share = model.score(texts, labels)
    assert share > 0.8
    assert model.score(texts, table) == model.score(texts, table[names[::-1]]) == share
    assert model.score(texts, table.assign(other=1)) == share
    # Labels that are not among the columns are in no document.
    least = model.score(texts, table[names[:2]])
    assert 0.0 < least < share
    with pytest.raises(UsageError, match=f"y: names of columns: .* such as '{names[0]}', got only others"):
        model.score(texts, table.rename(columns=str.upper))


def test_scores_take_the_columns_of_a_matrix_in_the_order_of_the_classes(data):
    texts, labels = data
    numbers = {name: str(9 + i) for i, name in enumerate(sorted({name for each in labels for name in each}))}
    lists = [[numbers[name] for name in each] for each in labels]
    model = MultiLabelMoM(3, head="ridge").fit(texts, lists)
    # As text, "9" follows "10".
    assert model.classes_.tolist() != sorted(model.classes_)
    in_order = MultiLabelBinarizer(classes=model.classes_.tolist()).fit_transform(lists)
    assert model.score(texts, in_order) == model.score(texts, lists) > 0.8
    assert model.score(texts, MultiLabelBinarizer().fit_transform(lists)) < 0.8


def test_names_and_numbers_of_classes_are_no_scores_of_each_other(data):
    texts = data[0]
    numbers = np.arange(len(texts)) % 3
    model = MultiLabelMoM(3, head="ridge").fit(texts, numbers)
    with pytest.raises(UsageError, match="y: expected numbers as in the fit, got names"):
        model.score(texts, [f"class {each}" for each in numbers])


@pytest.mark.parametrize(
    "dtype", [bool, np.uint8, np.int32, np.float32, str, np.dtypes.StringDType(), object]
)
def test_labels_have_the_type_that_was_given(data, dtype, tmp_path):
    texts = data[0]
    classes = np.array(["herring" in text for text in texts]).astype(int).astype(dtype)
    if dtype is object:
        classes = np.array([f"class {each}" for each in classes], object)
    model = MultiLabelMoM(3, head="ridge", keep_sums=True).fit(texts, classes)
    model.save(tmp_path / "m")
    for other in (model, load_model(tmp_path / "m")):
        np.testing.assert_array_equal(other.classes_, np.unique(classes))
        found = other.predict(texts)
        assert other.classes_.dtype == found.dtype == model.classes_.dtype
        assert found.dtype.kind == "U" if classes.dtype.kind in "UT" else found.dtype == classes.dtype
        assert other.score(texts, classes) == pytest.approx((found == classes).mean())
        chosen = other.predict(texts, labels=list(model.classes_[1:]))
        np.testing.assert_array_equal(chosen, np.repeat(model.classes_[1:], len(texts)), strict=True)
    if dtype in (bool, np.uint8):
        with pytest.raises(
            UsageError, match=f"y: expected labels of type {np.dtype(dtype)} as in the fit, got '300'"
        ):
            model.partial_fit(texts, [300] * len(texts))
    if dtype is str:
        assert model.partial_fit(texts[:1], ["a longer label"]).classes_.tolist() == [
            "0",
            "1",
            "a longer label",
        ]


def test_labels_of_later_documents_are_given_at_the_first_call(data):
    texts, numbers = data[0], [2 * ("herring" in text) for text in data[0]]
    model = MultiLabelMoM(3, head="ridge").partial_fit(texts, numbers, classes=[0, 1, 2])
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.label_frequency_[1] == 0
    assert model.partial_fit(texts[:1], [1], classes=[4, 3]).classes_.tolist() == [0, 1, 2, 3, 4]
    assert model.label_frequency_.tolist()[1:2] == [1]
    lists = MultiLabelMoM(3, head="ridge").partial_fit(*data, classes=["z", "a"])
    assert lists.classes_.tolist()[:2] == ["z", "a"]
    for classes in (["a"], 5, "abc", [0.5], [None]):
        with pytest.raises(UsageError, match="classes: expected a list of whole numbers as in y"):
            MultiLabelMoM(3, head="ridge").partial_fit(texts, numbers, classes=classes)
    for classes in ([0, 1], 5, "abc", ["a", None]):
        with pytest.raises(UsageError, match="classes: expected a list of names as in y"):
            MultiLabelMoM(3, head="ridge").partial_fit(*data, classes=classes)
    with pytest.raises(UsageError, match="y: expected numbers as in the fit, got names"):
        model.partial_fit(texts, [str(each) for each in numbers])
    with pytest.raises(UsageError, match="classes: expected none with a matrix"):
        MultiLabelMoM(3, head="ridge").partial_fit(texts, np.eye(3, dtype=int)[numbers], classes=[0, 1, 2])


def test_labels_that_scikit_learn_would_not_expect_are_reported(data, caplog):
    texts, numbers = data[0], np.array([2 * ("herring" in text) for text in data[0]])
    model = MultiLabelMoM(3, head="ridge").partial_fit(texts, numbers + 1)
    model.partial_fit(texts[:1], [3])
    assert "classes_" not in caplog.text
    assert model.partial_fit(texts[:1], [2]).classes_.tolist() == [1, 3, 2]
    assert "new labels follow those of the first fit in classes_" in caplog.text
    names = np.array([" fish", "trees"])[numbers // 2]
    assert MultiLabelMoM(3, head="ridge").fit(texts, names).classes_.tolist() == ["fish", "trees"]
    assert "converted to Unicode normal form C, as in ' fish'" in caplog.text


@pytest.mark.parametrize("form", ["names", "numbers"])
def test_one_of_two_labels_per_document_is_a_binary_classification(data, form):
    texts = data[0]
    y = np.array(["herring" in text for text in texts]).astype(int) + 9
    y = y.astype(str) if form == "names" else y
    model = MultiLabelMoM(3).fit(texts, y)
    # Names are in scikit-learn's order: that of text.
    assert model.classes_.tolist() == np.unique(y).tolist()
    found, preference = model.predict_proba(texts), model.decision_function(texts)
    assert preference.shape == (len(texts),)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(preference, np.log(found[:, 1] / found[:, 0]), atol=1e-3)
    np.testing.assert_array_equal(model.predict(texts), model.classes_[(preference > 0).astype(int)])
    assert model.decision_function(texts, labels=list(model.classes_)).shape == found.shape
    first = model.predict_proba(texts, labels=[model.classes_[1]])
    np.testing.assert_array_equal(first, found[:, 1:])
    scoring = ["roc_auc", "neg_log_loss", "accuracy"]
    folds = StratifiedKFold(2)
    scores = cross_validate(MultiLabelMoM(3, head="auto"), texts, y, cv=folds, scoring=scoring)
    assert scores["test_roc_auc"].min() > 0.95
    assert scores["test_neg_log_loss"].min() > -0.5
    ridge = MultiLabelMoM(3, head="ridge").fit(texts, y)
    np.testing.assert_array_equal(
        ridge.predict(texts), ridge.classes_[(ridge.decision_function(texts) > 0) * 1]
    )


@pytest.mark.parametrize("kind", ["stacking", "calibration"])
def test_ensembles_of_scikit_learn_take_models_of_one_label_per_document(data, kind):
    counts = CountVectorizer().fit_transform(data[0])
    y = np.array(["herring" in text for text in data[0]]).astype(int)
    model, folds = MultiLabelMoM(3), StratifiedKFold(2)
    members = [("moments", model), ("logistic", LogisticRegression())]
    ensemble = (
        StackingClassifier(members, cv=folds)
        if kind == "stacking"
        else CalibratedClassifierCV(model, cv=folds)
    )
    assert ensemble.fit(counts, y).score(counts, y) > 0.95
    np.testing.assert_allclose(ensemble.predict_proba(counts).sum(axis=1), 1.0, atol=1e-6)
    # It asks for classifiers before it fits them.
    with pytest.raises(ValueError, match="MultiLabelMoM should be a classifier"):
        VotingClassifier(members, voting="soft").fit(counts, y)


def test_probabilities_of_one_label_per_document_sum_to_one(data):
    texts = data[0]
    words = ("herring", "comet", "oak")
    y = [next((word for word in words if word in text), "none") for text in texts]
    folds = StratifiedKFold(2)
    scores = cross_validate(MultiLabelMoM(3), texts, y, cv=folds, scoring=["roc_auc_ovr", "neg_log_loss"])
    assert scores["test_roc_auc_ovr"].min() > 0.9
    several = MultiLabelMoM(3).fit(*data).predict_proba(texts)
    assert np.abs(several.sum(axis=1) - 1).max() > 0.01


def test_a_column_of_classes_is_read_as_one_label_per_document(data):
    texts, numbers = data[0], np.array([2 * ("herring" in text) for text in data[0]])
    model = MultiLabelMoM(3, head="ridge").fit(texts, numbers)
    for column in (numbers[:, None], pd.DataFrame({"y": numbers})):
        with pytest.warns(DataConversionWarning, match="read as one label per document"):
            same = MultiLabelMoM(3, head="ridge").fit(texts, column)
        np.testing.assert_array_equal(same.predict(texts), model.predict(texts), strict=True)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32, ">i8", ">f8", "f2"])
def test_a_matrix_of_labels_has_the_type_that_was_given(data, dtype):
    texts, Y = data[0], np.array([["herring" in text, "comet" in text] for text in data[0]]).astype(dtype)
    # SciPy has no sparse matrices of other byte orders or of half precision.
    for given in (Y,) if dtype in (">i8", ">f8", "f2") else (Y, csr_array(Y)):
        found = MultiLabelMoM(3, head="ridge").fit(texts, given).predict(texts)
        assert found.dtype == dtype
        assert issparse(found) == issparse(given)


@pytest.mark.parametrize("dtype", ["Int64", "UInt8", "boolean", "Float64", "int64[pyarrow]", "bool[pyarrow]"])
def test_nullable_columns_of_labels_are_read_as_others_are(data, dtype, tmp_path):
    texts = data[0]
    plain = pd.DataFrame({name: [int(name in text) for text in texts] for name in ("herring", "comet")})
    table = plain.astype(dtype)
    expected = MultiLabelMoM(3, head="ridge").fit(texts, plain)
    model = MultiLabelMoM(3, head="ridge", keep_sums=True).fit(texts, table)
    model.save(tmp_path / "m")
    found = load_model(tmp_path / "m").predict(texts)
    assert found.dtype == table["comet"].dtype.numpy_dtype
    np.testing.assert_array_equal(found, expected.predict(texts))
    assert model.score(texts, table) == expected.score(texts, plain)
    assert model.partial_fit(texts[:9], table[:9]).n_documents_ == len(texts) + 9
    # Only one of the columns is nullable.
    mixed = MultiLabelMoM(3, head="ridge").fit(texts, plain.astype({"comet": dtype}))
    np.testing.assert_array_equal(mixed.predict(texts), found)


def test_missing_labels_are_reported_with_their_place(data):
    texts, numbers = data[0], pd.Series(np.arange(len(data[0])) % 3, dtype="Int64")
    table = pd.DataFrame({"herring": numbers == 0, "comet": numbers == 1})
    numbers[4], table.iloc[5, 1] = pd.NA, pd.NA
    for given in (numbers, np.where(np.arange(len(texts)) == 4, np.nan, 1.0)):
        with pytest.raises(InputError, match="y:4: label: expected a whole number, got nan"):
            MultiLabelMoM(3).fit(texts, given)
    with pytest.raises(InputError, match=r"y: value in row 5, column 1: expected 0 or 1 .* got nan"):
        MultiLabelMoM(3).fit(texts, table)
    model = MultiLabelMoM(3, head="ridge").fit(texts, table["comet"].fillna(False).to_numpy(bool))
    for use in (MultiLabelMoM(3).fit, model.score):
        with pytest.raises(InputError, match="y: expected the labels of at least one document, got none"):
            use(texts, [])


def test_labels_that_are_fractions_are_reported_with_their_type():
    with pytest.raises(UsageError, match=r"whole numbers of labels.*got float64 of shape \(2,\)"):
        MultiLabelMoM(1).fit(["oak oak", "elm elm"], [0.5, 1.5])
