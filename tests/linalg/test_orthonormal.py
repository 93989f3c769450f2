import numpy as np
import pytest

from distmom.errors import NumericalError, UsageError
from distmom.linalg import orthonormalise


def conditioned(d, r, condition, seed=0):
    """Return a matrix with singular values from 1 to 1 / condition and without badly scaled columns."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((d, r)))[0]
    V = np.linalg.qr(rng.standard_normal((r, r)))[0]
    return (U * np.geomspace(1, 1 / condition, r)) @ V.T


def in_slabs(A, *cuts):
    return np.split(A, cuts)


@pytest.mark.parametrize(
    ("condition", "method"),
    [(1e2, "cholesky"), (1e4, "cholesky"), (1e8, "householder"), (1e12, "householder")],
)
def test_basis_is_orthonormal_for_any_condition_number(condition, method):
    A = conditioned(500, 12, condition)
    basis = orthonormalise(in_slabs(A, 3, 200, 205))
    Q = np.concatenate(basis.slabs)
    assert basis.method == method
    assert basis.rank == 12
    assert basis.n_dropped == 0
    np.testing.assert_allclose(Q.T @ Q, np.eye(12), atol=1e-12)
    # The columns of A lie in the span up to rounding of A.
    assert np.abs(A - Q @ (Q.T @ A)).max() < 1e-15 * 10
    assert [slab.shape for slab in basis.slabs] == [(3, 12), (197, 12), (5, 12), (295, 12)]


def test_badly_scaled_columns_are_handled():
    A = conditioned(200, 6, 10.0) * 10.0 ** np.arange(-150, 150, 50)
    basis = orthonormalise(in_slabs(A, 90))
    Q = np.concatenate(basis.slabs)
    assert basis.method == "cholesky"
    np.testing.assert_allclose(Q.T @ Q, np.eye(6), atol=1e-12)


def test_tiny_columns_whose_squares_vanish_are_kept():
    A = conditioned(50, 3, 2.0) * np.array([1.0, 1e-200, 1.0])
    basis = orthonormalise([A])
    assert basis.rank == 3
    np.testing.assert_allclose(basis.slabs[0].T @ basis.slabs[0], np.eye(3), atol=1e-12)


def test_dependent_and_zero_columns_are_dropped_and_counted():
    A = conditioned(100, 5, 10.0)
    A = np.column_stack([A, A @ np.ones(5), np.zeros(100), A[:, 0]])
    basis = orthonormalise(in_slabs(A, 40))
    Q = np.concatenate(basis.slabs)
    assert (basis.rank, basis.n_dropped, Q.shape) == (5, 3, (100, 5))
    np.testing.assert_allclose(Q.T @ Q, np.eye(5), atol=1e-12)
    assert np.abs(A - Q @ (Q.T @ A)).max() < 1e-13


def test_wider_than_tall_keeps_at_most_the_rows():
    A = np.random.default_rng(0).standard_normal((4, 7))
    basis = orthonormalise(in_slabs(A, 1))
    assert (basis.rank, basis.n_dropped) == (4, 3)


def test_memory_maps_of_a_matrix_give_its_bits(tmp_path):
    A = conditioned(60, 4, 1e3)
    maps = []
    for i, slab in enumerate(in_slabs(A, 20, 50)):
        np.save(tmp_path / f"{i}.npy", slab)
        maps.append(np.load(tmp_path / f"{i}.npy", mmap_mode="r"))
    fresh = np.concatenate(orthonormalise(in_slabs(A, 20, 50)).slabs)
    assert np.concatenate(orthonormalise(maps).slabs).tobytes() == fresh.tobytes()


def test_single_precision_input_gives_a_basis_in_double_precision():
    A = conditioned(300, 8, 1e3).astype(np.float32)
    Q = orthonormalise([A]).slabs[0]
    assert Q.dtype == np.float64
    np.testing.assert_allclose(Q.T @ Q, np.eye(8), atol=1e-14)


def test_slabs_of_unequal_width_or_without_values_are_refused():
    with pytest.raises(UsageError, match=r"equal width, got shapes \[\(2, 3\), \(2, 4\)\]"):
        orthonormalise([np.ones((2, 3)), np.ones((2, 4))])
    with pytest.raises(UsageError, match="equal width"):
        orthonormalise([])
    with pytest.raises(NumericalError, match="zero"):
        orthonormalise([np.zeros((2, 3))])
    with pytest.raises(NumericalError, match="not finite"):
        orthonormalise([np.array([[1.0], [np.nan]])])
