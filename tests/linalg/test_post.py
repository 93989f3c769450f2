import itertools

import numpy as np
import pytest
from oracles import check_eigenpair, mixture_parameters, project
from scipy.optimize import linear_sum_assignment

from distmom.errors import NumericalError
from distmom.linalg import (
    compose,
    decompose,
    mixing_weights,
    whiten,
)


def single_topic_moments(weights, mu, length):
    """Compute second and third moments from all documents of ``length`` words and tuples of positions."""
    d = mu.shape[0]
    M2, M3 = np.zeros((d, d)), np.zeros((d, d, d))
    pairs = list(itertools.permutations(range(length), 2))
    triples = list(itertools.permutations(range(length), 3))
    for document in itertools.product(range(d), repeat=length):
        mass = float(weights @ mu[list(document)].prod(axis=0))
        for a, b in pairs:
            M2[document[a], document[b]] += mass / len(pairs)
        for a, b, c in triples:
            M3[document[a], document[b], document[c]] += mass / len(triples)
    return M2, M3


@pytest.mark.parametrize("method", ["joint", "power", "power-stop", "flatten", "jennrich"])
def test_exact_population_of_the_single_topic_model_is_recovered(method):
    rng = np.random.default_rng(4)
    weights, mu = np.array([0.5, 0.3, 0.2]), rng.dirichlet(np.full(5, 0.7), 3).T
    M2, M3 = single_topic_moments(weights, mu, 4)
    whitening = whiten(M2, 3)
    result = decompose(project(M3, whitening.W), method)
    mixture = mixture_parameters(result.eigenvalues, result.eigenvectors, whitening.B)
    # Components come in order of decreasing weight, so no matching is needed.
    np.testing.assert_allclose(mixture.weights, weights, atol=1e-10)
    np.testing.assert_allclose(mixture.components, mu, atol=1e-10)
    np.testing.assert_allclose(mixture.raw_weights, weights, atol=1e-10)
    np.testing.assert_allclose(mixture.column_sums, 1.0, atol=1e-10)
    assert result.diagnostics["weight_sum"] == pytest.approx(1.0)
    assert result.diagnostics["n_below_one"] == 0
    assert mixture.clipped.max() < 1e-10


def test_one_component_is_the_mean():
    mu = np.array([0.2, 0.3, 0.5])
    whitening = whiten(np.outer(mu, mu), 1)
    result = decompose(project(compose([1.0], mu[:, None]), whitening.W))
    mixture = mixture_parameters(result.eigenvalues, result.eigenvectors, whitening.B)
    np.testing.assert_allclose(mixture.components[:, 0], mu, atol=1e-12)
    assert mixture.weights[0] == 1.0
    assert result.diagnostics["n_below_one"] == 0


def test_components_that_are_not_usable_have_no_weight():
    usable = np.array([False, True, True])
    weights, raw = mixing_weights(np.array([1e-12, 2.0, 4.0]), usable)
    np.testing.assert_allclose(weights, [0, 0.8, 0.2])
    np.testing.assert_allclose(raw, [0, 0.25, 0.0625])
    with pytest.raises(NumericalError, match="none of the 3 components"):
        mixing_weights(np.ones(3), np.zeros(3, bool))


def test_a_zero_tensor_has_eigenvectors_that_are_not_robust():
    check = check_eigenpair(np.zeros((3, 3, 3)), np.array([0.0, 2.0, 0.0]))
    assert (check.eigenvalue, check.residual, check.curvature) == (0.0, 0.0, 0.0)
    assert check.is_eigenvector
    assert not check.is_robust


def test_small_eigenvalues_are_as_robust_as_large_ones():
    vectors = np.linalg.qr(np.random.default_rng(2).standard_normal((3, 3)))[0]
    check = check_eigenpair(compose([0.01, 0.02, 0.03], vectors), vectors[:, 0])
    assert check.eigenvalue == pytest.approx(0.01)
    assert check.is_robust


def test_sampling_error_shrinks_with_the_square_root_of_the_data():
    """Documents of three words; the log-log slope is -1/2 within the accuracy of five repetitions."""
    rng = np.random.default_rng(12)
    d, k = 30, 3
    weights, mu = np.array([0.5, 0.3, 0.2]), rng.dirichlet(np.full(d, 0.3), k).T
    sizes, errors = np.array([4000, 16000, 64000]), []
    for size in sizes:
        runs = []
        for _ in range(5):
            states = rng.choice(k, size, p=weights)
            cdf = np.cumsum(mu, axis=0)[:, states]
            x, y, z = ((rng.random((1, size)) > cdf).sum(axis=0) for _ in range(3))
            M2 = np.zeros((d, d))
            np.add.at(M2, (x, y), 1 / size)
            M3 = np.zeros((d, d, d))
            np.add.at(M3, (x, y, z), 1 / size)
            M3 = sum(M3.transpose(p) for p in itertools.permutations(range(3))) / 6
            whitening = whiten((M2 + M2.T) / 2, k)
            result = decompose(project(M3, whitening.W))
            found = mixture_parameters(result.eigenvalues, result.eigenvectors, whitening.B).components
            cost = np.abs(mu[:, :, None] - found[:, None, :]).sum(axis=0)
            runs.append(cost[linear_sum_assignment(cost)].mean())
        errors.append(np.median(runs))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.7 < slope < -0.3
