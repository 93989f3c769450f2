import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from distmom import (
    ECA,
    ICA,
    DiagonalMixture,
    GaussianSearch,
    HiddenMarkov,
    LatentNetwork,
    LatentTree,
    MultiLabelMoM,
    MultiView,
    ProductMixture,
    RegressionSearch,
    SphericalMixture,
    SubspaceSearch,
    load_model,
)
from distmom.errors import InputError, UsageError

NAMES = ["height", "weight", "age", "income", "rent", "debt"]


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1, 0, 1], 150)
    values = 4.0 * rng.normal(size=(2, 6))[groups] + rng.exponential(size=(600, 6))
    return pd.DataFrame(values, columns=NAMES)


MODELS = {
    "spherical": SphericalMixture(2),
    "diagonal": DiagonalMixture(2),
    "ica": ICA(2),
    "network": LatentNetwork(2, noise="none"),
    "hmm": HiddenMarkov(2),
    "views": MultiView(2, widths="2,2,2"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_rows_have_the_names_of_a_table_and_refuse_other_columns(table, name, tmp_path):
    model = MODELS[name].fit(table)
    assert model.feature_names_in_.tolist() == model.vocabulary_ == NAMES
    use = model.transform if hasattr(model, "transform") else model.predict_proba
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    for other in (model, loaded, pickle.loads(pickle.dumps(model))):
        use = other.transform if hasattr(other, "transform") else other.predict_proba
        with warnings.catch_warnings(action="error"):
            found = use(table)
        with pytest.warns(UserWarning, match="X does not have valid feature names"):
            assert np.array_equal(use(table.to_numpy()), found)
        with pytest.raises(UsageError, match="Feature names must be in the same order"):
            use(table[NAMES[::-1]])
        with pytest.raises(UsageError, match="Feature names unseen at fit time"):
            use(table.rename(columns={"age": "years"}))
    model.fit(table.to_numpy())
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize("name", ["spherical", "diagonal"])
def test_scores_of_a_table_give_no_warning(table, name):
    model = MODELS[name].fit(table)
    with warnings.catch_warnings(action="error"):
        values = [model.score(table), model.bic(table), model.aic(table)]
    n, logs = len(table), model.score_samples(table)
    free = 2 * 6 + 1 + model.variances_.size
    expected = [logs.mean(), -2.0 * logs.sum() + free * np.log(n), -2.0 * logs.sum() + 2.0 * free]
    np.testing.assert_allclose(values, expected, rtol=1e-12)


def test_coordinates_of_a_mixture_are_named_in_a_table(table):
    table.index = table.index + 7
    pipeline = make_pipeline(StandardScaler(), SphericalMixture(2)).set_output(transform="pandas")
    found = pipeline.fit(table).transform(table)
    assert found.index.equals(table.index)
    assert list(found.columns) == list(pipeline[-1].get_feature_names_out())
    assert found.columns[0] == "sphericalmixture0"


def test_a_column_of_symbols_does_not_name_the_symbols():
    symbols = np.random.default_rng(0).integers(0, 3, 2000)
    model = HiddenMarkov(1).fit(pd.DataFrame({"step": symbols}))
    assert model.vocabulary_ == ["0", "1", "2"]
    assert len(model.predict(pd.DataFrame({"step": [0, 1, 2]}))) == 3


def views_of(table):
    return tuple(table[NAMES[at : at + 2]] for at in (0, 2, 4))


@pytest.mark.parametrize("joined", [False, True])
def test_tables_of_views_have_the_columns_of_the_fit(table, joined, tmp_path):
    model = MultiView(2, widths="2,2,2").fit(table if joined else views_of(table))
    names = NAMES if joined else ["1.height", "1.weight", "2.age", "2.income", "3.rent", "3.debt"]
    assert model.feature_names_in_.tolist() == model.vocabulary_ == names
    model.save(tmp_path / "model")
    first, second, third = views_of(table)
    for other in (model, load_model(tmp_path / "model")):
        with warnings.catch_warnings(action="error"):
            found = other.predict_proba((first, second, third))
        with pytest.warns(UserWarning, match="X does not have valid feature names, but MultiView"):
            assert np.array_equal(other.predict_proba((first, second.to_numpy(), third)), found)
        with pytest.raises(UsageError, match=r"X\[0\]: The feature names should match"):
            other.predict_proba((second, first, third))
        with pytest.raises(UsageError, match=r"X\[1\]: [^#]*must be in the same order"):
            other.predict_proba((first, second[["income", "age"]], third))


def test_probabilities_of_views_have_names_and_the_index_of_a_table(table):
    model = MultiView(2, widths="2,2,2").set_output(transform="pandas")
    found = model.fit_transform(table)
    assert found.columns.tolist() == model.get_feature_names_out().tolist() == ["multiview0", "multiview1"]
    assert found.index.equals(table.index)
    assert np.array_equal(model.transform(views_of(table)), found)
    assert isinstance(make_pipeline(model, StandardScaler()).fit_transform(table), np.ndarray | pd.DataFrame)


def test_views_are_a_list_of_arrow_tables(table):
    pa = pytest.importorskip("pyarrow")
    views = [pa.Table.from_pandas(view, preserve_index=False) for view in views_of(table)]
    for model in (MultiView(2), LatentTree(2, tree="(1,2,3)")):
        expected = model.fit(views_of(table)).predict_proba(views_of(table))
        assert np.array_equal(model.fit(views).predict_proba(views), expected)
        assert model.vocabulary_[0] == "1.height"


@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow"])
def test_nullable_columns_are_read_as_others_are(table, backend):
    nullable = table.convert_dtypes(dtype_backend=backend)
    for model in (MultiView(2, widths="2,2,2"), LatentTree(2, tree="(1,2,3)", widths="2,2,2")):
        found = model.fit(nullable).predict_proba(nullable)
        assert np.array_equal(found, model.fit(table).predict_proba(table))
        assert np.array_equal(model.predict_proba(views_of(nullable)), found)
        with pytest.raises(
            InputError, match=r"X: value in row \d+, column 0: expected a finite number, got nan"
        ):
            model.fit(nullable.assign(height=nullable["height"].mask(nullable["height"] > 0)))


def test_columns_of_several_types_are_read_as_numbers(table):
    mixed = table.round().assign(height=table["height"] > 0, age=table["age"].round().astype(int))
    for model in (
        MultiView(2, widths="2,2,2"),
        LatentTree(2, tree="(1,2,3)", widths="2,2,2"),
        HiddenMarkov(2),
    ):
        found = model.fit(mixed).predict_proba(mixed)
        assert np.array_equal(model.fit(mixed.astype(float)).predict_proba(mixed.astype(float)), found)
        with pytest.raises(InputError, match=r"X: value in row 1, column 2: expected a number, got 'old'"):
            model.fit(mixed.assign(age=["1", "old"] * 300))
    groups, factors = np.arange(600) // 3, ECA(1)
    one = factors.fit(mixed, groups=groups).components_
    assert np.array_equal(factors.fit(mixed.astype(float), groups=groups).components_, one)
    with pytest.raises(InputError, match=r"X: value in row 1, column 2: expected a number, got 'old'"):
        factors.fit(mixed.assign(age=["1", "old"] * 300), groups=groups)


def test_columns_in_place_of_views_are_refused_with_what_to_give(table):
    columns = [table[name] for name in NAMES[:3]]
    for model, parts in ((MultiView(2), "views"), (LatentTree(2, tree="(1,2,3)"), "leaves")):
        with pytest.raises(UsageError, match=f"got none; give {parts} as matrices or tables, not as vectors"):
            model.fit(columns)
        with pytest.raises(UsageError, match=r"got none$"):
            model.fit(table)


@pytest.mark.parametrize(
    "model", [DiagonalMixture(2), SphericalMixture(2), GaussianSearch(2), ProductMixture(2)], ids=repr
)
def test_values_of_a_table_that_are_no_numbers_are_refused_by_row_and_column(table, model):
    table = table.abs()
    for value, expected in [
        ("old", "a number, got 'old'"),
        (pd.Timestamp("2020-01-01"), "a number, got Timestamp"),
        (pd.Timedelta(1, "s"), "a number, got Timedelta"),
        (np.nan, "a finite number, got nan"),
        (np.inf, "a finite number, got inf"),
    ]:
        column = pd.Series(value, index=table.index)
        for given in (column, column.astype("category")):
            with pytest.raises(InputError, match=rf"^X: value in row 0, column 2: expected {expected}"):
                model.fit(table.assign(age=given))
    # A single value in a column of numbers.
    with pytest.raises(InputError, match=r"^X: value in row 3, column 1: expected a finite number, got nan"):
        model.fit(table.assign(weight=table["weight"].mask(np.arange(600) == 3)))


def test_categories_that_are_numbers_are_read_as_numbers(table):
    flags = (table > table.median()).astype(int).assign(**dict.fromkeys("abc", 0))
    for each in (flags.astype("category"), flags.astype(str).astype("category")):
        found = ProductMixture(2).fit(each).predict_proba(each)
        assert np.array_equal(ProductMixture(2).fit(flags).predict_proba(flags), found)


def test_factors_have_the_names_of_a_table_and_refuse_other_columns(table, tmp_path):
    groups = np.arange(600) // 3
    model = ECA(1).fit(table, groups=groups)
    model.save(tmp_path / "model")
    for each in (model, load_model(tmp_path / "model")):
        assert each.feature_names_in_.tolist() == each.vocabulary_ == NAMES
        with warnings.catch_warnings(action="error"):
            found = each.transform(table, groups)
        with pytest.warns(UserWarning, match="X does not have valid feature names"):
            assert np.array_equal(each.transform(table.to_numpy(), groups), found)
        with pytest.raises(UsageError, match="Feature names must be in the same order"):
            each.transform(table[NAMES[::-1]], groups)
    np.save(tmp_path / "X.npy", table.to_numpy())
    with warnings.catch_warnings(action="error"):
        assert np.array_equal(model.transform(tmp_path / "X.npy", groups), found)
    assert not hasattr(model.fit(tmp_path / "X.npy", groups=groups), "feature_names_in_")


def test_names_of_some_of_the_views_are_compared(table):
    first, second, third = views_of(table)
    model = MultiView(2).fit((first, second.to_numpy(), third))
    assert not hasattr(model, "feature_names_in_")
    assert model.vocabulary_[:3] == ["1.height", "1.weight", "2.0"]
    with warnings.catch_warnings(action="error"):
        model.predict((first, second.to_numpy(), third))
    with pytest.raises(UsageError, match=r"X\[2\]: "):
        model.predict((first, second.to_numpy(), second))
    model.fit(tuple(view.to_numpy() for view in views_of(table)))
    with pytest.warns(UserWarning, match="fitted without feature names"):
        model.predict((first, second, third))


def test_the_leaves_of_a_tree_are_named(table):
    model = LatentTree(2, tree="(1,2,3)").fit(views_of(table))
    assert model.feature_names_in_.tolist()[:3] == ["1.height", "1.weight", "2.age"]


SEARCHES = {
    "gaussian": GaussianSearch(2),
    "regression": RegressionSearch(2),
    "subspace": SubspaceSearch(2, dimension=1),
}


def test_columns_of_the_same_name_are_refused():
    words, labels = np.arange(90).reshape(30, 3), np.eye(30, 3, dtype=int)
    twice = ["a", "a", "b"]
    # By scikit-learn or, in its earlier versions, by the corpus.
    expected = "{}: Expected unique column names|expected a unique name, got 'a'"
    for X, y, name in (
        (words, pd.DataFrame(labels, columns=twice), "y"),
        (pd.DataFrame(words, columns=twice), labels, "X"),
    ):
        with pytest.raises(InputError, match=expected.format(name)):
            MultiLabelMoM(2, head="ridge").fit(X, y)


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_have_the_names_of_a_table_and_refuse_other_columns(name, tmp_path):
    rng = np.random.default_rng(0)
    table, model = pd.DataFrame(rng.normal(size=(4000, 6)), columns=NAMES), SEARCHES[name]
    response = np.where(rng.random(4000) < 0.5, table["height"], -table["debt"])
    regression = name == "regression"
    rows = (table.assign(response=response) if regression else table)[:20]
    model.fit(table, *[response] * regression)
    model.save(tmp_path / "model")
    for other in (model, load_model(tmp_path / "model")):
        assert other.feature_names_in_.tolist() == NAMES
        assert other.n_features_in_ == 6
        with warnings.catch_warnings(action="error"):
            found = other.search(rows=rows, force=True)
        with pytest.warns(UserWarning, match="X does not have valid feature names"):
            assert other.search(rows=rows.to_numpy(), force=True).gap == found.gap
        with pytest.raises(UsageError, match="Feature names must be in the same order"):
            other.search(rows=rows[[*NAMES[::-1], *rows.columns[6:]]], force=True)


@pytest.mark.parametrize("model", [GaussianSearch(2), SubspaceSearch(2, dimension=1)])
def test_a_vector_from_a_table_has_the_order_of_its_columns(table, model):
    model.fit(table)
    along = table.iloc[0]
    with warnings.catch_warnings(action="error"):
        found = model.search(along, force=True)
        for plain in (along.to_numpy(), along.reset_index(drop=True)):
            assert model.search(plain, force=True).gap == found.gap
    with pytest.raises(UsageError, match="Feature names must be in the same order"):
        model.search(along[::-1], force=True)
    with pytest.raises(UsageError, match="Feature names unseen at fit time"):
        model.search(along.rename({"age": "years"}), force=True)


def test_side_information_has_the_names_of_its_table(table):
    side = pd.DataFrame({"rich": table["income"] > 2, "tall": table["height"] > 2}, dtype=float)
    model = GaussianSearch(2).fit(table, side)
    assert model.vocabulary_ == [*NAMES, "rich", "tall"]
    found = model.search(target="tall", force=True)
    assert found.gap == model.search(target=1, force=True).gap
    assert GaussianSearch(2).fit(table.to_numpy(), side["rich"]).vocabulary_ == [*"012345", "rich"]
    assert GaussianSearch(2).fit(table.to_numpy(), side["rich"].to_numpy()).vocabulary_[-1] == "side[0]"
