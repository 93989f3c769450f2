import numpy as np
import pytest

from distmom.errors import NumericalError, UsageError
from distmom.linalg import fix_signs, whiten


def second_moment(d, k, seed=0):
    rng = np.random.default_rng(seed)
    mu = rng.dirichlet(np.ones(d), k).T
    return (mu * np.full(k, 1 / k)) @ mu.T


def test_whitening_identities():
    M2 = second_moment(30, 5)
    result = whiten(M2, 5)
    np.testing.assert_allclose(result.W.T @ M2 @ result.W, np.eye(5), atol=1e-10)
    np.testing.assert_allclose(result.B.T @ result.W, np.eye(5), atol=1e-10)
    np.testing.assert_allclose(result.B, np.linalg.pinv(result.W.T), atol=1e-10)
    np.testing.assert_allclose(result.B @ result.B.T, M2, atol=1e-15)
    assert result.eigenvalues.shape == (30,)
    assert (np.diff(result.eigenvalues) <= 0).all()
    assert result.n_usable == 5
    assert result.gap == pytest.approx(1.0)


def test_fewer_components_than_the_rank_use_the_largest_eigenvalues():
    M2 = np.diag([1.0, 4.0, 2.0, 3.0])
    result = whiten(M2, 2)
    np.testing.assert_allclose(result.B, [[0, 0], [2, 0], [0, 0], [0, 3**0.5]], atol=1e-15)
    np.testing.assert_allclose(result.eigenvalues, [4, 3, 2, 1])
    assert result.gap == pytest.approx(1 / 3)
    assert result.n_usable == 4


def test_the_largest_entry_of_every_eigenvector_is_positive():
    rng = np.random.default_rng(1)
    A = rng.standard_normal((9, 9))
    W = whiten(A @ A.T, 9).W
    assert (W[np.abs(W).argmax(axis=0), np.arange(9)] > 0).all()


def test_large_negative_eigenvalues_are_not_components():
    result = whiten(np.diag([-5.0, 3.0, 2.0]), 2, noise=0.0)
    np.testing.assert_allclose(result.W.T @ np.diag([-5.0, 3.0, 2.0]) @ result.W, np.eye(2), atol=1e-14)
    np.testing.assert_allclose(result.eigenvalues, [3, 2, -5])


@pytest.mark.parametrize(
    ("values", "k", "noise", "message"),
    [
        ([5, 3, 0, 0], 3, None, r"has 2 of n_components=3 eigenvalues .*use n_components=2 or fewer"),
        (
            [5, 3, 0.4, -0.5],
            3,
            None,
            r"level 0\.5 \(from number 1 on they are 5, 3, 0\.4, -0\.5\)",
        ),
        (
            [9, 8, 7, 6, 0.4, 0.3, 0.2, -0.5],
            5,
            None,
            r"the largest is 9; from number 3 on they are 7, 6, 0\.4, 0\.3, 0\.2\)",
        ),
        ([5, 3, 2, 1], 4, 2.5, r"has 2 of n_components=4 eigenvalues above the noise level 2\.5"),
        ([-1, -2], 1, None, r"has 0 .*no number of components can be learned"),
        ([0, 0], 1, None, r"has 0 of n_components=1"),
    ],
)
def test_rank_failure_names_the_numbers_and_a_remedy(values, k, noise, message):
    with pytest.raises(NumericalError, match=message):
        whiten(np.diag(np.array(values, dtype=float)), k, noise=noise)


def test_rounding_is_not_signal():
    """The other eigenvalues of a rank-3 matrix in 40 dimensions are rounding errors of either sign."""
    M2 = second_moment(40, 3, seed=2)
    assert whiten(M2, 3).n_usable == 3
    with pytest.raises(NumericalError, match="has 3 of n_components=4 eigenvalues"):
        whiten(M2, 4, noise=0.0)


def test_invalid_second_moments_are_refused():
    with pytest.raises(UsageError, match="square matrix, got shape"):
        whiten(np.ones((2, 3)), 1)
    with pytest.raises(UsageError, match="n_components=4 is out of range"):
        whiten(np.eye(3), 4)
    with pytest.raises(UsageError, match="not symmetric"):
        whiten(np.array([[1.0, 0.5], [0.0, 1.0]]), 1)
    with pytest.raises(UsageError, match="must not be negative"):
        whiten(np.eye(3), 1, noise=-1.0)
    with pytest.raises(NumericalError, match="not finite"):
        whiten(np.full((2, 2), np.nan), 1)


def test_signs_of_entries_of_equal_magnitude_do_not_depend_on_rounding():
    for error in (-1e-12, 0.0, 1e-12):
        for sign in (-1.0, 1.0):
            vectors = sign * np.array([[0.1, 0.0], [0.7 + error, -0.6], [-0.7, 0.8]])
            np.testing.assert_array_equal(fix_signs(vectors), [[0.1, 0.0], [0.7 + error, -0.6], [-0.7, 0.8]])
