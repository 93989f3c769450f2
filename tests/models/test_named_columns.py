import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from distmom import ICA, DiagonalMixture, HiddenMarkov, LatentNetwork, MultiView, SphericalMixture, load_model
from distmom.errors import UsageError

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
