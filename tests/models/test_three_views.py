"""Three views of one hidden variable, of different kinds and widths."""

import numpy as np
import pytest

from distmom.errors import NumericalError
from distmom.spectral.steps.three_views import decompose_views, mapped


def population(rng, widths, k):
    """Return weights, means of every view (r, k), and the exact moments of the views."""
    weights = rng.dirichlet(np.full(k, 5.0))
    means = [rng.standard_normal((width, k)) for width in widths]
    pairs = [means[s] * weights @ means[t].T for s, t in ((0, 1), (0, 2), (1, 2))]
    triples = np.einsum("i,ai,bi,ci->abc", weights, *means)
    return weights, means, pairs, triples


@pytest.mark.parametrize("method", ["joint", "jennrich"])
def test_an_exact_population_comes_back(method):
    weights, means, pairs, triples = population(np.random.default_rng(0), (7, 5, 9), 4)
    bases = [np.linalg.qr(own)[0] for own in means]
    inner = [bases[s].T @ p @ bases[t] for p, (s, t) in zip(pairs, ((0, 1), (0, 2), (1, 2)), strict=True)]
    found = decompose_views(*inner, triples, tuple(bases), method)
    order, expected = np.argsort(found.weights), np.argsort(weights)
    np.testing.assert_allclose(found.weights[order], weights[expected], atol=1e-10)
    np.testing.assert_allclose((bases[2] @ found.means)[:, order], means[2][:, expected], atol=1e-9)
    assert found.diagnostics["asymmetry"] < 1e-10
    assert abs(found.diagnostics["sum_weights"] - 1.0) < 1e-9


def test_views_with_too_few_components_are_refused():
    _, means, pairs, triples = population(np.random.default_rng(1), (5, 5, 5), 3)
    wide = [np.hstack([np.linalg.qr(own)[0], np.linalg.qr(own, "complete")[0][:, 3:4]]) for own in means]
    rng = np.random.default_rng(2)
    inner = [wide[s].T @ p @ wide[t] for p, (s, t) in zip(pairs, ((0, 1), (0, 2), (1, 2)), strict=True)]
    inner[0] = inner[0] + 1e-3 * rng.standard_normal((4, 4))
    with pytest.raises(NumericalError, match="eigenvalues above the noise level"):
        decompose_views(*inner, triples, tuple(wide), "joint")


def test_moments_that_are_singular_up_to_rounding_are_refused():
    nearly = np.diag([1.0, 2.0**-50])
    np.testing.assert_array_equal(mapped(np.eye(2), nearly), np.diag([1.0, 2.0**50]))
    message = "2 components need 2 singular values above 4.44e-16, got 1, 1.11e-16; use fewer"
    with pytest.raises(NumericalError, match=message):
        mapped(np.eye(2), np.diag([1.0, 2.0**-53]))
    with pytest.raises(NumericalError, match="above 0, got 0, 0"):
        mapped(np.eye(2), np.zeros((2, 2)))
