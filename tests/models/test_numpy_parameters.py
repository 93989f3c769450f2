"""Parameters that are numbers of NumPy, as in the grids of scikit-learn, are those of Python."""

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from distmom import (
    ICA,
    AnchorTopics,
    MultiLabelMoM,
    ProductMixture,
    SpectralLDA,
    SphericalMixture,
    load_model,
)

RNG = np.random.default_rng(0)
ROWS = RNG.laplace(size=(600, 5)) + np.repeat(9.0 * np.eye(5)[:3], 200, axis=0)
WORDS = RNG.poisson(np.repeat(RNG.dirichlet(np.full(30, 0.3), 3) * 40, 200, axis=0))
LABELS = np.repeat(["a", "b", "c"], 200)


@pytest.mark.parametrize(
    ("kind", "data", "parameters"),
    [
        (SpectralLDA, (WORDS,), {"n_components": 2, "n_refine": 1, "alpha0": 0.5, "max_df": 1.0}),
        (AnchorTopics, (WORDS,), {"n_components": 2, "max_df": 1.0}),
        (
            MultiLabelMoM,
            (WORDS, LABELS),
            {"n_components": 3, "head": "linear", "smoothing": 0.25, "keep_sums": True},
        ),
        (SphericalMixture, (ROWS,), {"n_components": 3, "n_em_iter": 1, "random_state": 3}),
        (ICA, (ROWS,), {"n_components": 2}),
        (ProductMixture, (WORDS > 0,), {"n_components": 2, "n_em_iter": 2}),
    ],
)
def test_fits_and_files_are_those_of_numbers_of_python(kind, data, parameters, tmp_path):
    types = {int: np.int64, float: np.float32, str: str, bool: np.bool_}
    given = {name: types[type(value)](value) for name, value in parameters.items()}
    models = [kind(**values).fit(*data) for values in (parameters, given)]
    models[1].save(tmp_path / "model")
    read = load_model(tmp_path / "model")
    for name, value in parameters.items():
        assert (type(getattr(read, name)), getattr(read, name)) == (type(value), value)
    for name in ("components_", "weights_", "means_"):
        if hasattr(read, name):
            np.testing.assert_array_equal(getattr(read, name), getattr(models[0], name))


def test_a_grid_of_numpy_is_searched():
    grid = {"n_components": np.arange(2, 4), "n_refine": np.array([1, 2])}
    found = GridSearchCV(SpectralLDA(max_df=1.0), grid, cv=2, error_score="raise").fit(WORDS)
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()
