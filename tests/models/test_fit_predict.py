"""Components of the rows of a fit, as clusterings of scikit-learn return them."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from distmom import DiagonalMixture, MultiView, ProductMixture, SphericalMixture

RNG = np.random.default_rng(0)
TRUTH = np.repeat([0, 1], 300)
ROWS = RNG.standard_normal((600, 9)) + 4.0 * TRUTH[:, None]
PRESENT = RNG.random((600, 30)) < np.where((TRUTH[:, None] + np.arange(30)) % 2, 0.7, 0.1)


@pytest.mark.parametrize(
    ("model", "X"),
    [
        (SphericalMixture(2, random_state=0), ROWS),
        (DiagonalMixture(2, random_state=0), ROWS),
        (MultiView(2, widths="3,3,3", random_state=0), ROWS),
        (ProductMixture(2, random_state=0), PRESENT),
    ],
)
def test_the_components_are_those_of_predict(model, X):
    found = model.fit_predict(X)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, model.predict(X))
    assert adjusted_rand_score(TRUTH, found) > 0.95
    logs = model.predict_log_proba(X)
    np.testing.assert_allclose(np.exp(logs), model.predict_proba(X), atol=1e-12)
    assert (logs.argmax(axis=1) == found).all()


def test_the_logarithm_of_a_probability_of_zero_is_minus_infinity():
    model = SphericalMixture(2, random_state=0).fit(ROWS)
    logs = model.predict_log_proba(np.outer([-1e3, 1e3], np.ones(9)))
    np.testing.assert_array_equal(np.sort(logs, axis=1), [[-np.inf, 0.0]] * 2)


def test_a_pipeline_ends_with_a_mixture():
    found = make_pipeline(StandardScaler(), SphericalMixture(2, random_state=0)).fit_predict(ROWS, TRUTH)
    assert adjusted_rand_score(TRUTH, found) > 0.95
